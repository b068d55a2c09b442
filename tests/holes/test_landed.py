"""After the changes landed: nothing that the host would execute by itself arrives unseen."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood import Run, Sandbox
from snapshots import snapshot

pytestmark = pytest.mark.namespaces

Host = Callable[[str], None]

EXECUTED = {
    "a hook": ("echo ./evil > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit", ".git/hooks/pre-commit"),
    "core.fsmonitor": ("git config core.fsmonitor ./evil", ".git/config"),
    "diff.external": ("git config diff.external ./evil", ".git/config"),
    "filter.clean": ("git config filter.x.clean ./evil", ".git/config"),
    "filter.smudge": ("git config filter.x.smudge ./evil", ".git/config"),
    "core.sshCommand": ("git config core.sshCommand ./evil", ".git/config"),
    "core.hooksPath": ("git config core.hooksPath hooks", ".git/config"),
    "core.pager": ("git config core.pager ./evil", ".git/config"),
    "an alias": ("git config alias.st '!./evil'", ".git/config"),
    "include.path": ("git config include.path ../evil", ".git/config"),
    "includeIf": ("git config includeIf.onbranch:main.path ../evil", ".git/config"),
    "by another spelling": ("printf '[CORE]\\n\\tfsMonitor = ./evil\\n' >> .git/config", ".git/config"),
    "info/attributes": ("mkdir -p .git/info; echo '* filter=x' > .git/info/attributes", ".git/info/attributes"),
    "config.worktree": ("printf '[core]\\n\\tfsmonitor = ./evil\\n' > .git/config.worktree", ".git/config.worktree"),
    "commondir": ("echo ../evil > .git/commondir", ".git/commondir"),
    "husky": ("mkdir .husky; echo ./evil > .husky/pre-commit", ".husky/pre-commit"),
    "direnv": ("echo ./evil > .envrc", ".envrc"),
    "the editor's settings": ("mkdir .vscode; echo {} > .vscode/settings.json", ".vscode/settings.json"),
    "the agent's own settings": ("mkdir .claude; echo {} > .claude/settings.json", ".claude/settings.json"),
    "an MCP server": ("echo {} > .mcp.json", ".mcp.json"),
    "a key on a line of its own": ("printf '{\"extends\"\\n:\"./evil\"}' > .eslintrc.json", ".eslintrc.json"),
    "a key by an alias": ("printf 'x: &a plugins\\n*a : [./evil]\\n' > .prettierrc.yaml", ".prettierrc.yaml"),
    "a key with an escape": ("printf '\"tool\".mypy.\"plugin\\\\u0073\" = 1' > pyproject.toml", "pyproject.toml"),
    "hooks of Mercurial's, in a new repository": (
        "mkdir -p h/.hg; printf '[paths]\\na = b\\n[hooks];=\\nupdate = ./evil\\n' > h/.hg/hgrc", "h/.hg/hgrc"
    ),
}


@pytest.mark.parametrize("hole", EXECUTED)
def test_what_the_host_executes_by_itself_waits_though_it_did_not_exist_yet(
    sandbox: Sandbox, project: Path, on_host: Host, hole: str
) -> None:
    on_host("git init -q -b main .; rm -rf .git/hooks .git/info; mkdir .git/hooks")
    command, path = EXECUTED[hole]
    before = snapshot(project)
    run = sandbox.run(f"{command}; echo x > ordinary")
    assert run.exit_code == 0, run.output
    assert run.state == "held"
    (change,) = [change for change in run.changes if change.path == path]
    assert (change.verdict, bool(change.reason)) == ("held", True)
    assert (project / "ordinary").read_text() == "x\n"
    (project / "ordinary").unlink()
    assert snapshot(project) == before
    sandbox.discard(run)
    assert snapshot(project) == before


@pytest.mark.parametrize("ancestor", ["git", ".vscode", ".husky"])
def test_an_ancestor_that_is_renamed_dodges_no_rule(
    sandbox: Sandbox, project: Path, on_host: Host, ancestor: str
) -> None:
    if ancestor == "git":
        on_host("git init -q .; rm -rf .git/hooks/*")
        line = "mv .git g; mkdir -p g/hooks; echo x > g/hooks/pre-commit; chmod +x g/hooks/pre-commit; mv g .git"
        planted = ".git/hooks/pre-commit"
    else:
        line = f"mkdir harmless; echo x > harmless/pre-commit; echo x > harmless/tasks.json; mv harmless {ancestor}"
        planted = f"{ancestor}/{'tasks.json' if ancestor == '.vscode' else 'pre-commit'}"
    run = sandbox.run(line)
    assert run.state == "held"
    assert not (project / planted).exists()


def test_a_directory_that_is_made_first_and_moved_by_a_second_run_dodges_no_rule(
    sandbox: Sandbox, project: Path
) -> None:
    first = sandbox.run("mkdir harmless; echo {} > harmless/tasks.json")
    assert first.state == "applied"
    second = sandbox.run("mv harmless .vscode")
    assert second.state == "held"
    assert not (project / ".vscode").exists()


@pytest.mark.parametrize(
    "line",
    [
        "echo 'gitdir: sub/fake' > .git",
        "mkdir -p sub/fake; echo ../.. > sub/fake/commondir; echo 'gitdir: sub/fake' > .git",
        "rm -rf .git; ln -s sub/fake .git",
    ],
    ids=["a .git file", "with a commondir", "a link"],
)
def test_a_work_tree_trick_neither_arrives_unseen_nor_widens_the_next_run(
    sandbox: Sandbox, project: Path, outside: Path, line: str
) -> None:
    run = sandbox.run(f"mkdir -p sub/fake; {line}; printf '[core]\\nfsmonitor = ./evil\\n' > sub/fake/config")
    assert run.state == "held"
    assert not os.path.lexists(project / ".git")
    untouched = snapshot(outside)
    (project / ".git").write_text(f"gitdir: {outside}\n")
    (outside / "gitdir").write_text(f"{project}/.git\n")
    (outside / "commondir").write_text(".\n")
    later = sandbox.run(f"echo x > {outside}/file; exit 1")
    assert later.changes == ()
    assert {path: told for path, told in snapshot(outside).items() if path in untouched and path != "."} == {
        path: told for path, told in untouched.items() if path != "."
    }


SPY = """#!/bin/sh
echo "$0 $*" >> {log}
exit 1
"""


def test_no_git_and_nothing_it_would_start_is_run_on_the_host(
    sandbox: Sandbox, project: Path, test_directory: Path, cli: Callable[..., "subprocess.CompletedProcess[str]"],
    on_host: Host,
) -> None:  # fmt: skip
    log, programs = test_directory / "log", test_directory / "programs"
    on_host("git init -q .; echo '* filter=x diff=x' > .gitattributes; echo x > a")
    for key in ("core.fsmonitor", "filter.x.clean", "filter.x.smudge", "diff.external", "core.pager"):
        on_host(f"git config {key} {programs}/evil")
    programs.mkdir()
    for name in ("git", "evil", "direnv", "node", "ssh"):
        (programs / name).write_text(SPY.format(log=log))
        (programs / name).chmod(0o755)
    seen = {"PATH": f"{programs}:{os.environ['PATH']}"}
    assert cli("run", "--", "echo new > a; echo x > b", env=seen).returncode == 0
    held = cli("run", "--hold", "--", "echo newer > a", env=seen)
    assert held.returncode == 0
    for line in (["log"], ["show"], ["diff", "last"], ["apply", "last"], ["undo", "last"], ["files"], ["scan"],
                 ["restore", "a"], ["clean"]):  # fmt: skip
        done = cli(*line, env=seen)
        assert done.returncode == 0, (line, done.stderr)
    assert not log.exists(), log.read_text()


def test_a_link_that_the_agent_left_does_not_decide_what_the_next_run_may_write(
    sandbox: Sandbox, project: Path, outside: Path
) -> None:
    untouched = snapshot(outside)
    run = sandbox.run(f"ln -s {outside} way; ln -s {outside} .cache; ln -s {outside} playground")
    sandbox.apply(run)
    assert (project / "way").is_symlink()
    for line in ("echo x > way/file", "echo x > way/new", "rm -r way/sub", "cd way && echo x > here"):
        assert sandbox.run(line).exit_code != 0
    assert snapshot(outside) == untouched
    fresh = Sandbox(project)
    assert fresh.run("echo x > way/file").exit_code != 0
    fresh.close()
    assert snapshot(outside) == untouched


def test_the_project_itself_swapped_for_a_link_is_not_followed_to_another_place(
    home: Path, project: Path, outside: Path, test_directory: Path
) -> None:
    (project / "f").write_text("old")
    with Sandbox(project) as sandbox:
        run: Run = sandbox.run("echo new > f")
        project.rename(test_directory / "moved")
        project.symlink_to(outside)
        untouched = snapshot(outside)
        done = subprocess.run(
            [sys.executable, "-P", "-c", f"from fumehood import Sandbox; Sandbox({str(project)!r}).undo({run.run!r})"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert snapshot(outside) == untouched
        project.unlink()
        (test_directory / "moved").rename(project)
        sandbox.undo(run)
    assert (project / "f").read_text() == "old"
