"""What a run changed, path by path, as unified diffs with headers in git's style.

Also which run wrote each line of a file, by the runs that changed it, one after the other.
"""

from __future__ import annotations

import os
import stat

from fumehood.core import changes as c
from fumehood.core.judge import object_store_of
from fumehood.core.masks import make_masks
from fumehood.core.paths import is_in, paths_inside
from fumehood.core.report import Run
from fumehood.core.text_diff import equal_lines, hunks, quote_path
from fumehood.core.value import Value
from fumehood.linux.cache import plain_file
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import open_top
from fumehood.service.restore import versions as kept_versions
from fumehood.service.settle import changes_at
from fumehood.service.versions import ABSENT_VERSION, MAX_BYTES, PathVersion, Versions, contents, read_bytes
from fumehood.store.files import Files
from fumehood.store.places import home
from fumehood.store.search import change_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fumehood.core.policy import Policy
    from fumehood.service.store import Store
    from fumehood.store.projects import Project


MAX_TEXT = 32 << 20  # characters of all texts together, where they are all kept in memory
_MAX_LINES = 20_000
_BEGINNING = 8192  # bytes in which a NUL shows that a long file is binary
_MAX_RUNS = 100  # of one file, the latest


class Difference(Value):
    """What a run did to one path, as JSON too; if `shown` is false, the text says only what is not shown, and why."""

    path: str
    root: str
    change: str
    kind: str
    text: str
    binary: bool
    shown: bool

    @property
    def line_counts(self) -> tuple[int, int]:
        """How many lines were added and removed; zeros if the text is not shown."""
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
    """Return what a run changed; if that is too much for memory, the later texts are left out and say so."""
    result = []
    room = MAX_TEXT
    for each in each_difference(store, run, paths, here=here, hidden_by=hidden_by):
        room -= len(each.text)
        if room < 0:
            text = f"not shown: {quote_path(each.path)}: the other differences are long already; ask for this path\n"
            each = each.replace(text=text, shown=False)  # noqa: PLW2901
        result.append(each)
    return result


def each_difference(
    store: Store, run: Run, paths: Sequence[str] = (), *, here: str = "", hidden_by: Policy | None = None
) -> Iterator[Difference]:
    """Yield what a run changed, one path at a time, so that memory stays bounded however much it is.

    With a policy, it is for an agent: nothing is shown of a file that the agent's commands don't see.
    """
    changes = changes_at(run, paths, here=here)
    hidden: set[str] = set()
    if hidden_by is not None:
        masked = make_masks((home(),), (), hidden_by.mask, hidden_by.unmask, as_root=os.geteuid() == 0)
        paths_in_roots = (f"{root}/{name}" for root in run.roots for name in masked.in_roots)
        # A mask of a symlink hides what the symlink leads to.
        hidden = set(paths_inside(map(os.path.realpath, (*masked.hidden, *paths_in_roots)), run.roots))
    with Versions(store, run, _read_lines) as versions:
        for change in changes:
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
    with Versions(store, run, _read_lines) as versions:
        return _difference(run, change, versions)


def _read_lines(fd: int, stamp: c.Stamp) -> PathVersion:
    """Read a version to compare it line by line."""
    version = read_bytes(fd, stamp)
    data = version.data or b""
    if b"\0" in (data or os.pread(fd, _BEGINNING, 0)):
        return PathVersion(stamp=stamp, data=None, why_no_data="binary")
    if data.count(b"\n") > _MAX_LINES:
        return PathVersion(stamp=stamp, data=None, why_no_data=f"more than {_MAX_LINES:,} lines")
    return version


# ---- The text for one path.


def _difference(run: Run, change: c.Change, versions: Versions) -> Difference:
    root = run.roots[change.root]
    # A path outside the project is written from / on, so that it can't be taken for one in the project.
    name = change.path if change.root == 0 else f"{root[1:]}/{change.path}"
    old, new = change.before, change.after
    if change.change == c.MODE and old is not None and new is not None:
        modes = mode_lines(old, new)
        parts = [_Part(text="".join([*_mode_note(name, old, new), *([header(name), *modes] if modes else [])]))]
    elif change.change == c.TYPE:  # git writes this as a deletion and a new file
        parts = [_part(name, versions.old(change), ABSENT_VERSION), _part(name, ABSENT_VERSION, versions.new(change))]
    else:
        parts = [_part(name, versions.old(change), versions.new(change))]
    return Difference(
        path=change.path, root=root, change=change.change, kind=change.kind,
        text="".join(part.text for part in parts), binary=any(part.is_binary for part in parts),
        shown=all(part.is_shown for part in parts),
    )  # fmt: skip


