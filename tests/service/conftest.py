"""What the tests of the service share."""

from collections.abc import Callable

import pytest

from fumehood import Run, Sandbox
from people import Person


@pytest.fixture(autouse=True)
def _known_host(known_host: None) -> None:
    """What this host can do is found out once."""


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
