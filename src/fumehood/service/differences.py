"""What a run changed, path by path, as unified diffs with headers in git's style.

Nothing is kept for this: an apply leaves the old version in the layer's slot and the new one in the
project, an undo the other way round, and what a later run took out of the project lies in its layer.
Each version is known by its stamp, so the right one is found wherever it is, or it is said to be gone.

Who wrote each line of a file: the runs that changed it, one after the other, and whoever changed it between them.
"""

from __future__ import annotations

import errno
import os
import stat

from fumehood.core import changes as c
from fumehood.core.edits import equal_lines, hunks, quote_path
from fumehood.core.judge import object_store_of
from fumehood.core.masks import is_in, make_masks, paths_inside
from fumehood.core.report import Run, printable, show_command
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.cache import plain_file
from fumehood.linux.libc import Closable, Closing
from fumehood.linux.nofollow import open_below, open_top, stamp_of
from fumehood.service.held import trees
from fumehood.service.restore import versions
from fumehood.service.settle import changes_at
from fumehood.store.files import Files
from fumehood.store.places import home
from fumehood.store.search import change_at, later_runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fumehood.core.changes import Change
    from fumehood.core.policy import Policy
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

    Reader = Callable[[int, c.Stamp], "_Version"]


LONGEST = 1 << 20  # bytes of a file that is still shown
MOST_LINES = 20_000
MOST_TEXT = 32 << 20  # characters of all texts together, where all are kept in memory
_BEGINNING = 8192  # bytes in which a NUL tells that a long file is binary
_MOST_OPEN = 64  # directories
_WITH_CONTENT = (c.FILE, c.SYMLINK)
_OWN = ("user.", "system.posix_acl_")  # attributes that a command may give, and that are applied
_CHANGED_SINCE = "changed since; shown against what is there now"


class Difference(Value):
    """What a run did to one path; `shown` is false where the text only says what is not shown, and why."""

    path: str
    root: str
    change: str
    kind: str
    text: str
    binary: bool
    shown: bool

    @property
    def line_counts(self) -> tuple[int, int]:
        """How many lines were added and removed; none where the text is not shown."""
        counts, is_in_hunk = {"+": 0, "-": 0}, False
        for line in self.text.split("\n"):
            if line.startswith(("@@", "diff ")):
                is_in_hunk = line.startswith("@@")
            elif is_in_hunk and line[:1] in counts:
                counts[line[0]] += 1
        return counts["+"], counts["-"]


def differences(
    store: Store, run: Run, paths: Sequence[str] = (), *, here: str = "", hidden_by: Policy | None = None
) -> list[Difference]:
    """Return what a run changed; where that is too much for memory, the later texts are left out and say so."""
    shown = []
    room = MOST_TEXT
    for each in each_difference(store, run, paths, here=here, hidden_by=hidden_by):
        room -= len(each.text)
        if room < 0:
            text = f"not shown: {quote_path(each.path)}: the other differences are long already; ask for this path\n"
            each = each.replace(text=text, shown=False)  # noqa: PLW2901
        shown.append(each)
    return shown


def each_difference(
    store: Store, run: Run, paths: Sequence[str] = (), *, here: str = "", hidden_by: Policy | None = None
) -> Iterator[Difference]:
    """Yield what a run changed, one path at a time, so that memory stays bounded however much it is.

    With a policy, it is for an agent: of a file that its commands don't see, nothing is shown here either.
    """
    wanted = changes_at(run, paths, here=here)
    hidden: set[str] = set()
    if hidden_by is not None:
        masked = make_masks((home(),), (), hidden_by.mask, hidden_by.unmask, root=os.geteuid() == 0)
        paths_in_roots = (f"{root}/{name}" for root in run.roots for name in masked.in_roots)
        # Of a link that is masked, it is where that leads.
        hidden = set(paths_inside(map(os.path.realpath, (*masked.hidden, *paths_in_roots)), run.roots))
    with _Versions(store, run) as versions:
        for change in wanted:
            above, _, name = f"{run.roots[change.root]}/{change.path}".rpartition("/")
            if hidden and is_in(f"{os.path.realpath(above)}/{name}", hidden):
                text = f"not shown: {quote_path(change.path)}: it is hidden from commands\n"
                yield Difference(
                    path=change.path, root=run.roots[change.root], change=change.change, kind=change.kind, text=text,
                    binary=False, shown=False,
                )  # fmt: skip
            else:
                yield _difference(run, change, versions)


def difference_of(store: Store, run: Run, change: c.Change) -> Difference:
    """Return what a run did to one path."""
    with _Versions(store, run) as versions:
        return _difference(run, change, versions)


