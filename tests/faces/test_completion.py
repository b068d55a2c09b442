"""Tab completion: what is offered, and that real shells take it."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from at_terminal import Terminal
from conftest import command_line
from fumehood.faces.cli.commands import COMMAND_NAMES
from fumehood.faces.cli.completion import find_usage

pytestmark = [pytest.mark.namespaces, pytest.mark.once]


@pytest.fixture
def recorded(cli: Any, project: Path) -> str:
    """Have runs, one of them held, by a session; returns the id of that one."""
    cli("run", "--", "echo x > first")
    cli("run", "--hold", "--session", "agent-7", "--", "echo y > 'two words'; echo z > \"$(printf 'n\\033[2Jame')\"")
    return str(json.loads(cli("show", "last", "--json").stdout)["run"])


def offered(cli: Any, *words: str) -> tuple[str, list[str]]:
    done = cli("complete", *words)
    assert done.returncode == 0, done.stderr
    what, *lines = done.stdout.split("\n")[:-1]
    return what, [line.partition("\t")[0] for line in lines]


def test_commands_options_runs_paths_sessions_and_files_are_offered(cli: Any, recorded: str, project: Path) -> None:
    assert offered(cli, "") == ("nothing", list(COMMAND_NAMES))
    assert offered(cli, "und") == ("nothing", ["undo"])
    assert offered(cli, "undo", "--fo") == ("nothing", ["--force"])
    assert offered(cli, "run", "--allow") == ("nothing", ["--allow-host"])
    assert offered(cli, "agent", "--each") == ("nothing", ["--each-command"])
    assert offered(cli, "shell", "--tim") == ("nothing", ["--timeout"])
    assert offered(cli, "show", "") == ("nothing", ["last", "2", "1"])
    assert offered(cli, "apply", "") == ("nothing", ["last", "2"]), "only what holds something"
    ids = [run["run"] for run in json.loads(cli("log", "--json").stdout)["runs"]]
    assert offered(cli, "show", recorded[:3]) == ("nothing", ids)
    assert offered(cli, "apply", "2", "") == ("files", ["two words"]), "no name that would act on a terminal"
    assert offered(cli, "redo", "2", "two") == offered(cli, "undo", "2", "two") == ("files", ["two words"])
    assert offered(cli, "undo", "--session", "") == ("nothing", ["agent-7"])
    assert offered(cli, "undo", "--session", "=", "ag") == ("nothing", ["agent-7"])
    assert offered(cli, "roots", "") == ("nothing", ["list", "add", "remove"])
    assert offered(cli, "roots", "add", "") == ("directories", [])
    assert offered(cli, "log", "--project", "") == ("directories", [str(project)])
    assert offered(cli, "completion", "") == ("nothing", ["bash", "zsh", "fish"])
    assert offered(cli, "help", "und") == ("nothing", ["undo"])
    assert offered(cli, "run", "--", "") == ("commands", [])
    assert offered(cli, "nonsense", "")[0] == "files"


def test_drafts_and_clients_are_offered(cli: Any, recorded: str) -> None:
    cli("draft", "new", "idea")
    cli("run", "--draft", "idea", "--", "echo x > third")
    assert offered(cli, "draft", "apply", "") == ("nothing", ["idea"])
    assert offered(cli, "run", "--draft", "") == ("nothing", ["idea"])
    assert offered(cli, "export", "") == ("nothing", ["last", "3", "2", "1", "idea"])
    assert offered(cli, "undo", "--session", "") == ("nothing", ["agent-7"]), "a draft's own session is nobody's"
    assert offered(cli, "setup", "cl") == ("nothing", ["claude"])


def test_the_path_of_a_project_is_quoted_by_the_shell(cli: Any, recorded: str, project: Path) -> None:
    assert offered(cli, "projects", "forget", "") == ("directories", [str(project)])


def test_nothing_is_made_where_nothing_was_recorded_yet(cli: Any, home: Path) -> None:
    before = sorted(home.rglob("*"))
    assert offered(cli, "show", "") == ("nothing", [])
    assert sorted(home.rglob("*")) == before


def test_hosts_that_were_granted_are_offered(cli: Any, store: Any, project: Path) -> None:
    store.projects.open(str(project))
    store.grants.keep(("host", str(project), "pypi.org"), "allow")
    assert offered(cli, "run", "--allow-host", "p") == ("nothing", ["pypi.org"])
    (number,) = offered(cli, "grants", "revoke", "")[1]
    assert cli("grants", "revoke", number).returncode == 0


def test_every_command_has_a_shape_and_each_option_says_what_it_is() -> None:
    for name in COMMAND_NAMES:
        shape = find_usage(name)
        assert shape is not None, name
        assert all(option.about for option in shape.options), name


# Real shells.


def program(place: Path) -> str:
    """A directory with a program called fumehood in it, for PATH."""
    place.mkdir()
    (place / "fumehood").write_text(f"#!/bin/sh\nexec {' '.join(command_line())} \"$@\"\n")
    (place / "fumehood").chmod(0o755)
    return str(place)


@pytest.mark.parametrize(
    ("line", "replies"),
    [("fumehood undo --fo", ["--force"]), ("fumehood apply ", ["last", "2"]), ("fumehood apply 2 two", ["two words"]),
     ("fumehood discard 2 fir", ["first"]), ("fumehood undo 1 fir", ["first"])],
)  # fmt: skip
def test_bash_completes(
    cli: Any, recorded: str, project: Path, test_directory: Path, line: str, replies: list[str]
) -> None:
    words = [*line.split(" ")]
    setup = "eval \"$(fumehood completion bash)\"; compopt() { :; }"
    array = " ".join(f"'{word}'" for word in words)
    shown = "printf '%s\\n' \"${COMPREPLY[@]}\""
    script = f"{setup}; COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _fumehood; {shown}"
    path = f"{program(test_directory / 'bin')}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script], cwd=project, env=os.environ | {"PATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == replies, done.stderr


def shell_at(shell: str, project: Path, test_directory: Path) -> Terminal:
    path = f"{program(test_directory / 'bin')}:{os.environ['PATH']}"
    commands = {
        "bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"],
        "fish": ["fish", "--no-config", "-i"],
    }  # fmt: skip
    return Terminal(commands[shell], project, env={"PATH": path, "PS1": "$ ", "TERM": "xterm"}, columns=200)


SETUP = {
    "bash": 'eval "$(fumehood completion bash)"; echo rea""dy\n',
    "zsh": 'autoload -Uz compinit; compinit -u -D; eval "$(fumehood completion zsh)"; echo rea""dy\n',
    "fish": 'fumehood completion fish | source; echo rea""dy\n',
}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_tab_completes_at_a_real_terminal(
    cli: Any, recorded: str, project: Path, test_directory: Path, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    with shell_at(shell, project, test_directory) as screen:
        screen.type(SETUP[shell])
        screen.wait_for("ready")
        screen.shown = b""
        screen.type("fumehood undo --fo\t")
        while "undo --force" not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.seen):
            assert screen.more(), screen.seen
