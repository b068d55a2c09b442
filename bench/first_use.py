"""How long somebody waits for the first command of a fresh checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measures import REPOSITORY, Figure, fumehood_command, median_ms, project_in


def first_use(room: Path) -> Iterator[Figure]:
    """Run the first command with nothing cached, against an environment with the same packages made by hand."""
    project = project_in(room)
    lock = REPOSITORY / "requirements/run.txt"
    by_hand = ["sh", "-c", f"python3 -m venv x && x/bin/pip install -q -r '{lock}'"]

    def in_a_new_home(line: list[str], cwd: Path | None = None) -> None:
        with tempfile.TemporaryDirectory(dir=room) as home:
            caches = {"HOME": home, "PIP_CACHE_DIR": f"{home}/pip", "UV_CACHE_DIR": f"{home}/uv"}
            subprocess.run(line, cwd=cwd or home, env=os.environ | caches, capture_output=True, check=True)

    ours, other = median_ms(
        lambda: in_a_new_home([*fumehood_command(), "true"], project), lambda: in_a_new_home(by_hand), times=3
    )
    tool = "uv" if shutil.which("uv") else "pip"
    yield Figure(f"the first `fumehood run -- true`, with {tool}", ours / 1000, "s", "venv and pip", other / 1000, 1.3)
