"""The story of one command: request, layers, launch, scan, judge, apply, report."""

from __future__ import annotations

import os
import time

from fumehood.core.changes import HELD
from fumehood.core.judge import APPLY, HOLD, cut_short, judge
from fumehood.core.limits import overflows, refused_writes
from fumehood.core.network import FULL, HOSTS, OFFLINE, decided
from fumehood.core.policy import HIDDEN, Policy, defaults, matching
from fumehood.core.questions import network_question
from fumehood.core.report import HIDDEN_PATH, LEFT_AT_HOME, Blocked, Run
from fumehood.core.request import Request, arguments, check, checked, on_terminal, shown
from fumehood.errors import Refused
from fumehood.linux import capture as capturing
from fumehood.linux.launch import owner_of
from fumehood.linux.libc import InterruptsHeld
from fumehood.linux.namespaces import mounts_inside
from fumehood.linux.streams import INLINE, HeldBack, Stream
from fumehood.service import layers as layering
from fumehood.service.permission import Permissions
from fumehood.service.running import Ended, Execution, Wishes, Workplace, note_refusal, printed, take_note
from fumehood.service.scratch import PLAYGROUND
from fumehood.service.settle import FAILED, Looking, settle
from fumehood.service.surroundings import Surroundings, around
from fumehood.store import database
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fumehood.core.concern import Concern
    from fumehood.core.judge import Waiting
    from fumehood.core.network import Network
    from fumehood.core.policy import Profile
    from fumehood.core.questions import Question
    from fumehood.linux.capture import Stranger
    from fumehood.linux.launch import Starter
    from fumehood.linux.namespaces import Layer
    from fumehood.linux.process import Outcome
    from fumehood.service.network import Access, Asking
    from fumehood.service.permission import Decision
    from fumehood.service.session import Seat
    from fumehood.service.store import Store
    from fumehood.service.surroundings import World
    from fumehood.store.projects import Project


_MOST_NAMED = 3


