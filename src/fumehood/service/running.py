"""One command, from its layers to its end: the sandbox is built, started, attended and cleared away."""

from __future__ import annotations

import os
import stat
import time

from fumehood.core.environment import split_loading_variables
from fumehood.core.report import Run
from fumehood.core.request import APPLY
from fumehood.core.value import Value
from fumehood.errors import MORE_FILES, BadRequest, FumehoodError, LaunchFailed, NoDirectory, Unavailable
from fumehood.linux.cache import plain_file
from fumehood.linux.capture import BWRAP, COPY, KERNEL, Capture
from fumehood.linux.confine import filter_for, is_scoped_by_launcher, resource_limits
from fumehood.linux.launch import MAKE, Owner, Plan, Retried, bubblewrap_arguments, owner_of
from fumehood.linux.libc import InterruptsHeld, read, remove_file
from fumehood.linux.mounts import Operation, Text, needs_bubblewrap
from fumehood.linux.namespaces import Layer, from_inside
from fumehood.linux.nofollow import LISTING
from fumehood.linux.streams import Stream, on_terminal, piped
from fumehood.service.layers import init_file
from fumehood.service.provided import secrets_elsewhere

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import NoReturn

    from fumehood.linux.gitindex import SeenIndexes
    from fumehood.linux.launch import Starter, Streams
    from fumehood.linux.process import Guard, Outcome, QuestionsOpen, Running
    from fumehood.linux.streams import Sink, Stdio
    from fumehood.service.agents import ShellCommands
    from fumehood.service.checkpoint import Checkpoints
    from fumehood.service.hood import Hood, Wishes
    from fumehood.service.loopback import Loopback
    from fumehood.service.network import Access
    from fumehood.service.session import Door, Seat
    from fumehood.service.surroundings import Seen, World
    from fumehood.store.history import Printed
    from fumehood.store.places import Places


_SHARE = 20  # of the time that passes, at most a twentieth is spent on checkpoints that nobody asked for


class Ended(Value):
    """How a command ended and what it printed."""

    outcome: Outcome
    stdout: Stream
    stderr: Stream
    duration_s: float
    seen: Seen | None = None
    left_at_home: tuple[str, ...] = ()  # what it wrote to its home, which is thrown away


