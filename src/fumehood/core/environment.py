"""Choose the environment a command gets: the person's own, less what looks like a secret."""

from __future__ import annotations

from fumehood.core.proxied import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Parts of names that tell a secret, wherever they stand between underscores.
_SECRET_WORDS = frozenset(
    {
        "APIKEY", "AUTH", "CREDENTIAL", "CREDENTIALS", "KEY", "PASSPHRASE", "PASSWD", "PASSWORD", "PAT",
        "PRIVATE", "PWD0", "SECRET", "SECRETS", "TOKEN", "TOKENS", "COOKIE", "DSN",
    }
)  # fmt: skip
# Ways to talk to something outside, or leftovers of the host's session. Of git's settings in variables the values may
# be secret and the keys look so: all of them go, because git refuses to work with a part.
_SECRET_STARTS = (
    "AWS_", "DBUS_", "SSH_", "GPG_", "DOCKER_", "KUBE", "XDG_RUNTIME_DIR", "XAUTHORITY", "FUMEHOOD_",
    "GIT_CONFIG_COUNT", "GIT_CONFIG_VALUE_", "GIT_CONFIG_PARAMETERS",
)  # fmt: skip
_judged: dict[str, bool] = {}  # the same few dozen names come with every run
# A proxy that can't be reached from inside is of no use there, and may have a password in it.
_GONE = frozenset({"TMPDIR", "TMP", "TEMP", "OLDPWD", "PWD"}) | SETTINGS


def inherited(
    environment: Mapping[str, str], keep: Sequence[str] = (), drop: Sequence[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a command may see, and the names of those kept from it.

    `keep` and `drop` are a person's own globs; where both match, the variable is dropped.
    """
    kept: dict[str, str] = {}
    dropped: list[str] = []
    for name, value in environment.items():
        if looks_secret(name) if not (keep or drop) else _is_dropped(name, keep, drop):
            dropped.append(name)
        elif name not in _GONE:
            kept[name] = value
    kept["FUMEHOOD"] = "1"
    return kept, tuple(sorted(dropped))


def _is_dropped(name: str, keep: Sequence[str], drop: Sequence[str]) -> bool:
    from fnmatch import fnmatchcase

    if any(fnmatchcase(name, glob) for glob in drop):
        return True
    return looks_secret(name) and not any(fnmatchcase(name, glob) for glob in keep)


def looks_secret(name: str) -> bool:
    """Tell whether a variable's name says that its value is nobody else's business."""
    known = _judged.get(name)
    if known is None:
        upper = name.upper()
        words = upper.replace("-", "_").split("_")
        known = _judged[name] = upper.startswith(_SECRET_STARTS) or not _SECRET_WORDS.isdisjoint(words)
    return known
