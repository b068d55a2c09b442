"""What of a command's output reaches a terminal: text and colour, and nothing that makes the terminal act."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.faces.cli.screen import Filter

COLOUR = b"\x1b[1;31mred\x1b[0m \x1b[38;2;1;2;3mtrue\x1b[m \x1b[4:3mcurly\x1b[0m\n"
DANGEROUS = {
    "the clipboard": b"\x1b]52;c;cm0gLXJmIH4=\x07",
    "the clipboard, ended otherwise": b"\x1b]52;c;cm0gLXJmIH4=\x1b\\",
    "the answerback": b"\x05",
    "the title, reported as typed text": b"\x1b[21t",
    "a setting, reported with its text": b"\x1bP$q\"p\x1b\\",
    "a terminfo name, reported": b"\x1bP+q544e\x1b\\",
    "a file by name, as graphics": b"\x1b_Gt=f,f=100;L2V0Yy9wYXNzd2Q=\x1b\\",
    "a message past the multiplexer": b"\x1bPtmux;\x1b\x1b]52;c;eA==\x07\x1b\\",
    "the printer": b"\x1b[5i",
    "the checksum of the screen": b"\x1b[1;1;1;1;1;1*y",
    "the window's size": b"\x1b[8;1;1t",
    "a file from the network": b"\x1b]1337;File=inline=1:AAAA\x07",
    "one byte for CSI": b"\x9b21t",
    "CSI as a character": "\u009b21t".encode(),
    "OSC as a character": "\u009d52;c;eA==\u009c".encode(),
    "the terminal's identity": b"\x1bZ",
    "a font": b"\x1b]50;x\x07",
    "a notification": b"\x1b]777;notify;a;b\x07",
    "the colour of all text": b"\x1b]10;#000000\x07",
    "the colour behind it": b"\x1b]11;rgb:00/00/00\x1b\\",
    "one of all colours": b"\x1b]4;1;?;7;#000000\x07",
}
ONLY_ON_A_SCREEN = {
    "another screen": b"\x1b[?1049h", "the cursor moved": b"\x1b[5;5H", "all erased": b"\x1b[2J",
    "a title": b"\x1b]0;mine\x07", "a colour asked for": b"\x1b]11;?\x07", "colours asked for": b"\x1b]4;1;?;2;?\x07",
    "another character set": b"\x1b(0", "the cursor hidden": b"\x1b[?25l",
}  # fmt: skip


@pytest.mark.parametrize("screen", [False, True])
def test_text_and_colour_pass_as_they_are(screen):
    text = COLOUR + "größer\t10 %\r100 %\n日本 👩‍👩‍👧\n".encode() + b"\x1b[K"
    assert Filter(screen=screen).feed(text) == text


@pytest.mark.parametrize("screen", [False, True])
@pytest.mark.parametrize("name", DANGEROUS)
def test_what_makes_a_terminal_act_is_dropped(name, screen):
    filter_ = Filter(screen=screen)
    shown = filter_.feed(b"a" + DANGEROUS[name] + b"b")
    assert not re.search(rb"[\x00-\x08\x0e-\x1f\x7f]|\xc2[\x80-\x9f]", shown), shown
    assert shown.startswith(b"a")
    assert shown.endswith(b"b")


@pytest.mark.parametrize("name", ONLY_ON_A_SCREEN)
def test_what_draws_a_screen_passes_only_on_one(name):
    sequence = ONLY_ON_A_SCREEN[name]
    assert Filter().feed(b"a" + sequence + b"b") == b"ab"
    assert Filter(screen=True).feed(b"a" + sequence + b"b") == b"a" + sequence + b"b"


@pytest.mark.parametrize("sequence", [*DANGEROUS.values(), *ONLY_ON_A_SCREEN.values(), COLOUR, "日本é".encode()])
def test_it_does_not_matter_where_a_sequence_is_cut(sequence):
    whole = Filter()
    expected = whole.feed(b"a" + sequence + b"b")
    for cut in range(len(sequence) + 2):
        pieces = Filter()
        data = b"a" + sequence + b"b"
        assert pieces.feed(data[:cut]) + pieces.feed(data[cut:]) == expected


def test_colour_ends_with_the_command():
    filter_ = Filter()
    filter_.feed(b"\x1b[8mhidden")
    assert filter_.close() == b"\x1b[0m"
    assert Filter().close() == b""


def test_a_program_that_was_ended_leaves_the_terminal_as_it_was():
    filter_ = Filter(screen=True)
    filter_.feed(b"\x1b[?1049h\x1b[?2004h\x1b[?1000;1006h\x1b[?25l\x1b(0\x1b[7m")
    assert filter_.close() == b"\x1b[?1000l\x1b[?1006l\x1b[?1049l\x1b[?2004l\x1b[?25h\x1b(B\x0f\x1b[0m"
    filter_ = Filter(screen=True)
    filter_.feed(b"\x1b[?1049h\x1b[?25l\x1b[?1049l\x1b[?25h")
    assert filter_.close() == b""


def test_what_is_written_after_a_program_is_on_the_whole_screen_and_all_there():
    filter_ = Filter(screen=True)
    filter_.feed(b"\x1b[?007l\x1b[?69h\x1b[?2026h\x1b[3;3r")
    assert filter_.close() == b"\x1b[?69l\x1b[?2026l\x1b[?7h\x1b7\x1b[r\x1b8"
    filter_.feed(b"\x1b[3;3r\x1b[r\x1b[?7l\x1b[?7h")
    assert filter_.close() == b""


def test_after_a_program_that_was_ended_keys_send_what_they_always_do():
    """Agents ask for kitty's keys, or xterm's: left on, Ctrl-C in the shell typed letters and ended nothing."""
    filter_ = Filter(screen=True)
    filter_.feed(b"\x1b[>1u\x1b[?1049h\x1b[>7u\x1b[>1u\x1b[<u\x1b[>4;2m\x1b=\x1b[4h")
    assert filter_.close() == b"\x1b>\x1b[4l\x1b[>4m\x1b[<1u\x1b[?1049l\x1b[<1u"
    filter_.feed(b"\x1b[>1u\x1b[?1049h\x1b[>7u\x1b[?1049l\x1b[<1u\x1b[>4;2m\x1b[>4m\x1b=\x1b>\x1b[<99u")
    assert filter_.close() == b""
    filter_.feed(b"\x1b[?2048;2031h\x1b[?1016h")  # else a new size, or another colour, would be typed into the shell
    assert filter_.close() == b"\x1b[?1016l\x1b[?2031l\x1b[?2048l"
    plain = Filter()
    assert plain.feed(b"\x1b[>1u\x1b[>4;2m") + plain.close() == b""


MODES_OF_NOBODY = {
    "VT52, in which our own sequences are text": b"\x1b[?2l",
    "the same among others": b"\x1b[?1000;2l",
    "a keyboard that is locked": b"\x1b[2h",
    "letters that are shown twice": b"\x1b[12l",
    "Enter as two letters": b"\x1b[20h",
    "a window of another size": b"\x1b[?40h\x1b[?3h",
    "keys as those of Windows": b"\x1b[?9001h",
    "a mode that was saved before": b"\x1b[?1003s\x1b[?1003r",
    "one that is not known yet": b"\x1b[?31337h",
}


@pytest.mark.parametrize("sequence", MODES_OF_NOBODY.values(), ids=MODES_OF_NOBODY.keys())
def test_modes_that_no_program_needs_are_not_set_on_a_screen_either(sequence):
    assert Filter(screen=True).feed(b"a" + sequence + b"b") == b"ab"


@pytest.mark.parametrize("sequence", [b"\x1b[?12;25h", b"\x1b[34l", b"\x1b[?1034h", b"\x1b[4h", b"\x1b[?1002;1006h"])
def test_modes_that_programs_set_are_set_on_a_screen(sequence):
    assert Filter(screen=True).feed(b"a" + sequence + b"b") == b"a" + sequence + b"b"


def test_a_sequence_that_never_ends_does_not_eat_memory():
    filter_ = Filter()
    for _ in range(100):
        filter_.feed(b"\x1b]52;c;" + b"A" * 1000)
    assert len(filter_._unfinished) < 10_000


NOTHING_BUT = re.compile(r"(?:[^\x00-\x06\x0b\x0c\x0e-\x1f\x7f-\x9f]|\x1b\[[0-9;:]*m|\x1b\[[012]?K)*")


PIECES = [*DANGEROUS.values(), *ONLY_ON_A_SCREEN.values(), b"\x1b", b"[", b"]", b"\x9b"]


@given(st.lists(st.one_of(st.binary(max_size=12), st.sampled_from(PIECES))))
def test_whatever_comes_nothing_else_passes(pieces):
    filter_ = Filter()
    shown = b"".join([*map(filter_.feed, pieces), filter_.close()]).decode()
    assert NOTHING_BUT.fullmatch(shown), shown
