"""Change files that a person wrote: their configuration, and other programs' settings; a backup is kept."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from fumehood.errors import BadConfiguration
from fumehood.store.config import file_of
from fumehood.store.places import home, make_private

if TYPE_CHECKING:
    from fumehood.store.places import Places


def set_key(places: Places, name: str, value: str) -> str:
    """Give a key at the top of the configuration a text, leaving all else as it is written; returns the file's path.

    Nothing is written unless the outcome is a configuration that holds, and says the same but for this key.
    """
    import tomllib

    import tomlkit

    path = file_of(places)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            before = file.read()
    except FileNotFoundError:
        before = ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"cannot read the configuration {path}: {error}", hint="check it") from error
    _refuse_complaints(path, name, before)
    document = tomlkit.parse(before)
    document[name] = value
    after = document.as_string()
    _refuse_complaints(path, name, after)
    if tomllib.loads(after) != {**tomllib.loads(before), name: value}:
        raise BadConfiguration(f"{name} can't be set in {path} for you", hint=f'write it yourself: {name} = "{value}"')
    if not os.path.isdir(os.path.dirname(path)):
        make_private(os.path.dirname(path))
    try:
        replace(os.path.realpath(path), before, after)  # a link into somebody's dotfiles stays one
    except OSError as error:
        raise BadConfiguration(
            f"cannot write the configuration {path}: {error.strerror}", hint="check its permissions"
        ) from error
    return path


def _refuse_complaints(path: str, name: str, text: str) -> None:
    from fumehood.core.config import read

    complaints = read(text.encode(), home()).complaints
    if complaints:
        raise BadConfiguration(
            f"{name} was not set in {path}, which has an error: {complaints[0].message}", hint="fumehood config check"
        )


def replace(path: str, before: str, after: str) -> str | None:
    """Replace a file at once, keeping what was there beside it; returns where that is, or None if there was none."""
    backup = None
    mode = 0o600
    if os.path.exists(path):
        mode = os.stat(path).st_mode & 0o755
        backup = f"{path}.before-fumehood-{time.strftime('%Y%m%d-%H%M%S')}"
        _put(backup, before, mode)
    beside = f"{path}.new-{os.getpid()}"
    _put(beside, after, mode)
    os.replace(beside, path)
    return backup


def _put(path: str, text: str, mode: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with open(file, "w", encoding="utf-8", newline="") as writing:
        writing.write(text)
