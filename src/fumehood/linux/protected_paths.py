"""Find the places in the roots that programs of the host run or obey by themselves.

Git's configuration leads there, or a link whose name a tool acts on (`.claude -> cfg/claude`), a link in the home
(`~/.bashrc -> dotfiles/bashrc`), a script or server named by `.envrc`, `.husky` or an agent's settings, or a directory
of PATH. All of these are read as they were before the run: the person wrote them, or they were applied. So links are
followed here, as those programs follow them.
"""

from __future__ import annotations

import heapq
import os
import stat

from fumehood.core.danger_facts import ProtectedPaths, locate_in_roots
from fumehood.core.gitconfig import may_name_program, parse, split_key
from fumehood.core.gitdir import HOOKS
from fumehood.core.sensitive_names import HELD_NAMES, PACKAGE_DIRECTORIES
from fumehood.core.value import Value
from fumehood.core.what_runs import (
    begins_as_command,
    directories_entered,
    directories_put_on_path,
    directories_put_on_path_by_mise,
    files_read_by_direnv,
    files_run_by,
    may_run_each_file,
    named_paths,
    tasks_at_opening,
    texts_in_settings,
)
from fumehood.core.wording import brief
from fumehood.linux.cache import change_state, expand_home, load, resolve_links, save, settled
from fumehood.linux.libc import Closing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from fumehood.core.danger_facts import Reason
    from fumehood.linux.project_tree import ProjectTree

    Seen = tuple[int, int, list[str], list[str]]  # when it changed, its inode; names of links, and of directories

SYSTEM_PROGRAMS = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
_MOST_ROUNDS = 3  # of `cd` within one line
_LARGEST, _LONGEST_SCRIPT = 1 << 20, 1 << 16
_MOST_ENTERED = 8  # directories, by one script
_ENVIRONMENTS = frozenset((".venv", "venv"))  # made by whoever sets the project up
_SETTINGS = frozenset(("json", "jsonc", "toml", "yaml", "yml", "code-workspace", "lintstagedrc", "roomodes"))
# What these files name is started by a person, except tasks that an editor starts when it opens the project.
_STARTED_BY_HAND = ("launch.json", "tasks.json", ".code-workspace")
_AT_OPENING = "folderOpen"


class ProtectedTargets(ProtectedPaths):
    """The paths in the roots on which the host acts, with the links that lead there."""

    def protect_target(self, directory: str, text: str, because: Reason, *, whole: bool = False) -> str:
        """Protect the target of a path and every link on the way; return the target."""
        *links, end = resolve_links(os.path.join(directory, text))
        for link in links:
            self.add(link, because)
        self.add(end, because, whole=whole)
        return end

    def is_in_roots(self, path: str) -> bool:
        """Return True if a path lies in one of the roots."""
        return locate_in_roots(path, self.roots) is not None


def entries(directory: str) -> list[os.DirEntry[str]]:
    """Return the entries of a directory, none if this user can't read it."""
    try:
        with os.scandir(directory) as inside:
            return list(inside)
    except OSError:
        return []


def protect_line(protected: ProtectedTargets, line: str, bases: Sequence[str], home: str, because: Reason) -> None:
    """Protect the paths that a line for a shell names, from the base directories and from where it may `cd` to."""
    named = [(text, whole, plain) for path, whole, plain in named_paths(line) if (text := expand_home(path, home))]
    reached, directories = set(bases), list(bases)
    for _ in range(_MOST_ROUNDS):
        entered_directories: list[str] = []
        for base in directories:
            for text, whole, may_only_be_entered in named:
                if may_only_be_entered:
                    place = resolve_links(os.path.join(base, text))[-1]
                else:
                    place = protected.protect_target(base, text, because, whole=whole)
                if place not in reached and protected.is_in_roots(place) and os.path.isdir(place):
                    entered_directories.append(place)
        reached.update(entered_directories)
        directories = entered_directories


