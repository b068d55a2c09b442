"""`fumehood agent`: a whole agent in the hood, as one long run at the person's terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys

from fumehood.core.config import as_toml
from fumehood.core.inside import known_agents
from fumehood.core.report import printable
from fumehood.core.request import BACKGROUND_AFTER, HOST, Request, command_text
from fumehood.errors import BadRequest
from fumehood.faces.cli import run
from fumehood.faces.cli.output import load_text, working_dir
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

EXTRA_OPTIONS = frozenset({"--keep", "--as"})
EXTRA_FLAGS = frozenset({"--each-command"})


def main(arguments: Sequence[str], editor: Callable[[], Sequence[Ask]] | None = None) -> int:
    """Run an agent; returns its exit code. `editor`, if an editor started it, returns who is asked instead."""
    options = run.parse_options(arguments, EXTRA_OPTIONS, EXTRA_FLAGS).raise_on_error()
    if options.wants_help:
        sys.stdout.write(load_text("agent.txt"))
        return 0
    if not options.command_words:
        return _print_profiles(as_json="--json" in options.flags)
    if "--root" in options.values:
        raise BadRequest("an agent runs on the host's own system", hint="leave out --root")
    own_words = list(arguments[: len(arguments) - len(options.command_words)])
    is_agent_name = own_words[-1:] != ["--"]  # not a whole command after --
    if is_agent_name:
        own_words.append("--")
    if options.flags.isdisjoint({"--tty", "--json", "--explain"}) and os.isatty(0) and os.isatty(1):
        own_words.insert(0, "--tty")
    if "--timeout" not in options.values:
        own_words[:0] = ["--timeout", run.NO_TIME_LIMIT]
    sessions: list[str] = []

    def adapt_request(request: Request, policy: Policy) -> Request:
        """Add the agent's profile and a session, with the hosts and variables that the person allows by typing them."""
        program, *rest = options.command_words
        name = os.path.basename(program)
        profile = options.last("--as")
        agent = find_agent(policy, profile or name, must_be_known=is_agent_name or profile is not None)
        command = request.command
        if is_agent_name or not isinstance(command, str):
            command = (_path_of(program), *agent.arguments, *rest)
        keep = tuple(options.values.get("--keep", ()))
        session = request.session or f"{agent.name if agent.name.isalnum() else 'agent'}-{new_id().lower()}"
        agent = agent.with_more({"hosts": request.hosts, "environment.keep": keep})
        sessions.append(session)
        return request.replace(
            command=command, agent=agent, session=session, root=HOST, hosts=(), background_after=BACKGROUND_AFTER,
            each_command="--each-command" in options.flags,
        )  # fmt: skip

    variant = run.RunVariant(
        title=command_text(tuple(options.command_words)), extra_options=EXTRA_OPTIONS, extra_flags=EXTRA_FLAGS,
        adapt_request=adapt_request, askers=editor, is_interrupt_an_end=editor is not None,
    )  # fmt: skip
    code = run.main([*own_words, *options.command_words], variant)
    if sessions and options.flags.isdisjoint({"--quiet", "--json", "--explain"}):
        # If some of its changes were applied before its end, one undo of the run is not enough.
        store = OpenedStore(face=CLI)
        session = store.sessions.find(sessions[0])
        session_runs = None if session is None else RunFilter(project=session.project, sessions=(sessions[0],))
        if session_runs is not None and any(
            each.act == CHECKPOINT for each in store.history.not_taken_back(session_runs)
        ):
            line = f"fumehood undo --session {sessions[0]}"
            sys.stderr.write(f"fumehood: all that it did can be undone: {line}\n")
    return code


def _path_of(program: str) -> str:
    """Return the path of a program, and add its directory to PATH, so that the command sees that directory too."""
    path = shutil.which(program)
    if path is None:
        return program  # the shell reports that it is not found
    path = os.path.join(working_dir(), path)
    folders = os.environ.get("PATH", os.defpath).split(":")
    if os.path.dirname(path) not in folders:
        os.environ["PATH"] = ":".join([*folders, os.path.dirname(path)])
    return path


def _print_profiles(*, as_json: bool) -> int:
    """Print every profile as it would be written in the configuration."""
    store = OpenedStore(face=CLI)
    policy = store.policy_of(store.projects.open(store.projects.project_around(working_dir()), register=False))
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
