"""A worker: takes jobs from the queue, runs each in the hood on its own copy of the base, and sends back the changes.

It is RQ's own worker, with three differences. It accepts one function, and looks up no name that comes from Redis. It
recovers quickly: it goes on when Redis comes back, and takes up the job of a killed worker within seconds (`queue.py`).
And a job's process dies with its worker.
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
from contextlib import closing, suppress
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import count
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
from fumehood.service.fleet.base import Base, BaseEntry, read_manifest
from fumehood.service.fleet.blobs import Blobs, open_blobs
from fumehood.service.fleet.jobs import Job, accept_job, policy_for_job
from fumehood.service.fleet.queue import (
    DEAD_AFTER_S,
    DEFAULT_QUEUE,
    FUNCTION,
    HEARTBEAT_S,
    IDLE_WAIT_S,
    KEPT_S,
    SEARCH_INTERVAL_S,
    FleetQueue,
    QueuedJob,
    connect,
    is_permanent,
    open_queue,
    output_key,
    redis_unavailable,
)
from fumehood.service.library import Sandbox
from fumehood.service.opened import OpenedStore
from fumehood.store.config import policy_for
from fumehood.store.places import FileLock, places

_MAX_OUTPUT = 1 << 20  # characters of each output in a report
_MAX_MANIFEST_BYTES = 256 << 20
_MAX_PIECES = 1000  # of an output, in its stream
_RECENT_S = 86400  # a job may be using a base that was asked for since
_FILE_TIME = 1_000_000_000  # of every file, so that a base is the same on each worker
# Imported before jobs' processes are forked: each of them would import these again.
_PRELOADED = ("verdicts", "recover", "decide", "held")
_OWN_VARIABLES = ("XDG_STATE_HOME", "FUMEHOOD_REDIS", "RQ_*")  # which jobs must not see


class FleetWorker(Worker):
    """RQ's worker, restricted to our own jobs."""

    max_connection_wait_time = 1.0

    def __init__(self, queues: list[Queue], connection: Redis, runner: JobRunner) -> None:
        super().__init__(
            queues, connection=connection, job_class=QueuedJob, queue_class=FleetQueue,
            serializer=JSONSerializer, job_monitoring_interval=HEARTBEAT_S, maintenance_interval=SEARCH_INTERVAL_S,
            worker_ttl=15 + IDLE_WAIT_S,  # RQ waits 15 seconds less than this for a job; then it looks for lost ones
            default_result_ttl=KEPT_S, log_job_description=False, exception_handlers=[_retry_only_redis_errors],
        )  # fmt: skip
        self._runner = runner
        self.is_stopping = False

    def get_heartbeat_ttl(self, job: RqJob) -> int:  # noqa: ARG002 - as RQ calls it
        """Return the seconds without a sign of life after which this worker counts as dead."""
        return DEAD_AFTER_S

    def request_stop(self, signum: int, frame: Any) -> None:
        """End after the current job; when asked a second time, at once."""
        self.is_stopping = True
        super().request_stop(signum, frame)

    def main_work_horse(self, job: RqJob, queue: Queue) -> None:
        """Run a job in a process that does not outlive this one."""
        libc.end_with_parent(self.pid, signal.SIGKILL)
        super().main_work_horse(job, queue)

    def perform_job(self, job: RqJob, queue: Queue) -> bool:
        """Run a job if it is one of ours; refuse anything else that is in the queue, and never try it again."""
        try:
            function, instance, arguments, options = json.loads(job.data)
        except (ValueError, TypeError, RecursionError):
            function, instance, arguments, options = "what can't be read", None, (), {}
        if (function, instance, options) != (FUNCTION, None, {}) or len(arguments) != 2:
            job.retries_left = 0
            reason = f"refused: {shorten(str(function))} is not what this worker does"
            self.handle_job_failure(job, queue, exc_string=reason)
            return False
        job.run_function = lambda: self._runner.run(job.id, *arguments)
        return bool(super().perform_job(job, queue))


