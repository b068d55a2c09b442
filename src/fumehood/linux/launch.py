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

    # Standard input, output and error; the channel that listeners are handed out by, where there are any, and the
    # session's network, where it is made; and that network, where it is joined.
    Streams = Sequence[int]
    Starter = Callable[["Plan", Streams], Running]


_STATUS_FD, _REPORT_FD = 3, 4
_HIGHEST_FD = 1 << 20
_WRITTEN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_GUARD = f"/proc/self/fd/{GUARD_FD}"
_KILL, _INTERRUPT, _END = 9, 2, 15
SHOWING = "showing the host"
MAKE, JOIN = "make", "join"
_HANDED_OUT, _LAYERS = b"!", b"="
_TRIES = 5  # a host that starts containers may mount several times in the same moment


class Owner(Value):
    """Whom the command runs as, when root works on somebody else's project."""

    user: int
    group: int
    groups: tuple[int, ...] = ()


class Plan(Value):
    """Everything a fresh process must do to become the sandboxed command.

    The first `ahead` mounts show the host and are the same for the next command, as long as `look` is: the number of
    the look at the host that they come from.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    mounts: tuple[Operation, ...] = ()  # what the launcher does; else bubblewrap's arguments have them
    ahead: int = 0
    look: int = 0
    home: str = ""  # a directory that is thrown away: what is left in it can be looked at when the command has ended
    texts: tuple[bytes, ...] = ()  # for bubblewrap to read from DATA_FD and the following
    privileged: bool = False
    groups: tuple[int, ...] = ()  # that our user namespace knows besides our own
    owner: Owner | None = None
    limits: tuple[tuple[int, int], ...] = ()
    listen: tuple[tuple[str, int], ...] = ()  # in a network namespace of its own; the listeners are handed out
    resolvers: tuple[str, ...] = ()  # addresses inside where names are asked for
    loopback: str = ""  # the session's, to be made or to be joined
    keeps_channel: bool = False  # the listeners are made inside, and handed out by it from there
    scoped: bool = False  # kept from the host's abstract sockets, whose namespace it shares
    bare: str = ""  # the directory of a command that has no sandbox around it
    filter: bytes = b""  # of system calls, for bubblewrap to read from FILTER_FD
    init_file: str = ""  # where bubblewrap writes which process is the first inside, before that begins

    @property
    def enters(self) -> bool:
        """Whether it is launched in namespaces of ours."""
        return bool(self.mounts or self.listen or self.loopback)

    @property
    def begins(self) -> tuple[object, ...]:
        """What is made first, and may be made ahead for any plan that has the same here; nothing where it can't be.

        Those of a user lie in those of a session: they can be made ahead where that is new, and nobody listens in it.
        """
        is_joined = self.loopback == JOIN or (self.loopback and self.listen)
        if not self.enters or (is_joined and not self.privileged):
            return ()
        return self.privileged, self.groups, self.privileged or not self.loopback, self.ahead > 0

    @property
    def lent(self) -> str:
        """The directory of packages that bubblewrap and its libraries are in, where root starts it as somebody else."""
        program = self.arguments[0]
        return program.removesuffix(BUNDLED) if self.owner and self.mounts and program.endswith(BUNDLED) else ""

    @property
    def shows_host(self) -> tuple[Operation, ...]:
        """The mounts that show the host."""
        return self.mounts[: self.ahead]


def bubblewrap_arguments(
    command: Sequence[str], cwd: str, mounts: Sequence[Operation], *, by_launcher: bool, has_network: bool,
    disable_userns: bool, is_root: bool, variables: Sequence[tuple[str, str]], has_filter: bool,
) -> tuple[tuple[str, ...], tuple[bytes, ...]]:  # fmt: skip
    """Return what follows `bwrap`, and the texts that it reads from descriptors.

    Where the launcher mounts, bubblewrap only does what it alone can; a network that there is, is left as it is.
    Whoever may change the root is root there, without a capability: package managers ask for no more. `variables` are
    those that the command gets and bubblewrap is not started with.
    """
    texts: list[bytes] = []
    arguments = [*NAMESPACES, *(() if has_network else (NO_NETWORK,)), *CONFINEMENT]
    if disable_userns:
        arguments.append("--disable-userns")
    if is_root:
        arguments += ("--uid", "0", "--gid", "0")
    if by_launcher:
        arguments += ("--dev-bind", site.ROOT, "/")  # each mount below has its own restrictions
    for operation in mounts:
        if not by_launcher or needs_bubblewrap(operation):
            arguments += operation.bwrap_arguments(texts)
    for name, value in (*variables, ("TMPDIR", TMP)):
        arguments += ("--setenv", name, value)
    arguments += ("--chdir", cwd, "--json-status-fd", str(_STATUS_FD), *bwrap.NOTES)
    if has_filter:
        arguments += ("--seccomp", str(FILTER_FD))
    # The guard becomes the command, after it was told every place that may be written.
    guard = (_GUARD, *writable_places(mounts), "--") if confine.guard() else ()
    return (*arguments, "--", *guard, *command), tuple(texts)


class Ends(Value):
    """What a process that becomes a sandbox has of the one that forked it, and attends it.

    The gate is a pipe's two ends in one descriptor, which both have: what waits there waits for a word, and not for the
    end of whoever could say it.
    """

    attendant: int
    status: int
    report: int
    gate: int


class Ready(Value):
    """What a process did ahead of being told what to become: the beginning of another plan."""

    like: Plan
    site: Site | None = None


def made_ready(plan: Plan) -> Ready:
    """Do what can be done before the next launch, which is likely to be as the last one was."""
    try:
        _begin(plan)
    except OSError:
        os._exit(125)
    try:
        return Ready(like=plan, site=_host_shown(plan) if plan.ahead else None)
    except OSError:
        # The host is not as it was then; the next plan knows better.
        site.unmount_site()
        return Ready(like=plan)


def _begin(plan: Plan) -> None:
    """Enter the first namespaces of a plan that has some."""
    is_in_session = plan.loopback != "" and not plan.privileged
    if is_in_session:
        namespaces.enter_session(-1, privileged=False, groups=plan.groups)
    namespaces.enter_namespaces(privileged=plan.privileged, groups=plan.groups, is_inner=is_in_session)


def _host_shown(plan: Plan, ready: Ready | None = None) -> Site:
    """Return the tree in which the host is shown: as it was made ahead, or put together now."""
    if ready is not None and ready.site is not None:
        if (ready.like.look, ready.like.shows_host) == (plan.look, plan.shows_host):
            return ready.site
        site.unmount_site()
    shown = Site(None if plan.owner is None else (plan.owner.user, plan.owner.group))
    for operation in plan.shows_host:
        operation.do(shown)
    return shown


def become(plan: Plan, streams: Streams, ends: Ends, ready: Ready | None = None) -> NoReturn:
    """Turn this freshly forked process into the sandbox; what fails is told on `ends.report`."""
    step = "preparing"
    try:
        channel, network, gate = _arrange_descriptors(plan, streams, ends)
        init = -1 if plan.bare else os.open(plan.init_file or os.devnull, _WRITTEN, 0o600)
        # Ctrl-C at the terminal is for us; we pass it on, and bubblewrap must live to tell how it ended.
        os.setpgid(0, 0)
        for step in _steps(plan, channel, network, ready):  # noqa: B007 - told below, if it fails
            pass
        step = f"starting {plan.arguments[0]}"
        libc.end_with(ends.attendant, _KILL)
        libc.default_signals()
        kept = {} if init < 0 else {bwrap.INIT_FD: init, bwrap.GATE_FD: gate}
        if plan.keeps_channel:
            kept[namespaces.CHANNEL_FD] = channel
        _keep_open(kept)
        count_processes = plan.enters and not plan.privileged
        if plan.bare:
            from fumehood.linux.process import supervise

            confine.set_limits(plan.limits, count_processes=count_processes)
            supervise(plan.arguments, plan.environment, plan.bare)
        if plan.filter:
            provide(plan.filter, FILTER_FD)
        if _GUARD in plan.arguments:
            provide(confine.guard(), GUARD_FD, executable=True)
        for number, text in enumerate(plan.texts):
            provide(text, DATA_FD + number)
        program = plan.arguments[0]
        if plan.lent:
            program = site.BWRAP_DIRECTORY + program.removeprefix(plan.lent)
        # Only now: a mount is a descriptor or two, and a machine may have more mounts than a command may have files.
        confine.set_limits(plan.limits, count_processes=count_processes)
        os.execve(program, plan.arguments, plan.environment)
    except OSError as error:
        about = f" ({os.fsdecode(error.filename)})" if error.filename else ""
        os.write(_REPORT_FD, f"{step}: {error.strerror}{about}\0{error.errno}".encode(errors="surrogateescape"))
    finally:
        os._exit(125)


def _keep_open(kept: dict[int, int]) -> None:
    """Close all but the lowest descriptors and some, each of which goes to a place."""
    highest = max([*kept, *kept.values(), _REPORT_FD]) + 1
    moved = {place: fcntl.fcntl(fd, fcntl.F_DUPFD, highest) for place, fd in kept.items()}
    start = _REPORT_FD + 1
    for place in sorted(moved):
        os.dup2(moved[place], place, inheritable=True)
        os.closerange(start, place)
        start = place + 1
    os.closerange(start, _HIGHEST_FD)


def _steps(plan: Plan, channel: int, network: int, ready: Ready | None) -> Iterator[str]:
    """Do one by one what comes before bubblewrap; each step is named before it is done, to be told if it fails."""
    if plan.enters:
        yield "making namespaces"
        _enter(plan, channel, network, is_ready=ready is not None)
    if plan.mounts:
        yield SHOWING
        shown = _host_shown(plan, ready)
        for operation in plan.mounts[plan.ahead :]:
            yield f"mounting {operation.target}"
            operation.do(shown)
        if shown.layers:
            yield "watching the layers"
            _hand_out(os.dup(_REPORT_FD), shown.watch_layers(), _LAYERS + os.fsencode("\0".join(shown.layers)))
        if plan.lent:
            yield f"lending {plan.lent}"
            shown.bind_bwrap_directory(plan.lent)
        if plan.home:
            yield f"keeping {plan.home}"
            _hand_out(os.dup(_REPORT_FD), [shown.open_directory(plan.home)])
    if plan.listen and not plan.loopback:
        yield "listening for the proxy"
        _hand_out(channel, namespaces.listeners(plan.listen, plan.resolvers))
    yield "ending first where memory runs out"
    confine.end_first()
    if plan.owner is not None:
        yield f"becoming user {plan.owner.user}"
        user, group = plan.owner.user, plan.owner.group
        os.setgroups(plan.owner.groups)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    if plan.scoped:
        yield "keeping abstract sockets out of reach"
        libc.scope_abstract_sockets()


def _enter(plan: Plan, channel: int, network: int, *, is_ready: bool) -> None:
    """Enter the namespaces that the plan has, as far as that was not done ahead."""
    is_joined = not plan.begins
    if not is_ready and not is_joined:
        _begin(plan)
    if plan.loopback:
        if plan.privileged or is_joined:
            namespaces.enter_session(network, privileged=plan.privileged, groups=plan.groups)
        made = [] if network >= 0 else [os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)]
        if plan.listen or plan.resolvers:
            made += namespaces.listeners(plan.listen, plan.resolvers, is_alone=False)
        if made:
            _hand_out(channel, made)
        if is_joined:
            namespaces.enter_namespaces(privileged=False, groups=plan.groups, is_inner=True)
    elif plan.listen:
        libc.unshare(libc.CLONE_NEWNET)


def _hand_out(taker: int, descriptors: Sequence[int], words: bytes = _HANDED_OUT) -> None:
    """Give descriptors to whoever waits at the other end of a socket; all are closed here."""
    connection = _socket.socket(fileno=taker)
    send_descriptors(connection, words, descriptors)
    connection.close()
    for each in descriptors:
        os.close(each)


# `socket` has these too. It loads much that every fork would have to carry.


def send_descriptors(connection: _socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    """Send descriptors along with some data."""
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in descriptors)
    connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if descriptors else [])


def receive_descriptors(connection: _socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receive data and the descriptors that come along."""
    data, received, *_ = connection.recvmsg(size, _socket.CMSG_SPACE(4 * most), _socket.MSG_CMSG_CLOEXEC)
    rights = b"".join(each for _, _, each in received)
    return data, [int.from_bytes(rights[at : at + 4], sys.byteorder) for at in range(0, len(rights), 4)]


