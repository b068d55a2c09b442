"""Look the host over: what of it a command sees, devices too, as a list of mount operations."""

from __future__ import annotations

import os
import stat

from fumehood.core.masks import (
    FRESH,
    HOMES,
    SERVICES,
    UNSEEN,
    VAR_TMP,
    Sight,
    innermost,
    inside,
    is_below,
    is_in,
    ways_to,
)
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

# Asking a server that is gone may take for ever, so these are shown only where a command can't do without.
_REMOTE = frozenset({"afs", "autofs", "ceph", "cifs", "nfs", "nfs4", "smb3", "smbfs", "ncpfs", "davfs", "glusterfs"})
# Can't be overlaid, and can't hold a socket either.
_SOCKETLESS = frozenset({"vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk", "iso9660", "udf", "hfs", "hfsplus"})
# Views of the kernel itself.
_PSEUDO = frozenset({
    "bpf", "binfmt_misc", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl",
    "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
})  # fmt: skip
_PEOPLE = 1000
_SMALL = 16 << 10
_NEEDED = ("/usr", "/etc", "/opt", "/var", "/nix", "/bin", "/lib")
# Logs are what root's commands are asked about.
_OPEN_IN_SERVICES = ("/var/log", VAR_TMP)
_MOST_LOOKED_AT, _MOST_CLOSED, _DEEPEST = 500, 100, 3
# What programs ask the machine's description for, given as plain files.
_SYS = (
    "/sys/devices/system/cpu/online", "/sys/devices/system/cpu/possible", "/sys/devices/system/cpu/present",
    "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "/sys/kernel/mm/transparent_hugepage/enabled",
)  # fmt: skip
# Links that programs are found through on some systems.
_RUN = ("/run/current-system", "/run/booted-system", "/run/opengl-driver", "/run/shm")


def survey_host(sight: Sight, written: Sequence[str] = ()) -> HostView:
    """Look the host over, whatever is remembered; `written` are places besides the roots that commands write."""
    survey = _Survey(sight, written)
    survey.place_all("/")
    if sight.is_home_hidden:
        survey.furnish_homes()
    return survey.finished()


