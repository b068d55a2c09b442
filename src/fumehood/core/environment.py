"""Choose the environment a command gets: the person's own, less what looks like a secret, by its name or its value."""

from __future__ import annotations

from fumehood.core.proxied import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Parts of names that tell a secret, wherever they stand between underscores.
_SECRET_WORDS = frozenset(
    {
        "ACCESSKEY", "APIKEY", "APITOKEN", "AUTH", "AUTHTOKEN", "BEARER", "COOKIE", "CRED", "CREDENTIAL",
        "CREDENTIALS", "CREDS", "DSN", "JWT", "KEY", "KEYS", "OAUTH", "PASS", "PASSPHRASE", "PASSWD",
        "PASSWORD", "PASSWORDS", "PAT", "PRIVATE", "PSK", "PWD0", "SECRET", "SECRETKEY", "SECRETS",
        "TOKEN", "TOKENS", "WEBHOOK",
    }
)  # fmt: skip
# Endings of names written without underscores: PGPASSWORD, GITHUBTOKEN.
_SECRET_ENDS = ("APIKEY", "PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "TOKEN", "CREDENTIALS", "ACCESSKEY")
# Ways to talk to something outside, or leftovers of the host's session. Of git's settings in variables the values may
# be secret and the keys look so: all of them go, because git refuses to work with a part.
_SECRET_STARTS = (
    "AWS_", "AZURE_", "ARM_CLIENT", "BW_", "CLOUDSDK_", "DBUS_", "DIGITALOCEAN_", "DOCKER_", "FUMEHOOD_",
    "GNOME_KEYRING", "GOOGLE_APPLICATION", "GPG_", "KUBE", "OP_SERVICE", "OP_SESSION", "SSH_", "SUDO_ASKPASS", "VAULT_",
    "GIT_ASKPASS", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION", "WAYLAND_", "I3SOCK", "SWAYSOCK", "TMUX",
    "VSCODE_IPC", "VSCODE_GIT", "CONTAINER_HOST", "PULSE_SERVER", "PODMAN_", "NIX_REMOTE", "SESSION_MANAGER",
    "GIT_CONFIG_COUNT", "GIT_CONFIG_VALUE_", "GIT_CONFIG_PARAMETERS",
)  # fmt: skip
_NOT_SECRET = frozenset(
    {"SSH_TTY", "TERM_SESSION_ID", "XDG_SESSION_TYPE", "DESKTOP_SESSION", "GDMSESSION", "KEYBOARD_KEY", "FUMEHOOD"}
)
# How the secrets of well-known services begin, and the least they are long.
_SHAPES: tuple[tuple[str, int], ...] = (
    ("sk-", 20), ("sk_live_", 16), ("sk_test_", 16), ("rk_live_", 16), ("pk_live_", 16), ("whsec_", 16),
    ("ghp_", 30), ("gho_", 30), ("ghu_", 30), ("ghs_", 30), ("ghr_", 30), ("github_pat_", 30), ("glpat-", 20),
    ("gldt-", 20), ("AKIA", 20), ("ASIA", 20), ("AIza", 35), ("ya29.", 20), ("xoxb-", 20), ("xoxp-", 20),
    ("xoxa-", 20), ("xapp-", 20), ("npm_", 30), ("pypi-", 30), ("hf_", 20), ("dop_v1_", 30), ("shpat_", 20),
    ("SG.", 30), ("key-", 32), ("hvs.", 20), ("dckr_pat_", 20), ("figd_", 20), ("lin_api_", 20), ("tvly-", 20),
    ("gsk_", 20), ("AGE-SECRET-KEY-", 30), ("-----BEGIN ", 20), ("Bearer ", 20), ("Basic ", 12), ("PMAK-", 20),
    ("ntn_", 30), ("r8_", 30), ("xai-", 20), ("pplx-", 20), ("csk-", 20), ("fw_", 20), ("nvapi-", 20),
)  # fmt: skip
_STARTS = tuple(start for start, _ in _SHAPES)
_SHORTEST = 12
_judged: dict[tuple[str, str], bool] = {}  # the same few dozen come with every run
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
        known = _judged[name, value] = _named_secret(name) or _shaped_secret(value)
    return known


def _named_secret(name: str) -> bool:
    upper = name.upper()
    if upper in _NOT_SECRET:
        return False
    words = upper.replace("-", "_").split("_")
    return (
        upper.startswith(_SECRET_STARTS) or upper.endswith(_SECRET_ENDS) or not _SECRET_WORDS.isdisjoint(words)
    )


def _shaped_secret(value: str) -> bool:
    if len(value) < _SHORTEST:
        return False
    if value.startswith(_STARTS) and " " not in value[8:]:
        return any(value.startswith(start) and len(value) >= least for start, least in _SHAPES)
    return _is_token(value) or _has_password(value) or value.startswith("-----BEGIN ")


def _is_token(value: str) -> bool:
    """A JSON web token: three parts, the first of which says what it is."""
    return value.startswith("eyJ") and value.count(".") == 2 and " " not in value


def _has_password(value: str) -> bool:
    """An address that has a password in it: scheme://user:password@host."""
    _, found, rest = value.partition("://")
    if not found:
        return False
    who, at, _ = rest.partition("/")[0].rpartition("@")
    return bool(at) and ":" in who and not who.endswith(":")


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
