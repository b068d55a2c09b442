"""Capture writes in a copy of the root: what differs from the copy after the run becomes the layer.

It costs the time and space of a copy (none of the space where blocks can be shared), and works where no
overlay does. An overlay parts hard links at the first write, so the copy has none between its files. What we
may not read is stood in for by something empty of the same kind, and taken to be unchanged while it is empty.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import stat
from struct import Struct

from fumehood.errors import FumehoodError, OverlayUnavailable
from fumehood.linux.cache import replace_file
from fumehood.linux.checkpoints import let_time_pass
from fumehood.linux.copying import copy_entry, copy_file, copy_metadata, fill_directory
from fumehood.linux.gitindex import same_content
from fumehood.linux.layer import (
    LayerStack,
    has_other_attributes,
    make_whiteout,
    mark_in_place,
    own_attributes,
    remove_overlay_marks,
    set_opaque,
)
from fumehood.linux.libc import Closable, Closing, Descriptors, keeps_attributes
from fumehood.linux.nofollow import LISTING, AccessibleTree, is_whiteout, join, open_below, open_top, set_mode, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.linux.namespaces import Layer

    # For each directory of the copy, by its path: each name in it, with the record of what was copied there.
    Manifest = dict[str, dict[str, bytes]]

_GET_GENERATION = 0x80087601  # FS_IOC_GETVERSION

_COPIED, _STAND_IN, _LEFT_OUT = 0, 1, 2
_RECORD = Struct("<QqqqIHB")  # packed, because there may be a hundred thousand


class _Was:
    """What lay at a path of the copy before the run."""

    __slots__ = ("changed_ns", "how", "inode", "mode", "modified_ns", "size")

    def __init__(self, packed: bytes) -> None:
        # The size of a directory is its generation.
        self.inode, self.size, self.modified_ns, self.changed_ns, self.mode, _, self.how = _RECORD.unpack(packed)


def _generation(directory: int) -> int:
    """Return what tells one directory from a later one with the same inode number, where the system keeps it."""
    try:
        return int.from_bytes(fcntl.ioctl(directory, _GET_GENERATION, bytes(8))[:4], "little")
    except OSError:
        return 0


# ---- Copy the root, and note what was copied.

def begin(layer: Layer) -> None:
    """Copy a root, with the held layers over it, to `layer.merged`, and note what was copied."""
    manifest: Manifest = {}

    def make(reading: int, writing: int, name: str, path: str, status: os.stat_result | None) -> bool:
        """Copy an entry and note it; return False of a directory that stays empty."""
        if status is None or is_whiteout(status):
            return False
        is_to_fill = False
        if stat.S_ISDIR(status.st_mode):
            # What is a root of its own is only stood in for.
            is_to_fill = path not in layer.inner_roots and _is_readable(reading, name, status, os.R_OK | os.X_OK)
            record = _record_of_directory(writing, name, status, is_to_fill)
        else:
            try:
                record = _copy_other(reading, writing, name, status)
            except FileNotFoundError:
                return False  # it has just gone
        manifest.setdefault(split(path)[0], {})[name] = record
        return is_to_fill

    try:
        with (
            Descriptors(map(open_top, layer.lowers)) as lowers,
            Closing(os.open(layer.merged, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC)) as target,
            LayerStack(lowers) as shown,
        ):
            fill_directory(target, shown, make, may_vanish=True)
            with Closing(open_below(lowers[-1], "", LISTING)) as root:
                copy_metadata(root, target, os.fstat(root))
            # The layer's own top directory is what an overlay would show.
            set_mode(target, stat.S_IMODE(os.stat(layer.upper).st_mode))
        let_time_pass()  # whatever changes from now on has a later time than what was copied
        replace_file(_manifest_file(layer), marshal.dumps(manifest))
    except OSError as error:
        raise OverlayUnavailable(
            f"cannot copy {layer.root}: {error.strerror}: {_subject(error)}",
            hint="a copy needs as much space as the directory itself; fumehood doctor lists other ways",
        ) from error


def _subject(error: OSError) -> str:
    return os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "the copy"


def _manifest_file(layer: Layer) -> str:
    """Where the manifest is kept for the end, by whichever process."""
    return f"{os.path.dirname(layer.merged)}/manifest"


def can_finish(layer: Layer) -> bool:
    """Return True if what was copied is still known."""
    return os.path.exists(_manifest_file(layer))


def _copy_other(reading: int, writing: int, name: str, status: os.stat_result) -> bytes:
    how = _COPIED
    try:
        if not stat.S_ISREG(status.st_mode):
            copy_entry(reading, name, writing, name)
        elif _is_readable(reading, name, status, os.R_OK):
            copy_file(reading, name, writing, name)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0, dir_fd=writing))
            how = _STAND_IN
    except PermissionError:
        if not stat.S_ISCHR(status.st_mode) and not stat.S_ISBLK(status.st_mode):
            raise
        return _RECORD.pack(0, 0, 0, 0, status.st_mode, 0, _LEFT_OUT)  # devices are made by root only
    copy = os.stat(name, dir_fd=writing, follow_symlinks=False)
    return _RECORD.pack(copy.st_ino, copy.st_size, copy.st_mtime_ns, copy.st_ctime_ns, copy.st_mode, 0, how)


def _record_of_directory(writing: int, name: str, status: os.stat_result, is_readable: bool) -> bytes:
    with Closing(open_below(writing, name, LISTING)) as made:
        if not is_readable:
            os.fchmod(made, 0)
        how = _COPIED if is_readable else _STAND_IN
        return _RECORD.pack(os.fstat(made).st_ino, _generation(made), 0, 0, status.st_mode, 0, how)


def _is_readable(directory: int, name: str, status: os.stat_result, ability: int) -> bool:
    if status.st_uid == os.geteuid() and status.st_mode & 0o700 & ability << 6 == ability << 6:
        return True  # without asking the kernel, since it is nearly always so
    return os.access(name, ability, dir_fd=directory, effective_ids=True, follow_symlinks=False)


# ---- Tell a copy after the run from what was copied: whatever differs is moved into the layer.

def abandon(layer: Layer) -> None:
    """Leave the copy: it goes with the run's directory."""


