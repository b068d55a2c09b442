"""The real Claude Code, hooked: what its commands ask is answered in the page, and the model sees what came of it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser.conftest import Visitor, attended, keep_picture
from clients.claude_code import bash, start
from clients.conftest import Done, ended, environment, fumehood, log, said_by_us
from clients.endpoint import Anthropic
from patience import eventually
from servers import Web, serving

__all__ = ["environment", "fumehood"]  # fixtures

CLAUDE = os.environ.get("FUMEHOOD_TESTS_CLAUDE", "")  # read now: a test's home knows nothing of ours


@pytest.mark.skipif(not CLAUDE, reason="the real Claude Code is got by `make clients`")
def test_questions_of_claude_code_are_answered_in_the_page(
    environment: dict[str, str], fumehood: Callable[..., Done], home: Path, project: Path,
    visitor: Callable[..., Visitor],
) -> None:  # fmt: skip
    (home / ".config/fumehood").mkdir()
    (home / ".config/fumehood/config.toml").write_text('network = "ask"\n')
    fumehood("setup", "claude", "--yes")
    page = visitor().go("/")
    assert eventually(lambda: attended(home))
    question = page.locator(".dock .question:not(.ended)")
    with serving(Web(b"from the server\n")) as web:
        place = f"localhost:{web.port}"
        fetch = [bash(f"curl -sS -m 100 http://{place}/ | tee {name}") for name in ("first", "second")]
        with Anthropic([*fetch, {"text": "done"}]) as model:
            client = start(CLAUDE, model, environment, project)
            expect(question).to_contain_text(place)
            # Nothing went out, and the model waits.
            assert (web.asked, model.results()) == ([], [])
            keep_picture(page, "claude")
            question.get_by_role("button", name="allow once").click()
            # Once is once: its next command asks again.
            expect(question).to_contain_text("tee second")
            (allowed,) = model.results()
            question.get_by_role("button", name="deny once").click()
            ended(client)
        assert len(web.asked) == 1
    assert "from the server" in allowed
    denied = model.results()[1]
    assert "from the server" not in denied
    assert said_by_us("blocked network: ", denied)
    expect(question).to_have_count(0)
    expect(page.locator("main")).to_contain_text("tee first")
    assert (project / "first").read_text() == "from the server\n"
    assert {run["session"].partition("-")[0] for run in log(fumehood)} == {"claude"}
