"""Every example runs with its real framework; only the model follows a script."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fumehood import Sandbox

EXAMPLES = Path(os.environ["FUMEHOOD_SUITE_EXAMPLES"])
sys.path.insert(0, str(EXAMPLES))
COMMAND = "wc -l < poem.txt > answer.txt; echo counted"


@pytest.fixture(params=["beside the home", "/tmp"])  # evaluations work below /tmp, which is a command's own
def project(request: pytest.FixtureRequest) -> Iterator[Path]:
    place = request.param if request.param == "/tmp" else os.environ["FUMEHOOD_SUITE_DIR"]
    with tempfile.TemporaryDirectory(dir=place, prefix="fumehood-suite-") as top:
        project = Path(top, "project")
        project.mkdir()
        (project / "poem.txt").write_text("one\ntwo\nthree\n")
        yield project


def check(project: Path, session: str) -> None:
    """The command ran in the hood, in a session that can be taken back."""
    assert (project / "answer.txt").read_text().strip() == "3"
    with Sandbox(project, session=session) as sandbox:
        assert any(COMMAND in run.command and run.sandboxed for run in sandbox.history())
        sandbox.undo_session()
    assert not (project / "answer.txt").exists()


def test_deepagents(project: Path) -> None:
    from deepagents_example import work
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> "Scripted":
            assert "execute" in {getattr(tool, "name", "") for tool in tools}
            return self

    call = {"name": "execute", "args": {"command": f"cd {project} && {COMMAND}"}, "id": "1", "type": "tool_call"}
    model = Scripted(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("It has three.")]))
    said, session = work(str(project), "Count.", model)
    assert said == "It has three."
    check(project, session)


async def test_openai_agents(project: Path) -> None:
    from agents import set_tracing_disabled
    from agents.testing import ScriptedModel, assistant_message
    from openai.types.responses import ResponseFunctionShellToolCall
    from openai_agents_example import work

    set_tracing_disabled(True)
    call = ResponseFunctionShellToolCall.model_validate(
        {"id": "1", "call_id": "1", "type": "shell_call", "status": "completed", "action": {"commands": [COMMAND]}}
    )
    model = ScriptedModel([[call], [assistant_message("It has three.")]])
    said, session = await work(str(project), "Count.", model)
    assert said == "It has three."
    assert "counted" in str(model.last_call.input if model.last_call else "")
    check(project, session)


def test_mini_swe_agent(project: Path) -> None:
    from mini_swe_agent_example import work
    from minisweagent.models.test_models import DeterministicModel, make_output

    done = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo It has three."
    script = [make_output("", [{"command": each}]) for each in (COMMAND, done)]
    said, session = work(str(project), "Count.", DeterministicModel(outputs=script))
    assert said.strip() == "It has three."
    check(project, session)


def test_inspect_finds_the_sandbox_by_its_entry_point(tmp_path: Path) -> None:
    line = [sys.executable, "-P", "-m", "inspect_ai", "eval", "inspect_scripted.py", "--display", "plain"]
    line += ["--log-format", "json", "--log-dir", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{os.environ['PYTHONPATH']}:{EXAMPLES}"}
    here = Path(__file__).parent
    done = subprocess.run(line, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    log = json.loads(path.read_text())
    assert log["status"] == "success", log.get("error")
    assert log["eval"]["sandbox"]["type"] == "fumehood"
    assert log["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 1
    told = [message["content"] for message in log["samples"][0]["messages"] if message["role"] == "tool"]
    assert [text.strip() for text in told] == ["counted"]


def test_a_loop_of_one_page(project: Path) -> None:
    from openai import OpenAI
    from tool_loop import work

    function = {"name": "run_command", "arguments": json.dumps({"command": COMMAND})}
    call = {"id": "1", "type": "function", "function": function}
    script = iter([{"tool_calls": [call]}, {"content": "It has three."}])
    asked: list[dict[str, Any]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            message = {"role": "assistant", "content": None} | next(script)
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            body = {"id": "1", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice]}
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none", max_retries=0)
        assert work(str(project), "Count.", "scripted", client) == "It has three."
        server.shutdown()
    told = asked[1]["messages"][-1]
    assert told["role"] == "tool"
    assert "counted" in told["content"]
    assert "added answer.txt" in told["content"]
    assert (project / "answer.txt").read_text().strip() == "3"


async def test_a_cancelled_agent_leaves_no_command_running(project: Path) -> None:
    from fumehood.adapters.deepagents import FumehoodSandbox

    backend = FumehoodSandbox(project)
    try:
        task = asyncio.create_task(backend.aexecute("echo x > begun; sleep 1000"))
        while not backend.sandbox.running():  # noqa: ASYNC110 - its record tells
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.sandbox.running() == []
        assert not (project / "begun").exists()
    finally:
        backend.close()


async def test_a_long_output_leaves_room_for_what_the_model_must_know(project: Path) -> None:
    from agents import RunContextWrapper, ShellActionRequest, ShellCallData, ShellCommandRequest

    from fumehood.adapters.openai_agents import ShellExecutor

    hooks = ("pre-commit", "pre-push")
    shell = ShellExecutor(project)
    commands = [f"seq 1000; seq 1000 >&2; mkdir -p .git/hooks; echo > .git/hooks/{name}" for name in hooks]
    action = ShellActionRequest(commands, max_output_length=500)
    try:
        done = await shell(ShellCommandRequest(RunContextWrapper(None), ShellCallData("1", action)))
    finally:
        shell.close()
    assert done.output[0].stdout.startswith("1\n2\n")
    for output, name in zip(done.output, hooks, strict=True):
        assert output.stderr.startswith(f"[fumehood {shell.sandbox.mark}] added .git/hooks/{name} ")
    assert sum(len(output.stdout) + len(output.stderr) for output in done.output) <= 500


def test_what_is_submitted_is_what_the_command_printed(project: Path) -> None:
    from minisweagent.exceptions import Submitted

    from fumehood.adapters.mini_swe_agent import FumehoodEnvironment

    environment = FumehoodEnvironment(cwd=str(project))
    command = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; printf '+a\\342\\200\\215\\033[1mb\\n'; mkfifo held"
    try:
        with pytest.raises(Submitted) as submitted:
            environment.execute({"command": command})
    finally:
        environment.close()
    (message,) = submitted.value.messages
    assert message["extra"]["submission"] == "+a\u200d\x1b[1mb\n"


TEMPLATE = """
[[tool]]
name = "note"
description = "Keep a note."
command = "printf %s {text} > note.txt; cat note.txt"
"""


@pytest.fixture
def template() -> Iterator[None]:
    path = Path.home() / ".config/fumehood/config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEMPLATE)
    yield
    path.unlink()


async def test_templates_of_the_configuration_are_tools_of_the_frameworks(
    project: Path, template: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agents.tool_context import ToolContext
    from inspect_ai.tool import ToolDef

    from fumehood.adapters.deepagents import FumehoodSandbox
    from fumehood.adapters.inspect import FumehoodSandboxEnvironment, own_tools
    from fumehood.adapters.openai_agents import ShellExecutor

    hostile = "'; touch hurt; '"
    backend, shell = FumehoodSandbox(project), ShellExecutor(project)
    try:
        (note,) = backend.tools
        assert hostile in note.invoke({"text": hostile})
        assert hostile in await note.ainvoke({"text": hostile})
        assert note.invoke({"text": "a\0b"}).startswith("ERROR: ")
        (tool,) = shell.tools
        arguments = json.dumps({"text": hostile})
        context = ToolContext(context=None, tool_name=tool.name, tool_call_id="1", tool_arguments=arguments)
        assert hostile in await tool.on_invoke_tool(context, arguments)
        for wrong in ('{"text": "cut', '["a list"]', "{}"):
            assert (await tool.on_invoke_tool(context, wrong)).startswith("ERROR: ")
    finally:
        backend.close()
        shell.close()
    assert sorted(os.listdir(project)) == ["note.txt", "poem.txt"]
    (own,) = own_tools()
    assert ToolDef(own).parameters.model_dump(exclude_none=True)["required"] == ["text"]
    sample = FumehoodSandboxEnvironment()
    monkeypatch.setattr("fumehood.adapters.inspect.sandbox", lambda: sample)
    try:
        assert hostile in await own(text=hostile)  # type: ignore[operator]
        assert (await own(text=5)).startswith("ERROR: ")  # type: ignore[operator]
    finally:
        sample.close()
