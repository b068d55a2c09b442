"""Find what of a home programs need: the tools with their installations, and nothing else.

A directory on `PATH` is shown with the installation it belongs to; links, the first lines of scripts and `pyvenv.cfg`
lead on from there; variables and places that can't be derived are in `linux/homes.py`. What a command can have
written is not followed: it leads to the Python that a virtual environment is based on, and to nothing else.
"""

from __future__ import annotations

import os

from fumehood.core.masks import is_below
from fumehood.core.value import Value
from fumehood.linux import homes
from fumehood.linux.homes import Homes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fumehood.linux.cache import Snapshot

_MOST_SINGLE = 64  # programs that are shown as files, for each is a mount
_MOST_SHOWN = 256
_MOST_FOLDERS = 400  # of one root, or of a collection of environments
_MOST_PROGRAMS = 1000  # followed in all
_USUAL_ENVIRONMENTS = (".venv", "venv", "env")
_OF_TASKS = (".direnv", ".hatch", ".nox", ".tox", ".venvs")  # have an environment for each of some tasks
_NOT_LOOKED_INTO = frozenset({".git", "node_modules"})
_LONG_SHEBANG = b"'''exec' "  # how pip writes one that is longer than the kernel reads


class InSight(Value):
    """What of the homes is shown, each with the reason, in words for people.

    `folders` are real paths of directories, or of single files. `links` are made again: path, target, reason.
    `masked` lies inside of the folders and must be hidden there. The answer holds while `watched` is current.
    """

    folders: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str, str], ...]
    masked: tuple[tuple[str, str], ...]
    watched: Snapshot


def tools_in_sight(
    homes: Sequence[str], environment: Mapping[str, str], roots: Sequence[str], *, written: Iterable[str] = (),
    hidden: Iterable[str] = (),
) -> InSight:  # fmt: skip
    """Find what programs need of the homes; homes and roots are real paths.

    The environment must be the person's own: a variable that a command set could show anything. `written` are other
    places that commands write, such as other projects; `hidden` is what a person masked, and our own state.
    """
    search = _Search(Homes(homes, environment, (*roots, *written), hidden))
    for path in search.homes.values("PATH"):
        search.show_programs(path, "on PATH")
    search.go_on()
    search.show_variables()
    for home in homes:
        search.show_tool_homes(home)
        search.show_environments(home, roots)
    for root in roots:
        search.show_bases(root)
    return search.answer()


