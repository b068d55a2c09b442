"""Count what the processes of a sandbox use, as /proc tells it, and what the kernel keeps for it besides."""

from __future__ import annotations

import fcntl
import os
import struct
import time

from fumehood.linux import libc
from fumehood.linux.libc import Closing, link_target, read, stat_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    import subprocess
    from collections.abc import Container, Iterator, Sequence
    from collections.abc import Set as AbstractSet

ENTRY = 1024  # bytes that an inode with its name takes, about, in memory as on a disk
_BLOCK = 512
_PIPE = 2 * os.sysconf("SC_PAGE_SIZE")  # where a user has 64 MiB of them, the kernel gives a pipe no more
_BUDGET_S = 0.02  # spent on open files at one look, and as much on sockets


class NotYet(Exception):
    """The sandbox is still being set up."""


class Processes:
    """The processes of one sandbox; `init` is the first."""

    def __init__(self, init: int) -> None:
        self._init = init
        self._inside = inside_of(init)

    def close(self) -> None:
        """Let go of the sandbox's /proc."""
        if self._inside is not None:
            os.close(self._inside)

    def tally(self) -> tuple[int, int, int]:
        """Return threads, resident pages (of files too) and clock ticks of all that lives and of what it waited for."""
        tasks = pages = ticks = 0
        for directory, name in self._all():
            fields = stat_of(name, directory)
            if fields:
                tasks += int(fields[17])
                pages += int(fields[21])
                ticks += sum(map(int, fields[11:15]))
        return tasks, pages, ticks

    def sums(self, file: str, *keys: bytes) -> list[int]:
        """Add up the bytes that a file of the kernel's says of each process, key by key."""
        totals = [0] * len(keys)
        for directory, name in self._all():
            text = read(f"{name}/{file}", directory)
            totals = [total + _kilobytes(text, key) for total, key in zip(totals, keys, strict=True)]
        return totals

    def only_mapped(self, device: int, counted: Container[int]) -> int:
        """Count files in memory without a name that are mapped, and neither open nor System V's.

        `device` is where the kernel has such files, `counted` are the inodes there that are open.
        """
        place = b"%02x:%02x" % (os.major(device), os.minor(device))
        size = 0
        for directory, name in self._all():
            is_such = False
            for line in read(f"{name}/smaps", directory).splitlines():
                if not line[:1].isupper():  # not a number of the last mapping, but an address: of the next
                    fields = line.split(None, 5)
                    is_such = (
                        fields[3] == place and int(fields[4]) not in counted and not fields[5].startswith(b"/SYSV")
                    )
                elif is_such and line.startswith(b"Pss:"):
                    size += int(line.split()[1]) * 1024
        return size

    def descriptors(self) -> Iterator[tuple[int | None, str, str]]:
        """Yield where each open descriptor of each process is, and what it leads to."""
        for directory, name in self._all():
            yield from ((directory, *each) for each in opened_by(name, directory))

    def have_open(self, target: str) -> bool:
        """Return True if one of them has this open; a thread may have descriptors of its own."""
        every = self._all()
        threads = (
            (directory, f"{name}/task/{each}") for directory, name in every
            if len(tasks := _listed(f"{name}/task", directory)) > 1 for each in tasks
        )  # fmt: skip
        return any(
            leads_to == target for directory, name in (*every, *threads) for _, leads_to in opened_by(name, directory)
        )

    def _all(self) -> list[tuple[int | None, str]]:
        """Return where to read of each process: its own /proc shows only what is inside."""
        if self._inside is not None:
            return [(self._inside, name) for name in os.listdir(self._inside) if name.isdigit()]
        return [(None, f"/proc/{pid}") for pid in descendants(self._init)]


