"""What no command may read, with the reason for each path, and how a person adds to that or takes away.

And what it may see of a home that is hidden: where tools live there, and how an installation looks.
"""

from __future__ import annotations

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence


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
})  # fmt: skip

# Settings and state of services. Besides the above, whatever only root may read there is hidden from root's commands.
SERVICES = ("/etc", "/var")

# A person's own, outside of their home: its mode keeps it from others, and not from their commands.
OUTSIDE = _pairs({
    "mail": ("/var/mail", "/var/spool/mail"),
    "what a program had in memory as it crashed": (
        "/var/crash", "/var/lib/systemd/coredump", "/var/lib/apport/coredump", "/var/cache/abrt", "/var/spool/abrt",
    ),
})  # fmt: skip
# Where people leave files between two starts of the machine: a command has its own.
VAR_TMP = "/var/tmp"  # noqa: S108 - the host's

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


def make_masks(
    homes: Sequence[str], own: Iterable[str], mask: Iterable[str], unmask: Iterable[str], *, root: bool
) -> Masks:
    """Put together what a command may not read; the first of the homes is the one that `~` means.

    A person's path begins with `/` or `~/`, or is relative: then it is meant below every root, like `.env`.
    """
    home = homes[0]
    hidden = [*own, *(f"{each}/{path}" for each in homes for path, _ in HOME), *(path for path, _ in OUTSIDE)]
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


def moved_secrets(environment: Mapping[str, str]) -> list[str]:
    """Return where variables put what is hidden in a home: it is as secret elsewhere.

    Settings are not among it: of those, only what is secret in them is kept from commands.
    """
    paths = [path for name in MOVED_SECRETS if name not in _SETTINGS for path in paths_in(environment, name)]
    places = [(variable, place) for variable, place, _ in TOOL_HOMES if place]
    for variable, place in (*places, *((variable, place) for place, variable in MOVABLE)):
        for moved in paths_in(environment, variable):
            paths += [moved.rstrip("/") + path[len(place) :] for path, _ in HOME if is_below(path, place)]
    # One name alone is a directory of the system's: a mistake there would hide all of it.
    return [path for path in dict.fromkeys(path.rstrip("/") for path in paths) if path.count("/") > 1]


def paths_in(environment: Mapping[str, str], variable: str) -> list[str]:
    """Return the absolute paths that a variable holds."""
    value = environment.get(variable)
    return [path for path in value.split(":") if path.startswith("/")] if value else []  # mostly it is not set


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


def with_parents(paths: Iterable[str]) -> frozenset[str]:
    """Return some paths and every directory around them."""
    ways = {"/"}
    for path in paths:
        way = path
        while way and way not in ways:
            ways.add(way)
            way = way.rpartition("/")[0]
    return frozenset(ways)


def paths_inside(paths: Iterable[str], directories: Sequence[str]) -> tuple[str, ...]:
    """Return those paths that lie inside one of some directories."""
    return tuple(path for path in paths if any(is_below(path, one) for one in directories))


def mask_reason(path: str, home: str) -> str:
    """Say why a path is masked, for a person who asks."""
    for prefix, table in ((f"{home}/", HOME), ("", OUTSIDE), ("", SYSTEM), ("", PROC)):
        for entry, why in table:
            if path == prefix + entry or is_below(path, prefix + entry):
                return why
    return "you masked it"


class Sight(Value):
    """What decides how much of the host a command sees.

    `homes` are where the command's user is at home, by real path, the one that HOME names first. `points` is where
    something else will be mounted: the roots first of all. `hidden` are masked paths, `shown` those that a person
    unmasked, `added` what else of the homes a person shows. `variables` are the person's own that tell where tools
    are; none where the homes are visible. `user` is whom the command runs as.
    """

    homes: tuple[str, ...]
    points: tuple[str, ...]
    hidden: tuple[str, ...]
    shown: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    is_home_hidden: bool = False
    is_locked: bool = True  # in a user namespace, what has mounts inside can't be overlaid
    user: int | None = None