def _arrange_descriptors(plan: Plan, streams: Streams, ends: Ends) -> tuple[int, int, int]:
    """Put the few descriptors that are needed into their places; all others are closed before exec.

    One left open would reach into the sandbox: a directory among them is a way out. Returns the channel and the
    session's network, if any, and the gate.
    """

    def above(fd: int) -> int:
        while fd <= _REPORT_FD:
            fd = os.dup(fd)
        return fd

    # First out of the way of the places that are about to be taken.
    channel = above(streams[3]) if len(streams) > 3 else -1
    network = above(streams[4]) if plan.loopback == JOIN else -1
    gate = above(ends.gate)
    for place, fd in enumerate([above(fd) for fd in (*streams[:3], ends.status, ends.report)]):
        os.dup2(fd, place, inheritable=place != _REPORT_FD)
    os.chdir("/")
    return channel, network, gate


class RunningSandbox:
    """One running sandbox whose outermost process is a child of this one.

    This process must be a subreaper: the sandbox's own first process falls to it when bubblewrap ends,
    and only when that one is reaped is nothing left that could still write.
    """

    def __init__(self, process: int, status: int, report: int, gate: int) -> None:
        self.process = process
        self._reading = status
        self._report = report
        self._gate = gate
        self._text = b""  # what bubblewrap tells on its status descriptor
        self._ending = False
        self._killed = False
        self._signal = 0
        self._held = libc.Descriptors()
        self._tries = namespaces.TriesToLeave()
        self._layers: dict[str, Any] = {}  # of an Exit

    def fileno(self) -> int:
        """The descriptor to poll next: readable when the sandbox tells of itself, or something ended."""
        return self._reading

    def advance(self) -> Exit | None:
        """Take note of what made the descriptor readable; return how it ended once all inside is gone."""
        if not self._ending:
            data = os.read(self._reading, 4096)
            if data:
                self._text += data
                self._tries.begin(self.init(), self._gate)
                if self._killed:
                    self.kill()
                return None
            self._signal = os.WTERMSIG(os.waitpid(self.process, 0)[1])
            self._ending = True
        # The sandbox's first process falls to us when bubblewrap, killing it, is gone.
        init = self.init()
        if init is not None:
            try:
                if os.waitpid(init, os.WNOHANG)[0] == 0:
                    os.kill(init, _KILL)  # it may wait for a word of bubblewrap's
                    os.close(self._reading)
                    self._reading = os.pidfd_open(init)
                    return None
            except ChildProcessError:
                pass  # bubblewrap reaped it itself
        from fumehood.linux.process import Exit, end_abandoned, number_in

        report, home = self._read_report()
        if init is None and not report:
            end_abandoned()
        os.close(self._reading)
        os.close(self._gate)
        tries = self._tries.end()
        if self._killed or (self._signal and not report):
            # Not by us: by the kernel, for want of memory, or by a person.
            by_others = 0 if self._killed else self._signal
            return Exit(status=128 + (by_others or _KILL), killed_by=by_others, home=home, tries=tries, **self._layers)
        # Bubblewrap tells the command's own status; never where the command did not run.
        status = None if report else number_in(self._text, "exit-code")
        return Exit(status=status, failure=report.partition("\0")[0], home=home, tries=tries, **self._layers)

    def _read_report(self) -> tuple[str, int]:
        """Return what failed before bubblewrap was started, and the home that the command had; note its layers."""
        report, home = b"", -1
        connection = _socket.socket(fileno=self._report)
        while True:
            data, descriptors = receive_descriptors(connection, 1 << 16, 1)
            if not data:
                connection.close()
                return report.decode(errors="surrogateescape"), home
            received = descriptors[0] if descriptors else -1  # none where no more files can be open here
            if data == _HANDED_OUT:
                home = received
            elif data.startswith(_LAYERS):
                self._layers = {"layers": tuple(os.fsdecode(data[1:]).split("\0")), "unmounting": received}
            else:
                report += data

    def hold(self) -> None:
        """Keep its mounts for a while: their end takes time that whoever waits for the command need not wait.

        Where they can't be kept, it does wait.
        """
        init = self.init()
        if self._held or init is None:
            return
        for process in (self.process, init):
            try:
                self._held.append(os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return

    def release(self) -> None:
        """Let go of its mounts."""
        self._held.close()

    def init(self) -> int | None:
        """The process that is number one inside, once it is known: when it is gone, everything inside is."""
        from fumehood.linux.process import number_in

        return number_in(self._text, "child-pid")

    def kill(self) -> None:
        """End everything inside at once.

        Not before bubblewrap has told of its first process inside: that one waits for a word of its parent's, and
        would wait for ever for one that is gone.
        """
        self._killed = True
        if self._ending:
            return
        init = self.init()
        if b'"bare": ' in self._text:  # no sandbox, but a process that ends the command's when it is asked to
            os.kill(self.process, _END)
        elif init is not None:
            os.kill(self.process, _KILL)
            try:
                os.kill(init, _KILL)
            except ProcessLookupError:
                return  # it has just ended

    def dismiss(self) -> None:
        """End a process that was never told what to become."""
        os.kill(self.process, _KILL)
        os.waitpid(self.process, 0)
        for fd in (self._reading, self._report, self._gate):
            os.close(fd)

    def interrupt(self) -> None:
        """Send the command what Ctrl-C would; where it has not begun yet, end it."""
        init = self.init()
        if init is None:
            self.kill()
            return
        try:
            # The sandbox's first process leads the session, and ignores the signal itself.
            os.killpg(init, _INTERRUPT)
        except ProcessLookupError:
            return


def start(plan: Plan, streams: Streams) -> RunningSandbox:
    """Fork a sandbox from this process, which must have one thread only and outlive it."""
    return forked(lambda ends: become(plan, streams, ends))


def forked(child: Callable[[Ends], NoReturn]) -> RunningSandbox:
    """Fork a process that becomes a sandbox."""
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    made = libc.Descriptors()
    try:
        made += os.pipe()
        made += (each.detach() for each in _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET))
        made.append(_gate())
        status, status_end, report, report_end, gate = made
        ends = Ends(attendant=os.getpid(), status=status_end, report=report_end, gate=gate)
        process = libc.fork()
    except OSError:
        made.close()
        raise
    if process == 0:
        try:
            child(ends)
        finally:
            os._exit(125)
    os.close(status_end)
    os.close(report_end)
    return RunningSandbox(process, status, report, gate)


