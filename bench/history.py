"""The cost of a long history: commands after 10,000 runs against the same after 100, and a run of 200,000 changes."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from measures import REPOSITORY, Figure, project_in

FEW, MANY = 100, 10_000
CHANGES = 200_000
_FILES = 10  # that the runs change in turn
_TIMES = 9
_MAKE_CHANGES = (
    "import os\n"
    f"for n in range({CHANGES}):\n"
    "    n % 500 or os.mkdir(f'new{n // 500}')\n"
    "    open(f'new{n // 500}/{n}', 'w').write('x\\n')"
)


def history(room: Path) -> Iterator[Figure]:
    """Measure commands over a long history: they must not take longer than over a short one."""
    long, short = _project_with_runs(room / "long", MANY), _project_with_runs(room / "short", FEW)
    lines = {"files": 1.5, "clean": 1.5, "log": 1.1, "log --json": 1.1, "show": 1.1, "undo": 1.1, "redo": 1.1}
    durations: dict[tuple[str, Path], list[float]] = {
        (line, project): [] for line in lines for project in (long, short)
    }
    for _ in range(_TIMES + 1):
        for (line, project), own_durations in durations.items():
            _, usage = _run_fumehood(line, project)
            own_durations.append(_processor_seconds(usage) * 1000)
    for line, limit in lines.items():
        # Without the first time, which also lists and measures what ran since the last such command.
        long_ms, short_ms = (statistics.median(durations[line, project][1:]) for project in (long, short))
        yield Figure(f"{line}, after {MANY:,} runs, processor", long_ms, "ms", f"after {FEW}", short_ms, limit)
    yield from _space(room / "space")


def _processor_seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def _run_fumehood(line: str, project: Path) -> tuple[int, resource.struct_rusage]:
    """Run a command of Fumehood in a project, whose parent is the home; return the bytes printed, and its usage."""
    argv = [str(REPOSITORY / "fumehood"), *line.split()]
    environment = {**os.environ, "HOME": str(project.parent)}
    printed = 0
    process = subprocess.Popen(argv, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout as output:
        while piece := output.read(1 << 20):
            printed += len(piece)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return printed, usage


def _in_home(home: Path, code: str) -> None:
    """Run Python code with another home."""
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY / 'src')!r}); from fumehood import Sandbox\n{code}"
    environment = {**os.environ, "HOME": str(home)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)


def _project_with_runs(home: Path, runs: int) -> Path:
    """Make a project with so many runs: a few real ones, and copies of their records and layers."""
    project = project_in(home, _FILES)
    line = "sandbox.run(f'echo x >> d0/f{n}')"
    _in_home(home, f"sandbox = Sandbox({str(project)!r})\nfor n in range({_FILES}): {line}")
    state = home / ".local/state/fumehood"
    _copy_runs(state, runs - _FILES - 1)
    _in_home(home, f"n = 0; sandbox = Sandbox({str(project)!r}); {line}")
    return project


def _copy_runs(state: Path, count: int) -> None:
    """Add so many runs, by copying the existing ones in order."""
    database = sqlite3.connect(state / "fumehood.db")
    columns = {}
    for table in ("runs", "changes", "events"):
        names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        columns[table] = names
    templates = database.execute("SELECT number, id FROM runs ORDER BY number").fetchall()
    (last,) = database.execute("SELECT max(number) FROM runs").fetchone()
    for n in range(count):
        number, run = templates[n % len(templates)]
        copy = f"{run[:-6]}{n:06d}"
        new_number = last + 1 + n
        new = {
            "number": new_number, "project_number": new_number, "id": copy, "layer": copy, "run": new_number, "n": None,
        }  # fmt: skip
        for table, where in (("runs", "number"), ("changes", "run"), ("events", "run")):
            values = dict(new)
            if table == "events":
                values["run"] = copy
            else:
                values.pop("n")
            chosen = ", ".join("?" if name in values else name for name in columns[table])
            database.execute(
                f"INSERT INTO {table} SELECT {chosen} FROM {table} WHERE {where} = ?",
                (*(values[name] for name in columns[table] if name in values), run if table == "events" else number),
            )
        shutil.copytree(state / "runs" / run, state / "runs" / copy, symlinks=True)
    database.commit()
    database.close()


def _space(home: Path) -> Iterator[Figure]:
    """Measure the disk space that each run takes that changes one file."""
    project = project_in(home, _FILES)
    line = "sandbox.run('echo x >> d0/f0')"
    _in_home(home, f"sandbox = Sandbox({str(project)!r}); {line}")
    state = home / ".local/state/fumehood"
    before = _disk_usage(state)
    _in_home(home, f"sandbox = Sandbox({str(project)!r})\nfor _ in range(100): {line}")
    entries, size = (now - was for now, was in zip(_disk_usage(state), before, strict=True))
    yield Figure("entries on disk for each run that changes a file", entries / 100, "", limit=7.0)
    yield Figure("room on disk for each run that changes a file", size / 100 / 1024, "KiB", limit=36.0)


def _disk_usage(state: Path) -> tuple[int, int]:
    """Return the number of entries in our state, and the bytes they take."""
    sizes = {info.st_ino: info.st_blocks * 512 for path in state.rglob("*") for info in [path.lstat()]}
    return len(sizes), sum(sizes.values())


def many(room: Path) -> Iterator[Figure]:
    """Measure the processor time and memory of commands that show one run with very many changes."""
    project = project_in(room, _FILES)
    _, run_usage = _run_fumehood(f"run -- python3 {_write_script(room)}", project)
    for line, memory in {
        "show": 200, "show --json": 300, "diff": 200, "log --json": 60, "undo": 400, "redo": 500,
    }.items():  # fmt: skip
        printed, usage = _run_fumehood(line, project)
        yield Figure(
            f"{line}, of {CHANGES:,} changes, processor", _processor_seconds(usage), "s",
            "the run itself", _processor_seconds(run_usage),
        )  # fmt: skip
        yield Figure(f"{line}, of {CHANGES:,} changes, peak memory", usage.ru_maxrss / 1024, "MiB", limit=memory)
        if line == "log --json":
            yield Figure(f"{line}, of {CHANGES:,} changes, printed", printed / 1024, "KiB", limit=10)


def _write_script(room: Path) -> str:
    """Write the program that makes the changes into the project, and return its name."""
    path = room / f"project-{_FILES}" / "make.py"
    path.write_text(_MAKE_CHANGES)
    return path.name
