"""Judge what a command leaves in a git directory, or makes a git directory of."""

from __future__ import annotations

from fumehood.core.changes import ADDED, DELETED, DIRECTORY, FILE, SYMLINK, Change
from fumehood.core.danger_facts import (
    became_executable,
    directory_of,
    flag,
    hold,
    link_destination,
    locate_in_roots,
    roots_of,
)
from fumehood.core.sensitive_names import GIT_DATA_DIRECTORIES, OBJECT_LENDERS, is_dot_git
from fumehood.core.value import word_set
from fumehood.core.wording import brief

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fumehood.core.danger_facts import ChangeFacts, Concern, RootFacts
    from fumehood.core.gitconfig import Values

HOOKS = word_set(
    """
    applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg commit-msg
    post-commit pre-rebase post-checkout post-merge pre-push pre-receive update proc-receive post-receive
    post-update reference-transaction push-to-checkout pre-auto-gc post-rewrite sendemail-validate
    fsmonitor-watchman query-watchman p4-changelist p4-prepare-changelist p4-post-changelist p4-pre-submit
    post-index-change
    """
)
_CONFIGS = ("config", "config.worktree")
_OWN = frozenset((*GIT_DATA_DIRECTORIES, *_CONFIGS, "head", "hooks", "info", "commondir", "modules", "worktrees"))
_ADDRESSES = ("remotes", "branches")
_NESTING = ("modules", "worktrees")
_FILES_OF_A_MERGE = {
    "rebase-merge": ("git-rebase-todo", "strategy"), "rebase-apply": ("git-rebase-todo",), "sequencer": ("opts",),
}  # fmt: skip
# Git runs `git merge-NAME` for a strategy of any other name; with a slash in it, a file of the project.
_STRATEGIES = word_set("ort recursive resolve octopus ours subtree")
_READ = frozenset(("gitdir", "attributes", "git-rebase-todo", "strategy", "opts"))
_READ_ANYWHERE = frozenset((*_CONFIGS, "commondir", "head", ".gitmodules", ".lfsconfig"))
_UNREAD = "could not be read whole, and git acts on what it says"
_MOST_NESTED, _DEEPEST = 8, 100  # git directories in each other; names below one that may be those of a submodule
_MANY = 10_000
_depths: dict[tuple[frozenset[tuple[int, str]], int, str], tuple[int, ...]] = {}


# What git and its companions write at the top of a `.git`, besides names in capitals and locks.
_WRITTEN = _OWN | word_set(
    """
    branches remotes description gitdir locked packed-refs shallow reftable rr-cache rebase-apply rebase-merge sequencer
    lost-found notes_merge_worktree subtree-cache fsmonitor--daemon fsmonitor--daemon.ipc
    lfs annex svn hg bzr sl branchless filter-repo git-crypt gitbutler gk gitk.cache magit cola smartgit
    sourcetreeconfig opencode git-daemon-export-ok cloneurl tags .ds_store
    """
)
_WRITTEN_BEGINNINGS = (
    "index", "next-index-", "sharedindex.", "shallow_", "packed-refs.", "gc.", "tmp_", "addp-hunk-edit.", "machete",
    ".gitsendemail.", ".gitstatus.", ".watchman-cookie-", ".graphite_", "fast_import_crash_",
)  # fmt: skip
# People keep messages and copies there too, and no tool looks for its settings in a file that ends so.
_NOTES = (".txt", ".md", ".patch", ".diff", ".log", ".bak", ".orig")
_CAPITALS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_-")


