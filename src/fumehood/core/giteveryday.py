"""Tell which changes to the configuration of a repository that was there need no person.

What git itself writes there on a normal day is listed, and the rest waits: where git sends a person's commits is told
by settings that run nothing. What is gone counts as much as what is new: without its `pushurl`, a push goes elsewhere.
"""

from __future__ import annotations

from fumehood.core.concern import Concern, held, shown, words
from fumehood.core.gitconfig import by_key, parse, split_key
from fumehood.core.gitkeys import FLAG, UPDATES, key_concern, leads_elsewhere, runs_something

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.gitconfig import Entry, Values

    Keys = dict[str, Values]

_SWITCH = frozenset(("true", "false"))
# What `git init`, `git sparse-checkout`, `git worktree` and `git submodule` write, with the values that they write.
_WRITTEN = {
    "core.filemode": _SWITCH, "core.ignorecase": _SWITCH, "core.precomposeunicode": _SWITCH, "core.symlinks": _SWITCH,
    "core.bare": frozenset(("false",)), "core.logallrefupdates": frozenset(("true",)),
    "core.sparsecheckout": _SWITCH, "core.sparsecheckoutcone": _SWITCH, "index.sparse": _SWITCH,
    "extensions.worktreeconfig": frozenset(("true",)), "extensions.relativeworktrees": frozenset(("true",)),
    "submodule.*.active": _SWITCH, "submodule.*.update": UPDATES,
}  # fmt: skip
_FREE = words("pull.rebase pull.ff submodule.active branch.*.rebase branch.*.description")
# `git submodule deinit` drops a whole section, older versions of `git sparse-checkout disable` their settings.
_DROPPED = words(
    """
    core.sparsecheckout core.sparsecheckoutcone index.sparse submodule.*.url submodule.*.active submodule.*.update
    submodule.*.branch submodule.*.ignore submodule.*.fetchrecursesubmodules submodule.*.shallow submodule.*.path
    """
)
_KEPT_OF_BRANCHES = words("pushremote mergeoptions")
_SENDING = ("remote.", "remotes.", "url.", "push.", "lfs.")
_SENDING_KEYS = words("extensions.partialclone branch.*.remote branch.*.pushremote branch.*.merge submodule.*.url")
# Sections whose settings take no notice of each other.
_ORDERLESS = ("branch", "core", "extensions", "index", "pull", "submodule", "user")


def everyday_concern(
    old: bytes | None, new: bytes, is_own_work_tree: Callable[[Values], bool]
) -> Concern | None:
    """Judge a configuration by every key whose values are not what they were, or are gone.

    `is_own_work_tree` tells whether these may be the values of `core.worktree`: a submodule has one.
    """
    after = parse(new)
    if after is None:
        return held(FLAG, "can't be understood as a git configuration")
    before = [] if old is None else parse(old) or []
    was, now = by_key(before), by_key(after)
    moved = _renamed(was, now)
    changed = [key for key in {**now, **was} if was.get(key) != now.get(key)]
    reasons = []
    for key in changed:
        values = now.get(key, ())
        if key == "core.worktree" and is_own_work_tree(values):
            continue
        if split_key(key)[:2] not in moved and not _is_everyday(key, was, values):
            reasons.append(_why(key, was.get(key, ()), values))
    if reasons:
        more = f"; and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        return held(FLAG, f"{min(reasons)[1]}{more}")
    return _order_concern(before, after, set(changed))


def _is_everyday(key: str, was: Keys, now: Values) -> bool:
    """Tell whether git itself writes these values of a key, or takes it out, in a repository that has the rest."""
    section, subsection, name = split_key(key)
    pattern = _pattern(key)
    if pattern in _FREE or (section == "user" and subsection is None):
        return True
    if not now:
        return pattern in _DROPPED or (pattern.startswith("branch.*.") and name not in _KEPT_OF_BRANCHES)
    if pattern in _WRITTEN:
        return all((value or "").lower() in _WRITTEN[pattern] for value in now)
    if key == "core.repositoryformatversion":
        return now == ("1",) or (now == ("0",) and key not in was)
    return _is_everyday_address(key, pattern, was, now)


def _is_everyday_address(key: str, pattern: str, was: Keys, now: Values) -> bool:
    """Tell whether a key names what git gets a new submodule from, or a branch to follow in a remote that was there."""
    before = was.get(key, ())
    if pattern == "submodule.*.url":
        return not before and key_concern(key, before, now) is None
    if pattern == "branch.*.remote":
        return _were_there(now, was)
    return pattern == "branch.*.merge" and all((value or "").startswith("refs/") for value in now)


def _were_there(remotes: Values, was: Keys) -> bool:
    """Tell whether all of these are remotes by name, and no address; a dot is the repository itself."""
    return all(value == "." or f"remote.{value}.url" in was for value in remotes)


def _pattern(key: str) -> str:
    section, subsection, name = split_key(key)
    return key if subsection is None else f"{section}.*.{name}"


def _renamed(was: Keys, now: Keys) -> set[tuple[str, str | None]]:
    """Return the branches that are gone and came back, all they had unchanged, by another name; both names.

    One that follows a bare address does not: by another name, somebody's fork would be where `main` is pushed to.
    """
    old, new = _branches(was), _branches(now)
    gone: dict[frozenset[tuple[str, Values]], list[str]] = {}
    for name in old.keys() - new.keys():
        gone.setdefault(frozenset(old[name].items()), []).append(name)
    found: set[tuple[str, str | None]] = set()
    for name in new.keys() - old.keys():
        addresses = (*new[name].get("remote", ()), *new[name].get("pushremote", ()))
        same = gone.get(frozenset(new[name].items()))
        if same and _were_there(addresses, was):
            found |= {("branch", same.pop()), ("branch", name)}
    return found


def _branches(keys: Keys) -> dict[str, dict[str, Values]]:
    found: dict[str, dict[str, Values]] = {}
    for key, values in keys.items():
        section, subsection, name = split_key(key)
        if section == "branch" and subsection is not None:
            found.setdefault(subsection, {})[name] = values
    return found


def _why(key: str, was: Values, now: Values) -> tuple[int, str]:
    """Say in plain words what a changed key means; the gravest reasons sort first."""
    what = f"{shown(key)} is {'gone' if not now else 'changed' if was else 'new'}"
    concern = key_concern(key, was, now) if now else None
    if concern is not None and concern.held:
        return (0 if runs_something(key) else 1), concern.reason
    if runs_something(key):
        return 0, f"{what}: it decides what git runs or obeys"
    if _pattern(key) in _SENDING_KEYS or key.startswith(_SENDING):
        return 1, f"{what}: it decides where git sends data to and gets it from"
    if leads_elsewhere(key):
        return 1, f"{what}: it decides whom git contacts or trusts"
    return 2, f"{what}: not a setting that a normal day's work writes"


def _order_concern(before: Sequence[Entry], after: Sequence[Entry], changed: set[str]) -> Concern | None:
    """Judge the order of what did not change: git takes the last value, and an included file's where it is included."""
    has_include = any(key.startswith("include") for key, _ in after)

    def counted(entries: Sequence[Entry]) -> list[Entry]:
        unchanged = (entry for entry in entries if entry[0] not in changed)
        return [entry for entry in unchanged if has_include or entry[0].partition(".")[0] not in _ORDERLESS]

    for one, other in zip(counted(before), counted(after), strict=True):
        if one != other:
            return held(FLAG, f"{shown(other[0])} is in another place: the order decides which setting git obeys")
    return None
