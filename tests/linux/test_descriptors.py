"""Directories that are opened together are let go of together, also where one of them is not there."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood.errors import FumehoodError
from fumehood.linux.capture_fuse import finish
from fumehood.linux.limits import WrittenBytes
from fumehood.linux.monitor import WatchedLayer
from fumehood.linux.namespaces import Layer, mount_table
from fumehood.service.held import fold_root
from fumehood.service.layers import scan_layers

# Each opens `there` first, and then what is missing.
OPENING: dict[str, Callable[[str, str], object]] = {
    "room": lambda there, missing: WrittenBytes([there, missing], [], lambda: iter(())),
    "watched": lambda there, missing: WatchedLayer(missing, there),
    "folded": lambda there, missing: fold_root(f"{there}/new", [there, missing]),
    "normalised": lambda there, missing: finish(_layer(there, missing)),
    "scanned": lambda there, missing: scan_layers([_layer(there, missing)]),
}


def _layer(there: str, missing: str) -> Layer:
    return Layer(root=missing, upper=there, work="", merged=there, held=(there,))


def open_now() -> list[str]:
    """What this process has open."""
    listing = os.listdir("/proc/self/fd")
    return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in listing if os.path.lexists(f"/proc/self/fd/{fd}"))


@pytest.mark.parametrize("name", OPENING)
def test_nothing_stays_open_where_one_can_not_be_opened(name: str, test_directory: Path) -> None:
    there = test_directory / "there"
    there.mkdir()
    (there / "f").touch()
    mount_table()  # which is kept open from its first use on
    before = open_now()
    with pytest.raises((OSError, FumehoodError)):
        OPENING[name](str(there), str(test_directory / "missing"))
    assert open_now() == before
