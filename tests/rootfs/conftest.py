"""A mirror on loopback, and nothing between it and the tests."""

from collections.abc import Iterator

import pytest

import mirror as mirrors


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[mirrors.Mirror]:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with mirrors.serving() as serving:
        yield serving
