"""What a command left in its home, which is thrown away: whoever meant to keep it must be told."""

from __future__ import annotations

import os
import stat

from fumehood.linux.mounts import Text
from fumehood.linux.nofollow import LISTING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fumehood.linux.mounts import Operation

_MOST = 1000  # entries looked at


def left_at_home(directory: int, home: str, mounts: Iterable[Operation]) -> tuple[str, ...]:
    """Return what a command wrote to its home, relative to it, in order.

    Not what lies in directories whose names begin with a dot: caches and records that programs keep by themselves.
    """
    inside = {each.target[len(home) + 1 :]: each for each in mounts if each.target.startswith(f"{home}/")}
    texts = {path: each.content for path, each in inside.items() if isinstance(each, Text)}
    ways = {above for path in inside for above in _above(path)}
    return tuple(sorted(_new(directory, "", set(inside), texts, ways)))


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _new(directory: int, below: str, made: set[str], texts: dict[str, bytes], ways: set[str]) -> Iterator[str]:
    for name in sorted(os.listdir(directory))[:_MOST]:
        path = f"{below}{name}"
        entry = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(entry.st_mode):
            if name.startswith(".") or path in made:
                continue
            if path not in ways:
                yield path
                continue
            inner = os.open(name, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                yield from _new(inner, f"{path}/", made, texts, ways)
            finally:
                os.close(inner)
        elif path not in made or (path in texts and not _holds(directory, name, texts[path])):
            yield path


def _holds(directory: int, name: str, content: bytes) -> bool:
    """Tell whether a file still holds what we wrote."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return False
    try:
        return os.read(file, len(content) + 1) == content
    except OSError:
        return False
    finally:
        os.close(file)
