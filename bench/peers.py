"""The tools a person would use instead, timed on the same work where they are installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from measures import Figure, fumehood_command, median_ms, project_in, quiet

# How each runs a command that may write the current directory and nothing else.
PEERS = {
    "sandbox-runtime (srt)": ["srt", "true"],
    "codex sandbox": ["codex", "sandbox", "true"],
    "try": ["try", "-n", "true"],
    "firejail": ["firejail", "--quiet", "--noprofile", "--net=none", "true"],
    "bwrap": ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--dev", "/dev", "--proc", "/proc", "true"],
}


def peers(room: Path) -> Iterator[Figure]:
    """Start `true` in each, cold."""
    project = project_in(room)
    found = {name: argv for name, argv in PEERS.items() if shutil.which(argv[0])}
    acts = [quiet([*fumehood_command(), "true"], cwd=project), *(quiet(argv, cwd=project) for argv in found.values())]
    ours, *theirs = median_ms(*acts, times=20)
    for name, value in zip(found, theirs, strict=True):
        yield Figure(f"cold `true` in {name}", value, "ms", "fumehood", ours)
