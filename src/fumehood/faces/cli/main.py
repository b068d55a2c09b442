"""The command `fumehood`: find the subcommand, run it, and turn an error into a message and an exit code."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` is made of, without the enums around it
import gc
import os
import sys
from codecs import backslashreplace_errors, register_error

from fumehood.errors import FumehoodError, Unforeseen, as_fumehood_error
from fumehood.faces.cli.output import make_terminal_safe, print_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from fumehood.module_cache import ModuleCache

_ATOMIC_COMMANDS = ("apply", "discard", "draft", "redo", "restore", "undo")  # they do everything or nothing
# Commands that run before each step of an agent, with their module and function: these modules import little.
_FAST_COMMANDS = {
    "run": ("run", "main"), "shell": ("run", "shell"), "hook": ("hook", "main"), "agent": ("agent", "main"),
    "acp": ("acp", "main"), "complete": ("completion", "complete"),
}  # fmt: skip


def command(cache: ModuleCache | None = None) -> NoReturn:
    """Run the command line, store newly loaded modules in the cache, and end the process at once.

    The database is not closed: that would write its log back and flush the disk, which takes longer than a sandbox.
    What is committed is safe in the log, and nothing else needs cleaning up.
    """

    def on_loaded() -> None:
        if cache is not None:
            cache.mark_begin()
        # Until now Ctrl-C simply ended the process, because it was only importing modules.
        if _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)

    code = main(on_loaded=on_loaded)
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # the command has ended
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue  # nobody reads it, or it can't be written: main() has reported that
    if cache is not None:
        cache.save()
    os._exit(code)


def run_inside(*words: str) -> NoReturn:
    """Run one command for a session: a command inside the hood asked for it. Ends the process."""
    code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# What replaces our arrows and lines if the encoding of standard output lacks them.
_ASCII_FORMS = {"←": "<-", "→": "->", "─": "-"}


def _replace_unencodable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Handle a character that can't be encoded: an ASCII form if we have one, else an escape."""
    if isinstance(error, UnicodeEncodeError) and error.object[error.start] in _ASCII_FORMS:
        return _ASCII_FORMS[error.object[error.start]], error.start + 1
    return backslashreplace_errors(error)


def main(arguments: Sequence[str] | None = None, on_loaded: Callable[[], None] = lambda: None) -> int:
    """Run the command line; returns the exit code. `on_loaded` is called once the command's modules are imported."""
    _open_standard_descriptors()
    # Printing never fails for the encoding's sake, and no escape sequence in a name reaches a terminal.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        register_error("fumehood", _replace_unencodable)
        reconfigure(errors="fumehood")
    sys.stdout, sys.stderr = make_terminal_safe(sys.stdout), make_terminal_safe(sys.stderr)
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            code = _run_command(words, on_loaded)
        except SystemExit as end:  # argparse has printed the help
            code = end.code if isinstance(end.code, int) else 0
        # If Python flushed at its end, a closed pipe would cause a message and another exit code.
        sys.stdout.flush()
    except FumehoodError as error:
        return _report_failure(error, words)
    except BrokenPipeError:
        # The reader of our output has closed it, so nothing more can be printed.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        return _exit_code(words, 0)
    except KeyboardInterrupt:
        sys.stderr.write("\nERROR: interrupted\n")
        if words and words[0] in _ATOMIC_COMMANDS:
            sys.stderr.write("hint: it was done completely or not at all; fumehood log shows which\n")
        return _exit_code(words, 130)
    except Exception as error:  # noqa: BLE001 - an unforeseen error is one line and our own exit code
        if os.environ.get("FUMEHOOD_DEBUG"):
            import traceback

            traceback.print_exception(error)
        try:
            sys.stdout.flush()
        except OSError as problem:  # only printing failed: say so, because the command itself may have succeeded
            has_effects = bool(words) and words[0] in (*_ATOMIC_COMMANDS, "run")
            hint = "fumehood log shows what was done" if has_effects else "check that standard output can be written"
            return _report_failure(Unforeseen(f"the output can't be printed: {problem.strerror}", hint=hint), words)
        return _report_failure(as_fumehood_error(error), words)
    return code


def _report_failure(error: FumehoodError, words: list[str]) -> int:
    """Print an error and return the exit code; with --json, as one object, even if other options make no sense."""
    if _wants_json(words):
        import json

        failure = {"error": error.message, "hint": error.hint, "exit_code": error.exit_code}
        try:
            sys.stdout.write(json.dumps(failure) + "\n")
            sys.stdout.flush()
        except OSError:
            pass  # standard output can't be written: try standard error
        else:
            return _exit_code(words, error.exit_code)
    try:
        print_error(error)
        sys.stderr.flush()
    except OSError:
        pass
    return _exit_code(words, error.exit_code)


def _exit_code(words: list[str], code: int) -> int:
    """Return the exit code of a failed command: always 2 for the hook, because clients take any other for a yes."""
    return 2 if words[:1] == ["hook"] else code


def _wants_json(words: list[str]) -> bool:
    """Return True if `--json` is among our own options, not among the words of the command to run."""
    if words[:1] in (["run"], ["shell"]):
        from fumehood.faces.cli.run import parse_options  # loaded already

        return "--json" in parse_options(words[1:]).flags
    if words[:1] in (["agent"], ["acp"]):
        from fumehood.faces.cli import agent, run

        return "--json" in run.parse_options(words[1:], agent.EXTRA_OPTIONS, agent.EXTRA_FLAGS).flags
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _open_standard_descriptors() -> None:
    """Open descriptors 0, 1 and 2 if the caller left them closed: else our own files would get these numbers."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    # Python sets a stream to None if its descriptor is closed at the start.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _run_command(words: list[str], on_loaded: Callable[[], None]) -> int:
    """Find the function of a command, import its module, and call it."""
    if words[:1] == ["help"]:
        words = [words[1], "--help"] if words[1:] not in ([], ["help"]) else ["--help"]
    name, rest = (words[0], words[1:]) if words else ("", [])
    if name in ("-V", "--version"):
        from fumehood import __version__

        sys.stdout.write(f"fumehood {__version__}\n")
        return 0
    module, function = _FAST_COMMANDS.get(name, ("commands", "main"))
    act = getattr(__import__(f"fumehood.faces.cli.{module}", fromlist=[function]), function)
    on_loaded()
    # The imported modules stay to the end: freezing keeps the garbage collector from visiting them each time.
    gc.freeze()
    gc.set_threshold(10_000)  # a short command creates fewer objects, so nothing is collected
    gc.enable()
    code: int = act(rest if name in _FAST_COMMANDS else words)
    return code
