"""`fumehood setup CLIENT`: a client's own settings get the hook or the server, and lose it again, nothing else."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fumehood
from at_terminal import Terminal
from conftest import command_line, need
from fumehood.core import json_text
from fumehood.faces.cli.hook_clients import CLIENTS

Cli = Callable[..., subprocess.CompletedProcess[str]]

FILES = {
    "claude": ".claude/settings.json", "codex": ".codex/config.toml", "gemini": ".gemini/settings.json",
    "copilot": ".copilot/hooks/fumehood.json", "opencode": ".config/opencode/plugin/fumehood.js",
    "cursor": ".cursor/hooks.json", "vscode": ".config/Code/User/mcp.json",
}  # fmt: skip
SERVERS = FILES | {
    "claude": ".claude.json", "copilot": ".copilot/mcp-config.json", "opencode": ".config/opencode/opencode.json",
    "cursor": ".cursor/mcp.json",
}  # fmt: skip
CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
CLAUDE = """{
  // what I like
  "model": "opus",
  "hooks": {
    "PreToolUse": [
      { "matcher": "Write", "hooks": [ { "type": "command", "command": "mine" } ] } // stays
    ]
  }
}
"""
CODEX = """# mine
model = "gpt"   # a comment

[[hooks.PreToolUse]]
matcher = "apply_patch"
hooks = [{ type = "command", command = "mine" }]