def _retry_only_redis_errors(job: RqJob, _kind: type, error: BaseException, _trace: object) -> None:
    """Keep RQ from trying a job again, unless Redis caused the error: any other error would come again."""
    if not isinstance(error, (RedisError, AbandonedJobError)):
        job.retries_left = 0


class JobRunner:
    """Runs jobs, with the store of contents, this worker's copies of bases, and records that only this worker has."""

    def __init__(self, connection: Redis, store: str, directory: str, policy: Policy) -> None:
        self._connection, self._policy = connection, policy
        self._store, self._directory = store, directory
        clean_cache(directory, policy.fleet.budget)

    def run(self, job_id: str, text: Any, signature: Any) -> dict[str, Any]:
        """Run a job; returns the result as it travels: a text, and this worker's signature of it if it has a key."""
        began = time.time()
        result: dict[str, Any] = {"job": job_id, "worker": os.uname().nodename}
        try:
            job = accept_job(text, signature, JOB, self._policy)
            if job.id != job_id:
                raise Refused("the job came under the name of another")
            result |= self._run(job)
        except (FumehoodError, OSError) as caught:
            error = caught if isinstance(caught, FumehoodError) else as_fumehood_error(caught)
            result |= {"refused" if isinstance(error, (BadRequest, Refused)) else "failed": error.message}
            result["hint"] = error.hint
        result["duration_s"] = time.time() - began
        outcome = result.get("refused") or result.get("failed") or result["report"]["state"]
        print(f"{job_id}: {printable(outcome)}", file=sys.stderr, flush=True)  # noqa: T201 - the worker's log
        result_text = json.dumps(result)
        key = self._policy.sign.key
        return {"result": result_text, "signature": sign(key, RESULT, result_text.encode()) if key else ""}

    def _run(self, job: Job) -> dict[str, Any]:
        """Return the report of a job's command, the bundle of its changes, and what its check and score said."""
        blobs = open_blobs(self._store, self._connection)  # in this process, because fsspec's state can't be forked
        project = BaseCache(self._directory, blobs).tree(job.base)
        secrets = self._secrets(job)
        policy = policy_for_job(self._policy, job)
        drop = (*policy.environment.drop, *_OWN_VARIABLES)
        policy = policy.replace(environment=policy.environment.replace(drop=drop))
        with Sandbox(project, policy, variables=lambda: secrets) as sandbox:
            for earlier in sandbox.history():
                if earlier.state == "held":  # of a job whose process was killed
                    sandbox.discard(earlier)
            command = job.command if isinstance(job.command, str) else list(job.command)
            try:
                run = sandbox.run(
                    command, cwd=os.path.join(project, job.cwd), apply=HOLD, env=dict(job.environment),
                    on_output=self._output_sender(job.id),
                )  # fmt: skip
            except NoDirectory as error:  # name the directory as the sender did
                raise NoDirectory(error.message.replace(f"{project}/", ""), hint=error.hint) from error
            try:
                rating = _check_and_score(sandbox, job)
                return {"report": _report(run, project), "bundle": _send_bundle(run, blobs), **rating}
            finally:
                if run.state == "held":
                    sandbox.discard(run)

    def _secrets(self, job: Job) -> dict[str, str]:
        for name in job.secrets:
            if not any(fnmatchcase(name, each) for each in self._policy.fleet.secrets):
                raise Refused(f"{name} is not among the variables that jobs may ask for", hint="fleet.secrets")
            if name not in os.environ:
                raise Refused(f"this worker has no variable {name}", hint="set it where the worker is started")
        return {name: os.environ[name] for name in job.secrets}

    def _output_sender(self, job_id: str) -> Callable[[str, str], None]:
        """Return a function that sends a job's output to whoever listens; what a killed worker sent is removed."""
        key = output_key(job_id)
        self._connection.delete(key)

        def send_output(stream: str, text: str) -> None:
            self._connection.xadd(key, {"stream": stream, "text": text}, maxlen=_MAX_PIECES, approximate=True)
            self._connection.expire(key, KEPT_S)

        return send_output


