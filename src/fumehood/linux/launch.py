"""Start one sandbox: namespaces and overlays of our own, then bubblewrap in them."""

from __future__ import annotations

import os

from fumehood.core.value import Value
from fumehood.linux import backdrop, landlock, libc, overlay
from fumehood.linux.limits import set_limits
from fumehood.linux.memory import provide

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

    # Standard input, output and error; and the channel that listeners are handed out by, where there are any.
    Given = tuple[int, int, int] | tuple[int, int, int, int]

STATUS_FD = 3
_REPORT_FD = 4
FILTER_FD, GUARD_FD = 5, 6
_HIGHEST_FD = 1 << 20
_KILL, _INTERRUPT, _END = 9, 2, 15
BACKDROP = "mounting the backdrop"
NONE = b"n"


def given_of(descriptors: list[int]) -> Given:
    """Take descriptors that were kept or sent for what they are."""
    first, second, third, *channel = descriptors
    return (first, second, third, channel[0]) if channel else (first, second, third)


class Owner(Value):
    """Whom the command runs as, when root works on somebody else's project."""

    user: int
    group: int
    groups: tuple[int, ...] = ()


class Plan(Value):
    """Everything a fresh process must do to become the sandboxed command."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    overlays: tuple[overlay.Overlay, ...] = ()
    privileged: bool = False
    owner: Owner | None = None
    tree: str = ""  # shown at backdrop.STAND to an owner who can't reach it where it lies
    limits: tuple[tuple[int, int], ...] = ()
    listen: tuple[tuple[str, int], ...] = ()  # in a network namespace of its own; the listeners are handed out
    resolvers: tuple[str, ...] = ()  # addresses inside where names are asked for
    keeps_channel: bool = False  # the listeners are made inside, and handed out by it from there
    scoped: bool = False  # kept from the host's abstract sockets, whose namespace it shares
    backdrop: backdrop.Mounts | None = None
    bare: str = ""  # the directory of a command that has no sandbox around it
    filter: bytes = b""  # of system calls, for bubblewrap to read from FILTER_FD
    guarded: bool = False  # the program that confines writing is at GUARD_FD


    @property
    def entered(self) -> bytes:
        """One byte for the namespaces of ours that it is launched in: none, by privilege or as a user, with views."""
        if not (self.overlays or self.listen or self.backdrop):
            return NONE
        kind = b"p" if self.privileged else b"u"
        return kind.upper() if self.backdrop else kind


class Ready(Value):
    """What a process did ahead of being told what to become."""

    entered: bytes
    backdrop: backdrop.Mounts | None = None


class Exit(Value):
    """How a sandbox ended: the command's status, or, where it never ran, what stopped the sandbox."""

    status: int | None
    failure: str = ""


def made_ready(plan: Plan) -> Ready | None:
    """Do what can be done before the next launch, which is likely to be as the last one was."""
    if plan.entered == NONE:
        return None
    try:
        overlay.enter_namespaces(privileged=plan.privileged)
    except OSError:
        os._exit(125)
    if plan.backdrop is not None:
        try:
            backdrop.mount(plan.backdrop)
        except OSError:
            # The host is not as it was then; the next plan knows better.
            backdrop.unmount()
            return Ready(entered=plan.entered)
    return Ready(entered=plan.entered, backdrop=plan.backdrop)


def become(plan: Plan, given: Given, status: int, report: int, ready: Ready | None = None) -> NoReturn:
    """Turn this freshly forked process into the sandbox; what fails is told on `report`."""
    step = "preparing"
    try:
        channel = _arrange_descriptors(given, status, report)
        # Ctrl-C at the terminal is for us; we pass it on, and bubblewrap must live to tell how it ended.
        os.setpgid(0, 0)
        for step, act in _acts(plan, channel, ready):  # noqa: B007 - told below, if it fails
            act()
        step = f"starting {plan.arguments[0]}"
        libc.prctl(libc.PR_SET_PDEATHSIG, _KILL)
        libc.default_signals()
        if plan.keeps_channel:
            from fumehood.linux.nets import CHANNEL_FD

            os.dup2(channel, CHANNEL_FD)
            os.set_inheritable(CHANNEL_FD, True)  # it may have been there already
            os.closerange(_REPORT_FD + 1, CHANNEL_FD)
            os.closerange(CHANNEL_FD + 1, _HIGHEST_FD)
        else:
            os.closerange(_REPORT_FD + 1, _HIGHEST_FD)
        if plan.bare:
            from fumehood.linux.bare import supervise

            supervise(plan.arguments, plan.environment, plan.bare)
        if plan.filter:
            provide(plan.filter, FILTER_FD)
        if plan.guarded:
            provide(landlock.guard(), GUARD_FD, executable=True)
        os.execve(plan.arguments[0], plan.arguments, plan.environment)
    except OSError as error:
        about = f" ({os.fsdecode(error.filename)})" if error.filename else ""
        os.write(_REPORT_FD, f"{step}: {error.strerror}{about}\0{error.errno}".encode(errors="surrogateescape"))
    finally:
        os._exit(125)


