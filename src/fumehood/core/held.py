"""What a person is asked about held changes: which they are, in order of danger, and what identifies exactly these."""

from __future__ import annotations

from fumehood.core import changes as c
from fumehood.core.permission import APPLY_HELD, Question, digest_of
from fumehood.core.wording import Item

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.report import Run

# How dangerous a flag is, and what such changes are counted as. One that is not here is taken for the worst.
_RUN_BY_GIT = 0, ("file that git acts on", "files that git acts on")
_LINK = 3, ("link out of the project", "links out of the project")
_BUILD = 4, ("file that runs in a build or a start", "files that run in a build or a start")
_OTHER = 5, ("other change", "other changes")
_FLAGS: dict[str, tuple[int, tuple[str, str]]] = {
    "git-hook": (0, ("git hook", "git hooks")),
    "git-config": (0, ("git configuration", "git configurations")),
    "shell-settings": (0, ("file that shells run", "files that shells run")),
    "setuid": (1, ("set-uid file", "set-uid files")),
    "editor-settings": (2, ("editor setting", "editor settings")),
    "agent-settings": (2, ("agent setting", "agent settings")),
    "outside-link": _LINK, "interpreter-link": _LINK, "system-link": _LINK,
    "build-script": _BUILD, "startup-file": _BUILD, "container": _BUILD, "ci-workflow": _BUILD, "hook-manager": _BUILD,
    "package-settings": _BUILD, "tool-versions": _BUILD, "variables-file": _BUILD,
    "agent-instructions": _BUILD, "git-remote": _BUILD,
    "own-rule": (4, ("file that a rule of yours names", "files that rules of yours name")),
    c.NEW_OWNER: _OTHER, c.NEW_GROUP: _OTHER, c.OTHER_NAMES: _OTHER,
}  # fmt: skip
_UNKNOWN = 0, ("change that may run by itself", "changes that may run by themselves")


def held_digest(run: Run, changes: Sequence[c.Change]) -> str:
    """Identify held changes: those of this run, at these places, with these reasons and these versions of each."""
    return digest_of(run.run, *(_identity(run, change) for change in changes))


def _identity(run: Run, change: c.Change) -> str:
    parts = (
        run.roots[change.root], change.path, change.change, change.kind, change.verdict, change.reason,
        " ".join(change.flags), _version(change.before), _version(change.after),
    )  # fmt: skip
    return "\0".join(parts)


def _version(stamp: c.Stamp | None) -> str:
    """Leave out how many names a file has: a person may give it another, and it is the same version."""
    return "" if stamp is None else stamp.text().rpartition(" ")[0]


def held_item(run: Run, change: c.Change) -> Item:
    """Say what one held change is, and how dangerous."""
    flags = [flag.partition(":")[0] for flag in change.flags]
    rated = [_FLAGS.get(flag, _RUN_BY_GIT if flag.startswith("git-") else _UNKNOWN) for flag in flags]
    danger, kind = min(rated, default=_OTHER)
    path = change.path if change.root == 0 else f"{run.roots[change.root]}/{change.path}"
    what = change.change if change.kind == c.FILE else f"{change.change} {change.kind}"
    return Item(name=path, kind=kind, danger=danger, before=what, after=change.reason)


def waiting(run: Run) -> list[c.Change]:
    """Return the changes of a run that wait for a person."""
    return [change for change in run.found if change.verdict in c.WAITING]


def apply_question(run: Run) -> Question:
    """Ask whether to apply all that a run holds; a yes is for exactly the changes it holds now."""
    held = [change for change in run.found if change.verdict == c.HELD]
    conflicts = len(waiting(run)) - len(held)
    stay = "stays as it is" if conflicts == 1 else "stay as they are"
    return Question(
        what=APPLY_HELD, text=f"Apply the changes that run {run.run} holds?", command=run.command,
        directory=run.project, project=run.project, target=run.run, run=run.run, one_time_only=True,
        items=tuple(held_item(run, change) for change in held), about=held_digest(run, waiting(run)),
        details=(
            f"line by line: fumehood diff {run.run}",
            *([f"{conflicts} in conflict with your own edits {stay}"] if conflicts else []),
        ),
    )  # fmt: skip
