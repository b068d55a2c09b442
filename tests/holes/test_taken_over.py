"""While changes are taken over: what broke other tools, each a test named after the hole."""

import fcntl
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import need
from fumehood import ApplyFailed, BadRequest, Run, Sandbox, UndoRefused
from fumehood.service.clean import clean
from fumehood.service.restore import restore
from fumehood.service.store import Store
from fumehood.store.projects import Project
from patience import LONG_S
from snapshots import snapshot

pytestmark = pytest.mark.namespaces
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts, and makes files immutable")

Host = Callable[[str], None]
Meanwhile = Callable[..., Run]
Verdicts = Callable[[Run], dict[str, str]]


# --- a symlink in the layer or the project leads the host side out of the project ---


@pytest.mark.parametrize("aim", ["outside", "outside/file", "outside/nowhere/at/all"])
def test_nothing_is_copied_through_a_link_that_the_command_left(
    sandbox: Sandbox, project: Path, outside: Path, on_host: Host, aim: str
) -> None:
    on_host("mkdir d; echo old > d/file")
    before, untouched = snapshot(project), snapshot(outside)
    run = sandbox.run(f"rm -r d; ln -s {outside.parent / aim} d; ln -s {outside.parent / aim} new")
    sandbox.apply(run)  # a person let it through
    later = sandbox.run("rm d; mkdir d; echo new > d/file; echo new > d/sub")
    sandbox.undo(later)
    sandbox.undo(run)
    assert snapshot(project) == before
    assert snapshot(outside) == untouched


def test_nothing_is_created_below_a_dangling_link(sandbox: Sandbox, project: Path, outside: Path) -> None:
    (project / "d").symlink_to(outside / "nowhere")
    untouched = snapshot(outside)
    run = sandbox.run("rm d; mkdir -p d/sub; echo new > d/sub/file")
    assert (run.state, (project / "d").is_symlink()) == ("applied", False)
    sandbox.undo(run)
    assert os.readlink(project / "d") == str(outside / "nowhere")
    assert snapshot(outside) == untouched


def test_a_parent_that_is_swapped_for_a_link_meanwhile_leads_nowhere(
    sandbox: Sandbox, project: Path, outside: Path, on_host: Host, meanwhile: Meanwhile
) -> None:
    on_host("mkdir d; echo old > d/file; echo old > d/gone")
    untouched = snapshot(outside)

    def swap() -> None:
        (project / "d").rename(project / "moved")
        (project / "d").symlink_to(outside)

    run = meanwhile("echo new > d/file; rm d/gone; echo new > d/new", swap)
    assert run.state == "held"
    assert snapshot(outside) == untouched
    assert (project / "moved/file").read_text() == "old\n"


def test_a_parent_that_flickers_while_it_is_applied_leads_nowhere(
    sandbox: Sandbox, project: Path, outside: Path, on_host: Host
) -> None:
    on_host("mkdir d; for n in $(seq 200); do echo old > d/$n; done; ln -s ../outside link")
    untouched = snapshot(outside)
    held = sandbox.run("for n in $(seq 200); do echo new > d/$n; echo new > d/new$n; done", apply="hold")
    stop = threading.Event()

    def flicker() -> None:
        while not stop.is_set():
            os.rename(project / "d", project / "away")
            os.rename(project / "link", project / "d")
            os.rename(project / "d", project / "link")
            os.rename(project / "away", project / "d")

    thread = threading.Thread(target=flicker)
    thread.start()
    try:
        for _ in range(5):
            try:
                sandbox.apply(held)
                break
            except ApplyFailed:
                continue
    finally:
        stop.set()
        thread.join()
    assert snapshot(outside) == untouched
    found = {path.read_text() for path in (project / "d").iterdir() if path.name.isdigit()}
    assert found in ({"old\n"}, {"new\n"}), "all or nothing"


def test_an_undo_follows_no_link(sandbox: Sandbox, project: Path, outside: Path, on_host: Host) -> None:
    on_host("mkdir d; echo old > d/file")
    run = sandbox.run("echo new > d/file; echo new > d/new")
    on_host("mv d moved; ln -s ../outside d")
    untouched = snapshot(outside)
    with pytest.raises(UndoRefused):
        sandbox.undo(run)
    assert snapshot(outside) == untouched


