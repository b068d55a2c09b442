"""Standard input that can be given again: to a command that runs a second time, from the start.

A file is read again from where it was; what comes by a pipe is kept while it is passed on.
"""

from __future__ import annotations

import os
import select
import stat
import threading

from fumehood.errors import BadRequest

_PIECE = 1 << 16
MOST = 16 << 20


class Input:
    """This process's standard input, for one try after another."""

    def __init__(self) -> None:
        kind = os.fstat(0).st_mode
        self._offset = os.lseek(0, 0, os.SEEK_CUR) if stat.S_ISREG(kind) else -1
        self._is_kept = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
        self._kept = bytearray()
        self._is_lost = self._has_ended = False
        self._thread: threading.Thread | None = None
        self._wake = self._waking = self._writing = -1

    def offer(self) -> int:
        """Return a descriptor for the next try, which it reads from the beginning; 0 is the real one."""
        if self._is_lost:
            raise BadRequest(
                f"its input has more than {MOST >> 20} MiB, so the command can't run again with the network it needs",
                hint="name its hosts at once: fumehood run --allow-host HOST -- …",
            )
        if self._offset >= 0:
            os.lseek(0, self._offset, os.SEEK_SET)
        if not self._is_kept:
            return 0
        reading, self._writing = os.pipe()
        self._wake, self._waking = os.pipe()
        return reading

    def start(self) -> None:
        """Pass it on, once the command is there."""
        if self._is_kept:
            self._thread = threading.Thread(target=self._pass_on, name="fumehood-input", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """The command has ended: what it did not read is for the next try."""
        if self._waking < 0:
            return
        if self._thread is not None:
            os.write(self._waking, b"x")
            self._thread.join()
            self._thread = None
        else:
            os.close(self._writing)
        for fd in (self._wake, self._waking):
            os.close(fd)
        self._wake = self._waking = -1

    def _pass_on(self) -> None:
        try:
            self._give(bytes(self._kept))
            while not self._has_ended and self._comes():
                data = os.read(0, _PIECE)
                self._has_ended = not data
                self._keep(data)
                self._give(data)
        except BrokenPipeError:
            return  # nobody reads it
        finally:
            os.close(self._writing)

    def _comes(self) -> bool:
        """Wait for more; tell whether there is any, and not the end of the command."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        return self._wake not in {fd for fd, _ in poll.poll()}

    def _keep(self, data: bytes) -> None:
        if len(self._kept) + len(data) > MOST:
            self._is_lost = True
        else:
            self._kept += data

    def _give(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._writing, data) :]
