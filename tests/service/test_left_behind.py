"""What a command of a session leaves running, and what one that still runs has written: the agent is told."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fumehood import Run, Sandbox
from fumehood.store.places import places
from patience import LONG_S, eventually

pytestmark = [pytest.mark.namespaces, pytest.mark.once]


@pytest.fixture
def agent(sandbox: Sandbox) -> Sandbox:
    return sandbox.session("agent-1")


def told(run: Run, what: str) -> list[str]:
    return [each.detail for each in run.blocked if each.what == what]


@pytest.mark.parametrize("line", ["sleep 1000 &", "nohup sleep 1000 > /dev/null 2>&1 &", "(setsid sleep 1000 &)"])
def test_a_process_that_is_left_behind_is_named(agent: Sandbox, line: str) -> None:
    run = agent.run(f"{line}\nuntil grep -q sleep /proc/[0-9]*/comm; do :; done; mkdir -p d; cd d")
    assert told(run, "process") == ["sleep"]
    assert "in the background" in run.for_model()
    assert agent.run("basename $PWD").stdout == "d\n", "where it ended is known all the same"


@pytest.mark.parametrize(
    "line", ["sleep 0 & wait", "true", "true | cat", "false", "sleep 0 & sleep 0.5", "set -eu; false"]
)
def test_a_command_that_leaves_nothing_behind_is_told_nothing(agent: Sandbox, line: str) -> None:
    assert agent.run(line).blocked == ()


def test_many_that_are_left_behind_are_told_in_one_line(agent: Sandbox) -> None:
    run = agent.run("for n in $(seq 500); do sleep 1000 & done; cd /")
    assert told(run, "process") == ["sleep"]
    assert run.ended_in == "/"


def test_a_name_that_is_left_behind_is_quoted(agent: Sandbox) -> None:
    run = agent.run("cp /bin/sleep 'a) R b'; './a) R b' 1000 & until ls -l /proc/$!/exe | grep R; do :; done")
    assert told(run, "process") == ["a) R b"]
    assert 'nded with its command: "a) R b"' in run.for_model()


@pytest.fixture
def server(agent: Sandbox) -> Iterator[Run]:
    """A command of the session that goes on, and has written a log."""
    has_begun = threading.Event()
    work = threading.Thread(
        target=agent.run, args=("mkdir out; echo x > out/server.log; echo ready; sleep 1000",),
        kwargs={"on_output": lambda _stream, _text: has_begun.set()},
    )  # fmt: skip
    work.start()
    assert has_begun.wait(LONG_S)
    (run,) = agent.running()
    yield run
    if agent.running():
        agent.stop(run)
    work.join()


def test_who_looks_for_what_a_running_command_has_written_is_told_once(agent: Sandbox, server: Run) -> None:
    run = agent.run("cat out/server.log")
    assert told(run, "running") == [f"{run.project}/out/server.log"]
    assert f"run {server.name} still runs" in run.for_model()
    assert agent.run("cat out/server.log").blocked == ()


def test_nothing_is_told_of_what_no_running_command_has_written(agent: Sandbox, server: Run) -> None:
    assert agent.run("cat server.log; cat out/other").blocked == ()


def test_another_session_is_told_nothing_of_it(sandbox: Sandbox, server: Run) -> None:
    assert sandbox.session("agent-2").run("cat out/server.log").blocked == ()


def test_who_changes_a_file_is_told_once_that_a_server_goes_on_with_the_old_one(
    agent: Sandbox, server: Run, project: Path
) -> None:
    (project / "page").write_text("old\n")
    assert agent.run("echo beside > page").blocked == (), "it has only begun"
    with sqlite3.connect(places().database) as connection:
        connection.execute("UPDATE runs SET started_at = started_at - 60 WHERE id = ?", (server.run,))
    connection.close()
    assert agent.run("echo more > another-page").blocked == (), "it has not read that"
    run = agent.run("echo new > page")
    assert told(run, "old-files") == [server.command]
    assert "start it again" in run.for_model()
    assert ("with CHOKIDAR_USEPOLLING=1 " in run.for_model()) == (server.capture == "kernel"), "only then it would help"
    assert agent.run("rm page").blocked == ()


def test_after_a_checkpoint_it_is_there(agent: Sandbox, server: Run, project: Path) -> None:
    assert agent.checkpoint(server).state == "applied"
    assert agent.run("cat out/server.log").stdout == "x\n"
    assert eventually(lambda: os.listdir(project / "out") == ["server.log"])
