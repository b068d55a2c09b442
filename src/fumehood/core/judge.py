"""Decide what becomes of each change: taken over, held for a person, or not taken over at all."""

from __future__ import annotations

from fumehood.core import changes as c
from fumehood.core.request import DISCARD, HOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from fumehood.core.concern import Concern

SUBVOLUME = "nothing can be moved into the subvolume "
MOUNTED_AT = "another file system is mounted at "  # the reason begins so; once it is gone, the change can be applied


def judge(
    changes: Sequence[c.Change],
    mode: str,
    concerns: Mapping[int, Concern] | None = None,
    apart: Collection[tuple[int, str]] = (),
    waiting: HeldChanges | None = None,
    roots: Sequence[str] = (),
    subvolumes: Collection[tuple[int, str]] = (),
) -> None:
    """Give every change its verdict and, where it is not `applied`, the reason in words.

    `concerns` tell, by place in the list, which changes the host would act on by itself, and which run when a
    person builds: those are held, these are applied and flagged. `apart` are other file systems mounted inside
    a root, by its number and their path: nothing can be swapped into those, nor into `subvolumes`. `waiting` is what
    earlier runs held: what was built on that waits with it. The names of the `roots` tell a repository whose directory
    is one of them.
    """
    concerns = concerns or {}
    for place, change in enumerate(changes):
        concern = concerns.get(place)
        change.verdict, change.reason = _verdict(change, mode, concern)
        for why, places in ((SUBVOLUME, subvolumes), (MOUNTED_AT, apart)):
            for root, path in places:
                if change.root == root and f"{change.path}/".startswith(f"{path}/"):
                    change.verdict, change.reason = c.UNSUPPORTED, f"{why}{path}"
        if concern is not None:
            change.flags = (*change.flags, concern.flag)
    if waiting:
        # What was built on something that waits can't go before it.
        for change in changes:
            if change.verdict == c.APPLIED and (run := waiting.under(change)) is not None:
                change.verdict, change.reason = c.HELD, f"it builds on run {waiting.name(run)}, which was held"
    # A commit whose index waits would leave HEAD ahead of it, and a person's next commit would take it back.
    _share_verdict(changes, roots, c.HELD, "is held")
    keep_replacements_whole(changes)
    hold_moved_sources(changes)
    if concerns or waiting:
        _hold_empty_directories(changes)


def is_mounted_on(change: c.Change) -> bool:
    """Return True if a change could not be taken over because of a mount."""
    return change.verdict == c.UNSUPPORTED and change.reason.startswith(MOUNTED_AT)


def _verdict(change: c.Change, mode: str, concern: Concern | None) -> tuple[str, str]:
    if mode == DISCARD:
        return c.DISCARDED, "the run was asked to throw its changes away"
    if change.change != c.DELETED and change.kind not in c.TAKEN_OVER:
        return c.UNSUPPORTED, f"a {change.kind} is not taken over into a project"
    if c.ATTRIBUTES in change.flags and not c.has_new_mode(change):
        return c.UNSUPPORTED, "a directory's attributes and access rules are not taken over into a project"
    if mode == HOLD:
        return c.HELD, "the run was asked to hold its changes"
    if concern is not None and concern.held:
        return c.HELD, concern.reason
    return c.APPLIED, ""


def _hold_empty_directories(changes: Sequence[c.Change]) -> None:
    """Hold a new directory in which everything is held: without that it would be an empty shell."""
    full: set[tuple[int, str]] = set()
    needed: set[tuple[int, str]] = set()
    for change in reversed(changes):  # what lies in a directory comes after it
        own, above = (change.root, change.path), (change.root, change.path.rpartition("/")[0])
        is_directory = change.kind == c.DIRECTORY
        if not is_directory or own in full:
            full.add(above)
        if own in needed if is_directory else change.verdict == c.APPLIED:
            needed.add(above)
    shells: set[tuple[int, str]] = set()
    for change in changes:
        if change.change != c.ADDED or change.kind != c.DIRECTORY or change.verdict != c.APPLIED:
            continue
        own, above = (change.root, change.path), (change.root, change.path.rpartition("/")[0])
        if own in full and own not in needed:
            change.verdict, change.reason = c.HELD, "all that is in it is held"
        elif above in shells:
            change.verdict, change.reason = c.HELD, "all else in the directory above is held"
        else:
            continue
        shells.add(own)


