"""Where tools live in a home, and how an installation looks: tables for `linux/hometools.py`, which reads the disk.

All of them name what may be shown. Only the last ones name secrets: those that lie inside of what is shown.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

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
PARTS = frozenset(
    {
        "BUILD", "CACHEDIR.TAG", "bin", "conf", "doc", "docs", "etc", "extensions", "gems", "include", "jmods", "jre",
        "legal", "lib", "lib32", "lib64", "libexec", "man", "pipx_metadata.json", "pyvenv.cfg", "sbin", "share",
        "specifications", "uv-receipt.toml",
    }
)  # fmt: skip
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
COLLECTIONS = frozenset(
    {
        "candidates", "envs", "image", "installs", "node-versions", "py", "python", "toolchains", "tools", "venvs",
        "versions",
    }
)  # fmt: skip
MOVABLE = (
    (".local/share", "XDG_DATA_HOME"), (".config", "XDG_CONFIG_HOME"), (".cache", "XDG_CACHE_HOME"),
    (".local/state", "XDG_STATE_HOME"),
)  # fmt: skip

# Secrets inside of an installation, in it or in its `etc` or `conf`.
PRIVATE = frozenset(
    {
        ".condarc", ".git-credentials", ".mambarc", ".netrc", ".npmrc", ".pypirc", ".yarnrc.yml", "auth.json",
        "auth.toml", "condarc", "gradle.properties", "npmrc", "pip.conf", "settings-security.xml", "settings.xml",
    }
)  # fmt: skip
PRIVATE_WORDS = ("credential", "history", "passw", "secret", "token")
PRIVATE_STARTS = (".env", "id_dsa", "id_ecdsa", "id_ed25519", "id_rsa")
PRIVATE_ENDS = (".jks", ".kdbx", ".key", ".keystore", ".p12", ".pfx")
# What is run when an environment is entered: the place that manuals name for its secrets.
HOOKS = ("bin/postactivate", "bin/preactivate", "conda-meta/state", "etc/conda/activate.d/env_vars.sh")
# Variables that say where secrets are; whatever is shown, they are not.
MOVED_SECRETS = (
    "ANSIBLE_VAULT_PASSWORD_FILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AZURE_CONFIG_DIR",
    "BORG_KEY_FILE", "BUNDLE_USER_CONFIG", "CLAUDE_CONFIG_DIR", "CLOUDSDK_CONFIG", "CODEX_HOME", "CONDARC",
    "DOCKER_CONFIG", "GH_CONFIG_DIR", "GIT_CONFIG_GLOBAL", "GNUPGHOME", "GOOGLE_APPLICATION_CREDENTIALS", "HISTFILE",
    "KUBECONFIG", "MYSQL_HISTFILE", "NETRC", "NODE_REPL_HISTORY", "NPM_CONFIG_GLOBALCONFIG", "NPM_CONFIG_USERCONFIG",
    "PASSWORD_STORE_DIR", "PGPASSFILE", "PGSERVICEFILE", "PIP_CONFIG_FILE", "PSQL_HISTORY", "PYTHON_HISTORY",
    "REGISTRY_AUTH_FILE", "RESTIC_PASSWORD_FILE", "SOPS_AGE_KEY_FILE", "SQLITE_HISTORY", "TF_CLI_CONFIG_FILE",
    "UV_CONFIG_FILE", "XAUTHORITY", "npm_config_globalconfig", "npm_config_userconfig",
)  # fmt: skip
# Variables that say where settings are.
_SETTINGS = (
    "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "PIP_CONFIG_FILE", "UV_CONFIG_FILE", "UV_NO_CONFIG", "GOENV",
    "npm_config_userconfig", "NPM_CONFIG_USERCONFIG", "YARN_RC_FILENAME", "CARGO_HOME",
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


def relevant(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables on which it depends what of a home is shown, as a key to keep the answer by."""
    return tuple((name, environment[name]) for name in _VARIABLES if environment.get(name))
