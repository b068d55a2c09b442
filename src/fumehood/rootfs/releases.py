"""Which Alpine there is to install: the machine's name for its architecture, and the mirror's list of releases."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError, Unavailable

if TYPE_CHECKING:
    from fumehood.rootfs.download import Fetcher

MIRROR = "https://dl-cdn.alpinelinux.org/alpine"
LATEST = "latest-stable"
FLAVOR = "alpine-minirootfs"
# What the kernel calls a machine, and what Alpine calls it.
ARCHITECTURES = {
    "x86_64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
    "armv7l": "armv7",
    "i686": "x86",
    "i386": "x86",
}
_LIST_LIMIT = 1 << 20
_VERSION = re.compile(r"\d+(\.\d+)*([._a-z0-9]*)?")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\.tar\.(gz|xz|bz2)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Release(Value):
    """One mini root file system that a mirror offers."""

    version: str
    url: str
    sha256: str
    size: int = 0


def architecture(machine: str | None = None) -> str:
    """Return Alpine's name for this machine's architecture."""
    if machine is None:
        import platform

        machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise Unavailable(
            f"there is no Alpine root for {machine}",
            hint=f"there is one for {', '.join(ARCHITECTURES)}; or take your own: fumehood rootfs install --from FILE",
        )
    return ARCHITECTURES[machine]


def branch_of(version: str) -> str:
    """Return the branch that a version belongs to: v3.20 for 3.20.3, edge for a date."""
    parts = version.split(".")
    return f"v{parts[0]}.{parts[1]}" if len(parts) > 1 else "edge"


def latest(fetcher: Fetcher, mirror: str, arch: str, branch: str = LATEST) -> Release:
    """Ask a mirror for the newest release of a branch."""
    base = f"{mirror.rstrip('/')}/{branch}/releases/{arch}"
    url = f"{base}/latest-releases.yaml"
    return listed(fetcher.content(url, _LIST_LIMIT), url, base)


def exactly(fetcher: Fetcher, mirror: str, arch: str, version: str) -> Release:
    """Find one version; a branch's name (3.20) means its newest."""
    if not _VERSION.fullmatch(version):
        raise BadRequest(f"{version!r} is not an Alpine version", hint="fumehood rootfs install --version 3.20.3")
    branch = branch_of(version)
    if version.count(".") == 1:
        return latest(fetcher, mirror, arch, branch)
    base = f"{mirror.rstrip('/')}/{branch}/releases/{arch}"
    url = f"{base}/{FLAVOR}-{version}-{arch}.tar.gz"
    return Release(version=version, url=url, sha256=checksum_beside(fetcher, url))


def checksum_beside(fetcher: Fetcher, url: str) -> str:
    """Read the checksum that a mirror keeps beside a file."""
    said = fetcher.content(f"{url}.sha256", 4096).decode("ascii", "replace").split()
    if not said or not _SHA256.fullmatch(said[0].lower()):
        raise FumehoodError(f"{url}.sha256 holds no checksum", hint="give it yourself: --sha256 …")
    return said[0].lower()


def listed(content: bytes, url: str, base: str) -> Release:
    """Find the mini root file system in a mirror's list of releases."""
    import yaml

    try:
        # Every scalar stays text: 3.20 is no number, and 20240923 no other.
        entries = yaml.load(content, Loader=yaml.BaseLoader)  # noqa: S506 - this loader makes only text and lists
    except yaml.YAMLError as error:
        raise _odd(url, "it is not YAML") from error
    if not isinstance(entries, list):
        raise _odd(url, "it is not a list of releases")
    found = [each for each in entries if isinstance(each, dict) and each.get("flavor") == FLAVOR]
    if not found:
        raise _odd(url, f"it lists no {FLAVOR}")
    return _release(found[0], url, base)


def _release(entry: dict[str, Any], url: str, base: str) -> Release:
    version, file, sha256, size = (str(entry.get(name, "")) for name in ("version", "file", "sha256", "size"))
    sha256 = sha256.lower()
    for name, value, shape in (("version", version, _VERSION), ("file", file, _FILE), ("sha256", sha256, _SHA256)):
        if not shape.fullmatch(value):
            raise _odd(url, f"its {FLAVOR} has {f'the {name} {value[:80]!r}' if value else f'no {name}'}")
    return Release(
        version=version, url=f"{base}/{file}", sha256=sha256, size=int(size) if size.isdecimal() else 0
    )


def _odd(url: str, why: str) -> FumehoodError:
    return FumehoodError(f"{url} can't be used: {why}", hint="is rootfs.mirror in the configuration right?")


def as_numbers(version: str) -> tuple[int, ...]:
    """Return a version so that versions can be compared."""
    return tuple(int(part) for part in re.findall(r"\d+", version))
