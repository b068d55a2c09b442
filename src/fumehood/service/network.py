"""One command's access to the network: its proxy while it runs, and the questions that its connections wait for."""

from __future__ import annotations

import os
import socket
import threading
import time

from fumehood.core.environment import own_proxy_settings, proxy_variables
from fumehood.core.hosts import DNS_PORT, direct_ports, forwards, names_for_proxy, proxy_port
from fumehood.core.policy import FULL, HOSTS, Network
from fumehood.core.questions import CANCELLED, NOBODY, TOO_LATE, Decision
from fumehood.core.report import NOT_GRANTED, SAID_NO, Blocked, Connection, Run
from fumehood.core.wording import MOST_ITEMS
from fumehood.errors import Unavailable
from fumehood.linux.libc import InterruptSafeLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fumehood.linux.launch import Plan, Starter, Streams
    from fumehood.linux.process import Running
    from fumehood.proxy.neighbours import Neighbours
    from fumehood.proxy.server import Proxy

_MOST_BLOCKED = 20
_TOO_MANY = f"the command asked for more than {MOST_ITEMS} hosts, which is more than a person can judge"


class LiveQuestions:
    """Puts a running command's requests to a person, one question after the other; the command waits.

    Each connection has a thread of its own, which calls `refusal`. The thread that attends the command calls the rest.
    """

    def __init__(self, decide_host: Callable[[str, Callable[[], bool]], Decision]) -> None:
        self._decide_host = decide_host
        self._lock = InterruptSafeLock()
        self._changed = threading.Condition(self._lock)
        self._turn = threading.Lock()  # one question at a time
        self._answers: dict[str, Decision | None] = {}  # None: not answered yet
        self._error: BaseException | None = None
        self._refusal_reason = ""  # why no more questions are put
        self._waiting = 0
        self._since = self._waited_s = 0.0
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.is_open = False  # as far as the attending thread knows

    def refusal(self, place: str) -> str:
        """Wait for the answer about a `host:port`; returns why it is refused, or "" if it is granted."""
        with self._lock:
            is_new = place not in self._answers
            if is_new:
                refusal = self._refusal_reason or (_TOO_MANY if len(self._answers) >= MOST_ITEMS else "")
                if refusal:
                    return refusal
                self._answers[place] = None
        if is_new:
            self._answer(place)
        with self._lock:
            while (decision := self._answers[place]) is None:
                self._changed.wait()
        return "" if decision.allowed else decision.reason or SAID_NO

    def _answer(self, place: str) -> None:
        """Have a host decided; other connections may wait for the same answer."""

        def decide(is_closed: Callable[[], bool]) -> Decision:
            decision = self._decide_host(place, is_closed)
            if decision.reason == TOO_LATE:  # nobody is there: the next question would wait as long
                self._refuse_from_now_on(decision.reason)
            return decision

        decision = Decision(allowed=False, reason=CANCELLED)
        try:
            decision = self.decide_in_turn(decide)
        except BaseException as error:  # noqa: BLE001 - handed on to the thread that attends the command
            self._error = error
        with self._lock:
            self._answers[place] = decision
            self._changed.notify_all()
            self._wake()

    def decide_in_turn(self, decide: Callable[[Callable[[], bool]], Decision]) -> Decision:
        """Call `decide` when it is this question's turn; from now on the command waits for a person."""
        with self._lock:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting += 1
            self._wake()
        try:
            with self._turn:
                with self._lock:
                    # Not before the attending thread knows: until then it passes on what the person types.
                    while not self.is_open and not self._refusal_reason:
                        self._changed.wait()
                    if self._refusal_reason:
                        return Decision(allowed=False, reason=self._refusal_reason)
                return decide(lambda: bool(self._refusal_reason))
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting:
                    self._waited_s += time.monotonic() - self._since
                self._changed.notify_all()
                self._wake()

    def _wake(self) -> None:
        """Wake the attending thread; the lock is taken."""
        if self._event >= 0:
            os.eventfd_write(self._event, 1)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._event

    def drain(self) -> None:
        """Take note of questions that were put or answered; raises an error that asking has raised."""
        with self._lock:
            os.eventfd_read(self._event)
            self.is_open = self._waiting > 0
            self._changed.notify_all()
        if self._error is not None:
            raise self._error

    @property
    def waited_s(self) -> float:
        """Seconds that the command has waited for a person so far."""
        with self._lock:
            return self._waited_s + (time.monotonic() - self._since if self._waiting else 0.0)

    def close(self) -> None:
        """Put no more questions, since the command ends; an open question is answered with no."""
        self._refuse_from_now_on(CANCELLED)

    def _refuse_from_now_on(self, reason: str) -> None:
        with self._lock:
            self._refusal_reason = self._refusal_reason or reason
            self._changed.notify_all()

    def finish(self) -> None:
        """Close the descriptor, when no connection waits any more."""
        with self._lock:
            os.close(self._event)
            self._event = -1

    @property
    def granted(self) -> tuple[str, ...]:
        """The hosts that a person said yes to."""
        with self._lock:
            return tuple(place for place, answer in self._answers.items() if answer is not None and answer.allowed)


