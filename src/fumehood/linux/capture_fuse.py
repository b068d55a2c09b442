"""Capture writes with fuse-overlayfs: mount it for one run, then convert its layer to the kernel's form.

It is mounted on the host, in a directory of ours, where plain bubblewrap can bind it. The process that serves the mount
ends with the thread that started it, and unmounts it then, so nothing is left if we are killed.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time

from fumehood.errors import FumehoodError, OverlayUnavailable
from fumehood.linux import libc
from fumehood.linux.bwrap import trusted_programs
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
from fumehood.linux.probe import can_mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence


_DELETED_PREFIX, _OPAQUE_FILE = ".wh.", ".wh..wh..opq"
_ORIGIN = "user.fuseoverlayfs.origin"
_OPAQUE_MARKS = ("user.fuseoverlayfs.opaque", "trusted.overlay.opaque")
# The start may take long on a busy machine; if the process dies meanwhile, we notice it at once.
_START_S, _END_S, _BUSY_S = 60.0, 0.5, 1.0
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
_NO_DIRECTORY_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)

# Becomes fuse-overlayfs, once it is certain that the process that started it still lives. When that process ends, it
# gets SIGTERM, and unmounts.
_CHILD = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

_daemons: dict[str, subprocess.Popen[bytes]] = {}


def begin(layer: Layer) -> None:
    """Mount an overlay of a root at `layer.merged` that writes into `layer.upper`; raises OverlayUnavailable."""
    import subprocess
    import tempfile

    directory = os.path.realpath(os.path.dirname(layer.upper))
    if ":" in directory or "\\" in directory:  # fuse-overlayfs resolves the path, then splits it at colons
        raise OverlayUnavailable(
            f"fuse-overlayfs can't write to {directory}: there is a colon or a backslash in it",
            hint="name another place for Fumehood's records: export XDG_STATE_HOME=/some/directory",
        )
    with tempfile.TemporaryFile(dir=os.path.dirname(layer.upper)) as output:
        with Descriptors(map(open_top, layer.lowers)) as lowers:
            daemon = subprocess.Popen(
                _command(layer, lowers), cwd=os.path.dirname(layer.upper), pass_fds=lowers,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,  # Ctrl-C is for us: the command still needs the mount
            )  # fmt: skip
        _daemons[layer.merged] = daemon
        is_serving = False
        try:
            is_serving = _wait_for_mount(daemon, layer.merged)
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
    """Return the command line of fuse-overlayfs.

    Directories are named by descriptors or by short names, so that no byte of a path can be read as an option. Without
    the write-back cache, everything that a command wrote is in the layer when the command has ended.
    """
    installed = trusted_programs("fuse-overlayfs")
    if not installed:
        raise OverlayUnavailable("fuse-overlayfs is not installed", hint="fumehood doctor names the line to type")
    lower = ":".join(f"/proc/self/fd/{fd}" for fd in lowers)
    upper, work = os.path.basename(layer.upper), os.path.basename(layer.work)
    options = f"lowerdir={lower},upperdir={upper},workdir={work},volatile,writeback=0,nosuid,nodev"
    if os.geteuid() != 0:
        options += f",squash_to_uid={os.geteuid()}"  # otherwise other users' files can't be copied up
    child = [sys.executable, "-I", "-S", "-c", _CHILD, str(os.getpid())]
    return [*child, installed[0], "-f", "-o", options, layer.merged]


def _wait_for_mount(daemon: subprocess.Popen[bytes], merged: str) -> bool:
    """Wait until the mount answers; return False if it does not."""
    device_outside = os.stat(os.path.dirname(merged)).st_dev
    deadline = time.monotonic() + _START_S
    while daemon.poll() is None and time.monotonic() < deadline:
        try:
            if os.stat(merged).st_dev != device_outside:
                return True
        except OSError:
            continue  # it is ending: the next turn sees that
        time.sleep(0.001)
    return False


def can_finish(layer: Layer) -> bool:  # noqa: ARG001 - everything is in the layer
    """Return True: no other record is needed."""
    return True


def finish(layer: Layer) -> None:
    """Unmount, and make the upper directory the layer that a kernel overlay would have left."""
    daemon = _daemons.get(layer.merged)
    has_failed = daemon is not None and daemon.poll() is not None
    abandon(layer)
    if has_failed:
        raise OverlayUnavailable(
            f"fuse-overlayfs broke while the command ran on {layer.root}, so its changes are incomplete",
            hint="nothing was taken over; try another way of capturing: fumehood doctor lists those that work",
        )
    try:
        with (
            Descriptors(map(open_top, layer.lowers)) as lowers,
            Closing(open_top(layer.upper)) as top, AccessibleTree(top) as tree, LayerStack(lowers) as stack,
        ):  # fmt: skip
            waiting = [("", True)]
            while waiting:
                waiting += _convert_directory(tree, stack, *waiting.pop())
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
    deadline = time.monotonic() + _BUSY_S
    # We ask the kernel's mount table, because a mount whose process is dead can't be examined.
    while f"{above}/{os.path.basename(merged)}" in mounts_inside(above) and not _unmount(merged, lazily=False):
        if time.monotonic() > deadline:
            # Somebody on the host is looking into it. Everything that was written is in the layer already. So as a
            # last resort, we detach the mount: it is removed when they are done.
            _unmount(merged, lazily=True)
            break
        time.sleep(0.02)
    if daemon is not None:
        import subprocess

        # It ends by itself. But other mount namespaces may keep the mount, so then we ask it to end, and then kill it.
        for end in (None, daemon.terminate, daemon.kill):
            if end is not None:
                end()
            try:
                daemon.wait(_END_S)
                break
            except subprocess.TimeoutExpired:
                continue
    # Last, so that after a Ctrl-C above, the next call still finds it.
    _daemons.pop(merged, None)


def _unmount(merged: str, *, lazily: bool) -> bool:
    """Unmount as root, or by fusermount as the user who mounted; return True if that worked."""
    if can_mount():
        try:
            libc.umount(os.fsencode(merged), libc.MNT_DETACH if lazily else 0)
        except OSError:
            return False
        return True
    import subprocess

    for program in (*trusted_programs("fusermount3"), *trusted_programs("fusermount")):
        command = [program, "-u", *(["-z"] if lazily else []), "--", merged]
        if subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0:
            return True
    return False


# ---- Convert a layer to the form that the kernel's overlay would have given it.


def _convert_directory(
    layer: AccessibleTree, stack: LayerStack, path: str, is_merged: bool
) -> list[tuple[str, bool]]:
    """Convert one directory of the layer; return those in it.

    A directory `is_merged` if the command also saw entries of lower layers in it.
    """
    directories: list[tuple[str, bool]] = []
    with Closing(layer.open_to_change(path)) as directory, _open_lower(stack, path, is_merged) as lower:
        is_merged = bool(lower.parts)
        is_opaque_now = _remove_marks(directory)
        if is_opaque_now and is_merged:
            set_opaque(directory)
            is_merged = False
        elif is_merged:
            _restore_directory(layer, path, directory, lower.parts[0])
        passes_group_on = layer.modes.get(path, os.fstat(directory).st_mode) & stat.S_ISGID
        for name in os.listdir(directory):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            deleted = _deleted_name(name, status)
            if deleted is not None:
                is_needed = is_merged and _look(lower, deleted) is not None
                _convert_whiteout(directory, name, deleted, is_needed=is_needed)
                continue
            if passes_group_on and _is_new(
                directory, name, status, is_below=is_merged and _look(lower, name) is not None
            ):
                # A file that the command moved here would have kept its own group; we can't tell the two apart.
                inherited = stat.S_ISGID if stat.S_ISDIR(status.st_mode) else 0
                _set_group(directory, name, status, os.fstat(directory).st_gid, inherited)
            if stat.S_ISDIR(status.st_mode):
                directories.append((join(path, name), is_merged))
                continue
            origin = _find_origin(stack, path, lower, directory, name) if stat.S_ISREG(status.st_mode) else None
            if origin is not None:
                _set_group(directory, name, status, origin.st_gid)
            remove_overlay_marks(directory, name)
            if is_merged and origin is not None and _is_written_in_place(lower, name, origin):
                mark_in_place(directory, name)
    return directories


def _restore_directory(layer: AccessibleTree, path: str, directory: int, lower: int) -> None:
    """Restore what fuse-overlayfs loses of a directory: a foreign group, and the set-user and set-group bits."""
    _set_group(directory, ".", os.fstat(directory), os.fstat(lower).st_gid)
    mode, lower_mode = (stat.S_IMODE(os.fstat(fd).st_mode) for fd in (directory, lower))
    if layer.modes.get(path, mode) == lower_mode & ~_SPECIAL_BITS and lower_mode & _SPECIAL_BITS:
        layer.modes[path] = lower_mode


def _convert_whiteout(directory: int, name: str, deleted: str, *, is_needed: bool) -> None:
    """Replace an entry that says that a name is deleted by the kernel's whiteout, or remove it if it hides nothing."""
    if name != deleted or not is_needed:
        os.unlink(name, dir_fd=directory)
    if is_needed and stat_entry(directory, deleted) is None:
        make_whiteout(directory, deleted)


