"""What leaves the Python face: a program's own errors as they are, and all others in our words."""

import asyncio
import os
import shutil

import pytest

from fumehood import BadRequest, FumehoodError, Sandbox, Unforeseen
from processes import LONG, left_over

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

LINE = f"echo x > f; echo ready; sleep {LONG}.46"
OWN = (asyncio.CancelledError("mine"), BrokenPipeError(32, "mine"), TimeoutError("mine"), UnicodeError("mine"))


def attended(sandbox: Sandbox, face: str, line: str, options):
    """Have a command run to its end, by any of the four ways."""

    async def started():
        return await (await sandbox.astart(line, **options))

    calls = {
        "run": lambda: sandbox.run(line, **options), "arun": lambda: asyncio.run(sandbox.arun(line, **options)),
        "start": lambda: sandbox.start(line, **options).wait(), "astart": lambda: asyncio.run(started()),
    }  # fmt: skip
    return calls[face]()


@pytest.mark.parametrize("error", OWN, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("face", "name"), [("run", "on_output"), ("arun", "on_output"), ("start", "on_change"), ("astart", "on_change")]
)
def test_a_function_ends_its_command_by_whatever_it_raises_and_that_is_what_the_program_gets(
    sandbox, project, face, name, error
):
    fresh = type(error)(*error.args)

    def fails(*_words):
        raise fresh

    with pytest.raises(type(error)) as raised:
        attended(sandbox, face, LINE, {name: fails})
    assert raised.value is fresh
    assert not left_over(f"{LONG}.46")
    (run,) = sandbox.history()
    assert run.reason == f"{name} raised {type(error).__name__}: {error}"
    assert os.listdir(project) == []


def test_a_coroutine_function_that_is_cancelled_from_within_ends_its_command(sandbox):
    async def on_output(_stream, _text):
        raise asyncio.CancelledError("mine")

    with pytest.raises(asyncio.CancelledError, match="mine"):
        asyncio.run(sandbox.arun(LINE, on_output=on_output))
    assert not left_over(f"{LONG}.46")


@pytest.mark.parametrize("name", ["on_output", "cancelled"])
def test_the_end_of_an_iterator_does_not_leave_an_event_loop_waiting(sandbox, name):
    nothing = iter(())
    with pytest.raises(RuntimeError, match="StopIteration"):  # as Python says it of every coroutine
        asyncio.run(sandbox.arun(LINE, **{name: lambda *_: next(nothing)}))
    assert not left_over(f"{LONG}.46")


def test_a_question_whose_answer_is_cancelled_is_cancelled_for_who_awaits_the_run(sandbox):
    async def ask(_question):
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(sandbox.arun("true", network=True, ask=ask))


def test_what_a_function_for_variables_raises_is_what_the_program_gets(project):
    def variables():
        raise FileNotFoundError(2, "no vault")

    with Sandbox(project, variables=variables) as sandbox, pytest.raises(FileNotFoundError, match="no vault"):
        sandbox.run("true")


def test_what_a_function_about_candidates_raises_is_what_the_program_gets(sandbox):
    def fails(_candidate):
        raise BrokenPipeError(32, "mine")

    with pytest.raises(BrokenPipeError, match="mine"):
        sandbox.best("true", 1, on_candidate=fails)


@pytest.mark.parametrize("in_its_place", ["nothing", "file"])
def test_whatever_is_asked_of_a_project_that_is_gone_is_refused_with_its_name(sandbox, project, in_its_place):
    sandbox.run("echo x > f")
    held = sandbox.run("echo x > g", apply="hold")
    shutil.rmtree(project)
    if in_its_place == "file":
        project.touch()
    calls = (
        sandbox.undo, lambda: sandbox.undo(1), lambda: sandbox.apply(held), sandbox.capabilities,
        lambda: sandbox.read_file("f"), lambda: sandbox.start("true").wait(),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(BadRequest, match=f"the project {project} is not there any more"):
            call()


def test_what_the_system_refuses_is_an_error_of_ours_whatever_is_asked(sandbox, monkeypatch):
    def refuses(*_arguments, **_options):
        raise PermissionError(13, "Permission denied", "/somewhere")

    monkeypatch.setattr(sandbox._store.history, "runs", refuses)
    with pytest.raises(Unforeseen, match="Permission denied: '/somewhere'") as raised:
        sandbox.history()
    assert isinstance(raised.value, FumehoodError)
    assert isinstance(raised.value.__cause__, PermissionError)