class OpenFiles:
    """What open descriptors lead to and no name does: files in memory and on disks, sockets, pipes.

    There may be many, so that each look goes on where the last one stopped.
    """

    def __init__(self, processes: Processes, tmpfs: TmpfsUse) -> None:
        self._processes = processes
        self._tmpfs = tmpfs
        # The device on which the kernel has files in memory that were never given a name.
        made = os.memfd_create("fumehood", os.MFD_CLOEXEC)
        self.device = os.fstat(made).st_dev
        os.close(made)
        self._walk: Iterator[tuple[int | None, str, str]] | None = None
        self._begin()

    def _begin(self) -> None:
        self.sockets: set[int] = set()  # by inode, as the others
        self.memory: dict[int, int] = {}
        self._disk: dict[tuple[int, int], int] = {}
        self._pipes: set[str] = set()

    @property
    def is_busy(self) -> bool:
        """Return True if a round has begun and not ended."""
        return self._walk is not None

    def look(self) -> None:
        """Look at some of them; when a round is through, the next begins, which finds all anew."""
        if self._walk is None:
            self._begin()
            self._walk = self._processes.descriptors()
        until = time.monotonic() + _BUDGET_S
        for directory, path, target in self._walk:
            self._note(directory, path, target)
            if time.monotonic() > until:
                return
        self._walk = None

    def in_memory(self) -> int:
        """Count the memory of what this round has found, but for what waits in sockets."""
        return sum(self.memory.values()) + len(self._pipes) * _PIPE + len(self.sockets) * ENTRY

    def on_disk(self) -> int:
        """Count what the files that this round has found take on a disk."""
        return sum(self._disk.values())

    def _note(self, directory: int | None, path: str, target: str) -> None:
        if target.startswith("socket:["):
            self.sockets.add(int(target[8:-1]))
        elif target.startswith("pipe:["):
            self._pipes.add(target)
        elif target.endswith(" (deleted)"):  # else it is not asked: whoever serves the file may be slow to answer
            try:
                seen = os.stat(path, dir_fd=directory)
            except OSError:
                return  # just closed
            size = 0 if seen.st_nlink else seen.st_blocks * _BLOCK + ENTRY
            if seen.st_dev == self.device:
                self.memory[seen.st_ino] = size
            elif seen.st_dev not in self._tmpfs.devices:
                self._disk[seen.st_dev, seen.st_ino] = size


class TmpfsUse:
    """The writable file systems in memory that a sandbox has for itself."""

    def __init__(self, init: int) -> None:
        # What the host has mounted too is not the sandbox's alone. What is written there is measured as a layer.
        outside = {device for device, _, _ in _tmpfs_mounts("self")}
        places = {
            device: f"/proc/{init}/root{path}"
            for device, path, is_writable in _tmpfs_mounts(init) if is_writable and device not in outside
        }  # fmt: skip
        self.devices = frozenset(places)
        self._places = []
        for device, place in places.items():
            try:
                # Another may lie over it: for a moment of bubblewrap's start, two things are `/`.
                if os.stat(place).st_dev == device:
                    self._places.append(place)
            except OSError:
                continue

    def used(self) -> int:
        """Count what is in them: blocks, and an entry for each file, which may have none."""
        size = 0
        for place in self._places:
            try:
                disk = os.statvfs(place)
            except OSError:
                continue  # gone with the sandbox
            size += (disk.f_blocks - disk.f_bfree) * disk.f_frsize + (disk.f_files - disk.f_ffree) * ENTRY
        return size


def _tmpfs_mounts(process: int | str) -> Iterator[tuple[int, str, bool]]:
    for line in read(f"/proc/{process}/mountinfo").splitlines():
        if b" - tmpfs " in line:
            fields = line.split()
            major, _, minor = fields[2].partition(b":")
            path = os.fsdecode(fields[4].decode("unicode_escape").encode("latin-1"))
            yield os.makedev(int(major), int(minor)), path, b"rw" in fields[5].split(b",")


class Machine:
    """What the whole machine's memory is used for, read once.

    `left` can still be had, on a disk too. `hidden` is in use and seen in no process: files in memory, tables, the
    kernel's own, what was swapped out.
    """

    def __init__(self) -> None:
        text = b"\n" + read("/proc/meminfo")
        total, free, available, buffers, cached, shared, anonymous, slabs, swap, free_swap, cached_swap = (
            _kilobytes(text, name) for name in (
                b"MemTotal", b"MemFree", b"MemAvailable", b"Buffers", b"Cached", b"Shmem", b"AnonPages",
                b"SReclaimable", b"SwapTotal", b"SwapFree", b"SwapCached",
            )
        )  # fmt: skip
        seen = free + buffers + cached - shared + cached_swap + anonymous + slabs
        self.total, self.left = total, available + free_swap
        self.hidden = max(0, total - seen) + swap - free_swap


