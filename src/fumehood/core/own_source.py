"""Tell which changes would reach the Fumehood that runs now, the next time it is started."""

from __future__ import annotations

from fumehood.core.changes import FILE, MODIFIED
from fumehood.core.concern import held, is_unchanged
from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.changes import Change
    from fumehood.core.concern import Concern, Facts

_MODULES = (".py", ".pyc", ".so")
_METADATA = (".egg-info", ".dist-info")


class Own(Value):
    """What of the roots Fumehood itself loads, by a root's number and the path in it ("" is the root itself).

    `places` are its own with all that is in them. In the directories of `searched`, which Python looks through
    for modules, only modules of the names that stand beside them are: a project may well be on that way.
    """

    places: frozenset[tuple[int, str]]
    searched: tuple[tuple[int, str, frozenset[str]], ...] = ()


def is_own(change: Change, own: Own) -> bool:
    """Tell whether a change is to one of our own places, to something in it, or to the way there."""
    path = f"{change.path}/" if change.path else ""
    for root, place in own.places:
        own_place = f"{place}/" if place else ""
        if root == change.root and (path.startswith(own_place) or own_place.startswith(path)):
            return True
    return any(
        root == change.root and path.startswith(f"{folder}/" if folder else "")
        and _is_module(change.path[len(folder) :].lstrip("/"), names)
        for root, folder, names in own.searched
    )  # fmt: skip


def own_concern(change: Change, facts: Facts | None, own: Own) -> Concern | None:
    """Hold what is our own, its removal and its mode too; None if it is not, or was written again as it was."""
    if not is_own(change, own):
        return None
    before, after = change.before, change.after
    has_its_mode = before is not None and after is not None and before.mode == after.mode
    if change.kind == FILE and change.change == MODIFIED and has_its_mode and is_unchanged(facts):
        return None
    return held("own-source", "Fumehood itself is loaded from here, outside of the sandbox, when you use it next")


def _is_module(path: str, names: frozenset[str]) -> bool:
    """Tell whether a path in a directory of modules is one of these modules, or names code for a library to load."""
    first, _, rest = path.partition("/")
    if first == "__pycache__":
        first, rest = rest, ""
    if first.endswith(_METADATA):
        return rest == "entry_points.txt"
    return (bool(rest) or first.endswith(_MODULES)) and first.partition(".")[0] in names