def unknown_name_concern(change: Change) -> Concern | None:
    """Hold what brings a new name to the top of a `.git` that git does not write: other tools look there for theirs."""
    names = change.path.split("/")
    for at, name in enumerate(names[:-1]):
        if not is_dot_git(name.lower()):
            continue
        top, is_itself = names[at + 1], at + 2 == len(names)
        lower = top.lower()
        is_below_new = change.within is not None and change.within.count("/") <= at + 1
        is_new = change.change == ADDED if is_itself else is_below_new
        if not is_new or lower in _WRITTEN or lower.startswith(_WRITTEN_BEGINNINGS):
            continue
        if is_itself and change.kind == FILE:
            # `COMMIT_EDITMSG` and its kin, also as an editor names its copies.
            plain = top.strip(".~#").removesuffix(".swp").removesuffix(".patch")
            if lower.endswith(".lock") or _CAPITALS.issuperset(plain):
                continue
            if lower.endswith(_NOTES) and change.after is not None and not change.after.mode & 0o111:
                continue
        return hold("repository-settings", f"git writes no {brief(top)} here, and other tools may act on it")
    return None


def paths_in_git_directories(change: Change, parts: Sequence[str], root_facts: RootFacts) -> list[Sequence[str]]:
    """Return a path's remainder below each git directory it lies in; `parts` are its names in lower case.

    Of very many, the outermost ones: `git_concern` holds what lies in so many.
    """
    numbers = [number + 1 for number, name in enumerate(parts[:-1]) if is_dot_git(name)]
    if root_facts.repositories:
        numbers += _repositories_above(change.root, change.path.rpartition("/")[0], root_facts.repositories)
    return [parts[number:] for number in numbers[: _MOST_NESTED + 1]]


def _repositories_above(root: int, directory: str, repositories: frozenset[tuple[int, str]]) -> tuple[int, ...]:
    """Return after how many names of a directory's path there is a repository; each directory is looked at once."""
    asked = []
    while (depths := _depths.get((repositories, root, directory))) is None:
        asked.append(directory)
        if not directory:
            depths = ()
            break
        directory = directory.rpartition("/")[0]
    if len(_depths) + len(asked) > _MANY:
        _depths.clear()
    for each in reversed(asked):
        if (root, each) in repositories:
            depths = (*depths, each.count("/") + 1 if each else 0)
        _depths[repositories, root, each] = depths
    return depths


def git_needs_facts(change: Change, parts: Sequence[str], root_facts: RootFacts) -> bool:
    """Return True if judging a file by git's rules needs its content."""
    name = parts[-1]
    if is_dot_git(name) or name in _READ_ANYWHERE or name in OBJECT_LENDERS:
        return True
    tails = paths_in_git_directories(change, parts, root_facts)
    return any(
        name in _READ or ("hooks" in tail and change.before is not None) or not set(tail[:-1]).isdisjoint(_ADDRESSES)
        for tail in tails
    )


def deletes_git_settings(change: Change, parts: Sequence[str], root_facts: RootFacts) -> bool:
    """Return True if a deletion takes settings from a git directory that stays, or is the project's git directory."""
    if _is_projects_own(parts):
        return True
    if change.kind == DIRECTORY:
        return False
    for tail in paths_in_git_directories(change, parts, root_facts):
        for place, sure in _possible_git_paths(tail):
            stays = change.within is None or change.within.count("/") >= len(parts) - len(place)
            if sure and stays and (place[0] in _ADDRESSES or tuple(place) in (("config",), ("config.worktree",))):
                return True
    return False


def deletion_concern(change: Change, parts: Sequence[str], facts: ChangeFacts, root_facts: RootFacts) -> Concern | None:
    """Judge a deletion that `deletes_git_settings` told of."""
    if _is_projects_own(parts):
        return hold("git-repository", "without it, a repository put there later would pass for a new one")
    if parts[-1] not in _CONFIGS:
        return hold("git-remote", "named an address that git sends data to")
    if facts.old is None:
        return hold("git-config", _UNREAD)
    return _config(change, facts, root_facts, sure=True)


def _is_projects_own(parts: Sequence[str]) -> bool:
    """Return True if a path is the `.git` of the root itself; one in a directory of the project goes with it."""
    return len(parts) == 1 and is_dot_git(parts[0])


