"""Which variables a command gets: what tells a secret by its name, by its value, and what a person says about it."""

import pytest

from fumehood.core.environment import inherited, looks_secret

SECRET_NAMES = [
    *("OPENAI_API_KEY", "GITHUB_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "DB_PASSWORD", "PGPASSWORD", "MY_SECRET"),
    *("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "KUBECONFIG", "NPM_AUTH", "SENTRY_DSN", "secret_x"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "VAULT_ADDR", "XDG_RUNTIME_DIR", "GPG_AGENT_INFO", "TMUX", "githubtoken"),
]
PLAIN = {
    "PATH": "/usr/bin", "HOME": "/home/ada", "LANG": "C.UTF-8", "EDITOR": "vi", "TERM": "xterm", "USER": "ada",
    "NODE_ENV": "test", "CI": "1", "PYTHONPATH": "src", "CARGO_HOME": "/c", "MONKEY": "x", "KEYBOARD": "us",
    "XDG_SESSION_TYPE": "tty", "URL": "https://example.org/a:b@c", "WORDS": "sk-ies are blue and so is the sea today",
    "JAVA_HOME": "/opt/java", "COLUMNS": "80", "GOPATH": "/go", "PASSENGER": "x", "DISPLAY": ":0",
}  # fmt: skip
SECRET_VALUES = [
    "sk-abcdefghijklmnopqrstuvwxyz", "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "AKIAABCDEFGHIJKLMNOP",
    "xoxb-1234567890-abcdefghij", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "glpat-abcdefghijklmnopqrst",
    "postgres://ada:hunter2@db.example.org/x", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc", "hf_abcdefghijklmnopqrstu",
    "Bearer abcdefghijklmnop", "https://ada:s3cret@proxy.example.org:3128", "AIzaSyA1234567890abcdefghijklmnopqrstuv",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_tells_a_secret(name):
    kept, dropped = inherited({name: "x", "PATH": "/bin"})
    assert dropped == (name,)
    assert "x" not in kept.values()


@pytest.mark.parametrize("value", SECRET_VALUES)
def test_a_value_tells_a_secret_whatever_it_is_called(value):
    assert looks_secret("INNOCENT", value)
    kept, dropped = inherited({"INNOCENT": value})
    assert dropped == ("INNOCENT",)
    assert value not in kept.values()


def test_ordinary_variables_pass():
    kept, dropped = inherited(PLAIN)
    assert dropped == ()
    assert kept == {**PLAIN, "FUMEHOOD": "1"}


def test_a_persons_word_counts_first():
    given = {"GITHUB_TOKEN": "x", "EDITOR": "vi", "LC_ALL": "C", "LANG": "C", "AX_KEY_BYC": "y", "A_KEY": "z"}
    kept, dropped = inherited(given, ("GITHUB_*", "A*_B*C"), ("EDITOR", "LC_*"))
    assert kept == {"GITHUB_TOKEN": "x", "LANG": "C", "AX_KEY_BYC": "y", "FUMEHOOD": "1"}
    assert dropped == ("A_KEY", "EDITOR", "LC_ALL")


def test_what_is_dropped_and_kept_is_dropped():
    assert inherited({"SECRET": "x"}, ("*",), ("SECRET",))[1] == ("SECRET",)


def test_no_value_is_among_the_names_that_are_told():
    _, dropped = inherited({"API_KEY": "the-value"})
    assert "the-value" not in repr(dropped)
