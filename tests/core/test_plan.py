"""Judged changes become the fewest steps; what is taken back is planned like what is done."""

import pytest

from fumehood.core import changes as c
from fumehood.core.changes import (
    CHMOD,
    MKDIR,
    PUT,
    RMDIR,
    SWAP,
    TAKE,
    directories_to_keep,
    files_with_other_links,
    inverse,
    needs_layer,
    plan_steps,
)
from fumehood.core.judge import judge, keep_replacements_whole
from fumehood.core.request import APPLY, DISCARD, HOLD


def stamp(kind=c.FILE, inode=1, links=1, mode=0o644):
    return c.Stamp(kind, inode, 0, 0, 0, mode, links)


def change(path, what, kind=c.FILE, *, within=None, verdict=c.APPLIED, root=0, inode=1, links=1, was=c.FILE, marked=0):
    before = None if what == c.ADDED else stamp(was if what in (c.TYPE, c.DELETED) else kind, inode, links)
    after = None if what == c.DELETED else stamp(kind, inode, links)
    return c.Change(root, path, what, kind, before=before, after=after, within=within, verdict=verdict, marked=marked)


def new_tree(*paths, held=()):
    """A new directory `n` with what lies in it; names that end in a slash are directories."""
    return [change("n", c.ADDED, c.DIRECTORY)] + [
        change(
            f"n/{path.rstrip('/')}", c.ADDED, c.DIRECTORY if path.endswith("/") else c.FILE, within="n",
            verdict=c.UNSUPPORTED if path in held else c.APPLIED,
        )
        for path in paths
    ]  # fmt: skip


def told(steps):
    return [(step.act, step.change.path) for step in steps]


# --- the plan ---


@pytest.mark.parametrize(
    ("what", "kind", "act"),
    [
        (c.ADDED, c.FILE, PUT), (c.ADDED, c.SYMLINK, PUT), (c.ADDED, c.DIRECTORY, PUT),
        (c.MODIFIED, c.FILE, SWAP), (c.MODIFIED, c.SYMLINK, SWAP), (c.MODE, c.FILE, SWAP),
        (c.TYPE, c.FILE, SWAP), (c.TYPE, c.DIRECTORY, SWAP), (c.TYPE, c.SYMLINK, SWAP),
        (c.DELETED, c.FILE, TAKE), (c.DELETED, c.DIRECTORY, TAKE), (c.DELETED, c.FIFO, TAKE),
        (c.MODE, c.DIRECTORY, CHMOD),
    ],
)  # fmt: skip
def test_a_change_alone_is_one_step(what, kind, act):
    assert told(plan_steps([change("x", what, kind)])) == [(act, "x")]


@pytest.mark.parametrize("verdict", [c.HELD, c.CONFLICT, c.DISCARDED, c.UNSUPPORTED])
def test_what_is_not_applied_is_no_step(verdict):
    assert plan_steps([change("x", c.MODIFIED, verdict=verdict), change("y", c.DELETED, verdict=verdict)]) == []


def test_a_new_tree_is_one_step_however_large():
    assert told(plan_steps(new_tree("a", "b/", "b/c", "b/d/", "b/d/e"))) == [(PUT, "n")]


def test_a_deleted_tree_is_one_step():
    gone = [change("d", c.DELETED, c.DIRECTORY, was=c.DIRECTORY), change("d/f", c.DELETED, within="d")]
    assert told(plan_steps(gone)) == [(TAKE, "d")]


def test_a_tree_of_which_something_stays_goes_piece_by_piece():
    changes = new_tree("a", "b/", "b/c", "b/fifo", "w/", "w/x", held=("b/fifo",))
    assert told(plan_steps(changes)) == [(MKDIR, "n"), (PUT, "n/a"), (MKDIR, "n/b"), (PUT, "n/w"), (PUT, "n/b/c")]


def test_what_is_left_of_a_tree_that_is_there_moves_by_itself():
    changes = new_tree("a", "b/", "b/c", "d/", "d/e")
    for each in changes:
        each.verdict = c.APPLIED if each.path.startswith(("n/b", "n/d/e")) else "done"
    assert told(plan_steps(changes)) == [(PUT, "n/b"), (PUT, "n/d/e")]


