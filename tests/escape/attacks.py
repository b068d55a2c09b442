"""The table of attacks: each a small command with what it needs, tried on plain bubblewrap and in the hood.

An attack is a function with a docstring, the words of the table. It gets a `Case`, prepares the host, and returns the
command to run, or a `Plot` where something happens besides. It has succeeded when the case's token, which only the host
knows, is printed; when the command prints ESCAPED; or when the plot's own check says so.
"""

import os
import secrets
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fumehood.linux.bwrap import candidates
from patience import LONG_S

RUNNING = "While the command runs"
TAKING_OVER = "While changes are taken over"
LANDED = "After the changes landed"
SECTIONS = (RUNNING, TAKING_OVER, LANDED)
BESIDES = "Tested besides"  # sentences that hold, where there is nothing to compare with

# What many a tool starts: nothing can be written, and there is no network. Without /dev not even git would run.
PLAIN = (candidates()[0][1], "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-net")

SUCCEEDS, FAILS = "succeeds", "fails"


@dataclass
class Plot:
    """A command with what happens around it."""

    command: str
    environment: dict[str, str] = field(default_factory=dict)
    descriptor: int | None = None  # inherited by whoever starts the sandbox
    meanwhile: Callable[[], object] | None = None  # done when the command has printed something
    patience_s: float = 0.0  # in the hood, done only so much later: it has that long to end the command
    then: str = ""  # a second command
    check: Callable[[], bool] | None = None  # on the host, afterwards


