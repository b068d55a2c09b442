"""Tools in a home: which variables say where they are, how an installation looks, and which files in it are secret."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Directories below a home that many programs share. None of them is shown whole, whatever is in it.
SHARED_DIRECTORIES = frozenset({"", ".cache", ".config", ".local", ".local/lib", ".local/share", ".local/state", "bin"})
# Directories that hold programs; the directory around one may be an installation.
PROGRAM_DIRECTORIES = frozenset({"bin", "condabin", "libexec", "sbin", "shims", "Scripts"})
LIBRARY_DIRECTORIES = frozenset({"lib", "lib32", "lib64", "node_modules", "site-packages", "terminfo"})
# Directories that hold installations, which may be one level further down.
COLLECTION_DIRECTORIES = frozenset({
    "candidates", "envs", "image", "installs", "node-versions", "plugins", "py", "python", "registries", "toolchains",
    "tools", "venvs", "versions",
})  # fmt: skip

# A directory with one of these is an installation, unless something speaks against it.
INSTALLATION_SIGNS = frozenset({"include", "jre", "lib", "lib64", "libexec", "pyvenv.cfg", "release", "specifications"})
CONDA_SIGN = "conda-meta"
# A directory with one of these, and a name that begins with a dot, is that of a version manager. It is often a clone of
# the manager's source.
MANAGER_SIGNS = frozenset({"candidates", "installs", "node-versions", "nvm.sh", "shims", "toolchains", "versions"})
# An installation has nothing else than these, unless it has a licence or version file of its maker.
INSTALLATION_PARTS = frozenset({
    "BUILD", "CACHEDIR.TAG", "bin", "conf", "doc", "docs", "etc", "extensions", "gems", "include", "jmods", "jre",
    "legal", "lib", "lib32", "lib64", "libexec", "man", "pipx_metadata.json", "pyvenv.cfg", "sbin", "share",
    "specifications", "uv-receipt.toml",
})  # fmt: skip
LICENCE_STARTS = ("COPYING", "LICENCE", "LICENSE", "NOTICE")
VERSION_FILES = frozenset({"VERSION", "build.txt", "release"})
# Somebody works in a directory that has one of these. Of a tool that is a clone, they are hidden: an address in there
# may have a password in it, and no tool needs them to run.
REPOSITORY_SIGNS = frozenset({".git", ".hg", ".jj", ".svn"})
WORK_SIGNS = REPOSITORY_SIGNS | {
    ".env", ".envrc", "CMakeLists.txt", "Cargo.toml", "Gemfile", "Makefile", "build.gradle", "go.mod",
    "package.json", "pom.xml", "pyproject.toml", "setup.py",
}  # fmt: skip
# Only these are shown of a virtual environment in somebody's work.
ENVIRONMENT_PARTS = ("bin", "lib", "lib64", "pyvenv.cfg")
# Settings without secrets that many programs read, or that say which version of a tool is meant.
HARMLESS_SETTINGS = (".config/fontconfig", ".fonts", ".inputrc", ".local/share/fonts", ".terminfo", ".tool-versions")

# Secret files of an installation: in itself, or in its `etc` or `conf`.
SECRET_FILES = frozenset({
    ".condarc", ".git-credentials", ".mambarc", ".netrc", ".npmrc", ".pypirc", ".yarnrc.yml", "auth.json",
    "auth.toml", "condarc", "gradle.properties", "npmrc", "pip.conf", "settings-security.xml", "settings.xml",
})  # fmt: skip
SECRET_WORDS = ("credential", "history", "passw", "secret", "token")
SECRET_STARTS = (".env", "id_dsa", "id_ecdsa", "id_ed25519", "id_rsa")
SECRET_ENDS = (".jks", ".kdbx", ".key", ".keystore", ".p12", ".pfx", ".ppk")
# A directory with one of these is a browser's profile: cookies and passwords of whoever is logged in there.
BROWSER_PROFILE_SIGNS = ("Cookies", "Local State", "Login Data", "cookies.sqlite", "key4.db")
# Other people's packages, some of which have keys for their tests.
PACKAGE_DIRECTORIES = frozenset({"node_modules", "site-packages"})
# Installers record how they were called, and the addresses of packages. Such a record lies in the installation itself
# and has one of these ends, or has one of these paths. It is masked if it has credentials in it.
RECORD_ENDS = (".cfg", ".conf", ".ini", ".json", ".properties", ".toml", ".txt", ".xml", ".yaml", ".yml")
RECORD_PATHS = ("conda-meta/history", "pkgs/urls", "pkgs/urls.txt")
CONDA_TOKEN_PREFIX = "/t/"  # noqa: S105 - comes before a token, in the path of an address
# These run when an environment is entered. Manuals name them as the place for its secrets.
ENVIRONMENT_HOOKS = ("bin/postactivate", "bin/preactivate", "conda-meta/state", "etc/conda/activate.d/env_vars.sh")

# The variables that say where tools and settings are. Most of these tables name what may be shown of a home; only the
# last ones name secrets.

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
    ("", ".cache", "bazelisk node/corepack"),
    # Browsers for tests, each by its name: beside them, agents keep profiles in which they are logged in.
    ("", ".cache", "Cypress/1* Cypress/2* Cypress/3* Cypress/4* Cypress/5*"),
    ("", ".cache", "Cypress/6* Cypress/7* Cypress/8* Cypress/9*"),
    ("", ".cache", "ms-playwright/chromium* ms-playwright/ffmpeg* ms-playwright/firefox* ms-playwright/webkit*"),
    ("", ".cache", "puppeteer/chrome puppeteer/chrome-headless-shell puppeteer/chromedriver puppeteer/firefox"),
    ("", ".cache", "selenium/chrome selenium/chromedriver selenium/edge selenium/firefox selenium/geckodriver"),
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
SETTINGS_VARIABLES = (
    "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "PIP_CONFIG_FILE", "UV_CONFIG_FILE", "UV_NO_CONFIG", "GOENV",
    "npm_config_userconfig", "NPM_CONFIG_USERCONFIG", "npm_config_globalconfig", "NPM_CONFIG_GLOBALCONFIG",
    "YARN_RC_FILENAME", "CARGO_HOME", "HGRCPATH", "JJ_CONFIG",
)  # fmt: skip
_TOOL_VARIABLES = tuple(
    dict.fromkeys(
        (
            "PATH", *(variable for _, variable in MOVABLE_DIRECTORIES), *(row[0] for row in TOOL_HOMES if row[0]),
            *(variable for variable, _ in ENVIRONMENT_COLLECTIONS), *INSTALLATION_VARIABLES, *LIBRARY_VARIABLES,
            *PROGRAM_VARIABLES, *SECRET_PATH_VARIABLES, *SETTINGS_VARIABLES,
        )
    )
)  # fmt: skip


def variables_for_tools(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that decide which parts of a home are shown; the answer is kept under them as a key."""
    return tuple((name, environment[name]) for name in _TOOL_VARIABLES if environment.get(name))


def paths_in_variable(environment: Mapping[str, str], variable: str) -> list[str]:
    """Return the absolute paths that a variable holds."""
    value = environment.get(variable)
    return [path for path in value.split(":") if path.startswith("/")] if value else []  # most are not set
