"""What runs by itself leads to the files that it runs, in whatever words; what it merely names stays free to edit."""

import os
import subprocess
from pathlib import Path

import pytest

from fumehood import Sandbox
from fumehood.linux import project_tree

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

TASKS = '{"tasks": [{"label": "x", "command": "sh", "args": ["${workspaceFolder}/t/x.sh"]%s}]}'
RUN = [
    (".git/hooks/pre-commit", "#!/bin/sh\nsh check.sh\n", "check.sh"),
    (".git/hooks/pre-commit", "#!/bin/sh\nif true; then\n  . env.sh\nfi\n", "env.sh"),
    (".git/hooks/pre-push", "#!/bin/sh\npython3 -W ignore check.py main.py\n", "check.py"),
    (".git/hooks/pre-push", "#!/bin/sh\ncd t && exec bash x.sh\n", "t/x.sh"),
    (".husky/pre-commit", "node lint.js --fix\n", "lint.js"),
    (".husky/pre-commit", "cd t\ngit ls-files | xargs -n1 sh x.sh\n", "t/x.sh"),
    (".envrc", "source_env_if_exists .envrc.private\n", ".envrc.private"),
    (".envrc", 'use flake\n[ -f env.sh ] && source "env.sh"\n', "env.sh"),
    (".envrc", "if has nix; then\n  use flake . --impure\nfi\n", "flake.nix"),
    (".envrc", "use flake ./t#shell\n", "t/flake.nix"),
    (".envrc", "use_nix\n", "shell.nix"),
    (".envrc", "use nix dev.nix\n", "dev.nix"),
    (".envrc", 'eval "$(devenv direnvrc)"\nuse devenv\n', "devenv.nix"),
    (".envrc", 'eval "$(devbox generate direnv --print-envrc)"\n', "devbox.json"),
    (".envrc", 'watch_file pixi.lock\neval "$(pixi shell-hook)"\n', "pixi.toml"),
    (".envrc", "[[ -f .env ]] && dotenv\n", ".env"),
    (".envrc", "dotenv_if_exists .env.local\n", ".env.local"),
    ("mcp.json", '{"servers": {"a": {"command": "node", "args": ["server.js"]}}}', "server.js"),
    ("opencode.json", '{"mcp": {"a": {"type": "local", "command": ["./t/x.sh"]}}}', "t/x.sh"),
    ("opencode.json", '{"plugin": ["./t/x.ts"]}', "t/x.ts"),
    ("sub/crush.json", '{"mcp": {"a": {"command": "../t/x.sh"}}}', "t/x.sh"),
    (".continue/mcpServers/a.yaml", "mcpServers:\n- name: a\n  command: node\n  args:\n    - t/x.js\n", "t/x.js"),
    (".aider.conf.yml", "auto-lint: true\nlint-cmd: 'python: sh check.sh'\n", "check.sh"),
    (".claude/settings.json", '{"apiKeyHelper": "./t/x.sh"}', "t/x.sh"),
    (".claude/settings.json", '{"apiKeyHelper": "sh check.sh"}', "check.sh"),
    (".pre-commit-config.yaml", "repos:\n- repo: local\n  hooks: [{id: a, entry: t/x.sh}]\n", "t/x.sh"),
    (
        ".pre-commit-config.yaml",
        "repos:\n- repo: local\n  hooks:\n  - id: a\n    entry: python\n    args: [-X, dev, check.py]\n",
        "check.py",
    ),
    ("lefthook.yml", "pre-commit:\n  commands:\n    a:\n      run: ./t/x.sh {staged_files}\n", "t/x.sh"),
    ("lefthook.yml", "pre-push:\n  jobs:\n    - run: |\n        cd t\n        sh x.sh\n", "t/x.sh"),
    (".lintstagedrc", '{"*.js": ["eslint", "node lint.js"]}', "lint.js"),
    (".vscode/tasks.json", TASKS % ', "runOptions": {"runOn": "folderOpen"}', "t/x.sh"),
    (".rprofile", 'source("t/x.R")\n', "t/x.R"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "text", "path"), RUN)
