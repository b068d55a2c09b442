"""A draft as programs have it: commands run in it, and all that they wrote is looked at, applied or thrown away."""

from __future__ import annotations

import io
import os
import tarfile
from typing import TYPE_CHECKING

from fumehood.core.report import printable
from fumehood.errors import BadRequest, ChangedMeanwhile
from fumehood.service import draft_merge, drafts
from fumehood.service.arguments import checks_arguments
from fumehood.service.commands import Commands, texts
from fumehood.service.decide import discard_held
from fumehood.service.differences import each_difference
from fumehood.store.history import Reach

if TYPE_CHECKING:
    from fumehood.core.report import ReportedChange, Run
    from fumehood.service.commands import Paths
    from fumehood.service.draft_merge import Conflict
    from fumehood.service.store import Store
    from fumehood.store.drafts import DraftRecord
    from fumehood.store.projects import Project


def begun(store: Store, project: Project, name: str, *, new: bool = False, frozen: bool = False) -> DraftRecord:
    """Return a project's draft of a name; one that begins now may see a frozen copy of the project."""
    record = None if new else store.drafts.at(project.id, name)
    if record is None and not new and not frozen:
        return store.drafts.begin(project.id, name)
    return record or drafts.new_draft(store, project, name, frozen=frozen)


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

    def history(self, limit: int = 0) -> list[Run]:
        """Return its runs, the latest first."""
        self._store.recover()
        return [self._marked(run) for run in self._store.history.runs(Reach(draft=self._record.id), limit=limit)]

    def changes(self) -> tuple[ReportedChange, ...]:
        """Return every path that it would change in the project as that is now."""
        with drafts.Preview(self._store, self._project, self._record) as whole:
            return whole.run.changes

    def diff(self, paths: Paths = ()) -> str:
        """Return what it would change in the project as that is now, line by line."""
        with drafts.Preview(self._store, self._project, self._record) as whole:
            differences = each_difference(self._store, whole.run, texts(paths), here=whole.run.project)
            return "".join(each.text for each in differences)

    def conflicts(self) -> list[Conflict]:
        """Return what both it and the project have changed, and can't be merged."""
        with drafts.Preview(self._store, self._project, self._record) as whole:
            return draft_merge.compared(self._store, self._record, whole)[1]

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
        seen = self._store.drafts.shown_at(self._record)
        branch, paths = branch or self.name, [each.path for each in self.changes()]
        if not paths:
            raise BadRequest(f"draft {self.name} holds nothing", hint=f"fumehood draft log {self.name}")
        made = self.run(
            drafts.COMMIT, stdin="".join(f"{path}\0" for path in paths).encode(errors="surrogateescape"),
            cwd=self._project.path, env=drafts.commit_variables(branch, message or f"Draft {self.name}", author),
        )  # fmt: skip
        directory, _, ignored = made.stdout.partition("\n")
        if made.exit_code or (ignored and not force):
            if made.state == "held":
                discard_held(self._store, self._project, made)
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
        except ChangedMeanwhile:
            # What another command wrote since is not in the commit, and would be thrown away.
            discard_held(self._store, self._project, made)
            raise
        return self._marked(run)

    def rebase(self) -> tuple[list[str], list[Conflict]]:
        """Bring both versions together, in the draft, of texts that the project has changed too.

        Returns their paths, and what is still a conflict: of a text, the lines in question are marked in the draft.
        """
        with drafts.Preview(self._store, self._project, self._record) as whole:
            merges, conflicts = draft_merge.compared(self._store, self._record, whole)
        merges = [merge for merge in merges if merge.root == self._project.path]
        if merges:
            with io.BytesIO() as packed:
                with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as layer:
                    for merge in merges:
                        draft_merge.pack(layer, merge)
                packed.seek(0)
                from fumehood.service.bundles import UNPACK

                run = self._taken_in(UNPACK, packed, f"draft rebase {self.name}")
            draft_merge.note_rebased(
                self._store, run,
                [(each.change.path, each.change.before, each.live) for each in merges if each.change.before],
            )  # fmt: skip
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

        with drafts.Preview(self._store, self._project, self._record) as whole:
            return export(self._store, whole.run, os.fspath(path), key=self._hood.policy.sign.key)

    def __repr__(self) -> str:
        return f"Draft({self.name!r} of {self._project.path!r})"
