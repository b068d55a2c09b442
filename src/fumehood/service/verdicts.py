"""Give every change its verdict: gather the facts for the judge, and hold what its owner does not let us change.

The judge needs contents, link targets, the git configuration in force, and what of the roots the host acts on.
"""

from __future__ import annotations

import os
import pwd
import stat

from fumehood.core import changes as c
from fumehood.core.danger import (
    SETTINGS,
    find_concern,
    gather_root_facts,
    is_python,
    names_of_new_programs,
    possible_environments,
    possible_repositories,
    python_homes,
    wants_facts,
)
from fumehood.core.danger_facts import (
    ChangeFacts,
    Concern,
    ProtectedPaths,
    RootFacts,
    directory_of,
    follow_links,
    is_writable_by_others,
    link_destination,
    locate_in_roots,
    real_name_of,
)
from fumehood.core.judge import HeldChanges, judge, keep_replacements_whole
from fumehood.core.paths import is_in
from fumehood.core.report import Run, printable, shell_path
from fumehood.core.request import APPLY, DISCARD, HOLD, WHOLE
from fumehood.core.sensitive_names import PACKAGE_DIRECTORIES, is_dot_git, why_path_is_held
from fumehood.linux.capture import user_name
from fumehood.linux.gitobjects import had_repository
from fumehood.linux.libc import Closing, Descriptors
from fumehood.linux.namespaces import Layer, mounts_below, other_devices_below
from fumehood.linux.nofollow import DirectoryCache, is_whiteout, join, open_top, split, stat_entry
from fumehood.linux.project_tree import MEMORY_PREFIX, ProjectTree
from fumehood.linux.protected_paths import (
    SYSTEM_PROGRAMS,
    ProtectedTargets,
    entries,
    protect_home,
    protect_search_path,
    protect_what_git_runs,
    protect_what_tools_reach,
    searched_first,
    text_of,
)
from fumehood.service.own_source import own_source
from fumehood.store.places import cache_directory, home, state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fumehood.core.policy import Rules
    from fumehood.service.store import Store

    Directories = Callable[[], Sequence[str]]


def give_verdicts(
    store: Store, run: Run, layers: Sequence[Layer], mode: str, rules: Rules, cut_short: str = ""
) -> None:
    """Give every change its verdict. If the command was cut short, what would have been applied is held instead."""
    if cut_short:
        run.reason = f"{cut_short}; {run.reason}" if run.reason else cut_short
    if not run.changed:
        return
    held_below: HeldChanges | None = None
    if run.below and run.draft is None:
        from fumehood.service.held import held_changes_below

        held_below = held_changes_below(store, run)
    if cut_short and mode == WHOLE:
        mode = DISCARD
    is_held = mode == APPLY and bool(cut_short)
    judge_all(run, layers, HOLD if is_held else mode, rules, held_below, store.writable_directories)
    for change in run.changed:
        if change.verdict == c.HELD and (is_held or run.draft is not None):
            change.reason = cut_short or f"in draft {run.draft_name}"
    hold_what_owners_forbid(run.changed, layers)


def judge_all(
    run: Run, layers: Sequence[Layer], mode: str, rules: Rules, held_below: HeldChanges | None = None,
    writable_elsewhere: Directories = tuple,
) -> None:  # fmt: skip
    """Judge what a run changed: by what the host would do with it, and by what is mounted now."""
    uppers = [layer.upper for layer in layers]
    concerns = find_concerns(run.changed, run.roots, uppers, rules, writable_elsewhere=writable_elsewhere)
    subvolumes = other_devices_below(run.roots, ((change.root, change.path) for change in run.changed))
    judge(run.changed, mode, concerns, mounts_below(run.roots), held_below, run.roots, subvolumes)
    for root, path in subvolumes[:1]:
        directory = shell_path(f"{run.roots[root]}/{path}")
        hint = f"to let commands write in {printable(path)}: fumehood roots add {directory}"
        if hint not in run.reason:  # the run is judged again when a person decides
            run.reason = f"{run.reason}; {hint}" if run.reason else hint


