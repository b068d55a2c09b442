"""Run the test suite; for root, run what can differ again as an ordinary user, beside it.

To root and to an ordinary user the kernel is not the same: other mount options, attributes and refusals. With
--installs or --long, those tests that make environments and install programs, or that take seconds each; otherwise both
are left out.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

sys.dont_write_bytecode = True  # in the checkout, which tests compare and copy
from second_user import (  # noqa: E402
    CHECKOUT,
    SCRATCH,
    TEMPORARY,
    Account,
    end_processes_of,
    lend_compiled,
    second_user,
    why_no_second_user,
)

CLONE_NEWNS = 0x20000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
NO_TESTS_SELECTED = 5
# Which tests, as marks: those of an option, and without one all others.
KINDS = {"--installs": "installs", "--long": "long and not installs"}
ORDINARY = "not installs and not long"
# Known to tests/conftest.py: some tests want the machine for themselves.
TOGETHER, ALONE = "together", "alone"
HALVES = ("together, first half", "together, second half")  # of the files
ASKED_FOR = ("together, as asked for",)
AGAIN = ""  # whichever are named
# Where others took so much of the machine's time, what failed may only have been late: a few are tried again, alone.
MUCH_TAKEN, FEW = 0.1, 30
WORKERS = 1 + max(2, len(os.sched_getaffinity(0)))  # more are no quicker; besides, an ordinary user has two
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
    "mkfs.btrfs": ("btrfs-progs", "subvolumes in a project"),
    "newgidmap": ("uidmap", "files of another group, by the kernel's overlay"),
    "openssl": ("openssl", "signed packages"),
    "pgrep": ("procps", "that no process is left"),
    "redis-server": ("redis-server", "a fleet of workers"),
    "ssh-keygen": ("openssh-client", "signed bundles and jobs"),
    "strace": ("strace", "being killed at any system call"),
    "umoci": ("umoci", "whether other tools read our bundles"),
}
DISK_BYTES = 2 << 30
SEED = "00000000-0000-4000-8000-000000000003"  # decides the order of names in a directory: the same in every run


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
    wanted = next((KINDS[argument] for argument in arguments if argument in KINDS), ORDINARY)
    arguments = [argument for argument in arguments if argument not in KINDS]
    # So that the set-up is taken back: the user, the copy, the device's mode. In the background, Ctrl-C is ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    must_run = os.environ.get("FUMEHOOD_TESTS_MUST_RUN") == "1"
    is_root = os.geteuid() == 0
    provide(is_root=is_root)
    obstacle = why_no_second_user() if is_root else None
    if obstacle is not None:
        print(f"root only, not again as an ordinary user: {obstacle}", flush=True)
    if is_root and wanted != KINDS["--installs"]:
        put_scratch_in_memory()
    if is_root and obstacle is None:
        passes = as_two_users(wanted, arguments)
    else:
        passes = as_one_user("root" if is_root else "this user", wanted, arguments)
    if obstacle is not None and must_run:
        passes.append(Pass("an ordinary user", 1, f"every test must run here, but {obstacle}"))
    return summed_up(passes, selected=bool(arguments) or wanted != ORDINARY)


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
    everything = Selection(wanted, arguments)
    here.compile(everything).wait()
    with Running(here, TOGETHER, everything) as running:
        together = running.ended()
    with Running(here, ALONE, replace(everything, one_of=ALONE)) as running:
        return [began.tried_again(here, one) for one in (together, running.ended())]


def as_two_users(wanted: str, arguments: Sequence[str]) -> list[Pass]:
    """Run the tests as root and beside them, as an ordinary user, those that can differ for one."""
    again = Selection(f"{wanted} and (namespaces and not once or ordinary)", arguments, "namespaces|ordinary")
    everything = Selection(wanted, arguments)
    here = Place("root", [sys.executable], CHECKOUT, None)
    began = Taken()
    with ExitStack() as stack:
        here.compile(everything).wait()
        first = stack.enter_context(Running(here, TOGETHER, everything))
        account, copy = stack.enter_context(second_user())
        compiled = lend_compiled(copy, account)
        there = Place(f"an ordinary user (uid {account.uid})", ["sh", "tools/python"], copy, account, compiled)
        beside = []
        for number, part in enumerate(ASKED_FOR if arguments else HALVES):
            # What they say is kept until the first has ended.
            kept = stack.enter_context(tempfile.TemporaryFile())
            mounts_of_our_own()
            beside.append(stack.enter_context(Running(there, part, replace(again, half=number), kept)))
        passes = [first.ended(), *(half.ended() for half in beside)]
        # These two want the machine for themselves, but there is room for both: much of each is waiting.
        kept = stack.enter_context(tempfile.TemporaryFile())
        last = stack.enter_context(Running(there, ALONE, replace(again, one_of=ALONE), kept))
        with Running(here, ALONE, replace(everything, one_of=ALONE)) as running:
            passes.append(running.ended())
        passes.append(last.ended())
        places = [here, *[there] * len(beside), here, there]
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
    account: Account | None
    compiled: str = f"{sys.prefix}/pycache"

    def environment(self) -> dict[str, str]:
        """The user's own, with what was compiled kept: to prepare the tests takes longer than many of them."""
        if self.account is not None:
            own = self.account.environment() | {"FUMEHOOD_TESTS_AGAIN": "1"}
            return own | {"PYTHONUNBUFFERED": "1", "PYTHONPYCACHEPREFIX": self.compiled}
        own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        # The interpreter itself: a version manager's stand-in, a script, takes a tenth of a second to find it.
        path = f"{sys.base_prefix}/bin:{os.environ.get('PATH', os.defpath)}"
        # Not in the checkout: it may be read-only, and in the hood every file left in it is a change to review.
        return own | {"PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONPYCACHEPREFIX": self.compiled}

    def pytest(self, arguments: Sequence[str], output: int | IO[bytes], **variables: str) -> subprocess.Popen[bytes]:
        """Start pytest."""
        return subprocess.Popen(
            [*self.python, "-P", "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=self.cwd,
            env=self.environment() | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            **({} if self.account is None else self.account.switch()),
        )

    def compile(self, selection: "Selection") -> subprocess.Popen[bytes]:
        """Begin to load the tests: to compile them takes far longer than that, and each worker would do it."""
        return self.pytest(["--collect-only", "-q", *selection.of(self.cwd)], subprocess.DEVNULL)


@dataclass(frozen=True)
class Selection:
    """Which tests: an expression of marks, and what the person asked for."""

    marks: str
    arguments: Sequence[str]
    one_of: str = ""  # marks, of which each has one
    half: int | None = None  # of the files

    def of(self, checkout: Path) -> list[str]:
        """Arguments for pytest; to load the files without such a test would take longer than many a test."""
        if self.arguments or not self.one_of:
            return ["-m", self.marks, *self.arguments]
        mark = re.compile(rf"mark\.({self.one_of})\b")
        found = [file for file in (checkout / "tests").rglob("test_*.py") if mark.search(file.read_text())]
        # As much in one half as in the other.
        found.sort(key=lambda file: (file.stat().st_size, file))
        return ["-m", self.marks, *map(str, found if self.half is None else found[self.half :: len(HALVES)])]


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
        options = ["--dist=worksteal", f"-n{workers}", *(["--color=yes"] if sys.stdout.isatty() else [])]
        print(f"\nas {self._name}" + (", beside" if kept else ""), flush=True)
        self._process = place.pytest(
            [*options, *selection.of(place.cwd)],
            subprocess.PIPE if kept is None else kept,
            FUMEHOOD_TESTS_PART=part.partition(",")[0],
            FUMEHOOD_TESTS_FAILED=self._failed.name,
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
