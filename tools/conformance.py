"""Run the official MCP conformance runner and the MCP Inspector against our server: `make conformance`.

With --write, the figures go into docs/conformance.md.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clients import node_environment, node_tools
from environment import CHECKOUT, cache_directory
from page import where_made, write

EXPECTED = CHECKOUT / "tools/clients/expected.toml"
SPECIFICATIONS = ("2025-11-25", "2026-07-28")
ERAS = ("legacy", "modern")


def main() -> int:
    """Run both; fail on any difference that is not expected, and on an expected one that is gone."""
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
        return 0
    tools = node_tools()
    differences, rows = [], []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home, project = Path(folder, "home"), Path(folder, "project")
        home.mkdir()
        project.mkdir()
        with serving(home, project) as url:
            for specification in SPECIFICATIONS:
                row, found = runner(tools, url, specification)
                rows.append(row)
                differences += found
        for era in ERAS:
            row, found = inspector(tools, home, project, era)
            rows.append(row)
            differences += found
    print("\n".join([*rows, *(f"NOT EXPECTED: {each}" for each in differences)]))
    if "--write" in sys.argv and not differences:
        head = f"{where_made()}| suite | passed | expected to differ |\n| --- | ---: | ---: |\n"
        write("conformance.md", "mcp", head + "\n".join(rows))
    return 1 if differences else 0


def runner(tools: Path, url: str, specification: str) -> tuple[str, list[str]]:
    """Run every server scenario of one specification."""
    told = tomllib.loads(EXPECTED.read_text())
    expected = {name for name, reason in told[specification].items() if told["reasons"][reason]}
    line = [tools / ".bin/conformance", "server", "--suite", "all", "--url", url, "--spec-version", specification]
    environment = node_environment(tools)
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=300)
    summary = re.findall(r"^([✓✗]) (\S+): (\d+) passed, (\d+) failed", done.stdout, flags=re.MULTILINE)
    failed = {name for mark, name, _, _ in summary if mark == "✗"}
    differences = [f"{specification} {name} fails" for name in sorted(failed - expected)]
    differences += [f"{specification} {name} passes: take it off the list" for name in sorted(expected - failed)]
    if not summary:
        differences.append(f"{specification}: the runner said {done.stdout[-500:]}{done.stderr[-500:]}")
    passed = len(summary) - len(failed)
    checks = sum(int(count) for _, _, count, _ in summary)
    row = f"| conformance runner, {specification} | {passed} of {len(summary)} scenarios, {checks} checks |"
    return f"{row} {len(failed & expected)} scenarios |", differences


def inspector(tools: Path, home: Path, project: Path, era: str) -> tuple[str, list[str]]:
    """Look at the server with the Inspector, over standard input, in one era of the protocol."""
    server = [str(CHECKOUT / "fumehood"), "mcp", "--project", str(project)]
    environment = node_environment(tools) | {"HOME": str(home), "XDG_CACHE_HOME": str(cache_directory().parent)}
    acts: dict[str, tuple[list[str], str]] = {
        "tools/list": (["--method", "tools/list", "--strict"], "run_command"),
        "tools/call": (["--method", "tools/call", "--tool-name", "run_command", "--tool-arg", "command=echo hi"], "hi"),
        "resources/list": (["--method", "resources/list"], "fumehood://rules"),
        "resources/read": (["--method", "resources/read", "--uri", "fumehood://rules"], "transaction"),
    }
    differences = []
    for name, (arguments, words) in acts.items():
        line = [tools / ".bin/mcp-inspector", "--cli", *server, "--protocol-era", era, "--format", "json", *arguments]
        line += ["-e", f"XDG_CACHE_HOME={environment['XDG_CACHE_HOME']}", "-e", f"HOME={home}"]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode or words not in done.stdout or not json.loads(done.stdout):
            differences.append(f"Inspector, {era}, {name}: {done.returncode} {done.stdout[-300:]}{done.stderr[-600:]}")
    return f"| MCP Inspector, {era} | {len(acts) - len(differences)} of {len(acts)} methods | 0 |", differences


@contextmanager
def serving(home: Path, project: Path) -> Iterator[str]:
    """Our server on a port, without the token: the runner can't send one. The token has tests of its own."""
    environment = os.environ | {"HOME": str(home), "XDG_STATE_HOME": f"{home}/state"}
    line = [sys.executable, __file__, "--serve", str(project)]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(line, env=environment, text=True, **quiet) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.terminate()


def serve(project: str) -> None:
    """Be that server."""
    import uvicorn

    from fumehood.faces.mcp.clients import Clients
    from fumehood.faces.mcp.server import HOST, build, only_here

    listening = socket.socket()
    listening.bind((HOST, 0))
    listening.listen()
    port = listening.getsockname()[1]
    app = build(Clients(project, None)).streamable_http_app(host=HOST, transport_security=only_here(port))
    print(port, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    sys.exit(main())
