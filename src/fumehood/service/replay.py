"""Run a command with a network; where it may be asked for, run it again with the hosts that it turned out to need.

Nothing of a try that is asked about remains: its layer is thrown away before the next, and of its output, only what
was shown before the first refusal was ever shown.
"""

from __future__ import annotations

from fumehood.core.network import HOSTS
from fumehood.linux.stdio import INHERITED
from fumehood.service.input import Input
from fumehood.service.network import Access, blocked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.core.network import Network
    from fumehood.core.report import Run
    from fumehood.service.running import Ended, Wishes

_MOST_TRIES = 12


def connected(
    run: Run,
    network: Network,
    wishes: Wishes,
    *,
    execute: Callable[[Access, Wishes], Ended],
    ask: Callable[[tuple[str, ...]], object] | None,
    renew: Callable[[], None],
    resolvers: tuple[str, ...] = (),
) -> Ended:
    """Run a command to its end; `ask` raises where more hosts are not granted, `renew` throws a try away."""
    if wishes.terminal is not None:
        ask = None  # what a person did there can't be done again from the start
    given = Input() if network.watched and ask is not None and wishes.stdin == INHERITED else None
    for number in range(_MOST_TRIES):
        # A command that needs another host each time will not come to an end.
        may_ask = ask is not None and number < _MOST_TRIES - 1
        access = Access(network, may_ask=may_ask, given=given, resolvers=resolvers)
        try:
            ended = execute(access, _listening(wishes, access, given))
        finally:
            access.stop()
            if given is not None:
                given.stop()
            run.connections = (*run.connections, *access.connections)
            run.blocked = blocked(access.connections, run.started_at)
        hosts = access.to_ask()
        if not hosts or ask is None or (ended.outcome.interrupted and not access.ended_it):
            return ended
        if wishes.signals is not None:
            wishes.signals.interrupt_again()
        ask(hosts)
        renew()
        network = network.replace(mode=HOSTS, hosts=(*network.hosts, *hosts))
        run.network, run.hosts = network.mode, network.hosts
        if wishes.on_stderr is not None:
            wishes.on_stderr(f"fumehood: granted {', '.join(hosts)}; running it again from the start\n".encode())
    raise AssertionError("the last try never asks")


def _listening(wishes: Wishes, access: Access, given: Input | None) -> Wishes:
    return wishes.replace(
        stdin=wishes.stdin if given is None else given.offer(),
        on_stdout=access.muted(wishes.on_stdout), on_stderr=access.muted(wishes.on_stderr),
        cancelled=access.cancelled(wishes.cancelled),
    )  # fmt: skip
