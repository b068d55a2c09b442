"""The turn to ask on a terminal: one at a time between processes, whoever they are, and given up by one that dies."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from contextlib import closing
from pathlib import Path

import pytest

from fumehood.linux.terminal import TerminalTurn

SOURCE = str(Path(__file__).parents[2] / "src")
TAKES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from fumehood.linux.terminal import TerminalTurn
tty = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
if sys.argv[3:]:
    os.setuid(int(sys.argv[3]))
turn = TerminalTurn(tty, sys.argv[2])
os.write(1, b"mine\\n" if turn.wait(seconds=0) else b"not mine\\n")
sys.stdin.read()
"""


@pytest.fixture
def terminal():
    screen, slave = pty.openpty()
    yield slave
    os.close(screen)
    os.close(slave)


class Other:
    """Another process at the same terminal."""

    def __init__(self, slave, locks, *user):
        def take_terminal():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", TAKES, SOURCE, str(locks), *map(str, user)], pass_fds=(slave,),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=take_terminal,  # noqa: PLW1509
        )  # fmt: skip
        self.said = self.process.stdout.readline()

    def close(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def test_another_process_waits_until_the_one_that_has_it_is_gone(terminal, tmp_path):
    with closing(Other(terminal, tmp_path)) as other, TerminalTurn(terminal, str(tmp_path)) as turn:
        assert other.said == b"mine\n"
        assert not turn.wait(seconds=0)
        other.close()
        assert turn.wait()
    assert os.listdir(tmp_path) == []


def test_of_two_in_one_process_one_waits(terminal, tmp_path):
    with TerminalTurn(terminal, str(tmp_path)) as one, TerminalTurn(terminal, str(tmp_path)) as other:
        assert one.wait(seconds=0)
        assert not other.wait(seconds=0)


def test_whoever_is_no_longer_wanted_stops_waiting(terminal, tmp_path):
    closed, closing_ = os.pipe()
    with TerminalTurn(terminal, str(tmp_path)) as one, TerminalTurn(terminal, str(tmp_path)) as other:
        assert one.wait(seconds=0)
        os.close(closing_)
        assert not other.wait(closed)
    os.close(closed)


def test_another_terminal_has_a_turn_of_its_own(terminal, tmp_path):
    screen, slave = pty.openpty()
    with TerminalTurn(terminal, str(tmp_path)) as one, TerminalTurn(slave, str(tmp_path)) as other:
        assert one.wait(seconds=0)
        assert other.wait(seconds=0)
    os.close(screen)
    os.close(slave)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("is_theirs", [True, False])
def test_root_and_a_person_at_the_same_terminal(terminal, test_directory, is_theirs):
    """The person's own terminal is locked itself; what root shares by `su` they can't open, so a file is."""
    test_directory.chmod(0o755)
    locks = test_directory / "locks"
    locks.mkdir()
    locks.chmod(0o777)
    os.fchown(terminal, 65534 if is_theirs else 0, -1)
    os.fchmod(terminal, 0o620)
    with TerminalTurn(terminal, str(locks)) as root:
        assert root.wait(seconds=0)
        with closing(Other(terminal, locks, 65534)) as person:
            assert person.said == (b"not mine\n" if is_theirs else b"mine\n")
    assert [name.partition("-")[0] for name in os.listdir(locks)] == ([] if is_theirs else ["terminal"])
