"""Every error that Fumehood raises: what failed, the next step, and the exit code."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class FumehoodError(Exception):
    """Fumehood can't do what it was asked to do; nothing was lost.

    If the request is recorded as a run, `run` is its id and `report` is its report, as an object for programs.
    """

    exit_code = 125
    run = ""
    report: dict[str, object] | None = None

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class BadRequest(FumehoodError):
    """The request makes no sense: an empty command, an unknown run, a forbidden project."""


class NoDirectory(BadRequest):
    """A command's working directory does not exist or can't be entered, as the command sees it."""


class BadConfiguration(FumehoodError):
    """The person's configuration can't be followed; nothing runs until it is mended."""


class Refused(FumehoodError):
    """A person said no, or nobody was there to say yes."""

    exit_code = 126


class ChangedMeanwhile(Refused):
    """What a person agreed to has changed since: nothing was done, and they can be asked again."""


class Unavailable(FumehoodError):
    """This host lacks an ability that the request needs."""


class OverlayUnavailable(Unavailable):
    """A root can't be captured by an overlay here."""


class LaunchFailed(FumehoodError):
    """The sandbox itself failed to start: the command never ran."""


class ApplyFailed(FumehoodError):
    """Changes could not be applied; the project is as it was before."""


class DraftConflict(ApplyFailed):
    """A draft and the project have both changed the same paths, listed in `conflicts`; nothing was applied."""

    conflicts: tuple[object, ...] = ()


class TooDeep(FumehoodError):
    """Directories are nested too deep to be applied; they are left as they are."""


class Unfinished(FumehoodError):
    """An apply, an undo or the scan of a command's changes stopped half-way; the next start goes on with it."""


class UndoRefused(FumehoodError):
    """A path has changed since the run, so taking the run back would lose something."""


class StoreDamaged(FumehoodError):
    """Fumehood's records can't be read, or come from a newer version."""


class NoRoom(FumehoodError):
    """The disk that holds Fumehood's records is full; what is recorded stays as it is."""


class Unforeseen(FumehoodError):
    """Something went wrong that nobody foresaw; the error's cause says what."""


# A note with this beginning names the function of the calling program that raised an error.
RAISED_BY = "raised by "


def raised_by(error: BaseException) -> str:
    """Return the name of the calling program's function that raised an error, or "" if none did."""
    notes = (note for note in getattr(error, "__notes__", ()) if note.startswith(RAISED_BY))
    return next(notes, "").removeprefix(RAISED_BY)


def end_reason(error: BaseException) -> str:
    """Return what the record of a run says about the error that ended it."""
    function = raised_by(error)
    if function:
        return f"{function} raised {type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        return "the program that asked for it ended"
    return str(error) or ("interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__)


MORE_FILES = "allow more open files: ulimit -n 1024"
NO_PROC, MOUNT_PROC = "nothing is mounted at /proc, as in a bare chroot", "mount -t proc proc /proc"


def umask_hint() -> str:
    """Return a hint if this process's umask denies it the files that it makes itself, else ""."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            umask = next((line.split()[1] for line in status if line.startswith("Umask:")), "0")
    except OSError:
        return ""  # there is no /proc, or no file can be opened any more
    return f"your umask {umask} takes what you make from yourself: umask 022" if int(umask, 8) & 0o700 else ""


def as_fumehood_error(error: Exception) -> FumehoodError:
    """Return any error as an error of Fumehood's: one line, and what to do about it."""
    if isinstance(error, FumehoodError):
        return error
    hint = "FUMEHOOD_DEBUG=1 shows where it happened"
    if isinstance(error, OSError) and error.strerror:
        message, hint = _os_error_in_words(error, hint)
    elif isinstance(error, UnicodeError):
        message = "a text is not valid Unicode"
    elif isinstance(error, MemoryError):
        message = "there is not enough memory"
    else:
        message = f"something unexpected happened: {type(error).__name__}: {error}"[:500]
    unforeseen = Unforeseen(message, hint=hint)
    unforeseen.__cause__ = error
    return unforeseen


def _os_error_in_words(error: OSError, default_hint: str) -> tuple[str, str]:
    """Return message and hint for an error of the system."""
    path = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
    message = f"{error.strerror}: {path!r}" if path else f"{error.strerror}"
    if path and str(path).startswith("/proc/self/") and not os.path.exists("/proc/self"):
        return message, f"{NO_PROC}: {MOUNT_PROC}"
    if error.errno == errno.EACCES:
        return message, umask_hint() or default_hint
    hints = {
        errno.EMFILE: MORE_FILES,
        errno.ENOSPC: "check that the disk is not full",
        errno.EROFS: "make it writable, or have records elsewhere: export XDG_STATE_HOME=DIR",
    }
    return message, hints.get(error.errno or 0, default_hint)


def missing_package_error(error: ModuleNotFoundError, feature: str, extra: str, packages: Sequence[str]) -> Exception:
    """Return an error that says how to install a feature's missing package; any other missing module is our own bug.

    `packages` are those that the `extra` of the distribution brings.
    """
    if error.name is None or error.name.partition(".")[0] not in packages:
        return error
    return Unavailable(
        f"{feature} needs a package that is not here: {error.name}",
        hint=f"in a checkout of Fumehood: pip install '.[{extra}]'",
    )
