"""What a command's profiles give it: scratch directories and other settings always, grants only to a plain command.

Scratch directories are those that its program may write during a run: above all its caches.
"""

from __future__ import annotations

import os
from _blake2 import blake2b  # without OpenSSL, which `hashlib` loads for 4 ms

from fumehood.core.masks import HOMES, UNSEEN
from fumehood.core.paths import is_in
from fumehood.core.policy import FULL, Policy, Profile, is_profile_for
from fumehood.core.report import Blocked
from fumehood.core.request import HOST, Request
from fumehood.core.shell import may_keep_permission, simple_command
from fumehood.core.value import Value
from fumehood.linux.cache import follow_path
from fumehood.linux.capture import BWRAP, KERNEL
from fumehood.linux.lock import Lock
from fumehood.linux.mounts import Bind, Operation, Overlay
from fumehood.linux.namespaces import mounts_inside
from fumehood.linux.nofollow import LISTING, entries, remove_directory, remove_tree
from fumehood.service.layers import disk_usage
from fumehood.store.places import Places, home, process_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from fumehood.service.store import Store
    from fumehood.store.projects import Project

# ---- Scratch: kept for the project, or thrown away.
#
# A directory that the host has is covered by an overlay: the program finds its content, and writes to a directory of
# ours. One that the host lacks is not made there: its variable leads the program to another place. None of this is
# judged or applied, and only later commands of the same project see it.

INSIDE = "/dev/scratch"  # made by bubblewrap for each run, so no command can have put a link there
_IN_MEMORY = "/tmp/scratch"  # noqa: S108 - as the command sees it
_KEPT_NAME, _ONCE_PREFIX, _WORK_PREFIX = "kept", "once-", "work-"
_ELSEWHERE_NAME = "elsewhere"  # for scratch directories that the host does not have


class ScratchRequest(Value):
    """A directory that a profile asks for; `variable`, if it has one, leads the program to another place."""

    path: str
    variable: str
    keep: bool


class ScratchConditions(Value):
    """What decides where scratch can be. It may not overlap the `closed` directories."""

    way: str  # of capturing
    closed: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    has_host: bool = True  # False in a root tree, which has no path of the host
    is_ours: bool = True  # False if the command runs as another user, who can't reach our directories


def scratch_requests(
    profiles: Iterable[Profile], environment: Mapping[str, str], home: str
) -> tuple[ScratchRequest, ...]:
    """Return the directories that profiles ask for, each once; if its variable is set, that is the directory.

    `NAME=$NAME/part` is the part of the directory that the variable names. The last profile wins: a person's profiles
    come after ours.
    """
    directories: dict[str, ScratchRequest] = {}
    for profile in profiles:
        for text in profile.scratch:
            variable, _, path = text.rpartition("=")
            value = environment.get(variable, "") if variable and not path.startswith(f"${variable}/") else ""
            path = value if value.startswith("/") else _expand(path, environment, home)
            if path:
                directories[variable or path] = ScratchRequest(path=path, variable=variable, keep=profile.keep)
    return tuple(directories.values())


def _expand(path: str, environment: Mapping[str, str], home: str) -> str:
    """Expand `~` or a variable at the beginning of a path; returns "" if the variable is not set."""
    top, _, rest = path.partition("/")
    caches = environment.get("XDG_CACHE_HOME", "")
    if path.startswith("~/.cache/") and caches.startswith("/"):
        return caches + path.removeprefix("~/.cache")
    if top.startswith("$"):
        above = environment.get(top[1:], "")
        return f"{above}/{rest}" if above.startswith("/") else ""
    return home + path[1:] if top == "~" else path


