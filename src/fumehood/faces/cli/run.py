"""`fumehood run` and `fumehood shell`: parsed by hand, because this starts before every command an agent runs."""

from __future__ import annotations

import os
import sys

from fumehood.core.paths import is_in
from fumehood.core.policy import FULL, NONE
from fumehood.core.report import Run, mark_line, printable, refusal_text
from fumehood.core.request import DISCARD, HOLD, Request, command_text, shell_quote
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError, Refused, as_fumehood_error
from fumehood.faces.cli.output import (
    Paint,
    load_text,
    parse_time_limit,
    print_notices,
    sink_to,
    sink_to_model,
    suggest,
    working_dir,
)
from fumehood.linux.launch import start
from fumehood.linux.streams import CLOSED, INHERITED, TYPED, is_same_file
from fumehood.linux.terminal import Signals, Terminal
from fumehood.service.hood import Caller, Hood
from fumehood.service.opened import OpenedStore, upkeep
from fumehood.service.permission import Permissions
from fumehood.service.provided import PLAYGROUND
from fumehood.service.sandbox import run_in
from fumehood.service.store import Store
from fumehood.store.audit import CLI, HOOK
from fumehood.store.places import session_mark, state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from fumehood.core.policy import Policy
    from fumehood.service.ask import Ask
    from fumehood.store.projects import Project

    Result = TypeVar("Result")

# Options that only the hook writes, and that the help does not list:
# --brief: print only what an agent must know; --keep-cwd LINK: leave a link to the directory where the command ended;
# --begun-in DIR: the directory where the client works; --beside DIR: another directory that the person gave the client;
# --background-after SECONDS: when the agent stops waiting for the command; --if-granted: run without the network if
# no grant allows it and nobody can be asked.
_HOOK_FLAGS = {"--brief", "--if-granted"}
_HOOK_VALUE_OPTIONS = {"--keep-cwd", "--begun-in", "--beside", "--background-after"}
FLAGS = _HOOK_FLAGS | {
    "--hold", "--discard", "--network", "--json", "--quiet", "--own-tmp", "--tty", "--explain", "--read-only",
    "--no-project",
}  # fmt: skip
VALUE_OPTIONS = _HOOK_VALUE_OPTIONS | {
    "--project", "--workspace", "--cwd", "--allow-host", "--root", "--timeout", "--draft", "--write", "--session",
    "--shell", "--source",
}  # fmt: skip
# Options that exclude each other, and the hint that says what to do instead.
_EXCLUSIVE = (
    ("--tty", "--json", "fumehood show last --json, afterwards"), ("--hold", "--discard", "choose one"),
    ("--read-only", "--write", "choose one"), ("--no-project", "--project", "choose one"),
    ("--no-project", "--workspace", "choose one"),
)  # fmt: skip
NO_TIME_LIMIT = "300000000"
_PATH_COLUMNS = 34
# For a terminal whose control sequences are shown to a model as text: programs had better write none.
_PLAIN_TERMINAL = (("TERM", "dumb"), ("COLORTERM", ""), ("NO_COLOR", "1"))


class RunVariant(Value):
    """How a command that is built on `run` (`shell`, `agent`, `acp`) differs from it."""

    title: str = ""  # the command as the history shows it
    extra_options: frozenset[str] = frozenset()  # its own options that take a value
    extra_flags: frozenset[str] = frozenset()  # its own options that take none
    adapt_request: Callable[[Request, Policy], Request] | None = None
    askers: Callable[[], Sequence[Ask]] | None = None  # finds who answers questions; by default the terminal
    is_interrupt_an_end: bool = False  # Ctrl-C is a normal end of the command, and does not cut it short


class CommandLine:
    """A parsed command line; if it is wrong, the first error and everything else that could be read."""

    def __init__(self) -> None:
        self.flags: set[str] = set()
        self.values: dict[str, list[str]] = {}
        self.command_words: list[str] = []
        self.variant = RunVariant()
        self.wants_help = False
        self.error: BadRequest | None = None

    @property
    def command(self) -> str | tuple[str, ...]:
        """The command to run: one word is a shell line, several are a program and its arguments."""
        return self.command_words[0] if len(self.command_words) == 1 else tuple(self.command_words)

    def last(self, name: str) -> str | None:
        """Return the value of an option, None if it was not given; the last one counts."""
        return self.values[name][-1] if name in self.values else None

    def raise_on_error(self) -> CommandLine:
        """Return this command line, or raise the error that was found in it."""
        if self.error is not None:
            raise self.error
        return self


