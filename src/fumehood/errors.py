"""Every error Fumehood raises: what failed, the next step, and the exit code it becomes."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class FumehoodError(Exception):
    """Something Fumehood was asked to do can't be done; nothing was lost.

    `run` is the id under which it is recorded, where it is, and `report` then the object that tells of that run.
    """

    exit_code = 125
    run = ""
    report: dict[str, object] | None = None

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class BadRequest(FumehoodError):
    """What was asked makes no sense: an empty command, an unknown run, a forbidden project."""


class NoDirectory(BadRequest):
    """A command's working directory is not there, or not to be entered, as the command sees it."""


class BadConfiguration(FumehoodError):
    """The person's configuration says something that can't be followed; nothing runs until it is mended."""


class Refused(FumehoodError):
    """A person, or the absence of one, said no."""

    exit_code = 126


class ChangedMeanwhile(Refused):
    """What a person said yes to is not what is there now: nothing was done, and they can be asked again."""


class Unavailable(FumehoodError):
    """This host lacks an ability that the request needs."""


class OverlayUnavailable(Unavailable):
    """A root can't be captured by an overlay here."""


class LaunchFailed(FumehoodError):
    """The sandbox itself failed to start: the command never ran."""


class ApplyFailed(FumehoodError):
    """Changes could not be taken over; the project is as it was before."""


class DraftConflict(ApplyFailed):
    """A draft and the project have both changed the same; `conflicts` tell where, and nothing was applied."""

    conflicts: tuple[object, ...] = ()


class TooDeep(FumehoodError):
    """Directories are nested deeper than anything that is taken over; what is there is left as it is."""


class Unfinished(FumehoodError):
    """An apply or undo, or the look at what a command changed, stopped half-way; the next start goes on with it."""


class UndoRefused(FumehoodError):
    """A path is no longer what the run left, so taking the run back would lose something."""


class StoreDamaged(FumehoodError):
    """What we remember can't be read, or comes from a newer version."""


class NoRoom(FumehoodError):
    """The disk that holds what we remember is full; what is recorded there stays as it is."""


class Unforeseen(FumehoodError):
    """Something went wrong that nobody thought of; what it was is the cause."""


RAISED_BY = "raised by "  # a note on what a function raised that a program passed to us, with its name


def raised_by(error: BaseException) -> str:
    """Return the name of the program's function that raised this; nothing where it was no function of the program."""
    notes = (note for note in getattr(error, "__notes__", ()) if note.startswith(RAISED_BY))
    return next(notes, "").removeprefix(RAISED_BY)


def reason_of(error: BaseException) -> str:
    """Return what a run's record says of what ended it."""
    whose = raised_by(error)
    if whose:
        return f"{whose} raised {type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        return "the program that asked for it ended"
    return str(error) or ("interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__)


MORE_FILES = "allow more open files: ulimit -n 1024"
NO_PROC, MOUNT_PROC = "nothing is mounted at /proc, as in a bare chroot", "mount -t proc proc /proc"


def own_umask() -> str:
    """Say it where this process takes all rights to what it makes from itself; nothing where it does not."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            umask = next((line.split()[1] for line in status if line.startswith("Umask:")), "0")
    except OSError:
        return ""  # where there is no /proc, or no file can be opened any more
    return f"your umask {umask} takes what you make from yourself: umask 022" if int(umask, 8) & 0o700 else ""


def plain_error(error: Exception) -> FumehoodError:
    """Return an error of ours for any other: one line, and what to do about it."""
    if isinstance(error, FumehoodError):
        return error
    hint = "FUMEHOOD_DEBUG=1 shows where it happened"
    if isinstance(error, OSError) and error.strerror:
        name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
        where = f": {name!r}" if name else ""
        hints = {
            errno.EMFILE: MORE_FILES, errno.ENOSPC: "check that the disk is not full",
            errno.EROFS: "make it writable, or have records elsewhere: export XDG_STATE_HOME=DIR",
        }  # fmt: skip
        why = own_umask() if error.errno == errno.EACCES else ""
        if name and str(name).startswith("/proc/self/") and not os.path.exists("/proc/self"):
            why = f"{NO_PROC}: {MOUNT_PROC}"
        plain = Unforeseen(f"{error.strerror}{where}", hint=why or hints.get(error.errno or 0, hint))
    elif isinstance(error, UnicodeError):
        plain = Unforeseen("a text is not valid Unicode", hint=hint)
    elif isinstance(error, MemoryError):
        plain = Unforeseen("there is not enough memory", hint=hint)
    else:
        plain = Unforeseen(f"something unexpected happened: {type(error).__name__}: {error}"[:500], hint=hint)
    plain.__cause__ = error
    return plain


def lacking(error: ModuleNotFoundError, what: str, extra: str, packages: Sequence[str]) -> Exception:
    """Say how to get a package that an extra brings; anything else that is missing is a fault of ours."""
    if error.name is None or error.name.partition(".")[0] not in packages:
        return error
    return Unavailable(
        f"{what} needs a package that is not here: {error.name}",
        hint=f"in a checkout of Fumehood: pip install '.[{extra}]'",
    )
