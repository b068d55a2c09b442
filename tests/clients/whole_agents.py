"""The real Claude Code, Codex and Gemini CLI, each whole in the hood, with a model that follows a script."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import FUMEHOOD, Done, log, provided
from clients.endpoint import Anthropic, Endpoint, Gemini, OpenAI, Step
from patience import LONG_S

pytestmark = pytest.mark.namespaces

CODEX = [
    'model="scripted"', 'model_provider="scripted"', 'approval_policy="never"',
    'model_providers.scripted={name="scripted", base_url="URL/v1", wire_api="responses"}',
]  # fmt: skip
# Where each has its credentials, and what of its own it is to find there.
LOGINS = {
    "claude": (".claude/.credentials.json", "{}"),
    "codex": (".codex/auth.json", '{"OPENAI_API_KEY": "none"}'),
    "gemini": (".gemini/settings.json", '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'),
}


class Client:
    """One agent: how it is started, and how its model has it run a command and write a file."""

    def __init__(self, name: str, program: str, environment: dict[str, str], project: Path) -> None:
        self.name = name
        self._program = program
        self._environment = environment
        self._project = project

    def run(self, script: Sequence[Step | Callable[[list[str]], Step]], *options: str) -> tuple[list[str], Done]:
        """Run it to its end, whatever that is; returns what it told the model of each call."""
        kinds: dict[str, type[Endpoint]] = {"claude": Anthropic, "codex": OpenAI, "gemini": Gemini}
        with kinds[self.name](script) as model:
            host = model.url.removeprefix("http://")
            ours = [str(FUMEHOOD), "agent", "--quiet", "--allow-host", host, *options]
            line = [*ours, self._program, *self._arguments(model.url)]
            done = subprocess.run(
                line, cwd=self._project, env=self._environment | self._variables(model.url), capture_output=True,
                text=True, check=False, stdin=subprocess.DEVNULL, timeout=LONG_S,
            )  # fmt: skip
            return model.results(), done

    def _arguments(self, url: str) -> list[str]:
        if self.name == "claude":
            return ["-p", "go", "--output-format", "json", "--dangerously-skip-permissions"]
        if self.name == "codex":
            settings = [word for text in CODEX for word in ("-c", text.replace("URL", url))]
            return ["exec", "--skip-git-repo-check", *settings, "go"]
        return ["-p", "go", "--yolo", "--model", "gemini-2.5-pro", "--output-format", "json"]

    def _variables(self, url: str) -> dict[str, str]:
        secrets = {"ANTHROPIC_API_KEY": "none-a", "OPENAI_API_KEY": "none-o", "GEMINI_API_KEY": "none-g"}
        secrets |= {"AWS_SECRET_ACCESS_KEY": "of-the-person"}
        return secrets | {
            "ANTHROPIC_BASE_URL": url, "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }  # fmt: skip

    def shell(self, command: str) -> Step:
        """What has it run a command."""
        if self.name == "codex":
            return {"tool": "exec_command", "input": {"cmd": command}}
        tool = {"claude": "Bash", "gemini": "run_shell_command"}[self.name]
        return {"tool": tool, "input": {"command": command, "description": "test"}}

    def write(self, path: Path, text: str) -> Step:
        """What has it write a file by a tool of its own; Codex has none for a model that it does not know."""
        if self.name == "codex":
            return self.shell(f"printf '{text}' >'{path}'")
        tool = {"claude": "Write", "gemini": "write_file"}[self.name]
        return {"tool": tool, "input": {"file_path": str(path), "content": text}}


@pytest.fixture(params=["claude", "codex", "gemini"])
def program(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param, provided(f"FUMEHOOD_TESTS_{request.param.upper()}", request.param)


@pytest.fixture
def client(program: tuple[str, str], environment: dict[str, str], home: Path, project: Path) -> Client:
    place, text = LOGINS[program[0]]
    (home / place).parent.mkdir()
    (home / place).write_text(text)
    return Client(*program, environment, project)


def files(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def test_all_that_it_does_is_one_run_and_can_be_taken_back(client: Client, fumehood: Any, project: Path) -> None:
    (project / "notes.txt").write_text("keep me")
    before = files(project)
    script = [
        client.write(project / "new.txt", "written"), client.shell("cat new.txt; rm notes.txt; echo x >made"),
        {"text": "done"},
    ]  # fmt: skip
    told, done = client.run(script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "written" in told[1], "its tools and its commands see the same"
    assert (project / "new.txt").read_text() == "written"
    runs = log(fumehood)
    (session,) = {run["session"] for run in runs}
    assert session.startswith(client.name)
    shown = "".join(fumehood("diff", run["run"]).stdout for run in runs)
    assert all(name in shown for name in ("new.txt", "notes.txt", "made"))
    fumehood("undo", "--session", session)
    assert files(project) == before


def test_each_of_its_commands_can_be_a_run_of_its_own(client: Client, fumehood: Any, project: Path) -> None:
    (project / "notes.txt").write_text("keep me")
    before = files(project)
    lines = ["cat new.txt; rm notes.txt; echo 'é \"q\"' >made", "echo 2 >>new.txt && exit 3", "cat made"]
    script = [client.write(project / "new.txt", "1"), *map(client.shell, lines), {"text": "done"}]
    told, done = client.run(script, "--each-command")
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'é "q"' in told[3]
    runs = [run for run in log(fumehood) if run["act"] == "checkpoint"]
    changes = [{(change["path"], change["change"]) for change in run["paths"]} for run in runs]
    own = ("printf '1' >'{project}/new.txt'" if client.name == "codex" else "checkpoint of ").format(project=project)
    assert runs[0]["command"].startswith(own)
    assert [(run["command"], run["exit_code"]) for run in runs[1:]] == list(zip(lines, (0, 3, 0), strict=True))
    assert changes == [
        {("new.txt", "added")}, {("notes.txt", "deleted"), ("made", "added")}, {("new.txt", "modified")}, set(),
    ]  # fmt: skip
    fumehood("undo", runs[1]["run"])
    assert files(project) == {**before, "new.txt": b"12\n"}
    fumehood("undo", "--session", runs[0]["session"])
    assert files(project) == before


def test_nothing_beside_the_project_is_written_and_no_other_secret_is_seen(
    client: Client, home: Path, project: Path, beside: Path
) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh/id").write_text("a key")
    (home / ".claude.json").write_text('{"projects": {"/another": "a secret"}}')
    before = files(home / ".ssh"), files(beside)
    script = [
        client.write(beside / "planted", "x"), client.write(home / ".bashrc", "planted"),
        client.shell(
            f"echo x >{beside}/planted; echo x >>~/.ssh/id; cat ~/.ssh/id ~/.claude.json ~/.claude/.claude.json; env"
        ),
        {"text": "done"},
    ]  # fmt: skip
    told, done = client.run(script)
    assert len(told) == 3, done.stdout + done.stderr
    assert (files(home / ".ssh"), files(beside)) == before
    assert not (home / ".bashrc").exists()
    for secret in ("a key", "a secret", "of-the-person"):
        assert secret not in told[2]
    own = {"claude": "none-a", "codex": "none-o", "gemini": "none-g"}
    assert [name for name, key in own.items() if f"={key}" in told[2]] in ([client.name], []), "of keys, its own"


def test_what_it_keeps_is_its_own_and_never_the_hosts(client: Client, home: Path) -> None:
    folder = home / f".{client.name}"
    before = files(folder)
    line = f"cat ~/.{client.name}/planted; echo '{{\"hooks\": 1}}' >~/.{client.name}/planted"
    client.run([client.shell(line), {"text": "done"}])
    (told,) = client.run([client.shell(line), {"text": "done"}])[0]
    assert '{"hooks": 1}' in told, "it is there in the next session"
    assert files(folder) == before


def test_its_exit_status_is_ours(client: Client) -> None:
    client._arguments = lambda _url: ["--no-such-option"]  # type: ignore[method-assign]
    _, done = client.run([{"text": "done"}])
    plain = subprocess.run(
        [client._program, "--no-such-option"], env=client._environment, capture_output=True, check=False
    )
    assert done.returncode == plain.returncode != 0
