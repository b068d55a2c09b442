"""Kill workers and Redis at random while jobs are done, and count how they end: kills.py --jobs 200 --workers 4.

Each job must end once in the sender's record, with its own output and its own change. How long the job of a killed
worker waited until another began it is measured; with `--only-workers`, no Redis that is away adds to that. The figures
go to docs/fleet.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

from machines import Machines, packages  # noqa: E402 - where it lies is said above


class TakingUp:
    """How long each job that a killed worker had at hand waited until another began it."""

    def __init__(self, url: str) -> None:
        from redis import Redis

        self._redis: Any = Redis.from_url(url, decode_responses=True)
        self._waiting: dict[str, float] = {}
        self.seconds: list[float] = []

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker, and note the job that it had and has no more."""
        at_hand = ""
        for key in self._redis.smembers("rq:workers"):
            pid, job = self._redis.hmget(key, "pid", "current_job")
            at_hand = job or "" if pid == str(worker.pid) else at_hand
        now = time.time()
        worker.kill()
        worker.wait()
        if at_hand and self._redis.hget(f"rq:job:{at_hand}", "status") == "started":
            self._waiting.setdefault(at_hand, now)

    def look(self) -> None:
        """Take down the jobs that were begun again since."""
        for job, since in list(self._waiting.items()):
            text = self._redis.hget(f"rq:job:{job}", "started_at")
            began = datetime.fromisoformat(text).timestamp() if text else 0
            if began > since:
                self.seconds.append(began - since)
                del self._waiting[job]


def story(
    directory: Path, python: Path, count: int, workers: int, every_s: float, seed: int, *, only_workers: bool = False,
    sleep_s: int = 0,
) -> dict[str, object]:  # fmt: skip
    """Do jobs while things are killed; returns what became of them."""
    (site,) = python.glob("lib/python*/site-packages")
    if str(site) not in sys.path:
        sys.path.append(str(site))
    chance = random.Random(seed)
    project = directory / "project"
    project.mkdir()
    (project / "log").write_text("begin\n")
    (project / "tasks").write_text("".join(f"{number}\n" for number in range(count)))
    killed: Counter[str] = Counter()
    is_over = threading.Event()
    with Machines(directory, python) as machines:
        for _ in range(workers):
            machines.start_worker()
        taking_up = TakingUp(machines.url)
        kinds = ["worker"] if only_workers else ["worker", "horse", "worker", "redis"]

        def kill() -> None:
            while not is_over.wait(chance.uniform(0.5, 1.5) * every_s):
                taking_up.look()
                what = chance.choice(kinds)
                killed[what] += 1
                if what == "redis":
                    machines.kill_redis()
                    is_over.wait(chance.uniform(0, 4))
                    machines.start_redis()
                    continue
                number = chance.randrange(workers)
                worker = machines.workers[number]
                if what == "horse":
                    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
                    for child in children.read_text().split() if children.exists() else ():
                        os.kill(int(child), 9)
                    continue
                taking_up.kill(worker)
                machines.workers[number] = machines.start_worker()
                machines.workers.pop()

        killer = threading.Thread(target=kill)
        killer.start()
        began = time.monotonic()
        line = f"sleep {sleep_s}.$(( {{}} % 10 )); echo {{}} >> log; echo out {{}}"
        words = ("fleet", "map", "--json", "--from", "tasks", "--", line)
        try:
            done = machines.send(*words, project=project, timeout_s=3000)
        finally:
            is_over.set()
            killer.join()
        took = time.monotonic() - began
        taking_up.look()
        log = json.loads(machines.send("log", "--json", "-n", str(10 * count), project=project).stdout)["runs"]
        drafts = json.loads(machines.send("draft", "list", "--json", project=project).stdout)["drafts"]
        logs = machines.logs()
    if not done.stdout:
        return {"error": done.stderr[-2000:], "killed": dict(killed), "logs": logs[-3000:]}
    runs = json.loads(done.stdout)["runs"]
    right = sum(
        run["state"] == "held" and run["output"] == f"out {run['item']}\n"
        and [each["path"] for each in run["changes"]] == ["log"] for run in runs
    )  # fmt: skip
    wrong = [[run["item"], run["state"], run["reason"], run["output"][:100]] for run in runs if run["state"] != "held"]
    return {
        "jobs": count, "reports": len(runs), "right": right, "recorded": len({run["command"] for run in log}),
        "twice": sum(times > 1 for times in Counter(run["command"] for run in log).values()),
        "drafts": len(drafts), "killed": dict(killed), "seconds": round(took, 1),
        "taken_up": len(taking_up.seconds), "longest_until_taken_up_s": round(max(taking_up.seconds, default=0), 1),
        "until_taken_up_s": " ".join(f"{each:.1f}" for each in sorted(taking_up.seconds)), "wrong": wrong[:5],
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two kills, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only-workers", action="store_true", help="kill nothing but workers")
    parser.add_argument("--sleep", type=int, default=0, help="seconds that a job takes besides")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as place:
        outcome = story(
            Path(place), packages("fleet"), options.jobs, options.workers, options.every, options.seed,
            only_workers=options.only_workers, sleep_s=options.sleep,
        )  # fmt: skip
    print(json.dumps(outcome, indent=2))
    sys.exit(0 if outcome.get("right") == outcome.get("recorded") == outcome.get("jobs") else 1)
