"""Test Fumehood with real clients: `make clients`, `make browser`, `make conformance`; --write fills in the docs.

The clients are the real agents, with a scripted model; a real browser, with our page; and the official MCP conformance
runner and the MCP Inspector, with our server.
"""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from environment import (
    CHECKOUT,
    cache_directory,
    environment_of,
    environment_path,
    is_complete,
    make_cache,
    one_at_a_time,
)
from page import where_made, write

PACKAGES = CHECKOUT / "tools/clients/package.json"
EXPECTED = CHECKOUT / "tools/clients/expected.toml"
PYTEST = [sys.executable, "-P", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SPECIFICATIONS = ("2025-11-25", "2026-07-28")
ERAS = ("legacy", "modern")


def agents() -> int:
    """Install the agents, run the tests with each, and count what passed."""
    tools = node_tools()
    clients: tuple[tuple[str, Path | None, str, str], ...] = (
        ("Claude Code", claude(), "claude_code", "FUMEHOOD_TESTS_CLAUDE"),
        ("Codex CLI", tools / ".bin/codex", "codex_cli", "FUMEHOOD_TESTS_CODEX"),
        ("Gemini CLI", tools / ".bin/gemini", "gemini_cli", "FUMEHOOD_TESTS_GEMINI"),
        ("Copilot CLI", tools / ".bin/copilot", "copilot_cli", "FUMEHOOD_TESTS_COPILOT"),
        ("OpenCode", tools / ".bin/opencode", "opencode_cli", "FUMEHOOD_TESTS_OPENCODE"),
    )
    environment = node_environment(tools)
    # The tests that need several agents come last.
    clients += (("Whole agents in the hood", None, "whole_agents", ""),)
    clients += (("Five Claude Codes in five drafts", None, "drafts", ""),)
    clients += (("Agents behind an editor (ACP)", None, "acp_agents", "FUMEHOOD_TESTS_PROGRAMS"),)
    rows, status = [], 0
    for name, program, tests, variable in clients:
        if program is not None and not program.exists():
            rows.append(f"| {name} | not to be had for {os.uname().machine} |")  # an optional package in package.json
            continue
        version = "" if program is None else _version(program, environment)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            line = [*PYTEST, f"tests/clients/{tests}.py", f"--junitxml={report}"]
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
    """Return the directory with the packages from npm, and Node itself: this machine's may be older than 22."""
    cache = cache_directory()
    directory = cache / f"node-{hashlib.sha256(PACKAGES.read_bytes()).hexdigest()[:16]}"
    make_cache(cache)
    with one_at_a_time(cache):
        if not directory.is_dir():
            npm = shutil.which("npm")
            if npm is None:
                raise SystemExit("npm is needed for this, of Node 18 or newer")
            print(f"getting what tools/clients/package.json names, in {directory}", file=sys.stderr, flush=True)
            new = cache / "node-new"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            shutil.copy(PACKAGES, new)
            line = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
            subprocess.run(line, cwd=new, check=True, stdout=sys.stderr)
            new.rename(directory)
    return directory / "node_modules"


def node_environment(tools: Path) -> dict[str, str]:
    """Return the environment in which those tools find their Node."""
    return os.environ | {"PATH": f"{tools / 'node/bin'}:{tools / '.bin'}:{os.environ['PATH']}"}


# ---- The page in a browser.

def browser(words: list[str]) -> int:
    """Install the driver of a browser, and run the tests with the browser of this machine; words go to pytest."""
    program = os.environ.get("FUMEHOOD_TESTS_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit("a Chromium is needed for this; on Debian, type: apt install chromium")
    (packages,) = environment_of("browser").glob("lib/python*/site-packages")
    environment = os.environ | {
        "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1", "FUMEHOOD_TESTS_BROWSER": program,
        "FUMEHOOD_TESTS_MUST_RUN": "1",
    }  # fmt: skip
    # It is used if it is there, but too large to be installed for one test.
    if is_complete(environment_path("clients")):
        environment.setdefault("FUMEHOOD_TESTS_CLAUDE", str(claude()))
    names = sorted(str(path) for path in (CHECKOUT / "tests/browser").glob("[a-z]*.py") if path.name != "conftest.py")
    return subprocess.run([*PYTEST, *names, *words], env=environment, check=False).returncode


# ---- The MCP server.

def conformance() -> int:
    """Run both programs; fail on any unexpected difference, and on an expected difference that is gone."""
    tools = node_tools()
    differences, rows = [], []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home, project = Path(folder, "home"), Path(folder, "project")
        home.mkdir()
        project.mkdir()
        with serving(home, project) as url:
            for specification in SPECIFICATIONS:
                row, new_differences = run_conformance(tools, url, specification)
                rows.append(row)
                differences += new_differences
        for era in ERAS:
            row, new_differences = run_inspector(tools, home, project, era)
            rows.append(row)
            differences += new_differences
    print("\n".join([*rows, *(f"NOT EXPECTED: {each}" for each in differences)]))
    if "--write" in sys.argv and not differences:
        head = f"{where_made()}| suite | passed | expected to differ |\n| --- | ---: | ---: |\n"
        write("conformance.md", "mcp", head + "\n".join(rows))
    return 1 if differences else 0


def run_conformance(tools: Path, url: str, specification: str) -> tuple[str, list[str]]:
    """Run every server scenario of one specification; return a row, and the unexpected differences."""
    settings = tomllib.loads(EXPECTED.read_text())
    expected = {name for name, reason in settings[specification].items() if settings["reasons"][reason]}
    line = [tools / ".bin/conformance", "server", "--suite", "all", "--url", url, "--spec-version", specification]
    environment = node_environment(tools)
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=300)
    summary = re.findall(r"^([✓✗]) (\S+): (\d+) passed, (\d+) failed", done.stdout, flags=re.MULTILINE)
    failed = {name for mark, name, _, _ in summary if mark == "✗"}
    differences = [f"{specification} {name} fails" for name in sorted(failed - expected)]
    differences += [f"{specification} {name} passes: take it off the list" for name in sorted(expected - failed)]
    if not summary:
        differences.append(f"{specification}: the runner printed {done.stdout[-500:]}{done.stderr[-500:]}")
    passed = len(summary) - len(failed)
    checks = sum(int(count) for _, _, count, _ in summary)
    row = f"| conformance runner, {specification} | {passed} of {len(summary)} scenarios, {checks} checks |"
    return f"{row} {len(failed & expected)} scenarios |", differences


def run_inspector(tools: Path, home: Path, project: Path, era: str) -> tuple[str, list[str]]:
    """Call the server by the Inspector, over standard input, in one era of the protocol; return a row, and failures."""
    server = [str(CHECKOUT / "fumehood"), "mcp", "--project", str(project)]
    environment = node_environment(tools) | {"HOME": str(home), "XDG_CACHE_HOME": str(cache_directory().parent)}
    methods: dict[str, tuple[list[str], str]] = {
        "tools/list": (["--method", "tools/list", "--strict"], "run_command"),
        "tools/call": (["--method", "tools/call", "--tool-name", "run_command", "--tool-arg", "command=echo hi"], "hi"),
        "resources/list": (["--method", "resources/list"], "fumehood://rules"),
        "resources/read": (["--method", "resources/read", "--uri", "fumehood://rules"], "transaction"),
    }
    differences = []
    for name, (arguments, words) in methods.items():
        line = [tools / ".bin/mcp-inspector", "--cli", *server, "--protocol-era", era, "--format", "json", *arguments]
        line += ["-e", f"XDG_CACHE_HOME={environment['XDG_CACHE_HOME']}", "-e", f"HOME={home}"]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode or words not in done.stdout or not json.loads(done.stdout):
            differences.append(f"Inspector, {era}, {name}: {done.returncode} {done.stdout[-300:]}{done.stderr[-600:]}")
    return f"| MCP Inspector, {era} | {len(methods) - len(differences)} of {len(methods)} methods | 0 |", differences


@contextmanager
def serving(home: Path, project: Path) -> Iterator[str]:
    """Yield the address of our server, without its token, which the runner can't send; other tests try the token."""
    environment = os.environ | {"HOME": str(home), "XDG_STATE_HOME": f"{home}/state"}
    line = [sys.executable, __file__, "serve", str(project)]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(line, env=environment, text=True, **quiet) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.terminate()


def serve(project: str) -> None:
    """Serve on a free port, without a token, and print the port."""
    import uvicorn

    from fumehood.faces.mcp.clients import Clients
    from fumehood.faces.mcp.server import HOST, build, local_hosts_only

    listening = socket.socket()
    listening.bind((HOST, 0))
    listening.listen()
    port = listening.getsockname()[1]
    app = build(Clients(project, None)).streamable_http_app(host=HOST, transport_security=local_hosts_only(port))
    print(port, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    os.chdir(CHECKOUT)
    name, words = sys.argv[1], sys.argv[2:]
    functions = {
        "agents": agents, "browser": lambda: browser(words), "conformance": conformance, "serve": lambda: serve(*words),
    }  # fmt: skip
    sys.exit(functions[name]())
