"""Drafts on the command line, through the hook and the MCP server's sandbox; and the best of several."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from at_terminal import Terminal
from conftest import command_line
from fumehood import Policy, Sandbox
from patience import LONG_S, eventually

pytestmark = pytest.mark.namespaces


def told(cli: Any, *words: str, code: int = 0) -> Any:
    done = cli(*words, "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def test_the_line_that_takes_back_what_waits_in_a_draft_says_what_it_did(cli: Any, project: Path) -> None:
    cli("draft", "new", "one")
    done = cli("run", "--draft", "one", "--", "echo a > a; echo b > b")
    assert "or: fumehood undo 1\n" in done.stderr
    begins = "run 1: echo a > a; echo b > b\nfumehood: "
    some = cli("undo", "1", "a").stdout
    assert some.startswith(f"{begins}1 change held, 1 discarded\n  + a  [discarded: thrown away by a person]\n")
    assert cli("undo", "1").stdout == f"{begins}2 changes discarded: thrown away by a person\n  + a\n  + b\n"
    cli("run", "--draft", "one", "--", "echo c > c")
    assert told(cli, "undo", "2")["state"] == "discarded"
    assert cli("draft", "diff", "one").stdout == ""


def test_a_draft_is_made_looked_at_and_applied(cli: Any, project: Path) -> None:
    (project / "a").write_text("old\n")
    assert "begins" in cli("draft", "new", "one").stdout
    assert cli("draft", "new", "one").returncode == 125
    assert cli("run", "--draft", "two", "--", "true").returncode == 125
    done = cli("run", "--draft", "one", "--", "echo new > a; echo b > b")
    assert "fumehood draft apply one" in done.stderr
    (row,) = told(cli, "draft", "list")["drafts"]
    assert (row["name"], row["runs"], row["frozen"], row["running"]) == ("one", 1, False, False)
    shown = told(cli, "draft", "show", "one")
    assert [(each["change"], each["path"]) for each in shown["changes"]] == [("modified", "a"), ("added", "b")]
    assert "+new" in cli("draft", "diff", "one").stdout
    assert cli("draft", "diff", "one", "b").stdout.count("diff --git") == 1
    assert cli("draft", "diff", "one", "--stat").stdout.endswith("\n2 paths, 2 lines added, 1 removed\n")
    assert told(cli, "draft", "diff", "one", "--stat", "a") == {
        "draft": "one", "added": 1, "removed": 1, "paths": [{
            "path": "a", "root": str(project), "change": "modified", "kind": "file", "binary": False, "added": 1,
            "removed": 1,
        }],
    }  # fmt: skip
    assert [run["state"] for run in told(cli, "draft", "log", "one")["runs"]] == ["held"]
    status = told(cli, "status")
    assert (status["held"], status["drafts"]) == ([], ["one"])
    assert "one  (fumehood draft diff one)" in cli("status").stdout
    assert cli("log").stdout.startswith("draft one\n  #1 ")
    assert cli("review").stdout == "nothing is held\n"
    assert "3 changes" not in cli("draft", "show", "one").stdout
    assert cli("draft", "rename", "one", "other").returncode == 0
    assert told(cli, "draft", "apply", "other")["state"] == "applied"
    assert (project / "b").read_text() == "b\n"
    assert "2 changes taken over: it went with draft other, by run 2\n" in cli("show", "1").stdout
    assert "no draft here" in cli("draft", "list").stdout
    assert cli("undo").returncode == 0
    assert os.listdir(project) == ["a"]


def test_a_draft_is_shown_with_modes_and_an_empty_one_is_gone_once_applied(
    cli: Any, project: Path
) -> None:
    (project / "k").write_text("")
    (project / "k").chmod(0o644)
    cli("draft", "new", "one")
    cli("run", "--draft", "one", "--", "chmod 755 k; mkdir d")
    shown = cli("draft", "show", "one").stdout.splitlines()
    assert shown == ["draft one: 2 changes", "  + d/", "  m k 0644 → 0755"]
    cli("draft", "new", "empty")
    lines = cli("draft", "diff", "one", "nope").stderr, cli("export", "empty", "-o", str(project / "x")).stderr
    assert lines[0] == "ERROR: draft one did not change nope\nhint: fumehood draft show one\n"
    assert lines[1] == "ERROR: draft empty has changed nothing that could travel\nhint: fumehood draft show empty\n"
    assert cli("draft", "log", "empty").stdout.startswith("nothing has run in draft empty yet; fumehood run --draft")
    assert cli("draft", "apply", "empty").stdout == "the project has all of it already; draft empty is removed\n"
    assert "there is no draft empty" in cli("draft", "show", "empty").stderr


def test_a_draft_is_shown_as_a_run_is_with_what_the_host_would_act_on_and_many_by_directory(
    cli: Any, project: Path
) -> None:
    (project / "old").write_text("")
    cli("draft", "new", "one")
    cli("run", "--draft", "one", "--", "rm old; mkdir n; touch n/a")
    cli("run", "--draft", "one", "--", "echo x >.envrc; for i in 1 2 3 4 5 6 7 8 9; do echo $i >n/$i; done")
    assert cli("draft", "show", "one").stdout.splitlines() == [
        "draft one: 13 changes (1 deletion)", "  ./  3 of them", "    + .envrc  (shell-settings)", "    + n/",
        "    - old", "  n/  10 of them", *(f"    + {name}" for name in "123456789a"),
    ]  # fmt: skip
    flags = {each["path"]: each["flags"] for each in told(cli, "draft", "show", "one")["changes"]}
    assert (flags[".envrc"], flags["n/a"]) == (["shell-settings"], [])


def test_options_stand_wherever_people_write_them(cli: Any, project: Path) -> None:
    cli("run", "--", "echo a > a; echo b > -b")
    assert cli("diff", "1", "--stat", "a").stdout.endswith("\n1 path, 1 line added, 0 removed\n")
    assert cli("diff", "1", "--stat", "--", "a", "-b").stdout.endswith("\n2 paths, 2 lines added, 0 removed\n")
    (project / "a").write_text("mine\n")
    assert cli("undo", "1", "--force", "--project", str(project), "a").returncode == 0
    assert os.listdir(project) == ["-b"]
    assert told(cli, "draft", "new", "--frozen", "one")["frozen"] is True
    cli("run", "--draft", "one", "--", "echo c > c")
    assert told(cli, "draft", "apply", "--force", "--proj", str(project), "one")["state"] == "applied"
    assert "does not take --forc3" in cli("draft", "apply", "--forc3", "one").stderr


def test_a_long_difference_of_a_draft_is_read_through_the_pager(cli: Any, project: Path) -> None:
    cli("draft", "new", "one")
    cli("run", "--draft", "one", "--", "seq 300 > a")
    command = [*command_line(), "draft", "diff", "one"]
    with Terminal(command, project, env={"PAGER": "tail -n 1", "NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        assert terminal.seen.split() == ["+300"]


def test_a_conflict_is_shown_with_marks_and_resolved_in_the_draft(cli: Any, project: Path) -> None:
    lines = [f"{number}\n" for number in range(50)]
    (project / "a").write_text("".join(lines))
    cli("draft", "new", "one")
    cli("run", "--draft", "one", "--", "sed -i 's/^20$/draft/' a")
    (project / "a").write_text("".join(lines).replace("20\n", "person\n"))
    done = cli("draft", "apply", "one")
    assert done.returncode == 1
    marked = "<<<<<<< in the project\nperson\n=======\ndraft\n>>>>>>> draft one\n"
    assert done.stdout.endswith(f"[line 18]\n17\n18\n19\n{marked}21\n22\n23\n")
    assert "nothing was applied" in done.stderr
    (conflict,) = told(cli, "draft", "apply", "one", code=1)["conflicts"]
    assert conflict["path"] == "a"
    rebased = cli("draft", "rebase", "one")
    assert rebased.returncode == 1
    assert "choose in the draft: fumehood run --draft one -- COMMAND" in rebased.stdout
    assert cli("draft", "apply", "one").returncode == 125
    cli("run", "--draft", "one", "--", "echo both > a")
    assert cli("draft", "apply", "one").returncode == 0
    assert (project / "a").read_text() == "both\n"


def test_a_draft_is_exported_imported_and_discarded(cli: Any, project: Path, test_directory: Path) -> None:
    cli("draft", "new", "one")
    cli("run", "--draft", "one", "--", "echo b > b")
    assert told(cli, "export", "one", "-o", str(test_directory / "it.tar"))["changes"] == 1
    assert cli("draft", "discard", "one").stdout == "draft one is removed, with what 1 run wrote\n"
    cli("draft", "new", "two")
    assert cli("draft", "discard", "two").stdout == "draft two is removed\n"
    assert told(cli, "import", str(test_directory / "it.tar"), "--draft", "taken")["draft"] == "taken"
    assert os.listdir(project) == []
    assert cli("draft", "apply", "taken").returncode == 0
    assert (project / "b").read_text() == "b\n"


@pytest.mark.parametrize("place", ["-", "/dev/stdout"])
@pytest.mark.parametrize("option", [(), ("--patch",)])
def test_an_export_to_standard_output_is_that_and_nothing_else(
    place: str, option: tuple[str, ...], cli: Any, project: Path, test_directory: Path
) -> None:
    cli("run", "--", "echo b > b")
    cli("export", "last", "-o", str(test_directory / "named"), *option)
    words = [*command_line(), "export", "last", "-o", place, *option]
    with open(test_directory / "sent", "wb") as sent:
        assert subprocess.run(words, cwd=project, stdout=sent, check=False).returncode == 0
    assert (test_directory / "sent").read_bytes() == (test_directory / "named").read_bytes()
    piped = subprocess.run(words, cwd=project, capture_output=True, check=True)
    assert (piped.stdout, piped.stderr) == ((test_directory / "named").read_bytes(), b"")
    assert "would go to standard output" in cli("export", "last", "-o", "-", "--json").stdout


def test_an_import_of_what_is_there_already_says_so(cli: Any, project: Path, test_directory: Path) -> None:
    cli("run", "--", "mkdir d; echo x > d/f")
    cli("export", "last", "-o", str(test_directory / "named"))
    os.utime(project / "d/f", (1, 1))  # as where others got it in another way
    done = cli("import", str(test_directory / "named"))
    assert (done.returncode, done.stdout) == (0, "nothing is held: the project has all of it already\n")


def test_an_export_does_not_act_on_a_terminal(cli: Any, project: Path) -> None:
    cli("run", "--", "echo b > b")
    for words in (["-o", "-"], ["-o", "/dev/tty", "--patch"]):
        with Terminal([*command_line(), "export", "last", *words], project) as terminal:
            assert terminal.end() == 125
        assert "a terminal can't take an export" in terminal.seen
        assert "oci-layout" not in terminal.seen


def test_a_hook_s_commands_can_be_in_a_draft_and_edits_are_then_asked_about(cli: Any, project: Path) -> None:
    def asked(tool: str, **given: str) -> Any:
        call = {"hook_event_name": "PreToolUse", "tool_name": tool, "tool_input": given, "session_id": "s",
                "tool_use_id": tool, "cwd": str(project), "permission_mode": "default"}  # fmt: skip
        answer = cli(
            "hook", "--client", "claude", "--draft", "agent", input=json.dumps(call), command=command_line()
        )  # in a process of its own: what it writes begins with how that was started
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)["hookSpecificOutput"]

    line = asked("Bash", command="echo a > a; ls")["updatedInput"]["command"]
    done = subprocess.run(line, shell=True, cwd=project, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("a\n")
    assert "not applied" not in done.stdout
    assert os.listdir(project) == []
    assert told(cli, "draft", "list")["drafts"][0]["name"] == "agent"
    answer = asked("Write", file_path=str(project / "b"), content="b\n")
    assert answer["permissionDecision"] == "ask"
    assert "a shell command can make it in the draft" in answer["permissionDecisionReason"]


def test_each_session_can_have_a_draft_of_its_own(home: Path, project: Path) -> None:
    with Sandbox(project, policy=Policy(drafts="session")) as sandbox:
        one, other = sandbox.session("one"), sandbox.session("other")
        one.run("mkdir d; cd d; echo 1 > one")
        assert one.run("pwd; ls").stdout == f"{project}/d\none\n"
        assert other.run("ls").stdout == ""
        assert sandbox.run("echo here > here").state == "applied"
        assert [draft.name for draft in sandbox.drafts()] == ["one", "other"]
        sandbox.draft("one").apply()
        assert (project / "d/one").read_text() == "1\n"
    with Sandbox(project, draft="named") as sandbox:
        assert sandbox.session("agent").run("echo 2 > two").draft_name == "named"
        assert not (project / "two").exists()


SERVER = """exec python3 -u -c '
import socket, sys
listener = socket.create_server(("127.0.0.1", 3000))
print("ready")
while True:
    client, _ = listener.accept()
    client.sendall(sys.argv[1].encode())
    client.close()
