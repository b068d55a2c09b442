"""The directories that commands may write: roots added by a person, offered to them, or allowed for one run.

Only a person can add a root, and only the directory that they saw.
"""

from __future__ import annotations

import os

from fumehood.core.paths import is_in
from fumehood.core.questions import root_question
from fumehood.core.request import Request
from fumehood.errors import BadRequest
from fumehood.linux.cache import plain_file
from fumehood.linux.namespaces import possible_roots
from fumehood.store.audit import DECIDED
from fumehood.store.places import make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.service.hood import Caller, Hood
    from fumehood.service.permission import Permissions
    from fumehood.service.store import Store
    from fumehood.store.projects import Project


_MAX_LINE_BYTES = 4096
_MAX_ENTRIES = 2000  # of a project, among which links are looked for
_OFFERED = "offered-"  # begins the names of files in a session's directory: one for each directory that was offered


def add_root(
    store: Store, project: Project, path: str, permissions: Permissions, *, by_person: bool = False
) -> Project:
    """Let a project's commands write another directory, once a person has allowed it.

    If a person names the directory themselves (`by_person`), that allows it. But a command may have planted a symlink:
    if the path leads somewhere else than it says, they are asked about the real directory.
    """
    real = store.projects.check_new_root(project, path)
    absolute = os.path.abspath(path)
    link = None if absolute == real else absolute
    if link is not None or not by_person:
        permissions.require(root_question(real, project.path, link))
    # Record the path that was allowed: the link may lead elsewhere by now.
    added = store.projects.record_root(project, real)
    store.audit.add_event("", DECIDED, f"a root was added: {real}", project=project.id)
    return added


def remove_root(store: Store, project: Project, path: str) -> Project:
    """Let a project's commands no longer write a directory; nobody needs to be asked for that."""
    if os.path.realpath(path) == project.path:
        message = f"{project.path} is not a root of {project.path}, but the project itself"
        raise BadRequest(message, hint="fumehood roots list shows the others")
    without_root = store.projects.remove_root(project, path)
    store.audit.add_event("", DECIDED, f"a root was removed: {os.path.realpath(path)}", project=project.id)
    return without_root


# ---- Roots that a person is offered.

def possible_new_roots(store: Store, project: Project) -> list[str]:
    """Return directories that commands may need: a work tree's git directory, targets of links, and mounts.

    Links are looked for at the top of the project and in its directories, no deeper. These directories are offered to a
    person, never added.
    """
    possible = []
    candidates = [git_directory(project.path), *_linked_directories(project.path), *possible_roots(project.path)]
    for path in dict.fromkeys(candidates):
        try:
            if path:
                store.projects.check_new_root(project, path)
                possible.append(path)
        except BadRequest:
            continue
    return possible


def _linked_directories(top: str) -> list[str]:
    targets: list[str] = []
    entries = 0
    waiting = [top]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as listing:
                for entry in listing:
                    entries += 1
                    if entries > _MAX_ENTRIES:
                        return sorted(targets)
                    if entry.is_symlink() and entry.is_dir():
                        targets.append(os.path.realpath(entry.path))
                    elif entry.is_dir(follow_symlinks=False) and os.path.dirname(entry.path) == top:
                        waiting.append(entry.path)
        except OSError:
            continue  # it is gone, or we may not read it
    return sorted(targets)


def git_directory(project: str) -> str | None:
    """Return the repository that a project is a linked work tree of, or None, without running git.

    A command could have written the project's `.git` file. So it is believed only if the repository, which commands
    can't write, names this work tree too.
    """
    line = _line(f"{project}/.git")
    if line is None or not line.startswith("gitdir: "):
        return None
    work_tree = os.path.realpath(os.path.join(project, line[len("gitdir: ") :]))  # the repository's directory for it
    pointer = _line(f"{work_tree}/gitdir")
    common = _line(f"{work_tree}/commondir")
    if pointer is None or common is None or os.path.realpath(pointer) != os.path.realpath(f"{project}/.git"):
        return None
    repository = os.path.realpath(os.path.join(work_tree, common))
    is_repository = all(os.path.exists(f"{repository}/{part}") for part in ("HEAD", "objects", "refs"))
    return repository if is_repository and os.path.dirname(work_tree) == f"{repository}/worktrees" else None


def _line(path: str) -> str | None:
    """Return the one line of a small file, or None. In an ordinary repository, `.git` is a directory."""
    text = plain_file(path, most=_MAX_LINE_BYTES)
    return None if text is None else os.fsdecode(text).rstrip("\n")


def offer_client_directories(hood: Hood, request: Request, caller: Caller) -> Request:
    """Ask whether commands may write directories that the person gave the client beside the project.

    Giving one to the client does not make it a root; only the answer does. A person is asked once in each session, when
    a command uses the directory. The returned request has the directories that stay read-only. If nobody can be asked,
    the command's report says so, also once.
    """
    from hashlib import sha256

    store, read_only = hood.store, []
    for path in request.client_directories:
        try:
            real = store.projects.check_new_root(hood.project, path)
        except BadRequest:
            continue  # it is a root already, or can't be one
        line = request.command if isinstance(request.command, str) else " ".join(request.command)
        is_used = is_in(os.path.realpath(request.cwd or "/"), (real,)) or path in line or real in line
        if not is_used:
            continue
        session_directory = store.places.session(request.session)
        make_private(session_directory)
        mark = f"{session_directory}/{_OFFERED}{sha256(os.fsencode(real)).hexdigest()[:32]}"
        try:
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            continue
        question = root_question(real, hood.project.path, None if real == path else path)
        decision = hood.permissions_for(caller).decide(question, caller.cancelled)
        store.audit.add_event("", DECIDED, f"{decision.text}: {question.text}", project=hood.project.id)
        if decision.allowed:
            hood.project = store.projects.record_root(hood.project, real)
        else:
            read_only.append(real)
    return request.replace(client_directories=tuple(read_only))


# ---- Roots of one run.

def with_write_limit(hood: Hood, request: Request) -> tuple[Hood, Request]:
    """Return the hood and the request for a run whose caller limits what it may write (`request.write`).

    That may be nothing, directories in the roots, or other directories, which become roots of the returned hood's
    project. The request then has real paths. Nobody is asked yet.
    """
    assert request.write is not None
    project = hood.project
    directories = []
    for path in request.write:
        whole = os.path.normpath(os.path.join(project.path, path))
        real = os.path.realpath(whole)
        if not is_in(real, project.roots):
            real = hood.store.projects.check_new_root(project, whole)
            project = project.replace(extra=(*project.extra, real))
        elif not os.path.isdir(real):
            problem = "is not a directory" if os.path.lexists(real) else "does not exist"
            hint = "name a directory that is there"
            raise BadRequest(f"{path} can't be what a run may write: it {problem}", hint=hint)
        directories.append(real)
    extra_roots = project.extra[len(hood.project.extra) :]
    request = request.replace(write=tuple(dict.fromkeys(directories)), extra_roots=extra_roots)
    return hood.replace(project=project), request
