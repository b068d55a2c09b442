"""How installations of tools in a home look, and which files in them are secret: tables for `linux/hometools.py`."""

from __future__ import annotations

# Directories below a home that many programs share. None of them is shown whole, whatever is in it.
SHARED_DIRECTORIES = frozenset({"", ".cache", ".config", ".local", ".local/lib", ".local/share", ".local/state", "bin"})
# Directories that hold programs; the directory around one may be an installation.
PROGRAM_DIRECTORIES = frozenset({"bin", "condabin", "libexec", "sbin", "shims", "Scripts"})
LIBRARY_DIRECTORIES = frozenset({"lib", "lib32", "lib64", "node_modules", "site-packages", "terminfo"})
# Directories that hold installations, which may be one level further down.
COLLECTION_DIRECTORIES = frozenset({
    "candidates", "envs", "image", "installs", "node-versions", "py", "python", "toolchains", "tools", "venvs",
    "versions",
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
# Somebody works in a directory that has one of these.
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
SECRET_ENDS = (".jks", ".kdbx", ".key", ".keystore", ".p12", ".pfx")
# Installers record how they were called, and the addresses of packages. Such a record lies in the installation itself
# and has one of these ends, or has one of these paths. It is masked if it has credentials in it.
RECORD_ENDS = (".cfg", ".conf", ".ini", ".json", ".properties", ".toml", ".txt", ".xml", ".yaml", ".yml")
RECORD_PATHS = ("conda-meta/history", "pkgs/urls", "pkgs/urls.txt", ".git/config")
CONDA_TOKEN_PREFIX = "/t/"  # noqa: S105 - comes before a token, in the path of an address
# These run when an environment is entered. Manuals name them as the place for its secrets.
ENVIRONMENT_HOOKS = ("bin/postactivate", "bin/preactivate", "conda-meta/state", "etc/conda/activate.d/env_vars.sh")