def _find_origin(
    stack: LayerStack, path: str, lower: MergedDirectory, directory: int, name: str
) -> os.stat_result | None:
    """Return the lower file that a file was copied up from: fuse-overlayfs stores its path, and keeps it in renames."""
    if _ORIGIN not in list_attributes(directory, name):
        return None
    stored_path = os.getxattr(f"/proc/self/fd/{directory}/{name}", _ORIGIN, follow_symlinks=False)
    origin_parent, origin_name = split(os.fsdecode(stored_path.rstrip(b"\0")))
    if origin_parent == path:
        return _look(lower, origin_name)
    with _open_lower(stack, origin_parent, is_merged=True) as origin_directory:
        return _look(origin_directory, origin_name)


def _is_written_in_place(lower: MergedDirectory, name: str, origin: os.stat_result) -> bool:
    """Return True if a file with several names was written in place: if one of these names is still its path.

    Of such a file, fuse-overlayfs knows one name, and copies that up, whichever name a command writes.
    """
    status = _look(lower, name)
    if status is None or status.st_nlink == 1:
        return False
    return (status.st_dev, status.st_ino) == (origin.st_dev, origin.st_ino)


def _set_group(directory: int, name: str, status: os.stat_result, group: int, mode_bits: int = 0) -> None:
    """Give an entry the group that fuse-overlayfs has lost, and add bits to its mode."""
    if status.st_gid != group:
        try:
            os.chown(name, -1, group, dir_fd=directory, follow_symlinks=False)
        except PermissionError:
            return  # we are not in that group
    elif not mode_bits:
        return
    if not stat.S_ISLNK(status.st_mode):  # a change of group removes special bits
        os.chmod(name, stat.S_IMODE(status.st_mode) | mode_bits, dir_fd=directory)


