"""The clients of one MCP server: the project of each, its background commands, and how its person is asked.

The project is the one named when the server was started, else the client's first root, else the server's directory.
"""

# No `from __future__ import annotations`: the SDK reads the annotations, also those of resolvers.

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import AcceptedElicitation, Context, Elicit, ElicitationResult, ListRoots, Resolve
from mcp.types import ListRootsResult
from pydantic import BaseModel, Field, create_model

from fumehood.core.questions import DENY_ONCE, INTRODUCTION, TITLES, Question
from fumehood.errors import BadRequest, ChangedMeanwhile, FumehoodError, as_fumehood_error
from fumehood.service.ask import Desk
from fumehood.store.places import new_id, new_mark, places

if TYPE_CHECKING:
    from fumehood import Run, Sandbox
    from fumehood.service.ask import Ask, Asked

MARK = new_mark()  # begins our own lines as long as this server runs; the instructions tell the model
_SESSION_HEADER = "mcp-session-id"
_MAX_JOBS = 64  # remembered
_MAX_OUTPUT = 1 << 20  # characters kept of each
_MAX_OPEN_QUESTIONS = 1000


class Clients:
    """The state that one server keeps for its clients: sandboxes by project, roots, jobs, open questions.

    `fallback_askers` are asked if a client can't ask its person.
    """

    def __init__(
        self, project: str | None, session: str | None, *, own_tmp: bool = False, draft: str | None = None,
        fallback_askers: "Sequence[Ask]" = (),
    ) -> None:  # fmt: skip
        self.fallback_askers = tuple(fallback_askers)
        self.jobs = BackgroundCommands()
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
        """Return True if the client must be asked for its roots: no project was named, and they are not known yet."""
        capabilities = context.client_capabilities
        has_roots = capabilities is not None and capabilities.roots is not None
        return self._project is None and has_roots and _connection_id(context.headers) not in self._roots

    async def watch_roots(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Pass a message on; if it says that the client's roots have changed, forget them, to ask for them again."""
        if ctx.method == "notifications/roots/list_changed":
            self._roots.pop(_connection_id(getattr(ctx.request, "headers", None)), None)
        return await call_next(ctx)

    def remember_roots(self, context: Context[Any, Any], roots: ListRootsResult | None) -> list[str]:
        """Store the roots that the client sent, if any; returns the directories that it works in."""
        connection = _connection_id(context.headers)
        if roots is not None and connection:
            self._roots[connection] = roots
        latest = roots or self._roots.get(connection)
        uris = [str(root.uri) for root in latest.roots] if latest is not None else []
        return [unquote(urlsplit(uri).path) for uri in uris if uri.startswith("file://")]

    def client_name(self, context: Context[Any, Any]) -> str:
        """Return a name that tells clients apart: by their connection, or by their token if there is none.

        If a person named a session for the server, all clients share it, and count as one.
        """
        if self.session is not None:
            return ""
        return _client_name(_connection_id(context.headers), context.headers or {})

    def job(self, context: Context[Any, Any], name: str) -> "BackgroundCommand":
        """Return a command that a client started."""
        return self.jobs.find(self.client_name(context), name)

    def forget_client(self, headers: Mapping[str, str]) -> None:
        """Forget a client that has closed its connection, and end its commands."""
        connection = headers.get(_SESSION_HEADER, "")
        self._roots.pop(connection, None)
        if connection and self.session is None:
            client = _client_name(connection, headers)
            self.sandboxes.pop(client, None)
            self.jobs.stop_all(client)

    def open_sandbox(self, path: str) -> "Sandbox":
        """Return the sandbox for a project, without a session."""
        if path not in self._opened:
            # Imported late, because a client waits for the server to start.
            from fumehood import Sandbox
            from fumehood.store.audit import MCP

            self._opened[path] = Sandbox(path, draft=self._draft, face=MCP, mark=MARK)
        return self._opened[path]

    def take_notices(self, context: Context[Any, Any]) -> list[str]:
        """Return the notices for the person of this client; each is returned once."""
        notices, self.notices = self.notices, []
        for sandbox in self.sandboxes.get(self.client_name(context), {}).values():
            notices += sandbox.take_notices()
        return notices

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
            return store.projects.project_around(os.getcwd())
        except OSError as error:
            raise BadRequest("the server's directory is gone", hint="fumehood mcp --project DIR") from error
        finally:
            self.notices += store.notices
            store.close()


def _client_name(connection: str, headers: Mapping[str, str]) -> str:
    return f"{connection} {headers.get('authorization', '')}"


def _connection_id(headers: Mapping[str, str] | None) -> str:
    """Return an id of the client's connection; "" over HTTP if the request belongs to none."""
    return "the one on our standard input" if headers is None else headers.get(_SESSION_HEADER, "")


class CallTarget:
    """The target of a tool call: its client, with the client's directories and sandboxes."""

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
            sandboxes[path] = clients.open_sandbox(path).session(session, own_tmp=clients.own_tmp)
        return sandboxes[path]

    def sandbox_of_run(self, run: str, *, to_undo: bool = False, to_redo: bool = False) -> "Sandbox":
        """Return the sandbox of this client to which one of its runs belongs."""
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


def clients_of(context: Context[Any, Any]) -> Clients:
    """Return the clients of the server that a call came to."""
    clients = context.request_context.lifespan_context
    assert isinstance(clients, Clients)
    return clients


async def client_roots(ctx: Context[Any, Any]) -> Any:
    """Ask the client for its roots, if they are needed and not known."""
    return ListRoots() if clients_of(ctx).needs_roots(ctx) else None


async def find_target(ctx: Context[Any, Any], roots: Annotated[Any, Resolve(client_roots)]) -> CallTarget:
    """Find the target of a call; the SDK calls this before the tool."""
    clients = clients_of(ctx)
    return CallTarget(clients, clients.client_name(ctx), clients.remember_roots(ctx, roots))


Target = Annotated[CallTarget, Resolve(find_target)]  # the annotation of a tool's parameter `target`


# ---- Commands in the background.

class BackgroundCommand:
    """One command in the background."""

    def __init__(self, name: str, work: "Callable[..., Run]") -> None:
        self.name = name
        self.run: Run | None = None
        self.error: FumehoodError | None = None
        self._work = work
        self._stopped = threading.Event()
        self._changed = threading.Lock()
        self._waiting: list[Callable[[], None]] = []  # functions to call when there is output, or at the end
        self._pieces: list[str] = []
        self._dropped = 0
        self._size = 0
        self.is_running = True
        self._thread = threading.Thread(target=self._run_work, name=f"fumehood-{name}", daemon=True)
        self._thread.start()

    def _run_work(self) -> None:
        try:
            self.run = self._work(cancelled=self._stopped.is_set, on_output=self._add_output)
        except Exception as error:  # noqa: BLE001 - reported by the next poll_command
            self.error = as_fumehood_error(error)
        finally:
            with self._changed:
                self.is_running = False
                self._wake()

    def _add_output(self, _stream: str, text: str) -> None:
        with self._changed:
            self._pieces.append(text)
            self._size += len(text)
            while self._size - self._dropped > _MAX_OUTPUT and len(self._pieces) > 1:
                self._dropped += len(self._pieces.pop(0))
            self._wake()

    def _wake(self) -> None:
        for wake in self._waiting:
            wake()

    def output(self, offset: int) -> tuple[int, str]:
        """Return the output from an offset on, and where it really begins, because the oldest may have been dropped."""
        with self._changed:
            begin = min(max(offset, self._dropped), self._size)
            return begin, "".join(self._pieces)[begin - self._dropped :]

    async def wait(self, offset: int, seconds: float) -> None:
        """Wait until there is new output, or the command has ended; without a thread, because all calls share a few."""
        loop, is_new = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if self._size > offset or not self.is_running:
                loop.call_soon_threadsafe(is_new.set)

        with self._changed:
            self._waiting.append(wake)
            wake()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(is_new.wait(), seconds)
        finally:
            with self._changed:
                self._waiting.remove(wake)

    def stop(self) -> None:
        """End the command; what it wrote is held."""
        self._stopped.set()
        self._thread.join()


class BackgroundCommands:
    """The background commands of all clients; each client sees only its own, which are numbered from 1."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], BackgroundCommand] = {}
        self._counts: dict[str, int] = {}

    def start(self, client: str, work: Callable[..., Any]) -> BackgroundCommand:
        """Start a command in the background."""
        ended = [key for key, job in self._jobs.items() if not job.is_running]
        for key in ended[: max(0, len(self._jobs) - _MAX_JOBS + 1)]:
            del self._jobs[key]
        if len(self._jobs) >= _MAX_JOBS:
            raise BadRequest(f"{_MAX_JOBS} commands are running already", hint="stop_command ends one")
        self._counts[client] = self._counts.get(client, 0) + 1
        name = f"job-{self._counts[client]}"
        self._jobs[client, name] = BackgroundCommand(name, work)
        return self._jobs[client, name]

    def find(self, client: str, name: str) -> BackgroundCommand:
        """Return a job of a client by its name."""
        if (client, name) not in self._jobs:
            raise BadRequest(f"there is no job {name}", hint="start_command returns its name")
        return self._jobs[client, name]

    def stop_all(self, client: str | None = None) -> None:
        """End all commands that still run, or only those of one client."""
        for (job_client, _), job in list(self._jobs.items()):
            if job.is_running and client in (None, job_client):
                job.stop()


# ---- The person behind a client, asked by elicitation, on both eras of the protocol.
#
# In the protocol until 2025-11-25, a server asks while a tool runs. From 2026-07-28 on, it answers the call with the
# question, and the client makes the call again with the answer. There, the SDK's resolvers ask the questions that can
# be foreseen, before the run. In the second call the question is composed again, and the answer counts only if the text
# is exactly the same: the SDK puts a digest of the text, the tool and its arguments into the state that the client
# returns.

def _answer_form(options: Sequence[str]) -> type[BaseModel]:
    """Return the form for these answers; it has no default, so that only a person's choice is a yes."""
    description = "Allow it once, or deny it." if len(options) == 2 else "What to do, and for how long that holds."
    choice: Any = Literal[tuple(options)]
    return create_model("Answer", answer=(choice, Field(title="Your answer", description=description)))


def can_elicit(context: Context[Any, Any]) -> bool:
    """Return True if the client has announced that it can show a form to the person."""
    capabilities = context.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    # Older clients, from before there were kinds of elicitation, announce an empty object.
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


class OpenQuestions:
    """The questions that were sent to a client and are not answered yet, each with its own number.

    The number is part of the question's text, and the SDK accepts an answer only for exactly this text. So if a client
    sends an answer a second time, the question has another number by then, and the person is asked again.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def number(self, question: Question) -> str:
        """Return the number of a question; it stays the same until the call that brings the answer."""
        digest = question.digest
        if digest not in self._numbers:
            while len(self._numbers) >= _MAX_OPEN_QUESTIONS:
                del self._numbers[next(iter(self._numbers))]
            self._numbers[digest] = new_id()
        return self._numbers[digest]

    def has(self, question: Question) -> bool:
        """Return True if this question was sent to a client and is not answered yet."""
        return question.digest in self._numbers

    def close(self, question: Question) -> None:
        """Remove a question whose call has come with the answer."""
        self._numbers.pop(question.digest, None)


def _question_form(
    context: Context[Any, Any], question: Question | None, open_questions: OpenQuestions
) -> Elicit[Any] | None:
    """Return the form that the client shows before the call; None if it can't show one, or if there is no question.

    Older clients are asked while the tool runs, so that somebody at the desk may answer first; then the client's form
    is closed. This form can't be closed, so if somebody is at the desk, only they are asked.
    """
    if question is None or question.unaskable or not can_elicit(context) or context.session.can_send_request:
        return None
    if not open_questions.has(question) and Desk(places()).is_attended_for(question.project):
        return None
    return Elicit(_question_message(question, open_questions.number(question)), _answer_form(question.options))


def _question_message(question: Question, number: str) -> str:
    """Return a question as text, with all that a person needs to answer it.

    The indentation by four blanks makes a client that shows Markdown keep the lines as they are. The digest covers
    everything that the answer holds for, also what is not shown.
    """
    indented = "\n".join(f"    {line}" for line in question.lines)
    return f"{INTRODUCTION}\n\n{indented}\n\n(question {number}, {question.digest})"


class EarlierAnswer:
    """Answers with what the person said before the call, but only to exactly that question.

    If the question has changed since, `asker_if_changed` is asked; without that, the call fails.
    """

    def __init__(self, question: Question, answer: str, asker_if_changed: "Ask | None") -> None:
        self._digest = question.digest
        self._answer = answer
        self._asker_if_changed = asker_if_changed
        self._is_used = False

    def put(self, asked: "Asked") -> None:
        """Answer the question, or pass it on if it is another one."""
        if asked.question.digest == self._digest and self._answer in asked.question.options:
            asked.answer(self._answer)
            self._is_used = True
        elif self._asker_if_changed is not None:
            self._asker_if_changed.put(asked)
        elif self._is_used:
            asked.answer(None)  # a new question of the running command: nobody can be asked now
        else:
            asked.fail(
                ChangedMeanwhile(
                    "what the user was asked about has changed since: nothing was done",
                    hint="call it again: the user is then asked about what it is now",
                )
            )


class ClientAsker:
    """Asks the person through an older client, while the tool runs."""

    def __init__(self, context: Context[Any, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    def put(self, asked: "Asked") -> None:
        """Send the question to the client; the answer comes later."""
        future = asyncio.run_coroutine_threadsafe(self._ask(asked), self._loop)
        asked.on_close(future.cancel)

    async def _ask(self, asked: "Asked") -> None:
        options = list(asked.question.options)
        choice = {
            "type": "string", "title": "Your answer", "enum": options,
            "enumNames": [asked.question.worded(TITLES[option]) for option in options],
        }  # fmt: skip
        schema: dict[str, Any] = {"type": "object", "properties": {"answer": choice}, "required": ["answer"]}
        result = await self._context.session.elicit_form(
            _question_message(asked.question, new_id()), schema, related_request_id=self._context.request_id
        )
        answer = (result.content or {}).get("answer") if result.action == "accept" else DENY_ONCE
        asked.answer(answer if answer in options else DENY_ONCE)


def find_askers(question_of: Callable[..., Awaitable[Question | None]]) -> "Callable[..., Awaitable[list[Ask]]]":
    """Return a resolver for who answers a call's questions: an earlier answer, the client, or the fallback askers.

    `question_of` is the resolver for the question that can be foreseen; its answer may come with the call.
    """

    async def ask_before_call(ctx: Context[Any, Any], question: Annotated[Any, Resolve(question_of)]) -> Any:
        return _question_form(ctx, question, clients_of(ctx).open_questions)

    async def who_answers(
        ctx: Context[Any, Any], question: Annotated[Any, Resolve(question_of)],
        outcome: Annotated[ElicitationResult[Any], Resolve(ask_before_call)],
    ) -> list[Any]:  # fmt: skip
        clients = clients_of(ctx)
        can_ask_now = can_elicit(ctx) and ctx.session.can_send_request
        client = ClientAsker(ctx, asyncio.get_running_loop()) if can_ask_now else None
        if question is not None:
            clients.open_questions.close(question)
            if outcome.action != "accept" or outcome.data is not None:
                answer = outcome.data.answer if isinstance(outcome, AcceptedElicitation) else DENY_ONCE
                return [EarlierAnswer(question, answer, client)]
        return list(clients.fallback_askers) if client is None else [client]

    return who_answers
