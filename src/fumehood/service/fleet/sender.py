"""The sender's side: a project's base and commands go out, and what comes back is held here, each job once.

Ignored and masked paths stay at home, and so does what looks like a secret.

A note of each job lies in our own state before it is sent, so that a sender that goes away can come back for it. What
a job's end becomes in the record is decided under a lock, by that note: a draft that a sender began which was killed
on the way is thrown away, and begun again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import Any

from rq import Retry, Worker
from rq.command import send_stop_job_command
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import JobStatus
from rq.results import Result
from rq.serializers import JSONSerializer

from fumehood.core.changes import DIRECTORY, FILE, SYMLINK
from fumehood.core.masks import HOME, is_below, is_in, make_masks
from fumehood.core.patterns import MARKER_FILES, is_skipped
from fumehood.core.policy import Policy
from fumehood.core.report import Blocked, Run, printable
from fumehood.errors import BadRequest
from fumehood.linux.cache import TICK_NS, load, save
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import DirectoryCache, open_top, stat_entry
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
from fumehood.service.files import ignore_rules, is_ignored
from fumehood.service.fleet import jobs
from fumehood.service.fleet.jobs import LARGEST, Base, BaseEntry, Blobs, Missing, digest, open_blobs
from fumehood.service.profiles import digest_of
from fumehood.service.store import Store
from fumehood.store.places import FileLock, Places, home, make_private, new_id
from fumehood.store.projects import Project

Command = str | Sequence[str]
Outcome = dict[str, Any]

_LOST_S = 2.0  # how often jobs are looked for that Redis may have forgotten
_FOR_FETCHING_S = 600  # besides a command's own time: the base may have to be fetched first
_LARGEST_BUNDLE = 4 << 30
_AT_ONCE = min(8, os.cpu_count() or 1)  # results that are taken over
_WRONG = (KeyError, TypeError, ValueError, OverflowError)  # what comes of a result that is none
_ENDED = (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.STOPPED, JobStatus.CANCELED)
_MOST_TRIES = 20  # a job is tried so often again whose workers are killed


class FleetSender:
    """Sends a project's commands to workers: `Sandbox.fleet` makes one.

    `on_wait` is a function that is told, in words, when Redis is not reached and is waited for.
    """

    def __init__(
        self, sandbox: Any, url: str, *, blobs: str = "", key: str = "", queue: str = "", include: Sequence[str] = ()
    ) -> None:
        self._sandbox = sandbox
        self._store: Store = sandbox._store
        self._project: Project = sandbox._project
        self._policy: Policy = sandbox._hood.policy
        self.on_wait: Callable[[str], object] = lambda _why: None
        self._connection = jobs.connected(url, lambda why: self.on_wait(why))  # noqa: PLW0108 - it is set later
        self._blobs = open_blobs(blobs, self._connection)
        self._key = key or self._policy.sign.key
        self._queue = jobs.queue(queue or jobs.QUEUE, self._connection)
        self._include = tuple(include)
        self._base = ""

    @jobs.redis_errors()
    def plan(self) -> dict[str, Any]:
        """Return what would be sent, what of it is in the store already, and what stays at home with the reason."""
        base = self._survey()
        lacking = self._blobs.missing(list(base.contents))
        files = [
            {"path": each.path, "size": each.size, "sent": each.content not in lacking}
            for each in base.entries if each.kind == FILE
        ]  # fmt: skip
        return {
            "project": self._project.path, "files": files, "bytes": sum(each["size"] for each in files),
            "to_send": sum(each["size"] for each in files if not each["sent"]),
            "at_home": [{"path": path, "reason": why} for path, why in base.at_home],
        }  # fmt: skip

    def _survey(self) -> Base:
        for each in self._include:
            if not os.path.lexists(f"{self._project.path}/{each.strip('/')}"):
                raise BadRequest(f"there is no {printable(each)} in the project to be sent", hint="check --include")
        return survey_project(self._project.path, self._policy, self._store.places, self._include)

    @property
    def sent(self) -> int:
        """How many bytes of contents this sender has put into the store."""
        return self._blobs.sent

    @jobs.redis_errors()
    def send(
        self, command: Command, *, cwd: str = "", timeout: float | None = None, hosts: Sequence[str] = (),
        root: str = "host", env: Mapping[str, str] | None = None, secrets: Sequence[str] = (),
        limits: Mapping[str, int] | None = None, check: str = "", score: str = "", fresh: bool = True,
        first: bool = False,
    ) -> str:  # fmt: skip
        """Send a command, and the project's base where the store lacks it; returns the job's id.

        `secrets` are names of variables that the worker has. `limits` are as in the configuration; the worker's own
        count where they are lower. `check` and `score` are run after it, as `best` has them. Without `fresh`, the base
        is the one of the last command sent from here. `first` puts it before all that waits.
        """
        if fresh or not self._base:
            self._base = send_base(self._project.path, self._survey(), self._blobs)
        longest = timeout or self._policy.timeout or 86400.0
        job = jobs.SignedJob(
            id=new_id().lower(), command=command if isinstance(command, str) else tuple(command), base=self._base,
            expires_at=time.time() + jobs.KEPT_S, cwd=cwd, timeout=timeout, root=root, hosts=tuple(hosts),
            environment=tuple((env or {}).items()), secrets=tuple(secrets), limits=tuple((limits or {}).items()),
            check=check, score=score,
        )  # fmt: skip
        text = job.text()
        jobs.read(text)  # in the sender's words rather than in a worker's
        note = {
            "id": job.id, "command": job.command, "text": text, "timeout": longest + _FOR_FETCHING_S,
            "signature": sign(self._key, JOB, text.encode()) if self._key else "", "run": "",
            "first": first, "project": self._project.id,
        }  # fmt: skip
        self._write(note)
        self._enqueue(note)
        return job.id

    def _enqueue(self, note: Mapping[str, Any]) -> None:
        self._queue.enqueue_call(
            jobs.FUNCTION, args=(note["text"], note["signature"]), job_id=note["id"], timeout=int(note["timeout"]),
            result_ttl=jobs.KEPT_S, failure_ttl=jobs.KEPT_S, retry=Retry(max=_MOST_TRIES, enqueue_at_front=True),
            description=printable(_shown(note["command"]))[:200], at_front=note.get("first", False),
        )  # fmt: skip

    @jobs.redis_errors()
    def workers(self) -> int:
        """Return how many workers are at the queue, though one that died may count for a while."""
        return int(Worker.count(queue=self._queue))

    def run(self, command: Command, *, on_output: Callable[[str, str], object] | None = None, **options: Any) -> Run:
        """Have a command done by some worker; what it changed is held here. `options` are those of `send`."""
        return self.attach(self.send(command, **options), on_output=on_output)

    def map(self, commands: Iterable[Command], **options: Any) -> list[Run]:
        """Have many commands done on one base; returns their runs in the same order."""
        ids = [self.send(command, fresh=number == 0, **options) for number, command in enumerate(commands)]
        runs = dict(self.results(ids))
        return [runs[each] for each in ids]

    def best(
        self, command: Command, n: int = 8, *, check: str = "", score: str = "", keep: bool = False,
        apply: bool = True, env: Mapping[str, str] | None = None,
        on_candidate: Callable[[Candidate], object] | None = None, **options: Any,
    ) -> Best:  # fmt: skip
        """Have a command done as `n` candidates on one base, and apply the best, as `Sandbox.best` does here."""
        options |= {"check": check, "score": score}
        numbered = [{**(env or {}), NUMBER_VARIABLE: str(number)} for number in range(1, n + 1)]
        ids = [self.send(command, env=each, fresh=not at, **options) for at, each in enumerate(numbered)]
        candidates = [Candidate(number=number, draft=_draft(job)) for number, job in enumerate(ids, 1)]
        first_with: dict[str, int] = {}
        is_interrupted = False
        try:
            for job, run in self.results(ids):
                at = ids.index(job)
                candidates[at] = self._candidate(candidates[at], run, self._note(job), first_with)
                if on_candidate is not None:
                    on_candidate(candidates[at])
        except KeyboardInterrupt:
            is_interrupted = True
            for job in ids:
                with suppress(BadRequest):  # it has just ended
                    self.cancel(job)
        lines = [self._sandbox.draft(each.draft) for each in candidates]
        return pick_best(candidates, lines, keep=keep, applies=apply, is_interrupted=is_interrupted)

    def _candidate(
        self, candidate: Candidate, run: Run, note: Mapping[str, Any], first_with: dict[str, int]
    ) -> Candidate:
        candidate = candidate.replace(exit_code=run.exit_code, duration_s=run.duration_s)
        if run.exit_code is None:
            return candidate.replace(status=ERROR, reason=run.reason)
        candidate = with_size(self._sandbox.draft(candidate.draft), candidate, first_with)
        if candidate.status == SAME:
            return candidate
        code, score = note.get("check_code"), note.get("score")
        candidate = candidate.replace(
            check_code=code, status=FAILED if (run.exit_code if code is None else code) else PASSED
        )
        return candidate if score is None else with_score(candidate, score)

    def attach(self, job: str, *, on_output: Callable[[str, str], object] | None = None) -> Run:
        """Wait for a job that was sent, perhaps by another process long ago, and return its run."""
        ((_, run),) = self.results([job], on_output=on_output)
        return run

    def results(
        self, ids: Sequence[str], *, on_output: Callable[[str, str], object] | None = None
    ) -> Iterator[tuple[str, Run]]:
        """Yield each of these jobs with its run, as they end."""
        waiting = {}
        for each in ids:
            note = self._note(each)
            if note["run"]:
                yield each, self._store.history.find(note["run"])
            else:
                waiting[each] = note
        taking: dict[Future[Run], str] = {}
        with jobs.redis_errors(), ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fumehood-fleet") as pool:
            for job, outcome in self._outcomes(waiting, on_output):
                taking[pool.submit(self._taken, job, outcome)] = job
                for done in [each for each in taking if each.done()]:
                    yield taking.pop(done), done.result()
            for done in as_completed(taking):
                yield taking[done], done.result()

    def _outcomes(
        self, notes: dict[str, dict[str, Any]], on_output: Callable[[str, str], object] | None
    ) -> Iterator[tuple[str, Outcome]]:
        """Wait for the jobs' ends, and tell what they print; one that Redis has forgotten is sent again."""
        ends = {Result.get_key(job): job for job in notes}
        seen = dict.fromkeys(ends, "0-0")
        if on_output is not None:
            seen |= dict.fromkeys(map(jobs.output_key, notes), "0-0")
        looked = time.monotonic()
        while ends:
            news = set()
            answer = self._connection.xread(seen, block=1000) or {}
            for raw, pieces in dict(answer).items():
                key = raw.decode()
                for at, fields in _flat(pieces):
                    seen[key] = at
                    if on_output is not None and key not in ends and fields.keys() >= {b"stream", b"text"}:
                        on_output(*(fields[name].decode(errors="replace") for name in (b"stream", b"text")))
                news |= {key} & ends.keys()
            if time.monotonic() - looked > _LOST_S:
                looked, news = time.monotonic(), set(ends)
            for key in news:
                outcome = self._outcome(notes[ends[key]])
                if outcome is not None:
                    job = ends.pop(key)
                    seen.pop(key)
                    seen.pop(jobs.output_key(job), None)
                    yield job, outcome

    def _outcome(self, note: Mapping[str, Any]) -> Outcome | None:
        """Return how a job ended, if it has."""
        try:
            job = jobs.FleetJob.fetch(note["id"], connection=self._connection, serializer=JSONSerializer)
        except NoSuchJobError:
            send_base(self._project.path, self._survey(), self._blobs)  # it may have forgotten the files too
            self._enqueue(note)
            return None
        result = job.latest_result()
        if result is None or result.type != Result.Type.SUCCESSFUL:
            if job.is_canceled or job.is_stopped:
                return {"failed": "the job was cancelled"}
            if result is None or result.type == Result.Type.RETRIED:
                return None
            said = (result.exc_string or "").strip() or "it ended without a result"
            return {"failed": said.splitlines()[-1]}
        return self._verified(result.return_value, note["id"])

    def _verified(self, value: Any, job: str) -> Outcome:
        """Read a result; where a worker signed it, it says who."""
        try:
            text, signature = value["result"], value["signature"]
            outcome: Outcome = json.loads(text)
            json.dumps(outcome, ensure_ascii=False).encode(errors="surrogateescape")  # else it can't be recorded
            outcome["signed"] = "not signed"
            if signature:
                outcome["signed"] = signer_of(signature, RESULT, text.encode(), self._policy.sign.signers).line
            if outcome["job"] != job:
                return {"failed": "the result is one of another job"}
        except _WRONG as error:
            return {"failed": f"the result is not one: {error}"}
        except BadSignature as error:
            return {"failed": f"the result was changed on its way: {error.message}"}
        return outcome

    @jobs.redis_errors()
    def cancel(self, job: str) -> None:
        """Take a job back that has not ended: from the queue, or from the worker that does it."""
        ended = BadRequest(f"job {printable(job)} has ended", hint=f"fumehood fleet attach {printable(job)}")
        if self._note(job)["run"]:
            raise ended
        try:
            waiting = jobs.FleetJob.fetch(job, connection=self._connection, serializer=JSONSerializer)
            status = waiting.get_status()
            if status == JobStatus.STARTED:
                send_stop_job_command(self._connection, job, serializer=JSONSerializer)
            elif status not in _ENDED:
                waiting.cancel()
        except (NoSuchJobError, InvalidJobOperation) as error:
            raise BadRequest(f"job {printable(job)} can't be cancelled: {error}", hint="has it ended?") from error
        if status in _ENDED:
            raise ended

    def _taken(self, job: str, outcome: Outcome) -> Run:
        with FileLock(self._store.places.lock(_draft(job))):
            note = self._note(job)
            if note["run"]:
                return self._store.history.find(note["run"])
            title = f"fleet {job}: {_shown(note['command'])}"
            try:
                run = self._held(job, title, outcome) if "bundle" in outcome else self._without_changes(title, outcome)
            except (BadRequest, Missing) as error:
                run = self._without_changes(title, {"failed": f"what it changed can't be taken up: {error.message}"})
            judged = {name: outcome.get(name) for name in ("check_code", "score")}
            self._write(note | judged | {"run": run.run})
        return run

    def _held(self, job: str, title: str, outcome: Outcome) -> Run:
        """Take up a job's changes in a draft of its own; what was begun of that before is thrown away."""
        try:
            end, bundle, name = _end_of(outcome["report"]), str(outcome["bundle"]["name"]), _draft(job)
        except _WRONG as error:
            raise BadRequest(f"the result is not one: {error}", hint="is the worker of another version?") from error
        with tempfile.NamedTemporaryFile(dir=self._store.places.state) as file:
            for _, data in self._blobs.get([(bundle, _LARGEST_BUNDLE)]):
                file.write(data)
            file.flush()
            if self._store.drafts.find_open(self._project.id, name) is not None:
                self._sandbox.draft(name).discard()
            draft = self._sandbox.draft(name)
            run: Run = draft._import_bundle(file.name, title, outcome["signed"])
        if run.state == "empty":
            draft.discard()
        run.exit_code, run.timed_out, run.duration_s, run.network, run.blocked, outputs = end
        self._store.history.end(run, [(each, len(each)) for each in outputs])
        return self._store.history.find(run.run)

    def _without_changes(self, title: str, outcome: Outcome) -> Run:
        """Record a job that no worker did."""
        is_refused = "refused" in outcome
        run = Run(
            run=new_id(), project=self._project.path, command=title, cwd=self._project.path,
            state="refused" if is_refused else "failed", roots=self._project.roots, started_at=time.time(),
            reason=str(outcome.get("refused") or outcome.get("failed") or "it ended without a result"),
        )  # fmt: skip
        self._store.history.refuse(self._project.id, run)
        return self._store.history.find(run.run)

    def _place(self, job: str) -> str:
        return f"{self._store.places.state}/fleet/{job}.json"

    def _note(self, job: str) -> dict[str, Any]:
        note = self._read(job)
        if note["project"] != self._project.id:
            # What it changed is meant for that project, and its files are sent again where Redis has lost them.
            path = printable(self._store.projects.path_of(note["project"]))
            raise BadRequest(f"job {printable(job)} was sent from {path}", hint=f"from here: --project {path}")
        return note

    def _read(self, job: str) -> dict[str, Any]:
        try:
            with open(self._place(job), encoding="utf-8") as file:
                note = {"project": self._project.id, **json.load(file)}
        except (FileNotFoundError, ValueError) as error:
            raise BadRequest(
                f"no job {printable(job)} was sent from here", hint="fumehood fleet list shows those that were"
            ) from error
        return note

    def _write(self, note: Mapping[str, Any]) -> None:
        place = self._place(note["id"])
        make_private(os.path.dirname(place))
        beside = f"{place}.{os.getpid()}"
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(dict(note), file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, place)

    def notes(self) -> list[dict[str, Any]]:
        """Return the jobs that were sent from here, the latest first, each with its run once that is there."""
        directory = os.path.dirname(self._place(""))
        names = sorted(os.listdir(directory), reverse=True) if os.path.isdir(directory) else []
        notes = (self._read(name[:-5]) for name in names if name.endswith(".json"))
        return [note for note in notes if note["project"] == self._project.id]


