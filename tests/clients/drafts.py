"""Five sessions of the real Claude Code at the same time in five drafts of one repository: all applied, merged, green.

Each changes a function and adds a test to it, some in the same files, and runs the tests. A barrier holds all of them
when their work is half done, so that each looks around while the four others are at theirs.
"""

import json
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from clients.claude_code import bash, start
from clients.conftest import FUMEHOOD, Done, ended, log, provided, started
from clients.endpoint import Anthropic, Step
from patience import LONG_S
from snapshots import snapshot

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(900)]


class Task(NamedTuple):
    """What one session does: another value that a function returns, and a test of it."""

    module: str
    function: str
    before: str
    after: str
    test: str  # true of the new function, not of the old one

    @property
    def edits(self) -> list[tuple[str, str, str]]:
        """Files, and what is replaced in each by what; every session changes a function and a test."""
        head = f"class {self.function.title()}(unittest.TestCase):\n"
        method = f"    def test_more(self):\n        self.assertTrue({self.test})\n\n"
        return [
            (f"kit/{self.module}.py", f"return {self.before}\n", f"return {self.after}\n"),
            (f"tests/test_{self.module}.py", head, head + method),
        ]


TASKS = (
    Task("words", "shout", "it.upper()", "it.strip().upper()", "words.shout(' a ') == 'A'"),
    Task("words", "whisper", "it.lower()", "it.strip().lower()", "words.whisper(' A ') == 'a'"),
    Task("words", "initials", "''.join(w[0] for w in it.split())", "'.'.join(w[0] for w in it.split())",
         "words.initials('a b') == 'a.b'"),
    Task("sums", "total", "sum(it)", "sum(map(float, it))", "sums.total(['1', '2']) == 3"),
    Task("sums", "mean", "sum(it) / len(it)", "sum(it) / len(it) if it else 0", "sums.mean([]) == 0"),
)  # fmt: skip


def texts(done: Collection[Task] = ()) -> dict[str, str]:
    """The repository's files when these tasks are done."""
    files = {"kit/__init__.py": "", "tests/__init__.py": "", ".gitignore": "__pycache__/\n"}
    for module in ("sums", "words"):
        mine = [task for task in TASKS if task.module == module]
        functions = [f"\n\ndef {task.function}(it):\n    return {task.before}\n" for task in mine]
        files[f"kit/{module}.py"] = f'"""What is done with {module}."""\n' + "".join(functions)
        classes = [
            f"\n\nclass {task.function.title()}(unittest.TestCase):\n    def test_is_there(self):\n"
            f"        self.assertTrue({module}.{task.function})\n"
            for task in mine
        ]
        files[f"tests/test_{module}.py"] = f"import unittest\n\nfrom kit import {module}\n" + "".join(classes)
    for task in done:
        for path, before, after in task.edits:
            assert files[path].count(before) == 1
            files[path] = files[path].replace(before, after)
        files[f"notes/{task.function}.md"] = f"{task.function} is done\n"
    return files


def shown(files: dict[str, str]) -> str:
    """What `cat kit/*.py tests/*.py notes/*` prints of them."""
    tops = ("kit/", "tests/", "notes/")
    return "".join(files[path] for top in tops for path in sorted(files) if path.startswith(top))


def script(task: Task, edits: list[Step], all_are_at_it: threading.Barrier) -> list[Step | Callable[[list[str]], Step]]:
    def look(_told: list[str]) -> Step:
        all_are_at_it.wait(5 * LONG_S)
        return bash("cat kit/*.py tests/*.py notes/*; git status --short")

    return [
        *edits,
        bash(f"mkdir notes; echo '{task.function} is done' >notes/{task.function}.md"),
        bash("python3 -m unittest 2>&1"),
        look,
        {"text": "done"},
    ]


def by_command(project: Path, task: Task) -> list[Step]:
    """The edits by a command: an edit of the client's own would go to the project itself, so it is asked about."""
    lines = ["from pathlib import Path"]
    for path, before, after in task.edits:
        lines.append(f"file = Path({path!r})")
        lines.append(f"file.write_text(file.read_text().replace({before!r}, {after!r}))")
    path, before, after = task.edits[0]
    tried = {"file_path": str(project / path), "old_string": before, "new_string": after}
    return [
        {"tool": "Read", "input": {"file_path": str(project / path)}},
        {"tool": "Edit", "input": tried},
        bash("python3 - <<'EOF'\n" + "\n".join(lines) + "\nEOF"),
    ]


