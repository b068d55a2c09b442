"""One command from its layers to its end: the sandbox is built, launched, attended and cleared away."""

from __future__ import annotations

import os
import stat
import time

from fumehood.core.environment import split_loader_variables
from fumehood.core.report import Run
from fumehood.core.request import APPLY
from fumehood.core.value import Value
from fumehood.errors import MORE_FILES, BadRequest, FumehoodError, LaunchFailed, NoDirectory, Unavailable
from fumehood.linux.cache import plain_file
from fumehood.linux.capture import BWRAP, COPY, KERNEL, Capture
from fumehood.linux.confine import load_syscall_filter, must_scope_sockets, resource_limits
from fumehood.linux.launch import MAKE, Owner, Plan, RestartableSandbox, bubblewrap_arguments, owner_of
from fumehood.linux.libc import InterruptsHeld, read, remove_file
from fumehood.linux.mounts import Operation, Text, needs_bubblewrap
from fumehood.linux.namespaces import Layer, listen_inside_command
from fumehood.linux.nofollow import LISTING
from fumehood.linux.streams import Stream, connect_terminal, make_pipes
from fumehood.service.layers import init_file
from fumehood.service.provided import secret_paths_in_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import NoReturn

    from fumehood.linux.gitindex import SeenIndexes
    from fumehood.linux.launch import Starter, Streams
    from fumehood.linux.process import Outcome, PendingQuestions, Running, UsageWatch
    from fumehood.linux.streams import Sink, Stdio
    from fumehood.service.agent_shells import ShellCommands
    from fumehood.service.checkpoint import Checkpoints
    from fumehood.service.hood import Caller, Hood
    from fumehood.service.loopback import Loopback
    from fumehood.service.network import NetworkAccess
    from fumehood.service.request_server import RequestServer
    from fumehood.service.session import SessionRun
    from fumehood.service.surroundings import VisibleMounts, World
    from fumehood.store.history import Printed
    from fumehood.store.places import Places


_CHECKPOINT_SHARE = 20  # at most a twentieth of the time is spent on checkpoints that nobody asked for


class CommandResult(Value):
    """How a command ended and what it printed."""

    outcome: Outcome
    stdout: Stream
    stderr: Stream
    duration_s: float
    visible: VisibleMounts | None = None
    written_to_home: tuple[str, ...] = ()  # what it wrote to its temporary home, which is deleted


