"""Going through what is held at a real terminal."""

import json
import signal
import sys
from pathlib import Path

import pytest

from at_terminal import Terminal
from fumehood.linux.terminal import TerminalTurn

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

_QUESTION = "[quit] > "


class Person(Terminal):
    """Somebody who goes through what is held, and waits for a question before the next word."""

    def __init__(self, project: Path) -> None:
        source = str(Path(__file__).parents[2] / "src")
        code = f"import sys; sys.path.insert(0, {source!r}); from fumehood.faces.cli.main import command; command()"
        super().__init__(["env", "NO_COLOR=1", sys.executable, "-c", code, "review", "--lines"], project)
        self._answered = 0

    def types(self, words: str) -> None:
        """Answer the next question."""
        while self.seen.count(_QUESTION) <= self._answered:
            assert self.more(), self.seen
        self._answered += 1
        self.type(f"{words}\n")


@pytest.fixture
def held(cli, project):
    (project / "a").write_text("a\n")
    cli("run", "--hold", "--", "echo A >> a; echo b > b; echo c > c; mkdir d; echo 1 > d/1")
    return project


@pytest.mark.long
def test_each_change_is_shown_and_decided_by_a_word(held, cli):
    with Person(held) as person:
        person.wait_for("+A")
        person.types("apply")
        person.types("discard")
        person.types("skip")
        person.types("apply")
        assert person.end() == 0
    assert (held / "a").read_text() == "a\nA\n"
    assert not (held / "b").exists()
    assert not (held / "c").exists()
    assert (held / "d/1").exists()
    (run,) = json.loads(cli("review", "--json").stdout)["runs"]
    assert [change["path"] for change in run["changes"]] == ["c"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_it_with_the_terminal_as_it_was(held, number):
    with Person(held) as person:
        person.wait_for(_QUESTION)
        assert person.modes() != person.before
        person.process.send_signal(number)
        assert person.end() == -number
        assert person.modes() == person.before


@pytest.mark.long
def test_a_conflict_can_be_forced(held):
    (held / "a").write_text("the person's\n")
    with Person(held) as person:
        person.types("apply")
        person.types("skip")
        person.types("quit")
        assert person.end() == 0
    assert (held / "a").read_text() == "the person's\n"
    with Person(held) as person:
        person.wait_for("[force]")
        person.types("force")
        person.types("discard all")
        assert person.end() == 0
    assert (held / "a").read_text() == "a\nA\n"
    assert not (held / "b").exists()


def test_a_letter_or_another_word_decides_nothing(held):
    """`clear` applied a change by its a, and `ADD` the whole run."""
    with Person(held) as person:
        for typed in ("clear", "a", "A", "all", "D"):
            person.types(typed)
            person.wait_for("one of: apply, discard, skip, apply all, discard all, quit")
        person.types("quit")
        assert person.end() == 0
    assert (held / "a").read_text() == "a\n"
    assert not (held / "b").exists()


def test_without_a_terminal_it_is_told_what_waits(held, cli):
    told = cli("review").stdout
    assert "+A" in told
    assert "fumehood apply" in told
    cli("discard", "last")
    assert cli("review").stdout == "nothing is held\n"
    refused = cli("review", "last")
    assert refused.returncode == 125
    assert "holds nothing: it is discarded" in refused.stderr


def test_an_escape_sequence_in_what_is_held_does_not_reach_the_terminal(project, cli):
    cli("run", "--hold", "--", "printf 'x\\033]0;owned\\007y\\n' > \"$(printf 'n\\033[2Jame')\"")
    with Person(project) as person:
        person.types("quit")
        assert person.end() == 0
    assert "\x1b]0;" not in person.seen
    assert "\x1b[2J" not in person.seen


@pytest.mark.long
def test_a_word_is_for_what_was_shown(held, cli):
    """Another process throws away a part of the run while the person looks at it."""
    with Person(held) as person:
        shown = person.wait_for(_QUESTION)
        assert "the whole run holds" in shown
        assert cli("discard", "last", "b").returncode == 0
        person.types("apply all")
        person.wait_for("has changed since it was shown")
        assert not (held / "c").exists()
        person.types("apply all")
        assert person.end() == 0
    assert sorted(path.name for path in held.iterdir()) == ["a", "c", "d"]


def test_an_undo_says_what_came_later_and_waits(project, cli):
    cli("run", "--hold", "--", "echo 1 > early")
    cli("run", "--", "echo 2 > applied")
    cli("run", "--hold", "--", "echo 3 > late")
    told = cli("undo").stdout
    assert "that was run 2;" in told
    assert told.endswith("  run 3 came later and is held; to throw it away: fumehood discard 3\n")
    assert "run 1 " not in told


def test_an_undo_says_that_what_the_run_held_waits_no_longer(project, cli):
    cli("run", "--hold", "--", "echo 1 > a; echo 2 > b; echo 3 > c")
    cli("apply", "last", "a")
    assert "  2 changes that it held: no longer waiting\n" in cli("undo").stdout
    assert "hint: fumehood redo 1\n" in cli("apply", "1").stderr
    assert "  2 changes that it holds: waiting again\n" in cli("redo").stdout
    assert "waiting" not in cli("undo", "1", "a").stdout
    assert cli("apply", "1", "b").returncode == 0


def test_all_that_one_word_takes_is_named_the_dangerous_first(project, cli):
    hook = "mkdir -p .git/hooks; echo x >.git/hooks/pre-push"
    cli("run", "--hold", "--", f"for n in $(seq 30); do echo x >decoy$n; done; {hook}")
    with Person(project) as person:
        shown = person.wait_for(_QUESTION)
        person.types("quit")
        assert person.end() == 0
    named = [line.strip() for line in shown.splitlines() if line.startswith("  added")]
    assert named[0].startswith("added .git/hooks/pre-push")
    assert "MORE, NOT SHOWN: 13 other changes" in shown


def test_while_review_asks_nobody_else_may_on_the_same_terminal(held, home):
    with Person(held) as person, TerminalTurn(person._slave, str(home)) as other:
        person.wait_for(_QUESTION)
        assert not other.wait(seconds=0)
        person.types("quit")
        assert person.end() == 0
        assert other.wait(seconds=0)
