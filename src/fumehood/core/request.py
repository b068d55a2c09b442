"""What was asked: a command, where it runs, and what becomes of its changes."""

from __future__ import annotations

from fumehood.core.value import DIGITS, LETTERS, Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fumehood.core.inside import Agent

# What becomes of its changes.
APPLY, HOLD, DISCARD = "apply", "hold", "discard"
HOST, ALPINE = "host", "alpine"  # what its `/` can be; else the name of a root tree, or a directory
WHOLE = "whole"  # as apply; but where the command did not come to its own end, what it wrote is thrown away

# What the runs of one agent share: a name, a working directory, and the variables it asked to keep.

# Where a command finds what it can tell its session; bubblewrap's own /dev, so nothing of the host's is covered.
SESSION_DIRECTORY = "/dev/fumehood"
CWD_FILE, VARIABLES_FILE = "cwd", "env"
ENV_VARIABLE = "FUMEHOOD_ENV"
SESSION_BIN = "/dev/hood"  # on the PATH of a session's commands: what they ask us with

_IN_NAMES = LETTERS | DIGITS | frozenset("._:@-")
_LONGEST_NAME = 128


class Session(Value):
    """Consecutive runs of one agent, as they are remembered between two of them."""

    name: str
    project: int
    started_at: float
    cwd: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """The variables that its next command gets."""
        return dict(self.environment)


def checked_name(name: str, what: str = "session") -> str:
    """Return the name of a session, or a draft, if it can be one: it is also that of a directory."""
    if not name or len(name) > _LONGEST_NAME or not _IN_NAMES.issuperset(name) or name[0] not in LETTERS | DIGITS:
        raise BadRequest(
            f"{name!r} can't be the name of a {what}",
            hint=f"letters, digits and . _ : @ - only, at most {_LONGEST_NAME}, beginning with a letter or digit",
        )
    return name


def draft_session_name(draft: int) -> str:
    """Return the session of a draft's commands that are in no other; all of them have its loopback."""
    return f"draft-{draft}"


def is_draft_session(session: str) -> bool:
    """Return True if a session is that of a draft's commands, and nobody named it."""
    return session.startswith("draft-") and session[6:].isdecimal()


def is_variable_name(name: str) -> bool:
    """Return True if this can be the name of a variable that a session keeps."""
    is_name = bool(name) and name[0] not in DIGITS and (LETTERS | DIGITS | {"_"}).issuperset(name)
    return is_name and not name.startswith("FUMEHOOD")


def update_variables(before: Mapping[str, str], message: str) -> dict[str, str]:
    """Return the variables after a command's message: `NAME=value` sets one, `NAME` alone forgets it.

    One a line, or, where there is a NUL, up to that, for values of several lines.
    """
    variables = dict(before)
    for line in message.split("\0" if "\0" in message else "\n"):
        name, equals, value = line.partition("=")
        if not is_variable_name(name):
            continue
        if equals:
            variables[name] = value
        else:
            variables.pop(name, None)
    return variables


# The tools of our own MCP server: what they run, they run in the hood. One of a person's own has another name.
OWN_TOOLS = frozenset({
    "run_command", "start_command", "poll_command", "stop_command", "running", "checkpoint", "changes", "diff",
    "read_output", "undo", "redo", "apply", "discard", "request_access",
})  # fmt: skip


# What was asked: a command, where it runs, and what becomes of its changes.