def _open_lower(stack: LayerStack, path: str, is_merged: bool) -> MergedDirectory:
    """Open what lower layers have in a directory; without parts if they have no such directory, or it is closed."""
    try:
        return stack.open_merged(path) if is_merged else MergedDirectory()
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_ERRNOS:
            raise
        return MergedDirectory()


def _look(directory: MergedDirectory, name: str) -> os.stat_result | None:
    """Return the status of an entry, or None if there is none, or the command could not see it."""
    try:
        return directory.look(name)[0]
    except PermissionError:
        return None


def _is_new(directory: int, name: str, status: os.stat_result, *, is_below: bool) -> bool:
    """Return True if the command made an entry.

    Files that were copied up have a mark. So do directories that were made in the place of lower entries.
    """
    if stat.S_ISREG(status.st_mode):
        return _ORIGIN not in list_attributes(directory, name)
    if not is_below:
        return True
    return stat.S_ISDIR(status.st_mode) and not set(_OPAQUE_MARKS).isdisjoint(list_attributes(directory, name))


def _remove_marks(directory: int) -> bool:
    """Remove all marks of a directory; return True if fuse-overlayfs had marked it as opaque.

    It never writes the kernel's mark for users, so the command must have written that one.
    """
    is_marked = is_opaque(directory, _OPAQUE_MARKS)
    remove_overlay_marks(directory, ".")
    mark = stat_entry(directory, _OPAQUE_FILE)
    if mark is not None and stat.S_ISREG(mark.st_mode) and mark.st_size == 0:
        os.unlink(_OPAQUE_FILE, dir_fd=directory)
        is_marked = True
    return is_marked


def _deleted_name(name: str, status: os.stat_result) -> str | None:
    """Return the name that an entry says is deleted, or None.

    If fuse-overlayfs can't make device nodes, it makes an empty file `.wh.NAME`. A command can only rename one to that
    name, and then NAME is gone for the command, too. Everything else with such a name is the command's own work.
    """
    if is_whiteout(status):
        return name
    if name.startswith(_DELETED_PREFIX) and stat.S_ISREG(status.st_mode) and status.st_size == 0:
        return name[len(_DELETED_PREFIX) :]
    return None
