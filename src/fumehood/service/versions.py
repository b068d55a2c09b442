"""Both versions of what a run changed, the project's and the layer's, for the judge; and where links lead by them."""

from __future__ import annotations

import os
import stat

from fumehood.core import changes as c
from fumehood.core.concern import Facts, Ground, by_real_name, directory_of, end_of, lands, within
from fumehood.linux.libc import Closing, Descriptors
from fumehood.linux.nofollow import Parents, is_whiteout, look, open_top, split
from fumehood.linux.ways_in import had_repository

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST = 1 << 20  # bytes of a file that are read: a git configuration with many branches is longer than it looks
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Layers:
    """The layers of a root and of those in it, as one tree."""

    def __init__(self, tops: Mapping[str, int]) -> None:
        self._parts = [(path, Parents(tops[path])) for path in sorted(tops, key=len, reverse=True)]

    def of(self, parent: str) -> int:
        """Return a descriptor of a directory, in the layer of the innermost root that it lies in."""
        at, part = next(each for each in self._parts if not each[0] or f"{parent}/".startswith(f"{each[0]}/"))
        return part.of(parent[len(at) :].lstrip("/"))

    def close(self) -> None:
        """Let go of the directories."""
        for _, part in self._parts:
            part.close()


class Sources:
    """Both versions of the paths of one root: the project's and the layer's.

    `uppers` are its layer's upper directory, and those of the roots in it, each by its path there.
    """

    def __init__(
        self, number: int, root: str, uppers: Mapping[str, str], planned: Mapping[tuple[int, str], bytes] | None
    ) -> None:
        self._number = number
        self._root = root
        self._planned = planned
        self._tops = Descriptors(map(open_top, (root, *uppers.values())))
        self._live, self._layer = Parents(self._tops[0]), _Layers(dict(zip(uppers, self._tops[1:], strict=True)))

    def facts(self, change: c.Change) -> Facts:
        """Read what a change was and is; what can't be read counts against it."""
        if change.kind == c.SYMLINK and change.change != c.DELETED:
            was_link = change.before is not None and change.before.kind == c.SYMLINK
            try:
                old = os.fsencode(_target(self._live, change.path)) if was_link else None
            except OSError:
                old = None  # it lies in a held layer, or is gone by now
            return Facts(target=_target(self._layer, change.path), old=old, root=self._root)
        if self._planned is None:
            new, old = _content(self._layer, change.path), None
        else:
            new, old = self._planned.get((self._number, change.path)), None
        if change.before is not None and change.before.kind == c.FILE:
            old = _content(self._live, change.path)
        whole = all(each is None or len(each) < _MOST for each in (old, new))
        was_there = had_repository(self._live, self._root, change.path)
        return Facts(old=old, new=new, whole=whole, root=self._root, repository_was_there=was_there)

    def has(self, directory: str, name: str) -> bool:
        """Return True if the project, as the run left it, has an entry."""
        if (self._number, f"{directory}/{name}".lstrip("/")) in (self._planned or ()):
            return True
        sides: tuple[Parents | _Layers, ...] = (self._layer, self._live)
        for side in sides:
            try:
                status = look(side.of(directory), name)
            except OSError:
                continue
            if status is not None:
                return not is_whiteout(status)
        return False

    def live_link(self, path: str) -> str | None:
        """Return the text of a link of the project; "" for what is no link, None where nothing is."""
        parent, name = split(path)
        try:
            status = look(self._live.of(parent), name)
            is_link = status is not None and stat.S_ISLNK(status.st_mode)
            return _target(self._live, path) if is_link else None if status is None else ""
        except OSError:
            return None

    def new_link(self, path: str) -> str:
        """Return the text of a link that the run made."""
        return _target(self._layer, path)

    def live_content(self, path: str) -> bytes | None:
        """Read a file of the project as it is now."""
        return _content(self._live, path)

    def close(self) -> None:
        """Let go of the directories."""
        self._layer.close()
        self._live.close()
        self._tops.close()


class LinksOnTheWay:
    """Follow links through the roots, by those that were there and those that a run made; what lies outside is text."""

    def __init__(self, changes: Sequence[c.Change], sources: Sequence[Sources], ground: Ground) -> None:
        self._sources = sources
        self._ground = ground
        made = (change for change in changes if change.kind == c.SYMLINK and change.change != c.DELETED)
        self._new = {(change.root, change.path) for change in made}
        self._old: dict[tuple[int, str], str | None] = {}

    def ends(self, change: c.Change, facts: Facts) -> tuple[str, ...]:
        """Return where a new link leads that stays in the roots by its text, with the run's other links and without."""
        place = lands(directory_of(change, facts), facts.target)
        place = None if place is None else by_real_name(place, self._ground)
        if place is None or within(place, self._ground.roots) is None:
            return ()
        ends = (end_of(place, self._any_link, self._ground), end_of(place, self._link, self._ground))
        return tuple(end for end in dict.fromkeys(ends) if end != place)

    def _any_link(self, spot: tuple[int, str]) -> str:
        return self._sources[spot[0]].new_link(spot[1]) if spot in self._new else self._link(spot)

    def _link(self, spot: tuple[int, str]) -> str:
        """Return the text of a link that was there; where nothing was, nothing was below."""
        if spot not in self._old:
            root, path = spot
            above = (root, path.rpartition("/")[0])
            is_there = not above[1] or self._old.get(above, "") is not None
            self._old[spot] = self._sources[root].live_link(path) if is_there else None
        return self._old[spot] or ""


def _content(side: Parents | _Layers, path: str) -> bytes | None:
    parent, _, name = path.rpartition("/")
    try:
        with Closing(os.open(name, _READING, dir_fd=side.of(parent))) as file:
            return os.read(file, _MOST)
    except OSError:
        return None  # it is not there, or no regular file


def _target(side: Parents | _Layers, path: str) -> str:
    parent, _, name = path.rpartition("/")
    return os.readlink(name, dir_fd=side.of(parent))
