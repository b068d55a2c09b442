"""Decisions: what is remembered for a session or for good, what a no leaves behind, and how grants are taken back."""

import asyncio
import threading

import pytest

from fumehood import BadRequest, Refused, Sandbox
from fumehood.core import questions
from fumehood.core.questions import apply_question
from fumehood.errors import ChangedMeanwhile
from fumehood.service.ask import channels
from fumehood.service.opened import OpenedStore
from fumehood.service.permission import Permissions
from patience import LONG_S
from people import Person

pytestmark = pytest.mark.once


@pytest.fixture
def store(home):
    store = OpenedStore()
    yield store
    store.close()


def question(**changed):
    fields = {"what": questions.UNSANDBOXED, "text": "Run it?", "command": "git status", "directory": "/project"}
    return questions.Question(**{**fields, "project": "/project", "target": "/usr/bin/git", **changed})


def permissions(store, person, session=None):
    return Permissions(store, channels(person), session)


def test_with_nobody_to_ask_it_is_a_no_without_a_question(store):
    decision = Permissions(store).decide(question())
    assert (decision.allowed, decision.reason) == (False, "nobody was there to ask")
    with pytest.raises(Refused, match=r"Permission denied: Run it$") as refusal:
        Permissions(store).require(question())
    assert refusal.value.hint == "nobody was there to ask"


@pytest.mark.parametrize("word", ["allow", "deny"])
def test_once_is_asked_again(store, word):
    person = Person(f"{word}_once")
    asking = permissions(store, person, {})
    for count in (1, 2):
        assert asking.decide(question()).allowed is (word == "allow")
        assert len(person.asked) == count
    assert store.grants.all() == []


@pytest.mark.parametrize("word", ["allow", "deny"])
def test_an_answer_for_the_session_holds_in_it_and_is_not_kept(store, word):
    person, session = Person(f"{word}_session"), {}
    for _ in range(2):
        assert permissions(store, person, session).decide(question()).allowed is (word == "allow")
    assert len(person.asked) == 1
    assert store.grants.all() == []
    permissions(store, person, {}).decide(question())
    assert len(person.asked) == 2


@pytest.mark.parametrize("word", ["allow", "deny"])
def test_an_answer_for_always_is_kept_for_its_project_and_program(store, word):
    person = Person(f"{word}_always")
    permissions(store, person).decide(question())
    again = OpenedStore()
    assert Permissions(again).decide(question()).allowed is (word == "allow")
    again.close()
    (grant,) = store.grants.all()
    assert (grant.what, grant.project, grant.target) == (questions.UNSANDBOXED, "/project", "/usr/bin/git")
    assert grant.answer == word
    for other in (question(project="/other"), question(target="/usr/bin/rm"), question(what=questions.NETWORK)):
        permissions(store, Person(False)).decide(other)
        assert not Permissions(store).decide(other).allowed


def test_a_no_for_the_session_comes_before_a_kept_yes(store):
    permissions(store, Person(questions.ALLOW_ALWAYS)).decide(question())
    assert not permissions(store, None, {question().key: questions.DENY}).decide(question()).allowed


def test_answers_for_a_session_are_not_offered_where_there_is_none(store):
    person = Person(questions.ALLOW_SESSION)
    assert permissions(store, person).decide(question()).answer == questions.ALLOW_ONCE
    assert questions.ALLOW_SESSION not in person.asked[0].options
    assert questions.ALLOW_ALWAYS in person.asked[0].options


@pytest.mark.parametrize("answer", questions.ANSWERS)
def test_of_a_one_time_question_nothing_is_kept_and_no_grant_counts(store, answer):
    session = {}
    once = question(one_time_only=True)
    permissions(store, Person(answer), session).decide(once)
    assert (session, store.grants.all()) == ({}, [])
    store.grants.keep(once.key, questions.ALLOW)
    assert not permissions(store, None, {once.key: questions.ALLOW}).decide(once).allowed


