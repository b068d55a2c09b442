"""Guess from what a failed command printed which promise of the sandbox it met: a mask, a socket, a limit.

Nothing watches the command's system calls for this, which would slow it down; so it is a hint, never a verdict, and
only looked for where a command failed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fumehood.core import limits as told
from fumehood.core.masks import is_below, masks, reason
from fumehood.core.report import Blocked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fumehood.core.policy import Policy

_LOOKED_AT = 1 << 16  # characters of the end, where a failure is told
_MOST = 3  # of each kind
_PATH = re.compile(r"(?:~|/)[^\s'\"`:;,()<>\[\]]+")
_ABSENT = re.compile(r"No such file|ENOENT|Permission denied|EACCES|not found|can(?:'t|not) read", re.IGNORECASE)
_CONNECTING = re.compile(r"connect|ECONNREFUSED|socket|daemon|bus\b|agent\b", re.IGNORECASE)
_SOCKET = re.compile(r"\.sock\b|\.s\.PGSQL\.|^/(?:var/)?run/")
_NAMELESS = (
    (re.compile(r"Failed to connect to (?:user |system )?(?:scope )?bus|D-Bus", re.IGNORECASE), "D-Bus"),
    (re.compile(r"connection to your authentication agent|Error connecting to agent", re.IGNORECASE), "ssh-agent"),
    (re.compile(r"can(?:not|'t) open display", re.IGNORECASE), "the display"),
)
_LIMITS = (
    (re.compile(r"File too large|File size limit exceeded|EFBIG", re.IGNORECASE), told.FILE_SIZE),
    (re.compile(r"Too many open files|EMFILE", re.IGNORECASE), told.FILES),
    (re.compile(r"can't start new thread|cannot fork|fork: .*Resource temporarily|EAGAIN.*(?:fork|spawn)"
                r"|(?:fork|spawn|pthread_create).*EAGAIN", re.IGNORECASE), told.PROCESSES),
    (re.compile(r"CPU time limit exceeded", re.IGNORECASE), told.CPU),
)  # fmt: skip
_SIGNALS = {128 + 24: told.CPU, 128 + 25: told.FILE_SIZE}
_NO_SOCKETS = "services of this machine are out of a command's reach; start one in the command, or run it outside"


def suspected(printed: str, exit_code: int, policy: Policy, home: str) -> tuple[Blocked, ...]:
    """Return what a failed command seems to have met."""
    lines = [line for line in printed[-_LOOKED_AT:].splitlines() if len(line) < 4096]
    found = [*_limits(lines, exit_code, policy), *_hidden(lines, policy, home), *_sockets(lines, home)]
    return tuple(dict.fromkeys(found))


def _limits(lines: Iterable[str], exit_code: int, policy: Policy) -> Iterator[Blocked]:
    names = [name for line in lines for words, name in _LIMITS if words.search(line)]
    names += [_SIGNALS[exit_code]] if exit_code in _SIGNALS else []
    for name in dict.fromkeys(names):
        amount = getattr(policy.limits, name)
        if amount:
            yield told.hit(name, amount)


def _hidden(lines: Iterable[str], policy: Policy, home: str) -> Iterator[Blocked]:
    hidden = masks([home], (), policy.mask, policy.unmask, root=True).hidden
    seen: list[str] = []
    for path in _paths((line for line in lines if _ABSENT.search(line)), home):
        if path not in seen and any(path == each or is_below(path, each) for each in hidden):
            seen.append(path)
    for path in seen[:_MOST]:
        hint = f"hidden from commands ({reason(path, home)}); to show it, add it to unmask (fumehood config path)"
        yield Blocked(what="mask", detail=path, hint=hint)


def _sockets(lines: Iterable[str], home: str) -> Iterator[Blocked]:
    about = [line for line in lines if _CONNECTING.search(line)]
    named = [path for path in _paths(about, home) if _SOCKET.search(path)]
    named += [name for line in about for words, name in _NAMELESS if words.search(line)]
    for name in list(dict.fromkeys(named))[:_MOST]:
        yield Blocked(what="socket", detail=name, hint=_NO_SOCKETS)


def _paths(lines: Iterable[str], home: str) -> Iterator[str]:
    for line in lines:
        for path in _PATH.findall(line):
            whole = home + path[1:] if path.startswith("~/") else path
            yield f"/{whole.lstrip('/')}".rstrip(".!?")
