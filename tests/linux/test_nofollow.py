"""File work through descriptors: no symlink and no renamed parent leads it astray."""

import os
import stat
import subprocess

import pytest

from conftest import need
from fumehood.core import changes as c
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import (
    LISTING,
    AccessibleTree,
    DirectoryCache,
    entries,
    make_parents,
    open_below,
    open_top,
    remove_tree,
    stamp_of,
    stat_each,
    stat_entry,
    walk,
)

# To an ordinary user closed directories are closed: this must run as one too.
pytestmark = pytest.mark.namespaces


@pytest.fixture
def tree(test_directory):
    tree = test_directory / "tree"
    (tree / "a/b/c").mkdir(parents=True)
    (tree / "a/file").write_text("x")
    return tree


@pytest.fixture
def top(tree):
    top = open_top(str(tree))
    yield top
    os.close(top)


@pytest.fixture
def outside(test_directory):
    outside = test_directory / "outside"
    (outside / "b/c").mkdir(parents=True)
    (outside / "file").write_text("not yours")
    return outside


def same(directory, path):
    found = os.fstat(directory)
    os.close(directory)
    return (found.st_dev, found.st_ino) == (path.stat().st_dev, path.stat().st_ino)


# --- opening ---


def test_a_directory_below_is_opened(top, tree):
    assert same(open_below(top, ""), tree)
    assert same(open_below(top, "a/b"), tree / "a/b")
    assert same(open_below(top, "a/b", LISTING), tree / "a/b")


@pytest.mark.parametrize("path", ["link", "link/b", "a/link", "a/link/b", "a/b/../../link/b"])
def test_no_symlink_is_followed_wherever_it_stands(top, tree, outside, path):
    (tree / "link").symlink_to(outside)
    (tree / "a/link").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        open_below(top, path)


def test_not_even_a_symlink_that_stays_inside_is_followed(top, tree):
    (tree / "link").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        open_below(top, "link/b")


@pytest.mark.parametrize("path", ["..", "a/../..", "/etc", "../outside"])
def test_nothing_above_is_reached(top, outside, path):
    with pytest.raises(OSError, match=r"Invalid cross-device link"):
        open_below(top, path)


def test_the_top_itself_may_not_be_a_symlink(tree, test_directory):
    (test_directory / "link").symlink_to(tree)
    with pytest.raises(OSError, match="Not a directory"):
        open_top(str(test_directory / "link"))


def test_a_parent_renamed_away_takes_the_work_along_and_not_out(top, tree, outside):
    directories = DirectoryCache(top)
    held = directories.get("a/b")
    os.rename(tree / "a", tree / "moved")
    (tree / "a").symlink_to(outside)
    os.mkdir("new", dir_fd=held)
    assert (tree / "moved/b/new").is_dir()
    directories.close()
    with pytest.raises(OSError, match="symbolic links"):
        directories.get("a/b")
    assert sorted(os.listdir(outside)) == ["b", "file"]


def test_a_path_longer_than_the_kernel_takes_is_opened_piece_by_piece(top, tree, outside):
    name = "n" * 250
    here = os.open(tree, os.O_PATH)
    for _ in range(40):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    os.mkdir("last", dir_fd=here)
    os.symlink(outside, "link", dir_fd=here)
    os.close(here)
    path = "/".join([name] * 40)
    found = open_below(top, f"{path}/last")
    assert stat.S_ISDIR(os.fstat(found).st_mode)
    os.close(found)
    with pytest.raises(OSError, match="symbolic links"):
        open_below(top, f"{path}/link/b")


def test_looking_follows_nothing_and_misses_nothing(top, tree):
    (tree / "link").symlink_to("a")
    assert stat.S_ISLNK(stat_entry(top, "link").st_mode)
    assert stat_entry(top, "nowhere") is None
    assert stamp_of(stat_entry(top, "a")).kind == "directory"


# --- making and listing ---


def test_parents_are_made_where_they_are_missing(top, tree):
    make_parents(top, "a/new/deep/er")
    make_parents(top, "a/new/deep/er")
    make_parents(top, "")
    assert (tree / "a/new/deep/er").is_dir()
    assert stat.S_IMODE((tree / "a/new").stat().st_mode) == 0o700


def test_parents_are_made_deeper_than_pythons_stack(top):
    make_parents(top, "/".join("d" * 1500))
    remove_tree(top, "d")


def test_parents_are_never_made_through_a_symlink(top, tree, outside):
    (tree / "link").symlink_to(outside)
    (tree / "dangling").symlink_to(outside / "nowhere")
    for path in ("link/new", "dangling/new", "dangling"):
        with pytest.raises(OSError, match=r"symbolic links|File exists"):
            make_parents(top, path)
    assert sorted(os.listdir(outside)) == ["b", "file"]


