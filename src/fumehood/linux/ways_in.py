"""Which places in the roots the host acts on by itself, because something of the person's leads there.

Git's configuration, a link whose name a tool acts on (`.claude -> cfg/claude`), a link in the home
(`~/.bashrc -> dotfiles/bashrc`), a script or a server that `.envrc`, `.husky` or an agent's settings name, a directory
of PATH. All of it is as it was before the run, which is the person's own or was applied; so links are followed here, as
those programs follow them.
"""

from __future__ import annotations

import heapq
import os
import stat
import time

from fumehood.core.concern import (
    HELD_NAMES,
    HELD_SUFFIXES,
    PACKAGE_DIRECTORIES,
    ProtectedPaths,
    is_hook_manager,
    locate_in_roots,
    meaning_of,
    settings_name,
)
from fumehood.core.gitconfig import may_name_program, parse, split_key
from fumehood.core.gitdir import HOOKS
from fumehood.core.value import Value
from fumehood.core.what_runs import (
    begins_as_command,
    entered,
    files_run,
    goes_over_files,
    lines_of,
    named_paths,
    put_on_path,
    put_on_path_by_mise,
    read_by_direnv,
    tasks_at_opening,
)
from fumehood.core.wording import brief
from fumehood.linux.cache import TICK_NS, expand_home, load, resolve_links, save
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import DirectoryCache, open_top

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from fumehood.core.concern import Reason

    Seen = tuple[int, int, list[str], list[str]]  # when it changed, its inode; names of links, and of directories

_MOST_DIRECTORIES = 10_000  # of one root, the highest first: 14 µs each
_MOST_KEPT = 1000  # of those in which there was something
_LONGEST_PATH = 4096 - 256  # bytes, before a name: what is longer no program can open by its path
SYSTEM_PROGRAMS = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
_MOST_ROUNDS = 3  # of `cd` within one line
_LARGEST, _LONGEST_SCRIPT = 1 << 20, 1 << 16
_MOST_ENTERED = 8  # directories, by one script
_ENVIRONMENTS = frozenset((".venv", "venv"))  # made by whoever sets the project up
_SETTINGS = frozenset(("json", "jsonc", "toml", "yaml", "yml", "code-workspace", "lintstagedrc", "roomodes"))
# What these name, a person starts; but for tasks that an editor starts as soon as it opens the project.
_STARTED_BY_HAND = ("launch.json", "tasks.json", ".code-workspace")
_AT_OPENING = "folderOpen"


class Ways(ProtectedPaths):
    """The places in the roots that the host acts on, with what leads there."""

    def lead(self, directory: str, text: str, because: Reason, *, whole: bool = False) -> str:
        """Protect what a path leads to, and every link on its way; returns where that is."""
        *links, end = resolve_links(os.path.join(directory, text))
        for link in links:
            self.add(link, because)
        self.add(end, because, whole=whole)
        return end

    def holds(self, path: str) -> bool:
        """Return True if a path lies in one of the roots."""
        return locate_in_roots(path, self.roots) is not None


