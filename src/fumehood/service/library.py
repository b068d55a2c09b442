"""The Python face: a sandbox for one project, for sync and async programs."""

from __future__ import annotations

import os
from copy import copy
from typing import TYPE_CHECKING, Any, Self, Unpack

from fumehood.core.inside import AccessRequest, access_requests
from fumehood.core.report import OUTPUT, Run, is_limit, refusal_text
from fumehood.core.request import encode_text
from fumehood.core.tool import NAME, Capabilities, all_definitions, definition_of, run_arguments
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
from fumehood.service.undo import to_redo as undo_of
from fumehood.service.undo_groups import redo_command, redo_session, undo_command, undo_session
from fumehood.store.audit import PYTHON
from fumehood.store.config import policy_for
from fumehood.store.history import LAST, RunFilter
from fumehood.store.places import new_id, new_mark, places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fumehood.core.policy import Policy
    from fumehood.core.questions import Question
    from fumehood.service.ask import Answering, Ask, Questions
    from fumehood.service.best import Best, Candidate
    from fumehood.service.commands import Command, Paths, RunOptions
    from fumehood.service.drafting import Draft
    from fumehood.service.fleet.sender import FleetSender
    from fumehood.service.hood import Variables

# What has no end, as a pipe or a device, would be read or written for as long as a command may take.
_A_FILE = '[ ! -e "$1" ] || [ -f "$1" ] || { echo it is not a file >&2; exit 1; }; '


