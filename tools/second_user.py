"""An ordinary user with a copy of the checkout, for the tests that root runs: a temporary account."""

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
# The variable that names, for the ordinary user's tests, directories with files of root in them; each is used once.
MIXED, MIXED_PROJECTS = "FUMEHOOD_TESTS_MIXED", 40
NOT_COPIED = (".git", "__pycache__", ".hypothesis", ".*_cache", ".venv", "build", "dist", "node_modules")
# Variables about the package index belong to the machine, not to the user.
PASSED_ON = ("PIP_", "SSL_CERT", "REQUESTS_CA", "HTTP", "http", "NO_PROXY", "no_proxy", "FUMEHOOD_TESTS")


def why_no_second_user() -> str | None:
    """Return why an ordinary user can't run the namespace tests here, or None if one can."""
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
    status = os.waitstatus_to_exitcode(os.waitpid(probe, 0)[1])
    no_namespaces = "an ordinary user can't make user namespaces here"
    return {0: None, 1: "root can't become another user here"}.get(status, no_namespaces)


@dataclass(frozen=True)
class Account:
    """A user without privileges, with a home."""

    uid: int
    gid: int
    home: Path
    is_ours: bool  # made here, or a uid that nobody has
    groups: tuple[int, ...] = ()

    def environment(self) -> dict[str, str]:
        """Return the variables of a fresh login, and those for the package index."""
        kept = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return kept | {"HOME": str(self.home), "PATH": path, "USER": USER, "LOGNAME": USER, "LANG": "C.UTF-8"}

    def switch(self) -> dict[str, Any]:
        """Return the arguments by which subprocess starts a program as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": self.groups, "umask": 0o022}


@contextmanager
def second_user() -> Iterator[tuple[Account, Path]]:
    """Yield an ordinary user, and a copy of the checkout that this user owns."""
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
        make_mixed_projects(base / "mixed", account)
        make_environment(packages, copy, account)
        yield account, copy


# Makes the environment of a checkout with existing packages, instead of packages from an index.
WITH_PACKAGES = """
import os, sys
checkout, packages = sys.argv[1:]
sys.path.insert(0, checkout + "/tools")
import environment
def install(target, *_):
    own = environment.site_packages(target)
    os.rmdir(own)
    os.rename(packages, own)
environment.install = install
sys.argv[1:] = checkout, "test"
sys.exit(environment.main())
"""


def make_environment(packages: Path, copy: Path, account: Account) -> None:
    """Make the account's environment with our packages; if its Python has another version, it installs its own."""
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


def lend_compiled(copy: Path, account: Account) -> str:
    """Copy our compiled files of checkout, packages and library for the account; return its directory of these files.

    To compile them again takes 20 seconds. If the account's Python has another version, it uses none of them.
    """
    environment = next(account.home.glob(".cache/fumehood/venv-test-*"), account.home)
    own_cache, cache = f"{sys.prefix}/pycache", f"{environment}/pycache"
    library, packages = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
    account_packages = f"{environment}{packages.removeprefix(sys.prefix)}"
    unfinished = shutil.ignore_patterns("*.pyc.*")  # files that are still being written
    for source, target in ((CHECKOUT, copy), (packages, account_packages), (library, library)):
        if os.path.isdir(f"{own_cache}{source}"):
            shutil.copytree(f"{own_cache}{source}", f"{cache}{target}", dirs_exist_ok=True, ignore=unfinished)
    # Files that pytest compiled contain the names of their sources, by which failures show lines.
    for file in Path(f"{cache}{copy}").rglob("*-pytest-*.pyc"):
        head, code = file.read_bytes()[:16], marshal.loads(file.read_bytes()[16:])  # noqa: S302 - our own
        file.write_bytes(head + marshal.dumps(moved(code, str(copy))))
    hand_over(Path(cache), account)
    return cache


