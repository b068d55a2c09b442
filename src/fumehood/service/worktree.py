"""Find the real git directory of a work tree that lies outside its project, without running git."""

from __future__ import annotations

import os

_LONGEST = 4096


def git_directory(project: str) -> str | None:
    """Return the repository that a project is a linked work tree of, or None.

    The project's own `.git` file could have been written by a command, so it is believed only if the
    repository, which commands can't write, names this work tree too.
    """
    said = _line(f"{project}/.git")
    if said is None or not said.startswith("gitdir: "):
        return None
    own = os.path.realpath(os.path.join(project, said[len("gitdir: ") :]))
    back = _line(f"{own}/gitdir")
    common = _line(f"{own}/commondir")
    if back is None or common is None or os.path.realpath(back) != os.path.realpath(f"{project}/.git"):
        return None
    repository = os.path.realpath(os.path.join(own, common))
    is_repository = all(os.path.exists(f"{repository}/{part}") for part in ("HEAD", "objects", "refs"))
    return repository if is_repository and os.path.dirname(own) == f"{repository}/worktrees" else None


def _line(path: str) -> str | None:
    """Return the one line of a small file; follows no symlink, waits for nothing."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.fsdecode(os.read(file, _LONGEST)).rstrip("\n")
    except OSError:
        return None  # a directory: an ordinary repository
    finally:
        os.close(file)
