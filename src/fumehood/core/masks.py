"""What no command may read: tables of paths with the reason for each, and how a person adds to them or takes away."""

from __future__ import annotations

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Below the home directory.
HOME: tuple[tuple[str, str], ...] = (
    (".local/state/fumehood", "our own records"),
    (".local/share/fumehood", "our own data"),
    (".config/fumehood", "our own settings"),
    (".ssh", "keys"),
    (".gnupg", "keys"),
    (".pki", "keys"),
    (".aws", "cloud credentials"),
    (".azure", "cloud credentials"),
    (".config/gcloud", "cloud credentials"),
    (".config/doctl", "cloud credentials"),
    (".config/hcloud", "cloud credentials"),
    (".config/rclone", "cloud credentials"),
    (".boto", "cloud credentials"),
    (".s3cfg", "cloud credentials"),
    (".oci", "cloud credentials"),
    (".fly", "cloud credentials"),
    (".terraform.d/credentials.tfrc.json", "cloud credentials"),
    (".terraformrc", "cloud credentials"),
    (".pulumi/credentials.json", "cloud credentials"),
    (".kube", "cluster credentials"),
    (".docker", "registry credentials"),
    (".config/containers/auth.json", "registry credentials"),
    (".npmrc", "registry credentials"),
    (".config/pnpm/rc", "registry credentials"),
    (".yarnrc.yml", "registry credentials"),
    (".pypirc", "registry credentials"),
    (".local/share/uv/credentials", "registry credentials"),
    (".config/pypoetry/auth.toml", "registry credentials"),
    (".rye/credentials", "registry credentials"),
    (".rattler/credentials.json", "registry credentials"),
    (".gem/credentials", "registry credentials"),
    (".local/share/gem/credentials", "registry credentials"),
    (".cargo/credentials", "registry credentials"),
    (".cargo/credentials.toml", "registry credentials"),
    (".m2/settings.xml", "registry credentials"),
    (".m2/settings-security.xml", "registry credentials"),
    (".gradle/gradle.properties", "registry credentials"),
    (".ivy2/.credentials", "registry credentials"),
    (".sbt/.credentials", "registry credentials"),
    (".composer/auth.json", "registry credentials"),
    (".config/composer/auth.json", "registry credentials"),
    (".nuget/NuGet", "registry credentials"),
    (".dotnet/corefx", "keys"),
    (".hex/hex.config", "registry credentials"),
    (".julia/servers", "registry credentials"),
    (".luarocks/upload_config.lua", "registry credentials"),
    (".pub-cache/credentials.json", "registry credentials"),
    (".wasmer/wasmer.toml", "registry credentials"),
    (".config/gh", "forge credentials"),
    (".config/glab-cli", "forge credentials"),
    (".config/hub", "forge credentials"),
    (".git-credentials", "forge credentials"),
    (".config/git/credentials", "forge credentials"),
    (".netrc", "passwords"),
    (".authinfo", "passwords"),
    (".authinfo.gpg", "passwords"),
    (".pgpass", "passwords"),
    (".my.cnf", "passwords"),
    (".password-store", "passwords"),
    (".config/op", "passwords"),
    (".config/Bitwarden", "passwords"),
    (".config/Bitwarden CLI", "passwords"),
    (".config/keepassxc", "passwords"),
    (".vault-token", "passwords"),
    (".config/sops", "keys"),
    (".config/age", "keys"),
    (".local/share/keyrings", "a keyring"),
    (".local/share/kwalletd", "a keyring"),
    (".kde/share/apps/kwallet", "a keyring"),
    (".cert", "keys"),
    (".config/chromium", "a browser profile"),
    (".config/google-chrome", "a browser profile"),
    (".config/google-chrome-beta", "a browser profile"),
    (".config/BraveSoftware", "a browser profile"),
    (".config/microsoft-edge", "a browser profile"),
    (".config/vivaldi", "a browser profile"),
    (".config/opera", "a browser profile"),
    (".mozilla", "a browser profile"),
    (".librewolf", "a browser profile"),
    (".zen", "a browser profile"),
    (".thunderbird", "mail"),
    (".var/app", "profiles of sandboxed applications"),
    ("snap", "profiles of sandboxed applications"),
    (".config/Signal", "messages"),
    (".config/Slack", "messages"),
    (".config/discord", "messages"),
    (".local/share/TelegramDesktop", "messages"),
    (".bash_history", "a history"),
    (".zsh_history", "a history"),
    (".histfile", "a history"),
    (".sh_history", "a history"),
    (".history", "a history"),
    (".local/share/fish/fish_history", "a history"),
    (".python_history", "a history"),
    (".node_repl_history", "a history"),
    (".psql_history", "a history"),
    (".mysql_history", "a history"),
    (".sqlite_history", "a history"),
    (".rediscli_history", "a history"),
    (".lesshst", "a history"),
    (".viminfo", "a history"),
    (".Xauthority", "the way to the screen"),
    (".ICEauthority", "the way to the session"),
    (".claude/.credentials.json", "an agent's credentials"),
    (".claude.json", "an agent's credentials"),
    (".codex/auth.json", "an agent's credentials"),
    (".gemini/oauth_creds.json", "an agent's credentials"),
    (".config/github-copilot", "an agent's credentials"),
    (".local/share/opencode/auth.json", "an agent's credentials"),
    (".cache/huggingface/token", "an agent's credentials"),
    (".huggingface/token", "an agent's credentials"),
)

