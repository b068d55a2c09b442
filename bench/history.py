"""What a long history costs: each command over 10,000 runs beside the same over 100, and one run of 200,000 changes."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from measures import REPOSITORY, Figure, median_ms, project_in, quiet, seconds

FEW, MANY = 100, 10_000
CHANGES = 200_000
_FILES = 10  # that the runs change in turn
_MAKE = (
    "import os\n"
    f"for n in range({CHANGES}):\n"
    "    n % 500 or os.mkdir(f'new{n // 500}')\n"
    "    open(f'new{n // 500}/{n}', 'w').write('x\\n')"
)


def history(room: Path) -> Iterator[Figure]:
    """Commands over a long history must not take longer than over a short one."""
    long, short = _project(room / "long", MANY), _project(room / "short", FEW)
    lines = {"files": 1.3, "clean": 1.3, "log": 1.1, "log --json": 1.1, "show": 1.1, "undo": 1.1, "redo": 1.1}
    acts = [_command(line, project) for line in lines for project in (long, short)]
    for act in acts[:6]:
        act()  # what is read for the first time
    taken = median_ms(*acts, times=9)
    for n, (line, limit) in enumerate(lines.items()):
        yield Figure(f"{line}, after {MANY:,} runs", taken[2 * n], "ms", f"after {FEW}", taken[2 * n + 1], limit)
    yield from _space(room / "space")


def _command(line: str, project: Path) -> object:
    environment = {**os.environ, "HOME": str(project.parent)}
    return quiet([str(REPOSITORY / "fumehood"), *line.split()], cwd=project, env=environment)


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
        new = {"number": last + 1 + n, "id": copy, "layer": copy, "run": last + 1 + n, "n": None}
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
    yield Figure("entries on disk for each run that changes a file", entries / 100, "", limit=4.0)
    yield Figure("room on disk for each run that changes a file", size / 100 / 1024, "KiB", limit=17.0)


def _kept(state: Path) -> tuple[int, int]:
    """Count the entries of our state, and the bytes they take."""
    found = {info.st_ino: info.st_blocks * 512 for path in state.rglob("*") for info in [path.lstat()]}
    return len(found), sum(found.values())


def many(room: Path) -> Iterator[Figure]:
    """One run with very many changes: each look at it against the command itself, and the memory that takes."""
    project = project_in(room, _FILES)
    command = str(REPOSITORY / "fumehood")
    ran = seconds(quiet([command, "run", "--", "python3", "-c", _MAKE], cwd=project))
    for line in ("show", "show --json", "diff", "log --json", "undo", "redo"):
        began = time.perf_counter()
        process = subprocess.Popen([command, *line.split()], cwd=project, stdout=subprocess.PIPE)
        assert process.stdout is not None
        printed = 0
        while piece := process.stdout.read(1 << 20):
            printed += len(piece)
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
        taken = time.perf_counter() - began
        print(f"  {line}: {printed >> 10} KiB printed, {used.ru_utime + used.ru_stime:.1f} s of processor time")
        yield Figure(f"{line}, of {CHANGES:,} changes", taken, "s", "the run itself", ran)
        yield Figure(f"peak memory of {line}, of {CHANGES:,} changes", used.ru_maxrss / 1024, "MiB")
