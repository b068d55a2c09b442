"""`fumehood` inside the hood: an agent looks at its own runs, takes them back, and asks for more."""

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trees
from at_terminal import Terminal
from conftest import command_line
from fumehood import Run, Sandbox
from fumehood.core.questions import Question
from patience import LONG_S

pytestmark = pytest.mark.namespaces

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def agent(cli: Cli) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A command of an agent's session."""
    return lambda command, *options: cli("run", "--quiet", "--session", "agent", *options, "--", command)


@pytest.fixture
def tree(test_directory: Path) -> Path:
    return trees.make_tree(test_directory / "tree")


def test_an_agent_sees_its_own_runs_in_pipes_and_scripts(agent: Any, cli: Cli, project: Path) -> None:
    agent("echo one > a")
    cli("run", "--", "echo mine > b")
    count = 'import json, sys; print(len(json.load(sys.stdin)["runs"]))'
    script = f"#!/bin/sh\nfumehood log --json | python3 -c '{count}'\n"
    (project / "look.sh").write_text(script)
    done = agent("true && sh look.sh; fumehood diff | grep '^+one'; fumehood output last && echo done")
    assert done.stdout == "1\n+one\ndone\n", done.stderr
    assert done.returncode == 0


def test_last_is_the_last_run_that_did_more_than_ask(agent: Any) -> None:
    agent("echo first; echo x > f")
    agent("fumehood log >/dev/null")
    assert agent("fumehood output").stdout == "first\n"
    assert agent("fumehood output last").stdout == "first\n"


def test_an_agent_takes_back_what_it_did_while_its_command_goes_on(agent: Any, project: Path) -> None:
    (project / "a").write_text("before\n")
    agent("echo after > a; echo new > b")
    done = agent("fumehood undo >/dev/null && cat a; ls b; fumehood redo >/dev/null; echo $?")
    assert done.stdout.endswith("0\n")
    assert (project / "a").read_text() == "after\n"
    agent("fumehood undo")
    assert (project / "a").read_text() == "before\n"
    assert not (project / "b").exists()


def test_what_the_command_and_its_undo_both_change_is_held(agent: Any, cli: Cli, project: Path) -> None:
    (project / "a").write_text("before\n")
    agent("echo after > a")
    agent("echo mine > a; fumehood undo")
    last = json.loads(cli("log", "--json", "-n", "1").stdout)["runs"][0]
    assert (project / "a").read_text() == "before\n"
    held = json.loads(cli("log", "--json").stdout)["runs"]
    assert "held" in [run["state"] for run in held], last


def test_what_only_a_person_may_do_is_refused_with_the_reason(agent: Any, project: Path) -> None:
    agent("mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit", "--hold")
    for verb in ("apply last", "discard last", "config show", "grants list", "roots add /etc", "setup claude", "clean"):
        done = agent(f"fumehood {verb}")
        assert done.returncode == 126, verb
        assert "only a person may do that" in done.stderr
    assert not (project / ".git/hooks/pre-commit").exists()


@pytest.mark.long
@pytest.mark.once
@pytest.mark.parametrize(
    "words",
    [
        "log --all", "log --session other", "log --only-session other", "log --project /", "undo --force", "log -n x",
        "show --project=/ last", "output -- -x", "diff last -x", "nothing", "show a/b", "log x", "stop", "ask",
        "ask -x", "show $(printf 'a\\001b')", "log --asked-by x", "run -- id",
    ],
)  # fmt: skip
def test_anything_else_is_refused(agent: Any, words: str) -> None:
    agent("true")
    done = agent(f"fumehood {words}")
    assert done.returncode == 125
    assert done.stderr.startswith("ERROR: ")
    assert done.stdout == ""


@pytest.mark.long
def test_another_sessions_runs_and_the_persons_are_out_of_reach(agent: Any, cli: Cli, project: Path) -> None:
    others = json.loads(cli("run", "--json", "--session", "other", "--", "echo x > theirs").stdout)["run"]
    persons = json.loads(cli("run", "--json", "--", "echo x > mine").stdout)["run"]
    for run in (others, persons):
        for verb in ("show", "output", "diff", "undo", "stop"):
            done = agent(f"fumehood {verb} {run}")
            assert (done.returncode, f"there is no run {run}" in done.stderr) == (125, True)
    assert sorted(os.listdir(project)) == ["mine", "theirs"]


