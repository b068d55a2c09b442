"""Which files a line for a shell may run or read, as well as its words tell: more than it does, rather than less.

This is no reading of the shell's grammar. Whatever could be a path is taken for one, because the line is a person's
own, and what it names is to be protected.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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
