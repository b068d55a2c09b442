"""A run without a sandbox, where none is possible: only with a person's permission, and the report says so."""

from __future__ import annotations

import os
import time

from fumehood.core.environment import inherited_environment
from fumehood.core.policy import FULL, NONE
from fumehood.core.questions import Question, unsandboxed_question
from fumehood.core.report import Run
from fumehood.core.request import APPLY, HOST, SHELL, Request, build_argv, checked_command, command_text
from fumehood.errors import BadRequest, NoDirectory, Unavailable, end_reason
from fumehood.linux.confine import resource_limits
from fumehood.linux.launch import Plan, owner_of
from fumehood.service import layers as layering
from fumehood.service.profiles import trusted_program
from fumehood.service.provided import PLAYGROUND, make_playground
from fumehood.service.running import attend, output_streams, record_result, recordable_output
from fumehood.service.settle import APPLIED, FAILED
from fumehood.service.surroundings import home_variables
from fumehood.store.places import process_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fumehood.core.policy import Policy
    from fumehood.linux.probe import Host
    from fumehood.service.hood import Caller, Hood
    from fumehood.service.layers import RunDirectory

UNCAPTURED = "it ran without a sandbox: what it wrote was not captured and can't be undone"


def run_without_sandbox(hood: Hood, directory: RunDirectory, request: Request, caller: Caller) -> Run:
    """Run a command as a plain process, after a person has allowed it; what it does can't be undone."""
    store, places, policy, project = hood.store, hood.store.places, hood.policy, hood.project
    run, environment = _described(hood, request, directory.run)
    question = _question(hood, request, run, environment)
    if question is not None:
        hood.require_permission(run, question, caller)
    store.recover()
    directory.create()
    store.ensure_recorded(project)
    store.history.begin(project.id, run, os.getpid())
    plan = Plan(
        arguments=build_argv(checked_command(request.command), request.shell or SHELL, source=request.source),
        environment=environment, owner=owner_of(project.path), unsandboxed_cwd=run.cwd,
        limits=resource_limits(policy.limits),
    )  # fmt: skip
    streams = output_streams(places, run.run, policy.output_limit, (caller.on_stdout, caller.on_stderr))
    timeout = policy.timeout if request.timeout is None else request.timeout
    try:
        result = attend(hood.start, plan, streams, timeout, caller.replace(watch=None))
        if caller.partner is not None:
            caller.partner.finish()
        record_result(run, result)
    except BaseException as error:
        run.state, run.reason = FAILED, end_reason(error)
        store.history.end(run)
        layering.drop(places, run.run)
        raise
    run.state, run.reason = APPLIED, UNCAPTURED
    store.history.write_journal(run, recordable_output(result))
    # Only now: while the record says that it runs, the locked directory must say so too.
    layering.drop(places, run.run)
    result.outcome.raise_interrupt()
    return run


def questions_without_sandbox(hood: Hood, request: Request) -> tuple[Question, ...]:
    """Return what a person would be asked before this request runs."""
    question = _question(hood, request, *_described(hood, request, ""))
    return () if question is None or hood.permissions.is_answered(question) else (question,)


def _described(hood: Hood, request: Request, name: str) -> tuple[Run, dict[str, str]]:
    """Return the run before it begins, and its environment; raises Unavailable if the request needs a sandbox."""
    policy, project, host = hood.policy, hood.project, hood.host()
    if (request.root or policy.root) != HOST:
        raise Unavailable(f"a root tree needs a sandbox: {host.why_bare}", hint="fumehood doctor says what is missing")
    if request.mode != APPLY or request.write is not None:
        raise Unavailable(
            f"changes can't be kept apart without a sandbox: {host.why_bare}",
            hint="fumehood doctor says what is missing",
        )
    if request.cwd == PLAYGROUND:
        if not policy.playground:
            raise BadRequest("there is no playground", hint="the configuration turned it off")
        cwd = make_playground(hood.store.places)
    else:
        cwd = os.path.normpath(os.path.join(request.throwaway or project.path, request.cwd))
        if not os.path.isdir(cwd):
            lacking = "is not a directory" if os.path.exists(cwd) else "does not exist"
            raise NoDirectory(f"Working directory {lacking}: {cwd}", hint="make it first, or name another")
    environment, dropped = inherited_environment(process_variables())
    owner = owner_of(project.path)
    if owner is not None:
        environment |= home_variables(owner)
    environment |= dict(request.environment)
    run = Run(
        run=name, project=project.path, cwd=cwd,
        command=request.title or command_text(checked_command(request.command)),
        state="running", sandboxed=False, network=FULL, started_at=time.time(), mode=APPLY, dropped=dropped,
        roots=project.roots, session=request.session or None,
    )  # fmt: skip
    return run, environment


def _question(hood: Hood, request: Request, run: Run, environment: Mapping[str, str]) -> Question | None:
    """Return the question for a person, or None if the configuration accepts the container around us."""
    if _is_good_enough(hood.host(), hood.policy):
        return None
    # A sourced file may contain anything, and variables may lead to anything; network is asked for each time.
    around = request.source or request.session or request.environment
    is_plain = not (around or request.network != NONE or request.hosts)
    # Commands of any project may have written there, or in the playground and the caches.
    writable = (*hood.project.roots, *hood.store.writable_directories())
    program = trusted_program(request.command, run.cwd, environment, writable) if is_plain else None
    details = ("as you, with all your files and the whole network; it can't be undone", f"why: {hood.host().why_bare}")
    return unsandboxed_question(run.command, run.cwd, run.project, run.run, program, details, run.roots)


def _is_good_enough(host: Host, policy: Policy) -> bool:
    """Return True if the configuration takes the container around us as the sandbox, and there is one."""
    return policy.sandbox == "container" and bool(host.container)
