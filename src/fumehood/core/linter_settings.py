"""Find what is new in the settings of linters, compilers and hooks, and makes these tools load code.

Such files change every day, and editors start these tools by themselves. So a change is held only if it brings
something that loads code. This is looked for in two ways. Lines are searched for keys: no text can mislead that search
as it can mislead a parser. And the values are compared as a parser reads them: no spelling can hide a key from it. If
no parser can be trusted with a text, every new line counts that could spell such a key in a hidden way.
"""

from __future__ import annotations

from fumehood.core.changes import ADDED, FILE, Change
from fumehood.core.danger_facts import hold
from fumehood.core.sensitive_names import SCRIPT_ENDINGS
from fumehood.core.value import word_set
from fumehood.core.wording import brief

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fumehood.core.danger_facts import ChangeFacts, Concern
    from fumehood.core.sensitive_names import DirectoryMeaning
    from fumehood.core.settings_text import KeyCheck, KeyPath

# Keys, and names of sections, whose values name code; in lower case. A key that is not a plain word (`_is_word_key`)
# counts anywhere in a line.
_PYTHON_TOOL_SECTIONS = word_set("pyrefly pylsp-mypy")  # count below `tool` only: there are packages of these names
_PYTHON_KEYS = _PYTHON_TOOL_SECTIONS | word_set(
    "init-hook load-plugins local-plugins plugins python_executable library_path inherits"
)
# Pylint's options, each with the length of its shortest form: pylint accepts any beginning that fits only one option.
# The value of `output-format` can name a class.
_PYLINT_OPTIONS = (
    ("unsafe-load-any-extension", 1), ("extension-pkg-allow-list", 15), ("extension-pkg-whitelist", 15),
    ("output-format", 7),
)  # fmt: skip
_PYLINT_KEYS = frozenset(
    option[:length] for option, shortest in _PYLINT_OPTIONS for length in range(shortest, len(option) + 1)
)
_JAVASCRIPT_KEYS = word_set(
    """extends plugins jsplugins parser parserpreset presets configfile processor processors rulesdirectory rulepaths
    customrules markdownitplugins outputformatters formatter reporters modulepaths customsyntax import import/resolver
    import/parsers import-x/resolver import-x/resolver-next import-x/parsers"""
)
_RUBY_KEYS = word_set("<% require plugins inherit_from inherit_gem plugin_directories extend_config")
_CARGO_KEYS = word_set(
    """rustc rustc-wrapper rustc-workspace-wrapper rustdoc linker runner rustflags credential-provider
    global-credential-providers env include"""
)
# These set variables and aliases in a shell when a directory is entered. A version can be a directory: `path:./x`.
_MISE_KEYS = word_set("hooks watch_files plugins source path file env env_file shell_alias aliases path: {{ {%")
_ANSIBLE_KEYS = word_set(
    """rulesdir library module_utils roles_path collections_path collections_paths executable action_plugins
    become_plugins cache_plugins callback_plugins cliconf_plugins connection_plugins filter_plugins inventory_plugins
    lookup_plugins strategy_plugins terminal_plugins test_plugins vars_plugins"""
)
_PHP_KEYS = word_set("<plugin autoloader <xi: ref <autoload <arg <config <ini & <!d <!e <![ \N{REPLACEMENT CHARACTER}")


def _keys_by_name(*rows: tuple[frozenset[str], str]) -> dict[str, frozenset[str]]:
    return {name: keys for keys, names in rows for name in names.split()}


