"""Ways out that were found by looking for them, each closed: one command plants something, and somebody acts on it."""

import os
import shlex
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import command_line, remove_tree
from fumehood import Policy, Sandbox
from fumehood.errors import BadRequest

pytestmark = pytest.mark.namespaces


@pytest.fixture(autouse=True)
def _known(known_host):
    """What this host can do is found out once."""


def shell(script: str, given: object, cwd: Path) -> str:
    """Run the host's own shell on a script that it reads, like its commands, from standard input."""
    how = {"input": script} if given is None else {"stdin": given}
    line = " ".join(map(shlex.quote, command_line()))
    told = os.environ | {"HOOD": f"{line} run --quiet --"}
    done = subprocess.run(
        ["bash"], cwd=cwd, env=told, text=True, capture_output=True, check=False, timeout=60, **how
    )  # type: ignore[call-overload]
    return str(done.stdout)


SCRIPT = """$HOOD 'read line; echo "got $line"; timeout 0.2 sh -c "echo touch marker > /proc/self/fd/0"'
for the command
echo between
$HOOD true
$HOOD 'head -c 6'
first
echo end
"""
TOLD = "got for the command\nbetween\nfirst\nend\n"


@pytest.mark.parametrize("kind", ["pipe", "file", "socket"])
def test_the_script_of_a_shell_outside_is_not_written_by_a_command_that_shares_its_input(kind, project, home, need):
    need(shutil.which("bash") is not None, "there is no bash, which reads a script no further than it runs it")
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryFile("w+", dir=home) as file:
        given = {"pipe": None, "file": file, "socket": theirs}[kind]
        file.write(SCRIPT)
        file.seek(0)
        ours.sendall(SCRIPT.encode())
        ours.shutdown(socket.SHUT_WR)
        # Nor does it lose a byte that the command did not read.
        assert shell(SCRIPT, given, project) == TOLD
        file.seek(0)
        assert file.read() == SCRIPT
    assert not (project / "marker").exists()


def test_a_kept_tmp_does_not_lead_the_next_mount_point_outside(home, test_directory):
    outside = test_directory / "outside"
    outside.mkdir()
    top = Path(tempfile.mkdtemp(prefix="fumehood-tests-", dir="/tmp"))
    project = top / "a/b/project"
    project.mkdir(parents=True)
    try:
        with Sandbox(project, policy=Policy(tmp="project")) as sandbox:
            for _ in range(2):
                # It has to be written for /oldroot, where bubblewrap has the host while it makes mount points.
                with pytest.raises(BadRequest, match="lies in it"):
                    sandbox.run(f"mv {top}/a {top}/x; ln -s /oldroot{outside} {top}/a")
    finally:
        remove_tree(top)
    assert list(outside.iterdir()) == []


def test_a_time_that_no_clock_has_does_not_stop_our_records(sandbox, cli, project):
    sandbox.run("touch -d @-99999999999 past; touch -d @15000000000 future; touch -d @9223372036854775807 never; true")
    assert cli("files", "--all").returncode == 0
    assert cli("scan").returncode == 0
    assert cli("undo").returncode == 0
    assert list(project.iterdir()) == []
