"""What the rules of `danger` work with: the facts about a change and about the roots, and their answer, a concern.

And where a path leads, by its text and by the links in the roots.
"""

from __future__ import annotations

from fumehood.core.changes import Change, DirectorySet, directories_above
from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Reason = tuple[str, str]  # a flag, and the reason in words


class Concern(Value):
    """Why a change is held for a person, or applied with a flag."""

    held: bool
    reason: str
    flag: str


def hold(name: str, reason: str) -> Concern:
    """Return a concern that holds a change for a person, with the flag of this name."""
    return Concern(held=True, reason=reason, flag=name)


def flag(name: str, reason: str) -> Concern:
    """Return a concern that lets a change be applied with the flag of this name."""
    return Concern(held=False, reason=reason, flag=name)


class ChangeFacts(Value):
    """What was read from the disk about one change, if `danger.wants_facts`."""

    target: str = ""  # the text of a symlink after the run
    destinations: tuple[str, ...] = ()  # the paths that it leads to through other links in the roots
    old: bytes | None = None  # the content before, or a link's text; None if there was none or it could not be read
    new: bytes | None = None  # the content after
    is_complete: bool = True  # False if one of the two was too long to be read completely
    root: str = ""  # the root's absolute path
    repository_was_there: bool = False  # the git directory of this configuration or `.git` existed before the run
    templates: tuple[bytes, ...] = ()  # of an `activate`: the texts that an interpreter out of reach fills in for it
    # Of new settings of an environment: where each Python that stood beside them leads; "" is no link.
    pythons: tuple[str, ...] = ()

    @property
    def content(self) -> bytes | None:
        """The content after, or None if it was not read completely."""
        return self.new if self.is_complete else None

    @property
    def is_unchanged(self) -> bool:
        """True if the file certainly has the same content as before."""
        return self.is_complete and self.old is not None and self.old == self.new


# Used if the facts could not be read: then the worst is assumed.
UNREAD = ChangeFacts(is_complete=False, repository_was_there=True)


def became_executable(change: Change) -> bool:
    """Return True if a change makes a file executable."""
    before, after = change.before, change.after
    return before is None or after is None or bool(after.mode & ~before.mode & 0o111)


