"""Random stories of an agent and a person: the project is always what a plain model says."""

import os

import pytest
from hypothesis import settings
from machine import Machine

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(900)]


class TestStories(Machine.TestCase):
    """A bounded number of them; `make stories` plays many more."""

    settings = settings(max_examples=15 if os.geteuid() == 0 else 8, stateful_step_count=15, derandomize=True)
