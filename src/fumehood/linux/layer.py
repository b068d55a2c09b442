"""The layer that an overlay leaves: its marks, what a command saw below it, and what the command changed."""

from __future__ import annotations

import errno
import os
import stat

from fumehood.core import changes as c
from fumehood.linux.gitindex import INDEX_NAME as INDEX
from fumehood.linux.gitindex import SeenIndexes, read_meaning, record_content_digests, same_content
from fumehood.linux.libc import Closable, Closing, listxattr
from fumehood.linux.nofollow import (
    PATH_ONLY,
    AccessibleTree,
    accessible_entry,
    entries,
    is_whiteout,
    join,
    kind_of,
    split,
    stamp_of,
    stat_entry,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fumehood.linux.checkpoints import Settled

ORIGIN = "user.overlay.origin"
IN_PLACE = "user.overlay.in-place"  # our own: this is the project's file itself, written, and no replacement
OPAQUE_MARKS = ("user.overlay.opaque", "trusted.overlay.opaque")
_WHITEOUT_MARKS = ("user.overlay.whiteout", "trusted.overlay.whiteout")
_LOOKS = 5  # at an index that somebody's git replaces meanwhile


# ---- The marks of overlays.

_RULES, _OTHERS = "system.posix_acl_default", 0x20


def list_attributes(directory: int, name: str) -> list[str]:
    """List the extended attributes of an entry without following it."""
    return listxattr(f"/proc/self/fd/{directory}/{name}", follow_symlinks=False)


def make_whiteout(directory: int, name: str) -> None:
    """Declare a name deleted: by a socket that nobody may use where there can be no such device, as on an overlay."""
    try:
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory)
    except PermissionError:
        os.mknod(name, stat.S_IFSOCK, dir_fd=directory)


def is_deletion_mark(directory: int, name: str, status: os.stat_result) -> bool:
    """Return True if an entry of a layer means that there is nothing."""
    if is_whiteout(status) or status.st_size or not stat.S_ISREG(status.st_mode):
        return is_whiteout(status)
    return not set(_WHITEOUT_MARKS).isdisjoint(list_attributes(directory, name))


def set_opaque(directory: int) -> None:
    """Declare deleted whatever lower layers have in a directory."""
    os.setxattr(directory, OPAQUE_MARKS[0], b"y")


def is_opaque(directory: int | str, marks: Sequence[str] = OPAQUE_MARKS) -> bool:
    """Return True if a directory of a layer hides what lies below it; a descriptor must be one that can be read."""
    names = listxattr(directory)
    return any(name in names and os.getxattr(directory, name) == b"y" for name in marks)


