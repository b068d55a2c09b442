"""Every attack of the table: it does what it says on plain bubblewrap, and fails in the hood."""

import os

import pytest

import escape.bombs
import escape.landing
import escape.running  # noqa: F401 - these fill the table
from conftest import fresh_directory, need, remove_tree, scratch
from escape.attacks import REGISTRY, SECTIONS, SUCCEEDS, case_in, in_the_hood, on_plain_bubblewrap, record
from trees import make_tree

pytestmark = pytest.mark.namespaces
IS_ROOT = os.geteuid() == 0


@pytest.fixture(params=sorted(REGISTRY))
def attack(request):
    found = REGISTRY[request.param]
    if found.root_only and not IS_ROOT:
        pytest.skip("only root could")
    need(not found.needs(), found.needs())
    return found


@pytest.fixture(scope="module")
def tree():
    top = fresh_directory(scratch())
    yield make_tree(top / "tree")
    remove_tree(top)


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


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_attack_fails_in_a_root_tree(attack, tree, home, test_directory, monkeypatch):
    def set_environment(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    (test_directory / "project").mkdir()
    with case_in(test_directory) as case:
        succeeded = in_the_hood(attack, case, set_environment, tree)
    if succeeded is None:
        pytest.skip("the tree lacks the program that it is written for")
    record(attack.section, attack.words, "tree", succeeded=succeeded)
    assert not succeeded


@pytest.mark.long
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
