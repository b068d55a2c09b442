"""What a command saw below its own layer: held layers, the topmost first, and the project itself last.

The kernel shows such a stack as one tree while the command runs. Afterwards, on our side of it, the same rules tell
what was there: a name is found in the topmost part that has it, a whiteout ends the search, and so does an opaque
directory, or anything else that is no directory, for all that would lie in it.
"""

from __future__ import annotations

import errno
import os
import stat

from fumehood.linux.nofollow import LISTING, PATH_ONLY, Loosened, entries, is_whiteout, look, split, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")
WHITEOUT = ("user.overlay.whiteout", "trusted.overlay.whiteout")


class Stack:
    """Layers over a project, each named by a descriptor of its top directory, the topmost first."""

    def __init__(self, tops: Sequence[int]) -> None:
        self._tops = [Loosened(top) for top in tops]
        self._parts: dict[str, tuple[int, ...]] = {"": tuple(range(len(tops)))}
        self.top = tops[0]

    def reach(self, path: str) -> Merged:
        """Open a directory as the command saw it; raises FileNotFoundError where it saw none."""
        if len(self._tops) == 1:
            return Merged((self._tops[0].reach(path, PATH_ONLY),))
        parts: list[int] = []
        is_whole = False
        try:
            for number in self._having(path):
                part = self._reached(number, path, PATH_ONLY)
                if part >= 0:
                    parts.append(part)
                    is_whole = number == len(self._tops) - 1
        except OSError:
            Merged(parts).close()
            raise
        if not parts:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return Merged(parts, whole=is_whole)

    def _reached(self, number: int, path: str, flags: int = LISTING) -> int:
        """Open a directory of one layer, or of the project; -1 where that has gone since."""
        try:
            return self._tops[number].reach(path, flags)
        except (FileNotFoundError, NotADirectoryError):
            return -1

    def _having(self, path: str) -> tuple[int, ...]:
        """Return the numbers of the layers that have part in a directory; found once for each directory on the way."""
        missing = []
        while path not in self._parts:
            missing.append(path)
            path = split(path)[0]
        for each in reversed(missing):
            above, name = split(each)
            self._parts[each] = tuple(self._found_in(self._parts[above], above, name))
        return self._parts[missing[0] if missing else path]

    def _found_in(self, numbers: Sequence[int], above: str, name: str) -> Iterator[int]:
        """Yield the numbers of those layers, the topmost first, until something hides what lies below it."""
        for number in numbers:
            above_it = self._reached(number, above)
            if above_it < 0:
                continue
            try:
                found = look(above_it, name)
            finally:
                os.close(above_it)
            if found is None:
                continue
            if not stat.S_ISDIR(found.st_mode):
                return
            yield number
            # Asked of layers only: in the project itself, such a mark means nothing.
            if number < len(self._tops) - 1 and self._is_opaque(number, f"{above}/{name}" if above else name):
                return

    def _is_opaque(self, number: int, path: str) -> bool:
        directory = self._reached(number, path)
        if directory < 0:
            return False
        try:
            return is_opaque(directory)
        finally:
            os.close(directory)

    def walk(self, top: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield every entry below a directory, parents first, following no symlink."""
        if len(self._tops) == 1:
            yield from walk(self.top, top)
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
        for each in self._tops:
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
