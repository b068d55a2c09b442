"""Fetch files over HTTP: with progress, going on where a cut download stopped, checked before anybody uses them.

Also which Alpine there is to install: the machine's name for its architecture, and the mirror's list of releases.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError, Unavailable

Progress = Callable[[int, int], None]

_TIMEOUT_S = 30.0
_PIECE = 1 << 18
_ATTEMPTS = 5  # in a row that bring nothing new
_LARGEST = 16 << 30
FULL = (errno.ENOSPC, errno.EDQUOT)
_CUT = (http.client.HTTPException, ConnectionError, TimeoutError, urllib.error.URLError)


class DownloadFailed(FumehoodError):
    """A file could not be fetched; what came is kept and the next try goes on from there."""


class Fetcher:
    """Gets files from web servers, by a proxy where one is given (else by what the environment says)."""

    def __init__(self, proxy: str = "", on_progress: Progress | None = None) -> None:
        self._opener = _opener(proxy)
        self._on_progress = on_progress

    def content(self, url: str, limit: int) -> bytes:
        """Return a small file whole."""
        try:
            with self._open(url, {}) as response:
                data: bytes = response.read(limit + 1)
        except _CUT as error:
            raise _failed(url, error) from error
        if len(data) > limit:
            raise DownloadFailed(f"{url} is too long", hint="is the mirror right?")
        return data

    def file(self, url: str, folder: str, sha256: str) -> str:
        """Return the path of a file whose content has this checksum, fetching what is missing of it.

        What did come of a cut download is kept under the checksum's own name, and never taken for the whole.
        """
        os.makedirs(folder, mode=0o700, exist_ok=True)
        whole, part = f"{folder}/{sha256}", f"{folder}/{sha256}.part"
        if os.path.exists(whole) and checksum(whole) == sha256:
            return whole
        resumed = os.path.exists(part)
        self._bring(url, part)
        if checksum(part) != sha256:
            os.unlink(part)
            if not resumed:
                raise DownloadFailed(
                    f"{url} is not what it should be: its SHA-256 is wrong", hint="try again, or another mirror"
                )
            return self.file(url, folder, sha256)  # what was kept may have been another version's beginning
        os.replace(part, whole)
        return whole

    def _bring(self, url: str, part: str) -> None:
        """Fetch until nothing is missing, going on after each cut."""
        idle = 0
        while True:
            before = os.path.getsize(part) if os.path.exists(part) else 0
            try:
                if self._go_on(url, part, before):
                    return
                reason: Exception | None = None
            except urllib.error.HTTPError as error:
                raise _failed(url, error) from error
            except _CUT as error:
                reason = error
            except OSError as error:
                if error.errno not in FULL:
                    raise
                raise DownloadFailed(
                    f"cannot fetch {url}: the disk that has {os.path.dirname(part)} is full",
                    hint="free some space; what came is kept, and the next try goes on from there",
                ) from error
            got = os.path.getsize(part) if os.path.exists(part) else 0
            idle = 0 if got > before else idle + 1
            if idle >= _ATTEMPTS:
                raise _failed(url, reason, got)

    def _go_on(self, url: str, part: str, have: int) -> bool:
        """Ask for what is missing and append it; returns True if the file is whole now."""
        headers = {"Range": f"bytes={have}-"} if have else {}
        try:
            response = self._open(url, headers)
        except urllib.error.HTTPError as error:
            if have and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                # Nothing is missing, or what we have is of something else; the checksum tells.
                length = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
                if length is not None and int(length[1]) == have:
                    return True
                os.truncate(part, 0)
                return False
            raise
        with response:
            is_rest = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            start = have if response.status == http.client.PARTIAL_CONTENT and is_rest else 0
            total = start + int(response.headers.get("Content-Length") or 0)
            if total > _LARGEST:
                raise DownloadFailed(f"{url} is too large: {total >> 20} MiB", hint="is it the right file?")
            with open(part, "r+b" if start else "wb") as file:
                file.seek(start)
                done = start
                while data := response.read(_PIECE):
                    file.write(data)
                    done += len(data)
                    if done > _LARGEST:
                        raise DownloadFailed("the download does not end", hint="is it the right address?")
                    if self._on_progress is not None:
                        self._on_progress(done, total)
        return bool(total > start and done == total) or (not response.headers.get("Content-Length") and done > 0)

    def _open(self, url: str, headers: dict[str, str]) -> Any:
        if not url.startswith(("http://", "https://")):
            raise BadRequest(f"{url} is not a web address", hint="it begins with https:// or http://")
        try:
            request = urllib.request.Request(url, headers={"User-Agent": "fumehood", **headers})  # noqa: S310
            return self._opener.open(request, timeout=_TIMEOUT_S)
        except (ValueError, http.client.InvalidURL) as error:
            raise BadRequest(f"{url} is not a web address: {error}", hint="check it for typing errors") from error


def _opener(proxy: str) -> urllib.request.OpenerDirector:
    """Return what speaks HTTP and nothing else: a redirect must not end in a local file."""
    opener = urllib.request.OpenerDirector()
    if proxy and not proxy.startswith(("http://", "https://")):
        raise BadRequest(f"{proxy} is not the address of a proxy", hint="http://proxy.example.org:3128")
    proxies = {"http": proxy, "https": proxy} if proxy else None
    for handler in (
        urllib.request.ProxyHandler(proxies), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(), urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(), urllib.request.UnknownHandler(),
    ):  # fmt: skip
        opener.add_handler(handler)
    return opener


def checksum(path: str) -> str:
    """Return the SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _failed(url: str, error: Exception | None, got: int = 0) -> DownloadFailed:
    if isinstance(error, urllib.error.HTTPError):
        why = f"the server says {error.code} {error.reason}"
    elif isinstance(error, urllib.error.URLError):
        why = str(getattr(error.reason, "strerror", None) or error.reason)
    else:
        why = "the connection was cut" if error is None else str(error) or type(error).__name__
    kept = f"; {got} bytes are kept, the next try goes on from there" if got else ""
    hint = "see rootfs.mirror and rootfs.proxy in the configuration"
    return DownloadFailed(f"cannot fetch {url}: {why}{kept}", hint=hint)


