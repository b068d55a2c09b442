"""The question at the terminal, on a real pty: what it shows, which words it takes, and that no is what it ends in."""

import json
import os
import re
import shutil
import sys

import pytest

from at_terminal import Terminal
from conftest import command_line, need
from fumehood.core import questions as asking
from fumehood.faces.cli.screen import question_text, words_text
from fumehood.linux.confine import can_scope
from fumehood.linux.terminal import TerminalTurn

pytestmark = pytest.mark.once

in_the_hood = pytest.mark.namespaces
ASKED = "Run command with network access?"
DENIED = "ERROR: Permission denied: Run command with network access: "


@pytest.fixture
def run(home, project):
    """Start `fumehood run --network` on a terminal."""

    def start(*command, options=()):
        return Terminal([*command_line(), "run", "--network", *options, "--", *command], project)

    return start


@in_the_hood
@pytest.mark.parametrize("word", ["y", "Yes"])
def test_yes_runs_it_once(run, project, cli, word):
    need(can_scope(), "the host's network can't be shared here")
    with run("touch ran") as terminal:
        shown = terminal.wait_for("\n>")
        assert f"fumehood: {ASKED} touch ran\r\n" in shown
        assert f"directory: {project}" in shown
        assert "[y] allow once" in shown
        assert "[n] deny" in shown
        for kept in ("session", "always", "never"):
            assert kept not in shown
        assert not (project / "ran").exists()
        terminal.type(f"{word}\n")
        assert terminal.end() == 0
    assert (project / "ran").exists()
    assert json.loads(cli("grants", "list", "--json").stdout) == {"grants": []}


@pytest.mark.long
@in_the_hood
@pytest.mark.parametrize("typed", ["n\n", "NO\r", "\r", "\n", " \n", "\x04", "yes\x04"])
def test_everything_else_that_ends_it_is_a_no(run, project, cli, typed):
    with run("touch ran") as terminal:
        terminal.wait_for("\n>")
        terminal.type(typed)
        assert terminal.end() == 126
        assert f"{DENIED}touch ran" in terminal.seen
    assert not (project / "ran").exists()
    assert "refused" in cli("log").stdout


@in_the_hood
@pytest.mark.parametrize("typed", ["clear\n", "ls; python x\n", "yy\n", "yes please\n", "a\n", "always\n", "\x1b[Ay\n"])
def test_another_word_is_no_answer_and_is_answered_by_the_list(run, project, typed):
    """`ls; python x` allowed a host by its y, and `clear` always by its a."""
    with run("touch ran") as terminal:
        terminal.wait_for("\n>")
        terminal.type(typed)
        terminal.wait_for("one of: y, yes, n, no\r\n")
        while terminal.seen.count("\n>") < 2:
            assert terminal.more()
        assert not (project / "ran").exists()
        terminal.type("n\n")
        assert terminal.end() == 126
    assert not (project / "ran").exists()


@in_the_hood
def test_what_is_pasted_after_another_word_is_no_answer(run, project):
    with run("touch ran") as terminal:
        terminal.wait_for("\n>")
        terminal.type("clear\ny\ny\n")
        while terminal.seen.count("\n>") < 2:
            assert terminal.more()
        terminal.type("\n")
        assert terminal.end() == 126
    assert not (project / "ran").exists()


@in_the_hood
def test_the_beginning_of_an_answer_may_be_corrected_and_is_none_without_enter(run, project):
    with run("touch ran") as terminal:
        terminal.wait_for("\n>")
        terminal.type("yes")
        terminal.wait_for("> yes")
        assert not (project / "ran").exists()
        terminal.type("\x7f\x7f\x7fno\n")
        assert terminal.end() == 126
    assert not (project / "ran").exists()


@in_the_hood
def test_what_was_typed_before_the_question_is_no_answer(run, project):
    with run("touch ran") as terminal:
        terminal.type("yyy\ny\n")
        terminal.wait_for("\n>")
        terminal.type("\n")
        assert terminal.end() == 126
    assert not (project / "ran").exists()


ASKS_WHILE_SOMEBODY_TYPES_ON = """
import os, sys
import fumehood.faces.cli.screen as screen

def quiet(tty, *others, seconds=0.0):
    assert not others
    print("begun", flush=True)
    sys.stdin.buffer.raw.read(1)  # somebody types on
    return True

screen.wait_for_quiet = quiet
with screen.Lines(0, 1) as lines:
    print(lines.ask(lambda: "ask> ", {"yes": "agreed", "no": "refused"}, "ended"))
"""


