"""Compare paths by their text: which lies in which directory."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence


def is_below(path: str, directory: str) -> bool:
    """Return True if a path lies inside a directory, however deep."""
    return path.startswith(directory.rstrip("/") + "/")


def is_in(path: str, directories: Iterable[str]) -> bool:
    """Return True if a path is one of some directories, or lies in one."""
    return any(path == each or is_below(path, each) for each in directories)


def innermost(path: str, directories: Container[str]) -> str | None:
    """Return the innermost of some directories that a path is or lies in, or None; their number costs no time."""
    while path:
        if path in directories:
            return path
        path = path.rpartition("/")[0]
    return "/" if "/" in directories else None


def with_parents(paths: Iterable[str]) -> frozenset[str]:
    """Return some paths and every directory around them."""
    all_paths = {"/"}
    for path in paths:
        parent = path
        while parent and parent not in all_paths:
            all_paths.add(parent)
            parent = parent.rpartition("/")[0]
    return frozenset(all_paths)


def paths_inside(paths: Iterable[str], directories: Sequence[str]) -> tuple[str, ...]:
    """Return those paths that lie inside one of some directories."""
    return tuple(path for path in paths if any(is_below(path, directory) for directory in directories))
