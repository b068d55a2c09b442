"""On a real terminal: what a command prints and how it names its files can show text, and nothing else."""

import os
import re

import pytest

from conftest import command_line
from terminals import Screen

pytestmark = pytest.mark.namespaces

# A clipboard, a title, a colour, a line end, a bell, an answerback, text from right to left, one byte for CSI.
HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b]0;owned\x1b\\\x1b[31mred\n\x05\u202egpj.exe\u2066\x9bz"
# What we write ourselves: colours, and the line that is written over.
OURS = re.compile(rb"\x1b\[[0-9;]*m|\r?\x1b\[K|\r|\n|\t")


@pytest.fixture
def screen(home, project):
    opened = []

    def start(*arguments, **options):
        opened.append(Screen([*command_line(), *arguments], cwd=project, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def shown_by(start, *arguments, **options):
    one = start(*arguments, **options)
    one.wait()
    return one.shown


def acts(shown):
    """What is left when text and our own sequences are taken away."""
    rest = OURS.sub(b"", shown).decode("utf-8", "replace")
    return [letter for letter in rest if not letter.isprintable()]


def test_output_on_a_terminal_keeps_its_colour_and_loses_what_makes_the_terminal_act(screen, project):
    (project / "out").write_bytes(b"\x1b[32mgreen\x1b[0m " + HOSTILE.encode() + b" \x1b[21t\x1b[8mlast")

    shown = shown_by(screen, "run", "--", "cat out; cat out >&2")

    assert b"\x1b[32mgreen\x1b[0m" in shown
    assert b"\x1b]" not in shown
    assert b"ZXZpbA" not in shown
    assert b"\x05" not in shown
    assert b"\x1b[21t" not in shown
    assert shown.rstrip().endswith(b"last\x1b[0m\x1b[0m")  # each of the two outputs ends its own


def test_output_that_goes_into_a_pipe_keeps_every_byte(cli, project):
    (project / "out").write_bytes(HOSTILE.encode())
    assert cli("run", "--", "cat out").stdout == HOSTILE


def test_no_name_of_a_file_acts_on_the_terminal(screen, project):
    name = HOSTILE.replace("/", "")
    (project / name).mkdir()
    (project / name / "kept").write_text("one\n")
    script = 'd=$(ls -d *red*gpj*); echo two > "$d/kept"; cp "$d/kept" "$d$d"; mkfifo "$d.pipe"; ln -s /etc "$d.link"; '
    script += 'exit 3'
    shown = [shown_by(screen, "run", "--", script)]
    told = (
        ["log"], ["show", "last"], ["diff", "last"], ["files"], ["files", "--all"], ["files", f"{name}/kept"],
        ["scan"], ["undo", "last", "--force"], ["log"], ["show", "last"], ["restore", f"{name}/kept"],
        ["discard", "last"], ["apply", "last"], ["roots", "list"], ["clean"], ["show", name], ["run", "--cwd", name],
        ["restore", name], ["diff", name], [name], ["run", "--session", name, "--", "true"], ["log"],
    )  # fmt: skip
    shown += [shown_by(screen, *words) for words in told]
    for each in shown:
        assert not [letter for letter in acts(each) if letter != "\ufffd"], each
    assert b"\\x1b]52" in shown[0]
    assert b"\\u202e" in shown[0]


def test_no_command_acts_on_the_terminal_from_the_log(screen, project):
    shown_by(screen, "run", "--quiet", "--", f"true '{HOSTILE}'")
    for words in (["log"], ["show", "last"]):
        shown = shown_by(screen, *words)
        assert not acts(shown), shown
        assert b"\\x1b]52" in shown


def test_output_printed_again_is_as_tame(screen, project):
    (project / "out").write_bytes(b"\x1b[31m" + HOSTILE.encode())
    shown_by(screen, "run", "--quiet", "--", "cat out")
    shown = shown_by(screen, "output", "last")
    assert shown.startswith(b"\x1b[31m")
    assert b"\x1b]" not in shown
    assert not acts(shown), shown


def test_a_word_of_ours_that_forgot_to_make_a_name_printable_is_tamed(tmp_path):
    from fumehood.faces.cli.sink import guarded

    master, slave = os.openpty()
    with open(slave, "w", encoding="utf-8", newline="") as stream:
        guarded(stream).write(f"name: {HOSTILE}\n")
        stream.flush()
        shown = os.read(master, 4096)
    os.close(master)
    assert b"\x1b]" not in shown
    assert not acts(shown), shown
