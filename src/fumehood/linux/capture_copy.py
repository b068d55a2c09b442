"""Capture writes in a copy of the root: what differs from the copy after the run becomes the layer.

A copy costs time and space (no space if blocks can be shared), and works where no overlay does. Like an overlay, it
breaks hard links: no two files of the copy share an inode. For what we may not read, the copy has an empty stand-in of
the same kind, which counts as unchanged as long as it is empty.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import stat
from struct import Struct

from fumehood.errors import FumehoodError, OverlayUnavailable
from fumehood.linux.cache import replace_file
from fumehood.linux.checkpoints import wait_for_next_file_time
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
from fumehood.linux.libc import Closable, Closing, Descriptors, has_user_attributes
from fumehood.linux.nofollow import LISTING, AccessibleTree, is_whiteout, join, open_below, open_top, set_mode, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.linux.namespaces import Layer

    # For each directory of the copy, by its path: the names in it, each with a packed record of what was copied.
    Manifest = dict[str, dict[str, bytes]]

_GET_GENERATION = 0x80087601  # FS_IOC_GETVERSION

_COPIED, _STAND_IN, _LEFT_OUT = 0, 1, 2
_RECORD = Struct("<QqqqIHB")  # packed, because there may be a hundred thousand


class _Record:
    """What was at a path of the copy before the run."""

    __slots__ = ("changed_ns", "how", "inode", "mode", "modified_ns", "size")

    def __init__(self, packed: bytes) -> None:
        # For a directory, `size` is its generation.
        self.inode, self.size, self.modified_ns, self.changed_ns, self.mode, _, self.how = _RECORD.unpack(packed)


def _generation(directory: int) -> int:
    """Return a number that differs for a later directory with the same inode number; 0 if the system has none."""
    try:
        return int.from_bytes(fcntl.ioctl(directory, _GET_GENERATION, bytes(8))[:4], "little")
    except OSError:
        return 0


# ---- Copy the root, and record what was copied.


def begin(layer: Layer) -> None:
    """Copy a root, with the held layers over it, to `layer.merged`, and record what was copied."""
    manifest: Manifest = {}

    def make(reading: int, writing: int, name: str, path: str, status: os.stat_result | None) -> bool:
        """Copy an entry and record it; return False for a directory that stays empty."""
        if status is None or is_whiteout(status):
            return False
        is_to_fill = False
        if stat.S_ISDIR(status.st_mode):
            # A directory that is a root of its own only gets a stand-in.
            is_to_fill = path not in layer.inner_roots and _is_readable(reading, name, status, os.R_OK | os.X_OK)
            record = _record_directory(writing, name, status, is_to_fill)
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
            LayerStack(lowers) as stack,
        ):
            fill_directory(target, stack, make, may_vanish=True)
            with Closing(open_below(lowers[-1], "", LISTING)) as root:
                copy_metadata(root, target, os.fstat(root))
            # An overlay would show the mode of the layer's own top directory.
            set_mode(target, stat.S_IMODE(os.stat(layer.upper).st_mode))
        wait_for_next_file_time()  # so that every later change has a later time than the copy
        replace_file(_manifest_file(layer), marshal.dumps(manifest))
    except OSError as error:
        raise OverlayUnavailable(
            f"cannot copy {layer.root}: {error.strerror}: {_file_of(error)}",
            hint="a copy needs as much space as the directory itself; fumehood doctor lists other ways",
        ) from error


def _file_of(error: OSError) -> str:
    return os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "the copy"


def _manifest_file(layer: Layer) -> str:
    """Return where the manifest is kept: another process may have to finish."""
    return f"{os.path.dirname(layer.merged)}/manifest"


def can_finish(layer: Layer) -> bool:
    """Return True if it is still known what was copied."""
    return os.path.exists(_manifest_file(layer))


def _copy_other(reading: int, writing: int, name: str, status: os.stat_result) -> bytes:
    """Copy an entry that is not a directory; return its record."""
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
        return _RECORD.pack(0, 0, 0, 0, status.st_mode, 0, _LEFT_OUT)  # only root can make devices
    copy = os.stat(name, dir_fd=writing, follow_symlinks=False)
    return _RECORD.pack(copy.st_ino, copy.st_size, copy.st_mtime_ns, copy.st_ctime_ns, copy.st_mode, 0, how)


def _record_directory(writing: int, name: str, status: os.stat_result, is_readable: bool) -> bytes:
    with Closing(open_below(writing, name, LISTING)) as directory:
        if not is_readable:
            os.fchmod(directory, 0)
        how = _COPIED if is_readable else _STAND_IN
        return _RECORD.pack(os.fstat(directory).st_ino, _generation(directory), 0, 0, status.st_mode, 0, how)


def _is_readable(directory: int, name: str, status: os.stat_result, ability: int) -> bool:
    if status.st_uid == os.geteuid() and status.st_mode & 0o700 & ability << 6 == ability << 6:
        return True  # nearly always; the kernel need not be asked
    return os.access(name, ability, dir_fd=directory, effective_ids=True, follow_symlinks=False)


# ---- Compare the copy with its manifest after the run: every difference is moved into the layer.


def abandon(layer: Layer) -> None:
    """Do nothing: the copy is removed with the run's directory."""


