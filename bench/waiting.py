"""What waits and what is deep: runs over many held ones, and trees nested thousands deep beside flat ones.

python bench/waiting.py held 0 16 100 300
python bench/waiting.py deep 1000 3000

Each with `--source DIRECTORY` for another version of the package, and `--capture WAY`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measures import REPOSITORY, median_ms

_TIMES = 9
_MAKE = {
    "deep": "import os\nfor n in range({}): os.mkdir('d'); os.chdir('d'); open('f', 'w').close()",
    "flat": "import os\nfor n in range({}): os.mkdir(f'd{{n}}'); open(f'd{{n}}/f', 'w').close()",
}


def held(sandbox: Any, counts: list[int]) -> None:
    """Time a command that writes nothing, and one that writes, over so many held runs."""
    waiting = 0
    for count in counts:
        while waiting < count:
            line = f"echo {waiting} > f{waiting}; echo {waiting} >> f; mkdir -p d{waiting % 7}/{waiting}"
            assert sandbox.run(line, apply=False).state == "held"
            waiting += 1
        (nothing,) = median_ms(lambda: sandbox.run("true"), times=_TIMES)
        (writing,) = median_ms(lambda: sandbox.run("echo w >> written"), times=_TIMES)
        print(f"{count:5} held: true {nothing:7.1f} ms, a write {writing:7.1f} ms", flush=True)


def deep(sandbox: Any, counts: list[int]) -> None:
    """Time a tree being made, something written over it, and its undo; our own work beside the command's."""
    held_run = sandbox.run("echo held > held", apply=False)
    for count in counts:
        for shape in ("flat", "deep"):
            made = _shown(f"{count} {shape}: made", sandbox.run, ["python3", "-c", _MAKE[shape].format(count)])
            _shown(f"{count} {shape}: a write after it", sandbox.run, "echo w >> written")
            _shown(f"{count} {shape}: undone", sandbox.undo, made.run)
    sandbox.discard(held_run)


def _shown(title: str, act: Callable[..., Any], what: object) -> Any:
    began, used = time.perf_counter(), time.process_time()
    result = act(what)
    took, own = time.perf_counter() - began, time.process_time() - used
    print(f"{title:32} {took:8.2f} s, of that our own processor time {own:8.2f} s", flush=True)
    return result


def main() -> None:
    """Measure in a fresh state, beside nothing else."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("held", "deep"))
    parser.add_argument("counts", type=int, nargs="+")
    parser.add_argument("--source", default=str(REPOSITORY / "src"))
    parser.add_argument("--capture", default="")
    asked = parser.parse_args()
    room = Path(tempfile.mkdtemp(prefix="fumehood-waiting-", dir="/var/tmp"))
    for name in ("state", "data", "cache", "config"):
        os.environ[f"XDG_{name.upper()}_HOME"] = str(room / name)
    os.environ["HOME"] = str(room / "home")
    for name in ("home", "project"):
        (room / name).mkdir()
    sys.path.insert(0, asked.source)
    fumehood = importlib.import_module("fumehood")
    try:
        with fumehood.Sandbox(room / "project", policy=fumehood.Policy(capture=asked.capture)) as sandbox:
            sandbox.run("true")
            (held if asked.what == "held" else deep)(sandbox, asked.counts)
    finally:
        subprocess.run(["rm", "-rf", room], check=True)  # it takes any depth


if __name__ == "__main__":
    main()
