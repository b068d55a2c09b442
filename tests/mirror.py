"""A mirror of Alpine on loopback: a releases file, checksums, a mini root file system, packages; and its failures."""

import gzip
import hashlib
import io
import re
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import trees
from fumehood.rootfs.download import architecture
from fumehood.rootfs.installer import TIERS

PACKAGES = [name for tier in TIERS.values() for name in tier]


class Mirror(ThreadingHTTPServer):
    """Serves what lies in `files`; `cuts` says after how many bytes each next answer for a path breaks off."""

    daemon_threads = True

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cuts: dict[str, list[int]] = {}
        self.asked: list[tuple[str, str]] = []
        self.ranges = True
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self, ending: str) -> int:
        return sum(path.endswith(ending) for path, _ in self.asked)

    def offer(self, version: str, tarball: bytes | None = None, sha256: str = "", branch: str = "latest-stable") -> str:
        """Put a release at the top of a branch, with its packages; returns the tarball's path."""
        arch = architecture()
        content = minirootfs(version) if tarball is None else tarball
        name = f"alpine-minirootfs-{version}-{arch}.tar.gz"
        digest = sha256 or hashlib.sha256(content).hexdigest()
        number = "v" + ".".join(version.split(".")[:2])
        for each in {branch, number}:
            base = f"/{each}/releases/{arch}"
            self.files[f"{base}/{name}"] = content
            self.files[f"{base}/{name}.sha256"] = f"{digest}  {name}\n".encode()
            self.files[f"{base}/latest-releases.yaml"] = releases(version, name, digest, len(content)).encode()
        for part in ("main", "community"):
            self.files[f"/{number}/{part}/APKINDEX"] = ("\n".join(PACKAGES) + "\n").encode()
            for package in PACKAGES:
                self.files[f"/{number}/{part}/{package}.tar"] = package_of(package)
        return f"/{branch}/releases/{arch}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server: Mirror
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Range", "")))
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted and self.server.ranges else 0
        if start >= len(content) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cuts = self.server.cuts.get(self.path)
        end = start + cuts.pop(0) if cuts else len(content)
        self.wfile.write(content[start:end])

    def log_message(self, *_arguments: object) -> None:
        return


@contextmanager
def serving() -> Iterator[Mirror]:
    mirror = Mirror()
    thread = threading.Thread(target=mirror.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield mirror
    finally:
        mirror.shutdown()
        thread.join()
        mirror.server_close()


def releases(version: str, name: str, digest: str, size: int) -> str:
    """A latest-releases.yaml, as Alpine writes it: other flavours come first."""
    entry = "-\n  title: {flavor}\n  branch: latest\n  version: {version}\n  flavor: {flavor}\n  file: {file}\n"
    entry += "  date: 2024-09-06\n  time: 11:45:12\n  size: {size}\n  sha256: {digest}\n"
    iso = entry.format(flavor="alpine-standard", version=version, file="a.iso", size=1, digest="0" * 64)
    return f"---\n{iso}" + entry.format(
        flavor="alpine-minirootfs", version=version, file=name, size=size, digest=digest
    )


@cache
def minirootfs(version: str) -> bytes:
    """A mini root file system: busybox, and an apk of a few lines."""
    with tempfile.TemporaryDirectory() as folder:
        tree = trees.make_tree(Path(folder, "tree"), version)
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as archive:
            archive.add(tree, ".")
    return gzip.compress(made.getvalue(), 1)


@cache
def package_of(name: str) -> bytes:
    """A package of the test's apk: a program that tells its name."""
    programs = {"bash": "bin/bash", "python3": "usr/bin/python3"}
    text = '#!/bin/sh\nIS_BASH=yes exec /bin/busybox sh "$@"\n' if name == "bash" else f"#!/bin/sh\necho {name} 1.0\n"
    return tarball((programs.get(name, f"usr/bin/{name}"), text.encode(), 0o755))


def zstd(content: bytes) -> bytes:
    """Compress some content."""
    if sys.version_info >= (3, 14):
        from compression.zstd import compress
    else:
        from zstandard import compress
    return compress(content)


def tarball(*files: tuple[str, bytes, int] | tarfile.TarInfo) -> bytes:
    """A tarball of plain files, and of whatever else is described."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for each in files:
            if isinstance(each, tarfile.TarInfo):
                archive.addfile(each)
                continue
            name, content, mode = each
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()
