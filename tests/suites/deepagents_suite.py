"""LangChain's own suite for sandboxes, on the deepagents adapter."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from fumehood.adapters.deepagents import FumehoodSandbox


class TestFumehood(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[FumehoodSandbox]:
        with tempfile.TemporaryDirectory(dir=os.environ["FUMEHOOD_SUITE_DIR"]) as top:
            project = Path(top, "project")
            project.mkdir()
            backend = FumehoodSandbox(project)
            yield backend
            backend.close()
