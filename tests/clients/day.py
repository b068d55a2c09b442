"""A day of each real client, with and without Fumehood: the two projects and what the model saw are the same.

Then all of it is taken back, and the project is as it was, byte for byte.
"""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from clients import claude_code, codex_cli, copilot_cli, gemini_cli, opencode_cli
from clients.conftest import FUMEHOOD, ended, provided
from clients.endpoint import Anthropic, Chat, Endpoint, Gemini, OpenAI, Step
from snapshots import snapshot

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(900)]  # two days, of clients that are slow to start

# What a client says around a command's output that differs from call to call.
AROUND = re.compile(
    r"(?m)^(?:Chunk ID: \w+|Wall time: .*|Original token count: .*|Process Group PGID: .*"
    r"|\[System\] Tool input .*|Session cwd remains .*)\n?"
    r"|\(?(?:ID|PID): \w+|session ID \d+|shellId: \d+|(?<=/)[0-9a-f]{8}-[0-9a-f-]{27}/tasks/\w+"
    r"|\(Bash completed with no output\)|\(empty\)|\(no output\)"
)
OUR_WORDS = re.compile(r"(?m)^\[fumehood [a-z]{12}\] .*\n?|\[fumehood [a-z]{12}\] .*")
TRIES = " ".join(map(str, range(60)))  # some clients refuse $(…)
# Pages of the directory, until somebody asks for /stop: no command sees another one's processes in the hood.
SERVER = """import http.server, sys, threading

class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        super().do_GET()
        if self.path == "/stop":
            threading.Thread(target=self.server.shutdown).start()

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Client(NamedTuple):
    """How one client is connected, started, and asked for what a day is made of."""

    program: str
    endpoint: type[Endpoint]
    settings: Callable[[Path], None]
    start: Callable[..., Any]
    shell: Callable[..., Step]
    background: Callable[[str], Step] | None
    write: Callable[[Path, str], Step]
    edit: Callable[[Path, str, str], Step]
    short: dict[str, Any]  # makes the client end a command after a moment


def _codex_settings(home: Path) -> None:
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").write_text("# what setup wrote\n")


def _gemini_settings(home: Path) -> None:
    (home / ".gemini").mkdir()
    (home / ".gemini/settings.json").write_text(json.dumps(gemini_cli.SETTINGS))


def _patch(*lines: str) -> Step:
    text = "\n".join(["*** Begin Patch", *lines, "*** End Patch"])
    return {"custom": "apply_patch", "input": text}


CLIENTS = {
    "claude": Client(
        "FUMEHOOD_TESTS_CLAUDE", Anthropic, lambda _home: None,
        lambda program, model, environment, _home, project: claude_code.start(
            program, model, environment, project, "--allowedTools", "Bash,Write,Edit,Read"
        ),
        claude_code.bash, lambda command: claude_code.bash(command, run_in_background=True),
        lambda path, text: {"tool": "Write", "input": {"file_path": str(path), "content": text}},
        lambda path, old, new: {
            "tool": "Edit", "input": {"file_path": str(path), "old_string": old, "new_string": new},
        },
        {"timeout": 1500},
    ),
    "codex": Client(
        "FUMEHOOD_TESTS_CODEX", OpenAI, _codex_settings,
        # It offers patches only to models that it knows.
        lambda program, model, environment, home, project: codex_cli.start(
            program, model, environment, home, project, "-m", "gpt-5.5"
        ),
        codex_cli.shell, lambda command: codex_cli.shell(command, yield_time_ms=500),
        lambda path, text: _patch(f"*** Add File: {path}", *(f"+{line}" for line in text.splitlines())),
        lambda path, old, new: _patch(f"*** Update File: {path}", "@@", f"-{old}", f"+{new}"),
        {"yield_time_ms": 500},
    ),
    "gemini": Client(
        "FUMEHOOD_TESTS_GEMINI", Gemini, _gemini_settings,
        lambda program, model, environment, _home, project: gemini_cli.start(program, model, environment, project),
        gemini_cli.shell, lambda command: gemini_cli.shell(command, is_background=True),
        lambda path, text: {"tool": "write_file", "input": {"file_path": str(path), "content": text}},
        lambda path, old, new: {
            "tool": "replace",
            "input": {"file_path": str(path), "old_string": old, "new_string": new, "instruction": "greet well"},
        },
        {},
    ),
    "copilot": Client(
        "FUMEHOOD_TESTS_COPILOT", Chat, lambda _home: None,
        lambda program, model, environment, _home, project: copilot_cli.start(program, model, environment, project),
        copilot_cli.shell, lambda command: copilot_cli.shell(command, mode="async", shellId="server"),
        lambda path, text: {"tool": "create", "input": {"path": str(path), "file_text": text}},
        lambda path, old, new: {"tool": "edit", "input": {"path": str(path), "old_str": old, "new_str": new}},
        {},
    ),
    "opencode": Client(
        "FUMEHOOD_TESTS_OPENCODE", Chat, lambda _home: None,
        lambda program, model, environment, _home, project: opencode_cli.start(program, model, environment, project),
        opencode_cli.shell, None,
        lambda path, text: {"tool": "write", "input": {"filePath": str(path), "content": text}},
        lambda path, old, new: {
            "tool": "edit", "input": {"filePath": str(path), "oldString": old, "newString": new},
        },
        {"timeout": 1500},
    ),
}  # fmt: skip


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> tuple[str, Client, str]:
    one = CLIENTS[request.param]
    return request.param, one, provided(one.program, request.param)


def make_project(project: Path) -> None:
    """A small repository with a program, its tests, and one commit."""
    (project / "src").mkdir(parents=True)
    (project / "tests").mkdir()
    (project / "docs").mkdir()
    (project / "docs/index.md").write_text("# Greeter\n")
    (project / "README.md").write_text("# Greeter\n")
    (project / "serve.py").write_text(SERVER)
    (project / ".gitignore").write_text("__pycache__/\n*.log\n")
    (project / "src/greet.py").write_text('def greet(name):\n    return f"Hello, {name}"\n')
    (project / "tests/test_greet.py").write_text(
        "import sys, unittest\nsys.path.insert(0, 'src')\nfrom greet import greet\n\n\n"
        "class Greets(unittest.TestCase):\n    def test_greets(self):\n"
        "        self.assertIn('Ada', greet('Ada'))\n"
    )
    git(project, "init", "-q", "-b", "main")
    for name, value in (("user.name", "Ada"), ("user.email", "ada@example.org")):
        git(project, "config", name, value)
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "Begin")


def git(project: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=project, check=True, capture_output=True, text=True)
    return done.stdout


def day(client: Client, project: Path, port: int) -> list[tuple[str, Step]]:
    """What the model asks for, each with a name."""
    shell = client.shell
    together = [shell(f"echo {name} >>list.txt") for name in ("one", "two", "three")]
    greeting = '    return f"{}, {{name}}"'
    steps = [
        ("looks", shell("ls; git status --short; cat README.md")),
        ("edits", client.edit(project / "src/greet.py", greeting.format("Hello"), greeting.format("Good day"))),
        ("writes", client.write(project / "docs/usage.md", "# Usage\n\nCall greet.\n")),
        ("tests", shell("python3 -m unittest discover -s tests 2>&1 | tail -1")),
        ("heredoc", shell("cat >notes.md <<'EOF'\n# Notes \"quoted\" $HOME *\nline\nEOF\nwc -l notes.md")),
        ("variables", shell('export GREETING="hi there"; echo "$GREETING" >hi.txt; cat hi.txt')),
        ("both streams", shell("for i in 1 2; do echo out$i; echo err$i >&2; done")),
        ("fails", shell("ls missing-directory; exit 3")),
        ("commits", shell("git add -A && git commit -q -m 'Greet well' && git log --format=%s && git status --short")),
        *(("together", {"parallel": together}) for _ in together),
        ("appended", shell("sort list.txt")),
    ]
    place = f"http://127.0.0.1:{port}"
    if client.background is not None:
        steps += [
            ("serves", client.background(f"python3 -u serve.py {port} >server.log 2>&1")),
            ("asks it", shell(f"for i in {TRIES}; do curl -fs {place}/README.md && break; sleep 0.2; done")),
            ("waits", shell("sleep 16")),  # Codex does not say what is in the background: known after ten seconds
            ("reads its log", shell("grep -c GET server.log")),
        ]
    steps += [
        ("edits again", client.edit(project / "docs/usage.md", "Call greet.", "Call greet with a name.")),
        ("too long", shell("echo begun; sleep 20; echo ended", **client.short)),
    ]
    steps.append(("removes", shell("rm -r docs hi.txt && git status --short")))
    if client.background is not None:  # at the end: some clients tell of its end as of one more call
        stops = f"curl -s {place}/stop >/dev/null; for i in {TRIES}; do curl -s {place} >/dev/null || break; done"
        steps.append(("stops the server", shell(stops)))
    return steps


def lived(
    client: Client, program: str, environment: dict[str, str], home: Path, project: Path
) -> tuple[list[str], dict[str, str]]:
    """Play a day; returns what the model was told of each step, and what is in the project afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    steps = day(client, project, port)
    with client.endpoint([*(step for _, step in steps), {"text": "done"}]) as model:
        try:
            ended(client.start(program, model, environment, home, project))
        finally:
            for (step, _), result in zip(steps, model.results(), strict=False):
                print(f"== {step}\n{result}")
        results = [plain(each).replace(str(port), "PORT") for each in model.results()]
    files = {
        str(path.relative_to(project)): path.read_text()
        for path in sorted(project.rglob("*"))
        if path.is_file() and not {".git", "__pycache__", "server.log"} & set(path.relative_to(project).parts)
    }
    files["list.txt"] = "".join(sorted(files["list.txt"].splitlines(keepends=True)))
    return results, files