class ProtectedPaths:
    """The paths and whole directories in the roots that the host uses because of the person's own settings.

    Each has a reason. `linux/protected_paths` finds them.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(roots)
        self._paths: dict[tuple[int, str], Reason] = {}
        self._directories: dict[tuple[int, str], Reason] = {}
        self._inside = DirectorySet(self._directories)
        self._above: dict[tuple[int, str], Reason] = {}  # directories above the paths

    def add(self, path: str, reason: Reason, *, whole: bool = False) -> None:
        """Protect an absolute path, if it lies in a root; with `whole`, also everything in it, now and later."""
        location = locate_in_roots(path, self.roots)
        if location is not None and location[1]:
            self._paths.setdefault(location, reason)
            for directory in directories_above(location[1]):
                if (location[0], directory) in self._above:
                    break  # so are those above it
                self._above[location[0], directory] = reason
            if whole:
                self._directories.setdefault(location, reason)

    def why(self, root: int, path: str, *, is_link: bool) -> Reason | None:
        """Return why a path is protected, or None.

        A link that replaces a directory above a protected path changes what lies at that path.
        """
        reason = self._paths.get((root, path)) or self._directories.get((root, self._inside.nearest(root, path) or ""))
        return reason or (self._above.get((root, path)) if is_link else None)


class OwnSource(Value):
    """The files in the roots that Fumehood itself loads, by a root's number and the path in it ("" is the root itself).

    `places` are Fumehood's own directories. `searched` are directories in which Python looks for modules, each with the
    names of the modules that Fumehood loads: other files in them may belong to a project.
    """

    places: frozenset[tuple[int, str]]
    searched: tuple[tuple[int, str, frozenset[str]], ...] = ()


class RootFacts(Value):
    """What is known about the roots as a whole; see `danger.gather_root_facts`.

    Paths in a root come with the root's number, and "" is the root itself.
    """

    roots: tuple[str, ...] = ()
    repositories: frozenset[tuple[int, str]] = frozenset()  # git directories that are not called `.git`
    protected: ProtectedPaths | None = None
    own_source: OwnSource | None = None
    environments: frozenset[tuple[int, str]] = frozenset()  # virtual environments
    new_environments: frozenset[tuple[int, str]] = frozenset()  # those of them that did not exist before the run
    # Programs on PATH, by the names of new programs in these environments that would run in place of them.
    shadowed_programs: Mapping[str, str] | None = None
    writable_elsewhere: tuple[str, ...] = ()  # directories outside the roots that commands write and that nobody judges
    aliases: tuple[tuple[str, str], ...] = ()  # other names of directories above the roots, each with the real name
    linked_files: frozenset[tuple[int, int]] = frozenset()  # files that got another name in the run, by root and inode


# Directories in which anybody can create a program, or in which a path is another file for each process.
WORLD_WRITABLE = ("/tmp/", "/var/tmp/", "/dev/", "/proc/")  # noqa: S108 - as the text of a link has it
_MOST_LINKS = 40  # of one path, as in the kernel
_LONGEST_PATH = 32768  # letters


def link_destination(directory: str, text: str) -> str | None:
    """Return the absolute path for a link's text in a real absolute directory, or None if that is not certain.

    A `..` after a name is not certain: if that name is a link, it goes up from where the link leads.
    """
    parts = [part for part in text.split("/") if part not in ("", ".")]
    steps_up = 0
    while steps_up < len(parts) and parts[steps_up] == "..":
        steps_up += 1
    if ".." in parts[steps_up:]:
        return None
    base = [] if text.startswith("/") else [part for part in directory.split("/") if part]
    return "/" + "/".join(base[: max(len(base) - steps_up, 0)] + parts[steps_up:])


def locate_in_roots(path: str, roots: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the number of the root that an absolute path lies in, and the path in it ("" for the root itself)."""
    for number, root in enumerate(roots):
        if root and (path == root or path.startswith(f"{root.rstrip('/')}/")):
            return number, path[len(root) :].strip("/")
    return None


def roots_of(facts: ChangeFacts, root_facts: RootFacts) -> tuple[str, ...]:
    """Return all roots, the change's own first."""
    return (facts.root, *root_facts.roots)


def directory_of(change: Change, facts: ChangeFacts) -> str:
    """Return the absolute directory that a change lies in."""
    return f"{facts.root}/{change.path.rpartition('/')[0]}"


def real_name_of(path: str, root_facts: RootFacts) -> str:
    """Return a path with an alias of a directory above the roots replaced by the real name."""
    for alias, real in root_facts.aliases:
        if path == alias or path.startswith(f"{alias}/"):
            return real + path[len(alias) :]
    return path


def follow_links(path: str, link_at: Callable[[tuple[int, str]], str], root_facts: RootFacts) -> str:
    """Return where a path leads by the links in the roots; links outside are not followed.

    `link_at` returns the text of the link at a root's number and a path in it, or "".
    """
    followed, names, links = "", path.split("/"), 0
    while names:
        name = names.pop(0)
        if name == "..":
            followed = followed.rpartition("/")[0]
        elif name not in ("", "."):
            step = f"{followed}/{name}"
            location = locate_in_roots(step, root_facts.roots)
            target = link_at(location) if location is not None and location[1] else ""
            links += bool(target)
            if links > _MOST_LINKS:
                return path  # no program can follow it
            if len(step) > _LONGEST_PATH:
                return "/"
            if not target:
                followed = step
            else:
                names = target.split("/") + names
                if target.startswith("/"):
                    followed = ""
    return real_name_of(followed, root_facts)


def is_writable_by_others(path: str, roots: tuple[str, ...], root_facts: RootFacts) -> bool:
    """Return True if commands or anybody can write a path, or if it is not certain where the path leads."""
    path = real_name_of(path, root_facts)
    is_certain = path.startswith("/") and ".." not in path
    if not is_certain or path.startswith(WORLD_WRITABLE):
        return True
    return locate_in_roots(path, (*roots, *root_facts.writable_elsewhere)) is not None
