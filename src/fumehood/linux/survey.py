"""Look over the host's root directory, and decide how each part of it is shown to commands.

A *view* is a read-only overlay of a directory. A Unix socket seen through an overlay can't be connected to, whoever
made it and whenever; and a whiteout in the directory laid over it hides a name, also one that appears later.
"""

from __future__ import annotations

import os
import stat

from fumehood.core.masks import HOMES, UNSEEN, Masks, inside, is_below
from fumehood.core.value import Value
from fumehood.linux.overlay import mount_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Asking a server that is gone may take for ever, so these are shown only where a command can't do without.
_REMOTE = frozenset({"afs", "autofs", "ceph", "cifs", "nfs", "nfs4", "smb3", "smbfs", "ncpfs", "davfs", "glusterfs"})
# Can't be overlaid, and can't hold a socket either.
_SOCKETLESS = frozenset({"vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk", "iso9660", "udf", "hfs", "hfsplus"})
# Views of the kernel itself.
_PSEUDO = frozenset(
    {
        "bpf", "binfmt_misc", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl",
        "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
    }
)  # fmt: skip
_PEOPLE = 1000
_SMALL = 16 << 10
_NEEDED = ("/usr", "/etc", "/opt", "/var", "/nix", "/bin", "/lib")
# What programs ask the machine's description for, given as plain files.
_SYS = (
    "/sys/devices/system/cpu/online", "/sys/devices/system/cpu/possible", "/sys/devices/system/cpu/present",
    "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "/sys/kernel/mm/transparent_hugepage/enabled",
)  # fmt: skip
# Links that programs are found through on some systems.
_RUN = ("/run/current-system", "/run/booted-system", "/run/opengl-driver", "/run/shm")


class View(Value):
    """One directory shown through a read-only overlay, `/` by an empty name: `cover` tells what is laid over it.

    Each item of the cover is a kind, a path below the view and a mode: `hide` it, have a `directory` there, an
    `opaque` one that shows nothing of the host's, or an empty `file`.
    """

    path: str
    cover: tuple[tuple[str, str, int], ...] = ()


class Backdrop(Value):
    """What commands see as `/`: all but the views and the bound is made once, in a directory of ours."""

    folders: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    views: tuple[View, ...] = ()
    bound: tuple[tuple[str, bool], ...] = ()  # shown as they are; whether it is a directory
    inside: tuple[str, ...] = ()  # what is hidden and lies below a point: the view does not hide it there


class Needs(Value):
    """What the survey must find a place for: the person's homes, and where something will be mounted."""

    homes: tuple[str, ...]
    points: tuple[str, ...] = ()
    locked: bool = True  # in a user namespace, what has mounts inside can't be overlaid
    whole: bool = False  # all of `/` by one view: fewer mounts for each run, where the kernel allows it


def survey(masks: Masks, needs: Needs) -> tuple[Backdrop, dict[str, tuple[int, int]]]:
    """Return how the host is shown, and the directories it was read from with their times: new ones, new survey."""
    work = _Survey(masks, needs)
    if needs.whole:
        work.place_all()
    else:
        for entry in work.listed("/"):
            work.place(f"/{entry.name}", entry)
    return work.finished(), work.watched


def is_current(watched: dict[str, tuple[int, int]]) -> bool:
    """Tell whether everything that a survey was read from is as it was."""
    try:
        for path, known in watched.items():
            found = os.stat(path)
            if (found.st_mtime_ns, found.st_ino) != known:
                return False
    except OSError:
        return False
    return True