class Case:
    """One try of one attack: a home, a project and a place outside, fresh each time."""

    def __init__(self, top: Path, stack: ExitStack) -> None:
        self.top, self.home, self.project = top, top / "home", top / "project"
        self.outside = top / "outside"
        self.outside.mkdir()
        self.token = f"token{secrets.token_hex(12)}"
        self.marker = self.outside / f"marker{secrets.token_hex(4)}"
        self.stack = stack

    def secret(self, path: Path) -> Path:
        """Write the token where it should be safe."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.token + "\n")
        return path

    def removed(self, path: Path) -> Path:
        """Have a path outside the test's own directory removed afterwards."""
        self.stack.callback(lambda: shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True))
        return path

    def listener(self, path: Path | str, kind: int = socket.SOCK_STREAM) -> str:
        """Serve the token on a Unix socket; returns where."""
        server = socket.socket(socket.AF_UNIX, kind)
        server.bind(str(path))
        self.stack.callback(server.close)
        if kind == socket.SOCK_STREAM:
            server.listen()
            threading.Thread(target=_serve, args=(server, self.token), daemon=True).start()
        return str(path)

    def git(self, *arguments: str, cwd: Path | None = None) -> None:
        """What a person does in their project, with what its configuration makes it do."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "GIT_CONFIG_NOSYSTEM": "1"}
        environment |= {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a"}
        environment |= {"GIT_COMMITTER_EMAIL": "a@b", "GIT_TERMINAL_PROMPT": "0"}
        subprocess.run(
            ["git", *arguments], cwd=cwd or self.project, env=environment, check=False, capture_output=True,
            timeout=LONG_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def repository(self) -> None:
        """Make the project a repository with one commit."""
        self.git("init", "-q")
        (self.project / "file").write_text("x\n")
        self.git("add", "file")
        self.git("commit", "-q", "-m", "first")

    def go(self) -> None:
        """Let a command go on that waits for the file `go` in its directory, which was empty when it began."""
        (self.project / "go").write_text("go")

    def was_marked(self) -> bool:
        """Tell whether the host was made to run something."""
        return self.marker.exists()


def _serve(server: socket.socket, token: str) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        connection.sendall(token.encode())
        connection.close()


@dataclass(frozen=True)
class Attack:
    """One line of the table."""

    name: str
    section: str
    words: str
    act: Callable[[Case], str | Plot]
    plain: str | None  # how it must end on plain bubblewrap; None where that depends on the kernel
    as_root: str | None  # the same for root
    root_only: bool
    needs: Callable[[], str]  # why it can't be tried here, or nothing


REGISTRY: dict[str, Attack] = {}


def attack(
    section: str, *, plain: str | None = SUCCEEDS, as_root: str | None = "", root_only: bool = False,
    needs: Callable[[], str] = str,
) -> Callable[[Callable[[Case], str | Plot]], Callable[[Case], str | Plot]]:  # fmt: skip
    """Put an attack into the table."""

    def enter(act: Callable[[Case], str | Plot]) -> Callable[[Case], str | Plot]:
        name = act.__name__
        assert name not in REGISTRY
        assert act.__doc__ is not None, name
        words = " ".join(act.__doc__.split()).rstrip(".")
        REGISTRY[name] = Attack(name, section, words, act, plain, plain if as_root == "" else as_root, root_only, needs)
        return act

    return enter


def python(code: str) -> str:
    """Write code as a command; an error in it is the end of the attack."""
    return f"exec python3 - <<'END'\n{code}\nEND\n"


def has_program(*names: str) -> Callable[[], str]:
    """Ask for programs."""
    return lambda: "".join(f"there is no {name}" for name in names if shutil.which(name) is None)


@contextmanager
def case_in(top: Path) -> Iterator[Case]:
    """Give an attack its place."""
    with ExitStack() as stack:
        yield Case(top, stack)


def on_plain_bubblewrap(attack: Attack, case: Case) -> bool:
    """Try an attack on plain bubblewrap with the project writable; tell whether it succeeded."""
    plot = _plotted(attack, case)
    line = [
        *PLAIN, "--bind", str(case.project), str(case.project),
        "--chdir", str(case.project), "--", "/bin/sh", "-c",
    ]  # fmt: skip
    environment = os.environ | {"HOME": str(case.home)} | plot.environment
    kept = () if plot.descriptor is None else (plot.descriptor,)
    printed = ""
    for command in filter(None, (plot.command, plot.then)):
        with subprocess.Popen(
            [*line, command], env=environment, pass_fds=kept, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL, text=True, errors="replace",
        ) as process:  # fmt: skip
            assert process.stdout is not None
            if plot.meanwhile is not None:
                process.stdout.readline()
                plot.meanwhile()
            printed += process.stdout.read()
    return has_succeeded(printed, plot, case)


def has_succeeded(printed: str, plot: Plot, case: Case) -> bool:
    """Look for the signs of success."""
    return case.token in printed or "ESCAPED" in printed or (plot.check is not None and plot.check())


def _plotted(attack: Attack, case: Case) -> Plot:
    found = attack.act(case)
    return found if isinstance(found, Plot) else Plot(found)


def in_the_hood(
    attack: Attack, case: Case, set_environment: Callable[[dict[str, str]], None], tree: Path | None = None
) -> bool | None:
    """Try an attack in the hood, with everything applied that would be; tell whether it succeeded.

    Nothing is told where it can't be tried: in a root tree that lacks the program it is written for.
    """
    from fumehood import Sandbox

    plot = _plotted(attack, case)
    if tree is not None and any(name in plot.command for name in ("python3", "git ")):
        return None
    set_environment(plot.environment)
    printed: list[str] = []
    later = threading.Timer(plot.patience_s, plot.meanwhile) if plot.meanwhile is not None else None

    def on_output(_stream: str, text: str) -> None:
        printed.append(text)
        if later is not None and later.ident is None:
            later.start()

    with Sandbox(case.project) as sandbox:
        for command in filter(None, (plot.command, plot.then)):
            run = sandbox.run(command, on_output=on_output, timeout=LONG_S, root=tree)
            printed.append(run.stdout)
    if later is not None and later.ident is not None:
        later.cancel()
        later.join()
    return has_succeeded("".join(printed), plot, case)


def record(section: str, words: str, where: str, *, succeeded: bool) -> None:
    """Note how a try ended, where `make escape` collects them: a line a try, a file a user."""
    folder = os.environ.get("FUMEHOOD_TESTS_ATTACKS", "")
    if folder:
        with open(f"{folder}/{os.geteuid()}", "a", encoding="utf-8") as file:
            file.write(f"{section}\t{words}\t{where}\t{SUCCEEDS if succeeded else FAILS}\n")