def opened_versions(
    store: Store, run: Run, changes: Sequence[c.Change], *, before: bool = False
) -> Iterator[tuple[c.Change, bytes | int | None]]:
    """Yield changes with what the run left, or what was there before it.

    That is a file that is open until the next one, what a link says, or nothing.
    """
    with _Versions(store, run, _opened) as versions:
        for change in changes:
            version = versions.old(change) if before else versions.new(change)
            if version.has_content and version.file < 0 and version.data is None:
                raise BadRequest(f"{printable(change.path)}: {version.why}", hint=show_command(run))
            if version.file < 0:
                yield change, version.data if version.kind == c.SYMLINK else None
                continue
            with Closing(version.file) as file:
                yield change, file


def contents(store: Store, run: Run, change: c.Change) -> tuple[bytes, bytes]:
    """Return what was at a path before a run, and what the run left, as bytes; empty where it is absent or gone."""
    with _Versions(store, run, _bytes_of) as versions:
        return versions.old(change).data or b"", versions.new(change).data or b""


def three_versions(store: Store, run: Run, change: c.Change) -> tuple[bytes | None, bytes, bytes]:
    """Return what a change that waits was made from, None if that is gone, what the project has, what the run wrote."""
    with _Versions(store, run, _bytes_of) as versions:
        base = versions.base(change).data
        return base, versions.old(change).data or b"", versions.new(change).data or b""


def _difference(run: Run, change: c.Change, versions: _Versions) -> Difference:
    root = run.roots[change.root]
    # With its whole path, what is outside the project can't be taken for something in it.
    name = change.path if change.root == 0 else f"{root[1:]}/{change.path}"
    old, new = change.before, change.after
    if change.change == c.MODE and old is not None and new is not None:
        modes = mode_lines(old, new)
        parts = [_Part(text="".join([*_mode_note(name, old, new), *([header(name), *modes] if modes else [])]))]
    elif change.change == c.TYPE:
        parts = [_part(name, versions.old(change), _ABSENT), _part(name, _ABSENT, versions.new(change))]
    else:
        parts = [_part(name, versions.old(change), versions.new(change))]
    return Difference(
        path=change.path, root=root, change=change.change, kind=change.kind,
        text="".join(part.text for part in parts), binary=any(part.binary for part in parts),
        shown=all(part.shown for part in parts),
    )  # fmt: skip


class _Version(Value):
    """One version of a path: its stamp, none where it is absent, and its content, none where `why` says why not."""

    stamp: c.Stamp | None
    data: bytes | None = b""
    why: str = ""
    note: str = ""
    file: int = -1  # where it is opened instead of read
    attributes: Mapping[str, bytes] | None = None  # a file's own, and who else may use it; of others, nothing is known

    @property
    def kind(self) -> str:
        return c.ABSENT if self.stamp is None else self.stamp.kind

    @property
    def has_content(self) -> bool:
        return self.kind in _WITH_CONTENT


_ABSENT = _Version(stamp=None)


