"""What a command's profiles give it: what eases, always; what grants, only where the program is surely the one meant.

And scratch: directories that its program may write during a run, its caches above all.
"""

from __future__ import annotations

import os
from _blake2 import blake2b  # without OpenSSL, which `hashlib` loads for 4 ms

from fumehood.core.masks import HOMES, UNSEEN, is_in
from fumehood.core.policy import FULL, Policy, Profile, is_profile_for
from fumehood.core.report import Blocked
from fumehood.core.request import HOST, Request
from fumehood.core.shell import may_be_kept, simple
from fumehood.core.value import Value
from fumehood.linux.cache import follow_path
from fumehood.linux.capture import BWRAP, KERNEL
from fumehood.linux.lock import Lock
from fumehood.linux.mounts import Bind, Operation, Overlay
from fumehood.linux.namespaces import mounts_inside
from fumehood.linux.nofollow import LISTING, entries, remove_directory, remove_tree
from fumehood.service.layers import disk_usage
from fumehood.store.places import Places, home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from fumehood.service.store import Store
    from fumehood.store.projects import Project

# ---- Scratch: kept for the project, or thrown away.
#
# What the host has is covered in place by an overlay: the program finds what is there, and its writes go to a directory
# of ours. What the host lacks is not made there: the program is told of another place by its variable. None of it is
# judged or applied, and only later commands of the same project see it.

INSIDE = "/dev/scratch"  # made by bubblewrap for each run, so no command can have put a link there
_IN_MEMORY = "/tmp/scratch"  # noqa: S108 - as the command sees it
_KEPT, _ONCE, _WORK = "kept", "once-", "work-"
_ELSEWHERE = "elsewhere"  # the room of what the host has no directory for


class ScratchRequest(Value):
    """One directory that a profile asks for; `variable` takes the program elsewhere, where there is one."""

    path: str
    variable: str
    keep: bool


class ScratchConditions(Value):
    """What decides where scratch can be: `closed` are directories it may neither hold nor lie in."""

    way: str  # of capturing
    closed: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    has_host: bool = True  # False in a root tree, where no path of the host's is
    is_ours: bool = True  # False where the command runs as somebody else, who can't reach our directories


def scratch_requests(
    profiles: Iterable[Profile], environment: Mapping[str, str], home: str
) -> tuple[ScratchRequest, ...]:
    """Return the directories that profiles ask for, each once; a variable that is set says where it is.

    One that lies below its own variable (`NAME=$NAME/part`) is that part. The last profile has the last word: a
    person's own come after ours.
    """
    directories: dict[str, ScratchRequest] = {}
    for profile in profiles:
        for text in profile.scratch:
            variable, _, path = text.rpartition("=")
            value = environment.get(variable, "") if variable and not path.startswith(f"${variable}/") else ""
            path = value if value.startswith("/") else _written_out(path, environment, home)
            if path:
                directories[variable or path] = ScratchRequest(path=path, variable=variable, keep=profile.keep)
    return tuple(directories.values())


def _written_out(path: str, environment: Mapping[str, str], home: str) -> str:
    """Put directories for `~` and for a variable at the beginning; "" where that variable is not set."""
    top, _, rest = path.partition("/")
    caches = environment.get("XDG_CACHE_HOME", "")
    if path.startswith("~/.cache/") and caches.startswith("/"):
        return caches + path.removeprefix("~/.cache")
    if top.startswith("$"):
        above = environment.get(top[1:], "")
        return f"{above}/{rest}" if above.startswith("/") else ""
    return home + path[1:] if top == "~" else path


