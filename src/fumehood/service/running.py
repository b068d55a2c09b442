"""One command, from its layers to its end: the sandbox is built, started, attended and cleared away."""

from __future__ import annotations

import os
import stat
import time

from fumehood.core.environment import apart
from fumehood.core.questions import NETWORK
from fumehood.core.report import Run
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError, LaunchFailed, Refused
from fumehood.linux.bwrap import Spec, bubblewrap_arguments
from fumehood.linux.capture import BWRAP, COPY, KERNEL, Capture
from fumehood.linux.confine import filter_for, guard, is_scoped_by_launcher
from fumehood.linux.launch import Owner, Plan, owner_of, resource_limits, started
from fumehood.linux.mounts import Text, is_bubblewraps
from fumehood.linux.nofollow import LISTING
from fumehood.linux.probe import host
from fumehood.linux.process import Attendance, Outcome
from fumehood.linux.streams import CLOSED, INLINE, Stream, on_terminal, piped
from fumehood.service.permission import Permissions
from fumehood.service.settle import REFUSED
from fumehood.store.audit import DECIDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fumehood.core.policy import Limits, Policy
    from fumehood.core.questions import Question
    from fumehood.linux.bwrap import Bwrap
    from fumehood.linux.gitindex import SeenIndexes
    from fumehood.linux.host import Host
    from fumehood.linux.launch import Starter, Streams
    from fumehood.linux.mounts import Operation
    from fumehood.linux.namespaces import Layer
    from fumehood.linux.process import Exit, Guard, Outcome, Running, Watched
    from fumehood.linux.streams import Sink, Stdio
    from fumehood.linux.terminal import Signals, Terminal
    from fumehood.service.ask import Ask
    from fumehood.service.network import Access
    from fumehood.service.permission import Decision
    from fumehood.service.scratch import Scratch
    from fumehood.service.session import Seat
    from fumehood.service.store import Store
    from fumehood.service.surroundings import Seen, Surroundings, World
    from fumehood.store.history import Printed
    from fumehood.store.projects import Project


# ---- One command, from its layers to its end: the sandbox is built, started, attended and cleared away.

class Ended(Value):
    """How a command ended and what it printed."""

    outcome: Outcome
    stdout: Stream
    stderr: Stream
    duration_s: float
    seen: Seen | None = None
    left_at_home: tuple[str, ...] = ()  # what it wrote to its home, which is thrown away


class Wishes(Value):
    """How the caller wants to take part while the command runs."""

    stdin: str | bytes = CLOSED  # one of the words, or what to feed
    on_stdout: Sink | None = None
    on_stderr: Sink | None = None
    watch: Callable[[Sequence[Layer]], Watched] | None = None
    cancelled: Callable[[], bool] | None = None
    terminal: Terminal | None = None  # the command's own, in place of pipes
    signals: Signals | None = None  # those that ask for the command's end; without, KeyboardInterrupt does
    asks: tuple[Ask, ...] = ()  # who may answer for this run, in place of those who usually do


class Workplace:
    """A project with its policy, and who may be asked: what a run needs whether it is sandboxed or not."""

    def __init__(
        self, store: Store, project: Project, policy: Policy, start: Starter, permissions: Permissions | None = None
    ) -> None:
        self.store = store
        self.project = project
        self.policy = policy
        self.permissions = Permissions(store.grants) if permissions is None else permissions
        self.start = start
        self._host: Host | None = None

    def host(self) -> Host:
        """Return what this host can do."""
        if self._host is None:
            self._host = host(self.store.places.cache, self.store.places.state)
        return self._host

    def permit(self, run: Run, question: Question, wishes: Wishes) -> None:
        """Have a question settled before a run begins; a no is recorded as a refused run, and raised."""
        try:
            self.note_decision(run, question, self.asking(wishes).require(question, wishes.cancelled))
        except Refused as error:
            note_refusal(run, error)
            self.store.history.refuse(self.project.id, run)
            raise

    def note_decision(self, run: Run, question: Question, decision: Decision) -> None:
        """Leave in the audit trail what a person said."""
        hosts = f" ({', '.join(question.details)})" if question.what == NETWORK else ""
        self.store.audit.tell(run.run, DECIDED, f"{decision.told}: {question.text}{hosts}", project=self.project.id)

    def asking(self, wishes: Wishes) -> Permissions:
        """Return who may be asked for a run: those it names, or those who usually are."""
        return self.permissions.among(wishes.asks) if wishes.asks else self.permissions


