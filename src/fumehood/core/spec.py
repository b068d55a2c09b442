"""Write down the sandbox of one run as bubblewrap's arguments: pure, so it can be shown and tested."""

from __future__ import annotations

from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    # What bubblewrap overlays itself: where, the lower directories with the topmost first, upper, work.
    Layered = tuple[str, tuple[str, ...], str, str]


class Bound(Value):
    """A directory the command may write: where its captured view comes from, and where it appears."""

    source: str
    target: str


class Tree(Value):
    """A root tree that the command sees as `/`, instead of the host's.

    `entries` are its top entries where it lacks a mount point: each a name and, for a link, its target.
    `overlay` is what bubblewrap itself mounts as `/`: lower directories, topmost first, and upper and work, which
    are empty where it can only be read. `guarded` are mount points that get something on them in any case: where
    the root can be written, a free one could be made a link, and the next command's mount would follow it.
    """

    path: str
    shell: str = "/bin/sh"
    writable: bool = False
    entries: tuple[tuple[str, str], ...] = ()
    overlay: tuple[tuple[str, ...], str, str] | None = None
    guarded: tuple[str, ...] = ()


class Shelf(Value):
    """A directory put together afresh from its entries, so that it can hold mount points it lacks.

    Each entry is a name and, for a link, its target.
    """

    path: str
    entries: tuple[tuple[str, str], ...]


