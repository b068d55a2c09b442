"""The sender's side: a project's base and commands go to workers, and what comes back is held here, each job once.

A note of each job is written into our own state before the job is sent, so that a sender that went away can come back
for the result. The result is recorded under a lock, as that note says: if a sender was killed while it imported the
changes into a draft, the draft is thrown away, and the import begins again.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import Any

from rq import Retry, Worker
from rq.command import send_stop_job_command
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import JobStatus
from rq.results import Result
from rq.serializers import JSONSerializer

from fumehood.core.changes import FILE
from fumehood.core.policy import Policy
from fumehood.core.report import Blocked, Run, printable
from fumehood.errors import BadRequest
from fumehood.linux.signing import JOB, RESULT, BadSignature, sign, signer_of
from fumehood.service.best import (
    ERROR,
    FAILED,
    NUMBER_VARIABLE,
    PASSED,
    SAME,
    Best,
    Candidate,
    pick_best,
    with_score,
    with_size,
)
from fumehood.service.fleet.base import Base, send_base, survey_project
from fumehood.service.fleet.blobs import MissingContent, open_blobs
from fumehood.service.fleet.jobs import Job, read_job
from fumehood.service.fleet.queue import (
    DEFAULT_QUEUE,
    FUNCTION,
    KEPT_S,
    QueuedJob,
    connect,
    open_queue,
    output_key,
    redis_errors,
)
from fumehood.service.store import Store
from fumehood.store.places import FileLock, make_private, new_id
from fumehood.store.projects import Project

Command = str | Sequence[str]
OnOutput = Callable[[str, str], object]
Outcome = dict[str, Any]  # a job's result: what its worker sent, or {"failed": REASON}
Note = Mapping[str, Any]

_LOST_JOBS_INTERVAL_S = 2.0  # between two searches for jobs that Redis may have forgotten
_FETCH_ALLOWANCE_S = 600  # in addition to the command's own time: the worker may have to fetch the base first
_MAX_BUNDLE_BYTES = 4 << 30
_MAX_IMPORTS = min(8, os.cpu_count() or 1)  # results that are imported at the same time
_MALFORMED = (KeyError, TypeError, ValueError, OverflowError)  # raised when a result is read that is not one
_ENDED = (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.STOPPED, JobStatus.CANCELED)
_MAX_TRIES = 20  # of a job whose workers are killed


class FleetSender:
    """Sends a project's commands to workers: `Sandbox.fleet` makes one.

    `on_wait` is called with the reason, in words, when Redis can't be reached and the sender waits for it.
    """

    def __init__(
        self, sandbox: Any, url: str, *, blobs: str = "", key: str = "", queue: str = "", include: Sequence[str] = ()
    ) -> None:
        self._sandbox = sandbox
        self._store: Store = sandbox._store
        self._project: Project = sandbox._project
        self._policy: Policy = sandbox._hood.policy
        self.on_wait: Callable[[str], object] = lambda _reason: None
        self._connection = connect(url, lambda reason: self.on_wait(reason))  # noqa: PLW0108 - on_wait is set later
        self._blobs = open_blobs(blobs, self._connection)
        self._key = key or self._policy.sign.key
        self._queue = open_queue(queue or DEFAULT_QUEUE, self._connection)
        self._include = tuple(include)
        self._base_hash = ""

    @redis_errors()
    def plan(self) -> dict[str, Any]:
        """Return what would be sent, what of it is in the store already, and what stays at home, with the reasons."""
        base = self._survey()
        missing = self._blobs.missing(list(base.contents))
        files = [
            {"path": each.path, "size": each.size, "sent": each.content not in missing}
            for each in base.entries if each.kind == FILE
        ]  # fmt: skip
        return {
            "project": self._project.path, "files": files, "bytes": sum(each["size"] for each in files),
            "to_send": sum(each["size"] for each in files if not each["sent"]),
            "at_home": [{"path": path, "reason": reason} for path, reason in base.at_home],
        }  # fmt: skip

    def _survey(self) -> Base:
        for each in self._include:
            if not os.path.lexists(f"{self._project.path}/{each.strip('/')}"):
                raise BadRequest(f"there is no {printable(each)} in the project to be sent", hint="check --include")
        return survey_project(self._project.path, self._policy, self._store.places, self._include)

    def _send_base(self) -> str:
        return send_base(self._project.path, self._survey(), self._blobs)

    @property
    def sent(self) -> int:
        """How many bytes of contents this sender has put into the store."""
        return self._blobs.sent

    @redis_errors()
    def send(
        self, command: Command, *, cwd: str = "", timeout: float | None = None, hosts: Sequence[str] = (),
        root: str = "host", env: Mapping[str, str] | None = None, secrets: Sequence[str] = (),
        limits: Mapping[str, int] | None = None, check: str = "", score: str = "", fresh: bool = True,
        first: bool = False,
    ) -> str:  # fmt: skip
        """Send a command, and what the store lacks of the project's base; returns the job's id.

        `secrets` are names of variables that the worker has. `limits` are as in the configuration; if the worker's own
        are lower, they count. `check` and `score` run after the command, as for `best`. Without `fresh`, the base is
        that of the last command that this sender sent. `first` puts the job before all that wait.
        """
        if fresh or not self._base_hash:
            self._base_hash = self._send_base()
        time_limit = timeout or self._policy.timeout or 86400.0
        job = Job(
            id=new_id().lower(), command=command if isinstance(command, str) else tuple(command), base=self._base_hash,
            expires_at=time.time() + KEPT_S, cwd=cwd, timeout=timeout, root=root, hosts=tuple(hosts),
            environment=tuple((env or {}).items()), secrets=tuple(secrets), limits=tuple((limits or {}).items()),
            check=check, score=score,
        )  # fmt: skip
        text = job.text()
        read_job(text)  # so that the sender reports an invalid field, and not a worker
        note = {
            "id": job.id, "command": job.command, "text": text, "timeout": time_limit + _FETCH_ALLOWANCE_S,
            "signature": sign(self._key, JOB, text.encode()) if self._key else "", "run": "",
            "first": first, "project": self._project.id,
        }  # fmt: skip
        self._write_note(note)
        self._enqueue(note)
        return job.id

    def _enqueue(self, note: Note) -> None:
        self._queue.enqueue_call(
            FUNCTION, args=(note["text"], note["signature"]), job_id=note["id"], timeout=int(note["timeout"]),
            result_ttl=KEPT_S, failure_ttl=KEPT_S, retry=Retry(max=_MAX_TRIES, enqueue_at_front=True),
            description=printable(_command_line(note))[:200], at_front=note.get("first", False),
        )  # fmt: skip

    @redis_errors()
    def workers(self) -> int:
        """Return how many workers are at the queue; one that died may still count for a while."""
        return int(Worker.count(queue=self._queue))

    def run(self, command: Command, *, on_output: OnOutput | None = None, **options: Any) -> Run:
        """Let a worker run a command; what it changed is held here. `options` are those of `send`."""
        return self.attach(self.send(command, **options), on_output=on_output)

    def map(self, commands: Iterable[Command], **options: Any) -> list[Run]:
        """Let workers run many commands on one base; returns their runs in the same order."""
        ids = [self.send(command, fresh=number == 0, **options) for number, command in enumerate(commands)]
        runs = dict(self.results(ids))
        return [runs[each] for each in ids]

    def best(
        self, command: Command, n: int = 8, *, check: str = "", score: str = "", keep: bool = False,
        apply: bool = True, env: Mapping[str, str] | None = None,
        on_candidate: Callable[[Candidate], object] | None = None, **options: Any,
    ) -> Best:  # fmt: skip
        """Let workers run a command as `n` candidates on one base, and apply the best, as `Sandbox.best` does here."""
        options |= {"check": check, "score": score}
        numbered = [{**(env or {}), NUMBER_VARIABLE: str(number)} for number in range(1, n + 1)]
        ids = [self.send(command, env=each, fresh=index == 0, **options) for index, each in enumerate(numbered)]
        candidates = [Candidate(number=number, draft=_draft_name(job)) for number, job in enumerate(ids, 1)]
        first_with: dict[str, int] = {}
        is_interrupted = False
        try:
            for job, run in self.results(ids):
                index = ids.index(job)
                candidates[index] = self._rated(candidates[index], run, self._note(job), first_with)
                if on_candidate is not None:
                    on_candidate(candidates[index])
        except KeyboardInterrupt:
            is_interrupted = True
            for job in ids:
                with suppress(BadRequest):  # it has just ended
                    self.cancel(job)
        drafts = [self._sandbox.draft(each.draft) for each in candidates]
        return pick_best(candidates, drafts, keep=keep, applies=apply, is_interrupted=is_interrupted)

    def _rated(self, candidate: Candidate, run: Run, note: Note, first_with: dict[str, int]) -> Candidate:
        """Return a candidate with how it ended, what it changed, and what check and score said."""
        candidate = candidate.replace(exit_code=run.exit_code, duration_s=run.duration_s)
        if run.exit_code is None:
            return candidate.replace(status=ERROR, reason=run.reason)
        candidate = with_size(self._sandbox.draft(candidate.draft), candidate, first_with)
        if candidate.status == SAME:
            return candidate
        check_code, score = note.get("check_code"), note.get("score")
        has_failed = run.exit_code if check_code is None else check_code
        candidate = candidate.replace(check_code=check_code, status=FAILED if has_failed else PASSED)
        return candidate if score is None else with_score(candidate, score)

    def attach(self, job: str, *, on_output: OnOutput | None = None) -> Run:
        """Wait for a job that was sent, perhaps by another process long ago, and return its run."""
        ((_, run),) = self.results([job], on_output=on_output)
        return run

    def results(self, ids: Sequence[str], *, on_output: OnOutput | None = None) -> Iterator[tuple[str, Run]]:
        """Yield each of these jobs with its run, as they end."""
        unfinished = {}
        for each in ids:
            note = self._note(each)
            if note["run"]:
                yield each, self._store.history.find(note["run"])
            else:
                unfinished[each] = note
        imports: dict[Future[Run], str] = {}
        with redis_errors(), ThreadPoolExecutor(_MAX_IMPORTS, thread_name_prefix="fumehood-fleet") as pool:
            for job, outcome in self._outcomes(unfinished, on_output):
                imports[pool.submit(self._record, job, outcome)] = job
                for future in [each for each in imports if each.done()]:
                    yield imports.pop(future), future.result()
            for future in as_completed(imports):
                yield imports[future], future.result()

    def _outcomes(self, notes: dict[str, dict[str, Any]], on_output: OnOutput | None) -> Iterator[tuple[str, Outcome]]:
        """Wait for the jobs' results, and report what the jobs print; send those again that Redis has forgotten."""
        jobs_by_key = {Result.get_key(job): job for job in notes}
        positions = dict.fromkeys(jobs_by_key, "0-0")  # in each stream, the last entry that was read
        if on_output is not None:
            positions |= dict.fromkeys(map(output_key, notes), "0-0")
        searched_at = time.monotonic()
        while jobs_by_key:
            to_check = set()
            answer = self._connection.xread(positions, block=1000) or {}
            for raw_key, pieces in dict(answer).items():
                key = raw_key.decode()
                for position, fields in _stream_entries(pieces):
                    positions[key] = position
                    if on_output is not None and key not in jobs_by_key and fields.keys() >= {b"stream", b"text"}:
                        on_output(*(fields[name].decode(errors="replace") for name in (b"stream", b"text")))
                to_check |= {key} & jobs_by_key.keys()
            if time.monotonic() - searched_at > _LOST_JOBS_INTERVAL_S:
                searched_at, to_check = time.monotonic(), set(jobs_by_key)
            for key in to_check:
                outcome = self._outcome(notes[jobs_by_key[key]])
                if outcome is not None:
                    job = jobs_by_key.pop(key)
                    positions.pop(key)
                    positions.pop(output_key(job), None)
                    yield job, outcome

    def _outcome(self, note: Note) -> Outcome | None:
        """Return a job's result, or None if it has not ended."""
        try:
            job = QueuedJob.fetch(note["id"], connection=self._connection, serializer=JSONSerializer)
        except NoSuchJobError:
            self._send_base()  # Redis may have forgotten the files too
            self._enqueue(note)
            return None
        result = job.latest_result()
        if result is not None and result.type == Result.Type.SUCCESSFUL:
            return self._verified(result.return_value, note["id"])
        if job.is_canceled or job.is_stopped:
            return {"failed": "the job was cancelled"}
        if result is None or result.type == Result.Type.RETRIED:
            return None
        reason = (result.exc_string or "").strip() or "it ended without a result"
        return {"failed": reason.splitlines()[-1]}

    def _verified(self, value: Any, job: str) -> Outcome:
        """Read a result; `signed` in it says who signed it."""
        try:
            text, signature = value["result"], value["signature"]
            outcome: Outcome = json.loads(text)
            json.dumps(outcome, ensure_ascii=False).encode(errors="surrogateescape")  # else it can't be recorded
            outcome["signed"] = "not signed"
            if signature:
                outcome["signed"] = signer_of(signature, RESULT, text.encode(), self._policy.sign.signers).line
            if outcome["job"] != job:
                return {"failed": "the result is one of another job"}
        except _MALFORMED as error:
            return {"failed": f"the result is not one: {error}"}
        except BadSignature as error:
            return {"failed": f"the result was changed on its way: {error.message}"}
        return outcome

    @redis_errors()
    def cancel(self, job: str) -> None:
        """Cancel a job that has not ended: take it from the queue, or stop it at its worker."""
        has_ended = BadRequest(f"job {printable(job)} has ended", hint=f"fumehood fleet attach {printable(job)}")
        if self._note(job)["run"]:
            raise has_ended
        try:
            queued_job = QueuedJob.fetch(job, connection=self._connection, serializer=JSONSerializer)
            status = queued_job.get_status()
            if status == JobStatus.STARTED:
                send_stop_job_command(self._connection, job, serializer=JSONSerializer)
            elif status not in _ENDED:
                queued_job.cancel()
        except (NoSuchJobError, InvalidJobOperation) as error:
            raise BadRequest(f"job {printable(job)} can't be cancelled: {error}", hint="has it ended?") from error
        if status in _ENDED:
            raise has_ended

    def _record(self, job: str, outcome: Outcome) -> Run:
        """Record a job's result as a run, and in its note; do nothing if it is recorded already."""
        with FileLock(self._store.places.lock(_draft_name(job))):
            note = self._note(job)
            if note["run"]:
                return self._store.history.find(note["run"])
            title = f"fleet {job}: {_command_line(note)}"
            try:
                if "bundle" in outcome:
                    run = self._import_changes(job, title, outcome)
                else:
                    run = self._record_failure(title, outcome)
            except (BadRequest, MissingContent) as error:
                reason = f"what it changed can't be imported: {error.message}"
                run = self._record_failure(title, {"failed": reason})
            rating = {name: outcome.get(name) for name in ("check_code", "score")}
            self._write_note({**note, **rating, "run": run.run})
        return run

    def _import_changes(self, job: str, title: str, outcome: Outcome) -> Run:
        """Import a job's changes into a draft of its own; a draft that an earlier sender began is thrown away."""
        draft_name = _draft_name(job)
        try:
            report, bundle = _read_report(outcome["report"]), str(outcome["bundle"]["name"])
        except _MALFORMED as error:
            raise BadRequest(f"the result is not one: {error}", hint="is the worker of another version?") from error
        with tempfile.NamedTemporaryFile(dir=self._store.places.state) as file:
            for _, data in self._blobs.get([(bundle, _MAX_BUNDLE_BYTES)]):
                file.write(data)
            file.flush()
            if self._store.drafts.find_open(self._project.id, draft_name) is not None:
                self._sandbox.draft(draft_name).discard()
            draft = self._sandbox.draft(draft_name)
            run: Run = draft._import_bundle(file.name, title, outcome["signed"])
        if run.state == "empty":
            draft.discard()
        run.exit_code, run.timed_out, run.duration_s, run.network, run.blocked, outputs = report
        self._store.history.end(run, [(each, len(each)) for each in outputs])
        return self._store.history.find(run.run)

    def _record_failure(self, title: str, outcome: Outcome) -> Run:
        """Record a job that no worker finished, as a run that failed or was refused."""
        run = Run(
            run=new_id(), project=self._project.path, command=title, cwd=self._project.path,
            state="refused" if "refused" in outcome else "failed", roots=self._project.roots, started_at=time.time(),
            reason=str(outcome.get("refused") or outcome.get("failed") or "it ended without a result"),
        )  # fmt: skip
        self._store.history.refuse(self._project.id, run)
        return self._store.history.find(run.run)

    # The notes of jobs.

    def _note_path(self, job: str) -> str:
        return f"{self._store.places.state}/fleet/{job}.json"

    def _note(self, job: str) -> dict[str, Any]:
        """Return the note of a job; raises BadRequest if it was sent from another project.

        The job's changes are meant for that project, and if Redis has lost its files, that project's are sent again.
        """
        note = self._read_note(job)
        if note["project"] != self._project.id:
            path = printable(self._store.projects.path_of(note["project"]))
            raise BadRequest(f"job {printable(job)} was sent from {path}", hint=f"from here: --project {path}")
        return note

    def _read_note(self, job: str) -> dict[str, Any]:
        try:
            with open(self._note_path(job), encoding="utf-8") as file:
                note = {"project": self._project.id, **json.load(file)}
        except (FileNotFoundError, ValueError) as error:
            raise BadRequest(
                f"no job {printable(job)} was sent from here", hint="fumehood fleet list shows those that were"
            ) from error
        return note

    def _write_note(self, note: Note) -> None:
        path = self._note_path(note["id"])
        make_private(os.path.dirname(path))
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(note, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)

    def notes(self) -> list[dict[str, Any]]:
        """Return the jobs that were sent from this project, the latest first, each with its run once there is one."""
        directory = os.path.dirname(self._note_path(""))
        names = sorted(os.listdir(directory), reverse=True) if os.path.isdir(directory) else []
        notes = (self._read_note(name.removesuffix(".json")) for name in names if name.endswith(".json"))
        return [note for note in notes if note["project"] == self._project.id]


