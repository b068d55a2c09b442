"""The clients of one server: which project each works on, its commands in the background, and the person behind it.

The project is the one named at the start, else the client's roots, else where the server runs.
"""

# No `from __future__ import annotations`: the SDK reads these, resolvers among them.

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
from fumehood.errors import BadRequest, ChangedMeanwhile, FumehoodError, plain_error
from fumehood.service.ask import Desk
from fumehood.store.places import new_id, new_mark, places

if TYPE_CHECKING:
    from fumehood import Run, Sandbox
    from fumehood.service.ask import Ask, Asked

MARK = new_mark()  # this server's, for as long as it runs: its instructions and its tool's description tell it
_SESSION_HEADER = "mcp-session-id"
_MOST_JOBS = 64  # remembered
_MOST_OUTPUT = 1 << 20  # characters kept of each
_MOST_OPEN = 1000  # questions


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
        return self._project is None and has_roots and _connection(context.headers) not in self._roots

    async def watch_roots(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Pass a message on; a client that says it has other roots is asked for them before its next call."""
        if ctx.method == "notifications/roots/list_changed":
            self._roots.pop(_connection(getattr(ctx.request, "headers", None)), None)
        return await call_next(ctx)

    def remember(self, context: Context[Any, Any], roots: ListRootsResult | None) -> list[str]:
        """Keep what the client told; returns the directories it works in."""
        connection = _connection(context.headers)
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
        return _name(_connection(context.headers), context.headers or {})

    def job(self, context: Context[Any, Any], name: str) -> "Job":
        """Return a command that a client started."""
        return self.jobs.find(self.name(context), name)

    def leave(self, headers: Mapping[str, str]) -> None:
        """A client has ended its connection: end its commands, as they end where a client's input does."""
        connection = headers.get(_SESSION_HEADER, "")
        self._roots.pop(connection, None)
        if connection and self.session is None:
            client = _name(connection, headers)
            self.sandboxes.pop(client, None)
            self.jobs.stop_all(client)

    def open(self, path: str) -> "Sandbox":
        """Return the sandbox for a project, without a session."""
        if path not in self._opened:
            # Not before it is wanted: a client waits for the server to start.
            from fumehood import Sandbox
            from fumehood.store.audit import MCP

            self._opened[path] = Sandbox(path, draft=self._draft, face=MCP, mark=MARK)
        return self._opened[path]

    def take_notices(self, context: Context[Any, Any]) -> list[str]:
        """Return what the person should know, once."""
        notices, self.notices = self.notices, []
        for sandbox in self.sandboxes.get(self.name(context), {}).values():
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
            return store.projects.holding(os.getcwd())
        except OSError as error:
            raise BadRequest("the server's directory is gone", hint="fumehood mcp --project DIR") from error
        finally:
            self.notices += store.notices
            store.close()


def _name(connection: str, headers: Mapping[str, str]) -> str:
    return f"{connection} {headers.get('authorization', '')}"


def _connection(headers: Mapping[str, str] | None) -> str:
    """Name the client for as long as it is connected; "" where each of its requests stands alone."""
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


Where = Annotated[Place, Resolve(place)]  # what a tool says it wants, for the SDK to find out before it is called


# ---- Commands in the background.

class Job:
    """One command in the background."""

    def __init__(self, name: str, work: "Callable[..., Run]") -> None:
        self.name = name
        self.run: Run | None = None
        self.error: FumehoodError | None = None
        self._work = work
        self._stopped = threading.Event()
        self._changed = threading.Lock()
        self._waiting: list[Callable[[], None]] = []  # each is called when there is something new
        self._pieces: list[str] = []
        self._dropped = 0
        self._size = 0
        self.is_running = True
        self._thread = threading.Thread(target=self._go, name=f"fumehood-{name}", daemon=True)
        self._thread.start()

    def _go(self) -> None:
        try:
            self.run = self._work(cancelled=self._stopped.is_set, on_output=self._take)
        except Exception as error:  # noqa: BLE001 - told when somebody looks at it
            self.error = plain_error(error)
        finally:
            with self._changed:
                self.is_running = False
                self._wake()

    def _take(self, _stream: str, text: str) -> None:
        with self._changed:
            self._pieces.append(text)
            self._size += len(text)
            while self._size - self._dropped > _MOST_OUTPUT and len(self._pieces) > 1:
                self._dropped += len(self._pieces.pop(0))
            self._wake()

    def _wake(self) -> None:
        for wake in self._waiting:
            wake()

    def output(self, offset: int) -> tuple[int, str]:
        """Return what was printed from an offset on, and where that begins: the oldest may be gone."""
        with self._changed:
            begin = min(max(offset, self._dropped), self._size)
            return begin, "".join(self._pieces)[begin - self._dropped :]

    async def wait(self, offset: int, seconds: float) -> None:
        """Wait until there is something new, or it has ended; in no thread, for those are few and serve all calls."""
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


class Jobs:
    """Every command that the clients of this server started; each client knows only its own, by its own count."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], Job] = {}
        self._counts: dict[str, int] = {}

    def start(self, client: str, work: Callable[..., Any]) -> Job:
        """Start a command in the background."""
        ended = [key for key, job in self._jobs.items() if not job.is_running]
        for key in ended[: max(0, len(self._jobs) - _MOST_JOBS + 1)]:
            del self._jobs[key]
        if len(self._jobs) >= _MOST_JOBS:
            raise BadRequest(f"{_MOST_JOBS} commands are running already", hint="stop_command ends one")
        self._counts[client] = self._counts.get(client, 0) + 1
        name = f"job-{self._counts[client]}"
        self._jobs[client, name] = Job(name, work)
        return self._jobs[client, name]

    def find(self, client: str, name: str) -> Job:
        """Return a job of a client by its name."""
        if (client, name) not in self._jobs:
            raise BadRequest(f"there is no job {name}", hint="start_command returns its name")
        return self._jobs[client, name]

    def stop_all(self, client: str | None = None) -> None:
        """End everything that still runs, or what one client started."""
        for (whose, _), job in list(self._jobs.items()):
            if job.is_running and client in (None, whose):
                job.stop()


# ---- The person behind a client, asked by elicitation, on both eras of the protocol.
#
# Until 2025-11-25 a server asks while a tool runs; from 2026-07-28 on the call is answered with the question and made
# again with the answer. So there, questions that can be foreseen are put by the SDK's resolvers, before the run.
# What was asked is then put together anew, and an answer counts only if that is word for word the same: the SDK seals a
# digest of the words, the tool and its arguments into the state that the client hands back.

def _form(options: Sequence[str]) -> type[BaseModel]:
    """Return the form for these answers; without a default, so that nothing but a person's choice is a yes."""
    said = "Allow it once, or deny it." if len(options) == 2 else "What to do, and for how long that holds."
    one_of_them: Any = Literal[tuple(options)]
    return create_model("Answer", answer=(one_of_them, Field(title="Your answer", description=said)))


def can_elicit(context: Context[Any, Any]) -> bool:
    """Return True if the client said that it can put a form to the person."""
    capabilities = context.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    # Bare `{}` is what clients said before there were kinds of it.
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


class OpenQuestions:
    """The questions that a client was sent and that are not settled, each with a number of its own.

    The number is part of the words, and the SDK takes an answer only for the words it was given to. So an answer that
    a client sends a second time is for a question that is no longer open, and the person is asked anew.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def number(self, question: Question) -> str:
        """Return the number under which a question is open; the call that brings the answer has to find it."""
        digest = question.digest
        if digest not in self._numbers:
            while len(self._numbers) >= _MOST_OPEN:
                del self._numbers[next(iter(self._numbers))]
            self._numbers[digest] = new_id()
        return self._numbers[digest]

    def has(self, question: Question) -> bool:
        """Return True if a client was sent a question that is not settled."""
        return question.digest in self._numbers

    def close(self, question: Question) -> None:
        """The call that it was asked for has come to its end."""
        self._numbers.pop(question.digest, None)


def _asked_before(
    context: Context[Any, Any], question: Question | None, open_questions: OpenQuestions
) -> Elicit[Any] | None:
    """Put a question into the shape that the client shows before the call; None where it can't, or need not.

    A client of the older era is asked while the tool runs: whoever is at the desk may be faster, and its form goes.
    This form can't be taken back, so with somebody at the desk the question is theirs alone.
    """
    if question is None or question.unaskable or not can_elicit(context) or context.session.can_send_request:
        return None
    if not open_questions.has(question) and Desk(places()).is_attended_for(question.project):
        return None
    return Elicit(_worded(question, open_questions.number(question)), _form(question.options))


def _worded(question: Question, number: str) -> str:
    """Write a question with all that a person needs to answer it.

    Four blanks make a client that knows Markdown show the lines as they are. The digest is of all that the answer is
    for, be it shown or not.
    """
    indented = "\n".join(f"    {line}" for line in question.lines)
    return f"{INTRODUCTION}\n\n{indented}\n\n(question {number}, {question.digest})"


class AnsweredBefore:
    """Somebody who was asked one question before, and whose answer is for that one alone.

    Where it turns out to be about something else by now, `again` is asked; without that, the call fails.
    """

    def __init__(self, question: Question, answer: str, again: "Ask | None") -> None:
        self._digest = question.digest
        self._answer = answer
        self._again = again
        self._is_used = False

    def put(self, asked: "Asked") -> None:
        """Answer, or have it asked again."""
        if asked.question.digest == self._digest and self._answer in asked.question.options:
            asked.answer(self._answer)
            self._is_used = True
        elif self._again is not None:
            self._again.put(asked)
        elif self._is_used:
            asked.answer(None)  # the command runs, and has come upon something else
        else:
            asked.fail(
                ChangedMeanwhile(
                    "what the user was asked about has changed since: nothing was done",
                    hint="call it again: the user is then asked about what it is now",
                )
            )


class PersonBehindClient:
    """The person behind a client of the older era, asked while the tool runs."""

    def __init__(self, context: Context[Any, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    def put(self, asked: "Asked") -> None:
        """Show the question; the answer comes when it comes."""
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
            _worded(asked.question, new_id()), schema, related_request_id=self._context.request_id
        )
        answer = (result.content or {}).get("answer") if result.action == "accept" else DENY_ONCE
        asked.answer(answer if answer in options else DENY_ONCE)


def answering(question_of: Callable[..., Awaitable[Question | None]]) -> "Callable[..., Awaitable[list[Ask]]]":
    """Return what finds out who may answer for a call: who was asked before it, the client while it runs, or others.

    `question_of` finds out what can be foreseen. A question that was asked before the call is settled with that.
    """

    async def asked(ctx: Context[Any, Any], question: Annotated[Any, Resolve(question_of)]) -> Any:
        return _asked_before(ctx, question, clients_of(ctx).open_questions)

    async def who_answers(
        ctx: Context[Any, Any], question: Annotated[Any, Resolve(question_of)],
        outcome: Annotated[ElicitationResult[Any], Resolve(asked)],
    ) -> list[Any]:  # fmt: skip
        clients = clients_of(ctx)
        can_ask_now = can_elicit(ctx) and ctx.session.can_send_request
        client = PersonBehindClient(ctx, asyncio.get_running_loop()) if can_ask_now else None
        if question is not None:
            clients.open_questions.close(question)
            if outcome.action != "accept" or outcome.data is not None:
                answer = outcome.data.answer if isinstance(outcome, AcceptedElicitation) else DENY_ONCE
                return [AnsweredBefore(question, answer, client)]
        return list(clients.others) if client is None else [client]

    return who_answers
