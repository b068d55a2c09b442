"""`fumehood hook`: an agent's shell command is rewritten, before it runs, to run in the hood; its edits are recorded.

Starts before every command of an agent, so it loads nothing but `json` and `re`. Whatever goes wrong here must forbid
the command: clients take any exit status but 2 for "go on".
"""

from __future__ import annotations

import os
import sys

from fumehood.core.report import explain_mark, first_names, printable
from fumehood.core.request import BACKGROUND_AFTER, DISCARD, HOLD, SESSION_DIRECTORY, shell_quote
from fumehood.errors import BadRequest, FumehoodError
from fumehood.faces.cli import hook_clients
from fumehood.faces.cli.hook_clients import ALLOW, ASK, CLIENTS, DENY, command_of, is_background
from fumehood.faces.cli.output import load_text, print_error, working_dir
from fumehood.store.places import FileLock, Places, session_mark, state_directory
from fumehood.store.places import places as all_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from fumehood.faces.cli.hook_clients import Command, ToolCall
    from fumehood.store.edits import EditSeat, OpenEdit

_FLAGS = frozenset({"--hold", "--discard", "--network", "--own-tmp"})
_VALUES = frozenset({"--project", "--draft", "--allow-host", "--root", "--timeout"})
_ASKED = frozenset({"--client", "--session", "--allow-tool"})
_NULL = os.makedev(1, 3)
_LONGEST = 120 * 1024  # what one argument may be, less what the client puts around it
_NAMED = 5
_MOST_OPEN = 16  # edits that wait to be recorded: each is looked at before and after the next
_STATUS = "fumehood_status"
_RUN_BY_SHELLS = frozenset("\n\"\\;|&$`<>()#")
_IN_PLAIN_NAMES = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-")
_LONGEST_NAME = 100


class HookOptions:
    """What the person set up."""

    def __init__(self) -> None:
        self.client = self.session = ""
        self.allowed_tools: list[str] = []
        self.leaves_asking = False
        self.passed_on: list[str] = []


def main(arguments: Sequence[str]) -> int:
    """Answer one tool call; 2 forbids it."""
    if set(arguments) & {"-h", "--help"}:
        sys.stdout.write(load_text("hook.txt"))
        return 0
    if os.path.isdir(SESSION_DIRECTORY):
        return 0  # its client runs whole in the hood, and so does all that it does
    try:
        _deliver(answered(_input(), parse(arguments)))
        return 0
    except FumehoodError as error:
        failure = error
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - what nobody foresaw must not let the command through
        what = f"the hook failed: {type(error).__name__}: {error}"
        failure = FumehoodError(what, hint="the command was not run")
    try:
        print_error(failure)
        sys.stderr.flush()
    except OSError:
        pass  # the exit code says it
    return 2


def _input() -> bytes:
    if os.isatty(0):
        hint = "a client starts this: fumehood setup CLIENT writes it into its settings; fumehood hook --help"
        raise BadRequest("the hook reads a client's tool call, and standard input is a terminal", hint=hint)
    return sys.stdin.buffer.read()


def _deliver(answer: str) -> None:
    """Write the answer; raises FumehoodError where nobody gets it, for without it the command runs as it was."""
    try:
        sys.stdout.write(answer)
        sys.stdout.flush()
    except OSError as error:
        # What could not be written would be tried once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise FumehoodError(f"the answer can't be written: {error.strerror}", hint="the command was not run") from error
    try:
        is_nowhere = os.fstat(sys.stdout.fileno()).st_rdev == _NULL  # or it was closed, and is that now
    except OSError:
        is_nowhere = False  # it is no file
    if answer not in ("", "{}\n") and is_nowhere:
        raise FumehoodError("nobody reads the answer", hint="the command was not run; standard output must be open")


