"""What a command wrote lands in the project exactly, and an undo brings back exactly what was there."""

import errno
import os
import socket
import stat
import subprocess
from itertools import product
from pathlib import Path

import pytest

from fumehood import ApplyFailed, BadRequest, UndoRefused
from fumehood.core import changes as c
from fumehood.linux import libc
from snapshots import heard, snapshot, told

pytestmark = pytest.mark.namespaces

IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can do this")
PYTHON = "python3 -I -S -c"


@pytest.fixture
def project(project_on_either):
    return project_on_either


def on_host(project: Path, script: str) -> None:
    subprocess.run(["sh", "-ec", script], cwd=project, check=True)


def there_and_back(sandbox, project, command):
    """Apply, undo, undo the undo, and undo that: each time the project is exactly one of the two."""
    before = snapshot(project)
    run = sandbox.run(f"set -e\n{command}\n{told(project)}")
    assert run.exit_code == 0, run.output
    left = heard(run.stdout)
    if run.state == "held":
        run = sandbox.apply(run)  # a person let links that lead out through
    assert run.state == "applied", run.reason
    assert snapshot(project) == left
    back = sandbox.undo(run)
    assert snapshot(project) == before
    again = sandbox.undo(back)
    assert snapshot(project) == left
    sandbox.undo(again)
    assert snapshot(project) == before
    assert not [name for name in os.listdir(project) if name.startswith(".fumehood")]
    return run


# --- every pair of kinds ---

MADE_BY_A_COMMAND = {
    c.WHITEOUT: "rm -rf it",
    c.FILE: "rm -rf it; echo new > it",
    c.DIRECTORY: "mkdir tmp; echo new > tmp/new; rm -rf it; mv tmp it",
    c.OPAQUE: "rm -rf it; mkdir it; echo new > it/new",
    c.SYMLINK: "rm -rf it; ln -s elsewhere it",
    c.FIFO: "rm -rf it; mkfifo it",
    c.SOCKET: f"rm -rf it; {PYTHON} 'import socket; socket.socket(socket.AF_UNIX).bind(\"it\")'",
}
# Where both are of one kind, the one that is there is changed.
CHANGED_IN_PLACE = {c.FILE: "echo new >> it", c.DIRECTORY: "echo new > it/new; echo new >> it/old"}


def make_live(path: Path, kind: str) -> None:
    if kind == c.FILE:
        path.write_text("old\n")
    elif kind == c.DIRECTORY:
        (path / "sub").mkdir(parents=True)
        (path / "old").write_text("old\n")
        (path / "sub/deep").write_text("old\n")
        (path / "link").symlink_to("old")
    elif kind == c.SYMLINK:
        path.symlink_to("old")
    elif kind == c.FIFO:
        os.mkfifo(path, 0o640)
    elif kind == c.SOCKET:
        with socket.socket(socket.AF_UNIX) as listening:
            here = os.open(path.parent, os.O_PATH)
            listening.bind(f"/proc/self/fd/{here}/{path.name}")
            os.close(here)
    elif kind == c.DEVICE:
        os.mknod(path, stat.S_IFCHR | 0o660, os.makedev(1, 3))


LIVE = [kind for kind in c.LIVE_KINDS if IS_ROOT or kind != c.DEVICE]


def test_every_kind_a_command_can_leave_is_tried_here():
    # In the hood nobody can make a device.
    assert set(MADE_BY_A_COMMAND) == set(c.LAYER_KINDS) - {c.DEVICE}


def in_a_directory_each(project: Path, pairs) -> str:
    """Make the live entry of each pair, and return the commands that change them all."""
    lines = []
    for layer, live in pairs:
        here = project / f"{layer} over {live}"
        here.mkdir()
        make_live(here / "it", live)
        (here / "beside").write_text("not touched")
        command = CHANGED_IN_PLACE[layer] if layer == live and live in CHANGED_IN_PLACE else MADE_BY_A_COMMAND[layer]
        lines.append(f"cd '{here}'; {command}")
    return "\n".join(lines)


def test_every_pair_of_kinds_is_applied_and_undone_exactly(sandbox, project):
    pairs = list(product([c.WHITEOUT, c.FILE, c.DIRECTORY, c.OPAQUE, c.SYMLINK], LIVE))
    run = there_and_back(sandbox, project, in_a_directory_each(project, pairs))
    assert {change.change for change in run.changes} == {"added", "modified", "deleted", "type"}
    touched = {change.path.split("/")[0] for change in run.changes}
    assert {f"{layer} over {live}" for layer, live in pairs} - touched == {f"{c.WHITEOUT} over {c.ABSENT}"}


def test_kinds_that_are_not_taken_over_leave_the_project_as_it_is(sandbox, project):
    pairs = list(product([c.FIFO, c.SOCKET], LIVE))
    command = in_a_directory_each(project, pairs)
    before = snapshot(project)
    run = sandbox.run(f"set -e\n{command}")
    assert {change.verdict for change in run.changes} == {"unsupported"}
    assert all("not taken over" in change.reason for change in run.changes if change.path.endswith("/it"))
    assert {change.path.split("/")[0] for change in run.changes} == {f"{layer} over {live}" for layer, live in pairs}
    assert run.state == "discarded"
    assert snapshot(project) == before