def protect_script(protected: ProtectedTargets, path: str, bases: Sequence[str], home: str, because: Reason) -> None:
    """Protect the paths that a script names, and the programs that it runs; other plain words are rarely files."""
    runs = _Runs(protected, bases, home, because)
    for line in _script_lines(path):
        words = " ".join(word for word in line.split() if "/" in word and ("*" not in word or may_run_each_file(line)))
        protect_line(protected, line if " -m " in line else words, bases, home, because)
        runs.protect(line)


def _script_lines(path: str) -> Iterator[str]:
    text = text_of(path)[:_LONGEST_SCRIPT]
    return (line for line in (() if "\0" in text else text.split("\n")) if not line.lstrip().startswith("#"))


class _Runs:
    """Protects the files that lines run, from the base directories and from where they have gone by `cd` so far.

    Installed files are left out: packages, and programs of a virtual environment, have rules of their own.
    """

    def __init__(self, protected: ProtectedTargets, bases: Sequence[str], home: str, because: Reason) -> None:
        self._protected = protected
        self._bases = list(bases)
        self._home = home
        self._because = because
        self._names: dict[str, frozenset[str]] = {}  # of the directories that lines are run in

    def protect(self, line: str) -> None:
        for path in directories_entered(line):
            places = [resolve_links(place)[-1] for place in self._places(path)]
            if len(self._bases) < _MOST_ENTERED:
                inside = [each for each in places if self._protected.is_in_roots(each) and os.path.isdir(each)]
                self._bases += [each for each in inside if each not in self._bases]
        for path in files_run_by(line, lambda path: any(map(os.path.isfile, self._existing(path))), self.is_program):
            for place in self._places(path):
                if not _is_installed(place):
                    self._protected.protect_target("/", place, self._because)

    def _places(self, path: str) -> list[str]:
        text = expand_home(path, self._home)
        return [os.path.join(base, text) for base in self._bases] if text else []

    def is_program(self, path: str) -> bool:
        return any(os.path.isfile(place) and os.access(place, os.X_OK) for place in self._existing(path))

    def _existing(self, path: str) -> Iterator[str]:
        """Yield the places where a path may exist; for most words of a line there is none."""
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


def protect_what_tools_reach(protected: ProtectedTargets, tree: ProjectTree, root: str, home: str) -> None:
    """Protect the targets of links that tools act on, and what such scripts and settings run."""
    for directory, name, (flag, reason) in tree.links:
        protected.protect_target(directory, name, (flag, f"{reason}: the link {brief(name)} leads here"), whole=True)
    for path, (flag, _) in tree.files:
        because = (flag, f"{brief(os.path.basename(path))}, which runs by itself, names this")
        bases = tuple(dict.fromkeys((root, os.path.dirname(path))))
        name = os.path.basename(path).lower()
        if flag in ("shell-settings", "git-hook"):
            protect_script(protected, path, bases, home, because)
            for line in _script_lines(path) if flag == "shell-settings" else ():
                for place in files_read_by_direnv(line):
                    protected.protect_target(os.path.dirname(path), place, because)
        elif name.rpartition(".")[2] in _SETTINGS:
            text = text_of(path)
            if flag == "agent-settings" and name.endswith((".json", ".jsonc", ".toml")):
                from fumehood.core.settings_text import commands_in

                for line in commands_in(text, is_toml=name.endswith(".toml")):
                    protect_line(protected, line, bases, home, because)
            is_by_hand = name.endswith(_STARTED_BY_HAND)
            if is_by_hand and _AT_OPENING in text:
                text, is_by_hand = tasks_at_opening(text, _AT_OPENING), False
            if not is_by_hand:
                runs = _Runs(protected, bases, home, because)
                # A text is run if its key says so, or if it begins like a command.
                for line, is_run in texts_in_settings(text):
                    if is_run or begins_as_command(line, runs.is_program):
                        runs.protect(line)
        elif flag == "hook-manager" or (flag == "editor-settings" and name in HELD_NAMES):
            runs = _Runs(protected, bases, home, because)
            for line in _script_lines(path):
                runs.protect(line)