def whole(project: Path) -> dict[str, list[object]]:
    """Everything in a project but for what OpenCode does in its repository by itself: a note, and objects' times."""
    entries = {path: entry for path, entry in snapshot(project).items() if path != ".git/opencode"}
    for path, entry in entries.items():
        if path.startswith(".git/objects/"):
            entry[3] = 0
    return entries


def plain(text: str) -> str:
    text = AROUND.sub("", OUR_WORDS.sub("", text)).strip()
    # Codex and Gemini CLI may mix up the two streams of a command; in the hood they stay in order.
    return "\n".join(sorted(text.splitlines())) if "err1" in text else text


def test_a_day_in_the_hood_is_as_one_without(
    client: tuple[str, Client, str], environment: dict[str, str], home: Path, test_directory: Path
) -> None:
    name, one, program = client
    one.settings(home)
    # In one place, one after the other: what the model sees has its path in it.
    project = test_directory / "project"
    make_project(project)
    shutil.copytree(project, test_directory / "kept", symlinks=True)
    results, files = lived(one, program, environment, home, project)
    history = git(project, "log", "--format=%s"), git(project, "status", "--short")
    shutil.rmtree(project)
    shutil.copytree(test_directory / "kept", project, symlinks=True)
    git(project, "status")  # a person's

    def ours(*arguments: str) -> str:
        done = subprocess.run(
            [str(FUMEHOOD), *arguments], cwd=project, env=environment, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    ours("setup", name, "--yes")
    before = whole(project)
    hooded_results, hooded_files = lived(one, program, environment, home, project)
    steps = [step for step, _ in day(one, project, 0)]
    for number, step in enumerate(steps):
        print(f"== {step}\n-- without\n{results[number]}\n-- with\n{hooded_results[number]}")
    assert hooded_files == files
    assert (git(project, "log", "--format=%s"), git(project, "status", "--short")) == history
    git(project, "fsck", "--strict")
    pairs = zip(steps, results, hooded_results, strict=False)
    assert [step for step, without, hooded in pairs if without != hooded] == []
    (session,) = {run["session"] for run in json.loads(ours("log", "--json"))["runs"]}
    ours("undo", "--session", session)
    assert whole(project) == before
