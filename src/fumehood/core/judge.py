"""The judge: decides for each change whether it is applied, held for a person, or not applied at all."""

from __future__ import annotations

from fumehood.core import changes as c
from fumehood.core.request import DISCARD, HOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from fumehood.core.danger_facts import Concern

SUBVOLUME = "nothing can be moved into the subvolume "
MOUNTED_AT = "another file system is mounted at "  # once that mount is gone, the change can be applied


def judge(
    changes: Sequence[c.Change],
    mode: str,
    concerns: Mapping[int, Concern] | None = None,
    apart: Collection[tuple[int, str]] = (),
    waiting: HeldChanges | None = None,
    roots: Sequence[str] = (),
    subvolumes: Collection[tuple[int, str]] = (),
) -> None:
    """Give every change its verdict and, if it is not `applied`, the reason in words.

    `concerns` has, by index in the list, the changes that the host would act on by itself, which are held, and those
    that run when a person builds, which are applied and flagged. `apart` are other file systems mounted inside a root,
    by the root's number and their path: nothing can be swapped into them, nor into `subvolumes`. `waiting` are changes
    that earlier runs held: changes that build on them are held too. `roots` are the roots' paths, which matter where a
    root is itself a git directory.
    """
    concerns = concerns or {}
    for index, change in enumerate(changes):
        concern = concerns.get(index)
        change.verdict, change.reason = _verdict(change, mode, concern)
        for reason, places in ((SUBVOLUME, subvolumes), (MOUNTED_AT, apart)):
            for root, path in places:
                if change.root == root and f"{change.path}/".startswith(f"{path}/"):
                    change.verdict, change.reason = c.UNSUPPORTED, f"{reason}{path}"
        if concern is not None:
            change.flags = (*change.flags, concern.flag)
    if waiting:
        # A change that builds on a held change can't be applied before it.
        for change in changes:
            if change.verdict == c.APPLIED and (run := waiting.base_run_of(change)) is not None:
                change.verdict, change.reason = c.HELD, f"it builds on run {waiting.name(run)}, which was held"
    # If HEAD were applied and the index held, a person's next commit would revert the run's commit.
    _share_verdict(changes, roots, c.HELD, "is held")
    keep_replacements_whole(changes)
    hold_moved_sources(changes)
    if concerns or waiting:
        _hold_empty_directories(changes)


def is_mounted_on(change: c.Change) -> bool:
    """Return True if a change could not be applied because of a mount."""
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
    """Hold a new directory if all its entries are held: else the project would get an empty directory."""
    full: set[tuple[int, str]] = set()  # directories with files in them or below
    needed: set[tuple[int, str]] = set()  # directories with something applied in them or below
    for change in reversed(changes):  # a directory comes before its entries
        own, above = (change.root, change.path), (change.root, change.path.rpartition("/")[0])
        is_directory = change.kind == c.DIRECTORY
        if not is_directory or own in full:
            full.add(above)
        if own in needed if is_directory else change.verdict == c.APPLIED:
            needed.add(above)
    held: set[tuple[int, str]] = set()
    for change in changes:
        if change.change != c.ADDED or change.kind != c.DIRECTORY or change.verdict != c.APPLIED:
            continue
        own, above = (change.root, change.path), (change.root, change.path.rpartition("/")[0])
        if own in full and own not in needed:
            change.verdict, change.reason = c.HELD, "all that is in it is held"
        elif above in held:
            change.verdict, change.reason = c.HELD, "all else in the directory above is held"
        else:
            continue
        held.add(own)


