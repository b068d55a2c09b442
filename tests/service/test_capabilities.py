"""What commands find in their sandbox is asked inside it, each time."""

import json
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trees
from fumehood import Sandbox
from fumehood.linux import cache

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


@pytest.mark.long
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
    files = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    assert f"Limits: 2 GiB of memory, 4096 processes, 2 hours of processor time, {files} open files a process, " in text
    assert "64 GiB a file, 64 GiB written in all, 90 seconds a command.\n" in text


@pytest.mark.long
def test_only_versions_are_remembered_and_only_of_files_that_are_as_they_were(
    cli: Cli, tree: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    first = told(cli)
    (kept,) = (home / ".cache/fumehood/capabilities").iterdir()
    versions = cache.load(str(kept))
    # What is remembered is what is told, so that program was not started again.
    grep = next(each for each in versions if each.split()[0].endswith("/grep"))
    cache.save(str(kept), {**versions, grep: "99.9"})
    assert told(cli)["tools"] == {**first["tools"], "grep": "99.9"}
    assert told(cli, "--fresh") == first
    kept.write_text("{")
    assert told(cli) == first
    # A file that has only just changed may do so again without another time.
    assert told(cli, "--root", tree)["runtimes"] == {"python3": "3.99.1"}
    program(tree, "python3", "echo Python 3.99.2")
    (tree / "etc/os-release").write_text("PRETTY_NAME='Another Linux'\n")
    again = told(cli, "--root", tree)
    assert (again["runtimes"], again["os"]) == ({"python3": "3.99.2"}, "Another Linux")


def test_the_shell_that_reads_a_line_is_named_and_limits_are_said_in_units_people_use(cli: Cli, tree: Path) -> None:
    answer = told(cli, "--root", tree)
    assert (answer["shell"], Path(answer["shell_program"]).name) == ("/bin/sh", "busybox")
    assert "Shell: a line is run by /bin/sh (busybox)." in cli("capabilities", "--root", tree).stdout
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert answer["limits_told"]["files"] == str(min(65536, limit))
    assert answer["limits_told"] | {"memory": "", "files": ""} == {
        "memory": "", "processes": "4096", "cpu": "100 days", "files": "", "file_size": "64 GiB", "written": "64 GiB",
        "time": "1 day",
    }  # fmt: skip
    assert answer["limits_told"]["memory"].endswith("iB")


@pytest.mark.long
def test_a_program_gets_them_as_the_command_line_does(cli: Cli, sandbox: Sandbox) -> None:
    facts = sandbox.capabilities()
    assert {**facts} == told(cli)
    assert facts.for_model() == cli("capabilities").stdout.rstrip("\n")


def test_asking_leaves_no_trace(cli: Cli, tree: Path, project: Path, home: Path) -> None:
    program(tree, "python3", "cd /workspace; echo x > left; echo Python 3.1; yes | head -c 100000")
    told(cli, "--root", tree)
    assert list(project.iterdir()) == []
    assert json.loads(cli("log", "--json").stdout)["runs"] == []
    state = home / ".local/state/fumehood"
    assert [list((state / name).iterdir()) for name in ("runs", "outputs")] == [[], []]
