"""Tell which changes the host would act on by itself, and which run when a person builds.

A path is judged by its final name alone, so that neither a file that did not exist yet nor a renamed
directory above it slips through.
"""

from __future__ import annotations

from fumehood.core import concern as tables
from fumehood.core.changes import ADDED, DELETED, DIRECTORY, FILE, MODE, SYMLINK, Change
from fumehood.core.concern import (
    AREAS,
    Concern,
    DirectoryMeaning,
    Facts,
    Ground,
    became_executable,
    became_open,
    flagged,
    held,
    is_agents,
    is_dot_git,
    is_hook_manager,
    is_own,
    is_unchanged,
    link_concern,
    own_concern,
    settings_name,
    surroundings,
)
from fumehood.core.loaders import environment_concern, is_program, is_what_cloning_writes, loading_concern, may_load
from fumehood.core.policy import Rules
from fumehood.core.wording import brief as shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from fumehood.core.concern import Because, Own, Protected

__all__ = ["Concern", "Facts", "Ground", "Rules", "concern", "held_by_name", "survey", "suspects", "wants_facts"]

_SET_ID = 0o6000
_NOTHING_KNOWN = Ground()
# A bare repository's own files, in a directory of any name.
_IN_REPOSITORIES = frozenset(("config", "config.worktree", "commondir"))
_GIT_NAMES = _IN_REPOSITORIES | {"head", ".gitmodules", ".lfsconfig"}
_OBJECT = 38


def wants_facts(change: Change, ground: Ground = _NOTHING_KNOWN) -> bool:
    """Return True if judging a change needs the file's content or the link's target."""
    if change.change == DELETED:
        return change.kind != DIRECTORY and _is_loss_to_git(change, ground)
    if ground.own is not None and change.kind == FILE and is_own(change, ground.own):
        return change.change != ADDED
    if change.kind != FILE:
        return change.kind == SYMLINK
    directory, _, name = change.path.rpartition("/")
    name, around = name.lower(), surroundings(directory)
    if _may_be_git(name, around, ground):
        from fumehood.core.gitdir import git_wants

        if git_wants(change, (*around.parts, name), ground):
            return True
    loads = may_load(settings_name(name, around), around)
    if loads or name in tables.HELD_END_NAMES or (ground.environments and is_program(change, ground)):
        return True
    # A file that was only touched, or switched away and back, needs no person.
    return change.change != ADDED and (_held_by_name(name, around) or _protected(change, ground)) is not None


def concern(change: Change, facts: Facts | None, extra: Rules, ground: Ground = _NOTHING_KNOWN) -> Concern | None:
    """Return why a change must be held or flagged, or None.

    Facts that `wants_facts` asked for and that could not be had count against the change. Deleting is dangerous
    only where git loses settings; a person's own globs hold it all the same.
    """
    graver = _whatever_its_kind(change, facts, ground)
    if graver is not None:
        return graver
    if change.kind == DIRECTORY:
        return None
    if extra.hold and (glob := _matching(change.path, extra.hold)) is not None:
        return held("own-rule", f"a rule of yours holds it: {shown(glob)}")
    by_our_rules = None
    if change.change != DELETED and change.kind in (FILE, SYMLINK):
        by_our_rules = _judged(change, facts, ground)
    if by_our_rules is None and extra.flag and (glob := _matching(change.path, extra.flag)) is not None:
        return flagged("own-rule", f"a rule of yours flags it: {shown(glob)}")
    return by_our_rules


def _whatever_its_kind(change: Change, facts: Facts | None, ground: Ground) -> Concern | None:
    """Judge what counts for directories and deletions too."""
    if ground.own is not None and (own := own_concern(change, facts, ground.own)) is not None:
        return own
    if change.change != DELETED:
        if became_open(change) and _must_stay_closed(change, ground):
            return held("opened", "others could write this, and the host acts on what is in it")
        if change.kind == DIRECTORY:
            return _new_in_git(change)
    elif _is_loss_to_git(change, ground):
        from fumehood.core.gitdir import loss_concern

        return loss_concern(change, change.path.lower().split("/"), facts, ground)
    return None


def _new_in_git(change: Change) -> Concern | None:
    around = surroundings(change.path.rpartition("/")[0])
    if change.change != ADDED or not around.in_git or around.is_dull:
        return None
    from fumehood.core.gitdir import stranger_concern

    return stranger_concern(change)


