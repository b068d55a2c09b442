"""Attacks on Fumehood itself: its files, and what a hostile project could make it run or read."""

import os
import sqlite3
import stat
from pathlib import Path

import pytest

pytestmark = pytest.mark.namespaces


def modes_below(top: Path) -> dict[str, int]:
    """The modes of everything of ours, leaving out what layers hold, which has the project's own."""
    found = {}
    for folder, directories, files in os.walk(top):
        if "upper" in directories:
            directories.remove("upper")
        for name in (*directories, *files):
            path = Path(folder, name)
            found[str(path.relative_to(top))] = stat.S_IMODE(path.lstat().st_mode)
    return found


def test_our_records_layers_and_outputs_are_closed_to_others(cli, project, home):
    os.umask(0)
    try:
        (project / "f").write_text("old")
        cli("run", "--", "echo new > f; seq 20000")
        cli("run", "--hold", "--", "echo held > g")
    finally:
        os.umask(0o022)
    state = home / ".local/state/fumehood"
    assert stat.S_IMODE(state.lstat().st_mode) == 0o700
    tops = {name: mode for name, mode in modes_below(state).items() if "/" not in name}
    directories = {name: mode for name, mode in tops.items() if (state / name).is_dir()}
    assert directories
    assert set(directories.values()) == {0o700}
    assert {name: mode for name, mode in tops.items() if name.startswith("fumehood.db") and mode & 0o077} == {}


def test_no_secret_of_the_environment_is_recorded(cli, home):
    cli("run", "--", "env", env={"SOME_TOKEN": "hunter2hunter2", "PLAIN": "ghp_0123456789abcdefghijABCDEFGHIJ456789"})
    shown = cli("show", "last", "--json").stdout
    assert "SOME_TOKEN" in shown
    assert "PLAIN" in shown
    with sqlite3.connect(home / ".local/state/fumehood/fumehood.db") as database:
        text = "\n".join(database.iterdump())
    database.close()
    assert "hunter2" not in text
    assert "ghp_" not in text
    assert "hunter2" not in shown


def hostile(project: Path, marker: Path) -> None:
    """Leave everything that a careless tool would run or read when it is started in a project."""
    payload = f"#!/bin/sh\ntouch {marker}\n"
    programs = ("bwrap", "git", "sh", "python3", "fuse-overlayfs", "fusermount3")
    for name in (*programs, "bin/bwrap", "node_modules/.bin/bwrap"):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(payload)
        path.chmod(0o755)
    code = f"open({str(marker)!r}, 'w').close()\n"
    modules = ("sitecustomize.py", "usercustomize.py", "json.py", "sqlite3.py", "fumehood.py")
    for name in (*modules, "src/fumehood/__init__.py"):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    for name in ("fumehood.toml", ".fumehood.toml", "config.toml", ".config/fumehood/config.toml"):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('unmask = ["~/.ssh"]\nnetwork = "full"\n')
    (project / ".git").mkdir()
    (project / ".git/config").write_text(f"[core]\n\trepositoryformatversion = 0\n\tfsmonitor = {project}/git\n")
    (project / ".git/HEAD").write_text("ref: refs/heads/main\n")


def test_a_hostile_project_runs_nothing_when_fumehood_is_used_in_it(cli, project, home, test_directory):
    marker = test_directory / "marker"
    hostile(project, marker)
    path = f"{project}:{project}/bin:{project}/node_modules/.bin:{os.environ['PATH']}"
    environment = {"PATH": path, "PYTHONPATH": str(project)}
    first = cli("run", "--", "/bin/sh -c 'echo x > made'", env=environment)
    assert first.returncode == 0, first.stderr
    for line in (("log",), ("show", "last"), ("diff", "last"), ("files",), ("undo",), ("doctor",), ("config", "show")):
        cli(*line, env=environment)
    assert not marker.exists()


def test_a_project_does_not_configure_fumehood(cli, project, home):
    hostile(project, project / "never")
    (home / ".ssh").mkdir()
    (home / ".ssh/id_rsa").write_text("secret")
    run = cli("run", "--", f"/bin/cat {home}/.ssh/id_rsa")
    assert "secret" not in run.stdout


def test_every_requirement_is_pinned_by_hash():
    folder = Path(__file__).resolve().parent.parent.parent / "requirements"
    for lock in folder.glob("*.txt"):
        text = lock.read_text()
        pinned = [line for line in text.splitlines() if "==" in line and not line.lstrip().startswith(("#", "--"))]
        assert pinned, lock.name
        blocks = text.replace("\\\n", " ").splitlines()
        named = [block for block in blocks if "==" in block and not block.startswith("#")]
        assert all("--hash=sha256:" in block for block in named), lock.name