def text_of(path: str) -> str:
    """Return a file's text, "" if it can't be read or is too long for settings."""
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
        os.path.join(os.path.dirname(path), place) for path in shells for line in _script_lines(path)
        for place in directories_put_on_path(line)
    ] + [
        os.path.join(base, place) for path in tree.mise for place in directories_put_on_path_by_mise(text_of(path))
        for base in (os.path.dirname(path), root)
    ]  # fmt: skip


def protect_search_path(protected: ProtectedTargets, added: Collection[str], path: str) -> None:
    """Protect new files in directories of PATH that would run in place of a program further back in PATH.

    A relative directory counts from the top of each root. The commands of an installed package are wanted, so these are
    protected only if they replace a program of the system which is not a script of the same language.
    """
    entries_of_path = [os.path.join(root, each) for each in path.split(":") for root in protected.roots]
    listed = list(dict.fromkeys(map(os.path.realpath, dict.fromkeys(entries_of_path))))
    inside = {directory for directory in listed if protected.is_in_roots(directory)}
    for place in added if inside else ():
        directory, name = os.path.split(place)
        if directory not in inside:
            continue
        position = listed.index(directory)
        is_installed = _is_installed(place) or f"{os.path.dirname(directory)}/pyvenv.cfg" in added
        before = listed[:position]
        behind = SYSTEM_PROGRAMS if is_installed else (*listed[position + 1 :], *SYSTEM_PROGRAMS)
        replaced = next((f"{each}/{name}" for each in behind if os.path.isfile(f"{each}/{name}")), "")
        if not replaced or any(os.path.isfile(f"{each}/{name}") for each in before):
            continue
        head = text_of(replaced)[:64] if is_installed else ""
        is_script = head.startswith("#!") and ("python" in head or "node" in head)
        if not (is_installed and (name.startswith("python") or is_script)):
            because = ("shadows", f"would be run in place of {brief(replaced)}: its directory comes first on your PATH")
            protected.add(place, because)


# What git on the host runs or obeys in the roots, found as git finds it, without running git.
#
# All settings files count: the system's, the person's, the repository's, those of its main repository, of repositories
# around the project or in it, and all that they include. The condition of an include counts as met, because a command
# can switch branches. For git, a later setting hides an earlier one; here all of them count.

_DEEPEST = 10  # files within files, as git has it
_DIRECTORY_KEYS = frozenset(("core.hookspath", "init.templatedir"))
# Variables that hold a line for git to run.
_COMMAND_VARIABLES = (
    "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "EDITOR", "VISUAL", "GIT_PAGER", "PAGER", "GIT_SSH_COMMAND", "GIT_SSH",
    "GIT_ASKPASS", "SSH_ASKPASS", "GIT_EXTERNAL_DIFF", "GIT_PROXY_COMMAND",
)  # fmt: skip


class GitDirectory(Value):
    """One repository: its own git directory, the one it shares with its main work tree, and its files."""

    directory: str
    common: str
    top: str


class Setting(Value):
    """One setting, its source (a file, or the environment), and the home that `~` means in it."""

    key: str
    value: str
    source: str
    home: str

    @property
    def because(self) -> Reason:
        """The reason to hold a change of the file that it names."""
        return "git-executed", f"git runs or obeys this: {brief(self.key)} in {brief(self.source)} leads here"


def protect_what_git_runs(
    protected: ProtectedTargets, tops: Sequence[str], is_touched: Callable[[str], bool], homes: Sequence[str],
    environment: Mapping[str, str],
) -> None:  # fmt: skip
    """Protect what git runs or obeys in the repositories at `tops`, and in those around the roots.

    A person's settings for all repositories are applied only to those that a run has touched: relative paths in them
    count from the top of each repository.
    """
    personal_settings = [setting for home in homes for setting in _personal_settings(protected, home, environment)]
    enclosing = []
    for root in protected.roots:
        parts = root.rstrip("/").split("/")
        enclosing += ["/".join(parts[:end]) or "/" for end in range(len(parts), 0, -1)]
    for top in dict.fromkeys((*tops, *enclosing)):
        is_around = top in enclosing
        repository = repository_at(top)
        if repository is not None:
            git_directories = [repository, *_submodules(repository.common)]
            settings = personal_settings if is_around or is_touched(top) else []
        elif top in tops:
            # New in this run.
            git_directories = [GitDirectory(directory=f"{top}/.git", common=f"{top}/.git", top=top)]
            settings = personal_settings
        else:
            continue
        for git_directory in git_directories:
            _protect_repository(protected, git_directory, settings, homes[0])


