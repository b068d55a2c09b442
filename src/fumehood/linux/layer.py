"""Read the layer that an overlay leaves: its marks, the tree that a command saw below it, the changes it made."""

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

    from fumehood.linux.checkpoints import SettledEntries

ORIGIN = "user.overlay.origin"
IN_PLACE = "user.overlay.in-place"  # our own mark: the command wrote the file in place, it did not replace it
OPAQUE_MARKS = ("user.overlay.opaque", "trusted.overlay.opaque")
_WHITEOUT_MARKS = ("user.overlay.whiteout", "trusted.overlay.whiteout")
_INDEX_READ_ATTEMPTS = 5  # of an index that another git process replaces meanwhile


# ---- The marks of overlays.

_ACL_ATTRIBUTE, _ACL_OTHERS = "system.posix_acl_default", 0x20


def list_attributes(directory: int, name: str) -> list[str]:
    """List the extended attributes of an entry without following it."""
    return listxattr(f"/proc/self/fd/{directory}/{name}", follow_symlinks=False)


def make_whiteout(directory: int, name: str) -> None:
    """Mark a name as deleted by a whiteout device, or by a closed socket where none can be made, as on an overlay."""
    try:
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory)
    except PermissionError:
        os.mknod(name, stat.S_IFSOCK, dir_fd=directory)


def is_deletion_mark(directory: int, name: str, status: os.stat_result) -> bool:
    """Return True if an entry of a layer says that its name is deleted."""
    if is_whiteout(status) or status.st_size or not stat.S_ISREG(status.st_mode):
        return is_whiteout(status)
    return not set(_WHITEOUT_MARKS).isdisjoint(list_attributes(directory, name))


def set_opaque(directory: int) -> None:
    """Mark a directory as hiding what lower layers have in it."""
    os.setxattr(directory, OPAQUE_MARKS[0], b"y")


def is_opaque(directory: int | str, marks: Sequence[str] = OPAQUE_MARKS) -> bool:
    """Return True if a directory of a layer hides what lower layers have in it; a descriptor must be readable."""
    names = listxattr(directory)
    return any(name in names and os.getxattr(directory, name) == b"y" for name in marks)


