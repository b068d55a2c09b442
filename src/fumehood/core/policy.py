"""The policy: the settings that hold for every run, with their defaults; profiles; and the network of a command.

Each field is a key of the configuration under the same name (`limits.memory` is `Policy.limits.memory`); the
table in `config.py` says which values it takes and what they mean.
"""

from __future__ import annotations

from fumehood.core.request import APPLY, DISCARD, HOLD, WHOLE
from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any


# Profiles: what a command gets in addition because of the programs it runs, above all their caches.
#
# Harmless settings (caches, limits, variables) apply to every line that names the program: they are a convenience and
# no boundary. Settings that let a command reach more than others need more than a name: see service/profiles.py.

_HARMLESS = ("timeout", "limits.", "environment.set", "environment.drop", "mask", "rules.")


class Profile(Value):
    """Settings and scratch directories for the commands of some programs.

    `match` has programs, some with words that must follow (`python* -m pip`). `scratch` has directories that the
    program may write, each as `DIRECTORY`, or as `VARIABLE=DIRECTORY` if that variable can name another directory.
    A directory begins with `/`, `~/` or a variable, `$NAME/`. `keep` says whether they are kept for the project's next
    commands. `settings` change the policy; `defaults` are variables for environments that don't have them.
    """

    match: tuple[str, ...]
    scratch: tuple[str, ...] = ()
    keep: bool = True
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed
    defaults: tuple[tuple[str, str], ...] = ()

    @property
    def harmless_settings(self) -> dict[str, Any]:
        """The settings that give a command no access that other commands don't have."""
        return {name: value for name, value in self.settings.items() if name.startswith(_HARMLESS)}

    @property
    def widening_settings(self) -> dict[str, Any]:
        """The settings that may give a command more access: all that are not known to be harmless."""
        return {name: value for name, value in self.settings.items() if not name.startswith(_HARMLESS)}


def profile_from_table(table: dict[str, Any]) -> Profile:
    """Make a profile from a `[[profile]]` table of the configuration."""
    settings = {name: value for name, value in table.items() if name not in ("match", "scratch", "keep")}
    scratch, keep = table.get("scratch", ()), table.get("keep", True)
    return Profile(match=table["match"], scratch=scratch, keep=keep, settings=settings)


def profiles_for(profiles: Sequence[Profile], command: str | tuple[str, ...]) -> tuple[Profile, ...]:
    """Return the profiles for the programs that a command runs, in their order."""
    line = command if isinstance(command, str) else " ".join(command)
    # Most commands match nothing; for them, the parser of command lines is not even imported.
    likely = [each for each in profiles if any(pattern.partition(" ")[0].rstrip("*") in line for pattern in each.match)]
    if not likely:
        return ()
    from fumehood.core.shell import programs

    called_programs = list(programs(command))
    return tuple(each for each in likely if any(is_profile_for(each, words) for words in called_programs))


def is_profile_for(profile: Profile, words: Sequence[str]) -> bool:
    """Return True if a profile is for this program with these arguments."""
    name = words[0].rpartition("/")[2]
    for program, *following in map(str.split, profile.match):
        is_program = name.startswith(program[:-1]) if program.endswith("*") else name == program
        size = len(following)
        starts = range(1, len(words))
        if is_program and (not following or any(list(words[start : start + size]) == following for start in starts)):
            return True
    return False


def default_variables(profiles: Iterable[Profile]) -> dict[str, str]:
    """Return the variables that profiles set where the environment does not have them."""
    return {name: value for each in profiles for name, value in each.defaults}


# uv prefers hard links, but its cache and the project are never on one file system here.
_UV_DEFAULTS = (("UV_LINK_MODE", "copy"),)
# Without network, npm would retry for more than a minute before it fails.
_NPM_DEFAULTS = (
    ("npm_config_update_notifier", "false"),
    ("npm_config_fetch_retry_mintimeout", "1000"), ("npm_config_fetch_retry_maxtimeout", "5000"),
)  # fmt: skip
# A garbage collection in the background would be killed half-way, when the command ends.
_GIT_DEFAULTS = (
    ("GIT_CONFIG_COUNT", "2"),
    ("GIT_CONFIG_KEY_0", "gc.autoDetach"), ("GIT_CONFIG_VALUE_0", "false"),
    ("GIT_CONFIG_KEY_1", "maintenance.autoDetach"), ("GIT_CONFIG_VALUE_1", "false"),
)  # fmt: skip
# After an install, pyenv rewrites its shims.
_PIP = "PIP_CACHE_DIR=~/.cache/pip ~/.pyenv/shims $PYENV_ROOT/shims"


def _shipped(match: str, scratch: str, defaults: tuple[tuple[str, str], ...] = ()) -> Profile:
    return Profile(match=tuple(match.split(", ")), scratch=tuple(scratch.split()), defaults=defaults)


