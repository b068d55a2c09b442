"""Whether a repository was there is told from the project alone, and in doubt it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fumehood.linux.gitobjects import had_repository
from fumehood.linux.nofollow import DirectoryCache, open_top


def was_there(project: Path, path: str) -> bool:
    live = DirectoryCache(open_top(str(project)))
    try:
        return had_repository(live, str(project), path)
    finally:
        live.close()
        os.close(live.top)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """One with a repository, a submodule's directory, a submodule's pointer, a bare repository and plain files."""
    project = tmp_path.resolve() / "project"
    for place in (".git/objects", ".git/modules/a/b/objects", "bare/refs", "plain/files", "empty"):
        (project / place).mkdir(parents=True)
    (project / "sub").mkdir()
    (project / "sub/.git").write_text("gitdir: ../.git/modules/a/b\n")
    (project / "link").symlink_to("sub")
    return project


@pytest.mark.parametrize(
    ("path", "there"),
    [
        (".git/config", True),
        (".git/config.worktree", True),
        (".git", True),
        (".git/worktrees/new/config.worktree", True),
        (".git/remotes/a/b", True),
        (".git/modules/a/b/config", True),
        (".git/modules/a/b/branches/x", True),
        (".git/modules/new/config", False),
        (".git/modules/a/config", False),
        (".git/worktrees/w/modules/new/config", False),
        ("bare/config", True),
        ("bare/remotes/x", True),
        ("sub/.git", True),
        ("sub/.git/config", True),
        ("link/.git/config", True),
        ("empty/.git/config", False),
        ("new/.git/config", False),
        ("new/deep/.git", False),
        ("new.git/config", False),
        ("plain/.git/config", True),
        ("plain/.git", True),
        ("plain/files/.git", False),
        ("plain/config", False),
    ],
)
def test_a_repository_was_there_if_any_of_it_was(project: Path, path: str, there: bool) -> None:
    assert was_there(project, path) is there


def test_files_in_no_repository_may_get_one(project: Path, tmp_path: Path) -> None:
    (project / ".git").rename(tmp_path / "away")
    assert not was_there(project, "plain/.git/config")
    assert not was_there(project, ".git/config")
    (tmp_path / ".git").mkdir()
    assert was_there(project, "plain/.git/config")
    assert was_there(project, ".git/config")


def test_a_root_may_be_a_git_directory_itself(project: Path) -> None:
    assert was_there(project / ".git", "config")
    assert was_there(project / ".git", "worktrees/new/config.worktree")
    assert not was_there(project / ".git", "modules/new/config")


@pytest.mark.ordinary
@pytest.mark.namespaces  # for the ordinary user's turn
def test_what_may_not_be_looked_at_was_there(project: Path) -> None:
    (project / "plain").chmod(0)
    try:
        assert was_there(project, "plain/deep/.git/config")
    finally:
        (project / "plain").chmod(0o755)
