"""Run the tests that use the page in a real browser: `make browser`; words are passed to pytest."""

import os
import shutil
import subprocess
import sys

from clients import claude
from environment import CHECKOUT, environment_of, is_whole, place_of

NAMES = ("chromium", "chromium-browser", "google-chrome")


def main() -> int:
    """Get what drives a browser, and run the tests with the browser that is here."""
    browser = os.environ.get("FUMEHOOD_TESTS_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        raise SystemExit("a Chromium is needed for this; on Debian, type: apt install chromium")
    (packages,) = environment_of("browser").glob("lib/python*/site-packages")
    environment = os.environ | {
        "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1", "FUMEHOOD_TESTS_BROWSER": browser,
        "FUMEHOOD_TESTS_MUST_RUN": "1",
    }  # fmt: skip
    # Too large to be got for one test.
    if is_whole(place_of("clients")):
        environment.setdefault("FUMEHOOD_TESTS_CLAUDE", str(claude()))
    line = [sys.executable, "-P", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    names = sorted(str(path) for path in (CHECKOUT / "tests/browser").glob("[a-z]*.py") if path.name != "conftest.py")
    return subprocess.run([*line, *names, *sys.argv[1:]], env=environment, check=False).returncode


if __name__ == "__main__":
    os.chdir(CHECKOUT)
    sys.exit(main())