def _stream_entries(pieces: Any) -> Iterator[tuple[Any, dict[bytes, bytes]]]:
    """Yield a stream's entries; how they are nested depends on the version of the protocol."""
    for each in pieces:
        if isinstance(each, list):
            yield from _stream_entries(each)
        else:
            yield each


def _read_report(report: Any) -> tuple[int | None, bool, float, str, tuple[Blocked, ...], list[bytes]]:
    """Return what a worker reports of a command: how it ended, and what it printed; raises one of `_MALFORMED`.

    The worker may be of another version, and whoever can write to Redis may have forged the report.
    """
    code = report["exit_code"]
    if code is not None and code not in range(256):
        raise ValueError(f"{code!r} is not an exit status")
    blocked = [Blocked(**{name: str(each[name]) for name in Blocked._fields}) for each in report["blocked"]]
    outputs = [str(report[name]).encode(errors="surrogateescape") for name in ("stdout", "stderr")]
    return (
        code, bool(report["timed_out"]), float(report["duration_s"]), str(report["network"]), tuple(blocked), outputs,
    )  # fmt: skip


def _draft_name(job: str) -> str:
    return f"fleet-{job}"


def _command_line(note: Note) -> str:
    command = note["command"]
    return command if isinstance(command, str) else " ".join(command)
