"""What was asked: a command, where it runs, and what becomes of its changes."""

from __future__ import annotations

from fumehood.core.judge import APPLY
from fumehood.core.session import CWD, TOLD
from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")
SHELL = "/bin/sh"
_TELL_CWD = f"trap '{{ pwd -P >{TOLD}/{CWD}; }} 2>/dev/null' EXIT"
# A session of its own inside the sandbox, so that Ctrl-C reaches what runs there, and not what keeps it.
_WITH_TERMINAL = 'command -v setsid >/dev/null && exec setsid -c "$@"; exec "$@"'
_LONGEST_ARGUMENT = 128 * 1024 - 1  # the kernel's limit for one argument, its NUL included


class Request(Value):
    """One command, as it was asked for."""

    command: str | tuple[str, ...]
    cwd: str = ""
    mode: str = APPLY
    timeout: float | None = None
    network: str = "none"
    hosts: tuple[str, ...] = ()  # those it asks for, where it does not need the whole network
    environment: tuple[tuple[str, str], ...] = ()
    shell: str = ""  # a shell of the host's that reads the command
    source: str = ""  # a file that this shell reads first
    session: str = ""
    own_tmp: bool = False
    root: str = ""  # what the command sees as `/`: host, alpine, the name of a tree, or its directory


def checked(command: str | Sequence[str]) -> str | tuple[str, ...]:
    """Return a command that can be run, or say what is wrong with it."""
    given = command if isinstance(command, str) else tuple(command)
    parts = (given,) if isinstance(given, str) else given
    if not parts or not parts[0].strip():
        raise BadRequest("the command is empty", hint="fumehood run -- COMMAND")
    for part in parts:
        if "\0" in part:
            raise BadRequest("the command has a NUL in it", hint="no program can be given one; write it as \\0")
        if len(part) > _LONGEST_ARGUMENT // 4 and len(part.encode(errors="surrogateescape")) > _LONGEST_ARGUMENT:
            raise BadRequest(
                f"the command is too long: the kernel takes {_LONGEST_ARGUMENT} bytes in one argument",
                hint="write it to a script in the project and run that",
            )
    return given


def arguments(
    command: str | tuple[str, ...], shell: str = SHELL, *, source: str = "", tells_cwd: bool = False
) -> tuple[str, ...]:
    """Return what is executed: one string is a shell line, several are a program and its arguments.

    The shell starts the program in both cases, so that one which is missing ends with 127, as people expect.
    """
    if not isinstance(command, str):
        return shell, "-c", 'exec "$@"', "sh", *command
    before = [_TELL_CWD] if tells_cwd else []
    if source:
        before.append(f"source {quoted(source)} 2>/dev/null")
    if not before:
        return shell, "-c", command
    # An argument and not a part of the script, so that no quoting can go wrong; and it is gone before the line begins.
    return shell, "-c", "; ".join([*before, 'eval "shift; $1"']), shell.rpartition("/")[2], command


def on_terminal(line: tuple[str, ...]) -> tuple[str, ...]:
    """Return what executes a line on a terminal of its own: its standard input."""
    return line[0], "-c", _WITH_TERMINAL, "sh", *line


def shown(command: str | tuple[str, ...]) -> str:
    """Write a command as a person would type it."""
    return command if isinstance(command, str) else " ".join(quoted(part) for part in command)


def quoted(part: str, *, always: bool = False) -> str:
    """Write a word so that a shell reads exactly it."""
    if not always and part and _SAFE.issuperset(part):
        return part
    return "'" + part.replace("'", "'\"'\"'") + "'"
