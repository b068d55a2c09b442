"""The base: the project's files on which a job runs, listed in a manifest of paths and hashes.

The manifest is a content of the store like any other. A job names its hash, and with it every byte of the base.
Ignored and masked paths stay at home, and so does everything that looks like a secret.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from fumehood.core.changes import DIRECTORY, FILE, SYMLINK
from fumehood.core.masks import HOME_SECRETS, make_masks
from fumehood.core.paths import is_below, is_in
from fumehood.core.patterns import MARKER_FILES, is_skipped
from fumehood.core.policy import Policy
from fumehood.core.report import printable
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.cache import TICK_NS, load, save
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import DirectoryCache, open_top, stat_entry
from fumehood.service.files import ignore_rules, is_ignored
from fumehood.service.fleet.blobs import Blobs, content_hash
from fumehood.service.profiles import digest_of
from fumehood.store.places import Places, home, make_private

if TYPE_CHECKING:
    from fumehood.service.files import Ignored

_MAX_FILE_BYTES = 512 << 20
_FORMAT = 1  # of a manifest
_HASH = re.compile(r"[0-9a-f]{64}")
# Reasons why a path stays at home.
IGNORED, SKIPPED, MASKED, SECRET, SPECIAL, CLOSED = (
    "ignored by git", "a repository, packages or a cache", "masked", "may hold a secret", "neither file nor link",
    "closed",
)  # fmt: skip
_SECRET_PATHS = ("/.envrc", *(f"/{entry}" for entry, _ in HOME_SECRETS))  # wherever in a project they lie
_SECRET_NAME = re.compile(
    r"(?!.*(example|sample|template)).*\.env(\..*)?|.*\.(pem|key|p12|pfx|jks|keystore)|id_(rsa|dsa|ecdsa|ed25519)",
    re.IGNORECASE,
)
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK
_STAMP_BYTES = 16  # of the digest of a file's stamp


class BaseEntry(Value):
    """One path of a base. `content` is a file's hash, or a link's target."""

    path: str
    kind: str
    mode: int
    size: int = 0
    content: str = ""


class Base(Value):
    """Everything that goes to a worker, and the paths that stay at home, each with the reason."""

    name: str
    entries: tuple[BaseEntry, ...]
    at_home: tuple[tuple[str, str], ...]

    @property
    def manifest(self) -> bytes:
        """The base as it travels."""
        rows = [[each.path, each.kind, each.mode, each.size, each.content] for each in self.entries]
        return json.dumps({"format": _FORMAT, "name": self.name, "entries": rows}, separators=(",", ":")).encode()

    @property
    def contents(self) -> dict[str, str]:
        """Each file's hash, with a path that has this content."""
        return {each.content: each.path for each in self.entries if each.kind == FILE}