class Scratch:
    """The scratch directories of one run, as mounts and as variables for the command."""

    def __init__(
        self, places: Places, project: str, run: str, requests: Sequence[ScratchRequest], *, keeps_tmp: bool = False
    ) -> None:
        self._project_directory = f"{places.cache}/scratch/{digest_of(project)}"
        self._places = places
        self._run = run
        self._requests = requests
        self._keeps_tmp = keeps_tmp
        self._conditions = ScratchConditions(way=KERNEL)
        self._reset()

    def _reset(self) -> None:
        self._locks: list[Lock] = []
        self._temporary: list[str] = []
        self.points: list[str] = []  # mount points, which the host may lack
        self._elsewhere: dict[bool, tuple[str, str]] = {}
        self.directories: list[str] = []  # that receive what is written
        self.tmp = ""  # the project's own /tmp, where it keeps one
        self.variables: dict[str, str] = {}
        self.mounts: list[Operation] = []

    def make(self, conditions: ScratchConditions) -> None:
        """Make the directories; a command that is run again has them made again."""
        self._conditions = conditions
        if self._keeps_tmp and conditions.is_ours:
            self.tmp = self._directory("tmp", keep=True, exclusive=False)[0]
            os.chmod(self.tmp, 0o1777)  # noqa: S103 - as every /tmp; what is above it is closed
        for requests in self._requests:
            if requests.variable:
                # Used if there is no directory of ours: the program works, but starts each time with an empty cache.
                self.variables[requests.variable] = f"{_IN_MEMORY}/{requests.variable}"
            if not conditions.is_ours:
                continue
            real = os.path.realpath(requests.path)
            try:
                if conditions.has_host and os.path.isdir(real) and self._may_cover(real):
                    self._cover_directory(real, requests.keep)
                    self.variables.pop(requests.variable, None)
                elif requests.variable:
                    self.variables[requests.variable] = self._directory_for_variable(requests.variable, requests.keep)
            except OSError:
                continue

    def _directory_for_variable(self, variable: str, keep: bool) -> str:
        """Return the place of a directory that the host does not have. All such places are in one mount, or two."""
        if keep not in self._elsewhere:
            source = self._directory(_ELSEWHERE_NAME, keep, exclusive=False)[0]
            target = INSIDE if keep else f"{INSIDE}-once"
            self.mounts.append(Bind(target=target, source=source, is_writable=True, why="its caches"))
            self._elsewhere[keep] = target, source
        target, source = self._elsewhere[keep]
        place = f"{target}/{variable}"
        try:
            os.mkdir(f"{source}/{variable}", 0o700)
        except FileExistsError:
            return place  # nothing follows what a command may have put there
        return place

    def _cover_directory(self, path: str, keep: bool) -> None:
        name = os.path.basename(path).lstrip(".") + "-" + digest_of(path)[:8]
        layered = self._conditions.way in (KERNEL, BWRAP) and not mounts_inside(path)
        if layered:
            # Overlays are known to work only on the file system of the layers.
            os.makedirs(self._project_directory, mode=0o700, exist_ok=True)
            layered = os.stat(self._project_directory).st_dev == os.stat(self._places.state).st_dev
        upper, work = self._directory(name if layered else f"{name}-bare", keep, exclusive=layered)
        os.chmod(upper, os.stat(path).st_mode & 0o777)
        if layered:
            self.mounts.append(Overlay(target=path, lowers=(path,), upper=upper, work=work, why="a cache"))
        else:
            self.mounts.append(Bind(target=path, source=upper, is_writable=True, why="a cache"))

    def _may_cover(self, path: str) -> bool:
        """Return True if a host's directory may be covered: it is visible, and nothing in it is captured or hidden.

        A mask below it would hide nothing: the overlay shows the host's directory itself.
        """
        homes = {home: os.path.realpath(home) for home in self._conditions.homes}
        for each in (*self._conditions.closed, *self._places.own_directories(), *UNSEEN):
            real = next((to + each[len(home) :] for home, to in homes.items() if is_in(each, (home,))), each)
            if is_in(path, (real,)) or is_in(real, (path,)):
                return False
        is_own = is_in(path, tuple(homes.values()))
        is_others = not is_own and is_in(path, HOMES)
        return not is_others and not any(is_in(home, (path,)) for home in homes.values())

    def _directory(self, name: str, keep: bool, *, exclusive: bool, above: str = "") -> tuple[str, str]:
        """Return a directory to write in, and a work directory for the overlay.

        Two overlays can't share a directory: the second command gets one that is deleted at its end.
        """
        directory = f"{above or self._project_directory}/{name}"
        os.makedirs(directory, mode=0o700, exist_ok=True)
        lock = Lock(os.open(directory, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC))
        self._locks.append(lock)
        if keep:
            try:
                lock.take(shared=not exclusive, wait=False)
            except BlockingIOError:
                keep = False
        os.utime(directory)  # when it was last used
        upper = f"{directory}/{_KEPT_NAME if keep else _ONCE_PREFIX + self._run}"
        os.makedirs(upper, mode=0o700, exist_ok=True)
        os.chmod(upper, 0o700)  # whatever the last command made of it
        work = f"{directory}/{_WORK_PREFIX}{self._run}"
        if exclusive:
            os.mkdir(work, 0o700)
        self._temporary += [work] if keep else [work, upper]
        self.directories.append(upper)
        return upper, work

    def remove(self) -> None:
        """Remove the temporary directories, and unlock the others."""
        for path in self._temporary:
            remove_directory(path)
        for lock in self._locks:
            lock.close()
        self._reset()


