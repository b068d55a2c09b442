"""`fumehood run` and `fumehood shell`: parsed by hand, because this starts before every command an agent runs."""

from __future__ import annotations

import os
import sys

from fumehood.core.masks import is_in
from fumehood.core.policy import FULL, NONE
from fumehood.core.report import Run, line_of, printable, refusal
from fumehood.core.request import DISCARD, HOLD, Request, quoted, shown
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError, Refused, plain_error
from fumehood.faces.cli.output import Paint, here, meant, sink_to, sink_to_model, tell_notices, text_of, time_limit
from fumehood.linux.launch import start
from fumehood.linux.streams import CLOSED, INHERITED, TYPED, is_same_file
from fumehood.linux.terminal import Signals, Terminal
from fumehood.service.hood import Hood, Wishes
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

# The hook's: --brief, what an agent must know and no more; --keep-cwd, a link to where the command ended; --begun-in,
# where the client works; --beside, a directory that the person gave it besides; --background-after, the seconds after
# which the agent goes on without the command; --if-granted, go without a network that nobody is there to allow.
_FLAGS = {"--hold", "--discard", "--network", "--json", "--quiet", "--own-tmp", "--brief", "--tty", "--explain"}
_FLAGS |= {"--if-granted", "--read-only", "--no-project"}
_VALUES = {"--project", "--workspace", "--cwd", "--allow-host", "--root", "--timeout", "--draft"}
_VALUES |= {"--write", "--session", "--shell", "--source", "--keep-cwd", "--begun-in", "--background-after", "--beside"}
_OF_THE_HOOK = {"--brief", "--keep-cwd", "--begun-in", "--beside", "--background-after", "--if-granted"}
_EITHER = (
    ("--tty", "--json", "fumehood show last --json, afterwards"), ("--hold", "--discard", "choose one"),
    ("--read-only", "--write", "choose one"), ("--no-project", "--project", "choose one"),
    ("--no-project", "--workspace", "choose one"),
)  # fmt: skip
NO_TIME_LIMIT = "300000000"
_WIDE = 34


class Special(Value):
    """What another command makes of `run`: its own options, what it does to the request, and who is asked."""

    title: str = ""  # what the record calls the command
    more: frozenset[str] = frozenset()  # options that take a value
    flags: frozenset[str] = frozenset()  # and such that take none
    prepare: Callable[[Request, Policy], Request] | None = None
    asks: Callable[[], Sequence[Ask]] | None = None
    is_interrupt_an_end: bool = False  # and nothing that cuts the command short


class Options:
    """What was asked on the command line; where something is wrong with it, that error and what could be read."""

    def __init__(self) -> None:
        self.flags: set[str] = set()
        self.values: dict[str, list[str]] = {}
        self.command: list[str] = []
        self.special = Special()
        self.wants_help = False
        self.error: BadRequest | None = None

    @property
    def asked(self) -> str | tuple[str, ...]:
        """The command: one word is a shell line, several are a program and its arguments."""
        return self.command[0] if len(self.command) == 1 else tuple(self.command)

    def last(self, name: str) -> str | None:
        """The value of an option; the last one given counts."""
        return self.values[name][-1] if name in self.values else None

    def checked(self) -> Options:
        """Return these, if nothing is wrong."""
        if self.error is not None:
            raise self.error
        return self


def parse(
    arguments: Sequence[str], more: frozenset[str] = frozenset(), flags: frozenset[str] = frozenset()
) -> Options:
    """Read the command line, with some `more` options that take a value, and `flags`.

    It is read on after an error: how that is to be told may come later.
    """
    options, hint = Options(), "fumehood run --help; the command goes after --"
    waiting, wrong = list(arguments), list[BadRequest]()
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            break
        if word in ("-h", "--help"):
            options.wants_help = True
            break
        word = "--quiet" if word == "-q" else word
        if word in _FLAGS or word in flags:
            options.flags.add(word)
        elif name in _VALUES or name in more:
            value = value if equals or not waiting else waiting.pop(0)
            if not value:  # a variable that is not set, for the most part: never something else in its place
                wrong.append(BadRequest(f"{name} needs a value", hint="fumehood run --help"))
            options.values.setdefault(name, []).append(value)
        elif name in _FLAGS or name in flags:
            wrong.append(BadRequest(f"{name} takes no value", hint=hint))
        elif word.startswith("-"):
            near = meant(name, (_FLAGS | flags | _VALUES | more) - _OF_THE_HOOK)
            wrong.append(BadRequest(f"there is no option {name}", hint=near or hint))
        else:
            waiting.insert(0, word)
            break
    options.command = waiting
    for one, other, instead in _EITHER:
        if {one, other} <= {*options.flags, *options.values} and not options.wants_help:
            wrong.append(BadRequest(f"{one} and {other} can't be used together", hint=instead))
    options.error = wrong[0] if wrong else None
    return options


