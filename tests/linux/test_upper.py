"""The scan of a layer, on real entries: layers are built by hand here, by a kernel in tests/service."""

import os
import socket
import stat
from itertools import product
from pathlib import Path

import pytest

from fumehood.core import changes as c
from fumehood.linux.layer import ORIGIN, remove_attributes, scan
from fumehood.linux.nofollow import open_top

# Nothing is mounted, but to an ordinary user closed directories are closed: this must run as one too.
pytestmark = pytest.mark.namespaces

IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can do this")

# What a layer's entry `it` does to the project's `it`. Directories of the project hold `old`, those of the
# layer `new`.
CASES = {
    (c.WHITEOUT, c.ABSENT): [],
    (c.WHITEOUT, c.FILE): ["deleted file it"],
    (c.WHITEOUT, c.DIRECTORY): ["deleted directory it", "deleted file it/old"],
    (c.WHITEOUT, c.SYMLINK): ["deleted symlink it"],
    (c.WHITEOUT, c.FIFO): ["deleted fifo it"],
    (c.WHITEOUT, c.SOCKET): ["deleted socket it"],
    (c.WHITEOUT, c.DEVICE): ["deleted device it"],
    (c.FILE, c.ABSENT): ["added file it"],
    (c.FILE, c.FILE): ["modified file it"],
    (c.FILE, c.DIRECTORY): ["type file it", "deleted file it/old"],
    (c.FILE, c.SYMLINK): ["type file it"],
    (c.FILE, c.FIFO): ["type file it"],
    (c.FILE, c.SOCKET): ["type file it"],
    (c.FILE, c.DEVICE): ["type file it"],
    (c.DIRECTORY, c.ABSENT): ["added directory it", "added file it/new"],
    (c.DIRECTORY, c.FILE): ["type directory it", "added file it/new"],
    (c.DIRECTORY, c.DIRECTORY): ["added file it/new"],
    (c.DIRECTORY, c.SYMLINK): ["type directory it", "added file it/new"],
    (c.DIRECTORY, c.FIFO): ["type directory it", "added file it/new"],
    (c.DIRECTORY, c.SOCKET): ["type directory it", "added file it/new"],
    (c.DIRECTORY, c.DEVICE): ["type directory it", "added file it/new"],
    (c.OPAQUE, c.ABSENT): ["added directory it", "added file it/new"],
    (c.OPAQUE, c.FILE): ["type directory it", "added file it/new"],
    (c.OPAQUE, c.DIRECTORY): ["added file it/new", "deleted file it/old"],
    (c.OPAQUE, c.SYMLINK): ["type directory it", "added file it/new"],
    (c.OPAQUE, c.FIFO): ["type directory it", "added file it/new"],
    (c.OPAQUE, c.SOCKET): ["type directory it", "added file it/new"],
    (c.OPAQUE, c.DEVICE): ["type directory it", "added file it/new"],
    (c.SYMLINK, c.ABSENT): ["added symlink it"],
    (c.SYMLINK, c.FILE): ["type symlink it"],
    (c.SYMLINK, c.DIRECTORY): ["type symlink it", "deleted file it/old"],
    (c.SYMLINK, c.SYMLINK): ["modified symlink it"],
    (c.SYMLINK, c.FIFO): ["type symlink it"],
    (c.SYMLINK, c.SOCKET): ["type symlink it"],
    (c.SYMLINK, c.DEVICE): ["type symlink it"],
    (c.FIFO, c.ABSENT): ["added fifo it"],
    (c.FIFO, c.FILE): ["type fifo it"],
    (c.FIFO, c.DIRECTORY): ["type fifo it", "deleted file it/old"],
    (c.FIFO, c.SYMLINK): ["type fifo it"],
    (c.FIFO, c.FIFO): ["modified fifo it"],
    (c.FIFO, c.SOCKET): ["type fifo it"],
    (c.FIFO, c.DEVICE): ["type fifo it"],
    (c.SOCKET, c.ABSENT): ["added socket it"],
    (c.SOCKET, c.FILE): ["type socket it"],
    (c.SOCKET, c.DIRECTORY): ["type socket it", "deleted file it/old"],
    (c.SOCKET, c.SYMLINK): ["type socket it"],
    (c.SOCKET, c.FIFO): ["type socket it"],
    (c.SOCKET, c.SOCKET): ["modified socket it"],
    (c.SOCKET, c.DEVICE): ["type socket it"],
    (c.DEVICE, c.ABSENT): ["added device it"],
    (c.DEVICE, c.FILE): ["type device it"],
    (c.DEVICE, c.DIRECTORY): ["type device it", "deleted file it/old"],
    (c.DEVICE, c.SYMLINK): ["type device it"],
    (c.DEVICE, c.FIFO): ["type device it"],
    (c.DEVICE, c.SOCKET): ["type device it"],
    (c.DEVICE, c.DEVICE): ["modified device it"],
}


