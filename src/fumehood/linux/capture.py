"""Capture a command's writes in one of four ways, each of which leaves the same kind of layer.

kernel: an overlay that the launcher mounts in a namespace of its own
bwrap:  an overlay that bubblewrap mounts itself, from 0.11 on
fuse:   fuse-overlayfs, for kernels and policies that forbid the first two (`capture_fuse`)
copy:   a copied tree, compared with the project afterwards (`capture_copy`)

The last two show a tree of ours in place of a root; the module of each has the functions of `TreeCapture`.
"""

from __future__ import annotations

import os
import pwd
import stat
from itertools import islice

from fumehood.core.paths import is_below, is_in
from fumehood.core.report import printable, shell_path
from fumehood.core.value import Value
from fumehood.errors import OverlayUnavailable
from fumehood.linux.libc import Closing, Descriptors
from fumehood.linux.mounts import Bind, Operation, Overlay, ReadOnlyRoot
from fumehood.linux.namespaces import Layer, mounts_are_locked, mounts_inside, possible_roots
from fumehood.linux.nofollow import LISTING, DirectoryCache, join, open_below, open_top, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Protocol

    from fumehood.linux.probe import Host

    class TreeCapture(Protocol):
        """A way of capturing that shows a tree of ours at `layer.merged` while the command runs."""

        def begin(self, layer: Layer) -> None:
            """Prepare the tree; raises OverlayUnavailable."""

        def can_finish(self, layer: Layer) -> bool:
            """Return True if a process that did not begin the capture can still find out what the command changed."""

        def finish(self, layer: Layer) -> None:
            """Make `layer.upper` the layer that a kernel overlay would have left; raises FumehoodError."""

        def abandon(self, layer: Layer) -> None:
            """Remove what must not outlive the run; may be repeated."""


# ---- Foreign files: entries of a root that belong to another user or group than ours.
#
# An overlay that an ordinary user has mounted can't copy up a file whose owner or group its namespace does not know:
# the write fails with EOVERFLOW. It would be too slow to look at every file. So each run looks at the top of each root,
# and deeper ones are found only when a command meets that error.

_MOST_AT_TOP = 64  # entries of a root that every run looks at
_MOST_AFTER_ERROR = 200_000  # entries of a root that are looked at to explain an error
_QUOTES_AND_MARKS = "'\"`\u2018\u2019:,;()"  # around names in error messages; the quotes are straight and curly


class ForeignFile(Value):
    """An entry of a root that belongs to another user or group than ours.

    If we may not write it, we can still rename or remove it in a directory of ours.
    """

    root: str
    path: str  # below the root; "" is the root itself
    user: int
    group: int
    is_writable: bool

    @property
    def description(self) -> str:
        """Its path and its owner, in words."""
        owner = f"group {group_name(self.group)}" if self.user == os.geteuid() else user_name(self.user)
        return f"{printable(self.path or self.root)} belongs to {owner}"

    @property
    def full_path(self) -> str:
        """Its path with that of the root."""
        return f"{self.root}/{self.path}" if self.path else self.root


def foreign_files_at_top(roots: Sequence[str]) -> list[ForeignFile]:
    """Return the foreign files among the roots and the first entries in them."""
    files = []
    for root in roots:
        try:
            top = os.open(root, LISTING | os.O_CLOEXEC)
        except OSError:
            continue  # the launch will report what is wrong with it
        with Closing(top), os.scandir(top) as listing:
            names = [entry.name for entry in islice(listing, _MOST_AT_TOP)]
            files += _select_foreign(root, "", top, [".", *names])
    return files


def examples_of_foreign_files(roots: Sequence[str], complaints: str = "") -> list[ForeignFile]:
    """Return one foreign file for each owner and group in the roots, as far as we can look through them.

    Files that a command's complaints name are preferred, and come first.
    """
    for mark in _QUOTES_AND_MARKS:
        complaints = complaints.replace(mark, " ")
    names_in_complaints = {part for word in complaints.split() for part in word.split("/") if part}

    def is_in_complaints(file: ForeignFile) -> bool:
        return split(file.path)[1] in names_in_complaints

    examples: dict[tuple[int, int, bool], ForeignFile] = {}
    for root in roots:
        for file in _find_foreign_files(root):
            owner = file.user, file.group, file.is_writable
            example = examples.setdefault(owner, file)
            if is_in_complaints(file) and not is_in_complaints(example):
                examples[owner] = file
    return sorted(examples.values(), key=lambda file: not is_in_complaints(file))


