"""What a command was refused is named from what it printed."""

import pytest

from fumehood.core.hints import refused_writes
from fumehood.service.blocked import overflow_lines


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("touch: cannot touch '/home/ada/x y': Read-only file system", "/home/ada/x y"),
        ("bash: line 1: /etc/evil: Read-only file system", "/etc/evil"),
        ("sh: 1: cannot create /etc/evil: Read-only file system", "/etc/evil"),
        ("OSError: [Errno 30] Read-only file system: '/srv/f'", "/srv/f"),
        ("Error: EROFS: read-only file system, open '/srv/f'", "/srv/f"),
        ("touch: cannot touch \u2018/srv/f\u2019: Read-only file system", "/srv/f"),
        ("open /srv/f: read-only file system", "/srv/f"),
        ("bash: line 1: /srv/a b: Read-only file system", "/srv/a b"),
        ("tar: /srv/f: Cannot open: Read-only file system", "/srv/f"),
        ("/bin/sh: can't create /srv/f: Read-only file system", "/srv/f"),
        ("mkdir: can't create directory '/srv/f': Read-only file system", "/srv/f"),
        ("touch: /srv/f: Read-only file system", "/srv/f"),
        ("sh: can't create f: Read-only file system", "f"),
        ("ERROR: Unable to lock database: Read-only file system", "/lib/apk/db"),
        ("ERROR: Failed to open apk database: Read-only file system", "/lib/apk/db"),
        ("mv: cannot move 'a' to '/srv/a': Read-only file system", "/srv/a"),
        ("Error: EROFS: read-only file system, rename '/p/a' -> '/srv/a'", "/srv/a"),
        ("cp: cannot create regular file 'x/y': Read-only file system", "x/y"),
        ("fatal: cannot lock ref 'r/x': Unable to create '/p/../srv/./f.lock': Read-only file system", "/srv/f.lock"),
        ("Read-only file system", "a path"),
    ],
)
def test_the_path_is_found_in_what_programs_say(line: str, path: str) -> None:
    (blocked,) = refused_writes(f"before\n{line}\nafter\n", ["/p"])
    assert blocked.detail == path
    assert "/p" in blocked.hint


def test_of_several_paths_in_a_line_each_is_named_that_can_not_be_written() -> None:
    for line in ("mv: cannot move '/srv/a' to '/srv/b': Read-only file system",
                 "OSError: [Errno 30] Read-only file system: '/srv/a' -> '/srv/b'",
                 "rename /srv/a /srv/b: read-only file system"):  # fmt: skip
        assert [blocked.detail for blocked in refused_writes(line, ["/p"])] == ["/srv/a", "/srv/b"]


def test_few_are_named_and_each_once() -> None:
    line = "touch: cannot touch '/{}': Read-only file system\n"
    text = "".join(line.format(n) for n in (1, 1, 2, 3, 4, 5))
    assert [blocked.detail for blocked in refused_writes(text, ["/p"])] == ["/1", "/2", "/3"]
    assert refused_writes("cat: x: No such file or directory\n", ["/p"]) == ()


@pytest.mark.parametrize(
    "line",
    [
        "/bin/sh: 1: cannot create f: Value too large for defined data type",
        "mv: can't rename 'r': Value too large for data type",
        "OSError: [Errno 75] Value too large for defined data type: 'f'",
        "Error: EOVERFLOW: value too large for defined data type, open 'f'",
    ],
)
def test_what_an_overlay_could_not_copy_is_known_by_the_words_of_every_library(line: str) -> None:
    assert overflow_lines(f"before\n{line}\nafter\n") == line
    assert overflow_lines("cat: x: No such file or directory\n") == ""
