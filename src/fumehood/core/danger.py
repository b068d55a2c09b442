"""Find the changes that the host would act on by itself, and those that run when a person builds.

A path is judged by the name that it has after the run, so that new files and renamed directories are judged too. Git
directories (`gitdir`) and settings that load code (`linter_settings`) have rules of their own. The rules for links,
for Fumehood's own files and for virtual environments stand at the end of this file.
"""

from __future__ import annotations

import sys

from fumehood.core.changes import ADDED, DELETED, DIRECTORY, FILE, MODE, MODIFIED, OPENING, SYMLINK, Change
from fumehood.core.danger_facts import (
    UNREAD,
    WORLD_WRITABLE,
    ChangeFacts,
    Concern,
    OwnSource,
    ProtectedPaths,
    Reason,
    RootFacts,
    became_executable,
    directory_of,
    flag,
    hold,
    is_writable_by_others,
    link_destination,
    locate_in_roots,
    real_name_of,
    roots_of,
)
from fumehood.core.linter_settings import code_loading_concern, is_written_by_cloning, may_name_code
from fumehood.core.policy import Rules
from fumehood.core.sensitive_names import (
    GIT_DATA_DIRECTORIES,
    HELD_END_NAMES,
    OBJECT_LENDERS,
    REPOSITORY_SETTINGS,
    DirectoryMeaning,
    is_dot_git,
    meaning_of,
    settings_name,
    split_path,
    why_flagged,
    why_held,
)
from fumehood.core.value import word_set
from fumehood.core.wording import brief

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable
    from typing import Any


__all__ = [
    "ChangeFacts", "Concern", "RootFacts", "Rules", "find_concern", "gather_root_facts", "possible_repositories",
    "wants_facts",
]  # fmt: skip

_SET_ID = 0o6000
_NO_ROOT_FACTS = RootFacts()
# Settings of a bare repository, whose directory can have any name.
_IN_REPOSITORIES = frozenset(("config", "config.worktree", "commondir"))
_GIT_NAMES = _IN_REPOSITORIES | {"head", ".gitmodules", ".lfsconfig"}
_SHORTEST_OBJECT_NAME = 38


def wants_facts(change: Change, root_facts: RootFacts = _NO_ROOT_FACTS) -> bool:
    """Return True if `find_concern` needs to know the file's content or the link's target."""
    name, directory = split_path(change.path)
    if change.change == DELETED:
        return change.kind != DIRECTORY and _is_loss_to_git(change, name, directory, root_facts)
    if root_facts.own_source is not None and change.kind == FILE and is_own_source(change, root_facts.own_source):
        return change.change != ADDED
    if change.kind != FILE:
        return change.kind == SYMLINK
    if _may_be_git(name, directory, root_facts):
        from fumehood.core.gitdir import git_needs_facts

        if git_needs_facts(change, (*directory.parts, name), root_facts):
            return True
    if may_name_code(settings_name(name, directory), directory) or name in HELD_END_NAMES:
        return True
    if root_facts.environments and _program_of(change, root_facts.environments)[1]:
        return True
    # If the content is the same as before, no person is needed.
    return change.change != ADDED and (why_held(name, directory) or _why_protected(change, root_facts)) is not None


def find_concern(
    change: Change, facts: ChangeFacts | None, extra: Rules, root_facts: RootFacts = _NO_ROOT_FACTS
) -> Concern | None:
    """Return why a change must be held or flagged, or None.

    If `wants_facts` is true and the facts could not be read, the worst is assumed. A deletion is dangerous only if git
    loses settings by it; but a person's own globs (`extra`) hold deletions too.
    """
    facts = facts or UNREAD
    name, directory = split_path(change.path)
    own_source = root_facts.own_source
    if own_source is not None and (own_concern := _own_concern(change, facts, own_source)) is not None:
        return own_concern
    if change.change == DELETED:
        if _is_loss_to_git(change, name, directory, root_facts):
            from fumehood.core.gitdir import deletion_concern

            loss = deletion_concern(change, (*directory.parts, name), facts, root_facts)
            if loss is not None:
                return loss
    elif _became_writable_by_others(change) and _must_stay_closed(change, name, directory, root_facts):
        return hold("opened", "others could write this, and the host acts on what is in it")
    if change.kind == DIRECTORY:
        if change.change != ADDED or not directory.in_git or directory.is_git_data:
            return None
        from fumehood.core.gitdir import unknown_name_concern

        return unknown_name_concern(change)
    if extra.hold and (glob := _first_matching(change.path, extra.hold)) is not None:
        return hold("own-rule", f"a rule of yours holds it: {brief(glob)}")
    by_our_rules = None
    if change.change != DELETED and change.kind in (FILE, SYMLINK):
        by_our_rules = _concern_by_rules(change, name, directory, facts, root_facts)
    if by_our_rules is None and extra.flag and (glob := _first_matching(change.path, extra.flag)) is not None:
        return flag("own-rule", f"a rule of yours flags it: {brief(glob)}")
    return by_our_rules


