"""Put generated text into a page of docs/, between the marks of its section. The rest is written by hand."""

import os
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def where_made() -> str:
    """Return the line above figures that says on which kind of machine they were made."""
    return f"On {os.uname().machine}:\n\n"


def _split_page(page: str, section: str) -> tuple[str, str, str]:
    """Return a page's text before a section, in it, and after it; the marks are not in the section."""
    begin, end = f"<!-- {section} -->\n", f"<!-- end of {section} -->\n"
    before, _, rest = (DOCS / page).read_text().partition(begin)
    inside, mark, after = rest.partition(end)
    if not mark:
        raise SystemExit(f"docs/{page} has no place for {section}")
    return before + begin, inside, mark + after


def section_text(page: str, section: str) -> str:
    """Return the text between a section's marks."""
    return _split_page(page, section)[1]


def with_section(page: str, section: str, text: str) -> str:
    """Return a page with another text in a section."""
    before, _, after = _split_page(page, section)
    return f"{before}\n{text.strip()}\n\n{after}"


def write(page: str, section: str, text: str) -> None:
    """Write another text into a section of a page."""
    (DOCS / page).write_text(with_section(page, section, text))
