"""Unpack a tarball that nobody vouches for: nothing is written outside the target, whatever names it holds.

Everything is reached from the target's descriptor without following a link. Owners, set-uid bits, devices and
extended attributes are not taken over: a tree has one owner, and the sandbox makes its own devices. Image archives,
as `docker save`, `podman save` or `skopeo copy` write them, have layers with their whiteouts.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import stat
import tarfile
import zlib
from typing import IO, Any

from fumehood.errors import FumehoodError
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import entries, look, open_below, remove_tree, split
from fumehood.rootfs.download import ARCHITECTURES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_BYTES = 64 << 30
_MOST_ENTRIES = 4_000_000
_DEEPEST = 200
_LATEST = 1 << 33
_PIECE = 1 << 20
_TARGET = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ELOOP = 40
_HINT = "nothing was installed; get the file from where you trust it"
DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError)

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_LARGEST_DOCUMENT = 8 << 20
# What image builders call the architectures that Alpine has names of its own for.
_GO_NAMES = {"x86_64": "amd64", "aarch64": "arm64", "armv7": "arm", "x86": "386"}
_BLOBS = "blobs/sha256"
_ZSTD = b"\x28\xb5\x2f\xfd"


class Hostile(FumehoodError):
    """A tarball names something outside the directory it is unpacked to."""


class Unpacking:
    """One target directory that tarballs are unpacked to, one after the other."""

    def __init__(self, target: int) -> None:
        self._top = target
        self._bytes = 0
        self._entries = 0
        self._parent: tuple[str, int] | None = None

    def all_of(self, archive: tarfile.TarFile, *, skip: str = "") -> None:
        """Unpack every member of an archive, less those whose names begin so."""
        try:
            for member, path in members(archive):
                if path and not (skip and split(path)[1].startswith(skip)):
                    self._one(archive, member, path)
            # To the very end: what is compressed has its own checksum there.
            while archive.fileobj.read(_PIECE):
                continue
        finally:
            self._leave()

    def _one(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        self._entries += 1
        if self._entries > _MOST_ENTRIES:
            raise Hostile("the tarball has too many entries", hint="is it a root file system?")
        parent, name = split(path)
        above = self._directory(parent, path)
        present = look(above, name)
        if member.isdir():
            if present is not None and not stat.S_ISDIR(present.st_mode):
                os.unlink(name, dir_fd=above)
                present = None
            if present is None:
                os.mkdir(name, 0o700, dir_fd=above)
            os.chmod(name, member.mode & 0o1777 | 0o700, dir_fd=above)
            return
        if not (member.isreg() or member.issym() or member.islnk()):
            return  # a device, or a pipe: the sandbox has its own
        if present is not None:
            self._leave()
            above = self._directory(parent, path)
            remove_tree(above, name)
        if member.issym():
            os.symlink(_checked_target(member.linkname, path), name, dir_fd=above)
        elif member.islnk():
            self._link(member, above, name, path)
        else:
            self._file(archive, member, above, name)

    def _file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, above: int, name: str) -> None:
        source = archive.extractfile(member)
        if source is None:
            raise tarfile.ReadError(f"{name} has no content")
        with Closing(os.open(name, _TARGET, 0o600, dir_fd=above)) as file:
            while data := source.read(_PIECE):
                self._bytes += len(data)
                if self._bytes > _MOST_BYTES:
                    raise Hostile("the tarball unpacks to too much", hint="is it a root file system?")
                while data:
                    data = data[os.write(file, data) :]
            os.fchmod(file, member.mode & 0o777 | 0o600)
            # Python trusts compiled code only where the source's time is what it was.
            time = min(max(member.mtime, 0), _LATEST)
            os.utime(file, (time, time))

    def _link(self, member: tarfile.TarInfo, above: int, name: str, path: str) -> None:
        """Make a hard link to something that was unpacked before."""
        parent, source = split(checked_path(member.linkname))
        with Closing(self._open(parent, path)) as folder:
            status = look(folder, source)
            if status is None or not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                raise Hostile(
                    f"the tarball links {path!r} to {member.linkname!r}, which is not a file in it", hint=_HINT
                )
            os.link(source, name, src_dir_fd=folder, dst_dir_fd=above, follow_symlinks=False)

    def _directory(self, parent: str, path: str) -> int:
        """Return the directory of a member, made where it is missing; the last one is kept open."""
        if self._parent is None or self._parent[0] != parent:
            self._leave()
            self._parent = parent, self._open(parent, path)
        return self._parent[1]

    def _open(self, parent: str, path: str) -> int:
        try:
            return open_below(self._top, parent)
        except FileNotFoundError:
            above, name = split(parent)
            with Closing(self._open(above, path)) as folder:
                os.mkdir(name, 0o700, dir_fd=folder)
                os.chmod(name, 0o755, dir_fd=folder)  # noqa: S103 - as directories of a system are
            return open_below(self._top, parent)
        except NotADirectoryError as error:
            raise Hostile(
                f"the tarball writes {path!r} below something that is not a directory", hint=_HINT
            ) from error
        except OSError as error:
            if error.errno != _ELOOP:
                raise
            raise Hostile(f"the tarball writes {path!r} through a link", hint=_HINT) from error

    def _leave(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None


def members(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str]]:
    """Yield every member with its path, checked and without "./" before it; the top itself has an empty one."""
    for member in archive:
        yield member, checked_path(member.name)


def checked_path(name: str) -> str:
    """Return a member's path in the tree, or refuse one that leads out of it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) > _DEEPEST:
        raise Hostile(f"the tarball names {name[:80]!r}…, which is too deep", hint=_HINT)
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Hostile(f"the tarball names {name!r}, which leads out of it", hint=_HINT)
    return "/".join(parts)


