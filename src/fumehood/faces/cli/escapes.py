"""Let through to a person's terminal what shows text, and nothing that makes the terminal act.

A terminal that is sent the right bytes writes to the clipboard, answers as if the person typed, prints, moves its
window, or reads a file by name (kitty's graphics). So what may pass is listed here, and the rest is dropped; so are
the characters that turn the direction of text round, and with it what a line seems to say.
"""

from __future__ import annotations

import codecs
import re

_TOKEN = re.compile(
    r"(?P<text>[^\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]+)"
    r"|(?P<plain>[\n\r\t\b\a])"
    r"|\x1b\[(?P<parameters>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    r"|\x1b\](?P<command>[^\x00-\x1f\x7f-\x9f]*)(?:\x07|\x1b\\)"
    r"|(?P<string>\x1b[\]PX^_][^\x07\x18\x1a\x1b]*(?:\x07|\x1b\\))"
    r"|(?P<unfinished>\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x18\x1a\x1b]*\x1b?|[ -/]*)?\Z)"
    r"|(?P<escape>\x1b(?:[ -/]+[0-~]|[0-OQ-WYZ\\`-~]))"
    r"|(?P<other>.)",
    re.DOTALL,
)
_LONGEST = 8192  # characters of a sequence that has not ended yet
_HARMLESS = bytes(range(0x20, 0x7F)) + b"\n\r\t\b\a"
_COLOUR = frozenset("0123456789;:")
_ERASE = frozenset({"", "0", "1", "2"})
# On a screen of the command's own, besides what any output may use. What makes the terminal answer with text that
# the command chose, print, or move its window is not among it: CSI t, i, x, *y; DCS, APC, PM and SOS as a whole.
_SCREEN_FINALS = frozenset("ABCDEFGHIJKLMPSTXZ@`abcdefghlmnpqrsu")
_SCREEN_BETWEEN = frozenset({"", " q", "!p", "$p"})
_SCREEN_COMMANDS = frozenset({"0", "1", "2", "4", "8", "10", "11", "12", "104", "110", "111", "112", "133"})
_SCREEN_ESCAPES = frozenset({"7", "8", "=", ">", "D", "E", "H", "M", "c", "(B", "(0", ")B", ")0"})
_SHIFTS = frozenset("\x0e\x0f")
# Modes that a program which was ended leaves on, and the person then has to live with.
_LEFT_ON = ("1", "9", "47", "1000", "1001", "1002", "1003", "1004", "1005", "1006", "1015", "1047", "1049", "2004")


class Filter:
    """Bytes as they come from a command in, bytes for a terminal out; sequences may be cut anywhere between."""

    def __init__(self, *, screen: bool = False) -> None:
        self._screen = screen
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._waiting = ""
        self._split = False
        self._coloured = False
        self._shifted = False
        self._modes: set[str] = set()

    def feed(self, data: bytes) -> bytes:
        """Return what of this piece may be shown."""
        if not self._waiting and not self._split and not data.translate(None, _HARMLESS):
            return data
        text = self._waiting + self._decode(data)
        # A character may be cut as well.
        self._split = not data[-1:].isascii()
        self._waiting = ""
        return "".join(map(self._kept, _TOKEN.finditer(text))).encode("utf-8", "replace")

    def close(self) -> bytes:
        """Return what puts the terminal back to where it was, as far as the command changed it."""
        modes = "".join(f"\x1b[?{mode}l" for mode in _LEFT_ON if mode in self._modes)
        shown = "\x1b[?25h" if "25" in self._modes else ""
        letters = "\x1b(B\x0f" if self._shifted else ""
        colour = "\x1b[0m" if self._coloured else ""
        self._waiting, self._coloured, self._shifted = "", False, False
        self._modes.clear()
        return f"{modes}{shown}{letters}{colour}".encode()

    def _kept(self, token: re.Match[str]) -> str:
        """Return a token if it may pass, else nothing."""
        kind, whole = token.lastgroup, token.group()
        passes = kind in ("text", "plain")
        if kind == "unfinished":
            self._waiting = whole if len(whole) < _LONGEST else ""
        elif kind == "final":
            passes = self._is_harmless(token)
        elif kind == "command":
            passes = self._screen and token["command"].partition(";")[0] in _SCREEN_COMMANDS
        elif kind == "escape":
            passes = self._screen and whole[1:] in _SCREEN_ESCAPES
            self._shifted = self._shifted or (passes and whole[1:] in ("(0", ")0"))
        elif kind == "other":
            passes = self._screen and whole in _SHIFTS
            self._shifted = self._shifted or passes
        return whole if passes else ""

    def _is_harmless(self, token: re.Match[str]) -> bool:
        parameters, between, final = token.group("parameters", "between", "final")
        if final == "m" and not between and _COLOUR.issuperset(parameters):
            self._coloured = parameters.strip("0;") != ""
            return True
        if final == "K" and not between and parameters in _ERASE:
            return True
        if not self._screen or (f"{between}{final}" if between else "") not in _SCREEN_BETWEEN:
            return False
        if final in "hl" and parameters.startswith("?"):
            for mode in parameters[1:].split(";"):
                # The cursor is shown where nobody says otherwise.
                (self._modes.add if (final == "h") != (mode == "25") else self._modes.discard)(mode)
        return bool(between) or final in _SCREEN_FINALS
