"""What every command of the command line shares: reading a word, saying what failed, colours, and where output goes.

A pipe or file gets every byte of a command's output, a terminal only what shows text (screen.py), a model nothing
that is invisible.
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

    from fumehood.core.wording import Visible
    from fumehood.faces.cli.screen import Filter
    from fumehood.service.store import Store

WIDEST = 60  # columns of a command where no terminal says how wide it may be
_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}


def here() -> str:
    """The current directory."""
    try:
        return os.getcwd()
    except OSError as error:
        raise BadRequest(
            f"the current directory can't be used: {error.strerror}", hint="cd to a directory that exists"
        ) from error


def text_of(name: str) -> str:
    """Return a text that is printed or written as it stands: a help, a script."""
    with open(f"{os.path.dirname(__file__)}/texts/{name}", encoding="utf-8") as file:
        return file.read()


def meant(word: str, words: Iterable[str]) -> str:
    """Ask whether the nearest of these words was meant; "" where none is near."""
    import difflib

    # Without the dashes, which would make every option a little like every other.
    by_letters = {each.lstrip("-"): each for each in words}
    near = difflib.get_close_matches(word.lstrip("-"), by_letters, 1)
    return f"did you mean {by_letters[near[0]]}?" if near else ""


def whole_number(least: int = 0, most: int = 1 << 62) -> Callable[[str], int]:
    """Return what reads a whole number for a parser."""

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


def time_limit(text: str) -> float:
    """Return the seconds that a text says; 0 where it is not a time limit."""
    try:
        limit = float(text)
    except ValueError:
        return 0.0
    return limit if 0 < limit < 1e9 else 0.0


def seconds(text: str) -> float:
    """Read a time limit for a parser."""
    from argparse import ArgumentTypeError

    limit = time_limit(text)
    if not limit:
        raise ArgumentTypeError(f"{text!r} is not a time limit: seconds, more than 0 and less than 1e9")
    return limit


def tell_notices(store: Store) -> None:
    """Say what a person should know once, on standard error."""
    for notice in store.notices:
        sys.stderr.write(f"fumehood: {printable(notice)}\n")
    store.notices.clear()


def tell_error(error: FumehoodError) -> None:
    """Say what failed and what to do next, on standard error."""
    hint = f"hint: {printable(error.hint)}\n" if error.hint else ""
    sys.stderr.write(f"ERROR: {printable(error.message)}\n{hint}")


def confirmed(question: str, *, by_default: bool = False) -> bool:
    """Ask the person at the terminal; nothing but a yes is one, or an empty line where that is the default."""
    sys.stderr.write(question)
    sys.stderr.flush()
    line = sys.stdin.readline()  # "" where the input has ended
    return line.strip().lower() in ("y", "yes") or (by_default and line.isspace())


def width() -> int:
    """Return how many columns a line on standard output may have; 0 where it goes to no terminal."""
    try:
        return os.get_terminal_size(1).columns
    except OSError:
        return 0


class Paint:
    """Colours text for standard output, or another descriptor, or leaves it alone."""

    def __init__(self, fd: int = 1) -> None:
        self.on = os.isatty(fd) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, text: str, colour: str) -> str:
        """Return the text in a colour, where there is colour."""
        return f"\033[{_CODES[colour]}m{text}\033[0m" if self.on else text


def sink_to(fd: int, *, screen: bool = False) -> DescriptorSink:
    """Return what takes a command's output to one of our own descriptors; an empty piece is the end.

    A terminal gets what shows text, and no colour is left behind. `screen` lets a program draw on the whole of it.
    """
    if not os.isatty(fd):
        return DescriptorSink(fd)
    # Here, because it takes a while to load, and a command that an agent runs has no terminal.
    from fumehood.faces.cli.screen import Filter

    return DescriptorSink(fd, Filter(screen=screen))


def sink_to_model(fd: int, mark: str) -> DescriptorSink:
    """Return a sink for an agent, whose model reads it: nothing invisible passes, and not the mark of our own words."""
    from fumehood.core.wording import Visible

    return DescriptorSink(fd, Visible(mark))


class DescriptorSink:
    """A sink that writes to a descriptor what a filter lets through, if it has one."""

    def __init__(self, fd: int, filter_: Visible | Filter | None = None) -> None:
        self._fd = fd
        self._filter = filter_
        self.is_in_line = False  # what came last through the filter did not end its line

    def __call__(self, data: bytes) -> None:
        """Take in a piece of output, or the end."""
        if self._filter is not None:
            data = self._filter.feed(data) if data else self._filter.close()
            self.is_in_line = not data.endswith(b"\n") if data else self.is_in_line
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                # Somebody who shares our terminal, or our pipe, made it so.
                select.select([], [self._fd], [])
            except OSError as error:
                if error.errno == errno.EIO:  # the terminal is gone
                    raise BrokenPipeError(*error.args) from error
                if isinstance(error, BrokenPipeError):
                    raise
                raise FumehoodError(
                    f"what the command prints can't be passed on: {error.strerror}",
                    hint="check that the place it goes to can be written",
                ) from error


class _Stream:
    """A stream of text that stands before another one, and is like it in all but what is written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class GuardedText(_Stream):
    """Our own words on their way to a terminal: whatever name was put into them, no sequence in it takes effect.

    Names are made printable where they are put in; this is for the one place that forgets it.
    """

    def write(self, text: str) -> int:
        """Write a text, its line ends and colours included."""
        if not text.replace("\n", "").isprintable():
            from fumehood.faces.cli.screen import Filter

            text = Filter().feed(text.encode("utf-8", "backslashreplace")).decode()
        self._stream.write(text)
        return len(text)


class ModelText(_Stream):
    """What an agent asked for about its runs, on its way to the model: text and bytes."""

    def __init__(self, stream: Any, mark: str) -> None:
        super().__init__(stream)
        self._sink = sink_to_model(stream.fileno(), mark)
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


def guarded(stream: Any) -> Any:
    """Return a stream that is safe to write names to."""
    return GuardedText(stream) if stream.isatty() else stream