def mark_in_place(directory: int, name: str) -> None:
    """Mark a file of a layer as written in place; without the mark, it is taken for a replacement."""
    with accessible_entry(directory, name):
        try:
            os.setxattr(f"/proc/self/fd/{directory}/{name}", IN_PLACE, b"y", follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # not every file system has such attributes
                raise


def remove_overlay_marks(directory: int, name: str) -> None:
    """Remove every overlay's bookkeeping from an entry of a layer."""
    names = list_attributes(directory, name)
    remove_attributes(directory, name, [each for each in names if each.startswith(c.OVERLAY_PREFIXES)])


def remove_attributes(directory: int, name: str, names: Sequence[str]) -> None:
    """Remove attributes from an entry of a layer; those that are gone already were removed by an earlier try."""
    path = f"/proc/self/fd/{directory}/{name}"
    for attribute in names:
        try:
            _remove(path, attribute)
        except PermissionError:
            # A read-only file's attributes can't be changed, not even by its owner.
            with accessible_entry(directory, name):
                _remove(path, attribute)


def _remove(path: str, attribute: str) -> None:
    try:
        os.removexattr(path, attribute, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise


# ---- What a command saw below its own layer: held layers, the topmost first, and the project itself last.
#
# The kernel shows such a stack as one tree while the command runs. Afterwards, on our side of it, the same rules tell
# what was there: a name is found in the topmost part that has it, a whiteout ends the search, and so does an opaque
# directory, or anything else that is no directory, for all that would lie in it.

class LayerStack(Closable):
    """Layers, the topmost first, and below them a project, each named by a descriptor of its top directory."""

    def __init__(self, tops: Sequence[int], *, over_project: bool = True) -> None:
        self._tops = [AccessibleTree(top) for top in tops]
        self._layers = len(tops) - over_project
        self.has_layers = self._layers > 0
        # For each directory: which parts have it, and whether they hide all that lies below them.
        self._parts: dict[str, tuple[Sequence[int], bool]] = {"": (range(len(tops)), False)}

    def close(self) -> None:
        """Close up the directories that were opened to be looked at."""
        for each in self._tops:
            each.restore()

    def open_merged(self, path: str) -> MergedDirectory:
        """Open a directory as the command saw it; raises FileNotFoundError where it saw none."""
        merged = MergedDirectory()
        for number in (0,) if len(self._tops) == 1 else self._parts_of(path)[0]:
            try:
                merged.parts.append(self._tops[number].open_to_read(path, PATH_ONLY))
            except (FileNotFoundError, NotADirectoryError):
                continue  # it has gone since
            except OSError:
                merged.close()
                raise
            if number == self._layers:
                merged.live = merged.parts[-1]
        if not merged.parts:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return merged

    def open_topmost(self, path: str) -> tuple[int, int]:
        """Open the topmost part of a directory to be read; return that and the mode it had before anything was opened.

        The descriptor is the caller's.
        """
        top = self._tops[0 if len(self._tops) == 1 else self._parts_of(path)[0][0]]
        directory = top.open_to_read(path)
        return directory, top.modes.get(path, stat.S_IMODE(os.fstat(directory).st_mode))

    def hides_below(self, path: str) -> bool:
        """Return True if a directory hides all that would lie below the stack."""
        return self._parts_of(path)[1]

    def _parts_of(self, path: str) -> tuple[Sequence[int], bool]:
        """Return the numbers of the parts that have a directory; looked for once for each directory on the way."""
        missing = []
        here = path
        while here not in self._parts:
            missing.append(here)
            here = split(here)[0]
        for each in reversed(missing):
            self._parts[each] = self._find_parts(*split(each))
        return self._parts[path]

    def _find_parts(self, above: str, name: str) -> tuple[Sequence[int], bool]:
        having: list[int] = []
        for number in self._parts[above][0]:
            try:
                with Closing(self._tops[number].open_to_read(above)) as directory:
                    status = stat_entry(directory, name)
                if status is None:
                    continue
                if not stat.S_ISDIR(status.st_mode):
                    return having, True
                having.append(number)
                # Asked of layers only: in the project itself, such a mark means nothing.
                if number < self._layers:
                    with Closing(self._tops[number].open_to_read(join(above, name))) as directory:
                        if is_opaque(directory):
                            return having, True
            except (FileNotFoundError, NotADirectoryError):
                continue  # it has gone since
        return having, False

    def walk(self, top: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield every entry below a directory, parents first, following no symlink."""
        waiting = [top]
        while waiting:
            here = waiting.pop()
            with self.open_merged(here) as directory:
                try:
                    names = sorted(directory.names())
                except PermissionError:
                    continue  # somebody else's, who keeps us out: it waits for that
                for name in names:
                    status, _ = directory.look(name)
                    if status is None:
                        continue
                    path = join(here, name)
                    yield path, status
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(path)


class MergedDirectory(Closable):
    """One directory of a stack: descriptors of its parts, the topmost first; `live` is the project's own, or -1."""

    def __init__(self) -> None:
        self.parts: list[int] = []
        self.live = -1

    def look(self, name: str) -> tuple[os.stat_result | None, int]:
        """Return what is seen at a name, and the descriptor of the part that has it."""
        for part in self.parts:
            status = stat_entry(part, name)
            if status is not None and part != self.live and is_deletion_mark(part, name, status):
                return None, part
            if status is not None:
                return status, part
        return None, self.parts[-1]

    def names(self) -> set[str]:
        """Return every name that some part has, whiteouts included."""
        return {name for part in self.parts for name in entries(part)}

    def close(self) -> None:
        """Let go of the parts."""
        for part in self.parts:
            os.close(part)


# ---- Read the upper layer of an overlay after a run, and tell what the command changed.

def scan(
    root: int, upper: int, *below: int, mode: int = 0, indexes: SeenIndexes | None = None,
    settled: Settled | None = None, is_in_use: bool = False,
) -> list[c.Change]:  # fmt: skip
    """Return the change set of one layer: every path whose content, mode or kind differs from what lies below.

    `upper` is a descriptor of the layer's top directory, `below` are those of held layers, the topmost first,
    and of the project. What was copied up and is no change is removed from the layer, unless that `is_in_use` by a
    command that goes on. `mode` is that of the root when the command began, `indexes` are the project's of then;
    `settled` is what checkpoints have put into the project.
    """
    with LayerStack(below) as stack, AccessibleTree(upper) as layer:
        reading = _Scan(root, layer, stack, indexes, settled, is_in_use=is_in_use)
        # That of the root itself can change too, by the command or by a person meanwhile.
        status, live = os.stat(upper), os.stat(below[0])
        reading.same_directory(
            ".", status, live, has_other_mode=status.st_mode not in (mode, live.st_mode),
            has_others=has_other_attributes(upper, below[0], ".", ("user.",)),
        )  # fmt: skip
        while reading.merged:
            reading.directory(*reading.merged.pop())
        reading.flag_moved()
        reading.flag_copied_links()
    changes = c.by_path(reading.changes)
    record_content_digests(changes, upper, below)
    return changes


class _Scan:
    """One reading of one layer."""

    def __init__(
        self, root: int, layer: AccessibleTree, below: LayerStack, indexes: SeenIndexes | None, settled: Settled | None,
        *, is_in_use: bool,
    ) -> None:  # fmt: skip
        self._root = root
        self._layer = layer
        self._below = below
        self._indexes = indexes
        self._settled = settled
        self._is_in_use = is_in_use
        self.changes: list[c.Change] = []
        self.merged = [("", False)]  # directories to compare, and whether all the project has there is hidden
        self._owner = os.stat(layer.top).st_uid
        self._others_gone: set[tuple[int, int]] = set()  # files of other owners that went, by size and time
        self._links_gone: dict[tuple[int, int], int] = {}  # how many names files had that lost one, by the same
        self._links_to_unchanged: set[int] = set()  # inodes of the layer that stand for files that stay as they are

    def directory(self, path: str, hidden: bool) -> None:
        """Compare one directory that the layer and the project both have.

        An opaque one hides what the project has there: all of that is deleted. One below it hides as much, though it
        bears no mark itself.
        """
        with Closing(self._layer.open_to_read(path)) as upper, self._below.open_merged(path) as live:
            hidden = hidden or is_opaque(upper)
            names = os.listdir(upper)
            for name in names:
                self._entry(upper, live, name, join(path, name), hidden)
            for name in live.names().difference(names) if hidden else ():
                status, _ = live.look(name)
                if status is not None:
                    self._removed(join(path, name), status)

    def _entry(self, upper: int, live: MergedDirectory, name: str, path: str, hidden: bool) -> None:
        status = os.stat(name, dir_fd=upper, follow_symlinks=False)
        below, part = live.look(name)
        if is_deletion_mark(upper, name, status):
            if below is not None:
                self._removed(path, below)
            return
        kind = kind_of(status.st_mode)
        if kind != c.DIRECTORY and self.is_settled(path, status):
            self._forget(upper, name)
        elif below is not None and kind == c.DIRECTORY and stat.S_ISDIR(below.st_mode):
            self.same_directory(
                path, status, below, has_other_mode=status.st_mode != below.st_mode,
                has_others=has_other_attributes(upper, part, name),
            )  # fmt: skip
            self.merged.append((path, hidden))
        else:
            self._version(upper, live, part, path, status, below)

    def same_directory(
        self, path: str, status: os.stat_result, below: os.stat_result, *, has_other_mode: bool, has_others: bool
    ) -> None:
        """Take note of a directory's other mode, or other attributes, unless a checkpoint has settled that."""
        if (has_other_mode or has_others) and not self.is_settled(path, status):
            before, after = self.stamp_below(path, below), stamp_of(below)  # it stays the same inode
            if has_other_mode:
                after.mode = status.st_mode & 0o7777
            flags = (c.ATTRIBUTES,) if has_others else ()
            self.add(path, c.MODE, c.DIRECTORY, before=before, after=after, flags=flags)

    def _version(
        self, upper: int, live: MergedDirectory, part: int, path: str, status: os.stat_result,
        below: os.stat_result | None,
    ) -> None:  # fmt: skip
        """Compare an entry of the layer with what lies below it, if anything does; they are not two directories."""
        name, kind = split(path)[1], kind_of(status.st_mode)
        names = list_attributes(upper, name)
        change = c.classify(kind, c.ABSENT if below is None else kind_of(below.st_mode))
        if below is not None and change == c.MODIFIED:
            change = _difference(upper, part, name, status, below, names)
            before, after = self.stamp_below(path, below), _stamped(upper, name, status)
            if after.meaning and change == c.MODIFIED:
                before, is_refresh = self._index_below(upper, live, part, path, below, after)
                change = None if is_refresh else change
            if change is None:
                if status.st_nlink > 1 and kind == c.FILE:
                    self._links_to_unchanged.add(status.st_ino)
                self._forget(upper, name)
            else:
                flags: tuple[str, ...] = (c.NEW_GROUP,) if status.st_gid != below.st_gid else ()
                if status.st_uid != below.st_uid:
                    flags = (c.NEW_OWNER,)
                marked = self._cleaned(upper, name, names)
                self.add(path, change, kind, before=before, after=after, marked=marked, flags=flags)
        else:
            # Something where the project has nothing, or something of another kind.
            first = len(self.changes)
            self.add(
                path, change or c.ADDED, kind, before=None if below is None else self.stamp_below(path, below),
                after=_stamped(upper, name, status), marked=self._cleaned(upper, name, names),
                flags=_opening(upper, name, names),
            )  # fmt: skip
            if below is not None:
                self._gone_inside(path, below)
            if kind == c.DIRECTORY:
                self._new_inside(path)
                self._leave_out_shells(first)

    def _index_below(
        self, upper: int, live: MergedDirectory, part: int, path: str, below: os.stat_result, after: c.Stamp
    ) -> tuple[c.Stamp, bool]:
        """Return the stamp of a git index, of which the times are a cache, and whether a command only refreshed it.

        Where a person refreshed it meanwhile, it is still the version that the command saw. So it is where the command
        took over what the person had committed.
        """
        means = read_meaning(part, INDEX, below)
        for _ in range(_LOOKS):
            now = None if means else stat_entry(part, INDEX)
            if now is None or now.st_mtime_ns == below.st_mtime_ns:
                break
            below, means = now, read_meaning(part, INDEX, now)  # git replaced it in between
        before, seen = self.stamp_below(path, below), ""
        before.meaning = means
        if self._indexes is not None and part == live.live:
            seen = self._indexes.meaning(self._root, path, below, means)
            if means and seen and (seen == means or self._indexes.includes_committed(self._root, path, part, upper)):
                before.changed_ns = 0
        return before, after.meaning in (means, seen) and after.mode == before.mode

    def _new_inside(self, top: str) -> None:
        """List what came with a new directory; all of it can move in one step."""
        waiting = [top]
        while waiting:
            here = waiting.pop()
            with Closing(self._layer.open_to_read(here)) as directory:
                for name in os.listdir(directory):
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if is_deletion_mark(directory, name, status):
                        # Hides nothing, since nothing lies below, and must not travel with the tree.
                        if not self._is_in_use:
                            os.unlink(name, dir_fd=directory)
                        continue
                    after = _stamped(directory, name, status)
                    if after.kind != c.DIRECTORY and self.is_settled(f"{here}/{name}", status):
                        self._forget(directory, name)
                        continue
                    names = list_attributes(directory, name)
                    marked, flags = self._cleaned(directory, name, names), _opening(directory, name, names)
                    self.add(f"{here}/{name}", c.ADDED, after.kind, after=after, within=top, marked=marked, flags=flags)
                    if after.kind == c.DIRECTORY:
                        waiting.append(f"{here}/{name}")

    def _leave_out_shells(self, first: int) -> None:
        """Leave out directories of what a checkpoint has settled and others removed, where nothing in them is new."""
        if self._settled is None:
            return
        needed: set[str] = set()
        kept: list[c.Change] = []
        for change in reversed(self.changes[first:]):  # what lies in a directory comes after it
            is_added = change.kind == c.DIRECTORY and change.before is None
            is_shell = is_added and change.path not in needed and self._settled.is_around(self._root, change.path)
            if is_shell:
                # It would come with the directory around it, so it is taken out of the layer too.
                parent, name = split(change.path)
                try:
                    with Closing(self._layer.open_to_read(parent)) as directory:
                        if not self._is_in_use:
                            os.rmdir(name, dir_fd=directory)
                    continue
                except OSError:
                    pass  # the command has closed one of them, so what was settled in it is still there
            needed.add(split(change.path)[0])
            kept.append(change)
        self.changes[first:] = reversed(kept)

    def is_settled(self, path: str, status: os.stat_result) -> bool:
        return self._settled is not None and self._settled.is_unchanged(self._root, path, status)

    def stamp_below(self, path: str, below: os.stat_result) -> c.Stamp:
        """Return the stamp of what lies below; what a checkpoint of this command left there is not another's edit."""
        stamp = stamp_of(below)
        if self._settled is not None and self._settled.is_left(self._root, path, below):
            stamp.changed_ns = 0
        return stamp

    def _forget(self, directory: int, name: str) -> None:
        """Remove what is no change: left in a held layer, it would hide what a person writes there later."""
        if self._is_in_use:
            return
        try:
            os.unlink(name, dir_fd=directory)
        except PermissionError:
            return  # in a directory that the command made read-only: it stays, as no more than a copy

    def _cleaned(self, directory: int, name: str, names: list[str]) -> int:
        """Remove the one mark that every copied-up file has, while it is at hand; tell what is left to be removed."""
        marks = [each for each in names if each.startswith(c.OVERLAY_PREFIXES)]
        if marks != [ORIGIN] or self._is_in_use:
            return c.OTHER_MARKS if marks else 0
        try:
            os.removexattr(f"/proc/self/fd/{directory}/{name}", ORIGIN, follow_symlinks=False)
        except PermissionError:
            return c.ORIGIN_MARK  # a read-only file: its mode must be opened up for it
        return 0

    def _removed(self, path: str, below: os.stat_result) -> None:
        if self._settled is not None and self._settled.is_anothers(self._root, path):
            return
        self._gone(path, below)
        self._gone_inside(path, below)

    def _gone_inside(self, top: str, below: os.stat_result) -> None:
        """Deletions are never left out of a report: list everything that goes with a directory."""
        for path, status in self._below.walk(top) if stat.S_ISDIR(below.st_mode) else ():
            self._gone(path, status, within=top)

    def _gone(self, path: str, below: os.stat_result, within: str | None = None) -> None:
        if stat.S_ISREG(below.st_mode):
            if below.st_uid != self._owner:
                self._others_gone.add((below.st_size, below.st_mtime_ns))
            if below.st_nlink > 1 and not self._below.has_layers:  # what is held may have names in folds
                self._links_gone[below.st_size, below.st_mtime_ns] = below.st_nlink
        before = self.stamp_below(path, below)
        self.add(path, c.DELETED, before.kind, before=before, within=within)

    def flag_moved(self) -> None:
        """Flag what was another's file, of the same size and time, under a name that is gone: it has a new owner."""
        for change in self.changes if self._others_gone else ():
            after = change.after
            if after is None or change.change != c.ADDED or (after.size, after.modified_ns) not in self._others_gone:
                continue
            parent, name = split(change.path)
            with Closing(self._layer.open_to_read(parent)) as directory:
                if os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid == self._owner:
                    change.flags = (c.NEW_OWNER,)

    def flag_copied_links(self) -> None:
        """Flag new names of files that have others in the project: a link to what stays there becomes a copy.

        So does one that was renamed, which is told by size and time. A new directory is flagged with their number.
        """
        if not self._links_gone and not self._links_to_unchanged:
            return
        copied: dict[str, int] = {}
        for change in self.changes:
            after = change.after
            if after is None or after.kind != c.FILE or (change.before is not None and change.before.same(after)):
                continue
            names = self._links_gone.get((after.size, after.modified_ns), 0) if change.change == c.ADDED else 0
            if after.links < names or after.inode in self._links_to_unchanged:
                top = change.within or change.path
                copied[top] = copied.get(top, 0) + 1
        for change in self.changes:
            if change.path in copied:
                change.flags = (*change.flags, f"{c.COPIED_LINKS}:{copied[change.path]}")

    def add(self, path: str, change: str, kind: str, **more: object) -> None:
        self.changes.append(c.Change(self._root, path, change, kind, **more))  # type: ignore[arg-type]


def _stamped(directory: int, name: str, status: os.stat_result) -> c.Stamp:
    """Return the stamp of an entry of the layer; that of a git index with what it means."""
    return stamp_of(status, read_meaning(directory, name, status) if name == INDEX else "")


def _opening(directory: int, name: str, names: list[str]) -> tuple[str, ...]:
    """Flag a new directory in which, by its access rules, others may write whatever is made, whatever the umask."""
    if _RULES not in names:
        return ()
    rules = os.getxattr(f"/proc/self/fd/{directory}/{name}", _RULES, follow_symlinks=False)
    # Behind a version: what each is for and what it allows, in two bytes each, and whom it names.
    opens = any(rules[at] == _OTHERS and rules[at + 2] & 2 for at in range(4, len(rules), 8))
    return (c.OPENING,) if opens else ()


def _difference(
    upper: int, live: int, name: str, status: os.stat_result, below: os.stat_result, names: list[str]
) -> str | None:
    """Name the change between two entries of the same kind, or None: a copy-up alone is no change."""
    if stat.S_ISLNK(status.st_mode):
        return None if os.readlink(name, dir_fd=upper) == os.readlink(name, dir_fd=live) else c.MODIFIED
    if status.st_size != below.st_size or status.st_mtime_ns != below.st_mtime_ns:
        return c.MODIFIED
    if stat.S_ISREG(status.st_mode) and not _as_far_as_seen(lambda: same_content(upper, live, name)):
        return c.MODIFIED
    if not _as_far_as_seen(lambda: own_attributes(upper, name, names) == own_attributes(live, name)):
        return c.MODIFIED
    return None if status.st_mode == below.st_mode else c.MODE


def has_other_attributes(upper: int, live: int, name: str, kinds: tuple[str, ...] = ("user.", "system.")) -> bool:
    """Return True if a directory of the layer has other attributes or access rules than the one below.

    Only those that commands set: labels differ by where a directory lies. Access rules may not come along with it, and
    the layer's own top may have some by where it lies.
    """
    names = [each for each in list_attributes(upper, name) if each.startswith(kinds)]
    below = [each for each in list_attributes(live, name) if each in names or each.startswith("user.")]
    if not names and not below:
        return False
    return not _as_far_as_seen(lambda: own_attributes(upper, name, names) == own_attributes(live, name, below))


def _as_far_as_seen(compare: Callable[[], bool]) -> bool:
    """Compare; what may not be read counts as unchanged.

    Nothing hangs on that guess: a change of mode alone is taken over as the whole file too.
    """
    try:
        return compare()
    except PermissionError:
        return True


def own_attributes(directory: int, name: str, names: Sequence[str] | None = None) -> dict[str, bytes]:
    """Return the attributes of an entry that no overlay put there; `names` are all that it has, where known."""
    path = f"/proc/self/fd/{directory}/{name}"
    return {
        each: os.getxattr(path, each, follow_symlinks=False)
        for each in (list_attributes(directory, name) if names is None else names)
        if not each.startswith(c.OVERLAY_PREFIXES)
    }
