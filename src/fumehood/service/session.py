"""A run's seat in its session: what it starts from, what it can tell and ask for, and what is kept of that."""

from __future__ import annotations

import errno
import os
import select
import time
import zlib

from fumehood.core.inside import (
    ASK,
    BEGAN,
    ENDED,
    HELP,
    LONGEST,
    MOST_WORDS,
    TOO_MUCH,
    Widening,
    asker,
    checked,
    is_of_a_shell,
    parsed,
    widenings,
)
from fumehood.core.report import END_UNKNOWN, NOT_FOLLOWED, Blocked, Run
from fumehood.core.request import (
    CWD_FILE,
    ENV_VARIABLE,
    SESSION_BIN,
    SESSION_DIRECTORY,
    VARIABLES_FILE,
    Session,
    check_variables,
    draft_session_name,
    is_variable_name,
    update_variables,
)
from fumehood.errors import BadRequest, Refused, plain_error
from fumehood.linux.bwrap import TMP
from fumehood.linux.launch import owner_of
from fumehood.linux.libc import Closing
from fumehood.linux.mounts import Bind, Operation, Text
from fumehood.linux.nofollow import entries, open_top, remove_directory, remove_tree
from fumehood.linux.process import interpreter
from fumehood.service.loopback import Loopback
from fumehood.store.places import Places, make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from subprocess import Popen

    from fumehood.core.request import Request
    from fumehood.linux.process import QuestionsOpen
    from fumehood.service.store import Store
    from fumehood.store.database import Days
    from fumehood.store.projects import Project


_MOST = 1 << 16  # what a pipe holds
_FOR_OTHERS = "/run"  # our own state is closed to another user
_FOLLOWED_S = 600.0
_REQUESTS, _ANSWERS, _CLOSED = "ask", "answer", "closed"
_HEARD = (CWD_FILE, VARIABLES_FILE, _REQUESTS)
_PIPES = (*_HEARD, _ANSWERS)


def session_of(store: Store, project: Project, name: str) -> Session:
    """Return this project's session of a name; one that began elsewhere is not shared."""
    session = store.sessions.open(project.id, name)
    if session.project != project.id:
        other = store.projects.path_of(session.project)
        raise BadRequest(f"the session {name} belongs to {other}", hint="give the session another name")
    return session


def project_of(store: Store, name: str) -> str | None:
    """Return the project that a session works on, or None where it has not begun."""
    session = store.sessions.find(name)
    return None if session is None else store.projects.path_of(session.project)


