"""Settings of package managers and version controls, without secrets, for a command that does not see the home.

A person's git configuration is read as git reads it, with includes and their conditions, without running git.
Conditions depend on the project's git directory, branch and remotes. A command can write these, but they only choose
among the person's own files. A file that commands can write is never read here: its include stays in the settings, for
the git that the command runs.
"""

from __future__ import annotations

import errno
import os
import stat

from fumehood.core.changes import directories_above
from fumehood.core.credentials import command_may_hold_secret, home_paths_in, may_hold_secret
from fumehood.core.environment import holds_secret, looks_secret
from fumehood.core.gitconfig import parse, split_key
from fumehood.core.package_settings import Malformed, visible_settings
from fumehood.core.paths import is_in
from fumehood.core.patterns import matches
from fumehood.core.value import Value, word_set
from fumehood.linux.cache import Snapshot, expand_home, follow_path
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import open_below, open_top

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fumehood.core.gitconfig import Entry


# Read a person's settings files and remember their state: the settings made from them are valid while it is the same.

LARGEST = 1 << 20


class Unreadable(Exception):
    """A settings file that exists and can't be used; the message says why."""


class WatchedReader:
    """Reads files; `snapshot` has their state and the links on the way to them.

    If root reads for another user, only files that this user may read are read: their settings could name any file.
    """

    def __init__(self, user: int | None = None) -> None:
        self._user = os.geteuid() if user is None else user
        self.snapshot = Snapshot()
        self._looked_at: dict[str, bool] = {}

    def look(self, path: str) -> bool:
        """Return True if a file exists; remember its state, so that a later change is noticed.

        Of a directory only the existence is remembered: its time changes with every file that is made in it.
        """
        if path not in self._looked_at and "\0" not in path:
            end = "/"
            for end, _, _ in follow_path(path):
                self.snapshot.leads(end)
            if os.path.isdir(end):
                self.snapshot.exists(end)
            else:
                self.snapshot.file(end)
            self._looked_at[path] = os.path.exists(path)
        return self._looked_at.get(path, False)

    def read(self, path: str) -> bytes | None:
        """Return a file's content, or None if there is no regular file (a device like /dev/null is none)."""
        if not self.look(path):
            return None
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Unreadable(os.strerror(error.errno or 0)) from error
        if self._user != os.geteuid() and not _is_open_to(self._user, file):
            os.close(file)
            raise Unreadable(os.strerror(errno.EACCES))
        return read_open_file(file)


def _is_open_to(user: int, file: int) -> bool:
    """Return True if an open file belongs to a user, or everybody may read it and enter its directories."""
    status = os.fstat(file)
    if status.st_uid == user:
        return True
    try:
        around = [os.stat(f"/{path}") for path in ("", *directories_above(os.readlink(f"/proc/self/fd/{file}")[1:]))]
    except OSError:  # it was moved meanwhile
        return False
    can_come = all(each.st_uid == user or each.st_mode & stat.S_IXOTH for each in around)
    return can_come and bool(status.st_mode & stat.S_IROTH)


def read_open_file(file: int) -> bytes | None:
    """Return the content of an open file, None if it is not a regular one; close it."""
    try:
        with Closing(file):
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            with open(file, "rb", closefd=False) as opened:
                data = opened.read(LARGEST + 1)
    except OSError as error:
        raise Unreadable(os.strerror(error.errno or 0)) from error
    if len(data) > LARGEST:
        raise Unreadable(f"larger than {LARGEST >> 10} KiB")
    return data


def visible_path(path: str, directories: Sequence[str]) -> str | None:
    """Return the path by which one of these directories is entered, directly or through a link, or None.

    What commands can write is among the directories: a link there could lead to any file of the person.
    """
    for place, _, names in follow_path(path):
        if is_in(place, directories):
            return os.path.join(place, *names)
    return None


class SettingsFile(Value):
    """A settings file for a command's home: its path there, and its text, "" if nothing of it is shown.

    A file that a variable places outside the home has an absolute path; it is hidden if something in it is secret.
    """

    path: str
    text: str
    dropped: tuple[str, ...]  # the names of settings that were left out, or why the whole file was


