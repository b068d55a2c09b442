"""The Python face: a sandbox for one project, for programs with threads or an event loop."""

from __future__ import annotations

import os
from copy import copy
from typing import TYPE_CHECKING, Any, Self, Unpack

from fumehood.core.inside import AccessRequest, access_requests
from fumehood.core.report import OUTPUT, Run, is_limit, refusal_text
from fumehood.core.request import encode_text
from fumehood.core.tool import NAME, all_definitions, definition_of, run_arguments
from fumehood.errors import BadRequest, FumehoodError, missing_package_error
from fumehood.linux import launcher
from fumehood.service import checkpoint as checkpoints
from fumehood.service import decide
from fumehood.service.arguments import checked_arguments, checks_arguments
from fumehood.service.ask import channels
from fumehood.service.commands import Commands, noting_errors, path_texts
from fumehood.service.dialogue import end_all
from fumehood.service.differences import each_difference
from fumehood.service.hood import Hood
from fumehood.service.opened import OpenedStore, upkeep
from fumehood.service.permission import Permissions, decide_access, earlier_answer, question_about_access
from fumehood.service.projects import ThrowawayDirectory, reset_root
from fumehood.service.restore import known_file, known_files, place_of, restore
from fumehood.service.roots import add_root
from fumehood.service.session import keep_variables, session_of, unreported
from fumehood.service.started import end_underway
from fumehood.service.undo import last_to_undo, undo
from fumehood.service.undo import to_redo as undo_to_redo
from fumehood.service.undo_groups import redo_command, redo_session, undo_command, undo_session
from fumehood.store.audit import PYTHON
from fumehood.store.config import policy_for
from fumehood.store.history import LAST, RunFilter
from fumehood.store.places import new_id, new_mark, places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fumehood.core.capabilities import Capabilities
    from fumehood.core.policy import Policy
    from fumehood.core.questions import Question
    from fumehood.service.ask import Answering, Ask, Questions
    from fumehood.service.best import Best, Candidate
    from fumehood.service.commands import Command, Paths, RunOptions
    from fumehood.service.drafting import Draft
    from fumehood.service.fleet.sender import FleetSender
    from fumehood.service.hood import Variables

# Begins a shell line. A pipe or a device may have no end, and would be read or written until the time limit.
_REQUIRE_FILE = '[ ! -e "$1" ] || [ -f "$1" ] || { echo it is not a file >&2; exit 1; }; '


