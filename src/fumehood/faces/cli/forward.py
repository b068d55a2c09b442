"""The command `forward`: a port of a session, opened to the person's own programs."""

from __future__ import annotations

import socket
import sys

from fumehood.core.report import printable
from fumehood.core.request import loopback_of
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Context
from fumehood.faces.cli.output import whole_number
from fumehood.service import forward, now
from fumehood.store.history import Reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.faces.cli.commands import Add


def add_commands(add: Add) -> None:
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
            forward.serve(context.store, session, options.port, listener, lambda text: print(text, file=sys.stderr))
        except KeyboardInterrupt:
            return 0


def _latest(context: Context) -> str:
    """Return the session whose command began last of those that run now."""
    for run in now.running(context.store, Reach(project=context.project.id)):
        if run.session:
            return run.session if run.draft is None else loopback_of(run.draft)
    raise BadRequest("no command of a session runs now", hint="fumehood ps shows what runs; --session NAME")
