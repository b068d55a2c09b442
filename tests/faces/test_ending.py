"""A command that did not end by itself: held, unless a person ended it with Ctrl-C at their terminal."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from at_terminal import Terminal
from conftest import command_line, need
from fumehood import Sandbox
from fumehood.core.report import MEMORY, limit_reached, stopped_by_request
from fumehood.linux.process import Exit, Outcome
from fumehood.service.hood import Caller
from fumehood.service.sandbox import why_ended_early
from patience import LONG_S, with_enough_time

# The last line is `exec`: dash loses a Ctrl-C that comes while it starts a program.
WRITES = "echo changed > file; echo ready; exec sleep 100"
STUBBORN = "trap '' INT; echo changed > file; echo ready; while :; do sleep 100; done"
CTRL_C = "\x03"

in_the_hood = pytest.mark.namespaces


@pytest.fixture
def alone(begun: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """Start `fumehood run` without a terminal; it has begun when this returns."""
    return lambda *arguments, command=WRITES: begun(command, *arguments)


@pytest.fixture
def typing(home: Path, project: Path) -> Iterator[Callable[..., Terminal]]:
    """Start `fumehood run` at a terminal; it has begun when this returns."""
    terminals = []

    def start(*arguments: str, command: str = WRITES) -> Terminal:
        terminal = Terminal([*command_line(), "run", *arguments, "--", command], project)
        terminals.append(terminal)
        terminal.wait_for("ready")
        return terminal

    yield start
    for terminal in terminals:
        terminal.close()


def last(project: Path) -> Any:
    with Sandbox(project) as sandbox:
        run = sandbox.history(1)[0]
        assert len(run.changes) == 1  # which are read when they are asked for
        return run


@in_the_hood
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("face", ["--quiet", "--brief", ""])
def test_a_command_that_a_signal_ended_is_held(alone: Any, project: Path, number: signal.Signals, face: str) -> None:
    process = alone(*([face] if face else []))
    process.send_signal(number)
    _, told = process.communicate(timeout=LONG_S)
    assert process.returncode == 130
    run = last(project)
    assert (run.state, run.reason) == ("held", f"ended by a signal: {number.name}")
    assert [change.reason for change in run.changes] == [run.reason]
    assert (run.reason in told) == (face != "--quiet")
    assert not (project / "file").exists()


@in_the_hood
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_go_on_do_not_lose_the_report(alone: Any, project: Path, first: signal.Signals) -> None:
    process = alone(command=STUBBORN)
    process.send_signal(first)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
    told = process.stderr.read()
    assert process.returncode == 130
    assert "1 change held: ended by a signal" in told
    assert "ERROR" not in told
    assert last(project).state == "held"


@in_the_hood
def test_ctrl_c_at_a_terminal_applies_as_asked(typing: Any, project: Path) -> None:
    terminal = typing()
    terminal.type(CTRL_C)
    assert terminal.end() == 130
    assert "1 change applied" in terminal.seen
    assert (project / "file").read_text() == "changed\n"


@in_the_hood
def test_ctrl_c_at_a_terminal_holds_what_was_to_be_held(typing: Any, project: Path) -> None:
    terminal = typing("--hold")
    terminal.type(CTRL_C)
    assert terminal.end() == 130
    assert "1 change held" in terminal.seen
    assert not (project / "file").exists()


@in_the_hood
def test_a_second_ctrl_c_ends_it_at_once_with_its_report(typing: Any, project: Path) -> None:
    terminal = typing(command=STUBBORN)
    terminal.keep_output()
    while terminal.process.poll() is None:
        terminal.type(CTRL_C)
        terminal.read(0.01)
    assert terminal.end() == 130
    assert "1 change applied" in terminal.seen
    assert "ERROR" not in terminal.seen
    assert last(project).state == "applied"


@pytest.mark.long
@in_the_hood
def test_ctrl_z_stops_the_command_too_and_its_time_does_not_pass_meanwhile(home: Path, project: Path) -> None:
    need(shutil.which("bash") is not None, "there is no bash")
    limit_s = 10
    tick = "echo >> ~/playground/ticks"
    inside = f"{tick}; echo rea''dy; until [ -e ~/playground/go ]; do {tick}; sleep 0.05; done; echo en''ded"
    line = 'set -m; "$@"; echo stopped; read -r _; fg >/dev/null'
    run = [*command_line(), "run", "--timeout", str(limit_s), "--", inside]
    place = subprocess.run([*command_line(), "playground", "path"], cwd=project, capture_output=True, check=True)
    playground = Path(place.stdout.decode().strip())
    with Terminal(["bash", "-c", line, "sh", *run], project) as terminal:
        terminal.wait_for("ready")
        terminal.type("\x1a")
        terminal.wait_for("stopped")
        ticks = (playground / "ticks").stat().st_size
        time.sleep(limit_s)
        assert (playground / "ticks").stat().st_size == ticks
        (playground / "go").touch()
        terminal.type("\n")
        terminal.wait_for("ended")
        assert terminal.end() == 0
    with Sandbox(project) as sandbox:
        assert not sandbox.history(1)[0].timed_out


@in_the_hood
def test_ctrl_z_where_nobody_could_have_it_go_on_stops_nothing(typing: Any, project: Path) -> None:
    terminal = typing(command="echo ready; read line; echo got-$line")
    terminal.type("\x1a")
    terminal.type("on\n")
    terminal.wait_for("got-on")
    assert terminal.end() == 0


@in_the_hood
def test_what_is_typed_at_an_agents_terminal_is_not_meant_for_its_command(typing: Any, project: Path) -> None:
    terminal = typing("--brief")
    terminal.type(CTRL_C)
    assert terminal.end() == 130
    assert "ended by a signal: SIGINT" in terminal.seen
    assert not (project / "file").exists()


@in_the_hood
def test_a_terminal_that_goes_away_holds(typing: Any, project: Path) -> None:
    terminal = typing("--quiet")
    os.kill(terminal.process.pid, signal.SIGHUP)
    assert terminal.end() == 130
    assert last(project).reason == "ended by a signal: SIGHUP"


@in_the_hood
def test_a_program_that_calls_a_command_off_finds_it_held(home: Path, project: Path) -> None:
    begun: list[str] = []
    with Sandbox(project) as sandbox:
        run = sandbox.run(WRITES, on_output=lambda _, text: begun.append(text), cancelled=lambda: bool(begun))
    assert (run.state, run.reason) == ("held", "ended by the program that asked for it")
    assert not (project / "file").exists()


@in_the_hood
@pytest.mark.parametrize(("line", "asked"), [("echo begun", "apply"), ("touch file; echo begun", "hold")])
def test_a_command_that_is_called_off_says_so_whatever_it_wrote(
    home: Path, project: Path, line: str, asked: str
) -> None:
    begun: list[str] = []
    with Sandbox(project) as sandbox:
        run = sandbox.run(
            f"{line}; sleep {LONG_S}", apply=asked, on_output=lambda _, text: begun.append(text),
            cancelled=lambda: bool(begun),
        )  # fmt: skip
    assert (run.state, run.reason) == (
        "empty" if asked == "apply" else "held", "ended by the program that asked for it"
    )  # fmt: skip


@in_the_hood
@pytest.mark.parametrize("asked", ["apply", "hold", "discard"])
def test_the_time_limit_holds_what_was_to_be_applied(home: Path, project: Path, asked: str) -> None:
    with Sandbox(project) as sandbox:
        run = with_enough_time(
            lambda limit: sandbox.run(WRITES, timeout=limit, apply=asked), lambda run: run.stdout
        )
        assert run.state == ("discarded" if asked == "discard" else "held")
        assert ("[held: ended by the time limit]" in run.for_model()) == (asked == "apply")


def test_one_rule_says_what_ended_a_command() -> None:
    by_itself, by_sigterm = Exit(status=0), Exit(status=None, killed_by=signal.SIGTERM)
    somebody, program = Caller(), Caller(cancelled=lambda: True)
    too_much = limit_reached(MEMORY, 1 << 30)
    reasons = [
        (Outcome(exit=by_itself), program, ""),
        (Outcome(exit=by_itself, timed_out=True), somebody, "ended by the time limit"),
        (Outcome(exit=by_itself, interrupted=True, timed_out=True), program, "ended by the program that asked for it"),
        (Outcome(exit=by_sigterm, interrupted=True), program, "ended by a signal: SIGTERM"),
        (Outcome(exit=by_sigterm, raised=True), somebody, "ended by a signal: SIGINT"),
        (Outcome(exit=by_sigterm, limit=too_much), somebody, "ended by a limit: memory: 1 GiB"),
        (Outcome(exit=by_sigterm, limit=stopped_by_request()), somebody, "ended by fumehood stop"),
    ]
    for outcome, caller, reason in reasons:
        assert why_ended_early(outcome, caller) == reason
