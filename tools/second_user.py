"""An ordinary user for the tests of root's, with a copy of the checkout: an account that goes when they have ended."""

import ctypes
import fcntl
import grp
import marshal
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
USER = "fumehood-test"
LOCK = "/run/fumehood-tests.lock"
CLONE_NEWUSER = 0x10000000
SCRATCH = "/var/tmp"
TEMPORARY = "fumehood-second-pass-"
# Where an ordinary user's tests find directories with files of root's in them; each is used once.
MIXED, MIXED_PROJECTS = "FUMEHOOD_TESTS_MIXED", 40
NOT_COPIED = (".git", "__pycache__", ".hypothesis", ".*_cache", ".venv", "build", "dist", "node_modules")
# How to reach the package index is the machine's matter, not the user's.
PASSED_ON = ("PIP_", "SSL_CERT", "REQUESTS_CA", "HTTP", "http", "NO_PROXY", "no_proxy", "FUMEHOOD_TESTS")


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
    groups: tuple[int, ...] = ()

    def environment(self) -> dict[str, str]:
        """What a fresh login would have, and the way to the package index."""
        kept = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return kept | {"HOME": str(self.home), "PATH": path, "USER": USER, "LOGNAME": USER, "LANG": "C.UTF-8"}

    def switch(self) -> dict[str, Any]:
        """Arguments that make subprocess start something as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": self.groups, "umask": 0o022}


@contextmanager
def second_user() -> Iterator[tuple[Account, Path]]:
    """An ordinary user, and a copy of the checkout that this user can read."""
    with ExitStack() as stack:
        stack.enter_context(one_at_a_time())
        base = stack.enter_context(temporary_directory())
        account = stack.enter_context(ordinary_user(base / "home"))
        stack.enter_context(everybody_may_use(Path("/dev/fuse")))
        copy = base / "checkout"
        shutil.copytree(CHECKOUT, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        packages = base / "packages"
        subprocess.run(["cp", "-a", sysconfig.get_path("purelib"), packages], check=True)
        hand_over(base, account)
        mixed_projects(base / "mixed", account)
        lend(packages, copy, account)
        yield account, copy


# Makes the environment of a checkout with packages that lie there, and not with some from an index.
WITH_PACKAGES = """
import os, sys, sysconfig
checkout, packages = sys.argv[1:]
sys.path.insert(0, checkout + "/tools")
import environment
def install(target, *_):
    place = sysconfig.get_path("purelib", "venv", {"base": str(target), "platbase": str(target)})
    os.rmdir(place)
    os.rename(packages, place)
environment.install = install
sys.argv[1:] = checkout, "test"
sys.exit(environment.main())
"""


def lend(packages: Path, copy: Path, account: "Account") -> None:
    """Make the account's environment with our packages; where its Python is another one, it installs its own."""
    environment = account.environment()
    python = shutil.which("python3", path=environment["PATH"])
    question = "import os, sys; print(sys.version_info[:2], os.path.realpath(sys.executable))"
    options: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, **account.switch()}
    answer = subprocess.run(
        [python or "false", "-I", "-c", question], check=False, capture_output=True, text=True, **options
    ).stdout.strip()
    version, _, interpreter = answer.rpartition(") ")
    if f"{version})" == str(sys.version_info[:2]):
        command = [interpreter, "-I", "-B", "-c", WITH_PACKAGES, str(copy), str(packages)]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, **options)


def lend_compiled(copy: Path, account: "Account") -> str:
    """Give the account what was compiled of our checkout, packages and library; return where it looks for that.

    To do it anew takes 20 seconds. Where its Python is another one, nothing of ours is used.
    """
    environment = next(account.home.glob(".cache/fumehood/venv-test-*"), account.home)
    ours, theirs = f"{sys.prefix}/pycache", f"{environment}/pycache"
    library, packages = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
    their_packages = f"{environment}{packages.removeprefix(sys.prefix)}"
    for here, there in ((CHECKOUT, copy), (packages, their_packages), (library, library)):
        if os.path.isdir(f"{ours}{here}"):
            # What is being written has another name yet.
            written = shutil.ignore_patterns("*.pyc.*")
            shutil.copytree(f"{ours}{here}", f"{theirs}{there}", dirs_exist_ok=True, ignore=written)
    # In these, pytest leaves the names of the files as they are, and failures show lines by them.
    for file in Path(f"{theirs}{copy}").rglob("*-pytest-*.pyc"):
        head, code = file.read_bytes()[:16], marshal.loads(file.read_bytes()[16:])  # noqa: S302 - our own
        file.write_bytes(head + marshal.dumps(at_home(code, str(copy))))
    hand_over(Path(theirs), account)
    return theirs


