"""What the judge of dangerous changes is told and answers, and concerns that need no table of names.

Those are links that lead out of the project, what Fumehood itself is loaded from, and places that something of the
person's leads the host to.
"""

from __future__ import annotations

from fumehood.core.changes import FILE, MODIFIED, SYMLINK
from fumehood.core.value import Value
from fumehood.core.wording import brief

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.changes import Change
    from fumehood.core.danger_tables import Because


# Where a path written by a command leads, told from its text alone.

# Programs and libraries that only the system's owner changes.
_SYSTEM = (
    "/usr/", "/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/libx32/", "/opt/",
    "/nix/store/", "/gnu/store/", "/etc/alternatives/",
)  # fmt: skip
_INTERPRETERS = ("python", "pypy")
shown = brief  # a command's own words as part of a reason: fit for a person's terminal, and not too long


def lands(directory: str, text: str) -> str | None:
    """Return the absolute path that a text names from a real absolute directory, or None if that can't be told.

    After a name, `..` goes up from wherever a link of that name leads, which the text does not say.
    """
    parts = [part for part in text.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    if ".." in parts[ups:]:
        return None
    base = [] if text.startswith("/") else [part for part in directory.split("/") if part]
    return "/" + "/".join(base[: max(len(base) - ups, 0)] + parts[ups:])


def within(place: str, roots: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the number of the root that a path lies in, and the path below it ("" for the root itself)."""
    for number, root in enumerate(roots):
        if root and (place == root or place.startswith(f"{root.rstrip('/')}/")):
            return number, place[len(root) :].strip("/")
    return None


def roots_of(facts: Facts, ground: Ground) -> tuple[str, ...]:
    """Return every root a path may lead into, the change's own first."""
    return (facts.root, *ground.roots)


def directory_of(change: Change, facts: Facts) -> str:
    """Return the absolute directory that a change lies in."""
    return f"{facts.root}/{change.path.rpartition('/')[0]}"


def link_concern(change: Change, facts: Facts | None, ground: Ground) -> Concern | None:
    """Judge where a symlink leads."""
    if facts is None or not facts.target or not facts.root:
        return held("outside-link", "where this link leads could not be read")
    place = lands(directory_of(change, facts), facts.target)
    target = shown(facts.target)
    if place is None:
        return held("outside-link", f"where this link leads can't be told from its text, {target}")
    if within(place, roots_of(facts, ground)) is not None:
        return None
    ends = (change.path.split("/")[-2:], place.split("/")[-2:])
    if all(len(end) == 2 and end[0] == "bin" and end[1].startswith(_INTERPRETERS) for end in ends):
        # As virtual environments have one: `bin/python…` to another `bin/python…`.
        return flagged("interpreter-link", f"runs the interpreter {target}")
    if place.startswith(_SYSTEM) or place == "/dev/null":
        return flagged("system-link", f"leads to the system's {target}")
    return held("outside-link", f"leads out of the project, to {target}")


# Tell which changes would reach the Fumehood that runs now, the next time it is started.

_MODULES = (".py", ".pyc", ".so")
_METADATA = (".egg-info", ".dist-info")


class Own(Value):
    """What of the roots Fumehood itself loads, by a root's number and the path in it ("" is the root itself).

    `places` are its own with all that is in them. In the directories of `searched`, which Python looks through
    for modules, only modules of the names that stand beside them are: a project may well be on that way.
    """

    places: frozenset[tuple[int, str]]
    searched: tuple[tuple[int, str, frozenset[str]], ...] = ()


def is_own(change: Change, own: Own) -> bool:
    """Return True if a change is to one of our own places, to something in it, or to the way there."""
    path = f"{change.path}/" if change.path else ""
    for root, place in own.places:
        own_place = f"{place}/" if place else ""
        if root == change.root and (path.startswith(own_place) or own_place.startswith(path)):
            return True
    return any(
        root == change.root and path.startswith(f"{folder}/" if folder else "")
        and _is_module(change.path[len(folder) :].lstrip("/"), names)
        for root, folder, names in own.searched
    )  # fmt: skip


def own_concern(change: Change, facts: Facts | None, own: Own) -> Concern | None:
    """Hold what is our own, its removal and its mode too; None if it is not, or was written again as it was."""
    if not is_own(change, own):
        return None
    before, after = change.before, change.after
    has_its_mode = before is not None and after is not None and before.mode == after.mode
    if change.kind == FILE and change.change == MODIFIED and has_its_mode and is_unchanged(facts):
        return None
    return held("own-source", "Fumehood itself is loaded from here, outside of the sandbox, when you use it next")


def _is_module(path: str, names: frozenset[str]) -> bool:
    """Return True if a path in a directory of modules is one of these modules, or names code for a library to load."""
    first, _, rest = path.partition("/")
    if first == "__pycache__":
        first, rest = rest, ""
    if first.endswith(_METADATA):
        return rest == "entry_points.txt"
    return (bool(rest) or first.endswith(_MODULES)) and first.partition(".")[0] in names


# Places in the roots that something of the person's leads the host to: see `linux/ways_in`.

class Protected:
    """Single paths and whole directories, by the number of their root, each with the reason."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = tuple(roots)
        self._paths: dict[tuple[int, str], Because] = {}
        self._directories: dict[tuple[int, str], Because] = {}
        self._asked: dict[tuple[int, str], Because | None] = {}

    def add(self, path: str, because: Because, *, whole: bool = False) -> None:
        """Protect an absolute path, if it lies in a root; `whole`, with all that is or will be in it."""
        spot = within(path, self._roots)
        if spot is not None and spot[1]:
            self._paths.setdefault(spot, because)
            if whole:
                self._directories.setdefault(spot, because)

    def why(self, root: int, path: str, *, is_link: bool) -> Because | None:
        """Return why a path is protected, or None.

        A link put in the place of a directory brings another one's files to all names below it.
        """
        because = self._paths.get((root, path)) or self._above(root, path.rpartition("/")[0])
        if because is not None or not is_link:
            return because
        below = f"{path}/"
        return next((why for (at, each), why in self._paths.items() if at == root and each.startswith(below)), None)

    def _above(self, root: int, directory: str) -> Because | None:
        """Return why all in a directory is protected; thousands of changes share a few directories."""
        if not directory or not self._directories:
            return None
        new = []
        while directory and (root, directory) not in self._asked:
            new.append(directory)
            directory = directory.rpartition("/")[0]
        because = self._asked.get((root, directory))
        for each in reversed(new):
            because = self._asked[root, each] = self._directories.get((root, each)) or because
        return because


# What the judge of dangerous changes is told, and what it answers.

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
    """Return True if a file was written again with what it already held."""
    return facts is not None and facts.whole and facts.old is not None and facts.old == facts.new


def became_executable(change: Change) -> bool:
    """Return True if a file can be run that could not be before."""
    before, after = change.before, change.after
    return before is None or after is None or bool(after.mode & ~before.mode & 0o111)


def became_open(change: Change) -> bool:
    """Return True if others may write what they could not before.

    The group counts where it is given more: what is new there may be as the person's own umask has it.
    """
    before, after = change.before, change.after
    if after is None or change.kind == SYMLINK:
        return False
    return bool(after.mode & 0o002 if before is None else after.mode & ~before.mode & 0o022)


def words(text: str) -> frozenset[str]:
    """Make a table of the names in a text."""
    return frozenset(text.split())
