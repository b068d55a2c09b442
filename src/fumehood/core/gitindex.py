"""What a git index means: its entries. The times and sizes beside them are a cache that any `git status` rewrites."""

from __future__ import annotations

import hashlib
from struct import Struct
from struct import error as TooShort  # noqa: N812 - what it means here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST = 16 << 20  # bytes; reading a larger one would be noticed, and it is compared by its bytes

_HEADER = Struct(">4sII")
_EXTENSION = Struct(">4sI")
_HASHES = (("sha1", 20), ("sha256", 32))
_PLAIN, _COMPRESSED = 2, 4
_VERSIONS = (_PLAIN, 3, _COMPRESSED)
_MODE_AT, _OBJECT_AT = 24, 40  # in an entry; around the mode lie times, device, inode, owner and size
_EXTENDED = 0x40  # in the first byte of the flags: there are two bytes more of them
_LONGEST_PATH = 4096  # the kernel's limit; a crafted file could have us build far longer ones, again and again
_RESOLVE_UNDO = b"REUC"  # what a resolved conflict was: nobody can make it again


class _NotUnderstood(Exception):
    """The file is no index, or one whose entries are not all in it."""


def meaning(data: bytes) -> str:
    """Return a digest of the entries of an index: path, mode, object, stage and the flags that git acts on.

    Nothing where the file is not wholly understood: damaged, split (its entries lie in another file), sparse (they are
    directories), huge, or no index at all. Such files are the same only if their bytes are.
    """
    if len(data) > LARGEST or len(data) < _HEADER.size:
        return ""
    magic, version, count = _HEADER.unpack_from(data)
    if magic != b"DIRC" or version not in _VERSIONS:
        return ""
    for name, size in _HASHES:
        body, checksum = data[:-size], data[-size:]
        # All zero where the person has git skip it (index.skipHash).
        if not any(checksum) or hashlib.new(name, body, usedforsecurity=False).digest() == checksum:
            try:
                return _digest(body, version, count, size)
            except (_NotUnderstood, TooShort, ValueError, IndexError):
                continue
    return ""


def _digest(body: bytes, version: int, count: int, size: int) -> str:
    told = hashlib.sha256(bytes((size,)), usedforsecurity=False)
    at = _take_entries(told.update, body, version, count, size)
    while at < len(body):
        kind, length = _EXTENSION.unpack_from(body, at)
        at += _EXTENSION.size + length
        # Git itself gives up on one that it does not know, unless it begins with a capital letter.
        if not kind[:1].isupper():
            raise _NotUnderstood
        if kind == _RESOLVE_UNDO:
            told.update(kind + body[at - length : at])
    if at != len(body):
        raise _NotUnderstood
    return told.hexdigest()


def _take_entries(take: Callable[[bytes], None], body: bytes, version: int, count: int, size: int) -> int:
    """Pass on what the entries mean, as bytes that no others have; return where the last one ends.

    Of the flags, those that git acts on are taken with the length of the path, which is no news.
    """
    at, path, flags_at = _HEADER.size, b"", _OBJECT_AT + size
    for _ in range(count):
        start = at
        at = start + flags_at + 2
        if body[start + flags_at] & _EXTENDED:
            if version == _PLAIN:
                raise _NotUnderstood
            at += 2
        if version == _COMPRESSED:
            flagged = at
            path, at = _path_after(path, body, at)
            told = body[start + _OBJECT_AT : flagged] + path + b"\0"
        else:
            end = body.index(b"\0", at)
            at = start + ((end - start + 8) & ~7)
            told = body[start + _OBJECT_AT : end + 1]
        take(body[start + _MODE_AT : start + _MODE_AT + 4] + told)
    return at


def _path_after(path: bytes, body: bytes, at: int) -> tuple[bytes, int]:
    """Read a path that is told by how it differs from the one before, and where it ends.

    How much of that goes is a number in git's own form, seven bits a byte.
    """
    byte = body[at]
    gone = byte & 127
    while byte & 128:
        at += 1
        byte = body[at]
        gone = (gone + 1) << 7 | byte & 127
        if gone > _LONGEST_PATH:
            raise _NotUnderstood
    end = body.index(b"\0", at + 1)
    path = path[: max(0, len(path) - gone)] + body[at + 1 : end]
    if len(path) > _LONGEST_PATH:
        raise _NotUnderstood
    return path, end + 1
