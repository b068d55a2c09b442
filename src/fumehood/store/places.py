"""Where things lie on disk: the directories of the XDG standard, ours in each, closed to others; and the room there."""

from __future__ import annotations

import errno
import os
import pwd
import time

from fumehood.core.report import END_BYTES, END_ENTRIES, size_told
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError, NoRoom, own_umask
from fumehood.linux.libc import Closing, remove_file
from fumehood.linux.lock import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_PYTHONS_LOCALES = ("C.UTF-8", "C.utf8", "UTF-8")  # PEP 538


class Places(Value):
    """Our own directories."""

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
        """Where trees lie that stand for several held runs of a project; they can be made again."""
        return f"{self.state}/folded/{project}"

    def output(self, run: str, stream: str) -> str:
        """The file that holds the whole of an output too long for the record."""
        return f"{self.state}/outputs/{run}.{stream}"

    def stop_mark(self, run: str) -> str:
        """The file whose being there asks for the end of a run's command."""
        return f"{self.state}/locks/stop-{run}"

    def checkpoint_mark(self, run: str) -> str:
        """The file that asks for a checkpoint of a run's command, and holds the name that is to have."""
        return f"{self.state}/locks/checkpoint-{run}"

    def lock(self, name: str) -> str:
        """The file locked while something is nobody else's to do."""
        return f"{self.state}/locks/{name}"

    def session(self, name: str) -> str:
        """The directory of a session: its own /tmp, and what its commands tell us."""
        return f"{self.state}/sessions/{name}"

    @property
    def edits(self) -> str:
        """The notes of clients' edits that are begun: their files before them lie where their runs would."""
        return f"{self.state}/edits"

    @property
    def desk(self) -> str:
        """Where questions lie that wait for whoever is present."""
        return f"{self.state}/desk"

    @property
    def seats(self) -> str:
        """The file that tells which project a session edits, for those who have no time to ask the database."""
        return f"{self.state}/seats"

    def strangers(self, project: int) -> str:
        """The file that names what an overlay failed on in a project, for whose it was."""
        return f"{self.state}/strangers-{project}"

    @property
    def layers(self) -> str:
        """Where the layers lie that projects have over shared root trees."""
        return f"{self.data}/layers"

    def draft(self, number: int) -> str:
        """The directory of a draft, for a frozen copy of its project."""
        return f"{self.state}/drafts/{number}"

    @property
    def workspaces(self) -> str:
        """Where workspaces lie, each a project by itself."""
        return f"{self.data}/workspaces"

    @property
    def modes(self) -> str:
        """The notes of directories that are opened up for a while."""
        return f"{self.state}/modes"

    def own(self) -> tuple[str, ...]:
        """Every directory that no project may hold or lie in."""
        return self.state, self.data, self.cache, self.config


def home() -> str:
    """The person's home directory."""
    path = os.path.expanduser("~")
    if not path.startswith("/"):
        # A relative one would be another directory wherever we start, and in a project a command could write it.
        raise BadRequest(f"HOME is {path!r}, which is not an absolute path", hint="export HOME=/path/of/your/home")
    return path


def own_variables() -> dict[str, str]:
    """The variables that this program was given, and has set itself.

    Without the LC_CTYPE that Python sets where it is started in the C locale: nobody asked for that.
    """
    variables = dict(os.environ)  # the process's own is slow to ask
    if variables.get("LC_CTYPE") in _PYTHONS_LOCALES and variables.get("LANG", "C") in ("", "C", "POSIX"):
        with open("/proc/self/environ", "rb") as started_with:
            if not any(each.startswith(b"LC_CTYPE=") for each in started_with.read().split(b"\0")):
                del variables["LC_CTYPE"]
    return variables


def places(environment: Mapping[str, str] | None = None) -> Places:
    """Find our directories; those that hold the person's only copies are made at once."""
    variables = os.environ if environment is None else environment
    ours = Places(
        state=_base(variables, "XDG_STATE_HOME", ".local/state"),
        data=_base(variables, "XDG_DATA_HOME", ".local/share"),
        cache=_base(variables, "XDG_CACHE_HOME", ".cache"),
        config=_base(variables, "XDG_CONFIG_HOME", ".config"),
    )
    for directory in (ours.state, f"{ours.state}/runs", f"{ours.state}/outputs", f"{ours.state}/locks"):
        if not os.path.isdir(directory):
            make_private(directory)
    return ours


def state_directory() -> str:
    """Where our state lies, or will."""
    return _base(os.environ, "XDG_STATE_HOME", ".local/state")


def _base(variables: Mapping[str, str], variable: str, default: str) -> str:
    value, named, own = variables.get(variable, ""), home(), _own_home()
    # The standard says to ignore a relative path.
    if not value.startswith("/") or (own != named and f"{value}/".startswith(f"{named}/")):
        value = os.path.join(own, default)
    return f"{value}/fumehood"


def _own_home() -> str:
    """The home that our directories lie in: root's own where HOME is somebody else's home, as `sudo -E` leaves it.

    What root made there they could neither use nor remove, not even the directories above ours.
    """
    named = home()
    if os.geteuid() == 0 and os.path.isdir(named) and (owner := os.stat(named).st_uid) != 0:
        try:
            if os.path.realpath(pwd.getpwuid(owner).pw_dir) == os.path.realpath(named):
                return pwd.getpwuid(0).pw_dir
        except KeyError:
            return named  # in a container, say, where a home of the host's is all there is
    return named


