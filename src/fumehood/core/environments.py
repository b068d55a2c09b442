"""What a virtual environment runs: a program that takes another one's place there is held.

An environment that is made anew has the same programs as before, what an installer writes only starts a module, and
what a new package brings takes nobody's place.
"""

from __future__ import annotations

import sys

from fumehood.core.changes import ADDED, DELETED, FILE, SYMLINK
from fumehood.core.concern import held, is_unchanged
from fumehood.core.links import directory_of, lands, roots_of, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fumehood.core.changes import Change
    from fumehood.core.concern import Concern, Facts, Ground

SETTINGS, _PROGRAMS = "pyvenv.cfg", "bin"
# What every environment has and people start without a thought: a new one stands for one that was removed before.
_ITS_OWN = ("python", "pypy", "pip", "activate", "Activate", SETTINGS)
_LONGEST_SCRIPT = 2048
# All that pip, uv and setuptools write into a script besides the function that it calls.
_SCRIPT_LINES = frozenset((
    "", "# -*- coding: utf-8 -*-", "import re", "import sys", "if __name__ == '__main__':",
    r"sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])",
    r"sys.argv[0] = re.sub(r'(-script\.pyw?|\.exe)?$', '', sys.argv[0])",
    "sys.argv[0] = sys.argv[0].removesuffix('.exe')",
    "if sys.argv[0].endswith('-script.pyw'):", "sys.argv[0] = sys.argv[0][:-11]",
    "if sys.argv[0].endswith('.exe'):", "elif sys.argv[0].endswith('.exe'):", "sys.argv[0] = sys.argv[0][:-4]",
))  # fmt: skip


def environments_of(changes: Iterable[Change]) -> set[tuple[int, str]]:
    """Return the directories, by root and path, that are virtual environments if a `pyvenv.cfg` is in them now."""
    found = set()
    for change in changes:
        if change.change == DELETED or change.kind not in (FILE, SYMLINK):
            continue
        if change.kind == SYMLINK and change.before is not None:
            found.add((change.root, change.path))
        environment, name = _place(change)
        if name:
            found.add((change.root, environment))
    return found


def _place(change: Change) -> tuple[str, str]:
    """Return the environment that a change is to a program or the settings of, and the name there; "": none."""
    directory, _, name = change.path.rpartition("/")
    if name == SETTINGS or (change.kind == SYMLINK and name == _PROGRAMS):
        return directory, name
    if name.startswith("__init__."):  # of a package that scripts beside it would load
        directory, _, name = directory.rpartition("/")
    above, _, last = directory.rpartition("/")
    return (above, name) if last == _PROGRAMS else ("", "")


def is_program(change: Change, ground: Ground) -> bool:
    """Tell whether a change is to an environment that was there before: its programs, or its settings."""
    if not ground.environments or change.kind not in (FILE, SYMLINK):
        return False
    environment, name = _place(change)
    return bool(name) and (change.root, environment) in ground.environments


def environment_concern(change: Change, facts: Facts | None, ground: Ground) -> Concern | None:
    """Hold what takes the place of an environment's program, or has it use another Python that lies in a root."""
    if change.change == DELETED:
        return None
    if change.kind == SYMLINK and (change.root, change.path) in ground.environments:
        return held("environment-program", "leads to another place than the virtual environment that is here")
    if not is_program(change, ground):
        return None
    name = _place(change)[1]
    stands_for_a_module = name.partition(".")[0] in sys.stdlib_module_names
    if change.change == ADDED and not name.startswith(_ITS_OWN) and not stands_for_a_module:
        return None
    if facts is not None and _is_harmless(change, facts, ground):
        return None
    return held("environment-program", "takes the place of what this virtual environment ran before")


def _is_harmless(change: Change, facts: Facts, ground: Ground) -> bool:
    roots = roots_of(facts, ground)
    if change.kind == SYMLINK:
        place = lands(directory_of(change, facts), facts.target)
        is_as_before = facts.old == facts.target.encode("utf-8", "surrogateescape")
        # Where a link leads that leaves the roots is judged with other links.
        return is_as_before or _is_python(facts.target) or (place is not None and within(place, roots) is None)
    if is_unchanged(facts):
        return True
    if facts.new is None or not facts.whole:
        return False
    if change.path.rpartition("/")[2] == SETTINGS:
        fresh = _homes(facts.new) - _homes(facts.old or b"")
        return all(home.startswith("/") and within(home, roots) is None and ".." not in home for home in fresh)
    return _starts_a_module(facts.new, facts.old or b"", directory_of(change, facts))


def _is_python(name: str) -> bool:
    return name.rstrip("0123456789.") in ("python", "pypy")


def _homes(content: bytes) -> set[str]:
    """Return where the settings of an environment say that its Python lies."""
    pairs = (line.partition("=") for line in content.decode("utf-8", "surrogateescape").splitlines())
    return {value.strip() for key, _, value in pairs if key.strip().lower() == "home"}


def _starts_a_module(new: bytes, old: bytes, directory: str) -> bool:
    """Tell whether a script is an installer's: the environment's own Python, which calls one function of a module."""
    if len(new) > _LONGEST_SCRIPT or not new.isascii():
        return False
    first, *body = new.decode().split("\n")
    interpreter = first.removeprefix("#!")
    if first == "#!/bin/sh" and len(body) > 2 and body[1] == "' '''":  # where the path is long or has a blank
        interpreter = body[0].removeprefix("'''exec' ").removesuffix(' "$0" "$@"').strip('"')
        body = body[2:]
    place, _, name = interpreter.rpartition("/")
    is_its_own = place == directory and _is_python(name)
    is_as_before = first == old.decode("utf-8", "replace").partition("\n")[0] and first != "#!/bin/sh"
    return (is_its_own or is_as_before) and all(_is_script_line(line) for line in body)


def _is_script_line(line: str) -> bool:
    text = line.strip().replace('"', "'")
    if text in _SCRIPT_LINES:
        return True
    if text.startswith("from ") and " import " in text:
        module, _, name = text.removeprefix("from ").partition(" import ")
        return _is_dotted(module) and _is_dotted(name)
    return text.startswith("sys.exit(") and text.endswith("())") and _is_dotted(text[len("sys.exit(") : -len("())")])


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))