def finish(layer: Layer) -> None:
    """Move what the command changed from the copy to `layer.upper`; raises FumehoodError.

    This can't be repeated, because the comparison moves entries away. So the manifest is removed first.
    """
    try:
        with open(_manifest_file(layer), "rb") as file:
            manifest = marshal.load(file)  # noqa: S302  (nobody else can write in our state)
        os.unlink(_manifest_file(layer))
        with _Comparison(layer, manifest) as comparison:
            comparison.fill_layer()
    except OSError as error:
        raise FumehoodError(
            f"cannot collect what the command wrote to {layer.root}: {error.strerror}: {_file_of(error)}",
            hint="nothing was taken over; fumehood clean frees what is no longer needed",
        ) from error


class _Comparison(Closable):
    """The comparison of a copy with its manifest."""

    def __init__(self, layer: Layer, manifest: Manifest) -> None:
        self._manifest = manifest
        self._tops = Descriptors(map(open_top, (layer.merged, layer.upper, *layer.lowers)))
        self._copy, self._upper = AccessibleTree(self._tops[0]), AccessibleTree(self._tops[1])
        self._originals = LayerStack(self._tops[2:])
        # The directories that the layer has, with the modes that they get at the end.
        self._modes: dict[str, int] = {"": stat.S_IMODE(os.fstat(self._copy.top).st_mode)}
        self._can_mark = has_user_attributes(layer.upper)

    def close(self) -> None:
        self._originals.close()
        for tree in (self._copy, self._upper):
            tree.close_directories()
        self._tops.close()

    def fill_layer(self) -> None:
        """Compare directory by directory; then give the layer's directories their metadata, the deepest first."""
        os.close(self._upper.open_to_change(""))
        waiting = [""]
        while waiting:
            waiting += self._compare_directory(waiting.pop())
        self._upper.restore()
        for path, mode in reversed(self._modes.items()):
            with (
                Closing(self._copy.open_as_is(path, LISTING)) as reading,
                Closing(self._upper.open_as_is(path, LISTING)) as writing,
            ):
                copy_metadata(reading, writing, os.fstat(reading))
                set_mode(writing, mode)

    def _compare_directory(self, path: str) -> list[str]:
        """Move the differences in a directory that existed before; return the directories in it to compare."""
        records = self._manifest.pop(path, {})
        to_compare: list[str] = []
        with Closing(self._copy.open_to_change(path)) as directory:
            for name in os.listdir(directory):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if is_whiteout(status):
                    continue  # an overlay would not have let the command make it; the name counts as deleted
                packed = records.pop(name, None)
                record = None if packed is None else _Record(packed)
                if record is not None and self._is_same_directory(directory, name, join(path, name), status, record):
                    to_compare.append(join(path, name))
                elif record is None or not self._is_unchanged(directory, name, path, status, record):
                    self._move_to_layer(directory, name, path, status, record)
            for name, packed in records.items():
                if _Record(packed).how != _LEFT_OUT:
                    with Closing(self._open_layer_directory(path)) as layer_directory:
                        make_whiteout(layer_directory, name)
        return to_compare

    def _is_same_directory(self, parent: int, name: str, path: str, status: os.stat_result, record: _Record) -> bool:
        """Return True if the entries of a directory must be compared one by one.

        A new directory in the place of an old one hides what was there, by a mark. If the layer can have no marks, its
        entries must be compared, too.
        """
        if not (stat.S_ISDIR(status.st_mode) and stat.S_ISDIR(record.mode)):
            return False
        with Closing(self._copy.open_to_change(path)) as directory:
            is_new = status.st_ino != record.inode or _generation(directory) != record.size
        if is_new and (self._can_mark or record.how != _COPIED):
            return False
        if is_new:
            self._make_layer_directories(path)
        elif record.how == _STAND_IN:
            self._copy.modes[path] = stat.S_IMODE(record.mode)  # the original's mode
        elif status.st_mode != record.mode or self._check_original(
            path, lambda _, originals: has_other_attributes(parent, originals, name)
        ):
            self._make_layer_directories(path)
        return True

    def _check_original(self, path: str, check: Callable[[os.stat_result, int], bool]) -> bool:
        """Return what a function returns for an original's status and directory; False if there is no original."""
        parent, name = split(path)
        try:
            with self._originals.open_merged(parent) as directory:
                original, part = directory.look(name)
                return original is not None and check(original, part)
        except OSError:
            return False  # removed or replaced meanwhile: the apply will see the conflict

    def _is_unchanged(self, directory: int, name: str, parent: str, status: os.stat_result, record: _Record) -> bool:
        if status.st_ino != record.inode or stat.S_IFMT(status.st_mode) != stat.S_IFMT(record.mode):
            return False
        if record.how == _STAND_IN:
            return status.st_size == 0
        if status.st_ctime_ns == record.changed_ns:
            return True
        if (status.st_size, status.st_mtime_ns, status.st_mode) != (record.size, record.modified_ns, record.mode):
            return False
        # The file may be as before: perhaps it only got a link, or another mode for a while.
        return self._check_original(
            join(parent, name),
            lambda original, originals: _is_alike(directory, originals, name, status.st_mode, original.st_mode),
        )

    def _open_layer_directory(self, path: str) -> int:
        """Open a directory of the layer, which is made if it is missing."""
        self._make_layer_directories(path)
        return self._upper.open_as_is(path)

    def _make_layer_directories(self, path: str) -> None:
        """Make a directory in the layer, and those above it, if they are missing."""
        missing = []
        while path not in self._modes:
            missing.append(path)
            path = split(path)[0]
        for directory_path in reversed(missing):
            above, name = split(directory_path)
            with Closing(self._upper.open_as_is(above)) as directory:
                os.mkdir(name, 0o700, dir_fd=directory)
            with Closing(self._copy.open_as_is(directory_path)) as copy:
                mode = stat.S_IMODE(os.fstat(copy).st_mode)
            # The mode that the command left, before we made the directory accessible.
            self._modes[directory_path] = self._copy.modes.get(directory_path, mode)

    def _move_to_layer(
        self, directory: int, name: str, parent: str, status: os.stat_result, record: _Record | None
    ) -> None:
        """Move an entry from the copy into the layer, with everything in it."""
        path = join(parent, name)
        with Closing(self._open_layer_directory(parent)) as target:
            if not stat.S_ISDIR(status.st_mode):
                os.rename(name, name, src_dir_fd=directory, dst_dir_fd=target)
                remove_overlay_marks(target, name)
                is_in_place = record is not None and status.st_ino == record.inode
                if is_in_place and self._check_original(path, lambda original, _: _has_other_names(original)):
                    mark_in_place(target, name)
                return
            os.close(self._copy.open_to_change(path))  # a directory must be writable to change parents
            os.rename(name, name, src_dir_fd=directory, dst_dir_fd=target)
            self._copy.forget(path)
            if path in self._copy.modes:
                self._upper.modes[path] = self._copy.modes.pop(path)
            self._remove_forged_marks(path)
            if record is not None and (self._can_mark or stat.S_ISDIR(record.mode)):
                with Closing(open_below(target, name, LISTING)) as new_directory:
                    set_opaque(new_directory)

    def _remove_forged_marks(self, top: str) -> None:
        """Remove whiteouts and overlay attributes from a new tree: a command could have forged them."""
        waiting = [top]
        while waiting:
            path = waiting.pop()
            with Closing(self._upper.open_to_change(path)) as directory:
                remove_overlay_marks(directory, ".")
                for name in os.listdir(directory):
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(f"{path}/{name}")
                    elif is_whiteout(status):
                        os.unlink(name, dir_fd=directory)
                    else:
                        remove_overlay_marks(directory, name)


def _has_other_names(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 1


def _is_alike(first_dir: int, second_dir: int, name: str, first_mode: int, second_mode: int) -> bool:
    """Return True if two directories have the same at a name: kind, link target, content and attributes."""
    if stat.S_IFMT(first_mode) != stat.S_IFMT(second_mode):
        return False
    if stat.S_ISLNK(first_mode):
        return os.readlink(name, dir_fd=first_dir) == os.readlink(name, dir_fd=second_dir)
    if not stat.S_ISREG(first_mode):
        return True
    return own_attributes(first_dir, name) == own_attributes(second_dir, name) and same_content(
        first_dir, second_dir, name
    )
