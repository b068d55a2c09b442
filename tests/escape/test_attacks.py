"""Every attack of the table: it does what it says on plain bubblewrap, and fails in the hood."""

import os

import pytest

import escape.landing
import escape.running  # noqa: F401 - these two fill the table
from conftest import need
from escape.attacks import REGISTRY, SECTIONS, SUCCEEDS, case_in, in_the_hood, on_plain_bubblewrap, record

pytestmark = pytest.mark.namespaces
IS_ROOT = os.geteuid() == 0


@pytest.fixture(params=sorted(REGISTRY))
def attack(request):
    found = REGISTRY[request.param]
    if found.root_only and not IS_ROOT:
        pytest.skip("only root could")
    need(not found.needs(), found.needs())
    return found


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_attack_fails_in_the_hood(attack, home, test_directory, monkeypatch):
    def set_environment(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    (test_directory / "project").mkdir()
    with case_in(test_directory) as case:
        succeeded = in_the_hood(attack, case, set_environment)
    record(attack.section, attack.words, "hood", succeeded=succeeded)
    assert not succeeded


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_attack_is_one(attack, home, test_directory):
    expected = attack.as_root if IS_ROOT else attack.plain
    (test_directory / "project").mkdir()
    with case_in(test_directory) as case:
        succeeded = on_plain_bubblewrap(attack, case)
    record(attack.section, attack.words, "plain", succeeded=succeeded)
    if expected is None:
        pytest.skip("how this ends depends on the kernel")
    assert succeeded == (expected == SUCCEEDS)


def test_the_table_has_at_least_sixty_attacks_over_all_sections():
    assert len(REGISTRY) >= 60
    assert {attack.section for attack in REGISTRY.values()} == set(SECTIONS)