def main(arguments: Sequence[str], special: Special | None = None) -> int:
    """Run a command, show its output as it comes, then what it changed."""
    special = special or Special()
    options, brief = parse(arguments, special.more, special.flags), None
    options.special = special
    as_json = "--json" in options.flags
    # Whoever is at an agent's terminal talks to the agent.
    signals = Signals(may_be_typed="--brief" not in options.flags, is_interrupt_an_end=special.is_interrupt_an_end)
    try:
        if options.checked().wants_help:
            sys.stdout.write(text_of("run.txt"))
            return 0
        if "--explain" in options.flags:
            _explain(options, as_json)
            return 0
        brief = Brief(options.last("--session") or "") if "--brief" in options.flags else None
        run, tidy = _run(options, as_json, brief, signals)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever nobody foresaw is told in the form that was asked for
        code = _tell_error(error, options, brief, as_json=as_json)
        signals.note()
        return code
    _tell(run, options, brief)
    try:
        signals.interrupt_again()
        cleaned = tidy()
        if brief is not None:
            brief.tell_notices(cleaned.splitlines())
        elif cleaned and "--quiet" not in options.flags:
            sys.stderr.write(f"fumehood: {cleaned}\n")
        signals.note()
    except KeyboardInterrupt:
        pass  # there is another time for that
    return run.exit_code if run.exit_code is not None else 125


def _tell(run: Run, options: Options, brief: Brief | None) -> None:
    if "--json" in options.flags:
        _print_object(run.as_dict())
    elif not (run.changed or run.blocked or run.timed_out or not run.sandboxed):
        pass  # the output says it all
    elif brief is not None:
        brief.tell(run)
    elif "--quiet" not in options.flags:
        from fumehood.faces.cli.run_text import tell_run

        if os.isatty(2) and run.one_stream and run.stdout[-1:] not in ("", "\n"):
            sys.stderr.write("\n")  # or words of the command's would stand in a line of ours
        tell_run(run)
    sys.stdout.flush()


def _tell_error(error: Exception, options: Options, brief: Brief | None, *, as_json: bool) -> int:
    plain = plain_error(error)
    is_shown_whole = plain is not error and bool(os.environ.get("FUMEHOOD_DEBUG"))
    if is_shown_whole or not (as_json or brief):
        raise error
    if brief is not None and not as_json:
        brief.tell_error(plain)
        return plain.exit_code
    report = plain.report
    if report is None:  # a run that never was, with every field that a run has
        asked = Options() if options.error is not None else options
        report = Run(
            run=None, project=asked.last("--project"), command=shown(asked.asked), cwd=asked.last("--cwd"),
            state="refused" if isinstance(plain, Refused) else "failed", reason=plain.message,
            exit_code=plain.exit_code, session=asked.last("--session"), draft_name=asked.last("--draft"),
        ).as_dict()  # fmt: skip
    _print_object({**report, "error": plain.message, "hint": plain.hint})
    return plain.exit_code


def _print_object(report: dict[str, object]) -> None:
    import json

    sys.stdout.write(json.dumps(report) + "\n")


