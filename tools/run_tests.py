"""Run the test suite; for root, run what can differ again as an ordinary user, beside it.

To root and to an ordinary user the kernel is not the same: other mount options, attributes and refusals. With
--installs, those tests that make environments and install programs, which otherwise are left out.
"""

import ctypes
import fcntl
import grp
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

CHECKOUT = Path(__file__).resolve().parent.parent
USER = "fumehood-test"
LOCK = "/run/fumehood-tests.lock"
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
NO_TESTS_SELECTED = 5
# Known to tests/conftest.py: some tests want the machine for themselves.
TOGETHER, ALONE = "together", "alone"
HALVES = ("first half", "second half")  # of those together
AGAIN = ""  # whichever are named
# Where others took so much of the machine's time, what failed may only have been late: a few are tried again, alone.
MUCH_TAKEN, FEW = 0.1, 30
WORKERS = 1 + max(2, len(os.sched_getaffinity(0)))  # besides, an ordinary user has two
GRACE_S = 15
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# Program to look for: the Debian package that has it, and what is not tried without it.
SYSTEM_TOOLS = {
    "busybox": ("busybox-static", "attacks and commands in a root tree of their own"),
    "bwrap": ("bubblewrap", "the system's own bubblewrap beside the bundled one"),
    "chattr": ("e2fsprogs", "files that can't be changed"),
    "curl": ("curl", "the network, with a program that everybody uses"),
    "dbus-daemon": ("dbus-daemon", "notifications of the desktop"),
    "fuse-overlayfs": ("fuse-overlayfs", "capturing by FUSE"),
    "fusermount3": ("fuse3", "capturing by FUSE, as an ordinary user"),
    "git": ("git", "repositories"),
    "newgidmap": ("uidmap", "files of another group, by the kernel's overlay"),
    "openssl": ("openssl", "signed packages"),
    "pgrep": ("procps", "that no process is left"),
    "redis-server": ("redis-server", "a fleet of workers"),
    "ssh-keygen": ("openssh-client", "signed bundles and jobs"),
    "strace": ("strace", "being killed at any system call"),
    "umoci": ("umoci", "whether other tools read our bundles"),
}
SCRATCH = "/var/tmp"
DISK_BYTES = 2 << 30
SEED = "00000000-0000-4000-8000-000000000003"  # decides the order of names in a directory: the same in every run
TEMPORARY = "fumehood-second-pass-"
# Where an ordinary user's tests find directories with files of root's in them; each is used once.
MIXED, MIXED_PROJECTS = "FUMEHOOD_TESTS_MIXED", 40
NOT_COPIED = (".git", "__pycache__", ".hypothesis", ".*_cache", ".venv", "build", "dist", "node_modules")
# How to reach the package index is the machine's matter, not the user's.
PASSED_ON = ("PIP_", "SSL_CERT", "REQUESTS_CA", "HTTP", "http", "NO_PROXY", "no_proxy", "FUMEHOOD_TESTS")


@dataclass(frozen=True)
class Pass:
    """One run of pytest: by whom, how it ended, its closing line, the lines that name what failed, and their ids."""

    name: str
    status: int
    closing: str
    failures: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def main(arguments: Sequence[str]) -> int:
    """Run one pass, or two for root; fail if any fails."""
    wanted = "installs" if "--installs" in arguments else "not installs"
    arguments = [argument for argument in arguments if argument != "--installs"]
    # So that the set-up is taken back: the user, the copy, the device's mode. In the background, Ctrl-C is ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    must_run = os.environ.get("FUMEHOOD_TESTS_MUST_RUN") == "1"
    is_root = os.geteuid() == 0
    provide(is_root=is_root)
    obstacle = why_no_second_user() if is_root else None
    if obstacle is not None:
        print(f"root only, not again as an ordinary user: {obstacle}", flush=True)
    if is_root and wanted == "not installs":
        put_scratch_in_memory()
    if is_root and obstacle is None:
        passes = as_two_users(wanted, arguments)
    else:
        passes = as_one_user("root" if is_root else "this user", wanted, arguments)
    if obstacle is not None and must_run:
        passes.append(Pass("an ordinary user", 1, f"every test must run here, but {obstacle}"))
    return summed_up(passes, selected=bool(arguments) or wanted == "installs")


def summed_up(passes: Sequence[Pass], *, selected: bool) -> int:
    """Print how every pass ended, what failed last; return the status of the whole."""
    print()
    for one in passes:
        print(f"as {one.name}: {one.closing}")
    for one in passes:
        for line in one.failures:
            print(f"as {one.name}: {line}")
    if all(one.status == NO_TESTS_SELECTED for one in passes):
        return NO_TESTS_SELECTED
    # Few of the tests that were asked for are among those that run alone, or again.
    harmless = {0, NO_TESTS_SELECTED} if selected else {0}
    return next((one.status for one in passes if one.status not in harmless), 0)


