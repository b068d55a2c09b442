"""Gather what the judge must know about changes: contents, link targets, and the git configuration in force."""

from __future__ import annotations

import os

from fumehood.core import changes as c
from fumehood.core.concern import Facts
from fumehood.core.danger import concern, executed, survey, suspects, wants_facts
from fumehood.linux.nofollow import Parents, is_whiteout, look, open_top
from fumehood.store.places import home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.concern import Concern, Ground, Rules

_MOST = 1 << 20  # bytes of a file that are read: a git configuration with many branches is longer than it looks
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def concerns(
    changes: Sequence[c.Change], roots: Sequence[str], uppers: Sequence[str], rules: Rules
) -> dict[int, Concern]:
    """Return why changes must be held or flagged, by their place in the list."""
    sources = [_Sources(root, upper) for root, upper in zip(roots, uppers, strict=True)]
    try:
        ground = _ground(changes, tuple(roots), sources)
        found: dict[int, Concern] = {}
        for place, change in enumerate(changes):
            facts = sources[change.root].facts(change) if wants_facts(change, ground) else None
            answer = concern(change, facts, rules, ground)
            if answer is not None:
                found[place] = answer
        return found
    finally:
        for source in sources:
            source.close()


def _ground(changes: Sequence[c.Change], roots: tuple[str, ...], sources: Sequence[_Sources]) -> Ground:
    """Look at the roots as a whole: which directories are repositories, and what git already executes there."""
    repositories = [(root, path) for root, path in suspects(changes) if sources[root].has(path, "HEAD")]
    at = home()
    obeyed: set[tuple[int, str]] = set()
    for number, root in enumerate(roots):
        config = sources[number].live_content(".git/config")
        if config:
            obeyed |= executed(config, f"{root}/.git", root, roots, at)
        for path in (f"{at}/.gitconfig", f"{at}/.config/git/config"):
            obeyed |= executed(_own_content(path), os.path.dirname(path), root, roots, at)
    return survey(changes, roots, repositories, obeyed)


def _own_content(path: str) -> bytes:
    """Read a file of the person's own; commands can't write it."""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST)
    except OSError:
        return b""


class _Sources:
    """Both versions of the paths of one root: the project's and the layer's."""

    def __init__(self, root: str, upper: str) -> None:
        self._root = root
        self._tops = open_top(upper), open_top(root)
        self._layer, self._live = Parents(self._tops[0]), Parents(self._tops[1])

    def facts(self, change: c.Change) -> Facts:
        """Read what a change was and is; what can't be read counts against it."""
        if change.kind == c.SYMLINK:
            return Facts(target=_target(self._layer, change.path), root=self._root)
        new, old = _content(self._layer, change.path), None
        if change.before is not None and change.before.kind == c.FILE:
            old = _content(self._live, change.path)
        whole = all(each is None or len(each) < _MOST for each in (old, new))
        return Facts(old=old, new=new, whole=whole, root=self._root)

    def has(self, directory: str, name: str) -> bool:
        """Tell whether the project, as the run left it, has an entry."""
        for side in (self._layer, self._live):
            try:
                found = look(side.of(directory), name)
            except OSError:
                continue
            if found is not None:
                return not is_whiteout(found)
        return False

    def live_content(self, path: str) -> bytes | None:
        """Read a file of the project as it is now."""
        return _content(self._live, path)

    def close(self) -> None:
        """Let go of the directories."""
        self._layer.close()
        self._live.close()
        for top in self._tops:
            os.close(top)


def _content(side: Parents, path: str) -> bytes | None:
    parent, _, name = path.rpartition("/")
    try:
        file = os.open(name, _READING, dir_fd=side.of(parent))
    except OSError:
        return None
    try:
        return os.read(file, _MOST)
    except OSError:
        return None  # no regular file
    finally:
        os.close(file)


def _target(side: Parents, path: str) -> str:
    parent, _, name = path.rpartition("/")
    return os.readlink(name, dir_fd=side.of(parent))
