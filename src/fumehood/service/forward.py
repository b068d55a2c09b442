"""Pass connections from this machine's loopback to that of a session."""

from __future__ import annotations

import os
import socket

from fumehood.errors import Unavailable
from fumehood.linux import libc
from fumehood.linux.namespaces import join_network
from fumehood.linux.probe import host
from fumehood.proxy.relay import carry
from fumehood.service.loopback import network_now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from fumehood.service.store import Store

_PATIENCE_S = 30.0
_KILL = 9


def serve(
    store: Store, session: str, port: int, listener: socket.socket, tell: Callable[[str], object]
) -> NoReturn:
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
    children: set[int] = set()
    while True:
        client, _ = listener.accept()
        children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}
        child = os.fork()
        if child:
            children.add(child)
            client.close()
            continue
        try:
            libc.prctl(libc.PR_SET_PDEATHSIG, _KILL)
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
