"""Read a person's git configuration as git does, with its includes and their conditions, without running git.

Conditions ask for the project's git directory, its branch and its remotes. A command can write those, so what they say
only chooses among the person's own files. A file that commands can write is never read here: the include stays, for
the git that the command runs.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat

from fumehood.core.changes import above
from fumehood.core.gitconfig import parse, split_key
from fumehood.core.masks import is_in
from fumehood.core.patterns import matches
from fumehood.linux.cache import Snapshot
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import open_below, open_top

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fumehood.core.gitconfig import Entry


# Following a path by its text, name by name, as the kernel would.

_MOST_LINKS = 40  # on the way along one path: the kernel's own limit


def followed(path: str) -> Iterator[tuple[str, bool, list[str]]]:
    """Yield each place that an absolute path leads over, whether it is a link, and the names that follow it.

    The last one is where the path ends, which need not exist. `..` goes up from where a link has led.
    """
    done, names, links = "/", path.split("/"), 0
    while names and links <= _MOST_LINKS:
        name = names.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            done = os.path.dirname(done)
            yield done, False, names
            continue
        place = os.path.join(done, name)
        try:
            target = os.readlink(place)
        except (OSError, ValueError):  # none, or a NUL in it
            target = ""
        yield place, bool(target), names
        if target:
            links += 1
            done = "/" if target.startswith("/") else done
            names = target.split("/") + names
        else:
            done = place


def links_and_end(path: str) -> list[str]:
    """Return the links that a path leads over, in their order, and where it ends."""
    links, end = [], "/"
    for place, is_link, _ in followed(path):
        if is_link:
            links.append(place)
        else:
            end = place
    return [*links, end]


# Read a person's settings files, and remember how each was: what is made of them holds while they stay so.

LARGEST = 1 << 20


class Unreadable(Exception):
    """A settings file that is there and can't be used; the message says why."""


class Watch:
    """Reads files; a snapshot has how they were, and the links on the way to them.

    Where root reads for another user, only what is open to them is read: they decide where their settings lead.
    """

    def __init__(self, user: int | None = None) -> None:
        self._user = os.geteuid() if user is None else user
        self.snapshot = Snapshot()
        self._looked_at: dict[str, bool] = {}

    def look(self, path: str) -> bool:
        """Return True if a file is there, and remember how it is before it is read: a later change is then noticed.

        A directory's time does not count: nothing is read from it, and it changes with every file that is made there.
        """
        if path not in self._looked_at and "\0" not in path:
            end = "/"
            for end, _, _ in followed(path):
                self.snapshot.leads(end)
            if os.path.isdir(end):
                self.snapshot.exists(end)
            else:
                self.snapshot.file(end)
            self._looked_at[path] = os.path.exists(path)
        return self._looked_at.get(path, False)

    def read(self, path: str) -> bytes | None:
        """Return a file's content, or None where there is none; a device, like /dev/null, is none either."""
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
        return content(file)


def _is_open_to(user: int, file: int) -> bool:
    """Return True if an open file belongs to a user, or everybody may read it and come to where it lies."""
    status = os.fstat(file)
    if status.st_uid == user:
        return True
    try:
        around = [os.stat(f"/{path}") for path in ("", *above(os.readlink(f"/proc/self/fd/{file}")[1:]))]
    except OSError:  # it was moved meanwhile
        return False
    can_come = all(each.st_uid == user or each.st_mode & stat.S_IXOTH for each in around)
    return can_come and bool(status.st_mode & stat.S_IROTH)


def content(file: int) -> bytes | None:
    """Return what an open file holds if it is a regular one, and close it."""
    try:
        with Closing(file):
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            data = bytearray()
            while len(data) <= LARGEST and (piece := os.read(file, LARGEST)):
                data += piece
    except OSError as error:
        raise Unreadable(os.strerror(error.errno or 0)) from error
    if len(data) > LARGEST:
        raise Unreadable(f"larger than {LARGEST >> 10} KiB")
    return bytes(data)


def seen_at(path: str, directories: Sequence[str]) -> str | None:
    """Return where a path comes into one of some directories, by itself or by a link on its way, or None.

    What commands can write is among them: from there a link that one made may lead to anything of the person's.
    """
    for place, _, names in followed(path):
        if is_in(place, directories):
            return os.path.join(place, *names)
    return None


INCLUDE = "include.path"
_DEEPEST = 10  # files within files, as git has it
_FOR_EACH = 1 << 10  # what one file counts for besides its bytes, so that their number is limited too
_MOST_ADDRESSES, _LONGEST_ADDRESS, _LONGEST_BRANCH = 100, 2048, 1024


def global_files(home: str, config_home: str, environment: Mapping[str, str], project: str) -> tuple[str, ...]:
    """Return the files that git reads as the person's own, in its order."""
    named = environment.get("GIT_CONFIG_GLOBAL")
    if named is not None:
        return (os.path.join(project, named),) if named else ()
    return f"{config_home}/git/config", f"{home}/.gitconfig"


