"""A run's changes as a file that travels: an image by OCI's rules whose one layer is the changes, with the report.

Other tools can read it: unpacked onto the same base it gives the same tree. Here it becomes a held run: its layer is
laid out by a command in the hood, so what a hostile one contains can do no more than any command, and is captured and
judged. What it was made on is compared by content with what is in this project.
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

REPORT = "dev.fumehood.report"  # the label that holds what is told of the run
SIGNATURE = "dev.fumehood.signature"  # the annotation that holds one of the manifest, and so of all that it names
FORMAT = 1
_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
_GONE = ".wh."
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_TRAVELS = (c.APPLIED, c.HELD, c.CONFLICT)
_MOST_TEXT = 16 << 20  # bytes of a manifest, or of all that is told of a run
_MOST_UNPACKED = 4 << 30
_MOST_MEMBERS = 20
_MOST_IN_PATCH = 64 << 20  # bytes of one binary file
_PIECE = 1 << 20

# Runs in the hood, on what it reads. It makes nothing but files, directories and links below where it stands; that
# nothing else is reached is the hood's doing, not its own.
_UNPACK = r"""
import filecmp, os, shutil, sys, tarfile
NEW = ".fumehood-import"
def is_there(new, path):
    if os.path.islink(path) or not os.path.isfile(path) or os.stat(new).st_mode != os.stat(path).st_mode:
        return False
    return os.access(path, os.R_OK) and filecmp.cmp(new, path, shallow=False)
def gone(path):
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
            gone(above)
            os.makedirs(above)
        if name == ".wh..wh..opq":
            for each in os.listdir(above or "."):
                gone(os.path.join(above, each))
        elif name.startswith(".wh."):
            if name == ".wh.":
                sys.exit("a deletion names nothing")
            gone(os.path.join(above, name[4:]))
        elif entry.isdir():
            if os.path.islink(entry.name) or not os.path.isdir(entry.name):
                gone(entry.name)
                os.mkdir(entry.name)
            os.chmod(entry.name, entry.mode & 0o1777)
        elif entry.issym():
            gone(entry.name)
            os.symlink(entry.linkname, entry.name)
        elif entry.isreg():
            new = os.path.join(above, NEW)
            with open(new, "xb") as file:
                shutil.copyfileobj(layer.extractfile(entry), file)
            os.chmod(new, entry.mode & 0o1777)
            if is_there(new, entry.name):
                os.unlink(new)
                continue
            os.utime(new, (entry.mtime, entry.mtime))
            gone(entry.name)
            os.rename(new, entry.name)
        else:
            sys.exit(f"neither a file, a directory nor a link: {entry.name!r}")
"""


def export(store: Store, run: Run, path: str | int, *, key: str = "", may_be_empty: bool = False) -> int:
    """Write a run's changes to a new file, a pipe or a descriptor, signed if there is a key; returns how many."""
    changes = [change for change in run.changed if change.verdict in _TRAVELS]
    _refuse_what_stays(run, changes, may_be_empty=may_be_empty)
    base = {change.path: _digest(content) for change, content in open_versions(store, run, changes, before=True)}
    for change in changes:
        if change.before is not None and change.before.kind == c.DIRECTORY:
            base[change.path] = c.DIRECTORY
    report = {
        "format": FORMAT, "run": run.run, "command": run.command, "exit_code": run.exit_code,
        "started_at": run.started_at, "base": base,
    }  # fmt: skip
    with tempfile.TemporaryFile(dir=store.places.state) as layer:
        unpacked = _write_layer(store, run, changes, layer)
        with _opened(path) as file:
            _write_image(file, layer, unpacked, report, key)
    return len(changes)


