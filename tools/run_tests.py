"""Run the test suite; for root, then run what touches namespaces again as an ordinary user.

To root and to an ordinary user the kernel is not the same: other mount options, attributes and refusals.
"""

import ctypes
import fcntl
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
USER = "fumehood-test"
LOCK = "/run/fumehood-tests.lock"
CLONE_NEWUSER = 0x10000000
NO_TESTS_SELECTED = 5
# Program to look for, and the Debian package that has it.
SYSTEM_TOOLS = {
    "busybox": "busybox-static",
    "bwrap": "bubblewrap",
    "fuse-overlayfs": "fuse-overlayfs",
    "fusermount3": "fuse3",
    "git": "git",
    "strace": "strace",
}
NOT_COPIED = (".git", "__pycache__", ".hypothesis", ".*_cache", ".venv", "build", "dist", "node_modules")
# How to reach the package index is the machine's matter, not the user's.
PASSED_ON = ("PIP_", "SSL_CERT", "REQUESTS_CA", "HTTP", "http", "NO_PROXY", "no_proxy", "FUMEHOOD_TESTS")


@dataclass(frozen=True)
class Pass:
    """One run of pytest: by whom, how it ended, and its closing line."""

    name: str
    status: int
    closing: str


def main(arguments: Sequence[str]) -> int:
    """Run one pass, or two for root; fail if any fails."""
    # So that the set-up is taken back: the user, the copy, the device's mode.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    must_run = os.environ.get("FUMEHOOD_TESTS_MUST_RUN") == "1"
    is_root = os.geteuid() == 0
    missing = [tool for tool in SYSTEM_TOOLS if shutil.which(tool) is None]
    if missing:
        provide(missing, install=must_run and is_root)
    obstacle = why_no_second_user() if is_root else None
    if obstacle is not None:
        print(f"root only, not again as an ordinary user: {obstacle}", flush=True)
    name = "root" if is_root else "this user"
    passes = [run_pytest(name, [sys.executable], CHECKOUT, None, arguments)]
    if is_root and obstacle is None:
        passes.append(second_pass(arguments))
    elif obstacle is not None and must_run:
        passes.append(Pass("an ordinary user", 1, f"every test must run here, but {obstacle}"))
    if len(passes) > 1:
        print()
        for one in passes:
            print(f"as {one.name}:\n{one.closing}")
    return next((one.status for one in passes if one.status), 0)


def provide(missing: Sequence[str], *, install: bool) -> None:
    """Install the system's tools where we may, else name the line to type."""
    packages = [SYSTEM_TOOLS[tool] for tool in missing]
    if shutil.which("apt-get") is None:
        print(f"not here: {', '.join(missing)}; some tests will be skipped", flush=True)
    elif not install:
        line = f"apt install {' '.join(packages)}"
        print(f"not here: {', '.join(missing)}; to run every test, type: {line}", flush=True)
    else:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=False, env=environment)
        install_line = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        subprocess.run(install_line, check=False, env=environment, stdout=subprocess.DEVNULL)


def run_pytest(
    name: str, python: Sequence[str], cwd: Path, account: "Account | None", arguments: Sequence[str]
) -> Pass:
    """Run pytest, show its output as it comes, and keep its last line."""
    command = [*python, "-P", "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    if sys.stdout.isatty():
        command.append("--color=yes")
    # The checkout may be read-only, and in the hood every file left in it is a change to review.
    environment = dict(os.environ) if account is None else account.environment()
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    tail = b""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **({} if account is None else account.switch()),
    ) as process:
        assert process.stdout is not None
        while chunk := os.read(process.stdout.fileno(), 65536):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            tail = (tail + chunk)[-8192:]
    closing = [line for line in tail.decode(errors="replace").splitlines() if line.strip()]
    return Pass(name, process.returncode, closing[-1] if closing else "pytest printed nothing")


def why_no_second_user() -> str | None:
    """Say why an ordinary user can't run the namespace tests here, or None if one can."""
    probe = os.fork()
    if probe == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            code = 2
            if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) == 0:
                code = 0
        except OSError:
            pass
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(probe, 0)[1])
    refused = "an ordinary user can't make user namespaces here"
    return {0: None, 1: "root can't become another user here"}.get(ended, refused)