def mark_in_place(directory: int, name: str) -> None:
    """Mark a file of a layer as written in place; a file without the mark is assumed to be a replacement."""
    with accessible_entry(directory, name):
        try:
            os.setxattr(f"/proc/self/fd/{directory}/{name}", IN_PLACE, b"y", follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # not every file system has such attributes
                raise


def remove_overlay_marks(directory: int, name: str) -> None:
    """Remove the attributes of overlays from an entry of a layer."""
    names = list_attributes(directory, name)
    remove_attributes(directory, name, [attribute for attribute in names if attribute.startswith(c.OVERLAY_PREFIXES)])


def remove_attributes(directory: int, name: str, attribute_names: Sequence[str]) -> None:
    """Remove attributes from an entry of a layer; one that is missing was removed by an earlier attempt."""
    path = f"/proc/self/fd/{directory}/{name}"
    for attribute in attribute_names:
        try:
            _remove(path, attribute)
        except PermissionError:
            # Not even the owner can change the attributes of a read-only file.
            with accessible_entry(directory, name):
                _remove(path, attribute)


def _remove(path: str, attribute: str) -> None:
    try:
        os.removexattr(path, attribute, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise


# ---- The tree that a command saw below its own layer: held layers, the topmost first, and the project itself last.
#
# While the command runs, the kernel shows such a stack as one tree. Afterwards we apply the kernel's rules ourselves:
# an entry comes from the topmost part that has its name. A whiteout ends the search, and so does an opaque directory,
# or an entry that is not a directory, for everything that would lie in it.

class LayerStack(Closable):
    """Layers, the topmost first, over a project; each is given as a descriptor of its top directory."""

    def __init__(self, tops: Sequence[int], *, over_project: bool = True) -> None:
        self._tops = [AccessibleTree(top) for top in tops]
        self._layers = len(tops) - over_project
        self.has_layers = self._layers > 0
        # For each directory: the numbers of the parts that have it, and whether these hide all lower parts.
        self._parts: dict[str, tuple[Sequence[int], bool]] = {"": (range(len(tops)), False)}

    def close(self) -> None:
        """Restore the modes of directories that were made accessible."""
        for tree in self._tops:
            tree.restore()

    def open_merged(self, path: str) -> MergedDirectory:
        """Open a directory as the command saw it; raises FileNotFoundError if there was none."""
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
        """Open the topmost part of a directory for reading; return the descriptor and the directory's own mode.

        The mode is the one before we made the directory accessible. The caller closes the descriptor.
        """
        top = self._tops[0 if len(self._tops) == 1 else self._parts_of(path)[0][0]]
        directory = top.open_to_read(path)
        return directory, top.modes.get(path, stat.S_IMODE(os.fstat(directory).st_mode))

    def hides_below(self, path: str) -> bool:
        """Return True if a directory hides everything below the stack."""
        return self._parts_of(path)[1]

    def _parts_of(self, path: str) -> tuple[Sequence[int], bool]:
        """Return the numbers of the parts that have a directory, and whether they hide all lower parts.

        Each directory on the way is looked up once.
        """
        missing = []
        directory = path
        while directory not in self._parts:
            missing.append(directory)
            directory = split(directory)[0]
        for directory_path in reversed(missing):
            self._parts[directory_path] = self._find_parts(*split(directory_path))
        return self._parts[path]

    def _find_parts(self, parent: str, name: str) -> tuple[Sequence[int], bool]:
        parts: list[int] = []
        for number in self._parts[parent][0]:
            try:
                with Closing(self._tops[number].open_to_read(parent)) as directory:
                    status = stat_entry(directory, name)
                if status is None:
                    continue
                if not stat.S_ISDIR(status.st_mode):
                    return parts, True
                parts.append(number)
                # Only in layers: in the project itself, such a mark means nothing.
                if number < self._layers:
                    with Closing(self._tops[number].open_to_read(join(parent, name))) as directory:
                        if is_opaque(directory):
                            return parts, True
            except (FileNotFoundError, NotADirectoryError):
                continue  # it has gone since
        return parts, False

    def walk(self, top: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield every entry below a directory, parents first, following no symlink."""
        directories = [top]
        while directories:
            directory_path = directories.pop()
            with self.open_merged(directory_path) as directory:
                try:
                    names = sorted(directory.names())
                except PermissionError:
                    continue  # it belongs to another user and is closed to us; its change will be held for that
                for name in names:
                    status, _ = directory.look(name)
                    if status is None:
                        continue
                    path = join(directory_path, name)
                    yield path, status
                    if stat.S_ISDIR(status.st_mode):
                        directories.append(path)


class MergedDirectory(Closable):
    """One directory of a stack: descriptors of its parts, the topmost first; `live` is the project's, or -1."""

    def __init__(self) -> None:
        self.parts: list[int] = []
        self.live = -1

    def look(self, name: str) -> tuple[os.stat_result | None, int]:
        """Return the status of the visible entry of a name, and the descriptor of the part that has it."""
        for part in self.parts:
            status = stat_entry(part, name)
            if status is not None and part != self.live and is_deletion_mark(part, name, status):
                return None, part
            if status is not None:
                return status, part
        return None, self.parts[-1]

    def names(self) -> set[str]:
        """Return the names of all parts, those of whiteouts too."""
        return {name for part in self.parts for name in entries(part)}

    def close(self) -> None:
        """Close the parts."""
        for part in self.parts:
            os.close(part)


# ---- Scan the upper layer of an overlay after a run for what the command changed.

def scan(
    root: int, upper: int, *below: int, mode: int = 0, indexes: SeenIndexes | None = None,
    settled: SettledEntries | None = None, is_in_use: bool = False,
) -> list[c.Change]:  # fmt: skip
    """Return the changes of one layer: every path whose content, mode or kind differs from what lies below.

    `upper` is a descriptor of the layer's top directory; `below` are descriptors of held layers, the topmost first, and
    of the project. Entries that were copied up and not changed are removed from the layer, unless it `is_in_use` by a
    command that is still running. `mode` and `indexes` are the root's mode and git indexes when the command began.
    `settled` is what checkpoints have put into the project.
    """
    with LayerStack(below) as stack, AccessibleTree(upper) as layer:
        scan_state = _LayerScan(root, layer, stack, indexes, settled, is_in_use=is_in_use)
        # The mode of the root itself can change too, by the command or meanwhile by a person.
        status, live = os.stat(upper), os.stat(below[0])
        scan_state.compare_directory_metadata(
            ".", status, live, has_other_mode=status.st_mode not in (mode, live.st_mode),
            has_others=has_other_attributes(upper, below[0], ".", ("user.",)),
        )  # fmt: skip
        while scan_state.merged:
            scan_state.directory(*scan_state.merged.pop())
        scan_state.flag_changed_owners()
        scan_state.flag_copied_links()
    changes = c.by_path(scan_state.changes)
    record_content_digests(changes, upper, below)
    return changes


class _LayerScan:
    """One scan of one layer."""

    def __init__(
        self, root: int, layer: AccessibleTree, below: LayerStack, indexes: SeenIndexes | None,
        settled: SettledEntries | None, *, is_in_use: bool,
    ) -> None:  # fmt: skip
        self._root = root
        self._layer = layer
        self._below = below
        self._indexes = indexes
        self._settled = settled
        self._is_in_use = is_in_use
        self.changes: list[c.Change] = []
        self.merged = [("", False)]  # directories to compare, and whether the layer hides the project's entries there
        self._owner = os.stat(layer.top).st_uid
        self._removed_of_other_owners: set[tuple[int, int]] = set()  # size and time of removed files of other owners
        self._removed_links: dict[tuple[int, int], int] = {}  # number of names of removed files, by size and time
        self._links_to_unchanged: set[int] = set()  # inodes in the layer of files that did not change

    def directory(self, path: str, is_hidden: bool) -> None:
        """Compare one directory that the layer and the project both have.

        If it is opaque, or inside an opaque one, every entry that only the project has is deleted.
        """
        with Closing(self._layer.open_to_read(path)) as upper, self._below.open_merged(path) as live:
            is_hidden = is_hidden or is_opaque(upper)
            names = os.listdir(upper)
            for name in names:
                self._scan_entry(upper, live, name, join(path, name), is_hidden)
            for name in live.names().difference(names) if is_hidden else ():
                status, _ = live.look(name)
                if status is not None:
                    self._add_removed(join(path, name), status)

    def _scan_entry(self, upper: int, live: MergedDirectory, name: str, path: str, is_hidden: bool) -> None:
        status = os.stat(name, dir_fd=upper, follow_symlinks=False)
        below, part = live.look(name)
        if is_deletion_mark(upper, name, status):
            if below is not None:
                self._add_removed(path, below)
            return
        kind = kind_of(status.st_mode)
        if kind != c.DIRECTORY and self.is_settled(path, status):
            self._remove_unchanged(upper, name)
        elif below is not None and kind == c.DIRECTORY and stat.S_ISDIR(below.st_mode):
            self.compare_directory_metadata(
                path, status, below, has_other_mode=status.st_mode != below.st_mode,
                has_others=has_other_attributes(upper, part, name),
            )  # fmt: skip
            self.merged.append((path, is_hidden))
        else:
            self._compare_entry(upper, live, part, path, status, below)

    def compare_directory_metadata(
        self, path: str, status: os.stat_result, below: os.stat_result, *, has_other_mode: bool, has_others: bool
    ) -> None:
        """Add a change if a directory has another mode or other attributes, unless a checkpoint has settled that."""
        if (has_other_mode or has_others) and not self.is_settled(path, status):
            before, after = self.stamp_below(path, below), stamp_of(below)  # it stays the same inode
            if has_other_mode:
                after.mode = status.st_mode & 0o7777
            flags = (c.ATTRIBUTES,) if has_others else ()
            self.add(path, c.MODE, c.DIRECTORY, before=before, after=after, flags=flags)

    def _compare_entry(
        self, upper: int, live: MergedDirectory, part: int, path: str, status: os.stat_result,
        below: os.stat_result | None,
    ) -> None:  # fmt: skip
        """Compare an entry of the layer with the entry below it, if there is one; at least one is not a directory."""
        name, kind = split(path)[1], kind_of(status.st_mode)
        names = list_attributes(upper, name)
        change = c.classify(kind, c.ABSENT if below is None else kind_of(below.st_mode))
        if below is not None and change == c.MODIFIED:
            change = _difference(upper, part, name, status, below, names)
            before, after = self.stamp_below(path, below), _stamp_in_layer(upper, name, status)
            if after.meaning and change == c.MODIFIED:
                before, is_refresh = self._compare_index(upper, live, part, path, below, after)
                change = None if is_refresh else change
            if change is None:
                if status.st_nlink > 1 and kind == c.FILE:
                    self._links_to_unchanged.add(status.st_ino)
                self._remove_unchanged(upper, name)
            else:
                flags: tuple[str, ...] = (c.NEW_GROUP,) if status.st_gid != below.st_gid else ()
                if status.st_uid != below.st_uid:
                    flags = (c.NEW_OWNER,)
                marked = self._remove_origin_mark(upper, name, names)
                self.add(path, change, kind, before=before, after=after, marked=marked, flags=flags)
        else:
            # The project has nothing there, or an entry of another kind.
            first = len(self.changes)
            self.add(
                path, change or c.ADDED, kind, before=None if below is None else self.stamp_below(path, below),
                after=_stamp_in_layer(upper, name, status), marked=self._remove_origin_mark(upper, name, names),
                flags=_open_acl_flag(upper, name, names),
            )  # fmt: skip
            if below is not None:
                self._add_deletions_inside(path, below)
            if kind == c.DIRECTORY:
                self._add_new_inside(path)
                self._drop_settled_directories(first)

    def _compare_index(
        self, upper: int, live: MergedDirectory, part: int, path: str, below: os.stat_result, after: c.Stamp
    ) -> tuple[c.Stamp, bool]:
        """Return the stamp of the git index below, and whether the command only refreshed that index.

        The times in an index are a cache. An index that a person refreshed meanwhile is still the version that the
        command saw. So is one with a person's new commit, if the command's index contains that commit.
        """
        digest = read_meaning(part, INDEX, below)
        for _ in range(_INDEX_READ_ATTEMPTS):
            entry = None if digest else stat_entry(part, INDEX)
            if entry is None or entry.st_mtime_ns == below.st_mtime_ns:
                break
            below, digest = entry, read_meaning(part, INDEX, entry)  # git replaced it in between
        before, seen = self.stamp_below(path, below), ""
        before.meaning = digest
        if self._indexes is not None and part == live.live:
            seen = self._indexes.meaning(self._root, path, below, digest)
            if digest and seen and (seen == digest or self._indexes.includes_committed(self._root, path, part, upper)):
                before.changed_ns = 0
        return before, after.meaning in (digest, seen) and after.mode == before.mode

    def _add_new_inside(self, top: str) -> None:
        """Add the entries of a new directory, which is applied in one step with all of them."""
        directories = [top]
        while directories:
            directory_path = directories.pop()
            with Closing(self._layer.open_to_read(directory_path)) as directory:
                for name in os.listdir(directory):
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if is_deletion_mark(directory, name, status):
                        # There is nothing below for it to hide, and it must not get into the project.
                        if not self._is_in_use:
                            os.unlink(name, dir_fd=directory)
                        continue
                    after = _stamp_in_layer(directory, name, status)
                    if after.kind != c.DIRECTORY and self.is_settled(f"{directory_path}/{name}", status):
                        self._remove_unchanged(directory, name)
                        continue
                    names = list_attributes(directory, name)
                    marked = self._remove_origin_mark(directory, name, names)
                    flags = _open_acl_flag(directory, name, names)
                    path = f"{directory_path}/{name}"
                    self.add(path, c.ADDED, after.kind, after=after, within=top, marked=marked, flags=flags)
                    if after.kind == c.DIRECTORY:
                        directories.append(f"{directory_path}/{name}")

    def _drop_settled_directories(self, first: int) -> None:
        """Drop directories without new entries that a checkpoint has settled and that others removed since."""
        if self._settled is None:
            return
        needed: set[str] = set()
        kept_changes: list[c.Change] = []
        for change in reversed(self.changes[first:]):  # in `changes`, a directory comes before its entries
            is_added = change.kind == c.DIRECTORY and change.before is None
            is_settled = is_added and change.path not in needed and self._settled.has_settled(self._root, change.path)
            if is_settled:
                # Removed from the layer too: it would be applied together with the directory around it.
                parent, name = split(change.path)
                try:
                    with Closing(self._layer.open_to_read(parent)) as directory:
                        if not self._is_in_use:
                            os.rmdir(name, dir_fd=directory)
                    continue
                except OSError:
                    pass  # the command has closed a directory, so the settled entries are still in it
            needed.add(split(change.path)[0])
            kept_changes.append(change)
        self.changes[first:] = reversed(kept_changes)

    def is_settled(self, path: str, status: os.stat_result) -> bool:
        return self._settled is not None and self._settled.is_settled(self._root, path, status)

    def stamp_below(self, path: str, below: os.stat_result) -> c.Stamp:
        """Return the stamp of an entry below; one that a checkpoint of this command left is not somebody's edit."""
        stamp = stamp_of(below)
        if self._settled is not None and self._settled.is_left_by_checkpoint(self._root, path, below):
            stamp.changed_ns = 0
        return stamp

    def _remove_unchanged(self, directory: int, name: str) -> None:
        """Remove an unchanged entry from the layer: in a held layer it would hide what a person writes there later."""
        if self._is_in_use:
            return
        try:
            os.unlink(name, dir_fd=directory)
        except PermissionError:
            return  # the command made the directory read-only; the copy does no harm

    def _remove_origin_mark(self, directory: int, name: str, names: list[str]) -> int:
        """Remove the mark that every copied-up file has; return the kind of marks that must still be removed."""
        marks = [each for each in names if each.startswith(c.OVERLAY_PREFIXES)]
        if marks != [ORIGIN] or self._is_in_use:
            return c.OTHER_MARKS if marks else 0
        try:
            os.removexattr(f"/proc/self/fd/{directory}/{name}", ORIGIN, follow_symlinks=False)
        except PermissionError:
            return c.ORIGIN_MARK  # the file is read-only: its mode must be changed first
        return 0

    def _add_removed(self, path: str, below: os.stat_result) -> None:
        if self._settled is not None and self._settled.is_false_deletion(self._root, path):
            return
        self._add_deletion(path, below)
        self._add_deletions_inside(path, below)

    def _add_deletions_inside(self, top: str, below: os.stat_result) -> None:
        """Add everything that is deleted with a directory: a report never leaves out a deletion."""
        for path, status in self._below.walk(top) if stat.S_ISDIR(below.st_mode) else ():
            self._add_deletion(path, status, within=top)

    def _add_deletion(self, path: str, below: os.stat_result, within: str | None = None) -> None:
        if stat.S_ISREG(below.st_mode):
            if below.st_uid != self._owner:
                self._removed_of_other_owners.add((below.st_size, below.st_mtime_ns))
            if below.st_nlink > 1 and not self._below.has_layers:  # a held file also has names in folds
                self._removed_links[below.st_size, below.st_mtime_ns] = below.st_nlink
        before = self.stamp_below(path, below)
        self.add(path, c.DELETED, before.kind, before=before, within=within)

    def flag_changed_owners(self) -> None:
        """Flag a new file that is a renamed file of another owner: with the size and time of a deleted one."""
        for change in self.changes if self._removed_of_other_owners else ():
            after = change.after
            if after is None or change.change != c.ADDED:
                continue
            if (after.size, after.modified_ns) not in self._removed_of_other_owners:
                continue
            parent, name = split(change.path)
            with Closing(self._layer.open_to_read(parent)) as directory:
                if os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid == self._owner:
                    change.flags = (c.NEW_OWNER,)

    def flag_copied_links(self) -> None:
        """Flag new names of files that have other names in the project: in the project they become copies.

        A renamed file is recognised by size and time. A new directory is flagged with the number of such files in it.
        """
        if not self._removed_links and not self._links_to_unchanged:
            return
        copied_by_path: dict[str, int] = {}
        for change in self.changes:
            after = change.after
            if after is None or after.kind != c.FILE or (change.before is not None and change.before.same(after)):
                continue
            link_count = self._removed_links.get((after.size, after.modified_ns), 0) if change.change == c.ADDED else 0
            if after.links < link_count or after.inode in self._links_to_unchanged:
                top = change.within or change.path
                copied_by_path[top] = copied_by_path.get(top, 0) + 1
        for change in self.changes:
            if change.path in copied_by_path:
                change.flags = (*change.flags, f"{c.COPIED_LINKS}:{copied_by_path[change.path]}")

    def add(self, path: str, change: str, kind: str, **values: object) -> None:
        self.changes.append(c.Change(self._root, path, change, kind, **values))  # type: ignore[arg-type]


def _stamp_in_layer(directory: int, name: str, status: os.stat_result) -> c.Stamp:
    """Return the stamp of an entry of the layer; for a git index, with the digest of its entries."""
    return stamp_of(status, read_meaning(directory, name, status) if name == INDEX else "")


def _open_acl_flag(directory: int, name: str, names: list[str]) -> tuple[str, ...]:
    """Flag a new directory whose default ACL lets others write every file that is made in it, whatever the umask."""
    if _ACL_ATTRIBUTE not in names:
        return ()
    rules = os.getxattr(f"/proc/self/fd/{directory}/{name}", _ACL_ATTRIBUTE, follow_symlinks=False)
    # After a version number come entries of eight bytes: tag (2), permissions (2), user or group id (4).
    opens = any(rules[at] == _ACL_OTHERS and rules[at + 2] & 2 for at in range(4, len(rules), 8))
    return (c.OPENING,) if opens else ()


def _difference(
    upper: int, live: int, name: str, status: os.stat_result, below: os.stat_result, names: list[str]
) -> str | None:
    """Return the kind of change between two entries of the same kind, or None if they are the same."""
    if stat.S_ISLNK(status.st_mode):
        return None if os.readlink(name, dir_fd=upper) == os.readlink(name, dir_fd=live) else c.MODIFIED
    if status.st_size != below.st_size or status.st_mtime_ns != below.st_mtime_ns:
        return c.MODIFIED
    if stat.S_ISREG(status.st_mode) and not _unless_denied(lambda: same_content(upper, live, name)):
        return c.MODIFIED
    if not _unless_denied(lambda: own_attributes(upper, name, names) == own_attributes(live, name)):
        return c.MODIFIED
    return None if status.st_mode == below.st_mode else c.MODE


def has_other_attributes(upper: int, live: int, name: str, kinds: tuple[str, ...] = ("user.", "system.")) -> bool:
    """Return True if a directory of the layer has other attributes or ACLs than the one below.

    Only attributes that commands can set are compared: security labels depend on the place of a directory. A copy-up
    may lose ACLs, and the layer's own top may inherit some from the directory around it.
    """
    names = [each for each in list_attributes(upper, name) if each.startswith(kinds)]
    below = [each for each in list_attributes(live, name) if each in names or each.startswith("user.")]
    if not names and not below:
        return False
    return not _unless_denied(lambda: own_attributes(upper, name, names) == own_attributes(live, name, below))


def _unless_denied(compare: Callable[[], bool]) -> bool:
    """Return the result of a comparison, or True if permission to read is denied.

    A wrong guess does no harm: even for a change of mode alone, the whole file is taken over.
    """
    try:
        return compare()
    except PermissionError:
        return True


def own_attributes(directory: int, name: str, names: Sequence[str] | None = None) -> dict[str, bytes]:
    """Return the attributes of an entry without those of overlays; `names` are all its attributes, if known."""
    path = f"/proc/self/fd/{directory}/{name}"
    return {
        each: os.getxattr(path, each, follow_symlinks=False)
        for each in (list_attributes(directory, name) if names is None else names)
        if not each.startswith(c.OVERLAY_PREFIXES)
    }
