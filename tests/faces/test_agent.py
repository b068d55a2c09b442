"""`fumehood agent`: a whole agent in the hood, with its own credentials, hosts and directories, and nobody else's."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

import fumehood
from at_terminal import Terminal
from conftest import command_line
from servers import Web

pytestmark = pytest.mark.namespaces

SOURCES = Path(fumehood.__file__).parent.parent
LOGIN = ".claude/.credentials.json"


@pytest.fixture
def agent(cli, home):
    """Run `claude`, which is a script here, in the hood."""
    programs = home / "bin"
    programs.mkdir()
    (home / ".claude").mkdir()
    (home / LOGIN).write_text("first login")

    def run(script, *options, name="claude", arguments=(), **more):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
        env = {"PATH": f"{programs}:{os.environ['PATH']}", **more.pop("env", {})}
        return cli("agent", *options, name, *arguments, env=env, **more)

    return run


def changed(path: Path, text: str) -> None:
    """Write a file so that its time is another one, however coarse times are."""
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before + 10**10, before + 10**10))


def test_what_it_does_is_one_run_of_a_session_and_can_be_taken_back(agent, cli, project):
    (project / "notes.txt").write_text("keep me")
    done = agent('echo "$1 $2"; rm notes.txt; echo x >made; exit 7', arguments=("-p", "go on"))
    assert (done.returncode, done.stdout) == (7, "-p go on\n")
    run = json.loads(cli("log", "--json").stdout)["runs"][-1]
    assert run["session"].startswith("claude-")
    assert run["command"] == "claude -p 'go on'"
    assert os.listdir(project) == ["made"]
    assert cli("undo", "--session", run["session"]).returncode == 0
    assert os.listdir(project) == ["notes.txt"]


def test_all_that_it_does_can_be_in_a_draft(agent, cli, project):
    cli("draft", "new", "idea")
    assert agent("echo x >made; ls", "--draft", "idea").stdout == "made\n"
    assert os.listdir(project) == []
    assert cli("draft", "apply", "idea").returncode == 0
    assert os.listdir(project) == ["made"]


def test_it_has_its_own_credentials_and_no_other_secret(agent, home):
    (home / ".claude.json").write_text('{"oauthAccount": "mine", "projects": {"/another": 1}, /* a note */}')
    (home / ".claude/history.jsonl").write_text("what was said elsewhere")
    (home / ".codex").mkdir()
    (home / ".codex/auth.json").write_text("another login")
    keys = {"ANTHROPIC_API_KEY": "sk-ours", "OPENAI_API_KEY": "sk-theirs"}
    told = agent("cd; find . -type f | sort; cat .claude/.c*; env", env=keys).stdout
    assert "first login" in told
    assert '"oauthAccount": "mine"' in told
    assert "sk-ours" in told
    for secret in ("another", "elsewhere", "history.jsonl", "sk-theirs"):
        assert secret not in told
    assert f"CLAUDE_CONFIG_DIR={home}/.claude\n" in told


def test_what_it_keeps_is_there_in_its_next_session_and_never_in_the_home(agent, home):
    line = "cat ~/.claude/settings.json; echo planted >~/.claude/settings.json"
    assert agent(line).stdout == ""
    assert agent(line).stdout == "planted\n"
    assert os.listdir(home / ".claude") == [".credentials.json"]


def test_what_it_keeps_is_not_seen_from_another_project(agent, test_directory):
    other = test_directory / "other"
    other.mkdir()
    agent("echo planted >~/.claude/settings.json")
    assert agent("cd ~/.claude; ls -A", cwd=other).stdout == ".credentials.json\n"


def test_a_login_that_it_renewed_stays_until_the_persons_own_changes(agent, home):
    agent(f"echo renewed >~/{LOGIN}")
    assert agent(f"cat ~/{LOGIN}").stdout == "renewed\n"
    changed(home / LOGIN, "second login")
    assert agent(f"cat ~/{LOGIN}").stdout == "second login"
    assert (home / LOGIN).read_text() == "second login"


def test_keys_of_a_file_that_it_writes_all_the_time_are_given_once(agent, home):
    settings = home / ".claude.json"
    settings.write_text('{"oauthAccount": "mine"}')
    agent("echo '{\"own\": 1}' >~/.claude/.claude.json")
    changed(settings, '{"oauthAccount": "another"}')
    assert agent("cat ~/.claude/.claude.json").stdout == '{"own": 1}\n'


def test_a_link_that_it_left_in_the_place_of_its_credentials_is_not_followed(agent, home):
    victim = home / "letter"
    victim.write_text("dear")
    agent(f"cd ~/.claude; ln -sf {victim} .credentials.json; chmod 0 .")
    changed(home / LOGIN, "second login")
    assert agent(f"cat ~/{LOGIN}").stdout == "second login"
    assert victim.read_text() == "dear"
    agent(f"cd ~/.claude; rm {os.path.basename(LOGIN)}; mkdir -p {os.path.basename(LOGIN)}/a")
    changed(home / LOGIN, "third login")
    assert agent(f"cat ~/{LOGIN}").stdout == "third login"


def test_a_variable_that_moves_its_directory_leads_to_the_persons_login(agent, test_directory):
    moved = test_directory / "moved"
    moved.mkdir()
    (moved / ".credentials.json").write_text("moved login")
    (moved / ".claude.json").write_text('{"theme": "dark"}')
    told = agent("cat $CLAUDE_CONFIG_DIR/.c*; ls -A ~", env={"CLAUDE_CONFIG_DIR": str(moved)}).stdout
    assert "moved login" in told
    assert '"theme": "dark"' in told
    assert ".claude\n" in told
    assert sorted(os.listdir(moved)) == [".claude.json", ".credentials.json"]


def test_its_hosts_are_granted_and_no_others(agent, cli):
    server = Web()
    place = f"127.0.0.1:{server.port}"
    line = f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{server.port} && echo reached'"
    try:
        assert "reached" not in agent(line).stdout
        assert agent(line, "--allow-host", place).stdout == "reached\n"
    finally:
        server.close()
    run = json.loads(cli("show", "last", "--json").stdout)
    assert run["network"] == "hosts"
    assert {"api.anthropic.com:443", place} <= set(run["hosts"])


def test_a_variable_that_looks_like_a_secret_can_be_kept_by_name(agent):
    keys = {"MY_API_KEY": "sk-one", "OTHER_API_KEY": "sk-two"}
    told = agent("env", "--keep", "MY_API_KEY", env=keys).stdout
    assert "sk-one" in told
    assert "sk-two" not in told


def test_its_own_arguments_come_before_the_persons(agent):
    told = agent('for each; do echo "$each"; done', name="codex", arguments=("exec", "go")).stdout.splitlines()
    assert told == [
        "-c", 'sandbox_mode="danger-full-access"', "-c", "check_for_update_on_startup=false", "exec", "go",
    ]  # fmt: skip


def test_a_program_without_a_profile_needs_two_dashes(agent, cli):
    done = agent("echo ran", name="stranger")
    assert done.returncode == 125
    assert "there is no profile for stranger" in done.stderr
    assert "fumehood agent -- stranger" in done.stderr
    assert cli("agent", "--", "echo a b; exit 3").returncode == 3
    assert cli("agent", "--", "echo", "a  b").stdout == "a  b\n"


def test_a_person_adds_to_a_profile_and_makes_their_own(agent, home):
    path = home / ".config/fumehood/config.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        '[[agent]]\nname = "claude"\nhosts = ["gateway.example.org"]\nenvironment.keep = ["GATEWAY_KEY"]\n'
        '[[agent]]\nname = "aider"\nstate = ["~/.aider"]\n'
    )
    keys = {"GATEWAY_KEY": "sk-gate", "ANTHROPIC_API_KEY": "sk-ours"}
    told = agent("env", "--json", env=keys)
    report = json.loads(told.stdout)
    assert {"gateway.example.org", "api.anthropic.com:443"} <= set(report["hosts"])
    assert "sk-gate" in report["output"]
    assert "sk-ours" in report["output"]
    agent("echo x >~/.aider/kept", name="aider")
    assert agent("cat ~/.aider/kept", name="aider").stdout == "x\n"


def test_every_profile_is_printed_as_it_would_stand_in_the_configuration(cli, home):
    printed = cli("agent").stdout
    assert re.findall(r'^name = "(\w+)"$', printed, re.MULTILINE) == [
        "claude", "codex", "gemini", "copilot", "opencode",
    ]  # fmt: skip
    path = home / ".config/fumehood/config.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(printed)
    assert cli("config", "check").returncode == 0
    assert cli("agent").stdout.count("api.anthropic.com:443") == 1, "what is there already is not added"


def test_what_it_would_see_is_explained(agent, home):
    told = agent("true", "--explain").stdout
    assert re.search(rf"{re.escape(str(home))}/\.claude .*can be written  \(kept for the agent\)", told)
    assert "api.anthropic.com:443" in told


def test_it_works_where_the_home_is_visible_and_where_writes_are_captured_by_copying(agent, home):
    path = home / ".config/fumehood/config.toml"
    path.parent.mkdir(exist_ok=True)
    (home / LOGIN).unlink()
    (home / ".claude").rmdir()
    for settings in ('home = "visible"', 'capture = "copy"'):
        path.write_text(settings)
        assert agent("cat ~/.claude/kept; echo x >>~/.claude/kept").returncode == 0
    assert agent("cat ~/.claude/kept").stdout == "x\nx\n"
    assert not (home / ".claude").exists()


def test_a_project_in_its_own_directory_is_refused(agent, home):
    done = agent("echo ran", cwd=home / ".claude")
    assert done.returncode == 125
    assert "own" in done.stderr
    assert done.stdout == ""


def test_at_a_terminal_it_has_one(agent, home, project):
    agent("true")
    (home / "bin/claude").write_text('#!/bin/sh\ntest -t 0 && read word && echo "got $word"; exit 5\n')
    env = {"PATH": f"{home}/bin:{os.environ['PATH']}"}
    with Terminal([*command_line(), "agent", "claude"], cwd=project, env=env) as terminal:
        terminal.type("hello\r")
        terminal.end()
        assert "got hello" in terminal.seen
        assert terminal.process.returncode == 5


def test_our_hook_lets_everything_go_on_in_there(agent, cli, home):
    sources = home / "sources"  # a checkout below /tmp is not in sight
    shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
    path = home / ".config/fumehood/config.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'show = ["{sources}"]')
    call = json.dumps({"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}})
    done = agent(f"PYTHONPATH={sources} python3 -m fumehood hook --client claude || exit 2", input=call)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "fumehood" in cli("hook", "--client", "claude", input=call).stdout, "as it does not outside"


def commands(cli):
    """What the log says of an agent's commands, the earliest first: the line, its status, what it changed."""
    runs = json.loads(cli("log", "--json").stdout)["runs"][::-1]
    return [
        (run["command"], run["exit_code"], {f"{change['change']} {change['path']}" for change in run["paths"]})
        for run in runs if run["act"] == "checkpoint"
    ]  # fmt: skip


