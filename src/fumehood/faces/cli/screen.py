"""The person's terminal: a filter for output, a line of progress, and questions that a whole word answers.

With the right bytes, a terminal writes to the clipboard, answers as if the person typed, prints, moves its window, or
reads a file by name (kitty's graphics). So the filter lists what may pass, and drops the rest. It also drops characters
that reverse the direction of text, because they change what a line seems to say.
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
from fumehood.core.wording import WIDTH, fit_columns, format_elapsed
from fumehood.linux.terminal import TerminalTurn, add_resume_listener, watch_for_resume

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self, TypeVar

    from fumehood.linux.namespaces import Layer
    from fumehood.linux.process import StoppableSource
    from fumehood.linux.streams import Sink
    from fumehood.service.ask import Ask, Asked

    Answer = TypeVar("Answer")

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
_MAX_SEQUENCE = 8192  # characters; a longer unfinished sequence is dropped
_HARMLESS = bytes(range(0x20, 0x7F)) + b"\n\r\t\b\a"
_COLOUR_PARAMETERS = frozenset("0123456789;:")
_ERASE_PARAMETERS = frozenset({"", "0", "1", "2"})
# What a command may also use if it draws on the whole screen. Not among it is what makes the terminal answer with text
# that the command chose, print, or move its window: CSI t, i, x, *y; all of DCS, APC, PM and SOS.
_SCREEN_FINALS = frozenset("ABCDEFGHIJKLMPSTXZ@`abcdefghlmnpqrsu")
_SCREEN_BETWEEN = frozenset({"", " q", "!p", "$p"})
_SCREEN_COMMANDS = frozenset({"0", "1", "2", "4", "8", "10", "11", "12", "104", "110", "111", "112", "133"})
# The default colours may be read but not set, or our own next text could get the colour of its background.
_READ_ONLY_COMMANDS = frozenset({"4", "10", "11"})
_SCREEN_ESCAPES = frozenset({"7", "8", "=", ">", "D", "E", "H", "M", "c", "(B", "(0", ")B", ")0"})
_SHIFTS = frozenset("\x0e\x0f")
# Modes that are switched off at the end of a command, because a program that was killed leaves them on.
_MODES_TO_SWITCH_OFF = (
    "1", "5", "9", "47", "69", "1000", "1001", "1002", "1003", "1004", "1005", "1006", "1015", "1016", "1047", "1049",
    "2004", "2026", "2031", "2048", "66",
)  # fmt: skip
_OTHER_SCREEN_MODES = frozenset({"47", "1047", "1049"})
_MODES_TO_SWITCH_ON = ("25", "7")  # modes that are on by default: the cursor is shown, long lines wrap
# All modes that a command may set: these, and some harmless ones. Others are dropped: they lock the keyboard, change
# what it sends, resize the window, or make the terminal read our own sequences as something else (VT52).
_MODES = frozenset(
    (*_MODES_TO_SWITCH_OFF, *_MODES_TO_SWITCH_ON, "4", "6", "12", "45", "1007", "1034", "1036", "1039", "1048", "2027")
)
_ANSI_MODES = frozenset(("4", "34"))  # modes without a question mark: insert mode, and the shape of the cursor
# Sequences that change what keys send, or switch on insert mode, each with the sequence that undoes it.
_UNDO_SEQUENCES = {"\x1b=": "\x1b>", "\x1b[4h": "\x1b[4l", "\x1b[>4;1m": "\x1b[>4m", "\x1b[>4;2m": "\x1b[>4m"}
_KEYBOARD = re.compile(r"\x1b\[([<>])(\d{0,4})u")  # kitty's keyboard protocol: each screen has a stack of modes
_SCROLL_WHOLE_SCREEN = "\x1b7\x1b[r\x1b8"  # is scrolled, not a part of it; the cursor stays
# Every question begins with this. Else a command could make it invisible by colours, let it scroll away, or mix it with
# text of its own that is on the screen; or, by kitty's keyboard protocol, have keys send more than their letters.
_MAKE_READABLE = f"\x1b[?2026l\x1b[?69l{_SCROLL_WHOLE_SCREEN}\x1b(B\x0f\x1b[0m\x1b[4l\x1b[?7h\x1b[?25h\x1b[J\x1b[>0u"


class Filter:
    """Removes from a command's output what a terminal must not get; a piece may end within a sequence."""

    def __init__(self, *, screen: bool = False) -> None:
        self._screen = screen
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._has_partial_character = False
        self._reset()

    def _reset(self) -> None:
        self._unfinished = ""
        self._coloured = self._shifted = self._scrolls_a_part = False
        self._modes: set[str] = set()
        self._undo_sequences: set[str] = set()
        self._keyboard_depths = {False: 0, True: 0}  # entries on the stack of the usual screen, and of the other one

    def feed(self, data: bytes) -> bytes:
        """Return the part of this piece that may be shown."""
        if not self._unfinished and not self._has_partial_character and not data.translate(None, _HARMLESS):
            return data
        text = self._unfinished + self._decode(data)
        # The piece may end within a character of several bytes.
        self._has_partial_character = not data[-1:].isascii()
        self._unfinished = ""
        return "".join(map(self._filter_token, _TOKEN.finditer(text))).encode("utf-8", "replace")

    def close(self) -> bytes:
        """Return the sequences that put the terminal back into the state before the command."""
        before = "".join(sorted(self._undo_sequences)) + (self._pop_keyboards(True) if self._is_on_other_screen else "")
        modes = "".join(f"\x1b[?{mode}l" for mode in _MODES_TO_SWITCH_OFF if mode in self._modes)
        modes += "".join(f"\x1b[?{mode}h" for mode in _MODES_TO_SWITCH_ON if mode in self._modes)
        after = self._pop_keyboards(False)
        scrolled = _SCROLL_WHOLE_SCREEN if self._scrolls_a_part else ""
        letters = "\x1b(B\x0f" if self._shifted else ""
        colour = "\x1b[0m" if self._coloured else ""
        self._reset()
        return f"{before}{modes}{after}{scrolled}{letters}{colour}".encode()

    @property
    def _is_on_other_screen(self) -> bool:
        return not self._modes.isdisjoint(_OTHER_SCREEN_MODES)

    def _pop_keyboards(self, screen: bool) -> str:
        return f"\x1b[<{self._keyboard_depths[screen]}u" if self._keyboard_depths[screen] else ""

    def _remember(self, sequence: str) -> None:
        """Note how a sequence that passes changes the keyboard, so that `close` can undo it."""
        self._undo_sequences.discard(sequence)
        self._undo_sequences |= {_UNDO_SEQUENCES[sequence]} if sequence in _UNDO_SEQUENCES else set()
        keyboard = _KEYBOARD.fullmatch(sequence)
        if keyboard is not None:
            screen = self._is_on_other_screen
            by = 1 if keyboard[1] == ">" else -int(keyboard[2] or 1)
            self._keyboard_depths[screen] = max(0, self._keyboard_depths[screen] + by)

    def _filter_token(self, token: re.Match[str]) -> str:
        """Return a token if it may pass, else nothing."""
        kind, whole = token.lastgroup, token.group()
        passes = kind in ("text", "plain")
        if kind == "unfinished":
            self._unfinished = whole if len(whole) < _MAX_SEQUENCE else ""
        elif kind == "final":
            passes = self._is_harmless(token)
        elif kind == "command":
            name, *values = token["command"].split(";")
            is_asked = all(value == "?" or value.isdecimal() for value in values)
            passes = self._screen and name in _SCREEN_COMMANDS and (is_asked or name not in _READ_ONLY_COMMANDS)
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
        if final == "m" and not between and _COLOUR_PARAMETERS.issuperset(parameters):
            self._coloured = parameters.strip("0;") != ""
            return True
        if final == "K" and not between and parameters in _ERASE_PARAMETERS:
            return True
        if not self._screen or (f"{between}{final}" if between else "") not in _SCREEN_BETWEEN:
            return False
        if final in "hl":
            return self._are_modes_harmless(parameters, final)
        if final in "rs" and parameters.startswith("?"):
            return False  # would save or restore modes without our knowing which
        if final == "r" and not between:
            self._scrolls_a_part = parameters != ""
        return bool(between) or final in _SCREEN_FINALS

    def _are_modes_harmless(self, parameters: str, final: str) -> bool:
        """Return True if a command may set or reset these modes; notes which are to be undone at the end."""
        is_private = parameters.startswith("?")
        modes = [each.lstrip("0") for each in parameters[is_private:].split(";")]
        if not (_MODES if is_private else _ANSI_MODES).issuperset(modes):
            return False
        for mode in modes if is_private else ():
            (self._modes.add if (final == "h") != (mode in _MODES_TO_SWITCH_ON) else self._modes.discard)(mode)
        return True


