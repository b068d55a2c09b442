"""Where links may lead."""

from __future__ import annotations

import pytest

from fumehood.core.changes import SYMLINK
from fumehood.core.danger import find_concern, wants_facts
from judging import NO_RULES, ROOT, added, is_flagged, is_held, link


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("a", "b"), ("a", "."), ("deep/down/a", "../../b"), ("deep/a", ".."), ("lib64", "lib"), ("a", "./b//c"),
        ("a", f"{ROOT}/b"), ("a", ROOT), ("a", "../project/b"), ("node_modules/.bin/x", "../x/cli.js"), ("a", "b c"),
    ],
)  # fmt: skip
def test_links_that_stay_in_the_project_pass(path: str, target: str) -> None:
    assert wants_facts(added(path, SYMLINK))
    assert link(path, target) is None


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("a", "/etc/passwd"), ("a", "/"), ("a", ".."), ("a", "../other"), ("deep/a", "../../other"), ("a", f"{ROOT}x"),
        ("a", "/home/someone/.ssh"), ("a", "/proc/self/cwd"), ("a", "b/../../x"), ("a", "b/.."), ("a", "/usr/../etc"),
        ("a", "/usr"), ("a", ""), ("bin/python", "/home/someone/.ssh/id"), ("node_modules/x/a", "/etc"),
        ("x/python", "/home/x/bin/python"), ("a", "../../../../../../etc"), ("a", "/dev/tcp"),
    ],
)  # fmt: skip
def test_links_out_of_the_project_are_held(path: str, target: str) -> None:
    assert is_held(link(path, target))
    assert is_held(find_concern(added(path, SYMLINK), None, NO_RULES))


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("a", "/usr/share/dict/words"), ("result", "/nix/store/abc-x"), ("a", "/lib64/ld-linux.so"), ("a", "/dev/null"),
        ("a", "../../../usr/bin/env"), (".venv/bin/python", "/usr/bin/python3"),
        (".venv/bin/python3", "/home/someone/.pyenv/versions/3.12/bin/python3.12"), ("a", "/opt/tool/x"),
    ],
)  # fmt: skip
def test_links_to_the_system_and_to_interpreters_are_flagged(path: str, target: str) -> None:
    assert is_flagged(link(path, target))


def test_a_link_into_another_root_passes() -> None:
    assert link("a", "/data/set/x", roots=(ROOT, "/data/set")) is None


@pytest.mark.parametrize("path", [".git", "sub/.git", ".git/hooks", ".git/config", ".git/refs/heads/x", ".vscode"])
def test_a_link_in_a_protected_place_is_held_wherever_it_leads(path: str) -> None:
    assert is_held(link(path, "harmless"))
