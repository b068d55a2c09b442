"""What a command finds in its environment, seen from inside."""

from pathlib import Path

import pytest

from fumehood import Sandbox

pytestmark = pytest.mark.namespaces


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_command_can_go_back_to_where_the_person_was(
    shell: str, sandbox: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "before").mkdir()
    monkeypatch.setenv("OLDPWD", str(project / "before"))
    run = sandbox.run([shell, "-c", "cd - && pwd && cd - > /dev/null && pwd"])
    assert run.stdout.split() == [str(project / "before")] * 2 + [str(project)], run.stderr


def test_secrets_stay_outside_and_certificates_are_found(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        "MYSQL_PWD": "hunter2", "JDBC_URL": "jdbc:mysql://db/shop?user=ada&password=hunter2",
        "GOPROXY": "https://proxy.golang.org,https://ada:hunter2@go.example.org,direct",
    }  # fmt: skip
    plain = {"AWS_CA_BUNDLE": "/etc/ssl/certs/ca.pem", "PIP_INDEX_URL": "https://pypi.org/simple"}
    for name, value in (secrets | plain).items():
        monkeypatch.setenv(name, value)
    run = sandbox.run("env")
    assert "hunter2" not in run.stdout
    assert {f"{name}={value}" for name, value in plain.items()} <= set(run.stdout.splitlines())
    assert set(secrets) <= set(run.dropped)
