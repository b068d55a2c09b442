"""A command's three standard descriptors, and the ends of them that stay with us."""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from fumehood.linux.output import Stream
    from fumehood.linux.terminal import Terminal

    class Carrier(Protocol):
        """Whatever brings a command its input."""

        @property
        def waits_for(self) -> tuple[int, int]:
            """The descriptor to poll next, and for what; below zero is none."""
            ...

        def advance(self) -> bool:
            """Carry one piece; tell whether there may be more."""
            ...

        def close(self) -> None:
            """Let the command know that this was all."""
            ...

CLOSED, INHERITED, TYPED = "closed", "inherited", "typed"
_PIECE = 1 << 16
_MEMORY = 1  # the device number of /dev/null and its like, which hold nothing of anybody's


class Stdio:
    """What the command is given, what its output is read from, and what feeds it."""

    def __init__(self, given: tuple[int, int, int], outputs: dict[int, Stream], feed: Carrier | None = None) -> None:
        self.given = given
        self.outputs = outputs
        self.feed = feed

    def started(self) -> None:
        """Close what is the command's own now; else its output would never end."""
        for fd in dict.fromkeys(self.given):
            if fd:  # inherited from whoever started us
                os.close(fd)

    def abandon(self) -> None:
        """Close what is ours, since nothing was started."""
        for fd in self.outputs:
            os.close(fd)
        if self.feed is not None:
            self.feed.close()


def piped(wish: str | bytes, outputs: tuple[Stream, Stream]) -> Stdio:
    """Give the command a pipe for each output, and the input that is wished for."""
    stdin, feed = _input(wish)
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    return Stdio((stdin, out_end, err_end), {out: outputs[0], err: outputs[1]}, feed)


def on_terminal(terminal: Terminal, output: Stream) -> Stdio:
    """Give the command one terminal for all three."""
    slave = terminal.slave
    master = os.dup(terminal.master)
    return Stdio((slave, slave, slave), {master: output}, Feed(os.dup(terminal.master), source=0))


def _input(wish: str | bytes) -> tuple[int, Carrier | None]:
    if wish == INHERITED:
        found = os.fstat(0)
        if found.st_mode & 0o170000 == 0o020000 and os.major(found.st_rdev) == _MEMORY:
            return 0, None
        from fumehood.linux.lent import lent

        return lent(0)
    if wish == CLOSED:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), None
    reading, writing = os.pipe()
    if wish == TYPED:
        return reading, Feed(writing, source=0)
    return reading, Feed(writing, wish if isinstance(wish, bytes) else wish.encode(errors="surrogateescape"))


class Feed:
    """Carries input to a command: what is there already, and what comes from a descriptor."""

    def __init__(self, sink: int, data: bytes = b"", *, source: int = -1) -> None:
        os.set_blocking(sink, False)
        self._sink = sink
        self._data = data
        self._source = source

    @property
    def waits_for(self) -> tuple[int, int]:
        """The descriptor to poll next, and for what."""
        if self._data or self._source < 0:
            return self._sink, select.POLLOUT | select.POLLERR
        return self._source, select.POLLIN

    def advance(self) -> bool:
        """Carry one piece; tell whether there may be more."""
        if not self._data and self._source >= 0:
            self._data = self._typed()
        if self._data:
            try:
                self._data = self._data[os.write(self._sink, self._data[:_PIECE]) :]
            except BlockingIOError:
                return True
            except OSError:  # the command does not want it, or its terminal is gone
                return False
        return bool(self._data) or self._source >= 0

    def close(self) -> None:
        """Let the command know that this was all."""
        os.close(self._sink)

    def _typed(self) -> bytes:
        if os.isatty(self._source) and os.tcgetpgrp(self._source) != os.getpgrp():
            self._source = -1  # in the background, what is typed is for somebody else
            return b""
        try:
            data = os.read(self._source, _PIECE)
        except OSError:
            data = b""  # the terminal is gone
        if not data:
            self._source = -1
        return data
