"""Choose the environment a command gets: the person's own, less what looks like a secret."""

from __future__ import annotations

from fumehood.core.proxied import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Parts of names that tell a secret, wherever they stand between underscores.
_SECRET_WORDS = frozenset(
    {
        "APIKEY", "AUTH", "CREDENTIAL", "CREDENTIALS", "KEY", "PASSPHRASE", "PASSWD", "PASSWORD", "PAT",
        "PRIVATE", "PWD0", "SECRET", "SECRETS", "TOKEN", "TOKENS", "COOKIE", "DSN",
    }
)  # fmt: skip
# Ways to talk to something outside, or leftovers of the host's session.
_SECRET_STARTS = ("AWS_", "DBUS_", "SSH_", "GPG_", "DOCKER_", "KUBE", "XDG_RUNTIME_DIR", "XAUTHORITY", "FUMEHOOD_")
_judged: dict[str, bool] = {}  # the same few dozen names come with every run
# A proxy that can't be reached from inside is of no use there, and may have a password in it.
_GONE = frozenset({"TMPDIR", "TMP", "TEMP", "OLDPWD", "PWD"}) | SETTINGS


def inherited(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a command may see, and the names of those kept from it."""
    kept: dict[str, str] = {}
    dropped: list[str] = []
    for name, value in environment.items():
        if looks_secret(name):
            dropped.append(name)
        elif name not in _GONE:
            kept[name] = value
    kept["FUMEHOOD"] = "1"
    return kept, tuple(sorted(dropped))


def looks_secret(name: str) -> bool:
    """Tell whether a variable's name says that its value is nobody else's business."""
    known = _judged.get(name)
    if known is None:
        upper = name.upper()
        words = upper.replace("-", "_").split("_")
        known = _judged[name] = upper.startswith(_SECRET_STARTS) or not _SECRET_WORDS.isdisjoint(words)
    return known
