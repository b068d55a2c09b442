"""Follow a path by its text, name by name, as the kernel would: for whoever must know what lies on the way."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_LINKS = 40  # on the way along one path: the kernel's own limit


def followed(path: str) -> Iterator[tuple[str, bool, list[str]]]:
    """Yield each place that an absolute path leads over, whether it is a link, and the names that follow it.

    The last one is where the path ends, which need not exist. `..` goes up from where a link has led.
    """
    done, names, links = "/", path.split("/"), 0
    while names and links <= _MOST_LINKS:
        name = names.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            done = os.path.dirname(done)
            yield done, False, names
            continue
        place = os.path.join(done, name)
        try:
            target = os.readlink(place)
        except (OSError, ValueError):  # none, or a NUL in it
            target = ""
        yield place, bool(target), names
        if target:
            links += 1
            done = "/" if target.startswith("/") else done
            names = target.split("/") + names
        else:
            done = place


def links_and_end(path: str) -> list[str]:
    """Return the links that a path leads over, in their order, and where it ends."""
    links, end = [], "/"
    for place, is_link, _ in followed(path):
        if is_link:
            links.append(place)
        else:
            end = place
    return [*links, end]