class ProjectTree:
    """What there is in a root that may lead somewhere: links, repositories, and files that tools act on by their names.

    `meaning` says whether a tool acts on a path in the root, and why. `memory` is a file of ours that keeps in which
    directories there was something: these come first, or a command could hide them among thousands of others.
    """

    def __init__(
        self, top: str, meaning: Callable[[str], Reason | None], is_passed_by: Callable[[str], bool], memory: str = ""
    ) -> None:
        self.repositories: list[str] = []
        self.links: list[tuple[str, str, Reason]] = []  # directory, name
        self.files: list[tuple[str, Reason]] = []
        self.mise: list[str] = []  # settings of that tool
        self._top = top
        self._meaning = meaning
        self._is_passed_by = is_passed_by
        before: list[str] = (memory and load(memory)) or []
        telling: list[str] = []
        waiting, looked_at = ["", *before], set[str]()
        with Closing(open_top(top)) as here, DirectoryCache(here, bounded=False) as parents:
            while waiting and len(looked_at) < _MOST_DIRECTORIES:
                level = [directory for directory in dict.fromkeys(waiting) if directory not in looked_at]
                directories, waiting = level[: _MOST_DIRECTORIES - len(looked_at)], []
                looked_at.update(directories)
                for directory in directories:
                    count = self._count
                    waiting += self._look(parents, directory)
                    if directory and self._count > count:
                        telling.append(directory)
        if memory and telling[:_MOST_KEPT] != before:
            save(memory, telling[:_MOST_KEPT])

    @property
    def _count(self) -> int:
        return len(self.repositories) + len(self.links) + len(self.files) + len(self.mise)

    def _look(self, parents: DirectoryCache, path: str) -> Iterator[str]:
        """Note what one directory holds; yields those in it that have a path which a program can name."""
        names = set()
        inner = f"{path}/" if path else ""
        directory = f"{self._top}/{path}" if path else self._top
        can_be_named = len(os.fsencode(directory)) < _LONGEST_PATH
        listing = parents.open_listing(path)
        if listing is None:
            return  # this user can't read it
        # Not closed before: an entry may be looked at through it.
        with Closing(listing), os.scandir(listing) as inside:
            for entry in inside:
                names.add(entry.name)
                if entry.is_symlink():
                    if (because := self._meaning(inner + entry.name)) is not None:
                        self.links.append((directory, entry.name, because))
                elif entry.is_dir(follow_symlinks=False):
                    if entry.name != ".git" and not self._is_passed_by(entry.name) and can_be_named:
                        yield inner + entry.name
                elif entry.name.endswith(".toml") and settings_name(entry.name, meaning_of(path)) == "mise.toml":
                    self.mise.append(f"{directory}/{entry.name}")
                elif _may_mean(inner, entry.name) and (because := self._meaning(inner + entry.name)) is not None:
                    self.files.append((f"{directory}/{entry.name}", because))
        if ".git" in names or names.issuperset(("HEAD", "objects", "refs")):
            self.repositories.append(directory)


def _may_mean(inner: str, name: str) -> bool:
    """Tell cheaply what files need a look: most have no `.` before their names, nor before one above them."""
    if name[0] == "." or inner[:1] == "." or "/." in inner:
        return True
    lower = name.lower()
    parent = inner.rstrip("/").rpartition("/")[2]
    return lower in HELD_NAMES or lower.rpartition(".")[2] in HELD_SUFFIXES or is_hook_manager(lower, parent)


def entries(directory: str) -> list[os.DirEntry[str]]:
    """Return what a directory holds; nothing where this user can't read it."""
    try:
        with os.scandir(directory) as inside:
            return list(inside)
    except OSError:
        return []


def protect_line(ways: Ways, line: str, bases: Sequence[str], home: str, because: Reason) -> None:
    """Protect what a line for a shell names, from where it is run and from wherever it may go by `cd`."""
    named = [(text, whole, plain) for path, whole, plain in named_paths(line) if (text := expand_home(path, home))]
    reached, waiting = set(bases), list(bases)
    for _ in range(_MOST_ROUNDS):
        entered: list[str] = []
        for base in waiting:
            for text, whole, may_only_be_entered in named:
                if may_only_be_entered:
                    place = resolve_links(os.path.join(base, text))[-1]
                else:
                    place = ways.lead(base, text, because, whole=whole)
                if place not in reached and ways.holds(place) and os.path.isdir(place):
                    entered.append(place)
        reached.update(entered)
        waiting = entered


def protect_script(ways: Ways, path: str, bases: Sequence[str], home: str, because: Reason) -> None:
    """Protect what a script names by a path, and what it runs: another plain word of it is nearly always no file."""
    runs = _Runs(ways, bases, home, because)
    for line in _lines(path):
        words = " ".join(word for word in line.split() if "/" in word and ("*" not in word or goes_over_files(line)))
        protect_line(ways, line if " -m " in line else words, bases, home, because)
        runs.protect(line)


def _lines(path: str) -> Iterator[str]:
    text = text_of(path)[:_LONGEST_SCRIPT]
    return (line for line in (() if "\0" in text else text.split("\n")) if not line.lstrip().startswith("#"))