def test_a_line_that_was_begun_before_it_was_asked_for_is_no_answer(home, project):
    path = f"import sys; sys.path[:0] = {[entry for entry in sys.path if entry]!r}\n"
    with Terminal([sys.executable, "-I", "-c", path + ASKS_WHILE_SOMEBODY_TYPES_ON], project) as terminal:
        terminal.wait_for("begun")
        terminal.type("yes\nyes")
        terminal.wait_for("ask> ")
        terminal.type("\x7f\x7f\x7fno\n")
        assert terminal.end() == 0
        assert "refused" in terminal.seen
        assert terminal.modes() == terminal.before


@pytest.mark.parametrize("typed", ["\x03", "ye\x03", "\x04"])
def test_where_ctrl_c_is_a_key_it_ends_the_question_as_the_end_of_the_input_does(home, project, typed):
    """While a command has a terminal of its own, the person's sends every key."""
    path = f"import sys; sys.path[:0] = {[entry for entry in sys.path if entry]!r}\n"
    code = "import tty; from fumehood.faces.cli.screen import Lines\ntty.setraw(0)\n"
    code += "with Lines(0, 1) as lines: print(lines.ask(lambda: 'ask> ', {'yes': 1}, 'ended'), flush=True)"
    with Terminal([sys.executable, "-I", "-c", path + code], project) as terminal:
        terminal.wait_for("ask> ")
        terminal.type(typed)
        assert terminal.end() == 0
        assert "ended" in terminal.seen


@in_the_hood
def test_no_answer_in_time_is_a_no(run, project, home):
    (home / ".config/fumehood").mkdir(parents=True)
    (home / ".config/fumehood/config.toml").write_text("ask_timeout = 0.2\n")
    with run("touch ran") as terminal:
        assert re.search(r"nothing within 0\.[012]* ?s", terminal.wait_for("\n>"))
        assert terminal.end() == 126
        assert "nobody answered in time" in terminal.seen
    assert not (project / "ran").exists()


@in_the_hood
def test_ctrl_c_ends_it(run, project):
    with run("touch ran") as terminal:
        terminal.wait_for("\n>")
        terminal.type("\x03")
        assert terminal.end() == 130
    assert not (project / "ran").exists()


@in_the_hood
def test_after_ctrl_z_and_fg_the_question_is_shown_again_and_a_word_answers_it(home, project):
    need(can_scope(), "the host's network can't be shared here")
    need(shutil.which("bash") is not None, "there is no bash")
    # A shell that a person types at sets the terminal to lines again before they can type fg.
    line = 'set -m; "$@"; stty icanon echo; echo stopped; fg >/dev/null'
    command = ["bash", "-c", line, "sh", *command_line(), "run", "--network", "--", "touch ran"]
    with Terminal(command, project) as terminal:
        terminal.wait_for("\n>")
        terminal.type("\x1a")
        _, _, after = terminal.wait_for("stopped").partition("stopped")
        while "\n>" not in after:
            assert terminal.more()
            after = terminal.seen.partition("stopped")[2]
        assert f"fumehood: {ASKED} touch ran\r\n" in after
        terminal.type("y\n")
        assert terminal.end() == 0
    assert (project / "ran").exists()


@in_the_hood
@pytest.mark.parametrize("word", ["y", "n"])
def test_the_terminal_is_left_as_it_was(run, word):
    with run("true") as terminal:
        before = terminal.modes()
        terminal.wait_for("\n>")
        assert terminal.modes() != before
        terminal.type(f"{word}\n")
        terminal.wait_for("> y\r\nallow once\r\n" if word == "y" else "ERROR")
        assert terminal.modes() == before


@in_the_hood
def test_nothing_in_a_command_reaches_the_terminal_as_more_than_letters(run):
    with run("true \x1b[2J\x1b]0;title\x07 # \u202e\x9b31m \r  [y] allow\nfumehood: harmless?") as terminal:
        shown = terminal.wait_for("\n> ")
        terminal.type("n\n")
        assert terminal.end() == 126
    question = shown[shown.index("fumehood: ") :]
    # The question, whose words it quotes, the directory, the network, what escapes mean, the words.
    begun = [line[:4] for line in question.replace("\r", "").split("\n")]
    assert begun == ["fume", "  | ", "  (w", "  di", "  th", "  (\\", "  [y", "> "]
    for letter in ("\x1b", "\x07", "\u202e", "\x9b", "\r  ["):
        assert letter not in question.replace("\r\n", "\n")
    assert "\\x1b[2J" in question
    assert "\\nfumehood: harmless?" in question.replace("\r\n  | ", "")


def test_what_is_not_shown_is_said(home):
    question = asking.network_question("x" * 100_000, "/project", "/project", "01A")
    assert "CHARACTERS NOT SHOWN" in question_text(question)
    assert len(question_text(question)) < 5000


def test_all_six_answers_have_words_where_they_are_offered():
    details = ("as yourself",)
    question = asking.unsandboxed_question("git status", "/project", "/project", "01A", "/usr/bin/git", details)
    words = words_text(question, 60)
    for word in ("y", "session", "always", "n", "no-session", "never"):
        assert f"[{word}]" in words
    assert "  as yourself" in question_text(question)
    assert "session" not in words_text(question.replace(in_session=False), 60)