def by_its_tool(project: Path, task: Task) -> list[Step]:
    steps: list[Step] = []
    for path, before, after in task.edits:
        edit = {"file_path": str(project / path), "old_string": before, "new_string": after}
        steps += [{"tool": "Read", "input": {"file_path": str(project / path)}}, {"tool": "Edit", "input": edit}]
    return steps


@pytest.fixture
def claude() -> str:
    return provided("FUMEHOOD_TESTS_CLAUDE", "Claude Code")


@pytest.fixture
def repository(project: Path) -> Path:
    for path, text in texts().items():
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_text(text)
    for line in ("init -q", "add .", "-c user.name=A -c user.email=a@example.org commit -qm first"):
        subprocess.run(["git", *line.split()], cwd=project, check=True)
    return project


@contextmanager
def five_models(edits: Callable[[Path, Task], list[Step]], project: Path) -> Iterator[list[Anthropic]]:
    barrier = threading.Barrier(len(TASKS))
    with ExitStack() as stack:
        yield [stack.enter_context(Anthropic(script(task, edits(project, task), barrier))) for task in TASKS]


def check_each_saw_its_own(models: list[Anthropic]) -> None:
    for task, model in zip(TASKS, models, strict=True):
        *_, tested, seen = model.results()
        assert "Ran 6 tests" in tested
        assert "\nOK" in tested
        assert shown(texts([task])) in seen
        assert "?? notes/\n" in seen + "\n"


def check_all_are_merged_and_taken_back(
    names: list[str], fumehood: Callable[..., Done], project: Path, before: object
) -> None:
    assert snapshot(project) == before, "nothing has left a draft"
    for name in names:
        fumehood("draft", "apply", name)
    for path, text in texts(TASKS).items():
        assert (project / path).read_text() == text
    line = ["python3", "-B", "-m", "unittest"]
    tested = subprocess.run(line, cwd=project, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stderr
    assert "Ran 10 tests" in tested.stderr
    for _ in names:
        fumehood("undo")
    assert snapshot(project) == before


def drafts(fumehood: Callable[..., Done]) -> list[str]:
    return [draft["name"] for draft in json.loads(fumehood("draft", "list", "--json").stdout)["drafts"]]


def test_five_sessions_each_in_a_draft_of_its_own(
    claude: str, environment: dict[str, str], fumehood: Any, repository: Path
) -> None:
    fumehood("setup", "claude", "--yes")
    configuration = Path(fumehood("config", "path").stdout.strip())
    configuration.parent.mkdir(exist_ok=True)
    configuration.write_text('drafts = "session"\n')
    before = snapshot(repository)
    with five_models(by_command, repository) as models:
        allowed = ("--allowedTools", "Bash,Read,Edit")
        processes = [start(claude, model, environment, repository, *allowed) for model in models]
        for process in processes:
            ended(process)
        check_each_saw_its_own(models)
        for model in models:
            assert "a shell command can make it in the draft" in model.results()[1]
    sessions = {run["session"] for run in log(fumehood)}
    assert sessions == set(drafts(fumehood))
    assert len(sessions) == len(TASKS)
    check_all_are_merged_and_taken_back(drafts(fumehood), fumehood, repository, before)


def test_five_agents_each_whole_in_a_draft_their_own_edits_too(
    claude: str, environment: dict[str, str], fumehood: Any, home: Path, repository: Path
) -> None:
    (home / ".claude").mkdir()
    (home / ".claude/.credentials.json").write_text("{}")
    before = snapshot(repository)
    with five_models(by_its_tool, repository) as models:
        processes = []
        for task, model in zip(TASKS, models, strict=True):
            fumehood("draft", "new", task.function)
            ours = [FUMEHOOD, "agent", "--quiet", "--draft", task.function]
            ours += ["--allow-host", model.url.removeprefix("http://")]
            line = [*ours, claude, "-p", "go", "--output-format", "json", "--dangerously-skip-permissions"]
            keys = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none"}
            processes.append(started(line, repository, environment | keys))
        for process in processes:
            ended(process)
        check_each_saw_its_own(models)
    names = [task.function for task in TASKS]
    assert sorted(drafts(fumehood)) == sorted(names)
    check_all_are_merged_and_taken_back(names, fumehood, repository, before)
