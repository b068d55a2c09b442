"""Play many random stories, and say how many: `make stories ARGS='--count 1000 --way copy'`."""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import COUNTS, Machine


def main() -> None:
    """Play stories until one fails, or all are told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="show a story that goes wrong as it is, not made shorter")
    parser.add_argument("--way", default="", help="kernel, bwrap, fuse or copy")
    options = parser.parse_args()

    class Story(Machine):
        capture = options.way

    began = time.monotonic()
    run_state_machine_as_test(
        Story,
        settings=settings(
            max_examples=options.count, stateful_step_count=options.steps, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate] if options.quick else [Phase.generate, Phase.shrink],
        ),
    )  # fmt: skip
    print(f"{options.count} stories in {time.monotonic() - began:.0f} s, none wrong:")
    for name, count in COUNTS.most_common():
        print(f"  {name.replace('_', ' ')}: {count}")


if __name__ == "__main__":
    main()
