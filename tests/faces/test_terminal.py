"""On a real terminal: what a command prints and how it names its files can show text, and nothing else."""

import json
import os
import re

import pytest

import trees
from at_terminal import Terminal
from conftest import command_line

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

# A clipboard, a title, a colour, a line end, a bell, an answerback, text from right to left, one byte for CSI.
HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b]0;owned\x1b\\\x1b[31mred\n\x05\u202egpj.exe\u2066\x9bz"
# What we write ourselves: colours, and the line that is written over.
OURS = re.compile(rb"\x1b\[[0-9;]*m|\r?\x1b\[K|\r|\n|\t")


# Ends at Ctrl-C once it has said something: not a shell, which loses the signal when it is about to become a program.
PLAIN = "import signal, time; signal.signal(2, signal.SIG_DFL); print(1000 + 1, flush=True); time.sleep(100)"


@pytest.fixture
def screen(home, project):
    opened = []

    def start(*arguments, **options):
        opened.append(Terminal([*command_line(), *arguments], cwd=project, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def shown_by(start, *arguments, **options):
    one = start(*arguments, **options)
    one.end()
    return one.shown


def acts(shown):
    """What is left when text and our own sequences are taken away."""
    rest = OURS.sub(b"", shown).decode("utf-8", "replace")
    return [letter for letter in rest if not letter.isprintable()]


def test_output_on_a_terminal_keeps_its_colour_and_loses_what_makes_the_terminal_act(screen, project):
    (project / "out").write_bytes(b"\x1b[32mgreen\x1b[0m " + HOSTILE.encode() + b" \x1b[21t\x1b[8mlast")

    shown_by(screen, "run", "--quiet", "--", "true")
    shown = shown_by(screen, "run", "--", "cat out; cat out >&2")

    assert b"\x1b[32mgreen\x1b[0m" in shown
    assert b"\x1b]" not in shown
    assert b"ZXZpbA" not in shown
    assert b"\x05" not in shown
    assert b"\x1b[21t" not in shown
    # Each of the two outputs ends its own, whichever comes first.
    assert shown.count(b"last") == 2
    assert shown.rstrip().endswith(b"\x1b[0m")


def test_output_that_goes_into_a_pipe_keeps_every_byte(cli, project):
    (project / "out").write_bytes(HOSTILE.encode())
    assert cli("run", "--", "cat out").stdout == HOSTILE


@pytest.mark.long
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
    from fumehood.faces.cli.output import make_terminal_safe

    master, slave = os.openpty()
    with open(slave, "w", encoding="utf-8", newline="") as stream:
        make_terminal_safe(stream).write(f"name: {HOSTILE}\n")
        stream.flush()
        shown = os.read(master, 4096)
    os.close(master)
    assert b"\x1b]" not in shown
    assert not acts(shown), shown


# A terminal of the command's own


def test_a_shell_is_one_run(screen, project, cli):
    one = screen("shell", env={"SHELL": "/bin/bash", "PS1": "$ "})
    one.wait_for("this shell is in the hood")
    one.type("echo one > first; test -t 0 && test -t 1 && echo TT''Y; stty size\n")
    one.wait_for("TTY")
    one.wait_for("24 80")
    one.type("echo two > second; exit 5\n")

    assert one.end() == 5
    assert (project / "first").read_text() == "one\n"
    assert (project / "second").read_text() == "two\n"
    assert b"2 changes applied" in one.shown
    assert [each["command"] for each in json.loads(cli("log", "--json").stdout)["runs"]] == ["fumehood shell"]


def test_a_shell_leaves_no_history_that_would_be_told_of_each_time(screen):
    one = screen("shell", env={"SHELL": "/bin/bash"})
    one.wait_for("this shell is in the hood")
    one.type("echo typed; exit\n")
    assert one.end() == 0
    assert "not kept" not in one.seen


@pytest.mark.parametrize("root", ["host", "tree", "tree of another's"])
def test_the_terminal_of_a_shell_has_a_name_that_is_there(screen, project, test_directory, root):
    tree = trees.make_tree(test_directory / "tree") if root != "host" else "host"
    if root == "tree of another's":
        if os.geteuid() != 0:
            pytest.skip("only root works for somebody else")
        os.chown(project, 61234, 61234)
        for place in (test_directory, project):
            os.chmod(place, 0o755)
    one = screen("shell", "--root", tree, env={"SHELL": "/bin/sh", "PS1": "$ "})
    one.wait_for("this shell is in the hood")
    # As musl's `ttyname` finds it, which looks nowhere else.
    one.type("tty; name=$(readlink /proc/self/fd/0); test -c $name && echo it is $name; echo x > /dev/tty; exit\n")
    assert one.end() == 0
    assert "/dev/console\r\nit is /dev/console\r\nx\r\n" in one.seen, one.seen


def test_ctrl_c_ends_what_runs_in_the_shell_and_not_the_shell(screen):
    one = screen("shell", env={"SHELL": "/bin/bash"})
    prompt = "project# " if os.geteuid() == 0 else "$ "
    one.wait_for(prompt)
    one.type(f"python3 -c '{PLAIN}'; echo after=$?\n")
    one.wait_for("1001")
    one.shown = b""
    one.type("\x03")
    one.wait_for(prompt)  # what is typed before that may be thrown away
    one.type("echo still=$?\n")
    one.wait_for("still=130")
    one.type("exit\n")
    assert one.end() == 0


def test_ctrl_z_stops_what_runs_in_the_shell_and_fg_goes_on(screen):
    one = screen("shell", env={"SHELL": "/bin/bash"})
    prompt = "project# " if os.geteuid() == 0 else "$ "
    one.wait_for(prompt)
    one.type("sh -c 'echo run''ning; read line; echo go''ne-$line'\n")
    one.wait_for("running")
    one.shown = b""
    one.type("\x1a")
    one.wait_for("Stopped")
    one.wait_for(prompt)
    one.shown = b""
    one.type("fg\n")
    one.wait_for("read line")  # it says what goes on
    one.type("on\n")
    one.wait_for("gone-on")
    one.type("exit\n")
    assert one.end() == 0


def test_the_command_learns_that_the_window_has_another_size(screen):
    code = "import os, signal; told = {signal.SIGWINCH}; signal.pthread_sigmask(signal.SIG_BLOCK, told); "
    code += "os.write(1, b'ready'); signal.sigwait(told); print(os.get_terminal_size(0))"
    one = screen("run", "--tty", "--", "python3", "-c", code)
    one.wait_for("ready")
    one.resize(40, 123)
    one.wait_for("columns=123, lines=40")
    assert one.end() == 0


def test_ctrl_c_in_a_command_on_a_terminal_is_the_commands(screen, project):
    (project / "patient.py").write_text(
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('interrupted, going on')\nraise SystemExit(7)\n"
    )
    one = screen("run", "--tty", "--", "python3", "patient.py")
    one.wait_for("ready")
    one.type("\x03")
    one.wait_for("interrupted, going on")
    assert one.end() == 7


def test_ctrl_c_on_its_terminal_ends_a_plain_command(screen):
    one = screen("run", "--tty", "--", "python3", "-c", PLAIN)
    one.wait_for("1001")
    one.type("\x03")
    assert one.end() == 130


def test_ctrl_c_ends_a_loop_of_commands(screen):
    one = screen("run", "--tty", "--", "echo ready; while :; do sleep 0.05; done")
    one.wait_for("ready")
    one.type("\x03")
    assert one.end() == 130


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_whatever_the_shell_its_prompt_names_the_hood_and_its_exit_code_is_told(screen, shell):
    one = screen("shell", env={"SHELL": shell, "PS1": "% "})
    one.wait_for("(hood) ")
    one.type("exit 9\n")
    assert one.end() == 9, one.shown
    assert b"process group" not in one.shown
    assert b"job control" not in one.shown


def test_ctrl_z_does_not_stop_what_nobody_could_let_go_on(screen):
    one = screen("run", "--tty", "--", "echo ready; read line; echo got-$line")
    one.wait_for("ready")
    one.type("\x1atext\n")
    one.wait_for("got-text")
    assert one.end() == 0


@pytest.mark.long
@pytest.mark.parametrize("ending", ["exit", "term", "hang up"])
def test_the_terminal_is_as_it_was_whatever_happened(screen, project, ending):
    line = "stty raw -echo" if ending == "exit" else "stty raw -echo; echo ready; sleep 100"
    one = screen("run", "--tty", "--", line)
    if ending != "exit":
        one.wait_for("ready")
        assert one.modes() != one.before
        one.process.send_signal(15 if ending == "term" else 1)
    one.end()
    assert one.modes() == one.before


def test_a_program_that_draws_on_the_screen_is_cleaned_up_after(screen):
    one = screen("run", "--tty", "--", "printf '\\033[?1049h\\033[?25l\\033]52;c;eA==\\007drawn'")
    one.end()
    assert b"\x1b[?1049h" in one.shown
    assert b"\x1b]52" not in one.shown
    assert one.shown.index(b"\x1b[?1049l") > one.shown.index(b"drawn")
    assert one.shown.index(b"\x1b[?25h") > one.shown.index(b"drawn")


def test_a_command_without_tty_never_holds_the_persons_terminal(screen):
    line = "ls -l /proc/self/fd; (exec 3</dev/tty) 2>&1; test -t 0 || echo no-''tty; read line; echo got-$line"
    one = screen("run", "--", line)
    one.wait_for("no-tty")
    one.type("typed\n")
    one.wait_for("got-typed")
    assert one.end() == 0
    assert b"/dev/pts" not in one.shown
    assert b"/dev/tty" in one.shown  # it can't be opened


def test_tty_without_a_terminal_is_refused(cli):
    done = cli("run", "--tty", "--", "true")
    assert done.returncode == 125
    assert "needs a terminal" in done.stderr


def test_a_shell_without_a_terminal_is_refused_in_its_own_words(cli):
    done = cli("shell")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == "ERROR: a shell needs a terminal\nhint: fumehood run -- COMMAND needs none\n"


def test_an_agents_program_on_a_terminal_is_typed_to_and_shows_what_is_invisible(screen, home, project):
    one = screen("run", "--brief", "--session", "s", "--", "python3 -q")
    one.wait_for(">>> ")
    one.type("import sys; print(sys.stdin.isatty(), 6 * 7)\n")
    one.wait_for("True 42\r\n>>> ")
    one.type("print('\\x1b]0;owned\\x07')\n")
    one.wait_for("owned\\x07\r\n>>> ")  # before that, the end of input would get lost
    one.type("\x04")
    one.end()
    assert b"\x1b]" not in one.shown


def test_on_an_agents_terminal_programs_write_plain_text(screen, home, project):
    (project / "directory").mkdir()
    one = screen("run", "--brief", "--session", "s", "--", "ls --color=auto; python3 -q; tput setaf 1; echo end")
    shown = one.wait_for(">>> ")
    assert "\r\ndirectory\r\n" in f"\r\n{shown}"
    one.type("exit()\n")
    one.end()
    assert "end" in one.seen
    assert "\\x1b" not in one.seen