def note_refusal(run: Run, error: Refused) -> None:
    """Write down that a run was refused, and by what."""
    run.state, run.reason, run.exit_code = REFUSED, error.message, error.exit_code
    run.stdout = run.stderr = ""
    error.run, error.told = run.run, run.as_dict()


class Execution:
    """One command in its sandbox."""

    def __init__(
        self, host: Host, capture: Capture, start: Starter, limits: Limits, indexes: SeenIndexes | None = None
    ) -> None:
        self._host = host
        self._capture = capture
        self._start = start
        self._besides: tuple[str, ...] = ()  # what the command may write and fill besides its layers
        self._limits = limits
        self._indexes = indexes
        self._look_again: Callable[[], Seen]
        self._seen_last: Seen | None = None

    def run(
        self,
        command: tuple[str, ...],
        world: World,
        cwd: str,
        surroundings: Surroundings,
        outputs: tuple[Stream, Stream],
        timeout: float | None,
        wishes: Wishes,
        seat: Seat | None = None,
        access: Access | None = None,
    ) -> Ended:
        """Run a command to its end; raises LaunchFailed where the sandbox itself failed."""
        try:
            plan = self._planned(command, world, cwd, surroundings, seat, access)
            ended = self._captured(plan, outputs, timeout, wishes, access)
            left_behind = _left_behind(plan, ended.outcome.exit)
        finally:
            if world.scratch is not None:
                world.scratch.remove()
        _check_launch(ended, cwd, self._seen_last)
        return ended.replace(seen=self._seen_last, left_at_home=left_behind)

    def _captured(
        self, plan: Plan, outputs: tuple[Stream, Stream], timeout: float | None, wishes: Wishes, access: Access | None
    ) -> Ended:
        """Attend a command between the two ends of the capture."""
        if self._indexes is not None:
            self._indexes.look([layer.root for layer in self._capture.layers])
        try:
            self._capture.begin()
            ended = self.attend(plan, outputs, timeout, wishes, access)
            self._capture.finish()
        except BaseException:
            self._capture.abandon()
            raise
        return ended

    def _planned(
        self, command: tuple[str, ...], world: World, cwd: str, surroundings: Surroundings, seat: Seat | None,
        access: Access | None,
    ) -> Plan:  # fmt: skip
        """Put together all that a launch needs."""
        bwrap, owner = self._bubblewrap(), self._owner(world)
        user = self.user(owner)
        environment = world.environment
        listens_inside = False
        if access is not None:
            environment = {**environment, **access.environment(environment)}
            listens_inside = bool(access.listen) and not self._host.makes_namespaces
            if listens_inside:
                command = _listening_inside(access, command, world)
        scratch = world.scratch
        if scratch is not None:
            environment = {**environment, **self._made(scratch, surroundings, world, user, owner)}
            self._besides = tuple(scratch.directories)
        seen = self._seen_last = self._seen(world, surroundings, user, seat, access)
        self._look_again = lambda: self._seen(world, surroundings.again(), user, seat, access)
        refused = filter_for(
            surroundings.cache, unix_sockets=seen.is_cut, pretends_owners=world.pretends_owners(user)
        )
        environment, variables = apart(environment)
        arguments, texts = bubblewrap_arguments(
            Spec(
                command=command, cwd=cwd, mounts=seen.mounts, by_launcher=self._launcher_mounts,
                network_made=access is not None and not listens_inside, disable_userns=self._host.disable_userns,
                is_root=world.tree is not None and world.tree.is_writable,
                variables=variables, has_filter=bool(refused), has_guard=bool(guard()),
            )
        )  # fmt: skip
        plan = Plan(
            arguments=(bwrap.path, *arguments), environment=environment, texts=texts,
            privileged=self._host.privileged, groups=self._capture.groups, owner=owner,
            listen=() if access is None or listens_inside else access.listen, keeps_channel=listens_inside,
            resolvers=() if access is None or listens_inside else access.resolvers,
            scoped=is_scoped_by_launcher(network_shared=access is not None and access.shares),
            limits=resource_limits(self._limits), filter=refused,
        )  # fmt: skip
        return self._with_mounts(plan, seen)

    def user(self, owner: Owner | None) -> int:
        """Return whom the command runs as."""
        return os.geteuid() if owner is None else owner.user

    def would_see(self, world: World, surroundings: Surroundings) -> Seen:
        """Return what a command without a session or a network would see."""
        owner = self._owner(world)
        if world.scratch is not None:
            self._made(world.scratch, surroundings, world, self.user(owner), owner)
        return self._seen(world, surroundings, self.user(owner), None, None)

    @property
    def _launcher_mounts(self) -> bool:
        """Whether our own launcher mounts what the command sees; else bubblewrap does, and less can be hidden."""
        return self._host.makes_namespaces and self._capture.way != BWRAP

    def _seen(
        self, world: World, surroundings: Surroundings, user: int, seat: Seat | None, access: Access | None
    ) -> Seen:
        return surroundings.seen(
            world, self._capture, user, seat, by_launcher=self._launcher_mounts, privileged=self._host.privileged,
            shares_network=access is not None and access.shares,
        )  # fmt: skip

    def _with_mounts(self, plan: Plan, seen: Seen) -> Plan:
        """Return a plan with what the launcher mounts."""
        if not self._launcher_mounts:
            return plan
        mounts = tuple(each for each in seen.mounts if not is_bubblewraps(each))
        return plan.replace(mounts=mounts, ahead=seen.ahead, look=seen.look, home=seen.home)

    def _made(
        self, scratch: Scratch, surroundings: Surroundings, world: World, user: int, owner: Owner | None
    ) -> dict[str, str]:
        """Make a run's scratch ready; return what the command is told of it."""
        from fumehood.service.scratch import Conditions

        homes = surroundings.homes(user, world.home)
        hidden = surroundings.masks(homes, as_root=user == 0).hidden
        roots = (layer.root for layer in self._capture.layers)
        try:
            scratch.make(
                Conditions(
                    way=self._capture.way, closed=(*hidden, *roots), homes=homes, has_host=world.tree is None,
                    is_ours=owner is None,
                )
            )  # fmt: skip
        except BaseException:
            scratch.remove()
            raise
        return scratch.variables

    def _bubblewrap(self) -> Bwrap:
        found = self._host.overlay_bwrap if self._capture.way == BWRAP else self._host.bwrap
        if found is None:
            raise LaunchFailed("there is no bubblewrap that works here", hint="fumehood doctor")
        return found

    def _owner(self, world: World) -> Owner | None:
        """Whom root runs as on somebody else's project: that person."""
        project = self._capture.layers[0].root
        owner = owner_of(project)
        if owner is not None and not (self._capture.way == KERNEL and self._host.privileged):
            raise LaunchFailed(
                f"{project} belongs to user {owner.user}, and root can't run commands as them here",
                hint="run fumehood as that user",
            )
        if owner is not None and world.tree is not None and world.tree.guarded:
            raise LaunchFailed(
                f"a project of user {owner.user} can't have a root layer of root's", hint="run fumehood as that user"
            )
        return owner

    def attend(
        self, plan: Plan, outputs: tuple[Stream, Stream], timeout: float | None, wishes: Wishes,
        access: Access | None = None,
    ) -> Ended:  # fmt: skip
        """Start what was planned, and stay with it to its end."""
        if wishes.terminal is None:
            return self._attended(plan, piped(wishes.stdin, outputs), outputs, timeout, wishes, access)
        # Only now: a person who is asked something answers on a terminal as they know it.
        with wishes.terminal as terminal:
            return self._attended(plan, on_terminal(terminal, outputs[0]), outputs, timeout, wishes, access)

    def _attended(
        self, plan: Plan, stdio: Stdio, outputs: tuple[Stream, Stream], timeout: float | None, wishes: Wishes,
        access: Access | None,
    ) -> Ended:  # fmt: skip
        began = time.monotonic()
        watched = None
        if wishes.signals is not None:
            wishes.signals.note()
        try:
            # Before the command starts, or its first writes would not be seen. A copied tree tells nothing until
            # it is compared with the project.
            if wishes.watch is not None and self._capture.way != COPY:
                watched = wishes.watch(self._capture.layers)
            try:
                given = stdio.descriptors
                running = self._begun(plan, given) if access is None else access.launched(self._begun, plan, given)
            except FumehoodError:
                stdio.abandon()
                raise
            finally:
                stdio.started()
            outcome = Attendance(
                running, stdio.outputs,
                deadline=None if timeout is None else began + timeout,
                watched=watched, feeding=stdio.feed, cancelled=wishes.cancelled,
                guarding=None if plan.bare else self._guard, signals=wishes.signals,
                asking=None if access is None else access.asking,
            ).attend()  # fmt: skip
        finally:
            if watched is not None:
                watched.stop()
        return Ended(outcome=outcome, stdout=outputs[0], stderr=outputs[1], duration_s=time.monotonic() - began)

    def _begun(self, plan: Plan, streams: Streams) -> Running:
        # Where the host turns out to be another than was seen, it is looked over again.
        return started(self._start, plan, streams, lambda plan: self._with_mounts(plan, self._look_again()))

    def _guard(self, init: int) -> Guard | None:
        """Have somebody look after a command that runs for longer than a moment; None where it is not set up yet."""
        from fumehood.linux.warden import NotYet, Warden

        is_copy = self._capture.way == COPY
        places = [each.merged if is_copy else each.upper for each in self._capture.layers]
        try:
            return Warden(self._limits, init, [*places, *self._besides], empty=not is_copy and not self._besides)
        except NotYet:
            return None


