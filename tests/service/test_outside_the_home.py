"""What is a person's own and lies outside of their home: mail, and what they left in /var/tmp."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import need
from fumehood import Policy, Sandbox
from fumehood.core.masks import OUTSIDE, masks

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

VAR_TMP = Path("/var/tmp")


@pytest.fixture
def private() -> Iterator[Path]:
    """A file that a person left, closed to others."""
    need(VAR_TMP.is_dir() and not VAR_TMP.is_symlink(), "there is no /var/tmp")
    path = VAR_TMP / f"fumehood-tests-private-{os.getpid()}"
    path.write_text("mine\n")
    path.chmod(0o600)
    yield path
    path.unlink()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that does not lie in /var/tmp itself, nor does the home."""
    need(not str(tmp_path.resolve()).startswith(f"{VAR_TMP}/"), "tests lie in /var/tmp")
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    (tmp_path / "person").mkdir()
    project = tmp_path / "project"
    project.mkdir()
    return project


def test_what_a_person_left_in_var_tmp_is_not_there(sandbox: Sandbox, private: Path) -> None:
    run = sandbox.run(f"cat {private}; ls {VAR_TMP}; echo x > here")
    assert "mine" not in run.output
    assert private.name not in run.stdout
    assert [change.path for change in run.changes] == ["here"]  # the project lies in it, and is as it was


def test_a_command_has_a_var_tmp_of_its_own(elsewhere: Path, private: Path) -> None:
    run = Sandbox(elsewhere).run(f"ls -A {VAR_TMP}; stat -c %a {VAR_TMP}; echo x > {VAR_TMP}/new && cat {VAR_TMP}/new")
    assert run.stdout.split() == ["1777", "x"]
    assert not (VAR_TMP / "new").exists()


def test_a_person_shows_it_again(elsewhere: Path, private: Path) -> None:
    for path in (str(VAR_TMP), str(private)):
        run = Sandbox(elsewhere, policy=Policy(unmask=(path,))).run(f"cat {private}")
        assert run.stdout == "mine\n", run.output


def test_mail_is_hidden_from_everybody(sandbox: Sandbox) -> None:
    assert {path for path, _ in OUTSIDE} <= set(masks(["/home/ada"], (), (), (), root=False).hidden)
    there = [path for path, _ in OUTSIDE if os.path.isdir(path)]
    need(bool(there), "no mail is kept here")
    assert sandbox.run(f"ls -d {' '.join(there)}").stdout == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave a letter")
def test_a_letter_is_not_there_for_its_reader(sandbox: Sandbox) -> None:
    need(os.path.isdir("/var/mail"), "there is no /var/mail")
    letter = Path(f"/var/mail/fumehood-{os.getpid()}")
    letter.write_text("dear ada\n")
    try:
        assert subprocess.run(["cat", letter], capture_output=True, text=True, check=True).stdout == "dear ada\n"
        assert "dear" not in sandbox.run(f"cat {letter} /var/spool/mail/{letter.name}").output
    finally:
        letter.unlink()
