"""What of a repository is not a run's alone: objects, which are known by their names, notes, and where HEADs stand."""

from __future__ import annotations

import os
import stat

from fumehood.core import changes as c
from fumehood.core.concern import is_dot_git
from fumehood.core.judge import git_directories, is_git_note, is_object_list, object_store_of, repository_of
from fumehood.core.masks import is_below, is_in
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

    Refs = dict[tuple[int, str], bytes]  # what names objects, as digests, by root and path

_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LENGTHS = (20, 32)  # bytes of an object's name
_TABLES = "reftable/tables.list"  # of refs, logs and HEADs: each change of one makes another table
_MOST_BESIDE = 2_000  # directories that are asked whether they borrow objects
_LONGEST_HEAD = 4096  # bytes; git's own limit on the name of a ref is shorter
_MOST_INDEXES = 8  # that are read for objects' names: a command can leave any number, which take no room either
_JOINED = "joined-index"  # beside a layer, until it is whole
_LONGEST_LOG = 1 << 24  # bytes
_LONGEST_REFS = 1 << 20  # bytes of one file; a command can leave one of any length, which takes no room on the disk


def is_object_or_note(place: str, gits: Collection[str] = ()) -> bool:
    """Return True if nobody minds which of two versions lies at a path, nor that one stays.

    `gits` are git directories that their names don't tell.
    """
    return bool(object_store_of(place, gits)) or is_git_note(place, gits)


def drop_harmless_conflicts(roots: Sequence[str], changes: Sequence[c.Change]) -> bool:
    """Settle conflicts that are none: the project has the same object by now, or a later note; tell whether any are.

    What it has stays, and counts as needed. An object that somebody wants anew is not deleted.
    """
    conflicts = [change for change in changes if change.verdict == c.CONFLICT and not is_object_list(change.path)]
    if conflicts:
        gits = git_directories(roots, changes)
        conflicts = [change for change in conflicts if _is_apart(roots, change, gits)]
    left: set[tuple[int, str]] = set()
    for number in sorted({change.root for change in conflicts}):
        with Closing(open_top(roots[number])) as top:
            mine = [change for change in conflicts if change.root == number]
            for change, entry, is_reached in stat_each(top, mine):
                if change.change == c.DELETED:
                    left.add((number, change.within or change.path))
                elif entry is None and is_reached and change.change == c.ADDED:
                    change.verdict, change.reason = c.APPLIED, ""  # only the directory around it was there
                elif entry is not None and kind_of(entry.st_mode) == change.kind:
                    left.add((number, change.path))
                    if change.kind == c.FILE:
                        freshen_object(top, change.path)
    for change in changes:
        above = change.within if change.change == c.DELETED else None
        if (change.root, change.path) in left or (change.root, above) in left:
            change.verdict, change.reason = c.DISCARDED, "the project has its own"
    return any(change.verdict != c.CONFLICT for change in conflicts)


def _is_apart(roots: Sequence[str], change: c.Change, gits: Collection[str]) -> bool:
    """Return True for an object or a note, unless it only moves with more of its repository."""
    paths = (change.path,) if change.within is None else (change.path, change.within)
    return all(is_object_or_note(f"{roots[change.root]}/{path}", gits) for path in paths)


