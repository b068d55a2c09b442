"""Search the directories of a project for repositories, and for links and files on which tools act because of the name.

Each directory is listed once, and again only when it has changed: between two runs, few have.
"""

from __future__ import annotations

import os
from itertools import islice

from fumehood.core import sensitive_names
from fumehood.core.sensitive_names import HELD_STEMS, HELD_SUFFIXES, meaning_of, settings_name
from fumehood.linux.cache import NEVER, change_state, load, save, settled
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import DirectoryCache, open_top

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fumehood.core.danger_facts import Reason

    # Names of links and files that tools act on, and whether the directory is a repository; empty if there is nothing.
    Finds = tuple[list[str], list[str], bool] | tuple[()]
    Listing = tuple[int, int, list[str], Finds]  # when the directory changed, its inode, the directories in it

MEMORY_PREFIX = "tree-"  # of the names of files that remember directories
_MOST_DIRECTORIES = 10_000  # of one project, the highest first: 14 µs each, 3 µs if it is remembered
_MOST_FIRST = 1_000  # directories where something was found come first; more would leave none for the others
_WORTH_SAVING = 100  # directories that were listed anew
_LONGEST_PATH = 4096 - 256  # bytes of a directory's path: beyond that, no program can open an entry by its path
_COARSE_NS = 10_000_000  # some file systems count in whole seconds, or in hundredths: such a time proves nothing
_REPOSITORY_ENTRIES = frozenset((".git", "HEAD", "objects", "refs"))


class ProjectTree:
    """The links and repositories in a root, and the files that tools act on because of their names.

    `meaning` says whether a tool acts on a path in the root, and why. `memory` is a file of ours that remembers the
    directories: only those that have changed since are listed again. Directories where something was found come first,
    or a command could hide them among thousands of others.
    """

    def __init__(
        self, top: str, meaning: Callable[[str], Reason | None], is_passed_by: Callable[[str], bool], memory: str = ""
    ) -> None:
        self.repositories: list[str] = []
        self.links: list[tuple[str, str, Reason]] = []  # directory, name
        self.files: list[tuple[str, Reason]] = []
        self.mise: list[str] = []  # settings of that tool
        self._top = top
        self._meaning = meaning
        self._is_passed_by = is_passed_by
        question = (top, _rules_version()) if memory else None
        remembered: dict[str, Listing] = (memory and load(memory, question)) or {}
        queue = ["", *islice(_with_finds(remembered), _MOST_FIRST)]
        listings: dict[str, Listing] = {}
        looked_at = set[str]()
        listed_anew = 0
        with Closing(open_top(top)) as here, DirectoryCache(here, bounded=False) as parents:
            while queue and len(looked_at) < _MOST_DIRECTORIES:
                candidates = [directory for directory in dict.fromkeys(queue) if directory not in looked_at]
                directories, queue = candidates[: _MOST_DIRECTORIES - len(looked_at)], []
                looked_at.update(directories)
                for directory in directories:
                    listing = remembered.get(directory)
                    if listing is None or not _is_same(listing, directory, here):
                        listing = self._list(parents, directory)
                        listed_anew += 1
                    if listing is None:
                        continue  # this user can't read it
                    listings[directory] = listing
                    if listing[2]:
                        inner = f"{directory}/" if directory else ""
                        queue += [inner + name for name in listing[2]]
                    if listing[3]:
                        self._note(directory, *listing[3])
        if memory and (listed_anew > _WORTH_SAVING or _with_finds(listings) != _with_finds(remembered)):
            save(memory, listings, question)

    def _list(self, parents: DirectoryCache, path: str) -> Listing | None:
        """List a directory: the directories in it that programs can name by a path, and what tools act on."""
        inner = f"{path}/" if path else ""
        can_be_named = len(os.fsencode(f"{self._top}/{path}")) < _LONGEST_PATH
        is_hidden = inner[:1] == "." or "/." in inner
        listing = parents.open_listing(path)
        if listing is None:
            return None
        directories, links, files, names = list[str](), list[str](), list[str](), set[str]()
        # Keep the listing open: entries may need it for a stat.
        with Closing(listing):
            state = change_state(os.fstat(listing))
            state = settled(state) if state[0] % _COARSE_NS else (NEVER, 0)
            with os.scandir(listing) as inside:
                for entry in inside:
                    name = entry.name
                    if name in _REPOSITORY_ENTRIES:
                        names.add(name)
                    if entry.is_symlink():
                        if self._meaning(inner + name) is not None:
                            links.append(name)
                    elif entry.is_dir(follow_symlinks=False):
                        if name != ".git" and not self._is_passed_by(name) and can_be_named:
                            directories.append(name)
                    elif (
                        name.endswith(".toml") and settings_name(name, meaning_of(path)) == "mise.toml"
                    ) or ((is_hidden or _may_be_acted_on(name)) and self._meaning(inner + name) is not None):
                        files.append(name)
        is_repository = ".git" in names or names.issuperset(("HEAD", "objects", "refs"))
        finds = (links, files, is_repository) if links or files or is_repository else ()
        return *state, directories, finds

    def _note(self, path: str, links: list[str], files: list[str], is_repository: bool) -> None:
        """Note what tools act on in one directory."""
        inner = f"{path}/" if path else ""
        directory = f"{self._top}/{path}" if path else self._top
        for name in links:
            if (because := self._meaning(inner + name)) is not None:
                self.links.append((directory, name, because))
        for name in files:
            if name.endswith(".toml") and settings_name(name, meaning_of(path)) == "mise.toml":
                self.mise.append(f"{directory}/{name}")
            elif (because := self._meaning(inner + name)) is not None:
                self.files.append((f"{directory}/{name}", because))
        if is_repository:
            self.repositories.append(directory)


def _with_finds(listings: Mapping[str, Listing]) -> dict[str, Finds]:
    return {path: listing[3] for path, listing in listings.items() if path and listing[3]}


def _rules_version() -> list[tuple[str, int, int]]:
    """Identify the code that decides which names matter: after an upgrade, nothing is remembered."""
    with os.scandir(os.path.dirname(sensitive_names.__file__)) as sources:
        statuses = [(each.name, each.stat()) for each in sources if each.name.endswith(".py")]
    statuses.append(("project_tree", os.stat(__file__)))
    return sorted((name, status.st_mtime_ns, status.st_size) for name, status in statuses)


def _is_same(listing: Listing, path: str, top: int) -> bool:
    """Return True if a directory is still as it was listed."""
    try:
        return listing[:2] == change_state(os.lstat(path or ".", dir_fd=top))
    except OSError:
        return False


def _may_be_acted_on(name: str) -> bool:
    """Return False for most files that no tool acts on, by a cheap look at the name: there may be 100,000 of them.

    Relevant files have special names, or are hidden, or lie in hidden directories.
    """
    first, _, rest = name.lower().partition(".")
    return first in HELD_STEMS or not first or (rest or first).rpartition(".")[2] in HELD_SUFFIXES
