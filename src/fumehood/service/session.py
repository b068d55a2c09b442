"""A run's part in its session: the directory and variables it starts with, and what of them is kept for the next."""

from __future__ import annotations

import errno
import os
import time
import zlib

from fumehood.core.paths import is_below
from fumehood.core.report import END_UNKNOWN, NOT_FOLLOWED, Blocked, Run
from fumehood.core.request import (
    CWD_FILE,
    ENV_VARIABLE,
    SESSION_DIRECTORY,
    VARIABLES_FILE,
    Session,
    check_variables,
    draft_session_name,
    is_variable_name,
    update_variables,
)
from fumehood.errors import BadRequest
from fumehood.linux.bwrap import TMP
from fumehood.linux.launch import owner_of
from fumehood.linux.libc import Closing, link_target
from fumehood.linux.mounts import Bind, Operation, Text
from fumehood.linux.nofollow import entries, open_top, remove_directory, remove_tree
from fumehood.service.loopback import Loopback
from fumehood.service.request_server import ANSWERS, REQUESTS, SCRIPT, TOOL, RequestServer
from fumehood.store.places import Places, make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fumehood.core.request import Request
    from fumehood.service.store import Store
    from fumehood.store.database import Days
    from fumehood.store.projects import Project


_PIPE_CAPACITY = 1 << 16  # what a pipe holds
_SHARED_DIRECTORY = "/run"  # our own state is closed to another user
_LINK_LIFETIME_S = 600.0
_INPUT_PIPES = (CWD_FILE, VARIABLES_FILE, REQUESTS)
_PIPES = (*_INPUT_PIPES, ANSWERS)
_MAX_SETTINGS = 1 << 20
_CLAUDE_SWITCHES = {"disableAllHooks": False, "disableSkillShellExecution": True}
_COPILOT_SWITCHES = {"disableAllHooks": False}
# Settings in a project that take a client's commands out of the hood: by file, each with its only harmless value.
# Copilot CLI reads Claude Code's files too.
_HOOK_SWITCHES: Mapping[str, Mapping[str, object]] = {
    ".claude/settings.json": _CLAUDE_SWITCHES,
    ".claude/settings.local.json": _CLAUDE_SWITCHES,
    ".github/copilot/settings.json": _COPILOT_SWITCHES,
    ".github/copilot/settings.local.json": _COPILOT_SWITCHES,
    ".gemini/settings.json": {
        "hooksConfig.enabled": True, "hooksConfig.disabled": [],
        "hooks.enabled": True, "hooks.disabled": [], "tools.enableHooks": True,  # of older versions
    },
    ".codex/config.toml": {"features.hooks": True, "features.codex_hooks": True},
}  # fmt: skip


def hooks_switched_off(project: str) -> list[str]:
    """Return a sentence for each setting that takes a client's commands out of the hood, in the project's own files.

    A repository can bring such a file with it. Looks in each directory from the working directory up to the project.
    """
    sentences = []
    directory = link_target("/proc/self/cwd")  # there is an answer although the directory is gone
    directories = [project]
    while is_below(directory, project):
        directories.append(directory)
        directory = os.path.dirname(directory)
    for path, switches in ((f"{each}/{file}", _HOOK_SWITCHES[file]) for each in directories for file in _HOOK_SWITCHES):
        name = os.path.relpath(path, project)
        try:
            # A command may have put a pipe there.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
                text = file.read(_MAX_SETTINGS)
            settings = _parse_settings(path, text)
        except OSError:
            continue  # there is none
        except (BadRequest, ValueError, RecursionError):
            sentences.append(f"{name} can't be read: it may take commands out of the hood")
            continue
        for keys, harmless in switches.items():
            value: object = settings
            for key in keys.split("."):
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None and value != harmless:
                sentences.append(f"{name}: {keys} takes commands out of the hood")
    return sentences


def _parse_settings(path: str, text: str) -> object:
    if path.endswith(".toml"):
        import tomllib

        return tomllib.loads(text)
    from fumehood.core.json_text import parse_json

    return parse_json(text).as_python() if text.strip() else {}


def session_of(store: Store, project: Project, name: str) -> Session:
    """Return the project's session of this name; a session belongs to the project in which it began."""
    if store.sessions.find(name) is None:
        store.notices += hooks_switched_off(project.path)
    session = store.sessions.open(project.id, name)
    if session.project != project.id:
        other = store.projects.path_of(session.project)
        raise BadRequest(f"the session {name} belongs to {other}", hint="give the session another name")
    return session


