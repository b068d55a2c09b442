"""The launcher: a small process with one thread, started once and kept, that forks sandboxes for a larger program.

A program with threads can't safely do work between fork and exec, a new interpreter for each command is slow, and a
sandbox dies with the thread that forked it. The launcher has none of these problems. It ends when its program does,
together with all sandboxes that it has started.

Every sandbox is a fork of it, and forks faster the fewer modules are loaded: that is why this uses `_socket`.
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

_KILL, _INTERRUPT, _ASK_INIT = b"k", b"i", b"w"
_SIGKILL = 9
_MOST_WATCHES = 4  # of sandboxes that have ended
_SPARE_IDLE_MS = 60_000  # a spare process that is not used for so long is ended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn


class Launcher:
    """The program's side: starts the launcher process and asks it for sandboxes."""

    def __init__(self) -> None:
        import subprocess

        self.owner = os.getpid()
        self._lock = libc.fork_safe_lock()
        self._socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            self._process = subprocess.Popen(
                process.interpreter_command(__name__, "serve", str(theirs.fileno()), str(self.owner)),
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                cwd="/", start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()

    def start(self, plan: launch.Plan, streams: launch.Streams) -> RemoteSandbox:
        """Have a sandbox started; its events come on a channel of its own."""
        mine, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        owner = None if plan.owner is None else vars(plan.owner)
        fields = {**vars(plan), "mounts": mounts.to_rows(plan.mounts), "owner": owner}
        key: Any = plan.preparation_key
        message = marshal.dumps((key, marshal.dumps(fields)))
        try:
            with libc.InterruptsHeld(), self._lock:  # after half a message, the launcher would understand no other
                _send_message(self._socket, message, [*streams, theirs.fileno()])
        except OSError as error:
            mine.close()
            raise LaunchFailed(process.LAUNCHER_GONE, hint="it was killed; the next run starts another") from error
        finally:
            theirs.close()
        return RemoteSandbox(mine)

    @property
    def is_alive(self) -> bool:
        """True if this process can still ask it; a launcher that was just killed closes its socket before it ends."""
        if self.owner != os.getpid() or self._process.poll() is not None:
            return False
        try:
            return self._socket.recv(1, _socket.MSG_DONTWAIT | _socket.MSG_PEEK) != b""
        except BlockingIOError:  # nothing to read: it never writes to this socket
            return True
        except ConnectionResetError:
            return False

    def close(self) -> None:
        """End it with all that it started; a fork of our program only closes its own end of the socket."""
        self._socket.close()
        if self.owner == os.getpid():
            self._process.wait()
        else:
            self._process.returncode = 0  # so that `subprocess` does not wait for what is no child of this process


class RemoteSandbox:
    """One sandbox that the launcher process runs for us."""

    def __init__(self, channel: _socket.socket) -> None:
        self._channel = channel
        self._init: int | None = None
        self._has_asked_init = False

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._channel.fileno()

    def advance(self) -> process.Exit | None:
        """Handle a message of the launcher: which process is the first inside, or how the sandbox ended."""
        try:
            message, descriptors = launch.receive_descriptors(self._channel, 1 << 16, 2)
        except ConnectionResetError:
            # It closed the channel without reading our last request; the message that it sent before is still there.
            message, descriptors = launch.receive_descriptors(self._channel, 1 << 16, 2)
        launcher_gone = process.Exit(status=None, failure=process.LAUNCHER_GONE).fields()
        event: Any = marshal.loads(message) if message else launcher_gone  # noqa: S302 - our own
        if isinstance(event, int):
            self._init, self._has_asked_init = event or None, event != 0
            return None
        self._channel.close()
        # The numbers in the event are the launcher's. No descriptor comes if this process has too many files open.
        event["home"] = descriptors.pop(0) if event["home"] >= 0 and descriptors else -1
        event["unmount_watch"] = descriptors.pop() if descriptors else -1
        return process.Exit(**event)

    def init(self) -> int | None:
        """The first process inside, or None until the launcher has answered."""
        if self._init is None and not self._has_asked_init:
            self._has_asked_init = True
            self._send(_ASK_INIT)
        return self._init

    def kill(self) -> None:
        """Kill everything inside."""
        self._send(_KILL)

    def interrupt(self) -> None:
        """Send the command the signal of Ctrl-C."""
        self._send(_INTERRUPT)

    def _send(self, request: bytes) -> None:
        try:
            self._channel.send(request)
        except OSError:
            return  # it has just ended


_shared: Launcher | None = None
_shared_lock = libc.fork_safe_lock()


def shared() -> Launcher:
    """Return this process's launcher; it is started at the first call, and at the first one after a fork."""
    global _shared
    # Interrupted inside `subprocess`, which has a lock of its own, we would take a dead launcher for a living one.
    with libc.InterruptsHeld(), _shared_lock:
        if _shared is not None and not _shared.is_alive:
            _shared.close()
            _shared = None
        if _shared is None:
            _shared = Launcher()
            # It would end with us in any case, but Python would warn of what is still open.
            atexit.register(_shared.close)
        return _shared


def serve(descriptor: str, program: str) -> None:
    """Be the launcher process, until the program at the other end of the socket is gone."""
    control = _socket.socket(fileno=int(descriptor))
    try:
        program_watch = os.pidfd_open(int(program))
    except ProcessLookupError:
        return
    confine.guard_program()  # loaded once, here: each child would have to load it again, and may not be allowed to
    # Garbage collection writes to every object: that copies the memory pages which a new child shares with us.
    gc.disable()
    gc.freeze()
    _LauncherService(control, program_watch).serve()


def _send_message(connection: _socket.socket, message: bytes, descriptors: Sequence[int]) -> None:
    launch.send_descriptors(connection, len(message).to_bytes(4, "big"), descriptors)
    connection.sendall(message)


def _receive_message(connection: _socket.socket) -> tuple[bytes, list[int]] | None:
    """Receive a message with its descriptors, or None if the other end is gone."""
    head, descriptors = launch.receive_descriptors(connection, 4, 6)
    size, message = int.from_bytes(head, "big"), b""
    while len(message) < size:
        piece = connection.recv(size - len(message))
        if not piece:
            return None
        message += piece
    return (message, descriptors) if head else None


def _load_plan(data: bytes, prepared: launch.Plan | None = None) -> launch.Plan:
    """Return the plan in a message; if it shows the host as the prepared one does, reuse the operations of that."""
    fields = marshal.loads(data)  # noqa: S302 - our own
    rows, count = fields["mounts"], fields.get("host_mount_count", 0)
    if prepared is not None and rows[:count] == mounts.to_rows(prepared.host_mounts):
        host_mounts = prepared.host_mounts
    else:
        host_mounts = mounts.from_rows(rows[:count])
    fields["mounts"] = (*host_mounts, *mounts.from_rows(rows[count:]))
    fields["owner"] = None if fields["owner"] is None else launch.Owner(**fields["owner"])
    return launch.Plan(**fields)


class _SpareProcess:
    """A forked process that has prepared for a plan like the last one, and waits for the plan of the next sandbox.

    It is in new namespaces, with the host mounted, which saves the next launch that work. It releases the mounts of the
    sandboxes that run now: otherwise those would last as long as it waits.
    """

    def __init__(self, key: Any, last_plan: bytes, running: Sequence[launch.RunningSandbox]) -> None:
        self.preparation_key = key
        self._last_plan = last_plan
        self._running = running
        self._orders, waiting = _socket.socketpair()
        self._sandbox = launch.fork_sandbox(lambda link: self._wait(waiting, link))
        waiting.close()

    def _wait(self, waiting: _socket.socket, link: launch.ParentLink) -> NoReturn:
        self._orders.close()
        for sandbox in self._running:
            sandbox.release_mounts()
        libc.end_with_parent(link.parent, _SIGKILL)
        preparation = launch.prepare(_load_plan(self._last_plan))
        order = _receive_message(waiting)
        if order is None or len(order[1]) < 3:
            os._exit(125)
        plan, streams = order
        launch.become_sandbox(_load_plan(plan, preparation.plan), streams, link, preparation)

    def become_sandbox(self, plan: bytes, streams: list[int]) -> launch.RunningSandbox:
        """Send it the plan; if it has died meanwhile, that shows when its sandbox is polled."""
        try:
            _send_message(self._orders, plan, streams)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self._orders.close()
        return self._sandbox

    def discard(self) -> None:
        """End it unused."""
        self._orders.close()
        self._sandbox.discard()


def _send_exit(channel: _socket.socket, end: process.Exit) -> None:
    """Tell the program how a sandbox ended, if it still wants to know."""
    try:
        launch.send_descriptors(channel, marshal.dumps(end.fields()), end.descriptors)
    except (BrokenPipeError, ConnectionResetError):
        return


class _LauncherService:
    """The launcher's side: one thread with one poll loop for any number of sandboxes."""

    def __init__(self, control: _socket.socket, program_watch: int) -> None:
        self._control = control
        # Needed besides the socket: forks of the program may keep the other end of that open.
        self._program_watch = program_watch
        self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)
        self._poll.register(program_watch, select.POLLIN)
        self._poll.register(self._mounts, select.POLLPRI)
        # Both by the descriptor that is polled: the sandbox's own, and that of its channel to the program.
        self._sandboxes: dict[int, tuple[launch.RunningSandbox, _socket.socket]] = {}
        self._channels: dict[int, tuple[launch.RunningSandbox, _socket.socket]] = {}
        # Closed later: while something that they watch is still mounted, closing one takes ten milliseconds.
        self._unmount_watches: list[int] = []
        self._spare: _SpareProcess | None = None
        self._last_plan: tuple[Any, bytes] = (), b""  # with its preparation key: the next plan is likely to be like it

    def serve(self) -> None:
        """Start and attend sandboxes until the program ends; then end all of them."""
        while True:
            ready = self._poll.poll(None if self._spare is None else _SPARE_IDLE_MS)
            if not ready or self._mounts in dict(ready):
                # The spare process has the mounts of before, and keeps in use what somebody has just unmounted.
                self._drop_spare()
            for fd, _ in ready:
                if fd == self._program_watch or (fd == self._control.fileno() and not self._accept()):
                    self._end_all()
                    return
                if fd in self._channels:
                    self._handle_request(fd)
                elif fd in self._sandboxes:
                    self._advance(fd)

    def _end_all(self) -> None:
        """Kill every sandbox and wait until it is gone: a bubblewrap that died with us would leave a half-made one."""
        self._drop_spare()
        for fd in (self._program_watch, self._control.fileno(), self._mounts, *self._channels):
            self._poll.unregister(fd)
        self._channels.clear()
        self._last_plan = (), b""  # no more spares
        for sandbox, _ in self._sandboxes.values():
            sandbox.kill()
        while self._sandboxes:
            for fd, _ in self._poll.poll():
                self._advance(fd)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.discard()
            self._spare = None

    def _accept(self) -> bool:
        """Start the sandbox of one request; return False if the program is gone."""
        received = _receive_message(self._control)
        if received is None:
            return False
        message, descriptors = received
        if len(descriptors) < 4:
            for fd in descriptors:  # too many files are open here; the program sees the channel end
                os.close(fd)
            return True
        channel = _socket.socket(fileno=descriptors.pop())
        key, plan = marshal.loads(message)  # noqa: S302 - our own
        if self._spare is not None and self._spare.preparation_key != key:
            self._drop_spare()
        try:
            if self._spare is not None:
                sandbox = self._spare.become_sandbox(plan, descriptors)
            else:
                sandbox = launch.start(_load_plan(plan), descriptors)
        except OSError as error:  # too many processes or open files: the sandboxes that run go on
            _send_exit(channel, process.Exit(status=None, failure=f"starting: {error.strerror}"))
            return True
        finally:
            for fd in descriptors:
                os.close(fd)
        self._spare, self._last_plan = None, (key, plan)
        self._sandboxes[sandbox.fileno()] = self._channels[channel.fileno()] = sandbox, channel
        self._poll.register(sandbox.fileno(), select.POLLIN)
        self._poll.register(channel.fileno(), select.POLLIN)
        return True

    def _handle_request(self, fd: int) -> None:
        """Do what the program asks for one sandbox; kill that if the program has closed the channel."""
        sandbox, channel = self._channels[fd]
        try:
            request = channel.recv(1)
            if request == _ASK_INIT:
                channel.send(marshal.dumps(sandbox.init() or 0))
        except (BrokenPipeError, ConnectionResetError):
            request = b""  # the program has closed the channel before the answer
        if request == _INTERRUPT:
            sandbox.interrupt()
        elif request != _ASK_INIT:
            sandbox.kill()
            if not request:
                self._poll.unregister(fd)
                del self._channels[fd]

    def _advance(self, fd: int) -> None:
        sandbox, channel = self._sandboxes.pop(fd)
        self._poll.unregister(fd)
        end = sandbox.advance()
        if end is None:
            sandbox.keep_mounts()
            self._sandboxes[sandbox.fileno()] = sandbox, channel
            self._poll.register(sandbox.fileno(), select.POLLIN)
            return
        if channel.fileno() in self._channels:
            self._poll.unregister(channel.fileno())
            del self._channels[channel.fileno()]
            _send_exit(channel, end)
        channel.close()
        if end.home >= 0:
            os.close(end.home)
        if end.unmount_watch >= 0:
            self._unmount_watches.append(end.unmount_watch)
        if len(self._unmount_watches) > _MOST_WATCHES:
            os.close(self._unmount_watches.pop(0))
        sandbox.release_mounts()
        if self._spare is None and self._last_plan[0]:
            try:
                self._spare = _SpareProcess(*self._last_plan, [running for running, _ in self._sandboxes.values()])
            except OSError:
                return  # too many processes or open files: if that lasts, the next launch reports it
