"""The rules of the judge, on plain values: what is held, what is flagged, and what must pass."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.core import danger, sensitive_names
from fumehood.core.changes import (
    ADDED,
    DELETED,
    DEVICE,
    DIRECTORY,
    FIFO,
    FILE,
    MODE,
    MODIFIED,
    SOCKET,
    SYMLINK,
    TYPE,
    Change,
    Stamp,
)
from fumehood.core.danger import ChangeFacts, Rules, find_concern, gather_root_facts, possible_repositories, wants_facts
from fumehood.core.danger_facts import ProtectedPaths
from fumehood.linux import project_tree
from judging import BASE, NO_RULES, ROOT, added, file, is_flagged, is_held, modified, stamp

HELD_FILES = [
    ".git/hooks/pre-commit",
    ".git/hooks/any-name",
    ".git/hooks/pre-commit.d/one",
    "vendor/lib/.git/hooks/post-checkout",
    ".git/modules/sub/hooks/post-merge",
    ".git/modules/libs/deep/sub/hooks/post-merge",
    ".git/modules/sub/modules/inner/hooks/update",
    ".git/modules/odd/refs/hooks/pre-commit",
    ".git/worktrees/tree/modules/sub/hooks/pre-push",
    ".GIT/hooks/pre-commit",
    ".Git/HOOKS/pre-commit",
    ".git./hooks/pre-commit",
    ".git /hooks/pre-commit",
    "git~1/hooks/pre-commit",
    ".git::$INDEX_ALLOCATION/hooks/pre-commit",
    ".g\u200cit/hooks/pre-commit",
    ".git/objects/.git/hooks/pre-commit",
    "node_modules/evil/.git/hooks/pre-commit",
    ".git/info/attributes",
    ".git/modules/sub/info/attributes",
    ".git/commondir",
    ".git/modules/sub/commondir",
    "anywhere/commondir",
    ".git",
    "sub/.git",
    ".hg/hgrc",
    ".husky/pre-commit",
    ".husky/_/husky.sh",
    ".githooks/pre-push",
    ".envrc",
    "deep/down/.envrc",
    ".direnv/bin/x",
    ".vscode/tasks.json",
    ".VSCode/settings.json",
    "packages/a/.vscode/launch.json",
    ".idea/workspace.xml",
    ".zed/tasks.json",
    ".devcontainer/devcontainer.json",
    ".devcontainer.json",
    "all.code-workspace",
    ".exrc",
    ".dir-locals.el",
    ".claude/settings.json",
    ".claude/worktrees/x/.claude/settings.json",
    ".claude/worktrees/settings.json",
    ".cursor/mcp.json",
    ".mcp.json",
    ".gemini/settings.json",
    ".codex/config.toml",
    ".pre-commit-config.yaml",
    "lefthook.yml",
    ".lintstagedrc",
    ".jj/repo/config.toml",
    ".jj/repo/config-id",
    ".jj/workspace-config.toml",
    ".jj/repo/store/git_target",
    "sub/.sl/config",
    ".git/sl/config",
    "_darcs/prefs/defaults",
    ".bsp/sbt.json",
    "hie.yaml",
    ".vim/coc-settings.json",
    "coc-settings.json",
    "rust-analyzer.toml",
    ".nvim/init.lua",
    ".obsidian/plugins/x/main.js",
    ".luacheckrc",
    ".Rprofile",
    ".Renviron",
    ".RData",
    ".lintr.R",
    ".ropeproject/config.py",
    ".jedi/project.json",
    ".factorypath",
    "docs/.mdlrc",
    ".tflint.hcl",
    ".pyre_configuration",
    ".rvmrc",
    "sub/.autoenv.zsh",
    ".latexmkrc",
    "paper/latexmkrc",
    ".trunk/trunk.yaml",
    "rust-project.json",
    ".merlin",
    ".lite_project.lua",
    ".crossnote/parser.js",
    ".shadowenv.d/500.lisp",
    ".flox/env/manifest.toml",
    "devenv.nix",
    "sub/devenv.local.nix",
    "bin/activate-hermit",
    "bin/hermit",
    "bin/hermit.hcl",
    "gptme.toml",
    ".workmux.yaml",
    ".wt/setup",
    ".config/wt.toml",
    ".kilo/kilo.jsonc",
    "kilo.json",
    ".github/hooks/any.json",
    ".github/extensions/x/index.js",
    ".github/copilot/settings.json",
    ".github/lsp.json",
    ".github/mcp.json",
    ".pi/extensions/x.ts",
    ".amp/settings.json",
    ".openhands/setup.sh",
    ".rovodev/config.yml",
    ".continuerc.json",
    ".newagent/hooks/start.sh",
    ".newagent/settings.local.json",
    ".newagent/mcp_config.json",
    "packages/a/.newagent/skills/x/SKILL.md",
]
FLAGGED_FILES = [
    "Makefile", "GNUmakefile", "lib/rules.mk", "package.json", "setup.py", "setup.cfg", "pyproject.toml",
    "tests/conftest.py", "tox.ini", "noxfile.py", "venv/lib/python3.11/site-packages/evil.pth",
    "venv/lib/python3.11/site-packages/sitecustomize.py", "sitecustomize.py", "usercustomize.py", "CMakeLists.txt",
    "build.rs", "Cargo.toml", ".cargo/config", ".cargo/config.toml", "build.gradle", "build.gradle.kts", "gradlew",
    "pom.xml", "Rakefile", "Gemfile", "Justfile", "Taskfile.yml", "Dockerfile", "Dockerfile.dev", "dev.Dockerfile",
    "docker-compose.yml", "docker-compose.override.yml", ".github/workflows/ci.yml", ".github/actions/x/action.yml",
    ".gitlab-ci.yml", "Jenkinsfile", ".circleci/config.yml",
    "Vagrantfile", "Procfile", "vite.config.ts", ".eslintrc.js", "CLAUDE.md", "AGENTS.md", ".cursorrules",
    ".tool-versions", "mise.toml", ".npmrc", ".yarnrc.yml", ".yarn/releases/yarn.cjs", ".env", ".env.local",
    ".bashrc", ".ghci", ".iex.exs", "sub/.ocamlinit", ".claude/worktrees/x/Makefile", "packages/a/MAKEFILE",
]  # fmt: skip
PASSING_FILES = [
    "public/.well-known/agents.json", "static/.well-known/skills/index.json",
    "README.md", "src/app.py", "src/hooks/useThing.ts", "hooks/pre-commit", "config.py", "config/settings.py",
    ".gitignore", ".gitattributes", ".github/CODEOWNERS", ".nvmrc", ".python-version", "docs/git.md", "git/hooks/x",
    ".git/HEAD", ".git/index", ".git/description", ".git/info/exclude", ".git/packed-refs", ".git/FETCH_HEAD",
    ".git/hooks/pre-commit.sample", ".git/objects/ab/cdef", ".git/refs/heads/main", ".git/refs/heads/hooks/pre-commit",
    ".git/refs/heads/config", ".git/refs/heads/info/attributes", ".git/logs/refs/heads/hooks/x", ".git/COMMIT_EDITMSG",
    ".git/refs/heads/Makefile", ".git/modules/sub/refs/heads/hooks/fix", ".git/modules/sub/refs/heads/config",
    ".git/modules/sub/hooks/pre-push.sample", ".git/worktrees/x/HEAD",
    "node_modules/x/Makefile", "node_modules/x/package.json", "node_modules/x/.vscode/settings.json",
    "node_modules/x/.husky/pre-commit", "node_modules/x/.npmrc", "node_modules/x/.envrc",
    "venv/lib/python3.11/site-packages/x/conftest.py", "venv/lib/python3.11/site-packages/x/setup.py",
    ".jj/repo/op_store/operations/x", ".jj/working_copy/checkout", ".hg/store/00changelog.i", ".hg/requires",
    "_darcs/prefs/boring", ".github/ISSUE_TEMPLATE/x.md", ".github/dependabot.yml", ".storybook/main.css",
    ".astro/settings.json", "docs/.vitepress/plugins/x.ts",
    ".expo/settings.json", ".cache/x/hooks/y", "src/settings.json", "plugins/x.js", "bin/pip",
    ".clangd", "compile_commands.json", "pyrightconfig.json", ".editorconfig", ".isort.cfg",
    ".claude/worktrees/x/src/app.py", "target/debug/app", "rc.js", "src/config.ts", "repo/config.toml",
]  # fmt: skip


@pytest.mark.parametrize("path", HELD_FILES)
def test_what_the_host_acts_on_by_itself_is_held(path: str) -> None:
    assert is_held(file(path))


@pytest.mark.parametrize("path", FLAGGED_FILES)
def test_what_runs_when_a_person_builds_is_flagged(path: str) -> None:
    assert is_flagged(file(path))


def test_a_file_of_variables_is_flagged_as_that() -> None:
    for path in (".env", "app/.env.local", "app/.flaskenv"):
        concerned = file(path)
        assert concerned is not None
        assert concerned.flag == "variables-file"


@pytest.mark.parametrize("path", PASSING_FILES)
def test_ordinary_files_pass_without_a_word(path: str) -> None:
    assert file(path, b"0123456789012345678901234567890123456789\n") is None


@pytest.mark.parametrize("path", [path for path in HELD_FILES if not path.endswith(("commondir", ".git"))])
def test_deleting_and_empty_directories_are_never_held(path: str) -> None:
    assert find_concern(Change(0, path, DELETED, FILE, before=stamp()), None, NO_RULES) is None
    assert find_concern(added(path, DIRECTORY), None, NO_RULES) is None


@pytest.mark.parametrize("path", [".vscode/tasks.json", ".git/hooks/pre-commit", ".git/info/attributes", ".envrc"])
def test_a_protected_file_written_again_with_the_same_content_passes(path: str) -> None:
    assert wants_facts(modified(path))
    assert file(path, b"same", old=b"same") is None
    assert is_held(file(path, b"new", old=b"old"))
    assert is_held(find_concern(modified(path), None, NO_RULES))
    assert is_held(find_concern(modified(path), ChangeFacts(old=b"same", new=b"same", is_complete=False), NO_RULES))


def test_a_change_of_mode_that_hides_other_content_is_held() -> None:
    sealed = modified(".vscode/tasks.json", after=0o000, change=MODE)
    assert wants_facts(sealed)
    assert is_held(find_concern(sealed, ChangeFacts(old=b"old", new=None, root=ROOT), NO_RULES))


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", ".husky/pre-commit"])
def test_a_hook_that_becomes_executable_is_held(path: str) -> None:
    same = ChangeFacts(old=b"same", new=b"same", root=ROOT)
    assert is_held(find_concern(modified(path, after=0o755, change=MODE), same, NO_RULES))
    assert find_concern(modified(path, before=0o755, after=0o750, change=MODE), same, NO_RULES) is None


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6711, 0o4644])
def test_set_uid_and_set_gid_files_are_held_anywhere(mode: int) -> None:
    assert is_held(find_concern(added("node_modules/x/tool", mode=mode), None, NO_RULES))
    assert is_held(find_concern(modified("tool", after=mode, change=MODE), None, NO_RULES))
    assert is_held(find_concern(modified("tool", before=mode, after=mode), None, NO_RULES))
    assert find_concern(modified("tool", before=mode, after=mode & ~0o044, change=MODE), None, NO_RULES) is None
    assert find_concern(added("shared", DIRECTORY, mode), None, NO_RULES) is None


@pytest.mark.parametrize("change", [ADDED, MODIFIED, TYPE])
def test_a_protected_path_is_held_however_it_came(change: str) -> None:
    assert is_held(find_concern(Change(0, ".envrc", change, FILE, after=stamp()), None, NO_RULES))


def test_a_persons_globs_add_to_both_lists() -> None:
    rules = Rules(hold=("*.sql", "infra/", "/top.txt"), flag=("docs/*.md",))
    for path in ("db/one.sql", "infra/a/b.tf", "top.txt"):
        found = find_concern(added(path), None, rules)
        assert found is not None
        assert found.held
        assert found.flag == "own-rule"
        assert is_held(find_concern(Change(0, path, DELETED, FILE, before=stamp()), None, rules))
    assert is_flagged(find_concern(added("docs/x.md"), None, rules))
    assert is_held(find_concern(added(".envrc"), None, Rules(flag=("*",))))
    for path in ("infra", "sub/top.txt", "src/docs/x.md.txt"):
        assert find_concern(added(path), None, rules) is None


def test_what_something_of_the_persons_leads_to_is_held() -> None:
    protected = ProtectedPaths((ROOT,))
    protected.add(f"{ROOT}/my hooks", ("git-hook", "git runs its hooks from here"), whole=True)
    for path in ("tools/clean.py", "deep/down/attr"):
        protected.add(f"{ROOT}/{path}", ("git-executed", "git runs or obeys this"))
    protected.add("/home/someone/else", ("git-executed", "git runs or obeys this"))
    ground = gather_root_facts([], (ROOT,), (), protected)
    for path in ("my hooks/pre-commit", "my hooks/deep/down", "tools/clean.py", "deep/down/attr"):
        assert is_held(find_concern(added(path), None, NO_RULES, ground))
        assert wants_facts(modified(path), ground)
        assert file(path, b"same", old=b"same", ground=ground) is None
    for path in ("my hooks", "tools", "deep", "deep/down"):  # brings another directory's files
        assert is_held(find_concern(added(path, SYMLINK), ChangeFacts(target="x", root=ROOT), NO_RULES, ground))
    for path in ("hooks/pre-commit", "tools/other.py", "tools/clean.py2", "my hooks too", "deep/attr"):
        assert find_concern(added(path), None, NO_RULES, ground) is None
    assert find_concern(added("dee", SYMLINK), ChangeFacts(target="x", root=ROOT), NO_RULES, ground) is None


@pytest.mark.parametrize(
    "path",
    [".", ".git", ".git/hooks", ".git/hooks/pre-commit.sample", ".git/config", ".git/modules/sub", ".husky", ".envrc"],
)
def test_what_the_host_acts_on_is_not_opened_to_others(path: str) -> None:
    kind = FILE if path.endswith((".sample", "config", ".envrc")) else DIRECTORY
    for before, after in ((0o755, 0o757), (0o755, 0o775), (0o700, 0o722)):
        change = Change(0, path, MODE, kind, before=stamp(kind, before), after=stamp(kind, after))
        assert is_held(find_concern(change, ChangeFacts(old=b"", new=b"", root=ROOT), NO_RULES))
    for before, after in ((0o777, 0o755), (0o775, 0o775), (0o700, 0o744)):
        change = Change(0, path, MODE, kind, before=stamp(kind, before), after=stamp(kind, after))
        assert find_concern(change, ChangeFacts(old=b"", new=b"", root=ROOT), NO_RULES) is None


@pytest.mark.parametrize(
    "path", ["src", "src/app.py", ".git/objects", ".git/objects/ab", ".git/refs/heads", ".git/index"]
)
def test_what_the_host_does_not_act_on_may_be_opened(path: str) -> None:
    kind = DIRECTORY if "." not in path.rpartition("/")[2] and "index" not in path else FILE
    change = Change(0, path, MODE, kind, before=stamp(kind, 0o755), after=stamp(kind, 0o777))
    assert find_concern(change, ChangeFacts(old=b"", new=b"", root=ROOT), NO_RULES) is None
    assert find_concern(added(".git/hooks", DIRECTORY, 0o775), None, NO_RULES) is None  # a umask for one's own group


NAMES = st.sampled_from([
    ".git", ".GIT", "git~1", "hooks", "modules", "worktrees", "config", "commondir", "gitdir", "HEAD", "refs", "info",
    "attributes", ".vscode", ".claude", "node_modules", "site-packages", "x", "Makefile", ".gitmodules", "", "\udcff",
])  # fmt: skip
PATHS = st.lists(NAMES | st.text(max_size=5), min_size=1, max_size=6).map("/".join)
KINDS = st.sampled_from([FILE, SYMLINK, DIRECTORY, FIFO, SOCKET, DEVICE])
CHANGES = st.sampled_from([ADDED, MODIFIED, DELETED, MODE, TYPE])
BYTES = st.none() | st.binary(max_size=40) | st.sampled_from([b"gitdir: ", b"ref: x", BASE, b"../..\n"])
STAMPS = st.none() | st.builds(stamp, st.just(FILE), st.integers(0, 0o7777))


@given(PATHS, CHANGES, KINDS, STAMPS, STAMPS, BYTES, BYTES, st.text(max_size=20), st.booleans(), st.booleans())
def test_any_change_gets_an_answer(
    path: str, kind_of_change: str, kind: str, before: Stamp | None, after: Stamp | None,
    old: bytes | None, new: bytes | None, target: str, whole: bool, known: bool,
) -> None:  # fmt: skip
    change = Change(0, path, kind_of_change, kind, before=before, after=after)
    ground = gather_root_facts([change], (ROOT,), possible_repositories([change]) if known else ())
    rules = Rules(hold=("[", "*x"), flag=(target,))
    for facts in (None, ChangeFacts(target=target, old=old, new=new, is_complete=whole, root=ROOT)):
        assert wants_facts(change, ground) in (True, False)
        found = find_concern(change, facts, rules, ground)
        assert found is None or (found.reason and found.flag)


@given(st.text(max_size=30), st.text(max_size=30))
def test_only_what_facts_were_asked_for_depends_on_them(path: str, content: str) -> None:
    change = added(path)
    if not wants_facts(change):
        told = ChangeFacts(new=content.encode("utf-8", "replace"), root=ROOT)
        assert find_concern(change, told, NO_RULES) == find_concern(change, None, NO_RULES)


def test_judging_loads_nothing_slow() -> None:
    modules = "danger gitdir gitconfig linter_settings sensitive_names"
    code = f"import sys\nfor name in '{modules}'.split(): __import__('fumehood.core.' + name)\nprint(*sys.modules)"
    source = Path(danger.__file__).parents[2]
    told = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, text=True, check=True
    )
    slow = {"re", "typing", "enum", "dataclasses", "json", "pathlib", "fnmatch", "shlex", "configparser", "functools"}
    assert not slow & set(told.stdout.split())


MANAGERS = """
    lefthook.yml lefthook.toml lefthook.json lefthook-local.json lefthook-local.yaml .lefthook-local.yml .lefthook.jsonc
    .config/lefthook.toml sub/.config/lefthook-local.yml .lefthook-local/pre-commit/x prek.toml .pre-commit-config.yml
    .pre-commit-config.yaml .huskyrc .huskyrc.json .huskyrc.js husky.config.js .overcommit.yml .local-overcommit.yml
    grumphp.yaml grumphp.yml.dist hk.pkl hk.local.pkl .config/hk.pkl hk.toml hk.json .hkrc.pkl .lintstagedrc
    .lintstagedrc.ts lint-staged.config.mts .simple-git-hooks.cjs simple-git-hooks.json captainhook.json
    captainhook.config.json .rusty-hook.toml
