"""Fumehood's files on disk: its directories (by the XDG standard, closed to other users), disk space, locks, ids."""

from __future__ import annotations

import errno
import os
import pwd
import time

from fumehood.core.report import END_BYTES, END_ENTRIES, format_size
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError, NoRoom, umask_hint
from fumehood.linux.libc import Closing, remove_file
from fumehood.linux.lock import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_LOCALES_SET_BY_PYTHON = ("C.UTF-8", "C.utf8", "UTF-8")  # PEP 538


class Places(Value):
    """Fumehood's own directories, and the paths of what lies in them."""

    state: str
    data: str
    cache: str
    config: str

    @property
    def database(self) -> str:
        """The file that holds all records."""
        return f"{self.state}/fumehood.db"

    def run(self, run: str) -> str:
        """The directory that holds a run's layers."""
        return f"{self.state}/runs/{run}"

    def layer(self, run: str, root: int, part: str) -> str:
        """One part of the layer that captured a run's writes to one root."""
        return f"{self.state}/runs/{run}/{root}/{part}"

    def folded(self, project: int) -> str:
        """The directory of folded trees, each of which shows several held runs of a project; they can be made again."""
        return f"{self.state}/folded/{project}"

    def output(self, run: str, stream: str) -> str:
        """The file that holds an output which is too long for the database."""
        return f"{self.state}/outputs/{run}.{stream}"

    def stop_mark(self, run: str) -> str:
        """The file that asks for the end of a run's command: it is enough that it exists."""
        return f"{self.state}/locks/stop-{run}"

    def checkpoint_mark(self, run: str) -> str:
        """The file that asks for a checkpoint of a run's command; it holds the name of the checkpoint."""
        return f"{self.state}/locks/checkpoint-{run}"

    def lock(self, name: str) -> str:
        """The lock file of this name."""
        return f"{self.state}/locks/{name}"

    def session(self, name: str) -> str:
        """The directory of a session: its own /tmp, and the messages of its commands to Fumehood."""
        return f"{self.state}/sessions/{name}"

    @property
    def edits(self) -> str:
        """The directory of notes about edits that clients have begun.

        Copies of the files as they were before lie in the directory that a run with the edit's id would have.
        """
        return f"{self.state}/edits"

    @property
    def desk(self) -> str:
        """The directory of questions that wait for an answer."""
        return f"{self.state}/desk"

    @property
    def edited_projects(self) -> str:
        """The file that says which project each session edits: reading it is faster than asking the database."""
        return f"{self.state}/seats"

    def foreign_files_list(self, project: int) -> str:
        """The file that lists paths of a project that an overlay could not change, because of their owners."""
        return f"{self.state}/strangers-{project}"

    @property
    def layers(self) -> str:
        """The directory of the root layers: what projects wrote over shared root trees."""
        return f"{self.data}/layers"

    def draft(self, number: int) -> str:
        """The directory of a draft: it holds the frozen copy of the project."""
        return f"{self.state}/drafts/{number}"

    def frozen(self, number: int) -> str:
        """The directory with the frozen copies of a project's roots that a draft made."""
        return f"{self.draft(number)}/frozen"

    @property
    def workspaces(self) -> str:
        """The directory of the workspaces, each of which is a project."""
        return f"{self.data}/workspaces"

    @property
    def modes(self) -> str:
        """The directory of notes about directories whose modes are changed for a while."""
        return f"{self.state}/modes"

    def own_directories(self) -> tuple[str, ...]:
        """Fumehood's directories: no project may contain one of them, or lie in one."""
        return self.state, self.data, self.cache, self.config


def home() -> str:
    """The person's home directory."""
    path = os.path.expanduser("~")
    if not path.startswith("/"):
        # A relative path would mean another directory wherever we start; in a project, a command could write it.
        raise BadRequest(f"HOME is {path!r}, which is not an absolute path", hint="export HOME=/path/of/your/home")
    return path


_KEPT = "FUMEHOOD_KEPT_"  # begins the names of variables that the wrapper keeps from what starts outside


def process_variables() -> dict[str, str]:
    """Return the person's environment: with what the wrapper kept, without an LC_CTYPE that only Python has set.

    Python sets one when it is started in the C locale.
    """
    variables = {name.removeprefix(_KEPT): value for name, value in os.environ.items()}
    if variables.get("LC_CTYPE") in _LOCALES_SET_BY_PYTHON and variables.get("LANG", "C") in ("", "C", "POSIX"):
        with open("/proc/self/environ", "rb") as started_with:
            if not any(each.startswith(b"LC_CTYPE=") for each in started_with.read().split(b"\0")):
                del variables["LC_CTYPE"]
    return variables


