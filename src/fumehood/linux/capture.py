"""The four ways of capturing a command's writes; each leaves the same kind of layer behind.

kernel: an overlay that the launcher mounts in a namespace of its own
bwrap:  an overlay that bubblewrap mounts itself, from 0.11 on
fuse:   fuse-overlayfs, for kernels and policies that forbid the first two (`capture_fuse`)
copy:   a copied tree, compared with the project afterwards (`capture_copy`)

The last two show a tree of ours in a root's place; the module of each has the functions that `TreeWay` names.
"""

from __future__ import annotations

import os
import pwd
import stat
from itertools import islice

from fumehood.core.masks import is_below, is_in
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

    class TreeWay(Protocol):
        """A way of capturing that shows a tree at `layer.merged` while the command runs."""

        def begin(self, layer: Layer) -> None:
            """Get the tree ready; raises OverlayUnavailable."""

        def can_finish(self, layer: Layer) -> bool:
            """Return True if what the command changed can still be told, should another process have begun."""

        def finish(self, layer: Layer) -> None:
            """Make `layer.upper` the layer that a kernel overlay would have left; raises FumehoodError."""

        def abandon(self, layer: Layer) -> None:
            """Take away what must not outlive the run; may be repeated."""


# ---- What in a root belongs to another user or group than ours, and which ways of capturing can carry that.
#
# An overlay that an ordinary user has mounted can't copy up what belongs to an id that its namespace does not know: the
# write fails with EOVERFLOW. To look at every file would be too slow, so a run looks at the top of each root, and what
# lies deeper is found out by the error.

_AT_THE_TOP = 64  # entries of a root that every run looks at
_AROUND_NAMES = "'\"`\u2018\u2019:,;()"  # straight and curly quotes
_AFTER_AN_ERROR = 200_000  # entries of a root that are looked at to explain one


class Stranger(Value):
    """An entry of a root that belongs to another user or group than ours.

    One that we may not write can still be renamed or removed in a directory of ours.
    """

    root: str
    path: str  # below the root; "" is the root itself
    user: int
    group: int
    may_write: bool

    @property
    def description(self) -> str:
        """Say whose it is."""
        whose = f"group {group_name(self.group)}" if self.user == os.geteuid() else user_name(self.user)
        return f"{printable(self.path or self.root)} belongs to {whose}"

    @property
    def whole(self) -> str:
        """Its whole path."""
        return f"{self.root}/{self.path}" if self.path else self.root


def at_the_top(roots: Sequence[str]) -> list[Stranger]:
    """Return the strangers among the roots and the first entries in them."""
    strangers = []
    for root in roots:
        try:
            top = os.open(root, LISTING | os.O_CLOEXEC)
        except OSError:
            continue  # the launch says what is wrong with it
        with Closing(top), os.scandir(top) as listing:
            names = [entry.name for entry in islice(listing, _AT_THE_TOP)]
            strangers += _strangers(root, "", top, [".", *names])
    return strangers


def everywhere(roots: Sequence[str], complaints: str = "") -> list[Stranger]:
    """Return one stranger of each owner and group in the roots, as far as those can be looked through.

    Of several it is one that a command's complaints name, and those come first.
    """
    for mark in _AROUND_NAMES:
        complaints = complaints.replace(mark, " ")
    named = {part for word in complaints.split() for part in word.split("/") if part}
    examples: dict[tuple[int, int, bool], Stranger] = {}
    for root in roots:
        for each in _walked(root):
            example = examples.setdefault((each.user, each.group, each.may_write), each)
            if split(example.path)[1] not in named and split(each.path)[1] in named:
                examples[each.user, each.group, each.may_write] = each
    return sorted(examples.values(), key=lambda each: split(each.path)[1] not in named)


def _walked(root: str) -> Iterator[Stranger]:
    """Yield the strangers of a root, level by level; what is closed to us, or too much, is left out."""
    from collections import deque

    waiting, left = deque([""]), _AFTER_AN_ERROR
    with Closing(open_top(root)) as top, DirectoryCache(top, bounded=False) as parents:
        yield from _strangers(root, "", top, ["."])
        while waiting:
            path = waiting.popleft()
            directory = parents.open_listing(path)
            if directory is None:
                continue
            with Closing(directory), os.scandir(directory) as listing:
                names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(listing, left)]
                strangers = _strangers(root, path, directory, [name for name, _ in names])
            yield from strangers
            left -= len(names)
            waiting.extend(join(path, name) for name, is_directory in names if is_directory)


def still_there(roots: Sequence[str], paths: Sequence[str]) -> list[Stranger]:
    """Return those of some whole paths that still are strangers in one of the roots."""
    strangers = []
    for path in paths:
        root = next((each for each in roots if is_in(path, (each,))), None)
        if root is None:
            continue
        parent, name = split(path[len(root) + 1 :])
        try:
            with Closing(open_top(root)) as top, Closing(open_below(top, parent)) as directory:
                strangers += _strangers(root, parent, directory, [name or "."])
        except OSError:
            continue  # gone, or something else by now
    return strangers


