"""What may come in between while a sandbox is being started."""

import asyncio
import shutil

import pytest
from tests.processes import left_over

from fumehood import LaunchFailed, Sandbox
from fumehood.linux.launcher import shared

pytestmark = pytest.mark.namespaces


def removing(times):
    """Start sandboxes, the first ones after what they would show was taken away, as a cleaner of `/dev/shm` may."""
    seen = []

    def start(plan, given):
        seen.append(plan.backdrop.directory)
        if len(seen) <= times:
            shutil.rmtree(plan.backdrop.directory)
        return shared().start(plan, given)

    return start, seen


def test_what_is_shown_is_made_again_where_it_was_taken_away_meanwhile(sandbox, project):
    sandbox._hood.start, seen = removing(2)
    run = sandbox.run("cat; ls /usr; echo error >&2; echo x > f", stdin="fed\n")
    assert len(seen) == 3
    assert run.stdout.startswith("fed\nbin\n")
    assert (run.state, run.stderr, (project / "f").read_text()) == ("applied", "error\n", "x\n")
    assert sandbox.run("ls /usr").exit_code == 0
    assert len(seen) == 4


def test_what_is_taken_away_each_time_is_told(sandbox):
    sandbox._hood.start, seen = removing(100)
    with pytest.raises(LaunchFailed, match="mounting the backdrop: No such file"):
        sandbox.run("true")
    assert len(seen) == 5


def test_many_that_need_the_same_survey_at_once(home, project):
    async def main():
        boxes = [Sandbox(project) for _ in range(8)]
        runs = await asyncio.gather(*(box.arun("ls /usr/bin/env") for box in boxes for _ in range(2)))
        for box in boxes:
            box.close()
        return runs

    assert {run.stdout for run in asyncio.run(main())} == {"/usr/bin/env\n"}


def test_one_that_is_ended_at_any_moment_of_its_start_is_gone(sandbox):
    sandbox.run("true")
    for quarters in range(60):
        run = sandbox.run("sleep 7654321.29", timeout=quarters / 4000)
        assert run.timed_out
    assert not left_over("7654321.29")
