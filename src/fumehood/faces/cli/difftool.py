"""What a run changed, file by file, in the difftool that the person uses with git.

Both versions are copied to a directory of our own first, where no repository is: the tool gets these two files, and git
reads the person's own settings and nothing that a command wrote.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

from fumehood.core import changes as c
from fumehood.core.report import printable
from fumehood.errors import BadRequest, Unavailable
from fumehood.service.differences import contents
from fumehood.service.settle import chosen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.report import Run
    from fumehood.service.store import Store

_SHOWN = (0, 1)  # what git exits with: nothing differs, or something does


def show(store: Store, run: Run, paths: Sequence[str], *, here: str, tool: str) -> list[str]:
    """Show each file of a run in the tool, one after the other; returns a line for each path that is not a file."""
    git = shutil.which("git")
    if git is None:
        raise Unavailable("a difftool is found and started by git, which is not here", hint="fumehood diff without it")
    left_out = []
    with tempfile.TemporaryDirectory(prefix="fumehood-diff-") as place:
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": os.path.dirname(place)}
        for number, change in enumerate(chosen(run, paths, here=here)):
            if change.kind != c.FILE or change.change == c.MODE:
                left_out.append(f"{change.change} {change.kind} {printable(change.path)}")
                continue
            files = _written(f"{place}/{number}", os.path.basename(change.path), contents(store, run, change))
            named = [f"--tool={tool}"] if tool else []
            command = [git, "difftool", "--no-index", "--no-prompt", *named, "--", *files]
            code = subprocess.run(command, cwd=place, env=environment, check=False).returncode
            if code not in _SHOWN:
                raise BadRequest(
                    f"git difftool failed with {code} on {printable(change.path)}",
                    hint="git difftool --tool-help lists those that can be used",
                )
    return left_out


def _written(place: str, name: str, versions: tuple[bytes, bytes]) -> list[str]:
    """Write both versions; none of them has a name that git itself would read."""
    files = []
    for side, content in zip(("before", "after"), versions, strict=True):
        os.makedirs(f"{place}/{side}")
        files.append(f"{place}/{side}/{'_' if name.startswith('.') else ''}{name}")
        with open(files[-1], "xb") as file:
            file.write(content)
    return files