class _Runs:
    """Protects what lines run, from where they are run and from wherever they have gone by `cd` so far.

    Not what an installer put there: packages, and programs of a virtual environment, have rules of their own.
    """

    def __init__(self, ways: Ways, bases: Sequence[str], home: str, because: Reason) -> None:
        self._ways = ways
        self._bases = list(bases)
        self._home = home
        self._because = because
        self._names: dict[str, frozenset[str]] = {}  # of the directories that lines are run in

    def protect(self, line: str) -> None:
        for path in entered(line):
            places = [resolve_links(place)[-1] for place in self._places(path)]
            if len(self._bases) < _MOST_ENTERED:
                inside = [each for each in places if self._ways.holds(each) and os.path.isdir(each)]
                self._bases += [each for each in inside if each not in self._bases]
        for path in files_run(line, lambda path: any(map(os.path.isfile, self._there(path))), self.is_program):
            for place in self._places(path):
                if not _is_installed(place):
                    self._ways.lead("/", place, self._because)

    def _places(self, path: str) -> list[str]:
        text = expand_home(path, self._home)
        return [os.path.join(base, text) for base in self._bases] if text else []

    def is_program(self, path: str) -> bool:
        return any(os.path.isfile(place) and os.access(place, os.X_OK) for place in self._there(path))

    def _there(self, path: str) -> Iterator[str]:
        """Yield where a path may be something: hardly any word of a line is."""
        text = expand_home(path, self._home) or ""
        first = text.removeprefix("./").partition("/")[0]  # "" of an absolute one
        for base in self._bases if text else ():
            if base not in self._names:
                self._names[base] = frozenset(entry.name for entry in entries(base))
            if first in ("", "..") or first in self._names[base]:
                yield os.path.join(base, text)


def _is_installed(place: str) -> bool:
    names = place.split("/")
    if not PACKAGE_DIRECTORIES.isdisjoint(names) or not _ENVIRONMENTS.isdisjoint(names):
        return True
    return os.path.exists(f"{os.path.dirname(os.path.dirname(place))}/pyvenv.cfg")


def protect_what_tools_reach(ways: Ways, tree: ProjectTree, root: str, home: str) -> None:
    """Protect what links lead to whose names tools act on by themselves, and what such scripts and settings run."""
    for directory, name, (flag, reason) in tree.links:
        ways.lead(directory, name, (flag, f"{reason}: the link {brief(name)} leads here"), whole=True)
    for path, (flag, _) in tree.files:
        because = (flag, f"{brief(os.path.basename(path))}, which runs by itself, names this")
        bases = tuple(dict.fromkeys((root, os.path.dirname(path))))
        name = os.path.basename(path).lower()
        if flag in ("shell-settings", "git-hook"):
            protect_script(ways, path, bases, home, because)
            for line in _lines(path) if flag == "shell-settings" else ():
                for place in read_by_direnv(line):
                    ways.lead(os.path.dirname(path), place, because)
        elif name.rpartition(".")[2] in _SETTINGS:
            text = text_of(path)
            if flag == "agent-settings" and name.endswith((".json", ".jsonc", ".toml")):
                from fumehood.core.settings_text import commands_in

                for line in commands_in(text, is_toml=name.endswith(".toml")):
                    protect_line(ways, line, bases, home, because)
            is_by_hand = name.endswith(_STARTED_BY_HAND)
            if is_by_hand and _AT_OPENING in text:
                text, is_by_hand = tasks_at_opening(text, _AT_OPENING), False
            if not is_by_hand:
                runs = _Runs(ways, bases, home, because)
                # What stands at a key that says so is run, and any text that begins as a command does.
                for line, is_run in lines_of(text):
                    if is_run or begins_as_command(line, runs.is_program):
                        runs.protect(line)
        elif flag == "hook-manager" or (flag == "editor-settings" and name in HELD_NAMES):
            runs = _Runs(ways, bases, home, because)
            for line in _lines(path):
                runs.protect(line)


def text_of(path: str) -> str:
    """Return what a file holds; nothing where it can't be read, or is too long for settings."""
    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)) as file:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return ""
            with open(file, "rb", closefd=False) as opened:
                data = opened.read(_LARGEST + 1)
    except (OSError, ValueError):
        return ""
    return "" if len(data) > _LARGEST else data.decode("utf-8", "surrogateescape")


def searched_first(tree: ProjectTree, root: str) -> list[str]:
    """Return the directories that `.envrc`, or mise, puts first on the PATH of whoever enters its own."""
    shells = (path for path, (flag, _) in tree.files if flag == "shell-settings")
    return [
        os.path.join(os.path.dirname(path), place) for path in shells for line in _lines(path)
        for place in put_on_path(line)
    ] + [
        os.path.join(base, place) for path in tree.mise for place in put_on_path_by_mise(text_of(path))
        for base in (os.path.dirname(path), root)
    ]  # fmt: skip


