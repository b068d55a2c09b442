"""Attacks by way of what a command may ask us: floods, half requests, names that are none, pipes that are replaced."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fumehood import Policy, Sandbox
from fumehood.core.inside import access_requests, checked_words, split_request
from fumehood.errors import FumehoodError

pytestmark = pytest.mark.namespaces

# Requests as no script of ours writes them; each is followed by an honest one, which must be answered.
ODD = {
    "bytes that are no text": r"\377\376\0\n",
    "no number": r"x\037/\037log\n",
    "a number that is none": r"-1\037/\037log\n\302\262\037/\037log\n",
    "a word with a NUL": r"1\037/\037show\037a\0b\n",
    "nothing": r"\n\n\n",
    "half of one": r"1\037/\037lo",
    "options": r"1\037/\037log\037--all\n1\037/\037log\037--only-session=other\n",
}


@pytest.fixture
def agent(cli: Any) -> Any:
    return lambda command, *options: cli("run", "--quiet", "--session", "agent", *options, "--", command)


@pytest.mark.long
@pytest.mark.parametrize("request_", ODD.values(), ids=ODD.keys())
def test_an_odd_request_changes_nothing_and_the_next_is_answered(agent: Any, request_: str) -> None:
    agent("echo one > a")
    done = agent(f"printf '{request_}\\n' > /dev/fumehood/ask; fumehood diff | grep '^+one'")
    assert (done.returncode, done.stdout) == (0, "+one\n")


def test_a_line_that_is_too_long_is_dropped(agent: Any) -> None:
    done = agent("head -c 100000 /dev/zero | tr '\\0' x > /dev/fumehood/ask; printf '\\n' > /dev/fumehood/ask; true")
    assert done.returncode == 0


def test_a_flood_of_requests_ends_and_the_command_goes_on(agent: Any) -> None:
    flood = "i=0; while [ $i -lt 220 ]; do printf '1\\037/\\037-h\\n'; i=$((i+1)); done > /dev/fumehood/ask & "
    read = "i=0; while [ ! -e /dev/fumehood/closed ]; do cat /dev/fumehood/answer; done >/dev/null; "
    done = agent(f"{flood}{read} fumehood log; echo $?")
    assert done.stdout == "125\n"
    assert "has asked too often" in done.stderr


def test_a_person_is_not_asked_without_end(home: Path, project: Path, known_host: None) -> None:
    asked: list[Any] = []
    with Sandbox(project, ask=lambda question: asked.append(question) or False) as sandbox:
        run = sandbox.session("agent").run("for i in 1 2 3 4 5; do fumehood ask a$i.org b$i.org c$i.org; done")
    assert run.exit_code == 126
    assert len(asked) <= 10
    assert "things at most" in run.stderr


def test_the_pipes_can_be_neither_replaced_nor_removed(agent: Any, home: Path) -> None:
    attack = (
        "cd /dev/fumehood; rm -f ask answer cwd env; ln -s /etc/passwd x; mv ask asked; ln -sf /etc/passwd ask;"
        " mkdir d; rm -rf /dev/hood; echo '#!/bin/sh' > /dev/hood/fumehood; chmod 777 ask . ; cd /; fumehood log -n 1"
    )
    done = agent(attack)
    assert done.returncode == 0, done.stderr
    assert list((home / ".local/state/fumehood/sessions/agent").glob("*/*")) == []


def test_what_a_command_leaves_unread_holds_nobody_up(agent: Any) -> None:
    done = agent("printf '1\\037/\\037-h\\n' > /dev/fumehood/ask; sleep 1; echo ended")
    assert done.stdout == "ended\n"


@pytest.mark.long
def test_paths_of_a_request_are_only_compared(agent: Any, cli: Any, project: Path, home: Path) -> None:
    (home / "secret").write_text("the secret\n")
    agent("echo one > a; ln -s $HOME/secret link")
    for path in ("/etc/passwd", "../../../etc/passwd", "$HOME/secret", "link", "''", "-x"):
        done = agent(f"fumehood diff last {path}; fumehood undo last {path}")
        assert "the secret" not in done.stdout + done.stderr
        assert "root:" not in done.stdout
    assert (project / "a").read_text() == "one\n"
    assert (home / "secret").read_text() == "the secret\n"


def test_a_yes_for_one_session_is_none_for_a_session_of_a_like_name(home: Path, project: Path, cli: Any) -> None:
    with Sandbox(project, ask=lambda _: True) as sandbox:
        sandbox.session("agent").run("fumehood ask example.org")
        for name in ("agent2", "agen", "session"):
            assert sandbox.session(name).run("true").hosts == ()


def test_every_way_of_capturing_has_the_command(way: str, project: Path) -> None:
    with Sandbox(project, policy=Policy(capture=way)) as sandbox:
        session = sandbox.session("agent")
        session.run("echo one > a")
        run = session.run("fumehood log --json; rm -f /dev/fumehood/ask /dev/hood/fumehood; fumehood --help >/dev/null")
        assert (run.exit_code, len(json.loads(run.stdout)["runs"])) == (0, 1), run.stderr


@pytest.mark.parametrize("line", [
    b"", b"1", b"x\x1f/", b"1\x1f/\x1fa\0", b"1\x1f" * 100, b"1\x1f/" + b"x" * 4096, b"\xff\x1f/\x1flog",
])  # fmt: skip
def test_a_request_that_is_none_is_refused(line: bytes) -> None:
    with pytest.raises(FumehoodError):
        split_request(line)


@pytest.mark.parametrize(
    "words",
    [
        ["log", "--json=x"], ["undo", "--", "-f"], ["undo", "last", "--force"], ["show", "last", "x"],
        ["stop", "--all"], ["log", "-n", "-1"], ["log", "-n", "٣"], ["show", "é"], ["", "x"], ["--project", "/", "log"],
        ["log\n"],
    ],
)  # fmt: skip
def test_words_that_are_not_on_the_list_are_refused(words: list[str]) -> None:
    with pytest.raises(FumehoodError):
        checked_words(words, os.path.abspath)


@pytest.mark.parametrize("words", [["a b"], ["http://x/"], ["--show"], ["--write"], [""], ["--session", "x"], ["\0"]])
def test_what_is_asked_for_is_read_strictly(words: list[str]) -> None:
    with pytest.raises(FumehoodError):
        access_requests(words, os.path.abspath)


def test_an_undo_brings_back_nothing_that_a_command_could_not_write_unseen(
    agent: Any, cli: Any, project: Path
) -> None:
    (project / "tools").mkdir()
    (project / "tools/env.sh").write_text("export A=1\n")
    agent("echo evil > tools/env.sh")
    agent("echo export A=1 > tools/env.sh; echo x > plain")
    (project / ".envrc").write_text("source tools/env.sh\n")  # which a person looked at
    for undo in ("fumehood undo", "fumehood undo 2", "fumehood undo 2 tools/env.sh"):
        done = agent(undo)
        assert (done.returncode, (project / "tools/env.sh").read_text()) == (125, "export A=1\n")
        assert "only a person may bring that back: tools/env.sh: .envrc" in done.stderr
    assert agent("fumehood undo 2 plain").returncode == 0
    assert not (project / "plain").exists()
    assert cli("undo", "2").returncode == 0
    assert (project / "tools/env.sh").read_text() == "evil\n"


def test_an_undo_brings_back_what_is_the_persons_own(agent: Any, project: Path) -> None:
    (project / ".vscode").mkdir()
    (project / ".vscode/tasks.json").write_text("{}\n")
    (project / "out").symlink_to("/srv/data")
    for _ in range(2):
        agent("rm -r .vscode out")
        assert not (project / ".vscode").exists()
        assert agent("fumehood undo").returncode == 0
        assert (project / ".vscode/tasks.json").read_text() == "{}\n"
        assert (project / "out").is_symlink()


def test_what_a_session_can_not_take_back_as_a_whole_stays_as_it_is(home: Path, project: Path) -> None:
    (project / "tools").mkdir()
    (project / "tools/env.sh").write_text("export A=1\n")
    with Sandbox(project) as sandbox:
        agent = sandbox.session("agent")
        agent.run("echo evil > tools/env.sh")
        agent.run("echo export A=1 > tools/env.sh")
        held = agent.run("mkdir .vscode; echo '{}' > .vscode/tasks.json; echo x > plain")
        assert sandbox.apply(held.run).state == "applied"
        (project / ".envrc").write_text("source tools/env.sh\n")
        with pytest.raises(FumehoodError, match=r"only a person may bring that back: tools/env\.sh"):
            agent.undo_session()
        assert (project / ".vscode/tasks.json").read_text() == "{}\n"
        assert (project / "plain").read_text() == "x\n"
        assert sandbox.undo(2).state == "applied"