def remove_old_scratch(
    places: Places, before: float, leftovers_before: float, *, project: str | None = None, dry: bool = False
) -> tuple[int, int]:
    """Remove scratch last used before a time, and leftovers of dead runs; return their number and bytes."""
    count = size = 0
    tops = [top for top in (f"{places.cache}/scratch", agents_directory(places)) if os.path.isdir(top)]
    projects = [each for top in tops for each in os.scandir(top)]
    if project is not None:
        projects = [each for each in projects if each.name == digest_of(project)]
    directories = [(each.path, entry.path) for each in projects for entry in os.scandir(each.path) if entry.is_dir()]
    for top, directory in directories:
        lock = Lock(os.open(directory, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC))
        try:
            lock.take(wait=False)
            for name in entries(lock.file):
                limit, aged = (before, directory) if name == _KEPT_NAME else (leftovers_before, f"{directory}/{name}")
                if os.stat(aged, follow_symlinks=False).st_mtime < limit:
                    count, size = count + 1, size + disk_usage(lock.file, name)
                    if not dry:
                        remove_tree(lock.file, name)
            if not dry and not entries(lock.file):
                os.rmdir(directory)
                if not os.listdir(top):
                    os.rmdir(top)
        except BlockingIOError:
            continue  # in use
        finally:
            lock.close()
    return count, size


def agents_directory(places: Places) -> str:
    """Return the directory where agents that run in the hood keep their files, by project."""
    return f"{places.data}/agents"


def digest_of(path: str) -> str:
    """Return the name of a project's directory among those of all projects."""
    digest: str = blake2b(os.fsencode(path), digest_size=8).hexdigest()
    return digest


# ---- Settings and grants of profiles.
#
# `true || terraform; curl …` names the program too, and so does a copy of another program. So a grant needs a plain
# command: one program that commands can't write. It then runs without the files that a client's shell would read first,
# and without directories on its PATH that commands can write. Otherwise a person is asked for the hosts, as for any.

_WORLD_WRITABLE = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where anybody may leave a program
# Variables by which a shell, the loader or an interpreter reads code before the program's own.
_LOADING_VARIABLES = frozenset(
    {"BASH_ENV", "ENV", "ZDOTDIR", "PYTHONPATH", "PYTHONHOME", "NODE_PATH", "PERL5LIB", "RUBYLIB"}
)


def apply_profiles(
    store: Store, project: Project, policy: Policy, request: Request, profiles: Sequence[Profile]
) -> tuple[Policy, Request, dict[str, Any]]:
    """Return the policy and request with the profiles applied, and the grants that only a plain command would get."""
    for each in profiles:
        policy = policy.with_settings(each.harmless_settings)
    granting = [each for each in profiles if each.widening_settings]
    withheld: dict[str, Any] = {}
    if not granting:
        return policy, request, withheld
    command = simple_command(request.command)
    plain = _as_plain_command(store, project, policy, request, profiles)
    for each in granting:
        if command is not None and plain is not None and is_profile_for(each, (command.program, *command.arguments)):
            policy, request = policy.with_settings(each.widening_settings), plain
        else:
            for name, value in each.widening_settings.items():
                before = withheld.get(name)
                withheld[name] = (*before, *value) if isinstance(before, tuple) else value
    return policy, request, withheld


