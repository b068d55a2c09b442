"""Who reaches the desk: this person's own processes; no command in the hood, and nobody else."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trees
from fumehood import Policy, Sandbox
from fumehood.core.questions import DENY_ONCE, Question
from fumehood.service.ask import Desk, Reply, ask_all
from fumehood.service.opened import OpenedStore
from patience import LONG_S, eventually

ASKED = Question(what="w", text="t", command="c", directory="/", project="/", target="x")
OTHER_USER = 65534

# Looks for the question by every path that leads to it outside, and tries to answer it.
ATTACK = """
for at in {desk} /proc/*/root{desk} /proc/*/cwd{desk} {open}; do
    ls -d "$at" 2>/dev/null && echo SEEN
    mv "$at/{key}.question" "$at/{key}.allow_once.answer" 2>/dev/null && echo ANSWERED
done
mkdir -p {desk} 2>/dev/null && touch {desk}/{key}.allow_once.answer {desk}/x.present 2>/dev/null
fumehood notify 2>&1; fumehood web 2>&1
echo done
"""


@pytest.fixture
def desk(home: Path) -> Desk:
    return Desk(OpenedStore().places)


def answered_while(desk: Desk, act: Callable[[str], object]) -> str:
    """Have a question lie there while something is done with it; returns its answer, which is given afterwards."""
    replies: list[Reply] = []
    asking = threading.Thread(target=lambda: replies.append(ask_all([desk], ASKED, LONG_S)), daemon=True)
    with desk.attend():
        asking.start()
        assert eventually(desk.waiting)
        (waiting,) = desk.waiting()
        act(waiting.id)
        assert waiting.is_open
        assert waiting.answer(DENY_ONCE)
        asking.join()
    return replies[0].answer


@pytest.mark.namespaces
@pytest.mark.parametrize("root", ["host", "alpine"])
@pytest.mark.parametrize("session", [None, "s"])
def test_no_command_sees_the_desk_or_answers_there(
    root: str, session: str | None, desk: Desk, project: Path, test_directory: Path
) -> None:
    chosen = "host" if root == "host" else str(trees.make_tree(test_directory / "tree"))
    where = OpenedStore().places.desk

    def attack(key: str) -> None:
        opened = f"/proc/{os.getpid()}/cwd /proc/{os.getppid()}/root{where}"
        with Sandbox(project, Policy(), session=session) as sandbox:
            run = sandbox.run(ATTACK.format(desk=where, key=key, open=opened), root=chosen, apply="discard")
        assert run.output.splitlines()[-1] == "done"
        assert "SEEN" not in run.output
        assert "ANSWERED" not in run.output

    assert answered_while(desk, attack) == DENY_ONCE


OTHER = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
where, key = sys.argv[1:]
def tried(act, *words):
    try:
        act(*words)
        return "done"
    except OSError as error:
        return type(error).__name__
print(tried(os.listdir, where))
print(tried(os.rename, f"{where}/{key}.question", f"{where}/{key}.allow_once.answer"))
print(tried(os.open, f"{where}/x.present", os.O_CREAT | os.O_WRONLY))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_can_neither_see_nor_answer(desk: Desk, home: Path) -> None:
    where = OpenedStore().places.desk
    for parent in (home, *home.parents):
        if parent.is_relative_to("/var/tmp/") and parent != Path("/var/tmp"):
            parent.chmod(parent.stat().st_mode | stat.S_IXOTH)  # whatever the way there is

    def attack(key: str) -> None:
        command = [sys.executable, "-c", OTHER, where, key]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
        assert done.stdout.split() == ["PermissionError"] * 3

    assert answered_while(desk, attack) == DENY_ONCE


def test_the_desk_and_all_that_lies_there_is_for_its_owner_alone(desk: Desk) -> None:
    modes: dict[str, Any] = {}

    def look(_key: str) -> None:
        for path in (Path(OpenedStore().places.desk), *Path(OpenedStore().places.desk).iterdir()):
            modes[path.suffix] = stat.S_IMODE(path.stat().st_mode)

    answered_while(desk, look)
    assert modes == {"": 0o700, ".question": 0o600, ".present": 0o600}


@pytest.mark.parametrize("key", ["", "../x", "a" * 400, "x.question", "ä", "a/b", "\0"])
def test_a_name_that_is_no_question_s_leads_nowhere(desk: Desk, key: str) -> None:
    from fumehood import BadRequest

    with pytest.raises(BadRequest, match="does not name a question"):
        desk.answer(key, True)