def _send_bundle(run: Run, blobs: Blobs) -> dict[str, Any]:
    """Put a run's changes into the store, as a bundle."""
    with tempfile.TemporaryDirectory(dir=places().state) as directory, closing(OpenedStore()) as store:
        path = f"{directory}/bundle"
        try:
            changes = export(store, run, path, may_be_empty=True)
        except BadRequest as error:  # not the sender's fault
            raise Unavailable(f"what it changed can't be sent back: {error.message}", hint=error.hint) from error
        with open(path, "rb") as file:
            data = file.read()
    (bundle_hash,) = blobs.put([data])
    return {"name": bundle_hash, "size": len(data), "changes": changes}


def _check_and_score(sandbox: Sandbox, job: Job) -> dict[str, Any]:
    """Run a job's check and score on what its command has left; there is no score if the check has failed."""
    rating: dict[str, Any] = {"check_code": None, "score": None}
    if job.check:
        rating["check_code"] = sandbox.run(job.check, apply=DISCARD, env=dict(job.environment)).exit_code
    if job.score and not rating["check_code"]:
        words = sandbox.run(job.score, apply=DISCARD, env=dict(job.environment)).stdout.split()
        rating["score"] = words[-1] if words else ""
    return rating


def _report(run: Run, project: str) -> dict[str, Any]:
    """Return the report of a run, with its paths as the worker has them."""
    report = run.as_dict()
    for name, text in (("stdout", run.stdout), ("stderr", run.stderr)):
        report[name] = text[:_MAX_OUTPUT]
        report["output_truncated"] = report["output_truncated"] or len(text) > _MAX_OUTPUT
    del report["output"]
    return report | {"project": os.path.basename(project), "cwd": os.path.relpath(run.cwd, project)}


class BaseCache:
    """A worker's copies of bases: files named by hash and mode, and trees of hard links to them. Nobody writes them."""

    def __init__(self, directory: str, blobs: Blobs) -> None:
        self._files, self._trees = f"{directory}/files", f"{directory}/trees"
        self._lock = f"{directory}/lock"
        self._blobs = blobs
        for each in (self._files, self._trees):
            os.makedirs(each, 0o700, exist_ok=True)

    def tree(self, base_hash: str) -> str:
        """Return the directory of a base, building it first if needed; others who want it wait meanwhile."""
        directory = f"{self._trees}/{base_hash}"
        try:
            os.utime(directory)  # marks it as used, so that it is not removed for a while
        except FileNotFoundError:
            with FileLock(self._lock):
                if not os.path.isdir(directory):
                    self._build(base_hash, directory)
        (project,) = os.listdir(directory)
        return f"{directory}/{project}"

    def _build(self, base_hash: str, directory: str) -> None:
        ((_, data),) = self._blobs.get([(base_hash, _MAX_MANIFEST_BYTES)])
        base = read_manifest(data)
        self._fetch_files(base)
        temporary = f"{directory}.new"
        shutil.rmtree(temporary, ignore_errors=True)
        top = f"{temporary}/{base.name}"
        os.makedirs(top, 0o700)
        for each in base.entries:
            path = f"{top}/{each.path}"
            if each.kind == DIRECTORY:
                os.mkdir(path, 0o700)
            elif each.kind == SYMLINK:
                os.symlink(each.content, path)
            else:
                os.link(self._file_path(each), path)
        for each in reversed(base.entries):
            if each.kind == DIRECTORY:
                os.chmod(f"{top}/{each.path}", each.mode & 0o777 | 0o500)
        os.rename(temporary, directory)

    def _file_path(self, entry: BaseEntry) -> str:
        return f"{self._files}/{entry.content}.{entry.mode:o}"

    def _fetch_files(self, base: Base) -> None:
        """Fetch the files that are missing; a file with another mode is a copy."""
        missing: dict[tuple[str, int], dict[str, int]] = {}  # by hash and size: the paths to write, with their modes
        for each in base.entries:
            if each.kind == FILE and not os.path.exists(self._file_path(each)):
                missing.setdefault((each.content, each.size), {})[self._file_path(each)] = each.mode
        for (_, data), modes in zip(self._blobs.get(missing), missing.values(), strict=True):
            for path, mode in modes.items():
                with open(f"{path}.new", "wb") as file:
                    file.write(data)
                    os.fchmod(file.fileno(), mode & 0o777 | 0o400)
                os.utime(file.name, (_FILE_TIME, _FILE_TIME))
                os.rename(file.name, path)