def builds_on_project_ref(roots: Sequence[str], gits: Collection[str], change: c.Change, upper: str) -> bool:
    """Return True for a ref or log of git's that a command changed after it had read the project's of now.

    A log tells: the command's has all lines of the project's, in their order. `git gc` writes logs anew, without lines
    that are old: nothing is lost if these come back. For a ref, the command's first line must besides begin where the
    project's last one ended, and each be a commit on top of what was there: who resets or amends what they have read
    can't have meant a person's commit of just now. Of stashes, the log is the list, and who drops one means it.
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
        mine, theirs = (plain_file(path, top, _LONGEST_LOG) for top in (layer, live))
        now = plain_file(change.path, live, _LONGEST_HEAD) if is_ref else b""
        if mine is None or theirs is None or now is None or _LONGEST_LOG in (len(mine), len(theirs)):
            return False
        lines = iter(mine.splitlines(keepends=True))
        if not all(line in lines for line in theirs.splitlines(keepends=True)):
            return False
        if not is_ref:
            return True
        moves = [(*line.split(b" ", 2), b"")[:2] for line in lines]
        # What a ref was before the last line of a log, and after it.
        last = theirs.splitlines()[-1].split(b" ", 2)[:2] if theirs else []
        return last[1:] == [now.strip()] == [old for old, _ in moves[:1]] and all(
            _is_on_top(layer, _inside(root, git), old, os.fsdecode(new)) for old, new in moves
        )


def _is_on_top(layer: int, git: str, old: bytes, new: str) -> bool:
    """Return True if a move of a ref is one to a commit that a command made on top of the one before, or is none."""
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
    """Let a command's index have what a person has only staged meanwhile; tell whether it has it now.

    Not where anybody has committed meanwhile, or switched to another branch: it would lie on another commit. Nor where
    something else of the repository is a conflict, so that the index waits.
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
    with Closing(open_top(root)) as live, Closing(open_top(upper)) as layer, Closing(open_top(split(upper)[0])) as room:
        if _is_moved_since(live, parent, _inside(root, git), began_ns):
            return False
        try:
            with Closing(open_below(live, parent)) as theirs, Closing(open_below(layer, parent)) as own:
                content, time_ns = indexes.merge_staged_entries(index, theirs, own, is_all=not others)
                if not content:
                    return False
                copy_with_content(own, INDEX, room, _JOINED, content)
                os.utime(_JOINED, ns=(time_ns, time_ns), dir_fd=room)
                os.rename(_JOINED, INDEX, src_dir_fd=room, dst_dir_fd=own)
                index.after = stamp_of(os.stat(INDEX, dir_fd=own, follow_symlinks=False), meaning(content))
        except OSError:
            return False  # the command has closed its git directory, or there is no room: then it waits
    return True


def _is_moved_since(top: int, tree: str, git: str, began_ns: int) -> bool:
    """Return True if the HEAD of a work tree may say something else than when a command began."""
    places = [join(tree, "HEAD"), join(tree, "logs/HEAD")]
    for each in dict.fromkeys((tree, git)):
        places += (join(each, name) for name in (_branch(top, places[0]), "packed-refs", _TABLES) if name)
    statuses = (_status(top, each) for each in places)
    return any(status is not None and c.may_be_later(status.st_ctime_ns, began_ns) for status in statuses)


def freshen_object(top: int, path: str) -> None:
    """Let an object count as needed from now on, as git does where it would write one that is there."""
    parent, name = split(path)
    with Closing(open_below(top, parent)) as directory:
        try:
            os.utime(name, dir_fd=directory, follow_symlinks=False)
        except PermissionError:
            return  # somebody else's, so it is in no run of ours


def keep_objects_in_use(roots: Sequence[str], changes: Sequence[c.Change], began_ns: int) -> None:
    """Let objects stay that a run would remove, where a ref, or an index that names one, was written since it began."""
    for (root, git), group in _by_repository(roots, changes, git_directories(roots, changes)).items():
        going = [each for each in group if each.change == c.DELETED and each.verdict == c.APPLIED] if git else []
        if not going:
            continue
        with Closing(open_top(roots[root])) as top:
            written = [
                path for path, status, is_cache in _naming_objects(top, _inside(roots[root], git))
                if status.st_mtime_ns > began_ns and (_is_index(path) or not is_cache)
            ]  # fmt: skip
        if _is_any_needed(roots, changes, root, written):
            for change in going:
                change.verdict, change.reason = c.DISCARDED, "it may be needed since"