MIRROR = "https://dl-cdn.alpinelinux.org/alpine"
LATEST = "latest-stable"
FLAVOR = "alpine-minirootfs"
# What the kernel calls a machine, and what Alpine calls it.
ARCHITECTURES = {
    "x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64", "armv7l": "armv7", "i686": "x86", "i386": "x86",
}  # fmt: skip
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
    machine = os.uname().machine if machine is None else machine
    if machine not in ARCHITECTURES:
        raise Unavailable(
            f"there is no Alpine root for {machine}",
            hint=f"there is one for {', '.join(ARCHITECTURES)}; or take your own: fumehood rootfs install --from FILE",
        )
    return ARCHITECTURES[machine]


def branch_of(version: str) -> str:
    """Return the branch that a version belongs to: v3.20 for 3.20.3, edge for a date and for 3.21.0_alpha20240923."""
    parts = version.split(".")
    return f"v{parts[0]}.{parts[1]}" if len(parts) > 1 and "_alpha" not in version else "edge"


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
    words = fetcher.content(f"{url}.sha256", 4096).decode("ascii", "replace").lower().split()
    if not words or not _SHA256.fullmatch(words[0]):
        raise FumehoodError(f"{url}.sha256 holds no checksum", hint="give it yourself: --sha256 …")
    return words[0]


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
    entry = next((each for each in entries if isinstance(each, dict) and each.get("flavor") == FLAVOR), None)
    if entry is None:
        raise _odd(url, f"it lists no {FLAVOR}")
    version, file, sha256, size = (str(entry.get(name, "")) for name in ("version", "file", "sha256", "size"))
    sha256 = sha256.lower()
    for name, value, shape in (("version", version, _VERSION), ("file", file, _FILE), ("sha256", sha256, _SHA256)):
        if not shape.fullmatch(value):
            raise _odd(url, f"its {FLAVOR} has {f'the {name} {value[:80]!r}' if value else f'no {name}'}")
    return Release(version=version, url=f"{base}/{file}", sha256=sha256, size=int(size) if size.isdecimal() else 0)


def _odd(url: str, why: str) -> FumehoodError:
    return FumehoodError(f"{url} can't be used: {why}", hint="is rootfs.mirror in the configuration right?")


def as_numbers(version: str) -> tuple[int, ...]:
    """Return a version so that versions can be compared."""
    return tuple(int(part) for part in re.findall(r"\d+", version))