# ---- What the host would act on by itself.

_ENVIRONMENTS = (".venv", "venv")  # editors start the Python in these, whatever else is there
_IN_ENVIRONMENTS = ("/activate", "/activate.csh", "/activate.fish", "/Activate.ps1", SETTINGS)


def find_concerns(
    changes: Sequence[c.Change], roots: Sequence[str], uppers: Sequence[str], rules: Rules,
    planned_contents: Mapping[tuple[int, str], bytes] | None = None, writable_elsewhere: Directories = tuple,
) -> dict[int, Concern]:  # fmt: skip
    """Return why changes must be held or flagged, by their index in the list.

    Changes that are not made yet are in no layer: `planned_contents` has their contents, by root and path, and `uppers`
    are the roots themselves. `writable_elsewhere` returns where commands write besides the roots; it is called only if
    that must be known.
    """
    # A root may lie inside another one. Its changes are judged by their paths in the outer one, because a git hook is
    # a hook wherever something is mounted.
    places = c.outermost_roots(roots)
    if any(path for _, path in places):
        changes = [c.as_seen_from(change, *places[change.root]) for change in changes]
    if planned_contents is not None:
        planned_contents = {
            (places[root][0], c.path_in_parent(places[root][1], path)): content
            for (root, path), content in planned_contents.items()
        }
    uppers_by_path: list[dict[str, str]] = [{} for _ in roots]  # of each outer root: its own layer's, and inner roots'
    for (number, path), upper in zip(places, uppers, strict=True):
        uppers_by_path[number][path] = upper
    outer = [root for root, (_, path) in zip(roots, places, strict=True) if not path]
    versions = [
        _BothVersions(number, root, uppers_by_path[number], planned_contents) for number, root in enumerate(outer)
    ]
    try:
        root_facts = _root_facts(changes, tuple(outer), versions, writable_elsewhere)
        links = _NewLinks(changes, versions, root_facts)
        concerns: dict[int, Concern] = {}
        for index, change in enumerate(changes):
            facts = versions[change.root].facts(change) if wants_facts(change, root_facts) else None
            if facts is not None and facts.target and (destinations := links.destinations(change, facts)):
                facts = facts.replace(destinations=destinations)
            elif facts is not None and change.path.endswith(_IN_ENVIRONMENTS):
                facts = versions[change.root].environment_facts(change, facts, root_facts)
            concern = find_concern(change, facts, rules, root_facts)
            if concern is not None:
                concerns[index] = concern
        return concerns
    finally:
        for root_versions in versions:
            root_versions.close()


def _root_facts(
    changes: Sequence[c.Change], roots: tuple[str, ...], versions: Sequence[_BothVersions],
    writable_elsewhere: Directories,
) -> RootFacts:  # fmt: skip
    """Return the facts about the roots as a whole, such as which directories are repositories."""
    repositories = [(root, path) for root, path in possible_repositories(changes) if versions[root].has(path, "HEAD")]
    settings = {(change.root, split(change.path)[0]) for change in changes if split(change.path)[1] == SETTINGS}
    environments, new_environments = [], set()
    for root, path in possible_environments(changes):
        if versions[root].live_content(f"{path}/{SETTINGS}".lstrip("/")) is not None:
            environments.append((root, path))
        elif (root, path) in settings or split(path)[1] in _ENVIRONMENTS:
            new_environments.add((root, path))
    may_lead_out = bool(environments) or any(
        change.kind == c.SYMLINK or change.path.endswith(SETTINGS) for change in changes
    )
    installs = any(change.change == c.ADDED and change.path.endswith(".dist-info/RECORD") for change in changes)
    return gather_root_facts(
        changes, roots, repositories, _protected_paths(changes, roots), own_source(roots),
        (*environments, *new_environments), new_environments=frozenset(new_environments),
        shadowed_programs=_shadowed_programs(names_of_new_programs(changes, environments), roots, installs=installs),
        writable_elsewhere=_writable_paths(writable_elsewhere()) if may_lead_out else (),
        aliases=_other_names_above(roots) if may_lead_out else (),
    )  # fmt: skip


