"""`fumehood hook`: rewrite an agent's shell command, before it runs, to run in the hood; record the agent's edits.

The hook starts before every command of an agent, so it imports nothing but `json` and `re`. Whatever goes wrong here
must forbid the command: clients take any exit status but 2 for "go on".
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
    from fumehood.store.edits import EditedProject, OpenEdit

_PASSED_ON_FLAGS = frozenset({"--hold", "--discard", "--network", "--own-tmp"})
_PASSED_ON_OPTIONS = frozenset({"--project", "--draft", "--allow-host", "--root", "--timeout"})
_OWN_OPTIONS = frozenset({"--client", "--session", "--allow-tool"})
_NULL_DEVICE = os.makedev(1, 3)
_MAX_LINE_BYTES = 120 * 1024  # the kernel's limit for one argument, less what the client puts around the line
_MAX_NAMED = 5  # files of an edit that its title names
_MAX_OPEN_EDITS = 16  # with more unrecorded edits, they are recorded first: each one makes the next slower
_STATUS_VARIABLE = "fumehood_status"
_SHELL_CHARACTERS = frozenset("\n\"\\;|&$`<>()#")
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-")
_MAX_NAME_LENGTH = 100


class HookOptions:
    """The options of the hook, as the person wrote them into the client's settings."""

    def __init__(self) -> None:
        self.client = self.session = ""
        self.allowed_tools: list[str] = []
        self.keeps_approval = False  # the client asks for approval as it does without the hook
        self.passed_on: list[str] = []  # options for `fumehood run`


def main(arguments: Sequence[str]) -> int:
    """Answer one tool call; returns the exit code: 2 forbids the call."""
    if set(arguments) & {"-h", "--help"}:
        sys.stdout.write(load_text("hook.txt"))
        return 0
    if os.path.isdir(SESSION_DIRECTORY):
        return 0  # the client itself runs in the hood, and so does everything that it starts
    try:
        _write_answer(answer_call(_read_input(), parse_options(arguments)))
        return 0
    except FumehoodError as error:
        failure = error
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - an unforeseen error must forbid the command too
        what = f"the hook failed: {type(error).__name__}: {error}"
        failure = FumehoodError(what, hint="the command was not run")
    try:
        print_error(failure)
        sys.stderr.flush()
    except OSError:
        pass  # the exit code forbids the call anyway
    return 2


def _read_input() -> bytes:
    if os.isatty(0):
        hint = "a client starts this: fumehood setup CLIENT writes it into its settings; fumehood hook --help"
        raise BadRequest("the hook reads a client's tool call, and standard input is a terminal", hint=hint)
    return sys.stdin.buffer.read()


def _write_answer(answer: str) -> None:
    """Write the answer; raises FumehoodError if the client can't get it, or it would run the command unchanged."""
    try:
        sys.stdout.write(answer)
        sys.stdout.flush()
    except OSError as error:
        # Otherwise Python would try once more to write it at its end, and fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise FumehoodError(f"the answer can't be written: {error.strerror}", hint="the command was not run") from error
    try:
        # If standard output was closed, main() has opened the null device in its place.
        is_null_device = os.fstat(sys.stdout.fileno()).st_rdev == _NULL_DEVICE
    except OSError:
        is_null_device = False  # standard output has no descriptor
    if answer not in ("", "{}\n") and is_null_device:
        raise FumehoodError("nobody reads the answer", hint="the command was not run; standard output must be open")


def parse_options(arguments: Sequence[str]) -> HookOptions:
    """Read the command line."""
    options = HookOptions()
    remaining = list(arguments)
    while remaining:
        word = remaining.pop(0)
        name, equals, value = word.partition("=")
        if word in _PASSED_ON_FLAGS:
            options.passed_on.append(word)
        elif word == "--ask":
            options.keeps_approval = True
        elif name in _PASSED_ON_OPTIONS | _OWN_OPTIONS:
            if not equals and not remaining:
                raise BadRequest(f"{name} needs a value", hint="fumehood hook --help")
            value = value if equals else remaining.pop(0)
            if name == "--allow-tool":
                options.allowed_tools.append(value)
            elif name in _OWN_OPTIONS:
                setattr(options, name[2:], value)
            else:
                options.passed_on += (name, value)
        else:
            raise BadRequest(f"there is no option {word}", hint="fumehood hook --help")
    if options.client and options.client not in CLIENTS:
        raise BadRequest(f"there is no client {options.client}", hint=f"--client is one of: {', '.join(CLIENTS)}")
    return options