def _gate() -> int:
    """Make a pipe whose ends are one descriptor: who reads it meets no end, since it could write itself."""
    with libc.Descriptors(os.pipe()) as ends:
        return os.open(f"/proc/self/fd/{ends[0]}", os.O_RDWR | os.O_CLOEXEC)


class Retried:
    """A sandbox that is started again where the host could not be shown as it was thought to be.

    The command's descriptors are kept until it has ended: pipes that looked ended would be closed on our side.
    """

    def __init__(self, start: Starter, plan: Plan, streams: Streams, look_again: Callable[[Plan], Plan]) -> None:
        self._start = start
        self._plan = plan
        self._look_again = look_again
        self._tries = _TRIES
        self._kept = libc.Descriptors(map(os.dup, streams))
        try:
            self._running = start(plan, streams)
        except BaseException:
            self._kept.close()
            raise

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._running.fileno()

    def advance(self) -> Exit | None:
        """Take note; return how it ended, unless it has yet to begin."""
        ended = self._running.advance()
        if ended is None:
            return None
        self._tries -= 1
        if self._tries and ended.status is None and ended.failure.startswith(SHOWING):
            try:
                self._plan = self._look_again(self._plan)
                self._running = self._start(self._plan, self._kept)
            except BaseException:
                self._kept.close()
                raise
            return None
        self._kept.close()
        return ended

    def init(self) -> int | None:
        """The first process inside, once it is known."""
        return self._running.init()

    def kill(self) -> None:
        """End everything inside, and do not begin again."""
        self._tries = 1
        self._running.kill()

    def interrupt(self) -> None:
        """Send what Ctrl-C would."""
        self._running.interrupt()


def owner_of(project: str) -> Owner | None:
    """Return the person whose project root works on, or None where that is nobody else."""
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