def places(environment: Mapping[str, str] | None = None) -> Places:
    """Find Fumehood's directories; the state directories, which hold the only copies of files, are made at once."""
    variables = os.environ if environment is None else environment
    found_places = Places(
        state=_our_directory(variables, "XDG_STATE_HOME", ".local/state"),
        data=_our_directory(variables, "XDG_DATA_HOME", ".local/share"),
        cache=cache_directory(variables),
        config=_our_directory(variables, "XDG_CONFIG_HOME", ".config"),
    )
    state = found_places.state
    for directory in (state, f"{state}/runs", f"{state}/outputs", f"{state}/locks"):
        if not os.path.isdir(directory):
            make_private(directory)
    return found_places


def state_directory() -> str:
    """Return the path of the state directory, which may not exist yet."""
    return _our_directory(os.environ, "XDG_STATE_HOME", ".local/state")


def cache_directory(variables: Mapping[str, str] = os.environ) -> str:
    """Return the path of the cache directory, which may not exist yet."""
    return _our_directory(variables, "XDG_CACHE_HOME", ".cache")


def _our_directory(variables: Mapping[str, str], variable: str, default: str) -> str:
    value, home_variable, our_home = variables.get(variable, ""), home(), _home_of_our_files()
    # The standard says to ignore a relative path.
    if not value.startswith("/") or (our_home != home_variable and f"{value}/".startswith(f"{home_variable}/")):
        value = os.path.join(our_home, default)
    return f"{value}/fumehood"


def _home_of_our_files() -> str:
    """Return the home for Fumehood's directories: root's own, if HOME is another user's home (as with `sudo -E`).

    That user could neither use nor remove what root would make there.
    """
    home_variable = home()
    if os.geteuid() == 0 and os.path.isdir(home_variable) and (owner := os.stat(home_variable).st_uid) != 0:
        try:
            if os.path.realpath(pwd.getpwuid(owner).pw_dir) == os.path.realpath(home_variable):
                return pwd.getpwuid(0).pw_dir
        except KeyError:
            return home_variable  # for example in a container that mounts a home of the host
    return home_variable


def make_private(directory: str) -> None:
    """Make one of our directories, closed to others."""
    if os.geteuid() != 0 and not os.path.isdir(directory) and (umask := umask_hint()):
        # Checked first: a directory made under this umask would stay closed after the umask is corrected.
        raise FumehoodError(f"cannot make {directory}: Permission denied", hint=umask)
    try:
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        os.mkdir(directory, 0o700)
    except FileExistsError:
        return  # another process was faster
    except OSError as error:
        raise FumehoodError(
            f"cannot make {directory}: {error.strerror}",
            hint="Fumehood keeps its records there; set XDG_STATE_HOME to a directory you can write",
        ) from error


def has_entries(directory: str) -> bool:
    """Return True if a directory exists and is not empty."""
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False


# ---- Disk space for the end of a run: a reserve file takes it, and is removed when the disk is full.
#
# A run begins only if the reserve file exists and there is more space besides. So the changes of a command can be
# recorded, held or discarded even if other programs fill the disk in the meantime.

