"""What a fleet costs: measures a real one on this machine, and works out from that what 1,000 workers could do.

`make fleet` runs it, in the environment that has its packages. Figures are told as they are here; the ratios to a local
run in the same minute are what can be compared.
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


def median_s(act: Callable[[], object], times: int) -> float:
    """The median of some calls, in seconds."""
    return median_ms(act, times=times)[0] / 1000


def fill(project: Path) -> None:
    """Make a project of many files, half of each compressible."""
    files, size = SIZES
    for number in range(files):
        place = project / f"d{number % 50}"
        place.mkdir(exist_ok=True)
        (place / f"{number}").write_bytes(os.urandom(size // 2) + bytes(size // 2))


def measure_one(machines: Machines, project: Path, sandbox: Sandbox) -> dict[str, float]:
    """Send jobs one after the other to one worker; returns the figures."""
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
    """Have so many workers do jobs that wait for them; returns the figures."""
    connection = Redis(unix_socket_path=machines.url[7:])
    sender = sandbox.fleet(machines.url)
    while len(machines.workers) < workers:
        machines.start_worker()
    sender.map(["true"] * workers * 2)  # each has the base then
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
    taken = time.perf_counter()
    return {
        f"rate_{workers}": jobs / (done - began), "send_s": (sent - began) / jobs, "take_s": (taken - done) / jobs,
        "calls": calls / jobs, "redis_s": busy / jobs / 1e6,
    }  # fmt: skip


def simulated(workers: int, count: int, work_s: float, figures: dict[str, float], base_s: float) -> dict[str, float]:
    """Play jobs through one sender, one Redis and many workers, each of which is busy with one thing at a time."""
    sends, redis, takes = figures["send_s"], figures["redis_s"], figures["take_s"]
    own = max(1 / figures["rate_1"] - redis, 0.001)  # what a job costs its worker besides the command
    free = [0.0] * workers
    is_new = [True] * workers
    heap = [(0.0, number) for number in range(workers)]
    heapq.heapify(heap)
    redis_free = sender_free = 0.0
    ended = []
    store_free = 0.0
    for job in range(count):
        sent = (job + 1) * sends
        at, number = heapq.heappop(heap)
        start = max(at, sent, redis_free)
        redis_free = start + redis
        if is_new[number]:  # the base comes first, from a store that serves one after the other
            store_free = max(store_free, start) + base_s
            start, is_new[number] = store_free, False
        free[number] = start + own + work_s
        heapq.heappush(heap, (free[number], number))
        ended.append(free[number])
    for at in sorted(ended):
        sender_free = max(sender_free, at) + takes
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
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as place:
        directory, project = Path(place, "fleet"), Path(place, "project")
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
    # The same machine when nobody else uses it: a busy one slows all of it alike.
    quiet = {name: value * options.quiet_ms / 1000 / figures["local_s"] if name.endswith("_s") else value
             for name, value in figures.items()}  # fmt: skip
    quiet["rate_1"] = figures["rate_1"] * figures["local_s"] * 1000 / options.quiet_ms
    for name, some in (("as measured", figures), (f"with {options.quiet_ms:g} ms for a local run", quiet)):
        print(name)
        for workers in (4, 100, 1000):
            for work_s in (10.0, 120.0, 1200.0):
                # A base of 100 MB, from a store that sends a gigabyte in a second.
                print(simulated(workers, workers * 20, work_s, some, 0.1))


if __name__ == "__main__":
    main()
