"""The story of one command: permission, layers, launch, scan, judge, apply, report, in this order.

`run_in` makes ready what the command runs in; the steps are methods of `Attempt`, in the order of `perform`.
"""

from __future__ import annotations

import os
import time
from _thread import get_ident

from fumehood.core.changes import HELD
from fumehood.core.policy import FULL, HIDDEN, NONE, OFFLINE, decide_network, default_variables
from fumehood.core.report import STOPPED, Run, early_end_reason, printable
from fumehood.core.request import (
    ALPINE,
    APPLY,
    SESSION_BIN,
    WHOLE,
    Request,
    build_argv,
    check_request,
    checked_command,
    command_text,
    start_on_terminal,
)
from fumehood.errors import RAISED_BY, BadRequest, NoDirectory, Refused, reason_of
from fumehood.linux import capture as capturing
from fumehood.linux.launch import owner_of
from fumehood.linux.libc import InterruptsHeld
from fumehood.linux.streams import HeldBack
from fumehood.service import layers as layering
from fumehood.service.hood import Hood, Wishes, note_refusal
from fumehood.service.permission import settle_access, widened
from fumehood.service.running import CheckpointTimer, Ended, Execution, output_streams, printed, take_note
from fumehood.service.surroundings import World, around
from fumehood.store.places import ensure_room_to_begin, new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from fumehood.core.inside import Widening
    from fumehood.core.questions import Decision, Question
    from fumehood.linux.capture import Capture, Stranger
    from fumehood.linux.launch import Plan, Streams
    from fumehood.linux.mounts import Operation
    from fumehood.linux.namespaces import Layer
    from fumehood.linux.process import Outcome, Running
    from fumehood.service.checkpoint import Checkpoints
    from fumehood.service.hood import Variables
    from fumehood.service.network import Asking
    from fumehood.service.session import Seat

_BY_CTRL_C = 130  # the status of a command that ended by it
_taking_turns: set[int] = set()  # threads in which a command is run again


def run_in(hood: Hood, request: Request, wishes: Wishes) -> Run:
    """Run a command in a hood, from request to report."""
    if hood.variables is not None:
        request = request.replace(environment=(*_looked_up(hood.variables), *request.environment))
    check_request(request)
    # Before anything is tried out there: on a full disk, nothing would seem to work.
    ensure_room_to_begin(hood.store.places.state)
    own, request = _made_ready(hood, request, wishes)
    try:
        run = _run_until_settled(own, request, wishes)
    except Exception:
        hood.store.recover()  # holds what a command had written by then
        raise
    if run.below:
        from fumehood.service.held import clear_away

        clear_away(hood.store, hood.project.id, run)
    return run


def _looked_up(variables: Variables) -> Iterable[tuple[str, str]]:
    """Return what a program's own function gives a run; nothing of it is shown, for it may hold secrets."""
    try:
        values: Any = variables()
    except Exception as error:
        error.add_note(f"{RAISED_BY}variables")
        raise
    if not hasattr(values, "items"):
        raise BadRequest(f"variables returned a {type(values).__name__}", hint="names and values, as a dict")
    pairs: Iterable[tuple[str, str]] = values.items()
    return pairs


def _made_ready(hood: Hood, request: Request, wishes: Wishes) -> tuple[Hood, Request]:
    """Return the hood and the request as this one command has them: mostly as they are."""
    host, store, own = hood.host(), hood.store, hood
    if request.draft or (hood.policy.drafts and request.session):
        from fumehood.service.drafts import in_draft

        request = in_draft(store, hood.project, request)
    if granted := store.grants.allowed(hood.project.path, request.session):
        own = own.but(policy=widened(own.policy, granted))
    if request.output_limit is not None:
        own = own.but(policy=own.policy.replace(output_limit=request.output_limit))
    if request.thrown:  # nothing is kept for another one without a project
        own = own.but(policy=own.policy.replace(rootfs=own.policy.rootfs.replace(writable=False)))
    own, request = own.profiled(request)
    if own.withheld and own.asking(wishes).are_answered(hood.project.path):
        request, own = _with_withheld(own, request), own.but(withheld={})
    if own.policy.rootfs.install and (request.root or own.policy.root) == ALPINE and not host.why_bare:
        from fumehood.service.root_trees import install_if_missing

        install_if_missing(store, own.policy.rootfs, wishes.on_install)
    if request.beside:
        from fumehood.service.projects import offer

        request = offer(hood, request, wishes)
        own = own.but(project=hood.project)
    if request.write is not None:
        from fumehood.service.projects import limited

        own, request = limited(own, request)
    return own, request


