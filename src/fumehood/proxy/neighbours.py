"""The proxies of one session, which share its loopback: each serves its own command, and nobody else's.

They share their listeners, because two can't listen at the same port. Whoever accepts a connection looks whose process
made it, and hands it to that command's proxy; what was made by a command without one is refused. So a command gets by
its own permissions out of the session, whoever else is in it.

Whose connection this is: the process of a sandbox that has the other end of it open.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

from fumehood.linux.libc import Closing, read
from fumehood.linux.namespaces import kernel_form
from fumehood.linux.process import find_init
from fumehood.linux.usage import Processes, SandboxNotReady

Place = tuple[str, int]

# Of a client that is connected, or has sent all it will: not of one that is about to connect.
_CONNECTED = frozenset({b"01", b"04", b"05", b"08"})
_CLOSED = 7
_MAPPED = (bytes(4), bytes(4), b"\0\0\xff\xff")


def other_end(process: int, connection: socket.socket) -> int:
    """Return the inode of the socket at the other end of a connection, in the network of a process; 0 is none.

    As long as this end is connected, nothing else can have that address and port: asked for afterwards, so that a
    client that has gone is not taken for one that came after it.
    """
    local, remote = (_names(*address[:2]) for address in (connection.getpeername(), connection.getsockname()))
    rows = _rows(process, "tcp")
    inode = next((row[3] for row in rows if row[0] in local and row[1] in remote and row[2] in _CONNECTED), 0)
    is_closed = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED
    return 0 if is_closed else inode


def asking_end(process: int, port: int) -> int:
    """Return the inode of a socket from which datagrams are sent by this port, in the network of a process."""
    ending = b":%04X" % port
    return next((number for here, _, _, number in _rows(process, "udp") if here.endswith(ending)), 0)


def _rows(process: int, protocol: str) -> Iterator[tuple[bytes, bytes, bytes, int]]:
    for table in (protocol, f"{protocol}6"):
        for row in read(f"/proc/{process}/net/{table}").splitlines()[1:]:
            fields = row.split(None, 10)
            yield fields[1], fields[2], fields[3], int(fields[9])


def _names(address: str, port: int) -> tuple[bytes, ...]:
    """Write an address and a port as the kernel lists them; an IPv6 socket may have an IPv4 address too."""
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address)
        forms = [[packed[at : at + 4] for at in range(0, 16, 4)]]
    else:
        packed = socket.inet_aton(address)
        forms = [[packed], [*_MAPPED, packed]]
    return tuple(b"%s:%04X" % (kernel_form(*form).encode(), port) for form in forms)


_ADDRESS = ".proxy"  # after the name of a run, in its session's directory: where its proxy is spoken to
_NAMES = ".names"  # after the number of the network
_LEND, _YOURS = b"l", b"c"
_MOST = 250  # descriptors that one message can carry
_PATIENCE_S = 5.0
_LOOKS = 3  # a socket may be on its way from one process to another


class Neighbours:
    """One proxy among those of a session that are in the same network, which has a number.

    `room` is the session's directory. `init_file` tells of a run where its first process is written down.
    """

    def __init__(self, room: str, network: int, run: str, init_file: Callable[[str], str]) -> None:
        self._room = os.open(room, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._ending = f".{network}{_ADDRESS}"
        self.run = run
        self._init_file = init_file
        self._lock = threading.Lock()
        self._sandboxes: dict[str, tuple[int, Processes]] = {}
        self._is_closed = False
        self._own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._own.setblocking(False)
        self._own.bind(self._path(run))
        self.names = os.open(f"{network}{_NAMES}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=self._room)

    def _path(self, run: str) -> str:
        return f"/proc/self/fd/{self._room}/{run}{self._ending}"  # a whole path may be longer than the kernel takes

    def _others(self) -> list[str]:
        with Closing(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._room)) as listing:
            names = [name for name in os.listdir(listing) if name.endswith(self._ending)]
        return [run for name in names if (run := name.removesuffix(self._ending)) != self.run]

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._own.fileno()

    def borrowed(self) -> list[socket.socket]:
        """Return what the others listen with; nobody may begin or end meanwhile."""
        sockets: dict[tuple[int, Place], socket.socket] = {}
        for run in self._others():
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    if not self._send(run, _LEND, theirs.fileno()):
                        continue
                ours.settimeout(_PATIENCE_S)
                try:
                    descriptors = socket.recv_fds(ours, 1, _MOST)[1]
                except TimeoutError:
                    continue  # it was stopped; where it listens, we can't
                for each in [socket.socket(fileno=fd) for fd in descriptors]:
                    if sockets.setdefault((each.type, each.getsockname()[:2]), each) is not each:
                        each.close()  # of several we have it by now
        return list(sockets.values())

    def hear(self, listeners: Sequence[socket.socket]) -> socket.socket | None:
        """Take in what another proxy says: it wants to listen too, or has a connection that is ours."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._own, 1, 1)
        except BlockingIOError:
            return None
        if not descriptors:
            return None  # we are out of them
        received = socket.socket(fileno=descriptors[0])
        if message == _YOURS:
            return received
        with received, contextlib.suppress(OSError):  # it has not waited
            socket.send_fds(received, [b"!"], [each.fileno() for each in listeners])
        return None

    def hand_over(self, connection: socket.socket, run: str) -> None:
        """Give a connection to the proxy of the command that made it, unless that is gone."""
        self._send(run, _YOURS, connection.fileno())

    def _send(self, run: str, message: bytes, descriptor: int) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.settimeout(_PATIENCE_S)
            try:
                sending.connect(self._path(run))
                socket.send_fds(sending, [message], [descriptor])
            except ConnectionRefusedError:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{run}{self._ending}", dir_fd=self._room)  # of a process that died
                return False
            except (FileNotFoundError, TimeoutError):
                return False
        return True

    def maker(self, connection: socket.socket) -> str:
        """Return the run whose command made a connection, if it is one with a proxy."""
        return self._whose(lambda process: other_end(process, connection))

    def asker(self, port: int) -> str:
        """Return the run whose command asks for a name from this port, if it is one with a proxy."""
        return self._whose(lambda process: asking_end(process, port))

    def _whose(self, find: Callable[[int], int]) -> str:
        with self._lock:
            for _ in range(0 if self._is_closed else _LOOKS):
                inode = 0
                for run in (self.run, *self._others()):
                    sandbox = self._sandbox(run)
                    if sandbox is None:
                        continue
                    process, processes = sandbox
                    inode = inode or find(process)
                    if inode and processes.have_open(f"socket:[{inode}]"):
                        return run
                if not inode:
                    break  # whoever it was has closed it
        return ""

    def _sandbox(self, run: str) -> tuple[int, Processes] | None:
        # Kept open from the first time on: the number of a process that has ended may be given to another one.
        if run not in self._sandboxes:
            init = find_init(self._init_file(run))
            if init is None:
                return None
            try:
                self._sandboxes[run] = init, Processes(init)
            except SandboxNotReady:
                return None
        return self._sandboxes[run]

    def withdraw(self) -> None:
        """Be spoken to no more; what was accepted can still be handed over."""
        os.unlink(f"{self.run}{self._ending}", dir_fd=self._room)
        self._own.close()

    def close(self) -> None:
        """Know nothing of the others any more."""
        with self._lock:
            self._is_closed = True
            for _, processes in self._sandboxes.values():
                processes.close()
            os.close(self.names)
            os.close(self._room)