class Trees:
    """A project and a layer over it, made by hand."""

    def __init__(self, top: Path) -> None:
        self.live, self.upper = top / "live", top / "upper"
        self.live.mkdir()
        self.upper.mkdir()

    def scan(self) -> list[c.Change]:
        upper, live = open_top(str(self.upper)), open_top(str(self.live))
        try:
            return scan(0, upper, live)
        finally:
            os.close(upper)
            os.close(live)

    def told(self) -> list[str]:
        return [f"{change.change} {change.kind} {change.path}" for change in self.scan()]

    def copied_up(self, path: str) -> Path:
        """What an overlay does when a file is opened for writing: a copy with the same mode and time."""
        source, target = self.live / path, self.upper / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        found = source.stat()
        for name in os.listxattr(source):
            os.setxattr(target, name, os.getxattr(source, name))
        os.setxattr(target, "user.overlay.origin", b"\0")
        target.chmod(stat.S_IMODE(found.st_mode))
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
        return target


@pytest.fixture
def trees(test_directory):
    return Trees(test_directory)


def whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def opaque(path: Path, name: str = "user.overlay.opaque", value: bytes = b"y") -> None:
    path.mkdir(exist_ok=True)
    os.setxattr(path, name, value)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        # A name of its own, for the path to a test is often longer than a socket's may be.
        here = os.open(path.parent, os.O_PATH)
        listening.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def make(path: Path, kind: str, inside: str) -> None:
    """Make an entry of a kind; a directory holds one file, and `inside` is the content of everything else."""
    if kind == c.FILE:
        path.write_text(inside)
    elif kind in (c.DIRECTORY, c.OPAQUE):
        path.mkdir()
        (path / inside).write_text(inside)
        if kind == c.OPAQUE:
            opaque(path)
    elif kind == c.SYMLINK:
        path.symlink_to(inside)
    elif kind == c.FIFO:
        os.mkfifo(path)
    elif kind == c.SOCKET:
        bound_socket(path)
    elif kind == c.DEVICE:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    elif kind == c.WHITEOUT:
        whiteout(path)
    if kind in (c.FIFO, c.SOCKET, c.DEVICE):
        # Nothing but its time tells two of them apart.
        os.utime(path, ns=(0, len(inside) + ord(inside[0])))


def test_every_pair_of_kinds_has_a_case_here():
    assert set(CASES) == set(product(c.LAYER_KINDS, c.LIVE_KINDS)) == set(c.CHANGES_BY_KINDS)


@pytest.mark.parametrize(
    ("layer", "live"),
    [pytest.param(*pair, id=f"{pair[0]} over {pair[1]}", marks=as_root if c.DEVICE in pair else ()) for pair in CASES],
)
def test_a_layers_entry_is_told_by_what_the_project_has_there(trees, layer, live):
    make(trees.live / "it", live, "old")
    make(trees.upper / "it", layer, "new")
    assert trees.told() == CASES[layer, live]


def test_an_empty_layer_changes_nothing(trees):
    (trees.live / "file").write_text("as it was")
    assert trees.scan() == []


def test_a_whiteout_written_as_an_attribute_means_deleted(trees):
    (trees.live / "gone").write_text("x")
    (trees.upper / "gone").write_text("")
    os.setxattr(trees.upper / "gone", "user.overlay.whiteout", b"")
    assert trees.told() == ["deleted file gone"]


def test_a_directory_is_never_taken_for_a_whiteout(trees):
    (trees.live / "kept").mkdir()
    (trees.upper / "kept").mkdir()
    os.setxattr(trees.upper / "kept", "user.overlay.whiteout", b"")
    assert trees.told() == []


