"""What lines, scripts and settings run or name, told from their text: neither a shell's nor any format's whole grammar.

What is *run* counts, not what is merely named: a hook that reads `package.json`, or checks `main.py`, leads nowhere.
"""

from __future__ import annotations

from itertools import pairwise

from fumehood.core.shell import BEFORE, is_assignment
from fumehood.core.value import word_set
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    PathCheck = Callable[[str], bool]

# Lines for a shell, or for something like one.

# Makes each command of a line a line of its own, with words between blanks.
_COMMAND_ENDS = str.maketrans(
    dict.fromkeys(";&|()`", "\n") | dict.fromkeys("\t\r<>,[]", " ") | dict.fromkeys("'\"", "")
)
_SHELLS = word_set("sh bash dash zsh ksh ash fish")
_INTERPRETERS = _SHELLS | word_set(
    """python pypy node nodejs tsx ts-node perl ruby php lua luajit java groovy julia Rscript pwsh tclsh expect
    osascript"""
)
# With `run`, these start a file as well as a program that is installed; the last two without it too.
_RUNNERS = word_set("uv poetry pdm hatch pipenv pipx rye pixi coverage go zig dart crystal mix deno bun")
_RUNNERS_WITHOUT_RUN = ("deno", "bun")
# What starts the program that comes after its own options.
_LAUNCHERS = word_set(
    "env nice ionice nohup setsid stdbuf timeout sudo xargs parallel exec npx bunx -exec -execdir -ok -okdir"
)
_SKIPPED_WORDS = BEFORE - _LAUNCHERS | {"exec"}
# Options whose value is the next word, as far as it is no number.
_OPTIONS_WITH_VALUE = word_set(
    """--with --with-editable --with-requirements --extra --group --only-group --no-group --env-file
    --env-file-if-exists --package --python --directory --project --index --index-url --config --config-file
    --import-map --lock --preload --require --import --cwd --filter --manifest-path --rcfile -ldflags -gcflags
    -tags -mod -modfile --user --signal --max-args --arg-file --delimiter --chdir --unset"""
)
_RUNNERS_LETTERS = "cpCwPr"
_LAUNCHERS_LETTERS = "aCdDgIpsuU"
_SCRIPTS = (
    ".sh", ".bash", ".zsh", ".fish", ".py", ".pyw", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx", ".go",
    ".rb", ".pl", ".php", ".lua", ".exs", ".zig", ".dart", ".cr",
)  # fmt: skip
_LOOPS = word_set("for while do in find xargs parallel run-parts eval exec env")
_CODE_OPTIONS = ("e", "c", "p", "m")  # letters that end an option, after which code stands, or the name of a module
_OPTION_SIGNS = "-+"
_MOST_WORDS = 200  # of one command that are looked at: each may be run by each before it


def files_run_by(line: str, is_file: PathCheck, is_program: PathCheck) -> Iterator[str]:
    """Yield what a line runs, be it there or not: a program with a path, what an interpreter or `source` is handed.

    Of what is handed over, all counts up to the first that is a file.
    """
    for words in _commands(line):
        if "/" in words[0]:
            yield from paths_in_word(words[0])
        for number, word in enumerate(words):
            rest = words[number + 1 :]
            if _is_interpreter(word) or (number == 0 and _is_source_command(word)):
                for path in _handed_paths(word, rest):
                    yield path
                    if is_file(path):
                        break
            elif word in _LAUNCHERS:
                started = _program_after_options(rest, _LAUNCHERS_LETTERS)
                yield from (path for each in started for path in paths_in_word(each) if "/" in each or is_program(path))
            elif _is_runner(words, number):
                started = _program_after_options(rest, _RUNNERS_LETTERS)
                scripts = (each for each in started if "/" in each or each.endswith(_SCRIPTS))
                yield from (path for each in scripts for path in paths_in_word(each))


# What direnv's own functions, and what a tool prints for it, read into the shell. It asks again where `.envrc` itself
# changes, and never for these.
_READ_BY = {
    "flake": ("flake.nix", "flake.lock"), "nix": ("shell.nix", "default.nix"),
    "devenv": ("devenv.nix", "devenv.yaml", "devenv.lock"), "devbox": ("devbox.json",),
    "pixi": ("pixi.toml", "pixi.lock"),
}  # fmt: skip


