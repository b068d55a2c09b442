"""Find in the text of lines, scripts and settings which files they run, read or name.

Neither a shell's grammar nor that of any format is read completely. Only what is *run* leads the host on: a hook that
reads `package.json`, or checks `main.py`, does not run these files.
"""

from __future__ import annotations

from itertools import pairwise

from fumehood.core.shell import WORDS_BEFORE_PROGRAM, is_assignment
from fumehood.core.value import word_set
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    PathCheck = Callable[[str], bool]

# Lines for a shell, or for something like one.

# For `str.translate`: puts each command on a line of its own, with blanks between its words and without quotes.
_COMMAND_ENDS = str.maketrans(
    dict.fromkeys(";&|()`", "\n") | dict.fromkeys("\t\r<>,[]", " ") | dict.fromkeys("'\"", "")
)
_SHELLS = word_set("sh bash dash zsh ksh ash fish")
_INTERPRETERS = _SHELLS | word_set(
    """python pypy node nodejs tsx ts-node perl ruby php lua luajit java groovy julia Rscript pwsh tclsh expect
    osascript"""
)
# With `run`, these start a file, or a program that is installed; the last two also without `run`.
_RUNNERS = word_set("uv poetry pdm hatch pipenv pipx rye pixi coverage go zig dart crystal mix deno bun")
_RUNNERS_WITHOUT_RUN = ("deno", "bun")
# These start the program that comes after their own options.
_LAUNCHERS = word_set(
    "env nice ionice nohup setsid stdbuf timeout sudo xargs parallel exec npx bunx -exec -execdir -ok -okdir"
)
_SKIPPED_WORDS = WORDS_BEFORE_PROGRAM - _LAUNCHERS | {"exec"}
# Options whose value is the next word; options whose value is a number are not needed.
_OPTIONS_WITH_VALUE = word_set(
    """--with --with-editable --with-requirements --extra --group --only-group --no-group --env-file
    --env-file-if-exists --package --python --directory --project --index --index-url --config --config-file
    --import-map --lock --preload --require --import --cwd --filter --manifest-path --rcfile -ldflags -gcflags
    -tags -mod -modfile --user --signal --max-args --arg-file --delimiter --chdir --unset"""
)
# Short options with a value, by their letters.
_RUNNER_VALUE_LETTERS = "cpCwPr"
_LAUNCHER_VALUE_LETTERS = "aCdDgIpsuU"
_SCRIPT_ENDINGS = (
    ".sh", ".bash", ".zsh", ".fish", ".py", ".pyw", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx", ".go",
    ".rb", ".pl", ".php", ".lua", ".exs", ".zig", ".dart", ".cr",
)  # fmt: skip
_LOOPS = word_set("for while do in find xargs parallel run-parts eval exec env")
_CODE_OPTIONS = ("e", "c", "p", "m")  # if an option ends with one of these, code or the name of a module follows
_OPTION_SIGNS = "-+"
_MOST_WORDS = 200  # of one command: each word may be run by each word before it


def files_run_by(line: str, is_file: PathCheck, is_program: PathCheck) -> Iterator[str]:
    """Yield the paths that a line runs, existing or not: programs with a path, arguments of interpreters and `source`.

    Of these arguments, all count up to the first that is a file.
    """
    for words in _commands_of(line):
        if "/" in words[0]:
            yield from paths_in_word(words[0])
        for number, word in enumerate(words):
            arguments = words[number + 1 :]
            if _is_interpreter(word) or (number == 0 and _is_source_command(word)):
                for path in _paths_after_interpreter(word, arguments):
                    yield path
                    if is_file(path):
                        break
            elif word in _LAUNCHERS:
                for started in _program_after_options(arguments, _LAUNCHER_VALUE_LETTERS):
                    yield from (path for path in paths_in_word(started) if "/" in started or is_program(path))
            elif _is_runner(words, number):
                for started in _program_after_options(arguments, _RUNNER_VALUE_LETTERS):
                    if "/" in started or started.endswith(_SCRIPT_ENDINGS):
                        yield from paths_in_word(started)


# Files that direnv's own functions read into the shell, or evaluate with a tool. direnv asks the person again if
# `.envrc` changes, but not if one of these does.
_DIRENV_FILES = {
    "flake": ("flake.nix", "flake.lock"), "nix": ("shell.nix", "default.nix"),
    "devenv": ("devenv.nix", "devenv.yaml", "devenv.lock"), "devbox": ("devbox.json",),
    "pixi": ("pixi.toml", "pixi.lock"),
}  # fmt: skip


