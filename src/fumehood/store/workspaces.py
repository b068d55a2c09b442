"""Workspaces: directories of our own that are projects like any other, with settings that commands can't reach."""

from __future__ import annotations

import os
import time

from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fumehood.store.database import Database
    from fumehood.store.places import Places

DEFAULT = "default"
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_LONGEST = 64
_NETWORKS = ("none", "ask", "full")


class Workspace(Value):
    """One workspace; what is empty is as the configuration says."""

    name: str
    path: str
    root: str = "alpine"
    network: str = ""
    writable: bool | None = None
    environment: tuple[tuple[str, str], ...] = ()

    def settings(self) -> dict[str, Any]:
        """Return what it lays over the person's policy, by field."""
        found: dict[str, Any] = {"root": self.root}
        if self.network:
            found["network"] = self.network
        if self.writable is not None:
            found["rootfs.writable"] = self.writable
        if self.environment:
            found["environment.set"] = self.environment
        return found


class Workspaces:
    """The workspaces there are."""

    def __init__(self, database: Database, places: Places) -> None:
        self._database = database
        self._places = places

    def path(self, name: str) -> str:
        """Return where a workspace lies; raises BadRequest for what is no name."""
        if (
            not name or len(name) > _LONGEST or not _LETTERS.issuperset(name) or not name[0].isalnum()
        ):
            raise BadRequest(
                f"a workspace can't be called {name!r}",
                hint=f"letters, digits, dots, dashes; a letter or digit first; at most {_LONGEST}",
            )
        return f"{self._places.workspaces}/{name}"

    def find(self, name: str) -> Workspace:
        """Return the workspace of a name; "default" is made when it is asked for."""
        path = self.path(name)
        rows = self._database.rows(
            "SELECT root, network, writable, environment FROM workspaces WHERE name = ?", (name,)
        )
        if not rows:
            if name == DEFAULT:
                return self.create(name)
            raise BadRequest(f"there is no workspace {name}", hint="fumehood workspace list; create makes one")
        os.makedirs(path, mode=0o700, exist_ok=True)
        root, network, writable, environment = rows[0]
        return Workspace(
            name=name, path=path, root=root, network=network, writable=None if writable is None else bool(writable),
            environment=_pairs(environment),
        )  # fmt: skip

    def create(self, name: str, **settings: Any) -> Workspace:
        """Make a workspace."""
        path = self.path(name)
        workspace = _checked(Workspace(name=name, path=path, **settings))
        with self._database.transaction() as connection:
            done = connection.execute(
                "INSERT OR IGNORE INTO workspaces VALUES (?, ?, ?, ?, ?, ?)", (*_row(workspace), time.time())
            )
            if not done.rowcount and name != DEFAULT:
                raise BadRequest(f"there is a workspace {name} already", hint=f"fumehood workspace set {name} …")
        os.makedirs(path, mode=0o700, exist_ok=True)
        return workspace

    def change(self, name: str, settings: Mapping[str, Any]) -> Workspace:
        """Give a workspace other settings."""
        workspace = _checked(self.find(name).replace(**settings))
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE workspaces SET name = ?, root = ?, network = ?, writable = ?, environment = ? WHERE name = ?",
                (*_row(workspace), name),
            )
        return workspace

    def all(self) -> list[Workspace]:
        """List the workspaces by name."""
        return [self.find(name) for (name,) in self._database.rows("SELECT name FROM workspaces ORDER BY name")]

    def at(self, project: str) -> Workspace | None:
        """Return the workspace that a project is, or None for every other project."""
        above, _, name = project.rpartition("/")
        if above != os.path.realpath(self._places.workspaces):
            return None
        known = self._database.rows("SELECT 1 FROM workspaces WHERE name = ?", (name,))
        return self.find(name) if known else None

    def forget(self, name: str) -> None:
        """Drop the record of a workspace; its runs stay in the history."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM workspaces WHERE name = ?", (name,))


def _row(workspace: Workspace) -> tuple[Any, ...]:
    pairs = "\0".join(f"{name}={value}" for name, value in workspace.environment)
    return workspace.name, workspace.root, workspace.network, workspace.writable, os.fsencode(pairs)


def _pairs(stored: bytes) -> tuple[tuple[str, str], ...]:
    lines = [line.partition("=") for line in os.fsdecode(stored).split("\0") if line]
    return tuple((name, value) for name, _, value in lines)


def _checked(workspace: Workspace) -> Workspace:
    if workspace.network and workspace.network not in _NETWORKS:
        raise BadRequest(f"there is no network rule {workspace.network!r}", hint=f"one of: {', '.join(_NETWORKS)}")
    for name, value in workspace.environment:
        if not name or "=" in name or "\0" in name + value or name[0].isdigit():
            raise BadRequest(f"{name!r} is not a variable", hint="--env NAME=VALUE")
    return workspace