def _run(options: Options, as_json: bool, brief: Brief | None, signals: Signals) -> tuple[Run, Callable[[], str]]:
    """Run the command; returns the run, and what is to be done once it is told; that may have something to say."""
    store = OpenedStore(face=CLI if brief is None else HOOK)
    project = _opened(store, options, options.last("--session") or "")
    if brief is not None or "--project" not in options.values or store.projects.holding(here()) == project.path:
        store.history.current_project = project.id  # a number typed here means a run of this project
    if brief is None:
        tell_notices(store)
    else:
        brief.tell_notices(store.notices)
        store.notices.clear()
    policy = store.policy_of(project)
    request = _request(options, project, policy)

    def at_terminal() -> Sequence[Ask]:
        from fumehood.faces.cli.screen import terminal

        return terminal()

    # An agent's own screen is on the terminal, if there is one: a question would get lost in it.
    asks = (options.special.asks or at_terminal) if brief is None else ()
    permissions = Permissions(store, asks, patience_s=policy.ask_timeout)
    wishes = _wishes(options, as_json, brief).replace(signals=signals)
    if policy.rootfs.install and not as_json and brief is None and "--quiet" not in options.flags:
        shown_by: list[Callable[[str, int, int], None]] = []  # loaded only where a root tree is installed

        def tell_installing(line: str, done: int, total: int) -> None:
            if not shown_by:
                from fumehood.faces.cli.screen import Progress

                shown_by.append(Progress("fumehood: "))
            shown_by[0](line, done, total)

        wishes = wishes.replace(on_install=tell_installing)
    hood = Hood(store, project, policy, start, permissions)
    run = _placed(store, options, request, lambda request: run_in(hood, request, wishes))
    link = options.last("--keep-cwd")
    if link and run.ended_in and run.ended_in != request.cwd:
        from fumehood.service.session import leave_link

        # For the shell that called us to follow.
        run.blocked += leave_link(link, run.ended_in)
    return run, lambda: upkeep(store, project.id, policy.clean)


def _opened(store: Store, options: Options, session: str) -> Project:
    """Return the project that the command line is about, or what stands for none."""
    if "--no-project" in options.flags:
        return store.projects.nowhere()
    return store.projects.open(chosen_project(store, options, session))


def _placed(store: Store, options: Options, request: Request, work: Callable[[Request], Result]) -> Result:
    """Do something about a request; without a project, it has a directory that is thrown away with it."""
    if "--no-project" not in options.flags:
        return work(request)
    from fumehood.service.projects import ThrownDirectory

    thrown = ThrownDirectory(store.places)
    try:
        return work(request.replace(thrown=thrown.path))
    finally:
        thrown.close()


def _request(options: Options, project: Project, policy: Policy) -> Request:
    asked = HOLD if "--hold" in options.flags else DISCARD if "--discard" in options.flags else None
    shell = options.last("--shell") or ""
    if "--shell" in options.values and not (shell.startswith("/") and os.access(shell, os.X_OK)):
        raise BadRequest(f"{shell} is not a shell", hint="--shell takes the whole path of a program")
    cwd, write = options.last("--cwd"), options.values.get("--write")
    if cwd is None and "--session" in options.values:
        cwd = ""  # where its last command ended
    elif cwd != PLAYGROUND:  # where the caller says, or is if that is in the project, never elsewhere
        cwd = _named(options, project, cwd)
    allowed = None if write is None else tuple(_named(options, project, path) for path in write)
    request = Request(
        command=options.asked, title=options.special.title, cwd=cwd, mode=policy.mode(asked),
        timeout=_seconds(options.last("--timeout")), root=options.last("--root") or policy.root,
        session=options.last("--session") or "", draft=options.last("--draft") or "",
        own_tmp="--own-tmp" in options.flags, beside=tuple(options.values.get("--beside", ())),
        shell=shell, source=_source(options.last("--source") or ""),
        network=FULL if "--network" in options.flags else NONE, hosts=tuple(options.values.get("--allow-host", ())),
        background_after=_seconds(options.last("--background-after")), if_granted="--if-granted" in options.flags,
        write=() if "--read-only" in options.flags else allowed, begins_draft="--brief" in options.flags,
    )  # fmt: skip
    prepare = options.special.prepare
    return request if prepare is None else prepare(request, policy)


def chosen_project(store: Store, options: Options, session: str) -> str:
    """Return the project that the command line is about."""
    named = options.last("--project")
    workspace = options.last("--workspace")
    if workspace is not None:
        if named is not None:
            raise BadRequest("--project and --workspace can't be used together", hint="choose one")
        return store.workspaces.find(workspace).path
    if named is not None:
        return named
    if session:
        from fumehood.service.session import project_of

        begun = project_of(store, session)
        if begun is not None:
            if "--cwd" not in options.values:
                _refuse_elsewhere(store, session, begun)
            return begun
    # A client's first command may be for another directory than the one that the client works in.
    return store.projects.holding(options.last("--begun-in") or here())