# The keys that load code, by a file's name, or by the names of its directory and of itself.
_KEYS_BY_NAME = _keys_by_name(
    (
        _PYTHON_KEYS,
        """.pylintrc pylintrc .pylintrc.toml pylintrc.toml .flake8 setup.cfg tox.ini pyproject.toml mypy.ini .mypy.ini
        .sqlfluff .prospector.yml .prospector.yaml prospector.yml prospector.yaml""",
    ),
    (word_set("-interpreter python_interpreter build-system"), "pyrefly.toml"),
    (word_set("{"), "pylsp-mypy.cfg .pylsp-mypy.cfg mypy-ls.cfg .mypy-ls.cfg"),  # Python text, spelled in many ways
    (word_set("plugins extends"), "dprint.json dprint.jsonc .dprint.json .dprint.jsonc"),
    (word_set("externaltools & <! \N{REPLACEMENT CHARACTER}"), ".project"),  # Eclipse's
    (word_set("jsplugins extends"), ".oxlintrc.json"),  # its `plugins` are built in
    (_JAVASCRIPT_KEYS, "tslint.json deno.json deno.jsonc analysis_options.yaml"),
    (_RUBY_KEYS, ".rubocop.yml .rubocop_todo.yml .standard.yml .haml-lint.yml .erb-lint.yml .solargraph.yml"),
    (_MISE_KEYS, "mise.toml .mise.toml mise.local.toml .mise.local.toml .prototools"),
    (word_set("path: {{ {%"), ".tool-versions"),
    (_ANSIBLE_KEYS, "ansible.cfg .ansible-lint"),
    (word_set("extra-path"), ".gitlint"),
    (word_set("custom"), ".golangci.yml .golangci.yaml .golangci.toml .golangci.json"),
    (word_set("plugin"), ".luarc.json .luarc.jsonc"),
    (word_set("path /"), "rust-toolchain rust-toolchain.toml"),
    (word_set("bootstrapfiles includes scanfiles"), "phpstan.neon phpstan.neon.dist phpstan.dist.neon"),
    (_PHP_KEYS, "psalm.xml psalm.xml.dist phpcs.xml .phpcs.xml phpcs.xml.dist .phpcs.xml.dist"),
    (word_set("command options"), "treefmt.toml .treefmt.toml"),
)
_KEYS_BY_PARENT_AND_NAME = {
    (".cargo", "config"): _CARGO_KEYS, (".cargo", "config.toml"): _CARGO_KEYS, (".pijul", "config"): word_set("hooks"),
}  # fmt: skip
# Tools whose settings are called `.NAMErc`, `.NAMErc.yaml`, `NAME.config.js`, …
_JAVASCRIPT_TOOLS = word_set(
    """eslint prettier stylelint markdownlint markdownlint-cli2 commitlint textlint remark oxlint
    cspell tailwind graphql"""
)
_PACKAGE_JSON, _PACKAGE_YAML, _RUBOCOP_OPTIONS = "package.json", "package.yaml", ".rubocop"
_LOADING_LETTERS, _LOADING_OPTIONS = frozenset("rc"), ("--require", "--plugin", "--config")  # RuboCop's options
# Top keys of a package.json: settings of linters, and commands that hooks run.
_PACKAGE_LINTER_KEYS = word_set(
    "eslintConfig prettier stylelint remarkConfig commitlint textlint markdownlint-cli2 cspell"
)
_PACKAGE_HOOK_KEYS = word_set("husky lint-staged simple-git-hooks gitHooks pre-commit ghooks")
# What cloning writes for a new repository: sections of settings, the letters of their keys, and whole files.
_CLONED_SECTIONS = {"hgrc": ("paths",), "config": ("paths",), "config.toml": ("revset-aliases", "user")}
_CLONED_KEY_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:@()\"")
_CLONED_CONTENTS = {"git_target": (b"git", b"../../../.git")}
_KEY_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
# How escapes of ASCII letters begin: nobody writes a letter in this way who wants to be understood.
_LETTER_ESCAPES = tuple(f"{start}{digit}" for start in ("\\u00", "\\u{", "\\u000000", "\\x") for digit in "4567")
_SIGNS_AFTER_KEY = ("=", ":", "]", ".")
# Characters that end a line for some tools, are blanks for others, and letters for the rest.
_DISPUTED_LINE_ENDS = frozenset("\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ufeff")
_LONGEST_PARSED = 64 << 10  # characters of a text for a parser, which may need a second for them
_MOST_SETTING_LINES = 200_000  # of all settings of a file together
_LENGTH_AFTER_KEY = 200  # characters after a word that are read to decide whether the word is a key
_INI = "ini"
_UNDISPUTED_FORMATS = ("toml", "json")  # all parsers read these alike
_FORMAT_BY_ENDING = {
    "toml": "toml", "json": "json", "jsonc": "json", "json5": "json", "yaml": "yaml", "yml": "yaml",
    "ansible-lint": "yaml", "prototools": "toml", "neon": "neon",
}  # fmt: skip
_OPENING, _CLOSING = "[{(", "]})"