# pnpm, maven, gradle and others write the path of their cache into the project, so no variable may move that cache.
_ONE_TOOL_PROFILES = (
    _shipped("npm, npx", "npm_config_cache=~/.npm", _NPM_DEFAULTS),
    # Later versions keep packages in the second directory, and the project only refers to them.
    _shipped("yarn, yarnpkg", "YARN_CACHE_FOLDER=~/.cache/yarn YARN_GLOBAL_FOLDER=~/.yarn/berry"),
    _shipped("pnpm, pnpx", "~/.local/share/pnpm/store"),
    _shipped("pip, pip3*, python* -m pip", _PIP),
    _shipped("uv, uvx", "UV_CACHE_DIR=~/.cache/uv", _UV_DEFAULTS),
    # Never all of an existing CARGO_HOME: credentials and settings lie in it. Where there is no registry yet, all of
    # CARGO_HOME is moved elsewhere; its `bin` and settings are then not needed.
    _shipped(
        "cargo", "CARGO_HOME=~/.cargo/registry CARGO_HOME=$CARGO_HOME/registry ~/.cargo/git $CARGO_HOME/git"
    ),
    _shipped("go", "GOCACHE=~/.cache/go-build GOMODCACHE=~/go/pkg/mod"),
    _shipped("mvn, mvnw, mvnd", "~/.m2/repository"),
    _shipped(
        "gradle, gradlew", "~/.gradle/caches ~/.gradle/wrapper $GRADLE_USER_HOME/caches $GRADLE_USER_HOME/wrapper"
    ),
    _shipped("bun, bunx", "BUN_INSTALL_CACHE_DIR=~/.bun/install/cache $BUN_INSTALL/install/cache"),
    _shipped("deno", "DENO_DIR=~/.cache/deno"),
    _shipped("poetry", f"{_PIP} ~/.cache/pypoetry/artifacts ~/.cache/pypoetry/cache"),
    _shipped("composer", "COMPOSER_CACHE_DIR=~/.cache/composer"),
    _shipped("sbt", "~/.ivy2/cache ~/.ivy2/local ~/.sbt/boot COURSIER_CACHE=~/.cache/coursier/v1"),
    _shipped("dotnet", "~/.nuget/packages"),
    _shipped("dart, flutter", "~/.pub-cache/hosted $PUB_CACHE/hosted"),
    _shipped("mix", "~/.hex/packages $HEX_HOME/packages"),
    _shipped("cabal, stack", "~/.cabal/packages ~/.cabal/store ~/.stack/programs ~/.stack/snapshots"),
    _shipped("ccache", "CCACHE_DIR=~/.cache/ccache"),
    _shipped("git", "", _GIT_DEFAULTS),
    # What may run git hooks of pre-commit.
    _shipped(
        "pre-commit, git commit, git merge, git rebase, git push, git pull, git checkout",
        "PRE_COMMIT_HOME=~/.cache/pre-commit",
    ),
)
# For programs that may call any of the others.
BUILD_TOOLS_PROFILE = Profile(
    match=("make", "gmake", "cmake", "ninja", "just", "tox", "nox", "meson"),
    scratch=tuple(dict.fromkeys(place for each in _ONE_TOOL_PROFILES for place in each.scratch)),
    defaults=tuple(pair for each in _ONE_TOOL_PROFILES for pair in each.defaults),
)
SHIPPED_PROFILES: tuple[Profile, ...] = (*_ONE_TOOL_PROFILES, BUILD_TOOLS_PROFILE)


# The policy.

PRETEND, REFUSE = "pretend", "refuse"  # `ownership`: what happens when a command gives a file to another owner
HIDDEN, VISIBLE = "hidden", "visible"  # `home`
NONE, HOSTS, FULL, ASK = "none", "hosts", "full", "ask"  # `network`
EVERY_HOST = "the whole network of this machine, every host"
ALL_PROJECTS = ""  # stands for a project's path at the settings that hold for every project


class Environment(Value):
    """Changes to the environment that a command inherits."""

    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    set: tuple[tuple[str, str], ...] = ()


class Limits(Value):
    """What one run may use: more than a build needs, less than would harm the machine.

    0 means no limit; for memory, three quarters of the machine's.
    """

    memory: int = 0
    processes: int = 4096
    cpu: float = 100 * 86400
    files: int = 65536
    file_size: int = 64 << 30
    written: int = 64 << 30


class Clean(Value):
    """How long originals of runs and daily backups are kept, and how much space they may take."""

    keep_days: int = 30
    backup_days: int = 7
    budget: int = 10 << 30


class Rootfs(Value):
    """Where a root tree comes from, and whether a workspace may change its own."""

    mirror: str = ""
    proxy: str = ""
    keys: tuple[str, ...] = ()
    install: bool = False
    writable: bool = False


class Sign(Value):
    """The key that signs bundles and jobs, and the file of keys whose signatures are trusted."""

    key: str = ""
    signers: str = ""