def keep_replacements_whole(changes: Sequence[c.Change]) -> None:
    """Hold a replaced or deleted directory together with what lies in it.

    A file can't become half a directory, nor can a directory go while something in it stays.
    """
    tops = {
        (each.root, each.path): each for each in changes if each.within is None and each.change in (c.TYPE, c.DELETED)
    }
    for change in changes:
        if change.within is None or change.verdict == c.APPLIED:
            continue
        top = tops.get((change.root, change.within))
        if top is not None and top.verdict == c.APPLIED:
            top.verdict, top.reason = c.HELD, f"{change.path} in it is {change.verdict}"
    for change in changes:
        top = tops.get((change.root, change.within)) if change.within is not None else None
        if top is not None and top.verdict != c.APPLIED and change.verdict == c.APPLIED:
            change.verdict, change.reason = top.verdict, f"{top.path} is {top.verdict}"


def hold_moved_sources(changes: Sequence[c.Change]) -> bool:
    """Hold the deletion of what was moved to a place where it waits; tell whether any more changes are held for it.

    Else the project would have it at neither place. What was moved has the size, the time and the mode of what is gone;
    a time of whole seconds says nothing, for installers give all files of a package the same.
    """
    moved = {
        (after.kind, after.size, after.modified_ns, after.mode): change
        for change in changes
        if change.verdict not in (c.APPLIED, c.DISCARDED)
        and (after := change.after) is not None and after.kind in (c.FILE, c.SYMLINK) and after.modified_ns % c.SECOND
    }  # fmt: skip
    more = False
    for change in changes if moved else ():
        before = change.before
        if change.change == c.DELETED and change.verdict == c.APPLIED and before is not None:
            target = moved.get((before.kind, before.size, before.modified_ns, before.mode))
            if target is not None:
                more = True
                change.verdict, change.reason = c.HELD, f"it was moved to {target.path}, which is {target.verdict}"
    if more:
        keep_replacements_whole(changes)
    return more


# Changes that must share one fate: the state of a repository or database, or all of a run if a person wants it so.

HOLD_PATH, HOLD_ALL = "hold-path", "hold-all"
CHANGED_SINCE = "it changed in the project after the run began"

# Of a git directory: what tells where its branches and its work tree are, and what is under way in it.
_STATE_FILES = ("HEAD", "index", "packed-refs", "shallow", "AUTO_MERGE", "SQUASH_MSG")
_WORK_TREE_POINTERS = ("/gitdir", "/commondir")  # of a linked work tree: git knows it by these, and needs its HEAD then
_STATE_PREFIXES = ("sharedindex.", "MERGE_", "BISECT_")
_STATE_DIRECTORIES = ("refs", "logs", "reftable", "rebase-merge", "rebase-apply", "sequencer")
# What each command of git's writes anew, for nobody but itself.
_GIT_NOTES = ("COMMIT_EDITMSG", "FETCH_HEAD", "gc.log")
# What shows a git directory begins with one of these, and it takes no more names than that to tell.
_TELLTALE_NAMES, _MOST_NAMES = ("objects", "refs", "logs", "worktrees", "reftable"), 7
_REF_KINDS = ("heads", "tags", "remotes")  # of refs
# No real repository has paths of more names than this, or lies in more git directories than this.
_DEEPEST_PATH, _MOST_NESTED_GITS = 200, 8
_HEX = frozenset("0123456789abcdef")
_OBJECT_NAME_LENGTHS = (38, 62)  # of an object's name, without the two letters of its directory
JOURNALS = ("-wal", "-shm", "-journal")  # of SQLite, beside its database