class ToolSettings(Value):
    """The settings files of package managers and of version controls other than git."""

    files: tuple[SettingsFile, ...]
    watched: Snapshot


def tool_settings(
    home: str, environment: Mapping[str, str], writable: Sequence[str] = (), user: int | None = None
) -> ToolSettings:
    """Make the settings of a command's tools from the person's.

    `writable` are the directories that commands can write: files there are not read, because the person may not have
    written them. `user` is the user that the command runs as.
    """
    watch = WatchedReader(user)
    homes = tuple(dict.fromkeys((home, os.path.realpath(home))))
    writable_paths = tuple({path: None for each in writable for path in (each, os.path.realpath(each))})
    files: list[SettingsFile] = []
    dropped: tuple[str, ...]
    managers_by_path = {path: manager for manager, *paths in _places(home, environment, watch) for path in paths}
    for path, manager in managers_by_path.items():
        # A path from a variable may be anything.
        is_whole = path.startswith("/") and path == os.path.normpath(path)
        if not is_whole or not watch.look(path) or is_in(path, writable_paths):
            continue
        text, dropped = "", ("all of it: it lies where commands can write",)
        if visible_path(path, writable_paths) is None:
            try:
                data = watch.read(path)
                text, dropped = visible_settings(manager, data, homes) if data is not None else ("", ())
            except (Malformed, Unreadable) as error:
                dropped = (f"all of it: {error}",)
        name = os.path.relpath(path, home) if is_in(path, (home,)) else path
        files.append(SettingsFile(path=name, text=text, dropped=dropped))
    return ToolSettings(files=tuple(files), watched=watch.snapshot)


def _places(home: str, environment: Mapping[str, str], watch: WatchedReader) -> Iterator[tuple[str, ...]]:
    """Yield each tool's name, and the paths where it looks for its files."""
    config = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    named = environment.get("PIP_CONFIG_FILE", "")
    if named != os.devnull:
        yield "pip", f"{home}/.pip/pip.conf", f"{config}/pip/pip.conf", named
    if not environment.get("UV_NO_CONFIG"):
        yield "uv", environment.get("UV_CONFIG_FILE") or f"{config}/uv/uv.toml"
    npmrc = environment.get("npm_config_userconfig") or environment.get("NPM_CONFIG_USERCONFIG")
    everybodys = environment.get("npm_config_globalconfig") or environment.get("NPM_CONFIG_GLOBALCONFIG") or ""
    yield "npm", npmrc or f"{home}/.npmrc", everybodys
    yield "yarn classic", f"{home}/.yarnrc"
    yield "yarn", f"{home}/{environment.get('YARN_RC_FILENAME') or '.yarnrc.yml'}"
    cargo = environment.get("CARGO_HOME") or f"{home}/.cargo"
    # If both exist, cargo takes the one with the old name, without an ending.
    yield "cargo", f"{cargo}/config", *([] if watch.look(f"{cargo}/config") else [f"{cargo}/config.toml"])
    yield "maven", f"{home}/.m2/settings.xml"
    yield "go", environment.get("GOENV") or f"{config}/go/env"
    # Without these, commits would have no author.
    if "HGRCPATH" not in environment:
        yield "mercurial", f"{home}/.hgrc", f"{config}/hg/hgrc"
    named = environment.get("JJ_CONFIG", "")
    yield "jj", *([named] if named else [f"{home}/.jjconfig.toml", f"{config}/jj/config.toml"])


# The settings that git would find.

INCLUDE = "include.path"
_DEEPEST = 10  # files within files, as git has it
_FOR_EACH = 1 << 10  # added to the size of each file, so that their number is limited too
_MOST_ADDRESSES, _LONGEST_ADDRESS, _LONGEST_BRANCH = 100, 2048, 1024


