"""A setting that loads code is seen in whichever way it is spelled, and none is held for how it looks."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.core.changes import ADDED, FILE, Change
from fumehood.core.danger import ChangeFacts, find_concern
from fumehood.core.linter_settings import new_script_code
from fumehood.core.settings_text import Unclear, values_at
from judging import NO_RULES, ROOT, file, is_held, stamp

JSON_NAMES = (".eslintrc.json", ".prettierrc", ".prettierrc.json5", ".markdownlint-cli2.jsonc")
YAML_NAMES = (".prettierrc.yaml", ".eslintrc.yml", ".prettierrc", ".commitlintrc")

SPELLED = [
    *((name, text) for name in JSON_NAMES for text in (
        '{"root": true, "extends"\n: "./e.js"}',
        '{"root": true, "extends" \t\n\n : "./e.js"}',
        '{"extends"/**/: "./e.js"}',
        '{"extends" // x\n: "./e.js"}',
        '{"a": 1, /* \n// */ "extends"\n: "./e.js"}',
        '{"a": "\\u0065xtends", "e\\u0078\\u0074ends": "./e.js"}',
        '\ufeff{"extends"\n: "./e.js"}',
        '{"a": 1, "EXTENDS"\r\n: "./e.js"}',
        '// x\r"a"\r{"extends"\r: "./e.js"}',
        '// x\u2028{"extends"\n: "./e.js"}',
        '{"overrides": [{"files": "*", "parser"\n: "./e.js"}]}',
        '{"extends"\n: "a", "extends"\n: "./e.js"}',
        '/*/ {"extends"\n: "./e.js"} /*/ {"extends"\n: "./e.js"}',
    )),
    *((".prettierrc.json5", text) for text in (
        "{extends\n: './e.js'}",
        "{'ext\\\nends': './e.js'}",
        "{ext\\u0065nds: './e.js'}",
        "{plugins\ufeff: ['./e.js']}",
        "{// x\u2028plugins\n: ['./e.js']}",
        "'./e:x.js'",
        "// x\n'a: ./x.js'",
    )),
    *((name, text) for name in YAML_NAMES for text in (
        "x: &a plugins\n*a : [./e.cjs]\n",
        'a: 1\n? "plug\\\n  ins"\n: [./e.cjs]\n',
        '? "plug\\\n  ins"\n: [./e.cjs]\n',
        "a: [1]\n? >-\n  plugins\n: [./e.cjs]\n",
        "? |-\n  plugins\n: [./e.cjs]\n",
        "!!str plugins : [./e.cjs]\n",
        "x: {a: 1, ? plugins\n : [./e.cjs]}\n",
        "{\n; : 1, plugins: [./e.cjs]\n}\n",
        "{\n; : &a plugins, *a : [./e.cjs]\n}\n",
        "a: 1\n---\nx: &a plugins\n*a : [./e.cjs]\n",
        "b: &b\n  &k plugins : 1\nx: 2\n<<: *b\n",
        "# x\u2028plugins: [./e.cjs]\n",
        "# x\x85plugins: [./e.cjs]\n",
        "x: &a plugins\r*a : [./e.cjs]\r",
        "x: &a 'plugins'\n*a : [./e.cjs]\n%bad",
        "./e:vil.cjs",
        "/a//e:vil.cjs",
        "//e:vil.cjs\n{x/e.cjs\n",
        "./e:vil.cjs # \u2028",
        '"./e: vil.cjs"',
        "--- >-\n  ./e: vil.cjs\n",
    ) if not (name == ".commitlintrc" and "---\nx" in text)),
    # YAML is read after comments of JSON are cut out.
    (".eslintrc", 'parserOptions: {y: &c extends}\n#/*\nsettings: "\n#*/\n*c : ./e.cjs\n#"\n'),
    (".prettierrc", '{ /*x: &a plugins, *a : [./e.cjs], y: */ "semi": true}'),
    (".cargo/config.toml", '[build]\n"rustc\\u002dwrapper" = "./e.sh"\n'),
    (".cargo/config.toml", '[build]\n"rustc\\U0000002dwrapper" = "./e.sh"\n'),
    (".cargo/config.toml", '[build]\n"rustc\\x2dwrapper" = "./e.sh"\n'),
    (".cargo/config.toml", 'x = {a = """\n# """, rustc = "./e.sh"}\n'),
    (".cargo/config.toml", "x = {a = '''\n# ''', build = {rustc-wrapper = './e.sh'}}\n"),
    (".cargo/config.toml", '\ufeffbuild."rustc\\u002dwrapper" = "./e.sh"\n'),
    (".cargo/config", '[[x]]\n[build]\n"rustc\\u002dwrapper" = "./e.sh"\n'),
    ("pyproject.toml", '[tool.pylint.main]\n"init\\u002dhook" = "x"\n'),
    ("pyproject.toml", '[tool.mypy]\n"plugin\\u0073" = ["e"]\n'),
    ("mise.toml", "[env]\nA = \"{% set x = exec(command='x') %}\"\n"),
    ("mise.toml", "[env]\nA = \"{\\u007b exec(command='x') }}\"\n"),
    ("mise.toml", "[env]\nA = \"{\\u0025 set x = exec(command='x') %}\"\n"),
    ("mise.toml", '[env]\nLD_PRELOAD = "./e.so"\n'),
    ("mise.toml", '[shell_alias]\nls = "./e"\n'),
    ("mise.toml", '[tools]\nnode = "path:./e"\n'),
    (".tool-versions", "python 3.12\nnode path:./e\n"),
    (".golangci.toml", '"linters-settings.cust\\u006fm" = 1\n'),
    (".golangci.json", '{"linters-settings.custom"\n: 1}'),
    ("phpstan.neon", "parameters:\n\tx: {bootstrapFiles\n: [e.php]}\n"),
    ("phpstan.neon", 'parameters:\n\t"bootstrapFile\\u0073": [e.php]\n'),
    ("phpstan.neon", '"includ\\x65s": [e.neon]\n'),
    (".prettierrc", '{"$schema": "https://x.example/", "plugins"\n: ["./e.js"]}'),
    (".prettierrc", '{"$schema": "https://x.example/", "plu\\u0067ins": ["./e.js"]}'),
    (".prettierrc", '{"$schema": "https://x.example/", "plugins": ["./e.js"], "plugins": []}'),
    (".textlintrc", "{plugins/**/\n: ['./e.js']}"),
    (".textlintrc", "{// x\n'\\plugins': ['./e.js']}"),
    (".textlintrc", "{// x\n'a\\\\': 1, '\\\\\\plugins': ['./e.js']}"),
    ("prospector.yaml", "inherits: ./x.yaml\n"),
    # A key may be written in base64, which is a text to Ruby and Go; and as a table, which is one to Ruby.
    (".rubocop.yml", "!binary cmVxdWlyZQ==: ./e\n"),
    (".rubocop.yml", "AllCops: {x: !ruby/regexp /a/}\n!!binary cmVxdWlyZQ== : ./e\n"),
    (".rubocop.yml", "a: 1\n!<tag:yaml.org,2002:bin%61ry> cmVxdWlyZQ==: ./e\n"),
    (".rubocop.yml", "a: 1\n? !binary |\n  cmVxdWlyZQ==\n: ./e\n"),
    (".rubocop.yml", "a: 1\n? !str\n  {str: require}\n: ./e\n"),
    (".golangci.yml", "linters-settings: {!!binary Y3VzdG9t: {x: {path: e.so}}}\n"),
    ("setup.cfg", f"[mypy]\nplugins{' ' * 500}= ./e.py\n"),
    # Options of pylint's may be cut short.
    (".pylintrc", "[MAIN]\nunsafe-load-any=yes\n"),
    (".pylintrc", "[MAIN]\nu=yes\n"),
    (".pylintrc", "[MAIN]\nextension-pkg-allow=e\n"),
    ("setup.cfg", "[pylint.MAIN]\noutput-form = e.R\n"),
    ("pyproject.toml", "[tool.pylint.main]\nunsafe = true\n"),
    ("pyproject.toml", '[tool."\\u0070ylint".main]\nunsafe = true\n'),
    ("prospector.yaml", "pylint:\n  options:\n    unsafe-load-any-extension: true\n"),
    # To JavaScript a number may be of any length.
    ("package.json", f'{{"a": {"1" * 5000}, "lint-staged": {{"*": "evil"}}}}'),
    ("package.json", f'{{"a": {"1" * 5000}, /**/ "eslintConfig": {{"extends": "./e.cjs"}}}}'),
    (".eslintrc.json", '{"settings": {"import/resolver": {"./e.js": {}}}}'),
    (".eslintrc.yml", "settings:\n  import/parsers: {./e.js: [.js]}\n"),
    (".eslintrc.json", '{"parserOptions": {"babelOptions": {"configFile": "./e.js"}}}'),
    (".eslintrc.json", '{"parserOptions": {"babelOptions": {"presets": ["./e.js"]}}}'),
    (".stylelintrc.json", '{"processors": ["./e.js"]}'),
    (".commitlintrc.json", '{"parserPreset": "./e.js"}'),
    ("cspell.json", '{"reporters": ["./e.js"]}'),
    ("package.json", '{/**/"eslintConfig": {"extends": "./e.cjs"}}'),
    ("package.json", '{"eslintConfig": {"extends": "./e.cjs"}} // x'),
    ("package.yaml", "prettier: ./e.cjs\n"),
    ("package.yaml", "x: &a prettier\n*a : ./e.cjs\n"),
    ("package.yaml", "<<: {x: &a prettier, *a : ./e.cjs}\n"),
    ("package.yaml", "lint-staged: {'*': evil}\n"),
    (".rubocop", "--req ./e.rb\n"),
    (".rubocop", "-Dr ./e.rb\n"),
    (".rubocop", '-""r ./e.rb\n'),
    (".rubocop", "--plug=e\n"),
    (".rubocop", "-D -c e.yml\n"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "text"), SPELLED)