def parse_options(
    arguments: Sequence[str], extra_options: frozenset[str] = frozenset(), extra_flags: frozenset[str] = frozenset()
) -> CommandLine:
    """Parse a command line; `extra_options` take a value, `extra_flags` take none.

    Parsing goes on after an error, because `--json`, which decides how the error is printed, may come later.
    """
    options, hint = CommandLine(), "fumehood run --help; the command goes after --"
    remaining, errors = list(arguments), list[BadRequest]()
    while remaining:
        word = remaining.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            break
        if word in ("-h", "--help"):
            options.wants_help = True
            break
        word = "--quiet" if word == "-q" else word
        if word in FLAGS or word in extra_flags:
            options.flags.add(word)
        elif name in VALUE_OPTIONS or name in extra_options:
            value = value if equals or not remaining else remaining.pop(0)
            if not value:  # mostly an unset shell variable; the default must not silently take its place
                errors.append(BadRequest(f"{name} needs a value", hint="fumehood run --help"))
            options.values.setdefault(name, []).append(value)
        elif name in FLAGS or name in extra_flags:
            one_host = f"for one host: --allow-host {value}" if name == "--network" and value else hint
            errors.append(BadRequest(f"{name} takes no value", hint=one_host))
        elif word.startswith("-"):
            all_options = FLAGS | extra_flags | VALUE_OPTIONS | extra_options
            suggestion = suggest(name, all_options - _HOOK_FLAGS - _HOOK_VALUE_OPTIONS)
            errors.append(BadRequest(f"there is no option {name}", hint=suggestion or hint))
        else:
            if "--network" in options.flags and remaining[:1] == ["--"] and _names_host(word):
                errors.append(BadRequest("--network takes no value", hint=f"for one host: --allow-host {word}"))
            remaining.insert(0, word)
            break
    options.command_words = remaining
    for first, second, alternative in _EXCLUSIVE:
        if {first, second} <= {*options.flags, *options.values} and not options.wants_help:
            errors.append(BadRequest(f"{first} and {second} can't be used together", hint=alternative))
    options.error = errors[0] if errors else None
    return options


def _names_host(word: str) -> bool:
    """Return True if a word must be a host: it is written like one, and no program here is called so."""
    if "/" in word or ("." not in word and ":" not in word):
        return False
    from shutil import which

    return which(word) is None


def main(arguments: Sequence[str], variant: RunVariant | None = None) -> int:
    """Run a command, pass on its output as it comes, then report what it changed; returns the exit code."""
    variant = variant or RunVariant()
    options, brief = parse_options(arguments, variant.extra_options, variant.extra_flags), None
    options.variant = variant
    as_json = "--json" in options.flags
    # With --brief, a Ctrl-C at the terminal is meant for the agent, not for this command.
    signals = Signals(may_be_typed="--brief" not in options.flags, is_interrupt_an_end=variant.is_interrupt_an_end)
    try:
        if options.raise_on_error().wants_help:
            sys.stdout.write(load_text("run.txt"))
            return 0
        if "--explain" in options.flags:
            _print_explanation(options, as_json)
            return 0
        brief = BriefOutput(options.last("--session") or "") if "--brief" in options.flags else None
        run, clean_up = _run_command(options, as_json, brief, signals)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - an unforeseen error is also reported in the form that was asked for
        code = _report_error(error, options, brief, as_json=as_json)
        signals.note()
        return code
    _report(run, options, brief)
    try:
        signals.raise_again()
        cleaned = clean_up()
        if brief is not None:
            brief.print_notices(cleaned.splitlines())
        elif cleaned and "--quiet" not in options.flags:
            sys.stderr.write(f"fumehood: {cleaned}\n")
        signals.note()
    except KeyboardInterrupt:
        pass  # a later command cleans up
    return run.exit_code if run.exit_code is not None else 125


