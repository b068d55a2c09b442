"""Commands forked off a process that has loaded the command line: to load it takes most of a short one's time.

What is forked is in a session of its own, with the environment, directory and streams that it is given.
"""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

import forking
import fumehood
from forking import Asked


def command_line() -> list[str]:
    """How the wrapper starts Fumehood, where its environment runs the tests; else the module."""
    launcher = Path(sys.prefix, "launch.py")
    if launcher.is_file():
        return [sys.executable, "-I", "-S", "-X", f"pycache_prefix={sys.prefix}/pycache", str(launcher)]
    return [sys.executable, "-P", "-m", "fumehood"]


class Loaded:
    """A process that has imported some modules, and becomes the command line as often as it is asked to."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._folder = tempfile.mkdtemp(prefix="fumehood-tests-loaded-")
        self.place = f"{self._folder}/socket"
        paths = [path for path in sys.path if path.endswith(("/src", "/site-packages"))]
        started = command_line()
        told = json.dumps(
            {"place": self.place, "paths": paths, "prefix": sys.prefix, "modules": modules, "started": started}
        )
        self._process = subprocess.Popen(
            [*self._python(), told], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.read(1) == b"+", "the command line can't be loaded"

    def run(
        self, words: list[str], *, cwd: str, env: dict[str, str], input: str | None, timeout: float  # noqa: A002
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as `subprocess.run` does."""
        (out, its_out), (error, its_error) = os.pipe(), os.pipe()
        its_input, typed = (os.open(os.devnull, os.O_RDONLY), -1) if input is None else os.pipe()
        try:
            asked = Asked(self.place, words, cwd, env, [its_input, its_out, its_error])
        finally:
            for descriptor in (its_input, its_out, its_error):
                os.close(descriptor)
        with ThreadPoolExecutor(3) as threads, closing(asked.socket):
            outputs = [threads.submit(read_all, descriptor) for descriptor in (out, error)]
            if input is not None:
                threads.submit(write_all, typed, input)
            asked.socket.settimeout(timeout)
            try:
                status = asked.wait()
            except TimeoutError:
                os.kill(asked.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, timeout) from None
            stdout, stderr = (output.result(timeout) for output in outputs)
        return subprocess.CompletedProcess(words, os.waitstatus_to_exitcode(status), stdout, stderr)

    def client(self) -> list[str]:
        """A command line that is forked off, with the same streams."""
        return [*self._python(), self.place]

    def _python(self) -> list[str]:
        return [sys.executable, "-I", "-S", "-X", f"pycache_prefix={sys.prefix}/pycache", forking.__file__]

    def close(self) -> None:
        """End it: it goes when nobody holds its input."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait()
        shutil.rmtree(self._folder)


PACKAGES = ("core", "linux", "proxy", "rootfs", "store", "service", "faces/cli")


def modules_of(*packages: str) -> tuple[str, ...]:
    """All that the command line may load late, by the names that `forking.serve` imports them by."""
    top = Path(fumehood.__path__[0])
    files = sorted(file for package in packages for file in top.joinpath(package).glob("[!_]*.py"))
    return tuple(".".join(file.relative_to(top).with_suffix("").parts) for file in files)


COMMANDS = modules_of(*PACKAGES)
SERVER = (*COMMANDS, "faces.mcp.server")
WEB = (*COMMANDS, *modules_of("faces/web"))


@cache
def loaded(modules: tuple[str, ...]) -> Loaded:
    """A process that has loaded these; it lives as long as we do."""
    process = Loaded(modules)
    atexit.register(process.close)
    return process


def write_all(descriptor: int, text: str) -> None:
    """Write it, unless nobody reads."""
    with suppress(BrokenPipeError), open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(text)


def read_all(descriptor: int) -> str:
    """Read to the end."""
    with open(descriptor, encoding="utf-8", errors="surrogateescape") as stream:
        return stream.read()
