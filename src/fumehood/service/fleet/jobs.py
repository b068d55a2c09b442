"""What travels: jobs, the project's files that each is done on, and where both wait.

A job is a JSON text that is checked against a schema and signed, and so is its result. Nothing in one is code, and
nothing is loaded by a name that it holds. Its base is a manifest of paths and hashes, a content like any other: a job
names its hash, and with it every byte of the base. Contents wait by their hashes, in a directory or a bucket by fsspec,
or in Redis itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from ssl import SSLCertVerificationError
from typing import Any, TypeVar

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import TimeoutError as Unanswered
from redis.retry import Retry
from rq import Queue
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job as RqJob
from rq.serializers import JSONSerializer
from rq.utils import now

from fumehood.core import config as kinds
from fumehood.core.changes import DIRECTORY, FILE, SYMLINK
from fumehood.core.hosts import Hosts, parse_host
from fumehood.core.policy import Limits, Policy
from fumehood.core.report import printable
from fumehood.core.request import checked_command
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError, Refused, Unavailable
from fumehood.linux.signing import signer_of

FUNCTION = "fumehood.job"  # the one that a worker knows; there is no module of that name
QUEUE = "fumehood"
KEPT_S = 7 * 86400  # how long results, outputs and a project's files in Redis are kept
# How long the job of a killed worker waits for an idle one is the sum of these: SILENCE_S, until somebody looks
# (LOOK_S after the last look, and WAIT_S until the next worker is awake), and what a slow machine takes. A worker that
# is killed while it takes a job, or while it looks, costs one more look, or LOCK_S.
BEAT_S = 1  # between two signs of life of a worker that does a job
SILENCE_S = 6  # so long after its last sign of life a worker counts as dead
WAIT_S = 1  # for how long an idle worker waits for a job, before it may look for lost ones
LOOK_S = 1  # between two looks for jobs of dead workers, by all workers together
LOCK_S = 2  # for how long one that is looking keeps the others from it: all at once would find the same job
TAKEN_UP_S = 10  # SILENCE_S + LOOK_S + WAIT_S, and 2 for the machine
TAKEN_UP_LATEST_S = 15  # with LOOK_S + WAIT_S once more, and LOCK_S + WAIT_S
OUTAGE_S = 60  # for how long a Redis that does not answer is waited for
_ENDED = frozenset({b"finished", b"failed", b"stopped", b"canceled"})
_HASH = re.compile(r"[0-9a-f]{64}")
_LONGEST = 1 << 20  # bytes of a job
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")  # in an address, as redis-py has them


def digest(data: bytes) -> str:
    """What a content is called everywhere."""
    return hashlib.sha256(data).hexdigest()


class SignedJob(Value):
    """A command with its policy and its base."""

    id: str
    command: str | tuple[str, ...]
    base: str  # the hash of the manifest of the project's files
    expires_at: float
    cwd: str = ""  # in the project
    timeout: float | None = None
    root: str = "host"
    hosts: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()  # variables that the worker has
    limits: tuple[tuple[str, float], ...] = ()
    check: str = ""  # a shell line that is run after it and must succeed; what it writes is thrown away
    score: str = ""  # one that prints a number at its end, where the check has

    def text(self) -> str:
        """The job as it travels."""
        fields = self.fields() | {"environment": dict(self.environment), "limits": dict(self.limits)}
        return json.dumps(fields, sort_keys=True)


def _kind(said: str, is_one: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return what reads a value of a kind that is described so."""

    def read_value(value: Any) -> Any:
        if not is_one(value):
            raise kinds.WrongValue(said)
        return value

    return read_value


def _fully(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _command(value: Any) -> str | tuple[str, ...]:
    try:
        return checked_command(value)
    except BadRequest as error:
        raise kinds.WrongValue(f"a command: {error.message}") from error


_SECRETS = _kind("a list of names of variables", lambda value: isinstance(value, list) and all(
    map(_fully(re.compile(r"[A-Za-z_][A-Za-z0-9_]*")), value)
))  # fmt: skip
_LIMITS = _kind(f"a table of {', '.join(Limits._fields)}", lambda value: isinstance(value, dict) and (
    value.keys() <= set(Limits._fields)
))  # fmt: skip
# Every field of a job, and what makes of its JSON what it is, or raises Wrong.
SCHEMA: dict[str, Callable[[Any], Any]] = {
    "id": _kind("26 letters and digits", _fully(re.compile(r"[0-9a-z]{26}"))), "command": _command,
    "base": _kind("a SHA-256 sum", _fully(_HASH)),
    "expires_at": _kind("a time", lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)),
    "cwd": _kind("a directory of the project", lambda value: not (
        kinds.TEXT.read(value).startswith("/") or ".." in value.split("/")
    )),
    "timeout": lambda value: None if value is None else kinds.SECONDS.read(value),
    "root": kinds.ROOT.read, "hosts": kinds.HOSTS.read, "environment": kinds.TABLE.read,
    "secrets": lambda value: tuple(_SECRETS(value)),
    "limits": lambda value: tuple((name, kinds.COUNT.read(amount)) for name, amount in _LIMITS(value).items()),
    "check": kinds.TEXT.read, "score": kinds.TEXT.read,
}  # fmt: skip


