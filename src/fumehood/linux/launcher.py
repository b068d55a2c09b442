"""A small process of one thread, started once and kept, that forks sandboxes for a larger program.

Forking with work between fork and exec is not safe in a threaded program, a fresh interpreter for each
command is slow, and a sandbox dies with the thread that forked it. The launcher has none of these troubles.
It ends, and everything it started with it, when its program does.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import socket
import sys
import threading
from contextlib import suppress

from fumehood.errors import LaunchFailed
from fumehood.linux import confine, launch, libc, mounts, process

_KILL, _INTERRUPT, _WHO = b"k", b"i", b"w"
_SIGKILL = 9
_IDLE_MS = 60_000  # then what was mounted ahead is let go
_BUSY_MS = 20  # after a launch, for which a fork on the other processor would be in the way
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class Launcher:
    """The program's side: asks for sandboxes."""

    def __init__(self) -> None:
        import subprocess

        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # What showed the host last, as it is and written down.
        self._host: tuple[tuple[mounts.Operation, ...], bytes] = ((), b"")
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]);"
            "from fumehood.linux.launcher import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
        )
        source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code, source, str(theirs.fileno()), str(self.owner)],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                cwd="/", start_new_session=True,
            )  # fmt: skip

    def start(self, plan: launch.Plan, given: launch.Given) -> Remote:
        """Have a sandbox started; its events come on a channel of its own."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shown = self._host
        # The same objects as last time, mostly: most of what a plan holds is then written down already.
        if shown[0] != plan.shows_host:
            shown = self._host = plan.shows_host, marshal.dumps(mounts.packed(plan.shows_host))
        message = _packed(plan, shown[1])
        try:
            with self._lock, theirs:
                self._socket.sendall(len(message).to_bytes(4, "big"))
                socket.send_fds(self._socket, [plan.entered], [*given, theirs.fileno()])
                self._socket.sendall(message)
        except OSError as error:
            mine.close()
            raise LaunchFailed("the launcher is gone", hint="it was killed; the next run starts another") from error
        return Remote(mine)

    @property
    def is_alive(self) -> bool:
        """Return True if it can still be asked, by this process."""
        return self.owner == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """End it; whatever it started ends too. A child of our program only lets go of it."""
        self._socket.close()
        if self.owner == os.getpid():
            self._process.wait()
        else:
            self._process.returncode = 0  # not ours to wait for


class Remote:
    """One sandbox that the launcher attends for us."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._init: int | None = None
        self._asked = False

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._channel.fileno()

    def advance(self) -> process.Exit | None:
        """Take in what the launcher says: which process is the first inside, or how the sandbox ended."""
        try:
            message, descriptors, *_ = socket.recv_fds(self._channel, 1 << 16, 1)
        except ConnectionResetError:
            # It closed the channel without reading what it was asked last; what it said before that is still there.
            message, descriptors, *_ = socket.recv_fds(self._channel, 1 << 16, 1)
        event: Any = marshal.loads(message) if message else (None, "the launcher is gone")  # noqa: S302 - our own
        if isinstance(event, int):
            self._init, self._asked = event or None, event != 0
            return None
        self._channel.close()
        return process.Exit(status=event[0], failure=event[1], home=descriptors[0] if descriptors else -1)

    def init(self) -> int | None:
        """The first process inside; who asks too early gets the answer when it comes."""
        if self._init is None and not self._asked:
            self._asked = True
            self._tell(_WHO)
        return self._init

    def kill(self) -> None:
        """End everything inside."""
        self._tell(_KILL)

    def interrupt(self) -> None:
        """Send the command what Ctrl-C would."""
        self._tell(_INTERRUPT)

    def _tell(self, what: bytes) -> None:
        try:
            self._channel.send(what)
        except OSError:
            return  # it has just ended


_shared: Launcher | None = None
_shared_lock = threading.Lock()


def shared() -> Launcher:
    """Return this process's launcher, starting it the first time, and after a fork."""
    global _shared
    with _shared_lock:
        if _shared is not None and not _shared.is_alive:
            _shared.close()
            _shared = None
        if _shared is None:
            _shared = Launcher()
        return _shared


