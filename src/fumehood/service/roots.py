"""Another directory that commands may write: only a person can add one, and only the one they saw."""

from __future__ import annotations

import os

from fumehood.core.permission import root_question
from fumehood.errors import BadRequest
from fumehood.service.worktree import git_directory
from fumehood.store.audit import DECIDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.service.permission import Permissions
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

_LOOKED_AT = 2000  # entries of a project that are looked at for links


def add_root(
    store: Store, project: Project, path: str, permissions: Permissions, *, by_person: bool = False
) -> Project:
    """Let a project's commands write another directory, once a person has said so.

    Where the person named it themselves (`by_person`), that is their word; but a symlink may have been planted, so
    where one leads somewhere else than it says, they are asked about what it leads to.
    """
    real = store.projects.new_root(project, path)
    named = os.path.abspath(path)
    link = None if named == real else named
    if link is not None or not by_person:
        permissions.require(root_question(real, project.path, link))
    # What was approved, and not what the name leads to by now.
    added = store.projects.keep_root(project, real)
    store.audit.tell("", DECIDED, f"a root was added: {real}", project=project.id)
    return added


def remove_root(store: Store, project: Project, path: str) -> Project:
    """Take back that commands may write a directory; nobody needs to be asked for that."""
    left = store.projects.remove_root(project, path)
    store.audit.tell("", DECIDED, f"a root was removed: {os.path.realpath(path)}", project=project.id)
    return left


def offered(store: Store, project: Project) -> list[str]:
    """Return directories that commands may come to need: a work tree's git directory, and what links lead to.

    Links are looked for at the top of the project and in its directories, no deeper: to offer, and never to add.
    """
    found = [git_directory(project.path), *_linked(project.path)]
    return [path for path in dict.fromkeys(found) if path and _could_be_added(store, project, path)]


def _could_be_added(store: Store, project: Project, path: str) -> bool:
    try:
        store.projects.new_root(project, path)
    except BadRequest:
        return False
    return True


def _linked(top: str) -> list[str]:
    found: list[str] = []
    looked_at = 0
    waiting = [top]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as listing:
                for entry in listing:
                    looked_at += 1
                    if looked_at > _LOOKED_AT:
                        return sorted(found)
                    if entry.is_symlink() and entry.is_dir():
                        found.append(os.path.realpath(entry.path))
                    elif entry.is_dir(follow_symlinks=False) and os.path.dirname(entry.path) == top:
                        waiting.append(entry.path)
        except OSError:
            continue  # gone, or closed to us
    return sorted(found)
