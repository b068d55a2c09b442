"""Unpack a tarball that nobody vouches for: whatever names it holds, nothing is written outside the target.

Every path is opened from the target's descriptor, without following a link. If a directory's path has a link, we work
out where it leads within the target, as other unpackers do. Owners, set-uid bits, devices and extended attributes are
dropped: a tree has one owner, and the sandbox makes its own devices. Image archives, as `docker save`, `podman save` or
`skopeo copy` write them, have layers, with whiteouts for what a layer removes.

Nobody outside a sandbox follows the links of a root tree. A directory that other programs read is another matter: there
no link may lead out of it (`Unpacking`, `links_are_followed`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import lzma
import os
import stat
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Self

from fumehood.errors import FumehoodError, Unavailable
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import entries, make_parents, open_below, remove_tree, split, stat_entry
from fumehood.rootfs.download import ARCHITECTURES, DISK_FULL

_MOST_BYTES = 64 << 30
_MOST_ENTRIES = 4_000_000
_MOST_IMAGE_MEMBERS = 10_000  # layers and documents
_MOST_DEPTH = 200
_LATEST_TIME = 1 << 33
_LONGEST_HEADER = 1 << 20  # bytes about one member: names, times, attributes
_MOST_GLOBAL_HEADERS = 100  # attributes for all members at once
_READ_SIZE = 1 << 20
_ZEROS = bytes(_READ_SIZE)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # on the way to one directory; the kernel's own limit
_HINT = "nothing was installed; get the file from where you trust it"
_DAMAGE_ERRORS: tuple[type[Exception], ...] = (
    tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError, RecursionError,
)  # fmt: skip
if sys.version_info >= (3, 14):
    try:
        from compression.zstd import ZstdError

        _DAMAGE_ERRORS = (*_DAMAGE_ERRORS, ZstdError)
    except ImportError:
        pass  # this Python was built without it

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_LARGEST_DOCUMENT = 8 << 20
# From Alpine's names of architectures to those in images.
_OCI_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7": "arm", "x86": "386"}
_BLOBS = "blobs/sha256"
_ZSTD = b"\x28\xb5\x2f\xfd"


class HostileTarball(FumehoodError):
    """A tarball would write or lead outside its target, or has far too much in it."""


class _LimitedHeader:
    """The header of a member, of which tarfile may read only so much: a small file can hold gigabytes of it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = _LONGEST_HEADER

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise tarfile.ReadError(f"the header of a member is longer than {_LONGEST_HEADER >> 20} MiB")
        return bytes(self._file.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Member(tarfile.TarInfo):
    """A member of a tarball. One that can't be read is an error.

    By itself, tarfile would take it for the end, and everything after it would be missing.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        """Read the next member. Only the block that marks a tarball's end ends it."""
        file = archive.fileobj
        archive.fileobj = _LimitedHeader(file)
        try:
            member = super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined] # typeshed leaves it out
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"it breaks off, or is damaged, at byte {archive.offset}") from error
        finally:
            archive.fileobj = file
        if len(archive.pax_headers) > _MOST_GLOBAL_HEADERS:
            raise tarfile.ReadError(f"there are too many attributes for all members at byte {archive.offset}")
        if member.size < 0:
            raise tarfile.ReadError(f"the size of a member is negative at byte {archive.offset}")
        return member


def _open_tar(file: IO[bytes]) -> tarfile.TarFile:
    """Open a tarball, compressed or not."""
    return tarfile.open(fileobj=file, mode="r:*", tarinfo=Member)


