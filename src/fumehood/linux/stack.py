"""What a command saw below its own layer: held layers, the topmost first, and the project itself last.

The kernel shows such a stack as one tree while the command runs. Afterwards, on our side of it, the same rules tell
what was there: a name is found in the topmost part that has it, a whiteout ends the search, and so does an opaque
directory, or anything else that is no directory, for all that would lie in it.
"""

from __future__ import annotations

import errno
import os
import stat

from fumehood.linux.nofollow import PATH_ONLY, Loosened, entries, is_whiteout, look, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")
WHITEOUT = ("user.overlay.whiteout", "trusted.overlay.whiteout")


class Stack:
    """Layers over a project, each named by a descriptor of its top directory, the topmost first."""

    def __init__(self, tops: Sequence[int]) -> None:
        self._held = [Loosened(top) for top in tops[:-1]]
        self._live = Loosened(tops[-1])
        self.top = tops[0]

    def reach(self, path: str) -> Merged:
        """Open a directory as the command saw it; raises FileNotFoundError where it saw none."""
        if not self._held:
            return Merged((self._live.reach(path, PATH_ONLY),))
        parts: list[int] = []
        try:
            for layer in self._held:
                part, is_last = _in_layer(layer, path)
                if part is not None:
                    parts.append(part)
                if is_last:
                    return _merged(parts, path)
            try:
                live = self._live.reach(path, PATH_ONLY)
            except (FileNotFoundError, NotADirectoryError):
                return _merged(parts, path)  # only held layers have it
        except OSError:
            Merged(parts, whole=False).close()
            raise
        return Merged((*parts, live))

    def walk(self, top: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield every entry below a directory, parents first, following no symlink."""
        if not self._held:
            yield from walk(self._live.top, top)
            return
        waiting = [top]
        while waiting:
            here = waiting.pop()
            directory = self.reach(here)
            try:
                for name in sorted(directory.names()):
                    found, _ = directory.look(name)
                    if found is None:
                        continue
                    path = f"{here}/{name}" if here else name
                    yield path, found
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(path)
            finally:
                directory.close()

    def restore(self) -> None:
        """Close up the directories that were opened to be looked at."""
        for each in (*self._held, self._live):
            each.restore()


class Merged:
    """One directory of a stack: descriptors of its parts, the topmost first; `whole` if the project's is among them."""

    def __init__(self, parts: Sequence[int], *, whole: bool = True) -> None:
        self._layers = parts[:-1] if whole else parts
        self._live = parts[-1:] if whole else ()

    def look(self, name: str) -> tuple[os.stat_result | None, int]:
        """Return what is seen at a name, and the descriptor of the part that has it."""
        for part in self._layers:
            found = look(part, name)
            if found is not None:
                return (None if hides(part, name, found) else found), part
        for part in self._live:
            return look(part, name), part
        return None, self._layers[-1]

    def is_projects(self, part: int) -> bool:
        """Tell whether a part is the project's own, and no held layer's."""
        return part in self._live

    def names(self) -> set[str]:
        """Return every name that some part has, whiteouts included."""
        return {name for part in (*self._layers, *self._live) for name in entries(part)}

    def close(self) -> None:
        """Let go of the parts."""
        for part in (*self._layers, *self._live):
            os.close(part)


def _merged(parts: Sequence[int], path: str) -> Merged:
    if not parts:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return Merged(parts, whole=False)


def hides(directory: int, name: str, found: os.stat_result) -> bool:
    """Tell whether an entry of a layer means that there is nothing."""
    if is_whiteout(found):
        return True
    if found.st_size or not stat.S_ISREG(found.st_mode):
        return False
    names = os.listxattr(f"/proc/self/fd/{directory}/{name}", follow_symlinks=False)
    return any(mark in names for mark in WHITEOUT)


def is_opaque(directory: int | str, marks: Sequence[str] = OPAQUE) -> bool:
    """Tell whether a directory of a layer hides what lies below it; a descriptor must be one that can be read."""
    names = os.listxattr(directory)
    return any(name in names and os.getxattr(directory, name) == b"y" for name in marks)


def _in_layer(layer: Loosened, path: str) -> tuple[int | None, bool]:
    """Return what a layer has at a directory's path, and whether nothing below this layer is seen there."""
    is_last = False
    here = ""
    for name in path.split("/") if path else ():
        directory = layer.reach(here)
        try:
            found = look(directory, name)
            if found is None:
                return None, is_last
            if not stat.S_ISDIR(found.st_mode):
                return None, True
        finally:
            os.close(directory)
        here = f"{here}/{name}" if here else name
        below = layer.reach(here)
        is_last = is_last or is_opaque(below)
        os.close(below)
    return layer.reach(path, PATH_ONLY), is_last