class Scratch:
    """The scratch directories of one run: what the launcher and bubblewrap mount, and what the command is told."""

    def __init__(
        self, places: Places, project: str, run: str, requests: Sequence[ScratchRequest], *, keeps_tmp: bool = False
    ) -> None:
        self._room = f"{places.cache}/scratch/{digest_of(project)}"
        self._places = places
        self._run = run
        self._requests = requests
        self._keeps_tmp = keeps_tmp
        self._conditions = ScratchConditions(way=KERNEL)
        self._forget()

    def _forget(self) -> None:
        self._held: list[Lock] = []
        self._ours: list[str] = []
        self.points: list[str] = []  # where mounts need a directory that the host may lack
        self._elsewhere: dict[bool, tuple[str, str]] = {}
        self.directories: list[str] = []  # where what is written goes
        self.tmp = ""  # the project's own /tmp, where it keeps one
        self.variables: dict[str, str] = {}
        self.mounts: list[Operation] = []

    def make(self, conditions: ScratchConditions) -> None:
        """Make the directories ready; a command that is run again has them made again."""
        self._conditions = conditions
        if self._keeps_tmp and conditions.is_ours:
            self.tmp = self._directory("tmp", keep=True, alone=False)[0]
            os.chmod(self.tmp, 0o1777)  # noqa: S103 - as every /tmp; what is above it is closed
        for requests in self._requests:
            if requests.variable:
                # Without our cache directory a program can still work, and only starts from nothing each time.
                self.variables[requests.variable] = f"{_IN_MEMORY}/{requests.variable}"
            if not conditions.is_ours:
                continue
            real = os.path.realpath(requests.path)
            try:
                if conditions.has_host and os.path.isdir(real) and self._is_free(real):
                    self._in_place(real, requests.keep)
                    self.variables.pop(requests.variable, None)
                elif requests.variable:
                    self.variables[requests.variable] = self._place_for(requests.variable, requests.keep)
            except OSError:
                continue

    def _place_for(self, variable: str, keep: bool) -> str:
        """Make a directory that the host has none for; all of them are one mount, or two."""
        if keep not in self._elsewhere:
            source = self._directory(_ELSEWHERE, keep, alone=False)[0]
            target = INSIDE if keep else f"{INSIDE}-once"
            self.mounts.append(Bind(target=target, source=source, is_writable=True, why="its caches"))
            self._elsewhere[keep] = target, source
        target, source = self._elsewhere[keep]
        place = f"{target}/{variable}"
        try:
            os.mkdir(f"{source}/{variable}", 0o700)
        except FileExistsError:
            return place  # whatever a command has put there is not followed
        return place

    def _in_place(self, path: str, keep: bool) -> None:
        name = os.path.basename(path).lstrip(".") + "-" + digest_of(path)[:8]
        layered = self._conditions.way in (KERNEL, BWRAP) and not mounts_inside(path)
        if layered:
            # Only where layers lie are overlays known to work.
            os.makedirs(self._room, mode=0o700, exist_ok=True)
            layered = os.stat(self._room).st_dev == os.stat(self._places.state).st_dev
        upper, work = self._directory(name if layered else f"{name}-bare", keep, alone=layered)
        os.chmod(upper, os.stat(path).st_mode & 0o777)
        if layered:
            self.mounts.append(Overlay(target=path, lowers=(path,), upper=upper, work=work, why="a cache"))
        else:
            self.mounts.append(Bind(target=path, source=upper, is_writable=True, why="a cache"))

    def _is_free(self, path: str) -> bool:
        """Return True if a directory may be covered: it is seen, and nothing in it is captured, hidden or ours.

        A mask below it would not hide anything: what is covered is the host's own directory.
        """
        homes = {home: os.path.realpath(home) for home in self._conditions.homes}
        for each in (*self._conditions.closed, *self._places.own_directories(), *UNSEEN):
            real = next((to + each[len(home) :] for home, to in homes.items() if is_in(each, (home,))), each)
            if is_in(path, (real,)) or is_in(real, (path,)):
                return False
        is_own = is_in(path, tuple(homes.values()))
        is_others = not is_own and is_in(path, HOMES)
        return not is_others and not any(is_in(home, (path,)) for home in homes.values())

    def _directory(self, name: str, keep: bool, *, alone: bool, above: str = "") -> tuple[str, str]:
        """Return a directory to write in, and one for the mount's own use.

        Two overlays can't share one: whoever comes second gets one that is thrown away.
        """
        room = f"{above or self._room}/{name}"
        os.makedirs(room, mode=0o700, exist_ok=True)
        lock = Lock(os.open(room, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC))
        self._held.append(lock)
        if keep:
            try:
                lock.take(shared=not alone, wait=False)
            except BlockingIOError:
                keep = False
        os.utime(room)  # when it was last used
        upper = f"{room}/{_KEPT if keep else _ONCE + self._run}"
        os.makedirs(upper, mode=0o700, exist_ok=True)
        os.chmod(upper, 0o700)  # whatever the last command made of it
        work = f"{room}/{_WORK}{self._run}"
        if alone:
            os.mkdir(work, 0o700)
        self._ours += [work] if keep else [work, upper]
        self.directories.append(upper)
        return upper, work

    def remove(self) -> None:
        """Remove what is not kept, and let others use the rest."""
        for path in self._ours:
            remove_directory(path)
        for lock in self._held:
            lock.close()
        self._forget()