def without_objects_in_use(
    roots: Sequence[str], changes: Sequence[c.Change], noted: Refs, moved: Callable[[Sequence[c.Change]], list[str]],
    waiting: Callable[[], Container[str]],
) -> list[c.Change]:  # fmt: skip
    """Leave out, of what takes a run back, objects that somebody may have built on since, and later notes.

    Nobody misses an object that stays, and a repository that lacks one is broken: they stay where a ref, or an index
    that names one, is not as it was `noted` before they came, where one was touched, or where a later run is held in
    that repository: these are the ones that wait. `moved` returns which paths are no longer what the run left.
    """
    taken: set[int] = set()
    gits = git_directories(roots, changes)
    for (root, git), group in _by_repository(roots, changes, gits).items():
        own = [each for each in changes if git and repository_of(f"{roots[each.root]}/{each.path}", gits) == git]
        if git and (
            moved(group) or moved(own) or git in waiting()
            or _is_any_needed(roots, changes, root, _written_since_noted(roots, root, git, noted)) or _is_lent(git)
        ):  # fmt: skip
            # What git makes of its objects is not brought back beside others.
            objects = [each for each in group if each.change == c.ADDED and not is_object_list(each.path)]
            taken.update(map(id, _not_there(c.detach_from_missing(objects), moved)))
        else:
            taken.update(map(id, _not_there(group, moved)))
    return [change for change in changes if id(change) in taken or not _is_apart(roots, change, gits)]


def _by_repository(
    roots: Sequence[str], changes: Sequence[c.Change], gits: Collection[str]
) -> dict[tuple[int, str], list[c.Change]]:
    """Return objects by their root and git directory, and notes by none."""
    groups: dict[tuple[int, str], list[c.Change]] = {}
    for change in changes:
        if _is_apart(roots, change, gits):
            git = object_store_of(f"{roots[change.root]}/{change.path}", gits)
            groups.setdefault((change.root, git), []).append(change)
    return groups


def _not_there(group: list[c.Change], moved: Callable[[Sequence[c.Change]], list[str]]) -> list[c.Change]:
    """Leave out what lies there in another version; in a directory that does, each is looked at by itself."""
    while others := set(moved(group)):
        group = c.detach_from_missing([each for each in group if each.path not in others])
    return group


def _written_since_noted(roots: Sequence[str], root: int, git: str, noted: Refs) -> list[str]:
    """Return what names objects in a repository and is not as it was noted, less the logs of HEADs.

    These say where a HEAD was, and name no object that must be there.
    """
    others = (path for path, says in digest_refs(roots[root], git).items() if noted.get((root, path)) != says)
    return [path for path in others if "refs/" in path or not path.endswith("logs/HEAD")]


def _is_any_needed(roots: Sequence[str], changes: Sequence[c.Change], root: int, written: Sequence[str]) -> bool:
    """Return True if any of what others have written names an object that goes, as far as that can be told.

    Of indexes, it can.
    """
    paths = {each.path for each in changes if each.root == root}
    others = [path for path in written if path not in paths]
    indexes = list(filter(_is_index, others))
    if len(indexes) < len(others):
        return True
    names = _names(each.path for each in changes if each.root == root and each.change == c.DELETED)
    with Closing(open_top(roots[root])) as top:
        return _have_any(top, indexes, names)


def _is_lent(git: str) -> bool:
    """Return True if another repository borrows this one's objects (`git clone --shared`), where that can be seen.

    Nothing in the lender tells of it, so those beside it are asked, and those at the top of its work tree.
    """
    own, tree = os.path.realpath(f"{git}/objects"), os.path.dirname(git)
    for place in dict.fromkeys((tree, os.path.dirname(tree))):
        try:
            names = os.listdir(place)[:_MOST_BESIDE]
        except OSError:
            continue  # closed to us, so nobody in it can be asked
        with Closing(open_top(place)) as top:
            for objects in (f"{name}/{inner}" for name in names for inner in (".git/objects", "objects")):
                lines = (plain_file(f"{objects}/info/alternates", top) or b"").splitlines()
                lenders = (os.path.join(place, objects, os.fsdecode(line)) for line in lines if b"\0" not in line)
                if any(os.path.realpath(lender) == own for lender in lenders):
                    return True
    return False