class Hood(Workplace):
    """One project's sandbox: every command a transaction."""

    def __init__(
        self, store: Store, project: Project, policy: Policy, start: Starter, permissions: Permissions | None = None
    ) -> None:
        super().__init__(store, project, policy, start, permissions)
        self.surroundings = Surroundings(store.places, policy, store.projects.paths)
        self._profiles: tuple[Profile, ...] = ()
        self._withheld: dict[str, Any] = {}  # what profiles would grant a plain command

    def run(self, request: Request, wishes: Wishes) -> Run:
        """Run a command from request to report."""
        check(request)
        hood, request = self.profiled(request)
        if hood._withheld and hood.asking(wishes).are_answered:
            request = hood._asking(request)
        try:
            run = hood._run_claimed(request, wishes)
        finally:
            self._host = hood._host
        if run.below:
            from fumehood.service.held import clear_away

            clear_away(self.store, self.project.id, run.below)
        return run

    def profiled(self, request: Request) -> tuple[Hood, Request]:
        """Return a hood whose policy has what the profiles of a command say, and how it then runs; mostly as it is."""
        profiles = matching(self.policy.profiles, checked(request.command))
        if not profiles:
            return self, request
        from fumehood.service.profiles import profiled

        found = profiled(self.store, self.project, self.policy, request, profiles)
        hood = Hood(self.store, self.project, found.policy, self.start, self.permissions)
        hood._host, hood._profiles, hood._withheld = self._host, profiles, found.withheld
        return hood, found.request

    def _asking(self, request: Request) -> Request:
        """Have what the profiles withhold asked for, where there is somebody to ask."""
        from fumehood.service.profiles import asking

        withheld, self._withheld = self._withheld, {}
        return asking(request, withheld)

    def _run_claimed(self, request: Request, wishes: Wishes) -> Run:
        # Before anything is tried out there: on a full disk, nothing would seem to work.
        database.keep(self.store.places.state)
        with layering.Claim(self.store.places, new_id()) as claim:
            if not request.session:
                return self._run(claim, request, wishes)
            from fumehood.service.session import Seat

            with Seat(self.store, self.project, request.session, claim.run, own_tmp=request.own_tmp) as seat:
                return self._run(claim, request.replace(cwd=request.cwd or seat.cwd), wishes, seat)

    def _run(self, claim: layering.Claim, request: Request, wishes: Wishes, seat: Seat | None = None) -> Run:
        command = checked(request.command)
        found = self.host()
        if found.why_bare:
            from fumehood.service.unsandboxed import run_bare

            return run_bare(self, found, claim, request, wishes)
        world = self.world(request, claim.run, seat)
        network = decided(request.network, request.hosts, self.policy)
        run = self._known(claim.run, request, command, world, network)
        self._ask_first(run, network, wishes)
        layers, execution = self._begin(claim, run, world)
        try:
            line = arguments(command, world.shell, source=request.source, tells_cwd=seat is not None)
            line = line if wishes.terminal is None else on_terminal(line)
            with world.entered(run.capture) as world:
                if network is OFFLINE:
                    ended = self._execute(run, execution, line, world, request, wishes, seat)
                else:
                    ended = self._connect(run, network, execution, line, world, request, wishes, seat)
            run.ended_in = seat.keep(world.known) if seat else ""
        except BaseException as error:
            self._failed(run, error)
            raise
        # The command has ended. Ctrl-C can still end a long look at what it did, and nothing after that.
        with InterruptsHeld() as interrupts:
            with Looking(self.store, run, printed(ended), wishes.signals, interrupts):
                run.found = layering.scanned(layers, claim.indexes)
                run.blocked += (*self._limits_met(ended), *_missing(run, network, world, ended), *world.blocked)
                run.blocked += (*self._refused_by_owners(run), *self._missed(run))
                run.blocked += _met(run, self.policy, world, run.blocked)
                run.blocked += (*_unseen(run, ended), *_thrown_away(ended))
                self._judge(run, layers, request.mode, _cut_short(ended.outcome, wishes))
            settle(self.store, self.project.id, run, printed(ended), layers, self.policy.on_conflict)
            if run.found:
                from fumehood.service.owners import forget_what_was_moved

                forget_what_was_moved(self.store.places, self.project, run)
        return run

    def _judge(self, run: Run, layers: Sequence[Layer], mode: str, cut_short: str) -> None:
        """Give every change its verdict; what a command that was cut short would have applied is held, and says why."""
        is_held = mode == APPLY and bool(cut_short)
        mode = HOLD if is_held else mode
        judge(run.found, mode, self._concerns(run, layers), _mounts_inside(run), self._waiting(run))
        for change in run.found:
            if is_held and change.verdict == HELD:
                change.reason = cut_short
        if cut_short:
            run.reason = f"{cut_short}; {run.reason}" if run.reason else cut_short
        if run.found:
            from fumehood.service.owners import hold_what_is_not_ours

            hold_what_is_not_ours(run.found, layers)

    def _missed(self, run: Run) -> tuple[Blocked, ...]:
        """Say what a failed command would have had by its profile, were it a plain one."""
        if not self._withheld or not run.exit_code:
            return ()
        from fumehood.service.profiles import missed

        return missed(self._withheld)

    def _refused_by_owners(self, run: Run) -> tuple[Blocked, ...]:
        """Say which files a command could not change because of whose they are; hardly ever are there any."""
        if not overflows(run.stderr) and not overflows(run.stdout):
            return ()
        from fumehood.service.owners import refused

        return refused(self.store.places, self.project, run, self.host(), self.policy.capture)

    def _failed_on(self) -> Sequence[Stranger]:
        """Return what belongs to others and could not be changed by an earlier command."""
        if not os.path.exists(self.store.places.strangers(self.project.id)):
            return ()
        from fumehood.service.owners import failed_on

        return failed_on(self.store.places, self.project)

    def world(self, request: Request, run: str, seat: Seat | None = None) -> World:
        """Return what surrounds a command."""
        world = self._around(request, checked(request.command))
        return self._with_profiles(_furnished(world, request, seat), run)

    def _around(self, request: Request, command: str | tuple[str, ...]) -> World:
        return around(
            self.store.places, self.policy, request.root or self.policy.root, self.project.roots,
            owner_of(self.project.path), self.project.id,
            plays=PLAYGROUND in request.cwd or PLAYGROUND in shown(command),
            makes_points=self.policy.home == HIDDEN
            or (self.host().makes_namespaces and self.policy.capture != capturing.BWRAP),
        )  # fmt: skip

    def _with_profiles(self, world: World, run: str) -> World:
        """Add what the command's profiles give: variables, and directories to write."""
        if self._profiles:
            world = world.replace(environment={**defaults(self._profiles), **world.environment})
        keeps_tmp = self.policy.tmp == "project"
        if not keeps_tmp and not any(each.scratch for each in self._profiles):
            return world
        from fumehood.service.scratch import Scratch, wanted

        asked = wanted(self._profiles, world.environment, world.environment.get("HOME", "/"))
        return world.replace(scratch=Scratch(self.store.places, self.project.path, run, asked, keeps_tmp=keeps_tmp))

    def look_inside(self, script: str, root: str, timeout: float) -> str:
        """Return what a script of our own prints in the sandbox; it is not recorded, and changes nothing."""
        places = self.store.places
        owner = owner_of(self.project.path)
        world = around(places, self.policy, root or self.policy.root, self.project.roots, owner, self.project.id)
        choice = capturing.choose(self.host(), self.policy.capture, self.project.roots)
        way = choice.way
        with layering.Claim(places, new_id()) as claim:
            claim.take()
            out, err = (Stream(name, places.output(claim.run, name), INLINE) for name in ("stdout", "stderr"))
            try:
                layers = layering.make(places, claim.run, self.project.roots, way)
                capture = capturing.Capture(way, layers, world.targets, choice.groups)
                execution = Execution(self.host(), capture, self.start, self.policy.limits)
                with world.entered(way) as world:
                    execution.run(
                        arguments(script, world.shell), world, world.cwd(self.project.path), self.surroundings,
                        (out, err), timeout, Wishes(),
                    )  # fmt: skip
            finally:
                layering.drop(places, claim.run)
                for stream in (out, err):
                    if stream.path:
                        os.unlink(stream.path)
        return out.text()

    def _known(
        self, name: str, request: Request, command: str | tuple[str, ...], world: World, network: Network
    ) -> Run:
        """Write down what is asked for; how it is captured is not known yet."""
        return Run(
            run=name, project=self.project.path, command=request.title or shown(command),
            cwd=world.starting(request.cwd, self.project.path), state="running", network=network.mode,
            started_at=time.time(), mode=request.mode, dropped=world.dropped, roots=self.project.roots,
            session=request.session or None, hosts=network.hosts,
        )  # fmt: skip

    def _ask_first(self, run: Run, network: Network, wishes: Wishes) -> None:
        """Ask a person for what they must be asked for; a plain sandboxed run needs nobody's word."""
        if network.to_ask:
            hosts, roots = network.to_ask, run.roots
            self.permit(run, network_question(run.command, run.cwd, run.project, run.run, hosts, roots), wishes)

    def foreseen(self, request: Request) -> tuple[Question, ...]:
        """Return what a person would be asked before this request runs."""
        command, found = checked(request.command), self.host()
        if found.why_bare:
            from fumehood.service.unsandboxed import foreseen

            return foreseen(self, found, request)
        hood, request = self.profiled(request)
        request = hood._asking(request) if hood._withheld else request
        asked = decided(request.network, request.hosts, hood.policy).to_ask
        if not asked:
            return ()
        world = self._around(request, command)
        cwd = world.starting(request.cwd, self.project.path)
        return (network_question(shown(command), cwd, self.project.path, "", asked, self.project.roots),)

    def _connect(
        self, run: Run, network: Network, execution: Execution, command: tuple[str, ...], world: World,
        request: Request, wishes: Wishes, seat: Seat | None,
    ) -> Ended:  # fmt: skip
        """Run a command that has a network, or may turn out to need one."""
        from fumehood.service.network import Access, blocked, resolvers_of

        asking = self._asking_for(run, wishes) if network.asks else None
        resolvers = resolvers_of(world) if self.host().makes_namespaces else ()
        access = Access(network, asking=asking, resolvers=resolvers)
        try:
            return self._execute(run, execution, command, world, request, wishes, seat, access)
        finally:
            access.stop()
            run.connections = access.connections
            run.blocked = blocked(access.connections, run.started_at)
            if asking is not None and asking.granted:
                run.network, run.hosts = HOSTS, (*network.hosts, *asking.granted)

    def _asking_for(self, run: Run, wishes: Wishes) -> Asking | None:
        """Return what asks for the hosts that a command tries to reach; None where nobody is there to ask."""
        permissions = self.asking(wishes)
        if not permissions.are_answered:
            return None
        from fumehood.service.network import Asking

        def question(place: str) -> Question:
            return network_question(run.command, run.cwd, run.project, run.run, (place,), run.roots)

        def decide(place: str, is_closed: Callable[[], bool]) -> Decision:
            cancelled = wishes.cancelled
            return permissions.decide(question(place), lambda: is_closed() or (cancelled is not None and cancelled()))

        return Asking(decide, lambda place, decision: self.note_decision(run, question(place), decision))

    def _begin(self, claim: layering.Claim, run: Run, world: World) -> tuple[tuple[Layer, ...], Execution]:
        """Record the run, and make its layers."""
        places = self.store.places
        found = self.host()
        choice = capturing.choose(found, self.policy.capture, run.roots, self._failed_on())
        run.capture, run.reason = choice.way, choice.why
        self.store.recover()
        claim.take()
        with self.store.stack(self.project.id, settling=False):
            run.below = tuple(self.store.history.held(self.project.id))
            self.store.history.begin(self.project.id, run, os.getpid())
        layers = layering.make(places, run.run, run.roots, run.capture, self._below(run))
        capture = capturing.Capture(run.capture, layers, world.targets, choice.groups)
        return layers, Execution(found, capture, self.start, self.policy.limits, claim.indexes)

    def _below(self, run: Run) -> list[tuple[str, ...]]:
        """Find what earlier runs hold: the command sees that too, root by root."""
        if not run.below:
            return []
        from fumehood.service.held import seen

        return seen(self.store, self.project.id, run)

    def _execute(
        self, run: Run, execution: Execution, command: tuple[str, ...], world: World,
        request: Request, wishes: Wishes, seat: Seat | None, access: Access | None = None,
    ) -> Ended:  # fmt: skip
        places = self.store.places
        errors = None if wishes.on_stderr is None else HeldBack(wishes.on_stderr)
        streams = [
            Stream(name, places.output(run.run, name), self.policy.output_limit, sink)
            for name, sink in (("stdout", wishes.on_stdout), ("stderr", errors))
        ]
        timeout = self.policy.timeout if request.timeout is None else request.timeout
        ended = execution.run(
            command, world, world.cwd(run.cwd), self.surroundings, (streams[0], streams[1]), timeout, wishes, seat,
            access,
        )
        if errors is not None:
            errors.release()
        take_note(run, ended)
        return ended

    def _limits_met(self, ended: Ended) -> tuple[Blocked, ...]:
        """Tell of limits: one that ended the command, and output of which not all was kept."""
        reached = () if ended.outcome.limit is None else (ended.outcome.limit,)
        if not any(stream.size > stream.saved > 0 for stream in (ended.stdout, ended.stderr)):
            return reached
        from fumehood.core.limits import OUTPUT, hit

        return (*reached, hit(OUTPUT, self.policy.output_limit))

    def _concerns(self, run: Run, layers: Sequence[Layer]) -> dict[int, Concern]:
        """Find out which changes the host would act on by itself."""
        if not run.found:
            return {}
        from fumehood.service.danger_facts import concerns

        return concerns(run.found, run.roots, [layer.upper for layer in layers], self.policy.rules)

    def _waiting(self, run: Run) -> Waiting | None:
        """Find out what the command built on that still waits for a person."""
        if not run.found or not run.below:
            return None
        from fumehood.service.held import waiting

        return waiting(self.store, run)

    def _failed(self, run: Run, error: BaseException) -> None:
        run.state, run.reason = FAILED, str(error) or type(error).__name__
        if isinstance(error, Refused):
            note_refusal(run, error)
        self.store.history.end(run)
        layering.drop(self.store.places, run.run)


