"""A draft for Python programs: run commands in it, then look at all that they wrote, and apply or discard it."""

from __future__ import annotations

import io
import os
import tarfile
import time
from typing import TYPE_CHECKING

from fumehood.core.report import ReportedChange, Run, printable
from fumehood.errors import BadRequest, ChangedMeanwhile, FumehoodError, Unfinished
from fumehood.service import drafts
from fumehood.service.arguments import checks_arguments
from fumehood.service.commands import Commands, path_texts
from fumehood.service.decide import discard_held
from fumehood.service.differences import each_difference
from fumehood.service.draft_merge import compare_with_project, record_rebase
from fumehood.store.history import RunFilter

if TYPE_CHECKING:
    from fumehood.service.commands import Paths
    from fumehood.service.draft_merge import Conflict
    from fumehood.store.named import DraftRecord


@checks_arguments
class Draft(Commands):
    """A named line of runs beside a project; `run`, `arun` and `start` are as in a sandbox, and hold what is written.

    Only the draft's commands see that, until `apply` takes over all of it as one run, which can be undone.
    """

    def __init__(self, sandbox: Commands, record: DraftRecord) -> None:
        vars(self).update(vars(sandbox))  # its commands run as the sandbox's do, and only write elsewhere
        self._record = record
        self._draft = record.name

    @property
    def name(self) -> str:
        """The name of the draft."""
        return self._record.name

    @property
    def frozen(self) -> bool:
        """True if commands see the project as it was when the draft began."""
        return self._record.base is not None

    def _preview(self) -> drafts.Preview:
        """Return all that the draft would change in the project as it is now, as one run, for a `with` block."""
        return drafts.Preview(self._store, self._project, self._record)

    def history(self, limit: int = 0) -> list[Run]:
        """Return the draft's runs, the latest first."""
        self._store.recover()
        return [self._marked(run) for run in self._store.history.runs(RunFilter(draft=self._record.id), limit=limit)]

    def changes(self) -> tuple[ReportedChange, ...]:
        """Return every path that the draft would change in the project as it is now."""
        with self._preview() as preview:
            return preview.run.changes

    def diff(self, paths: Paths = ()) -> str:
        """Return what the draft would change in the project as it is now, line by line."""
        with self._preview() as preview:
            differences = each_difference(self._store, preview.run, path_texts(paths), here=preview.run.project)
            return "".join(each.text for each in differences)

    def conflicts(self) -> list[Conflict]:
        """Return what both the draft and the project have changed, and can't be merged."""
        with self._preview() as preview:
            return compare_with_project(self._store, self._record, preview)[1]

    def apply(self, *, force: bool = False) -> Run:
        """Take over all that the draft holds, as one run; texts that the project has changed too are merged.

        If that is not possible, raises DraftConflict and does nothing; with `force`, the draft's version counts.
        """
        return self._marked(drafts.apply_draft(self._store, self._project, self._record, force=force))

    def commit(self, branch: str = "", *, message: str = "", author: str = "", force: bool = False) -> Run:
        """Commit all that the draft holds to a new git branch, made from HEAD; nothing else in the project changes.

        `author` is "Name <mail>"; without it, git's own settings count. Paths that git ignores would be lost, so the
        commit is refused if there are any, except with `force`. Returns the run that has applied the commit, which can
        be undone.
        """
        state_before = self._store.drafts.state_id(self._record)
        branch, paths = branch or self.name, [each.path for each in self.changes()]
        if not paths:
            raise BadRequest(f"draft {self.name} holds nothing", hint=f"fumehood draft log {self.name}")
        commit_run = self.run(
            _COMMIT_SCRIPT, stdin="".join(f"{path}\0" for path in paths).encode(errors="surrogateescape"),
            cwd=self._project.path, env=_commit_variables(branch, message or f"Draft {self.name}", author),
        )  # fmt: skip
        directory, _, ignored = commit_run.stdout.partition("\n")
        if commit_run.exit_code or (ignored and not force):
            self._remove_run(commit_run)
            if not commit_run.exit_code:
                count = ignored.count("\0")
                raise BadRequest(
                    f"git ignores {count} of the paths in draft {self.name}: {printable(ignored.split(chr(0))[0])} …",
                    hint="they would be thrown away, which --force allows",
                )
            why = commit_run.stderr.strip()[-300:]
            raise BadRequest(f"no commit was made: {why}", hint='--branch NAME, --author "Name <mail>"')
        only = [f"{directory}/{path}" for path in ("objects", f"refs/heads/{branch}", f"logs/refs/heads/{branch}")]
        try:
            run = drafts.apply_draft(
                self._store, self._project, self._record, only=only, expected=state_before, besides=commit_run.run
            )
        except Unfinished:
            raise
        except FumehoodError:  # for example because another command has written since: that is not in the commit
            self._remove_run(commit_run)
            raise
        return self._marked(run)

    def _remove_run(self, run: Run) -> None:
        """Remove a run of ours from the draft, which is then as before; it may be removed already."""
        if self._store.history.find(run.run).state == "held":
            discard_held(self._store, self._project, run)

    def rebase(self) -> tuple[list[str], list[Conflict]]:
        """Merge texts that the project has changed too, in the draft.

        Returns their paths, and what is still a conflict; in a text, the lines of both versions are marked.
        """
        state_before = self._store.drafts.state_id(self._record)
        with self._preview() as preview:
            merges, conflicts = compare_with_project(self._store, self._record, preview)
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
                from fumehood.service.bundles import UNPACK_COMMAND

                run = self._unpack_as_held(UNPACK_COMMAND, packed, f"draft rebase {self.name}")
            try:
                drafts.refuse_if_changed(self._store, self._record, state_before, run.run)
            except ChangedMeanwhile:
                self._remove_run(run)  # it would hide what another command has written since
                raise
            record_rebase(self._store, run, merges)
        return [merge.change.path for merge in merges], conflicts

    def discard(self) -> int:
        """Discard the draft with all that it holds; returns how many of its runs held something."""
        return drafts.discard_draft(self._store, self._project, self._record)

    def rename(self, name: str) -> None:
        """Give the draft another name."""
        self._record = self._store.drafts.rename(self._record, name)
        self._draft = name

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write the draft's changes to a bundle, an OCI image with one layer; returns how many there are."""
        from fumehood.service.bundles import export

        with self._preview() as preview:
            return export(self._store, preview.run, os.fspath(path), key=self._hood.policy.sign.key)

    def __repr__(self) -> str:
        return f"Draft({self.name!r} of {self._project.path!r})"


# Runs in the hood, over the draft. No hooks run, the person's index stays as it is, and the branch must be new. Prints
# the path of the repository in the project, and then those of the paths on its standard input that git ignores.
_COMMIT_SCRIPT = r"""
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
    """Return the variables that tell `_COMMIT_SCRIPT` which commit to make."""
    variables = {"FUMEHOOD_BRANCH": branch, "FUMEHOOD_MESSAGE": message}
    if author:
        name, opening, mail = author.partition("<")
        if not opening or not mail.endswith(">") or not name.strip():
            raise BadRequest(f"{author!r} is not an author", hint='"Name <mail@example.org>"')
        for role in ("AUTHOR", "COMMITTER"):
            variables |= {f"GIT_{role}_NAME": name.strip(), f"GIT_{role}_EMAIL": mail[:-1]}
    return variables