# Everybody else is kept from these by their modes; root is not.
SYSTEM: tuple[tuple[str, str], ...] = (
    ("/etc/shadow", "passwords"),
    ("/etc/shadow-", "passwords"),
    ("/etc/gshadow", "passwords"),
    ("/etc/gshadow-", "passwords"),
    ("/etc/security/opasswd", "passwords"),
    ("/etc/sudoers", "who may become root"),
    ("/etc/sudoers.d", "who may become root"),
    ("/etc/krb5.keytab", "keys"),
    ("/etc/ssl/private", "keys"),
    ("/etc/pki/tls/private", "keys"),
    ("/etc/letsencrypt", "keys"),
    ("/etc/wireguard", "keys"),
    ("/etc/openvpn", "keys"),
    ("/etc/ipsec.secrets", "keys"),
    ("/etc/ssh/ssh_host_dsa_key", "keys"),
    ("/etc/ssh/ssh_host_ecdsa_key", "keys"),
    ("/etc/ssh/ssh_host_ed25519_key", "keys"),
    ("/etc/ssh/ssh_host_rsa_key", "keys"),
    ("/etc/NetworkManager/system-connections", "passwords"),
    ("/etc/kubernetes", "cluster credentials"),
    ("/etc/rancher", "cluster credentials"),
    ("/var/lib/kubelet", "cluster credentials"),
    ("/var/lib/docker", "other containers"),
    ("/var/lib/containerd", "other containers"),
    ("/var/lib/systemd/random-seed", "the seed of random numbers"),
    ("/var/lib/NetworkManager/secret_key", "keys"),
    ("/var/lib/sss", "passwords"),
    ("/var/lib/cloud", "cloud credentials"),
    ("/var/spool/cron", "other people's jobs"),
    ("/var/mail", "mail"),
    ("/var/spool/mail", "mail"),
)

# What `/proc` would tell of others; the rest (kcore, kmsg, kallsyms, …) the kernel closes to who lacks capabilities.
PROC: tuple[tuple[str, str], ...] = (
    ("/proc/keys", "the names of keys in keyrings"),
    ("/proc/scsi", "the machine's controls"),
    ("/proc/timer_list", "what others wait for, by name"),
    ("/proc/sched_debug", "what others do, by name"),
    ("/proc/latency_stats", "what others wait for"),
)

# Entries of `/` that are made anew for each command, or left empty.
UNSEEN = frozenset({"/boot", "/dev", "/lost+found", "/proc", "/run", "/sys", "/tmp"})  # noqa: S108 - the host's
# Directories of homes, of which a command sees its own only.
HOMES = frozenset({"/home", "/root", "/var/home", "/export/home"})


class Masks(Value):
    """What is hidden: absolute paths, what is shown whatever hides it, and paths below every root."""

    hidden: tuple[str, ...]
    shown: tuple[str, ...] = ()
    in_roots: tuple[str, ...] = ()


def masks(
    homes: Sequence[str], own: Iterable[str], mask: Iterable[str], unmask: Iterable[str], *, root: bool
) -> Masks:
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