def test_a_command_can_not_leave_a_device(sandbox, project):
    run = sandbox.run("mknod null c 1 3 || mknod white c 0 0")
    assert run.exit_code != 0
    assert run.state == "empty"


# --- what happens to real projects: what a person has, what a command does ---

SCENARIOS = {
    "a read-only directory with changes inside": (
        "mkdir d; echo 1 > d/f; echo 2 > d/g; chmod 555 d",
        "chmod 755 d; echo 22 > d/f; rm d/g; echo 3 > d/new; mkdir d/sub; chmod 555 d",
    ),
    "a read-only directory inside a read-only one": (
        "mkdir -p a/b/c; echo 1 > a/b/c/f; chmod 555 a/b/c a/b a",
        "chmod 755 a/b/c; echo 22 > a/b/c/f; chmod 500 a/b/c",
    ),
    "a read-only new tree": ("", "mkdir -p m/a/b; echo x > m/a/b/f; chmod 444 m/a/b/f; chmod -R a-w m"),
    "a read-only tree deleted": ("mkdir -p m/a; echo x > m/a/f; chmod -R a-w m", "chmod -R u+w m; rm -r m"),
    "a read-only tree replaced by a file": ("mkdir -p m/a; chmod -R a-w m", "chmod -R u+w m; rm -r m; echo x > m"),
    "a file replaced by a read-only tree": ("echo x > m", "rm m; mkdir -p m/a; echo x > m/a/f; chmod -R a-w m"),
    "a directory closed by the command": ("mkdir d; echo 1 > d/f", "echo 22 > d/f; echo 3 > d/g; chmod 0 d"),
    "a closed directory written in": (
        "mkdir d; echo 1 > d/f; chmod 0 d", "chmod 700 d; echo 22 > d/f; echo 3 > d/g; chmod 0 d",
    ),
    "a closed directory opened": ("mkdir d; echo 1 > d/f; chmod 0 d", "chmod 755 d; rm d/f"),
    "a closed directory deleted": (
        "mkdir -p d/e; echo 1 > d/e/f; chmod 0 d/e; chmod 0 d", "chmod 700 d; chmod 700 d/e; rm -r d",
    ),
    "a closed directory emptied": (
        "mkdir -p d/e; echo 1 > d/e/f; chmod 0 d/e; chmod 0 d",
        "chmod 700 d; chmod 700 d/e; rm -r d; mkdir d; chmod 0 d",
    ),
    "a new closed tree": ("", "mkdir -p n/a; echo x > n/a/f; echo y > n/f; chmod 0 n/a; chmod 0 n"),
    "a file moved into a new closed directory": ("echo x > f; echo y > g", "mkdir -p n/a; mv f g n/a; chmod 0 n/a n"),
    "files that their owner may not read": (
        "echo a > a; echo b > b; echo c > c; chmod 0 a c; chmod 400 b",
        "chmod 600 a b c; echo aa > a; echo bb > b; chmod 0 a; chmod 400 b; rm c; echo n > n; chmod 0 n",
    ),
    "sticky and setgid bits": (
        "mkdir s; chmod 1777 s; mkdir g; chmod 2755 g; echo x > g/f",
        "mkdir s2 g2; chmod 1770 s2; chmod 2750 g2; chmod 755 s; chmod 1755 g; echo y > g/f",
    ),
    "modes of files": ("echo x > f; echo y > g; chmod 644 f; chmod 755 g", "chmod 755 f; chmod 600 g"),
    "the project's own mode": ("chmod 755 .", "chmod 1750 ."),
    "the project closed to others, and changed": ("echo x > f", "echo yy > f; chmod 700 ."),
    "empty directories": ("mkdir -p a/b c", "rmdir a/b a; mkdir c/d; mkdir -p e/f/g; touch e/h"),
    "nothing but an empty directory deleted": ("mkdir empty", "rmdir empty"),
    "nothing but empty directories deleted": ("mkdir -p a/b/c a/d", "rm -r a"),
    "a directory of empty directories replaced": ("mkdir -p a/b/c", "rm -r a; ln -s nowhere a"),
    "empty files": ("touch a b", "rm a; touch c; echo x > b"),
    "new hard links": ("", "echo x > a; ln a b; mkdir d; ln a d/c"),
    "new hard links in a new directory": ("", "mkdir -p d/e; echo x > d/a; ln d/a d/b; ln d/a d/e/c"),
    "hard links between two new directories": ("", "mkdir d e; echo x > d/a; ln d/a e/b"),
    "hard links deleted together": ("echo x > a; ln a b; mkdir d; ln a d/c", "rm a b d/c"),
    "hard links deleted with their directory": ("mkdir -p d/e; echo x > d/a; ln d/a d/b; ln d/a d/e/c", "rm -r d"),
    "hard links deleted with two directories": ("mkdir d e; echo x > d/a; ln d/a e/b", "rm -r d e"),
    "hard links replaced by new ones": ("echo x > a; ln a b", "rm a b; echo y > a; ln a b"),
    "a directory renamed": ("mkdir -p d/sub; echo 1 > d/f; echo 2 > d/sub/g", "mv d e"),
    "two files exchanged": ("echo 1 > a; echo 22 > b", "mv a t; mv b a; mv t b"),
    "a file and a directory exchanged": ("echo 1 > a; mkdir b; echo 2 > b/f", "mv a t; mv b a; mv t b"),
    "a directory moved into itself by name": ("mkdir -p d/sub; echo 1 > d/f", "mkdir n; mv d n/d; mv n d"),
    "everything deleted": ("mkdir -p d/e; echo 1 > d/e/f; echo 2 > .g; ln -s f l", "rm -rf d .g l"),
    "everything replaced": (
        "mkdir -p d/e; echo 1 > d/e/f; echo 2 > g", "rm -rf d g; mkdir g; echo 3 > g/h; mkdir -p d/e; echo 44 > d/e/f",
    ),
    "deleted and written again": (
        "echo 1 > f; mkdir d; echo 1 > d/f", "rm -r f d; echo 22 > f; mkdir d; echo 22 > d/f",
    ),
    "a directory replaced by one of other entries": (
        "mkdir -p d/keep d/lose; echo 1 > d/keep/f; echo 2 > d/lose/g; echo 3 > d/h",
        "rm -r d; mkdir -p d/keep d/new; echo 11 > d/keep/f; echo 4 > d/new/i; chmod 700 d",
    ),
    "dangling symlinks": ("ln -s nowhere a; ln -s b b", "rm a; ln -s /nowhere/either a; ln -s ../out c; ln -sfn x b"),
    "content with NUL": ("printf 'a\\0b' > f", "printf 'a\\0c' > f; printf '\\0' > g"),
}  # fmt: skip


