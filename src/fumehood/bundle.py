"""The modules that a command loads, in one file: to look for a hundred of them takes a tenth of a short command.

The file lies in the environment, beside the bytecode, and is made at the end of the first command. A module whose
source has another time or size than it had then is imported in the ordinary way, and kept anew at the end.

In the file: the head, the length of the list of modules, that list, and the code of each. What every command has loaded
when it begins comes first, in one piece: names and texts that several modules have are read once.
"""

# Without `annotations` from `__future__`: that is a module too, and would have to be looked for.

import marshal
import os
import sys

# The public names for these are in importlib.machinery, which takes longer to load than this saves.
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, ExtensionFileLoader, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType
    from typing import Any

    # Source, its time and size, the directory of a package, where its code begins and how long it is; 0 for a library,
    # and for what is in the first piece.
    Kept = tuple[str, int, int, str, int, int]

_HEAD = MAGIC_NUMBER + b"\x00\x00\x00\x02"  # of this Python's bytecode; the last number is the form of this file
_LENGTH = 8  # bytes of a length


class Bundle:
    """Finds modules in the file of one command, for Python's import system."""

    def __init__(self, file: str, sources: str) -> None:
        self._file = file
        self._process = os.getpid()
        self._directories = f"{os.path.dirname(os.__file__)}/", f"{sources}/"
        self._loaded_before = set(sys.modules)
        self._modules: dict[str, Kept] = {}
        self._first: dict[str, CodeType] = {}  # what is kept in one piece
        self._begun: frozenset[str] = frozenset()  # what belongs there by now
        self._used: set[str] = set()
        self._codes = 0  # where those of the others begin
        try:
            # Open to the end: another command may replace the file, and the places in it are those of this one.
            self._opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        if self._opened <= 2:  # the caller left a standard descriptor closed: not ours to have
            os.close(self._opened)
        elif os.read(self._opened, len(_HEAD)) == _HEAD:
            length = int.from_bytes(os.read(self._opened, _LENGTH), "little")
            self._modules, first = marshal.loads(os.read(self._opened, length))  # noqa: S302 - our own
            self._first = marshal.loads(os.read(self._opened, first))  # noqa: S302 - the same
            self._codes = len(_HEAD) + _LENGTH + length + first

    def find_spec(self, name: str, _path: "Sequence[str] | None" = None, _target: object = None) -> ModuleSpec | None:
        """Find a module that was kept and whose source is still the same."""
        kept = self._modules.get(name)
        if kept is None or _stamp(kept[0]) != kept[1:3]:
            return None
        if os.getpid() != self._process:
            return None  # a process that was forked off puts its descriptors elsewhere
        source, directory, code = kept[0], kept[3], self._code(name)
        self._used.add(name)
        loader: Any = ExtensionFileLoader(name, source) if code is None else KeptLoader(name, source, code)
        spec = ModuleSpec(name, loader, origin=source)
        spec.has_location, spec.cached = True, self._file  # else Python works out a name for the bytecode's file
        if directory:
            spec.submodule_search_locations = [directory]
        return spec

    def _code(self, name: str) -> "CodeType | None":
        """Return the code of a module that is kept; None for a library."""
        place, length = self._modules[name][4:]
        if not length:
            return self._first.get(name)
        return marshal.loads(os.pread(self._opened, length, self._codes + place))  # type: ignore[no-any-return]  # noqa: S302

    def begin(self) -> None:
        """Take note of what is loaded now, when the command begins: it is kept in one piece."""
        self._begun = frozenset(sys.modules)

    def keep(self) -> None:
        """Write the file anew if a module was loaded that it does not have. Packages of others are not kept."""
        missing: dict[str, Any] = {
            name: module.__spec__
            for name, module in list(sys.modules.items())
            if name not in self._loaded_before
            and name not in self._used
            and (getattr(getattr(module, "__spec__", None), "origin", None) or "").startswith(self._directories)
        }
        if not missing:
            return
        modules: dict[str, Kept] = {}
        first: dict[str, CodeType] = {}
        codes = b""
        # As they are: a source that changed since has another time than the one that stands there.
        rows = [(name, *kept[:4], self._code(name)) for name, kept in self._modules.items() if name not in missing]
        for name, spec in missing.items():
            before = _stamp(spec.origin)
            code = None if isinstance(spec.loader, ExtensionFileLoader) else spec.loader.get_code(name)
            directory = os.path.dirname(spec.origin) if spec.submodule_search_locations is not None else ""
            if _stamp(spec.origin) == before:  # else somebody is writing it at this moment
                rows.append((name, spec.origin, *before, directory, code))
        for name, source, modified, size, directory, code in rows:
            data = b""
            if code is not None and name in self._begun:
                first[name] = code
            elif code is not None:
                data = marshal.dumps(code)
            modules[name] = source, modified, size, directory, len(codes), len(data)
            codes += data
        together = marshal.dumps(first)
        listed = marshal.dumps((modules, len(together)))
        new = f"{self._file}.{os.getpid()}"
        try:
            with open(new, "wb") as stream:
                stream.write(_HEAD + len(listed).to_bytes(_LENGTH, "little") + listed + together + codes)
                stream.flush()
                os.fsync(stream.fileno())  # a file cut short by a power failure would end every command
            os.replace(new, self._file)
        except OSError:  # the environment can't be written, as in the hood, or the disk is full
            if os.path.exists(new):
                os.unlink(new)


class KeptLoader(SourceFileLoader):
    """Loads a module from its kept code; whatever else is asked of it comes from the source."""

    def __init__(self, name: str, source: str, code: "CodeType") -> None:
        super().__init__(name, source)
        self._code = code

    def get_code(self, fullname: str) -> "CodeType":  # noqa: ARG002
        """The module's code."""
        return self._code


def _stamp(source: str) -> tuple[int, int]:
    try:
        status = os.stat(source)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