def _find_foreign_files(root: str) -> Iterator[ForeignFile]:
    """Yield the foreign files of a root, level by level; directories closed to us, and a large rest, are left out."""
    from collections import deque

    waiting, left = deque([""]), _MOST_AFTER_ERROR
    with Closing(open_top(root)) as top, DirectoryCache(top, bounded=False) as parents:
        yield from _select_foreign(root, "", top, ["."])
        while waiting:
            path = waiting.popleft()
            directory = parents.open_listing(path)
            if directory is None:
                continue
            with Closing(directory), os.scandir(directory) as listing:
                names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(listing, left)]
                files = _select_foreign(root, path, directory, [name for name, _ in names])
            yield from files
            left -= len(names)
            waiting.extend(join(path, name) for name, is_directory in names if is_directory)


def still_foreign(roots: Sequence[str], full_paths: Sequence[str]) -> list[ForeignFile]:
    """Return those of some paths that still are foreign files in one of the roots."""
    files = []
    for path in full_paths:
        root = next((each for each in roots if is_in(path, (each,))), None)
        if root is None:
            continue
        parent, name = split(path[len(root) + 1 :])
        try:
            with Closing(open_top(root)) as top, Closing(open_below(top, parent)) as directory:
                files += _select_foreign(root, parent, directory, [name or "."])
        except OSError:
            continue  # gone, or no longer a directory
    return files


def _select_foreign(root: str, parent: str, directory: int, names: Sequence[str]) -> list[ForeignFile]:
    """Return the foreign files among these entries of a directory."""
    me, group = os.geteuid(), os.getegid()
    files = []
    for name in names:
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            continue  # it has just gone
        if status.st_uid == me and status.st_gid == group:
            continue
        is_writable = status.st_uid == me or (
            not stat.S_ISLNK(status.st_mode)
            and os.access(name, os.W_OK, dir_fd=directory, effective_ids=True, follow_symlinks=False)
        )
        path = parent if name == "." else join(parent, name)
        files.append(
            ForeignFile(root=root, path=path, user=status.st_uid, group=status.st_gid, is_writable=is_writable)
        )
    return files


