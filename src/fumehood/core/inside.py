"""Where things appear to a command whose `/` is a root tree: the project at /workspace, and the rest beside it."""

from __future__ import annotations

from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WORKSPACE, ROOTS, SKILLS, PLAYGROUND = "/workspace", "/roots", "/skills", "/playground"
MOUNT_POINTS = (WORKSPACE, ROOTS, SKILLS, PLAYGROUND)
_PACKAGES = f"{WORKSPACE}/.packages"
_TMP = "/tmp"  # noqa: S108 - a fresh one, inside the sandbox

ENVIRONMENT = {
    "HOME": WORKSPACE,
    "PATH": f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{_PACKAGES}/bin",
    "PIP_TARGET": _PACKAGES,
    "PYTHONPATH": _PACKAGES,
    "PYTHONDONTWRITEBYTECODE": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    # With a home that is the project, caches and histories would be changes to it.
    "HISTFILE": f"{_TMP}/.history",
    "LESSHISTFILE": "-",
    "XDG_CACHE_HOME": f"{_TMP}/.cache",
    "npm_config_cache": f"{_TMP}/.cache/npm",
    "TMPDIR": _TMP,
    "LANG": "C.UTF-8",
    "FUMEHOOD": "1",
}


def targets(roots: Sequence[str]) -> dict[str, str]:
    """Say where each root appears: the project first, at /workspace, the others by name under /roots."""
    found = {roots[0]: WORKSPACE}
    for root in roots[1:]:
        name = root.rpartition("/")[2]
        taken = set(found.values())
        number = 1
        place = f"{ROOTS}/{name}"
        while place in taken:
            number += 1
            place = f"{ROOTS}/{name}-{number}"
        found[root] = place
    return found


def inside(path: str, places: Mapping[str, str]) -> str:
    """Return a host path as the command sees it; one that lies in no root is taken to be the command's own."""
    for root, target in places.items():
        if path == root or path.startswith(f"{root}/"):
            return target + path[len(root) :]
    return path


def outside(path: str, places: Mapping[str, str]) -> str:
    """Return a path of the command's as the person knows it; one that is in no root stays as it is."""
    for root, target in places.items():
        if path == target or path.startswith(f"{target}/"):
            return root + path[len(target) :]
    return path


def skills(given: Iterable[Mapping[str, object]]) -> tuple[tuple[str, str], ...]:
    """Return each skill's directory and where it appears: /skills/<name>, its own unless one is given."""
    found: dict[str, str] = {}
    for each in given:
        source = str(each["path"]).rstrip("/")
        name = str(each.get("name") or source.rpartition("/")[2])
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise BadRequest(f"a skill can't be called {name!r}", hint="a skill's name is one word of a path")
        if name in found:
            raise BadRequest(f"two skills are called {name}", hint='give one of them another: name = "…"')
        found[name] = source
    return tuple((source, f"{SKILLS}/{name}") for name, source in found.items())
