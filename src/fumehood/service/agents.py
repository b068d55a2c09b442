"""An agent that runs whole in the hood: what it keeps between its sessions, its credentials, its shell commands.

Its directories (`~/.claude`, …) are its own, for each project: nothing that it leaves there reaches the host's, where
the host's own agent would act on it, nor a session in another project. Copies go in, by descriptors, because what lies
there is the agent's; nothing comes out.
"""

from __future__ import annotations

import json
import os
import stat
import time
import zlib

from fumehood.core import changes as c
from fumehood.core.inside import BEGAN, ENDED, Agent, known_agents
from fumehood.core.masks import MOVABLE, is_in
from fumehood.core.report import quote_name, shorten
from fumehood.core.request import SESSION_BIN
from fumehood.core.settings_text import parse_json
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.cache import replace_file
from fumehood.linux.libc import Closing, process_stat, read
from fumehood.linux.mounts import Bind, Operation
from fumehood.linux.nofollow import LISTING, remove_tree
from fumehood.linux.process import read_number
from fumehood.linux.usage import SandboxNotReady, open_inner_proc
from fumehood.service.checkpoint import Checkpoints, Part
from fumehood.service.profiles import Scratch, ScratchConditions, ScratchRequest, agents_directory, digest_of
from fumehood.store.places import Places, new_id
from fumehood.store.places import home as user_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fumehood.core.policy import Policy


_MOST = 16 << 20  # bytes of a file with credentials; those with a long history may be large


def find_agent(policy: Policy, name: str, *, must_be_known: bool = True) -> Agent:
    """Return an agent's profile by its name or that of one of its programs; one that nobody knows has an empty one."""
    agents = known_agents(policy.agents)
    for agent in agents.values():
        if name in (agent.name, *agent.programs):
            return agent
    if must_be_known:
        raise BadRequest(
            f"there is no profile for {name}",
            hint=f"one of: {', '.join(agents)}; any other command: fumehood agent -- {name} …",
        )
    return Agent(name=name)


class OwnDirectory(Value):
    """A directory that is an agent's own: where it sees it, and where the person has theirs of the same use."""

    target: str
    source: str
    variable: str  # what moves it
    name: str  # of its own directory among the agent's


class AgentScratch(Scratch):
    """The scratch of one run of an agent, and the directories that are kept for it."""

    def __init__(
        self, places: Places, project: str, run: str, requests: Sequence[ScratchRequest], *, keeps_tmp: bool,
        agent: Agent, environment: Mapping[str, str], roots: Sequence[str],
    ) -> None:  # fmt: skip
        super().__init__(places, project, run, requests, keeps_tmp=keeps_tmp)
        self._agent = agent
        self._kept = []
        for text in agent.state:
            variable, _, path = text.rpartition("=")
            moved = os.environ.get(variable, "") if variable else ""
            source = moved if moved.startswith("/") else _at_home(path, os.environ)
            name = path.removeprefix("~/").replace("/", "-")
            target = _at_home(path, environment)
            self._kept.append(OwnDirectory(target=target, source=source, variable=variable, name=name))
        self._above = f"{agents_directory(places)}/{digest_of(project)}"
        for each in self._kept:
            if any(is_in(each.target, (root,)) or is_in(root, (each.target,)) for root in roots):
                raise BadRequest(
                    f"{each.target} is {agent.name}'s own and lies in the project, or the project in it",
                    hint="run it in another project",
                )
        self.points = [each.target for each in self._kept]

    def make(self, conditions: ScratchConditions) -> None:
        """Make the directories ready, with the newest credentials in them."""
        super().make(conditions)
        self.points = [each.target for each in self._kept]
        if not self._kept:
            return
        if not conditions.is_ours:
            raise BadRequest(
                f"{self._agent.name} can't keep anything here: the project is another user's",
                hint="run fumehood as that user",
            )
        if not conditions.has_host:
            raise BadRequest("an agent runs on the host's own system", hint="leave out --root")
        kept = self._directory(self._agent.name, keep=True, exclusive=False, above=self._above)[0]
        for each in self._kept:
            source = f"{kept}/{each.name}"
            os.makedirs(source, 0o700, exist_ok=True)
            os.chmod(source, 0o700)  # whatever the agent made of it
            self.mounts.append(Bind(target=each.target, source=source, is_writable=True, why="kept for the agent"))
            if each.variable:
                self.variables[each.variable] = each.target
        for text in self._agent.credentials:
            path, _, keys = text.partition("#")
            room, place, source = self._place_of(path)
            with Closing(os.open(f"{kept}/{room}", LISTING | os.O_NOFOLLOW | os.O_CLOEXEC)) as directory:
                _give(directory, place, source, tuple(filter(None, keys.split(","))), f"{kept}/{room}#{place}")

    def _place_of(self, path: str) -> tuple[str, str, str]:
        """Return whose directory a file of the person's belongs to, its name there, and where the person has it."""
        for each, text in zip(self._kept, self._agent.state, strict=True):
            inside = path.removeprefix(text.rpartition("=")[2] + "/")
            if inside != path:
                if "/" in inside:
                    raise BadRequest(f"{path} is too deep for a credential", hint="a file right in one of `state`")
                return each.name, inside, f"{each.source}/{inside}"
        # One that lies beside goes into the first, as the variable of that would have it.
        first, name = self._kept[0], os.path.basename(path)
        is_moved = bool(first.variable and os.environ.get(first.variable))
        return first.name, name, f"{first.source}/{name}" if is_moved else _at_home(path, os.environ)