def _is_index(path: str) -> bool:
    return split(path)[1] == INDEX and "refs/" not in path


def _names(paths: Iterable[str]) -> frozenset[bytes]:
    """Return the names of loose objects as an index has them; for a pack or another store, what every index has."""
    names = set()
    for path in paths:
        directory, _, name = path.rpartition("/")
        if directory.endswith("objects/pack") or "/lfs/" in path or "/annex/objects/" in path:
            return frozenset((b"",))
        try:
            names.add(bytes.fromhex(directory[-2:] + name))
        except ValueError:
            continue  # a directory, or no object: no index can name it
    return frozenset(name for name in names if len(name) in _LENGTHS)


def _have_any(top: int, indexes: Sequence[str], names: Collection[bytes]) -> bool:
    """Return True if some indexes have any of some names, or one can't be read whole, or they are too many to read."""
    if len(indexes) > _MOST_INDEXES:
        return True
    for path in indexes:
        content = plain_file(path, top, LARGEST)
        if content is None or len(content) == LARGEST or b"" in names or names_any_object(content, names):
            return True
    return False


# ---- What names objects. No clock tells whether somebody has built on those of a run, but this does: what was there
# before they came, and says the same now, needs none of them.


def changed_repositories(roots: Sequence[str], changes: Sequence[c.Change]) -> set[tuple[int, str]]:
    """Return the git directories, each with its root, that some changes are made in, unless these move with them."""
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
    """Return a digest of each ref and HEAD, and what tells versions of an index, a log or a list apart.

    Those that vanish meanwhile are left out: `git gc` packs them.
    """
    refs = {}
    with Closing(open_top(root)) as top:
        for path, status, is_cache in _naming_objects(top, _inside(root, git)):
            try:
                refs[path] = _version(top, path, status, is_cache=is_cache)
            except (FileNotFoundError, NotADirectoryError):
                continue
    return refs


def _version(top: int, path: str, status: os.stat_result, *, is_cache: bool) -> bytes:
    """Return what tells a version of what names objects from another: of a long one, its size and time."""
    if is_cache or status.st_size > _LONGEST_REFS:
        return f"{status.st_size} {status.st_mtime_ns}".encode()
    import hashlib

    return hashlib.blake2b(_content(top, path, status), digest_size=16).digest()


def _content(top: int, path: str, status: os.stat_result) -> bytes:
    """Return what a ref says; one may be a link to another."""
    parent, name = split(path)
    with Closing(open_below(top, parent)) as directory:
        if stat.S_ISLNK(status.st_mode):
            return os.fsencode(os.readlink(name, dir_fd=directory))
        if not stat.S_ISREG(status.st_mode):
            return b""
        with open(os.open(name, _READING, dir_fd=directory), "rb") as file:
            return file.read(_LONGEST_REFS)


def _inside(root: str, git: str) -> str:
    """Return a git directory's path in its root, which may be the root itself."""
    return git[len(root) + 1 :]