def state_of_path(place: str, gits: Collection[str] = ()) -> str:
    """Name the state that a path is a part of: a git directory, a database, else the path itself."""
    return repository_of(place, gits) or database_of(place)


def database_of(place: str) -> str:
    """Return the database that a path is a journal of, else the path itself: what might be one is its own."""
    for journal in JOURNALS:
        if place.endswith(journal):
            return place[: -len(journal)]
    return place


def git_directories(roots: Sequence[str], changes: Iterable[c.Change]) -> frozenset[str]:
    """Return the git directories that changes show by themselves, whatever these are called.

    Not every one is called `.git`, and only what lies in one tells: an object, a branch, a log, a linked work tree.
    """
    return _git_directories_shown_by(roots, ((change.root, change.path) for change in changes))


def _git_directories_shown_by(roots: Sequence[str], paths: Iterable[tuple[int, str]]) -> frozenset[str]:
    gits: set[str] = set()
    for root, path in paths:
        if "objects/" in path or "refs/" in path or "logs/" in path or "worktrees/" in path or "reftable/" in path:
            parts = path.split("/", _DEEPEST_PATH)
            ends = (number for number, name in enumerate(parts) if name in _TELLTALE_NAMES)
            end = next((end for end in ends if _is_inside_git(parts[end : end + _MOST_NAMES])), None)
            if end is not None:
                gits.add("/".join((_root_path(roots, root), *parts[:end])))
    return frozenset(gits)


def _is_inside_git(names: list[str]) -> bool:
    """Return True if nobody but git keeps a path that begins so in a directory of its own."""
    if names[0] == "worktrees":
        names = names[2:]
        if names in (["HEAD"], ["index"]):
            return True
    if names[:1] == ["logs"]:
        return names[1:] == ["HEAD"] or _is_ref(names[1:])
    if names[:1] == ["objects"] and len(names) == 3:
        _, directory, name = names
        if directory == "pack":
            return name.startswith("pack-") and name.endswith((".pack", ".idx"))
        return len(directory) == 2 and len(name) in _OBJECT_NAME_LENGTHS and _HEX.issuperset(directory + name)
    return _is_ref(names) or names == ["reftable", "tables.list"]


def _is_ref(names: list[str]) -> bool:
    return names == ["refs", "stash"] or (names[:1] == ["refs"] and len(names) > 2 and names[1] in _REF_KINDS)


def repository_of(place: str, gits: Collection[str] = ()) -> str:
    """Return the git directory of whose state a path is a part, or nothing.

    HEAD, the index, refs, their logs and a merge or rebase under way tell one story together. Objects are only ever
    added, so they are apart, and needed by it. `gits` are git directories that their names don't tell.
    """
    return _outermost_git_of(place, gits, _is_state)


def object_store_of(place: str, gits: Collection[str] = ()) -> str:
    """Return the git directory that a path is an object of, or a directory of objects, or nothing."""
    return _outermost_git_of(place, gits, _is_object)


def is_object_list(path: str) -> bool:
    """Return True for a list of commits or packs, that git makes to be quick, and for the directories of such lists.

    It names what is there in the state that it was made in.
    """
    return "/objects/info/" in f"/{path}/" or path.rpartition("/")[2].startswith("multi-pack-index")


def is_git_note(place: str, gits: Collection[str] = ()) -> bool:
    """Return True if a path is a note that git writes anew with each command: the latest is as good as any."""
    if not place.endswith(_GIT_NOTES):
        return False
    return bool(_outermost_git_of(place, gits, lambda names: len(names) == 1 and names[0] in _GIT_NOTES))


