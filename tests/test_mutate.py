"""What `make mutate` changes: one place at a time, where it means something to the program."""

import importlib.util
from pathlib import Path

import pytest

SOURCE = '''"""What it is."""
LIMIT = 3


def small(number: int) -> bool:
    """Tell whether it is."""
    if number < LIMIT and not number == 1:
        print(f"small: {number}")
    return True
'''


@pytest.fixture(scope="module")
def changed() -> dict[str, set[str]]:
    """The lines that each kind of change makes of the source."""
    tool = Path(__file__).parent.parent / "tools/mutate.py"
    spec = importlib.util.spec_from_file_location("mutate", tool)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines: dict[str, set[str]] = {}
    for mutant in module.mutations("sample", SOURCE):
        (line,) = set(mutant.source.splitlines()) - set(SOURCE.splitlines())
        lines.setdefault(mutant.change, set()).add(line.strip())
    return lines


def test_every_kind_of_change_is_made_in_its_place(changed: dict[str, set[str]]) -> None:
    assert changed == {
        "other constant": {"LIMIT = 4", "if number < LIMIT and not number == 2:", "return False"},
        "and for or": {"if (number < LIMIT or not number == 1):"},
        "one condition less": {"if (not number == 1):", "if (number < LIMIT):"},
        "other way round": {"if (number >= LIMIT) and not number == 1:", "if number < LIMIT and not (number != 1):"},
        "off by one": {"if (number <= LIMIT) and not number == 1:"},
        "without not": {"if number < LIMIT and (number == 1):"},
        "statement deleted": {"pass"},
    }
