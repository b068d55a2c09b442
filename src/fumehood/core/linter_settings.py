"""Settings that name code for a linter, a compiler or a hook to load, in whatever format, scripts too.

Such files change every day, and editors start these tools by themselves. So a change is held only where it brings
something that loads code. That is told twice: from the text of lines, which no parser can be led astray about, and
from what a parser makes of the whole, which no spelling hides. Where there is no parser to believe, lines that could
spell anything count.
"""

from __future__ import annotations

from fumehood.core.changes import ADDED, FILE, Change
from fumehood.core.concern import hold
from fumehood.core.value import word_set
from fumehood.core.wording import brief

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fumehood.core.concern import ChangeFacts, Concern, DirectoryMeaning
    from fumehood.core.settings_text import Wanted

# Keys, and sections in brackets, whose values name code. One with a sign at an end counts anywhere in a line.
_UNDER_TOOL = word_set("pyrefly pylsp-mypy")  # sections; not packages of these names
_PYTHON = _UNDER_TOOL | word_set("init-hook load-plugins local-plugins plugins python_executable library_path inherits")
# Pylint takes any beginning of an option that is no other one's. The last one may name a class.
_PYLINT_ALONE = (
    ("unsafe-load-any-extension", 1), ("extension-pkg-allow-list", 15), ("extension-pkg-whitelist", 15),
    ("output-format", 7),
)  # fmt: skip
_PYLINT = frozenset(option[:end] for option, least in _PYLINT_ALONE for end in range(least, len(option) + 1))
_SCRIPTED = word_set(
    """extends plugins jsplugins parser parserpreset presets configfile processor processors rulesdirectory rulepaths
    customrules markdownitplugins outputformatters formatter reporters modulepaths customsyntax import import/resolver
    import/parsers import-x/resolver import-x/resolver-next import-x/parsers"""
)
_RUBY = word_set("<% require plugins inherit_from inherit_gem plugin_directories extend_config")
_CARGO = word_set(
    """rustc rustc-wrapper rustc-workspace-wrapper rustdoc linker runner rustflags credential-provider
    global-credential-providers env include"""
)
# What sets variables and aliases in a shell when a directory is entered; a version may be a directory: `path:./x`.
_MISE = word_set("hooks watch_files plugins source path file env env_file shell_alias aliases path: {{ {%")
_ANSIBLE = word_set(
    """rulesdir library module_utils roles_path collections_path collections_paths executable action_plugins
    become_plugins cache_plugins callback_plugins cliconf_plugins connection_plugins filter_plugins inventory_plugins
    lookup_plugins strategy_plugins terminal_plugins test_plugins vars_plugins"""
)
_PHP = word_set("<plugin autoloader <xi: ref <autoload <arg <config <ini & <!d <!e <![ \N{REPLACEMENT CHARACTER}")


def _table(*rows: tuple[frozenset[str], str]) -> dict[str, frozenset[str]]:
    return {name: keys for keys, names in rows for name in names.split()}


