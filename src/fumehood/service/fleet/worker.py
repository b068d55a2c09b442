"""A worker: takes jobs from RQ's queue, does each in the hood on its own copy of the base, and sends back what changed.

It is RQ's own worker, with three differences. It knows one function, and looks nothing up by a name that came from
Redis. What it does after a fault is quick: a Redis that comes back is worked for again, and the job of a worker that
was killed is taken up by another within `jobs.TAKEN_UP_S`. A job's process dies with its worker.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.exceptions import AbandonedJobError
from rq.job import Job as RqJob
from rq.serializers import JSONSerializer

from fumehood.core.changes import DIRECTORY, FILE, SYMLINK
from fumehood.core.policy import Policy
from fumehood.core.report import Run, printable, shorten
from fumehood.core.request import DISCARD, HOLD
from fumehood.errors import BadRequest, FumehoodError, NoDirectory, Refused, Unavailable, as_fumehood_error
from fumehood.linux import libc
from fumehood.linux.libc import Closing
from fumehood.linux.lock import Lock
from fumehood.linux.nofollow import open_top, remove_tree
from fumehood.linux.signing import JOB, RESULT, sign
from fumehood.service.bundles import export
from fumehood.service.fleet import jobs
from fumehood.service.fleet.jobs import Base, BaseEntry, Blobs, open_blobs, read_manifest
from fumehood.service.library import Sandbox
from fumehood.service.opened import OpenedStore
from fumehood.store.config import policy_for
from fumehood.store.places import FileLock, places

_MOST_OUTPUT = 1 << 20  # bytes of each output in a report
_LONGEST_MANIFEST = 256 << 20
_RECENT_S = 86400  # a job may be using it
_SAME_TIME = 1_000_000_000  # seconds: one time for all files, so that a base is the same on every worker
_MOST_PIECES = 1000  # of an output in its stream
# Loaded before jobs are forked from here: each would load them again.
_NEEDED = ("verdicts", "recover", "decide", "held")
_OWN_VARIABLES = ("XDG_STATE_HOME", "FUMEHOOD_REDIS", "RQ_*")


class FleetWorker(Worker):
    """RQ's worker for jobs of ours alone."""

    max_connection_wait_time = 1.0

    def __init__(self, queues: list[Queue], connection: Redis, workshop: Workshop) -> None:
        super().__init__(
            queues, connection=connection, job_class=jobs.FleetJob, queue_class=jobs.FleetQueue,
            serializer=JSONSerializer, job_monitoring_interval=jobs.BEAT_S, maintenance_interval=jobs.LOOK_S,
            worker_ttl=15 + jobs.WAIT_S,  # RQ waits 15 seconds less for a job: then it looks for lost ones
            default_result_ttl=jobs.KEPT_S, log_job_description=False, exception_handlers=[_give_up],
        )  # fmt: skip
        self._workshop = workshop
        self.is_to_end = False

    def get_heartbeat_ttl(self, job: RqJob) -> int:  # noqa: ARG002 - RQ's own
        """Seconds after which this worker counts as dead."""
        return jobs.SILENCE_S

    def request_stop(self, signum: int, frame: Any) -> None:
        """End after the job at hand; asked again, at once."""
        self.is_to_end = True
        super().request_stop(signum, frame)

    def main_work_horse(self, job: RqJob, queue: Queue) -> None:
        """Do a job in a process that does not outlive this one."""
        libc.end_with_parent(self.pid, signal.SIGKILL)
        super().main_work_horse(job, queue)

    def perform_job(self, job: RqJob, queue: Queue) -> bool:
        """Do a job that is one of ours: whatever else stands in the queue is refused, and never tried again."""
        try:
            name, instance, arguments, options = json.loads(job.data)
        except (ValueError, TypeError, RecursionError):
            name, instance, arguments, options = "what can't be read", None, (), {}
        if (name, instance, options) != (jobs.FUNCTION, None, {}) or len(arguments) != 2:
            job.retries_left = 0
            said = f"refused: {shorten(str(name))} is not what this worker does"
            self.handle_job_failure(job, queue, exc_string=said)
            return False
        job.do = lambda: self._workshop.do(job.id, *arguments)
        return bool(super().perform_job(job, queue))


def _give_up(job: RqJob, _kind: type, error: BaseException, _trace: object) -> None:
    """Have a job tried again only where Redis was the trouble: ours would be the same the next time."""
    if not isinstance(error, (RedisError, AbandonedJobError)):
        job.retries_left = 0


