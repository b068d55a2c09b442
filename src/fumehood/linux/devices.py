"""Devices of the host that a person names: which can be shown, and what programs look up about them in `/sys`."""

from __future__ import annotations

import os
import stat

from fumehood.linux.mounts import DEVICE_LINKS, NODES, Device, Folder, Link, Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fumehood.linux.mounts import Operation

# Numbers of terminals, by the kernel's list of devices: consoles, what they show, and those of windows.
_CONSOLES, _FIRST_SERIAL_PORT = 4, 64
_SCREENS = (5, 7, *range(136, 144))
_ATTRIBUTES = (
    "uevent", "dev", "vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "class",
)  # fmt: skip


def fault_of(path: str) -> str:
    """Say why a device can't be shown to commands; nothing where it can."""
    name = path.removeprefix("/dev/")
    if name == path or os.path.normpath(path) != path:
        return "it is not below /dev"
    if name.split("/")[0] in (*NODES, *dict(DEVICE_LINKS), "console", "pts", "shm"):
        return "every command has its own"
    try:
        status = os.stat(path)
    except OSError as error:
        return "it is not there" if isinstance(error, FileNotFoundError) else str(error.strerror)
    if stat.S_ISBLK(status.st_mode):
        return "it is a disk: whoever may use it reads and writes every file on it"
    if not stat.S_ISCHR(status.st_mode):
        return "it is not a device"
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    is_screen = major in _SCREENS or (major == _CONSOLES and minor < _FIRST_SERIAL_PORT)
    return "it is a terminal or screen of this machine's, where you type" if is_screen else ""


def shown(paths: Iterable[str]) -> list[Operation]:
    """Return how devices are shown, or why not."""
    return [Device(target=path, why="you name it", fault=fault_of(path)) for path in paths]


def described(paths: Iterable[str]) -> list[Operation]:
    """Return what the machine's description tells of devices, as plain files: graphics libraries ask for their maker.

    A device has a directory there, and so has the hardware behind it, in which the first one lies.
    """
    operations: dict[str, Operation] = {}
    for path in paths:
        if fault_of(path):
            continue
        number = os.stat(path).st_rdev
        name = f"/sys/dev/char/{os.major(number)}:{os.minor(number)}"
        own = os.path.realpath(name)
        if not own.startswith("/sys/devices/"):
            continue
        operations[name] = Link(target=name, to=own)
        hardware = os.path.realpath(f"{own}/device") if os.path.islink(f"{own}/device") else own
        for folder in dict.fromkeys((hardware, own)):
            operations.setdefault(folder, Folder(target=folder))
            operations |= {each.target: each for each in _attributes(folder)}
        if hardware != own:
            operations[f"{own}/device"] = Link(target=f"{own}/device", to=hardware)
    return list(operations.values())


def _attributes(folder: str) -> Iterable[Operation]:
    if os.path.islink(f"{folder}/subsystem"):
        yield Link(target=f"{folder}/subsystem", to=os.path.realpath(f"{folder}/subsystem"))
    for name in _ATTRIBUTES:
        path = f"{folder}/{name}"
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or not status.st_mode & stat.S_IROTH:
                continue
            with open(path, "rb") as file:
                yield Text(target=path, content=file.read(4096), mode=0o444)
        except OSError:
            continue  # it has no such attribute, or not any more