def _packed(plan: launch.Plan, host: bytes) -> bytes:
    """Write a plan down, for the same interpreter at the other end; `host` are the mounts that show the host."""
    owner = None if plan.owner is None else plan.owner.fields()
    own = mounts.packed(plan.mounts[plan.ahead :])
    return marshal.dumps((host, {**plan.fields(), "mounts": own, "owner": owner}))


def _unpacked(message: bytes, last: tuple[bytes, tuple[mounts.Operation, ...]] = (b"", ())) -> launch.Plan:
    """Read a plan; `last` is what showed the host last, as it was written down and as it is."""
    host, fields = marshal.loads(message)  # noqa: S302 - our own
    shown = last[1] if host == last[0] else mounts.unpacked(marshal.loads(host))  # noqa: S302 - our own
    owner = fields["owner"]
    fields["mounts"] = (*shown, *mounts.unpacked(fields["mounts"]))
    fields["owner"] = None if owner is None else launch.Owner(**owner)
    return launch.Plan(**fields)


_REHEARSAL = _packed(
    launch.Plan(
        arguments=("x",) * 60, environment={f"NAME_{n}": "value" for n in range(40)},
        mounts=(mounts.View(target="/", sources=("/",)),) * 5, limits=((0, 1),) * 5, filter=b"x" * 2000,
    ),
    marshal.dumps(()),
)  # fmt: skip