def answer_call(data: bytes, options: HookOptions) -> str:
    """Return the client's answer to a tool call; "" or an empty object if the call is left as it is."""
    call = hook_clients.read_call(_parse_json(data), options.client)
    client, answer = call.client, call.client.no_answer
    is_shell = call.tool in client.shells and not call.is_after
    is_edit = call.tool in client.edits or call.tool in client.patches
    if is_shell and call.tool in client.patching_shells and "patch <<" in str(call.input):
        # This client turns such a shell command into an edit. If the patch is unclear, treat it as a command.
        is_edit = hook_clients.shell_patch(call) is not None
    try:
        if is_edit and call.is_after:
            end_edit(call, _session_name(call, options))
        elif is_edit:
            if reason := begin_edit(call, _session_name(call, options), options.passed_on):
                answer = client.refuse_answer(ASK, reason)
        elif is_shell:
            tool_input = _rewrite_input(command_of(call), call, options)
            decision = ASK if options.keeps_approval and client.asking_modes else ALLOW
            # The mark tells the model which lines are ours and which a command printed.
            mark = session_mark(state_directory(), _session_name(call, options)) if client.can_add_context else ""
            answer = client.rewrite_answer(tool_input, decision, explain_mark(mark) if mark else "")
        elif not call.is_after:
            hook_clients.refuse_if_it_runs_something(call, options.allowed_tools)
    except BadRequest as error:
        answer = client.refuse_answer(DENY, f"{error.message}. {error.hint}")
    if not answer:
        return "" if answer is None else "{}\n"
    import json

    return json.dumps(answer) + "\n"


def _parse_json(data: bytes) -> object:
    """Parse JSON with only the C part of Python's parser: importing the rest takes longer than all else here."""
    from _json import make_scanner

    try:
        text = data.decode().strip(" \t\r\n")
        value, end = make_scanner(_JsonOptions)(text, 0)  # type: ignore[arg-type]
        if end == len(text):
            return value
    except (StopIteration, ValueError, SystemError, AttributeError):
        # Parse again below, for the message. SystemError comes when the C part misses its exception class, and
        # AttributeError when that of a newer Python asks for an option that is not known here.
        pass
    import json

    try:
        return json.loads(data)
    except ValueError as error:
        raise BadRequest(f"the hook's input is not JSON: {error}", hint="the command was not run") from error


class _JsonOptions:
    """The options of the C parser: the defaults of `json.loads`."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float = parse_constant = float
    parse_int = int


def _rewrite_input(command: Command, call: ToolCall, options: HookOptions) -> dict[str, Any]:
    """Return the tool's input with its command rewritten."""
    text = command.text
    if command.script.startswith(f"{' '.join(map(shell_quote, own_command()))} "):
        text = command.script  # our own rewritten line, inside a shell that the client has put around it
    if "\0" in text:
        raise BadRequest("the command has a NUL in it", hint="no program can be given one; write it as \\0")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest("the command is not valid text", hint="it holds half of a surrogate pair") from error
    line = rewrite_command(text, call, options)
    if len(line.encode()) > _MAX_LINE_BYTES:
        raise BadRequest("the command is too long to be rewritten", hint="write it to a script and run that")
    assert isinstance(call.input, dict)
    # The shell is replaced too: the list may have named a program of the project.
    return {**call.input, command.field: ["/bin/sh", "-c", line] if command.is_list else line}


