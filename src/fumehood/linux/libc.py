"""Close to the kernel: system calls that Python lacks, held signals, locks and forks, descriptors, small files.

A system call that fails raises OSError with the path that it was about.
"""

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
    # Not from `ctypes`: it makes forty such classes, and more, when it is imported.
    c_char, c_char_p, c_int, c_long, c_uint, c_ulong, c_void_p = (
        type(_ctypes._SimpleCData)(f"c_{code}", (_ctypes._SimpleCData,), {"_type_": code}) for code in "czilILP"
    )

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x8000000, 0x10000000, 0x40000000
MS_PRIVATE, MS_REC, MS_BIND, MS_REMOUNT, MNT_DETACH = 1 << 18, 0x4000, 0x1000, 32, 2
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOATIME, MS_NODIRATIME, MS_RELATIME = 1, 2, 4, 8, 1024, 2048, 1 << 21
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
_CANT_MOVE = "the file system can't move it"  # a directory of a container's image, for example
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
_SIGINT, _SIGQUIT, _SIGPIPE, _SIGTERM, _SIGXFSZ = 2, 3, 13, 15, 25


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
    """Move this process into the namespace of an open descriptor."""
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


def end_with_parent(parent: int, number: int) -> None:
    """Have the kernel send this process a signal when its parent ends; end at once if the parent has ended already.

    A change of rights, such as entering a user namespace, undoes this: call it after that.
    """
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(125)


def renameat2(old_dir: int, old: bytes, new_dir: int, new: bytes, flags: int) -> None:
    """Rename between two directories: exchange the two, or refuse to replace."""
    if _libc.renameat2(old_dir, old, new_dir, new, flags):
        number = _ctypes.get_errno()
        reason = _CANT_MOVE if number == errno.EXDEV else os.strerror(number)
        raise OSError(number, reason, old, None, new)


def try_exchange(first_directory: int, second_directory: int, name: bytes) -> bool:
    """Swap the entries that two directories have at a name; return False if that is not possible."""
    return bool(_libc.renameat2(first_directory, name, second_directory, name, RENAME_EXCHANGE) == 0)


def _pack_u64(*numbers: int) -> bytes:
    """Return a structure of 64-bit numbers, as the kernel reads it."""
    return b"".join(number.to_bytes(8, sys.byteorder) for number in numbers)


def openat2(directory: int, path: bytes, flags: int, resolve: int) -> int:
    """Open a path below a directory descriptor, under rules for symlinks; return a descriptor."""
    how = _pack_u64(flags | os.O_CLOEXEC, 0, resolve)
    return _check(_libc.syscall(_SYS_OPENAT2, directory, path, how, len(how)), path)


def watch_unmounts(paths: Iterable[bytes]) -> int:
    """Return a descriptor that tells when file systems are unmounted everywhere; it does not keep them mounted."""
    watch = _check(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), "inotify")
    try:
        for path in paths:
            _check(_libc.inotify_add_watch(watch, path, _IN_DELETE_SELF), path)  # _IN_UNMOUNT comes in any case
    except OSError:
        os.close(watch)
        raise
    return watch


def count_unmounted(watch: int) -> int:
    """Return how many file systems were unmounted since the last call."""
    try:
        events = os.read(watch, 1 << 16)
    except BlockingIOError:
        return 0
    # Each event is four numbers and nothing else: an event of a watched directory itself has no name.
    masks = (int.from_bytes(events[at + 4 : at + 8], sys.byteorder) for at in range(0, len(events), 16))
    return sum(1 for mask in masks if mask & _IN_UNMOUNT)


def refresh_file_system(descriptor: int) -> None:
    """Make the file system of a descriptor forget the entries that it has looked up and that nobody uses.

    This configures it anew, as it is.
    """
    flags = _FSPICK_CLOEXEC | _FSPICK_EMPTY_PATH
    with Closing(_check(_libc.syscall(_SYS_FSPICK, descriptor, b"", flags), "fspick")) as context:
        _check(_libc.syscall(_SYS_FSCONFIG, context, _FSCONFIG_RECONFIGURE, None, None, 0), "fsconfig")


def landlock_version() -> int:
    """Return the version of Landlock's interface that this kernel has; less than 1 if it has none."""
    return int(_libc.syscall(_SYS_CREATE_RULESET, None, 0, _LANDLOCK_VERSION))


def scope_abstract_sockets() -> None:
    """Keep this process, and all that it starts, from abstract sockets that none of them made.

    Only if the guard does not do it: on top of this ruleset, the guard's own would deny every move to another
    directory.
    """
    attributes = _pack_u64(0, 0, _SCOPE_ABSTRACT_SOCKETS)
    ruleset = _check(_libc.syscall(_SYS_CREATE_RULESET, attributes, len(attributes), 0), "landlock")
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _check(_libc.syscall(_SYS_RESTRICT_SELF, ruleset, 0), "landlock")
    os.close(ruleset)


