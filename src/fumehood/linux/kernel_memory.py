"""Count what the kernel keeps for a sandbox in no process's name: System V's memory, and what waits in sockets.

The kernel tells of these only who is in the sandbox's namespaces. So a small process enters them once, opens the lists
there and hands the descriptors out: they stay with the namespaces that they were opened in.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from fumehood.linux import libc
from fumehood.linux.process import interpreter

_SEGMENTS, _QUEUES, _SEMAPHORES, _SOCKETS = b"shm", b"msg", b"sem", b"net"
_NS_GET_USERNS = 0xB701
_EACH = 64  # bytes of a semaphore, and of a message besides what is in it
_KILL = 9
_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_ERROR, _DONE = 2, 3
_TCP, _UDP = 6, 17
# Attributes of an answer, by kind of socket.
_UNIX_PEER, _UNIX_QUEUE, _UNIX_MEMORY, _INET_MEMORY = 2, 4, 5, 7
_UNIX_ANSWER, _INET_ANSWER = 16, 72  # bytes before the attributes
_LISTENS, _ALL_STATES = 10, 0xFFFFFFFF
_BUDGET_S = 0.02  # spent on sockets at one look


class KernelMemory:
    """What the kernel keeps for one sandbox; `init` is its first process.

    Where nobody may enter (a bubblewrap with the set-uid bit), or no process can be started, nothing is counted.
    """

    def __init__(self, init: int) -> None:
        self._lists: dict[bytes, int] = {}
        self._walk: Iterator[int] | None = None
        self._waiting = 0  # in the sockets that this round has come to
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_awaited = False
        with theirs:
            try:
                self._network_shared = _is_ours(init, "net")
                # A namespace of users is closed to a process that has threads, so another one enters.
                self._process = subprocess.Popen(
                    interpreter(__name__, "enter", str(init)), stdin=theirs.fileno(), stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
                )  # fmt: skip
            except OSError:
                return  # what the whole machine has left is watched in any case
        self._is_awaited = True

    def look(self, sockets: AbstractSet[int]) -> None:
        """Go on counting what waits in sockets; in a network that is shared, only in those with these inodes."""
        if self._is_awaited:
            self._take()
        if self._walk is None and _SOCKETS in self._lists:
            self._walk, self._waiting = self._sizes(sockets if self._network_shared else None), 0
        until = time.monotonic() + _BUDGET_S
        for size in self._walk or ():
            self._waiting += size
            if time.monotonic() > until:
                return
        self._walk = None

    def segments(self) -> int:
        """Count System V's shared memory, mapped or not."""
        return sum(int(fields[14]) + int(fields[15]) for fields in self._listed(_SEGMENTS))

    def others(self) -> int:
        """Count what waits in sockets and in System V's queues, and its semaphores."""
        queues = sum(int(fields[3]) + int(fields[4]) * _EACH for fields in self._listed(_QUEUES))
        semaphores = sum(int(fields[3]) * _EACH for fields in self._listed(_SEMAPHORES))
        return queues + semaphores + self._waiting

    def close(self) -> None:
        """Let go of all that is held, or the namespaces would stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._channel.close()
        self._walk = None
        for fd in self._lists.values():
            os.close(fd)

    def _take(self) -> None:
        """Take the descriptors, if they have come."""
        try:
            names, descriptors, _, _ = socket.recv_fds(self._channel, 64, 4)
        except BlockingIOError:
            return
        self._is_awaited = False
        for fd in descriptors:
            os.set_inheritable(fd, False)
        # Where descriptors are short here, only the first ones come.
        self._lists = dict(zip(names.split(), descriptors, strict=False))

    def _listed(self, name: bytes) -> Iterator[list[bytes]]:
        fd = self._lists.get(name)
        if fd is None:
            return
        os.lseek(fd, 0, os.SEEK_SET)
        for line in libc.read_all(fd).splitlines()[1:]:
            yield line.split()

    def _sizes(self, wanted: AbstractSet[int] | None) -> Iterator[int]:
        """Yield what waits in each socket."""
        with socket.socket(fileno=os.dup(self._lists[_SOCKETS])) as asking:
            show = 1 << _UNIX_PEER | 1 << _UNIX_QUEUE | 1 << _UNIX_MEMORY
            request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, _ALL_STATES, 0, show, 0, 0)
            yield from (_in_unix(answer, wanted) for answer in _answers(asking, request))
            for family in (socket.AF_INET, socket.AF_INET6):
                for protocol in (_TCP, _UDP):
                    request = struct.pack("=BBBBI48x", family, protocol, 1 << _INET_MEMORY - 1, 0, _ALL_STATES)
                    yield from (_in_inet(answer, wanted) for answer in _answers(asking, request))


def _in_unix(answer: bytes, wanted: AbstractSet[int] | None) -> int:
    state, inode = struct.unpack_from("=xxBxI", answer)
    if wanted is not None and inode not in wanted:
        return 0
    attributes = _attributes(answer, _UNIX_ANSWER)
    size = _memory(attributes.get(_UNIX_MEMORY, b""))
    # What was sent is the sender's until it is read. One that is closed is not listed, and has no inode.
    is_sender_gone = not any(attributes.get(_UNIX_PEER, b""))
    if is_sender_gone and state != _LISTENS and _UNIX_QUEUE in attributes:
        size += int(struct.unpack_from("=I", attributes[_UNIX_QUEUE])[0])
    return size


def _in_inet(answer: bytes, wanted: AbstractSet[int] | None) -> int:
    if wanted is not None and struct.unpack_from("=I", answer, _INET_ANSWER - 4)[0] not in wanted:
        return 0
    return _memory(_attributes(answer, _INET_ANSWER).get(_INET_MEMORY, b""))


def _memory(numbers: bytes) -> int:
    """Add up what a socket has received and what it has sent that nobody has read."""
    if len(numbers) < 24:
        return 0
    received, _, sent, _, _, queued = struct.unpack_from("=6I", numbers)
    return int(received + max(sent, queued))


def _attributes(answer: bytes, at: int) -> dict[int, bytes]:
    attributes = {}
    while at + 4 <= len(answer):
        length, kind = struct.unpack_from("=HH", answer, at)
        attributes[kind] = answer[at + 4 : at + length]
        at += max(4, length + 3 & ~3)
    return attributes


def _answers(asking: socket.socket, request: bytes) -> Iterator[bytes]:
    """Ask the kernel for all sockets of a kind; one that it has no list of has no answers."""
    asking.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _DUMP, 0, 0) + request)
    while True:
        data, at = asking.recv(1 << 16), 0
        while at + 16 <= len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind in (_ERROR, _DONE):
                return
            yield data[at + 16 : at + length]
            at += length + 3 & ~3


def _is_ours(init: int, name: str) -> bool:
    """Return True if a process is in the same namespace as this one."""
    return os.path.samestat(os.stat(f"/proc/{init}/ns/{name}"), os.stat(f"/proc/self/ns/{name}"))


def enter(process: str) -> None:
    """Enter the namespaces of a sandbox, and hand out by descriptor 0 what there is to read there."""
    libc.prctl(libc.PR_SET_PDEATHSIG, _KILL)
    init = int(process)
    opened: dict[bytes, int] = {}
    if _is_entered(init, "net", libc.CLONE_NEWNET):
        opened[_SOCKETS] = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG).detach()
    if _is_entered(init, "ipc", libc.CLONE_NEWIPC):
        for name in (_SEGMENTS, _QUEUES, _SEMAPHORES):
            opened[name] = os.open(b"/proc/sysvipc/" + name, os.O_RDONLY)
    with socket.socket(fileno=0) as outside:
        socket.send_fds(outside, [b" ".join(opened) or b" "], list(opened.values()))
    os._exit(0)


def _is_entered(init: int, name: str, kind: int) -> bool:
    """Enter one namespace; tell whether this process is in it now.

    That takes the rights of the namespace of users that it belongs to. Who has those has them in all below it too, so
    that the outermost comes first: the network's, which may be the launcher's own.
    """
    try:
        if _is_ours(init, name):
            return True
        space = os.open(f"/proc/{init}/ns/{name}", os.O_RDONLY)
        owner = fcntl.ioctl(space, _NS_GET_USERNS)
        if not os.path.samestat(os.fstat(owner), os.stat("/proc/self/ns/user")):
            libc.setns(owner, libc.CLONE_NEWUSER)
        libc.setns(space, kind)
    except OSError:
        return False
    return True