def may_name_code(name: str, directory: DirectoryMeaning) -> bool:
    """Return True if a file of this name, in lower case, may name code that a tool loads.

    No tool reads the settings in other people's packages.
    """
    if name in _KEYS_BY_NAME or name in (_PACKAGE_JSON, _PACKAGE_YAML, _RUBOCOP_OPTIONS):
        is_named = True
    elif name[:1] == "." or ".config." in name:
        is_named = _javascript_tool(name) != ""
    else:
        is_named = directory.name[:1] == "." and (directory.name, name) in _KEYS_BY_PARENT_AND_NAME
    return is_named and not directory.in_git and not directory.is_packaged


def code_loading_concern(name: str, parent: str, facts: ChangeFacts) -> Concern | None:
    """Return a concern that holds a file of settings if it brings something new that loads code, else None."""
    if facts.content is None:
        return hold("linter-settings", "a tool may load code that this names, and it could not be read")
    if facts.content == facts.old:
        return None
    if b"\0" in facts.content:
        return hold("linter-settings", "a tool may load code that this names, and it is not plain text")
    new = facts.content.decode("utf-8", "replace")
    old = (facts.old or b"").decode("utf-8", "replace")
    if name == _PACKAGE_JSON:
        setting = _new_package_setting(old, new)
    elif name == _RUBOCOP_OPTIONS:
        setting = _new_rubocop_option(old, new)
    elif name == _PACKAGE_YAML:
        top_keys = _PACKAGE_LINTER_KEYS | _PACKAGE_HOOK_KEYS
        setting = _new_parsed_value(
            old, new, "yaml", frozenset(map(str.lower, top_keys)),
            lambda text, keys_above: keys_above is not None and not any(keys_above) and text in top_keys,
        )  # fmt: skip
    elif _javascript_tool(name) and name.rpartition(".")[2] in SCRIPT_ENDINGS:
        before, after = ("\n".join(_script_lines(text)) for text in (old, new))
        setting = new_script_code(old, new)
        setting = setting or _new_loading_setting(before, after, _JAVASCRIPT_KEYS, may_end_line=True)
    else:
        setting = _new_setting(name, parent, old, new)
    if setting is None:
        return None
    return hold("linter-settings", f"a linter, compiler or hook loads what this names by itself: {brief(setting)}")


def is_written_by_cloning(change: Change, name: str, facts: ChangeFacts) -> bool:
    """Return True if a new repository's settings, not of git, have only what cloning writes; that runs nothing."""
    if change.change != ADDED or change.within is None or change.kind != FILE or facts.content is None:
        return False
    if name in _CLONED_CONTENTS:
        return facts.content in _CLONED_CONTENTS[name]
    if name not in _CLONED_SECTIONS:
        return False
    section = ""
    for line in _lines(facts.content.decode("utf-8", "replace")):
        if not line or (_is_comment(line) and line.isprintable()):
            continue
        if line[0] == "[" and line[-1] == "]" and _KEY_LETTERS.issuperset(line[1:-1]):
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        is_setting = bool(key.rstrip(" ") and equals) and _CLONED_KEY_LETTERS.issuperset(key.rstrip(" "))
        # The value must end on this line.
        is_complete = line.isprintable() and '"""' not in value and "'''" not in value and _bracket_balance(value) == 0
        if section not in _CLONED_SECTIONS[name] or not is_setting or not is_complete:
            return False
    return bool(section)


def _new_setting(name: str, parent: str, old: str, new: str) -> str | None:
    """Return the first new setting that loads code, or None; both the lines and the parsed values are searched."""
    keys = _KEYS_BY_NAME.get(name) or _KEYS_BY_PARENT_AND_NAME.get((parent, name)) or _JAVASCRIPT_KEYS
    lowered, ending = new.lower(), name.removesuffix(".dist").rpartition(".")[2]
    format_name = _FORMAT_BY_ENDING.get(ending) or ("json or yaml" if _javascript_tool(name) else _INI)
    if (parent, name) in _KEYS_BY_PARENT_AND_NAME or name == "rust-toolchain":
        format_name = "toml"
    may_hide_keys = "\\" in new or (format_name == "yaml" and "!" in new)
    has_letter_escapes = any(escape in lowered for escape in _LETTER_ESCAPES)
    if keys is _PYTHON_KEYS and ("pylint" in f"{name} {lowered}" or format_name == "yaml" or has_letter_escapes):
        keys |= _PYLINT_KEYS
    if not _javascript_tool(name) and not may_hide_keys and not _contains_key(lowered, keys):
        return None  # no format has another way to write a key
    if format_name not in _UNDISPUTED_FORMATS and (setting := _new_loading_setting(old, new, keys)) is not None:
        return setting
    if format_name == _INI:
        return None

    signs = [key for key in keys if not _is_word_key(key)]

    def loads_code(text: str, keys_above: tuple[str, ...] | None) -> bool:
        if any(sign in text for sign in signs):
            return True
        if keys_above is None or (text in _PYTHON_TOOL_SECTIONS and keys_above != ("tool",)):
            return False
        lowered_key = text.lower()
        parts = lowered_key.replace(":", ".").split(".")  # one text can hold several keys, with dots between them
        return any(part.strip(" \t\"'") in keys for part in parts) or any(sign in lowered_key for sign in signs)

    return _new_parsed_value(old, new, format_name, keys, loads_code)