class _Versions(Closable):
    """Where the versions of a run's paths lie, for a `with` block."""

    def __init__(self, store: Store, run: Run, read: Reader | None = None) -> None:
        self._store = store
        self._run = run
        self._read = read or _text_of
        self._slots = _slots(store, run)
        self._below = trees(store, run.below, run.roots)
        # Later runs: their slots, and what they took out of the project.
        self._later: dict[str, tuple[Sequence[str], dict[tuple[str, str], c.Change]]] = {}
        self._unread: dict[str, Iterator[str]] = {}  # by directory, later runs that changed something in it
        self._tops: dict[str, int] = {}

    def close(self) -> None:
        """Let go of the directories; the next one is opened again."""
        for top in self._tops.values():
            os.close(top)
        self._tops.clear()

    def old(self, change: c.Change) -> _Version:
        """Return what was there before the run; for a change that waits, what is there now counts."""
        before, what = change.before, "what was there before"
        for top in self._below[change.root] if before is not None else ():
            try:
                held = _read(self._top(top), change.path, before, self._read)
            except OSError:
                continue  # not there, or a symlink on the way
            if held is not None:
                return held  # by an earlier run, and the change was built on that
        if change.verdict in c.WAITING and (before is None or before.kind in _WITH_CONTENT):
            return self._now(change, before) or (_ABSENT if before is None else _gone(before, what))
        return self._version(change, before, in_slot=self._stands(change), what=what)

    def base(self, change: c.Change) -> _Version:
        """Return what a change that waits was made from, wherever it still lies."""
        what = "the version that the run began with"
        return self._version(change, change.before, in_slot=True, what=what)

    def new(self, change: c.Change) -> _Version:
        """Return what the run left."""
        return self._version(change, change.after, in_slot=not self._stands(change), what="what the run wrote")

    def _stands(self, change: c.Change) -> bool:
        """Return True if the project has the run's version, or had it last: then the slot has the old one."""
        return change.verdict == c.APPLIED and self._run.state != "undone"

    def _version(self, change: c.Change, stamp: c.Stamp | None, *, in_slot: bool, what: str) -> _Version:
        if stamp is None:
            return _ABSENT
        if stamp.kind not in _WITH_CONTENT:
            return _Version(stamp=stamp)  # all there is to know
        denied = False
        for top in self._places(change, stamp, in_slot=in_slot):
            try:
                version = _read(self._top(top), change.path, stamp, self._read)
            except PermissionError:
                denied = True
            except OSError:
                continue  # not there, or a symlink on the way
            else:
                if version is not None:
                    return version
        if denied:
            return _Version(stamp=stamp, data=None, why="it can't be read: permission denied")
        now = None if in_slot else self._now(change, stamp)
        # Of another kind, it is no later version of this.
        return now if now is not None and now.kind == stamp.kind else _gone(stamp, what)

    def _places(self, change: c.Change, stamp: c.Stamp, *, in_slot: bool) -> Iterator[str]:
        """Yield the directories in which a version may lie, the likeliest first."""
        root = self._run.roots[change.root]
        if not in_slot:
            yield root
            yield from self._taken_out(root, change.path, stamp)
        for slot in self._slots[change.root : change.root + 1]:
            yield f"{os.path.dirname(slot)}/held"  # what waits for a person
            yield slot
        if in_slot:
            yield root
            yield from self._taken_out(root, change.path, stamp)

    def _taken_out(self, root: str, path: str, stamp: c.Stamp) -> Iterator[str]:
        """Yield the layers into which later runs moved a version out of the project."""
        # Runs already known come first: asking for each path of a big tree would take minutes.
        for name in self._later:
            yield from self._slot_of(name, root, path, stamp)
        directory = path.rpartition("/")[0]
        if directory not in self._unread:
            self._unread[directory] = iter(later_runs(self._store.database, self._run.run, directory))
        for name in self._unread[directory]:
            if name not in self._later:
                run = self._store.history.find(name)
                self._later[name] = _slots(self._store, run), {
                    (run.roots[each.root], each.path): each for each in run.changed
                    if each.verdict == c.APPLIED and each.before is not None
                }  # fmt: skip
                yield from self._slot_of(name, root, path, stamp)

    def _slot_of(self, later: str, root: str, path: str, stamp: c.Stamp) -> Sequence[str]:
        """Return the layer that a version went into, if it went into this later run's."""
        slots, taken_out = self._later[later]
        change = taken_out.get((root, path))
        if change is None or not stamp.same(change.before):
            return ()
        return slots[change.root : change.root + 1]

    def _now(self, change: c.Change, expected: c.Stamp | None) -> _Version | None:
        """Return what the project has at a path now, noting where that is not what the record says."""
        try:
            version = _read(self._top(self._run.roots[change.root]), change.path, None, self._read)
        except OSError:
            return None
        if version is None or version.stamp is None or not version.has_content:
            return None
        is_expected = expected is not None and expected.is_same_or_copy(version.stamp)
        return version if is_expected else version.replace(note=_CHANGED_SINCE)

    def _top(self, path: str) -> int:
        if path not in self._tops:
            if len(self._tops) >= _MOST_OPEN:
                self.close()
            self._tops[path] = open_top(path)
        return self._tops[path]


def _slots(store: Store, run: Run) -> Sequence[str]:
    """The upper directories of a run's layers; none where they were removed by `clean`."""
    return store.uppers(run) if run.layer else ()


def _gone(stamp: c.Stamp, what: str) -> _Version:
    return _Version(stamp=stamp, data=None, why=f"{what} is no longer kept")


def _read(top: int, path: str, wanted: c.Stamp | None, read: Reader) -> _Version | None:
    """Read what lies at a path, or None where it is not the wanted version; follows nothing, waits for nothing."""
    with Closing(open_below(top, path, os.O_PATH | os.O_NOFOLLOW)) as entry:
        stamp = stamp_of(os.fstat(entry))
        if wanted is not None and not wanted.is_same_or_copy(stamp):
            return None
        if stamp.kind == c.SYMLINK:
            return _Version(stamp=stamp, data=os.fsencode(os.readlink("", dir_fd=entry)))
        if stamp.kind != c.FILE:
            return _Version(stamp=stamp)
        # The very file that was looked at, whatever has taken its place.
        with Closing(os.open(f"/proc/self/fd/{entry}", os.O_RDONLY | os.O_CLOEXEC)) as file:
            return read(file, stamp).replace(attributes=_attributes(file))