def _concern_by_rules(
    change: Change, name: str, directory: DirectoryMeaning, facts: ChangeFacts, root_facts: RootFacts
) -> Concern | None:
    """Judge an added or changed file or link: by its mode, as a part of git, as a link, by its name."""
    before, after = change.before, change.after
    if change.kind == FILE and after is not None:
        old_mode = before.mode if change.change == MODE and before is not None else 0
        if after.mode & ~old_mode & _SET_ID:
            return hold("setuid", "would run with its owner's or group's rights, whoever starts it")
        is_linked = after.links > 1 and (change.root, after.inode) in root_facts.linked_files
        if is_linked and _must_stay_closed(change, name, directory, root_facts):
            return hold("other-name", "has another name now, by which it could be changed unseen")
    flagged = None  # a concern by which the change is only flagged, unless a later rule holds it
    if _may_be_git(name, directory, root_facts) or (directory.in_git and change.kind == SYMLINK):
        from fumehood.core.gitdir import git_concern

        flagged = git_concern(change, (*directory.parts, name), facts, root_facts)
        if flagged is not None and flagged.held:
            return flagged
    if change.kind == SYMLINK:
        by_link = _link_concern(change, facts, root_facts)
        if by_link is not None and by_link.held:
            return by_link
        flagged = flagged or by_link
    return _concern_by_name(change, name, directory, facts, root_facts) or flagged


def _concern_by_name(
    change: Change, name: str, directory: DirectoryMeaning, facts: ChangeFacts, root_facts: RootFacts
) -> Concern | None:
    reason = why_held(name, directory)
    if reason is REPOSITORY_SETTINGS and is_written_by_cloning(change, name, facts):
        return None
    reason = reason or _why_protected(change, root_facts)
    if reason is not None:
        is_as_before = change.kind == FILE and facts.is_unchanged and not became_executable(change)
        return None if is_as_before else hold(*reason)
    by_content = _environment_concern(change, facts, root_facts) if root_facts.environments else None
    name = settings_name(name, directory)
    if by_content is None and may_name_code(name, directory):
        by_content = code_loading_concern(name, directory.name, facts)
    if by_content is not None:
        return by_content
    reason = why_flagged(name, directory)
    return None if reason is None else flag(*reason)


def _why_protected(change: Change, root_facts: RootFacts) -> Reason | None:
    if root_facts.protected is None:
        return None
    return root_facts.protected.why(change.root, change.path, is_link=change.kind == SYMLINK)


def _became_writable_by_others(change: Change) -> bool:
    """Return True if others can write a path that they could not write before.

    For an existing path the group counts as others. A new path may be group-writable because of the person's umask.
    """
    before, after = change.before, change.after
    if after is None or change.kind == SYMLINK:
        return False
    return OPENING in change.flags or bool(after.mode & 0o002 if before is None else after.mode & ~before.mode & 0o022)


def _must_stay_closed(change: Change, name: str, directory: DirectoryMeaning, root_facts: RootFacts) -> bool:
    """Return True if someone who can write a path, or replace files in a directory, can make the host run something."""
    if change.path == "." or is_dot_git(name):
        return True
    if why_held(name, directory) is not None or _why_protected(change, root_facts) is not None:
        return True
    directory_path = change.path.rpartition("/")[0]
    if directory.is_git_data or not (directory.in_git or (change.root, directory_path) in root_facts.repositories):
        return False
    is_git_data = name in GIT_DATA_DIRECTORIES or (change.kind != DIRECTORY and name not in _IN_REPOSITORIES)
    return not is_git_data or "hooks" in directory.parts