def at_home(code: CodeType, checkout: str) -> CodeType:
    """The code of a file of our checkout as that of the same file of another."""
    parts = tuple([at_home(part, checkout) if isinstance(part, CodeType) else part for part in code.co_consts])
    return code.replace(co_filename=code.co_filename.replace(str(CHECKOUT), checkout, 1), co_consts=parts)


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
    base = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=SCRATCH))
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
    if entry is not None and TEMPORARY in entry.pw_dir:
        # Of a run that was killed: we have the lock.
        end_processes_of(entry.pw_uid, grace_s=0)
        subprocess.run(["userdel", USER], check=False, capture_output=True)
        entry = entry_of(USER)
    if entry is None and shutil.which("useradd") is not None:
        line = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", str(home), USER]
        made = subprocess.run(line, check=False, capture_output=True).returncode == 0
        entry = entry_of(USER)
    home.mkdir(mode=0o700)
    uid, gid = (free_uid(),) * 2 if entry is None else (entry.pw_uid, entry.pw_gid)
    groups = free_gids(2)
    account = Account(uid, gid, home, is_ours=made or entry is None, groups=groups)
    if made:
        # One of the two: what can be mapped and what can't are both to be tried. It goes with the account.
        line = ["usermod", "--add-subgids", f"{groups[0]}-{groups[0]}", USER]
        subprocess.run(line, check=False, capture_output=True)
    try:
        yield account
    finally:
        if account.is_ours:
            end_processes_of(account.uid, grace_s=0)
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


def free_gids(count: int) -> tuple[int, ...]:
    """The first group numbers from 61500 on that are nobody's: a process can be in a group without a name."""
    taken = {entry.gr_gid for entry in grp.getgrall()}
    return tuple([gid for gid in range(61500, 65000) if gid not in taken][:count])


def mixed_projects(place: Path, account: Account) -> None:
    """Directories of the account's with things of root's in them, for tests to take one each."""
    place.mkdir()
    os.chown(place, account.uid, account.gid)
    for number in range(MIXED_PROJECTS):
        mixed_project(place / str(number), account)
    sticky_project(place.with_name(f"{place.name}-sticky"), account)
    shared_project(place.with_name(f"{place.name}-shared"), account)
    os.environ[MIXED] = str(place)


def sticky_project(top: Path, account: Account) -> None:
    """A directory of root's that the account may write, where it can't take out what is root's."""
    for path, mode in ((top, 0o3775), (top / "file", 0o664)):
        path.mkdir() if path == top else path.write_text("of root's\n")
        os.chown(path, 0, account.groups[-1])
        path.chmod(mode)


def shared_project(top: Path, account: Account) -> None:
    """A tree of another user's, who shares it with a group of the account's."""
    for name, mode in {
        "": 0o2775, "file": 0o664, "d": 0o2775, "d/gone": 0o664, "d/in": 0o664, "closed": 0o755, "closed/in": 0o644
    }.items():  # fmt: skip
        path = top / name
        path.mkdir() if name in ("", "d", "closed") else path.write_text("a colleague's\n")
        os.chown(path, account.uid + 1, account.groups[-1])
        path.chmod(mode)


def mixed_project(top: Path, account: Account) -> None:
    """One such directory: only root can leave this there."""
    shared = account.groups[-1]
    for path, owner, mode in (
        (top, (account.uid, account.gid), 0o755),
        (top / "readable", (0, 0), 0o644),
        (top / "secret", (0, 0), 0o600),
        (top / "empty", (0, 0), 0o755),
        (top / "closed", (0, 0), 0o755),
        (top / "closed/file", (0, 0), 0o644),
        (top / "own", (account.uid, account.gid), 0o755),
        (top / "own/private", (0, 0), 0o700),
        (top / "shared", (0, shared), 0o2775),
        (top / "shared/file", (0, shared), 0o664),
    ):
        if path.name in ("readable", "secret", "file"):
            path.write_text(f"{path.name} of root's\n")
        else:
            path.mkdir(parents=True)
        os.chown(path, *owner)
        path.chmod(mode)


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


def end_processes_of(uid: int, grace_s: float = 60) -> list[str]:
    """Name and end what the account's tests left running, after some grace."""
    deadline = time.monotonic() + grace_s
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
