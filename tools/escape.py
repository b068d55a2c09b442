"""Run every attack as root and as an ordinary user, and write the table of docs/security.md: `make escape`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from page import where_made, write

CHECKOUT = Path(__file__).resolve().parent.parent
SECTIONS = ("While the command runs", "While changes are taken over", "After the changes landed")
OTHERS = "Tested besides"

Table = dict[tuple[str, str], dict[str, str]]  # by section and attack: how it ended in each place


def main(arguments: list[str]) -> int:
    """Run the attacks, print and write the table; fail if an attack succeeds in the hood, or a test fails."""
    # Not in /var/tmp: the tests have a disk of their own there.
    with tempfile.TemporaryDirectory(prefix="fumehood-attacks-", dir="/tmp") as folder:
        os.chmod(folder, 0o1777)  # noqa: S103 - an ordinary user writes there too
        environment = os.environ | {"FUMEHOOD_TESTS_ATTACKS": folder}
        line = [sys.executable, str(CHECKOUT / "tools/run_tests.py"), "tests/escape", "-q", "--no-header", *arguments]
        status = subprocess.run(line, env=environment, check=False, cwd=CHECKOUT).returncode
        table = read_results(Path(folder))
    text = as_markdown(table)
    print(text)
    hoods = ("hood", "hood root", "tree", "tree root")
    escaped = [attack for (_, attack), ends in table.items() if "succeeds" in [ends.get(place) for place in hoods]]
    attacks = sum(section != OTHERS for section, _ in table)
    print(f"{attacks} attacks; in the hood {len(escaped)} succeed")
    if not arguments:
        write("security.md", "attacks", text)
    return status or len(escaped)


def read_results(folder: Path) -> Table:
    """Read how every attack ended, as root and as others. An attack that succeeded once has succeeded."""
    table: Table = {}
    for file in sorted(folder.iterdir()):
        suffix = " root" if file.name == "0" else ""
        for line in file.read_text().splitlines():
            section, attack, place, end = line.split("\t")
            ends = table.setdefault((section, attack), {})
            if ends.get(place + suffix) != "succeeds":
                ends[place + suffix] = end
    return table


def as_markdown(table: Table) -> str:
    """Return the table as text, section by section."""
    lines = [where_made()]
    for section in SECTIONS:
        rows = sorted((attack, ends) for (its_section, attack), ends in table.items() if its_section == section)
        lines.append(f"### {section}: {len(rows)}\n\n")
        lines.append("| attack | plain bwrap | Fumehood | in an Alpine root |\n| --- | --- | --- | --- |\n")
        lines += [
            f"| {attack} | {cell(ends, 'plain')} | {cell(ends, 'hood')} | {cell(ends, 'tree')} |\n"
            for attack, ends in rows
        ]
        lines.append("\n")
    others = [(sentence, ends) for (section, sentence), ends in table.items() if section == OTHERS]
    proven = sorted(sentence for sentence, ends in others if "succeeds" not in ends.values())
    lines.append(f"### {OTHERS}: {len(proven)}\n\nEach of these sentences held.\n\n")
    return "".join([*lines, *(f"- {sentence}\n" for sentence in proven)])


def cell(ends: dict[str, str], place: str) -> str:
    """Return how an attack ended in a place; for both users if that differs."""
    user, root = ends.get(place, ""), ends.get(f"{place} root", "")
    if user and root and user != root:
        return f"{user}; as root {root}"
    return user or root or "not tried"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
