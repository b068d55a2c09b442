"""The clients of one server: which project each works on, and what is kept for it.

That is the project named at the start, else the client's roots, else where the server runs.
"""

# No `from __future__ import annotations`: the SDK reads these, resolvers among them.

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

from mcp.server.mcpserver import Context, ListRoots, Resolve
from mcp.types import ListRootsResult

from fumehood.errors import BadRequest
from fumehood.faces.mcp.asking import OpenQuestions
from fumehood.faces.mcp.jobs import Job, Jobs
from fumehood.faces.mcp.results import MARK
from fumehood.store.places import new_id

if TYPE_CHECKING:
    from fumehood import Run, Sandbox
    from fumehood.service.ask import Ask

_SESSION_HEADER = "mcp-session-id"


class Clients:
    """What one server keeps of its clients: sandboxes, one for each project that one works on, roots, jobs, questions.

    `others` are asked where a client can't ask the person.
    """

    def __init__(
        self, project: str | None, session: str | None, *, own_tmp: bool = False, draft: str | None = None,
        others: "Sequence[Ask]" = (),
    ) -> None:  # fmt: skip
        self.others = tuple(others)
        self.jobs = Jobs()
        self.open_questions = OpenQuestions()
        self._project = None if project is None else os.path.realpath(project)
        self.session = session
        self.own_tmp = own_tmp
        self._draft = draft
        self._opened: dict[str, Sandbox] = {}  # by project
        self.sandboxes: dict[str, dict[str, Sandbox]] = {}  # by client and project
        self._roots: dict[str, ListRootsResult] = {}
        self.notices: list[str] = []

    def needs_roots(self, context: Context[Any, Any]) -> bool:
        """Return True if the client is to be asked for its roots: wanted, not told yet, and it has some."""
        capabilities = context.client_capabilities
        has_roots = capabilities is not None and capabilities.roots is not None
        return self._project is None and has_roots and _connection(context) not in self._roots

    def remember(self, context: Context[Any, Any], roots: ListRootsResult | None) -> list[str]:
        """Keep what the client told; returns the directories it works in."""
        connection = _connection(context)
        if roots is not None and connection:
            self._roots[connection] = roots
        latest = roots or self._roots.get(connection)
        uris = [str(root.uri) for root in latest.roots] if latest is not None else []
        return [unquote(urlsplit(uri).path) for uri in uris if uri.startswith("file://")]

    def name(self, context: Context[Any, Any]) -> str:
        """Tell the clients of this server apart: by their connections, and, where there are none, by their tokens.

        Those for whom a person named one session are one.
        """
        if self.session is not None:
            return ""
        return f"{_connection(context)} {(context.headers or {}).get('authorization', '')}"

    def open(self, path: str) -> "Sandbox":
        """Return the sandbox for a project, without a session."""
        if path not in self._opened:
            # Not before it is wanted: a client waits for the server to start.
            from fumehood import Sandbox
            from fumehood.store.audit import MCP

            self._opened[path] = Sandbox(path, draft=self._draft, face=MCP, mark=MARK)
        return self._opened[path]

    def project_for(self, directories: list[str], working_dir: str | None) -> str:
        """Return the project that a call works on, given the client's directories."""
        if self._project is not None:
            return self._project
        roots = [os.path.realpath(directory) for directory in directories]
        if working_dir and os.path.isabs(working_dir):
            around = [root for root in roots if f"{os.path.realpath(working_dir)}/".startswith(f"{root}/")]
            if around:
                return max(around, key=len)
        if roots:
            return roots[0]
        from fumehood.service.opened import OpenedStore

        store = OpenedStore()
        try:
            return store.projects.holding(os.getcwd())
        except OSError as error:
            raise BadRequest("the server's directory is gone", hint="fumehood mcp --project DIR") from error
        finally:
            self.notices += store.notices
            store.close()


def _connection(context: Context[Any, Any]) -> str:
    """Name the client for as long as it is connected; "" where each of its requests stands alone."""
    headers = context.headers
    return "the one on our standard input" if headers is None else headers.get(_SESSION_HEADER, "")


class Place:
    """Where a call works: its client, and the directories of that."""

    def __init__(self, clients: Clients, client: str, directories: list[str]) -> None:
        self.clients = clients
        self.client = client
        self._directories = directories
        self._sandboxes = clients.sandboxes.setdefault(client, {})

    def sandbox(self, working_dir: str | None = None) -> "Sandbox":
        """Return the sandbox for the call: a session belongs to one client, and to one project."""
        clients, sandboxes = self.clients, self._sandboxes
        path = clients.project_for(self._directories, working_dir)
        if path not in sandboxes:
            first = next(iter(sandboxes.values()), None)
            base = first.session_name if first is not None else clients.session or f"mcp-{new_id().lower()}"
            session = f"{base}-{len(sandboxes) + 1}" if sandboxes else base
            sandboxes[path] = clients.open(path).session(session, own_tmp=clients.own_tmp)
        return sandboxes[path]

    def holding(self, run: str, *, to_undo: bool = False, to_redo: bool = False) -> "Sandbox":
        """Return the sandbox, among those of this client, that a run of its own belongs to."""
        first = self.sandbox()
        others = [each for each in self._sandboxes.values() if each is not first]
        if not others:
            return first
        session = first.find(run, beside=others, to_undo=to_undo, to_redo=to_redo).session
        return next(each for each in (first, *others) if each.session_name == session)

    def running(self) -> "list[tuple[Sandbox, Run]]":
        """Return this client's commands that run now, each with its sandbox, the latest first."""
        self.sandbox()
        runs = [(sandbox, run) for sandbox in self._sandboxes.values() for run in sandbox.running()]
        return sorted(runs, key=lambda each: each[1].run, reverse=True)

    def job(self, name: str) -> Job:
        """Return a command that this client started."""
        return self.clients.jobs.find(self.client, name)

    def take_notices(self) -> list[str]:
        """Return what the person should know, once."""
        notices, self.clients.notices = self.clients.notices, []
        for sandbox in self._sandboxes.values():
            notices += sandbox.take_notices()
        return notices


def clients_of(context: Context[Any, Any]) -> Clients:
    """Return what a call's server keeps of its clients."""
    clients = context.request_context.lifespan_context
    assert isinstance(clients, Clients)
    return clients


async def client_roots(ctx: Context[Any, Any]) -> Any:
    """Ask the client for its roots, where they are wanted and not known."""
    return ListRoots() if clients_of(ctx).needs_roots(ctx) else None


async def place(ctx: Context[Any, Any], roots: Annotated[Any, Resolve(client_roots)]) -> Place:
    """Find out where the client works."""
    clients = clients_of(ctx)
    return Place(clients, clients.name(ctx), clients.remember(ctx, roots))


async def known_place(ctx: Context[Any, Any]) -> Place:
    """Return where the client works by what it told before, for what it need not be asked for."""
    return await place(ctx, None)


# What a tool says it wants, for the SDK to find out before the tool is called.
Where = Annotated[Place, Resolve(place)]
WhereBefore = Annotated[Place, Resolve(known_place)]