def git_concern(change: Change, parts: Sequence[str], facts: ChangeFacts, root_facts: RootFacts) -> Concern | None:
    """Judge a file or symlink by git's rules."""
    if is_dot_git(parts[-1]):
        return _pointer(change, facts, root_facts)
    if parts[-1] in OBJECT_LENDERS and tuple(parts[-3:-1]) == ("objects", "info"):
        return _lender(change, facts, root_facts)
    in_dot_git = any(map(is_dot_git, (facts.root.rpartition("/")[2].lower(), *parts[:-1])))
    tails = paths_in_git_directories(change, parts, root_facts)
    if change.kind == SYMLINK and (in_dot_git or any(tail[0] in _OWN for tail in tails)):
        return hold("git-redirect", "a link in a git directory leads git elsewhere")
    if in_dot_git and (strange := unknown_name_concern(change)) is not None:
        return strange
    if len(tails) > _MOST_NESTED or any(tail[0] in _NESTING and len(tail) > _DEEPEST for tail in tails):
        return hold("git-repository", "git directories lie in each other here as nobody has them")
    worst = None
    for tail in tails:
        for place, sure in _possible_git_paths(tail):
            concern = _concern_in_git(place, sure, change, facts, root_facts)
            if concern is not None and concern.held:
                return concern
            worst = worst or concern
    return worst if in_dot_git else worst or _concern_outside_git(change, parts[-1], facts, root_facts)


def _possible_git_paths(tail: Sequence[str]) -> Iterator[tuple[Sequence[str], bool]]:
    """Yield a path below a git directory, and below each that may lie in it: submodules' and work trees'.

    A submodule's name may have slashes, so any name below `modules` can be its last; not sure is what
    may as well be a branch.
    """
    yield tail, True
    if tail[0] in _NESTING:
        sure = True
        for number in range(2, len(tail)):
            yield tail[number:], sure
            sure = sure and tail[number] not in GIT_DATA_DIRECTORIES


def _concern_in_git(
    place: Sequence[str], sure: bool, change: Change, facts: ChangeFacts, root_facts: RootFacts
) -> Concern | None:
    first, name = place[0], place[-1]
    concern = None
    if len(place) == 1:
        if name in _CONFIGS:
            return _config(change, facts, root_facts, sure=sure)
        if name == "commondir":
            return _common_directory(change, facts)
        if name == "gitdir" and "worktrees" in change.path.lower():
            return _work_tree(change, facts, root_facts)
        return None
    if first == "hooks":
        is_sample = len(place) == 2 and name.endswith(".sample")
        is_as_before = facts.is_unchanged and not became_executable(change)
        if (sure or name in HOOKS) and not is_sample and not is_as_before:
            concern = hold("git-hook", "git runs this hook by itself")
    elif tuple(place) == ("info", "attributes") and not facts.is_unchanged:
        concern = hold("git-attributes", "tells git which files to run through its filters")
    elif name in _FILES_OF_A_MERGE.get(first, ()):
        concern = _rebase(facts) if name == "git-rebase-todo" else _strategy(name, facts)
    elif first in _ADDRESSES and sure:
        # A file that names an address as git did before it had a configuration, and still obeys.
        if not facts.repository_was_there:
            concern = flag("git-remote", "names an address for git")
        elif not facts.is_unchanged:
            concern = hold("git-remote", "decides where git sends data to and gets it from")
    return concern


def _config(change: Change, facts: ChangeFacts, root_facts: RootFacts, *, sure: bool) -> Concern | None:
    """Compare two versions of a configuration by key; not sure, only what git would act on by itself counts."""
    from fumehood.core.gitconfig import changed_keys, everyday_concern, key_concern, runs_by_itself

    new = b"" if change.change == DELETED and facts.is_complete else facts.content
    if new is None:
        return hold("git-config", _UNREAD)
    if sure and facts.repository_was_there:
        return everyday_concern(facts.old, new, lambda values: _is_own_work_tree(change, values, facts, root_facts))
    changed = changed_keys(facts.old, new)
    if changed is None:
        return hold("git-config", "can't be understood as a git configuration") if sure else None
    worst = None
    for key, was, now in changed:
        if not (sure or runs_by_itself(key)):
            continue
        if key == "core.worktree" and _is_own_work_tree(change, now, facts, root_facts):
            continue
        concern = key_concern(key, was, now)
        if concern is not None and concern.held:
            return concern
        worst = worst or concern
    return worst


