"""Which lines of settings load code, and that only new ones are held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.core.changes import ADDED, FILE, SYMLINK, Change
from fumehood.core.danger import ChangeFacts, find_concern, wants_facts
from judging import NO_RULES, ROOT, added, file, is_flagged, is_held, modified, stamp

LOADING = {
    ".pylintrc": "[MAIN]\ninit-hook=import os\n",
    "pylintrc": "[MAIN]\nload-plugins=evil\n",
    ".flake8": "[flake8:local-plugins]\nextension =\n  X = evil:P\n",
    "setup.cfg": "[mypy]\nplugins = ./evil.py\n",
    "tox.ini": "[pylint.MAIN]\nINIT-HOOK : x\n",
    "pyproject.toml": "[tool.mypy]\nplugins = [\n  'evil',\n]\n",
    "mypy.ini": "[mypy]\npython_executable=./evil\n",
    ".sqlfluff": "[sqlfluff:templater:jinja]\nlibrary_path=lib\n",
    ".eslintrc": '{"root": true, "extends": "./evil.js"}',
    ".eslintrc.json": '{"rules": {}, "overrides": [{"parser": "./evil.js"}]}',
    ".eslintrc.yml": "plugins:\n- evil\n",
    "eslint.config.mjs": 'import evil from "./evil.js";\nexport default [];\n',
    ".prettierrc": '"./evil.cjs"',
    ".prettierrc.toml": 'plugins = ["./evil.cjs"]',
    "prettier.config.js": 'module.exports = {\n  plugins: ["./evil.js"],\n};\n',
    ".stylelintrc.yaml": "customSyntax: ./evil.js\n",
    ".markdownlint-cli2.jsonc": '{"customRules": ["./evil.js"]}',
    ".oxlintrc.json": '{"jsPlugins": ["./evil.js"]}',
    ".commitlintrc.yml": "extends: [./evil.js]\n",
    "tailwind.config.ts": "export default { plugins: [require('./evil')] };",
    "package.json": '{"name": "x", "eslintConfig": {"extends": "./evil.js"}}',
    ".rubocop.yml": "require: ./evil\n",
    ".rubocop": "--require ./evil\n",
    "ansible.cfg": "[defaults]\ncallback_plugins = ./p\n",
    "rust-toolchain.toml": '[toolchain]\npath = "/tmp/evil"\n',
    "rust-toolchain": "/tmp/evil\n",
    ".cargo/config.toml": '[build]\nrustc-wrapper = "./evil"\n',
    "mise.toml": '[env]\n_.source = "./evil.sh"\n',
    ".mise.toml": '[settings]\nenv_file = ".env"\n',
    ".prototools": '[env]\nLD_PRELOAD = "./evil.so"\n',
    ".golangci.yml": "linters-settings:\n  custom:\n    evil:\n      path: ./evil.so\n",
    ".luarc.json": '{"runtime.plugin": "./evil.lua"}',
    ".gitlint": "[general]\nextra-path=evil.py\n",
    ".config/stylelintrc.json": '{"extends": "./evil.js"}',
    ".config/commitlintrc": "extends: [./evil.js]\n",
    ".config/prettierrc.mjs": 'import evil from "./evil.js";\nexport default evil;\n',
    ".config/rubocop/config.yml": "require: ./evil\n",
    "cspell.yml": "import: [./evil.js]\n",
    "cspell.jsonc": '{"import": ["./evil.js"]}',
    ".cspell.config.yaml": "import: [./evil.js]\n",
    ".pijul/config": "[hooks]\nrecord = ['evil']\n",
    "pyrefly.toml": 'python-interpreter-path = "./evil"\n',
    "found/pyrefly.toml": 'python-interpreter-find-command = ["./evil"]\n',
    "named/pyrefly.toml": 'fallback-python-interpreter-name = "./evil"\n',
    "older/pyrefly.toml": 'python_interpreter = "./evil"\n',
    "custom/pyrefly.toml": '[build-system]\ntype = "custom"\ncommand = ["./evil"]\n',
    "pyrefly/pyproject.toml": '[tool.pyrefly.build-system]\ntype = "custom"\ncommand = ["./evil"]\n',
    "pylsp/pyproject.toml": '[tool.pylsp-mypy]\noverrides = ["--python-executable", "./evil", true]\n',
    "dotted/pyproject.toml": '[tool]\npylsp-mypy.overrides = ["--python-executable", "./evil", true]\n',
    "pylsp-mypy.cfg": '{"over" "rides": ["--python-executable", "./evil"]}\n',
    "dprint.json": '{"plugins": ["./evil.json@x"]}\n',
    ".project": (
        "<buildCommand>\n<name>org.eclipse.ui.externaltools.ExternalToolBuilder</name>\n<triggers>auto</triggers>\n"
        "</buildCommand>\n"
    ),
    "spelled/.project": "<name>org.eclipse.ui.externaltool&#115;.ExternalToolBuilder</name>\n",
    "psalm.xml": '<psalm errorLevel="3">\n<plugins><pluginClass class="Evil"/></plugins>\n</psalm>\n',
    "psalm.xml.dist": '<psalm\n  autoloader="./evil.php">\n</psalm>\n',
    "phpcs.xml": '<ruleset name="x">\n<rule ref="./evil"/>\n</ruleset>\n',
    ".phpcs.xml.dist": '<ruleset>\n<arg name="bootstrap" value="./evil.php"/>\n</ruleset>\n',
    "spelled/phpcs.xml": '<!DOCTYPE x [<!ENTITY y SYSTEM "evil">]>\n<ruleset/>\n',
    "treefmt.toml": '[formatter.python]\ncommand = "./evil"\nincludes = ["*.py"]\n',
}
HARMLESS = {
    ".pylintrc": "[MAIN]\nmax-line-length=120\n# init-hook=x\n",
    ".flake8": "[flake8]\nextend-ignore = E203\nexclude = plugins\n",
    "setup.cfg": "[metadata]\nname = plugins\n",
    "pyproject.toml": '[project]\ndependencies = ["pytest-plugins==1", "flake8-local-plugins"]\n',
    ".eslintrc.json": '{"rules": {"no-console": "off"}}',
    "eslint.config.js": "  'no-console': 'off',\n  files: ['**/*.ts'],\n  // a word\n",
    ".prettierrc": '{"semi": false}',
    ".oxlintrc.json": '{"plugins": ["react", "typescript"]}',
    ".prettierrc.yaml": "semi: false\nsingleQuote: true\n",
    "tailwind.config.js": "  content: ['./src/**/*.{js,ts}'],\n",
    "package.json": '{"devDependencies": {"prettier": "^3", "husky": "^9"}, "prettier": {"semi": false}}',
    ".rubocop.yml": "Style/StringLiterals:\n  Enabled: false\n",
    "rust-toolchain.toml": '[toolchain]\nchannel = "1.80"\n',
    "rust-toolchain": "stable\n",
    ".prototools": 'node = "22.1.0"\n[settings]\nauto-install = true\n',
    ".gitlint": "[general]\nignore=T3,body-is-missing\n",
    ".config/stylelintrc.json": '{"rules": {"color-no-invalid-hex": true}}',
    "cspell.yml": "words: [fumehood]\nignorePaths: [dist]\n",
    ".cargo/config.toml": '[registries.x]\nindex = "sparse+https://x"\n',
    "mise.toml": '[tools]\nnode = "22"\n',
    "pyrefly.toml": 'project-includes = ["src"]\npython-version = "3.12"\n',
    "dprint.json": '{"lineWidth": 100}\n',
    "psalm.xml": '<psalm errorLevel="3">\n<projectFiles><directory name="src"/></projectFiles>\n</psalm>\n',
    "phpcs.xml": "<ruleset>\n<!-- ours -->\n<file>src</file>\n<exclude-pattern>*.php</exclude-pattern>\n</ruleset>\n",
    "treefmt.toml": '[global]\nexcludes = ["*.min.js"]\n',
    ".project": "<projectDescription>\n<name>x</name>\n<nature>org.eclipse.jdt.core.javanature</nature>\n",
}


@pytest.mark.parametrize("path", LOADING)
def test_what_loads_code_is_held_when_it_is_new(path: str) -> None:
    content = LOADING[path].encode()
    assert wants_facts(added(path))
    assert is_held(file(path, content))
    assert is_held(file(path, content, old=b""))
    assert is_held(find_concern(added(path), None, NO_RULES))
    assert is_held(find_concern(modified(path), ChangeFacts(old=b"", new=b"", is_complete=False, root=ROOT), NO_RULES))


@pytest.mark.parametrize("path", LOADING)
def test_what_loaded_code_before_may_change_elsewhere(path: str) -> None:
    content = LOADING[path].encode()
    if path in (".prettierrc", "rust-toolchain", "package.json", ".eslintrc", ".eslintrc.json", ".luarc.json",
                "dprint.json"):  # fmt: skip
        return  # one value
    addition = b"'more': 'off',\n" if path.endswith(("js", "ts")) else b"\n[more]\nmore = 1\n"
    before = content if content.endswith(b"\n") else content + b"\n"
    assert not is_held(file(path, before + addition, old=before))
    assert not is_held(file(path, before, old=before + addition))


@pytest.mark.parametrize("path", HARMLESS)
def test_what_loads_nothing_is_not_held(path: str) -> None:
    content = HARMLESS[path].encode()
    assert not is_held(file(path, content))
    assert not is_held(file(path, content, old=b"x"))


def test_a_package_that_is_called_as_a_tools_settings_are_is_not_held() -> None:
    content = b'[tool.poetry.group.dev.dependencies]\npyrefly = "*"\npylsp-mypy = "^0.6"\n'
    assert not is_held(file("pyproject.toml", content))
    assert not is_held(file("pyproject.toml", content, old=b"[tool.poetry]\n"))


def test_what_runs_when_a_person_builds_is_flagged_as_ever() -> None:
    for path in ("pyproject.toml", "package.json", "setup.cfg", ".cargo/config.toml"):
        assert is_flagged(file(path, HARMLESS[path].encode()))


def test_a_list_that_gets_one_more_is_held() -> None:
    old = b'[tool.mypy]\nplugins = [\n  "pydantic.mypy",\n]\nstrict = true\n'
    assert is_held(file("pyproject.toml", old.replace(b'",\n]', b'",\n  "evil",\n]'), old=old))
    assert not is_held(file("pyproject.toml", old.replace(b"true", b"false"), old=old))


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (".eslintrc.json", rb'{"a": 1, "plu\u0067ins": ["evil"]}'),
        (".eslintrc.yml", rb'"plug\x69ns": [evil]'),
        (".eslintrc.yml", b'"plug\\\nins": [evil]'),
        (".eslintrc.yml", b"? plugins\n: [evil]"),
        (".eslintrc.yml", b"x: {plugins : [evil]}"),
        ("setup.cfg", b"[mypy]\nplugins\x0c= evil\n"),
        ("setup.cfg", b"[mypy]\rplugins= evil\r"),
        ("pyproject.toml", b'[tool]\nmypy = {"plugins" = ["evil"]}\n'),
        ("pyproject.toml", b'tool . mypy . "plugins" = ["evil"]\n'),
        ("package.json", b'\xef\xbb\xbf{"prettier": "./evil.js"}'),
        ("package.json", b'{"prettier": 1, "prettier": "./evil.js"}'),
        ("package.json", b'{"lint-staged": {"*": "evil"}}'),
        ("package.json", b"[" * 100_000),
        ("eslint.config.js", b"  'a': `${evil()}`,"),
        ("eslint.config.js", b'import "./evil.js"'),
        ("eslint.config.js", b"  get x() { evil }"),
    ],
)
def test_another_spelling_does_not_pass(path: str, content: bytes) -> None:
    assert is_held(file(path, content, old=b"{}"))


def test_a_link_in_place_of_settings_is_held() -> None:
    assert is_held(find_concern(added(".flake8", SYMLINK, 0o777), ChangeFacts(target="x", root=ROOT), NO_RULES))


def test_nobodys_tools_look_into_packages() -> None:
    for path in ("node_modules/x/package.json", "node_modules/x/.eslintrc", "venv/lib/site-packages/x/setup.cfg"):
        assert not is_held(file(path, LOADING.get(path.rpartition("/")[2], "{}").encode()))


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (".hg/hgrc", b"# example\n[paths]\ndefault = https://example.org/x\n\n[ui]\n# username = x\n"),
        (".sl/config", b"[paths]\ndefault = https://example.org/x\n"),
        (".jj/repo/config.toml", b'[revset-aliases]\n"trunk()" = "main@origin"\n'),
        (".jj/repo/store/git_target", b"../../../.git"),
    ],
)
def test_what_cloning_writes_into_a_new_repository_passes(path: str, content: bytes) -> None:
    facts = ChangeFacts(new=content, root=ROOT)
    new = Change(0, f"x/{path}", ADDED, FILE, after=stamp(), within="x")
    assert wants_facts(new)
    assert find_concern(new, facts, NO_RULES) is None
    assert is_held(find_concern(added(f"x/{path}"), facts, NO_RULES))
    hooks, including = b"[hooks]\nupdate = evil\n", b"[paths]\n%include /tmp/x\n"
    for worse in (hooks, including, b"%include /tmp/x\n", b"/tmp/evil.git", b""):
        assert is_held(find_concern(new, ChangeFacts(new=worse, root=ROOT), NO_RULES))


@given(st.sampled_from(sorted(LOADING)), st.text(max_size=80), st.text(max_size=80))
def test_any_content_gets_an_answer(path: str, old: str, new: str) -> None:
    parts = old.encode("utf-8", "replace"), new.encode("utf-8", "replace")
    answer = file(path, parts[1], old=parts[0])
    assert answer is None or answer.reason
    assert not is_held(file(path, parts[0], old=parts[0]))