def files_read_by_direnv(line: str) -> Iterator[str]:
    """Yield the files that a line of `.envrc` evaluates, or reads for variables, when the directory is entered."""
    for words in _commands_of(line):
        tool, *arguments = words[1:] or [""] if words[0] == "use" else words
        tool = tool.removeprefix("use_")
        paths = [word.removeprefix("path:").partition("#")[0] for word in arguments if word[0] not in _OPTION_SIGNS]
        if tool.startswith("dotenv"):
            yield from paths or [".env"]
        elif tool in _DIRENV_FILES:
            yield from (path for path in paths if path.endswith(".nix"))
            yield from (f"{path}/{name}" for path in (".", *filter(None, paths)) for name in _DIRENV_FILES[tool])


def directories_put_on_path(line: str) -> Iterator[str]:
    """Yield the directories that a line of `.envrc` puts at the beginning of PATH."""
    line = line.replace("$(pwd)", "$PWD")
    for words in _commands_of(line):
        if words[:2] == ["layout", "node"]:
            yield "node_modules/.bin"
        elif words[0] == "PATH_add" or words[:2] == ["path_add", "PATH"]:
            yield from (path for word in words[1 + (words[0] == "path_add") :] for path in paths_in_word(word))
    for word in line.translate(_COMMAND_ENDS).split():
        if word.startswith("PATH="):
            yield from (path for entry in word[len("PATH=") :].split(":") for path in paths_in_word(entry))


def directories_put_on_path_by_mise(text: str) -> Iterator[str]:
    """Yield the directories that settings of mise put at the beginning of PATH (`_.path`)."""
    for key, _, _, value in _setting_values(text):
        if key.rpartition(".")[2] == "path":
            yield value.replace("{{ config_root }}", ".").replace("{{config_root}}", ".")


def begins_as_command(line: str, is_program: PathCheck) -> bool:
    """Return True if a text begins with an interpreter, with a runner of files, or with the path of a program."""
    words = line.translate(_COMMAND_ENDS).split()
    first = line.split(maxsplit=1)[0].strip("'\"") if words else ""
    if not first:
        return False
    if _is_interpreter(first) or first in _RUNNERS_WITHOUT_RUN or (first in _RUNNERS and words[1:2] == ["run"]):
        return True
    return any("/" in path and is_program(path) for path in paths_in_word(first))


def may_run_each_file(line: str) -> bool:
    """Return True if a line may run each file that matches a pattern; most patterns name files that a checker reads."""
    words = line.translate(_COMMAND_ENDS).split()
    return any(
        word in _LOOPS or _is_interpreter(word) or _is_source_command(word) or _is_runner(words, number)
        for number, word in enumerate(words)
    )


def directories_entered(line: str) -> Iterator[str]:
    """Yield the directories to which a line goes with `cd` or `pushd`."""
    for words in _commands_of(line):
        for program, argument in pairwise(words):
            if program in ("cd", "pushd"):
                yield from paths_in_word(argument)