class NetworkAccess:
    """The network of one command. With `questions`, a person is asked about other hosts while the connection waits.

    In a session, the proxies of its commands share their listeners.
    """

    def __init__(
        self, network: Network, *, questions: LiveQuestions | None = None, resolvers: tuple[str, ...] = (),
        in_session: bool = False,
    ) -> None:  # fmt: skip
        self.network = network
        self.questions = questions
        self._in_session = in_session
        self._neighbours: Neighbours | None = None
        self._shared_listeners: list[socket.socket] = []  # until they are served
        self._served_places: set[tuple[str, int]] | None = None  # addresses of those, once they are served
        self.resolvers = resolvers if network.is_proxied else ()
        self.listen: tuple[tuple[str, int], ...] = ()  # addresses of the listeners inside, the proxy's own first
        self._proxy: Proxy | None = None
        if network.mode == FULL and not network.is_proxied:
            from fumehood.linux.confine import can_scope

            if not can_scope():
                raise Unavailable(
                    "the network of this machine can't be shared without its abstract sockets: that needs Linux 6.12"
                    " with Landlock",
                    hint="--allow-host '*' reaches every public host through the proxy",
                )
        if not network.is_proxied:
            return
        from fumehood.linux.namespaces import loopback_listeners
        from fumehood.proxy.server import Proxy

        hosts = network.hosts
        inside = forwards(hosts, loopback_listeners() if network.asks else ())
        direct = direct_ports(hosts) if self.resolvers else ()
        if self._in_session:
            # Two listeners at one port must allow port sharing, so commands could listen there too.
            direct = tuple(port for port in direct if port not in {each.port for each in inside})
        self.listen = (
            ("127.0.0.1", proxy_port(inside, in_session=self._in_session)),
            *((each.address, each.port) for each in inside),
            *(("0.0.0.0", port) for port in direct),  # noqa: S104 - of a namespace that nobody else is in
        )  # fmt: skip
        self._proxy = Proxy(
            hosts, [(each.host, each.port) for each in inside],
            None if questions is None else questions.refusal, direct=len(direct), resolvers=len(self.resolvers),
        )  # fmt: skip

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that lead a command's programs to the proxy."""
        if self._proxy is None:
            return own_proxy_settings(before, os.environ)
        return proxy_variables(self.listen[0][1], names_for_proxy(self.network.hosts), before)

    @property
    def shares(self) -> bool:
        """True if the command shares the host's network."""
        return self.network.mode == FULL

    def launch(self, start: Starter, plan: Plan, streams: Streams) -> Running:
        """Launch a sandbox, and serve its connections when its listeners have arrived."""
        if self._proxy is None or self._in_session:
            return start(plan, streams)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                running = start(plan, (*streams, theirs.fileno()))
            except BaseException:
                ours.close()
                raise
        # Only after the fork: a process that forks may have one thread only.
        self._proxy.start(ours)
        return running

    def join(self, neighbours: Callable[[], Neighbours]) -> None:
        """Join the proxies of a session and borrow their listeners; the session's lock is taken."""
        if self._neighbours is None:
            self._neighbours = neighbours()
            for each in self._neighbours.borrow_listeners():
                if each.getsockname()[:2] in self._listener_places:
                    self._shared_listeners.append(each)
                else:
                    each.close()

    @property
    def _listener_places(self) -> tuple[tuple[str, int], ...]:
        return (*self.listen, *((address, DNS_PORT) for address in self.resolvers))

    def without_served(self, plan: Plan) -> Plan:
        """Return the plan without the listeners that are already served."""
        served = self._served_places
        if served is None:
            served = {each.getsockname()[:2] for each in self._shared_listeners}
        return plan.replace(
            listen=tuple(each for each in plan.listen if each not in served),
            resolvers=tuple(each for each in plan.resolvers if (each, DNS_PORT) not in served),
        )

    def serve(self, descriptors: list[int]) -> None:
        """Serve the listeners that were just made, and the borrowed ones."""
        if self._proxy is None or self._neighbours is None or self._served_places is not None:
            return
        self._shared_listeners += [socket.socket(fileno=fd) for fd in descriptors]
        self._served_places = {each.getsockname()[:2] for each in self._shared_listeners}
        self._proxy.start_in_session(self._shared_listeners, self.listen, self._neighbours)
        self._shared_listeners = []

    def stop(self, run: Run) -> None:
        """End the proxy, after the command and its questions; write into the run which connections there were."""
        if self._neighbours is not None and self._served_places is None:
            self._neighbours.withdraw()
            self._neighbours.close()
            for each in self._shared_listeners:
                each.close()
        if self._proxy is not None:
            run.connections = self._proxy.stop()
            self._proxy = None
        run.blocked = (*_refused_connections(run), *self._taken_ports())
        if self.questions is not None and self.questions.granted:
            run.network, run.hosts = HOSTS, (*self.network.hosts, *self.questions.granted)

    def _taken_ports(self) -> list[Blocked]:
        """Return granted ports of this machine at which another command of the session listens."""
        if self._served_places is None:
            return []
        hint = "another command of the session listens there"
        granted = forwards(self.network.hosts)
        ports = {each.port for each in granted if (each.address, each.port) not in self._served_places}
        return [Blocked(what="network", detail=f"localhost:{port}", hint=hint) for port in sorted(ports)]