_NAMES = _table(
    (
        _PYTHON,
        """.pylintrc pylintrc .pylintrc.toml pylintrc.toml .flake8 setup.cfg tox.ini pyproject.toml mypy.ini .mypy.ini
        .sqlfluff .prospector.yml .prospector.yaml prospector.yml prospector.yaml""",
    ),
    (word_set("-interpreter python_interpreter build-system"), "pyrefly.toml"),
    (word_set("{"), "pylsp-mypy.cfg .pylsp-mypy.cfg mypy-ls.cfg .mypy-ls.cfg"),  # Python text, spelled in many ways
    (word_set("plugins extends"), "dprint.json dprint.jsonc .dprint.json .dprint.jsonc"),
    (word_set("externaltools & <! \N{REPLACEMENT CHARACTER}"), ".project"),  # Eclipse's
    (word_set("jsplugins extends"), ".oxlintrc.json"),  # its plugins are built in
    (_SCRIPTED, "tslint.json deno.json deno.jsonc analysis_options.yaml"),
    (_RUBY, ".rubocop.yml .rubocop_todo.yml .standard.yml .haml-lint.yml .erb-lint.yml .solargraph.yml"),
    (_MISE, "mise.toml .mise.toml mise.local.toml .mise.local.toml .prototools"),
    (word_set("path: {{ {%"), ".tool-versions"),
    (_ANSIBLE, "ansible.cfg .ansible-lint"),
    (word_set("extra-path"), ".gitlint"),
    (word_set("custom"), ".golangci.yml .golangci.yaml .golangci.toml .golangci.json"),
    (word_set("plugin"), ".luarc.json .luarc.jsonc"),
    (word_set("path /"), "rust-toolchain rust-toolchain.toml"),
    (word_set("bootstrapfiles includes scanfiles"), "phpstan.neon phpstan.neon.dist phpstan.dist.neon"),
    (_PHP, "psalm.xml psalm.xml.dist phpcs.xml .phpcs.xml phpcs.xml.dist .phpcs.xml.dist"),
    (word_set("command options"), "treefmt.toml .treefmt.toml"),
)
_PAIRS = {(".cargo", "config"): _CARGO, (".cargo", "config.toml"): _CARGO, (".pijul", "config"): word_set("hooks")}
# Their settings are called `.NAMErc`, `.NAMErc.yaml`, `NAME.config.js`, …
_TOOLS = word_set(
    """eslint prettier stylelint markdownlint markdownlint-cli2 commitlint textlint remark oxlint
    cspell tailwind graphql"""
)
_SCRIPTS = word_set("js cjs mjs ts cts mts")
_PACKAGE, _PACKAGE_IN_YAML, _OPTIONS = "package.json", "package.yaml", ".rubocop"
_SHORT_LOADING, _LONG_LOADING = frozenset("rc"), ("--require", "--plugin", "--config")
# Top keys of a package.json: settings of linters, and commands that hooks run.
_PACKAGE_LINTERS = word_set("eslintConfig prettier stylelint remarkConfig commitlint textlint markdownlint-cli2 cspell")
_PACKAGE_HOOKS = word_set("husky lint-staged simple-git-hooks gitHooks pre-commit ghooks")
# Sections that cloning writes into a new repository's settings, and whole contents.
_CLONED_SECTIONS = {"hgrc": ("paths",), "config": ("paths",), "config.toml": ("revset-aliases", "user")}
_CLONED_KEYS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:@()\"")
_CLONED_CONTENTS = {"git_target": (b"git", b"../../../.git")}
_IN_KEYS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
# ASCII letters by their numbers: nobody writes these so who wants to be read.
_ESCAPED = tuple(f"{start}{digit}" for start in ("\\u00", "\\u{", "\\u000000", "\\x") for digit in "4567")
_MAKE_KEYS = ("=", ":", "]", ".")  # what follows a key
# Signs that end a line for some tools, are blanks for others, and letters for the rest.
_LINE_ENDS = frozenset("\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ufeff")
_LONGEST = 64 << 10  # signs of a text that a parser is given, which may take a second for them
_MOST_LINES = 200_000
_MOST_AFTER = 200  # signs behind a key in which it is told whether it is one
_INI, _AGREED_ON = "ini", ("toml", "json")  # what all parsers read alike
_FORMATS = {
    "toml": "toml", "json": "json", "jsonc": "json", "json5": "json", "yaml": "yaml", "yml": "yaml",
    "ansible-lint": "yaml", "prototools": "toml", "neon": "neon",
}  # fmt: skip
_OPENING, _CLOSING = "[{(", "]})"


def may_load(name: str, around: DirectoryMeaning) -> bool:
    """Return True if the content of a file, its name in lower case, may name code that a tool loads.

    Nobody's tools look into packages.
    """
    if name in _NAMES or name in (_PACKAGE, _PACKAGE_IN_YAML, _OPTIONS):
        is_named = True
    elif name[:1] == "." or ".config." in name:
        is_named = _tool(name) != ""
    else:
        is_named = around.parent[:1] == "." and (around.parent, name) in _PAIRS
    return is_named and not around.in_git and not around.is_packaged


def loading_concern(name: str, parent: str, facts: ChangeFacts) -> Concern | None:
    """Hold a file of settings that brings something new that loads code; None if nothing does."""
    if facts.content is None:
        return hold("linter-settings", "a tool may load code that this names, and it could not be read")
    if facts.content == facts.old:
        return None
    if b"\0" in facts.content:
        return hold("linter-settings", "a tool may load code that this names, and it is not plain text")
    new = facts.content.decode("utf-8", "replace")
    old = (facts.old or b"").decode("utf-8", "replace")
    if name == _PACKAGE:
        line = _new_in_package(old, new)
    elif name == _OPTIONS:
        line = _new_option(old, new)
    elif name == _PACKAGE_IN_YAML:
        top = _PACKAGE_LINTERS | _PACKAGE_HOOKS
        line = _new_value(
            old, new, "yaml", frozenset(map(str.lower, top)),
            lambda text, above: above is not None and not any(above) and text in top,
        )  # fmt: skip
    elif _tool(name) and name.rpartition(".")[2] in _SCRIPTS:
        before, after = ("\n".join(_script_lines(each)) for each in (old, new))
        line = new_code(old, new) or _new_block(before, after, _SCRIPTED, ends=True)
    else:
        line = _new_in_settings(name, parent, old, new)
    if line is None:
        return None
    return hold("linter-settings", f"a linter, compiler or hook loads what this names by itself: {brief(line)}")