def keep_replacements_whole(changes: Sequence[c.Change]) -> None:
    """Hold a replaced or deleted directory together with its entries.

    A file can't become half a directory, and a directory can't be deleted while something in it stays.
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
    """Hold the deletion of a file that was moved to a path that is held; return True if more changes are held now.

    Else the project would have the file at neither path. A moved file has the size, time and mode of the deleted one.
    Times of whole seconds are no evidence: installers give all files of a package the same time.
    """
    moved = {
        (after.kind, after.size, after.modified_ns, after.mode): change
        for change in changes
        if change.verdict not in (c.APPLIED, c.DISCARDED)
        and (after := change.after) is not None and after.kind in (c.FILE, c.SYMLINK) and after.modified_ns % c.SECOND
    }  # fmt: skip
    has_more = False
    for change in changes if moved else ():
        before = change.before
        if change.change == c.DELETED and change.verdict == c.APPLIED and before is not None:
            target = moved.get((before.kind, before.size, before.modified_ns, before.mode))
            if target is not None:
                has_more = True
                change.verdict, change.reason = c.HELD, f"it was moved to {target.path}, which is {target.verdict}"
    if has_more:
        keep_replacements_whole(changes)
    return has_more


# Changes that are only applied or held together: the state of a git repository, or of an SQLite database; or, if a
# person wants it so (`hold-all`), all changes of a run.

HOLD_PATH, HOLD_ALL = "hold-path", "hold-all"
CHANGED_SINCE = "it changed in the project after the run began"

# The files of a git directory that are its state: its branches, its index, and a merge or rebase under way.
_STATE_FILES = ("HEAD", "index", "packed-refs", "shallow", "AUTO_MERGE", "SQUASH_MSG")
_WORK_TREE_POINTERS = ("/gitdir", "/commondir")  # by these git finds a linked work tree, and then needs its HEAD
_STATE_PREFIXES = ("sharedindex.", "MERGE_", "BISECT_")
_STATE_DIRECTORIES = ("refs", "logs", "reftable", "rebase-merge", "rebase-apply", "sequencer")
# Files that each git command rewrites, and that no other command needs.
_GIT_NOTES = ("COMMIT_EDITMSG", "FETCH_HEAD", "gc.log")
# A path with one of these names is looked at, and so many names from there: it may show that this is a git directory.
_TELLTALE_NAMES, _MOST_NAMES = ("objects", "refs", "logs", "worktrees", "reftable"), 7
_REF_KINDS = ("heads", "tags", "remotes")
# No real repository has paths of more names than this, or lies in more git directories than this.
_DEEPEST_PATH, _MOST_NESTED_GITS = 200, 8
_HEX = frozenset("0123456789abcdef")
_OBJECT_NAME_LENGTHS = (38, 62)  # without the two letters that name the object's directory
JOURNALS = ("-wal", "-shm", "-journal")  # of SQLite, beside its database


def state_of_path(place: str, gits: Collection[str] = ()) -> str:
    """Return what a path is a part of the state of: a git directory, a database, else the path itself."""
    return repository_of(place, gits) or database_of(place)


def database_of(place: str) -> str:
    """Return the database that a path is a journal of, else the path itself."""
    for journal in JOURNALS:
        if place.endswith(journal):
            return place[: -len(journal)]
    return place


def git_directories(roots: Sequence[str], changes: Iterable[c.Change]) -> frozenset[str]:
    """Return the git directories that can be told from the paths of changes, whatever the directories are called.

    Not every one is called `.git`; but an object, a branch, a log or a linked work tree lies in no other directory.
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
    """Return True if a path that begins with these names must lie in a git directory."""
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
    """Return the git directory whose state a path is a part of, or "".

    HEAD, the index, refs, their logs and a merge or rebase under way are one state. Objects are not a part of it: they
    are only ever added, but the state needs them. `gits` are git directories that are not called `.git`.
    """
    return _outermost_git_of(place, gits, _is_state)


def object_store_of(place: str, gits: Collection[str] = ()) -> str:
    """Return the git directory that a path is an object or a directory of objects of, or ""."""
    return _outermost_git_of(place, gits, _is_object)


def is_object_list(path: str) -> bool:
    """Return True for a list of commits or packs, which git makes to be faster, and for the directories of such lists.

    A list is true of one state of the repository only.
    """
    return "/objects/info/" in f"/{path}/" or path.rpartition("/")[2].startswith("multi-pack-index")


def is_git_note(place: str, gits: Collection[str] = ()) -> bool:
    """Return True if a path is a file that git rewrites with each command, so that its version does not matter."""
    if not place.endswith(_GIT_NOTES):
        return False
    return bool(_outermost_git_of(place, gits, lambda names: len(names) == 1 and names[0] in _GIT_NOTES))


def _outermost_git_of(place: str, gits: Collection[str], is_part: Callable[[list[str]], bool]) -> str:
    """Return the outermost git directory that a path is such a part of: a branch may be called `x.git`, too."""
    if (".git/" not in place and not gits) or place.count("/") > _DEEPEST_PATH:
        return ""
    end, gits_left = place.find("/", 1), _MOST_NESTED_GITS
    while end > 0 and gits_left:
        git = place[:end]
        if git.endswith(".git") or git in gits:
            gits_left -= 1
            names = place[end + 1 :].split("/")
            # A submodule's name may have slashes, so any part of the path may be the name's end.
            for start in range(2, len(names)) if names[0] == "modules" else (0,):
                # A linked work tree has the same files as the main one, in `worktrees/NAME`.
                if is_part(names[start + 2 :] if names[start] == "worktrees" else names[start:]):
                    return "/".join((git, *names[:start]))
        end = place.find("/", end + 1)
    return ""


def _is_state(names: list[str]) -> bool:
    first = names[0] if names else ""
    if first in _STATE_DIRECTORIES:
        return True
    is_state_file = first in _STATE_FILES or first.endswith("_HEAD") or first.startswith(_STATE_PREFIXES)
    return (len(names) == 1 and is_state_file and first not in _GIT_NOTES) or is_object_list("/".join(names))


