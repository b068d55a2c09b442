"""Find the parts of a home that programs need: tools with their installations, and nothing else.

A directory on `PATH` is shown with the installation it belongs to. From there, links, the first lines of scripts and
`pyvenv.cfg` lead to more. `core/installations.py` lists places that are not found in this way, variables that name
some, and how an installation looks. Files that a command may have written are not followed, except to the Python that
a virtual environment is based on.
"""

from __future__ import annotations

import os
import stat
from binascii import b2a_base64

from fumehood.core import installations
from fumehood.core.credentials import addresses_in, may_hold_secret
from fumehood.core.environment import has_known_token
from fumehood.core.masks import HOME_SECRETS
from fumehood.core.paths import is_below
from fumehood.core.value import Value
from fumehood.linux.cache import Lookup, Snapshot, plain_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_MOST_SAMPLE_FILES = 50  # that are examined to see whether a directory holds programs
_MOST_INSTALLATIONS = 1000  # searched for secrets
_DEEPEST = 4  # levels of collections of installations
_MOST_SINGLE_FILES = 64  # programs that are shown as single files: each needs a mount
_MOST_SHOWN = 256
_MOST_FOLDERS = 400  # of one root, of a collection of environments, or below directories of programs
_MOST_PROGRAMS = 1000  # whose links and interpreters are followed
_TASK_ENVIRONMENTS = (".direnv", ".hatch", ".nox", ".tox", ".venvs")  # in each of these is an environment for each task
_NOT_ENVIRONMENTS = frozenset({".git", "node_modules"})
_LONGEST_RECORD, _LONGEST_SCRIPT = 1 << 20, 1 << 14
_MOST_SCRIPTS = 500  # searched for tokens and keys
_LONG_SHEBANG = b"'''exec' "  # pip's form of a first line that is too long for the kernel


class VisibleTools(Value):
    """The parts of the homes that are shown, each with the reason in words for people.

    `folders` are real paths of directories or single files. `links` must be made again: path, target, reason. `masked`
    are paths in the folders that must be hidden. The result is valid as long as `watched` is.
    """

    folders: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str, str], ...]
    masked: tuple[str, ...]
    watched: Snapshot


def find_tools(
    homes: Sequence[str], environment: Mapping[str, str], roots: Sequence[str], *, written: Iterable[str] = (),
    hidden: Iterable[str] = (),
) -> VisibleTools:  # fmt: skip
    """Find the parts of the homes that programs need; homes and roots are real paths.

    The environment must be the person's own: a variable that a command has set could make anything visible. `written`
    are other places that commands write, such as other projects; `hidden` are a person's masks and our own state.
    """
    search = _ToolSearch(Homes(homes, environment, (*roots, *written), hidden))
    for path in search.homes.values("PATH"):
        search.show_programs(path, "on PATH")
    search.search_all()
    search.show_variables()
    for home in homes:
        search.show_tool_homes(home)
        search.show_environments(home, roots)
    for root in roots:
        search.show_bases(root)
    return search.visible_tools()


