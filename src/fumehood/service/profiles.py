"""What a command's profiles give it: what eases, always; what grants, only where the program is surely the one meant.

`true || terraform; curl …` names the program, and so does a copy of another one. So a grant needs a simple command
whose program commands can't write. It then runs as that: without what a client's shell would read first, and with no
directory on its PATH that commands can write. Otherwise the hosts are asked for as any others.
"""

from __future__ import annotations

import os

from fumehood.core.masks import is_in
from fumehood.core.network import FULL
from fumehood.core.policy import fits
from fumehood.core.report import Blocked
from fumehood.core.shell import may_be_kept, simple
from fumehood.core.value import Value
from fumehood.linux.git_includes import followed
from fumehood.rootfs.tree import HOST
from fumehood.service.scratch import wanted
from fumehood.store.places import home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from fumehood.core.policy import Policy, Profile
    from fumehood.core.request import Request
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

_ANYBODY_S = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where anybody may leave a program
# Variables by which a shell, the loader or an interpreter reads code before the program's own.
_LOADING = frozenset({"BASH_ENV", "ENV", "ZDOTDIR", "PYTHONPATH", "PYTHONHOME", "NODE_PATH", "PERL5LIB", "RUBYLIB"})


class Profiled(Value):
    """What profiles make of a policy and a request; `withheld` is what they would grant a plain command."""

    policy: Policy
    request: Request
    withheld: dict[str, Any] = {}  # noqa: RUF012 - never changed


def profiled(
    store: Store, project: Project, policy: Policy, request: Request, profiles: Sequence[Profile]
) -> Profiled:
    """Lay what profiles say over a policy."""
    for each in profiles:
        policy = policy.under(each.easing)
    granting = [each for each in profiles if each.grants]
    if not granting:
        return Profiled(policy=policy, request=request)
    command = simple(request.command)
    plain = _plainly(store, project, policy, request, profiles)
    withheld: dict[str, Any] = {}
    for each in granting:
        if command is not None and plain is not None and fits(each, (command.program, *command.arguments)):
            policy, request = policy.under(each.grants), plain
        else:
            for name, value in each.grants.items():
                before = withheld.get(name)
                withheld[name] = (*before, *value) if isinstance(before, tuple) else value
    return Profiled(policy=policy, request=request, withheld=withheld)


def asking(request: Request, withheld: Mapping[str, Any]) -> Request:
    """Return the request with what its profiles would grant a plain command, to be asked for."""
    network = FULL if withheld.get("network") == FULL else request.network
    return request.replace(network=network, hosts=(*request.hosts, *withheld.get("hosts", ())))


def missed(withheld: Mapping[str, Any]) -> tuple[Blocked, ...]:
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
    scratch = [each.path for each in wanted(profiles, environment, environment.get("HOME", at))]
    own = (*project.roots, *store.projects.paths(), *store.places.own(), f"{at}/playground", *scratch)
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
    steps = [os.path.normpath(path), *(place for place, _, _ in followed(path))]
    return any(is_in(step, (*written, *_ANYBODY_S)) for step in steps)