def sweep(
    places: Places, before: float, leftovers_before: float, *, project: str | None = None, dry: bool = False
) -> tuple[int, int]:
    """Remove scratch that was last used before a time, and what dead runs left; return how many, and their bytes."""
    count = size = 0
    tops = [top for top in (f"{places.cache}/scratch", agents_directory(places)) if os.path.isdir(top)]
    projects = [each for top in tops for each in os.scandir(top)]
    if project is not None:
        projects = [each for each in projects if each.name == digest_of(project)]
    for top, room in [(each.path, room.path) for each in projects for room in os.scandir(each.path) if room.is_dir()]:
        lock = Lock(os.open(room, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC))
        try:
            lock.take(wait=False)
            for name in entries(lock.file):
                limit, aged = (before, room) if name == _KEPT else (leftovers_before, f"{room}/{name}")
                if os.stat(aged, follow_symlinks=False).st_mtime < limit:
                    count, size = count + 1, size + disk_usage(lock.file, name)
                    if not dry:
                        remove_tree(lock.file, name)
            if not dry and not entries(lock.file):
                os.rmdir(room)
                if not os.listdir(top):
                    os.rmdir(top)
        except BlockingIOError:
            continue  # in use
        finally:
            lock.close()
    return count, size


def agents_directory(places: Places) -> str:
    """Return where agents that run whole in the hood have what they keep, a project a directory."""
    return f"{places.data}/agents"


def digest_of(path: str) -> str:
    """Return a project's name among directories."""
    digest: str = blake2b(os.fsencode(path), digest_size=8).hexdigest()
    return digest


# ---- What a profile says.
#
# `true || terraform; curl …` names the program, and so does a copy of another one. So a grant needs a simple command
# whose program commands can't write. It then runs as that: without what a client's shell would read first, and with no
# directory on its PATH that commands can write. Otherwise the hosts are asked for as any others.

_ANYBODY_S = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where anybody may leave a program
# Variables by which a shell, the loader or an interpreter reads code before the program's own.
_LOADING = frozenset({"BASH_ENV", "ENV", "ZDOTDIR", "PYTHONPATH", "PYTHONHOME", "NODE_PATH", "PERL5LIB", "RUBYLIB"})


def apply_profiles(
    store: Store, project: Project, policy: Policy, request: Request, profiles: Sequence[Profile]
) -> tuple[Policy, Request, dict[str, Any]]:
    """Lay what profiles say over a policy and a request; returns also what they would grant a plain command."""
    for each in profiles:
        policy = policy.under(each.easing)
    granting = [each for each in profiles if each.grants]
    withheld: dict[str, Any] = {}
    if not granting:
        return policy, request, withheld
    command = simple(request.command)
    plain = _plainly(store, project, policy, request, profiles)
    for each in granting:
        if command is not None and plain is not None and is_profile_for(each, (command.program, *command.arguments)):
            policy, request = policy.under(each.grants), plain
        else:
            for name, value in each.grants.items():
                before = withheld.get(name)
                withheld[name] = (*before, *value) if isinstance(before, tuple) else value
    return policy, request, withheld


