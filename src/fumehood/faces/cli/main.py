"""The command `fumehood`: find the subcommand, run it, turn errors into one line and an exit code."""

from __future__ import annotations

import gc
import os
import sys

from fumehood.errors import FumehoodError, plain_error
from fumehood.faces.cli.output import guarded, tell_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

_QUICK = ("run", "shell", "hook", "mcp")


def command() -> NoReturn:
    """Be the command: run it and end at once.

    Closing the database would write it all out and flush the disk, which costs more than the sandbox; what is
    committed is safe in its log. Nothing else is left to be tidied up.
    """
    code = main()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue  # nobody reads it, or it can't be written: that was told above
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_descriptors()
    _print_whatever_the_locale()
    try:
        code = _dispatch(given)
        # Here and not when Python ends, where a closed pipe becomes a message and another exit code.
        sys.stdout.flush()
    except FumehoodError as error:
        tell_error(error)
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our output has had enough; nothing more is to be said there.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("\nERROR: interrupted\n")
        return 130
    except Exception as error:  # noqa: BLE001 - whatever nobody foresaw is one line and our own exit code
        return _told(error)
    return code


def _told(error: Exception) -> int:
    if os.environ.get("FUMEHOOD_DEBUG"):
        import traceback

        traceback.print_exception(error)
    plain = plain_error(error)
    try:
        tell_error(plain)
    except OSError:
        return plain.exit_code  # there is no place left to say it
    return plain.exit_code


def _dispatch(given: list[str]) -> int:
    name = given[0] if given else ""
    if name == "--version":
        from fumehood import __version__

        sys.stdout.write(f"fumehood {__version__}\n")
        return 0
    loaded = _loaded(name)
    # Not before everything is imported: what is there now stays to the end, and is not looked through each time.
    gc.freeze()
    gc.enable()
    return loaded(given[1:] if name in _QUICK else given)


def _loaded(name: str) -> Callable[[list[str]], int]:
    """Import a command. Some run before everything an agent does: they load as little as they can."""
    if name == "run":
        from fumehood.faces.cli import run

        return run.main
    if name == "shell":
        from fumehood.faces.cli import run

        return run.shell
    if name == "hook":
        from fumehood.faces.cli import hook

        return hook.main
    if name == "mcp":
        from fumehood.faces.cli import serving

        return serving.main
    from fumehood.faces.cli import commands

    return commands.main


def _print_whatever_the_locale() -> None:
    """Write a character that the terminal's encoding lacks as an escape, and let no sequence act on a terminal."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)


def _open_standard_descriptors() -> None:
    """Open what the caller left closed: our own files would get those numbers, and a command's output."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    # Python found nothing to open there.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