def _refused_connections(run: Run) -> tuple[Blocked, ...]:
    """Return the refused connections, when each was tried, and what to do about it."""
    from fumehood.core.hosts import with_port

    refused: dict[str, Blocked] = {}
    how_to_ask = "ask for it: fumehood run --allow-host {} -- …"
    if run.session:  # its commands have `fumehood` inside
        how_to_ask = "to ask the person for it: fumehood ask {}"
    for each in run.connections:
        if each.allowed:
            continue
        name = with_port(each.host, each.port) if each.port else each.host or "a request to the proxy"
        after = f"{max(0.0, each.started_at - run.started_at):.1f} s after the start: {each.reason}"
        advice = _advice(each, how_to_ask.format(name))
        hint = f"{after}; {advice}" if advice else after
        refused.setdefault(name, Blocked(what="network", detail=name, hint=hint))
    listed = tuple(refused.values())
    if len(listed) > _MOST_BLOCKED:
        count = len(listed) - _MOST_BLOCKED
        hint = "fumehood show --json RUN lists every connection"
        rest_note = Blocked(what="network", detail=f"{count} more", hint=hint)
        return (*listed[:_MOST_BLOCKED], rest_note)
    return listed


def _advice(refused: Connection, how_to_ask: str) -> str:
    if refused.reason == SAID_NO:
        return "that was for this run only"
    if refused.reason in (NOT_GRANTED, NOBODY, TOO_LATE, CANCELLED, _TOO_MANY):
        return how_to_ask
    if refused.address and "which was not named" in refused.reason:
        place = f"[{refused.address}]" if ":" in refused.address else refused.address
        return f"if you mean it, name the address too: --allow-host {place}:{refused.port}"
    # A connection to a granted host asked for another host there. All other reasons say by themselves what is wrong.
    return "a granted host is only reached as itself" if refused.address else ""