def _attributes(file: int) -> dict[str, bytes]:
    try:
        names = [name for name in os.listxattr(file) if name.startswith(_OWN)]
        names = [name for name in names if not name.startswith(c.OVERLAY_PREFIXES)]
        return {name: os.getxattr(file, name) for name in names}
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENODATA):
            raise
        return {}  # the file system has none, or somebody has just removed one


def _text_of(file: int, stamp: c.Stamp) -> _Version:
    """Read a version to be compared line by line."""
    version = _bytes_of(file, stamp)
    data = version.data or b""
    if b"\0" in (data or os.pread(file, _BEGINNING, 0)):
        return _Version(stamp=stamp, data=None, why="binary")
    if data.count(b"\n") > MOST_LINES:
        return _Version(stamp=stamp, data=None, why=f"more than {MOST_LINES:,} lines")
    return version


def _bytes_of(file: int, stamp: c.Stamp) -> _Version:
    if stamp.size > LONGEST:
        return _Version(stamp=stamp, data=None, why=f"longer than {LONGEST >> 20} MiB")
    pieces: list[bytes] = []
    left = stamp.size
    while left and (piece := os.read(file, left)):
        pieces.append(piece)
        left -= len(piece)
    return _Version(stamp=stamp, data=b"".join(pieces))


def _opened(file: int, stamp: c.Stamp) -> _Version:
    return _Version(stamp=stamp, data=None, file=os.dup(file))


class _Part(Value):
    """The text for one path and one kind of entry."""

    text: str
    binary: bool = False
    shown: bool = True


def _part(name: str, old: _Version, new: _Version) -> _Part:
    """Write how one version becomes another; where kinds differ, one of them is absent."""
    if not old.has_content and not new.has_content:
        return _Part(text=_other(name, old, new))
    modes = mode_lines(old.stamp, new.stamp)
    notes = [f"{note}: {quote_path(name)}\n" for note in dict.fromkeys((old.note, new.note)) if note]
    notes += _mode_note(name, old.stamp, new.stamp)
    notes += _attribute_note(name, old, new)
    unshown = [version.why for version in (old, new) if version.data is None]
    is_alike = old.data == new.data and old.stamp is not None and new.stamp is not None
    if not is_alike and object_store_of(f"/{name}"):
        unshown.append("binary")  # though some have no NUL
    if unshown:
        is_binary = "binary" in unshown
        why = "binary" if is_binary else unshown[0]
        # What is left out is not begun like a patch: a program that takes it for one would make an empty file of it.
        # Of git's words for a binary file, git itself says that it can't.
        begun = [*modes, *_sides(name, old, new)]
        if is_binary:
            both = zip((old, new), ("a/", "b/"), strict=True)
            was, now = ("/dev/null" if each.stamp is None else quote_path(side + name) for each, side in both)
            begun = [header(name), *modes, f"Binary files {was} and {now} differ\n"]
        text = "".join([*notes, *begun, f"not shown: {why} ({_sizes(old, new)})\n"])
        return _Part(text=text, binary=is_binary, shown=False)
    if is_alike and not modes and not notes:
        return _Part(text=f"touched: {quote_path(name)} (its content is the same)\n")
    lines = list(hunks(*((version.data or b"").decode(errors="surrogateescape") for version in (old, new))))
    sides = _sides(name, old, new) if lines else []
    begun = [header(name), *modes, *sides, *lines] if lines or modes else []
    return _Part(text="".join([*notes, *begun]))


def _other(name: str, old: _Version, new: _Version) -> str:
    """Write what there is to say of a directory, or of something that has no content."""
    act = "changed" if old.stamp and new.stamp else "new" if new.stamp else "deleted"
    stamp = new.stamp or old.stamp
    if stamp is None:
        return ""
    slash = "/" if stamp.kind == c.DIRECTORY else ""
    return f"{act} {stamp.kind} {quote_path(name + slash)} (mode {stamp.mode:04o})\n"


def header(name: str) -> str:
    """Write the line that begins a file's part of a patch, as git does."""
    return f"diff --git {quote_path(f'a/{name}')} {quote_path(f'b/{name}')}\n"


def _mode_note(name: str, old: c.Stamp | None, new: c.Stamp | None) -> list[str]:
    """Say how a mode changed where git's own lines can't."""
    if old is None or new is None or old.mode == new.mode or {old.mode, new.mode} == {0o644, 0o755}:
        return []
    slash = "/" if new.kind == c.DIRECTORY else ""
    return [f"mode {old.mode:04o} → {new.mode:04o}: {quote_path(name + slash)}\n"]