def _shadowed_programs(names: Iterable[str], roots: tuple[str, ...], *, installs: bool) -> dict[str, str]:
    """Return the programs outside the roots that the person runs now by these names.

    Programs of Python packages are left out: whoever installs one into an environment wants it there. If the run
    `installs` packages, only the system's own programs count.
    """
    searched = SYSTEM_PROGRAMS if installs else (*os.environ.get("PATH", "").split(":"), *SYSTEM_PROGRAMS)
    directories = [directory for directory in dict.fromkeys(searched) if directory.startswith("/")] if names else []
    outside = [each for each in directories if locate_in_roots(os.path.realpath(each), roots) is None]
    programs = {}
    for name in names:
        path = next((path for directory in outside if os.access(path := f"{directory}/{name}", os.X_OK)), "")
        if path and not _is_from_python(path):
            programs[name] = path
    return programs


def _is_from_python(program: str) -> bool:
    """Return True if a program is a Python script, or lies in a virtual environment, like those of pipx."""
    environment = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    text = text_of(program)[:512]
    # Version managers put a script in the place of each of their programs. It names the manager in its first lines.
    is_script = text.startswith("#!") and ("python" in text or "pyenv" in text)
    return is_script or os.path.isfile(f"{environment}/{SETTINGS}")


def _writable_paths(writable_elsewhere: Iterable[str]) -> tuple[str, ...]:
    """Return the directories that commands write besides the roots, by both their names and their real paths."""
    places = (*writable_elsewhere, f"{home()}/playground")
    return tuple(dict.fromkeys((*places, *map(os.path.realpath, places))))