def tee(source: int, sink: int, size: int, flags: int) -> int:
    """Copy data that waits in one pipe to another, and leave it in the first; return the number of bytes."""
    return _check(_libc.tee(source, sink, c_ulong(size), flags), "tee")


def peek(source: int, size: int) -> bytes:
    """Return data that waits in a socket, and leave it there."""
    answer = (c_char * size)()
    length = _check(_libc.recv(source, answer, c_ulong(size), _MSG_PEEK | _MSG_DONTWAIT), "recv")
    return answer.raw[:length]


def birth_time_ns(path: bytes) -> int:
    """Return when a directory was made, in nanoseconds; 0 if the file system, or the C library, can't tell."""
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


def lower_limit(number: int, value: int, *, sets_soft: bool = False) -> None:
    """Lower a resource limit of this process for good; a limit that is lower already stays.

    The soft limit, which is in force, may be lower than the hard one; `sets_soft` makes the two the same.
    """
    soft_and_hard = (c_ulong * 2)()
    _check(_libc.getrlimit(number, soft_and_hard), "getrlimit")
    soft_and_hard[1] = min(soft_and_hard[1], value)
    soft_and_hard[0] = soft_and_hard[1] if sets_soft else min(soft_and_hard[0], value)
    _check(_libc.setrlimit(number, soft_and_hard), "setrlimit")


def divide_limit(number: int, divisor: int) -> None:
    """Lower a resource limit of this process, for good, to a part of what is in force."""
    soft_and_hard = (c_ulong * 2)()
    _check(_libc.getrlimit(number, soft_and_hard), "getrlimit")
    soft_and_hard[0] = soft_and_hard[1] = soft_and_hard[0] // divisor
    _check(_libc.setrlimit(number, soft_and_hard), "setrlimit")


def default_signals() -> None:
    """Restore what the next program expects of signals: some may be held, and Python ignores two of them.

    A shell lets its background jobs ignore two more. The command has a process group of its own, so the terminal's
    Ctrl-C does not reach it anyway, and a person's `stop` should.
    """
    for number in (_SIGINT, _SIGQUIT, _SIGPIPE, _SIGXFSZ):
        _libc.signal(number, None)
    _libc.pthread_sigmask(_SIG_SETMASK, (c_ulong * 16)(), None)


class InterruptsHeld:
    """Keeps Ctrl-C and SIGTERM pending for a while, so that bookkeeping is never cut in half.

    If the program has threads, the signals come to another thread, and Python still calls the handler of the main
    thread: so the handler is replaced meanwhile. Garbage collection is off too: the records of many thousand changes
    are not garbage, and looking through them costs a fifth of the time.
    """

    def __init__(self) -> None:
        self._old_mask: Any = (c_ulong * 16)()
        self._pid = os.getpid()
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._noted: list[int] = []
        self._collected_garbage = False

    def __enter__(self) -> InterruptsHeld:
        _libc.pthread_sigmask(_SIG_BLOCK, None, self._old_mask)
        self.hold()
        self._collected_garbage = gc.isenabled()
        gc.disable()
        return self

    def release(self) -> None:
        """Let the signals through until `hold`: nothing is half done that they could cut."""
        _libc.pthread_sigmask(_SIG_SETMASK, self._old_mask, None)
        while self._handlers:
            _signal.signal(*self._handlers.popitem())
        while self._noted:
            _signal.raise_signal(self._noted.pop())

    def hold(self) -> None:
        """Keep the signals pending from now on."""
        for number in (_SIGINT, _SIGTERM):
            handler = _signal.getsignal(number)
            if not callable(handler) or number in self._handlers:
                continue
            self._handlers[number] = handler
            try:
                _signal.signal(number, self._note)
            except ValueError:  # this is not the main thread, and only that one calls handlers
                del self._handlers[number]
        mask = (c_ulong * 16)()
        mask[0] = 1 << (_SIGINT - 1) | 1 << (_SIGTERM - 1)
        _libc.pthread_sigmask(_SIG_BLOCK, mask, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._noted.append(number)
        else:  # forked meanwhile, by another thread
            self._handlers[number](number, frame)

    def __exit__(self, *_error: object) -> None:
        if self._collected_garbage:
            gc.enable()
        self.release()


# Locks that a fork of this process waits for: in the child, nobody would end what another thread was doing.
_locks: set[Any] = set()  # weak references
_locks_held_for_fork: list[Any] = []
before_forks: list[Callable[[], object]] = []  # called once all locks are held, so that no other thread is at work
_FORK_WAIT_S, _LOCK_WAIT_S = 5.0, 0.02  # for all locks, and for one; after the first, the child is left to its luck
_skips_locks = False


# A lock that Ctrl-C can't leave locked in a `with`. A `threading.Condition` is none: enter the lock that it is made of.
if sys.version_info < (3, 14):
    InterruptSafeLock = _thread.RLock
else:

    class InterruptSafeLock(_thread.RLock):
        """The same for Python 3.14, which may raise an interrupt between taking a lock and the block.

        The exit is RLock's own, for no interrupt can cut that.
        """

        def __enter__(self) -> bool:
            before = self._recursion_count()
            try:
                return self.acquire()
            except BaseException:
                if self._recursion_count() > before:
                    self.release()
                raise


def fork_safe_lock() -> Any:
    """Make a lock that a fork of this process waits for."""
    lock = InterruptSafeLock()
    _locks.add(_weakref.ref(lock, _locks.discard))
    return lock


def fork_without_locks() -> int:
    """Fork a child that becomes another program at once: it uses none of the locks, so they are not waited for."""
    global _skips_locks
    if _thread._count():
        import warnings

        # Python warns of the threads' locks. Since 3.15, where warnings are errors, that would take the place of the
        # child's number.
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning, r"fumehood\.linux\.libc")
    _skips_locks = True
    try:
        return os.fork()
    finally:
        _skips_locks = False


