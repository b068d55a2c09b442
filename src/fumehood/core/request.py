"""A request: one command, where it runs, and what becomes of its changes. And the session that it is a part of."""

from __future__ import annotations

from fumehood.core.value import DIGITS, LETTERS, Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fumehood.core.inside import Agent

# Modes: what becomes of a run's changes.
APPLY, HOLD, DISCARD = "apply", "hold", "discard"
WHOLE = "whole"  # like apply, but the changes are discarded if the command was ended before its own end

HOST, ALPINE = "host", "alpine"  # values of `Request.root`, which may also name a root tree or a directory

# Sessions: what the runs of one agent share.

# Files through which a command passes values to its session. They lie in the sandbox's own /dev, so they hide nothing
# of the host.
SESSION_DIRECTORY = "/dev/fumehood"
CWD_FILE, VARIABLES_FILE = "cwd", "env"
ENV_VARIABLE = "FUMEHOOD_ENV"  # holds the path of the file of variables
SESSION_BIN = "/dev/hood"  # on the PATH of a session's commands: the `fumehood` program for use inside the sandbox

_IN_NAMES = LETTERS | DIGITS | frozenset("._:@-")
_LONGEST_NAME = 128


class Session(Value):
    """What is remembered between two runs of one agent: its working directory and the variables it keeps."""

    name: str
    project: int
    started_at: float
    cwd: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """The variables that the session's next command gets."""
        return dict(self.environment)


def checked_name(name: str, what: str = "session") -> str:
    """Return the name of a session or a draft, or raise BadRequest: the name is also used for a directory."""
    if not name or len(name) > _LONGEST_NAME or not _IN_NAMES.issuperset(name) or name[0] not in LETTERS | DIGITS:
        raise BadRequest(
            f"{name!r} can't be the name of a {what}",
            hint=f"letters, digits and . _ : @ - only, at most {_LONGEST_NAME}, beginning with a letter or digit",
        )
    return name


def draft_session_name(draft: int) -> str:
    """Return the name of the session for a draft's commands that are in no other session; they share its loopback."""
    return f"draft-{draft}"


def is_draft_session(session: str) -> bool:
    """Return True if this is the name that `draft_session_name` gave a session."""
    return session.startswith("draft-") and session[6:].isdecimal()


def is_variable_name(name: str) -> bool:
    """Return True if a session can keep a variable of this name; our own variables are not kept."""
    is_name = bool(name) and name[0] not in DIGITS and (LETTERS | DIGITS | {"_"}).issuperset(name)
    return is_name and not name.startswith("FUMEHOOD")


def update_variables(before: Mapping[str, str], message: str) -> dict[str, str]:
    """Return the variables after a command's message: `NAME=value` sets one, `NAME` alone removes it.

    Entries end at newlines; in a message with a NUL they end at NULs, so that values can have several lines.
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


# The tools of our own MCP server; what they run, they run in the sandbox. A person's own tools can't have these names.
OWN_TOOLS = frozenset({
    "run_command", "start_command", "poll_command", "stop_command", "running", "checkpoint", "changes", "diff",
    "read_output", "undo", "redo", "apply", "discard", "request_access",
})  # fmt: skip


# Requests.

_SAFE = LETTERS | DIGITS | frozenset("@%+=:,./-_")
SHELL = "/bin/sh"
# Prints $PWD, a NUL, and the real working directory. $PWD is needed where the directory is gone. `\command` avoids
# functions and aliases that the command defined.
_HERE = '\\command printf "%s\\0" "${PWD-}"; \\command pwd -P'
# Prints that when the shell ends, then, each after a tab, /proc's line about the first processes that still run. These
# are children of the shell, and children of the sandbox's first process, which adopts those whose parent has ended.
_AT_END = (
    f"trap '{{ {_HERE}; set +eu; fumehood_1= fumehood_2=; read -r fumehood_1 </proc/1/task/1/children;"
    ' read -r fumehood_2 </proc/$$/task/$$/children; eval "set -- $fumehood_1 $fumehood_2";'
    ' for fumehood_1 in "$1" "$2" "$3" "$4" "$5"; do'
    ' [ "${fumehood_1:-$$}" = $$ ] || { read -r fumehood_2 </proc/$fumehood_1/stat; printf "\\t%s\\n" "$fumehood_2"; };'
    f" done; }} >{SESSION_DIRECTORY}/{CWD_FILE} 2>/dev/null' EXIT"
)
# The command's line may replace our trap, so the directory is printed after the line too. The exit status stays.
_AFTER_LINE = (
    f'{{ fumehood_1=$?; {{ {_HERE}; \\command printf "\\0"; }} >{SESSION_DIRECTORY}/{CWD_FILE};'
    ' [ "$fumehood_1" = 0 ] || (exit "$fumehood_1"); } 2>/dev/null'
)
# zsh also has a hook that runs at its end; and its `command` does not find builtins.
_ZSH_AT_END = (
    f'fumehood_end() {{ {{ \\command printf "\\0"; {_HERE}; }} >{SESSION_DIRECTORY}/{CWD_FILE} 2>/dev/null; }};'
    f" zshexit_functions+=(fumehood_end); {_AT_END}"
).replace("\\command", "\\builtin")
# The command gets a terminal session of its own, so that Ctrl-C reaches it and not the process that runs the sandbox.
# The terminal was opened outside, by a name that does not exist inside. It is opened again by its name inside: else
# musl's `ttyname`, and programs that use it, would find no terminal.
_BY_NAME = 'test -w /dev/console && exec 0<>/dev/console 1>&0 2>&0; exec "$@"'
_WITH_TERMINAL = (
    f'''set -- "$1" -c '{_BY_NAME}' sh "$@"; command -v setsid >/dev/null && exec setsid -c "$@"; exec "$@"'''
)
NO_PROJECT = "it ran without a project: what it wrote can't be undone, and only the playground is not thrown away"
BACKGROUND_AFTER = 1.0  # seconds: by then, a command in the background has made what it makes at its start
_LONGEST_ARGUMENT = 128 * 1024 - 1  # the kernel's limit for one argument, less its final NUL


class Request(Value):
    """One command, and how it is to be run."""

    command: str | tuple[str, ...]
    cwd: str = ""
    mode: str = APPLY
    timeout: float | None = None
    network: str = "none"
    hosts: tuple[str, ...] = ()  # hosts to reach, for a command that does not need the whole network
    if_granted: bool = False  # run without network if nobody is there to allow it
    environment: tuple[tuple[str, str], ...] = ()
    shell: str = ""  # the host's shell that reads the command; empty: /bin/sh
    source: str = ""  # a file that this shell reads first
    session: str = ""
    draft: str = ""  # the name of the draft that the run belongs to
    creates_draft: bool = False  # create the draft if it does not exist, because a client's settings name it
    draft_number: int | None = None
    snapshot: str = ""  # a directory with copies of the roots, which the command sees in place of the roots
    client_directories: tuple[str, ...] = ()  # directories that a person added in the session's client
    own_tmp: bool = False
    write: tuple[str, ...] | None = None  # the only directories it may write; None: the project's roots
    extra_roots: tuple[str, ...] = ()  # those in `write` that are roots for this run only
    output_limit: int | None = None
    throwaway: str = ""  # a temporary directory that is used in place of a project, and removed at the end
    background_after: float | None = None  # seconds after which nobody waits for it and it gets checkpoints
    title: str = ""  # what the history calls the command, if not by its own text
    root: str = ""  # what the command sees as `/`: host, alpine, or a root tree's name or directory
    agent: Agent | None = None  # the agent whose profile applies, because a person started that agent
    each_command: bool = False  # record each shell command that it starts as a run of its own

    @property
    def loopback(self) -> str:
        """The session whose commands share this command's loopback: its draft's, or its own."""
        return self.session if self.draft_number is None else draft_session_name(self.draft_number)

    @property
    def remark(self) -> str:
        """The reason that the run's report begins with."""
        return NO_PROJECT if self.throwaway else ""