class _Survey:
    def __init__(self, sight: Sight, written: Sequence[str]) -> None:
        self._sight = sight
        self._written = written
        self._disk = Lookup()
        self._watched = self._disk.watched
        self._mounts = {os.fsdecode(point): kind for point, kind in mount_table()}
        shown = [path for path in sight.shown if not is_in(path, FRESH)]
        self._shown = tuple(path for path in shown if self._disk.exists(path) and os.path.exists(path))
        self._hidden_homes: tuple[str, ...] = ()
        if sight.is_home_hidden:
            # Those that are there and not in a root, those inside of others last.
            homes = [home for home in sight.homes if home != "/" and os.path.isdir(home)]
            self._hidden_homes = tuple(sorted((home for home in homes if not is_in(home, sight.points)), key=len))
        self._kept = (*sight.homes, *sight.points, *self._shown, *sight.added)
        self._ways_to_kept = ways_to(self._kept)
        self._needed = ways_to((*self._kept, *_NEEDED))
        self._real_folders = {"": "/"}
        self._hidden = self._resolved([*sight.hidden, *self._other_homes()])
        self._hidden |= set(self._for_root_alone()) if sight.user == 0 else set()
        self._unseen = UNSEEN | {VAR_TMP} if self._has_var_tmp() else UNSEEN
        self._operations: list[Operation] = []
        self._add = self._operations.append

    def _for_root_alone(self) -> Iterator[str]:
        """Find what nobody but root may read of services: no other user's command could, and so root's can't either.

        A directory with very many such files is hidden as a whole.
        """
        seen = frozenset((*self._kept, *_OPEN_IN_SERVICES))
        waiting = [folder for folder in SERVICES if innermost(folder, seen) is None]
        for folder in waiting:  # which grows
            closed = []
            for name, kind in self._disk.listing(folder).items():
                path = f"{folder}/{name}"
                is_other = kind not in ("d", "f") or _is_remote(self._mounts.get(path, ""))
                if is_other or path in self._hidden or path in seen:
                    continue
                mode = _roots_mode(path)
                if mode and not mode & 0o077:
                    closed.append(path)
                elif mode and kind == "d" and path.count("/") <= _DEEPEST and len(waiting) < _MOST_LOOKED_AT:
                    waiting.append(path)
            is_whole = len(closed) > _MOST_CLOSED and folder not in self._needed
            yield from (folder,) if is_whole else closed

    def _other_homes(self) -> list[str]:
        """Find the homes of people, from 1000 on, that are not in the directories known to hold homes."""
        self._watched.file("/etc/passwd")
        accounts = [line.split(":") for line in os.fsdecode(read("/etc/passwd")).split("\n")]
        homes = {one[5].rstrip("/") for one in accounts if len(one) > 6 and one[2].isdigit() and int(one[2]) >= _PEOPLE}
        return [home for home in homes if home.startswith("/") and home not in self._needed]

    def _resolved(self, hidden: Iterable[str]) -> frozenset[str]:
        """Find what names really mean: a secret behind a symbolic link is hidden where it lies, too."""
        paths = set()
        for path in hidden:
            folder, _, name = path.rpartition("/")
            above = self._real_folder(folder)
            if not os.path.isdir(above):
                # The first part of the way that does not exist: what is made there later is hidden with it.
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
        never = ("/", *self._sight.homes, *self._sight.points, *self._shown)
        return frozenset(path for path in paths if path not in never)

    def _real_folder(self, folder: str) -> str:
        """Resolve a directory, and notice when one on its way becomes another."""
        if folder not in self._real_folders:
            above, _, name = folder.rpartition("/")
            real = self._real_folder(above)
            is_plain = not self._watched.leads(folder) and name not in ("", ".", "..")
            self._real_folders[folder] = f"{real.rstrip('/')}/{name}" if is_plain else os.path.realpath(folder)
        return self._real_folders[folder]

    def furnish_homes(self) -> None:
        """Put an empty home in the place of each, with the tools in it and settings that hold no secret."""
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
        self._hidden |= {path for path in tools.masked if not is_in(path, self._shown)}
        for path, to, why in tools.links:
            self._add(Link(target=path, to=to, why=why))
        for path, why in tools.folders:
            self._show(path, why)
        for path in self._sight.added:
            real = os.path.realpath(path)
            self._disk.exists(path)
            self._disk.exists(real)
            # Never what is masked by name.
            if os.path.exists(real) and innermost(real, self._hidden) is None and self._is_unseen(real):
                self._show(real, "you show it")
                if real != path and not os.path.islink(os.path.dirname(path)):
                    self._add(Link(target=path, to=real, why="you show it"))
        self._add_settings(tools)

    def _show(self, path: str, why: str) -> None:
        """Show a directory or a single file of a home, if no root shows it anyway."""
        if is_in(path, self._sight.points):
            return
        if os.path.isdir(path):
            self._directory(path, why)
        else:
            self._add(Bind(target=path, source=path, why=why))

    def _add_settings(self, tools: VisibleTools) -> None:
        """Write the settings of version controls and of package managers into the home, less what is secret in them."""
        home, variables = self._sight.homes[0], dict(self._sight.variables)
        if home not in self._hidden_homes:
            return
        from fumehood.linux.home_settings import GITCONFIG, flat_git_settings, tool_settings

        roots = self._sight.points
        git = flat_git_settings(
            home, variables.get("XDG_CONFIG_HOME", ""), variables, roots[0] if roots else "",
            in_sight=(*roots, *(path for path, _ in tools.folders)), user=self._sight.user,
        )  # fmt: skip
        others = tool_settings(home, variables, roots, self._sight.user)
        texts = {GITCONFIG: git.text, **dict(git.files)}
        path = variables.get("PATH", "")
        if any(is_in(folder, self._hidden_homes) for folder in path.split(":")):
            # What a login shell reads last: the system's files set PATH anew, without the tools of the home.
            texts[".profile"] = texts[".zprofile"] = f"PATH={shell_quote(path, always=True)}\nexport PATH\n"
        texts |= {each.path: each.text for each in others.files if not os.path.isabs(each.path)}
        elsewhere = [each.path for each in others.files if each.dropped]
        elsewhere += [variables.get("GIT_CONFIG_GLOBAL", "")] if git.dropped_keys else []
        shown = (*self._hidden_homes, *roots)
        self._hidden |= {os.path.realpath(path) for path in elsewhere if os.path.isabs(path) and not is_in(path, shown)}
        self._watched.add(git.watched)
        self._watched.add(others.watched)
        for name, text in texts.items():
            target = f"{home}/{name}"
            if is_in(target, [path for path, _ in tools.folders]):
                self._hidden |= {target}  # it would be shown as it is, with what is secret in it
            elif text:
                self._add(Text(target=target, content=os.fsencode(text), mode=0o600, why="settings without secrets"))

    def place_all(self, folder: str) -> None:
        for name, kind in sorted(self._disk.listing(folder).items()):
            self._place(f"{folder.rstrip('/')}/{name}", kind)

    def _place(self, path: str, kind: str) -> None:
        if path in UNSEEN:
            self._add(Folder(target=path))
        elif path == VAR_TMP and VAR_TMP in self._unseen:
            self._add_var_tmp()
        elif path in self._hidden:
            if path in self._ways_to_kept:
                self._add(Folder(target=path))
        elif kind == "l":
            self._add(Link(target=path, to=self._watched.leads(path)))
        elif kind == "d":
            self._directory(path)
        elif kind == "f" and os.access(path, os.R_OK):
            if os.path.getsize(path) > _SMALL:
                self._disk.exists(path)
                self._add(Bind(target=path, source=path))
                return
            mode = stat.S_IMODE(self._disk.mode(path)) & 0o755
            with open(path, "rb") as file:  # a copy costs no mount in every run
                self._add(Text(target=path, content=file.read(), mode=mode))

    def _directory(self, path: str, why: str = "") -> None:
        kind = self._mounts.get(path, "")
        if path in self._hidden_homes:
            self._add(Folder(target=path))
        elif kind in _SOCKETLESS:
            self._add(Bind(target=path, source=path, why=why))
        elif kind in _PSEUDO or (_is_remote(kind) and path not in self._needed):
            self._add(Folder(target=path))
        elif path in HOMES and path not in self._sight.homes:
            self._way_to_kept(path)
        elif self._sight.is_locked and any(is_below(point, path) for point in self._mounts):
            self._add(Folder(target=path))
            self.place_all(path)
        elif self._is_empty(path):
            self._add(Folder(target=path))
        else:
            self._add(View(target=path, sources=(path,), why=why))
            unseen = UNSEEN if is_below(path, VAR_TMP) else self._unseen
            # Another file system inside is not seen through the view, and gets one of its own.
            for point in sorted(self._mounts):
                if is_below(point, path) and innermost(point, self._hidden) is None and not is_in(point, unseen):
                    self._inner(point)
            if VAR_TMP in self._unseen and is_below(VAR_TMP, path):
                self._add_var_tmp()

    def _has_var_tmp(self) -> bool:
        """Return True if a command has its own: not where it is a link, to /tmp for example, or a person shows it."""
        kept = (*self._shown, *self._sight.points)
        is_plain = self._real_folder("/var") == "/var" and self._disk.exists(VAR_TMP) and os.path.isdir(VAR_TMP)
        if not is_plain or self._watched.leads(VAR_TMP) or VAR_TMP in kept:
            return False
        return self._sight.is_home_hidden or not any(is_in(home, (VAR_TMP,)) for home in self._sight.homes)

    def _add_var_tmp(self) -> None:
        """Put an empty one in the place of the host's; if a root or the home lies there, only what of it holds them."""
        names = {place[len(VAR_TMP) + 1 :].partition("/")[0] for place in self._kept if is_below(place, VAR_TMP)}
        why = "the host's has people's files in it"
        self._add(Tmpfs(target=VAR_TMP, mode=0o1777, is_sealed=bool(names), why=why))
        for child in sorted(f"{VAR_TMP}/{name}" for name in names):
            # Not by a listing: what others leave there makes no difference.
            if self._disk.exists(child):
                self._place_alone(child)

    def _place_alone(self, path: str) -> None:
        self._place(path, "l" if self._watched.leads(path) else "d" if os.path.isdir(path) else "f")

    def _is_empty(self, path: str) -> bool:
        """Return True if a directory has no entry; what entries it has makes no difference."""
        try:
            with os.scandir(path) as entries:
                is_empty = next(entries, None) is None
        except OSError:
            is_empty = True
        return not self._disk.listing(path) if is_empty else not self._disk.exists(path)

    def _way_to_kept(self, path: str) -> None:
        """Make a directory anew, with only those entries that lead to what is needed."""
        self._add(Folder(target=path))
        names = {place[len(path) + 1 :].partition("/")[0] for place in self._kept if is_below(place, path)}
        for child in sorted(f"{path}/{name}" for name in names):
            self._disk.exists(child)
            is_link = bool(self._watched.leads(child))
            if child in self._sight.homes or child in self._shown:
                self._place_alone(child)
            elif os.path.isdir(child) and not is_link:
                self._way_to_kept(child)

    def _inner(self, point: str) -> None:
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

    def finished(self) -> HostView:
        """Hide what is masked in each view, and add what every command has."""
        operations = self._with_masks()
        operations += [Link(target=path, to=to) for path in _RUN if (to := self._watched.leads(path))]
        for path in _SYS:
            if content := read(path):
                operations.append(Text(target=path, content=content, mode=0o444))
        return HostView(
            operations=(Tmpfs(target="/", is_sealed=True), *operations, Devices(target="/dev")),
            masked_in_roots=inside(sorted(self._hidden), self._sight.points),
            snapshot=self._watched, number=self._watched.sum,
        )  # fmt: skip

    def _with_masks(self) -> list[Operation]:
        views = frozenset(each.target for each in self._operations if isinstance(each, View))
        hidden: dict[str, list[str]] = {view: [] for view in views}
        masked: set[str] = set()
        opened: list[Operation] = []
        for path in sorted(self._hidden):
            around = self._view_of(path, views)
            if around is None:
                continue
            if path in self._ways_to_kept and os.path.isdir(path):
                # It holds something that is to be seen: an empty directory takes its place, with the way there.
                opened.append(Tmpfs(target=path, is_sealed=True, why="masked"))
            elif innermost(path.rpartition("/")[0], masked) is None:
                masked.add(path)
                hidden[around].append(path[len(around) + 1 :])
        # The places that something is mounted on and that the host lacks.
        points: dict[str, list[str]] = {view: [] for view in views}
        for path in self._sight.points:
            around = self._view_of(path, views)
            if around is not None and innermost(path, self._hidden) is None and not os.path.lexists(path):
                points[around].append(path[len(around) + 1 :])
        operations = [
            each.replace(hidden=tuple(hidden[each.target]), points=tuple(points[each.target]))
            if isinstance(each, View) else each
            for each in self._operations
        ]  # fmt: skip
        unmasked: list[Operation] = [
            View(target=path, sources=(path,), why="you unmasked it") if os.path.isdir(path)
            else Bind(target=path, source=path, why="you unmasked it")
            for path in self._shown if self._is_unseen(path)
        ]  # fmt: skip
        return [*operations, *opened, *unmasked]

    def _view_of(self, path: str, views: frozenset[str]) -> str | None:
        """Return the view that shows a path, or would; a hidden home covers the view around it."""
        around = innermost(path.rpartition("/")[0], views)
        home = innermost(path, self._hidden_homes)
        return around if around is None or home is None or is_below(around, home) else None

    def _is_unseen(self, path: str) -> bool:
        is_others = is_in(path, HOMES) and not is_in(path, self._sight.homes)
        return is_others or any(is_in(path, places) for places in (self._hidden, self._unseen, self._hidden_homes))


