"""Bundles: a run's changes as one file for another machine, an OCI image whose one layer is the changes.

Other tools can read a bundle: unpacked onto the same base, it gives the same tree. Fumehood imports it as a held run. A
command in the hood unpacks the layer, so that a hostile layer can do no more than any command, and its changes are
captured and judged. The base of the bundle is compared by content with this project.

Changes can also be exported as a patch.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import platform
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from fumehood.core import changes as c
from fumehood.core.report import Run, printable, run_label, show_command
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import kind_of, open_below, open_top
from fumehood.linux.signing import BUNDLE, sign, signer_of
from fumehood.rootfs.unpack import Member
from fumehood.service.differences import each_difference, git_mode, header, mode_lines
from fumehood.service.store import Store
from fumehood.service.versions import open_versions
from fumehood.store.projects import Project

REPORT_LABEL = "dev.fumehood.report"  # the label that holds the report
SIGNATURE_ANNOTATION = "dev.fumehood.signature"  # of the manifest, and so of everything that it names
FORMAT = 1
_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
_DELETION_PREFIX = ".wh."  # of a name that an OCI layer deletes
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_EXPORTED_VERDICTS = (c.APPLIED, c.HELD, c.CONFLICT)
_MAX_TEXT = 16 << 20  # bytes of a manifest, or of the config with the report
_MAX_UNPACKED = 4 << 30
_MAX_MEMBERS = 20
_MAX_IN_PATCH = 64 << 20  # bytes of one binary file
_PIECE = 1 << 20

# Runs in the hood, and unpacks the layer on its standard input into its working directory, as files, directories and
# symlinks only. It is the hood, and not this script, that keeps it from reaching anything else.
_UNPACK_SCRIPT = r"""
import filecmp, os, shutil, sys, tarfile
NEW = ".fumehood-import"
def is_same_file(new, path):
    if os.path.islink(path) or not os.path.isfile(path) or os.stat(new).st_mode != os.stat(path).st_mode:
        return False
    return os.access(path, os.R_OK) and filecmp.cmp(new, path, shallow=False)
def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as layer:
    for entry in layer:
        parts = entry.name.split("/")
        if entry.name.startswith("/") or ".." in parts or "" in parts or "\0" in entry.name:
            sys.exit(f"a path leads out of it: {entry.name!r}")
        above, name = os.path.split(entry.name)
        if any(os.path.islink("/".join(parts[: n + 1])) for n in range(len(parts) - 1)):
            sys.exit(f"a path leads through a link: {entry.name!r}")
        if above and not os.path.isdir(above):
            remove(above)
            os.makedirs(above)
        if name == ".wh..wh..opq":
            for each in os.listdir(above or "."):
                remove(os.path.join(above, each))
        elif name.startswith(".wh."):
            if name == ".wh.":
                sys.exit("a deletion names nothing")
            remove(os.path.join(above, name[4:]))
        elif entry.isdir():
            if os.path.islink(entry.name) or not os.path.isdir(entry.name):
                remove(entry.name)
                os.mkdir(entry.name)
            os.chmod(entry.name, entry.mode & 0o1777)
        elif entry.issym():
            remove(entry.name)
            os.symlink(entry.linkname, entry.name)
        elif entry.isreg():
            new = os.path.join(above, NEW)
            with open(new, "xb") as file:
                shutil.copyfileobj(layer.extractfile(entry), file)
            os.chmod(new, entry.mode & 0o1777)
            if is_same_file(new, entry.name):
                os.unlink(new)
                continue
            os.utime(new, (entry.mtime, entry.mtime))
            remove(entry.name)
            os.rename(new, entry.name)
        else:
            sys.exit(f"neither a file, a directory nor a link: {entry.name!r}")
"""


def export(store: Store, run: Run, path: str | int, *, key: str = "", may_be_empty: bool = False) -> int:
    """Write a run's changes to a new file, a pipe or a descriptor, signed if there is a key; return how many."""
    changes = [change for change in run.changed if change.verdict in _EXPORTED_VERDICTS]
    _check_exportable(run, changes, may_be_empty=may_be_empty)
    versions_before = open_versions(store, run, changes, before=True)
    base = {change.path: _content_digest(content) for change, content in versions_before}
    for change in changes:
        if change.before is not None and change.before.kind == c.DIRECTORY:
            base[change.path] = c.DIRECTORY
    report = {
        "format": FORMAT, "run": run.run, "command": run.command, "exit_code": run.exit_code,
        "started_at": run.started_at, "base": base,
    }  # fmt: skip
    with tempfile.TemporaryFile(dir=store.places.state) as layer:
        unpacked = _write_layer(store, run, changes, layer)
        with _open_target(path) as file:
            _write_image(file, layer, unpacked, report, key)
    return len(changes)


