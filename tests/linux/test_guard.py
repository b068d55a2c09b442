"""The guard, on its own and in the sandbox: writing is confined by the kernel a second time."""

import base64
import hashlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from conftest import need
from fumehood.core.policy import FULL, Network
from fumehood.errors import Unavailable
from fumehood.linux import confine, doctor, libc
from fumehood.linux.bwrap import provide
from fumehood.linux.guards import COMPILER, GUARDS, SOURCE
from fumehood.service.network import NetworkAccess
from patience import LONG_S

CHECKOUT = Path(__file__).resolve().parent.parent.parent


def guarded(program, places, line, through=()):
    """Run a line under the guard alone, with no mount to help it."""
    made = Path(places[0]).parent / "guard"
    made.write_bytes(program)
    made.chmod(0o755)
    # As bubblewrap does: without it, only root may restrict itself.
    command = ["setpriv", "--no-new-privs", *through, str(made), *places, "--", "/bin/sh", "-c", line]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG_S)


@pytest.fixture
def program():
    need(bool(confine.guard_program()), "there is no Landlock here")
    return confine.guard_program()


def test_the_programs_are_those_of_the_source():
    assert hashlib.sha256((CHECKOUT / "tools/guard.c").read_bytes()).hexdigest() == SOURCE, "run tools/guard"
    assert set(GUARDS) == {"x86_64", "aarch64"}


@pytest.mark.parametrize("machine", sorted(GUARDS))
def test_the_bytes_are_what_the_source_makes(machine, test_directory):
    tool = ["sh", CHECKOUT / "tools/guard"]
    version = subprocess.run([*tool, "version", machine], capture_output=True, text=True, check=False)
    if version.returncode:
        pytest.skip(version.stderr.strip())
    if version.stdout.strip() != COMPILER:
        pytest.skip(f"another gcc makes other bytes: {version.stdout.strip()}, and not {COMPILER}")
    subprocess.run([*tool, machine, test_directory / "made"], check=True)
    assert (test_directory / "made").read_bytes() == base64.b64decode(GUARDS[machine])


def test_writing_is_confined_though_nothing_is_mounted(program, test_directory):
    allowed, other = test_directory / "allowed", test_directory / "other"
    for place in (allowed, other):
        place.mkdir()
        (place / "there").write_text("x")
    line = (
        f"cd {allowed} && echo y > new && echo y > there && mkdir d && mv new d/ && ln -s x l && rm l && echo fine;"
        f" cat {other}/there; cd {other}; echo y > new; echo y > there; mkdir d; rm there;"
        f" ln {allowed}/there l; mkfifo p; mv {allowed}/there .; : > there; true"
    )
    done = guarded(program, [str(allowed), "/no/such/place"], line)
    assert done.stdout == "fine\nx"
    assert sorted(path.name for path in other.iterdir()) == ["there"]
    assert (other / "there").read_text() == "x"


def test_a_single_file_may_be_allowed(program, test_directory):
    one = test_directory / "one"
    one.write_text("")
    done = guarded(program, [str(one)], f"echo x > {one}; echo x > {test_directory}/two")
    assert (one.read_text(), "Permission denied" in done.stderr) == ("x\n", True)
    assert not (test_directory / "two").exists()


def test_processes_outside_get_no_signal(program, test_directory):
    need(confine.can_scope(), "this kernel's Landlock has no scopes")
    with subprocess.Popen(["sleep", "1000"]) as victim:
        done = guarded(program, [str(test_directory / "x")], f"kill -9 {victim.pid}")
        assert victim.poll() is None
        victim.send_signal(signal.SIGKILL)
    assert "not permitted" in done.stderr


@pytest.mark.parametrize("network_shared", [True, False])
@pytest.mark.parametrize("has_program", [True, False])
@pytest.mark.parametrize("version", [-1, 0, 1, 2, 3, 5, 6, 7, 99])
def test_a_command_has_one_ruleset_that_lets_files_be_moved(version, has_program, network_shared):
    chosen = confine.choose_ruleset(version, has_program=has_program, network_shared=network_shared)
    # The first version always denies moving to another directory; scopes come with the sixth.
    if has_program and version >= 2:
        assert chosen == confine.GUARD
    else:
        assert chosen == (confine.SCOPE if network_shared and version >= 6 else confine.NONE)


