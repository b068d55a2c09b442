"""Put what a program makes into a page of docs/: between the marks of its section. The rest is written by hand."""

import os
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def where_made() -> str:
    """The line above figures that says on which kind of machine they were made."""
    return f"On {os.uname().machine}:\n\n"


def _apart(page: str, section: str) -> tuple[str, str, str]:
    """Return a page up to a section, what stands in that, and the rest; both marks stay outside."""
    begin, end = f"<!-- {section} -->\n", f"<!-- end of {section} -->\n"
    before, _, rest = (DOCS / page).read_text().partition(begin)
    inside, mark, after = rest.partition(end)
    if not mark:
        raise SystemExit(f"docs/{page} has no place for {section}")
    return before + begin, inside, mark + after


def written(page: str, section: str) -> str:
    """Return what stands between a section's marks now."""
    return _apart(page, section)[1]


def filled(page: str, section: str, text: str) -> str:
    """Return a page with another text there."""
    before, _, after = _apart(page, section)
    return f"{before}\n{text.strip()}\n\n{after}"


def write(page: str, section: str, text: str) -> None:
    """Write such a page."""
    (DOCS / page).write_text(filled(page, section, text))
