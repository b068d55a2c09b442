"""Namespaces of a launch: entering them, what is mounted there, and a network whose only way out is our proxy."""

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
from fumehood.linux.bwrap import trusted_programs
from fumehood.linux.libc import Closing, Descriptors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def enter_namespaces(
    kinds: int = libc.CLONE_NEWNS, *, privileged: bool, groups: tuple[int, ...] = (), is_inner: bool = False
) -> None:
    """Move this process into new namespaces; without privilege, into a new user namespace too.

    Ids are mapped to themselves, so that everything keeps its owner: all of them if root may do that; otherwise our
    own and `groups`, which newgidmap maps if /etc/subgid allows it. The kernel's overlay can't change files that belong
    to an id without a mapping. An inner user namespace gets the ids of the one around it, as far as we may map them;
    this process then loses its rights in that one.
    """
    if privileged:
        libc.unshare(kinds)
    else:
        _enter_user_namespace(kinds, groups, is_inner=is_inner)
    if kinds & libc.CLONE_NEWNS:
        libc.mount(b"none", b"/", None, libc.MS_REC | libc.MS_PRIVATE, None)


def _enter_user_namespace(kinds: int, groups: tuple[int, ...], *, is_inner: bool) -> None:
    user, group = os.getuid(), os.getgid()
    own_maps = {"uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    missing: Sequence[str] = tuple(own_maps)
    if user == 0 or (groups and is_inner):
        missing = _unshare_and_map(libc.CLONE_NEWUSER | kinds, _map_all_ids)
    elif groups:
        missing = _unshare_and_map(libc.CLONE_NEWUSER | kinds, lambda process: _map_groups(process, (group, *groups)))
    else:
        libc.unshare(libc.CLONE_NEWUSER | kinds)
    if "gid_map" in missing:
        _write("/proc/self/setgroups", "deny")
    for name in missing:
        _write(f"/proc/self/{name}", own_maps[name])


# A network namespace that the commands of one session share: each of them reaches what listens at 127.0.0.1 there.
#
# It belongs to a user namespace around those of the commands; any process of the same user outside can enter both. Each
# command has its own user namespace inside, where its processes are counted.


def enter_session_network(network: int, *, privileged: bool, groups: tuple[int, ...] = ()) -> None:
    """Move this process into the network namespace of a session (a descriptor), or into a new one (-1)."""
    if network >= 0:
        join_network(network, privileged=privileged)
        return
    enter_namespaces(libc.CLONE_NEWNET, privileged=privileged, groups=groups)
    _bring_up_loopback()


def join_network(network: int, *, privileged: bool) -> None:
    """Move this process into a network namespace, and into the user namespace that it belongs to."""
    if not privileged:
        user_namespace = fcntl.ioctl(network, _NS_GET_USERNS)
        libc.setns(user_namespace, libc.CLONE_NEWUSER)
        os.close(user_namespace)
    libc.setns(network, libc.CLONE_NEWNET)


def refresh_overlays(process: int, paths: Sequence[str]) -> None:
    """Make the overlays that a process sees at some paths show changes in the directories below them.

    An overlay remembers what it has looked up. Paths at which the process sees no overlay are skipped.
    """
    with Descriptors() as descriptors:
        descriptors.append(os.open(f"/proc/{process}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        for path in paths:
            try:
                # The process may have put links there.
                descriptors.append(libc.openat2(descriptors[0], os.fsencode(path), os.O_PATH, libc.RESOLVE_IN_ROOT))
            except OSError:
                continue
        overlays = [place for place in descriptors[1:] if libc.is_overlay(b"/proc/self/fd/%d" % place)]
        try:
            for place in overlays:
                libc.refresh_file_system(place)
        except PermissionError:  # they belong to a user namespace of ours, which a child can enter
            user_namespace = _open_outer_user_namespace(process)
            descriptors.append(user_namespace)
            mount_namespace = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            descriptors.append(mount_namespace)
            child = libc.fork_without_locks()
            if child == 0:
                try:
                    libc.setns(user_namespace, libc.CLONE_NEWUSER)
                    libc.setns(mount_namespace, libc.CLONE_NEWNS)
                    for place in overlays:
                        libc.refresh_file_system(place)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)


def _open_outer_user_namespace(process: int) -> int:
    """Open the outermost of the user namespaces that lie between this process and a sandboxed one."""
    ours = os.stat("/proc/self/ns/user")
    namespace = os.open(f"/proc/{process}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    while not os.path.samestat(os.fstat(parent := fcntl.ioctl(namespace, _NS_GET_PARENT)), ours):
        os.close(namespace)
        namespace = parent
    os.close(parent)
    return namespace


def _unshare_and_map(flags: int, map_ids: Callable[[int], Sequence[str]]) -> Sequence[str]:
    """Enter new namespaces while a child that stays outside maps ids into them; return the maps that it left out.

    The child is needed because a process inside may map only its own id.
    """
    process = os.getpid()
    ours, theirs = _socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        try:
            if theirs.recv(1):  # nothing comes if the namespaces could not be made
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


def _map_all_ids(process: int) -> Sequence[str]:
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
    """Have newgidmap map groups into the namespace of a process, which is left to map its user itself."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):  # they are the command's: newgidmap must not write there
        os.dup2(null, fd)
    newgidmap = next(iter(trusted_programs("newgidmap")), "")
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
    """Return the mount points below a directory, which an overlay of the directory would not show."""
    prefix = os.fsencode(root).rstrip(b"/") + b"/"
    return sorted({os.fsdecode(point) for point, _ in mount_table() if point.startswith(prefix)})


def possible_roots(root: str) -> list[str]:
    """Return the mount points below a root that can be roots of their own: directories, not mounted read-only."""
    return [each for each in mounts_inside(root) if os.path.isdir(each) and not why_not_a_root(each, root)]


def why_not_a_root(directory: str, root: str) -> str:
    """Say why a directory inside a root can't be another root; "" for a writable mount or btrfs subvolume."""
    def is_subvolume() -> bool:  # it has another device number than its parent directory
        return os.lstat(directory).st_dev != os.lstat(os.path.dirname(directory)).st_dev

    if directory == root or not (directory in mounts_inside(root) or is_subvolume()):
        return f"is writable already: it lies in {root}"
    return "is mounted read-only" if os.statvfs(directory).f_flag & os.ST_RDONLY else ""


def mounts_are_locked(*, privileged: bool) -> bool:
    """Return True if the kernel does not let a launch uncover what lies under a mount.

    It locks mounts that a new user namespace has inherited to each other.
    """
    return not privileged or libc.read("/proc/self/uid_map").split() != [b"0", b"0", b"%d" % (2**32 - 1)]


def mounts_below(roots: Sequence[str]) -> list[tuple[int, str]]:
    """Return the mounts in some roots, each as the number of the root and the path in it."""
    return [
        (number, os.path.relpath(mount, root)) for number, root in enumerate(roots) for mount in mounts_inside(root)
    ]


OVERLAY_KINDS = ("overlay", "fuse.fuse-overlayfs")  # on which containers of root and of other users lie


def file_system_kind(path: str) -> str:
    """Return the kind of file system that a directory is on, such as "ext4"."""
    real = os.fsencode(os.path.realpath(path)) + b"/"
    enclosing = [(len(point), kind) for point, kind in mount_table() if real.startswith(point.rstrip(b"/") + b"/")]
    return max(reversed(enclosing), key=lambda mount: mount[0], default=(0, "an unknown file system"))[1]


def other_devices_below(roots: Sequence[str], paths: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return where, on the way to some paths, another device begins than that of the root.

    A btrfs subvolume is its own device but is not in the mount table; nothing can be renamed into it.
    """
    if all(kind != "btrfs" for _, kind in mount_table()):
        return []
    devices = [os.lstat(root).st_dev for root in roots]
    answers: dict[tuple[int, str], bool | None] = {}
    for number, path in paths:
        for each in (*reversed([*directories_above(path)]), path):
            if (number, each) not in answers:
                answers[number, each] = _is_on_other_device(f"{roots[number]}/{each}", devices[number])
            if answers[number, each] is not False:
                break
    return [place for place, is_other in answers.items() if is_other]


def _is_on_other_device(path: str, device: int) -> bool | None:
    """Return whether a path is on another device; None if it is not a directory, so that nothing lies in it."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return True if status.st_dev != device else False if stat.S_ISDIR(status.st_mode) else None


class _MountTable:
    """The mount points of this process, read again only when the kernel says that they have changed."""

    def __init__(self) -> None:
        self._process = 0
        self._table = -1
        self._entries: list[tuple[bytes, str]] = []
        self._lock = libc.fork_safe_lock()

    def __call__(self) -> list[tuple[bytes, str]]:
        """Return every mount point with the kind of its file system; the same list object while nothing changes."""
        with self._lock:
            if self._process != os.getpid():
                # The first use, in this process or after a fork.
                self._process, self._table = os.getpid(), os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
                self._entries = []
            poll = select.poll()
            poll.register(self._table, select.POLLERR | select.POLLPRI)
            if poll.poll(0) or not self._entries:
                with open("/proc/self/mountinfo", "rb") as table:
                    self._entries = [
                        (_unescape(line.split(b" ", 5)[4]), line.rpartition(b" - ")[2].split(b" ", 1)[0].decode())
                        for line in table
                    ]
            return self._entries


mount_table = _MountTable()


def _unescape(point: bytes) -> bytes:
    """Undo the octal escapes that the kernel writes for white space and backslashes."""
    for escape, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        point = point.replace(escape, byte)
    return point


class Layer(Value):
    """The directories by which one run's writes to one root are captured."""

    root: str
    upper: str
    work: str
    merged: str
    held: tuple[str, ...] = ()  # layers of earlier runs that the command sees over the root, topmost first
    mode: int = 0  # of the root directory when the command began; 0 if that is not known any more
    frozen_root: str = ""  # a copy of the root that the command sees instead
    inner_roots: tuple[str, ...] = ()  # paths in this root that are roots too
    is_overlaid: bool = False  # by the kernel, whatever the run's way of capturing is

    @property
    def lowers(self) -> tuple[str, ...]:
        """All directories under the upper one, topmost first."""
        return (*self.held, self.frozen_root or self.root)


# A network namespace whose only way out is our proxy.
#
# A listening socket belongs to the namespace that it was made in, wherever its descriptor is sent. So it is made inside
# and served outside: no process of ours is inside.

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _UP = 0x8913, 0x8914, 0x1
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_NS_GET_USERNS, _NS_GET_PARENT = 0xB701, 0xB702
_BACKLOG = 256
_ANY, _LOOPBACK = "0.0.0.0", "127.0.0.1"  # noqa: S104 - of a namespace that nobody else is in
_LONGEST_TABLE = 1 << 14
_ANSWER_RANGE, _DNS_PORT = ("198.18.0.1", "255.254.0.0"), 53


def make_listeners(
    addresses: Sequence[tuple[str, int]], resolvers: Sequence[str] = (), *, is_alone: bool = True
) -> list[int]:
    """Bring up loopback in this namespace and listen at some addresses and ports; return the descriptors.

    `resolvers` are addresses at which the proxy answers name queries, with addresses of a range that is added to
    loopback. If this command is not alone in the namespace, others of its session may have taken a port already.
    """
    import socket  # takes longer to load than all else that a launch does

    _bring_up_loopback()
    ports_of_any = {port for address, port in addresses if address == _ANY}
    sockets: list[socket.socket] = []
    for address, port in addresses:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        if is_alone and port in ports_of_any:  # a listener for loopback may have it too; the kernel prefers that one
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
            sockets.append(listener)
    if resolvers:
        _add_address(0, *_ANSWER_RANGE)
        for address in resolvers:
            if not address.startswith("127."):
                # The alias is named after the address: other commands may have added others.
                _add_address(int.from_bytes(socket.inet_aton(address), "big"), address, "255.255.255.255")
            sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sockets[-1].bind((address, _DNS_PORT))
    return [each.detach() for each in sockets]


def _bring_up_loopback() -> None:
    any_socket = _socket.socket()
    name = b"lo".ljust(16, b"\0")
    answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFFLAGS, name + bytes(24))
    flags = int.from_bytes(answer[16:18], sys.byteorder) | _UP
    fcntl.ioctl(any_socket.fileno(), _SIOCSIFFLAGS, name + flags.to_bytes(2, sys.byteorder) + bytes(22))
    any_socket.close()
    try:
        # BBR, which hosts may use, delays packets by a timer. Over loopback, commands should not wait for that.
        _write("/proc/sys/net/ipv4/tcp_congestion_control", "reno")
    except OSError:
        return  # read-only, as in a container: loopback is then as slow as the host's


def _add_address(alias: int, address: str, mask: str) -> None:
    """Add an address to loopback, or by the mask a whole range."""
    import socket
    import struct

    name = f"lo:{alias:x}".encode().ljust(16, b"\0")
    with socket.socket() as any_socket:
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, mask)):
            sockaddr = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(any_socket, request, name + sockaddr + bytes(8))


class UnroutedCounter:
    """Counts the packets in a process's network namespace that were sent to where no route leads.

    The files that it holds open keep the namespace with its counters when the process is gone. If commands share a
    namespace, packets of another one are counted too.
    """

    def __init__(self) -> None:
        self._files = Descriptors()
        self._count_at_begin = 0
        self._has_begun = False

    def begin(self, process: int | None, gate: int) -> None:
        """Start counting if the process is known, then open the gate at which it waits.

        Without the gate, a short command could be over before we look.
        """
        if process is None or self._has_begun:
            return
        self._has_begun = True
        try:
            for name in ("snmp", "snmp6"):
                self._files.append(os.open(f"/proc/{process}/net/{name}", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            pass  # the kernel knows no IPv6
        self._count_at_begin = self._count()
        os.write(gate, b".")

    def end(self) -> int:
        """Return the number of packets since `begin`, and release the namespace."""
        packets = self._count() - self._count_at_begin
        self._files.close()
        return packets

    def _count(self) -> int:
        packets = 0
        for file in self._files:
            words = os.pread(file, _LONGEST_TABLE, 0).split()
            if words[0] == b"Ip:":  # a line of names, then one of numbers, which begins with the same word
                packets += int(words[words.index(b"OutNoRoutes") + words.index(b"Ip:", 1)])
            else:
                packets += int(words[words.index(b"Ip6OutNoRoutes") + 1])
        return packets


def loopback_listeners() -> tuple[tuple[str, int], ...]:
    """Return the loopback addresses and ports at which programs of this machine listen now."""
    listeners: dict[tuple[str, int], None] = {}
    for table, addresses in _TABLES:
        try:
            with open(table) as file:
                next(file)
                for row in file:
                    _, local, _, state, _ = row.split(None, 4)
                    if state != _LISTENING:
                        break  # listeners come first, and there may be very many connections
                    address, _, port = local.partition(":")
                    listeners |= dict.fromkeys((each, int(port, 16)) for each in addresses.get(address, ()))
        except FileNotFoundError:
            continue  # a kernel without IPv6
    return tuple(listeners)


def kernel_form(*words: bytes) -> str:
    """Write an address as in the kernel's tables: every four bytes as one number in this machine's byte order."""
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


_LISTENING = "0A"
_ANY_IPV4, _LOOPBACK_IPV4 = bytes(4), b"\x7f\0\0\1"
# Each table, with the loopback addresses that an entry of it stands for. A program that listens at every IPv6 address
# mostly listens at every IPv4 address too.
_TABLES = (
    ("/proc/net/tcp", {kernel_form(_LOOPBACK_IPV4): (_LOOPBACK,), kernel_form(_ANY_IPV4): (_LOOPBACK,)}),
    (
        "/proc/net/tcp6",
        {
            kernel_form(_ANY_IPV4, _ANY_IPV4, _ANY_IPV4, b"\0\0\0\1"): ("::1",),
            kernel_form(_ANY_IPV4, _ANY_IPV4, _ANY_IPV4, _ANY_IPV4): (_LOOPBACK, "::1"),
            kernel_form(_ANY_IPV4, _ANY_IPV4, b"\0\0\xff\xff", _LOOPBACK_IPV4): (_LOOPBACK,),
        },
    ),
)

# If only bubblewrap may make user namespaces, the host's Python makes the listeners inside the sandbox and then becomes
# the command.
_LISTEN_SCRIPT = """
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


def listen_inside_command(addresses: Sequence[tuple[str, int]], command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command that sends listeners out through CHANNEL_FD and then becomes the given one."""
    # Not the link of a virtual environment, which may lie where commands see nothing.
    python = os.path.realpath(sys.executable)
    words = [f"{address}:{port}" for address, port in addresses]
    return (python, "-I", "-S", "-c", _LISTEN_SCRIPT, str(CHANNEL_FD), str(len(words)), *words, *command)
