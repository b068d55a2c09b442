"""Which project a client works on: the one named at the start, the client's roots, or where the server runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from fumehood.errors import BadRequest
from fumehood.faces.mcp.results import MARK
from fumehood.store.ids import new_id

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context
    from mcp.types import ListRootsResult

    from fumehood import Sandbox

_SESSION_HEADER = "mcp-session-id"


class Workplaces:
    """The sandboxes of this server, one for each of its clients and each project that this one works on."""

    def __init__(self, project: str | None, session: str | None, *, own_tmp: bool = False) -> None:
        self.project = None if project is None else os.path.realpath(project)
        self._session = session
        self._own_tmp = own_tmp
        self._projects: dict[str, Sandbox] = {}
        self._sandboxes: dict[str, dict[str, Sandbox]] = {}  # by client and project
        self._roots: dict[str, ListRootsResult] = {}

    def knows_roots(self, context: Context[Any, Any]) -> bool:
        """Tell whether the client need not be asked for its roots: nobody wants them, it has none, or told them."""
        capabilities = context.client_capabilities
        has_none = capabilities is None or capabilities.roots is None
        return self.project is not None or has_none or _connection(context) in self._roots

    def remember(self, context: Context[Any, Any], roots: ListRootsResult | None) -> list[str]:
        """Keep what the client told; returns the directories it works in."""
        key = _connection(context)
        if roots is not None and key:
            self._roots[key] = roots
        told = roots or self._roots.get(key)
        uris = [str(root.uri) for root in told.roots] if told is not None else []
        return [unquote(urlsplit(uri).path) for uri in uris if uri.startswith("file://")]

    def forget(self, context: Context[Any, Any]) -> None:
        """The client's roots have changed: ask again."""
        self._roots.pop(_connection(context), None)

    def client(self, context: Context[Any, Any]) -> str:
        """Tell the clients of this server apart: by their connections, and, where there are none, by their tokens.

        Those for whom a person named one session are one.
        """
        if self._session is not None:
            return ""
        return f"{_connection(context)} {(context.headers or {}).get('authorization', '')}"

    def sandbox(self, client: str, directories: list[str], working_dir: str | None = None) -> Sandbox:
        """Return the sandbox for a call: a session belongs to one client, and to one project."""
        path = self._chosen(directories, working_dir)
        mine = self._sandboxes.setdefault(client, {})
        if path not in mine:
            first = next(iter(mine.values()), None)
            base = first.session_name if first is not None else self._session or f"mcp-{new_id().lower()}"
            name = f"{base}-{len(mine) + 1}" if mine else base
            mine[path] = self._opened(path).session(name, own_tmp=self._own_tmp)
        return mine[path]

    def holding(self, client: str, directories: list[str], run: str, *, to_undo: bool = False) -> Sandbox:
        """Return the sandbox, among those of a client, that a run of its own belongs to."""
        here = self.sandbox(client, directories)
        others = [each for each in self._sandboxes[client].values() if each is not here]
        if not others:
            return here
        found = here.find(run, beside=others, to_undo=to_undo)
        return next(each for each in (here, *others) if each.session_name == found.session)

    def _opened(self, path: str) -> Sandbox:
        if path not in self._projects:
            # Not before it is wanted: a client waits for the server to start.
            from fumehood import Sandbox
            from fumehood.store.audit import MCP

            self._projects[path] = Sandbox(path, face=MCP, mark=MARK)
        return self._projects[path]

    def _chosen(self, directories: list[str], working_dir: str | None) -> str:
        if self.project is not None:
            return self.project
        real = [os.path.realpath(directory) for directory in directories]
        if working_dir and os.path.isabs(working_dir):
            inside = [each for each in real if f"{os.path.realpath(working_dir)}/".startswith(f"{each}/")]
            if inside:
                return max(inside, key=len)
        if real:
            return real[0]
        from fumehood.service.opened import OpenedStore

        store = OpenedStore()
        try:
            return store.projects.holding(os.getcwd())
        except OSError as error:
            raise BadRequest("the server's directory is gone", hint="fumehood mcp --project DIR") from error
        finally:
            store.close()


def _connection(context: Context[Any, Any]) -> str:
    """Name the client for as long as it is connected; "" where each of its requests stands alone."""
    headers = context.headers
    return "the one on our standard input" if headers is None else headers.get(_SESSION_HEADER, "")
