"""One command's way to the network: its proxy while it runs, and the question afterwards what it needed."""

from __future__ import annotations

import os
import socket
import threading
import time

from fumehood.core import network as n
from fumehood.core.connection import wanted
from fumehood.core.proxied import shared, variables
from fumehood.core.report import Blocked
from fumehood.errors import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fumehood.core.connection import Connection
    from fumehood.core.network import Network
    from fumehood.linux.launch import Plan, Starter
    from fumehood.linux.output import Sink
    from fumehood.linux.process import Running
    from fumehood.proxy.server import Proxy
    from fumehood.service.input import Input
    from fumehood.service.world import World

# After the last new host, a command that will run again has had its time: some try for minutes when refused.
_QUIET_S = 2.0
_MOST_BLOCKED = 20


class Access:
    """The network of one try of a command; `may_ask` says whether somebody can be asked for more."""

    def __init__(
        self, network: Network, *, may_ask: bool = False, given: Input | None = None, resolvers: tuple[str, ...] = ()
    ) -> None:
        self.network = network
        self.resolvers = resolvers if network.is_proxied else ()
        self._input = given
        self.connections: tuple[Connection, ...] = ()
        self._proxy: Proxy | None = None
        self._listen: tuple[tuple[str, int], ...] = ()
        self._will_ask = network.watched and may_ask
        self._refused_at = 0.0
        self.ended_it = False  # because nothing of this try will be left
        self._lock = threading.Lock()
        if network.is_proxied:
            from fumehood.proxy.server import Proxy

            inside = n.forwards(network.hosts)
            direct = n.direct_ports(network.hosts, inside) if resolvers else ()
            self._listen = (
                ("127.0.0.1", n.proxy_port(inside)), *((each.address, each.port) for each in inside),
                *(("0.0.0.0", port) for port in direct),  # noqa: S104 - of a namespace that nobody else is in
            )  # fmt: skip
            self._proxy = Proxy(
                network.hosts, [(each.host, each.port) for each in inside], self._note, direct=len(direct),
                resolvers=len(resolvers),
            )  # fmt: skip
        elif network.mode == n.FULL:
            from fumehood.linux.landlock import can_scope

            if not can_scope():
                raise Unavailable(
                    "the network of this machine can't be shared without its abstract sockets: that needs Linux 6.12"
                    " with Landlock",
                    hint="--allow-host '*' reaches every public host through the proxy",
                )

    @property
    def listen(self) -> tuple[tuple[str, int], ...]:
        """Where there are listeners inside: the proxy's own first."""
        return self._listen

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that lead a command's programs to it."""
        if self._proxy is None:
            return shared(before, os.environ)
        return variables(self._listen[0][1], n.by_proxy(self.network.hosts), before)

    @property
    def shares(self) -> bool:
        """Tell whether the command shares the host's network."""
        return self.network.mode == n.FULL

    def launched(self, start: Starter, plan: Plan, given: tuple[int, int, int]) -> Running:
        """Start a sandbox, and serve what it asks for once its listeners come."""
        if self._proxy is None:
            return start(plan, given)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                running = start(plan, (*given, theirs.fileno()))
            except BaseException:
                ours.close()
                raise
        # Not before the sandbox was forked: whoever forks has one thread only.
        self._proxy.start(ours)
        if self._input is not None:
            self._input.start()
        return running

    def stop(self) -> None:
        """The command has ended: end the proxy, and keep what it saw."""
        if self._proxy is not None:
            self.connections = self._proxy.stop()
            self._proxy = None

    def _note(self, connection: Connection) -> None:
        """Take note that a host was refused."""
        if wanted([connection]):
            with self._lock:
                self._refused_at = time.monotonic()

    @property
    def was_refused(self) -> bool:
        """Tell whether the person will be asked, so that nothing of this try will be left."""
        return self._will_ask and self._refused_at > 0

    def muted(self, sink: Sink | None) -> Sink | None:
        """Return a sink that passes nothing on any more once this try is in vain."""
        if sink is None or not self._will_ask:
            return sink

        def until_refused(data: bytes) -> None:
            if not self.was_refused:
                sink(data)

        return until_refused

    def cancelled(self, before: Callable[[], bool] | None) -> Callable[[], bool] | None:
        """Return what tells whether the command is to be ended."""
        if not self._will_ask:
            return before

        def ended() -> bool:
            self.ended_it = self.was_refused and time.monotonic() - self._refused_at > _QUIET_S
            return self.ended_it or (before is not None and before())

        return ended

    def to_ask(self) -> tuple[str, ...]:
        """Return the hosts to ask for once a try has ended."""
        return wanted(self.connections) if self._will_ask else ()


def resolvers_of(world: World) -> tuple[str, ...]:
    """Return the addresses where a command's programs ask for names."""
    if world.tree is not None:
        from fumehood.rootfs.names import told_names

        layer = [f"{world.layer}/upper"] if world.layer else []
        return n.resolvers(told_names([*layer, world.tree.path]))
    try:
        with open("/etc/resolv.conf", errors="replace") as file:
            return n.resolvers(file.read(1 << 16))
    except OSError:
        return n.resolvers("")


def blocked(connections: tuple[Connection, ...], started_at: float) -> tuple[Blocked, ...]:
    """Tell what was refused, when, and what to do about it."""
    from fumehood.core.hosts import shown

    found: dict[str, Blocked] = {}
    for each in connections:
        if each.allowed:
            continue
        name = shown(each.host, each.port) if each.port else each.host
        after = f"{max(0.0, each.started_at - started_at):.1f} s after the start: {each.reason}"
        found.setdefault(name, Blocked(what="network", detail=name, hint=f"{after}; {_advice(each, name)}"))
    listed = tuple(found.values())
    if len(listed) > _MOST_BLOCKED:
        rest = len(listed) - _MOST_BLOCKED
        more = Blocked(what="network", detail=f"{rest} more", hint="fumehood show --json RUN lists every connection")
        return (*listed[:_MOST_BLOCKED], more)
    return listed


def _advice(refused: Connection, name: str) -> str:
    if wanted([refused]):
        return f"ask for it: fumehood run --allow-host {name} -- …"
    if refused.address and "which was not named" in refused.reason:
        place = f"[{refused.address}]" if ":" in refused.address else refused.address
        return f"if you mean it, name the address too: --allow-host {place}:{refused.port}"
    return "a granted host is only reached as itself"
