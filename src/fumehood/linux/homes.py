"""Tell what in a home is an installation, what is somebody's work, and what is never shown.

An installation is told by its looks, so that tools need not be known by name. Where that is not clear, it is not one.
"""

from __future__ import annotations

import os

from fumehood.core import toolhomes as tables
from fumehood.core.masks import HOME, is_below
from fumehood.linux.lookup import Lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_MOST_SAMPLED = 50  # files that tell whether a directory holds programs
_MOST_INSTALLATIONS = 1000  # looked into for secrets
_DEEPEST = 4  # of collections of installations


class Homes:
    """One or two homes, what commands write in them, and what is masked."""

    def __init__(
        self, homes: Sequence[str], environment: Mapping[str, str], written: Iterable[str], hidden: Iterable[str]
    ) -> None:
        self.disk = Lookup(homes)
        self.homes = tuple(homes)
        self._below_homes = tuple(f"{home}/" for home in homes)
        self._environment = environment
        self._written = tuple(f"{place}/" for place in written)
        self._settings = {*self._places([".config"]), *self._named_by("XDG_CONFIG_HOME")}
        self._common = set(self._places(tables.COMMON))
        self._common.update(place for _, variable in tables.MOVABLE for place in self._named_by(variable))
        moved = {place for name in tables.MOVED_SECRETS for place in self._named_by(name)}
        self.moved_secrets = {place for place in moved if not self._is_shared(place)}
        self._hidden = tuple(f"{place}/" for place in (*hidden, *self._masked_by_name(), *self.moved_secrets))
        self._installations: dict[str, bool] = {}
        self._installations_left = _MOST_INSTALLATIONS

    def values(self, variable: str) -> list[str]:
        """Return the absolute paths that a variable holds."""
        return [path for path in self._environment.get(variable, "").split(":") if path.startswith("/")]

    def _places(self, places: Iterable[str]) -> Iterator[str]:
        """Return places in the homes, each by its name and where it really is."""
        for home in self.homes:
            for place in places:
                path = f"{home}/{place}".rstrip("/")
                yield from {path, self.disk.resolve(path)[0]} - {""}

    def _named_by(self, variable: str) -> list[str]:
        return [self.disk.resolve(path)[0] or os.path.normpath(path) for path in self.values(variable)]

    def usual(self, home: str, place: str) -> str:
        """Return a usual place in a home, or where a variable has moved it."""
        for folder, variable in tables.MOVABLE:
            if is_below(place, folder) and (paths := self.values(variable)):
                return paths[0] + place[len(folder) :]
        return f"{home}/{place}"

    def _masked_by_name(self) -> Iterator[str]:
        """Return what is masked in the homes, and where the links among it lead."""
        for home in self.homes:
            for place, _ in HOME:
                yield f"{home}/{place}"
                folder, _, name = place.rpartition("/")
                above = self.disk.resolve(f"{home}/{folder}")[0]
                if above:
                    # Only links are watched: those who mount the masks watch for new ones.
                    is_link = os.path.islink(f"{above}/{name}")
                    real = self.disk.resolve(f"{above}/{name}")[0] if is_link else f"{above}/{name}"
                    if real and not self._is_shared(real):
                        yield real

    def _is_shared(self, path: str) -> bool:
        """Tell whether so much lies in a directory that to hide it would hide the tools."""
        return path in self._common or any(home.startswith(f"{path}/") for home in self._below_homes)

    def named(self, path: str) -> str:
        """Return a path as people write it."""
        home = next((home for home in self.homes if is_below(path, home)), "")
        return f"~{path[len(home) :]}" if home else path

    def contain(self, path: str) -> bool:
        """Tell whether a path lies in a home."""
        return path.startswith(self._below_homes)

    def can_show(self, path: str) -> bool:
        """Tell whether a path lies in a home, in no root, and nowhere that is masked."""
        inner = f"{path}/"
        if not self.contain(path) or any(home.startswith(inner) for home in self._below_homes):
            return False
        return not inner.startswith(self._written) and not inner.startswith(self._hidden)

    def is_written(self, path: str) -> bool:
        """Tell whether commands may have written there: in a root, or in somebody's work, the root of others."""
        if f"{path}/".startswith(self._written):
            return True
        for home in self._below_homes:
            at = len(home)
            if not path.startswith(home) or path.startswith(".", at):
                continue
            while at > 0:
                at = path.find("/", at + 1)
                if self.disk.exists(f"{path if at < 0 else path[:at]}/.git"):
                    return True
        return False

    def is_installation(self, path: str) -> bool:
        """Tell whether a directory is one tool with all its parts, and not somebody's settings, work or belongings."""
        if path not in self._installations:
            self._installations[path] = self._looks_installed(path)
        return self._installations[path]

    def _looks_installed(self, path: str) -> bool:
        if path in self._common or os.path.dirname(path) in self._settings or not self.can_show(path):
            return False
        names = self.disk.listing(path)
        is_manager = not tables.MANAGERS.isdisjoint(names)
        if not tables.SOURCE.isdisjoint(names):
            return is_manager and os.path.basename(path).startswith(".")
        if self.is_written(path) or any(place.startswith(f"{path}/") for place in self._written):
            return False
        if tables.CONDA in names or (is_manager and "/." in self.named(path)):
            return True
        return not tables.SIGNS.isdisjoint(names) and (_is_made(names) or _has_only_parts(names))

    def holds_programs(self, path: str) -> bool:
        """Tell whether a directory is one for programs, going by its name or by most of what is in it."""
        names = self.disk.listing(path)
        if not tables.VERSIONED.isdisjoint(names) or os.path.dirname(path) in self._settings:
            return False
        if os.path.basename(path) in tables.PROGRAMS:
            return True
        files = [name for name, kind in sorted(names.items()) if kind == "f"][:_MOST_SAMPLED]
        executable = [name for name in files if self.disk.mode(f"{path}/{name}") & 0o111]
        return path not in self._common and len(executable) * 2 > len(files)

    def is_common(self, path: str) -> bool:
        """Tell whether a directory is shared by too many."""
        return path in self._common

    def has_python(self, prefix: str) -> bool:
        """Tell whether a Python is installed there: by the file that Python itself knows its library by."""
        programs = self.disk.listing(f"{prefix}/bin")
        libraries = [name for name in self.disk.listing(f"{prefix}/lib") if name.startswith(("python", "pypy"))]
        return any(name.startswith(("python", "pypy")) for name in programs) and any(
            self.disk.exists(f"{prefix}/lib/{name}/os.py") for name in libraries
        )

    def secrets_in(self, folder: str) -> tuple[list[str], list[str]] | None:
        """Return what holds passwords in an installation or in those collected below it, and the links among these.

        None if there are too many to look at.
        """
        secrets: list[str] = []
        links: list[str] = []
        waiting = [(folder, 0)]
        while waiting:
            if not self._installations_left:
                return None
            self._installations_left -= 1
            path, depth = waiting.pop()
            names = self.disk.listing(path)
            is_collection = os.path.basename(path) in tables.COLLECTIONS or (depth > 0 and "bin" not in names)
            if not is_collection:
                secrets += self._secrets_of(path, names)
            is_keeper = tables.CONDA in names or not tables.MANAGERS.isdisjoint(names)
            for name, kind in sorted(names.items()) if depth < _DEEPEST else ():
                if kind == "d" and (is_collection or (is_keeper and name in tables.COLLECTIONS)):
                    waiting.append((f"{path}/{name}", depth + 1))
                elif kind == "l" and is_collection:
                    links.append(f"{path}/{name}")
        return secrets, links

    def _secrets_of(self, path: str, names: Mapping[str, str]) -> Iterator[str]:
        for folder in (path, *(f"{path}/{part}" for part in ("conf", "etc") if part in names)):
            for name, kind in self.disk.listing(folder).items():
                if kind != "d" and self._is_secret(f"{folder}/{name}", name):
                    yield f"{folder}/{name}"
        if "pyvenv.cfg" in names or tables.CONDA in names:
            yield from (f"{path}/{hook}" for hook in tables.HOOKS if self.disk.exists(f"{path}/{hook}"))

    def _is_secret(self, path: str, name: str) -> bool:
        # `secret-tool` is a program.
        return tables.is_private(name) or (tables.sounds_private(name) and not self.disk.mode(path) & 0o111)


def _is_made(names: Mapping[str, str]) -> bool:
    """Tell whether a maker's licence or version is there."""
    files = [name for name, kind in names.items() if kind != "d"]
    return any(name in tables.VERSIONS or name.startswith(tables.LICENCES) for name in files)


def _has_only_parts(names: Iterable[str]) -> bool:
    return all(name in tables.PARTS or name.startswith(".") for name in names)