class Execution:
    """One command in its sandbox: what it sees, and how what it writes is captured."""

    def __init__(
        self, hood: Hood, world: World, capture: Capture, session_run: SessionRun | None = None, *,
        indexes: SeenIndexes | None = None, stop_mark: str = "",
        make_timer: Callable[[], CheckpointTimer] | None = None,
    ) -> None:  # fmt: skip
        self.hood = hood
        self.world = world
        self.session_run = session_run
        self.user = os.geteuid()  # whom the command runs as
        self._host = hood.host()
        self._capture = capture
        self._indexes = indexes
        self._stop_mark = stop_mark
        self._make_timer = make_timer
        # Whether our own launcher mounts what the command sees; else bubblewrap does, and less can be hidden.
        self._launcher_mounts = self._host.makes_namespaces and capture.way != BWRAP
        self._owner: Owner | None = None
        self._access: NetworkAccess | None = None
        self._visible: VisibleMounts | None = None

    def run(
        self, command: tuple[str, ...], cwd: str, outputs: tuple[Stream, Stream], timeout: float | None,
        caller: Caller, access: NetworkAccess | None = None, questions: PendingQuestions | None = None,
    ) -> CommandResult:  # fmt: skip
        """Run a command to its end; raises LaunchFailed if the sandbox itself failed."""
        capture, self._access = self._capture, access
        try:
            plan = self._plan(command, cwd)
            if self._indexes is not None:
                self._indexes.look([layer.root for layer in capture.layers])
            try:
                capture.begin()
                if capture.way == COPY:
                    caller = caller.replace(watch=None)  # only a comparison with the project tells what has changed
                result = attend(
                    self._start, plan, outputs, timeout, caller, capture.layers, self._make_rounds, questions,
                    None if self.session_run is None else self.session_run.requests,
                )  # fmt: skip
                capture.finish()
            except BaseException:
                capture.abandon()
                raise
            lost_files: tuple[str, ...] = ()
            if result.outcome.exit.home >= 0:
                lost_files = files_written_to_home(result.outcome.exit.home, plan.temporary_home, plan.mounts)
        finally:
            if self.world.scratch is not None:
                self.world.scratch.remove()
        sandbox_exit = result.outcome.exit
        if sandbox_exit.status is None and (sandbox_exit.failure or not result.outcome.was_ended):
            _raise_failure(result, cwd, self._visible, capture.layers)
        return result.replace(visible=self._visible, written_to_home=lost_files)

    def _start(self, plan: Plan, descriptors: Streams) -> Running:
        """Launch the sandbox, and with it the proxy, if the command has one."""
        if self._access is None:
            return self._launch(plan, descriptors)
        return self._access.launch(self._launch, plan, descriptors)

    def _launch(self, plan: Plan, descriptors: Streams) -> Running:
        """Launch; if the host's mounts changed at that moment, look at the host anew and launch again."""
        if not plan.host_mount_count:
            return self._launch_once(plan, descriptors)
        return RestartableSandbox(self._launch_once, plan, descriptors, self._plan_anew)

    def _launch_once(self, plan: Plan, descriptors: Streams) -> Running:
        if self.session_run is not None and plan.loopback:
            return self.session_run.loopback.launch(self.hood.start, plan, descriptors, self._access)
        return self.hood.start(plan, descriptors)

    def _plan_anew(self, plan: Plan) -> Plan:
        self.hood.surroundings.forget_host_view()
        return self._with_mounts(plan, self._find_visible())

    def would_see(self) -> VisibleMounts:
        """Return the mounts that a command without session and network would see."""
        self._prepare()
        return self._find_visible()

    def _plan(self, command: tuple[str, ...], cwd: str) -> Plan:
        """Return the plan with everything that the launch needs."""
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
        visible = self._find_visible()
        refused = load_syscall_filter(
            self.hood.surroundings.cache, unix_sockets=visible.blocks_sockets,
            pretends_owners=world.pretends_owners(self.user),
        )
        environment, variables = split_loader_variables(environment)
        shares_loopback = self.session_run is not None and self._shares_loopback(self.session_run.loopback)
        arguments, texts = bubblewrap_arguments(
            command, cwd, visible.mounts, by_launcher=self._launcher_mounts,
            has_network=shares_loopback or (access is not None and not listens_inside),
            disable_userns=host.disable_userns,
            is_root=world.tree is not None and world.tree.is_writable, variables=variables, has_filter=bool(refused),
        )  # fmt: skip
        plan = Plan(
            arguments=(bwrap.path, *arguments), environment=environment, bwrap_texts=texts,
            privileged=host.privileged, groups=self._capture.groups, owner=self._owner,
            listen=() if access is None or listens_inside else access.listen, listens_inside=listens_inside,
            loopback=MAKE if shares_loopback else "",
            resolvers=() if access is None or listens_inside else access.resolvers,
            blocks_abstract_sockets=must_scope_sockets(network_shared=access is not None and access.shares),
            limits=resource_limits(self.hood.policy.limits), syscall_filter=refused,
            init_file=init_file(self._capture.layers),
        )  # fmt: skip
        return self._with_mounts(plan, visible)

    def _shares_loopback(self, loopback: Loopback) -> bool:
        """Return True if the command shares its session's loopback."""
        if self._access is not None and self._access.shares:
            return False
        if not self._host.makes_namespaces:
            loopback.why_alone = "only bubblewrap may make user namespaces here"
        return not loopback.why_alone

    def _prepare(self) -> None:
        """Find out as which user the command runs, and make its scratch directories."""
        capture, world, surroundings = self._capture, self.world, self.hood.surroundings
        project = capture.layers[0].root
        owner = self._owner = owner_of(project)
        if owner is not None:
            # Root runs the command as the owner of the project.
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
            from fumehood.service.profiles import ScratchConditions

            homes = surroundings.homes(self.user, world.home)
            hidden = surroundings.masks(homes, as_root=self.user == 0).hidden
            hidden += tuple(map(os.path.realpath, secret_paths_in_variables()))
            world.scratch.make(
                ScratchConditions(
                    way=capture.way, closed=(*hidden, *(layer.root for layer in capture.layers)), homes=homes,
                    has_host=world.tree is None, is_ours=owner is None,
                )
            )  # fmt: skip

    def _find_visible(self) -> VisibleMounts:
        access = self._access
        self._visible = self.hood.surroundings.visible_mounts(
            self.world, self._capture, self.user, self.session_run, by_launcher=self._launcher_mounts,
            privileged=self._host.privileged, shares_network=access is not None and access.shares,
            is_offline=access is None,
        )  # fmt: skip
        return self._visible

    def _with_mounts(self, plan: Plan, visible: VisibleMounts) -> Plan:
        """Return the plan with the mounts that our launcher makes."""
        if not self._launcher_mounts:
            return plan
        mounts = tuple(each for each in visible.mounts if not needs_bubblewrap(each))
        return plan.replace(
            mounts=mounts, host_mount_count=visible.host_mount_count, host_view_number=visible.host_view_number,
            temporary_home=visible.temporary_home,
        )  # fmt: skip

    def _make_rounds(self, init: int) -> UsageWatch | None:
        """Return what looks after a command that runs for longer than a moment; None if the sandbox is not ready."""
        from fumehood.linux.limits import Warden
        from fumehood.linux.processes import SandboxNotReady
        from fumehood.service.rounds import Rounds

        world, capture = self.world, self._capture
        fresh = [each.upper for each in capture.layers if capture.way != COPY or each.is_overlaid]
        # Directories that count too, for the limit of disk space.
        kept = [each.merged for each in capture.layers if capture.way == COPY and not each.is_overlaid]
        kept += world.scratch.directories if world.scratch else ()
        kept += [self.session_run.tmp] if self.session_run and self.session_run.tmp else []
        kept += [world.thrown] if world.thrown else []
        kept += [world.tree.upper] if world.tree is not None and world.tree.is_writable else []
        playground = world.playground
        kept += [playground.source] if playground is not None and playground.is_writable else []
        try:
            warden = Warden(self.hood.policy.limits, init, fresh, kept)
        except SandboxNotReady:
            return None
        return Rounds(
            warden,
            init,
            stop_mark=self._stop_mark,
            checkpoint=None if self._make_timer is None else self._make_timer().check,
            overlays=[target for _, target in capture.targets] if capture.way == KERNEL else [],
        )