def _judged(change: Change, facts: Facts | None, ground: Ground) -> Concern | None:
    before, after = change.before, change.after
    if change.kind == FILE and after is not None:
        had = before.mode if change.change == MODE and before is not None else 0
        if after.mode & ~had & _SET_ID:
            return held("setuid", "would run with its owner's or group's rights, whoever starts it")
        if after.links > 1 and (change.root, after.inode) in ground.linked and _must_stay_closed(change, ground):
            return held("other-name", "has another name now, by which it could be changed unseen")
    directory, _, name = change.path.rpartition("/")
    name, around = name.lower(), surroundings(directory)
    mild = None
    if _may_be_git(name, around, ground) or (around.in_git and change.kind == SYMLINK):
        from fumehood.core.gitdir import git_concern

        mild = git_concern(change, (*around.parts, name), facts, ground)
        if mild is not None and mild.held:
            return mild
    if change.kind == SYMLINK:
        link = link_concern(change, facts, ground)
        if link is not None and link.held:
            return link
        mild = mild or link
    return _by_name(change, name, around, facts, ground) or mild


def _by_name(
    change: Change, name: str, around: DirectoryMeaning, facts: Facts | None, ground: Ground
) -> Concern | None:
    because = _held_by_name(name, around)
    if because is tables.REPOSITORY and is_what_cloning_writes(change, name, facts):
        return None
    because = because or _protected(change, ground)
    if because is not None:
        as_before = change.kind == FILE and is_unchanged(facts) and not became_executable(change)
        return None if as_before else held(*because)
    by_content = environment_concern(change, facts, ground) if ground.environments else None
    name = settings_name(name, around)
    if by_content is None and may_load(name, around):
        by_content = loading_concern(name, around.parent, facts)
    if by_content is not None:
        return by_content
    because = _flagged_by_name(name, around)
    return None if because is None else flagged(*because)


def _must_stay_closed(change: Change, ground: Ground) -> bool:
    """Return True if whoever may write a path may have the host run something; a directory's files can be replaced."""
    if change.path == ".":
        return True
    directory, _, name = change.path.rpartition("/")
    name, around = name.lower(), surroundings(directory)
    if is_dot_git(name) or _held_by_name(name, around) is not None or _protected(change, ground) is not None:
        return True
    if around.is_dull or not (around.in_git or (change.root, directory) in ground.repositories):
        return False
    is_dull = name in AREAS or (change.kind != DIRECTORY and name not in _IN_REPOSITORIES)
    return not is_dull or "hooks" in around.parts


def _may_be_git(name: str, around: DirectoryMeaning, ground: Ground) -> bool:
    """Tell cheaply whether git's rules need to be asked at all."""
    if around.in_git:
        return not around.is_dull and not (around.is_store and len(name) >= _OBJECT)
    return name in _GIT_NAMES or is_dot_git(name) or bool(ground.repositories)


def _is_loss_to_git(change: Change, ground: Ground) -> bool:
    """Return True if a deletion is git's business, as hardly any is."""
    directory, _, name = change.path.rpartition("/")
    name, around = name.lower(), surroundings(directory)
    if not _may_be_git(name, around, ground):
        return False
    from fumehood.core.gitdir import git_loses

    return git_loses(change, (*around.parts, name), ground)


def held_by_name(path: str) -> Because | None:
    """Return why a tool acts on a path by itself, told from its names alone, or None."""
    directory, _, name = path.rpartition("/")
    return _held_by_name(name.lower(), surroundings(directory))


def _held_by_name(name: str, around: DirectoryMeaning) -> Because | None:
    if around.in_git or around.is_packaged:
        # Editors find theirs beside what git has them edit; branches have names of all kinds.
        if around.in_git and name in tables.HELD_NAMES and AREAS.isdisjoint(around.parts):
            return tables.HELD_NAMES[name]
        return _held_by_end(name, around) if name in tables.HELD_END_NAMES else None
    if around.held is not None:
        return around.held
    # A link with a directory's name brings the whole directory.
    because = tables.HELD_NAMES.get(name) or tables.HELD_DIRECTORIES.get(name)
    because = because or tables.HELD_SUFFIXES.get(name.rpartition(".")[2])
    if because is None and is_hook_manager(name, around.parent):
        because = tables.HOOKS_REASON
    if because is not None or not around.parts:
        return because
    if around.parent[:1] == "." and is_agents(around.parent, name):
        return tables.AGENT_REASON
    return _held_by_end(name, around) if name in tables.HELD_END_NAMES else None


