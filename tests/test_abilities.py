"""What a test needs of the host: where it is missing, the test is skipped with the reason, or fails if all must run."""

import pytest

from conftest import need_way
from fumehood.linux.probe import Host

WITHOUT_FUSE = Host(captures=("kernel", "copy"), refusals=(("fuse", "fuse-overlayfs is not installed"),))


@pytest.fixture
def must_run(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("FUMEHOOD_TESTS_MUST_RUN", request.param)


@pytest.mark.parametrize("must_run", ["0"], indirect=True)
def test_a_way_of_capturing_that_is_not_here_is_skipped_with_the_reason(must_run: None) -> None:
    need_way("copy", WITHOUT_FUSE)
    with pytest.raises(pytest.skip.Exception, match="captured by fuse here: fuse-overlayfs is not installed"):
        need_way("fuse", WITHOUT_FUSE)


@pytest.mark.parametrize("must_run", ["1"], indirect=True)
def test_where_every_test_must_run_it_fails_with_the_reason(must_run: None) -> None:
    need_way("copy", WITHOUT_FUSE)
    with pytest.raises(pytest.fail.Exception, match="captured by fuse here: fuse-overlayfs is not installed"):
        need_way("fuse", WITHOUT_FUSE)
