"""What the judge of dangerous changes is told, and what it answers."""

from __future__ import annotations

from fumehood.core.changes import SYMLINK
from fumehood.core.value import Value
from fumehood.core.wording import brief

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.changes import Change
    from fumehood.core.own_source import Own
    from fumehood.core.protected import Protected


class Facts(Value):
    """What was read about one change, only where it was asked for."""

    target: str = ""  # a symlink's text, in its new version
    old: bytes | None = None  # the content before, or a link's text; None: there was none, or it could not be read
    new: bytes | None = None  # the content after
    whole: bool = True  # False: a version was longer than what is read
    root: str = ""  # the root's absolute path
    repository_was_there: bool = False  # the git directory that a configuration or a `.git` belongs to is no new one


class Concern(Value):
    """Why a change is held for a person, or taken over with a flag."""

    held: bool
    reason: str
    flag: str


class Rules(Value):
    """A person's own globs, which add to ours.

    A glob with a `/` is compared with the whole path below its root, one without with the last name,
    and one that ends in `/` means everything below; `*` also matches `/`.
    """

    hold: tuple[str, ...] = ()
    flag: tuple[str, ...] = ()


class Ground(Value):
    """What is known about the roots as a whole; see `danger.survey`.

    `repositories` are directories that are git repositories without being called `.git`, by a root's number and a path
    in it ("" is the root itself). `own` is what Fumehood itself is loaded from, where that lies in the roots.
    `environments` are virtual environments that were there before.
    """

    roots: tuple[str, ...] = ()
    repositories: frozenset[tuple[int, str]] = frozenset()
    protected: Protected | None = None
    own: Own | None = None
    environments: frozenset[tuple[int, str]] = frozenset()


def held(flag: str, reason: str) -> Concern:
    """Say that a change waits for a person."""
    return Concern(held=True, reason=reason, flag=flag)


def flagged(flag: str, reason: str) -> Concern:
    """Say that a change is taken over, and why a person may want to look."""
    return Concern(held=False, reason=reason, flag=flag)


def is_unchanged(facts: Facts | None) -> bool:
    """Tell whether a file was written again with what it already held."""
    return facts is not None and facts.whole and facts.old is not None and facts.old == facts.new


def became_executable(change: Change) -> bool:
    """Tell whether a file can be run that could not be before."""
    before, after = change.before, change.after
    return before is None or after is None or bool(after.mode & ~before.mode & 0o111)


def became_open(change: Change) -> bool:
    """Tell whether others may write what they could not before.

    The group counts where it is given more: what is new there may be as the person's own umask has it.
    """
    before, after = change.before, change.after
    if after is None or change.kind == SYMLINK:
        return False
    return bool(after.mode & 0o002 if before is None else after.mode & ~before.mode & 0o022)


def shown(text: str) -> str:
    """Return a command's own words as part of a reason: fit for a person's terminal, and not too long."""
    return brief(text)


def words(text: str) -> frozenset[str]:
    """Make a table of the names in a text."""
    return frozenset(text.split())