def _is_own_work_tree(change: Change, values: Values, facts: ChangeFacts, root_facts: RootFacts) -> bool:
    """Return True if a submodule's configuration names a directory of the project as its work tree, or none."""
    tails = paths_in_git_directories(change, change.path.lower().split("/"), root_facts)
    # Where git keeps submodules' directories, and not in another repository there.
    if not any("modules" in tail and not any(map(is_dot_git, tail)) for tail in tails):
        return False
    if not values:
        return True
    spot = _location_of(change, values[-1] or "", facts, root_facts)
    # A work tree in a git directory would let a checkout write hooks.
    return spot is not None and not any(is_dot_git(name) for name in spot[1].lower().split("/"))


def _line(facts: ChangeFacts) -> str | None:
    """Return the one line that a file consists of, or None."""
    if facts.content is None or b"\0" in facts.content:
        return None
    text = facts.content.decode("utf-8", "surrogateescape").rstrip("\r\n")
    return None if "\n" in text else text


def _location_of(change: Change, text: str, facts: ChangeFacts, root_facts: RootFacts) -> tuple[int, str] | None:
    """Return the root (number 0 is the change's own once more) and the path in it that a file's text leads to."""
    place = link_destination(directory_of(change, facts), text)
    return None if place is None else locate_in_roots(place, roots_of(facts, root_facts))


def _pointer(change: Change, facts: ChangeFacts, root_facts: RootFacts) -> Concern | None:
    """Judge a `.git` that is no directory: a work tree's or a submodule's names its place in a git directory."""
    if change.kind == SYMLINK:
        return hold("git-redirect", "a .git that is a link leads git elsewhere")
    if facts.is_unchanged:
        return None
    if facts.repository_was_there:
        return hold("git-redirect", "a .git file puts another repository in the place of the one that was there")
    text = _line(facts)
    if text is not None and text.startswith("gitdir: "):
        spot = _location_of(change, text.removeprefix("gitdir: "), facts, root_facts)
        if spot is not None and _is_git_subdirectory(spot, facts, root_facts):
            return None
    return hold("git-redirect", "a .git file points git at another repository")


def _is_git_subdirectory(spot: tuple[int, str], facts: ChangeFacts, root_facts: RootFacts) -> bool:
    """Return True if a path is where git itself keeps a work tree's or a submodule's directory."""
    number, path = spot
    names = path.lower().split("/")
    rooms = [at for at, name in enumerate(names[:-1]) if name in _NESTING]
    own = roots_of(facts, root_facts)[number]
    numbers = [at for at, root in enumerate(root_facts.roots) if root == own]
    for at in rooms:
        directory = "/".join(path.split("/")[:at])
        is_repository = any((number, directory) in root_facts.repositories for number in numbers)
        if is_dot_git(names[at - 1] if at else "") or is_repository:
            return True
    return False


def _common_directory(change: Change, facts: ChangeFacts) -> Concern | None:
    in_worktrees = change.path.lower().split("/")[-3:-2] == ["worktrees"]
    if facts.is_unchanged or (in_worktrees and _line(facts) == "../.."):
        return None
    return hold("git-redirect", "commondir leads git to another repository's settings and hooks")


def _work_tree(change: Change, facts: ChangeFacts, root_facts: RootFacts) -> Concern | None:
    if facts.is_unchanged:
        return None
    text = _line(facts)
    place = link_destination(directory_of(change, facts), text) if text else None
    if place is not None and place.endswith("/.git") and locate_in_roots(place, roots_of(facts, root_facts)):
        return None
    return hold("git-redirect", "gitdir names a work tree outside the project")


