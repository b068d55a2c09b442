"""Count what the processes of a sandbox use, by what /proc says."""

from __future__ import annotations

import os
import time

from fumehood.linux.libc import Closing, link_target, process_stat, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator

INODE_BYTES = 1024  # what an inode with its name takes, about, in memory as on a disk
_BLOCK = 512
_PIPE_BYTES = 2 * os.sysconf("SC_PAGE_SIZE")  # to a user who has 64 MiB of pipes, the kernel gives no larger ones
READ_BUDGET_S = 0.02  # spent on open files at one check, and as much on sockets


class SandboxNotReady(Exception):
    """The sandbox is still being set up."""


class Processes:
    """The processes of one sandbox; `init` is the first."""

    def __init__(self, init: int) -> None:
        self._init = init
        self._inner_proc = open_inner_proc(init)

    def close(self) -> None:
        """Close the sandbox's /proc."""
        if self._inner_proc is not None:
            os.close(self._inner_proc)

    def totals(self) -> tuple[int, int, int]:
        """Return the threads, resident pages (of files too) and clock ticks of all processes.

        The ticks are also those of ended children.
        """
        threads = pages = ticks = 0
        for directory, path in self._paths():
            fields = process_stat(path, directory)
            if fields:
                threads += int(fields[17])
                pages += int(fields[21])
                ticks += sum(map(int, fields[11:15]))
        return threads, pages, ticks

    def sum_sizes(self, file: str, *keys: bytes) -> list[int]:
        """Return the total for each key, in bytes, from a file that the kernel shows for each process."""
        totals = [0] * len(keys)
        for directory, path in self._paths():
            text = read(f"{path}/{file}", directory)
            totals = [total + _size_in(text, key) for total, key in zip(totals, keys, strict=True)]
        return totals

    def only_mapped_bytes(self, device: int, open_inodes: Container[int]) -> int:
        """Count files in memory that have no name, are mapped, and are neither open nor System V's.

        `device` is where the kernel has such files, `open_inodes` are those of them that are open.
        """
        device_field = b"%02x:%02x" % (os.major(device), os.minor(device))
        size = 0
        for directory, path in self._paths():
            is_counted = False
            for line in read(f"{path}/smaps", directory).splitlines():
                if not line[:1].isupper():  # the address that begins the next mapping, not a number of the last one
                    fields = line.split(None, 5)
                    is_unopened = fields[3] == device_field and int(fields[4]) not in open_inodes
                    is_counted = is_unopened and not fields[5].startswith(b"/SYSV")
                elif is_counted and line.startswith(b"Pss:"):
                    size += int(line.split()[1]) * 1024
        return size

    def descriptors(self) -> Iterator[tuple[int | None, str, str]]:
        """Yield the place in /proc of each open descriptor of each process, and what it leads to."""
        for directory, path in self._paths():
            yield from ((directory, *each) for each in open_descriptors(path, directory))

    def have_open(self, target: str) -> bool:
        """Return True if a process has this open; a thread may have descriptors of its own."""
        processes = self._paths()
        threads = (
            (directory, f"{path}/task/{thread}") for directory, path in processes
            if len(names := _list_names(f"{path}/task", directory)) > 1 for thread in names
        )  # fmt: skip
        return any(
            leads_to == target
            for directory, path in (*processes, *threads)
            for _, leads_to in open_descriptors(path, directory)
        )

    def _paths(self) -> list[tuple[int | None, str]]:
        """Return the directory of each process, relative to a descriptor if there is one.

        The sandbox's own /proc shows only the processes inside.
        """
        if self._inner_proc is not None:
            return [(self._inner_proc, name) for name in os.listdir(self._inner_proc) if name.isdigit()]
        return [(None, f"/proc/{pid}") for pid in descendants(self._init)]


class OpenFiles:
    """What open descriptors lead to and no name does: files in memory and on disks, sockets, pipes.

    There may be many. So each check reads some, and goes on where the last one stopped; a round has read all.
    """

    def __init__(self, processes: Processes, tmpfs: TmpfsUse) -> None:
        self._processes = processes
        self._tmpfs = tmpfs
        # The device on which the kernel has files in memory that were never given a name.
        with Closing(os.memfd_create("fumehood", os.MFD_CLOEXEC)) as memory_file:
            self.device = os.fstat(memory_file).st_dev
        self._remaining: Iterator[tuple[int | None, str, str]] | None = None
        self._begin_round()

    def _begin_round(self) -> None:
        self.sockets: set[int] = set()  # inodes
        self.memory_files: dict[int, int] = {}  # sizes by inode
        self._disk_files: dict[tuple[int, int], int] = {}  # sizes by device and inode
        self._pipes: set[str] = set()

    @property
    def is_round_unfinished(self) -> bool:
        """Return True if a round has begun and not ended."""
        return self._remaining is not None

    def read_more(self) -> None:
        """Read some descriptors; after the end of a round, begin the next."""
        if self._remaining is None:
            self._begin_round()
            self._remaining = self._processes.descriptors()
        deadline = time.monotonic() + READ_BUDGET_S
        for directory, path, target in self._remaining:
            self._note(directory, path, target)
            if time.monotonic() > deadline:
                return
        self._remaining = None

    def memory_bytes(self) -> int:
        """Count the memory of everything in this round, except data that waits in sockets."""
        return sum(self.memory_files.values()) + len(self._pipes) * _PIPE_BYTES + len(self.sockets) * INODE_BYTES

    def disk_bytes(self) -> int:
        """Count what the files of this round take on disks."""
        return sum(self._disk_files.values())

    def _note(self, directory: int | None, path: str, target: str) -> None:
        if target.startswith("socket:["):
            self.sockets.add(int(target[8:-1]))
        elif target.startswith("pipe:["):
            self._pipes.add(target)
        elif target.endswith(" (deleted)"):  # no `stat` of others: the server of a file may be slow to answer
            try:
                status = os.stat(path, dir_fd=directory)
            except OSError:
                return  # just closed
            size = 0 if status.st_nlink else status.st_blocks * _BLOCK + INODE_BYTES
            if status.st_dev == self.device:
                self.memory_files[status.st_ino] = size
            elif status.st_dev not in self._tmpfs.devices:
                self._disk_files[status.st_dev, status.st_ino] = size