def _report(run: Run, options: CommandLine, brief: BriefOutput | None) -> None:
    if "--json" in options.flags:
        _print_json(run.as_dict())
    elif not (run.changed or run.blocked or run.timed_out or not run.sandboxed):
        pass  # the command's output is all there is to say
    elif brief is not None:
        brief.print_run(run)
    elif "--quiet" not in options.flags:
        from fumehood.faces.cli.run_text import print_run

        if os.isatty(2) and run.one_stream and run.stdout[-1:] not in ("", "\n"):
            sys.stderr.write("\n")  # so that our report begins on a line of its own
        print_run(run)
    sys.stdout.flush()


def _report_error(error: Exception, options: CommandLine, brief: BriefOutput | None, *, as_json: bool) -> int:
    plain = as_fumehood_error(error)
    needs_traceback = plain is not error and bool(os.environ.get("FUMEHOOD_DEBUG"))
    if needs_traceback or not (as_json or brief):
        raise error
    if brief is not None and not as_json:
        brief.print_error(plain)
        return plain.exit_code
    report = plain.report
    if report is None:  # nothing was recorded: report a run with every field that a recorded run has
        valid = CommandLine() if options.error is not None else options
        report = Run(
            run=None, project=valid.last("--project"), command=command_text(valid.command), cwd=valid.last("--cwd"),
            state="refused" if isinstance(plain, Refused) else "failed", reason=plain.message,
            exit_code=plain.exit_code, session=valid.last("--session"), draft_name=valid.last("--draft"),
        ).as_dict()  # fmt: skip
    _print_json({**report, "error": plain.message, "hint": plain.hint})
    return plain.exit_code


def _print_json(report: dict[str, object]) -> None:
    import json

    sys.stdout.write(json.dumps(report) + "\n")


def _run_command(
    options: CommandLine, as_json: bool, brief: BriefOutput | None, signals: Signals
) -> tuple[Run, Callable[[], str]]:
    """Run the command; returns the run, and the clean-up to call after the report, which returns a notice or ""."""
    store = OpenedStore(face=CLI if brief is None else HOOK)
    project = _open_project(store, options, options.last("--session") or "")
    if (
        brief is not None
        or "--project" not in options.values
        or store.projects.project_around(working_dir()) == project.path
    ):
        store.history.current_project = project.id  # a number typed here means a run of this project
    if brief is None:
        print_notices(store)
    else:
        brief.print_notices(store.notices)
        store.notices.clear()
    policy = store.policy_of(project)
    request = _build_request(options, project, policy)

    def at_terminal() -> Sequence[Ask]:
        from fumehood.faces.cli.screen import terminal_asker

        return terminal_asker()

    # With --brief, the agent draws its own screen on the terminal: a question would get lost in it.
    askers = (options.variant.askers or at_terminal) if brief is None else ()
    permissions = Permissions(store, askers, patience_s=policy.ask_timeout)
    caller = _caller(options, as_json, brief).replace(signals=signals)
    if caller.is_agents_terminal:
        request = request.replace(environment=(*_PLAIN_TERMINAL, *request.environment))
    if policy.rootfs.install and not as_json and brief is None and "--quiet" not in options.flags:
        progress: list[Callable[[str, int, int], None]] = []  # filled only when a root tree is really installed

        def show_progress(line: str, done: int, total: int) -> None:
            if not progress:
                from fumehood.faces.cli.screen import Progress

                progress.append(Progress("fumehood: "))
            progress[0](line, done, total)

        caller = caller.replace(on_install=show_progress)
    hood = Hood(store, project, policy, start, permissions)
    run = _with_directory(store, options, request, lambda request: run_in(hood, request, caller))
    link = options.last("--keep-cwd")
    if link and run.ended_in and run.ended_in != request.cwd:
        from fumehood.service.session import leave_link

        # The shell that called us changes to the directory that the link names.
        run.blocked += leave_link(link, run.ended_in)
    return run, lambda: "\n".join(filter(None, (*store.notices, upkeep(store, project.id, policy.clean))))


def _open_project(store: Store, options: CommandLine, session: str) -> Project:
    """Return the project that the command line is about; with --no-project, the stand-in for none."""
    if "--no-project" in options.flags:
        return store.projects.placeholder()
    return store.projects.open(find_project(store, options, session))


