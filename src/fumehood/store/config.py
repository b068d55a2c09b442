"""The person's configuration on disk, and a compiled form of it that a run can afford to read.

`config.toml` is parsed and checked once for each version of it; what came out lies in the cache, under that
version's identity. Without a file, a run pays one failed `stat`.
"""

from __future__ import annotations

import os
import stat
import time

from fumehood.core.policy import ALL_PROJECTS, Policy
from fumehood.errors import BadConfiguration
from fumehood.linux import cache
from fumehood.linux.libc import Closing
from fumehood.store.places import Places, home, make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from fumehood.core.config import CheckedConfiguration

    Settings = dict[str, dict[str, Any]]


_FORMAT = "3"  # another one where the same text comes to mean something else
_LONGEST = 1 << 20
_OTHERS_WRITE = 0o002
# A file time can be as coarse as 10 ms: a version younger than this could still be written without a new identity.
_SETTLED_NS = 100_000_000


def file_of(places: Places) -> str:
    """Where the configuration lies, whether it is there or not."""
    return f"{places.config}/config.toml"


def text_of(places: Places) -> str:
    """Return what stands in the configuration; nothing where there is none."""
    try:
        with open(file_of(places), encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def policy_for(places: Places, roots: Sequence[str]) -> Policy:
    """Return what holds for a project, named by its roots, the project itself first."""
    settings = load(places, roots)
    policy = Policy()
    for scope in (ALL_PROJECTS, *roots[:1]):
        if scope in settings:
            policy = policy.with_settings(settings[scope])
    return policy


def load(places: Places, roots: Sequence[str] = ()) -> Settings:
    """Return the settings for every project ("") and for single ones; raises BadConfiguration."""
    path = file_of(places)
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        for place in (path, os.path.dirname(path)):
            if os.path.islink(place) and not os.path.exists(place):
                # Without what it leads to, all that the person had forbidden would be allowed.
                hint = f"bring back what it leads to, or remove it: {place}"
                raise BadConfiguration(f"the configuration is a link that leads nowhere: {place}", hint=hint) from None
        return {}
    except OSError as error:
        raise _unreadable(path, error) from error
    _check_reach(path, status, (*roots, places.data, f"{places.cache}/scratch"))
    compiled = f"{places.cache}/config-{os.geteuid()}"
    settings = _remembered(compiled, _identity(status))
    if settings is None:
        identity, checked = compile_file(path)
        if checked.complaints:
            raise _refusal(path, checked)
        settings = checked.settings
        if identity:
            cache.save(compiled, settings, identity)
    return settings


def compile_file(path: str) -> tuple[bytes, CheckedConfiguration]:
    """Read and check a configuration; its identity is empty where it may still be changing."""
    from fumehood.core.config import read_configuration

    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)) as file:
            before = os.fstat(file)
            if not stat.S_ISREG(before.st_mode) or before.st_size > _LONGEST:
                raise BadConfiguration(f"{path} is not a configuration file", hint="it must be a file of at most 1 MiB")
            data = os.read(file, _LONGEST + 1)
            after = os.fstat(file)
    except OSError as error:
        raise _unreadable(path, error) from error
    identity = _identity(before)
    age = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns)
    if identity != _identity(after) or age < _SETTLED_NS:
        identity = b""
    return identity, _without_links(read_configuration(data, home()))


def _without_links(checked: CheckedConfiguration) -> CheckedConfiguration:
    """Complain of projects that are not named by their real path, which is the one they are known by."""
    from fumehood.core.config import Complaint, by_line

    wrong = [
        Complaint(
            line=line, key=f'project."{path}"', message="is not the real path of that directory",
            hint=f'write [project."{os.path.realpath(path)}"]',
        )
        for path, line in checked.lines.items()
        if os.path.realpath(path) != path
    ]  # fmt: skip
    return checked.replace(complaints=by_line([*checked.complaints, *wrong])) if wrong else checked


def _unreadable(path: str, error: OSError) -> BadConfiguration:
    return BadConfiguration(f"cannot read the configuration {path}: {error.strerror}", hint="check its permissions")


def _check_reach(path: str, status: os.stat_result, roots: Sequence[str]) -> None:
    """Refuse a configuration that a command, or anybody, could write: it could loosen every later run."""
    if status.st_mode & _OTHERS_WRITE:
        raise BadConfiguration(f"anybody may write the configuration {path}", hint=f"chmod go-w {path}")
    real = os.path.realpath(path)
    for root in roots:
        if real.startswith(os.path.realpath(root).rstrip("/") + "/"):
            raise BadConfiguration(
                f"the configuration {path} lies in {root}, where commands can write it",
                hint="keep it where no command can write",
            )


