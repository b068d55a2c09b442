"""Reading git's configuration format: the same as git itself, and never an error."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import need
from fumehood.core.gitconfig import changed_keys, parse, split_key

SAMPLES = [
    b"",
    b"\n\n# nothing\n; nothing either\n",
    b"[core]\n\tbare = false\n",
    b"[core]bare=false",
    b"[CoRe]\n\tFsMonitor = Evil\n",
    b"[core] # a section may carry a comment\nbare ; and a key too\n",
    b"[core]\nbare\n[user]\nname = A # comment\nemail = b;c\n",
    b'[remote "Origin"]\n\turl = https://example.org/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n',
    b"[remote.Origin]\nurl = lower case\n",
    b'[a "x\\"y\\\\z\\q"]\nb = 1\n',
    b'[a "with ] bracket"]\nb = 1\n',
    b'[a "with # hash"] b = 1 ; [c]\n',
    b'[ "nameless"]\na = 1\n',
    b'[a ""]\nb = 1\n',
    b"[a]\nb = one\\\n two\\\n\tthree\n",
    b"[a]\nb = \"quoted  blanks  \" and # comment\n",
    b'[a]\nb = "hash # in quotes" ; outside\n',
    b'[a]\nb = \\t\\b\\n\\"\\\\ end\n',
    b'[a]\nb = x""y"" \n',
    b'[a]\nb = ""\nc = " "\nd =\n',
    b"[a]\r\nb = c\r\n\r\n[d]\r\ne\r\n",
    b"[a]\nb = c\rd\n",
    b"[a]\nb = c \\\r\n  d\n",
    b"\xef\xbb\xbf[a]\nb = c\n",
    b"[a]\nb = caf\xc3\xa9 \xff\n",
    b'[a "caf\xe9"]\nb = 1\n',
    b"[a]\nb = before\0after\n",
    b'[filter "x\0y"]\nclean = evil\n',
    b"keyless = 1\n[a]\nb = 2\n",
    b"[a]\nb = 1\nb = 2\n[c]\nd = 3\n[A]\nB = 4\n",
    b"[a]\nb = last line without newline",
    b"[a]\nb = ends in backslash\\",
    b"[a]\nb",
    b"[a]\nb = #\nc = ;x\n",
    b"[a]b=1\n[c]d=2",
    b"[a] b = 1 [c] d = 2\n",
    b"[a-b.c-d]\ne-f = 1\n",
    b"[a]\n\x0bb = 1\n",
    b"[a]\nb\x0c= 1\n",
]
BROKEN = [
    b"[",
    b"[]\n",
    b"[a\n]b=1\n",
    b"[a b]\nc = 1\n",
    b'[a "b]\nc = 1\n',
    b'[a "b" ]\nc = 1\n',
    b'[a "b\\\n"]\nc = 1\n',
    b"[a_b]\nc = 1\n",
    b"[a]\nb_c = 1\n",
    b"[a]\n1b = 1\n",
    b"[a]\n= 1\n",
    b"[a]\nb : 1\n",
    b'[a]\nb = "open\n',
    b"[a]\nb = \\x\n",
    b"\xef\xbb[a]\nb = 1\n",
    b"\xff[a]\nb = 1\n",
    b"[a]\nb = 1\n]\n",
    b"<<<<<<< HEAD\n[a]\nb = 1\n",
]


def as_git_reads(content: bytes, file: Path) -> list[tuple[bytes, bytes | None]] | None:
    """What git itself finds in a configuration, or None if it refuses it."""
    file.write_bytes(content)
    told = subprocess.run(
        ["git", "config", "--list", "-z", "--no-includes", "--file", file], capture_output=True, check=False
    )
    if told.returncode:
        return None
    entries = [entry.partition(b"\n") for entry in told.stdout.split(b"\0")[:-1]]
    return [(key, value if equals else None) for key, equals, value in entries]


def comparable(entries: list[tuple[bytes, bytes | None]] | None) -> list[tuple[bytes, bytes | None]] | None:
    """Make blanks alike: git before 2.45 turns each unquoted blank in a value into a space."""
    if entries is None:
        return None
    blanks = bytes.maketrans(b"\t\r", b"  ")
    return [(key, None if value is None else value.translate(blanks)) for key, value in entries]


def as_we_read(content: bytes) -> list[tuple[bytes, bytes | None]] | None:
    found = parse(content)
    return None if found is None else [(os.fsencode(k), None if v is None else os.fsencode(v)) for k, v in found]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(shutil.which("git") is not None, "git is not installed")
    return tmp_path_factory.mktemp("configs") / "config"


@pytest.mark.parametrize("content", SAMPLES + BROKEN)
def test_a_configuration_is_read_as_git_reads_it(content: bytes, file: Path) -> None:
    assert comparable(as_we_read(content)) == comparable(as_git_reads(content, file))


@pytest.mark.parametrize("content", BROKEN)
def test_what_git_refuses_is_refused(content: bytes) -> None:
    assert parse(content) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(content: bytes) -> None:
    parse(content)
    changed_keys(content, content)
    changed_keys(None, content)


PIECES = st.sampled_from([
    b"[", b"]", b'"', b"\\", b"\n", b"\r\n", b"\r", b" ", b"\t", b"#", b";", b"=", b".", b"-", b"\0", b"\x0b",
    b"a", b"B", b"1", b"core", b"[core]\n", b'[x "Y"]', b"\nkey = value", b"\\\n", b"\\t", b"\xef\xbb\xbf", b"\xe9",
])  # fmt: skip


@settings(max_examples=150)
@given(st.lists(PIECES, max_size=25).map(b"".join))
def test_odd_configurations_are_read_as_git_reads_them(file: Path, content: bytes) -> None:
    assert comparable(as_we_read(content)) == comparable(as_git_reads(content, file))


def quoted(value: bytes) -> bytes:
    for plain, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\t", b"\\t"), (b"\b", b"\\b")):
        value = value.replace(plain, escaped)
    return b'"' + value + b'"'


NAME = st.from_regex(rb"[a-zA-Z][a-zA-Z0-9-]{0,8}", fullmatch=True)
TEXT = st.binary(max_size=12).map(lambda raw: raw.replace(b"\0", b""))
SUBSECTION = st.none() | TEXT.map(lambda raw: raw.replace(b"\n", b""))


@settings(max_examples=100)
@given(st.lists(st.tuples(NAME, SUBSECTION, NAME, TEXT), max_size=6))
def test_every_well_formed_configuration_is_understood(
    file: Path, settings_made: list[tuple[bytes, bytes | None, bytes, bytes]]
) -> None:
    lines, expected = [], []
    for section, subsection, name, value in settings_made:
        # An unescaped carriage return before the closing quote would be part of the name all the same.
        header = b"" if subsection is None else b' "%s"' % subsection.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        lines.append(b"[%s%s]\n\t%s = %s\n" % (section, header, name, quoted(value)))
        middle = b"" if subsection is None else b"." + subsection
        expected.append((section.lower() + middle + b"." + name.lower(), value))
    content = b"".join(lines)
    assert as_we_read(content) == expected
    assert as_git_reads(content, file) == expected


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (None, b"[a]b=1", [("a.b", (), ("1",))]),
        (b"[a]b=1", b"[A]\n  B = 1 # the same", []),
        (b"[a]b=1\nc=2", b"[a]c=2", []),
        (b"[a]b=1", b"[a]b=2", [("a.b", ("1",), ("2",))]),
        (b"[a]b=1", b"[a]b", [("a.b", ("1",), (None,))]),
        (b"[a]b=1\nb=2", b"[a]b=2\nb=1", [("a.b", ("1", "2"), ("2", "1"))]),
        (b"[a]b=1\nb=2", b"[a]b=1", [("a.b", ("1", "2"), ("1",))]),
        (b"[a]b=1", b"[a]b=1\n[c]d=2", [("c.d", (), ("2",))]),
        (b'[a "X"]b=1', b'[a "x"]b=1', [("a.x.b", (), ("1",))]),
        (b"not a configuration", b"[a]b=1", [("a.b", (), ("1",))]),
    ],
)
def test_versions_are_compared_by_key(old: bytes | None, new: bytes, changed: list[object]) -> None:
    assert changed_keys(old, new) == changed


def test_a_new_version_that_git_refuses_compares_to_nothing() -> None:
    assert changed_keys(b"[a]b=1", b"[a") is None


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("core.bare", ("core", None, "bare")),
        ("remote.a.b.url", ("remote", "a.b", "url")),
        ("a..b", ("a", "", "b")),
        ("alone", ("alone", None, "")),
    ],
)
def test_a_key_is_taken_apart_at_its_first_and_last_dot(key: str, parts: tuple[str, str | None, str]) -> None:
    assert split_key(key) == parts
