"""Count the memory of a sandbox that belongs to none of its processes: objects of System V, and data in sockets.

The kernel shows its lists of these only inside the namespaces of the sandbox. So a small process enters them once,
opens the lists there and sends the descriptors out: they stay with the namespaces in which they were opened.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time

from fumehood.linux import libc
from fumehood.linux.usage import READ_BUDGET_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

_SEGMENTS, _QUEUES, _SEMAPHORES, _SOCKETS = b"shm", b"msg", b"sem", b"net"  # names of the lists
_NS_GET_USERNS = 0xB701
_OBJECT_BYTES = 64  # of a semaphore, and of a message besides its text
_KILL = 9
_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_ERROR, _DONE = 2, 3
_TCP, _UDP = 6, 17
# Attributes of an answer, by kind of socket.
_UNIX_PEER, _UNIX_QUEUE, _UNIX_MEMORY, _INET_MEMORY = 2, 4, 5, 7
_UNIX_ANSWER, _INET_ANSWER = 16, 72  # bytes before the attributes
_LISTENS, _ALL_STATES = 10, 0xFFFFFFFF


class KernelMemory:
    """The kernel's memory of one sandbox; `init` is its first process.

    Nothing is counted if the namespaces can't be entered (a bubblewrap with the set-uid bit), or if no process can be
    started.
    """

    def __init__(self, init: int) -> None:
        import subprocess  # not at the top: the process that runs `send_lists` needs neither of these

        from fumehood.linux.process import interpreter_command

        command = interpreter_command(__name__, "send_lists", str(init))
        self._lists: dict[bytes, int] = {}  # descriptors, by name
        self._remaining: Iterator[int] | None = None
        self._socket_bytes = 0  # that wait in the sockets which this round has come to
        self._channel, process_end = socket.socketpair()
        self._channel.setblocking(False)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_expecting_lists = False
        with process_end:
            try:
                self._is_network_shared = _is_in_namespace(init, "net")
                # A process with threads can't enter a user namespace, so another process does.
                self._process = subprocess.Popen(
                    command, stdin=process_end.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    cwd="/", start_new_session=True,
                )  # fmt: skip
            except OSError:
                return  # the warden watches what the whole machine has left in any case
        self._is_expecting_lists = True

    def read_more(self, sockets: AbstractSet[int]) -> None:
        """Go on counting data in sockets; if the network is shared, only in the sockets with these inodes."""
        if self._is_expecting_lists:
            self._receive_lists()
        if self._remaining is None and _SOCKETS in self._lists:
            self._remaining, self._socket_bytes = self._socket_sizes(sockets if self._is_network_shared else None), 0
        deadline = time.monotonic() + READ_BUDGET_S
        for size in self._remaining or ():
            self._socket_bytes += size
            if time.monotonic() > deadline:
                return
        self._remaining = None

    def segment_bytes(self) -> int:
        """Count System V's shared memory, mapped or not."""
        return sum(int(fields[14]) + int(fields[15]) for fields in self._rows(_SEGMENTS))

    def other_bytes(self) -> int:
        """Count data in sockets and in System V's queues, and its semaphores."""
        queues = sum(int(fields[3]) + int(fields[4]) * _OBJECT_BYTES for fields in self._rows(_QUEUES))
        semaphores = sum(int(fields[3]) * _OBJECT_BYTES for fields in self._rows(_SEMAPHORES))
        return queues + semaphores + self._socket_bytes

    def close(self) -> None:
        """Close everything that is open, or the namespaces would stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._channel.close()
        self._remaining = None
        for fd in self._lists.values():
            os.close(fd)

    def _receive_lists(self) -> None:
        try:
            names, descriptors, _, _ = socket.recv_fds(self._channel, 64, 4)
        except BlockingIOError:
            return
        self._is_expecting_lists = False
        for fd in descriptors:
            os.set_inheritable(fd, False)
        # If this process has too many files open, only the first ones come.
        self._lists = dict(zip(names.split(), descriptors, strict=False))

    def _rows(self, name: bytes) -> Iterator[list[bytes]]:
        fd = self._lists.get(name)
        if fd is None:
            return
        os.lseek(fd, 0, os.SEEK_SET)
        for line in libc.read_all(fd).splitlines()[1:]:
            yield line.split()

    def _socket_sizes(self, inodes: AbstractSet[int] | None) -> Iterator[int]:
        """Yield the bytes that wait in each socket: of those with these inodes, or of all if None."""
        with socket.socket(fileno=os.dup(self._lists[_SOCKETS])) as netlink:
            attributes = 1 << _UNIX_PEER | 1 << _UNIX_QUEUE | 1 << _UNIX_MEMORY
            request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, _ALL_STATES, 0, attributes, 0, 0)
            yield from (_unix_size(answer, inodes) for answer in _answers(netlink, request))
            for family in (socket.AF_INET, socket.AF_INET6):
                for protocol in (_TCP, _UDP):
                    request = struct.pack("=BBBBI48x", family, protocol, 1 << _INET_MEMORY - 1, 0, _ALL_STATES)
                    yield from (_inet_size(answer, inodes) for answer in _answers(netlink, request))


def _unix_size(answer: bytes, inodes: AbstractSet[int] | None) -> int:
    state, inode = struct.unpack_from("=xxBxI", answer)
    if inodes is not None and inode not in inodes:
        return 0
    attributes = _attributes(answer, _UNIX_ANSWER)
    size = _waiting_bytes(attributes.get(_UNIX_MEMORY, b""))
    # Sent data counts for the sender until it is read. A closed sender is not listed, and has no inode.
    is_sender_gone = not any(attributes.get(_UNIX_PEER, b""))
    if is_sender_gone and state != _LISTENS and _UNIX_QUEUE in attributes:
        size += int(struct.unpack_from("=I", attributes[_UNIX_QUEUE])[0])
    return size


def _inet_size(answer: bytes, inodes: AbstractSet[int] | None) -> int:
    if inodes is not None and struct.unpack_from("=I", answer, _INET_ANSWER - 4)[0] not in inodes:
        return 0
    return _waiting_bytes(_attributes(answer, _INET_ANSWER).get(_INET_MEMORY, b""))


def _waiting_bytes(numbers: bytes) -> int:
    """Add up what a socket has received and what it has sent, as far as nobody has read it."""
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


def _answers(netlink: socket.socket, request: bytes) -> Iterator[bytes]:
    """Ask the kernel for all sockets of a kind; a kind that it has no list of has no answers."""
    netlink.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _DUMP, 0, 0) + request)
    while True:
        data, at = netlink.recv(1 << 16), 0
        while at + 16 <= len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind in (_ERROR, _DONE):
                return
            yield data[at + 16 : at + length]
            at += length + 3 & ~3


def send_lists(init_number: str) -> None:
    """Enter the namespaces of a sandbox, and send out by descriptor 0 the lists that are there (in its own process)."""
    libc.prctl(libc.PR_SET_PDEATHSIG, _KILL)
    init = int(init_number)
    lists: dict[bytes, int] = {}
    if _can_enter(init, "net", libc.CLONE_NEWNET):
        lists[_SOCKETS] = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG).detach()
    if _can_enter(init, "ipc", libc.CLONE_NEWIPC):
        for name in (_SEGMENTS, _QUEUES, _SEMAPHORES):
            lists[name] = os.open(b"/proc/sysvipc/" + name, os.O_RDONLY)
    with socket.socket(fileno=0) as channel:
        socket.send_fds(channel, [b" ".join(lists) or b" "], list(lists.values()))
    os._exit(0)


def _can_enter(init: int, name: str, kind: int) -> bool:
    """Enter one namespace; return True if this process is in it now.

    That takes the rights of the user namespace that it belongs to. A process with those rights has them in all user
    namespaces below too. So the outermost comes first: the network's, which may be the launcher's own.
    """
    try:
        if _is_in_namespace(init, name):
            return True
        namespace = os.open(f"/proc/{init}/ns/{name}", os.O_RDONLY)
        user_namespace = fcntl.ioctl(namespace, _NS_GET_USERNS)
        if not os.path.samestat(os.fstat(user_namespace), os.stat("/proc/self/ns/user")):
            libc.setns(user_namespace, libc.CLONE_NEWUSER)
        libc.setns(namespace, kind)
    except OSError:
        return False
    return True


def _is_in_namespace(init: int, name: str) -> bool:
    """Return True if this process is in the same namespace of this name as `init`."""
    return os.path.samestat(os.stat(f"/proc/{init}/ns/{name}"), os.stat(f"/proc/self/ns/{name}"))
