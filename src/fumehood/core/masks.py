"""The paths that are masked, so that no command sees them, each with a reason; and what may be shown of a hidden home.

A person can mask more paths, and unmask some.
"""

from __future__ import annotations

from fumehood.core.installations import (
    MOVABLE_DIRECTORIES,
    SECRET_PATH_VARIABLES,
    SETTINGS_VARIABLES,
    TOOL_HOMES,
    paths_in_variable,
)
from fumehood.core.paths import is_below, is_in
from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def _with_reasons(paths_by_reason: dict[str, tuple[str, ...]]) -> tuple[tuple[str, str], ...]:
    return tuple((path, reason) for reason, paths in paths_by_reason.items() for path in paths)


# The paths that are masked below each home directory.
HOME_SECRETS = _with_reasons({
    "our own records": (".local/state/fumehood",),
    "our own data": (".local/share/fumehood",),
    "our own settings": (".config/fumehood",),
    "keys": (".ssh", ".gnupg", ".pki", ".dotnet/corefx", ".config/sops", ".config/age", ".cert"),
    "cloud credentials": (
        ".aws", ".azure", ".config/gcloud", ".config/doctl", ".config/hcloud", ".config/rclone", ".boto", ".s3cfg",
        ".oci", ".fly", ".terraform.d/credentials.tfrc.json", ".terraformrc", ".pulumi/credentials.json",
    ),
    "cluster credentials": (".kube",),
    "registry credentials": (
        ".docker", ".config/containers/auth.json", ".npmrc", ".config/pnpm/rc", ".yarnrc.yml", ".pypirc",
        ".local/share/uv/credentials", ".config/pypoetry/auth.toml", ".rye/credentials", ".rattler/credentials.json",
        ".gem/credentials", ".local/share/gem/credentials", ".cargo/credentials", ".cargo/credentials.toml",
        ".m2/settings.xml", ".m2/settings-security.xml", ".gradle/gradle.properties", ".ivy2/.credentials",
        ".sbt/.credentials", ".composer/auth.json", ".config/composer/auth.json", ".nuget/NuGet", ".hex/hex.config",
        ".julia/servers", ".luarocks/upload_config.lua", ".pub-cache/credentials.json", ".wasmer/wasmer.toml",
    ),
    "forge credentials": (
        ".config/gh", ".config/glab-cli", ".config/hub", ".git-credentials", ".config/git/credentials",
    ),
    "passwords": (
        ".netrc", ".authinfo", ".authinfo.gpg", ".pgpass", ".my.cnf", ".password-store", ".config/op",
        ".config/Bitwarden", ".config/Bitwarden CLI", ".config/keepassxc", ".vault-token",
    ),
    "a keyring": (".local/share/keyrings", ".local/share/kwalletd", ".kde/share/apps/kwallet"),
    "a browser profile": (
        ".config/chromium", ".config/google-chrome", ".config/google-chrome-beta", ".config/BraveSoftware",
        ".config/microsoft-edge", ".config/vivaldi", ".config/opera", ".mozilla", ".librewolf", ".zen",
        ".cache/ms-playwright-mcp",
    ),
    "mail": (".thunderbird",),
    "profiles of sandboxed applications": (".var/app", "snap"),
    "messages": (".config/Signal", ".config/Slack", ".config/discord", ".local/share/TelegramDesktop"),
    "a history": (
        ".bash_history", ".zsh_history", ".histfile", ".sh_history", ".history", ".local/share/fish/fish_history",
        ".python_history", ".node_repl_history", ".psql_history", ".mysql_history", ".sqlite_history",
        ".rediscli_history", ".lesshst", ".viminfo",
    ),
    "the way to the screen": (".Xauthority",),
    "the way to the session": (".ICEauthority",),
    "an agent's credentials": (
        ".claude/.credentials.json", ".claude.json", ".codex/auth.json", ".gemini/oauth_creds.json",
        ".config/github-copilot", ".local/share/opencode/auth.json", ".cache/huggingface/token", ".huggingface/token",
    ),
})  # fmt: skip

# The modes of these protect them from everybody but root.
SYSTEM_SECRETS = _with_reasons({
    "passwords": (
        "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/security/opasswd",
        "/etc/NetworkManager/system-connections", "/var/lib/sss",
    ),
    "who may become root": ("/etc/sudoers", "/etc/sudoers.d"),
    "keys": (
        "/etc/krb5.keytab", "/etc/ssl/private", "/etc/pki/tls/private", "/etc/letsencrypt", "/etc/wireguard",
        "/etc/openvpn", "/etc/ipsec.secrets", "/etc/ssh/ssh_host_dsa_key", "/etc/ssh/ssh_host_ecdsa_key",
        "/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/ssh_host_rsa_key", "/var/lib/NetworkManager/secret_key",
    ),
    "cluster credentials": ("/etc/kubernetes", "/etc/rancher", "/var/lib/kubelet"),
    "other containers": ("/var/lib/docker", "/var/lib/containerd"),
    "the seed of random numbers": ("/var/lib/systemd/random-seed",),
    "cloud credentials": ("/var/lib/cloud",),
    "other people's jobs": ("/var/spool/cron",),
})  # fmt: skip

# Settings and state of services. Besides the above, root's commands see nothing there that only root may read.
SERVICES = ("/etc", "/var")

