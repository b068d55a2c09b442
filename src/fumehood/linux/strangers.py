"""What in a root belongs to another user or group than ours, and which ways of capturing can carry that.

An overlay that an ordinary user has mounted can't copy up what belongs to an id that its namespace does not know: the
write fails with EOVERFLOW. To look at every file would be too slow, so a run looks at the top of each root, and what
lies deeper is found out by the error.
"""

from __future__ import annotations

import os
import stat

from fumehood.core.report import printable
from fumehood.core.value import Value
from fumehood.linux.nofollow import LISTING, Parents, open_below, open_top, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_AT_THE_TOP = 64  # entries of a root that every run looks at
_AROUND_NAMES = "'\"`\u2018\u2019:,;()"  # straight and curly quotes
_AFTER_AN_ERROR = 200_000  # entries of a root that are looked at to explain one


class Stranger(Value):
    """An entry of a root that belongs to another user or group than ours.

    One that we may not write can still be renamed or removed in a directory of ours.
    """

    root: str
    path: str  # below the root; "" is the root itself
    user: int
    group: int
    may_write: bool

    @property
    def description(self) -> str:
        """Say whose it is."""
        whose = f"group {group_name(self.group)}" if self.user == os.geteuid() else user_name(self.user)
        return f"{printable(self.path or self.root)} belongs to {whose}"

    @property
    def whole(self) -> str:
        """Its whole path."""
        return f"{self.root}/{self.path}" if self.path else self.root


def at_the_top(roots: Sequence[str]) -> list[Stranger]:
    """Return the strangers among the roots and the first entries in them."""
    strangers = []
    for root in roots:
        try:
            top = os.open(root, LISTING | os.O_CLOEXEC)
        except OSError:
            continue  # the launch says what is wrong with it
        try:
            strangers += _strangers(root, "", top, [".", *_first_entries(top)])
        finally:
            os.close(top)
    return strangers


def _first_entries(directory: int) -> list[str]:
    with os.scandir(directory) as listing:
        return [entry.name for entry, _ in zip(listing, range(_AT_THE_TOP), strict=False)]


def everywhere(roots: Sequence[str], complaints: str = "") -> list[Stranger]:
    """Return one stranger of each owner and group in the roots, as far as those can be looked through.

    Of several it is one that a command's complaints name, and those come first.
    """
    names = _names_in(complaints)
    examples: dict[tuple[int, int, bool], Stranger] = {}
    for root in roots:
        for each in _walked(root):
            example = examples.setdefault((each.user, each.group, each.may_write), each)
            if _name(example) not in names and _name(each) in names:
                examples[each.user, each.group, each.may_write] = each
    return sorted(examples.values(), key=lambda each: _name(each) not in names)


def _names_in(complaints: str) -> set[str]:
    """Return the names that complaints may mean: of every word, each part of a path."""
    for mark in _AROUND_NAMES:
        complaints = complaints.replace(mark, " ")
    return {part for word in complaints.split() for part in word.split("/") if part}


def _name(stranger: Stranger) -> str:
    return split(stranger.path)[1]


def _walked(root: str) -> Iterator[Stranger]:
    """Yield the strangers of a root, level by level; what is closed to us, or too much, is left out."""
    from collections import deque

    top = open_top(root)
    parents = Parents(top, bounded=False)
    waiting, left = deque([""]), _AFTER_AN_ERROR
    try:
        yield from _strangers(root, "", top, ["."])
        while waiting:
            path = waiting.popleft()
            strangers, names = _level(root, path, parents, left)
            yield from strangers
            left -= len(names)
            waiting.extend(_joined(path, name) for name, is_directory in names if is_directory)
    finally:
        parents.close()
        os.close(top)


def _level(root: str, path: str, parents: Parents, most: int) -> tuple[list[Stranger], list[tuple[str, bool]]]:
    """Return the strangers in one directory, and the names in it with whether each is a directory."""
    directory = parents.listing(path)
    if directory is None:
        return [], []
    try:
        with os.scandir(directory) as listing:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing][:most]
        return _strangers(root, path, directory, [name for name, _ in names]), names
    finally:
        os.close(directory)


def still_there(roots: Sequence[str], paths: Sequence[str]) -> list[Stranger]:
    """Return those of some whole paths that still are strangers in one of the roots."""
    strangers = []
    for path in paths:
        for root in roots:
            if path == root or path.startswith(f"{root}/"):
                strangers += _stranger_at(root, path[len(root) + 1 :])
                break
    return strangers


def _stranger_at(root: str, path: str) -> list[Stranger]:
    parent, name = split(path)
    top = open_top(root)
    try:
        directory = open_below(top, parent)
        try:
            return _strangers(root, parent, directory, [name or "."])
        finally:
            os.close(directory)
    except OSError:
        return []  # gone, or something else by now
    finally:
        os.close(top)


def _strangers(root: str, parent: str, directory: int, names: Sequence[str]) -> list[Stranger]:
    me, group = os.geteuid(), os.getegid()
    strangers = []
    for name in names:
        try:
            entry = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            continue  # it has just gone
        if entry.st_uid == me and entry.st_gid == group:
            continue
        path = parent if name == "." else _joined(parent, name)
        may_write = entry.st_uid == me or _may_write(directory, name, entry)
        strangers.append(Stranger(root=root, path=path, user=entry.st_uid, group=entry.st_gid, may_write=may_write))
    return strangers


def _may_write(directory: int, name: str, entry: os.stat_result) -> bool:
    if stat.S_ISLNK(entry.st_mode):
        return False
    return os.access(name, os.W_OK, dir_fd=directory, effective_ids=True, follow_symlinks=False)


def _joined(parent: str, name: str) -> str:
    return f"{parent}/{name}" if parent else name


def user_name(user: int) -> str:
    """Name a user, by number where the system has no name."""
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def group_name(group: int) -> str:
    """Name a group with its number, which is what the system's tables want."""
    import grp

    try:
        return f"{grp.getgrgid(group).gr_name} ({group})"
    except KeyError:
        return str(group)