def test_what_is_run_by_itself_is_held(sandbox: Sandbox, project: Path, settings: str, text: str, path: str) -> None:
    set_up(project, settings, text, "t", "sub")
    run = sandbox.run(f"for each in {path} main.py package.json pyproject.toml other.sh; do echo y >> $each; done")
    assert [change.path for change in run.changes if change.verdict == "held"] == [path]


def set_up(project: Path, settings: str, text: str, *folders: str) -> None:
    """Make a repository of the person's with some files, and one that something acts on by itself."""
    subprocess.run(["git", "init", "-q", "."], cwd=project, check=True)
    for folder in (os.path.dirname(settings), *folders):
        (project / folder).mkdir(parents=True, exist_ok=True)
    for name in ("main.py", "package.json", "pyproject.toml", "check.py"):
        (project / name).write_text("x\n")
    (project / settings).write_text(text)
    (project / settings).chmod(0o755)


NAMED = [
    (".git/hooks/pre-commit", "#!/bin/sh\ngit add package.json\nruff check . main.py\ngrep x pyproject.toml\n"),
    (".git/hooks/pre-commit", "#!/bin/sh\nperl -pi -e 's/a/b/' package.json\nnpm run lint\n"),
    (
        ".pre-commit-config.yaml",
        "repos:\n- hooks:\n  - {id: a, language: python, args: ['-c', pyproject.toml], exclude: main.py}\n",
    ),
    (".pre-commit-config.yaml", "repos:\n- repo: local\n  hooks:\n  - id: r\n    entry: .venv/bin/tool main.py\n"),
    ("lefthook.yml", "pre-commit:\n  commands:\n    a:\n      run: node_modules/.bin/eslint -c package.json main.py\n"),
    (".vscode/launch.json", '{"configurations": [{"program": "${cwd}/main.py", "run": "python main.py"}]}'),
    (".vscode/tasks.json", '{"tasks": [{"label": "x", "command": "python", "args": ["main.py"]}]}'),
    (".vscode/settings.json", '{"python.defaultInterpreterPath": ".venv/bin/tool", "x.files": ["main.py"]}'),
    (".claude/settings.json", '{"permissions": {"allow": ["Bash(python main.py:*)", "Edit(main.py)"]}}'),
    (".aider.conf.yml", "read: [main.py, package.json]\n"),
    ("opencode.json", '{"instructions": ["package.json", "main.py"]}'),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "text"), NAMED)
def test_what_is_only_named_and_what_is_installed_stays_free(
    sandbox: Sandbox, project: Path, settings: str, text: str
) -> None:
    set_up(project, settings, text, ".venv/bin", "node_modules/.bin")
    files = "main.py package.json pyproject.toml .venv/bin/tool node_modules/.bin/eslint"
    run = sandbox.run(f"for each in {files}; do echo y >> $each; done")
    assert [change.path for change in run.changes if change.verdict == "held"] == []


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ('npx prettier --check "src/**/*.ts"\nnpx eslint src/ --ext .ts\n', []),
        ("git diff --name-only -- 'src/*.ts' | wc -l\n", []),
        ("for each in src/*; do . $each; done\n", ["src/main.ts"]),
        ("find src/* -type f -exec {} ';'\n", ["src/main.ts"]),
        ("bash src/*.ts\n", ["src/main.ts"]),
    ],
)
@pytest.mark.parametrize("hook", [".husky/pre-commit", ".git/hooks/pre-commit"])
def test_a_pattern_that_a_checker_reads_stays_free(
    sandbox: Sandbox, project: Path, hook: str, text: str, held: list[str]
) -> None:
    set_up(project, hook, text, "src")
    (project / "src/main.ts").write_text("x\n")
    run = sandbox.run("echo y >> src/main.ts")
    assert [change.path for change in run.changes if change.verdict == "held"] == held


