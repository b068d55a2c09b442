"""Kill workers and Redis at random while jobs are done, and count how they end: kills.py --jobs 200 --workers 4.

Each job must end once in the sender's record, with its own output and its own change. The figures go to docs/fleet.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

from machines import Machines, packages  # noqa: E402 - where it lies is said above


def story(directory: Path, python: Path, count: int, workers: int, every_s: float, seed: int) -> dict[str, object]:
    """Do jobs while things are killed; returns what became of them."""
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

        def kill() -> None:
            while not is_over.wait(chance.uniform(0.5, 1.5) * every_s):
                what = chance.choice(["worker", "horse", "worker", "redis"])
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
                worker.kill()
                worker.wait()
                machines.workers[number] = machines.start_worker()
                machines.workers.pop()

        killer = threading.Thread(target=kill)
        killer.start()
        began = time.monotonic()
        line = "sleep 0.$(( {} % 10 )); echo {} >> log; echo out {}"
        words = ("fleet", "map", "--json", "--from", "tasks", "--", line)
        try:
            done = machines.send(*words, project=project, timeout_s=3000)
        finally:
            is_over.set()
            killer.join()
        took = time.monotonic() - began
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
        "drafts": len(drafts), "killed": dict(killed), "seconds": round(took, 1), "wrong": wrong[:5],
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two kills, about")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as place:
        outcome = story(Path(place), packages("fleet"), options.jobs, options.workers, options.every, options.seed)
    print(json.dumps(outcome, indent=2))
    sys.exit(0 if outcome.get("right") == outcome.get("recorded") == outcome.get("jobs") else 1)
