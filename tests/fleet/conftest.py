"""The packages of the fleet, which the suite's own environment lacks, and machines for one test."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import need

sys.path.append(str(Path(__file__).parent))

import machines as fleet


@pytest.fixture(scope="session")
def packages() -> Path:
    """The environment with RQ, Redis, fsspec and the rest; its packages can be imported here too."""
    need(fleet.can_run(), fleet.DEBIAN)
    made = fleet.packages()
    (site,) = made.glob("lib/python*/site-packages")
    sys.path.append(str(site))
    return made


@pytest.fixture
def machines(test_directory: Path, packages: Path) -> Iterator[fleet.Machines]:
    directory = test_directory / "fleet"
    directory.mkdir()
    with fleet.Machines(directory, packages) as made:
        yield made