class Unpacking:
    """A target directory into which tarballs are unpacked, one after the other.

    With `links_are_followed`, programs outside a sandbox follow its links. Then nothing is written through a link, and
    no link leads out of the target.
    """

    def __init__(self, target: int, *, links_are_followed: bool = False) -> None:
        self._top = target
        self._links_are_followed = links_are_followed
        self._bytes = 0
        self._entries = 0
        self._parent: tuple[str, int] | None = None  # the directory of the last member: its path and descriptor

    def unpack_all(self, archive: tarfile.TarFile, *, skipped_prefix: str = "") -> None:
        """Unpack every member of an archive, except those whose names have this prefix."""
        try:
            for member, path in members(archive):
                if path and not (skipped_prefix and split(path)[1].startswith(skipped_prefix)):
                    self._unpack_member(archive, member, path)
            # To the very end: there, a compressed file has a checksum of its own.
            while archive.fileobj.read(_READ_SIZE):
                continue
        finally:
            self._close_parent()

    def _unpack_member(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        self._entries += 1
        if self._entries > _MOST_ENTRIES:
            raise HostileTarball("the tarball has too many entries", hint="is it a root file system?")
        parent, name = split(path)
        directory = self._open_parent(parent, path)
        present = stat_entry(directory, name)
        if member.isdir():
            if present is not None and not stat.S_ISDIR(present.st_mode):
                os.unlink(name, dir_fd=directory)
                present = None
            if present is None:
                os.mkdir(name, 0o700, dir_fd=directory)
            os.chmod(name, member.mode & 0o1777 | 0o700, dir_fd=directory)
            return
        if not (member.isreg() or member.issym() or member.islnk()):
            return  # a device or a pipe: the sandbox has its own devices
        if present is not None:
            remove_tree(directory, name)
        if member.issym():
            check = _checked_followed_target if self._links_are_followed else _checked_target
            os.symlink(check(member.linkname, path), name, dir_fd=directory)
        elif member.islnk():
            self._make_hard_link(member, directory, name, path)
        else:
            self._write_file(archive, member, directory, name)

    def _write_file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, directory: int, name: str) -> None:
        source = archive.extractfile(member)
        if source is None:
            raise tarfile.ReadError(f"{name} has no content")
        with Closing(os.open(name, _NEW_FILE, 0o600, dir_fd=directory)) as file:
            while data := source.read(_READ_SIZE):
                self._bytes += len(data)
                if self._bytes > _MOST_BYTES:
                    raise HostileTarball("the tarball unpacks to too much", hint="is it a root file system?")
                if data == _ZEROS[: len(data)]:
                    # Left as a hole, as in a log of logins: a small tarball must not fill the disk.
                    os.ftruncate(file, os.lseek(file, len(data), os.SEEK_CUR))
                    continue
                while data:
                    data = data[os.write(file, data) :]
            os.fchmod(file, member.mode & 0o777 | 0o600)
            # Python uses compiled code only if the source still has the same time.
            time = min(max(member.mtime, 0), _LATEST_TIME)
            os.utime(file, (time, time))

    def _make_hard_link(self, member: tarfile.TarInfo, directory: int, name: str, path: str) -> None:
        """Make a hard link to a file that was unpacked before."""
        parent, source = split(checked_path(member.linkname))
        no_file_error = HostileTarball(
            f"the tarball links {path!r} to {member.linkname!r}, which is not a file in it", hint=_HINT
        )
        try:
            folder = open_inside(self._top, parent)
        except OSError as error:
            raise no_file_error from error
        # If links are followed, a link may not get another name: from there, a relative one may lead out.
        kinds = (stat.S_IFREG,) if self._links_are_followed else (stat.S_IFREG, stat.S_IFLNK)
        with Closing(folder):
            status = stat_entry(folder, source)
            if status is None or stat.S_IFMT(status.st_mode) not in kinds:
                raise no_file_error
            os.link(source, name, src_dir_fd=folder, dst_dir_fd=directory, follow_symlinks=False)

    def _open_parent(self, parent: str, path: str) -> int:
        """Return a descriptor of the directory that a member lies in, which is made if it is missing.

        It stays open for the next member. `path` is the member's, for error messages.
        """
        if self._parent is None or self._parent[0] != parent:
            self._close_parent()
            try:
                if self._links_are_followed:
                    make_parents(self._top, parent)
                    self._parent = parent, open_below(self._top, parent)
                else:
                    self._parent = parent, open_inside(self._top, parent, create=True)
            except OSError as error:
                if error.errno == errno.ENOTDIR:
                    reason = "below something that is not a directory"
                elif error.errno == errno.ELOOP:
                    reason = "through a link" if self._links_are_followed else "through links that lead nowhere"
                else:
                    raise
                raise HostileTarball(f"the tarball writes {path!r} {reason}", hint=_HINT) from error
        return self._parent[1]

    def _close_parent(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None


def open_inside(top: int, path: str, *, create: bool = False) -> int:
    """Open a directory of a tree, and create it if asked to. Links are followed, but never out of the tree."""
    try:
        return open_below(top, path)
    except FileNotFoundError:
        if not create:
            raise
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
    return open_below(top, _resolve(top, path, create=create))


def _resolve(top: int, path: str, *, create: bool) -> str:
    """Return the path without links of the directory to which a path leads within a tree."""
    resolved: list[str] = []
    remaining, links = path.split("/")[::-1], 0
    while remaining:
        part = remaining.pop()
        if part == "..":
            os.close(open_below(top, "/".join(resolved)))  # as in the kernel, only a directory has a parent
            del resolved[-1:]
        elif part not in ("", "."):
            with Closing(open_below(top, "/".join(resolved))) as directory:
                status = stat_entry(directory, part)
                if status is None and create:
                    os.mkdir(part, 0o700, dir_fd=directory)
                    os.chmod(part, 0o755, dir_fd=directory)  # noqa: S103 - as directories of a system are
                if status is None or not stat.S_ISLNK(status.st_mode):
                    resolved.append(part)
                    continue
                target, links = os.readlink(part, dir_fd=directory), links + 1
            if links > _MOST_LINKS or len(resolved) + len(remaining) + target.count("/") > _MOST_DEPTH:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            resolved = [] if target.startswith("/") else resolved
            remaining += target.split("/")[::-1]
    return "/".join(resolved)


def members(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str]]:
    """Yield every member with its checked path, without "./" before it. The top itself has an empty path."""
    for member in _read_members(archive):
        yield member, checked_path(member.name)


