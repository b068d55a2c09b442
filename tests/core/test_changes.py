"""Every pair of kinds has its case, and stamps tell versions apart."""

from itertools import product

import pytest

from fumehood.core import changes as c


def test_every_pair_of_kinds_is_a_named_case():
    assert set(c.CHANGES_BY_KINDS) == set(product(c.LAYER_KINDS, c.LIVE_KINDS))


def test_every_kind_that_can_be_taken_over_is_a_kind_of_both_sides():
    assert set(c.TAKEN_OVER) < set(c.LAYER_KINDS)
    assert set(c.TAKEN_OVER) < set(c.LIVE_KINDS)


@pytest.mark.parametrize(("layer", "live"), c.CHANGES_BY_KINDS)
def test_a_pair_is_called_by_what_it_does_to_the_project(layer, live):
    change = c.classify(layer, live)
    shown = c.DIRECTORY if layer == c.OPAQUE else layer
    if layer == c.WHITEOUT:
        expected = None if live == c.ABSENT else c.DELETED
    elif live == c.ABSENT:
        expected = c.ADDED
    elif shown != live:
        expected = c.TYPE
    else:
        expected = None if shown == c.DIRECTORY else c.MODIFIED
    assert change == expected


def test_an_unknown_pair_is_an_error_and_not_a_guess():
    with pytest.raises(KeyError):
        c.classify("door", c.FILE)


def stamp(kind=c.FILE, inode=7, size=3, modified_ns=100, changed_ns=100, mode=0o644, links=1):
    return c.Stamp(kind, inode, size, modified_ns, changed_ns, mode, links)


@pytest.mark.parametrize("field", ["kind", "inode", "size", "modified_ns", "mode"])
def test_a_file_of_which_one_thing_differs_is_another_version(field):
    other = {"kind": c.SYMLINK, "inode": 8, "size": 4, "modified_ns": 101, "mode": 0o600}[field]
    assert not stamp().same(stamp(**{field: other}))


def test_a_file_that_was_renamed_or_linked_is_still_the_same():
    assert stamp().same(stamp(changed_ns=999, links=2))


def test_a_directory_is_the_same_whatever_happened_in_it():
    assert stamp(kind=c.DIRECTORY).same(stamp(kind=c.DIRECTORY, size=9, modified_ns=9))


def test_a_directory_with_another_mode_is_not_the_same():
    assert not stamp(kind=c.DIRECTORY).same(stamp(kind=c.DIRECTORY, mode=0o755))


def test_nothing_is_not_the_same_as_something():
    assert not stamp().same(None)


def test_changes_are_told_root_by_root_and_parents_before_what_lies_in_them():
    paths = [(1, "a"), (0, "b/c"), (0, "b-c"), (0, "b"), (0, "b/a/z"), (0, "b/a")]
    ordered = c.by_path(c.Change(root, path, c.ADDED, c.FILE) for root, path in paths)
    assert [(change.root, change.path) for change in ordered] == [
        (0, "b"), (0, "b/a"), (0, "b/a/z"), (0, "b/c"), (0, "b-c"), (1, "a"),
    ]  # fmt: skip