class Spec(Value):
    """The world one command sees."""

    command: tuple[str, ...]
    cwd: str
    bounds: tuple[Bound, ...]
    base: str = "/"  # what is shown as `/`, read-only
    masked: tuple[str, ...] = ()  # directories shown empty
    emptied: tuple[str, ...] = ()  # files shown empty
    frozen: tuple[str, ...] = ()  # shown as they are, but can't be written
    veiled: tuple[tuple[str, bool], ...] = ()  # shown empty inside the roots; whether it is a directory
    pinned: tuple[Bound, ...] = ()  # directories above them, mounted where they are, so that none is renamed
    overlays: tuple[Layered, ...] = ()
    tree: Tree | None = None
    readonly: tuple[Bound, ...] = ()
    names: tuple[Bound, ...] = ()  # files of the host that tell how hosts are found
    network_made: bool = False  # the launcher has arranged it; bubblewrap leaves it as it is
    home: Shelf | None = None
    disable_userns: bool = True
    binds: tuple[Bound, ...] = ()  # single files that the command may write
    tmp: str = ""  # a directory that is its /tmp; else it gets a fresh one
    scratch: tuple[Bound, ...] = ()  # directories that the command may write and that are not captured
    scratch_overlays: tuple[Layered, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()  # that the command gets and bubblewrap is not started with
    status_fd: int = 3
    filter_fd: int = 0  # where the filter of system calls is read from; 0 is none
    guard_fd: int = 0  # where the program is found that confines writing a second time; 0 is nowhere


_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup")
_NO_NETWORK = "--unshare-net"
_CONFINEMENT = ("--cap-drop", "ALL", "--die-with-parent", "--new-session")
_TMP = "/tmp"  # noqa: S108 - a fresh one, inside the sandbox
_KERNEL = ("--dev", "/dev", "--proc", "/proc")
_MADE = frozenset({"dev", "proc", _TMP[1:]})  # fresh ones come in their place


def bubblewrap_arguments(spec: Spec) -> tuple[str, ...]:
    """Return what follows `bwrap`: later mounts cover earlier ones, so roots come last."""
    _check_tmp(spec)
    arguments = [*_NAMESPACES, *(() if spec.network_made else (_NO_NETWORK,)), *_CONFINEMENT]
    if spec.disable_userns:
        arguments.append("--disable-userns")
    arguments += ("--ro-bind", spec.base, "/") if spec.tree is None else _base(spec.tree)
    arguments += _KERNEL
    arguments += ("--bind", spec.tmp, _TMP) if spec.tmp else ("--perms", "1777", "--tmpfs", _TMP)
    arguments += _put_together(spec.home)
    # Scratch before the masks, which also hide what lies in it.
    arguments += _writable(spec.scratch, spec.scratch_overlays)
    arguments += _covers(spec)
    shelves = () if spec.tree is None else _shelves(spec)
    for shelf in shelves:
        arguments += ("--tmpfs", shelf)
    arguments += _writable(spec.bounds, spec.overlays)
    arguments += _writable(spec.pinned, ())
    for path, is_directory in spec.veiled:
        arguments += ("--tmpfs", path, "--remount-ro", path) if is_directory else ("--ro-bind", "/dev/null", path)
    for bind in spec.binds:
        arguments += ("--bind", bind.source, bind.target)
    for bound in (*spec.names, *spec.readonly):
        arguments += ("--ro-bind", bound.source, bound.target)
    if spec.home is not None:
        shelves = (*shelves, spec.home.path)
    for shelf in (*shelves, *(["/"] if spec.tree is not None and spec.tree.entries else [])):
        arguments += ("--remount-ro", shelf)
    for name, value in (*spec.variables, ("TMPDIR", _TMP)):
        arguments += ("--setenv", name, value)
    arguments += ("--chdir", spec.cwd, "--json-status-fd", str(spec.status_fd))
    if spec.filter_fd:
        arguments += ("--seccomp", str(spec.filter_fd))
    return (*arguments, "--", *_guarded(spec), *spec.command)


def _check_tmp(spec: Spec) -> None:
    """Refuse mount points in a /tmp that commands wrote before: bubblewrap would follow their links out of here."""
    if not spec.tmp:
        return
    bounds = (*spec.bounds, *spec.scratch, *spec.binds, *spec.readonly, *spec.names)
    targets = [bound.target for bound in bounds] + [each[0] for each in (*spec.overlays, *spec.scratch_overlays)]
    targets += [*spec.masked, *spec.emptied, *spec.frozen, *([] if spec.home is None else [spec.home.path])]
    for target in targets:
        if target.startswith(f"{_TMP}/"):
            raise BadRequest(
                f"{_TMP} can't be kept between commands here: {target} lies in it", hint='move it, or set tmp = "fresh"'
            )


def _guarded(spec: Spec) -> tuple[str, ...]:
    """Have the guard become the command, after it was told every place that may be written."""
    if not spec.guard_fd:
        return ()
    places = ["/"] if spec.tree is not None and spec.tree.writable else [_TMP, "/dev", "/proc"]
    places += [bound.target for bound in (*spec.scratch, *spec.bounds, *spec.binds)]
    places += [target for target, *_ in (*spec.scratch_overlays, *spec.overlays)]
    return (f"/proc/self/fd/{spec.guard_fd}", *places, "--")


def _writable(bounds: tuple[Bound, ...], overlays: tuple[Layered, ...]) -> list[str]:
    """Let the command write directories, bound or overlaid."""
    arguments = []
    for bound in bounds:
        arguments += ["--bind", bound.source, bound.target]
    for target, lowers, upper, work in overlays:
        arguments += [*_sources(lowers), "--overlay", upper, work, target]
    return arguments


def _covers(spec: Spec) -> list[str]:
    """Hide what no command may see, and hold fast what it may not change."""
    arguments = []
    roots = [bound.target for bound in spec.bounds] + [each[0] for each in spec.overlays]
    for path in spec.masked:
        # A root may lie in what is hidden, as a workspace does: it is mounted when this can no longer be written.
        inside = [word for root in roots if root.startswith(f"{path}/") for word in ("--dir", root)]
        arguments += ["--tmpfs", path, *inside, "--remount-ro", path]
    for path in spec.emptied:
        arguments += ["--ro-bind", "/dev/null", path]
    for path in spec.frozen:
        arguments += ["--ro-bind", path, path]
    return arguments


def _base(tree: Tree) -> list[str]:
    """Make a root tree the `/` of the sandbox.

    One that lacks a mount point is not changed: what lies at its top is bound on bubblewrap's own empty root.
    """
    # Whoever may change the root is root there, without a capability: package managers ask for no more.
    identity = ["--uid", "0", "--gid", "0"] if tree.writable else []
    if tree.overlay is not None:
        lowers, upper, work = tree.overlay
        return [*identity, *_sources(lowers), *(("--overlay", upper, work) if upper else ("--ro-overlay",)), "/"]
    if not tree.entries:
        return [*identity, "--bind" if tree.writable else "--ro-bind", tree.path, "/"]
    arguments = []
    for name, target in tree.entries:
        if name not in _MADE:
            source = f"{tree.path}/{name}"
            arguments += ["--symlink", target, f"/{name}"] if target else ["--ro-bind", source, f"/{name}"]
    return arguments


def _put_together(shelf: Shelf | None) -> list[str]:
    if shelf is None:
        return []
    arguments = ["--tmpfs", shelf.path]
    for name, target in shelf.entries:
        path = f"{shelf.path}/{name}"
        # What has gone meanwhile is no reason to fail.
        arguments += ["--symlink", target, path] if target else ["--ro-bind-try", path, path]
    return arguments


def _sources(lowers: tuple[str, ...]) -> list[str]:
    return [word for lower in reversed(lowers) for word in ("--overlay-src", lower)]


def _shelves(spec: Spec) -> tuple[str, ...]:
    """Return the directories that hold several of the sandbox's mount points, to be made fresh: `/skills`."""
    mounted = [bound.target for bound in (*spec.bounds, *spec.readonly)] + [each[0] for each in spec.overlays]
    free = [point for point in spec.tree.guarded if point not in mounted] if spec.tree is not None else []
    return tuple(dict.fromkeys((*(above for path in mounted if (above := path.rpartition("/")[0])), *free)))
