"""Everything that reads what a command wrote, fed with what no sane command writes.

`make test` tries a few examples of each; `make fuzz SECONDS=600` goes on with others for as long.
"""

import contextlib
import gzip
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import FRESH, fresh_directory, need, remove_tree, scratch
from fumehood.core import changes as c
from fumehood.core.gitconfig import changed_keys, key_concern, may_name_program, parse
from fumehood.core.judge import judge
from fumehood.core.patterns import IgnoreRules
from fumehood.core.report import Run, printable
from fumehood.core.request import APPLY
from fumehood.core.text_diff import hunks, quote_path
from fumehood.core.what_runs import named_paths
from fumehood.errors import FumehoodError
from fumehood.faces.cli.screen import Filter
from fumehood.linux.layer import scan
from fumehood.rootfs.unpack import unpack


def fuzz(examples):
    """So many examples in the suite, as many as are asked for in a longer run."""
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=FRESH or examples, suppress_health_check=quiet)


LETTERS = b"\x00\x1b\n\r\t \"'\\/.-~$`;&|<>*?[]{}=#%\x7f\x80\x9b\xc2\xe2\x80\xae\xffabcABC019"
NAMES = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.lists(st.sampled_from(list(LETTERS)), min_size=1, max_size=30).map(bytes),
    st.sampled_from([b"-rf", b"..x", b"\x1b]52;c;eA==\x07", "\u202e".encode(), b"a" * 255, b"\n", b".git", b" "]),
).map(lambda name: name.replace(b"\0", b"0").replace(b"/", b"_")[:255]).filter(lambda name: name not in (b".", b".."))

# --- git's configuration ---

CONFIG_PIECES = st.sampled_from([
    b"[core]", b"[Core \"x\"]", b"[core.x]", b"[include]", b"\tfsmonitor = evil", b"hooksPath=/x", b"path = ../x",
    b"[alias]", b"x = !sh", b"\\\n", b"\n", b"\r\n", b"#", b";", b"\"", b"=", b"]", b"[", b" ", b"\t", b"\\", b"\\t",
    b"\xef\xbb\xbf", b"\x00", b"a", b"Z-9", b"[filter \"a\\\"b\"]", b"clean = rm", b"\xff",
])  # fmt: skip
CONFIGS = st.one_of(st.lists(CONFIG_PIECES, max_size=25).map(b"".join), st.binary(max_size=60))


@fuzz(150)
@given(CONFIGS)
def test_gits_configuration_is_read_as_git_reads_it(tmp_path, data):
    need(shutil.which("git") is not None, "git is not here")
    file = tmp_path / "config"
    file.write_bytes(data)
    done = subprocess.run(
        ["git", "config", "--file", file, "--no-includes", "--list", "-z"], capture_output=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}, cwd=tmp_path,
    )  # fmt: skip
    ours = parse(data)
    if done.returncode:
        return  # we may read more than git does, never less
    theirs = [entry.split(b"\n", 1) for entry in done.stdout.split(b"\0")[:-1]]
    assert ours is not None, data
    expected = [(os.fsdecode(key), None if not value else os.fsdecode(value[0])) for key, *value in theirs]
    # Versions of git differ in whether a tab inside a value becomes a space.
    assert [(key, spaced(value)) for key, value in ours] == [(key, spaced(value)) for key, value in expected], data


def spaced(value):
    return None if value is None else "".join(" " if letter.isspace() else letter for letter in value)


@fuzz(150)
@given(CONFIGS, CONFIGS)
def test_whatever_the_configuration_it_is_judged(old, new):
    for key, was, now in changed_keys(old, new) or ():
        key_concern(key, was, now)
    for key, value in parse(new) or ():
        if may_name_program(key):
            list(named_paths(value or ""))


# --- layers ---

KINDS = st.sampled_from(["file", "empty", "directory", "link", "fifo", "whiteout", "opaque", "closed", "setuid"])
TREES = st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=3), KINDS), max_size=12)


def grow(top, entries):
    """Make what is asked for, as far as a file system lets one."""
    for names, kind in entries:
        place = os.path.join(os.fsencode(top), *names)
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            make(place, kind)
        except (FileExistsError, NotADirectoryError, PermissionError, IsADirectoryError, FileNotFoundError):
            continue
        except OSError as error:
            if error.errno != 36:  # a path that is too long
                raise


def make(place, kind):
    if kind in ("directory", "opaque", "closed"):
        os.mkdir(place)
        if kind == "opaque":
            os.setxattr(place, "user.overlay.opaque", b"y")
        if kind == "closed":
            os.chmod(place, 0)
    elif kind == "link":
        os.symlink(b"../../../etc/passwd\x1b[31m", place)
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "whiteout":
        os.mknod(place, stat.S_IFCHR | 0o600, 0)
    else:
        with open(place, "xb") as file:
            file.write(b"" if kind == "empty" else b"\0\x1b[2Jtext\n")
        if kind == "setuid":
            os.chmod(place, 0o4755)


@pytest.fixture
def place():
    top = fresh_directory(scratch())
    yield top
    remove_tree(top)