def test_no_spelling_hides_what_loads_code(path: str, text: str) -> None:
    assert is_held(file(path, text.encode()))
    for old in (b"", b"a: 1\n", b'{"a": 1}', b"{", b"a = 1\n", b"semi: false\n"):
        assert is_held(file(path, text.encode(), old=old))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_are_not_read_past(encoding: str) -> None:
    for path in (".golangci.yml", ".eslintrc.yml", "setup.cfg", "package.json", "eslint.config.js", ".rubocop"):
        assert is_held(file(path, "a: 1\nplugins: [x]\n".encode(encoding), old=b"a: 1\n"))


HARMLESS = [
    (".eslintrc.json", '{"rules": {"import/order"\n: "off", "x": "plugins", "y": ["extends"]}}'),
    (".eslintrc.json", '{"rules": {"no-irregular": ["\\u0020", "\\\\.js$"]}}'),
    (".eslintrc", "rules:\n  import/order: off\n  import/extensions: off\n"),
    (".eslintrc", '{\n\t"rules": {"import/order": "off"}\n}\n'),
    (".eslintrc", '{\n\t// our rules\n\t"rules": {"semi": "off"}\n}\n'),
    (".eslintrc.yml", "rules: &r\n  semi: 'off'\noverrides:\n- files: ['*.ts']\n  rules: *r\n"),
    (".eslintrc.yml", "env:\n  browser: true\n# no plugins here\nrules:\n  quotes: [2, \"double\"]\n"),
    (".prettierrc", "semi: false\noverrides:\n  - files: '*.md'\n    options: {proseWrap: always}\n"),
    (".prettierrc", ""),
    (".prettierrc.json5", "{semi: false, // for now\n}"),
    (".commitlintrc.yml", "rules:\n  scope-enum: [2, always, [parser, import, plugins, x]]\n"),
    ("pyproject.toml", '[project]\nkeywords = ["plugins", "inherits"]\nreadme = """\nplugins\n"""\n'),
    ("pyproject.toml", '[tool.ruff.lint]\nselect = ["E"]\n[tool.pytest]\nx = "\\\\d+ plugins"\n'),
    (".cargo/config.toml", '[alias]\nlinker-check = "check"\n[net]\nretry = 3\n'),
    ("mise.toml", '[tools]\nnode = "22"\npython = {version = "3.12"}\n'),
    (".tool-versions", "python 3.12.1\nnodejs ref:v22 lts\n"),
    (".rubocop.yml", "Gemspec/RequireMFA:\n  Enabled: false\nRegex: '\\d'\n"),
    (".golangci.yml", "linters:\n  enable: [errcheck]\n# custom later\n"),
    ("phpstan.neon", "parameters:\n\tlevel: 8\n\tpaths:\n\t\t- src\n"),
    ("phpstan.neon", "parameters:\n\tignoreErrors:\n\t\t- '#Class App\\\\User not\\.#'\n\t\t- App\\Data\\Thing\n"),
    ("package.yaml", "name: x\ndevDependencies:\n  prettier: ^3\n  husky: ^9\n"),
    (".rubocop", "--parallel\n--format progress\n-D\n"),
    (".rubocop.yml", "Naming/FileName:\n  Regex: !ruby/regexp /\\A[a-z]+\\z/\n"),
    (".eslintrc", '{\n// ours\n"ignorePatterns": ["!src", "!.storybook/**"]\n}\n'),
    ("pyproject.toml", '[tool.ruff]\noutput-format = "full"\n[tool.x]\ny = "\\\\d"\n'),
    ("setup.cfg", "[metadata]\nauthor = U.S. Example\n"),
    ("eslint.config.js", "  files: ['**/*.ts'],\n  ignores: ['dist/*', '*/x'],\n  // all of them\n"),
]


