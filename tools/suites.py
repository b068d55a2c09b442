"""Run other people's suites on the adapters: `make suites`; with --write, put the counts into the docs.

Fumehood is built and installed as a user would install it, beside the real frameworks.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import provide
from page import write

CHECKOUT = provide.CHECKOUT
# Not /tmp, which commands in the hood see as their own.
SCRATCH = "/var/tmp"


@dataclass(frozen=True)
class Suite:
    """Somebody's suite: the file that runs it, the package it comes with, and what must come out."""

    title: str
    package: str
    passed: int
    differ: int = 0


SUITES = {
    "deepagents": Suite("LangChain's `SandboxIntegrationTests`, deepagents", "deepagents", 86),
    "inspect": Suite("Inspect's `self_check`", "inspect_ai", 43, differ=1),
    "examples": Suite("the examples, each with its real framework and a scripted model", "", 5),
    "harbor": Suite("Harbor oracle run, and one with no agent", "harbor", 2),
}


def main() -> int:
    """Run the suites that are named, or all."""
    names = [name for name in sys.argv[1:] if name != "--write"] or every_suite()
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        raise SystemExit(f"no suite is called {unknown[0]}; there are {', '.join(SUITES)}")
    rows, status = [], 0
    with tempfile.TemporaryDirectory(prefix="fumehood-suites-", dir=SCRATCH) as folder:
        for name in names:
            suite = SUITES[name]
            python = provide.harbor() if name == "harbor" else provide.frameworks()
            assert python is not None
            if not Path(folder, "packages").exists():
                install(python, Path(folder, "packages"))
            passed, differ, failed = run(python, name, Path(folder))
            if (passed, differ, failed) != (suite.passed, suite.differ, 0):
                print(f"{name}: {passed} passed, {differ} differed as expected, {failed} failed; "
                      f"must be {suite.passed} and {suite.differ}")  # fmt: skip
                status = 1
            version = installed_version(python, suite.package) if suite.package else ""
            told = f"{suite.title} {version}".rstrip()
            rows.append(f"| {told} | {passed} of {passed + differ + failed} | {differ} |")
    print("\n".join(rows))
    if "--write" in sys.argv and not status and len(names) == len(SUITES):
        write("suites", ["| suite | passed | expected to differ |", "| --- | ---: | ---: |", *rows])
    return status


def every_suite() -> list[str]:
    """All that can be run here."""
    if provide.newer_python() is not None:
        return list(SUITES)
    print("no Harbor: it needs Python 3.12 or newer")
    return [name for name in SUITES if name != "harbor"]


def install(python: Path, target: Path) -> None:
    """Build the distribution and install it, its entry points too, where only the suites see it."""
    line = [python, "-I", "-m", "pip", "install", "-qq", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*line, "--disable-pip-version-check", "--target", target, CHECKOUT], check=True, cwd="/")


def run(python: Path, name: str, folder: Path) -> tuple[int, int, int]:
    """Run one suite in a home of its own; return how many passed, differed as expected, and failed."""
    home = folder / name
    home.mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FUMEHOOD", "PYTHON", "XDG_"))}
    environment = kept | {
        "HOME": str(home), "PYTHONPATH": str(folder / "packages"), "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8",
        "FUMEHOOD_SUITE_DIR": str(folder), "FUMEHOOD_SUITE_EXAMPLES": str(CHECKOUT / "examples"),
    }  # fmt: skip
    report = folder / f"{name}.xml"
    line = [python, "-P", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    line += ["--noconftest", "-c", "/dev/null", "-W", "ignore"]
    line += ["-o", "asyncio_mode=auto", "-o", "python_files=*_suite.py"]
    line += [f"--rootdir={folder}", f"--junitxml={report}", CHECKOUT / f"tests/suites/{name}_suite.py"]
    subprocess.run(line, cwd=home, env=environment, check=False)
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skipped = [found for case in cases if (found := case.find("skipped")) is not None]
    differ = sum(found.get("type") == "pytest.xfail" for found in skipped)
    # A skipped test is none that passed.
    return len(cases) - failed - len(skipped), differ, failed + len(skipped) - differ


def installed_version(python: Path, package: str) -> str:
    """Return the version that was tried."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
