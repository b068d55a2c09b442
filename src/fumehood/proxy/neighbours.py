"""Proxies in one session share its loopback; each serves its own command only.

Two proxies can't listen at the same port, so they share their listeners. The proxy that accepts a connection finds out
which run's process made it, and hands it to that run's proxy. A connection of a command without a proxy is refused. So
each command leaves the session by its own permissions, whoever else is in it.

A connection belongs to the sandbox whose process has its other end open.
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
from fumehood.linux.processes import Processes, SandboxNotReady, open_descriptors

Endpoint = tuple[str, int]  # an address or a host, and a port

# States of a client's socket that is connected, or has sent everything; not of one that is about to connect.
_CONNECTED = frozenset({b"01", b"04", b"05", b"08"})
_CLOSED = 7
_MAPPED = (bytes(4), bytes(4), b"\0\0\xff\xff")  # what precedes an IPv4 address in an IPv6 one


def other_end(process: int, connection: socket.socket) -> int:
    """Return the inode of the socket at the other end of a connection, or 0; it is looked for in a process's network.

    No other socket can have the same address and port as long as our end is connected. We check that afterwards, so
    that a client that came later is not taken for one that has gone.
    """
    client_forms, our_forms = (
        _kernel_forms(*address[:2]) for address in (connection.getpeername(), connection.getsockname())
    )
    inode = 0
    for local, remote, state, number in _socket_table(process, "tcp"):
        if local in client_forms and remote in our_forms and state in _CONNECTED:
            inode = number
            break
    is_closed = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED
    return 0 if is_closed else inode


def sending_end(process: int, port: int) -> int:
    """Return the inode of a socket that sends datagrams from this port in a process's network, or 0."""
    ending = b":%04X" % port
    return next((inode for local, _, _, inode in _socket_table(process, "udp") if local.endswith(ending)), 0)


def _socket_table(process: int, protocol: str) -> Iterator[tuple[bytes, bytes, bytes, int]]:
    """Yield the local and the remote end, the state and the inode of each socket in a process's network."""
    for table in (protocol, f"{protocol}6"):
        for row in read(f"/proc/{process}/net/{table}").splitlines()[1:]:
            fields = row.split(None, 10)
            yield fields[1], fields[2], fields[3], int(fields[9])


def _kernel_forms(address: str, port: int) -> tuple[bytes, ...]:
    """Return how the kernel may list an address and a port; an IPv6 socket may have an IPv4 address too."""
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address)
        forms = [[packed[at : at + 4] for at in range(0, 16, 4)]]
    else:
        packed = socket.inet_aton(address)
        forms = [[packed], [*_MAPPED, packed]]
    return tuple(b"%s:%04X" % (kernel_form(*form).encode(), port) for form in forms)


_PROXY_SUFFIX = ".proxy"  # of a proxy's socket in the session's directory; before it, the run and the network's number
_NAMES_SUFFIX = ".names"  # of the file of names; before it, the network's number
_LEND, _HAND_OVER = b"l", b"c"  # messages: lend me your listeners, and: this connection is yours
_MOST_DESCRIPTORS = 250  # that one message can carry
_TIMEOUT_S = 5.0
_ATTEMPTS = 3  # to find a socket's process: the socket may be on its way from one process to another


def _have_open(processes: Processes, target: str) -> bool:
    """Return True if a process has this open; a thread may have descriptors of its own."""
    for directory in processes.directories():
        try:
            tasks = [f"{directory}/task/{name}" for name in os.listdir(f"{directory}/task")]
        except OSError:
            continue  # it has just ended
        if any(leads_to == target for task in tasks for _, leads_to in open_descriptors(task)):
            return True
    return False


