"""The paths that are masked, so that no command sees them, each with a reason; and what may be shown of a hidden home.

A person can mask more paths, and unmask some. The functions that compare paths are here, too.
"""

from __future__ import annotations

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence


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
        for name in SECRET_PATH_VARIABLES if name not in _SETTINGS_VARIABLES
        for path in paths_in_variable(environment, name)
    ]  # fmt: skip
    usual_places = [(variable, place) for variable, place, _ in TOOL_HOMES if place]
    usual_places += [(variable, place) for place, variable in MOVABLE_DIRECTORIES]
    for variable, place in usual_places:
        for moved in paths_in_variable(environment, variable):
            paths += [moved.rstrip("/") + path[len(place) :] for path, _ in HOME_SECRETS if is_below(path, place)]
    # A single name is a directory of the system: because of a mistake, all of it would be masked.
    return [path for path in dict.fromkeys(path.rstrip("/") for path in paths) if path.count("/") > 1]


def paths_in_variable(environment: Mapping[str, str], variable: str) -> list[str]:
    """Return the absolute paths that a variable holds."""
    value = environment.get(variable)
    return [path for path in value.split(":") if path.startswith("/")] if value else []  # most are not set


def _expand_home(path: str, home: str) -> str:
    path = path.rstrip("/")
    return home + path[1:] if path == "~" or path.startswith("~/") else path.removeprefix("./")


def is_below(path: str, directory: str) -> bool:
    """Return True if a path lies inside a directory, however deep."""
    return path.startswith(directory.rstrip("/") + "/")


def is_in(path: str, directories: Iterable[str]) -> bool:
    """Return True if a path is one of some directories, or lies in one."""
    return any(path == each or is_below(path, each) for each in directories)


def innermost(path: str, directories: Container[str]) -> str | None:
    """Return the innermost of some directories that a path is or lies in, or None; their number costs no time."""
    while path:
        if path in directories:
            return path
        path = path.rpartition("/")[0]
    return "/" if "/" in directories else None


def with_parents(paths: Iterable[str]) -> frozenset[str]:
    """Return some paths and every directory around them."""
    all_paths = {"/"}
    for path in paths:
        parent = path
        while parent and parent not in all_paths:
            all_paths.add(parent)
            parent = parent.rpartition("/")[0]
    return frozenset(all_paths)


def paths_inside(paths: Iterable[str], directories: Sequence[str]) -> tuple[str, ...]:
    """Return those paths that lie inside one of some directories."""
    return tuple(path for path in paths if any(is_below(path, directory) for directory in directories))


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


# The variables that say where tools and settings are. Most of these tables name what may be shown of a home; only the
# last ones name secrets. `core/installations.py` has how an installation looks.

# A variable, the usual place, and the parts that are shown: `.` is the whole, if it looks like an installation.
TOOL_HOMES: tuple[tuple[str, str, str], ...] = (
    ("PYTHONUSERBASE", ".local", "bin lib lib64 libexec"),
    ("ANDROID_HOME", "Android/Sdk", "build-tools cmdline-tools licenses ndk platform-tools platforms"),
    ("ASDF_DATA_DIR", ".asdf", "."),
    ("ASDF_DIR", ".asdf", "."),
    ("BUN_INSTALL", ".bun", "bin install/cache install/global/node_modules"),
    ("CARGO_HOME", ".cargo", "bin env git registry"),
    ("COMPOSER_HOME", ".composer", "vendor"),
    ("COMPOSER_HOME", ".config/composer", "vendor"),
    ("", ".conda", "envs pkgs"),
    ("CONDA_ROOT", "miniconda3", "."),
    ("", "anaconda3", "."),
    ("", "mambaforge", "."),
    ("", "miniforge3", "."),
    ("MAMBA_ROOT_PREFIX", "micromamba", ". bin condabin envs pkgs"),
    ("DENO_INSTALL_ROOT", ".deno", "bin"),
    ("DOTNET_ROOT", ".dotnet", "dotnet host packs sdk sdk-manifests shared tools"),
    ("FLUTTER_ROOT", "flutter", "bin packages version"),
    ("FNM_DIR", ".local/share/fnm", ". aliases node-versions"),
    ("GEM_HOME", "", "bin extensions gems specifications"),
    ("", ".gem", "ruby"),
    ("", ".local/share/gem", "ruby"),
    ("GOPATH", "go", "bin pkg"),
    ("", "sdk", "go1*"),
    ("HOMEBREW_PREFIX", ".linuxbrew", "Cellar bin etc include lib opt sbin share"),
    ("JULIA_DEPOT_PATH", ".julia", "artifacts compiled juliaup packages registries"),
    ("", ".luarocks", "bin lib share"),
    ("MISE_DATA_DIR", ".local/share/mise", "installs plugins shims"),
    ("NVM_DIR", ".nvm", ". alias nvm-exec nvm.sh versions"),
    ("PERL_LOCAL_LIB_ROOT", "perl5", "bin lib"),
    ("PIPX_HOME", ".local/share/pipx", "py shared venvs"),
    ("PIPX_HOME", ".local/pipx", "py shared venvs"),
    ("PIXI_HOME", ".pixi", "bin envs"),
    ("PROTO_HOME", ".proto", "bin shims tools"),
    ("PYENV_ROOT", ".pyenv", "."),
    ("RBENV_ROOT", ".rbenv", "."),
    ("RUSTUP_HOME", ".rustup", "."),
    ("RYE_HOME", ".rye", "py self shims tools"),
    ("", "R", "aarch64-unknown-linux-gnu-library x86_64-pc-linux-gnu-library"),
    ("SDKMAN_DIR", ".sdkman", "."),
    ("UV_PYTHON_INSTALL_DIR", "", "cpython-* pypy-*"),
    ("", ".local/share/uv", "python tools"),
    ("VOLTA_HOME", ".volta", "bin layout.v* tools"),
    # Packages that were fetched before, for builds without network.
    ("GRADLE_USER_HOME", ".gradle", "caches jdks wrapper"),
    ("", ".m2", "repository wrapper"),
    ("", ".ivy2", "cache local"),
    ("", ".sbt", "boot"),
    ("", ".nuget", "packages"),
    ("PUB_CACHE", ".pub-cache", "bin global_packages hosted"),
    ("MIX_HOME", ".mix", "archives elixir"),
    ("HEX_HOME", ".hex", "packages"),
    ("CABAL_DIR", ".cabal", "bin packages store"),
    ("STACK_ROOT", ".stack", "programs snapshots"),
    ("", ".cache", "Cypress bazelisk ms-playwright node/corepack puppeteer selenium"),
)
# Variables that name one installation each.
INSTALLATION_VARIABLES = (
    "ANT_HOME", "CONDA_PREFIX", "GOROOT", "GRAALVM_HOME", "GRADLE_HOME", "JAVA_HOME", "JDK_HOME", "KOTLIN_HOME",
    "M2_HOME", "MAVEN_HOME", "OPAM_SWITCH_PREFIX", "PYTHONHOME", "SCALA_HOME", "SPARK_HOME", "VIRTUAL_ENV",
)  # fmt: skip
# Variables that name one program each.
PROGRAM_VARIABLES = ("CONDA_EXE", "MAMBA_EXE")
# Variables that name directories of libraries.
LIBRARY_VARIABLES = ("LD_LIBRARY_PATH", "NODE_PATH", "PERL5LIB", "PYTHONPATH", "TERMINFO")
# Places where tools keep the virtual environments of all projects; a project sees its own.
ENVIRONMENT_COLLECTIONS = (
    ("WORKON_HOME", ".virtualenvs"),
    ("WORKON_HOME", ".local/share/virtualenvs"),
    ("POETRY_VIRTUALENVS_PATH", ".cache/pypoetry/virtualenvs"),
)
# Directories of a home that variables can move elsewhere.
MOVABLE_DIRECTORIES = (
    (".local/share", "XDG_DATA_HOME"), (".config", "XDG_CONFIG_HOME"), (".cache", "XDG_CACHE_HOME"),
    (".local/state", "XDG_STATE_HOME"),
)  # fmt: skip