_SAFE = LETTERS | DIGITS | frozenset("@%+=:,./-_")
SHELL = "/bin/sh"
# Where the shell says it is, which counts where that is gone, and where it is: no function or alias of the command's is
# asked. A NUL is between two words.
_HERE = '\\command printf "%s\\0" "${PWD-}"; \\command pwd -P'
# That at the shell's end, and then, after a tab each, the first processes that are still there, as the kernel tells of
# them: below the shell, and below the sandbox's first process, where those go whose own parent has ended.
_AT_END = (
    f"trap '{{ {_HERE}; set +eu; fumehood_1= fumehood_2=; read -r fumehood_1 </proc/1/task/1/children;"
    ' read -r fumehood_2 </proc/$$/task/$$/children; eval "set -- $fumehood_1 $fumehood_2";'
    ' for fumehood_1 in "$1" "$2" "$3" "$4" "$5"; do'
    ' [ "${fumehood_1:-$$}" = $$ ] || { read -r fumehood_2 </proc/$fumehood_1/stat; printf "\\t%s\\n" "$fumehood_2"; };'
    f" done; }} >{SESSION_DIRECTORY}/{CWD_FILE} 2>/dev/null' EXIT"
)
# The line may set a trap in the place of ours: so it is said after the line, too. That leaves the status as it was.
_AFTER_LINE = (
    f'{{ fumehood_1=$?; {{ {_HERE}; \\command printf "\\0"; }} >{SESSION_DIRECTORY}/{CWD_FILE};'
    ' [ "$fumehood_1" = 0 ] || (exit "$fumehood_1"); } 2>/dev/null'
)
# zsh has a hook for its end besides; and its `command` is for what is no builtin.
_ZSH_AT_END = (
    f'fumehood_end() {{ {{ \\command printf "\\0"; {_HERE}; }} >{SESSION_DIRECTORY}/{CWD_FILE} 2>/dev/null; }};'
    f" zshexit_functions+=(fumehood_end); {_AT_END}"
).replace("\\command", "\\builtin")
# A session of its own inside the sandbox, so that Ctrl-C reaches what runs there, and not what keeps it. The terminal
# was opened outside, under a name that is not there: it is opened again by the one that it has inside, or musl's
# `ttyname`, and whoever asks that, would take it for none.
_BY_NAME = 'test -w /dev/console && exec 0<>/dev/console 1>&0 2>&0; exec "$@"'
_WITH_TERMINAL = (
    f'''set -- "$1" -c '{_BY_NAME}' sh "$@"; command -v setsid >/dev/null && exec setsid -c "$@"; exec "$@"'''
)
NO_PROJECT = "it ran without a project: what it wrote can't be undone, and only the playground is not thrown away"
BACKGROUND_AFTER = 1.0  # seconds: what a command in the background makes at its start is there by then
_LONGEST_ARGUMENT = 128 * 1024 - 1  # the kernel's limit for one argument, its NUL included


class Request(Value):
    """One command, as it was asked for."""

    command: str | tuple[str, ...]
    cwd: str = ""
    mode: str = APPLY
    timeout: float | None = None
    network: str = "none"
    hosts: tuple[str, ...] = ()  # those it asks for, where it does not need the whole network
    if_granted: bool = False  # where nobody is there to allow them, it runs without
    environment: tuple[tuple[str, str], ...] = ()
    shell: str = ""  # a shell of the host's that reads the command
    source: str = ""  # a file that this shell reads first
    session: str = ""
    draft: str = ""  # the draft that it is a run of
    begins_draft: bool = False  # where there is none of that name: a client's settings name it, and nobody else
    draft_number: int | None = None
    frozen: str = ""  # where copies of the roots lie that it sees in their place
    beside: tuple[str, ...] = ()  # directories that a person gave the client of the session
    own_tmp: bool = False
    write: tuple[str, ...] | None = None  # all that it may write; None is what the project has
    besides: tuple[str, ...] = ()  # those of them that are roots for this run only
    output_limit: int | None = None
    thrown: str = ""  # a directory that takes the place of a project's and is thrown away
    background_after: float | None = None  # seconds after which nobody waits for it: it is then checkpointed by itself
    title: str = ""  # what the record calls the command, where that is not its own text
    root: str = ""  # what the command sees as `/`: host, alpine, the name of a tree, or its directory
    agent: Agent | None = None  # whose profile it runs with: a person asked for that
    each_command: bool = False  # whether the shell commands that it starts are runs of their own

    @property
    def loopback(self) -> str:
        """Whose commands it shares a loopback with: those of its draft, or of its session."""
        return self.session if self.draft_number is None else draft_session_name(self.draft_number)

    @property
    def remark(self) -> str:
        """What its report says from the beginning."""
        return NO_PROJECT if self.thrown else ""