def test_gits_objects_come_before_what_names_them_and_go_after_it():
    objects = [".git/objects/ab", ".git/objects/pack/p.pack"]
    paths = [".git/index", ".git/logs/HEAD", ".git/refs/heads/main"]
    commit = [change(path, c.ADDED) for path in objects] + [change(path, c.MODIFIED) for path in paths]
    assert [path for _, path in told(plan_steps(c.by_path(commit)))] == [*objects, *paths]
    back = [change(path, c.DELETED) for path in objects] + [change(path, c.MODIFIED) for path in paths]
    assert [path for _, path in told(plan_steps(c.by_path(back)))] == [*paths, *objects]
    packed = [change(".git/packed-refs", c.DELETED), change(".git/refs/heads/main", c.ADDED)]
    assert told(plan_steps(packed)) == [(PUT, ".git/refs/heads/main"), (TAKE, ".git/packed-refs")]


def test_objects_of_a_repository_that_comes_piece_by_piece_come_after_their_directories():
    inside = (".git/", ".git/HEAD", ".git/hooks/", ".git/hooks/x", ".git/objects/", ".git/objects/ab", ".git/objects/f")
    steps = told(plan_steps(new_tree(*inside, held=(".git/hooks/x", ".git/objects/f"))))
    assert steps.index((MKDIR, "n/.git/objects")) < steps.index((PUT, "n/.git/objects/ab"))


def test_directories_get_their_modes_last_and_the_deepest_first():
    changes = [
        change("a", c.MODE, c.DIRECTORY), change("a/b", c.MODE, c.DIRECTORY), change("a/b/f", c.MODIFIED),
        change("a/g", c.DELETED),
    ]  # fmt: skip
    assert told(plan_steps(changes)) == [(TAKE, "a/g"), (SWAP, "a/b/f"), (CHMOD, "a/b"), (CHMOD, "a")]


def test_directories_that_the_layer_still_needs_are_removed_last_when_a_run_is_taken_back():
    changes = new_tree("a", "b/", "b/c", "b/fifo", held=("b/fifo",))
    back = inverse(changes)
    steps = plan_steps(back, directories_to_keep(changes))
    assert told(steps) == [(TAKE, "n/a"), (TAKE, "n/b/c"), (RMDIR, "n/b"), (RMDIR, "n")]
    again = inverse(back)
    steps = plan_steps(again, directories_to_keep(changes))
    assert told(steps) == [(MKDIR, "n"), (PUT, "n/a"), (MKDIR, "n/b"), (PUT, "n/b/c")]


def test_steps_go_root_by_root_and_parents_before_what_lies_in_them():
    changes = c.by_path(
        [change("z", c.ADDED), change("a/b/c", c.ADDED), change("a/x", c.ADDED), change("q", c.ADDED, root=1)]
    )
    steps = plan_steps(changes)
    assert [(step.change.root, step.change.path) for step in steps] == [(0, "z"), (0, "a/x"), (0, "a/b/c"), (1, "q")]


def test_what_carries_an_overlays_marks_is_named_once_with_the_step_that_moves_it():
    changes = new_tree("a", "b/", "b/c", "fifo", held=("fifo",))
    for each in changes:
        each.marked = c.ORIGIN_MARK
    unmarked = {step.change.path: [each.path for each in step.marked_entries] for step in plan_steps(changes)}
    assert unmarked == {"n": [], "n/a": ["n/a"], "n/b": ["n/b", "n/b/c"]}
    whole = new_tree("a", "b/", "b/c")
    whole[3].marked = c.OTHER_MARKS
    assert [[each.path for each in step.marked_entries] for step in plan_steps(whole)] == [["n/b/c"]]


def test_a_name_that_only_begins_like_a_directory_is_not_taken_for_what_lies_in_it():
    changes = c.by_path([change("d", c.ADDED, c.DIRECTORY), change("d-f", c.ADDED), change("d/f", c.ADDED, within="d")])
    assert told(plan_steps(changes)) == [(PUT, "d"), (PUT, "d-f")]


# --- links ---


def test_links_that_all_move_stay_links():
    changes = [change("a", c.ADDED, inode=5, links=2), change("b", c.ADDED, inode=5, links=2), change("c", c.ADDED)]
    assert files_with_other_links(changes, "after") == []


def test_links_of_which_one_stays_are_parted():
    changes = [change("a", c.ADDED, inode=5, links=3), change("b", c.ADDED, inode=5, links=3), change("c", c.ADDED)]
    assert [each.path for each in files_with_other_links(changes, "after")] == ["a", "b"]
    changes = [change("a", c.ADDED, inode=5, links=2), change("b", c.ADDED, inode=5, links=2, verdict=c.HELD)]
    assert [each.path for each in files_with_other_links(changes, "after")] == ["a"]


def test_links_are_counted_root_by_root_and_for_files_only():
    changes = [
        change("a", c.ADDED, inode=5, links=2), change("a", c.ADDED, inode=5, links=2, root=1),
        change("d", c.ADDED, c.DIRECTORY, inode=6, links=9),
    ]  # fmt: skip
    assert [each.root for each in files_with_other_links(changes, "after")] == [0, 1]