def test_an_opaque_directory_deletes_what_it_hides_and_keeps_what_it_holds(trees):
    (trees.live / "dir/sub").mkdir(parents=True)
    for name in ("dir/hidden", "dir/again", "dir/sub/deep"):
        (trees.live / name).write_text("old")
    opaque(trees.upper / "dir")
    (trees.upper / "dir/again").write_text("newer")
    assert trees.told() == [
        "modified file dir/again", "deleted file dir/hidden", "deleted directory dir/sub", "deleted file dir/sub/deep",
    ]  # fmt: skip


def test_an_opaque_root_deletes_everything_else(trees):
    (trees.live / "old").write_text("x")
    opaque(trees.upper)
    (trees.upper / "new").write_text("y")
    assert trees.told() == ["added file new", "deleted file old"]


def test_only_the_value_y_makes_a_directory_opaque(trees):
    (trees.live / "dir").mkdir()
    (trees.live / "dir/kept").write_text("x")
    opaque(trees.upper / "dir", value=b"x")
    assert trees.told() == []


def test_whiteouts_in_a_new_directory_hide_nothing_and_do_not_travel_with_it(trees):
    (trees.upper / "new").mkdir()
    (trees.upper / "new/file").write_text("x")
    whiteout(trees.upper / "new/gone")
    assert trees.told() == ["added directory new", "added file new/file"]
    assert not os.path.lexists(trees.upper / "new/gone")


@as_root
def test_attributes_of_an_overlay_mounted_by_real_root_count_too(trees):
    for name in ("opaque", "whiteout", "copied"):
        (trees.live / name).mkdir()
        (trees.live / name / "inside").write_text("x")
    opaque(trees.upper / "opaque", "trusted.overlay.opaque")
    (trees.upper / "whiteout").write_text("")
    os.setxattr(trees.upper / "whiteout", "trusted.overlay.whiteout", b"")
    copy = trees.copied_up("copied/inside")
    os.setxattr(copy, "trusted.overlay.origin", b"\0")
    assert trees.told() == [
        "deleted file opaque/inside", "deleted directory whiteout", "deleted file whiteout/inside",
    ]  # fmt: skip


def test_a_file_copied_up_but_not_changed_is_no_change(trees):
    (trees.live / "dir").mkdir()
    (trees.live / "dir/file").write_text("same")
    os.setxattr(trees.live / "dir/file", "user.colour", b"blue")
    trees.copied_up("dir/file")
    assert trees.scan() == []


def test_a_symlink_copied_up_but_not_changed_is_no_change(trees):
    for top in (trees.live, trees.upper):
        (top / "link").symlink_to("somewhere")
    assert trees.scan() == []


def test_other_content_of_the_same_size_and_time_is_a_change(trees):
    (trees.live / "file").write_text("one")
    copy = trees.copied_up("file")
    time = (trees.live / "file").stat().st_mtime_ns
    copy.write_text("two")
    os.utime(copy, ns=(time, time))
    assert trees.told() == ["modified file file"]


def test_other_content_after_a_nul_is_a_change(trees):
    (trees.live / "file").write_bytes(b"a\0b")
    copy = trees.copied_up("file")
    time = (trees.live / "file").stat().st_mtime_ns
    copy.write_bytes(b"a\0c")
    os.utime(copy, ns=(time, time))
    assert trees.told() == ["modified file file"]


@pytest.mark.parametrize("value", [b"red", None])
def test_a_changed_or_missing_attribute_is_a_change(trees, value):
    (trees.live / "file").write_text("same")
    os.setxattr(trees.live / "file", "user.colour", b"blue")
    copy = trees.copied_up("file")
    if value is None:
        os.removexattr(copy, "user.colour")
    else:
        os.setxattr(copy, "user.colour", value)
    assert trees.told() == ["modified file file"]


def test_a_files_new_mode_alone_is_told_as_a_mode(trees):
    (trees.live / "file").write_text("same")
    trees.copied_up("file").chmod(0o755)
    (change,) = trees.scan()
    assert (change.change, change.before.mode, change.after.mode) == (c.MODE, 0o644, 0o755)


def test_a_directorys_new_mode_is_told_beside_what_changed_in_it(trees):
    for top in (trees.live, trees.upper):
        (top / "dir").mkdir()
    (trees.upper / "dir").chmod(0o1700)
    (trees.upper / "dir/new").write_text("x")
    assert trees.told() == ["mode directory dir", "added file dir/new"]


