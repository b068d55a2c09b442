"""Serve MCP on standard input and output, or as HTTP on this machine alone."""

from __future__ import annotations

import gc
import hmac
import os
import secrets
import sys
from typing import TYPE_CHECKING, Any

from fumehood.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

    from fumehood.service.ask import Ask

HOST = "127.0.0.1"
TOKEN = "FUMEHOOD_MCP_TOKEN"  # noqa: S105 - its name
_SHORTEST_TOKEN = 16


def serve(project: str | None, session: str | None, http: int | None, *, own_tmp: bool = False) -> int:
    """Serve until the client leaves, or for ever."""
    try:
        from fumehood.faces.mcp.server import build
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types", "pydantic", "anyio"):
            raise
        raise Unavailable(
            f"the MCP server needs a package that is not here: {error.name}",
            hint="in a checkout of Fumehood: pip install '.[mcp]'",
        ) from error
    from fumehood.faces.mcp.desk import Desk
    from fumehood.faces.mcp.places import Workplaces

    desk = Desk(Workplaces(project, session, own_tmp=own_tmp), _others(http))
    if project is not None and not os.path.isdir(project):
        raise BadRequest(f"the project {project} does not exist", hint="make it first, or name another project")
    server = build(desk)
    gc.freeze()  # all that was loaded stays; looking through it again and again would hold up calls
    try:
        if http is None:
            server.run()
        else:
            _serve_http(server, http)
    finally:
        desk.jobs.stop_all()
    return 0


def _others(http: int | None) -> tuple[Ask, ...]:
    """Return who is asked where a client can't: the person who started us in a terminal of their own.

    On standard input we were started by the client, whose own screen the terminal shows.
    """
    if http is None or not os.isatty(2):
        return ()
    from fumehood.faces.cli.prompt import terminal

    return terminal()


def _serve_http(server: MCPServer[Any], port: int) -> None:
    import socket

    import uvicorn

    tokens = _tokens()
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()  # so that nobody who reads the line below comes too early
    except OSError as error:
        raise BadRequest(f"port {port} can't be used: {error.strerror}", hint="--http 0 takes a free one") from error
    port = listening.getsockname()[1]
    app = Guard(server.streamable_http_app(host=HOST, transport_security=only_here(port)), tokens)
    sys.stderr.write(f"fumehood: MCP at http://{HOST}:{port}/mcp\n")
    if TOKEN not in os.environ:
        sys.stderr.write(f"fumehood: Authorization: Bearer {tokens[0]}\n")
    sys.stderr.flush()
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on")
    uvicorn.Server(config).run(sockets=[listening])


def _tokens() -> list[str]:
    """Return the tokens of those who may come in: one for all, or one for each client, so that they are told apart."""
    given = os.environ.get(TOKEN)
    if given is None:
        return [secrets.token_urlsafe(32)]
    tokens = given.split(",")
    if any(len(token) < _SHORTEST_TOKEN for token in tokens):
        raise BadRequest(f"{TOKEN} is too short", hint=f"at least {_SHORTEST_TOKEN} characters")
    return tokens


def only_here(port: int) -> Any:
    """Answer only to our own name: a page in a browser may have made its name lead to this machine."""
    from mcp.server.transport_security import TransportSecuritySettings

    names = [f"{host}:{port}" for host in (HOST, "localhost")]
    return TransportSecuritySettings(allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names])


class Guard:
    """Lets in only who has a token."""

    def __init__(self, app: ASGIApp, tokens: Sequence[str]) -> None:
        self._app = app
        self._wanted = [f"Bearer {token}".encode() for token in tokens]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if any(hmac.compare_digest(given, wanted) for wanted in self._wanted):
            await self._app(scope, receive, send)
            return
        from starlette.responses import JSONResponse

        refusal = JSONResponse(
            {"error": "the token is missing or wrong", "hint": "Authorization: Bearer TOKEN, as printed at the start"},
            status_code=401, headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip
        await refusal(scope, receive, send)
