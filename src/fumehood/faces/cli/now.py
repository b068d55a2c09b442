"""Commands about what runs now, and is asked: ps, stop, checkpoint, forward, status, ask, notify.

`notify` has questions shown as notifications of the desktop, answered by their buttons. Whoever runs it is present at
the desk as long as the desktop shows notifications: `org.freedesktop.Notifications`, on the session's own bus, which no
command reaches.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import ExitStack
from html import escape
from typing import TYPE_CHECKING, Any

from fumehood.core.inside import widenings
from fumehood.core.network import FULL
from fumehood.core.questions import ONCE, Question, scope
from fumehood.core.report import Run, picked, printable
from fumehood.core.report import short as brief
from fumehood.core.request import loopback_of
from fumehood.core.wording import elapsed, fitted
from fumehood.errors import BadRequest, Unavailable, lacking
from fumehood.faces.cli.commands import Add, Context, add_reach, add_run, paint
from fumehood.faces.cli.output import here, whole_number, width
from fumehood.faces.cli.screen import KEYS, terminal
from fumehood.faces.cli.telling import line_of, numbered, tell_run
from fumehood.service import loopback, now
from fumehood.service.ask import settle_access
from fumehood.service.desk import Desk, OpenQuestion
from fumehood.service.overview import missed_questions
from fumehood.service.permission import Permissions, widened
from fumehood.service.settle import FAILED
from fumehood.service.undo import has_backups
from fumehood.store.history import Reach

if TYPE_CHECKING:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus


def add_commands(add: Add) -> None:
    """Make `ps`, `stop` and `checkpoint` known."""
    shows = add("ps", "show what runs now", _ps, "  fumehood ps\n  fumehood ps --all")
    shows.add_argument("--all", action="store_true", help="in every project")
    ends = add("stop", "end a command that runs; what it wrote is held", _stop, "  fumehood stop last")
    add_run(ends)
    settles = add(
        "checkpoint", "settle what a command that runs has finished writing; it goes on", _checkpoint,
        "  fumehood checkpoint last",
    )  # fmt: skip
    add_run(settles)
    for command in (shows, ends, settles):
        add_reach(command)


def _ps(context: Context) -> int:
    reach = Reach() if context.options.all else Reach(project=context.project.id)
    runs = now.running(context.store, context.reach, reach)

    def show() -> None:
        for run in runs:
            line = line_of(run, printable)
            where = f"  {printable(run.project)}" if context.options.all else ""
            since = elapsed(time.time() - run.started_at)
            print(f"{numbered(run):5}  {since:>8}  {brief(run.command)}{'  ' if line else ''}{line}{where}")
        if not runs:
            print("nothing runs")

    fields = "run number project command cwd session started_at network"
    return context.say({"runs": [picked(run, fields) for run in runs]}, show)


def _stop(context: Context) -> int:
    run = now.stop(context.store, context.run(context.options.run))
    return context.say(run.as_dict, lambda: tell_run(run, sys.stdout))


def _checkpoint(context: Context) -> int:
    run = now.checkpoint(context.store, context.run(context.options.run))

    def show() -> None:
        if not run.changed:
            print(f"fumehood: nothing was settled{f': {printable(run.reason)}' if run.reason else ''}")
        tell_run(run, sys.stdout)

    context.say(run.as_dict, show)
    return 125 if run.state == FAILED else 0


def add_forward(add: Add) -> None:
    """Make `forward` known."""
    command = add(
        "forward", "open a port of a session to this machine's programs, until Ctrl-C", _forward,
        "  fumehood forward 8000\n  fumehood forward 8000 --session agent-1 --to 9000\n"
        "  fumehood forward 3000 --draft idea --to 3001",
    )  # fmt: skip
    command.add_argument("port", type=whole_number(1, 65535), metavar="PORT", help="where a command listens")
    command.add_argument("--session", metavar="NAME", help="default: the latest with a command that runs")
    command.add_argument("--draft", metavar="NAME", help="a draft's instead")
    command.add_argument("--to", type=whole_number(1, 65535), metavar="PORT", help="the port here, if it is another")


def _forward(context: Context) -> int:
    options = context.options
    if options.draft is not None:
        session = loopback_of(context.store.drafts.find(context.project.id, options.draft).id)
    else:
        session = options.session or _latest(context)
        if options.session and context.store.sessions.find(session) is None:
            raise BadRequest(f"there is no session {session}", hint="fumehood log shows the names of sessions")
    networks = {run.network for run in now.running(context.store) if run.session == session}
    if networks == {FULL}:
        message = f"what runs in session {session} has the whole network: it listens on this machine itself"
        raise BadRequest(message, hint=f"http://127.0.0.1:{options.port}/ needs nothing to lead there")
    here = options.to or options.port
    try:
        listener = socket.create_server(("127.0.0.1", here))
    except OSError as error:
        another = f"another one: fumehood forward {options.port} --to …"
        raise BadRequest(f"port {here} can't be opened here: {error.strerror}", hint=another) from error
    answer = {"address": "127.0.0.1", "port": here, "session": session, "to": options.port, "draft": options.draft}
    whose = f"session {printable(session)}" if options.draft is None else f"draft {printable(options.draft)}"
    meaning = f"port {options.port} of {whose}"
    with listener:
        context.say(answer, lambda: print(f"http://127.0.0.1:{here}/ is {meaning}; Ctrl-C ends it"))
        sys.stdout.flush()
        try:
            loopback.serve(context.store, session, options.port, listener, lambda text: print(text, file=sys.stderr))
        except KeyboardInterrupt:
            return 0


def _latest(context: Context) -> str:
    """Return the session whose command began last of those that run now."""
    for run in now.running(context.store, Reach(project=context.project.id)):
        if run.session:
            return run.session if run.draft is None else loopback_of(run.draft)
    raise BadRequest("no command of a session runs now", hint="fumehood ps shows what runs; --session NAME")


_MISSED = 5  # questions that found nobody that are shown


def add_access(add: Add) -> None:
    """Make `status` and `ask` known."""
    status = add(
        "status", "show what runs, what waits, what was taken back last, and what commands may do here", _status,
        "  fumehood status\n  fumehood status --session claude-1",
    )  # fmt: skip
    ask = add(
        "ask", "let an agent's commands reach a host, see a path of the home, or write a directory", _ask,
        "  fumehood ask example.org --session claude-1\n  fumehood ask --show ~/.npmrc",
    )  # fmt: skip
    ask.add_argument("hosts", nargs="*", metavar="HOST")
    ask.add_argument("--show", action="append", default=[], metavar="PATH", help="a path of the home, to be read")
    ask.add_argument("--write", action="append", default=[], metavar="DIR", help="a directory, to be written")
    ask.add_argument("--host", action="append", default=[], metavar="HOST", help="as HOST")
    ask.add_argument("--reason", default="", metavar="TEXT", help="why, for whoever is asked")
    for command in (status, ask):
        command.add_argument("--session", metavar="NAME", help="for this session only")
        add_reach(command)


def _ask(context: Context) -> int:
    """Ask whoever is at this terminal; an agent that asks from inside the hood has none."""
    options, store = context.options, context.store
    words = [*options.hosts, *options.host, *(f"--show={path}" for path in options.show)]
    words += [*(f"--write={path}" for path in options.write), f"--reason={options.reason}"]
    asked = widenings(words, lambda path: os.path.join(here(), os.path.expanduser(path)))
    project = store.projects.open(context.project.path)
    session = options.only_session or options.session or ""
    if session and store.sessions.find(session) is None:
        raise BadRequest(f"there is no session {session}", hint="fumehood log shows the names of sessions")
    may_ask = () if options.only_session else terminal
    permissions = Permissions(store, may_ask, patience_s=store.policy_of(project).ask_timeout)
    said = settle_access(store, project, session, asked, permissions.decide)
    return context.say({"asked": [each.fields() for each in asked], "said": said}, lambda: print("\n".join(said)))


def _status(context: Context) -> int:
    options, store = context.options, context.store
    project = context.project
    session = options.only_session or options.session or ""
    policy = widened(store.policy_of(project), store.grants.allowed(project.path, session))
    reach = Reach(project=project.id, sessions=(session,) if session else ())
    held = store.history.runs(context.reach, reach, among=set(store.history.held(project.id)))
    running = now.running(store, context.reach, reach)
    network = policy.network if policy.network != "none" or not policy.hosts else "hosts"
    is_agent = bool(options.only_session)
    missed = [] if is_agent else missed_questions(store, project.path)
    asked = [] if is_agent else Desk(store.places).waiting()
    questions = [each for each in asked if each.question.project in ("", project.path)]
    drafts = store.drafts.open_ones(project.id)
    undo = next(store.history.undos(context.reach, reach), None)
    undone = store.history.find(undo.of) if undo is not None and undo.of is not None else None
    is_part = undone is not None and undone.state != "undone"
    answer = {
        "project": project.path, "session": session or None, "roots": list(project.roots), "network": network,
        "hosts": list(policy.hosts), "show": list(policy.show),
        "held": [_named(run) for run in held], "running": [_named(run) for run in running],
        "drafts": [draft.name for draft in drafts],
        "taken_back": None if undone is None else {**_named(undone), "in_part": is_part},
        "questions": [each.as_dict() for each in questions], "missed": [each.fields() for each in missed],
    }  # fmt: skip

    def show() -> None:
        rows: list[tuple[str, str]] = [("project", project.path)]
        rows += [("session", session)] if session else []
        for run in running:
            rows += [("running", f"{numbered(run)}  {elapsed(time.time() - run.started_at)}  {run.command}")]
        rows += [("waiting", f"{numbered(run)}  {run.command}") for run in held]
        rows += [("", "fumehood review")] if held and not is_agent else []
        rows += [("draft", f"{draft.name}  (fumehood draft diff {draft.name})") for draft in drafts]
        if undone is not None and undo is not None:
            rows += [("undone", f"{numbered(undone)}{'  in part:' if is_part else ''}  {undone.command}")]
            rows += [("", "fumehood redo" if has_backups(undo) else "its backups were cleaned away")]
        rows += [("question", f"{each.question.lines[0]}  (fumehood watch)") for each in questions]
        for each in missed[:_MISSED]:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.at))
            rows += [("missed", f"{when}  {each.text}"), *([("", each.ahead)] if each.ahead else [])]
        if not (running or held or drafts or undone or questions or missed):
            rows += [("", "nothing runs, nothing waits")]
        for name, values in (("write", project.roots), ("hosts", policy.hosts), ("shown", policy.show)):
            rows += [(name, value) for value in values]
        rows += [("network", network)]
        colour, room = paint(), width()
        for name, text in rows:
            said = fitted(printable(text), room - 10) if room else brief(text)
            print(f"{colour(f'{name:9}', 'dim')} {said if name else colour(said, 'dim')}")

    return context.say(answer, show)


def _named(run: Run) -> dict[str, object]:
    return picked(run, "run number command")


# ---- Questions as notifications of the desktop.

_NAME, _PATH = "org.freedesktop.Notifications", "/org/freedesktop/Notifications"
_BUS, _BUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
_LOOKS_EVERY_S = 0.2
_URGENT = 2  # it stays until it is answered
_NEVER = 0  # when it expires
_ELSEWHERE = "fumehood web and fumehood watch show questions too"


def add_notify(add: Add) -> None:
    """Make `notify` known."""
    add(
        "notify", "show what is asked as notifications of the desktop, with buttons that answer", _notify,
        "  fumehood notify\n  fumehood notify --project .      what is asked about this project only",
    )  # fmt: skip


def _notify(context: Context) -> int:
    import asyncio  # here, because it takes a while to load

    named = context.options.project is not None or context.options.workspace is not None
    desk, project = Desk(context.store.places), context.project.path if named else ""
    try:
        answered = asyncio.run(_served(desk, project))
    except ModuleNotFoundError as error:
        raise lacking(error, "showing notifications", "desktop", ("dbus_fast",)) from error
    return context.say({"answered": answered}, lambda: None)


async def _served(desk: Desk, project: str) -> int:
    import asyncio

    from dbus_fast import AuthError, InvalidAddressError
    from dbus_fast.aio import MessageBus

    try:
        bus = await MessageBus().connect()
    except (AuthError, InvalidAddressError, OSError) as error:
        raise Unavailable(f"there is no desktop session here: {error}", hint=_ELSEWHERE) from error
    over = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(each, over.set)
    ending = asyncio.create_task(bus.wait_for_disconnect())  # type: ignore[no-untyped-call]
    ending.add_done_callback(lambda _ending: over.set())
    notifier = Notifier(desk, project, bus)
    try:
        await notifier.begin()
        print("questions are shown as notifications of the desktop; Ctrl-C ends that", flush=True)
        while not over.is_set():
            await notifier.look()
            try:
                await asyncio.wait_for(over.wait(), _LOOKS_EVERY_S)
            except TimeoutError:
                continue
        return notifier.answered
    finally:
        if bus.connected:
            await notifier.end()
            bus.disconnect()
        ending.cancel()


class Notifier:
    """Shows the questions that wait, each in a notification, and takes the buttons for answers."""

    def __init__(self, desk: Desk, project: str, bus: MessageBus) -> None:
        self._desk = desk
        self._project = project
        self._bus = bus
        self._owner = ""  # the address of the program that shows notifications; no other's signals count
        self._is_marked_up = False
        self._shown: dict[str, int] = {}  # questions with their notifications: 0 where a person closed it
        self._signals: list[Message] = []  # a button may be pressed before we hear which notification it is of
        self._presence = ExitStack()
        self.answered = 0

    async def begin(self) -> None:
        """Find the program that shows notifications, and hear from now on what it says."""
        self._bus.add_message_handler(lambda message: self._signals.append(message))  # noqa: PLW0108 - it returns None
        for rule in (
            f"type='signal',sender='{_NAME}',interface='{_NAME}'",
            f"type='signal',sender='{_BUS}',member='NameOwnerChanged',arg0='{_NAME}'",
        ):
            await self._call(_BUS, _BUS_PATH, _BUS, "AddMatch", "s", [rule])
        if not await self._is_present():
            raise Unavailable("this desktop has nothing that shows notifications with buttons", hint=_ELSEWHERE)

    async def _is_present(self) -> bool:
        """Be present if a program shows notifications that can be answered; it may have to be started by the bus."""
        reply = await self._call(_NAME, _PATH, _NAME, "GetCapabilities")
        if reply is None or "actions" not in reply.body[0]:
            return False
        self._owner = reply.sender or ""
        self._is_marked_up = "body-markup" in reply.body[0]
        self._presence.enter_context(self._desk.attend(self._project))
        return True

    async def look(self) -> None:
        """Take the buttons that were pressed, show what is new, and close what was answered."""
        signals, self._signals = self._signals, []
        for message in signals:
            self._take(message)
        if not self._owner and not await self._is_present():
            return
        waiting = {each.id: each for each in self._desk.waiting(self._project)}
        for key in self._shown.keys() - waiting.keys():
            await self._close(self._shown.pop(key))
        for key, question in waiting.items():
            if key not in self._shown:
                await self._show(question)

    async def end(self) -> None:
        """Be present no longer."""
        self._presence.close()
        for number in self._shown.values():
            await self._close(number)

    async def _show(self, question: OpenQuestion) -> None:
        from dbus_fast import Variant

        lines = "\n".join(question.question.lines)
        body = [
            "Fumehood", 0, "dialog-question", "Fumehood asks", escape(lines) if self._is_marked_up else lines,
            buttons(question.question), {"urgency": Variant("y", _URGENT)}, _NEVER,
        ]  # fmt: skip
        reply = await self._call(_NAME, _PATH, _NAME, "Notify", "susssasa{sv}i", body)
        if reply is not None:
            self._shown[question.id] = reply.body[0]

    async def _close(self, number: int) -> None:
        if number:
            await self._call(_NAME, _PATH, _NAME, "CloseNotification", "u", [number])

    def _take(self, message: Message) -> None:
        if message.sender == _BUS and message.member == "NameOwnerChanged" and message.body[0] == _NAME:
            # What was shown is gone with the program that did. Another one is looked for.
            self._owner = ""
            self._shown.clear()
            self._presence.close()
        elif message.sender == self._owner and message.interface == _NAME:
            key = next((key for key, number in self._shown.items() if number == message.body[0]), None)
            if key is not None and message.member == "ActionInvoked":
                self._answer(key, message.body[1])
            elif key is not None and message.member == "NotificationClosed":
                self._shown[key] = 0  # that is no answer: others may give one

    def _answer(self, key: str, option: str) -> None:
        question = next((each for each in self._desk.waiting(self._project) if each.id == key), None)
        if question is not None and option in question.question.options:
            self.answered += question.answer(option)

    async def _call(
        self, name: str, path: str, interface: str, member: str, signature: str = "", body: list[Any] | None = None
    ) -> Message | None:
        """Call a method; None where that failed, because the program is gone or never was there."""
        from dbus_fast import Message, MessageType

        reply = await self._bus.call(
            Message(
                destination=name, path=path, interface=interface, member=member, signature=signature, body=body or []
            )
        )
        return None if reply.message_type is MessageType.ERROR else reply


def buttons(question: Question) -> list[str]:
    """Return the answers that a question allows with their words; for once first: a desktop may show but three."""
    options = sorted(question.options, key=lambda option: scope(option) != ONCE)
    return [text for option in options for text in (option, question.worded(KEYS[option][1]).capitalize())]
