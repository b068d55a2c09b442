"""The person's standing wishes, with their defaults.

Each field is a key of the configuration under the same name (`limits.memory` is `Policy.limits.memory`); the
table in `keys.py` says what it takes and means.
"""

from __future__ import annotations

from fumehood.core.concern import Rules
from fumehood.core.judge import APPLY, DISCARD, HOLD
from fumehood.core.profile import SHIPPED, Profile, configured
from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PRETEND, REFUSE = "pretend", "refuse"  # what becomes of giving a file to another owner
HIDDEN, VISIBLE = "hidden", "visible"  # the home
EVERYWHERE = ""  # the name of the settings that hold for every project


class Environment(Value):
    """What a command's environment has besides, or instead of, what it inherits."""

    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    set: tuple[tuple[str, str], ...] = ()


class Limits(Value):
    """What one run may use: more than a build needs, less than would harm the machine. 0 is no limit.

    For memory, 0 is three quarters of the machine's.
    """

    memory: int = 0
    processes: int = 4096
    cpu: float = 100 * 86400
    files: int = 65536
    file_size: int = 64 << 30
    written: int = 64 << 30


class Clean(Value):
    """How long things are kept: originals of runs, daily backups, and how much of them."""

    keep_days: int = 30
    backup_days: int = 7
    budget: int = 10 << 30


class Rootfs(Value):
    """Where a root tree comes from, and whether a workspace may change its own."""

    mirror: str = ""
    proxy: str = ""
    writable: bool = False


class Policy(Value):
    """What holds for every run that does not ask for something else."""

    apply: str = APPLY
    on_conflict: str = "hold-path"
    timeout: float | None = 86400
    output_limit: int = 64 << 20
    capture: str = ""
    sandbox: str = "bwrap"
    root: str = "host"
    tmp: str = "fresh"
    playground: bool = True
    ownership: str = PRETEND
    ask_timeout: float = 120.0
    network: str = "none"
    hosts: tuple[str, ...] = ()
    rules: Rules = Rules()
    home: str = HIDDEN
    show: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    unmask: tuple[str, ...] = ()
    environment: Environment = Environment()
    limits: Limits = Limits()
    clean: Clean = Clean()
    rootfs: Rootfs = Rootfs()
    skills: tuple[dict[str, Any], ...] = ()
    profiles: tuple[Profile, ...] = SHIPPED

    def mode(self, asked: str | None) -> str:
        """Return what becomes of a run's changes."""
        mode = self.apply if asked is None else asked
        if mode not in (APPLY, HOLD, DISCARD):
            raise BadRequest(f"changes can't be handled by {mode!r}", hint="one of: apply, hold, discard")
        return mode

    def under(self, settings: Mapping[str, Any]) -> Policy:
        """Return this policy with settings laid over it, by field: what is a list adds, all else replaces."""
        changed: dict[str, Any] = {}
        for path, value in settings.items():
            name, _, inner = path.partition(".")
            holder = changed.get(name, getattr(self, name))
            if inner:
                changed[name] = holder.replace(**{inner: _laid_over(getattr(holder, inner), value)})
            elif name == "profiles":
                changed[name] = (*holder, *map(configured, value))
            else:
                changed[name] = _laid_over(holder, value)
        return self.replace(**changed)


def _laid_over(old: Any, new: Any) -> Any:
    if isinstance(old, tuple):
        return (*old, *(each for each in new if each not in old))
    return new
