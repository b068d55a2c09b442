"""`fumehood web`: serve the page, and say where."""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING

import uvicorn

from fumehood.errors import BadRequest
from fumehood.faces.web.app import page
from fumehood.faces.web.house import House
from fumehood.linux.cache import replace
from fumehood.service.opened import OpenedStore
from fumehood.store.audit import WEB

if TYPE_CHECKING:
    from fumehood.store.places import Places


def serve(port: int, *, bind: str = "127.0.0.1", hosts: tuple[str, ...] = (), opens: bool = True) -> int:
    """Serve until interrupted; prints one line with the address when it listens."""
    store = OpenedStore(face=WEB)
    listener = _listening(bind, port)
    port = listener.getsockname()[1]
    shown = f"[{bind}]" if ":" in bind else bind
    names = ("127.0.0.1", "localhost", "[::1]", shown, *hosts)
    gate = page(House(store), port, frozenset((*(f"{name}:{port}" for name in names), *hosts)), api_token(store.places))
    address = f"http://{hosts[0] if hosts else f'{shown}:{port}'}/?token={gate.token}"
    print(f"Fumehood is at {address}", flush=True)
    if opens and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        import webbrowser

        webbrowser.open(address)
    # What nobody foresaw is shown in the page as one line; where it happened, to whoever asks for it.
    level = "error" if os.environ.get("FUMEHOOD_DEBUG") else "critical"
    config = uvicorn.Config(gate, log_level=level, timeout_graceful_shutdown=1, server_header=False)
    uvicorn.Server(config).run([listener])
    return 0


def _listening(bind: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((bind, port))
    except OSError as error:
        listener.close()
        message = f"port {port} of {bind} can't be used: {error.strerror}"
        raise BadRequest(message, hint="another one: --port 0") from error
    listener.listen()
    return listener


def api_token(places: Places) -> str:
    """Return the token of the interface for programs, made once; whoever can read the file is the person."""
    path = f"{places.state}/api-token"
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:
        replace(path, secrets.token_urlsafe(32).encode(), by_many=True)
        return api_token(places)