def _naming_objects(top: int, git: str) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Yield the refs and HEADs of a repository; as what can be made again, indexes, logs of HEADs, and its lists."""
    for tree in (git, *_work_trees(top, git)):
        names = [name for name in _listed(top, tree) if name == "packed-refs" or name.endswith("HEAD")]
        for name in (*names, _TABLES, INDEX, "logs/HEAD"):
            status = _status(top, join(tree, name))
            if status is not None and not stat.S_ISDIR(status.st_mode):
                yield join(tree, name), status, name in (INDEX, "logs/HEAD")
        for name in ("refs", "objects/info", "objects/pack"):
            if not _listed(top, join(tree, name)):
                continue
            for path, status in walk(top, join(tree, name)):
                if not stat.S_ISDIR(status.st_mode) and (name == "refs" or is_object_list(path)):
                    yield path, status, name != "refs"


def heads_moved_since(roots: Sequence[str], changes: Sequence[c.Change], noted: Refs) -> list[tuple[int, str]]:
    """Return the HEADs that moved on since they were `noted`, so that an undo would tear them from what it changes.

    An index that goes back alone, below a later commit, has the opposite of that commit staged. A branch that goes
    back alone has whoever checked it out since on another commit, or on none.
    """
    moved: list[tuple[int, str]] = []
    paths = {(change.root, change.path) for change in changes}
    for root, place in sorted(changed_repositories(roots, changes)):
        git = _inside(roots[root], place)
        if (root, join(git, "HEAD")) not in noted:
            continue  # that was before HEADs were noted
        with Closing(open_top(roots[root])) as top:
            for tree in (git, *_work_trees(top, git)):
                head, log, index = (join(tree, name) for name in ("HEAD", "logs/HEAD", INDEX))
                tables = [join(each, _TABLES) for each in dict.fromkeys((tree, git))]
                is_index_alone = (root, index) in paths and not any((root, each) in paths for each in (log, *tables))
                others = [each for each in tables if _is_another(top, each, noted.get((root, each)))]
                if _is_another(top, log, noted.get((root, log)), is_cache=True):
                    others.append(log)
                if is_index_alone and others:
                    moved.append((root, others[0]))
                    continue
                is_moved = (root, head) not in paths and _is_another(top, head, noted.get((root, head)))
                if is_moved and (is_index_alone or (root, join(git, _branch(top, head))) in paths):
                    moved.append((root, head))
    return moved


def _is_another(top: int, path: str, noted: bytes | None, *, is_cache: bool = False) -> bool:
    status = _status(top, path)
    if status is None or stat.S_ISDIR(status.st_mode):
        return noted is not None
    return noted != _version(top, path, status, is_cache=is_cache)


def _work_trees(top: int, git: str) -> list[str]:
    return [join(git, f"worktrees/{name}") for name in _listed(top, join(git, "worktrees"))]


def keep_unseen_work_trees(roots: Sequence[str], changes: Sequence[c.Change]) -> None:
    """Let git go on knowing a linked work tree that it took for removed, because no command sees where it lies.

    What it would remove of that repository's objects stays too: the work tree may need them.
    """
    kept: dict[tuple[int, str], str] = {}
    gits: set[str] = set()
    for change in changes:
        if change.change != c.DELETED or not change.path.endswith("/gitdir"):
            continue
        root, top = roots[change.root], change.within or change.path
        git, kind, *_ = f"{root}/{change.path}".rsplit("/", 3)
        # Where more than that goes, it is not git that prunes.
        if kind == "worktrees" and f"{root}/{top}/".startswith(f"{git}/{kind}/"):
            tree = _work_tree(root, root, change.path)
            if os.path.lexists(tree) and not is_in(tree, roots):
                kept[change.root, top] = f"its work tree is there, out of the command's sight: {os.path.dirname(tree)}"
                gits.add(git)
    for change in changes if kept else ():
        if change.change == c.DELETED and change.verdict in (c.APPLIED, c.HELD):
            why = kept.get((change.root, change.within or change.path), "")
            if object_store_of(f"{roots[change.root]}/{change.path}", gits) in gits:
                why = "a work tree that is out of the command's sight may need it"
            if why:
                change.verdict, change.reason = c.DISCARDED, why


def drop_lost_work_trees(roots: Sequence[str], changes: Sequence[c.Change], uppers: Sequence[str], home: str) -> None:
    """Leave out what git notes of a new work tree that went with the home that a command has for itself."""
    new = {(change.root, change.path) for change in changes if change.change == c.ADDED}
    lost: dict[tuple[int, str], str] = {}
    for change in changes:
        room, name = split(change.path)
        if name == "gitdir" and split(split(room)[0])[1] == "worktrees" and (change.root, room) in new:
            tree = os.path.dirname(_work_tree(roots[change.root], uppers[change.root], change.path))
            if is_below(tree, home) and not is_in(tree, roots) and not os.path.lexists(tree):
                lost[change.root, room] = f"its work tree is not kept: {tree}"
    for change in changes if lost else ():
        why = lost.get((change.root, change.path)) or next(
            (lost[change.root, each] for each in c.directories_above(change.path) if (change.root, each) in lost), ""
        )
        if why:
            change.verdict, change.reason = c.DISCARDED, why


def _work_tree(root: str, top: str, path: str) -> str:
    """Return what a file of git's says of where the .git of a linked work tree is; it lies below a top."""
    with Closing(open_top(top)) as directory:
        line = os.fsdecode(plain_file(path, directory) or b"").rstrip("\n")
    return os.path.normpath(os.path.join(root, os.path.dirname(path), line))


