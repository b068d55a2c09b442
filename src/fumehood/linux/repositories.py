"""Tell whether the project had a repository where a command left something of one."""

from __future__ import annotations

import os

from fumehood.core.surroundings import is_dot_git
from fumehood.linux.nofollow import LISTING, look, open_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fumehood.linux.nofollow import Parents

# Each is told from the others' being there too: one that a run takes away must not make the next run's "new".
_PARTS = ("HEAD", "config", "objects", "refs")
_CONFIGS = ("config", "config.worktree")
_ADDRESSES = ("remotes", "branches")


def had_repository(live: Parents, root: str, path: str) -> bool:
    """Tell whether the git directory that a path belongs to was there before; `live` is the project's own side.

    So it was where files of another repository lie: one put among them takes them over.
    """
    return any(_was_repository(live, root, directory) for directory in _directories(path))


def _directories(path: str) -> Iterator[str]:
    """Yield each directory that may be the git directory of a `.git`, a configuration or an old-style remote."""
    parts = path.split("/")
    if is_dot_git(parts[-1].lower()):
        yield path
    if parts[-1].lower() in _CONFIGS:
        yield "/".join(parts[:-1])
        if [part.lower() for part in parts[-3:-2]] == ["worktrees"]:
            yield "/".join(parts[:-3])  # a work tree, new or not, is of the repository that it lies in
    for at, part in enumerate(parts[:-1]):
        if part.lower() in _ADDRESSES:
            yield "/".join(parts[:at])


def _was_repository(live: Parents, root: str, directory: str) -> bool:
    parent, _, name = directory.rpartition("/")
    try:
        if not is_dot_git(name.lower()):
            inside = live.of(directory)
            return any(look(inside, part) is not None for part in _PARTS)
        return look(live.of(parent), name) is not None or _belongs_elsewhere(live, root, parent)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # a link stood above, or it may not be looked at


def _belongs_elsewhere(live: Parents, root: str, directory: str) -> bool:
    """Tell whether a directory without a `.git` had something in it that a repository further up has."""
    listing = open_below(live.top, directory, LISTING)
    try:
        if not os.listdir(listing):
            return False
    finally:
        os.close(listing)
    names = directory.split("/") if directory else []
    inside = ("/".join(names[:end]) for end in range(len(names)))
    if any(look(live.of(above), ".git") is not None for above in inside):
        return True
    above_root = root.rstrip("/").split("/")[:-1]
    return any(os.path.lexists("/".join([*above_root[:end], ".git"])) for end in range(1, len(above_root) + 1))