def _strangers(root: str, parent: str, directory: int, names: Sequence[str]) -> list[Stranger]:
    me, group = os.geteuid(), os.getegid()
    strangers = []
    for name in names:
        try:
            entry = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            continue  # it has just gone
        if entry.st_uid == me and entry.st_gid == group:
            continue
        may_write = entry.st_uid == me or (
            not stat.S_ISLNK(entry.st_mode)
            and os.access(name, os.W_OK, dir_fd=directory, effective_ids=True, follow_symlinks=False)
        )
        path = parent if name == "." else join(parent, name)
        strangers.append(Stranger(root=root, path=path, user=entry.st_uid, group=entry.st_gid, may_write=may_write))
    return strangers


def user_name(user: int) -> str:
    """Name a user, by number where the system has no name."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def group_name(group: int) -> str:
    """Name a group with its number, which is what the system's tables want."""
    import grp

    try:
        return f"{grp.getgrgid(group).gr_name} ({group})"
    except KeyError:
        return str(group)


# ---- The ways of capturing.

KERNEL, BWRAP, FUSE, COPY = "kernel", "bwrap", "fuse", "copy"
LABELS = {KERNEL: "the kernel's overlay", BWRAP: "bubblewrap's --overlay", FUSE: "fuse-overlayfs", COPY: "a copy"}


class Choice(Value):
    """A way of capturing; `why` it is not the best that works here, and the groups that it needs mapped."""

    way: str
    why: str = ""
    groups: tuple[int, ...] = ()
    overlaid: tuple[str, ...] = ()  # roots in others that the kernel's overlay captures all the same


def choose(host: Host, wanted: str, roots: Sequence[str], failed_on: Sequence[Stranger] = ()) -> Choice:
    """Choose the way of capturing: the wanted one, or the best that works here for these roots.

    `failed_on` are files of other owners that an earlier command could not change by an overlay.
    """
    works = host.captures
    if wanted and wanted not in works:
        raise OverlayUnavailable(
            f"writes can't be captured by {wanted} here", hint="fumehood doctor says what is missing"
        )
    if not works:
        raise OverlayUnavailable(f"nothing can be sandboxed here: {host.why}", hint="fumehood doctor")
    strangers = [] if host.every_id and works[0] == KERNEL else at_the_top(roots)
    if wanted:
        return Choice(way=wanted, groups=_groups(host, wanted, (*strangers, *failed_on)))
    inside = in_the_way(host, roots)
    obstacles = {way: _obstacle(host, way, inside, strangers, failed_on) for way in works}
    best, way = works[0], next((way for way in works if not obstacles[way]), "")
    if not way:
        hint = f"unmount it: umount {shell_path(inside[0])}" if inside else "fumehood doctor says how to fix it"
        raise OverlayUnavailable(f"cannot overlay {roots[0]}: {obstacles[best]}", hint=hint)
    why = "" if way == best else f"captured by {LABELS[way]}: {obstacles[best]}"
    if why and inside and (line := line_for_a_root(roots)):
        why += f"; to let commands write there: {line}"
    elif why and way == COPY and not inside:
        why += "; fumehood doctor says what is quicker"
    overlaid = _overlaid(host, roots, strangers, failed_on) if way in (FUSE, COPY) and KERNEL in works else ()
    if overlaid:
        inside_them = [each for each in (*strangers, *failed_on) if is_in(each.whole, overlaid)]
        return Choice(way=way, why=why, groups=_groups(host, KERNEL, inside_them), overlaid=overlaid)
    return Choice(way=way, why=why, groups=_groups(host, way, (*strangers, *failed_on)))


def in_the_way(host: Host, roots: Sequence[str]) -> list[str]:
    """Return the mounts inside roots that an overlay of them would not show, and that nothing shows in its place.

    One that is a root itself is put there, where the kernel lets what lies around it be overlaid at all.
    """
    inside = [mount for root in roots for mount in mounts_inside(root)]
    if inside and not mounts_are_locked(privileged=host.privileged):
        return [mount for mount in inside if mount not in roots]
    return sorted(inside, key=lambda mount: mount in roots)


def line_for_a_root(roots: Sequence[str]) -> str:
    """Return the line that makes a mount inside of some roots one of them, where one can be and is none yet."""
    mounts = (mount for root in roots for mount in possible_roots(root) if mount not in roots)
    return next((f"fumehood roots add {shell_path(mount)}" for mount in mounts), "")


def _overlaid(
    host: Host, roots: Sequence[str], strangers: Sequence[Stranger], failed_on: Sequence[Stranger]
) -> tuple[str, ...]:
    """Return those roots inside others that the kernel's overlay can capture, though it can't the ones around them."""
    overlaid = []
    for root in roots:
        if any(is_below(root, each) for each in roots):
            theirs = [[each for each in some if is_in(each.whole, (root,))] for some in (strangers, failed_on)]
            if not _obstacle(host, KERNEL, in_the_way(host, (root,)), *theirs):
                overlaid.append(root)
    return tuple(overlaid)


