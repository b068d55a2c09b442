"""The base of a job: a project's files as a manifest of paths and hashes; a worker lays it out once for all its jobs.

Ignored and masked paths stay at home, and so does what looks like a secret. The manifest is a content like any other:
a job names its hash, and with it every byte of the base. Contents wait between sender and workers by their hashes, in a
directory or a bucket by fsspec, or in Redis itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from redis import Redis

from fumehood.core.changes import DIRECTORY, FILE, SYMLINK
from fumehood.core.masks import HOME, is_below, is_in, masks
from fumehood.core.patterns import MARKERS, is_skipped
from fumehood.core.policy import Policy
from fumehood.core.report import printable
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError
from fumehood.linux.cache import TICK_NS, keep, recalled
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import Parents, look, open_top
from fumehood.service.files import ignore_rules, is_ignored
from fumehood.service.fleet.jobs import KEPT_S, digest
from fumehood.service.profiles import digest_of
from fumehood.store.places import Alone, Places, home, make_private

Ignored = tuple[tuple[int, Any], ...]
Thing = TypeVar("Thing")


# ---- Where contents wait, compressed. What is fetched is compared with its name: a store can lose, but not change it.

LARGEST = 512 << 20  # bytes of one file
_LARGEST_IN_REDIS = 32 << 20  # compressed
_AT_ONCE = 8 << 20  # bytes that are asked for in one go
_MOST_AT_ONCE = 500


class Missing(FumehoodError):
    """A content that a job needs is not in the store, or is damaged there."""


class Blobs:
    """What every store does; `sent` and `fetched` count the bytes."""

    def __init__(self) -> None:
        self.sent = self.fetched = 0

    def missing(self, names: Sequence[str]) -> set[str]:
        """Return those that are not in the store; those that are will stay for a while."""
        raise NotImplementedError

    def _put(self, packed: Mapping[str, bytes]) -> None:
        raise NotImplementedError

    def _get(self, names: Sequence[str]) -> Sequence[bytes | None]:
        raise NotImplementedError

    def put(self, *contents: bytes) -> list[str]:
        """Keep contents; returns their names."""
        return list(self.put_all(contents))

    def put_all(self, contents: Iterable[bytes]) -> Iterator[str]:
        """Keep contents, some at once; yields their names."""
        packed = ((digest(data), zlib.compress(data, 1)) for data in contents)
        for some in _some_at_once(packed, lambda each: len(each[1])):
            self._put(dict(some))
            self.sent += sum(map(len, dict(some).values()))
            yield from (name for name, _ in some)

    def get(self, sizes: Iterable[tuple[str, int]]) -> Iterator[tuple[str, bytes]]:
        """Fetch contents by their names, each with the most bytes that it can have, some at once."""
        for some in _some_at_once(sizes, lambda each: each[1]):
            for (name, size), packed in zip(some, self._get([name for name, _ in some]), strict=True):
                if packed is None:
                    raise Missing(f"{name} is not in the store", hint="send the job again")
                self.fetched += len(packed)
                try:
                    data = zlib.decompressobj().decompress(packed, size + 1)  # no more than was announced
                except zlib.error as error:
                    raise Missing(f"{name} is damaged in the store: {error}") from error
                if len(data) > size or digest(data) != name:
                    raise Missing(f"{name} is damaged in the store", hint="remove it there, and send the job again")
                yield name, data


def _some_at_once(things: Iterable[Thing], size_of: Callable[[Thing], int]) -> Iterator[list[Thing]]:
    """Yield things in lists, none of which is too long or, with more than one, too large."""
    some: list[Thing] = []
    total = 0
    for each in things:
        size = size_of(each)
        if some and (total + size > _AT_ONCE or len(some) == _MOST_AT_ONCE):
            yield some
            some, total = [], 0
        some.append(each)
        total += size
    if some:
        yield some


class RedisBlobs(Blobs):
    """In Redis itself, for projects that are small; what nobody asks for is gone after a week."""

    def __init__(self, connection: Redis) -> None:
        super().__init__()
        self._connection = connection

    def missing(self, names: Sequence[str]) -> set[str]:
        """Return those that are not there; those that are stay for another week."""
        lacking: set[str] = set()
        for some in _some_at_once(names, len):
            with self._connection.pipeline(transaction=False) as pipeline:
                for name in some:
                    pipeline.expire(_key(name), KEPT_S)
                lacking |= {name for name, is_there in zip(some, pipeline.execute(), strict=True) if not is_there}
        return lacking

    def _put(self, packed: Mapping[str, bytes]) -> None:
        largest = max(map(len, packed.values()))
        if largest > _LARGEST_IN_REDIS:
            raise BadRequest(
                f"{largest >> 20} MiB are too much for Redis", hint="--store names a directory or bucket for all"
            )
        with self._connection.pipeline(transaction=False) as pipeline:
            for name, data in packed.items():
                pipeline.set(_key(name), data, ex=KEPT_S)
            pipeline.execute()

    def _get(self, names: Sequence[str]) -> Sequence[bytes | None]:
        contents: list[bytes | None] = self._connection.mget([_key(name) for name in names])
        return contents


def _key(name: str) -> str:
    return f"fumehood:blob:{name}"


class FileBlobs(Blobs):
    """In a file system that fsspec knows: a directory, a bucket. Nothing is removed there by us."""

    def __init__(self, url: str) -> None:
        super().__init__()
        from fsspec.core import url_to_fs

        try:
            self._files, self._top = url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise BadRequest(f"{url} can't be a store: {error}", hint="file:///DIRECTORY, or s3://BUCKET") from error
        self._is_here = "file" in self._files.protocol

    def _place(self, name: str) -> str:
        return f"{self._top}/{name[:2]}/{name}"

    def missing(self, names: Sequence[str]) -> set[str]:
        """Return those that are not there."""
        if len(names) > _MOST_AT_ONCE and not self._is_here:  # one request for a thousand names
            there = {os.path.basename(path) for path in self._files.find(self._top)}
            return set(names) - there
        return {name for name in names if not self._files.exists(self._place(name))}

    def _put(self, packed: Mapping[str, bytes]) -> None:
        if not self._is_here:
            self._files.pipe({self._place(name): data for name, data in packed.items()})
            return
        for name, data in packed.items():
            place = self._place(name)
            self._files.makedirs(os.path.dirname(place), exist_ok=True)
            beside = f"{place}.{os.getpid()}-{os.urandom(4).hex()}"
            self._files.pipe_file(beside, data)
            os.rename(beside, place)

    def _get(self, names: Sequence[str]) -> Sequence[bytes | None]:
        nothing = [None] * len(names)  # whole files, and no request besides for each
        contents = self._files.cat_ranges([self._place(name) for name in names], nothing, nothing, on_error="return")
        return [each if isinstance(each, bytes) else None for each in contents]


def open_blobs(url: str, connection: Redis) -> Blobs:
    """Open the store that an address names: without one, Redis."""
    return FileBlobs(url) if url else RedisBlobs(connection)


# ---- What goes, and what stays at home.

IGNORED, SKIPPED, MASKED, SECRET, OTHER = (
    "ignored by git", "a repository, packages or a cache", "masked", "may hold a secret", "neither file nor link",
)  # fmt: skip
_FORMAT = 1
_SECRET_PATHS = ("/.envrc", *(f"/{entry}" for entry, _ in HOME))  # wherever in a project they lie
_SECRET = re.compile(
    r"(?!.*(example|sample|template)).*\.env(\..*)?|.*\.(pem|key|p12|pfx|jks|keystore)|id_(rsa|dsa|ecdsa|ed25519)",
    re.IGNORECASE,
)
_HASH = re.compile(r"[0-9a-f]{64}")
_LONGEST_MANIFEST = 256 << 20
_RECENT_S = 86400  # a job may be using it
_READ_ONCE = os.O_RDONLY | os.O_NONBLOCK
_KEY = 16  # bytes by which a file's stamp is kept
_SAME_TIME = 1_000_000_000  # seconds: one time for all files, so that a base is the same on every worker


class BaseEntry(Value):
    """One path of a base: what it is, and a file's hash or a link's target."""

    path: str
    kind: str
    mode: int
    size: int = 0
    content: str = ""


class Base(Value):
    """All that goes to a worker, and what stays at home, each with its reason."""

    name: str
    entries: tuple[BaseEntry, ...]
    at_home: tuple[tuple[str, str], ...]

    @property
    def manifest(self) -> bytes:
        """It as it travels."""
        rows = [[each.path, each.kind, each.mode, each.size, each.content] for each in self.entries]
        return json.dumps({"format": _FORMAT, "name": self.name, "entries": rows}, separators=(",", ":")).encode()

    @property
    def contents(self) -> dict[str, str]:
        """Each hash, with a path that has it."""
        return {each.content: each.path for each in self.entries if each.kind == FILE}


# ---- At the sender's.

def survey_project(path: str, policy: Policy, places: Places, include: Collection[str] = ()) -> Base:
    """Read a project and return its base; `include` are paths that go although they would stay at home."""
    hidden = masks((home(),), places.own(), policy.mask, policy.unmask, root=False)
    hashes = _Hashes(f"{places.state}/fleet", path)
    walk = _BaseWalk(path, hidden.hidden, hidden.in_roots, frozenset(each.strip("/") for each in include), hashes)
    entries = tuple(sorted(walk.kept(), key=lambda each: each.path.split("/")))
    hashes.keep()
    name = os.path.basename(path) or "project"
    return Base(name=name, entries=entries, at_home=tuple(sorted(walk.at_home)))


class _Hashes:
    """Hashes of a project's files from one survey to the next: a file that is as it was is not read again.

    As of git's index, what a program writes through a mapping that it holds open may be noticed late.
    """

    def __init__(self, directory: str, project: str) -> None:
        self._directory = directory
        self._place = f"{directory}/hashes-{digest_of(project)}"
        self._before: dict[bytes, bytes] = recalled(self._place) or {}
        self._now: dict[bytes, bytes] = {}

    def of(self, parents: Parents, path: str, status: os.stat_result) -> tuple[int, str]:
        """Return a file's size and hash."""
        stamp = (path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        key = hashlib.blake2b(repr(stamp).encode(), digest_size=_KEY).digest()
        size, content = status.st_size, self._before.get(key, b"").hex()
        if not content:
            is_old = time.time_ns() - status.st_ctime_ns > TICK_NS  # no later version can have the same stamp
            data = _content(parents, path)
            size, content = len(data), digest(data)
            if not is_old:
                return size, content
        self._now[key] = bytes.fromhex(content)
        return size, content

    def keep(self) -> None:
        """Keep them for the next time."""
        if self._now != self._before:
            make_private(self._directory)
            keep(self._place, self._now)


class _BaseWalk:
    def __init__(
        self, path: str, hidden: Sequence[str], masked: Sequence[str], include: frozenset[str], hashes: _Hashes
    ) -> None:
        self._path, self._hidden, self._masked, self._include = path, hidden, masked, include
        self._hashes = hashes
        self.at_home: list[tuple[str, str]] = []

    def kept(self) -> list[BaseEntry]:
        """Return what goes: not what a link leads to that stays at home for a secret's sake."""
        entries = list(self.entries())
        secrets = [f"{self._path}/{path}" for path, why in self.at_home if why in (MASKED, SECRET)]
        targets = [os.path.realpath(path) for path in secrets if os.path.islink(path)]
        behind = [target[len(self._path) + 1 :] for target in targets if is_below(target, self._path)]
        stays = {each.path for each in entries if is_in(each.path, behind) and not is_in(each.path, self._include)}
        self.at_home += [(path, SECRET) for path in stays]
        return [each for each in entries if each.path not in stays]

    def entries(self) -> Iterator[BaseEntry]:
        with Closing(open_top(self._path)) as top, Parents(top) as parents:
            waiting: list[tuple[str, Ignored, bool]] = [("", (), False)]
            while waiting:
                path, above, is_included = waiting.pop()
                directory = parents.listing(path)
                if directory is None:
                    self.at_home.append((path, "closed"))
                    continue
                with Closing(directory):
                    if path:
                        yield BaseEntry(path=path, kind=DIRECTORY, mode=stat.S_IMODE(os.fstat(directory).st_mode))
                    ignored = ignore_rules(directory, path) + above
                    for name in os.listdir(directory):
                        below = f"{path}/{name}" if path else name
                        status = look(directory, name)
                        if status is None:
                            continue  # gone meanwhile
                        is_directory = stat.S_ISDIR(status.st_mode)
                        goes = is_included or below in self._include
                        why = "" if goes else self._why_not(parents, below, ignored, is_directory=is_directory)
                        if why:
                            self.at_home.append((f"{below}/" if is_directory else below, why))
                        elif is_directory:
                            waiting.append((below, ignored, goes))
                        elif stat.S_ISLNK(status.st_mode):
                            target = os.readlink(name, dir_fd=directory)
                            yield BaseEntry(path=below, kind=SYMLINK, mode=0o777, content=target)
                        elif stat.S_ISREG(status.st_mode):
                            mode = stat.S_IMODE(status.st_mode) & 0o777
                            size, content = self._hashes.of(parents, below, status)
                            yield BaseEntry(path=below, kind=FILE, mode=mode, size=size, content=content)
                        else:
                            self.at_home.append((below, OTHER))

    def _why_not(self, parents: Parents, path: str, ignored: Ignored, *, is_directory: bool) -> str:
        if any(each.startswith(f"{path}/") for each in self._include):
            return ""  # the way to something that is wanted
        name = os.path.basename(path)
        if is_in(path, self._masked) or is_in(f"{self._path}/{path}", self._hidden):
            return MASKED
        if is_ignored(path, ignored, is_directory=is_directory):
            return IGNORED
        if name == ".git" or (is_directory and is_skipped(name)):
            return SKIPPED
        directory = parents.listing(path) if is_directory else None
        if directory is not None:
            with Closing(directory):
                if any(look(directory, marker) is not None for marker in MARKERS):
                    return SKIPPED
        return SECRET if f"/{path}".endswith(_SECRET_PATHS) or _SECRET.fullmatch(name) else ""


def _content(parents: Parents, path: str) -> bytes:
    try:
        with open(parents.open(path, _READ_ONCE), "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise BadRequest(
                    f"{printable(path)} is too large to travel: at most {LARGEST >> 20} MiB", hint="have git ignore it"
                )
            return file.read()
    except OSError as error:
        message = f"{printable(path)} can't be read: {error.strerror}"
        raise BadRequest(message, hint="mask = […] leaves it out") from error


def send_base(path: str, base: Base, blobs: Blobs) -> str:
    """Put what the store lacks of a base there, the manifest last; returns the hash that a job names."""
    manifest = base.manifest
    name = digest(manifest)
    contents = base.contents
    lacking = blobs.missing([*contents, name])
    wanted = sorted(lacking - {name})
    with Closing(open_top(path)) as top, Parents(top) as parents:
        read = blobs.put_all(_content(parents, contents[content]) for content in wanted)
        for expected, content in zip(wanted, read, strict=True):
            if expected != content:
                raise BadRequest(f"{printable(contents[expected])} changed while it was read", hint="try again")
    if name in lacking:
        blobs.put(manifest)
    return name


# ---- At the worker's.

def read_manifest(data: bytes) -> Base:
    """Read a manifest: paths that lead nowhere else, each in a directory that is listed before it."""
    try:
        manifest = json.loads(data)
        rows = [BaseEntry(path=p, kind=k, mode=m, size=s, content=c) for p, k, m, s, c in manifest["entries"]]
        base = Base(name=str(manifest["name"]), entries=tuple(rows), at_home=())
        is_ours = manifest["format"] == _FORMAT
        wrong = _wrong_name(base.name) or next(_wrong_entries(base), "") if is_ours else "it is of another version"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(f"the manifest of the base is not one: {printable(str(error))}") from error
    if wrong:
        raise BadRequest(f"the manifest of the base is not one: {printable(wrong)}")
    return base


def _wrong_name(name: str) -> str:
    return f"{name!r} can't be a name" if name in ("", ".", "..") or "/" in name or "\0" in name else ""


def _wrong_entries(base: Base) -> Iterator[str]:
    directories = {""}
    for each in base.entries:
        parent, _, last = each.path.rpartition("/")
        if parent not in directories or _wrong_name(last):
            yield f"{each.path!r} can't be a path of it"
        if each.kind not in (DIRECTORY, FILE, SYMLINK) or not 0 <= each.mode <= 0o7777:
            yield f"{each.path!r} is nothing that a base holds"
        if each.kind == FILE and (_HASH.fullmatch(each.content) is None or not 0 <= each.size <= LARGEST):
            yield f"{each.path!r} has no hash"
        if each.kind == DIRECTORY:
            directories.add(each.path)


class BaseCache:
    """A worker's copies of bases: files by hash and mode, and trees of hard links to them, which nobody writes."""

    def __init__(self, directory: str, blobs: Blobs) -> None:
        self._files, self._trees = f"{directory}/files", f"{directory}/trees"
        self._lock = f"{directory}/lock"
        self._blobs = blobs
        for each in (self._files, self._trees):
            os.makedirs(each, 0o700, exist_ok=True)

    def tree(self, name: str) -> str:
        """Return where a base lies, laid out first if it does not yet; whoever else wants it waits."""
        place = f"{self._trees}/{name}"
        if not os.path.isdir(place):
            with Alone(self._lock):
                if not os.path.isdir(place):
                    self._lay_out(name, place)
        os.utime(place)  # used now
        (project,) = os.listdir(place)
        return f"{place}/{project}"

    def _lay_out(self, name: str, place: str) -> None:
        ((_, data),) = self._blobs.get([(name, _LONGEST_MANIFEST)])
        base = read_manifest(data)
        self._fetch(base)
        beside = f"{place}.new"
        shutil.rmtree(beside, ignore_errors=True)
        top = f"{beside}/{base.name}"
        os.makedirs(top, 0o700)
        for each in base.entries:
            path = f"{top}/{each.path}"
            if each.kind == DIRECTORY:
                os.mkdir(path, 0o700)
            elif each.kind == SYMLINK:
                os.symlink(each.content, path)
            else:
                os.link(self._place(each), path)
        for each in reversed(base.entries):
            if each.kind == DIRECTORY:
                os.chmod(f"{top}/{each.path}", each.mode & 0o777 | 0o500)
        os.rename(beside, place)

    def _place(self, entry: BaseEntry) -> str:
        return f"{self._files}/{entry.content}.{entry.mode:o}"

    def _fetch(self, base: Base) -> None:
        """Bring what is not here yet; a file of another mode is a copy."""
        lacking = {self._place(each): each for each in base.entries if each.kind == FILE}
        lacking = {place: each for place, each in lacking.items() if not os.path.exists(place)}
        modes: dict[str, list[int]] = {}
        for each in lacking.values():
            modes.setdefault(each.content, []).append(each.mode)
        sizes = {each.content: each.size for each in lacking.values()}
        for name, data in self._blobs.get(sizes.items()):
            for mode in modes[name]:
                place = f"{self._files}/{name}.{mode:o}"
                with open(f"{place}.new", "wb") as file:
                    file.write(data)
                    os.fchmod(file.fileno(), mode & 0o777 | 0o400)
                os.utime(file.name, (_SAME_TIME, _SAME_TIME))
                os.rename(file.name, place)


def clean_cache(directory: str, budget: int) -> None:
    """Remove a worker's trees that were not used for longest, until the rest fits; and files that no tree has."""
    files, trees = f"{directory}/files", f"{directory}/trees"
    if not os.path.isdir(trees):
        return

    def open_and_remove(remove: Callable[[str], object], path: str, _error: object) -> None:
        # It lies in a directory that can't be written.
        os.chmod(os.path.dirname(path), 0o700)
        remove(path)

    with Alone(f"{directory}/lock"):
        oldest_first = sorted(os.scandir(trees), key=lambda each: each.stat().st_mtime)
        for tree in oldest_first:
            with os.scandir(files) as entries:
                used = sum(each.stat().st_size for each in entries)
            if used <= budget or time.time() - tree.stat().st_mtime < _RECENT_S:
                return
            shutil.rmtree(tree.path, onerror=open_and_remove)
            for each in list(os.scandir(files)):
                if each.stat().st_nlink == 1:
                    os.unlink(each.path)
