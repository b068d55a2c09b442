"""Namespaces of our own: entering them, what is mounted there, and a network with no way out but ours."""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select
import stat
import sys

from fumehood.core.changes import directories_above
from fumehood.core.value import Value
from fumehood.linux import libc
from fumehood.linux.bwrap import programs
from fumehood.linux.libc import Closing, Descriptors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def enter_namespaces(
    kinds: int = libc.CLONE_NEWNS, *, privileged: bool, groups: tuple[int, ...] = (), is_inner: bool = False
) -> None:
    """Move this process into namespaces of its own, and into a user namespace where it has no privilege.

    Ids are mapped to themselves, so that everything keeps its owner: all that there are for a root that may do so;
    else one's own, and `groups`, for which newgidmap must have the system's leave. The kernel's overlay can't change
    what belongs to an id without a mapping. An inner user namespace has the ids of the one around it, where we may give
    them; the process has no say any more in that.
    """
    if privileged:
        libc.unshare(kinds)
    else:
        _enter_user_namespace(kinds, groups, is_inner=is_inner)
    if kinds & libc.CLONE_NEWNS:
        libc.mount(b"none", b"/", None, libc.MS_REC | libc.MS_PRIVATE, None)


def _enter_user_namespace(more: int, groups: tuple[int, ...], *, is_inner: bool) -> None:
    user, group = os.getuid(), os.getgid()
    own = {"uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    missing: Sequence[str] = tuple(own)
    if user == 0 or (groups and is_inner):
        missing = _unshared_while(libc.CLONE_NEWUSER | more, _map_every_id)
    elif groups:
        missing = _unshared_while(libc.CLONE_NEWUSER | more, lambda process: _map_groups(process, (group, *groups)))
    else:
        libc.unshare(libc.CLONE_NEWUSER | more)
    if "gid_map" in missing:
        _write("/proc/self/setgroups", "deny")
    for name in missing:
        _write(f"/proc/self/{name}", own[name])


# A network namespace that the commands of one session share: each of them reaches what listens at 127.0.0.1 there.
#
# It belongs to a user namespace around those of the commands: who has the same user outside can enter both. A command
# has a user namespace of its own in there, where its processes are counted.


def enter_session(network: int, *, privileged: bool, groups: tuple[int, ...] = ()) -> None:
    """Move this process into a session's network namespace, or into a new one (-1)."""
    if network >= 0:
        join_network(network, privileged=privileged)
        return
    enter_namespaces(libc.CLONE_NEWNET, privileged=privileged, groups=groups)
    _bring_up_loopback()


def join_network(network: int, *, privileged: bool) -> None:
    """Move this process into a network namespace, and into the user namespace that it belongs to."""
    if not privileged:
        around = fcntl.ioctl(network, _NS_GET_USERNS)
        libc.setns(around, libc.CLONE_NEWUSER)
        os.close(around)
    libc.setns(network, libc.CLONE_NEWNET)


def look_anew(process: int, paths: Sequence[str]) -> None:
    """Have overlays that a process sees at some paths show what lies below them now, and not what they remember.

    Where it sees nothing, nothing is done.
    """
    with Descriptors() as opened:
        opened.append(os.open(f"/proc/{process}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        for path in paths:
            try:
                # The process may have put links there.
                opened.append(libc.openat2(opened[0], os.fsencode(path), os.O_PATH, libc.RESOLVE_IN_ROOT))
            except OSError:
                continue
        overlays = [place for place in opened[1:] if libc.is_overlay(b"/proc/self/fd/%d" % place)]
        try:
            for place in overlays:
                libc.reconfigure(place)
        except PermissionError:  # they belong to a user namespace of ours
            opened.append(_outermost(process))
            opened.append(os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
            child = libc.fork()
            if child == 0:
                try:
                    libc.setns(opened[-2], libc.CLONE_NEWUSER)
                    libc.setns(opened[-1], libc.CLONE_NEWNS)
                    for place in overlays:
                        libc.reconfigure(place)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)


def _outermost(process: int) -> int:
    """Open the user namespace around a process that is a child of ours."""
    own, around = os.stat("/proc/self/ns/user"), os.open(f"/proc/{process}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    while not os.path.samestat(os.fstat(parent := fcntl.ioctl(around, _NS_GET_PARENT)), own):
        os.close(around)
        around = parent
    os.close(parent)
    return around


def _unshared_while(flags: int, map_ids: Callable[[int], Sequence[str]]) -> Sequence[str]:
    """Enter namespaces while a child that stays outside maps ids into them; return the maps that it left out.

    Once inside, a process may map nothing but itself.
    """
    process = os.getpid()
    ours, theirs = _socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        try:
            if theirs.recv(1):  # else there is nothing to map into
                theirs.send(" ".join(map_ids(process)).encode())
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or errno.EPERM)
        finally:
            os._exit(errno.EPERM)
    theirs.close()
    try:
        libc.unshare(flags)
        ours.send(b".")
    finally:
        ours.shutdown(_socket.SHUT_WR)
        missing = ours.recv(64).decode().split()
        ours.close()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, os.strerror(code), "mapping ids")
    return missing


def _map_every_id(process: int) -> Sequence[str]:
    """Map all ids of this namespace into that of a process; return the maps that the kernel refused."""
    refused = []
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}", encoding="ascii") as ours:
            ranges = [line.split() for line in ours]
        try:
            _write(f"/proc/{process}/{name}", "\n".join(f"{first} {first} {count}" for first, _, count in ranges))
        except PermissionError:
            refused.append(name)
    return refused


def _map_groups(process: int, groups: Sequence[int]) -> Sequence[str]:
    """Have newgidmap map groups into the namespace of a process; its user is left to be mapped by itself."""
    quiet = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):  # the command's own
        os.dup2(quiet, fd)
    newgidmap = next(iter(programs("newgidmap")), "")
    if not newgidmap:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "newgidmap")
    ranges = [str(number) for group in groups for number in (group, group, 1)]
    status = os.waitpid(os.posix_spawn(newgidmap, [newgidmap, str(process), *ranges], os.environ), 0)[1]
    if status:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), "newgidmap")
    return ("uid_map",)


