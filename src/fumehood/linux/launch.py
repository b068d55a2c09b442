"""Start one sandbox: namespaces and mounts of our own, then bubblewrap in them."""

from __future__ import annotations

import _socket
import fcntl
import os
import pwd
import sys

from fumehood.core.value import Value
from fumehood.linux import bwrap, confine, libc, namespaces, site
from fumehood.linux.bwrap import BUNDLED, CONFINEMENT, FILTER_FD, GUARD_FD, NAMESPACES, NO_NETWORK, TMP, provide
from fumehood.linux.mounts import DATA_FD, Operation, needs_bubblewrap, writable_places
from fumehood.linux.site import Site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, NoReturn

    from fumehood.linux.process import Exit, Running

    # Descriptors: standard input, output and error; then, if the launch makes listeners or a session's network, a
    # socket by which they are sent out; then the session's network, if the launch joins that.
    Streams = Sequence[int]
    Starter = Callable[["Plan", Streams], Running]


_STATUS_FD, _REPORT_FD = 3, 4
_HIGHEST_FD = 1 << 20
_WRITTEN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_GUARD = f"/proc/self/fd/{GUARD_FD}"
_KILL, _INTERRUPT, _END = 9, 2, 15
_SHOWING_HOST = "showing the host"  # a step's name, also in error messages
MAKE, JOIN = "make", "join"  # a session's network
_DESCRIPTORS, _LAYERS = b"!", b"="  # how messages begin that bring descriptors
_MOST_STARTS = 5  # a host that starts containers may mount several times in the same moment


class Owner(Value):
    """The user that the command runs as when root works on somebody else's project."""

    user: int
    group: int
    groups: tuple[int, ...] = ()