def test_the_projects_own_new_mode_is_told_as_that_of_the_dot(trees):
    trees.upper.chmod(0o700)
    (change,) = trees.scan()
    assert (change.path, change.change, change.after.mode) == (".", c.MODE, 0o700)


def test_hard_links_are_known_by_their_inode_and_their_number(trees):
    (trees.upper / "one").write_text("x")
    os.link(trees.upper / "one", trees.upper / "two")
    one, two = trees.scan()
    assert one.after.inode == two.after.inode
    assert one.after.links == two.after.links == 2


def test_what_comes_with_a_new_directory_names_it(trees):
    (trees.upper / "new/sub").mkdir(parents=True)
    (trees.upper / "new/sub/file").write_text("x")
    assert [(change.path, change.within) for change in trees.scan()] == [
        ("new", None), ("new/sub", "new"), ("new/sub/file", "new"),
    ]  # fmt: skip


def test_entries_with_an_overlays_bookkeeping_are_marked(trees):
    opaque(trees.upper / "new")
    (trees.upper / "new/moved").write_text("x")
    os.setxattr(trees.upper / "new/moved", "user.overlay.origin", b"\0")
    (trees.upper / "new/plain").write_text("x")
    assert {change.path: change.marked for change in trees.scan()} == {
        "new": c.OTHER_MARKS, "new/moved": 0, "new/plain": 0,
    }  # fmt: skip
    assert os.listxattr(trees.upper / "new/moved") == []


@pytest.mark.parametrize("mode", [0o000, 0o200, 0o300, 0o444])
def test_a_directory_that_the_command_closed_is_read_and_stays_closed(trees, mode):
    (trees.live / "shared").mkdir()
    for path in ("new/sub", "shared"):
        (trees.upper / path).mkdir(parents=True)
        (trees.upper / path / "file").write_text("x")
        (trees.upper / path).chmod(mode)
    assert trees.told() == [
        "added directory new", "added directory new/sub", "added file new/sub/file",
        "mode directory shared", "added file shared/file",
    ]  # fmt: skip
    assert {stat.S_IMODE((trees.upper / path).stat().st_mode) for path in ("new/sub", "shared")} == {mode}


def test_closed_directories_inside_each_other_are_read_and_stay_closed(trees):
    (trees.upper / "a/b/c").mkdir(parents=True)
    for path in ("a/b/c", "a/b", "a"):
        (trees.upper / path).chmod(0)
    assert trees.told() == ["added directory a", "added directory a/b", "added directory a/b/c"]
    for path in ("a", "a/b", "a/b/c"):
        assert stat.S_IMODE((trees.upper / path).stat().st_mode) == 0
        (trees.upper / path).chmod(0o700)


@pytest.mark.parametrize("mode", [0o000, 0o300, 0o444])
@pytest.mark.parametrize("way", ["deleted", "replaced", "opaque", "written"])
def test_a_directory_that_the_project_keeps_closed_is_read_and_stays_closed(trees, mode, way):
    closed = trees.live / "closed"
    (closed / "sub").mkdir(parents=True)
    (closed / "sub/file").write_text("x")
    (closed / "sub").chmod(mode)
    closed.chmod(mode)
    at = trees.upper / "closed"
    if way == "deleted":
        whiteout(at)
        expected = ["deleted directory closed", "deleted directory closed/sub", "deleted file closed/sub/file"]
    elif way == "replaced":
        at.write_text("x")
        expected = ["type file closed", "deleted directory closed/sub", "deleted file closed/sub/file"]
    elif way == "opaque":
        opaque(at)
        at.chmod(mode)
        expected = ["deleted directory closed/sub", "deleted file closed/sub/file"]
    else:
        (at / "sub").mkdir(parents=True)
        (at / "sub/file").write_text("changed")
        (at / "sub").chmod(mode)
        at.chmod(mode)
        expected = ["modified file closed/sub/file"]
    assert trees.told() == expected
    assert stat.S_IMODE(closed.stat().st_mode) == mode
    closed.chmod(0o700)
    assert stat.S_IMODE((closed / "sub").stat().st_mode) == mode