def _write(path: str, text: str) -> None:
    with Closing(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as file:
        os.write(file, text.encode())


def mounts_inside(root: str) -> list[str]:
    """Return the mount points that lie below a directory: an overlay of it would not show them."""
    prefix = os.fsencode(root).rstrip(b"/") + b"/"
    return sorted({os.fsdecode(point) for point, _ in mount_table() if point.startswith(prefix)})


def possible_roots(root: str) -> list[str]:
    """Return the mount points below a root that can be roots of their own: directories, not mounted read-only."""
    return [each for each in mounts_inside(root) if os.path.isdir(each) and not why_no_root(each, root)]


def why_no_root(directory: str, root: str) -> str:
    """Say why a directory in a root is none of its own; nothing for a mount or a subvolume that can be written."""
    def is_subvolume() -> bool:  # of btrfs: it is on another device than the directory it lies in
        return os.lstat(directory).st_dev != os.lstat(os.path.dirname(directory)).st_dev

    if directory == root or not (directory in mounts_inside(root) or is_subvolume()):
        return f"is writable already: it lies in {root}"
    return "is mounted read-only" if os.statvfs(directory).f_flag & os.ST_RDONLY else ""


def mounts_are_locked(*, privileged: bool) -> bool:
    """Return True if what lies under a mount stays out of sight in a launch's namespace: where that has other mounts.

    The kernel locks together those that belong to another user namespace than the one that is entered.
    """
    return not privileged or libc.read("/proc/self/uid_map").split() != [b"0", b"0", b"%d" % (2**32 - 1)]


def mounts_below(roots: Sequence[str]) -> list[tuple[int, str]]:
    """Return other file systems in some roots: the number of the root, and the path in it."""
    return [
        (number, os.path.relpath(mount, root)) for number, root in enumerate(roots) for mount in mounts_inside(root)
    ]


OVERLAYS = ("overlay", "fuse.fuse-overlayfs")  # what a container lies on, by who runs it


def file_system(path: str) -> str:
    """Name the type of the file system that holds a directory."""
    real = os.fsencode(os.path.realpath(path)) + b"/"
    around = [(len(point), kind) for point, kind in mount_table() if real.startswith(point.rstrip(b"/") + b"/")]
    return max(reversed(around), key=lambda each: each[0], default=(0, "an unknown file system"))[1]


def devices_below(roots: Sequence[str], paths: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return where another device than that of their root begins, among some paths and what lies above them.

    A subvolume of btrfs has one of its own and is in no table of mounts; nothing can be renamed into it.
    """
    if all(kind != "btrfs" for _, kind in mount_table()):
        return []
    devices = [os.lstat(root).st_dev for root in roots]
    apart: dict[tuple[int, str], bool | None] = {}
    for number, path in paths:
        for each in (*reversed([*directories_above(path)]), path):
            if (number, each) not in apart:
                apart[number, each] = _is_apart(f"{roots[number]}/{each}", devices[number])
            if apart[number, each] is not False:
                break
    return [place for place, is_apart in apart.items() if is_apart]


def _is_apart(path: str, device: int) -> bool | None:
    """Say if a path is on another device; None where it is no directory, so that nothing lies in it."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return True if status.st_dev != device else False if stat.S_ISDIR(status.st_mode) else None


class _MountTable:
    """Where something is mounted, read again only when the kernel says that it changed."""

    def __init__(self) -> None:
        self._process = 0
        self._table = -1
        self._entries: list[tuple[bytes, str]] = []
        self._lock = libc.lock()

    def __call__(self) -> list[tuple[bytes, str]]:
        """Return every mount point with the kind of its file system; the same list as long as nothing changes."""
        with self._lock:
            if self._process != os.getpid():
                # A child of the one who opened it, or the first use.
                self._process, self._table = os.getpid(), os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
                self._entries = []
            poll = select.poll()
            poll.register(self._table, select.POLLERR | select.POLLPRI)
            if poll.poll(0) or not self._entries:
                with open("/proc/self/mountinfo", "rb") as table:
                    self._entries = [
                        (_unescaped(line.split(b" ", 5)[4]), line.rpartition(b" - ")[2].split(b" ", 1)[0].decode())
                        for line in table
                    ]
            return self._entries


mount_table = _MountTable()


def _unescaped(point: bytes) -> bytes:
    """Undo the octal escapes that the kernel writes for white space and backslashes."""
    for escape, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        point = point.replace(escape, byte)
    return point


class Layer(Value):
    """Where one root's writes go: `below` are held layers that the command still sees, topmost first."""

    root: str
    upper: str
    work: str
    merged: str
    below: tuple[str, ...] = ()
    mode: int = 0  # that of what lies below, when the command began; 0 where that is not known any more
    frozen: str = ""  # a copy of the root that is seen in its place
    inner: tuple[str, ...] = ()  # paths below it that are roots of their own
    is_overlaid: bool = False  # by the kernel, whatever the run's way of capturing is

    @property
    def lowers(self) -> tuple[str, ...]:
        """All that lies under the upper directory, topmost first."""
        return (*self.below, self.frozen or self.root)


# A network namespace with nothing in it but a way out that we hold the other end of.
#
# A listening socket belongs to the namespace it was made in, wherever its descriptor goes: it is made inside and
# served outside, so no process of ours is inside.

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _UP = 0x8913, 0x8914, 0x1
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_NS_GET_USERNS, _NS_GET_PARENT = 0xB701, 0xB702
_BACKLOG = 256
_ANY, _LOOPBACK = "0.0.0.0", "127.0.0.1"  # noqa: S104 - of a namespace that nobody else is in
_LONGEST_TABLE = 1 << 14
_RANGE, _DNS = ("198.18.0.1", "255.254.0.0"), 53


def listeners(places: Sequence[tuple[str, int]], resolvers: Sequence[str] = (), *, is_alone: bool = True) -> list[int]:
    """Listen at each address and port in this namespace, whose loopback is brought up; return the descriptors.

    `resolvers` are addresses where names are asked for; what they are told there lies in a range of this namespace.
    Where commands of a session are too, they may have a port already.
    """
    import socket  # takes longer to load than all else that a launch does

    _bring_up_loopback()
    everywhere = {port for address, port in places if address == _ANY}
    made: list[socket.socket] = []
    for address, port in places:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        if is_alone and port in everywhere:  # and perhaps there is one for loopback, which the kernel then prefers
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if ":" in address:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            listener.bind((address, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            if is_alone or error.errno != errno.EADDRINUSE:
                raise
        else:
            made.append(listener)
    if resolvers:
        _add_address(0, *_RANGE)
        for address in resolvers:
            if not address.startswith("127."):
                # By its own name: others may have added more.
                _add_address(int.from_bytes(socket.inet_aton(address), "big"), address, "255.255.255.255")
            made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            made[-1].bind((address, _DNS))
    return [each.detach() for each in made]


def _bring_up_loopback() -> None:
    any_socket = _socket.socket()
    name = b"lo".ljust(16, b"\0")
    answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFFLAGS, name + bytes(24))
    flags = int.from_bytes(answer[16:18], sys.byteorder) | _UP
    fcntl.ioctl(any_socket.fileno(), _SIOCSIFFLAGS, name + flags.to_bytes(2, sys.byteorder) + bytes(22))
    any_socket.close()
    try:
        # What commands send over it must wait for no timer, as with BBR it would.
        _write("/proc/sys/net/ipv4/tcp_congestion_control", "reno")
    except OSError:
        return  # read-only, as in a container: what is sent is then as slow as the host's own over loopback


def _add_address(number: int, address: str, mask: str) -> None:
    """Give loopback one more address; of a range, every one is then its own."""
    import socket
    import struct

    name = f"lo:{number:x}".encode().ljust(16, b"\0")
    with socket.socket() as any_socket:
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, mask)):
            place = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(any_socket, request, name + place + bytes(8))


class TriesToLeave:
    """How often something in a process's network namespace has tried to reach what no route leads to.

    The open files keep the namespace, and what it has counted, when the process is gone. Where commands share one, each
    may be told of another's tries while it runs.
    """

    def __init__(self) -> None:
        self._files = Descriptors()
        self._before = 0
        self._has_begun = False

    def begin(self, process: int | None, gate: int) -> None:
        """Count from now on, once the process is known, which waits at a gate: it could be over before we look."""
        if process is None or self._has_begun:
            return
        self._has_begun = True
        try:
            for name in ("snmp", "snmp6"):
                self._files.append(os.open(f"/proc/{process}/net/{name}", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            pass  # the kernel knows no IPv6
        self._before = self._count()
        os.write(gate, b".")

    def end(self) -> int:
        """Return how many there were, and let go of the namespace."""
        tries = self._count() - self._before
        self._files.close()
        return tries

    def _count(self) -> int:
        tries = 0
        for file in self._files:
            words = os.pread(file, _LONGEST_TABLE, 0).split()
            if words[0] == b"Ip:":  # a line of names, then one of numbers, which begins with the same word
                tries += int(words[words.index(b"OutNoRoutes") + words.index(b"Ip:", 1)])
            else:
                tries += int(words[words.index(b"Ip6OutNoRoutes") + 1])
        return tries


def loopback_listeners() -> tuple[tuple[str, int], ...]:
    """Return the loopback addresses and ports at which programs of this machine listen now."""
    places: dict[tuple[str, int], None] = {}
    for table, meant in _TABLES:
        try:
            with open(table) as file:
                next(file)
                for row in file:
                    _, local, _, state, _ = row.split(None, 4)
                    if state != _LISTENING:
                        break  # listeners come first, and there may be very many connections
                    address, _, port = local.partition(":")
                    places |= dict.fromkeys((each, int(port, 16)) for each in meant.get(address, ()))
        except FileNotFoundError:
            continue  # a kernel without IPv6
    return tuple(places)


def as_listed(*words: bytes) -> str:
    """Write an address as the kernel lists it: four bytes at a time, each four as one number of this machine's."""
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


_LISTENING = "0A"
_NONE, _OWN = bytes(4), b"\x7f\0\0\1"
# A program that listens at no particular IPv6 address mostly listens at every IPv4 address too.
_TABLES = (
    ("/proc/net/tcp", {as_listed(_OWN): (_LOOPBACK,), as_listed(_NONE): (_LOOPBACK,)}),
    (
        "/proc/net/tcp6",
        {
            as_listed(_NONE, _NONE, _NONE, b"\0\0\0\1"): ("::1",),
            as_listed(_NONE, _NONE, _NONE, _NONE): (_LOOPBACK, "::1"),
            as_listed(_NONE, _NONE, b"\0\0\xff\xff", _OWN): (_LOOPBACK,),
        },
    ),
)

# Where only bubblewrap may make user namespaces, the listeners are made by a program of the host's inside the
# sandbox, before the command takes its place.
_INSIDE = """
import os, signal, socket, sys
channel, count = int(sys.argv[1]), int(sys.argv[2])
places, command = sys.argv[3 : 3 + count], sys.argv[3 + count :]
made = []
for place in places:
    address, _, port = place.rpartition(":")
    made.append(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
    try:
        made[-1].bind((address, int(port)))
    except PermissionError:  # below 1024, which nobody inside may have; those outside count on one for each
        made[-1].bind((address, 0))
    made[-1].listen(256)
with socket.socket(fileno=channel) as outside:
    socket.send_fds(outside, [b"!"], [each.fileno() for each in made])
for each in made:
    each.close()
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
os.execv(command[0], command)
"""
CHANNEL_FD = 7


def from_inside(places: Sequence[tuple[str, int]], command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command that hands out listeners by CHANNEL_FD and then becomes this one."""
    # The interpreter itself: a virtual environment's may lie where commands see nothing.
    python = os.path.realpath(sys.executable)
    listed = [f"{address}:{port}" for address, port in places]
    return (python, "-I", "-S", "-c", _INSIDE, str(CHANNEL_FD), str(len(listed)), *listed, *command)