def _with_withheld(hood: Hood, request: Request) -> Request:
    """Have what the profiles withhold asked for, where there is somebody to ask."""
    from fumehood.service.profiles import asking

    return asking(request, hood.withheld)


def foreseen(hood: Hood, request: Request) -> tuple[Question, ...]:
    """Return what a person would be asked before this request runs."""
    command = checked_command(request.command)
    if hood.host().why_bare:
        from fumehood.service.unsandboxed import foreseen_bare

        return foreseen_bare(hood, request)
    hood, request = hood.profiled(request)
    if hood.withheld:
        request = _with_withheld(hood, request)
    hosts = decide_network(request.network, request.hosts, hood.policy).to_ask
    if not hosts:
        return ()
    from fumehood.core.questions import network_question

    cwd = _host_or_tree(hood, request).starting(request.cwd, hood.project.path)
    return (network_question(command_text(command), cwd, hood.project.path, "", hosts, hood.project.roots),)


def _run_until_settled(hood: Hood, request: Request, wishes: Wishes) -> Run:
    """Run a command, and once more where it meets nothing but other runs; those then wait for each other."""
    may_meet = request.mode in (APPLY, WHOLE) or request.draft_number is not None
    tries = hood.policy.again.tries if may_meet and wishes.can_be_met_again else 1
    if get_ident() in _taking_turns:
        tries = 1  # what is begun by a function that attends a command can't wait for that command
    turn, reason = None, ""
    try:
        while True:
            tries -= 1
            try:
                return _run_in_session(hood, request, wishes, reason, may_run_again=tries > 0)
            except layering.Overtaken as overtaken:
                from fumehood.service.settle import AGAIN

                reason, place = f"{AGAIN}{overtaken}", overtaken.place
                if wishes.on_again is not None:
                    wishes.on_again(reason)
            if turn is None:
                waiting = hood.store.turn(hood.project.id, place)
                waiting.__enter__()
                turn = waiting
                _taking_turns.add(get_ident())
    finally:
        if turn is not None:
            _taking_turns.discard(get_ident())
            turn.__exit__()


def _run_in_session(hood: Hood, request: Request, wishes: Wishes, reason: str, *, may_run_again: bool) -> Run:
    """Run a command once, from its place in its session where it has one."""

    def perform(request: Request, seat: Seat | None) -> Run:
        if hood.host().why_bare:
            from fumehood.service.unsandboxed import run_bare

            return run_bare(hood, claim, request, wishes)
        return Attempt(hood, claim, request, wishes, seat, reason).perform(may_run_again=may_run_again)

    with layering.Claim(hood.store.places, new_id()) as claim:
        if wishes.partner is not None:
            wishes.partner.named(claim.run)
        if not request.session:
            return perform(request, None)
        from fumehood.service.session import Seat

        shells: Sequence[Operation] = ()
        if request.each_command:
            from fumehood.service.agents import shell_mounts

            shells = shell_mounts(hood.store.places.cache)
        tmp = request.own_tmp or hood.policy.tmp == "session"
        with Seat(
            hood.store, hood.project, request.session, claim.run, tmp=tmp, must=request.own_tmp, shells=shells,
            loopback=request.loopback,
        ) as seat:  # fmt: skip
            try:
                return perform(request.replace(cwd=request.cwd or seat.session.cwd), seat)
            except NoDirectory as error:
                if request.cwd:
                    raise
                # Where the last command ended. In another directory, this one would do something else.
                hint = f"nothing ran; the session's next command starts in {printable(hood.project.path)}"
                seat.leave_directory()
                raise NoDirectory(str(error), hint=hint) from error