class Execution:
    """One command in its sandbox: what it sees, and how what it writes is captured."""

    def __init__(
        self, hood: Hood, world: World, capture: Capture, seat: Seat | None = None, *,
        indexes: SeenIndexes | None = None, stop_mark: str = "",
        checkpoints: Callable[[], Callable[[int], None]] | None = None,
    ) -> None:  # fmt: skip
        self.hood = hood
        self.world = world
        self.seat = seat
        self.user = os.geteuid()  # whom the command runs as
        self._host = hood.host()
        self._capture = capture
        self._indexes = indexes
        self._stop_mark = stop_mark
        self._checkpoints = checkpoints
        # Whether our own launcher mounts what the command sees; else bubblewrap does, and less can be hidden.
        self._launcher_mounts = self._host.makes_namespaces and capture.way != BWRAP
        self._owner: Owner | None = None
        self._access: Access | None = None
        self._seen: Seen | None = None

    def run(
        self, command: tuple[str, ...], cwd: str, outputs: tuple[Stream, Stream], timeout: float | None,
        wishes: Wishes, access: Access | None = None, asking: QuestionsOpen | None = None,
    ) -> Ended:  # fmt: skip
        """Run a command to its end; raises LaunchFailed where the sandbox itself failed."""
        capture, seat, self._access = self._capture, self.seat, access

        def look_again(plan: Plan) -> Plan:
            self.hood.surroundings.look_again()
            return self._with_mounts(plan, self._look())

        def launch_once(plan: Plan, descriptors: Streams) -> Running:
            if seat is None or not plan.loopback:
                return self.hood.start(plan, descriptors)
            return seat.loopback.launched(self.hood.start, plan, descriptors, access)

        def launch(plan: Plan, descriptors: Streams) -> Running:
            if not plan.ahead:
                return launch_once(plan, descriptors)
            # Where the host's mounts changed just then, it is looked over again.
            return Retried(launch_once, plan, descriptors, look_again)

        def start(plan: Plan, descriptors: Streams) -> Running:
            return launch(plan, descriptors) if access is None else access.launched(launch, plan, descriptors)

        try:
            plan = self._plan(command, cwd)
            if self._indexes is not None:
                self._indexes.look([layer.root for layer in capture.layers])
            try:
                capture.begin()
                # A copied tree tells nothing until it is compared with the project.
                taking_part = wishes.replace(watch=None) if capture.way == COPY else wishes
                ended = attend(
                    start, plan, outputs, timeout, taking_part, capture.layers, self._guard, asking,
                    None if seat is None else seat.door,
                )  # fmt: skip
                capture.finish()
            except BaseException:
                capture.abandon()
                raise
            left: tuple[str, ...] = ()
            if ended.outcome.exit.home >= 0:
                left = left_at_home(ended.outcome.exit.home, plan.home, plan.mounts)
        finally:
            if self.world.scratch is not None:
                self.world.scratch.remove()
        way = ended.outcome.exit
        if way.status is None and (way.failure or not ended.outcome.was_ended):
            _raise_failure(ended, cwd, self._seen, capture.layers)
        return ended.replace(seen=self._seen, left_at_home=left)

    def would_see(self) -> Seen:
        """Return what a command without a session or a network would see."""
        self._prepare()
        return self._look()

    def _plan(self, command: tuple[str, ...], cwd: str) -> Plan:
        """Put together all that a launch needs."""
        world, access, host = self.world, self._access, self._host
        bwrap = host.overlay_bwrap if self._capture.way == BWRAP else host.bwrap
        if bwrap is None:
            raise LaunchFailed("there is no bubblewrap that works here", hint="fumehood doctor")
        self._prepare()
        roots = [layer.root for layer in self._capture.layers]
        if world.write and not self._launcher_mounts and not {*world.write}.issuperset(roots):
            raise Unavailable(
                "a part of a root can't be kept from being written here: only bubblewrap may mount",
                hint="--read-only can be had; fumehood doctor says what is missing",
            )
        environment = world.environment
        listens_inside = False
        if access is not None:
            environment = {**environment, **access.environment(environment)}
            listens_inside = bool(access.listen) and not host.makes_namespaces
            if listens_inside:
                command = _listening_inside(access, command, world)
        if world.scratch is not None:
            environment = {**environment, **world.scratch.variables}
        seen = self._look()
        refused = filter_for(
            self.hood.surroundings.cache, unix_sockets=seen.is_cut, pretends_owners=world.pretends_owners(self.user)
        )
        environment, variables = split_loading_variables(environment)
        shares_loopback = self.seat is not None and self._shares_loopback(self.seat.loopback)
        arguments, texts = bubblewrap_arguments(
            command, cwd, seen.mounts, by_launcher=self._launcher_mounts,
            has_network=shares_loopback or (access is not None and not listens_inside),
            disable_userns=host.disable_userns,
            is_root=world.tree is not None and world.tree.is_writable, variables=variables, has_filter=bool(refused),
        )  # fmt: skip
        plan = Plan(
            arguments=(bwrap.path, *arguments), environment=environment, texts=texts,
            privileged=host.privileged, groups=self._capture.groups, owner=self._owner,
            listen=() if access is None or listens_inside else access.listen, keeps_channel=listens_inside,
            loopback=MAKE if shares_loopback else "",
            resolvers=() if access is None or listens_inside else access.resolvers,
            scoped=is_scoped_by_launcher(network_shared=access is not None and access.shares),
            limits=resource_limits(self.hood.policy.limits), filter=refused,
            init_file=init_file(self._capture.layers),
        )  # fmt: skip
        return self._with_mounts(plan, seen)

    def _shares_loopback(self, loopback: Loopback) -> bool:
        """Return True if a command is on its session's loopback."""
        if self._access is not None and self._access.shares:
            return False
        if not self._host.makes_namespaces:
            loopback.why_alone = "only bubblewrap may make user namespaces here"
        return not loopback.why_alone

    def _prepare(self) -> None:
        """Find out whom the command runs as, and make its scratch ready."""
        capture, world, surroundings = self._capture, self.world, self.hood.surroundings
        project = capture.layers[0].root
        owner = self._owner = owner_of(project)
        if owner is not None:
            # Root runs the command as the person whose project it is.
            self.user = owner.user
            if capture.way != KERNEL or not self._host.privileged:
                raise LaunchFailed(
                    f"{project} belongs to user {owner.user}, and root can't run commands as them here",
                    hint="run fumehood as that user",
                )
            if world.tree is not None and world.tree.guarded:
                raise LaunchFailed(
                    f"a project of user {owner.user} can't have a root layer of root's",
                    hint="run fumehood as that user",
                )
        if world.scratch is not None:
            from fumehood.service.profiles import Conditions

            homes = surroundings.homes(self.user, world.home)
            hidden = surroundings.masks(homes, as_root=self.user == 0).hidden
            hidden += tuple(map(os.path.realpath, secrets_elsewhere()))
            world.scratch.make(
                Conditions(
                    way=capture.way, closed=(*hidden, *(layer.root for layer in capture.layers)), homes=homes,
                    has_host=world.tree is None, is_ours=owner is None,
                )
            )  # fmt: skip

    def _look(self) -> Seen:
        access = self._access
        self._seen = self.hood.surroundings.seen(
            self.world, self._capture, self.user, self.seat, by_launcher=self._launcher_mounts,
            privileged=self._host.privileged, shares_network=access is not None and access.shares,
            is_offline=access is None,
        )  # fmt: skip
        return self._seen

    def _with_mounts(self, plan: Plan, seen: Seen) -> Plan:
        """Return a plan with what the launcher mounts."""
        if not self._launcher_mounts:
            return plan
        mounts = tuple(each for each in seen.mounts if not needs_bubblewrap(each))
        return plan.replace(mounts=mounts, ahead=seen.ahead, look=seen.look, home=seen.home)

    def _guard(self, init: int) -> Guard | None:
        """Have somebody look after a command that runs for longer than a moment; None where it is not set up yet."""
        from fumehood.linux.warden import NotYet, Warden

        world, capture = self.world, self._capture
        is_copy = capture.way == COPY
        overlays = [target for _, target in capture.targets] if capture.way == KERNEL else []
        places = [each.merged if is_copy and not each.is_overlaid else each.upper for each in capture.layers]
        # It may fill these too.
        besides = [*(world.scratch.directories if world.scratch else ())]
        besides += [self.seat.tmp] if self.seat and self.seat.tmp else []
        besides += [world.thrown] if world.thrown else []
        besides += [world.tree.upper] if world.tree is not None and world.tree.is_writable else []
        besides += [world.playground.source] if world.playground is not None and world.playground.is_writable else []
        try:
            return Warden(
                self.hood.policy.limits, init, places, empty=not is_copy, besides=besides, stop_mark=self._stop_mark,
                checkpoint=None if self._checkpoints is None else self._checkpoints(), overlays=overlays,
            )  # fmt: skip
        except NotYet:
            return None


