"""Set one key in the person's configuration, leaving every other line as it is."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from fumehood.errors import BadConfiguration
from fumehood.store.config import file_of
from fumehood.store.places import home, make_private

if TYPE_CHECKING:
    from fumehood.store.places import Places


def set_key(places: Places, name: str, value: str) -> str:
    """Give a key at the top of the configuration a text; returns the file's path.

    Nothing is written unless the outcome is a configuration that holds.
    """
    from fumehood.core.config import read

    path = file_of(places)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"cannot read the configuration {path}: {error}", hint="check it") from error
    line = f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
    # The line alone must hold, too.
    for each in (text, line):
        complaints = read(each.encode(), home()).complaints
        if complaints:
            raise BadConfiguration(
                f"{name} was not set in {path}, which has an error: {complaints[0].message}",
                hint="fumehood config check",
            )
    _replace(path, _changed(text, name, line))
    return path


def _changed(text: str, name: str, line: str) -> str:
    from fumehood.core.toml_lines import line_numbers

    number = line_numbers(text).get((name,))
    if number is None:
        return line + text  # first, since what follows a table's header belongs to that
    lines = text.splitlines(keepends=True)
    lines[number - 1] = line
    return "".join(lines)


def _replace(path: str, text: str) -> None:
    folder = os.path.dirname(path)
    beside = f"{path}.{os.getpid()}"
    try:
        if not os.path.isdir(folder):
            make_private(folder)
        real = os.path.realpath(path)  # a link into somebody's dotfiles stays one
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), os.stat(real).st_mode & 0o755 if os.path.exists(real) else 0o600)
        os.replace(beside, real)
    except OSError as error:
        raise BadConfiguration(
            f"cannot write the configuration {path}: {error.strerror}", hint="check its permissions"
        ) from error