def serve(descriptor: int, program: int) -> None:
    """Be the launcher, until the program at the other end is gone."""
    control = socket.socket(fileno=descriptor)
    try:
        watch = os.pidfd_open(program)
    except ProcessLookupError:
        return
    confine.guard()  # loaded now: a child may not be allowed to read it, and would do so each time
    # A collection writes to every object, and so copies the memory that a fresh child shares with us.
    gc.disable()
    gc.freeze()
    _Service(control, watch).serve()


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    """Receive so many bytes, or None where the other end is gone."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            return None
        data += piece
    return data


class _Spare:
    """A process that was forked ahead and only waits to be told what to become: a fork takes a third of a launch.

    It is in namespaces of its own already, with the host's views mounted, as the last launch was.
    """

    def __init__(self, like: bytes = b"", entered: bytes = launch.NONE) -> None:
        self.entered = entered
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
        status, status_end = os.pipe()
        report, report_end = launch.report_pair()
        self._told, waiting = socket.socketpair()
        process = os.fork()
        if process == 0:
            self._told.close()
            _wait_and_become(waiting, status_end, report_end, like)
        for fd in (status_end, report_end):
            os.close(fd)
        waiting.close()
        self._sandbox = launch.RunningSandbox(process, status, report)

    def become(self, message: bytes, given: list[int]) -> launch.RunningSandbox:
        """Let it be a sandbox; one that has died meanwhile is found out when it is attended."""
        try:
            with self._told:
                socket.send_fds(self._told, [len(message).to_bytes(4, "big")], given)
                self._told.sendall(message)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return self._sandbox

    def dismiss(self) -> None:
        """End it, unused."""
        self._told.close()
        self._sandbox.dismiss()


def _wait_and_become(waiting: socket.socket, status: int, report: int, like: bytes) -> NoReturn:
    libc.prctl(libc.PR_SET_PDEATHSIG, _SIGKILL)
    # Also a rehearsal: the pages of memory that this will write to are copied now, and not when somebody waits for it.
    last = _unpacked(like or _REHEARSAL)
    ready = launch.made_ready(last) if like else None
    host = marshal.loads(like)[0] if like else b""  # noqa: S302 - our own
    head, fds, _, _ = socket.recv_fds(waiting, 4, 4)
    message = _exactly(waiting, int.from_bytes(head, "big")) if len(head) == 4 else None
    if message is None or len(fds) < 3:
        os._exit(125)
    plan = _unpacked(message, (host, last.shows_host))
    launch.become(plan, launch.given_of(fds), status, report, ready)


class _Service:
    """The launcher's side: one thread, one poll, any number of sandboxes."""

    def __init__(self, control: socket.socket, program: int) -> None:
        self._control = control
        # A child that the program forked holds the other end of the socket too, so that its end tells nothing.
        self._program = program
        self._poll = select.poll()
        for fd in (control.fileno(), program):
            self._poll.register(fd, select.POLLIN)
        self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll.register(self._mounts, select.POLLPRI)
        self._sandboxes: dict[int, tuple[launch.RunningSandbox, socket.socket]] = {}
        self._channels: dict[int, launch.RunningSandbox] = {}
        self._spare: _Spare | None = _Spare()
        self._last, self._entered = b"", launch.NONE

    def serve(self) -> None:
        """Answer until the program ends; then so does everything, since sandboxes die with their parent."""
        while True:
            ready = self._poll.poll(self._patience_ms())
            if self._mounts in dict(ready):
                # What waits has the mounts of before; and it must not keep busy what somebody has just unmounted.
                self._replace_spare()
            elif not ready:
                self._provide_spare() if self._spare is None else self._replace_spare()
            for fd, _ in ready:
                if fd == self._program or (fd == self._control.fileno() and not self._accept()):
                    return
                if fd in self._channels:
                    self._listen(fd)
                elif fd in self._sandboxes:
                    self._advance(fd)

    def _accept(self) -> bool:
        """Start one sandbox; tell whether there is still a program to serve."""
        head = _exactly(self._control, 4)
        if head is None:
            return False
        entered, descriptors, _, _ = socket.recv_fds(self._control, 1, 5)
        message = _exactly(self._control, int.from_bytes(head, "big"))
        if message is None or len(descriptors) < 4:
            return False
        channel = socket.socket(fileno=descriptors.pop())
        if self._spare is None or self._spare.entered not in (launch.NONE, entered):
            self._replace_spare()
        assert self._spare is not None
        sandbox = self._spare.become(message, descriptors)
        for fd in descriptors:
            os.close(fd)
        self._spare, self._last, self._entered = None, message, entered
        self._follow(sandbox, channel)
        self._channels[channel.fileno()] = sandbox
        self._poll.register(channel.fileno(), select.POLLIN)
        return True

    def _patience_ms(self) -> int | None:
        if self._spare is None:
            return _BUSY_MS
        return None if self._spare.entered == launch.NONE else _IDLE_MS

    def _provide_spare(self) -> None:
        """Have a process wait for the next launch, which is likely to be as the last one was."""
        if self._spare is None:
            self._spare = _Spare(self._last, self._entered)

    def _replace_spare(self) -> None:
        """Have one wait that did nothing ahead."""
        if self._spare is not None:
            self._spare.dismiss()
        self._spare = _Spare()

    def _follow(self, sandbox: launch.RunningSandbox, channel: socket.socket) -> None:
        self._sandboxes[sandbox.fileno()] = sandbox, channel
        self._poll.register(sandbox.fileno(), select.POLLIN)

    def _listen(self, fd: int) -> None:
        """The program says something of one sandbox, or has let go of it."""
        sandbox = self._channels[fd]
        channel = next(channel for _, channel in self._sandboxes.values() if channel.fileno() == fd)
        said = channel.recv(1)
        if said == _INTERRUPT:
            sandbox.interrupt()
            return
        if said == _WHO:
            channel.send(marshal.dumps(sandbox.init() or 0))
            return
        sandbox.kill()
        if not said:
            self._poll.unregister(fd)
            del self._channels[fd]

    def _advance(self, fd: int) -> None:
        sandbox, channel = self._sandboxes.pop(fd)
        self._poll.unregister(fd)
        ended = sandbox.advance()
        if ended is None:
            sandbox.hold()
            self._follow(sandbox, channel)
            return
        if channel.fileno() in self._channels:
            self._poll.unregister(channel.fileno())
            del self._channels[channel.fileno()]
            told = marshal.dumps((ended.status, ended.failure))
            with suppress(BrokenPipeError):  # whoever waited for it has given up
                socket.send_fds(channel, [told], [ended.home] if ended.home >= 0 else [])
        channel.close()
        if ended.home >= 0:
            os.close(ended.home)
        sandbox.release()
        self._provide_spare()
