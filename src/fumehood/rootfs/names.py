"""Let a command that shares the host's network find hosts by name: the host's resolver, in the tree's own place."""

from __future__ import annotations

import os
import stat

from fumehood.linux.mounts import Bind
from fumehood.linux.nofollow import look, make_parents, open_below, open_top, remove_tree, set_mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

RESOLVER, HOSTS = "etc/resolv.conf", "etc/hosts"
_MOST = 1 << 16


def bound_names(tree: str) -> tuple[Bind, ...]:
    """Return what is mounted for it in a tree: only on plain files, since bubblewrap would follow a link."""
    top = open_top(tree)
    try:
        found = [name for name in (RESOLVER, HOSTS) if os.path.isfile(f"/{name}") and has_plain_file(top, name)]
    finally:
        os.close(top)
    return tuple(Bind(source=os.path.realpath(f"/{name}"), target=f"/{name}") for name in found)


def told_names(trees: Sequence[str]) -> str:
    """Return the resolver's configuration that a command sees: the first of these trees that has one decides."""
    for tree in trees:
        try:
            top = open_top(tree)
        except OSError:
            continue
        try:
            file = open_below(top, RESOLVER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # none, or a link, which is not followed for a command's sake
        finally:
            os.close(top)
        try:
            return os.read(file, _MOST).decode(errors="replace")
        except OSError:
            continue  # no file
        finally:
            os.close(file)
    return ""


def write_names(upper: str) -> None:
    """Put a copy of the resolver's configuration into a layer, where commands could have put anything."""
    try:
        with open(f"/{RESOLVER}", "rb") as file:
            content = file.read(_MOST)
    except OSError:
        return  # the host has none
    folder, _, name = RESOLVER.rpartition("/")
    top = open_top(upper)
    try:
        if look(top, folder) is None:
            make_parents(top, folder)
            made = open_below(top, folder)
            set_mode(made, 0o755)
            os.close(made)
        above = open_below(top, folder)
        try:
            remove_tree(above, name)
            target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=above)
            try:
                os.write(target, content)
            finally:
                os.close(target)
        finally:
            os.close(above)
    finally:
        os.close(top)


def has_plain_file(top: int, path: str) -> bool:
    """Tell whether a tree has a file at a path, with no link on the way."""
    try:
        folder = open_below(top, os.path.dirname(path))
    except OSError:
        return False
    try:
        found = look(folder, os.path.basename(path))
    finally:
        os.close(folder)
    return found is not None and stat.S_ISREG(found.st_mode)