def _hold_locks() -> None:
    tries = 0 if _skips_locks else int(_FORK_WAIT_S / _LOCK_WAIT_S)
    while tries:
        if _try_hold_locks():
            for act in before_forks:
                act()
            return
        tries -= 1  # a thread that holds one of the locks may wait for another one: let it go on


def _try_hold_locks() -> bool:
    held: list[Any] = []
    # Again until there is no new lock: the holder of one may have made another meanwhile.
    while new := [lock for each in tuple(_locks) if (lock := each()) is not None and lock not in held]:
        for lock in new:
            if not lock.acquire(True, _LOCK_WAIT_S):
                for held_lock in held:
                    held_lock.release()
                return False
            held.append(lock)
    _locks_held_for_fork[:] = held
    return True


def _release_locks() -> None:
    while _locks_held_for_fork:
        _locks_held_for_fork.pop().release()


os.register_at_fork(before=_hold_locks, after_in_parent=_release_locks, after_in_child=_release_locks)


class Closing:
    """A descriptor that is closed at the end of a `with` block; the block gets its number."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_error: object) -> None:
        os.close(self._fd)


class Closable:
    """Something that is closed by `close`, or at the end of a `with` block."""

    def close(self) -> None:
        """Close or release everything that it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Descriptors(Closable, list[int]):
    """Descriptors that are closed together: by `close`, at the end of a `with` block, or when one can't be opened."""

    def __init__(self, descriptors: Iterable[int] = ()) -> None:
        super().__init__()
        try:
            self.extend(descriptors)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all."""
        while self:
            os.close(self.pop())


def read_all(fd: int) -> bytes:
    """Read a descriptor to the end."""
    text = b""
    while piece := os.read(fd, 1 << 16):
        text += piece
    return text


def append(file: int, data: bytes) -> None:
    """Add data to the end of a file: all of it, or nothing if the disk is full."""
    end, left = os.fstat(file).st_size, memoryview(data)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        os.ftruncate(file, end)
        raise


def read(path: str, directory: int | None = None) -> bytes:
    """Return the content of a small file; b"" if it can't be read, for example that of a process that has ended."""
    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)) as file:
            return read_all(file)
    except OSError:
        return b""


def link_target(path: str, directory: int | None = None) -> str:
    """Return where a symlink leads; "" for anything else, and if nothing is there."""
    try:
        return os.readlink(path, dir_fd=directory)
    except OSError:
        return ""


def remove_file(path: str) -> bool:
    """Remove a file; return False if there is none, or somebody else was faster."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def has_user_attributes(path: str) -> bool:
    """Return True if the file system of a path supports extended attributes of users; tmpfs does since Linux 6.6."""
    try:
        os.getxattr(path, "user.overlay.opaque")
    except OSError as error:
        return error.errno != errno.EOPNOTSUPP
    return True


def listxattr(path: int | str, *, follow_symlinks: bool = True) -> list[str]:
    """List extended attributes; there are none on a file system that does not support them, such as sshfs."""
    try:
        return os.listxattr(path, follow_symlinks=follow_symlinks)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return []


def process_stat(process: str, directory: int | None = None) -> list[bytes]:
    """Return the fields of `stat` for a process, or thread, by its directory in /proc; none if it has ended.

    The fields begin after the name, which may contain anything.
    """
    return read(f"{process}/stat", directory).rpartition(b")")[2].split()
