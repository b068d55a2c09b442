"""Settings that name code for a linter, a compiler or a hook to load; programs of virtual environments.

Such files change every day, and editors start these tools by themselves. So a change is held only where it brings
something that loads code. What a line means is told from its text alone: a tool's own parser may be led astray.
"""

from __future__ import annotations

import sys

from fumehood.core.changes import ADDED, DELETED, FILE, SYMLINK
from fumehood.core.concern import (
    INTERPRETERS,
    directory_of,
    flagged,
    held,
    is_anybodys,
    is_unchanged,
    lands,
    roots_of,
)
from fumehood.core.value import words
from fumehood.core.wording import brief as shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable

    from fumehood.core.changes import Change
    from fumehood.core.concern import Concern, DirectoryMeaning, Facts, Ground

# Keys, and sections in brackets, whose values name code. One that begins with a sign counts anywhere in a line.
_PYTHON = words(
    """init-hook load-plugins extension-pkg-allow-list extension-pkg-whitelist unsafe-load-any-extension local-plugins
    plugins python_executable library_path"""
)
_SCRIPTED = words(
    """extends plugins jsplugins parser processor rulesdirectory rulepaths customrules markdownitplugins
    outputformatters modulepaths customsyntax import formatter"""
)
_RUBY = words("<% require plugins inherit_from inherit_gem plugin_directories extend_config")
_CARGO = words(
    """rustc rustc-wrapper rustc-workspace-wrapper rustdoc linker runner rustflags credential-provider
    global-credential-providers env include"""
)
_MISE = words("hooks watch_files plugins source path file {{")
_ANSIBLE = words(
    """rulesdir library module_utils roles_path collections_path collections_paths executable action_plugins
    become_plugins cache_plugins callback_plugins cliconf_plugins connection_plugins filter_plugins inventory_plugins
    lookup_plugins strategy_plugins terminal_plugins test_plugins vars_plugins"""
)


def _table(*rows: tuple[frozenset[str], str]) -> dict[str, frozenset[str]]:
    return {name: keys for keys, names in rows for name in names.split()}


_NAMES = _table(
    (
        _PYTHON,
        """.pylintrc pylintrc .pylintrc.toml pylintrc.toml .flake8 setup.cfg tox.ini pyproject.toml mypy.ini .mypy.ini
        .sqlfluff .prospector.yml .prospector.yaml prospector.yml prospector.yaml""",
    ),
    (words("jsplugins extends"), ".oxlintrc.json"),  # its plugins are built in
    (_SCRIPTED, "tslint.json deno.json deno.jsonc analysis_options.yaml cspell.json .cspell.json cspell.yaml"),
    (_RUBY, ".rubocop.yml .rubocop_todo.yml .standard.yml .haml-lint.yml .erb-lint.yml .solargraph.yml"),
    (words("-r --require --plugin"), ".rubocop"),
    (_MISE, "mise.toml .mise.toml mise.local.toml .mise.local.toml"),
    (_ANSIBLE, "ansible.cfg .ansible-lint"),
    (words("custom"), ".golangci.yml .golangci.yaml .golangci.toml .golangci.json"),
    (words("plugin"), ".luarc.json .luarc.jsonc"),
    (words("path /"), "rust-toolchain rust-toolchain.toml"),
    (words("bootstrapfiles includes scanfiles"), "phpstan.neon phpstan.neon.dist phpstan.dist.neon"),
)
_PAIRS = {(".cargo", "config"): _CARGO, (".cargo", "config.toml"): _CARGO, (".pijul", "config"): words("hooks")}
# Their settings are called `.NAMErc`, `.NAMErc.yaml`, `NAME.config.js`, …
_TOOLS = words(
    """eslint prettier stylelint markdownlint markdownlint-cli2 commitlint textlint remark oxlint
    cspell tailwind graphql"""
)
_SCRIPTS = words("js cjs mjs ts cts mts")
_PACKAGE = "package.json"
# Top keys of a package.json: settings of linters, and commands that hooks run.
_PACKAGE_LINTERS = words("eslintConfig prettier stylelint remarkConfig commitlint textlint markdownlint-cli2 cspell")
_PACKAGE_HOOKS = words("husky lint-staged simple-git-hooks gitHooks pre-commit ghooks")
# Sections that cloning writes into a new repository's settings, and whole contents.
_CLONED_SECTIONS = {"hgrc": ("paths",), "config": ("paths",), "config.toml": ("revset-aliases", "user")}
_CLONED_CONTENTS = {"git_target": (b"git", b"../../../.git")}
_IN_KEYS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
# ASCII letters by their numbers: nobody writes these so who wants to be read.
_ESCAPED = tuple(f"{start}{digit}" for start in ("\\u00", "\\u{", "\\u000000", "\\x") for digit in "4567")
_OPENING, _CLOSING = "[{(", "]})"
_CODE_WORDS = words("import export from require eval new function async await get set class")
_DATA = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$ \t,:{}[].-")


