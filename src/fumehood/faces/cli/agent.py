"""`fumehood agent`: a whole agent in the hood, as one long run at the person's terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys

from fumehood.core.config import as_toml
from fumehood.core.inside import known_agents
from fumehood.core.report import printable
from fumehood.core.request import BACKGROUND_AFTER, HOST, Request, shown
from fumehood.errors import BadRequest
from fumehood.faces.cli import run
from fumehood.faces.cli.output import here, text_of
from fumehood.service.agents import find_agent
from fumehood.service.opened import OpenedStore
from fumehood.store.audit import CLI
from fumehood.store.history import CHECKPOINT, RunFilter
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.policy import Policy
    from fumehood.service.ask import Ask

MORE = frozenset({"--keep", "--as"})
FLAGS = frozenset({"--each-command"})


def main(arguments: Sequence[str], editor: Callable[[], Sequence[Ask]] | None = None) -> int:
    """Run an agent; returns its exit code. Where an `editor` has it run, that finds who is asked."""
    options = run.parse(arguments, MORE, FLAGS).checked()
    if options.wants_help:
        sys.stdout.write(text_of("agent.txt"))
        return 0
    if not options.command:
        return _show_all(as_json="--json" in options.flags)
    if "--root" in options.values:
        raise BadRequest("an agent runs on the host's own system", hint="leave out --root")
    ours = list(arguments[: len(arguments) - len(options.command)])
    is_named = ours[-1:] != ["--"]
    if is_named:
        ours.append("--")
    if options.flags.isdisjoint({"--tty", "--json", "--explain"}) and os.isatty(0) and os.isatty(1):
        ours.insert(0, "--tty")
    if "--timeout" not in options.values:
        ours[:0] = ["--timeout", run.NO_TIME_LIMIT]
    sessions: list[str] = []

    def prepare(request: Request, policy: Policy) -> Request:
        """Have it run an agent whole, in a session of its own, with what the person grants by typing it."""
        program, *rest = options.command
        name = os.path.basename(program)
        profile = options.last("--as")
        agent = find_agent(policy, profile or name, must_be_known=is_named or profile is not None)
        command = request.command
        if is_named or not isinstance(command, str):
            command = (_path_of(program), *agent.arguments, *rest)
        keep = tuple(options.values.get("--keep", ()))
        session = request.session or f"{agent.name if agent.name.isalnum() else 'agent'}-{new_id().lower()}"
        agent = agent.with_more({"hosts": request.hosts, "environment.keep": keep})
        sessions.append(session)
        return request.replace(
            command=command, agent=agent, session=session, root=HOST, hosts=(), background_after=BACKGROUND_AFTER,
            each_command="--each-command" in options.flags,
        )  # fmt: skip

    special = run.Special(title=shown(tuple(options.command)), more=MORE, flags=FLAGS, prepare=prepare, asks=editor)
    special = special.replace(is_interrupt_an_end=editor is not None)
    code = run.main([*ours, *options.command], special)
    if sessions and options.flags.isdisjoint({"--quiet", "--json", "--explain"}):
        # How all is taken back that it did, where some of it was applied before its end.
        store = OpenedStore(face=CLI)
        begun = store.sessions.find(sessions[0])
        reach = None if begun is None else RunFilter(project=begun.project, sessions=(sessions[0],))
        if reach is not None and any(each.act == CHECKPOINT for each in store.history.not_taken_back(reach)):
            line = f"fumehood undo --session {sessions[0]}"
            sys.stderr.write(f"fumehood: all that it did can be taken back: {line}\n")
    return code


def _path_of(program: str) -> str:
    """Return where a program is; the directory of one that is named by its path is shown as those on PATH are."""
    path = shutil.which(program)
    if path is None:
        return program  # the shell says so
    path = os.path.join(here(), path)
    folders = os.environ.get("PATH", os.defpath).split(":")
    if os.path.dirname(path) not in folders:
        os.environ["PATH"] = ":".join([*folders, os.path.dirname(path)])
    return path


def _show_all(*, as_json: bool) -> int:
    """Print every profile, as it would stand in the configuration."""
    store = OpenedStore(face=CLI)
    policy = store.policy_of(store.projects.open(store.projects.holding(here())))
    agents = known_agents(policy.agents).values()
    if as_json:
        sys.stdout.write(json.dumps({"agents": [each.fields() for each in agents]}) + "\n")
        return 0
    for agent in agents:
        lines = ["[[agent]]"]
        for key, value in {**agent.fields(), **agent.settings}.items():
            if key == "environment.set":
                lines.append(f"{key} = {{ {', '.join(f'{name} = {as_toml(each)}' for name, each in value)} }}")
            elif value and key != "settings":
                lines.append(f"{key} = {as_toml(value)}")
        sys.stdout.write("\n".join(map(printable, [*lines, "", ""])))
    return 0
