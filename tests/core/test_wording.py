"""What a person is asked can't be shaped: letters, length, lines and order of what others wrote."""

import os
import subprocess
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.core.report import printable, shell_path
from fumehood.core.wording import CONTINUED, MOST_LETTERS, Item, brief, item_lines, quote, wrap

# What hides, moves, turns round or looks like nothing, each with a name for the test.
TRICKS = {
    "line break": "\n", "carriage return": "\r", "tab": "\t", "escape": "\x1b", "C1 sequence": "\x9b", "delete": "\x7f",
    "line separator": "\u2028", "paragraph separator": "\u2029", "no-break space": "\xa0", "wide space": "\u3000",
    "soft hyphen": "\xad", "zero width space": "\u200b", "zero width joiner": "\u200d", "word joiner": "\u2060",
    "override": "\u202e", "isolate": "\u2066", "mark": "\u200f", "Arabic mark": "\u061c", "tag": "\U000e0041",
    "byte order mark": "\ufeff", "Hangul filler": "\u3164", "Hangul initial": "\u115f", "half filler": "\uffa0",
    "empty Braille": "\u2800", "variant": "\ufe0f", "far variant": "\U000e0101", "grapheme joiner": "\u034f",
    "private use": "\ue000", "far private use": "\U000f0000", "unassigned": "\U000e0fff", "Khmer vowel": "\u17b4",
    "Mongolian variant": "\u180b", "null notehead": "\U0001d159", "byte that is not UTF-8": "\udcff",
    "interlinear": "\ufff9", "musical": "\U0001d173", "Tifinagh joiner": "\u2d7f", "Brahmi joiner": "\U0001107f",
}  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS)
@pytest.mark.parametrize("write", [printable, quote, brief])
def test_a_letter_that_does_not_show_is_an_escape(write, trick):
    written = write(f"a{trick}b")
    assert trick not in written
    assert written.isprintable()
    assert written.startswith("a\\")
    assert written.endswith("b")


@pytest.mark.parametrize(
    "text", ["plain", "naïve café", "ﬁle", "日本語.txt", "Ελλάδα", "Ünï", "हिन्दी", "ไทยนี้", "e\u0301t\u0302e", "လျှော့"]
)
def test_ordinary_letters_stay_as_they_are(text):
    assert printable(text) == quote(text) == text


def test_a_name_in_a_report_may_be_read_from_the_right_and_a_question_may_not():
    assert printable("שלום.txt") == "שלום.txt"
    written = quote("rm א && ב 1")
    assert "א" not in written
    assert written.startswith("rm \\u05d0 && ")


def test_accents_are_bounded_and_sit_on_letters_alone():
    assert printable("Z" + "\u0300" * 40).count("\u0300") == 5
    assert printable("\u0300x").startswith("\\u0300")
    assert printable("/\u0338x").startswith("/\\u0338")  # would strike out what is before it
    assert printable("a\u0338") == "a\\u0338"
    assert printable("a\u20e0") == "a\\u20e0"
    assert printable("a\u0338\u0301") == "a\\u0338\\u0301"  # would sit on the escape


def test_a_backslash_of_the_text_is_told_from_ours():
    assert quote("printf 'a\\nb'") == "printf 'a\\nb'"
    assert quote("printf 'a\\nb'\nrm x") == "printf 'a\\\\nb'\\nrm x"


@pytest.mark.parametrize("blank", ["\n" * 50, " " * 500, "\n \t" * 30, "\u3164" * 60, "\u2800 " * 40, "\u200b" * 99])
def test_a_long_blank_is_counted(blank):
    written = quote(f"make{blank}; curl evil")
    assert f"\\[{len(blank)} BLANK CHARACTERS" in written
    assert len(written) < 80
    assert (f"{blank.count(chr(10))} of them line breaks" in written) is ("\n" in blank)


def test_short_blanks_stay_so_that_a_script_can_be_read():
    assert quote("for x in 1:\n    print(x)") == "for x in 1:\\n    print(x)"


def test_of_a_long_text_beginning_and_end_are_shown_and_the_rest_is_counted():
    written = quote("A" * 50_000 + "B" * 50_000)
    assert written.startswith("AAAA")
    assert written.endswith("BBBB")
    left_out = int(written.partition("… ")[2].partition(" ")[0])
    shown = written.count("A") + written.count("B") - "CHARACTERS NOT SHOWN".count("A")
    assert left_out + shown == 100_000
    assert len(written) < MOST_LETTERS + 60


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_whatever_it_is_one_line_of_letters_that_show(text):
    written = quote(text)
    assert written.isprintable()
    assert len(written) < MOST_LETTERS + 60
    assert all(unicodedata.bidirectional(letter) not in ("R", "AL", "AN") for letter in written)
    for width in (20, 79):
        first, *others = wrap(written, width)
        assert all(line.startswith(CONTINUED) for line in others)
        assert "".join([first, *(line[len(CONTINUED) :] for line in others)]) == written


@given(st.text(alphabet="ab\\nx1\n\x1b\u202e0", max_size=12), st.text(alphabet="ab\\nx1\n\x1b\u202e0", max_size=12))
def test_two_texts_are_never_written_alike(one, other):
    if one != other:
        assert (quote(one), quote(one) == one) != (quote(other), quote(other) == other)


def test_a_line_is_broken_by_us_with_a_sign_before_what_goes_on():
    lines = wrap("x" * 70 + "  directory: /safe", 72)
    assert lines == ["x" * 70 + "  ", CONTINUED + "directory: /safe"]
    assert [len(line) for line in wrap("日本" * 20, 40)] == [20, 22, 6]


def item(name, danger, kind="file"):
    return Item(name=name, kind=(kind, f"{kind}s"), danger=danger, before="added", after="because")


def test_what_is_dangerous_comes_first_and_the_rest_is_counted_by_kind():
    items = [item(f"decoy{number}", 5) for number in range(30)] + [item("links", 3, "link"), item("hook", 0, "hook")]
    lines = item_lines(items, most=4, seen_by="fumehood show RUN")
    assert lines[:2] == ["added hook: because", "added links: because"]
    assert lines[4:] == ["and 28 MORE, NOT SHOWN: 28 files; all of them: fumehood show RUN"]


def test_where_the_dangerous_alone_are_too_many_their_number_is_said():
    items = [item(f"decoy{number}", 5) for number in range(3)] + [item(f"hook{n}", 0, "hook") for n in range(9)]
    lines = item_lines(items, most=4)
    assert all("hook" in line for line in lines)
    assert lines[-1] == "and 8 MORE, NOT SHOWN: 5 hooks, 3 files"


def test_an_item_cannot_make_a_line_of_its_own():
    (line,) = item_lines([item("a\nadded harmless: because", 0)])
    assert "\n" not in line


@pytest.mark.parametrize("path", ["plain/a.py", "-dash", "sp ace", "it's", "\udcff\n\t\\'", "d/$HOME*", "ä\u202e"])
def test_a_path_in_a_hint_can_be_typed(path: str) -> None:
    line = ["bash", "-c", f"printf %s {shell_path(path)}"]
    read = subprocess.run(line, stdout=subprocess.PIPE, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}).stdout
    assert os.fsdecode(read).removeprefix("./" if path.startswith("-") else "") == path
    assert not shell_path(path).startswith("-")
    assert printable(shell_path(path)) == shell_path(path)
