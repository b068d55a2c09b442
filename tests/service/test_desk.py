"""The desk: a question reaches whoever is present, in another process, and is answered once.

Only this person's own processes reach it: no command in the hood, and nobody else.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fumehood
import trees
from conftest import command_line, need
from fumehood import BadRequest, Policy, Sandbox
from fumehood.core.policy import EVERY_HOST
from fumehood.core.questions import ALLOW_ONCE, DENY_ONCE, NOBODY, Question, apply_question, network_question
from fumehood.core.wording import Item
from fumehood.linux.confine import can_scope
from fumehood.service.ask import Asked, Desk, Reply, ask_all
from fumehood.service.opened import OpenedStore
from fumehood.service.overview import missed_questions
from patience import LONG_S, eventually

HOSTILE = Question(
    what="network", text="Run command with network access: \x1b[2Jcurl \udcff?", command="\x1b[2Jcurl \udcff",
    directory="/work", project="/work", target="r1", details=("example.org:443",), one_time_only=True, run="r1",
    items=(Item(name="example.org:443", kind=("host", "hosts"), danger=1),),
)  # fmt: skip

# Stands at the desk as a page would, in a process of its own, and gives one answer.
PERSON = """
import sys, time
from fumehood.service.ask import Desk
from fumehood.store.places import places
desk = Desk(places())
with desk.attend():
    print("here", flush=True)
    while not desk.waiting():
        time.sleep(0.02)
    print(desk.answer(desk.waiting()[0].id, sys.argv[1]), flush=True)
