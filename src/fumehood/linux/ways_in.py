"""Which places in the roots the host acts on by itself, because something of the person's leads there.

Git's configuration (`git_ways`), a link whose name a tool acts on (`.claude -> cfg/claude`), a link in the home
(`~/.bashrc -> dotfiles/bashrc`), a script or a server that `.envrc`, `.husky` or an agent's settings name, a directory
of PATH. All of it is as it was before the run, which is the person's own or was applied; so links are followed here, as
those programs follow them.
"""

from __future__ import annotations

import os

from fumehood.core.concern import shown
from fumehood.core.links import within
from fumehood.core.protected import Protected
from fumehood.core.settings_commands import commands_in
from fumehood.core.shell_words import named_paths
from fumehood.linux.followed import links_and_end
from fumehood.linux.git_includes import expanded
from fumehood.linux.nofollow import Parents, open_top
from fumehood.linux.settings_files import Unreadable, content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fumehood.core.danger_tables import Because

_MOST_DIRECTORIES = 10_000  # of one root, the highest first: 14 µs each
_MOST_AT_HOME = 200
_LONGEST_PATH = 4096 - 256  # bytes, before a name: what is longer no program can open by its path
_SYSTEM = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
_MOST_ROUNDS = 3  # of `cd` within one line
_LONGEST_SCRIPT = 1 << 16
# Of the home, other people's packages and caches: no program starts by what these hold.
_PASSED_BY = frozenset((".cache", ".npm", ".cargo", ".rustup", ".local", ".gradle", ".m2"))


class Ways:
    """What leads into the roots, and the places that it makes the host act on."""

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(roots)
        self.protected = Protected(self.roots)

    def lead(self, directory: str, text: str, because: Because, *, whole: bool = False) -> str:
        """Protect what a path leads to, and every link on its way; returns where that is."""
        *links, end = links_and_end(os.path.join(directory, text))
        for link in links:
            self.protected.add(link, because)
        self.protected.add(end, because, whole=whole)
        return end

    def holds(self, path: str) -> bool:
        """Tell whether a path lies in one of the roots."""
        return within(path, self.roots) is not None


class Tree:
    """What there is in a root that may lead somewhere: links, repositories, and files that tools act on by their names.

    `meaning` says whether a tool acts on a path in the root, and why.
    """

    def __init__(self, top: str, meaning: Callable[[str], Because | None], is_passed_by: Callable[[str], bool]) -> None:
        self.repositories: list[str] = []
        self.links: list[tuple[str, str, Because]] = []  # directory, name
        self.files: list[tuple[str, Because]] = []
        self._top = top
        self._meaning = meaning
        self._is_passed_by = is_passed_by
        waiting, looked_at = [""], 0
        here = open_top(top)
        parents = Parents(here, bounded=False)
        try:
            while waiting and looked_at < _MOST_DIRECTORIES:
                directories, waiting = waiting[: _MOST_DIRECTORIES - looked_at], []
                looked_at += len(directories)
                for directory in directories:
                    waiting += self._look(parents, directory)
        finally:
            parents.close()
            os.close(here)

    def _look(self, parents: Parents, path: str) -> Iterator[str]:
        """Note what one directory holds; yields those in it that have a path which a program can name."""
        names = set()
        inner = f"{path}/" if path else ""
        directory = f"{self._top}/{path}" if path else self._top
        can_be_named = len(os.fsencode(directory)) < _LONGEST_PATH
        for entry in _entries_below(parents, path):
            names.add(entry.name)
            if entry.is_symlink():
                if (because := self._meaning(inner + entry.name)) is not None:
                    self.links.append((directory, entry.name, because))
            elif entry.is_dir(follow_symlinks=False):
                if entry.name != ".git" and not self._is_passed_by(entry.name) and can_be_named:
                    yield inner + entry.name
            # Most files need no look: what tools act on has a `.` before its name, or lies in what has.
            elif "/." in f"/{inner}{entry.name}" and (because := self._meaning(inner + entry.name)) is not None:
                self.files.append((f"{directory}/{entry.name}", because))
        if ".git" in names or names.issuperset(("HEAD", "objects", "refs")):
            self.repositories.append(directory)