def expanded(path: str, home: str) -> str | None:
    """Return a path as git reads it in a setting, with `~` and `~user` replaced; None where it can't be."""
    if path.startswith("%(prefix)/"):
        return None
    if not path.startswith("~"):
        return path
    user, slash, rest = path[1:].partition("/")
    if user:
        try:
            home = pwd.getpwnam(user).pw_dir
        except (KeyError, ValueError):
            return None
    return home + slash + rest


class Configuration:
    """The settings that git would find, in its order; an include is among them only where it was left to git."""

    def __init__(
        self, home: str, environment: Mapping[str, str], project: str, in_sight: Sequence[str], watch: Watch
    ) -> None:
        self.entries: list[Entry] = []
        self.unread: list[tuple[str, str]] = []
        self._home = home
        self._in_sight = in_sight
        self._watch = watch
        self._repository = Repository(project, environment, watch)
        self._addresses: list[str] | None = None
        self._top: tuple[str, ...] = ()
        self._left = LARGEST

    def read(self, files: Sequence[str]) -> None:
        """Read the files that git begins with."""
        self._top = tuple(files)
        for path in files:
            self.entries += self._file(path, ())

    def _file(self, path: str, around: tuple[str, ...], *, conditions: bool = True) -> list[Entry]:
        """Return what one file says, and what it includes; `around` are the files that include it."""
        seen = seen_at(path, self._in_sight)
        if seen is not None:
            self._watch.look(path)
            return [(INCLUDE, seen)]
        try:
            return self._parsed(path, (*around, path), conditions=conditions)
        except Unreadable as error:
            if conditions:
                self.unread.append((path, str(error)))
            return []

    def _parsed(self, path: str, around: tuple[str, ...], *, conditions: bool) -> list[Entry]:
        data = self._watch.read(path)
        if data is None:
            return []
        if len(around) > _DEEPEST + 1:
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
            target = expanded(value, self._home) if value is not None and (key == INCLUDE or is_met) else None
            if target:
                included = os.path.join(os.path.dirname(path), target)
                result += self._file(included, around, conditions=conditions)
        return result

    def _holds(self, condition: str, path: str) -> bool:
        """Return True if a condition is true; one that git does not know never is."""
        kind, colon, pattern = condition.partition(":")
        ignores_case = kind.endswith("/i")
        places = {"gitdir": self._repository.directories, "worktree": self._repository.work_trees}
        if colon and kind.removesuffix("/i") in places:
            return self._names(pattern, path, places[kind.removesuffix("/i")](), ignores_case=ignores_case)
        if colon and kind == "onbranch":
            branch = self._repository.branch()
            return branch is not None and matches(_whole_directory(pattern), branch)
        wanted = condition.removeprefix("hasconfig:remote.*.url:")
        return wanted != condition and any(matches(wanted, address) for address in self._remotes())

    def _names(self, pattern: str, path: str, places: Sequence[str], *, ignores_case: bool) -> bool:
        """Return True if a condition's pattern names one of some paths; `path` is the file that has the condition."""
        if pattern.startswith("~"):
            pattern = expanded(pattern, os.path.realpath(self._home)) or pattern
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
        """Return the addresses of all remotes: what conditions include does not count, as for git."""
        if self._addresses is None:
            left, self._left = self._left, LARGEST
            entries = [entry for path in self._top for entry in self._file(path, (), conditions=False)]
            self._left = left
            self._addresses = _addresses(entries) + self._repository.addresses()
        return self._addresses


class Repository:
    """What conditions ask of a project's repository; it is looked at when one does."""

    def __init__(self, project: str, environment: Mapping[str, str], watch: Watch) -> None:
        self._project = project
        self._logical = _as_named(project, environment.get("PWD", ""))
        self._watch = watch
        self._pointed: str | None = None
        self._was_looked_for = False

    def directories(self) -> tuple[str, ...]:
        """Return the git directory by its real name and as the person came there; it need not exist yet."""
        pointed = self._linked()
        if pointed is not None:
            return (pointed,)
        return os.path.join(os.path.realpath(self._project), ".git"), os.path.join(self._logical, ".git")

    def work_trees(self) -> tuple[str, ...]:
        """Return the project by both names."""
        return os.path.realpath(self._project), self._logical

    def branch(self) -> str | None:
        """Return the name of the branch that is checked out, or None."""
        line = self._line(*self._place("HEAD"))
        branch = line.removeprefix("ref:").strip() if line.startswith("ref:") else ""
        if not branch.startswith("refs/heads/") or len(branch) > _LONGEST_BRANCH:
            return None
        return branch.removeprefix("refs/heads/")

    def addresses(self) -> list[str]:
        """Return where the repository's own remotes are; what its configuration includes is not followed."""
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
        """Return what a file holds that a command may have put there: no link is followed, nothing waited for."""
        self._watch.look(os.path.join(top, path))
        try:
            with Closing(open_top(top)) as directory:
                return content(open_below(directory, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)) or b""
        except (OSError, Unreadable):
            return b""


def _as_named(project: str, directory: str) -> str:
    """Return a project's path as the person named it on the way to the directory they are in."""
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