def protect_search_path(ways: Ways, added: Collection[str], path: str) -> None:
    """Protect new files in directories of PATH that would be run in place of a program that is on it behind them.

    A relative directory counts from the top of each root. Whoever installs a package means its commands: there, only
    the system's own programs count, and of those none that is a script of the same language.
    """
    entries_of_path = [os.path.join(root, each) for each in path.split(":") for root in ways.roots]
    listed = list(dict.fromkeys(map(os.path.realpath, dict.fromkeys(entries_of_path))))
    inside = {directory for directory in listed if ways.holds(directory)}
    for place in added if inside else ():
        directory, name = os.path.split(place)
        if directory not in inside:
            continue
        at = listed.index(directory)
        is_installed = _is_installed(place) or f"{os.path.dirname(directory)}/pyvenv.cfg" in added
        before, behind = listed[:at], SYSTEM_PROGRAMS if is_installed else (*listed[at + 1 :], *SYSTEM_PROGRAMS)
        replaced = next((f"{each}/{name}" for each in behind if os.path.isfile(f"{each}/{name}")), "")
        if not replaced or any(os.path.isfile(f"{each}/{name}") for each in before):
            continue
        head = text_of(replaced)[:64] if is_installed else ""
        is_script = head.startswith("#!") and ("python" in head or "node" in head)
        if not (is_installed and (name.startswith("python") or is_script)):
            because = ("shadows", f"would be run in place of {brief(replaced)}: its directory comes first on your PATH")
            ways.add(place, because)


# What git on the host runs or obeys in the roots, found as git finds it, without running git.
#
# Every file of settings counts: the system's, the person's, the repository's, those of its main repository, of one
# around the project or in it, and what they include. A condition of an include counts as met, because a command can
# switch branches. One setting hides another for git; here each counts.

_DEEPEST = 10  # files within files, as git has it
_TREES = frozenset(("core.hookspath", "init.templatedir"))
# Variables that hold a line for git to run.
_LINES = (
    "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "EDITOR", "VISUAL", "GIT_PAGER", "PAGER", "GIT_SSH_COMMAND", "GIT_SSH",
    "GIT_ASKPASS", "SSH_ASKPASS", "GIT_EXTERNAL_DIFF", "GIT_PROXY_COMMAND",
)  # fmt: skip


class GitDirectory(Value):
    """One repository: its own git directory, the one it shares with its main work tree, and its files."""

    directory: str
    common: str
    top: str


class Setting(Value):
    """One setting, who has it (a file, or the environment), and the home that `~` means in it."""

    key: str
    value: str
    source: str
    home: str

    @property
    def because(self) -> Reason:
        """Why what it names is held."""
        return "git-executed", f"git runs or obeys this: {brief(self.key)} in {brief(self.source)} leads here"


def protect_what_git_runs(
    ways: Ways, tops: Sequence[str], is_touched: Callable[[str], bool], homes: Sequence[str],
    environment: Mapping[str, str],
) -> None:  # fmt: skip
    """Protect what git runs or obeys in the repositories at some directories, and in those around the roots.

    What holds for every repository counts in those that a run has touched: its paths are found from their tops.
    """
    own = [each for home in homes for each in _persons_settings(ways, home, environment)]
    around = []
    for root in ways.roots:
        parts = root.rstrip("/").split("/")
        around += ["/".join(parts[:end]) or "/" for end in range(len(parts), 0, -1)]
    for top in dict.fromkeys((*tops, *around)):
        is_around = top in around
        repository = repository_at(top)
        if repository is not None:
            git_directories = [repository, *_submodules(repository.common)]
            settings = own if is_around or is_touched(top) else []
        elif top in tops:
            # New in this run.
            git_directories = [GitDirectory(directory=f"{top}/.git", common=f"{top}/.git", top=top)]
            settings = own
        else:
            continue
        for each in git_directories:
            _protect_one(ways, each, settings, homes[0])