class SessionRun:
    """One run's place in its session.

    The command tells where it ended, what to keep and what it asks for through pipes that have names in its /dev: they
    hold little, they can't be replaced by a link, and they are gone with the run. A directory that is seen read-only
    holds them, which forbids nothing to who writes to a pipe.
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
        self._room = store.places.session(name)
        self._directory = f"{self._room}/{run}" if self._owner is None else f"{_FOR_OTHERS}/fumehood-{run}"
        self._pipes: dict[str, int] = {}
        self.loopback = Loopback(store.places, request.loopback or name, run)
        self.requests: RequestServer  # from `__enter__` on
        self._reach = "--project", project.path, "--only-session", name, "--asked-by", run
        self.tmp = ""
        self.tmp_points: Sequence[str] = ()  # directories in it that roots below /tmp can be mounted in
        self.must_have_tmp = request.own_tmp
        self.why_no_tmp = ""
        self._shells = shells  # in the place of the host's: they say when a command begins and ends
        self._ended_in = ""
        self.left_processes: list[str] = []  # that its shell left behind, as the command says: lines of their `stat`
        if keeps_tmp and self._owner is None:
            self._make_tmp(project.roots, run)
        elif keeps_tmp:
            self.why_no_tmp = f"{project.path} belongs to another user"
            if self.must_have_tmp:
                raise BadRequest(f"a session can't have its own /tmp here: {self.why_no_tmp}", hint="leave it out")

    @property
    def variables(self) -> dict[str, str]:
        """What the command's environment gets."""
        return {**self.session.variables, ENV_VARIABLE: f"{SESSION_DIRECTORY}/{VARIABLES_FILE}"}

    @property
    def mounts(self) -> list[Operation]:
        """What the sandbox shows of the session."""
        return [
            Bind(target=SESSION_DIRECTORY, source=self._directory, why="its session"),
            Text(target=_TOOL, content=_SCRIPT, mode=0o755, why="its session"),
            *self._shells,
        ]

    def missing(self, run: Run) -> list[Blocked]:
        """Return what a command missed that those of a session usually share, and what it left running."""
        blocked = []
        if self.why_no_tmp and run.exit_code and TMP in run.command:
            hint = f"each command has an empty one here: {self.why_no_tmp}"
            blocked.append(Blocked(what="tmp", detail=f"{TMP} is not kept between commands", hint=hint))
        if why := self.loopback.to_tell():
            hint = f"what others of the session serve at 127.0.0.1 is not reached here: {why}"
            blocked.append(Blocked(what="loopback", detail="each command has a loopback of its own", hint=hint))
        self.read_pipes()
        if self.left_processes:
            from fumehood.core.hints import left_behind

            blocked += left_behind(self.left_processes)
        if not self._ended_in:
            from fumehood.core.shell import changes_directory

            if changes_directory(run.command):
                hint = "where this ended is not known (exec, exit under its own trap, a signal): begin the next with it"
                blocked.append(Blocked(what=END_UNKNOWN, detail="cd", hint=hint))
        return blocked

    def __enter__(self) -> SessionRun:
        try:
            if self._owner is None:
                _make_room(self._room)
            os.mkdir(self._directory, 0o700)
            for name in _PIPES:
                os.mkfifo(f"{self._directory}/{name}", 0o600)
            if self._owner is not None:
                # The directory stays ours: in one of theirs, a link could take a pipe's place before it is given away.
                for name in _PIPES:
                    os.chown(f"{self._directory}/{name}", self._owner.user, self._owner.group)
                os.chmod(self._directory, 0o711)  # noqa: S103 - whatever our umask
            for name in _HEARD:
                # For reading and writing, so that neither side waits for the other.
                flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                self._pipes[name] = os.open(f"{self._directory}/{name}", flags)
        except BaseException:
            for pipe in self._pipes.values():
                os.close(pipe)
            clear_seat(self._store.places, self.session.name, self._run)
            raise
        self.requests = RequestServer(self._directory, self._pipes[_REQUESTS], self._reach)
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
        """Whether the command asked for something outside, which can't be done a second time."""
        return self.requests.served > 0

    def read_pipes(self) -> None:
        """Read which directory the command ended in and which processes it left, after its end."""
        self._ended_in, self.left_processes = "", []
        for words in self._read(CWD_FILE).split("\0"):
            cwd, *left_processes = words.split("\n\t")
            self._ended_in = cwd.removesuffix("\n") if cwd.startswith("/") else self._ended_in
            self.left_processes += left_processes

    def save(self, outside: Callable[[str], str]) -> str:
        """Remember what the command told; returns the directory it ended in, if it said so.

        `outside` turns a path that the command saw into one that the person knows.
        """
        cwd = self._ended_in
        environment = self._read(VARIABLES_FILE)
        # Whether it is there is asked when it is used: it may be among what is yet to be applied.
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
        """Have the session's next command start in the project: where the last one ended is gone."""
        self._store.sessions.update(self.session.name, lambda session: session.replace(cwd=""))

    def _read(self, name: str) -> str:
        try:
            return os.fsdecode(os.read(self._pipes[name], _MOST))
        except BlockingIOError:
            return ""

    def _make_tmp(self, roots: Sequence[str], run: str) -> None:
        """Make the session's /tmp.

        What roots below /tmp are mounted in is made before any command sees it. As all of them have something mounted
        there, none can put a link in its place, which bubblewrap would follow for the next.
        """
        _make_room(self._room)
        points = sorted({root.split("/")[2] for root in roots if root.startswith(f"{TMP}/")})
        plain, with_points = f"{self._room}{TMP}", f"{self._room}/with-points"
        if points and not os.path.isdir(plain) and not os.path.isdir(with_points):
            new = f"{self._room}/new-{run}"
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


def _make_room(room: str) -> None:
    make_private(os.path.dirname(room))
    make_private(room)