def _refusal(path: str, checked: CheckedConfiguration) -> BadConfiguration:
    first = checked.complaints[0]
    more = len(checked.complaints) - 1
    complaint = f"{path}, line {first.line}: {f'{first.key}: ' if first.key else ''}{first.message}"
    check = "fumehood config check" + (f" tells of {more} more" if more else "")
    return BadConfiguration(complaint, hint=f"{first.hint}; {check}" if first.hint else check)


def _identity(status: os.stat_result) -> bytes:
    """Return what tells one version of the file, read for one home, from all others."""
    parts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return os.fsencode(f"fumehood configuration {_FORMAT} {' '.join(map(str, parts))} {home()}")


def _remembered(path: str, identity: bytes) -> Settings | None:
    """Return the settings compiled from this version, or None where they must be made again."""
    settings: Settings | None = cache.load(path, identity)
    try:
        # A field that is no more was compiled by another version of us.
        for scope in (settings or {}).values():
            Policy().with_settings(scope)
    except (ValueError, TypeError, AttributeError):
        return None
    return settings


# ---- Change files that a person wrote: their configuration, and other programs' settings; a backup is kept.

_BOM = "\ufeff"


def set_key(places: Places, name: str, value: str | list[str]) -> str:
    """Give a key of the configuration a value, leaving all else as it is written; returns the file's path.

    Nothing is written unless the outcome is a configuration that holds, and says the same but for this key.
    """
    import json
    import tomllib

    import tomlkit

    path = file_of(places)
    try:
        before = text_of(places)
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"cannot read the configuration {path}: {error}", hint="check it") from error
    _refuse_complaints(path, name, before)
    text = before.removeprefix(_BOM)  # which the readers do not know, and which stays
    document, expected = tomlkit.parse(text), tomllib.loads(text)
    table, _, key = name.rpartition(".")
    (document.setdefault(table, tomlkit.table()) if table else document)[key] = value
    (expected.setdefault(table, {}) if table else expected)[key] = value
    after = before.removesuffix(text) + document.as_string()
    _refuse_complaints(path, name, after)
    if tomllib.loads(after.removeprefix(_BOM)) != expected:
        raise BadConfiguration(
            f"{name} can't be set in {path} for you", hint=f"write it yourself: {name} = {json.dumps(value)}"
        )
    if not os.path.isdir(os.path.dirname(path)):
        make_private(os.path.dirname(path))
    try:
        replace(os.path.realpath(path), before, after)  # a link into somebody's dotfiles stays one
    except OSError as error:
        raise BadConfiguration(
            f"cannot write the configuration {path}: {error.strerror}", hint="check its permissions"
        ) from error
    return path


def write_checked(path: str, before: str, after: str) -> None:
    """Write a configuration that a person edited, if it holds, and nobody else changed the file meanwhile."""
    from fumehood.core.config import read_configuration

    complaints = read_configuration(after.encode(), home()).complaints
    if complaints:
        raise BadConfiguration(f"nothing was written: {complaints[0].message}", hint="correct that line")
    real = os.path.realpath(path)
    now = ""
    if os.path.exists(real):
        with open(real, encoding="utf-8", newline="") as file:
            now = file.read()
    if now != before:
        raise BadConfiguration(f"{path} was changed meanwhile: nothing was written", hint="load the page again")
    if not os.path.isdir(os.path.dirname(path)):
        make_private(os.path.dirname(path))
    replace(real, before, after)


def _refuse_complaints(path: str, name: str, text: str) -> None:
    from fumehood.core.config import read_configuration

    complaints = read_configuration(text.encode(), home()).complaints
    if complaints:
        raise BadConfiguration(
            f"{name} was not set in {path}, which has an error: {complaints[0].message}", hint="fumehood config check"
        )


def replace(path: str, before: str, after: str, *, needs_backup: bool = True) -> str | None:
    """Replace a file at once, keeping what was there beside it; returns where that is, or None if there was none."""
    backup = None
    mode = 0o600
    if os.path.exists(path):
        mode = os.stat(path).st_mode & 0o755
        if needs_backup:
            first = backup = f"{path}.before-fumehood-{time.strftime('%Y%m%d-%H%M%S')}"
            number = 1
            while os.path.lexists(backup):
                number += 1
                backup = f"{first}-{number}"
            cache.replace_file(backup, before.encode(), mode=mode)
    cache.replace_file(path, after.encode(), by_many=True, mode=mode)
    return backup
