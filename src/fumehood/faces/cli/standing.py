"""Where a command of the command line stands, and how it says that something failed: for all of them."""

from __future__ import annotations

import os
import sys

from fumehood.errors import BadRequest, FumehoodError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.service.store import Store


def here() -> str:
    """The current directory."""
    try:
        return os.getcwd()
    except OSError as error:
        raise BadRequest(
            f"the current directory can't be used: {error.strerror}", hint="cd to a directory that exists"
        ) from error


def tell_notices(store: Store) -> None:
    """Say what a person should know once, on standard error."""
    from fumehood.core.report import printable

    for notice in store.notices:
        sys.stderr.write(f"fumehood: {printable(notice)}\n")
    store.notices.clear()


def tell_error(error: FumehoodError) -> None:
    """Say what failed and what to do next, on standard error."""
    from fumehood.core.report import printable

    lines = [f"ERROR: {printable(error.message)}"]
    if error.hint:
        lines.append(f"hint: {printable(error.hint)}")
    sys.stderr.write("\n".join(lines) + "\n")