# The others are done by one command, each in a directory of its own: to start one takes longer than a change.
BY_ITSELF = [name for name in SCENARIOS if name.startswith(("the project", "nothing but", "everything", "hard links"))]
TOGETHER = [name for name in SCENARIOS if name not in BY_ITSELF]


@pytest.mark.parametrize("names", [[name] for name in BY_ITSELF] + [TOGETHER], ids=[*BY_ITSELF, "all others"])
def test_a_change_is_applied_and_undone_exactly(sandbox, project, names):
    commands = []
    for number, name in enumerate(names):
        place = project if names == [name] else project / str(number)
        place.mkdir(exist_ok=True)
        setup, command = SCENARIOS[name]
        on_host(place, setup)
        commands.append(f"cd '{place}'; {command}")
    there_and_back(sandbox, project, "\n".join(commands))


def test_content_that_nobody_may_read_comes_back_too(sandbox, project):
    on_host(project, "echo old > secret; chmod 0 secret")
    run = sandbox.run("chmod 600 secret; echo newer > secret; chmod 0 secret")
    back = sandbox.undo(run)
    (project / "secret").chmod(0o400)
    assert (project / "secret").read_text() == "old\n"
    (project / "secret").chmod(0)
    sandbox.undo(back)
    (project / "secret").chmod(0o400)
    assert (project / "secret").read_text() == "newer\n"


def test_what_lies_in_closed_directories_comes_back_too(sandbox, project):
    on_host(project, "mkdir -p d/e; echo old > d/e/f; chmod 0 d/e d")
    run = sandbox.run("chmod 700 d; chmod 700 d/e; echo newer > d/e/f; mkdir n; echo n > n/f; chmod 0 n d/e d")
    sandbox.undo(sandbox.undo(run))
    for path in ("d", "d/e", "n"):
        assert stat.S_IMODE((project / path).stat().st_mode) == 0
        (project / path).chmod(0o700)
    assert (project / "d/e/f").read_text() == "newer\n"
    assert (project / "n/f").read_text() == "n\n"


