"""Capture writes with fuse-overlayfs: mounted for one run, and its layer then put into the kernel's form.

The mount stands on the host, in a directory of ours, where plain bubblewrap can bind it. The process that
serves it ends with the thread that started it, and takes the mount along: nothing is left behind by a kill.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time

from fumehood.errors import FumehoodError, OverlayUnavailable
from fumehood.linux import libc
from fumehood.linux.bwrap import programs
from fumehood.linux.layer import (
    LayerStack,
    MergedDirectory,
    is_opaque,
    list_attributes,
    make_whiteout,
    mark_in_place,
    remove_overlay_marks,
    set_opaque,
)
from fumehood.linux.libc import Closing, Descriptors
from fumehood.linux.namespaces import Layer, mounts_inside
from fumehood.linux.nofollow import AccessibleTree, is_whiteout, join, open_top, split, stat_entry
from fumehood.linux.probe import may_mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence


_PREFIX, _OPAQUE_FILE = ".wh.", ".wh..wh..opq"
_ORIGIN = "user.fuseoverlayfs.origin"
_OPAQUE_MARKS = ("user.fuseoverlayfs.opaque", "trusted.overlay.opaque")
# To start may take long where the machine is busy; one that dies meanwhile is noticed at once.
_START_S, _END_S, _BUSY_S = 60.0, 0.5, 1.0
_SPECIAL = stat.S_ISUID | stat.S_ISGID
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)

# Becomes fuse-overlayfs once it is sure to end (SIGTERM, upon which it unmounts) with whoever started it.
_CHILD = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

_daemons: dict[str, subprocess.Popen[bytes]] = {}


def begin(layer: Layer) -> None:
    """Mount a view of a root at `layer.merged` that writes into `layer.upper`; raises OverlayUnavailable."""
    import subprocess
    import tempfile

    place = os.path.realpath(os.path.dirname(layer.upper))
    if ":" in place or "\\" in place:  # it resolves the path, then splits it at colons
        raise OverlayUnavailable(
            f"fuse-overlayfs can't write to {place}: there is a colon or a backslash in it",
            hint="name another place for Fumehood's records: export XDG_STATE_HOME=/some/directory",
        )
    with tempfile.TemporaryFile(dir=os.path.dirname(layer.upper)) as output:
        with Descriptors(map(open_top, layer.lowers)) as lowers:
            daemon = subprocess.Popen(
                _command(layer, lowers), cwd=os.path.dirname(layer.upper), pass_fds=lowers,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,  # Ctrl-C is for us, not for the mount that the command stands on
            )  # fmt: skip
        _daemons[layer.merged] = daemon
        is_serving = False
        try:
            is_serving = _serves(daemon, layer.merged)
        finally:
            if not is_serving:
                abandon(layer)
        if not is_serving:
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()
            reason = "; ".join([line for line in lines if "argument ignored" not in line][-2:]) or "it did not start"
            raise OverlayUnavailable(
                f"fuse-overlayfs can't cover {layer.root}: {reason}", hint="fumehood doctor says what is missing here"
            )


def _command(layer: Layer, lowers: Sequence[int]) -> list[str]:
    """Name every directory so that no byte of a path can be taken for an option: by descriptor, or short.

    Without its write-back cache, all that was written has reached the layer when the command has ended.
    """
    installed = programs("fuse-overlayfs")
    if not installed:
        raise OverlayUnavailable("fuse-overlayfs is not installed", hint="fumehood doctor names the line to type")
    below = ":".join(f"/proc/self/fd/{fd}" for fd in lowers)
    upper, work = os.path.basename(layer.upper), os.path.basename(layer.work)
    options = f"lowerdir={below},upperdir={upper},workdir={work},volatile,writeback=0,nosuid,nodev"
    if os.geteuid() != 0:
        options += f",squash_to_uid={os.geteuid()}"  # else what is somebody else's can't be copied up
    child = [sys.executable, "-I", "-S", "-c", _CHILD, str(os.getpid())]
    return [*child, installed[0], "-f", "-o", options, layer.merged]


def _serves(daemon: subprocess.Popen[bytes], merged: str) -> bool:
    """Wait until the mount answers; tell whether it does."""
    outside = os.stat(os.path.dirname(merged)).st_dev
    until = time.monotonic() + _START_S
    while daemon.poll() is None and time.monotonic() < until:
        try:
            if os.stat(merged).st_dev != outside:
                return True
        except OSError:
            continue  # it ends while we look: the next turn sees that
        time.sleep(0.001)
    return False


def can_finish(layer: Layer) -> bool:  # noqa: ARG001 - all of it is in the layer already
    """Tell that it can be: nothing is noted elsewhere."""
    return True


def finish(layer: Layer) -> None:
    """Take the mount away, and make the upper directory the layer that a kernel overlay would have left."""
    daemon = _daemons.get(layer.merged)
    broke = daemon is not None and daemon.poll() is not None
    abandon(layer)
    if broke:
        raise OverlayUnavailable(
            f"fuse-overlayfs broke while the command ran on {layer.root}, so its changes are incomplete",
            hint="nothing was taken over; try another way of capturing: fumehood doctor lists those that work",
        )
    try:
        with (
            Descriptors(map(open_top, layer.lowers)) as lowers,
            Closing(open_top(layer.upper)) as top, AccessibleTree(top) as opened, LayerStack(lowers) as stack,
        ):  # fmt: skip
            waiting = [("", True)]
            while waiting:
                waiting += _normalise_directory(opened, stack, *waiting.pop())
    except OSError as error:
        raise FumehoodError(
            f"cannot collect what the command wrote to {layer.root}: {error.strerror}",
            hint="nothing was taken over; fumehood clean frees what is no longer needed",
        ) from error


def abandon(layer: Layer) -> None:
    """Unmount and end the process that served the mount, if there is one; may be repeated."""
    merged = layer.merged
    above = os.path.realpath(os.path.dirname(merged))
    daemon = _daemons.get(merged)
    until = time.monotonic() + _BUSY_S
    # Asked of the kernel's table, because a mount whose process is dead can't be looked at.
    while f"{above}/{os.path.basename(merged)}" in mounts_inside(above) and not _detach(merged, lazily=False):
        if time.monotonic() > until:
            # Somebody on the host looks into it. All that was written is in the layer already, so the
            # last resort is to take it out of sight: it goes when they are done.
            _detach(merged, lazily=True)
            break
        time.sleep(0.02)
    if daemon is not None:
        import subprocess

        # It ends by itself; other mount namespaces may keep it, so it is asked to, then made to.
        for ask in (None, daemon.terminate, daemon.kill):
            if ask is not None:
                ask()
            try:
                daemon.wait(_END_S)
                break
            except subprocess.TimeoutExpired:
                continue
    # Last, so that a Ctrl-C on the way here leaves it to be cleared away by the next call.
    _daemons.pop(merged, None)


def _detach(merged: str, *, lazily: bool) -> bool:
    """Unmount as root, or through fusermount as whoever mounted it; tell whether that worked."""
    if may_mount():
        try:
            libc.umount(os.fsencode(merged), libc.MNT_DETACH if lazily else 0)
        except OSError:
            return False
        return True
    import subprocess

    for program in (*programs("fusermount3"), *programs("fusermount")):
        asked = [program, "-u", *(["-z"] if lazily else []), "--", merged]
        if subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0:
            return True
    return False


def _normalise_directory(
    opened: AccessibleTree, stack: LayerStack, path: str, is_merged: bool
) -> list[tuple[str, bool]]:
    """Put one directory in order, which lower layers show through or not; return those in it."""
    inside: list[tuple[str, bool]] = []
    with Closing(opened.open_to_change(path)) as here, _below(stack, path, is_merged) as below:
        is_merged = bool(below.parts)
        if _take_opaque_marks(here) and is_merged:
            set_opaque(here)
            is_merged = False
        elif is_merged:
            # fuse-overlayfs loses the group of what is not ours, and the set-user and set-group bits of directories.
            _give_group(here, ".", os.fstat(here), os.fstat(below.parts[0]).st_gid)
            mode, was = (stat.S_IMODE(os.fstat(fd).st_mode) for fd in (here, below.parts[0]))
            if opened.modes.get(path, mode) == was & ~_SPECIAL and was & _SPECIAL:
                opened.modes[path] = was
        passes_on = opened.modes.get(path, os.fstat(here).st_mode) & stat.S_ISGID
        for name in os.listdir(here):
            status = os.stat(name, dir_fd=here, follow_symlinks=False)
            hidden = _hidden_by(name, status)
            if hidden is not None:
                # A whiteout stays, as a device node, only where there is something to hide.
                is_needed = is_merged and _seen(below, hidden) is not None
                if name != hidden or not is_needed:
                    os.unlink(name, dir_fd=here)
                if is_needed and stat_entry(here, hidden) is None:
                    make_whiteout(here, hidden)
                continue
            if passes_on and _is_new(here, name, status, is_below=is_merged and _seen(below, name) is not None):
                # Had the command moved it there, it would have kept its own group; that can't be told.
                inherited = stat.S_ISGID if stat.S_ISDIR(status.st_mode) else 0
                _give_group(here, name, status, os.fstat(here).st_gid, inherited)
            if stat.S_ISDIR(status.st_mode):
                inside.append((join(path, name), is_merged))
            else:
                origin = _origin(stack, path, below, here, name) if stat.S_ISREG(status.st_mode) else None
                if origin is not None:
                    _give_group(here, name, status, origin.st_gid)
                remove_overlay_marks(here, name)
                if is_merged and origin is not None and _is_another_name(below, name, origin):
                    mark_in_place(here, name)
    return inside


def _origin(stack: LayerStack, path: str, below: MergedDirectory, here: int, name: str) -> os.stat_result | None:
    """Return the file below that one was copied up from: fuse-overlayfs notes its path, wherever it was moved."""
    if _ORIGIN not in list_attributes(here, name):
        return None
    noted = os.getxattr(f"/proc/self/fd/{here}/{name}", _ORIGIN, follow_symlinks=False)
    parent, first = split(os.fsdecode(noted.rstrip(b"\0")))
    if parent == path:
        return _seen(below, first)
    with _below(stack, parent, is_merged=True) as there:
        return _seen(there, first)


def _is_another_name(below: MergedDirectory, name: str, origin: os.stat_result) -> bool:
    """Return True if a file with several names was written in place: it then has the path of one of them.

    Of such a file, fuse-overlayfs knows one name, and copies that up whichever a command writes.
    """
    lower = _seen(below, name)
    return lower is not None and lower.st_nlink > 1 and (lower.st_dev, lower.st_ino) == (origin.st_dev, origin.st_ino)


def _give_group(directory: int, name: str, status: os.stat_result, group: int, more: int = 0) -> None:
    """Give an entry the group that fuse-overlayfs forgot, and `more` bits of its mode."""
    if status.st_gid != group:
        try:
            os.chown(name, -1, group, dir_fd=directory, follow_symlinks=False)
        except PermissionError:
            return  # not a group of ours
    elif not more:
        return
    if not stat.S_ISLNK(status.st_mode):  # another group takes special bits from a file
        os.chmod(name, stat.S_IMODE(status.st_mode) | more, dir_fd=directory)


def _below(stack: LayerStack, path: str, is_merged: bool) -> MergedDirectory:
    """Open what lower layers show in a directory; no part of it where they have none there that could be seen."""
    try:
        return stack.open_merged(path) if is_merged else MergedDirectory()
    except OSError as error:
        if error.errno not in _NOTHING_THERE:
            raise
        return MergedDirectory()


def _seen(directory: MergedDirectory, name: str) -> os.stat_result | None:
    """Look at an entry below; None where it is not there, or could not be seen by the command."""
    try:
        return directory.look(name)[0]
    except PermissionError:
        return None


def _is_new(directory: int, name: str, status: os.stat_result, *, is_below: bool) -> bool:
    """Return True if the command made an entry: files that were copied up have a mark, and directories made anew."""
    if stat.S_ISREG(status.st_mode):
        return _ORIGIN not in list_attributes(directory, name)
    if not is_below:
        return True
    return stat.S_ISDIR(status.st_mode) and not set(_OPAQUE_MARKS).isdisjoint(list_attributes(directory, name))


def _take_opaque_marks(directory: int) -> bool:
    """Remove whatever marks a directory; tell whether fuse-overlayfs had marked it as opaque.

    It never writes the kernel's own mark for users: one that is there is the command's doing.
    """
    opaque = is_opaque(directory, _OPAQUE_MARKS)
    remove_overlay_marks(directory, ".")
    mark = stat_entry(directory, _OPAQUE_FILE)
    if mark is not None and stat.S_ISREG(mark.st_mode) and mark.st_size == 0:
        os.unlink(_OPAQUE_FILE, dir_fd=directory)
        opaque = True
    return opaque


def _hidden_by(name: str, status: os.stat_result) -> str | None:
    """Return the name that an entry declares deleted, if it does.

    Where device nodes can't be made, that is done by an empty file `.wh.NAME`. A command can only rename
    one into place, and then NAME is gone for it, too. Anything else of such a name is its own work.
    """
    if is_whiteout(status):
        return name
    if name.startswith(_PREFIX) and stat.S_ISREG(status.st_mode) and status.st_size == 0:
        return name[len(_PREFIX) :]
    return None