class Homes:
    """One or two homes, with the places that commands write and those that are masked.

    An installation is recognised by its files, so that tools need not be known by name; in doubt it is not one.
    """

    def __init__(
        self, homes: Sequence[str], environment: Mapping[str, str], written: Iterable[str], hidden: Iterable[str]
    ) -> None:
        self.disk = Lookup(homes)
        self.homes = tuple(homes)
        self._below_homes = tuple(f"{home}/" for home in homes)
        self._environment = environment
        self._written = tuple(f"{place}/" for place in written)
        self._settings = {*self._places([".config"]), *self._paths_in_variable("XDG_CONFIG_HOME")}
        # Too many programs share these to show them whole.
        self.common = set(self._places(installations.SHARED_DIRECTORIES))
        for _, variable in installations.MOVABLE_DIRECTORIES:
            self.common.update(self._paths_in_variable(variable))
        moved = {place for name in installations.SECRET_PATH_VARIABLES for place in self._paths_in_variable(name)}
        self.moved_secrets = {place for place in moved if not self._is_shared(place)}
        self._hidden = tuple(f"{place}/" for place in (*hidden, *self._masked_by_name(), *self.moved_secrets))
        self._installations_left = _MOST_INSTALLATIONS
        self._scripts_left = _MOST_SCRIPTS
        self._folders_left = _MOST_FOLDERS

    def values(self, variable: str) -> list[str]:
        """Return the absolute paths that a variable holds."""
        return installations.paths_in_variable(self._environment, variable)

    def _places(self, places: Iterable[str]) -> Iterator[str]:
        """Yield places in the homes, each by its name and by its real path."""
        for home in self.homes:
            for place in places:
                path = f"{home}/{place}".rstrip("/")
                yield from {path, self.disk.resolve(path)[0]} - {""}

    def _paths_in_variable(self, variable: str) -> list[str]:
        return [self.disk.resolve(path)[0] or os.path.normpath(path) for path in self.values(variable)]

    def usual_place(self, home: str, place: str) -> str:
        """Return the path of a usual place in a home, or the path that a variable says instead."""
        for folder, variable in installations.MOVABLE_DIRECTORIES:
            if is_below(place, folder) and (paths := self.values(variable)):
                return paths[0] + place[len(folder) :]
        return f"{home}/{place}"

    def _masked_by_name(self) -> Iterator[str]:
        """Yield the masked paths in the homes, and the targets of those that are links."""
        for home in self.homes:
            for place, _ in HOME_SECRETS:
                yield f"{home}/{place}"
                folder, _, name = place.rpartition("/")
                real_folder = self.disk.resolve(f"{home}/{folder}")[0]
                if real_folder:
                    # Only links are watched here: `survey`, which mounts the masks, watches for new ones.
                    is_link = os.path.islink(f"{real_folder}/{name}")
                    real = self.disk.resolve(f"{real_folder}/{name}")[0] if is_link else f"{real_folder}/{name}"
                    if real and not self._is_shared(real):
                        yield real

    def _is_shared(self, path: str) -> bool:
        """Return True if a directory also holds tools, so that it must not be hidden."""
        return path in self.common or any(home.startswith(f"{path}/") for home in self._below_homes)

    def describe(self, path: str) -> str:
        """Return a path as people write it, with `~`."""
        home = next((home for home in self.homes if is_below(path, home)), "")
        return f"~{path[len(home) :]}" if home else path

    def is_in_homes(self, path: str) -> bool:
        """Return True if a path lies in a home."""
        return path.startswith(self._below_homes)

    def can_show(self, path: str) -> bool:
        """Return True if a path lies in a home, in no root, and nowhere that is masked."""
        inner = f"{path}/"
        if not self.is_in_homes(path) or any(home.startswith(inner) for home in self._below_homes):
            return False
        return not inner.startswith(self._written) and not inner.startswith(self._hidden)

    def is_writable_by_commands(self, path: str) -> bool:
        """Return True if commands may have written a path: in a root, or in a git work tree, which may be one."""
        if f"{path}/".startswith(self._written):
            return True
        for home in self._below_homes:
            end = len(home)
            if not path.startswith(home) or path.startswith(".", end):
                continue
            while end > 0:
                end = path.find("/", end + 1)
                if self.disk.exists(f"{path if end < 0 else path[:end]}/.git"):
                    return True
        return False

    def is_installation(self, path: str) -> bool:
        """Return True if a directory is the installation of a tool, not a person's settings or work."""
        if path in self.common or os.path.dirname(path) in self._settings or not self.can_show(path):
            return False
        names = self.disk.listing(path)
        is_manager = not installations.MANAGER_SIGNS.isdisjoint(names)
        if not installations.WORK_SIGNS.isdisjoint(names):
            return is_manager and os.path.basename(path).startswith(".")
        if self.is_writable_by_commands(path) or any(place.startswith(f"{path}/") for place in self._written):
            return False
        if installations.CONDA_SIGN in names or (is_manager and "/." in self.describe(path)):
            return True
        # Its maker's licence or version file is in it, or nothing but parts of an installation.
        files = [name for name, kind in names.items() if kind != "d"]
        has_version_file = not installations.VERSION_FILES.isdisjoint(files)
        has_makers_file = has_version_file or any(name.startswith(installations.LICENCE_STARTS) for name in files)
        has_only_parts = all(name in installations.INSTALLATION_PARTS or name.startswith(".") for name in names)
        return not installations.INSTALLATION_SIGNS.isdisjoint(names) and (has_makers_file or has_only_parts)

    def holds_programs(self, path: str) -> bool:
        """Return True if a directory is for programs: by its name, or because most of its files are programs."""
        names = self.disk.listing(path)
        if not installations.REPOSITORY_SIGNS.isdisjoint(names) or os.path.dirname(path) in self._settings:
            return False
        if os.path.basename(path) in installations.PROGRAM_DIRECTORIES:
            return True
        files = [name for name, kind in sorted(names.items()) if kind == "f"][:_MOST_SAMPLE_FILES]
        executable = [name for name in files if self.disk.mode(f"{path}/{name}") & 0o111]
        return path not in self.common and len(executable) * 2 > len(files)

    def has_python(self, prefix: str) -> bool:
        """Return True if a Python is installed there: like Python itself, we recognise its library by `os.py`."""
        programs = self.disk.listing(f"{prefix}/bin")
        libraries = [name for name in self.disk.listing(f"{prefix}/lib") if name.startswith(("python", "pypy"))]
        return any(name.startswith(("python", "pypy")) for name in programs) and any(
            self.disk.exists(f"{prefix}/lib/{name}/os.py") for name in libraries
        )

    def secrets_in(self, folder: str) -> tuple[list[str], list[str]] | None:
        """Return the files with passwords in an installation or a collection of installations, and the links in it.

        Return None for a browser's profile, and if there are too many installations to examine.
        """
        secrets: list[str] = []
        links: list[str] = []
        waiting = [(folder, 0)]
        while waiting:
            if not self._installations_left:
                return None
            self._installations_left -= 1
            path, depth = waiting.pop()
            if depth == 0 and self.is_browser_profile(path):
                return None
            listing = self.disk.listing(path)
            names = {name: kind for name, kind in listing.items() if name not in installations.REPOSITORY_SIGNS}
            secrets += [f"{path}/{name}" for name in listing if name not in names]
            is_collection = os.path.basename(path) in installations.COLLECTION_DIRECTORIES
            is_collection = is_collection or (depth > 0 and "bin" not in names)
            if not is_collection:
                secrets += self._secrets_of(path, names)
            is_manager = installations.CONDA_SIGN in names or not installations.MANAGER_SIGNS.isdisjoint(names)
            for name, kind in sorted(names.items()) if depth < _DEEPEST else ():
                if kind == "d" and (is_collection or (is_manager and name in installations.COLLECTION_DIRECTORIES)):
                    waiting.append((f"{path}/{name}", depth + 1))
                elif kind == "l" and is_collection:
                    links.append(f"{path}/{name}")
        return secrets, links

    def _secrets_of(self, path: str, names: Mapping[str, str]) -> Iterator[str]:
        for folder in (path, *(f"{path}/{part}" for part in ("conf", "etc") if part in names)):
            for name, kind in self.disk.listing(folder).items():
                if kind == "d":
                    continue
                inner = f"{folder}/{name}"
                has_word = any(word in name.lower() for word in installations.SECRET_WORDS)
                # `secret-tool` is a program.
                if self._is_private(inner, name) or (has_word and not self.disk.mode(inner) & 0o111):
                    yield inner
        if not (installations.INSTALLATION_SIGNS | installations.MANAGER_SIGNS).isdisjoint(names):
            folders = (f"{path}/{name}" for name in names.keys() - installations.INSTALLATION_PARTS)
            yield from filter(self.is_browser_profile, folders)
        if "pyvenv.cfg" in names or installations.CONDA_SIGN in names:
            hooks = [f"{path}/{hook}" for hook in installations.ENVIRONMENT_HOOKS]
            yield from filter(self.disk.exists, hooks)
        records = [name for name, kind in names.items() if kind == "f" and name.endswith(installations.RECORD_ENDS)]
        records += [record for record in installations.RECORD_PATHS if record.partition("/")[0] in names]
        yield from (f"{path}/{record}" for record in records if self._holds_secret(f"{path}/{record}"))

    def secrets_below(self, folder: str, *, are_own: bool) -> Iterator[str]:
        """Yield what is secret in a directory of programs and below it; if they are a person's own, by content too.

        What would be too much to look through is not shown, save installed packages.
        """
        waiting = [folder]
        while waiting:
            path = waiting.pop(0)
            for name, kind in sorted(self.disk.listing(path).items()):
                inner = f"{path}/{name}"
                if kind == "d" and name not in installations.PACKAGE_DIRECTORIES:
                    self._folders_left -= 1
                    is_secret = name in installations.REPOSITORY_SIGNS or self.is_browser_profile(inner)
                    if is_secret or self._folders_left < 0:
                        yield inner
                    else:
                        waiting.append(inner)
                elif kind == "f" and (self._is_private(inner, name) or (are_own and self.holds_token_or_key(inner))):
                    yield inner

    def is_browser_profile(self, path: str) -> bool:
        """Return True if a browser keeps what it knows of a person in a directory."""
        if any(self.disk.exists(f"{path}/{sign}") for sign in installations.BROWSER_PROFILE_SIGNS):
            return True
        return self.disk.exists(f"{path}/Default") and self.disk.exists(f"{path}/Default/Cookies")

    def _is_private(self, path: str, name: str) -> bool:
        """Return True if a file is secret by its name, or is no mere certificate."""
        if name.endswith(".pem") and stat.S_ISREG(self.disk.mode(path)):
            content = plain_file(path, most=_LONGEST_RECORD) or b""
            return len(content) >= _LONGEST_RECORD or b"PRIVATE KEY" in content or b"BEGIN CERTIFICATE" not in content
        is_private = name in installations.SECRET_FILES or name.startswith(installations.SECRET_STARTS)
        return is_private or name.endswith(installations.SECRET_ENDS)

    def holds_token_or_key(self, path: str) -> bool:
        """Return True if a text contains the token of a service or a private key."""
        self._scripts_left -= 1
        if self._scripts_left < 0 or not stat.S_ISREG(self.disk.mode(path)):
            return False
        content = plain_file(path, most=_LONGEST_SCRIPT) or b""
        if content.startswith(b"\x7fELF"):
            return False
        has_key = any(line.startswith(b"-----BEGIN ") and b"PRIVATE KEY" in line for line in content.splitlines())
        return has_key or has_known_token(os.fsdecode(content))

    def _holds_secret(self, path: str) -> bool:
        """Return True if an installer's record has credentials in it, or is too long to be examined."""
        if not stat.S_ISREG(self.disk.mode(path)):
            return False
        content = plain_file(path, most=_LONGEST_RECORD) or b""
        text = os.fsdecode(content)
        # conda puts a token into the path of an address.
        has_token = any(installations.CONDA_TOKEN_PREFIX in address for address in addresses_in(text))
        return len(content) >= _LONGEST_RECORD or has_token or may_hold_secret(text)


