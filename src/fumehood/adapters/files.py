"""Files as a command reads and writes them, with the errors that Python programs expect."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from fumehood import BadRequest, Run, Sandbox

_DEFAULT_LIMIT = 64 << 20

# The exit status is the error's number, so that it does not depend on the language of a message.
_READ = """
[ -d "$1" ] && exit 21
[ -e "$1" ] || exit 2
[ -r "$1" ] || exit 13
size=$(wc -c <"$1") || exit 5
[ "$size" -le "$2" ] || exit 27
echo "$size" >&2
exec cat -- "$1"
"""
_WRITE = """
[ -d "$1" ] && exit 21
case $1 in */*) mkdir -p -- "${1%/*}/" || exit 13 ;; esac
[ -e "$1" ] && [ ! -w "$1" ] && exit 13
: >>"$1" || exit 13
exec cat >"$1"
"""
_KNOWN = frozenset({errno.ENOENT, errno.EACCES, errno.EISDIR, errno.EFBIG})


def read(sandbox: Sandbox, path: str, limit: int = _DEFAULT_LIMIT, *, cwd: str | None = None) -> bytes:
    """Return a file's content; raises FileNotFoundError, PermissionError, IsADirectoryError, or OSError over the limit.

    Nothing is read around the sandbox: what a command may not see, this does not return.
    """
    run = sandbox.run(["sh", "-c", _READ, "sh", _named(path), str(limit)], apply="discard", cwd=cwd)
    _check(run, path)
    data = sandbox.output(run)
    if len(data) != int(run.stderr):  # the policy keeps less of an output than the caller would take
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return data


def write(sandbox: Sandbox, path: str, data: bytes, *, cwd: str | None = None) -> Run:
    """Write a file and the directories it needs, as a run of its own: captured, judged and undoable."""
    run = sandbox.run(["sh", "-c", _WRITE, "sh", _named(path)], stdin=data, cwd=cwd)
    _check(run, path)
    return run


def fresh_project(prefix: str) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """Make a project that is thrown away: not in /tmp, which commands see as their own."""
    place = "/var/tmp" if os.access("/var/tmp", os.W_OK | os.X_OK) else None  # noqa: S108
    folder = tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)
    project = Path(folder.name, "project")
    project.mkdir()
    return folder, project


def _named(path: str) -> str:
    if not path or "\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    # A test in sh would take a leading dash or parenthesis for its own.
    return path if path.startswith("/") else f"./{path}"


def _check(run: Run, path: str) -> None:
    if run.exit_code in _KNOWN:
        raise OSError(run.exit_code, os.strerror(run.exit_code), path)
    if run.exit_code != 0:
        raise BadRequest(f"{path} can't be reached in the sandbox: {run.stderr.strip() or run.reason or run.state}")