def _left_behind(plan: Plan, ended: Exit) -> tuple[str, ...]:
    """Look at what a command left in its home, and let go of that."""
    if ended.home < 0:
        return ()
    try:
        return left_at_home(ended.home, plan.home, plan.mounts)
    finally:
        os.close(ended.home)


def _listening_inside(access: Access, command: tuple[str, ...], world: World) -> tuple[str, ...]:
    """Have the listeners made inside the sandbox, where only bubblewrap can make the namespaces for them."""
    from fumehood.linux.namespaces import from_inside

    if world.tree is not None:
        raise LaunchFailed(
            "a command in a root tree can't have hosts here: only bubblewrap may make user namespaces",
            hint="fumehood doctor says why; --root host, or --network",
        )
    return from_inside(access.listen, command)


def _check_launch(ended: Ended, cwd: str, seen: Seen | None) -> None:
    """Tell the sandbox's own failure from the command's."""
    exit_ = ended.outcome.exit
    if exit_.status is not None:
        return
    said = exit_.failure or ended.stderr.text().strip() or "it ended without a message"
    if "Can't chdir to" in said:
        if said.endswith("Permission denied"):
            raise BadRequest(f"Working directory can't be entered: {cwd}", hint="check its permissions: ls -ld")
        if seen is not None and seen.hides(cwd):
            raise BadRequest(
                f"Working directory is not in sight: {cwd}",
                hint="make it a root: fumehood roots add …; or read-only: add it to show in the configuration",
            )
        raise BadRequest(f"Working directory does not exist: {cwd}", hint="it must exist as the command sees it")
    raise LaunchFailed(f"the sandbox did not start: {said}", hint="fumehood doctor says what is missing here")