class CheckpointTimer:
    """Tells when a running command is to be checkpointed: somebody asks for it, or its interval is over."""

    def __init__(
        self, hood: Hood, run: Run, make: Callable[[], Checkpoints], background_after: float | None,
        commands: ShellCommands | None = None,
    ) -> None:  # fmt: skip
        from fumehood.core.judge import HOLD_ALL

        self._make = make
        self._mark = hood.store.places.checkpoint_mark(run.run)
        self._commands = commands  # that an agent runs, each of which is settled by itself
        self._checkpoints: Checkpoints | None = None if commands is None else commands.checkpoints
        by_itself = background_after is not None and run.mode == APPLY and hood.policy.on_conflict != HOLD_ALL
        self._every = hood.policy.checkpoint if by_itself and run.capture == KERNEL else 0.0
        self._next = time.monotonic() + (background_after or 0.0)

    def look(self, init: int) -> None:
        """Make a checkpoint where it is time; `init` is the first process of the sandbox."""
        name = read(self._mark).decode("ascii")
        if self._commands is not None and self._commands.look() and not name:
            return
        if not name and (not self._every or time.monotonic() < self._next):
            return
        if self._checkpoints is None:
            self._checkpoints = self._make()
        began = time.monotonic()
        is_made = (name or self._checkpoints.is_due()) and self._checkpoints.make(init, name)
        if is_made and name and read(self._mark).decode("ascii") == name:  # somebody else may have asked since
            remove_file(self._mark)
        ended = time.monotonic()
        self._next = ended + max(self._every, _SHARE * (ended - began))