"""

ASKER = """
from fumehood.core.questions import Question
from fumehood.service.ask import Asked, ask_all
from fumehood.service.ask import Desk
from fumehood.store.places import places
question = Question(what="w", text="t", command="c", directory="/", project="/", target="x")
ask_all([Desk(places())], question, 60)
"""


@pytest.fixture
def desk(home: Path) -> Desk:
    return Desk(OpenedStore().places)


def person(answer: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", PERSON, answer], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


@pytest.mark.parametrize(("answer", "code"), [(ALLOW_ONCE, 0), (DENY_ONCE, 126)])
def test_a_command_with_no_terminal_is_answered_by_somebody_at_the_desk(
    project: Path, answer: str, code: int
) -> None:
    need(can_scope() or code != 0, "the host's network can't be shared here")
    somebody = person(answer)
    command = [sys.executable, "-m", "fumehood", "run", "--network", "--", "true"]
    done = subprocess.run(command, cwd=project, stdin=subprocess.DEVNULL, start_new_session=True, check=False)
    assert (done.returncode, somebody.communicate()[0]) == (code, "True\n")


def test_what_was_asked_is_shown_as_it_was_asked_and_the_first_answer_counts(desk: Desk) -> None:
    replies = []
    with desk.attend():
        asking = threading.Thread(target=lambda: replies.append(ask_all([desk], HOSTILE, 60)))
        asking.start()
        assert eventually(desk.waiting)
        (waiting,) = desk.waiting()
        assert waiting.question == HOSTILE
        assert waiting.as_dict()["options"] == [ALLOW_ONCE, DENY_ONCE]
        assert "\x1b" not in "".join(waiting.as_dict()["lines"])
        with pytest.raises(fumehood.BadRequest):
            desk.answer(waiting.id, "perhaps")
        assert [desk.answer(waiting.id, True), desk.answer(waiting.id, False)] == [True, False]
        asking.join()
        assert not desk.waiting()
    assert [reply.answer for reply in replies] == [ALLOW_ONCE]


def test_with_nobody_present_the_answer_is_no_at_once_and_the_question_is_kept(project: Path) -> None:
    with fumehood.Sandbox(project) as sandbox:
        with pytest.raises(fumehood.Refused, match=r"echo a") as refused:
            sandbox.run("echo a", network=True)
        assert NOBODY in refused.value.hint
        for _ in range(2):
            with pytest.raises(fumehood.Refused):
                sandbox.run("echo b", network=["example.org"])
    grants = OpenedStore().grants
    commands = [(each.command, "config" in each.ahead) for each in grants.missed(str(project))]
    assert commands == [("echo b", True), ("echo a", True)]
    assert grants.missed("/another") == []
    assert grants.forget_missed(grants.missed()[0].id)
    assert [each.command for each in grants.missed()] == ["echo a"]


def test_a_question_of_a_process_that_died_is_gone(desk: Desk) -> None:
    with desk.attend():
        asker = subprocess.Popen([sys.executable, "-c", ASKER])
        assert eventually(desk.waiting)
        (waiting,) = desk.waiting()
        asker.kill()
        asker.wait()
        assert desk.waiting() == []
        assert not desk.answer(waiting.id, True)


@pytest.mark.parametrize("to", ["this thread", "another"])
def test_an_interrupt_while_a_question_is_laid_down_is_an_interrupt(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    register = Asked.on_close

    def register_and_interrupt(asked: Asked, closing: Callable[[], object]) -> None:
        register(asked, closing)
        if to == "another":
            raise KeyboardInterrupt  # what Python does here then
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Asked, "on_close", register_and_interrupt)
    with desk.attend(), pytest.raises(KeyboardInterrupt):
        ask_all([desk], HOSTILE, LONG_S)
    assert desk.waiting() == []
    assert "fumehood-desk" not in {thread.name for thread in threading.enumerate()}


def test_somebody_who_leaves_is_no_longer_present(desk: Desk) -> None:
    somebody = person(ALLOW_ONCE)
    assert desk.is_attended_for("/work")
    somebody.kill()
    somebody.communicate()
    assert not desk.is_attended_for("/work")
    with desk.attend():
        assert desk.is_attended_for("/work")
    assert not desk.is_attended_for("/work")


# ---- A program that answers.


def asking_in_a_thread(project: Path, hosts: list[str], outcomes: list[object]) -> threading.Thread:
    """Have the commands of another sandbox ask for hosts, one after the other."""

    def ask() -> None:
        with fumehood.Sandbox(project, fumehood.Policy()) as sandbox:
            for host in hosts:
                try:
                    sandbox.require(network_question(host, str(project), str(project), "r", (host,)))
                    outcomes.append(True)
                except fumehood.Refused:
                    outcomes.append(False)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_a_forked_process_does_not_end_the_presence_of_its_parent(desk: Desk) -> None:
    presence = desk.attend()
    with presence:
        child = os.fork()
        if child == 0:
            presence.__exit__()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert desk.is_attended_for("/work"), "the child has left in its parent's place"


def test_a_program_answers_what_others_ask_each_once_and_is_present_meanwhile(project: Path, desk: Desk) -> None:
    outcomes: list[object] = []
    with fumehood.Sandbox(project) as sandbox, sandbox.open_questions() as questions:
        assert desk.is_attended_for(str(project))
        assert not desk.is_attended_for("/another")
        asking = asking_in_a_thread(project, ["a.example", "b.example"], outcomes)
        for number, each in enumerate(questions):
            assert (each.question.details, each.is_open) == ((f"{'ab'[number]}.example",), True)
            assert each.answer(number == 0)
            assert not each.answer(True)
            assert not each.is_open
            if number:
                questions.close()
        asking.join()
    assert outcomes == [True, False]
    assert not desk.is_attended_for(str(project))


def test_a_program_with_an_event_loop_answers_its_own_commands_too(project: Path, desk: Desk) -> None:
    async def main() -> fumehood.Run:
        with fumehood.Sandbox(project) as sandbox:
            questions = sandbox.open_questions()

            async def answer() -> None:
                async for each in questions:
                    assert each.question.options == (ALLOW_ONCE, DENY_ONCE)
                    with pytest.raises(fumehood.BadRequest, match=r"does not answer this question"):
                        each.answer("allow_always")
                    each.answer(ALLOW_ONCE)
                    return

            run, _ = await asyncio.gather(sandbox.arun("echo ran", network=["example.org"]), answer())
            return run

    run = asyncio.run(main())
    assert (run.output, run.hosts) == ("ran\n", ("example.org",))
    assert not desk.is_attended_for(str(project))


def test_who_answers_for_one_project_is_nobody_for_another(project: Path, desk: Desk, test_directory: Path) -> None:
    (test_directory / "another").mkdir()
    outcomes: list[object] = []
    with fumehood.Sandbox(test_directory / "another") as sandbox:
        with sandbox.open_questions():
            asking_in_a_thread(project, ["a.example"], outcomes).join()
        assert outcomes == [False]
        with sandbox.open_questions(every_project=True) as questions:
            asking = asking_in_a_thread(project, ["a.example"], outcomes)
            next(iter(questions)).answer(True)
            asking.join()
    assert outcomes == [False, True]


def test_who_lets_go_of_the_questions_is_no_longer_present(project: Path, desk: Desk) -> None:
    with fumehood.Sandbox(project) as sandbox:
        questions = sandbox.open_questions()
        assert desk.is_attended_for(str(project))
        del questions
        gc.collect()
        assert not desk.is_attended_for(str(project))


def test_every_question_that_was_missed_has_the_line_that_allows_it(
    project: Path, home: Path, test_directory: Path
) -> None:
    (test_directory / "an other").mkdir()
    (home / ".npmrc").touch()
    with fumehood.Sandbox(project) as sandbox:
        held = sandbox.run("mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit")
        assert held.state == "held"
        for ask in (
            lambda: sandbox.add_root(test_directory / "an other"),
            lambda: sandbox.request_access(host="example.org"),
            lambda: sandbox.request_access(show="~/.npmrc"),
            lambda: sandbox.require(apply_question(held)),
        ):
            with pytest.raises(fumehood.Refused):
                ask()
    lines = [each.ahead.partition(": ")[2] for each in reversed(OpenedStore().grants.missed(str(project)))]
    assert lines == [
        f"fumehood roots add '{test_directory / 'an other'}' --project {project}",
        f"fumehood ask example.org --project {project}",
        f"fumehood ask --show {home / '.npmrc'} --project {project}",
        f"fumehood review {held.name}",
    ]
    for line in lines[:3]:
        # It is understood; nobody is at a terminal to say yes.
        words = [*command_line(), *shlex.split(line)[1:]]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True, check=False
        )
        assert (done.returncode, NOBODY in done.stderr) == (126, True), done


def test_what_was_missed_is_listed_until_it_is_allowed(project: Path, home: Path, test_directory: Path) -> None:
    second, third = test_directory / "second", test_directory / "third"
    for each in (second, third, home / "notes", home / ".config/fumehood"):
        each.mkdir(parents=True)
    store = OpenedStore()
    configuration = home / ".config/fumehood/config.toml"

    def listed() -> list[str]:
        return [each.target for each in reversed(missed_questions(store, str(project)))]

    with fumehood.Sandbox(project) as sandbox:
        held = sandbox.run("mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit")
        for ask in (
            lambda: sandbox.run("true", network=True),
            lambda: sandbox.run("true", network=["a.example.org", "b.example.org"]),
            lambda: sandbox.run("true", write=[second]),
            lambda: sandbox.add_root(third),
            lambda: sandbox.request_access(host="c.example.org"),
            lambda: sandbox.request_access(show=home / "notes"),
            lambda: sandbox.require(apply_question(held)),
        ):
            with pytest.raises(fumehood.Refused):
                ask()
        names = [EVERY_HOST, "a.example.org\nb.example.org", str(second), str(third)]
        names += ["c.example.org", str(home / "notes"), held.run]
        assert listed() == names
        sandbox.discard(held)
        configuration.write_text('hosts = ["a.example.org", "c.example.org"]\nshow = ["~/notes"]\n')
        assert listed() == names[:4]
        for root in (second, third):
            store.projects.add_root(store.projects.open(str(project)), str(root))
        configuration.write_text('hosts = ["*.example.org"]\nshow = ["~/notes"]\n')
        assert listed() == names[:1]
        configuration.write_text('network = "full"\nshow = ["~/notes"]\n')
        assert listed() == []


def test_what_was_missed_and_is_answered_later_is_missed_no_more(project: Path) -> None:
    with fumehood.Sandbox(project) as alone, pytest.raises(fumehood.Refused):
        alone.run("true", network=["example.org"])
    store = OpenedStore()
    assert len(store.grants.missed()) == 1
    with fumehood.Sandbox(project, ask=lambda _: False) as sandbox, pytest.raises(fumehood.Refused):
        sandbox.run("true", network=["example.org"])
    assert store.grants.missed() == []


ASKED = Question(what="w", text="t", command="c", directory="/", project="/", target="x")

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
    with pytest.raises(BadRequest, match="does not name a question"):
        desk.answer(key, True)
