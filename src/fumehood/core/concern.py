"""What the judge of dangerous changes is given and answers, and where a path that a command wrote leads."""

from __future__ import annotations

from fumehood.core.changes import Change, Inside, above
from fumehood.core.value import Value
from fumehood.core.wording import brief

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fumehood.core.tool_files import Because

shown = brief  # a command's own words as part of a reason: fit for a person's terminal, and not too long


class Concern(Value):
    """Why a change is held for a person, or taken over with a flag."""

    held: bool
    reason: str
    flag: str


def held(flag: str, reason: str) -> Concern:
    """Say that a change waits for a person."""
    return Concern(held=True, reason=reason, flag=flag)


def flagged(flag: str, reason: str) -> Concern:
    """Say that a change is taken over, and why a person may want to look."""
    return Concern(held=False, reason=reason, flag=flag)


class Facts(Value):
    """What was read about one change, only where it was asked for."""

    target: str = ""  # a symlink's text, in its new version
    leads: tuple[str, ...] = ()  # where that leads by links of the roots on its way
    old: bytes | None = None  # the content before, or a link's text; None: there was none, or it could not be read
    new: bytes | None = None  # the content after
    whole: bool = True  # False: a version was longer than what is read
    root: str = ""  # the root's absolute path
    repository_was_there: bool = False  # the git directory that a configuration or a `.git` belongs to is no new one

    @property
    def content(self) -> bytes | None:
        """The content after, or None where it could not be read whole."""
        return self.new if self.whole else None

    @property
    def is_unchanged(self) -> bool:
        """Whether a file was written again with what it already held."""
        return self.whole and self.old is not None and self.old == self.new


UNREAD = Facts(whole=False, repository_was_there=True)  # in place of facts that could not be had: they count against


def became_executable(change: Change) -> bool:
    """Return True if a file can be run that could not be before."""
    before, after = change.before, change.after
    return before is None or after is None or bool(after.mode & ~before.mode & 0o111)


class Protected:
    """Single paths and whole directories that something of the person's leads the host to, each with the reason.

    They are found by `linux/ways_in`, and known by the number of their root.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(roots)
        self._paths: dict[tuple[int, str], Because] = {}
        self._directories: dict[tuple[int, str], Because] = {}
        self._inside = Inside(self._directories)
        self._leading: dict[tuple[int, str], Because] = {}  # directories above single paths

    def add(self, path: str, because: Because, *, whole: bool = False) -> None:
        """Protect an absolute path, if it lies in a root; `whole`, with all that is or will be in it."""
        spot = within(path, self.roots)
        if spot is not None and spot[1]:
            self._paths.setdefault(spot, because)
            for each in above(spot[1]):
                if (spot[0], each) in self._leading:
                    break  # so are those above it
                self._leading[spot[0], each] = because
            if whole:
                self._directories.setdefault(spot, because)

    def why(self, root: int, path: str, *, is_link: bool) -> Because | None:
        """Return why a path is protected, or None.

        A link put in the place of a directory brings another one's files to all names below it.
        """
        because = self._paths.get((root, path)) or self._directories.get((root, self._inside.nearest(root, path) or ""))
        return because or (self._leading.get((root, path)) if is_link else None)


class Own(Value):
    """What of the roots Fumehood itself loads, by a root's number and the path in it ("" is the root itself).

    `places` are its own with all that is in them. In the directories of `searched`, which Python looks through
    for modules, only modules of the names that stand beside them are: a project may well be on that way.
    """

    places: frozenset[tuple[int, str]]
    searched: tuple[tuple[int, str, frozenset[str]], ...] = ()


class Ground(Value):
    """What is known about the roots as a whole; see `danger.survey`.

    `repositories` are directories that are git repositories without being called `.git`, by a root's number and a path
    in it ("" is the root itself). `own` is what Fumehood itself is loaded from, where that lies in the roots.
    `environments` are virtual environments that were there before, `commands` what new programs in them would be run in
    place of, by name. `written` is where commands write besides the roots, and nothing is judged; `aliases` are other
    names of directories above the roots, with the real ones. `linked` are files, by root and inode, that a run gave
    several names.
    """

    roots: tuple[str, ...] = ()
    repositories: frozenset[tuple[int, str]] = frozenset()
    protected: Protected | None = None
    own: Own | None = None
    environments: frozenset[tuple[int, str]] = frozenset()
    commands: Mapping[str, str] | None = None
    written: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    linked: frozenset[tuple[int, int]] = frozenset()


# Where a path written by a command leads, told from its text alone.

# Where anybody may leave a program, and what is another file for each process.
ANYBODYS = ("/tmp/", "/var/tmp/", "/dev/", "/proc/")  # noqa: S108 - as the text of a link has it
_MOST_LINKS, _LONGEST = 40, 32768  # on one way, as the kernel has it; letters of the path where that leads


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


def by_real_name(place: str, ground: Ground) -> str:
    """Return a path as the roots are named, where the person has another name for a directory above them."""
    for name, real in ground.aliases:
        if place == name or place.startswith(f"{name}/"):
            return real + place[len(name) :]
    return place


def end_of(place: str, link_at: Callable[[tuple[int, str]], str], ground: Ground) -> str:
    """Return where a path leads by the links in the roots; what lies outside is not looked at.

    `link_at` tells the text of a link by its root's number and path, or nothing.
    """
    done, names, links = "", place.split("/"), 0
    while names:
        name = names.pop(0)
        if name == "..":
            done = done.rpartition("/")[0]
        elif name not in ("", "."):
            step = f"{done}/{name}"
            spot = within(step, ground.roots)
            target = link_at(spot) if spot is not None and spot[1] else ""
            links += bool(target)
            if links > _MOST_LINKS:
                return place  # no program can follow it
            if len(step) > _LONGEST:
                return "/"
            names = target.split("/") + names if target else names
            done = step if not target else "" if target.startswith("/") else done
    return by_real_name(done, ground)


def is_anybodys(place: str, roots: tuple[str, ...], ground: Ground) -> bool:
    """Return True if commands or anybody can write a path, or it is not sure where that leads."""
    place = by_real_name(place, ground)
    is_absolute = place.startswith("/") and ".." not in place
    return not is_absolute or place.startswith(ANYBODYS) or within(place, (*roots, *ground.written)) is not None
