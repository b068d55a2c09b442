"""A draft as programs have it: commands run in it, and all that they wrote is looked at, applied or thrown away.

And the best of several: one command run as candidates, each in a draft over one frozen project, and compared.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fumehood.core import changes as c
from fumehood.core.report import ReportedChange, Run, printable
from fumehood.core.value import Value
from fumehood.errors import ApplyFailed, BadRequest, ChangedMeanwhile, FumehoodError, Unfinished
from fumehood.linux.confine import memory_limit
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import open_top
from fumehood.service import drafts
from fumehood.service.arguments import checks_arguments
from fumehood.service.commands import Commands, texts
from fumehood.service.decide import discard_held
from fumehood.service.differences import each_difference
from fumehood.store.history import RunFilter
from fumehood.store.places import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.service.commands import Command, Paths
    from fumehood.service.drafts import Conflict
    from fumehood.store.named import DraftRecord


@checks_arguments
class Draft(Commands):
    """A named line of runs beside a project: `run`, `arun` and `start` are those of a sandbox, and hold what is there.

    Nobody else sees that until `apply` takes all of it over, as one run that can be undone.
    """

    def __init__(self, sandbox: Commands, record: DraftRecord) -> None:
        vars(self).update(vars(sandbox))  # its commands are the sandbox's, in all but where they write
        self._record = record
        self._draft = record.name

    @property
    def name(self) -> str:
        """What it is called."""
        return self._record.name

    @property
    def frozen(self) -> bool:
        """Whether it shows the project as it was at its beginning."""
        return self._record.base is not None

    def _preview(self) -> drafts.Preview:
        """Have all that it would change in the project as that is now, for a `with` block, as one run."""
        return drafts.Preview(self._store, self._project, self._record)

    def history(self, limit: int = 0) -> list[Run]:
        """Return its runs, the latest first."""
        self._store.recover()
        return [self._marked(run) for run in self._store.history.runs(RunFilter(draft=self._record.id), limit=limit)]

    def changes(self) -> tuple[ReportedChange, ...]:
        """Return every path that it would change in the project as that is now."""
        with self._preview() as whole:
            return whole.run.changes

    def diff(self, paths: Paths = ()) -> str:
        """Return what it would change in the project as that is now, line by line."""
        with self._preview() as whole:
            differences = each_difference(self._store, whole.run, texts(paths), here=whole.run.project)
            return "".join(each.text for each in differences)

    def conflicts(self) -> list[Conflict]:
        """Return what both it and the project have changed, and can't be merged."""
        with self._preview() as whole:
            return drafts.compared(self._store, self._record, whole)[1]

    def apply(self, *, force: bool = False) -> Run:
        """Take over all that it holds, as one run; texts that the project has changed too are merged.

        Where that is not possible, DraftConflict is raised, and nothing done; with `force`, the draft's version counts.
        """
        return self._marked(drafts.apply_draft(self._store, self._project, self._record, force=force))

    def commit(self, branch: str = "", *, message: str = "", author: str = "", force: bool = False) -> Run:
        """Leave a git commit with all that it holds on a new branch, made from HEAD, and nothing else in the project.

        `author` is "Name <mail>"; without it, git's own settings tell. What git ignores would be thrown away, so it is
        refused where there is any, save with `force`. Returns the run that has applied the commit, and can be undone.
        """
        seen = self._store.drafts.state_id(self._record)
        branch, paths = branch or self.name, [each.path for each in self.changes()]
        if not paths:
            raise BadRequest(f"draft {self.name} holds nothing", hint=f"fumehood draft log {self.name}")
        made = self.run(
            _COMMIT, stdin="".join(f"{path}\0" for path in paths).encode(errors="surrogateescape"),
            cwd=self._project.path, env=_commit_variables(branch, message or f"Draft {self.name}", author),
        )  # fmt: skip
        directory, _, ignored = made.stdout.partition("\n")
        if made.exit_code or (ignored and not force):
            self._take_out(made)
            if not made.exit_code:
                count = ignored.count("\0")
                raise BadRequest(
                    f"git ignores {count} of the paths in draft {self.name}: {printable(ignored.split(chr(0))[0])} …",
                    hint="they would be thrown away, which --force allows",
                )
            why = made.stderr.strip()[-300:]
            raise BadRequest(f"no commit was made: {why}", hint='--branch NAME, --author "Name <mail>"')
        parts = ("objects", f"refs/heads/{branch}", f"logs/refs/heads/{branch}")
        only = [f"{directory}/{part}" for part in parts]
        try:
            run = drafts.apply_draft(self._store, self._project, self._record, only=only, seen=seen, besides=made.run)
        except Unfinished:
            raise
        except FumehoodError:  # what another command wrote since is not in the commit, for example
            self._take_out(made)
            raise
        return self._marked(run)

    def _take_out(self, run: Run) -> None:
        """Take a run of ours out of the draft, if it is still there: that is as it was before, then."""
        if self._store.history.find(run.run).state == "held":
            discard_held(self._store, self._project, run)

    def rebase(self) -> tuple[list[str], list[Conflict]]:
        """Bring both versions together, in the draft, of texts that the project has changed too.

        Returns their paths, and what is still a conflict: of a text, the lines in question are marked in the draft.
        """
        seen = self._store.drafts.state_id(self._record)
        with self._preview() as whole:
            merges, conflicts = drafts.compared(self._store, self._record, whole)
        merges = [merge for merge in merges if merge.root == self._project.path]
        if merges:
            with io.BytesIO() as packed:
                with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as layer:
                    for merge in merges:
                        assert merge.change.after is not None, "a text is there"
                        data = merge.text.encode(errors="surrogateescape")
                        entry = tarfile.TarInfo(merge.change.path)
                        entry.size, entry.mode, entry.mtime = len(data), merge.change.after.mode, int(time.time())
                        layer.addfile(entry, io.BytesIO(data))
                packed.seek(0)
                from fumehood.service.bundles import UNPACK

                run = self._taken_in(UNPACK, packed, f"draft rebase {self.name}")
            try:
                drafts.refuse_another(self._store, self._record, seen, run.run)
            except ChangedMeanwhile:
                self._take_out(run)  # it would hide what another command wrote since
                raise
            drafts.note_rebased(self._store, run, merges)
        return [merge.change.path for merge in merges], conflicts

    def discard(self) -> int:
        """Throw it away with all that it holds; returns how many of its runs held something."""
        return drafts.discard_draft(self._store, self._project, self._record)

    def rename(self, name: str) -> None:
        """Give it another name."""
        self._record = self._store.drafts.rename(self._record, name)
        self._draft = name

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write its changes to a file that travels, an OCI image of one layer; returns how many there are."""
        from fumehood.service.bundles import export

        with self._preview() as whole:
            return export(self._store, whole.run, os.fspath(path), key=self._hood.policy.sign.key)

    def __repr__(self) -> str:
        return f"Draft({self.name!r} of {self._project.path!r})"


# In the hood and over the draft: no hook, no index of the person's, and the branch must be new. Prints where the
# repository is, below the project, and then which of the paths on its standard input git ignores.
_COMMIT = r"""
set -e
directory=$(git rev-parse --absolute-git-dir)
case $directory in "$PWD"/*) ;; *) echo "the repository is not in the project: $directory" >&2; exit 1;; esac
git check-ref-format --branch "$FUMEHOOD_BRANCH" >/dev/null
cat >/tmp/paths
git check-ignore -z --stdin --no-index </tmp/paths >/tmp/ignored || [ $? = 1 ]
export GIT_INDEX_FILE=/tmp/index
parent=$(git rev-parse --quiet --verify HEAD || true)
if [ -n "$parent" ]; then git read-tree HEAD; fi
git add --all .
commit=$(git commit-tree "$(git write-tree)" ${parent:+-p "$parent"} -m "$FUMEHOOD_MESSAGE")
git -c core.hooksPath=/dev/null update-ref "refs/heads/$FUMEHOOD_BRANCH" "$commit" ""
printf '%s\n' "${directory#"$PWD"/}"
cat /tmp/ignored
"""


def _commit_variables(branch: str, message: str, author: str) -> dict[str, str]:
    """Return what tells the script above which commit to make."""
    variables = {"FUMEHOOD_BRANCH": branch, "FUMEHOOD_MESSAGE": message}
    if author:
        name, opening, mail = author.partition("<")
        if not opening or not mail.endswith(">") or not name.strip():
            raise BadRequest(f"{author!r} is not an author", hint='"Name <mail@example.org>"')
        for role in ("AUTHOR", "COMMITTER"):
            variables |= {f"GIT_{role}_NAME": name.strip(), f"GIT_{role}_EMAIL": mail[:-1]}
    return variables


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
        self._jobs = jobs = min(jobs, count)
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
            policy, limits = sandbox._hood.policy, sandbox._hood.policy.limits
            draft._hood = sandbox._hood.replace(policy=policy.replace(limits=limits.replace(
                memory=memory_limit(limits) // jobs, processes=limits.processes and max(1, limits.processes // jobs),
                written=limits.written and max(1, limits.written // jobs),
            )))  # fmt: skip
        self.candidates = [Candidate(number=n, draft=each.name) for n, each in enumerate(self.drafts, 1)]

    def outcome(self, *, keep: bool, applies: bool) -> Best:
        """Run all candidates to their ends, or to Ctrl-C, and apply the best of them."""
        is_interrupted = False
        try:
            with ThreadPoolExecutor(self._jobs, thread_name_prefix="fumehood-candidate") as pool:
                try:
                    for each in [pool.submit(self._go, at) for at in range(len(self.drafts))]:
                        each.result()
                except KeyboardInterrupt:
                    self._stopping.set()
                    is_interrupted = True
                except BaseException:
                    self._stopping.set()
                    raise
        except BaseException as error:
            rest = pick_best(self.candidates, self.drafts, keep=keep, applies=False, is_interrupted=True)
            if rest.kept:  # nobody gets to know their names otherwise
                error.add_note(f"kept as drafts, until they are discarded: {', '.join(rest.kept)}")
            raise
        return pick_best(self.candidates, self.drafts, keep=keep, applies=applies, is_interrupted=is_interrupted)

    def _go(self, at: int) -> None:
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
        candidate = measured(self.drafts[at], candidate, self._first_with)
        if candidate.status == SAME:
            return candidate
        code: int | None = run.exit_code
        if self._check is not None:
            code = self._ran(at, self._check, apply="discard").exit_code
            if self._is_over():
                return candidate.replace(status=ENDED)
            candidate = candidate.replace(check_code=code)
        candidate = candidate.replace(status=FAILED if code else PASSED)
        if self._score is None or code:
            return candidate
        return scored(candidate, (self._ran(at, self._score, apply="discard").stdout.split() or [""])[-1])

    def _ran(self, at: int, command: Command, **options: Any) -> Run:
        left = None if self._until is None else max(0.001, self._until - time.monotonic())
        return self.drafts[at].run(
            command, env={NUMBER: str(at + 1)}, timeout=left, cancelled=self._stopping.is_set, **options
        )


def pick_best(
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


def measured(draft: Draft, candidate: Candidate, first_with: dict[str, int]) -> Candidate:
    """Return a candidate with how much its draft changes, and, if so, that another has changed exactly the same.

    `first_with` has the first candidate with each digest of changes.
    """
    from fumehood.service.bundles import digest_at

    with draft._preview() as whole:
        counts = [each.line_counts for each in each_difference(draft._store, whole.run, (), here=whole.run.project)]
        added, removed = (sum(each[side] for each in counts) for side in (0, 1))
        candidate = candidate.replace(files=len(whole.run.changed), added=added, removed=removed)
        digest = hashlib.sha256()
        for change in whole.run.changed:
            about = f"{change.root} {change.change} {change.kind} {change.path}"
            if change.after is not None:
                about += f" {change.after.mode:o}"
                if change.kind in (c.FILE, c.SYMLINK):
                    with Closing(open_top(whole.layers[change.root].upper)) as top:
                        about += f" {digest_at(top, change.path)}"
            digest.update(f"{about}\0".encode(errors="surrogateescape"))
    first = first_with.setdefault(digest.hexdigest(), candidate.number)
    return candidate if first == candidate.number else candidate.replace(status=SAME, same_as=first)


def scored(candidate: Candidate, printed: str) -> Candidate:
    """Return a candidate with the number that its score printed at its end."""
    try:
        score = float(printed)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):  # which none is better or worse than, and JSON has no word for
        return candidate.replace(reason="the score printed no number at its end")
    return candidate.replace(score=score)
