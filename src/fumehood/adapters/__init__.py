"""Other people's interfaces to an agent's place of work, each over the Python face and each an optional extra.

Here is what they share: an agent's own session on a project, what a model is told, files as a command sees them.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

from fumehood import BadRequest, FumehoodError, Run, Sandbox
from fumehood.core.changes import APPLIED
from fumehood.core.report import OUTPUT, explain_mark, is_limit, join_streams, line_text, mark_line, summary_lines
from fumehood.core.wording import visible
from fumehood.linux.nofollow import remove_directory

_SHOWN = 20  # blocked things and changes in the notes
_DEFAULT_LIMIT = 64 << 20
_ERRORS = frozenset({errno.ENOENT, errno.EACCES, errno.EISDIR, errno.EFBIG})
# The exit status is the error's number, so that it does not depend on the language of a message. What is no file may
# have no end. `true` and not `:`, with which a shell that can't open the file ends at once, with a status of its own.
_READ = """
[ -d "$1" ] && exit 21
[ -e "$1" ] || exit 2
[ -f "$1" ] && [ -r "$1" ] || exit 13
size=$(wc -c <"$1") || exit 5
[ "$size" -le "$2" ] || exit 27
echo "$size" >&2
exec cat -- "$1"
"""
_WRITE = """
[ -d "$1" ] && exit 21
case $1 in */*) mkdir -p -- "${1%/*}/" || exit 13 ;; esac
[ ! -e "$1" ] || { [ -f "$1" ] && [ -w "$1" ]; } || exit 13
true >>"$1" || exit 13
exec cat >"$1"
"""

class AgentSession:
    """A session on a project, with a /tmp of its own.

    Takes a project's path, or a Sandbox with the policy and the `ask` that shall hold.
    """

    def __init__(self, project: str | os.PathLike[str] | Sandbox, session: str | None) -> None:
        self._is_own = not isinstance(project, Sandbox)
        self._whole = project if isinstance(project, Sandbox) else Sandbox(project)
        self.sandbox = self._whole.session(session, own_tmp=True)

    @property
    def instructions(self) -> str:
        """What to tell the model, so that it knows Fumehood's words from a command's."""
        return explain_mark(self.sandbox.mark)

    def close(self) -> None:
        """Close the records, if the sandbox was made here."""
        if self._is_own:
            self._whole.close()


def printed(sandbox: Sandbox, run: Run) -> tuple[str, str]:
    """Return both outputs in full: a run itself holds only the head and the tail of a long one."""
    if not run.output_truncated:
        return run.stdout, run.stderr
    return sandbox.output(run).decode("utf-8", "replace"), sandbox.output(run, "stderr").decode("utf-8", "replace")


def is_cut(run: Run) -> bool:
    """Return True if the command printed more than the limit lets anyone keep."""
    return any(is_limit(each, OUTPUT) for each in run.blocked)


def notes(run: Run) -> str:
    """Write what was blocked and what did not reach the project, or nothing if all went through.

    Each line has the mark, because frameworks put streams together as they like.
    """
    waiting = [change for change in run.changed if change.verdict != APPLIED]
    lines, left_out = summary_lines(waiting, _SHOWN)
    said = [each.line for each in run.blocked[:_SHOWN]]
    said += [line_text(line) for line in lines]
    said += [f"and {count} more: {kind}" for kind, count in left_out.items()]
    if run.timed_out:
        said.append("the time limit was reached and the command was ended")
    return "\n".join(f"{mark_line(run.mark)} {line}" for line in said)


def for_agent(sandbox: Sandbox, run: Run) -> str:
    """Return all that the command printed, and the notes after it."""
    return join_streams(visible(join_streams(*printed(sandbox, run)), run.mark), notes(run))


def own_tools(sandbox: Sandbox) -> list[dict[str, Any]]:
    """Return the tools of the person's configuration (`[[tool]]`), each with name, description and input_schema."""
    return sandbox.tools("anthropic")[1:]


def called(sandbox: Sandbox, name: str, /, **arguments: Any) -> str:
    """Run what a model asks of one of these tools; returns what the model is told."""
    try:
        return sandbox.run_tool(name, arguments).for_model()
    except FumehoodError as error:
        return sandbox.refusal(error)


async def acalled(sandbox: Sandbox, name: str, /, **arguments: Any) -> str:
    """Do the same without blocking the event loop."""
    try:
        return (await sandbox.arun_tool(name, arguments)).for_model()
    except FumehoodError as error:
        return sandbox.refusal(error)


def read(sandbox: Sandbox, path: str, limit: int = _DEFAULT_LIMIT, *, cwd: str | None = None) -> bytes:
    """Return a file's content; raises FileNotFoundError, PermissionError, IsADirectoryError, or OSError over the limit.

    Nothing is read around the sandbox: what a command may not see, this does not return.
    """
    run = sandbox.run(["sh", "-c", _READ, "sh", _named(path), str(limit)], apply="discard", cwd=cwd)
    _check(run, path)
    data = sandbox.output(run)
    size = next(line for line in run.stderr.splitlines() if line.isdecimal())  # among what a loader may complain of
    if len(data) != int(size):  # the policy keeps less of an output than the caller would take
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return data


def write(sandbox: Sandbox, path: str, data: bytes, *, cwd: str | None = None) -> Run:
    """Write a file and the directories it needs, as a run of its own: captured, judged and undoable."""
    run = sandbox.run(["sh", "-c", _WRITE, "sh", _named(path)], stdin=data, cwd=cwd)
    _check(run, path)
    return run


def fresh_project(prefix: str) -> Path:
    """Make a project that is there until it is thrown away: not in /tmp, which commands see as their own."""
    place = "/var/tmp" if os.access("/var/tmp", os.W_OK | os.X_OK) else None  # noqa: S108
    project = Path(tempfile.mkdtemp(prefix=prefix, dir=place), "project")
    project.mkdir()
    return project


def throw_away(project: Path) -> None:
    """Remove such a project, whatever modes commands left in it."""
    remove_directory(os.path.realpath(project.parent))


def _named(path: str) -> str:
    if not path or "\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    # A test in sh would take a leading dash or parenthesis for its own.
    return path if path.startswith("/") else f"./{path}"


def _check(run: Run, path: str) -> None:
    if run.exit_code in _ERRORS:
        raise OSError(run.exit_code, os.strerror(run.exit_code), path)
    if run.exit_code != 0:
        raise BadRequest(f"{path} can't be reached in the sandbox: {run.stderr.strip() or run.reason or run.state}")