def is_what_cloning_writes(change: Change, name: str, facts: ChangeFacts) -> bool:
    """Return True if settings of another version control came with a new repository, and run nothing."""
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
        if line[0] == "[" and line[-1] == "]" and _IN_KEYS.issuperset(line[1:-1]):
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        is_setting = bool(key.rstrip(" ") and equals) and _CLONED_KEYS.issuperset(key.rstrip(" "))
        # A value can be nothing else, and begins nothing that goes on below.
        is_whole = line.isprintable() and '"""' not in value and "'''" not in value and _depth(value) == 0
        if section not in _CLONED_SECTIONS[name] or not is_setting or not is_whole:
            return False
    return bool(section)


def _new_in_settings(name: str, parent: str, old: str, new: str) -> str | None:
    """Return what is new among the settings that load code, told from lines and from what a parser makes of them."""
    keys = _NAMES.get(name) or _PAIRS.get((parent, name)) or _SCRIPTED
    lowered, ending = new.lower(), name.removesuffix(".dist").rpartition(".")[2]
    kind = _FORMATS.get(ending) or ("json or yaml" if _tool(name) else _INI)
    if (parent, name) in _PAIRS or name == "rust-toolchain":
        kind = "toml"
    may_hide = "\\" in new or (kind == "yaml" and "!" in new)
    has_pylint = "pylint" in f"{name} {lowered}" or kind == "yaml" or any(letter in lowered for letter in _ESCAPED)
    keys |= _PYLINT if keys is _PYTHON and has_pylint else frozenset()
    if not _tool(name) and not may_hide and not _has_word(lowered, keys):
        return None  # in no format is there a way to say it then
    if kind not in _AGREED_ON and (block := _new_block(old, new, keys)) is not None:
        return block
    if kind == _INI:
        return None

    signs = [key for key in keys if not _is_word(key)]

    def is_wanted(text: str, above: tuple[str, ...] | None) -> bool:
        if any(sign in text for sign in signs):
            return True
        if above is None or (text in _UNDER_TOOL and above != ("tool",)):
            return False
        lowered = text.lower()  # of a key, in which several may be written as one, with dots
        parts = lowered.replace(":", ".").split(".")
        return any(part.strip(" \t\"'") in keys for part in parts) or any(sign in lowered for sign in signs)

    return _new_value(old, new, kind, keys, is_wanted)


def _new_value(old: str, new: str, kind: str, keys: frozenset[str], is_wanted: Wanted) -> str | None:
    """Return what a parser sees at a key that is wanted and did not see before.

    Where there is none to believe, it is the first block or line that may be such a setting.
    """
    after, before = (_values(text.removeprefix("\ufeff"), kind, is_wanted) for text in (new, old))
    if after is not None and before is not None:
        return next((f"{'.'.join(filter(None, place))}: {value}" for place, value in sorted(after - before)), None)
    # Without any key, a file is itself the name of what to load.
    head = _head(new)
    is_name = not _begins_table(head) if after is None else any(not place for place, _ in after)
    if is_name and head not in ("", _head(old)):
        return head
    # In NEON, names of classes have a backslash between them, which escapes nothing but in its own ways.
    escapes = _ESCAPED if kind == "neon" else ("\\",)
    if (block := _new_block(old, new, keys)) is not None:
        return block
    # Or it is a line that may have a part in loading code, in whatever way the whole is read.
    from fumehood.core.settings_text import is_odd

    lines_before = {line.strip() for line in _lines(old)}
    for line in map(str.strip, _lines(new)):
        if line and line not in lines_before and (is_odd(line, escapes) or _has_word(line.lower(), keys)):
            return line
    return None


def _values(text: str, kind: str, is_wanted: Wanted) -> set[tuple[tuple[str, ...], str]] | None:
    """Return the values at keys that are wanted, or None where tools may differ about what a text says."""
    from fumehood.core.settings_text import Unclear, values_at

    if not text.strip():
        return set()
    plain = text.replace("\r\n", "\n")
    if len(plain) > _LONGEST or "\r" in plain or not _LINE_ENDS.isdisjoint(plain):
        return None
    try:
        return values_at(text, kind, is_wanted)
    except Unclear:
        return None