class _ToolSearch:
    """One search through the homes."""

    def __init__(self, homes: Homes) -> None:
        self.homes = homes
        self._disk = homes.disk
        self._folders: dict[str, str] = {}
        self._prefixes: tuple[str, ...] = ()  # the shown folders, with a slash: paths inside begin with one of these
        self._links: dict[str, tuple[str, str]] = {}
        self._masked: set[str] = set()
        self._followed: set[str] = set()  # programs, and directories of programs
        self._waiting: list[tuple[str, str]] = []  # directories of programs to show, each with the reason
        self._interpreters: list[tuple[str, str]] = []
        self._programs_left = _MOST_PROGRAMS
        self._single_files_left = _MOST_SINGLE_FILES

    def show_variables(self) -> None:
        """Show the installations, libraries and single programs that variables name."""
        for name in installations.INSTALLATION_VARIABLES:
            for path in self.homes.values(name):
                self.show_programs(f"{path}/bin", name)
                real = self._follow(path, name)
                if real and self.homes.is_installation(real):
                    self._add(real, name)
        for name in installations.LIBRARY_VARIABLES:
            for path in self.homes.values(name):
                real = self._follow(path, name)
                above, _, last = real.rpartition("/")
                if real and self.homes.is_installation(above):
                    self._add(above, name)
                elif last in installations.LIBRARY_DIRECTORIES and not self.homes.is_writable_by_commands(real):
                    self._show_part(real, name)
        for name in installations.PROGRAM_VARIABLES:
            for path in self.homes.values(name):
                self._show_program(path, name)

    def show_tool_homes(self, home: str) -> None:
        """Show the parts of a home that known tools have as their own."""
        for place in installations.HARMLESS_SETTINGS:
            self._show_part(self.homes.usual_place(home, place), "settings of programs")
        for variable, place, parts in installations.TOOL_HOMES:
            paths, why = self.homes.values(variable), variable
            if not paths and place:
                paths, why = [self.homes.usual_place(home, place)], f"tools in ~/{place}"
            for path in paths:
                self._show_tool_home(path, parts.split(), why)

    def _show_tool_home(self, path: str, parts: Sequence[str], why: str) -> None:
        real = self._follow(path, why)
        if not real or not self.homes.is_in_homes(real):
            return
        for part in parts:
            if part == ".":
                if self.homes.is_installation(real):
                    self._add(real, why)
            elif part.endswith("*"):
                above, _, start = f"{real}/{part[:-1]}".rpartition("/")
                folder = self._follow(above, why)
                for name in self._disk.listing(folder) if folder else ():
                    if name.startswith(start):
                        self._show_part(f"{folder}/{name}", why)
            else:
                self._show_part(f"{real}/{part}", why)

    def _show_part(self, path: str, why: str) -> None:
        real = self._follow(path, why)
        if not real or not installations.REPOSITORY_SIGNS.isdisjoint(self._disk.listing(real)):
            return
        if self._add(real, why) and os.path.basename(real) in installations.PROGRAM_DIRECTORIES:
            self._waiting.append((real, why))

    def show_environments(self, home: str, roots: Sequence[str]) -> None:
        """Show the virtual environments that tools keep in the home for a root."""
        for variable, place in installations.ENVIRONMENT_COLLECTIONS:
            for path in self.homes.values(variable) or [self.homes.usual_place(home, place)]:
                collection = self._follow(path, variable)
                names = self._disk.listing(collection) if collection else {}
                marks = _poetry_marks(roots) if any("-py" in name for name in names) else ()
                for name in list(names)[:_MOST_FOLDERS]:
                    inner = f"{collection}/{name}"
                    if any(mark in name for mark in marks) or self._disk.settings(inner, ".project").strip() in roots:
                        self.show_programs(f"{inner}/bin", "an environment of the project")

    def show_bases(self, root: str) -> None:
        """Show the Pythons that virtual environments of a root are based on."""
        # Only the usual places: if we listed the root, every new file in it would make another search necessary.
        folders = [f"{root}/{name}" for name in (".venv", "venv", "env")]
        for name in _TASK_ENVIRONMENTS:
            names = sorted(self._disk.listing(f"{root}/{name}").items())
            inner = [each for each, kind in names if kind == "d" and each not in _NOT_ENVIRONMENTS]
            folders += [f"{root}/{name}/{each}" for each in inner[:_MOST_FOLDERS]]
        for folder in (root, *folders[:_MOST_FOLDERS]):
            self._show_base(folder)

    def show_programs(self, path: str, why: str) -> None:
        """Show a directory of programs, with the installation it belongs to and what its programs need."""
        real = self._follow(path, why)
        if real and self.homes.is_in_homes(real):
            self._waiting.append((real, why))

    def _show_folder(self, real: str, why: str) -> None:
        above, _, name = real.rpartition("/")
        is_alone = False  # not part of an installation
        if self.homes.can_show(real) and self._disk.listing(real):
            if node_modules := _node_modules_of(real):
                self._add(node_modules, why)
            elif name in installations.PROGRAM_DIRECTORIES and self.homes.is_installation(above):
                self._add(above, why)
            elif self.homes.is_installation(real):
                self._add(real, why)
            elif name in installations.PROGRAM_DIRECTORIES and self._disk.exists(f"{above}/pyvenv.cfg"):
                for part in installations.ENVIRONMENT_PARTS:
                    self._show_part(f"{above}/{part}", why)
            else:
                is_alone = True
                self._show_folder_alone(real, why)
            if f"{real}/".startswith(self._prefixes) and not _node_modules_of(real):
                self._masked.update(self.homes.secrets_below(real, are_own=is_alone))
        self._show_base(above)
        if not self.homes.is_writable_by_commands(real):
            self._follow_programs(real, with_interpreters=is_alone)

    def _follow_programs(self, folder: str, *, with_interpreters: bool) -> None:
        """Follow the links in a directory of programs; `with_interpreters`, also the first lines of scripts."""
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
                if self._single_files_left and _is_program(self._disk.head(f"{real}/{name}")):
                    self._add_single(f"{real}/{name}", why)

    def _show_program(self, path: str, why: str) -> None:
        """Show the directory of programs that has a program, or its installation, or the file alone."""
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
        is_writable_by_commands = self.homes.is_writable_by_commands(folder)
        if node_modules := _node_modules_of(real):
            self._add(node_modules, why)
        elif os.path.basename(folder) in installations.PROGRAM_DIRECTORIES and not is_writable_by_commands:
            self._waiting.append((folder, why))
        elif self.homes.is_installation(folder):
            self._add(folder, why)
        else:
            self._add_single(real, why)
        if not is_writable_by_commands:
            self._show_interpreter(head, os.path.basename(real))

    def _show_interpreter(self, head: bytes, name: str) -> None:
        self._interpreters += [(path, f"interpreter of {name}") for path in _interpreters(head)]

    def _show_base(self, prefix: str) -> None:
        """Show the Python that a virtual environment is based on.

        If a command could have written the environment's settings, only a complete Python is shown.
        """
        if not self._disk.exists(f"{prefix}/pyvenv.cfg"):
            return
        why = f"base of {self.homes.describe(prefix)}"
        lines = [line.partition("=") for line in self._disk.settings(prefix, "pyvenv.cfg").splitlines()]
        folders = [value.strip() for key, _, value in lines if key.strip().lower() == "home"][:1]
        if self.homes.is_writable_by_commands(prefix):
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
        for link, target in links:
            # Only links that lead to this Python are needed; others would reveal their targets.
            real_target = self._disk.resolve(link)[0]
            if (real_target == prefix or is_below(prefix, real_target)) and self.homes.can_show(link):
                self._links.setdefault(link, (target, why))

    def _follow(self, path: str, why: str) -> str:
        """Resolve a path and show the links on the way; return "" if a command could have made one of them."""
        if not path.startswith("/"):
            return ""
        real, links = self._disk.resolve(path)
        if any(self.homes.is_writable_by_commands(os.path.dirname(link)) for link, _ in links):
            return ""
        for link, target in links:
            if self.homes.can_show(link):
                self._links.setdefault(link, (target, why))
        return real

    def _add_single(self, path: str, why: str) -> None:
        if self._single_files_left and not self.homes.holds_token_or_key(path) and self._add(path, why):
            self._single_files_left -= 1

    def _add(self, path: str, why: str) -> bool:
        """Show a directory or a file; return False if it can't be shown."""
        if f"{path}/".startswith(self._prefixes):
            return True
        if len(self._folders) >= _MOST_SHOWN or not self.homes.can_show(path):
            return False
        secrets_and_links = self.homes.secrets_in(path)
        if secrets_and_links is None:
            return False
        for inner in [folder for folder in self._folders if is_below(folder, path)]:
            del self._folders[inner]
        self._folders[path] = why
        self._prefixes += (f"{path}/",)
        secrets, links = secrets_and_links
        self._masked.update(secrets)
        for link in links:
            self.show_programs(f"{link}/bin", f"link {os.path.basename(link)}")
        return True

    def search_all(self) -> None:
        """Show all directories of programs and interpreters that were found, and what they lead to."""
        while self._waiting or self._interpreters:
            if self._interpreters:
                self._show_program(*self._interpreters.pop())
                continue
            real, why = self._waiting.pop(0)
            if real not in self._followed:
                self._followed.add(real)
                self._show_folder(real, why)

    def visible_tools(self) -> VisibleTools:
        self.search_all()
        self._masked.update(self.homes.moved_secrets)
        links = [path for path in sorted(self._links) if not path.startswith(self._prefixes)]
        return VisibleTools(
            folders=tuple(sorted(self._folders.items())),
            links=tuple((path, *self._links[path]) for path in links),
            masked=tuple(path for path in sorted(self._masked) if path.startswith(self._prefixes)),
            watched=self._disk.watched,
        )


