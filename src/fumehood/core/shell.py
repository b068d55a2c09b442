"""Find the programs that a shell line runs, from its text and without the shell's whole grammar.

`simple_command` is strict: a line is only simple if it certainly runs one program. `programs` may find more programs
than there are, rather than fewer.
"""

from __future__ import annotations

from fumehood.core.value import DIGITS, LETTERS, Value, word_set

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Simple commands: one program with plain arguments, or `cd DIR && program`.
#
# Only of these can be said ahead which program will run, so only for these a permission may be kept.

# What a shell reads as more than a letter of a word, outside of quotes.
_SPECIAL_LETTERS = frozenset("|&;<>()$`#!\n\r")
_PROGRAM = LETTERS | DIGITS | frozenset("@%+:,./-_")
_BUILT_IN = word_set(
    """. : [ alias bg break case cd command continue coproc do done elif else esac eval exec exit export fc fg fi for
    function getopts hash if in jobs let local read readonly return select set shift source then time times trap type
    typeset ulimit umask unalias unset until wait while"""
)
# Programs whose arguments are code, or another command: to allow one is to allow everything. Not complete, and no
# boundary: it keeps a person from giving away by a kept answer more than its words say.
_RUNS_OTHERS = word_set(
    """ash awk bash bun busybox bwrap chroot chrt csh dash deno docker doas emacs env expect fakeroot find fish flatpak
    flatpak-spawn gawk gdb ionice irb julia ksh lua mawk mksh nawk nerdctl nice node nodejs nohup nsenter npx parallel
    perl php pipx pkexec podman prlimit proot pypy python ruby runuser screen script sed setarch setpriv setsid sh socat
    ssh sshpass stdbuf strace su sudo systemd-run taskset tclsh tcsh time timeout tmux toybox unshare uv uvx vi vim
    watch xargs yash zsh"""
)


class SimpleCommand(Value):
    """A simple command: the program as it was written, its arguments, and the directory that it names, if it does."""

    program: str
    directory: str = ""
    arguments: tuple[str, ...] = ()


def simple_command(command: str | tuple[str, ...]) -> SimpleCommand | None:
    """Return what a simple command runs, or None where that can't be told."""
    if not isinstance(command, str):
        return _one_program(command)
    words = _words(command)
    if words is None:
        return None
    if "&&" not in words:
        return _one_program(words) if words else None
    if len(words) < 4 or words[0] != "cd" or words[2] != "&&" or "&&" in words[3:]:
        return None
    directory = words[1]
    if not _is_plain(directory) or directory.startswith("-"):
        return None
    program = _one_program(words[3:])
    return None if program is None else program.replace(directory=directory)


def may_keep_permission(program: str) -> bool:
    """Return True if a program, resolved, does only what it is: shells, interpreters and their like run anything."""
    name = program.rpartition("/")[2]
    stem = name.rstrip("0123456789.-")  # python3.12, lua5.4
    return not ({name, stem} & _RUNS_OTHERS or name.startswith(("ld-linux", "ld-musl")))


def _one_program(words: Sequence[str]) -> SimpleCommand | None:
    program, *arguments = words
    if not _is_plain(program) or program in _BUILT_IN or program.startswith("-"):
        return None
    return SimpleCommand(program=program, arguments=tuple(arguments))


def _is_plain(word: str) -> bool:
    """No expansion of names, braces or the home directory, and no assignment, hides in such a word."""
    return bool(word) and _PROGRAM.issuperset(word)


def _words(line: str) -> list[str] | None:
    """Split a shell line at its blanks; None where it is more than words and `&&`.

    What was quoted may look like `&&`; it is given a letter that no plain word has.
    """
    words: list[str] = []
    word: str | None = None
    pieces = _pieces(line.strip(" \t"))
    for quote, text, is_sure in pieces:
        if not quote and text in " \t":
            words += [] if word is None else [word]
            word = None
        elif not quote and text == "&" and word is None:
            if next(pieces, None) != ("", "&", True) or next(pieces, ("", "", True))[1] not in (" ", "\t"):
                return None
            words.append("&&")
        elif not is_sure or not text.isprintable() or (not quote and text in _SPECIAL_LETTERS):
            return None
        else:
            word = (word or "") + (f"'{text}'" if quote and not _is_plain(text) else text)
    return words if word is None else [*words, word]


# The programs of a command, as well as can be told without running it.

_SEPARATORS = frozenset(";&|\n()`")
_BLANKS = frozenset(" \t\r")
# What stands before a program without being one; options, assignments and numbers after these are passed over.
BEFORE = frozenset(
    {"!", "{", "}", "if", "then", "elif", "else", "do", "while", "until", "time", "exec", "command", "builtin"}
    | {"env", "nice", "ionice", "nohup", "setsid", "stdbuf", "timeout", "xargs", "sudo"}
)
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
_DEEPEST = 4  # shells in shells
_LONGEST_LINE = 1 << 16  # what follows is not looked at


def programs(command: str | tuple[str, ...], depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield the programs of a command with their arguments."""
    if depth > _DEEPEST:
        return
    for line in _split(command[:_LONGEST_LINE]) if isinstance(command, str) else [list(command)]:
        words = line
        while words and (words[0].rpartition("/")[2] in BEFORE or is_assignment(words[0])):
            at = 1
            while at < len(words) and (words[at][:1] == "-" or words[at][:1].isdigit() or is_assignment(words[at])):
                at += 1
            words = words[at:]
        if not words:
            continue
        yield tuple(words)
        if words[0].rpartition("/")[2] in _SHELLS:
            options = (at for at, word in enumerate(words[1:-1], 1) if word[:1] == "-" != word[1:2] and word[-1] == "c")
            if (option := next(options, None)) is not None:
                yield from programs(words[option + 1], depth + 1)


def changes_directory(command: str) -> bool:
    """Return True if the shell that reads this line may be told to go elsewhere."""
    return any(words[:1] in (["cd"], ["pushd"], ["popd"]) for words in _split(command[:_LONGEST_LINE]))


def is_assignment(word: str) -> bool:
    """Return True if a word gives a variable its value."""
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _split(line: str) -> Iterator[list[str]]:
    """Split a shell line into commands of words; what is substituted into a word counts as a command of its own."""
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
    """Yield the letters of a shell line, and what stands between quotes as one piece: quote or backslash, text, sure.

    Not sure is a quote that is not closed, or that holds an escape or a substitution.
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
    inside: list[str] = []
    is_sure = True
    for letter in letters:
        if letter == quote:
            yield quote, "".join(inside), is_sure
            return
        if quote == '"' and letter == "`":
            yield quote, "".join(inside), False
            yield "", letter, True
            return
        if quote == '"' and letter in "$\\":
            is_sure = False
        inside.append(next(letters, "") if quote == '"' and letter == "\\" else letter)
    yield quote, "".join(inside), False
