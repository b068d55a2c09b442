"""Find the programs that a shell line runs, from its text and without the shell's whole grammar.

`simple_command` is strict: a line is simple only if it certainly runs one program. `programs` is generous: it may find
more programs than the line runs, but not fewer.
"""

from __future__ import annotations

from itertools import pairwise

from fumehood.core.value import DIGITS, LETTERS, Value, word_set

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Simple commands: one program with plain arguments, or `cd DIR && program`.
#
# Only of these it is certain beforehand which program will run. So a permission can be kept only for these.

# Outside of quotes, these mean more to a shell than a letter of a word.
_SPECIAL_LETTERS = frozenset("|&;<>()$`#!\n\r")
_PLAIN_LETTERS = LETTERS | DIGITS | frozenset("@%+:,./-_")
_BUILTINS = word_set(
    """. : [ alias bg break case cd command continue coproc do done elif else esac eval exec exit export fc fg fi for
    function getopts hash if in jobs let local read readonly return select set shift source then time times trap type
    typeset ulimit umask unalias unset until wait while"""
)
# Programs whose arguments are code, or another command: to allow one is to allow everything. The list is not complete,
# and not a boundary: it keeps people from allowing more than they mean when an answer is kept.
_PROGRAMS_THAT_RUN_OTHERS = word_set(
    """ash awk bash bun busybox bwrap chroot chrt csh dash deno docker doas emacs env expect fakeroot find fish flatpak
    flatpak-spawn gawk gdb ionice irb julia ksh lua mawk mksh nawk nerdctl nice node nodejs nohup nsenter npx parallel
    perl php pipx pkexec podman prlimit proot pypy python ruby runuser screen script sed setarch setpriv setsid sh socat
    ssh sshpass stdbuf strace su sudo systemd-run taskset tclsh tcsh time timeout tmux toybox unshare uv uvx vi vim
    watch xargs yash zsh"""
)


class SimpleCommand(Value):
    """A simple command: the program as it was written, its arguments, and the directory of its `cd`, or ""."""

    program: str
    directory: str = ""
    arguments: tuple[str, ...] = ()


def simple_command(command: str | tuple[str, ...]) -> SimpleCommand | None:
    """Return what a command runs if it is simple, else None."""
    if not isinstance(command, str):
        return _command_of_words(command)
    words = _split_into_words(command)
    if words is None:
        return None
    if "&&" not in words:
        return _command_of_words(words) if words else None
    if len(words) < 4 or words[0] != "cd" or words[2] != "&&" or "&&" in words[3:]:
        return None
    directory = words[1]
    if not _is_plain(directory) or directory.startswith("-"):
        return None
    in_directory = _command_of_words(words[3:])
    return None if in_directory is None else in_directory.replace(directory=directory)


def may_keep_permission(program: str) -> bool:
    """Return True if a program, its path resolved, can't run anything else, as shells and interpreters do."""
    name = program.rpartition("/")[2]
    stem = name.rstrip("0123456789.-")  # python3.12, lua5.4
    return not ({name, stem} & _PROGRAMS_THAT_RUN_OTHERS or name.startswith(("ld-linux", "ld-musl")))


def _command_of_words(words: Sequence[str]) -> SimpleCommand | None:
    program, *arguments = words
    if not _is_plain(program) or program in _BUILTINS or program.startswith("-"):
        return None
    return SimpleCommand(program=program, arguments=tuple(arguments))


def _is_plain(word: str) -> bool:
    """Return True if the shell takes a word as it is: it has no expansion, and it is not an assignment."""
    return bool(word) and _PLAIN_LETTERS.issuperset(word)


