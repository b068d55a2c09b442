"""What runs now: shown by ps, ended by stop, settled by checkpoint."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import command_line
from fumehood import Sandbox
from patience import LONG_S, eventually

pytestmark = pytest.mark.namespaces

LASTS = "echo written > f; echo ready; sleep 1000"


@pytest.fixture
def started(begun: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """A command that has begun, and goes on."""
    return lambda *arguments: begun(LASTS, *arguments)


def shown(cli: Any, *words: str) -> list[dict[str, Any]]:
    return json.loads(cli("ps", "--json", *words).stdout)["runs"]


def test_what_runs_is_shown_with_its_session(cli: Any, started: Any, project: Path) -> None:
    assert shown(cli) == []
    assert cli("ps").stdout == "nothing runs\n"
    started()
    started("--session", "agent")
    assert [run["session"] for run in shown(cli)] == ["agent", None]
    assert [run["session"] for run in shown(cli, "--only-session", "agent")] == ["agent"]
    line = cli("ps").stdout.splitlines()[0]
    assert "echo written" in line
    assert "session agent" in line
    (when,) = [line for line in cli("show", "last").stdout.splitlines() if line.startswith("when")]
    assert ", for " in when


def test_another_projects_commands_are_shown_where_all_are_asked_for(
    cli: Any, started: Any, test_directory: Path
) -> None:
    started()
    other = test_directory / "other"
    other.mkdir()
    assert json.loads(cli("ps", "--json", cwd=other).stdout)["runs"] == []
    assert len(json.loads(cli("ps", "--json", "--all", cwd=other).stdout)["runs"]) == 1


def test_a_command_that_is_stopped_ends_and_what_it_wrote_is_held(cli: Any, started: Any, project: Path) -> None:
    process = started()
    (run,) = shown(cli)
    done = cli("stop", run["run"])
    assert done.returncode == 0, done.stderr
    assert "held: ended by fumehood stop" in done.stdout
    assert "ended by: \"fumehood stop\". if it wrote anything" in done.stdout
    process.communicate(timeout=LONG_S)
    report = json.loads(cli("show", run["run"], "--json").stdout)
    assert (report["state"], report["reason"]) == ("held", "ended by fumehood stop")
    assert not (project / "f").exists()
    assert shown(cli) == []


def test_what_does_not_run_can_not_be_stopped(cli: Any) -> None:
    cli("run", "--", "true")
    refused = cli("stop", "last")
    assert refused.returncode == 125
    assert "is not running" in refused.stderr


def test_an_agent_stops_its_own_commands_and_no_others(cli: Any, started: Any) -> None:
    started()
    (run,) = shown(cli)
    refused = cli("stop", run["run"], "--only-session", "agent")
    assert refused.returncode == 125
    assert len(shown(cli)) == 1


@pytest.mark.long
def test_what_a_command_prints_is_followed_to_its_end(cli: Any, home: Path, project: Path) -> None:
    playground = Path(cli("playground", "path").stdout.strip())
    waits = "until [ -e ~/playground/$n ]; do sleep 0.05; done"
    line = f"for n in 1 2; do echo out$n; echo err$n >&2; {waits}; done; exit 3"
    with subprocess.Popen(
        [*command_line(), "run", "--", line], cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ):  # fmt: skip
        while not shown(cli):
            pass
        with subprocess.Popen(
            [*command_line(), "output", "last", "--follow"], cwd=project, stdout=subprocess.PIPE, text=True
        ) as following:
            assert following.stdout is not None
            assert {following.stdout.readline() for _ in range(2)} == {"out1\n", "err1\n"}
            (playground / "1").touch()
            assert {following.stdout.readline() for _ in range(2)} == {"out2\n", "err2\n"}
            (playground / "2").touch()
            assert following.stdout.read() == ""
    assert sorted(cli("output", "last").stdout.split()) == ["err1", "err2", "out1", "out2"]
    assert not list(Path(home, ".local/state/fumehood/outputs").glob("*")), "what is short is in the record"


def test_a_command_that_has_ended_is_printed_whole(cli: Any) -> None:
    cli("run", "--", "echo out; echo err >&2")
    assert cli("output", "last", "--follow").stdout == "out\nerr\n"


def test_one_stream_is_printed_whole_too(cli: Any, project: Path) -> None:
    words = [*command_line(), "run", "--", "echo out; echo err >&2"]
    subprocess.run(words, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
    for options in ((), ("--follow",)):
        done = cli("output", "last", *options)
        assert (done.stdout, done.stderr, done.returncode) == ("out\nerr\n", "", 0)
    with Sandbox(project) as sandbox:
        assert sandbox.output(stream="stderr") == b""


def test_following_for_a_program_prints_one_object(cli: Any) -> None:
    cli("run", "--", "echo out; echo err >&2; exit 3")
    shown = json.loads(cli("output", "last", "--follow", "--json").stdout)
    assert (shown["stdout"], shown["stderr"], shown["exit_code"]) == ("out\n", "err\n", 3)


def test_what_a_command_has_written_is_settled_by_a_checkpoint(cli: Any, started: Any, project: Path) -> None:
    process = started("--session", "agent")
    (run,) = shown(cli)
    done = cli("checkpoint", run["run"])
    assert done.returncode == 0, done.stderr
    assert "1 change applied" in done.stdout
    assert (project / "f").read_text() == "written\n"
    assert [each["run"] for each in shown(cli)] == [run["run"]], "it goes on"
    report = json.loads(cli("show", "last", "--json").stdout)
    assert (report["act"], report["of"], report["session"]) == ("checkpoint", run["run"], "agent")
    again = cli("checkpoint", run["run"])
    assert (again.returncode, again.stdout) == (0, "fumehood: nothing was settled\n")
    refused = cli("undo", report["run"])
    assert refused.returncode == 125
    assert "still runs" in refused.stderr
    cli("stop", run["run"])
    process.communicate(timeout=LONG_S)
    assert cli("undo", "--session", "agent").returncode == 0
    assert not (project / "f").exists()


def test_numbers_of_another_project_are_not_in_the_way_of_an_undo(
    cli: Any, begun: Any, project: Path, test_directory: Path
) -> None:
    other = test_directory / "other"
    other.mkdir()
    cli("run", "--", "true", cwd=other)
    process = begun("echo x > first; echo ready; while [ ! -e ~/playground/go ]; do sleep 0.05; done; echo y > second")
    cli("checkpoint", "last")
    Path(cli("playground", "path").stdout.strip(), "go").touch()
    process.communicate(timeout=LONG_S)
    for act in ("undo", "redo", "undo"):
        done = cli(act, "1")
        assert (done.returncode, done.stderr) == (0, "")
        assert "that was run 1;" in done.stdout
        assert (project / "first").exists() == (project / "second").exists() == (act == "redo")


def test_an_undo_says_that_what_was_settled_before_stands(cli: Any, begun: Any, home: Path, project: Path) -> None:
    process = begun("echo x > first; echo ready; while [ ! -e ~/playground/go ]; do sleep 0.05; done; echo y > second")
    (run,) = shown(cli)
    cli("checkpoint", run["run"])
    Path(cli("playground", "path").stdout.strip(), "go").touch()
    process.communicate(timeout=LONG_S)
    told = cli("undo").stdout
    (earlier,) = re.findall(r"what was applied while it ran is still there; to undo that: fumehood undo (\w+)", told)
    assert [path.name for path in project.iterdir()] == ["first"]
    assert "stands" not in cli("undo", earlier).stdout
    assert list(project.iterdir()) == []


def test_an_undo_of_a_command_takes_back_what_was_settled_before_too_or_nothing(
    cli: Any, begun: Any, project: Path
) -> None:
    wait = "echo ready; while [ ! -e ~/playground/go ]; do sleep 0.05; done"
    process = begun(f"echo x > first; echo x > other; {wait}; echo y > second")
    (run,) = shown(cli)
    cli("checkpoint", run["run"])
    Path(cli("playground", "path").stdout.strip(), "go").touch()
    process.communicate(timeout=LONG_S)
    (project / "first").write_text("a person's")
    refused = cli("undo", run["run"])
    assert refused.returncode == 125
    assert "was not undone: changed since" in refused.stderr
    assert sorted(os.listdir(project)) == ["first", "other", "second"]
    done = cli("undo", run["run"], "--force", "--json")
    assert os.listdir(project) == []
    report = json.loads(done.stdout)
    assert [each["path"] for each in report["changes"]] == ["second"]
    assert [[each["path"] for each in other["changes"]] for other in report["also"]] == [["first", "other"]]
    assert cli("redo", run["run"]).returncode == 0
    assert sorted(os.listdir(project)) == ["first", "other", "second"]
    assert (project / "first").read_text() == "a person's"


def test_an_agent_has_its_own_commands_settled_and_no_others(cli: Any, started: Any, project: Path) -> None:
    started()
    (run,) = shown(cli)
    assert cli("checkpoint", run["run"], "--only-session", "agent").returncode == 125
    assert not (project / "f").exists()


def test_what_does_not_run_has_no_checkpoint(cli: Any) -> None:
    cli("run", "--", "true")
    refused = cli("checkpoint", "last")
    assert refused.returncode == 125
    assert "is not running" in refused.stderr


def test_a_command_that_the_hook_puts_into_the_background_is_settled_by_itself(
    cli: Any, begun: Callable[..., subprocess.Popen[str]], project: Path
) -> None:
    begun(LASTS, "--session", "agent", "--background-after", "0.1")
    assert eventually((project / "f").exists)
