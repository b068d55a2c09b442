"""Make the `/` that commands see: a small tree of ours, made once a boot, with views of the host mounted on it.

It lies in memory, in a directory that no view shows: the kernel refuses an overlay whose layers contain each other.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import zlib

from fumehood.core.value import Value
from fumehood.errors import Unavailable
from fumehood.linux import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fumehood.linux.survey import Backdrop, View

STAND = "/sys"  # there on every host, and of no use to bubblewrap
SHOWN = f"{STAND}/root"
FORMAT = "3"  # to be changed with how the host is shown: what was prepared before is then made again
_ROOMS = ("/dev/shm", "/tmp")  # noqa: S108 - each name in them is checked to be ours
_NAMES = 16
_KEPT, _UNUSED_S = 64, 7 * 24 * 3600
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_SPECIAL = frozenset(",:\\")


class Mounts(Value):
    """What the launcher mounts: a prepared backdrop, its views with the number of each one's cover, and the bound."""

    directory: str
    views: tuple[tuple[str, int], ...]
    bound: tuple[str, ...]
    survey: int = 0  # which one it comes from: after another, what was mounted ahead is not used


class Prepared(Value):
    """A backdrop as it lies there, and the times of all its directories: whoever removed a mask changed one."""

    mounts: Mounts
    times: tuple[tuple[str, int], ...]
    inside: tuple[str, ...] = ()  # what is hidden and lies where something is mounted: not the launcher's matter

    def is_whole(self) -> bool:
        """Tell whether it is still as it was made."""
        try:
            return all(os.stat(path).st_mtime_ns == time for path, time in self.times)
        except OSError:
            return False


def use(made: Prepared) -> None:
    """Leave a mark on a backdrop that it is still wanted."""
    try:
        os.utime(made.mounts.directory)
    except OSError:
        return  # gone just now: it is made again when the launch finds out


def lies_apart(state: str) -> bool:
    """Tell whether backdrops lie on another file system than `/`, which a view can then show whole."""
    return os.stat(_room(state)).st_dev != os.stat("/").st_dev


def prepared(backdrop: Backdrop, state: str) -> Prepared:
    """Make a backdrop, or find it made; `state` is the directory of ours that it is for."""
    text = f"{FORMAT} {backdrop!r}".encode(errors="surrogateescape")
    room = _room(state)
    directory = f"{room}/{zlib.crc32(text):08x}-{len(text)}"
    times = _found(directory, text)
    if times is None:
        try:
            lock = _alone(room)
            try:
                times = _found(directory, text) or _make(backdrop, room, directory, text)
            finally:
                os.close(lock)
        except OSError as error:
            raise Unavailable(
                f"cannot prepare what commands see in {room}: {error.strerror} ({error.filename})",
                hint="fumehood doctor says what is missing here",
            ) from error
    covered = [view for view in backdrop.views if view.cover]
    mounts = Mounts(
        directory=directory,
        views=tuple((view.path, covered.index(view) + 1 if view.cover else 0) for view in backdrop.views),
        bound=tuple(path for path, _ in backdrop.bound),
    )
    return Prepared(mounts=mounts, times=times, inside=backdrop.inside)


def recalled(key: bytes, state: str) -> tuple[dict[str, tuple[int, int]], Prepared] | None:
    """Return what an earlier process found out under the same key: what it looked at, and the backdrop it made."""
    import marshal

    try:
        with open(f"{_room(state)}/survey-{zlib.crc32(key):08x}", "rb") as file:
            known, watched, directory, views, bound, inside, times = marshal.loads(file.read())  # noqa: S302 - ours, 0700
    except (OSError, ValueError, EOFError, TypeError):
        return None
    if known != key:
        return None
    return watched, Prepared(mounts=Mounts(directory=directory, views=views, bound=bound), times=times, inside=inside)


