"""`fumehood shell`: an interactive shell in the hood, captured as one run."""

from __future__ import annotations

import os
import sys

from fumehood.core.request import quoted
from fumehood.errors import BadRequest
from fumehood.faces.cli import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

HELP = """usage: fumehood shell [OPTIONS]

Open a shell in the hood, on a terminal of its own. What you write in it, and what its commands write, is captured as
one run. It is judged and applied when you leave the shell (exit, or Ctrl-D), and can be undone.

The options are those of `fumehood run`, except --json. There is no time limit.

examples:
  fumehood shell
  fumehood shell --hold
  fumehood shell --root alpine --discard
"""
_NO_TIME_LIMIT = "300000000"


def main(arguments: Sequence[str]) -> int:
    """Open a shell; returns its exit code."""
    options = run.parse(arguments)
    if options is None:
        sys.stdout.write(HELP)
        return 0
    if options.command:
        raise BadRequest("shell takes no command", hint="fumehood run --tty -- COMMAND")
    given = [word for word in arguments if word != "--"]
    limit = [] if "--timeout" in options.values else ["--timeout", _NO_TIME_LIMIT]
    if "--quiet" not in options.flags:
        sys.stderr.write("fumehood: this shell is in the hood; what it writes is judged when you leave it\n")
        sys.stderr.flush()
    return run.main(["--tty", *limit, *given, "--", _line()], title="fumehood shell")


def _line() -> str:
    """Start the person's own shell, or where the command's system lacks it, any."""
    own = quoted(os.environ.get("SHELL") or "sh")
    return f"command -v {own} >/dev/null && exec {own} -i; exec sh -i"