def _flat(pieces: Any) -> Iterator[tuple[Any, dict[bytes, bytes]]]:
    """Yield a stream's entries, however the protocol's version nests them."""
    for each in pieces:
        if isinstance(each, list):
            yield from _flat(each)
        else:
            yield each


def _end_of(report: Any) -> tuple[int | None, bool, float, str, tuple[Blocked, ...], list[bytes]]:
    """Return what a worker says of a command's end: it may be of another version, and whoever reaches Redis forges it.

    Raises one of `_WRONG`.
    """
    code = report["exit_code"]
    if code is not None and code not in range(256):
        raise ValueError(f"{code!r} is no exit status")
    texts = [{name: str(each[name]) for name in Blocked._fields} for each in report["blocked"]]
    blocked = tuple(Blocked(**each) for each in texts)
    outputs = [str(report[name]).encode(errors="surrogateescape") for name in ("stdout", "stderr")]
    return code, bool(report["timed_out"]), float(report["duration_s"]), str(report["network"]), blocked, outputs


def _draft(job: str) -> str:
    return f"fleet-{job}"


def _shown(command: Any) -> str:
    return command if isinstance(command, str) else " ".join(command)


# ---- What goes, and what stays at home.

IGNORED, SKIPPED, MASKED, SECRET, OTHER = (
    "ignored by git", "a repository, packages or a cache", "masked", "may hold a secret", "neither file nor link",
)  # fmt: skip
_SECRET_PATHS = ("/.envrc", *(f"/{entry}" for entry, _ in HOME))  # wherever in a project they lie
_SECRET = re.compile(
    r"(?!.*(example|sample|template)).*\.env(\..*)?|.*\.(pem|key|p12|pfx|jks|keystore)|id_(rsa|dsa|ecdsa|ed25519)",
    re.IGNORECASE,
)
_READ_ONCE = os.O_RDONLY | os.O_NONBLOCK
_KEY = 16  # bytes by which a file's stamp is kept
Ignored = tuple[tuple[int, Any], ...]