# Where tools live in a home, and how an installation looks: tables for `linux/hometools.py`, which reads the disk.
#
# All of them name what may be shown. Only the last ones name secrets: those that lie inside of what is shown.

# Below a home, shared by too many to be shown whole, whatever lies in them.
COMMON = frozenset({"", ".cache", ".config", ".local", ".local/lib", ".local/share", ".local/state", "bin"})
# Directories that hold programs, and whose parent may be an installation.
PROGRAMS = frozenset({"bin", "condabin", "libexec", "sbin", "shims", "Scripts"})
# One of these makes a directory an installation, if nothing speaks against it.
SIGNS = frozenset({"include", "jre", "lib", "lib64", "libexec", "pyvenv.cfg", "release", "specifications"})
CONDA = "conda-meta"
# One of these makes a directory whose name begins with a dot a version manager's, which often is a clone of its source.
MANAGERS = frozenset({"candidates", "installs", "node-versions", "nvm.sh", "shims", "toolchains", "versions"})
# An installation has nothing else than these, unless its maker's licence or version is in it.
PARTS = frozenset({
    "BUILD", "CACHEDIR.TAG", "bin", "conf", "doc", "docs", "etc", "extensions", "gems", "include", "jmods", "jre",
    "legal", "lib", "lib32", "lib64", "libexec", "man", "pipx_metadata.json", "pyvenv.cfg", "sbin", "share",
    "specifications", "uv-receipt.toml",
})  # fmt: skip
LICENCES = ("COPYING", "LICENCE", "LICENSE", "NOTICE")
VERSIONS = frozenset({"VERSION", "build.txt", "release"})
# Somebody works here.
VERSIONED = frozenset({".git", ".hg", ".jj", ".svn"})
SOURCE = VERSIONED | {
    ".env", ".envrc", "CMakeLists.txt", "Cargo.toml", "Gemfile", "Makefile", "build.gradle", "go.mod",
    "package.json", "pom.xml", "pyproject.toml", "setup.py",
}  # fmt: skip
# Of a virtual environment in somebody's work, only these are shown.
ENVIRONMENT = ("bin", "lib", "lib64", "pyvenv.cfg")

# A variable, the usual place, and what of it is shown: `.` is the whole, if it looks like an installation.
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
    # What was fetched before, for builds without network.
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
INSTALLATIONS = (
    "ANT_HOME", "CONDA_PREFIX", "GOROOT", "GRAALVM_HOME", "GRADLE_HOME", "JAVA_HOME", "JDK_HOME", "KOTLIN_HOME",
    "M2_HOME", "MAVEN_HOME", "OPAM_SWITCH_PREFIX", "PYTHONHOME", "SCALA_HOME", "SPARK_HOME", "VIRTUAL_ENV",
)  # fmt: skip
# Variables that name one program each.
SINGLE_PROGRAMS = ("CONDA_EXE", "MAMBA_EXE")
# Variables that name directories of libraries, and what such directories are called.
LIBRARIES = ("LD_LIBRARY_PATH", "NODE_PATH", "PERL5LIB", "PYTHONPATH", "TERMINFO")
LIBRARY_NAMES = frozenset({"lib", "lib32", "lib64", "node_modules", "site-packages", "terminfo"})
# Settings without secrets that many programs read, or that say which version of a tool is meant.
SETTINGS = (".config/fontconfig", ".fonts", ".inputrc", ".local/share/fonts", ".terminfo", ".tool-versions")
# Where tools keep the virtual environments of all projects: a project sees its own.
ENVIRONMENTS = (
    ("WORKON_HOME", ".virtualenvs"),
    ("WORKON_HOME", ".local/share/virtualenvs"),
    ("POETRY_VIRTUALENVS_PATH", ".cache/pypoetry/virtualenvs"),
)
# Directories that hold installations, maybe one level further down.
COLLECTIONS = frozenset({
    "candidates", "envs", "image", "installs", "node-versions", "py", "python", "toolchains", "tools", "venvs",
    "versions",
})  # fmt: skip
MOVABLE = (
    (".local/share", "XDG_DATA_HOME"), (".config", "XDG_CONFIG_HOME"), (".cache", "XDG_CACHE_HOME"),
    (".local/state", "XDG_STATE_HOME"),
)  # fmt: skip