def _acts(plan: Plan, channel: int, ready: Ready | None) -> Iterator[tuple[str, Callable[[], object]]]:
    """Tell one by one what is done before bubblewrap is started, with the words to say so if it fails."""
    network = bool(plan.listen)
    if ready is not None and network:
        yield "making a network", overlay.enter_network
    elif ready is None and plan.entered != NONE:
        yield (
            "making namespaces", lambda: overlay.enter_namespaces(privileged=plan.privileged, network=network)
        )  # fmt: skip
    if plan.backdrop is not None and (ready is None or ready.backdrop != plan.backdrop):
        behind = plan.backdrop
        if ready is not None and ready.backdrop is not None:
            # Not over it: whoever removes a directory takes what is mounted on it away, from everybody.
            yield "unmounting another backdrop", backdrop.unmount
        # Before the roots: a view shows what is below them, not them. Before the listeners: this may be tried again.
        yield BACKDROP, lambda: backdrop.mount(behind)
    if plan.listen:
        from fumehood.linux.nets import send_listeners

        yield "listening for the proxy", lambda: send_listeners(channel, plan.listen, plan.resolvers)
    for each in plan.overlays:
        yield f"mounting an overlay over {each.root}", lambda each=each: overlay.mount(each)  # type: ignore[misc]
    if plan.tree:
        tree, stand = os.fsencode(plan.tree), backdrop.STAND.encode()
        yield f"binding {plan.tree}", lambda: libc.mount(tree, stand, None, libc.MS_BIND, None)
    counted = bool(plan.overlays or plan.listen) and not plan.privileged
    yield "setting limits", lambda: set_limits(plan.limits, count_processes=counted)
    if plan.owner is not None:
        owner = plan.owner
        yield f"becoming user {owner.user}", lambda: _turn_into(owner)
    if plan.scoped:
        yield "keeping abstract sockets out of reach", landlock.forbid_outer_sockets


def _turn_into(owner: Owner) -> None:
    os.setgroups(owner.groups)
    os.setresgid(owner.group, owner.group, owner.group)
    os.setresuid(owner.user, owner.user, owner.user)


def _arrange_descriptors(given: Given, status: int, report: int) -> int:
    """Put the few descriptors that are needed into their places; all others are closed before exec.

    One left open would reach into the sandbox: a directory among them is a way out. Returns the channel, if any.
    """
    # First out of the way of the places that are about to be taken.
    channel = _above(given[3]) if len(given) > 3 else -1
    spare = [_above(fd) for fd in (*given[:3], status, report)]
    for place, fd in enumerate(spare):
        os.dup2(fd, place, inheritable=place != _REPORT_FD)
    os.chdir("/")
    return channel


def _above(fd: int) -> int:
    while fd <= _REPORT_FD:
        fd = os.dup(fd)
    return fd


class Status:
    """What bubblewrap tells on its status descriptor, read as it comes."""

    def __init__(self) -> None:
        self._text = b""

    def feed(self, data: bytes) -> None:
        """Take in what was read."""
        self._text += data

    @property
    def init(self) -> int | None:
        """The process that is number one inside: when it is gone, everything inside is."""
        return self._number(b'"child-pid": ')

    @property
    def is_bare(self) -> bool:
        """Tell whether there is no sandbox, but a process that ends the command's when it is asked to."""
        return b'"bare": ' in self._text

    @property
    def exit_code(self) -> int | None:
        """The command's own status; never told where the command did not run."""
        return self._number(b'"exit-code": ')

    def _number(self, key: bytes) -> int | None:
        _, found, rest = self._text.partition(key)
        digits = rest[: len(rest) - len(rest.lstrip(b"0123456789"))]
        # Without what follows the digits, the number may still be coming in.
        return int(digits) if found and digits and len(rest) > len(digits) else None


