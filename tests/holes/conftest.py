"""What the tests of known holes share."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood import Run, Sandbox


@pytest.fixture(autouse=True)
def _known_host(known_host: None) -> None:
    """What this host can do is found out once."""


@pytest.fixture
def outside(test_directory: Path) -> Path:
    """A directory beside the project that nothing may reach."""
    outside = test_directory / "outside"
    (outside / "sub").mkdir(parents=True)
    for name in ("file", "sub/file"):
        (outside / name).write_text("not yours")
    return outside


@pytest.fixture
def meanwhile(sandbox: Sandbox, test_directory: Path) -> Callable[..., Run]:
    """Run a command; when it has done its work, and before it ends, somebody else acts."""

    def run(command: str, act: Callable[[], object], **options: object) -> Run:
        go = test_directory / "go"
        go.touch()  # now: what appears later is not seen through a view

        def on_output(_stream: str, text: str) -> None:
            if "ready" in text:
                act()
                go.write_text("go")

        waiting = f"{command}; echo ready; until [ -s {go} ]; do sleep 0.01; done"
        return sandbox.run(waiting, on_output=on_output, **options)  # type: ignore[arg-type]

    return run


@pytest.fixture
def on_host(project: Path) -> Callable[[str], None]:
    """What a person does in a shell of their own, in the project."""

    def run(line: str) -> None:
        subprocess.run(["sh", "-euc", line], cwd=project, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})

    return run


@pytest.fixture
def verdicts() -> Callable[[Run], dict[str, str]]:
    return lambda run: {change.path: change.verdict for change in run.changes}
