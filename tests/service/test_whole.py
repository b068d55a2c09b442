"""A run that is applied whole or not at all: for jobs that are run again, where nobody reviews."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fumehood import BadRequest, Sandbox
from patience import eventually

pytestmark = pytest.mark.namespaces


def test_what_a_command_wrote_that_was_cut_short_is_thrown_away(project: Path) -> None:
    with Sandbox(project) as sandbox:
        assert sandbox.run("echo a > a", apply="whole").state == "applied"
        ended = sandbox.run("echo b > b; sleep 1000", apply="whole", timeout=1)
        assert (ended.state, ended.reason) == ("discarded", "ended by the time limit")
        assert sandbox.run("ls").output == "a\n"
        with pytest.raises(BadRequest) as refused:
            sandbox.run("true", apply="half")
        assert "whole" in refused.value.hint


def test_a_job_whose_worker_was_killed_leaves_nothing_for_the_next(project: Path) -> None:
    line = f"from fumehood import Sandbox; Sandbox({str(project)!r}).run('echo x >> log; sleep 1000', apply='whole')"
    worker = subprocess.Popen([sys.executable, "-c", line])
    with Sandbox(project) as sandbox:
        assert eventually(sandbox.running)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        assert eventually(lambda: not sandbox.running())
        again = sandbox.run("echo x >> log", apply="whole")
        assert (again.state, (project / "log").read_text()) == ("applied", "x\n")
        assert sandbox.history()[1].state in ("discarded", "empty", "failed")
