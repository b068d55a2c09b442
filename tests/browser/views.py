"""Every view as people see it: in light and dark, wide and narrow, and with what a screen reader meets (axe)."""

import json
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from browser.conftest import Visitor, keep_picture
from conftest import command_line
from fumehood.service.store import Store
from web_page import WebPage

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


# ---- A small project and a morning's work of an agent in it, so that every view of the page has something to show.

SHOP = '''"""Prices of a small shop."""

from decimal import Decimal

TAX = Decimal("0.19")


def total(items: list[tuple[str, Decimal]]) -> Decimal:
    """Add up what is in the basket."""
    result = Decimal(0)
    for name, price in items:
        result += price
    return result


def with_tax(price: Decimal) -> Decimal:
    """Add the tax to a price."""
    return price * (1 + TAX)


def discount(price: Decimal, percent: int) -> Decimal:
    """Take some percent off."""
    return price - price * percent / 100


def receipt(items: list[tuple[str, Decimal]]) -> str:
    """Write what the customer gets."""
    lines = [f"{name}: {price}" for name, price in items]
    return "\\n".join(lines)
'''
README = """# Shop

Prices of a small shop.

## Use

    python3 -m shop

## Licence

MIT
"""


def picture(red: int, green: int, blue: int) -> bytes:
    """Draw a small PNG of one colour with a darker middle."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = 96
    rows = b""
    for y in range(size):
        dots = (((red, green, blue) if (x - 48) ** 2 + (y - 48) ** 2 > 900 else (40, 40, 60)) for x in range(size))
        rows += b"\0" + b"".join(map(bytes, dots))
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def notebook(source: str) -> str:
    """Return a notebook of one cell of text and one of code."""
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# Sales\n", "By month."]},
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": 1, "source": [source]},
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def morning(cli: Callable[..., Any], project: Path) -> None:
    """Do the work: some of it is applied, some held, some in conflict, some taken back, and one question was missed."""
    (project / "shop").mkdir()
    (project / "shop/__init__.py").write_text(SHOP)
    (project / "README.md").write_text(README)
    (project / "logo.png").write_bytes(picture(80, 140, 220))
    (project / "sales.ipynb").write_text(notebook("total = 3\nprint(total)"))
    (project / "data.bin").write_bytes(bytes(range(200)))
    subprocess.run(["git", "init", "-q", project], check=True)
    agent = ("--session", "tidy-prices")

    def run(*words: str) -> None:
        done = cli("run", *words)
        assert done.returncode in (0, 1), done.stderr

    run(*agent, "--", "sed -i 's/result = Decimal(0)/result = Decimal(\"0.00\")/' shop/__init__.py")
    test = "mkdir -p tests; echo 'def test_tax(): ...' > tests/test_tax.py"
    colours = "printf '\\033[32mtests/test_tax.py ..\\033[0m\\n\\033[31mtests/test_receipt.py F\\033[0m\\n'"
    run(*agent, "--", f"{test}; {colours}; echo >&2 '1 failed'; exit 1")
    run(*agent, "--", "sed -i -e 's/Add up/Sum up/' -e 's/0.19/0.20/' -e 's/{price}/EUR {price}/' shop/__init__.py")
    cli("undo", "2")
    (project / "new.png").write_bytes(picture(90, 180, 120))
    (project / "new.ipynb").write_text(notebook("total = 4\nprint(f'total {total}')"))
    patch = "printf 'xyz' | dd of=data.bin bs=1 seek=40 conv=notrunc"
    run(*agent, "--", f"mv new.png logo.png; mv new.ipynb sales.ipynb; {patch}")
    run("--hold", "--", "sed -i 's/MIT/MIT, see LICENSE/; s/small shop/small, tidy shop/' README.md")
    (project / "README.md").write_text(README.replace("small shop", "small corner shop"))
    cli("apply", "6")
    hook = "printf '#!/bin/sh\\npython3 -m shop\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit"
    run(*agent, "--", f"{hook}; echo 'export SHOP=1' > .envrc; echo 'print(1)' > shop/__main__.py")
    edits = "sed -i -e 's/basket/trolley/' -e 's/Take some/Take a few/' -e 's/customer/buyer/' shop/__init__.py"
    run("--hold", *agent, "--", edits)
    cli("draft", "new", "currency")
    run("--draft", "currency", *agent, "--", "sed -i 's/EUR/€/' shop/__init__.py; echo 'Prices in €.' >> README.md")
    cli("run", "--allow-host", "pypi.org", "--", "pip download wheel")


@contextmanager
def at_work(project: Path) -> Iterator[None]:
    """Have a command run that prints and writes, for a `with` block."""
    step = 'echo "compiled part $i of 40"; echo x > build/part$i.o'
    line = f"echo ready; mkdir -p build; for i in 1 2 3 4 5 6; do {step}; done; sleep 1000"
    process = subprocess.Popen(
        [*command_line(), "run", "--session", "build", "--", line], cwd=project, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.communicate()