def test_on_a_kernel_with_the_first_landlock_there_is_no_guard(monkeypatch):
    monkeypatch.setattr(confine, "_guard", None)
    monkeypatch.setattr(libc, "landlock_version", lambda: 1)
    assert confine.guard_program() == b""
    said = doctor.check_guard()
    assert not said.works
    assert "Linux 5.19" in said.detail


def test_no_file_elsewhere_is_cut_short(program, test_directory):
    need(libc.landlock_version() >= confine.TRUNCATING_SINCE, "this kernel's Landlock lets files be cut short")
    allowed, other = test_directory / "allowed", test_directory / "other"
    allowed.mkdir()
    for file in (allowed / "file", other):
        file.write_text("x")
    line = f"python3 -c 'import os; os.truncate(\"{allowed}/file\", 0); os.truncate(\"{other}\", 0)'"
    done = guarded(program, [str(allowed)], line)
    assert "Permission denied" in done.stderr
    assert [(allowed / "file").read_text(), other.read_text()] == ["", "x"]


@pytest.mark.parametrize(("version", "is_lacking"), [(2, True), (3, False), (6, False)])
def test_doctor_says_where_the_guard_lets_files_be_cut_short(version, is_lacking, monkeypatch):
    monkeypatch.setattr(confine, "_guard", b"the program")
    monkeypatch.setattr(libc, "landlock_version", lambda: version)
    said = doctor.check_guard()
    assert said.works
    assert ("cutting files short (Linux 6.2)" in said.detail) == is_lacking


@pytest.mark.parametrize("version", [0, 1, 5])
def test_the_whole_network_is_refused_where_landlock_has_no_scopes(version, monkeypatch):
    monkeypatch.setattr(libc, "landlock_version", lambda: version)
    with pytest.raises(Unavailable, match=r"Linux 6\.12"):
        NetworkAccess(Network(mode=FULL))


def test_the_status_of_the_command_is_its_own(program, test_directory):
    assert guarded(program, [str(test_directory / "x")], "exit 7").returncode == 7


def test_the_other_machines_program_runs_too(test_directory):
    other = next(name for name in GUARDS if name != os.uname().machine)
    emulator = shutil.which(f"qemu-{other}-static") or shutil.which(f"qemu-{other}")
    if emulator is None:
        pytest.skip(f"there is no emulator of {other}")
    done = guarded(base64.b64decode(GUARDS[other]), [str(test_directory / "x")], "echo it runs", (emulator,))
    # An emulator may have no Landlock, or may not start a program of this machine; but it must have come that far.
    assert done.stdout == "it runs\n" or "can't be started" in done.stderr


@pytest.mark.namespaces
def test_what_a_command_writes_by_is_all_there(sandbox, project, home):
    code = (
        "import os, tempfile, mmap\n"
        "open('a', 'w').write('x'); os.truncate('a', 0); os.rename('a', 'b')\n"
        "os.link('b', 'c'); os.symlink('b', 'd')\n"
        "os.makedirs('e/f'); os.rename('b', 'e/f/b'); tempfile.NamedTemporaryFile().write(b'x')\n"
        "open('/dev/null', 'w').write('x'); open('/dev/shm/x', 'w').write('x')\n"
        "if os.geteuid(): open('/proc/self/comm', 'w').write('x')\n"  # to root, it is read-only
        "open('/dev/stdout', 'w').write('fine\\n')\n"
    )
    run = sandbox.run(["python3", "-I", "-S", "-c", code])
    assert (run.stdout, run.stderr, run.exit_code) == ("fine\n", "", 0)


@pytest.mark.namespaces
def test_no_descriptor_of_the_guard_is_left_to_the_command(sandbox):
    assert sandbox.run("ls /proc/self/fd").stdout.split() == ["0", "1", "2", "3"]


def test_what_is_provided_is_at_its_place():
    child = os.fork()
    if child == 0:
        provide(b"text", 40)
        os._exit(0 if os.read(40, 9) == b"text" and os.get_inheritable(40) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