class Plan(Value):
    """Everything that a new process must do to become the sandboxed command."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    mounts: tuple[Operation, ...] = ()  # done by the launcher; if bubblewrap mounts, its arguments have them instead
    host_mount_count: int = 0  # the first so many mounts show the host
    host_view_number: int = 0  # plans with the same number show the host by the same mounts
    temporary_home: str = ""  # thrown away at the end, when what the command left in it can still be listed
    bwrap_texts: tuple[bytes, ...] = ()  # bubblewrap reads them from DATA_FD and the following descriptors
    privileged: bool = False
    groups: tuple[int, ...] = ()  # mapped into our user namespace besides our own group
    owner: Owner | None = None
    limits: tuple[tuple[int, int], ...] = ()
    listen: tuple[tuple[str, int], ...] = ()  # addresses in a new network namespace; the listeners are sent out
    resolvers: tuple[str, ...] = ()  # addresses inside where the proxy answers name queries
    loopback: str = ""  # MAKE or JOIN the session's network
    listens_inside: bool = False  # a program inside the sandbox makes the listeners and sends them out
    blocks_abstract_sockets: bool = False  # those of the host, whose network namespace the command shares
    unsandboxed_cwd: str = ""  # the working directory of a command that runs without a sandbox
    syscall_filter: bytes = b""  # bubblewrap reads it from FILTER_FD
    init_file: str = ""  # bubblewrap writes the number of the first process inside there, before that process runs

    @property
    def has_own_namespaces(self) -> bool:
        """True if we make namespaces for this launch, around those that bubblewrap makes."""
        return bool(self.mounts or self.listen or self.loopback)

    @property
    def preparation_key(self) -> tuple[object, ...]:
        """What a process needs to know to prepare for plans like this one; empty if nothing can be prepared.

        An ordinary user's namespaces lie inside those of the session. So they can be prepared only for a new session's
        network in which nobody listens.
        """
        is_joined = self.loopback == JOIN or (self.loopback and self.listen)
        if not self.has_own_namespaces or (is_joined and not self.privileged):
            return ()
        return self.privileged, self.groups, self.privileged or not self.loopback, self.host_mount_count > 0

    @property
    def bwrap_directory(self) -> str:
        """The package directory of a bundled bubblewrap that root starts as another user; "" otherwise."""
        program = self.arguments[0]
        return program.removesuffix(BUNDLED) if self.owner and self.mounts and program.endswith(BUNDLED) else ""

    @property
    def host_mounts(self) -> tuple[Operation, ...]:
        """The mounts that show the host."""
        return self.mounts[: self.host_mount_count]


def bubblewrap_arguments(
    command: Sequence[str], cwd: str, mounts: Sequence[Operation], *, by_launcher: bool, has_network: bool,
    disable_userns: bool, is_root: bool, variables: Sequence[tuple[str, str]], has_filter: bool,
) -> tuple[tuple[str, ...], tuple[bytes, ...]]:  # fmt: skip
    """Return the arguments of bubblewrap, and the texts that it reads from descriptors.

    Where the launcher mounts, bubblewrap does only what it alone can do. With `has_network`, the command stays in the
    network namespace that bubblewrap is started in. With `is_root`, it is root inside, without any capability: package
    managers need no more. `variables` are set for the command only, and not for bubblewrap itself.
    """
    texts: list[bytes] = []
    arguments = [*NAMESPACES, *(() if has_network else (NO_NETWORK,)), *CONFINEMENT]
    if disable_userns:
        arguments.append("--disable-userns")
    if is_root:
        arguments += ("--uid", "0", "--gid", "0")
    if by_launcher:
        arguments += ("--dev-bind", site.ROOT, "/")  # the mounts below it keep their own flags
    for operation in mounts:
        if not by_launcher or needs_bubblewrap(operation):
            arguments += operation.bwrap_arguments(texts)
    for name, value in (*variables, ("TMPDIR", TMP)):
        arguments += ("--setenv", name, value)
    arguments += ("--chdir", cwd, "--json-status-fd", str(_STATUS_FD), *bwrap.INIT_AND_GATE)
    if has_filter:
        arguments += ("--seccomp", str(FILTER_FD))
    # The guard confines writing to these places and then becomes the command.
    guard = (_GUARD, *writable_places(mounts), "--") if confine.guard_program() else ()
    return (*arguments, "--", *guard, *command), tuple(texts)


class ParentLink(Value):
    """What a new process shares with the process that forked and attends it.

    `parent` is its number; `status` and `report` are what the new process writes to. `gate` is one descriptor for both
    ends of a pipe, and both processes have it open: a reader waits for a byte, and never finds the end of the pipe.
    """

    parent: int
    status: int
    report: int
    gate: int


class Preparation(Value):
    """What a process has done before it got its plan: it expects one that begins like this earlier `plan`."""

    plan: Plan
    site: Site | None = None


def prepare(plan: Plan) -> Preparation:
    """Do what can be done before the next plan is known, which is likely to begin as the last one did."""
    try:
        _enter_first_namespaces(plan)
    except OSError:
        os._exit(125)
    try:
        return Preparation(plan=plan, site=_show_host(plan) if plan.host_mount_count else None)
    except OSError:
        # The host has changed since the last launch; the next plan will have other mounts.
        site.unmount_site()
        return Preparation(plan=plan)


def _enter_first_namespaces(plan: Plan) -> None:
    is_in_session = plan.loopback != "" and not plan.privileged
    if is_in_session:
        namespaces.enter_session_network(-1, privileged=False, groups=plan.groups)
    namespaces.enter_namespaces(privileged=plan.privileged, groups=plan.groups, is_inner=is_in_session)


def _show_host(plan: Plan, preparation: Preparation | None = None) -> Site:
    """Return a site that shows the host: the prepared one if it is as planned, otherwise a new one."""
    if preparation is not None and preparation.site is not None:
        prepared = preparation.plan
        if (prepared.host_view_number, prepared.host_mounts) == (plan.host_view_number, plan.host_mounts):
            return preparation.site
        site.unmount_site()
    new_site = Site(None if plan.owner is None else (plan.owner.user, plan.owner.group))
    for operation in plan.host_mounts:
        operation.do(new_site)
    return new_site


def become_sandbox(plan: Plan, streams: Streams, link: ParentLink, preparation: Preparation | None = None) -> NoReturn:
    """Turn this newly forked process into the sandbox; if that fails, write the reason to `link.report`."""
    step = "preparing"
    try:
        channel, network, gate = _arrange_descriptors(plan, streams, link)
        init_file = -1 if plan.unsandboxed_cwd else os.open(plan.init_file or os.devnull, _WRITTEN, 0o600)
        # Ctrl-C at the terminal must not end bubblewrap, which tells how the command ended: we pass it on ourselves.
        os.setpgid(0, 0)
        for step in _set_up_steps(plan, channel, network, preparation):  # noqa: B007 - reported below if it fails
            pass
        step = f"starting {plan.arguments[0]}"
        libc.end_with_parent(link.parent, _KILL)
        libc.default_signals()
        wanted = {} if init_file < 0 else {bwrap.INIT_FD: init_file, bwrap.GATE_FD: gate}
        if plan.listens_inside:
            wanted[namespaces.CHANNEL_FD] = channel
        _close_all_but(wanted)
        count_processes = plan.has_own_namespaces and not plan.privileged
        if plan.unsandboxed_cwd:
            from fumehood.linux.process import supervise

            confine.set_limits(plan.limits, count_processes=count_processes)
            supervise(plan.arguments, plan.environment, plan.unsandboxed_cwd)
        if plan.syscall_filter:
            provide(plan.syscall_filter, FILTER_FD)
        if _GUARD in plan.arguments:
            provide(confine.guard_program(), GUARD_FD, executable=True)
        for index, text in enumerate(plan.bwrap_texts):
            provide(text, DATA_FD + index)
        program = plan.arguments[0]
        if plan.bwrap_directory:
            program = site.BWRAP_DIRECTORY + program.removeprefix(plan.bwrap_directory)
        # Only now: each mount took descriptors, and there may be more mounts than a command may have files open.
        confine.set_limits(plan.limits, count_processes=count_processes)
        os.execve(program, plan.arguments, plan.environment)
    except OSError as error:
        subject = f" ({os.fsdecode(error.filename)})" if error.filename else ""
        os.write(_REPORT_FD, f"{step}: {error.strerror}{subject}\0{error.errno}".encode(errors="surrogateescape"))
    finally:
        os._exit(125)


def _close_all_but(wanted: dict[int, int]) -> None:
    """Close all descriptors above the report's, but first move those in `wanted` to the numbers that are its keys."""
    first_free = max([*wanted, *wanted.values(), _REPORT_FD]) + 1
    moved = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, first_free) for number, fd in wanted.items()}
    start = _REPORT_FD + 1
    for number in sorted(moved):
        os.dup2(moved[number], number, inheritable=True)
        os.closerange(start, number)
        start = number + 1
    os.closerange(start, _HIGHEST_FD)