def user_name(user: int) -> str:
    """Return a user's name, or the number if the system has no name for it."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def group_name(group: int) -> str:
    """Return a group's name with its number, which the system's tables need."""
    import grp

    try:
        return f"{grp.getgrgid(group).gr_name} ({group})"
    except KeyError:
        return str(group)


# ---- The ways of capturing.

KERNEL, BWRAP, FUSE, COPY = "kernel", "bwrap", "fuse", "copy"
LABELS = {KERNEL: "the kernel's overlay", BWRAP: "bubblewrap's --overlay", FUSE: "fuse-overlayfs", COPY: "a copy"}


class CaptureChoice(Value):
    """The chosen way of capturing; `why` says why it is not the best that works on this host."""

    way: str
    why: str = ""
    groups: tuple[int, ...] = ()  # that the launcher must map
    overlaid: tuple[str, ...] = ()  # roots inside other roots that the kernel's overlay captures nevertheless


def choose(host: Host, wanted: str, roots: Sequence[str], failed_files: Sequence[ForeignFile] = ()) -> CaptureChoice:
    """Choose the way of capturing for some roots: the wanted one, or the best that works for them.

    `failed_files` are foreign files that an earlier command could not change by an overlay.
    """
    ways = host.captures
    if wanted and wanted not in ways:
        raise OverlayUnavailable(
            f"writes can't be captured by {wanted} here", hint="fumehood doctor says what is missing"
        )
    if not ways:
        raise OverlayUnavailable(f"nothing can be sandboxed here: {host.why}", hint="fumehood doctor")
    top_files = [] if host.every_id and ways[0] == KERNEL else foreign_files_at_top(roots)
    if wanted:
        return CaptureChoice(way=wanted, groups=_groups_to_map(host, wanted, (*top_files, *failed_files)))
    mounts = unshown_mounts(host, roots)
    obstacles = {way: _obstacle(host, way, mounts, top_files, failed_files) for way in ways}
    best, way = ways[0], next((way for way in ways if not obstacles[way]), "")
    if not way:
        hint = f"unmount it: umount {shell_path(mounts[0])}" if mounts else "fumehood doctor says how to fix it"
        raise OverlayUnavailable(f"cannot overlay {roots[0]}: {obstacles[best]}", hint=hint)
    why = "" if way == best else f"captured by {LABELS[way]}: {obstacles[best]}"
    if why and mounts and (line := line_to_add_root(roots)):
        why += f"; to let commands write there: {line}"
    elif why and way == COPY and not mounts:
        why += "; fumehood doctor says what is quicker"
    overlaid = _overlaid_inner_roots(host, roots, top_files, failed_files) if way in (FUSE, COPY) else ()
    if overlaid:
        files = [file for file in (*top_files, *failed_files) if is_in(file.full_path, overlaid)]
        return CaptureChoice(way=way, why=why, groups=_groups_to_map(host, KERNEL, files), overlaid=overlaid)
    return CaptureChoice(way=way, why=why, groups=_groups_to_map(host, way, (*top_files, *failed_files)))


def unshown_mounts(host: Host, roots: Sequence[str]) -> list[str]:
    """Return the mounts inside roots that an overlay of these would not show.

    A mount that is itself a root is mounted in its place, if the kernel allows an overlay of the root around it at all.
    """
    mounts = [mount for root in roots for mount in mounts_inside(root)]
    if mounts and not mounts_are_locked(privileged=host.privileged):
        return [mount for mount in mounts if mount not in roots]
    return sorted(mounts, key=lambda mount: mount in roots)


def line_to_add_root(roots: Sequence[str]) -> str:
    """Return the command line that makes a mount inside the roots a root too; "" if no mount can become one."""
    mounts = (mount for root in roots for mount in possible_roots(root) if mount not in roots)
    return next((f"fumehood roots add {shell_path(mount)}" for mount in mounts), "")


def _overlaid_inner_roots(
    host: Host, roots: Sequence[str], top_files: Sequence[ForeignFile], failed_files: Sequence[ForeignFile]
) -> tuple[str, ...]:
    """Return the roots inside others that the kernel's overlay can capture, though not the roots around them."""
    if KERNEL not in host.captures:
        return ()
    overlaid = []
    for root in roots:
        if any(is_below(root, each) for each in roots):
            top_files_inside = [file for file in top_files if is_in(file.full_path, (root,))]
            failed_inside = [file for file in failed_files if is_in(file.full_path, (root,))]
            if not _obstacle(host, KERNEL, unshown_mounts(host, (root,)), top_files_inside, failed_inside):
                overlaid.append(root)
    return tuple(overlaid)


def _obstacle(
    host: Host, way: str, mounts: Sequence[str], top_files: Sequence[ForeignFile], failed_files: Sequence[ForeignFile]
) -> str:
    """Return what in the roots a way of capturing can't deal with, or "".

    A file that we may not write can at most be renamed. If an overlay can't do that, the command gets an error, and we
    choose another way next time. With fuse-overlayfs there would be no error.
    """
    if way in (KERNEL, BWRAP):
        if mounts:
            return f"{mounts[0]} is mounted inside, where {LABELS[way]} shows nothing"
        top_files = [file for file in top_files if file.is_writable]
    obstacle = next((file for file in (*top_files, *failed_files) if not can_change(host, way, file)), None)
    return "" if obstacle is None else f"{obstacle.description}, which {LABELS[way]} can't change"


def can_change(host: Host, way: str, file: ForeignFile) -> bool:
    """Return True if commands can change a foreign file with this way of capturing."""
    if way == COPY or (way == KERNEL and host.every_id) or (way == FUSE and os.geteuid() == 0):
        return True
    usable_groups = {KERNEL: host.groups, FUSE: tuple(os.getgroups())}.get(way, ())
    # fuse-overlayfs shows the files of all users as ours. But a file that root left in a project is shared with nobody,
    # and should rather be given to the project's owner.
    has_usable_owner = file.user == os.geteuid() or (way == FUSE and file.user != 0)
    return has_usable_owner and file.group in (os.getegid(), *usable_groups)


