"""What an agent was told before in its session: what does not change is told once."""

from __future__ import annotations

import os
import zlib

from fumehood.linux.libc import Closing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.report import Blocked

_ALWAYS = frozenset({"network", "limit", "stopped"})  # each command that met it must know
_LARGEST = 1 << 16
_SUM = 9  # bytes of a line


def news(room: str, blocked: Sequence[Blocked]) -> tuple[Blocked, ...]:
    """Return what is new to a session's agent, and remember it in the session's directory.

    Of what it met again, in another place or another command, the advice is left out, which it knows.
    """
    try:
        file = os.open(f"{room}/told", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return tuple(blocked)  # there is no such directory, as for another user's project
    with Closing(file):
        content = os.pread(file, _LARGEST, 0)
        before = {content[at : at + _SUM] for at in range(0, len(content), _SUM)}
        new: list[Blocked] = []
        for each in blocked:
            whole, advice = (b"%08x\n" % zlib.crc32("\0".join(words).encode(errors="replace")) for words in (
                (each.what, each.detail, each.hint), (each.what, each.hint),
            ))  # fmt: skip
            if whole in before and each.what not in _ALWAYS:
                continue
            new.append(each.replace(hint="") if advice in before else each)
            if len(content) < _LARGEST:
                os.write(file, b"".join(line for line in (whole, advice) if line not in before))
            before |= {whole, advice}
    return tuple(new)