def may_load(name: str, around: DirectoryMeaning) -> bool:
    """Return True if the content of a file, its name in lower case, may name code that a tool loads.

    Nobody's tools look into packages.
    """
    if name in _NAMES or name == _PACKAGE:
        is_named = True
    elif name[:1] == "." or ".config." in name:
        is_named = _tool(name) != ""
    else:
        is_named = around.parent[:1] == "." and (around.parent, name) in _PAIRS
    return is_named and not around.in_git and not around.is_packaged


def loading_concern(name: str, parent: str, facts: Facts | None) -> Concern | None:
    """Hold a file of settings that brings something new that loads code; None if nothing does."""
    if facts is None or facts.new is None or not facts.whole:
        return held("linter-settings", "a tool may load code that this names, and it could not be read")
    new = facts.new.decode("utf-8", "replace")
    old = (facts.old or b"").decode("utf-8", "replace")
    if new == old:
        return None
    line = _new_in_package(old, new) if name == _PACKAGE else _new_in_settings(name, parent, old, new)
    if line is None:
        return None
    return held("linter-settings", f"a linter, compiler or hook loads what this names by itself: {shown(line)}")


def is_what_cloning_writes(change: Change, name: str, facts: Facts | None) -> bool:
    """Return True if settings of another version control came with a new repository, and run nothing."""
    if change.change != ADDED or change.within is None or change.kind != FILE or facts is None or facts.new is None:
        return False
    if name in _CLONED_CONTENTS:
        return facts.new in _CLONED_CONTENTS[name]
    section = ""
    for line in _lines(facts.new.decode("utf-8", "replace")):
        text = line.strip()
        if not text or text[0] in "#;":
            continue
        if text[0] == "[" and text[-1] == "]":
            section = text[1:-1]
        elif section not in _CLONED_SECTIONS.get(name, ()) or "=" not in text:
            return False
    return bool(section)


def _new_in_settings(name: str, parent: str, old: str, new: str) -> str | None:
    keys = _NAMES.get(name) or _PAIRS.get((parent, name)) or _SCRIPTED
    if _tool(name) and name.rpartition(".")[2] in _SCRIPTS:
        before = {line.strip() for line in _lines(old)}
        fresh = [line.strip() for line in _lines(new) if line.strip() not in before]
        if (code := next((line for line in fresh if not _is_data(line)), None)) is not None:
            return code
    elif _tool(name) and ":" not in new and "=" not in new and new.strip():
        return new.strip()  # no key: the file is itself the name of what to load
    before = set(_blocks(old, keys))
    return next((block for block in _blocks(new, keys) if block not in before), None)


def _tool(name: str) -> str:
    """Return the tool that a file of settings is for, or nothing."""
    stem, is_config, _ = name.partition(".config.")
    if not is_config:
        stem = name[1:].partition(".")[0].removesuffix("rc") if name[0] == "." else ""
    return stem if stem in _TOOLS else ""


def _blocks(text: str, keys: frozenset[str]) -> list[str]:
    """Return each setting that loads code, from its key to the end of its value, without blanks at its ends.

    The value goes on while a bracket is open, where lines are indented further or begin a list, and for a section to
    the next one.
    """
    blocks: list[str] = []
    lines = _lines(text)
    for at, line in enumerate(lines):
        if not _names_code(line, keys):
            continue
        is_section = line.lstrip()[:1] == "[" and line.rstrip()[-1:] == "]"
        depth, indent, block = _depth(line), len(line) - len(line.lstrip()), [line.strip()]
        for further in lines[at + 1 :]:
            text_of = further.strip()
            if is_section:
                goes_on = text_of[:1] != "["
            else:
                is_deeper = len(further) - len(further.lstrip()) > indent
                goes_on = depth > 0 or not text_of or is_deeper or text_of.startswith("- ")
            if not goes_on:
                break
            depth += _depth(further)
            block.append(text_of)
        blocks.append("\n".join(block).strip())
    return blocks


def _names_code(line: str, keys: frozenset[str]) -> bool:
    text = line.strip().lower()
    if not text or text[0] in "#;" or text.startswith("//"):
        return False
    if "\\" in text and (any(letter in text for letter in _ESCAPED) or (text[0] == '"' and text[-1] == "\\")):
        return True  # a key may be spelled so that it is not seen
    return any(_has_key(text, key) for key in keys)


