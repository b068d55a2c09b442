"""Tell simple commands from others: one program with plain arguments, or `cd DIR && program`.

Only of these can be said ahead which program will run, so only for these a permission may be kept. The reading is
strict: what is not surely one program is not simple, whatever a shell would make of it.
"""

from __future__ import annotations

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What a shell reads as more than a letter of a word, outside of quotes.
_MEANING = frozenset("|&;<>()$`#!\n\r")
_PROGRAM = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+:,./-_")
_BUILT_IN = (
    ". : [ alias bg break case cd command continue coproc do done elif else esac eval exec exit export fc fg fi "
    "for function getopts hash if in jobs let local read readonly return select set shift source then time "
    "times trap type typeset ulimit umask unalias unset until wait while"
)
# Programs whose arguments are code, or another command: to allow one is to allow everything. Not complete, and no
# boundary: it keeps a person from giving away by a kept answer more than its words say.
_RUNS_OTHERS = (
    "ash awk bash bun busybox bwrap chroot chrt csh dash deno docker doas emacs env expect fakeroot find fish "
    "flatpak flatpak-spawn gawk gdb ionice irb julia ksh lua mawk mksh nawk nerdctl nice node nodejs nohup nsenter "
    "npx parallel perl php pipx pkexec podman prlimit proot pypy python ruby runuser screen script sed setarch "
    "setpriv setsid sh socat ssh sshpass stdbuf strace su sudo systemd-run taskset tclsh tcsh time timeout tmux "
    "toybox unshare uv uvx vi vim watch xargs yash zsh"
)
_built_in, _runs_others = frozenset(_BUILT_IN.split()), frozenset(_RUNS_OTHERS.split())


class Simple(Value):
    """A simple command: the program as it was written, its arguments, and the directory that it names, if it does."""

    program: str
    directory: str = ""
    arguments: tuple[str, ...] = ()


def simple(command: str | tuple[str, ...]) -> Simple | None:
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
    found = _one_program(words[3:])
    return None if found is None else found.replace(directory=directory)


def may_be_kept(program: str) -> bool:
    """Return True if a program, resolved, does only what it is: shells, interpreters and their like run anything."""
    name = program.rpartition("/")[2]
    stem = name.rstrip("0123456789.-")  # python3.12, lua5.4
    return not ({name, stem} & _runs_others or name.startswith(("ld-linux", "ld-musl")))


def _one_program(words: Sequence[str]) -> Simple | None:
    program, *arguments = words
    if not _is_plain(program) or program in _built_in or program.startswith("-"):
        return None
    return Simple(program=program, arguments=tuple(arguments))


def _is_plain(word: str) -> bool:
    """No expansion of names, braces or the home directory, and no assignment, hides in such a word."""
    return bool(word) and _PROGRAM.issuperset(word)


def _words(line: str) -> list[str] | None:
    """Split a shell line at its blanks; None where it is more than words and `&&`."""
    words: list[str] = []
    letters = iter(line.strip(" \t"))
    word: list[str] | None = None
    for letter in letters:
        if letter in " \t":
            if word is not None:
                words.append("".join(word))
            word = None
        elif letter == "&" and word is None and next(letters, "") == "&":
            if next(letters, "") not in (" ", "\t"):
                return None
            words.append("&&")
        elif letter in _MEANING or not letter.isprintable():
            return None
        else:
            read = _quoted(letter, letters)
            if read is None:
                return None
            word = [*(word or ()), read]
    if word is not None:
        words.append("".join(word))
    return words


def _quoted(letter: str, letters: Iterator[str]) -> str | None:
    """Read one letter, or all that stands between quotes; None where they are not closed, or hold a substitution.

    What was quoted may look like `&&`; it is given a letter that no plain word has.
    """
    if letter == "\\":
        escaped = next(letters, "")
        return _marked(escaped) if escaped else None
    if letter not in "'\"":
        return letter
    inside: list[str] = []
    for each in letters:
        if each == letter:
            return _marked("".join(inside))
        if not each.isprintable() or (letter == '"' and each in "$`\\"):
            return None
        inside.append(each)
    return None


def _marked(text: str) -> str | None:
    """Keep text that was quoted apart from words of the shell."""
    return None if not text.isprintable() else text if _is_plain(text) else f"'{text}'"


# Which files a line for a shell may run or read, as well as its words tell: more than it does, rather than less.
#
# This is no reading of the shell's grammar. Whatever could be a path is taken for one, because the line is a person's
# own, and what it names is to be protected.

_APART = str.maketrans(dict.fromkeys("\t\r\n;&|()<>`'\"=,", " "))
_GLOB = frozenset("*?[{")
_PYTHON = frozenset(("python", "pypy", "uv", "coverage"))
# After one of these, a name without a `/` is a file of the directory, and not a program of PATH.
_RUN_FILES = _PYTHON | {
    "sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "source", ".", "node", "nodejs", "deno", "bun", "perl", "ruby",
    "php", "lua", "env", "awk", "sed", "make", "java", "tclsh",
}  # fmt: skip


def named_paths(line: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield each path that a line may name; whether all that lies in it is meant; whether it may only be a directory.

    A pattern means the directory it begins in; a module of Python's, each file that it may be. A plain word is the
    name of a program, or `cd` leads there.
    """
    words = line.translate(_APART).split()
    seen: set[str] = set()
    for number, word in enumerate(words):
        runs_files = not seen.isdisjoint(_RUN_FILES)
        for path, whole in _meant(word.removeprefix("!")):
            yield path, whole, not (runs_files or "/" in word or "." in word)
        if word == "-m" and number + 1 < len(words) and not seen.isdisjoint(_PYTHON):
            module = words[number + 1].replace(".", "/")
            yield f"{module}.py", False, False
            yield module, True, False
        seen.add(_program(word))


def _meant(word: str) -> Iterator[tuple[str, bool]]:
    """Yield what one word may name: with a variable or a substitution before it, what follows that."""
    if "$" in word or "}" in word:
        # `$HOME/x`, `${0%/*}/x`
        _, slash, rest = word.replace("}", "/").partition("/")
        word = rest.strip("/") if slash and word.startswith("$") else word
    if not word.strip("/"):
        return
    patterned = [at for at, letter in enumerate(word) if letter in _GLOB]
    if patterned:
        directory = word[: patterned[0]].rpartition("/")[0]
        if directory:
            yield directory, True
        return
    yield word, False
    if word.startswith("/"):
        yield word.lstrip("/"), False  # after `$(…)`, which fell off


def _program(word: str) -> str:
    name = word.removeprefix("!").rpartition("/")[2]
    return name.rstrip("0123456789.") or name
