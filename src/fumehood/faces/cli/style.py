"""Colour on terminals that want it."""

from __future__ import annotations

import os

_CODES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "dim": "2", "bold": "1"}


class Paint:
    """Colours text, or leaves it alone."""

    def __init__(self, fd: int) -> None:
        self.on = os.isatty(fd) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, text: str, colour: str) -> str:
        """Return the text in a colour, where there is colour."""
        return f"\033[{_CODES[colour]}m{text}\033[0m" if self.on else text
