"""The modules that a command loads, in one file: finding a hundred modules takes a tenth of a short command's time.

The file lies in the environment, beside the bytecode, and is written at the end of the first command. If a module's
source no longer has the time and size that it had then, the module is imported in the ordinary way, and cached anew at
the end.

The file has a head, the length of the list of modules, that list, and the code of each module. The modules that every
command has loaded when it begins come first, in one piece: names and texts that several of them have are read once.
"""

# Without `annotations` from `__future__`: that is a module too, and would have to be found.

import marshal
import os
import sys

# These have public names in importlib.machinery, but loading that takes longer than this saves.
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, ExtensionFileLoader, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType
    from typing import Any

    # The source, its time and size, the directory if it is a package, and where the code is: its offset and length. The
    # length is 0 for an extension module, and for a module in the first piece.
    Entry = tuple[str, int, int, str, int, int]

_HEAD = MAGIC_NUMBER + b"\x00\x00\x00\x02"  # the form of this Python's bytecode, and the form of this file
_LENGTH_SIZE = 8  # bytes


class ModuleCache:
    """Finds modules in the file of one command, for Python's import system."""

    def __init__(self, path: str, sources: str) -> None:
        self._path = path
        self._process = os.getpid()
        self._cached_directories = f"{os.path.dirname(os.__file__)}/", f"{sources}/"
        self._modules_before = set(sys.modules)
        self._entries: dict[str, Entry] = {}
        self._first_codes: dict[str, CodeType] = {}  # the first piece
        self._first_modules: frozenset[str] = frozenset()  # these belong into the first piece when the file is written
        self._loaded_from_cache: set[str] = set()
        self._codes_offset = 0  # of the code of all other modules
        try:
            # The file stays open, because another command may replace it: then the offsets are those of another file.
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        if self._file <= 2:  # the caller has closed a standard descriptor, and it must stay closed
            os.close(self._file)
        elif os.read(self._file, len(_HEAD)) == _HEAD:
            length = int.from_bytes(os.read(self._file, _LENGTH_SIZE), "little")
            self._entries, first_length = marshal.loads(os.read(self._file, length))  # noqa: S302 - our own
            self._first_codes = marshal.loads(os.read(self._file, first_length))  # noqa: S302 - the same
            self._codes_offset = len(_HEAD) + _LENGTH_SIZE + length + first_length

    def find_spec(self, name: str, _path: "Sequence[str] | None" = None, _target: object = None) -> ModuleSpec | None:
        """Find a module that is cached and whose source is still the same."""
        entry = self._entries.get(name)
        if entry is None or _time_and_size(entry[0]) != entry[1:3]:
            return None
        if os.getpid() != self._process:
            return None  # a forked process may have another file at this descriptor
        source, directory, code = entry[0], entry[3], self._code(name)
        self._loaded_from_cache.add(name)
        loader: Any = ExtensionFileLoader(name, source) if code is None else CachedLoader(name, source, code)
        spec = ModuleSpec(name, loader, origin=source)
        spec.has_location, spec.cached = True, self._path  # else Python computes the name of a bytecode file
        if directory:
            spec.submodule_search_locations = [directory]
        return spec

    def _code(self, name: str) -> "CodeType | None":
        """Return the code of a cached module, or None for an extension module."""
        offset, length = self._entries[name][4:]
        if not length:
            return self._first_codes.get(name)
        return marshal.loads(os.pread(self._file, length, self._codes_offset + offset))  # type: ignore[no-any-return]  # noqa: S302

    def mark_begin(self) -> None:
        """Note that the command begins: the modules that are loaded now belong into the first piece."""
        self._first_modules = frozenset(sys.modules)

    def save(self) -> None:
        """Write the file anew if a module was loaded that it lacks; modules of other packages are not cached."""
        missing: dict[str, Any] = {
            name: module.__spec__
            for name, module in list(sys.modules.items())
            if name not in self._modules_before
            and name not in self._loaded_from_cache
            and (getattr(getattr(module, "__spec__", None), "origin", None) or "").startswith(self._cached_directories)
        }
        if not missing:
            return
        # Cached modules stay as they are: if a source has changed since, its time is not the cached one.
        rows = [(name, *entry[:4], self._code(name)) for name, entry in self._entries.items() if name not in missing]
        for name, spec in missing.items():
            before = _time_and_size(spec.origin)
            code = None if isinstance(spec.loader, ExtensionFileLoader) else spec.loader.get_code(name)
            directory = os.path.dirname(spec.origin) if spec.submodule_search_locations is not None else ""
            if _time_and_size(spec.origin) == before:  # else somebody is just writing it
                rows.append((name, spec.origin, *before, directory, code))
        entries: dict[str, Entry] = {}
        first_codes: dict[str, CodeType] = {}
        codes = b""
        for name, source, modified_ns, size, directory, code in rows:
            data = b""
            if code is not None and name in self._first_modules:
                first_codes[name] = code
            elif code is not None:
                data = marshal.dumps(code)
            entries[name] = source, modified_ns, size, directory, len(codes), len(data)
            codes += data
        first_piece = marshal.dumps(first_codes)
        entry_list = marshal.dumps((entries, len(first_piece)))
        self._replace_file(_HEAD + len(entry_list).to_bytes(_LENGTH_SIZE, "little") + entry_list + first_piece + codes)

    def _replace_file(self, content: bytes) -> None:
        new = f"{self._path}.{os.getpid()}"
        try:
            with open(new, "wb") as stream:
                stream.write(content)
                stream.flush()
                # After a power failure, a part of the file would make every command fail.
                os.fsync(stream.fileno())
            os.replace(new, self._path)
        except OSError:  # the environment can't be written, as in the hood, or the disk is full
            if os.path.exists(new):
                os.unlink(new)


class CachedLoader(SourceFileLoader):
    """Loads a module from its cached code; everything else, like its source text, comes from the source."""

    def __init__(self, name: str, source: str, code: "CodeType") -> None:
        super().__init__(name, source)
        self._code = code

    def get_code(self, fullname: str) -> "CodeType":  # noqa: ARG002
        """Return the module's code."""
        return self._code


def _time_and_size(source: str) -> tuple[int, int]:
    try:
        status = os.stat(source)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
