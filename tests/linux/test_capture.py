"""The four ways of capturing give one change set: each scenario is run by all of them, on real mounts."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import mounts_mentioning
from fumehood import FumehoodError, Policy, Run, Sandbox
from fumehood.linux import capture_copy, capture_fuse
from fumehood.linux.namespaces import Layer
from fumehood.store.places import places
from patience import eventually

pytestmark = pytest.mark.namespaces

Open = Callable[[Path], Sandbox]
Changes = list[tuple[str, str, str]]

# Set up on the host by the first script, changed in the sandbox by the second; then what must be found.
SCENARIOS: dict[str, tuple[str, str, Changes]] = {
    "nothing": ("echo a > a; mkdir d", "ls -lR > /dev/null; cat a", []),
    "a file added": ("", "echo new > a", [("a", "added", "file")]),
    "a file modified": ("echo old > a", "echo new > a", [("a", "modified", "file")]),
    "a file grown": ("echo old > a", "echo new >> a", [("a", "modified", "file")]),
    "a file deleted": ("echo old > a; echo b > b", "rm a", [("a", "deleted", "file")]),
    "added and deleted again": ("", "echo a > a; mkdir d; echo b > d/b; rm -r a d", []),
    "deleted and written again": ("echo old > a", "rm a; echo new > a", [("a", "modified", "file")]),
    "deep in the tree": (
        "mkdir -p one/two/three; echo a > one/two/three/a; echo b > one/two/b",
        "echo new > one/two/three/a; rm one/two/b; echo c > one/c",
        [("one/c", "added", "file"), ("one/two/b", "deleted", "file"), ("one/two/three/a", "modified", "file")],
    ),
    "opened but not written": ("echo a > a; touch -d 2001-02-03 a", ": >> a", []),
    "written as it was": (
        "echo same > a; touch -d 2001-02-03 a",
        "echo same > a; touch -d 2001-02-03 a",
        [],
    ),
    "other content, same size and time": (
        "echo same > a; touch -d 2001-02-03 a",
        "echo diff > a; touch -d 2001-02-03 a",
        [("a", "modified", "file")],
    ),
    "touched": ("echo a > a; touch -d 2001-02-03 a", "touch a", [("a", "modified", "file")]),
    "a mode set": ("echo a > a; chmod 644 a", "chmod 755 a", [("a", "mode", "file")]),
    "a mode set and set back": ("echo a > a; chmod 644 a", "chmod 755 a; chmod 644 a", []),
    "a read-only file modified": (
        "echo a > a; chmod 444 a",
        "chmod 644 a; echo b > a; chmod 444 a",
        [("a", "modified", "file")],
    ),
    "a directory's mode": (
        "mkdir -m 755 d; echo a > d/a",
        "chmod 700 d",
        [("d", "mode", "directory")],
    ),
    "the root's own mode": ("chmod 755 .", "chmod 750 .", [(".", "mode", "directory")]),
    "a directory closed to everybody": (
        "mkdir -m 755 d; echo a > d/a; echo b > d/b",
        "echo new > d/a; rm d/b; chmod 000 d",
        [("d", "mode", "directory"), ("d/a", "modified", "file"), ("d/b", "deleted", "file")],
    ),
    "a new directory closed to everybody": (
        "",
        "mkdir d; mkdir d/e; echo a > d/e/a; chmod 000 d/e d",
        [("d", "added", "directory"), ("d/e", "added", "directory"), ("d/e/a", "added", "file")],
    ),
    "special bits of directories": (
        "mkdir d e f; chmod 2775 d; chmod 1777 e; chmod 755 f",
        "echo a > d/a; echo a > e/a; chmod 1755 f",
        [("d/a", "added", "file"), ("e/a", "added", "file"), ("f", "mode", "directory")],
    ),
    "a read-only directory": (
        "mkdir d; echo a > d/a; chmod 555 d",
        "chmod 755 d; rm d/a; echo b > d/b; chmod 555 d",
        [("d/a", "deleted", "file"), ("d/b", "added", "file")],
    ),
    "an empty directory added": ("", "mkdir d", [("d", "added", "directory")]),
    "an empty directory removed": ("mkdir d", "rmdir d", [("d", "deleted", "directory")]),
    "a tree added": (
        "",
        "mkdir -p d/e; echo a > d/a; ln -s a d/e/s",
        [
            ("d", "added", "directory"), ("d/a", "added", "file"),
            ("d/e", "added", "directory"), ("d/e/s", "added", "symlink"),
        ],
    ),
    "a tree deleted": (
        "mkdir -p d/e; echo a > d/a; ln -s a d/e/s",
        "rm -r d",
        [
            ("d", "deleted", "directory"), ("d/a", "deleted", "file"),
            ("d/e", "deleted", "directory"), ("d/e/s", "deleted", "symlink"),
        ],
    ),
    "a directory made anew": (
        "mkdir d; echo a > d/a; echo b > d/b",
        "rm -r d; mkdir d; echo new > d/b; echo c > d/c",
        [("d/a", "deleted", "file"), ("d/b", "modified", "file"), ("d/c", "added", "file")],
    ),
    "a directory made anew with one in it": (
        "mkdir -p d/e/f; echo a > d/e/a; echo b > d/e/f/b",
        "rm -r d; mkdir -p d/e; echo c > d/e/c",
        [
            ("d/e/a", "deleted", "file"), ("d/e/c", "added", "file"),
            ("d/e/f", "deleted", "directory"), ("d/e/f/b", "deleted", "file"),
        ],
    ),
    "a directory made anew, and one in it closed": (
        "mkdir -p d/e; echo a > d/e/a; chmod 755 d d/e",
        "rm -r d; mkdir -p d/e; echo a > d/e/b; chmod 755 d; chmod 000 d/e",
        [("d/e", "mode", "directory"), ("d/e/a", "deleted", "file"), ("d/e/b", "added", "file")],
    ),
    "a directory replaced by a like one": (
        "mkdir -m 755 d; echo a > d/a; touch -d 2001-02-03 d/a; echo b > d/b",
        "cp -a d new; rm new/b; rm -r d; mv new d",
        [("d/b", "deleted", "file")],
    ),
    "a directory renamed": (
        "mkdir -p d/e; echo a > d/e/a",
        "mv d new",
        [
            ("d", "deleted", "directory"), ("d/e", "deleted", "directory"), ("d/e/a", "deleted", "file"),
            ("new", "added", "directory"), ("new/e", "added", "directory"), ("new/e/a", "added", "file"),
        ],
    ),
    "two directories exchanged": (
        "mkdir -m 755 d e; echo one > d/a; echo b > e/b; echo three > e/a",
        "mv d x; mv e d; mv x e",
        [
            ("d/a", "modified", "file"), ("d/b", "added", "file"),
            ("e/a", "modified", "file"), ("e/b", "deleted", "file"),
        ],
    ),
    "a new directory renamed": (
        "",
        "mkdir d; echo a > d/a; mv d e",
        [("e", "added", "directory"), ("e/a", "added", "file")],
    ),
    "a directory renamed into a new one": (
        "mkdir d; echo a > d/a",
        "mkdir new; mv d new/",
        [
            ("d", "deleted", "directory"), ("d/a", "deleted", "file"),
            ("new", "added", "directory"), ("new/d", "added", "directory"), ("new/d/a", "added", "file"),
        ],
    ),
    "a file renamed": ("echo a > a", "mv a b", [("a", "deleted", "file"), ("b", "added", "file")]),
    "a file renamed over another": (
        "echo one > a; echo other > b",
        "mv a b",
        [("a", "deleted", "file"), ("b", "modified", "file")],
    ),
    "a file renamed and back": ("echo a > a", "mv a b; mv b a", []),
    "a file saved as editors do": ("echo a > a", "echo b > .a.new; mv .a.new a", [("a", "modified", "file")]),
    "a symlink added": ("", "ln -s /nowhere a", [("a", "added", "symlink")]),
    "a symlink modified": ("ln -s one a", "ln -sfn two a", [("a", "modified", "symlink")]),
    "a symlink deleted": ("echo b > b; ln -s b a", "rm a", [("a", "deleted", "symlink")]),
    "a symlink made again as it was": ("ln -s one a", "rm a; ln -s one a", []),
    "a symlink renamed": ("ln -s b a", "mv a c", [("a", "deleted", "symlink"), ("c", "added", "symlink")]),
    "a file written through a symlink": (
        "mkdir d; echo a > d/a; ln -s d s",
        "echo new > s/a",
        [("d/a", "modified", "file")],
    ),
    "file to directory": (
        "echo a > a",
        "rm a; mkdir a; echo b > a/b",
        [("a", "type", "directory"), ("a/b", "added", "file")],
    ),
    "file to symlink": ("echo a > a; echo b > b", "ln -sf b a", [("a", "type", "symlink")]),
    "directory to file": (
        "mkdir -p a/e; echo b > a/e/b",
        "rm -r a; echo a > a",
        [("a", "type", "file"), ("a/e", "deleted", "directory"), ("a/e/b", "deleted", "file")],
    ),
    "directory to symlink": (
        "mkdir a b; echo c > a/c",
        "rm -r a; ln -s b a",
        [("a", "type", "symlink"), ("a/c", "deleted", "file")],
    ),
    "symlink to file": ("ln -s b a", "rm a; echo a > a", [("a", "type", "file")]),
    "symlink to directory": (
        "mkdir b; echo c > b/c; ln -s b a",
        "rm a; mkdir a; echo c > a/c",
        [("a", "type", "directory"), ("a/c", "added", "file")],
    ),
    "file to directory inside a new one": (
        "mkdir d; echo a > d/a; ln -s a d/s",
        "rm -r d; mkdir d d/a d/s; echo x > d/a/x",
        [
            ("d/a", "type", "directory"), ("d/a/x", "added", "file"), ("d/s", "type", "directory"),
        ],
    ),
    "hard links made": (
        "echo a > a",
        "ln a b; echo c > c; ln c d",
        [("b", "added", "file"), ("c", "added", "file"), ("d", "added", "file")],
    ),
    "a hard link of the project deleted": ("echo a > a; ln a b", "rm b", [("b", "deleted", "file")]),
    "a hard link of the project replaced": (
        "echo a > a; ln a b",
        "echo new > c; mv c b",
        [("b", "modified", "file")],
    ),
    "names that break option strings": (
        "mkdir 'a,b:c\\d'; echo a > 'a,b:c\\d/x,y'; echo b > ':'; echo c > '\\'",
        "rm 'a,b:c\\d/x,y'; echo new > 'a,b:c\\d/y:z'; echo new > ':'; echo new > '\\'; echo d > ','",
        [
            (",", "added", "file"), (":", "modified", "file"), ("\\", "modified", "file"),
            ("a,b:c\\d/x,y", "deleted", "file"), ("a,b:c\\d/y:z", "added", "file"),
        ],
    ),
    "names that break scripts": (
        "echo a > \"$(printf 'new\\nline')\"; echo a > ./-rf; echo a > ' '; mkdir \"$(printf '\\351\\377')\"",
        "rm \"$(printf 'new\\nline')\" ' '; echo b > ./-rf; echo b > \"$(printf '\\351\\377/\\200')\"; : > '*'",
        [
            (" ", "deleted", "file"), ("*", "added", "file"), ("-rf", "modified", "file"),
            ("new\nline", "deleted", "file"), ("\udce9\udcff/\udc80", "added", "file"),
        ],
    ),
    "names like those that overlays use": (
        "mkdir work upper; echo a > upper/a",
        "rm upper/a; echo b > work/index; mkdir merged",
        [("merged", "added", "directory"), ("upper/a", "deleted", "file"), ("work/index", "added", "file")],
    ),
    "a sparse file": (
        "truncate -s 64M a; echo x >> a; truncate -s 1M b",
        "echo y >> a; truncate -s 64M c; truncate -s 2M b",
        [("a", "modified", "file"), ("b", "modified", "file"), ("c", "added", "file")],
    ),
    "a file cut off": ("seq 10000 > a", "truncate -s 10 a", [("a", "modified", "file")]),
}  # fmt: skip
# The others are done by one command, each in a directory of its own: to start one takes longer than a change.
BY_ITSELF = ["nothing", "a file added", "the root's own mode", "a tree deleted"]
TOGETHER = [name for name in SCENARIOS if name not in BY_ITSELF]


@pytest.fixture
def opened(way: str) -> Iterator[Open]:
    """Opens a sandbox on a project; what is opened is closed after the test."""
    sandboxes = []

    def open_one(project: Path) -> Sandbox:
        sandboxes.append(Sandbox(project, policy=Policy(capture=way)))
        return sandboxes[-1]

    yield open_one
    for each in sandboxes:
        each.close()


@pytest.fixture
def hood(opened: Open, project: Path) -> Sandbox:
    """A sandbox on the project that captures in one of the ways."""
    return opened(project)


def shell(script: str, where: Path) -> None:
    subprocess.run(["/bin/sh", "-ec", script], cwd=where, check=True, stdin=subprocess.DEVNULL)


def changes_of(run: Run) -> Changes:
    return sorted((each.path, each.change, each.kind) for each in run.changes)


def tree(top: Path) -> dict[str, tuple[str, object]]:
    """All that a command can leave in a directory: kinds, modes, contents, targets."""
    found: dict[str, tuple[str, object]] = {}

    def visit(path: Path) -> None:
        about = path.lstat()
        found[str(path.relative_to(top))] = oct(about.st_mode), content(path, about)
        if stat.S_ISDIR(about.st_mode):
            with readable(path, about, 0o700):
                for below in path.iterdir():
                    visit(below)

    visit(top)
    return found


def content(path: Path, about: os.stat_result) -> object:
    if stat.S_ISLNK(about.st_mode):
        return os.readlink(path)
    if stat.S_ISREG(about.st_mode):
        with readable(path, about, 0o400):
            return path.read_bytes()
    return None


@contextmanager
def readable(path: Path, about: os.stat_result, needed: int) -> Iterator[None]:
    """Only where it must be: to set a mode is to touch the file."""
    closed = about.st_mode & needed != needed
    if closed:
        path.chmod(about.st_mode | needed)
    yield
    if closed:
        path.chmod(stat.S_IMODE(about.st_mode))


def upper_of(run: Run) -> Path:
    return Path(places().layer(run.id, 0, "upper"))


def layers_on_disk() -> list[str]:
    return os.listdir(f"{places().state}/runs")


@pytest.mark.long
@pytest.mark.parametrize("names", [[name] for name in BY_ITSELF] + [TOGETHER], ids=[*BY_ITSELF, "all others"])
def test_every_way_finds_the_same_changes(
    names: list[str], way: str, hood: Sandbox, project: Path, test_directory: Path
) -> None:
    if way == "fuse" and os.geteuid() != 0:
        # fuse-overlayfs can't copy a read-only directory up for an ordinary user.
        names = [name for name in names if name != "a read-only directory"]
    native, scripts, expected = test_directory / "native", [], {}
    for number, name in enumerate(names):
        place = "." if names == [name] else str(number)
        (project / place).mkdir(exist_ok=True)
        script, command, changes = SCENARIOS[name]
        shell(script, project / place)
        scripts.append(f"(cd {place}\n{command})")
        expected[name] = [(os.path.normpath(f"{place}/{path}"), change, kind) for path, change, kind in changes]
    before = tree(project)
    subprocess.run(["cp", "-a", project, native], check=True)

    run = hood.run("set -e\n" + "\n".join(scripts), apply="hold")

    assert (run.exit_code, run.stderr) == (0, "")
    assert changes_of(run) == sorted(change for changes in expected.values() for change in changes), expected
    assert tree(project) == before
    # Taken over, it is what the command would have left without us; taken back, what there was.
    shell("\n".join(scripts), native)
    if run.changes:
        hood.apply(run)
    assert tree(project) == tree(native)
    if run.changes:
        hood.undo(run)
    assert tree(project) == before


@pytest.mark.parametrize("way", ["copy"], indirect=True)
def test_a_copy_finds_them_where_a_layer_can_have_no_marks(
    way: str, hood: Sandbox, project: Path, test_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in tmpfs before Linux 6.6.
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(capture_copy, "has_user_attributes", lambda _place: False)
    monkeypatch.setattr(capture_copy, "set_opaque", refuse)
    test_every_way_finds_the_same_changes(TOGETHER, way, hood, project, test_directory)


def test_a_discarded_run_leaves_nothing_behind(hood: Sandbox, project: Path) -> None:
    shell("echo a > a; mkdir d; echo b > d/b", project)
    before = tree(project)
    run = hood.run("rm a; chmod 000 d; echo c > c", apply="discard")
    assert changes_of(run) == [("a", "deleted", "file"), ("c", "added", "file"), ("d", "mode", "directory")]
    assert tree(project) == before
    assert layers_on_disk() == []


def test_a_held_layer_has_the_form_that_the_kernel_gives_it(hood: Sandbox, project: Path) -> None:
    shell("mkdir -p anew untouched/u old; echo a > anew/a; echo b > old/b; echo c > old/c; chmod 700 .", project)
    run = hood.run(
        "rm -r anew; mkdir anew; echo n > anew/n; rm old/b; chmod 711 old; mkdir new; echo n > new/n", apply="hold"
    )
    upper = upper_of(run).with_name("held")
    found = sorted(str(path.relative_to(upper)) for path in upper.rglob("*"))
    assert found == ["anew", "anew/n", "new", "new/n", "old", "old/b"]
    gone = (upper / "old/b").lstat()
    assert stat.S_ISCHR(gone.st_mode)
    assert gone.st_rdev == 0
    assert os.getxattr(upper / "anew", "user.overlay.opaque") == b"y"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (upper, upper / "old")] == [0o700, 0o711]


def test_a_project_may_have_any_path(opened: Open, test_directory: Path) -> None:
    project = test_directory / os.fsdecode(b"a,b:c\\d e\n\\040 -\xff\xe9 lowerdir=x,ro")
    project.mkdir()
    shell("echo a > a; mkdir d; echo b > d/b", project)
    run = opened(project).run('rm -r d; mkdir d; echo new >> a; pwd > "pwd"')
    assert changes_of(run) == [("a", "modified", "file"), ("d/b", "deleted", "file"), ("pwd", "added", "file")]
    assert (project / "a").read_text() == "a\nnew\n"
    assert (project / "pwd").read_bytes() == os.fsencode(project) + b"\n"


def test_names_may_be_as_long_as_the_file_system_has_them(way: str, hood: Sandbox, project: Path) -> None:
    # fuse-overlayfs reserves four bytes for its `.wh.`, and can't touch what is longer.
    longest = 251 if way == "fuse" else 255
    name, other, directory = ("é" * (longest // 2) + letter for letter in "abd")
    shell(f"echo a > {name}; mkdir {directory}; echo b > {directory}/{name}", project)
    run = hood.run(f"rm {name}; echo new > {directory}/{name}; mkdir {other}; echo c > {other}/{other}")
    assert changes_of(run) == [
        (name, "deleted", "file"),
        (other, "added", "directory"),
        (f"{other}/{other}", "added", "file"),
        (f"{directory}/{name}", "modified", "file"),
    ]
    assert (project / other / other).read_text() == "c\n"


DEEP = """
import os, sys
for number in range(int(sys.argv[2])):
    if not os.path.isdir("d" * 200):
        os.mkdir("d" * 200)
    os.chdir("d" * 200)
    with open(sys.argv[1], "w") as file:
        file.write("deep")
