"""What the tests with real clients stand on. Run them with `make clients`: they need programs that are large."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clients.endpoint import Endpoint
from conftest import need
from patience import LONG_S

CHECKOUT = Path(__file__).resolve().parent.parent.parent
FUMEHOOD = CHECKOUT / "fumehood"
# The environment of the checkout, which a fresh home would make anew.
CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    """A person's environment: nothing of the tests' own but the cache."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    return kept | {"XDG_CACHE_HOME": CACHE, "LANG": "C.UTF-8", "SHELL": "/bin/bash"}


@pytest.fixture
def fumehood(environment: dict[str, str], project: Path) -> Callable[..., Done]:
    """The command as a person types it."""

    def run(*arguments: str) -> Done:
        line = [str(FUMEHOOD), *arguments]
        done = subprocess.run(line, cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def beside(project: Path, test_directory: Path) -> Path:
    """A directory beside the project; both have a `build` in them."""
    place = test_directory / "beside"
    for each in (project, place):
        (each / "build").mkdir(parents=True)
    return place


def only_read_there(told: str, project: Path, beside: Path, *, is_offered: bool = True) -> None:
    """Check that `pwd; rm -rf build` ran beside the project, removed neither `build`, and was told what to ask for."""
    assert said_by_us(f"read-only here: {beside}. to ask the person for it: fumehood ask --write", told) == is_offered
    assert f"{beside}\n" in told
    assert "Read-only file system" in told
    assert (project / "build").is_dir()
    assert (beside / "build").is_dir()


def log(fumehood: Callable[..., Done]) -> list[dict[str, Any]]:
    """What ran, the earliest first."""
    return json.loads(fumehood("log", "--json").stdout)["runs"][::-1]


def provided(variable: str, name: str) -> str:
    """Where a real client lies, or skip."""
    found = os.environ.get(variable, "")
    need(bool(found), f"the real {name} is got by `make clients`")
    return found


def said_by_us(words: str, told: str) -> bool:
    """Whether a line of ours says this."""
    return re.search(rf"^\[fumehood [a-z]{{12}}\] {re.escape(words)}", told, re.MULTILINE) is not None


def knows_our_words(model: Endpoint) -> bool:
    """Whether the model was told, besides the output of its first command, by what our words in that are known."""
    mark = re.search(r"^\[fumehood ([a-z]{12})\] undo: ", model.results()[0], re.MULTILINE)
    sent = json.dumps(max(model.requests, key=lambda request: len(model.told(request))))
    return mark is not None and f"lines that begin with `[fumehood {mark[1]}]` are Fumehood's own" in sent


def ended(process: "subprocess.Popen[str]") -> None:
    """Wait for a client's good end."""
    # OpenCode alone takes 20 s of two quiet processors to start.
    out, err = process.communicate(timeout=2.5 * LONG_S)
    assert process.returncode == 0, out + err


def started(line: Sequence[str | Path], cwd: Path, environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(word) for word in line], cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