def _may_be_git(name: str, directory: DirectoryMeaning, root_facts: RootFacts) -> bool:
    """Return False if git's rules can't concern a path; this check is cheap."""
    if name in OBJECT_LENDERS and directory.parts[-2:] == ("objects", "info"):
        return True
    if directory.in_git:
        return not directory.is_git_data and not (directory.has_objects and len(name) >= _SHORTEST_OBJECT_NAME)
    return name in _GIT_NAMES or is_dot_git(name) or bool(root_facts.repositories)


def _is_loss_to_git(change: Change, name: str, directory: DirectoryMeaning, root_facts: RootFacts) -> bool:
    """Return True if git may lose settings by a deletion, which is rare."""
    if not _may_be_git(name, directory, root_facts):
        return False
    from fumehood.core.gitdir import deletes_git_settings

    return deletes_git_settings(change, (*directory.parts, name), root_facts)


def _first_matching(path: str, globs: Iterable[str]) -> str | None:
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


def possible_repositories(changes: Iterable[Change]) -> set[tuple[int, str]]:
    """Return the directories, by root and path, that would be git repositories if they had a `HEAD`.

    The caller looks for a `HEAD` of any kind in each of them, in the project as the run left it, and passes those
    that have one to `gather_root_facts`.
    """
    directories: set[tuple[int, str]] = set()
    for change in changes:
        if change.kind == DIRECTORY:
            continue
        name, directory = split_path(change.path)
        directories.update((change.root, above) for above in directory.possible_repositories)
        if name in _IN_REPOSITORIES and not directory.in_git:
            directories.add((change.root, change.path.rpartition("/")[0]))
    return directories


def gather_root_facts(
    changes: Iterable[Change], roots: tuple[str, ...] = (), repositories: Iterable[tuple[int, str]] = (),
    protected: ProtectedPaths | None = None, own_source: OwnSource | None = None,
    environments: Iterable[tuple[int, str]] = (), **other_facts: Any,
) -> RootFacts:  # fmt: skip
    """Return what judging one change needs to know about the other changes and about the roots.

    `repositories` are the directories of `possible_repositories` that have a `HEAD`; bare repositories that the run
    made are found here. The other arguments are fields of `RootFacts` and go in unchanged.
    """
    all_repositories = set(repositories)
    inodes: set[tuple[int, int]] = set()
    linked_files: set[tuple[int, int]] = set()
    for change in changes:
        before, after = change.before, change.after
        if after is not None and after.links > 1 and after.kind == FILE and (before is None or before.links == 1):
            (linked_files if (change.root, after.inode) in inodes else inodes).add((change.root, after.inode))
        if change.path[-5:].lower() == "/head" and change.within is not None and change.change != DELETED:
            parent = change.path[:-5]
            if not meaning_of(parent).in_git:
                all_repositories.add((change.root, parent))
    all_repositories.update((number, "") for number, root in enumerate(roots) if meaning_of(root.strip("/")).in_git)
    return RootFacts(
        roots=roots, repositories=frozenset(all_repositories), protected=protected, own_source=own_source,
        environments=frozenset(environments), linked_files=frozenset(linked_files), **other_facts,
    )  # fmt: skip


# Symlinks.

# Programs and libraries that only root changes.
_SYSTEM = (
    "/usr/", "/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/libx32/", "/opt/",
    "/nix/store/", "/gnu/store/", "/etc/alternatives/",
)  # fmt: skip
_INTERPRETERS = ("python", "pypy", "graalpy")


def _link_concern(change: Change, facts: ChangeFacts, root_facts: RootFacts) -> Concern | None:
    """Judge a symlink by where it leads."""
    if not facts.target or not facts.root:
        return hold("outside-link", "where this link leads could not be read")
    place = link_destination(directory_of(change, facts), facts.target)
    if place is None:
        return hold("outside-link", f"where this link leads can't be told from its text, {brief(facts.target)}")
    result = _target_concern(change, real_name_of(place, root_facts), facts.target, facts, root_facts)
    for end in facts.destinations if result is None else ():
        concern = _target_concern(change, end, f"{facts.target}, which is {end}", facts, root_facts)
        if concern is not None and concern.held:
            return concern
        result = result or concern
    return result


