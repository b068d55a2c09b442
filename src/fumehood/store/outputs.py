"""Outputs too long for the record: kept in files of their own, read back in part or whole."""

from __future__ import annotations

import os

from fumehood.linux.output import KEPT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def read_kept(path: str, size: int) -> tuple[str, bool]:
    """Return an output as its report shows it, and whether something is left out."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return f"[… {size} bytes, no longer kept …]\n", True
    try:
        saved = os.fstat(file).st_size
        if size <= 2 * KEPT and saved >= size:
            return os.pread(file, size, 0).decode("utf-8", "replace"), False
        head = os.pread(file, KEPT, 0)
        tail = os.pread(file, KEPT, max(KEPT, saved - KEPT))
    finally:
        os.close(file)
    left_out = size - len(head) - len(tail)
    middle = f"\n[… {left_out} bytes left out …]\n" if left_out else ""
    return f"{head.decode('utf-8', 'replace')}{middle}{tail.decode('utf-8', 'replace')}", bool(left_out)


def pieces(path: str) -> Iterator[bytes]:
    """Yield all that is kept of an output."""
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            yield piece