class Neighbours:
    """The other proxies in one network of a session, as one proxy sees them. The network has a number.

    `session_directory` has a socket for each proxy. `init_file` returns, for a run, the path of the file that says
    which process is the first one in its sandbox.
    """

    def __init__(self, session_directory: str, network: int, run: str, init_file: Callable[[str], str]) -> None:
        self._directory = os.open(session_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._suffix = f".{network}{_PROXY_SUFFIX}"
        self.run = run
        self._init_file = init_file
        self._lock = threading.Lock()
        self._sandboxes: dict[str, tuple[int, Processes]] = {}
        self._is_closed = False
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.setblocking(False)
        self._inbox.bind(self._path(run))
        names_file = f"{network}{_NAMES_SUFFIX}"
        self.names = os.open(names_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=self._directory)

    def _path(self, run: str) -> str:
        # By the descriptor: the whole path may be longer than a socket's address may be.
        return f"/proc/self/fd/{self._directory}/{run}{self._suffix}"

    def _other_runs(self) -> list[str]:
        with Closing(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._directory)) as listing:
            runs = [name.removesuffix(self._suffix) for name in os.listdir(listing) if name.endswith(self._suffix)]
        return [run for run in runs if run != self.run]

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._inbox.fileno()

    def borrow_listeners(self) -> list[socket.socket]:
        """Return the listeners of the others. The caller has the session's lock, so nobody comes or goes meanwhile."""
        listeners: dict[tuple[int, Endpoint], socket.socket] = {}
        for run in self._other_runs():
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    if not self._send(run, _LEND, theirs.fileno()):
                        continue
                ours.settimeout(_TIMEOUT_S)
                try:
                    descriptors = socket.recv_fds(ours, 1, _MOST_DESCRIPTORS)[1]
                except TimeoutError:
                    continue  # that process was stopped; where it listens, we can't
                for listener in [socket.socket(fileno=fd) for fd in descriptors]:
                    if listeners.setdefault((listener.type, listener.getsockname()[:2]), listener) is not listener:
                        listener.close()  # another proxy has lent it already
        return list(listeners.values())

    def receive(self, listeners: Sequence[socket.socket]) -> socket.socket | None:
        """Read a message of another proxy: lend it our listeners, or return a connection that it hands over to us."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._inbox, 1, 1)
        except BlockingIOError:
            return None
        if not descriptors:
            return None  # this process can't have more of them
        received = socket.socket(fileno=descriptors[0])
        if message == _HAND_OVER:
            return received
        with received, contextlib.suppress(OSError):  # it waits no longer
            socket.send_fds(received, [b"!"], [each.fileno() for each in listeners])
        return None

    def hand_over(self, connection: socket.socket, run: str) -> None:
        """Give a connection to the proxy of the run that made it, unless that proxy has ended."""
        self._send(run, _HAND_OVER, connection.fileno())

    def _send(self, run: str, message: bytes, descriptor: int) -> bool:
        """Send a message to a run's proxy; return False if it can't be reached."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_TIMEOUT_S)
            try:
                sender.connect(self._path(run))
                socket.send_fds(sender, [message], [descriptor])
            except ConnectionRefusedError:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{run}{self._suffix}", dir_fd=self._directory)  # its process was killed
                return False
            except (FileNotFoundError, TimeoutError):
                return False
        return True

    def run_that_connected(self, connection: socket.socket) -> str:
        """Return the run whose command made a connection, or "" if no run with a proxy did."""
        return self._run_with_socket(lambda process: other_end(process, connection))

    def run_asking_from(self, port: int) -> str:
        """Return the run whose command sends queries for names from this port, or "" if no run with a proxy does."""
        return self._run_with_socket(lambda process: sending_end(process, port))

    def _run_with_socket(self, find_inode: Callable[[int], int]) -> str:
        with self._lock:
            for _ in range(0 if self._is_closed else _ATTEMPTS):
                inode = 0
                for run in (self.run, *self._other_runs()):
                    sandbox = self._sandbox(run)
                    if sandbox is None:
                        continue
                    process, processes = sandbox
                    inode = inode or find_inode(process)
                    if inode and _have_open(processes, f"socket:[{inode}]"):
                        return run
                if not inode:
                    break  # the client has closed it
        return ""

    def _sandbox(self, run: str) -> tuple[int, Processes] | None:
        """Return the number of a sandbox's first process, and all its processes; None if it has not begun."""
        # Kept open after the first time: when a process has ended, another process may get its number.
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
        """Take no more messages. Connections that were accepted can still be handed over."""
        os.unlink(f"{self.run}{self._suffix}", dir_fd=self._directory)
        self._inbox.close()

    def close(self) -> None:
        """Let go of the session's directory and of the sandboxes."""
        with self._lock:
            self._is_closed = True
            for _, processes in self._sandboxes.values():
                processes.close()
            os.close(self.names)
            os.close(self._directory)
