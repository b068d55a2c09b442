"""What the tests in a real browser stand on. Run them with `make browser`: they need Chromium."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from patience import LONG_S
from web_page import WebPage

expect.set_options(timeout=LONG_S * 1000)

PICTURES = os.environ.get("FUMEHOOD_TESTS_PICTURES")  # where to put what was seen, for somebody to look at


def keep_picture(page: Page, name: str) -> None:
    """Keep what the page shows, if somebody wants to look at it."""
    if PICTURES:
        page.screenshot(path=f"{PICTURES}/{name}.png", full_page=True)


def attended(home: Path) -> bool:
    """Whether somebody is there to be asked."""
    return bool(list((home / ".local/state/fumehood/desk").glob("*.present")))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser that is here."""
    with sync_playwright() as playwright:
        # Ours is the only page that it ever opens; root, and whoever has no user namespaces, can't have its sandbox.
        browser = playwright.chromium.launch(
            executable_path=os.environ["FUMEHOOD_TESTS_BROWSER"], args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@pytest.fixture
def project(home: Path) -> Path:
    """A fresh project in the home, as people have them."""
    project = home / "shop"
    project.mkdir()
    return project


class Visitor:
    """Somebody who looks at the page, with a browser of their own; what the browser complains about is kept."""

    def __init__(self, chromium: Browser, served: WebPage, **options: Any) -> None:
        self.context: BrowserContext = chromium.new_context(**options)
        self.context.set_default_timeout(LONG_S * 1000)
        self.complaints: list[str] = []
        self.served = served
        if served.cookie:
            name, _, value = served.cookie.partition("=")
            self.context.add_cookies([{"name": name, "value": value, "url": f"http://{served.host}"}])
        self.page = self.opened()

    def opened(self) -> Page:
        """Open one more tab."""
        page = self.context.new_page()
        page.on("console", lambda said: self._complain(said.type, said.text))
        page.on("pageerror", lambda error: self._complain("error", str(error)))
        return page

    def _complain(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def go(self, path: str) -> Page:
        """Open a view."""
        self.page.goto(f"http://{self.served.host}{path}")
        return self.page


@pytest.fixture
def served(home: Path) -> Iterator[WebPage]:
    """The page, served by a real process; somebody has used its link already."""
    with WebPage() as served:
        served.enter()
        yield served


@pytest.fixture
def visitor(chromium: Browser, served: WebPage) -> Iterator[Callable[..., Visitor]]:
    """Have somebody look at the page, in a context with these options; no browser may complain of anything."""
    visitors: list[Visitor] = []

    def come(**options: Any) -> Visitor:
        visitors.append(Visitor(chromium, served, **options))
        return visitors[-1]

    yield come
    for each in visitors:
        each.context.close()
        assert each.complaints == []