def _other_names_above(roots: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return other names of directories above the roots, with the real ones: `/home` or the home may be a link."""
    with os.scandir("/") as tops:
        names = [home(), os.environ.get("PWD", ""), *(each.path for each in tops if each.is_symlink())]
    pairs = ((name, os.path.realpath(name)) for name in names if name.startswith("/"))
    return tuple(pair for pair in pairs if pair[0] != pair[1] and any(is_in(root, pair[1:]) for root in roots))


def _protected_paths(changes: Sequence[c.Change], roots: tuple[str, ...]) -> ProtectedPaths:
    """Return the paths that the host acts on because a file or variable of the person leads there."""
    protected = ProtectedTargets(roots)
    homes, search_path = _homes(roots), [os.environ.get("PATH", "")]
    # Every directory in or below which something was changed.
    touched = {f"{roots[number]}/{path}".rstrip("/") for number, path in c.all_directories_above(changes)}
    touched |= {roots[change.root].rstrip("/") for change in changes}
    tops = [top for number, path in _changed_repositories(changes) if (top := f"{roots[number]}/{path}".rstrip("/"))]
    for root in roots:
        memory = f"{cache_directory()}/{MEMORY_PREFIX}{os.stat(root).st_ino}"
        tree = ProjectTree(root, why_path_is_held, PACKAGE_DIRECTORIES.__contains__, memory)
        protect_what_tools_reach(protected, tree, root, homes[0])
        tops += tree.repositories
        search_path[:0] = searched_first(tree, root)
    for number, home_directory in enumerate(homes):
        protect_home(protected, home_directory, f"{state_directory()}/home-links-{number}")
    added = {
        f"{roots[change.root]}/{change.path}"
        for change in changes
        if change.change == c.ADDED and change.kind in (c.FILE, c.SYMLINK)
    }
    protect_search_path(protected, added, ":".join(search_path))
    protect_what_git_runs(protected, tops, touched.__contains__, homes, os.environ)
    return protected


def _homes(roots: Sequence[str]) -> tuple[str, ...]:
    """Return the homes of those who work on the roots: our own, and the owners' if root runs this for them."""
    homes = [home()]
    for owner in {os.stat(root).st_uid for root in roots} - {os.geteuid()}:
        try:
            homes.append(pwd.getpwuid(owner).pw_dir)
        except KeyError:
            continue  # a number without a name has no home
    return tuple(dict.fromkeys(homes))


def _changed_repositories(changes: Sequence[c.Change]) -> set[tuple[int, str]]:
    """Return the directories in which a run has made or changed a `.git`."""
    tops = set()
    for change in changes:
        if ".git" in change.path:
            names = change.path.split("/")
            tops |= {(change.root, "/".join(names[:at])) for at, name in enumerate(names) if is_dot_git(name.lower())}
    return tops


# ---- Both versions of what a run changed, the project's and the layer's; and where links lead in either.

_MAX_READ_BYTES = 1 << 20  # of a file: a git configuration with many branches is longer than it looks
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _NestedLayers:
    """The layers of a root and of the roots inside it, as one tree."""

    def __init__(self, tops: Mapping[str, int]) -> None:
        self._layers = [(path, DirectoryCache(tops[path])) for path in sorted(tops, key=len, reverse=True)]

    def get(self, parent: str) -> int:
        """Return a descriptor of a directory in the layer of the innermost root that contains it."""
        for path, layer in self._layers:
            if not path or f"{parent}/".startswith(f"{path}/"):
                return layer.get(parent[len(path) :].lstrip("/"))
        raise FileNotFoundError(parent)

    def close(self) -> None:
        """Close the directories."""
        for _, layer in self._layers:
            layer.close()


class _BothVersions:
    """Both versions of the paths of one root: the project's and the layer's.

    `uppers` are the upper directories of the root's layer ("") and of the roots inside it, by their paths in the root.
    """

    def __init__(
        self, number: int, root: str, uppers: Mapping[str, str],
        planned_contents: Mapping[tuple[int, str], bytes] | None,
    ) -> None:  # fmt: skip
        self._number = number
        self._root = root
        self._planned_contents = planned_contents
        self._tops = Descriptors(map(open_top, (root, *uppers.values())))
        self._live = DirectoryCache(self._tops[0])
        self._layer = _NestedLayers(dict(zip(uppers, self._tops[1:], strict=True)))

    def facts(self, change: c.Change) -> ChangeFacts:
        """Read both versions of a change. What can't be read counts against it."""
        if change.kind == c.SYMLINK and change.change != c.DELETED:
            was_link = change.before is not None and change.before.kind == c.SYMLINK
            try:
                old = os.fsencode(_link_text(self._live, change.path)) if was_link else None
            except OSError:
                old = None  # it is in a held tree, or gone by now
            return ChangeFacts(target=_link_text(self._layer, change.path), old=old, root=self._root)
        if self._planned_contents is None:
            new, old = _content(self._layer, change.path), None
        else:
            new, old = self._planned_contents.get((self._number, change.path)), None
        if change.before is not None and change.before.kind == c.FILE:
            old = _content(self._live, change.path)
        is_complete = all(each is None or len(each) < _MAX_READ_BYTES for each in (old, new))
        was_there = had_repository(self._live, self._root, change.path)
        return ChangeFacts(old=old, new=new, is_complete=is_complete, root=self._root, repository_was_there=was_there)

    def environment_facts(self, change: c.Change, facts: ChangeFacts, root_facts: RootFacts) -> ChangeFacts:
        """Add what the settings of an environment, or a text for its shells, are compared with."""
        directory, name = split(change.path)
        if name == SETTINGS:
            was_there = change.before is not None and change.before.kind == c.FILE
            # Python looks for its settings in the directory above its own, and in its own.
            programs = () if was_there else (join(directory, "bin"), directory)
            links = (link for each in programs if split(each)[1] == "bin" for link in self._live_pythons(each))
            return facts.replace(pythons=tuple(links))
        settings_path = join(split(directory)[0], SETTINGS)
        settings = self.live_content(settings_path) or _content(self._layer, settings_path) or b""
        templates = [
            text_of(f"{library.path}/venv/scripts/{kind}/{name}").encode("utf-8", "surrogateescape")
            for home in python_homes(settings)
            if not is_writable_by_others(home, root_facts.roots, root_facts)
            for libraries in ("lib", "lib64")
            for library in entries(f"{os.path.dirname(home)}/{libraries}")
            if library.name.startswith("python3")
            for kind in ("common", "posix")
        ]
        return facts.replace(templates=tuple(templates))

    def _live_pythons(self, directory: str) -> tuple[str, ...]:
        """Return where each Python in a directory of the project leads, "" if it is no link or the directory is one."""
        listing = self._live.open_listing(directory)
        if listing is None:
            return () if self.live_link(directory) is None else ("",)
        with Closing(listing):
            names = os.listdir(listing)
        return tuple(self.live_link(join(directory, name)) or "" for name in names if is_python(name))

    def has(self, directory: str, name: str) -> bool:
        """Return True if the project as the run has left it has an entry of this name in a directory."""
        if (self._number, f"{directory}/{name}".lstrip("/")) in (self._planned_contents or ()):
            return True
        sides: tuple[DirectoryCache | _NestedLayers, ...] = (self._layer, self._live)
        for side in sides:
            try:
                status = stat_entry(side.get(directory), name)
            except OSError:
                continue
            if status is not None:
                return not is_whiteout(status)
        return False

    def live_link(self, path: str) -> str | None:
        """Return the text of a link in the project, "" if there is something else, or None if there is nothing."""
        parent, name = split(path)
        try:
            status = stat_entry(self._live.get(parent), name)
            is_link = status is not None and stat.S_ISLNK(status.st_mode)
            return _link_text(self._live, path) if is_link else None if status is None else ""
        except OSError:
            return None

    def new_link(self, path: str) -> str:
        """Return the text of a link in the layer."""
        return _link_text(self._layer, path)

    def live_content(self, path: str) -> bytes | None:
        """Read a file of the project as it is now."""
        return _content(self._live, path)

    def close(self) -> None:
        """Close the directories."""
        self._layer.close()
        self._live.close()
        self._tops.close()


class _NewLinks:
    """Where new links lead in the roots, by way of other new links or of those that were there. No link is opened."""

    def __init__(self, changes: Sequence[c.Change], versions: Sequence[_BothVersions], root_facts: RootFacts) -> None:
        self._versions = versions
        self._root_facts = root_facts
        made = (change for change in changes if change.kind == c.SYMLINK and change.change != c.DELETED)
        self._new = {(change.root, change.path) for change in made}
        self._old: dict[tuple[int, str], str | None] = {}

    def destinations(self, change: c.Change, facts: ChangeFacts) -> tuple[str, ...]:
        """Return where a link leads besides the path in its text, if that is in the roots: with new links, and without.

        Links are followed twice, with the run's other links and with those that were there before.
        """
        path = link_destination(directory_of(change, facts), facts.target)
        path = None if path is None else real_name_of(path, self._root_facts)
        if path is None or locate_in_roots(path, self._root_facts.roots) is None:
            return ()
        with_new_links = follow_links(path, self._new_or_old_link, self._root_facts)
        with_old_links = follow_links(path, self._old_link, self._root_facts)
        return tuple(each for each in dict.fromkeys((with_new_links, with_old_links)) if each != path)

    def _new_or_old_link(self, place: tuple[int, str]) -> str:
        return self._versions[place[0]].new_link(place[1]) if place in self._new else self._old_link(place)

    def _old_link(self, place: tuple[int, str]) -> str:
        """Return the text of a link that was there before the run, or ""."""
        if place not in self._old:
            root, path = place
            above = (root, path.rpartition("/")[0])
            is_parent_there = not above[1] or self._old.get(above, "") is not None
            self._old[place] = self._versions[root].live_link(path) if is_parent_there else None
        return self._old[place] or ""


def _content(side: DirectoryCache | _NestedLayers, path: str) -> bytes | None:
    parent, _, name = path.rpartition("/")
    try:
        with Closing(os.open(name, _READ_FLAGS, dir_fd=side.get(parent))) as file:
            return os.read(file, _MAX_READ_BYTES)
    except OSError:
        return None  # it is not there, or not a regular file


def _link_text(side: DirectoryCache | _NestedLayers, path: str) -> str:
    parent, _, name = path.rpartition("/")
    return os.readlink(name, dir_fd=side.get(parent))


# ---- Files of other owners: changes that only they can make are held.

def hold_what_owners_forbid(changes: Sequence[c.Change], layers: Sequence[Layer]) -> None:
    """Hold changes that we can't make in the project because of its owners: otherwise one would stop all others.

    The command could make them because the layer was its own: at the top of a root, or in a whole copy.
    """
    if not changes or os.geteuid() == 0:
        return
    roots = [_OwnedRoot(layer) for layer in layers]
    is_any_forbidden = False
    try:
        for change in changes:
            obstacle = roots[change.root].obstacle(change) if change.verdict in (c.APPLIED, c.HELD) else None
            # A held change keeps its reason, unless it could not be made at all.
            if obstacle and (change.verdict == c.APPLIED or obstacle[0] == c.UNSUPPORTED):
                change.verdict, change.reason = obstacle
                is_any_forbidden = True
    finally:
        for root in roots:
            root.close()
    if is_any_forbidden:
        keep_replacements_whole(changes)


class _OwnedRoot:
    """One root as it is now, and what the owners of its files let us do."""

    def __init__(self, layer: Layer) -> None:
        from fumehood.linux.staging import can_rename

        self._root = layer.root
        with Descriptors(map(open_top, (layer.root, layer.upper))) as tops:
            self._is_on_another_disk = not can_rename(tops[1], tops[0])
            self._top = tops.pop(0)
        self._parents = DirectoryCache(self._top)
        self._closed_reasons: dict[str, str] = {}  # by directory; "" if we may change it
        self._sticky: set[str] = set()  # directories of others in which only its owner can move an entry

    def close(self) -> None:
        """Close the directories."""
        self._parents.close()
        os.close(self._top)

    def obstacle(self, change: c.Change) -> tuple[str, str] | None:
        """Return the verdict and the reason if we can't make a change, or None."""
        parent, name = split(change.path)
        if c.is_directory_mode(change):
            owner = self._other_owner(parent, name)
            return (c.UNSUPPORTED, f"it belongs to {owner}, who alone can change its mode") if owner else None
        if parent not in self._closed_reasons:
            self._closed_reasons[parent] = self._why_closed(parent)
        if reason := self._closed_reasons[parent]:
            return c.HELD, reason
        if change.before is None:
            return None
        if self._is_on_another_disk and (owner := self._other_owner(parent, name)):
            return c.HELD, f"it belongs to {owner}, and a backup on another file system would not"
        is_sticky = parent in self._sticky and not change.within
        if not is_sticky and change.before.kind != c.DIRECTORY:
            return None
        # To be moved, a directory must be writable itself, and its content must be readable.
        access = 0 if is_sticky else os.R_OK | os.X_OK | (0 if change.within else os.W_OK)
        owner = self._other_owner(parent, name, access)
        return (c.HELD, f"it belongs to {owner}, who alone can move it") if owner else None

    def _why_closed(self, path: str) -> str:
        """Say whose directory it is if we can't change it; return "" if we can, or if there is none."""
        owner = self._other_owner(*split(path or "."), os.W_OK | os.X_OK)
        return f"{path or self._root} belongs to {owner}, and is closed to you" if owner else ""

    def _other_owner(self, parent: str, name: str, access: int = 0) -> str:
        """Return the owner's name if an entry is somebody else's and they don't let us `access` it, else ""."""
        try:
            directory = self._parents.get(parent)
            entry = stat_entry(directory, name)
        except OSError:
            return ""
        if entry is None or entry.st_uid == os.geteuid():
            return ""
        if entry.st_mode & stat.S_ISVTX:
            self._sticky.add("" if name == "." else os.path.join(parent, name))
        if access and os.access(name, access, dir_fd=directory, effective_ids=True, follow_symlinks=False):
            return ""
        return user_name(entry.st_uid)