def test_a_walk_tells_parents_first_and_follows_nothing(top, tree, outside):
    (tree / "link").symlink_to(outside)
    paths = [path for path, _ in walk(top, "")]
    assert sorted(paths) == ["a", "a/b", "a/b/c", "a/file", "link"]
    assert paths.index("a") < paths.index("a/b") < paths.index("a/b/c")
    assert [path for path, _ in walk(top, "a/b")] == ["a/b/c"]


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o200, 0o444])
def test_a_walk_looks_into_closed_directories_and_leaves_them_closed(top, tree, mode):
    for path in ("a/b", "a"):
        (tree / path).chmod(mode)
    found = dict(walk(top, ""))
    assert sorted(found) == ["a", "a/b", "a/b/c", "a/file"]
    assert stat.S_IMODE(found["a/b"].st_mode) == mode
    assert stat.S_IMODE((tree / "a").stat().st_mode) == mode
    (tree / "a").chmod(0o700)
    assert stat.S_IMODE((tree / "a/b").stat().st_mode) == mode


def test_a_walk_that_is_given_up_leaves_directories_closed(top, tree):
    (tree / "a").chmod(0)
    walking = walk(top, "")
    for path, _ in walking:
        if path == "a/b":
            break
    walking.close()
    assert stat.S_IMODE((tree / "a").stat().st_mode) == 0
    (tree / "a").chmod(0o700)


@pytest.mark.ordinary
def test_closed_directories_are_opened_to_their_owner_and_closed_again(top, tree):
    (tree / "a/b").chmod(0)
    (tree / "a").chmod(0o055)
    accessible = AccessibleTree(top)
    os.close(accessible.open_to_read("a/b"))
    assert stat.S_IMODE((tree / "a").stat().st_mode) == 0o755
    assert not accessible.make_accessible("a/b"), "nothing was left to open"
    accessible.restore()
    assert stat.S_IMODE((tree / "a").stat().st_mode) == 0o055
    (tree / "a").chmod(0o700)
    assert stat.S_IMODE((tree / "a/b").stat().st_mode) == 0


@pytest.mark.ordinary
def test_a_change_in_a_closed_directory_is_looked_at_and_the_directory_closed_again(top, tree):
    (tree / "a/file").write_text("x")
    (tree / "a").chmod(0)
    changes = [c.Change(0, path, c.ADDED, c.FILE) for path in ("a/file", "a/never", "never/at/all")]
    seen = [(found is not None, is_reached) for _, found, is_reached in stat_each(top, changes)]
    mode = stat.S_IMODE((tree / "a").stat().st_mode)
    (tree / "a").chmod(0o700)
    assert (seen, mode) == ([(True, True), (False, True), (False, False)], 0)


@pytest.mark.ordinary
def test_what_replaced_an_opened_directory_keeps_its_own_mode(top, tree, outside):
    (tree / "a").chmod(0)
    accessible = AccessibleTree(top)
    accessible.make_accessible("a")
    os.rename(tree / "a", tree / "gone")
    (tree / "a").symlink_to(outside)
    before = outside.stat().st_mode
    accessible.restore()
    assert outside.stat().st_mode == before


# --- removing ---


def test_a_tree_is_removed_whatever_its_modes(top, tree):
    (tree / "a/b/file").write_text("x")
    (tree / "a/b/file").chmod(0)
    for path in ("a/b/c", "a/b", "a"):
        (tree / path).chmod(0)
    remove_tree(top, "a")
    assert entries(top) == []
    remove_tree(top, "a")


def test_removing_follows_no_symlink(top, tree, outside):
    (tree / "a/link").symlink_to(outside)
    (tree / "link").symlink_to(outside)
    remove_tree(top, "link")
    remove_tree(top, "a")
    assert entries(top) == []
    assert (outside / "file").read_text() == "not yours"
    assert (outside / "b/c").is_dir()


def test_every_kind_of_entry_is_removed(top, tree):
    os.mkfifo(tree / "a/fifo")
    os.mknod(tree / "a/whiteout", stat.S_IFCHR, os.makedev(0, 0))
    os.link(tree / "a/file", tree / "kept")
    remove_tree(top, "a")
    assert entries(top) == ["kept"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can let nobody change a file")
def test_what_nobody_may_change_is_named_when_it_can_not_be_removed(test_directory):
    file = test_directory / "tree/below/file"
    file.parent.mkdir(parents=True)
    file.write_text("x")
    need(subprocess.run(["chattr", "+i", file], check=False, capture_output=True).returncode == 0, "no chattr here")
    try:
        with Closing(open_top(str(test_directory))) as top, pytest.raises(PermissionError, match="file"):
            remove_tree(top, "tree")
    finally:
        subprocess.run(["chattr", "-i", file], check=True)
    with Closing(open_top(str(test_directory))) as top:
        remove_tree(top, "tree")
    assert not (test_directory / "tree").exists()