def _new_parsed_value(old: str, new: str, format_name: str, keys: frozenset[str], loads_code: KeyCheck) -> str | None:
    """Return the first new value, with its keys, at a key that loads code, or None; parsers decide what is there.

    If no parser can be trusted, return the first new setting or line that may load code.
    """
    after, before = (_values(text.removeprefix("\ufeff"), format_name, loads_code) for text in (new, old))
    if after is not None and before is not None:
        return next((f"{'.'.join(filter(None, path))}: {value}" for path, value in sorted(after - before)), None)
    # A file without any key is itself the name of what a tool loads.
    first_line = _first_setting_line(new)
    is_name = not _begins_with_key(first_line) if after is None else any(not path for path, _ in after)
    if is_name and first_line not in ("", _first_setting_line(old)):
        return first_line
    if (setting := _new_loading_setting(old, new, keys)) is not None:
        return setting
    # Or a line could be a part of such a setting, in one of the ways to read the whole text.
    from fumehood.core.settings_text import may_hide_key

    # In NEON, names of classes have backslashes between them. Only an escaped letter can hide a key.
    escapes = _LETTER_ESCAPES if format_name == "neon" else ("\\",)
    lines_before = {line.strip() for line in _lines(old)}
    for line in map(str.strip, _lines(new)):
        if line and line not in lines_before and (may_hide_key(line, escapes) or _contains_key(line.lower(), keys)):
            return line
    return None


def _values(text: str, format_name: str, loads_code: KeyCheck) -> set[tuple[KeyPath, str]] | None:
    """Return the values at keys that load code, or None if tools may differ about what a text says."""
    from fumehood.core.settings_text import Unclear, values_at

    if not text.strip():
        return set()
    unix_text = text.replace("\r\n", "\n")
    if len(unix_text) > _LONGEST_PARSED or "\r" in unix_text or not _DISPUTED_LINE_ENDS.isdisjoint(unix_text):
        return None
    try:
        return values_at(text, format_name, loads_code)
    except Unclear:
        return None


def _first_setting_line(text: str) -> str:
    """Return the first line that is neither empty nor a comment."""
    lines = (line.strip() for line in _lines(text))
    return next((line for line in lines if line not in ("", "---") and not _is_comment(line)), text.strip())


def _begins_with_key(line: str) -> bool:
    """Return True if a line begins with a key and `:` or `=`, or with a bracket."""
    if line[:1] in ("[", "{"):
        return True
    end = min((at for at in map(line.find, ":=") if at >= 0), default=0)
    key, rest = line[:end].rstrip(), line[end + 1 :]
    if key[:1] in ("'", '"') and key[-1:] == key[:1]:
        key = key[1:-1]
    return key != "" and _KEY_LETTERS.issuperset(key.lower()) and rest[:1] in ("", " ", "\t")


def _javascript_tool(name: str) -> str:
    """Return the tool of `_JAVASCRIPT_TOOLS` that a file of this name has settings for, or ""."""
    stem, is_config, _ = name.partition(".config.")
    if not is_config:
        stem = name[1:].partition(".")[0].removesuffix("rc") if name[0] == "." else ""
    stem = stem.removeprefix(".")
    return stem if stem in _JAVASCRIPT_TOOLS else ""


def _new_loading_setting(old: str, new: str, keys: frozenset[str], *, may_end_line: bool = False) -> str | None:
    """Return the first of `_loading_settings` that was not in the old text, or None."""
    before = set(_loading_settings(old, keys, may_end_line=may_end_line))
    settings = _loading_settings(new, keys, may_end_line=may_end_line)
    return next((setting for setting in settings if setting not in before), None)