NAMES = {
    "a newline": b"two\nlines", "invalid UTF-8": b"\xff\xfe", "a leading dash": b"-rf", "255 bytes": b"n" * 255,
    "quotes and a backslash": b"'\"\\", "control characters": b"\x1b[31m\x7f", "spaces": b" ",
    "punctuation": b"a,b:c=d;e",
    "what looks like ours": b".fumehood-1", "what looks like a whiteout": b".wh.x",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_any_name_is_applied_and_undone(sandbox, project, name):
    top = os.fsencode(project)
    os.mkdir(top + b"/dir")
    for path in (name, b"dir/" + name):
        with open(top + b"/" + path, "wb") as file:
            file.write(b"old")
    before = snapshot(project)
    code = (
        f"import os, sys; name = bytes.fromhex('{name.hex()}'); os.unlink(name);"
        "open(b'dir/' + name, 'ab').write(b'new'); os.mkdir(b'new'); os.mkdir(b'new/' + name);"
        "open(b'new/' + name + b'/' + name, 'wb').write(b'new')"
    )
    run = sandbox.run(["python3", "-I", "-S", "-c", code])
    assert run.state == "applied", run.output
    assert os.fsencode(run.changes[0].path) in (name, b"dir/" + name)
    assert os.path.exists(top + b"/new/" + name + b"/" + name)
    sandbox.undo(run)
    assert snapshot(project) == before


DEEP = """
import os
here = os.open({top!r}, os.O_PATH)
for _ in range({depth}):
    if {make}:
        os.mkdir({name!r}, dir_fd=here)
    below = os.open({name!r}, os.O_PATH, dir_fd=here)
    os.close(here)
    here = below
{act}
os.close(here)
"""


def deep(top: str, name: str, depth: int, act: str, *, make: bool) -> str:
    return DEEP.format(top=top, name=name, depth=depth, make=make, act=act)


@pytest.fixture(params=["deep", "long"])
def chain(request, project):
    """Deeper than Python's stack, and longer than a path can be; what copies a tree takes its time in deep ones."""
    if request.param == "long":
        return "n" * 200, 60
    return "d", 200 if project.is_relative_to("/dev/shm") else 1500


@pytest.mark.long
def test_a_new_tree_deeper_than_a_path_can_say_is_applied_and_undone(sandbox, project, chain):
    name, depth = chain
    code = deep(str(project), name, depth, "os.close(os.open('file', os.O_CREAT, dir_fd=here))", make=True)
    run = sandbox.run(["python3", "-I", "-S", "-c", code])
    assert run.state == "applied", run.output
    assert len(run.changes) == depth + 1
    back = sandbox.undo(run)
    assert os.listdir(project) == []
    sandbox.undo(back)
    assert os.listdir(project) == [name]


@pytest.mark.long
def test_changes_at_the_end_of_a_deep_tree_are_applied_and_undone(sandbox, project, chain):
    name, depth = chain
    write = "os.close(os.open('old', os.O_CREAT, dir_fd=here))"
    exec(deep(str(project), name, depth, write, make=True), {})
    act = "os.close(os.open('new', os.O_CREAT, dir_fd=here)); os.unlink('old', dir_fd=here)"
    run = sandbox.run(["python3", "-I", "-S", "-c", deep(str(project), name, depth, act, make=False)])
    assert run.state == "applied", run.output
    found = []
    look = "listing = os.open('.', os.O_RDONLY, dir_fd=here); found.append(os.listdir(listing)); os.close(listing)"
    for expected in (["new"], ["old"], ["new"]):
        exec(deep(str(project), name, depth, look, make=False), {"found": found})
        assert found.pop() == expected
        run = sandbox.undo(run)


@pytest.mark.long
def test_a_thousand_changes_of_every_sort_are_undone(sandbox, project):
    on_host(project, "for d in 1 2 3 4 5 6 7 8 9; do mkdir $d; for f in a b c d e f; do echo $f > $d/$f; done; done")
    there_and_back(
        sandbox,
        project,
        "for d in 1 2 3 4 5 6 7 8 9; do rm $d/a; echo xx > $d/b; ln -sf c $d/d; rm $d/e; mkdir $d/e; mkdir -p $d/n/m;"
        " for f in 1 2 3 4 5 6 7 8 9; do echo $f > $d/$f; echo $f > $d/n/$f; echo $f > $d/n/m/$f; done; done",
    )


# --- what belongs to a file ---


def test_attributes_are_kept_and_those_of_an_overlay_never_reach_the_project(sandbox, project):
    (project / "dir").mkdir()
    (project / "gone").mkdir()
    for name in ("changed", "moved", "gone/file"):
        (project / name).write_text("old")
        os.setxattr(project / name, "user.colour", b"blue\0")
    os.setxattr(project / "gone", "user.colour", b"blue\0")
    code = "import os; os.setxattr('changed', 'user.shade', b'dark'); os.mkdir('n'); os.setxattr('n', 'user.n', b'1')"
    run = there_and_back(
        sandbox, project, f"{PYTHON} \"{code}\"; echo new > changed; mv moved n/; rm -r gone dir; mkdir dir"
    )
    sandbox.undo(sandbox.history()[0])
    assert os.getxattr(project / "changed", "user.shade") == b"dark"
    assert os.getxattr(project / "n/moved", "user.colour") == b"blue\0"
    assert run.state == "applied"
    for path in (project, *project.rglob("*")):
        assert not [name for name in os.listxattr(path) if "overlay" in name], path


def test_times_are_kept(sandbox, project):
    (project / "old").write_text("x")
    (project / "gone").symlink_to("x")
    os.utime(project / "old", ns=(1, 999_999_999_123_456_789))
    os.utime(project / "gone", ns=(1, 5), follow_symlinks=False)
    run = there_and_back(sandbox, project, "touch -d @1.5 new; rm old gone; mkdir n; touch -d @2.25 n/f")
    assert len(run.changes) == 5


def test_sparse_files_stay_sparse(sandbox, project):
    with open(project / "old", "wb") as file:
        file.seek(1 << 28)
        file.write(b"end")
    run = sandbox.run(["sh", "-c", "truncate -s 1G new; printf x >> new; rm old"])
    assert (project / "new").stat().st_size == (1 << 30) + 1
    assert (project / "new").stat().st_blocks < 1000
    sandbox.undo(run)
    assert (project / "old").stat().st_size == (1 << 28) + 3
    assert (project / "old").stat().st_blocks < 1000
    with open(project / "old", "rb") as file:
        file.seek(1 << 28)
        assert file.read() == b"end"


def test_a_backup_shares_no_inode_with_a_live_file(sandbox, project):
    on_host(project, "echo true > a; ln a b; mkdir d; echo true > d/a; ln d/a e; echo true > f; ln f g")
    run = sandbox.run("echo changed > a; rm -r d; rm f")
    for name in ("b", "e", "g"):
        # In place, as an editor does that keeps links.
        with open(project / name, "r+") as file:
            file.write("SPOILT")
    back = sandbox.undo(run)
    assert [(project / name).read_text() for name in ("a", "d/a", "f")] == ["true\n"] * 3
    assert [(project / name).stat().st_nlink for name in ("a", "b", "d/a", "e", "f", "g")] == [1] * 6
    sandbox.undo(back)
    assert (project / "a").read_text() == "changed\n"
    assert not (project / "d").exists()
    assert [(project / name).read_text()[:6] for name in ("b", "e", "g")] == ["SPOILT"] * 3


def test_links_among_backups_survive_where_another_link_stays(sandbox, project):
    on_host(project, "echo x > a; ln a b; ln a stays")
    sandbox.undo(sandbox.run("rm a b"))
    assert (project / "a").stat().st_ino == (project / "b").stat().st_ino
    assert (project / "stays").stat().st_nlink == 1


def test_what_a_person_links_after_the_run_shares_no_inode_with_what_the_undo_takes_out(sandbox, project):
    run = sandbox.run("echo run > new; mkdir d; echo run > d/new")
    os.link(project / "new", project / "mine")
    os.link(project / "d/new", project / "mine too")
    back = sandbox.undo(run)
    for name in ("mine", "mine too"):
        with open(project / name, "r+") as file:
            file.write("my")
    sandbox.undo(back)
    assert (project / "new").read_text() == (project / "d/new").read_text() == "run\n"


def test_a_new_link_to_a_file_that_stays_gets_an_inode_of_its_own(sandbox, project):
    on_host(project, "echo x > a")
    run = sandbox.run("ln a b; mkdir -p d/e; ln a d/e/c; ln a d/f")
    assert {change.path for change in run.changes} == {"b", "d", "d/e", "d/e/c", "d/f"}
    names = ("b", "d/e/c", "d/f")
    assert [(project / name).read_text() for name in names] == ["x\n"] * 3
    assert (project / "a").stat().st_nlink == 1
    assert {(project / name).stat().st_nlink for name in names} == {3}
    back = sandbox.undo(run)
    assert os.listdir(project) == ["a"]
    sandbox.undo(back)
    assert {(project / name).stat().st_nlink for name in names} == {3}


def test_kinds_not_taken_over_stay_behind_and_the_rest_of_their_directory_is_applied(sandbox, project):
    before = snapshot(project)
    run = sandbox.run(
        "mkdir -p n/sub/whole n/deep/deeper; echo x > n/file; mkfifo n/sub/fifo; echo y > n/sub/whole/file;"
        " chmod 750 n/sub; cd n/deep/deeper; echo z > ../z;"
        f" {PYTHON} 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'"
    )
    verdicts = {change.path: change.verdict for change in run.changes}
    assert {path for path, verdict in verdicts.items() if verdict == "unsupported"} == {
        "n/sub/fifo", "n/deep/deeper/socket",
    }  # fmt: skip
    assert run.state == "applied"
    left = {
        ".", "n", "n/sub", "n/sub/whole", "n/sub/whole/file", "n/file", "n/deep", "n/deep/deeper", "n/deep/z",
    }  # fmt: skip
    applied = snapshot(project)
    assert set(applied) == left
    assert applied["n/sub"][1] == "0o750"
    back = sandbox.undo(run)
    assert snapshot(project) == before
    again = sandbox.undo(back)
    assert snapshot(project) == applied
    sandbox.undo(again)
    assert snapshot(project) == before


def test_a_file_does_not_become_half_a_directory(sandbox, project):
    (project / "it").write_text("old")
    before = snapshot(project)
    run = sandbox.run("rm it; mkdir it; echo x > it/file; mkfifo it/fifo; echo y > other")
    assert {change.path: change.verdict for change in run.changes} == {
        "it": "held", "it/file": "held", "it/fifo": "unsupported", "other": "applied",
    }  # fmt: skip
    assert run.state == "held"
    assert (project / "it").read_text() == "old"
    run = sandbox.apply(run)
    assert run.state == "held"
    assert (project / "it").read_text() == "old"
    sandbox.undo(run)
    assert snapshot(project) == before


# --- some of it held ---

PARTLY_HELD = {
    "links in a new directory": "mkdir -p n/sub; echo x > n/f; ln -s /etc n/sub/out; echo y > n/sub/g; ln -s /etc n/o",
    "all of a directory in a new one": "mkdir -p n/sub/deep; echo x > n/f; ln -s /etc n/sub/deep/out",
    "all of a new directory": "mkdir -p n/sub; ln -s /etc n/sub/out; echo x > f",
    "all of a new directory but an empty one": "mkdir -p n/empty n/sub/empty; ln -s /etc n/sub/out; echo x > f",
    "a replacement": "echo x > f; rm -r d; ln -s /etc d",
    "hard links of which some are in a held directory": (
        "mkdir n; echo x > n/a; ln n/a b; rm -r d; mkdir t; mv t d; rm -r d; mkdir d; ln -s /etc d/out; ln n/a d/c"
    ),
    "a link in a closed directory": "mkdir n; echo x > n/f; ln -s /etc n/out; chmod 500 n; chmod 700 d; ln -s /etc d/x",
}


@pytest.mark.long
@pytest.mark.parametrize("command", PARTLY_HELD.values(), ids=PARTLY_HELD)
def test_what_was_held_is_applied_later_and_all_is_undone_together(sandbox, project, command):
    on_host(project, "mkdir d; echo old > d/old")
    before = snapshot(project)
    run = sandbox.run(f"{command}; {told(project)}")
    assert run.state == "held", run.reason
    assert {change.verdict for change in run.changes} == {"applied", "held"}
    partly = snapshot(project)
    back = sandbox.undo(run)
    assert snapshot(project) == before
    sandbox.undo(back)
    assert snapshot(project) == partly
    assert {each.id: each.state for each in sandbox.history()}[run.id] == "held"
    sandbox.apply(run)
    left = heard(run.stdout)
    assert without_links(snapshot(project)) == without_links(left)
    back = sandbox.undo(run)
    assert snapshot(project) == before
    sandbox.undo(back)
    assert without_links(snapshot(project)) == without_links(left)


def without_links(found):
    """A snapshot less its last column: what is applied at two times shares no inode."""
    return {path: described[:-1] for path, described in found.items()}


@pytest.mark.parametrize("command", PARTLY_HELD.values(), ids=PARTLY_HELD)
def test_what_was_held_and_thrown_away_does_not_hinder_the_undo(sandbox, project, command):
    on_host(project, "mkdir d; echo old > d/old")
    before = snapshot(project)
    run = sandbox.run(command)
    partly = snapshot(project)
    assert sandbox.discard(run).state == "applied"
    assert snapshot(project) == partly
    back = sandbox.undo(run)
    assert snapshot(project) == before
    sandbox.undo(back)
    assert snapshot(project) == partly


@pytest.mark.long
def test_a_deep_tree_with_one_held_link_is_judged_in_reasonable_time(sandbox, project):
    code = deep(str(project), "d", 1500, "os.symlink('/etc', 'out', dir_fd=here)", make=True)
    run = sandbox.run(["python3", "-I", "-S", "-c", code])
    assert {change.verdict for change in run.changes} == {"held"}
    assert os.listdir(project) == []


# --- undo refuses ---


def edited(project):
    (project / "changed").write_text("mine")


def replaced(project):
    (project / "mine").write_text("mine\n")
    os.rename(project / "mine", project / "changed")


def deleted(project):
    (project / "changed").unlink()


def became_a_directory(project):
    (project / "changed").unlink()
    (project / "changed").mkdir()


def got_a_mode(project):
    (project / "changed").chmod(0o600)


def added_inside(project):
    (project / "made/mine").write_text("mine")


def added_deep_inside(project):
    (project / "made/sub/mine").mkdir()


def edited_inside(project):
    (project / "made/file").write_text("mine")


def deleted_inside(project):
    (project / "made/file").unlink()


def directory_got_a_mode(project):
    (project / "made").chmod(0o700)


def deleted_path_is_there_again(project):
    (project / "gone").write_text("mine")


def link_points_elsewhere(project):
    (project / "link").unlink()
    (project / "link").symlink_to("mine")


def mode_was_set_again(project):
    (project / "moded").chmod(0o711)


LATER = {
    edited: "changed", replaced: "changed", deleted: "changed", became_a_directory: "changed", got_a_mode: "changed",
    added_inside: "made/mine", added_deep_inside: "made/sub/mine", edited_inside: "made/file",
    deleted_inside: "made/file", directory_got_a_mode: "made", deleted_path_is_there_again: "gone",
    link_points_elsewhere: "link", mode_was_set_again: "moded",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("later", LATER, ids=lambda later: later.__name__.replace("_", " "))
def test_undo_refuses_where_the_path_is_no_longer_what_the_run_left(sandbox, project, later):
    on_host(project, "echo old > changed; echo old > gone; ln -s old link; mkdir moded; echo mine > unrelated")
    run = sandbox.run(
        "echo new > changed; rm gone; mkdir -p made/sub; echo new > made/file; ln -sf new link; chmod 700 moded"
    )
    later(project)
    before = snapshot(project)
    with pytest.raises(UndoRefused, match=LATER[later]) as refusal:
        sandbox.undo(run)
    assert refusal.value.hint
    assert snapshot(project) == before
    assert {each.id: each.state for each in sandbox.history()}[run.id] == "applied"


def test_undo_touches_nothing_but_what_the_run_changed(sandbox, project):
    on_host(project, "echo old > changed; mkdir d; echo old > d/changed; echo a > a; echo b > d/b")
    run = sandbox.run("echo new > changed; echo new > d/changed; echo new > d/new")
    on_host(project, "echo mine > a; rm d/b; echo mine > d/mine; mkdir mine; ln -s x d/link; chmod 600 a")
    expected = snapshot(project)
    sandbox.undo(run)
    found = snapshot(project)
    ours = {"changed", "d/changed", "d/new"}
    assert {path: value for path, value in found.items() if path not in ours} == {
        path: value for path, value in expected.items() if path not in ours
    }
    assert (project / "d/changed").read_text() == "old\n"
    assert not (project / "d/new").exists()


def test_undo_twice_says_that_it_is_undone_already(sandbox, project):
    run = sandbox.run("echo x > f")
    sandbox.undo(run)
    with pytest.raises(BadRequest, match="run 1 is undone already") as refusal:
        sandbox.undo(run)
    assert refusal.value.hint
    assert os.listdir(project) == []


def test_undoing_an_undo_of_an_undo_is_undoing_the_run(sandbox, project):
    run = sandbox.run("echo x > f")
    first = sandbox.undo(run)
    second = sandbox.undo(first)
    assert states(sandbox) == ["applied", "undone", "applied"]
    third = sandbox.undo(second)
    assert not (project / "f").exists()
    assert states(sandbox) == ["applied", "undone", "applied", "undone"]
    with pytest.raises(BadRequest, match="undone already"):
        sandbox.undo(run)
    sandbox.undo(third)
    assert (project / "f").exists()
    assert states(sandbox) == ["applied", "undone", "applied", "undone", "applied"]
    sandbox.undo(run)
    assert not (project / "f").exists()


def states(sandbox):
    return [run.state for run in sandbox.history()]


def test_undo_of_a_run_that_changed_nothing_says_so(sandbox, project):
    for command in ("true", "mkfifo f"):
        with pytest.raises(BadRequest, match="changed nothing"):
            sandbox.undo(sandbox.run(command))
    with pytest.raises(BadRequest, match="changed nothing"):
        sandbox.undo(sandbox.run("echo x > f", apply="hold"))


def test_runs_are_undone_in_the_reverse_order_and_not_in_another(sandbox, project):
    (project / "f").write_text("0")
    first = sandbox.run("echo 1 > f")
    second = sandbox.run("echo 22 > f")
    with pytest.raises(UndoRefused, match="f"):
        sandbox.undo(first)
    sandbox.undo(second)
    sandbox.undo(first)
    assert (project / "f").read_text() == "0"


def layers(home):
    return os.listdir(home / ".local/state/fumehood/runs")


def test_layers_that_hold_no_backup_are_not_kept(sandbox, project, home):
    (project / "d").mkdir()
    run = sandbox.run("mkdir -p n/m; echo x > n/m/f; echo y > d/f; echo z > f; chmod 700 d")
    assert layers(home) == []
    back = sandbox.undo(run)
    assert layers(home) == [run.id]
    sandbox.undo(back)
    assert layers(home) == []


def test_an_empty_directory_is_a_backup_too(sandbox, project, home):
    (project / "d").mkdir()
    run = sandbox.run("rmdir d")
    assert layers(home) == [run.id]
    sandbox.undo(run)
    assert layers(home) == []


# --- symlinks lead nowhere ---


@pytest.fixture
def outside(test_directory):
    outside = test_directory / "outside"
    (outside / "sub").mkdir(parents=True)
    for name in ("file", "sub/file", "old"):
        (outside / name).write_text("not yours")
    return outside


@pytest.mark.parametrize("aim", ["outside", "outside/sub", "outside/file", "outside/nowhere", "outside/nowhere/at/all"])
def test_a_symlink_planted_by_the_command_leads_nobody_out(sandbox, project, outside, test_directory, aim):
    target = test_directory / aim
    on_host(project, "mkdir -p d/sub; echo old > d/file; echo old > d/sub/file")
    before, expected = snapshot(project), snapshot(outside)
    run = sandbox.run(f"rm -r d; ln -s {target} d; ln -s {target} new; ln -s . loop; ln -s {target} 'new '")
    run = sandbox.apply(run)  # a person let it through
    assert os.readlink(project / "d") == str(target)
    back = sandbox.undo(run)
    assert snapshot(project) == before
    sandbox.undo(back)
    assert snapshot(outside) == expected


@pytest.mark.parametrize("aim", ["outside", "outside/sub", "outside/file", "outside/nowhere"])
def test_a_symlink_in_the_project_is_replaced_and_not_followed(sandbox, project, outside, test_directory, aim):
    (project / "d").symlink_to(test_directory / aim)
    before, expected = snapshot(project), snapshot(outside)
    run = sandbox.run("rm d; mkdir -p d/sub; echo new > d/file; echo new > d/sub/file; echo new > d/nowhere")
    back = sandbox.undo(run)
    assert snapshot(project) == before
    sandbox.undo(back)
    assert (project / "d/file").read_text() == "new\n"
    assert snapshot(outside) == expected


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        "echo new > d/sub/file", "rm d/sub/file", "echo new > d/sub/new", "rm -r d/sub",
        "mkdir d/sub/new; chmod 0 d/sub", "rm -r d/sub; echo x > d/sub", "chmod 700 d/sub",
    ],
)  # fmt: skip
@pytest.mark.parametrize("aim", ["outside", "nowhere"])
def test_a_parent_that_became_a_symlink_after_the_run_stops_the_undo(
    sandbox, project, outside, test_directory, command, aim
):
    on_host(project, "mkdir -p d/sub; echo old > d/sub/file; chmod 755 d/sub")
    run = sandbox.run(command)
    os.rename(project / "d", test_directory / "moved") if project.is_relative_to(test_directory) else os.rename(
        project / "d", project / "moved"
    )
    (project / "d").symlink_to(test_directory / aim)
    before, expected = snapshot(project), snapshot(outside)
    with pytest.raises(UndoRefused, match="d"):
        sandbox.undo(run)
    assert snapshot(project) == before
    assert snapshot(outside) == expected