@fuzz(60)
@given(TREES, TREES)
def test_any_layer_is_scanned_judged_and_told(place, above, below):
    with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as work:
        upper, live = os.path.join(work, "upper"), os.path.join(work, "live")
        for top, entries in ((upper, above), (live, below)):
            os.mkdir(top)
            grow(top, entries)
        ends = [os.open(top, os.O_PATH | os.O_DIRECTORY) for top in (upper, live)]
        try:
            found = scan(0, *ends)
        finally:
            for fd in ends:
                os.close(fd)
        judge(found, APPLY)
        run = Run(run="r", project=live, command="x", cwd=live, state="held", roots=(live,), changed=found)
        assert all(line.isprintable() for line in run.for_model().split("\n"))
        assert json.loads(json.dumps(run.as_dict()))["changes"] == run.as_dict()["changes"]
        assert all(change.change in (c.ADDED, c.MODIFIED, c.DELETED, c.MODE, c.TYPE) for change in found)
        subprocess.run(["chmod", "-R", "u+rwx", work], check=False, stderr=subprocess.DEVNULL)


# --- names and differences ---


@fuzz(300)
@given(NAMES)
def test_any_name_is_one_line_of_printable_text(name):
    text = os.fsdecode(name)
    assert printable(text).isprintable()
    assert "\n" not in quote_path(text)
    assert quote_path(text).isascii() or quote_path(text).isprintable()


ROWS = ["a", "b", "", "\x1b[2J", "\r", "x\x0cy", "\u2028", "\udcff", "- c", "+ d", "\\ No newline", "@@ -1 +1 @@"]
LINES = st.lists(st.sampled_from(ROWS), max_size=12)
TEXTS = st.tuples(LINES, st.booleans()).map(lambda given: "\n".join(given[0]) + ("\n" if given[0] and given[1] else ""))


def patched(old, told):
    """Apply hunks as patch does, and return the new text."""
    before = [f"{line}\n" for line in old.split("\n")]
    before[-1] = before[-1][:-1]
    rows, new, at = "".join(told).split("\n")[:-1], [], 0
    for number, row in enumerate(rows):
        is_cut = rows[number + 1 : number + 2] and rows[number + 1].startswith("\\")
        text = row[1:] + ("" if is_cut else "\n")
        if row.startswith("@@"):
            start, _, count = row.split()[1][1:].partition(",")
            until = int(start) - (count != "0")
            new += before[at:until]
            at = until
        elif row[0] in " -":
            assert before[at] == text
            at += 1
        if row[0] in " +":
            new.append(text)
    return "".join([*new, *before[at:]])


@fuzz(200)
@given(TEXTS, TEXTS)
def test_a_difference_says_exactly_what_changed(old, new):
    assert patched(old, list(hunks(old, new))) == new


@fuzz(200)
@given(st.lists(NAMES, max_size=6), NAMES)
def test_any_ignore_file_can_be_read(patterns, name):
    rules = IgnoreRules("\n".join(map(os.fsdecode, patterns)))
    assert rules.ignores(os.fsdecode(name), is_directory=False) in (True, False, None)


# --- what reaches a terminal ---


@fuzz(300)
@given(st.lists(st.one_of(st.binary(max_size=20), st.sampled_from([b"\x1b", b"[", b"]52;c;", b"\x07", b"\x1b\\"]))))
def test_no_bytes_make_a_terminal_act(pieces):
    filter_ = Filter()
    shown = b"".join([*map(filter_.feed, pieces), filter_.close()])
    assert b"\x1b]" not in shown
    assert b"\x1bP" not in shown
    assert b"\x05" not in shown


# --- archives ---

TYPES = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
PATHS = ["a", "a/b", "a/b/c", "../x", "/abs", "a/../../x", "./a", ".", "", "a//b", "l", "l/x", "\udcff", "a\x1b"]
PLACES = st.sampled_from(PATHS)
MEMBERS = st.lists(st.tuples(PLACES, st.sampled_from(TYPES), PLACES, st.integers(0, 0o7777)), max_size=8)


@fuzz(150)
@given(MEMBERS, st.lists(st.tuples(st.integers(0, 1 << 13), st.integers(0, 255)), max_size=4))
def test_no_archive_writes_outside_its_directory(place, members, flips):
    with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as work:
        archive, target = os.path.join(work, "t.tar.gz"), os.path.join(work, "target")
        os.mkdir(target)
        write_archive(archive, members, flips)
        before = sorted(os.listdir(work)), at_the_top()
        top = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(FumehoodError):
                unpack(archive, top)
        finally:
            os.close(top)
        assert (sorted(os.listdir(work)), at_the_top()) == before
        for folder, names, files in os.walk(target):
            for name in (*names, *files):
                found = os.lstat(os.path.join(folder, name))
                assert not stat.S_ISCHR(found.st_mode)
        subprocess.run(["chmod", "-R", "u+rwx", work], check=False, stderr=subprocess.DEVNULL)


def at_the_top():
    """What of these archives is in the host's root, where others may be at work."""
    return [name for name in ("a", "abs", "l", "x") if os.path.lexists(f"/{name}")]


def write_archive(path, members, flips):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", errors="surrogateescape") as archive:
        for name, kind, link, mode in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, link, mode
            data = b"data" if kind == tarfile.REGTYPE else b""
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    data = bytearray(raw.getvalue())
    for at, value in flips:
        if at < len(data):
            data[at] = value
    Path(path).write_bytes(gzip.compress(bytes(data), 1))