def test_a_restore_follows_no_link(
    sandbox: Sandbox, store: Store, known: Project, project: Path, outside: Path, on_host: Host
) -> None:
    on_host("mkdir d; echo old > d/file; echo old > top")
    sandbox.run("rm d/file top")
    on_host("rmdir d; ln -s ../outside d; ln -s ../outside/file top")
    untouched = snapshot(outside)
    with pytest.raises(BadRequest, match="it is a symlink now"):
        restore(store, known, "d/file")
    restore(store, known, "top")
    assert ((project / "top").is_symlink(), (project / "top").read_text()) == (False, "old\n")
    assert snapshot(outside) == untouched


# --- a FIFO, socket or device in the layer ---

SOCKET = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"odd\")'"


@pytest.mark.parametrize("make", ["mkfifo odd", SOCKET], ids=["fifo", "socket"])
@pytest.mark.parametrize("place", [".", "new", "old"], ids=["at the top", "in a new directory", "for a file"])
def test_a_fifo_or_socket_neither_hangs_the_apply_nor_breaks_it_after_the_deletions(
    sandbox: Sandbox, project: Path, on_host: Host, make: str, place: str
) -> None:
    on_host("echo old > gone; echo old > changed; echo old > old")
    before = snapshot(project)
    at = f"mkdir -p {place}; cd {place}" if place != "old" else "rm old; mkdir old; cd old"
    run = sandbox.run(f"rm gone; echo new > changed; ({at}; {make}; echo x > beside)")
    assert run.exit_code == 0, run.output
    odd = next(change for change in run.changes if change.path.endswith("odd"))
    assert odd.verdict == "unsupported"
    assert odd.reason
    assert not (project / "gone").exists()
    assert (project / "changed").read_text() == "new\n"
    assert not [path for path in project.rglob("odd") if stat.S_ISFIFO(path.lstat().st_mode)]
    sandbox.undo(run)
    assert snapshot(project) == before


def test_a_fifo_that_was_there_stays_and_can_be_deleted_and_comes_back(sandbox: Sandbox, project: Path) -> None:
    os.mkfifo(project / "pipe")
    before = snapshot(project)
    run = sandbox.run("rm pipe; echo x > new")
    assert not (project / "pipe").exists()
    sandbox.undo(run)
    assert snapshot(project) == before