def _protect_one(ways: Ways, repository: GitDirectory, persons: Sequence[Setting], home: str) -> None:
    files = (f"{repository.common}/config", f"{repository.directory}/config.worktree")
    settings = [*persons, *(each for file in files for each in _settings(ways, file, home))]
    work_trees = [_joined(repository.directory, each) for each in settings if each.key == "core.worktree"]
    bases = tuple(dict.fromkeys((repository.top, *filter(None, work_trees), repository.directory)))
    hooks: list[str] = []
    for setting in settings:
        if setting.key in _TREES:
            for base in bases:
                place = _joined(base, setting)
                hooks += [] if place is None else [ways.lead(base, place, setting.because, whole=True)]
        elif setting.key != "core.worktree" and (setting.value.startswith("!") or split_key(setting.key)[0] != "alias"):
            protect_line(ways, setting.value, bases, setting.home, setting.because)
    default = f"{repository.common}/hooks"
    if len(resolve_links(default)) == 1:
        # Nothing leads elsewhere, and what lies in a git directory is judged by its name.
        _protect_each_hook(ways, default, bases, home)
        hooks = [each for each in hooks if each != default]
    else:
        hooks.append(default)
    for directory in dict.fromkeys(hooks):
        because = ("git-hook", f"git runs its hooks from {brief(directory)}, which leads here")
        real = ways.lead("/", directory, because, whole=True)
        # Hooks beside the project's own files: only what git itself runs is one.
        for name in HOOKS if real in ways.roots else ():
            ways.lead(real, name, because)
        _protect_each_hook(ways, directory, bases, home)


def _protect_each_hook(ways: Ways, directory: str, bases: Sequence[str], home: str) -> None:
    """Protect what links among the hooks lead to, and what their scripts name."""
    for entry in entries(directory):
        if entry.name not in HOOKS:
            continue
        because = ("git-hook", f"the git hook {entry.name} leads here")
        if entry.is_symlink():
            ways.lead(directory, entry.name, because)
        if os.access(entry.path, os.X_OK):
            protect_script(ways, entry.path, bases, home, because)


def _joined(base: str, setting: Setting) -> str | None:
    text = expand_home(setting.value, setting.home)
    return os.path.join(base, text) if text else None


def repository_at(top: str) -> GitDirectory | None:
    """Return the repository that a directory is the top of, or None."""
    directory = f"{top}/.git"
    if not os.path.isdir(directory):
        line = _line(directory)
        if line.startswith("gitdir: "):
            directory = os.path.join(top, line.removeprefix("gitdir: "))
        elif all(os.path.exists(f"{top}/{name}") for name in ("HEAD", "objects", "refs")):
            directory = top
        else:
            return None
    common = _line(f"{directory}/commondir")
    above = os.path.dirname(top) if os.path.basename(top) == ".git" else top
    return GitDirectory(directory=directory, common=os.path.join(directory, common) if common else directory, top=above)


def _submodules(common: str, within: str = "modules", depth: int = 4) -> list[GitDirectory]:
    """Return the git directories of submodules: their names may have slashes, and they have submodules too."""
    submodules: list[GitDirectory] = []
    for entry in entries(f"{common}/{within}") if depth else ():
        if not entry.is_dir(follow_symlinks=False):
            continue
        if os.path.exists(f"{entry.path}/HEAD"):
            submodules.append(GitDirectory(directory=entry.path, common=entry.path, top=entry.path))
            submodules += _submodules(entry.path, depth=depth - 1)
        else:
            submodules += _submodules(common, f"{within}/{entry.name}", depth - 1)
    return submodules


