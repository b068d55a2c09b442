"""Directories that a person gave the client: offered as roots once in a session, and never added without an answer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood.core.questions import Question
from fumehood.core.report import READ_ONLY
from fumehood.core.request import Request
from fumehood.linux.launch import start
from fumehood.service.ask import Callback
from fumehood.service.hood import Caller, Hood
from fumehood.service.opened import OpenedStore
from fumehood.service.permission import Permissions
from fumehood.service.sandbox import run_in

pytestmark = pytest.mark.namespaces


@pytest.fixture
def beside(test_directory: Path) -> Path:
    place = test_directory / "beside"
    place.mkdir()
    return place


@pytest.fixture
def hood(home: Path, project: Path) -> Callable[..., Hood]:
    def make(answer: Callable[[Question], object] | None = None) -> Hood:
        store = OpenedStore(face="cli")
        asks = () if answer is None else (Callback(answer),)
        opened = store.projects.open(str(project))
        return Hood(store, opened, store.policy_of(opened), start, Permissions(store, asks))

    return make


def asked_for(path: Path, command: str = "touch f", *, session: str = "s", there: bool = True) -> Request:
    return Request(command=command, session=session, cwd=str(path) if there else "", client_directories=(str(path),))


def test_a_yes_makes_it_a_root_from_that_command_on(hood: Callable[..., Hood], beside: Path) -> None:
    questions: list[Question] = []

    def yes(question: Question) -> bool:
        questions.append(question)
        return True

    working = hood(yes)
    assert run_in(working, asked_for(beside), Caller()).state == "applied"
    assert (beside / "f").exists()
    assert [question.target for question in questions] == [str(beside)]
    again = run_in(working, asked_for(beside, "touch g", session="other"), Caller())
    assert (again.state, again.blocked, len(questions)) == ("applied", (), 1)
    assert hood().project.extra == (str(beside),)


def test_a_no_is_asked_once_in_a_session_and_the_command_runs_read_only(
    hood: Callable[..., Hood], beside: Path
) -> None:
    questions: list[Question] = []

    def no(question: Question) -> bool:
        questions.append(question)
        return False

    for session, count in (("s", 1), ("s", 1), ("t", 2)):
        run = run_in(hood(no), asked_for(beside, session=session), Caller())
        assert "Read-only file system" in run.stderr
        assert len(questions) == count
    assert not (beside / "f").exists()
    assert hood().project.extra == ()


def test_where_nobody_is_the_agent_is_told_once_and_only_of_what_it_uses(
    hood: Callable[..., Hood], beside: Path
) -> None:
    def told(request: Request) -> list[str]:
        return [each.detail for each in run_in(hood(), request, Caller()).blocked if each.what == READ_ONLY]

    assert told(asked_for(beside, "true", there=False)) == []
    assert told(asked_for(beside, f"ls {beside}", there=False)) == [str(beside)]
    assert told(asked_for(beside)) == []
    assert told(asked_for(beside, session="t")) == [str(beside)]
    assert hood().project.extra == ()


def test_what_can_be_no_root_is_not_offered(hood: Callable[..., Hood], home: Path, project: Path) -> None:
    def never(question: Question) -> bool:
        raise AssertionError(question.text)

    (project / "sub").mkdir()
    for path in (Path("/"), home, Path("/usr"), project, project / "sub", project.parent, home / "gone"):
        run = run_in(hood(never), asked_for(path, f"ls {path}", there=False), Caller())
        assert not [each for each in run.blocked if each.what == READ_ONLY], path


def test_of_a_link_the_person_is_asked_about_what_it_leads_to(
    hood: Callable[..., Hood], beside: Path, test_directory: Path
) -> None:
    link = test_directory / "link"
    link.symlink_to(beside)
    questions: list[Question] = []

    def no(question: Question) -> bool:
        questions.append(question)
        return False

    run_in(hood(no), asked_for(link, f"ls {link}", there=False), Caller())
    assert f"{link} → {beside}" in questions[0].text