if sys.argv[1] == "new":
    os.unlink("old")
"""


def test_a_tree_may_be_deeper_than_a_path_can_tell(way: str, hood: Sandbox, project: Path) -> None:
    # fuse-overlayfs names everything by its path, and fails where that is longer than 4096 bytes.
    depth = 18 if way == "fuse" else 40
    subprocess.run([sys.executable, "-c", DEEP, "old", str(depth)], cwd=project, check=True)
    run = hood.run(["python3", "-c", DEEP, "new", str(depth)], apply="hold")
    assert run.exit_code == 0, run.stderr
    levels = ["/".join(["d" * 200] * level) for level in range(1, depth + 1)]
    expected = [(f"{level}/new", "added", "file") for level in levels]
    assert changes_of(run) == sorted([*expected, (f"{levels[-1]}/old", "deleted", "file")])


def test_fifos_and_sockets_are_reported_and_not_taken_over(hood: Sandbox, project: Path) -> None:
    shell("echo a > a; mkdir d", project)
    # Without opening one: not every way of capturing lets a command do that.
    make = f"import os; os.mknod('d/socket', {stat.S_IFSOCK | 0o600})"
    run = hood.run(f"mkfifo fifo; rm a; mkfifo a; python3 -c \"{make}\"; mkdir e; mkfifo e/f; echo b > e/b")
    verdicts = sorted((each.path, each.change, each.kind, each.verdict) for each in run.changes)
    assert verdicts == [
        ("a", "type", "fifo", "unsupported"),
        ("d/socket", "added", "socket", "unsupported"),
        ("e", "added", "directory", "applied"),
        ("e/b", "added", "file", "applied"),
        ("e/f", "added", "fifo", "unsupported"),
        ("fifo", "added", "fifo", "unsupported"),
    ]
    assert (project / "a").read_text() == "a\n"
    assert sorted(os.listdir(project)) == ["a", "d", "e"]


def test_the_projects_own_fifos_and_sockets_are_left_alone(hood: Sandbox, project: Path) -> None:
    os.mkfifo(project / "fifo")
    os.mkfifo(project / "gone")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(project / "socket"))
        listening.listen()
        run = hood.run("ls -l fifo socket; rm gone")
        assert changes_of(run) == [("gone", "deleted", "fifo")]
        assert [line[0] for line in run.stdout.splitlines()] == ["p", "s"]
        assert sorted(os.listdir(project)) == ["fifo", "socket"]


def test_the_projects_own_sockets_can_not_be_connected_to(hood: Sandbox, project: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(project / "socket"))
        listening.listen()
        connect = "import socket; socket.socket(socket.AF_UNIX).connect('socket')"
        run = hood.run(["python3", "-c", connect])
    assert ("ConnectionRefusedError" if run.capture == "kernel" else "PermissionError") in run.stderr


# Which of a file's names a directory lists first depends on the file system, and fuse-overlayfs on that.
@pytest.mark.parametrize("names", ["ab", "ba", "xy", "yx"])
def test_what_is_written_to_a_hard_link_reaches_every_name(hood: Sandbox, project: Path, names: str) -> None:
    written, other = names
    shell(f"mkdir d; echo a > {written}; ln {written} {other}; ln {written} d/c; echo s > single", project)
    run = hood.run(f"echo new > {written}; echo more >> single; echo x > beside", apply="hold")
    linked = sorted([(name, "modified", "file") for name in (*names, "d/c")])
    assert [change for change in changes_of(run) if change[0] not in ("single", "beside")] == (
        linked if run.capture in ("fuse", "copy") else [(written, "modified", "file")]
    )
    run = hood.apply(run)
    flags = {change.path: change.flags for change in run.changes if change.flags}
    if run.capture in ("fuse", "copy"):
        assert flags == {}
        assert {(project / path).read_text() for path, _, _ in linked} == {"new\n"}
        assert {(project / path).stat().st_nlink for path, _, _ in linked} == {3}
    else:  # the kernel's overlay does not tell a write from a replacement where something else was made beside it
        assert flags == {written: ("other-names:2",)}
        assert (project / written).read_text() == "new\n"
        assert (project / other).read_text() == "a\n"


@pytest.mark.long
def test_many_files(hood: Sandbox, project: Path) -> None:
    shell("for d in 0 1 2 3 4 5 6 7 8 9; do mkdir $d; for f in $(seq 100); do echo $d > $d/$f; done; done", project)
    command = "for d in 0 1 2 3 4; do rm $d/1; for f in $(seq 50 100); do echo new > $d/$f; done; done; cp -r 9 new"
    run = hood.run(command)
    expected = [(f"{d}/1", "deleted", "file") for d in range(5)]
    expected += [(f"{d}/{f}", "modified", "file") for d in range(5) for f in range(50, 101)]
    expected += [("new", "added", "directory"), *((f"new/{f}", "added", "file") for f in range(1, 101))]
    assert changes_of(run) == sorted(expected)
    assert (project / "4/50").read_text() == "new\n"


FORGE = """
import os
def mark(path, name):
    try:
        os.setxattr(path, name, b"y")
    except OSError as error:
        print(error)