[tui]
theme = "dark"
"""


def read(path: Path) -> Any:
    """What a file says; a file that is not needed any more is gone."""
    if path.suffix == ".js" or not path.exists():
        return path.exists() and path.read_text()
    return tomllib.loads(path.read_text()) if path.suffix == ".toml" else json.loads(path.read_text())


def files_below(home: Path) -> dict[str, str]:
    """What every file below a home says, but our own."""
    files = (path for path in home.rglob("*") if path.is_file() and "fumehood" not in path.relative_to(home).parts)
    return {str(path.relative_to(home)): path.read_text() for path in files}


@pytest.mark.parametrize("client", FILES)
@pytest.mark.parametrize("how", [(), ("--mcp",)])
def test_a_client_is_connected_once_and_taken_out(cli: Cli, home: Path, client: str, how: tuple[str, ...]) -> None:
    done = cli("setup", client, "--yes", *how)
    assert done.returncode == 0, done.stderr
    path = home / (SERVERS if how else FILES)[client]
    text = path.read_text()
    assert "fumehood" in text
    assert "mcp" in text if how or client == "vscode" else f"hook --client {client} || exit 2" in text
    assert read(path)
    assert path.stat().st_mode & 0o77 == 0
    again = cli("setup", client, "--yes", *how)
    assert "nothing to change" in again.stdout
    assert path.read_text() == text
    assert len(os.listdir(path.parent)) == (1 if path.parent != home else len(os.listdir(home)))
    assert cli("setup", client, "--yes", "--remove", *how).returncode == 0
    assert files_below(home) == {}


@pytest.mark.long
def test_what_is_written_for_a_server_starts_one(cli: Cli, home: Path, project: Path) -> None:
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    written = {}
    for client in ("claude", "gemini", "copilot", "cursor", "vscode"):
        assert cli("setup", client, "--mcp", "--yes").returncode == 0
        settings = json.loads((home / SERVERS[client]).read_text())
        entry = settings["servers" if client == "vscode" else "mcpServers"]["fumehood"]
        written[json.dumps([entry["command"], *entry["args"]]), json.dumps(entry["env"])] = client
    # For most clients it is the same.
    for (line, variables), client in written.items():
        # A client passes little more on than these; the checkout's environment is not to be made anew for the test.
        passed_on = {name: os.environ[name] for name in ("HOME", "PATH")} | json.loads(variables)
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": client, "version": "1"}}
        asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        done = subprocess.run(
            json.loads(line), input=f"{asked}\n", env=passed_on | {"XDG_CACHE_HOME": CACHE}, cwd=project,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (client, done.stderr)
        assert json.loads(done.stdout)["result"]["serverInfo"]["name"] == "fumehood", client


def test_a_persons_own_settings_and_comments_stay(cli: Cli, home: Path) -> None:
    for client, before, comment in (("claude", CLAUDE, "// stays"), ("codex", CODEX, "# a comment")):
        path = home / FILES[client]
        path.parent.mkdir()
        path.write_text(before)
        path.chmod(0o644)
        done = cli("setup", client, "--yes")
        assert done.returncode == 0, done.stderr
        assert "+" in done.stdout
        after = path.read_text()
        assert comment in after
        assert "mine" in after
        assert path.stat().st_mode & 0o777 == 0o644
        (backup,) = path.parent.glob("*.before-fumehood-*")
        assert backup.read_text() == before
        cli("setup", client, "--yes", "--remove")
        assert path.read_text() == before
        assert not backup.exists()


@pytest.mark.parametrize(
    ("client", "variable", "moved", "options"),
    [
        ("claude", "CLAUDE_CONFIG_DIR", "settings.json", []),
        ("claude", "CLAUDE_CONFIG_DIR", ".claude.json", ["--mcp"]),
        ("codex", "CODEX_HOME", "config.toml", []),
        ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json", []),
        ("copilot", "COPILOT_HOME", "mcp-config.json", ["--mcp"]),
    ],
)
def test_a_client_that_a_variable_moves_is_connected_where_it_is(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch, client: str, variable: str, moved: str, options: list[str]
) -> None:
    monkeypatch.setenv(variable, str(home / "moved"))
    assert cli("setup", client, "--yes", *options).returncode == 0
    assert "fumehood" in (home / "moved" / moved).read_text()
    assert not any((home / name).exists() for name in (FILES[client], SERVERS[client]))


@pytest.mark.parametrize(
    "text", ["", "{}", '{"hooks":{},\n "model":"opus"  }', '{"hooks": {"PreToolUse": []}} // mine\n']
)
def test_removal_leaves_a_file_as_it_was_written_before(cli: Cli, home: Path, text: str) -> None:
    path = home / FILES["claude"]
    path.parent.mkdir()
    path.write_text(text)
    before = files_below(home)
    for _again in range(2):
        assert cli("setup", "claude", "--yes").returncode == 0
        assert cli("setup", "claude", "--yes", "--remove").returncode == 0
        assert files_below(home) == before


@pytest.mark.parametrize("text", [None, CODEX])
@pytest.mark.parametrize("order", [("hook", "mcp"), ("mcp", "hook")])
def test_two_ways_in_one_file_are_removed_in_either_order(
    cli: Cli, home: Path, text: str | None, order: tuple[str, str]
) -> None:
    path = home / FILES["codex"]
    path.parent.mkdir()
    if text is not None:
        path.write_text(text)
    before = files_below(home)
    ways = {"hook": ("setup", "codex", "--yes"), "mcp": ("setup", "codex", "--yes", "--mcp")}
    for way in ways.values():
        assert cli(*way).returncode == 0
    for name in order:
        assert cli(*ways[name], "--remove").returncode == 0
    assert {name: text.split() for name, text in files_below(home).items() if ".before-fumehood-" not in name} == {
        name: text.split() for name, text in before.items()
    }


def test_what_a_person_changed_after_the_setup_stays_when_it_is_removed(cli: Cli, home: Path) -> None:
    path = home / FILES["claude"]
    path.parent.mkdir()
    path.write_text(CLAUDE)
    cli("setup", "claude", "--yes")
    path.write_text(path.read_text().replace('"opus"', '"sonnet"'))
    done = cli("setup", "claude", "--yes", "--remove")
    before = json_text.parse_json(CLAUDE).as_python()
    assert json_text.parse_json(path.read_text()).as_python() == before | {"model": "sonnet"}
    assert [each.read_text() for each in path.parent.glob("*.before-fumehood-*")] == [CLAUDE], done.stdout


def test_each_line_of_the_difference_is_one_though_the_file_ends_without_its_end(cli: Cli, home: Path) -> None:
    (home / ".claude").mkdir()
    (home / ".claude/settings.json").write_text('{"a": 1}')
    shown = cli("setup", "claude", "--yes").stdout
    assert '\n-{"a": 1}\n\\ No newline at end of file\n+{"a": 1, "hooks": {\n' in shown


def test_settings_that_are_a_directory_are_told_so(cli: Cli, home: Path) -> None:
    (home / ".claude/settings.json").mkdir(parents=True)
    assert f"ERROR: {home}/.claude/settings.json can't be read: Is a directory\n" in cli("setup", "claude").stderr


def test_a_backup_is_not_written_over(cli: Cli, home: Path) -> None:
    path = home / FILES["codex"]
    path.parent.mkdir()
    path.write_text(CODEX)
    for _quickly in range(3):
        cli("setup", "codex", "--yes")
        cli("setup", "codex", "--mcp", "--yes")
        path.write_text(path.read_text() + "# more\n")
        cli("setup", "codex", "--mcp", "--yes", "--remove")
    assert CODEX in [each.read_text() for each in path.parent.glob("*.before-fumehood-*")]


def test_an_older_entry_of_ours_is_replaced_and_not_doubled(cli: Cli, home: Path) -> None:
    path = home / FILES["claude"]
    path.parent.mkdir()
    hook = {"type": "command", "command": "/gone/fumehood hook --client claude || exit 2"}
    old = {"matcher": "Bash", "hooks": [hook]}
    path.write_text(json.dumps({"hooks": {"PreToolUse": [old]}, "other": 1}))
    assert cli("setup", "claude", "--yes").returncode == 0
    settings = json.loads(path.read_text())
    assert settings["other"] == 1
    (group,) = settings["hooks"]["PreToolUse"]
    assert not group["hooks"][0]["command"].startswith("/gone/")


OLDER = {
    "claude": json.dumps({"hooks": {"PreToolUse": [{"matcher": "Bash|Monitor", "hooks": [
        {"type": "command", "command": "/gone/fumehood hook --client claude --ask || exit 2"}]}]}}),
    "codex": CODEX + """
