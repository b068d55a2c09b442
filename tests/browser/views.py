"""Every view as people see it: in light and dark, wide and narrow, and with what a screen reader meets (axe)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from browser.conftest import Visitor, keep_picture
from fumehood.service.store import Store
from web_page import WebPage
from web_scene import at_work, morning

SHAPES = {
    "light": {"color_scheme": "light", "viewport": {"width": 1200, "height": 800}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1200, "height": 800}},
    "narrow": {"color_scheme": "light", "viewport": {"width": 390, "height": 780}},
}
AWAITED = {
    "now": "text=compiled part", "running": "text=compiled part",
    "run": ".diff table", "held": ".diff table", "draft": ".diff table",
    "file": ".content table", "settings": ".content table",
}  # fmt: skip
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


def views(served: WebPage, project: Path) -> dict[str, str]:
    """Where each view is, by a short name."""
    runs = {run["number"]: run["run"] for run in served.call("GET", "/api/runs")["runs"]}
    (draft,) = served.call("GET", "/api/drafts")["drafts"]
    at = f"project={project}&root={project}&path=shop/__init__.py"
    return {
        "now": "/", "questions": "/questions", "waiting": "/waiting", "history": "/history", "files": "/files",
        "file": f"/file?{at}", "settings": "/settings", "run": f"/runs/{runs[3]}", "failed": f"/runs/{runs[2]}",
        "running": f"/runs/{runs[max(runs)]}", "held": f"/runs/{runs[7]}",
        "hunks": f"/runs/{runs[8]}/diff?root=0&path=shop/__init__.py",
        "side": f"/runs/{runs[8]}/diff?root=0&path=shop/__init__.py&view=side",
        "picture": f"/runs/{runs[5]}/diff?root=0&path=logo.png",
        "notebook": f"/runs/{runs[5]}/diff?root=0&path=sales.ipynb",
        "bytes": f"/runs/{runs[5]}/diff?root=0&path=data.bin",
        "conflict": f"/runs/{runs[6]}/diff?root=0&path=README.md",
        "drafts": "/drafts", "draft": f"/drafts/{draft['address']}", "error": "/runs/nothing",
    }  # fmt: skip


@pytest.mark.timeout(1200)
def test_every_view_is_for_everybody(
    cli: Any, project: Path, served: WebPage, visitor: Callable[..., Visitor]
) -> None:
    morning(cli, project)
    findings = {}
    with at_work(project):
        for shape, options in SHAPES.items():
            somebody = visitor(**options)
            for name, path in views(served, project).items():
                findings[f"{name}, {shape}"] = _looked_at(somebody.go(path), name, shape)
            # A page that is not there is one of the views.
            somebody.complaints[:] = [each for each in somebody.complaints if "404" not in each]
    wrong = [f"{name}: {each}" for name, some in findings.items() for each in some]
    assert not wrong, "\n".join(wrong)


def _looked_at(page: Page, name: str, shape: str) -> list[str]:
    """Wait until a view is whole, keep a picture of it, and return what is wrong with it."""
    if name in AWAITED:
        page.wait_for_selector(AWAITED[name])
    keep_picture(page, f"{name}-{shape}")
    beyond = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    wrong = [f"wider than its window by {beyond}"] if beyond > 0 else []
    if shape == "narrow":
        return wrong  # but for its width, it is as light as the first
    violations = Axe().run(page, options=AXE).response["violations"]
    return wrong + [f"{each['id']} ({each['impact']}): {each['nodes'][0]['html'][:200]}" for each in violations]


def test_a_page_opened_with_ten_thousand_runs_shows_them_all_a_page_at_a_time(
    cli: Any, project: Path, store: Store, served: WebPage, visitor: Callable[..., Visitor]
) -> None:
    cli("run", "--", "echo the first > a")
    columns = [row[1] for row in store.database.rows("PRAGMA table_info(runs)")]
    own = {"number": "number + i", "id": "'01Z' || printf('%023d', i)", "layer": "'01Z' || printf('%023d', i)"}
    own |= {"project_number": "project_number + i", "command": "'true ' || i", "started_at": "started_at + i"}
    with store.database.transaction() as connection:
        connection.execute(
            "WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < 10000)"
            f" INSERT INTO runs SELECT {', '.join(own.get(name, name) for name in columns)} FROM runs, numbers"
        )
    page = visitor().go("/")
    expect(page.locator("main")).to_contain_text("10001 runs")
    page.keyboard.press("h")
    page.wait_for_url("**/history")
    expect(page.locator(".drawn")).to_have_count(50)
    page.get_by_text("Earlier ones").click()
    expect(page.locator(".drawn")).to_have_count(100)
    expect(page.locator(".drawn").last).to_contain_text("true 9901")
    page.keyboard.press("/")
    page.keyboard.type("true 1234")
    page.keyboard.press("Enter")
    expect(page.locator(".drawn")).to_have_count(1)
    page.go_back()
    page.locator("[name=words]").fill("")
    page.locator("[name=path]").fill("a")
    page.keyboard.press("Enter")
    expect(page.locator(".drawn")).to_contain_text("echo the first")
    peak = Path(f"/proc/{served.process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
    assert int(peak) < 300_000  # kB