def rewrite_command(command: str, call: ToolCall, options: HookOptions) -> str:
    """Return the line that runs a command in the hood; if the command is such a line already, do not wrap it twice.

    The agent may have copied such a line from an earlier call. A line that only begins like one is wrapped as any other
    command.
    """
    own_line = " ".join(map(shell_quote, own_command()))
    head, separator, rest = command.partition(" -- '")
    if separator and head.startswith(f"{own_line} run --brief "):
        inner, _, after = f"{rest} ".replace("'\"'\"'", "\0").partition("'")
        inner, after = inner.replace("\0", "'"), after[:-1]
        begin, end = f"; {_STATUS_VARIABLE}=$?; cd -P -- ", f' 2>/dev/null; (exit "${_STATUS_VARIABLE}")'
        link = after.removeprefix(begin).removesuffix(end)
        # The line was written for another call if nothing in it but the inner command means anything to a shell.
        is_plain = _SHELL_CHARACTERS.isdisjoint(head[len(own_line) :]) and _SHELL_CHARACTERS.isdisjoint(link)
        is_ours = is_plain and after in ("", begin + link + end)
        command = inner if is_ours or command == _wrap_command(inner, own_line, call, options) else command
    return _wrap_command(command, own_line, call, options)


def _session_name(call: ToolCall, options: HookOptions) -> str:
    return options.session or _safe_name(call.client.name, call.session)


def _wrap_command(command: str, own_line: str, call: ToolCall, options: HookOptions) -> str:
    session = _session_name(call, options)
    client = call.client
    # Use the shell that the client would use, as far as we know.
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
        # `run` makes this link to the directory where the command ended, and the client's shell changes to it.
        link = f"{state_directory()}/sessions/{session}/{_safe_name('at', call.call_id)}"
        words += ["--keep-cwd", link]
        after = f'; {_STATUS_VARIABLE}=$?; cd -P -- {shell_quote(link)} 2>/dev/null; (exit "${_STATUS_VARIABLE}")'
    return " ".join([own_line, "run", *map(shell_quote, words), "--", shell_quote(command, always=True)]) + after


def own_command() -> list[str]:
    """Return the command that starts this program from any directory and with any PATH."""
    started, words = os.path.abspath(sys.argv[0]), sys.orig_argv
    if os.path.basename(started) == "__main__.py":
        return [sys.executable, "-P", "-m", "fumehood"]
    if os.access(started, os.X_OK):
        return [started]
    options = words[1 : words.index(sys.argv[0])] if sys.argv[0] in words else []
    return [sys.executable, *options, started]


def _safe_name(kind: str, identity: object) -> str:
    """Return a file name for a client's identifier, "" if there is none.

    Two identifiers never get the same name: one that can't be a file name is replaced by its hash after a colon, which
    no other name contains.
    """
    if identity is None or identity == "":
        return "at-" if kind == "at" else ""
    if not isinstance(identity, str):
        raise BadRequest("the call's session has no usable name", hint="session_id and tool_use_id must be strings")
    if len(identity) <= _MAX_NAME_LENGTH and _NAME_CHARACTERS.issuperset(identity):
        return f"{kind}-{identity}"
    from hashlib import sha256

    kept = "".join(letter for letter in identity[:_MAX_NAME_LENGTH] if letter in _NAME_CHARACTERS)
    return f"{kind}-{kept[:40]}:{sha256(identity.encode(errors='surrogatepass')).hexdigest()[:40]}"