@dataclass(frozen=True)
class Account:
    """Somebody without privileges, with a home of their own."""

    uid: int
    gid: int
    home: Path
    is_ours: bool

    def environment(self) -> dict[str, str]:
        """What a fresh login would have, and the way to the package index."""
        kept = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return kept | {"HOME": str(self.home), "PATH": path, "USER": USER, "LOGNAME": USER, "LANG": "C.UTF-8"}

    def switch(self) -> dict[str, Any]:
        """Arguments that make subprocess start something as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": [], "umask": 0o022}


def second_pass(arguments: Sequence[str]) -> Pass:
    """Run the tests marked `namespaces` as an ordinary user, on a copy that this user can read."""
    with ExitStack() as stack:
        stack.enter_context(one_at_a_time())
        base = stack.enter_context(temporary_directory())
        account = stack.enter_context(ordinary_user(base / "home"))
        stack.enter_context(everybody_may_use(Path("/dev/fuse")))
        copy = base / "checkout"
        shutil.copytree(CHECKOUT, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        hand_over(base, account)
        name = f"an ordinary user (uid {account.uid})"
        print(f"\nagain as {name}: every test marked namespaces", flush=True)
        done = run_pytest(name, ["sh", "tools/python"], copy, account, [*arguments, "-m", "namespaces"])
        # An account that was there before may have work of its own.
        left = end_processes_of(account.uid) if account.is_ours else []
    if left:
        return Pass(name, done.status or 1, f"{done.closing}\nprocesses left behind: {', '.join(left)}")
    if done.status == NO_TESTS_SELECTED and arguments:
        return Pass(name, 0, done.closing)
    return done


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Keep second passes apart: they share an account and a device's mode.

    A pass that began during another would take the mode it found for the machine's own, and leave it so.
    """
    # In /run, where only root can put a name.
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for the second pass of another run", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """A directory anybody may enter, not under /tmp, which the sandbox hides."""
    base = Path(tempfile.mkdtemp(prefix="fumehood-second-pass-", dir="/var/tmp"))
    base.chmod(0o755)
    try:
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextmanager
def ordinary_user(home: Path) -> Iterator[Account]:
    """A real account where one can be made, else a uid that nobody has."""
    made = False
    entry = entry_of(USER)
    if entry is None and shutil.which("useradd") is not None:
        line = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", str(home), USER]
        made = subprocess.run(line, check=False, capture_output=True).returncode == 0
        entry = entry_of(USER)
    home.mkdir(mode=0o700)
    uid, gid = (free_uid(),) * 2 if entry is None else (entry.pw_uid, entry.pw_gid)
    account = Account(uid, gid, home, is_ours=made or entry is None)
    try:
        yield account
    finally:
        if made:
            subprocess.run(["userdel", USER], check=False, capture_output=True)


def entry_of(name: str) -> pwd.struct_passwd | None:
    """The account of that name, if there is one."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def free_uid() -> int:
    """The first uid from 61000 on that has no account: past what distributions hand out."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(61000, 65000) if uid not in taken)


@contextmanager
def everybody_may_use(device: Path) -> Iterator[None]:
    """Give a device the mode most systems give it, and take that back."""
    if not device.exists():
        yield
        return
    mode = stat.S_IMODE(device.stat().st_mode)
    device.chmod(mode | 0o666)
    try:
        yield
    finally:
        device.chmod(mode)


def hand_over(base: Path, account: Account) -> None:
    """Make the account the owner of everything below."""
    for folder, _, files in os.walk(base):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            os.chown(path, account.uid, account.gid, follow_symlinks=False)


def end_processes_of(uid: int) -> list[str]:
    """Name and end what the account's tests left running, after a moment of grace."""
    deadline = time.monotonic() + 3
    while (left := processes_of(uid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return [f"{command} ({pid})" for pid, command in left.items()]


def processes_of(uid: int) -> dict[int, str]:
    """The live processes of a uid, with their commands."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == uid and "\nState:\tZ" not in (folder / "status").read_text():
                found[int(folder.name)] = (folder / "comm").read_text().strip()
        except OSError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
