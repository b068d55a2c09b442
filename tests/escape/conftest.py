"""Lists the tests of this directory that are no attacks of the table beside it."""

import pytest

from escape.attacks import BESIDES, record


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Note how a test ended: its name is a sentence about what was tried, or about what it must not do."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and not report.skipped and "test_attacks" not in str(item.path):
        name = item.originalname.removeprefix("test_").replace("_", " ")
        record(BESIDES, name[:1].upper() + name[1:], "hood", succeeded=report.failed)
