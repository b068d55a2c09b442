"""A home as people have them, with hundreds of secrets: no command sees one, and every tool works."""

import shutil
from pathlib import Path

import pytest

import homes
from fumehood import Policy, Sandbox
from fumehood.linux.probe import host
from fumehood.store.places import places

pytestmark = [pytest.mark.namespaces, pytest.mark.once]


def planted_at(home: Path) -> homes.Planted:
    """Fill a home, but for our own records, which are in use."""
    planted = homes.plant(home)
    for path in [path for path in planted.secrets if "fumehood" in path.parts]:
        path.unlink()
        del planted.secrets[path]
    return planted


@pytest.fixture(params=["launcher", "bubblewrap"])
def sandbox(request, home, project, monkeypatch, need):
    planted = planted_at(home)
    for name, value in planted.environment.items():
        monkeypatch.setenv(name, value)
    at = places()
    able = host(at.cache, at.state)
    need("bwrap" in able.captures, f"bubblewrap can't capture here: {able.refusal('bwrap')}")
    capture = "bwrap" if request.param == "bubblewrap" else ""
    with Sandbox(project, policy=Policy(capture=capture)) as sandbox:
        yield sandbox, planted


def test_no_planted_secret_is_in_sight(sandbox, home):
    hood, planted = sandbox
    assert len(planted.secrets) >= 400
    marks = sorted(planted.secrets.values())
    listed = "\n".join(str(path) for path in planted.secrets)
    # By their own paths, then by looking through everything that is there.
    run = hood.run("xargs -d '\\n' cat", stdin=listed)
    assert not [mark for mark in marks if mark in run.stdout]
    looked = hood.run("grep -rahoF -f - ~ 2>/dev/null | sort -u; true", stdin="\n".join(marks))
    assert looked.stdout == "", looked.stdout
    environment = hood.run("env").stdout
    assert "PATH=" in environment
    assert not [mark for mark in marks if mark in environment]


@pytest.mark.long
def test_every_tool_works(sandbox, home):
    hood, planted = sandbox
    assert len(planted.tools) >= 30
    results = {line: hood.run(line) for line in planted.tools}
    wrong = {line: run.output for line, run in results.items() if run.stdout.strip() != planted.tools[line]}
    assert not wrong


def test_a_node_of_nvm_runs_although_what_git_keeps_of_nvm_is_hidden(home, project, monkeypatch, need):
    node = shutil.which("node")
    need(node is not None, "there is no node")
    prefix = home / ".nvm/versions/node/v1.0.0"
    for folder in ("bin", "include/node", "lib/node_modules"):
        (prefix / folder).mkdir(parents=True)
    (prefix / "LICENSE").touch()
    shutil.copy(node, prefix / "bin/node")
    for path, text in (
        ("nvm.sh", "nvm() { echo $NVM_DIR; }\n"),
        (".git/config", "url = https://ada:hunter2@x.example/\n"),
    ):
        (home / ".nvm" / path).parent.mkdir(exist_ok=True)
        (home / ".nvm" / path).write_text(text)
    monkeypatch.setenv("NVM_DIR", str(home / ".nvm"))
    monkeypatch.setenv("PATH", f"{prefix}/bin:/usr/bin:/bin")
    with Sandbox(project) as sandbox:
        run = sandbox.run("which node; node -p 6*7; . $NVM_DIR/nvm.sh && nvm; ls -A $NVM_DIR")
    assert run.stdout.split() == [f"{prefix}/bin/node", "42", f"{home}/.nvm", "nvm.sh", "versions"], run.stderr


def test_with_a_visible_home_many_can_be_read(home, project, monkeypatch):
    """So the test above can fail: names that are masked are some of them, not all."""
    planted = planted_at(home)
    with Sandbox(project, policy=Policy(home="visible")) as hood:
        run = hood.run("grep -rahoF -f - ~ 2>/dev/null | sort -u | wc -l", stdin="\n".join(planted.secrets.values()))
    assert int(run.stdout) > len(planted.secrets) // 3