def _roots_mode(path: str) -> int:
    """Return the mode of what is root's, 0 of anything else: a database's directory changes all the time."""
    try:
        status = os.lstat(path)
    except OSError:  # gone meanwhile
        return 0
    return 0 if status.st_uid else status.st_mode


def _is_remote(kind: str) -> bool:
    return kind in _REMOTE or (kind.startswith("fuse") and kind not in _SOCKETLESS)


# Devices of the host that a person names: which can be shown, and what programs look up about them in `/sys`.

# Numbers of terminals, by the kernel's list of devices: consoles, what they show, and those of windows.
_CONSOLES, _FIRST_SERIAL_PORT = 4, 64
_SCREENS = (5, 7, *range(136, 144))
_ATTRIBUTES = ("uevent", "dev", "vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "class")


def fault_of(path: str) -> str:
    """Say why a device can't be shown to commands; nothing where it can."""
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
    """Return how devices are shown, or why not."""
    return [Device(target=path, why="you name it", fault=fault_of(path)) for path in paths]


def described_devices(paths: Iterable[str]) -> list[Operation]:
    """Return what the machine's description tells of devices, as plain files: graphics libraries ask for their maker.

    A device has a directory there, and so has the hardware behind it, in which the first one lies.
    """
    operations: dict[str, Operation] = {}
    for path in paths:
        if fault_of(path):
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
            operations |= {each.target: each for each in _attributes(folder)}
        if hardware != own:
            operations[f"{own}/device"] = Link(target=f"{own}/device", to=hardware)
    return list(operations.values())


def _attributes(folder: str) -> Iterable[Operation]:
    if os.path.islink(f"{folder}/subsystem"):
        yield Link(target=f"{folder}/subsystem", to=os.path.realpath(f"{folder}/subsystem"))
    for name in _ATTRIBUTES:
        path = f"{folder}/{name}"
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or not status.st_mode & stat.S_IROTH:
                continue
            with open(path, "rb") as file:
                yield Text(target=path, content=file.read(4096), mode=0o444)
        except OSError:
            continue  # it has no such attribute, or not any more