class _Search:
    """One search through the homes."""

    def __init__(self, homes: Homes) -> None:
        self.homes = homes
        self._disk = homes.disk
        self._folders: dict[str, str] = {}
        self._prefixes: tuple[str, ...] = ()  # what is in sight, to compare with
        self._links: dict[str, tuple[str, str]] = {}
        self._masked: dict[str, str] = {}
        self._followed: set[str] = set()
        self._waiting: list[tuple[str, str]] = []  # directories of programs
        self._interpreters: list[tuple[str, str]] = []
        self._programs_left = _MOST_PROGRAMS
        self._singles_left = _MOST_SINGLE

    def show_variables(self) -> None:
        """Show what variables point to: installations, libraries and single programs."""
        for name in homes.INSTALLATIONS:
            for path in self.homes.values(name):
                self.show_programs(f"{path}/bin", name)
                real = self._follow(path, name)
                if real and self.homes.is_installation(real):
                    self._add(real, name)
        for name in homes.LIBRARIES:
            for path in self.homes.values(name):
                real = self._follow(path, name)
                above, _, last = real.rpartition("/")
                if real and self.homes.is_installation(above):
                    self._add(above, name)
                elif last in homes.LIBRARY_NAMES and not self.homes.is_written(real):
                    self._show_part(real, name)
        for name in homes.SINGLE_PROGRAMS:
            for path in self.homes.values(name):
                self._show_program(path, name)

    def show_tool_homes(self, home: str) -> None:
        """Show the usual places of tools, or where variables say that they are; and settings without secrets."""
        for place in homes.SETTINGS:
            self._show_part(self.homes.usual(home, place), "settings of programs")
        for variable, place, parts in homes.TOOL_HOMES:
            paths, why = self.homes.values(variable), variable
            if not paths and place:
                paths, why = [self.homes.usual(home, place)], f"tools in ~/{place}"
            for path in paths:
                self._show_tool_home(path, parts.split(), why)

    def _show_tool_home(self, path: str, parts: Sequence[str], why: str) -> None:
        real = self._follow(path, why)
        if not real or not self.homes.contain(real):
            return
        for part in parts:
            if part == ".":
                if self.homes.is_installation(real):
                    self._add(real, why)
            elif part.endswith("*"):
                for name in self._disk.listing(real):
                    if name.startswith(part[:-1]):
                        self._show_part(f"{real}/{name}", why)
            else:
                self._show_part(f"{real}/{part}", why)

    def _show_part(self, path: str, why: str) -> None:
        real = self._follow(path, why)
        if not real or not homes.VERSIONED.isdisjoint(self._disk.listing(real)):
            return
        if self._add(real, why) and os.path.basename(real) in homes.PROGRAMS:
            self._waiting.append((real, why))

    def show_environments(self, home: str, roots: Sequence[str]) -> None:
        """Show the virtual environments that tools keep in the home for a root."""
        for variable, place in homes.ENVIRONMENTS:
            for path in self.homes.values(variable) or [self.homes.usual(home, place)]:
                collection = self._follow(path, variable)
                names = self._disk.listing(collection) if collection else {}
                marks = _poetry_marks(roots) if any("-py" in name for name in names) else ()
                for name in list(names)[:_MOST_FOLDERS]:
                    inner = f"{collection}/{name}"
                    if any(mark in name for mark in marks) or self._disk.settings(inner, ".project").strip() in roots:
                        self.show_programs(f"{inner}/bin", "an environment of the project")

    def show_bases(self, root: str) -> None:
        """Show the Pythons that virtual environments in a root are based on."""
        # Those at their usual places: to list the root would cost another search for every file that is made there.
        folders = [f"{root}/{name}" for name in _USUAL_ENVIRONMENTS]
        for name in _OF_TASKS:
            names = sorted(self._disk.listing(f"{root}/{name}").items())
            inner = [each for each, kind in names if kind == "d" and each not in _NOT_LOOKED_INTO]
            folders += [f"{root}/{name}/{each}" for each in inner[:_MOST_FOLDERS]]
        for folder in (root, *folders[:_MOST_FOLDERS]):
            self._show_base(folder)

    def show_programs(self, path: str, why: str) -> None:
        """Show a directory of programs, with the installation it belongs to and what its programs need."""
        real = self._follow(path, why)
        if real and self.homes.contain(real):
            self._waiting.append((real, why))

    def _show_folder(self, real: str, why: str) -> None:
        above, _, name = real.rpartition("/")
        is_alone = False
        if self.homes.can_show(real) and self._disk.listing(real):
            if packages := _packages(real):
                self._add(packages, why)
            elif name in homes.PROGRAMS and self.homes.is_installation(above):
                self._add(above, why)
            elif self.homes.is_installation(real):
                self._add(real, why)
            elif name in homes.PROGRAMS and self._disk.exists(f"{above}/pyvenv.cfg"):
                for part in homes.ENVIRONMENT:
                    self._show_part(f"{above}/{part}", why)
            else:
                is_alone = True
                self._show_folder_alone(real, why)
        self._show_base(above)
        if not self.homes.is_written(real):
            self._lead_on(real, with_interpreters=is_alone)

    def _lead_on(self, folder: str, *, with_interpreters: bool) -> None:
        """Follow the links in a directory of programs, and the first lines where there is no installation around."""
        for name, kind in sorted(self._disk.listing(folder).items()):
            if kind == "l":
                self._show_program(f"{folder}/{name}", f"program {name}")
            elif kind == "f" and with_interpreters:
                self._show_interpreter(self._disk.head(f"{folder}/{name}"), name)

    def _show_folder_alone(self, real: str, why: str) -> None:
        """Show a directory whole if it holds programs, else the programs in it one by one."""
        if self.homes.holds_programs(real):
            self._add(real, why)
        elif real not in self.homes.common:
            files = [name for name, kind in sorted(self._disk.listing(real).items()) if kind == "f"]
            for name in files:
                if self._singles_left and _is_program(self._disk.head(f"{real}/{name}")):
                    self._add_single(f"{real}/{name}", why)

    def _show_program(self, path: str, why: str) -> None:
        """Show what one program needs: its directory of programs, or its installation, or the file alone."""
        if not self._programs_left:
            return
        self._programs_left -= 1
        real = self._follow(path, why)
        folder = os.path.dirname(real)
        if not real or not self._followed.isdisjoint((real, folder)) or not self.homes.can_show(real):
            return
        self._followed.add(real)
        head = self._disk.head(real)
        if not _is_program(head):
            return
        is_written = self.homes.is_written(folder)
        if packages := _packages(real):
            self._add(packages, why)
        elif os.path.basename(folder) in homes.PROGRAMS and not is_written:
            self._waiting.append((folder, why))
        elif self.homes.is_installation(folder):
            self._add(folder, why)
        else:
            self._add_single(real, why)
        if not is_written:
            self._show_interpreter(head, os.path.basename(real))

    def _show_interpreter(self, head: bytes, name: str) -> None:
        self._interpreters += [(path, f"interpreter of {name}") for path in _interpreters(head)]

    def _show_base(self, prefix: str) -> None:
        """Show the Python that a virtual environment is based on.

        Where a command could have written what says so, anything else than a whole Python is not shown.
        """
        if not self._disk.exists(f"{prefix}/pyvenv.cfg"):
            return
        why = f"base of {self.homes.named(prefix)}"
        lines = [line.partition("=") for line in self._disk.settings(prefix, "pyvenv.cfg").splitlines()]
        folders = [value.strip() for key, _, value in lines if key.strip().lower() == "home"][:1]
        if self.homes.is_written(prefix):
            targets = [self._disk.link(f"{prefix}/bin/{name}") or "" for name in ("python", "python3")]
            for folder in dict.fromkeys((*folders, *map(os.path.dirname, targets))):
                self._show_python(folder, why)
        else:
            for folder in folders:
                self.show_programs(folder, why)

    def _show_python(self, folder: str, why: str) -> None:
        real, links = self._disk.resolve(folder) if folder.startswith("/") else ("", ())
        prefix, _, name = real.rpartition("/")
        if name != "bin" or not self.homes.is_installation(prefix) or not self.homes.has_python(prefix):
            return
        self._add(prefix, why)
        for here, target in links:
            # Any other link would tell what it says, and is not needed to come here.
            to = self._disk.resolve(here)[0]
            if (to == prefix or is_below(prefix, to)) and self.homes.can_show(here):
                self._links.setdefault(here, (target, why))

    def _follow(self, path: str, why: str) -> str:
        """Return where a path leads, and have the links on the way made again; "" if a command could have made one."""
        if not path.startswith("/"):
            return ""
        real, links = self._disk.resolve(path)
        if any(self.homes.is_written(os.path.dirname(here)) for here, _ in links):
            return ""
        for here, target in links:
            if self.homes.can_show(here):
                self._links.setdefault(here, (target, why))
        return real

    def _add_single(self, path: str, why: str) -> None:
        if self._singles_left and self._add(path, why):
            self._singles_left -= 1

    def _add(self, path: str, why: str) -> bool:
        """Show a directory or a file; return False if it can't be shown."""
        if f"{path}/".startswith(self._prefixes):
            return True
        if len(self._folders) >= _MOST_SHOWN or not self.homes.can_show(path):
            return False
        inside = self.homes.secrets_in(path)
        if inside is None:
            return False
        for inner in [folder for folder in self._folders if is_below(folder, path)]:
            del self._folders[inner]
        self._folders[path] = why
        self._prefixes += (f"{path}/",)
        secrets, links = inside
        self._masked.update((secret, "settings of a tool that may hold passwords") for secret in secrets)
        for link in links:
            self.show_programs(f"{link}/bin", f"link {os.path.basename(link)}")
        return True

    def go_on(self) -> None:
        """Follow everything that waits, to its end."""
        while self._waiting or self._interpreters:
            if self._interpreters:
                self._show_program(*self._interpreters.pop())
                continue
            real, why = self._waiting.pop(0)
            if real not in self._followed:
                self._followed.add(real)
                self._show_folder(real, why)

    def answer(self) -> InSight:
        """Put the answer together."""
        self.go_on()
        self._masked.update((place, "secrets, by a variable") for place in self.homes.moved_secrets)
        inside = self._prefixes
        return InSight(
            folders=tuple(sorted(self._folders.items())),
            links=tuple((path, *self._links[path]) for path in sorted(self._links) if not path.startswith(inside)),
            masked=tuple((path, self._masked[path]) for path in sorted(self._masked) if path.startswith(inside)),
            watched=self._disk.watched,
        )


