"""Drafts: what the first and the two hundredth run cost, a frozen one, and the best of eight."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from measures import FILES, Figure, project_in, seconds

RUNS = 200
REWRITTEN = 50  # files
SOME = 20  # runs of which the median is taken
CANDIDATES = 8
WAITS = "sleep 1; echo $FUMEHOOD_CANDIDATE > made"  # as an agent does, for a model


def long_line(project: Path) -> Iterator[Figure]:
    """Time the last runs of a long draft against its first; all do the same, so the first of all makes the files."""
    from fumehood import Sandbox

    clock: list[float] = []
    processor: list[float] = []  # our own process's: a busy machine disturbs it less
    with Sandbox(project) as sandbox:
        draft = sandbox.draft("long")
        draft.run(f"for n in $(seq 0 {REWRITTEN - 1}); do echo first > made-$n; done")
        for number in range(RUNS):
            before = time.process_time()
            clock.append(seconds(lambda n=number: draft.run(f"echo {n} > made-{n % REWRITTEN}")))  # type: ignore[misc]
            processor.append(time.process_time() - before)
    for how, taken in (("", clock), (", processor time", processor)):
        first, last = taken[1 : SOME + 1], taken[-SOME:]
        yield Figure(
            f"run {RUNS} of a draft, a file written in each{how}", statistics.median(last) * 1000, "ms",
            "its first runs", statistics.median(first) * 1000, 1.5,
        )  # fmt: skip


def drafts(room: Path) -> Iterator[Figure]:
    """Time runs in a draft against runs in the project, and all candidates at once against one after the other."""
    from fumehood import Sandbox

    project = project_in(room, FILES)
    with Sandbox(project) as sandbox:
        plain = [seconds(lambda: sandbox.run("true")) for _ in range(SOME)][1:]
        begun = [seconds(lambda n=n: sandbox.draft(f"begun-{n}").run("true")) for n in range(SOME)]  # type: ignore[misc]
        yield Figure(
            f"a new draft of {FILES:,} files and its first run", statistics.median(begun) * 1000, "ms",
            "a run in the project", statistics.median(plain) * 1000, 3.0,
        )  # fmt: skip
    yield from long_line(project)
    with Sandbox(project) as sandbox:
        copying = seconds(lambda: subprocess.run(["cp", "-a", project, room / "copy"], check=True))
        yield Figure(
            f"a frozen draft of {FILES:,} files", seconds(lambda: sandbox.draft("frozen", frozen=True)), "s",
            "cp -a", copying, 3.0,
        )  # fmt: skip
    (room / "small").mkdir()
    with Sandbox(project_in(room / "small")) as sandbox:
        in_a_row = seconds(lambda: [sandbox.draft(f"row-{n}").run(WAITS) for n in range(CANDIDATES)])
        at_once = seconds(lambda: sandbox.best(WAITS, CANDIDATES, jobs=CANDIDATES // 2, check="true"))
        yield Figure(
            f"the best of {CANDIDATES} that wait a second, {CANDIDATES // 2} at once, checked", at_once, "s",
            "eight in a row", in_a_row, 0.6,
        )  # fmt: skip
