"""What a long history costs: each command over 10,000 runs beside the same over 100, and one run of 200,000 changes."""

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
_MAKE = (
    "import os\n"
    f"for n in range({CHANGES}):\n"
    "    n % 500 or os.mkdir(f'new{n // 500}')\n"
    "    open(f'new{n // 500}/{n}', 'w').write('x\\n')"
)


def history(room: Path) -> Iterator[Figure]:
    """Commands over a long history must not take longer than over a short one."""
    long, short = _project(room / "long", MANY), _project(room / "short", FEW)
    lines = {"files": 1.5, "clean": 1.5, "log": 1.1, "log --json": 1.1, "show": 1.1, "undo": 1.1, "redo": 1.1}
    taken: dict[tuple[str, Path], list[float]] = {(line, project): [] for line in lines for project in (long, short)}
    for _ in range(_TIMES + 1):
        for (line, project), mine in taken.items():
            _, used = _looked(line, project)
            mine.append((used.ru_utime + used.ru_stime) * 1000)
    for line, limit in lines.items():
        # Not the first time: what ran since the last one is listed and measured then.
        now, other = (statistics.median(taken[line, project][1:]) for project in (long, short))
        yield Figure(f"{line}, after {MANY:,} runs, processor", now, "ms", f"after {FEW}", other, limit)
    yield from _space(room / "space")


def _looked(line: str, project: Path) -> tuple[int, resource.struct_rusage]:
    """Run a command of ours in a project beside its home; returns the bytes it printed, and what it used."""
    argv = [str(REPOSITORY / "fumehood"), *line.split()]
    environment = {**os.environ, "HOME": str(project.parent)}
    printed = 0
    process = subprocess.Popen(argv, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout as output:
        while piece := output.read(1 << 20):
            printed += len(piece)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return printed, used


def _in_home(home: Path, code: str) -> None:
    """Run Python with a home of its own."""
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY / 'src')!r}); from fumehood import Sandbox\n{code}"
    environment = {**os.environ, "HOME": str(home)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)


def _project(home: Path, runs: int) -> Path:
    """A project in which so many commands ran: some in truth, the others as copies of their records and layers."""
    project = project_in(home, _FILES)
    line = "sandbox.run(f'echo x >> d0/f{n}')"
    _in_home(home, f"sandbox = Sandbox({str(project)!r})\nfor n in range({_FILES}): {line}")
    state = home / ".local/state/fumehood"
    _multiply(state, runs - _FILES - 1)
    _in_home(home, f"n = 0; sandbox = Sandbox({str(project)!r}); {line}")
    return project


def _multiply(state: Path, count: int) -> None:
    """Copy the runs that are there, in order, until there are so many more."""
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
        own = last + 1 + n
        new = {"number": own, "project_number": own, "id": copy, "layer": copy, "run": own, "n": None}
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
    """What is kept for each run that changes one file."""
    project = project_in(home, _FILES)
    line = "sandbox.run('echo x >> d0/f0')"
    _in_home(home, f"sandbox = Sandbox({str(project)!r}); {line}")
    state = home / ".local/state/fumehood"
    before = _kept(state)
    _in_home(home, f"sandbox = Sandbox({str(project)!r})\nfor _ in range(100): {line}")
    entries, size = (now - was for now, was in zip(_kept(state), before, strict=True))
    yield Figure("entries on disk for each run that changes a file", entries / 100, "", limit=7.0)
    yield Figure("room on disk for each run that changes a file", size / 100 / 1024, "KiB", limit=36.0)


def _kept(state: Path) -> tuple[int, int]:
    """Count the entries of our state, and the bytes they take."""
    found = {info.st_ino: info.st_blocks * 512 for path in state.rglob("*") for info in [path.lstat()]}
    return len(found), sum(found.values())


def many(room: Path) -> Iterator[Figure]:
    """One run with very many changes: what looks at it take of the processor, and of memory."""
    project = project_in(room, _FILES)
    _, ran = _looked(f"run -- python3 {_script(room)}", project)
    base = ran.ru_utime + ran.ru_stime
    for line, memory in {
        "show": 200, "show --json": 300, "diff": 200, "log --json": 60, "undo": 400, "redo": 500,
    }.items():  # fmt: skip
        printed, used = _looked(line, project)
        yield Figure(
            f"{line}, of {CHANGES:,} changes, processor", used.ru_utime + used.ru_stime, "s", "the run itself", base
        )
        yield Figure(f"{line}, of {CHANGES:,} changes, peak memory", used.ru_maxrss / 1024, "MiB", limit=memory)
        if line == "log --json":
            yield Figure(f"{line}, of {CHANGES:,} changes, printed", printed / 1024, "KiB", limit=10)


def _script(room: Path) -> str:
    """Write the program that makes the changes, where the command can read it."""
    path = room / f"project-{_FILES}" / "make.py"
    path.write_text(_MAKE)
    return path.name
