"""A run's own record beside its layer, from which the database can be made again, should it be lost.

Only runs that keep a layer have one: a file for each run that has versions there, written when the run is settled.
"""

from __future__ import annotations

import os

from fumehood.core.compact import dumps, loads
from fumehood.core.report import Run
from fumehood.store import rows as changing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fumehood.store.places import Places

_FORMAT = 1
_END = ".record"
_FIELDS = (
    "run", "project", "command", "cwd", "state", "reason", "exit_code", "timed_out", "sandboxed", "network", "hosts",
    "duration_s", "started_at", "act", "of", "layer", "capture", "mode", "dropped", "roots", "session", "below",
)  # fmt: skip


def write(places: Places, run: Run) -> None:
    """Write down what a run is now, beside the layer that it uses."""
    path = _path(places, run.layer, run.run)
    rows = [
        (root, os.fsdecode(directory), None if within is None else os.fsdecode(within),
         os.fsdecode(entries).split("\0"))
        for root, directory, within, _, entries in changing.rows(run.found)
    ]  # fmt: skip
    text = os.fsencode(dumps((_FORMAT, {name: getattr(run, name) for name in _FIELDS}, rows)))
    try:
        replace(path, text)
    except OSError:
        # The database has it all; but a record of what was so before would mislead.
        for each in (path, f"{path}.new"):
            if os.path.lexists(each):
                os.unlink(each)


def is_kept(places: Places, run: Run) -> bool:
    """Tell whether a run has a record of its own."""
    return os.path.exists(_path(places, run.layer, run.run))


def read(places: Places, layer: str) -> Iterator[Run]:
    """Yield the runs that have versions in a layer, by their own records; what can't be read is left out."""
    directory = f"{places.run(layer)}/0"
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name.endswith(_END):
            run = _read(f"{directory}/{name}")
            if run is not None and run.layer == layer:
                yield run


def _path(places: Places, layer: str, run: str) -> str:
    return f"{places.run(layer)}/0/{run}{_END}"


def replace(path: str, text: bytes) -> None:
    """Write a file beside its place, and let it take that when it is whole."""
    spare = f"{path}.new"
    file = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(text)
        while left:
            left = left[os.write(file, left) :]
    finally:
        os.close(file)
    os.rename(spare, path)


def _read(path: str) -> Run | None:
    with open(path, "rb") as file:
        text = os.fsdecode(file.read())
    try:
        format_, fields, rows = loads(text)
        if format_ != _FORMAT or set(fields) != set(_FIELDS):
            return None
        found = changing.read(
            (root, os.fsencode(directory), None if within is None else os.fsencode(within), None,
             os.fsencode("\0".join(entries)))
            for root, directory, within, entries in rows
        )  # fmt: skip
    except (ValueError, TypeError):
        return None
    return Run(**fields, found=found)