def _checked_target(target: str, path: str) -> str:
    """Return a link's target; an absolute one stays in the tree, since nobody follows it outside a sandbox."""
    if not target or "\0" in target:
        raise Hostile(f"the tarball holds a link without a target: {path!r}", hint=_HINT)
    depth = 0 if target.startswith("/") else path.count("/")
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            raise Hostile(f"the tarball links {path!r} to {target!r}, which leads out of it", hint=_HINT)
    return target


def unpack(source: str, target: int) -> None:
    """Unpack a root tarball, compressed or not, to an empty directory."""
    try:
        with tarfile.open(source, "r:*") as archive:
            Unpacking(target).all_of(archive)
    except DAMAGE as error:
        raise damaged(source, error) from error


def damaged(source: str, error: Exception) -> FumehoodError:
    """Return the error that a tarball can't be read to its end."""
    return FumehoodError(f"{source} can't be unpacked: {error}", hint="nothing was installed; is it whole?")


def is_image(source: str) -> bool:
    """Return True if a tarball is an image archive, and not a root file system itself."""
    try:
        with tarfile.open(source, "r:*") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name in ("index.json", "manifest.json", "oci-layout") and member.isreg():
                    return True
                if name.partition("/")[0] in ("bin", "etc", "usr", "sbin"):
                    return False
    except DAMAGE as error:
        raise damaged(source, error) from error
    return False


def unpack_image(source: str, target: int, machine: str) -> None:
    """Unpack the layers of the image for this machine, the lowest first, to an empty directory."""
    try:
        with tarfile.open(source, "r:*") as archive:
            image = _Image(archive, source)
            unpacking = Unpacking(target)
            for name, sha256 in image.layers(machine):
                with image.layer(name, sha256) as stream:
                    # A layer first takes away, then adds, so that it never hides its own entries.
                    with tarfile.open(fileobj=stream, mode="r:*") as layer:
                        _take_away(layer, target)
                    stream.seek(0)
                    with tarfile.open(fileobj=stream, mode="r:*") as layer:
                        unpacking.all_of(layer, skip=_WHITEOUT)
    except DAMAGE as error:
        raise damaged(source, error) from error


def _take_away(layer: tarfile.TarFile, target: int) -> None:
    for _, path in members(layer):
        parent, name = split(path)
        if not name.startswith(_WHITEOUT):
            continue
        hidden = name.removeprefix(_WHITEOUT)
        if name != _OPAQUE and hidden in ("", ".", ".."):
            raise Hostile(f"the image hides {path!r}, which is not a name", hint="nothing was installed")
        try:
            folder = open_below(target, parent)
        except (FileNotFoundError, NotADirectoryError):
            continue  # nothing is there to be hidden
        try:
            for gone in entries(folder) if name == _OPAQUE else [hidden]:
                remove_tree(folder, gone)
        finally:
            os.close(folder)


