"""The system calls that Python lacks, each raising OSError with the path it was about."""

from __future__ import annotations

import _ctypes
import _signal  # type: ignore[import-not-found] # what `signal` is made of, without the enums around it
import _thread
import _weakref
import errno
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from ctypes import c_char, c_char_p, c_int, c_long, c_uint, c_ulong, c_void_p
    from types import FrameType
    from typing import Any, Self
else:
    # These alone of `ctypes`, which makes forty such classes, and more, before it can be used.
    c_char, c_char_p, c_int, c_long, c_uint, c_ulong, c_void_p = (
        type(_ctypes._SimpleCData)(f"c_{code}", (_ctypes._SimpleCData,), {"_type_": code}) for code in "czilILP"
    )

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x8000000, 0x10000000, 0x40000000
MS_PRIVATE, MS_REC, MS_BIND, MS_REMOUNT, MNT_DETACH = 1 << 18, 0x4000, 0x1000, 32, 2
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOATIME, MS_NODIRATIME, MS_RELATIME = 1, 2, 4, 8, 1024, 2048, 1 << 21
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
NO_MOVE = "the file system can't move it"  # a directory of a container's image, for example
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT = 2, 4, 8, 16

# The same on every architecture.
_SYS_OPENAT2, _SYS_CREATE_RULESET, _SYS_RESTRICT_SELF, _SYS_FSPICK, _SYS_FSCONFIG = 437, 444, 446, 433, 431
_FSPICK_CLOEXEC, _FSPICK_EMPTY_PATH, _FSCONFIG_RECONFIGURE = 1, 8, 7
_LANDLOCK_VERSION, _SCOPE_ABSTRACT_SOCKETS, _PR_SET_NO_NEW_PRIVS = 1, 1, 38
_MSG_PEEK, _MSG_DONTWAIT = 2, 0x40
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, _STATX_SIZE = -100, 0x100, 0x800, 256
_OVERLAY_MAGIC = 0x794C7630
_IN_DELETE_SELF, _IN_UNMOUNT = 0x400, 0x2000
_SIG_BLOCK, _SIG_SETMASK = 0, 2
_SIGINT, _SIGPIPE, _SIGTERM, _SIGXFSZ = 2, 13, 15, 25


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = c_int


class _Library:
    """The C library: each function is looked up when it is first used."""

    def __getattr__(self, name: str) -> Any:
        try:
            function = _Function(_ctypes.dlsym(_HANDLE, name))
        except OSError as error:
            raise AttributeError(name) from error
        setattr(self, name, function)
        return function


_HANDLE = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # this program and all it has loaded
_libc = _Library()
_libc.mount.argtypes = [c_char_p, c_char_p, c_char_p, c_ulong, c_char_p]
_libc.renameat2.argtypes = [c_int, c_char_p, c_int, c_char_p, c_uint]
_libc.signal.argtypes = [c_int, c_void_p]
_libc.signal.restype = c_void_p
_libc.syscall.restype = c_long
_libc.getrlimit.argtypes = _libc.setrlimit.argtypes = [c_int, c_void_p]


def _check(result: int, subject: bytes | str = "") -> int:
    if result < 0:
        number = _ctypes.get_errno()
        raise OSError(number, os.strerror(number), subject)
    return result


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def setns(namespace: int, kind: int) -> None:
    """Move this process into a namespace that a descriptor names."""
    _check(_libc.setns(namespace, kind), "setns")


def mount(source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes | None) -> None:
    """Mount a file system in this process's mount namespace."""
    _check(_libc.mount(source, target, kind, flags, options), target)


def umount(target: bytes, flags: int = 0) -> None:
    """Unmount what is mounted at a path."""
    _check(_libc.umount2(target, flags), target)


def prctl(option: int, value: int) -> None:
    """Set one attribute of this process."""
    _check(_libc.prctl(option, value, 0, 0, 0), "prctl")