@pytest.mark.parametrize(
    "command", ["echo new > d/sub/file", "rm d/sub/file", "echo new > d/sub/new", "chmod 700 d/sub"]
)
def test_a_parent_that_became_a_symlink_is_a_conflict_and_leads_nobody_out(sandbox, project, outside, command):
    on_host(project, "mkdir -p d/sub; echo old > d/sub/file; chmod 755 d/sub; echo old > a")
    run = sandbox.run(f"echo new > a; {command}", apply="hold")
    os.rename(project / "d", project / "moved")
    (project / "d").symlink_to(outside)
    before, expected = snapshot(project), snapshot(outside)
    done = sandbox.apply(run)
    assert {change.path.partition("/")[0]: change.verdict for change in done.changes} == {
        "a": "applied", "d": "conflict",
    }  # fmt: skip
    assert {path for path, each in snapshot(project).items() if each != before.get(path)} == {"a"}
    assert snapshot(outside) == expected
    (project / "d").unlink()
    os.rename(project / "moved", project / "d")
    assert sandbox.apply(run, force=True).state == "applied"
    assert snapshot(project) != before
    assert snapshot(outside) == expected


def test_an_apply_that_was_taken_back_leaves_read_only_files_as_they_are(sandbox, project, monkeypatch):
    (project / "a").write_text("a\n")
    (project / "z").write_text("z\n")
    before = snapshot(project)
    run = sandbox.run("echo more >> a; chmod 444 a; echo more >> z", apply="hold")
    really = libc.renameat2

    def refuse_z(one, name, other, new, flags):
        if (name, flags) == (b"z", libc.RENAME_EXCHANGE):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return really(one, name, other, new, flags)

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(libc, "renameat2", refuse_z)
            patch.setattr(libc, "try_exchange", lambda *_directories: False)  # leaves it to the other
            with pytest.raises(ApplyFailed):
                sandbox.apply(run)
        assert snapshot(project) == before
    done = sandbox.apply(run)
    assert done.state == "applied"
    assert stat.S_IMODE((project / "a").stat().st_mode) == 0o444
    assert (project / "a").read_text() == "a\nmore\n"
    sandbox.undo(done)
    assert snapshot(project) == before