def _persons_settings(ways: Ways, home: str, environment: Mapping[str, str]) -> Iterator[Setting]:
    """Yield what holds for every repository of a person's, from files and from the environment."""
    config_home = environment.get("XDG_CONFIG_HOME", "")
    files = [f"{home}/.gitconfig", f"{home}/.config/git/config"]
    files += [f"{config_home}/git/config"] if config_home.startswith("/") else []
    files += [path for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM") if (path := environment.get(name, ""))]
    files.append("/etc/gitconfig")
    for directory in environment.get("PATH", "").split(":"):
        # Where each git of the person's looks for the system's configuration.
        program = f"{directory}/git"
        if directory.startswith("/") and os.path.exists(program):
            files.append(f"{os.path.dirname(os.path.dirname(os.path.realpath(program)))}/etc/gitconfig")
    for path in dict.fromkeys(files):
        for root in ways.roots if not path.startswith("/") else ("",):
            yield from _settings(ways, os.path.join(root, path), home)
    for name in _LINES:
        if environment.get(name):
            yield Setting(key=name, value=environment[name], source="the environment", home=home)
    count = environment.get("GIT_CONFIG_COUNT", "")
    for number in range(min(int(count), 1000) if count.isdecimal() else 0):
        key = environment.get(f"GIT_CONFIG_KEY_{number}", "")
        yield from _kept(key, environment.get(f"GIT_CONFIG_VALUE_{number}"), "the environment", home)


def _settings(ways: Ways, path: str, home: str, around: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Yield the settings of a file and of those that it includes, which git obeys as well."""
    if path in around or len(around) > _DEEPEST:
        return
    for key, value in parse(text_of(path).encode("utf-8", "surrogateescape")) or ():
        section, _, name = split_key(key)
        if section in ("include", "includeif") and name == "path" and value:
            text = expand_home(value, home)
            if text:
                directory = os.path.dirname(path)
                ways.lead(directory, text, Setting(key=key, value=value, source=path, home=home).because)
                yield from _settings(ways, os.path.join(directory, text), home, (*around, path))
        else:
            yield from _kept(key, value, path, home)


def _kept(key: str, value: str | None, source: str, home: str) -> Iterator[Setting]:
    section, subsection, name = split_key(key)
    key = ".".join(part for part in (section.lower(), subsection, name.lower()) if part is not None)
    if value and may_name_program(key):
        yield Setting(key=key, value=value, source=source, home=home)


def _line(path: str) -> str:
    line = text_of(path).partition("\n")[0].rstrip("\r")
    return "" if "\0" in line else line


# What links of the home lead to: shells, editors and others start with what has a `.` before its name.
#
# Each directory is listed once, and again when it has changed: between two runs, hardly any of hundreds has.

_MOST_OF_HOME = 300  # directories that are looked at
_CROWD = 200  # no person keeps so many directories in one
# Of the home, other people's packages and caches: no program starts by what these hold.
_PASSED_BY = frozenset((".cache", ".npm", ".cargo", ".rustup", ".local", ".gradle", ".m2"))
# At any depth. In `link`, yarn notes the packages that somebody works on; in `bin` and `versions`, npm, bun and pyenv
# put what a person starts by its name.
_PACKED = PACKAGE_DIRECTORIES | {".git", "link", "versions", "bin"}


def protect_home(ways: Ways, home: str, memory: str) -> None:
    """Protect what links of a home lead to; `memory` is the file of ours in which it is kept how the home looked.

    First come the directories in the home and in `~/.config`. Further down, those with the fewest beside them: what a
    person keeps comes before the hundreds that a program made.
    """
    if ways.holds(home):
        return
    before: dict[str, Seen] = load(memory) or {}
    now: dict[str, Seen] = {}
    waiting, left = [(0, home)], _MOST_OF_HOME
    while waiting and left:
        _, directory = heapq.heappop(waiting)
        left -= 1
        try:
            status = os.stat(directory)
        except OSError:
            continue
        seen = before.get(directory)
        if seen is None or seen[:2] != (status.st_ctime_ns, status.st_ino):
            inside = entries(directory)
            # Another change now may bear the same time.
            changed = status.st_ctime_ns if abs(time.time_ns() - status.st_ctime_ns) > TICK_NS else 0
            seen = (
                changed, status.st_ino, [entry.name for entry in inside if entry.is_symlink()],
                [entry.name for entry in inside if entry.is_dir(follow_symlinks=False)],
            )  # fmt: skip
        now[directory] = seen
        links, inner = seen[2:]
        if directory == home:
            links, inner = ([name for name in each if name[0] == "." and name not in _PASSED_BY] for each in seen[2:])
        for name in links:
            place = f"{directory}/{name}"
            because = ("home-link", f"your ~{brief(place.removeprefix(home))} is a link to this")
            ways.lead("/", place, because, whole=True)
        beside = 0 if directory in (home, f"{home}/.config") else len(inner)
        for name in inner if beside <= _CROWD else ():
            # Below `~/.config`, a `bin` holds what the programs start that are configured there.
            is_followed = name not in _PACKED or (name == "bin" and directory.startswith(f"{home}/.config/"))
            if is_followed and f"{directory}/{name}" not in ways.roots:
                heapq.heappush(waiting, (beside, f"{directory}/{name}"))
    if now != before:
        save(memory, now)
