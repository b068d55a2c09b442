"""Which places in the roots the host acts on by itself, because something of the person's leads there.

Git's configuration (`git_ways`), a link whose name a tool acts on (`.claude -> cfg/claude`), a link in the home
(`~/.bashrc -> dotfiles/bashrc`). All of it is as it was before the run, which is the person's own or was applied; so
links are followed here, as those programs follow them.
"""

from __future__ import annotations

import os

from fumehood.core.concern import shown
from fumehood.core.links import within
from fumehood.core.protected import Protected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fumehood.core.danger_tables import Because

_MOST_LINKS = 40  # on the way along one path: the kernel's own limit
_MOST_DIRECTORIES = 2_000  # of one root, the highest first: 14 µs each
_MOST_AT_HOME = 200
# Of the home, other people's packages and caches: no program starts by what these hold.
_PASSED_BY = frozenset((".cache", ".npm", ".cargo", ".rustup", ".local", ".gradle", ".m2"))


class Ways:
    """What leads into the roots, and the places that it makes the host act on."""

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(roots)
        self.protected = Protected(self.roots)

    def lead(self, directory: str, text: str, because: Because, *, whole: bool = False) -> str:
        """Protect what a path leads to, and every link on its way; returns where that is."""
        *links, end = steps(directory, text)
        for link in links:
            self.protected.add(link, because)
        self.protected.add(end, because, whole=whole)
        return end

    def holds(self, path: str) -> bool:
        """Tell whether a path lies in one of the roots."""
        return within(path, self.roots) is not None


def steps(directory: str, text: str) -> list[str]:
    """Return the links that a path leads over, in their order, and where it ends, which need not exist."""
    links: list[str] = []
    done, names = "/", os.path.join(directory, text).split("/")
    while names:
        name = names.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            done = os.path.dirname(done)
            continue
        place = os.path.join(done, name)
        try:
            target = os.readlink(place) if len(links) < _MOST_LINKS else ""
        except (OSError, ValueError):  # none, or a NUL in it
            target = ""
        if not target:
            done = place
            continue
        links.append(place)
        done = "/" if target.startswith("/") else done
        names = target.split("/") + names
    return [*links, done]


class Tree:
    """The links of a root, as pairs of directory and name, and its directories that hold a repository."""

    def __init__(self, top: str, is_passed_by: Callable[[str], bool]) -> None:
        self.top = top
        self.links: list[tuple[str, str]] = []
        self.repositories: list[str] = []
        waiting, looked_at = [top], 0
        while waiting and looked_at < _MOST_DIRECTORIES:
            directories, waiting = waiting[: _MOST_DIRECTORIES - looked_at], []
            looked_at += len(directories)
            for directory in directories:
                waiting += self._look(directory, is_passed_by)

    def _look(self, directory: str, is_passed_by: Callable[[str], bool]) -> Iterator[str]:
        """Note what one directory holds; yields those in it."""
        names = set()
        for entry in entries(directory):
            names.add(entry.name)
            if entry.is_symlink():
                self.links.append((directory, entry.name))
            elif entry.name != ".git" and entry.is_dir(follow_symlinks=False) and not is_passed_by(entry.name):
                yield entry.path
        if ".git" in names or names.issuperset(("HEAD", "objects", "refs")):
            self.repositories.append(directory)


def entries(directory: str) -> list[os.DirEntry[str]]:
    """Return what a directory holds; nothing where this user can't read it."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def protect_links(ways: Ways, tree: Tree, meaning: Callable[[str], Because | None]) -> None:
    """Protect what links in a root lead to, where a tool acts on their names: `meaning` says so, by a path in it."""
    for directory, name in tree.links:
        because = meaning(f"{directory}/{name}"[len(tree.top) :].lstrip("/"))
        if because is not None:
            flag, reason = because
            ways.lead(directory, name, (flag, f"{reason}: the link {shown(name)} leads here"), whole=True)


def protect_home(ways: Ways, home: str) -> None:
    """Protect what links of the home lead to: shells, editors and others start with what has a `.` before its name."""
    waiting = [home]
    looked_at = 0
    while waiting and looked_at < _MOST_AT_HOME:
        directory = waiting.pop(0)
        looked_at += 1
        if ways.holds(directory):
            continue
        for entry in entries(directory):
            if directory == home and (entry.name[0] != "." or entry.name in _PASSED_BY):
                continue
            if entry.is_symlink():
                name = entry.path.removeprefix(home)
                ways.lead(directory, entry.name, ("home-link", f"your ~{shown(name)} is a link to this"), whole=True)
            elif directory in (home, f"{home}/.config") and entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