class Attempt:
    """One command in its sandbox, from permission to report."""

    def __init__(
        self, hood: Hood, claim: layering.Claim, request: Request, wishes: Wishes, seat: Seat | None, reason: str
    ) -> None:
        self.hood = hood
        self.claim = claim
        self.request = request
        self.wishes = wishes
        self.seat = seat
        self.world = world_of(hood, request, claim.run, seat)
        self.network = decide_network(request.network, request.hosts, hood.policy)
        project = hood.project
        if self.network.to_ask and request.if_granted and not hood.asking(wishes).are_answered(project.path):
            # Every command of the agent would be refused. One that needs the hosts is told when it tries.
            self.network = decide_network(NONE, (), hood.policy)
        self.run = Run(
            run=claim.run, project=project.path,
            command=request.title or command_text(checked_command(request.command)),
            cwd=self.world.starting(request.cwd, project.path), state="running", network=self.network.mode,
            started_at=time.time(), mode=request.mode, dropped=self.world.dropped, roots=project.roots,
            session=request.session or None, hosts=self.network.hosts, reason=reason or request.remark,
            draft=request.draft_number, draft_name=request.draft or None,
        )  # fmt: skip

    def perform(self, *, may_run_again: bool) -> Run:
        """Take every step; raises Overtaken where it gives way to other runs, and is to be run again."""
        run, hood, seat = self.run, self.hood, self.seat
        self._have_permitted()
        capture = self._make_layers()
        layers = capture.layers
        try:
            with self.world.entered(run.capture) as self.world:
                execution = self._in_sandbox(capture)
                ended = self._launch(execution)
        except BaseException as error:
            self._give_up(layers, error)
            raise
        from fumehood.service.blocked import forget_what_was_moved, lacked_room, what_was_blocked
        from fumehood.service.settle import Looking, settle

        # The command has ended. Ctrl-C can still end a long look at what it did, and nothing after that.
        with InterruptsHeld() as interrupts:
            with Looking(hood.store, run, printed(ended), self.wishes.signals, interrupts):
                run.changed = layering.scanned(layers, self.claim.indexes)
                self.claim.refuse_elsewhere(run.changed)
                run.blocked = what_was_blocked(run, execution, self.network, self.request, ended)
                ended_by = self._cut_short(ended.outcome) or lacked_room(run, hood.store.places.state)
                if run.changed or ended_by:
                    from fumehood.service.verdicts import give_verdicts

                    give_verdicts(hood.store, run, layers, self.request.mode, hood.policy.rules, ended_by)
                # Nothing of it has left the hood, and it can be done again.
                may_run_again = (
                    may_run_again and not ended_by and not layering.is_checkpointed(layers)
                    and run.duration_s < hood.policy.again.within and run.network != FULL and not run.new_connections
                    and not (seat and seat.has_asked)
                )  # fmt: skip
            settle(
                hood.store, hood.project.id, run, printed(ended), layers, hood.policy.on_conflict,
                may_run_again=may_run_again, indexes=self.claim.indexes,
            )  # fmt: skip
            # Only now: a command that is run again begins where the first one did.
            run.ended_in = seat.keep(self.world.outside) if seat else ""
            forget_what_was_moved(hood.store.places, hood.project, run)
            if run.draft is not None and run.state == HELD:
                from fumehood.service.drafts import after_run

                after_run(hood.store, hood.project, run)
        ended.outcome.raise_interrupt()
        return run

    # ---- Permission: a plain sandboxed run needs nobody's word.

    def _have_permitted(self) -> None:
        if self.network.to_ask:
            self.hood.permit(self.run, self._about_hosts(self.network.to_ask), self.wishes)
        for path in self.request.besides:
            from fumehood.core.questions import write_question

            run = self.run
            self.hood.permit(run, write_question(path, run.command, run.cwd, run.project, run.run), self.wishes)

    def _about_hosts(self, hosts: tuple[str, ...]) -> Question:
        from fumehood.core.questions import network_question

        run = self.run
        return network_question(run.command, run.cwd, run.project, run.run, hosts, run.roots)

    # ---- Layers: the run is recorded, and they are made over what earlier runs hold: the command sees that too.

    def _make_layers(self) -> Capture:
        hood, run, request = self.hood, self.run, self.request
        store, project, places = hood.store, hood.project, hood.store.places
        strangers: Sequence[Stranger] = ()
        if os.path.exists(places.foreign_files_list(project.id)):
            from fumehood.service.blocked import failed_on

            strangers = failed_on(places, project)
        choice = capturing.choose(hood.host(), hood.policy.capture, run.roots, strangers)
        run.capture, run.reason = choice.way, "; ".join(filter(None, (run.reason, choice.why)))
        if request.each_command and (run.capture != capturing.KERNEL or run.mode != APPLY):
            why = f"which {capturing.LABELS[run.capture]} has not" if run.mode == APPLY else "and nothing is applied"
            raise BadRequest(f"--each-command needs checkpoints, {why}", hint="leave it out")
        store.recover()
        self.claim.take()
        with store.stack(project.id, settling=False):
            store.keep_known(project)
            if run.draft is not None and not store.drafts.is_open(run.draft):
                layering.drop(places, run.run)
                raise BadRequest(f"draft {run.draft_name} is no longer there", hint="fumehood draft new begins one")
            run.below = tuple(store.history.held_runs(project.id, run.draft))
            store.history.begin(project.id, run, os.getpid())
        held: list[tuple[str, ...]] = []
        if run.below:
            from fumehood.service.held import trees_below

            held = trees_below(store, project.id, run)
        layers = layering.make(places, run.run, run.roots, run.capture, held, request.frozen, choice.overlaid)
        self.claim.begin_in(run.roots)
        return capturing.Capture(run.capture, layers, self.world.targets, choice.groups, self.world.write)

    # ---- Launch, and the command's end.

    def _in_sandbox(self, capture: Capture) -> Execution:
        """Return the sandbox that the command runs in, with what settles what it has written while it goes on."""
        request, seat = self.request, self.seat

        def make() -> Checkpoints:
            from fumehood.service.checkpoint import Checkpoints

            targets = [target for _, target in capture.targets]
            return Checkpoints(self.hood, self.run, capture.layers, self.claim, targets)

        commands = None
        if request.each_command and seat is not None and seat.door is not None:
            from fumehood.service.agents import ShellCommands

            commands = ShellCommands(make(), request.agent, layering.init_file(capture.layers))
            seat.door.hear = commands.hear

        def checkpoints() -> Callable[[int], None]:
            return CheckpointTimer(self.hood, self.run, make, request.background_after, commands).look

        def start(plan: Plan, streams: Streams) -> Running:
            running = self.hood.start(plan, streams)
            # While the sandbox is being made, what comes after the command is loaded: nobody waits for this now.
            from fumehood.linux import process  # noqa: F401
            from fumehood.service import blocked, settle  # noqa: F401

            return running

        return Execution(
            self.hood.but(start=start), self.world, capture, seat, indexes=self.claim.indexes,
            stop_mark=self.hood.store.places.stop_mark(self.run.run), checkpoints=checkpoints,
        )  # fmt: skip

    def _launch(self, execution: Execution) -> Ended:
        """Run the command to its end, with its network; write down how it ended and what it printed."""
        run, request, wishes, world, seat = self.run, self.request, self.wishes, self.world, self.seat
        shell = world.shell
        if request.each_command:
            from fumehood.service.agents import real_shell

            shell = real_shell(shell)
        line = build_argv(checked_command(request.command), shell, source=request.source, tells_cwd=seat is not None)
        run.one_stream = wishes.is_one_stream or wishes.terminal is not None
        to_errors = wishes.on_stdout if wishes.is_one_stream else wishes.on_stderr
        errors = None if to_errors is None else HeldBack(to_errors)
        sinks = (errors, None) if wishes.is_one_stream else (wishes.on_stdout, errors)
        policy = self.hood.policy
        streams = output_streams(self.hood.store.places, run.run, policy.output_limit, sinks)
        asking = self._asking()
        access = None
        if self.network is not OFFLINE:
            from fumehood.service.network import Access

            is_ours = self.hood.host().makes_namespaces
            access = Access(
                self.network, asking=asking if self.network.asks else None,
                resolvers=world.resolvers() if is_ours else (), in_session=is_ours and seat is not None,
            )  # fmt: skip
        if seat is not None:
            self._open_door(seat, asking)
        try:
            ended = execution.run(
                line if wishes.terminal is None else start_on_terminal(line), world.cwd(run.cwd), streams,
                policy.timeout if request.timeout is None else request.timeout, wishes, access, asking,
            )  # fmt: skip
            if errors is not None:
                errors.release()
            if wishes.partner is not None:
                wishes.partner.finish()
            take_note(run, ended)
        finally:
            if asking is not None:
                asking.close()
            if access is not None:
                access.stop(run)
            if asking is not None:
                asking.finish()
        return ended

    def _asking(self) -> Asking | None:
        """Return what puts to a person what the command asks for while it runs, where it can ask for something."""
        hood, wishes = self.hood, self.wishes
        permissions = hood.asking(wishes)
        can_ask = self.seat is not None and permissions.are_answered(hood.project.path)
        if not (can_ask or self.network.asks):
            return None
        from fumehood.service.network import Asking

        def decide(place: str, is_closed: Callable[[], bool]) -> Decision:
            cancelled = wishes.cancelled
            question = self._about_hosts((place,))
            decision = permissions.decide(question, lambda: is_closed() or (cancelled is not None and cancelled()))
            hood.note_decision(self.run, question, decision)
            return decision

        return Asking(decide)

    def _open_door(self, seat: Seat, asking: Asking | None) -> None:
        """Let the command ask for something, a person too where somebody can ask them."""
        door, hood = seat.door, self.hood
        assert door is not None
        door.outside, door.seen_at = self.world.outside, self.world.targets
        permissions = hood.asking(self.wishes)
        if asking is None or not permissions.are_answered(hood.project.path):
            return  # then a process of its own asks whoever has come meanwhile
        def ask(asked: Sequence[Widening]) -> str:
            def decide(question: Question) -> Decision:
                return asking.waited_for(lambda is_closed: permissions.decide(question, is_closed))

            said = settle_access(hood.store, hood.project, seat.session.name, asked, decide)
            return "".join(f"{line}\n" for line in said)

        door.asking, door.ask = asking, ask

    def _give_up(self, layers: Sequence[Layer], error: BaseException) -> None:
        """Record why a run failed; where its command has written something, it is left as if its process had died."""
        run, store = self.run, self.hood.store
        run.reason = reason_of(error)
        if isinstance(error, Refused):
            note_refusal(run, error)
        if layering.may_be_written(store.places, run, layers):
            store.history.end(run)
            return
        from fumehood.service.settle import FAILED

        run.state = FAILED
        store.history.end(run)
        layering.drop(store.places, run.run)

    # ---- Judge.

    def _cut_short(self, outcome: Outcome) -> str:
        """Return what ended a command that did not end by itself, nor by a person at their terminal."""
        wishes = self.wishes
        signals = () if wishes.signals is None else wishes.signals.sent(outcome.signals)
        if outcome.raised or (wishes.is_agents_terminal and outcome.exit.status == _BY_CTRL_C):
            signals = (*signals, "SIGINT")
        if outcome.exit.killed_by:
            from signal import Signals

            signals = (*signals, Signals(outcome.exit.killed_by).name)
        return early_end_reason(
            is_stopped=outcome.limit is not None and outcome.limit.what == STOPPED,
            limit="" if outcome.limit is None else outcome.limit.detail,
            signals=signals,
            is_cancelled=outcome.interrupted and wishes.cancelled is not None and wishes.cancelled(),
            is_timed_out=outcome.timed_out,
        )


