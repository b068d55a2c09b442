"""What counts as our own source, on plain values."""

from __future__ import annotations

import pytest

from fumehood.core.changes import ADDED, DELETED, DIRECTORY, FILE, MODE, SYMLINK, Change
from fumehood.core.danger import ChangeFacts, RootFacts, find_concern, wants_facts
from fumehood.core.danger_facts import OwnSource
from judging import NO_RULES, added, is_held, modified, stamp

OWN = OwnSource(
    places=frozenset({(0, "src/fumehood"), (0, "a/env/lib"), (1, "")}),
    searched=((0, "lib", frozenset({"yaml", "json"})),),
)
GROUND = RootFacts(own_source=OWN)


@pytest.mark.parametrize(
    "path",
    ["src/fumehood", "src/fumehood/x.py", "src", "a", "a/env", "a/env/lib/x/y", "lib/yaml.py", "lib/json/tool.py",
     "lib/json.cpython-311.so", "lib/__pycache__/json.cpython-311.pyc", "lib/x.egg-info/entry_points.txt"],
)  # fmt: skip
def test_own_places_what_is_in_them_and_the_way_there_are_held(path: str) -> None:
    for change in (
        added(path), added(path, SYMLINK), added(path, DIRECTORY), modified(path),
        modified(path, after=0o666, change=MODE), Change(0, path, DELETED, FILE, before=stamp()),
    ):  # fmt: skip
        answer = find_concern(change, ChangeFacts(target="x", old=b"a", new=b"b", root="/r"), NO_RULES, GROUND)
        assert is_held(answer)
        assert answer is not None
        assert answer.flag == "own-source"


@pytest.mark.parametrize(
    "path",
    ["src/fumehood2", "src/x.py", "a/env/libs", "b", "lib/app.py", "lib/jsons/x.py", "lib/yaml.txt", "lib/json",
     "lib/x.egg-info/PKG-INFO", "yaml.py"],
)  # fmt: skip
def test_what_lies_beside_them_is_not_ours(path: str) -> None:
    assert find_concern(added(path), None, NO_RULES, GROUND) is None


def test_of_a_root_that_is_ours_everything_is() -> None:
    assert is_held(find_concern(Change(1, "any/thing", ADDED, FILE, after=stamp()), None, NO_RULES, GROUND))


def test_what_was_written_again_as_it_was_passes_and_another_mode_does_not() -> None:
    same = ChangeFacts(old=b"a", new=b"a", root="/r")
    assert wants_facts(modified("src/fumehood/x.py"), GROUND)
    assert find_concern(modified("src/fumehood/x.py"), same, NO_RULES, GROUND) is None
    assert is_held(find_concern(modified("src/fumehood/x.py", after=0o666, change=MODE), same, NO_RULES, GROUND))