class CheckpointTimer:
    """Makes checkpoints of a running command: when somebody asks for one, and at intervals."""

    def __init__(
        self, hood: Hood, run: Run, make: Callable[[], Checkpoints], background_after: float | None,
        commands: ShellCommands | None = None,
    ) -> None:  # fmt: skip
        from fumehood.core.judge import HOLD_ALL

        self._make_checkpoints = make
        self._mark = hood.store.places.checkpoint_mark(run.run)
        self._shell_commands = commands  # those of an agent, each of which is settled by itself
        self._checkpoints: Checkpoints | None = None if commands is None else commands.checkpoints
        by_itself = background_after is not None and run.mode == APPLY and hood.policy.on_conflict != HOLD_ALL
        self._interval_s = hood.policy.checkpoint if by_itself and run.capture == KERNEL else 0.0
        self._next_at = time.monotonic() + (background_after or 0.0)

    def check(self, init: int) -> None:
        """Make a checkpoint if it is time; `init` is the first process of the sandbox."""
        name = read(self._mark).decode("ascii")
        if self._shell_commands is not None and self._shell_commands.settle_dead_shells() and not name:
            return
        if not name and (not self._interval_s or time.monotonic() < self._next_at):
            return
        if self._checkpoints is None:
            self._checkpoints = self._make_checkpoints()
        began = time.monotonic()
        is_made = (name or self._checkpoints.is_due()) and self._checkpoints.make(init, name)
        if is_made and name and read(self._mark).decode("ascii") == name:  # somebody else may have asked since
            remove_file(self._mark)
        ended_at = time.monotonic()
        self._next_at = ended_at + max(self._interval_s, _CHECKPOINT_SHARE * (ended_at - began))