@pytest.mark.parametrize(
    "link",
    [
        ".config/systemd/user/x.service", ".config/fish/conf.d/a.fish", ".claude/skills/foo", ".claude/hooks/hook.sh",
        ".config/a/b/c/d/e", ".config/sway/bin/lock",
    ],
)  # fmt: skip
def test_a_link_deep_in_the_home_is_followed_among_thousands(
    sandbox: Sandbox, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    home = tmp_path / "person"
    monkeypatch.setenv("HOME", str(home))
    for number in range(150):
        (home / f".config/app{number}").mkdir(parents=True)
        (home / f".vscode/extensions/e{number}/out").mkdir(parents=True)
    (home / link).parent.mkdir(parents=True, exist_ok=True)
    first = sandbox.run("mkdir -p deep; echo x > deep/file")
    assert first.state == "applied"  # and how the home looked is kept
    (home / link).symlink_to(project / "deep")
    run = sandbox.run("echo y > deep/file; echo y > other")
    assert {change.path: change.verdict for change in run.changes} == {"deep/file": "held", "other": "applied"}


def test_a_package_that_is_linked_for_another_project_stays_free(
    sandbox: Sandbox, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "person"
    monkeypatch.setenv("HOME", str(home))
    (project / "packages/one").mkdir(parents=True)
    for place in (
        ".config/yarn/link/one", ".nvm/versions/node/v22/lib/node_modules/one", ".nvm/versions/node/v22/bin/one",
        ".bun/bin/one", ".pyenv/versions/one",
    ):  # fmt: skip
        (home / place).parent.mkdir(parents=True)
        (home / place).symlink_to(project / "packages/one")
    assert sandbox.run("echo x > packages/one/index.js").state == "applied"


REPO = "repos:\n- repo: local\n  hooks:\n  - id: a\n    language: system\n"
PRE_COMMIT = ".pre-commit-config.yaml"
ONLY_NAMED = [
    (PRE_COMMIT, REPO + "    name: Run mypy on src/main.py\n    description: Run src/main.py\n    entry: mypy\n"),
    ("lefthook.yml", 'pre-commit:\n  commands:\n    a:\n      fail_text: "Run src/main.py first"\n      run: mypy\n'),
    (".claude/settings.json", '{"hooks": {"Stop": [{"hooks": [{"statusMessage": "Run README.md"}]}]}}'),
    (".husky/pre-commit", 'echo "now run README.md steps"\n'),
    (PRE_COMMIT, REPO + "    entry: uv run ruff check src/main.py\n"),
    (PRE_COMMIT, REPO + "    entry: uv run mypy --config-file mypy.ini src\n"),
    (".husky/pre-commit", "docker run --rm --env-file .env img\ncargo run --manifest-path Cargo.toml\n"),
    (".envrc", "export A=$(uv run --env-file .env env)\n"),
    (".envrc", "use node 22\nlayout python\n"),
    (".husky/pre-commit", "dotenv -e .env -- npm test\n"),
    (".husky/pre-commit", "npm run types\nnpm run dist\n"),
    (PRE_COMMIT, REPO + "    entry: bash -c 'mypy src/main.py'\n"),
    (".husky/pre-commit", "bash -c 'jq .version package.json'\n"),
    (".lintstagedrc.json", '{"*.ts": "bash -c \'tsc -p tsconfig.json\'"}'),
    (PRE_COMMIT, REPO + "    entry: python -m black --config pyproject.toml src\n"),
    (".vscode/settings.json", '{"python.testing.pytestArgs": ["tests/test_main.py", "./src/main.py"]}'),
    (".vscode/settings.json", '{"black-formatter.args": ["--config", "./pyproject.toml"]}'),
    (PRE_COMMIT, "repos:\n- repo: x\n  hooks:\n  - id: ruff\n    args: [--config, ./pyproject.toml]\n"),
    (".devcontainer/devcontainer.json", '{"runArgs": ["--env-file", "./.env"]}'),
    (PRE_COMMIT, REPO + "    entry: python\n    args: [-m, mypy]\n- hooks:\n  - id: b\n    args: [package.json]\n"),
    (PRE_COMMIT, REPO + "    entry: shellcheck scripts/build.sh\n"),
    (".husky/pre-commit", "npx prettier --check manage.py\n"),
    (
        ".vscode/tasks.json",
        '{"tasks": [{"runOptions": {"runOn": "folderOpen"}},\n// "mine\n{"command": "python src/main.py"}]}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "text"), ONLY_NAMED)
def test_what_a_command_reads_stays_free(sandbox: Sandbox, project: Path, settings: str, text: str) -> None:
    set_up(project, settings, text, "src", "scripts", "tests", "build")
    files = (
        "src/main.py", "README.md", "mypy.ini", ".env", "Cargo.toml", "package.json", "tsconfig.json", "pyproject.toml",
        "tests/test_main.py", "scripts/build.sh", "manage.py",
    )  # fmt: skip
    for name in files:
        (project / name).write_text("x\n")
        (project / name).chmod(0o755 if name in ("scripts/build.sh", "manage.py") else 0o644)
    run = sandbox.run(f"for each in {' '.join(files)} types; do echo y >> $each; done; ln -s build dist")
    assert [change.path for change in run.changes if change.verdict == "held"] == []


@pytest.mark.parametrize("more", ['"dependsOn": ["b"], ', ""])
def test_a_task_that_another_needs_starts_with_it(sandbox: Sandbox, project: Path, more: str) -> None:
    opening = '"runOptions": {"runOn": "folderOpen"}'
    tasks = f'{{"tasks": [{{"label": "a", {more}{opening}}}, {{"label": "b", "command": "sh main.py"}}]}}'
    set_up(project, ".vscode/tasks.json", tasks)
    run = sandbox.run("echo y >> main.py")
    assert [change.path for change in run.changes if change.verdict == "held"] == (["main.py"] if more else [])


def test_what_leads_to_a_file_is_not_hidden_among_many_directories(sandbox, project, monkeypatch):
    monkeypatch.setattr(project_tree, "_MOST_DIRECTORIES", 30)
    (project / "libs/foo").mkdir(parents=True)
    (project / "tools").mkdir()
    (project / "libs/foo/.envrc").write_text("source ../../tools/env.sh\n")
    (project / "tools/env.sh").write_text("old\n")
    assert sandbox.run("seq -f a%g 200 | xargs mkdir; seq -f libs/a%g 200 | xargs mkdir").state == "applied"
    for number in range(2):
        run = sandbox.run(f"echo {number} > tools/env.sh")
        assert [(change.path, change.verdict) for change in run.changes] == [("tools/env.sh", "held")]
        sandbox.discard(run)
    (project / "libs/foo/.envrc").unlink()
    assert sandbox.run("echo new > tools/env.sh").state == "applied"


@pytest.mark.parametrize("directory", ["bin", "sub/bin", "t", "other", "deep/own"])
def test_a_program_in_a_directory_that_is_put_on_the_path_takes_no_others_place_unseen(sandbox, project, directory):
    lines = 'PATH_add bin sub/bin\npath_add PATH "$PWD/t"\nexport PATH="$(pwd)/other:$PATH"\n'
    (project / ".envrc").write_text(lines)
    (project / "deep").mkdir()
    (project / "deep/.envrc").write_text("PATH_add own\n")
    run = sandbox.run(f"for d in {directory} unseen; do mkdir -p $d; echo x > $d/ls; echo x > $d/my; done")
    held = {change.path: change.flags for change in run.changes if change.verdict == "held"}
    assert held == {f"{directory}/ls": ("shadows",)}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mise.toml", '[env]\n_.path = "bin"\n'), ("mise.toml", '[env]\n_.path = [\n  "x",\n  "./bin",\n]\n'),
        (".mise.local.toml", '[env._]\npath = ["{{config_root}}/bin"]\n'),
        (".config/mise/config.toml", '[env]\n_ = { path = ["bin"] }\n'),
    ],
)  # fmt: skip
def test_nor_does_one_in_a_directory_that_mise_puts_there(sandbox, project, name, settings):
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(settings)
    run = sandbox.run("for d in bin unseen; do mkdir -p $d; echo x > $d/ls; echo x > $d/my; done")
    held = {change.path: change.flags for change in run.changes if change.verdict == "held"}
    assert held == {"bin/ls": ("shadows",)}
