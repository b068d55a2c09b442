"""What a test needs of the host: where it is missing, the test is skipped with the reason, or fails if all must run."""

import ast
from pathlib import Path

import pytest

from conftest import need_way
from fumehood.linux.probe import CAPTURES, Host

TESTS = Path(__file__).parent
WITHOUT_FUSE = Host(captures=("kernel", "copy"), refusals=(("fuse", "fuse-overlayfs is not installed"),))


@pytest.fixture
def must_run(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("FUMEHOOD_TESTS_MUST_RUN", request.param)


@pytest.mark.parametrize("must_run", ["0"], indirect=True)
def test_a_way_of_capturing_that_is_not_here_is_skipped_with_the_reason(must_run: None) -> None:
    need_way("copy", WITHOUT_FUSE)
    with pytest.raises(pytest.skip.Exception, match="captured by fuse here: fuse-overlayfs is not installed"):
        need_way("fuse", WITHOUT_FUSE)


@pytest.mark.parametrize("must_run", ["1"], indirect=True)
def test_where_every_test_must_run_it_fails_with_the_reason(must_run: None) -> None:
    need_way("copy", WITHOUT_FUSE)
    with pytest.raises(pytest.fail.Exception, match="captured by fuse here: fuse-overlayfs is not installed"):
        need_way("fuse", WITHOUT_FUSE)


@pytest.mark.long
def test_whatever_runs_by_every_way_of_capturing_takes_the_ways_that_are_here() -> None:
    """That is, the fixture `way`: a list of its own would fail where one of them is missing."""
    lists = [
        f"{path.relative_to(TESTS)}:{call.lineno}"
        for path in TESTS.rglob("*.py")
        if "mark.namespaces" in path.read_text() and path != Path(__file__)
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and is_a_list_of_ways(call)
    ]
    assert lists == []


def is_a_list_of_ways(call: ast.Call) -> bool:
    """Whether a call of pytest's names several ways as parameters, without handing them to the fixture."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("parametrize", "fixture"):
        return False
    words = {each.value for each in ast.walk(call) if isinstance(each, ast.Constant)}
    return len(words & set(CAPTURES)) > 1 and not any(each.arg == "indirect" for each in call.keywords)
