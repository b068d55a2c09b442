"""What a person's terminal is shown, and what is asked there.

Text, and nothing that makes it act; a line about what is under way; a question, in what directory, with one key to
answer it, no by default.

A terminal that is sent the right bytes writes to the clipboard, answers as if the person typed, prints, moves its
window, or reads a file by name (kitty's graphics). So what may pass is listed here, and the rest is dropped; so are
the characters that turn the direction of text round, and with it what a line seems to say.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # without the enums around it
import codecs
import os
import re
import select
import sys
import time
from contextlib import contextmanager

from fumehood.core import questions
from fumehood.core.report import printable
from fumehood.core.wording import WIDTH, elapsed, fitted
from fumehood.linux.terminal import TerminalTurn, hear_resuming, tell_when_resumed

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from fumehood.linux.namespaces import Layer
    from fumehood.linux.process import Watched
    from fumehood.linux.streams import Sink
    from fumehood.service.ask import Ask, Asked

_TOKEN = re.compile(
    r"(?P<text>[^\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]+)"
    r"|(?P<plain>[\n\r\t\b\a])"
    r"|\x1b\[(?P<parameters>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    r"|\x1b\](?P<command>[^\x00-\x1f\x7f-\x9f]*)(?:\x07|\x1b\\)"
    r"|(?P<string>\x1b[\]PX^_][^\x07\x18\x1a\x1b]*(?:\x07|\x1b\\))"
    r"|(?P<unfinished>\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x18\x1a\x1b]*\x1b?|[ -/]*)?\Z)"
    r"|(?P<escape>\x1b(?:[ -/]+[0-~]|[0-OQ-WYZ\\`-~]))"
    r"|(?P<other>.)",
    re.DOTALL,
)
_LONGEST = 8192  # characters of a sequence that has not ended yet
_HARMLESS = bytes(range(0x20, 0x7F)) + b"\n\r\t\b\a"
_COLOUR = frozenset("0123456789;:")
_ERASE = frozenset({"", "0", "1", "2"})
# On a screen of the command's own, besides what any output may use. What makes the terminal answer with text that
# the command chose, print, or move its window is not among it: CSI t, i, x, *y; DCS, APC, PM and SOS as a whole.
_SCREEN_FINALS = frozenset("ABCDEFGHIJKLMPSTXZ@`abcdefghlmnpqrsu")
_SCREEN_BETWEEN = frozenset({"", " q", "!p", "$p"})
_SCREEN_COMMANDS = frozenset({"0", "1", "2", "4", "8", "10", "11", "12", "104", "110", "111", "112", "133"})
# The colours of all text: they may be asked for, and not set, or what we write next could be as its background is.
_ONLY_ASKED = frozenset({"4", "10", "11"})
_SCREEN_ESCAPES = frozenset({"7", "8", "=", ">", "D", "E", "H", "M", "c", "(B", "(0", ")B", ")0"})
_SHIFTS = frozenset("\x0e\x0f")
# Modes that a program which was ended leaves on, and the person then has to live with.
_LEFT_ON = (
    "1", "5", "9", "47", "69", "1000", "1001", "1002", "1003", "1004", "1005", "1006", "1015", "1016", "1047", "1049",
    "2004", "2026", "2031", "2048", "66",
)  # fmt: skip
_OTHER_SCREEN = frozenset({"47", "1047", "1049"})
_ON_BEFORE = ("25", "7")  # those that are on where nobody says otherwise: the cursor is shown, long lines go on
# Besides these, modes that programs set and that harm nobody. Others are dropped: they lock the keyboard, change what
# it sends, resize the window, or have the terminal read our own sequences as something else (VT52).
_MODES = frozenset((*_LEFT_ON, *_ON_BEFORE, "4", "6", "12", "45", "1007", "1034", "1036", "1039", "1048", "2027"))
_ANSI_MODES = frozenset(("4", "34"))  # without a question mark: letters are put in between, what the cursor looks like
# What has keys send something else, or letters put in between, with what undoes it.
_UNDONE_BY = {"\x1b=": "\x1b>", "\x1b[4h": "\x1b[4l", "\x1b[>4;1m": "\x1b[>4m", "\x1b[>4;2m": "\x1b[>4m"}
_KEYBOARD = re.compile(r"\x1b\[([<>])(\d{0,4})u")  # kitty's: each screen has a stack of what its keys send
_WHOLE_SCREEN = "\x1b7\x1b[r\x1b8"  # is scrolled, not a part of it; the cursor stays
# What a question begins with, or a command could have it written in no colour, in lines that scroll away, or between
# words of its own that are there already.
_READABLE = f"\x1b[?2026l\x1b[?69l{_WHOLE_SCREEN}\x1b(B\x0f\x1b[0m\x1b[4l\x1b[?7h\x1b[?25h\x1b[J"


class Filter:
    """Bytes as they come from a command in, bytes for a terminal out; sequences may be cut anywhere between."""

    def __init__(self, *, screen: bool = False) -> None:
        self._screen = screen
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._split = False
        self._begin()

    def _begin(self) -> None:
        self._waiting = ""
        self._coloured = self._shifted = self._scrolls_a_part = False
        self._modes: set[str] = set()
        self._undoing: set[str] = set()
        self._keyboards = {False: 0, True: 0}  # on the stack of the usual screen, and of the other one

    def feed(self, data: bytes) -> bytes:
        """Return what of this piece may be shown."""
        if not self._waiting and not self._split and not data.translate(None, _HARMLESS):
            return data
        text = self._waiting + self._decode(data)
        # A character may be cut as well.
        self._split = not data[-1:].isascii()
        self._waiting = ""
        return "".join(map(self._kept, _TOKEN.finditer(text))).encode("utf-8", "replace")

    def close(self) -> bytes:
        """Return what puts the terminal back to where it was, as far as the command changed it."""
        before = "".join(sorted(self._undoing)) + (self._popped(True) if self._is_on_other_screen else "")
        modes = "".join(f"\x1b[?{mode}l" for mode in _LEFT_ON if mode in self._modes)
        modes += "".join(f"\x1b[?{mode}h" for mode in _ON_BEFORE if mode in self._modes)
        after = self._popped(False)
        scrolled = _WHOLE_SCREEN if self._scrolls_a_part else ""
        letters = "\x1b(B\x0f" if self._shifted else ""
        colour = "\x1b[0m" if self._coloured else ""
        self._begin()
        return f"{before}{modes}{after}{scrolled}{letters}{colour}".encode()

    @property
    def _is_on_other_screen(self) -> bool:
        return not self._modes.isdisjoint(_OTHER_SCREEN)

    def _popped(self, screen: bool) -> str:
        return f"\x1b[<{self._keyboards[screen]}u" if self._keyboards[screen] else ""

    def _remember(self, sequence: str) -> None:
        """Keep what a sequence that passes does to the keys."""
        self._undoing.discard(sequence)
        self._undoing |= {_UNDONE_BY[sequence]} if sequence in _UNDONE_BY else set()
        keyboard = _KEYBOARD.fullmatch(sequence)
        if keyboard is not None:
            screen = self._is_on_other_screen
            by = 1 if keyboard[1] == ">" else -int(keyboard[2] or 1)
            self._keyboards[screen] = max(0, self._keyboards[screen] + by)

    def _kept(self, token: re.Match[str]) -> str:
        """Return a token if it may pass, else nothing."""
        kind, whole = token.lastgroup, token.group()
        passes = kind in ("text", "plain")
        if kind == "unfinished":
            self._waiting = whole if len(whole) < _LONGEST else ""
        elif kind == "final":
            passes = self._is_harmless(token)
        elif kind == "command":
            name, *values = token["command"].split(";")
            is_asked = all(value == "?" or value.isdecimal() for value in values)
            passes = self._screen and name in _SCREEN_COMMANDS and (is_asked or name not in _ONLY_ASKED)
        elif kind == "escape":
            passes = self._screen and whole[1:] in _SCREEN_ESCAPES
            self._shifted = self._shifted or (passes and whole[1:] in ("(0", ")0"))
        elif kind == "other":
            passes = self._screen and whole in _SHIFTS
            self._shifted = self._shifted or passes
        if passes and self._screen and kind in ("final", "escape"):
            self._remember(whole)
        return whole if passes else ""

    def _is_harmless(self, token: re.Match[str]) -> bool:
        parameters, between, final = token.group("parameters", "between", "final")
        if final == "m" and not between and _COLOUR.issuperset(parameters):
            self._coloured = parameters.strip("0;") != ""
            return True
        if final == "K" and not between and parameters in _ERASE:
            return True
        if not self._screen or (f"{between}{final}" if between else "") not in _SCREEN_BETWEEN:
            return False
        if final in "hl":
            return self._sets_harmless(parameters, final)
        if final in "rs" and parameters.startswith("?"):
            return False  # would set what was set once, unseen by us
        if final == "r" and not between:
            self._scrolls_a_part = parameters != ""
        return bool(between) or final in _SCREEN_FINALS

    def _sets_harmless(self, parameters: str, final: str) -> bool:
        """Return True if a program may set these modes; keeps which of them."""
        is_private = parameters.startswith("?")
        modes = [each.lstrip("0") for each in parameters[is_private:].split(";")]
        if not (_MODES if is_private else _ANSI_MODES).issuperset(modes):
            return False
        for mode in modes if is_private else ():
            (self._modes.add if (final == "h") != (mode in _ON_BEFORE) else self._modes.discard)(mode)
        return True


_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PAUSE_S = 0.05  # between two writings of the line, so that a busy command does not wait for the terminal
_SIGNS = {"added": "+", "updated": "~", "removed": "-", "cancelled": "!"}
_AFTER_S = 1.0  # what takes less needs no word
_EVERY_S = 0.2


class OwnLine:
    """One line, which makes way for whatever is written next."""

    def __init__(self) -> None:
        self._is_shown = False
        self.began = time.monotonic()

    def draw(self, turn: int, text: str) -> None:
        """Write a text in its place."""
        self._write(f"\r\033[K{_SPINNER[turn % len(_SPINNER)]} {text}")
        self._is_shown = True

    def clear(self) -> None:
        """Make way."""
        if self._is_shown:
            self._write("\r\033[K")
            self._is_shown = False

    def _write(self, line: str) -> None:
        try:
            os.write(2, line.encode(errors="replace"))
        except OSError:
            return  # only a decoration: nothing must fail for it

    @staticmethod
    def width() -> int:
        """Return how wide the terminal is; 0 where it is gone."""
        try:
            return os.get_terminal_size(2).columns or 80
        except OSError:
            return 0


class LiveLine(OwnLine):
    """What a running command is writing; it is read as a watch on the layers."""

    _watched: Watched

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._at_line_start = True
        self._next = 0.0

    def watch(self, layers: Sequence[Layer]) -> Watched:
        """Start telling."""
        from fumehood.linux.monitor import watcher

        self._watched = watcher(self._tell)(layers)
        self.fileno = self._watched.fileno
        self.drain = self._watched.drain
        return self

    def stop(self) -> None:
        """Read the rest and stop, and leave no line behind."""
        self._watched.stop()
        self.clear()

    def around(self, sink: Sink) -> Callable[[bytes], None]:
        """Return a sink that clears the line before the command's output."""

        def clearing(data: bytes) -> None:
            if data:
                self.clear()
                self._at_line_start = data.endswith(b"\n")
            sink(data)

        return clearing

    def _tell(self, what: str, path: str) -> None:
        self._count += 1
        now = time.monotonic()
        # In the middle of one of the command's own lines, nothing is written.
        if not self._at_line_start or now < self._next:
            return
        self._next = now + _PAUSE_S
        if not (width := self.width()):
            return  # and the command with it
        room = max(width - 25, 8)
        name = printable(path)
        name = name if len(name) <= room else "…" + name[1 - room :]
        since = f"{elapsed(now - self.began)} " if now - self.began >= 1 else ""
        self.draw(self._count, f"{since}{self._count} {_SIGNS[what]} {name}")


