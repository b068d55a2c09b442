"""What real programs say when a path of the home is not there, and which path is made of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import need
from fumehood.core.hints import hidden_paths_named

HOME = "/home/ada"
NAMES = ("src/lib/x.py", "src/lib", "My Docs/a (1).txt", "x", "x.d", "é/ü", "a:b", "it's", "../bob/x")
HIDDEN = {f"{HOME}/{name}" for name in NAMES} | {"/home/bob/x"}

SAID = {
    "cat: /home/ada/src/lib/x.py: No such file or directory": "src/lib/x.py",
    "ls: cannot access '/home/ada/src/lib': No such file or directory": "src/lib",
    "ls: cannot access '/home/ada/My Docs/a (1).txt': No such file or directory": "My Docs/a (1).txt",
    "cat: /home/ada/My Docs/a (1).txt: No such file or directory": "My Docs/a (1).txt",
    "cat: '/home/ada/My Docs/a (1).txt': No such file or directory": "My Docs/a (1).txt",
    "FileNotFoundError: [Errno 2] No such file or directory: '/home/ada/src/lib/x.py'": "src/lib/x.py",
    'FileNotFoundError: [Errno 2] No such file or directory: "/home/ada/it\'s"': "it's",
    "Error: ENOENT: no such file or directory, open '/home/ada/x'": "x",
    "Error: Cannot find module '/home/ada/src/lib/x.py'": "src/lib/x.py",
    "open /home/ada/x: no such file or directory": "x",
    "stat /home/ada/a:b: no such file or directory": "a:b",
    "  failed to read `/home/ada/src/lib/x.py`": "src/lib/x.py",
    "sh: 1: cannot open /home/ada/x: No such file": "x",
    "sh: 1: /home/ada/x: not found": "x",
    "sh: 1: cd: can't cd to /home/ada/src/lib": "src/lib",
    "bash: line 1: cd: /home/ada/src/lib: No such file or directory": "src/lib",
    "fatal: repository '/home/ada/src/lib' does not exist": "src/lib",
    "fatal: '/home/ada/src/lib' does not appear to be a git repository": "src/lib",
    "make: *** /home/ada/src/lib: No such file or directory.  Stop.": "src/lib",
    "make: *** No rule to make target '/home/ada/x', needed by 'all'.  Stop.": "x",
    "a.c:1:10: fatal error: /home/ada/x: No such file or directory": "x",
    "Error: Unable to access jarfile /home/ada/x": "x",
    "java.io.FileNotFoundException: /home/ada/x (No such file or directory)": "x",
    "java.nio.file.NoSuchFileException: /home/ada/src/lib": "src/lib",
    'Can\'t open perl script "/home/ada/x": No such file or directory': "x",
    "a.rb:1:in `read': No such file or directory @ rb_sysopen - /home/ada/x (Errno::ENOENT)": "x",
    "Could not open input file: /home/ada/x": "x",
    'CMake Error: The source directory "/home/ada/src/lib" does not exist.': "src/lib",
    "go: example.org/lib@v0.0.0 (replaced by /home/ada/src/lib): reading /home/ada/src/lib/go.mod: open "
    "/home/ada/src/lib/go.mod: no such file or directory": "src/lib",
    "error: Distribution not found at: file:///home/ada/src/lib": "src/lib",
    "ERROR: file or directory not found: /home/ada/src/lib": "src/lib",
    "ERROR: /home/ada/src/lib is not a valid editable requirement. It should either be a path": "src/lib",
    "Warning: Identity file /home/ada/x not accessible: No such file or directory.": "x",
    'rsync: link_stat "/home/ada/src/lib" failed: No such file or directory (2)': "src/lib",
    "error TS6053: File '/home/ada/x' not found.": "x",
    "unable to read ~/src/lib: no such file or directory": "src/lib",
    "find: \u2018/home/ada/é/ü\u2019: No such file or directory": "é/ü",
    "\x1b[31merror\x1b[0m: cannot find \x1b[1m/home/ada/x\x1b[0m": "x",
    "can't open file '/home/ada/src/../src/lib/x.py': [Errno 2] No such file or directory": "src/lib/x.py",
    "No such file: /home/ada/src/lib/": "src/lib",
    "/home/ada/src/lib/x.py:10:3: cannot be found": "src/lib/x.py",
    "/home/ada/../bob/x: not found": None,
    "/home/ada/x.d: not found": "x.d",
    "could not open /home/ada/x.": "x",
    "cannot stat '//home/ada/x': No such file or directory": "x",
    "cc1: fatal error: cannot open -I/home/ada/x": None,
    "cat: /mnt/home/ada/x: No such file or directory": None,
    "cat: /home/adam/x: No such file or directory": None,
    "cat: /home/ada/project/notes: No such file or directory": None,
    "reading /home/ada/x": None,
    "HEAD~/x not found": None,
    "": None,
}


@pytest.mark.parametrize("said", SAID)
def test_the_path_that_was_missed_is_found(said: str) -> None:
    expected = SAID[said]
    paths = hidden_paths_named(f"something\n{said}\nmore\n", [HOME], HIDDEN.__contains__)
    assert paths == (() if expected is None else (f"{HOME}/{expected}",))


def test_of_what_was_never_there_the_hidden_directory_is_named() -> None:
    said = f"touch: cannot touch '{HOME}/src/lib/new': No such file or directory\n"
    assert hidden_paths_named(said, [HOME], HIDDEN.__contains__) == (f"{HOME}/src/lib",)
    assert hidden_paths_named(f"cat: {HOME}/x/new: No such file", [HOME], HIDDEN.__contains__) == ()
    for name in (f"{HOME}/x/new", "../x/new"):
        for said in (
            f"sh: 1: cannot create {name}: Directory nonexistent",
            f"touch: cannot touch '{name}': No such file or directory",
            f"mkdir: cannot create directory \u2018{name}\u2019: No such file or directory",
        ):
            assert hidden_paths_named(said, [HOME], HIDDEN.__contains__, f"{HOME}/project") == (f"{HOME}/x",)


@pytest.mark.parametrize(
    "said",
    [
        "cat: ../lib/x.py: No such file or directory", "Error: Cannot find module '../lib/x.py'",
        "cat: ../../src/lib/x.py: No such file or directory", "sh: 1: cd: can't cd to ../lib/x.py",
    ],
)  # fmt: skip
def test_a_path_that_leads_up_from_where_the_command_began_is_understood(said: str) -> None:
    assert hidden_paths_named(said, [HOME], HIDDEN.__contains__, f"{HOME}/src/app") == (f"{HOME}/src/lib/x.py",)
    assert hidden_paths_named(said, [HOME], HIDDEN.__contains__) == ()
    assert hidden_paths_named(said, [HOME], HIDDEN.__contains__, "/srv/a/b") == ()


def real(command: list[str]) -> str:
    need(shutil.which(command[0]) is not None, f"{command[0]} is not installed")
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0
    return done.stderr or done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["cat", "PATH"], ["ls", "PATH"], ["cp", "PATH", "/dev/null"], ["find", "PATH"], ["sh", "-c", "cd 'PATH'"],
        ["sh", "-c", "'PATH'"], ["sh", "-c", ". 'PATH'"], ["bash", "-c", "cat <'PATH'"],
        ["tar", "cf", "/dev/null", "PATH"],
        ["grep", "x", "PATH"], ["sed", "p", "PATH"], ["make", "-C", "PATH"], ["git", "clone", "PATH", "/dev/null/x"],
        ["git", "-C", "PATH", "status"], [sys.executable, "PATH"], [sys.executable, "-c", "open('PATH')"],
        ["node", "PATH"], ["node", "-e", "require('fs').readFileSync('PATH')"], ["perl", "PATH"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("name", ["gone", "with blank/gone"])
def test_real_programs_are_understood(command: list[str], name: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/{name}"
    said = real([word.replace("PATH", path) for word in command])
    assert hidden_paths_named(said, [str(tmp_path)], path.__eq__) == (path,), said


def test_at_most_three_are_named_each_once() -> None:
    said = "".join(f"cat: {HOME}/{number % 7}: No such file or directory\n" for number in range(50))
    assert hidden_paths_named(said, [HOME], bool) == (f"{HOME}/0", f"{HOME}/1", f"{HOME}/2")


def test_both_names_of_a_home_count() -> None:
    said = "cat: /mnt/ada/x: No such file\ncat: ~/y: No such file\n"
    assert hidden_paths_named(said, [HOME, "/mnt/ada"], bool) == ("/mnt/ada/x", f"{HOME}/y")


@pytest.mark.parametrize(
    "piece",
    ["not found ~/", f"not found {HOME}/a", f"{HOME}/", "'~/x ", "not found\n", f"not found {HOME}/a: b: c'd\n"],
)
def test_hostile_output_asks_little_of_the_disk(piece: str) -> None:
    asked: list[str] = []
    text = piece * (1_000_000 // len(piece))
    assert hidden_paths_named(text, [HOME], lambda path: bool(asked.append(path))) == ()
    assert len(asked) <= 200
    assert all(len(path) < 5000 for path in asked)


PIECES = ["~/", f"{HOME}/", "'", '"', ":", " ", "not found", "x", "\n", "/", "..", "\0", "`", "\x1b[1m"]


@given(pieces=st.lists(st.sampled_from(PIECES)))
def test_any_output_gives_paths_of_the_home_or_nothing(pieces: list[str]) -> None:
    asked: list[str] = []

    def is_hidden(path: str) -> bool:
        asked.append(path)
        return True

    assert len(hidden_paths_named("".join(pieces), [HOME], is_hidden)) <= 3
    assert all(path.startswith(f"{HOME}/") and "\0" not in path for path in asked)
