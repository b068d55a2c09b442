"""Directories that a person gave the client beside the project: offered as roots, once, when a session first uses one.

That they gave it to the client is not enough: only their answer here makes it a root.
"""

from __future__ import annotations

import os

from fumehood.core.masks import is_in
from fumehood.core.questions import root_question
from fumehood.core.report import READ_ONLY, Blocked
from fumehood.core.request import quoted
from fumehood.errors import BadRequest
from fumehood.store.audit import DECIDED
from fumehood.store.places import make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.request import Request
    from fumehood.service.running import Wishes, Workplace

_MARK = "offered-"


def offer(hood: Workplace, request: Request, wishes: Wishes) -> Request:
    """Ask whether commands may write what this one uses of such directories; the request then has what stays read-only.

    Where nobody is there to ask, the command is told, as once as the person would be.
    """
    store, read_only = hood.store, []
    for path in request.beside:
        try:
            real = store.projects.new_root(hood.project, path)
        except BadRequest:
            continue  # it is one already, or can't be one
        if not _is_used(request, path, real) or not _is_first(store.places.session(request.session), real):
            continue
        question = root_question(real, hood.project.path, None if real == path else path)
        decision = hood.asking(wishes).decide(question, wishes.cancelled)
        store.audit.tell("", DECIDED, f"{decision.text}: {question.text}", project=hood.project.id)
        if decision.allowed:
            hood.project = store.projects.keep_root(hood.project, real)
        else:
            read_only.append(real)
    return request.replace(beside=tuple(read_only))


def told(directories: tuple[str, ...]) -> tuple[Blocked, ...]:
    """Say to a command what it can only read, and how it asks for more."""
    return tuple(
        Blocked(what=READ_ONLY, detail=each, hint=f"to ask the person for it: fumehood ask --write {quoted(each)}")
        for each in directories
    )


def _is_used(request: Request, path: str, real: str) -> bool:
    """Return True if the command starts there, or names it."""
    line = request.command if isinstance(request.command, str) else " ".join(request.command)
    return is_in(os.path.realpath(request.cwd or "/"), (real,)) or path in line or real in line


def _is_first(room: str, real: str) -> bool:
    """Return True once for each session and directory."""
    from hashlib import sha256

    make_private(room)
    try:
        name = sha256(os.fsencode(real)).hexdigest()[:32]
        os.close(os.open(f"{room}/{_MARK}{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True