def test_each_of_its_shell_commands_can_be_a_run_of_its_own(agent, cli, project):
    (project / "notes.txt").write_text("keep me")
    before = os.listdir(project)
    done = agent(
        "echo 1 >own; bash -c 'cat own; rm notes.txt; sh -c \"echo 2 >>own\"; exit 3'; echo $?\n"
        'echo 3 >>own; sh -ec \'mkdir d; echo "$0 $1" >d/f\' name word; bash -l -c "cat own"',
        "--each-command", name="codex",
    )  # fmt: skip
    assert done.stdout == "1\n3\n1\n2\n3\n", done.stderr
    assert commands(cli) == [
        ("checkpoint of codex", None, {"added own"}),
        ("cat own; rm notes.txt; sh -c \"echo 2 >>own\"; exit 3", 3, {"deleted notes.txt", "modified own"}),
        ("checkpoint of codex", None, {"modified own"}),
        ('mkdir d; echo "$0 $1" >d/f', 0, {"added d", "added d/f"}),
        ("cat own", 0, set()),
    ]
    assert (project / "d/f").read_text() == "name word\n"
    runs = {run["command"]: run for run in json.loads(cli("log", "--json").stdout)["runs"]}
    assert cli("undo", runs['mkdir d; echo "$0 $1" >d/f']["run"]).returncode == 0
    assert sorted(os.listdir(project)) == ["own"]
    assert cli("undo", "--session", runs["cat own"]["session"]).returncode == 0
    assert os.listdir(project) == before


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("claude", "source /dev/null || true && eval ", " < /dev/null && pwd -P >| /tmp/cwd"),
        ("gemini", "shopt -u nullglob\n(\n  trap 'jobs -p >/tmp/jobs' EXIT\n", "\n)\n__code=$?\nexit $__code"),
    ],
)
def test_a_command_is_called_as_the_model_typed_it(agent, cli, name, before, after):
    line = """printf "%s\\n" "it's" >f && cat f"""
    given = before + (shlex.quote(line) if name == "claude" else line) + after
    done = agent(f"bash -c 'echo x >own'; bash -c {shlex.quote(given)}", "--each-command", name=name)
    assert done.stdout == "it's\n"
    assert commands(cli) == [(f"checkpoint of {name}", None, {"added own"}), (line, 0, {"added f"})]


