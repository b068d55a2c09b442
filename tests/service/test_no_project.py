"""Commands without a project: in a directory that is thrown away, or in the playground."""

import gc
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import fumehood
from fumehood import BadRequest, Sandbox
from fumehood.store.places import places
from patience import LONG_S, eventually
from processes import LONG, left_over

SOURCE = Path(fumehood.__file__).parent.parent
pytestmark = pytest.mark.namespaces


@pytest.fixture
def thrown(home):
    """What is there of directories that are to be thrown away."""
    place = Path(places().cache, "thrown")
    return lambda: os.listdir(place) if place.exists() else []


def test_commands_without_a_project_share_an_empty_directory_until_the_sandbox_is_closed(home, thrown):
    (home.parent / "elsewhere").mkdir()
    with Sandbox() as sandbox, Sandbox(ask=lambda _question: True) as other:
        run = sandbox.run("ls -A; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; echo y > f; pwd")
        assert (run.stdout, run.state, run.changes) == (f"{run.cwd}\n", "empty", ())
        assert "thrown away" in run.reason
        assert sandbox.run("cat f").stdout == "y\n"
        assert other.run("ls -A").stdout == ""
        assert sandbox.run("echo z > f", write=False).exit_code != 0
        sandbox.write_file("sub/g", "z")
        assert sandbox.read_file("sub/g") == b"z"
        assert [each.run for each in sandbox.history()][-1] == run.run
        with pytest.raises(BadRequest, match="nothing is left to undo"):
            sandbox.undo()
        with pytest.raises(BadRequest, match="had no project: there is nothing to take back"):
            sandbox.undo(run)
        with pytest.raises(BadRequest, match="no project that could have another root"):
            other.add_root(home.parent / "elsewhere")
        assert os.listdir(sandbox.project) == []
        with sandbox.start("cat f; cat") as started:
            assert started.stdout.readline() == "y\n"
        assert len(thrown()) == 2
    assert thrown() == []


def test_without_a_project_a_command_can_begin_in_the_playground(home, thrown):
    with Sandbox(cwd="playground") as sandbox:
        run = sandbox.run("echo kept > f; pwd")
        assert run.stdout == f"{home}/playground\n"
        assert run.reason.endswith("can't be undone, and only the playground is not thrown away")
        with pytest.raises(BadRequest, match="had no project: there is nothing to take back"):
            sandbox.undo(run)
        session = sandbox.session()
        assert session.run("cat f; mkdir -p d; cd d").stdout == "kept\n"
        assert session.run("pwd").stdout == f"{home}/playground/d\n"
    with Sandbox(cwd="playground") as sandbox:
        assert sandbox.run("cat f").stdout == "kept\n"
        assert sandbox.run("echo x > f", write=False).exit_code != 0
        assert sandbox.run("cat f").stdout == "kept\n"


def test_the_command_line_needs_no_project_either(cli, home, project, thrown):
    (project / "f").write_text("the project's\n")
    done = cli("run", "--no-project", "--", "ls -A; echo x > f; cat f", cwd=project)
    assert (done.returncode, done.stdout) == (0, "x\n")
    assert (project / "f").read_text() == "the project's\n"
    assert thrown() == []
    assert cli("run", "--no-project", "--cwd", "playground", "--", "pwd", cwd=project).stdout == f"{home}/playground\n"
    assert "can't be used together" in cli("run", "--no-project", "--project", ".", "--", "true", cwd=project).stderr
    explained = cli("run", "--no-project", "--explain", "--json", "--", "true", cwd=project).stdout
    explained = json.loads(explained)
    (shown,) = (each for each in explained["mounts"] if each["path"] == explained["cwd"])
    assert (shown["why"], shown["writable"], thrown()) == ("thrown away at the end", True, [])
    assert "nothing has run here yet" in cli("log", cwd=project).stdout


@pytest.mark.long
def test_what_a_killed_or_forgetful_program_left_is_thrown_away(home, thrown):
    code = f"""
        import os, sys
        sys.path.insert(0, {str(SOURCE)!r})
        from fumehood import Sandbox
        sandbox = Sandbox()
        child = os.fork()
        if child == 0:
            sys.exit()  # not what is the parent's
        os.waitpid(child, 0)
        sandbox.run("echo x > f; mkdir d; chmod 0 d")
        print(sandbox.run("cat f").stdout, end="", flush=True)
        if len(sys.argv) > 1:
            sandbox.run("echo ready; sleep {LONG}.41", on_output=lambda *_: os.kill(os.getpid(), 9))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=True)
    assert (done.stdout, thrown()) == ("x\n", [])
    subprocess.run([*command, "killed"], capture_output=True, timeout=LONG_S, check=False)
    assert len(thrown()) == 1
    assert not left_over(f"{LONG}.41")
    with Sandbox() as sandbox:
        assert len(thrown()) == 1
        assert sandbox.run("ls").stdout == ""
    assert thrown() == []
    sandbox = Sandbox()
    sandbox.run("echo x > f")
    del sandbox
    assert eventually(lambda: gc.collect() >= 0 and thrown() == [])
