"""Short words for tests of the judge: a change, a file a run wrote, a link it made."""

from __future__ import annotations

from fumehood.core.changes import ADDED, FILE, MODIFIED, SYMLINK, Change, Stamp
from fumehood.core.danger import ChangeFacts, Concern, RootFacts, Rules, find_concern

BASE = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"
ROOT = "/home/someone/project"
NO_RULES = Rules()


def stamp(kind: str = FILE, mode: int = 0o644) -> Stamp:
    return Stamp(kind, 1, 1, 1, 1, mode)


def added(path: str, kind: str = FILE, mode: int = 0o644, within: str | None = None) -> Change:
    return Change(0, path, ADDED, kind, after=stamp(kind, mode), within=within)


def modified(path: str, before: int = 0o644, after: int = 0o644, change: str = MODIFIED) -> Change:
    return Change(0, path, change, FILE, before=stamp(mode=before), after=stamp(mode=after))


def file(path: str, new: bytes = b"x", old: bytes | None = None, ground: RootFacts | None = None) -> Concern | None:
    """Judge a file that a run wrote; where there was one before, its repository was there too."""
    change = added(path) if old is None else modified(path)
    facts = ChangeFacts(old=old, new=new, root=ROOT, repository_was_there=old is not None)
    return find_concern(change, facts, NO_RULES, ground or RootFacts())


def link(path: str, target: str, roots: tuple[str, ...] = ()) -> Concern | None:
    facts = ChangeFacts(target=target, root=ROOT)
    return find_concern(added(path, SYMLINK, 0o777), facts, NO_RULES, RootFacts(roots=roots))


def is_held(found: Concern | None) -> bool:
    return found is not None and found.held and bool(found.reason)


def is_flagged(found: Concern | None) -> bool:
    return found is not None and not found.held and bool(found.reason)


def setting(line: str) -> bytes:
    """One setting in git's format, from `section.sub.name=value`."""
    key, _, value = line.partition("=")
    section, _, rest = key.partition(".")
    subsection, dot, name = rest.rpartition(".")
    header = f'[{section} "{subsection}"]' if dot else f"[{section}]"
    return f'{header}\n\t{name} = "{value}"\n'.encode()
