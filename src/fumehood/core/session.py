"""What the runs of one agent share: a name, a working directory, and the variables it asked to keep."""

from __future__ import annotations

from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Where a command finds what it can tell its session; bubblewrap's own /dev, so nothing of the host's is covered.
TOLD = "/dev/fumehood"
CWD, ENVIRONMENT = "cwd", "env"
VARIABLE = "FUMEHOOD_ENV"

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DIGITS = frozenset("0123456789")
_IN_NAMES = _LETTERS | _DIGITS | frozenset("._:@-")
_LONGEST_NAME = 128


class Session(Value):
    """Consecutive runs of one agent, as they are remembered between two of them."""

    name: str
    project: int
    started_at: float
    cwd: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """The variables that its next command gets."""
        return dict(self.environment)


def checked_name(name: str) -> str:
    """Return a session's name if it can be one: it is also that of a directory."""
    if not name or len(name) > _LONGEST_NAME or not _IN_NAMES.issuperset(name) or name[0] not in _LETTERS | _DIGITS:
        raise BadRequest(
            f"{name!r} can't be the name of a session",
            hint=f"letters, digits and . _ : @ - only, at most {_LONGEST_NAME}, beginning with a letter or digit",
        )
    return name


def is_variable(name: str) -> bool:
    """Tell whether this can be the name of a variable that a session keeps."""
    return (
        bool(name)
        and name[0] not in _DIGITS
        and (_LETTERS | _DIGITS | {"_"}).issuperset(name)
        and not name.startswith("FUMEHOOD")
    )


def kept(before: Mapping[str, str], told: str) -> dict[str, str]:
    """Return the variables after what a command told: `NAME=value` sets one, `NAME` alone forgets it.

    One a line, or, where there is a NUL, up to that, for values of several lines.
    """
    variables = dict(before)
    for line in told.split("\0" if "\0" in told else "\n"):
        name, equals, value = line.partition("=")
        if not is_variable(name):
            continue
        if equals:
            variables[name] = value
        else:
            variables.pop(name, None)
    return variables
