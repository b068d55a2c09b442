"""Put figures into docs/conformance.md, between the marks of their section."""

import os
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs/conformance.md"


def where_made() -> str:
    """The line above figures that says on which kind of machine they were made."""
    return f"On {os.uname().machine}:"


def write(section: str, lines: Sequence[str]) -> None:
    """Replace what stands between a section's marks."""
    begin, end = f"<!-- {section} -->\n", f"<!-- end of {section} -->\n"
    text = PAGE.read_text()
    if begin not in text or end not in text:
        raise SystemExit(f"{PAGE} has no place for {section}")
    head, tail = text.partition(begin)[0], text.partition(end)[2]
    PAGE.write_text(head + begin + "".join(f"{line}\n" for line in (where_made(), "", *lines)) + end + tail)