def test_a_shell_line_of_the_agents_own_is_no_command(agent, cli):
    agent("bash -c 'set -x; __codex_snapshot_a=1; echo x >a'; bash -c 'echo x >b'", "--each-command", name="codex")
    assert commands(cli) == [("checkpoint of codex", None, {"added a"}), ("echo x >b", 0, {"added b"})]


def test_shells_are_as_they_would_be_without_their_commands_being_told_apart(agent, cli):
    script = """
        echo 'echo fed $1' | sh -s a; printf 'echo "$#"' >script; sh ./script b c; sh <script; sh -c 'sh -c "echo \\$#"'
        echo in | bash -o pipefail -c 'cat; false | true'; echo $?
        bash --norc -ceu 'echo "$0|$1|$#"' zero 'one  two'; bash -c 'echo "$# ${1-none}"'; bash +e -c 'false; echo on'
        sh -c 'exec sh -c "exit 4"'; echo $?; sh -c 'if'; echo $?; sh -c 'kill -9 $$'; echo $?
        sh -c 'trap "echo own" EXIT; exit 5'; echo $?; bash -c 'echo out; echo err >&2; exit 6' 2>&1; echo $?
        sh -c 'cat <<END
        $0 in a document
END' x
        sh -c ''; echo $?; sh -c 'cd /usr && pwd' </dev/null; bash -c 'kill -TERM $$; sleep 9'; echo $?
    """
    plain = agent(script, name="codex")
    each = agent(script, "--each-command", name="codex")
    assert each.stdout.splitlines() == plain.stdout.splitlines()
    assert len(commands(cli)) == 14


