"""The person's configuration on disk, and a compiled form of it that a run can read quickly.

Each version of `config.toml` is parsed and checked once. The result is cached, with that version's identity. If there
is no file, a run pays one failed `stat`.
"""

from __future__ import annotations

import os
import stat
import time

from fumehood.core.paths import is_in
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


_FORMAT = "3"  # must change whenever the same text gets another meaning
_LARGEST_FILE = 1 << 20
_WRITABLE_BY_OTHERS = 0o002
# A file time can be as coarse as 10 ms: a younger file could still be written without getting a new identity.
_SETTLED_AGE_NS = 100_000_000


def configuration_path(places: Places) -> str:
    """Return the path of the configuration, existing or not."""
    return f"{places.config}/config.toml"


def configuration_text(places: Places) -> str:
    """Return the text of the configuration, or "" if there is none."""
    try:
        with open(configuration_path(places), encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def policy_for(places: Places, roots: Sequence[str]) -> Policy:
    """Return the policy of a project; `roots` begin with the project itself. Raises BadConfiguration."""
    settings = load_settings(places, roots)
    policy = Policy()
    for scope in scopes_of(settings, roots):
        policy = policy.with_settings(settings[scope])
    return policy


def scopes_of(settings: Settings, roots: Sequence[str]) -> list[str]:
    """Return which settings are for a project, in the order in which they count; `roots` begin with the project.

    A project's table is also for the projects in it: else a command would end it there by making a repository.
    """
    return sorted((each for each in settings if each == ALL_PROJECTS or is_in("".join(roots[:1]), (each,))), key=len)


def load_settings(places: Places, roots: Sequence[str] = ()) -> Settings:
    """Return the settings for every project ("") and for single ones; raises BadConfiguration.

    `roots` are those of the project for which they are read: the file must not lie where its commands can write.
    """
    path = configuration_path(places)
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        for link in (path, os.path.dirname(path)):
            if os.path.islink(link) and not os.path.exists(link):
                # If we took this for no configuration, everything that the person has forbidden would be allowed.
                hint = f"bring back what it leads to, or remove it: {link}"
                raise BadConfiguration(f"the configuration is a link that leads nowhere: {link}", hint=hint) from None
        return {}
    except OSError as error:
        raise _unreadable_error(path, error) from error
    _refuse_writable_file(path, status, (*roots, places.data, f"{places.cache}/scratch"))
    compiled = f"{places.cache}/config-{os.geteuid()}"
    settings = _load_compiled(compiled, _identity(status))
    if settings is None:
        identity, checked = compile_file(path)
        if checked.complaints:
            raise _complaint_error(path, checked)
        settings = checked.settings
        if identity:
            cache.save(compiled, settings, identity)
    return settings


def compile_file(path: str) -> tuple[bytes, CheckedConfiguration]:
    """Read and check a configuration; return its identity too, which is empty if the file may still be changing."""
    from fumehood.core.config import read_configuration

    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)) as file:
            before = os.fstat(file)
            if not stat.S_ISREG(before.st_mode) or before.st_size > _LARGEST_FILE:
                raise BadConfiguration(f"{path} is not a configuration file", hint="it must be a file of at most 1 MiB")
            data = os.read(file, _LARGEST_FILE + 1)
            after = os.fstat(file)
    except OSError as error:
        raise _unreadable_error(path, error) from error
    identity = _identity(before)
    age = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns)
    if identity != _identity(after) or age < _SETTLED_AGE_NS:
        identity = b""
    return identity, _with_link_complaints(read_configuration(data, home()))


def _with_link_complaints(checked: CheckedConfiguration) -> CheckedConfiguration:
    """Return a checked configuration with a complaint for each project that is not named by its real path.

    Projects are known by their real paths only.
    """
    from fumehood.core.config import Complaint, by_line

    complaints = [
        Complaint(
            line=line, key=f'project."{path}"', message="is not the real path of that directory",
            hint=f'write [project."{os.path.realpath(path)}"]',
        )
        for path, line in checked.lines.items()
        if os.path.realpath(path) != path
    ]  # fmt: skip
    return checked.replace(complaints=by_line([*checked.complaints, *complaints])) if complaints else checked