def attend(
    start: Starter, plan: Plan, outputs: tuple[Stream, Stream], timeout: float | None, caller: Caller,
    layers: Sequence[Layer] = (), make_warden: Callable[[int], UsageWatch | None] | None = None,
    questions: PendingQuestions | None = None, requests: RequestServer | None = None,
) -> CommandResult:  # fmt: skip
    """Launch the plan, and attend the command to its end."""

    def attend_with(stdio: Stdio) -> CommandResult:
        began = time.monotonic()
        watched = None
        if caller.signals is not None:
            caller.signals.note()
        try:
            # Before the command starts, or its first writes would not be seen.
            if caller.watch is not None:
                watched = caller.watch(layers)
            interrupts = InterruptsHeld()
            interrupts.__enter__()  # until somebody attends the command
            try:
                try:
                    running = start(plan, stdio.descriptors)
                except (FumehoodError, OSError):
                    stdio.close_own_ends()
                    raise
                finally:
                    stdio.close_command_ends()
                if caller.partner is not None:
                    caller.partner.note_start()
                from fumehood.linux.process import Attendant

                attendance = Attendant(
                    running, stdio.outputs,
                    deadline=None if timeout is None else began + timeout,
                    monitor=watched, feed=stdio.feed, cancelled=caller.cancelled, make_warden=make_warden,
                    signals=caller.signals, questions=questions, requests=requests, partner=caller.partner,
                    interrupts=interrupts,
                )  # fmt: skip
            except BaseException:
                interrupts.__exit__()
                raise
            outcome = attendance.attend()
        finally:
            if requests is not None:
                requests.stop()
            if watched is not None:
                watched.stop()
        return CommandResult(outcome=outcome, stdout=outputs[0], stderr=outputs[1], duration_s=time.monotonic() - began)

    if caller.terminal is None:
        return attend_with(make_pipes(caller.stdin, outputs, is_one=caller.is_one_stream))
    # Only now: until here, a person may have been asked something, and answers on a terminal in its normal mode.
    with caller.terminal as terminal:
        return attend_with(connect_terminal(terminal, outputs[0], caller.stdin))


def _listening_inside(access: NetworkAccess, command: tuple[str, ...], world: World) -> tuple[str, ...]:
    """Return the command so that it first makes the proxy's listeners inside: only bubblewrap makes namespaces here."""
    if world.tree is not None:
        raise LaunchFailed(
            "a command in a root tree can't have hosts here: only bubblewrap may make user namespaces",
            hint="fumehood doctor says why; --root host, or --network",
        )
    return listen_inside_command(access.listen, command)


def _raise_failure(result: CommandResult, cwd: str, visible: VisibleMounts | None, layers: Sequence[Layer]) -> NoReturn:
    """Raise the error for a sandbox that failed: the command did not run, or it is not known whether it ran."""
    from fumehood.linux.process import LAUNCHER_GONE

    if result.outcome.exit.failure != LAUNCHER_GONE:
        remove_file(init_file(layers))  # nothing can have been written
    said = result.stderr.text().strip() or result.stdout.text().strip()
    why = result.outcome.exit.failure or said or "it ended without a message"
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
    if visible is not None and visible.hides(cwd):
        raise NoDirectory(
            f"Working directory is not in sight: {cwd}",
            hint="make it a root: fumehood roots add …; or read-only: add it to show in the configuration",
        )
    lacking = "is not a directory" if why.endswith("Not a directory") else "does not exist"
    raise NoDirectory(f"Working directory {lacking}: {cwd}", hint="it must exist as the command sees it")


