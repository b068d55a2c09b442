"""Survey the host: make the list of mount operations that show a command its parts of the host, devices included."""

from __future__ import annotations

import os
import stat

from fumehood.core.masks import FRESH, HOMES, SERVICES, UNSEEN, VAR_TMP, Sight
from fumehood.core.paths import innermost, is_below, is_in, paths_inside, with_parents
from fumehood.core.request import shell_quote
from fumehood.linux.cache import Lookup
from fumehood.linux.libc import read
from fumehood.linux.mounts import (
    DEVICE_LINKS,
    DEVICE_NODES,
    Bind,
    Device,
    Devices,
    Folder,
    HostView,
    Link,
    Operation,
    Text,
    Tmpfs,
    View,
)
from fumehood.linux.namespaces import mount_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fumehood.linux.hometools import VisibleTools

# If the server is gone, access may hang for ever. So these are shown only if a command needs them.
_REMOTE = frozenset({"afs", "autofs", "ceph", "cifs", "nfs", "nfs4", "smb3", "smbfs", "ncpfs", "davfs", "glusterfs"})
# These can't be overlaid, and can't contain sockets.
_SOCKETLESS = frozenset({"vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk", "iso9660", "udf", "hfs", "hfsplus"})
# File systems that show the kernel itself.
_PSEUDO = frozenset({
    "bpf", "binfmt_misc", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl",
    "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
})  # fmt: skip
_FIRST_PERSONS_ID = 1000
_MOST_COPIED_BYTES = 16 << 10
_ALWAYS_NEEDED = ("/usr", "/etc", "/opt", "/var", "/nix", "/bin", "/lib")
# Not hidden from root's commands: these are often run to read logs.
_SHOWN_TO_ROOT = ("/var/log", VAR_TMP)
_MOST_FOLDERS, _MOST_ROOT_ONLY, _DEEPEST = 500, 100, 3
# Files about the machine that programs read; commands get copies.
_COPIED_FROM_SYS = (
    "/sys/devices/system/cpu/online", "/sys/devices/system/cpu/possible", "/sys/devices/system/cpu/present",
    "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "/sys/kernel/mm/transparent_hugepage/enabled",
)  # fmt: skip
# Links through which some systems find their programs.
_LINKS_IN_RUN = ("/run/current-system", "/run/booted-system", "/run/opengl-driver", "/run/shm")


def survey_host(sight: Sight, written: Sequence[str] = ()) -> HostView:
    """Survey the host without the cache; `written` are places besides the roots that commands write."""
    survey = _Survey(sight, written)
    survey.add_entries("/")
    if sight.is_home_hidden:
        survey.add_homes()
    return survey.host_view()


