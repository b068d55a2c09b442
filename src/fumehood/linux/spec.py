"""Write down the sandbox of one run as bubblewrap's arguments."""

from __future__ import annotations

from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.mounts import Operation, is_bubblewraps, writable
from fumehood.linux.site import ROOT

STATUS_FD, FILTER_FD, GUARD_FD = 3, 5, 6
TMP = "/tmp"  # noqa: S108 - the sandbox's own
_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup")
_NO_NETWORK = "--unshare-net"
_CONFINEMENT = ("--cap-drop", "ALL", "--die-with-parent", "--new-session")


class Spec(Value):
    """The world one command sees: its mounts in order, later ones covering earlier ones."""

    command: tuple[str, ...]
    cwd: str
    mounts: tuple[Operation, ...]
    by_launcher: bool  # the launcher mounts, all but what only bubblewrap can
    network_made: bool = False  # the launcher has arranged it; bubblewrap leaves it as it is
    disable_userns: bool = True
    # Whoever may change the root is root there, without a capability: package managers ask for no more.
    is_root: bool = False
    variables: tuple[tuple[str, str], ...] = ()  # that the command gets and bubblewrap is not started with
    has_filter: bool = False
    has_guard: bool = False


def bubblewrap_arguments(spec: Spec) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
    """Return what follows `bwrap`, and the texts that it reads from descriptors."""
    texts: list[bytes] = []
    arguments = [*_NAMESPACES, *(() if spec.network_made else (_NO_NETWORK,)), *_CONFINEMENT]
    if spec.disable_userns:
        arguments.append("--disable-userns")
    if spec.is_root:
        arguments += ("--uid", "0", "--gid", "0")
    if spec.by_launcher:
        arguments += ("--dev-bind", ROOT, "/")  # each mount below has its own restrictions
    for operation in spec.mounts:
        if not spec.by_launcher or is_bubblewraps(operation):
            arguments += operation.arguments(texts)
    for name, value in (*spec.variables, ("TMPDIR", TMP)):
        arguments += ("--setenv", name, value)
    arguments += ("--chdir", spec.cwd, "--json-status-fd", str(STATUS_FD))
    if spec.has_filter:
        arguments += ("--seccomp", str(FILTER_FD))
    # The guard becomes the command, after it was told every place that may be written.
    guard = (f"/proc/self/fd/{GUARD_FD}", *writable(spec.mounts), "--") if spec.has_guard else ()
    return (*arguments, "--", *guard, *spec.command), tuple(texts)


def check_tmp(mounts: tuple[Operation, ...]) -> None:
    """Refuse mount points in a /tmp that commands wrote before: what they left there must not lead anywhere."""
    for operation in mounts:
        if operation.target.startswith(f"{TMP}/"):
            raise BadRequest(
                f"{TMP} can't be kept between commands here: {operation.target} lies in it",
                hint='move it, or set tmp = "fresh"',
            )
