"""The story of one command: request, layers, launch, scan, judge, apply, report."""

from __future__ import annotations

import os
import time
from _thread import get_ident

from fumehood.core.changes import HELD
from fumehood.core.limits import STOPPED, cut_short
from fumehood.core.network import NONE, OFFLINE, Network, decided
from fumehood.core.policy import HIDDEN, TOOLS, Limits, Policy, Profile, defaults, matching
from fumehood.core.report import Run, printable
from fumehood.core.request import ALPINE, APPLY, BIN, WHOLE, Request, arguments, check, checked, on_terminal, shown
from fumehood.errors import RAISED_BY, BadRequest, NoDirectory, Refused, reason_of
from fumehood.linux import capture as capturing
from fumehood.linux.hostview import HostViews
from fumehood.linux.launch import owner_of
from fumehood.linux.libc import InterruptsHeld
from fumehood.linux.streams import HeldBack, Stream
from fumehood.service import layers as layering
from fumehood.service.permission import Permissions, widened
from fumehood.service.running import Ended, Execution, Wishes, Workplace, note_refusal, printed, take_note
from fumehood.service.surroundings import Surroundings, World, around
from fumehood.store import database
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from fumehood.core.agents import Agent
    from fumehood.core.inside import Widening
    from fumehood.core.questions import Decision, Question
    from fumehood.linux.capture import Stranger
    from fumehood.linux.launch import Plan, Starter, Streams
    from fumehood.linux.namespaces import Layer
    from fumehood.linux.process import Outcome, Running
    from fumehood.service.network import Access, Asking
    from fumehood.service.session import Seat
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

    Variables = Callable[[], Mapping[str, str]]

_BY_CTRL_C = 130  # the status of a command that ended by it
_taking_turns: set[int] = set()  # threads in which a command is run again