@pytest.mark.parametrize(("path", "text"), HARMLESS)
def test_what_loads_nothing_is_not_held_for_how_it_looks(path: str, text: str) -> None:
    assert not is_held(file(path, text.encode()))
    assert not is_held(file(path, text.replace("\n", "\r\n").encode()))


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("pyproject.toml", '[tool.mypy]\nplugins = ["p"]\n', '[project]\nname = "x"\n[tool.mypy]\nplugins = ["p"]\n'),
        (".eslintrc.yml", "extends: [a]\nrules: {}\n", "rules:\n  semi: off\nextends: [a]\n"),
        (".eslintrc.json", '{\n  "extends": "a"\n}\n', '{\n  "extends": "a",\n  "rules": {"import/order": "off"}\n}\n'),
        (".cargo/config.toml", '[env]\nA = "1"\n', '[env]\nA = "1"\n\n[net]\nretry = 3\n'),
        ("setup.cfg", "[mypy]\nplugins =\n  a\n# x\n[x]\n", "[mypy]\nplugins =\n  a\n# y\n[x]\nz = 1\n"),
        ("phpstan.neon", "includes:\n\t- a.neon\n", "includes:\n\t- a.neon\nparameters:\n\tx:\n\t\t- '#A\\\\X\\.#'\n"),
        (".eslintrc", '{\n// base\n"rules": {\n}}\n', '{\n// base\n"rules": {\n"import/order": "warn"\n}}\n'),
        (".prettierrc", '{"$schema": "https://x/"}', '{"$schema": "https://x/", "importOrder": ["^\\\\w"]}'),
        (".stylelintrc", '{\n// x\n"rules": {\n}}\n', '{\n// x\n"rules": {\n"selector-class-pattern": "\\\\d"\n}}\n'),
    ],
)  # fmt: skip
def test_an_ordinary_edit_beside_it_is_not_held(path: str, old: str, new: str) -> None:
    assert not is_held(file(path, new.encode(), old=old.encode()))


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        # What goes on behind a comment; behind a section that is none; below a section with a comment.
        ("setup.cfg", "[mypy]\nplugins =\n  a\n", "[mypy]\nplugins =\n  a\n# x\n  ./e.py\n"),
        (".flake8", "[flake8:local-plugins]\npaths = x\n", "[flake8:local-plugins]\npaths = x\n  [z]\nextension = E\n"),
        (".flake8", "[flake8:local-plugins] # ours\n", "[flake8:local-plugins] # ours\nextension = E=e:P\n"),
        ("setup.cfg", "[mypy]\n", "[mypy]\n# x\x85plugins = ./e.py\n"),
        ("setup.cfg", "[mypy]\n", "[mypy]\nplugins\x85= ./e.py\n"),
        # The same setting at another place.
        (".prettierrc.yaml", "x:\n  plugins: [a]\n", "plugins: [a]\nx:\n  plugins: [a]\n"),
        ("pyproject.toml", '[tool.x]\nplugins = ["e"]\n', '[tool.x]\n[tool.mypy]\nplugins = ["e"]\n'),
        # A word that was there, and becomes a key.
        (".eslintrc.json", '{"a": [\n"plugins"\n]}', '{"a": {\n"plugins"\n:["./e.js"]}}'),
        (".prettierrc.json5", "{a: [\n'plugins'\n]}", "{a: {\n'plugins'\n:['./e.js']}}"),
        (".prettierrc.yaml", "x: &a plugins\n", "x: &a plugins\n*a : [./e.cjs]\n"),
        (".prettierrc", "x: &a plugins # //\n", "x: &a plugins # //\n*a : [./e.cjs]\n"),
        (".rubocop", "--require a\n", "--require ./e.rb\n"),
    ],
)  # fmt: skip
def test_what_an_edit_makes_of_what_was_there_is_held(path: str, old: str, new: str) -> None:
    assert is_held(file(path, new.encode(), old=old.encode()))