mark("d", "user.overlay.opaque")
os.mkdir("new")
for path in ("d/a", "new"):
    mark(path, "user.overlay.opaque")
    mark(path, "user.overlay.redirect")
    mark(path, "user.fuseoverlayfs.opaque")
open("d/empty", "w").close()
mark("d/empty", "user.overlay.whiteout")
try:
    os.mknod("new/hidden", 0o020000, 0)
except OSError as error:
    print(error)
"""


def test_a_command_can_not_forge_the_marks_of_an_overlay(hood: Sandbox, project: Path) -> None:
    shell("mkdir d; echo a > d/a; echo b > d/b; : > d/empty; touch -d 2001-02-03 d/empty", project)
    run = hood.run(["python3", "-c", FORGE], apply="hold")
    assert run.exit_code == 0, run.stderr
    assert changes_of(run) == [("d/empty", "modified", "file"), ("new", "added", "directory")]
    hood.apply(run)
    found = {each: os.listxattr(each) for each in (project, *project.rglob("*"))}
    assert not {path: names for path, names in found.items() if any("overlay" in name for name in names)}


def test_a_file_of_the_project_keeps_its_attributes(hood: Sandbox, project: Path) -> None:
    shell("echo a > a; echo b > b", project)
    os.setxattr(project / "a", "user.mine", b"kept")
    os.setxattr(project / "b", "user.mine", b"kept")
    run = hood.run("echo new >> a; : >> b")
    assert changes_of(run) == [("a", "modified", "file")]
    assert os.getxattr(project / "a", "user.mine") == b"kept"


ATTRIBUTES = """
import os
os.setxattr("d/given", "user.new", b"1")
os.setxattr("d/changed", "user.mine", b"other")
os.removexattr("d/robbed", "user.mine")
"""


def test_other_attributes_of_a_directory_alone_are_told(hood: Sandbox, project: Path) -> None:
    for name in ("given", "changed", "robbed", "left"):
        (project / "d" / name).mkdir(parents=True)
    for name in ("changed", "robbed", "left"):
        os.setxattr(project / "d" / name, "user.mine", b"kept")
    run = hood.run(["python3", "-c", ATTRIBUTES])
    assert run.exit_code == 0, run.stderr
    assert {(each.path, each.change, *each.flags) for each in run.changes} == {
        (f"d/{name}", "mode", "attributes") for name in ("given", "changed", "robbed")
    }
    assert os.getxattr(project / "d/changed", "user.mine") == b"kept"


@pytest.mark.long
def test_many_runs_at_once_do_not_disturb_each_other(hood: Sandbox, project: Path) -> None:
    shell("echo a > a", project)
    with ThreadPoolExecutor(6) as pool:
        runs = list(pool.map(lambda number: hood.run(f"sleep 0.1; echo {number} > {number}"), range(12)))
    assert [changes_of(run) for run in runs] == [[(str(number), "added", "file")] for number in range(12)]
    assert set(os.listdir(project)) == {"a", *map(str, range(12))}


def test_a_sandbox_that_does_not_start_leaves_nothing_behind(hood: Sandbox, project: Path) -> None:
    with pytest.raises(FumehoodError, match="Working directory does not exist"):
        hood.run("true", cwd="nowhere")
    assert layers_on_disk() == []
    assert eventually(lambda: not processes_serving(project))


def processes_serving(project: Path) -> list[str]:
    """The processes of fuse-overlayfs that have to do with a test's directory."""
    served = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in served.splitlines() if "fuse-overlayfs" in line and str(project.parent) in line]


