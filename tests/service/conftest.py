"""What the tests of the service share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood import Run, Sandbox
from people import Person


@pytest.fixture(autouse=True)
def _known_host(known_host: None) -> None:
    """What this host can do is found out once."""


@pytest.fixture(params=["one file system", pytest.param("two file systems", marks=pytest.mark.once)])
def project_on_either(request: pytest.FixtureRequest, test_directory: Path) -> Path:
    """A project on the file system of the layers, where paths are swapped, and on another, where they are copied."""
    alone = request.param == "one file system"
    project: Path = (test_directory if alone else request.getfixturevalue("other_filesystem")) / "project"
    project.mkdir()
    return project


@pytest.fixture
def run(sandbox: Sandbox) -> Callable[..., Run]:
    """Run a command in the hood."""
    return sandbox.run


@pytest.fixture
def undo(sandbox: Sandbox) -> Callable[[Run], Run]:
    """Take a run back."""
    return sandbox.undo


@pytest.fixture
def person() -> Person:
    """Somebody who is asked, and says yes."""
    return Person()