def _exit_code(outcome: Outcome) -> int | None:
    if outcome.timed_out:
        return 124
    if outcome.interrupted:
        return 130
    return outcome.exit.status


def take_note(run: Run, ended: Ended) -> None:
    """Write down how a command ended and what it printed."""
    run.exit_code = _exit_code(ended.outcome)
    run.timed_out = ended.outcome.timed_out
    run.duration_s = ended.duration_s
    run.stdout, run.stderr = ended.stdout.text(), ended.stderr.text()
    run.output_truncated = ended.stdout.is_cut or ended.stderr.is_cut


def printed(ended: Ended) -> tuple[Printed, Printed]:
    """Return both outputs for the record: their bytes where short, else only how long they were."""
    return _short(ended.stdout), _short(ended.stderr)


def _short(stream: Stream) -> Printed:
    head, _ = stream.kept()
    return (head if stream.size <= INLINE else None), stream.size


# ---- What a command left in its home, which is thrown away: whoever meant to keep it must be told.

_MOST = 1000  # entries looked at


def left_at_home(directory: int, home: str, mounts: Iterable[Operation]) -> tuple[str, ...]:
    """Return what a command wrote to its home, relative to it, in order.

    Not what lies in directories whose names begin with a dot: caches and records that programs keep by themselves.
    """
    inside = {each.target[len(home) + 1 :]: each for each in mounts if each.target.startswith(f"{home}/")}
    texts = {path: each.content for path, each in inside.items() if isinstance(each, Text)}
    ways = {above for path in inside for above in _above(path)}
    return tuple(sorted(_new(directory, "", set(inside), texts, ways)))


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _new(directory: int, below: str, made: set[str], texts: dict[str, bytes], ways: set[str]) -> Iterator[str]:
    for name in sorted(os.listdir(directory))[:_MOST]:
        path = f"{below}{name}"
        entry = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(entry.st_mode):
            if name.startswith(".") or path in made:
                continue
            if path not in ways:
                yield path
                continue
            inner = os.open(name, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                yield from _new(inner, f"{path}/", made, texts, ways)
            finally:
                os.close(inner)
        elif path not in made or (path in texts and not _holds(directory, name, texts[path])):
            yield path


def _holds(directory: int, name: str, content: bytes) -> bool:
    """Tell whether a file still holds what we wrote."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return False
    try:
        return os.read(file, len(content) + 1) == content
    except OSError:
        return False
    finally:
        os.close(file)