def _read_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield every member, and keep none, unlike tarfile: a small file can hold millions of them."""
    for count, member in enumerate(archive):
        if count == _MOST_ENTRIES:
            raise HostileTarball("the tarball has too many entries", hint="is it a root file system?")
        archive.members.clear()  # type: ignore[attr-defined] # typeshed leaves it out
        yield member


def checked_path(name: str) -> str:
    """Return a member's path in the tree; raises HostileTarball if it leads out of the tree."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) > _MOST_DEPTH:
        raise HostileTarball(f"the tarball names {name[:80]!r}…, which is too deep", hint=_HINT)
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise HostileTarball(f"the tarball names {name!r}, which leads out of it", hint=_HINT)
    return "/".join(parts)


def _checked_target(target: str, path: str) -> str:
    """Return a link's target; raises HostileTarball if it leads out of the tree.

    An absolute target stays in the tree, since nobody follows it outside a sandbox.
    """
    if not target or "\0" in target:
        raise HostileTarball(f"the tarball holds a link without a target: {path!r}", hint=_HINT)
    depth = 0 if target.startswith("/") else path.count("/")
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            raise HostileTarball(f"the tarball links {path!r} to {target!r}, which leads out of it", hint=_HINT)
    return target


def _checked_followed_target(target: str, path: str) -> str:
    """Return the target of a link that programs outside follow; raises HostileTarball if it could lead them out.

    Other links may be on its way, so ".." may only stand at the beginning.
    """
    names = target.split("/")
    while names and names[0] in ("..", "."):
        names.pop(0)
    if ".." in names or target.startswith("/") or target.split("/").count("..") > path.count("/"):
        raise HostileTarball(f"the tarball links {path!r} to {target!r}, which may lead out of it", hint=_HINT)
    return _checked_target(target, path)


def unpack(source: str, target: int, machine: str = "") -> None:
    """Unpack a root tarball, or the image for a machine in an image archive, into an empty directory."""
    try:
        with open(source, "rb") as file, _decompressed(file, target) as tarball:
            is_image = machine and holds_image(tarball)
            tarball.seek(0)
            with _open_tar(tarball) as archive:
                unpacking = Unpacking(target)
                if not is_image:
                    unpacking.unpack_all(archive)
                    return
                image = _Image(archive, source)
                for name, sha256 in image.layer_names(machine):  # the lowest first
                    with image.open_layer(name, sha256) as stream, _decompressed(stream, target) as layer_file:
                        # A layer first removes, then adds, so that it never hides its own entries.
                        with _open_tar(layer_file) as layer:
                            _apply_whiteouts(layer, target)
                        layer_file.seek(0)
                        with _open_tar(layer_file) as layer:
                            unpacking.unpack_all(layer, skipped_prefix=_WHITEOUT)
    except _DAMAGE_ERRORS as error:
        raise _damage_error(source, error) from error