class Fleet(Value):
    """What a worker accepts in jobs that others send."""

    unsigned: bool = False
    hosts: tuple[str, ...] = ()
    roots: tuple[str, ...] = ("host",)
    secrets: tuple[str, ...] = ()
    budget: int = 20 << 30


class Again(Value):
    """When to run a command again whose changes conflict only with other runs."""

    tries: int = 3
    within: float = 20.0  # seconds: a command that took longer is not run again


class Rules(Value):
    """A person's own globs of paths to hold or flag, in addition to our rules.

    A glob with a `/` is compared with the whole path below its root, one without with the last name,
    and one that ends in `/` means everything below; `*` also matches `/`.
    """

    hold: tuple[str, ...] = ()
    flag: tuple[str, ...] = ()


class Policy(Value):
    """The settings for every run that does not ask for something else."""

    apply: str = APPLY
    on_conflict: str = "hold-path"
    again: Again = Again()
    checkpoint: float = 5.0  # seconds between checkpoints of a background command; 0: none
    timeout: float | None = 86400
    output_limit: int = 64 << 20
    capture: str = ""
    sandbox: str = "bwrap"
    root: str = "host"
    tmp: str = "session"
    drafts: str = ""  # "session": the commands of each session are in a draft of its own
    playground: bool = True
    ownership: str = PRETEND
    ask_timeout: float = 120.0
    network: str = NONE
    hosts: tuple[str, ...] = ()
    rules: Rules = Rules()
    home: str = HIDDEN
    show: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    unmask: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    environment: Environment = Environment()
    limits: Limits = Limits()
    clean: Clean = Clean()
    rootfs: Rootfs = Rootfs()
    sign: Sign = Sign()
    fleet: Fleet = Fleet()
    skills: tuple[dict[str, Any], ...] = ()
    in_roots: tuple[dict[str, Any], ...] = ()  # variables for commands in certain root trees
    tools: tuple[dict[str, Any], ...] = ()  # command templates: core/tool.py
    profiles: tuple[Profile, ...] = SHIPPED_PROFILES
    agents: tuple[dict[str, Any], ...] = ()  # a person's `[[agent]]` tables; ours are in core/inside.py

    def mode(self, requested: str | None) -> str:
        """Return what becomes of a run's changes: as requested, or as the policy has it."""
        mode = self.apply if requested is None else requested
        if mode not in (APPLY, HOLD, DISCARD, WHOLE):
            raise BadRequest(f"changes can't be handled by {mode!r}", hint="one of: apply, hold, discard, whole")
        return mode

    def variables_in(self, *names: str) -> dict[str, str]:
        """Return the variables for commands in a root tree with these names; they override those for all commands."""
        tables = [each for each in self.in_roots if each["root"] in names]
        return dict(self.environment.set) | {k: v for each in tables for k, v in each.get("environment.set", ())}

    def with_settings(self, settings: Mapping[str, Any]) -> Policy:
        """Return this policy with settings, given by field, applied: lists are added, other values are replaced."""
        changed: dict[str, Any] = {}
        for path, value in settings.items():
            name, _, inner = path.partition(".")
            holder = changed.get(name, getattr(self, name))
            old, new = getattr(holder, inner) if inner else holder, value
            if name == "profiles":
                new = (*old, *map(profile_from_table, value))
            elif isinstance(old, tuple):
                new = (*old, *(each for each in value if each not in old))
            changed[name] = holder.replace(**{inner: new}) if inner else new
        return self.replace(**changed)


# The network of a command, decided from the request and the policy.

class Network(Value):
    """One command's network: `hosts` are those it may reach, `to_ask` those that a person must allow first."""

    mode: str = NONE
    hosts: tuple[str, ...] = ()
    to_ask: tuple[str, ...] = ()
    asks: bool = False  # a connection to any other host waits while a person is asked

    @property
    def is_proxied(self) -> bool:
        """Whether connections go through the proxy, which may refuse all of them."""
        return self.mode == HOSTS or self.asks


OFFLINE = Network()


def decide_network(mode: str, hosts: tuple[str, ...], policy: Policy) -> Network:
    """Return the network of a command that requests a mode and hosts; most request none."""
    if mode == NONE and not hosts and policy.network == NONE and not policy.hosts:
        return OFFLINE
    if policy.network == FULL:
        return Network(mode=FULL)
    if mode == FULL:
        return Network(mode=FULL, to_ask=(EVERY_HOST,))
    from fumehood.core.hosts import Hosts, parse_host

    granted, requested = Hosts(policy.hosts), [parse_host(host) for host in hosts]
    all_hosts = tuple(dict.fromkeys([*policy.hosts, *(rule.text for rule in requested)]))
    return Network(
        mode=HOSTS if all_hosts else NONE, hosts=all_hosts, asks=policy.network == ASK,
        to_ask=tuple(rule.text for rule in requested if not granted.covers(rule)),
    )  # fmt: skip
