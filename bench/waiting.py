"""The cost of held runs and deep trees: runs over many held ones, and trees nested thousands deep against flat ones.

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
_MAKE_TREE = {
    "deep": "import os\nfor n in range({}): os.mkdir('d'); os.chdir('d'); open('f', 'w').close()",
    "flat": "import os\nfor n in range({}): os.mkdir(f'd{{n}}'); open(f'd{{n}}/f', 'w').close()",
}


def held(sandbox: Any, counts: list[int]) -> None:
    """Measure a command that writes nothing, and one that writes, over so many held runs."""
    number = 0
    for count in counts:
        while number < count:
            line = f"echo {number} > f{number}; echo {number} >> f; mkdir -p d{number % 7}/{number}"
            assert sandbox.run(line, apply=False).state == "held"
            number += 1
        (true_ms,) = median_ms(lambda: sandbox.run("true"), times=_TIMES)
        (write_ms,) = median_ms(lambda: sandbox.run("echo w >> written"), times=_TIMES)
        print(f"{count:5} held: true {true_ms:7.1f} ms, a write {write_ms:7.1f} ms", flush=True)


def deep(sandbox: Any, counts: list[int]) -> None:
    """Measure a command that makes a tree, a write after it, and its undo; and the part of our own process."""
    held_run = sandbox.run("echo held > held", apply=False)
    for count in counts:
        for shape in ("flat", "deep"):
            program = ["python3", "-c", _MAKE_TREE[shape].format(count)]
            run = _print_time(f"{count} {shape}: made", sandbox.run, program)
            _print_time(f"{count} {shape}: a write after it", sandbox.run, "echo w >> written")
            _print_time(f"{count} {shape}: undone", sandbox.undo, run.run)
    sandbox.discard(held_run)


def _print_time(title: str, function: Callable[..., Any], argument: object) -> Any:
    """Call a function, print how long it took, and return its result."""
    began, cpu_began = time.perf_counter(), time.process_time()
    result = function(argument)
    took, cpu_took = time.perf_counter() - began, time.process_time() - cpu_began
    print(f"{title:32} {took:8.2f} s, of that our own processor time {cpu_took:8.2f} s", flush=True)
    return result


def main() -> None:
    """Measure in a fresh state directory."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("held", "deep"))
    parser.add_argument("counts", type=int, nargs="+")
    parser.add_argument("--source", default=str(REPOSITORY / "src"))
    parser.add_argument("--capture", default="")
    options = parser.parse_args()
    room = Path(tempfile.mkdtemp(prefix="fumehood-waiting-", dir="/var/tmp"))
    for name in ("state", "data", "cache", "config"):
        os.environ[f"XDG_{name.upper()}_HOME"] = str(room / name)
    os.environ["HOME"] = str(room / "home")
    for name in ("home", "project"):
        (room / name).mkdir()
    sys.path.insert(0, options.source)
    fumehood = importlib.import_module("fumehood")
    try:
        with fumehood.Sandbox(room / "project", policy=fumehood.Policy(capture=options.capture)) as sandbox:
            sandbox.run("true")
            (held if options.what == "held" else deep)(sandbox, options.counts)
    finally:
        subprocess.run(["rm", "-rf", room], check=True)  # it takes any depth


if __name__ == "__main__":
    main()
