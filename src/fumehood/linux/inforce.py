"""What protects a command here besides the sandbox itself: views, the filter, the guard, a control group."""

from __future__ import annotations

import ctypes
import errno
import os

from fumehood.core.value import Value
from fumehood.linux import cgroup, landlock, seccomp
from fumehood.linux.capture import KERNEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.linux.host import Host

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


class Ability(Value):
    """One thing this host can or can't do; `needed` is "required", "optional" or "info"."""

    name: str
    works: bool
    detail: str
    fix: str = ""
    needed: str = "optional"


def protections(found: Host) -> list[Ability]:
    """Tell what of all this is in force for the next command, and what it rests on."""
    return [_landlock(), _seccomp(), *in_force(found).values(), _cgroups()]


def in_force(found: Host) -> dict[str, Ability]:
    """Tell what protects a command besides the sandbox; without one, none of it does."""
    each = {"views": views(found), "filter": filtering(), "guard": guarding()}
    if not found.why_bare:
        return each
    detail = "not in force: commands can't be sandboxed here"
    return {key: ability.replace(works=False, detail=detail) for key, ability in each.items()}


def views(found: Host) -> Ability:
    """Tell whether the host is seen through read-only overlays."""
    name = "views of the host"
    if found.captures[:1] == (KERNEL,):
        return Ability(name=name, works=True, detail="in force: masked names are absent, and no socket is reached")
    detail = "not in force: masks are mounts over what exists, and commands get no Unix socket but pairs"
    return Ability(name=name, works=False, detail=detail)


def filtering() -> Ability:
    """Tell whether the filter of system calls is set."""
    name = "filter of system calls"
    if not seccomp.is_known():
        detail = f"not in force: there is no table of calls for {seccomp.machine()}"
        return Ability(name=name, works=False, detail=detail)
    if not _can_filter():
        return Ability(name=name, works=False, detail="not in force: the kernel has none")
    return Ability(name=name, works=True, detail="in force")


def guarding() -> Ability:
    """Tell whether writing is confined a second time, by Landlock."""
    name = "guard"
    if landlock.guard():
        scopes = ", signals and abstract sockets" if landlock.can_scope() else ""
        return Ability(name=name, works=True, detail=f"in force: writing{scopes}, by Landlock")
    if landlock.version() < 1:
        return Ability(name=name, works=False, detail="not in force: there is no Landlock here")
    if landlock.version() < landlock.MOVING_SINCE:
        detail = "not in force: before Linux 5.19, Landlock would deny moving files to another directory"
        return Ability(name=name, works=False, detail=detail)
    detail = f"not in force: no program for {seccomp.machine()}, or none can be run from memory (vm.memfd_noexec)"
    return Ability(name=name, works=False, detail=detail)


def _landlock() -> Ability:
    version = landlock.version()
    if version > 0:
        scopes = "with" if landlock.can_scope() else "without"
        detail = f"ABI version {version}, {scopes} scopes for abstract sockets, which `run --network` needs"
        return Ability(name="landlock", works=True, detail=detail, needed="info")
    off = ctypes.get_errno() == errno.EOPNOTSUPP
    detail = "switched off at boot" if off else "not in this kernel, or filtered"
    fix = "add landlock to the lsm= list on the kernel's command line" if off else ""
    return Ability(name="landlock", works=False, detail=detail, fix=fix, needed="info")


def _can_filter() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    # No filter is given: a kernel that has filters complains of the address, others of the mode.
    libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), None, 0, 0)
    return ctypes.get_errno() in (errno.EFAULT, errno.EACCES)


def _seccomp() -> Ability:
    works = _can_filter()
    detail = "system calls can be filtered" if works else "not in this kernel (CONFIG_SECCOMP_FILTER)"
    return Ability(name="seccomp", works=works, detail=detail)


def _cgroups() -> Ability:
    """Tell whether the kernel itself counts a run's memory and processes."""
    name = "cgroups"
    group = cgroup.delegated()
    if group is not None:
        return Ability(name=name, works=True, detail=f"a run gets one in {group}, which enforces its limits")
    watched = "limits are watched, ten times a second"
    if not cgroup.has_controllers():
        return Ability(name=name, works=False, detail=f"version 2 counts neither memory nor processes here: {watched}")
    fix = "" if os.geteuid() == 0 else "systemd-run --user --scope -p Delegate=yes fumehood run -- COMMAND"
    return Ability(name=name, works=False, detail=f"there is none that we may divide: {watched}", fix=fix)