def parse(arguments: Sequence[str]) -> HookOptions:
    """Read the command line."""
    options = HookOptions()
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if word in _FLAGS:
            options.passed_on.append(word)
        elif word == "--ask":
            options.leaves_asking = True
        elif name in _VALUES | _ASKED:
            if not equals and not waiting:
                raise BadRequest(f"{name} needs a value", hint="fumehood hook --help")
            value = value if equals else waiting.pop(0)
            if name == "--allow-tool":
                options.allowed_tools.append(value)
            elif name in _ASKED:
                setattr(options, name[2:], value)
            else:
                options.passed_on += (name, value)
        else:
            raise BadRequest(f"there is no option {word}", hint="fumehood hook --help")
    if options.client and options.client not in CLIENTS:
        raise BadRequest(f"there is no client {options.client}", hint=f"--client is one of: {', '.join(CLIENTS)}")
    return options


def answered(data: bytes, options: HookOptions) -> str:
    """Return the answer to a tool call: nothing where no command is run."""
    call = hook_clients.read_call(_read(data), options.client)
    client, answer = call.client, call.client.nothing
    is_shell = call.tool in client.shells and not call.is_after
    is_edit = call.tool in client.edits or call.tool in client.patches
    if is_shell and call.tool in client.patching_shells and "patch <<" in str(call.input):
        # A client may make an edit of a shell's command; any doubt about it makes it a command.
        is_edit = hook_clients.shell_patch(call) is not None
    try:
        if is_edit and call.is_after:
            edit_ended(call, _session(call, options))
        elif is_edit:
            if reason := edit_begins(call, _session(call, options), options.passed_on):
                answer = client.refused(ASK, reason)
        elif is_shell:
            tool_input = _rewritten(command_of(call), call, options)
            decision = ASK if options.leaves_asking and client.honours_ask else ALLOW
            # What sets our words apart from a command's, for its model.
            mark = session_mark(state_directory(), _session(call, options)) if client.tells_before else ""
            answer = client.rewritten(tool_input, decision, explain_mark(mark) if mark else "")
        elif not call.is_after:
            hook_clients.refuse_what_runs(call, options.allowed_tools)
    except BadRequest as error:
        answer = client.refused(DENY, f"{error.message}. {error.hint}")
    if not answer:
        return "" if answer is None else "{}\n"
    import json

    return json.dumps(answer) + "\n"


def _read(data: bytes) -> object:
    """Read JSON by the part of Python's own reader that is in C: the rest of it loads more than all else here."""
    from _json import make_scanner

    try:
        text = data.decode().strip(" \t\r\n")
        value, end = make_scanner(_Plain)(text, 0)  # type: ignore[arg-type]
        if end == len(text):
            return value
    except (StopIteration, ValueError, SystemError):
        pass  # told below; the last where that part lacks the other's exception
    import json

    try:
        return json.loads(data)
    except ValueError as error:
        raise BadRequest(f"the hook's input is not JSON: {error}", hint="the command was not run") from error


class _Plain:
    """How JSON is read: as it always is."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


def _rewritten(command: Command, call: ToolCall, options: HookOptions) -> dict[str, Any]:
    """Return the tool's input with its command rewritten."""
    text = command.text
    if command.script.startswith(f"{' '.join(map(shell_quote, own_command()))} "):
        text = command.script  # what we wrote ourselves, in a shell that the client put around it
    if "\0" in text:
        raise BadRequest("the command has a NUL in it", hint="no program can be given one; write it as \\0")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest("the command is not valid text", hint="it holds half of a surrogate pair") from error
    line = rewrite(text, call, options)
    if len(line.encode()) > _LONGEST:
        raise BadRequest("the command is too long to be rewritten", hint="write it to a script and run that")
    assert isinstance(call.input, dict)
    # The shell too: the list may have named a file of the project.
    return {**call.input, command.field: ["/bin/sh", "-c", line] if command.is_list else line}