def test_help_and_status_tell_what_can_be_done(agent: Any, project: Path) -> None:
    assert "ask HOST" in agent("fumehood --help").stdout
    told = json.loads(agent("fumehood status --json").stdout)
    assert (told["session"], told["roots"], told["network"]) == ("agent", [str(project)], "none")
    assert str(project) in agent("fumehood status").stdout


def test_where_nobody_is_there_the_persons_line_is_told(agent: Any, home: Path) -> None:
    done = agent("fumehood ask example.org --reason 'I need it'")
    assert done.returncode == 126
    assert "nobody was there to ask" in done.stderr
    assert "fumehood ask --session agent example.org" in done.stderr
    hidden = home / "notes" / "x"
    hidden.parent.mkdir()
    hidden.write_text("secret\n")
    assert f"fumehood ask --session agent --show {hidden}" in agent(f"fumehood ask --show {hidden}").stderr


class Person:
    """Answers every question, and remembers it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[Question] = []

    def __call__(self, question: Question) -> object:
        self.asked.append(question)
        return self.answer


@pytest.fixture
def session(home: Path, project: Path, known_host: None) -> Any:
    """A session of a program that can ask a person."""
    opened: list[Sandbox] = []

    def session(answer: object) -> tuple[Sandbox, Person]:
        person = Person(answer)
        opened.append(Sandbox(project, ask=person))
        return opened[-1].session("agent"), person

    yield session
    for each in opened:
        each.close()


def hosts_of(run: Run) -> list[str]:
    return list(run.hosts)


def test_a_host_that_a_person_allows_is_reached_from_the_next_command_on(session: Any) -> None:
    sandbox, person = session("allow_session")
    run = sandbox.run("fumehood ask example.org --reason 'the tests \033[2J fetch it' && fumehood status --json")
    assert "allowed: commands may reach example.org" in run.stdout
    (question,) = person.asked
    assert any("the agent says: the tests" in line for line in question.lines)
    assert not any("\033" in line for line in question.lines)
    assert json.loads(run.stdout.splitlines()[-1])["hosts"] == ["example.org"]
    assert hosts_of(run) == []
    assert hosts_of(sandbox.run("true")) == ["example.org"]
    assert hosts_of(sandbox.run("fumehood ask example.org")) == ["example.org"]
    assert len(person.asked) == 1, "it was answered before"


def test_a_session_keeps_its_grants_to_itself(session: Any, project: Path) -> None:
    sandbox, _ = session(True)
    sandbox.run("fumehood ask example.org")
    other, _ = session(False)
    assert hosts_of(other.session("another").run("true")) == []
    with Sandbox(project) as plain:
        assert hosts_of(plain.run("true")) == []
    sandbox, _ = session("allow_always")
    sandbox.run("fumehood ask example.net")
    assert hosts_of(other.session("another").run("true")) == ["example.net"]


def test_a_session_of_the_same_name_in_another_project_has_none_of_its_grants(
    session: Any, project: Path, cli: Cli
) -> None:
    sandbox, _ = session(True)
    sandbox.run("fumehood ask example.org")
    assert cli("projects", "forget", str(project), "--yes").returncode == 0
    assert json.loads(cli("grants", "list", "--json").stdout)["grants"] == []


def test_a_no_is_told_and_one_for_the_session_is_not_asked_again(session: Any) -> None:
    sandbox, person = session("deny_session")
    for _ in range(2):
        run = sandbox.run("fumehood ask example.org")
        assert (run.exit_code, "not allowed: to reach example.org" in run.stderr) == (126, True)
    assert len(person.asked) == 1


def test_a_path_of_the_home_that_a_person_shows_is_seen(session: Any, home: Path) -> None:
    notes = home / "notes"
    notes.mkdir()
    (notes / "x").write_text("seen\n")
    sandbox, person = session(True)
    missed = sandbox.run(f"cat {notes}/x")
    (hint,) = [each.hint for each in missed.blocked]
    assert f"fumehood ask --show {notes}" in hint
    sandbox.run(f"fumehood ask --show {notes}")
    assert person.asked[-1].target == str(notes)
    assert sandbox.run(f"cat {notes}/x").stdout == "seen\n"
    assert sandbox.run(f"echo x > {notes}/x").exit_code != 0


def test_a_directory_that_a_person_lets_be_written_is_a_root(session: Any, test_directory: Path) -> None:
    library = test_directory / "library"
    library.mkdir()
    sandbox, person = session(True)
    assert "allowed" in sandbox.run(f"fumehood ask --write {library} --reason 'fix it there'").stdout
    assert any("fix it there" in line for line in person.asked[-1].lines)
    again, _ = session(False)
    again.run(f"echo x > {library}/f")
    assert (library / "f").read_text() == "x\n"


@pytest.mark.once
@pytest.mark.parametrize("directory", ["/", "{home}", "{home}/..", "{home}/.local/state/fumehood", "/etc", "/nowhere"])
def test_what_can_not_be_a_root_is_not_even_asked_for(session: Any, home: Path, directory: str) -> None:
    sandbox, person = session(True)
    assert sandbox.run(f"fumehood ask --write {directory.format(home=home)}").exit_code == 125
    assert person.asked == []


@pytest.mark.once
@pytest.mark.parametrize("path", ["/", "{home}", "{home}/..", "{home}/.local/state/fumehood", "{home}/.local", "/etc"])
def test_what_can_not_be_shown_is_not_even_asked_for(session: Any, home: Path, path: str) -> None:
    sandbox, person = session(True)
    assert sandbox.run(f"fumehood ask --show {path.format(home=home)}").exit_code == 125
    assert person.asked == []


def test_a_link_is_asked_for_as_what_it_leads_to(session: Any, home: Path, project: Path) -> None:
    (home / "private").mkdir()
    (project / "link").symlink_to(home / "private")
    sandbox, person = session(False)
    sandbox.run("fumehood ask --show link")
    assert str(home / "private") in person.asked[-1].text


def test_it_works_in_a_root_tree_without_python(agent: Any, tree: Path, project: Path) -> None:
    options = ("--root", str(tree))
    agent("echo one > a", *options)
    done = agent("fumehood diff | grep '^+one' && fumehood undo >/dev/null; fumehood ask x.org; echo $?", *options)
    assert done.stdout == "+one\n126\n", done.stderr
    assert not (project / "a").exists()


def test_status_names_the_project_where_a_root_tree_has_it(agent: Any, tree: Path, project: Path) -> None:
    shown = agent("fumehood status", "--root", str(tree)).stdout
    assert "project   /workspace\n" in shown
    assert str(project) not in shown


def test_without_a_session_there_is_no_such_command(cli: Cli) -> None:
    assert cli("run", "--quiet", "--", "test -e /dev/hood/fumehood").returncode == 1


def test_a_run_that_asked_for_something_is_not_run_again(agent: Any, cli: Cli, project: Path) -> None:
    agent("echo 1 > a")
    agent("echo 2 > a; fumehood undo last >/dev/null; fumehood redo >/dev/null")
    runs = json.loads(cli("log", "--json").stdout)["runs"]
    assert sum(run["act"] == "undo" for run in runs) == 2


def test_an_option_of_the_hook_that_nobody_can_allow_does_not_refuse_every_command(cli: Cli) -> None:
    options = ("--session", "agent", "--allow-host", "example.org", "--brief", "--if-granted")
    done = cli("run", *options, "--", "echo ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    tried = cli("run", *options, "--", "getent hosts example.org; true")
    assert "fumehood ask example.org" in tried.stderr
    refused = cli("run", "--allow-host", "example.org", "--", "echo ran")
    assert refused.returncode == 126


def test_a_person_at_the_terminal_is_asked_while_the_command_waits(home: Path, project: Path, cli: Cli) -> None:
    line = "fumehood ask example.org --reason 'for the tests' && echo went on; cat"
    command = [*command_line(), "run", "--session", "agent", "--", line]
    with Terminal(command, project) as terminal:
        shown = terminal.wait_for("\n>")
        assert "the agent says: for the tests" in shown
        assert "[session] allow for this session" in shown
        assert "allow once" not in shown
        terminal.type("session\n")
        terminal.wait_for("went on")
        terminal.type("typed later\n\x04")
        assert terminal.end() == 0
        assert "typed later" in terminal.seen
    assert json.loads(cli("status", "--session", "agent", "--json").stdout)["hosts"] == ["example.org"]


def test_a_person_types_the_line_that_the_agent_was_told(home: Path, project: Path, cli: Cli, agent: Any) -> None:
    agent("true")
    with Terminal([*command_line(), "ask", "--session", "agent", "example.org"], project) as terminal:
        terminal.wait_for("\n>")
        terminal.type("session\n")
        assert terminal.end() == 0
    assert json.loads(agent("fumehood status --json").stdout)["hosts"] == ["example.org"]
    (grant,) = json.loads(cli("grants", "list", "--json").stdout)["grants"]
    assert cli("grants", "revoke", str(grant["id"])).returncode == 0
    assert json.loads(agent("fumehood status --json").stdout)["hosts"] == []


def test_what_a_shell_reads_first_does_not_take_the_command_away(agent: Any, test_directory: Path, need: Any) -> None:
    need(os.access("/bin/bash", os.X_OK), "there is no bash")
    snapshot = test_directory / "snapshot.sh"
    snapshot.write_text("export PATH=/usr/bin:/bin\n")
    done = agent("fumehood status >/dev/null && echo there", "--shell", "/bin/bash", "--source", str(snapshot))
    assert done.stdout == "there\n", done.stderr


def test_requests_at_the_same_time_each_get_their_own_answer(agent: Any) -> None:
    agent("echo x > f")
    several = "for n in 1 2 3 4; do fumehood output last~$n >/tmp/$n 2>&1 & done; wait; cat /tmp/1 /tmp/2 /tmp/3 /tmp/4"
    assert [line for line in agent(several).stdout.splitlines() if line.startswith("ERROR")] == [
        f"ERROR: there is no run last~{number}" for number in (1, 2, 3, 4)
    ]


def test_whoever_is_killed_while_it_asks_leaves_the_next_its_answer(agent: Any) -> None:
    done = agent("for n in 1 2 3; do fumehood log >/dev/null & kill -9 $!; done; fumehood status --json | head -c 1")
    assert done.stdout == "{"


def test_a_question_ends_with_the_command_that_asked_it(home: Path, project: Path, known_host: None) -> None:
    is_over, was_put = threading.Event(), threading.Event()

    def answer(_question: Question) -> bool:
        was_put.set()
        is_over.wait(LONG_S)
        return True

    with Sandbox(project, ask=answer) as sandbox:
        session = sandbox.session("agent")
        run = session.run("fumehood ask example.org", cancelled=was_put.is_set)
        assert not is_over.is_set()
        is_over.set()
        assert run.exit_code == 130
        assert session.run("true").hosts == ()


@pytest.mark.parametrize(
    "words",
    [
        "diff last $(seq 1 300)", "diff last $(seq 1 63)", "ask h --reason $(printf %05000d 1)",
        "diff last $(printf 'ä%.0s' $(seq 3000))",  # fewer letters than bytes
    ],
)
def test_a_request_that_is_too_long_is_refused_at_once(agent: Any, words: str) -> None:
    done = agent(f"fumehood {words}; echo rc=$?; fumehood --help | head -n 1", "--timeout", "60")
    assert done.stdout == "rc=125\nusage: fumehood COMMAND [--json]\n"
    assert "too much to ask for at once" in done.stderr


@pytest.mark.parametrize(
    "line", ["$$\\037/$(printf %010000d 1)", "$$\\037/$(printf '\\037%d' $(seq 100))", "$$", "$$\\037"]
)
def test_whoever_writes_a_request_by_itself_is_answered_by_the_number_at_its_head(agent: Any, line: str) -> None:
    reads = 'read -r id code < /dev/fumehood/answer; [ "$id" = $$ ] && echo $code'
    done = agent(f'printf "{line}\\n" > /dev/fumehood/ask; {reads}', "--timeout", "60")
    assert done.stdout in ("125\n", "0\n"), done.stderr


@pytest.mark.long
@pytest.mark.parametrize("is_link", [False, True])
def test_an_agent_is_not_told_what_a_file_holds_that_its_commands_do_not_see(
    agent: Any, cli: Cli, project: Path, home: Path, is_link: bool
) -> None:
    (project / "keys").write_text("was-there\n")
    agent("printf '%s%s\\n' wri tten > keys; echo plain > seen")
    if is_link:
        (project / ".env").symlink_to("keys")
    settings = home / ".config/fumehood/config.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text('mask = [".env"]\n' if is_link else 'mask = ["keys"]\n')
    asked = "diff", "diff 1 keys", "diff 1 --json", "show 1", "show 1 --json", "log --json", "status --json", "output 1"
    for words in asked:
        done = agent(f"fumehood {words}")
        assert done.returncode == 0, (words, done.stderr)
        assert "written" not in done.stdout, words
        assert "was-there" not in done.stdout, words
    done = agent("fumehood diff 1")
    assert "not shown: keys: it is hidden from commands\n" in done.stdout
    assert "+plain\n" in done.stdout
    with Sandbox(project, session="agent") as sandbox:
        assert "written" not in sandbox.diff(1)
    assert "+written\n" in cli("diff", "1").stdout  # a person sees it
