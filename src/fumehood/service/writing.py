"""What one run may write, where its caller limits it: nothing, some directories of the roots, another one for once."""

from __future__ import annotations

import os
from copy import copy

from fumehood.core.masks import is_in
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from fumehood.core.request import Request
    from fumehood.service.running import Workplace

    Place = TypeVar("Place", bound=Workplace)


def limited(hood: Place, request: Request) -> tuple[Place, Request]:
    """Return a hood whose project has what a request may write besides as roots, and the request with real paths.

    Nobody is asked yet.
    """
    assert request.write is not None
    project = hood.project
    directories = []
    for path in request.write:
        whole = os.path.normpath(os.path.join(project.path, path))
        real = os.path.realpath(whole)
        if not is_in(real, project.roots):
            real = hood.store.projects.new_root(project, whole)
            project = project.replace(extra=(*project.extra, real))
        elif not os.path.isdir(real):
            there = "is not a directory" if os.path.lexists(real) else "does not exist"
            raise BadRequest(
                f"{path} can't be what a run may write: it {there}", hint="name a directory that is there"
            )
        directories.append(real)
    own = copy(hood)
    own.project = project
    besides = project.extra[len(hood.project.extra) :]
    return own, request.replace(write=tuple(dict.fromkeys(directories)), besides=besides)