def _held_by_end(name: str, around: DirectoryMeaning) -> Because | None:
    """Judge the settings of other version controls; as with git's, who acts on them does not ask where they lie."""
    ends = ((*around.parts[-length:], name) for length in (1, 2, 3))
    return next((tables.HELD_ENDS[end] for end in ends if end in tables.HELD_ENDS), None)


def _flagged_by_name(name: str, around: DirectoryMeaning) -> Because | None:
    if around.in_git:
        return None
    if around.is_packaged:
        # Python starts with these, wherever they are from.
        return _flagged_by_file(name) if name.endswith((".pth", "customize.py")) else None
    if around.flagged is not None:
        return around.flagged
    because = tables.FLAGGED_DIRECTORIES.get(name) or _flagged_by_file(name)
    return because or (tables.FLAGGED_PAIRS.get((around.parent, name)) if around.parts else None)


def _flagged_by_file(name: str) -> Because | None:
    if (because := tables.FLAGGED_NAMES.get(name)) is not None:
        return because
    stem, dot, ending = name.rpartition(".")
    if not dot:
        return None
    if (because := tables.FLAGGED_SUFFIXES.get(ending)) is not None:
        return because
    if ending in tables.SCRIPT_ENDINGS and (stem.endswith(".config") or (stem[:1] == "." and stem.endswith("rc"))):
        return tables.SCRIPT_REASON
    return tables.FLAGGED_PREFIXES.get(name[: name.find(".", 1) + 1])


def _matching(path: str, globs: Iterable[str]) -> str | None:
    """Return the first of a person's globs that a path matches."""
    from fnmatch import fnmatchcase

    name = path.rpartition("/")[2]
    for glob in globs:
        whole = glob.removeprefix("/")
        if whole.endswith("/"):
            if fnmatchcase(path, f"{whole}*"):
                return glob
        elif fnmatchcase(path if "/" in glob else name, whole):
            return glob
    return None


def _protected(change: Change, ground: Ground) -> Because | None:
    if ground.protected is None:
        return None
    return ground.protected.why(change.root, change.path, is_link=change.kind == SYMLINK)


def suspects(changes: Iterable[Change]) -> set[tuple[int, str]]:
    """Return the directories, by root and path, in which a `HEAD` would make these changes git's business.

    The caller looks for a `HEAD` of any kind in each, in the project as the run left it, and gives those
    that have one to `survey`.
    """
    directories: set[tuple[int, str]] = set()
    for change in changes:
        if change.kind == DIRECTORY:
            continue
        directory, _, name = change.path.rpartition("/")
        around = surroundings(directory)
        directories.update((change.root, above) for above in around.above_own)
        if name.lower() in _IN_REPOSITORIES and not around.in_git:
            directories.add((change.root, directory))
    return directories


def survey(
    changes: Iterable[Change], roots: tuple[str, ...] = (), repositories: Iterable[tuple[int, str]] = (),
    protected: Protected | None = None, own: Own | None = None, environments: Iterable[tuple[int, str]] = (),
    **more: Any,
) -> Ground:  # fmt: skip
    """Gather what judging one change needs to know about the others and about the roots.

    Finds bare repositories among what the run made; `repositories` are those found by `suspects`. What else there is
    to know of the ground goes in as it is.
    """
    every = set(repositories)
    names: set[tuple[int, int]] = set()
    linked: set[tuple[int, int]] = set()
    for change in changes:
        before, after = change.before, change.after
        if after is not None and after.links > 1 and after.kind == FILE and (before is None or before.links == 1):
            (linked if (change.root, after.inode) in names else names).add((change.root, after.inode))
        if change.path[-5:].lower() == "/head" and change.within is not None and change.change != DELETED:
            parent = change.path[:-5]
            if not surroundings(parent).in_git:
                every.add((change.root, parent))
    every.update((number, "") for number, root in enumerate(roots) if surroundings(root.strip("/")).in_git)
    return Ground(
        roots=roots, repositories=frozenset(every), protected=protected, own=own, environments=frozenset(environments),
        linked=frozenset(linked), **more,
    )  # fmt: skip
