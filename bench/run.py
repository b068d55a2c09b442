"""The benchmark suite: `make bench`. Every figure is a ratio inside one run, so that machines can be compared.

make bench ARGS='--only cold'     one of them
make bench ARGS='--write'         put the results into docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "src"))

from agents import hook, mcp  # noqa: E402 - found through the lines above
from drafts import drafts  # noqa: E402
from first_use import first_use  # noqa: E402
from history import history, many  # noqa: E402
from measures import MEASURES, Figure  # noqa: E402
from network import network  # noqa: E402
from peers import peers  # noqa: E402

EVERY = {
    **MEASURES, "drafts": drafts, "first-use": first_use, "history": history, "many": many, "hook": hook, "mcp": mcp,
    "network": network, "peers": peers,
}  # fmt: skip


def main() -> int:
    """Measure, print, and say whether every limit is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=EVERY, help="measure only this")
    parser.add_argument("--write", action="store_true", help="put the results into docs/benchmarks.md")
    options = parser.parse_args()
    wanted = list(dict.fromkeys(options.only or EVERY))
    scratch = Path(tempfile.mkdtemp(prefix="fumehood-bench-", dir="/var/tmp"))
    os.environ.update(HOME=str(scratch / "home"))
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(name, None)
    (scratch / "home").mkdir()
    figures: list[Figure] = []
    try:
        for name in wanted:
            room = scratch / name
            room.mkdir()
            for figure in EVERY[name](room):
                print(figure.line(), flush=True)
                figures.append(figure)
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", scratch], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(scratch, ignore_errors=True)
    if options.write:
        write(figures, whole=not options.only)
    return 0 if all(figure.is_kept for figure in figures) else 1


def write(figures: list[Figure], *, whole: bool) -> None:
    """Replace the table in the documentation."""
    page = HERE.parent / "docs" / "benchmarks.md"
    begin, end = "<!-- figures -->\n", "<!-- end of figures -->\n"
    ruled = "| what | figure | against | ratio | limit |\n| --- | ---: | ---: | ---: | ---: |\n"
    head, _, rest = page.read_text().partition(begin)
    before, _, tail = rest.partition(end)
    # Measured alone, a figure takes its own row's place.
    kept = [] if whole else before.partition(ruled)[2].splitlines(keepends=True)
    rows = {_what(row): row for row in (*kept, *(figure.row() for figure in figures))}
    page.write_text(f"{head}{begin}{machine()}\n\n{ruled}{''.join(rows.values())}{end}{tail}")


def _what(row: str) -> str:
    return row.split("|")[1].strip()


def machine() -> str:
    """Say where the figures come from."""
    bwrap = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    who = "root" if os.geteuid() == 0 else "an ordinary user"
    return (
        f"Measured {time.strftime('%Y-%m-%d')} as {who} with `make bench ARGS=--write`: {os.cpu_count()} cores, "
        f"{platform.machine()}, Linux {platform.release().partition('-')[0]}, Python {platform.python_version()},"
        f" {bwrap}."
    )


if __name__ == "__main__":
    sys.exit(main())
