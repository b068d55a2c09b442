"""Bring layers and project onto one file system for the time of a swap, where they are on two.

New versions are copied into a directory at the top of the root, swapped from there like any layer, and
what comes out is copied home into the layer before the directory goes. Nothing is removed from either
side before its copy is whole.
"""

from __future__ import annotations

import os
import stat

from fumehood.core import changes as c
from fumehood.core.plan import MKDIR, PUT, RMDIR, SWAP, TAKE
from fumehood.linux import libc
from fumehood.linux.copying import Links, copy_directory, copy_entry, copy_tree
from fumehood.linux.nofollow import (
    PATH_ONLY,
    Loosened,
    Parents,
    look,
    make_parents,
    open_below,
    open_top,
    remove_tree,
    stamp_of,
    walk,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.plan import Step

_HOME = "home"


class Staging:
    """A directory at the top of one root that stands in for its layer."""

    def __init__(self, upper: str, live: int, run: str) -> None:
        self._upper = upper
        self._live = live
        self._name = f".fumehood-{run}"
        self._steps: Sequence[Step] = ()
        self._emptied: Sequence[Step] = ()
        self._settled: str | None = None
        loosened = Loosened(live)
        loosened.loosen("")
        try:
            remove_tree(live, self._name)
            os.mkdir(self._name, 0o700, dir_fd=live)
            self.directory = open_below(live, self._name)
        finally:
            loosened.restore()

    def prepare(self, steps: Sequence[Step], changes: Sequence[c.Change]) -> None:
        """Copy in what will be put into the project, and take note of the copies' identities."""
        self._steps = [step for step in steps if step.act in (SWAP, PUT, TAKE)]
        self._emptied = [step for step in steps if step.act == RMDIR]
        layer = open_top(self._upper)
        loosened, target = Loosened(layer), Parents(self.directory)
        links = Links(self.directory)
        try:
            for step in steps:
                if step.act in (SWAP, PUT, TAKE, MKDIR):
                    make_parents(self.directory, step.parent)
                if step.act in (SWAP, PUT, MKDIR):
                    source = loosened.reach(step.parent, PATH_ONLY)
                    try:
                        self._bring(step, source, target.of(step.parent), links)
                    finally:
                        os.close(source)
        finally:
            loosened.restore()
            target.close()
            os.close(layer)
        self._note_copies(changes, {step.change.path for step in steps if step.act == MKDIR})

    def _bring(self, step: Step, source: int, target: int, links: Links) -> None:
        if step.act != MKDIR:
            copy_entry(source, step.name, target, step.name, links, step.change.path)
        elif look(source, step.name) is not None:
            os.mkdir(step.name, 0o700, dir_fd=target)
            copy_directory(source, target, step.name)

    def _note_copies(self, changes: Sequence[c.Change], apart: set[str]) -> None:
        """Let changes name the copies: these are what will be in the project, save for directories made there."""
        copies = dict(walk(self.directory, ""))
        moved = {step.change.path for step in self._steps if step.act != TAKE}
        for change in changes:
            if change.verdict != c.APPLIED or change.after is None or change.path in apart:
                continue
            found = copies.get(change.path)
            if found is not None and (change.within is not None or change.path in moved):
                change.after = stamp_of(found)

    def bring_home(self) -> None:
        """Copy what came out of the project into the layer: all is copied before the first path is replaced."""
        above = open_top(os.path.dirname(self._upper))
        try:
            remove_tree(above, _HOME)
            copy_tree(self._live, self._name, above, _HOME)
            home, layer = open_below(above, _HOME), open_top(self._upper)
            source, target = Loosened(home), Loosened(layer)
            try:
                for step in self._steps:
                    self._settle(source, target, step, _move_home)
                for step in self._emptied:
                    self._settle(source, target, step, _resemble)
            finally:
                target.restore()
                os.close(home)
                os.close(layer)
            remove_tree(above, _HOME)
        finally:
            os.close(above)

    def _settle(self, source: Loosened, target: Loosened, step: Step, act: Callable[[int, int, Step], None]) -> None:
        """Do something with the copy of one entry and its place in the layer."""
        if step.parent != self._settled:
            source.loosen(step.parent)
            target.loosen(step.parent)
            make_parents(target.top, step.parent)
            self._settled = step.parent
        here, there = open_below(source.top, step.parent), open_below(target.top, step.parent)
        try:
            act(here, there, step)
        finally:
            os.close(here)
            os.close(there)

    def close(self) -> None:
        """Remove the directory from the project."""
        os.close(self.directory)
        loosened = Loosened(self._live)
        loosened.loosen("")
        try:
            remove_tree(self._live, self._name)
        finally:
            loosened.restore()


def _move_home(here: int, there: int, step: Step) -> None:
    """Put a copy into the layer; where nothing came out of the project, what went in leaves the layer too."""
    name, raw = step.name, os.fsencode(step.name)
    found, slot = look(here, name), look(there, name)
    if found is None:
        remove_tree(there, name)
        return
    for directory, entry in ((here, found), (there, slot)):
        # One that is read-only can't be moved: its own `..` is written.
        if entry is not None and stat.S_ISDIR(entry.st_mode) and not entry.st_mode & 0o200:
            os.chmod(name, 0o700, dir_fd=directory)
    libc.renameat2(here, raw, there, raw, libc.RENAME_NOREPLACE if slot is None else libc.RENAME_EXCHANGE)
    if stat.S_ISDIR(found.st_mode):
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=there)


def _resemble(here: int, there: int, step: Step) -> None:
    """Let the layer's directory stand for one that was removed from the project."""
    make_parents(there, step.name)
    copy_directory(here, there, step.name)
    if step.change.before is not None:
        os.chmod(step.name, step.change.before.mode, dir_fd=there)
