"""What the tests of the service share."""

import pytest


@pytest.fixture(scope="session")
def probed(tmp_path_factory):
    """One cache for all tests: what this host can do is found out once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def known_host(home, probed, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(probed))