def make_private(directory: str) -> None:
    """Make one of our directories, closed to others."""
    if os.geteuid() != 0 and not os.path.isdir(directory) and (umask := own_umask()):
        # Before it: what was made would stay closed when the umask is another.
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
    """Return True if anything is in one of our directories, which may not be there."""
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False


# ---- Room on the state's disk for the end of a run: a file that takes it, and is given back when the disk is full.
#
# A run begins only where that file is there and some room is left besides. So what a command did can be recorded,
# held or thrown away, even where others fill the disk meanwhile.

_RESERVED = 4 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


def reserve_room(state: str) -> None:
    """Take the room that the end of a run needs, or refuse to begin one."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with Closing(os.open(_reserve(state), flags, 0o600)) as file:
            try:
                if os.fstat(file).st_size < _RESERVED:
                    os.posix_fallocate(file, 0, _RESERVED)
            except OSError:
                os.unlink(_reserve(state))
                raise
    except OSError as error:
        if error.errno not in _FULL:
            raise
        lacking = shortage_to_begin(state) or f"the disk of {state} is full"
        raise NoRoom(f"no command can begin: {lacking}", hint=room_hint(state)) from error
    if lacking := shortage(state):
        raise NoRoom(f"no command can begin: {lacking}", hint=room_hint(state))


def shortage_to_begin(state: str) -> str:
    """Say what the disk lacks for another run to begin; "" where it has room."""
    try:
        reserved = os.stat(_reserve(state)).st_size
    except OSError:
        reserved = 0
    return shortage(state, besides=_RESERVED - reserved)


def shortage(state: str, *, besides: int = 0, part: int = 1) -> str:
    """Say what the disk lacks for the end of a run, where so much is taken `besides`; "" where it has room.

    With 2 as the `part`, half of what is needed for a run to begin is enough.
    """
    while not os.path.exists(state):
        state = os.path.dirname(state)
    disk = os.statvfs(state)
    free = disk.f_bavail * disk.f_frsize
    if free < END_BYTES // part + besides:
        return f"the disk of {state} has only {size_told(free)} left"
    # Some file systems have no fixed number of entries: they say 0.
    if disk.f_files and disk.f_favail < END_ENTRIES // part:
        return f"the disk of {state} has room for only {disk.f_favail} more files"
    return ""


def room_hint(state: str) -> str:
    """Say how to get room again."""
    needed = size_told(END_BYTES + _RESERVED)
    return f"free some of it ({needed} are needed in {state}): fumehood clean, or discard what is held"


def give_back_if_full(state: str) -> bool:
    """Give the room back where the disk has little left, for what is to be recorded now; tell if there was some."""
    return bool(shortage(state)) and remove_file(_reserve(state))


def _reserve(state: str) -> str:
    return f"{state}/reserve"


# ---- What is nobody else's to do for a while.

class Alone:
    """A lock on one of our files, for a `with` block; `first` is done as soon as it is held."""

    def __init__(
        self, path: str, first: Callable[[], None] | None = None, *, wait: bool = True, shared: bool = False
    ) -> None:
        self._path = path
        self._first = first
        self._wait = wait
        self._shared = shared
        self._lock: Lock | None = None

    def __enter__(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock = lock = Lock(os.open(self._path, flags, 0o600))
        try:
            lock.take(shared=self._shared, wait=self._wait)
            if self._first is not None:
                self._first()
        except BaseException:
            lock.close()
            raise

    def __exit__(self, *_error: object) -> None:
        if self._lock is not None:
            self._lock.close()


# ---- Name runs so that names are unique and sort by time.

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26


def new_id(now_ns: int | None = None) -> str:
    """Return a fresh id: milliseconds, microseconds, then chance, in letters that can't be confused."""
    now = time.time_ns() if now_ns is None else now_ns
    milliseconds, rest = divmod(now, 1_000_000)
    chance = int.from_bytes(os.urandom(9), "big") >> 2
    return _spelled(milliseconds << 80 | (rest // 1000) << 70 | chance, _ALPHABET, LENGTH)[::-1]


def _spelled(number: int, alphabet: str, length: int) -> str:
    """Write a number in some letters, the last digit first."""
    letters = []
    for _ in range(length):
        number, digit = divmod(number, len(alphabet))
        letters.append(alphabet[digit])
    return "".join(letters)


# ---- The mark that tells our own words from a command's: letters that a model is told, and no command can know.

# None that an escape of another letter is written with, so that no escape can be a part of a mark.
_MARK_ALPHABET = "ghjkmpqsvwyz"
_MARK_LENGTH = 12
_KEY_BYTES = 32


def new_mark() -> str:
    """Return a mark that nobody knows yet."""
    return _spelled(int.from_bytes(os.urandom(16), "big"), _MARK_ALPHABET, _MARK_LENGTH)


def session_mark(state: str, session: str) -> str:
    """Return the mark of a client's conversation: the hook tells it, and each command's own process finds it again.

    It is kept nowhere: it is made of the session's name and a key in our state, which no command sees.
    """
    import _blake2  # what `hashlib` has it from, without OpenSSL around it

    digest: bytes = _blake2.blake2b(os.fsencode(session), key=_key(state), digest_size=16).digest()
    return _spelled(int.from_bytes(digest, "big"), _MARK_ALPHABET, _MARK_LENGTH)


def _key(state: str) -> bytes:
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
