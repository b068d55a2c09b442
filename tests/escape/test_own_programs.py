"""Programs that Fumehood itself starts outside are none that a command put on PATH."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from at_terminal import Terminal
from fumehood.errors import FumehoodError
from fumehood.linux.signing import BUNDLE, sign
from fumehood.service.opened import OpenedStore

pytestmark = pytest.mark.namespaces

NAME = "a-program-that-no-system-has"


@pytest.fixture
def planted(cli, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a command leave a program in a directory of the project that is on PATH; returns what shows that it ran."""
    ran = home / "ran"
    monkeypatch.setenv("PATH", f"{project}/bin:{os.environ['PATH']}")
    done = cli("run", "--", f"mkdir bin; printf '#!/bin/sh\ntouch {ran}\n' > bin/{NAME}; chmod +x bin/{NAME}; touch a")
    assert done.returncode == 0, done.stderr
    assert os.access(project / "bin" / NAME, os.X_OK), "nothing on PATH has this name, so it is none that is held"
    return ran


def test_no_pager_is_one_that_a_command_left(project: Path, planted: Path) -> None:
    command = [sys.executable, "-P", "-m", "fumehood", "diff"]
    with Terminal(command, project, env={"PAGER": f"{NAME}; echo shown by; cat"}) as terminal:
        assert terminal.end() == 0
        assert "shown by" in terminal.seen
        assert "diff --git" in terminal.seen
    assert not planted.exists()


def test_no_difftool_is_one_that_a_command_left(cli, project: Path, home: Path, planted: Path) -> None:
    for key, value in (("difftool.x.cmd", f"{NAME}; true"), ("diff.tool", "x")):
        subprocess.run(["git", "config", "--global", key, value], check=True, env=os.environ | {"HOME": str(home)})
    assert cli("diff", "--difftool").returncode == 0
    assert not planted.exists()


def test_path_is_less_what_commands_write_whatever_leads_there(
    cli, project: Path, home: Path, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "link").symlink_to(project / "bin")
    (home / "tools").mkdir()
    monkeypatch.setenv("PATH", f"{project}/bin:{home}/link::bin:{home}/playground:{home}/tools:/usr/bin:/bin")
    store = OpenedStore()
    try:
        assert store.safe_path() == f"{home}/playground:{home}/tools:/usr/bin:/bin"
        monkeypatch.setenv("PATH", f"{project}/bin")
        assert store.safe_path() == os.defpath
    finally:
        store.close()


def test_a_signature_is_made_by_no_program_that_a_command_may_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, ran = tmp_path / "ssh-keygen", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(FumehoodError):
        sign(str(tmp_path / "no-key"), BUNDLE, b"")
    assert not ran.exists()