def _set_up_steps(plan: Plan, channel: int, network: int, preparation: Preparation | None) -> Iterator[str]:
    """Do everything that comes before bubblewrap; yield each step's name before doing it, for the error message."""
    if plan.has_own_namespaces:
        yield "making namespaces"
        _enter_namespaces(plan, channel, network, is_prepared=preparation is not None)
    if plan.mounts:
        yield _SHOWING_HOST
        tree = _show_host(plan, preparation)
        for operation in plan.mounts[plan.host_mount_count :]:
            yield f"mounting {operation.target}"
            operation.do(tree)
        if tree.layers:
            yield "watching the layers"
            send_and_close(os.dup(_REPORT_FD), tree.watch_layers(), _LAYERS + os.fsencode("\0".join(tree.layers)))
        if plan.bwrap_directory:
            yield f"lending {plan.bwrap_directory}"
            tree.bind_bwrap_directory(plan.bwrap_directory)
        if plan.temporary_home:
            yield f"keeping {plan.temporary_home}"
            send_and_close(os.dup(_REPORT_FD), [tree.open_directory(plan.temporary_home)])
    if plan.listen and not plan.loopback:
        yield "listening for the proxy"
        send_and_close(channel, namespaces.make_listeners(plan.listen, plan.resolvers))
    yield "volunteering to end first if memory runs out"
    confine.volunteer_for_oom_kill()
    if plan.owner is not None:
        yield f"becoming user {plan.owner.user}"
        user, group = plan.owner.user, plan.owner.group
        os.setgroups(plan.owner.groups)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    if plan.blocks_abstract_sockets:
        yield "keeping abstract sockets out of reach"
        libc.scope_abstract_sockets()


