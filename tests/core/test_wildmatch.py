"""Git's patterns, held against git itself: which of many conditions it takes to be true."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import need
from fumehood.core.patterns import matches

PATTERNS = [
    "", "*", "**", "?", "/", "a", "a/b", "a/*", "a/**", "**/a", "**/b", "a/**/b", "a**b", "a/**b", "a**/b", "*/b",
    "**/*", "**/**", "***", "a/***/b", "*a*", "*a*b*", "[a-c]", "[!a]", "[^a]/b", "[]a]", "[!]a]", "[a", "a[", "[a-]",
    "[-a]", "[\\]]", "[\\a-c]", "[a-\\c]", "[[:alpha:]]", "[[:upper:]b]", "[[:punct:]]", "[[:nonsense:]]", "[[:]",
    "[[::]]", "[[:x]", "\\a", "\\*", "a\\", "?/b", "??b", "*/*/c", "a/*/c", "**/a/**/c", "a/**/", "a\\/b", "**\\/b",
    "[/]b", "a[/]b", "a?b", "A", "[A]", "[A-C]", "\\A", "é", "?é", "[é]", "feature/**", "https://*/x", "**x**",
    "[[:space:][:digit:]]", "[b-a]", "[a-c-e]", "**a", "b**/", "*/", "/*", "/**", "/**/b",
]  # fmt: skip
TEXTS = ["a", "b", "/", "a/b", "a/b/c", "ab", "aab", "a/", "/a", "/a/b", "A", "]", "-", "[", "*", "\\", "é", "x/é",
         "1", ":", "a/x/y/b", "a/x/a/b/c", "feature/x/y", "https://h/x", "a-b", "c", "d", "e"]  # fmt: skip


@pytest.fixture(name="repository")
def repository_fixture(tmp_path: Path) -> Path:
    need(shutil.which("git") is not None, "git is not installed")
    directory = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", directory], check=True, env=environment(tmp_path))
    return directory


def environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}


def quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def matched_by_git(patterns: list[str], text: str, repository: Path) -> list[bool]:
    """Which of the patterns git finds in a remote's address."""
    home = repository.parent
    lines = [f'[remote "r"]\n\turl = "{quoted(text)}"\n']
    for number, pattern in enumerate(patterns):
        (home / f"{number}.inc").write_text(f"[found]\n\tn = {number}\n")
        lines.append(f'[includeIf "hasconfig:remote.*.url:{quoted(pattern)}"]\n\tpath = {number}.inc\n')
    (home / ".gitconfig").write_text("".join(lines))
    command = ["git", "config", "--get-all", "found.n"]
    listed = subprocess.run(command, cwd=repository, env=environment(home), capture_output=True, text=True, check=False)
    found = set(listed.stdout.split())
    return [str(number) in found for number in range(len(patterns))]


@pytest.mark.parametrize("text", TEXTS)
def test_patterns_match_what_git_lets_them_match(text: str, repository: Path) -> None:
    ours = {pattern: matches(pattern, text) for pattern in PATTERNS}
    assert ours == dict(zip(PATTERNS, matched_by_git(PATTERNS, text, repository), strict=True))


LETTERS = st.sampled_from("aAb/*?[]!-\\:^.é")


@pytest.mark.long
@settings(max_examples=60)
@given(
    patterns=st.lists(st.text(LETTERS, max_size=12), min_size=20, max_size=60),
    text=st.text(st.sampled_from("aAb/-]é"), min_size=1, max_size=12),
)
def test_any_pattern_is_read_as_by_git(
    patterns: list[str], text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    need(shutil.which("git") is not None, "git is not installed")
    repository = tmp_path_factory.mktemp("wild") / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True, env=environment(repository.parent))
    by_git = matched_by_git(patterns, text, repository)
    ours = [matches(pattern, text) for pattern in patterns]
    assert list(zip(patterns, ours, strict=True)) == list(zip(patterns, by_git, strict=True))


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ("/Work/**", "/wOrk/app/.git", True),
        ("**/APP/.git", "/work/app/.git", True),
        ("[A-C]", "b", True),
        ("[A]", "a", False),
        ("\\A", "a", False),
        ("[[:upper:]]", "a", True),
        ("É", "é", False),
    ],
)
def test_case_is_ignored_in_ascii_as_git_does_it(pattern: str, text: str, is_match: bool) -> None:
    assert matches(pattern, text, ignores_case=True) is is_match


def test_a_hostile_pattern_and_text_come_to_an_end() -> None:
    assert not matches("**/*a" * 40, "a" * 2000)
    assert not matches("*a" * 200, "a" * 1999 + "b")