def rewrite(command: str, call: ToolCall, options: HookOptions) -> str:
    """Return the line that runs a command in the hood; one that does already stays as it is.

    An agent may have copied one, or write a line that merely begins so: that is a command like any other.
    """
    ours = " ".join(map(shell_quote, own_command()))
    head, separator, rest = command.partition(" -- '")
    if separator and head.startswith(f"{ours} run --brief "):
        inner, _, after = f"{rest} ".replace("'\"'\"'", "\0").partition("'")
        inner, after = inner.replace("\0", "'"), after[:-1]
        begin, end = f"; {_STATUS}=$?; cd -P -- ", f' 2>/dev/null; (exit "${_STATUS}")'
        link = after.removeprefix(begin).removesuffix(end)
        # All around it is as in one for another call.
        is_plain = _RUN_BY_SHELLS.isdisjoint(head[len(ours) :]) and _RUN_BY_SHELLS.isdisjoint(link)
        is_ours = is_plain and after in ("", begin + link + end)
        command = inner if is_ours or command == _wrapped(inner, ours, call, options) else command
    return _wrapped(command, ours, call, options)


def _session(call: ToolCall, options: HookOptions) -> str:
    return options.session or _name(call.client.name, call.session)


def _wrapped(command: str, ours: str, call: ToolCall, options: HookOptions) -> str:
    session = _session(call, options)
    client = call.client
    # The shell that the client itself would use, as far as that is known.
    shells = (os.environ.get("SHELL", ""), "/bin/bash", "/usr/bin/bash")
    usable = (each for each in shells if each.rpartition("/")[2] in ("bash", "zsh") and os.access(each, os.X_OK))
    shell = next(usable, "/bin/sh")
    words = ["--brief", *options.passed_on, "--cwd", ".", "--shell", shell]
    words += ["--if-granted"] if {"--allow-host", "--network"} & set(options.passed_on) else []
    if session:
        begun_in = os.environ.get(client.project_variable, "") or working_dir()
        words += ["--session", session, "--begun-in", begun_in]
        for path in hook_clients.added_directories(call, begun_in):
            words += ["--beside", path]
        waits_s = BACKGROUND_AFTER if is_background(call) else client.waits_s
        words += ["--background-after", str(waits_s)] if waits_s is not None else []
    if client.shell_settings is not None and shell != "/bin/sh":
        words += ["--source", client.shell_settings(shell.rpartition("/")[2])]
    after = ""
    if session and client.keeps_directory and not is_background(call):
        # A link says where the command left the shell, whatever the name of that directory.
        link = f"{state_directory()}/sessions/{session}/{_name('at', call.call_id)}"
        words += ["--keep-cwd", link]
        after = f'; {_STATUS}=$?; cd -P -- {shell_quote(link)} 2>/dev/null; (exit "${_STATUS}")'
    return " ".join([ours, "run", *map(shell_quote, words), "--", shell_quote(command, always=True)]) + after


def own_command() -> list[str]:
    """Return how this program was started, so that it is found again from any directory and with any PATH."""
    started, words = os.path.abspath(sys.argv[0]), sys.orig_argv
    if os.path.basename(started) == "__main__.py":
        return [sys.executable, "-P", "-m", "fumehood"]
    if os.access(started, os.X_OK):
        return [started]
    options = words[1 : words.index(sys.argv[0])] if sys.argv[0] in words else []
    return [sys.executable, *options, started]


def _name(kind: str, identity: object) -> str:
    """Return a name made of what a client calls something; "" where it says nothing.

    Two things never get one name: what can't be a name as it is gets its hash, after a letter that no other name has.
    """
    if identity is None or identity == "":
        return "at-" if kind == "at" else ""
    if not isinstance(identity, str):
        raise BadRequest("the call's session has no usable name", hint="session_id and tool_use_id must be strings")
    if len(identity) <= _LONGEST_NAME and _IN_PLAIN_NAMES.issuperset(identity):
        return f"{kind}-{identity}"
    from hashlib import sha256

    kept = "".join(letter for letter in identity[:_LONGEST_NAME] if letter in _IN_PLAIN_NAMES)
    return f"{kind}-{kept[:40]}:{sha256(identity.encode(errors='surrogatepass')).hexdigest()[:40]}"


