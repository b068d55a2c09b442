"""Commands that run servers, or use them: mcp, web, worker, fleet, notify.

`fleet` sends commands to a queue, and `worker` does them on another machine; what they change comes back held.

`notify` shows questions as desktop notifications with buttons (`org.freedesktop.Notifications`). While it runs, the
person counts as present at the desk. It uses the session bus, which no command in the hood can reach.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack, closing
from html import escape
from typing import TYPE_CHECKING, Any

from fumehood.core.questions import ONCE, Question, answer_scope
from fumehood.core.report import Run, how_many, printable
from fumehood.core.request import shell_quote
from fumehood.errors import BadRequest, FumehoodError, Unavailable, missing_package_error
from fumehood.faces.cli.commands import Context, argument, command, flag, option, repeated_option, subcommands
from fumehood.faces.cli.output import print_error, time_limit_argument, whole_number
from fumehood.faces.cli.run_text import print_run, run_label
from fumehood.faces.cli.screen import WORDS
from fumehood.service.ask import Desk, OpenQuestion
from fumehood.service.fleet import PACKAGES
from fumehood.service.opened import OpenedStore

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence, Set

    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

    from fumehood.service.fleet.sender import FleetSender

_PORT = whole_number(0, 65535)
_MCP_EXTRA = ("mcp", "mcp_types", "pydantic", "anyio")  # packages that the extra `mcp` brings
_WEB_EXTRA = ("starlette", "uvicorn", "jinja2", "markupsafe", "anyio", "python_multipart")


@command(
    "mcp", "serve agents that speak MCP, on standard input and output",
    "fumehood mcp --project .\nfumehood mcp --http 8017        with a token, on this machine only",
    option("--http", "PORT", "serve HTTP on 127.0.0.1 instead; 0 takes a free port", type=_PORT),
    option("--session", "NAME", "the session that its runs belong to (default: a new one)"),
    option("--draft", "NAME", "the draft that its runs are in, which begins if there is none"),
    flag("--own-tmp", "serve only where the commands of a session can share a /tmp"),
    opens_records=False,  # each client's sandbox opens them
)  # fmt: skip
def _mcp(options: argparse.Namespace) -> int:
    try:
        from fumehood.faces.mcp.server import serve
    except ModuleNotFoundError as error:
        raise missing_package_error(error, "the MCP server", "mcp", _MCP_EXTRA) from error
    project = options.project
    if options.workspace is not None:
        with closing(OpenedStore()) as store:
            project = store.workspaces.find(options.workspace).path
    if options.http is None and os.isatty(0):
        sys.stderr.write("fumehood: waits for an MCP client on standard input; fumehood setup CLIENT connects one\n")
    return serve(project, options.session, options.http, own_tmp=options.own_tmp, draft=options.draft)


@command(
    "web", "show what runs, what is asked and what waits in a browser",
    "fumehood web\nfumehood web --port 8017 --no-open",
    option("--port", "N", "default: a free one, another each time", type=_PORT, default=0),
    flag("--no-open", "don't start a browser"),
    option("--bind", "ADDRESS", "listen here instead of on this machine alone", default="127.0.0.1"),
    repeated_option("--host", "NAME", "a name by which your own tunnel is reached", default=[]), opens_records=False,
)  # fmt: skip
def _web(options: argparse.Namespace) -> int:
    try:
        from fumehood.faces.web.app import serve
    except ModuleNotFoundError as error:
        raise missing_package_error(error, "the page", "web", _WEB_EXTRA) from error
    return serve(options.port, bind=options.bind, hosts=tuple(options.host), opens=not options.no_open)


_PLACEHOLDER = "{}"
_QUEUE = (
    option("--redis", "URL", "where the queue is (default: the variable FUMEHOOD_REDIS, which no process list shows)",
           default=os.environ.get("FUMEHOOD_REDIS", "")),
    option("--store", "URL", "where files wait, by fsspec: file:///DIR, s3://BUCKET (default: Redis)",
           default=os.environ.get("FUMEHOOD_STORE", "")),
    option("--queue", "NAME", "one of several queues", default=""),
)  # fmt: skip


def _queue_address(context: Context) -> str:
    address: str = context.options.redis
    if not address:
        raise BadRequest("where is the queue?", hint="--redis redis://HOST:6379, or the variable FUMEHOOD_REDIS")
    return address


@command(
    "worker", "do what others send, in the hood, until it is ended",
    "fumehood worker --redis rediss://:PASSWORD@queue.example.org\n"
    "FUMEHOOD_REDIS=… fumehood worker --store s3://bucket/blobs",
    *_QUEUE, option("--directory", "DIR", "where copies of projects are kept", default=""),
    flag("--burst", "end when nothing is left to do"),
)  # fmt: skip
def _worker(context: Context) -> int:
    try:
        from fumehood.service.fleet.worker import work
    except ModuleNotFoundError as error:
        raise missing_package_error(error, "the fleet", "fleet", PACKAGES) from error
    options, address = context.options, _queue_address(context)
    context.store.close()
    named = {"name": options.queue} if options.queue else {}
    return work(address, store=options.store, directory=options.directory, burst=options.burst, **named)


@command(
    "fleet", "have commands done by workers on other machines; what they change is held here",
    "fumehood fleet plan --redis redis://queue.example.org\nfumehood fleet run -- 'make test'\n"
    "fumehood fleet map --from tasks.txt -- 'python solve.py {}'\nfumehood fleet attach 01kabc…",
    subcommands("list", "plan", "run", "map", "best", "attach", "cancel"),
    argument("rest", nargs="*", metavar="COMMAND", help="the command, or the job's id"), *_QUEUE,
    option("--key", "FILE", "sign the jobs with this key (default: sign.key)", default=""),
    repeated_option("--include", "PATH", "send this path although ignored", default=[]),
    option("--cwd", "DIR", "where in the project the command starts", default=""),
    option("--timeout", "SECONDS", "end each command after this time", type=time_limit_argument),
    option("--root", "NAME", "a root that the worker has", default="host"),
    repeated_option("--allow-host", "HOST[:PORT]", "ask for this host", default=[]),
    repeated_option("--env", "NAME=VALUE", "set this variable", default=[]),
    repeated_option("--secret", "NAME", "a variable that the worker has", default=[]),
    repeated_option("--limit", "NAME=AMOUNT", "as limits.NAME, in bytes", default=[]),
    flag("--first", "before all that waits; of several such, the latest"),
    flag("--detach", "don't wait: fleet attach ID comes back for it"),
    option("--from", "FILE", "map: one job for each line; it stands for {}", dest="items"),
    option("-n", "N", "best: how many", dest="count", type=whole_number(1, 1000), default=8),
    option("--check", "CMD", "best: what a candidate must pass; run in each", default=""),
    option("--score", "CMD", "best: prints a number, the higher the better", default=""),
    flag("--keep", "best: keep the drafts of the others too"), flag("--hold", "best: apply nothing"),
)  # fmt: skip
def _fleet(context: Context) -> int:
    options, address = context.options, _queue_address(context)
    act = {
        "list": _list, "plan": _plan, "run": _run, "map": _map, "best": _best, "attach": _attach, "cancel": _cancel,
    }[options.subcommand]  # fmt: skip
    with context.sandbox() as sandbox:
        sender = sandbox.fleet(
            address, store=options.store, key=options.key, queue=options.queue, include=options.include
        )
        sender.on_wait = lambda why: print(f"fumehood: {why}", file=sys.stderr, flush=True)
        return act(context, sender)


def _job_settings(context: Context) -> dict[str, Any]:
    options = context.options
    for each in options.limit:
        if not each.partition("=")[2].isdigit():
            raise BadRequest(f"{each} is not a limit", hint="--limit memory=1073741824")
    for each in options.env:
        if "=" not in each:
            raise BadRequest(f"{each} is not a variable with a value", hint="--env NAME=VALUE, or --secret NAME")
    limits, variables = (dict(each.partition("=")[::2] for each in pairs) for pairs in (options.limit, options.env))
    return {
        "cwd": options.cwd, "timeout": options.timeout, "root": options.root, "hosts": options.allow_host,
        "env": variables, "secrets": options.secret, "limits": {name: int(amount) for name, amount in limits.items()},
        "first": options.first,
    }  # fmt: skip


def _command_to_run(context: Context) -> str | list[str]:
    rest: list[str] = context.options.rest
    if not rest:
        raise BadRequest("which command?", hint="fumehood fleet run -- COMMAND")
    return rest[0] if len(rest) == 1 else rest


def _job_id(context: Context) -> str:
    rest: list[str] = context.options.rest
    if len(rest) != 1:
        raise BadRequest("which job?", hint="fumehood fleet list shows them")
    return rest[0].lower()


def _plan(context: Context, sender: FleetSender) -> int:
    plan = sender.plan()
    lines = [
        f"{'there' if each['sent'] else 'send '} {each['size']:>12,}  {printable(each['path'])}"
        for each in plan["files"]
    ]  # fmt: skip
    lines += [f"stays {'':>12}  {printable(each['path'])}  ({each['reason']})" for each in plan["at_home"]]
    files = how_many(len(plan["files"]), "file")
    return context.print_result(
        plan, [*lines, f"{files}, {plan['bytes']:,} bytes; {plan['to_send']:,} are not there yet"]
    )


def _run(context: Context, sender: FleetSender) -> int:
    job = sender.send(_command_to_run(context), **_job_settings(context))
    if context.options.detach:
        return context.print_result({"job": job}, job)
    if not context.as_json:
        print(f"fumehood: job {job}", file=sys.stderr, flush=True)
    return _wait_for_job(context, sender, job)


def _attach(context: Context, sender: FleetSender) -> int:
    return _wait_for_job(context, sender, _job_id(context))


def _wait_for_job(context: Context, sender: FleetSender, job: str) -> int:
    def tell(stream: str, text: str) -> None:
        (sys.stdout if stream == "stdout" else sys.stderr).write(text)

    _print_missing_workers(context, sender)
    try:
        run = sender.attach(job, on_output=None if context.as_json else tell)
    except KeyboardInterrupt:
        print(f"\nfumehood: it goes on; fumehood fleet attach {job} comes back for it", file=sys.stderr)
        return 130
    sys.stdout.flush()
    if not context.print_if_json({"job": job, **run.as_dict()}):
        print_run(run, sys.stderr)
        if run.state in ("failed", "refused"):
            print_error(FumehoodError(run.reason, hint=f"fumehood show {run.name}"))
    return _exit_code(run)


def _print_missing_workers(context: Context, sender: FleetSender) -> None:
    """Say that no worker is there, so the job may wait long."""
    if not context.as_json and not sender.workers():
        print("fumehood: no worker is at this queue; the job waits for one", file=sys.stderr, flush=True)


def _exit_code(run: Run) -> int:
    if run.state in ("failed", "refused"):
        return 126 if run.state == "refused" else 125
    return 124 if run.timed_out else run.exit_code or 0


def _map(context: Context, sender: FleetSender) -> int:
    line = _command_to_run(context)
    if not isinstance(line, str) or _PLACEHOLDER not in line or not context.options.items:
        raise BadRequest(
            "map needs a shell line with {} in it, and a file with what it stands for",
            hint="fumehood fleet map --from tasks.txt -- 'python solve.py {}'",
        )
    try:
        with sys.stdin if context.options.items == "-" else open(context.options.items, encoding="utf-8") as file:
            items = [each.rstrip("\n") for each in file if each.strip()]
    except OSError as error:
        raise BadRequest(f"{context.options.items} can't be read: {error.strerror}", hint="check the path") from error
    ids: dict[str, str] = {}
    job_settings = _job_settings(context)
    for item in items:
        ids[sender.send(line.replace(_PLACEHOLDER, shell_quote(item)), fresh=not ids, **job_settings)] = item
    if context.options.detach:
        return context.print_result({"jobs": list(ids)}, ids)
    runs = {}
    _print_missing_workers(context, sender)
    try:
        for job, run in sender.results(list(ids)):
            runs[job] = run
            if not context.as_json:
                ended = f"exit {run.exit_code}, {how_many(len(run.changes), 'change')}"
                said = f"{run_label(run)}: {run.state}, {ended if run.exit_code is not None else printable(run.reason)}"
                print(f"{said}  {printable(ids[job])}", flush=True)
    except KeyboardInterrupt:
        left = [job for job in ids if job not in runs]
        print(f"\nfumehood: {len(left)} go on; fumehood fleet attach ID comes back for one", file=sys.stderr)
        return 130
    context.print_if_json(lambda: {"runs": [{"job": job, "item": ids[job], **runs[job].as_dict()} for job in ids]})
    return max((1 if _exit_code(run) else 0 for run in runs.values()), default=0)


def _best(context: Context, sender: FleetSender) -> int:
    from fumehood.faces.cli.drafts import print_best, print_candidate

    options = context.options
    _print_missing_workers(context, sender)
    result = sender.best(
        _command_to_run(context), options.count, check=options.check, score=options.score, keep=options.keep,
        apply=not options.hold, on_candidate=None if context.as_json else print_candidate, **_job_settings(context),
    )  # fmt: skip
    context.print_result(result.as_dict, lambda: print_best(result))
    return 130 if result.is_interrupted else int(result.best is None or (result.run is None and not options.hold))


def _cancel(context: Context, sender: FleetSender) -> int:
    job = _job_id(context)
    sender.cancel(job)
    return context.print_result({"job": job}, f"{job} is cancelled")


def _list(context: Context, sender: FleetSender) -> int:
    notes = [{name: each[name] for name in ("id", "command", "run")} for each in sender.notes()]
    lines = []
    for each in notes:
        command = each["command"] if isinstance(each["command"], str) else " ".join(each["command"])
        name = context.store.history.name_of(each["run"]) if each["run"] else "under way"
        lines.append(f"{each['id']}  {f'#{name}' if name.isdecimal() else name:9}  {printable(command)}")
    return context.print_result({"jobs": notes}, lines)


_NOTIFICATIONS, _NOTIFICATIONS_PATH = "org.freedesktop.Notifications", "/org/freedesktop/Notifications"
_BUS, _BUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
_POLL_S = 0.2
_URGENT = 2  # such a notification stays until it is answered
_NEVER_EXPIRES = 0
_OTHER_FACES = "fumehood web and fumehood watch show questions too"


@command(
    "notify", "show what is asked as notifications of the desktop, with buttons that answer",
    "fumehood notify\nfumehood notify --project .      what is asked about this project only",
)  # fmt: skip
def _notify(context: Context) -> int:
    import asyncio  # here, because it takes a while to load

    named = context.options.project is not None or context.options.workspace is not None
    desk, project = Desk(context.store.places), context.project.path if named else ""
    try:
        answered = asyncio.run(_serve_notifications(desk, project))
    except ModuleNotFoundError as error:
        raise missing_package_error(error, "showing notifications", "desktop", ("dbus_fast",)) from error
    return context.print_result({"answered": answered}, ())


async def _serve_notifications(desk: Desk, project: str) -> int:
    import asyncio

    from dbus_fast import AuthError, InvalidAddressError
    from dbus_fast.aio import MessageBus

    try:
        bus = await MessageBus().connect()
    except (AuthError, InvalidAddressError, OSError) as error:
        raise Unavailable(f"there is no desktop session here: {error}", hint=_OTHER_FACES) from error
    ended = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    disconnected = asyncio.create_task(bus.wait_for_disconnect())  # type: ignore[no-untyped-call]
    disconnected.add_done_callback(lambda _ending: ended.set())
    notifier = Notifier(desk, project, bus)
    try:
        await notifier.begin()
        print("questions are shown as notifications of the desktop; Ctrl-C ends that", flush=True)
        while not ended.is_set():
            await notifier.look()
            try:
                await asyncio.wait_for(ended.wait(), _POLL_S)
            except TimeoutError:
                continue
        return notifier.answered
    finally:
        if bus.connected:
            await notifier.end()
            bus.disconnect()
        disconnected.cancel()


class Notifier:
    """Shows each open question as a notification, and answers it when a button is pressed."""

    def __init__(self, desk: Desk, project: str, bus: MessageBus) -> None:
        self._desk = desk
        self._project = project
        self._bus = bus
        self._owner = ""  # the bus address of the program that shows notifications; other senders are ignored
        self._is_marked_up = False
        self._shown: dict[str, int] = {}  # by question, the number of its notification; 0 if the person closed it
        self._signals: list[Message] = []  # kept until `look`: a button may be pressed before we know the number
        self._presence = ExitStack()
        self.answered = 0

    async def begin(self) -> None:
        """Find the program that shows notifications, and listen to its signals."""
        self._bus.add_message_handler(lambda message: self._signals.append(message))  # noqa: PLW0108 - it returns None
        for rule in (
            f"type='signal',sender='{_NOTIFICATIONS}',interface='{_NOTIFICATIONS}'",
            f"type='signal',sender='{_BUS}',member='NameOwnerChanged',arg0='{_NOTIFICATIONS}'",
        ):
            await self._call("AddMatch", "s", [rule], name=_BUS, path=_BUS_PATH)
        if not await self._find_notification_server():
            raise Unavailable("this desktop has nothing that shows notifications with buttons", hint=_OTHER_FACES)

    async def _find_notification_server(self) -> bool:
        """Attend the desk if a program shows notifications with buttons; the bus may have to start that program."""
        reply = await self._call("GetCapabilities")
        if reply is None or "actions" not in reply.body[0]:
            return False
        self._owner = reply.sender or ""
        self._is_marked_up = "body-markup" in reply.body[0]
        self._presence.enter_context(self._desk.attend(self._project))
        return True

    async def look(self) -> None:
        """Handle pressed buttons, show new questions, and close the notifications of answered ones."""
        signals, self._signals = self._signals, []
        for message in signals:
            self._handle_signal(message)
        if not self._owner and not await self._find_notification_server():
            return
        waiting = {each.id: each for each in self._desk.waiting(self._project)}
        await self._close(self._shown.keys() - waiting.keys())
        for key, question in waiting.items():
            if key not in self._shown:
                await self._show(question)

    async def end(self) -> None:
        """Leave the desk, and close all notifications."""
        self._presence.close()
        await self._close({*self._shown})

    async def _close(self, keys: Set[str]) -> None:
        for number in filter(None, map(self._shown.pop, keys)):
            await self._call("CloseNotification", "u", [number])

    async def _show(self, question: OpenQuestion) -> None:
        from dbus_fast import Variant

        lines = "\n".join(question.question.lines)
        body = [
            "Fumehood", 0, "dialog-question", "Fumehood asks", escape(lines) if self._is_marked_up else lines,
            buttons(question.question), {"urgency": Variant("y", _URGENT)}, _NEVER_EXPIRES,
        ]  # fmt: skip
        reply = await self._call("Notify", "susssasa{sv}i", body)
        if reply is not None:
            self._shown[question.id] = reply.body[0]

    def _handle_signal(self, message: Message) -> None:
        if message.sender == _BUS and message.member == "NameOwnerChanged" and message.body[0] == _NOTIFICATIONS:
            # The program has ended, and its notifications with it. `look` searches for another one.
            self._owner = ""
            self._shown.clear()
            self._presence.close()
        elif message.sender == self._owner and message.interface == _NOTIFICATIONS:
            key = next((key for key, number in self._shown.items() if number == message.body[0]), None)
            if key is not None and message.member == "ActionInvoked":
                option = message.body[1]
                question = next((each for each in self._desk.waiting(self._project) if each.id == key), None)
                if question is not None and option in question.question.options:
                    self.answered += question.answer(option)
            elif key is not None and message.member == "NotificationClosed":
                self._shown[key] = 0  # closing is no answer: another face may still answer

    async def _call(
        self, member: str, signature: str = "", body: Sequence[Any] = (), *, name: str = _NOTIFICATIONS,
        path: str = _NOTIFICATIONS_PATH,
    ) -> Message | None:  # fmt: skip
        """Call a method on the bus; returns None if that fails, because the program is not there."""
        from dbus_fast import Message, MessageType

        message = Message(name, path, name, member, signature=signature, body=[*body])
        reply = await self._bus.call(message)
        return None if reply.message_type is MessageType.ERROR else reply


def buttons(question: Question) -> list[str]:
    """Return the answers that a question allows, each with its text; "once" first: a desktop may show only three."""
    options = sorted(question.options, key=lambda option: answer_scope(option) != ONCE)
    return [text for option in options for text in (option, question.worded(WORDS[option][1]).capitalize())]
