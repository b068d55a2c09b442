"""The best of several: run one command as candidates, each in a draft over one frozen project, and compare them."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fumehood.core import changes as c
from fumehood.core.value import Value
from fumehood.errors import ApplyFailed, BadRequest, FumehoodError
from fumehood.linux.libc import Closing
from fumehood.linux.limits import memory_limit
from fumehood.linux.nofollow import open_top
from fumehood.service.differences import each_difference
from fumehood.service.drafting import Draft
from fumehood.service.drafts import new_draft
from fumehood.store.places import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.report import Run
    from fumehood.service.commands import Command

NUMBER_VARIABLE = "FUMEHOOD_CANDIDATE"  # holds the candidate's number
WAITING, PASSED, FAILED, SAME, ENDED, ERROR = "not begun", "passed", "failed", "same", "ended", "error"
MAX_CANDIDATES = 1000


class Candidate(Value):
    """The result of one candidate."""

    number: int
    draft: str
    status: str = WAITING
    reason: str = ""
    exit_code: int | None = None
    check_code: int | None = None
    score: float | None = None
    files: int = 0
    added: int = 0
    removed: int = 0
    duration_s: float = 0.0
    same_as: int | None = None  # an earlier candidate with exactly the same changes

    @property
    def rank(self) -> tuple[bool, float, int, int, int]:
        """A key to sort by, the best last: the check, the score, then the smaller change."""
        score = float("-inf") if self.score is None else self.score
        return self.status == PASSED, score, -(self.added + self.removed), -self.files, -self.number


class Best(Value):
    """The result of all candidates; `best` is the one that is offered, and `run` the run that has applied it."""

    candidates: tuple[Candidate, ...]
    best: Candidate | None = None
    run: Any = None
    is_interrupted: bool = False
    reason: str = ""  # why the best one is not applied
    kept: tuple[str, ...] = ()  # the names of the drafts that are still there

    def as_dict(self) -> dict[str, Any]:
        """Return the result as `--json` prints it."""
        return {
            "candidates": [each.fields() for each in self.candidates],
            "best": None if self.best is None else self.best.number, "run": None if self.run is None else self.run.run,
            "state": None if self.run is None else self.run.state, "interrupted": self.is_interrupted,
            "reason": self.reason, "drafts": list(self.kept),
        }  # fmt: skip


class BestOf:
    """One comparison: makes the candidates' drafts, then runs, checks and ranks the candidates."""

    def __init__(
        self, sandbox: Any, command: Command, count: int, *, jobs: int, check: str | None, score: str | None,
        timeout: float | None, on_candidate: Callable[[Candidate], object] | None,
    ) -> None:  # fmt: skip
        if not 1 <= count <= MAX_CANDIDATES or jobs < 1:
            raise BadRequest(
                f"{count} candidates, {jobs} at once, can't be had", hint=f"1 to {MAX_CANDIDATES}, and at least 1"
            )
        self._command, self._check, self._score = command, check, score
        self._jobs = jobs = min(jobs, count)
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._on_candidate = on_candidate
        self._lock = threading.Lock()
        self._is_stopping = threading.Event()
        self._first_with_digest: dict[str, int] = {}
        name = f"best-{new_id()[-6:].lower()}"
        store, project = sandbox._store, sandbox._project
        first = new_draft(store, project, f"{name}-1", frozen=True)
        others = [store.drafts.new(project.id, f"{name}-{n}", base=first.id) for n in range(2, count + 1)]
        self.drafts = [Draft(sandbox, record) for record in (first, *others)]
        # The limits are for all candidates that run at once, together.
        policy, limits = sandbox._hood.policy, sandbox._hood.policy.limits
        limits = limits.replace(
            memory=memory_limit(limits) // jobs, processes=limits.processes and max(1, limits.processes // jobs),
            written=limits.written and max(1, limits.written // jobs),
        )  # fmt: skip
        for draft in self.drafts:
            draft._hood = sandbox._hood.replace(policy=policy.replace(limits=limits))
        self.candidates = [Candidate(number=n, draft=each.name) for n, each in enumerate(self.drafts, 1)]

    def run(self, *, keep: bool, applies: bool) -> Best:
        """Run all candidates to their ends, or until Ctrl-C, and apply the best of them."""
        is_interrupted = False
        try:
            with ThreadPoolExecutor(self._jobs, thread_name_prefix="fumehood-candidate") as pool:
                try:
                    for each in [pool.submit(self._run_candidate, at) for at in range(len(self.drafts))]:
                        each.result()
                except KeyboardInterrupt:
                    self._is_stopping.set()
                    is_interrupted = True
                except BaseException:
                    self._is_stopping.set()
                    raise
        except BaseException as error:
            rest = pick_best(self.candidates, self.drafts, keep=keep, applies=False, is_interrupted=True)
            if rest.kept:  # nothing else tells their names then
                error.add_note(f"kept as drafts, until they are discarded: {', '.join(rest.kept)}")
            raise
        return pick_best(self.candidates, self.drafts, keep=keep, applies=applies, is_interrupted=is_interrupted)

    def _run_candidate(self, at: int) -> None:
        if self._is_over():
            return
        began = time.monotonic()
        try:
            candidate = self._judge_candidate(at, self.candidates[at])
        except FumehoodError as error:
            candidate = self.candidates[at].replace(status=ERROR, reason=error.message)
        self.candidates[at] = candidate = candidate.replace(duration_s=round(time.monotonic() - began, 3))
        if self._on_candidate is not None:
            with self._lock:
                self._on_candidate(candidate)

    def _is_over(self) -> bool:
        return self._is_stopping.is_set() or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _judge_candidate(self, at: int, candidate: Candidate) -> Candidate:
        run = self._run_in_draft(at, self._command)
        candidate = candidate.replace(exit_code=run.exit_code)
        if self._is_over() or run.exit_code is None:
            return candidate.replace(status=ENDED)
        candidate = with_size(self.drafts[at], candidate, self._first_with_digest)
        if candidate.status == SAME:
            return candidate
        code: int | None = run.exit_code
        if self._check is not None:
            code = self._run_in_draft(at, self._check, apply="discard").exit_code
            if self._is_over():
                return candidate.replace(status=ENDED)
            candidate = candidate.replace(check_code=code)
        candidate = candidate.replace(status=FAILED if code else PASSED)
        if self._score is None or code:
            return candidate
        words = self._run_in_draft(at, self._score, apply="discard").stdout.split()
        return with_score(candidate, words[-1] if words else "")

    def _run_in_draft(self, at: int, command: Command, **options: Any) -> Run:
        timeout = None if self._deadline is None else max(0.001, self._deadline - time.monotonic())
        return self.drafts[at].run(
            command, env={NUMBER_VARIABLE: str(at + 1)}, timeout=timeout, cancelled=self._is_stopping.is_set, **options
        )


def pick_best(
    candidates: Sequence[Candidate], drafts: Sequence[Draft], *, keep: bool, applies: bool, is_interrupted: bool
) -> Best:
    """Apply the best candidate and discard the others' drafts; after Ctrl-C, keep all drafts that are complete."""
    ranked = sorted((each for each in candidates if each.status == PASSED), key=lambda each: each.rank)
    best = ranked[-1] if ranked else None
    run, reason = None, ""
    kept = [each for each in candidates if keep or each is best]
    if is_interrupted or best is None:
        reason = "interrupted: nothing was applied" if is_interrupted else "no candidate passed"
        kept = [each for each in candidates if keep or each.status in (PASSED, FAILED)]
    elif applies:
        try:
            run = drafts[best.number - 1].apply()
            kept.remove(best)
        except ApplyFailed as error:
            reason = error.message
    kept_names = {each.draft for each in kept}
    for draft, candidate in zip(drafts, candidates, strict=True):
        if candidate.draft not in kept_names and (run is None or candidate is not best):
            draft.discard()
    return Best(
        candidates=tuple(candidates), best=best, run=run, is_interrupted=is_interrupted, reason=reason,
        kept=tuple(each.draft for each in kept),
    )  # fmt: skip


def with_size(draft: Draft, candidate: Candidate, first_with_digest: dict[str, int]) -> Candidate:
    """Return a candidate with the size of its draft's changes, or SAME if an earlier one made exactly these changes.

    `first_with_digest` is updated: it has the number of the first candidate with each digest of changes.
    """
    from fumehood.service.bundles import digest_at

    with draft._preview() as preview:
        run = preview.run
        counts = [each.line_counts for each in each_difference(draft._store, run, (), here=run.project)]
        added, removed = (sum(each[side] for each in counts) for side in (0, 1))
        candidate = candidate.replace(files=len(run.changed), added=added, removed=removed)
        digest = hashlib.sha256()
        for change in run.changed:
            line = f"{change.root} {change.change} {change.kind} {change.path}"
            if change.after is not None:
                line += f" {change.after.mode:o}"
                if change.kind in (c.FILE, c.SYMLINK):
                    with Closing(open_top(preview.layers[change.root].upper)) as top:
                        line += f" {digest_at(top, change.path)}"
            digest.update(f"{line}\0".encode(errors="surrogateescape"))
    first = first_with_digest.setdefault(digest.hexdigest(), candidate.number)
    return candidate if first == candidate.number else candidate.replace(status=SAME, same_as=first)


def with_score(candidate: Candidate, printed: str) -> Candidate:
    """Return a candidate with its score: the last word that the score command printed."""
    try:
        score = float(printed)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):  # it can't be compared, or can't be written as JSON
        return candidate.replace(reason="the score printed no number at its end")
    return candidate.replace(score=score)