def finish(layer: Layer) -> None:
    """Move what the command changed from the copy to `layer.upper`; raises FumehoodError.

    Comparing moves things, so it can't be done again: the manifest goes first.
    """
    try:
        with open(_manifest_file(layer), "rb") as file:
            manifest = marshal.load(file)  # noqa: S302  (nobody else can write in our state)
        os.unlink(_manifest_file(layer))
        with _Distilling(layer, manifest) as distilling:
            distilling.distil()
    except OSError as error:
        raise FumehoodError(
            f"cannot collect what the command wrote to {layer.root}: {error.strerror}: {_subject(error)}",
            hint="nothing was taken over; fumehood clean frees what is no longer needed",
        ) from error


class _Distilling(Closable):
    """One comparing of a copy with its manifest."""

    def __init__(self, layer: Layer, manifest: Manifest) -> None:
        self._manifest = manifest
        self._tops = Descriptors(map(open_top, (layer.merged, layer.upper, *layer.lowers)))
        self._merged, self._upper = AccessibleTree(self._tops[0]), AccessibleTree(self._tops[1])
        self._originals = LayerStack(self._tops[2:])
        self._made: dict[str, int] = {"": stat.S_IMODE(os.fstat(self._merged.top).st_mode)}
        self._has_marks = keeps_attributes(layer.upper)

    def close(self) -> None:
        self._originals.close()
        for each in (self._merged, self._upper):
            each.close_directories()
        self._tops.close()

    def distil(self) -> None:
        """Compare directory by directory, then close up the layer's directories, the deepest first."""
        os.close(self._upper.open_to_change(""))
        waiting = [""]
        while waiting:
            waiting += self._directory(waiting.pop())
        self._upper.restore()
        for path, mode in reversed(self._made.items()):
            # Each gets what belongs to the one it stands for.
            with (
                Closing(self._merged.open_as_is(path, LISTING)) as reading,
                Closing(self._upper.open_as_is(path, LISTING)) as writing,
            ):
                copy_metadata(reading, writing, os.fstat(reading))
                set_mode(writing, mode)

    def _directory(self, path: str) -> list[str]:
        """Take over what differs in a directory that is still the same one; return those like it inside."""
        before = self._manifest.pop(path, {})
        inside: list[str] = []
        with Closing(self._merged.open_to_change(path)) as here:
            for name in os.listdir(here):
                status = os.stat(name, dir_fd=here, follow_symlinks=False)
                if is_whiteout(status):
                    continue  # an overlay would not have let the command make one; the name is as good as gone
                packed = before.pop(name, None)
                was = None if packed is None else _Was(packed)
                if was is not None and self._is_same_directory(here, name, join(path, name), status, was):
                    inside.append(join(path, name))
                elif was is None or not self._is_unchanged(here, name, path, status, was):
                    self._take(here, name, path, status, was)
            for name, packed in before.items():
                if _Was(packed).how != _LEFT_OUT:
                    with Closing(self._layer_directory(path)) as directory:
                        make_whiteout(directory, name)
        return inside

    def _is_same_directory(self, here: int, name: str, path: str, status: os.stat_result, was: _Was) -> bool:
        """Return True if what is in a directory must be compared one by one.

        Where the layer can have no mark that hides what was there, so must that of one which took its place.
        """
        if not (stat.S_ISDIR(status.st_mode) and stat.S_ISDIR(was.mode)):
            return False
        with Closing(self._merged.open_to_change(path)) as directory:
            is_another = status.st_ino != was.inode or _generation(directory) != was.size
        if is_another and (self._has_marks or was.how != _COPIED):
            return False
        if is_another:
            self._make_way(path)
        elif was.how == _STAND_IN:
            self._merged.modes[path] = stat.S_IMODE(was.mode)  # that of what it stands for
        elif status.st_mode != was.mode or self._is_so(path, lambda _, there: has_other_attributes(here, there, name)):
            self._make_way(path)
        return True

    def _is_so(self, path: str, claim: Callable[[os.stat_result, int], bool]) -> bool:
        """Return True if something is true of what was copied, by its status and its directory."""
        parent, name = split(path)
        try:
            with self._originals.open_merged(parent) as originals:
                original, there = originals.look(name)
                return original is not None and claim(original, there)
        except OSError:
            return False  # gone or replaced meanwhile: the apply will see that it is a conflict

    def _is_unchanged(self, here: int, name: str, parent: str, status: os.stat_result, was: _Was) -> bool:
        if status.st_ino != was.inode or stat.S_IFMT(status.st_mode) != stat.S_IFMT(was.mode):
            return False
        if was.how == _STAND_IN:
            return status.st_size == 0
        if status.st_ctime_ns == was.changed_ns:
            return True
        if (status.st_size, status.st_mtime_ns, status.st_mode) != (was.size, was.modified_ns, was.mode):
            return False
        # A link made to it, or a mode set back, leaves a file as it was.
        return self._is_so(
            join(parent, name),
            lambda original, there: _is_alike(here, there, name, status.st_mode, original.st_mode),
        )

    def _layer_directory(self, path: str) -> int:
        """Open a directory of the layer, made with those above it."""
        self._make_way(path)
        return self._upper.open_as_is(path)

    def _make_way(self, path: str) -> None:
        missing = []
        here = path
        while here not in self._made:
            missing.append(here)
            here = split(here)[0]
        for each in reversed(missing):
            above, name = split(each)
            with Closing(self._upper.open_as_is(above)) as directory:
                os.mkdir(name, 0o700, dir_fd=directory)
            with Closing(self._merged.open_as_is(each)) as like:
                mode = stat.S_IMODE(os.fstat(like).st_mode)
            self._made[each] = self._merged.modes.get(each, mode)  # as the command left it

    def _take(self, here: int, name: str, parent: str, status: os.stat_result, was: _Was | None) -> None:
        """Move an entry into the layer, with all below it."""
        path = join(parent, name)
        with Closing(self._layer_directory(parent)) as target:
            if not stat.S_ISDIR(status.st_mode):
                os.rename(name, name, src_dir_fd=here, dst_dir_fd=target)
                remove_overlay_marks(target, name)
                if was is not None and status.st_ino == was.inode and self._is_so(
                    path, lambda original, _: stat.S_ISREG(original.st_mode) and original.st_nlink > 1
                ):
                    mark_in_place(target, name)
                return
            os.close(self._merged.open_to_change(path))  # a directory must be writable to change parents
            os.rename(name, name, src_dir_fd=here, dst_dir_fd=target)
            self._merged.forget(path)
            if path in self._merged.modes:
                self._upper.modes[path] = self._merged.modes.pop(path)
            self._clean_tree(path)
            if was is not None and (self._has_marks or stat.S_ISDIR(was.mode)):
                with Closing(open_below(target, name, LISTING)) as directory:
                    set_opaque(directory)

    def _clean_tree(self, top: str) -> None:
        """Remove from a new tree what only an overlay may put there: a command could have forged it."""
        waiting = [top]
        while waiting:
            path = waiting.pop()
            with Closing(self._upper.open_to_change(path)) as here:
                remove_overlay_marks(here, ".")
                for name in os.listdir(here):
                    status = os.stat(name, dir_fd=here, follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(f"{path}/{name}")
                    elif is_whiteout(status):
                        os.unlink(name, dir_fd=here)
                    else:
                        remove_overlay_marks(here, name)


def _is_alike(one: int, other: int, name: str, mode: int, other_mode: int) -> bool:
    """Return True if two entries of one name are alike: kind, target, content, attributes."""
    if stat.S_IFMT(mode) != stat.S_IFMT(other_mode):
        return False
    if stat.S_ISLNK(mode):
        return os.readlink(name, dir_fd=one) == os.readlink(name, dir_fd=other)
    if not stat.S_ISREG(mode):
        return True
    return own_attributes(one, name) == own_attributes(other, name) and same_content(one, other, name)