def request_withheld_grants(request: Request, withheld: Mapping[str, Any]) -> Request:
    """Return the request with what its profiles would grant a plain command, to be asked for."""
    network = FULL if withheld.get("network") == FULL else request.network
    return request.replace(network=network, hosts=(*request.hosts, *withheld.get("hosts", ())))


def report_withheld_grants(withheld: Mapping[str, Any]) -> tuple[Blocked, ...]:
    """Return what a failed command would have had as a plain one, for its report."""
    names = [*withheld.get("hosts", ()), *(name for name in withheld if name != "hosts")]
    hint = "a profile grants this to its program alone, run from where commands can't write; else a person is asked"
    return (Blocked(what="network" if "hosts" in withheld else "grant", detail=", ".join(names), hint=hint),)


def _plainly(
    store: Store, project: Project, policy: Policy, request: Request, profiles: Sequence[Profile]
) -> Request | None:
    """Return the request so that it runs its program and nothing else; None where that can't be said."""
    if (request.root or policy.root) != HOST:
        return None  # its programs may be of a layer that commands write
    session = store.sessions.find(request.session) if request.session else None
    if session is not None and session.environment:
        return None  # these are the commands' own words, and programs act on variables of all kinds
    environment = {**os.environ, **dict(policy.environment.set), **dict(request.environment)}
    written = _written(store, project, environment, profiles)
    if any(_leads_into(name, value, written) for name, value in environment.items()):
        return None
    path = ":".join(
        folder for folder in environment.get("PATH", os.defpath).split(":")
        if folder.startswith("/") and not is_written(folder, written)
    )  # fmt: skip
    command = simple(request.command)
    is_relative = command is None or ("/" in command.program and not command.program.startswith("/"))
    if is_relative or resolved(request.command, "/", {"PATH": path}, written) is None:
        return None
    return request.replace(source="", environment=(*request.environment, ("PATH", path)))


def _written(
    store: Store, project: Project, environment: Mapping[str, str], profiles: Sequence[Profile]
) -> tuple[str, ...]:
    """Return the directories that commands of any project can write."""
    at = home()
    scratch = [each.path for each in scratch_requests(profiles, environment, environment.get("HOME", at))]
    own = (*project.roots, *store.written(), f"{at}/playground", *scratch)
    return tuple(dict.fromkeys(path for each in own for path in (each, os.path.realpath(each))))


def _leads_into(name: str, value: str, written: Sequence[str]) -> bool:
    """Return True if a variable has code read first that a command may have written."""
    if not name.startswith("LD_") and name not in _LOADING:
        return False
    paths = [each for each in value.replace(" ", ":").split(":") if each]
    return any(not each.startswith("/") or is_written(each, written) for each in paths)


def resolved(
    command: str | tuple[str, ...], cwd: str, environment: Mapping[str, str], written: Sequence[str]
) -> str | None:
    """Return the program of a simple command, by its real path; None where an answer for it may not be kept.

    One that lies in what commands can write (`written`), or is reached by a link there, is another program tomorrow,
    and one that runs what it is told is every program.
    """
    plain = simple(command)
    if plain is None:
        return None
    base = os.path.join(cwd, plain.directory)
    folders = [""] if "/" in plain.program else environment.get("PATH", os.defpath).split(":")
    for folder in folders:
        path = os.path.join(base, folder, plain.program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            real = os.path.realpath(path)
            is_surely_kept = may_be_kept(path) and may_be_kept(real)
            return real if is_surely_kept and not is_written(path, written) else None
    return None


def is_written(path: str, written: Sequence[str]) -> bool:
    """Return True if a path, or a link on the way to what it leads to, lies where commands or anybody can write."""
    steps = [os.path.normpath(path), *(place for place, _, _ in follow_path(path))]
    return any(is_in(step, (*written, *_ANYBODY_S)) for step in steps)