def _enter_namespaces(plan: Plan, channel: int, network: int, *, is_prepared: bool) -> None:
    """Enter the namespaces of the plan that were not entered by the preparation."""
    can_prepare = bool(plan.preparation_key)
    if can_prepare and not is_prepared:
        _enter_first_namespaces(plan)
    if plan.loopback:
        if plan.privileged or not can_prepare:
            namespaces.enter_session_network(network, privileged=plan.privileged, groups=plan.groups)
        descriptors = [] if network >= 0 else [os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)]
        if plan.listen or plan.resolvers:
            descriptors += namespaces.make_listeners(plan.listen, plan.resolvers, is_alone=False)
        if descriptors:
            send_and_close(channel, descriptors)
        if not can_prepare:
            namespaces.enter_namespaces(privileged=False, groups=plan.groups, is_inner=True)
    elif plan.listen:
        libc.unshare(libc.CLONE_NEWNET)


def send_and_close(channel: int, descriptors: Sequence[int], message: bytes = _DESCRIPTORS) -> None:
    """Send descriptors to the other end of a socket, then close the socket and all of them here."""
    connection = _socket.socket(fileno=channel)
    send_descriptors(connection, message, descriptors)
    connection.close()
    for fd in descriptors:
        os.close(fd)


# `socket` has these two functions as well, but loads so much that every fork would become slower.


def send_descriptors(connection: _socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    """Send descriptors along with some data."""
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in descriptors)
    connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if descriptors else [])


