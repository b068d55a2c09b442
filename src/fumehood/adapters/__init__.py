"""Adapters: the sandbox interfaces of agent frameworks. Each is built on the Python API, and is an optional extra.

This module has what the adapters share: an agent's session on a project, the notes for a model, and files as a command
sees them.
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
from fumehood.core.wording import make_visible
from fumehood.linux.nofollow import remove_directory

_MAX_SHOWN = 20  # blocked things, and changes, in the notes
_DEFAULT_LIMIT = 64 << 20
_ERROR_NUMBERS = frozenset({errno.ENOENT, errno.EACCES, errno.EISDIR, errno.EFBIG})
# The exit status is the number of the error, because messages depend on the language. Only regular files are read:
# others may never end. The second script uses `true`, not `:`: with `:`, a shell that can't open the file ends at once
# with a status of its own.
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

    Takes a project's path, or a Sandbox with its own policy and `ask`.
    """

    def __init__(self, project: str | os.PathLike[str] | Sandbox, session: str | None) -> None:
        self._owns_sandbox = not isinstance(project, Sandbox)
        self._project_sandbox = project if isinstance(project, Sandbox) else Sandbox(project)
        self.sandbox = self._project_sandbox.session(session, own_tmp=True)

    @property
    def instructions(self) -> str:
        """The text that tells the model how to recognise Fumehood's own lines in an output."""
        return explain_mark(self.sandbox.mark)

    def close(self) -> None:
        """Close the sandbox, if it was made here."""
        if self._owns_sandbox:
            self._project_sandbox.close()


def full_output(sandbox: Sandbox, run: Run) -> tuple[str, str]:
    """Return both outputs in full; the run itself has only the beginning and the end of a long output."""
    if not run.output_truncated:
        return run.stdout, run.stderr
    return sandbox.output(run).decode("utf-8", "replace"), sandbox.output(run, "stderr").decode("utf-8", "replace")


def is_output_cut(run: Run) -> bool:
    """Return True if the command printed more than the limit allows to keep."""
    return any(is_limit(each, OUTPUT) for each in run.blocked)


def notes(run: Run) -> str:
    """Return lines about what was blocked and which changes were not applied, or "".

    Each line begins with the mark, because frameworks join streams in any way they like.
    """
    waiting = [change for change in run.changed if change.verdict != APPLIED]
    lines, left_out = summary_lines(waiting, _MAX_SHOWN)
    texts = [each.line for each in run.blocked[:_MAX_SHOWN]]
    texts += [line_text(line) for line in lines]
    texts += [f"and {count} more: {kind}" for kind, count in left_out.items()]
    if run.timed_out:
        texts.append("the time limit was reached and the command was ended")
    return "\n".join(f"{mark_line(run.mark)} {text}" for text in texts)


def for_agent(sandbox: Sandbox, run: Run) -> str:
    """Return the whole output of the command, and the notes after it."""
    return join_streams(make_visible(join_streams(*full_output(sandbox, run)), run.mark), notes(run))


def own_tools(sandbox: Sandbox) -> list[dict[str, Any]]:
    """Return the tools of the person's configuration (`[[tool]]`), each with name, description and input_schema."""
    return sandbox.tools("anthropic")[1:]


def call_tool(sandbox: Sandbox, name: str, /, **arguments: Any) -> str:
    """Run one of these tools with a model's arguments; returns the text for the model."""
    try:
        return sandbox.run_tool(name, arguments).for_model()
    except FumehoodError as error:
        return sandbox.refusal(error)


async def acall_tool(sandbox: Sandbox, name: str, /, **arguments: Any) -> str:
    """Do the same without blocking the event loop."""
    try:
        return (await sandbox.arun_tool(name, arguments)).for_model()
    except FumehoodError as error:
        return sandbox.refusal(error)


def read(sandbox: Sandbox, path: str, limit: int = _DEFAULT_LIMIT, *, cwd: str | None = None) -> bytes:
    """Return a file's content; raises FileNotFoundError, PermissionError, IsADirectoryError, or OSError over the limit.

    The file is read by a command in the sandbox, so nothing is returned that a command may not see.
    """
    run = sandbox.run(["sh", "-c", _READ, "sh", _safe_path(path), str(limit)], apply="discard", cwd=cwd)
    _raise_if_failed(run, path)
    data = sandbox.output(run)
    # Standard error may also have warnings of the loader.
    size = next(line for line in run.stderr.splitlines() if line.isdecimal())
    if len(data) != int(size):  # the policy's limit of an output is smaller than the caller's
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return data


def write(sandbox: Sandbox, path: str, data: bytes, *, cwd: str | None = None) -> Run:
    """Write a file and the directories it needs, as a run of its own: captured, judged and undoable."""
    run = sandbox.run(["sh", "-c", _WRITE, "sh", _safe_path(path)], stdin=data, cwd=cwd)
    _raise_if_failed(run, path)
    return run


def make_temporary_project(prefix: str) -> Path:
    """Make a temporary project; not in /tmp, because commands have a /tmp of their own."""
    parent = "/var/tmp" if os.access("/var/tmp", os.W_OK | os.X_OK) else None  # noqa: S108
    project = Path(tempfile.mkdtemp(prefix=prefix, dir=parent), "project")
    project.mkdir()
    return project


def remove_temporary_project(project: Path) -> None:
    """Remove a temporary project, whatever modes commands have set in it."""
    remove_directory(os.path.realpath(project.parent))


def _safe_path(path: str) -> str:
    if not path or "\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    # In sh, `[` would take a leading dash or parenthesis for an operator.
    return path if path.startswith("/") else f"./{path}"


def _raise_if_failed(run: Run, path: str) -> None:
    if run.exit_code in _ERROR_NUMBERS:
        raise OSError(run.exit_code, os.strerror(run.exit_code), path)
    if run.exit_code != 0:
        raise BadRequest(f"{path} can't be reached in the sandbox: {run.stderr.strip() or run.reason or run.state}")