def end_with(parent: int, number: int) -> None:
    """Have this process sent a signal when the one that forked it ends; end at once where it has ended already.

    Change of rights, such as entering a user namespace, takes that back: it comes after those.
    """
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(125)


def renameat2(old_dir: int, old: bytes, new_dir: int, new: bytes, flags: int) -> None:
    """Rename between two directories: exchange the two, or refuse to replace."""
    if _libc.renameat2(old_dir, old, new_dir, new, flags):
        number = _ctypes.get_errno()
        reason = NO_MOVE if number == errno.EXDEV else os.strerror(number)
        raise OSError(number, reason, old, None, new)


def exchanged(one: int, other: int, name: bytes) -> bool:
    """Swap the entries that two directories have at a name; return False if that could not be done."""
    return bool(_libc.renameat2(one, name, other, name, RENAME_EXCHANGE) == 0)


def _packed(*numbers: int) -> bytes:
    """Return a structure of numbers of 64 bits, as the kernel reads it."""
    return b"".join(number.to_bytes(8, sys.byteorder) for number in numbers)


def openat2(directory: int, path: bytes, flags: int, resolve: int) -> int:
    """Open a path below a directory descriptor under rules of resolution; returns a descriptor."""
    how = _packed(flags | os.O_CLOEXEC, 0, resolve)
    return _check(_libc.syscall(_SYS_OPENAT2, directory, path, how, len(how)), path)


def unmount_watch(places: Iterable[bytes]) -> int:
    """Return a descriptor by which is told when file systems are gone for everybody; it does not keep them."""
    watch = _check(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), "inotify")
    try:
        for place in places:
            _check(_libc.inotify_add_watch(watch, place, _IN_DELETE_SELF), place)  # and that it is unmounted, always
    except OSError:
        os.close(watch)
        raise
    return watch


def count_unmounted(watch: int) -> int:
    """Return how many of them have gone since this was asked last."""
    try:
        events = os.read(watch, 1 << 16)
    except BlockingIOError:
        return 0
    # Each is of four numbers, and nothing else: a directory that is watched itself has no name.
    masks = (int.from_bytes(events[at + 4 : at + 8], sys.byteorder) for at in range(0, len(events), 16))
    return sum(1 for mask in masks if mask & _IN_UNMOUNT)


def reconfigure(place: int) -> None:
    """Mount the file system of a place anew, as it is: it forgets all that it has looked up and nobody uses."""
    flags = _FSPICK_CLOEXEC | _FSPICK_EMPTY_PATH
    with Closing(_check(_libc.syscall(_SYS_FSPICK, place, b"", flags), "fspick")) as context:
        _check(_libc.syscall(_SYS_FSCONFIG, context, _FSCONFIG_RECONFIGURE, None, None, 0), "fsconfig")


def landlock_version() -> int:
    """Return the version of the interface that this kernel has; less than one is none."""
    return int(_libc.syscall(_SYS_CREATE_RULESET, None, 0, _LANDLOCK_VERSION))


def scope_abstract_sockets() -> None:
    """Keep this process, and all it starts, from abstract sockets that it, or they, did not make.

    Only where the guard does not: on top of this ruleset, its own would deny every move to another directory.
    """
    wanted = _packed(0, 0, _SCOPE_ABSTRACT_SOCKETS)
    ruleset = _check(_libc.syscall(_SYS_CREATE_RULESET, wanted, len(wanted), 0), "landlock")
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _check(_libc.syscall(_SYS_RESTRICT_SELF, ruleset, 0), "landlock")
    os.close(ruleset)


def tee(source: int, sink: int, size: int, flags: int) -> int:
    """Copy what waits in one pipe to another, and leave it there; returns how much."""
    return _check(_libc.tee(source, sink, c_ulong(size), flags), "tee")


def peek(source: int, size: int) -> bytes:
    """Return what waits at a socket, and leave it there."""
    answer = (c_char * size)()
    length = _check(_libc.recv(source, answer, c_ulong(size), _MSG_PEEK | _MSG_DONTWAIT), "recv")
    return answer.raw[:length]