class _Survey:
    def __init__(self, masks: Masks, needs: Needs) -> None:
        self._needs = needs
        self.watched: dict[str, tuple[int, int]] = {}
        self._real: dict[str, str] = {}
        self._missing: dict[str, str] = {}
        self._mounts = {os.fsdecode(point): kind for point, kind in mount_table()}
        self._shown = tuple(path for path in masks.shown if os.path.exists(path))
        self._kept = (*needs.homes, *needs.points, *self._shown)
        self._hidden = self._resolved([*masks.hidden, *self._other_homes()])
        self._folders: list[str] = []
        self._anew: list[str] = []  # in the view of all, directories that show nothing of the host's
        self._links: list[tuple[str, str]] = []
        self._bound: list[tuple[str, bool]] = []
        self._views: list[str] = []
        self._texts: list[tuple[str, str]] = []

    def listed(self, path: str) -> list[os.DirEntry[str]]:
        """List a directory, and remember that it was; one that may not be listed is empty."""
        try:
            self._watch(path)
            with os.scandir(path) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError:
            return []

    def _watch(self, path: str) -> None:
        found = os.stat(path)
        self.watched[path] = (found.st_mtime_ns, found.st_ino)

    def _other_homes(self) -> list[str]:
        """Find the homes of people, from 1000 on, that are not in the directories known to hold homes."""
        try:
            self._watch("/etc/passwd")
            with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as file:
                fields = [line.rstrip("\n").split(":") for line in file]
        except OSError:
            return []
        homes = {one[5].rstrip("/") for one in fields if len(one) > 6 and one[2].isdigit() and int(one[2]) >= _PEOPLE}
        return [home for home in homes if home.startswith("/") and not self._is_needed(home)]

    def place(self, path: str, entry: os.DirEntry[str]) -> None:
        """Decide on one entry of a directory that is made anew."""
        if path in UNSEEN:
            self._folders.append(path)
        elif path in self._hidden:
            if self._leads_to_kept(path):
                self._folders.append(path)
        elif entry.is_symlink():
            self._links.append((path, os.readlink(path)))
        elif entry.is_dir():
            self._directory(path)
        elif entry.is_file() and os.access(path, os.R_OK):
            self._file(path, entry)

    def place_all(self) -> None:
        """Show everything by one view, less what is made anew; other file systems get views of their own."""
        self._views.append("")
        self._anew += [f"/{entry.name}" for entry in self.listed("/") if f"/{entry.name}" in UNSEEN]
        for path in sorted(HOMES):
            if path not in self._needs.homes and path not in self._hidden and os.path.isdir(path):
                self._anew.append(path)
                self._way_to_kept(path)
        for point in sorted(self._mounts):
            if point != "/" and not self._is_hidden(point) and not self._is_anew(point):
                self._inner(point)

    def _file(self, path: str, entry: os.DirEntry[str]) -> None:
        """Show a file: a small one as a copy, which costs no mount in every run."""
        if entry.stat().st_size <= _SMALL:
            self._watch(path)
            with open(path, encoding="latin-1", newline="") as file:
                self._texts.append((path, file.read()))
        else:
            self._bound.append((path, False))

    def _directory(self, path: str) -> None:
        kind = self._mounts.get(path, "")
        if kind in _SOCKETLESS:
            self._folders.append(path)
            self._bound.append((path, True))
        elif kind in _PSEUDO or (_is_remote(kind) and not self._is_needed(path)):
            self._folders.append(path)
        elif path in HOMES and path not in self._needs.homes:
            self._way_to_kept(path)
        elif self._needs.locked and any(is_below(point, path) for point in self._mounts):
            self._folders.append(path)
            for entry in self.listed(path):
                self.place(f"{path}/{entry.name}", entry)
        else:
            self._view(path)

    def _way_to_kept(self, path: str) -> None:
        """Make a directory anew, with only those entries that lead to what is needed."""
        self._folders.append(path)
        for entry in self.listed(path):
            child = f"{path}/{entry.name}"
            if child in self._needs.homes or child in self._shown:
                self.place(child, entry)
            elif self._leads_to_kept(child) and not entry.is_symlink():
                self._way_to_kept(child)

    def _view(self, path: str) -> None:
        try:
            self._watch(path)
            empty = not os.listdir(path)
        except OSError:
            empty = True
        self._folders.append(path)
        if empty:
            return
        self._views.append(path)
        # Another file system inside is not seen through the view, and gets one of its own.
        for point in sorted(self._mounts):
            if is_below(point, path) and not self._is_hidden(point):
                self._inner(point)

    def _inner(self, point: str) -> None:
        kind = self._mounts[point]
        if kind in _PSEUDO or (_is_remote(kind) and not self._is_needed(point)):
            return
        try:
            is_directory = stat.S_ISDIR(os.lstat(point).st_mode)
        except OSError:  # covered by another mount
            return
        if not is_directory or kind in _SOCKETLESS:
            self._bound.append((point, is_directory))
        else:
            self._views.append(point)

    def _is_anew(self, path: str) -> bool:
        return _is_in(path, self._anew)

    def _leads_to_kept(self, path: str) -> bool:
        return any(one == path or is_below(one, path) for one in self._kept)

    def _is_needed(self, path: str) -> bool:
        return any(one == path or is_below(one, path) for one in (*self._kept, *_NEEDED))

    def _is_hidden(self, path: str) -> bool:
        return _is_in(path, self._hidden) or _is_in(path, UNSEEN)

    def _resolved(self, hidden: Iterable[str]) -> frozenset[str]:
        """Find what names really mean: a secret behind a symbolic link is hidden where it lies, too."""
        found = set()
        for path in hidden:
            folder, _, name = path.rpartition("/")
            above = self._real_folder(folder)
            real = f"{above.rstrip('/')}/{name}"
            if above in self._missing:
                real = self._missing[above]
            elif os.path.islink(real):
                target = os.path.realpath(real)
                if not self._is_needed(target):
                    found.add(target)
            found.add(real)
        return frozenset(path for path in found if path != "/" and path not in self._kept)

    def _real_folder(self, folder: str) -> str:
        """Resolve a directory; of one that does not exist yet, the first missing part is remembered."""
        known = self._real.get(folder)
        if known is None:
            known = self._real[folder] = os.path.realpath(folder or "/")
            first, there = "", known
            while not os.path.isdir(there):
                first, there = there, os.path.dirname(there)
            self._watch(there)
            if first:
                self._missing[known] = first
        return known

    def finished(self) -> Backdrop:
        """Lay covers over the views, and make places for what will be mounted."""
        for path in self._shown:
            if self._is_hidden(path) and path not in self._folders:
                if os.path.isdir(path):
                    self._views.append(path)
                else:
                    self._bound.append((path, False))
        covers = self._covers()
        for path in (*self._needs.points, *self._shown):
            view = self._view_of(path)
            if view is None:
                self._make_way(path)
            elif self._is_hidden(path) or not os.path.lexists(path):
                covers[view].make(path, is_file=os.path.isfile(path))
        views = tuple(View(path=path, cover=covers[path].items()) for path in self._views)
        return Backdrop(
            folders=tuple(self._folders), links=(*self._links, *_links(_RUN)), texts=(*self._texts, *_texts()),
            views=views, bound=tuple(self._bound),
            inside=inside(sorted(self._hidden), self._needs.points),
        )  # fmt: skip

    def _covers(self) -> dict[str, _Cover]:
        """Begin the covers of all views with what is hidden."""
        covers = {path: _Cover(path) for path in self._views}
        for path in self._anew:
            covers[""].open_up(path)
        for path in sorted(self._hidden):
            view = self._view_of(path)
            if view is None or (view == "" and self._is_anew(path)):
                continue
            if self._leads_to_kept(path):
                covers[view].open_up(path)
            else:
                covers[view].hide(path)
        return covers

    def _view_of(self, path: str) -> str | None:
        above = [view for view in self._views if is_below(path, view)]
        return max(above, key=len, default=None)

    def _make_way(self, path: str) -> None:
        """Have a path in the part that is made anew; a file that is bound there is made when it is bound."""
        parts = path.split("/")
        for length in range(2, len(parts) + (0 if os.path.isfile(path) else 1)):
            folder = "/".join(parts[:length])
            if folder not in self._folders:
                self._folders.append(folder)


