"""Run every attack as root and as an ordinary user, and put the table into docs/security.md: `make escape`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from page import where_made, write

CHECKOUT = Path(__file__).resolve().parent.parent
SECTIONS = ("While the command runs", "While changes are taken over", "After the changes landed")
BESIDES = "Tested besides"

Table = dict[tuple[str, str], dict[str, str]]


def main(arguments: list[str]) -> int:
    """Run, print, write; fail if an attack succeeds in the hood or a test fails."""
    # Not in /var/tmp: the tests have a disk of their own there.
    with tempfile.TemporaryDirectory(prefix="fumehood-attacks-", dir="/tmp") as folder:
        os.chmod(folder, 0o1777)  # noqa: S103 - an ordinary user writes there too
        environment = os.environ | {"FUMEHOOD_TESTS_ATTACKS": folder}
        line = [sys.executable, str(CHECKOUT / "tools/run_tests.py"), "tests/escape", "-q", "--no-header", *arguments]
        status = subprocess.run(line, env=environment, check=False, cwd=CHECKOUT).returncode
        table = collected(Path(folder))
    text = rendered(table)
    print(text)
    inside = ("hood", "hood root", "tree", "tree root")
    escaped = [words for (_, words), ends in table.items() if "succeeds" in [ends.get(where) for where in inside]]
    attacks = sum(section != BESIDES for section, _ in table)
    print(f"{attacks} attacks; in the hood {len(escaped)} succeed")
    if not arguments:
        write("security.md", "attacks", text)
    return status or len(escaped)


def collected(folder: Path) -> Table:
    """Read how every try ended; root's apart from others'. One that succeeded once has succeeded."""
    table: Table = {}
    for file in sorted(folder.iterdir()):
        suffix = " root" if file.name == "0" else ""
        for line in file.read_text().splitlines():
            section, words, where, end = line.split("\t")
            ends = table.setdefault((section, words), {})
            if ends.get(where + suffix) != "succeeds":
                ends[where + suffix] = end
    return table


def rendered(table: Table) -> str:
    """Write the table, section by section."""
    lines = [where_made()]
    for section in SECTIONS:
        rows = sorted((words, ends) for (place, words), ends in table.items() if place == section)
        lines.append(f"### {section}: {len(rows)}\n\n")
        lines.append("| attack | plain bwrap | Fumehood | in an Alpine root |\n| --- | --- | --- | --- |\n")
        lines += [
            f"| {words} | {cell(ends, 'plain')} | {cell(ends, 'hood')} | {cell(ends, 'tree')} |\n"
            for words, ends in rows
        ]
        lines.append("\n")
    besides = [(words, ends) for (place, words), ends in table.items() if place == BESIDES]
    held = sorted(words for words, ends in besides if "succeeds" not in ends.values())
    lines.append(f"### {BESIDES}: {len(held)}\n\nEach of these sentences held.\n\n")
    return "".join([*lines, *(f"- {words}\n" for words in held)])


def cell(ends: dict[str, str], where: str) -> str:
    """Say how it ended; for both users where that differs."""
    user, root = ends.get(where, ""), ends.get(f"{where} root", "")
    if user and root and user != root:
        return f"{user}; as root {root}"
    return user or root or "not tried"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
