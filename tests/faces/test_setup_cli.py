"""The wizard: each step for a person at a terminal, and all of it with --yes."""

import json
import os
import pty
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import command_line
from fumehood.errors import BadConfiguration
from fumehood.store.config import set_key
from fumehood.store.places import places
from mirror import Mirror, serving
from trees import VERSION

pytestmark = [pytest.mark.namespaces, pytest.mark.once]
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving() as mirror:
        mirror.offer(VERSION)
        yield mirror


def test_with_yes_it_takes_every_default(cli: Cli, home: Path) -> None:
    done = cli("setup", "--yes", cwd=home)
    assert done.returncode == 0, done.stderr
    for told in ("commands can be sandboxed: bubblewrap", "host is the default", "it works in Linux as uid"):
        assert told in done.stdout
    assert (home / ".local/share/fumehood/playground").is_dir()
    assert not (home / ".config/fumehood/config.toml").exists()


@pytest.mark.long
def test_it_installs_a_root_and_makes_it_the_default(
    cli: Cli, home: Path, mirror: Mirror, test_directory: Path
) -> None:
    key = test_directory / "me@example.org-1.rsa.pub"
    key.write_text("a key")
    options = ("--yes", "--root", "alpine", "--tier", "2", "--mirror", mirror.url, "--agent", "mcp", "--json")
    done = cli("setup", *options, "--key", key)
    assert done.returncode == 0, done.stdout
    assert tomllib.loads((home / ".config/fumehood/config.toml").read_text()) == {
        "root": "alpine", "rootfs": {"mirror": mirror.url, "keys": [str(key)]},
    }  # fmt: skip
    told = json.loads(done.stdout)
    assert (told["root"], told["rootfs"]) == ("alpine", f"alpine-{VERSION}-tier2")
    assert cli("run", "--", "cat /etc/alpine-release").stdout == f"{VERSION}\n"
    assert '"mcpServers"' in cli("setup", "--yes", "--agent", "mcp").stdout
    assert "PreToolUse" in cli("setup", "--yes", "--agent", "claude").stdout
    assert not (home / ".claude").exists()


def test_a_root_that_can_not_be_installed_is_said(cli: Cli, home: Path, mirror: Mirror) -> None:
    mirror.files.clear()
    done = cli("setup", "--yes", "--root", "alpine", "--mirror", mirror.url)
    assert done.returncode == 125
    assert "404" in done.stderr
    assert not (home / ".config/fumehood/config.toml").exists()


def test_without_a_terminal_it_asks_nobody(cli: Cli) -> None:
    done = cli("setup")
    assert done.returncode == 125
    assert "--yes" in done.stderr


def test_it_asks_a_person_at_a_terminal(home: Path, project: Path, mirror: Mirror) -> None:
    person, terminal = pty.openpty()
    command = [*command_line(), "setup", "--mirror", mirror.url]
    with subprocess.Popen(command, cwd=project, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        said = b""
        answers = [
            ("default root?", "alpin"), ("one of: host, alpine", "alpine"), ("tools?", ""), ("which one?", "claude"),
            ("write this?", "n"),
        ]  # fmt: skip
        for question, answer in answers:
            while question.encode() not in said:
                said += os.read(person, 4096)
            os.write(person, f"{answer}\n".encode())
        while True:
            try:
                said += os.read(person, 4096)
            except OSError:  # the other end is gone
                break
    os.close(person)
    assert process.returncode == 0, said
    assert b"fumehood setup claude" in said
    assert f"alpine-{VERSION} is installed".encode() in said
    configured = tomllib.loads((home / ".config/fumehood/config.toml").read_text())
    assert configured == {"root": "alpine", "rootfs": {"mirror": mirror.url}}
    assert not (home / ".claude/settings.json").exists()


def test_setting_a_key_leaves_every_other_line_as_it_is(home: Path) -> None:
    path = home / ".config/fumehood/config.toml"
    path.parent.mkdir(exist_ok=True)
    text = '# mine\nroot = "host" # for now\ntimeout = 5\n\n[limits]\nfiles = 3 # few\n'
    path.write_text(text)
    path.chmod(0o640)
    set_key(places(), "root", "alpine")
    assert path.read_text() == text.replace('root = "host"', 'root = "alpine"')
    assert [each.read_text() for each in path.parent.glob("config.toml.before-fumehood-*")] == [text]
    assert path.stat().st_mode & 0o777 == 0o640
    path.write_text("[limits]\nfiles = 3\n")
    set_key(places(), "root", "host")
    assert tomllib.loads(path.read_text()) == {"root": "host", "limits": {"files": 3}}
    set_key(places(), "rootfs.keys", ["/a", "/b"])
    set_key(places(), "rootfs.mirror", "https://a")
    assert tomllib.loads(path.read_text())["rootfs"] == {"keys": ["/a", "/b"], "mirror": "https://a"}
    for broken in ("timeout = -1\n", "[x\n", 'root = """a\n'):
        path.write_text(broken)
        with pytest.raises(BadConfiguration, match="was not set"):
            set_key(places(), "root", "alpine")
        assert path.read_text() == broken


@pytest.mark.parametrize(
    "text",
    [
        'mask = [\n  "a",\n  "b", # two\n]\nroot = """\nhost"""\ntimeout = 5\n',
        '# one\u2028line\nroot = "host"\ntimeout = 5\n',
        'timeout = 5\r\nroot = "host"\r\n[limits]\r\nfiles = 3\r\n',
        'timeout = 5\n"root" = \'host\'\n[[profile]]\nmatch = ["x"]\n',
        "timeout = 5\n[limits]\nfiles = 3\n\n[[profile]]\nmatch = ['x']",
        '\ufefftimeout = 5\nroot = "host"\n',
    ],
)
def test_all_else_in_the_configuration_stays_as_it_was_written(home: Path, text: str) -> None:
    path = home / ".config/fumehood/config.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    set_key(places(), "root", "alpine")
    after = path.read_bytes().decode()
    assert tomllib.loads(after.lstrip("\ufeff")) == {**tomllib.loads(text.lstrip("\ufeff")), "root": "alpine"}
    others = [line for line in text.split("\n") if "root" not in line and "host" not in line]
    assert [line for line in others if line not in after] == []


def test_a_link_to_the_configuration_stays_one(home: Path, test_directory: Path) -> None:
    (test_directory / "dotfiles").mkdir()
    real = test_directory / "dotfiles/fumehood.toml"
    real.write_text("timeout = 5\n")
    path = home / ".config/fumehood/config.toml"
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(real)
    set_key(places(), "root", "alpine")
    assert path.is_symlink()
    assert tomllib.loads(real.read_text()) == {"root": "alpine", "timeout": 5}