@contextmanager
def ticking(what: str, options: argparse.Namespace, amount: Callable[[], str] | None = None) -> Iterator[None]:
    """Tell what is being done in a `with` block, for how long, and how far it has come, from its second second on.

    Only at a terminal, and not where it is quiet.
    """
    import threading

    from fumehood.service import apply

    apply.note_progress((), 0)
    if not os.isatty(2) or os.environ.get("TERM") == "dumb" or options.quiet:
        yield
        return
    line, ended = OwnLine(), threading.Event()

    def tick() -> None:
        turn, wait = 0, _AFTER_S
        while not ended.wait(wait):
            turn, wait = turn + 1, _EVERY_S
            done, total = apply.progress()
            count = amount() if amount else f"{done} of {total}" if total else ""
            words = [what, count, elapsed(time.monotonic() - line.began)]
            if not (width := line.width()):
                return
            line.draw(turn, fitted(printable("  ".join(word for word in words if word)), width - 3))

    thread = threading.Thread(target=tick, name="fumehood-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        line.clear()


class Progress:
    """Shows on standard error what an installation is doing; on a terminal also how far a download is."""

    def __init__(self, indent: str = "", *, is_shown: bool = True) -> None:
        self._indent = indent
        self._is_shown = is_shown
        self._shown = -1
        self._began = time.monotonic()

    def __call__(self, line: str, done: int, total: int) -> None:
        """Take note of a line, or of how many bytes are there."""
        if not self._is_shown:
            return
        taken = time.monotonic() - self._began
        since = f"  {elapsed(taken)}" if taken >= 1 and os.isatty(2) else ""
        if not done:
            sys.stderr.write(f"{self._indent}{printable(line)}{since}\n")
        elif os.isatty(2):
            part = done * 100 // total if total else done >> 20
            if part != self._shown:
                self._shown = part
                amount = f"{part:3} % of {total / (1 << 20):.1f} MiB" if total else f"{part} MiB"
                sys.stderr.write(f"\r{self._indent}  {amount}{since}\x1b[K{chr(10) if total and done == total else ''}")
        sys.stderr.flush()


_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_EXACT_S = 10  # seconds below which their fractions are shown
_QUIET_S = 0.5  # without a key before one is an answer: what is typed sooner was meant for what was there before
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
        tty = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
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
                    is_drawn_on = os.environ.get("TERM", "dumb") != "dumb"
                    sign = "\a" + (_READABLE if is_drawn_on else "")
                    _write(tty, sign + _question_text(asked.question, columns(tty)))
                    is_quiet = wait_for_quiet(tty, closed, resumed, seconds=left / 4)
                    _write(tty, _keys_text(asked.question, left) if is_quiet else "  >")
                    answer = _answer(tty, closed, resumed, asked.question)
            is_ours, reply = bool(answer) and asked.answer(answer), asked.reply
            if is_ours:
                outcome = asked.question.worded(KEYS[answer][1])
            elif reply is None or reply.reason:
                outcome = "no answer: deny"
            else:
                outcome = f"answered elsewhere: {asked.question.worded(KEYS[reply.answer][1])}"
            _write(tty, f" {outcome}\n")  # whoever reads this has the terminal back as it was
    except (OSError, termios.error):
        asked.answer(None)  # the terminal is gone, and with it whoever was there


def turn(tty: int) -> TerminalTurn:
    """Return the right to ask on a terminal, to be waited for."""
    from fumehood.store.places import places

    return TerminalTurn(tty, os.path.dirname(places().lock("terminal")))


def columns(tty: int) -> int:
    """Return how wide the lines of a question may be: a terminal that had to break one would leave no sign of it."""
    wide = os.get_terminal_size(tty).columns
    return wide - 1 if wide else WIDTH


def prompt_text(question: questions.Question, seconds: float, width: int = WIDTH) -> str:
    """Write a question with the keys that answer it."""
    return _question_text(question, width) + _keys_text(question, seconds)


def _question_text(question: questions.Question, width: int) -> str:
    return "".join(f"{line}\n" for line in ("", *questions.question_lines(question, width, "fumehood: ")))


def _keys_text(question: questions.Question, seconds: float) -> str:
    keys = [f"[{key}] {question.worded(said)}" for answer, (key, said) in KEYS.items() if answer in question.options]
    left = round(seconds, None if seconds > _EXACT_S else 1)
    return f"  {'   '.join(keys)}   (no key within {left:g} s, or Enter: deny)\n>"


def wait_for_quiet(tty: int, *others: int, seconds: float = _QUIET_S) -> bool:
    """Throw away what is typed until nothing is for so long, or half a second; False when another is ready first."""
    poll = select.poll()
    for fd in (tty, *others):
        poll.register(fd, select.POLLIN)
    while ready := {fd for fd, _ in poll.poll(min(seconds, _QUIET_S) * 1000)}:
        if ready != {tty} or not os.read(tty, 4096):
            return False
    return True


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
    command has the terminal and they would not. A signal that ends this process does so with the terminal as it was.
    """

    def __init__(self, tty: int) -> None:
        self._tty = tty
        self._ended_by: list[int] = []  # what nobody else hears meanwhile

    def __enter__(self) -> None:
        import termios
        import threading

        self._before = termios.tcgetattr(self._tty)
        now = termios.tcgetattr(self._tty)
        now[1] |= termios.OPOST | termios.ONLCR
        now[3] &= ~(termios.ICANON | termios.ECHO)
        now[6][termios.VMIN], now[6][termios.VTIME] = 1, 0
        if threading.current_thread() is threading.main_thread():
            self._ended_by = [number for number in _ENDS if signal.getsignal(number) == signal.SIG_DFL]
        for number in self._ended_by:
            signal.signal(number, self._end)
        termios.tcsetattr(self._tty, termios.TCSAFLUSH, now)

    def _end(self, number: int, _frame: object) -> None:
        self.__exit__()
        signal.raise_signal(number)

    def __exit__(self, *_error: object) -> None:
        import termios

        try:
            termios.tcsetattr(self._tty, termios.TCSADRAIN, self._before)
        finally:
            for number in self._ended_by:
                signal.signal(number, signal.SIG_DFL)