def _node_modules_of(path: str) -> str:
    """Return the outermost `node_modules` that contains a path, or ""."""
    above, between, _ = f"{path}/".partition("/node_modules/")
    return f"{above}/node_modules" if between else ""


def _is_program(head: bytes) -> bool:
    return head.startswith((b"#!", b"\x7fELF"))


def _interpreters(head: bytes) -> Iterator[str]:
    """Yield the interpreters that a script names in its first line, or in the second if the first would be too long."""
    if not head.startswith(b"#!"):
        return
    first, _, rest = head[2:].partition(b"\n")
    yield from (os.fsdecode(word) for word in first.split() if word.startswith(b"/"))
    if rest.startswith(_LONG_SHEBANG):
        line = rest[len(_LONG_SHEBANG) :].partition(b"\n")[0]
        quote = line[:1]
        yield os.fsdecode(line[1:].partition(quote)[0] if quote in (b"'", b'"') else line.partition(b" ")[0])


def _poetry_marks(roots: Sequence[str]) -> tuple[str, ...]:
    """Return the parts that poetry puts into the names of projects' environments."""
    from hashlib import sha256

    digests = [b2a_base64(sha256(os.fsencode(root)).digest())[:8].decode("ascii") for root in roots]
    return tuple("-" + digest.replace("+", "-").replace("/", "_") + "-py" for digest in digests)