def _groups_to_map(host: Host, way: str, files: Sequence[ForeignFile]) -> tuple[int, ...]:
    """Return the groups that the launcher maps: all that it may if one is needed, so that launches are alike."""
    is_needed = way == KERNEL and any(file.group in host.groups for file in files)
    return host.groups if is_needed else ()


def _check_inner_roots(layer: Layer) -> None:
    """Raise OverlayUnavailable if held layers have no directory at the place of a root inside this one.

    If there were a link instead, bubblewrap would follow it out of the sandbox, and mount the root there.
    """
    from fumehood.linux.layer import LayerStack

    with Descriptors(map(open_top, layer.lowers)) as tops, LayerStack(tops) as stack:
        for path in layer.inner_roots:
            parent, name = split(path)
            try:
                with stack.open_merged(parent) as directory:
                    status, _ = directory.look(name)
            except OSError:
                status = None
            if status is None or not stat.S_ISDIR(status.st_mode):
                raise OverlayUnavailable(
                    f"the root {printable(layer.root)}/{printable(path)} can't be put in its place: what earlier runs"
                    " hold has no directory there",
                    hint="decide on that first: fumehood review",
                )


class Capture:
    """How one run's writes are captured: its mounts, and what must be done before and after the command."""

    def __init__(
        self, way: str, layers: Sequence[Layer], targets: Mapping[str, str], groups: tuple[int, ...],
        writable_paths: Sequence[str] | None,
    ) -> None:  # fmt: skip
        self._writable_paths = writable_paths  # None: every root may be written
        self.way = way
        self.layers = layers
        self.groups = groups  # that the launcher maps into its namespace, besides our own
        # Every root, and where it appears.
        self.targets = tuple((each.root, targets.get(each.root, each.root)) for each in layers)

    @property
    def mounts(self) -> list[Operation]:
        """The operations that show the roots so that writes go to their layers."""
        operations: list[Operation] = []
        for layer, (_, target) in zip(self.layers, self.targets, strict=True):
            if self.way in (KERNEL, BWRAP) or layer.is_overlaid:
                upper, work = layer.upper, layer.work
                operations.append(
                    Overlay(target=target, lowers=layer.lowers, upper=upper, work=work, is_judged=True, why="a root")
                )
            else:
                operations.append(Bind(target=target, source=layer.merged, is_writable=True, why="a root"))
            if self._writable_paths is not None and not is_in(layer.root, self._writable_paths):
                inside = [path[len(layer.root) + 1 :] for path in self._writable_paths if is_below(path, layer.root)]
                directories = tuple(path for path in inside if not is_in(path, layer.inner_roots))
                operations.append(ReadOnlyRoot(target=target, writable_directories=directories, why="asked for"))
        return operations

    def begin(self) -> None:
        """Prepare what must exist before the sandbox starts."""
        for layer in self.layers:
            if layer.inner_roots:
                _check_inner_roots(layer)
        for tree, layer in self._trees():
            tree.begin(layer)

    def finish(self) -> None:
        """Make each upper directory the layer that a kernel overlay would have left."""
        for tree, layer in self._trees():
            tree.finish(layer)

    def abandon(self) -> None:
        """Undo `begin` after a failure."""
        for tree, layer in self._trees():
            tree.abandon(layer)

    def _trees(self) -> list[tuple[TreeCapture, Layer]]:
        """Return the layers whose root is shown as a tree of ours, with the module that makes it."""
        tree = _tree_capture(self.way)
        return [] if tree is None else [(tree, layer) for layer in self.layers if not layer.is_overlaid]


def _tree_capture(way: str) -> TreeCapture | None:
    if way == FUSE:
        from fumehood.linux import capture_fuse

        return capture_fuse
    if way == COPY:
        from fumehood.linux import capture_copy

        return capture_copy
    return None


def finish_after_death(way: str, layers: Sequence[Layer]) -> Layer | None:
    """Make the layers of a run whose process died.

    Return None, or a layer for which this is no longer possible: then none is made.
    """
    tree = _tree_capture(way)
    if tree is not None:
        for layer in layers:
            tree.abandon(layer)
        for layer in layers:
            if not tree.can_finish(layer):
                return layer
        for layer in layers:
            tree.finish(layer)
    return None