def survey_project(path: str, policy: Policy, places: Places, include: Collection[str] = ()) -> Base:
    """Read a project and return its base; `include` are paths that go although they would stay at home."""
    hidden = make_masks((home(),), places.own_directories(), policy.mask, policy.unmask, root=False)
    hashes = _Hashes(f"{places.state}/fleet", path)
    walk = _BaseWalk(path, hidden.hidden, hidden.in_roots, frozenset(each.strip("/") for each in include), hashes)
    entries = tuple(sorted(walk.kept(), key=lambda each: each.path.split("/")))
    hashes.keep()
    name = os.path.basename(path) or "project"
    return Base(name=name, entries=entries, at_home=tuple(sorted(walk.at_home)))


class _Hashes:
    """Hashes of a project's files from one survey to the next: a file that is as it was is not read again.

    As of git's index, what a program writes through a mapping that it holds open may be noticed late.
    """

    def __init__(self, directory: str, project: str) -> None:
        self._directory = directory
        self._place = f"{directory}/hashes-{digest_of(project)}"
        self._before: dict[bytes, bytes] = load(self._place) or {}
        self._now: dict[bytes, bytes] = {}

    def of(self, parents: DirectoryCache, path: str, status: os.stat_result) -> tuple[int, str]:
        """Return a file's size and hash."""
        stamp = (path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        key = hashlib.blake2b(repr(stamp).encode(), digest_size=_KEY).digest()
        size, content = status.st_size, self._before.get(key, b"").hex()
        if not content:
            is_old = time.time_ns() - status.st_ctime_ns > TICK_NS  # no later version can have the same stamp
            data = _content(parents, path)
            size, content = len(data), digest(data)
            if not is_old:
                return size, content
        self._now[key] = bytes.fromhex(content)
        return size, content

    def keep(self) -> None:
        """Keep them for the next time."""
        if self._now != self._before:
            make_private(self._directory)
            save(self._place, self._now)


class _BaseWalk:
    def __init__(
        self, path: str, hidden: Sequence[str], masked: Sequence[str], include: frozenset[str], hashes: _Hashes
    ) -> None:
        self._path, self._hidden, self._masked, self._include = path, hidden, masked, include
        self._hashes = hashes
        self.at_home: list[tuple[str, str]] = []

    def kept(self) -> list[BaseEntry]:
        """Return what goes: not what a link leads to that stays at home for a secret's sake."""
        entries = list(self.entries())
        secrets = [f"{self._path}/{path}" for path, why in self.at_home if why in (MASKED, SECRET)]
        targets = [os.path.realpath(path) for path in secrets if os.path.islink(path)]
        behind = [target[len(self._path) + 1 :] for target in targets if is_below(target, self._path)]
        stays = {each.path for each in entries if is_in(each.path, behind) and not is_in(each.path, self._include)}
        self.at_home += [(path, SECRET) for path in stays]
        return [each for each in entries if each.path not in stays]

    def entries(self) -> Iterator[BaseEntry]:
        with Closing(open_top(self._path)) as top, DirectoryCache(top) as parents:
            waiting: list[tuple[str, Ignored, bool]] = [("", (), False)]
            while waiting:
                path, above, is_included = waiting.pop()
                directory = parents.open_listing(path)
                if directory is None:
                    self.at_home.append((path, "closed"))
                    continue
                with Closing(directory):
                    if path:
                        yield BaseEntry(path=path, kind=DIRECTORY, mode=stat.S_IMODE(os.fstat(directory).st_mode))
                    ignored = ignore_rules(directory, path) + above
                    for name in os.listdir(directory):
                        below = f"{path}/{name}" if path else name
                        status = stat_entry(directory, name)
                        if status is None:
                            continue  # gone meanwhile
                        is_directory = stat.S_ISDIR(status.st_mode)
                        goes = is_included or below in self._include
                        why = "" if goes else self._why_not(parents, below, ignored, is_directory=is_directory)
                        if why:
                            self.at_home.append((f"{below}/" if is_directory else below, why))
                        elif is_directory:
                            waiting.append((below, ignored, goes))
                        elif stat.S_ISLNK(status.st_mode):
                            target = os.readlink(name, dir_fd=directory)
                            yield BaseEntry(path=below, kind=SYMLINK, mode=0o777, content=target)
                        elif stat.S_ISREG(status.st_mode):
                            mode = stat.S_IMODE(status.st_mode) & 0o777
                            size, content = self._hashes.of(parents, below, status)
                            yield BaseEntry(path=below, kind=FILE, mode=mode, size=size, content=content)
                        else:
                            self.at_home.append((below, OTHER))

    def _why_not(self, parents: DirectoryCache, path: str, ignored: Ignored, *, is_directory: bool) -> str:
        if any(each.startswith(f"{path}/") for each in self._include):
            return ""  # the way to something that is wanted
        name = os.path.basename(path)
        if is_in(path, self._masked) or is_in(f"{self._path}/{path}", self._hidden):
            return MASKED
        if is_ignored(path, ignored, is_directory=is_directory):
            return IGNORED
        if name == ".git" or (is_directory and is_skipped(name)):
            return SKIPPED
        directory = parents.open_listing(path) if is_directory else None
        if directory is not None:
            with Closing(directory):
                if any(stat_entry(directory, marker) is not None for marker in MARKER_FILES):
                    return SKIPPED
        return SECRET if f"/{path}".endswith(_SECRET_PATHS) or _SECRET.fullmatch(name) else ""


def _content(parents: DirectoryCache, path: str) -> bytes:
    try:
        with open(parents.open(path, _READ_ONCE), "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise BadRequest(
                    f"{printable(path)} is too large to travel: at most {LARGEST >> 20} MiB", hint="have git ignore it"
                )
            return file.read()
    except OSError as error:
        message = f"{printable(path)} can't be read: {error.strerror}"
        raise BadRequest(message, hint="mask = […] leaves it out") from error


def send_base(path: str, base: Base, blobs: Blobs) -> str:
    """Put what the store lacks of a base there, the manifest last; returns the hash that a job names."""
    manifest = base.manifest
    name = digest(manifest)
    contents = base.contents
    lacking = blobs.missing([*contents, name])
    wanted = sorted(lacking - {name})
    with Closing(open_top(path)) as top, DirectoryCache(top) as parents:
        read = blobs.put(_content(parents, contents[content]) for content in wanted)
        for expected, content in zip(wanted, read, strict=True):
            if expected != content:
                raise BadRequest(f"{printable(contents[expected])} changed while it was read", hint="try again")
    if name in lacking:
        list(blobs.put([manifest]))
    return name
