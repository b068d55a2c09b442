"""The rules of the live monitor, on plain values."""

from __future__ import annotations

from typing import cast

import pytest

from fumehood.core.changes import ABSENT, DIRECTORY, LAYER_KINDS, LIVE_KINDS, OPAQUE, PAIRS, WHITEOUT
from fumehood.linux.monitor import ADDED, CANCELLED, REMOVED, UPDATED, Directory, WatchedLayer, state_of

ENTRIES = [kind for kind in LAYER_KINDS if kind not in (WHITEOUT, OPAQUE)]
STATES = (None, ADDED, UPDATED, REMOVED)


def new_directory() -> Directory:
    return Directory(cast("WatchedLayer", None))


def news(before: str | None, now: str | None) -> str | None:
    """What a listener hears of a path that was in one state and is in another."""
    directory = new_directory()
    directory.record("a", before)
    return directory.record("a", now)


@pytest.mark.parametrize("kind", ENTRIES)
def test_what_the_project_lacks_is_added(kind: str) -> None:
    assert state_of(kind, ABSENT) == ADDED
    assert state_of(kind, ABSENT, hidden=True) == ADDED


@pytest.mark.parametrize("layer", ENTRIES)
@pytest.mark.parametrize("project", [kind for kind in LIVE_KINDS if kind != ABSENT])
def test_what_the_project_has_is_updated_unless_both_are_directories(layer: str, project: str) -> None:
    expected = None if layer == project == DIRECTORY else UPDATED
    assert state_of(layer, project) == expected


def test_a_directory_made_anew_or_with_another_mode_is_updated() -> None:
    assert state_of(DIRECTORY, DIRECTORY, altered=True) == UPDATED


@pytest.mark.parametrize("project", LIVE_KINDS)
def test_a_whiteout_removes_what_the_project_has(project: str) -> None:
    assert state_of(WHITEOUT, project) == (None if project == ABSENT else REMOVED)


@pytest.mark.parametrize("project", LIVE_KINDS)
def test_what_an_opaque_directory_hides_is_removed(project: str) -> None:
    assert state_of(ABSENT, project) is None
    assert state_of(ABSENT, project, hidden=True) == (None if project == ABSENT else REMOVED)


def test_the_scan_sees_a_change_wherever_something_is_told() -> None:
    for (layer, project), change in PAIRS.items():
        if layer != OPAQUE:
            assert (state_of(layer, project) is None) == (change is None), (layer, project)


@pytest.mark.parametrize("state", STATES)
def test_the_same_state_is_no_news(state: str | None) -> None:
    assert news(state, state) is None


@pytest.mark.parametrize("before", [ADDED, UPDATED, REMOVED])
def test_a_told_path_that_is_untouched_again_is_cancelled(before: str) -> None:
    assert news(before, None) == CANCELLED


def test_each_rule_between_two_looks() -> None:
    assert news(None, None) is None  # created and deleted before anybody looked
    assert news(ADDED, None) == CANCELLED  # created, then deleted
    assert news(UPDATED, REMOVED) == REMOVED  # modified, then deleted
    assert news(REMOVED, UPDATED) == UPDATED  # deleted, then written again


def test_a_directory_remembers_what_it_told() -> None:
    top = new_directory()
    assert top.record("a", ADDED) == ADDED
    assert top.record("a", ADDED) is None
    assert top.enter("sub").enter("deep").record("b", ADDED) == ADDED
    assert top.enter("sub").enter("deep").record("b", ADDED) is None
    assert top.enter("sub").enter("deep").path == "sub/deep"


def test_a_dropped_directory_is_gone_with_all_below_it() -> None:
    top = new_directory()
    sub = top.enter("sub")
    deep = sub.enter("deep")
    deep.record("b", ADDED)
    assert top.drop("sub") == [sub, deep]
    assert sub.gone
    assert deep.gone
    assert top.drop("sub") == []
    assert top.enter("sub") is not sub