def descendants(init: int) -> list[int]:
    """Return a process and all that descends from it, as the host numbers them."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat_of(f"/proc/{name}")
            if fields:
                parents[int(name)] = int(fields[1])
    family = [init] if init in parents else []
    for each in family:
        family += [pid for pid, parent in parents.items() if parent == each]
    return family


def inside_of(init: int) -> int | None:
    """Open the sandbox's own /proc; a bubblewrap with the set-uid bit does not let us."""
    try:
        inside = os.open(f"/proc/{init}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError):
        raise NotYet from None
    try:
        # Before bubblewrap has changed its root, this is the host's, with all that runs there.
        if os.path.samestat(os.stat("1/ns/pid", dir_fd=inside), os.stat(f"/proc/{init}/ns/pid")):
            return inside
    except OSError:
        pass
    os.close(inside)
    raise NotYet


def opened_by(process: str, directory: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield the path of each descriptor of a process, or thread, by its own in /proc, and what it leads to."""
    for name in _listed(f"{process}/fd", directory):
        path = f"{process}/fd/{name}"
        if target := link_target(path, directory):  # else just closed
            yield path, target


def _listed(path: str, directory: int | None) -> list[str]:
    """Return what is in a directory of a process's; nothing where that has just ended, or is another user's."""
    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)) as listing:
            return os.listdir(listing)
    except OSError:
        return []


def _kilobytes(text: bytes, key: bytes) -> int:
    number = text.partition(b"\n%b:" % key)[2].split(None, 1)[:1]
    return int(number[0]) * 1024 if number else 0


# What the kernel keeps in no process's name: System V's memory, and what waits in sockets.
#
# It tells of these only who is in the sandbox's namespaces. So a small process enters them once, opens the lists there
# and hands the descriptors out: they stay with the namespaces that they were opened in.

_SEGMENTS, _QUEUES, _SEMAPHORES, _SOCKETS = b"shm", b"msg", b"sem", b"net"
_NS_GET_USERNS = 0xB701
_EACH = 64  # bytes of a semaphore, and of a message besides what is in it
_KILL = 9
_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_ERROR, _DONE = 2, 3
_TCP, _UDP = 6, 17
# Attributes of an answer, by kind of socket.
_UNIX_PEER, _UNIX_QUEUE, _UNIX_MEMORY, _INET_MEMORY = 2, 4, 5, 7
_UNIX_ANSWER, _INET_ANSWER = 16, 72  # bytes before the attributes
_LISTENS, _ALL_STATES = 10, 0xFFFFFFFF


class KernelMemory:
    """What the kernel keeps for one sandbox; `init` is its first process, `command` calls `enter` in another one.

    Where nobody may enter (a bubblewrap with the set-uid bit), or no process can be started, nothing is counted.
    """

    def __init__(self, init: int, command: Sequence[str]) -> None:
        import socket
        import subprocess

        self._lists: dict[bytes, int] = {}
        self._walk: Iterator[int] | None = None
        self._waiting = 0  # in the sockets that this round has come to
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_awaited = False
        with theirs:
            try:
                self._network_shared = _is_ours(init, "net")
                # A namespace of users is closed to a process that has threads, so another one enters.
                self._process = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    cwd="/", start_new_session=True,
                )  # fmt: skip
            except OSError:
                return  # what the whole machine has left is watched in any case
        self._is_awaited = True

    def look(self, sockets: AbstractSet[int]) -> None:
        """Go on counting what waits in sockets; in a network that is shared, only in those with these inodes."""
        if self._is_awaited:
            self._take()
        if self._walk is None and _SOCKETS in self._lists:
            self._walk, self._waiting = self._sizes(sockets if self._network_shared else None), 0
        until = time.monotonic() + _BUDGET_S
        for size in self._walk or ():
            self._waiting += size
            if time.monotonic() > until:
                return
        self._walk = None

    def segments(self) -> int:
        """Count System V's shared memory, mapped or not."""
        return sum(int(fields[14]) + int(fields[15]) for fields in self._listed(_SEGMENTS))

    def others(self) -> int:
        """Count what waits in sockets and in System V's queues, and its semaphores."""
        queues = sum(int(fields[3]) + int(fields[4]) * _EACH for fields in self._listed(_QUEUES))
        semaphores = sum(int(fields[3]) * _EACH for fields in self._listed(_SEMAPHORES))
        return queues + semaphores + self._waiting

    def close(self) -> None:
        """Let go of all that is held, or the namespaces would stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._channel.close()
        self._walk = None
        for fd in self._lists.values():
            os.close(fd)

    def _take(self) -> None:
        import socket

        try:
            names, descriptors, _, _ = socket.recv_fds(self._channel, 64, 4)
        except BlockingIOError:
            return
        self._is_awaited = False
        for fd in descriptors:
            os.set_inheritable(fd, False)
        # Where descriptors are short here, only the first ones come.
        self._lists = dict(zip(names.split(), descriptors, strict=False))

    def _listed(self, name: bytes) -> Iterator[list[bytes]]:
        fd = self._lists.get(name)
        if fd is None:
            return
        os.lseek(fd, 0, os.SEEK_SET)
        for line in libc.read_all(fd).splitlines()[1:]:
            yield line.split()

    def _sizes(self, wanted: AbstractSet[int] | None) -> Iterator[int]:
        import socket

        with socket.socket(fileno=os.dup(self._lists[_SOCKETS])) as asking:
            show = 1 << _UNIX_PEER | 1 << _UNIX_QUEUE | 1 << _UNIX_MEMORY
            request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, _ALL_STATES, 0, show, 0, 0)
            yield from (_in_unix(answer, wanted) for answer in _answers(asking, request))
            for family in (socket.AF_INET, socket.AF_INET6):
                for protocol in (_TCP, _UDP):
                    request = struct.pack("=BBBBI48x", family, protocol, 1 << _INET_MEMORY - 1, 0, _ALL_STATES)
                    yield from (_in_inet(answer, wanted) for answer in _answers(asking, request))


def _in_unix(answer: bytes, wanted: AbstractSet[int] | None) -> int:
    state, inode = struct.unpack_from("=xxBxI", answer)
    if wanted is not None and inode not in wanted:
        return 0
    attributes = _attributes(answer, _UNIX_ANSWER)
    size = _memory(attributes.get(_UNIX_MEMORY, b""))
    # What was sent is the sender's until it is read. One that is closed is not listed, and has no inode.
    is_sender_gone = not any(attributes.get(_UNIX_PEER, b""))
    if is_sender_gone and state != _LISTENS and _UNIX_QUEUE in attributes:
        size += int(struct.unpack_from("=I", attributes[_UNIX_QUEUE])[0])
    return size


def _in_inet(answer: bytes, wanted: AbstractSet[int] | None) -> int:
    if wanted is not None and struct.unpack_from("=I", answer, _INET_ANSWER - 4)[0] not in wanted:
        return 0
    return _memory(_attributes(answer, _INET_ANSWER).get(_INET_MEMORY, b""))


def _memory(numbers: bytes) -> int:
    """Add up what a socket has received and what it has sent that nobody has read."""
    if len(numbers) < 24:
        return 0
    received, _, sent, _, _, queued = struct.unpack_from("=6I", numbers)
    return int(received + max(sent, queued))


def _attributes(answer: bytes, at: int) -> dict[int, bytes]:
    attributes = {}
    while at + 4 <= len(answer):
        length, kind = struct.unpack_from("=HH", answer, at)
        attributes[kind] = answer[at + 4 : at + length]
        at += max(4, length + 3 & ~3)
    return attributes


def _answers(asking: socket.socket, request: bytes) -> Iterator[bytes]:
    """Ask the kernel for all sockets of a kind; one that it has no list of has no answers."""
    asking.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _DUMP, 0, 0) + request)
    while True:
        data, at = asking.recv(1 << 16), 0
        while at + 16 <= len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind in (_ERROR, _DONE):
                return
            yield data[at + 16 : at + length]
            at += length + 3 & ~3


def _is_ours(init: int, name: str) -> bool:
    return os.path.samestat(os.stat(f"/proc/{init}/ns/{name}"), os.stat(f"/proc/self/ns/{name}"))


def enter(process: str) -> None:
    """Enter the namespaces of a sandbox, and hand out by descriptor 0 what there is to read there."""
    import socket

    libc.prctl(libc.PR_SET_PDEATHSIG, _KILL)
    init = int(process)
    opened: dict[bytes, int] = {}
    if _is_entered(init, "net", libc.CLONE_NEWNET):
        opened[_SOCKETS] = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG).detach()
    if _is_entered(init, "ipc", libc.CLONE_NEWIPC):
        for name in (_SEGMENTS, _QUEUES, _SEMAPHORES):
            opened[name] = os.open(b"/proc/sysvipc/" + name, os.O_RDONLY)
    with socket.socket(fileno=0) as outside:
        socket.send_fds(outside, [b" ".join(opened) or b" "], list(opened.values()))
    os._exit(0)


def _is_entered(init: int, name: str, kind: int) -> bool:
    """Enter one namespace; tell whether this process is in it now.

    That takes the rights of the namespace of users that it belongs to. Who has those has them in all below it too, so
    that the outermost comes first: the network's, which may be the launcher's own.
    """
    try:
        if _is_ours(init, name):
            return True
        space = os.open(f"/proc/{init}/ns/{name}", os.O_RDONLY)
        owner = fcntl.ioctl(space, _NS_GET_USERNS)
        if not os.path.samestat(os.fstat(owner), os.stat("/proc/self/ns/user")):
            libc.setns(owner, libc.CLONE_NEWUSER)
        libc.setns(space, kind)
    except OSError:
        return False
    return True