def test_backups_are_parted_from_what_stays_too():
    gone = [change("a", c.DELETED, inode=5, links=2), change("d/b", c.DELETED, inode=6, links=2, within="d")]
    assert [each.path for each in files_with_other_links(gone, "before")] == ["a", "d/b"]
    assert files_with_other_links(gone, "after") == []


# --- judging ---


def test_modes_of_judging():
    for mode, verdict in ((APPLY, c.APPLIED), (HOLD, c.HELD), (DISCARD, c.DISCARDED)):
        found = [change("x", c.MODIFIED)]
        judge(found, mode)
        assert (found[0].verdict, bool(found[0].reason)) == (verdict, verdict != c.APPLIED)


@pytest.mark.parametrize("kind", [c.FIFO, c.SOCKET, c.DEVICE])
def test_kinds_that_are_not_taken_over_may_still_be_deleted(kind):
    found = [change("x", c.ADDED, kind), change("y", c.TYPE, kind), change("z", c.DELETED, kind, was=kind)]
    judge(found, APPLY)
    assert [each.verdict for each in found] == [c.UNSUPPORTED, c.UNSUPPORTED, c.APPLIED]
    assert kind in found[0].reason


def test_a_replacement_is_taken_over_whole_or_not_at_all():
    found = [
        change("x", c.TYPE, c.DIRECTORY), change("x/f", c.ADDED, within="x"),
        change("x/p", c.ADDED, c.FIFO, within="x"),
        change("y", c.ADDED, c.DIRECTORY), change("y/p", c.ADDED, c.FIFO, within="y"),
    ]  # fmt: skip
    judge(found, APPLY)
    assert [each.verdict for each in found] == [c.HELD, c.HELD, c.UNSUPPORTED, c.APPLIED, c.UNSUPPORTED]
    assert "x/p" in found[0].reason


def test_a_directory_does_not_go_while_something_in_it_stays():
    found = [
        change("d", c.DELETED, c.DIRECTORY, was=c.DIRECTORY), change("d/a", c.DELETED, within="d"),
        change("d/b", c.DELETED, within="d", verdict=c.CONFLICT),
    ]  # fmt: skip
    keep_replacements_whole(found)
    assert [each.verdict for each in found] == [c.HELD, c.HELD, c.CONFLICT]


# --- the other way round ---


def test_the_opposite_of_the_opposite_is_the_change():
    found = [
        change("a", c.ADDED), change("d", c.DELETED, c.SYMLINK, was=c.SYMLINK), change("m", c.MODIFIED),
        change("t", c.TYPE, c.DIRECTORY, was=c.FILE), change("t/x", c.ADDED, within="t"),
        change("o", c.MODE, c.DIRECTORY),
    ]  # fmt: skip
    back = inverse(found)
    assert [each.change for each in back] == [c.DELETED, c.ADDED, c.MODIFIED, c.TYPE, c.DELETED, c.MODE]
    assert [each.kind for each in back] == [c.FILE, c.SYMLINK, c.FILE, c.FILE, c.FILE, c.DIRECTORY]
    for each, again in zip(found, inverse(back), strict=True):
        assert (each.path, each.change, each.kind, each.within) == (again.path, again.change, again.kind, again.within)
        assert (each.before, each.after) == (again.before, again.after)


def test_only_what_was_applied_is_turned_round():
    assert inverse([change("a", c.ADDED, verdict=c.HELD), change("b", c.ADDED, verdict=c.CONFLICT)]) == []


@pytest.mark.parametrize(
    ("what", "kind", "verdict", "needed"),
    [
        (c.ADDED, c.FILE, c.APPLIED, False), (c.MODIFIED, c.FILE, c.APPLIED, True),
        (c.DELETED, c.DIRECTORY, c.APPLIED, True), (c.TYPE, c.SYMLINK, c.APPLIED, True),
        (c.MODE, c.DIRECTORY, c.APPLIED, False), (c.MODE, c.FILE, c.APPLIED, True),
        (c.ADDED, c.FILE, c.HELD, True), (c.ADDED, c.FILE, c.CONFLICT, True),
        (c.MODIFIED, c.FILE, c.DISCARDED, False), (c.ADDED, c.FIFO, c.UNSUPPORTED, True),
    ],
)  # fmt: skip
def test_a_layer_is_needed_for_backups_and_for_what_waits(what, kind, verdict, needed):
    assert needs_layer(change("x", what, kind, verdict=verdict)) == needed
