"""What a command finds in its environment, seen from inside."""

import os
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("language", "seen"),
    [({"LANG": "C"}, ["LANG=C"]), ({}, []), ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, ["LANG=C", "LC_CTYPE=C.UTF-8"])],
)
def test_a_command_has_the_locale_of_the_person_and_not_what_python_makes_of_it(
    project: Path, home: Path, language: dict[str, str], seen: list[str]
) -> None:
    ours = {name: value for name, value in os.environ.items() if name != "LANG" and not name.startswith("LC_")}
    program = f"import fumehood\nprint(fumehood.Sandbox({str(project)!r}).run('env').stdout)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=ours | language | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sorted(line for line in done.stdout.splitlines() if line.startswith(("LANG", "LC_"))) == seen