def check_request(request: Request) -> None:
    """Raise BadRequest if a request can't be run; called before anything is created for it."""
    checked_command(request.command)
    if request.output_limit == 0:
        raise BadRequest("0 is not an output limit", hint="a number of bytes")
    check_variables(request.environment)
    if request.own_tmp and not request.session:
        raise BadRequest("--own-tmp needs a session, whose runs share that /tmp", hint="add --session NAME")
    for path in (request.cwd, request.root, *request.client_directories, *(request.write or ())):
        if "\0" in path:
            raise BadRequest(f"{path!r} is not a directory", hint="a path without a NUL")
        encode_text(path)


def check_variables(variables: Iterable[tuple[object, object]]) -> None:
    """Raise BadRequest if a variable can't be in a command's environment."""
    for name, value in variables:
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadRequest(f"the variable {name!r} or its value is not a string", hint="names and values are strings")
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise BadRequest(f"the variable {name!r} can't be set", hint="no = in its name, and no NUL anywhere")
        encode_text(name + value)


def encode_text(text: str) -> bytes:
    """Return the bytes of a text as a command gets it; raise BadRequest for half of a surrogate pair.

    The halves by which Python stands for bytes that are not UTF-8 are allowed.
    """
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise BadRequest("a text holds half of a surrogate pair", hint="it is not valid Unicode") from error


def checked_command(command: str | Sequence[str]) -> str | tuple[str, ...]:
    """Return the command, a list as a tuple, or raise BadRequest if it can't be run."""
    is_text = isinstance(command, str)
    if not is_text and not (isinstance(command, (list, tuple)) and all(isinstance(part, str) for part in command)):
        raise BadRequest(f"{command!r:.200} is not a command", hint="a string, or a list of strings")
    result = command if isinstance(command, str) else tuple(command)
    parts = (result,) if isinstance(result, str) else result
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
    return result


def build_argv(
    command: str | tuple[str, ...], shell: str = SHELL, *, source: str = "", tells_cwd: bool = False
) -> tuple[str, ...]:
    """Return the arguments to execute: a string is a line for the shell, a tuple is a program and its arguments.

    The shell starts the program in both cases, so that a missing program gives exit code 127, as people expect.
    `tells_cwd` makes the shell write its last directory to the session's file.
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
            before.append(f"PATH={SESSION_BIN}:$PATH")  # the sourced file may have set another PATH
    if not before:
        return shell, "-c", command
    # The line is an argument and not a part of the script, so that no quoting can go wrong. `shift` removes it before
    # the line runs.
    return shell, "-c", "; ".join([*before, 'eval "shift; $1"', *after]), name, command


def start_on_terminal(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return arguments that execute others with their standard input as the controlling terminal."""
    return argv[0], "-c", _WITH_TERMINAL, "sh", *argv


def command_text(command: str | tuple[str, ...]) -> str:
    """Write a command as a person would type it."""
    return command if isinstance(command, str) else " ".join(shell_quote(part) for part in command)


def shell_quote(part: str, *, always: bool = False) -> str:
    """Quote a word for the shell, if it needs it or `always`."""
    if not always and part and _SAFE.issuperset(part):
        return part
    return "'" + part.replace("'", "'\"'\"'") + "'"