@pytest.mark.parametrize(
    ("old", "line", "at"),
    [
        ("module.exports = {\n};\n", '// see\u2028x: require("./e"),', 1),
        ("module.exports = {\n};\n", '// see\u2029x: require("./e"),', 1),
        ("module.exports = {\n};\n", '// see\rx: require("./e"),', 1),
        ("/*\n text\n*/\nmodule.exports = {};\n", '// */ require("./e") /*', 1),
        ("/* it's\n text\n*/\nmodule.exports = {};\n", "'*/ require(\"./e\") /*'", 2),
        ("const a = /'/; /* x\n text\n*/\nmodule.exports = {};\n", '// */ require("./e") /*', 1),
        ("const a = `\n text\n`;\n", '// ${require("./e")}', 1),
        ("const a = `\n text\n`;\n", "'${require(\"./e\")}'", 2),
        ("module.exports = {\n};\n", "plugins\n: ['./e.js'],", 1),
        ("module.exports = {\n};\n", "'extends'\n: './e.js',", 1),
        ("module.exports = {a: [\n'plugins'\n]};\n", ": ['./e.js'],", 2),
    ],
)
def test_a_script_hides_no_code_in_texts_and_comments(old: str, line: str, at: int) -> None:
    lines = old.split("\n")
    new = "\n".join([*lines[:at], line, *lines[at:]])
    for path in ("prettier.config.js", "eslint.config.mjs", ".eslintrc.cjs"):
        assert is_held(file(path, new.encode(), old=old.encode()))


