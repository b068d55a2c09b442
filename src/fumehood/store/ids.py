"""Name runs so that names are unique and sort by time."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26


def new_id(now_ns: int | None = None) -> str:
    """Return a fresh id: milliseconds, microseconds, then chance, in letters that can't be confused."""
    now = time.time_ns() if now_ns is None else now_ns
    milliseconds, rest = divmod(now, 1_000_000)
    chance = int.from_bytes(os.urandom(9), "big") >> 2
    number = milliseconds << 80 | (rest // 1000) << 70 | chance
    letters = []
    for _ in range(LENGTH):
        number, digit = divmod(number, 32)
        letters.append(_ALPHABET[digit])
    return "".join(reversed(letters))
