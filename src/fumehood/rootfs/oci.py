"""Unpack an image archive, as `docker save`, `podman save` or `skopeo copy` write it: layers with their whiteouts."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from typing import IO, TYPE_CHECKING, Any

from fumehood.core.value import Value
from fumehood.errors import FumehoodError
from fumehood.linux.nofollow import entries, open_below, remove_tree, split
from fumehood.rootfs.releases import ARCHITECTURES
from fumehood.rootfs.unpack import DAMAGE, Hostile, Unpacking, checked_path, damaged, members

if TYPE_CHECKING:
    from collections.abc import Sequence

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_LARGEST_DOCUMENT = 8 << 20
# What image builders call the architectures that Alpine has names of its own for.
_GO_NAMES = {"x86_64": "amd64", "aarch64": "arm64", "armv7": "arm", "x86": "386"}
_ZSTD = b"\x28\xb5\x2f\xfd"


class _Layer(Value):
    """One layer's place in the archive, with its checksum where the image tells one."""

    name: str
    sha256: str = ""


def is_image(source: str) -> bool:
    """Tell whether a tarball is an image archive, and not a root file system itself."""
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
            for layer in image.layers(machine):
                with image.opened(layer) as stream:
                    _apply(stream, unpacking, target)
    except DAMAGE as error:
        raise damaged(source, error) from error


def _apply(stream: IO[bytes], unpacking: Unpacking, target: int) -> None:
    """Lay one layer over what is there: it first takes away, then adds, so that it never hides its own entries."""
    with tarfile.open(fileobj=stream, mode="r:*") as layer:
        _take_away(layer, target)
    stream.seek(0)
    with tarfile.open(fileobj=stream, mode="r:*") as layer:
        unpacking.all_of(layer, skip=_WHITEOUT)


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

    def layers(self, machine: str) -> list[_Layer]:
        """Return the layers, the lowest first."""
        if "index.json" in self._members and "oci-layout" in self._members:
            architecture = _GO_NAMES.get(ARCHITECTURES.get(machine, ""), machine)
            manifest = self._manifest(self._document("index.json"), architecture)
            return [_Layer(name=_blob(each), sha256=_hash(each)) for each in _list(manifest, "layers")]
        images = self._document("manifest.json")
        if not isinstance(images, list) or len(images) != 1 or not isinstance(images[0], dict):
            raise self._odd("it must hold exactly one image")
        return [_Layer(name=checked_path(str(name))) for name in _list(images[0], "Layers")]

    def _manifest(self, index: Any, architecture: str, depth: int = 0) -> dict[str, Any]:
        """Find the image for an architecture; an index may name another one."""
        offered = _list(index, "manifests")
        fitting = _most_fitting([each for each in offered if _fits(each, architecture)])
        if not fitting or depth > 4:
            raise self._odd(f"it has no image for {architecture}")
        if len({_hash(each) for each in fitting}) > 1:
            raise self._odd(f"it has {len(fitting)} images for {architecture}; save the one you mean alone")
        chosen = self._document(_blob(fitting[0]), _hash(fitting[0]))
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

    def opened(self, layer: _Layer) -> IO[bytes]:
        """Open a layer, its checksum compared first."""
        file = self._stream(layer.name)
        beginning = file.read(4)
        if beginning == _ZSTD:
            raise self._odd("its layers are compressed with zstd; save it with gzip, or uncompressed")
        file.seek(0)
        if layer.sha256:
            digest = hashlib.sha256()
            while data := file.read(1 << 20):
                digest.update(data)
            if digest.hexdigest() != layer.sha256:
                raise self._odd(f"the layer {layer.name} is not what its name says")
            file.seek(0)
        return file

    def _stream(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        if member is not None and member.issym():  # docker's older archives name a shared layer once
            member = self._members.get(_joined(name, member.linkname))
        file = None if member is None else self._archive.extractfile(member)
        if file is None:
            raise self._odd(f"{name} is missing in it")
        return file

    def _odd(self, why: str) -> FumehoodError:
        return FumehoodError(f"{self._source} can't be used: {why}", hint="nothing was installed")


def _joined(name: str, target: str) -> str:
    return os.path.normpath(os.path.join(os.path.dirname(name), target))


def _fits(entry: Any, architecture: str) -> bool:
    """Tell whether an index's entry is for this machine; one that says nothing is."""
    platform = entry.get("platform") if isinstance(entry, dict) else None
    if not isinstance(platform, dict):
        return isinstance(entry, dict)
    return platform.get("os", "linux") == "linux" and platform.get("architecture") == architecture


def _most_fitting(entries: list[Any]) -> list[Any]:
    """Leave out other variants of an architecture: of ARM, those that are not the seventh."""
    variants = [each for each in entries if _variant(each) in ("", "v7", "v8")]
    return variants or entries


def _variant(entry: Any) -> str:
    platform = entry.get("platform")
    return str(platform.get("variant", "")) if isinstance(platform, dict) else ""


def _list(table: Any, name: str) -> Sequence[Any]:
    found = table.get(name) if isinstance(table, dict) else None
    if not isinstance(found, list) or not found:
        raise FumehoodError(f"the image has no {name}", hint="nothing was installed")
    return found


def _hash(entry: Any) -> str:
    """Return the checksum that an entry names its blob by."""
    said = str(entry.get("digest", "")) if isinstance(entry, dict) else ""
    kind, _, digest = said.partition(":")
    if kind != "sha256" or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise FumehoodError(f"the image names a blob {said[:80]!r}", hint="only sha256 digests are known")
    return digest


def _blob(entry: Any) -> str:
    return f"blobs/sha256/{_hash(entry)}"