def test_what_commands_did_at_the_same_time_is_told_of_all_of_them(agent, cli, project):
    agent(
        "sh -c 'until [ -e go ]; do sleep 0.01; done; echo x >slow' &\n"
        "sh -c 'echo x >quick'; touch go; wait; sh -c 'echo x >last'",
        "--each-command", name="codex",
    )  # fmt: skip
    slow, (quick, last) = "until [ -e go ]; do sleep 0.01; done; echo x >slow", ("echo x >quick", "echo x >last")
    told = commands(cli)
    assert told[-1] == (last, 0, {"added last"})
    made = {change.removeprefix("added ") for _, _, changes in told for change in changes}
    assert made == {"slow", "quick", "go", "last"}
    assert (f"{quick} (while: {slow})", 0, {"added quick"}) in told or (quick, 0, {"added quick"}) in told, told


def test_a_command_that_ends_without_a_word_is_told_from_what_follows(agent, cli):
    script = (
        "sh -c 'echo x >one; kill -9 $$'; sh -c 'set -u; kill $$; sleep 9'\n"
        "sh -c 'IFS=17; echo x >two; exit 117'; sh -c 'exec true'"
    )
    assert agent(script, "--each-command", name="codex").stderr.count("fumehood:") == 2, "the project, and how to undo"
    assert commands(cli)[:3] == [
        ("echo x >one; kill -9 $$", None, {"added one"}), ("set -u; kill $$; sleep 9", None, set()),
        ("IFS=17; echo x >two; exit 117", 117, {"added two"}),
    ]  # fmt: skip


def test_what_a_command_may_not_leave_waits_for_the_agents_end_and_is_told_once(agent, cli, project):
    done = agent("sh -c 'echo x >.envrc; echo x >fine'; sh -c 'echo x >more'", "--each-command", name="codex")
    assert done.stderr.count("held, not applied: added .envrc") == 1
    assert sorted(os.listdir(project)) == ["fine", "more"]
    run = next(run for run in json.loads(cli("log", "--json").stdout)["runs"] if run["act"] == "run")
    assert (run["state"], [change["path"] for change in run["paths"]]) == ("held", [".envrc"])


def test_a_forged_boundary_changes_nothing_but_names(agent, cli, project):
    done = agent(
        "fumehood command-began $$; fumehood command-began 1; fumehood command-began ../../etc; echo x >a\n"
        f"fumehood command-ended 1 {'9' * 40}\n"
        "sh -c 'fumehood command-ended $$ 7; echo x >.envrc; echo x >b'; fumehood command-ended 1 0 0; echo x >c",
        "--each-command", name="codex",
    )  # fmt: skip
    assert done.stderr.count("can't be understood") == 3
    assert sorted(os.listdir(project)) == ["a", "b", "c"], "held is held"
    runs = json.loads(cli("log", "--json").stdout)["runs"]
    told = sorted((change["path"], change["verdict"]) for run in runs for change in run["paths"])
    assert told == [(".envrc", "held"), ("a", "applied"), ("b", "applied"), ("c", "applied")]


def test_commands_can_not_be_runs_of_their_own_where_nothing_is_settled_before_the_end(agent, home):
    path = home / ".config/fumehood/config.toml"
    path.parent.mkdir(exist_ok=True)
    assert "nothing is applied" in agent("echo ran", "--hold", "--each-command", name="codex").stderr
    path.write_text('capture = "copy"')
    done = agent("echo ran", "--each-command", name="codex")
    assert (done.returncode, done.stdout) == (125, "")
    assert "--each-command needs checkpoints" in done.stderr