def attend(
    start: Starter, plan: Plan, outputs: tuple[Stream, Stream], timeout: float | None, wishes: Wishes,
    layers: Sequence[Layer] = (), guard: Callable[[int], Guard | None] | None = None,
    asking: QuestionsOpen | None = None, door: Door | None = None,
) -> Ended:  # fmt: skip
    """Start what was planned, and stay with it to its end."""

    def attended(stdio: Stdio) -> Ended:
        began = time.monotonic()
        watched = None
        if wishes.signals is not None:
            wishes.signals.note()
        try:
            # Before the command starts, or its first writes would not be seen.
            if wishes.watch is not None:
                watched = wishes.watch(layers)
            interrupts = InterruptsHeld()
            interrupts.__enter__()  # until somebody attends what was started
            try:
                try:
                    running = start(plan, stdio.descriptors)
                except (FumehoodError, OSError):
                    stdio.abandon()
                    raise
                finally:
                    stdio.started()  # the command's own ends of its streams are closed here
                if wishes.partner is not None:
                    wishes.partner.launched()
                from fumehood.linux.process import Attendance

                attendance = Attendance(
                    running, stdio.outputs,
                    deadline=None if timeout is None else began + timeout,
                    watched=watched, feeding=stdio.feed, cancelled=wishes.cancelled, guarding=guard,
                    signals=wishes.signals, asking=asking, door=door, partner=wishes.partner, interrupts=interrupts,
                )  # fmt: skip
            except BaseException:
                interrupts.__exit__()
                raise
            outcome = attendance.attend()
        finally:
            if door is not None:
                door.stop()
            if watched is not None:
                watched.stop()
        return Ended(outcome=outcome, stdout=outputs[0], stderr=outputs[1], duration_s=time.monotonic() - began)

    if wishes.terminal is None:
        return attended(piped(wishes.stdin, outputs, is_one=wishes.is_one_stream))
    # Only now: a person who is asked something answers on a terminal as they know it.
    with wishes.terminal as terminal:
        return attended(on_terminal(terminal, outputs[0], wishes.stdin))


def _listening_inside(access: Access, command: tuple[str, ...], world: World) -> tuple[str, ...]:
    """Have the listeners made inside the sandbox, where only bubblewrap can make the namespaces for them."""
    if world.tree is not None:
        raise LaunchFailed(
            "a command in a root tree can't have hosts here: only bubblewrap may make user namespaces",
            hint="fumehood doctor says why; --root host, or --network",
        )
    return from_inside(access.listen, command)


def _raise_failure(ended: Ended, cwd: str, seen: Seen | None, layers: Sequence[Layer]) -> NoReturn:
    """Raise the error that says why the sandbox itself failed: the command did not run, or nobody can tell."""
    from fumehood.linux.process import LAUNCHER_GONE

    if ended.outcome.exit.failure != LAUNCHER_GONE:
        remove_file(init_file(layers))  # nothing can have been written
    said = ended.stderr.text().strip() or ended.stdout.text().strip()
    why = ended.outcome.exit.failure or said or "it ended without a message"
    if "Argument list too long" in why:
        raise BadRequest(
            "the command is too long: the kernel takes fewer words and variables at once",
            hint="write it to a script in the project and run that",
        )
    if "Can't chdir to" not in why:
        hint = MORE_FILES if "Too many open files" in why else "fumehood doctor says what is missing here"
        raise LaunchFailed(f"the sandbox did not start: {why}", hint=hint)
    if why.endswith("Permission denied"):
        raise NoDirectory(f"Working directory can't be entered: {cwd}", hint="check its permissions: ls -ld")
    if seen is not None and seen.hides(cwd):
        raise NoDirectory(
            f"Working directory is not in sight: {cwd}",
            hint="make it a root: fumehood roots add …; or read-only: add it to show in the configuration",
        )
    lacking = "is not a directory" if why.endswith("Not a directory") else "does not exist"
    raise NoDirectory(f"Working directory {lacking}: {cwd}", hint="it must exist as the command sees it")