class Workshop:
    """What a worker does jobs with: its store of contents, its copies of bases, and records that only it has."""

    def __init__(self, connection: Redis, store: str, directory: str, settings: Policy) -> None:
        self._connection, self._settings = connection, settings
        self._store, self._directory = store, directory
        clean_cache(directory, settings.fleet.budget)

    def do(self, name: str, text: Any, signature: Any) -> dict[str, Any]:
        """Do a job; returns the result as it travels: a text, and this worker's signature of it if it has a key."""
        began = time.time()
        result: dict[str, Any] = {"job": name, "worker": os.uname().nodename}
        try:
            job = jobs.accepted(text, signature, JOB, self._settings)
            if job.id != name:
                raise Refused("the job came under the name of another")
            result |= self._done(job)
        except (FumehoodError, OSError) as trouble:
            error = trouble if isinstance(trouble, FumehoodError) else as_fumehood_error(trouble)
            result |= {"refused" if isinstance(error, (BadRequest, Refused)) else "failed": error.message}
            result["hint"] = error.hint
        result["duration_s"] = time.time() - began
        said = result.get("refused") or result.get("failed") or result["report"]["state"]
        print(f"{name}: {printable(said)}", file=sys.stderr, flush=True)  # noqa: T201 - the worker's log
        whole = json.dumps(result)
        key = self._settings.sign.key
        return {"result": whole, "signature": sign(key, RESULT, whole.encode()) if key else ""}

    def _done(self, job: jobs.SignedJob) -> dict[str, Any]:
        blobs = open_blobs(self._store, self._connection)  # in this process: what fsspec has is not to be forked
        project = BaseCache(self._directory, blobs).tree(job.base)
        secrets = self._secrets(job)
        policy = jobs.limited(self._settings, job)
        drop = (*policy.environment.drop, *_OWN_VARIABLES)
        policy = policy.replace(environment=policy.environment.replace(drop=drop))
        with Sandbox(project, policy, variables=lambda: secrets) as sandbox:
            for left in sandbox.history():
                if left.state == "held":  # of a job whose process was killed
                    sandbox.discard(left)
            command = job.command if isinstance(job.command, str) else list(job.command)
            try:
                run = sandbox.run(
                    command, cwd=os.path.join(project, job.cwd), apply=HOLD, env=dict(job.environment),
                    on_output=self._teller(job.id),
                )  # fmt: skip
            except NoDirectory as error:  # named as the sender did
                raise NoDirectory(error.message.replace(f"{project}/", ""), hint=error.hint) from error
            try:
                return {"report": _report(run, project), "bundle": _bundle(run, blobs), **_judged(sandbox, job)}
            finally:
                if run.state == "held":
                    sandbox.discard(run)

    def _secrets(self, job: jobs.SignedJob) -> dict[str, str]:
        for name in job.secrets:
            if not any(fnmatchcase(name, each) for each in self._settings.fleet.secrets):
                raise Refused(f"{name} is not among the variables that jobs may ask for", hint="fleet.secrets")
            if name not in os.environ:
                raise Refused(f"this worker has no variable {name}", hint="set it where the worker is started")
        return {name: os.environ[name] for name in job.secrets}

    def _teller(self, job: str) -> Any:
        """Return what tells a job's output to whoever listens; what a killed worker told of it is forgotten."""
        key = jobs.output_key(job)
        self._connection.delete(key)

        def tell(stream: str, text: str) -> None:
            self._connection.xadd(key, {"stream": stream, "text": text}, maxlen=_MOST_PIECES, approximate=True)
            self._connection.expire(key, jobs.KEPT_S)

        return tell


def _bundle(run: Run, blobs: Blobs) -> dict[str, Any]:
    """Put what a run changed into the store."""
    with tempfile.TemporaryDirectory(dir=places().state) as directory, closing(OpenedStore()) as store:
        path = f"{directory}/bundle"
        try:
            changes = export(store, run, path, may_be_empty=True)
        except BadRequest as error:  # no fault of the sender's
            raise Unavailable(f"what it changed can't be sent back: {error.message}", hint=error.hint) from error
        with open(path, "rb") as file:
            data = file.read()
    (name,) = blobs.put([data])
    return {"name": name, "size": len(data), "changes": changes}


