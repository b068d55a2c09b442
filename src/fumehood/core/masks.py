"""What no command may read: tables of paths with the reason for each, and how a person adds to them or takes away."""

from __future__ import annotations

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence


def _pairs(table: dict[str, tuple[str, ...]]) -> tuple[tuple[str, str], ...]:
    return tuple((path, why) for why, paths in table.items() for path in paths)


# Paths by the reason why they are hidden. Below the home directory:
HOME = _pairs({
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

# Everybody else is kept from these by their modes; root is not.
SYSTEM = _pairs({
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
    "mail": ("/var/mail", "/var/spool/mail"),
})  # fmt: skip

# What `/proc` would tell of others; the rest (kcore, kmsg, kallsyms, …) the kernel closes to who lacks capabilities.
PROC = _pairs({
    "the names of keys in keyrings": ("/proc/keys",),
    "the machine's controls": ("/proc/scsi",),
    "what others wait for, by name": ("/proc/timer_list",),
    "what others do, by name": ("/proc/sched_debug",),
    "what others wait for": ("/proc/latency_stats",),
})  # fmt: skip

# Entries of `/` that are made anew for each command, or left empty.
UNSEEN = frozenset({"/boot", "/dev", "/lost+found", "/proc", "/run", "/sys", "/tmp"})  # noqa: S108 - the host's
# Of these a command has its own, and nothing of the host's whatever is unmasked.
FRESH = frozenset({"/dev", "/proc", "/sys", "/tmp"})  # noqa: S108 - the host's
# Directories of homes, of which a command sees its own only.
HOMES = frozenset({"/home", "/root", "/var/home", "/export/home"})


class Masks(Value):
    """What is hidden: absolute paths, what is shown whatever hides it, and paths below every root."""

    hidden: tuple[str, ...]
    shown: tuple[str, ...] = ()
    in_roots: tuple[str, ...] = ()


def masks(homes: Sequence[str], own: Iterable[str], mask: Iterable[str], unmask: Iterable[str], *, root: bool) -> Masks:
    """Put together what a command may not read; the first of the homes is the one that `~` means.

    A person's path begins with `/` or `~/`, or is relative: then it is meant below every root, like `.env`.
    """
    home = homes[0]
    hidden = [*own, *(f"{each}/{path}" for each in homes for path, _ in HOME)]
    if root:
        hidden += [path for path, _ in SYSTEM]
    added = [_absolute(path, home) for path in mask]
    allowed = [_absolute(path, home) for path in unmask]
    hidden += [path for path in added if path.startswith("/")]
    hidden = [path for path in dict.fromkeys(hidden) if path not in allowed]
    return Masks(
        hidden=tuple(hidden),
        shown=tuple(path for path in dict.fromkeys(allowed) if path.startswith("/")),
        in_roots=tuple(path for path in dict.fromkeys(added) if not path.startswith("/") and path not in allowed),
    )


def _absolute(path: str, home: str) -> str:
    path = path.rstrip("/")
    return home + path[1:] if path == "~" or path.startswith("~/") else path.removeprefix("./")


def is_below(path: str, directory: str) -> bool:
    """Return True if a path lies inside a directory, however deep."""
    return path.startswith(directory.rstrip("/") + "/")


def is_in(path: str, directories: Iterable[str]) -> bool:
    """Return True if a path is one of some directories, or lies in one."""
    return any(path == each or is_below(path, each) for each in directories)


def innermost(path: str, directories: Container[str]) -> str | None:
    """Return the innermost of some directories that a path is, or lies in, however many they are."""
    while path:
        if path in directories:
            return path
        path = path.rpartition("/")[0]
    return "/" if "/" in directories else None


def ways_to(paths: Iterable[str]) -> frozenset[str]:
    """Return some paths and every directory around them."""
    ways = {"/"}
    for path in paths:
        way = path
        while way and way not in ways:
            ways.add(way)
            way = way.rpartition("/")[0]
    return frozenset(ways)


def inside(paths: Iterable[str], directories: Sequence[str]) -> tuple[str, ...]:
    """Return those paths that lie inside one of some directories."""
    return tuple(path for path in paths if any(is_below(path, one) for one in directories))


def reason(path: str, home: str) -> str:
    """Say why a path is masked, for a person who asks."""
    for prefix, table in ((f"{home}/", HOME), ("", SYSTEM), ("", PROC)):
        for entry, why in table:
            if path == prefix + entry or is_below(path, prefix + entry):
                return why
    return "you masked it"


class Sight(Value):
    """What decides how much of the host a command sees.

    `homes` are where the command's user is at home, by real path, the one that HOME names first. `points` is where
    something else will be mounted: the roots first of all. `hidden` are masked paths, `shown` those that a person
    unmasked, `added` what else of the homes a person shows. `variables` are the person's own that tell where tools
    are; none where the homes are visible.
    """

    homes: tuple[str, ...]
    points: tuple[str, ...]
    hidden: tuple[str, ...]
    shown: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    is_home_hidden: bool = False
    is_locked: bool = True  # in a user namespace, what has mounts inside can't be overlaid
