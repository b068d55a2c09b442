"""What is a person's own and lies outside of their home: mail, what they left in /var/tmp, what variables put there."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import need
from fumehood import Policy, Sandbox
from fumehood.core.masks import SECRETS_OUTSIDE_HOME, make_masks
from fumehood.service.provided import secret_paths_in_variables

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
    masks = make_masks(["/home/ada"], (), (), (), as_root=False)
    assert {path for path, _ in SECRETS_OUTSIDE_HOME} <= set(masks.hidden)
    there = [path for path, _ in SECRETS_OUTSIDE_HOME if os.path.isdir(path)]
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


@pytest.fixture
def moved(test_directory: Path) -> Path:
    """A directory outside of the home, for all to read."""
    place = test_directory / "moved"
    place.mkdir()
    return place


def contents(moved: Path, project: Path, *unmasked: str) -> list[str]:
    """What a command reads of all files there."""
    with Sandbox(project, policy=Policy(unmask=unmasked)) as sandbox:
        return sandbox.run(f"cd {moved} && find . -type f -exec cat {{}} +").stdout.split()


@pytest.mark.parametrize(
    ("variable", "place", "secret"),
    [
        ("GOOGLE_APPLICATION_CREDENTIALS", "key.json", "key.json"),
        ("KUBECONFIG", "one:{moved}/two", "two"),
        ("GH_CONFIG_DIR", "gh", "gh/hosts.yml"),
        ("CARGO_HOME", "cargo", "cargo/credentials.toml"),
        ("XDG_CONFIG_HOME", "config", "config/gh/hosts.yml"),
        ("COPILOT_HOME", "copilot/", "copilot/config.json"),
        ("POSTGRES_PASSWORD_FILE", "pg", "pg"),
    ],
)
def test_what_a_variable_puts_outside_of_the_home_is_as_hidden_as_in_it(
    moved: Path, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, place: str, secret: str
) -> None:
    (moved / secret).parent.mkdir(parents=True, exist_ok=True)
    (moved / secret).write_text("secret\n")
    (moved / "beside").write_text("plain\n")
    assert sorted(contents(moved, project)) == ["plain", "secret"]
    monkeypatch.setenv(variable, f"{moved}/{place}".replace("{moved}", str(moved)))
    assert contents(moved, project) == ["plain"]
    with Sandbox(project) as sandbox:
        (blocked,) = sandbox.run(f"cat {moved / secret}").blocked
    assert (blocked.what, blocked.detail) == ("mask", str(moved / secret))
    assert "a variable says that credentials are there" in blocked.hint
    hidden = secret_paths_in_variables()
    assert sorted(contents(moved, project, *hidden)) == ["plain", "secret"], "a person shows it again"


@pytest.mark.parametrize(
    ("variable", "name", "private", "plain"),
    [
        ("PIP_CONFIG_FILE", "pip.conf", "[global]\nindex-url=https://me:pw@pypi.example/\n", "[global]\ntimeout=7\n"),
        ("NPM_CONFIG_USERCONFIG", "npmrc", "//npm.example/:_authToken=abcdef\n", "fund=false\n"),
        ("npm_config_globalconfig", "npmrc", "//npm.example/:_authToken=abcdef\n", "fund=false\n"),
        ("GIT_CONFIG_GLOBAL", "git", "[http]\nextraheader=Authorization:abcdef\n", "[init]\ndefaultBranch=main\n"),
        ("RCLONE_CONFIG", "rclone.conf", "[nas]\ntype = sftp\npass = jKVqTx0a\n", "[nas]\ntype = local\n"),
        ("ANY_SETTINGS", "app.yml", "db:\n  password: hunter2\n", "db:\n  host: localhost\n"),
    ],
)
def test_settings_that_a_variable_puts_there_are_hidden_where_a_secret_is_in_them(
    moved: Path, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, name: str, private: str,
    plain: str,
) -> None:  # fmt: skip
    monkeypatch.setenv(variable, str(moved / name))
    (moved / name).write_text(private)
    assert contents(moved, project) == []
    (moved / name).write_text(plain)
    assert contents(moved, project) == plain.split()


def test_a_project_shows_what_lies_in_it_whatever_names_it(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "kubeconfig").write_text("of the project\n")
    monkeypatch.setenv("KUBECONFIG", str(project / "kubeconfig"))
    monkeypatch.setenv("DOCKER_CONFIG", "/etc")
    monkeypatch.setenv("GIT_ASKPASS", "/bin/cat")
    monkeypatch.setenv("SECRETS_DIR", "/usr/share")
    with Sandbox(project) as sandbox:
        run = sandbox.run("/bin/cat kubeconfig; test -e /etc/passwd && test -n \"$(ls /usr/share)\" && echo all there")
    assert run.stdout.splitlines() == ["of the project", "all there"]