def _loading_settings(text: str, keys: frozenset[str], *, may_end_line: bool) -> list[str]:
    """Return each setting that has a key that loads code: its lines, without their indents and without comments."""
    settings: list[str] = []
    lines, lines_left = _lines(text), _MOST_SETTING_LINES
    lowered = text.lower()
    keys = frozenset(key for key in keys if key in lowered)
    for number, line in enumerate(lines):
        if _has_loading_key(line, keys, may_end_line=may_end_line):
            setting = list(_setting_lines(lines, number))
            lines_left -= len(setting)
            if lines_left < 0:
                return [text]  # written to take for ever: the whole text counts as one setting
            settings.append("\n".join(filter(None, setting)))
    return settings


def _setting_lines(lines: list[str], first: int) -> Iterator[str]:
    """Yield the lines of the setting that begins with the line of this number; a comment as an empty line.

    The value continues while a bracket is open, and with lines that are indented further or begin an item of a list.
    A section continues to the next section that is not indented: an indented one could belong to a value. A comment
    ends nothing.
    """
    depth, indent = _bracket_balance(lines[first]), _indent(lines[first])
    is_section = lines[first].lstrip()[:1] == "[" and depth == 0
    yield lines[first].strip()
    for number in range(first + 1, len(lines)):
        line = lines[number]
        text = line.strip()
        if text[:1] in ("#", ";") and _is_comment(text):
            yield ""
            continue
        is_in_value = depth > 0 or not text or _indent(line) > indent or text.startswith("- ")
        if not (line[:1] != "[" if is_section else is_in_value):
            break
        depth += _bracket_balance(line)
        yield text


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _has_loading_key(line: str, keys: frozenset[str], *, may_end_line: bool) -> bool:
    """Return True if a line has a key that loads code; with `may_end_line`, its `:` may be on the next line."""
    text = line.strip().lower()
    if not text or _is_comment(text):
        return False
    has_letter_escape = "\\" in text and any(escape in text for escape in _LETTER_ESCAPES)
    if has_letter_escape or (text[0] == '"' and text[-1] == "\\"):
        return True  # these can hide a key
    for key in keys:
        for text_after in _texts_after(text, key):
            rest = text_after.lstrip().lstrip("\"'").lstrip()
            is_last = not rest and (may_end_line or len(text_after) == _LENGTH_AFTER_KEY)
            if not _is_word_key(key) or rest[:1] in _SIGNS_AFTER_KEY or text[0] == "?" or is_last:
                return True
    return False


def _is_comment(text: str) -> bool:
    """Return True if a line is a comment, and no tool takes a part of it for another line."""
    return (text[0] in "#;" or text.startswith("//")) and _DISPUTED_LINE_ENDS.isdisjoint(text)


def _is_word_key(key: str) -> bool:
    """Return True if a key counts only as a whole word, and not anywhere in a line."""
    return key[0] in _KEY_LETTERS and key[0] != "-" and key[-1] != ":"


def _contains_key(text: str, keys: frozenset[str]) -> bool:
    """Return True if a text in lower case contains one of the keys, be it as a key or as a value."""
    # With a slash and a name after it, it is another word: `import/order`.
    texts_after = ((key, rest) for key in keys for rest in _texts_after(text, key))
    return any(not _is_word_key(key) or rest[:1] != "/" or rest[1:2] not in _KEY_LETTERS for key, rest in texts_after)


def _texts_after(text: str, key: str) -> Iterator[str]:
    """Yield what follows a key, wherever the text has it: as a whole word, or anywhere (`_is_word_key`)."""
    at = text.find(key)
    while at >= 0:
        end = at + len(key)
        is_whole_word = (at == 0 or text[at - 1] not in _KEY_LETTERS) and text[end : end + 1] not in _KEY_LETTERS
        if is_whole_word or not _is_word_key(key):
            yield text[end : end + _LENGTH_AFTER_KEY]
        at = text.find(key, at + 1)


def _lines(text: str) -> list[str]:
    """Split a text into lines as tools do; Python's `splitlines` would also split at other characters."""
    return text.replace("\r", "\n").split("\n")


def _bracket_balance(line: str) -> int:
    """Return how many more brackets a line opens than it closes."""
    return sum(line.count(sign) for sign in _OPENING) - sum(line.count(sign) for sign in _CLOSING)


