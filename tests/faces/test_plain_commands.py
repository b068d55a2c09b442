"""Plain commands read well: help by name, quiet where asked, lists that fit, progress only where somebody looks."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from at_terminal import Terminal
from fumehood.faces.cli.run import parse_options
from fumehood.service.opened import OpenedStore

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
COMMAND = [sys.executable, "-m", "fumehood"]
PATHS = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}


@pytest.fixture(autouse=True)
def _known_host(known_host: None) -> None:
    """What this host can do is found out once."""


def test_help_names_a_command_and_quiet_says_nothing(cli: Cli, project: Path) -> None:
    for name in ("undo", "run", "shell", "agent", "mcp"):
        assert f"fumehood {name}" in cli("help", name).stdout.splitlines()[0]
    assert "commands:" in cli("help").stdout
    assert "commands:" in cli("help", "help").stdout
    assert cli("-V").stdout.startswith("fumehood ")
    assert cli("run", "-q", "--", "echo x >> a").stderr == ""
    quiet = cli("undo", "-q")
    assert (quiet.stdout, quiet.stderr, quiet.returncode) == ("", "", 0)
    assert not (project / "a").exists()
    assert json.loads(cli("redo", "-q", "--json").stdout)["state"] == "applied"
    assert "ERROR" in cli("undo", "99", "-q").stderr


def test_log_and_status_tell_what_built_on_what_and_fit_the_terminal(cli: Cli, project: Path) -> None:
    for command in ("echo 1 > a", "echo 2 > b", "cat a b > c; echo x >> a; echo y >> b"):
        cli("run", "-q", "--", command)
    cli("undo")
    cli("run", "-q", "--hold", "--", "echo " + "漢字 " * 60 + "> held")
    graph = [line.split() for line in cli("log", "--graph").stdout.splitlines()]
    assert [line[0] for line in graph] == ["●", "↶", "✗─╮", "│", "●"]
    assert graph[1][-3:] == ["←", "of", "#3"]
    assert graph[2][-4:] == ["←", "on", "#1,", "#2"]
    assert [line[line.index("←") :] for line in graph if "←" in line] == [graph[1][-3:], graph[2][-4:]]
    assert [line[-5:] for line in cli("log", "--all").stdout.splitlines()[:1]] == [project.name[-5:]]
    status = cli("status").stdout
    assert [line.split()[:2] for line in status.splitlines() if "#" in line] == [["waiting", "#5"], ["undone", "#3"]]
    with Terminal([*COMMAND, "log"], project, env=PATHS | {"NO_COLOR": "1"}, columns=60) as terminal:
        assert terminal.end() == 0
        wide = [len(line) + sum(letter in "漢字" for letter in line) for line in terminal.seen.splitlines()]
        assert max(wide) == 60


def test_the_graph_of_a_session_that_was_taken_back_leaves_room_for_words(cli: Cli, project: Path) -> None:
    for number in range(12):
        cli("run", "-q", "--session", "s", "--", f"echo {number} > f{number}")
    cli("undo", "--session", "s")
    lines = cli("log", "--graph", "-n", "0").stdout.splitlines()
    assert max(line.index("#") for line in lines) <= 18
    assert [line.split(" ← ")[1] for line in lines if " undo " in line] == [f"of #{number}" for number in range(1, 13)]


def test_words_of_the_command_are_none_of_ours(cli: Cli, project: Path) -> None:
    for words in (["--cwd", "/nonexistent", "ls", "--json"], ["--timeout", "x", "ls", "--brief"]):
        refused = cli("run", *words)
        assert (refused.returncode, refused.stdout) == (125, "")
        assert refused.stderr.startswith("ERROR: ")
    for words in (["--cwd", "/nonexistent", "--json", "ls"], ["--no-such", "--json", "--", "ls"], ["--json", "--cwd"]):
        assert json.loads(cli("run", *words).stdout)["error"]
    ours = ["--quiet", "--cwd", "--", "--write=x"]
    asked = parse_options([*ours, "sh", "--brief"])
    assert (asked.flags, asked.values) == ({"--quiet"}, {"--cwd": ["--"], "--write": ["x"]})
    assert asked.command_words == ["sh", "--brief"]


def test_servers_take_what_their_help_lists(cli: Cli, project: Path) -> None:
    for name in ("mcp", "web"):
        assert json.loads(cli(name, "--json", "--no-such").stdout)["error"]
        for words in (["--project", "."], ["-q"], ["--workspace", "w"]):
            refused = cli(name, *words, "--no-such")
            assert (refused.returncode, refused.stderr.splitlines()[0]) == (
                125, f"ERROR: fumehood {name} does not take --no-such",
            )  # fmt: skip
    assert "there is no workspace w" in cli("mcp", "--workspace", "w").stderr


@pytest.mark.long
def test_a_quiet_server_still_speaks_to_its_client(project: Path, home: Path) -> None:
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }  # fmt: skip
    with subprocess.Popen(
        [*COMMAND, "mcp", "-q"], cwd=project, env=os.environ | PATHS, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(hello) + "\n")
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["id"] == 1


@pytest.mark.parametrize("columns", [1, 20, 24, 30])
def test_a_count_is_shown_however_narrow_the_terminal(columns: int, cli: Cli, project: Path) -> None:
    cli("run", "-q", "--", "seq 100 > a-name-that-is-longer-than-the-terminal-is-wide; echo x > b")
    environment = PATHS | {"NO_COLOR": "1"}
    with Terminal([*COMMAND, "diff", "--stat"], project, env=environment, columns=columns) as terminal:
        assert terminal.end() == 0
        assert "…" in terminal.seen
        assert "+ b " in terminal.seen
        assert "101 lines added" in terminal.seen


def test_a_difference_is_counted_and_read_through_the_pager(cli: Cli, project: Path) -> None:
    (project / "a").write_text("1\n2\n3\n")
    lines = "printf '1\n--- x\n+++ y\n3\n' > a; mkdir d; cd d; touch $(seq 20); printf '\\033[2Jx\n' > 1"
    cli("run", "-q", "--", lines)
    counted = cli("diff", "--stat").stdout.splitlines()
    assert counted[0].split() == ["~", "a", "|", "3", "++-"]
    assert counted[-1] == "22 paths, 3 lines added, 1 removed"
    shown = cli("show").stdout.splitlines()
    assert shown[shown.index("  d/  20 of them") + 1] == "    + 1"
    # The pager gets text alone: it starts elsewhere, and less opens no other program.
    pager = "pwd; echo secure=$LESSSECURE open=$LESSOPEN; cat"
    environment = PATHS | {"PAGER": pager, "LESSOPEN": "|touch opened %s", "NO_COLOR": "1"}
    with Terminal([*COMMAND, "diff"], project, env=environment) as terminal:
        assert terminal.end() == 0
        lines = terminal.seen.splitlines()
    assert lines[:2] == ["/", "secure=1 open="]
    assert "+--- x" in lines
    assert "\033[2J" not in terminal.seen
    with Terminal([*COMMAND, "diff"], project, env=PATHS | {"PAGER": "head -n 1"}) as terminal:
        assert terminal.end() == 0
        assert "diff --git" in terminal.seen


@pytest.mark.long
def test_what_takes_long_says_for_how_long_at_a_terminal_only(cli: Cli, project: Path) -> None:
    cli("run", "-q", "--hold", "--", "echo x > a")
    store = OpenedStore()
    command = [*COMMAND, "apply", "last"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with Terminal(command, project, env=PATHS) as terminal:
        with store.lock_project(store.projects.number_at(str(project)) or 0):
            piped = subprocess.Popen(command, cwd=project, env=os.environ | PATHS, text=True, **pipes)
            terminal.wait_for("applying  1 s")
        assert {terminal.end(), piped.wait()} == {0, 125}  # whoever is second finds nothing held
    assert "applying" not in piped.communicate()[0]
    assert (project / "a").read_text() == "x\n"