def project_of(store: Store, name: str) -> str | None:
    """Return the project of a session, or None if it has not begun."""
    session = store.sessions.find(name)
    return None if session is None else store.projects.path_of(session.project)


class SessionRun:
    """One run in its session.

    The command writes the directory in which it ended, the variables to keep, and its requests to named pipes in its
    /dev. A pipe holds little, can't be replaced by a link, and is gone with the run. Their directory is mounted
    read-only, which does not keep anybody from writing to a pipe.
    """

    def __init__(
        self, store: Store, project: Project, request: Request, run: str, *, keeps_tmp: bool,
        shells: Sequence[Operation],
    ) -> None:  # fmt: skip
        name = request.session
        self._store = store
        self.session = session_of(store, project, name)
        self._owner = owner_of(project.path)
        self._run = run
        self._session_directory = store.places.session(name)
        self._directory = f"{self._session_directory}/{run}"  # of this run
        if self._owner is not None:
            self._directory = f"{_SHARED_DIRECTORY}/fumehood-{run}"
        self._pipes: dict[str, int] = {}
        self.loopback = Loopback(store.places, request.loopback or name, run)
        self.requests: RequestServer  # from `__enter__` on
        self._scope_options = "--project", project.path, "--only-session", name, "--asked-by", run
        self.tmp = ""
        self.tmp_points: Sequence[str] = ()  # directories in it, as mount points for roots below /tmp
        self.must_have_tmp = request.own_tmp
        self.why_no_tmp = ""
        self._shells = shells  # scripts in place of the host's shells: they say when a command begins and ends
        self._ended_in = ""
        self.left_processes: list[str] = []  # lines of /proc/…/stat of processes that its shell left behind
        if keeps_tmp and self._owner is None:
            self._make_tmp(project.roots, run)
        elif keeps_tmp:
            self.why_no_tmp = f"{project.path} belongs to another user"
            if self.must_have_tmp:
                raise BadRequest(f"a session can't have its own /tmp here: {self.why_no_tmp}", hint="leave it out")

    @property
    def variables(self) -> dict[str, str]:
        """The variables that the session adds to the command's environment."""
        return {**self.session.variables, ENV_VARIABLE: f"{SESSION_DIRECTORY}/{VARIABLES_FILE}"}

    @property
    def mounts(self) -> list[Operation]:
        """The mounts that show the session to the command."""
        return [
            Bind(target=SESSION_DIRECTORY, source=self._directory, why="its session"),
            Text(target=TOOL, content=SCRIPT, mode=0o755, why="its session"),
            *self._shells,
        ]

    def missing(self, run: Run) -> list[Blocked]:
        """Return what this command could not share with others of its session, and what it left running."""
        blocked = []
        if self.why_no_tmp and run.exit_code and TMP in run.command:
            hint = f"each command has an empty one here: {self.why_no_tmp}"
            blocked.append(Blocked(what="tmp", detail=f"{TMP} is not kept between commands", hint=hint))
        if why := self.loopback.reason_to_report():
            hint = f"what others of the session serve at 127.0.0.1 is not reached here: {why}"
            blocked.append(Blocked(what="loopback", detail="each command has a loopback of its own", hint=hint))
        self.read_pipes()
        if self.left_processes:
            from fumehood.core.hints import processes_left_behind

            blocked += processes_left_behind(self.left_processes)
        if not self._ended_in:
            from fumehood.core.shell import changes_directory

            if changes_directory(run.command):
                hint = "where this ended is not known (exec, exit under its own trap, a signal): begin the next with it"
                blocked.append(Blocked(what=END_UNKNOWN, detail="cd", hint=hint))
        return blocked

    def __enter__(self) -> SessionRun:
        try:
            if self._owner is None:
                _make_session_directory(self._session_directory)
            os.mkdir(self._directory, 0o700)
            for name in _PIPES:
                os.mkfifo(f"{self._directory}/{name}", 0o600)
            if self._owner is not None:
                # The directory stays ours: in one of theirs, a link could take a pipe's place before it is given away.
                for name in _PIPES:
                    os.chown(f"{self._directory}/{name}", self._owner.user, self._owner.group)
                os.chmod(self._directory, 0o711)  # noqa: S103 - whatever our umask
            for name in _INPUT_PIPES:
                # For reading and writing, so that neither side waits for the other.
                flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                self._pipes[name] = os.open(f"{self._directory}/{name}", flags)
        except BaseException:
            for pipe in self._pipes.values():
                os.close(pipe)
            remove_session_files(self._store.places, self.session.name, self._run)
            raise
        self.requests = RequestServer(self._directory, self._pipes[REQUESTS], self._scope_options)
        return self

    def __exit__(self, *_error: object) -> None:
        self.loopback.leave()
        self.requests.stop()
        for pipe in self._pipes.values():
            os.close(pipe)
        for name in _PIPES:
            os.unlink(f"{self._directory}/{name}")
        os.rmdir(self._directory)

    @property
    def has_asked(self) -> bool:
        """True if the command has made a request: that can't be done a second time."""
        return self.requests.served > 0

    def read_pipes(self) -> None:
        """Read which directory the command ended in and which processes it left, after its end."""
        self._ended_in, self.left_processes = "", []
        for words in self._read(CWD_FILE).split("\0"):
            cwd, *left_processes = words.split("\n\t")
            self._ended_in = cwd.removesuffix("\n") if cwd.startswith("/") else self._ended_in
            self.left_processes += left_processes

    def save(self, outside: Callable[[str], str]) -> str:
        """Save the directory and variables for the session's next command; returns the directory, or "" if unknown.

        `outside` turns a path that the command saw into the host's.
        """
        cwd = self._ended_in
        environment = self._read(VARIABLES_FILE)
        # Whether it exists is checked when it is used: the change that makes it may not be applied yet.
        cwd = outside(cwd) if cwd else ""
        if (cwd and cwd != self.session.cwd) or environment:
            self.session = self._store.sessions.update(
                self.session.name,
                lambda session: session.replace(
                    cwd=cwd or session.cwd, environment=tuple(update_variables(session.variables, environment).items())
                ),
            )
        return cwd

    def forget_directory(self) -> None:
        """Have the session's next command start in the project: the directory of the last one is gone."""
        self._store.sessions.update(self.session.name, lambda session: session.replace(cwd=""))

    def _read(self, name: str) -> str:
        try:
            return os.fsdecode(os.read(self._pipes[name], _PIPE_CAPACITY))
        except BlockingIOError:
            return ""

    def _make_tmp(self, roots: Sequence[str], run: str) -> None:
        """Make the session's /tmp.

        Mount points for roots below /tmp are made before any command sees it. Since every command has something mounted
        there, none can put a link in its place, which bubblewrap would follow for the next command.
        """
        _make_session_directory(self._session_directory)
        points = sorted({root.split("/")[2] for root in roots if root.startswith(f"{TMP}/")})
        plain, with_points = f"{self._session_directory}{TMP}", f"{self._session_directory}/with-points"
        if points and not os.path.isdir(plain) and not os.path.isdir(with_points):
            new = f"{self._session_directory}/new-{run}"
            for name in points:
                os.makedirs(f"{new}/points/{name}", 0o755)
                os.makedirs(f"{new}{TMP}/{name}", 0o755)
            os.chmod(f"{new}{TMP}", 0o1777)  # noqa: S103 - as a /tmp is; the directory around it is closed
            try:
                os.rename(new, with_points)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                remove_directory(new)  # another command was faster
        if os.path.isdir(with_points):
            self.tmp, self.tmp_points = f"{with_points}{TMP}", os.listdir(f"{with_points}/points")
            return
        self.tmp = plain
        if not os.path.isdir(plain):
            make_private(plain)
            os.chmod(plain, 0o1777)  # noqa: S103