def clean_cache(directory: str, budget: int) -> None:
    """Remove the least recently used trees until the rest fits the budget, and the files that no tree has any more."""
    files, trees = f"{directory}/files", f"{directory}/trees"
    if not os.path.isdir(trees):
        return

    def retry_when_writable(remove: Callable[[str], object], path: str, _error: object) -> None:
        # The directory around it can't be written.
        os.chmod(os.path.dirname(path), 0o700)
        remove(path)

    with FileLock(f"{directory}/lock"):
        oldest_first = sorted(os.scandir(trees), key=lambda each: each.stat().st_mtime)
        for tree in oldest_first:
            with os.scandir(files) as entries:
                used = sum(each.stat().st_size for each in entries)
            if used <= budget or time.time() - os.stat(tree).st_mtime < _RECENT_S:
                return
            shutil.rmtree(tree.path, onerror=retry_when_writable)
            for each in list(os.scandir(files)):
                if each.stat().st_nlink == 1:
                    os.unlink(each.path)


def work(url: str, *, store: str = "", directory: str = "", name: str = DEFAULT_QUEUE, burst: bool = False) -> int:
    """Work until somebody ends the worker; with `burst`, until no job is left."""
    connection = connect(url, _log)
    directory = directory or f"{os.path.dirname(places().cache)}/fumehood-worker"
    policy = policy_for(places(), ())
    if not policy.sign.signers and not policy.fleet.unsigned:
        raise BadRequest(
            "this worker knows nobody who may send it jobs",
            hint="sign.signers of the configuration names a file of allowed signers (docs/fleet.md)",
        )
    slot, lock = _take_slot(directory)
    for each in _PRELOADED:
        import_module(f"fumehood.service.{each}")
    _remove_old_states(directory, slot)
    os.environ["XDG_STATE_HOME"] = f"{directory}/{slot}-{os.getpid()}"
    _log("working; Ctrl-C ends it after the job at hand")
    with lock:
        while True:
            try:
                connection.ping()
                runner = JobRunner(connection, store, directory, policy)
                worker = FleetWorker([open_queue(name, connection)], connection, runner)
                worker.work(burst=burst, logging_level="WARNING")
                if worker.is_stopping or burst:
                    return 0
            except RedisError as error:
                if is_permanent(error):
                    raise redis_unavailable(error) from error
                _log(f"{redis_unavailable(error).message}; trying again")
            time.sleep(1)


def _log(message: str) -> None:
    print(f"fumehood: {message}", file=sys.stderr, flush=True)  # noqa: T201


def _take_slot(directory: str) -> tuple[str, Lock]:
    """Return a name that no other worker of this directory has, and the lock on it."""
    os.makedirs(directory, 0o700, exist_ok=True)
    for number in count(1):
        name = f"worker-{number}"
        lock = Lock(os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            return name, lock.take(wait=False)
        except BlockingIOError:
            lock.close()
    raise AssertionError("there is always another number")


def _remove_old_states(directory: str, slot: str) -> None:
    """Remove the records that earlier workers kept under this name."""
    with Closing(open_top(directory)) as top:
        for name in os.listdir(directory):
            if name.startswith(f"{slot}-"):
                with suppress(OSError):  # a sandbox of that worker is just ending
                    remove_tree(top, name)