def receive_descriptors(connection: _socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receive data and the descriptors that come along."""
    data, received, *_ = connection.recvmsg(size, _socket.CMSG_SPACE(4 * most), _socket.MSG_CMSG_CLOEXEC)
    rights = b"".join(each for _, _, each in received)
    return data, [int.from_bytes(rights[at : at + 4], sys.byteorder) for at in range(0, len(rights), 4)]


def _arrange_descriptors(plan: Plan, streams: Streams, link: ParentLink) -> tuple[int, int, int]:
    """Move the standard streams, the status and the report to the numbers 0 to 4.

    All others are closed before exec: a directory that stays open would be a way out of the sandbox. Returns the
    channel and the session's network (-1 for none), and the gate.
    """

    def move_up(fd: int) -> int:
        while fd <= _REPORT_FD:
            fd = os.dup(fd)
        return fd

    # First move all away from the numbers that are about to be taken.
    channel = move_up(streams[3]) if len(streams) > 3 else -1
    network = move_up(streams[4]) if plan.loopback == JOIN else -1
    gate = move_up(link.gate)
    for number, fd in enumerate([move_up(fd) for fd in (*streams[:3], link.status, link.report)]):
        os.dup2(fd, number, inheritable=number != _REPORT_FD)
    os.chdir("/")
    return channel, network, gate


class RunningSandbox:
    """One running sandbox whose outermost process is a child of this one.

    This process must be a subreaper: when bubblewrap ends, the sandbox's first process becomes our child. Only when
    that one is reaped too is nothing left that could still write.
    """

    def __init__(self, process: int, status: int, report: int, gate: int) -> None:
        self.process = process
        self._polled = status
        self._report = report
        self._gate = gate
        self._status_text = b""  # what bubblewrap has written to its status descriptor
        self._has_ended = False  # the outermost process; its first one inside may still be there
        self._was_killed = False
        self._signal = 0
        self._mount_namespaces = libc.Descriptors()
        self._unrouted = namespaces.UnroutedCounter()
        self._layers: dict[str, Any] = {}  # fields of an Exit

    def fileno(self) -> int:
        """The descriptor to poll next: readable when bubblewrap writes its status, or a process has ended."""
        return self._polled

    def advance(self) -> Exit | None:
        """Handle what made the descriptor readable; return how the sandbox ended once all inside is gone."""
        if not self._has_ended:
            data = os.read(self._polled, 4096)
            if data:
                self._status_text += data
                self._unrouted.begin(self.init(), self._gate)
                if self._was_killed:
                    self.kill()
                return None
            self._signal = os.WTERMSIG(os.waitpid(self.process, 0)[1])
            self._has_ended = True
        # The sandbox's first process becomes our child when bubblewrap, which kills it, is gone.
        init = self.init()
        if init is not None:
            try:
                if os.waitpid(init, os.WNOHANG)[0] == 0:
                    os.kill(init, _KILL)  # it may still wait to hear from bubblewrap
                    os.close(self._polled)
                    self._polled = os.pidfd_open(init)
                    return None
            except ChildProcessError:
                pass  # bubblewrap reaped it itself
        from fumehood.linux.process import Exit, kill_abandoned_sandboxes, read_number

        report, home = self._read_report()
        if init is None and not report:
            kill_abandoned_sandboxes()
        os.close(self._polled)
        os.close(self._gate)
        unrouted = self._unrouted.end()
        if self._was_killed or (self._signal and not report):
            # A signal that we did not send came from the kernel, which was out of memory, or from a person.
            signal = 0 if self._was_killed else self._signal
            return Exit(status=128 + (signal or _KILL), killed_by=signal, home=home, unrouted=unrouted, **self._layers)
        # Bubblewrap writes the command's exit status only if the command ran.
        status = None if report else read_number(self._status_text, "exit-code")
        return Exit(status=status, failure=report.partition("\0")[0], home=home, unrouted=unrouted, **self._layers)

    def _read_report(self) -> tuple[str, int]:
        """Return what failed before bubblewrap was started, and a descriptor of the command's home; note its layers."""
        report, home = b"", -1
        connection = _socket.socket(fileno=self._report)
        while True:
            data, descriptors = receive_descriptors(connection, 1 << 16, 1)
            if not data:
                connection.close()
                return report.decode(errors="surrogateescape"), home
            received = descriptors[0] if descriptors else -1  # none if this process has too many files open
            if data == _DESCRIPTORS:
                home = received
            elif data.startswith(_LAYERS):
                self._layers = {"layers": tuple(os.fsdecode(data[1:]).split("\0")), "unmount_watch": received}
            else:
                report += data

    def keep_mounts(self) -> None:
        """Keep the mounts after the command's end: to unmount takes time, for which nobody should have to wait."""
        init = self.init()
        if self._mount_namespaces or init is None:
            return
        for process in (self.process, init):
            try:
                self._mount_namespaces.append(os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return  # then the unmount is waited for

    def release_mounts(self) -> None:
        """Let the mounts end."""
        self._mount_namespaces.close()

    def init(self) -> int | None:
        """The process that is number one inside, or None until it is known: when it is gone, everything inside is."""
        from fumehood.linux.process import read_number

        return read_number(self._status_text, "child-pid")

    def kill(self) -> None:
        """Kill everything inside at once, or as soon as bubblewrap has told which process is the first inside.

        That process waits to hear from bubblewrap, and would wait for ever if bubblewrap were killed before.
        """
        self._was_killed = True
        if self._has_ended:
            return
        init = self.init()
        if b'"bare": ' in self._status_text:  # no sandbox: a supervising process, which then ends the command's
            os.kill(self.process, _END)
        elif init is not None:
            os.kill(self.process, _KILL)
            try:
                os.kill(init, _KILL)
            except ProcessLookupError:
                return  # it has just ended

    def discard(self) -> None:
        """Kill a process that never got a plan."""
        os.kill(self.process, _KILL)
        os.waitpid(self.process, 0)
        for fd in (self._polled, self._report, self._gate):
            os.close(fd)

    def interrupt(self) -> None:
        """Send the command the signal of Ctrl-C; if it has not begun yet, kill it."""
        init = self.init()
        if init is None:
            self.kill()
            return
        try:
            # The group of the sandbox's first process, which ignores this signal itself.
            os.killpg(init, _INTERRUPT)
        except ProcessLookupError:
            return


def start(plan: Plan, streams: Streams) -> RunningSandbox:
    """Fork a sandbox from this process, which must have only one thread and outlive the sandbox."""
    return fork_sandbox(lambda link: become_sandbox(plan, streams, link))


def fork_sandbox(child: Callable[[ParentLink], NoReturn]) -> RunningSandbox:
    """Fork a process that calls `child`, to become a sandbox."""
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    descriptors = libc.Descriptors()
    try:
        descriptors += os.pipe()
        descriptors += (end.detach() for end in _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET))
        descriptors.append(_make_gate())
        status, status_end, report, report_end, gate = descriptors
        link = ParentLink(parent=os.getpid(), status=status_end, report=report_end, gate=gate)
        process = libc.fork_without_locks()
    except OSError:
        descriptors.close()
        raise
    if process == 0:
        try:
            child(link)
        finally:
            os._exit(125)
    os.close(status_end)
    os.close(report_end)
    return RunningSandbox(process, status, report, gate)


def _make_gate() -> int:
    """Make a pipe and open both its ends as one descriptor: a reader of it never finds the end of the pipe."""
    with libc.Descriptors(os.pipe()) as ends:
        return os.open(f"/proc/self/fd/{ends[0]}", os.O_RDWR | os.O_CLOEXEC)


class RestartableSandbox:
    """A sandbox that is started again with a new plan if the host has changed since it was surveyed.

    We keep the command's descriptors open until it has ended: between two starts, its pipes would look closed.
    """

    def __init__(self, start: Starter, plan: Plan, streams: Streams, plan_again: Callable[[Plan], Plan]) -> None:
        self._start = start
        self._plan = plan
        self._plan_again = plan_again
        self._starts_left = _MOST_STARTS
        self._streams = libc.Descriptors(map(os.dup, streams))
        try:
            self._running = start(plan, streams)
        except BaseException:
            self._streams.close()
            raise

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._running.fileno()

    def advance(self) -> Exit | None:
        """Handle what made the descriptor readable; return how the last start ended, once it has."""
        end = self._running.advance()
        if end is None:
            return None
        self._starts_left -= 1
        if self._starts_left and end.status is None and end.failure.startswith(_SHOWING_HOST):
            try:
                self._plan = self._plan_again(self._plan)
                self._running = self._start(self._plan, self._streams)
            except BaseException:
                self._streams.close()
                raise
            return None
        self._streams.close()
        return end

    def init(self) -> int | None:
        """The first process inside, or None until it is known."""
        return self._running.init()

    def kill(self) -> None:
        """Kill everything inside, and do not start again."""
        self._starts_left = 1
        self._running.kill()

    def interrupt(self) -> None:
        """Send the command the signal of Ctrl-C."""
        self._running.interrupt()


def owner_of(project: str) -> Owner | None:
    """Return whom a project belongs to if we are root and it is somebody else's, else None."""
    if os.geteuid() != 0:
        return None
    status = os.stat(project)
    if status.st_uid == 0:
        return None
    try:
        entry = pwd.getpwuid(status.st_uid)
    except KeyError:
        return Owner(user=status.st_uid, group=status.st_gid)
    return Owner(user=entry.pw_uid, group=entry.pw_gid, groups=tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))