def _commands_of(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line; a line in an argument of `sh -c` has commands too."""
    for command in line.translate(_COMMAND_ENDS).split("\n"):
        words = command.split()[:_MOST_WORDS]
        while words:
            while words and (words[0] in _SKIPPED_WORDS or words[0][0] in _OPTION_SIGNS or is_assignment(words[0])):
                words.pop(0)
            inner_start = _start_of_inner_line(words)
            if words:
                yield words[:inner_start]
            words = words[inner_start:]


def _start_of_inner_line(words: list[str]) -> int:
    """Return the number of the word after a shell's `-c`, with which its own line begins; if there is none, the end."""
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


def _program_after_options(words: list[str], value_letters: str) -> Iterator[str]:
    """Yield the program that comes after options, and scripts that are values of options.

    `value_letters` are those of short options with a value.
    """
    is_value = False
    for word in words:
        if word[0] in _OPTION_SIGNS:
            if word == "-m":
                return
            is_value = word in _OPTIONS_WITH_VALUE or (len(word) == 2 and word[1] in value_letters)
        elif is_value:
            is_value = False
            if word.endswith(_SCRIPT_ENDINGS):
                yield word
        elif not (word[0].isdigit() or is_assignment(word)):
            yield word
            return


def _is_source_command(word: str) -> bool:
    return word == "." or word.startswith("source")  # direnv has `source_env_if_exists` and others


def _paths_after_interpreter(interpreter: str, words: list[str]) -> Iterator[str]:
    """Yield the paths among an interpreter's arguments, up to code; a shell's code is a line that may run them too."""
    is_shell = interpreter.rpartition("/")[2] in _SHELLS
    for word in words:
        if word[0] not in _OPTION_SIGNS:
            yield from paths_in_word(word)
        elif not is_shell and word[1:2] != "-" and word.endswith(_CODE_OPTIONS):
            return


# Files that a line of a person's own may run or read: whatever could be a path counts as one.

_WORD_SEPARATORS = str.maketrans(dict.fromkeys("\t\r\n;&|()<>`'\"=,", " "))
_GLOB_SIGNS = frozenset("*?[{")
_PYTHON_PROGRAMS = frozenset(("python", "pypy", "uv", "coverage"))
# After one of these, a name without a `/` is a file in the directory, and not a program on PATH.
_PROGRAMS_GIVEN_FILES = _PYTHON_PROGRAMS | _SHELLS | word_set(
    "source . node nodejs deno bun perl ruby php lua env awk sed make java tclsh"
)


def named_paths(line: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield each path that a line may name; whether everything in it is named; whether it can only be a directory.

    A pattern names the directory in which it begins. A Python module names each file that it may be. A word without `/`
    or `.` is the name of a program, or of a directory for `cd`.
    """
    words = line.translate(_WORD_SEPARATORS).split()
    programs: set[str] = set()  # the names of all words so far: any of them may be a program
    for number, word in enumerate(words):
        runs_files = not programs.isdisjoint(_PROGRAMS_GIVEN_FILES)
        for path, is_whole in _meanings_of_word(word.removeprefix("!")):
            yield path, is_whole, not (runs_files or "/" in word or "." in word)
        if word == "-m" and number + 1 < len(words) and not programs.isdisjoint(_PYTHON_PROGRAMS):
            module = words[number + 1].replace(".", "/")
            yield f"{module}.py", False, False
            yield module, True, False
        name = word.removeprefix("!").rpartition("/")[2]
        programs.add(name.rstrip("0123456789.") or name)


def _meanings_of_word(word: str) -> Iterator[tuple[str, bool]]:
    """Yield the paths that a word may name, and whether everything in a path is named.

    After a variable or a substitution, the rest of the word counts.
    """
    if "$" in word or "}" in word:
        # `$HOME/x`, `${0%/*}/x`
        _, slash, rest = word.replace("}", "/").partition("/")
        word = rest.strip("/") if slash and word.startswith("$") else word
    if not word.strip("/"):
        return
    glob_start = next((at for at, letter in enumerate(word) if letter in _GLOB_SIGNS), -1)
    if glob_start >= 0:
        directory = word[:glob_start].rpartition("/")[0]
        if directory:
            yield directory, True
        return
    yield word, False
    if word.startswith("/"):
        yield word.lstrip("/"), False  # it may have stood after a `$(…)`, which was cut off


def paths_in_word(word: str) -> Iterator[str]:
    """Yield the paths that a word may name; a pattern has none."""
    return (path for path, is_whole in _meanings_of_word(word) if not is_whole)


# Settings in JSON with comments, TOML or YAML: their keys, and the texts at these.

_PUNCTUATION = frozenset("[]{},")
_BRACES = ("{", "}")
_KEY = "key"
_COMMENTS = ("#", "//")
_BLOCK_SIGNS = ("|", ">")
# Endings of keys whose value is run.
_RUN_KEY_ENDINGS = (
    "command", "commands", "cmd", "entry", "run", "script", "scripts", "helper", "hook", "hooks", "plugin", "plugins",
    "exec", "executable", "action", "bash", "runner",
)  # fmt: skip
_ARGS = "args"


def texts_in_settings(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each text in settings, and whether its key says that it is run; such a text has its arguments with it.

    Arguments belong to the keys of the same item that have the same prefix (`command` and `args`, `a.command` and
    `a.args`), whichever comes first. Arguments without such a key are ignored.
    """
    commands: dict[tuple[int, str, int], list[str]] = {}
    arguments: dict[tuple[int, str], list[str]] = {}
    paths: list[tuple[int, str]] = []
    for key, key_number, item, value in _setting_values(text):
        name = key.lower()
        ending = next(filter(name.endswith, _RUN_KEY_ENDINGS), "")
        if name.endswith(_ARGS):
            arguments.setdefault((item, name.removesuffix(_ARGS)), []).append(value)
        elif ending:
            commands.setdefault((item, name.removesuffix(ending), key_number), []).append(value)
        else:
            yield value, False
            if name == "path":
                paths.append((item, value))
    for (item, prefix, _), values in commands.items():
        yield " ".join(values + arguments.get((item, prefix), [])), True
    for item, value in paths:
        if (item, "") in arguments:
            yield " ".join([value, *arguments[item, ""]]), True


def tasks_at_opening(text: str, mark: str) -> str:
    """Return the tasks in an editor's settings that contain a mark.

    Return the whole text if a task may start others, or if the tasks can't be told apart.
    """
    from fumehood.core.json_text import parse_json

    try:
        node = parse_json(text)
    except (BadRequest, ValueError, RecursionError):
        return text
    tasks = node.member("tasks")
    if tasks is not None and tasks.members is not None:  # in the settings of a workspace
        node, tasks = tasks, tasks.member("tasks")
    if tasks is None or tasks.items is None or node.member("command") is not None or "dependsOn" in text:
        return text
    task_texts = (text[task.start : task.end] for task in tasks.items)
    return "\n".join(task_text for task_text in task_texts if mark in task_text)


class _ItemCounter:
    """Numbers the items that keys belong to: objects in braces, or lines of one indent below a `- ` or `[name]`."""

    def __init__(self) -> None:
        self._count = 0
        self._braces: list[int] = []  # the items of the open braces
        self._blocks: list[tuple[int, int]] = []  # the columns of the open blocks, and their items

    def begin_line(self, column: int, *, begins_item: bool) -> None:
        """Note a line that begins with a key in this column, and perhaps a new item."""
        if self._braces:
            return
        while self._blocks and (self._blocks[-1][0] > column or (begins_item and self._blocks[-1][0] == column)):
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
        """Return the number of the item that the next key belongs to."""
        return self._braces[-1] if self._braces else self._blocks[-1][1] if self._blocks else 0


def _setting_values(text: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield each key, its number, its item's number, and its value; a value of several lines comes line by line."""
    items = _ItemCounter()
    key, key_number, item, block_indent = "", 0, 0, -1
    for line in text.split("\n"):
        content = line.strip()
        indent = len(line) - len(line.lstrip())
        if block_indent >= 0 and (not content or indent > block_indent):
            yield key, key_number, item, f"{content}\n"
            continue
        block_indent = -1
        without_dashes = content
        while without_dashes.startswith("- "):
            without_dashes = without_dashes[2:].lstrip()
        if line.startswith("["):  # the name of a TOML table has no key
            key, key_number = "", key_number + 1
        is_first = True
        for kind, piece in _pieces_of_line(without_dashes) if not without_dashes.startswith(_COMMENTS) else ():
            if kind in _BRACES:
                items.pass_brace(kind)
            elif kind:
                if is_first:
                    column = indent + len(content) - len(without_dashes)
                    items.begin_line(column, begins_item=without_dashes != content or not key)
                key, key_number, item = piece, key_number + 1, items.current()
            elif piece[:1] in _BLOCK_SIGNS and len(piece) <= 3:
                block_indent = indent
            else:
                yield key, key_number, item, piece
            is_first = False


def _pieces_of_line(line: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each piece of a line: `_KEY`, a brace, or "" for a value."""
    at = 0
    while at < len(line):
        letter = line[at]
        if letter in "\"'":
            end = at + 1
            while end < len(line) and line[end] != letter:
                end += 2 if line[end] == "\\" and letter == '"' else 1
            end = min(end, len(line))  # a text that is not closed ends with the line
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
            end, is_key = _end_of_plain_text(line, at)
            piece = line[at:end].strip()
            yield _KEY if is_key else "", piece
            at = end + is_key


def _end_of_plain_text(line: str, at: int) -> tuple[int, bool]:
    """Return where a text without quotes ends, and True if it is a key."""
    has_blank = is_phrase = False  # a phrase has several words
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
