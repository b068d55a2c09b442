"""A run without a sandbox, where there is none to be had: only with a person's word, and never without saying so."""

from __future__ import annotations

import os
import time

from fumehood.core.environment import inherited
from fumehood.core.judge import APPLY
from fumehood.core.network import FULL, NONE
from fumehood.core.questions import unsandboxed_question
from fumehood.core.report import Run
from fumehood.core.request import SHELL, Request, arguments, checked, shown
from fumehood.errors import BadRequest, Unavailable
from fumehood.linux.capture import Capture
from fumehood.linux.launch import Plan, owner_of, resource_limits
from fumehood.linux.streams import Stream
from fumehood.service import layers as layering
from fumehood.service.profiles import resolved
from fumehood.service.running import Execution, printed, take_note
from fumehood.service.scratch import PLAYGROUND, made
from fumehood.service.settle import APPLIED, FAILED
from fumehood.service.surroundings import HOST, home_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fumehood.core.policy import Policy
    from fumehood.core.questions import Question
    from fumehood.linux.host import Host
    from fumehood.service.layers import Claim
    from fumehood.service.running import Ended, Wishes, Workplace

UNCAPTURED = "it ran without a sandbox: what it wrote was not captured and can't be undone"
_CONTAINER = "container"


def run_bare(place: Workplace, found: Host, claim: Claim, request: Request, wishes: Wishes) -> Run:
    """Run a command as a plain process, once a person has said so; what it does can't be taken back."""
    environment, dropped = _environment(place)
    run = _known(place, found, request, claim.run, dropped)
    question = _question(place, found, request, run, environment)
    if question is not None:
        place.permit(run, question, wishes)
    place.store.recover()
    claim.take()
    place.store.history.begin(place.project.id, run, os.getpid())
    plan = Plan(
        arguments=arguments(checked(request.command), request.shell or SHELL, source=request.source),
        environment=environment, owner=owner_of(place.project.path), bare=run.cwd,
        limits=resource_limits(place.policy.limits),
    )  # fmt: skip
    try:
        ended = _executed(place, found, run, plan, request, wishes)
    except BaseException as error:
        run.state, run.reason = FAILED, str(error) or type(error).__name__
        place.store.history.end(run)
        layering.drop(place.store.places, run.run)
        raise
    run.state, run.reason = APPLIED, UNCAPTURED
    place.store.history.journal(run, printed(ended))
    # Not before: its lock tells that the run is alive, for as long as the record does.
    layering.drop(place.store.places, run.run)
    return run


def foreseen(place: Workplace, found: Host, request: Request) -> tuple[Question, ...]:
    """Return what a person would be asked before this request runs."""
    environment, dropped = _environment(place)
    question = _question(place, found, request, _known(place, found, request, "", dropped), environment)
    return () if question is None or place.permissions.is_settled(question) else (question,)


def _environment(place: Workplace) -> tuple[dict[str, str], tuple[str, ...]]:
    environment, dropped = inherited(os.environ)
    owner = owner_of(place.project.path)
    return (environment if owner is None else {**environment, **home_of(owner)}), dropped


def _known(place: Workplace, found: Host, request: Request, name: str, dropped: tuple[str, ...]) -> Run:
    _refuse_what_needs_a_sandbox(place.policy, request, found.why_bare)
    return Run(
        run=name, project=place.project.path, command=request.title or shown(checked(request.command)),
        cwd=_directory(place, request), state="running", sandboxed=False, network=FULL, started_at=time.time(),
        mode=APPLY, dropped=dropped,
        roots=place.project.roots, session=request.session or None,
    )  # fmt: skip


def _question(
    place: Workplace, found: Host, request: Request, run: Run, environment: Mapping[str, str]
) -> Question | None:
    """Return what a person is asked, if they did not say already that a container is good enough."""
    if _is_good_enough(found, place.policy):
        return None
    # What is sourced first may be anything, and network is asked for each time.
    is_plain = not (request.source or request.session or request.network != NONE or request.hosts)
    # Commands of any project may have written there, or in the playground and the caches.
    writable = (*place.project.roots, *place.store.projects.paths(), *place.store.places.own())
    program = resolved(request.command, run.cwd, environment, writable) if is_plain else None
    details = ("as you, with all your files and the whole network; it can't be undone", f"why: {found.why_bare}")
    return unsandboxed_question(run.command, run.cwd, run.project, run.run, program, details, run.roots)


def _refuse_what_needs_a_sandbox(policy: Policy, request: Request, why: str) -> None:
    if (request.root or policy.root) != HOST:
        raise Unavailable(f"a root tree needs a sandbox: {why}", hint="fumehood doctor says what is missing")
    if request.mode != APPLY:
        raise Unavailable(
            f"changes can't be kept apart without a sandbox: {why}", hint="fumehood doctor says what is missing"
        )


def _directory(place: Workplace, request: Request) -> str:
    if request.cwd == PLAYGROUND:
        if not place.policy.playground:
            raise BadRequest("there is no playground", hint="the configuration turned it off")
        return made(place.store.places)
    directory = os.path.normpath(os.path.join(place.project.path, request.cwd))
    if not os.path.isdir(directory):
        raise BadRequest(f"Working directory does not exist: {directory}", hint="make it first, or name another")
    return directory


def _is_good_enough(found: Host, policy: Policy) -> bool:
    """Tell whether a person declared the container around us to be the sandbox; there must be one."""
    return policy.sandbox == _CONTAINER and bool(found.container)


def _executed(place: Workplace, found: Host, run: Run, plan: Plan, request: Request, wishes: Wishes) -> Ended:
    places, policy = place.store.places, place.policy
    out, err = (
        Stream(name, places.output(run.run, name), policy.output_limit, sink)
        for name, sink in (("stdout", wishes.on_stdout), ("stderr", wishes.on_stderr))
    )
    timeout = policy.timeout if request.timeout is None else request.timeout
    execution = Execution(found, Capture("", ()), place.start, policy.limits)
    ended = execution.attend(plan, (out, err), timeout, wishes.replace(watch=None))
    take_note(run, ended)
    return ended