def edit_begins(call: ToolCall, session: str, passed_on: Sequence[str]) -> str:
    """Keep what an edit is about to change; returns why a person must be asked first, or nothing.

    Where the client has no way to ask one, BadRequest is raised instead, and nothing is kept.
    """
    from fumehood.linux import nofollow
    from fumehood.service import edits
    from fumehood.store.config import policy_for
    from fumehood.store.edits import keep_seat, open_edits, seat_of

    is_shell = call.tool in call.client.shells
    planned, directory = (hook_clients.shell_patch(call) if is_shell else None) or (hook_clients.planned_by(call), "")
    places = all_places()
    if not os.path.exists(places.database) or len(open_edits(places)) > _MOST_OPEN:
        from fumehood.service.opened import OpenedStore

        OpenedStore().close()
    nofollow.mode_notes_directory = places.modes
    seat = None if "--project" in passed_on else seat_of(places, session)
    if seat is None:
        seat = keep_seat(places, session, lambda: _seat(call, session, passed_on, places))
    policy = policy_for(places, seat.roots)
    # An edit goes to the project itself, which the commands of a draft leave alone.
    is_in_draft = bool(policy.drafts) or "--draft" in passed_on
    mode = policy.mode(HOLD if is_in_draft or "--hold" in passed_on else DISCARD if "--discard" in passed_on else None)
    cwd = os.path.join(call.directory if isinstance(call.directory, str) else working_dir(), directory)
    wanted = edits.targets(seat, cwd, [each.replace(path=os.path.expanduser(each.path)) for each in planned])
    verdict = edits.judged(seat, policy, mode, wanted, is_in_draft=is_in_draft)
    reason = "; ".join(verdict.reasons)
    if reason and not call.client.honours_ask:
        raise BadRequest(f"the user must be asked first: {reason}", hint=verdict.instead)
    names = [each.path if each.root == 0 else each.real for each in wanted]
    title = f"{'apply_patch' if is_shell else call.tool} {first_names([*map(printable, names)], _NAMED)}"
    with FileLock(places.lock(f"project-{seat.project}")):
        edits.begin(places, seat, session, call_name(call), title, cwd, wanted, verdict.flags)
    return reason


def _seat(call: ToolCall, session: str, passed_on: Sequence[str], places: Places) -> EditSeat:
    """Return the project of an edit, as that of a command: what is set, the session's, or where the client works."""
    from fumehood.store.database import Database
    from fumehood.store.edits import EditSeat
    from fumehood.store.projects import Projects

    projects = Projects(Database(places.database), places)
    rows = projects.database.rows("SELECT project FROM sessions WHERE name = ?", (session,)) if session else []
    if "--project" in passed_on:
        path = passed_on[len(passed_on) - passed_on[::-1].index("--project")]
    elif rows:
        path = projects.path_of(rows[0][0])
    else:
        path = projects.holding(os.environ.get(call.client.project_variable, "") or working_dir())
    project = projects.open(path)
    return EditSeat(project=project.id, roots=project.roots)


def edit_ended(call: ToolCall, session: str) -> None:
    """Note what an edit did; other edits of the same files that are under way go on from there."""
    from fumehood.store.edits import note_end, open_edits

    places, name = all_places(), call_name(call)

    def mine() -> OpenEdit | None:
        every = open_edits(places)
        return next((each for each in reversed(every) if (each.session, each.call) == (session, name)), None)

    if (edit := mine()) is None:
        return
    with FileLock(places.lock(f"project-{edit.project}")):
        if (edit := mine()) is None:
            return  # it is recorded
        note_end(places, edit, is_told=True)
        others = [each for each in open_edits(places, edit.project) if not each.ended_at]
        if any(each.paths & edit.paths for each in others):
            from fumehood.service.edits import renew

            renew(places, edit.project, edit.id, edit.paths)


def call_name(call: ToolCall) -> str:
    """Name a call, the same before and after it; where the client has no name for it, by what it does."""
    if isinstance(call.call_id, str) and call.call_id:
        return call.call_id
    # What `hashlib` has it from, without OpenSSL around it.
    from _blake2 import blake2b

    fields = sorted(call.input.items()) if isinstance(call.input, dict) else call.input
    return str(blake2b(repr((call.tool, fields)).encode(errors="surrogatepass"), digest_size=16).hexdigest())
