"""A git directory is told by what lies in it, not by its name."""

import pytest

from fumehood.core import changes as c
from fumehood.core.judge import (
    HeldChanges,
    git_directories,
    is_git_note,
    object_store_of,
    repository_of,
    spread_conflicts,
)

NAME = "0123456789abcdef0123456789abcdef01234567"
LOOSE = f"objects/{NAME[:2]}/{NAME[2:]}"


def change(path, verdict=c.APPLIED):
    return c.Change(0, path, c.MODIFIED, c.FILE, verdict=verdict)


@pytest.mark.parametrize(
    ("path", "git"),
    [
        (f".bare/{LOOSE}", "/p/.bare"),
        (f".bare/objects/ab/{'c' * 62}", "/p/.bare"),
        (f".bare/objects/pack/pack-{NAME}.pack", "/p/.bare"),
        ("a/meta/refs/heads/x", "/p/a/meta"),
        ("meta/refs/heads/fix.git/objects/x", "/p/meta"),
        ("meta/refs/remotes/origin/HEAD", "/p/meta"),
        ("meta/refs/stash", "/p/meta"),
        ("meta/logs/HEAD", "/p/meta"),
        ("meta/logs/refs/heads/x", "/p/meta"),
        ("meta/worktrees/w/index", "/p/meta"),
        ("meta/worktrees/w/logs/HEAD", "/p/meta"),
        ("meta/modules/a/b/logs/HEAD", "/p/meta/modules/a/b"),
        ("meta/reftable/tables.list", "/p/meta"),
        ("refs/heads/x", "/p"),
        (".git/refs/heads/fix.git/one", "/p/.git"),
        ("src/objects/ab/cd", None),
        ("src/objects/pack/pack-1.json", None),
        ("src/refs/x", None),
        ("logs/refs", None),
        ("logs/head.log", None),
        ("worktrees/index", None),
        (".claude/worktrees/w/src/x", None),
        ("index", None),
        ("HEAD", None),
        ("meta/worktrees/w/logs", None),
        ("meta/worktrees/w", None),
        ("meta/worktrees", None),
        ("logs", None),
        ("logs/" * 4000 + "x", None),
    ],
)
def test_what_shows_a_git_directory(path, git):
    assert git_directories(["/p"], [change(path)]) == ({git} if git else set())


@pytest.mark.parametrize(
    ("place", "git"),
    [
        ("/p/meta/HEAD", "/p/meta"),
        ("/p/meta/index", "/p/meta"),
        ("/p/meta/logs/refs/heads/x.git/y", "/p/meta"),
        ("/p/meta/worktrees/w/index", "/p/meta"),
        ("/p/meta/modules/a/b/index", "/p/meta/modules/a/b"),
        ("/p/meta/modules/a/worktrees/w/HEAD", "/p/meta/modules/a"),
        ("/p/meta/config", ""),
        ("/p/other/index", ""),
        ("/p/index", ""),
        ("/p/.git/refs/heads/fix.git/one", "/p/.git"),
        ("/p/.git/logs/refs/heads/fix.git/one", "/p/.git"),
        ("/p/.git/modules/lib.git/worktrees/w/HEAD", "/p/.git/modules/lib.git"),
        ("/p/tree.git/src/.git/HEAD", "/p/tree.git/src/.git"),
        ("/p/tree.git/.git/refs/heads/x", "/p/tree.git/.git"),
    ],
)
def test_a_state_is_that_of_the_outermost_git_directory_that_has_it(place, git):
    assert repository_of(place, {"/p/meta"}) == git


def test_objects_and_notes_are_known_where_the_git_directory_is():
    gits = {"/p/meta"}
    assert object_store_of(f"/p/meta/{LOOSE}", gits) == "/p/meta"
    assert object_store_of("/p/meta/objects/pack", gits) == "/p/meta"
    assert object_store_of("/p/meta/objects/more/x", gits) == ""
    assert object_store_of(f"/p/other/{LOOSE}", gits) == ""
    assert is_git_note("/p/meta/worktrees/w/COMMIT_EDITMSG", gits)
    assert not is_git_note("/p/other/COMMIT_EDITMSG", gits)


def test_a_conflict_is_shared_in_a_git_directory_of_any_name():
    changes = [
        change("meta/worktrees/w/index", c.CONFLICT), change("meta/refs/heads/x"), change(f"meta/{LOOSE}"),
        change("other/refs"), change("other/index"),
    ]  # fmt: skip
    assert spread_conflicts(changes, ["/p"])
    assert [each.verdict for each in changes] == ["conflict", "conflict", "applied", "applied", "applied"]


def test_what_waits_in_a_git_directory_of_any_name_is_built_upon():
    waiting = HeldChanges([("R", 0, change("meta/index")), ("R", 0, change(f"meta/{LOOSE}"))], ["/p"])
    assert waiting.base_run_of(change("meta/refs/heads/x")) == "R"
    assert waiting.base_run_of(change("meta/config")) is None
    assert waiting.base_run_of(change("other/refs/heads/x")) is None


@pytest.mark.parametrize(
    ("place", "git"),
    [
        ("/p/.git/lfs", "/p/.git"),
        ("/p/.git/lfs/objects/ab/cd/abcd", "/p/.git"),
        ("/p/.git/modules/a/lfs/objects/ab/cd/abcd", "/p/.git/modules/a"),
        ("/p/.git/annex/objects/Xy/Zw/KEY/KEY", "/p/.git"),
        ("/p/.git/annex/keysdb/db", ""),
        ("/p/lfs/objects/ab/cd/abcd", ""),
    ],
)
def test_contents_that_other_tools_keep_in_a_git_directory_are_objects(place, git):
    assert object_store_of(place) == git


@pytest.mark.parametrize("names", [["a.git"], [".git", "modules"], [".git", "worktrees", "x"]])
def test_git_directories_in_each_other_keep_nobody_busy(names):
    nested = [change("/".join((names * 2000)[:depth])) for depth in range(1, 2000)]
    nested.append(change("x", c.CONFLICT))
    assert spread_conflicts(nested, ("/p",)) is False
    assert repository_of("/p/a.git/b.git/modules/c/HEAD") == "/p/a.git/b.git/modules/c"
