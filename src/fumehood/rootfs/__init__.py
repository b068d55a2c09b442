"""Root trees. The names in `__all__` are public and loaded when used; the modules of this package are internal."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.service.root_trees import InstalledTree as InstalledTree
    from fumehood.service.root_trees import architecture as architecture
    from fumehood.service.root_trees import directory as directory
    from fumehood.service.root_trees import install as install
    from fumehood.service.root_trees import installed_trees as list  # noqa: A004, F401 - rootfs.list()
    from fumehood.service.root_trees import is_ready as is_ready
    from fumehood.service.root_trees import latest_version as latest_version
    from fumehood.service.root_trees import remove as remove

# Each public name, and the name of the same thing in `service.root_trees`.
_PUBLIC = {
    "InstalledTree": "InstalledTree", "architecture": "architecture", "directory": "directory", "install": "install",
    "is_ready": "is_ready", "latest_version": "latest_version", "list": "installed_trees", "remove": "remove",
}  # fmt: skip

__all__ = [*_PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fumehood.rootfs' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module("fumehood.service.root_trees"), _PUBLIC[name])
    if not isinstance(value, type):
        value = importlib.import_module("fumehood.service.arguments").checked_arguments(value)
    globals()[name] = value
    return value