def read(text: Any) -> SignedJob:
    """Check a job against the schema: every field there, each of its kind, and no other."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise BadRequest("a job is a text of at most 1 MiB", hint="fumehood fleet sends them")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest("the job is not JSON", hint="fumehood fleet sends them") from error
    if not isinstance(fields, dict) or fields.keys() != SCHEMA.keys():
        raise BadRequest("the job has not the fields of one", hint="is the sender's Fumehood another version?")
    values = {}
    for name, value in fields.items():
        try:
            values[name] = SCHEMA[name](value)
        except kinds.WrongValue as wrong:
            said = f"the job's {name} is not {wrong}: {printable(repr(value)[:100])}"
            raise BadRequest(said, hint="fumehood help fleet tells what a job can have") from wrong
    return SignedJob(**values)


def accepted(text: Any, signature: Any, purpose: str, policy: Policy) -> SignedJob:
    """Return a job that a worker may do by its own configuration; raises Refused."""
    signer = ""
    if isinstance(text, str) and isinstance(signature, str) and signature:
        signer = signer_of(signature, purpose, text.encode(), policy.sign.signers).name
    if not signer and not policy.fleet.unsigned:
        who = "somebody whom this worker does not know" if signature else "nobody"
        raise Refused(f"the job was signed by {who}", hint="the worker's sign.signers names who may send it jobs")
    job = read(text)
    if time.time() > job.expires_at:
        raise Refused("the job came too late: it was to be begun earlier", hint="send it again")
    allowed = Hosts(policy.fleet.hosts)
    for host in job.hosts:
        if not allowed.covers(parse_host(host)):
            raise Refused(f"{host} is not among the hosts that jobs may ask for", hint="fleet.hosts of the worker")
    if job.root not in policy.fleet.roots:
        raise Refused(f"{job.root} is not among the roots that jobs may ask for", hint="fleet.roots of the worker")
    return job


def limited(policy: Policy, job: SignedJob) -> Policy:
    """Return the policy that a job runs with: the worker's own, and of each limit the lower one."""
    changed = {}
    for name, amount in job.limits:
        own = getattr(policy.limits, name)
        changed[name] = type(own)(min(amount or own, own or amount))
    timeouts = [each for each in (job.timeout, policy.timeout) if each is not None]
    return policy.replace(
        limits=policy.limits.replace(**changed), timeout=min(timeouts, default=None), hosts=job.hosts, network="none",
        root=job.root,
    )  # fmt: skip


# ---- RQ's own, of which nothing is written again: no name out of Redis is looked up, and what is lost is found soon.

class FleetJob(RqJob):
    """A job as RQ keeps it, of which no name is ever looked up and no address is told anything."""

    success_callback = failure_callback = stopped_callback = None
    do: Callable[[], Any] | None = None  # what a worker does, once it knows that this is a job of ours

    def _execute(self) -> Any:
        assert self.do is not None, "only a worker of ours does jobs"
        return self.do()

    def send_webhooks(self, *_arguments: Any, **_options: Any) -> None:
        """Send nothing: the addresses are whoever's who can write to Redis."""


class _SoonCleaned(IntermediateQueue):
    def should_be_cleaned_up(self, job_id: str) -> bool:
        has_ended = self.connection.hget(RqJob.key_for(job_id), "status") in _ENDED
        if has_ended or self.connection.lpos(self.queue_key, job_id) is not None:
            self.remove(job_id)  # it was taken up from a worker that was killed before it could take it off here
            return False
        first_seen = self.get_first_seen(job_id)
        return first_seen is not None and now() - first_seen > timedelta(seconds=SILENCE_S)

    def remove(self, job_id: str) -> None:
        super().remove(job_id)
        self.connection.delete(self.get_first_seen_key(job_id))  # it may be lost again