def test_a_socket_that_listens_in_the_project_is_no_trouble(sandbox: Sandbox, project: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(project)
        try:
            listening.bind("sock")
        finally:
            os.chdir(here)
        listening.listen()
        run = sandbox.run("echo x > new; ls -l sock")
    assert (run.state, run.exit_code) == ("applied", 0)
    assert stat.S_ISSOCK((project / "sock").stat().st_mode)


# --- kinds that replace each other ---

KINDS = {
    "nothing": "true", "file": "echo {0} > {1}", "empty": "mkdir {1}", "directory": "mkdir {1}; echo {0} > {1}/{0}",
    "deep": "mkdir -p {1}/deep; echo {0} > {1}/deep/{0}", "symlink": "ln -s {0} {1}",
}  # fmt: skip
INSIDE = {"nothing": [], "directory": ["", "/new"], "deep": ["", "/deep", "/deep/new"]}


def test_every_kind_replaces_every_other_and_comes_back(sandbox: Sandbox, project: Path, on_host: Host) -> None:
    pairs = [(old, new, f"{old}-{new}") for old in KINDS for new in KINDS]
    on_host("\n".join(KINDS[old].format("old", name) for old, _, name in pairs))
    before = snapshot(project)
    run = sandbox.run(
        "\n".join(f"rm -rf {name}; {KINDS[new].format('new', name)}" for _, new, name in pairs)
        + "\nfind . -exec touch -h -d @1500000000 {} +"
    )
    assert run.state == "applied"
    now = snapshot(project)
    expected = {f"{name}{inside}" for _, new, name in pairs for inside in INSIDE.get(new, [""])}
    assert set(now) - {"."} == expected
    back = sandbox.undo(run)
    assert snapshot(project) == before
    sandbox.undo(back)
    assert snapshot(project) == now


# --- modes, links, sizes, names ---


@pytest.mark.parametrize(
    ("before", "command"),
    [
        ("mkdir d; echo x > d/f", "chmod 700 d"),
        ("mkdir d", "chmod 1777 d"),
        ("true", "mkdir -p a/b/c empty; chmod 1770 empty"),
        ("mkdir -p a/b/c", "rmdir -p a/b/c"),
        ("mkdir d; echo x > d/f; chmod 555 d", "chmod 755 d; echo y > d/f; echo z > d/new; chmod 555 d"),
        ("mkdir d; echo x > d/f; chmod 555 d", "chmod 755 d; rm -r d"),
        ("mkdir d; echo x > d/f; chmod 444 d/f", "chmod 644 d/f; echo y > d/f; chmod 400 d/f"),
        ("echo x > a; ln a b; ln a c", "echo y > a; rm b"),
        ("echo x > a; ln a b", "ln a c; echo more >> a"),
    ],
    ids=["directory mode", "sticky", "empty directories", "no longer empty", "read-only directory",
         "read-only directory removed", "read-only file", "hard links", "another hard link"],
)  # fmt: skip
def test_modes_links_and_empty_directories_are_taken_over_and_come_back(
    sandbox: Sandbox, project: Path, on_host: Host, before: str, command: str
) -> None:
    on_host(before)
    old = snapshot(project)
    run = sandbox.run(f"{command}; python3 -S {Path(snapshot.__code__.co_filename)} . > /dev/null; true")
    assert run.state == "applied", run.changes
    back = sandbox.undo(run)
    assert without_links(snapshot(project)) == without_links(old)
    sandbox.undo(back)
    assert without_links(snapshot(project)) != without_links(old)
    on_host("chmod -R u+rwX .")


def without_links(found: dict[str, list[object]]) -> dict[str, list[object]]:
    """A backup shares no inode with what stays, so an undo does not bring back a link to that."""
    return {path: told[:-1] for path, told in found.items()}


@pytest.mark.parametrize("mode", ["4755", "2755", "6755"])
def test_a_set_uid_or_set_gid_bit_never_arrives_unseen(sandbox: Sandbox, project: Path, mode: str) -> None:
    run = sandbox.run(f"cp /bin/true t; chmod {mode} t; mkdir d; cp /bin/true d/t; chmod {mode} d/t")
    assert run.state == "held"
    found = [path for path in project.rglob("*") if path.stat().st_mode & 0o6000]
    assert found == []


def test_a_sparse_and_huge_file_stays_sparse(sandbox: Sandbox, project: Path) -> None:
    write = "printf end | dd of=huge bs=1 seek=1000000000 conv=notrunc"
    run = sandbox.run(f"set -e; truncate -s 8G huge; {write} 2>/dev/null")
    need(run.exit_code == 0, f"there are no files of 8 GiB here: {run.output}")
    found = (project / "huge").stat()
    assert (found.st_size, found.st_blocks * 512 < 1 << 20) == (8 << 30, True)
    sandbox.undo(run)
    assert not (project / "huge").exists()


NAMES = [b"a\nb", b"\xff\xfe", b"-rf", b"--", b"x" * 255, b" ", b"'\"$(id)`id`", b"a\tb\\n", b"*"]


def test_any_name_is_taken_over_and_comes_back(sandbox: Sandbox, project: Path) -> None:
    files = [project / os.fsdecode(name) for name in NAMES]
    directories = [project / os.fsdecode(name[:-1] + b"+") for name in NAMES]
    for file, directory in zip(files, directories, strict=True):
        file.write_text("old")
        directory.mkdir(exist_ok=True)
    before = snapshot(project)
    run = sandbox.run("for f in ./*; do [ -d \"$f\" ] && echo in > \"$f/in\" || echo new > \"$f\"; done")
    assert {file.read_text() for file in files} == {"new\n"}
    assert {(directory / "in").read_text() for directory in directories} == {"in\n"}
    told = {change.path for change in run.changes}
    assert told == {file.name for file in files} | {f"{directory.name}/in" for directory in directories}
    sandbox.undo(run)
    assert snapshot(project) == before


@pytest.mark.long
def test_paths_near_the_limit_and_deep_trees_are_taken_over_and_come_back(sandbox: Sandbox, project: Path) -> None:
    # Longer than a path may be, one directory at a time: names of 200 bytes, and 700 of one.
    make = "for n in $(seq {count}); do mkdir {name}; cd {name}; done; echo deep > deep"
    run = sandbox.run(
        f"({make.format(count=25, name='n' * 200)}); mkdir thin; (cd thin; {make.format(count=700, name='d')})"
    )
    assert (run.state, run.exit_code) == ("applied", 0)
    assert max(len(change.path) for change in run.changes) > 4096
    again = sandbox.run("cd thin; for n in $(seq 700); do cd d; done; echo deeper > deep")
    assert again.state == "applied"
    sandbox.undo(again)
    sandbox.undo(run)
    assert os.listdir(project) == []


# --- content ---


def test_binary_content_is_neither_cut_at_nul_nor_decoded(sandbox: Sandbox, project: Path) -> None:
    old, new = bytes(range(256)) * 100, b"\0\xff\xfe\r\n\x1a" * 5000
    (project / "f").write_bytes(old)
    (project / "new").write_bytes(new)
    run = sandbox.run("cat new > f; head -c 3 new > cut; rm new")
    assert ((project / "f").read_bytes(), (project / "cut").read_bytes()) == (new, b"\0\xff\xfe")
    sandbox.undo(run)
    assert ((project / "f").read_bytes(), (project / "new").read_bytes()) == (old, new)


def test_a_file_is_restored_where_a_directory_now_stands(
    sandbox: Sandbox, store: Store, known: Project, project: Path, on_host: Host
) -> None:
    on_host("echo old > x")
    sandbox.run("rm x")
    on_host("mkdir x; echo mine > x/mine")
    before = snapshot(project)
    back = restore(store, known, "x")
    assert (project / "x").read_text() == "old\n"
    sandbox.undo(back)
    assert snapshot(project) == before


# --- the apply dies half-way ---

@pytest.mark.parametrize("after", [1, 2, 4, 6])
def test_an_apply_that_is_killed_half_way_is_before_or_after(
    sandbox: Sandbox, project: Path, on_host: Host, after: int
) -> None:
    on_host("for n in 1 2 3 4; do echo old > $n; done; echo old > gone")
    before = snapshot(project)
    held = sandbox.run("for n in 1 2 3 4; do echo new > $n; done; rm gone; mkdir d; echo x > d/x", apply="hold")
    code = f"from fumehood import Sandbox; Sandbox({str(project)!r}).apply('last')"
    fault = ["strace", "-o", "/dev/null", "--trace=renameat2", f"--inject=renameat2:signal=KILL:when={after}"]
    died = subprocess.run([*fault, sys.executable, "-P", "-c", code], check=False)
    assert died.returncode in (-9, 137)
    with Sandbox(project) as again:
        assert snapshot(project) == before
        assert again.apply(held).state == "applied"
        assert (project / "d/x").read_text() == "x\n"
        again.undo(held)
    assert snapshot(project) == before


@only_root
def test_a_full_disk_leaves_the_project_as_it_was(home: Path, test_directory: Path) -> None:
    room = test_directory / "small"
    room.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "small", str(room)], check=True)
    try:
        project = room / "project"
        project.mkdir()
        (project / "a").write_bytes(b"x" * 400_000)
        (project / "b").write_text("old")
        before = snapshot(project)
        with Sandbox(project) as sandbox:
            run = sandbox.run("head -c 900000 /dev/zero > c; echo new > b; rm a")
            assert (run.state, "No space left" in run.reason) == ("held", True)
            assert snapshot(project) == before
            assert not [name for name in os.listdir(project) if name.startswith(".fumehood")]
    finally:
        subprocess.run(["umount", str(room)], check=True)