def _make_session_directory(session_directory: str) -> None:
    make_private(os.path.dirname(session_directory))
    make_private(session_directory)


def leave_link(link: str, target: str) -> tuple[Blocked, ...]:
    """Make a link to a directory for a client's shell to follow; old links are removed.

    Returns a notice if only commands in the hood see the target, such as their /tmp.
    """
    above = os.path.dirname(link)
    _make_session_directory(above)
    with os.scandir(above) as entries:
        for entry in entries:
            try:
                if entry.is_symlink() and entry.stat(follow_symlinks=False).st_mtime < time.time() - _LINK_LIFETIME_S:
                    os.unlink(entry.path)
            except FileNotFoundError:
                continue  # another command was faster
    try:
        os.symlink(target, link)
    except FileExistsError:
        os.unlink(link)
        os.symlink(target, link)
    if os.path.isdir(target):
        return ()
    hint = "only commands in the hood see it: begin each with cd"
    return (Blocked(what=NOT_FOLLOWED, detail=target, hint=hint),)


def remove_session_files(places: Places, session: str, run: str) -> None:
    """Remove the pipes that a dead run has left in its session, or in /run if root ran it for another user."""
    for directory, beginning in ((places.session(session), run), (_SHARED_DIRECTORY, f"fumehood-{run}")):
        try:
            top = open_top(directory)
        except FileNotFoundError:
            continue
        with Closing(top):
            for name in entries(top):
                if name == beginning or name.startswith(f"{beginning}."):
                    remove_tree(top, name)