def moved(code: CodeType, checkout: str) -> CodeType:
    """Return the code of a file of our checkout as code of the same file in another checkout."""
    constants = tuple([moved(each, checkout) if isinstance(each, CodeType) else each for each in code.co_consts])
    return code.replace(co_filename=code.co_filename.replace(str(CHECKOUT), checkout, 1), co_consts=constants)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let only one process at a time have the second user: all share the account and a device's mode.

    A second one would take the mode that the first has set for the machine's own, and set it again at the end.
    """
    # In /run, because only root can make files there.
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
    """Yield a directory that anybody may enter; not under /tmp, which the sandbox hides."""
    base = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=SCRATCH))
    base.chmod(0o755)
    try:
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextmanager
def ordinary_user(home: Path) -> Iterator[Account]:
    """Yield a real account if one can be made, else a uid that nobody has."""
    is_made = False
    entry = entry_of(USER)
    if entry is not None and TEMPORARY in entry.pw_dir:
        # It is left from a run that was killed: no other is running, because we have the lock.
        end_processes_of(entry.pw_uid, grace_s=0)
        subprocess.run(["userdel", USER], check=False, capture_output=True)
        entry = entry_of(USER)
    if entry is None and shutil.which("useradd") is not None:
        line = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", str(home), USER]
        is_made = subprocess.run(line, check=False, capture_output=True).returncode == 0
        entry = entry_of(USER)
    home.mkdir(mode=0o700)
    uid, gid = (free_uid(),) * 2 if entry is None else (entry.pw_uid, entry.pw_gid)
    groups = free_gids(2)
    account = Account(uid, gid, home, is_ours=is_made or entry is None, groups=groups)
    if is_made:
        # Only one of the two groups, so that tests have one that can be mapped and one that can't. It is removed with
        # the account.
        line = ["usermod", "--add-subgids", f"{groups[0]}-{groups[0]}", USER]
        subprocess.run(line, check=False, capture_output=True)
    try:
        yield account
    finally:
        if account.is_ours:
            end_processes_of(account.uid, grace_s=0)
        if is_made:
            subprocess.run(["userdel", USER], check=False, capture_output=True)


def entry_of(name: str) -> pwd.struct_passwd | None:
    """Return the account of this name, or None if there is none."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def free_uid() -> int:
    """Return the first uid from 61000 on that has no account: distributions give no such uids to users."""
    used = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(61000, 65000) if uid not in used)


def free_gids(count: int) -> tuple[int, ...]:
    """Return the first gids from 61500 on that are not used: a process can be in a group without a name."""
    used = {entry.gr_gid for entry in grp.getgrall()}
    return tuple([gid for gid in range(61500, 65000) if gid not in used][:count])


def make_mixed_projects(directory: Path, account: Account) -> None:
    """Make directories of the account with files of root in them, one for each test that needs one."""
    directory.mkdir()
    os.chown(directory, account.uid, account.gid)
    for number in range(MIXED_PROJECTS):
        make_mixed_project(directory / str(number), account)
    make_sticky_project(directory.with_name(f"{directory.name}-sticky"), account)
    make_shared_project(directory.with_name(f"{directory.name}-shared"), account)
    os.environ[MIXED] = str(directory)


def make_sticky_project(top: Path, account: Account) -> None:
    """Make a directory of root that the account may write, but from which it can't remove root's files."""
    for path, mode in ((top, 0o3775), (top / "file", 0o664)):
        path.mkdir() if path == top else path.write_text("of root's\n")
        os.chown(path, 0, account.groups[-1])
        path.chmod(mode)


def make_shared_project(top: Path, account: Account) -> None:
    """Make a tree of another user, who shares it with a group that the account is in."""
    for name, mode in {
        "": 0o2775, "file": 0o664, "d": 0o2775, "d/gone": 0o664, "d/in": 0o664, "closed": 0o755, "closed/in": 0o644
    }.items():  # fmt: skip
        path = top / name
        path.mkdir() if name in ("", "d", "closed") else path.write_text("a colleague's\n")
        os.chown(path, account.uid + 1, account.groups[-1])
        path.chmod(mode)


def make_mixed_project(top: Path, account: Account) -> None:
    """Make a directory of the account with files that only root can put there."""
    shared_group = account.groups[-1]
    for path, owner, mode in (
        (top, (account.uid, account.gid), 0o755),
        (top / "readable", (0, 0), 0o644),
        (top / "secret", (0, 0), 0o600),
        (top / "empty", (0, 0), 0o755),
        (top / "closed", (0, 0), 0o755),
        (top / "closed/file", (0, 0), 0o644),
        (top / "own", (account.uid, account.gid), 0o755),
        (top / "own/private", (0, 0), 0o700),
        (top / "shared", (0, shared_group), 0o2775),
        (top / "shared/file", (0, shared_group), 0o664),
    ):
        if path.name in ("readable", "secret", "file"):
            path.write_text(f"{path.name} of root's\n")
        else:
            path.mkdir(parents=True)
        os.chown(path, *owner)
        path.chmod(mode)


@contextmanager
def everybody_may_use(device: Path) -> Iterator[None]:
    """Give a device the mode that most systems give it, and at the end its own again."""
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
    """Make the account the owner of a directory and of everything in it."""
    for folder, _, files in os.walk(base):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            os.chown(path, account.uid, account.gid, follow_symlinks=False)


def end_processes_of(uid: int, grace_s: float = 60) -> list[str]:
    """Wait for the user's processes to end, then kill those that are left; return their names."""
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
    """Return the live processes of a user, with their commands."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == uid and "\nState:\tZ" not in (folder / "status").read_text():
                processes[int(folder.name)] = (folder / "comm").read_text().strip()
        except OSError:
            continue
    return processes