class _Survey:
    def __init__(self, sight: Sight, written: Sequence[str]) -> None:
        self._sight = sight
        self._written = written
        self._disk = Lookup()
        self._watched = self._disk.watched
        self._mounts = {os.fsdecode(point): kind for point, kind in mount_table()}
        unmasked = [path for path in sight.shown if not is_in(path, FRESH)]
        self._unmasked = tuple(path for path in unmasked if self._disk.exists(path) and os.path.exists(path))
        self._hidden_homes: tuple[str, ...] = ()
        if sight.is_home_hidden:
            # Existing homes outside the roots; if a home is inside another one, it comes after that.
            homes = [home for home in sight.homes if home != "/" and os.path.isdir(home)]
            self._hidden_homes = tuple(sorted((home for home in homes if not is_in(home, sight.points)), key=len))
        # Something must be visible at these paths, whatever is hidden around them.
        self._visible_paths = (*sight.homes, *sight.points, *self._unmasked, *sight.added)
        self._ways_to_visible = with_parents(self._visible_paths)
        self._needed = with_parents((*self._visible_paths, *_ALWAYS_NEEDED))
        self._real_folders = {"": "/"}
        self._hidden = self._resolve_hidden([*sight.hidden, *self._homes_elsewhere()])
        if sight.user == 0:
            self._hidden |= set(self._root_only_paths())
        self._has_own_var_tmp = self._needs_own_var_tmp()
        self._unseen = UNSEEN | {VAR_TMP} if self._has_own_var_tmp else UNSEEN
        self._operations: list[Operation] = []
        self._add = self._operations.append

    def _root_only_paths(self) -> Iterator[str]:
        """Yield the files of services that only root may read: they are hidden from root's commands too.

        A directory with very many such files is hidden as a whole.
        """
        visible = frozenset((*self._visible_paths, *_SHOWN_TO_ROOT))
        folders = [folder for folder in SERVICES if innermost(folder, visible) is None]
        for folder in folders:  # the list grows meanwhile
            root_only = []
            for name, kind in self._disk.listing(folder).items():
                path = f"{folder}/{name}"
                is_special = kind not in ("d", "f") or _is_remote(self._mounts.get(path, ""))
                if is_special or path in self._hidden or path in visible:
                    continue
                mode = _mode_if_owned_by_root(path)
                if mode and not mode & 0o077:
                    root_only.append(path)
                elif mode and kind == "d" and path.count("/") <= _DEEPEST and len(folders) < _MOST_FOLDERS:
                    folders.append(path)
            hides_folder = len(root_only) > _MOST_ROOT_ONLY and folder not in self._needed
            yield from (folder,) if hides_folder else root_only

    def _homes_elsewhere(self) -> list[str]:
        """Return the homes of people (user numbers from 1000 on) outside the usual directories of homes."""
        self._watched.file("/etc/passwd")
        accounts = [line.split(":") for line in os.fsdecode(read("/etc/passwd")).split("\n")]
        users = [fields for fields in accounts if len(fields) > 6 and fields[2].isdigit()]
        people = [fields for fields in users if int(fields[2]) >= _FIRST_PERSONS_ID]
        homes = {fields[5].rstrip("/") for fields in people}
        return [home for home in homes if home.startswith("/") and home not in self._needed]

    def _resolve_hidden(self, hidden: Iterable[str]) -> frozenset[str]:
        """Return the real paths to hide: if a path is a symbolic link, the link and its target."""
        paths = set()
        for path in hidden:
            folder, _, name = path.rpartition("/")
            above = self._resolve_directory(folder)
            if not os.path.isdir(above):
                # Hide the first missing directory on the way, so that it is hidden if somebody makes it later.
                missing = above
                while not os.path.isdir(os.path.dirname(missing)):
                    missing = os.path.dirname(missing)
                self._disk.exists(missing)
                paths.add(missing)
                continue
            real = f"{above.rstrip('/')}/{name}"
            if self._watched.leads(real):
                target = os.path.realpath(real)
                if target not in self._needed:
                    paths.add(target)
            paths.add(real)
        never_hidden = ("/", *self._sight.homes, *self._sight.points, *self._unmasked)
        return frozenset(path for path in paths if path not in never_hidden)

    def _resolve_directory(self, folder: str) -> str:
        """Return the real path of a directory, and watch the directories on the way for changes."""
        if folder not in self._real_folders:
            above, _, name = folder.rpartition("/")
            real = self._resolve_directory(above)
            is_link = self._watched.leads(folder) or name in ("", ".", "..")
            self._real_folders[folder] = os.path.realpath(folder) if is_link else f"{real.rstrip('/')}/{name}"
        return self._real_folders[folder]

    def add_homes(self) -> None:
        """Replace each home by an empty one with the tools in it and settings without secrets."""
        for home in self._hidden_homes:
            self._add(
                Tmpfs(
                    target=home, mode=stat.S_IMODE(os.stat(home).st_mode) | stat.S_IRWXU, is_mine=True,
                    why="the home: tools only; what is written here is thrown away",
                )
            )  # fmt: skip
        from fumehood.linux.hometools import find_tools

        tools = find_tools(
            self._hidden_homes, dict(self._sight.variables), self._sight.points, written=self._written,
            hidden=self._sight.hidden,
        )  # fmt: skip
        self._watched.add(tools.watched)
        self._hidden |= {path for path in tools.masked if not is_in(path, self._unmasked)}
        for path, to, why in tools.links:
            self._add(Link(target=path, to=to, why=why))
        for path, why in tools.folders:
            self._show(path, why)
        for path in self._sight.added:
            real = os.path.realpath(path)
            self._disk.exists(path)
            self._disk.exists(real)
            # Never show what is masked by name.
            if os.path.exists(real) and innermost(real, self._hidden) is None and self._is_unseen(real):
                self._show(real, "you show it")
                if real != path and not os.path.islink(os.path.dirname(path)):
                    self._add(Link(target=path, to=real, why="you show it"))
        self._add_settings(tools)

    def _show(self, path: str, why: str) -> None:
        """Show a directory or a single file of a home, unless a root shows it."""
        if is_in(path, self._sight.points):
            return
        if os.path.isdir(path):
            self._add_directory(path, why)
        else:
            self._add(Bind(target=path, source=path, why=why))

    def _add_settings(self, tools: VisibleTools) -> None:
        """Add the settings of version controls and package managers, without their secrets, to the home."""
        home, variables = self._sight.homes[0], dict(self._sight.variables)
        if home not in self._hidden_homes:
            return
        from fumehood.linux.home_settings import GITCONFIG, flat_git_settings, tool_settings

        roots = self._sight.points
        git = flat_git_settings(
            home, variables.get("XDG_CONFIG_HOME", ""), variables, roots[0] if roots else "",
            in_sight=(*roots, *(path for path, _ in tools.folders)), user=self._sight.user,
        )  # fmt: skip
        tool_files = tool_settings(home, variables, roots, self._sight.user)
        texts = {GITCONFIG: git.text, **dict(git.files)}
        path = variables.get("PATH", "")
        if any(is_in(folder, self._hidden_homes) for folder in path.split(":")):
            # A login shell reads these last. Before, the system's files have set PATH without the tools of the home.
            texts[".profile"] = texts[".zprofile"] = f"PATH={shell_quote(path, always=True)}\nexport PATH\n"
        texts |= {file.path: file.text for file in tool_files.files if not os.path.isabs(file.path)}
        # Files with secrets that are outside the homes are hidden.
        with_secrets = [file.path for file in tool_files.files if file.dropped]
        with_secrets += [variables.get("GIT_CONFIG_GLOBAL", "")] if git.dropped_keys else []
        around = (*self._hidden_homes, *roots)
        outside = [path for path in with_secrets if os.path.isabs(path) and not is_in(path, around)]
        self._hidden |= set(map(os.path.realpath, outside))
        self._watched.add(git.watched)
        self._watched.add(tool_files.watched)
        for name, text in texts.items():
            target = f"{home}/{name}"
            if is_in(target, [path for path, _ in tools.folders]):
                self._hidden |= {target}  # otherwise the file would be shown with its secrets
            elif text:
                self._add(Text(target=target, content=os.fsencode(text), mode=0o600, why="settings without secrets"))

    def add_entries(self, folder: str) -> None:
        for name, kind in sorted(self._disk.listing(folder).items()):
            self._add_entry(f"{folder.rstrip('/')}/{name}", kind)

    def _add_entry(self, path: str, kind: str) -> None:
        if path in UNSEEN:
            self._add(Folder(target=path))
        elif path == VAR_TMP and self._has_own_var_tmp:
            self._add_var_tmp()
        elif path in self._hidden:
            if path in self._ways_to_visible:
                self._add(Folder(target=path))
        elif kind == "l":
            self._add(Link(target=path, to=self._watched.leads(path)))
        elif kind == "d":
            self._add_directory(path)
        elif kind == "f" and os.access(path, os.R_OK):
            if os.path.getsize(path) > _MOST_COPIED_BYTES:
                self._disk.exists(path)
                self._add(Bind(target=path, source=path))
                return
            mode = stat.S_IMODE(self._disk.mode(path)) & 0o755
            with open(path, "rb") as file:  # unlike a bind, a copy costs no mount
                self._add(Text(target=path, content=file.read(), mode=mode))

    def _add_directory(self, path: str, why: str = "") -> None:
        kind = self._mounts.get(path, "")
        if path in self._hidden_homes:
            self._add(Folder(target=path))
        elif kind in _SOCKETLESS:
            self._add(Bind(target=path, source=path, why=why))
        elif kind in _PSEUDO or (_is_remote(kind) and path not in self._needed):
            self._add(Folder(target=path))
        elif path in HOMES and path not in self._sight.homes:
            self._add_way_to_visible(path)
        elif self._sight.is_locked and any(is_below(point, path) for point in self._mounts):
            self._add(Folder(target=path))
            self.add_entries(path)
        elif self._is_empty(path):
            self._add(Folder(target=path))
        else:
            self._add(View(target=path, sources=(path,), why=why))
            unseen = UNSEEN if is_below(path, VAR_TMP) else self._unseen
            # A view does not show file systems that are mounted inside it: each gets a view of its own.
            for point in sorted(self._mounts):
                if is_below(point, path) and innermost(point, self._hidden) is None and not is_in(point, unseen):
                    self._add_inner_mount(point)
            if self._has_own_var_tmp and is_below(VAR_TMP, path):
                self._add_var_tmp()

    def _needs_own_var_tmp(self) -> bool:
        """Return True if a command gets its own /var/tmp: not if it is a link, or if a person shows the host's."""
        if self._resolve_directory("/var") != "/var" or not self._disk.exists(VAR_TMP) or not os.path.isdir(VAR_TMP):
            return False
        if self._watched.leads(VAR_TMP) or VAR_TMP in (*self._unmasked, *self._sight.points):
            return False
        return self._sight.is_home_hidden or not any(is_in(home, (VAR_TMP,)) for home in self._sight.homes)

    def _add_var_tmp(self) -> None:
        """Replace /var/tmp by an empty one, which shows only entries that contain a root or the home."""
        entries = self._entries_on_ways(VAR_TMP)
        why = "the host's has people's files in it"
        self._add(Tmpfs(target=VAR_TMP, mode=0o1777, is_sealed=bool(entries), why=why))
        for child in entries:
            # The directory is not listed: a new file of somebody else there must not make the survey invalid.
            if self._disk.exists(child):
                self._add_unlisted_entry(child)

    def _add_unlisted_entry(self, path: str) -> None:
        self._add_entry(path, "l" if self._watched.leads(path) else "d" if os.path.isdir(path) else "f")

    def _is_empty(self, path: str) -> bool:
        """Return True if a directory is empty. Only this is watched, not which entries it has."""
        try:
            with os.scandir(path) as entries:
                is_empty = next(entries, None) is None
        except OSError:
            is_empty = True
        return not self._disk.listing(path) if is_empty else not self._disk.exists(path)

    def _add_way_to_visible(self, path: str) -> None:
        """Add a directory with only the entries that lead to visible paths."""
        self._add(Folder(target=path))
        for child in self._entries_on_ways(path):
            self._disk.exists(child)
            is_link = bool(self._watched.leads(child))
            if child in self._sight.homes or child in self._unmasked:
                self._add_unlisted_entry(child)
            elif os.path.isdir(child) and not is_link:
                self._add_way_to_visible(child)

    def _entries_on_ways(self, path: str) -> list[str]:
        """Return the paths of the entries of a directory that lead to visible paths."""
        inside = (visible[len(path) + 1 :] for visible in self._visible_paths if is_below(visible, path))
        return sorted({f"{path}/{rest.partition('/')[0]}" for rest in inside})

    def _add_inner_mount(self, point: str) -> None:
        kind = self._mounts[point]
        if kind in _PSEUDO or (_is_remote(kind) and point not in self._needed):
            return
        try:
            is_directory = stat.S_ISDIR(os.lstat(point).st_mode)
        except OSError:  # covered by another mount
            return
        if is_directory and kind not in _SOCKETLESS:
            self._add(View(target=point, sources=(point,)))
        else:
            self._add(Bind(target=point, source=point))

    def host_view(self) -> HostView:
        """Return the complete view, with the masks, and with the entries that every command gets."""
        operations = self._operations_with_masks()
        operations += [Link(target=path, to=to) for path in _LINKS_IN_RUN if (to := self._watched.leads(path))]
        for path in _COPIED_FROM_SYS:
            if content := read(path):
                operations.append(Text(target=path, content=content, mode=0o444))
        return HostView(
            operations=(Tmpfs(target="/", is_sealed=True), *operations, Devices(target="/dev")),
            masked_in_roots=paths_inside(sorted(self._hidden), self._sight.points),
            snapshot=self._watched, number=self._watched.sum,
        )  # fmt: skip

    def _operations_with_masks(self) -> list[Operation]:
        views = frozenset(each.target for each in self._operations if isinstance(each, View))
        hidden: dict[str, list[str]] = {view: [] for view in views}
        masked: set[str] = set()
        emptied: list[Operation] = []
        for path in sorted(self._hidden):
            view = self._view_around(path, views)
            if view is None:
                continue
            if path in self._ways_to_visible and os.path.isdir(path):
                # There is a visible path in it: replace it by an empty directory with only the way there.
                emptied.append(Tmpfs(target=path, is_sealed=True, why="masked"))
            elif innermost(path.rpartition("/")[0], masked) is None:
                masked.add(path)
                hidden[view].append(path[len(view) + 1 :])
        # Mount points that are missing on the host.
        points: dict[str, list[str]] = {view: [] for view in views}
        for path in self._sight.points:
            view = self._view_around(path, views)
            if view is not None and innermost(path, self._hidden) is None and not os.path.lexists(path):
                points[view].append(path[len(view) + 1 :])
        operations = [
            each.replace(hidden=tuple(hidden[each.target]), points=tuple(points[each.target]))
            if isinstance(each, View) else each
            for each in self._operations
        ]  # fmt: skip
        unmasked: list[Operation] = [
            View(target=path, sources=(path,), why="you unmasked it") if os.path.isdir(path)
            else Bind(target=path, source=path, why="you unmasked it")
            for path in self._unmasked if self._is_unseen(path)
        ]  # fmt: skip
        return [*operations, *emptied, *unmasked]

    def _view_around(self, path: str, views: frozenset[str]) -> str | None:
        """Return the view that contains a path, or None; in a hidden home, only views inside that home count."""
        view = innermost(path.rpartition("/")[0], views)
        home = innermost(path, self._hidden_homes)
        return view if view is None or home is None or is_below(view, home) else None

    def _is_unseen(self, path: str) -> bool:
        """Return True if a path is hidden, or in a place whose entries are not shown."""
        is_in_other_home = is_in(path, HOMES) and not is_in(path, self._sight.homes)
        return is_in_other_home or any(is_in(path, paths) for paths in (self._hidden, self._unseen, self._hidden_homes))


