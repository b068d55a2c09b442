"""Run the tests with the real clients: `make clients`; --write fills in the docs."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from environment import CHECKOUT, cache_directory, environment_of, one_at_a_time, prepare
from page import where_made, write

PACKAGES = CHECKOUT / "tools/clients/package.json"


def main() -> int:
    """Get the clients, run the tests, count."""
    tools = node_tools()
    clients: tuple[tuple[str, Path | None, str, str], ...] = (
        ("Claude Code", claude(), "claude_code", "FUMEHOOD_TESTS_CLAUDE"),
        ("Codex CLI", tools / ".bin/codex", "codex_cli", "FUMEHOOD_TESTS_CODEX"),
        ("Gemini CLI", tools / ".bin/gemini", "gemini_cli", "FUMEHOOD_TESTS_GEMINI"),
        ("Copilot CLI", tools / ".bin/copilot", "copilot_cli", "FUMEHOOD_TESTS_COPILOT"),
        ("OpenCode", tools / ".bin/opencode", "opencode_cli", "FUMEHOOD_TESTS_OPENCODE"),
    )
    environment = node_environment(tools)
    # Those that need all of them come last.
    clients += (("Whole agents in the hood", None, "whole_agents", ""),)
    clients += (("Five Claude Codes in five drafts", None, "drafts", ""),)
    clients += (("Agents behind an editor (ACP)", None, "acp_agents", "FUMEHOOD_TESTS_PROGRAMS"),)
    rows, status = [], 0
    for name, program, tests, variable in clients:
        if program is not None and not program.exists():
            rows.append(f"| {name} | not to be had for {os.uname().machine} |")  # an optional one in package.json
            continue
        version = "" if program is None else _version(program, environment)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            line = [sys.executable, "-P", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
            line += [f"tests/clients/{tests}.py", f"--junitxml={report}"]
            if tests.endswith(("_code", "_cli")):
                line.append(f"tests/clients/day.py::test_a_day_in_the_hood_is_as_one_without[{tests.partition('_')[0]}]")
            environment |= {variable: str(program or tools / ".bin")} if variable else {}
            environment |= {"FUMEHOOD_TESTS_MUST_RUN": "1", "PYTHONDONTWRITEBYTECODE": "1"}
            status |= subprocess.run(line, cwd=CHECKOUT, env=environment, check=False).returncode
            suite = next(ET.parse(report).getroot().iter("testsuite")).attrib  # noqa: S314
        passed = int(suite["tests"]) - sum(int(suite[kind]) for kind in ("failures", "errors", "skipped"))
        rows.append(f"| {' '.join(filter(None, (name, version)))} | {passed} of {suite['tests']} |")
    print("\n".join(rows))
    if "--write" in sys.argv and not status:
        head = f"{where_made()}| real client, scripted model | tests passed |\n| --- | ---: |\n"
        write("conformance.md", "clients", head + "\n".join(rows))
    return status


def _version(program: Path, environment: dict[str, str]) -> str:
    done = subprocess.run([program, "--version"], env=environment, capture_output=True, text=True, check=True)
    number = re.search(r"\d[\w.]*", done.stdout)
    return number[0] if number else ""


def claude() -> Path:
    """Return the real Claude Code, installed if needed."""
    (program,) = environment_of("clients").glob("lib/python*/site-packages/claude_agent_sdk/_bundled/claude")
    return program


def node_tools() -> Path:
    """Return the directory of what npm has, its own Node among it: at least 22 is needed, whatever is here."""
    cache = cache_directory()
    place = cache / f"node-{hashlib.sha256(PACKAGES.read_bytes()).hexdigest()[:16]}"
    prepare(cache)
    with one_at_a_time(cache):
        if not place.is_dir():
            npm = shutil.which("npm")
            if npm is None:
                raise SystemExit("npm is needed for this, of Node 18 or newer")
            print(f"getting what tools/clients/package.json names, in {place}", file=sys.stderr, flush=True)
            new = cache / "node-new"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            shutil.copy(PACKAGES, new)
            line = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
            subprocess.run(line, cwd=new, check=True, stdout=sys.stderr)
            new.rename(place)
    return place / "node_modules"


def node_environment(tools: Path) -> dict[str, str]:
    """Return the environment in which those tools find their Node."""
    return os.environ | {"PATH": f"{tools / 'node/bin'}:{tools / '.bin'}:{os.environ['PATH']}"}


if __name__ == "__main__":
    os.chdir(CHECKOUT)
    sys.exit(main())