@pytest.fixture
def mounted(test_directory: Path) -> Iterator[Path]:
    project = test_directory / "mounted"
    (project / "d").mkdir(parents=True)
    (project / "d/a").write_text("old")
    subprocess.run(["mount", "--bind", str(project), str(project)], check=True)
    yield project
    subprocess.run(["umount", str(project)], check=True)


@only_root
def test_a_project_that_is_a_mount_of_a_part_of_the_same_file_system_is_swapped_too(
    home: Path, mounted: Path
) -> None:
    before = snapshot(mounted)
    with Sandbox(mounted) as sandbox:
        run = sandbox.run("echo new > d/a; mkdir -p e/f; echo new > e/f/g")
        assert (run.state, (mounted / "d/a").read_text()) == ("applied", "new\n")
        sandbox.undo(run)
        assert snapshot(mounted) == before


@only_root
def test_a_target_that_became_read_only_is_left_as_it_was(home: Path, mounted: Path) -> None:
    with Sandbox(mounted) as sandbox:
        held = sandbox.run("echo new > d/a; echo new > b", apply="hold")
        before = snapshot(mounted)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(mounted)], check=True)
        with pytest.raises(ApplyFailed, match="Read-only file system") as failure:
            sandbox.apply(held)
        assert failure.value.hint
        assert snapshot(mounted) == before
        subprocess.run(["mount", "-o", "remount,bind,rw", str(mounted)], check=True)
        assert sandbox.apply(held).state == "applied"