def remember(key: bytes, watched: dict[str, tuple[int, int]], found: Prepared, state: str) -> None:
    """Keep what was found out for the next process; where that can't be done, it only costs time."""
    import marshal

    mounts = found.mounts
    path = f"{_room(state)}/survey-{zlib.crc32(key):08x}"
    text = marshal.dumps((key, watched, mounts.directory, mounts.views, mounts.bound, found.inside, found.times))
    try:
        with open(f"{path}.{os.getpid()}", "wb") as file:
            file.write(text)
        os.replace(f"{path}.{os.getpid()}", path)
    except OSError:
        return


def _room(state: str) -> str:
    """Find or make our own directory in a place that everybody writes to: one that is not ours is passed over."""
    places = [place for place in _ROOMS if os.access(place, os.W_OK | os.X_OK)]
    for place in places:
        for number in range(_NAMES):
            room = f"{place}/fumehood-{os.geteuid()}-{zlib.crc32(os.fsencode(state)):08x}-{number}"
            try:
                os.mkdir(room, 0o700)
            except FileExistsError:
                found = os.lstat(room)
                if (found.st_uid, found.st_mode) != (os.geteuid(), stat.S_IFDIR | 0o700):
                    continue
            else:
                _forget_others(place, room)
                _write(f"{room}/state", os.fsencode(state))
            return room
    raise Unavailable(
        f"cannot make a directory in {' or '.join(_ROOMS)}", hint="what commands see is prepared there: mend its mode"
    )


def _forget_others(place: str, room: str) -> None:
    """Remove what was made for a state directory that is gone."""
    import shutil

    prefix = f"fumehood-{os.geteuid()}-"
    for name in os.listdir(place):
        other = f"{place}/{name}"
        if not name.startswith(prefix) or other == room:
            continue
        try:
            if os.lstat(other).st_uid != os.geteuid():
                continue
            with open(f"{other}/state", "rb") as file:
                state = file.read()
                is_used = not state or os.path.isdir(state)  # or about to be written
        except OSError:
            continue  # one that is being made, or that another process has removed
        if not is_used:
            shutil.rmtree(other, ignore_errors=True)


def _write(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)


def _found(directory: str, text: bytes) -> tuple[tuple[str, int], ...] | None:
    """Read the times of a backdrop that lies there whole."""
    try:
        with open(f"{directory}/what", "rb") as file:
            if file.read() != text:
                return None
        with open(f"{directory}/times", encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split(" ", 1) for line in file.read().split("\0")[:-1]]
        times = tuple((f"{directory}/{below}", int(time)) for time, below in lines)
        whole = all(os.stat(path).st_mtime_ns == time for path, time in times)
    except (OSError, ValueError):
        return None
    return times if whole and times else None


def _make(backdrop: Backdrop, room: str, directory: str, text: bytes) -> tuple[tuple[str, int], ...]:
    _make_room(room)
    beside = f"{room}/new-{os.getpid()}-{time.monotonic_ns()}"
    os.mkdir(beside, 0o700)
    try:
        _fill(backdrop, beside)
        times = tuple((below, os.stat(f"{beside}/{below}").st_mtime_ns) for below in _folders(beside))
        _write(f"{beside}/what", text)
        listed = "".join(f"{time} {below}\0" for below, time in times)
        _write(f"{beside}/times", listed.encode(errors="surrogateescape"))
        os.chmod(beside, 0o755)  # noqa: S103 - its parent is closed; an owner that root works for sees it by a bind
        if os.path.lexists(directory):
            # It is not whole, or another has the same sum; one that runs may still use it.
            os.rename(directory, f"{beside}-old")
        os.rename(beside, directory)
    except BaseException:
        import shutil

        shutil.rmtree(beside, ignore_errors=True)
        raise
    return tuple((f"{directory}/{below}", time) for below, time in times)