def _new_package_setting(old: str, new: str) -> str | None:
    """Return the first new setting of a linter or hook in a `package.json`, or None.

    A text that can't be parsed has none: no tool can read it either.
    """
    import json

    from fumehood.core.json_text import read_package

    try:
        after = read_package(new)
    except ValueError:
        return None
    except RecursionError:
        return "nested too deeply"
    try:
        before = read_package(old)
    except (ValueError, RecursionError):
        before = {}
    if not isinstance(after, dict) or not isinstance(before, dict):
        return None
    for key, value in after.items():
        text_after, text_before = (json.dumps(each, indent=1) for each in (value, before.get(key)))
        if text_after == text_before:
            continue
        if key in _PACKAGE_HOOK_KEYS or (key in _PACKAGE_LINTER_KEYS and isinstance(value, str)):
            return f"{key}: {text_after}"
        if key in _PACKAGE_LINTER_KEYS:
            setting = _new_loading_setting(text_before, text_after, _JAVASCRIPT_KEYS)
            if setting is not None:
                return f"{key}: {setting}"
    return None


def _new_rubocop_option(old: str, new: str) -> str | None:
    """Return the first new option that loads code, with the next word, or None.

    The texts are those of `.rubocop`, whose words RuboCop takes as its own arguments.
    """
    before, after = (dict.fromkeys(zip(words, [*words, ""][1:], strict=True)) for words in (old.split(), new.split()))
    for word, next_word in after:
        if word[:1] != "-":
            loads_code = False
        elif word[:2] != "--":
            loads_code = not _LOADING_LETTERS.isdisjoint(word)  # one word can have several letters
        else:
            # A long option can be shortened.
            loads_code = any(option.startswith(word.partition("=")[0]) for option in _LOADING_OPTIONS)
        # A shell's quotes can hide anything.
        if (word, next_word) not in before and (loads_code or any(sign in word for sign in "\\\"'")):
            return f"{word} {next_word}"
    return None


# Settings as scripts in JavaScript or TypeScript: lines that are more than data.

_CODE_WORDS = word_set("import export from require eval new function async await get set class")
_DATA_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$ \t,:{}[].-")


def new_script_code(old: str, new: str) -> str | None:
    """Return the first new line of a script that is more than data, or None."""
    before = {line.strip() for line in _script_lines(old)}
    has_template, in_comment = "`" in new, False
    for line in map(str.strip, _script_lines(new)):
        was_in_comment, in_comment = in_comment, _leaves_comment_open(line, is_open=in_comment)
        if line in before or not line:
            continue
        # A line that looks like a string or a comment has code if it stands in a template, or ends a comment.
        may_have_code = (was_in_comment and "*/" in line) or (has_template and "${" in line) or line[0] == ":"
        if may_have_code or not _is_data(line):
            return line
    return None


def _script_lines(text: str) -> list[str]:
    """Split a script where JavaScript ends a line, and with it a comment."""
    for line_end in ("\r", "\u2028", "\u2029"):
        text = text.replace(line_end, "\n")
    return text.split("\n")


def _leaves_comment_open(line: str, *, is_open: bool) -> bool:
    """Return True if a line ends within a `/*` comment; `is_open` says whether it begins in one."""
    at, quote = 0, ""
    while at < len(line):
        if is_open:
            end = line.find("*/", at)
            if end < 0:
                return True
            at, is_open = end + 2, False
        elif quote:
            quote = "" if line[at] == quote else quote
            at += 1
        elif line.startswith("//", at):
            return False
        elif line.startswith("/*", at):
            at, is_open = at + 2, True
        else:
            quote = line[at] if line[at] in "'\"`" else ""
            at += 1
    # A quote that is not closed was not a quote: it stands in a regular expression.
    return is_open or (quote != "" and line.rfind("/*") > line.rfind("*/"))


def _is_data(line: str) -> bool:
    """Return True if a line of a script is only data: strings, names, brackets; or only a comment."""
    if line.startswith("//"):
        return True
    outside_strings, quote = [], ""
    for sign in line:
        if quote:
            quote = "" if sign == quote else quote
            if sign == "\\":
                return False
        elif sign in "'\"":
            quote = sign
            outside_strings.append(" ")
        else:
            outside_strings.append(sign)
    text = "".join(outside_strings)
    if quote or not _DATA_LETTERS.issuperset(text):
        return False
    for sign in ",:{}[].-":
        text = text.replace(sign, " ")
    return _CODE_WORDS.isdisjoint(text.split())