def _head(text: str) -> str:
    """Return the first line that is no comment."""
    lines = (line.strip() for line in _lines(text))
    return next((line for line in lines if line not in ("", "---") and not _is_comment(line)), text.strip())


def _begins_table(line: str) -> bool:
    ends = [at for at in map(line.find, ":=") if at >= 0]
    key, rest = line[: min(ends, default=0)].rstrip(), line[min(ends, default=0) + 1 :]
    name = key[1:-1] if key[:1] in ("'", '"') and key[-1:] == key[:1] else key
    return line[:1] in ("[", "{") or (name != "" and _IN_KEYS.issuperset(name.lower()) and rest[:1] in ("", " ", "\t"))


def _tool(name: str) -> str:
    """Return the tool that a file of settings is for, or nothing."""
    stem, is_config, _ = name.partition(".config.")
    if not is_config:
        stem = name[1:].partition(".")[0].removesuffix("rc") if name[0] == "." else ""
    stem = stem.removeprefix(".")
    return stem if stem in _TOOLS else ""


def _new_block(old: str, new: str, keys: frozenset[str], *, ends: bool = False) -> str | None:
    before = set(_blocks(old, keys, ends=ends))
    return next((block for block in _blocks(new, keys, ends=ends) if block not in before), None)


def _blocks(text: str, keys: frozenset[str], *, ends: bool = False) -> list[str]:
    """Return each setting that loads code, from its key to the end of its value, without blanks at its ends.

    The value goes on while a bracket is open, where lines are indented further or begin a list, and for a section to
    the next one, which is not indented: it could belong to a value. A comment ends nothing.
    """
    blocks: list[str] = []
    lines, room = _lines(text), _MOST_LINES
    lowered = text.lower()
    keys = frozenset(key for key in keys if key in lowered)
    for at, line in enumerate(lines):
        if _names_code(line, keys, ends=ends):
            block = list(_block(lines, at))
            room -= len(block)
            if room < 0:
                return [text]  # made to take for ever: all of it counts as one
            blocks.append("\n".join(filter(None, block)))
    return blocks


def _block(lines: list[str], at: int) -> Iterator[str]:
    """Yield the lines of the setting that begins at one of them; a comment is an empty one."""
    depth, indent = _depth(lines[at]), _indent(lines[at])
    is_section = lines[at].lstrip()[:1] == "[" and depth == 0
    yield lines[at].strip()
    for number in range(at + 1, len(lines)):
        line = lines[number]
        text = line.strip()
        if text[:1] in ("#", ";") and _is_comment(text):
            yield ""
            continue
        is_inside = depth > 0 or not text or _indent(line) > indent or text.startswith("- ")
        if not (line[:1] != "[" if is_section else is_inside):
            break
        depth += _depth(line)
        yield text


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _names_code(line: str, keys: frozenset[str], *, ends: bool = False) -> bool:
    """Return True if a line has a key that loads code; with `ends`, what makes it a key may be on the next line."""
    text = line.strip().lower()
    if not text or _is_comment(text):
        return False
    if "\\" in text and (any(letter in text for letter in _ESCAPED) or (text[0] == '"' and text[-1] == "\\")):
        return True  # a key may be spelled so that it is not seen
    for key in keys:
        for following in _after(text, key):
            rest = following.lstrip().lstrip("\"'").lstrip()
            is_last = not rest and (ends or len(following) == _MOST_AFTER)
            if not _is_word(key) or rest[:1] in _MAKE_KEYS or text[0] == "?" or is_last:
                return True
    return False


def _is_comment(text: str) -> bool:
    """Return True if a line is a comment, and no tool takes a part of it for another line."""
    return (text[0] in "#;" or text.startswith("//")) and _LINE_ENDS.isdisjoint(text)


def _is_word(key: str) -> bool:
    return key[0] in _IN_KEYS and key[0] != "-" and key[-1] != ":"


def _has_word(text: str, keys: frozenset[str]) -> bool:
    # With a slash and a name behind it, it is another one: `import/order`.
    rests = ((key, rest) for key in keys for rest in _after(text, key))
    return any(not _is_word(key) or rest[:1] != "/" or rest[1:2] not in _IN_KEYS for key, rest in rests)


