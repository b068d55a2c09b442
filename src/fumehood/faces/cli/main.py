"""The command `fumehood`: find the subcommand, run it, turn errors into one line and an exit code."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` is made of, without the enums around it
import gc
import os
import sys
from codecs import backslashreplace_errors, register_error

from fumehood.errors import FumehoodError, Unforeseen, plain_error
from fumehood.faces.cli.output import guarded, tell_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from fumehood.bundle import Bundle

_ACTS = ("apply", "discard", "draft", "redo", "restore", "undo")  # what can't be interrupted in its middle
# Commands that run before everything an agent does: with the function that each is, in a module that loads little.
_LIGHT = {
    "run": ("run", "main"), "shell": ("run", "shell"), "hook": ("hook", "main"), "agent": ("agent", "main"),
    "acp": ("acp", "main"), "complete": ("completion", "complete"),
}  # fmt: skip


def command(bundle: Bundle | None = None) -> NoReturn:
    """Be the command: run it, let the bundle keep the modules it has not, and end at once.

    Closing the database would write it all out and flush the disk, which costs more than the sandbox; what is
    committed is safe in its log. Nothing else is left to be tidied up.
    """

    def begin() -> None:
        if bundle is not None:
            bundle.begin()
        if _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:  # as long as nothing but loading was to be ended
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)

    code = main(begin=begin)
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # it has ended
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue  # nobody reads it, or it can't be written: that was told above
    if bundle is not None:
        bundle.keep()
    os._exit(code)


def only(*words: str) -> NoReturn:
    """Be the command for one that is asked for from inside the hood, in an interpreter of its own."""
    code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# Our own arrows and lines, for an encoding that lacks them; whatever else it lacks becomes an escape.
_PLAIN_LETTERS = {"←": "<-", "→": "->", "─": "-"}


def _in_plain_letters(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeEncodeError) and error.object[error.start] in _PLAIN_LETTERS:
        return _PLAIN_LETTERS[error.object[error.start]], error.start + 1
    return backslashreplace_errors(error)


def main(arguments: Sequence[str] | None = None, begin: Callable[[], None] = lambda: None) -> int:
    """Run the command line; returns the exit code. `begin` is called when all that a command begins with is loaded."""
    _open_standard_descriptors()
    # A character that the terminal's encoding lacks becomes an escape, and no sequence acts on a terminal.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        register_error("fumehood", _in_plain_letters)
        reconfigure(errors="fumehood")
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            code = _dispatch(words, begin)
        except SystemExit as end:  # the help was shown
            code = end.code if isinstance(end.code, int) else 0
        # Here and not when Python ends, where a closed pipe becomes a message and another exit code.
        sys.stdout.flush()
    except FumehoodError as error:
        return _tell_failure(error, words)
    except BrokenPipeError:
        # Whoever read our output has had enough; nothing more is to be said there.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        return _code_of(words, 0)
    except KeyboardInterrupt:
        sys.stderr.write("\nERROR: interrupted\n")
        if words and words[0] in _ACTS:
            sys.stderr.write("hint: all of it was done, or nothing; fumehood log shows which\n")
        return _code_of(words, 130)
    except Exception as error:  # noqa: BLE001 - whatever nobody foresaw is one line and our own exit code
        if os.environ.get("FUMEHOOD_DEBUG"):
            import traceback

            traceback.print_exception(error)
        try:
            sys.stdout.flush()  # what could not be printed is still to be
        except OSError as problem:  # which must not be taken for a failure of what was done before it
            acts = bool(words) and words[0] in (*_ACTS, "run")
            hint = "fumehood log shows what was done" if acts else "check that the place it goes to can be written"
            unprinted = Unforeseen(f"what was to be said can't be printed: {problem.strerror}", hint=hint)
            return _tell_failure(unprinted, words)
        return _tell_failure(plain_error(error), words)
    return code


def _tell_failure(error: FumehoodError, words: list[str]) -> int:
    """Say what failed; whoever asked for an object gets one, even where the options make no sense."""
    if _wants_object(words):
        import json

        failure = {"error": error.message, "hint": error.hint, "exit_code": error.exit_code}
        try:
            sys.stdout.write(json.dumps(failure) + "\n")
            sys.stdout.flush()
        except OSError:
            pass  # there is no place to say it so
        else:
            return _code_of(words, error.exit_code)
    try:
        tell_error(error)
        sys.stderr.flush()
    except OSError:
        pass
    return _code_of(words, error.exit_code)


def _code_of(words: list[str], code: int) -> int:
    """Return the exit code of what did not end well: of the hook, clients take any but 2 for a yes."""
    return 2 if words[:1] == ["hook"] else code


def _wants_object(words: list[str]) -> bool:
    """Return whether `--json` is among the words that are not those of a command to be run."""
    if words[:1] in (["run"], ["shell"]):
        from fumehood.faces.cli.run import parse  # which is loaded, as the others are here

        return "--json" in parse(words[1:]).flags
    if words[:1] in (["agent"], ["acp"]):
        from fumehood.faces.cli import agent, run

        return "--json" in run.parse(words[1:], agent.MORE).flags
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _open_standard_descriptors() -> None:
    """Open what the caller left closed: our own files would get those numbers, and a command's output."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    # Python found nothing to open there.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _dispatch(words: list[str], begin: Callable[[], None]) -> int:
    """Run a command. Some run before everything an agent does: they load as little as they can."""
    if words[:1] == ["help"]:
        words = [words[1], "--help"] if words[1:] not in ([], ["help"]) else ["--help"]
    name, rest = (words[0], words[1:]) if words else ("", [])
    if name in ("-V", "--version"):
        from fumehood import __version__

        sys.stdout.write(f"fumehood {__version__}\n")
        return 0
    module, function = _LIGHT.get(name, ("commands", "main"))
    act = getattr(__import__(f"fumehood.faces.cli.{module}", fromlist=[function]), function)
    begin()
    # Not before everything is imported: what is there now stays to the end, and is not looked through each time.
    gc.freeze()
    gc.set_threshold(10_000)  # a short command makes no more
    gc.enable()
    code: int = act(rest if name in _LIGHT else words)
    return code