def _with_directory(store: Store, options: CommandLine, request: Request, act: Callable[[Request], Result]) -> Result:
    """Call `act` with a request; with --no-project, the request gets a temporary directory until `act` returns."""
    if "--no-project" not in options.flags:
        return act(request)
    from fumehood.service.projects import ThrowawayDirectory

    thrown = ThrowawayDirectory(store.places)
    try:
        return act(request.replace(throwaway=thrown.path))
    finally:
        thrown.close()


def _build_request(options: CommandLine, project: Project, policy: Policy) -> Request:
    chosen_mode = HOLD if "--hold" in options.flags else DISCARD if "--discard" in options.flags else None
    shell = options.last("--shell") or ""
    if "--shell" in options.values and not (shell.startswith("/") and os.access(shell, os.X_OK)):
        raise BadRequest(f"{shell} is not a shell", hint="--shell takes the whole path of a program")
    cwd, write = options.last("--cwd"), options.values.get("--write")
    if cwd is None and "--session" in options.values:
        cwd = ""  # the directory where the session's last command ended
    elif cwd != PLAYGROUND:
        cwd = _resolve_path(options, project, cwd)
    writable = None if write is None else tuple(_resolve_path(options, project, path) for path in write)
    request = Request(
        command=options.command, title=options.variant.title, cwd=cwd, mode=policy.mode(chosen_mode),
        timeout=_parse_seconds(options.last("--timeout")), root=options.last("--root") or policy.root,
        session=options.last("--session") or "", draft=options.last("--draft") or "",
        own_tmp="--own-tmp" in options.flags, client_directories=tuple(options.values.get("--beside", ())),
        shell=shell, source=_find_shell_source(options.last("--source") or ""),
        network=FULL if "--network" in options.flags else NONE, hosts=tuple(options.values.get("--allow-host", ())),
        background_after=_parse_seconds(options.last("--background-after")), if_granted="--if-granted" in options.flags,
        write=() if "--read-only" in options.flags else writable, creates_draft="--brief" in options.flags,
    )  # fmt: skip
    adapt_request = options.variant.adapt_request
    return request if adapt_request is None else adapt_request(request, policy)


def find_project(store: Store, options: CommandLine, session: str) -> str:
    """Return the path of the project that the command line is about."""
    project = options.last("--project")
    workspace = options.last("--workspace")
    if workspace is not None:
        if project is not None:
            raise BadRequest("--project and --workspace can't be used together", hint="choose one")
        return store.workspaces.find(workspace).path
    if project is not None:
        return project
    if session:
        from fumehood.service.session import project_of

        session_project = project_of(store, session)
        if session_project is not None:
            if "--cwd" not in options.values:
                _refuse_other_project(store, session, session_project)
            return session_project
    # A client may run its first command in another directory than the one that it works in.
    return store.projects.project_around(options.last("--begun-in") or working_dir())


def _refuse_other_project(store: Store, session: str, session_project: str) -> None:
    """Refuse if the current directory is in another project than the session's.

    Someone who names no directory means the current one, not the project that the session was begun in.
    """
    here = working_dir()
    if is_in(here, (session_project,)) or is_in(here, store.projects.open(session_project).roots):
        return
    try:
        store.projects.open(store.projects.project_around(here), register=False)
    except BadRequest:
        return  # this can't be a project, such as the home
    hint = f"give the session another name; or, to run it there: --project {shell_quote(session_project)}"
    raise BadRequest(f"the session {session} belongs to {session_project}, and you are elsewhere", hint=hint)


def _find_shell_source(source: str) -> str:
    """Return the file that --source names; with a final `*`, the newest that begins so, or "" if there is none yet."""
    if not source.endswith("*"):
        path = os.path.join(working_dir(), source) if source else ""
        if path and not os.path.isfile(path):
            raise BadRequest(f"{path} does not exist, or is not a file", hint="--source names a file for the shell")
        return path
    folder, _, start = source[:-1].rpartition("/")
    try:
        with os.scandir(folder) as entries:
            files = [(entry.stat().st_mtime_ns, entry.path) for entry in entries if entry.name.startswith(start)]
    except FileNotFoundError:
        return ""
    return max(files)[1] if files else ""