# What belongs to a person outside of their home: its mode protects it from others, but not from the person's commands.
SECRETS_OUTSIDE_HOME = _with_reasons({
    "mail": ("/var/mail", "/var/spool/mail"),
    "what a program had in memory as it crashed": (
        "/var/crash", "/var/lib/systemd/coredump", "/var/lib/apport/coredump", "/var/cache/abrt", "/var/spool/abrt",
    ),
})  # fmt: skip
# People leave files there between two starts of the machine; a command has a directory of its own instead.
VAR_TMP = "/var/tmp"  # noqa: S108 - the host's

# What `/proc` tells about others. The kernel closes the rest (kcore, kmsg, kallsyms, …) to all without capabilities.
PROC_SECRETS = _with_reasons({
    "the names of keys in keyrings": ("/proc/keys",),
    "the machine's controls": ("/proc/scsi",),
    "what others wait for, by name": ("/proc/timer_list",),
    "what others do, by name": ("/proc/sched_debug",),
    "what others wait for": ("/proc/latency_stats",),
})  # fmt: skip

# Entries of `/` that are made anew for each command, or are empty for it.
UNSEEN = frozenset({"/boot", "/dev", "/lost+found", "/proc", "/run", "/sys", "/tmp"})  # noqa: S108 - the host's
# Those among them that a command always has of its own: nothing of the host's is shown there, even if it is unmasked.
FRESH = frozenset({"/dev", "/proc", "/sys", "/tmp"})  # noqa: S108 - the host's
# Homes, and directories of homes: a command sees only its own home.
HOMES = frozenset({"/home", "/root", "/var/home", "/export/home"})


class Masks(Value):
    """The masked paths: absolute ones, those that are shown although they are masked, and paths below every root."""

    hidden: tuple[str, ...]
    shown: tuple[str, ...] = ()
    in_roots: tuple[str, ...] = ()


def make_masks(
    homes: Sequence[str], own: Iterable[str], mask: Iterable[str], unmask: Iterable[str], *, as_root: bool
) -> Masks:
    """Return the masks of a command, which may run as root; `~` means the first of the homes.

    `own` are Fumehood's own directories. `mask` and `unmask` are a person's. Their paths begin with `/` or `~/`, or are
    relative to every root, like `.env`.
    """
    home = homes[0]
    hidden = [*own, *(f"{each}/{path}" for each in homes for path, _ in HOME_SECRETS)]
    hidden += [path for path, _ in SECRETS_OUTSIDE_HOME]
    if as_root:
        hidden += [path for path, _ in SYSTEM_SECRETS]
    masked = [_expand_home(path, home) for path in mask]
    unmasked = [_expand_home(path, home) for path in unmask]
    hidden += [path for path in masked if path.startswith("/")]
    return Masks(
        hidden=tuple(path for path in dict.fromkeys(hidden) if path not in unmasked),
        shown=tuple(path for path in dict.fromkeys(unmasked) if path.startswith("/")),
        in_roots=tuple(path for path in dict.fromkeys(masked) if not path.startswith("/") and path not in unmasked),
    )


def moved_secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the places to which variables move what is masked in a home: it is as secret there.

    Settings are not among them: only what is secret in settings is kept from commands.
    """
    paths = [
        path
        for name in SECRET_PATH_VARIABLES if name not in SETTINGS_VARIABLES
        for path in paths_in_variable(environment, name)
    ]  # fmt: skip
    usual_places = [(variable, place) for variable, place, _ in TOOL_HOMES if place]
    usual_places += [(variable, place) for place, variable in MOVABLE_DIRECTORIES]
    for variable, place in usual_places:
        for moved in paths_in_variable(environment, variable):
            paths += [moved.rstrip("/") + path[len(place) :] for path, _ in HOME_SECRETS if is_below(path, place)]
    # A single name is a directory of the system: because of a mistake, all of it would be masked.
    return [path for path in dict.fromkeys(path.rstrip("/") for path in paths) if path.count("/") > 1]


def _expand_home(path: str, home: str) -> str:
    path = path.rstrip("/")
    return home + path[1:] if path == "~" or path.startswith("~/") else path.removeprefix("./")


def mask_reason(path: str, home: str) -> str:
    """Return why a path is masked, in words for people."""
    tables = ((f"{home}/", HOME_SECRETS), ("", SECRETS_OUTSIDE_HOME), ("", SYSTEM_SECRETS), ("", PROC_SECRETS))
    for prefix, table in tables:
        for masked, reason in table:
            if is_in(path, (prefix + masked,)):
                return reason
    return "you masked it"


class Sight(Value):
    """What decides how much of the host a command sees.

    `homes` are the real paths of the home of the command's user; the first is the one that HOME names. `points` are
    paths where something else will be mounted, first of all the roots. `hidden` are masked paths, `shown` those that a
    person unmasked, `added` other parts of the homes that a person shows. `variables` are the person's own that say
    where tools are; there are none if the homes are visible. `user` is the user that the command runs as.
    """

    homes: tuple[str, ...]
    points: tuple[str, ...]
    hidden: tuple[str, ...]
    shown: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    is_home_hidden: bool = False
    is_locked: bool = True  # the command is in a user namespace: a directory with mounts inside can't be overlaid
    user: int | None = None