# The rest is about one way each.

HELD_OVER = """
from fumehood import Sandbox, Policy
import sys
hood = Sandbox(sys.argv[1], policy=Policy(capture=sys.argv[2]))
hood.run("echo begun; sleep 1000", on_output=lambda *_: print(flush=True))
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("way", ["fuse"], indirect=True)
def test_no_mount_outlives_the_program(way: str, project: Path, sent: signal.Signals) -> None:
    sources = Path(capture_fuse.__file__).parents[2]
    program = subprocess.Popen(
        [sys.executable, "-c", HELD_OVER, project, way],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(sources)},
    )
    with program:
        assert program.stdout is not None
        program.stdout.readline()
        assert [line for line in mounts_mentioning(str(project.parent)) if "fuse" in line]
        program.send_signal(sent)
    assert eventually(lambda: not mounts_mentioning(str(project.parent)))
    assert eventually(lambda: not processes_serving(project))


@pytest.fixture
def layer(test_directory: Path, home: Path) -> Layer:
    """A root, two held layers over it, and a place for a new one."""
    parts = [test_directory / part for part in ("root", "older", "newer", "upper", "work", "merged")]
    for part in parts:
        part.mkdir()
    root, older, newer, upper, work, merged = parts
    shell("echo root | tee a b c; mkdir d e; echo root | tee d/x e/x", root)
    shell("echo older > b; mkdir d e new; echo older | tee d/y e/y new/n", older)
    shell("echo newer > c; mkdir d; echo newer > d/z", newer)
    os.mknod(newer / "a", stat.S_IFCHR, 0)
    os.setxattr(newer / "d", "user.overlay.opaque", b"y")
    return Layer(
        root=str(root), upper=str(upper), work=str(work), merged=str(merged), held=(str(newer), str(older))
    )


def mount(layer: Layer, way: str) -> None:
    (capture_fuse if way == "fuse" else capture_copy).begin(layer)


def collect(layer: Layer, way: str) -> None:
    (capture_fuse if way == "fuse" else capture_copy).finish(layer)


@pytest.mark.parametrize("way", ["fuse", "copy"], indirect=True)
def test_held_layers_are_seen_and_written_over(way: str, layer: Layer) -> None:
    merged, upper = Path(layer.merged), Path(layer.upper)
    mount(layer, way)
    seen = {name: said for name, (_, said) in tree(merged).items() if said is not None}
    shell("echo mine > a; rm b; rm -r new; rm d/z; echo mine > d/x; rm e/x", merged)
    collect(layer, way)
    assert seen == {
        "b": b"older\n", "c": b"newer\n", "d/z": b"newer\n",
        "e/x": b"root\n", "e/y": b"older\n", "new/n": b"older\n",
    }  # fmt: skip
    left = {name: said for name, (mode, said) in tree(upper).items() if not mode.startswith("0o4")}
    assert left == {"a": b"mine\n", "b": None, "d/x": b"mine\n", "d/z": None, "e/x": None, "new": None}


@pytest.mark.parametrize("way", ["fuse", "copy"], indirect=True)
def test_a_layer_with_nothing_new_is_empty(way: str, layer: Layer) -> None:
    mount(layer, way)
    shell("find . > /dev/null; cat b c d/z e/x > /dev/null; : > x; rm x", Path(layer.merged))
    collect(layer, way)
    assert os.listdir(layer.upper) == []


@pytest.mark.long
@pytest.mark.parametrize("way", ["fuse"], indirect=True)
def test_a_mount_that_somebody_looks_into_goes_all_the_same(way: str, layer: Layer) -> None:
    capture_fuse.begin(layer)
    with subprocess.Popen(["sleep", "60"], cwd=layer.merged) as watcher:
        capture_fuse.finish(layer)
        assert not mounts_mentioning(layer.merged)
        watcher.kill()


@pytest.mark.parametrize("way", ["fuse"], indirect=True)
def test_a_broken_mount_is_taken_away_and_told(way: str, layer: Layer) -> None:
    capture_fuse.begin(layer)
    capture_fuse._daemons[layer.merged].kill()
    capture_fuse._daemons[layer.merged].wait()
    with pytest.raises(FumehoodError, match="broke while the command ran"):
        capture_fuse.finish(layer)
    assert not mounts_mentioning(layer.merged)
    capture_fuse.finish(layer)


@pytest.mark.parametrize("way", ["fuse"], indirect=True)
def test_a_mount_that_can_not_be_made_says_why(way: str, layer: Layer) -> None:
    os.rmdir(layer.work)
    Path(layer.work).write_text("not a directory")
    with pytest.raises(FumehoodError, match=r"fuse-overlayfs can't cover .*workdir"):
        capture_fuse.begin(layer)
    assert not mounts_mentioning(layer.merged)


@pytest.mark.parametrize("way", ["fuse"], indirect=True)
def test_a_place_that_fuse_overlayfs_would_misread_is_refused(
    way: str, project: Path, test_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would take the part before the colon for the layer, and write there.
    (test_directory / "st").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(test_directory / "st:ate"))
    with Sandbox(project, policy=Policy(capture=way)) as hood:
        with pytest.raises(FumehoodError, match="colon or a backslash"):
            hood.run("echo a > a")
        assert layers_on_disk() == []
    assert os.listdir(test_directory / "st") == []


@pytest.mark.parametrize("way", ["fuse"], indirect=True)
def test_names_like_those_that_fuse_overlayfs_uses(way: str, layer: Layer) -> None:
    script = """
        mkdir .wh.dir new2 new2/.wh..wh..opq; ln -s x .wh.link
        echo 1 > f; mv f .wh.file; : > f; mv f .wh..; echo a > new2/a
    """
    capture_fuse.begin(layer)
    shell(script, Path(layer.merged))
    collect(layer, way)
    left = sorted(tree(Path(layer.upper)))
    assert left == [".", ".wh.dir", ".wh.file", ".wh.link", "new2", "new2/.wh..wh..opq", "new2/a"]
    assert not [name for name in left if os.listxattr(f"{layer.upper}/{name}", follow_symlinks=False)]


@pytest.mark.parametrize("way", ["fuse"], indirect=True)
def test_whiteouts_that_are_files_become_the_kernels(way: str, layer: Layer) -> None:
    # As fuse-overlayfs leaves them where it can't make device nodes.
    upper = Path(layer.upper)
    shell(": > .wh.b; : > .wh.stale; mkdir d; : > d/.wh..wh..opq; : > d/.wh.x; mkdir n; : > n/.wh..wh..opq", upper)
    capture_fuse.finish(layer)
    assert sorted(tree(upper)) == [".", "b", "d", "n"]
    assert stat.S_ISCHR((upper / "b").lstat().st_mode)
    assert os.getxattr(upper / "d", "user.overlay.opaque") == b"y"
    assert os.listxattr(upper / "n") == []


@pytest.mark.ordinary
@pytest.mark.parametrize("way", ["copy"], indirect=True)
def test_what_can_not_be_read_is_neither_lost_nor_changed(way: str, hood: Sandbox, project: Path) -> None:
    shell("echo a > a; echo b > b; echo c > c; mkdir d e; echo x > d/x; chmod 000 a b c d e", project)
    before = tree(project)
    assert changes_of(hood.run("chmod 600 a; chmod 700 d; touch d")) == []
    assert tree(project) == before
    run = hood.run("rm b; echo new > x; mv -f x c; chmod 700 d; echo n > d/n; chmod 700 e; rmdir e")
    assert changes_of(run) == [
        ("b", "deleted", "file"), ("c", "modified", "file"), ("d/n", "added", "file"), ("e", "deleted", "directory"),
    ]  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="devices are made by root only")
@pytest.mark.parametrize("can_copy", [True, False])
@pytest.mark.parametrize("way", ["copy"], indirect=True)
def test_a_device_is_not_taken_for_deleted(
    way: str, can_copy: bool, hood: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    os.mknod(project / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    if not can_copy:
        monkeypatch.setattr(capture_copy, "copy_entry", refuse)
    run = hood.run("echo a > a; ls")
    assert changes_of(run) == [("a", "added", "file")]
    assert run.stdout.split() == (["a", "null"] if can_copy else ["a"])
