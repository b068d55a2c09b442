"""The cost of a fleet: measures a real one on this machine, and simulates 1,000 workers by these figures.

`make fleet` runs this, in the environment that has its packages. To compare machines, use the ratios to a local run in
the same minute.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measures import REPOSITORY, median_ms

sys.path[:0] = [str(REPOSITORY / place) for place in ("src", "tests", "tests/fleet")]

from machines import Machines, packages  # noqa: E402 - found through the line above

try:
    from redis import Redis
except ModuleNotFoundError:
    python = str(packages("fleet") / "bin/python")
    os.execv(python, [python, *sys.argv])

from fumehood import Sandbox  # noqa: E402

SIZES = (2000, 20_000)  # files of a base, and bytes of each


def median_s(function: Callable[[], object], times: int) -> float:
    """Return the median time of some calls, in seconds."""
    return median_ms(function, times=times)[0] / 1000


def fill(project: Path) -> None:
    """Write many files into a project; half of each is compressible."""
    files, size = SIZES
    for number in range(files):
        directory = project / f"d{number % 50}"
        directory.mkdir(exist_ok=True)
        (directory / f"{number}").write_bytes(os.urandom(size // 2) + bytes(size // 2))


def measure_one(machines: Machines, project: Path, sandbox: Sandbox) -> dict[str, float]:
    """Send jobs one after the other to one worker; return the figures."""
    figures: dict[str, float] = {}
    sandbox.run("true")
    figures["local_s"] = median_s(lambda: sandbox.run("true"), 10)
    sender = sandbox.fleet(machines.url)
    machines.start_worker()
    figures["first_s"] = median_s(lambda: sender.run("true"), 1)
    figures["first_bytes"] = sender.sent
    sender.run("true")
    figures["second_bytes"] = sender.sent - figures["first_bytes"]
    (project / "d0/0").write_text("changed")
    sender.run("true")
    figures["changed_bytes"] = sender.sent - figures["first_bytes"] - figures["second_bytes"]
    figures["survey_s"] = median_s(sender.plan, 3)
    figures["run_s"] = median_s(lambda: sender.run("true", fresh=False), 10)
    figures["change_s"] = median_s(lambda: sender.run("echo x > new", fresh=False), 10)
    return figures


def measure_many(machines: Machines, sandbox: Sandbox, workers: int, jobs: int) -> dict[str, float]:
    """Send jobs to so many workers; return the figures."""
    connection = Redis(unix_socket_path=machines.url[7:])
    sender = sandbox.fleet(machines.url)
    while len(machines.workers) < workers:
        machines.start_worker()
    sender.map(["true"] * workers * 2)  # so that each worker has the base
    before = connection.info("commandstats")
    began = time.perf_counter()
    ids = [sender.send("true", fresh=False) for _ in range(jobs)]
    sent = time.perf_counter()
    while connection.llen("rq:queue:fumehood") + connection.zcard("rq:wip:fumehood"):
        time.sleep(0.01)
    done = time.perf_counter()
    after = connection.info("commandstats")
    calls, busy = (sum(each[name] for each in after.values()) - sum(each[name] for each in before.values())
                   for name in ("calls", "usec"))  # fmt: skip
    list(sender.results(ids))
    recorded = time.perf_counter()
    return {
        f"rate_{workers}": jobs / (done - began), "send_s": (sent - began) / jobs, "take_s": (recorded - done) / jobs,
        "calls": calls / jobs, "redis_s": busy / jobs / 1e6,
    }  # fmt: skip


def simulated(workers: int, count: int, work_s: float, figures: dict[str, float], base_s: float) -> dict[str, float]:
    """Simulate jobs with one sender, one Redis and many workers, each of which does one thing at a time."""
    send_s, redis_s, take_s = figures["send_s"], figures["redis_s"], figures["take_s"]
    overhead_s = max(1 / figures["rate_1"] - redis_s, 0.001)  # a worker's time for a job besides the command
    has_base = [False] * workers
    free_workers = [(0.0, number) for number in range(workers)]  # each with the time when it is free
    redis_free = sender_free = store_free = 0.0  # the times when they are free
    ends = []
    for job in range(count):
        sent = (job + 1) * send_s
        free_at, number = heapq.heappop(free_workers)
        start = max(free_at, sent, redis_free)
        redis_free = start + redis_s
        if not has_base[number]:  # the store serves one worker after the other
            store_free = max(store_free, start) + base_s
            start, has_base[number] = store_free, True
        end = start + overhead_s + work_s
        heapq.heappush(free_workers, (end, number))
        ends.append(end)
    for end in sorted(ends):
        sender_free = max(sender_free, end) + take_s
    ideal = count * work_s / workers
    return {
        "workers": workers, "jobs": count, "work_s": work_s, "seconds": round(sender_free, 1),
        "of_ideal": round(ideal / sender_free, 3),
    }  # fmt: skip


def main() -> None:
    """Measure, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--quiet-ms", type=float, default=20.0, help="what a local run takes on a quiet machine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as room:
        directory, project = Path(room, "fleet"), Path(room, "project")
        for each in (directory, project):
            each.mkdir()
        with Machines(directory, Path(sys.prefix)) as machines:
            os.environ |= machines.environment(machines.home("sender", "sender"))
            fill(project)
            with Sandbox(project) as sandbox:
                figures = measure_one(machines, project, sandbox)
                for workers in (1, 2, 4):
                    figures |= measure_many(machines, sandbox, workers, options.jobs)
    print(json.dumps({name: round(value, 5) for name, value in figures.items()}, indent=2))
    # The figures of the same machine when nobody else uses it: other load slows everything alike.
    quiet = {name: value * options.quiet_ms / 1000 / figures["local_s"] if name.endswith("_s") else value
             for name, value in figures.items()}  # fmt: skip
    quiet["rate_1"] = figures["rate_1"] * figures["local_s"] * 1000 / options.quiet_ms
    for name, chosen_figures in (("as measured", figures), (f"with {options.quiet_ms:g} ms for a local run", quiet)):
        print(name)
        for workers in (4, 100, 1000):
            for work_s in (10.0, 120.0, 1200.0):
                # A base of 100 MB, from a store that sends a gigabyte in a second.
                print(simulated(workers, workers * 20, work_s, chosen_figures, 0.1))


if __name__ == "__main__":
    main()
