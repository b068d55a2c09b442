"""Ask the person at the terminal: what is asked, in what directory, one key to answer, no by default."""

from __future__ import annotations

import os
import select
import time

from fumehood.core import questions
from fumehood.core.wording import WIDTH
from fumehood.linux.terminal import hear_resuming, tell_when_resumed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.linux.terminal import TerminalTurn
    from fumehood.service.ask import Ask, Asked

_TTY = "/dev/tty"
_BELL = "\a"
_EXACT_S = 10  # seconds below which their fractions are shown
KEYS = {
    questions.ALLOW_ONCE: ("y", "allow once"), questions.ALLOW_SESSION: ("s", "allow for this session"),
    questions.ALLOW_ALWAYS: ("a", "allow always"), questions.DENY_ONCE: ("n", "deny"),
    questions.DENY_SESSION: ("q", "deny for this session"), questions.DENY_ALWAYS: ("v", "never"),
}  # fmt: skip
_NO = frozenset("\r\n\x03\x04\x1b")  # Enter, Ctrl-C where it is a key, the end of input, Escape: the default


def terminal() -> tuple[Ask, ...]:
    """Return the person at the terminal, if there is one and it is ours: not where we run in the background."""
    tty = _opened()
    if tty is None:
        return ()
    os.close(tty)
    return (AtTerminal(),)


class AtTerminal:
    """Asks on the controlling terminal, whatever standard input and output are."""

    def put(self, asked: Asked) -> None:
        """Show the question, and wait for a key in a thread."""
        import threading

        tty = _opened()
        if tty is None:
            asked.answer(None)
            return
        if threading.current_thread() is threading.main_thread():
            hear_resuming()
        closed, closing = os.pipe()
        resumed, resuming = os.pipe2(os.O_NONBLOCK)
        hear_no_more = tell_when_resumed(lambda: os.write(resuming, b"."))
        deadline = time.monotonic() + asked.seconds

        def clear_away() -> None:
            hear_no_more()
            for descriptor in (closed, resumed, resuming, tty):
                os.close(descriptor)

        asked.wait_in_thread(
            "fumehood-prompt", lambda: _prompt(tty, closed, resumed, asked, deadline), lambda: os.close(closing),
            clear_away,
        )  # fmt: skip


def _opened() -> int | None:
    try:
        tty = os.open(_TTY, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.tcgetpgrp(tty) == os.getpgrp():
            return tty
    except OSError:
        pass  # it hung up
    os.close(tty)
    return None


def _prompt(tty: int, closed: int, resumed: int, asked: Asked, deadline: float) -> None:
    import termios

    try:
        with turn(tty) as mine:
            if not mine.wait(closed):
                return  # settled while another question was on the screen
            answer = None
            while answer is None:
                # Once more after Ctrl-Z and fg: the shell had the terminal, and the question is out of sight.
                with Keys(tty):
                    # What the pipe told of is behind us.
                    while select.select([resumed], [], [], 0)[0]:
                        os.read(resumed, 4096)
                    left = max(0.0, deadline - time.monotonic())
                    _write(tty, _BELL + prompt_text(asked.question, left, columns(tty)))
                    answer = _answer(tty, closed, resumed, asked.question)
            is_ours = bool(answer) and asked.answer(answer)
            # Whoever reads this has the terminal back as it was.
            _write(tty, f" {KEYS[answer][1] if is_ours else _outcome(asked)}\n")
    except (OSError, termios.error):
        asked.answer(None)  # the terminal is gone, and with it whoever was there


def _outcome(asked: Asked) -> str:
    """Say what came of a question that was not settled here."""
    reply = asked.reply
    if reply is None or reply.reason:
        return "no answer: deny"
    return f"answered elsewhere: {KEYS[reply.answer][1]}"


def turn(tty: int) -> TerminalTurn:
    """Return the right to ask on a terminal, to be waited for."""
    from fumehood.linux.terminal import TerminalTurn
    from fumehood.store.places import places

    return TerminalTurn(tty, os.path.dirname(places().lock("terminal")))


def columns(tty: int) -> int:
    """Return how wide the lines of a question may be: a terminal that had to break one would leave no sign of it."""
    wide = os.get_terminal_size(tty).columns
    return wide - 1 if wide else WIDTH


def prompt_text(question: questions.Question, seconds: float, width: int = WIDTH) -> str:
    """Write a question with the keys that answer it."""
    keys = [f"[{key}] {said}" for answer, (key, said) in KEYS.items() if answer in question.options]
    left = round(seconds, None if seconds > _EXACT_S else 1)
    last = f"  {'   '.join(keys)}   (no key within {left:g} s, or Enter: deny)"
    return "\n".join(["", *questions.question_lines(question, width, "fumehood: "), last]) + "\n>"


def _answer(tty: int, closed: int, resumed: int, question: questions.Question) -> str | None:
    """Wait for a key that means something; "" once it is settled otherwise, None where it is to be asked again."""
    poll = select.poll()
    for fd in (tty, closed, resumed):
        poll.register(fd, select.POLLIN | select.POLLHUP)
    meant = {key: answer for answer, (key, _) in KEYS.items() if answer in question.options}
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if closed in ready:
            return ""
        if resumed in ready:
            return None
        key = os.read(tty, 1).decode("latin-1")
        if not key:
            raise OSError("the terminal hung up")
        if key in _NO:
            return questions.DENY_ONCE
        if key.lower() in meant:
            return meant[key.lower()]


def _write(tty: int, text: str) -> None:
    data = text.encode(errors="replace")
    while data:
        data = data[os.write(tty, data) :]


class Keys:
    """The terminal gives single keys, unseen, for a `with` block; Ctrl-C still means what it always does.

    What was typed before the question is thrown away: it was no answer to it. Lines begin at the left, also where a
    command has the terminal and they would not.
    """

    def __init__(self, tty: int) -> None:
        self._tty = tty

    def __enter__(self) -> None:
        import termios

        self._before = termios.tcgetattr(self._tty)
        now = termios.tcgetattr(self._tty)
        now[1] |= termios.OPOST | termios.ONLCR
        now[3] &= ~(termios.ICANON | termios.ECHO)
        now[6][termios.VMIN], now[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._tty, termios.TCSAFLUSH, now)

    def __exit__(self, *_error: object) -> None:
        import termios

        termios.tcsetattr(self._tty, termios.TCSADRAIN, self._before)
