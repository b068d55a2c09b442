"""Addresses that a name may not lead to by itself: this machine, its neighbours, and what only wraps those."""

from __future__ import annotations

import ipaddress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.hosts import Address

# What Python calls private also has the ranges for documentation, which lead nowhere; some networks use them.
_REFUSED = {
    "unspecified": ("0.0.0.0/8", "::/128"),
    "loopback": ("127.0.0.0/8", "::1/128"),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15", "192.0.0.0/24",
                "fc00::/7", "fec0::/10"),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "reserved": ("240.0.0.0/4", "100::/64"),
}  # fmt: skip
_TABLE = [(ipaddress.ip_network(net), kind) for kind, nets in _REFUSED.items() for net in nets]
_NAT64 = [ipaddress.IPv6Network(net) for net in ("64:ff9b::/96", "64:ff9b:1::/48")]
_COMPATIBLE = ipaddress.IPv6Network("::/96")


def special(address: Address) -> str:
    """Say what is special about an address, or nothing where it is a public one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return special(address.ipv4_mapped)
        direct = _kind(address)
        return direct or next(filter(None, map(_kind, _wrapped(address))), "")
    return _kind(address)


def _kind(address: Address) -> str:
    return next((kind for net, kind in _TABLE if address.version == net.version and address in net), "")


def _wrapped(address: ipaddress.IPv6Address) -> list[Address]:
    """Return the IPv4 addresses that a translator on the way would send this one to."""
    found: list[Address] = []
    low = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found += address.teredo
    if any(address in net for net in (*_NAT64, _COMPATIBLE)):
        found.append(low)
    return found
