"""Package managers' settings for a command that does not see the home: where they are, and what is shown of them."""

from __future__ import annotations

import os

from fumehood.core.masks import is_in
from fumehood.core.package_formats import shown_of
from fumehood.core.package_keys import Malformed
from fumehood.core.value import Value
from fumehood.linux.settings_files import Unreadable, Watch, seen_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fumehood.linux.settings_files import Identity


class SettingsFile(Value):
    """A file for the home that a command gets: its path there, and its text, "" where nothing is shown of it."""

    path: str
    text: str
    why: str
    dropped: tuple[str, ...]  # what was left out of the person's own, by name, or why all of it was


class PackageSettings(Value):
    """The files of all managers, and every file that was looked at for them."""

    files: tuple[SettingsFile, ...]
    watched: Mapping[str, Identity]


def package_settings(home: str, environment: Mapping[str, str], writable: Sequence[str] = ()) -> PackageSettings:
    """Make a command's package settings from the person's; `writable` are the directories that commands can write.

    What lies there is left as it is, and never read as if the person had written it.
    """
    watch = Watch()
    homes = tuple(dict.fromkeys((home, os.path.realpath(home))))
    ours = tuple({path: None for each in writable for path in (each, os.path.realpath(each))})
    files: list[SettingsFile] = []
    for path, manager in dict(_places(home, environment, watch)).items():
        if watch.look(path) is None or not is_in(path, (home,)) or is_in(path, ours):
            continue
        text, dropped = _shown(manager, path, homes, ours, watch)
        name = os.path.relpath(path, home)
        files.append(SettingsFile(path=name, text=text, why=f"addresses and options of {manager}", dropped=dropped))
    return PackageSettings(files=tuple(files), watched=watch.identities)


def _shown(
    manager: str, path: str, homes: Sequence[str], writable: Sequence[str], watch: Watch
) -> tuple[str, tuple[str, ...]]:
    """Return what is shown of one file, and what of it is not."""
    if seen_at(path, writable) is not None:
        return "", ("all of it: it lies where commands can write",)
    try:
        data = watch.read(path)
        return shown_of(manager, data, homes) if data is not None else ("", ())
    except (Malformed, Unreadable) as error:
        return "", (f"all of it: {error}",)


def _places(home: str, environment: Mapping[str, str], watch: Watch) -> Iterator[tuple[str, str]]:
    """Yield where each manager would look for its files, and its name."""
    config = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    named = environment.get("PIP_CONFIG_FILE", "")
    if named != os.devnull:
        yield from _whole("pip", f"{home}/.pip/pip.conf", f"{config}/pip/pip.conf", named)
    if not environment.get("UV_NO_CONFIG"):
        yield from _whole("uv", environment.get("UV_CONFIG_FILE") or f"{config}/uv/uv.toml")
    npmrc = environment.get("npm_config_userconfig") or environment.get("NPM_CONFIG_USERCONFIG")
    yield from _whole("npm", npmrc or f"{home}/.npmrc")
    yield from _whole("yarn classic", f"{home}/.yarnrc")
    yield from _whole("yarn", f"{home}/{environment.get('YARN_RC_FILENAME') or '.yarnrc.yml'}")
    cargo = environment.get("CARGO_HOME") or f"{home}/.cargo"
    # Without an ending is the old name, which cargo takes first where both are there.
    yield from _whole("cargo", f"{cargo}/config", *([] if watch.look(f"{cargo}/config") else [f"{cargo}/config.toml"]))
    yield from _whole("maven", f"{home}/.m2/settings.xml")
    yield from _whole("go", environment.get("GOENV") or f"{config}/go/env")


def _whole(manager: str, *paths: str) -> Iterator[tuple[str, str]]:
    """Yield those paths that are whole and plain: some are a variable's."""
    for path in paths:
        if path.startswith("/") and path == os.path.normpath(path):
            yield path, manager
