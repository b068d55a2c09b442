"""The shell commands of an agent, each kept as a run of its own.

A session with `each_command` shows the agent a small script in the place of each shell. The script starts the real
shell. If that gets a line (`-c`), the script has it send a message when the line begins and when it ends. At each
message, what was written so far is settled by a checkpoint, so that the agent's own changes are not mixed with those
of a command. Messages come from inside the hood: they are believed for nothing but the name of a run.
"""

from __future__ import annotations

import os
import time
import zlib

from fumehood.core import changes as c
from fumehood.core.inside import BEGAN, ENDED, Agent
from fumehood.core.report import quote_name, shorten
from fumehood.core.request import SESSION_BIN
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.cache import replace_file
from fumehood.linux.libc import Closing, process_stat, read
from fumehood.linux.mounts import Bind, Operation
from fumehood.linux.process import read_number
from fumehood.linux.processes import SandboxNotReady, open_inner_proc
from fumehood.service.checkpoint import Checkpoints, Part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


# ---- The scripts in the place of the shells.

_SHELLS = ("sh", "ash", "bash", "dash", "ksh", "mksh", "zsh")
_DIRECTORIES = ("/bin", "/usr/bin", "/usr/local/bin")
_REAL_SHELLS = f"{SESSION_BIN}/shells"  # where the agent sees the real shells
# Only the outermost living shell sends messages: some agents have a shell print its variables, and pass them on to the
# next. The line is an argument of the code around it, so that no quoting can go wrong.
_SCRIPT = """#!{sh}
# Fumehood: a shell that says when a command begins and ends.
shell={directory}/${{0##*/}}
[ -x "$shell" ] || shell={directory}/{name}
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
    """A shell of the host."""

    path: str
    directory: str  # where the agent sees the real shell, by each of its names
    names: tuple[str, ...]


def _host_shells() -> list[Shell]:
    """Return the shells of the host, without programs that are much else too, such as busybox."""
    names: dict[str, dict[str, None]] = {}
    for path in (f"{directory}/{name}" for name in _SHELLS for directory in _DIRECTORIES):
        real = os.path.realpath(path)
        if os.access(real, os.X_OK) and "sh" in os.path.basename(real):
            names.setdefault(real, {})[os.path.basename(path)] = None
    if not names:
        message = "this host has no shell whose commands can be recorded one by one"
        raise BadRequest(message, hint="leave out --each-command")
    return [
        Shell(path=path, directory=f"{_REAL_SHELLS}/{number}", names=tuple(names[path]))
        for number, path in enumerate(names)
    ]


def real_shell(path: str) -> str:
    """Return where the agent sees the real shell in the place of which a script is at a path."""
    for shell in _host_shells():
        if shell.path == os.path.realpath(path):
            name = os.path.basename(path)
            return f"{shell.directory}/{name if name in shell.names else shell.names[0]}"
    return path


def _code_around_line() -> str:
    """Return shell code that runs the line in its first argument, and sends a message before and after it."""
    return _AROUND.format(ask=f"PATH=/usr/bin:/bin {_first_shell()} {SESSION_BIN}/fumehood", began=BEGAN, ended=ENDED)


def shell_mounts(cache: str) -> list[Operation]:
    """Return mounts that show a script in the place of each shell, and the real shells elsewhere."""
    mounts: list[Operation] = []
    sh, around = _first_shell(), _code_around_line()
    for shell in _host_shells():
        mounts += (Bind(target=f"{shell.directory}/{name}", source=shell.path, why="a shell") for name in shell.names)
        content = _SCRIPT.format(sh=sh, directory=shell.directory, name=shell.names[0], around=around).encode()
        script = f"{cache}/shell-{zlib.crc32(content):08x}-{len(content)}"
        replace_file(script, content, by_many=True, mode=0o755)
        os.chmod(script, 0o755)  # noqa: S103 - whatever our umask; the directory around it is closed
        mounts.append(Bind(target=shell.path, source=script, why="tells when a command begins and ends"))
    return mounts


def _first_shell() -> str:
    first = _host_shells()[0]
    return f"{first.directory}/{first.names[0]}"


# ---- The commands.

_PATIENCE_S, _PAUSE_S = 2.0, 0.05  # for a checkpoint, while another process has the project's lock
_BACKGROUND_AFTER_S = 10.0  # a command that runs for longer is a server, or the like
_ENDED_STATES = (b"Z", b"X")  # of a process of which only the exit status is left
_MAX_REPORTED = 12  # changes of one command that its agent is told of
_MAX_DIGITS = 10  # of a number in a message
_MAX_NAMED = 5  # commands that are named because they ran at the same time


class ShellCommands:
    """The shell commands of one agent that run now. A checkpoint is made when one begins or ends."""

    def __init__(self, checkpoints: Checkpoints, agent: Agent | None, init_file: str) -> None:
        self.checkpoints = checkpoints
        self._agent = agent
        self._init_file = init_file
        self._running: dict[str, Part] = {}  # by the shell's process number inside
        self._unsettled: list[str] = []  # lines whose changes could not be settled yet
        self._reported: set[tuple[int, str, str]] = set()
        self._around = _code_around_line()

    def handle_message(self, message: Sequence[str], cwd: str) -> str:
        """Handle the message of a shell that a line begins or has ended; return the text for the agent."""
        verb, *numbers = message
        if len(numbers) != (1 if verb == BEGAN else 2) or not all(
            word.isascii() and word.isdigit() and len(word) < _MAX_DIGITS for word in numbers
        ):
            raise BadRequest(f"{verb} can't be understood", hint="only a shell says that")
        shell = numbers[0]
        if verb == BEGAN:
            self.settle_dead_shells()
            with Closing(self._processes()) as processes:
                words = os.fsdecode(read(f"{shell}/cmdline", processes)).split("\0")
            line = ""
            if self._around in words[:-2]:  # our script has started this shell
                line = words[words.index(self._around) + 2]
                line = line if self._agent is None else self._agent.typed(line)
            if all(time.monotonic() - part.began > _BACKGROUND_AFTER_S for part in self._running.values()):
                self._settle(Part())  # the agent's own changes; those of a line that has just begun look the same
            if line:
                self._running[shell] = Part(command=line, cwd=cwd, started_at=time.time(), began=time.monotonic())
        elif shell in self._running:
            self._settle(self._running.pop(shell), int(numbers[1]))
        return self._report()

    def settle_dead_shells(self) -> bool:
        """Settle commands whose shells ended without a message; return True if other commands still run."""
        if self._running:
            try:
                processes = self._processes()
            except SandboxNotReady:
                return True  # the agent is just ending
            with Closing(processes):
                states = {shell: process_stat(shell, processes) for shell in self._running}
            for shell in [shell for shell, fields in states.items() if not fields or fields[0] in _ENDED_STATES]:
                self._settle(self._running.pop(shell))
        return bool(self._running)

    def _init(self) -> int:
        number = read_number(read(self._init_file), "child-pid")
        assert number is not None, "a message came from inside, so the first process has started"
        return number

    def _processes(self) -> int:
        """Open the /proc that the agent sees."""
        processes = open_inner_proc(self._init())
        if processes is None:
            message = "commands can't be recorded one by one: bubblewrap has the set-uid bit"
            raise BadRequest(message, hint="fumehood doctor")
        return processes

    def _settle(self, part: Part, exit_code: int | None = None) -> None:
        """Settle what was written since the last checkpoint: by a command or, with an empty `part`, by the agent."""
        others = " | ".join(shorten(running.command) for running in list(self._running.values())[:_MAX_NAMED])
        lines = [*self._unsettled, part.command] if part.command else self._unsettled
        part = part.replace(
            command="; ".join(lines), meanwhile=f" (while: {others})" if others else "", exit_code=exit_code,
            duration_s=time.monotonic() - part.began if part.command else 0.0,
        )  # fmt: skip
        deadline = time.monotonic() + _PATIENCE_S
        while not self.checkpoints.make(self._init(), part=part):
            if time.monotonic() > deadline:
                self._unsettled = lines
                return
            time.sleep(_PAUSE_S)
        self._unsettled = []

    def _report(self) -> str:
        """Return the changes of the last checkpoint that wait for a person and that the agent does not know yet."""
        new = [each for each in self.checkpoints.held if (each.root, each.path, each.reason) not in self._reported]
        self._reported |= {(each.root, each.path, each.reason) for each in new}
        lines = [
            f"fumehood: {each.verdict}, not applied: {each.change} {quote_name(each.path)}: {shorten(each.reason)}\n"
            for each in new[:_MAX_REPORTED]
            if each.verdict in c.WAITING
        ]
        more = f"fumehood: and {len(new) - _MAX_REPORTED} more\n" if len(new) > _MAX_REPORTED else ""
        return "".join(lines) + more