def _obstacle(
    host: Host, way: str, inside: Sequence[str], strangers: Sequence[Stranger], failed_on: Sequence[Stranger]
) -> str:
    """Say what in the roots a way of capturing can't deal with.

    What we may not write is no obstacle to an overlay before somebody wants to rename it: the error tells. That of
    fuse-overlayfs would not.
    """
    if way in (KERNEL, BWRAP):
        if inside:
            return f"{inside[0]} is mounted inside, where {LABELS[way]} shows nothing"
        strangers = [each for each in strangers if each.may_write]
    alien = next((each for each in (*strangers, *failed_on) if not is_carried(host, way, each)), None)
    return "" if alien is None else f"{alien.description}, which {LABELS[way]} can't change"


def is_carried(host: Host, way: str, stranger: Stranger) -> bool:
    """Return True if a way of capturing can copy up what belongs to somebody else."""
    if way == COPY or (way == KERNEL and host.every_id) or (way == FUSE and os.geteuid() == 0):
        return True
    carried = {KERNEL: host.groups, FUSE: tuple(os.getgroups())}.get(way, ())
    # To fuse-overlayfs all is ours. What root left in a project is not shared with anybody, and should be its owner's.
    is_ours = stranger.user == os.geteuid() or (way == FUSE and stranger.user != 0)
    return is_ours and stranger.group in (os.getegid(), *carried)


def _groups(host: Host, way: str, strangers: Sequence[Stranger]) -> tuple[int, ...]:
    """Return the groups that the launcher maps: all that it may, where one is needed, so that launches are alike."""
    is_needed = way == KERNEL and any(each.group in host.groups for each in strangers)
    return host.groups if is_needed else ()


def _check_places(layer: Layer) -> None:
    """Raise OverlayUnavailable where a root inside another has no place there, by what earlier runs hold.

    Bubblewrap would follow a link that one of them has put on the way, out of the sandbox, to mount something there.
    """
    from fumehood.linux.layer import LayerStack

    with Descriptors(map(open_top, layer.lowers)) as tops, LayerStack(tops) as shown:
        for path in layer.inner_roots:
            parent, name = split(path)
            try:
                with shown.open_merged(parent) as directory:
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
    """One run's way of capturing: what bubblewrap is told, and what is done before and after."""

    def __init__(
        self, way: str, layers: Sequence[Layer], targets: Mapping[str, str], groups: tuple[int, ...],
        write: Sequence[str] | None,
    ) -> None:  # fmt: skip
        self._write = write  # all that may be written, where that is not every root
        self.way = way
        self.layers = layers
        self.groups = groups  # that the launcher maps into its namespace, besides our own
        # Every root, and where it appears.
        self.targets = tuple((each.root, targets.get(each.root, each.root)) for each in layers)

    @property
    def mounts(self) -> list[Operation]:
        """How each root is shown, so that what is written there goes to its layer."""
        operations: list[Operation] = []
        for layer, (_, target) in zip(self.layers, self.targets, strict=True):
            if self.way in (KERNEL, BWRAP) or layer.is_overlaid:
                upper, work = layer.upper, layer.work
                operations.append(
                    Overlay(target=target, lowers=layer.lowers, upper=upper, work=work, is_judged=True, why="a root")
                )
            else:
                operations.append(Bind(target=target, source=layer.merged, is_writable=True, why="a root"))
            if self._write is not None and not is_in(layer.root, self._write):
                below = [path[len(layer.root) + 1 :] for path in self._write if is_below(path, layer.root)]
                own = tuple(path for path in below if not is_in(path, layer.inner_roots))
                operations.append(ReadOnlyRoot(target=target, writable_directories=own, why="asked for"))
        return operations

    def _trees(self) -> list[tuple[TreeWay, Layer]]:
        """Those that a tree of ours stands for while the command runs."""
        way = _tree_way(self.way)
        return [] if way is None else [(way, each) for each in self.layers if not each.is_overlaid]

    def begin(self) -> None:
        """Get ready what must stand before the sandbox starts."""
        for layer in self.layers:
            if layer.inner_roots:
                _check_places(layer)
        for way, layer in self._trees():
            way.begin(layer)

    def finish(self) -> None:
        """Make each upper directory the layer that a kernel overlay would have left."""
        for way, layer in self._trees():
            way.finish(layer)

    def abandon(self) -> None:
        """Undo `begin` after a failure."""
        for way, layer in self._trees():
            way.abandon(layer)


def _tree_way(name: str) -> TreeWay | None:
    if name == FUSE:
        from fumehood.linux import capture_fuse

        return capture_fuse
    if name == COPY:
        from fumehood.linux import capture_copy

        return capture_copy
    return None


def finish_for_the_dead(name: str, layers: Sequence[Layer]) -> Layer | None:
    """Make layers of what a command wrote whose process died; return one for which that is not possible any more."""
    way = _tree_way(name)
    if way is not None:
        for layer in layers:
            way.abandon(layer)
        for layer in layers:
            if not way.can_finish(layer):
                return layer
        for layer in layers:
            way.finish(layer)
    return None