class Hood(Workplace):
    """One project's sandbox: every command a transaction."""

    def __init__(
        self, store: Store, project: Project, policy: Policy, start: Starter, permissions: Permissions | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:  # fmt: skip
        super().__init__(store, project, policy, start, permissions)
        if surroundings is None:
            surroundings = Surroundings(store.places, policy, HostViews(store.places.cache, store.projects.paths))
        self.surroundings = surroundings
        self._profiles: tuple[Profile, ...] = ()
        self._withheld: dict[str, Any] = {}  # what profiles would grant a plain command
        self._agent: Agent | None = None  # who runs whole in the hood
        self.variables: Variables | None = None  # a program's own, asked for at each run and kept nowhere

    def run(self, request: Request, wishes: Wishes) -> Run:
        """Run a command from request to report."""
        if self.variables is not None:
            request = request.replace(environment=(*_looked_up(self.variables), *request.environment))
        check(request)
        request = self._in_draft(request)
        hood = self._with_grants(request)
        if request.output_limit is not None:
            hood = hood._under(hood.policy.replace(output_limit=request.output_limit))
        if request.thrown:  # nothing is kept for another one without a project
            hood = hood._under(hood.policy.replace(rootfs=hood.policy.rootfs.replace(writable=False)))
        hood, request = hood.profiled(request)
        if hood._withheld and hood.asking(wishes).are_answered(self.project.path):
            request = hood._asking(request)
        # Before anything is tried out there: on a full disk, nothing would seem to work.
        database.reserve_room(self.store.places.state)
        if hood.policy.rootfs.install and (request.root or hood.policy.root) == ALPINE and not self.host().why_bare:
            from fumehood.service.root_trees import install_if_missing

            install_if_missing(self.store, hood.policy.rootfs, wishes.on_install)
        if request.beside:
            from fumehood.service.projects import offer

            request = offer(hood, request, wishes)
            self.project = hood.project
        if request.write is not None:
            from fumehood.service.projects import limited

            hood, request = limited(hood, request)
        try:
            run = hood._run_until_settled(request, wishes)
        except Exception:
            self.store.recover()  # holds what a command had written by then
            raise
        finally:
            self._host = hood._host
        if run.below:
            from fumehood.service.held import clear_away

            clear_away(self.store, self.project.id, run)
        return run

    def _in_draft(self, request: Request) -> Request:
        """Return a request as one of a draft, where it is to be; mostly as it is."""
        if not request.draft and not (self.policy.drafts and request.session):
            return request
        from fumehood.service.drafts import in_draft

        return in_draft(self.store, self.project, request)

    def _run_until_settled(self, request: Request, wishes: Wishes) -> Run:
        """Run a command, and once more where it meets nothing but other runs; those then wait for each other."""
        may_meet = request.mode in (APPLY, WHOLE) or request.draft_number is not None
        tries = self.policy.again.tries if may_meet and wishes.can_be_met_again else 1
        if get_ident() in _taking_turns:
            tries = 1  # what is begun by a function that attends a command can't wait for that command
        turn, reason = None, ""
        try:
            while True:
                tries -= 1
                try:
                    return self._run_in_session(request, wishes, reason, may_run_again=tries > 0)
                except layering.Overtaken as overtaken:
                    from fumehood.service.settle import AGAIN

                    reason, place = f"{AGAIN}{overtaken}", overtaken.place
                    if wishes.on_again is not None:
                        wishes.on_again(reason)
                if turn is None:
                    waiting = self.store.turn(self.project.id, place)
                    waiting.__enter__()
                    turn = waiting
                    _taking_turns.add(get_ident())
        finally:
            if turn is not None:
                _taking_turns.discard(get_ident())
                turn.__exit__()

    def _run_in_session(self, request: Request, wishes: Wishes, reason: str, *, may_run_again: bool) -> Run:
        with layering.Claim(self.store.places, new_id()) as claim:
            if wishes.partner is not None:
                wishes.partner.named(claim.run)
            if not request.session:
                return self._run(claim, request, wishes, None, reason, may_run_again=may_run_again)
            from fumehood.service.session import Seat

            tmp = request.own_tmp or self.policy.tmp == "session"
            with Seat(
                self.store, self.project, request.session, claim.run, tmp=tmp, must=request.own_tmp,
                each_command=request.each_command, loopback=request.loopback,
            ) as seat:  # fmt: skip
                started = request.replace(cwd=request.cwd or seat.session.cwd)
                try:
                    return self._run(claim, started, wishes, seat, reason, may_run_again=may_run_again)
                except NoDirectory as error:
                    if request.cwd:
                        raise
                    # Where the last command ended. In another directory, this one would do something else.
                    hint = f"nothing ran; the session's next command starts in {printable(self.project.path)}"
                    seat.leave_directory()
                    raise NoDirectory(str(error), hint=hint) from error

    def _run(
        self, claim: layering.Claim, request: Request, wishes: Wishes, seat: Seat | None, reason: str,
        *, may_run_again: bool,
    ) -> Run:  # fmt: skip
        host = self.host()
        if host.why_bare:
            from fumehood.service.unsandboxed import run_bare

            return run_bare(self, host, claim, request, wishes)
        world = self.world(request, claim.run, seat)
        network = decided(request.network, request.hosts, self.policy)
        if network.to_ask and request.if_granted and not self.asking(wishes).are_answered(self.project.path):
            # Every command of the agent would be refused. One that needs the hosts is told when it tries.
            network = decided(NONE, (), self.policy)
        run = Run(
            run=claim.run, project=self.project.path, command=request.title or shown(checked(request.command)),
            cwd=world.starting(request.cwd, self.project.path), state="running", network=network.mode,
            started_at=time.time(), mode=request.mode, dropped=world.dropped, roots=self.project.roots,
            session=request.session or None, hosts=network.hosts, reason=reason or request.remark,
            draft=request.draft_number, draft_name=request.draft or None,
        )  # fmt: skip
        if network.to_ask:  # a plain sandboxed run needs nobody's word
            self.permit(run, _question(run, network.to_ask), wishes)
        if request.besides:
            from fumehood.core.questions import write_question

            for path in request.besides:
                self.permit(run, write_question(path, run.command, run.cwd, run.project, run.run), wishes)
        layers, execution = self._begin(claim, run, world, request, seat)
        try:
            with world.entered(run.capture) as world:
                ended = self._execute(run, execution, world, network, request, wishes, seat)
        except BaseException as error:
            self._give_up(run, layers, error)
            raise
        from fumehood.service.blocked import lacked_room, what_was_blocked
        from fumehood.service.settle import Looking, may_be_forgotten, settle

        # The command has ended. Ctrl-C can still end a long look at what it did, and nothing after that.
        with InterruptsHeld() as interrupts:
            with Looking(self.store, run, printed(ended), wishes.signals, interrupts):
                run.changed = layering.scanned(layers, claim.indexes)
                claim.refuse_elsewhere(run.changed)
                run.blocked = what_was_blocked(self, run, network, request.hosts, world, ended, seat, self._withheld)
                if request.beside:
                    from fumehood.service.projects import read_only_beside

                    run.blocked += read_only_beside(request.beside)
                ended_by = _cut_short(ended.outcome, wishes) or lacked_room(run, self.store.places.state)
                self._judge(run, layers, request.mode, ended_by)
                may_run_again = may_run_again and not ended_by and not layering.is_checkpointed(layers)
            settle(
                self.store, self.project.id, run, printed(ended), layers, self.policy.on_conflict,
                may_run_again=may_run_again and may_be_forgotten(run, self.policy.again)
                and not (seat and seat.has_asked), indexes=claim.indexes,
            )  # fmt: skip
            # Only now: a command that is run again begins where the first one did.
            run.ended_in = seat.keep(world.outside) if seat else ""
            self._follow(run)
        ended.outcome.raise_interrupt()
        return run

    def _follow(self, run: Run) -> None:
        """Do what follows from a run that is settled."""
        if run.changed:
            from fumehood.service.blocked import forget_what_was_moved

            forget_what_was_moved(self.store.places, self.project, run)
        if run.draft is not None and run.state == HELD:
            from fumehood.service.drafts import after_run

            after_run(self.store, self.project, run)

    def _judge(self, run: Run, layers: Sequence[Layer], mode: str, ended_by: str) -> None:
        if run.changed or ended_by:
            from fumehood.service.verdicts import give_verdicts

            give_verdicts(self.store, run, layers, mode, self.policy.rules, ended_by)

    def _give_up(self, run: Run, layers: Sequence[Layer], error: BaseException) -> None:
        """Record why a run failed; where its command has written something, it is left as if its process had died."""
        run.reason = reason_of(error)
        if isinstance(error, Refused):
            note_refusal(run, error)
        if layering.may_be_written(self.store.places, run, layers):
            self.store.history.end(run)
            return
        from fumehood.service.settle import FAILED

        run.state = FAILED
        self.store.history.end(run)
        layering.drop(self.store.places, run.run)

    def _begin(
        self, claim: layering.Claim, run: Run, world: World, request: Request, seat: Seat | None
    ) -> tuple[tuple[Layer, ...], Execution]:
        """Record the run, and make its layers over what earlier runs hold: the command sees that too."""
        places = self.store.places
        strangers: Sequence[Stranger] = ()
        if os.path.exists(places.strangers(self.project.id)):
            from fumehood.service.blocked import failed_on

            strangers = failed_on(places, self.project)
        choice = capturing.choose(self.host(), self.policy.capture, run.roots, strangers)
        run.capture, run.reason = choice.way, "; ".join(filter(None, (run.reason, choice.why)))
        if request.each_command and (run.capture != capturing.KERNEL or run.mode != APPLY):
            why = f"which {capturing.LABELS[run.capture]} has not" if run.mode == APPLY else "and nothing is applied"
            raise BadRequest(f"--each-command needs checkpoints, {why}", hint="leave it out")
        self.store.recover()
        claim.take()
        with self.store.stack(self.project.id, settling=False):
            self.store.keep_known(self.project)
            if run.draft is not None and not self.store.drafts.is_open(run.draft):
                layering.drop(places, run.run)
                raise BadRequest(f"draft {run.draft_name} is no longer there", hint="fumehood draft new begins one")
            run.below = tuple(self.store.history.held(self.project.id, run.draft))
            self.store.history.begin(self.project.id, run, os.getpid())
        held: list[tuple[str, ...]] = []
        if run.below:
            from fumehood.service.held import trees_below

            held = trees_below(self.store, self.project.id, run)
        layers = layering.make(places, run.run, run.roots, run.capture, held, request.frozen, choice.overlaid)
        claim.begin_in(run.roots)
        capture = capturing.Capture(run.capture, layers, world.targets, choice.groups, world.write)
        parts = self, run, layers, claim, [target for _, target in capture.targets]
        commands = None
        if request.each_command and seat is not None and seat.door is not None:
            from fumehood.service.agents import ShellCommands
            from fumehood.service.checkpoint import Checkpoints

            commands = ShellCommands(Checkpoints(*parts), request.agent, layering.init_file(layers))
            seat.door.hear = commands.hear

        def checkpoints() -> Callable[[int], None]:
            from fumehood.service.now import When

            return When(*parts, request.background_after, commands).look

        return layers, Execution(
            self.host(), capture, self._launch, self.policy.limits, self.surroundings, claim.indexes,
            places.stop_mark(run.run), checkpoints,
        )  # fmt: skip

    def _launch(self, plan: Plan, streams: Streams) -> Running:
        """Start the sandbox; while it is being made, what comes after the command is loaded."""
        running = self.start(plan, streams)
        from fumehood.linux import process  # noqa: F401 - nobody waits for this now
        from fumehood.service import blocked, settle  # noqa: F401 - the same

        return running

    def _execute(
        self, run: Run, execution: Execution, world: World, network: Network, request: Request, wishes: Wishes,
        seat: Seat | None,
    ) -> Ended:  # fmt: skip
        """Run the command to its end, with its network; write down how it ended and what it printed."""
        shell = world.shell
        if request.each_command:
            from fumehood.service.session import real_shell

            shell = real_shell(shell)
        line = arguments(checked(request.command), shell, source=request.source, tells_cwd=seat is not None)
        run.one_stream = wishes.is_one_stream or wishes.terminal is not None
        is_one = wishes.is_one_stream
        to_errors = wishes.on_stdout if is_one else wishes.on_stderr
        errors = None if to_errors is None else HeldBack(to_errors)
        sinks = (errors, None) if is_one else (wishes.on_stdout, errors)
        out, err = (
            Stream(name, self.store.places.output(run.run, name), self.policy.output_limit, sink)
            for name, sink in zip(("stdout", "stderr"), sinks, strict=True)
        )
        access = None if network is OFFLINE else self._access(run, network, world, wishes, seat)
        asking = None if seat is None else self._open_door(seat, world, wishes, access)
        try:
            ended = execution.run(
                line if wishes.terminal is None else on_terminal(line), world, world.cwd(run.cwd), (out, err),
                self.policy.timeout if request.timeout is None else request.timeout, wishes, seat, access,
            )  # fmt: skip
            if errors is not None:
                errors.release()
            if wishes.partner is not None:
                wishes.partner.finish()
            take_note(run, ended)
        finally:
            if access is not None:
                access.stop(run)
            if asking is not None:
                asking.close()
                asking.finish()
        return ended

    def _open_door(self, seat: Seat, world: World, wishes: Wishes, access: Access | None) -> Asking | None:
        """Let the command ask for something, a person too where somebody can ask them; returns what that needs."""
        door = seat.door
        assert door is not None
        door.outside, door.seen_at = world.outside, world.targets
        permissions = self.asking(wishes)
        if not permissions.are_answered(self.project.path):
            return None  # then a process of its own asks whoever has come meanwhile
        from fumehood.service.ask import settle_access
        from fumehood.service.network import Asking

        def never(*_: object) -> Decision:
            raise AssertionError("no connection waits for this")

        connecting = None if access is None else access.asking
        asking = connecting or Asking(never, never)

        def ask(asked: Sequence[Widening]) -> str:
            def decide(question: Question) -> Decision:
                return asking.waited_for(lambda is_closed: permissions.decide(question, is_closed))

            said = settle_access(self.store, self.project, seat.session.name, asked, decide)
            return "".join(f"{line}\n" for line in said)

        door.asking, door.ask = asking, ask
        return None if asking is connecting else asking

    def _access(self, run: Run, network: Network, world: World, wishes: Wishes, seat: Seat | None) -> Access:
        """Return the way to the network of a command that has one, or may turn out to need one.

        Hosts that nobody granted are asked for while the connection waits, where somebody is there to ask.
        """
        from fumehood.service.network import Access, Asking, resolvers_of

        permissions = self.asking(wishes)

        def decide(place: str, is_closed: Callable[[], bool]) -> Decision:
            cancelled = wishes.cancelled
            question = _question(run, (place,))
            return permissions.decide(question, lambda: is_closed() or (cancelled is not None and cancelled()))

        asking = None
        if network.asks:
            asking = Asking(decide, lambda place, answer: self.note_decision(run, _question(run, (place,)), answer))
        is_ours = self.host().makes_namespaces
        return Access(
            network, asking=asking, resolvers=resolvers_of(world) if is_ours else (),
            in_session=is_ours and seat is not None,
        )  # fmt: skip

    def _with_grants(self, request: Request) -> Hood:
        """Return a hood whose policy has what a person granted the project, or this session of it; mostly as it is."""
        granted = self.store.grants.allowed(self.project.path, request.session)
        if not granted:
            return self
        return self._under(widened(self.policy, granted))

    def limited(self, limits: Limits) -> Hood:
        """Return a hood whose commands may use less."""
        hood = self._under(self.policy.replace(limits=limits))
        hood.variables = self.variables
        return hood

    def _under(self, policy: Policy) -> Hood:
        """Return a hood with another policy; what was found out about the host is known to it too."""
        hood = Hood(self.store, self.project, policy, self.start, self.permissions, self.surroundings.under(policy))
        hood._host = self._host
        return hood

    def profiled(self, request: Request) -> tuple[Hood, Request]:
        """Return a hood whose policy has what the profiles of a command say, and how it then runs; mostly as it is."""
        if request.agent is not None:
            hood = self._under(self.policy.under(request.agent.settings))
            hood._profiles, hood._agent = (TOOLS,), request.agent
            return hood, request
        profiles = matching(self.policy.profiles, checked(request.command))
        if not profiles:
            return self, request
        from fumehood.service.profiles import profiled

        policy, request, withheld = profiled(self.store, self.project, self.policy, request, profiles)
        hood = self._under(policy)
        hood._profiles, hood._withheld = profiles, withheld
        return hood, request

    def _asking(self, request: Request) -> Request:
        """Have what the profiles withhold asked for, where there is somebody to ask."""
        from fumehood.service.profiles import asking

        withheld, self._withheld = self._withheld, {}
        return asking(request, withheld)

    def world(self, request: Request, run: str, seat: Seat | None = None) -> World:
        """Return what surrounds a command, with what its request, its session and its profiles give it."""
        world = self._around(request)
        persons = world.environment
        environment = {
            **defaults(self._profiles), **world.environment, **(seat.variables if seat else {}),
            **dict(request.environment),
        }  # fmt: skip
        if seat is not None:
            environment["PATH"] = f"{BIN}:{environment.get('PATH', os.defpath)}"
        world = world.replace(
            environment=environment, host_shell=request.shell or world.host_shell, source=request.source
        )
        if request.write is not None:
            world = world.limited(request.write)
        if request.thrown:
            world = world.replace(thrown=request.thrown)
        keeps_tmp = self.policy.tmp == "project" and not request.thrown
        if not keeps_tmp and not any(each.scratch for each in self._profiles):
            return world
        from fumehood.service.profiles import Scratch, wanted

        # A session's and a request's variables are the commands' own words: they bring nothing of the host into sight.
        asked = wanted(self._profiles, persons, persons.get("HOME", "/"))
        if request.thrown:
            asked = tuple(each.replace(keep=False) for each in asked)  # nothing of one is for the next
        if self._agent is not None:
            from fumehood.service.agents import AgentRoom

            room = AgentRoom(
                self.store.places, self.project.path, run, asked, keeps_tmp=keeps_tmp, agent=self._agent,
                environment=environment, roots=self.project.roots,
            )  # fmt: skip
            return world.replace(scratch=room)
        return world.replace(scratch=Scratch(self.store.places, self.project.path, run, asked, keeps_tmp=keeps_tmp))

    def _around(self, request: Request) -> World:
        layering.require_there(self.project.roots)
        return around(
            self.store.places, self.policy, request.root or self.policy.root, self.project.roots,
            owner_of(self.project.path), self.project.id,
            makes_points=self.policy.home == HIDDEN
            or (self.host().makes_namespaces and self.policy.capture != capturing.BWRAP),
        )  # fmt: skip

    def foreseen(self, request: Request) -> tuple[Question, ...]:
        """Return what a person would be asked before this request runs."""
        command, host = checked(request.command), self.host()
        if host.why_bare:
            from fumehood.service.unsandboxed import foreseen

            return foreseen(self, host, request)
        hood, request = self.profiled(request)
        request = hood._asking(request) if hood._withheld else request
        hosts = decided(request.network, request.hosts, hood.policy).to_ask
        if not hosts:
            return ()
        from fumehood.core.questions import network_question

        cwd = self._around(request).starting(request.cwd, self.project.path)
        return (network_question(shown(command), cwd, self.project.path, "", hosts, self.project.roots),)


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


def _question(run: Run, hosts: tuple[str, ...]) -> Question:
    from fumehood.core.questions import network_question

    return network_question(run.command, run.cwd, run.project, run.run, hosts, run.roots)


def _cut_short(outcome: Outcome, wishes: Wishes) -> str:
    """Return what ended a command that did not end by itself, nor by a person at their terminal."""
    signals = () if wishes.signals is None else wishes.signals.sent(outcome.signals)
    if outcome.raised or (wishes.is_agents_terminal and outcome.exit.status == _BY_CTRL_C):
        signals = (*signals, "SIGINT")
    if outcome.exit.killed_by:
        from signal import Signals

        signals = (*signals, Signals(outcome.exit.killed_by).name)
    return cut_short(
        is_stopped=outcome.limit is not None and outcome.limit.what == STOPPED,
        limit="" if outcome.limit is None else outcome.limit.detail,
        signals=signals,
        is_cancelled=outcome.interrupted and wishes.cancelled is not None and wishes.cancelled(),
        is_timed_out=outcome.timed_out,
    )
