"""What the directories above a path already say about it.

Thousands of changes share a few directories, so each directory is looked at once.
"""

from __future__ import annotations

from fumehood.core import danger_tables as tables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.danger_tables import Because

# Branches and objects: files of any name, and none that git acts on.
AREAS = frozenset(("refs", "logs", "objects"))
_IN_REPOSITORIES = frozenset(("hooks", "info", "remotes", "branches"))
_HFS_IGNORES = "\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u206a\u206b\u206c\u206d\u206e\u206f\ufeff"
_MANY = 4096
_TELLING = {*tables.HELD_DIRECTORIES, *tables.FLAGGED_DIRECTORIES, *(name for _, name in tables.FLAGGED_PAIRS)}

_known: dict[str, Surroundings] = {}


class Surroundings:
    """One directory: its names in lower case, and what they mean for every file in it."""

    __slots__ = ("above_own", "flagged", "held", "in_git", "is_dull", "is_packaged", "is_store", "parent", "parts")

    def __init__(self, directory: str) -> None:
        self.parts = tuple(directory.lower().split("/")) if directory else ()
        self.parent = self.parts[-1] if self.parts else ""
        # Asked first: of a directory that is a thousand deep, most names mean nothing, or are the same.
        different = set(self.parts)
        git = [at for at, name in enumerate(self.parts) if is_dot_git(name)] if any(map(is_dot_git, different)) else []
        self.in_git = bool(git)
        self.is_dull = len(git) == 1 and not AREAS.isdisjoint(self.parts[git[0] + 1 : git[0] + 2])
        self.is_store = self.parts[-2:-1] == ("objects",)
        self.is_packaged = not tables.PACKAGES.isdisjoint(different)
        self.held = self.flagged = None
        is_telling = not _TELLING.isdisjoint(different) or any(name[:1] == "." for name in different)
        if is_telling and not (self.in_git or self.is_packaged):
            parts = in_project(self.parts)
            self.held = held_by_directory(parts)
            self.flagged = _flagged_by_directory(parts)
        names = [] if git or _IN_REPOSITORIES.isdisjoint(different) else directory.split("/")
        own = [at for at, name in enumerate(names) if name.lower() in _IN_REPOSITORIES]
        self.above_own = tuple("/".join(names[:at]) for at in own)


def surroundings(directory: str) -> Surroundings:
    """Return what is known of a directory, "" for the root's top."""
    found = _known.get(directory)
    if found is None:
        if len(_known) >= _MANY:
            _known.clear()
        found = _known[directory] = Surroundings(directory)
    return found


def is_dot_git(name: str) -> bool:
    """Tell whether a name in lower case is `.git`, on the file systems of other systems too."""
    if name == ".git":
        return True
    if name.isascii():
        if "git" not in name:
            return False
    else:
        name = name.translate(dict.fromkeys(map(ord, _HFS_IGNORES)))
    return name.partition(":")[0].rstrip(". ") in (".git", "git~1")


def in_project(parts: Sequence[str]) -> Sequence[str]:
    """Leave out where an agent keeps whole work trees: in them, everything counts as in the project itself."""
    for at, part in enumerate(parts[:-2]):
        if part == ".claude" and parts[at + 1] == "worktrees":
            return in_project(parts[at + 3 :])
    return parts


def held_by_directory(parts: Sequence[str]) -> Because | None:
    """Return why everything below directories of these names is held, or None."""
    before = ""
    for part in parts:
        if (found := tables.HELD_DIRECTORIES.get(part)) is not None:
            return found
        if is_agents(before, part):
            return tables.AGENT_REASON
        before = part
    return None


def is_agents(directory: str, name: str) -> bool:
    """Tell whether a name is one that an agent's directory has, whatever the agent is called."""
    if directory[:1] != "." or directory in tables.NOT_AGENTS or len(directory) < 2:
        return False
    stem = name.partition(".")[0]
    return stem in tables.AGENT_PARTS or stem.startswith("mcp")


def _flagged_by_directory(parts: Sequence[str]) -> Because | None:
    before = ""
    for part in parts:
        found = tables.FLAGGED_DIRECTORIES.get(part) or tables.FLAGGED_PAIRS.get((before, part))
        if found is not None:
            return found
        before = part
    return None