@only_root
def test_one_file_that_may_not_be_touched_stops_the_whole_apply(sandbox: Sandbox, project: Path, on_host: Host) -> None:
    on_host("for n in 1 2 3 4 5; do echo old > $n; done")
    held = sandbox.run("for n in 1 2 3 4 5; do echo new > $n; done; rm 2", apply="hold")
    flagged = subprocess.run(["chattr", "+i", "4"], cwd=project, capture_output=True, check=False)
    need(flagged.returncode == 0, "files can't be made immutable here")
    before = snapshot(project)
    try:
        with pytest.raises(ApplyFailed, match="nothing was applied"):
            sandbox.apply(held)
        assert snapshot(project) == before
    finally:
        subprocess.run(["chattr", "-i", "4"], cwd=project, check=True)
    assert sandbox.apply(held).state == "applied"


# --- the report ---


@pytest.mark.long
@pytest.mark.once
def test_a_long_report_counts_every_deletion(
    cli: Callable[..., "subprocess.CompletedProcess[str]"], project: Path, on_host: Host
) -> None:
    on_host("mkdir d; for n in $(seq 300); do echo x > d/gone$n; done")
    line = "rm -r d; for n in $(seq 3000); do echo x > new$n; done"
    told = cli("run", "--", line).stderr
    assert re.search(r"- d/.* and 300 in it", told)
    assert "301 deletions" in told
    assert len(told.splitlines()) < 400
    cli("undo")
    with Sandbox(project) as sandbox:
        text = sandbox.run(line).for_model()
    assert all(f"deleted d/gone{n}\n" in f"{text}\n" for n in range(1, 301))
    assert len(text.splitlines()) < 500


# --- others at work ---


def test_what_a_person_edits_during_the_run_stays_theirs_and_the_runs_version_is_kept(
    sandbox: Sandbox, project: Path, meanwhile: Meanwhile, verdicts: Verdicts
) -> None:
    (project / "f").write_text("old")
    run = meanwhile("echo run > f; echo run > g", lambda: (project / "f").write_text("mine"))
    assert verdicts(run) == {"f": "conflict", "g": "applied"}
    assert (project / "f").read_text() == "mine"
    with pytest.raises(BadRequest, match="f changed in the project"):
        sandbox.apply(run)
    assert (project / "f").read_text() == "mine"
    sandbox.apply(run, "f", force=True)
    assert (project / "f").read_text() == "run\n"
    sandbox.undo(run)
    assert (project / "f").read_text() == "mine"


def test_two_agents_at_once_lose_nothing(project: Path, home: Path, verdicts: Verdicts) -> None:
    (project / "shared").write_text("old")
    runs: list[Run] = []

    def work(name: str) -> None:
        with Sandbox(project) as sandbox:
            runs.extend(sandbox.run(f"echo {name} > own-{name}-{n}; echo {name} >> shared") for n in range(5))

    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(work, name) for name in ("one", "two")]:
            done.result()
    assert len([path for path in project.iterdir() if path.name.startswith("own")]) == 10
    shared = [verdicts(run)["shared"] for run in runs]
    assert (project / "shared").read_text().count("\n") == shared.count("applied")
    assert set(shared) <= {"applied", "conflict", "held"}, "what was built on a conflict waits with it"