def _target_concern(change: Change, place: str, text: str, facts: ChangeFacts, root_facts: RootFacts) -> Concern | None:
    target = brief(text)
    if locate_in_roots(place, roots_of(facts, root_facts)) is not None:
        return None
    if locate_in_roots(place, root_facts.writable_elsewhere) is not None:
        return hold("outside-link", f"leads to where commands write without being judged, {target}")
    ends = (change.path.split("/")[-2:], place.split("/")[-2:])
    is_interpreter = all(len(end) == 2 and end[0] == "bin" and end[1].startswith(_INTERPRETERS) for end in ends)
    if is_interpreter and not place.startswith(WORLD_WRITABLE):
        # `bin/python…` that leads to another `bin/python…`, as in a virtual environment.
        return flag("interpreter-link", f"runs the interpreter {target}")
    if place.startswith(_SYSTEM) or place == "/dev/null":
        return flag("system-link", f"leads to the system's {target}")
    return hold("outside-link", f"leads out of the project, to {target}")


# Files that Fumehood itself is loaded from: a change to them would run in it, unsandboxed, at its next start.

def is_own_source(change: Change, own: OwnSource) -> bool:
    """Return True if a change is to a directory of our own, to something in it, or to a directory above it."""
    path = f"{change.path}/" if change.path else ""
    for root, place in own.places:
        own_place = f"{place}/" if place else ""
        if root == change.root and (path.startswith(own_place) or own_place.startswith(path)):
            return True
    return any(
        root == change.root and path.startswith(f"{folder}/" if folder else "")
        and _is_module(change.path[len(folder) :].lstrip("/"), names)
        for root, folder, names in own.searched
    )  # fmt: skip


def _own_concern(change: Change, facts: ChangeFacts, own: OwnSource) -> Concern | None:
    """Hold any change to our own files, also of the mode; None for other files and for an unchanged content."""
    if not is_own_source(change, own):
        return None
    before, after = change.before, change.after
    has_its_mode = before is not None and after is not None and before.mode == after.mode
    if change.kind == FILE and change.change == MODIFIED and has_its_mode and facts.is_unchanged:
        return None
    return hold("own-source", "Fumehood itself is loaded from here, outside of the sandbox, when you use it next")


def _is_module(path: str, names: frozenset[str]) -> bool:
    """Return True if a path in a directory of modules is one of these modules, or entry points that libraries load."""
    first, _, rest = path.partition("/")
    if first == "__pycache__":
        first, rest = rest, ""
    if first.endswith((".egg-info", ".dist-info")):
        return rest == "entry_points.txt"
    return (bool(rest) or first.endswith((".py", ".pyc", ".so"))) and first.partition(".")[0] in names


# Virtual environments: a program that replaces another one there is held, and a Python that is no link to one out of
# commands' reach: editors start it by themselves, so this holds in a new environment too.
#
# An environment that is made again has the same programs as before, and scripts that an installer writes only start a
# module. A new package's program replaces nothing, unless a program on the person's PATH has the same name: a person
# who has activated the environment and types `git` means that one.

SETTINGS, _PROGRAMS = "pyvenv.cfg", "bin"
# Programs of every environment, which people start without a thought. If one is new, it replaces one that was removed.
_IN_EVERY_ENVIRONMENT = (*_INTERPRETERS, "pip", "activate", "Activate", SETTINGS)
# Programs that come in packages, and that a project is built and checked with.
_BUILD_PROGRAMS = word_set(
    """actionlint bun ccmake cmake corepack cpack ctest deno go gofmt hadolint just maturin ninja node nodejs npm npx
    patchelf pnpm ruff shellcheck shfmt ty typos uv uvx yarn zig"""
)
_LONGEST_SCRIPT = 2048
# All lines that pip, uv and setuptools write into a script, other than the call of its function.
_SCRIPT_LINES = frozenset((
    "", "# -*- coding: utf-8 -*-", "import re", "import sys", "if __name__ == '__main__':",
    r"sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])",
    r"sys.argv[0] = re.sub(r'(-script\.pyw?|\.exe)?$', '', sys.argv[0])",
    "sys.argv[0] = sys.argv[0].removesuffix('.exe')",
    "if sys.argv[0].endswith('-script.pyw'):", "sys.argv[0] = sys.argv[0][:-11]",
    "if sys.argv[0].endswith('.exe'):", "elif sys.argv[0].endswith('.exe'):", "sys.argv[0] = sys.argv[0][:-4]",
))  # fmt: skip