def files_read_by_direnv(line: str) -> Iterator[str]:
    """Yield the files that a line of `.envrc` has evaluated, or read for variables, when the directory is entered."""
    for words in _commands(line):
        tool, *rest = words[1:] or [""] if words[0] == "use" else words
        tool = tool.removeprefix("use_")
        places = [word.removeprefix("path:").partition("#")[0] for word in rest if word[0] not in _OPTION_SIGNS]
        if tool.startswith("dotenv"):
            yield from places or [".env"]
        elif tool in _READ_BY:
            yield from (place for place in places if place.endswith(".nix"))
            yield from (f"{place}/{name}" for place in (".", *filter(None, places)) for name in _READ_BY[tool])


def directories_put_on_path(line: str) -> Iterator[str]:
    """Yield the directories that a line of `.envrc` has programs looked for in before all others."""
    line = line.replace("$(pwd)", "$PWD")
    for words in _commands(line):
        if words[:2] == ["layout", "node"]:
            yield "node_modules/.bin"
        elif words[0] == "PATH_add" or words[:2] == ["path_add", "PATH"]:
            yield from (path for word in words[1 + (words[0] == "path_add") :] for path in paths_in_word(word))
    for word in line.translate(_COMMAND_ENDS).split():
        if word.startswith("PATH="):
            yield from (path for each in word[len("PATH=") :].split(":") for path in paths_in_word(each))


def directories_put_on_path_by_mise(text: str) -> Iterator[str]:
    """Yield the directories that settings of mise have programs looked for in before all others (`_.path`)."""
    for key, _, _, value in _values(text):
        if key.rpartition(".")[2] == "path":
            yield value.replace("{{ config_root }}", ".").replace("{{config_root}}", ".")


def begins_as_command(line: str, is_program: PathCheck) -> bool:
    """Return True if a text begins with an interpreter, with what starts files too, or with a program that is there."""
    words = line.translate(_COMMAND_ENDS).split()
    first = line.split(maxsplit=1)[0].strip("'\"") if words else ""
    if not first:
        return False
    if _is_interpreter(first) or first in _RUNNERS_WITHOUT_RUN or (first in _RUNNERS and words[1:2] == ["run"]):
        return True
    return any("/" in path and is_program(path) for path in paths_in_word(first))


def may_run_each_file(line: str) -> bool:
    """Return True if a line may run each file that a pattern means; most patterns say what a checker is to read."""
    words = line.translate(_COMMAND_ENDS).split()
    return any(
        each in _LOOPS or _is_interpreter(each) or _is_source_command(each) or _is_runner(words, number)
        for number, each in enumerate(words)
    )


def directories_entered(line: str) -> Iterator[str]:
    """Yield the directories that a line goes to."""
    for words in _commands(line):
        for before, word in pairwise(words):
            if before in ("cd", "pushd"):
                yield from paths_in_word(word)


def _commands(line: str) -> Iterator[list[str]]:
    for command in line.translate(_COMMAND_ENDS).split("\n"):
        words = command.split()[:_MOST_WORDS]
        while words:
            while words and (words[0] in _SKIPPED_WORDS or words[0][0] in _OPTION_SIGNS or is_assignment(words[0])):
                words.pop(0)
            end = _line_within(words)
            if words:
                yield words[:end]
            words = words[end:]


def _line_within(words: list[str]) -> int:
    """Return where the line begins that a shell is handed with `-c`; without one, where the words end."""
    is_shell = False
    for number, word in enumerate(words):
        if word.rpartition("/")[2] in _SHELLS:
            is_shell = True
        elif is_shell and word[0] in _OPTION_SIGNS:
            if word[1:2] != "-" and word.endswith("c"):
                return number + 1
        elif not words[number - 1].endswith("o"):  # `-o pipefail`
            is_shell = False
    return len(words)


def _is_interpreter(word: str) -> bool:
    name = word.rpartition("/")[2]
    return name in _INTERPRETERS or name.rstrip("0123456789.") in _INTERPRETERS


def _is_runner(words: list[str], number: int) -> bool:
    word = words[number]
    if word == "run":
        return not _RUNNERS.isdisjoint(words[:number])
    return word in _RUNNERS_WITHOUT_RUN and words[number + 1 : number + 2] != ["run"]