def _refuse_elsewhere(store: Store, session: str, begun: str) -> None:
    """Refuse in another project than the session's: who names no directory means this one, not one of some time ago."""
    if is_in(here(), (begun,)) or is_in(here(), store.projects.open(begun).roots):
        return
    try:
        store.projects.open(store.projects.holding(here()), register=False)
    except BadRequest:
        return  # nobody works here, such as in the home
    hint = f"give the session another name; or, to run it there: --project {quoted(begun)}"
    raise BadRequest(f"the session {session} belongs to {begun}, and you are elsewhere", hint=hint)


def _source(asked: str) -> str:
    """Return the file that is meant: of several that begin the same, the newest, if there is one yet."""
    if not asked.endswith("*"):
        path = os.path.join(here(), asked) if asked else ""
        if path and not os.path.isfile(path):
            raise BadRequest(f"{path} does not exist, or is not a file", hint="--source names what the shell reads")
        return path
    folder, _, start = asked[:-1].rpartition("/")
    try:
        with os.scandir(folder) as entries:
            files = [(entry.stat().st_mtime_ns, entry.path) for entry in entries if entry.name.startswith(start)]
    except FileNotFoundError:
        return ""
    return max(files)[1] if files else ""


def _named(options: Options, project: Project, path: str | None) -> str:
    """Return what a path of an option means."""
    current = here()
    # A person who names a project from elsewhere names a directory in it; an agent's is relative to its client's.
    is_named = "--session" not in options.values and {"--project", "--workspace"} & options.values.keys()
    start = current if is_in(current, project.roots) or (path is not None and not is_named) else project.path
    return os.path.join(start, path or "")


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = time_limit(text)
    if not seconds:
        raise BadRequest(f"{text!r} is not a time limit", hint="--timeout takes seconds, more than 0 and less than 1e9")
    return seconds


def _wishes(options: Options, as_json: bool, brief: Brief | None) -> Wishes:
    """Pass output on as it comes, byte for byte; on a terminal, show what is being written."""
    if "--tty" in options.flags:
        if not (os.isatty(0) and os.isatty(1)):
            raise BadRequest("--tty needs a terminal", hint="leave it out where input or output is not one")
        return Wishes(terminal=Terminal(), on_stdout=sink_to(1, screen=True))
    if brief is not None and os.isatty(0) and os.isatty(1):
        # A client that typed its model's keys there later could not have them rewritten: this is the terminal.
        return Wishes(terminal=Terminal(), is_agents_terminal=True, on_stdout=sink_to_model(1, brief.mark))
    # The command never gets the person's terminal itself: it could type into it.
    typed = os.isatty(0)
    if as_json:
        return Wishes(stdin=CLOSED if typed else INHERITED)
    plain = Wishes(stdin=TYPED if typed else INHERITED, is_one_stream=is_same_file(1, 2))
    if brief is not None:
        # The model reads one text: what its client would read from two pipes comes in no certain order.
        return plain.replace(is_one_stream=True, on_stdout=brief.sink, on_again=brief.tell_again)
    if "--quiet" in options.flags or not os.isatty(2) or os.environ.get("TERM") == "dumb":
        return plain.replace(on_stdout=sink_to(1), on_stderr=sink_to(2), on_again=_tell_again)
    from fumehood.faces.cli.screen import LiveLine

    live = LiveLine()
    out, err = live.around(sink_to(1)), live.around(sink_to(2))
    return plain.replace(on_stdout=out, on_stderr=err, watch=live.watch, on_again=_tell_again)


def _tell_again(reason: str) -> None:
    sink_to(2)(f"fumehood: {reason}\n".encode(errors="backslashreplace"))


def shell(arguments: Sequence[str]) -> int:
    """Open a shell; returns its exit code."""
    options = parse(arguments).checked()
    if options.wants_help:
        sys.stdout.write(text_of("shell.txt"))
        return 0
    if options.command:
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
    # The person's own shell, or where the command's system lacks it, any.
    own = os.environ.get("SHELL") or "sh"
    prompt, more = _PROMPTS.get(os.path.basename(own), ("", ""))
    line = f"command -v {quoted(own)} >/dev/null && {prompt} exec {quoted(own)} -i {more}; "
    line += f"{_PROMPTS['sh'][0]} exec sh -i"
    return main(["--tty", *limit, *words, "--", line], Special(title="fumehood shell"))