def possible_environments(changes: Iterable[Change]) -> set[tuple[int, str]]:
    """Return the directories, by root and path, that are virtual environments if a `pyvenv.cfg` is in them."""
    directories = set()
    for change in changes:
        if change.change == DELETED:
            continue
        if change.kind == SYMLINK and change.before is not None:
            directories.add((change.root, change.path))
        directories.update((change.root, environment) for environment, _ in _program_places(change))
    return directories


def _program_places(change: Change) -> list[tuple[str, str]]:
    """Return each environment whose program or settings a change may be, with the program's name in it."""
    directory, _, name = change.path.rpartition("/")
    if change.kind not in (FILE, SYMLINK):
        return []
    if change.kind == SYMLINK and name == _PROGRAMS:
        return [(directory, name)]
    # Python prefers settings beside its program to those in the directory above.
    places = [(directory, name)] if name == SETTINGS else []
    if name.startswith("__init__."):  # of a package, which scripts beside that would load
        directory, _, name = directory.rpartition("/")
    above, _, last = directory.rpartition("/")
    return [*places, (above, name)] if last == _PROGRAMS else places


def _program_of(change: Change, environments: Container[tuple[int, str]]) -> tuple[str, str]:
    """Return the environment and the name of its program or settings that a change is to; "" if it is to neither."""
    places = _program_places(change)
    return next((place for place in places if (change.root, place[0]) in environments), ("", ""))


def names_of_new_programs(changes: Iterable[Change], environments: Collection[tuple[int, str]]) -> set[str]:
    """Return the names of the programs that changes add to these environments."""
    if not environments:
        return set()
    return {name for each in changes if each.change == ADDED and (name := _program_of(each, environments)[1])}


def _environment_concern(change: Change, facts: ChangeFacts, root_facts: RootFacts) -> Concern | None:
    """Hold what replaces a program of an environment or on PATH, and settings that name a Python of a command's."""
    if change.kind == SYMLINK and (change.root, change.path) in root_facts.environments - root_facts.new_environments:
        return hold("environment-program", "leads to another place than the virtual environment that is here")
    environment, name = _program_of(change, root_facts.environments)
    leads_to_python = is_python(name) or name in (SETTINGS, _PROGRAMS)
    if (change.root, environment) in root_facts.new_environments and not leads_to_python:
        if not name.startswith(("activate", "Activate")) or _is_harmless(change, facts, root_facts):
            return None
        return flag("environment-program", "is run by a shell that enters this virtual environment")
    if not name:
        return None
    is_known = leads_to_python or name.startswith(_IN_EVERY_ENVIRONMENT)
    is_new = change.change == ADDED and not is_known and name.partition(".")[0] not in sys.stdlib_module_names
    replaced = (root_facts.shadowed_programs or {}).get(name, "")
    if (is_new and not replaced) or _is_harmless(change, facts, root_facts):
        return None
    if leads_to_python:
        reason = "a virtual environment's Python must be a link to one that no command can change"
        return hold("environment-program", reason)
    if not is_new:
        return hold("environment-program", "takes the place of what this virtual environment ran before")
    reason = f"is run in place of {brief(replaced)} while this virtual environment is active"
    return flag("environment-program", reason) if name in _BUILD_PROGRAMS else hold("environment-program", reason)


