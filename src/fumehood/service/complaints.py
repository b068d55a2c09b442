"""What a command that failed says when it was the network that it lacked: told to whoever wonders why."""

from __future__ import annotations

from fumehood.core.report import Blocked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.connection import Connection
    from fumehood.core.network import Network

# What programs say that were offline and know no proxy, or were given none.
_COMPLAINTS = (
    "Could not resolve host", "Temporary failure in name resolution", "Name or service not known",
    "Network is unreachable", "Could not resolve hostname", "getaddrinfo EAI_AGAIN", "getaddrinfo ENOTFOUND",
    "ENETUNREACH", "no such host", "nodename nor servname", "unable to resolve host", "failed to lookup address",
    "Failed to establish a new connection", "dns error",
)  # fmt: skip


_MOST, _LONGEST = 5, 160  # hosts that are told of, and letters of a complaint


def unreached(connections: Sequence[Connection]) -> tuple[Blocked, ...]:
    """Tell a command that failed which of its hosts were granted and not reached: programs seldom say why."""
    from fumehood.core.hosts import shown

    failed: dict[str, str] = {}
    for each in connections:
        name = shown(each.host, each.port)
        failed.pop(name, None)  # it may have been there the next time
        if each.allowed and each.reason:
            failed[name] = each.reason
    return tuple(
        Blocked(what="network", detail=name, hint=f"it was granted, but not reached: {reason}")
        for name, reason in list(failed.items())[:_MOST]
    )


def suspected(output: str, network: Network) -> tuple[Blocked, ...]:
    """Say that there is no network to a command that failed and complained of it."""
    line = next((line for line in output.splitlines() if any(said in line for said in _COMPLAINTS)), "")
    if not line:
        return ()
    if network.is_proxied:
        hint = "only hosts that were granted are reached, and only by programs that use a proxy (HTTPS_PROXY is set)"
    else:
        hint = "a command has no network unless it is asked for: fumehood run --allow-host HOST -- …, or --network"
    line = line.strip()
    return (Blocked(what="network", detail=line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…", hint=hint),)