class _Part(Value):
    """The text for one path and one kind of entry."""

    text: str
    is_binary: bool = False
    is_shown: bool = True


def _part(name: str, old: PathVersion, new: PathVersion) -> _Part:
    """Write how one version becomes another of the same kind; one of them may be absent."""
    if not old.has_content and not new.has_content:
        return _Part(text=_note_without_content(name, old, new))
    modes = mode_lines(old.stamp, new.stamp)
    notes = [f"{note}: {quote_path(name)}\n" for note in dict.fromkeys((old.note, new.note)) if note]
    notes += _mode_note(name, old.stamp, new.stamp)
    notes += _attribute_note(name, old, new)
    reasons = [version.why_no_data for version in (old, new) if version.data is None]
    has_same_content = old.data == new.data and old.stamp is not None and new.stamp is not None
    if not has_same_content and object_store_of(f"/{name}"):
        reasons.append("binary")  # git's objects are, even those without a NUL
    if reasons:
        is_binary = "binary" in reasons
        why = "binary" if is_binary else reasons[0]
        # Without the `diff` line that begins a patch: programs that apply patches would make an empty file of it.
        # With git's words for a binary file it may be there: git refuses to apply those.
        lines = [*modes, *_side_lines(name, old, new)]
        if is_binary:
            sides = zip((old, new), ("a/", "b/"), strict=True)
            was, now = ("/dev/null" if each.stamp is None else quote_path(side + name) for each, side in sides)
            lines = [header(name), *modes, f"Binary files {was} and {now} differ\n"]
        text = "".join([*notes, *lines, f"not shown: {why} ({_sizes(old, new)})\n"])
        return _Part(text=text, is_binary=is_binary, is_shown=False)
    if has_same_content and not modes and not notes:
        return _Part(text=f"touched: {quote_path(name)} (its content is the same)\n")
    lines = list(hunks(*((version.data or b"").decode(errors="surrogateescape") for version in (old, new))))
    if lines:
        lines = [*_side_lines(name, old, new), *lines]
    if lines or modes:
        lines = [header(name), *modes, *lines]
    return _Part(text="".join([*notes, *lines]))


def _note_without_content(name: str, old: PathVersion, new: PathVersion) -> str:
    """Describe a change of a directory, or of another entry that has no content."""
    act = "changed" if old.stamp and new.stamp else "new" if new.stamp else "deleted"
    stamp = new.stamp or old.stamp
    if stamp is None:
        return ""
    slash = "/" if stamp.kind == c.DIRECTORY else ""
    return f"{act} {stamp.kind} {quote_path(name + slash)} (mode {stamp.mode:04o})\n"


def header(name: str) -> str:
    """Return the line that begins a file's part of a patch, as git writes it."""
    return f"diff --git {quote_path(f'a/{name}')} {quote_path(f'b/{name}')}\n"


def _mode_note(name: str, old: c.Stamp | None, new: c.Stamp | None) -> list[str]:
    """Describe a change of mode that git's own lines can't express."""
    if old is None or new is None or old.mode == new.mode or {old.mode, new.mode} == {0o644, 0o755}:
        return []
    slash = "/" if new.kind == c.DIRECTORY else ""
    return [f"mode {old.mode:04o} → {new.mode:04o}: {quote_path(name + slash)}\n"]


def _attribute_note(name: str, old: PathVersion, new: PathVersion) -> list[str]:
    """Name the attributes that changed, which a patch can't express."""
    was, now = old.attributes, new.attributes
    if was is None or now is None:
        return []
    names = sorted(each for each in was.keys() | now.keys() if was.get(each) != now.get(each))
    return [f"attributes changed: {quote_path(name)} ({', '.join(map(quote_path, names))})\n"] if names else []