def remove_old_sessions(
    store: Store, recorded: Days, days: int, now: float, *, project: int | None = None, dry: bool = False
) -> int:
    """Remove the directories of sessions without a run for some recorded days; their records stay.

    Of one project, or of all. Returns their number.
    """
    try:
        sessions = open_top(f"{store.places.state}/sessions")
    except FileNotFoundError:
        return 0
    with Closing(sessions):
        unfinished = store.history.runs(among=[name for name, *_ in store.history.unfinished_runs()])
        in_use = {name for run in unfinished for name in (run.session, draft_session_name(run.draft or 0))}
        rows = store.database.rows(
            "SELECT name, sessions.project, max(day) FROM sessions LEFT JOIN runs ON session = name GROUP BY name"
        )
        last_days = {name: (owner, day) for name, owner, day in rows}
        old = []
        for name in entries(sessions):
            owner, day = last_days.get(name, (None, None))
            if name in in_use or project not in (None, owner):
                continue
            if day is None:
                used_at = os.stat(name, dir_fd=sessions, follow_symlinks=False).st_mtime
                is_old = used_at < recorded.cutoff_time(days, now)
            else:
                is_old = days == 0 or recorded.days_after_number(day) > days
            if is_old:
                old.append(name)
        for name in [] if dry else old:
            remove_tree(sessions, name)
    return len(old)


def keep_variables(store: Store, name: str, variables: Mapping[str, str | None]) -> None:
    """Save variables for every later command of a session; None removes one."""
    names: Iterable[object] = variables  # programs pass what they like
    for each in names:
        if not isinstance(each, str) or not is_variable_name(each):
            raise BadRequest(f"{each!r} can't be kept as a variable", hint="letters, digits and _, not FUMEHOOD…")
    check_variables((name, "" if value is None else value) for name, value in variables.items())

    def changed(session: Session) -> Session:
        merged = {**session.variables, **variables}
        return session.replace(environment=tuple((name, value) for name, value in merged.items() if value is not None))

    store.sessions.update(name, changed)


# ---- What an agent was told before in its session: each thing is told once.

# What every command that meets it must be told.
_TOLD_EACH_TIME = frozenset({"network", "limit", "stopped", NOT_FOLLOWED, END_UNKNOWN})
_MOST_REMEMBERED_BYTES = 1 << 16
_CHECKSUM_BYTES = 9  # bytes of a line


def unreported(session_directory: str, blocked: Sequence[Blocked]) -> tuple[Blocked, ...]:
    """Return what the session's agent was not told before, and remember it in the session's directory.

    If it was told the same advice before, about another path or command, the advice is left out.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(f"{session_directory}/told", flags, 0o600)
    except OSError:
        return tuple(blocked)  # there is no such directory, as for another user's project
    with Closing(file):
        content = os.pread(file, _MOST_REMEMBERED_BYTES, 0)
        before = {content[at : at + _CHECKSUM_BYTES] for at in range(0, len(content), _CHECKSUM_BYTES)}
        new: list[Blocked] = []
        for each in blocked:
            whole, advice = (b"%08x\n" % zlib.crc32("\0".join(words).encode(errors="replace")) for words in (
                (each.what, each.detail, each.hint), (each.what, each.hint),
            ))  # fmt: skip
            if whole in before and each.what not in _TOLD_EACH_TIME:
                continue
            new.append(each.replace(hint="") if advice in before else each)
            if len(content) < _MOST_REMEMBERED_BYTES:
                os.write(file, b"".join(line for line in (whole, advice) if line not in before))
            before |= {whole, advice}
    return tuple(new)