' {name}"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def forwarded(home: Path, project: Path) -> Iterator[dict[str, int]]:
    """Ports here that lead to port 3000 of drafts."""
    ports: dict[str, int] = {}
    started = []
    for name in (f"draft-{n}" for n in range(5)):
        ports[name] = free_port()
        command = [*command_line(), "forward", "3000", "--draft", name, "--to", str(ports[name])]
        started.append((name, command))
    processes: list[subprocess.Popen[str]] = []
    with Sandbox(project) as sandbox:
        servers = []
        for name, command in started:
            servers.append(sandbox.draft(name).start(SERVER.format(name=name)))
            assert servers[-1].stdout.readline() == "ready\n"
            processes.append(subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True))
            stdout = processes[-1].stdout
            assert stdout is not None
            assert f"port 3000 of draft {name}" in stdout.readline()
        yield ports
        for process in processes:
            process.kill()
            process.communicate()
        for server in servers:
            server.kill()


@pytest.mark.long
def test_five_servers_listen_on_one_port_in_five_drafts(forwarded: dict[str, int]) -> None:
    for name, port in forwarded.items():
        with socket.create_connection(("127.0.0.1", port), LONG_S) as client:
            assert client.makefile().read() == name


def test_the_best_of_several_is_told_in_a_table(cli: Any, project: Path) -> None:
    done = cli(
        "best", "-n", "3", "--jobs", "2", "--check", "grep -q good made", "--score", "cat made | wc -c", "--",
        'case $FUMEHOOD_CANDIDATE in 1) echo bad > made;; *) echo good $FUMEHOOD_CANDIDATE > made;; esac',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["exit", "check", "score", "files", "lines", "time"]
    assert lines[1][:4] == ["1", "failed", "0", "1"]
    assert "← the best" in done.stdout
    assert (project / "made").read_text().startswith("good")
    assert cli("best", "-n", "2", "--check", "false", "--json", "--", "true").returncode == 1
    assert cli("best", "-n", "1", "--", "true").stdout.endswith("\nit changes nothing, so nothing was applied\n")


def test_a_candidates_own_status_is_told_beside_that_of_its_check(cli: Any) -> None:
    words = ("best", "-n", "1", "--check", "exit 4", "--", "echo x > made; exit 3")
    done = cli(*words)
    assert done.stderr.startswith("candidate 1: failed, exit 3, check 4, ")
    assert done.stdout.splitlines()[1].split()[:4] == ["1", "failed", "3", "4"]
    (candidate,) = json.loads(cli(words[0], "--json", *words[1:]).stdout)["candidates"]
    assert (candidate["exit_code"], candidate["check_code"]) == (3, 4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_ends_all_candidates_and_leaves_what_is_done(
    number: signal.Signals, cli: Any, project: Path
) -> None:
    line = "echo $FUMEHOOD_CANDIDATE > made; [ $FUMEHOOD_CANDIDATE = 1 ] || sleep 1000"
    process = subprocess.Popen(
        [*command_line(), "best", "-n", "4", "--jobs", "2", "--json", "--", line], cwd=project, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    def is_first_done_and_others_run() -> bool:
        states = [run["state"] for run in json.loads(cli("log", "--json").stdout)["runs"]]
        return "held" in states and states.count("running") == 2

    eventually(is_first_done_and_others_run)
    process.send_signal(number)
    out, error = process.communicate(timeout=LONG_S)
    assert process.returncode == 128 + number, error
    result = json.loads(out)
    assert result["interrupted"]
    assert [each["status"] for each in result["candidates"]] == ["passed", "ended", "ended", "not begun"]
    assert os.listdir(project) == []
    assert [each["name"] for each in told(cli, "draft", "list")["drafts"]] == result["drafts"]
    assert len(result["drafts"]) == 1
    assert cli("draft", "apply", result["drafts"][0]).returncode == 0
    assert (project / "made").read_text() == "1\n"


@pytest.mark.parametrize("score", ["nan", "inf", "-inf", "many"])
def test_a_score_that_is_no_number_makes_no_candidate_better(cli: Any, project: Path, score: str) -> None:
    """It was told as such in JSON, which has no word for it."""
    done = cli("best", "-n", "1", "--score", f"echo {score}", "--json", "--", "echo x > made")
    (candidate,) = json.loads(done.stdout, parse_constant=pytest.fail)["candidates"]
    assert (candidate["score"], candidate["reason"]) == (None, "the score printed no number at its end")
