"""One loopback for the commands of a session, and how a person reaches it from this machine.

A command that starts while another one runs joins its network namespace. Nothing else keeps the namespace: it exists as
long as a command of the session runs. When none runs, nothing listens there, and the next command gets a new one.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` is made of, without the enums around it
import _socket
import os
import socket

from fumehood.errors import Unavailable
from fumehood.linux import libc
from fumehood.linux.launch import JOIN, MAKE, receive_descriptors
from fumehood.linux.libc import Closing
from fumehood.linux.lock import lock_directory
from fumehood.linux.namespaces import join_network
from fumehood.linux.probe import host
from fumehood.proxy.relay import carry
from fumehood.service.layers import INIT, is_process_alive
from fumehood.store.places import Places, make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from fumehood.linux.launch import Plan, Starter, Streams
    from fumehood.linux.process import Running
    from fumehood.proxy.neighbours import Neighbours
    from fumehood.service.network import NetworkAccess
    from fumehood.service.store import Store


_MARK = ".network"  # suffix of a file in the session's directory: where a run's process has the network open
_NAMES = ".names"  # suffix of a network's file with the names that its commands have looked up
_REPORTED = "network.told"
_MOST_DESCRIPTORS = 250  # descriptors that one message can carry
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class Loopback:
    """One run's part in the loopback of its session."""

    def __init__(self, places: Places, session: str, run: str) -> None:
        self._places = places
        self._session_directory = places.session(session)
        self._run = run
        self._network = -1
        self.why_alone = ""  # why this run does not share the loopback

    def launch(self, start: Starter, plan: Plan, streams: Streams, access: NetworkAccess | None) -> Running:
        """Launch a sandbox in the network of a running command of the session, or in a new one.

        Its proxy, if it has one, shares the listeners of the other proxies there.
        """
        if not os.path.isdir(self._session_directory):
            make_private(self._session_directory)
        # Two commands that begin at once must get the same network: the second waits until the first has made it.
        with lock_directory(self._session_directory) as locked_directory:
            if self._network < 0:
                self._network = _open_network(self._places, locked_directory.file, plan.groups)
            is_new = self._network < 0
            if is_new and any(name.endswith(_MARK) for name in os.listdir(locked_directory.file)):
                self.why_alone = "another command runs in a network that this one can't enter"
            plan = plan.replace(loopback=MAKE if is_new else JOIN)
            if access is not None and not is_new:
                access.join(self._neighbours)
                plan = access.without_served(plan)
            ours, theirs = _socket.socketpair()
            try:
                running = start(plan, (*streams, theirs.fileno(), *(() if is_new else (self._network,))))
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            received: list[int] = []
            if is_new or plan.listen or plan.resolvers:
                # Nothing arrives if the launch failed: the thread that attends the sandbox learns why.
                _, received = receive_descriptors(ours, 1, _MOST_DESCRIPTORS)
            ours.close()
            if is_new and received:
                self._network = received.pop(0)
            if self._network >= 0:
                numbers = (os.getpid(), self._network, os.fstat(self._network).st_ino, *plan.groups)
                with Closing(os.open(f"{self._run}{_MARK}", _WRITE_FLAGS, 0o600, dir_fd=locked_directory.file)) as mark:
                    os.write(mark, " ".join(map(str, numbers)).encode())
                if access is not None:
                    access.join(self._neighbours)
                    access.serve(received)
        return running

    def _neighbours(self) -> Neighbours:
        from fumehood.proxy.neighbours import Neighbours

        number = os.fstat(self._network).st_ino
        return Neighbours(self._session_directory, number, self._run, lambda run: self._places.layer(run, 0, INIT))

    def leave(self) -> None:
        """Leave the network, after the command has ended."""
        if self._network < 0:
            return
        with lock_directory(self._session_directory) as locked_directory:
            names = set(os.listdir(locked_directory.file))
            # Of a run that is run again, the file may be gone: another process may have taken the run for dead.
            own_names = {f"{self._run}{_MARK}"} & names
            is_last = not any(name.endswith(_MARK) for name in names - own_names)
            for name in own_names | {name for name in names if is_last and name.endswith(_NAMES)}:
                os.unlink(name, dir_fd=locked_directory.file)
        os.close(self._network)
        self._network = -1

    def reason_to_report(self) -> str:
        """Return why the command has a loopback of its own, if the session was not told so before; else ""."""
        mark = f"{self._session_directory}/{_REPORTED}"
        if not self.why_alone or os.path.exists(mark):
            return ""
        os.close(os.open(mark, _WRITE_FLAGS, 0o600))
        return self.why_alone


def open_running_network(places: Places, session: str) -> int:
    """Return a descriptor of the network of the session's running commands, or -1 if none runs."""
    try:
        locked_directory = lock_directory(places.session(session))
    except FileNotFoundError:
        return -1
    with locked_directory:
        return _open_network(places, locked_directory.file)


def _open_network(places: Places, locked_directory: int, groups: tuple[int, ...] = ()) -> int:
    """Return a descriptor of a running command's network, or -1; its user namespace must map the groups."""
    for name in os.listdir(locked_directory):
        if not name.endswith(_MARK):
            continue
        if not is_process_alive(places, name.removesuffix(_MARK)):
            os.unlink(name, dir_fd=locked_directory)
            continue
        with Closing(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=locked_directory)) as mark:
            numbers = [int(word) for word in os.read(mark, 4096).split()]
        if len(numbers) < 3:  # not written completely: the disk is full
            continue
        process, descriptor, number, *mapped_groups = numbers
        path = f"/proc/{process}/fd/{descriptor}"
        try:
            # The number of a process in another container means another process here.
            if not {*groups}.issubset(mapped_groups) or os.readlink(path) != f"net:[{number}]":
                continue
            network = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # it has just ended, or can't be seen from here
        if os.fstat(network).st_ino == number:
            return network
        os.close(network)
    return -1


_PATIENCE_S = 30.0
_KILL = 9


def serve(store: Store, session: str, port: int, listener: socket.socket, tell: Callable[[str], object]) -> NoReturn:
    """Pass each connection on to a port of a session, for ever; from a process of one thread.

    Each connection gets a process of its own: a socket belongs to the network in which it was made, and only a whole
    process can enter a user namespace.
    """
    this_host = host(store.places.cache, store.places.state)
    if not this_host.makes_namespaces:
        raise Unavailable(
            "the network of a session can't be entered here: only bubblewrap may make user namespaces",
            hint="fumehood doctor says why",
        )
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # nobody waits for the child processes
    while True:
        client, _ = listener.accept()
        parent = os.getpid()
        if os.fork():
            client.close()
            continue
        try:
            libc.end_with_parent(parent, _KILL)
            listener.close()
            network = open_running_network(store.places, session)
            if network < 0:
                tell(f"no command of session {session} runs now")
            else:
                join_network(network, privileged=this_host.privileged)
                _connect(client, port, tell)
        finally:
            os._exit(0)


def _connect(client: socket.socket, port: int, tell: Callable[[str], object]) -> None:
    try:
        # Either of its addresses, as a browser would.
        server = socket.create_connection(("localhost", port), _PATIENCE_S)
    except OSError as error:
        tell(f"port {port} of the session: {error.strerror}")
        return
    carry(client, server)