def test_data_in_a_script_with_comments_is_not_held() -> None:
    old = "/**\n * Ours.\n */\nexport default [{\n  ignores: ['dist/*'],\n}];\n"
    new = old.replace("}];", "  files: ['**/*.ts', \"a/*\"],\n  // for **/*.ts\n}];")
    assert not is_held(file("eslint.config.js", new.encode(), old=old.encode()))
    assert new_script_code(old, new) is None


def test_a_bomb_is_held_soon() -> None:
    aliases = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))
    bombs = [
        f"a0: &a0 [plugins]\n{aliases}\n", "&a [*a, plugins]", "plugins [" + "[" * 60_000, "- " * 30_000 + "plugins",
        "? " * 30_000 + "plugins", "{plugins,"  * 7_000, "plugins: &a [*a]", "a: 1\n" * 200_000 + "plugins x",
    ]  # fmt: skip
    begun = time.monotonic()
    for bomb in bombs:
        assert is_held(file(".prettierrc.yaml", bomb.encode(), old=b"a: 1\n")), bomb[:20]
        file(".cargo/config.toml", bomb.encode(), old=b"a = 1\n")
    assert time.monotonic() - begun < 20


YAML_LETTERS = st.text(st.sampled_from("plugins*&a:? \n-[]{}\"'\\|>#!%,x/\tU0f~@`=<."), max_size=60)