def check_request(request: Request) -> None:
    """Say what is wrong with a request before anything is made for it."""
    checked_command(request.command)
    if request.output_limit == 0:
        raise BadRequest("0 is not an output limit", hint="a number of bytes")
    check_variables(request.environment)
    if request.own_tmp and not request.session:
        raise BadRequest("--own-tmp needs a session, whose runs share that /tmp", hint="add --session NAME")
    for path in (request.cwd, request.root, *request.beside, *(request.write or ())):
        if "\0" in path:
            raise BadRequest(f"{path!r} is not a directory", hint="a path without a NUL")
        encode_text(path)


def check_variables(variables: Iterable[tuple[object, object]]) -> None:
    """Refuse what no command can have in its environment."""
    for name, value in variables:
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadRequest(f"the variable {name!r} or its value is not a string", hint="names and values are strings")
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise BadRequest(f"the variable {name!r} can't be set", hint="no = in its name, and no NUL anywhere")
        encode_text(name + value)


def encode_text(text: str) -> bytes:
    """Return a text as a command gets it; raises BadRequest where it holds half of a surrogate pair.

    That is no letter; the halves that stand for bytes which are no UTF-8 are fine.
    """
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise BadRequest("a text holds half of a surrogate pair", hint="it is not valid Unicode") from error


def checked_command(command: str | Sequence[str]) -> str | tuple[str, ...]:
    """Return a command that can be run, or say what is wrong with it."""
    is_text = isinstance(command, str)
    if not is_text and not (isinstance(command, (list, tuple)) and all(isinstance(part, str) for part in command)):
        raise BadRequest(f"{command!r:.200} is not a command", hint="a string, or a list of strings")
    whole = command if isinstance(command, str) else tuple(command)
    parts = (whole,) if isinstance(whole, str) else whole
    if not parts or not parts[0].strip():
        raise BadRequest("the command is empty", hint="fumehood run -- COMMAND")
    for part in parts:
        if "\0" in part:
            raise BadRequest("the command has a NUL in it", hint="no program can be given one; write it as \\0")
        if len(encode_text(part)) > _LONGEST_ARGUMENT:
            raise BadRequest(
                f"the command is too long: the kernel takes {_LONGEST_ARGUMENT} bytes in one argument",
                hint="write it to a script in the project and run that",
            )
    return whole


def build_argv(
    command: str | tuple[str, ...], shell: str = SHELL, *, source: str = "", tells_cwd: bool = False
) -> tuple[str, ...]:
    """Return what is executed: one string is a shell line, several are a program and its arguments.

    The shell starts the program in both cases, so that one which is missing ends with 127, as people expect.
    """
    if not isinstance(command, str):
        return shell, "-c", 'exec "$@"', "sh", *command
    name = shell.rpartition("/")[2]
    before, after = [], []
    if tells_cwd:
        before.append(_ZSH_AT_END if name == "zsh" else _AT_END)
        after = [] if name == "zsh" else [_AFTER_LINE]
    if source:
        before.append(f"source {shell_quote(source)} 2>/dev/null")
        if tells_cwd:
            before.append(f"PATH={SESSION_BIN}:$PATH")  # it may have set another
    if not before:
        return shell, "-c", command
    # An argument and not a part of the script, so that no quoting can go wrong; and it is gone before the line begins.
    return shell, "-c", "; ".join([*before, 'eval "shift; $1"', *after]), name, command


def start_on_terminal(line: tuple[str, ...]) -> tuple[str, ...]:
    """Return what executes a line on a terminal of its own: its standard input."""
    return line[0], "-c", _WITH_TERMINAL, "sh", *line


def command_text(command: str | tuple[str, ...]) -> str:
    """Write a command as a person would type it."""
    return command if isinstance(command, str) else " ".join(shell_quote(part) for part in command)


def shell_quote(part: str, *, always: bool = False) -> str:
    """Write a word so that a shell reads exactly it."""
    if not always and part and _SAFE.issuperset(part):
        return part
    return "'" + part.replace("'", "'\"'\"'") + "'"