"""
NO_MANAGERS = """
    bin/lefthook lefthook.go lefthook.ts docs/lefthook.md locales/hk.json data/hk.csv src/hk.py husky.json husky.ts
    lint-staged.js overcommit.rb prek tests/pre-commit-config.py captainhook.png node_modules/x/lefthook.yml
"""


@pytest.mark.parametrize("path", MANAGERS.split())
def test_settings_of_a_hook_manager_are_held_whatever_their_ending(path: str) -> None:
    assert is_held(file(path))


@pytest.mark.parametrize("path", NO_MANAGERS.split())
def test_what_is_only_called_like_a_hook_manager_passes(path: str) -> None:
    assert not is_held(file(path))


MISE = """
    mise.toml .mise.toml mise.dev.toml mise.dev.local.toml .mise.ci.toml mise/config.toml .mise/config.dev.toml
    .config/mise.toml .config/mise/config.toml .config/mise/conf.d/a.toml
"""


@pytest.mark.parametrize("path", MISE.split())
def test_settings_of_mise_are_held_by_what_they_run_whatever_their_name(path: str) -> None:
    assert wants_facts(added(path))
    assert is_held(file(path, b'[hooks]\nenter = "evil"\n'))
    assert is_flagged(file(path, b'[tools]\nnode = "22"\n'))
    assert file("config.toml", b'[hooks]\nenter = "evil"\n') is None


def test_work_trees_in_work_trees_are_judged_however_many_they_are():
    nested = ".claude/worktrees/x/" * 1300
    assert find_concern(added(f"{nested}app.py"), None, NO_RULES) is None
    assert is_held(find_concern(added(f"{nested}.claude/settings.json"), None, NO_RULES))


def test_the_cheap_look_at_a_name_passes_every_name_that_is_held():
    stems = [name.partition(".")[0] for name in sensitive_names._HOOK_MANAGERS] + ["hk"]
    endings = ("", "rc", ".yml", ".toml", ".pkl", ".js", ".config", ".config.js", ".config.local.yml", ".dist.json5")
    parts = itertools.product(("", "local-"), stems, ("", "-local"), endings)
    hook_managers = [name for name in map("".join, parts) if sensitive_names.is_hook_manager(name, ".config")]
    assert len(hook_managers) > 100
    with_suffix = [f"any.{suffix}" for suffix in sensitive_names.HELD_SUFFIXES]
    names = [*hook_managers, *sensitive_names.HELD_NAMES, *with_suffix]
    assert [name for name in names if not project_tree._may_be_acted_on(name.swapcase())] == []
    assert not project_tree._may_be_acted_on("main.py")
