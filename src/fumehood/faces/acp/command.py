"""`fumehood acp`: start an agent for an editor, in the hood or with our hooks, and stand between the two."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from typing import TYPE_CHECKING

from fumehood.errors import BadRequest, plain_error
from fumehood.faces.acp.asking import BehindEditor
from fumehood.faces.acp.conversation import InHood, WithHooks
from fumehood.faces.acp.exchange import PATIENCE_S, Exchange
from fumehood.faces.cli import agent, run
from fumehood.faces.cli.output import tell_error
from fumehood.faces.cli.setup_clients import installed_command
from fumehood.linux.libc import PR_SET_PDEATHSIG, prctl
from fumehood.service.opened import OpenedStore
from fumehood.store.audit import CLI

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HELP = """usage: fumehood acp [OPTIONS] -- AGENT [ARG…]
       fumehood acp --hooks -- AGENT [ARG…]

Stand between an editor and an agent that speak the Agent Client Protocol, on standard input and output: name this
command in the editor's settings where the agent's own was.

The agent runs in the hood, as by `fumehood agent`: with its profile's hosts and credentials, in the project that holds
the current directory. What the hood must ask is put to you by the editor. The agent is not offered the editor's files
and terminals, which are outside; it edits and runs everything itself, and all of it is one run.

With --hooks the agent runs outside, as it is, and must have been connected by `fumehood setup`; what it runs in the
editor's terminals runs in the hood, each as a run of its own.

options: those of `fumehood agent`, except --json and --tty
  --hooks            do not run the agent in the hood
  -h, --help         show this help

exit code: the agent's own

examples, as an editor has them:
  fumehood acp -- claude-agent-acp
  fumehood acp --allow-host api.example.org -- gemini --acp
  fumehood acp --hooks -- codex-acp
"""

_HOOKS = "--hooks"


def main(arguments: Sequence[str]) -> int:
    """Serve one editor; returns the agent's exit code."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours = [word for word in arguments[:end] if word != _HOOKS]
    options = run.parse([*ours, *arguments[end:]], agent.MORE, agent.FLAGS)
    if options is None:
        sys.stdout.write(HELP)
        return 0
    if end == len(arguments) or not options.command:
        raise BadRequest("acp needs an agent", hint="fumehood acp -- AGENT …")
    wrong = options.flags & {"--json", "--tty", "--explain"}
    if wrong:
        raise BadRequest(f"acp does not take {wrong.pop()}", hint="standard output is the editor's")
    for number, name in enumerate(("input", "output")):
        mode = os.fstat(number).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)):
            raise BadRequest(f"standard {name} leads to no editor", hint="an editor starts this command, by pipes")
    editor = os.dup(0), os.dup(1)
    if _HOOKS in arguments[:end]:

        def execute(_channel: int) -> int:
            os.execvp(options.command[0], options.command)

        return _stand_between(WithHooks(installed_command()), editor, execute)
    store = OpenedStore(face=CLI)
    roots = store.projects.open(run.chosen_project(store, options, "")).roots
    store.close()

    editors = os.getpid()

    def employ(channel: int) -> int:
        _outlive(editors)
        return agent.main([*ours, *arguments[end:]], lambda: (BehindEditor(channel),))

    return _stand_between(InHood(roots), editor, employ)


def _stand_between(
    conversation: InHood | WithHooks, editor: tuple[int, int], be_agent: Callable[[int], int]
) -> int:
    """Fork what is or runs the agent, which gets the socket to ask through, and carry what the two say."""
    agent_reads, to_agent = os.pipe()
    from_agent, agent_writes = os.pipe()
    ours, theirs = socket.socketpair()
    process = os.fork()
    if not process:
        os.dup2(agent_reads, 0)
        os.dup2(agent_writes, 1)
        for descriptor in (agent_reads, to_agent, from_agent, agent_writes, *editor, ours.detach()):
            os.close(descriptor)
        _be(lambda: be_agent(theirs.fileno()))
    # Standard output is the editor's alone.
    os.dup2(2, 1)
    for descriptor in (agent_reads, agent_writes, theirs.detach()):
        os.close(descriptor)
    exchange = Exchange(conversation, editor, (from_agent, to_agent), process, ours)
    return asyncio.run(exchange.carry())


def _outlive(process: int) -> None:
    """Have the agent ended some time after the process that talks to the editor is dead, if it does not end by then.

    Editors kill what they started. Most agents end with their input, and what they did is then judged as ever.
    """
    signal.signal(signal.SIGUSR1, lambda *_: signal.alarm(PATIENCE_S))
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != process:
        os.kill(os.getpid(), signal.SIGUSR1)


def _be(act: Callable[[], int]) -> None:
    """End this process with what an act returns."""
    code = 125
    try:
        code = act()
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001 - whatever nobody foresaw is one line and our own exit code
        plain = plain_error(error)
        tell_error(plain)
        code = plain.exit_code
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