def _has_key(text: str, key: str) -> bool:
    if key[0] not in _IN_KEYS or key[0] == "-":
        return key in text
    at = text.find(key)
    while at >= 0:
        rest = text[at + len(key) :].lstrip().lstrip("\"'").lstrip()
        is_whole = (at == 0 or text[at - 1] not in _IN_KEYS) and text[at + len(key) : at + len(key) + 1] not in _IN_KEYS
        if is_whole and (rest[:1] in ("=", ":", "]", ".") or text[0] == "?"):
            return True
        at = text.find(key, at + 1)
    return False


def _lines(text: str) -> list[str]:
    """Return lines as tools do, who know none of the other signs that Python would end one at."""
    return text.replace("\r", "\n").split("\n")


def _depth(line: str) -> int:
    return sum(line.count(sign) for sign in _OPENING) - sum(line.count(sign) for sign in _CLOSING)


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


def _new_in_package(old: str, new: str) -> str | None:
    """Return what is new among a package's settings for linters and hooks; no tool reads one that can't be parsed."""
    import json

    try:
        after = json.loads(new.removeprefix("\ufeff"))
    except ValueError:
        return None
    except RecursionError:
        return "nested too deeply"
    try:
        before = json.loads(old.removeprefix("\ufeff"))
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
        if key in _PACKAGE_LINTERS:
            blocks = set(_blocks(was, _SCRIPTED))
            if (block := next((block for block in _blocks(text, _SCRIPTED) if block not in blocks), None)) is not None:
                return f"{key}: {block}"
    return None


# What a virtual environment runs: a program that takes another one's place there is held.
#
# An environment that is made anew has the same programs as before, and what an installer writes only starts a module.
# What a new package brings takes nobody's place, unless a program on the person's PATH has its name: who has activated
# the environment and types `git` means that one.

SETTINGS, _PROGRAMS = "pyvenv.cfg", "bin"
# What every environment has and people start without a thought: a new one stands for one that was removed before.
_ITS_OWN = ("python", "pypy", "pip", "activate", "Activate", SETTINGS)
# Programs that packages bring as they are, and that a project is built and checked with: they are the project's own.
_BUILDING = words(
    """actionlint bun ccmake cmake corepack cpack ctest deno go gofmt hadolint just maturin ninja node nodejs npm npx
    patchelf pnpm ruff shellcheck shfmt ty typos uv uvx yarn zig"""
)
_LONGEST_SCRIPT = 2048
# All that pip, uv and setuptools write into a script besides the function that it calls.
_SCRIPT_LINES = frozenset((
    "", "# -*- coding: utf-8 -*-", "import re", "import sys", "if __name__ == '__main__':",
    r"sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])",
    r"sys.argv[0] = re.sub(r'(-script\.pyw?|\.exe)?$', '', sys.argv[0])",
    "sys.argv[0] = sys.argv[0].removesuffix('.exe')",
    "if sys.argv[0].endswith('-script.pyw'):", "sys.argv[0] = sys.argv[0][:-11]",
    "if sys.argv[0].endswith('.exe'):", "elif sys.argv[0].endswith('.exe'):", "sys.argv[0] = sys.argv[0][:-4]",
))  # fmt: skip


def environments_of(changes: Iterable[Change]) -> set[tuple[int, str]]:
    """Return the directories, by root and path, that are virtual environments if a `pyvenv.cfg` is in them now."""
    directories = set()
    for change in changes:
        if change.change == DELETED or change.kind not in (FILE, SYMLINK):
            continue
        if change.kind == SYMLINK and change.before is not None:
            directories.add((change.root, change.path))
        directories.update((change.root, environment) for environment, _ in _places(change))
    return directories


def _places(change: Change) -> list[tuple[str, str]]:
    """Return each environment that a change may be to a program or the settings of, with the name there."""
    directory, _, name = change.path.rpartition("/")
    if change.kind == SYMLINK and name == _PROGRAMS:
        return [(directory, name)]
    # Python obeys settings beside its program before those that lie above it.
    places = [(directory, name)] if name == SETTINGS else []
    if name.startswith("__init__."):  # of a package that scripts beside it would load
        directory, _, name = directory.rpartition("/")
    above, _, last = directory.rpartition("/")
    return [*places, (above, name)] if last == _PROGRAMS else places


def _name_in(change: Change, environments: Container[tuple[int, str]]) -> str:
    """Return what a change to an environment is called there; "": it is to none of these."""
    return next((name for environment, name in _places(change) if (change.root, environment) in environments), "")


def is_program(change: Change, ground: Ground) -> bool:
    """Return True if a change is to an environment that was there before: its programs, or its settings."""
    return bool(ground.environments) and change.kind in (FILE, SYMLINK) and _name_in(change, ground.environments) != ""


