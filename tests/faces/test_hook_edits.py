"""The hook before and after a client's own edits: runs of its session, and questions for the person."""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fumehood import Sandbox
from fumehood.faces.cli import hook
from fumehood.faces.cli.hook_clients import CLIENTS
from fumehood.service.opened import OpenedStore
from fumehood.store.places import places

pytestmark = pytest.mark.once

Answer = Callable[..., dict[str, Any]]
NUMBERS = itertools.count()


@pytest.fixture
def told(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """What the hook answers to an event of a client, asked in this process."""
    monkeypatch.chdir(project)
    for client in CLIENTS.values():
        monkeypatch.delenv(client.project_variable or "UNSET", raising=False)

    def tell(name: str, tool: str, tool_input: object, call: str = "", **more: Any) -> dict[str, Any]:
        client = CLIENTS[name]
        is_after = more.pop("after", False)
        fields = {
            client.event_field: client.after[0] if is_after else client.before, client.tool_field: tool,
            client.input_field: tool_input, client.session_field: "s", client.id_field: call,
            client.directory_field: str(project), **more,
        }  # fmt: skip
        if name == "claude":
            fields = {"permission_mode": "default", **fields}
        fields |= dict.fromkeys(client.result_fields[:1], "ok") if is_after else {}
        fields.pop("", None)
        answered = hook.answer_call(json.dumps(fields).encode(), hook.parse_options(["--client", name]))
        answer = json.loads(answered or "{}")
        return answer.get("hookSpecificOutput", answer)

    return tell


@pytest.fixture
def edit(told: Answer, project: Path) -> Callable[..., None]:
    """One edit, from the event before it to the one after."""

    def make(name: str, tool: str, tool_input: object, **files: str | None) -> None:
        call = f"call-{next(NUMBERS)}"
        assert told(name, tool, tool_input, call) == {}
        for path, text in files.items():
            file = project / path.replace("__", "/").replace("_", ".")
            if text is None:
                file.unlink()
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        assert told(name, tool, tool_input, call, after=True) == {}

    return make


def runs() -> list[tuple[str, str | None, list[str]]]:
    store = OpenedStore()
    try:
        return [
            (run.command, run.session, [f"{each.change} {each.path}" for each in run.changed])
            for run in store.history.runs()
        ]
    finally:
        store.close()


PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-one\n+two\n*** Add File: sub/b.py\n+x\n*** End Patch"
TOOLS = [
    ("claude", "Write", {"file_path": "PROJECT/a.py", "content": "two\n"}),
    ("claude", "Edit", {"file_path": "PROJECT/a.py", "old_string": "one", "new_string": "two"}),
    ("claude", "MultiEdit", {"file_path": "PROJECT/a.py", "edits": [{"old_string": "one", "new_string": "two"}]}),
    ("opencode", "multiedit", {"filePath": "PROJECT/a.py", "edits": [{"oldString": "one", "newString": "two"}]}),
    ("claude", "NotebookEdit", {"notebook_path": "PROJECT/a.py", "new_source": "two"}),
    ("gemini", "write_file", {"file_path": "a.py", "content": "two\n"}),
    ("gemini", "replace", {"file_path": "PROJECT/a.py", "old_string": "one", "new_string": "two"}),
    ("copilot", "create", {"path": "PROJECT/a.py", "file_text": "two\n"}),
    ("copilot", "edit", {"path": "PROJECT/a.py", "old_str": "one", "new_str": "two"}),
    ("opencode", "write", {"filePath": "PROJECT/a.py", "content": "two\n"}),
    ("opencode", "edit", {"filePath": "PROJECT/a.py", "oldString": "one", "newString": "two"}),
    ("cursor", "StrReplace", {"path": "PROJECT/a.py", "old_string": "one", "new_string": "two"}),
]


def placed(tool_input: Any, project: Path) -> Any:
    return json.loads(json.dumps(tool_input).replace("PROJECT", str(project)))


@pytest.mark.parametrize(("client", "tool", "tool_input"), TOOLS)
def test_every_clients_edit_is_a_run_of_its_session(
    edit: Callable[..., None], project: Path, cli: Any, client: str, tool: str, tool_input: object
) -> None:
    (project / "a.py").write_text("one\n")
    edit(client, tool, placed(tool_input, project), a_py="two\n")
    assert runs() == [(f"{tool} a.py", f"{client}-s", ["modified a.py"])]
    assert "-one\n+two\n" in cli("diff", "last").stdout
    assert f"{tool} a.py" in cli("log").stdout
    assert cli("undo", "--session", f"{client}-s").returncode == 0
    assert (project / "a.py").read_text() == "one\n"


@pytest.mark.parametrize(
    ("client", "tool", "tool_input"),
    [("codex", "apply_patch", {"command": PATCH}), ("opencode", "apply_patch", {"patchText": PATCH})],
)
def test_a_patch_is_one_run_of_all_its_files(
    edit: Callable[..., None], project: Path, cli: Any, client: str, tool: str, tool_input: object
) -> None:
    (project / "a.py").write_text("one\n")
    edit(client, tool, tool_input, a_py="two\n", sub__b_py="x\n")
    changed = ["modified a.py", "added sub", "added sub/b.py"]
    assert runs() == [("apply_patch a.py, sub/b.py", f"{client}-s", changed)]
    cli("undo")
    assert os.listdir(project) == ["a.py"]


def test_a_patch_in_a_shell_line_is_an_edit_that_the_next_event_closes(
    told: Answer, project: Path
) -> None:
    (project / "sub").mkdir()
    line = "cd sub && apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: x\n+x\n*** End Patch\nEOF\n"
    assert told("codex", "Bash", {"command": line}, "1") == {}
    (project / "sub/x").write_text("x\n")
    told("codex", "apply_patch", {"command": PATCH}, "2")
    assert [each[0] for each in runs()] == ["apply_patch sub/x"]


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_a_shell_line_that_is_not_just_a_patch_is_a_command(told: Answer, client: str) -> None:
    line = f"apply_patch <<'EOF'\n{PATCH}\nEOF"
    rewritten = [f"{line}\ntouch x", f"true && {line}", line.replace("'EOF'", "EOF"), line.replace("@@\n-", "?")]
    rewritten += [line] if client == "claude" else []
    for each in rewritten:
        assert " run --brief " in told(client, "Bash", {"command": each})["updatedInput"]["command"]
    if client == "codex":
        assert " run --brief " in told(client, "shell_command", {"command": line})["updatedInput"]["command"]
    assert runs() == []


def test_an_edit_that_failed_leaves_nothing(told: Answer, project: Path, home: Path) -> None:
    (project / "a.py").write_text("one\n")
    for name, tool, tool_input in TOOLS:
        told(name, tool, placed(tool_input, project), "1")
        told(name, tool, placed(tool_input, project), "1", after=True)
    assert runs() == []
    assert os.listdir(home / ".local/state/fumehood/edits") == []
    assert os.listdir(home / ".local/state/fumehood/runs") == []


def test_an_edit_that_goes_on_is_not_taken_for_a_lost_run(told: Answer, project: Path, cli: Any) -> None:
    assert told("claude", "Write", {"file_path": f"{project}/a", "content": ""}, "1") == {}
    assert os.listdir(places().edits)
    assert "nothing has run here yet" in cli("log").stdout
    assert "every run's directory is recorded" in cli("doctor").stdout


ASKING_MODES = ("default", "acceptEdits")
HELD = [".git/hooks/pre-commit", ".claude/settings.json", ".vscode/tasks.json", "../outside.txt", "~/.bashrc", "out"]


@pytest.mark.parametrize("path", HELD)
@pytest.mark.parametrize(("client", "tool"), [("claude", "Write"), ("copilot", "create"), ("gemini", "write_file")])
def test_what_would_be_held_is_put_to_the_person_or_denied(
    told: Answer, project: Path, home: Path, client: str, tool: str, path: str
) -> None:
    (project / "out").symlink_to(home)
    fields = {"file_path": path, "path": path, "content": "x\n", "file_text": "x\n"}
    answer = told(client, tool, {key: fields[key] for key in ("file_path", "content")}
                  if client != "copilot" else {key: fields[key] for key in ("path", "file_text")}, "1")  # fmt: skip
    decision = answer.get("permissionDecision", answer.get("decision"))
    reason = answer.get("permissionDecisionReason", answer.get("reason"))
    assert decision == ("deny" if client == "gemini" else "ask")
    assert reason
    if client == "gemini":
        assert "fumehood review" in reason or "fumehood roots add" in reason


@pytest.mark.parametrize("path", [".claude/settings.json", ".mcp.json", ".git/hooks/pre-commit", "~/.bashrc"])
@pytest.mark.parametrize("mode", [*ASKING_MODES, "bypassPermissions", "auto", "plan", "dontAsk", "new", None])
def test_where_claude_code_would_not_ask_a_person_what_would_be_held_is_denied(
    told: Answer, path: str, mode: str | None
) -> None:
    answer = told("claude", "Write", {"file_path": path, "content": "x\n"}, "1", permission_mode=mode)
    is_asked = mode in ASKING_MODES
    assert answer["permissionDecision"] == ("ask" if is_asked else "deny")
    reason = answer["permissionDecisionReason"]
    assert is_asked or (f"in the mode {mode!r}" in reason and "fumehood r" in reason), "and what the person can do"
    assert told("claude", "Write", {"file_path": "a.py", "content": "x\n"}, "2", permission_mode=mode) == {}


def test_a_patch_that_would_be_held_is_denied_in_codex_where_a_question_lets_it_through(told: Answer) -> None:
    patch = "*** Begin Patch\n*** Add File: .git/hooks/pre-commit\n+x\n*** End Patch"
    for tool, command in (("apply_patch", patch), ("Bash", f"apply_patch <<'EOF'\n{patch}\nEOF")):
        answer = told("codex", tool, {"command": command}, "1")
        assert answer["permissionDecision"] == "deny"
        assert "git" in answer["permissionDecisionReason"]
    assert told("codex", "apply_patch", {"command": "rm -rf ."}, "1")["permissionDecision"] == "deny"


@pytest.mark.parametrize("path", [None, "", " /etc/passwd", "a\0b", 7])
def test_an_edit_that_names_no_file_is_denied(told: Answer, path: object) -> None:
    assert told("claude", "Write", {"file_path": path, "content": "x"}, "1")["permissionDecision"] == "deny"


def test_an_edit_that_says_in_two_ways_what_a_file_will_hold_is_not_believed(told: Answer, project: Path) -> None:
    (project / ".git").mkdir()
    (project / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (project / ".git/config").write_text("[core]\n")
    fields = {"file_path": ".git/config", "old_string": "[core]", "new_string": "[core]\n[user]\n\tname = me"}
    assert told("claude", "Edit", fields, "1") == {}
    assert told("claude", "Edit", {**fields, "content": "[core]\n"}, "2")["permissionDecision"] == "ask"


def test_several_pieces_are_judged_by_what_they_come_to(told: Answer, project: Path) -> None:
    (project / "package.json").write_text('{"name": "one"}\n')
    pieces = [("one", "two"), ('"two"', '"two", "eslintConfig": {"rules": {}}')]

    def edits(*pairs: tuple[str, str]) -> dict[str, Any]:
        return {"file_path": "package.json", "edits": [{"old_string": a, "new_string": b} for a, b in pairs]}

    assert told("claude", "MultiEdit", edits(*pieces), "1") == {}
    evil = (*pieces, ('"rules": {}', '"extends": "./evil.js"'))
    assert told("claude", "MultiEdit", edits(*evil), "2")["permissionDecision"] == "ask"
    assert told("claude", "MultiEdit", edits(("three", "four"), *pieces), "3")["permissionDecision"] == "ask"
    assert told("claude", "MultiEdit", {**edits(), "file_path": ".envrc"}, "4")["permissionDecision"] == "ask"


def test_an_edit_of_a_file_with_other_names_is_put_to_the_person(told: Answer, project: Path) -> None:
    (project / ".git/hooks").mkdir(parents=True)
    (project / ".git/hooks/pre-commit").write_text("#!/bin/sh\n")
    (project / "notes.txt").hardlink_to(project / ".git/hooks/pre-commit")
    answer = told("claude", "Write", {"file_path": "notes.txt", "content": "x"}, "1")
    assert answer["permissionDecision"] == "ask"
    assert "notes.txt is a file that has another name" in answer["permissionDecisionReason"]
    patch = "*** Begin Patch\n*** Delete File: notes.txt\n*** End Patch"
    assert told("codex", "apply_patch", {"command": patch}, "2") == {}


def test_where_changes_are_held_an_edit_is_put_to_the_person(
    told: Answer, home: Path, project: Path
) -> None:
    config = home / ".config/fumehood/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('apply = "hold"\n')
    answer = told("claude", "Write", {"file_path": str(project / "a"), "content": "x"}, "1")
    assert answer["permissionDecision"] == "ask"
    assert "held" in answer["permissionDecisionReason"]


def test_what_a_person_does_about_roots_counts_for_the_next_edit(
    told: Answer, project: Path, test_directory: Path, cli: Any
) -> None:
    beside = test_directory / "beside"
    beside.mkdir()
    fields = {"file_path": str(beside / "a"), "content": "x"}
    assert told("claude", "Write", {"file_path": str(project / "a"), "content": "x"}, "1") == {}
    assert told("claude", "Write", fields, "2")["permissionDecision"] == "ask"
    store = OpenedStore()
    store.projects.add_root(store.projects.open(str(project)), str(beside))
    assert told("claude", "Write", fields, "3") == {}
    assert cli("roots", "remove", str(beside)).returncode == 0
    assert told("claude", "Write", fields, "4")["permissionDecision"] == "ask"
    store.close()


def test_edits_that_nobody_looks_at_are_runs_in_their_order(told: Answer, project: Path, cli: Any) -> None:
    file = project / "a"
    file.write_text("0")
    fields = {"file_path": str(file), "content": "x"}
    for number in range(20):
        told("claude", "Write", fields, str(number))
        file.write_text(f"{number + 1}")
        told("claude", "Write", fields, str(number), after=True)
    # Two at once: the second is done when the first one is not.
    told("claude", "Write", fields, "first")
    told("claude", "Write", fields, "second")
    file.write_text("second")
    told("claude", "Write", fields, "second", after=True)
    file.write_text("first")
    told("claude", "Write", fields, "first", after=True)
    assert len(runs()) == 22
    cli("undo")
    assert file.read_text() == "second"
    cli("undo", "--session", "claude-s")
    assert file.read_text() == "0"


@pytest.mark.namespaces
def test_a_server_sees_an_edit_from_the_next_command_on(told: Answer, project: Path, sandbox: Sandbox) -> None:
    file = project / "page"
    file.write_text("old\n")
    fields = {"file_path": str(file), "content": "new\n"}
    with sandbox.session("claude-s").start("while read -r line; do cat page; done") as server:
        server.stdin.write("\n")
        assert server.stdout.readline() == "old\n"
        told("claude", "Write", fields, "1")
        (project / "beside").write_text("new\n")
        os.replace(project / "beside", file)  # as most editors do
        told("claude", "Write", fields, "1", after=True)
        assert sandbox.run("true").exit_code == 0
        server.stdin.write("\n")
        assert server.stdout.readline() == "new\n"