class Sandbox:
    """One running sandbox whose outermost process is a child of this one.

    This process must be a subreaper: the sandbox's own first process falls to it when bubblewrap ends,
    and only when that one is reaped is nothing left that could still write.
    """

    def __init__(self, process: int, status: int, report: int) -> None:
        self.process = process
        self._reading = status
        self._report = report
        self._status = Status()
        self._ending = False
        self._killed = False
        self._signal = 0
        self._held: list[int] = []

    def fileno(self) -> int:
        """The descriptor to poll next: readable when the sandbox tells of itself, or something ended."""
        return self._reading

    def advance(self) -> Exit | None:
        """Take note of what made the descriptor readable; return how it ended once all inside is gone."""
        if not self._ending:
            data = os.read(self._reading, 4096)
            if data:
                self._status.feed(data)
                if self._killed:
                    self.kill()
                return None
            self._signal = os.WTERMSIG(os.waitpid(self.process, 0)[1])
            self._ending = True
        return self._reap_init()

    def _reap_init(self) -> Exit | None:
        """Reap the sandbox's first process, which falls to us when bubblewrap, killing it, is gone."""
        init = self._status.init
        if init is not None:
            try:
                if os.waitpid(init, os.WNOHANG)[0] == 0:
                    os.close(self._reading)
                    self._reading = os.pidfd_open(init)
                    return None
            except ChildProcessError:
                pass  # bubblewrap reaped it itself
        report = os.read(self._report, 4096).decode(errors="surrogateescape")
        os.close(self._reading)
        os.close(self._report)
        if self._killed:
            return Exit(status=128 + _KILL)
        if self._signal and not report:
            # Not by us: by the kernel, for want of memory, or by a person.
            return Exit(status=128 + self._signal)
        return Exit(status=None if report else self._status.exit_code, failure=report.partition("\0")[0])

    def hold(self) -> None:
        """Keep its mounts for a while: their end takes time that whoever waits for the command need not wait.

        Where they can't be kept, it does wait.
        """
        init = self._status.init
        if self._held or init is None:
            return
        for process in (self.process, init):
            try:
                self._held.append(os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return

    def release(self) -> None:
        """Let go of its mounts."""
        for fd in self._held:
            os.close(fd)
        self._held.clear()

    def init(self) -> int | None:
        """The first process inside, as soon as it is known."""
        return self._status.init

    def kill(self) -> None:
        """End everything inside at once.

        Not before bubblewrap has told of its first process inside: that one waits for a word of its parent's, and
        would wait for ever for one that is gone.
        """
        self._killed = True
        if self._ending:
            return
        if self._status.is_bare:
            os.kill(self.process, _END)
        elif self._status.init is not None:
            os.kill(self.process, _KILL)
            _end(self._status.init)

    def dismiss(self) -> None:
        """End a process that was never told what to become."""
        os.kill(self.process, _KILL)
        os.waitpid(self.process, 0)
        os.close(self._reading)
        os.close(self._report)

    def interrupt(self) -> None:
        """Send the command what Ctrl-C would; where it has not begun yet, end it."""
        init = self._status.init
        if init is None:
            self.kill()
            return
        try:
            # The sandbox's first process leads the session, and ignores the signal itself.
            os.killpg(init, _INTERRUPT)
        except ProcessLookupError:
            return


def _end(process: int) -> None:
    try:
        os.kill(process, _KILL)
    except ProcessLookupError:
        return  # it has just ended


def start(plan: Plan, given: Given) -> Sandbox:
    """Fork a sandbox from this process, which must have one thread only and outlive it."""
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    status_read, status_write = os.pipe()
    report_read, report_write = os.pipe()
    process = os.fork()
    if process == 0:
        become(plan, given, status_write, report_write)
    os.close(status_write)
    os.close(report_write)
    return Sandbox(process, status_read, report_read)