def global_files(home: str, config_home: str, environment: Mapping[str, str], project: str) -> tuple[str, ...]:
    """Return the files that git reads as the person's own, in its order."""
    named = environment.get("GIT_CONFIG_GLOBAL")
    if named is not None:
        return (os.path.join(project, named),) if named else ()
    return f"{config_home}/git/config", f"{home}/.gitconfig"


class Configuration:
    """The settings that git would find, in its order; includes of files that are not read here are among them."""

    def __init__(
        self, home: str, environment: Mapping[str, str], project: str, in_sight: Sequence[str], watch: WatchedReader
    ) -> None:
        self.entries: list[Entry] = []
        self._home = home
        self._in_sight = in_sight
        self._watch = watch
        self._repository = Repository(project, environment, watch)
        self._addresses: list[str] | None = None
        self._top: tuple[str, ...] = ()
        self._left = LARGEST

    def read(self, files: Sequence[str]) -> None:
        """Read the files that git reads first."""
        self._top = tuple(files)
        for path in files:
            self.entries += self._file(path, ())

    def _file(self, path: str, including_files: tuple[str, ...], *, conditions: bool = True) -> list[Entry]:
        """Return the settings of one file and of its includes; `including_files` are the files that include it."""
        seen = visible_path(path, self._in_sight)
        if seen is not None:
            self._watch.look(path)
            return [(INCLUDE, seen)]
        try:
            return self._parsed(path, (*including_files, path), conditions=conditions)
        except Unreadable:
            return []

    def _parsed(self, path: str, including_files: tuple[str, ...], *, conditions: bool) -> list[Entry]:
        data = self._watch.read(path)
        if data is None:
            return []
        if len(including_files) > _DEEPEST + 1:
            raise Unreadable(f"included through more than {_DEEPEST} files, which git refuses")
        self._left -= len(data) + _FOR_EACH
        if self._left < 0:
            raise Unreadable("there are too many settings")
        entries = parse(data)
        if entries is None:
            raise Unreadable("not a git configuration")
        result: list[Entry] = []
        for key, value in entries:
            if not key.startswith("include"):
                result.append((key, value))
                continue
            section, condition, name = split_key(key)
            is_met = conditions and section == "includeif" and name == "path" and self._holds(condition or "", path)
            target = expand_home(value, self._home) if value is not None and (key == INCLUDE or is_met) else None
            if target:
                included = os.path.join(os.path.dirname(path), target)
                result += self._file(included, including_files, conditions=conditions)
        return result

    def _holds(self, condition: str, path: str) -> bool:
        """Return True if the condition of an include is met; an unknown condition never is."""
        kind, colon, pattern = condition.partition(":")
        ignores_case = kind.endswith("/i")
        places = {"gitdir": self._repository.directories, "worktree": self._repository.work_trees}
        if colon and kind.removesuffix("/i") in places:
            return self._matches_any(pattern, path, places[kind.removesuffix("/i")](), ignores_case=ignores_case)
        if colon and kind == "onbranch":
            branch = self._repository.branch()
            return branch is not None and matches(_whole_directory(pattern), branch)
        wanted = condition.removeprefix("hasconfig:remote.*.url:")
        return wanted != condition and any(matches(wanted, address) for address in self._remotes())

    def _matches_any(self, pattern: str, path: str, places: Sequence[str], *, ignores_case: bool) -> bool:
        """Return True if a condition's pattern matches one of these places; `path` is the file with the condition."""
        if pattern.startswith("~"):
            pattern = expand_home(pattern, os.path.realpath(self._home)) or pattern
        prefix = ""
        if pattern.startswith("./"):
            prefix = os.path.dirname(os.path.realpath(path)).rstrip("/") + "/"
            pattern = pattern[2:]
        elif not pattern.startswith("/"):
            pattern = f"**/{pattern}"
        pattern = _whole_directory(pattern) if pattern or not prefix else "**"
        for place in places:
            start, rest = place[: len(prefix)], place[len(prefix) :]
            same = start.lower() == prefix.lower() if ignores_case else start == prefix
            if same and matches(pattern, rest, ignores_case=ignores_case):
                return True
        return False

    def _remotes(self) -> list[str]:
        """Return the addresses of all remotes; as in git, files included by conditions do not count."""
        if self._addresses is None:
            left, self._left = self._left, LARGEST
            entries = [entry for path in self._top for entry in self._file(path, (), conditions=False)]
            self._left = left
            self._addresses = _addresses(entries) + self._repository.addresses()
        return self._addresses


