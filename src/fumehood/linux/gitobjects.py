"""The parts of a repository that runs and people share: objects, git's notes, refs and HEADs."""

from __future__ import annotations

import os
import stat

from fumehood.core import changes as c
from fumehood.core.judge import git_directories, is_git_note, is_object_list, object_store_of, repository_of
from fumehood.core.paths import is_below, is_in
from fumehood.core.sensitive_names import is_dot_git
from fumehood.linux.cache import plain_file
from fumehood.linux.copying import copy_with_content
from fumehood.linux.gitindex import INDEX_NAME as INDEX
from fumehood.linux.gitindex import LARGEST, SeenIndexes, meaning, names_any_object
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import (
    LISTING,
    DirectoryCache,
    join,
    kind_of,
    open_below,
    open_top,
    split,
    stamp_of,
    stat_each,
    stat_entry,
    walk,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

    Refs = dict[tuple[int, str], bytes]  # digests of the files that name objects, by root and path

_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HASH_SIZES = (20, 32)  # bytes of an object's name
_REFTABLE_LIST = "reftable/tables.list"  # of refs, logs and HEADs: each change of one makes another table
_MOST_BESIDE = 2_000  # neighbouring directories that are searched for a repository that borrows objects
_LONGEST_HEAD = 4096  # bytes; git's own limit on the name of a ref is shorter
_MOST_INDEXES = 8  # that are read for names of objects: a command can create any number, without using disk space
_MERGED_INDEX = "joined-index"  # beside a layer, until it is whole
_LONGEST_LOG = 1 << 24  # bytes
_LONGEST_REFS = 1 << 20  # bytes of one file; a command can create a sparse one of any length


def is_object_or_note(place: str, gits: Collection[str] = ()) -> bool:
    """Return True for a path of a git object or note: of these, any version may be there and may stay.

    `gits` are git directories that can't be recognised by their names.
    """
    return bool(object_store_of(place, gits)) or is_git_note(place, gits)


def drop_harmless_conflicts(roots: Sequence[str], changes: Sequence[c.Change]) -> bool:
    """Settle conflicts where the project has the same object or a later note; return True if there were any.

    The project keeps its own, which git then counts as new. An object that somebody wrote again is not deleted.
    """
    conflicts = [change for change in changes if change.verdict == c.CONFLICT and not is_object_list(change.path)]
    if conflicts:
        gits = git_directories(roots, changes)
        conflicts = [change for change in conflicts if _is_object_or_note_alone(roots, change, gits)]
    project_keeps: set[tuple[int, str]] = set()
    for number in sorted({change.root for change in conflicts}):
        with Closing(open_top(roots[number])) as top:
            root_conflicts = [change for change in conflicts if change.root == number]
            for change, entry, is_reached in stat_each(top, root_conflicts):
                if change.change == c.DELETED:
                    project_keeps.add((number, change.within or change.path))
                elif entry is None and is_reached and change.change == c.ADDED:
                    change.verdict, change.reason = c.APPLIED, ""  # only its directory existed already
                elif entry is not None and kind_of(entry.st_mode) == change.kind:
                    project_keeps.add((number, change.path))
                    if change.kind == c.FILE:
                        freshen_object(top, change.path)
    for change in changes:
        tree = change.within if change.change == c.DELETED else None
        if (change.root, change.path) in project_keeps or (change.root, tree) in project_keeps:
            change.verdict, change.reason = c.DISCARDED, "the project has its own"
    return any(change.verdict != c.CONFLICT for change in conflicts)


def _is_object_or_note_alone(roots: Sequence[str], change: c.Change, gits: Collection[str]) -> bool:
    """Return True for an object or a note, unless it is part of a larger tree that moves as a whole."""
    paths = (change.path,) if change.within is None else (change.path, change.within)
    return all(is_object_or_note(f"{roots[change.root]}/{path}", gits) for path in paths)


def builds_on_project_ref(roots: Sequence[str], gits: Collection[str], change: c.Change, upper: str) -> bool:
    """Return True if a command's ref or reflog is based on the one that the project has now.

    The logs tell: the command's log must contain all lines of the project's, in order. (`git gc` rewrites logs without
    old lines; nothing is lost if these come back.) For a ref, the command's first new line must also begin where the
    project's last one ended, and each new line must add a commit on top: a reset or an amend can't have been meant for
    a commit that a person made just now. The log of stashes is excluded: it is the list of stashes, from which a
    command drops entries on purpose.
    """
    root = roots[change.root]
    place = f"{root}/{change.path}"
    git = "" if place.endswith("/stash") else repository_of(place, gits)
    if not git:
        return False
    part, is_ref = place[len(git) + 1 :], False
    if part.startswith("refs/"):
        part, is_ref = f"logs/{part}", True
    elif "logs/" not in part:
        return False
    with Closing(open_top(upper)) as layer, Closing(open_top(root)) as live:
        path = f"{git}/{part}"[len(root) + 1 :]
        command_log, project_log = (plain_file(path, top, _LONGEST_LOG) for top in (layer, live))
        project_ref = plain_file(change.path, live, _LONGEST_HEAD) if is_ref else b""
        if command_log is None or project_log is None or project_ref is None:
            return False
        if _LONGEST_LOG in (len(command_log), len(project_log)):
            return False
        lines = iter(command_log.splitlines(keepends=True))
        if not all(line in lines for line in project_log.splitlines(keepends=True)):
            return False
        if not is_ref:
            return True
        moves = [(*line.split(b" ", 2), b"")[:2] for line in lines]
        # The old and new value of the ref in the last line of the project's log.
        last = project_log.splitlines()[-1].split(b" ", 2)[:2] if project_log else []
        return last[1:] == [project_ref.strip()] == [old for old, _ in moves[:1]] and all(
            _is_child_commit(layer, _path_in_root(root, git), old, os.fsdecode(new)) for old, new in moves
        )


def _is_child_commit(layer: int, git: str, old: bytes, new: str) -> bool:
    """Return True if a ref moved to a commit of the layer whose parent is the ref's old value, or did not move."""
    import zlib

    if old == os.fsencode(new):
        return True
    try:
        packed = plain_file(join(git, f"objects/{new[:2]}/{new[2:]}"), layer) or b""
        commit = zlib.decompressobj().decompress(packed, _LONGEST_HEAD)
    except zlib.error:
        return False
    return commit.startswith(b"commit ") and b"\nparent %b\n" % old in commit.partition(b"\n\n")[0] + b"\n"


def merges_staged_entries(
    roots: Sequence[str], changes: Sequence[c.Change], index: c.Change, upper: str, indexes: SeenIndexes, began_ns: int
) -> bool:
    """Add what a person has staged meanwhile to a command's index; return True if that was possible.

    It is not possible after a commit or a switch of branches: the staged entries would then lie on another commit. Nor
    is it if another change of the repository is a conflict, because then the index is held too.
    """
    parent, name = split(index.path)
    if name != INDEX or index.verdict != c.APPLIED or index.kind != c.FILE:
        return False
    gits, root = git_directories(roots, changes), roots[index.root]
    git = repository_of(f"{root}/{index.path}", gits)
    others = [each for each in changes if each is not index]
    others = [each for each in others if git and repository_of(f"{roots[each.root]}/{each.path}", gits) == git]
    if not git or any(each.verdict == c.CONFLICT for each in others):
        return False
    with (
        Closing(open_top(root)) as live,
        Closing(open_top(upper)) as layer,
        Closing(open_top(split(upper)[0])) as run_directory,
    ):
        if _has_head_moved(live, parent, _path_in_root(root, git), began_ns):
            return False
        try:
            with Closing(open_below(live, parent)) as project_dir, Closing(open_below(layer, parent)) as layer_dir:
                content, time_ns = indexes.merge_staged_entries(
                    index, project_dir, layer_dir, is_only_change=not others
                )
                if not content:
                    return False
                copy_with_content(layer_dir, INDEX, run_directory, _MERGED_INDEX, content)
                os.utime(_MERGED_INDEX, ns=(time_ns, time_ns), dir_fd=run_directory)
                os.rename(_MERGED_INDEX, INDEX, src_dir_fd=run_directory, dst_dir_fd=layer_dir)
                index.after = stamp_of(os.stat(INDEX, dir_fd=layer_dir, follow_symlinks=False), meaning(content))
        except OSError:
            return False  # the command has closed its git directory, or the disk is full: then the change is held
    return True


def _has_head_moved(top: int, tree: str, git: str, began_ns: int) -> bool:
    """Return True if the HEAD of a work tree may have moved since a command began."""
    places = [join(tree, "HEAD"), join(tree, "logs/HEAD")]
    for each in dict.fromkeys((tree, git)):
        places += (join(each, name) for name in (_branch(top, places[0]), "packed-refs", _REFTABLE_LIST) if name)
    statuses = (_status(top, each) for each in places)
    return any(status is not None and c.may_be_later(status.st_ctime_ns, began_ns) for status in statuses)


def freshen_object(top: int, path: str) -> None:
    """Set an object's time to now, so that `git gc` keeps it; git does the same when it would write it again."""
    parent, name = split(path)
    with Closing(open_below(top, parent)) as directory:
        try:
            os.utime(name, dir_fd=directory, follow_symlinks=False)
        except PermissionError:
            return  # it belongs to another user, so no run of ours changes it


def keep_objects_in_use(roots: Sequence[str], changes: Sequence[c.Change], began_ns: int) -> None:
    """Keep objects that a run would remove, if a ref or an index that names one was written since it began."""
    for (root, git), group in _by_repository(roots, changes, git_directories(roots, changes)).items():
        removed = [each for each in group if each.change == c.DELETED and each.verdict == c.APPLIED] if git else []
        if not removed:
            continue
        with Closing(open_top(roots[root])) as top:
            changed_files = [
                path for path, status, is_cache in _naming_objects(top, _path_in_root(roots[root], git))
                if status.st_mtime_ns > began_ns and (_is_index(path) or not is_cache)
            ]  # fmt: skip
        if _is_any_in_use(roots, changes, root, changed_files):
            for change in removed:
                change.verdict, change.reason = c.DISCARDED, "it may be needed since"


def without_objects_in_use(
    roots: Sequence[str], changes: Sequence[c.Change], noted: Refs,
    find_moved: Callable[[Sequence[c.Change]], list[str]],
    held_repositories: Callable[[], Container[str]],
) -> list[c.Change]:  # fmt: skip
    """Leave out of an undo the objects that may be in use by now, and notes that changed later.

    An extra object does no harm, but without a needed one a repository is broken. So objects stay if a ref, or an index
    that names one, differs from what was `noted` before the run; if one was touched; if another repository borrows
    them; or if a later run is held in that repository (`held_repositories` returns these). `find_moved` returns the
    paths that are no longer as the run left them.
    """
    kept_ids: set[int] = set()
    gits = git_directories(roots, changes)
    for (root, git), group in _by_repository(roots, changes, gits).items():
        in_repository = [
            each for each in changes if git and repository_of(f"{roots[each.root]}/{each.path}", gits) == git
        ]
        if git and (
            find_moved(group) or find_moved(in_repository) or git in held_repositories()
            or _is_any_in_use(roots, changes, root, _written_since_noted(roots, root, git, noted))
            or _lends_objects(git)
        ):  # fmt: skip
            # Lists that git derives from its objects are not undone while the objects stay.
            objects = [each for each in group if each.change == c.ADDED and not is_object_list(each.path)]
            kept_ids.update(map(id, _without_moved(c.detach_from_missing(objects), find_moved)))
        else:
            kept_ids.update(map(id, _without_moved(group, find_moved)))
    return [change for change in changes if id(change) in kept_ids or not _is_object_or_note_alone(roots, change, gits)]


def _by_repository(
    roots: Sequence[str], changes: Sequence[c.Change], gits: Collection[str]
) -> dict[tuple[int, str], list[c.Change]]:
    """Group objects by root and git directory; notes have "" as their git directory."""
    groups: dict[tuple[int, str], list[c.Change]] = {}
    for change in changes:
        if _is_object_or_note_alone(roots, change, gits):
            git = object_store_of(f"{roots[change.root]}/{change.path}", gits)
            groups.setdefault((change.root, git), []).append(change)
    return groups


def _without_moved(group: list[c.Change], find_moved: Callable[[Sequence[c.Change]], list[str]]) -> list[c.Change]:
    """Leave out changes whose path has another version now; a directory is then replaced by its single entries."""
    while moved_paths := set(find_moved(group)):
        group = c.detach_from_missing([each for each in group if each.path not in moved_paths])
    return group


def _written_since_noted(roots: Sequence[str], root: int, git: str, noted: Refs) -> list[str]:
    """Return the files naming objects in a repository that changed since they were noted, without the logs of HEADs.

    Those logs say where a HEAD was; the objects that they name may be missing.
    """
    changed = (path for path, says in digest_refs(roots[root], git).items() if noted.get((root, path)) != says)
    return [path for path in changed if "refs/" in path or not path.endswith("logs/HEAD")]


def _is_any_in_use(roots: Sequence[str], changes: Sequence[c.Change], root: int, written: Sequence[str]) -> bool:
    """Return True if files that others have written may name an object that is removed.

    Only indexes are examined; any other file counts as naming one.
    """
    paths = {each.path for each in changes if each.root == root}
    other_paths = [path for path in written if path not in paths]
    indexes = list(filter(_is_index, other_paths))
    if len(indexes) < len(other_paths):
        return True
    names = _names(each.path for each in changes if each.root == root and each.change == c.DELETED)
    with Closing(open_top(roots[root])) as top:
        return _names_any(top, indexes, names)


def _lends_objects(git: str) -> bool:
    """Return True if a repository nearby borrows this one's objects (`git clone --shared`).

    The lender has no record of it, so the directories beside it and those at the top of its work tree are searched.
    """
    own_objects, tree = os.path.realpath(f"{git}/objects"), os.path.dirname(git)
    for place in dict.fromkeys((tree, os.path.dirname(tree))):
        try:
            names = os.listdir(place)[:_MOST_BESIDE]
        except OSError:
            continue  # closed to us
        with Closing(open_top(place)) as top:
            for objects in (f"{name}/{inner}" for name in names for inner in (".git/objects", "objects")):
                lines = (plain_file(f"{objects}/info/alternates", top) or b"").splitlines()
                lenders = (os.path.join(place, objects, os.fsdecode(line)) for line in lines if b"\0" not in line)
                if any(os.path.realpath(lender) == own_objects for lender in lenders):
                    return True
    return False


def _is_index(path: str) -> bool:
    return split(path)[1] == INDEX and "refs/" not in path


def _names(paths: Iterable[str]) -> frozenset[bytes]:
    """Return the names of loose objects as bytes; for a pack or another store, an empty name, which matches always."""
    names = set()
    for path in paths:
        directory, _, name = path.rpartition("/")
        if directory.endswith("objects/pack") or "/lfs/" in path or "/annex/objects/" in path:
            return frozenset((b"",))
        try:
            names.add(bytes.fromhex(directory[-2:] + name))
        except ValueError:
            continue  # not an object, so no index can name it
    return frozenset(name for name in names if len(name) in _HASH_SIZES)


def _names_any(top: int, indexes: Sequence[str], names: Collection[bytes]) -> bool:
    """Return True if indexes contain any of these names, or if they are too many or too long to be read."""
    if len(indexes) > _MOST_INDEXES:
        return True
    for path in indexes:
        content = plain_file(path, top, LARGEST)
        if content is None or len(content) == LARGEST or b"" in names or names_any_object(content, names):
            return True
    return False


# ---- Files that name objects. Times can't tell whether somebody uses the objects of a run, but these files can: one
# that was there before the run, and has not changed since, needs none of them.


def changed_repositories(roots: Sequence[str], changes: Sequence[c.Change]) -> set[tuple[int, str]]:
    """Return the git directories, each with its root, that changes are made in, unless these move as a whole."""
    gits = set(git_directories(roots, changes))
    for change in changes:
        around, name = split(change.path)
        if name == INDEX and not around.endswith(".git"):
            # One that changed alone does not show what is around it.
            with Closing(open_top(roots[change.root])) as top:
                if all(_status(top, join(around, each)) is not None for each in ("HEAD", "objects", "refs")):
                    gits.add(join(roots[change.root], around) if around else roots[change.root])
    repositories = set()
    for change in changes:
        place = f"{roots[change.root]}/{change.path}"
        git = change.verdict == c.APPLIED and (object_store_of(place, gits) or repository_of(place, gits))
        if git and (change.within is None or f"{roots[change.root]}/{change.within}".startswith(f"{git}/")):
            repositories.add((change.root, git))
    return repositories


def digest_refs(root: str, git: str) -> dict[str, bytes]:
    """Return a digest of each ref and HEAD, and size and time of each index, log and list, by path.

    Files that vanish meanwhile are left out: `git gc` packs refs.
    """
    refs = {}
    with Closing(open_top(root)) as top:
        for path, status, is_cache in _naming_objects(top, _path_in_root(root, git)):
            try:
                refs[path] = _version(top, path, status, is_cache=is_cache)
            except (FileNotFoundError, NotADirectoryError):
                continue
    return refs


def _version(top: int, path: str, status: os.stat_result, *, is_cache: bool) -> bytes:
    """Return what identifies a version of a file: a digest, or for caches and long files its size and time."""
    if is_cache or status.st_size > _LONGEST_REFS:
        return f"{status.st_size} {status.st_mtime_ns}".encode()
    import hashlib

    return hashlib.blake2b(_content(top, path, status), digest_size=16).digest()


def _content(top: int, path: str, status: os.stat_result) -> bytes:
    """Return the content of a ref; a ref may be a symlink to another."""
    parent, name = split(path)
    with Closing(open_below(top, parent)) as directory:
        if stat.S_ISLNK(status.st_mode):
            return os.fsencode(os.readlink(name, dir_fd=directory))
        if not stat.S_ISREG(status.st_mode):
            return b""
        with open(os.open(name, _READING, dir_fd=directory), "rb") as file:
            return file.read(_LONGEST_REFS)


def _path_in_root(root: str, git: str) -> str:
    """Return a git directory's path in its root, which may be the root itself."""
    return git[len(root) + 1 :]


def _naming_objects(top: int, git: str) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Yield the files of a repository that name objects: path, status, and whether git can make the file again.

    That is so for indexes, logs of HEADs and lists; not for refs and HEADs.
    """
    for tree in (git, *_work_trees(top, git)):
        names = [name for name in _list_directory(top, tree) if name == "packed-refs" or name.endswith("HEAD")]
        for name in (*names, _REFTABLE_LIST, INDEX, "logs/HEAD"):
            status = _status(top, join(tree, name))
            if status is not None and not stat.S_ISDIR(status.st_mode):
                yield join(tree, name), status, name in (INDEX, "logs/HEAD")
        for name in ("refs", "objects/info", "objects/pack"):
            if not _list_directory(top, join(tree, name)):
                continue
            for path, status in walk(top, join(tree, name)):
                if not stat.S_ISDIR(status.st_mode) and (name == "refs" or is_object_list(path)):
                    yield path, status, name != "refs"


def heads_moved_since(roots: Sequence[str], changes: Sequence[c.Change], noted: Refs) -> list[tuple[int, str]]:
    """Return the HEADs that moved since they were `noted`, so that an undo would not fit to them.

    If only the index is undone after a later commit, the reverse of that commit is staged. If only a branch is undone
    that somebody has checked out since, their HEAD is at another commit, or at none.
    """
    moved: list[tuple[int, str]] = []
    paths = {(change.root, change.path) for change in changes}
    for root, place in sorted(changed_repositories(roots, changes)):
        git = _path_in_root(roots[root], place)
        if (root, join(git, "HEAD")) not in noted:
            continue  # a run of an older version, which did not note HEADs
        with Closing(open_top(roots[root])) as top:
            for tree in (git, *_work_trees(top, git)):
                head, log, index = (join(tree, name) for name in ("HEAD", "logs/HEAD", INDEX))
                tables = [join(each, _REFTABLE_LIST) for each in dict.fromkeys((tree, git))]
                is_index_alone = (root, index) in paths and not any((root, each) in paths for each in (log, *tables))
                others = [each for each in tables if _has_changed(top, each, noted.get((root, each)))]
                if _has_changed(top, log, noted.get((root, log)), is_cache=True):
                    others.append(log)
                if is_index_alone and others:
                    moved.append((root, others[0]))
                    continue
                is_moved = (root, head) not in paths and _has_changed(top, head, noted.get((root, head)))
                if is_moved and (is_index_alone or (root, join(git, _branch(top, head))) in paths):
                    moved.append((root, head))
    return moved


def _has_changed(top: int, path: str, noted: bytes | None, *, is_cache: bool = False) -> bool:
    status = _status(top, path)
    if status is None or stat.S_ISDIR(status.st_mode):
        return noted is not None
    return noted != _version(top, path, status, is_cache=is_cache)


def _work_trees(top: int, git: str) -> list[str]:
    return [join(git, f"worktrees/{name}") for name in _list_directory(top, join(git, "worktrees"))]


def keep_unseen_work_trees(roots: Sequence[str], changes: Sequence[c.Change]) -> None:
    """Keep git's record of a linked work tree that a command could not see, so that git took it for removed.

    Objects that git would remove from that repository stay too: the work tree may need them.
    """
    reasons: dict[tuple[int, str], str] = {}
    gits: set[str] = set()
    for change in changes:
        if change.change != c.DELETED or not change.path.endswith("/gitdir"):
            continue
        root, top = roots[change.root], change.within or change.path
        git, kind, *_ = f"{root}/{change.path}".rsplit("/", 3)
        # If more than this record is deleted, it is not git that prunes.
        if kind == "worktrees" and f"{root}/{top}/".startswith(f"{git}/{kind}/"):
            tree = _work_tree(root, root, change.path)
            if os.path.lexists(tree) and not is_in(tree, roots):
                place = os.path.dirname(tree)
                reasons[change.root, top] = f"its work tree is there, out of the command's sight: {place}"
                gits.add(git)
    for change in changes if reasons else ():
        if change.change == c.DELETED and change.verdict in (c.APPLIED, c.HELD):
            why = reasons.get((change.root, change.within or change.path), "")
            if object_store_of(f"{roots[change.root]}/{change.path}", gits) in gits:
                why = "a work tree that is out of the command's sight may need it"
            if why:
                change.verdict, change.reason = c.DISCARDED, why


def drop_lost_work_trees(roots: Sequence[str], changes: Sequence[c.Change], uppers: Sequence[str], home: str) -> None:
    """Discard git's record of a new work tree that lay in the command's own home, which is thrown away."""
    new = {(change.root, change.path) for change in changes if change.change == c.ADDED}
    reasons: dict[tuple[int, str], str] = {}
    for change in changes:
        notes, name = split(change.path)
        if name == "gitdir" and split(split(notes)[0])[1] == "worktrees" and (change.root, notes) in new:
            tree = os.path.dirname(_work_tree(roots[change.root], uppers[change.root], change.path))
            if is_below(tree, home) and not is_in(tree, roots) and not os.path.lexists(tree):
                reasons[change.root, notes] = f"its work tree is not kept: {tree}"
    for change in changes if reasons else ():
        places = (change.path, *c.directories_above(change.path))
        why = next((reasons[change.root, each] for each in places if (change.root, each) in reasons), "")
        if why:
            change.verdict, change.reason = c.DISCARDED, why


def _work_tree(root: str, top: str, path: str) -> str:
    """Return the path of the .git of a linked work tree, as a file of git's below a top says."""
    with Closing(open_top(top)) as directory:
        line = os.fsdecode(plain_file(path, directory) or b"").rstrip("\n")
    return os.path.normpath(os.path.join(root, os.path.dirname(path), line))


def _branch(top: int, head: str) -> str:
    text = os.fsdecode(plain_file(head, top, _LONGEST_HEAD) or b"")  # if it is not a file, git can't read it either
    return text.removeprefix("ref:").strip() if text.startswith("ref:") else ""


def _list_directory(top: int, path: str) -> list[str]:
    """Return the names in a directory, none if it does not exist."""
    status = _status(top, path) if path else os.stat(top)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return []
    try:
        with Closing(open_below(top, path, LISTING)) as directory:
            return os.listdir(directory)
    except FileNotFoundError:
        return []  # it was removed just now


def _status(top: int, path: str) -> os.stat_result | None:
    parent, name = split(path)
    try:
        with Closing(open_below(top, parent)) as directory:
            return stat_entry(directory, name)
    except (FileNotFoundError, NotADirectoryError):
        return None


# Had the project a repository where a command left files of one? Any one of these shows it: a run that removes one of
# them must not make the repository look new to the next run.
_REPOSITORY_FILES = ("HEAD", "config", "objects", "refs")
_CONFIG_FILES = ("config", "config.worktree")


def had_repository(live: DirectoryCache, root: str, path: str) -> bool:
    """Return True if the git directory that a path belongs to was in the project before; `live` is the project.

    A new git directory among files that an outer repository tracks counts as that one: it takes these files over.
    """
    parts = path.split("/")
    lower = [part.lower() for part in parts]
    # The directories that may be git directories: of a `.git`, a configuration or an old-style remote.
    directories = [path] if is_dot_git(lower[-1]) else []
    if lower[-1] in _CONFIG_FILES:
        directories.append("/".join(parts[:-1]))
        if lower[-3:-2] == ["worktrees"]:
            directories.append("/".join(parts[:-3]))  # a work tree belongs to the repository that it lies in
    directories += ["/".join(parts[:end]) for end, part in enumerate(lower[:-1]) if part in ("remotes", "branches")]
    return any(_was_repository(live, root, directory) for directory in directories)


def _was_repository(live: DirectoryCache, root: str, directory: str) -> bool:
    parent, _, name = directory.rpartition("/")
    try:
        if not is_dot_git(name.lower()):
            inside = live.get(directory)
            return any(stat_entry(inside, part) is not None for part in _REPOSITORY_FILES)
        return stat_entry(live.get(parent), name) is not None or _is_in_outer_repository(live, root, parent)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # there is a link on the way, or we have no permission to look


def _is_in_outer_repository(live: DirectoryCache, root: str, directory: str) -> bool:
    """Return True if a directory had files, and a repository further up that these may belong to."""
    with Closing(open_below(live.top, directory, LISTING)) as listing:
        if not os.listdir(listing):
            return False
    names = directory.split("/") if directory else []
    inside = ("/".join(names[:end]) for end in range(len(names)))
    if any(stat_entry(live.get(above), ".git") is not None for above in inside):
        return True
    above_root = root.rstrip("/").split("/")[:-1]
    return any(os.path.lexists("/".join([*above_root[:end], ".git"])) for end in range(1, len(above_root) + 1))