def _protect_repository(
    protected: ProtectedTargets, repository: GitDirectory, personal_settings: Sequence[Setting], home: str
) -> None:
    files = (f"{repository.common}/config", f"{repository.directory}/config.worktree")
    settings = [*personal_settings, *(setting for file in files for setting in _settings(protected, file, home))]
    work_trees = [_resolve_in(repository.directory, setting) for setting in settings if setting.key == "core.worktree"]
    bases = tuple(dict.fromkeys((repository.top, *filter(None, work_trees), repository.directory)))
    hooks: list[str] = []
    for setting in settings:
        if setting.key in _DIRECTORY_KEYS:
            for base in bases:
                place = _resolve_in(base, setting)
                hooks += [] if place is None else [protected.protect_target(base, place, setting.because, whole=True)]
        elif setting.key != "core.worktree" and (setting.value.startswith("!") or split_key(setting.key)[0] != "alias"):
            protect_line(protected, setting.value, bases, setting.home, setting.because)
    default = f"{repository.common}/hooks"
    if len(resolve_links(default)) == 1:
        # The default place is not a link, and entries of a git directory are judged by their names.
        _protect_each_hook(protected, default, bases, home)
        hooks = [setting for setting in hooks if setting != default]
    else:
        hooks.append(default)
    for directory in dict.fromkeys(hooks):
        because = ("git-hook", f"git runs its hooks from {brief(directory)}, which leads here")
        real = protected.protect_target("/", directory, because, whole=True)
        # If a root itself is the directory of hooks, only files with the name of a hook are hooks.
        for name in HOOKS if real in protected.roots else ():
            protected.protect_target(real, name, because)
        _protect_each_hook(protected, directory, bases, home)


def _protect_each_hook(protected: ProtectedTargets, directory: str, bases: Sequence[str], home: str) -> None:
    """Protect the targets of hooks that are links, and what the scripts of hooks name."""
    for entry in entries(directory):
        if entry.name not in HOOKS:
            continue
        because = ("git-hook", f"the git hook {entry.name} leads here")
        if entry.is_symlink():
            protected.protect_target(directory, entry.name, because)
        if os.access(entry.path, os.X_OK):
            protect_script(protected, entry.path, bases, home, because)


def _resolve_in(base: str, setting: Setting) -> str | None:
    text = expand_home(setting.value, setting.home)
    return os.path.join(base, text) if text else None


def repository_at(top: str) -> GitDirectory | None:
    """Return the repository that a directory is the top of, or None."""
    directory = f"{top}/.git"
    if not os.path.isdir(directory):
        line = _first_line(directory)
        if line.startswith("gitdir: "):
            directory = os.path.join(top, line.removeprefix("gitdir: "))
        elif all(os.path.exists(f"{top}/{name}") for name in ("HEAD", "objects", "refs")):
            directory = top
        else:
            return None
    common = _first_line(f"{directory}/commondir")
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


def _personal_settings(protected: ProtectedTargets, home: str, environment: Mapping[str, str]) -> Iterator[Setting]:
    """Yield a person's settings for all repositories, from files and from the environment."""
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
        for root in protected.roots if not path.startswith("/") else ("",):
            yield from _settings(protected, os.path.join(root, path), home)
    for name in _COMMAND_VARIABLES:
        if environment.get(name):
            yield Setting(key=name, value=environment[name], source="the environment", home=home)
    count = environment.get("GIT_CONFIG_COUNT", "")
    for number in range(min(int(count), 1000) if count.isdecimal() else 0):
        key = environment.get(f"GIT_CONFIG_KEY_{number}", "")
        yield from _relevant_setting(key, environment.get(f"GIT_CONFIG_VALUE_{number}"), "the environment", home)


