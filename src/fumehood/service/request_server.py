"""`fumehood` inside the hood: a small script there, and here the server that answers its requests, within bounds.

The script writes one line into a pipe and reads the answer from another; both lie in a directory that the command
sees read-only. core/inside.py decides what may be requested at all. It is then done by a command line of ours, in a
process of its own that reaches only this session's runs; a person is asked by whoever can ask them meanwhile.
"""

from __future__ import annotations

import os
import select
import time

from fumehood.core.inside import (
    ASK,
    BEGAN,
    ENDED,
    HELP,
    LONGEST_REQUEST,
    MOST_WORDS,
    TOO_MUCH,
    AccessRequest,
    access_requests,
    asker_of,
    checked_words,
    is_shell_notice,
    split_request,
)
from fumehood.core.request import SESSION_BIN, SESSION_DIRECTORY
from fumehood.errors import Refused, as_fumehood_error
from fumehood.linux.process import interpreter_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from subprocess import Popen

    from fumehood.linux.process import PendingQuestions

REQUESTS, ANSWERS, _CLOSED = "ask", "answer", "closed"  # in the session's directory: two pipes, and a mark
TOOL = f"{SESSION_BIN}/fumehood"
_MOST_REQUESTS, _MOST_ASKED = 200, 10  # of one run
_MOST_BYTES = 1 << 20  # of an answer
_PATIENCE_S = 60.0  # for a request, and for the script to read the answer
_PERSON_PATIENCE_S = 3600.0  # for a process that asks a person, and limits the time for each answer itself
_POLL_S = 0.01

SCRIPT = f"""#!/bin/sh
# Fumehood, from inside the hood: fumehood --help
d={SESSION_DIRECTORY} s=$(printf '\\037') line=$$$(printf '\\037')$(pwd)
for word; do line=$line$s$word; done
case $line in *'
'*) echo 'ERROR: a word has several lines' >&2; exit 125 ;; esac
if [ $# -gt {MOST_WORDS} ] || [ ${{#line}} -gt {LONGEST_REQUEST} ]; then
    echo 'ERROR: {TOO_MUCH}
hint: {MOST_WORDS} words and {LONGEST_REQUEST} bytes at most' >&2; exit 125
fi
exec 9<>$d/{REQUESTS} || exit 125
flock 9 2>/dev/null
if [ -e $d/{_CLOSED} ]; then echo 'ERROR: this command has asked too often' >&2; exit 125; fi
printf '%s\\n' "$line" >&9
id=
while [ "$id" != $$ ]; do
    {{
        read -r id code
        if [ "$id" != $$ ]; then cat >/dev/null; elif [ "$code" = 0 ]; then cat; else cat >&2; fi
    }} <$d/{ANSWERS}
done
exit "${{code:-125}}"
""".encode()