def _unreadable_error(path: str, error: OSError) -> BadConfiguration:
    return BadConfiguration(f"cannot read the configuration {path}: {error.strerror}", hint="check its permissions")


def _refuse_writable_file(path: str, status: os.stat_result, roots: Sequence[str]) -> None:
    """Refuse a configuration that a command or another user could write: it could allow more to all later runs."""
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise BadConfiguration(f"anybody may write the configuration {path}", hint=f"chmod go-w {path}")
    real = os.path.realpath(path)
    for root in roots:
        if real.startswith(os.path.realpath(root).rstrip("/") + "/"):
            raise BadConfiguration(
                f"the configuration {path} lies in {root}, where commands can write it",
                hint="keep it where no command can write",
            )


def _complaint_error(path: str, checked: CheckedConfiguration) -> BadConfiguration:
    first = checked.complaints[0]
    more = len(checked.complaints) - 1
    complaint = f"{path}, line {first.line}: {f'{first.key}: ' if first.key else ''}{first.message}"
    check = "fumehood config check" + (f" tells of {more} more" if more else "")
    return BadConfiguration(complaint, hint=f"{first.hint}; {check}" if first.hint else check)


def _identity(status: os.stat_result) -> bytes:
    """Return what identifies one version of the file, read for one home."""
    parts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return os.fsencode(f"fumehood configuration {_FORMAT} {' '.join(map(str, parts))} {home()}")


def _load_compiled(path: str, identity: bytes) -> Settings | None:
    """Return the settings that were compiled from this version of the file, or None if they must be compiled again."""
    settings: Settings | None = cache.load(path, identity)
    try:
        # Another version of Fumehood may have compiled them, with other fields.
        for scope in (settings or {}).values():
            Policy().with_settings(scope)
    except (ValueError, TypeError, AttributeError):
        return None
    return settings


# ---- Changes to files that a person wrote, with a backup: the configuration, and other programs' settings.

_BOM = "\ufeff"


def set_key(places: Places, name: str, value: str | list[str]) -> str:
    """Set a key of the configuration without changing anything else in its text; return the file's path.

    Nothing is written unless the new text is a valid configuration that differs only in this key.
    """
    import json
    import tomllib

    import tomlkit

    path = configuration_path(places)
    try:
        before = configuration_text(places)
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"cannot read the configuration {path}: {error}", hint="check it") from error
    _refuse_complaints(path, name, before)
    text = before.removeprefix(_BOM)  # the parsers do not know it; the file keeps it
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
        replace_with_backup(os.path.realpath(path), before, after)  # a link, for example into dotfiles, stays a link
    except OSError as error:
        raise BadConfiguration(
            f"cannot write the configuration {path}: {error.strerror}", hint="check its permissions"
        ) from error
    return path


def write_edited(path: str, before: str, after: str) -> None:
    """Write a configuration that a person edited; raises BadConfiguration if it is invalid, or the file has changed."""
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
    replace_with_backup(real, before, after)


def _refuse_complaints(path: str, name: str, text: str) -> None:
    """Refuse to set a key in a configuration that is not valid."""
    from fumehood.core.config import read_configuration

    complaints = read_configuration(text.encode(), home()).complaints
    if complaints:
        raise BadConfiguration(
            f"{name} was not set in {path}, which has an error: {complaints[0].message}", hint="fumehood config check"
        )


def replace_with_backup(path: str, before: str, after: str, *, needs_backup: bool = True) -> str | None:
    """Replace the content of a file atomically; return the path of the backup beside it, or None if there is none."""
    backup = None
    mode = 0o600
    if os.path.exists(path):
        mode = os.stat(path).st_mode & 0o755
        if needs_backup:
            usual_name = backup = f"{path}.before-fumehood-{time.strftime('%Y%m%d-%H%M%S')}"
            number = 1
            while os.path.lexists(backup):
                number += 1
                backup = f"{usual_name}-{number}"
            cache.replace_file(backup, before.encode(), mode=mode)
    cache.replace_file(path, after.encode(), by_many=True, mode=mode)
    return backup
