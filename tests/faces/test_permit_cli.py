"""`roots add` asks whoever must be asked; `grants` and `playground` on the command line."""

import json
import os

import pytest

from at_terminal import Terminal
from conftest import command_line
from fumehood import Refused, Sandbox
from fumehood.core import questions
from fumehood.service.opened import OpenedStore

pytestmark = pytest.mark.once


@pytest.fixture
def second(test_directory):
    second = test_directory / "second"
    second.mkdir()
    return second


def told(done, code=0):
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


# --- roots ---


def test_a_root_that_nobody_at_a_terminal_asks_for_is_denied(cli, project, second):
    done = cli("roots", "add", second)
    assert done.returncode == 126
    assert done.stderr.startswith(f"ERROR: Permission denied: Let commands write another directory: {second}\n")
    assert told(cli("roots", "--json"))["roots"] == [str(project)]


def test_whoever_types_it_at_a_terminal_is_the_person(cli, home, project, second):
    with Terminal([*command_line(), "roots", "add", str(second)], project) as terminal:
        assert terminal.end() == 0
        assert "fumehood: " not in terminal.seen
    assert told(cli("roots", "--json"))["roots"] == [str(project), str(second)]


@pytest.mark.parametrize(("line", "code"), [("yes\n", 0), ("no\n", 126), ("\n", 126)])
def test_a_link_is_asked_about_by_what_it_leads_to_even_at_a_terminal(cli, home, project, second, line, code):
    (project / "way").symlink_to(second)
    with Terminal([*command_line(), "roots", "add", "way"], project, columns=200) as terminal:
        assert f"what a symlink leads to? {project}/way → {second}\r\n" in terminal.wait_for("\n>")
        terminal.type(line)
        assert terminal.end() == code
    expected = [str(project), str(second)] if code == 0 else [str(project)]
    assert told(cli("roots", "--json"))["roots"] == expected


def test_at_a_terminal_but_with_another_input_the_person_is_asked(cli, home, project, second):
    """An agent that works in the person's terminal is not the person."""
    command = ["sh", "-c", '"$@" < /dev/null', "sh", *command_line(), "roots", "add", str(second)]
    with Terminal(command, project) as terminal:
        terminal.wait_for("\n>")
        terminal.type("n\n")
        assert terminal.end() == 126
    assert told(cli("roots", "--json"))["roots"] == [str(project)]


def test_the_root_is_what_was_approved_and_not_what_the_link_leads_to_by_then(home, project, second, test_directory):
    evil = test_directory / "evil"
    evil.mkdir()
    (project / "way").symlink_to(second)

    def answer(question):
        (project / "way").unlink()
        (project / "way").symlink_to(evil)
        return str(second) in question.text

    with Sandbox(project, ask=answer) as sandbox:
        assert sandbox.add_root("way") == (str(project), str(second))


def test_a_program_asks_for_a_root_and_nothing_is_kept_of_the_answer(home, project, second):
    asked = []

    def answer(question):
        asked.append(question)
        return "deny_always"

    with Sandbox(project, ask=answer) as sandbox:
        for _ in range(2):
            with pytest.raises(Refused, match="Permission denied: Let commands write another directory"):
                sandbox.add_root(second)
        assert [question.options for question in asked] == [(questions.ALLOW_ONCE, questions.DENY_ONCE)] * 2
    with Sandbox(project) as sandbox, pytest.raises(Refused):
        sandbox.add_root(second)


def test_what_can_be_no_root_is_refused_before_anybody_is_asked(home, project):
    def answer(question):
        raise AssertionError("asked")

    (project / "way").symlink_to(home)
    with Sandbox(project, ask=answer) as sandbox:
        for path in ("/", "/etc", str(home), "way", "..", "/nowhere"):
            with pytest.raises(Exception, match=r"can't be a root|does not exist"):
                sandbox.add_root(path)


def test_linked_directories_are_offered_and_never_added(cli, project, second):
    (project / "sub").mkdir()
    (project / "sub/data").symlink_to(second)
    (project / "inner").symlink_to("sub")
    (project / "dangling").symlink_to("/nowhere")
    (project / "system").symlink_to("/etc")
    (project / "above").symlink_to("..")
    found = told(cli("roots", "--json"))
    assert found == {"roots": [str(project)], "offered": [str(second)]}
    assert f"fumehood roots add {second}" in cli("roots").stdout


# --- grants ---


def test_grants_are_listed_and_revoked(cli, home):
    store = OpenedStore()
    store.grants.keep((questions.UNSANDBOXED, "/project", "/usr/bin/git"), questions.ALLOW)
    store.grants.keep((questions.UNSANDBOXED, "/project", "/usr/bin/rm\x1b[2J"), questions.DENY)
    store.close()
    listed = cli("grants").stdout
    assert "allow unsandboxed: /usr/bin/git in /project" in listed
    assert "\x1b" not in listed
    first, second = told(cli("grants", "list", "--json"))["grants"]
    assert (first["answer"], second["answer"]) == ("allow", "deny")
    assert told(cli("grants", "revoke", str(first["id"]), "--json"))["target"] == "/usr/bin/git"
    assert [grant["id"] for grant in told(cli("grants", "--json"))["grants"]] == [second["id"]]
    for wrong, named in (((), "needs a number"), (("99",), "no grant 99"), (("x",), "'x' is not a whole number")):
        done = cli("grants", "revoke", *wrong)
        assert done.returncode == 125
        assert named in done.stderr
    cli("grants", "revoke", str(second["id"]))
    assert "no answers are kept" in cli("grants").stdout


# --- the playground ---


def test_the_playground_says_where_it_is_and_how_large_and_is_emptied(cli, home):
    place = home / ".local/share/fumehood/playground"
    assert cli("playground").stdout == cli("playground", "path").stdout == f"{place}\n"
    assert place.is_dir()
    assert told(cli("playground", "size", "--json")) == {"path": str(place), "bytes": 0}
    (place / "deep/er").mkdir(parents=True)
    (place / "deep/er/file").write_bytes(b"x" * 100_000)
    (place / "closed").mkdir(mode=0o000)
    (place / "way").symlink_to(home)
    size = told(cli("playground", "size", "--json"))["bytes"]
    assert size >= 100_000
    assert "KiB" in cli("playground", "size").stdout
    (home / "mine").write_text("mine")
    assert told(cli("playground", "clean", "--json"))["bytes"] == size
    assert os.listdir(place) == []
    assert os.listdir(place.parent) == ["playground"]
    assert (home / "mine").read_text() == "mine"


@pytest.mark.namespaces
def test_an_emptied_playground_is_there_for_the_next_command(cli, home):
    assert cli("run", "--cwd", "playground", "--", "echo x > f").returncode == 0
    assert cli("playground", "clean").returncode == 0
    assert cli("run", "--", "ls ~/playground; echo y > ~/playground/g").returncode == 0
    assert os.listdir(home / ".local/share/fumehood/playground") == ["g"]