def _at_home(path: str, environment: Mapping[str, str]) -> str:
    inside = path.removeprefix("~/")
    if inside == path:
        return path
    for folder, variable in MOVABLE:
        above = environment.get(variable, "")
        if inside.startswith(f"{folder}/") and above.startswith("/"):
            return above + inside.removeprefix(folder)
    return f"{os.path.realpath(environment.get('HOME') or user_home())}/{inside}"


def _give(room: int, name: str, source: str, keys: tuple[str, ...], mark: str) -> None:
    """Put a copy of a person's file, or of some `keys`, into an agent's directory, if it is another than the last one.

    That is told by the time of `mark`, a file that the agent can't reach. What the agent has made of its copy stays
    until the person's own changes: a login that it renewed is newer than the one it was given.
    """
    try:
        file = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return  # the person has none
    with Closing(file):
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST:
            raise BadRequest(f"{source} can't hold credentials", hint=f"a file of at most {_MOST >> 20} MiB")
        if os.path.exists(mark) and (keys or os.stat(mark).st_mtime_ns == status.st_mtime_ns):
            return
        data = os.read(file, _MOST)
    if keys:
        try:
            settings = parse_json(data.decode()).as_python()  # comments are allowed
        except (UnicodeDecodeError, RecursionError, BadRequest) as error:
            raise BadRequest(f"{source} is not JSON: {error}", hint="correct it, or move it away") from error
        if not isinstance(settings, dict):
            raise BadRequest(f"{source} is not a table of settings", hint="correct it, or move it away")
        data = json.dumps({key: settings[key] for key in keys if key in settings}, indent=2).encode()
    new = f".fumehood-{new_id()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(new, flags, 0o600, dir_fd=room), "wb") as copy:
        copy.write(data)
    try:
        os.rename(new, name, src_dir_fd=room, dst_dir_fd=room)
    except IsADirectoryError:
        remove_tree(room, name)
        os.rename(new, name, src_dir_fd=room, dst_dir_fd=room)
    with open(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as written:
        os.utime(written.fileno(), ns=(status.st_mtime_ns, status.st_mtime_ns))


# ---- Its shells. In the place of each, the agent finds a small script that starts the real one; where that is given a
# line (`-c`), it has the real one say, through the door, when the line begins and ends.

_SHELLS = ("sh", "ash", "bash", "dash", "ksh", "mksh", "zsh")
_FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin")
_AT = f"{SESSION_BIN}/shells"
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
    return _AROUND.format(ask=f"PATH=/usr/bin:/bin {_first_shell()} {SESSION_BIN}/fumehood", began=BEGAN, ended=ENDED)


def shell_mounts(cache: str) -> list[Operation]:
    """Show scripts of ours in the place of the shells, and the shells beside."""
    mounts: list[Operation] = []
    sh = _first_shell()
    for shell in shells():
        mounts += (Bind(target=f"{shell.at}/{name}", source=shell.path, why="a shell") for name in shell.names)
        content = _SHIM.format(sh=sh, at=shell.at, name=shell.names[0], around=around_line()).encode()
        script = f"{cache}/shell-{zlib.crc32(content):08x}-{len(content)}"
        replace_file(script, content, by_many=True, mode=0o755)
        os.chmod(script, 0o755)  # noqa: S103 - whatever our umask; what lies around it is closed
        mounts.append(Bind(target=shell.path, source=script, why="tells when a command begins and ends"))
    return mounts


def _first_shell() -> str:
    first = shells()[0]
    return f"{first.at}/{first.names[0]}"


# ---- Its shell commands, kept as runs of their own.
#
# Each time that one begins or ends, what was written so far is settled by a checkpoint: so what the agent itself wrote
# is told from what the command did. What shells say comes from inside the hood, and is believed for nothing but the
# name of a run.

_PATIENCE_S, _PAUSE_S = 2.0, 0.05  # for a checkpoint, where another process has the project's lock
_BACKGROUND_S = 10.0  # what runs for longer is a server, or the like
_ENDED = (b"Z", b"X")  # what the kernel calls a process of which only the status is left
_TOLD = 12  # changes of one command that its agent is told of
_LONGEST_NUMBER = 10
_NAMED = 5  # commands that are named where they ran at the same time


class ShellCommands:
    """The shell commands of one agent: those that run now, and what is settled where one begins or ends."""

    def __init__(self, checkpoints: Checkpoints, agent: Agent | None, init_file: str) -> None:
        self.checkpoints = checkpoints
        self._agent = agent
        self._init_file = init_file
        self._open: dict[str, Part] = {}  # by the number that the shell has inside
        self._late: list[str] = []  # lines whose changes could not be settled yet
        self._said_before: set[tuple[int, str, str]] = set()
        self._around = around_line()

    def handle_message(self, said: Sequence[str], cwd: str) -> str:
        """Take note of what a shell says; returns what the agent is told."""
        verb, *numbers = said
        if len(numbers) != (1 if verb == BEGAN else 2) or not all(
            word.isascii() and word.isdigit() and len(word) < _LONGEST_NUMBER for word in numbers
        ):
            raise BadRequest(f"{verb} can't be understood", hint="only a shell says that")
        shell = numbers[0]
        if verb == BEGAN:
            self.settle_dead_shells()
            with Closing(self._processes()) as processes:
                words = os.fsdecode(read(f"{shell}/cmdline", processes)).split("\0")
            line = ""
            if self._around in words[:-2]:  # the line that a shell of ours was given, as the model typed it
                line = words[words.index(self._around) + 2]
                line = line if self._agent is None else self._agent.typed(line)
            if all(time.monotonic() - each.began > _BACKGROUND_S for each in self._open.values()):
                self._settle(Part())  # what the agent wrote by itself; where others have just begun, that can't be told
            if line:
                self._open[shell] = Part(command=line, cwd=cwd, started_at=time.time(), began=time.monotonic())
        elif shell in self._open:
            self._settle(self._open.pop(shell), int(numbers[1]))
        return self._to_tell()

    def settle_dead_shells(self) -> bool:
        """See to commands that ended without a word; returns whether some run."""
        if self._open:
            try:
                processes = self._processes()
            except SandboxNotReady:
                return True  # all is ending
            with Closing(processes):
                states = {shell: process_stat(f"{shell}", processes) for shell in self._open}
            for shell in [shell for shell, fields in states.items() if not fields or fields[0] in _ENDED]:
                self._settle(self._open.pop(shell))
        return bool(self._open)

    def _init(self) -> int:
        number = read_number(read(self._init_file), "child-pid")
        assert number is not None, "somebody in there has said something"
        return number

    def _processes(self) -> int:
        """Open the /proc that the agent sees."""
        processes = open_inner_proc(self._init())
        if processes is None:
            raise BadRequest("commands can't be told apart: bubblewrap has the set-uid bit", hint="fumehood doctor")
        return processes

    def _settle(self, part: Part, exit_code: int | None = None) -> None:
        """Settle what was written since the last time, as the doing of a command, or as the agent's own."""
        others = " | ".join(shorten(each.command) for each in list(self._open.values())[:_NAMED])
        lines = [*self._late, part.command] if part.command else self._late
        part = part.replace(
            command="; ".join(lines), meanwhile=f" (while: {others})" if others else "", exit_code=exit_code,
            duration_s=time.monotonic() - part.began if part.command else 0.0,
        )  # fmt: skip
        until = time.monotonic() + _PATIENCE_S
        while not self.checkpoints.make(self._init(), part=part):
            if time.monotonic() > until:
                self._late = lines
                return
            time.sleep(_PAUSE_S)
        self._late = []

    def _to_tell(self) -> str:
        """Return what of the last checkpoint a person must decide on, where the agent does not know it yet."""
        new = [each for each in self.checkpoints.held if (each.root, each.path, each.reason) not in self._said_before]
        self._said_before |= {(each.root, each.path, each.reason) for each in new}
        said = [
            f"fumehood: {each.verdict}, not applied: {each.change} {quote_name(each.path)}: {shorten(each.reason)}\n"
            for each in new[:_TOLD]
            if each.verdict in c.WAITING
        ]
        more = f"fumehood: and {len(new) - _TOLD} more\n" if len(new) > _TOLD else ""
        return "".join(said) + more
