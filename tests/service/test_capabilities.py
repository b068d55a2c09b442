"""What commands find in their sandbox is asked inside it, and kept until it changes."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trees

pytestmark = pytest.mark.namespaces
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tree(test_directory: Path) -> Path:
    """A tree with a Python of its own, and a git that tells no version."""
    made = trees.make_tree(test_directory / "tree")
    program(made, "python3", "echo Python 3.99.1")
    program(made, "git", "true")
    return made


def program(tree: Path, name: str, line: str) -> None:
    path = tree / "usr/bin" / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def told(cli: Cli, *options: str | Path) -> dict[str, Any]:
    done = cli("capabilities", "--json", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_programs_are_those_of_the_root_and_not_of_the_host(cli: Cli, tree: Path) -> None:
    found = told(cli, "--root", tree)
    assert found["runtimes"] == {"python3": "3.99.1"}
    assert found["tools"]["git"] == ""
    assert found["tools"]["wget"] == "(busybox)"
    assert found["os"] == f"Alpine Linux v{trees.VERSION}"
    assert (found["cwd"], found["tree"], found["interfaces"]) == ("/workspace", True, "lo")
    assert found["writable"] == ["/workspace", "/tmp", "/playground"]


def test_the_host_root_has_what_the_host_has(cli: Cli, project: Path) -> None:
    found = told(cli)
    assert found["root"] == "host"
    assert found["cwd"] == str(project)
    assert str(project) in found["writable"]
    assert "/usr" not in found["writable"]
    assert found["uid"] == os.getuid()


def test_the_text_tells_a_model_what_it_needs(cli: Cli, tree: Path, home: Path) -> None:
    configuration = home / ".config/fumehood/config.toml"
    configuration.parent.mkdir(exist_ok=True)
    configuration.write_text('hosts = ["pypi.org"]\ntimeout = 90\nlimits.memory = "2 GiB"\nlimits.cpu = 7200\n')
    text = cli("capabilities", "--root", tree).stdout
    assert "Runtimes: Python 3.99.1." in text
    assert "/workspace (the project; every change is recorded and can be undone), /tmp (empty" in text
    assert "Network: only pypi.org." in text
    assert "Missing: node, pip, npm, curl" in text
    assert "Limits: 2 GiB of memory, 4096 processes, 2 hours of processor time, 65536 open files a process, " in text
    assert "64 GiB a file, 64 GiB written in all, 90 seconds a command.\n" in text


def test_the_answer_is_kept_until_the_root_changes(
    cli: Cli, tree: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    first = told(cli, "--root", tree)
    kept = list((home / ".cache/fumehood/capabilities").iterdir())
    assert len(kept) == 1
    # What is remembered is what is told, so nothing was asked again.
    kept[0].write_text(kept[0].read_text().replace("3.99.1", "3.99.2"))
    assert told(cli, "--root", tree)["runtimes"] == {"python3": "3.99.2"}
    assert told(cli, "--root", tree, "--fresh") == first
    program(tree, "node", "echo v99.0.1")
    assert told(cli, "--root", tree)["runtimes"] == {"python3": "3.99.1", "node": "99.0.1"}
    kept[0].write_text("{")
    assert told(cli, "--root", tree)["runtimes"]["node"] == "99.0.1"


def test_asking_leaves_no_trace(cli: Cli, tree: Path, project: Path, home: Path) -> None:
    program(tree, "python3", "cd /workspace; echo x > left; echo Python 3.1; yes | head -c 100000")
    told(cli, "--root", tree)
    assert list(project.iterdir()) == []
    assert json.loads(cli("log", "--json").stdout) in ([], {"runs": []})
    state = home / ".local/state/fumehood"
    assert [list((state / name).iterdir()) for name in ("runs", "outputs")] == [[], []]