def leave_link(link: str, target: str) -> tuple[Blocked, ...]:
    """Make a link for a client's shell to follow; those that were followed long ago are removed.

    Returns what to tell where it can't follow: to what only the session's commands see, such as their /tmp.
    """
    above = os.path.dirname(link)
    _make_room(above)
    with os.scandir(above) as entries:
        for entry in entries:
            try:
                if entry.is_symlink() and entry.stat(follow_symlinks=False).st_mtime < time.time() - _FOLLOWED_S:
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


def clear_seat(places: Places, session: str, run: str) -> None:
    """Remove what a run that died has left of itself in its session, and where root worked for somebody else."""
    for directory, beginning in ((places.session(session), run), (_FOR_OTHERS, f"fumehood-{run}")):
        try:
            top = open_top(directory)
        except FileNotFoundError:
            continue
        with Closing(top):
            for name in entries(top):
                if name == beginning or name.startswith(f"{beginning}."):
                    remove_tree(top, name)


def sweep_sessions(
    store: Store, recorded: Days, days: int, now: float, *, project: int | None = None, dry: bool = False
) -> int:
    """Remove the directories of sessions that have not run for some recorded days; their records stay.

    Of one project, or of all. Returns how many there were.
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
                is_old = used_at < recorded.moment(days, now)
            else:
                is_old = days == 0 or recorded.since(day) > days
            if is_old:
                old.append(name)
        for name in [] if dry else old:
            remove_tree(sessions, name)
    return len(old)


def keep_variables(store: Store, name: str, variables: Mapping[str, str | None]) -> None:
    """Give every later command of a session these variables; None takes one away."""
    names: Iterable[object] = variables  # programs pass what they like
    for each in names:
        if not isinstance(each, str) or not is_variable_name(each):
            raise BadRequest(f"{each!r} can't be kept as a variable", hint="letters, digits and _, not FUMEHOOD…")
    check_variables((name, "" if value is None else value) for name, value in variables.items())

    def changed(session: Session) -> Session:
        merged = {**session.variables, **variables}
        return session.replace(environment=tuple((name, value) for name, value in merged.items() if value is not None))

    store.sessions.update(name, changed)


# ---- What an agent was told before in its session: what does not change is told once.

_ALWAYS = frozenset({"network", "limit", "stopped", NOT_FOLLOWED, END_UNKNOWN})  # each command that met it must know
_LARGEST = 1 << 16
_SUM = 9  # bytes of a line


def unreported(room: str, blocked: Sequence[Blocked]) -> tuple[Blocked, ...]:
    """Return what is new to a session's agent, and remember it in the session's directory.

    Of what it met again, in another place or another command, the advice is left out, which it knows.
    """
    try:
        file = os.open(f"{room}/told", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return tuple(blocked)  # there is no such directory, as for another user's project
    with Closing(file):
        content = os.pread(file, _LARGEST, 0)
        before = {content[at : at + _SUM] for at in range(0, len(content), _SUM)}
        new: list[Blocked] = []
        for each in blocked:
            whole, advice = (b"%08x\n" % zlib.crc32("\0".join(words).encode(errors="replace")) for words in (
                (each.what, each.detail, each.hint), (each.what, each.hint),
            ))  # fmt: skip
            if whole in before and each.what not in _ALWAYS:
                continue
            new.append(each.replace(hint="") if advice in before else each)
            if len(content) < _LARGEST:
                os.write(file, b"".join(line for line in (whole, advice) if line not in before))
            before |= {whole, advice}
    return tuple(new)


# ---- `fumehood` inside the hood: a small script there, and here the end that does what it asks for, within bounds.
#
# The script writes one line into a pipe and reads the answer from another; both lie in a directory that the command
# sees read-only. What may be done at all is decided in core/inside.py. It is then done by a command line of ours, in a
# process of its own that reaches this session's runs only; a person is asked by whoever can ask them meanwhile.

_TOOL = f"{SESSION_BIN}/fumehood"
_MOST_REQUESTS, _MOST_ASKED = 200, 10  # of one run
_MOST_BYTES = 1 << 20  # of an answer
_PATIENCE_S = 60.0  # for what is asked, and for the script to take the answer
_PERSON_S = 3600.0  # for who is asked by a process of its own, which knows how long to wait for each answer
_LOOK_S = 0.01

_SCRIPT = f"""#!/bin/sh
# Fumehood, from inside the hood: fumehood --help
d={SESSION_DIRECTORY} s=$(printf '\\037') line=$$$(printf '\\037')$(pwd)
for word; do line=$line$s$word; done
case $line in *'
'*) echo 'ERROR: a word has several lines' >&2; exit 125 ;; esac
if [ $# -gt {MOST_WORDS} ] || [ ${{#line}} -gt {LONGEST} ]; then
    echo 'ERROR: {TOO_MUCH}
hint: {MOST_WORDS} words and {LONGEST} bytes at most' >&2; exit 125
fi
exec 9<>$d/{_REQUESTS} || exit 125
flock 9 2>/dev/null
if [ -e $d/{_CLOSED} ]; then echo 'ERROR: this command has asked too often' >&2; exit 125; fi
printf '%s\\n' "$line" >&9
id=
while [ "$id" != $$ ]; do
    {{
        read -r id code
        if [ "$id" != $$ ]; then cat >/dev/null; elif [ "$code" = 0 ]; then cat; else cat >&2; fi
    }} <$d/{_ANSWERS}
done
exit "${{code:-125}}"
""".encode()


class RequestServer:
    """The outside end, for one run; the thread that attends it calls `fileno`, `drain` and `stop`.

    One request at a time: while one is served, no other is read.
    """

    def __init__(self, room: str, requests: int, reach: Sequence[str]) -> None:
        self._room = room
        self._requests = requests
        self._reach = reach  # options that keep our command line to the session's runs
        self._waiting = b""
        self._thread: threading.Thread | None = None
        self._child: Popen[bytes] | None = None
        self._done = -1
        self._is_stopped = False
        self._asked = 0  # things that a person must allow
        self.served = 0
        self.outside: Callable[[str], str] = str  # turns a path that the command saw into one that the person knows
        self.roots_inside: Mapping[str, str] = {}  # the roots, and where the command sees them if that is elsewhere
        self.questions: QuestionsOpen | None = None
        self.ask_person: Callable[[Sequence[Widening]], str] | None = None  # where a person can be asked
        # Called where the agent's shells say when commands begin and end.
        self.on_shell_message: Callable[[Sequence[str], str], str] | None = None

    def fileno(self) -> int:
        """The descriptor to poll: requests, or the end of the one that is served; once there were too many, that."""
        return self._done if self._thread is not None or self._is_closed else self._requests

    @property
    def _is_closed(self) -> bool:
        """Too much was asked; shells are heard on, and all else that they ask is refused."""
        return self.served >= _MOST_REQUESTS and self.on_shell_message is None

    def drain(self) -> None:
        """Take a request, or note that one was answered."""
        if self._thread is not None:
            os.eventfd_read(self._done)
            self._thread.join()
            self._thread = None
            if self._is_closed:
                return
        else:
            try:
                self._waiting += os.read(self._requests, LONGEST)
            except BlockingIOError:
                return
        line, is_whole, rest = self._waiting.partition(b"\n")
        if not is_whole:
            self._waiting = line[: LONGEST + 1]  # of one that is too long, the head says who waits for the answer
            return
        self._waiting = rest
        reply = b""
        if self.on_shell_message is not None and is_of_a_shell(line):
            reply = self._reply(line)  # here, by whoever attends the sandbox: its processes are stopped meanwhile
        else:
            self.served += 1
        if self._is_closed:
            os.close(os.open(f"{self._room}/{_CLOSED}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        if self._done < 0:
            self._done = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        import threading

        def serve() -> None:
            try:
                self._answer(reply or self._reply(line))
            finally:
                os.eventfd_write(self._done, 1)

        self._thread = threading.Thread(target=serve, name="fumehood-door", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The command has ended: whoever asked is gone."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._thread is not None:
            if self.questions is not None:
                self.questions.close()
            child = self._child
            if child is not None:
                child.kill()
            self._thread.join()
            self._thread = None
        if self._done >= 0:
            os.close(self._done)
            self._done = -1
        if self._is_closed:
            os.unlink(f"{self._room}/{_CLOSED}")

    def _reply(self, line: bytes) -> bytes:
        number, code, text = asker(line), 0, b""
        try:
            _, cwd, words = parsed(line)
            code, text = self._done_for(words, lambda path: self.outside(os.path.normpath(os.path.join(cwd, path))))
        except Exception as error:  # noqa: BLE001 - whoever waits gets an answer, whatever went wrong
            plain = plain_error(error)
            hint = f"hint: {plain.hint}\n" if plain.hint else ""
            code, text = plain.exit_code, f"ERROR: {plain.message}\n{hint}".encode(errors="backslashreplace")
        return b"%b %d\n%b" % (number.encode(), code, text)

    def _done_for(self, words: list[str], whole: Callable[[str], str]) -> tuple[int, bytes]:
        if self.on_shell_message is not None and words[:1] in ([BEGAN], [ENDED]):
            return 0, self.on_shell_message(words, whole(".")).encode(errors="backslashreplace")
        if self.served > _MOST_REQUESTS:
            raise Refused("this command has asked too often", hint="fumehood outside the hood is for a person")
        if not words or words[0] in ("-h", "--help", "help"):
            return 0, HELP.encode()
        if words[0] != ASK:
            return self._by_command_line(checked(words, whole))
        asked = widenings(words[1:], whole)
        self._asked += len(asked)
        if self._asked > _MOST_ASKED:
            raise Refused(f"a command may ask for {_MOST_ASKED} things at most", hint="ask in another one")
        if self.ask_person is not None:
            return 0, self.ask_person(asked).encode(errors="backslashreplace")
        # Nobody was there when the command began: whoever has come is asked, else the line for a person is told.
        options = [f"--{each.what}={each.target}" for each in asked]
        options += [f"--reason={asked[0].reason}"] if asked[0].reason else []
        return self._by_command_line([ASK, *options])

    def _by_command_line(self, words: Sequence[str]) -> tuple[int, bytes]:
        """Run our own command line in a process of its own, and return how it ended and what it printed."""
        import subprocess

        line = interpreter("fumehood.faces.cli.main", "run_inside", words[0], *self._reach, *words[1:])
        child = self._child = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
            start_new_session=True,
        )  # fmt: skip
        try:
            if self._is_stopped:  # just now
                child.kill()
            text, is_all = _read(child, _PERSON_S if words[0] == ASK else _PATIENCE_S)
        finally:
            child.kill()
            code = child.wait()
            self._child = None
        for root, target in self.roots_inside.items() if words[0] == "status" else ():
            text = text.replace(os.fsencode(f" {root}\n"), os.fsencode(f" {target}\n"))
        return code if is_all and code >= 0 else 125, text

    def _answer(self, data: bytes) -> None:
        """Write to the pipe that the script reads from; gives up where nobody does."""
        until = time.monotonic() + _PATIENCE_S
        pipe = -1
        while pipe < 0:
            try:
                pipe = os.open(f"{self._room}/{_ANSWERS}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:  # nobody reads there yet
                if self._is_stopped or time.monotonic() > until:
                    return
                time.sleep(_LOOK_S)
        try:
            poll = select.poll()
            poll.register(pipe, select.POLLOUT)
            while data and not self._is_stopped and time.monotonic() < until:
                if poll.poll(100):
                    data = data[os.write(pipe, data) :]
        except (BrokenPipeError, BlockingIOError):
            return  # it has had enough
        finally:
            os.close(pipe)


def _read(child: Popen[bytes], patience_s: float) -> tuple[bytes, bool]:
    """Return what a process prints, within bounds of size and time, and whether that is all."""
    assert child.stdout is not None
    until = time.monotonic() + patience_s
    text = b""
    with child.stdout as stream:
        poll = select.poll()
        poll.register(stream, select.POLLIN | select.POLLHUP)
        while len(text) < _MOST_BYTES and (left := until - time.monotonic()) > 0:
            if poll.poll(left * 1000):
                piece = os.read(stream.fileno(), 1 << 16)
                if not piece:
                    child.wait()
                    return text, True
                text += piece
    return text + b"\n[the rest is left out]\n", False
