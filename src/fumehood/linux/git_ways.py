"""What git on the host runs or obeys in the roots, found as git finds it, without running git.

Every file of settings counts: the system's, the person's, the repository's, those of its main repository, of one around
the project or in it, and what they include. A condition of an include counts as met, because a command can switch
branches. One setting hides another for git; here each counts.
"""

from __future__ import annotations

import os

from fumehood.core.concern import shown
from fumehood.core.gitconfig import parse, split_key
from fumehood.core.gitdir import HOOKS
from fumehood.core.gitkeys import may_name_program
from fumehood.core.value import Value
from fumehood.linux.followed import links_and_end
from fumehood.linux.git_includes import expanded
from fumehood.linux.ways_in import entries, protect_line, protect_script, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fumehood.core.danger_tables import Because
    from fumehood.linux.ways_in import Ways

_DEEPEST = 10  # files within files, as git has it
_TREES = frozenset(("core.hookspath", "init.templatedir"))
# Variables that hold a line for git to run.
_LINES = (
    "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "EDITOR", "VISUAL", "GIT_PAGER", "PAGER", "GIT_SSH_COMMAND", "GIT_SSH",
    "GIT_ASKPASS", "SSH_ASKPASS", "GIT_EXTERNAL_DIFF", "GIT_PROXY_COMMAND",
)  # fmt: skip


class Repository(Value):
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
    def because(self) -> Because:
        """Why what it names is held."""
        return "git-executed", f"git runs or obeys this: {shown(self.key)} in {shown(self.source)} leads here"


def protect_what_git_runs(
    ways: Ways, tops: Sequence[str], is_touched: Callable[[str], bool], homes: Sequence[str],
    environment: Mapping[str, str],
) -> None:  # fmt: skip
    """Protect what git runs or obeys in the repositories at some directories, and in those around the roots.

    What holds for every repository counts in those that a run has touched: its paths are found from their tops.
    """
    own = [each for home in homes for each in _persons_settings(ways, home, environment)]
    around = [above for root in ways.roots for above in _upward(root)]
    for top in dict.fromkeys((*tops, *around)):
        is_around = top in around
        repository = repository_at(top)
        if repository is not None:
            git_directories = [repository, *_submodules(repository.common)]
            settings = own if is_around or is_touched(top) else []
        elif top in tops:
            # New in this run.
            git_directories = [Repository(directory=f"{top}/.git", common=f"{top}/.git", top=top)]
            settings = own
        else:
            continue
        for each in git_directories:
            _protect_one(ways, each, settings, homes[0])


def _protect_one(ways: Ways, repository: Repository, persons: Sequence[Setting], home: str) -> None:
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
    if len(links_and_end(default)) == 1:
        # Nothing leads elsewhere, and what lies in a git directory is judged by its name.
        _protect_each_hook(ways, default, bases, home)
        hooks = [each for each in hooks if each != default]
    else:
        hooks.append(default)
    for directory in dict.fromkeys(hooks):
        _protect_hooks(ways, directory)
        _protect_each_hook(ways, directory, bases, home)


def _protect_hooks(ways: Ways, directory: str) -> None:
    because = ("git-hook", f"git runs its hooks from {shown(directory)}, which leads here")
    real = ways.lead("/", directory, because, whole=True)
    if real in ways.roots:
        # Hooks beside the project's own files: only what git itself runs is one.
        for name in HOOKS:
            ways.lead(real, name, because)


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
    text = expanded(setting.value, setting.home)
    return os.path.join(base, text) if text else None


def _upward(directory: str) -> Iterator[str]:
    while True:
        yield directory
        if directory == "/":
            return
        directory = os.path.dirname(directory)


def repository_at(top: str) -> Repository | None:
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
    return Repository(directory=directory, common=os.path.join(directory, common) if common else directory, top=above)


def _submodules(common: str, within: str = "modules", depth: int = 4) -> list[Repository]:
    """Return the git directories of submodules: their names may have slashes, and they have submodules too."""
    found: list[Repository] = []
    for entry in entries(f"{common}/{within}") if depth else ():
        if not entry.is_dir(follow_symlinks=False):
            continue
        if os.path.exists(f"{entry.path}/HEAD"):
            found.append(Repository(directory=entry.path, common=entry.path, top=entry.path))
            found += _submodules(entry.path, depth=depth - 1)
        else:
            found += _submodules(common, f"{within}/{entry.name}", depth - 1)
    return found


def _persons_settings(ways: Ways, home: str, environment: Mapping[str, str]) -> Iterator[Setting]:
    """Yield what holds for every repository of a person's, from files and from the environment."""
    config_home = environment.get("XDG_CONFIG_HOME", "")
    files = [f"{home}/.gitconfig", f"{home}/.config/git/config"]
    files += [f"{config_home}/git/config"] if config_home.startswith("/") else []
    files += [path for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM") if (path := environment.get(name, ""))]
    files += ["/etc/gitconfig", *_beside_git(environment.get("PATH", ""))]
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


def _beside_git(path: str) -> Iterator[str]:
    """Yield where each git of the person's looks for the system's configuration."""
    for directory in path.split(":"):
        program = f"{directory}/git"
        if directory.startswith("/") and os.path.exists(program):
            yield f"{os.path.dirname(os.path.dirname(os.path.realpath(program)))}/etc/gitconfig"


def _settings(ways: Ways, path: str, home: str, around: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Yield the settings of a file and of those that it includes, which git obeys as well."""
    if path in around or len(around) > _DEEPEST:
        return
    for key, value in parse(text_of(path).encode("utf-8", "surrogateescape")) or ():
        section, _, name = split_key(key)
        if section in ("include", "includeif") and name == "path" and value:
            text = expanded(value, home)
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