class RequestServer:
    """Answers the requests of one run; the thread that attends the command calls `fileno`, `drain` and `stop`.

    While one request is served, no other is read.
    """

    def __init__(self, directory: str, requests: int, scope_options: Sequence[str]) -> None:
        self._directory = directory
        self._requests = requests
        self._scope_options = scope_options  # options that limit our command line to the session's runs
        self._waiting = b""
        self._thread: threading.Thread | None = None
        self._child: Popen[bytes] | None = None
        self._done = -1
        self._is_stopped = False
        self._asked_count = 0  # requests that a person must allow
        self.served = 0
        self.outside: Callable[[str], str] = str  # turns a path that the command saw into the host's
        self.roots_inside: Mapping[str, str] = {}  # where the command sees the roots, if at other paths
        self.questions: PendingQuestions | None = None
        self.ask_person: Callable[[Sequence[AccessRequest]], str] | None = None  # None if nobody can be asked
        # Called where the agent's shells say when commands begin and end.
        self.on_shell_message: Callable[[Sequence[str], str], str] | None = None

    def fileno(self) -> int:
        """The descriptor to poll: for requests, or for the end of the one that is served."""
        return self._done if self._thread is not None or self._is_closed else self._requests

    @property
    def _is_closed(self) -> bool:
        """True after too many requests. Messages of shells are still read, and other requests of theirs are refused."""
        return self.served >= _MOST_REQUESTS and self.on_shell_message is None

    def drain(self) -> None:
        """Read a request, or notice that one was answered."""
        if self._thread is not None:
            os.eventfd_read(self._done)
            self._thread.join()
            self._thread = None
            if self._is_closed:
                return
        else:
            try:
                self._waiting += os.read(self._requests, LONGEST_REQUEST)
            except BlockingIOError:
                return
        line, is_whole, rest = self._waiting.partition(b"\n")
        if not is_whole:
            # the head of a line that is too long says who waits for the answer
            self._waiting = line[: LONGEST_REQUEST + 1]
            return
        self._waiting = rest
        reply = b""
        if self.on_shell_message is not None and is_shell_notice(line):
            reply = self._reply(line)  # in this thread, which attends the sandbox: its processes are stopped meanwhile
        else:
            self.served += 1
        if self._is_closed:
            os.close(os.open(f"{self._directory}/{_CLOSED}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
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
        """Stop serving: the command has ended, and nobody waits for an answer."""
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
            os.unlink(f"{self._directory}/{_CLOSED}")

    def _reply(self, line: bytes) -> bytes:
        number, code, text = asker_of(line), 0, b""
        try:
            _, cwd, words = split_request(line)
            code, text = self._perform(words, lambda path: self.outside(os.path.normpath(os.path.join(cwd, path))))
        except Exception as error:  # noqa: BLE001 - whoever waits gets an answer, whatever went wrong
            plain = as_fumehood_error(error)
            hint = f"hint: {plain.hint}\n" if plain.hint else ""
            code, text = plain.exit_code, f"ERROR: {plain.message}\n{hint}".encode(errors="backslashreplace")
        return b"%b %d\n%b" % (number.encode(), code, text)

    def _perform(self, words: list[str], absolute: Callable[[str], str]) -> tuple[int, bytes]:
        if self.on_shell_message is not None and words[:1] in ([BEGAN], [ENDED]):
            return 0, self.on_shell_message(words, absolute(".")).encode(errors="backslashreplace")
        if self.served > _MOST_REQUESTS:
            raise Refused("this command has asked too often", hint="fumehood outside the hood is for a person")
        if not words or words[0] in ("-h", "--help", "help"):
            return 0, HELP.encode()
        if words[0] != ASK:
            return self._by_command_line(checked_words(words, absolute))
        requested_access = access_requests(words[1:], absolute)
        self._asked_count += len(requested_access)
        if self._asked_count > _MOST_ASKED:
            raise Refused(f"a command may ask for {_MOST_ASKED} things at most", hint="ask in another one")
        if self.ask_person is not None:
            return 0, self.ask_person(requested_access).encode(errors="backslashreplace")
        # Nobody was there when the command began. Somebody who has come since is asked; else the agent is told the line
        # that a person can type.
        options = [f"--{each.what}={each.target}" for each in requested_access]
        options += [f"--reason={requested_access[0].reason}"] if requested_access[0].reason else []
        return self._by_command_line([ASK, *options])

    def _by_command_line(self, words: Sequence[str]) -> tuple[int, bytes]:
        """Run our command line in a process of its own, and return its exit code and output."""
        import subprocess

        line = interpreter_command("fumehood.faces.cli.main", "run_inside", words[0], *self._scope_options, *words[1:])
        child = self._child = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
            start_new_session=True,
        )  # fmt: skip
        try:
            if self._is_stopped:  # just now
                child.kill()
            text, is_all = _read(child, _PERSON_PATIENCE_S if words[0] == ASK else _PATIENCE_S)
        finally:
            child.kill()
            code = child.wait()
            self._child = None
        for root, target in self.roots_inside.items() if words[0] == "status" else ():
            text = text.replace(os.fsencode(f" {root}\n"), os.fsencode(f" {target}\n"))
        return code if is_all and code >= 0 else 125, text

    def _answer(self, data: bytes) -> None:
        """Write the answer to the pipe; gives up if nobody reads it."""
        until = time.monotonic() + _PATIENCE_S
        pipe = -1
        while pipe < 0:
            try:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                pipe = os.open(f"{self._directory}/{ANSWERS}", flags)
            except OSError:  # nobody reads the pipe yet
                if self._is_stopped or time.monotonic() > until:
                    return
                time.sleep(_POLL_S)
        try:
            poll = select.poll()
            poll.register(pipe, select.POLLOUT)
            while data and not self._is_stopped and time.monotonic() < until:
                if poll.poll(100):
                    data = data[os.write(pipe, data) :]
        except (BrokenPipeError, BlockingIOError):
            return  # it does not read on
        finally:
            os.close(pipe)


def _read(child: Popen[bytes], patience_s: float) -> tuple[bytes, bool]:
    """Return what a process prints, within limits of size and time, and whether that is all."""
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