def _is_object(names: list[str]) -> bool:
    """Return True for what is named by its content and only ever added, as by git-lfs and git-annex too."""
    if names[:1] == ["objects"]:
        return len(names) > 1 and (len(names[1]) == 2 or names[1] in ("pack", "info"))
    return names[:1] == ["lfs"] or names[:2] == ["annex", "objects"]


def _state_of_change(change: c.Change, place: str, gits: Collection[str]) -> str:
    """Return the state that a change is a part of; unlike its addition, the deletion of an object is one."""
    return (object_store_of(place, gits) if change.change == c.DELETED else "") or state_of_path(place, gits)


def _absolute_path(roots: Sequence[str], root: int, path: str) -> str:
    return f"{_root_path(roots, root)}/{path}"


def _root_path(roots: Sequence[str], root: int) -> str:
    return roots[root] if roots else str(root)


def _share_verdict(changes: Sequence[c.Change], roots: Sequence[str], verdict: str, what: str) -> bool:
    """Give a verdict that a part or an object of a state has to all of it; return True if more changes have it now."""
    if all(change.verdict != verdict for change in changes):
        return False
    gits = git_directories(roots, changes)
    firsts: dict[str, str] = {}
    for change in reversed(changes):
        if change.verdict == verdict:
            place = _absolute_path(roots, change.root, change.path)
            firsts[object_store_of(place, gits) or state_of_path(place, gits)] = change.path
    has_more = False
    for change in changes:
        first = firsts.get(_state_of_change(change, _absolute_path(roots, change.root, change.path), gits))
        if first is not None and change.verdict == c.APPLIED:
            has_more = True
            change.verdict, change.reason = verdict, f"{first} {what}, and they are one state"
    return has_more


def spread_conflicts(changes: Sequence[c.Change], roots: Sequence[str], on_conflict: str = HOLD_PATH) -> bool:
    """Extend conflicts to all that must be applied with them; return True if more changes are held now."""
    conflicts = [change for change in changes if change.verdict == c.CONFLICT]
    if not conflicts:
        return False
    if on_conflict == HOLD_ALL:
        applied = [change for change in changes if change.verdict == c.APPLIED]
        for change in applied:
            change.verdict, change.reason = c.HELD, f"{conflicts[0].path} is a conflict, and then everything is held"
        return bool(applied)
    has_shared = _share_verdict(changes, roots, c.CONFLICT, "changed in the project after the run began")
    return hold_moved_sources(changes) or has_shared


def hold_open_files(
    changes: Sequence[c.Change], roots: Sequence[str], busy: Mapping[tuple[int, str], str], on_conflict: str = HOLD_PATH
) -> None:
    """Hold files that other programs have open, and the rest of their states; `busy` has a reason for each file."""
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


def without_conflicts(changes: Sequence[c.Change], chosen: Sequence[c.Change], roots: Sequence[str]) -> list[c.Change]:
    """Return those of the chosen changes that can be applied while the conflicts of the run stay.

    A change stays if it lies in a conflict, replaces a tree with a conflict in it, or is of one state with a conflict.
    """
    conflicts = [change for change in changes if change.verdict == c.CONFLICT]
    if not conflicts:
        return list(chosen)
    places = c.DirectorySet({(change.root, change.path) for change in conflicts if not c.is_directory_mode(change)})
    replaced = {(change.root, change.path) for change in changes if change.change in (c.TYPE, c.DELETED)}
    trees = replaced & {(change.root, change.within or "") for change in conflicts}
    gits = git_directories(roots, changes)
    states = {state_of_path(f"{roots[change.root]}/{change.path}", gits) for change in conflicts}
    return [
        change
        for change in chosen
        if change.verdict != c.CONFLICT
        and places.topmost(change.root, change.path) is None
        and trees.isdisjoint(((change.root, change.path), (change.root, change.within or "")))
        and state_of_path(f"{roots[change.root]}/{change.path}", gits) not in states
    ]


# Changes that build on held changes of an earlier run, and so can't be applied before them.

class HeldChanges:
    """The held changes of earlier runs: each with its run's id and the number that its root has in this run."""

    def __init__(
        self, held: Iterable[tuple[str, int, c.Change]], roots: Sequence[str] = (), name: Callable[[str], str] = str
    ) -> None:
        self.name = name  # gives the name of a run for people, by its id
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

    def base_run_of(self, change: c.Change) -> str | None:
        """Return the run whose held changes a change builds on, or None.

        That is a run that changed the path, a directory above it or, if the change removes a directory, something in
        it; or one that changed the state of the same repository.
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