def as_one_user(name: str, wanted: str, arguments: Sequence[str]) -> list[Pass]:
    """Run the tests, then those that want the machine for themselves."""
    here = Place(name, [sys.executable], CHECKOUT, None)
    began = Taken()
    with Running(here, TOGETHER, Selection(wanted, arguments)) as running:
        together = running.ended()
    with Running(here, ALONE, Selection(wanted, arguments, ALONE)) as running:
        return [began.tried_again(here, one) for one in (together, running.ended())]


def as_two_users(wanted: str, arguments: Sequence[str]) -> list[Pass]:
    """Run the tests as root and beside them, as an ordinary user, those that can differ for one."""
    again = f"{wanted} and (namespaces and not once or ordinary)"
    here = Place("root", [sys.executable], CHECKOUT, None)
    began = Taken()
    with ExitStack() as stack:
        # It loads the tests while the other user is made.
        first = stack.enter_context(Running(here, TOGETHER, Selection(wanted, arguments)))
        account, copy = stack.enter_context(second_user())
        there = Place(f"an ordinary user (uid {account.uid})", ["sh", "tools/python"], copy, account)
        beside = []
        for half in HALVES:
            # What they say is kept until the first has ended.
            kept = stack.enter_context(tempfile.TemporaryFile())
            mounts_of_our_own()
            selection = Selection(again, arguments, "namespaces|ordinary")
            beside.append(stack.enter_context(Running(there, half, selection, kept)))
        passes = [first.ended(), *(half.ended() for half in beside)]
        # These two want the machine for themselves, but there is room for both: much of each is waiting.
        kept = stack.enter_context(tempfile.TemporaryFile())
        last = stack.enter_context(Running(there, ALONE, Selection(again, arguments, ALONE), kept))
        with Running(here, ALONE, Selection(wanted, arguments, ALONE)) as running:
            passes.append(running.ended())
        passes.append(last.ended())
        places = [here, there, there, here, there]
        passes = [began.tried_again(place, one) for place, one in zip(places, passes, strict=True)]
        # An account that was there before may have work of its own.
        left = end_processes_of(account.uid) if account.is_ours else []
    if left:
        passes.append(Pass(there.name, 1, f"processes left behind: {', '.join(left)}"))
    return passes


class Taken:
    """How much of the machine's time others have taken from now on: those that share the hardware with it."""

    def __init__(self) -> None:
        self._began = self._times()

    @staticmethod
    def _times() -> list[int]:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return [int(word) for word in words[1:9]]  # the last is what was taken

    def tried_again(self, place: "Place", one: Pass) -> Pass:
        """Return how a pass ended; with what a few tests said at a second try where the machine was taken away."""
        spent = [now - then for now, then in zip(self._times(), self._began, strict=True)]
        share = spent[-1] / max(1, sum(spent))
        if not one.failed or len(one.failed) > FEW or share < MUCH_TAKEN:
            return one
        print(f"\nothers took {share:.0%} of this machine's time: what failed is tried again, alone", flush=True)
        with Running(place, AGAIN, Selection("", one.failed)) as running:
            second = running.ended()
        return Pass(one.name, second.status, f"{one.closing}; tried again: {second.closing}", second.failures)


def put_scratch_in_memory() -> None:
    """Mount an ext4 in memory where the tests' files go, if the disk's is one: half their time was the disk's.

    Nobody else sees it, and it goes with us. Where it can't be had, the tests use the disk.
    """
    kind = subprocess.run(["stat", "-f", "-c", "%T", SCRATCH], check=False, capture_output=True, text=True).stdout
    needed = (str(CHECKOUT), sys.prefix, sys.base_prefix, os.path.expanduser("~"), tempfile.gettempdir())
    is_in_use = any(path.startswith(f"{SCRATCH}/") for path in needed)
    if kind != "ext2/ext3\n" or is_in_use or available_memory() < 2 * DISK_BYTES:
        return
    mounts_of_our_own()
    image = f"{SCRATCH}/image"
    for step in (
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tests", SCRATCH],
        ["truncate", "-s", str(DISK_BYTES), image],
        ["mkfs.ext4", "-q", "-F", "-E", f"hash_seed={SEED}", image],
        ["mount", "-o", "loop,noinit_itable", image, SCRATCH],
        ["chmod", "1777", SCRATCH],
    ):
        done = subprocess.run(step, check=False, capture_output=True, text=True)
        if done.returncode:
            print(f"the tests use the disk: {done.stderr.strip()}", flush=True)
            subprocess.run(["umount", SCRATCH], check=False, capture_output=True)
            return


def available_memory() -> int:
    """How many bytes programs could use now."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def mounts_of_our_own() -> None:
    """Leave the mounts we have for a copy: who mounts something is in the way of others' commands for a moment.

    What is started next has these to itself. Root's tests can do so themselves.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        print(f"no mounts of our own: {os.strerror(ctypes.get_errno())}", flush=True)


