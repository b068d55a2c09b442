"""The shells of an agent whose commands are told apart.

In the place of each shell, the agent finds a small script that starts the real one; where that is given a line (`-c`),
it has the real one say, through the door, when the line begins and ends.
"""

from __future__ import annotations

import os
import zlib

from fumehood.core.inside import BEGAN, ENDED
from fumehood.core.request import BIN
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.cache import replace
from fumehood.linux.mounts import Bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.linux.mounts import Operation

_SHELLS = ("sh", "ash", "bash", "dash", "ksh", "mksh", "zsh")
_FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin")
_AT = f"{BIN}/shells"
# Only the outermost shell counts, while it lives: some agents have a shell tell them its variables, and pass those on.
# The line is an argument of what is executed, so that no quoting can go wrong.
_SHIM = """#!{sh}
# Fumehood: a shell that says when a command begins and ends.
shell={at}/${{0##*/}}
[ -x "$shell" ] || shell={at}/{name}
next=option has_line= line=
for word; do
    shift
    case $next:$word in
        option:--rcfile | option:--init-file) next=value ;;
        option:--*) ;;
        option:[-+]*[oO]) next=value; case $word in -*c*) has_line=1 ;; esac ;;
        option:-*c*) has_line=1 ;;
        option:[-+]*) ;;
        option:*)
            next=rest
            if [ "$has_line" ]; then next=name; fi
            if [ "$has_line" ] && [ "$word" ] && ! [ -d "/proc/${{FUMEHOOD_COMMAND:-none}}" ]; then
                line=$word word='{around}'
            fi ;;
        value:*) next=option ;;
        name:*) next=rest; if [ "$line" ]; then set -- "$@" "$word"; word=$line; fi ;;
    esac
    set -- "$@" "$word"
done
if [ "$next" = name ]; then set -- "$@" "$0" ${{line:+"$line"}}; fi
exec "$shell" "$@"
"""
_AROUND = (
    "FUMEHOOD_COMMAND=$$; export FUMEHOOD_COMMAND; {ask} {began} $$ </dev/null >&2;"
    ' trap "{ask} {ended} $$ \\"\\$?\\" </dev/null >&2" EXIT; eval "shift; $1"'
)


class Shell(Value):
    """A shell of the host's: its file, where the real one is seen instead, and the names that lead to it."""

    path: str
    at: str
    names: tuple[str, ...]


def shells() -> list[Shell]:
    """Return the shells of the host; a program that is many others besides (busybox) is none."""
    names: dict[str, dict[str, None]] = {}
    for path in (f"{folder}/{name}" for name in _SHELLS for folder in _FOLDERS):
        real = os.path.realpath(path)
        if os.access(real, os.X_OK) and "sh" in os.path.basename(real):
            names.setdefault(real, {})[os.path.basename(path)] = None
    if not names:
        raise BadRequest("there is no shell here whose commands could be told apart", hint="leave out --each-command")
    return [Shell(path=path, at=f"{_AT}/{n}", names=tuple(names[path])) for n, path in enumerate(names)]


def real_shell(path: str) -> str:
    """Return where the command finds the real shell in the place of one of the host's."""
    for shell in shells():
        if shell.path == os.path.realpath(path):
            name = os.path.basename(path)
            return f"{shell.at}/{name if name in shell.names else shell.names[0]}"
    return path


def around_line() -> str:
    """Return what a shell does before and after a line that is its first argument."""
    return _AROUND.format(ask=f"PATH=/usr/bin:/bin {_first_shell()} {BIN}/fumehood", began=BEGAN, ended=ENDED)


def shell_mounts(cache: str) -> list[Operation]:
    """Show scripts of ours in the place of the shells, and the shells beside."""
    mounts: list[Operation] = []
    sh = _first_shell()
    for shell in shells():
        mounts += (Bind(target=f"{shell.at}/{name}", source=shell.path, why="a shell") for name in shell.names)
        content = _SHIM.format(sh=sh, at=shell.at, name=shell.names[0], around=around_line()).encode()
        script = f"{cache}/shell-{zlib.crc32(content):08x}-{len(content)}"
        replace(script, content, by_many=True, mode=0o755)
        os.chmod(script, 0o755)  # noqa: S103 - whatever our umask; what lies around it is closed
        mounts.append(Bind(target=shell.path, source=script, why="tells when a command begins and ends"))
    return mounts


def _first_shell() -> str:
    first = shells()[0]
    return f"{first.at}/{first.names[0]}"