def _is_harmless(change: Change, facts: ChangeFacts, root_facts: RootFacts) -> bool:
    """Return True for a link to a similar program, a script that only starts a module, and settings with no new Python.

    A Python that a command or anybody can write is not harmless.
    """
    roots, directory = roots_of(facts, root_facts), directory_of(change, facts)
    name = change.path.rpartition("/")[2]
    if change.kind == SYMLINK:
        if not facts.target or facts.old == facts.target.encode("utf-8", "surrogateescape"):
            return facts.target != ""
        # The name must be the same: a link `pip` to Python would run `./install` for `pip install`.
        place = link_destination(directory, facts.target) or ""
        target = place.rpartition("/")[2]
        is_interpreter = name.startswith(_INTERPRETERS) and target.startswith(_INTERPRETERS)
        if is_python(facts.target):
            return is_interpreter
        return (is_interpreter or name == target) and not is_writable_by_others(place, roots, root_facts)
    if facts.is_unchanged or facts.content is None or is_python(name):
        return facts.is_unchanged
    if name == SETTINGS:
        # A bare name is that of another Python beside it, which counts by itself.
        places = [place for place in facts.pythons if not is_python(place)]
        places += python_homes(facts.content) - python_homes(facts.old or b"")
        return not any(is_writable_by_others(place, roots, root_facts) for place in places)
    if any(_is_filled_in(facts.content, template, directory.rpartition("/")[0]) for template in facts.templates):
        return True
    return _starts_a_module(facts.content, facts.old or b"", directory)


def is_python(name: str) -> bool:
    """Return True for the name of an interpreter: `python3.13t` has no global lock, `python3.12d` is for debugging."""
    return name.rstrip("0123456789.dmtw") in _INTERPRETERS


def _is_filled_in(content: bytes, template: bytes, environment: str) -> bool:
    """Return True if a text is what `venv` makes of its template; some versions put values in quotes, others don't."""
    if not all(letter.isalnum() or letter in "/._-+@" for letter in environment):
        return False  # a shell may read more in it than a path
    place = environment.encode()
    name = place.rpartition(b"/")[2]
    return any(
        content
        == template.replace(b"__VENV_DIR__", path)
        .replace(b"__VENV_BIN_NAME__", programs)
        .replace(b"__VENV_NAME__", name)
        .replace(b"__VENV_PROMPT__", prompt)
        for path in (place, b"'%s'" % place)
        for programs in (b"bin", b"'bin'")
        for prompt in (name, b"'%s'" % name, b"(%s) " % name, b"'(%s) '" % name)
    )


def python_homes(content: bytes) -> set[str]:
    """Return the directories that the settings of an environment name for its Python."""
    text = content.decode("utf-8", "surrogateescape")
    # Python itself ends a line only at a newline, its library also at a carriage return.
    pairs = (line.partition("=") for line in (*text.split("\n"), *text.replace("\r", "\n").split("\n")))
    return {value.strip() for key, _, value in pairs if key.strip().lower() == "home"}


def _starts_a_module(new: bytes, old: bytes, directory: str) -> bool:
    """Return True if a script is one that installers write: the environment's Python calls a function of a module."""
    if len(new) > _LONGEST_SCRIPT or not new.isascii():
        return False
    first, *body = new.decode().split("\n")
    interpreter = first.removeprefix("#!")
    if first == "#!/bin/sh" and len(body) > 2 and body[1] == "' '''":  # where the path is long or has a blank
        interpreter = body[0].removeprefix("'''exec' ").removesuffix(' "$0" "$@"').strip('"')
        body = body[2:]
    place, _, name = interpreter.rpartition("/")
    is_its_own = place == directory and is_python(name)
    is_as_before = first == old.decode("utf-8", "replace").partition("\n")[0] and first != "#!/bin/sh"
    return (is_its_own or is_as_before) and all(map(_is_script_line, body))


def _is_script_line(line: str) -> bool:
    text = line.strip().replace('"', "'")
    if text in _SCRIPT_LINES:
        return True
    if text.startswith("from ") and " import " in text:
        dotted = text.removeprefix("from ").replace(" import ", ".", 1)
    elif text.startswith("sys.exit(") and text.endswith("())"):
        dotted = text.removeprefix("sys.exit(").removesuffix("())")
    else:
        return False
    return all(part.isidentifier() for part in dotted.split("."))
