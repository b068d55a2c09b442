"""A small process of one thread, started once and kept, that forks sandboxes for a larger program.

Forking with work between fork and exec is not safe in a threaded program, a fresh interpreter for each
command is slow, and a sandbox dies with the thread that forked it. The launcher has none of these troubles.
It ends, and everything it started with it, when its program does.

Every sandbox is a fork of it, which pays for each module: that is why `_socket` is used as it is.
"""

from __future__ import annotations

import _socket
import atexit
import gc
import marshal
import os
import select

from fumehood.errors import LaunchFailed
from fumehood.linux import confine, launch, libc, mounts, process

_KILL, _INTERRUPT, _WHO = b"k", b"i", b"w"
_SIGKILL = 9
_WATCHES = 4  # of sandboxes that have ended
_IDLE_MS = 60_000  # then what was mounted ahead is let go
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn


class Launcher:
    """The program's side: asks for sandboxes."""

    def __init__(self) -> None:
        import subprocess

        self.owner = os.getpid()
        self._lock = libc.lock()
        self._socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            self._process = subprocess.Popen(
                process.interpreter(__name__, "serve", str(theirs.fileno()), str(self.owner)),
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                cwd="/", start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()

    def start(self, plan: launch.Plan, streams: launch.Streams) -> Remote:
        """Have a sandbox started; its events come on a channel of its own."""
        mine, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        owner = None if plan.owner is None else vars(plan.owner)
        fields = {**vars(plan), "mounts": mounts.to_rows(plan.mounts), "owner": owner}
        begins: Any = plan.begins
        message = marshal.dumps((begins, marshal.dumps(fields)))
        try:
            with libc.InterruptsHeld(), self._lock:  # half a message would be its end
                _send(self._socket, message, [*streams, theirs.fileno()])
        except OSError as error:
            mine.close()
            raise LaunchFailed(process.LAUNCHER_GONE, hint="it was killed; the next run starts another") from error
        finally:
            theirs.close()
        return Remote(mine)

    @property
    def is_alive(self) -> bool:
        """Whether this process can still ask it. One that was just killed can't hear us, before it has ended."""
        if self.owner != os.getpid() or self._process.poll() is not None:
            return False
        try:
            return self._socket.recv(1, _socket.MSG_DONTWAIT | _socket.MSG_PEEK) != b""
        except BlockingIOError:  # there is nothing that it would say
            return True
        except ConnectionResetError:
            return False

    def close(self) -> None:
        """End it; whatever it started ends too. A child of our program only lets go of it."""
        self._socket.close()
        if self.owner == os.getpid():
            self._process.wait()
        else:
            self._process.returncode = 0  # not ours to wait for


class Remote:
    """One sandbox that the launcher attends for us."""

    def __init__(self, channel: _socket.socket) -> None:
        self._channel = channel
        self._init: int | None = None
        self._asked = False

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._channel.fileno()

    def advance(self) -> process.Exit | None:
        """Take in what the launcher says: which process is the first inside, or how the sandbox ended."""
        try:
            message, descriptors = launch.receive_descriptors(self._channel, 1 << 16, 2)
        except ConnectionResetError:
            # It closed the channel without reading what it was asked last; what it said before that is still there.
            message, descriptors = launch.receive_descriptors(self._channel, 1 << 16, 2)
        gone = process.Exit(status=None, failure=process.LAUNCHER_GONE).fields()
        event: Any = marshal.loads(message) if message else gone  # noqa: S302 - our own
        if isinstance(event, int):
            self._init, self._asked = event or None, event != 0
            return None
        self._channel.close()
        # Their numbers are the launcher's; none came where no more files can be open here.
        event["home"] = descriptors.pop(0) if event["home"] >= 0 and descriptors else -1
        event["unmounting"] = descriptors.pop() if descriptors else -1
        return process.Exit(**event)

    def init(self) -> int | None:
        """The first process inside; who asks too early gets the answer when it comes."""
        if self._init is None and not self._asked:
            self._asked = True
            self._send(_WHO)
        return self._init

    def kill(self) -> None:
        """End everything inside."""
        self._send(_KILL)

    def interrupt(self) -> None:
        """Send the command what Ctrl-C would."""
        self._send(_INTERRUPT)

    def _send(self, request: bytes) -> None:
        try:
            self._channel.send(request)
        except OSError:
            return  # it has just ended


_shared: Launcher | None = None
_shared_lock = libc.lock()


def shared() -> Launcher:
    """Return this process's launcher, starting it the first time, and after a fork."""
    global _shared
    # `subprocess` has a lock of its own: cut short there, it would take a launcher that is gone for one that lives.
    with libc.InterruptsHeld(), _shared_lock:
        if _shared is not None and not _shared.is_alive:
            _shared.close()
            _shared = None
        if _shared is None:
            _shared = Launcher()
            # It would end with us in any case; but then Python complains of what was left open.
            atexit.register(_shared.close)
        return _shared


def serve(descriptor: str, program: str) -> None:
    """Be the launcher, until the program at the other end is gone."""
    control = _socket.socket(fileno=int(descriptor))
    try:
        watch = os.pidfd_open(int(program))
    except ProcessLookupError:
        return
    confine.guard()  # loaded now: a child may not be allowed to read it, and would do so each time
    # A collection writes to every object, and so copies the memory that a fresh child shares with us.
    gc.disable()
    gc.freeze()
    _Service(control, watch).serve()


def _send(connection: _socket.socket, message: bytes, descriptors: Sequence[int]) -> None:
    launch.send_descriptors(connection, len(message).to_bytes(4, "big"), descriptors)
    connection.sendall(message)


def _received(connection: _socket.socket) -> tuple[bytes, list[int]] | None:
    """Receive a message with its descriptors, or None where the other end is gone."""
    head, descriptors = launch.receive_descriptors(connection, 4, 6)
    size, message = int.from_bytes(head, "big"), b""
    while len(message) < size:
        piece = connection.recv(size - len(message))
        if not piece:
            return None
        message += piece
    return (message, descriptors) if head else None


def _unpacked(packed: bytes, like: launch.Plan | None = None) -> launch.Plan:
    """Return a plan that was sent; where it shows the host as another one does, by that one's own operations."""
    fields = marshal.loads(packed)  # noqa: S302 - our own
    rows, ahead = fields["mounts"], fields.get("ahead", 0)
    if like is not None and rows[:ahead] == mounts.to_rows(like.shows_host):
        shown = like.shows_host
    else:
        shown = mounts.from_rows(rows[:ahead])
    fields["mounts"] = (*shown, *mounts.from_rows(rows[ahead:]))
    fields["owner"] = None if fields["owner"] is None else launch.Owner(**fields["owner"])
    return launch.Plan(**fields)


class _Spare:
    """A process that has begun as an earlier, packed plan does, and waits to be told which sandbox to become.

    It is in namespaces of its own, with the host's views mounted, which saves the next launch that work. It lets go of
    the mounts of `others`: else they would last while it waits.
    """

    def __init__(self, begins: Any, like: bytes, others: Sequence[launch.RunningSandbox]) -> None:
        self.begins = begins
        self._like = like
        self._others = others
        self._orders, waiting = _socket.socketpair()
        self._sandbox = launch.forked(lambda ends: self._wait(waiting, ends))
        waiting.close()

    def _wait(self, waiting: _socket.socket, ends: launch.Ends) -> NoReturn:
        self._orders.close()
        for sandbox in self._others:
            sandbox.release()
        libc.end_with(ends.attendant, _SIGKILL)
        ready = launch.made_ready(_unpacked(self._like))
        order = _received(waiting)
        if order is None or len(order[1]) < 3:
            os._exit(125)
        launch.become(_unpacked(order[0], ready.like), order[1], ends, ready)

    def become(self, plan: bytes, streams: list[int]) -> launch.RunningSandbox:
        """Let it be a sandbox; one that has died meanwhile is found out when it is attended."""
        try:
            _send(self._orders, plan, streams)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self._orders.close()
        return self._sandbox

    def dismiss(self) -> None:
        """End it, unused."""
        self._orders.close()
        self._sandbox.dismiss()


def _tell(channel: _socket.socket, ended: process.Exit) -> None:
    """Say how a sandbox ended; whoever waited for it may have given up."""
    try:
        launch.send_descriptors(channel, marshal.dumps(ended.fields()), ended.descriptors)
    except (BrokenPipeError, ConnectionResetError):
        return


class _Service:
    """The launcher's side: one thread, one poll, any number of sandboxes."""

    def __init__(self, control: _socket.socket, program: int) -> None:
        self._control = control
        # A child that the program forked holds the other end of the socket too, so that its end tells nothing.
        self._program = program
        self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)
        self._poll.register(program, select.POLLIN)
        self._poll.register(self._mounts, select.POLLPRI)
        # By the descriptor that is polled: the sandbox's own, and that of the channel to whoever waits for it.
        self._sandboxes: dict[int, tuple[launch.RunningSandbox, _socket.socket]] = {}
        self._channels: dict[int, tuple[launch.RunningSandbox, _socket.socket]] = {}
        # Closed later: to let go of what is watched and still mounted, the kernel takes ten milliseconds.
        self._watches: list[int] = []
        self._spare: _Spare | None = None
        self._last: tuple[Any, bytes] = (), b""  # the last plan and how it begins: the next is likely to be like it

    def serve(self) -> None:
        """Answer until the program ends; then so does everything."""
        while True:
            ready = self._poll.poll(None if self._spare is None else _IDLE_MS)
            if not ready or self._mounts in dict(ready):
                # What waits has the mounts of before; and it must not keep busy what somebody has just unmounted.
                self._drop_spare()
            for fd, _ in ready:
                if fd == self._program or (fd == self._control.fileno() and not self._accept()):
                    self._end_all()
                    return
                if fd in self._channels:
                    self._listen(fd)
                elif fd in self._sandboxes:
                    self._advance(fd)

    def _end_all(self) -> None:
        """End every sandbox and see it gone: a bubblewrap that died with us would leave what it had just begun."""
        self._drop_spare()
        for fd in (self._program, self._control.fileno(), self._mounts, *self._channels):
            self._poll.unregister(fd)
        self._channels.clear()
        self._last = (), b""  # no more spares
        for sandbox, _ in self._sandboxes.values():
            sandbox.kill()
        while self._sandboxes:
            for fd, _ in self._poll.poll():
                self._advance(fd)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.dismiss()
            self._spare = None

    def _accept(self) -> bool:
        """Start one sandbox; return False if there is no program to serve any more."""
        received = _received(self._control)
        if received is None:
            return False
        message, descriptors = received
        if len(descriptors) < 4:
            for fd in descriptors:  # no more could be opened; who asked learns it by the end of the channel
                os.close(fd)
            return True
        channel = _socket.socket(fileno=descriptors.pop())
        begins, plan = marshal.loads(message)  # noqa: S302 - our own
        if self._spare is not None and self._spare.begins != begins:
            self._drop_spare()
        try:
            if self._spare is not None:
                sandbox = self._spare.become(plan, descriptors)
            else:
                sandbox = launch.start(_unpacked(plan), descriptors)
        except OSError as error:  # too many processes, or open files: those that run go on
            _tell(channel, process.Exit(status=None, failure=f"starting: {error.strerror}"))
            return True
        finally:
            for fd in descriptors:
                os.close(fd)
        self._spare, self._last = None, (begins, plan)
        self._sandboxes[sandbox.fileno()] = self._channels[channel.fileno()] = sandbox, channel
        self._poll.register(sandbox.fileno(), select.POLLIN)
        self._poll.register(channel.fileno(), select.POLLIN)
        return True

    def _listen(self, fd: int) -> None:
        """The program says something of one sandbox, or has let go of it."""
        sandbox, channel = self._channels[fd]
        try:
            request = channel.recv(1)
            if request == _WHO:
                channel.send(marshal.dumps(sandbox.init() or 0))
        except (BrokenPipeError, ConnectionResetError):
            request = b""  # it did not even wait for the answer
        if request == _INTERRUPT:
            sandbox.interrupt()
        elif request != _WHO:
            sandbox.kill()
            if not request:
                self._poll.unregister(fd)
                del self._channels[fd]

    def _advance(self, fd: int) -> None:
        sandbox, channel = self._sandboxes.pop(fd)
        self._poll.unregister(fd)
        ended = sandbox.advance()
        if ended is None:
            sandbox.hold()
            self._sandboxes[sandbox.fileno()] = sandbox, channel
            self._poll.register(sandbox.fileno(), select.POLLIN)
            return
        if channel.fileno() in self._channels:
            self._poll.unregister(channel.fileno())
            del self._channels[channel.fileno()]
            _tell(channel, ended)
        channel.close()
        if ended.home >= 0:
            os.close(ended.home)
        if ended.unmounting >= 0:
            self._watches.append(ended.unmounting)
        if len(self._watches) > _WATCHES:
            os.close(self._watches.pop(0))
        sandbox.release()
        if self._spare is None and self._last[0]:
            try:
                self._spare = _Spare(*self._last, [other for other, _ in self._sandboxes.values()])
            except OSError:
                return  # too many processes, or open files: the next launch says so, if it is still so