def _program_after_options(words: list[str], letters: str) -> Iterator[str]:
    """Yield the program that comes after options; of what their values name, scripts."""
    is_value = False
    for word in words:
        if word[0] in _OPTION_SIGNS:
            if word == "-m":
                return
            is_value = word in _OPTIONS_WITH_VALUE or (len(word) == 2 and word[1] in letters)
        elif is_value:
            is_value = False
            if word.endswith(_SCRIPTS):
                yield word
        elif not (word[0].isdigit() or is_assignment(word)):
            yield word
            return


def _is_source_command(word: str) -> bool:
    return word == "." or word.startswith("source")  # direnv has `source_env_if_exists` and others


def _handed_paths(interpreter: str, words: list[str]) -> Iterator[str]:
    """Yield what an interpreter may be told to run; a shell's own line goes on in it."""
    is_shell = interpreter.rpartition("/")[2] in _SHELLS
    for word in words:
        if word[0] not in _OPTION_SIGNS:
            yield from paths_in_word(word)
        elif not is_shell and word[1:2] != "-" and word.endswith(_CODE_OPTIONS):
            return


# Which files a line of a person's own may run or read: whatever could be a path is taken for one.

_SEPARATORS = str.maketrans(dict.fromkeys("\t\r\n;&|()<>`'\"=,", " "))
_GLOB = frozenset("*?[{")
_PYTHON = frozenset(("python", "pypy", "uv", "coverage"))
# After one of these, a name without a `/` is a file of the directory, and not a program of PATH.
_RUN_FILES = _PYTHON | _SHELLS | word_set(
    "source . node nodejs deno bun perl ruby php lua env awk sed make java tclsh"
)