def new_programs(changes: Iterable[Change], environments: Collection[tuple[int, str]]) -> set[str]:
    """Return the names of programs that are new in these environments."""
    if not environments:
        return set()
    fresh = (change for change in changes if change.change == ADDED and change.kind in (FILE, SYMLINK))
    return {name for change in fresh if (name := _name_in(change, environments))}


def environment_concern(change: Change, facts: Facts | None, ground: Ground) -> Concern | None:
    """Hold what takes the place of a program, of the environment's or on PATH, or has it use a command's Python."""
    if change.change == DELETED:
        return None
    if change.kind == SYMLINK and (change.root, change.path) in ground.environments:
        return held("environment-program", "leads to another place than the virtual environment that is here")
    if not is_program(change, ground):
        return None
    name = _name_in(change, ground.environments)
    stands_for_a_module = name.partition(".")[0] in sys.stdlib_module_names
    is_new = change.change == ADDED and not name.startswith(_ITS_OWN) and not stands_for_a_module
    replaced = (ground.commands or {}).get(name, "")
    if (is_new and not replaced) or (facts is not None and _is_harmless(change, facts, ground)):
        return None
    if not is_new:
        return held("environment-program", "takes the place of what this virtual environment ran before")
    reason = f"is run in place of {shown(replaced)} while this virtual environment is active"
    return flagged("environment-program", reason) if name in _BUILDING else held("environment-program", reason)


def _is_harmless(change: Change, facts: Facts, ground: Ground) -> bool:
    roots = roots_of(facts, ground)
    name = change.path.rpartition("/")[2]
    if change.kind == SYMLINK:
        is_as_before = facts.old == facts.target.encode("utf-8", "surrogateescape")
        return is_as_before or _leads_to_its_like(name, change, facts, ground)
    if is_unchanged(facts):
        return True
    if facts.new is None or not facts.whole:
        return False
    if name == SETTINGS:
        fresh = _homes(facts.new) - _homes(facts.old or b"")
        return not any(is_anybodys(home, roots, ground) for home in fresh)
    return _starts_a_module(facts.new, facts.old or b"", directory_of(change, facts))


def _leads_to_its_like(name: str, change: Change, facts: Facts, ground: Ground) -> bool:
    """Return True if a link leads to a program that is the same by its name: as `pip`, Python would run `./install`."""
    place = lands(directory_of(change, facts), facts.target) or ""
    target = place.rpartition("/")[2]
    is_interpreter = name.startswith(INTERPRETERS) and target.startswith(INTERPRETERS)
    if _is_python(facts.target):
        return is_interpreter
    return (is_interpreter or name == target) and not is_anybodys(place, roots_of(facts, ground), ground)


def _is_python(name: str) -> bool:
    return name.rstrip("0123456789.") in ("python", "pypy")


def _homes(content: bytes) -> set[str]:
    """Return where the settings of an environment say that its Python lies."""
    text = content.decode("utf-8", "surrogateescape")
    # Python itself ends a line at a newline only, and its library at a return too.
    pairs = (line.partition("=") for line in (*text.split("\n"), *text.replace("\r", "\n").split("\n")))
    return {value.strip() for key, _, value in pairs if key.strip().lower() == "home"}


def _starts_a_module(new: bytes, old: bytes, directory: str) -> bool:
    """Return True if a script is an installer's: the environment's own Python, which calls one function of a module."""
    if len(new) > _LONGEST_SCRIPT or not new.isascii():
        return False
    first, *body = new.decode().split("\n")
    interpreter = first.removeprefix("#!")
    if first == "#!/bin/sh" and len(body) > 2 and body[1] == "' '''":  # where the path is long or has a blank
        interpreter = body[0].removeprefix("'''exec' ").removesuffix(' "$0" "$@"').strip('"')
        body = body[2:]
    place, _, name = interpreter.rpartition("/")
    is_its_own = place == directory and _is_python(name)
    is_as_before = first == old.decode("utf-8", "replace").partition("\n")[0] and first != "#!/bin/sh"
    return (is_its_own or is_as_before) and all(map(_is_script_line, body))


def _is_script_line(line: str) -> bool:
    text = line.strip().replace('"', "'")
    if text in _SCRIPT_LINES:
        return True
    if text.startswith("from ") and " import " in text:
        dotted = text.removeprefix("from ").replace(" import ", ".", 1)
    elif text.startswith("sys.exit(") and text.endswith("())"):
        dotted = text.removeprefix("sys.exit(").removesuffix("())")
    else:
        return False
    return all(part.isidentifier() for part in dotted.split("."))