def mode_lines(old: c.Stamp | None, new: c.Stamp | None) -> list[str]:
    """Return git's lines about modes; git knows only whether a file can be executed."""
    was, now = (None if stamp is None else git_mode(stamp) for stamp in (old, new))
    if was is None or now is None:
        return [f"new file mode {now}\n" if was is None else f"deleted file mode {was}\n"]
    return [] if was == now else [f"old mode {was}\n", f"new mode {now}\n"]


def git_mode(stamp: c.Stamp) -> str:
    """Return git's mode for a version."""
    if stamp.kind == c.SYMLINK:
        return "120000"
    return "100755" if stamp.kind == c.FILE and stamp.mode & stat.S_IXUSR else "100644"


def _side_lines(name: str, old: PathVersion, new: PathVersion) -> list[str]:
    """Return the two lines that name the versions; as git does it, a tab ends a name with a space in it."""
    end = "\t\n" if " " in name else "\n"
    return [
        f"{sign} /dev/null\n" if version.stamp is None else f"{sign} {quote_path(side + name)}{end}"
        for sign, side, version in (("---", "a/", old), ("+++", "b/", new))
    ]


def _sizes(old: PathVersion, new: PathVersion) -> str:
    sizes = [version.stamp.size for version in (old, new) if version.stamp is not None]
    texts = [f"{size:,} byte{'' if size == 1 else 's'}" for size in sizes]
    return f"{texts[0]} before, {texts[1]} after" if len(texts) > 1 else "".join(texts)


# ---- The history of one file.


class FileChange(Value):
    """What one run did to a file."""

    run: Run
    change: c.Change


def file_changes(store: Store, project: Project, root: str, path: str) -> list[FileChange]:
    """Return the changes of a file that runs made and that are not taken back, the latest first."""
    pasts = Files(store.database).past_changes(project.id, root, path)[:_MAX_RUNS]
    runs = {run.run: run for run in store.history.runs(among=[past.run for past in pasts])}
    result = []
    for past in pasts:
        change = change_at(store.database, past.run, past.change.root, path)
        if change is not None and past.run in runs:
            result.append(FileChange(run=runs[past.run], change=change))
    return result


def file_content(store: Store, project: Project, root: str, path: str, source: str = "") -> bytes | None:
    """Return what a file holds now, or what its version of a run or day holds; None if there is none.

    One byte too many is read, which shows that the file is too long.
    """
    if not source:
        return _content_at(root, path)
    version = next((each for each in kept_versions(store, project, root, path) if each.source == source), None)
    return None if version is None else _content_at(version.top, version.path)


def _content_at(top: str, path: str) -> bytes | None:
    try:
        with Closing(open_top(top)) as directory:
            return plain_file(path, directory, MAX_BYTES + 1)
    except OSError:
        return None  # the root itself is gone


def lines_with_writers(store: Store, project: Project, root: str, path: str) -> list[tuple[str, Run | None]] | None:
    """Return each line of a file with the run that wrote it, or None if it was there before or a person wrote it.

    Returns None instead of a list if the file is gone, binary or too long.
    """
    data = _content_at(root, path)
    if data is None or b"\0" in data or len(data) > MAX_BYTES or data.count(b"\n") > _MAX_LINES:
        return None
    lines: list[str] = []
    writers: list[Run | None] = []
    for each in reversed(file_changes(store, project, root, path)):
        # What the run began with shows what was changed between the runs; no run wrote that.
        for text, writer in zip(contents(store, each.run, each.change), (None, each.run), strict=True):
            lines, writers = _next_version(lines, writers, text, writer)
    lines, writers = _next_version(lines, writers, data, None)
    return list(zip(lines, writers, strict=True))


def _next_version(
    lines: list[str], writers: list[Run | None], data: bytes, writer: Run | None
) -> tuple[list[str], list[Run | None]]:
    """Return the lines of the next version with the writer of each; lines that stay keep their writers."""
    new_lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    new_writers: list[Run | None] = [writer] * len(new_lines)
    for old_at, new_at, count in equal_lines(lines, new_lines):
        new_writers[new_at : new_at + count] = writers[old_at : old_at + count]
    return new_lines, new_writers
