"""`fumehood run --explain`: show what a command would see, without running it."""

from __future__ import annotations

import sys
from typing import Any

from fumehood.core.report import printable
from fumehood.faces.cli.style import Paint

_WIDE = 34
colour = Paint(1)


def tell_explained(explained: dict[str, Any]) -> None:
    """Print what decides how a command would run."""
    lines = [f"{printable(explained['command'])} would run like this; nothing was run", ""]
    hosts = f": {', '.join(explained['hosts'])}" if explained["hosts"] else ""
    for name, value in (
        ("directory", explained["cwd"]), ("shell", explained["shell"]),
        ("captured by", f"{explained['capture']}: {explained['capture_by']}"),
        ("network", f"{explained['network']}{hosts}"), ("owners", explained["owners"]),
    ):  # fmt: skip
        lines.append(f"  {name:12} {printable(str(value))}")
    lines += ["", colour("what it sees", "bold")]
    for mount in explained["mounts"]:
        why = colour(f"  ({printable(mount['why'])})", "dim") if mount["why"] else ""
        lines.append(f"  {printable(mount['path']):{_WIDE}} {printable(mount['what'])}{why}")
    environment = explained["environment"]
    lines += ["", colour("variables", "bold"), f"  kept     {' '.join(environment['kept'])}"]
    lines.append(f"  dropped  {' '.join(environment['dropped']) or 'none'}")
    lines += ["", colour("limits", "bold")]
    lines += [f"  {name.replace('_', ' '):12} {amount}" for name, amount in explained["limits"].items()]
    sys.stdout.write("\n".join(lines) + "\n")