def _packages(path: str) -> str:
    """Return the outermost directory of packages for node that a path lies in, or ""."""
    above, between, _ = f"{path}/".partition("/node_modules/")
    return f"{above}/node_modules" if between else ""


def _is_program(head: bytes) -> bool:
    return head.startswith((b"#!", b"\x7fELF"))


def _interpreters(head: bytes) -> Iterator[str]:
    """Return the paths that a script's first line names, or its second where the first would be too long."""
    if not head.startswith(b"#!"):
        return
    first, _, rest = head[2:].partition(b"\n")
    yield from (os.fsdecode(word) for word in first.split() if word.startswith(b"/"))
    if rest.startswith(_LONG_SHEBANG):
        line = rest[len(_LONG_SHEBANG) :].partition(b"\n")[0]
        quote = line[:1]
        yield os.fsdecode(line[1:].partition(quote)[0] if quote in (b"'", b'"') else line.partition(b" ")[0])


def _poetry_marks(roots: Sequence[str]) -> tuple[str, ...]:
    """Return what poetry puts into the names of the environments of projects."""
    from binascii import b2a_base64
    from hashlib import sha256

    digests = [b2a_base64(sha256(os.fsencode(root)).digest())[:8].decode("ascii") for root in roots]
    return tuple("-" + digest.replace("+", "-").replace("/", "_") + "-py" for digest in digests)