# Variables that say where secrets are: these are never shown.
SECRET_PATH_VARIABLES = (
    "ANSIBLE_VAULT_PASSWORD_FILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AZURE_CONFIG_DIR",
    "BORG_KEY_FILE", "BUNDLE_USER_CONFIG", "CLAUDE_CONFIG_DIR", "CLOUDSDK_CONFIG", "CODEX_HOME", "CONDARC",
    "COPILOT_HOME", "DOCKER_CONFIG", "GEMINI_CLI_HOME", "GH_CONFIG_DIR", "GIT_CONFIG_GLOBAL", "GNUPGHOME",
    "GOOGLE_APPLICATION_CREDENTIALS", "HISTFILE", "KUBECONFIG", "MYSQL_HISTFILE", "NETRC", "NODE_REPL_HISTORY",
    "NPM_CONFIG_GLOBALCONFIG", "NPM_CONFIG_USERCONFIG", "PASSWORD_STORE_DIR", "PGPASSFILE", "PGSERVICEFILE",
    "PIP_CONFIG_FILE", "PSQL_HISTORY", "PYTHON_HISTORY", "REGISTRY_AUTH_FILE", "RESTIC_PASSWORD_FILE",
    "SOPS_AGE_KEY_FILE", "SQLITE_HISTORY", "TF_CLI_CONFIG_FILE", "UV_CONFIG_FILE", "XAUTHORITY",
    "npm_config_globalconfig", "npm_config_userconfig",
)  # fmt: skip
# Variables that say where settings are, or which ones are read.
_SETTINGS_VARIABLES = (
    "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "PIP_CONFIG_FILE", "UV_CONFIG_FILE", "UV_NO_CONFIG", "GOENV",
    "npm_config_userconfig", "NPM_CONFIG_USERCONFIG", "npm_config_globalconfig", "NPM_CONFIG_GLOBALCONFIG",
    "YARN_RC_FILENAME", "CARGO_HOME", "HGRCPATH", "JJ_CONFIG",
)  # fmt: skip
_TOOL_VARIABLES = tuple(
    dict.fromkeys(
        (
            "PATH", *(variable for _, variable in MOVABLE_DIRECTORIES), *(row[0] for row in TOOL_HOMES if row[0]),
            *(variable for variable, _ in ENVIRONMENT_COLLECTIONS), *INSTALLATION_VARIABLES, *LIBRARY_VARIABLES,
            *PROGRAM_VARIABLES, *SECRET_PATH_VARIABLES, *_SETTINGS_VARIABLES,
        )
    )
)  # fmt: skip


def variables_for_tools(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that decide which parts of a home are shown; the answer is kept under them as a key."""
    return tuple((name, environment[name]) for name in _TOOL_VARIABLES if environment.get(name))