class Repository:
    """The facts about a project's repository that conditions need; it is examined only when one does."""

    def __init__(self, project: str, environment: Mapping[str, str], watch: WatchedReader) -> None:
        self._project = project
        self._logical = _unresolved_path(project, environment.get("PWD", ""))
        self._watch = watch
        self._pointed: str | None = None
        self._was_looked_for = False

    def directories(self) -> tuple[str, ...]:
        """Return the real path of the git directory and the path that the person uses; it need not exist yet."""
        pointed = self._linked()
        if pointed is not None:
            return (pointed,)
        return os.path.join(os.path.realpath(self._project), ".git"), os.path.join(self._logical, ".git")

    def work_trees(self) -> tuple[str, ...]:
        """Return the project's real path and the path that the person uses."""
        return os.path.realpath(self._project), self._logical

    def branch(self) -> str | None:
        """Return the name of the branch that is checked out, or None."""
        line = self._line(*self._place("HEAD"))
        branch = line.removeprefix("ref:").strip() if line.startswith("ref:") else ""
        if not branch.startswith("refs/heads/") or len(branch) > _LONGEST_BRANCH:
            return None
        return branch.removeprefix("refs/heads/")

    def addresses(self) -> list[str]:
        """Return the addresses of the repository's own remotes; includes in its configuration are not followed."""
        pointed = self._linked()
        place = self._place("config") if pointed is None else (os.path.dirname(os.path.dirname(pointed)), "config")
        return _addresses(parse(self._content(*place)) or [])

    def _place(self, name: str) -> tuple[str, str]:
        pointed = self._linked()
        return (self._project, f".git/{name}") if pointed is None else (pointed, name)

    def _linked(self) -> str | None:
        """Return the git directory of a linked work tree, or None.

        The `.git` file that names it is believed only if the directory names the work tree, too.
        """
        if not self._was_looked_for:
            self._was_looked_for = True
            line = self._line(self._project, ".git")
            if line.startswith("gitdir: "):
                own = os.path.realpath(os.path.join(self._project, line.removeprefix("gitdir: ")))
                back = self._line(own, "gitdir")
                is_ours = back and os.path.realpath(back) == os.path.join(os.path.realpath(self._project), ".git")
                if is_ours and os.path.basename(os.path.dirname(own)) == "worktrees":
                    self._pointed = own
        return self._pointed

    def _line(self, top: str, path: str) -> str:
        line = self._content(top, path).partition(b"\n")[0].decode("utf-8", "surrogateescape").rstrip("\r")
        return "" if "\0" in line else line

    def _content(self, top: str, path: str) -> bytes:
        """Return the content of a file that a command may have made: follow no link, and never block."""
        self._watch.look(os.path.join(top, path))
        try:
            with Closing(open_top(top)) as directory:
                return read_open_file(open_below(directory, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)) or b""
        except (OSError, Unreadable):
            return b""


def _unresolved_path(project: str, directory: str) -> str:
    """Return a project's path with the links that the person used on the way to their working directory."""
    real = os.path.realpath(directory) if directory.startswith("/") else ""
    if not is_in(real, (project,)):
        return project
    inner = real[len(project) :]
    return directory[: len(directory) - len(inner)] if directory.endswith(inner) else project


def _addresses(entries: Sequence[Entry]) -> list[str]:
    addresses = [
        value for key, value in entries
        if value and key.startswith("remote.") and key.endswith(".url") and split_key(key)[1] is not None
    ]  # fmt: skip
    return [address for address in addresses[:_MOST_ADDRESSES] if len(address) <= _LONGEST_ADDRESS]


def _whole_directory(pattern: str) -> str:
    return f"{pattern}**" if pattern.endswith("/") else pattern