@pytest.mark.long
@given(st.sampled_from(["yaml", "json", "toml", "json or yaml"]), YAML_LETTERS | st.text(max_size=40))
def test_a_parser_answers_or_says_that_it_is_unclear(kind: str, text: str) -> None:
    with suppress(Unclear):
        values_at(text, kind, lambda word, above: above is not None and word == "plugins")


CLONED = {
    ".hg/hgrc": b"[paths]\ndefault = https://x.example/\n",
    ".sl/config": b"[paths]\ndefault = https://x.example/\n",
    ".jj/repo/config.toml": b'[user]\nname = "x"\n',
}


@pytest.mark.parametrize("path", CLONED)
@pytest.mark.parametrize(
    "worse",
    [
        b"[hooks];=\npre-status = x\n", b"[hooks] # =\npre-status = x\n", b"[hooks]=\npre-status = x\n",
        b"%include a=b\n", b"%unset a=b\n", b" [hooks]=\n", b"\t[ui]=\npager = x\n", b"[ui] # =\npager = 'x'\n",
        b"[hooks]\x0b=\npre-status = x\n", b"# x\x0c[hooks]\npre-status = x\n",
        b"#\xe2\x80\xa8[hooks]\npre-status = x\n",
        b"[hooks]\rpre-status = x\r", b"\xef\xbb\xbf[hooks];=\npre-status = x\n", b"a = 1\n  b = 2\n",
        b'a = """\n[x]\n"""\n', b"a = '''\n[x]\nb = '''\n", b"a = [\n[ui]\n]\n", b"[[ui]]\npager = 'x'\n",
        b"[ui]\npager = 'x'\n[paths]\n", b"[ui.x]=\npager = 'x'\n", b"= x\n", b"a\0 = b\n", b"a b = c\n",
    ],
)  # fmt: skip
def test_settings_of_a_new_repository_that_say_more_than_cloning_does_are_held(path: str, worse: bytes) -> None:
    new = Change(0, f"x/{path}", ADDED, FILE, after=stamp(), within="x")
    assert find_concern(new, ChangeFacts(new=CLONED[path], root=ROOT), NO_RULES) is None
    for content in (CLONED[path] + worse, worse + CLONED[path]):
        assert is_held(find_concern(new, ChangeFacts(new=content, root=ROOT), NO_RULES))


@pytest.mark.parametrize("path", CLONED)
def test_settings_of_a_new_repository_that_are_too_long_to_be_read_whole_are_held(path: str) -> None:
    new = Change(0, f"x/{path}", ADDED, FILE, after=stamp(), within="x")
    assert is_held(find_concern(new, ChangeFacts(new=CLONED[path], is_complete=False, root=ROOT), NO_RULES))


@pytest.mark.parametrize("path", [".hg/sharedpath", ".jj/repo", ".hg/hgrc-not-shared", "_darcs/prefs/defaults"])
def test_what_is_no_table_of_settings_is_never_what_cloning_writes(path: str) -> None:
    new = Change(0, f"x/{path}", ADDED, FILE, after=stamp(), within="x")
    for content in (b"[x]", b"[x]\n", b"[paths]\ndefault = x\n"):
        assert is_held(find_concern(new, ChangeFacts(new=content, root=ROOT), NO_RULES))