@in_the_hood
@pytest.mark.parametrize("options", [("--json",), ("--quiet",), ()])
def test_without_a_terminal_nobody_is_asked_and_the_answer_is_no(cli, project, options):
    done = cli("run", *options, "--network", "--", "touch ran")
    assert done.returncode == 126
    assert "Permission denied" in done.stdout + done.stderr
    assert not (project / "ran").exists()


@in_the_hood
def test_in_the_background_nobody_is_asked(home, project):
    line = 'set -m; "$@" & wait $!'
    command = ["sh", "-c", line, "sh", *command_line(), "run", "--network", "--", "touch ran"]
    with Terminal(command, project) as terminal:
        assert terminal.end() == 126
        assert "nobody was there to ask" in terminal.seen
    assert not (project / "ran").exists()


ANOTHER_ANSWERS = """
import sys, threading
from fumehood.core.questions import network_question
from fumehood.faces.cli.screen import terminal_asker
from fumehood.service.ask import ask_all

class Page:
    def put(self, asked):
        threading.Thread(target=lambda: (sys.stdin.buffer.read(0), go.wait(), asked.answer(True))).start()

go = threading.Event()
threading.Timer(0.3, go.set).start()
print(ask_all((*terminal_asker(), Page()), network_question("x", "/", "/", "1"), 60).answer)
print("fumehood-prompt" not in [thread.name for thread in threading.enumerate()])
"""


def test_when_somebody_else_answers_the_prompt_closes(home, project):
    path = f"import sys; sys.path[:0] = {[entry for entry in sys.path if entry]!r}\n"
    with Terminal([sys.executable, "-I", "-c", path + ANOTHER_ANSWERS], project) as terminal:
        assert terminal.end() == 0
        assert "> answered elsewhere: allow once" in terminal.seen
        assert "allow_once\r\nTrue" in terminal.seen


def test_an_answer_before_the_words_are_shown_is_none(home, project):
    """Somebody who typed on answered a question that they had not read."""
    path = f"import sys; sys.path[:0] = {[entry for entry in sys.path if entry]!r}\n"
    forever = "import fumehood.faces.cli.screen as screen; screen._QUIET_S = 1000\n"
    code = path + forever + ANOTHER_ANSWERS.replace("asked.answer(True)", "asked.answer(False)").replace("60)", "9e9)")
    with Terminal([sys.executable, "-I", "-c", code], project) as terminal:
        terminal.wait_for(ASKED)
        terminal.type("y\n")
        assert terminal.end() == 0
        assert "> answered elsewhere: deny" in terminal.seen
        assert "[y]" not in terminal.seen
        assert "deny_once\r\nTrue" in terminal.seen


# --- one question at a time ---


def threads_below(pid):
    """How many threads each process has that was started by one: it has two when it asks."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        return [len(os.listdir(f"/proc/{child}/task")) for child in children.read().split()]


@in_the_hood
def test_of_two_questions_the_second_is_shown_when_the_first_is_settled(home, project):
    """A yes to one was taken for the other, or shared between them, key by key."""
    need(can_scope(), "the host's network can't be shared here")
    # Not from the terminal, or the command that was allowed would read what is typed next.
    line = '"$@" "touch a" </dev/null & "$@" "touch b" </dev/null; wait'
    command = ["sh", "-c", line, "sh", *command_line(), "run", "--quiet", "--network", "--"]
    with Terminal(command, project) as terminal:
        terminal.wait_for("\n>")
        while sum(count > 1 for count in threads_below(terminal.process.pid)) < 2:
            terminal.read(0.01)
        terminal.type("y\n")
        terminal.wait_for("\nallow once\r\n")
        while terminal.seen.count("\n>") < 2:
            assert terminal.more()
        terminal.type("n\n")
        terminal.end()
    first, _, second = terminal.seen.partition("\nallow once\r\n")
    assert first.count(ASKED) == 1
    assert second.count(f"fumehood: {ASKED}") == 1
    assert (project / "a").exists() == ("touch a\r" in first)
    assert (project / "b").exists() == ("touch b\r" in first)
    assert (project / "a").exists() != (project / "b").exists()


@in_the_hood
def test_a_question_waits_for_its_turn_no_longer_than_for_its_answer(run, project, home):
    (home / ".config/fumehood").mkdir(parents=True)
    (home / ".config/fumehood/config.toml").write_text("ask_timeout = 0.2\n")
    with run("touch ran") as terminal, TerminalTurn(terminal._slave, str(home)) as other:
        assert other.wait(seconds=0)
        assert terminal.end() == 126
        assert "nobody answered in time" in terminal.seen
        assert "[y]" not in terminal.seen
    assert not (project / "ran").exists()
