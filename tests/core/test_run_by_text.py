"""What a line runs, and what settings say, is told from the text alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.core.what_runs import begins_as_command, directories_entered, files_run_by, texts_in_settings

THERE = ("check.sh", "check.py", "t/x.sh")


def runs(line: str) -> list[str]:
    return list(files_run_by(line, THERE.__contains__, "tool".__eq__))


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("sh check.sh a.sh", ["check.sh"]),
        ("FOO=1 exec ./t/x.sh y", ["./t/x.sh"]),
        ("bash -euo pipefail check.sh", ["pipefail", "check.sh"]),
        ("python3.12 -W ignore missing.py", ["ignore", "missing.py"]),
        ("timeout 5 python3 check.py data.json", ["check.py"]),
        ('subprocess.run(["sh", "check.sh"])', ["check.sh"]),
        ("uv run check.py", ["check.py"]),
        ("test -f env && . env.sh", ["env.sh"]),
        ("source_env_if_exists .envrc.private", [".envrc.private"]),
        ('"$CLAUDE_PROJECT_DIR"/t/x.sh', ["t/x.sh"]),
        ("parallel tool data", ["tool"]),
        ("ruff check . main.py", []),
        ("git add . && git commit README.md", []),
        ("python -c 'import json' package.json", []),
        ("node -p \"require('package.json').version\"", []),
        ("perl -pi -e 's/a/b/' README.md", []),
        ("eslint src/*.js", []),
        ("", []),
    ],
)
def test_what_a_line_runs(line: str, files: list[str]) -> None:
    assert runs(line) == files


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ('echo "now run README.md steps"', []),
        ("uv run ruff check src/main.py", []),
        ("uv run --frozen mypy --config-file mypy.ini src/main.py", []),
        ("uv run --env-file ./.env env", []),
        ("uv run -m mypy src/main.py", []),
        ("uv run --with tool --python 3.12 t/x", ["t/x"]),
        ("uv run python -X dev check.py", ["dev", "check.py"]),
        ("bun run -r ./hook.ts lint", ["./hook.ts"]),
        ("deno run -A --config deno.json main.ts", ["main.ts"]),
        ("deno fmt src/main.ts", []),
        ("bun x.ts", ["x.ts"]),
        ("go run ./cmd", ["./cmd"]),
        ("npm run types", []),
        ("docker run --rm --env-file ./.env img", []),
        ("cargo run --manifest-path ./Cargo.toml", []),
        ("bash -c 'mypy src/main.py'", []),
        ("bash -euo pipefail -c 'jq .version package.json'", ["pipefail"]),
        ("bash -lc 'X=1 exec t/x.sh a/b'", ["t/x.sh"]),
        ("sh -c 'cd t; sh x.sh'", ["x.sh"]),
        ("sh -c 'sh -c \"sh t/x.sh\"'", ["t/x.sh"]),
        ("sh check.sh -c t/y.sh", ["check.sh"]),
        ("python -m black --config pyproject.toml src", []),
        ("shellcheck tool", []),
        ("npx prettier --check tool", []),
        ("npx -y tool", ["tool"]),
        ("timeout -s KILL 5 tool tool", ["tool"]),
        ("time shellcheck tool", []),
        ("find . -type f -exec tool {} +", ["tool"]),
        ("git ls-files | xargs -r -n 1 t/new x/y", ["t/new"]),
        ("sudo -E env A=1 ./t/x.sh", ["./t/x.sh"]),
    ],
)
def test_what_a_line_only_names_is_not_run(line: str, files: list[str]) -> None:
    assert runs(line) == files


def test_where_a_line_goes() -> None:
    assert list(directories_entered("cd a && sh -c 'cd b; pushd \"c\"'")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"a": {"command": "node", "env": {"X": "y"}, "args": ["-r", "x", "s.js"]}}', ["node -r x s.js"]),
        ('[x]\ncommand = "sh"\nargs = [\n  "serve.sh",\n]\n', ["sh serve.sh"]),
        ("hooks: [{id: a, entry: t/c.sh, language: script}]", ["t/c.sh"]),
        ("- run: a\n- run: b  # why\n", ["a", "b  # why"]),
        ("x:\n  run: |\n    cd a: b\n    sh c\n  glob: d\n", ["cd a: b\n sh c"]),
        ("lint-cmd: 'sh x'\nread: y.py\n", ["sh x"]),
        ('{"args": ["s.js"], "env": {"A": "b"}, "command": "node"}', ["node s.js"]),
        ('{"a": {"command": "sh", "b": {"args": ["x"]}}, "c": {"args": ["y"]}}', ["sh"]),
        ('{"command": {"path": "node", "args": ["./s.js"]}}', ["node ./s.js"]),
        ('{"a.command": "node", "b.args": ["./x"], "a.args": ["s.js"]}', ["node s.js"]),
        ('{\n  "runArgs": [\n    "--env-file",\n    "./.env"\n  ]\n}', []),
        ('[a]\ncommand = "sh"\n[b]\nargs = ["x.sh"]\n[c]\nargs = ["y"]\ncommand = "node"\n', ["sh", "node y"]),
        ("- id: ruff\n  args: [--config, ./x]\n- id: b\n  entry: sh\n- id: c\n  args: [y]\n", ["sh"]),
        (
            "- hooks:\n  - entry: python\n    args:\n    - -m\n    - mypy\n- hooks:\n  - id: b\n    args: [p]\n",
            ["python -m mypy"],
        ),
        ("a:\n  command: node\n  env:\n    X: y\n  args: [s.js]\nb:\n  args: [t.js]\n", ["node s.js"]),
        (r'{"cmd": "sh -c \"./x\""}', ['sh -c "./x"']),
    ],
)
def test_what_stands_at_keys_that_run_it(text: str, lines: list[str]) -> None:
    assert [line.strip() for line, is_run in texts_in_settings(text) if is_run] == lines


def test_what_begins_as_a_command_does() -> None:
    assert begins_as_command("python x.py", "x".__eq__)
    assert begins_as_command("./x --all", "./x".__eq__)
    assert not begins_as_command("Bash(python x.py:*)", "x.py".__eq__)
    assert begins_as_command("uv run x.py", "x".__eq__)
    assert begins_as_command("deno run x.ts", "x".__eq__)
    assert not begins_as_command("", "x".__eq__)
    assert not begins_as_command("Run mypy on src/main.py", "x".__eq__)
    assert not begins_as_command("Python checks src/main.py", "x".__eq__)


@given(st.text(alphabet="ab.:/-|>#\"'\\{}[],=$ \n\t\0é"))
def test_any_text_gets_an_answer(text: str) -> None:
    for line, _ in texts_in_settings(text):
        begins_as_command(line, bool)
        list(files_run_by(line, bool, bool))
        list(directories_entered(line))


@pytest.mark.parametrize("word", ["sh a ", "sh -c ", "uv run a ", "xargs -a ", "env ", ". a "])
def test_a_line_of_very_many_words_gets_an_answer(word: str) -> None:
    assert len(runs(word * 15000)) <= 200 * 200
    assert runs(f"sh check.sh {word * 15000}")[0] == "check.sh"