# ---- What surrounds a command.


def world_of(hood: Hood, request: Request, run: str, seat: Seat | None = None) -> World:
    """Return what surrounds a command, with what its request, its session and its profiles give it."""
    world, project, profiles = _host_or_tree(hood, request), hood.project.path, hood.profiles
    persons = world.environment
    environment = {
        **default_variables(profiles), **persons, **(seat.variables if seat else {}), **dict(request.environment),
    }  # fmt: skip
    if seat is not None:
        environment["PATH"] = f"{SESSION_BIN}:{environment.get('PATH', os.defpath)}"
    world = world.replace(
        environment=environment, host_shell=request.shell or world.host_shell, source=request.source,
        thrown=request.thrown,
    )  # fmt: skip
    if request.write is not None:
        ground = world.playground
        if ground is not None and not request.write:  # with no directory, not that one either
            ground = ground.replace(is_writable=False)
        world = world.replace(write=request.write, playground=ground)
    keeps_tmp = hood.policy.tmp == "project" and not request.thrown
    if not keeps_tmp and not any(each.scratch for each in profiles):
        return world
    from fumehood.service.profiles import Scratch, wanted

    # A session's and a request's variables are the commands' own words: they bring nothing of the host into sight.
    asked = wanted(profiles, persons, persons.get("HOME", "/"))
    if request.thrown:
        asked = tuple(each.replace(keep=False) for each in asked)  # nothing of one is for the next
    if hood.agent is None:
        return world.replace(scratch=Scratch(hood.store.places, project, run, asked, keeps_tmp=keeps_tmp))
    from fumehood.service.agents import AgentRoom

    room = AgentRoom(
        hood.store.places, project, run, asked, keeps_tmp=keeps_tmp, agent=hood.agent, environment=environment,
        roots=hood.project.roots,
    )  # fmt: skip
    return world.replace(scratch=room)


def _host_or_tree(hood: Hood, request: Request) -> World:
    layering.require_there(hood.project.roots)
    capture = hood.policy.capture
    return around(
        hood.store.places, hood.policy, request.root or hood.policy.root, hood.project.roots,
        owner_of(hood.project.path), hood.project.id,
        makes_points=hood.policy.home == HIDDEN or (hood.host().makes_namespaces and capture != capturing.BWRAP),
    )  # fmt: skip