def _furnished(world: World, request: Request, seat: Seat | None) -> World:
    """Give a world what this request and its session ask for."""
    added = {**(seat.variables if seat else {}), **dict(request.environment)}
    if added:
        world = world.replace(environment={**world.environment, **added})
    return world.replace(host_shell=request.shell or world.host_shell, source=request.source)


def _mounts_inside(run: Run) -> list[tuple[int, str]]:
    """Return other file systems that the command saw inside its roots; an overlay of the kernel shows none."""
    if run.capture in (capturing.KERNEL, capturing.BWRAP):
        return []
    return [
        (number, os.path.relpath(mount, root))
        for number, root in enumerate(run.roots)
        for mount in mounts_inside(root)
    ]


def _missing(run: Run, network: Network, world: World, ended: Ended) -> tuple[Blocked, ...]:
    """Say what a command was refused, and what a failed one may have missed."""
    home = "" if ended.seen is None else ended.seen.home
    refused = refused_writes(run.stderr, [world.cwd(root) for root in run.roots], world.remedy, home)
    if not run.exit_code:
        return refused
    found = _missing_roots(run) or refused
    if network.mode != FULL and not any(each.what == "network" for each in run.blocked):
        from fumehood.core.hints import suspected_network, unreached

        found += unreached(run.connections) or suspected_network(run.stderr or run.stdout, network)
    return found


