"""What a project's commands see besides its roots: the host's own root, less what is masked."""

from __future__ import annotations

import os
import time

from fumehood.core.masks import PROC, PROC_READ_ONLY, Masks, inside, masks
from fumehood.core.value import Value
from fumehood.linux.backdrop import FORMAT, SHOWN, Mounts, Prepared, lies_apart, prepared, recalled, remember, use
from fumehood.linux.overlay import mount_table
from fumehood.linux.survey import Needs, is_current, survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.policy import Policy
    from fumehood.store.places import Places


_AGAIN_S = 1.0


def _holds(watched: dict[str, tuple[int, int]], made: Prepared) -> bool:
    return is_current(watched) and made.is_whole()


class Behind(Value):
    """What lies behind a run's roots: what the launcher mounts for it, and what bubblewrap hides besides."""

    mounts: Mounts | None = None
    base: str = "/"
    masked: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()  # what is masked and lies in a root


class Backdrops:
    """Finds the backdrop for one project's runs; surveys the host again only when something it saw has changed."""

    def __init__(self, places: Places, policy: Policy) -> None:
        self._places = places
        self._policy = policy
        self._known: dict[object, tuple[object, dict[str, tuple[int, int]], Prepared]] = {}
        self._proc: dict[bool, Behind] = {}
        self._ours: bool | None = None
        self._apart: bool | None = None
        self._looked = 0.0
        self._in_roots = masks(("/",), (), policy.mask, policy.unmask, root=False).in_roots if policy.mask else ()
        self._homes: dict[tuple[int, str], tuple[str, ...]] = {}

    @property
    def cache(self) -> str:
        """Where what can be made again is kept."""
        return self._places.cache

    def homes(self, user: int, variable: str) -> tuple[str, ...]:
        """Return where a user is at home: what HOME says, and what the system knows, where tools may be installed."""
        known = self._homes.get((user, variable))
        if known is None:
            import pwd

            try:
                listed = pwd.getpwuid(user).pw_dir
            except KeyError:
                listed = ""
            own = os.environ.get("HOME", "") if user == os.geteuid() else ""
            found = [home.rstrip("/") for home in (variable, own, listed) if home.startswith("/") and home.rstrip("/")]
            known = self._homes[user, variable] = tuple(dict.fromkeys(found)) or ("/nonexistent",)
        return known

    def masks(self, homes: Sequence[str], *, as_root: bool) -> Masks:
        """Return what a command with these homes may not read."""
        # Of our cache, only what commands left there: what one project kept is no other project's business.
        own = (self._places.state, self._places.data, self._places.config, f"{self._places.cache}/scratch")
        return masks(homes, own, self._policy.mask, self._policy.unmask, root=as_root)

    def views(self, homes: Sequence[str], points: Sequence[str], *, as_root: bool, privileged: bool) -> Behind:
        """Return a backdrop of views, for a launcher that can mount; `points` are where roots will be mounted."""
        real = tuple(os.path.realpath(home) for home in homes)
        unlocked = privileged and self._are_ours()
        needs = Needs(homes=real, points=tuple(points), locked=not unlocked, whole=unlocked and self._lies_apart())
        linked = tuple(os.path.realpath(path) for root in points for path in self._links_in(root))
        key = (needs, as_root, linked)
        known = self._known.get(key)
        table = mount_table()
        if known is None or known[0] is not table or not is_current(known[1]) or not self._is_whole(known[2]):
            hidden = self.masks(homes, as_root=as_root)
            watched, made = self._surveyed(hidden.replace(hidden=(*hidden.hidden, *linked)), needs)
            survey = hash((tuple(watched.items()), made.times))
            known = self._known[key] = table, watched, made.replace(mounts=made.mounts.replace(survey=survey))
        made = known[2]
        return self._kernel(as_root=as_root).replace(mounts=made.mounts, base=SHOWN, inside=made.inside)

    def forget(self) -> None:
        """Look everything over again for the next run: what was prepared turned out to be no longer so."""
        self._known.clear()

    def _is_whole(self, made: Prepared) -> bool:
        """Tell whether a backdrop still lies there; looked at again only after a while, for only cleaners harm it."""
        now = time.monotonic()
        if now - self._looked < _AGAIN_S:
            return True
        self._looked = now
        return made.is_whole()

    def _are_ours(self) -> bool:
        """Tell whether the mounts here are our own user namespace's; in one inside another, they are locked."""
        if self._ours is None:
            with open("/proc/self/uid_map", encoding="ascii") as file:
                self._ours = file.read().split() == ["0", "0", str(2**32 - 1)]
        return self._ours

    def _lies_apart(self) -> bool:
        if self._apart is None:
            self._apart = lies_apart(self._places.state)
        return self._apart

    def _surveyed(self, hidden: Masks, needs: Needs) -> tuple[dict[str, tuple[int, int]], Prepared]:
        """Look the host over, unless an earlier process did so and nothing has changed since."""
        state = self._places.state
        key = f"{FORMAT} {hidden!r} {needs!r} {mount_table()!r}".encode(errors="surrogateescape")
        known = recalled(key, state)
        if known is None or not _holds(*known):
            described, watched = survey(hidden, needs)
            known = watched, prepared(described, state)
            remember(key, *known, state)
        use(known[1])
        return known

    def tree(self, homes: Sequence[str], roots: Sequence[str], *, as_root: bool) -> Behind:
        """Return what is hidden where a root tree is shown instead of the host."""
        hidden = self._existing(homes, roots, as_root=as_root)
        return self._kernel(as_root=as_root).replace(inside=inside(hidden, roots))

    def _existing(self, homes: Sequence[str], roots: Sequence[str], *, as_root: bool) -> list[str]:
        """Return what is masked and exists, where it really lies, in order."""
        hidden = self.masks(homes, as_root=as_root).hidden
        linked = [path for root in roots for path in self._links_in(root)]
        return sorted({os.path.realpath(path) for path in (*hidden, *linked) if os.path.exists(path)})

    def plain(self, homes: Sequence[str], roots: Sequence[str], *, as_root: bool) -> Behind:
        """Return the host's own root with what is masked and exists covered one by one, where nothing can be mounted.

        A root inside a masked directory is mounted over it later, and so stays to be seen.
        """
        shown = self.masks(homes, as_root=as_root).shown
        hidden = self._existing(homes, roots, as_root=as_root)
        behind = self._kernel(as_root=as_root).replace(inside=inside(hidden, roots))
        directories, files = behind.masked, behind.emptied
        for path in sorted({*hidden, "/run", "/boot", "/sys"}):
            if path in (*shown, *behind.inside, "/", *roots):
                continue
            if os.path.isdir(path):
                directories += (path,)
            elif os.path.exists(path):
                files += (path,)
        return behind.replace(masked=directories, emptied=files)

    @property
    def in_roots(self) -> tuple[str, ...]:
        """What a person masked in every root."""
        return self._in_roots

    def _links_in(self, root: str) -> list[str]:
        """Return what a person masked in a root and is a link there."""
        return [path for name in self._in_roots if os.path.islink(path := f"{root}/{name}")]

    def _kernel(self, *, as_root: bool) -> Behind:
        """Return the interfaces of `/proc` that are covered; what root owns there, root could write."""
        known = self._proc.get(as_root)
        if known is None:
            readable = [path for path, _ in PROC if os.access(path, os.R_OK)]
            known = self._proc[as_root] = Behind(
                masked=tuple(path for path in readable if os.path.isdir(path)),
                emptied=tuple(path for path in readable if not os.path.isdir(path)),
                frozen=tuple(path for path, _ in PROC_READ_ONLY if as_root and os.path.exists(path)),
            )
        return known