def _lender(change: Change, facts: ChangeFacts, root_facts: RootFacts) -> Concern | None:
    """Judge a list of directories in which git looks for objects: a relative path in it counts from `objects`."""
    if change.kind == SYMLINK or facts.content is None:
        return hold("git-redirect", _UNREAD)
    before = (facts.old or b"").split(b"\n")
    for line in facts.content.split(b"\n"):
        text = line.decode("utf-8", "surrogateescape")
        place = text if text.startswith("/") else f"../{text}"
        is_plain = change.path.endswith("/alternates") and not text.startswith('"')
        is_new = line not in before and text[:1] not in ("", "#")
        if is_new and not (is_plain and _location_of(change, place, facts, root_facts)):
            return hold("git-redirect", f"git would take objects from outside the project, {brief(text)}")
    return None


def _rebase(facts: ChangeFacts) -> Concern | None:
    if facts.content is None:
        return hold("git-rebase", _UNREAD)
    before = set((facts.old or b"").splitlines())
    for line in facts.content.splitlines():
        if line not in before and line.split(None, 1)[:1] in ([b"exec"], [b"x"]):
            return hold("git-rebase", "git runs a command from this list when the rebase goes on")
    return None


def _strategy(name: str, facts: ChangeFacts) -> Concern | None:
    """Judge how a rebase or a cherry-pick that is under way will merge."""
    from fumehood.core.gitconfig import parse

    if facts.content is None:
        return hold("git-rebase", _UNREAD)
    if name == "opts":
        entries = parse(facts.content)
        if entries is None:
            return hold("git-rebase", _UNREAD)
        named = {value or "" for key, value in entries if key == "options.strategy"}
    else:
        named = {facts.content.decode("utf-8", "replace").strip()}
    if named <= _STRATEGIES | {""}:
        return None
    return hold("git-rebase", "names a program for git to merge with when it goes on")


def _concern_outside_git(change: Change, name: str, facts: ChangeFacts, root_facts: RootFacts) -> Concern | None:
    """Judge a file that matters if its directory is, or becomes, a bare repository; and `.gitmodules`."""
    if name == "commondir" and change.kind == FILE:
        return _common_directory(change, facts)
    if name == "head" and change.within is None:
        return _head(change, facts)
    if change.kind != FILE:
        return None
    if name in (".gitmodules", ".lfsconfig"):
        return _submodules(facts) if name == ".gitmodules" else _lfs(change, facts)
    return _config(change, facts, root_facts, sure=False) if name in _CONFIGS else None


def _head(change: Change, facts: ChangeFacts) -> Concern | None:
    """Judge a `HEAD` in a directory that was there before, whose other files are not judged with it.

    In a directory that is new as a whole, everything is judged by git's rules: see `danger.survey`.
    """
    if change.kind == SYMLINK:
        makes = not facts.target or facts.target.startswith("refs/")
    else:
        makes = facts.new is None or (_is_head(facts.new) and not _is_head(facts.old or b""))
    if makes:
        return hold("git-repository", "turns a directory that was there before into a git repository")
    return None


def _is_head(content: bytes) -> bool:
    return content.startswith(b"ref:") or (len(content) >= 40 and content[:40].isalnum())


def _submodules(facts: ChangeFacts) -> Concern | None:
    from fumehood.core.gitconfig import changed_keys, key_concern

    changed = None if facts.content is None else changed_keys(facts.old, facts.content)
    if changed is None:
        return hold("git-submodules", "can't be understood as a list of submodules")
    for key, was, now in changed:
        if not key.startswith("submodule."):
            continue
        if key.endswith(".path") and any((value or "").startswith("-") for value in now):
            return hold("git-submodules", "a submodule's path would be taken for an option")
        concern = key_concern(key, was, now) if key.endswith((".url", ".update")) else None
        if concern is not None and concern.held:
            return concern
    return None


def _lfs(change: Change, facts: ChangeFacts) -> Concern | None:
    """Judge the project's settings for large files; in a directory that is new, their addresses are its own matter."""
    from fumehood.core.gitconfig import changed_keys

    if change.within is not None:
        return None
    changed = None if facts.content is None else changed_keys(facts.old, facts.content)
    if changed is None:
        return hold("git-config", _UNREAD)
    address = next((key for key, _, _ in changed if key.endswith("url")), None)
    if address is None:
        return None
    return hold("git-config", f"{brief(address)} decides where git sends large files to and gets them from")
