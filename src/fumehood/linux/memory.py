"""Files in memory, by which the launcher hands things to bubblewrap and to what that starts."""

from __future__ import annotations

import os

_MFD_NOEXEC_SEAL, _MFD_EXEC, _EINVAL = 0x8, 0x10, 22


def memory(*, executable: bool = False) -> int:
    """Return the descriptor of a file in memory."""
    flags = os.MFD_CLOEXEC | (_MFD_EXEC if executable else _MFD_NOEXEC_SEAL)
    try:
        return os.memfd_create("fumehood", flags)
    except OSError as error:
        if error.errno != _EINVAL:
            raise
        return os.memfd_create("fumehood", os.MFD_CLOEXEC)  # before Linux 6.3


def provide(text: bytes, place: int, *, executable: bool = False) -> None:
    """Put something where bubblewrap, or what it starts, finds it: at this descriptor."""
    made = memory(executable=executable)
    os.write(made, text)
    os.lseek(made, 0, os.SEEK_SET)
    if made == place:
        os.set_inheritable(place, True)
    else:
        os.dup2(made, place)