@contextmanager
def _open_target(path: str | int) -> Iterator[IO[bytes]]:
    """Open the target of an export: a new file, which is removed if the export fails, a pipe, a device or a descriptor.

    A terminal is refused, because it would act on the bytes.
    """
    target, new_file = path, ""
    try:
        if not isinstance(path, int):
            mode = os.stat(path).st_mode if os.path.exists(path) else 0
            is_new = not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISDIR(mode))  # opening a directory fails
            # O_EXCL: a file that appeared meanwhile is not overwritten. Mode 600: private files may be in the bundle.
            flags = os.O_CREAT | os.O_EXCL if is_new else os.O_NOCTTY
            target = os.open(path, flags | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            new_file = path if is_new else ""
        with open(target, "wb", closefd=target is not path) as file:
            if file.isatty():
                hint = "name a file, or send it on: -o - | …"
                raise BadRequest("a terminal can't take an export", hint=hint)  # noqa: TRY301 - known after opening
            yield file
    except BaseException as error:
        if new_file:
            os.unlink(new_file)
        if isinstance(error, OSError):
            message = f"{path} can't be written: {error.strerror}"
            raise BadRequest(message, hint="choose another place") from error
        raise


def _check_exportable(run: Run, changes: Sequence[c.Change], *, may_be_empty: bool = False) -> None:
    """Raise BadRequest if changes can't be exported."""
    if not changes and not may_be_empty:
        raise BadRequest(f"{run_label(run)} has changed nothing that could travel", hint=show_command(run))
    for change in changes:
        if change.root:
            raise BadRequest(
                f"{run_label(run)} changed {printable(run.roots[change.root])} too, which is not the project's",
                hint="a bundle holds the changes of a project alone",
            )
        if any(part.startswith(_DELETION_PREFIX) for part in change.path.split("/")):
            raise BadRequest(
                f"{printable(change.path)} can't travel: in an OCI layer, such a name means a deletion",
                hint="rename it",
            )


def _content_digest(content: bytes | int | None) -> str | None:
    """Return what a bundle records of a path in its base: a symlink's target, or a file's digest."""
    if content is None:
        return None
    if isinstance(content, bytes):
        return f"link {content.decode('utf-8', 'surrogateescape')}"
    return f"sha256:{_sha256_of(content)}"


def _sha256_of(file: int) -> str:
    with open(file, "rb", closefd=False) as opened:
        opened.seek(0)
        return hashlib.file_digest(opened, "sha256").hexdigest()


class _DigestWriter:
    """Writes to a file, and computes the digest of what was written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        self._file.write(data)
        return len(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._digest.hexdigest()}"


def _write_layer(store: Store, run: Run, changes: Sequence[c.Change], file: IO[bytes]) -> str:
    """Write the changes as a compressed layer; return the digest of the uncompressed layer."""
    deleted = {change.path for change in changes if change.change == c.DELETED}
    with gzip.GzipFile(fileobj=file, mode="wb", mtime=0, compresslevel=6, filename="") as packed:
        digest_writer = _DigestWriter(packed)
        with tarfile.open(fileobj=digest_writer, mode="w|", format=tarfile.PAX_FORMAT) as layer:  # type: ignore[call-overload]
            for change, content in open_versions(store, run, changes):
                above, _, name = change.path.rpartition("/")
                deletion = f"{above}/{_DELETION_PREFIX}{name}" if above else f"{_DELETION_PREFIX}{name}"
                if change.path in deleted:
                    if above not in deleted:
                        layer.addfile(tarfile.TarInfo(deletion))
                    continue
                if change.change == c.TYPE:
                    layer.addfile(tarfile.TarInfo(deletion))
                assert change.after is not None, "only a deletion leaves nothing"
                entry = tarfile.TarInfo(change.path)
                entry.mode, entry.mtime = change.after.mode, change.after.modified_ns // 1_000_000_000
                if change.kind == c.DIRECTORY:
                    entry.type = tarfile.DIRTYPE
                    layer.addfile(entry)
                elif isinstance(content, bytes):
                    entry.type, entry.linkname = tarfile.SYMTYPE, os.fsdecode(content)
                    layer.addfile(entry)
                elif isinstance(content, int):
                    entry.size = os.fstat(content).st_size
                    with open(os.dup(content), "rb") as file_inside:
                        layer.addfile(entry, file_inside)
    return digest_writer.digest


def _write_image(file: IO[bytes], layer: IO[bytes], unpacked: str, report: dict[str, Any], key: str) -> None:
    """Write an OCI image layout as one archive, its manifest signed if there is a key."""
    size = layer.seek(0, os.SEEK_END)
    digest = f"sha256:{_sha256_of(layer.fileno())}"
    config = _json({
        "architecture": _MACHINES.get(platform.machine(), platform.machine()), "os": "linux",
        "config": {"Labels": {REPORT_LABEL: json.dumps(report)}}, "rootfs": {"type": "layers", "diff_ids": [unpacked]},
    })  # fmt: skip
    manifest = _json({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _oci_descriptor(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": size}],
    })  # fmt: skip
    descriptor = _oci_descriptor(manifest, "application/vnd.oci.image.manifest.v1+json")
    descriptor["annotations"] = {"org.opencontainers.image.ref.name": "changes"}
    if key:
        descriptor["annotations"][SIGNATURE_ANNOTATION] = sign(key, BUNDLE, manifest)
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.USTAR_FORMAT) as image:
        for name, data in (
            ("oci-layout", _LAYOUT), ("index.json", _json({"schemaVersion": 2, "manifests": [descriptor]})),
            (_blob_path(descriptor["digest"]), manifest), (_blob_path(_oci_descriptor(config, "")["digest"]), config),
        ):  # fmt: skip
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            image.addfile(entry, io.BytesIO(data))
        entry = tarfile.TarInfo(_blob_path(digest))
        entry.size = layer.seek(0, os.SEEK_END)
        layer.seek(0)
        image.addfile(entry, layer)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _oci_descriptor(data: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def _blob_path(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def export_patch(store: Store, run: Run, path: str | int) -> int:
    """Write a run's changes as a patch for `git apply`, with binary files too; return how many there are."""
    changes = [change for change in run.changed if change.verdict in _EXPORTED_VERDICTS and change.kind != c.DIRECTORY]
    _check_exportable(run, changes)
    shown = {each.path: each for each in each_difference(store, run, [], here=run.project) if each.root == run.project}
    without_text = [change for change in changes if not shown[change.path].shown]
    sides: dict[str, list[bytes]] = {change.path: [] for change in without_text}
    for before in (True, False):
        for change, content in open_versions(store, run, without_text, before=before):
            sides[change.path].append(_read_all(content, change.path))
    texts = [
        _binary_patch(change, *sides[change.path]) if change.path in sides
        else shown[change.path].text.encode("utf-8", "surrogateescape")
        for change in changes
    ]  # fmt: skip
    with _open_target(path) as file:
        file.writelines(texts)
    return len(changes)


def _read_all(content: bytes | int | None, path: str) -> bytes:
    if not isinstance(content, int):
        return content or b""
    if os.fstat(content).st_size > _MAX_IN_PATCH:
        raise BadRequest(f"{printable(path)} is too large for a patch", hint="without --patch it can travel")
    with open(os.dup(content), "rb") as file:
        file.seek(0)
        return file.read()


def _binary_patch(change: c.Change, old: bytes, new: bytes) -> bytes:
    """Return a change as git's own binary patch, with both versions as a whole, so that it can be reversed."""
    sides = [
        (stamp, hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest())
        for stamp, data in ((change.before, old), (change.after, new))
    ]
    lines = [header(change.path), *mode_lines(change.before, change.after)]
    digests = ["0" * 40 if stamp is None else digest for stamp, digest in sides]
    mode = f" {git_mode(change.before)}" if change.before is not None and len(lines) == 1 else ""
    lines.append(f"index {digests[0]}..{digests[1]}{mode}\nGIT binary patch\n")
    return "".join(lines).encode("utf-8", "surrogateescape") + _literal(new) + _literal(old)


def _literal(data: bytes) -> bytes:
    """Return one version in the format of git's binary patches."""
    packed = zlib.compress(data)
    lines = [b"literal %d\n" % len(data)]
    for start in range(0, len(packed), 52):
        piece = packed[start : start + 52]
        length = chr(ord("A") + len(piece) - 1) if len(piece) <= 26 else chr(ord("a") + len(piece) - 27)
        lines.append(length.encode() + base64.b85encode(piece, pad=True) + b"\n")
    return b"".join([*lines, b"\n"])


class ChangeBundle(Value):
    """A bundle that was read and checked: its uncompressed layer, and the report on the run that made it."""

    layer: Any  # an open file, removed when it is closed
    signature_line: str  # who signed it, for people
    command: str
    base: dict[str, str | None]


def read_bundle(path: str, directory: str, signers: str = "") -> ChangeBundle:
    """Read and check a bundle; its layer is uncompressed into a nameless file in a directory of ours.

    A signature that is not of this bundle is refused; the file of allowed signers names the signer.
    """
    try:
        with tarfile.open(path, "r:", tarinfo=Member) as image:
            return _read(image, directory, signers)
    except (
        tarfile.TarError, ValueError, KeyError, TypeError, EOFError, RecursionError, zlib.error, gzip.BadGzipFile,
    ) as error:  # fmt: skip
        message = f"{printable(path)} is not a bundle: {printable(str(error))}"
        raise BadRequest(message, hint="fumehood export makes one") from error
    except OSError as error:
        message = f"{printable(path)} can't be read: {error.strerror or error}"
        raise BadRequest(message, hint="check the path") from error


def _read(image: tarfile.TarFile, directory: str, signers: str) -> ChangeBundle:
    members: dict[str, tarfile.TarInfo] = {}
    for count, member in enumerate(image):  # several may have the same name
        if count == _MAX_MEMBERS or not member.isreg():
            raise ValueError("it holds more than a bundle does")
        members[member.name.removeprefix("./")] = member

    def content(name: str) -> bytes:
        member = members[name]
        if member.size > _MAX_TEXT:
            raise ValueError(f"{name} is too long")
        file = image.extractfile(member)
        assert file is not None
        data = file.read()
        if name.startswith("blobs/") and hashlib.sha256(data).hexdigest() != os.path.basename(name):
            raise ValueError(f"{name} is damaged")
        return data

    (descriptor,) = json.loads(content("index.json"))["manifests"]
    manifest_data = content(_blob_path(str(descriptor["digest"])))
    signature = (descriptor.get("annotations") or {}).get(SIGNATURE_ANNOTATION)
    signature_line = "not signed"
    if signature is not None:
        signature_line = signer_of(str(signature), BUNDLE, manifest_data, signers).line
    manifest = json.loads(manifest_data)
    config = json.loads(content(_blob_path(str(manifest["config"]["digest"]))))
    (packed,) = manifest["layers"]
    (unpacked,) = config["rootfs"]["diff_ids"]
    report = json.loads(config["config"]["Labels"][REPORT_LABEL])
    if report["format"] != FORMAT or not isinstance(report["base"], dict):
        raise ValueError("it was made by another version of Fumehood")
    name = _blob_path(str(packed["digest"]))
    source = image.extractfile(members[name])
    assert source is not None
    layer = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - the caller closes it
    try:
        _uncompress(source, str(packed["mediaType"]), os.path.basename(name), str(unpacked), layer)
    except BaseException:
        layer.close()
        raise
    return ChangeBundle(layer=layer, signature_line=signature_line, command=str(report["command"]), base=report["base"])


def _uncompress(source: IO[bytes], media_type: str, digest: str, unpacked: str, layer: IO[bytes]) -> None:
    """Uncompress a layer, and check the digests of both forms."""
    if hashlib.file_digest(source, "sha256").hexdigest() != digest:  # type: ignore[arg-type]
        raise ValueError("its layer is damaged")
    source.seek(0)
    if not media_type.endswith("tar+gzip"):
        raise ValueError(f"its layer is packed in a way that is not read here: {media_type}")
    unpacked_digest = hashlib.sha256()
    size = 0
    with gzip.GzipFile(fileobj=source) as stream:
        while piece := stream.read(_PIECE):
            size += len(piece)
            if size > _MAX_UNPACKED:
                raise ValueError("its layer is too large")
            unpacked_digest.update(piece)
            layer.write(piece)
    if f"sha256:{unpacked_digest.hexdigest()}" != unpacked:
        raise ValueError("its layer is not the one that it names")
    layer.seek(0)


APPLY_PATCH_COMMAND = ("git", "-c", "core.hooksPath=/dev/null", "apply", "--binary", "--whitespace=nowarn", "-")
UNPACK_COMMAND = ("python3", "-I", "-S", "-c", _UNPACK_SCRIPT)


def compare_base(store: Store, project: Project, run: Run, bundle: ChangeBundle) -> Run:
    """Mark changes as conflicts where the project differs from the bundle's base; record who signed the bundle."""
    with store.lock_project(project.id), Closing(open_top(project.path)) as top:
        run = store.history.find(run.run)
        differing = [
            change for change in run.changed
            if change.verdict == c.HELD and digest_at(top, change.path) != bundle.base.get(change.path)
        ]  # fmt: skip
        for change in differing:
            change.verdict, change.reason = c.CONFLICT, "the bundle was made on another version of it"
        run.reason = "; ".join(filter(None, (run.reason, bundle.signature_line)))
        store.history.settle(run, rewrite=bool(differing))
    return run


def digest_at(top: int, path: str) -> str | None:
    """Return what a bundle would record of a path in its base: its content, or None if it has none."""
    try:
        entry = open_below(top, path, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return None  # not there, or behind a symlink
    with Closing(entry):
        kind = kind_of(os.fstat(entry).st_mode)
        if kind == c.DIRECTORY:
            return c.DIRECTORY
        if kind == c.SYMLINK:
            return _content_digest(os.fsencode(os.readlink("", dir_fd=entry)))
        if kind != c.FILE:
            return None
        with Closing(os.open(f"/proc/self/fd/{entry}", os.O_RDONLY | os.O_CLOEXEC)) as file:
            return _content_digest(file)
