"""Small files in our cache directory: what was found out once and can be found out again."""

from __future__ import annotations

import os
import zlib

_OTHERS_WRITE = 0o022
_LARGEST = 8 << 20
_SUM = 8  # bytes in front that tell whether the rest is whole


def recalled(path: str) -> bytes | None:
    """Read what we kept; a file that somebody else wrote, or could have, or that is not whole, is no answer."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        there = os.fstat(file)
        if there.st_uid != os.geteuid() or there.st_mode & _OTHERS_WRITE or there.st_size > _LARGEST:
            return None
        content = b""
        while piece := os.read(file, 1 << 20):
            content += piece
    except OSError:
        return None
    finally:
        os.close(file)
    return content[_SUM:] if content[:_SUM] == _sum(content[_SUM:]) else None


def keep(path: str, content: bytes) -> None:
    """Keep something, in one step; where that can't be done, it only costs time later."""
    beside = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(beside, flags, 0o600)
        try:
            os.write(file, _sum(content) + content)
        finally:
            os.close(file)
        os.replace(beside, path)
    except OSError:
        return


def forget(directory: str, prefix: str, before: float) -> None:
    """Remove what was kept under names that begin so, and was last written before a time."""
    try:
        names = [name for name in os.listdir(directory) if name.startswith(prefix)]
    except OSError:
        return
    for name in names:
        path = f"{directory}/{name}"
        if os.lstat(path).st_mtime < before:
            os.unlink(path)


def _sum(content: bytes) -> bytes:
    return b"%08x" % zlib.crc32(content)
