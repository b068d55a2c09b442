"""Which root trees are installed here: a local question, asked before every command that runs in one."""

from __future__ import annotations

import os

from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.nofollow import open_top
from fumehood.rootfs.tree import is_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ALPINE, CURRENT = "alpine", "current"
VERSION_FILE = ".alpine-version"
_LONGEST = 256


class Installed(Value):
    """One installed root tree; `version` is what its `.alpine-version` says."""

    name: str
    path: str
    version: str


def collection(data: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the directory that holds root trees; FUMEHOOD_ROOTFS_DIR may name another."""
    given = (os.environ if environment is None else environment).get("FUMEHOOD_ROOTFS_DIR", "")
    return given.rstrip("/") if given.startswith("/") else f"{data}/rootfs"


def is_ready(path: str) -> bool:
    """Tell whether a whole root tree lies at a path; asks nobody, so it works offline."""
    return bool(version_of(path)) and has_shell(path)


def version_of(path: str) -> str:
    """Return the version that a tree was marked with when it was whole, or "" where there is no such mark."""
    try:
        file = os.open(f"{path}/{VERSION_FILE}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(file, _LONGEST).decode("ascii", "replace").partition("\n")[0].strip()
    except OSError:
        return ""  # a directory
    finally:
        os.close(file)


def has_shell(path: str) -> bool:
    """Tell whether a command could be started in a tree."""
    try:
        top = open_top(path)
    except OSError:
        return False
    try:
        return is_program(top, "/bin/sh")
    finally:
        os.close(top)


def installed(at: str) -> list[Installed]:
    """List the trees that are ready, by name; where the directory is a tree itself, that one."""
    if is_ready(at):
        return [_described(at)]
    try:
        names = sorted(os.listdir(at))
    except OSError:
        return []
    found = [f"{at}/{name}" for name in names if not name.startswith(".") and name != CURRENT]
    return [_described(path) for path in found if is_ready(path)]


def _described(path: str) -> Installed:
    return Installed(name=os.path.basename(path), path=path, version=version_of(path))


def find(at: str, name: str = ALPINE) -> Installed:
    """Return the tree of a name; `alpine` is the one in use now."""
    if is_ready(at):
        return _described(at)
    path = f"{at}/{current(at) or CURRENT}" if name == ALPINE else f"{at}/{name}"
    if is_ready(path):
        return _described(path)
    if name != ALPINE:
        raise BadRequest(f"there is no root {name}", hint="fumehood rootfs list; or name a directory: --root ./tree")
    if current(at):
        raise BadRequest(f"the root tree {path} is damaged", hint="fumehood rootfs install")
    raise BadRequest("no Alpine root is installed", hint="fumehood rootfs install")


def current(at: str) -> str:
    """Return the name of the tree that `alpine` means, or "" where there is none."""
    try:
        return os.readlink(f"{at}/{CURRENT}")
    except OSError:
        return ""


def switch(at: str, name: str) -> None:
    """Let `alpine` mean another tree, in one step."""
    beside = f"{at}/.{CURRENT}-{os.getpid()}"
    os.symlink(name, beside)
    os.replace(beside, f"{at}/{CURRENT}")


class InUse:
    """Keeps a tree from being removed for as long as a command runs in it."""

    def __init__(self, path: str) -> None:
        import fcntl

        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)