def begin_edit(call: ToolCall, session: str, passed_on: Sequence[str]) -> str:
    """Save the files that an edit is about to change; returns why a person must be asked first, or "".

    If a person must be asked but the client would not ask, BadRequest is raised instead, and nothing is saved.
    """
    from fumehood.linux import nofollow
    from fumehood.service import edits
    from fumehood.store.config import policy_for
    from fumehood.store.edits import edited_project_of, open_edits, remember_edited_project

    is_shell = call.tool in call.client.shells
    patch = hook_clients.shell_patch(call) if is_shell else None
    planned_edits, patch_directory = patch or (hook_clients.planned_edits(call), "")
    places = all_places()
    if not os.path.exists(places.database) or len(open_edits(places)) > _MAX_OPEN_EDITS:
        from fumehood.service.opened import OpenedStore

        OpenedStore().close()
    nofollow.mode_notes_directory = places.modes
    seat = None if "--project" in passed_on else edited_project_of(places, session)
    if seat is None:
        seat = remember_edited_project(places, session, lambda: _find_seat(call, session, passed_on, places))
    policy = policy_for(places, seat.roots)
    # An edit writes to the project itself, which the commands of a draft do not.
    is_in_draft = bool(policy.drafts) or "--draft" in passed_on
    mode = policy.mode(HOLD if is_in_draft or "--hold" in passed_on else DISCARD if "--discard" in passed_on else None)
    cwd = os.path.join(call.directory if isinstance(call.directory, str) else working_dir(), patch_directory)
    planned_edits = [each.replace(path=os.path.expanduser(each.path)) for each in planned_edits]
    targets = edits.resolve_targets(seat, cwd, planned_edits)
    verdict = edits.judge_edit(seat, policy, mode, targets, is_in_draft=is_in_draft)
    reason = "; ".join(verdict.reasons)
    permission_mode = call.raw.get("permission_mode")
    if reason and permission_mode not in call.client.asking_modes:
        where = f", and nobody is asked in the mode {permission_mode!a}" if call.client.asking_modes else ""
        raise BadRequest(f"the user must be asked first{where}: {reason}", hint=verdict.instead)
    names = [each.path if each.root == 0 else each.real for each in targets]
    title = f"{'apply_patch' if is_shell else call.tool} {first_names([*map(printable, names)], _MAX_NAMED)}"
    with FileLock(places.lock(f"project-{seat.project}")):
        edits.begin_edit(places, seat, session, call_name(call), title, cwd, targets, verdict.flags)
    return reason


def _find_seat(call: ToolCall, session: str, passed_on: Sequence[str], places: Places) -> EditedProject:
    """Find the project of an edit as that of a command: by --project, the session, or the client's directory."""
    from fumehood.store.database import Database
    from fumehood.store.edits import EditedProject
    from fumehood.store.projects import Projects

    projects = Projects(Database(places.database), places)
    rows = projects.database.rows("SELECT project FROM sessions WHERE name = ?", (session,)) if session else []
    if "--project" in passed_on:
        path = passed_on[len(passed_on) - passed_on[::-1].index("--project")]
    elif rows:
        path = projects.path_of(rows[0][0])
    else:
        path = projects.project_around(os.environ.get(call.client.project_variable, "") or working_dir())
    project = projects.open(path)
    return EditedProject(project=project.id, roots=project.roots)


def end_edit(call: ToolCall, session: str) -> None:
    """Record what an edit did; unfinished edits of the same files then start from its result."""
    from fumehood.store.edits import note_end, open_edits

    places, name = all_places(), call_name(call)

    def find_open_edit() -> OpenEdit | None:
        open_ones = open_edits(places)
        return next((each for each in reversed(open_ones) if (each.session, each.call) == (session, name)), None)

    if (edit := find_open_edit()) is None:
        return
    with FileLock(places.lock(f"project-{edit.project}")):
        if (edit := find_open_edit()) is None:
            return  # another process has recorded it
        note_end(places, edit, is_told=True)
        others = [each for each in open_edits(places, edit.project) if not each.ended_at]
        if any(each.paths & edit.paths for each in others):
            from fumehood.service.edits import renew_edits

            renew_edits(places, edit.project, edit.id, edit.paths)


def call_name(call: ToolCall) -> str:
    """Return a name that a call has both before and after it; if the client gives it none, a hash of its input."""
    if isinstance(call.call_id, str) and call.call_id:
        return call.call_id
    # Importing `hashlib` would load OpenSSL.
    from _blake2 import blake2b

    fields = sorted(call.input.items()) if isinstance(call.input, dict) else call.input
    return str(blake2b(repr((call.tool, fields)).encode(errors="surrogatepass"), digest_size=16).hexdigest())
