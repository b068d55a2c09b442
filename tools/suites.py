"""Run other projects' test suites on the adapters: `make suites`; --write puts the counts into the docs.

Fumehood is built and installed as a user would install it, together with the real frameworks.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from environment import CHECKOUT, environment_of, environment_path, is_complete
from page import where_made, write

# Not /tmp, which commands in the hood see as their own.
SCRATCH = "/var/tmp"


@dataclass(frozen=True)
class Suite:
    """A suite: the file that runs it, the package that it tests, and how many tests must pass or differ."""

    title: str
    package: str
    passed: int
    differ: int = 0
    lock: str = "adapters"
    before: str = ""  # a lock whose packages come first
    file: str = ""  # that runs it, if its name is not the suite's

    @property
    def expected(self) -> tuple[int, int, int]:
        """How many tests must pass, differ as expected, and fail."""
        return self.passed, self.differ, 0


SUITES = {
    "deepagents": Suite("LangChain's `SandboxIntegrationTests`, deepagents", "deepagents", 86),
    "deepagents-0.7": Suite(
        "the same, deepagents", "deepagents", 79, differ=7, before="deepagents", file="deepagents"
    ),
    "inspect": Suite("Inspect's `self_check`", "inspect_ai", 43, differ=1),
    "examples": Suite("the examples, each with its real framework and a scripted model", "", 17),
    "harbor": Suite("Harbor oracle run, one with no agent, one that is kept", "harbor", 3, lock="harbor"),
}


def main() -> int:
    """Run the suites that are named, or all."""
    names = [name for name in sys.argv[1:] if name != "--write"] or all_suites()
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        raise SystemExit(f"no suite is called {unknown[0]}; there are {', '.join(SUITES)}")
    with tempfile.TemporaryDirectory(prefix="fumehood-suites-", dir=SCRATCH) as folder:
        pythons = {name: python_of(SUITES[name]) for name in names}
        install(pythons[names[0]], Path(folder, "packages"))
        # Two at once, because much of a suite's time is waiting.
        with ThreadPoolExecutor(max_workers=2) as pool:
            counts = list(pool.map(lambda name: run(pythons[name], name, Path(folder)), names))
    rows = [row(SUITES[name], pythons[name], *count) for name, count in zip(names, counts, strict=True)]
    wrong = [name for name, count in zip(names, counts, strict=True) if count != SUITES[name].expected]
    print("\n".join(rows))
    for name in wrong:
        passed, differ, _ = SUITES[name].expected
        print(f"{name} must have {passed} that pass and {differ} that differ as expected")
    if "--write" in sys.argv and not wrong and len(names) == len(SUITES):
        head = f"{where_made()}| suite | passed | expected to differ |\n| --- | ---: | ---: |\n"
        write("conformance.md", "suites", head + "\n".join(rows))
    return int(bool(wrong))


def row(suite: Suite, python: Path, passed: int, differ: int, failed: int) -> str:
    """Return a row of the table."""
    version = installed_version(python, suite) if suite.package else ""
    title = f"{suite.title} {version}".rstrip()
    return f"| {title} | {passed} of {passed + differ + failed} | {differ} |"


def all_suites() -> list[str]:
    """Return the names of all suites that can run here."""
    if newer_python() is not None:
        return list(SUITES)
    print("no Harbor: it needs Python 3.12 or newer")
    return [name for name in SUITES if name != "harbor"]


def has_frameworks() -> bool:
    """Return True if the packages that most suites need are installed."""
    return is_complete(environment_path("adapters"))


def python_of(suite: Suite) -> Path:
    """Return the Python of the environment that has a suite's framework, installed if needed."""
    if suite.lock != "harbor":
        return environment_of(suite.lock) / "bin/python"
    newer = newer_python()
    if newer is None:
        raise SystemExit("Harbor needs Python 3.12 or newer, and there is none; FUMEHOOD_TESTS_PYTHON names one")
    return environment_of(suite.lock, newer) / "bin/python"


def newer_python() -> str | None:
    """Return a Python of version 3.12 or newer that works, or None."""
    named = os.environ.get("FUMEHOOD_TESTS_PYTHON", "")
    check = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))"
    for name in filter(None, (named, sys.executable, "python3.12", "python3.13", "python3.14", "python3")):
        # Some names are scripts that only say that this Python is not installed.
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", check], capture_output=True, check=False).returncode == 0:
            return path
    return None


def install(python: Path, target: Path) -> None:
    """Build the distribution and install it, with its entry points, in a directory that only the suites use."""
    line = [sys.executable, "-I", "-m", "pip", "--python", python, "install", "-qq", "--disable-pip-version-check"]
    line += ["--no-build-isolation", "--no-deps", "--no-index", "--target", target, CHECKOUT]
    subprocess.run(line, check=True, cwd="/")


def run(python: Path, name: str, folder: Path) -> tuple[int, int, int]:
    """Run one suite in a home of its own; return how many tests passed, differed as expected, and failed."""
    home = folder / name
    home.mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FUMEHOOD", "PYTHON", "XDG_"))}
    environment = kept | {
        "HOME": str(home), "PYTHONPATH": python_path(SUITES[name], folder / "packages"), "LANG": "C.UTF-8",
        "PYTHONPYCACHEPREFIX": str(python.parent.parent / "pycache"),
        "FUMEHOOD_SUITE_DIR": str(folder), "FUMEHOOD_SUITE_EXAMPLES": str(CHECKOUT / "examples"),
    }  # fmt: skip
    report = folder / f"{name}.xml"
    line = [python, "-P", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    line += ["--noconftest", "-c", "/dev/null", "-W", "ignore"]
    line += ["-o", "asyncio_mode=auto", "-o", "python_files=*_suite.py"]
    line += [f"--rootdir={folder}", f"--junitxml={report}"]
    line += [CHECKOUT / "tests/suites" / f"{SUITES[name].file or name}_suite.py"]
    done = subprocess.run(line, cwd=home, env=environment, capture_output=True, text=True, check=False)
    print(f"{name}\n{done.stdout}{done.stderr}", flush=True)
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skipped = [element for case in cases if (element := case.find("skipped")) is not None]
    differ = sum(element.get("type") == "pytest.xfail" for element in skipped)
    # A skipped test counts as failed.
    return len(cases) - failed - len(skipped), differ, failed + len(skipped) - differ


def python_path(suite: Suite, *packages: Path) -> str:
    """Return the directories in which a suite's Python looks first, as PYTHONPATH."""
    before = environment_of(suite.before).glob("lib/python*/site-packages") if suite.before else ()
    return os.pathsep.join(map(str, [*packages, *before]))


def installed_version(python: Path, suite: Suite) -> str:
    """Return the version of the package that a suite tests."""
    code = f"import importlib.metadata as m; print(m.version({suite.package!r}))"
    environment = os.environ | {"PYTHONPATH": python_path(suite)}
    line = [python, "-P", "-c", code]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
