"""Commands that serve others until they are ended: mcp, web, notify.

`notify` has questions shown as notifications of the desktop, answered by their buttons. Whoever runs it is present at
the desk as long as the desktop shows notifications: `org.freedesktop.Notifications`, on the session's own bus, which no
command reaches.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack, closing
from html import escape
from typing import TYPE_CHECKING, Any

from fumehood.core.questions import ONCE, Question, scope
from fumehood.errors import Unavailable, lacking
from fumehood.faces.cli.commands import Context, command, flag, option, several
from fumehood.faces.cli.output import whole_number
from fumehood.faces.cli.screen import KEYS
from fumehood.service.desk import Desk, OpenQuestion
from fumehood.service.opened import OpenedStore

if TYPE_CHECKING:
    import argparse
    from collections.abc import Set

    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

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
    opens_records=False,  # each client's sandbox does that
)  # fmt: skip
def _mcp(options: argparse.Namespace) -> int:
    try:
        from fumehood.faces.mcp.server import serve
    except ModuleNotFoundError as error:
        raise lacking(error, "the MCP server", "mcp", _MCP_EXTRA) from error
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
    several("--host", "NAME", "a name by which your own tunnel is reached", default=[]), opens_records=False,
)  # fmt: skip
def _web(options: argparse.Namespace) -> int:
    try:
        from fumehood.faces.web.app import serve
    except ModuleNotFoundError as error:
        raise lacking(error, "the page", "web", _WEB_EXTRA) from error
    return serve(options.port, bind=options.bind, hosts=tuple(options.host), opens=not options.no_open)


# ---- Questions as notifications of the desktop.

_NAME, _PATH = "org.freedesktop.Notifications", "/org/freedesktop/Notifications"
_BUS, _BUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
_LOOKS_EVERY_S = 0.2
_URGENT = 2  # it stays until it is answered
_NEVER = 0  # when it expires
_ELSEWHERE = "fumehood web and fumehood watch show questions too"


@command(
    "notify", "show what is asked as notifications of the desktop, with buttons that answer",
    "fumehood notify\nfumehood notify --project .      what is asked about this project only",
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
        await self._close(self._shown.keys() - waiting.keys())
        for key, question in waiting.items():
            if key not in self._shown:
                await self._show(question)

    async def end(self) -> None:
        """Be present no longer."""
        self._presence.close()
        await self._close({*self._shown})

    async def _close(self, keys: Set[str]) -> None:
        for number in filter(None, map(self._shown.pop, keys)):
            await self._call(_NAME, _PATH, _NAME, "CloseNotification", "u", [number])

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

    def _take(self, message: Message) -> None:
        if message.sender == _BUS and message.member == "NameOwnerChanged" and message.body[0] == _NAME:
            # What was shown is gone with the program that did. Another one is looked for.
            self._owner = ""
            self._shown.clear()
            self._presence.close()
        elif message.sender == self._owner and message.interface == _NAME:
            key = next((key for key, number in self._shown.items() if number == message.body[0]), None)
            if key is not None and message.member == "ActionInvoked":
                option = message.body[1]
                question = next((each for each in self._desk.waiting(self._project) if each.id == key), None)
                if question is not None and option in question.question.options:
                    self.answered += question.answer(option)
            elif key is not None and message.member == "NotificationClosed":
                self._shown[key] = 0  # that is no answer: others may give one

    async def _call(
        self, name: str, path: str, interface: str, member: str, signature: str = "", body: list[Any] | None = None
    ) -> Message | None:
        """Call a method; None where that failed, because the program is gone or never was there."""
        from dbus_fast import Message, MessageType

        message = Message(
            destination=name, path=path, interface=interface, member=member, signature=signature, body=body or []
        )
        reply = await self._bus.call(message)
        return None if reply.message_type is MessageType.ERROR else reply


def buttons(question: Question) -> list[str]:
    """Return the answers that a question allows with their words; for once first: a desktop may show but three."""
    options = sorted(question.options, key=lambda option: scope(option) != ONCE)
    return [text for option in options for text in (option, question.worded(KEYS[option][1]).capitalize())]