def test_what_a_directory_loses_and_cannot_be_without_is_told(sandbox, project):
    for name in ("d", "same"):
        (project / name).mkdir(mode=0o755)
        os.setxattr(project / name, "user.kept", b"1")
        os.setxattr(project / name, "user.other", b"1")
    remove = "import os; os.removexattr('d', 'user.kept'); os.setxattr('d', 'user.other', b'2')"
    run = sandbox.run(f'echo x > same/x; python3 -c "{remove}"')
    assert {(change.path, change.verdict, change.flags) for change in run.changes} == {
        ("d", "unsupported", ("attributes",)), ("same/x", "applied", ()),
    }  # fmt: skip
    assert sorted(os.listxattr(project / "d")) == ["user.kept", "user.other"]


@pytest.mark.parametrize(
    "does", ["removexattr('.', 'user.kept')", "setxattr('.', 'user.tag', b'1')", "setxattr('.', 'user.kept', b'2')"]
)
def test_attributes_of_the_project_itself_are_seen_and_what_becomes_of_them_is_told(sandbox, project, does):
    os.setxattr(project, "user.kept", b"1")
    see = "import os; print(os.getxattr('.', 'user.kept').decode())"
    plain = sandbox.run(f'echo x > x; python3 -c "{see}"')
    assert (plain.stdout, [change.path for change in plain.changes]) == ("1\n", ["x"])
    assert sandbox.run("true").state == "empty"
    run = sandbox.run(f'python3 -c "import os; os.{does}"')
    assert [(change.path, change.verdict, change.flags) for change in run.changes] == [
        (".", "unsupported", ("attributes",))
    ]
    assert {name: os.getxattr(project, name) for name in os.listxattr(project)} == {"user.kept": b"1"}


def test_what_a_directory_gets_and_cannot_keep_is_told(sandbox, project):
    for name in ("d", "e", "same"):
        (project / name).mkdir(mode=0o755)
    os.setxattr(project / "same", "user.kept", b"1")
    attribute = "import os; os.setxattr('{}', 'user.tag', b'1')"
    set_both = "; ".join(f'python3 -c "{attribute.format(name)}"' for name in ("d", "e"))
    run = sandbox.run(f"{set_both}; chmod 700 e; echo x > same/x; echo x > d/x")
    assert {(change.path, change.verdict, change.flags) for change in run.changes} == {
        ("d", "unsupported", ("attributes",)), ("e", "applied", ("attributes",)),
        ("d/x", "applied", ()), ("same/x", "applied", ()),
    }  # fmt: skip
    assert os.listxattr(project / "d") == os.listxattr(project / "e") == []
    assert os.listxattr(project / "same") == ["user.kept"]
    sandbox.undo(run)
    assert sorted(path.name for path in project.rglob("*")) == ["d", "e", "same"]
    assert (project / "e").stat().st_mode & 0o777 == 0o755