@contextmanager
def _opened(path: str | int) -> Iterator[IO[bytes]]:
    """Open what an export goes to: a file that was not there, of which nothing is left where it does not get whole.

    A pipe or a character device is written to as it is, and so is a descriptor; but no terminal, which would act on it.
    """
    target, made = path, ""
    try:
        if not isinstance(path, int):
            mode = os.stat(path).st_mode if os.path.exists(path) else 0
            is_new = not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISDIR(mode))  # a directory refuses it
            # Closed to others: files that are so are in it as well. One that came meanwhile is not cut off.
            how = os.O_CREAT | os.O_EXCL if is_new else os.O_NOCTTY
            target = os.open(path, how | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            made = path if is_new else ""
        with open(target, "wb", closefd=target is not path) as file:
            if file.isatty():
                hint = "name a file, or send it on: -o - | …"
                raise BadRequest("a terminal can't take an export", hint=hint)  # noqa: TRY301 - once it is opened
            yield file
    except BaseException as error:
        if made:
            os.unlink(made)
        if isinstance(error, OSError):
            message = f"{path} can't be written: {error.strerror}"
            raise BadRequest(message, hint="choose another place") from error
        raise


def _refuse_what_stays(run: Run, changes: Sequence[c.Change], *, may_be_empty: bool = False) -> None:
    if not changes and not may_be_empty:
        raise BadRequest(f"{run_label(run)} has changed nothing that could travel", hint=show_command(run))
    for change in changes:
        if change.root:
            raise BadRequest(
                f"{run_label(run)} changed {printable(run.roots[change.root])} too, which is not the project's",
                hint="a bundle holds the changes of a project alone",
            )
        if any(part.startswith(_GONE) for part in change.path.split("/")):
            raise BadRequest(
                f"{printable(change.path)} can't travel: in an OCI layer, such a name means a deletion",
                hint="rename it",
            )


def _digest(content: bytes | int | None) -> str | None:
    if content is None:
        return None
    if isinstance(content, bytes):
        return f"link {content.decode('utf-8', 'surrogateescape')}"
    return f"sha256:{_sum_of(content)}"


def _sum_of(file: int) -> str:
    with open(file, "rb", closefd=False) as opened:
        opened.seek(0)
        return hashlib.file_digest(opened, "sha256").hexdigest()


class _Summed:
    """Writes on, and sums up what was written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        self._file.write(data)
        return len(data)

    @property
    def name(self) -> str:
        return f"sha256:{self._digest.hexdigest()}"


def _write_layer(store: Store, run: Run, changes: Sequence[c.Change], file: IO[bytes]) -> str:
    """Write the changes as a compressed layer; returns the digest that it has when it is not compressed."""
    gone = {change.path for change in changes if change.change == c.DELETED}
    with gzip.GzipFile(fileobj=file, mode="wb", mtime=0, compresslevel=6, filename="") as packed:
        summed = _Summed(packed)
        with tarfile.open(fileobj=summed, mode="w|", format=tarfile.PAX_FORMAT) as layer:  # type: ignore[call-overload]
            for change, content in open_versions(store, run, changes):
                above, _, name = change.path.rpartition("/")
                where = f"{above}/" if above else ""
                if change.path in gone:
                    if above not in gone:
                        layer.addfile(tarfile.TarInfo(f"{where}{_GONE}{name}"))
                    continue
                if change.change == c.TYPE:
                    layer.addfile(tarfile.TarInfo(f"{where}{_GONE}{name}"))
                assert change.after is not None, "only what is deleted leaves nothing"
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
    return summed.name


def _write_image(file: IO[bytes], layer: IO[bytes], unpacked: str, report: dict[str, Any], key: str) -> None:
    """Write an image layout as one archive, its manifest signed if there is a key."""
    size = layer.seek(0, os.SEEK_END)
    digest = f"sha256:{_sum_of(layer.fileno())}"
    config = _json({
        "architecture": _MACHINES.get(platform.machine(), platform.machine()), "os": "linux",
        "config": {"Labels": {REPORT: json.dumps(report)}}, "rootfs": {"type": "layers", "diff_ids": [unpacked]},
    })  # fmt: skip
    manifest = _json({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _named(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": size}],
    })  # fmt: skip
    named = _named(manifest, "application/vnd.oci.image.manifest.v1+json")
    named["annotations"] = {"org.opencontainers.image.ref.name": "changes"}
    if key:
        named["annotations"][SIGNATURE] = sign(key, BUNDLE, manifest)
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.USTAR_FORMAT) as image:
        for name, data in (
            ("oci-layout", _LAYOUT), ("index.json", _json({"schemaVersion": 2, "manifests": [named]})),
            (_blob(named["digest"]), manifest), (_blob(_named(config, "")["digest"]), config),
        ):  # fmt: skip
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            image.addfile(entry, io.BytesIO(data))
        entry = tarfile.TarInfo(_blob(digest))
        entry.size = layer.seek(0, os.SEEK_END)
        layer.seek(0)
        image.addfile(entry, layer)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _named(data: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def export_patch(store: Store, run: Run, path: str | int) -> int:
    """Write a run's changes as a patch that `git apply` takes, binary files too; returns how many there are."""
    changes = [change for change in run.changed if change.verdict in _TRAVELS and change.kind != c.DIRECTORY]
    _refuse_what_stays(run, changes)
    shown = {each.path: each for each in each_difference(store, run, [], here=run.project) if each.root == run.project}
    whole = [change for change in changes if not shown[change.path].shown]
    sides: dict[str, list[bytes]] = {change.path: [] for change in whole}
    for before in (True, False):
        for change, content in open_versions(store, run, whole, before=before):
            sides[change.path].append(_all_of(content, change.path))
    texts = [
        _binary_patch(change, *sides[change.path]) if change.path in sides
        else shown[change.path].text.encode("utf-8", "surrogateescape")
        for change in changes
    ]  # fmt: skip
    with _opened(path) as file:
        file.writelines(texts)
    return len(changes)


def _all_of(content: bytes | int | None, path: str) -> bytes:
    if not isinstance(content, int):
        return content or b""
    if os.fstat(content).st_size > _MOST_IN_PATCH:
        raise BadRequest(f"{printable(path)} is too large for a patch", hint="without --patch it can travel")
    with open(os.dup(content), "rb") as file:
        file.seek(0)
        return file.read()


def _binary_patch(change: c.Change, old: bytes, new: bytes) -> bytes:
    """Write a change as git's own binary patch: both versions whole, so that it can be taken back."""
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
    packed = zlib.compress(data)
    lines = [b"literal %d\n" % len(data)]
    for start in range(0, len(packed), 52):
        piece = packed[start : start + 52]
        length = chr(ord("A") + len(piece) - 1) if len(piece) <= 26 else chr(ord("a") + len(piece) - 27)
        lines.append(length.encode() + base64.b85encode(piece, pad=True) + b"\n")
    return b"".join([*lines, b"\n"])


class ChangeBundle(Value):
    """A bundle that was read and is whole: its layer, unpacked, and what is told of the run that made it."""

    layer: Any  # an open file, removed when it is closed
    signed: str  # by whom, in words
    command: str
    base: dict[str, str | None]


def read(path: str, directory: str, signers: str = "") -> ChangeBundle:
    """Check a bundle, and unpack its layer into a file without a name in a directory of ours.

    A signature that is not one of this bundle is refused; whose it is, is said by the file of allowed signers.
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
    for count, member in enumerate(image):  # of one name there may be many
        if count == _MOST_MEMBERS or not member.isreg():
            raise ValueError("it holds more than a bundle does")
        members[member.name.removeprefix("./")] = member

    def content(name: str) -> bytes:
        member = members[name]
        if member.size > _MOST_TEXT:
            raise ValueError(f"{name} is too long")
        file = image.extractfile(member)
        assert file is not None
        data = file.read()
        if name.startswith("blobs/") and hashlib.sha256(data).hexdigest() != os.path.basename(name):
            raise ValueError(f"{name} is damaged")
        return data

    (named,) = json.loads(content("index.json"))["manifests"]
    whole = content(_blob(str(named["digest"])))
    signature = (named.get("annotations") or {}).get(SIGNATURE)
    signed = "not signed" if signature is None else signer_of(str(signature), BUNDLE, whole, signers).line
    manifest = json.loads(whole)
    config = json.loads(content(_blob(str(manifest["config"]["digest"]))))
    (packed,) = manifest["layers"]
    (unpacked,) = config["rootfs"]["diff_ids"]
    report = json.loads(config["config"]["Labels"][REPORT])
    if report["format"] != FORMAT or not isinstance(report["base"], dict):
        raise ValueError("it was made by another version of Fumehood")
    name = _blob(str(packed["digest"]))
    source = image.extractfile(members[name])
    assert source is not None
    layer = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - handed on
    try:
        _unpack(source, str(packed["mediaType"]), os.path.basename(name), str(unpacked), layer)
    except BaseException:
        layer.close()
        raise
    return ChangeBundle(layer=layer, signed=signed, command=str(report["command"]), base=report["base"])


def _unpack(source: IO[bytes], kind: str, digest: str, unpacked: str, layer: IO[bytes]) -> None:
    if hashlib.file_digest(source, "sha256").hexdigest() != digest:  # type: ignore[arg-type]
        raise ValueError("its layer is damaged")
    source.seek(0)
    if not kind.endswith("tar+gzip"):
        raise ValueError(f"its layer is packed in a way that is not read here: {kind}")
    plain = hashlib.sha256()
    size = 0
    with gzip.GzipFile(fileobj=source) as stream:
        while piece := stream.read(_PIECE):
            size += len(piece)
            if size > _MOST_UNPACKED:
                raise ValueError("its layer is too large")
            plain.update(piece)
            layer.write(piece)
    if f"sha256:{plain.hexdigest()}" != unpacked:
        raise ValueError("its layer is not the one that it names")
    layer.seek(0)


APPLY_PATCH = ("git", "-c", "core.hooksPath=/dev/null", "apply", "--binary", "--whitespace=nowarn", "-")
UNPACK = ("python3", "-I", "-S", "-c", _UNPACK)


def compare(store: Store, project: Project, run: Run, bundle: ChangeBundle) -> Run:
    """Compare what a bundle was made on with what is in the project: what differs is a conflict.

    Who signed it is recorded with it.
    """
    with store.lock_project(project.id), Closing(open_top(project.path)) as top:
        run = store.history.find(run.run)
        differing = [
            change for change in run.changed
            if change.verdict == c.HELD and digest_at(top, change.path) != bundle.base.get(change.path)
        ]  # fmt: skip
        for change in differing:
            change.verdict, change.reason = c.CONFLICT, "the bundle was made on another version of it"
        run.reason = "; ".join(filter(None, (run.reason, bundle.signed)))
        store.history.settle(run, rewrite=bool(differing))
    return run


def digest_at(top: int, path: str) -> str | None:
    """Tell what is at a path, as a bundle tells of its base."""
    try:
        entry = open_below(top, path, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return None  # not there, or behind a link
    with Closing(entry):
        kind = kind_of(os.fstat(entry).st_mode)
        if kind == c.DIRECTORY:
            return c.DIRECTORY
        if kind == c.SYMLINK:
            return _digest(os.fsencode(os.readlink("", dir_fd=entry)))
        if kind != c.FILE:
            return None
        with Closing(os.open(f"/proc/self/fd/{entry}", os.O_RDONLY | os.O_CLOEXEC)) as file:
            return _digest(file)
