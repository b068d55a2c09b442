"""The benchmark suite: `make bench`. Every figure is a ratio within one run, so that machines can be compared.

make bench ARGS='--only cold'     one of them
make bench ARGS='--write'         put the results into docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from agents import hook, mcp
from drafts import drafts
from history import history, many
from measures import MEASURES, REPOSITORY, Figure
from network import network

sys.path.append(str(REPOSITORY / "tools"))
from page import section_text, write

ALL_MEASURES = {
    **MEASURES, "drafts": drafts, "history": history, "many": many, "hook": hook, "mcp": mcp, "network": network,
}  # fmt: skip


def main() -> int:
    """Measure, print, and fail if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=ALL_MEASURES, help="measure only this")
    parser.add_argument("--write", action="store_true", help="put the results into docs/benchmarks.md")
    options = parser.parse_args()
    wanted = list(dict.fromkeys(options.only or ALL_MEASURES))
    scratch = Path(tempfile.mkdtemp(prefix="fumehood-bench-", dir="/var/tmp"))
    os.environ.update(HOME=str(scratch / "home"))
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(name, None)
    (scratch / "home").mkdir()
    figures: list[Figure] = []
    try:
        # Each in a new process: what a program starts is said to have used at least the memory of that program.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as processes:
            for name in wanted:
                figures += processes.submit(measure, name, scratch / name).result()
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", scratch], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(scratch, ignore_errors=True)
    if options.write:
        write_table(figures, whole=not options.only)
    return 0 if all(figure.is_within_limit for figure in figures) else 1


def measure(name: str, room: Path) -> list[Figure]:
    """Take one of the measurements, and print each figure as soon as it is known."""
    room.mkdir()
    figures = []
    for figure in ALL_MEASURES[name](room):
        print(figure.line(), flush=True)
        figures.append(figure)
    return figures


def write_table(figures: list[Figure], *, whole: bool) -> None:
    """Replace the table in the documentation."""
    header = "| what | figure | against | ratio | limit |\n| --- | ---: | ---: | ---: | ---: |\n"
    # A figure that is measured alone replaces its own row.
    rows = {} if whole else rows_of(section_text("benchmarks.md", "figures").partition(header)[2])
    rows |= rows_of("".join(figure.row() for figure in figures))
    write("benchmarks.md", "figures", f"{machine()}\n\n{header}{''.join(rows.values())}")


def rows_of(table: str) -> dict[str, str]:
    """Return the rows of a table by their titles."""
    return {row.split("|")[1].strip(): row for row in table.splitlines(keepends=True) if row.strip()}


def machine() -> str:
    """Return a sentence about the machine and the versions."""
    bwrap = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    who = "root" if os.geteuid() == 0 else "an ordinary user"
    return (
        f"Measured {time.strftime('%Y-%m-%d')} as {who} with `make bench ARGS=--write`: {os.cpu_count()} cores, "
        f"{platform.machine()}, Linux {platform.release().partition('-')[0]}, Python {platform.python_version()},"
        f" {bwrap}."
    )


if __name__ == "__main__":
    sys.exit(main())