def provide(*, is_root: bool) -> None:
    """Install what the tests need, as root with a package manager; else say what is missing, and what for."""
    missing = [tool for tool in SYSTEM_TOOLS if shutil.which(tool) is None]
    packages = [SYSTEM_TOOLS[tool][0] for tool in missing]
    has_manager = shutil.which("apt-get") is not None
    if missing and is_root and has_manager:
        print(f"installing {' '.join(packages)}", flush=True)
        complaint = install(packages)
        if complaint:
            print(f"this failed: {complaint}", flush=True)
        missing = [tool for tool in missing if shutil.which(tool) is None]
    for tool in missing:
        package, purpose = SYSTEM_TOOLS[tool]
        print(f"not here: {tool} (package {package}); not tried without it: {purpose}", flush=True)
    if missing and has_manager and not is_root:
        print(f"to run every test, type: sudo apt install {' '.join(packages)}", flush=True)


def install(packages: Sequence[str]) -> str:
    """Install packages; returns "" or the last line that the package manager said."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    wait_for_others = ["-o", "DPkg::Lock::Timeout=300"]
    options = ["install", "-y", "-qq", "--no-install-recommends", *packages]
    # A list of packages that can't be had anew may still do.
    subprocess.run(["apt-get", *wait_for_others, "update", "-qq"], check=False, env=environment, capture_output=True)
    done = subprocess.run(
        ["apt-get", *wait_for_others, *options], check=False, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    if done.returncode == 0:
        return ""
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1] if lines else f"apt-get ended with {done.returncode}"


@dataclass(frozen=True)
class Place:
    """Where and by whom tests are run."""

    name: str
    python: Sequence[str]
    cwd: Path
    account: "Account | None"

    def environment(self) -> dict[str, str]:
        """The user's own, with what was compiled kept: to prepare the tests takes longer than many of them."""
        if self.account is not None:
            return self.account.environment() | {"PYTHONUNBUFFERED": "1"}
        own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        # The interpreter itself: a version manager's stand-in, a script, takes a tenth of a second to find it.
        path = f"{sys.base_prefix}/bin:{os.environ.get('PATH', os.defpath)}"
        # Not in the checkout: it may be read-only, and in the hood every file left in it is a change to review.
        return own | {"PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONPYCACHEPREFIX": f"{sys.prefix}/pycache"}


@dataclass(frozen=True)
class Selection:
    """Which tests: an expression of marks, and what the person asked for."""

    marks: str
    arguments: Sequence[str]
    one_of: str = ""  # marks, of which each has one

    def of(self, checkout: Path) -> list[str]:
        """Arguments for pytest; to load the files without such a test would take longer than many a test."""
        if self.arguments or not self.one_of:
            return ["-m", self.marks, *self.arguments]
        mark = re.compile(rf"mark\.({self.one_of})\b")
        files = sorted((checkout / "tests").rglob("test_*.py"))
        return ["-m", self.marks, *(str(file) for file in files if mark.search(file.read_text()))]


class Running:
    """One run of pytest; its output is shown as it comes, or kept in a file until it has ended."""

    def __init__(self, place: Place, part: str, selection: Selection, kept: IO[bytes] | None = None) -> None:
        # An ordinary user's workers would all have the same mounts.
        workers = WORKERS if part == TOGETHER else 0
        self._kept = kept
        self._failed = tempfile.NamedTemporaryFile("r+", prefix=TEMPORARY)  # noqa: SIM115 - closed at the end
        if place.account is not None:
            os.chown(self._failed.name, place.account.uid, place.account.gid)
        self._name = place.name if part == TOGETHER else f"{place.name}, {part or 'again'}"
        command = [*place.python, "-P", "-m", "pytest", "-p", "no:cacheprovider", "--dist=worksteal", f"-n{workers}"]
        if sys.stdout.isatty():
            command.append("--color=yes")
        print(f"\nas {self._name}" + (", beside" if kept else ""), flush=True)
        self._process = subprocess.Popen(
            [*command, *selection.of(place.cwd)],
            cwd=place.cwd,
            env=place.environment() | {"FUMEHOOD_TESTS_PART": part, "FUMEHOOD_TESTS_FAILED": self._failed.name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if kept is None else kept,
            stderr=subprocess.STDOUT,
            **({} if place.account is None else place.account.switch()),
        )

    def __enter__(self) -> "Running":
        return self

    def ended(self) -> Pass:
        """Show what it says until it has ended."""
        if self._kept is not None:
            self._process.wait()
            self._kept.seek(0)
            print(f"\nas {self._name}", flush=True)
        source = self._kept or self._process.stdout
        assert source is not None
        said = b""
        while chunk := os.read(source.fileno(), 65536):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            said = (said + chunk)[-262144:]
        status = self._process.wait()
        lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
        failures = tuple(line for line in lines if ESCAPE.sub("", line).startswith(("FAILED ", "ERROR ")))
        closing = lines[-1] if lines else "pytest printed nothing"
        return Pass(self._name, status, closing, failures, tuple(dict.fromkeys(self._failed.read().splitlines())))

    def __exit__(self, *_error: object) -> None:
        """End it as Ctrl-C does, so that its tests are taken back too, but wait no longer than a moment."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._failed.close()
        if self._process.stdout is not None:
            self._process.stdout.close()


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
    os.environ[MIXED] = str(place)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
