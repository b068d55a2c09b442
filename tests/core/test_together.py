"""What shares one fate."""

import pytest

from fumehood.core import changes as c
from fumehood.core.judge import HOLD_ALL, HeldChanges, repository_of, spread_conflicts, without_conflicts


@pytest.mark.parametrize(
    ("place", "git"),
    [
        ("/p/.git/HEAD", "/p/.git"),
        ("/p/.git/index", "/p/.git"),
        ("/p/.git/refs/heads/main", "/p/.git"),
        ("/p/.git/logs/HEAD", "/p/.git"),
        ("/p/.git/packed-refs", "/p/.git"),
        ("/p/.git/ORIG_HEAD", "/p/.git"),
        ("/p/.git/MERGE_MSG", "/p/.git"),
        ("/p/.git/BISECT_START", "/p/.git"),
        ("/p/.git/shallow", "/p/.git"),
        ("/p/.git/objects/info/commit-graph", "/p/.git"),
        ("/p/.git/objects/pack/multi-pack-index", "/p/.git"),
        ("/p/.git/objects/pack/pack-1.idx", ""),
        ("/p/.git/sharedindex.0748", "/p/.git"),
        ("/p/.git/rebase-merge/git-rebase-todo", "/p/.git"),
        ("/p/.git/sequencer/todo", "/p/.git"),
        ("/p/.git/worktrees/w/HEAD", "/p/.git"),
        ("/p/.git/worktrees/w/rebase-merge", "/p/.git"),
        ("/p/.git/worktrees/w/index", "/p/.git"),
        ("/p/.git/modules/lib/HEAD", "/p/.git/modules/lib"),
        ("/p/.git/modules/a/b/refs/heads/x", "/p/.git/modules/a/b"),
        ("/p/bare.git/HEAD", "/p/bare.git"),
        ("/p/sub/.git/HEAD", "/p/sub/.git"),
        ("/p/.git", ""),
        ("/p/.git/objects/ab/cdef", ""),
        ("/p/.git/config", ""),
        ("/p/.git/hooks/pre-commit", ""),
        ("/p/.git/COMMIT_EDITMSG", ""),
        ("/p/.git/FETCH_HEAD", ""),
        ("/p/HEAD", ""),
        ("/p/refs/x", ""),
    ],
)
def test_the_repository_whose_state_a_path_is(place, git):
    assert repository_of(place) == git


def change(path, verdict=c.APPLIED, what=c.MODIFIED, kind=c.FILE):
    return c.Change(0, path, what, kind, verdict=verdict)


def test_a_conflict_in_a_repositorys_state_is_one_in_all_of_it():
    changes = [
        change(".git/HEAD"), change(".git/index", c.CONFLICT), change(".git/objects/ab/c"), change("f"),
        change("other/.git/HEAD"),
    ]  # fmt: skip
    assert spread_conflicts(changes, ["/p"])
    assert [each.verdict for each in changes] == ["conflict", "conflict", "applied", "applied", "applied"]
    assert not spread_conflicts(changes, ["/p"])


@pytest.mark.parametrize("git", [".git", ".git/modules/a/b", "bare.git"])
def test_a_state_waits_with_an_object_that_it_may_need(git):
    changes = [change(f"{git}/HEAD"), change(f"{git}/objects/ab/c", c.CONFLICT), change(f"{git}/objects/ab/d")]
    assert spread_conflicts(changes, ["/p"])
    assert [each.verdict for each in changes] == ["conflict", "conflict", "applied"]


def test_no_conflict_holds_nothing():
    changes = [change(".git/HEAD"), change("f", c.HELD)]
    assert not spread_conflicts(changes, ["/p"], HOLD_ALL)
    assert [each.verdict for each in changes] == ["applied", "held"]


def test_one_conflict_can_hold_everything():
    changes = [change("a"), change("b", c.CONFLICT), change("c", c.DISCARDED)]
    assert spread_conflicts(changes, ["/p"], HOLD_ALL)
    assert [each.verdict for each in changes] == ["held", "conflict", "discarded"]


@pytest.mark.parametrize(
    ("held", "later", "builds"),
    [
        (change("a"), change("a"), True),
        (change("d", what=c.ADDED, kind=c.DIRECTORY), change("d/f", what=c.ADDED), True),
        (change("d", what=c.MODE, kind=c.DIRECTORY), change("d/f", what=c.ADDED), False),
        (change("d/f", what=c.DELETED), change("d", what=c.DELETED, kind=c.DIRECTORY), True),
        (change("d/f", what=c.DELETED), change("d", what=c.MODE, kind=c.DIRECTORY), False),
        (change("d/f"), change("d/g"), False),
        (change("d/f"), change("d/fg"), False),
        (change("d"), change("dd"), False),
    ],
)
def test_what_builds_on_what(held, later, builds):
    assert HeldChanges([("R", 0, held)]).base_run_of(later) == ("R" if builds else None)
    assert HeldChanges([("R", 1, held)]).base_run_of(later) is None


@pytest.mark.parametrize(("replaced", "going"), [(c.TYPE, ["f"]), (c.DELETED, ["f"]), (c.ADDED, ["d", "d/b", "f"])])
def test_a_replaced_tree_with_a_conflict_in_it_stays_whole(replaced, going):
    changes = [
        c.Change(0, "d", replaced, c.DIRECTORY, verdict=c.HELD),
        c.Change(0, "d/a", c.DELETED, c.FILE, within="d", verdict=c.CONFLICT),
        c.Change(0, "d/b", c.DELETED, c.FILE, within="d", verdict=c.HELD),
        c.Change(0, "f", c.MODIFIED, c.FILE, verdict=c.HELD),
    ]
    assert [change.path for change in without_conflicts(changes, changes, ["/p"])] == going