@checks_arguments
class Sandbox(Commands):
    """Runs commands on a project, each as a transaction: isolated, captured, judged, applied, undoable.

    `on_output` gets ("stdout" or "stderr", text) while a command prints; `on_change` gets ("added", "updated",
    "removed" or "cancelled", path) while it writes files. A sandbox can be used from many threads at once.
    A `policy` replaces the person's configuration as a whole.

    Without a project, commands share an empty directory that is removed with the sandbox: nothing in it is judged, and
    nothing can be undone. `cwd` is the default working directory of commands; "playground" is the playground.

    `ask` is a function, sync or async, that gets a Question and returns True, False or one of its `options`. It is
    called when a person must be asked: for network, a run without a sandbox, or another root. Without it, these are
    denied.

    With a `draft`, all commands run in that draft, which is created if there is none of that name.

    `variables` is a function that returns environment variables for commands, for secrets: it is called for each run,
    in that run's thread, and its result is not stored.
    """

    def __init__(
        self, project: str | os.PathLike[str] | None = None, policy: Policy | None = None,
        ask: Answering | Ask | Sequence[Answering | Ask] | None = None, *, session: str | None = None,
        draft: str | None = None, own_tmp: bool = False, variables: Variables | None = None,
        cwd: str | os.PathLike[str] | None = None, face: str = PYTHON, mark: str = "",
    ) -> None:  # fmt: skip
        asks = channels(ask)
        if policy is not None:
            from fumehood.core.config import check_policy

            check_policy(policy)
        self._store = OpenedStore(face=face)
        self._thrown = None if project is not None else ThrowawayDirectory(self._store.places)
        if project is None:
            self._project = self._store.projects.placeholder()
        else:
            self._project = self._store.projects.open(os.fspath(project))
        self._cwd = os.fspath(cwd or "")
        self._store.history.current_project = self._project.id
        self._ask = ask
        self._variables = variables
        self._hood = self._new_hood(self._store.policy_of(self._project, policy), asks)
        self._session = "" if session is None else session_of(self._store, self._project, session).name
        self._own_tmp = own_tmp
        self._mark = mark or new_mark()
        self._draft = "" if draft is None else self.draft(draft).name

    def _new_hood(self, policy: Policy, asks: tuple[Ask, ...]) -> Hood:
        permissions = Permissions(self._store, asks, session={}, patience_s=policy.ask_timeout)
        hood = Hood(
            self._store, self._project, policy, lambda plan, streams: launcher.shared().start(plan, streams),
            permissions,
        )  # fmt: skip
        hood.variables = self._variables
        return hood

    @property
    def project(self) -> str:
        """The project's real path."""
        return self._project.path

    @property
    def mark(self) -> str:
        """A secret word by which a model tells our words from a command's output; tell it only to the model."""
        return self._mark

    def tool(self, format: str = "openai", *, extra: str = "", name: str = "run_command") -> dict[str, Any]:  # noqa: A002
        """Return the tool to offer to a model, in the format openai, ollama, anthropic or mcp, with the mark.

        `extra` is added to its description. `name` may be the name of a `[[tool]]` of the configuration.
        """
        return definition_of(self._hood.policy, format, name, extra, self._mark)

    def tools(self, format: str = "openai", *, extra: str = "") -> list[dict[str, Any]]:  # noqa: A002
        """Return all tools to offer to a model: what `tool` returns, and each `[[tool]]` of the configuration."""
        return all_definitions(self._hood.policy, format, extra, self._mark)

    def run_tool(self, name: str, arguments: Mapping[str, Any], **options: Unpack[RunOptions]) -> Run:
        """Run what a model asks for when it calls one of `tools`.

        `options` are those of `run`; they override what the model asks for, such as a `timeout`.
        """
        return self.run(**{**run_arguments(self._hood.policy, name, arguments), **options})

    async def arun_tool(self, name: str, arguments: Mapping[str, Any], **options: Unpack[RunOptions]) -> Run:
        """Do the same as `run_tool` without blocking the event loop; `options` are those of `arun`."""
        return await self.arun(**{**run_arguments(self._hood.policy, name, arguments), **options})

    def capabilities(self, root: str = "") -> Capabilities:
        """Return what commands find in their sandbox; `for_model` writes it for a system prompt."""
        from fumehood.service.explain import capabilities

        return capabilities(self._hood, root)

    def doctor(self) -> dict[str, Any]:
        """Examine this machine and project, and return what `fumehood doctor --json` prints."""
        from fumehood.service.explain import examine

        return examine(self._store, self._project).as_dict()

    def refusal(self, error: FumehoodError) -> str:
        """Return the text of an error for a model, marked so that it can't be taken for a command's output."""
        return refusal_text(error, self._mark)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should be told once: the records were lost, the project was moved, old backups were removed."""
        return tuple(self._store.notices)

    def take_notices(self) -> list[str]:
        """Return the notices and forget them."""
        notices = self._store.notices
        return [notices.pop(0) for _ in range(len(notices))]  # the cleaning thread may add one meanwhile

    def only_news(self, run: Run) -> Run:
        """Remove from a run's `blocked` what this session's agent was told before, to keep a model's text short."""
        if run.blocked and self._session:
            run.blocked = unreported(self._store.places.session(self._session), run.blocked)
        return run

    def require(self, question: Question, ask: Answering | Ask | Sequence[Answering | Ask] | None = None) -> None:
        """Ask a person to allow something, unless they have answered before; raises Refused on a no."""
        self._hood.permissions.with_asks(channels(self._ask if ask is None else ask)).require(question)

    def add_root(self, path: str | os.PathLike[str]) -> tuple[str, ...]:
        """Let commands write another directory too, if `ask` allows it; returns all roots, with the new one.

        It takes effect in the next sandbox of this project.
        """
        directory = os.path.join(self._project.path, os.fspath(path))
        return add_root(self._store, self._project, directory, self._hood.permissions).roots

    def open_questions(self, *, every_project: bool = False) -> Questions:
        """Return the open questions of any process about this project, or about all, for `for` or `async for`.

        Until it is closed, commands that need an answer wait for it, as if a person were present. Somebody at the page
        or a terminal may also answer: the first answer wins.
        """
        from fumehood.service.ask import Desk, Questions

        return Questions(Desk(self._store.places), "" if every_project else self._project.path)

    def access_question(
        self, *, host: str = "", show: str | os.PathLike[str] = "", write: str | os.PathLike[str] = "",
        reason: str = "",
    ) -> Question | None:  # fmt: skip
        """Return the question that `request_access` would ask a person, or None if they have answered it."""
        access_request = self._access_request(host, show, write, reason)
        question = question_about_access(self._store, self._project, access_request)
        question = question.replace(in_session=bool(self._session))
        is_settled = earlier_answer(self._store, self._session, question) is not None
        return None if is_settled or self._hood.permissions.is_answered(question) else question

    def request_access(
        self, *, host: str = "", show: str | os.PathLike[str] = "", write: str | os.PathLike[str] = "",
        reason: str = "", ask: Answering | Ask | Sequence[Answering | Ask] | None = None,
    ) -> list[str]:  # fmt: skip
        """Ask a person to let later commands reach a host, read a path of the home, or write a directory.

        A yes is for this session; it is for the project if the person says so, or if there is no session. A directory
        becomes a root of the project. Returns lines about the answer; raises Refused on a no.
        """
        permissions = self._hood.permissions.with_asks(channels(self._ask if ask is None else ask))
        access_request = self._access_request(host, show, write, reason)
        return decide_access(self._store, self._project, self._session, [access_request], permissions.decide)

    def _access_request(
        self, host: str, show: str | os.PathLike[str], write: str | os.PathLike[str], reason: str
    ) -> AccessRequest:
        words = [host] if host else []
        paths = {"show": os.fspath(show), "write": os.fspath(write)}
        words += [f"--{name}={path}" for name, path in paths.items() if path]
        if len(words) != 1:
            raise BadRequest("one thing is asked for at a time", hint="host, show or write")
        words.append(f"--reason={reason}")
        project = self._project.path
        return access_requests(words, lambda path: os.path.join(project, os.path.expanduser(path)))[0]

    def apply(
        self, run: Run | str | int, *paths: str | os.PathLike[str], force: bool = False, expected: str = ""
    ) -> Run:
        """Apply what a run holds, all of it or some paths.

        With `force`, even if the project was changed since: what is there now is saved first. `expected` is the `about`
        of the question to which a person said yes: if the run holds anything else by now, ChangedMeanwhile is raised
        and nothing is done.
        """
        held = self._find_run(run)
        return self._marked(
            decide.apply_held(self._store, self._project, held, path_texts(paths), force=force, expected=expected)
        )

    def discard(self, run: Run | str | int, *paths: str | os.PathLike[str]) -> Run:
        """Discard what a run holds, all of it or some paths."""
        held = self._find_run(run)
        return self._marked(decide.discard_held(self._store, self._project, held, path_texts(paths), by=self._session))

    def undo(self, run: Run | str | int = "last", *paths: str | os.PathLike[str], force: bool = False) -> Run:
        """Bring back what was there before a run, or only some paths of it; returns the undo, which is a run too.

        "last" means the last run that changed something and is not undone yet; called again, the one before. With
        `force`, even if something was changed since: what is there now is saved first. If the run is named, what its
        checkpoints applied is undone too, each by a run of its own.
        """
        self._store.recover()  # a client's own edits may not be recorded yet; also in the methods below
        if run != LAST and not paths:
            backs = undo_command(self._store, self._project, self._find_run(run), force=force, by=self._session)
            return self._marked(backs[0])
        to_undo = last_to_undo(self._store, self._run_filter) if run == LAST else self._find_run(run)
        back = undo(self._store, self._project, to_undo, path_texts(paths), force=force, by=self._session)
        return self._marked(back)

    def redo(self, run: Run | str | int = "last", *paths: str | os.PathLike[str], force: bool = False) -> Run:
        """Redo what the last undo undid, or the undo of a run, or some paths of it; returns the run that did it."""
        self._store.recover()
        name = _run_name(run)
        backs = redo_command(
            self._store, self._project, name, self._run_filter, paths=path_texts(paths), force=force, by=self._session
        )
        return self._marked(backs[0])

    def running(self) -> list[Run]:
        """Return the running commands of this project, or of this session, the latest first."""
        self._store.recover()
        return [self._marked(run) for run in self._store.running(self._run_filter)]

    def stop(self, run: Run | str | int) -> Run:
        """End a running command, whoever started it, and return its report: what it wrote is held."""
        return self._marked(checkpoints.stop(self._store, self._find_run(run)))

    def checkpoint(self, run: Run | str | int) -> Run:
        """Apply what a running command has finished writing; the command goes on. Returns the run that applied it.

        What is held, in conflict or still being written stays with the command; the run's `reason` names it. The
        checkpoint can be undone when the command has ended.
        """
        return self._marked(checkpoints.checkpoint(self._store, self._find_run(run)))

    def history(self, limit: int = 0) -> list[Run]:
        """Return the runs of this project, or of this session, the latest first.

        Their changes and connections are read when they are used, which must be while this sandbox is open.
        """
        self._store.recover()
        return [self._marked(run) for run in self._store.history.runs(self._run_filter, limit=limit)]

    def files(self, path: str | os.PathLike[str] = "") -> list[dict[str, Any]]:
        """Return the files with backups, or one path and the files below it, as `fumehood files --json` prints them.

        Each entry has the days and the runs from which it can be restored.
        """
        if not os.fspath(path):
            return [each.as_dict() for each in known_files(self._store, self._project)]
        root, below = place_of(self._store, self._project, os.fspath(path))
        file = known_file(self._store, self._project, root, below)
        files_below = known_files(self._store, self._project, root, below)
        return [each.as_dict() for each in ([] if file is None else [file]) + files_below]

    def export(self, run: Run | str | int, path: str | os.PathLike[str]) -> int:
        """Write a run's changes to a bundle, an OCI image with one layer; returns how many changes there are.

        It must be a new file, or a pipe. It is signed if `sign.key` of the configuration names a key.
        """
        from fumehood.service.bundles import export

        return export(self._store, self._find_run(run), os.fspath(path), key=self._hood.policy.sign.key)

    def fleet(
        self, redis: str, *, store: str = "", key: str = "", queue: str = "", include: Sequence[str] = ()
    ) -> FleetSender:
        """Return a sender of this project's commands to workers (`fumehood worker`), by a queue in Redis.

        The changes of a job are held here in a draft of their own, named `fleet-` and the job's id.
        `store` is the address of a file system that fsspec supports, for the project's files; by default, they are in
        Redis. `key` signs the jobs, by default `sign.key` of the configuration. `include` are ignored paths that are
        sent with the project all the same.
        """
        from fumehood.service.fleet import PACKAGES

        try:
            from fumehood.service.fleet.sender import FleetSender
        except ModuleNotFoundError as error:
            raise missing_package_error(error, "the fleet", "fleet", PACKAGES) from error
        return FleetSender(self, redis, blobs=store, key=key, queue=queue, include=include)

    def restore(self, path: str | os.PathLike[str], source: str = "") -> Run:
        """Bring back what was at a path before a run, on a day (YYYY-MM-DD), or before its last change.

        Returns the run that did it, which can be undone.
        """
        return self._marked(restore(self._store, self._project, os.fspath(path), source))

    def session(self, name: str | None = None, *, own_tmp: bool = False) -> Sandbox:
        """Return a copy of this sandbox for the runs of one agent.

        These runs share a working directory, the variables that a command writes to "$FUMEHOOD_ENV", and with `own_tmp`
        a /tmp; `undo_session` undoes them all. Only the session's own runs can be named. Closing either sandbox closes
        both.
        """
        shared = copy(self)
        # New permissions: what a person allows for the session of one agent is not for another.
        shared._hood = self._new_hood(self._hood.policy, channels(self._ask))
        shared._session = session_of(self._store, self._project, name or new_id().lower()).name
        shared._own_tmp = own_tmp
        return shared

    def draft(self, name: str, *, new: bool = False, frozen: bool = False) -> Draft:
        """Return a draft of this project: only its commands see what they write, until all of it is applied.

        It is created if there is none of that name; with `new`, there must be none. The commands of a `frozen` draft
        see the project as it was when the draft was created, whatever a person changes meanwhile.
        """
        from fumehood.service.drafting import Draft
        from fumehood.service.drafts import new_draft

        record = None if new else self._store.drafts.find_open(self._project.id, name)
        if record is None and not new and not frozen:
            record = self._store.drafts.begin(self._project.id, name)
        return Draft(self, record or new_draft(self._store, self._project, name, frozen=frozen))

    def best(
        self, command: Command, n: int = 8, *, jobs: int = 4, check: str | None = None, score: str | None = None,
        keep: bool = False, apply: bool = True, timeout: float | None = None,
        on_candidate: Callable[[Candidate], object] | None = None,
    ) -> Best:  # fmt: skip
        """Run a command as `n` candidates, `jobs` at once, each in a draft over one frozen copy; apply the best.

        `$FUMEHOOD_CANDIDATE` is the candidate's number. The best candidate has passed `check`, has the highest number
        that `score` prints at its end, and then the fewest changed lines. What `check` and `score` write is discarded.
        Without `check`, the exit code of the command counts. Candidates with exactly the same changes count once. The
        other candidates are discarded, unless `keep`; without `apply`, the best stays a draft. Limits and `timeout` are
        for all candidates together.
        """
        from fumehood.service.best import BestOf

        on_candidate = noting_errors("on_candidate", on_candidate)
        best_of = BestOf(
            self, command, n, jobs=jobs, check=check, score=score, timeout=timeout, on_candidate=on_candidate
        )
        return best_of.run(keep=keep, applies=apply)

    def drafts(self) -> list[Draft]:
        """Return the drafts of this project that are not applied or discarded yet, the earliest first."""
        from fumehood.service.drafting import Draft

        return [Draft(self, record) for record in self._store.drafts.open_drafts(self._project.id)]

    @property
    def session_name(self) -> str | None:
        """The session that runs belong to, if any."""
        return self._session or None

    @property
    def cwd(self) -> str:
        """The default working directory of the next command."""
        session = self._store.sessions.find(self._session) if self._session else None
        return (session and session.cwd) or self._cwd or self._project.path

    def keep_env(self, env: Mapping[str, str | None]) -> None:
        """Set these variables for all later commands of this session; None removes one."""
        if not self._session:
            raise BadRequest("only a session keeps variables", hint="sandbox.session()")
        keep_variables(self._store, self._session, env)

    def undo_session(self, *, force: bool = False) -> list[Run]:
        """Undo all runs of this session: all or none."""
        self._store.recover()
        name = self._session
        return list(map(self._marked, undo_session(self._store, self._project, name, by=name, force=force)))

    def redo_session(self, *, force: bool = False) -> list[Run]:
        """Redo all runs of this session that were undone: all or none."""
        name = self._session
        return list(map(self._marked, redo_session(self._store, self._project, name, by=name, force=force)))

    def read_file(self, path: str | os.PathLike[str]) -> bytes:
        """Return the content of a file as a command reads it: with the rights of the sandbox."""
        run = self.run(["sh", "-c", _REQUIRE_FILE + 'exec cat <"$1"', "sh", os.fspath(path)], apply="discard")
        if run.exit_code:
            raise BadRequest(f"{os.fspath(path)} can't be read: {run.stderr.strip()}")
        if any(is_limit(each, OUTPUT) for each in run.blocked):
            raise BadRequest(f"{os.fspath(path)} is too large to be read at once", hint="read a part with a command")
        return b"".join(self._store.history.output_pieces(run.run, "stdout"))

    def write_file(self, path: str | os.PathLike[str], data: bytes | str) -> Run:
        """Write a file, and create its directory, as a command does: captured, judged and undoable like any run."""
        line = _REQUIRE_FILE + 'case $1 in */*) mkdir -p -- "${1%/*}/" && cat >"$1" ;; *) cat >"$1" ;; esac'
        if not isinstance(data, (str, bytes)):
            raise BadRequest(f"{data!r:.100} can't be written to a file", hint="a text or bytes")
        # As bytes, because the text "inherit" means the input of this program.
        content = encode_text(data) if isinstance(data, str) else data
        run = self.run(["sh", "-c", line, "sh", os.fspath(path)], stdin=content)
        if run.exit_code:
            raise BadRequest(f"{os.fspath(path)} can't be written: {run.stderr.strip()}")
        return run

    def reset_root(self) -> bool:
        """Remove what commands wrote to this project's root layer; return False if there is no root layer."""
        return reset_root(self._store, self._project)

    def find(
        self, run: Run | str | int = "last", beside: Sequence[Sandbox] = (), *, to_undo: bool = False,
        to_redo: bool = False,
    ) -> Run:  # fmt: skip
        """Return a run of this project, or session, by its number, its id, the beginning of one, `last` or `last~1`.

        Runs of the sandboxes `beside`, which are of other sessions, are found too. With `to_undo`, `last` is the run
        that `undo` would undo. With `to_redo`, the result is the undo that `redo` would take back.
        """
        self._store.recover()
        name, among = _run_name(run), self._run_filter
        if beside:
            among = RunFilter(sessions=tuple(each._session for each in (self, *beside)))
        if to_redo:
            return self._marked(undo_to_redo(self._store, name, among))
        if to_undo and name == LAST:
            return self._marked(last_to_undo(self._store, among))
        return self._marked(self._store.history.find(name, among))

    def diff(self, run: Run | str | int = "last", paths: Paths = ()) -> str:
        """Return what a run changed, line by line; in a session, without files that its commands don't see."""
        changed_run = self._find_run(run)
        policy = self._hood.policy if self._session else None
        differences = each_difference(
            self._store, changed_run, path_texts(paths), here=changed_run.project, hidden_by=policy
        )
        return "".join(each.text for each in differences)

    def output(self, run: Run | str | int = "last", stream: str = "stdout") -> bytes:
        """Return what a run printed on one output, byte for byte, as far as it is kept."""
        if stream not in ("stdout", "stderr"):
            raise BadRequest(f"there is no output {stream!r:.100}", hint="stdout or stderr")
        return b"".join(self._store.history.output_pieces(self._find_run(run).run, stream))

    def _find_run(self, run: Run | str | int) -> Run:
        return self._marked(self._store.history.find(_run_name(run), self._run_filter))

    @property
    def _run_filter(self) -> RunFilter:
        """The runs that can be named: only of this project, and in a session only of that session."""
        return RunFilter(project=self._project.id, sessions=(self._session,) if self._session else ())

    def close(self) -> None:
        """Stop the commands that still run, and close the records; the sandbox can't be used after that.

        Commands of other threads or tasks are stopped too: these get the reports, and what was written is held.
        """
        end_all(self._store)
        end_underway(self._store)
        upkeep(self._store, self._project.id, self._hood.policy.clean)
        if self._thrown is not None:
            self._thrown.close()
        self._store.close()

    def __repr__(self) -> str:
        return f"Sandbox({self._project.path!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _run_name(run: Run | str | int) -> str:
    """Return the name of a run, by which it can be found; raises BadRequest for anything that is not a run."""
    name: object = str(run) if type(run) is int else run if isinstance(run, str) else getattr(run, "run", None)
    if not isinstance(name, str):
        raise BadRequest(f"{run!r:.100} is not a run", hint="a Run, its number or id, or 'last'")
    return name


@checked_arguments
def tool(format: str = "openai", *, extra: str = "", name: str = NAME) -> dict[str, Any]:  # noqa: A002 - as users say it
    """Return the tool that runs commands, in the format openai, ollama, anthropic or mcp; or a `[[tool]]` by its name.

    `extra` is added to its description: an application's own sentences, for example that another tool reads web pages.
    `Sandbox.tool` does the same with the sandbox's mark, and `Sandbox.run_tool` runs what a model asks for.
    """
    return definition_of(policy_for(places(), ()), format, name, extra)