def _attribute_note(name: str, old: _Version, new: _Version) -> list[str]:
    """Name the attributes that changed: a patch has none of them."""
    was, now = old.attributes, new.attributes
    if was is None or now is None:
        return []
    other = sorted(each for each in was.keys() | now.keys() if was.get(each) != now.get(each))
    return [f"attributes changed: {quote_path(name)} ({', '.join(map(quote_path, other))})\n"] if other else []


def mode_lines(old: c.Stamp | None, new: c.Stamp | None) -> list[str]:
    """Write git's lines about modes: of a file it knows only whether it can be executed."""
    was, now = (None if stamp is None else git_mode(stamp) for stamp in (old, new))
    if was is None or now is None:
        return [f"new file mode {now}\n" if was is None else f"deleted file mode {was}\n"]
    return [] if was == now else [f"old mode {was}\n", f"new mode {now}\n"]


def git_mode(stamp: c.Stamp) -> str:
    """Return the mode that git has for a version."""
    if stamp.kind == c.SYMLINK:
        return "120000"
    return "100755" if stamp.kind == c.FILE and stamp.mode & stat.S_IXUSR else "100644"


def _sides(name: str, old: _Version, new: _Version) -> list[str]:
    """Write the two lines that name the versions; as git does, a tab ends a name with a space in it."""
    end = "\t\n" if " " in name else "\n"
    return [
        f"{sign} /dev/null\n" if version.stamp is None else f"{sign} {quote_path(side + name)}{end}"
        for sign, side, version in (("---", "a/", old), ("+++", "b/", new))
    ]


def _sizes(old: _Version, new: _Version) -> str:
    sizes = [version.stamp.size for version in (old, new) if version.stamp is not None]
    named = [f"{size:,} byte{'' if size == 1 else 's'}" for size in sizes]
    return f"{named[0]} before, {named[1]} after" if len(named) > 1 else "".join(named)


_MOST_RUNS = 100  # of one file, the latest


class FileChange(Value):
    """What one run did to a file."""

    run: Run
    change: Change


def changes_of(store: Store, project: Project, root: str, path: str) -> list[FileChange]:
    """Return what runs did to a file, and have not taken back, the latest first."""
    pasts = Files(store.database).past_changes(project.id, root, path)[:_MOST_RUNS]
    runs = {run.run: run for run in store.history.runs(among=[past.run for past in pasts])}
    changed = []
    for past in pasts:
        change = change_at(store.database, past.run, past.change.root, path)
        if change is not None and past.run in runs:
            changed.append(FileChange(run=runs[past.run], change=change))
    return changed


def content_of(store: Store, project: Project, root: str, path: str, source: str = "") -> bytes | None:
    """Return what a file holds now, or what its version of a run or day holds; None where there is none."""
    if not source:
        return _text_at(root, path)
    version = next((each for each in versions(store, project, root, path) if each.source == source), None)
    return None if version is None else _text_at(version.top, version.path)


def _text_at(top: str, path: str) -> bytes | None:
    try:
        with Closing(open_top(top)) as directory:
            return plain_file(path, directory, LONGEST + 1)
    except OSError:
        return None  # all of it is gone


def blamed(store: Store, project: Project, root: str, path: str) -> list[tuple[str, Run | None]] | None:
    """Return each line of a file as it is now with the run that wrote it; None: it was there before, or a person did.

    None instead of a list where the file is gone, binary or too long.
    """
    data = _text_at(root, path)
    if data is None or b"\0" in data or len(data) > LONGEST or data.count(b"\n") > MOST_LINES:
        return None
    lines: list[str] = []
    writers: list[Run | None] = []
    for changed in reversed(changes_of(store, project, root, path)):
        # By what it found there, what was changed between the runs is nobody's.
        for text, writer in zip(contents(store, changed.run, changed.change), (None, changed.run), strict=True):
            lines, writers = _next(lines, writers, text, writer)
    lines, writers = _next(lines, writers, data, None)
    return list(zip(lines, writers, strict=True))


def _next(
    lines: list[str], writers: list[Run | None], data: bytes, writer: Run | None
) -> tuple[list[str], list[Run | None]]:
    """Return the lines of the next version, and who wrote each: those that stay keep their writers."""
    new = data.decode("utf-8", "replace").splitlines(keepends=True)
    wrote: list[Run | None] = [writer] * len(new)
    for old_at, new_at, count in equal_lines(lines, new):
        wrote[new_at : new_at + count] = writers[old_at : old_at + count]
    return new, wrote
