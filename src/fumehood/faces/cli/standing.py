"""What every command of the command line shares: where it stands, how it reads a word, how it says what failed."""

from __future__ import annotations

import os
import sys

from fumehood.errors import BadRequest, FumehoodError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fumehood.service.store import Store


def here() -> str:
    """The current directory."""
    try:
        return os.getcwd()
    except OSError as error:
        raise BadRequest(
            f"the current directory can't be used: {error.strerror}", hint="cd to a directory that exists"
        ) from error


def meant(word: str, words: Iterable[str]) -> str:
    """Ask whether the nearest of these words was meant; "" where none is near."""
    import difflib

    near = difflib.get_close_matches(word, words, 1)
    return f"did you mean {near[0]}?" if near else ""


def whole_number(least: int = 0, most: int = 1 << 62) -> Callable[[str], int]:
    """Return what reads a whole number for a parser."""

    def read(text: str) -> int:
        from argparse import ArgumentTypeError

        try:
            number = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= number <= most:
            limits = f"{least} or more" if most == 1 << 62 else f"between {least} and {most}"
            raise ArgumentTypeError(f"it must be {limits}, not {number}")
        return number

    return read


def tell_notices(store: Store) -> None:
    """Say what a person should know once, on standard error."""
    from fumehood.core.report import printable

    for notice in store.notices:
        sys.stderr.write(f"fumehood: {printable(notice)}\n")
    store.notices.clear()


def tell_error(error: FumehoodError) -> None:
    """Say what failed and what to do next, on standard error."""
    from fumehood.core.report import printable

    lines = [f"ERROR: {printable(error.message)}"]
    if error.hint:
        lines.append(f"hint: {printable(error.hint)}")
    sys.stderr.write("\n".join(lines) + "\n")
