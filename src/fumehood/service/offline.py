"""Names for a command without a network: its machine's own is found, every other is asked for where no route leads.

What is sent there is counted (`TriesToLeave`), and fails at once. Most systems ask at such an address anyway. But where
the resolver is this machine's own, or none is set, programs would ask at a loopback address at which nobody listens,
and a try to leave would look like any datagram to a port of the command's own. And a program that asks for the name of
its own machine does not try to leave.
"""

from __future__ import annotations

import os
import stat
from binascii import crc32

from fumehood.core.masks import UNSEEN, is_in
from fumehood.linux.cache import replace
from fumehood.linux.libc import Closing
from fumehood.linux.mounts import Bind, Operation, Text
from fumehood.linux.nofollow import open_below, open_top

_RESOLVER, _HOSTS = "/etc/resolv.conf", "/etc/hosts"
# An address for documentation (RFC 5737). Some resolvers wait for an answer although nothing could be sent.
_NOWHERE = b"nameserver 192.0.2.53\noptions timeout:1 attempts:1\n"
_WHY = "there is no network"
_MOST = 1 << 16
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def names_of_host(cache: str) -> list[Operation]:
    """Return what is mounted for a command that sees the host, where that is needed."""
    resolver, hosts = ((path, plain_file(path)) for path in (_RESOLVER, _HOSTS))
    if resolver[1] is None and os.path.islink(_RESOLVER):
        real = os.path.realpath(_RESOLVER)
        if is_in(real, UNSEEN):
            return [Text(target=real, content=_NOWHERE, why=_WHY), *_mounts(cache, ("", None), hosts)]
        resolver = real, plain_file(real)
    return _mounts(cache, resolver, hosts)


def resolver_in_sight() -> list[Operation]:
    """Show a command with a network what its host's resolver is, where that file is a link to what it does not see.

    systemd-resolved keeps it in /run.
    """
    real = os.path.realpath(_RESOLVER)
    content = plain_file(real) if os.path.islink(_RESOLVER) and is_in(real, UNSEEN) else None
    return [] if content is None else [Text(target=real, content=content, why="where names are asked for")]


def names_of_tree(cache: str, tree: str) -> list[Operation]:
    """Return the same for a root tree that commands can't write; only on plain files, never on what a link leads to."""
    with Closing(open_top(tree)) as top:
        resolver, hosts = ((path, plain_file(path[1:], top)) for path in (_RESOLVER, _HOSTS))
    return _mounts(cache, resolver, hosts)


def _mounts(cache: str, resolver: tuple[str, bytes | None], hosts: tuple[str, bytes | None]) -> list[Operation]:
    mounts: list[Operation] = []
    if resolver[1] is not None and not _asks_outside(resolver[1]):
        mounts += in_place(cache, resolver[0], _NOWHERE, _WHY)
    if hosts[1] is not None and (more := _with_own_name(hosts[1])):
        mounts += in_place(cache, hosts[0], more, _WHY)
    return mounts


def _asks_outside(configuration: bytes) -> bool:
    lines = [line.split() for line in configuration.splitlines()]
    servers = [line[1] for line in lines if len(line) > 1 and line[0] == b"nameserver"]
    return any(not each.startswith((b"127.", b"::1", b"0.")) for each in servers[:3])


def _with_own_name(hosts: bytes) -> bytes:
    """Return a table of hosts with the machine's own name in it; nothing where it has that."""
    name = os.uname().nodename.encode()
    is_there = any(name in line.partition(b"#")[0].split()[1:] for line in hosts.splitlines())
    return b"" if is_there or not name else b"%b\n127.0.0.1 %b\n" % (hosts.rstrip(b"\n"), name)


def in_place(cache: str, target: str, content: bytes, why: str) -> list[Operation]:
    """Show a file of ours, named by what it holds, in place of another; where it can't be kept, the other stays."""
    path = f"{cache}/names-{crc32(content):08x}-{len(content)}"
    if plain_file(path) != content:
        try:
            replace(path, content, by_many=True, mode=0o644)
            os.chmod(path, 0o644)  # for whom the command runs as, whatever our umask
        except OSError:
            return []
    return [Bind(target=target, source=path, why=why)]


def plain_file(path: str, top: int | None = None, most: int = _MOST) -> bytes | None:
    """Return a plain file's content; None where there is something else, or nothing."""
    try:
        with Closing(os.open(path, _READING) if top is None else open_below(top, path, _READING)) as file:
            status = os.fstat(file)
            # No more than there is, where that is known: for a large buffer, the kernel has to find memory.
            size = min(most, status.st_size + 1) if status.st_size else most
            return os.read(file, size) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None
