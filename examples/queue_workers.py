"""A platform's workers: jobs from a queue (RQ on Redis), each in its tenant's own workspace.

queue_workers.py REDIS_URL WORKERS      work until nothing is left
"""

import os
import sys
from pathlib import Path

from redis import Redis
from rq import Queue, Retry, Worker

import fumehood

QUEUE = "commands"


def credentials(tenant: str) -> dict[str, str]:
    """Look up a tenant's secrets, when a command needs them: they are written nowhere by Fumehood."""
    vault = Path(os.environ["PLATFORM_VAULT"])
    return {"API_TOKEN": (vault / tenant).read_text().strip()}


def enqueue(queue: Queue, tenant: str, command: str) -> str:
    """Put a command of a tenant into the queue; returns the job's id."""
    again = Retry(max=3)  # a worker that was killed leaves the job to another
    return queue.enqueue(run, tenant, command, retry=again, job_timeout=300, result_ttl=3600).id


def run(tenant: str, command: str) -> dict[str, object]:
    """Run a command in its tenant's workspace: the work of one job."""
    with fumehood.workspaces.open(tenant, root="host", variables=lambda: credentials(tenant)) as sandbox:
        # A worker may be killed: what its command wrote so far is thrown away, and the job is run again.
        done = sandbox.run(command, timeout=240, apply="whole")
        return {"state": done.state, "exit_code": done.exit_code, "text": done.for_model(), "number": done.number}


def work(url: str, workers: int) -> int:
    """Fork some workers, and wait until the queue is empty."""
    children = []
    for _ in range(workers):
        child = os.fork()
        if child == 0:
            connection = Redis.from_url(url)
            Worker([Queue(QUEUE, connection=connection)], connection=connection).work(burst=True, logging_level="ERROR")
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(work(sys.argv[1], int(sys.argv[2])))