_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_MIN_REDRAW_S = 0.05  # between two updates of the line, so that a busy command does not wait for the terminal
_SIGNS = {"added": "+", "updated": "~", "removed": "-", "cancelled": "!"}
_PROGRESS_AFTER_S = 1.0  # work that takes less shows no progress
_PROGRESS_EVERY_S = 0.2


class StatusLine:
    """One line on standard error that is erased before anything else is printed."""

    def __init__(self) -> None:
        self._is_shown = False
        self.started_at = time.monotonic()

    def draw(self, turn: int, text: str) -> None:
        """Print a text in place of the last one, with a spinner at the position `turn`."""
        self._write(f"\r\033[K{_SPINNER[turn % len(_SPINNER)]} {text}")
        self._is_shown = True

    def clear(self) -> None:
        """Erase the line."""
        if self._is_shown:
            self._write("\r\033[K")
            self._is_shown = False

    def _write(self, line: str) -> None:
        try:
            os.write(2, line.encode(errors="replace"))
        except OSError:
            return  # nothing must fail because of a decoration

    @staticmethod
    def width() -> int:
        """Return the columns of the terminal, 0 if it is gone."""
        try:
            return os.get_terminal_size(2).columns or 80
        except OSError:
            return 0


class LiveLine(StatusLine):
    """A line that shows which files a running command writes; the run reads it as its watch on the layers."""

    _watched: StoppableSource

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._at_line_start = True
        self._next = 0.0

    def watch(self, layers: Sequence[Layer]) -> StoppableSource:
        """Start watching the layers."""
        from fumehood.linux.monitor import watch_layers

        self._watched = watch_layers(self._show_path, layers)
        self.fileno = self._watched.fileno
        self.drain = self._watched.drain
        return self

    def stop(self) -> None:
        """Read the remaining events, stop watching, and erase the line."""
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

    def _show_path(self, what: str, path: str) -> None:
        self._count += 1
        now = time.monotonic()
        # In the middle of one of the command's own lines, nothing is written.
        if not self._at_line_start or now < self._next:
            return
        self._next = now + _MIN_REDRAW_S
        if not (width := self.width()):
            return  # the terminal is gone, and the command ends with it
        room = max(width - 25, 8)
        name = printable(path)
        name = name if len(name) <= room else "…" + name[1 - room :]
        since = f"{format_elapsed(now - self.started_at)} " if now - self.started_at >= 1 else ""
        self.draw(self._count, f"{since}{self._count} {_SIGNS[what]} {name}")