def test_a_file_that_is_being_written_while_it_is_copied_up_is_not_taken_over_torn(
    sandbox: Sandbox, project: Path, meanwhile: Meanwhile, verdicts: Verdicts, on_host: Host
) -> None:
    on_host("git init -q .; echo x > a; git add a")
    index = (project / ".git/index").read_bytes()
    run = meanwhile(
        "echo more >> .git/index; echo x > b", lambda: (project / ".git/index").write_bytes(index + b"the person's")
    )
    assert verdicts(run)[".git/index"] == "conflict"
    assert (project / ".git/index").read_bytes() == index + b"the person's"
    assert (project / "b").read_text() == "x\n"


# --- undo ---


def test_an_undo_touches_nothing_that_the_run_did_not_change(
    sandbox: Sandbox, project: Path, on_host: Host
) -> None:
    on_host("mkdir d; echo old > d/a; echo old > d/b; echo x > untracked")
    run = sandbox.run("echo new > d/a; mkdir made; echo x > made/x")
    on_host("echo mine > d/b; echo mine > d/mine; echo mine > mine; rm untracked")
    sandbox.undo(run)
    assert (project / "d/a").read_text() == "old\n"
    assert {path.name for path in project.rglob("*")} == {"d", "a", "b", "mine"}
    assert (project / "d/b").read_text() == (project / "d/mine").read_text() == "mine\n"


def test_an_undo_does_not_take_what_somebody_put_into_a_directory_of_the_run(
    sandbox: Sandbox, project: Path, on_host: Host
) -> None:
    run = sandbox.run("mkdir made; echo x > made/x")
    on_host("echo mine > made/mine")
    with pytest.raises(UndoRefused, match="made"):
        sandbox.undo(run)
    assert sorted(os.listdir(project / "made")) == ["mine", "x"]


# --- a big tree ---


def opened(project: Path) -> int:
    """How many system calls of a run name a file of the project's tree."""
    code = f"from fumehood import Sandbox; s = Sandbox({str(project)!r}); s.run('echo new > d0/f0'); s.undo()"
    done = subprocess.run(
        ["strace", "-f", "-e", "trace=%file", sys.executable, "-P", "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return len(re.findall(r"[\"/][df]\d+\"", done.stderr))


@pytest.mark.long
@pytest.mark.once
def test_a_run_and_its_undo_look_at_no_more_of_a_big_tree_than_of_a_small_one(
    home: Path, test_directory: Path
) -> None:
    counts = []
    for directories in (1, 60):
        project = test_directory / f"tree{directories}"
        for number in range(directories):
            (project / f"d{number}").mkdir(parents=True)
            for file in range(50):
                (project / f"d{number}/f{file}").write_text("x")
        counts.append(opened(project))
    # Its directories are listed once for links and repositories, and for a user once for owners; no file is looked at.
    assert 0 < counts[1] < counts[0] + 2 * 60, "3,000 files more"


# --- stubs, and each other's state ---


def test_no_stub_is_left_in_the_project(sandbox: Sandbox, project: Path) -> None:
    sandbox.run("true")
    sandbox.run("cat .git/config .vscode/x .claude/y .mcp.json; ls -a .git .husky; exit 1")
    sandbox.run("echo x > a; rm a")
    with pytest.raises(BadRequest):
        sandbox.run("true", cwd="not/there")
    held = sandbox.run("mkdir .vscode; echo {} > .vscode/tasks.json")
    sandbox.discard(held)
    assert os.listdir(project) == []


def test_parallel_sessions_do_not_clean_each_others_state(
    sandbox: Sandbox, store: Store, project: Path, meanwhile: Meanwhile
) -> None:
    (project / "f").write_text("old")
    held = sandbox.run("echo held > f", apply="hold")

    def clean_all() -> None:
        with Sandbox(project) as other:
            other.run("true")
        clean(store, days=0, backup_days=0, budget=1)

    run = meanwhile("echo new > g", clean_all)
    assert (run.state, (project / "g").read_text()) == ("applied", "new\n")
    assert sandbox.apply(held).state == "applied"


def test_a_project_in_use_by_another_process_is_waited_for_and_not_broken(
    sandbox: Sandbox, store: Store, known: Project, project: Path
) -> None:
    done = threading.Event()
    with open(store.places.lock(f"project-{known.id}"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: (sandbox.run("echo x > a"), done.set()))
        thread.start()
        assert not done.wait(0.5)
        assert not (project / "a").exists()
    thread.join(LONG_S)
    assert (done.is_set(), (project / "a").read_text()) == (True, "x\n")
