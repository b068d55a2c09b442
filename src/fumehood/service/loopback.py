"""One loopback for the commands of a session, and how a person reaches it from this machine's own.

Whoever starts next to another command joins its network namespace. Nobody keeps it: it is there as long as a command of
the session runs. When none does, nothing listens there, and the next one may as well have a new one.
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


_MARK = ".network"  # after the name of a run, in its session's directory: where its process has the network open
_NAMES = ".names"  # after the number of a network: the names that its commands have asked for
_TOLD = "network.told"
_MOST = 250  # descriptors that one message can carry
_WRITTEN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class Loopback:
    """One run's part in the loopback of its session."""

    def __init__(self, places: Places, session: str, run: str) -> None:
        self._places = places
        self._room = places.session(session)
        self._run = run
        self._network = -1
        self.why_alone = ""  # why this run has a loopback of its own

    def launch(self, start: Starter, plan: Plan, streams: Streams, access: NetworkAccess | None) -> Running:
        """Start a sandbox in the session's network: in that of a command that runs, or in a new one.

        Its proxy, if it has one, shares the listeners of those that are there.
        """
        if not os.path.isdir(self._room):
            make_private(self._room)
        # Two that begin at once must end up in the same one, so the second waits until the first has made it.
        with lock_directory(self._room) as room:
            if self._network < 0:
                self._network = _network(self._places, room.file, plan.groups)
            is_new = self._network < 0
            if is_new and any(name.endswith(_MARK) for name in os.listdir(room.file)):
                self.why_alone = "another command runs in a network that this one can't enter"
            plan = plan.replace(loopback=MAKE if is_new else JOIN)
            if access is not None and not is_new:
                access.join(self._neighbours)
                plan = access.unheld(plan)
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
                # Nothing comes where it went wrong: whoever attends the sandbox is told why.
                _, received = receive_descriptors(ours, 1, _MOST)
            ours.close()
            if is_new and received:
                self._network = received.pop(0)
            if self._network >= 0:
                numbers = (os.getpid(), self._network, os.fstat(self._network).st_ino, *plan.groups)
                with Closing(os.open(f"{self._run}{_MARK}", _WRITTEN, 0o600, dir_fd=room.file)) as mark:
                    os.write(mark, " ".join(map(str, numbers)).encode())
                if access is not None:
                    access.join(self._neighbours)
                    access.serve(received)
        return running

    def _neighbours(self) -> Neighbours:
        from fumehood.proxy.neighbours import Neighbours

        number = os.fstat(self._network).st_ino
        return Neighbours(self._room, number, self._run, lambda run: self._places.layer(run, 0, INIT))

    def leave(self) -> None:
        """The command has ended: let go of the network."""
        if self._network < 0:
            return
        with lock_directory(self._room) as room:
            names = set(os.listdir(room.file))
            # Of a run that is to be run again nothing is left: another may have taken it for dead.
            mine = {f"{self._run}{_MARK}"} & names
            is_last = not any(name.endswith(_MARK) for name in names - mine)
            for name in mine | {name for name in names if is_last and name.endswith(_NAMES)}:
                os.unlink(name, dir_fd=room.file)
        os.close(self._network)
        self._network = -1

    def to_tell(self) -> str:
        """Return why the command has a loopback of its own, once in a session."""
        mark = f"{self._room}/{_TOLD}"
        if not self.why_alone or os.path.exists(mark):
            return ""
        os.close(os.open(mark, _WRITTEN, 0o600))
        return self.why_alone


def network_now(places: Places, session: str) -> int:
    """Return a descriptor of the network of a session's commands that run now, or -1 where none does."""
    try:
        room = lock_directory(places.session(session))
    except FileNotFoundError:
        return -1
    with room:
        return _network(places, room.file)


def _network(places: Places, room: int, groups: tuple[int, ...] = ()) -> int:
    """Return a descriptor of the network of a command that runs, and whose user namespace knows some groups, or -1."""
    for name in os.listdir(room):
        if not name.endswith(_MARK):
            continue
        if not is_process_alive(places, name.removesuffix(_MARK)):
            os.unlink(name, dir_fd=room)
            continue
        with Closing(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=room)) as mark:
            numbers = [int(word) for word in os.read(mark, 4096).split()]
        if len(numbers) < 3:  # its disk is full
            continue
        process, descriptor, number, *has = numbers
        path = f"/proc/{process}/fd/{descriptor}"
        try:
            # Of a process in another container, the number means something else here.
            if not {*groups}.issubset(has) or os.readlink(path) != f"net:[{number}]":
                continue
            network = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # it has just ended, or is out of sight
        if os.fstat(network).st_ino == number:
            return network
        os.close(network)
    return -1


_PATIENCE_S = 30.0
_KILL = 9


def serve(store: Store, session: str, port: int, listener: socket.socket, tell: Callable[[str], object]) -> NoReturn:
    """Pass each connection to a port of a session, for ever; from a process of one thread.

    Each has a process of its own: a socket belongs to the network it was made in, and only a process as a whole can
    enter a user namespace.
    """
    here = host(store.places.cache, store.places.state)
    if not here.makes_namespaces:
        raise Unavailable(
            "the network of a session can't be entered here: only bubblewrap may make user namespaces",
            hint="fumehood doctor says why",
        )
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # nobody asks what became of one
    while True:
        client, _ = listener.accept()
        this = os.getpid()
        if os.fork():
            client.close()
            continue
        try:
            libc.end_with(this, _KILL)
            listener.close()
            network = network_now(store.places, session)
            if network < 0:
                tell(f"no command of session {session} runs now")
            else:
                join_network(network, privileged=here.privileged)
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
