"""Choose the environment a command gets: the person's own, less what looks like a secret.

Names are judged here, values in `credentials.py`.
"""

from __future__ import annotations

from fumehood.core.credentials import SWITCHES, holds_secret
from fumehood.core.proxied import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Parts of names that tell a secret, wherever they stand between underscores.
_SECRET_WORDS = frozenset(
    {
        "ACCESSKEY", "APIKEY", "APITOKEN", "AUTH", "AUTHORIZATION", "AUTHTOKEN", "BEARER", "COOKIE", "CRED",
        "CREDENTIAL", "CREDENTIALS", "CREDS", "DSN", "JWT", "KEY", "KEYS", "MNEMONIC", "OAUTH", "PASS", "PASSCODE",
        "PASSPHRASE", "PASSWD", "PASSWORD", "PASSWORDS", "PAT", "PRIVATE", "PSK", "SECRET", "SECRETKEY", "SECRETS",
        "TOKEN", "TOKENS", "WEBHOOK",
    }
)  # fmt: skip
# Of these, the ones that also name a switch (USE_AUTH=1) or an amount (MAX_TOKENS=4096).
_SWITCHED = frozenset({"AUTH", "COOKIE", "JWT", "KEY", "OAUTH", "PRIVATE", "WEBHOOK"})
_COUNTED = frozenset({"KEYS", "TOKENS"})
# Endings of names written without underscores: PGPASSWORD, GITHUBTOKEN.
_SECRET_ENDS = ("APIKEY", "PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "TOKEN", "CREDENTIALS", "ACCESSKEY")
# Endings of single words: SSHPASS, MYSQL_PWD, DB_PW. The second also names a directory, as OLDPWD does.
_SECRET_WORD_ENDS, _DIRECTORY = ("PASS", "PWD", "PW"), "PWD"
_OTHER_WORDS = frozenset({"BYPASS", "COMPASS"})
_CARRIERS = ("HEADER", "HEADERS", "STR", "STRING")  # EXTRA_HEADERS, CONNECTION_STRING
# Ways to talk to something outside, or leftovers of the host's session. Of git's settings in variables the values may
# be secret and the keys look so: all of them go, because git refuses to work with a part.
_SECRET_STARTS = (
    "ARM_CLIENT", "BW_", "DBUS_", "FUMEHOOD_", "GNOME_KEYRING", "GOOGLE_APPLICATION", "GPG_", "KUBE", "OP_SERVICE",
    "OP_SESSION", "SSH_", "SUDO_ASKPASS", "GIT_ASKPASS", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION", "WAYLAND_",
    "I3SOCK", "SWAYSOCK", "TMUX", "VSCODE_IPC", "VSCODE_GIT", "CONTAINER_HOST", "PULSE_SERVER", "PODMAN_",
    "NIX_REMOTE", "SESSION_MANAGER", "GIT_CONFIG_COUNT", "GIT_CONFIG_VALUE_", "GIT_CONFIG_PARAMETERS",
)  # fmt: skip
# Of a service where one has an account, only what is clearly harmless passes: switches, amounts, where it is, and
# whose certificates are trusted.
_SERVICES = ("AWS_", "AZURE_", "CLOUDSDK_", "DIGITALOCEAN_", "DOCKER_", "VAULT_")
_WHERE = frozenset({"LOCATION", "REGION", "ZONE"})
_AUTHORITIES = frozenset({"CA", "CABUNDLE", "CACERT", "CACERTS", "CAFILE", "CAINFO", "CAPATH"})
_NOT_PUBLIC = (_SECRET_WORDS - {"AUTH", "PRIVATE"}) | {"CLIENT"}
_NOT_SECRET = frozenset(
    {"SSH_TTY", "TERM_SESSION_ID", "XDG_SESSION_TYPE", "DESKTOP_SESSION", "GDMSESSION", "KEYBOARD_KEY", "FUMEHOOD"}
)
_judged: dict[tuple[str, str], bool] = {}  # the same few dozen come with every run
# Another place inside. A proxy that can't be reached from inside is of no use there, and may have a password in it.
_GONE = frozenset({"TMPDIR", "TMP", "TEMP", "PWD"}) | SETTINGS


def inherited(
    environment: Mapping[str, str], keep: Sequence[str] = (), drop: Sequence[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a command may see, and the names of those kept from it.

    `keep` and `drop` are a person's own globs; where both match, the variable is dropped.
    """
    kept: dict[str, str] = {}
    dropped: list[str] = []
    for name, value in environment.items():
        if name in _GONE:
            continue
        if _is_dropped(name, value, keep, drop) if keep or drop else looks_secret(name, value):
            dropped.append(name)
        else:
            kept[name] = value
    kept["FUMEHOOD"] = "1"
    return kept, tuple(sorted(dropped))


def _is_dropped(name: str, value: str, keep: Sequence[str], drop: Sequence[str]) -> bool:
    from fnmatch import fnmatchcase

    if any(fnmatchcase(name, glob) for glob in drop):
        return True
    return looks_secret(name, value) and not any(fnmatchcase(name, glob) for glob in keep)


def looks_secret(name: str, value: str = "") -> bool:
    """Tell whether a variable's name or value says that it is nobody else's business."""
    known = _judged.get((name, value))
    if known is None:
        known = _judged[name, value] = _named_secret(name, value) or holds_secret(value)
    return known


def _named_secret(name: str, value: str) -> bool:
    upper = name.upper()
    if upper.startswith(_SECRET_STARTS) or upper.endswith(_SECRET_ENDS):
        return upper not in _NOT_SECRET
    words = upper.replace("-", "_").replace(".", "_").split("_")
    if upper in _NOT_SECRET or _names_authorities(words, value):
        return False
    if not _SECRET_WORDS.isdisjoint(words):
        return not _is_setting(_SECRET_WORDS.intersection(words), value)
    if upper.startswith(_SERVICES):
        return not (words[-1] in _WHERE or value.lower() in SWITCHES or _is_amount(value))
    if any(word.endswith(_SECRET_WORD_ENDS) and word not in _OTHER_WORDS for word in words):
        return not (upper.endswith(_DIRECTORY) and value.startswith("/"))
    return upper.endswith(_CARRIERS) and _carries_secret(upper, value)


def _names_authorities(words: list[str], value: str) -> bool:
    """Return whether a variable says, by a path, whose certificates are trusted."""
    return value.startswith("/") and not _AUTHORITIES.isdisjoint(words) and _NOT_PUBLIC.isdisjoint(words)


def _is_setting(secret_words: frozenset[str], value: str) -> bool:
    """Tell a switch or an amount from a secret, where the name leaves it open."""
    if _SWITCHED.issuperset(secret_words):
        return bool(value) and value.lower() in SWITCHES
    return _COUNTED.issuperset(secret_words) and _is_amount(value)


def _is_amount(value: str) -> bool:
    return value.isdecimal() and len(value) <= 7


def _carries_secret(upper: str, value: str) -> bool:
    """Headers do, wherever there is one; a connection may, where its value is not of a form that can be judged."""
    if upper.endswith(("HEADER", "HEADERS")):
        return ("=" in value or ":" in value) and not value.startswith("/")
    return "CONN" in upper and "=" not in value and "://" not in value


# What the C library acts on before a program's own first line: it loads code, or writes files. The same as it forgets
# for set-uid programs.
_LOADING = ("LD_", "MALLOC_")
_LIBRARY = frozenset(
    {
        "GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "HOSTALIASES", "LOCALDOMAIN", "LOCPATH", "NIS_PATH", "NLSPATH",
        "RES_OPTIONS", "RESOLV_HOST_CONF", "TZDIR",
    }
)  # fmt: skip


def apart(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Return what bubblewrap itself may be started with, and what only the command may get.

    Bubblewrap starts outside, and a command can have chosen these variables.
    """
    kept = [name for name in environment if name.startswith(_LOADING) or name in _LIBRARY]
    if not kept:
        return dict(environment), ()
    rest = {name: value for name, value in environment.items() if name not in kept}
    return rest, tuple((name, environment[name]) for name in kept)