# Git's settings for a command that does not see the home: one flat file, made from the person's own.
#
# It has the settings of git itself whose values contain no secret and name nothing that is hidden in the home. Sections
# of other programs may contain anything, so they are left out. Signing is off: the keys are hidden, so every commit
# would fail.

GITCONFIG = ".gitconfig"

# Sections of git's own, and of git-lfs, which is part of it in practice.
SECTIONS = word_set(
    """
    add advice alias am apply attr author bitmappseudomerge blame branch bundle checkout clean clone color column
    commit commitgraph committer completion core diff difftool extensions fastimport feature fetch filter format fsck
    fsmonitor gc grep gui guitool help hook http i18n index init interactive lfs log lsrefs mailinfo mailmap
    maintenance merge mergetool notes pack pager pretty promisor protocol pull push rebase receive reftable remote
    remotes repack replay rerere revert safe sequence showbranch sideband sparse splitindex ssh stash status submodule
    tag tar trace2 trailer transfer uploadarchive uploadpack uploadpackfilter url user versionsort worktree
    """
)
# Settings that only make sense on the person's own desk: editors, keys, proxies, hooks for every repository.
_PERSONAL = word_set(
    """
    core.askpass core.editor core.gitproxy core.hookspath core.pager core.sshcommand sequence.editor
    commit.gpgsign tag.gpgsign tag.forcesignannotated push.gpgsign user.signingkey log.showsignature
    merge.verifysignatures receive.certnonceseed remote.*.proxy remote.*.proxyauthmethod
    """
)
_HTTP = word_set(
    """
    followredirects keepalivecount keepaliveidle keepaliveinterval lowspeedlimit lowspeedtime maxrequests maxretries
    maxretrytime minsessions noepsv pinnedpubkey postbuffer retryafter schannelcheckrevoke schannelusesslcainfo
    sslbackend sslcainfo sslcapath sslcipherlist ssltry sslverify sslversion useragent version
    """
)
_PEOPLE = word_set("user author committer branch")  # sections with names as values, which may be Pat or Key
_SWITCHES = word_set("true false yes no on off 1 0")
_LISTS = (("core.excludesfile", "ignore"), ("core.attributesfile", "attributes"))
_JUDGED_LATER = frozenset(("safe.directory", *(key for key, _ in _LISTS)))


class GitSettings(Value):
    """A flat `.gitconfig`, the keys left out of it, and the other files that it needs, by their names in the home.

    In the texts, bytes that are not UTF-8 are surrogates, as `os.fsencode` expects.
    """

    text: str
    dropped_keys: frozenset[str]  # never show these: the quoted part of a key can be a secret
    files: tuple[tuple[str, str], ...]
    watched: Snapshot


def flat_git_settings(
    home: str, xdg_config_home: str, environment: Mapping[str, str], project: str, in_sight: Sequence[str] = (),
    user: int | None = None,
) -> GitSettings:  # fmt: skip
    """Make a command's git settings from the person's; `in_sight` are directories it sees besides the project.

    All roots must be among them: files there are never read, because a command may have written them. `user` is the
    user that the command runs as.
    """
    watch = WatchedReader(user)
    config_home = xdg_config_home or f"{home}/.config"
    visible = tuple({path: None for each in (project, *in_sight) for path in (each, os.path.realpath(each))})
    configuration = Configuration(home, environment, project, visible, watch)
    configuration.read(global_files(home, config_home, environment, project))
    judge = _SettingsFilter(home, visible)
    dropped = judge.dropped(configuration.entries)
    pointers = dict(_LISTS)
    kept = [
        (key, value) for key, value in configuration.entries
        if key not in dropped and key not in pointers and judge.is_own_directory(key, value)
    ]  # fmt: skip
    files: list[tuple[str, str]] = []
    for key, name in _LISTS:
        values = [value for own, value in configuration.entries if own == key]
        default = f"{config_home}/git/{name}"
        place, copied = _pattern_list((values[-1] or "") if values else default, name, home, visible, watch)
        if copied is not None:
            files.append((f".config/git/{name}", copied))
        if values or place not in ("", default):
            kept.append((key, place))
    if kept or dropped:
        kept += [("commit.gpgsign", "false"), ("tag.gpgsign", "false")]
    return GitSettings(
        text="".join(map(git_setting, kept)), dropped_keys=frozenset(dropped), files=tuple(files),
        watched=watch.snapshot,
    )  # fmt: skip