def _entries_below(parents: Parents, path: str) -> Iterator[os.DirEntry[str]]:
    """Yield what a directory below a top holds; nothing where this user can't read it."""
    directory = parents.listing(path)
    if directory is None:
        return
    try:
        with os.scandir(directory) as found:
            yield from found
    finally:
        os.close(directory)  # not before: an entry may be looked at through it


def entries(directory: str) -> list[os.DirEntry[str]]:
    """Return what a directory holds; nothing where this user can't read it."""
    try:
        with os.scandir(directory) as found:
            return list(found)
    except OSError:
        return []


def protect_links(ways: Ways, tree: Tree) -> None:
    """Protect what links in a root lead to, where a tool acts on their names."""
    for directory, name, (flag, reason) in tree.links:
        ways.lead(directory, name, (flag, f"{reason}: the link {shown(name)} leads here"), whole=True)


def protect_line(ways: Ways, line: str, bases: Sequence[str], home: str, because: Because) -> None:
    """Protect what a line for a shell names, from where it is run and from wherever it may go by `cd`."""
    named = [(text, whole, plain) for path, whole, plain in named_paths(line) if (text := expanded(path, home))]
    reached, waiting = set(bases), list(bases)
    for _ in range(_MOST_ROUNDS):
        entered: list[str] = []
        for base in waiting:
            for text, whole, may_only_be_entered in named:
                if may_only_be_entered:
                    place = links_and_end(os.path.join(base, text))[-1]
                else:
                    place = ways.lead(base, text, because, whole=whole)
                if place not in reached and ways.holds(place) and os.path.isdir(place):
                    entered.append(place)
        reached.update(entered)
        waiting = entered


def protect_script(ways: Ways, path: str, bases: Sequence[str], home: str, because: Because) -> None:
    """Protect what a script names by a path: a plain word of it is nearly always something else."""
    text = text_of(path)[:_LONGEST_SCRIPT]
    for line in () if "\0" in text else text.split("\n"):
        if not line.lstrip().startswith("#"):
            words = " ".join(word for word in line.split() if "/" in word)
            protect_line(ways, line if " -m " in line else words, bases, home, because)


def protect_what_files_name(ways: Ways, tree: Tree, root: str, home: str) -> None:
    """Protect what files run that tools act on: a script's lines, and the commands of an agent's settings."""
    for path, (flag, _) in tree.files:
        because = (flag, f"{shown(os.path.basename(path))}, which runs by itself, names this")
        bases = tuple(dict.fromkeys((root, os.path.dirname(path))))
        if flag in ("shell-settings", "git-hook"):
            protect_script(ways, path, bases, home, because)
        elif flag == "agent-settings" and path.endswith((".json", ".jsonc", ".toml")):
            for line in commands_in(text_of(path), is_toml=path.endswith(".toml")):
                protect_line(ways, line, bases, home, because)


def text_of(path: str) -> str:
    """Return what a file holds; nothing where it can't be read, or is too long for settings."""
    try:
        found = content(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except (OSError, ValueError, Unreadable):
        return ""
    return (found or b"").decode("utf-8", "surrogateescape")


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


def protect_search_path(ways: Ways, added: Sequence[str], path: str) -> None:
    """Protect new files in directories of PATH that would be run in place of a program of the system's.

    Python's own scripts don't count: whoever installs a package in an environment means its commands.
    """
    searched = {os.path.realpath(directory) for directory in path.split(":") if directory.startswith("/")}
    inside = {directory for directory in searched if ways.holds(directory)}
    for place in added if inside else ():
        directory, name = os.path.split(place)
        if directory not in inside or name.startswith("python"):
            continue
        replaced = next((f"{each}/{name}" for each in _SYSTEM if os.path.isfile(f"{each}/{name}")), "")
        if replaced and "python" not in text_of(replaced)[:64]:
            because = ("shadows", f"would be run in place of {shown(replaced)}: its directory comes first on your PATH")
            ways.protected.add(place, because)