class TmpfsUse:
    """The writable file systems in memory that a sandbox has for itself."""

    def __init__(self, init: int) -> None:
        # What the host has mounted too is not the sandbox's alone. What is written there is measured as a layer.
        host_devices = {device for device, _, _ in _tmpfs_mounts("self")}
        paths = {
            device: f"/proc/{init}/root{path}"
            for device, path, is_writable in _tmpfs_mounts(init)
            if is_writable and device not in host_devices
        }
        self.devices = frozenset(paths)
        self._paths = []
        for device, path in paths.items():
            try:
                # Another may lie over it: while bubblewrap starts, two things are `/` for a moment.
                if os.stat(path).st_dev == device:
                    self._paths.append(path)
            except OSError:
                continue

    def used_bytes(self) -> int:
        """Count what is in them: blocks, and an inode for each file, also for a file without blocks."""
        size = 0
        for path in self._paths:
            try:
                disk = os.statvfs(path)
            except OSError:
                continue  # gone with the sandbox
            size += (disk.f_blocks - disk.f_bfree) * disk.f_frsize + (disk.f_files - disk.f_ffree) * INODE_BYTES
        return size


def _tmpfs_mounts(process: int | str) -> Iterator[tuple[int, str, bool]]:
    """Yield the device and the path of each tmpfs that a process sees, and True if it is writable."""
    for line in read(f"/proc/{process}/mountinfo").splitlines():
        if b" - tmpfs " in line:
            fields = line.split()
            major, _, minor = fields[2].partition(b":")
            path = os.fsdecode(fields[4].decode("unicode_escape").encode("latin-1"))
            yield os.makedev(int(major), int(minor)), path, b"rw" in fields[5].split(b",")


class MachineMemory:
    """What the memory of the whole machine is used for, in bytes, read once.

    `available` counts free swap space too. `unattributed` is in use but belongs to no process that we see: files in
    memory, page tables, the kernel's own memory, what was swapped out.
    """

    def __init__(self) -> None:
        text = b"\n" + read("/proc/meminfo")
        total, free, available, buffers, cached, shared, anonymous, slabs, swap, free_swap, cached_swap = (
            _size_in(text, name) for name in (
                b"MemTotal", b"MemFree", b"MemAvailable", b"Buffers", b"Cached", b"Shmem", b"AnonPages",
                b"SReclaimable", b"SwapTotal", b"SwapFree", b"SwapCached",
            )
        )  # fmt: skip
        accounted_for = free + buffers + cached - shared + cached_swap + anonymous + slabs
        self.total, self.available = total, available + free_swap
        self.unattributed = max(0, total - accounted_for) + swap - free_swap


def descendants(init: int) -> list[int]:
    """Return a process and all that descend from it, by their numbers on the host."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = process_stat(f"/proc/{name}")
            if fields:
                parents[int(name)] = int(fields[1])
    family = [init] if init in parents else []
    for member in family:  # which grows
        family += [pid for pid, parent in parents.items() if parent == member]
    return family


def open_inner_proc(init: int) -> int | None:
    """Open the sandbox's own /proc; return None if bubblewrap has the set-uid bit, because that denies it."""
    try:
        inner_proc = os.open(f"/proc/{init}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError):
        raise SandboxNotReady from None
    try:
        # Before bubblewrap has changed its root, this is the host's, with all that runs there.
        if os.path.samestat(os.stat("1/ns/pid", dir_fd=inner_proc), os.stat(f"/proc/{init}/ns/pid")):
            return inner_proc
    except OSError:
        pass
    os.close(inner_proc)
    raise SandboxNotReady


def open_descriptors(process: str, directory: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield the path in /proc of each descriptor of a process, or thread, and what it leads to."""
    for name in _list_names(f"{process}/fd", directory):
        path = f"{process}/fd/{name}"
        if target := link_target(path, directory):  # else just closed
            yield path, target


def _list_names(path: str, directory: int | None) -> list[str]:
    """List a directory in /proc; it is empty if the process has just ended, or is another user's."""
    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)) as listing:
            return os.listdir(listing)
    except OSError:
        return []


def _size_in(text: bytes, key: bytes) -> int:
    """Return the size, in bytes, on the line that begins with `key`; the kernel gives it in KiB."""
    number = text.partition(b"\n%b:" % key)[2].split(None, 1)[:1]
    return int(number[0]) * 1024 if number else 0
