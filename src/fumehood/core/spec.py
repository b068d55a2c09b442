"""Write down the sandbox of one run as bubblewrap's arguments: pure, so it can be shown and tested."""

from __future__ import annotations

from fumehood.core.value import Value


class Bound(Value):
    """A directory the command may write: where its captured view comes from, and where it appears."""

    source: str
    target: str


class Spec(Value):
    """The world one command sees."""

    command: tuple[str, ...]
    cwd: str
    bounds: tuple[Bound, ...]
    masked: tuple[str, ...] = ()
    overlays: tuple[tuple[str, tuple[str, ...], str, str], ...] = ()  # root, lowers, upper, work
    disable_userns: bool = True
    status_fd: int = 3


_NAMESPACES = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup", "--unshare-net",
)  # fmt: skip
_CONFINEMENT = ("--cap-drop", "ALL", "--die-with-parent", "--new-session")
_TMP = "/tmp"  # noqa: S108 - a fresh one, inside the sandbox
_SYSTEM = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--perms", "1777", "--tmpfs", _TMP)


def bubblewrap_arguments(spec: Spec) -> tuple[str, ...]:
    """Return what follows `bwrap`: later mounts cover earlier ones, so roots come last."""
    arguments = [*_NAMESPACES, *_CONFINEMENT]
    if spec.disable_userns:
        arguments.append("--disable-userns")
    arguments += _SYSTEM
    for path in spec.masked:
        arguments += ("--tmpfs", path, "--remount-ro", path)
    for bound in spec.bounds:
        arguments += ("--bind", bound.source, bound.target)
    for root, lowers, upper, work in spec.overlays:
        for lower in reversed(lowers):
            arguments += ("--overlay-src", lower)
        arguments += ("--overlay", upper, work, root)
    arguments += ("--setenv", "TMPDIR", _TMP, "--chdir", spec.cwd, "--json-status-fd", str(spec.status_fd))
    return (*arguments, "--", *spec.command)