def test_a_later_answer_takes_the_place_of_an_earlier_and_can_be_revoked(store):
    store.grants.keep(question().key, questions.ALLOW)
    store.grants.keep(question().key, questions.DENY)
    (grant,) = store.grants.all()
    assert grant.answer == questions.DENY
    assert store.grants.revoke(grant.id) == grant
    assert store.grants.all() == []
    with pytest.raises(BadRequest, match="no grant"):
        store.grants.revoke(grant.id)


def test_names_that_are_not_utf_8_are_kept(store):
    odd = question(project="/a\udcff", target="/usr/bin/\udcfe")
    store.grants.keep(odd.key, questions.ALLOW)
    assert store.grants.find(odd.key) == questions.ALLOW
    assert (store.grants.all()[0].project, store.grants.all()[0].target) == ("/a\udcff", "/usr/bin/\udcfe")


def test_a_question_does_not_block_the_records(store):
    """While a person thinks, other commands go on."""
    seen, done = threading.Event(), threading.Event()

    def slow(_question):
        seen.set()
        assert done.wait(LONG_S)
        return True

    thread = threading.Thread(target=lambda: permissions(store, slow, {}).decide(question()))
    thread.start()
    assert seen.wait(LONG_S)
    store.grants.keep(("other", "", ""), questions.ALLOW)
    done.set()
    thread.join(LONG_S)


def test_what_can_not_be_asked_is_refused_before_a_sandbox_is_made(home, project):
    with pytest.raises(BadRequest, match="can't be asked"):
        Sandbox(project, ask="somebody")


def test_cancelling_the_wait_for_an_answer_withdraws_the_question(store):
    async def program():
        began = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def answer(_question):
            began.set()
            await asyncio.sleep(60)

        given_up = threading.Event()
        asking = permissions(store, None).with_asks(channels(answer, loop))
        task = asyncio.create_task(asyncio.to_thread(asking.decide, question(), given_up.is_set))
        await began.wait()
        given_up.set()
        assert not (await task).allowed

    asyncio.run(program())


@pytest.mark.namespaces
def test_a_question_that_is_foreseen_is_the_one_that_is_asked(home, project):
    (project / "sub").mkdir()
    person = Person(False)
    with Sandbox(project, ask=person) as sandbox:
        (foreseen,) = sandbox.questions("true", cwd="sub", network=True)
        with pytest.raises(Refused):
            sandbox.run("true", cwd="sub", network=True)
        assert foreseen.digest == person.asked[0].digest
        assert foreseen.lines == person.asked[0].lines
        assert sandbox.questions("true") == ()


def test_what_nobody_can_judge_is_refused_without_a_question(store):
    person = Person(True)
    hosts = tuple(f"decoy{number}.example" for number in range(300))
    with pytest.raises(Refused) as refusal:
        permissions(store, person, {}).require(questions.network_question("x", "/", "/", "1", hosts))
    assert "300 hosts at once" in refusal.value.hint
    assert len(refusal.value.hint) < 400
    assert person.asked == []


@pytest.mark.namespaces
def test_a_yes_is_for_the_changes_that_were_shown(home, project):
    """Somebody else throws away a part of what a run holds, between the question and its answer."""
    with Sandbox(project) as sandbox:
        run = sandbox.run("echo x >.envrc; mkdir .vscode; echo {} >.vscode/settings.json")
        assert run.state == "held"
        asked = apply_question(sandbox.find(run.run))
        sandbox.discard(run, ".envrc")
        with pytest.raises(ChangedMeanwhile, match="has changed since it was shown"):
            sandbox.apply(run, expected=asked.about)
        assert not (project / ".vscode").exists()
        again = apply_question(sandbox.find(run.run))
        assert again.digest != asked.digest
        assert sandbox.apply(run, expected=again.about).state == "applied"
    assert (project / ".vscode/settings.json").exists()
    assert not (project / ".envrc").exists()


@pytest.mark.namespaces
def test_what_another_run_holds_is_not_what_was_asked_about(home, project):
    with Sandbox(project) as sandbox:
        first, second = (sandbox.run("echo x >.envrc"), sandbox.run("mkdir .vscode; echo {} >.vscode/settings.json"))
        asked = apply_question(sandbox.find(first.run))
        with pytest.raises(ChangedMeanwhile):
            sandbox.apply(second, expected=asked.about)
    assert list(project.iterdir()) == []