def _outermost_git_of(place: str, gits: Collection[str], is_part: Callable[[list[str]], bool]) -> str:
    """Return the outermost git directory that a path is such a part of: branches may be called as repositories are."""
    if (".git/" not in place and not gits) or place.count("/") > _DEEPEST_PATH:
        return ""
    end, left = place.find("/", 1), _MOST_NESTED_GITS
    while end > 0 and left:
        git = place[:end]
        if git.endswith(".git") or git in gits:
            left -= 1
            rest = place[end + 1 :].split("/")
            # A submodule's name may have slashes, so its state is known by what its paths end with.
            for at in range(2, len(rest)) if rest[0] == "modules" else (0,):
                # What a linked work tree has is called as the main one's.
                if is_part(rest[at + 2 :] if rest[at] == "worktrees" else rest[at:]):
                    return "/".join((git, *rest[:at]))
        end = place.find("/", end + 1)
    return ""


def _is_state(rest: list[str]) -> bool:
    first = rest[0] if rest else ""
    if first in _STATE_DIRECTORIES:
        return True
    is_one = first in _STATE_FILES or first.endswith("_HEAD") or first.startswith(_STATE_PREFIXES)
    return (len(rest) == 1 and is_one and first not in _GIT_NOTES) or is_object_list("/".join(rest))


def _is_object(rest: list[str]) -> bool:
    """Return True for what is known by its name and only ever added; git-lfs and git-annex keep contents so, too."""
    if rest[:1] == ["objects"]:
        return len(rest) > 1 and (len(rest[1]) == 2 or rest[1] in ("pack", "info"))
    return rest[:1] == ["lfs"] or rest[:2] == ["annex", "objects"]


def _state_of_change(change: c.Change, place: str, gits: Collection[str]) -> str:
    """Name the state that a change is a part of; that an object goes is one: nobody needs it in that state alone."""
    return (object_store_of(place, gits) if change.change == c.DELETED else "") or state_of_path(place, gits)


def _absolute_path(roots: Sequence[str], root: int, path: str) -> str:
    return f"{_root_path(roots, root)}/{path}"


def _root_path(roots: Sequence[str], root: int) -> str:
    return roots[root] if roots else str(root)


def _share_verdict(changes: Sequence[c.Change], roots: Sequence[str], verdict: str, what: str) -> bool:
    """Let all of a state have the verdict of a part of it, or of an object; tell whether any more changes have it."""
    if all(change.verdict != verdict for change in changes):
        return False
    gits = git_directories(roots, changes)
    firsts: dict[str, str] = {}
    for change in reversed(changes):
        if change.verdict == verdict:
            place = _absolute_path(roots, change.root, change.path)
            firsts[object_store_of(place, gits) or state_of_path(place, gits)] = change.path
    more = False
    for change in changes:
        first = firsts.get(_state_of_change(change, _absolute_path(roots, change.root, change.path), gits))
        if first is not None and change.verdict == c.APPLIED:
            more = True
            change.verdict, change.reason = verdict, f"{first} {what}, and they are one state"
    return more


def spread_conflicts(changes: Sequence[c.Change], roots: Sequence[str], on_conflict: str = HOLD_PATH) -> bool:
    """Let what belongs together share a conflict; tell whether any more changes are held for it."""
    conflicts = [change for change in changes if change.verdict == c.CONFLICT]
    if not conflicts:
        return False
    if on_conflict == HOLD_ALL:
        going = [change for change in changes if change.verdict == c.APPLIED]
        for change in going:
            change.verdict, change.reason = c.HELD, f"{conflicts[0].path} is a conflict, and then everything is held"
        return bool(going)
    has_shared = _share_verdict(changes, roots, c.CONFLICT, "changed in the project after the run began")
    return hold_moved_sources(changes) or has_shared


