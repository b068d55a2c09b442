"""The page of `fumehood web`, where a command means to keep something from the person who reads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fumehood import Sandbox
from web_page import WebPage

pytestmark = [pytest.mark.namespaces, pytest.mark.once]


@pytest.fixture
def page(home: Path) -> Iterator[WebPage]:
    with WebPage() as page:
        page.enter()
        yield page


def test_what_acts_by_itself_is_named_before_all_is_accepted(sandbox: Sandbox, page: WebPage, project: Path) -> None:
    """A hook was accepted with all of a run, of which the page showed the first files alone."""
    many = "mkdir a; cd a; seq 500 | xargs touch; cd .."
    run = sandbox.run(f"{many}; mkdir -p z/.git/hooks z/.git/refs; echo x > z/.git/hooks/pre-push", apply="hold")
    for path in ("/waiting", f"/runs/{run.id}"):
        shown, _, rest = page.get(path).partition("Accept all")
        assert rest
        assert "added z/.git/hooks/pre-push: the run was asked to hold its changes" in shown
