"""Play many random stories, and say how many: `make stories ARGS='--count 1000 --way copy'`."""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import Machine

TOLD = ("run", "run_while_a_person_edits", "look", "edit", "delete", "apply", "discard", "decide_one", "undo")


def main() -> None:
    """Play stories until one fails, or all are told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="show a story that goes wrong as it is, not made shorter")
    parser.add_argument("--way", default="", help="kernel, bwrap, fuse or copy")
    options = parser.parse_args()
    counts: Counter[str] = Counter()

    class Told(Machine):
        capture = options.way

    for name in TOLD:
        setattr(Told, name, _counted(name, getattr(Machine, name), counts))
    began = time.monotonic()
    run_state_machine_as_test(
        Told,
        settings=settings(
            max_examples=options.count, stateful_step_count=options.steps, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate] if options.quick else [Phase.generate, Phase.shrink],
        ),
    )  # fmt: skip
    print(f"{options.count} stories in {time.monotonic() - began:.0f} s, none wrong:")
    for name, count in counts.most_common():
        print(f"  {name.replace('_', ' ')}: {count}")


def _counted(name, act, counts):
    def counting(self, *arguments, **named):
        counts[name] += 1
        return act(self, *arguments, **named)

    counting.__dict__.update(act.__dict__)
    counting.__name__ = name
    return counting


if __name__ == "__main__":
    main()