def _settings(
    protected: ProtectedTargets, path: str, home: str, including_files: tuple[str, ...] = ()
) -> Iterator[Setting]:
    """Yield the settings of a file and of those that it includes, which git obeys as well."""
    if path in including_files or len(including_files) > _DEEPEST:
        return
    for key, value in parse(text_of(path).encode("utf-8", "surrogateescape")) or ():
        section, _, name = split_key(key)
        if section in ("include", "includeif") and name == "path" and value:
            text = expand_home(value, home)
            if text:
                directory = os.path.dirname(path)
                protected.protect_target(directory, text, Setting(key=key, value=value, source=path, home=home).because)
                yield from _settings(protected, os.path.join(directory, text), home, (*including_files, path))
        else:
            yield from _relevant_setting(key, value, path, home)


def _relevant_setting(key: str, value: str | None, source: str, home: str) -> Iterator[Setting]:
    section, subsection, name = split_key(key)
    key = ".".join(part for part in (section.lower(), subsection, name.lower()) if part is not None)
    if value and may_name_program(key):
        yield Setting(key=key, value=value, source=source, home=home)


def _first_line(path: str) -> str:
    line = text_of(path).partition("\n")[0].rstrip("\r")
    return "" if "\0" in line else line


# The targets of links in the home: shells, editors and other programs read files there whose names begin with a dot.
#
# Each directory is listed once, and again only when it has changed: between two runs, hardly any has.

_MOST_OF_HOME = 300  # directories that are looked at
_MOST_SIBLINGS = 200  # a directory with more directories in it was filled by a program
# Packages and caches in the home: no program reads its settings there.
_SKIPPED_IN_HOME = frozenset((".cache", ".npm", ".cargo", ".rustup", ".local", ".gradle", ".m2"))
# Skipped at any depth. In `link`, yarn notes packages that somebody works on; `bin` and `versions` have programs of
# npm, bun and pyenv, which a person starts by name.
_SKIPPED = PACKAGE_DIRECTORIES | {".git", "link", "versions", "bin"}


def protect_home(protected: ProtectedTargets, home: str, memory: str) -> None:
    """Protect the targets of links in a home; `memory` is a file of ours that remembers its directories.

    Directories in the home and in `~/.config` are searched first, then those with the fewest siblings: directories that
    a person made come before hundreds that a program made.
    """
    if protected.is_in_roots(home):
        return
    remembered: dict[str, Seen] = load(memory) or {}
    seen_now: dict[str, Seen] = {}
    queue, directories_left = [(0, home)], _MOST_OF_HOME
    while queue and directories_left:
        _, directory = heapq.heappop(queue)
        directories_left -= 1
        try:
            status = os.stat(directory)
        except OSError:
            continue
        seen = remembered.get(directory)
        if seen is None or seen[:2] != change_state(status):
            inside = entries(directory)
            seen = (
                *settled(change_state(status)), [entry.name for entry in inside if entry.is_symlink()],
                [entry.name for entry in inside if entry.is_dir(follow_symlinks=False)],
            )  # fmt: skip
        seen_now[directory] = seen
        links, directories = seen[2:]
        if directory == home:
            links, directories = (
                [name for name in names if name[0] == "." and name not in _SKIPPED_IN_HOME] for names in seen[2:]
            )
        for name in links:
            place = f"{directory}/{name}"
            because = ("home-link", f"your ~{brief(place.removeprefix(home))} is a link to this")
            protected.protect_target("/", place, because, whole=True)
        siblings = 0 if directory in (home, f"{home}/.config") else len(directories)
        for name in directories if siblings <= _MOST_SIBLINGS else ():
            # Below `~/.config`, a `bin` has scripts that the programs configured there start.
            is_followed = name not in _SKIPPED or (name == "bin" and directory.startswith(f"{home}/.config/"))
            if is_followed and f"{directory}/{name}" not in protected.roots:
                heapq.heappush(queue, (siblings, f"{directory}/{name}"))
    if seen_now != remembered:
        save(memory, seen_now)
