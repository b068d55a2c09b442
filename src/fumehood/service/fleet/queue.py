"""The queue of jobs, RQ on Redis, and the connection to Redis, which may be away for a while.

RQ is used as it is, with two differences: it looks up no name that comes from Redis, and it soon finds the job of a
worker that was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from ssl import SSLCertVerificationError
from typing import Any

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from rq import Queue
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job as RqJob
from rq.serializers import JSONSerializer
from rq.utils import now

from fumehood.core.report import printable
from fumehood.errors import BadRequest, Unavailable

FUNCTION = "fumehood.job"  # the only function that a worker accepts; no module has this name
DEFAULT_QUEUE = "fumehood"
KEPT_S = 7 * 86400  # how long results, outputs and a project's files are kept in Redis

# The job of a killed worker waits for an idle one until three things have happened: the killed worker counts as dead
# (DEAD_AFTER_S), somebody looks for lost jobs (SEARCH_INTERVAL_S after the last search, and IDLE_WAIT_S until the next
# worker is awake), and the machine has started the job (2 s on a slow one). That is 10 s. If the worker is killed while
# it takes a job, one more search is needed; if another is killed while it searches, SEARCH_LOCK_S. That is 15 s.
HEARTBEAT_S = 1  # between two signs of life of a worker that runs a job
DEAD_AFTER_S = 6  # a worker without a sign of life for so long counts as dead
IDLE_WAIT_S = 1  # how long an idle worker waits for a job before it may look for lost ones
SEARCH_INTERVAL_S = 1  # between two searches for jobs of dead workers, by all workers together
SEARCH_LOCK_S = 2  # how long a search keeps the others away: all at once would find the same job
MAX_OUTAGE_S = 60  # how long to wait for a Redis that does not answer
_ENDED_STATES = frozenset({b"finished", b"failed", b"stopped", b"canceled"})
_FILE_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")  # redis-py's names for files in an address


class QueuedJob(RqJob):
    """A job as RQ keeps it, without the parts in which RQ would look up a name or send something to an address."""

    success_callback = failure_callback = stopped_callback = None
    run_function: Callable[[], Any] | None = None  # set by our worker once it has checked that this is a job of ours

    def _execute(self) -> Any:
        assert self.run_function is not None, "only our own worker runs jobs"
        return self.run_function()

    def send_webhooks(self, *_arguments: Any, **_options: Any) -> None:
        """Send nothing: whoever can write to Redis chooses the addresses."""


class _TakenJobs(IntermediateQueue):
    """Where a job is from the queue until its worker has begun it."""

    def should_be_cleaned_up(self, job_id: str) -> bool:
        has_ended = self.connection.hget(RqJob.key_for(job_id), "status") in _ENDED_STATES
        if has_ended or self.connection.lpos(self.queue_key, job_id) is not None:
            # Another worker has taken the job up: the first was killed before it could remove the job from here.
            self.remove(job_id)
            return False
        first_seen = self.get_first_seen(job_id)
        return first_seen is not None and now() - first_seen > timedelta(seconds=DEAD_AFTER_S)

    def remove(self, job_id: str) -> None:
        super().remove(job_id)
        self.connection.delete(self.get_first_seen_key(job_id))  # it may be lost again


class FleetQueue(Queue):
    """A queue whose lost jobs are soon found, even if a worker was killed while it looked for some."""

    @property
    def intermediate_queue(self) -> IntermediateQueue:
        """Where a job is from the queue until its worker has begun it."""
        return _TakenJobs(self.key, connection=self.connection)

    def acquire_maintenance_lock(self) -> bool:
        """Return True if this worker may look for lost jobs: no other does so, or has just done so."""
        return bool(self.connection.set(self.registry_cleaning_key, 1, nx=True, ex=SEARCH_LOCK_S))

    def release_maintenance_lock(self) -> None:
        """Keep all workers from searching for a while: of a thousand idle workers, one searches in each second."""
        self.connection.expire(self.registry_cleaning_key, SEARCH_INTERVAL_S)


def open_queue(name: str, connection: Redis) -> Queue:
    """Return a queue of jobs, whose contents are JSON."""
    return FleetQueue(name, connection=connection, job_class=QueuedJob, serializer=JSONSerializer)


def output_key(job: str) -> str:
    """Return the key of the stream that holds what a job prints."""
    return f"fumehood:output:{job}"


# ---- The connection to Redis.


class _RetryUntilDeadline(Retry):
    """Repeats a request for a while, by the clock: on a network that stalls, one request alone may take long.

    `on_wait` gets the reason in words, once for each request that fails a second time.
    """

    def __init__(self, on_wait: Callable[[str], object]) -> None:
        super().__init__(ExponentialBackoff(cap=1, base=0.05), -1)
        self._on_wait = on_wait

    def call_with_retry(
        self, do: Callable[[], Any], fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None, with_failure_count: bool = False,
    ) -> Any:  # fmt: skip
        """Call a function until it succeeds, the time is over, or the error is permanent."""
        deadline = time.monotonic() + MAX_OUTAGE_S
        failures = count(1)

        def can_retry(error: Exception) -> bool:
            is_over = time.monotonic() > deadline or is_permanent(error)
            retries = not is_over and (is_retryable is None or is_retryable(error))
            if retries and next(failures) == 2 and isinstance(error, RedisError):
                reason = redis_unavailable(error).message.rstrip(".")
                self._on_wait(f"{reason}; waiting for it, up to {MAX_OUTAGE_S} seconds")
            return retries

        return super().call_with_retry(do, fail, can_retry, with_failure_count)


def connect(url: str, on_wait: Callable[[str], object]) -> Redis:
    """Return a connection to a Redis that may go away for a while: requests wait, and are sent again.

    `on_wait` is called with the reason, in words for the person who waits.
    """
    try:
        connection = Redis.from_url(
            url, retry=_RetryUntilDeadline(on_wait),
            retry_on_error=[RedisConnectionError, RedisTimeoutError, BusyLoadingError], socket_timeout=20,
            socket_connect_timeout=5, health_check_interval=10,
        )  # fmt: skip
        pool = connection.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # fails now if the address has an unknown option
    except (ValueError, TypeError, RedisError) as error:
        # Not in the library's words: they may contain a part of the password.
        raise BadRequest(
            "that is not the address of a Redis",
            hint="rediss://:PASSWORD@HOST:6379/0?ssl_ca_certs=FILE, with %2F for a slash in the password, and so on",
        ) from error
    for name in _FILE_OPTIONS:
        path = pool.connection_kwargs.get(name)
        if path is not None and not os.path.isfile(path):
            raise BadRequest(f"{name} of the address of Redis is not a file: {printable(path)}", hint="check the path")
    return connection


def is_permanent(error: BaseException) -> bool:
    """Return True if the same request would be refused again: Redis rejects our password, or we its certificate."""
    return isinstance(error, AuthenticationError) or isinstance(error.__context__, SSLCertVerificationError)


def redis_unavailable(error: RedisError) -> Unavailable:
    """Return the error that says why Redis can't be reached, without the address, which may contain a password."""
    if isinstance(error, AuthenticationError):
        return Unavailable(
            f"Redis does not let us in: {printable(str(error))}",
            hint="the password is in the address: FUMEHOOD_REDIS=rediss://:PASSWORD@HOST",
        )
    if is_permanent(error):
        return Unavailable(
            f"the certificate of Redis is not trusted: {printable(str(error))}",
            hint="the address names the certificate of the authority that signed it: rediss://…?ssl_ca_certs=FILE",
        )
    return Unavailable(f"Redis can't be reached: {printable(str(error))}", hint="check --redis, and that it runs")


@contextmanager
def redis_errors() -> Iterator[None]:
    """Raise our own error if Redis can't be reached."""
    try:
        yield
    except RedisError as error:
        raise redis_unavailable(error) from error