def _after(text: str, key: str) -> Iterator[str]:
    """Yield what follows a key, wherever it stands as a word of its own; with a sign at an end, anywhere."""
    at = text.find(key)
    while at >= 0:
        end = at + len(key)
        is_whole = (at == 0 or text[at - 1] not in _IN_KEYS) and text[end : end + 1] not in _IN_KEYS
        if is_whole or not _is_word(key):
            yield text[end : end + _MOST_AFTER]
        at = text.find(key, at + 1)


def _lines(text: str) -> list[str]:
    """Return lines as tools do, who know none of the other signs that Python would end one at."""
    return text.replace("\r", "\n").split("\n")


def _depth(line: str) -> int:
    return sum(line.count(sign) for sign in _OPENING) - sum(line.count(sign) for sign in _CLOSING)


def _new_in_package(old: str, new: str) -> str | None:
    """Return what is new among a package's settings for linters and hooks; no tool reads one that can't be parsed."""
    import json

    from fumehood.core.settings_text import parsed_package

    try:
        after = parsed_package(new)
    except ValueError:
        return None
    except RecursionError:
        return "nested too deeply"
    try:
        before = parsed_package(old)
    except (ValueError, RecursionError):
        before = {}
    if not isinstance(after, dict) or not isinstance(before, dict):
        return None
    for key, value in after.items():
        text, was = json.dumps(value, indent=1), json.dumps(before.get(key), indent=1)
        if text == was:
            continue
        if key in _PACKAGE_HOOKS or (key in _PACKAGE_LINTERS and isinstance(value, str)):
            return f"{key}: {text}"
        if key in _PACKAGE_LINTERS and (block := _new_block(was, text, _SCRIPTED)) is not None:
            return f"{key}: {block}"
    return None


def _new_option(old: str, new: str) -> str | None:
    """Return an option that loads code, with what follows it, from a file of RuboCop's words for a command line."""
    before, after = (dict.fromkeys(zip(each, [*each, ""][1:], strict=True)) for each in (old.split(), new.split()))
    for word, following in after:
        if word[:1] != "-":
            loads = False
        elif word[:2] != "--":
            loads = not _SHORT_LOADING.isdisjoint(word)  # several may be written as one
        else:
            loads = any(option.startswith(word.partition("=")[0]) for option in _LONG_LOADING)  # or cut short
        # A shell's quotes can hide anything.
        if (word, following) not in before and (loads or any(sign in word for sign in "\\\"'")):
            return f"{word} {following}"
    return None


# Settings that are a script in JavaScript or TypeScript: which of its lines are more than data.

_CODE_WORDS = word_set("import export from require eval new function async await get set class")
_DATA = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$ \t,:{}[].-")


def new_code(old: str, new: str) -> str | None:
    """Return the first line of a script that was not in it before and is more than data, or None."""
    before = {line.strip() for line in _script_lines(old)}
    has_template, in_comment = "`" in new, False
    for line in map(str.strip, _script_lines(new)):
        was_in_comment, in_comment = in_comment, _leaves_comment_open(line, is_open=in_comment)
        if line in before or not line:
            continue
        # What looks like a text or a comment is code if it stands in a template, or if it ends a comment around it.
        is_outside = (was_in_comment and "*/" in line) or (has_template and "${" in line) or line[0] == ":"
        if is_outside or not _is_data(line):
            return line
    return None


def _script_lines(text: str) -> list[str]:
    """Split where the language ends a line, and a comment with it."""
    for end in ("\r", "\u2028", "\u2029"):
        text = text.replace(end, "\n")
    return text.split("\n")


def _leaves_comment_open(line: str, *, is_open: bool) -> bool:
    """Return True if a line ends within a comment of several lines."""
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
    # A quote that is not closed was none: it stands in an expression.
    return is_open or (quote != "" and line.rfind("/*") > line.rfind("*/"))


def _is_data(line: str) -> bool:
    """Return True if a line of a script is data and nothing else: strings, names, brackets, a comment of its own."""
    if line.startswith("//"):
        return True
    plain, quote = [], ""
    for sign in line:
        if quote:
            quote = "" if sign == quote else quote
            if sign == "\\":
                return False
        elif sign in "'\"":
            quote = sign
            plain.append(" ")
        else:
            plain.append(sign)
    text = "".join(plain)
    if quote or not _DATA.issuperset(text):
        return False
    for sign in ",:{}[].-":
        text = text.replace(sign, " ")
    return _CODE_WORDS.isdisjoint(text.split())