# What has a shell say in its prompt that it is in the hood: variables before it, arguments after it. What the system's
# own settings make of a prompt stays, where the shell lets us add to it.
_PROMPTS = {
    "sh": ("PS1='(hood) $ '", ""),
    "bash": (
        # Without a history: each shell would be told that it is not kept.
        r"""HISTFILE= PS1='(hood) \w\$ ' PROMPT_COMMAND='case $PS1 in "(hood)"*) ;; *) PS1="(hood) $PS1" ;; esac'""",
        "",
    ),
    "zsh": ("PS1='(hood) %~ %# '", ""),
    "fish": ("", "-C 'functions -c fish_prompt its_own; function fish_prompt; echo -n \"(hood) \"; its_own; end'"),
}  # fmt: skip
_PROMPTS |= dict.fromkeys(("dash", "ash", "ksh", "mksh"), _PROMPTS["sh"])


class Brief:
    """The two outputs of `run --brief`, which the hook writes: the command's own, and then what we must add.

    The client's model reads both in one text, from two streams that the client puts together as it likes. So each
    line of ours begins with the mark of the conversation, which the hook tells the model; and nothing that a command
    prints holds it, or anything invisible.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self.mark = session_mark(state_directory(), session)
        self._is_read_by_model = not os.isatty(1)
        self.sink = sink_to_model(1, self.mark) if self._is_read_by_model else sink_to(1)

    def tell(self, run: Run) -> None:
        """Write what the agent can't know from the command itself, nor from before."""
        from fumehood.faces.cli.run_text import agent_lines

        blocked = run.blocked
        if blocked and self._session:
            from fumehood.service.session import untold

            blocked = untold(f"{state_directory()}/sessions/{self._session}", blocked)
        self._write([f"{line_of(self.mark)} {line}" for line in agent_lines(run, blocked)])

    def tell_again(self, reason: str) -> None:
        """Write why the command is run once more: what it prints comes twice."""
        self._write([f"{line_of(self.mark)} {reason}"])

    def tell_notices(self, notices: Sequence[str]) -> None:
        """Write what the person should know once."""
        self._write([f"{line_of(self.mark)} note for the user: {printable(each)}" for each in notices])

    def tell_error(self, error: FumehoodError) -> None:
        """Write why nothing ran."""
        self._write([refusal(error, self.mark)])

    def _write(self, lines: Sequence[str]) -> None:
        if lines:
            before = "\n" if self._is_read_by_model and self.sink.is_in_line else ""
            text = before + "".join(f"{line}\n" for line in lines)
            sink_to(2)(text.encode(errors="backslashreplace"))


def _explain(options: Options, as_json: bool) -> None:
    """Show what the command would see, and what else decides how it would run."""
    from fumehood.service import explain

    store = OpenedStore(face=CLI)
    project = _opened(store, options, options.last("--session") or "")
    policy = store.policy_of(project)
    hood = Hood(store, project, policy, start)
    request = _request(options, project, policy)
    explained = _placed(store, options, request, lambda request: explain.explained(hood, request))
    if as_json:
        _print_object(explained)
        return
    colour = Paint(1)
    lines = [f"{printable(explained['command'])} would run like this; nothing was run", ""]
    hosts = f": {', '.join(explained['hosts'])}" if explained["hosts"] else ""
    for name, value in (
        ("directory", explained["cwd"]), ("shell", explained["shell"]),
        ("captured by", f"{explained['capture']}: {explained['capture_by'].removeprefix('captured by ')}"),
        ("network", f"{explained['network']}{hosts}"), ("owners", explained["owners"]),
    ):  # fmt: skip
        lines.append(f"  {name:12} {printable(str(value))}")
    lines += ["", colour("what it sees", "bold")]
    for mount in explained["mounts"]:
        why = colour(f"  ({printable(mount['why'])})", "dim") if mount["why"] else ""
        lines.append(f"  {printable(mount['path']):{_WIDE}} {printable(mount['what'])}{why}")
    environment = explained["environment"]
    lines += ["", colour("variables", "bold"), f"  kept     {' '.join(environment['kept'])}"]
    lines.append(f"  dropped  {' '.join(environment['dropped']) or 'none'}")
    lines += ["", colour("limits", "bold")]
    lines += [f"  {name.replace('_', ' '):12} {amount}" for name, amount in explained["limits"].items()]
    sys.stdout.write("\n".join(lines) + "\n")