@checks_arguments
class Sandbox(Commands):
    """Runs commands on a project, each as a transaction: isolated, captured, judged, applied, undoable.

    `on_output` is told ("stdout" or "stderr", text) as it is printed; `on_change` is told ("added",
    "updated", "removed" or "cancelled", path) while files are written. Safe to use from many threads.
    Without a policy, the person's configuration holds; a policy given takes its place altogether.

    Without a project, commands share an empty directory that is thrown away with the sandbox: nothing in it is judged,
    and nothing can be undone. `cwd` is where commands start that say nothing else; "playground" is the playground.

    `ask` is a function, sync or async, that gets a Question and returns True, False or one of its `options`; it is
    called where a person must be asked (network, a run without a sandbox, another root). Without it, those are denied.

    With a `draft`, all that is run here is in that draft, which begins where there is none of that name yet.

    `variables` is a function that returns what each command gets in its environment, for secrets: it is called for
    every run, in that run's thread, and what it returns is written nowhere.
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
        """What sets our words apart from a command's in what a model gets: tell it to the model, and nobody else."""
        return self._mark

    def tool(self, format: str = "openai", *, extra: str = "", name: str = "run_command") -> dict[str, Any]:  # noqa: A002
        """Return the tool to offer to a model, as openai, ollama, anthropic or mcp wants it; it tells the mark.

        `extra` is added to its description. `name` may be that of a `[[tool]]` of the configuration.
        """
        return definition_of(self._hood.policy, format, name, extra, self._mark)

    def tools(self, format: str = "openai", *, extra: str = "") -> list[dict[str, Any]]:  # noqa: A002
        """Return every tool to offer to a model: what `tool` returns, and each `[[tool]]` of the configuration."""
        return all_definitions(self._hood.policy, format, extra, self._mark)

    def run_tool(self, name: str, arguments: Mapping[str, Any], **options: Unpack[RunOptions]) -> Run:
        """Run what a model asks for by calling one of `tools`.

        `options` are those of `run`; where the model asks for the same, such as a `timeout`, they count.
        """
        return self.run(**{**run_arguments(self._hood.policy, name, arguments), **options})

    async def arun_tool(self, name: str, arguments: Mapping[str, Any], **options: Unpack[RunOptions]) -> Run:
        """Do the same without blocking the event loop; `options` are those of `arun`."""
        return await self.arun(**{**run_arguments(self._hood.policy, name, arguments), **options})

    def capabilities(self, root: str = "") -> Capabilities:
        """Return what commands find in their sandbox; `for_model` writes it for a system prompt."""
        from fumehood.service.explain import capabilities

        return capabilities(self._hood, root)

    def doctor(self) -> dict[str, Any]:
        """Look at this machine and project afresh, and return what `fumehood doctor --json` prints."""
        from fumehood.service.explain import examine

        return examine(self._store, self._project).as_dict()

    def refusal(self, error: FumehoodError) -> str:
        """Write an error as a model gets it, so that it can be told from what a command prints."""
        return refusal_text(error, self._mark)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know once: the records are gone, the project was moved, old backups were removed."""
        return tuple(self._store.notices)

    def take_notices(self) -> list[str]:
        """Return the notices; each is returned once."""
        waiting = self._store.notices
        return [waiting.pop(0) for _ in range(len(waiting))]  # cleaning, in its thread, may add one meanwhile

    def only_news(self, run: Run) -> Run:
        """Leave out of what a run was refused what this session's agent was told before, for a model's sake."""
        if run.blocked and self._session:
            run.blocked = unreported(self._store.places.session(self._session), run.blocked)
        return run

    def require(self, question: Question, ask: Answering | Ask | Sequence[Answering | Ask] | None = None) -> None:
        """Have a person, or what they answered before, allow something; raises Refused on a no."""
        self._hood.permissions.with_asks(channels(self._ask if ask is None else ask)).require(question)

    def add_root(self, path: str | os.PathLike[str]) -> tuple[str, ...]:
        """Let commands write another directory too, once `ask` says so; returns every root there is then.

        It counts from the next sandbox of this project on.
        """
        where = os.path.join(self._project.path, os.fspath(path))
        return add_root(self._store, self._project, where, self._hood.permissions).roots

    def open_questions(self, *, every_project: bool = False) -> Questions:
        """Answer what is asked about this project, or any, by whichever process: `for` and `async for` go through it.

        Whoever has this is present: commands that need an answer wait for it, until it is closed. Somebody at a page or
        a terminal may be faster, and the first answer wins.
        """
        from fumehood.service.ask import Desk, Questions

        return Questions(Desk(self._store.places), "" if every_project else self._project.path)

    def access_question(
        self, *, host: str = "", show: str | os.PathLike[str] = "", write: str | os.PathLike[str] = "",
        reason: str = "",
    ) -> Question | None:  # fmt: skip
        """Return what a person would be asked by `request_access`; None where they have answered it."""
        widening = self._widening(host, show, write, reason)
        question = question_about_access(self._store, self._project, widening).replace(in_session=bool(self._session))
        is_settled = earlier_answer(self._store, self._session, question) is not None
        return None if is_settled or self._hood.permissions.is_answered(question) else question

    def request_access(
        self, *, host: str = "", show: str | os.PathLike[str] = "", write: str | os.PathLike[str] = "",
        reason: str = "", ask: Answering | Ask | Sequence[Answering | Ask] | None = None,
    ) -> list[str]:  # fmt: skip
        """Ask a person to let later commands reach a host, read a path of the home, or write a directory.

        A yes is for this session, or, where the person says so or there is none, for the project; a directory becomes
        a root of the project. Returns what was said; raises Refused on a no.
        """
        permissions = self._hood.permissions.with_asks(channels(self._ask if ask is None else ask))
        widening = self._widening(host, show, write, reason)
        return decide_access(self._store, self._project, self._session, [widening], permissions.decide)

    def _widening(
        self, host: str, show: str | os.PathLike[str], write: str | os.PathLike[str], reason: str
    ) -> AccessRequest:
        words = [host] if host else []
        paths = {"show": os.fspath(show), "write": os.fspath(write)}
        words += [f"--{name}={path}" for name, path in paths.items() if path]
        if len(words) != 1:
            raise BadRequest("one thing is asked for at a time", hint="host, show or write")
        whole = self._project.path
        words = [*words, f"--reason={reason}"]
        return access_requests(words, lambda path: os.path.join(whole, os.path.expanduser(path)))[0]

    def apply(
        self, run: Run | str | int, *paths: str | os.PathLike[str], force: bool = False, expected: str = ""
    ) -> Run:
        """Take over what a run had to hold, all of it or some paths.

        With `force`, also where the project was changed since; what is there now is saved first. `expected` is the
        `about` of the question that a person said yes to: where the run holds anything else by now, ChangedMeanwhile
        is raised, and nothing done.
        """
        held = self._chosen(run)
        return self._marked(
            decide.apply_held(self._store, self._project, held, path_texts(paths), force=force, expected=expected)
        )

    def discard(self, run: Run | str | int, *paths: str | os.PathLike[str]) -> Run:
        """Throw away what a run had to hold, all of it or some paths."""
        held = self._chosen(run)
        return self._marked(decide.discard_held(self._store, self._project, held, path_texts(paths), by=self._session))

    def undo(self, run: Run | str | int = "last", *paths: str | os.PathLike[str], force: bool = False) -> Run:
        """Bring back what was there before a run, or only some paths of it; returns the undo, a run of its own.

        `last` is here the last run that changed something and is not taken back yet; again, it is the one before.
        With `force`, also what was changed since; what is there now is saved first. Of a command that is named, what
        checkpoints of it settled is taken back too, each as a run of its own.
        """
        self._store.recover()  # a client's own edits may wait to be recorded, here and below
        if run != LAST and not paths:
            backs = undo_command(self._store, self._project, self._chosen(run), force=force, by=self._session)
            return self._marked(backs[0])
        chosen = last_to_undo(self._store, self._reach) if run == LAST else self._chosen(run)
        back = undo(self._store, self._project, chosen, path_texts(paths), force=force, by=self._session)
        return self._marked(back)

    def redo(self, run: Run | str | int = "last", *paths: str | os.PathLike[str], force: bool = False) -> Run:
        """Bring back what the last undo took back, or the one of a run, or some paths; returns a run of its own."""
        self._store.recover()
        name = _name_of(run)
        backs = redo_command(
            self._store, self._project, name, self._reach, paths=path_texts(paths), force=force, by=self._session
        )
        return self._marked(backs[0])

    def running(self) -> list[Run]:
        """Return this project's commands that run now, or this session's, the latest first."""
        self._store.recover()
        return [self._marked(run) for run in self._store.running(self._reach)]

    def stop(self, run: Run | str | int) -> Run:
        """End a command that runs, whoever started it, and return its report: what it wrote is held."""
        return self._marked(checkpoints.stop(self._store, self._chosen(run)))

    def checkpoint(self, run: Run | str | int) -> Run:
        """Settle what a command that runs has finished writing; returns the run that did so, and the command goes on.

        What is held, in conflict or still being written stays with the command; the run's `reason` names it. It can be
        undone once the command has ended.
        """
        return self._marked(checkpoints.checkpoint(self._store, self._chosen(run)))

    def history(self, limit: int = 0) -> list[Run]:
        """Return this project's runs, or this session's, the latest first.

        What they changed and connected to is read when it is asked for, while this sandbox is open.
        """
        self._store.recover()
        return [self._marked(run) for run in self._store.history.runs(self._reach, limit=limit)]

    def files(self, path: str | os.PathLike[str] = "") -> list[dict[str, Any]]:
        """Return what is known of the project's files, or of one and what lies in it, as `fumehood files --json` does.

        Each has the days and the runs that it can be restored from.
        """
        if not os.fspath(path):
            return [each.as_dict() for each in known_files(self._store, self._project)]
        root, below = place_of(self._store, self._project, os.fspath(path))
        one = known_file(self._store, self._project, root, below)
        inside = known_files(self._store, self._project, root, below)
        return [each.as_dict() for each in ([] if one is None else [one]) + inside]

    def export(self, run: Run | str | int, path: str | os.PathLike[str]) -> int:
        """Write a run's changes to a file that travels, an OCI image of one layer; returns how many there are.

        It must be a new file, or a pipe. The key that `sign.key` of the configuration names signs it.
        """
        from fumehood.service.bundles import export

        return export(self._store, self._chosen(run), os.fspath(path), key=self._hood.policy.sign.key)

    def fleet(
        self, redis: str, *, store: str = "", key: str = "", queue: str = "", include: Sequence[str] = ()
    ) -> FleetSender:
        """Return what sends this project's commands to workers, by the queue in a Redis: `fumehood worker` is one.

        What a job changes is held here in a draft of its own, called `fleet-` and its id.
        `store` is where the project's files wait for them, by an address that fsspec knows; without one, Redis.
        `key` signs the jobs, by default `sign.key` of the configuration. `include` are paths that go with the project
        although they are ignored.
        """
        from fumehood.service.fleet import PACKAGES

        try:
            from fumehood.service.fleet.sender import FleetSender
        except ModuleNotFoundError as error:
            raise missing_package_error(error, "the fleet", "fleet", PACKAGES) from error
        return FleetSender(self, redis, blobs=store, key=key, queue=queue, include=include)

    def restore(self, path: str | os.PathLike[str], source: str = "") -> Run:
        """Bring back what lay at a path before a run, on a day (YYYY-MM-DD), or before it last changed.

        Returns a run of its own, which can be undone.
        """
        return self._marked(restore(self._store, self._project, os.fspath(path), source))

    def session(self, name: str | None = None, *, own_tmp: bool = False) -> Sandbox:
        """Return this sandbox for the runs of one agent.

        They share a working directory, the variables that a command writes to "$FUMEHOOD_ENV", if wanted a /tmp, and
        `undo_session`. No run but its own can be named there. Closing either closes both.
        """
        shared = copy(self)
        # What a person allows one agent for its session is not for another.
        shared._hood = self._new_hood(self._hood.policy, channels(self._ask))
        shared._session = session_of(self._store, self._project, name or new_id().lower()).name
        shared._own_tmp = own_tmp
        return shared

    def draft(self, name: str, *, new: bool = False, frozen: bool = False) -> Draft:
        """Return a draft of this project: what its commands write, they alone see, until all of it is applied.

        It begins where there is none yet; with `new`, there must be none. One that is `frozen` from its beginning shows
        the project as it is now, whatever a person changes meanwhile.
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
        """Run a command as `n` candidates, some at once, each in a draft over one frozen copy; apply the best.

        `$FUMEHOOD_CANDIDATE` is its number. The best has passed `check`, has the highest number that `score` prints at
        its end, and then the fewest lines changed; what both write is thrown away. Without `check`, the command's own
        status counts. Those that change exactly the same count once. The others are thrown away unless they are to be
        kept; without `apply`, the best stays a draft. Limits and `timeout` are for all together.
        """
        from fumehood.service.best import BestOf

        on_candidate = noting_errors("on_candidate", on_candidate)
        best_of = BestOf(
            self, command, n, jobs=jobs, check=check, score=score, timeout=timeout, on_candidate=on_candidate
        )
        return best_of.run(keep=keep, applies=apply)

    def drafts(self) -> list[Draft]:
        """Return the drafts of this project that are not applied or thrown away yet, the earliest first."""
        from fumehood.service.drafting import Draft

        return [Draft(self, record) for record in self._store.drafts.open_drafts(self._project.id)]

    @property
    def session_name(self) -> str | None:
        """The session that runs belong to, if any."""
        return self._session or None

    @property
    def cwd(self) -> str:
        """Where the next command starts unless told otherwise."""
        session = self._store.sessions.find(self._session) if self._session else None
        return (session and session.cwd) or self._cwd or self._project.path

    def keep_env(self, env: Mapping[str, str | None]) -> None:
        """Give every later command of this session these variables; None takes one away."""
        if not self._session:
            raise BadRequest("only a session keeps variables", hint="sandbox.session()")
        keep_variables(self._store, self._session, env)

    def undo_session(self, *, force: bool = False) -> list[Run]:
        """Take back every run of this session: all of them, or none."""
        self._store.recover()
        name = self._session
        return list(map(self._marked, undo_session(self._store, self._project, name, by=name, force=force)))

    def redo_session(self, *, force: bool = False) -> list[Run]:
        """Bring back what the undos of this session's runs took back: all of it, or nothing."""
        name = self._session
        return list(map(self._marked, redo_session(self._store, self._project, name, by=name, force=force)))

    def read_file(self, path: str | os.PathLike[str]) -> bytes:
        """Return a file as a command would read it: with the sandbox's rights, not the host's."""
        run = self.run(["sh", "-c", _A_FILE + 'exec cat <"$1"', "sh", os.fspath(path)], apply="discard")
        if run.exit_code:
            raise BadRequest(f"{os.fspath(path)} can't be read: {run.stderr.strip()}")
        if any(is_limit(each, OUTPUT) for each in run.blocked):
            raise BadRequest(f"{os.fspath(path)} is too large to be read at once", hint="read a part with a command")
        return b"".join(self._store.history.output_pieces(run.run, "stdout"))

    def write_file(self, path: str | os.PathLike[str], data: bytes | str) -> Run:
        """Write a file as a command would, its directory too: captured, judged and undoable as any run."""
        line = _A_FILE + 'case $1 in */*) mkdir -p -- "${1%/*}/" && cat >"$1" ;; *) cat >"$1" ;; esac'
        if not isinstance(data, (str, bytes)):
            raise BadRequest(f"{data!r:.100} can't be written to a file", hint="a text or bytes")
        # As bytes: the text "inherit" would mean another input.
        content = encode_text(data) if isinstance(data, str) else data
        run = self.run(["sh", "-c", line, "sh", os.fspath(path)], stdin=content)
        if run.exit_code:
            raise BadRequest(f"{os.fspath(path)} can't be written: {run.stderr.strip()}")
        return run

    def reset_root(self) -> bool:
        """Drop what commands wrote to this project's own layer over a root tree; False if there is none."""
        return reset_root(self._store, self._project)

    def find(
        self, run: Run | str | int = "last", beside: Sequence[Sandbox] = (), *, to_undo: bool = False,
        to_redo: bool = False,
    ) -> Run:  # fmt: skip
        """Return a run of this project, or session, by its number, its id, the beginning of one, `last` or `last~1`.

        With other sessions' sandboxes `beside`, theirs are looked through too. `to_undo`: `last` is what `undo` means;
        `to_redo`: the undo that `redo` would take back.
        """
        self._store.recover()
        run = _name_of(run)
        reach = RunFilter(sessions=tuple(each._session for each in (self, *beside))) if beside else self._reach
        if to_redo:
            return self._marked(undo_of(self._store, run, reach))
        is_to_undo = to_undo and run == LAST
        return self._marked(last_to_undo(self._store, reach) if is_to_undo else self._store.history.find(run, reach))

    def diff(self, run: Run | str | int = "last", paths: Paths = ()) -> str:
        """Return what a run changed, line by line; a session's agent is not shown what its commands don't see."""
        chosen = self._chosen(run)
        policy = self._hood.policy if self._session else None
        wanted = each_difference(self._store, chosen, path_texts(paths), here=chosen.project, hidden_by=policy)
        return "".join(each.text for each in wanted)

    def output(self, run: Run | str | int = "last", stream: str = "stdout") -> bytes:
        """Return all that is kept of what a run printed, byte for byte."""
        if stream not in ("stdout", "stderr"):
            raise BadRequest(f"there is no output {stream!r:.100}", hint="stdout or stderr")
        chosen = self._chosen(run)
        return b"".join(self._store.history.output_pieces(chosen.run, stream))

    def _chosen(self, run: Run | str | int) -> Run:
        return self._marked(self._store.history.find(_name_of(run), self._reach))

    @property
    def _reach(self) -> RunFilter:
        """What can be named here: nothing of another project, nor, in a session, of another session or the person."""
        return RunFilter(project=self._project.id, sessions=(self._session,) if self._session else ())

    def close(self) -> None:
        """Stop what was started here and still runs, and close the records; the sandbox can't be used after that.

        What other threads or tasks run is stopped too, and they get its report: what it wrote is held.
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


def _name_of(run: Run | str | int) -> str:
    """Return what a run is found by: programs pass what they like."""
    name: object = str(run) if type(run) is int else run if isinstance(run, str) else getattr(run, "run", None)
    if not isinstance(name, str):
        raise BadRequest(f"{run!r:.100} is not a run", hint="a Run, its number or id, or 'last'")
    return name


@checked_arguments
def tool(format: str = "openai", *, extra: str = "", name: str = NAME) -> dict[str, Any]:  # noqa: A002 - as users say it
    """Return the tool that runs commands, as openai, ollama, anthropic or mcp wants it; or a `[[tool]]` by its name.

    `extra` is added to its description: sentences of an application's own, for example that web pages are read by
    another tool. A `Sandbox` has the same with its mark, and `Sandbox.run_tool` runs what a model asks for.
    """
    return definition_of(policy_for(places(), ()), format, name, extra)
