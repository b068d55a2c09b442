"""What in a home is an installation, what is somebody's work, and what is never shown.

An installation is told by its looks, so that tools need not be known by name. Where that is not clear, it is not one.
"""

from __future__ import annotations

import os

from fumehood.core.masks import HOME, is_below
from fumehood.linux.cache import Lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


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


_MOST_SAMPLED = 50  # files that tell whether a directory holds programs
_MOST_INSTALLATIONS = 1000  # looked into for secrets
_DEEPEST = 4  # of collections of installations


class Homes:
    """One or two homes, what commands write in them, and what is masked."""

    def __init__(
        self, homes: Sequence[str], environment: Mapping[str, str], written: Iterable[str], hidden: Iterable[str]
    ) -> None:
        self.disk = Lookup(homes)
        self.homes = tuple(homes)
        self._below_homes = tuple(f"{home}/" for home in homes)
        self._environment = environment
        self._written = tuple(f"{place}/" for place in written)
        self._settings = {*self._places([".config"]), *self._named_by("XDG_CONFIG_HOME")}
        self.common = set(self._places(COMMON))  # shared by too many to be shown whole
        self.common.update(place for _, variable in MOVABLE for place in self._named_by(variable))
        moved = {place for name in MOVED_SECRETS for place in self._named_by(name)}
        self.moved_secrets = {place for place in moved if not self._is_shared(place)}
        self._hidden = tuple(f"{place}/" for place in (*hidden, *self._masked_by_name(), *self.moved_secrets))
        self._installations: dict[str, bool] = {}
        self._installations_left = _MOST_INSTALLATIONS

    def values(self, variable: str) -> list[str]:
        """Return the absolute paths that a variable holds."""
        return [path for path in self._environment.get(variable, "").split(":") if path.startswith("/")]

    def _places(self, places: Iterable[str]) -> Iterator[str]:
        """Return places in the homes, each by its name and where it really is."""
        for home in self.homes:
            for place in places:
                path = f"{home}/{place}".rstrip("/")
                yield from {path, self.disk.resolve(path)[0]} - {""}

    def _named_by(self, variable: str) -> list[str]:
        return [self.disk.resolve(path)[0] or os.path.normpath(path) for path in self.values(variable)]

    def usual(self, home: str, place: str) -> str:
        """Return a usual place in a home, or where a variable has moved it."""
        for folder, variable in MOVABLE:
            if is_below(place, folder) and (paths := self.values(variable)):
                return paths[0] + place[len(folder) :]
        return f"{home}/{place}"

    def _masked_by_name(self) -> Iterator[str]:
        """Return what is masked in the homes, and where the links among it lead."""
        for home in self.homes:
            for place, _ in HOME:
                yield f"{home}/{place}"
                folder, _, name = place.rpartition("/")
                above = self.disk.resolve(f"{home}/{folder}")[0]
                if above:
                    # Only links are watched: those who mount the masks watch for new ones.
                    is_link = os.path.islink(f"{above}/{name}")
                    real = self.disk.resolve(f"{above}/{name}")[0] if is_link else f"{above}/{name}"
                    if real and not self._is_shared(real):
                        yield real

    def _is_shared(self, path: str) -> bool:
        """Return True if so much lies in a directory that to hide it would hide the tools."""
        return path in self.common or any(home.startswith(f"{path}/") for home in self._below_homes)

    def named(self, path: str) -> str:
        """Return a path as people write it."""
        home = next((home for home in self.homes if is_below(path, home)), "")
        return f"~{path[len(home) :]}" if home else path

    def contain(self, path: str) -> bool:
        """Return True if a path lies in a home."""
        return path.startswith(self._below_homes)

    def can_show(self, path: str) -> bool:
        """Return True if a path lies in a home, in no root, and nowhere that is masked."""
        inner = f"{path}/"
        if not self.contain(path) or any(home.startswith(inner) for home in self._below_homes):
            return False
        return not inner.startswith(self._written) and not inner.startswith(self._hidden)

    def is_written(self, path: str) -> bool:
        """Return True if commands may have written there: in a root, or in somebody's work, the root of others."""
        if f"{path}/".startswith(self._written):
            return True
        for home in self._below_homes:
            at = len(home)
            if not path.startswith(home) or path.startswith(".", at):
                continue
            while at > 0:
                at = path.find("/", at + 1)
                if self.disk.exists(f"{path if at < 0 else path[:at]}/.git"):
                    return True
        return False

    def is_installation(self, path: str) -> bool:
        """Return True if a directory is one tool with all its parts, not a person's settings or work."""
        if path not in self._installations:
            self._installations[path] = self._looks_installed(path)
        return self._installations[path]

    def _looks_installed(self, path: str) -> bool:
        if path in self.common or os.path.dirname(path) in self._settings or not self.can_show(path):
            return False
        names = self.disk.listing(path)
        is_manager = not MANAGERS.isdisjoint(names)
        if not SOURCE.isdisjoint(names):
            return is_manager and os.path.basename(path).startswith(".")
        if self.is_written(path) or any(place.startswith(f"{path}/") for place in self._written):
            return False
        if CONDA in names or (is_manager and "/." in self.named(path)):
            return True
        # A maker's licence or version is there, or nothing but parts of an installation.
        files = [name for name, kind in names.items() if kind != "d"]
        is_made = any(name in VERSIONS or name.startswith(LICENCES) for name in files)
        has_only_parts = all(name in PARTS or name.startswith(".") for name in names)
        return not SIGNS.isdisjoint(names) and (is_made or has_only_parts)

    def holds_programs(self, path: str) -> bool:
        """Return True if a directory is one for programs, going by its name or by most of what is in it."""
        names = self.disk.listing(path)
        if not VERSIONED.isdisjoint(names) or os.path.dirname(path) in self._settings:
            return False
        if os.path.basename(path) in PROGRAMS:
            return True
        files = [name for name, kind in sorted(names.items()) if kind == "f"][:_MOST_SAMPLED]
        executable = [name for name in files if self.disk.mode(f"{path}/{name}") & 0o111]
        return path not in self.common and len(executable) * 2 > len(files)

    def has_python(self, prefix: str) -> bool:
        """Return True if a Python is installed there: by the file that Python itself knows its library by."""
        programs = self.disk.listing(f"{prefix}/bin")
        libraries = [name for name in self.disk.listing(f"{prefix}/lib") if name.startswith(("python", "pypy"))]
        return any(name.startswith(("python", "pypy")) for name in programs) and any(
            self.disk.exists(f"{prefix}/lib/{name}/os.py") for name in libraries
        )

    def secrets_in(self, folder: str) -> tuple[list[str], list[str]] | None:
        """Return what holds passwords in an installation or in those collected below it, and the links among these.

        None if there are too many to look at.
        """
        secrets: list[str] = []
        links: list[str] = []
        waiting = [(folder, 0)]
        while waiting:
            if not self._installations_left:
                return None
            self._installations_left -= 1
            path, depth = waiting.pop()
            names = self.disk.listing(path)
            is_collection = os.path.basename(path) in COLLECTIONS or (depth > 0 and "bin" not in names)
            if not is_collection:
                secrets += self._secrets_of(path, names)
            is_keeper = CONDA in names or not MANAGERS.isdisjoint(names)
            for name, kind in sorted(names.items()) if depth < _DEEPEST else ():
                if kind == "d" and (is_collection or (is_keeper and name in COLLECTIONS)):
                    waiting.append((f"{path}/{name}", depth + 1))
                elif kind == "l" and is_collection:
                    links.append(f"{path}/{name}")
        return secrets, links

    def _secrets_of(self, path: str, names: Mapping[str, str]) -> Iterator[str]:
        for folder in (path, *(f"{path}/{part}" for part in ("conf", "etc") if part in names)):
            for name, kind in self.disk.listing(folder).items():
                if kind == "d":
                    continue
                is_private = name in PRIVATE or name.startswith(PRIVATE_STARTS) or name.endswith(PRIVATE_ENDS)
                if not is_private and any(word in name.lower() for word in PRIVATE_WORDS):
                    is_private = not self.disk.mode(f"{folder}/{name}") & 0o111  # `secret-tool` is a program
                if is_private:
                    yield f"{folder}/{name}"
        if "pyvenv.cfg" in names or CONDA in names:
            yield from (f"{path}/{hook}" for hook in HOOKS if self.disk.exists(f"{path}/{hook}"))