def _is_in(path: str, places: Iterable[str]) -> bool:
    return any(path == one or is_below(path, one) for one in places)


def _is_remote(kind: str) -> bool:
    return kind in _REMOTE or (kind.startswith("fuse") and kind not in _SOCKETLESS)


class _Cover:
    """What is laid over one view."""

    def __init__(self, view: str) -> None:
        self._view = view
        self._items: dict[str, tuple[str, str, int]] = {}
        self._opaque: set[str] = set()

    def hide(self, path: str) -> None:
        self._way(path)
        self._put("hide", path, 0)

    def open_up(self, path: str) -> None:
        """Hide what is in a directory but keep the directory, for something will be mounted below it."""
        self._way(path)
        self._opaque.add(path)
        self._put("opaque", path, _mode(path))

    def make(self, path: str, *, is_file: bool) -> None:
        """Have an entry there that something can be mounted on."""
        self._way(path)
        self._put("file" if is_file else "directory", path, _mode(path))

    def _way(self, path: str) -> None:
        """Have every directory on the way, with the mode that the host's has."""
        parts = path[len(self._view) + 1 :].split("/")[:-1]
        for length in range(1, len(parts) + 1):
            folder = f"{self._view}/{'/'.join(parts[:length])}"
            self._put("directory", folder, _mode(folder))

    def _put(self, kind: str, path: str, mode: int) -> None:
        below = path[len(self._view) + 1 :]
        self._items.setdefault(below, (kind, below, mode))

    def items(self) -> tuple[tuple[str, str, int], ...]:
        """Return everything, directories before what is in them."""
        return tuple(self._items[below] for below in sorted(self._items))


def _mode(path: str) -> int:
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return 0o755


def _links(paths: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((path, os.readlink(path)) for path in paths if os.path.islink(path))


def _texts() -> tuple[tuple[str, str], ...]:
    found = []
    for path in _SYS:
        try:
            with open(path, encoding="ascii") as file:
                found.append((path, file.read(4096)))
        except OSError:
            continue
    return tuple(found)