@contextmanager
def show_progress(what: str, options: argparse.Namespace, amount: Callable[[], str] | None = None) -> Iterator[None]:
    """Show what a `with` block is doing, for how long, and how far it is, once it takes more than a second.

    Only on a terminal, and not with --quiet.
    """
    import threading

    from fumehood.service import apply

    apply.note_progress((), 0)
    if not os.isatty(2) or os.environ.get("TERM") == "dumb" or options.quiet:
        yield
        return
    line, ended = StatusLine(), threading.Event()

    def tick() -> None:
        turn, wait = 0, _PROGRESS_AFTER_S
        while not ended.wait(wait):
            turn, wait = turn + 1, _PROGRESS_EVERY_S
            done, total = apply.progress()
            count = amount() if amount else f"{done} of {total}" if total else ""
            words = [what, count, format_elapsed(time.monotonic() - line.started_at)]
            if not (width := line.width()):
                return
            line.draw(turn, fit_columns(printable("  ".join(word for word in words if word)), width - 3))

    thread = threading.Thread(target=tick, name="fumehood-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        line.clear()


class Progress:
    """Prints on standard error what an installation is doing; on a terminal also how far a download is."""

    def __init__(self, indent: str = "", *, is_shown: bool = True) -> None:
        self._indent = indent
        self._is_shown = is_shown
        self._shown = -1
        self._started_at = time.monotonic()

    def __call__(self, line: str, done: int, total: int) -> None:
        """Print a line, or how many bytes are downloaded if `done` is not 0."""
        if not self._is_shown:
            return
        taken = time.monotonic() - self._started_at
        since = f"  {format_elapsed(taken)}" if taken >= 1 and os.isatty(2) else ""
        if not done:
            sys.stderr.write(f"{self._indent}{printable(line)}{since}\n")
        elif os.isatty(2):
            part = done * 100 // total if total else done >> 20
            if part != self._shown:
                self._shown = part
                amount = f"{part:3} % of {total / (1 << 20):.1f} MiB" if total else f"{part} MiB"
                sys.stderr.write(f"\r{self._indent}  {amount}{since}\x1b[K{chr(10) if total and done == total else ''}")
        sys.stderr.flush()


_END_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FRACTIONS_BELOW_S = 10  # seconds below which their fractions are shown
_QUIET_S = 0.5  # without a key, before a line can begin that counts: earlier keys were meant for something else
# The words that answer, of which the first is shown, and what the answer is called.
WORDS = {
    questions.ALLOW_ONCE: (("y", "yes"), "allow once"),
    questions.ALLOW_SESSION: (("session",), "allow for this session"),
    questions.ALLOW_ALWAYS: (("always",), "allow always"),
    questions.DENY_ONCE: (("n", "no"), "deny"),
    questions.DENY_SESSION: (("no-session",), "deny for this session"),
    questions.DENY_ALWAYS: (("never",), "deny always"),
}


def terminal_asker() -> tuple[Ask, ...]:
    """Return an object that asks at the terminal; nothing if there is no terminal, or we run in the background."""
    tty = _open_terminal()
    if tty is None:
        return ()
    os.close(tty)
    return (AtTerminal(),)


class AtTerminal:
    """Asks the person at the controlling terminal, wherever standard input and output lead."""

    def put(self, asked: Asked) -> None:
        """Show the question, and wait for an answer in a thread."""
        import threading

        tty = _open_terminal()
        if tty is None:
            asked.answer(None)
            return
        if threading.current_thread() is threading.main_thread():
            watch_for_resume()
        closed, closing = os.pipe()
        resumed, resuming = os.pipe2(os.O_NONBLOCK)
        stop_hearing = add_resume_listener(lambda: os.write(resuming, b"."))
        deadline = time.monotonic() + asked.seconds

        def close_all() -> None:
            stop_hearing()
            for descriptor in (closed, resumed, resuming, tty):
                os.close(descriptor)

        asked.wait_in_thread(
            "fumehood-prompt", lambda: _ask_person(tty, closed, resumed, asked, deadline), lambda: os.close(closing),
            close_all,
        )  # fmt: skip


def _open_terminal() -> int | None:
    try:
        tty = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.tcgetpgrp(tty) == os.getpgrp():
            return tty
    except OSError:
        pass  # the terminal hung up
    os.close(tty)
    return None


def _ask_person(tty: int, closed: int, resumed: int, asked: Asked, deadline: float) -> None:
    import termios

    try:
        with terminal_turn(tty) as own_turn:
            if not own_turn.wait(closed):
                return  # answered elsewhere while another question was on the screen
            words = {word: each for each in asked.question.options for word in WORDS[each][0]}
            can_clear = os.environ.get("TERM", "dumb") != "dumb"
            times, answer = 0, None
            while answer is None and not _is_ready(closed):
                # Asked again after Ctrl-Z and fg, because the shell has used the terminal since.
                times += 1
                with Lines(tty, tty) as lines:
                    # Empty the pipe: earlier resumptions don't matter now.
                    while _is_ready(resumed):
                        os.read(resumed, 4096)
                    prefix = "\a" + (_MAKE_READABLE if can_clear else "")
                    _write(tty, prefix + question_text(asked.question, columns(tty)))
                    quiet_s = max(0.0, deadline - time.monotonic()) / 4
                    answer = lines.ask(
                        lambda: words_text(asked.question, deadline - time.monotonic()),
                        {**words, "": questions.DENY_ONCE}, questions.DENY_ONCE, closed, resumed, quiet_s=quiet_s,
                    )  # fmt: skip
            is_answered_here, reply = answer is not None and asked.answer(answer), asked.reply
            if answer is not None and is_answered_here:
                outcome = asked.question.worded(WORDS[answer][1])
            elif reply is None or reply.reason:
                outcome = "no answer: deny"
            else:
                outcome = f"answered elsewhere: {asked.question.worded(WORDS[reply.answer][1])}"
            _write(tty, f"{outcome}\n" + (f"\x1b[<{times}u" if can_clear else ""))
    except (OSError, termios.error):
        asked.answer(None)  # the terminal is gone


def terminal_turn(tty: int) -> TerminalTurn:
    """Return the turn of this process to ask on a terminal, for which it must wait (`wait`)."""
    from fumehood.store.places import places

    return TerminalTurn(tty, os.path.dirname(places().lock("terminal")))


def columns(tty: int) -> int:
    """Return how many columns a line of a question may have, so that the terminal itself never breaks one."""
    wide = os.get_terminal_size(tty).columns
    return wide - 1 if wide else WIDTH


def question_text(question: questions.Question, width: int = WIDTH) -> str:
    """Return a question as text, without the words that answer it."""
    return "".join(f"{line}\n" for line in ("", *questions.question_lines(question, width, "fumehood: ")))


def words_text(question: questions.Question, seconds: float) -> str:
    """Return the line with the words that answer a question."""
    answers = [f"[{WORDS[each][0][0]}] {question.worded(WORDS[each][1])}" for each in WORDS if each in question.options]
    left = round(max(0.0, seconds), None if seconds > _FRACTIONS_BELOW_S else 1)
    return f"  {'   '.join(answers)}   (then Enter; Enter alone, or nothing within {left:g} s: deny)\n> "


def wait_for_quiet(tty: int, *others: int, seconds: float = _QUIET_S) -> bool:
    """Throw away typed keys until there is none for some time; returns False if another descriptor is ready first."""
    poll = select.poll()
    for fd in (tty, *others):
        poll.register(fd, select.POLLIN)
    while ready := {fd for fd, _ in poll.poll(min(seconds, _QUIET_S) * 1000)}:
        if ready != {tty} or not os.read(tty, 4096):
            return False
    return True


def _is_ready(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _write(tty: int, text: str) -> None:
    data = text.encode(errors="replace")
    while data:
        data = data[os.write(tty, data) :]


def ask_yes_no(question: str, *, by_default: bool = False) -> bool:
    """Ask the person at the terminal; an empty line is the default, the end of the input and Ctrl-C are a no."""
    with Lines(0, 2) as lines:
        words = {"y": True, "yes": True, "n": False, "no": False, "": by_default}
        return bool(lines.ask(lambda: question, words, at_end=False))


class Lines:
    """For a `with` block, a person's terminal is asked for whole lines; Ctrl-C still interrupts.

    What was typed before a line was asked for is thrown away, because it can't be an answer. Output processing is
    switched on, so that lines begin at the left even if a command has switched it off. A signal that ends this process
    first restores the terminal.
    """

    def __init__(self, tty: int, output: int) -> None:
        self._tty, self._output = tty, output
        self._caught_signals: list[int] = []

    def ask(
        self, prompt: Callable[[], str], words: Mapping[str, Answer], at_end: Answer, *others: int,
        quiet_s: float = _QUIET_S,
    ) -> Answer | None:  # fmt: skip
        """Ask until a line is one of the words, and return what that means; None if another descriptor is ready first.

        `at_end` is the answer where the input ends, and where Ctrl-C is a key and no signal. None, too, on a hangup.
        """
        import termios

        poll = select.poll()
        for descriptor in (self._tty, *others):
            poll.register(descriptor, select.POLLIN)
        hint = ""
        while True:
            if not wait_for_quiet(self._tty, *others, seconds=quiet_s):
                _write(self._output, "  > ")
                return None
            self._set_modes(whole_lines=True)
            _write(self._output, hint + prompt())
            if poll.poll() != [(self._tty, select.POLLIN)]:
                termios.tcflush(self._tty, termios.TCIFLUSH)  # the beginning of an answer that is not wanted any more
                return None
            line = os.read(self._tty, 4096).decode(errors="replace")
            if not line.endswith("\n"):
                return at_end
            word = line.strip().lower()
            if word in words:
                return words[word]
            hint = f"  one of: {', '.join(filter(None, words))}\n"
            self._set_modes(whole_lines=False)

    def __enter__(self) -> Self:
        import termios
        import threading

        self._before = termios.tcgetattr(self._tty)
        if threading.current_thread() is threading.main_thread():
            self._caught_signals = [number for number in _END_SIGNALS if signal.getsignal(number) == signal.SIG_DFL]
        for number in self._caught_signals:
            signal.signal(number, self._end)
        self._set_modes(whole_lines=False)
        return self

    def _set_modes(self, *, whole_lines: bool) -> None:
        """Have keys come as they are typed, unseen, or as lines that are seen; throws away what was typed before."""
        import termios

        now = termios.tcgetattr(self._tty)
        now[0] |= termios.ICRNL
        now[1] |= termios.OPOST | termios.ONLCR
        line_modes = termios.ICANON | termios.ECHO | termios.ECHOE
        now[3] = now[3] | line_modes if whole_lines else now[3] & ~line_modes
        now[6][termios.VMIN], now[6][termios.VTIME], now[6][termios.VEOL] = 1, 0, b"\x03"
        termios.tcsetattr(self._tty, termios.TCSADRAIN, now)
        termios.tcflush(self._tty, termios.TCIFLUSH)

    def _end(self, number: int, _frame: object) -> None:
        self.__exit__()
        signal.raise_signal(number)

    def __exit__(self, *_error: object) -> None:
        import termios

        try:
            termios.tcsetattr(self._tty, termios.TCSADRAIN, self._before)
        finally:
            for number in self._caught_signals:
                signal.signal(number, signal.SIG_DFL)
