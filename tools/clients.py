"""Run the tests with the real Claude Code, Codex and Gemini CLI: `make clients`; --write fills in the docs."""

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import provide
from page import write

CHECKOUT = provide.CHECKOUT


def main() -> int:
    """Get the clients, run the tests, count."""
    tools = provide.node_tools()
    clients = (
        ("Claude Code", provide.claude(), "claude_code", "FUMEHOOD_TESTS_CLAUDE"),
        ("Codex CLI", tools / ".bin/codex", "codex_cli", "FUMEHOOD_TESTS_CODEX"),
        ("Gemini CLI", tools / ".bin/gemini", "gemini_cli", "FUMEHOOD_TESTS_GEMINI"),
    )
    environment = provide.node_environment(tools)
    rows, status = [], 0
    for name, program, tests, variable in clients:
        version = subprocess.run([program, "--version"], env=environment, capture_output=True, text=True, check=True)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            line = [sys.executable, "-P", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
            line += [f"tests/clients/{tests}.py", f"--junitxml={report}"]
            environment |= {variable: str(program), "FUMEHOOD_TESTS_MUST_RUN": "1", "PYTHONDONTWRITEBYTECODE": "1"}
            status |= subprocess.run(line, cwd=CHECKOUT, env=environment, check=False).returncode
            suite = next(ET.parse(report).getroot().iter("testsuite")).attrib  # noqa: S314
        passed = int(suite["tests"]) - sum(int(suite[kind]) for kind in ("failures", "errors", "skipped"))
        number = re.search(r"\d[\w.]*", version.stdout)
        rows.append(f"| {name} {number[0] if number else ''} | {passed} of {suite['tests']} |")
    print("\n".join(rows))
    if "--write" in sys.argv and not status:
        write("clients", ["| real client, scripted model | tests passed |", "| --- | ---: |", *rows])
    return status


if __name__ == "__main__":
    os.chdir(CHECKOUT)
    sys.exit(main())
