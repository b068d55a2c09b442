"""What links of the home lead to: shells, editors and others start with what has a `.` before its name.

Each directory is listed once, and again when it has changed: between two runs, hardly any of hundreds has.
"""

from __future__ import annotations

import heapq
import os
import time

from fumehood.core.concern import shown
from fumehood.core.tool_files import PACKAGES
from fumehood.linux.cache import TICK_NS, keep, recalled
from fumehood.linux.ways_in import Ways, entries

TYPE_CHECKING = False
if TYPE_CHECKING:
    Seen = tuple[int, int, list[str], list[str]]  # when it changed, its inode; names of links, and of directories

_MOST = 300  # directories that are looked at
_CROWD = 200  # no person keeps so many directories in one
# Of the home, other people's packages and caches: no program starts by what these hold.
_PASSED_BY = frozenset((".cache", ".npm", ".cargo", ".rustup", ".local", ".gradle", ".m2"))
# At any depth. In `link`, yarn notes the packages that somebody works on; in `bin` and `versions`, npm, bun and pyenv
# put what a person starts by its name.
_PACKED = PACKAGES | {".git", "link", "versions", "bin"}


def protect_home(ways: Ways, home: str, memory: str) -> None:
    """Protect what links of a home lead to; `memory` is the file of ours in which it is kept how the home looked.

    First come the directories in the home and in `~/.config`. Further down, those with the fewest beside them: what a
    person keeps comes before the hundreds that a program made.
    """
    if ways.holds(home):
        return
    listings = _Listings(memory)
    waiting, left = [(0, home)], _MOST
    while waiting and left:
        _, directory = heapq.heappop(waiting)
        left -= 1
        links, inner = listings.of(directory)
        if directory == home:
            links, inner = _dotted(links), _dotted(inner)
        for name in links:
            place = f"{directory}/{name}"
            because = ("home-link", f"your ~{shown(place.removeprefix(home))} is a link to this")
            ways.lead("/", place, because, whole=True)
        beside = 0 if directory in (home, f"{home}/.config") else len(inner)
        for name in inner if beside <= _CROWD else ():
            # Below `~/.config`, a `bin` holds what the programs start that are configured there.
            is_followed = name not in _PACKED or (name == "bin" and directory.startswith(f"{home}/.config/"))
            if is_followed and f"{directory}/{name}" not in ways.roots:
                heapq.heappush(waiting, (beside, f"{directory}/{name}"))
    listings.keep()


def _dotted(names: list[str]) -> list[str]:
    return [name for name in names if name[0] == "." and name not in _PASSED_BY]


class _Listings:
    """The links and directories in directories, as they were found before where nothing has changed since."""

    def __init__(self, memory: str) -> None:
        self._memory = memory
        self._before: dict[str, Seen] = recalled(memory) or {}
        self._now: dict[str, Seen] = {}

    def of(self, directory: str) -> tuple[list[str], list[str]]:
        """Return the names of the links and of the directories in a directory; none where it can't be read."""
        try:
            status = os.stat(directory)
        except OSError:
            return [], []
        seen = self._before.get(directory)
        if seen is None or seen[:2] != (status.st_ctime_ns, status.st_ino):
            inside = entries(directory)
            links = [entry.name for entry in inside if entry.is_symlink()]
            folders = [entry.name for entry in inside if entry.is_dir(follow_symlinks=False)]
            # Another change now may bear the same time.
            changed = status.st_ctime_ns if abs(time.time_ns() - status.st_ctime_ns) > TICK_NS else 0
            seen = (changed, status.st_ino, links, folders)
        self._now[directory] = seen
        return seen[2], seen[3]

    def keep(self) -> None:
        """Remember what was found, if it is something else than before."""
        if self._now != self._before:
            keep(self._memory, self._now)