def output_streams(
    places: Places, run: str, limit: int, sinks: tuple[Sink | None, Sink | None] = (None, None)
) -> tuple[Stream, Stream]:
    """Return the streams that save what a command prints, and pass it on to the sinks."""
    out, err = (
        Stream(name, places.output(run, name), limit, sink)
        for name, sink in zip(("stdout", "stderr"), sinks, strict=True)
    )
    return out, err


def record_result(run: Run, result: CommandResult) -> None:
    """Write into the run how its command ended and what it printed."""
    from fumehood.linux.process import KILLED

    outcome = result.outcome
    status = KILLED if outcome.exit.status is None and outcome.was_ended else outcome.exit.status
    run.exit_code = 124 if outcome.timed_out else 130 if outcome.interrupted else status
    run.timed_out = outcome.timed_out
    run.duration_s = result.duration_s
    run.stdout, run.stderr = result.stdout.text(), result.stderr.text()
    run.output_truncated = result.stdout.is_cut or result.stderr.is_cut


def recordable_output(result: CommandResult) -> tuple[Printed, Printed]:
    """Return both outputs for the record: the bytes of a short one, else only its length."""
    streams = result.stdout, result.stderr
    out, err = ((stream.head_and_tail()[0] if stream.is_short else None, stream.size) for stream in streams)
    return out, err


_MOST_ENTRIES = 1000  # looked at in one directory
_DEEPEST = 10


def files_written_to_home(directory: int, home: str, mounts: Iterable[Operation]) -> tuple[str, ...]:
    """Return the paths that a command wrote in its temporary home, in order; closes the directory.

    The home is deleted, and who meant to keep something must be told. Directories whose names begin with a dot are left
    out: programs keep caches and records there. But a virtual environment in one belongs to some project.
    """
    mounts_by_path = {each.target[len(home) + 1 :]: each for each in mounts if each.target.startswith(f"{home}/")}
    parents: set[str] = set()
    for path in mounts_by_path:
        names = path.split("/")
        parents |= {"/".join(names[:length]) for length in range(1, len(names))}
    return tuple(sorted(_new_entries(directory, "", mounts_by_path, parents)))


def _new_entries(
    directory: int, below: str, mounts_by_path: Mapping[str, Operation], parents: set[str]
) -> Iterator[str]:
    try:
        for name in sorted(os.listdir(directory))[:_MOST_ENTRIES]:
            path = f"{below}{name}"
            if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                if path in mounts_by_path:
                    continue
                if name.startswith("."):
                    yield from _virtual_environments(directory, name, below, mounts_by_path)
                elif path in parents:
                    inner = os.open(name, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
                    yield from _new_entries(inner, f"{path}/", mounts_by_path, parents)
                else:
                    yield path
            else:
                made = mounts_by_path.get(path)
                content = made.content if isinstance(made, Text) else None
                if made is None or (content is not None and plain_file(name, directory, len(content) + 1) != content):
                    yield path
    finally:
        os.close(directory)


def _virtual_environments(above: int, name: str, below: str, mounts_by_path: Mapping[str, Operation]) -> Iterator[str]:
    """Yield virtual environments that tools such as poetry have made in directories of their own."""
    try:
        for number, (folder, names, files, _) in enumerate(os.fwalk(name, dir_fd=above)):
            path = f"{below}{folder}"
            if number > _MOST_ENTRIES:
                return
            if is_environment := "pyvenv.cfg" in files:
                yield path
            goes_on = not is_environment and folder.count("/") < _DEEPEST
            names[:] = [each for each in names if goes_on and f"{path}/{each}" not in mounts_by_path]
    except OSError:
        return  # the command made it unreadable