_RESERVE_BYTES = 4 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def ensure_room_to_begin(state: str) -> None:
    """Make the reserve file for the end of a run; raises NoRoom if the disk has too little space."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with Closing(os.open(_reserve_file(state), flags, 0o600)) as file:
            try:
                if os.fstat(file).st_size < _RESERVE_BYTES:
                    os.posix_fallocate(file, 0, _RESERVE_BYTES)
            except OSError:
                os.unlink(_reserve_file(state))
                raise
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        lacking = shortage_to_begin(state) or f"the disk of {state} is full"
        raise NoRoom(f"no command can begin: {lacking}", hint=room_hint(state)) from error
    if lacking := shortage(state):
        raise NoRoom(f"no command can begin: {lacking}", hint=room_hint(state))


def shortage_to_begin(state: str) -> str:
    """Say what the disk lacks for another run to begin; "" if it has enough space."""
    try:
        reserved = os.stat(_reserve_file(state)).st_size
    except OSError:
        reserved = 0
    return shortage(state, additional=_RESERVE_BYTES - reserved)


def shortage(state: str, *, additional: int = 0, divisor: int = 1) -> str:
    """Say what the disk lacks for the end of a run; "" if it has enough space.

    `additional` bytes are needed too. With a `divisor` of 2, half of what a run needs to begin is enough.
    """
    while not os.path.exists(state):
        state = os.path.dirname(state)
    disk = os.statvfs(state)
    free = disk.f_bavail * disk.f_frsize
    if free < END_BYTES // divisor + additional:
        return f"the disk of {state} has only {format_size(free)} left"
    # File systems without a fixed number of files say 0.
    if disk.f_files and disk.f_favail < END_ENTRIES // divisor:
        return f"the disk of {state} has room for only {disk.f_favail} more files"
    return ""


def room_hint(state: str) -> str:
    """Return the hint that says how to free disk space."""
    needed = format_size(END_BYTES + _RESERVE_BYTES)
    return f"free some of it ({needed} are needed in {state}): fumehood clean, or discard what is held"


def release_reserve_if_full(state: str) -> bool:
    """Remove the reserve file if the disk is nearly full; return True if that freed space."""
    return bool(shortage(state)) and remove_file(_reserve_file(state))


def _reserve_file(state: str) -> str:
    return f"{state}/reserve"


# ---- Locks.

class FileLock:
    """A lock on one of our files, for a `with` block; `on_locked` is called as soon as the lock is held."""

    def __init__(
        self, path: str, on_locked: Callable[[], None] | None = None, *, wait: bool = True, shared: bool = False
    ) -> None:
        self._path = path
        self._on_locked = on_locked
        self._wait = wait
        self._shared = shared
        self._lock: Lock | None = None

    def __enter__(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock = lock = Lock(os.open(self._path, flags, 0o600))
        try:
            lock.take(shared=self._shared, wait=self._wait)
            if self._on_locked is not None:
                self._on_locked()
        except BaseException:
            lock.close()
            raise

    def __exit__(self, *_error: object) -> None:
        if self._lock is not None:
            self._lock.close()


# ---- Run ids: they are unique and sort by time.

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ID_LENGTH = 26


def new_id(now_ns: int | None = None) -> str:
    """Return a new id: milliseconds, microseconds and random bits, in letters that are not mistaken for each other."""
    now = time.time_ns() if now_ns is None else now_ns
    milliseconds, nanoseconds = divmod(now, 1_000_000)
    random_bits = int.from_bytes(os.urandom(9), "big") >> 2
    return _encode(milliseconds << 80 | (nanoseconds // 1000) << 70 | random_bits, _ALPHABET, ID_LENGTH)[::-1]


def _encode(number: int, alphabet: str, length: int) -> str:
    """Write a number with the letters of an alphabet, the lowest digit first."""
    letters = []
    for _ in range(length):
        number, digit = divmod(number, len(alphabet))
        letters.append(alphabet[digit])
    return "".join(letters)


# ---- Marks: a model is told the mark, and no command can know it, so it shows which words are Fumehood's own.

# No letter of these occurs in an escape sequence such as \x1b, so no escape can be a part of a mark.
_MARK_ALPHABET = "ghjkmpqsvwyz"
_MARK_LENGTH = 12
_KEY_BYTES = 32


def new_mark() -> str:
    """Return a new random mark."""
    return _encode(int.from_bytes(os.urandom(16), "big"), _MARK_ALPHABET, _MARK_LENGTH)


def session_mark(state: str, session: str) -> str:
    """Return the mark of a client's conversation: the hook tells it, and each command's own process computes it again.

    It is computed from the session's name and a secret key in the state directory, which no command sees.
    """
    import _blake2  # the part of `hashlib` that does not load OpenSSL

    digest: bytes = _blake2.blake2b(os.fsencode(session), key=_mark_key(state), digest_size=16).digest()
    return _encode(int.from_bytes(digest, "big"), _MARK_ALPHABET, _MARK_LENGTH)


def _mark_key(state: str) -> bytes:
    path = f"{state}/mark.key"
    if not os.path.exists(path):
        if not os.path.isdir(state):
            make_private(state)
        beside = f"{path}.{os.urandom(8).hex()}"
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, os.urandom(_KEY_BYTES))
            os.link(beside, path)
        except FileExistsError:
            pass  # another process was faster: its key counts
        finally:
            os.close(file)
            os.unlink(beside)
    with open(path, "rb") as key:
        return key.read(_KEY_BYTES)
