"""What all commands of the command line share: reading arguments, printing errors, colours, and output sinks.

A pipe or file gets every byte of a command's output. A terminal gets only text and harmless sequences (screen.py). A
model gets nothing that is invisible.
"""

from __future__ import annotations

import errno
import os
import select
import sys

from fumehood.core.report import printable
from fumehood.errors import BadRequest, FumehoodError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from fumehood.core.wording import VisibleStream
    from fumehood.faces.cli.screen import Filter
    from fumehood.service.store import Store

COMMAND_WIDTH = 60  # columns for a command's line if the output is not a terminal
_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}


def working_dir() -> str:
    """Return the current directory, or raise BadRequest if it is gone."""
    try:
        return os.getcwd()
    except OSError as error:
        raise BadRequest(
            f"the current directory can't be used: {error.strerror}", hint="cd to a directory that exists"
        ) from error


def load_text(name: str) -> str:
    """Return the content of a file in texts/: a help text or a script."""
    with open(f"{os.path.dirname(__file__)}/texts/{name}", encoding="utf-8") as file:
        return file.read()


def suggest(word: str, candidates: Iterable[str]) -> str:
    """Return "did you mean …?" with the most similar candidate, or "" if none is similar."""
    import difflib

    # Compared without the dashes, which would make all options a little similar.
    by_letters = {candidate.lstrip("-"): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.lstrip("-"), by_letters, 1)
    return f"did you mean {by_letters[matches[0]]}?" if matches else ""


def whole_number(least: int = 0, most: int = 1 << 62) -> Callable[[str], int]:
    """Return a function that argparse calls to read a whole number (`type=`)."""

    def read(text: str) -> int:
        from argparse import ArgumentTypeError

        try:
            number = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= number <= most:
            limits = f"{least} or more" if number < least and most == 1 << 62 else f"between {least} and {most}"
            raise ArgumentTypeError(f"it must be {limits}, not {number}")
        return number

    return read


def parse_time_limit(text: str) -> float:
    """Read a time limit in seconds; returns 0 if the text is not one."""
    try:
        limit = float(text)
    except ValueError:
        return 0.0
    return limit if 0 < limit < 1e9 else 0.0


def time_limit_argument(text: str) -> float:
    """Read a time limit for argparse (`type=`)."""
    from argparse import ArgumentTypeError

    limit = parse_time_limit(text)
    if not limit:
        raise ArgumentTypeError(f"{text!r} is not a time limit: seconds, more than 0 and less than 1e9")
    return limit


def print_notices(store: Store) -> None:
    """Print the store's notices on standard error, once."""
    for notice in store.notices:
        sys.stderr.write(f"fumehood: {printable(notice)}\n")
    store.notices.clear()


def print_error(error: FumehoodError) -> None:
    """Print what failed and what to do next, on standard error."""
    hint = f"hint: {printable(error.hint)}\n" if error.hint else ""
    sys.stderr.write(f"ERROR: {printable(error.message)}\n{hint}")


def terminal_width() -> int:
    """Return the number of columns of standard output, 0 if it is not a terminal."""
    try:
        return os.get_terminal_size(1).columns
    except OSError:
        return 0


class Paint:
    """Adds colour to text for a descriptor, if that is a terminal that shows colours."""

    def __init__(self, fd: int = 1) -> None:
        self.on = os.isatty(fd) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, text: str, colour: str) -> str:
        """Return the text in a colour, or unchanged if colours are off."""
        return f"\033[{_CODES[colour]}m{text}\033[0m" if self.on else text


def sink_to(fd: int, *, screen: bool = False) -> DescriptorSink:
    """Return a sink for a command's output that writes to one of our own descriptors; an empty piece means the end.

    A terminal gets only what is harmless, and its colours are reset at the end. `screen` lets the command draw on the
    whole screen.
    """
    if not os.isatty(fd):
        return DescriptorSink(fd)
    # Imported here because it takes a while, and a command that an agent runs has no terminal.
    from fumehood.faces.cli.screen import Filter

    return DescriptorSink(fd, Filter(screen=screen))


def sink_to_model(fd: int, mark: str) -> DescriptorSink:
    """Return a sink whose output a model reads: invisible characters, and the mark of our own lines, are removed."""
    from fumehood.core.wording import VisibleStream

    return DescriptorSink(fd, VisibleStream(mark))


class DescriptorSink:
    """A sink that writes to a descriptor, through a filter if it has one."""

    def __init__(self, fd: int, filter_: VisibleStream | Filter | None = None) -> None:
        self._fd = fd
        self._filter = filter_
        self.is_in_line = False  # the last filtered output did not end with a line feed

    def __call__(self, data: bytes) -> None:
        """Write a piece of output; an empty one means the end."""
        if self._filter is not None:
            data = self._filter.feed(data) if data else self._filter.close()
            self.is_in_line = not data.endswith(b"\n") if data else self.is_in_line
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                # Another process that shares our terminal or pipe made it non-blocking.
                select.select([], [self._fd], [])
            except OSError as error:
                if error.errno == errno.EIO:  # the terminal is gone
                    raise BrokenPipeError(*error.args) from error
                if isinstance(error, BrokenPipeError):
                    raise
                raise FumehoodError(
                    f"the command's output can't be passed on: {error.strerror}",
                    hint="check that standard output and standard error can be written",
                ) from error


class _StreamWrapper:
    """A text stream in front of another one; all but writing is passed on to that."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class TerminalSafeText(_StreamWrapper):
    """Our own messages to a terminal, without escape sequences other than colours.

    Names in messages are made printable where they are put in. This is a second guard, for a place that forgets it.
    """

    def write(self, text: str) -> int:
        """Write a text, with its line ends and colours."""
        if not text.replace("\n", "").isprintable():
            from fumehood.faces.cli.screen import Filter

            text = Filter().feed(text.encode("utf-8", "backslashreplace")).decode()
        self._stream.write(text)
        return len(text)


class ModelText(_StreamWrapper):
    """Standard output of a command that an agent asked for: its model reads the text and bytes written here."""

    def __init__(self, stream: Any, mark: str) -> None:
        super().__init__(stream)
        self._sink = sink_to_model(stream.fileno(), mark)
        self.buffer = self

    def write(self, text: str | bytes) -> int:
        """Write our own text, or bytes that a run printed."""
        data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        if data:
            self._sink(data)
        return len(text)

    def close(self) -> None:
        """Write the characters that the filter still keeps back."""
        self._sink(b"")


def make_terminal_safe(stream: Any) -> Any:
    """Return a stream that is safe to write names to: if it is a terminal, escape sequences are removed."""
    return TerminalSafeText(stream) if stream.isatty() else stream

