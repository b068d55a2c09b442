"""What a scan leaves out: names that say it, and a light reading of .gitignore."""

import time

import pytest

from fumehood.core.patterns import IgnoreRules, is_skipped, lies_in_skipped


@pytest.mark.parametrize("name", [".git", "node_modules", ".venv", "__pycache__", ".fumehood-01ABC"])
def test_what_tools_make_again_is_skipped_by_name(name: str) -> None:
    assert is_skipped(name)
    assert lies_in_skipped(f"a/{name}/b")
    assert lies_in_skipped(name)


def test_other_names_are_not_skipped() -> None:
    assert not lies_in_skipped("")
    assert not lies_in_skipped("src/git/modules")


@pytest.mark.parametrize(
    ("pattern", "path", "is_directory", "ignored"),
    [
        ("*.o", "deep/down/a.o", False, True),
        ("**/a/**/a/**/b", "a/" * 2000 + "x", False, None),
        ("**/a/**/a/**/b", "a/" * 2000 + "b", False, True),
        ("x/**/a/b/**/c", "x/a/a/b/a/c", False, True),
        ("x/**/a/b/**/c", "x/a/b", False, None),
        ("**/a/**", "b/a/a", False, True),
        ("**/a/**", "b/a", True, None),
        ("*.o", "a.obj", False, None),
        ("/build", "build", False, True),
        ("/build", "src/build", False, None),
        ("build/", "src/build", True, True),
        ("build/", "src/build", False, None),
        ("a/b.txt", "a/b.txt", False, True),
        ("a/b.txt", "x/a/b.txt", False, None),
        ("**/logs", "x/y/logs", True, True),
        ("**/logs", "logs", True, True),
        ("a/**", "a/b/c", False, True),
        ("a/**/z", "a/z", False, True),
        ("a/**/z", "a/b/c/z", False, True),
        ("file?.txt", "file1.txt", False, True),
        ("file?.txt", "file/.txt", False, None),
        ("[a-c]*", "bus", False, True),
        ("[!a-c]*", "bus", False, None),
        ("x[[]1]", "x[1]", False, True),
        ("\\#notes", "#notes", False, True),
        ("# a comment", "# a comment", False, None),
        ("trailing   ", "trailing", False, True),
        ("kept\\ ", "kept ", False, True),
        ("[z-a]", "z", False, None),
        ("[", "[", False, True),
        ("", "", False, None),
        ("*b*c*", "abxcx", False, True),
        ("*b*c*", "acxbx", False, None),
    ],
)
def test_a_pattern_means_what_it_means_to_git(
    pattern: str, path: str, is_directory: bool, ignored: bool | None
) -> None:
    assert IgnoreRules(pattern).ignores(path, is_directory=is_directory) is ignored


def test_the_last_pattern_that_speaks_of_a_path_counts() -> None:
    rules = IgnoreRules("*.log\n!keep.log\n/logs/keep.log\n")
    assert rules.ignores("a.log", is_directory=False) is True
    assert rules.ignores("keep.log", is_directory=False) is False
    assert rules.ignores("logs/keep.log", is_directory=False) is True


def test_no_pattern_takes_long_however_it_is_made() -> None:
    rules = IgnoreRules("*a" * 140 + "b\n" + "**/x/**/y/**\n" + "?*" * 100 + "Z\n")
    began = time.thread_time()
    assert rules.ignores("a" * 255, is_directory=False) is None
    assert rules.ignores("/".join(["x"] * 1000), is_directory=False) is None
    assert time.thread_time() - began < 2


def test_what_is_beyond_the_bounds_ignores_nothing() -> None:
    rules = IgnoreRules("\n".join([f"name{n}" for n in range(600)] + ["x" * 400]))
    assert rules.ignores("name499", is_directory=False) is True
    assert rules.ignores("name500", is_directory=False) is None
    assert rules.ignores("x" * 400, is_directory=False) is None