def hold_open_files(
    changes: Sequence[c.Change], roots: Sequence[str], busy: Mapping[tuple[int, str], str], on_conflict: str = HOLD_PATH
) -> None:
    """Hold what other programs have open, with what belongs to it; `busy` are these files, with the reason for each."""
    gits = git_directories(roots, changes)
    states = {state_of_path(f"{roots[root]}/{path}", gits): path for root, path in busy}
    first = next(iter(busy))[1]
    for change in changes:
        if change.verdict != c.APPLIED:
            continue
        reason = busy.get((change.root, change.path), "")
        partner = states.get(state_of_path(f"{roots[change.root]}/{change.path}", gits))
        if not reason and partner is not None:
            reason = f"{partner} is open in another program, and they are one state"
        elif not reason and on_conflict == HOLD_ALL:
            reason = f"{first} is open in another program, and then everything is held"
        if reason:
            change.verdict, change.reason = c.HELD, reason
    keep_replacements_whole(changes)
    hold_moved_sources(changes)


def without_conflicts(changes: Sequence[c.Change], meant: Sequence[c.Change], roots: Sequence[str]) -> list[c.Change]:
    """Return those of a run's changes that can go while its conflicts stay.

    What would lie in one stays with it, so does a replaced tree that has one in it, and the rest of one state.
    """
    conflicts = [change for change in changes if change.verdict == c.CONFLICT]
    if not conflicts:
        return list(meant)
    places = c.DirectorySet({(change.root, change.path) for change in conflicts if not c.is_directory_mode(change)})
    replaced = {(change.root, change.path) for change in changes if change.change in (c.TYPE, c.DELETED)}
    trees = replaced & {(change.root, change.within or "") for change in conflicts}
    gits = git_directories(roots, changes)
    torn = {state_of_path(f"{roots[change.root]}/{change.path}", gits) for change in conflicts}
    return [
        change
        for change in meant
        if change.verdict != c.CONFLICT
        and places.topmost(change.root, change.path) is None
        and trees.isdisjoint(((change.root, change.path), (change.root, change.within or "")))
        and state_of_path(f"{roots[change.root]}/{change.path}", gits) not in torn
    ]


# Which changes build on what an earlier run has held back, so that they can't go before it.

class HeldChanges:
    """What waits in earlier runs: `held` are their runs' ids, the number of the root here, and the changes."""

    def __init__(
        self, held: Iterable[tuple[str, int, c.Change]], roots: Sequence[str] = (), name: Callable[[str], str] = str
    ) -> None:
        self.name = name  # what people call a run
        self._roots = roots
        self._at: dict[tuple[int, str], str] = {}
        self._trees: dict[tuple[int, str], str] = {}
        self._above: dict[tuple[int, str], str] = {}
        self._repositories: dict[str, str] = {}
        held = list(held)
        self._gits = _git_directories_shown_by(roots, ((root, change.path) for _, root, change in held))
        for run, root, change in held:
            self._at[root, change.path] = run
            if not c.is_directory_mode(change):
                self._trees[root, change.path] = run
            if git := repository_of(_absolute_path(roots, root, change.path), self._gits):
                self._repositories[git] = run
            for each in c.directories_above(change.path):
                if self._above.get((root, each)) == run:
                    break  # so it is for those above it
                self._above[root, each] = run
        self._inside = c.DirectorySet(self._trees)

    def __bool__(self) -> bool:
        return bool(self._at)

    def under(self, change: c.Change) -> str | None:
        """Return the run that a change builds on, or None.

        That is one that changed the path or something above it, or, where a whole directory goes, something in it; or
        the state of the same repository.
        """
        root, path = change.root, change.path
        if (root, path) in self._at:
            return self._at[root, path]
        if change.change in (c.DELETED, c.TYPE) and (root, path) in self._above:
            return self._above[root, path]
        tree = self._inside.topmost(root, path)
        if tree is not None:
            return self._trees[root, tree]
        place = _absolute_path(self._roots, root, path)
        if place.endswith(_WORK_TREE_POINTERS):
            place = f"{place.rpartition('/')[0]}/HEAD"
        return self._repositories.get(_state_of_change(change, place, self._gits))