def _branch(top: int, head: str) -> str:
    text = os.fsdecode(plain_file(head, top, _LONGEST_HEAD) or b"")  # where it is no file, git can't follow it either
    return text.removeprefix("ref:").strip() if text.startswith("ref:") else ""


def _listed(top: int, path: str) -> list[str]:
    """Return what is in a directory; nothing where there is none."""
    status = _status(top, path) if path else os.stat(top)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return []
    try:
        with Closing(open_below(top, path, LISTING)) as directory:
            return os.listdir(directory)
    except FileNotFoundError:
        return []  # since just now


def _status(top: int, path: str) -> os.stat_result | None:
    parent, name = split(path)
    try:
        with Closing(open_below(top, parent)) as directory:
            return stat_entry(directory, name)
    except (FileNotFoundError, NotADirectoryError):
        return None


# Whether the project had a repository where a command left something of one.
# Each is told from the others' being there too: one that a run takes away must not make the next run's "new".
_PARTS = ("HEAD", "config", "objects", "refs")
_CONFIGS = ("config", "config.worktree")


def had_repository(live: DirectoryCache, root: str, path: str) -> bool:
    """Return True if the git directory that a path belongs to was there before; `live` is the project's own side.

    So it was where files of another repository lie: one put among them takes them over.
    """
    parts = path.split("/")
    lower = [part.lower() for part in parts]
    # Each directory that may be the git directory of a `.git`, a configuration or an old-style remote.
    directories = [path] if is_dot_git(lower[-1]) else []
    if lower[-1] in _CONFIGS:
        directories.append("/".join(parts[:-1]))
        if lower[-3:-2] == ["worktrees"]:
            directories.append("/".join(parts[:-3]))  # a work tree, new or not, is of the repository that it lies in
    directories += ["/".join(parts[:at]) for at, part in enumerate(lower[:-1]) if part in ("remotes", "branches")]
    return any(_was_repository(live, root, directory) for directory in directories)


def _was_repository(live: DirectoryCache, root: str, directory: str) -> bool:
    parent, _, name = directory.rpartition("/")
    try:
        if not is_dot_git(name.lower()):
            inside = live.get(directory)
            return any(stat_entry(inside, part) is not None for part in _PARTS)
        return stat_entry(live.get(parent), name) is not None or _belongs_elsewhere(live, root, parent)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # a link stood above, or it may not be looked at


def _belongs_elsewhere(live: DirectoryCache, root: str, directory: str) -> bool:
    """Return True if a directory without a `.git` had something in it that a repository further up has."""
    with Closing(open_below(live.top, directory, LISTING)) as listing:
        if not os.listdir(listing):
            return False
    names = directory.split("/") if directory else []
    inside = ("/".join(names[:end]) for end in range(len(names)))
    if any(stat_entry(live.get(above), ".git") is not None for above in inside):
        return True
    above_root = root.rstrip("/").split("/")[:-1]
    return any(os.path.lexists("/".join([*above_root[:end], ".git"])) for end in range(1, len(above_root) + 1))
