"""Give bubblewrap the filter of system calls that the command starts under; compiled once, and kept."""

from __future__ import annotations

import os
import zlib

_programs: dict[tuple[bool, bool], bytes] = {}
_CORE = f"{os.path.dirname(os.path.dirname(__file__))}/core"
_SOURCES = (f"{_CORE}/syscalls.py", f"{_CORE}/bpf.py")


def machine() -> str:
    """Name this machine as the tables do."""
    return os.uname().machine


def is_known() -> bool:
    """Tell whether there is a table of this machine's system calls."""
    from fumehood.core.syscalls import ARCHITECTURES

    return machine() in ARCHITECTURES


def filter_for(cache: str, *, unix_sockets: bool, pretends_owners: bool = False) -> bytes:
    """Return the filter for commands here, or nothing where the machine's calls are not known.

    `pretends_owners` is for a command that is root inside: giving a file to anybody else does nothing and succeeds.
    """
    known = _programs.get((unix_sockets, pretends_owners))
    if known is None:
        variant = ("" if unix_sockets else "-no-unix") + ("-owners" if pretends_owners else "")
        path = f"{cache}/filter-{machine()}{variant}"
        made_from = _made_from()
        known = _recalled(path, made_from)
        if known is None:
            known = _compiled(unix_sockets=unix_sockets, pretends_owners=pretends_owners)
            if made_from:
                _keep(path, made_from, known)
        _programs[unix_sockets, pretends_owners] = known
    return known


def _compiled(*, unix_sockets: bool, pretends_owners: bool) -> bytes:
    from fumehood.core.bpf import program
    from fumehood.core.syscalls import NO_UNIX_SOCKETS, PRETENDED_OWNERS

    if not is_known():
        return b""
    more = (() if unix_sockets else NO_UNIX_SOCKETS) + (PRETENDED_OWNERS if pretends_owners else ())
    return program(machine(), more)


def _made_from() -> bytes:
    """Tell the version of the tables by their files, which need not be read for that; nothing where there are none."""
    try:
        found = [os.stat(source) for source in _SOURCES]
    except OSError:
        return b""
    return " ".join(f"{each.st_ino} {each.st_size} {each.st_mtime_ns}" for each in found).encode()


def _recalled(path: str, made_from: bytes) -> bytes | None:
    """Read a filter that was kept, if it is ours, whole, and made from the same tables."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return None
        text = os.read(file, found.st_size)
    finally:
        os.close(file)
    head, _, filter_ = text.partition(b"\n")
    return filter_ if head == _head(made_from, filter_) else None


def _keep(path: str, made_from: bytes, filter_: bytes) -> None:
    """Keep a filter for later starts; where that can't be done, each compiles its own."""
    beside = f"{path}.{os.getpid()}"
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, _head(made_from, filter_) + b"\n" + filter_)
        finally:
            os.close(file)
        os.replace(beside, path)
    except OSError:
        return


def _head(made_from: bytes, filter_: bytes) -> bytes:
    return made_from + b" %08x" % zlib.crc32(filter_)