def _met(run: Run, policy: Policy, world: World, known: tuple[Blocked, ...]) -> tuple[Blocked, ...]:
    """Say which mask, socket or limit a failed command seems to have met, besides what is known."""
    if not run.exit_code or run.timed_out or world.tree is not None or not (run.stderr or run.stdout):
        return ()
    from fumehood.core.hints import suspected

    found = suspected(run.stderr or run.stdout, run.exit_code, policy, world.environment.get("HOME", "/"))
    return tuple(each for each in found if each not in known and not (each.what == "limit" and known))


def _unseen(run: Run, ended: Ended) -> tuple[Blocked, ...]:
    """Say what a failed command missed of the home, by the paths that it named."""
    if not run.exit_code or ended.seen is None or not ended.seen.home:
        return ()
    from fumehood.core.hints import unseen_paths

    paths = unseen_paths(run.stderr or run.stdout, (ended.seen.home,), ended.seen.hides, run.cwd)
    named = {each.detail for each in run.blocked}
    return tuple(
        Blocked(
            what=HIDDEN_PATH, detail=path,
            hint=f'to show it to commands: show = ["{path}"] in the configuration (fumehood config path)',
        )
        for path in paths if path not in named
    )  # fmt: skip


def _thrown_away(ended: Ended) -> tuple[Blocked, ...]:
    """Say what a command wrote to its home, which nobody keeps."""
    if not ended.left_at_home:
        return ()
    named = ", ".join(f"~/{path}" for path in ended.left_at_home[:_MOST_NAMED])
    more = len(ended.left_at_home) - _MOST_NAMED
    detail = f"{named} and {more} more" if more > 0 else named
    return (Blocked(what=LEFT_AT_HOME, detail=detail, hint="a command's home is its own and is thrown away with it"),)


def _missing_roots(run: Run) -> tuple[Blocked, ...]:
    """Offer the directory that a failed command in a git work tree could not write: its real git directory."""
    from fumehood.service.projects import git_directory

    found = git_directory(run.project)
    if found is None or found in run.roots:
        return ()
    hint = f"this is a git work tree, which keeps its history there; fumehood roots add {found}"
    return (Blocked(what="write", detail=found, hint=hint),)


def _cut_short(outcome: Outcome, wishes: Wishes) -> str:
    """Say what ended a command that did not end by itself, nor by a person at their terminal."""
    return cut_short(
        limit="" if outcome.limit is None else outcome.limit.detail,
        signals=() if wishes.signals is None else wishes.signals.sent(outcome.signals),
        is_cancelled=outcome.interrupted and wishes.cancelled is not None and wishes.cancelled(),
        is_timed_out=outcome.timed_out,
    )
