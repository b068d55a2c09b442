"""A real terminal for tests: a pty whose other end is read like a person's screen, and typed into."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time


class Screen:
    """A program on a terminal of its own."""

    def __init__(self, command, *, cwd, env=None, rows=24, columns=80):
        self.master, slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(slave)
        self.slave = slave

        def take_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command, cwd=cwd, env=os.environ | {"TERM": "xterm-256color"} | (env or {}),
            stdin=slave, stdout=slave, stderr=slave, preexec_fn=take_terminal,  # noqa: PLW1509
        )  # fmt: skip
        self.shown = b""

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.master, text.encode())

    def read(self, seconds=0.1):
        """Take in what is shown within a time; tell whether there was any."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.shown += data
        return bool(data)

    def wait_for(self, text, seconds=30):
        """Read until a text is shown."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} was not shown, but {self.shown!r}"
            assert self.read() or self.process.poll() is None, f"it ended without {text!r}: {self.shown!r}"

    def wait(self, seconds=30):
        """Read to the end; returns the exit status."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.shown!r}"
            self.read()
        while self.read(0.02):
            pass
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)