def born_ns(path: bytes) -> int:
    """Return when a directory was made, in nanoseconds; 0 where the file system, or the C library, can't tell."""
    statx = getattr(_libc, "statx", None)
    answer = (c_char * _STATX_SIZE)()
    if statx is None or statx(_AT_FDCWD, path, _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, answer):
        return 0
    if not int.from_bytes(answer.raw[0:4], "little") & _STATX_BTIME:
        return 0
    seconds, nanoseconds = (int.from_bytes(answer.raw[at : at + size], "little") for at, size in ((80, 8), (88, 4)))
    return seconds * 1_000_000_000 + nanoseconds


def is_overlay(path: bytes) -> bool:
    """Return True if a path is in an overlay."""
    answer = (c_char * _STATX_SIZE)()
    _check(_libc.statfs(path, answer), path)
    return int.from_bytes(answer.raw[0:4], "little") == _OVERLAY_MAGIC


def lower_limit(number: int, value: int, *, at_once: bool = False) -> None:
    """Lower a resource limit of this process for good; one that is lower already stays.

    What holds for now may be lower than what is allowed; `at_once` makes the two the same.
    """
    pair = (c_ulong * 2)()
    _check(_libc.getrlimit(number, pair), "getrlimit")
    pair[1] = min(pair[1], value)
    pair[0] = pair[1] if at_once else min(pair[0], value)
    _check(_libc.setrlimit(number, pair), "setrlimit")


def lower_limit_to_part(number: int, part: int) -> None:
    """Lower a resource limit of this process, for good, to one of so many parts of what it is."""
    pair = (c_ulong * 2)()
    _check(_libc.getrlimit(number, pair), "getrlimit")
    pair[0] = pair[1] = pair[0] // part
    _check(_libc.setrlimit(number, pair), "setrlimit")


def default_signals() -> None:
    """Return the next program the signals it expects: Python ignores two of them, and some may be held."""
    for number in (_SIGPIPE, _SIGXFSZ):
        _libc.signal(number, None)
    _libc.pthread_sigmask(_SIG_SETMASK, (c_ulong * 16)(), None)