class _SettingsFilter:
    """Decides which settings a command gets."""

    def __init__(self, home: str, visible: Sequence[str]) -> None:
        self._home = home
        self._homes = tuple(dict.fromkeys((home, os.path.realpath(home))))
        self._visible = visible

    def dropped(self, entries: Sequence[Entry]) -> set[str]:
        """Return the keys that are left out; if one of a driver, remote or hook is, all its other keys are too.

        A required filter without its program, for example, would make every commit fail.
        """
        keys = {key for key, value in entries if key != INCLUDE and not self._is_kept(key, value)}
        broken = {split_key(key)[:2] for key in keys if split_key(key)[1] is not None and not key.startswith("http.")}
        return keys | {key for key, _ in entries if split_key(key)[:2] in broken}

    def _is_kept(self, key: str, value: str | None) -> bool:
        section, subsection, name = split_key(key)
        if section not in SECTIONS or key in _PERSONAL or f"{section}.*.{name}" in _PERSONAL:
            return False
        # A trailer's key is the word it begins with.
        if (looks_secret(name) and section != "trailer") or may_hold_secret(subsection or ""):
            return False
        if section == "http" and name not in _HTTP:
            return False
        return key in _JUDGED_LATER or self._is_harmless(section, name, value)

    def _is_harmless(self, section: str, name: str, value: str | None) -> bool:
        """Return True if a value has no secret, and names no hidden path of the home."""
        text = value or ""
        if section in _PEOPLE:
            return not may_hold_secret(text)
        if section == "pager":
            return value is None or text.lower() in _SWITCHES
        if (section, name) == ("core", "fsmonitor"):
            return text.lower() in ("false", "no", "off", "0")
        is_address = section in ("url", "remote") or name.endswith(("url", "uri"))
        is_secret = may_hold_secret(text) if is_address else command_may_hold_secret(text)
        if is_secret or holds_secret(text):
            return False
        return all(is_in(os.path.normpath(path), self._visible) for path in home_paths_in(text, self._homes))

    def is_own_directory(self, key: str, value: str | None) -> bool:
        """Return False for a trusted directory (safe.directory) that the command does not see."""
        if key != "safe.directory" or not value or value in ("*", "."):
            return True
        path = (expand_home(value, self._home) or value).rstrip("/")
        if path.endswith("/*"):
            above = path[:-2]
            return is_in(above, self._visible) or any(is_in(each, (above,)) for each in self._visible)
        return is_in(path, self._visible)


def _pattern_list(
    value: str, name: str, home: str, visible: Sequence[str], watch: WatchedReader
) -> tuple[str, str | None]:
    """Return the path for a command's setting of a pattern file, and its text if the file must be copied.

    Comments are not copied. If the file does not exist, the path is "", which means none.
    """
    path = expand_home(value, home) or ""
    if not path.startswith("/"):
        return path, None  # relative to the directory that git runs in
    watch.look(path)
    seen = visible_path(path, visible)
    if seen is not None or not is_in(path, (home, os.path.realpath(home))):
        return seen or path, None
    try:
        data = watch.read(path)
    except Unreadable:
        data = None
    if data is None:
        return "", None
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    return f"~/.config/git/{name}", "".join(f"{line}\n" for line in lines if line.strip() and line[0] != "#")


def git_setting(entry: Entry) -> str:
    """Write a setting as git reads it."""
    key, value = entry
    section, subsection, name = split_key(key)
    inner = "" if subsection is None else ' "' + subsection.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if value is None:
        return f"[{section}{inner}]\n\t{name}\n"
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\b", "\\b")):
        value = value.replace(plain, escaped)
    return f'[{section}{inner}]\n\t{name} = "{value}"\n'