def test_a_file_that_may_not_be_read_is_told_by_its_metadata(trees):
    (trees.live / "secret").write_text("x")
    os.setxattr(trees.live / "secret", "user.colour", b"blue")
    copy = trees.copied_up("secret")
    copy.chmod(0o400)
    (trees.live / "secret").chmod(0)
    assert trees.told() == ["mode file secret"]
    copy.chmod(0)
    assert trees.told() == []


@pytest.mark.long
@pytest.mark.once
def test_twenty_thousand_entries_are_each_told_once(trees):
    for number in range(100):
        (trees.upper / f"{number}").mkdir()
        here = os.open(trees.upper / f"{number}", os.O_PATH)
        for name in range(200):
            os.mknod(f"{name}", dir_fd=here)
        os.close(here)
    told = trees.told()
    assert len(set(told)) == len(told) == 20_100


NAMES = {
    "a newline": b"two\nlines", "invalid UTF-8": b"\xff\xfe", "a leading dash": b"-rf", "255 bytes": b"n" * 255,
    "a backslash": b"a\\b", "control characters": b"\x1b[31m\x7f\x01", "spaces": b"  ", "a comma and colon": b"a,b:c",
    "what looks like a whiteout": b".wh.gone", "dots": b"...", "UTF-8": "é☃𝄞".encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_any_name_is_told_as_it_is(trees, name):
    top = os.fsencode(trees.upper)
    os.mkdir(top + b"/" + name)
    os.close(os.open(top + b"/" + name + b"/" + name, os.O_CREAT))
    assert [os.fsencode(change.path) for change in trees.scan()] == [name, name + b"/" + name]


def deep(top: Path, name: str, depth: int) -> None:
    """Make a chain of directories, longer than a path may be."""
    here = os.open(top, os.O_PATH)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT, 0o600, dir_fd=here))
    os.close(here)


@pytest.mark.parametrize(("name", "depth"), [("d", 1500), ("n" * 200, 100)])
def test_a_tree_deeper_than_a_path_can_say_is_told_whole(trees, name, depth):
    deep(trees.upper, name, depth)
    changes = trees.scan()
    assert len(changes) == depth + 1
    assert changes[-1].path == f"{name}/" * depth + "file"


def test_a_deep_tree_that_is_deleted_is_told_whole(trees):
    deep(trees.live, "d", 1500)
    whiteout(trees.upper / "d")
    assert len(trees.scan()) == 1501


def test_a_change_at_the_end_of_a_deep_tree_is_found(trees):
    deep(trees.live, "d", 1500)
    deep(trees.upper, "d", 1500)
    top = open_top(str(trees.upper))
    try:
        from fumehood.linux.nofollow import open_below

        last = open_below(top, "/".join("d" * 1500))
        os.close(os.open("new", os.O_CREAT, 0o600, dir_fd=last))
        os.close(last)
    finally:
        os.close(top)
    assert [change.path for change in trees.scan() if change.change == c.ADDED] == ["d/" * 1500 + "new"]


@pytest.mark.parametrize("target", ["/etc", "..", "/nowhere", "it"])
def test_a_symlink_is_told_and_never_followed(trees, target):
    (trees.live / "it").mkdir()
    (trees.live / "it/inside").write_text("x")
    (trees.upper / "it").symlink_to(target)
    assert trees.told() == ["type symlink it", "deleted file it/inside"]


def test_a_layers_directory_over_the_projects_symlink_is_compared_with_the_link_itself(trees, test_directory):
    outside = test_directory / "outside"
    outside.mkdir()
    (outside / "file").write_text("not in the project")
    (trees.live / "link").symlink_to(outside)
    opaque(trees.upper / "link")
    (trees.upper / "link/file").write_text("new")
    assert trees.told() == ["type directory link", "added file link/file"]


def test_an_attribute_that_is_gone_already_is_no_error_but_a_file_that_is(test_directory):
    (test_directory / "file").touch()
    os.setxattr(test_directory / "file", ORIGIN, b"x")
    top = open_top(str(test_directory))
    try:
        for _ in range(2):
            remove_attributes(top, "file", [ORIGIN])
            assert os.listxattr(test_directory / "file") == []
        with pytest.raises(FileNotFoundError):
            remove_attributes(top, "nowhere", [ORIGIN])
    finally:
        os.close(top)