def read_manifest(data: bytes) -> Base:
    """Read a manifest; raises BadRequest unless every path lies in a directory that is listed before it."""
    try:
        manifest = json.loads(data)
        rows = [BaseEntry(path=p, kind=k, mode=m, size=s, content=c) for p, k, m, s, c in manifest["entries"]]
        base = Base(name=str(manifest["name"]), entries=tuple(rows), at_home=())
        fault = "it is of another version"
        if manifest["format"] == _FORMAT:
            fault = _fault_of_name(base.name) or next(_faults_of_entries(base), "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(f"the manifest of the base is not one: {printable(str(error))}") from error
    if fault:
        raise BadRequest(f"the manifest of the base is not one: {printable(fault)}")
    return base


def _fault_of_name(name: str) -> str:
    return f"{name!r} can't be a name" if name in ("", ".", "..") or "/" in name or "\0" in name else ""


def _faults_of_entries(base: Base) -> Iterator[str]:
    directories = {""}
    for each in base.entries:
        parent, _, name = each.path.rpartition("/")
        if parent not in directories or _fault_of_name(name):
            yield f"{each.path!r} can't be a path of it"
        if each.kind not in (DIRECTORY, FILE, SYMLINK) or not 0 <= each.mode <= 0o7777:
            yield f"{each.path!r} is nothing that a base holds"
        if each.kind == FILE and (_HASH.fullmatch(each.content) is None or not 0 <= each.size <= _MAX_FILE_BYTES):
            yield f"{each.path!r} has no hash"
        if each.kind == DIRECTORY:
            directories.add(each.path)


# ---- Surveying a project: what goes to a worker, and what stays at home.


def survey_project(path: str, policy: Policy, places: Places, include: Collection[str] = ()) -> Base:
    """Read a project and return its base; `include` are paths that go although they would stay at home."""
    masks = make_masks((home(),), places.own_directories(), policy.mask, policy.unmask, as_root=False)
    hashes = _HashCache(f"{places.state}/fleet", path)
    survey = _ProjectSurvey(path, masks.hidden, masks.in_roots, frozenset(each.strip("/") for each in include), hashes)
    entries = tuple(sorted(survey.entries_to_send(), key=lambda each: each.path.split("/")))
    hashes.save()
    name = os.path.basename(path) or "project"
    return Base(name=name, entries=entries, at_home=tuple(sorted(survey.at_home)))


class _HashCache:
    """Hashes of a project's files, kept from one survey to the next, so that unchanged files are not read again.

    As with git's index, what a program writes through a mapping that it holds open may be noticed late.
    """

    def __init__(self, directory: str, project: str) -> None:
        self._directory = directory
        self._path = f"{directory}/hashes-{digest_of(project)}"
        self._previous: dict[bytes, bytes] = load(self._path) or {}
        self._current: dict[bytes, bytes] = {}

    def size_and_hash(self, parents: DirectoryCache, path: str, status: os.stat_result) -> tuple[int, str]:
        """Return a file's size and hash."""
        stamp = (path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        key = hashlib.blake2b(repr(stamp).encode(), digest_size=_STAMP_BYTES).digest()
        size, content = status.st_size, self._previous.get(key, b"").hex()
        if not content:
            is_stable = time.time_ns() - status.st_ctime_ns > TICK_NS  # no later version can have the same stamp
            data = _read_file(parents, path)
            size, content = len(data), content_hash(data)
            if not is_stable:
                return size, content
        self._current[key] = bytes.fromhex(content)
        return size, content

    def save(self) -> None:
        """Save the hashes for the next survey."""
        if self._current != self._previous:
            make_private(self._directory)
            save(self._path, self._current)


class _ProjectSurvey:
    """A walk through a project; `at_home` collects the paths that stay, each with the reason."""

    def __init__(
        self, project: str, hidden: Sequence[str], masked: Sequence[str], include: frozenset[str], hashes: _HashCache
    ) -> None:
        self._project, self._hidden, self._masked, self._include = project, hidden, masked, include
        self._hashes = hashes
        self.at_home: list[tuple[str, str]] = []

    def entries_to_send(self) -> list[BaseEntry]:
        """Return the entries of the base, without the targets of links that stay at home because of a secret."""
        entries = list(self._walk())
        secrets = [f"{self._project}/{path}" for path, reason in self.at_home if reason in (MASKED, SECRET)]
        targets = [os.path.realpath(path) for path in secrets if os.path.islink(path)]
        secret_targets = [each[len(self._project) + 1 :] for each in targets if is_below(each, self._project)]
        stays = {
            each.path for each in entries if is_in(each.path, secret_targets) and not is_in(each.path, self._include)
        }
        self.at_home += [(path, SECRET) for path in stays]
        return [each for each in entries if each.path not in stays]

    def _walk(self) -> Iterator[BaseEntry]:
        with Closing(open_top(self._project)) as top, DirectoryCache(top) as parents:
            # Directories to walk, each with the ignore rules above it, and whether a person included it.
            waiting: list[tuple[str, Ignored, bool]] = [("", (), False)]
            while waiting:
                path, rules_above, is_included = waiting.pop()
                directory = parents.open_listing(path)
                if directory is None:
                    self.at_home.append((path, CLOSED))
                    continue
                with Closing(directory):
                    if path:
                        yield BaseEntry(path=path, kind=DIRECTORY, mode=stat.S_IMODE(os.fstat(directory).st_mode))
                    rules = ignore_rules(directory, path) + rules_above
                    for name in os.listdir(directory):
                        child = f"{path}/{name}" if path else name
                        status = stat_entry(directory, name)
                        if status is None:
                            continue  # it was removed meanwhile
                        is_directory = stat.S_ISDIR(status.st_mode)
                        child_included = is_included or child in self._include
                        reason = ""
                        if not child_included:
                            reason = self._why_at_home(parents, child, rules, is_directory=is_directory)
                        if reason:
                            self.at_home.append((f"{child}/" if is_directory else child, reason))
                        elif is_directory:
                            waiting.append((child, rules, child_included))
                        elif stat.S_ISLNK(status.st_mode):
                            target = os.readlink(name, dir_fd=directory)
                            yield BaseEntry(path=child, kind=SYMLINK, mode=0o777, content=target)
                        elif stat.S_ISREG(status.st_mode):
                            size, content = self._hashes.size_and_hash(parents, child, status)
                            mode = status.st_mode & 0o777
                            yield BaseEntry(path=child, kind=FILE, mode=mode, size=size, content=content)
                        else:
                            self.at_home.append((child, SPECIAL))

    def _why_at_home(self, parents: DirectoryCache, path: str, rules: Ignored, *, is_directory: bool) -> str:
        """Return the reason why a path stays at home, or "" if it goes."""
        if any(each.startswith(f"{path}/") for each in self._include):
            return ""  # a path in it is included
        name = os.path.basename(path)
        if is_in(path, self._masked) or is_in(f"{self._project}/{path}", self._hidden):
            return MASKED
        if is_ignored(path, rules, is_directory=is_directory):
            return IGNORED
        if name == ".git" or (is_directory and is_skipped(name)):
            return SKIPPED
        directory = parents.open_listing(path) if is_directory else None
        if directory is not None:
            with Closing(directory):
                if any(stat_entry(directory, marker) is not None for marker in MARKER_FILES):
                    return SKIPPED
        return SECRET if f"/{path}".endswith(_SECRET_PATHS) or _SECRET_NAME.fullmatch(name) else ""


def _read_file(parents: DirectoryCache, path: str) -> bytes:
    try:
        with open(parents.open(path, _OPEN_FLAGS), "rb") as file:
            if os.fstat(file.fileno()).st_size > _MAX_FILE_BYTES:
                message = f"{printable(path)} is too large to travel: at most {_MAX_FILE_BYTES >> 20} MiB"
                raise BadRequest(message, hint="have git ignore it")
            return file.read()
    except OSError as error:
        message = f"{printable(path)} can't be read: {error.strerror}"
        raise BadRequest(message, hint="mask = […] leaves it out") from error


def send_base(path: str, base: Base, blobs: Blobs) -> str:
    """Put what the store lacks of a base into it, the manifest last; returns the hash that a job names."""
    manifest = base.manifest
    manifest_hash = content_hash(manifest)
    contents = base.contents
    missing = blobs.missing([*contents, manifest_hash])
    expected_hashes = sorted(missing - {manifest_hash})
    with Closing(open_top(path)) as top, DirectoryCache(top) as parents:
        hashes = blobs.put(_read_file(parents, contents[each]) for each in expected_hashes)
        for expected, actual in zip(expected_hashes, hashes, strict=True):
            if expected != actual:
                raise BadRequest(f"{printable(contents[expected])} changed while it was read", hint="try again")
    if manifest_hash in missing:
        list(blobs.put([manifest]))
    return manifest_hash