class InterruptsHeld:
    """Keeps Ctrl-C and SIGTERM pending for a while, so that bookkeeping is never cut in half.

    In a program with threads they come to another one, and Python calls the main thread's handler all the same: that
    one is replaced meanwhile. Nor does it look for garbage: the records of many thousand changes are none, and it costs
    a fifth.
    """

    def __init__(self) -> None:
        self._before: Any = (c_ulong * 16)()
        self._process = os.getpid()
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._came: list[int] = []
        self._collects = False

    def __enter__(self) -> InterruptsHeld:
        _libc.pthread_sigmask(_SIG_BLOCK, None, self._before)
        self.hold()
        self._collects = gc.isenabled()
        gc.disable()
        return self

    def let_in(self) -> None:
        """Let them in again until `hold`: nothing is half done that they could cut."""
        _libc.pthread_sigmask(_SIG_SETMASK, self._before, None)
        while self._handlers:
            _signal.signal(*self._handlers.popitem())
        while self._came:
            _signal.raise_signal(self._came.pop())

    def hold(self) -> None:
        """Keep them pending from here on."""
        for number in (_SIGINT, _SIGTERM):
            handler = _signal.getsignal(number)
            if not callable(handler) or number in self._handlers:
                continue
            self._handlers[number] = handler
            try:
                _signal.signal(number, self._note)
            except ValueError:  # not the main thread, and only that one calls a handler
                del self._handlers[number]
        held = (c_ulong * 16)()
        held[0] = 1 << (_SIGINT - 1) | 1 << (_SIGTERM - 1)
        _libc.pthread_sigmask(_SIG_BLOCK, held, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._process:
            self._came.append(number)
        else:  # forked meanwhile, by another thread
            self._handlers[number](number, frame)

    def __exit__(self, *_error: object) -> None:
        if self._collects:
            gc.enable()
        self.let_in()


# What a fork of this process waits for. What another thread was doing then, nobody would end in the child.
_locks: set[Any] = set()
_taken: list[Any] = []
before_forks: list[Callable[[], object]] = []  # called when nobody else is at work, and only then
_FORK_WAITS_S, _AT_ONCE_S = 5.0, 0.02  # after the first, the child is left to its luck
_becomes_another = False


def lock() -> Any:
    """Make a lock that a fork of this process waits for."""
    made = _thread.RLock()
    _locks.add(_weakref.ref(made, _locks.discard))
    return made


def fork() -> int:
    """Fork a child that becomes another program at once: it uses nothing of ours, so nothing is waited for."""
    global _becomes_another
    _becomes_another = True
    try:
        return os.fork()
    finally:
        _becomes_another = False


def _take_locks() -> None:
    tries = 0 if _becomes_another else int(_FORK_WAITS_S / _AT_ONCE_S)
    while tries:
        if _all_taken():
            for act in before_forks:
                act()
            return
        tries -= 1  # somebody who has one of them waits for another: let them


def _all_taken() -> bool:
    taken: list[Any] = []
    # Whoever had one of these meanwhile may have made another.
    while new := [made for each in tuple(_locks) if (made := each()) is not None and made not in taken]:
        for made in new:
            if not made.acquire(True, _AT_ONCE_S):
                for each in taken:
                    each.release()
                return False
            taken.append(made)
    _taken[:] = taken
    return True


def _give_locks_back() -> None:
    while _taken:
        _taken.pop().release()


os.register_at_fork(before=_take_locks, after_in_parent=_give_locks_back, after_in_child=_give_locks_back)


class Closing:
    """A descriptor for the time of a `with` block, which gets its number."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_error: object) -> None:
        os.close(self._fd)


class Closable:
    """What lets go of what it holds by `close`, or at the end of a `with` block."""

    def close(self) -> None:
        """Let go of it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Descriptors(Closable, list[int]):
    """Descriptors that are closed together: by `close`, at the end of a `with` block, or when one can't be opened."""

    def __init__(self, opening: Iterable[int] = ()) -> None:
        super().__init__()
        try:
            self.extend(opening)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of all."""
        while self:
            os.close(self.pop())


def read_all(fd: int) -> bytes:
    """Read to the end."""
    text = b""
    while piece := os.read(fd, 1 << 16):
        text += piece
    return text


def append(file: int, data: bytes) -> None:
    """Add to the end of a file: all of it, or nothing where the disk is full."""
    end, left = os.fstat(file).st_size, memoryview(data)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        os.ftruncate(file, end)
        raise


def read(path: str, directory: int | None = None) -> bytes:
    """Return what a small file says; nothing where it can't be had, as of a process that has ended."""
    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)) as file:
            return read_all(file)
    except OSError:
        return b""


def link_target(path: str, directory: int | None = None) -> str:
    """Return where a link leads; "" for anything else, and where nothing is."""
    try:
        return os.readlink(path, dir_fd=directory)
    except OSError:
        return ""


def remove_file(path: str) -> bool:
    """Remove a file; False where there is none, or somebody else was faster."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def keeps_attributes(place: str) -> bool:
    """Return True if what lies there can have attributes of a user's own. In tmpfs it can since Linux 6.6."""
    try:
        os.getxattr(place, "user.overlay.opaque")
    except OSError as error:
        return error.errno != errno.EOPNOTSUPP
    return True


def listxattr(place: int | str, *, follow_symlinks: bool = True) -> list[str]:
    """List the extended attributes of something; none on a file system that knows no such thing, as sshfs does not."""
    try:
        return os.listxattr(place, follow_symlinks=follow_symlinks)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return []


def process_stat(process: str, directory: int | None = None) -> list[bytes]:
    """Return what the kernel tells of a process, or of a thread, at a place in /proc: the fields after its name.

    That may hold anything. Of one that has ended, there are none.
    """
    return read(f"{process}/stat", directory).rpartition(b")")[2].split()
