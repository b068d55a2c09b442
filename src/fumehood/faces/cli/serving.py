"""`fumehood mcp`: the door for agents that speak MCP. A client waits for it, so it loads no other command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fumehood.errors import BadRequest, Unavailable
from fumehood.faces.cli.output import whole_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from fumehood.faces.cli.commands import Add

_EXAMPLES = "  fumehood mcp --project .\n  fumehood mcp --http 8017        with a token, on this machine only"
_EXTRA = ("mcp", "mcp_types", "pydantic", "anyio")  # packages that the extra `mcp` brings


def add_commands(add: Add) -> None:
    """Make this command known."""
    _add_options(add("mcp", "serve agents that speak MCP, on standard input and output", lambda _context: 0, _EXAMPLES))


def _add_options(mcp: argparse.ArgumentParser) -> None:
    port = "serve HTTP on 127.0.0.1 instead; 0 takes a free port"
    mcp.add_argument("--http", type=whole_number(0, 65535), metavar="PORT", help=port)
    mcp.add_argument("--session", metavar="NAME", help="the session that its runs belong to (default: a new one)")
    mcp.add_argument("--own-tmp", action="store_true", help="give this session a /tmp that its runs share")


def main(arguments: Sequence[str]) -> int:
    """Serve."""
    import argparse

    if set(arguments) & {"-h", "--help"}:
        from fumehood.faces.cli import commands

        return commands.main(["mcp", "--help"])
    parser = argparse.ArgumentParser("fumehood mcp", exit_on_error=False)
    parser.add_argument("--project", metavar="DIR")
    _add_options(parser)
    try:
        options, unknown = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise BadRequest(str(error).removeprefix("argument "), hint="fumehood mcp --help") from error
    if unknown:
        raise BadRequest(f"there is no option {unknown[0]}", hint="fumehood mcp --help")
    try:
        from fumehood.faces.mcp.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        raise Unavailable(
            f"the MCP server needs a package that is not here: {error.name}",
            hint="in a checkout of Fumehood: pip install '.[mcp]'",
        ) from error
    return serve(options.project, options.session, options.http, own_tmp=options.own_tmp)
