"""Whatever a program passes that can't be meant is refused by one class of errors, in a sentence and with a hint."""

import asyncio
import inspect
import sys

import pytest

from fumehood import BadRequest, FumehoodError, Sandbox, Unavailable, Unforeseen, rootfs
from fumehood.core.request import check_request

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

# Of the wrong type, with a NUL, half a letter, below zero, endless, empty.
WRONG = (
    -1, 1.5, float("nan"), 10**30, True, "", "x\0y", "a\ud800", b"x", [], [5], ["x\0"], {"a": 5}, {5: "a"}, object(),
    (1, 2, 3),
)  # fmt: skip
# What a method needs besides the one that is wrong.
USUAL = {
    "command": "true", "run": "last", "path": "f", "data": "x", "name": "one", "env": {"A": "b"}, "n": 1,
    "arguments": {"command": "true"}, "host": "example.org",
}  # fmt: skip
# They start something, end all, or are passed what we have made.
LEFT_OUT = ("fleet", "close", "discard", "capabilities", "refusal", "only_news", "require", "best")


def refused(method, name, wrong, **needed) -> FumehoodError | None:
    """Pass what is wrong, and the rest as it should be; an error of another class fails the test."""
    parameters = inspect.signature(method).parameters.values()
    needed |= {each.name: USUAL[each.name] for each in parameters if each.name in USUAL}
    try:
        done = method(**{**needed, name: wrong})
        if inspect.isawaitable(done):
            asyncio.run(done)
    except FumehoodError as error:
        return error
    return None


@pytest.mark.parametrize("face", ["Sandbox", "session", "Draft"])
def test_every_argument_that_nobody_can_mean_is_refused_in_our_words(sandbox: Sandbox, monkeypatch, face):
    sandbox.run("echo x > f")
    used = {"Sandbox": sandbox, "session": sandbox.session("s"), "Draft": sandbox.draft("d")}[face]

    def reached(_hood, request, _wishes):  # nothing need run for this
        check_request(request)
        raise BadRequest("it would run", hint="fine")

    monkeypatch.setattr("fumehood.service.commands.run_in", reached)
    options = inspect.signature(used.run).parameters
    tried = 0
    for name, method in inspect.getmembers(used, inspect.ismethod):
        if name.startswith("_") or name in LEFT_OUT:
            continue
        parameters = dict(inspect.signature(method).parameters)
        if parameters.pop("options", None) is not None:
            parameters |= {key: options[key] for key in ("cwd", "timeout", "apply", "env", "write", "on_change")}
        for parameter in parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL or parameter.name == "beside":
                continue
            for wrong in WRONG:
                error = refused(method, parameter.name, wrong)
                tried += 1
                assert not isinstance(error, Unforeseen), (name, parameter.name, wrong)
                assert error is None or error.hint, (name, parameter.name, wrong, error.message)
    assert tried > 100


@pytest.mark.parametrize("name", ["n", "jobs", "check", "score", "timeout", "on_candidate", "keep"])
def test_best_is_refused_what_nobody_can_mean_before_anything_begins(sandbox: Sandbox, name):
    for wrong in (-1, float("nan"), "x\0y", b"x", [5], object()):
        if error := refused(sandbox.best, name, wrong):
            assert error.hint, wrong
            assert sandbox.drafts() == []
        else:
            pytest.fail(f"{wrong!r} is taken for {name}")


@pytest.mark.parametrize("name", ["project", "policy", "ask", "session", "draft", "own_tmp", "variables", "cwd"])
def test_a_sandbox_is_refused_what_nobody_can_mean(home, project, name):
    for wrong in WRONG:
        if error := refused(lambda **options: Sandbox(**options).close(), name, wrong, project=project):
            assert not isinstance(error, Unforeseen), wrong
            assert error.hint, wrong


@pytest.mark.parametrize("name", ["install", "directory", "is_ready", "latest_version", "remove"])
def test_a_root_tree_is_refused_what_nobody_can_mean(home, name):
    function, tried = getattr(rootfs, name), 0
    for parameter in inspect.signature(function).parameters.values():
        for wrong in (5, b"x", ["x\0"], object()):
            if (parameter.name, wrong) == ("tier", 5):
                continue  # told as a tier that is not there
            error = refused(function, parameter.name, wrong)
            assert error is not None, (name, parameter.name, wrong)
            assert f"{parameter.name} can't be" in error.message
            tried += 1
    assert tried


def test_a_file_is_not_taken_for_one_of_the_programs_own_descriptors(sandbox: Sandbox):
    with pytest.raises(BadRequest, match="path can't be True"):
        sandbox.import_patch(True)


def test_a_fleet_without_its_packages_says_what_to_install(sandbox: Sandbox, monkeypatch):
    monkeypatch.delitem(sys.modules, "fumehood.service.fleet.sender", raising=False)
    monkeypatch.setitem(sys.modules, "rq", None)
    with pytest.raises(Unavailable, match="the fleet needs a package that is not here: ") as caught:
        sandbox.fleet("redis://localhost")
    assert "[fleet]" in caught.value.hint


def test_paths_in_a_row_are_each_checked_as_one(sandbox: Sandbox):
    run = sandbox.run("touch a b c")
    with pytest.raises(BadRequest, match=r"paths can't be b'c'"):
        sandbox.undo(run, "a", "b", b"c")
    assert len(sandbox.undo(run, "a", "b", force=True).changes) == 2


def test_an_empty_path_means_no_place_and_never_another_one(sandbox: Sandbox, project, monkeypatch, test_directory):
    run = sandbox.run("touch a")
    monkeypatch.chdir(test_directory)
    before = sorted(test_directory.iterdir())
    for take in (
        lambda: sandbox.export(run, ""), lambda: sandbox.draft("d").export(""), lambda: sandbox.import_bundle(""),
        lambda: sandbox.run("touch b", write=[""]), lambda: sandbox.run("touch b", write=""),
        lambda: sandbox.add_root(""),
        lambda: sandbox.write_file("", "x"), lambda: sandbox.restore(""), lambda: sandbox.undo(run, ""),
    ):  # fmt: skip
        with pytest.raises(BadRequest, match=r"^\w+ can't be ''$"):
            take()
    assert (sorted(test_directory.iterdir()), sorted(project.iterdir())) == (before, [project / "a"])
    assert [each["path"] for each in sandbox.files("")] == ["a"]