class _Image:
    """An open archive, whichever of the two ways of writing one it follows."""

    def __init__(self, archive: tarfile.TarFile, source: str) -> None:
        self._archive = archive
        self._source = source
        self._members = {checked_path(member.name): member for member in archive if member.isreg() or member.issym()}

    def layers(self, machine: str) -> list[tuple[str, str]]:
        """Return the names of the layers, the lowest first, each with its checksum where the image tells one."""
        if "index.json" in self._members and "oci-layout" in self._members:
            architecture = _GO_NAMES.get(ARCHITECTURES.get(machine, ""), machine)
            manifest = self._manifest(self._document("index.json"), architecture)
            return [(f"{_BLOBS}/{_hash(each)}", _hash(each)) for each in _list(manifest, "layers")]
        images = self._document("manifest.json")
        if not isinstance(images, list) or len(images) != 1 or not isinstance(images[0], dict):
            raise self._odd("it must hold exactly one image")
        return [(checked_path(str(name)), "") for name in _list(images[0], "Layers")]

    def _manifest(self, index: Any, architecture: str, depth: int = 0) -> dict[str, Any]:
        """Find the image for an architecture; an index may name another one."""
        fitting = [each for each in _list(index, "manifests") if _fits(each, architecture)]
        # Less other variants of an architecture: of ARM, those that are not the seventh.
        fitting = [each for each in fitting if _platform(each).get("variant", "") in ("", "v7", "v8")] or fitting
        if not fitting or depth > 4:
            raise self._odd(f"it has no image for {architecture}")
        if len({_hash(each) for each in fitting}) > 1:
            raise self._odd(f"it has {len(fitting)} images for {architecture}; save the one you mean alone")
        sha256 = _hash(fitting[0])
        chosen = self._document(f"{_BLOBS}/{sha256}", sha256)
        if isinstance(chosen, dict) and "manifests" in chosen:
            return self._manifest(chosen, architecture, depth + 1)
        if not isinstance(chosen, dict):
            raise self._odd("its manifest is not a table")
        return chosen

    def _document(self, name: str, sha256: str = "") -> Any:
        with self._stream(name) as file:
            data = file.read(_LARGEST_DOCUMENT)
        if sha256 and hashlib.sha256(data).hexdigest() != sha256:
            raise self._odd(f"{name} is not what its name says")
        try:
            return json.loads(data)
        except ValueError as error:
            raise self._odd(f"{name} is not JSON") from error

    def layer(self, name: str, sha256: str) -> IO[bytes]:
        """Open a layer, its checksum compared first."""
        file = self._stream(name)
        if file.read(4) == _ZSTD:
            raise self._odd("its layers are compressed with zstd; save it with gzip, or uncompressed")
        file.seek(0)
        if sha256:
            digest = hashlib.sha256()
            while data := file.read(1 << 20):
                digest.update(data)
            if digest.hexdigest() != sha256:
                raise self._odd(f"the layer {name} is not what its name says")
            file.seek(0)
        return file

    def _stream(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        if member is not None and member.issym():  # docker's older archives name a shared layer once
            member = self._members.get(os.path.normpath(os.path.join(os.path.dirname(name), member.linkname)))
        file = None if member is None else self._archive.extractfile(member)
        if file is None:
            raise self._odd(f"{name} is missing in it")
        return file

    def _odd(self, why: str) -> FumehoodError:
        return FumehoodError(f"{self._source} can't be used: {why}", hint="nothing was installed")


def _fits(entry: Any, architecture: str) -> bool:
    """Return True if an index's entry is for this machine; one that says nothing is."""
    if not isinstance(entry, dict):
        return False
    platform = _platform(entry)
    return not isinstance(entry.get("platform"), dict) or (
        platform.get("os", "linux") == "linux" and platform.get("architecture") == architecture
    )


def _platform(entry: dict[str, Any]) -> dict[str, Any]:
    platform = entry.get("platform")
    return platform if isinstance(platform, dict) else {}


def _list(table: Any, name: str) -> Sequence[Any]:
    values = table.get(name) if isinstance(table, dict) else None
    if not isinstance(values, list) or not values:
        raise FumehoodError(f"the image has no {name}", hint="nothing was installed")
    return values


def _hash(entry: Any) -> str:
    """Return the checksum that an entry names its blob by."""
    name = str(entry.get("digest", "")) if isinstance(entry, dict) else ""
    kind, _, digest = name.partition(":")
    if kind != "sha256" or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise FumehoodError(f"the image names a blob {name[:80]!r}", hint="only sha256 digests are known")
    return digest
