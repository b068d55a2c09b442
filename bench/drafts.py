"""The cost of drafts: of the first and the two hundredth run, of a frozen draft, and of the best of eight."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from measures import FILES, Figure, project_in, seconds

RUNS = 200
REWRITTEN = 50  # files
SAMPLES = 20  # runs of which the median is taken
CANDIDATES = 8
WAITING_COMMAND = "sleep 1; echo $FUMEHOOD_CANDIDATE > made"  # as an agent waits for a model


def long_draft(project: Path) -> Iterator[Figure]:
    """Measure the last runs of a long draft against its first; an earlier run has made the files."""
    from fumehood import Sandbox

    clock: list[float] = []
    processor: list[float] = []  # time of our own process, which other load disturbs less
    with Sandbox(project) as sandbox:
        draft = sandbox.draft("long")
        draft.run(f"for n in $(seq 0 {REWRITTEN - 1}); do echo first > made-$n; done")
        for number in range(RUNS):
            before = time.process_time()
            clock.append(seconds(lambda n=number: draft.run(f"echo {n} > made-{n % REWRITTEN}")))  # type: ignore[misc]
            processor.append(time.process_time() - before)
    for suffix, durations in (("", clock), (", processor time", processor)):
        first, last = durations[1 : SAMPLES + 1], durations[-SAMPLES:]
        yield Figure(
            f"run {RUNS} of a draft, a file written in each{suffix}", statistics.median(last) * 1000, "ms",
            "its first runs", statistics.median(first) * 1000, 1.5,
        )  # fmt: skip


def drafts(room: Path) -> Iterator[Figure]:
    """Measure runs in a draft against runs in the project, and candidates at once against one after the other."""
    from fumehood import Sandbox

    project = project_in(room, FILES)
    with Sandbox(project) as sandbox:
        plain = [seconds(lambda: sandbox.run("true")) for _ in range(SAMPLES)][1:]
        first_runs = [seconds(lambda n=n: sandbox.draft(f"begun-{n}").run("true")) for n in range(SAMPLES)]  # type: ignore[misc]
        yield Figure(
            f"a new draft of {FILES:,} files and its first run", statistics.median(first_runs) * 1000, "ms",
            "a run in the project", statistics.median(plain) * 1000, 3.0,
        )  # fmt: skip
    yield from long_draft(project)
    with Sandbox(project) as sandbox:
        copy_s = seconds(lambda: subprocess.run(["cp", "-a", project, room / "copy"], check=True))
        yield Figure(
            f"a frozen draft of {FILES:,} files", seconds(lambda: sandbox.draft("frozen", frozen=True)), "s",
            "cp -a", copy_s, 3.0,
        )  # fmt: skip
    (room / "small").mkdir()
    with Sandbox(project_in(room / "small")) as sandbox:
        in_a_row_s = seconds(lambda: [sandbox.draft(f"row-{n}").run(WAITING_COMMAND) for n in range(CANDIDATES)])
        best_s = seconds(lambda: sandbox.best(WAITING_COMMAND, CANDIDATES, jobs=CANDIDATES // 2, check="true"))
        yield Figure(
            f"the best of {CANDIDATES} that wait a second, {CANDIDATES // 2} at once, checked", best_s, "s",
            "eight in a row", in_a_row_s, 0.6,
        )  # fmt: skip
