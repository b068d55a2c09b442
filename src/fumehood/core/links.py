"""Where a path written by a command leads, told from its text alone."""

from __future__ import annotations

from fumehood.core.concern import flagged, held, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.changes import Change
    from fumehood.core.concern import Concern, Facts, Ground

# Programs and libraries that only the system's owner changes.
_SYSTEM = (
    "/usr/", "/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/libx32/", "/opt/",
    "/nix/store/", "/gnu/store/", "/etc/alternatives/",
)  # fmt: skip
_INTERPRETERS = ("python", "pypy")


def lands(directory: str, text: str) -> str | None:
    """Return the absolute path that a text names from a real absolute directory, or None if that can't be told.

    After a name, `..` goes up from wherever a link of that name leads, which the text does not say.
    """
    parts = [part for part in text.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    if ".." in parts[ups:]:
        return None
    base = [] if text.startswith("/") else [part for part in directory.split("/") if part]
    return "/" + "/".join(base[: max(len(base) - ups, 0)] + parts[ups:])


def within(place: str, roots: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the number of the root that a path lies in, and the path below it ("" for the root itself)."""
    for number, root in enumerate(roots):
        if root and (place == root or place.startswith(f"{root.rstrip('/')}/")):
            return number, place[len(root) :].strip("/")
    return None


def roots_of(facts: Facts, ground: Ground) -> tuple[str, ...]:
    """Return every root a path may lead into, the change's own first."""
    return (facts.root, *ground.roots)


def directory_of(change: Change, facts: Facts) -> str:
    """Return the absolute directory that a change lies in."""
    return f"{facts.root}/{change.path.rpartition('/')[0]}"


def link_concern(change: Change, facts: Facts | None, ground: Ground) -> Concern | None:
    """Judge where a symlink leads."""
    if facts is None or not facts.target or not facts.root:
        return held("outside-link", "where this link leads could not be read")
    place = lands(directory_of(change, facts), facts.target)
    target = shown(facts.target)
    if place is None:
        return held("outside-link", f"where this link leads can't be told from its text, {target}")
    if within(place, roots_of(facts, ground)) is not None:
        return None
    if _is_interpreter(change.path, place):
        return flagged("interpreter-link", f"runs the interpreter {target}")
    if place.startswith(_SYSTEM) or place == "/dev/null":
        return flagged("system-link", f"leads to the system's {target}")
    return held("outside-link", f"leads out of the project, to {target}")


def _is_interpreter(path: str, place: str) -> bool:
    """Tell whether a link is one that a virtual environment has: `bin/python…` to another `bin/python…`."""
    own, target = path.split("/")[-2:], place.split("/")[-2:]
    return all(len(pair) == 2 and pair[0] == "bin" and pair[1].startswith(_INTERPRETERS) for pair in (own, target))
