"""Unpack a tarball that nobody vouches for: nothing is written outside the target, whatever names it holds.

Everything is reached from the target's descriptor without following a link; where a directory's path has one, it is
worked out where that leads within the target, as other unpackers do. Owners, set-uid bits, devices and extended
attributes are not taken over: a tree has one owner, and the sandbox makes its own devices. Image archives, as
`docker save`, `podman save` or `skopeo copy` write them, have layers with their whiteouts.

Nobody outside a sandbox follows the links of a root tree. In a directory that others read, none leads out of it
(`Unpacking`, `is_followed`).
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
from fumehood.rootfs.download import ARCHITECTURES, FULL

_MOST_BYTES = 64 << 30
_MOST_ENTRIES = 4_000_000
_MOST_IN_IMAGE = 10_000  # layers and documents
_DEEPEST = 200
_LATEST = 1 << 33
_LONGEST_HEAD = 1 << 20  # bytes that tell of one member: names, times, attributes
_MOST_FOR_ALL = 100  # things that are told of all members at once
_PIECE = 1 << 20
_NOTHING = bytes(_PIECE)
_TARGET = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # on the way to one directory, as the kernel has it
_HINT = "nothing was installed; get the file from where you trust it"
_DAMAGE: tuple[type[Exception], ...] = (
    tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError, RecursionError,
)  # fmt: skip
if sys.version_info >= (3, 14):
    try:
        from compression.zstd import ZstdError

        _DAMAGE = (*_DAMAGE, ZstdError)
    except ImportError:
        pass  # a Python that was built without it

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_LARGEST_DOCUMENT = 8 << 20
# What image builders call the architectures that Alpine has names of its own for.
_GO_NAMES = {"x86_64": "amd64", "aarch64": "arm64", "armv7": "arm", "x86": "386"}
_BLOBS = "blobs/sha256"
_ZSTD = b"\x28\xb5\x2f\xfd"


class Hostile(FumehoodError):
    """A tarball names something outside the directory it is unpacked to."""


class _Head:
    """What tells of a member, on its way to tarfile, which reads it whole: a small file can hold gigabytes of it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = _LONGEST_HEAD

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise tarfile.ReadError(f"what tells of a member is longer than {_LONGEST_HEAD >> 20} MiB")
        return bytes(self._file.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Member(tarfile.TarInfo):
    """A member that can be read: what can't, tarfile would take for the end, and all that follows would be missing."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        """Read the next one; only the block that ends a tarball ends it."""
        file = archive.fileobj
        archive.fileobj = _Head(file)
        try:
            member = super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined] # typeshed leaves it out
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"it breaks off, or is damaged, at byte {archive.offset}") from error
        finally:
            archive.fileobj = file
        if len(archive.pax_headers) > _MOST_FOR_ALL:
            raise tarfile.ReadError(f"too much is told of all members at byte {archive.offset}")
        if member.size < 0:
            raise tarfile.ReadError(f"the size of a member is less than nothing at byte {archive.offset}")
        return member


def _opened(file: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode="r:*", tarinfo=Member)


class Unpacking:
    """One target directory that tarballs are unpacked to, one after the other.

    `is_followed`: programs outside follow its links. Then nothing is written through one, and none leads out.
    """

    def __init__(self, target: int, *, is_followed: bool = False) -> None:
        self._top = target
        self._is_followed = is_followed
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
        present = stat_entry(above, name)
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
            checked = _inner_target if self._is_followed else _checked_target
            os.symlink(checked(member.linkname, path), name, dir_fd=above)
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
                if data == _NOTHING[: len(data)]:
                    # A hole, as in a log of logins: a small tarball must not fill the disk.
                    os.ftruncate(file, os.lseek(file, len(data), os.SEEK_CUR))
                    continue
                while data:
                    data = data[os.write(file, data) :]
            os.fchmod(file, member.mode & 0o777 | 0o600)
            # Python trusts compiled code only where the source's time is what it was.
            time = min(max(member.mtime, 0), _LATEST)
            os.utime(file, (time, time))

    def _link(self, member: tarfile.TarInfo, above: int, name: str, path: str) -> None:
        """Make a hard link to something that was unpacked before."""
        parent, source = split(checked_path(member.linkname))
        no_file = Hostile(f"the tarball links {path!r} to {member.linkname!r}, which is not a file in it", hint=_HINT)
        try:
            folder = open_inside(self._top, parent)
        except OSError as error:
            raise no_file from error
        # A link leads elsewhere by another name of it.
        kinds = (stat.S_IFREG,) if self._is_followed else (stat.S_IFREG, stat.S_IFLNK)
        with Closing(folder):
            status = stat_entry(folder, source)
            if status is None or stat.S_IFMT(status.st_mode) not in kinds:
                raise no_file
            os.link(source, name, src_dir_fd=folder, dst_dir_fd=above, follow_symlinks=False)

    def _directory(self, parent: str, path: str) -> int:
        """Return the directory of a member, made where it is missing; the last one is kept open."""
        if self._parent is None or self._parent[0] != parent:
            self._leave()
            try:
                if self._is_followed:
                    make_parents(self._top, parent)
                    self._parent = parent, open_below(self._top, parent)
                else:
                    self._parent = parent, open_inside(self._top, parent, makes=True)
            except OSError as error:
                if error.errno == errno.ENOTDIR:
                    reason = "below something that is not a directory"
                elif error.errno == errno.ELOOP:
                    reason = "through a link" if self._is_followed else "through links that lead nowhere"
                else:
                    raise
                raise Hostile(f"the tarball writes {path!r} {reason}", hint=_HINT) from error
        return self._parent[1]

    def _leave(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None


def open_inside(top: int, path: str, *, makes: bool = False) -> int:
    """Open a directory of a tree, and make it where that is asked for; links are followed, never out of the tree."""
    try:
        return open_below(top, path)
    except FileNotFoundError:
        if not makes:
            raise
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
    return open_below(top, _led_to(top, path, makes=makes))


def _led_to(top: int, path: str, *, makes: bool) -> str:
    """Return where a path leads within a tree, by a path without links."""
    here: list[str] = []
    waiting, links = path.split("/")[::-1], 0
    while waiting:
        part = waiting.pop()
        if part == "..":
            os.close(open_below(top, "/".join(here)))  # as for the kernel, only a directory has one above it
            del here[-1:]
        elif part not in ("", "."):
            with Closing(open_below(top, "/".join(here))) as folder:
                status = stat_entry(folder, part)
                if status is None and makes:
                    os.mkdir(part, 0o700, dir_fd=folder)
                    os.chmod(part, 0o755, dir_fd=folder)  # noqa: S103 - as directories of a system are
                if status is None or not stat.S_ISLNK(status.st_mode):
                    here.append(part)
                    continue
                target, links = os.readlink(part, dir_fd=folder), links + 1
            if links > _MOST_LINKS or len(here) + len(waiting) + target.count("/") > _DEEPEST:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            here = [] if target.startswith("/") else here
            waiting += target.split("/")[::-1]
    return "/".join(here)


def members(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str]]:
    """Yield every member with its path, checked and without "./" before it; the top itself has an empty one."""
    for member in _each(archive):
        yield member, checked_path(member.name)


def _each(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield every member, without keeping them as tarfile does: a small file can hold millions."""
    for count, member in enumerate(archive):
        if count == _MOST_ENTRIES:
            raise Hostile("the tarball has too many entries", hint="is it a root file system?")
        archive.members.clear()  # type: ignore[attr-defined] # typeshed leaves it out
        yield member


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


def _inner_target(target: str, path: str) -> str:
    """Return the target of a link that leads out of its directory for nobody, whatever other links are on its way."""
    names = target.split("/")
    while names and names[0] in ("..", "."):
        names.pop(0)
    if ".." in names or target.startswith("/") or target.split("/").count("..") > path.count("/"):
        raise Hostile(f"the tarball links {path!r} to {target!r}, which may lead out of it", hint=_HINT)
    return _checked_target(target, path)


def unpack(source: str, target: int, machine: str = "") -> None:
    """Unpack a root tarball, or the image for a machine in an image archive, to an empty directory."""
    try:
        with open(source, "rb") as file, _plain(file, target) as plain:
            is_image = machine and holds_image(plain)
            plain.seek(0)
            with _opened(plain) as archive:
                unpacking = Unpacking(target)
                if not is_image:
                    unpacking.all_of(archive)
                    return
                image = _Image(archive, source)
                for name, sha256 in image.layers(machine):  # the lowest first
                    with image.layer(name, sha256) as stream, _plain(stream, target) as packed:
                        # A layer first takes away, then adds, so that it never hides its own entries.
                        with _opened(packed) as layer:
                            _take_away(layer, target)
                        packed.seek(0)
                        with _opened(packed) as layer:
                            unpacking.all_of(layer, skip=_WHITEOUT)
    except _DAMAGE as error:
        raise damaged(source, error) from error


def damaged(source: str, error: Exception) -> FumehoodError:
    """Return the error that a tarball can't be unpacked to its end."""
    if isinstance(error, OSError) and error.errno in FULL:
        return full_disk(f"{source} can't be unpacked")
    # What tarfile says, a line for each way that it tried.
    why = "it is not a tarball" if isinstance(error, tarfile.ReadError) and "\n" in str(error) else error
    return FumehoodError(f"{source} can't be unpacked: {why}", hint="nothing was installed; is it whole?")


def full_disk(failure: str) -> FumehoodError:
    """Return the error that something failed because a disk is full."""
    hint = "nothing was installed; free some space, or name a directory elsewhere: FUMEHOOD_ROOTFS_DIR"
    return FumehoodError(f"{failure}: the disk is full", hint=hint)


@contextmanager
def _plain(file: IO[bytes], target: int) -> Iterator[IO[bytes]]:
    """Give a file as it is or, where zstd compressed it, what is in it: tarfile knows zstd from Python 3.14 on.

    That is read twice and at random, so it lies on the target's disk for a while.
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
    with tempfile.TemporaryFile(dir=f"/proc/self/fd/{target}") as plain:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False)
        try:
            while data := stream.read(_PIECE):
                plain.write(data)
                if plain.tell() > _MOST_BYTES:
                    raise Hostile("the tarball unpacks to too much", hint="is it a root file system?")
        except zstandard.ZstdError as error:
            raise tarfile.ReadError(str(error)) from error
        plain.seek(0)
        yield plain


def holds_image(file: IO[bytes]) -> bool:
    """Return True if a tarball is an image archive, and not a root file system itself."""
    with _opened(file) as archive:
        for member in _each(archive):
            name = member.name.removeprefix("./")
            if name in ("index.json", "manifest.json", "oci-layout") and member.isreg():
                return True
            if name.partition("/")[0] in ("bin", "etc", "usr", "sbin"):
                return False
    return False


def _take_away(layer: tarfile.TarFile, target: int) -> None:
    for _, path in members(layer):
        parent, name = split(path)
        if not name.startswith(_WHITEOUT):
            continue
        hidden = name.removeprefix(_WHITEOUT)
        if name != _OPAQUE and hidden in ("", ".", ".."):
            raise Hostile(f"the image hides {path!r}, which is not a name", hint="nothing was installed")
        try:
            folder = open_inside(target, parent)
        except (FileNotFoundError, NotADirectoryError):
            continue  # nothing is there to be hidden
        with Closing(folder):
            for gone in entries(folder) if name == _OPAQUE else [hidden]:
                remove_tree(folder, gone)


class _Image:
    """An open archive, whichever of the two ways of writing one it follows."""

    def __init__(self, archive: tarfile.TarFile, source: str) -> None:
        self._archive = archive
        self._source = source
        self._members: dict[str, tarfile.TarInfo] = {}
        for member, path in members(archive):
            if len(self._members) == _MOST_IN_IMAGE:
                raise self._odd("it holds more than an image does")
            if member.isreg() or member.issym():
                self._members[path] = member

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
        if sha256 and hashlib.file_digest(file, "sha256").hexdigest() != sha256:  # type: ignore[arg-type]
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