[[hooks.PreToolUse]]
matcher = "^Bash$"

[[hooks.PreToolUse.hooks]]
type = "command"
command = "/gone/fumehood hook --client codex --ask || exit 2"
""",
    "gemini": json.dumps({"hooks": {"BeforeTool": [{"matcher": "run_shell_command", "hooks": [
        {"type": "command", "command": "/gone/fumehood hook --client gemini --ask || exit 2"}]}]}}),
}  # fmt: skip


@pytest.mark.parametrize("client", OLDER)
def test_the_hook_is_asked_about_every_tool_and_older_settings_are_mended(cli: Cli, home: Path, client: str) -> None:
    path = home / FILES[client]
    path.parent.mkdir()
    path.write_text(OLDER[client])
    done = cli("setup", client, "--yes")
    assert done.returncode == 0, done.stderr
    event = next(iter(read(path)["hooks"].values()))
    (ours,) = [group for group in event if "fumehood" in group["hooks"][0]["command"]]
    assert ours["matcher"] == "*"
    command = ours["hooks"][0]["command"]
    assert not command.startswith("/gone/")
    assert command.endswith(f" hook --client {client} --ask || exit 2"), "what a person added is lost"
    assert path.read_text().count("--ask || exit 2") == 1 + len(CLIENTS[client].after)
    again = cli("setup", client, "--yes")
    assert "nothing to change" in again.stdout
    cli("setup", client, "--yes", "--remove")
    assert "fumehood" not in str(read(path))


@pytest.mark.parametrize("client", ["claude", "codex", "gemini", "copilot", "cursor"])
def test_after_a_tool_the_hook_is_asked_about_edits_alone(cli: Cli, home: Path, client: str) -> None:
    cli("setup", client, "--yes")
    hooks = read(home / FILES[client])["hooks"]
    assert list(hooks) == [CLIENTS[client].before, *CLIENTS[client].after]
    for event in CLIENTS[client].after:
        (hook,) = hooks[event]
        assert set(hook["matcher"].split("|")) == {*CLIENTS[client].edits, *CLIENTS[client].patches}


def test_nothing_is_written_without_a_word(cli: Cli, home: Path) -> None:
    refused = cli("setup", "claude")
    assert refused.returncode == 125
    assert "--yes" in refused.stderr
    assert "+" in refused.stdout
    printed = cli("setup", "codex", "--print", "--mcp")
    assert tomllib.loads(printed.stdout)["mcp_servers"]["fumehood"]["required"] is True
    (file,) = json.loads(cli("setup", "gemini", "--print", "--json").stdout)["files"]
    assert list(json.loads(file["text"])) == ["hooks"]
    for name in (".claude", ".codex", ".gemini"):
        assert not (home / name).exists()


def test_what_codex_needs_besides_is_said(cli: Cli, home: Path) -> None:
    assert "/hooks" in cli("setup", "codex", "--yes").stdout
    told = json.loads(cli("setup", "codex", "--mcp", "--yes", "--json").stdout)
    assert told["changed"]
    assert "required = true" in told["notes"][0]


@pytest.mark.parametrize(("client", "text"), [("claude", "{ nonsense"), ("codex", "a = [")])
def test_a_file_that_cannot_be_read_is_left_alone(cli: Cli, home: Path, client: str, text: str) -> None:
    path = home / FILES[client]
    path.parent.mkdir()
    path.write_text(text)
    done = cli("setup", client, "--yes")
    assert done.returncode == 125
    assert str(path) in done.stderr
    assert path.read_text() == text


def test_a_linked_file_is_changed_where_it_lies(cli: Cli, home: Path) -> None:
    (home / "dotfiles").mkdir()
    (home / "dotfiles/settings.json").write_text("{}\n")
    (home / ".claude").mkdir()
    (home / FILES["claude"]).symlink_to("../dotfiles/settings.json")
    assert cli("setup", "claude", "--yes").returncode == 0
    assert (home / FILES["claude"]).is_symlink()
    assert "fumehood" in (home / "dotfiles/settings.json").read_text()


def test_an_unknown_client_is_named(cli: Cli, home: Path) -> None:
    assert "no client emacs" in cli("setup", "emacs").stderr


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ('mcp_servers = { other = { command = "x" } } # mine\n', ("--mcp",)),
        ('features = { web = true }\nmodel = "m"\n', ("--mcp",)),
        ('[features]\nweb = true # mine\n\n[mcp_servers]\nother = { command = "x" }\n\n[tui]\na = 1\n', ("--mcp",)),
        ('hooks = { PreToolUse = [ { matcher = "a", hooks = [ { type = "command", command = "mine" } ] } ] }\n', ()),
        ("hooks = { Stop = [] }\n", ()),
        ('[hooks]\nPreToolUse = [\n  { matcher = "a", hooks = [] }, # mine\n]\n\n[tui]\na = 1\n', ()),
    ],
)
def test_inline_tables_are_added_to_and_stay_as_they_are_written(
    cli: Cli, home: Path, text: str, how: tuple[str, ...]
) -> None:
    path = home / FILES["codex"]
    path.parent.mkdir()
    path.write_text(text)
    done = cli("setup", "codex", "--yes", *how)
    assert done.returncode == 0, done.stderr
    after = read(path)
    if how:
        assert after["mcp_servers"]["fumehood"]["args"][-1] == "mcp"
        assert after["features"]["shell_tool"] is False
    else:
        assert "hook --client codex" in after["hooks"]["PreToolUse"][-1]["hooks"][0]["command"]
    assert path.read_text().count("# mine") == text.count("# mine")
    assert "nothing to change" in cli("setup", "codex", "--yes", *how).stdout
    assert cli("setup", "codex", "--yes", "--remove", *how).returncode == 0
    assert read(path) == tomllib.loads(text)


def test_a_server_closes_the_clients_own_shell_or_says_that_it_is_open(cli: Cli, home: Path) -> None:
    def notes(client: str) -> str:
        return " ".join(json.loads(cli("setup", client, "--mcp", "--yes", "--json").stdout)["notes"])

    closed = {
        "claude": (".claude/settings.json", {"permissions": {"deny": ["Bash", "Monitor"]}}),
        "codex": (".codex/config.toml", {"features": {"shell_tool": False}}),
        "gemini": (".gemini/settings.json", {"tools": {"exclude": ["run_shell_command"]}}),
        "opencode": (".config/opencode/opencode.json", {"permission": {"bash": "deny"}}),
    }
    for client, (name, expected) in closed.items():
        assert "own shell is closed" in notes(client)
        assert read(home / name).items() >= expected.items()
    for client in ("copilot", "cursor", "vscode"):
        assert "own shell stays open" in notes(client)


@pytest.mark.parametrize("client", ["claude", "codex", "gemini", "copilot", "opencode", "cursor"])
def test_where_the_hook_is_there_the_clients_shell_stays_open_and_runs_in_the_hood(
    cli: Cli, home: Path, client: str
) -> None:
    assert cli("setup", client, "--yes").returncode == 0
    before = (home / FILES[client]).read_text()
    told = json.loads(cli("setup", client, "--mcp", "--yes", "--json").stdout)
    assert not [note for note in told["notes"] if "own shell" in note]
    assert [file["path"] for file in told["files"]] == [str(home / SERVERS[client])]
    assert before in (home / FILES[client]).read_text() or client in ("codex", "gemini")


def test_what_a_person_forbade_stays_forbidden(cli: Cli, home: Path) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text('{"permissions": {"deny": ["WebFetch"], "allow": ["Read"]}}')
    assert cli("setup", "claude", "--mcp", "--yes").returncode == 0
    assert read(path)["permissions"] == {"deny": ["WebFetch", "Bash", "Monitor"], "allow": ["Read"]}
    assert cli("setup", "claude", "--mcp", "--yes", "--remove").returncode == 0
    assert read(path)["permissions"] == {"deny": ["WebFetch"], "allow": ["Read"]}


def test_a_server_that_can_not_start_is_not_written(home: Path, project: Path) -> None:
    python = os.path.realpath(sys.executable)
    has_mcp = subprocess.run([python, "-c", "import mcp"], capture_output=True, check=False).returncode == 0
    need(not has_mcp, "the interpreter without the tests' environment has the package mcp too")
    source = Path(fumehood.__file__).parent.parent
    done = subprocess.run(
        [python, "-P", "-m", "fumehood", "setup", "claude", "--mcp", "--yes"], cwd=project, capture_output=True,
        text=True, check=False, env=os.environ | {"PYTHONPATH": str(source)},
    )  # fmt: skip
    assert done.returncode == 125
    assert "can't be started" in done.stderr
    assert "needs a package that is not here: mcp" in done.stderr
    assert not (home / ".claude.json").exists()
    assert not (home / ".claude").exists()


def test_what_a_person_added_to_the_plugins_hook_stays(cli: Cli, home: Path) -> None:
    path = home / FILES["opencode"]
    assert cli("setup", "opencode", "--yes").returncode == 0
    text = path.read_text()
    path.write_text(text.replace("--client opencode", "--client opencode --hold").replace("nothing was run", "x"))
    assert cli("setup", "opencode", "--yes").returncode == 0
    assert path.read_text() == text.replace("--client opencode", "--client opencode --hold")


NAMED = {
    "claude": ('{"permissions": {"additionalDirectories": ["BESIDE"]}}', ".claude/settings.json"),
    "gemini": ('{"context": {"includeDirectories": ["BESIDE"]}}', ".gemini/settings.json"),
    "codex": ('[sandbox_workspace_write]\nwritable_roots = ["BESIDE"]\n', ".codex/config.toml"),
    "opencode": ('{"permission": {"external_directory": {"BESIDE/**": "allow"}}}', ".config/opencode/opencode.json"),
}


@pytest.mark.parametrize("client", NAMED)
def test_directories_in_a_clients_settings_are_offered_and_never_taken(
    cli: Cli, home: Path, project: Path, test_directory: Path, client: str
) -> None:
    beside = test_directory / "beside"
    beside.mkdir()
    text, name = NAMED[client]
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).write_text(text.replace("BESIDE", str(beside)))
    told = json.loads(cli("setup", client, "--yes", "--json").stdout)
    assert told["directories"] == [str(beside)]
    assert any(f"fumehood roots add {beside}" in note for note in told["notes"])
    assert json.loads(cli("roots", "list", "--json").stdout)["roots"] == [str(project)]


SWITCHES = [
    (".claude/settings.json", '{"disableAllHooks": true}', "disableAllHooks"),
    (".claude/settings.local.json", '// mine\n{"disableAllHooks": true}', "disableAllHooks"),
    (".claude/settings.json", '{"disableSkillShellExecution": false}', "disableSkillShellExecution"),
    (".github/copilot/settings.json", '{"disableAllHooks": true}', "disableAllHooks"),
    (".gemini/settings.json", '{"hooksConfig": {"enabled": false}}', "hooksConfig.enabled"),
    (".gemini/settings.json", '{"hooksConfig": {"disabled": ["fumehood"]}}', "hooksConfig.disabled"),
    (".gemini/settings.json", '{"hooks": {"enabled": false}}', "hooks.enabled"),
    (".codex/config.toml", "[features]\nhooks = false\n", "features.hooks"),
    (".codex/config.toml", "features.codex_hooks = false", "features.codex_hooks"),
    ("sub/.claude/settings.json", '{"disableAllHooks": true}', "disableAllHooks"),
    (".claude/settings.json", '{"disableAllHooks": true', "can't be read"),
]


@pytest.mark.namespaces
@pytest.mark.parametrize(("file", "text", "key"), SWITCHES)
def test_a_repository_that_switches_the_hook_off_is_named_wherever_a_person_looks(
    cli: Cli, project: Path, file: str, text: str, key: str
) -> None:
    path = project / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (project / ".git").mkdir()
    (project / "sub").mkdir(exist_ok=True)
    outputs = [
        cli("setup", "claude", "--yes", cwd=project / "sub").stdout,
        cli("status", cwd=project / "sub").stdout,
        cli("doctor", cwd=project / "sub").stdout,
        cli("run", "--brief", "--session", "one", "--", "true", cwd=project / "sub").stderr,
        cli("run", "--session", "two", "--", "true", cwd=project / "sub").stderr,
    ]
    for output in outputs:
        assert f"{file}" in output
        assert key in output
    assert "out of the hood" not in cli("run", "--brief", "--session", "one", "--", "true").stderr, "it is told once"
    (told,) = json.loads(cli("status", "--json", cwd=project / "sub").stdout)["hooks_off"]
    assert told.startswith(file)


@pytest.mark.namespaces
def test_a_project_that_switches_nothing_off_is_not_warned_about(cli: Cli, project: Path) -> None:
    for file, text in (
        (".claude/settings.json", '{"disableAllHooks": false, "hooks": {"PreToolUse": []}}'),
        (".claude/settings.local.json", ""),
        (".gemini/settings.json", '{"hooksConfig": {"enabled": true, "disabled": []}, "hooks": {"BeforeTool": []}}'),
        (".codex/config.toml", "[features]\nhooks = true\n"),
    ):
        (project / file).parent.mkdir(exist_ok=True)
        (project / file).write_text(text)
    assert "WARNING" not in cli("setup", "claude", "--yes").stdout
    assert json.loads(cli("status", "--json").stdout)["hooks_off"] == []
    assert "switches them off" in cli("doctor").stdout
    assert cli("run", "--brief", "--session", "one", "--", "true").stderr == ""


def test_claude_code_is_told_not_to_run_the_lines_of_skills_unless_a_person_decided_that(cli: Cli, home: Path) -> None:
    path = home / ".claude/settings.json"
    cli("setup", "claude", "--yes")
    assert read(path)["disableSkillShellExecution"] is True
    cli("setup", "claude", "--remove", "--yes")
    assert not path.exists()
    path.write_text('{"disableSkillShellExecution": false}')
    cli("setup", "claude", "--yes")
    assert read(path)["disableSkillShellExecution"] is False
    cli("setup", "claude", "--remove", "--yes")
    assert path.read_text() == '{"disableSkillShellExecution": false}'


def test_the_end_of_input_is_no_yes(home: Path, project: Path) -> None:
    with Terminal([*command_line(), "setup", "claude"], project, columns=200) as screen:
        screen.wait_for("write this?")
        screen.type("\x04")
        assert screen.end() == 0
    assert not (home / ".claude/settings.json").exists()


@pytest.mark.long
def test_a_person_is_asked_about_directories_that_the_settings_of_a_project_name(
    home: Path, project: Path, test_directory: Path
) -> None:
    for name in ("beside", "other"):
        (test_directory / name).mkdir()
    (project / ".claude").mkdir()
    (project / ".claude/settings.json").write_text('{"permissions": {"additionalDirectories": ["../beside", "/usr"]}}')
    (project / ".claude/settings.local.json").write_text('{"permissions": {"additionalDirectories": ["../other"]}}')
    with Terminal([*command_line(), "setup", "claude"], project, columns=200) as screen:
        screen.wait_for("write this?")
        screen.type("\n")
        for name, key in (("beside", "y"), ("other", "n")):
            screen.wait_for(f"another directory? {test_directory}/{name}")
            while not screen.seen.endswith("> "):
                screen.more()
            screen.type(f"{key}\n")
        screen.wait_for(f"fumehood roots add {test_directory}/other")
        assert screen.end() == 0
    listed = subprocess.run([*command_line(), "roots", "list"], cwd=project, capture_output=True, text=True, check=True)
    assert listed.stdout.splitlines()[:2] == [str(project), str(test_directory / "beside")]
