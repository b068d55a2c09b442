"""`fumehood mcp`: the door for agents that speak MCP."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fumehood.faces.cli.commands import Context
    from fumehood.faces.cli.inspect import Add


def add_commands(add: Add) -> None:
    """Make this command known."""
    mcp = add(
        "mcp", "serve agents that speak MCP, on standard input and output", _mcp,
        "  fumehood mcp --project .\n  fumehood mcp --http 8017        with a token, on this machine only",
    )  # fmt: skip
    mcp.add_argument("--http", type=int, metavar="PORT", help="serve HTTP on 127.0.0.1 instead; 0 takes a free port")
    mcp.add_argument("--session", metavar="NAME", help="the session that its runs belong to (default: a new one)")
    mcp.add_argument("--own-tmp", action="store_true", help="give this session a /tmp that its runs share")


def _mcp(context: Context) -> int:
    from fumehood.faces.mcp.serve import serve

    options = context.options
    context.store.close()
    return serve(options.project, options.session, options.http, own_tmp=options.own_tmp)