def _damage_error(source: str, error: Exception) -> FumehoodError:
    """Return the error to raise if a tarball can't be unpacked to its end."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return full_disk_error(f"{source} can't be unpacked")
    # tarfile's own text has a line for each kind of compression that it tried.
    why = "it is not a tarball" if isinstance(error, tarfile.ReadError) and "\n" in str(error) else error
    return FumehoodError(f"{source} can't be unpacked: {why}", hint="nothing was installed; is it whole?")


def full_disk_error(failure: str) -> FumehoodError:
    """Return the error to raise if something failed because a disk is full."""
    hint = "nothing was installed; free some space, or name a directory elsewhere: FUMEHOOD_ROOTFS_DIR"
    return FumehoodError(f"{failure}: the disk is full", hint=hint)


@contextmanager
def _decompressed(file: IO[bytes], target: int) -> Iterator[IO[bytes]]:
    """Yield a file as it is, or its content if it is compressed with zstd, which tarfile knows from Python 3.14 on.

    That content is read twice and at random, so it lies on the target's disk until then.
    """
    is_compressed = file.read(len(_ZSTD)) == _ZSTD
    file.seek(0)
    if not is_compressed or sys.version_info >= (3, 14):
        yield file
        return
    try:
        import zstandard
    except ImportError as error:
        raise Unavailable(
            "what is to be unpacked is compressed with zstd, which this Python can't read",
            hint="pip install zstandard, or use Python 3.14; or have it compressed with gzip",
        ) from error
    with tempfile.TemporaryFile(dir=f"/proc/self/fd/{target}") as content:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False)
        try:
            while data := stream.read(_READ_SIZE):
                content.write(data)
                if content.tell() > _MOST_BYTES:
                    raise HostileTarball("the tarball unpacks to too much", hint="is it a root file system?")
        except zstandard.ZstdError as error:
            raise tarfile.ReadError(str(error)) from error
        content.seek(0)
        yield content


def holds_image(file: IO[bytes]) -> bool:
    """Return True if a tarball is an image archive, and not a root file system itself."""
    with _open_tar(file) as archive:
        for member in _read_members(archive):
            name = member.name.removeprefix("./")
            if name in ("index.json", "manifest.json", "oci-layout") and member.isreg():
                return True
            if name.partition("/")[0] in ("bin", "etc", "usr", "sbin"):
                return False
    return False


def _apply_whiteouts(layer: tarfile.TarFile, target: int) -> None:
    """Remove the entries of the layers below that a layer hides."""
    for _, path in members(layer):
        parent, name = split(path)
        if not name.startswith(_WHITEOUT):
            continue
        hidden = name.removeprefix(_WHITEOUT)
        if name != _OPAQUE and hidden in ("", ".", ".."):
            raise HostileTarball(f"the image hides {path!r}, which is not a name", hint="nothing was installed")
        try:
            directory = open_inside(target, parent)
        except (FileNotFoundError, NotADirectoryError):
            continue  # there is nothing to hide
        with Closing(directory):
            for hidden_name in entries(directory) if name == _OPAQUE else [hidden]:
                remove_tree(directory, hidden_name)


class _Image:
    """An open image archive, in either of the two formats: OCI's, or docker's older one."""

    def __init__(self, archive: tarfile.TarFile, source: str) -> None:
        self._archive = archive
        self._source = source
        self._members: dict[str, tarfile.TarInfo] = {}
        for member, path in members(archive):
            if len(self._members) == _MOST_IMAGE_MEMBERS:
                raise self._unusable("it holds more than an image does")
            if member.isreg() or member.issym():
                self._members[path] = member

    def layer_names(self, machine: str) -> list[tuple[str, str]]:
        """Return the names of the layers, the lowest first, each with its checksum, or "" if the image has none."""
        if "index.json" in self._members and "oci-layout" in self._members:
            architecture = _OCI_ARCHITECTURES.get(ARCHITECTURES.get(machine, ""), machine)
            manifest = self._find_manifest(self._read_document("index.json"), architecture)
            return [(f"{_BLOBS}/{_digest(each)}", _digest(each)) for each in _list_in(manifest, "layers")]
        images = self._read_document("manifest.json")
        if not isinstance(images, list) or len(images) != 1 or not isinstance(images[0], dict):
            raise self._unusable("it must hold exactly one image")
        return [(checked_path(str(name)), "") for name in _list_in(images[0], "Layers")]

    def _find_manifest(self, index: Any, architecture: str, depth: int = 0) -> dict[str, Any]:
        """Return the manifest of the image for an architecture; an index may lead to another index."""
        suitable = [each for each in _list_in(index, "manifests") if _is_for(each, architecture)]
        # Without other variants of an architecture: of 32-bit ARM, those that are not v7.
        suitable = [each for each in suitable if _platform(each).get("variant", "") in ("", "v7", "v8")] or suitable
        if not suitable or depth > 4:
            raise self._unusable(f"it has no image for {architecture}")
        if len({_digest(each) for each in suitable}) > 1:
            raise self._unusable(f"it has {len(suitable)} images for {architecture}; save the one you mean alone")
        sha256 = _digest(suitable[0])
        manifest = self._read_document(f"{_BLOBS}/{sha256}", sha256)
        if isinstance(manifest, dict) and "manifests" in manifest:
            return self._find_manifest(manifest, architecture, depth + 1)
        if not isinstance(manifest, dict):
            raise self._unusable("its manifest is not a table")
        return manifest

    def _read_document(self, name: str, sha256: str = "") -> Any:
        with self._open_member(name) as file:
            data = file.read(_LARGEST_DOCUMENT)
        if sha256 and hashlib.sha256(data).hexdigest() != sha256:
            raise self._unusable(f"{name} is not what its name says")
        try:
            return json.loads(data)
        except ValueError as error:
            raise self._unusable(f"{name} is not JSON") from error

    def open_layer(self, name: str, sha256: str) -> IO[bytes]:
        """Open a layer, after its checksum was compared."""
        file = self._open_member(name)
        if sha256 and hashlib.file_digest(file, "sha256").hexdigest() != sha256:  # type: ignore[arg-type]
            raise self._unusable(f"the layer {name} is not what its name says")
        file.seek(0)
        return file

    def _open_member(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        if member is not None and member.issym():  # in docker's older archives, for a layer that images share
            member = self._members.get(os.path.normpath(os.path.join(os.path.dirname(name), member.linkname)))
        file = None if member is None else self._archive.extractfile(member)
        if file is None:
            raise self._unusable(f"{name} is missing in it")
        return file

    def _unusable(self, why: str) -> FumehoodError:
        return FumehoodError(f"{self._source} can't be used: {why}", hint="nothing was installed")


def _is_for(entry: Any, architecture: str) -> bool:
    """Return True if an index's entry is for this architecture, or names none."""
    if not isinstance(entry, dict):
        return False
    platform = _platform(entry)
    return not isinstance(entry.get("platform"), dict) or (
        platform.get("os", "linux") == "linux" and platform.get("architecture") == architecture
    )


def _platform(entry: dict[str, Any]) -> dict[str, Any]:
    platform = entry.get("platform")
    return platform if isinstance(platform, dict) else {}


def _list_in(table: Any, name: str) -> Sequence[Any]:
    values = table.get(name) if isinstance(table, dict) else None
    if not isinstance(values, list) or not values:
        raise FumehoodError(f"the image has no {name}", hint="nothing was installed")
    return values


def _digest(entry: Any) -> str:
    """Return the SHA-256 by which an entry names its blob."""
    name = str(entry.get("digest", "")) if isinstance(entry, dict) else ""
    kind, _, digest = name.partition(":")
    if kind != "sha256" or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise FumehoodError(f"the image names a blob {name[:80]!r}", hint="only sha256 digests are known")
    return digest
