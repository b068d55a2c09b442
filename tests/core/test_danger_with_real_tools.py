"""What everyday tools leave behind is not held, and what an attack by git's own commands leaves is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import need
from fumehood.core.changes import ADDED, DELETED, DIRECTORY, FILE, MODE, MODIFIED, SYMLINK, TYPE, Change, Stamp, by_path
from fumehood.core.danger import (
    ChangeFacts,
    Concern,
    Rules,
    find_concern,
    gather_root_facts,
    possible_environments,
    possible_repositories,
    wants_facts,
)
from fumehood.linux.gitobjects import had_repository
from fumehood.linux.nofollow import DirectoryCache, open_top

LONGEST = 64 << 10
Entry = tuple[Stamp, bytes]
Judge = Callable[[str], dict[str, Concern]]


def starts(program: str) -> bool:
    """Whether a program runs at all: one that rustup stands in for may be there and have nothing behind it."""
    if shutil.which(program) is None:
        return False
    return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0


def entries(top: Path) -> dict[str, Entry]:
    """Every path below a directory with its stamp, and its content or target."""
    found: dict[str, Entry] = {}
    for directory, names, files in os.walk(top):
        for name in (*names, *files):
            path = Path(directory, name)
            about = path.lstat()
            if path.is_symlink():
                kind, content = SYMLINK, os.fsencode(os.readlink(path))
            elif path.is_dir():
                kind, content = DIRECTORY, b""
            else:
                kind, content = FILE, path.read_bytes()
            stamp = Stamp(kind, about.st_ino, about.st_size, about.st_mtime_ns, 0, about.st_mode & 0o7777)
            found[str(path.relative_to(top))] = (stamp, content)
    return found


def between(old: dict[str, Entry], new: dict[str, Entry]) -> list[Change]:
    """The changes that lead from one state of a directory to another, as the scan of a layer tells them."""
    changes = []
    fresh: set[str] = set()
    for path, (after, content) in sorted(new.items()):
        before, was = old.get(path, (None, b""))
        parents = [str(parent) for parent in reversed(Path(path).parents)]
        within = next((parent for parent in parents if parent in fresh), None)
        if before is None or before.kind != after.kind:
            change = ADDED if before is None else TYPE
            if after.kind == DIRECTORY:
                fresh.add(path)
        elif content != was or (after.kind == FILE and after.modified_ns != before.modified_ns):
            change = MODIFIED
        elif before.mode != after.mode:
            change = MODE
        else:
            continue
        changes.append(Change(0, path, change, after.kind, before=before, after=after, within=within))
    for path in (path for path in old if path not in new):
        parents = [str(parent) for parent in reversed(Path(path).parents)]
        within = next((parent for parent in parents if parent in old and parent not in new), None)
        changes.append(Change(0, path, DELETED, old[path][0].kind, before=old[path][0], within=within))
    return by_path(changes)


def facts_of(change: Change, old: dict[str, Entry], new: dict[str, Entry], root: str, was_there: bool) -> ChangeFacts:
    content = new[change.path][1] if change.path in new else b""
    if change.kind == SYMLINK and change.path in new:
        was = old[change.path][1] if change.before is not None and change.before.kind == SYMLINK else None
        return ChangeFacts(target=os.fsdecode(content), old=was, root=root)
    before = old[change.path][1] if change.before is not None and change.before.kind == FILE else None
    if max(len(content), len(before or b"")) > LONGEST:
        return ChangeFacts(is_complete=False, root=root)
    return ChangeFacts(old=before, new=content, root=root, repository_was_there=was_there)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path.resolve() / "project"
    place.mkdir()
    return place


@pytest.fixture
def run(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run a shell command in the project, with nobody's settings."""
    need(shutil.which("git") is not None, "git is not installed")
    config = tmp_path / "gitconfig"
    config.write_text(
        "[user]\nname = A\nemail = a@b\n[init]\ndefaultBranch = main\n[protocol \"file\"]\nallow = always\n"
        "[commit]\ngpgSign = false\n[maintenance]\nautoDetach = false\n"  # nothing goes on while the project is copied
    )
    for name, value in {
        "GIT_CONFIG_GLOBAL": str(config), "GIT_CONFIG_NOSYSTEM": "1", "npm_config_cache": str(tmp_path / "npm"),
        "npm_config_update_notifier": "false", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)

    def shell(command: str) -> None:
        done = subprocess.run(["sh", "-ec", command], cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return shell


@pytest.fixture
def judge(project: Path, tmp_path: Path, run: Callable[[str], None]) -> Judge:
    """Run a shell command in the project and judge what it changed."""

    def judged(command: str) -> dict[str, Concern]:
        old = entries(project)
        copy = tmp_path / f"before-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(project, copy, symlinks=True)
        before = DirectoryCache(open_top(str(copy)))
        run(command)
        new = entries(project)
        changes, root = between(old, new), str(project)
        found = {place for place in possible_repositories(changes) if f"{place[1]}/HEAD".lstrip("/") in new}
        possible = possible_environments(changes)
        environments = {place for place in possible if f"{place[1]}/pyvenv.cfg".lstrip("/") in old}
        ground = gather_root_facts(changes, (root,), found, environments=environments)
        concerns = {}
        for change in changes:
            was_there = had_repository(before, root, change.path)
            facts = facts_of(change, old, new, root, was_there) if wants_facts(change, ground) else None
            about = find_concern(change, facts, Rules(), ground)
            if about is not None:
                concerns[change.path] = about
        assert changes, "the command changed nothing"
        before.close()
        os.close(before.top)
        return concerns

    return judged


def held(concerns: dict[str, Concern]) -> dict[str, str]:
    return {path: about.reason for path, about in concerns.items() if about.held}


START = "git init -q && echo 1 > file && git add . && git commit -qm one"
TOPIC = f"{START} && git checkout -qb topic && echo 2 > file && git commit -qam two && git checkout -q main"
SOURCE = f"mkdir ../source && cd ../source && {START} && cd ../project"
SUBMODULE = f"{SOURCE} && {START} && git submodule --quiet add ../source sub && git commit -qm sub"
SETTINGS = f"{START} && mkdir .vscode && echo 1 > .vscode/tasks.json && git add . && git commit -qm two"


@pytest.mark.parametrize(
    ("before", "command"),
    [
        ("true", "git init"),
        ("true", START),
        (START, "echo 2 > file && git add . && git commit -qm two"),
        (START, "git checkout -qb topic && echo 2 > file && git commit -qam two && git checkout -q main"),
        (TOPIC, "git merge -q --no-ff -m merged topic"),
        (f"{TOPIC} && echo 3 > file && git commit -qam 3", "git merge -q topic || true"),
        (f"{TOPIC} && echo 3 > file && git commit -qam 3", "git rebase -q topic || true"),
        (SETTINGS, "git checkout -q HEAD~1 && git checkout -q main"),
        (START, "git checkout -qb hooks/pre-commit && git branch config && git branch info/attributes"),
        (START, "git tag -a -m v1 v1 && git gc -q && git stash list"),
        (START, "echo 2 > file && git stash -q && git stash pop -q"),
        (SOURCE, "git clone -q ../source"),
        (SOURCE, "git clone -q ../source . && git checkout -qb topic && git branch -u origin/main"),
        (SOURCE, "git clone -q --depth 1 file://$PWD/../source shallow"),
        (SOURCE, "git clone -q ../source a && git clone -q --shared a b && git clone -q --reference a a c"),
        (SOURCE, "git clone -q --bare ../source bare.git && git init -q --bare other.git"),
        (SOURCE, "git clone -q --mirror ../source mirror && git -C mirror fetch -q"),
        (f"{SOURCE} && git clone -q --bare ../source bare.git", "git -C bare.git branch new && git -C bare.git gc -q"),
        (f"{SOURCE} && git clone -q ../source .", "git fetch -q && git checkout -qb new && git push -qu origin new"),
        (f"{SOURCE} && git clone -q ../source . && git checkout -qb topic && git branch -u origin/main",
         "git branch -m other && git checkout -q main && git branch -qd other"),
        (START, "git worktree add -q tree && cd tree && git checkout -qb more && echo 2 > file && git commit -qam 2"),
        (f"{START} && git worktree add -q tree", "git worktree move tree deep && git worktree remove deep"),
        (START, "git worktree add -q .claude/worktrees/task"),
        (f"{SOURCE} && {START}", "git submodule --quiet add ../source libs/sub && git commit -qm sub"),
        (SUBMODULE, "git worktree add -q tree && cd tree && git submodule --quiet update --init"),
        (SUBMODULE, "git submodule --quiet deinit -f sub && git submodule --quiet update --init"),
        (f"{SUBMODULE} && rm -rf sub .git/modules", "git submodule --quiet update --init"),
        (START, "git config user.email a@b.c && git config user.name Someone && git config pull.rebase true"),
        (START, "git init -q && git branch topic && git branch -u main topic && git branch --unset-upstream topic"),
        (START, "git sparse-checkout set src && git sparse-checkout disable"),
        (SUBMODULE, "git -C sub sparse-checkout set src && git mv sub lib && git submodule --quiet deinit -f lib"),
        (f"{START} && git sparse-checkout set src", "git worktree add -q tree && git sparse-checkout add more"),
        (f"{START} && git init -q other", "rm -rf other && git init -q third && rm -rf third/.git && echo 1 > third/x"),
    ],
)  # fmt: skip
def test_everyday_git_needs_no_person(run: Callable[[str], None], judge: Judge, before: str, command: str) -> None:
    run(before)
    assert not held(judge(command))


@pytest.mark.installs
def test_a_virtual_environment_needs_no_person(project: Path, tmp_path: Path, judge: Judge) -> None:
    wheel = tmp_path / "thing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing/__init__.py", "")
        archive.writestr("thing/conftest.py", "")
        archive.writestr("thing/.vscode/settings.json", "{}")
        archive.writestr("thing.pth", "import sys\n")
        archive.writestr("thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
        archive.writestr("thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("thing-1.dist-info/RECORD", "")
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else "python3"
    need(not subprocess.run([python, "-c", "import ensurepip"], check=False).returncode, "python has no ensurepip")
    found = judge(f"{python} -m venv .venv && .venv/bin/pip install -q {wheel}")
    assert not held(found)
    flags = {path: about.flag for path, about in found.items()}
    assert flags.pop(".venv/bin/python3") == "interpreter-link"
    assert any(path.endswith("site-packages/thing.pth") for path in flags)
    assert set(flags.values()) == {"startup-file"}


@pytest.mark.long
def test_npm_install_needs_no_person(project: Path, tmp_path: Path, judge: Judge, run: Callable[[str], None]) -> None:
    need(shutil.which("npm") is not None, "npm is not installed")
    package = tmp_path / "thing"
    for name in (".vscode/settings.json", ".husky/pre-commit", "Makefile", "binding.gyp.txt", ".envrc", "CLAUDE.md"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("{}")
    (package / "cli.js").write_text("#!/usr/bin/env node\n")
    (package / "package.json").write_text('{"name": "thing", "version": "1.0.0", "bin": {"thing": "cli.js"}}')
    run("cd ../thing && npm pack --silent > /dev/null && cd ../project && npm init -y > /dev/null")
    found = judge("npm install --offline --no-audit --no-fund --silent ../thing/thing-1.0.0.tgz")
    assert (project / "node_modules/.bin/thing").is_symlink()
    assert {path: about.flag for path, about in found.items()} == {"package.json": "build-script"}


@pytest.mark.skipif(not starts("cargo"), reason="cargo is not installed, or not for this home")
def test_cargo_build_needs_no_person(judge: Judge) -> None:
    found = judge("cargo new -q --vcs git app && cd app && cargo build -q --offline")
    assert {path: about.flag for path, about in found.items()} == {"app/Cargo.toml": "build-script"}


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("git config core.fsmonitor ./evil", ".git/config"),
        ("git config core.hooksPath .", ".git/config"),
        ("git config alias.st '!evil'", ".git/config"),
        ("git config --add include.path ../evil", ".git/config"),
        ("git config rebase.instructionFormat '%s%nexec evil'", ".git/config"),
        ("git config core.worktree /", ".git/config"),
        ("git config extensions.worktreeConfig 1 && git config --worktree core.pager ./evil", ".git/config.worktree"),
        ("git clone -q -c core.sshCommand=evil . copy", "copy/.git/config"),
        ("git clone -q -c core.fsmonitor=evil --bare . copy", "copy/config"),
        ("git clone -q --filter=blob:none file://$PWD copy", "copy/.git/config"),
        ("git clone -q --filter=blob:none --bare file://$PWD copy", "copy/config"),
        ("git init -q ../lender && git clone -q --reference ../lender . copy", "copy/.git/objects/info/alternates"),
        ("git init -q ../lender && git clone -q --bare --shared ../lender copy", "copy/objects/info/alternates"),
        ("git init -q --bare new && git -C new config diff.external evil", "new/config"),
        ("git init -q --bare new && cp new/hooks/update.sample new/hooks/update", "new/hooks/update"),
        ("mv .git/hooks/pre-push.sample .git/hooks/pre-push", ".git/hooks/pre-push"),
        ("mkdir x && echo evil > x/pre-commit && rm -r .git/hooks && mv x .git/hooks", ".git/hooks/pre-commit"),
        ("mkdir -p y/hooks && cp -r .git/. y && echo evil > y/hooks/pre-commit && mv y .GIT", ".GIT/hooks/pre-commit"),
        ("rm -r .git/hooks && ln -s ../evil .git/hooks", ".git/hooks"),
        ("git init -q --separate-git-dir=elsewhere", ".git"),
        ("cp -r .git old && rm -r .git && ln -s old .git", ".git"),
        ("mkdir sub && echo 'gitdir: /tmp/evil' > sub/.git", "sub/.git"),
        ("git worktree add -q tree && echo ../../../evil > .git/worktrees/tree/commondir",
         ".git/worktrees/tree/commondir"),
        ("git worktree add -q tree && cd tree && git config extensions.worktreeConfig 1 && git config --worktree a.b c",
         ".git/worktrees/tree/config.worktree"),
        ("git init -q --bare .", "HEAD"),
        ("git remote add up ../up", ".git/config"),
        ("git config commit.gpgSign false", ".git/config"),
        ("git config --unset core.filemode", ".git/config"),
        ("git config -f .git/config.worktree remote.origin.url evil", ".git/config.worktree"),
        ("git worktree add -q tree && git config -f .git/worktrees/tree/config.worktree remote.x.url evil",
         ".git/worktrees/tree/config.worktree"),
        ("rm .git/config", ".git/config"),
        ("mv .git old", ".git"),
        ("rm -rf .git && git init -q && git remote add origin ../evil", ".git/config"),
        ("mv .git old && git clone -q --no-checkout old new && mv new/.git .git", ".git/config"),
        ("mkdir src && echo 1 > src/x && mv .git old && git init -q && git config remote.pushDefault x", ".git/config"),
        ("echo 'URL: ../evil' > .git/remotes/origin", ".git/remotes/origin"),
        ("echo ../evil > .git/branches/origin", ".git/branches/origin"),
        ("echo '* filter=x' > .git/info/attributes", ".git/info/attributes"),
        ("touch tool && chmod 4755 tool", "tool"),
        ("ln -s ../../.ssh keys", "keys"),
        ("GIT_SEQUENCE_EDITOR='sed -i 1ibreak' git rebase -q -i -x evil --root", ".git/rebase-merge/git-rebase-todo"),
    ],
)  # fmt: skip
def test_an_attack_is_held(run: Callable[[str], None], judge: Judge, command: str, path: str) -> None:
    run(START)
    run("mkdir -p .git/remotes .git/branches")
    assert path in held(judge(command))


@pytest.mark.parametrize(
    ("before", "command", "path"),
    [
        ("git init -q --bare x.git", "git -C x.git remote add origin ../evil", "x.git/config"),
        ("git init -q --bare x.git", "rm x.git/config", "x.git/config"),
        ("git init -q --bare x.git", "rm -rf x.git && git clone -q --bare . x.git", "x.git/config"),
        ("git init -q --bare x.git", "mkdir -p x.git/remotes && echo 'URL: ../evil' > x.git/remotes/o",
         "x.git/remotes/o"),
        ("git init -q x", "rm -rf x && git clone -q . x", "x/.git/config"),
        ("git init -q real && ln -s real x", "rm x && git clone -q . x", "x/.git/config"),
        ("git init -q real && mkdir x && ln -s ../real/.git x/.git", "rm -rf x && git clone -q . x", "x/.git/config"),
        ("mkdir src && touch src/x", "git init -q src && git -C src remote add origin ../evil", "src/.git/config"),
        ("rm .git/HEAD", "git init -q && git remote add up ../evil", ".git/config"),
        ("rm .git/config", "git init -q && git remote add origin ../evil", ".git/config"),
        ("git submodule --quiet add ./ sub", "rm -r .git/modules/sub && git clone -q --bare . .git/modules/sub",
         ".git/modules/sub/config"),
        ("git submodule --quiet add ./ sub", "rm sub/.git && git clone -q . new && mv new/.git sub", "sub/.git/config"),
        ("git submodule --quiet add ./ sub",
         "git clone -q --bare . .git/modules/evil && echo 'gitdir: ../.git/modules/evil' > sub/.git", "sub/.git"),
        ("git init -q sub",
         "rm -r sub/.git && git clone -q --bare . .git/modules/x && echo 'gitdir: ../.git/modules/x' > sub/.git",
         "sub/.git"),
        ("echo 'URL: ../mine' > .git/remotes/o", "rm .git/remotes/o", ".git/remotes/o"),
        ("echo 'URL: ../mine' > .git/remotes/o", "rm -r .git/remotes", ".git/remotes/o"),
    ],
)  # fmt: skip
def test_a_repository_that_was_there_does_not_become_another(
    run: Callable[[str], None], judge: Judge, before: str, command: str, path: str
) -> None:
    run(f"{START} && mkdir -p .git/remotes && git config remote.origin.url .")
    run(before)
    assert path in held(judge(command))


SCRIPT = "require('fs').writeFileSync('../mark', '')"
PYTHON_MARK = "open('../mark', 'w')"
RUBY_MARK = "File.write('../mark', '')"
LOCAL_HOOK = "id: x, name: x, entry: touch ../mark, language: system, always_run: true"
SHELL = "printf '#!/bin/sh\\n: > ../mark\\n'"


@pytest.mark.parametrize(
    ("program", "before", "command", "use", "path"),
    [
        ("hg", "hg init", "printf '[hooks]\\npre-status = : > ../mark\\n' > .hg/hgrc", "hg status", ".hg/hgrc"),
        ("hg", "hg init && hg init ../other && printf '[hooks]\\npre-status = : > ../mark\\n' > ../other/.hg/hgrc",
         "echo $PWD/../other/.hg > .hg/sharedpath && echo shared >> .hg/requires", "hg status", ".hg/sharedpath"),
        ("darcs", "darcs init", "echo 'ALL posthook : > ../mark' > _darcs/prefs/defaults", "touch a; darcs whatsnew -l",
         "_darcs/prefs/defaults"),
        ("pre-commit", f"{START} && pre-commit install",
         f"echo 'repos: [{{repo: local, hooks: [{{{LOCAL_HOOK}}}]}}]' > .pre-commit-config.yaml",
         "git add . && git commit -qm x", ".pre-commit-config.yaml"),
        ("pylint", "true", f'printf "[MAIN]\\ninit-hook={PYTHON_MARK}\\n" > .pylintrc', "touch a.py; pylint a.py",
         ".pylintrc"),
        ("pylint", "true", f'printf "[tool.pylint.main]\\ninit-hook=\\"{PYTHON_MARK}\\"\\n" > pyproject.toml',
         "touch a.py; pylint a.py", "pyproject.toml"),
        ("flake8", f'echo "{PYTHON_MARK}" > evil.py',
         "printf '[flake8:local-plugins]\\nextension =\\n  X = evil:P\\npaths = .\\n' > .flake8",
         "flake8 evil.py || true", ".flake8"),
        ("mypy", f'echo "{PYTHON_MARK}" > evil.py', "printf '[mypy]\\nplugins = ./evil.py\\n' > setup.cfg",
         "mypy evil.py || true", "setup.cfg"),
        ("mypy", f"{SHELL} > evil; chmod +x evil", "printf '[mypy]\\npython_executable = ./evil\\n' > mypy.ini",
         "touch a.py; mypy a.py || true", "mypy.ini"),
        ("sqlfluff", f'mkdir lib; echo "{PYTHON_MARK}" > lib/evil.py',
         "printf '[sqlfluff]\\ndialect=ansi\\n[sqlfluff:templater:jinja]\\nlibrary_path=lib\\n' > .sqlfluff",
         "echo 'select 1' > a.sql; sqlfluff lint a.sql || true", ".sqlfluff"),
        ("ansible", f'mkdir p; echo "{PYTHON_MARK}" > p/evil.py',
         "printf '[defaults]\\ncallback_plugins=./p\\ncallbacks_enabled=evil\\n' > ansible.cfg",
         "ansible localhost -m ping || true", "ansible.cfg"),
        ("eslint", f'echo "{SCRIPT}" > evil.js', """echo '{"root": true, "extends": "./evil.js"}' > .eslintrc.json""",
         "ESLINT_USE_FLAT_CONFIG=false eslint evil.js || true", ".eslintrc.json"),
        ("eslint", "true", f'echo "{SCRIPT}; module.exports = []" > eslint.config.js',
         "ESLINT_USE_FLAT_CONFIG=true eslint eslint.config.js || true", "eslint.config.js"),
        ("prettier", f'echo "{SCRIPT}" > evil.cjs', """echo '{"plugins": ["./evil.cjs"]}' > .prettierrc""",
         "prettier evil.cjs || true", ".prettierrc"),
        ("prettier", f'echo "{SCRIPT}" > evil.cjs', """echo '{"prettier": "./evil.cjs"}' > package.json""",
         "prettier evil.cjs || true", "package.json"),
        ("stylelint", f'echo "{SCRIPT}" > evil.cjs', "printf 'plugins: [./evil.cjs]\\nrules: {x: 1}\\n' > .stylelintrc",
         "echo 'a{}' > a.css; stylelint a.css || true", ".stylelintrc"),
        ("markdownlint-cli2", f'echo "{SCRIPT}" > evil.cjs',
         "echo 'customRules: [./evil.cjs]' > .markdownlint-cli2.yaml", "touch a.md; markdownlint-cli2 a.md || true",
         ".markdownlint-cli2.yaml"),
        ("oxlint", f'echo "{SCRIPT}" > evil.cjs', """echo '{"jsPlugins": ["./evil.cjs"]}' > .oxlintrc.json""",
         "oxlint evil.cjs || true", ".oxlintrc.json"),
        ("commitlint", f'echo "{SCRIPT}" > evil.cjs', """echo '{"extends": ["./evil.cjs"]}' > .commitlintrc""",
         "echo 'fix: a' | commitlint || true", ".commitlintrc"),
        ("rubocop", f'echo "{RUBY_MARK}" > evil.rb', "echo 'require: ./evil' > .rubocop.yml",
         "rubocop --cache false evil.rb || true", ".rubocop.yml"),
        ("rubocop", "touch a.rb", f'echo "AllCops: {{X: <%= {RUBY_MARK} %>}}" > .rubocop.yml',
         "rubocop --cache false a.rb || true", ".rubocop.yml"),
        ("luacheck", "touch a.lua", "echo 'io.open(\"../mark\", \"w\")' > .luacheckrc", "luacheck a.lua || true",
         ".luacheckrc"),
        # rustup's own stand-in: another `rustc` may be there too, as Debian's is.
        ("rustup", f"mkdir -p t/bin t/lib; {SHELL} > t/bin/rustc; chmod +x t/bin/rustc",
         'printf "[toolchain]\\npath = \\"$PWD/t\\"\\n" > rust-toolchain.toml',
         '"$(dirname "$(command -v rustup)")/rustc" --version', "rust-toolchain.toml"),
        ("cargo", f"cargo init -q --name a --vcs none; {SHELL} > w; chmod +x w",
         "mkdir .cargo; printf '[build]\\nrustc-wrapper = \"./w\"\\n' > .cargo/config.toml",
         "cargo check -q --offline || true", ".cargo/config.toml"),
    ],
)  # fmt: skip
def test_what_a_tool_loads_by_itself_is_held(
    run: Callable[[str], None], judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    program: str, before: str, command: str, use: str, path: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{Path(sys.executable).parent}")
    if not starts(program):
        pytest.skip(f"{program} is not installed")
    run(before)
    assert path in held(judge(command))
    run(use)
    assert (tmp_path.resolve() / "mark").exists(), "the tool did not act on it: the rule has no ground"


ESLINT = "echo 1 > t.js; ESLINT_USE_FLAT_CONFIG=false eslint t.js || true"
PRETTIER = "echo 1 > t.js; prettier t.js || true"
PYLINT = "touch a.py; pylint a.py || true"
CARGO = "cargo init -q --name a --vcs none; cargo check -q --offline || true"


@pytest.mark.parametrize(
    ("program", "use", "path", "old", "new"),
    [
        ("eslint", ESLINT, ".eslintrc.json", "", '{"root": true, "extends"\n: "./evil.cjs"}'),
        ("eslint", ESLINT, ".eslintrc.json", "", '{"root": true, "extends"/**/: "./evil.cjs"}'),
        ("eslint", ESLINT, ".eslintrc.yml", "", '? "ext\\\n  ends"\n: [./evil.cjs]\n'),
        # ESLint cuts out what is a comment in JSON, and then reads YAML.
        ("eslint", ESLINT, ".eslintrc", "",
         'parserOptions: {y: &c extends}\n#/*\nsettings: "\n#*/\n*c : ./evil.cjs\n#"\n'),
        ("prettier", PRETTIER, ".prettierrc", "", '{"plugins"\n: ["./evil.cjs"]}'),
        ("prettier", PRETTIER, ".prettierrc", "", "{\n; : 1, plugins: [./evil.cjs]\n}\n"),
        ("prettier", "cp evil.cjs evil:x.cjs; " + PRETTIER, ".prettierrc", "", "./evil:x.cjs"),
        ("prettier", PRETTIER, ".prettierrc.yaml", "", "x: &a plugins\n*a : [./evil.cjs]\n"),
        ("prettier", PRETTIER, ".prettierrc.json5", "", "{// x\u2028plugins\n: ['./evil.cjs']}"),
        ("prettier", PRETTIER, "package.yaml", "", "prettier: ./evil.cjs\n"),
        ("prettier", PRETTIER, "prettier.config.cjs", "module.exports = {\n};\n",
         f"module.exports = {{\n// see\u2028x: {SCRIPT},\n}};\n"),
        ("prettier", PRETTIER, "prettier.config.cjs", "/*\n*/\nmodule.exports = {};\n",
         f"/*\n// */ {SCRIPT} /*\n*/\nmodule.exports = {{}};\n"),
        ("prettier", PRETTIER, "prettier.config.cjs", "const a = `\n`;\nmodule.exports = {};\n",
         f"const a = `\n// ${{{SCRIPT}}}\n`;\nmodule.exports = {{}};\n"),
        ("pylint", PYLINT, "pyproject.toml", "", f'[tool.pylint.main]\n"init\\u002dhook" = "{PYTHON_MARK}"\n'),
        ("pylint", PYLINT, ".pylintrc", "[MAIN]\nload-plugins=\n  pylint.extensions.mccabe,\n",
         "[MAIN]\nload-plugins=\n  pylint.extensions.mccabe,\n# more\n  evil\n"),
        ("cargo", CARGO, ".cargo/config.toml", "", '[build]\n"rustc\\u002dwrapper" = "./evil"\n'),
        ("hg", "cd h && hg status", "h/.hg/hgrc", "",
         "[paths]\ndefault = https://x.example/\n[hooks];=\npre-status = : > ../../mark\n"),
        ("hg", "cd h && hg status", "h/.hg/hgrc", "", "[paths]\ndefault = https://x.example/\n%include a=b\n"),
    ],
)  # fmt: skip
def test_what_a_tool_understands_in_another_spelling_is_held(
    run: Callable[[str], None], judge: Judge, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    program: str, use: str, path: str, old: str, new: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{Path(sys.executable).parent}")
    monkeypatch.setenv("PYTHONPATH", str(project))
    if not starts(program):
        pytest.skip(f"{program} is not installed")
    run(f'echo "{SCRIPT}; module.exports = {{}}" > evil.cjs; echo "{PYTHON_MARK}" > evil.py')
    run(f"{SHELL} > evil; echo 'exec \"$@\"' >> evil; chmod +x evil")
    if old:
        (project / path).write_text(old)
    (tmp_path / "new").write_text(new)
    if program == "hg":
        run("mkdir h; printf '[hooks]\npre-status = : > ../../mark\n' > ../a=b")
        run("mv h ..; cd ../h; mkdir -p .hg/store; printf 'revlogv1\nstore\n' > .hg/requires; mv '../a=b' .hg")
        command = f"mv ../h . && cp ../new {path}"
    else:
        command = f"mkdir -p $(dirname {path}) && cp ../new {path}"
    assert path in held(judge(command))
    run(use)
    assert (tmp_path.resolve() / "mark").exists(), "the tool did not act on it: the rule has no ground"


@pytest.mark.installs
def test_a_virtual_environment_that_is_used_and_made_anew_needs_no_person(
    run: Callable[[str], None], judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else "python3"
    need(not subprocess.run([python, "-c", "import ensurepip"], check=False).returncode, "python has no ensurepip")
    run(f"{python} -m venv .venv")
    assert not held(judge(f"{python} -m venv --upgrade .venv; touch .venv/bin/activate"))
    assert not held(judge(f"rm -r .venv; {python} -m venv .venv"))
    assert not held(judge(f"{python} -m venv --clear .venv"))
    assert ".venv/bin/activate" in held(judge("echo evil >> .venv/bin/activate"))
    run(f"{python} -m venv --clear .venv")
    assert ".venv/bin/pip" in held(judge("echo 'import evil' >> .venv/bin/pip"))
    run(f"{python} -m venv --clear .venv")
    assert ".venv/bin/python3" in held(judge("rm .venv/bin/python3; echo evil > .venv/bin/python3"))


@pytest.mark.parametrize(
    "command",
    [
        "git switch -qc x @~; echo 3 > file; git commit -qam 3; git -c rerere.enabled=true merge main || true",
        "git notes add -m a; git notes --ref b add -m c; git notes merge -s manual b || true",
        "git update-index --split-index; git update-index --untracked-cache; git status",
        "echo 3 > file; git hash-object -w file; git reset -q --hard @~; git fsck --lost-found",
        "echo 3 > file; printf 'p\n1\n\ny\n' | git commit --interactive -qm 3 || true; git stash -qk || true",
        "git format-patch -q -1; git reset -q --hard @~; echo 9 > file; git commit -qam 9; git am *.patch || true",
        "echo 3 > file; GIT_EDITOR=true git add -e || true; GIT_EDITOR=true git replace --edit HEAD || true",
        "git revert --no-edit HEAD; git revert -n HEAD~2 || true; git cherry-pick HEAD~1 HEAD || true",
        "git bisect start HEAD HEAD~1; echo x > .git/index.lock",
        "git merge --squash -q HEAD~1; git tag -a -m x t; git pack-refs --all; git multi-pack-index write || true",
        "git -c core.fsmonitor=true status; git fsmonitor--daemon stop || true; git maintenance run",
        "git clone -q --depth 1 file://$PWD a; git -C a fetch -q --unshallow",
    ],
)
def test_what_git_leaves_at_the_top_of_its_directory_is_not_held(
    run: Callable[[str], None], judge: Judge, command: str
) -> None:
    run(f"{START} && echo 2 > file && git commit -qam two")
    strange = {path: reason for path, reason in held(judge(command)).items() if "writes no" in reason}
    assert not strange