def _alone(room: str) -> int:
    """Keep threads and processes that make the same backdrop apart, until what is returned is closed."""
    import fcntl

    lock = os.open(f"{room}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _make_room(room: str) -> None:
    """Forget what nobody has used for long, where there is much: a command that runs would lose what it sees."""
    made = [f"{room}/{name}" for name in os.listdir(room) if name not in ("state", "lock")]
    if len(made) < _KEPT:
        return
    import shutil

    before = time.time() - _UNUSED_S
    for path in made:
        if os.lstat(path).st_mtime > before:
            continue
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def _folders(directory: str) -> Iterator[str]:
    for folder, _, _ in os.walk(directory):
        if folder != directory:
            yield folder[len(directory) + 1 :]


def _fill(backdrop: Backdrop, directory: str) -> None:
    shown = f"{directory}/root"
    for folder in (shown, f"{directory}/cover", f"{directory}/cover/0"):
        os.mkdir(folder, 0o755)
    for number, view in enumerate([view for view in backdrop.views if view.cover], 1):
        _cover(view, f"{directory}/cover/{number}")
        if not view.path:
            shown = f"{directory}/cover/{number}"
    for folder in backdrop.folders:
        os.makedirs(shown + folder, mode=0o755, exist_ok=True)
    for path, target in backdrop.links:
        os.symlink(target, shown + path)
    for path, text in backdrop.texts:
        os.makedirs(os.path.dirname(shown + path), mode=0o755, exist_ok=True)
        with open(shown + path, "x", encoding="latin-1", newline="") as file:
            file.write(text)
            os.fchmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode) & 0o755)
    # In a view, the mount point is there already, unless its directory is made anew.
    views = [view.path for view in backdrop.views if view.path]
    for path, is_directory in backdrop.bound:
        is_missing = not is_directory and not any(path.startswith(f"{view}/") for view in views)
        if is_missing and os.path.isdir(os.path.dirname(shown + path)):
            os.close(os.open(shown + path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _cover(view: View, at: str) -> None:
    """Make what is laid over a view; its top and the directories on the way look like the host's own."""
    os.mkdir(at, 0o755)
    top = view.path or "/"
    _like(top, at, stat.S_IMODE(os.stat(top).st_mode))
    for kind, below, mode in view.cover:
        path = f"{at}/{below}"
        if kind == "hide":
            os.mknod(path, stat.S_IFCHR | 0o600, 0)  # a whiteout, which needs no privilege
        elif kind == "file":
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        else:
            os.mkdir(path, 0o700)
            _like(f"{view.path}/{below}", path, mode)
            if kind == "opaque":
                os.setxattr(path, "user.overlay.opaque", b"y")


def _like(original: str, copy: str, mode: int) -> None:
    if os.geteuid() == 0 and os.path.lexists(original):
        found = os.lstat(original)
        try:
            os.chown(copy, found.st_uid, found.st_gid)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # In a user namespace that has no name for its owner, whom it would not show either.
    os.chmod(copy, mode | stat.S_IRWXU)


def mount(mounts: Mounts) -> None:
    """Mount everything, in the launcher's own namespace; bubblewrap then shows `SHOWN` as `/`.

    By a bind at a fixed place: also a user whom root works for, and who can't reach our state, gets there.
    """
    libc.mount(os.fsencode(mounts.directory), STAND.encode(), None, libc.MS_BIND, None)
    for path, cover in mounts.views:
        try:
            _mount_view(path, cover)
        except FileNotFoundError:
            continue  # gone since the survey: an empty directory shows that
    for path in mounts.bound:
        try:
            libc.mount(os.fsencode(path), os.fsencode(SHOWN + path), None, libc.MS_BIND, None)
        except FileNotFoundError:
            continue


def unmount() -> None:
    """Take away what was mounted, or begun to be, in this namespace of ours."""
    try:
        libc.umount(STAND.encode(), libc.MNT_DETACH)
    except OSError as error:
        if error.errno != errno.EINVAL:  # nothing of ours is there
            raise


def _mount_view(path: str, cover: int) -> None:
    # Named by a descriptor only where a byte would mean something in an option.
    top = path or "/"
    lower = top if _SPECIAL.isdisjoint(path) else f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_CLOEXEC)}"
    above = f"{STAND}/cover/{cover}"
    # What is on top gives the directory itself its mode and owner.
    layers = f"{above}:{lower}" if cover else f"{lower}:{above}"
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    libc.mount(b"overlay", os.fsencode(SHOWN + path), b"overlay", flags, os.fsencode(f"lowerdir={layers},userxattr"))
