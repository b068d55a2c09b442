"""Interrupt every act at every system call that touches a file: `sh tools/python tests/faults/sweep.py [WORD …]`.

Words choose acts (run, apply, part, force, discard, undo, redo, recover, begin, edit, merge, draft), "one" or "two"
file systems, and Ctrl-C (INT) or errors (ENOSPC, EMFILE, …) in place of the kill; "1/4" takes every fourth point.
Prints what failed, and how many points of each were tried. With "count", none is tried: it prints how many there are,
and of what effect.
"""

import errno
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from faulty import ACTS, Point, points, tried
from fumehood.linux.probe import host


def attempt(point: Point, after: dict[str, list[object]], cache: Path) -> tuple[Point, str, str]:
    """Try one point; returns it, what the project became, and what was wrong."""
    try:
        became, is_reached = tried(point, after, cache)
        return point, became if is_reached else "not reached", ""
    except Exception as error:  # noqa: BLE001 - reported with its point, and the sweep goes on
        return point, "wrong", f"{type(error).__name__}: {error}"


def swept(
    act: str, *, staged: bool, answers: list[str], step: int, cache: Path, pool: ProcessPoolExecutor
) -> Counter[str]:
    found, after = points(act, staged=staged, cache=cache)
    every = [replace(point, answer=answer) for answer in answers for point in found[::step]]
    results: Counter[str] = Counter()
    for point, became, wrong in pool.map(attempt, every, [after] * len(every), [cache] * len(every)):
        results[became] += 1
        if wrong:
            print(f"{point}: {wrong[:1500]}", flush=True)
    return results


def counted(act: str, *, staged: bool, cache: Path) -> Counter[str]:
    return Counter(point.effect for point in points(act, staged=staged, cache=cache)[0])


def main(words: list[str]) -> int:
    acts = [act for act in ACTS if act in words] or list(ACTS)
    places = [word == "two" for word in ("one", "two") if word in words] or [False, True]
    print(f"on {os.uname().machine}, as user {os.geteuid()}", flush=True)
    answers = [f"error={word}" for word in words if hasattr(errno, word)]
    answers += ["signal=INT"] if "INT" in words else []
    answers = answers or ["signal=KILL"]
    step = max([1, *(int(word[2:]) for word in words if word.startswith("1/"))])
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as cache, ProcessPoolExecutor(os.cpu_count()) as pool:
        host(f"{cache}/fumehood", cache)  # no part of any act
        for act in acts:
            for staged in places:
                if "count" in words:
                    results = counted(act, staged=staged, cache=Path(cache))
                else:
                    results = swept(act, staged=staged, answers=answers, step=step, cache=Path(cache), pool=pool)
                total += results
                details = ", ".join(f"{count} {each}" for each, count in sorted(results.items()))
                where = "two file systems" if staged else "one file system"
                print(f"{act}, {where}: {results.total()} points: {details}", flush=True)
    print(f"{total.total()} points, {total['wrong']} wrong")
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
