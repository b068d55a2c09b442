"""Fetch files over HTTP, and find the Alpine release to install in a mirror's list.

A download reports progress, goes on where an earlier one was cut off, and is checked before anybody uses the file.
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

Progress = Callable[[int, int], None]  # called with the bytes that are here, and how many there are in all

_TIMEOUT_S = 30.0
_READ_SIZE = 1 << 18
_MOST_IDLE_ATTEMPTS = 5  # in a row that bring nothing new
_LARGEST_FILE = 16 << 30
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_CONNECTION_ERRORS = (http.client.HTTPException, ConnectionError, TimeoutError, urllib.error.URLError)


class DownloadFailed(FumehoodError):
    """A file could not be fetched. The part that came is kept, and the next try goes on from there."""


class Fetcher:
    """Gets files from web servers: by a proxy if it has one, else as the environment says."""

    def __init__(self, proxy: str = "", on_progress: Progress | None = None) -> None:
        self._opener = _opener(proxy)
        self._on_progress = on_progress

    def content(self, url: str, limit: int) -> bytes:
        """Return the content of a small file."""
        try:
            with self._open(url, {}) as response:
                data: bytes = response.read(limit + 1)
        except _CONNECTION_ERRORS as error:
            raise _failure(url, error) from error
        if len(data) > limit:
            raise DownloadFailed(f"{url} is too long", hint="is the mirror right?")
        return data

    def file(self, url: str, folder: str, sha256: str) -> str:
        """Return the path of a file with this checksum, after fetching what is missing of it.

        Until it is complete, the file has the checksum and ".part" as its name, so it is never taken for the whole one.
        """
        os.makedirs(folder, mode=0o700, exist_ok=True)
        complete, part = f"{folder}/{sha256}", f"{folder}/{sha256}.part"
        if os.path.exists(complete) and checksum(complete) == sha256:
            return complete
        resumed = os.path.exists(part)
        self._download(url, part)
        if checksum(part) != sha256:
            os.unlink(part)
            if not resumed:
                raise DownloadFailed(
                    f"{url} is not what it should be: its SHA-256 is wrong", hint="try again, or another mirror"
                )
            return self.file(url, folder, sha256)  # the old part may have been the beginning of another version
        os.replace(part, complete)
        return complete

    def _download(self, url: str, part: str) -> None:
        """Fetch until nothing is missing; when the connection is cut, go on from there."""
        idle_attempts = 0
        while True:
            size_before = _size(part)
            try:
                if self._resume(url, part, size_before):
                    return
                cause: Exception | None = None
            except urllib.error.HTTPError as error:
                error.close()  # it is the answer too
                raise _failure(url, error) from error
            except _CONNECTION_ERRORS as error:
                cause = error
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                raise DownloadFailed(
                    f"cannot fetch {url}: the disk that has {os.path.dirname(part)} is full",
                    hint="free some space; what came is kept, and the next try goes on from there",
                ) from error
            size = _size(part)
            idle_attempts = 0 if size > size_before else idle_attempts + 1
            if idle_attempts >= _MOST_IDLE_ATTEMPTS:
                raise _failure(url, cause, size)

    def _resume(self, url: str, part: str, size: int) -> bool:
        """Ask for what is missing after this size, and append it; return True if the file is complete now."""
        headers = {"Range": f"bytes={size}-"} if size else {}
        try:
            response = self._open(url, headers)
        except urllib.error.HTTPError as error:
            if size and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                error.close()
                # Nothing is missing, or the part is of another file; its checksum will tell.
                length = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
                if length is not None and int(length[1]) == size:
                    return True
                os.truncate(part, 0)
                return False
            raise
        with response:
            is_rest = response.headers.get("Content-Range", "").startswith(f"bytes {size}-")
            start = size if response.status == http.client.PARTIAL_CONTENT and is_rest else 0
            total = start + int(response.headers.get("Content-Length") or 0)
            if total > _LARGEST_FILE:
                raise DownloadFailed(f"{url} is too large: {total >> 20} MiB", hint="is it the right file?")
            with open(part, "r+b" if start else "wb") as file:
                file.seek(start)
                done = start
                while data := response.read(_READ_SIZE):
                    file.write(data)
                    done += len(data)
                    if done > _LARGEST_FILE:
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
    """Return an opener for HTTP and nothing else: a redirect must not end in a local file."""
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


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _failure(url: str, error: Exception | None, kept_bytes: int = 0) -> DownloadFailed:
    if isinstance(error, urllib.error.HTTPError):
        why = f"the server says {error.code} {error.reason}"
    elif isinstance(error, urllib.error.URLError):
        why = str(getattr(error.reason, "strerror", None) or error.reason)
    else:
        why = "the connection was cut" if error is None else str(error) or type(error).__name__
    kept = f"; {kept_bytes} bytes are kept, the next try goes on from there" if kept_bytes else ""
    hint = "see rootfs.mirror and rootfs.proxy in the configuration"
    return DownloadFailed(f"cannot fetch {url}: {why}{kept}", hint=hint)


# ---- Alpine's releases.

MIRROR = "https://dl-cdn.alpinelinux.org/alpine"
LATEST = "latest-stable"
FLAVOR = "alpine-minirootfs"
# From the kernel's names of architectures to Alpine's.
ARCHITECTURES = {
    "x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64", "armv7l": "armv7", "i686": "x86", "i386": "x86",
}  # fmt: skip
_LIST_LIMIT = 1 << 20
_VERSION = re.compile(r"\d+(\.\d+)*([._a-z0-9]*)?")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\.tar\.(gz|xz|bz2)")
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


def latest_release(fetcher: Fetcher, mirror: str, arch: str, branch: str = LATEST) -> Release:
    """Return the newest release of a branch on a mirror."""
    base = f"{mirror.rstrip('/')}/{branch}/releases/{arch}"
    url = f"{base}/latest-releases.yaml"
    return release_in_list(fetcher.content(url, _LIST_LIMIT), url, base)


def find_release(fetcher: Fetcher, mirror: str, arch: str, version: str) -> Release:
    """Return the release with this version on a mirror; for the name of a branch (3.20), its newest release."""
    if not _VERSION.fullmatch(version):
        raise BadRequest(f"{version!r} is not an Alpine version", hint="fumehood rootfs install --version 3.20.3")
    branch = branch_of(version)
    if version.count(".") == 1:
        return latest_release(fetcher, mirror, arch, branch)
    base = f"{mirror.rstrip('/')}/{branch}/releases/{arch}"
    url = f"{base}/{FLAVOR}-{version}-{arch}.tar.gz"
    return Release(version=version, url=url, sha256=published_checksum(fetcher, url))


def published_checksum(fetcher: Fetcher, url: str) -> str:
    """Return the checksum that a mirror publishes beside a file."""
    words = fetcher.content(f"{url}.sha256", 4096).decode("ascii", "replace").lower().split()
    if not words or not _SHA256.fullmatch(words[0]):
        raise FumehoodError(f"{url}.sha256 holds no checksum", hint="give it yourself: --sha256 …")
    return words[0]


def release_in_list(content: bytes, url: str, base: str) -> Release:
    """Return the release that a mirror's list, `content`, names for the mini root file system."""
    import yaml

    try:
        # This loader leaves every value a text: neither 3.20 nor 20240923 is a number.
        entries = yaml.load(content, Loader=yaml.BaseLoader)  # noqa: S506 - this loader makes only text and lists
    except yaml.YAMLError as error:
        raise _unusable_list(url, "it is not YAML") from error
    if not isinstance(entries, list):
        raise _unusable_list(url, "it is not a list of releases")
    entry = next((each for each in entries if isinstance(each, dict) and each.get("flavor") == FLAVOR), None)
    if entry is None:
        raise _unusable_list(url, f"it lists no {FLAVOR}")
    version, file, sha256, size = (str(entry.get(name, "")) for name in ("version", "file", "sha256", "size"))
    sha256 = sha256.lower()
    for name, value, shape in (("version", version, _VERSION), ("file", file, _FILE_NAME), ("sha256", sha256, _SHA256)):
        if not shape.fullmatch(value):
            raise _unusable_list(url, f"its {FLAVOR} has {f'the {name} {value[:80]!r}' if value else f'no {name}'}")
    return Release(version=version, url=f"{base}/{file}", sha256=sha256, size=int(size) if size.isdecimal() else 0)


def _unusable_list(url: str, why: str) -> FumehoodError:
    return FumehoodError(f"{url} can't be used: {why}", hint="is rootfs.mirror in the configuration right?")


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version, so that versions can be compared."""
    return tuple(int(part) for part in re.findall(r"\d+", version))
