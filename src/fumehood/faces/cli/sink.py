"""Where a command's output goes: a pipe or file gets every byte, a terminal only what shows text."""

from __future__ import annotations

import errno
import os
import select

from fumehood.errors import FumehoodError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fumehood.linux.output import Sink


def sink_to(fd: int, *, screen: bool = False) -> Sink:
    """Return what takes a command's output to one of our own descriptors; an empty piece is the end.

    `screen` lets a program draw on the whole terminal.
    """
    return _ToTerminal(fd, screen=screen) if os.isatty(fd) else _To(fd)


class _To:
    """A sink that writes to a descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __call__(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.fd, data) :]
            except BlockingIOError:
                # Somebody who shares our terminal, or our pipe, made it so.
                select.select([], [self.fd], [])
            except OSError as error:
                if error.errno == errno.EIO:  # the terminal is gone
                    raise BrokenPipeError(*error.args) from error
                if isinstance(error, BrokenPipeError):
                    raise
                raise FumehoodError(
                    f"what the command prints can't be passed on: {error.strerror}",
                    hint="check that the place it goes to can be written",
                ) from error


class ToModel(_To):
    """A sink for an agent, whose model reads it: nothing invisible passes, and not the mark of our own words."""

    def __init__(self, fd: int, mark: str) -> None:
        super().__init__(fd)
        from fumehood.core.visible import Visible

        self._visible = Visible(mark)
        self.is_in_line = False  # what came last did not end its line

    def __call__(self, data: bytes) -> None:
        """Take in a piece of output, or the end."""
        shown = self._visible.feed(data) if data else self._visible.close()
        if shown:
            self.is_in_line = not shown.endswith(b"\n")
        super().__call__(shown)


class _ToTerminal(_To):
    """A sink that lets through what shows text, and leaves no colour behind."""

    def __init__(self, fd: int, *, screen: bool = False) -> None:
        super().__init__(fd)
        # Here, because it takes a while to load, and a command that an agent runs has no terminal.
        from fumehood.core.escapes import Filter

        self._filter = Filter(screen=screen)

    def __call__(self, data: bytes) -> None:
        super().__call__(self._filter.feed(data) if data else self._filter.close())


class GuardedText:
    """Our own words on their way to a terminal: whatever name was put into them, no sequence in it takes effect.

    Names are made printable where they are put in; this is for the one place that forgets it.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, its line ends and colours included."""
        if not text.replace("\n", "").isprintable():
            from fumehood.core.escapes import Filter

            text = Filter().feed(text.encode("utf-8", "backslashreplace")).decode()
        self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class ModelText:
    """What an agent asked for about its runs, on its way to the model: as `ToModel`, for text and for bytes."""

    def __init__(self, stream: Any, mark: str) -> None:
        self._stream = stream
        self._sink = ToModel(stream.fileno(), mark)
        self.buffer = self

    def write(self, text: str | bytes) -> int:
        """Write a text, or what a run printed."""
        data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        if data:
            self._sink(data)
        return len(text)

    def close(self) -> None:
        """Write what was kept back for what might have followed."""
        self._sink(b"")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guarded(stream: Any) -> Any:
    """Return a stream that is safe to write names to."""
    return GuardedText(stream) if stream.isatty() else stream
