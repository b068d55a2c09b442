"""Run a command without a sandbox: watched by a small process that ends all it started when it ends.

It tells of itself as bubblewrap does, so whoever attends a sandbox can attend this.
"""

from __future__ import annotations

import os
import signal

from fumehood.linux import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

_STATUS_FD = 3
_HEARD = (signal.SIGCHLD, signal.SIGTERM)
_KILLED = 128 + signal.SIGKILL


def supervise(arguments: tuple[str, ...], environment: Mapping[str, str], cwd: str) -> NoReturn:
    """Be the watching process, freshly forked, with the standard three and the status descriptor open."""
    os.set_inheritable(_STATUS_FD, False)
    # Whatever its processes leave behind falls to us, so that we can end it.
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGTERM)
    os.chdir(cwd)
    os.write(_STATUS_FD, b'{ "bare": true }\n')
    command = os.fork()
    if command == 0:
        _become(arguments, environment)
    os.write(_STATUS_FD, f'{{ "child-pid": {command} }}\n'.encode())
    status = _waited(command)
    _end_all()
    os.write(_STATUS_FD, f'{{ "exit-code": {status} }}\n'.encode())
    os._exit(0)


def _become(arguments: tuple[str, ...], environment: Mapping[str, str]) -> NoReturn:
    try:
        # A session of its own: no terminal to type into, and one group to interrupt.
        os.setsid()
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        os.execve(arguments[0], arguments, environment)
    except OSError as error:
        os.write(2, f"{arguments[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
    finally:
        os._exit(127)


def _waited(command: int) -> int:
    """Wait until the command ends, or until we are asked to end it; return its status as a shell would."""
    while True:
        heard = signal.sigwait(_HEARD)
        if heard == signal.SIGTERM:
            return _KILLED
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return _KILLED  # can't be: the command itself was reaped before
            if ended == 0:
                break
            if ended == command:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code


def _end_all() -> None:
    """End every process that is left: each that dies leaves its own children to us, until there are none.

    What became another user can't be ended by us, and is left alone.
    """
    beyond_us: set[int] = set()
    while left := [child for child in _children() if child not in beyond_us]:
        for child in left:
            try:
                os.kill(child, signal.SIGKILL)
            except PermissionError:
                beyond_us.add(child)
            except ProcessLookupError:
                continue
        for child in left:
            if child not in beyond_us:
                os.waitpid(child, 0)


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", encoding="ascii") as listing:
            return [int(number) for number in listing.read().split()]
    except FileNotFoundError:  # a kernel without this list
        return [child for child in _processes() if _parent(child) == me]


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(process: int) -> int:
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0
