"""A small project and a morning's work of an agent in it, so that every view of the page has something to show."""

import json
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import command_line

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