def _judged(sandbox: Sandbox, job: jobs.SignedJob) -> dict[str, Any]:
    """Run a job's check and score on what it has left."""
    judged: dict[str, Any] = {"check_code": None, "score": None}
    for name, line in (("check_code", job.check), ("score", job.score)):
        if line and not judged["check_code"]:
            run = sandbox.run(line, apply=DISCARD, env=dict(job.environment))
            judged[name] = run.exit_code if name == "check_code" else (run.stdout.split() or [""])[-1]
    return judged


def _report(run: Run, project: str) -> dict[str, Any]:
    """Tell of a run as of any; paths are those that the worker has."""
    report = run.as_dict()
    for name, text in (("stdout", run.stdout), ("stderr", run.stderr)):
        report[name] = text[:_MOST_OUTPUT]
        report["output_truncated"] = report["output_truncated"] or len(text) > _MOST_OUTPUT
    del report["output"]
    return report | {"project": os.path.basename(project), "cwd": os.path.relpath(run.cwd, project)}


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
        try:
            os.utime(place)  # used now: it is not removed for a while
        except FileNotFoundError:
            with FileLock(self._lock):
                if not os.path.isdir(place):
                    self._lay_out(name, place)
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
        lacking: dict[tuple[str, int], dict[str, int]] = {}  # each content with its size: the places and their modes
        for each in base.entries:
            if each.kind == FILE and not os.path.exists(self._place(each)):
                lacking.setdefault((each.content, each.size), {})[self._place(each)] = each.mode
        for (_, data), places_of in zip(self._blobs.get(lacking), lacking.values(), strict=True):
            for place, mode in places_of.items():
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

    with FileLock(f"{directory}/lock"):
        oldest_first = sorted(os.scandir(trees), key=lambda each: each.stat().st_mtime)
        for tree in oldest_first:
            with os.scandir(files) as entries:
                used = sum(each.stat().st_size for each in entries)
            if used <= budget or time.time() - os.stat(tree).st_mtime < _RECENT_S:
                return
            shutil.rmtree(tree.path, onerror=open_and_remove)
            for each in list(os.scandir(files)):
                if each.stat().st_nlink == 1:
                    os.unlink(each.path)


def work(url: str, *, store: str = "", directory: str = "", name: str = jobs.QUEUE, burst: bool = False) -> int:
    """Work until somebody ends it; with `burst`, until nothing is left to do."""
    connection = jobs.connected(url, _say)
    directory = directory or f"{os.path.dirname(places().cache)}/fumehood-worker"
    settings = policy_for(places(), ())
    if not settings.sign.signers and not settings.fleet.unsigned:
        raise BadRequest(
            "this worker knows nobody who may send it jobs",
            hint="sign.signers of the configuration names a file of allowed signers (docs/fleet.md)",
        )
    slot, lock = _slot(directory)
    for each in _NEEDED:
        import_module(f"fumehood.service.{each}")
    os.environ["XDG_STATE_HOME"] = _fresh_state(directory, slot)
    _say("working; Ctrl-C ends it after the job at hand")
    with lock:
        while True:
            try:
                connection.ping()
                workshop = Workshop(connection, store, directory, settings)
                worker = FleetWorker([jobs.queue(name, connection)], connection, workshop)
                worker.work(burst=burst, logging_level="WARNING")
                if worker.is_to_end or burst:
                    return 0
            except RedisError as error:
                if jobs.is_final(error):
                    raise jobs.unreachable(error) from error
                _say(f"{jobs.unreachable(error).message}; trying again")
            time.sleep(1)


def _say(why: str) -> None:
    print(f"fumehood: {why}", file=sys.stderr, flush=True)  # noqa: T201


def _slot(directory: str) -> tuple[str, Lock]:
    """Take a place that no other worker of this directory has; returns its name, and the lock on it."""
    os.makedirs(directory, 0o700, exist_ok=True)
    number = 0
    while True:
        number += 1
        name = f"worker-{number}"
        lock = Lock(os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            return name, lock.take(wait=False)
        except BlockingIOError:
            lock.close()


def _fresh_state(directory: str, slot: str) -> str:
    """Return where this worker keeps its records; what the one before it had in its place is thrown away."""
    with Closing(open_top(directory)) as top:
        for name in os.listdir(directory):
            if name.startswith(f"{slot}-"):
                try:
                    remove_tree(top, name)
                except OSError:
                    continue  # a sandbox of it is just ending
    return f"{directory}/{slot}-{os.getpid()}"
