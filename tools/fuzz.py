"""Fuzz for a while the code that reads what commands wrote, and core/: sh tools/python tools/fuzz.py --seconds 600."""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
DIRECTORIES = ("tests/fuzz", "tests/core")
BATCH = 500  # examples of each test, before the time is checked again


def main() -> int:
    """Try new examples until the time is over or a test fails; print the numbers of examples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long (default: %(default)s)")
    parser.add_argument("-k", default="", help="only the tests whose names match")
    options = parser.parse_args()
    began, examples, rounds = time.monotonic(), {}, 0
    while rounds == 0 or time.monotonic() - began < options.seconds:
        rounds += 1
        command = [sys.executable, "-P", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *DIRECTORIES]
        command += ["-m", "hypothesis", "--hypothesis-show-statistics", "--timeout=0", "-x"]
        command += ["-k", options.k] if options.k else []
        environment = os.environ | {"FUMEHOOD_FUZZ_EXAMPLES": str(BATCH), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
        for name, count in example_counts(done.stdout):
            examples[name] = examples.get(name, 0) + count
        if done.returncode:
            print(done.stdout[-6000:])
            return 1
    print(f"{sum(examples.values())} examples in {time.monotonic() - began:.0f} s, no failure")
    for name, count in sorted(examples.items()):
        print(f"  {count:8}  {name.removeprefix('test_').replace('_', ' ')}")
    return 0


def example_counts(text: str) -> list[tuple[str, int]]:
    """Return how many examples each test had."""
    counts = []
    for part in re.split(r"\n(?=tests/\w+/)", text):
        name = re.match(r"tests/\w+/\S+::(\w+)", part)
        if name:
            counts.append((name[1], sum(map(int, re.findall(r"(\d+) passing", part)))))
    return counts


if __name__ == "__main__":
    sys.exit(main())