def _split_into_words(line: str) -> list[str] | None:
    """Return the words of a shell line, or None if it has more than words and `&&`.

    A quoted text keeps its quotes if it is not plain, so that it can't be taken for `&&`.
    """
    words: list[str] = []
    word: str | None = None
    pieces = _pieces(line.strip(" \t"))
    for quote, text, is_literal in pieces:
        if not quote and text in " \t":
            words += [] if word is None else [word]
            word = None
        elif not quote and text == "&" and word is None:
            if next(pieces, None) != ("", "&", True) or next(pieces, ("", "", True))[1] not in (" ", "\t"):
                return None
            words.append("&&")
        elif not is_literal or not text.isprintable() or (not quote and text in _SPECIAL_LETTERS):
            return None
        else:
            word = (word or "") + (f"'{text}'" if quote and not _is_plain(text) else text)
    return words if word is None else [*words, word]


# The programs that a command may run.

_SEPARATORS = frozenset(";&|\n()`")
_BLANKS = frozenset(" \t\r")
# These can stand before a program, with options, assignments and numbers of their own.
WORDS_BEFORE_PROGRAM = frozenset(
    {"!", "{", "}", "if", "then", "elif", "else", "do", "while", "until", "time", "exec", "command", "builtin"}
    | {"env", "nice", "ionice", "nohup", "setsid", "stdbuf", "timeout", "xargs", "sudo"}
)
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
_DEEPEST_NESTING = 4  # shells in shells
_LONGEST_LINE = 1 << 16  # the rest of a line is ignored


def programs(command: str | tuple[str, ...], depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield the programs of a command, each with its arguments; also those of a line in an argument of `sh -c`."""
    if depth > _DEEPEST_NESTING:
        return
    commands = _split_into_commands(command[:_LONGEST_LINE]) if isinstance(command, str) else [list(command)]
    for command_words in commands:
        words = command_words
        while words and (words[0].rpartition("/")[2] in WORDS_BEFORE_PROGRAM or is_assignment(words[0])):
            at = 1
            while at < len(words) and (words[at][:1] == "-" or words[at][:1].isdigit() or is_assignment(words[at])):
                at += 1
            words = words[at:]
        if not words:
            continue
        yield tuple(words)
        if words[0].rpartition("/")[2] in _SHELLS:
            for option, argument in pairwise(words[1:]):
                if option[:1] == "-" != option[1:2] and option[-1] == "c":
                    yield from programs(argument, depth + 1)
                    break


def changes_directory(command: str) -> bool:
    """Return True if a line may change the working directory of the shell that reads it."""
    return any(words[:1] in (["cd"], ["pushd"], ["popd"]) for words in _split_into_commands(command[:_LONGEST_LINE]))


def is_assignment(word: str) -> bool:
    """Return True if a word assigns a value to a variable."""
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _split_into_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell line; a command substitution counts as a command of its own."""
    words: list[str] = []
    word: str | None = None
    for quote, text, _ in _pieces(line):
        if quote or (text not in _SEPARATORS and text not in _BLANKS):
            word = (word or "") + text
            continue
        words += [] if word is None else [word]
        word = None
        if text in _SEPARATORS:
            yield words
            words = []
    yield words if word is None else [*words, word]


def _pieces(line: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the pieces of a shell line: single letters, and texts between quotes.

    Each has its quote ("" or a backslash for a letter), its text, and True if the text is certainly literal. It is not
    if the quote is not closed, or has an escape or a substitution in it.
    """
    letters = iter(line)
    for letter in letters:
        if letter == "\\":
            escaped = next(letters, "")
            yield letter, escaped, bool(escaped)
        elif letter in "'\"":
            yield from _quoted(letter, letters)
        else:
            yield "", letter, True


def _quoted(quote: str, letters: Iterator[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield the piece up to a closing quote."""
    text: list[str] = []
    is_literal = True
    for letter in letters:
        if letter == quote:
            yield quote, "".join(text), is_literal
            return
        if quote == '"' and letter == "`":
            yield quote, "".join(text), False
            yield "", letter, True
            return
        if quote == '"' and letter in "$\\":
            is_literal = False
        text.append(next(letters, "") if quote == '"' and letter == "\\" else letter)
    yield quote, "".join(text), False
