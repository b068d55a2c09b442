"""Going through what is held at a real terminal."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.namespaces

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 60


class Person:
    """Somebody at a terminal, who waits for a question before the next key."""

    def __init__(self, project: Path) -> None:
        self.terminal, theirs = pty.openpty()
        self.screen = ""
        code = "import sys; from fumehood.faces.cli.main import command; command()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "review"], cwd=project, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "NO_COLOR": "1"},
        )  # fmt: skip
        os.close(theirs)

    def waits_for(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.screen:
            ready, _, _ = select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))
            assert ready, self.screen
            try:
                self.screen += os.read(self.terminal, 4096).decode(errors="replace")
            except OSError:
                break
        assert text in self.screen, self.screen

    def types(self, key: str) -> None:
        self.waits_for("[q]uit > ")
        self.screen = ""
        # The flush of what was typed before comes after the question is written.
        time.sleep(0.2)
        os.write(self.terminal, key.encode())

    def leaves(self) -> int:
        code = self.process.wait(PATIENCE_S)
        os.close(self.terminal)
        return code


@pytest.fixture
def held(cli, project):
    (project / "a").write_text("a\n")
    cli("run", "--hold", "--", "echo A >> a; echo b > b; echo c > c; mkdir d; echo 1 > d/1")
    return project


def test_each_change_is_shown_and_decided_by_a_key(held, cli):
    person = Person(held)
    person.waits_for("+A")
    person.types("a")
    person.types("d")
    person.types("s")
    person.types("a")
    assert person.leaves() == 0
    assert (held / "a").read_text() == "a\nA\n"
    assert not (held / "b").exists()
    assert not (held / "c").exists()
    assert (held / "d/1").exists()
    (run,) = json.loads(cli("review", "--json").stdout)
    assert [change["path"] for change in run["changes"]] == ["c"]


def test_a_conflict_can_be_forced(held):
    (held / "a").write_text("the person's\n")
    person = Person(held)
    person.types("a")
    person.types("s")
    person.types("q")
    assert person.leaves() == 0
    assert (held / "a").read_text() == "the person's\n"
    person = Person(held)
    person.waits_for("[f]orce")
    person.types("f")
    person.types("D")
    assert person.leaves() == 0
    assert (held / "a").read_text() == "a\nA\n"
    assert not (held / "b").exists()


def test_without_a_terminal_it_is_told_what_waits(held, cli):
    told = cli("review").stdout
    assert "+A" in told
    assert "fumehood apply" in told
    cli("discard", "last")
    assert cli("review").stdout == "nothing waits\n"
    refused = cli("review", "last")
    assert refused.returncode == 125
    assert "holds nothing: it is discarded" in refused.stderr


def test_an_escape_sequence_in_what_is_held_does_not_reach_the_terminal(project, cli):
    cli("run", "--hold", "--", "printf 'x\\033]0;owned\\007y\\n' > \"$(printf 'n\\033[2Jame')\"")
    person = Person(project)
    person.types("q")
    assert person.leaves() == 0
    assert "\x1b]0;" not in person.screen
    assert "\x1b[2J" not in person.screen