def request_withheld_grants(request: Request, withheld: Mapping[str, Any]) -> Request:
    """Return a request that asks a person for the withheld grants."""
    network = FULL if withheld.get("network") == FULL else request.network
    return request.replace(network=network, hosts=(*request.hosts, *withheld.get("hosts", ())))


def report_withheld_grants(withheld: Mapping[str, Any]) -> tuple[Blocked, ...]:
    """Return what the report of a failed command says about the grants that it did not get."""
    names = [*withheld.get("hosts", ()), *(name for name in withheld if name != "hosts")]
    hint = "a profile grants this to its program alone, run from where commands can't write; else a person is asked"
    return (Blocked(what="network" if "hosts" in withheld else "grant", detail=", ".join(names), hint=hint),)


def _as_plain_command(
    store: Store, project: Project, policy: Policy, request: Request, profiles: Sequence[Profile]
) -> Request | None:
    """Return the request so that it surely runs its program and nothing else, or None if that is not sure."""
    if (request.root or policy.root) != HOST:
        return None  # commands may write its programs, in a root layer
    session = store.sessions.find(request.session) if request.session else None
    if session is not None and session.environment:
        return None  # earlier commands have set these variables, and programs act on variables of all kinds
    environment = {**process_variables(), **dict(policy.environment.set), **dict(request.environment)}
    writable = _writable_directories(store, project, environment, profiles)
    if any(_loads_code_from(name, value, writable) for name, value in environment.items()):
        return None
    path = ":".join(
        folder for folder in environment.get("PATH", os.defpath).split(":")
        if folder.startswith("/") and not is_in_writable_place(folder, writable)
    )  # fmt: skip
    command = simple_command(request.command)
    is_relative = command is None or ("/" in command.program and not command.program.startswith("/"))
    if is_relative or trusted_program(request.command, "/", {"PATH": path}, writable) is None:
        return None
    return request.replace(source="", environment=(*request.environment, ("PATH", path)))


def _writable_directories(
    store: Store, project: Project, environment: Mapping[str, str], profiles: Sequence[Profile]
) -> tuple[str, ...]:
    """Return all directories that commands can write, of any project, with their real paths."""
    home_directory = home()
    scratch = [each.path for each in scratch_requests(profiles, environment, environment.get("HOME", home_directory))]
    directories = (*project.roots, *store.writable_directories(), f"{home_directory}/playground", *scratch)
    return tuple(dict.fromkeys(path for each in directories for path in (each, os.path.realpath(each))))


def _loads_code_from(name: str, value: str, writable: Sequence[str]) -> bool:
    """Return True if a variable makes programs load code that a command may have written."""
    if not name.startswith("LD_") and name not in _LOADING_VARIABLES:
        return False
    paths = [each for each in value.replace(" ", ":").split(":") if each]
    return any(not each.startswith("/") or is_in_writable_place(each, writable) for each in paths)


def trusted_program(
    command: str | tuple[str, ...], cwd: str, environment: Mapping[str, str], writable: Sequence[str]
) -> str | None:
    """Return the real path of a simple command's program, or None if a person's answer for it may not be kept.

    A program in a directory that commands can write (`writable`), or reached by a link there, may be another program
    tomorrow; and one that runs any given code stands for every program.
    """
    plain = simple_command(command)
    if plain is None:
        return None
    base = os.path.join(cwd, plain.directory)
    folders = [""] if "/" in plain.program else environment.get("PATH", os.defpath).split(":")
    for folder in folders:
        path = os.path.join(base, folder, plain.program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            real = os.path.realpath(path)
            is_surely_kept = may_keep_permission(path) and may_keep_permission(real)
            return real if is_surely_kept and not is_in_writable_place(path, writable) else None
    return None


def is_in_writable_place(path: str, writable: Sequence[str]) -> bool:
    """Return True if the path, or any link that it leads through, lies where commands or all users can write."""
    steps = [os.path.normpath(path), *(place for place, _, _ in follow_path(path))]
    return any(is_in(step, (*writable, *_WORLD_WRITABLE)) for step in steps)
