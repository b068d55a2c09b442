"""What the tests of the service share."""

from collections.abc import Callable

import pytest

from fumehood import Run, Sandbox


@pytest.fixture(scope="session")
def probed(tmp_path_factory):
    """One cache for all tests: what this host can do is found out once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def known_host(home, probed, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(probed))


@pytest.fixture
def run(sandbox: Sandbox) -> Callable[..., Run]:
    """Run a command in the hood."""
    return sandbox.run


@pytest.fixture
def undo(sandbox: Sandbox) -> Callable[[Run], Run]:
    """Take a run back."""
    return sandbox.undo