def output_streams(
    places: Places, run: str, limit: int, sinks: tuple[Sink | None, Sink | None] = (None, None)
) -> tuple[Stream, Stream]:
    """Return what takes in what a command prints, and who hears of it."""
    out, err = (
        Stream(name, places.output(run, name), limit, sink)
        for name, sink in zip(("stdout", "stderr"), sinks, strict=True)
    )
    return out, err


def take_note(run: Run, ended: Ended) -> None:
    """Write down how a command ended and what it printed."""
    from fumehood.linux.process import KILLED

    outcome = ended.outcome
    status = KILLED if outcome.exit.status is None and outcome.was_ended else outcome.exit.status
    run.exit_code = 124 if outcome.timed_out else 130 if outcome.interrupted else status
    run.timed_out = outcome.timed_out
    run.duration_s = ended.duration_s
    run.stdout, run.stderr = ended.stdout.text(), ended.stderr.text()
    run.output_truncated = ended.stdout.is_cut or ended.stderr.is_cut


def printed(ended: Ended) -> tuple[Printed, Printed]:
    """Return both outputs for the record: their bytes where short, else only how long they were."""
    out, err = ((stream.kept()[0] if stream.is_short else None, stream.size) for stream in (ended.stdout, ended.stderr))
    return out, err


_MOST = 1000  # entries looked at
_DEEPEST = 10


def left_at_home(directory: int, home: str, mounts: Iterable[Operation]) -> tuple[str, ...]:
    """Return what a command wrote to its home, relative to it, in order; closes the directory.

    It is thrown away, and whoever meant to keep it must be told. Not what lies in directories whose names begin with a
    dot: caches and records that programs keep by themselves. But a virtual environment there is some project's.
    """
    inside = {each.target[len(home) + 1 :]: each for each in mounts if each.target.startswith(f"{home}/")}
    ways: set[str] = set()
    for path in inside:
        names = path.split("/")
        ways |= {"/".join(names[:length]) for length in range(1, len(names))}
    return tuple(sorted(_new(directory, "", inside, ways)))


def _new(directory: int, below: str, inside: Mapping[str, Operation], ways: set[str]) -> Iterator[str]:
    try:
        for name in sorted(os.listdir(directory))[:_MOST]:
            path = f"{below}{name}"
            if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                if path in inside:
                    continue
                if name.startswith("."):
                    yield from _environments(directory, name, below, inside)
                elif path in ways:
                    inner = os.open(name, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
                    yield from _new(inner, f"{path}/", inside, ways)
                else:
                    yield path
            else:
                made = inside.get(path)
                content = made.content if isinstance(made, Text) else None
                if made is None or (content is not None and plain_file(name, directory, len(content) + 1) != content):
                    yield path
    finally:
        os.close(directory)


def _environments(above: int, name: str, below: str, inside: Mapping[str, Operation]) -> Iterator[str]:
    """Return the virtual environments that tools such as poetry have made in directories of their own."""
    try:
        for number, (folder, names, files, _) in enumerate(os.fwalk(name, dir_fd=above)):
            path = f"{below}{folder}"
            if number > _MOST:
                return
            if is_environment := "pyvenv.cfg" in files:
                yield path
            goes_on = not is_environment and folder.count("/") < _DEEPEST
            names[:] = [each for each in names if goes_on and f"{path}/{each}" not in inside]
    except OSError:
        return  # closed by the command