def _mode_if_owned_by_root(path: str) -> int:
    """Return the mode of an entry that root owns, else 0: the directory of a database, for example, changes often."""
    try:
        status = os.lstat(path)
    except OSError:  # gone meanwhile
        return 0
    return 0 if status.st_uid else status.st_mode


def _is_remote(kind: str) -> bool:
    return kind in _REMOTE or (kind.startswith("fuse") and kind not in _SOCKETLESS)


# ---- Devices of the host that a person names: which can be shown, and what programs read about them in `/sys`.

# Major numbers of terminals in the kernel's list of devices: consoles, their screens, and terminals in windows.
_CONSOLES, _FIRST_SERIAL_PORT = 4, 64
_SCREENS = (5, 7, *range(136, 144))
_SYS_ATTRIBUTES = ("uevent", "dev", "vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "class")


def device_fault(path: str) -> str:
    """Return the reason why a device can't be shown to commands, or ""."""
    name = path.removeprefix("/dev/")
    if name == path or os.path.normpath(path) != path:
        return "it is not below /dev"
    if name.split("/")[0] in (*DEVICE_NODES, *dict(DEVICE_LINKS), "console", "pts", "shm"):
        return "every command has its own"
    try:
        status = os.stat(path)
    except OSError as error:
        return "it is not there" if isinstance(error, FileNotFoundError) else str(error.strerror)
    if stat.S_ISBLK(status.st_mode):
        return "it is a disk: whoever may use it reads and writes every file on it"
    if not stat.S_ISCHR(status.st_mode):
        return "it is not a device"
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    is_screen = major in _SCREENS or (major == _CONSOLES and minor < _FIRST_SERIAL_PORT)
    return "it is a terminal or screen of this machine's, where you type" if is_screen else ""


def shown_devices(paths: Iterable[str]) -> list[Operation]:
    """Return the operations that show devices; if a device can't be shown, its operation has the reason."""
    return [Device(target=path, why="you name it", fault=device_fault(path)) for path in paths]


def device_descriptions(paths: Iterable[str]) -> list[Operation]:
    """Return operations that copy what `/sys` says about devices: graphics libraries read the maker there.

    In `/sys`, the directory of a device is in that of its hardware.
    """
    operations: dict[str, Operation] = {}
    for path in paths:
        if device_fault(path):
            continue
        number = os.stat(path).st_rdev
        name = f"/sys/dev/char/{os.major(number)}:{os.minor(number)}"
        own = os.path.realpath(name)
        if not own.startswith("/sys/devices/"):
            continue
        operations[name] = Link(target=name, to=own)
        hardware = os.path.realpath(f"{own}/device") if os.path.islink(f"{own}/device") else own
        for folder in dict.fromkeys((hardware, own)):
            operations.setdefault(folder, Folder(target=folder))
            operations |= {each.target: each for each in _sys_attributes(folder)}
        if hardware != own:
            operations[f"{own}/device"] = Link(target=f"{own}/device", to=hardware)
    return list(operations.values())


def _sys_attributes(folder: str) -> Iterable[Operation]:
    if os.path.islink(f"{folder}/subsystem"):
        yield Link(target=f"{folder}/subsystem", to=os.path.realpath(f"{folder}/subsystem"))
    for name in _SYS_ATTRIBUTES:
        path = f"{folder}/{name}"
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or not status.st_mode & stat.S_IROTH:
                continue
            with open(path, "rb") as file:
                yield Text(target=path, content=file.read(4096), mode=0o444)
        except OSError:
            continue  # it has no such attribute, or no longer