def _resolve_path(options: CommandLine, project: Project, path: str | None) -> str:
    """Return the absolute path that an option means; None means the current directory, or else the project.

    A path is relative to the current directory. But if a person outside of the project names it (--project), the path
    is relative to the project; an agent's path stays relative to its client's directory.
    """
    here = working_dir()
    names_project = "--session" not in options.values and {"--project", "--workspace"} & options.values.keys()
    base = here if is_in(here, project.roots) or (path is not None and not names_project) else project.path
    return os.path.join(base, path or "")


def _parse_seconds(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = parse_time_limit(text)
    if not seconds:
        raise BadRequest(f"{text!r} is not a time limit", hint="--timeout takes seconds, more than 0 and less than 1e9")
    return seconds


def _caller(options: CommandLine, as_json: bool, brief: BriefOutput | None) -> Caller:
    """Return where input comes from and output goes to: byte for byte, and on a terminal with a line of progress."""
    if "--tty" in options.flags:
        if not (os.isatty(0) and os.isatty(1)):
            raise BadRequest("--tty needs a terminal", hint="leave it out where input or output is not one")
        return Caller(terminal=Terminal(), on_stdout=sink_to(1, screen=True))
    if brief is not None and os.isatty(0) and os.isatty(1):
        # The client may type its model's keys into this terminal later, which no hook could rewrite: so the command
        # gets this terminal.
        return Caller(terminal=Terminal(), is_agents_terminal=True, on_stdout=sink_to_model(1, brief.mark))
    # The command never gets the person's terminal itself: it could type into it.
    is_typed = os.isatty(0)
    if as_json:
        return Caller(stdin=CLOSED if is_typed else INHERITED)
    plain = Caller(stdin=TYPED if is_typed else INHERITED, is_one_stream=is_same_file(1, 2))
    if brief is not None:
        # One stream, because the client would put the text of two pipes together in any order.
        return plain.replace(is_one_stream=True, on_stdout=brief.sink, on_again=brief.print_retry)
    if "--quiet" in options.flags or not os.isatty(2) or os.environ.get("TERM") == "dumb":
        return plain.replace(on_stdout=sink_to(1), on_stderr=sink_to(2), on_again=_print_retry)
    from fumehood.faces.cli.screen import LiveLine

    live = LiveLine()
    stdout, stderr = live.around(sink_to(1)), live.around(sink_to(2))
    return plain.replace(on_stdout=stdout, on_stderr=stderr, watch=live.watch, on_again=_print_retry)


def _print_retry(reason: str) -> None:
    sink_to(2)(f"fumehood: {reason}\n".encode(errors="backslashreplace"))


def shell(arguments: Sequence[str]) -> int:
    """Open a shell on a terminal of its own; returns its exit code."""
    options = parse_options(arguments).raise_on_error()
    if options.wants_help:
        sys.stdout.write(load_text("shell.txt"))
        return 0
    if options.command_words:
        raise BadRequest("shell takes no command", hint="fumehood run --tty -- COMMAND")
    if "--json" in options.flags:
        raise BadRequest("shell does not take --json", hint="fumehood show last --json, afterwards")
    if not (os.isatty(0) and os.isatty(1)):
        raise BadRequest("a shell needs a terminal", hint="fumehood run -- COMMAND needs none")
    words = [word for word in arguments if word != "--"]
    limit = [] if "--timeout" in options.values else ["--timeout", NO_TIME_LIMIT]
    if "--quiet" not in options.flags:
        sys.stderr.write("fumehood: this shell is in the hood; what it writes is judged when you leave it\n")
        sys.stderr.flush()
    # The person's own shell; `sh` if the system that the command sees lacks it.
    program = os.environ.get("SHELL") or "sh"
    variables, extra = _PROMPTS.get(os.path.basename(program), ("", ""))
    line = f"command -v {shell_quote(program)} >/dev/null && {variables} exec {shell_quote(program)} -i {extra}; "
    line += f"{_PROMPTS['sh'][0]} exec sh -i"
    return main(["--tty", *limit, *words, "--", line], RunVariant(title="fumehood shell"))


# For each shell, the variables before it and the arguments after it that put "(hood)" into its prompt. The prompt that
# the system's settings make is kept where the shell lets us add to it.
_PROMPTS = {
    "sh": ("PS1='(hood) $ '", ""),
    "bash": (
        # Without a history file: otherwise the report of each shell would say that it is not kept.
        r"""HISTFILE= PS1='(hood) \w\$ ' PROMPT_COMMAND='case $PS1 in "(hood)"*) ;; *) PS1="(hood) $PS1" ;; esac'""",
        "",
    ),
    "zsh": ("PS1='(hood) %~ %# '", ""),
    "fish": ("", "-C 'functions -c fish_prompt its_own; function fish_prompt; echo -n \"(hood) \"; its_own; end'"),
}  # fmt: skip
_PROMPTS |= dict.fromkeys(("dash", "ash", "ksh", "mksh"), _PROMPTS["sh"])


class BriefOutput:
    """What `run --brief` prints: the command's own output, then what the agent must know besides.

    The client joins standard output and standard error in any way it likes, and its model reads one text. So each line
    of ours begins with the mark of the session, which the hook tells the model. The mark, and everything invisible, is
    removed from what the command prints.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self.mark = session_mark(state_directory(), session)
        self._is_read_by_model = not os.isatty(1)
        self.sink = sink_to_model(1, self.mark) if self._is_read_by_model else sink_to(1)

    def print_run(self, run: Run) -> None:
        """Print what the agent can't know from the command's output, and was not told by an earlier run."""
        from fumehood.faces.cli.run_text import lines_for_agent

        blocked = run.blocked
        if blocked and self._session:
            from fumehood.service.session import unreported

            blocked = unreported(f"{state_directory()}/sessions/{self._session}", blocked)
        self._print(lines_for_agent(run, blocked))

    def print_retry(self, reason: str) -> None:
        """Print why the command is run once more; without this, its output would seem to be printed twice."""
        self._print([reason])

    def print_notices(self, notices: Sequence[str]) -> None:
        """Print what the person should know once."""
        self._print([f"note for the user: {printable(notice)}" for notice in notices])

    def print_error(self, error: FumehoodError) -> None:
        """Print why nothing ran."""
        self._write([refusal_text(error, self.mark)])

    def _print(self, lines: Sequence[str]) -> None:
        self._write([f"{mark_line(self.mark)} {line}" for line in lines])

    def _write(self, lines: Sequence[str]) -> None:
        if lines:
            before = "\n" if self._is_read_by_model and self.sink.is_in_line else ""
            text = before + "".join(f"{line}\n" for line in lines)
            sink_to(2)(text.encode(errors="backslashreplace"))


def _print_explanation(options: CommandLine, as_json: bool) -> None:
    """Print what the command would see, and what else decides how it would run; nothing runs."""
    from fumehood.service import explain

    store = OpenedStore(face=CLI)
    project = _open_project(store, options, options.last("--session") or "")
    policy = store.policy_of(project)
    hood = Hood(store, project, policy, start)
    request = _build_request(options, project, policy)
    explanation = _with_directory(store, options, request, lambda request: explain.explain_request(hood, request))
    if as_json:
        _print_json(explanation)
        return
    paint = Paint(1)
    lines = [f"{printable(explanation['command'])} would run like this; nothing was run", ""]
    hosts = f": {', '.join(explanation['hosts'])}" if explanation["hosts"] else ""
    for name, value in (
        ("directory", explanation["cwd"]), ("shell", explanation["shell"]),
        ("captured by", f"{explanation['capture']}: {explanation['capture_by'].removeprefix('captured by ')}"),
        ("network", f"{explanation['network']}{hosts}"), ("owners", explanation["owners"]),
    ):  # fmt: skip
        lines.append(f"  {name:12} {printable(str(value))}")
    lines += ["", paint("what it sees", "bold")]
    for mount in explanation["mounts"]:
        why = paint(f"  ({printable(mount['why'])})", "dim") if mount["why"] else ""
        lines.append(f"  {printable(mount['path']):{_PATH_COLUMNS}} {printable(mount['what'])}{why}")
    environment = explanation["environment"]
    lines += ["", paint("variables", "bold"), f"  kept     {' '.join(environment['kept'])}"]
    lines.append(f"  dropped  {' '.join(environment['dropped']) or 'none'}")
    lines += ["", paint("limits", "bold")]
    lines += [f"  {name.replace('_', ' '):12} {amount}" for name, amount in explanation["limits"].items()]
    sys.stdout.write("\n".join(lines) + "\n")