def named_paths(line: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield each path that a line may name; whether all that lies in it is meant; whether it may only be a directory.

    A pattern means the directory it begins in; a module of Python's, each file that it may be. A plain word is the
    name of a program, or `cd` leads there.
    """
    words = line.translate(_SEPARATORS).split()
    seen: set[str] = set()
    for number, word in enumerate(words):
        runs_files = not seen.isdisjoint(_RUN_FILES)
        for path, whole in _meanings_of_word(word.removeprefix("!")):
            yield path, whole, not (runs_files or "/" in word or "." in word)
        if word == "-m" and number + 1 < len(words) and not seen.isdisjoint(_PYTHON):
            module = words[number + 1].replace(".", "/")
            yield f"{module}.py", False, False
            yield module, True, False
        name = word.removeprefix("!").rpartition("/")[2]
        seen.add(name.rstrip("0123456789.") or name)


def _meanings_of_word(word: str) -> Iterator[tuple[str, bool]]:
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


def paths_in_word(word: str) -> Iterator[str]:
    """Yield the paths that one word may name; of a pattern, none."""
    return (path for path, whole in _meanings_of_word(word) if not whole)


# Settings: which texts stand at which keys, in JSON with comments, TOML or YAML.

_PUNCTUATION = frozenset("[]{},")
_BRACES = ("{", "}")
_KEY = "key"
_COMMENTS = ("#", "//")
_BLOCKS = ("|", ">")
# How a key ends whose value is run.
_RUNNING = (
    "command", "commands", "cmd", "entry", "run", "script", "scripts", "helper", "hook", "hooks", "plugin", "plugins",
    "exec", "executable", "action", "bash", "runner",
)  # fmt: skip
_ARGS = "args"


def texts_in_settings(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each text in settings, and whether its key says that it is run: then with the arguments beside it.

    Arguments belong to the keys of the same item that are called alike (`command` and `args`, `a.command` and
    `a.args`), whichever comes first; alone they say nothing.
    """
    run: dict[tuple[int, str, int], list[str]] = {}
    arguments: dict[tuple[int, str], list[str]] = {}
    paths: list[tuple[int, str]] = []
    for key, number, item, value in _values(text):
        name = key.lower()
        ending = next(filter(name.endswith, _RUNNING), "")
        if name.endswith(_ARGS):
            arguments.setdefault((item, name.removesuffix(_ARGS)), []).append(value)
        elif ending:
            run.setdefault((item, name.removesuffix(ending), number), []).append(value)
        else:
            yield value, False
            if name == "path":
                paths.append((item, value))
    for (item, prefix, _), values in run.items():
        yield " ".join(values + arguments.get((item, prefix), [])), True
    for item, value in paths:
        if (item, "") in arguments:
            yield " ".join([value, *arguments[item, ""]]), True


def tasks_at_opening(text: str, mark: str) -> str:
    """Return those of an editor's tasks that have a mark; all, where one may start others or none can be told."""
    from fumehood.core.settings_text import parse_json

    try:
        node = parse_json(text)
    except (BadRequest, ValueError, RecursionError):
        return text
    tasks = node.member("tasks")
    if tasks is not None and tasks.members is not None:  # of a workspace
        node, tasks = tasks, tasks.member("tasks")
    if tasks is None or tasks.items is None or node.member("command") is not None or "dependsOn" in text:
        return text
    each = (text[task.start : task.end] for task in tasks.items)
    return "\n".join(task for task in each if mark in task)


class _Items:
    """Tells which item a key belongs to: an object in braces, else what is indented alike below a `- ` or `[name]`."""

    def __init__(self) -> None:
        self._count = 0
        self._braces: list[int] = []
        self._blocks: list[tuple[int, int]] = []

    def begin_line(self, column: int, is_new: bool) -> None:
        """Go on with a line that has a key at its beginning, or begins something new."""
        if self._braces:
            return
        while self._blocks and (self._blocks[-1][0] > column or (is_new and self._blocks[-1][0] == column)):
            self._blocks.pop()
        if not self._blocks or self._blocks[-1][0] < column:
            self._count += 1
            self._blocks.append((column, self._count))

    def pass_brace(self, brace: str) -> None:
        if brace == "{":
            self._count += 1
            self._braces.append(self._count)
        elif self._braces:
            self._braces.pop()

    def current(self) -> int:
        return self._braces[-1] if self._braces else self._blocks[-1][1] if self._blocks else 0


def _values(text: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield keys, how many there were before, their items, and what stands there; of several lines, each line."""
    items = _Items()
    key, number, item, block_ends = "", 0, 0, -1
    for line in text.split("\n"):
        content = line.strip()
        indent = len(line) - len(line.lstrip())
        if block_ends >= 0 and (not content or indent > block_ends):
            yield key, number, item, f"{content}\n"
            continue
        block_ends = -1
        bare = content
        while bare.startswith("- "):
            bare = bare[2:].lstrip()
        if line.startswith("["):  # a table's name stands at no key
            key, number = "", number + 1
        is_first = True
        for kind, piece in _pieces(bare) if not bare.startswith(_COMMENTS) else ():
            if kind in _BRACES:
                items.pass_brace(kind)
            elif kind:
                if is_first:
                    items.begin_line(indent + len(content) - len(bare), bare != content or not key)
                key, number, item = piece, number + 1, items.current()
            elif piece[:1] in _BLOCKS and len(piece) <= 3:
                block_ends = indent
            else:
                yield key, number, item, piece
            is_first = False


def _pieces(line: str) -> Iterator[tuple[str, str]]:
    """Yield the keys, braces and values of one line, each with what it is: nothing, for a value."""
    at = 0
    while at < len(line):
        letter = line[at]
        if letter in "\"'":
            end = at + 1
            while end < len(line) and line[end] != letter:
                end += 2 if line[end] == "\\" and letter == '"' else 1
            end = min(end, len(line))  # where nothing closes it, a text ends with the line
            piece = line[at + 1 : end].replace("\\n", "\n").replace("\\", "")
            at = end + 1
            while line[at : at + 1].isspace():
                at += 1
            is_key = line[at : at + 1] in (":", "=")
            yield _KEY if is_key else "", piece
            at += is_key
        elif letter in _PUNCTUATION or letter.isspace():
            if letter in _BRACES:
                yield letter, ""
            at += 1
        else:
            end, is_key = _plain(line, at)
            piece = line[at:end].strip()
            yield _KEY if is_key else "", piece
            at = end + is_key


def _plain(line: str, at: int) -> tuple[int, bool]:
    """Return where a text without quotes ends, and whether it is a key."""
    has_blank = is_phrase = False
    for end in range(at, len(line)):
        letter = line[end]
        if letter in _PUNCTUATION:
            return end, False
        if letter == ":" and line[end + 1 : end + 2] in ("", " "):
            return end, True
        if letter == "=" and line[end - 1 : end] == " " and not is_phrase:
            return end, True
        has_blank = has_blank or letter == " "
        is_phrase = is_phrase or (has_blank and not letter.isspace())
    return len(line), False
