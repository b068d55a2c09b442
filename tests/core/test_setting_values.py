"""What is taken for a secret in a setting, and what is not."""

import pytest

from fumehood.core.credentials import command_may_hold_secret, home_paths_in, may_hold_secret, without_credentials

SECRET = [
    "https://ada:pw@example.org/", "https://token@example.org/", "see https://a,https://ada:pw@b", "ssh://ada:pw@h/x",
    "https://ada:p/w@example.org", "https://ada:p,w@example.org", "git+https://ada:pw@h", "HTTPS://ADA:PW@H",
    "https://h/x?token=abc", "https://h/x?private_token=1", "https://h/kNrHqzPpkEjYmE6S/simple",
    "https://h/8f14e45f-ceea-467f-a9f3-0e1d2c3b4a5f/x", "Authorization: x", "bearer abcdef", "-----BEGIN X",
    "x ghp_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa y", "a=AKIAIOSFODNN7EXAMPLE",
    "https://hooks.example.org/services/T0/B0/aBcDeFgHiJkLmNoPqRsTuVwX", "https://h/https://a:b@c",
]  # fmt: skip
PLAIN = [
    "", "https://example.org/simple", "https://example.org:8443/auth/token-service", "git@github.com:a/b",
    "ssh://git@example.org/x", "file:///srv/x", "https://registry.npmjs.org/@scope/x", "a word", "https://[::1]:80/x",
    "https://h/MyCompanyRepo2024Releases", "https://$HOST:$PORT/x", "https://h/artifactory/api/pypi/pypi-remote/simple",
    "Pat Key", "Ada Basic", "https://h/MyCompanyArtifactoryRepo", "https://h/a-rather-long-name-of-a-repository",
    "1234567+pat@users.noreply.github.com", "+refs/heads/*:refs/remotes/a/*",
]  # fmt: skip


@pytest.mark.parametrize("text", SECRET)
def test_a_secret_is_taken_for_one(text: str) -> None:
    assert may_hold_secret(text)
    assert command_may_hold_secret(text)


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_plain_is_not_taken_for_a_secret(text: str) -> None:
    assert not may_hold_secret(text)


@pytest.mark.parametrize("text", ["x --token x", "API_KEY=x tool", "curl -H 'Private-Token: x'", "a kNrHqzPpkEjYmE6S"])
def test_a_line_announces_what_follows(text: str) -> None:
    assert command_may_hold_secret(text)
    assert not may_hold_secret(text)


@pytest.mark.parametrize("text", ["log --oneline HEAD~3", "!f() { git log \"$@\"; }; f", "-C target-cpu=native"])
def test_ordinary_lines_announce_nothing(text: str) -> None:
    assert not command_may_hold_secret(text)


@pytest.mark.parametrize(
    ("address", "bare"),
    [
        ("https://ada:pw@example.org/x", "https://example.org/x"),
        ("https://token@example.org", "https://example.org"),
        ("https://ada:p@w@example.org/x", "https://example.org/x"),
        ("sparse+https://ada:pw@example.org:80/x", "sparse+https://example.org:80/x"),
        ("ssh://git@example.org/x", "ssh://git@example.org/x"),
        ("ssh://ada:pw@example.org/x", "ssh://example.org/x"),
        ("https://example.org/@scope/x", "https://example.org/@scope/x"),
        ("direct", "direct"),
        ("/opt/wheels", "/opt/wheels"),
        ("https://ada:p/w@example.org/x", None),
        ("https://ada:pw@example.org/x?token=y", None),
        ("ghp_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", None),
    ],
)
def test_credentials_are_cut_off_or_the_address_is_none(address: str, bare: str | None) -> None:
    assert without_credentials(address) == bare


def test_paths_of_the_home_are_found_in_any_form() -> None:
    text = "!~/a && $HOME/b ${HOME}/c --x=/home/ada/d '/home/ada' /home/adam/e HEAD~/f ~bob/g /mnt/ada/h ~"
    found = list(home_paths_in(text, ["/home/ada", "/mnt/ada"]))
    assert found == [*(f"/home/ada/{name}" for name in "abcd"), "/home/ada", "~bob/g", "/mnt/ada/h", "/home/ada"]
