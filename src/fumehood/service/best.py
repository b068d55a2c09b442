"""The best of several: one command run as candidates, each in a draft over one frozen project, and compared."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from fumehood.core import changes as c
from fumehood.core.value import Value
from fumehood.errors import ApplyFailed, BadRequest, FumehoodError
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import open_below, open_top
from fumehood.service import drafts
from fumehood.service.differences import each_difference
from fumehood.service.drafting import Draft
from fumehood.store.places import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fumehood.core.policy import Limits
    from fumehood.core.report import Run
    from fumehood.service.commands import Command
    from fumehood.service.draft_merge import WholeDraft

NUMBER = "FUMEHOOD_CANDIDATE"  # the variable that tells a candidate which it is
WAITING, PASSED, FAILED, SAME, ENDED, BROKEN = "not begun", "passed", "failed", "same", "ended", "error"
MOST = 1000


class Candidate(Value):
    """What came of one candidate."""

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
    same_as: int | None = None  # the candidate that has changed exactly the same

    @property
    def rank(self) -> tuple[bool, float, int, int, int]:
        """What tells the better of two: the check, the score, then the smaller change."""
        score = float("-inf") if self.score is None else self.score
        return self.status == PASSED, score, -(self.added + self.removed), -self.files, -self.number


class Best(Value):
    """What came of all candidates; `best` is the one that is offered, and `run` the one that has applied it."""

    candidates: tuple[Candidate, ...]
    best: Candidate | None = None
    run: Any = None
    is_interrupted: bool = False
    reason: str = ""  # why the best one is not applied
    kept: tuple[str, ...] = ()  # the drafts that are still there

    def as_dict(self) -> dict[str, Any]:
        """Return what programs are told."""
        return {
            "candidates": [each.fields() for each in self.candidates],
            "best": None if self.best is None else self.best.number, "run": None if self.run is None else self.run.run,
            "state": None if self.run is None else self.run.state, "interrupted": self.is_interrupted,
            "reason": self.reason, "drafts": list(self.kept),
        }  # fmt: skip


class BestOf:
    """One comparison: candidates are made, run, checked and ranked."""

    def __init__(
        self, sandbox: Any, command: Command, count: int, *, jobs: int, check: str | None, score: str | None,
        timeout: float | None, tell: Callable[[Candidate], object] | None,
    ) -> None:  # fmt: skip
        if not 1 <= count <= MOST or jobs < 1:
            raise BadRequest(f"{count} candidates, {jobs} at once, can't be had", hint=f"1 to {MOST}, and at least 1")
        self._sandbox = sandbox
        self._command, self._check, self._score = command, check, score
        self._jobs = min(jobs, count)
        self._until = None if timeout is None else time.monotonic() + timeout
        self._tell = tell
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._first_with: dict[str, int] = {}
        name = f"best-{new_id()[-6:].lower()}"
        store, project = sandbox._store, sandbox._project
        first = drafts.new_draft(store, project, f"{name}-1", frozen=True)
        others = [store.drafts.new(project.id, f"{name}-{n}", base=first.id) for n in range(2, count + 1)]
        self.drafts = [Draft(sandbox, record) for record in (first, *others)]
        for draft in self.drafts:
            # What they may use is for all that run at once together.
            draft._hood = sandbox._hood.limited(shared(sandbox._hood.policy.limits, self._jobs))
        self.candidates = [Candidate(number=n, draft=each.name) for n, each in enumerate(self.drafts, 1)]

    def run(self) -> bool:
        """Run all candidates to their ends; returns False where Ctrl-C ended them."""
        with ThreadPoolExecutor(self._jobs, thread_name_prefix="fumehood-candidate") as pool:
            try:
                for each in [pool.submit(self._go, at) for at in range(len(self.drafts))]:
                    each.result()
            except KeyboardInterrupt:
                self._stopping.set()
                return False
            except BaseException:
                self._stopping.set()
                raise
        return True

    def _go(self, at: int) -> None:
        """Run one candidate, and its check."""
        if self._is_over():
            return
        began = time.monotonic()
        try:
            candidate = self._judged(at, self.candidates[at])
        except FumehoodError as error:
            candidate = self.candidates[at].replace(status=BROKEN, reason=error.message)
        self.candidates[at] = candidate = candidate.replace(duration_s=round(time.monotonic() - began, 3))
        if self._tell is not None:
            with self._lock:
                self._tell(candidate)

    def _is_over(self) -> bool:
        return self._stopping.is_set() or (self._until is not None and time.monotonic() >= self._until)

    def _judged(self, at: int, candidate: Candidate) -> Candidate:
        run = self._ran(at, self._command)
        candidate = candidate.replace(exit_code=run.exit_code)
        if self._is_over() or run.exit_code is None:
            return candidate.replace(status=ENDED)
        draft = self.drafts[at]
        with drafts.Preview(draft._store, draft._project, draft._record) as whole:
            digest = digest_of_changes(whole)
            added, removed = changed_lines(draft, whole)
            candidate = candidate.replace(files=len(whole.run.changed), added=added, removed=removed)
        with self._lock:
            first = self._first_with.setdefault(digest, candidate.number)
        if first != candidate.number:
            return candidate.replace(status=SAME, same_as=first)
        if self._check is None:
            return self._scored(at, candidate.replace(status=FAILED if run.exit_code else PASSED))
        checked = self._ran(at, self._check, apply="discard")
        if self._is_over():
            return candidate.replace(status=ENDED)
        candidate = candidate.replace(check_code=checked.exit_code, status=FAILED if checked.exit_code else PASSED)
        return self._scored(at, candidate)

    def _scored(self, at: int, candidate: Candidate) -> Candidate:
        if self._score is None or candidate.status != PASSED:
            return candidate
        printed = self._ran(at, self._score, apply="discard").stdout.split()
        try:
            return candidate.replace(score=float(printed[-1]))
        except (IndexError, ValueError):
            return candidate.replace(reason="the score printed no number at its end")

    def _ran(self, at: int, command: Command, **options: Any) -> Run:
        left = None if self._until is None else max(0.001, self._until - time.monotonic())
        return self.drafts[at].run(
            command, env={NUMBER: str(at + 1)}, timeout=left, cancelled=self._stopping.is_set, **options
        )


def settled(
    candidates: Sequence[Candidate], lines: Sequence[Draft], *, keep: bool, applies: bool, is_interrupted: bool
) -> Best:
    """Apply the best candidate, and drop the others; after Ctrl-C, all that came to its end stays."""
    ranked = sorted((each for each in candidates if each.status == PASSED), key=lambda each: each.rank)
    best = ranked[-1] if ranked else None
    applied, reason = None, ""
    kept = [each for each in candidates if keep or each is best]
    if is_interrupted or best is None:
        reason = "interrupted: nothing was applied" if is_interrupted else "no candidate passed"
        kept = [each for each in candidates if keep or each.status in (PASSED, FAILED)]
    elif applies:
        try:
            applied = lines[best.number - 1].apply()
            kept.remove(best)
        except ApplyFailed as error:
            reason = error.message
    names = {each.draft for each in kept}
    for draft, candidate in zip(lines, candidates, strict=True):
        if candidate.draft not in names and (applied is None or candidate is not best):
            draft.discard()
    return Best(
        candidates=tuple(candidates), best=best, run=applied, is_interrupted=is_interrupted, reason=reason,
        kept=tuple(each.draft for each in kept),
    )  # fmt: skip


def shared(limits: Limits, jobs: int) -> Limits:
    """Return what each of several that run at once may use, of what one may."""
    memory = limits.memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 * 3
    return limits.replace(
        memory=memory // jobs, processes=limits.processes and max(1, limits.processes // jobs),
        written=limits.written and max(1, limits.written // jobs),
    )  # fmt: skip


def digest_of_changes(whole: WholeDraft) -> str:
    """Identify what a draft changes: two that change the same have the same."""
    digest = hashlib.sha256()
    for change in whole.run.changed:
        mode = 0 if change.after is None else change.after.mode
        about = f"{change.root} {change.change} {change.kind} {mode:o} {change.path}\0"
        digest.update(about.encode(errors="surrogateescape"))
        if change.after is None or change.kind not in (c.FILE, c.SYMLINK):
            continue
        with (
            Closing(open_top(whole.layers[change.root].upper)) as top,
            Closing(open_below(top, change.path, os.O_PATH | os.O_NOFOLLOW)) as entry,
        ):
            if change.kind == c.SYMLINK:
                digest.update(os.fsencode(os.readlink("", dir_fd=entry)))
            else:
                with open(f"/proc/self/fd/{entry}", "rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def changed_lines(draft: Draft, whole: WholeDraft) -> tuple[int, int]:
    """Count the lines that a draft adds and removes, of what is shown line by line."""
    added = removed = 0
    for each in each_difference(draft._store, whole.run, (), here=whole.run.project):
        is_in_hunk = False
        for line in each.text.split("\n"):
            if line.startswith(("@@", "diff ")):
                is_in_hunk = line.startswith("@@")
            elif is_in_hunk:
                added += line.startswith("+")
                removed += line.startswith("-")
    return added, removed


def best_of(
    sandbox: Any, command: Command, count: int, *, jobs: int = 4, check: str | None = None, score: str | None = None,
    keep: bool = False, applies: bool = True, timeout: float | None = None,
    tell: Callable[[Candidate], object] | None = None,
) -> Best:  # fmt: skip
    """Run a command as several candidates, and apply the best of them."""
    comparison = BestOf(sandbox, command, count, jobs=jobs, check=check, score=score, timeout=timeout, tell=tell)
    try:
        is_interrupted = not comparison.run()
    except BaseException:
        settled(comparison.candidates, comparison.drafts, keep=keep, applies=False, is_interrupted=True)
        raise
    return settled(
        comparison.candidates, comparison.drafts, keep=keep, applies=applies, is_interrupted=is_interrupted
    )