# Secrets inside of an installation, in it or in its `etc` or `conf`.
PRIVATE = frozenset({
    ".condarc", ".git-credentials", ".mambarc", ".netrc", ".npmrc", ".pypirc", ".yarnrc.yml", "auth.json",
    "auth.toml", "condarc", "gradle.properties", "npmrc", "pip.conf", "settings-security.xml", "settings.xml",
})  # fmt: skip
PRIVATE_WORDS = ("credential", "history", "passw", "secret", "token")
PRIVATE_STARTS = (".env", "id_dsa", "id_ecdsa", "id_ed25519", "id_rsa")
PRIVATE_ENDS = (".jks", ".kdbx", ".key", ".keystore", ".p12", ".pfx")
# What installers write down of how they were called, with the addresses that packages came from: in an installation
# itself by these ends, and further down by name. It is hidden where credentials are in it.
TEXTS = (".cfg", ".conf", ".ini", ".json", ".properties", ".toml", ".txt", ".xml", ".yaml", ".yml")
RECORDS = ("conda-meta/history", "pkgs/urls", "pkgs/urls.txt", ".git/config")
CONDA_TOKEN = "/t/"  # noqa: S105 - what stands before one
# What is run when an environment is entered: the place that manuals name for its secrets.
HOOKS = ("bin/postactivate", "bin/preactivate", "conda-meta/state", "etc/conda/activate.d/env_vars.sh")
# Variables that say where secrets are; whatever is shown, they are not.
MOVED_SECRETS = (
    "ANSIBLE_VAULT_PASSWORD_FILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AZURE_CONFIG_DIR",
    "BORG_KEY_FILE", "BUNDLE_USER_CONFIG", "CLAUDE_CONFIG_DIR", "CLOUDSDK_CONFIG", "CODEX_HOME", "CONDARC",
    "COPILOT_HOME", "DOCKER_CONFIG", "GEMINI_CLI_HOME", "GH_CONFIG_DIR", "GIT_CONFIG_GLOBAL", "GNUPGHOME",
    "GOOGLE_APPLICATION_CREDENTIALS", "HISTFILE", "KUBECONFIG", "MYSQL_HISTFILE", "NETRC", "NODE_REPL_HISTORY",
    "NPM_CONFIG_GLOBALCONFIG", "NPM_CONFIG_USERCONFIG", "PASSWORD_STORE_DIR", "PGPASSFILE", "PGSERVICEFILE",
    "PIP_CONFIG_FILE", "PSQL_HISTORY", "PYTHON_HISTORY", "REGISTRY_AUTH_FILE", "RESTIC_PASSWORD_FILE",
    "SOPS_AGE_KEY_FILE", "SQLITE_HISTORY", "TF_CLI_CONFIG_FILE", "UV_CONFIG_FILE", "XAUTHORITY",
    "npm_config_globalconfig", "npm_config_userconfig",
)  # fmt: skip
# Variables that say where settings are.
_SETTINGS = (
    "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "PIP_CONFIG_FILE", "UV_CONFIG_FILE", "UV_NO_CONFIG", "GOENV",
    "npm_config_userconfig", "NPM_CONFIG_USERCONFIG", "npm_config_globalconfig", "NPM_CONFIG_GLOBALCONFIG",
    "YARN_RC_FILENAME", "CARGO_HOME", "HGRCPATH", "JJ_CONFIG",
)  # fmt: skip
_VARIABLES = tuple(
    dict.fromkeys(
        (
            "PATH", *(variable for _, variable in MOVABLE), *(row[0] for row in TOOL_HOMES if row[0]),
            *(variable for variable, _ in ENVIRONMENTS), *INSTALLATIONS, *LIBRARIES, *SINGLE_PROGRAMS,
            *MOVED_SECRETS, *_SETTINGS,
        )
    )
)  # fmt: skip


def variables_for_tools(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables on which it depends what of a home is shown, as a key to keep the answer by."""
    return tuple((name, environment[name]) for name in _VARIABLES if environment.get(name))