class FleetQueue(Queue):
    """A queue whose lost jobs are found soon, even where the worker was killed that looked for some."""

    @property
    def intermediate_queue(self) -> IntermediateQueue:
        """Where a job is between the queue and the worker that takes it."""
        return _SoonCleaned(self.key, connection=self.connection)

    def acquire_maintenance_lock(self) -> bool:
        """Look for lost jobs, unless another worker does or has just done so."""
        return bool(self.connection.set(self.registry_cleaning_key, 1, nx=True, ex=LOCK_S))

    def release_maintenance_lock(self) -> None:
        """Have nobody look for a while: of a thousand idle workers, one does in each second."""
        self.connection.expire(self.registry_cleaning_key, LOOK_S)


def queue(name: str, connection: Redis) -> Queue:
    """Return a queue of jobs, whose contents are JSON."""
    return FleetQueue(name, connection=connection, job_class=FleetJob, serializer=JSONSerializer)


class _Patience(Retry):
    """Ask again for a while, by the clock: a request to a network that stalls may itself take long.

    Whoever waits is told why, once for each request that fails a second time.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__(ExponentialBackoff(cap=1, base=0.05), -1)
        self._tell = tell

    def call_with_retry(
        self, do: Callable[[], Any], fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None, with_failure_count: bool = False,
    ) -> Any:  # fmt: skip
        """Do something until it succeeds, the time is over, or it is refused for good."""
        until = time.monotonic() + OUTAGE_S
        failures = count(1)

        def may_change(error: Exception) -> bool:
            is_over = time.monotonic() > until or is_final(error)
            goes_on = not is_over and (is_retryable is None or is_retryable(error))
            if goes_on and next(failures) == 2 and isinstance(error, RedisError):
                self._tell(f"{unreachable(error).message.rstrip('.')}; waiting for it, up to {OUTAGE_S} seconds")
            return goes_on

        return super().call_with_retry(do, fail, may_change, with_failure_count)


def connected(url: str, tell: Callable[[str], object] = lambda _why: None) -> Redis:
    """Connect to a Redis that may go away for a while: what is asked of it waits, and is asked again.

    `tell` gets the words for whoever waits.
    """
    try:
        connection = Redis.from_url(
            url, retry=_Patience(tell),
            retry_on_error=[Disconnected, Unanswered, BusyLoadingError], socket_timeout=20,
            socket_connect_timeout=5, health_check_interval=10,
        )  # fmt: skip
        pool = connection.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # an option that there is not is noticed now
    except (ValueError, TypeError, RedisError) as error:
        # Not in the library's words: they may hold a part of the password.
        raise BadRequest(
            "that is not the address of a Redis",
            hint="rediss://:PASSWORD@HOST:6379/0?ssl_ca_certs=FILE, with %2F for a slash in the password, and so on",
        ) from error
    for name in _FILES:
        path = pool.connection_kwargs.get(name)
        if path is not None and not os.path.isfile(path):
            raise BadRequest(f"{name} of the address of Redis is not a file: {printable(path)}", hint="check the path")
    return connection


def is_final(error: BaseException) -> bool:
    """Return True if Redis would refuse the same again: the password, or we its certificate."""
    return isinstance(error, AuthenticationError) or isinstance(error.__context__, SSLCertVerificationError)


def unreachable(error: RedisError) -> Unavailable:
    """Say that Redis can't be reached, without the address, which may hold a password."""
    if isinstance(error, AuthenticationError):
        return Unavailable(
            f"Redis does not let us in: {printable(str(error))}",
            hint="the password is in the address: FUMEHOOD_REDIS=rediss://:PASSWORD@HOST",
        )
    if is_final(error):
        return Unavailable(
            f"the certificate of Redis is not trusted: {printable(str(error))}",
            hint="the address names the file of who issued it: rediss://…?ssl_ca_certs=FILE",
        )
    return Unavailable(f"Redis can't be reached: {printable(str(error))}", hint="check --redis, and that it runs")


@contextmanager
def redis_errors() -> Iterator[None]:
    """Say it in our words where Redis can't be reached."""
    try:
        yield
    except RedisError as error:
        raise unreachable(error) from error


def output_key(job: str) -> str:
    """The stream that holds what a job prints."""
    return f"fumehood:output:{job}"


# ---- Where contents wait, compressed. What is fetched is compared with its name: a store can lose, but not change it.

LARGEST = 512 << 20  # bytes of one file
_LARGEST_IN_REDIS = 32 << 20  # compressed
_AT_ONCE = 8 << 20  # bytes that are asked for in one go
_MOST_AT_ONCE = 500

Thing = TypeVar("Thing")


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

    def put(self, contents: Iterable[bytes]) -> Iterator[str]:
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


_FORMAT = 1


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
