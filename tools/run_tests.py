"""Run the test suite. Root also runs the tests that can differ for an ordinary user as one, at the same time.

The kernel treats root and an ordinary user differently: other mount options, attributes and refusals. --installs runs
the tests that make environments and install programs, --long those that take seconds each; without these options, both
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

sys.dont_write_bytecode = True  # tests compare and copy the checkout
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
# The marks of the tests that an option runs; without an option, all other tests run.
MARKS_BY_OPTION = {"--installs": "installs", "--long": "long and not installs"}
ORDINARY = "not installs and not long"
# Parts of a pass, which tests/conftest.py knows: some tests need the machine for themselves.
TOGETHER, ALONE = "together", "alone"
HALVES = ("together, first half", "together, second half")  # of the files
REQUESTED = ("together, as requested",)  # by the arguments
RETRY = ""  # all tests that are named
# If others took this share of the machine's time, tests may have failed only because they were late. Then up to so many
# are tried again, alone.
STOLEN_SHARE, MAX_RETRIED = 0.1, 30
WORKERS = 1 + max(2, len(os.sched_getaffinity(0)))  # more are not faster; the ordinary user has two in addition
GRACE_S = 15
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# Each program that tests need: its Debian package, and what is not tested without it.
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
SEED = "00000000-0000-4000-8000-000000000003"  # so that names in a directory have the same order in every run


@dataclass(frozen=True)
class Pass:
    """The result of one run of pytest: who ran it, its exit status, its last line, and the tests that failed."""

    name: str
    status: int
    last_line: str
    failure_lines: tuple[str, ...] = ()  # that name the failed tests
    failed_tests: tuple[str, ...] = ()  # their ids


def main(arguments: Sequence[str]) -> int:
    """Run one pass, or two for root; fail if any fails."""
    marks = next((MARKS_BY_OPTION[each] for each in arguments if each in MARKS_BY_OPTION), ORDINARY)
    arguments = [each for each in arguments if each not in MARKS_BY_OPTION]
    # So that the user, the copy and the device's mode are cleaned up. In the background, Python ignores Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    must_run = os.environ.get("FUMEHOOD_TESTS_MUST_RUN") == "1"
    is_root = os.geteuid() == 0
    install_missing_tools(is_root=is_root)
    obstacle = why_no_second_user() if is_root else None
    if obstacle is not None:
        print(f"root only, not again as an ordinary user: {obstacle}", flush=True)
    if is_root and marks != MARKS_BY_OPTION["--installs"]:
        put_scratch_in_memory()
    if is_root and obstacle is None:
        passes = run_as_two_users(marks, arguments)
    else:
        passes = run_as_one_user("root" if is_root else "this user", marks, arguments)
    if obstacle is not None and must_run:
        passes.append(Pass("an ordinary user", 1, f"every test must run here, but {obstacle}"))
    return print_summary(passes, selected=bool(arguments) or marks != ORDINARY)


def print_summary(passes: Sequence[Pass], *, selected: bool) -> int:
    """Print how every pass ended, and then what failed; return the exit status of the whole."""
    print()
    for each in passes:
        print(f"as {each.name}: {each.last_line}")
    for each in passes:
        for line in each.failure_lines:
            print(f"as {each.name}: {line}")
    if all(each.status == NO_TESTS_SELECTED for each in passes):
        return NO_TESTS_SELECTED
    # If a person selected tests, perhaps none of them runs alone, or as an ordinary user too.
    harmless = {0, NO_TESTS_SELECTED} if selected else {0}
    return next((each.status for each in passes if each.status not in harmless), 0)


def run_as_one_user(name: str, marks: str, arguments: Sequence[str]) -> list[Pass]:
    """Run the tests, then those that need the machine for themselves."""
    tester = Tester(name, [sys.executable], CHECKOUT, None)
    machine = MachineTime()
    selection = Selection(marks, arguments)
    tester.compile(selection).wait()
    with PytestRun(tester, TOGETHER, selection) as run:
        together = run.wait()
    with PytestRun(tester, ALONE, replace(selection, any_mark=ALONE)) as run:
        return [machine.retry_if_stolen(tester, each) for each in (together, run.wait())]


def run_as_two_users(marks: str, arguments: Sequence[str]) -> list[Pass]:
    """Run the tests as root, and at the same time, as an ordinary user, those that can differ for one."""
    of_root = Selection(marks, arguments)
    of_user = Selection(f"{marks} and (namespaces and not once or ordinary)", arguments, "namespaces|ordinary")
    root = Tester("root", [sys.executable], CHECKOUT, None)
    machine = MachineTime()
    with ExitStack() as stack:
        root.compile(of_root).wait()
        root_run = stack.enter_context(PytestRun(root, TOGETHER, of_root))
        account, copy = stack.enter_context(second_user())
        compiled = lend_compiled(copy, account)
        user = Tester(f"an ordinary user (uid {account.uid})", ["sh", "tools/python"], copy, account, compiled)
        user_runs = []
        for number, part in enumerate(REQUESTED if arguments else HALVES):
            # The output is kept in a file until root's run has ended.
            output = stack.enter_context(tempfile.TemporaryFile())
            unshare_mounts()
            user_runs.append(stack.enter_context(PytestRun(user, part, replace(of_user, half=number), output)))
        passes = [root_run.wait(), *(each.wait() for each in user_runs)]
        # These two need the machine for themselves, but both can run at once, because much of each is waiting.
        output = stack.enter_context(tempfile.TemporaryFile())
        user_alone = stack.enter_context(PytestRun(user, ALONE, replace(of_user, any_mark=ALONE), output))
        with PytestRun(root, ALONE, replace(of_root, any_mark=ALONE)) as root_alone:
            passes.append(root_alone.wait())
        passes.append(user_alone.wait())
        testers = [root, *[user] * len(user_runs), root, user]
        passes = [machine.retry_if_stolen(tester, each) for tester, each in zip(testers, passes, strict=True)]
        # An account that existed before may have processes of its own.
        left = end_processes_of(account.uid) if account.is_ours else []
    if left:
        passes.append(Pass(user.name, 1, f"processes left behind: {', '.join(left)}"))
    return passes


class MachineTime:
    """Measures how much of this machine's time others take from now on, who share its hardware."""

    def __init__(self) -> None:
        self._began = self._times()

    @staticmethod
    def _times() -> list[int]:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return [int(word) for word in words[1:9]]  # the last is the time that others took

    def retry_if_stolen(self, tester: "Tester", result: Pass) -> Pass:
        """Return the result of a pass. If others took much of the machine's time, try a few failed tests again."""
        spent = [now - before for now, before in zip(self._times(), self._began, strict=True)]
        share = spent[-1] / max(1, sum(spent))
        if not result.failed_tests or len(result.failed_tests) > MAX_RETRIED or share < STOLEN_SHARE:
            return result
        print(f"\nothers took {share:.0%} of this machine's time: what failed is tried again, alone", flush=True)
        with PytestRun(tester, RETRY, Selection("", result.failed_tests)) as run:
            second = run.wait()
        last_line = f"{result.last_line}; tried again: {second.last_line}"
        return Pass(result.name, second.status, last_line, second.failure_lines)


def put_scratch_in_memory() -> None:
    """If the disk of the tests' files is an ext4, mount one in memory there: the disk took half of their time.

    Nobody else sees the mount, and it ends with this process. If it can't be made, the tests use the disk.
    """
    kind = subprocess.run(["stat", "-f", "-c", "%T", SCRATCH], check=False, capture_output=True, text=True).stdout
    needed = (str(CHECKOUT), sys.prefix, sys.base_prefix, os.path.expanduser("~"), tempfile.gettempdir())
    is_in_use = any(path.startswith(f"{SCRATCH}/") for path in needed)
    if kind != "ext2/ext3\n" or is_in_use or available_memory() < 2 * DISK_BYTES:
        return
    unshare_mounts()
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
    """Return how many bytes of memory programs could use now."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def unshare_mounts() -> None:
    """Enter a new mount namespace, for the processes that are started next.

    Each mount delays the commands of all others in the same namespace for a moment. Root's tests can unshare their
    mounts themselves.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        print(f"no mount namespace of our own: {os.strerror(ctypes.get_errno())}", flush=True)


def install_missing_tools(*, is_root: bool) -> None:
    """Install what the tests need, as root with a package manager; else print what is missing, and what needs it."""
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
    """Install packages; return "", or the last line of the package manager's output if it failed."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    wait_for_others = ["-o", "DPkg::Lock::Timeout=300"]
    options = ["install", "-y", "-qq", "--no-install-recommends", *packages]
    # If the update fails, the packages may still be found by the old lists.
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
class Tester:
    """A user who runs tests, with a Python and a checkout."""

    name: str
    python: Sequence[str]
    cwd: Path
    account: Account | None
    compiled: str = f"{sys.prefix}/pycache"

    def environment(self) -> dict[str, str]:
        """Return the user's environment variables.

        Compiled files are kept, because compiling the tests takes longer than many of them. They are not kept in the
        checkout: it may be read-only, and in the hood every file that is left in it is a change to review.
        """
        common = {"PYTHONUNBUFFERED": "1", "PYTHONPYCACHEPREFIX": self.compiled}
        if self.account is not None:
            return self.account.environment() | {"FUMEHOOD_TESTS_AGAIN": "1"} | common
        own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        # The interpreter itself, because a version manager's script takes a tenth of a second to find it.
        return own | {"PATH": f"{sys.base_prefix}/bin:{os.environ.get('PATH', os.defpath)}"} | common

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
        """Start a process that loads the tests, so that they are compiled once: each worker would compile them."""
        return self.pytest(["--collect-only", "-q", *selection.pytest_arguments(self.cwd)], subprocess.DEVNULL)


@dataclass(frozen=True)
class Selection:
    """Which tests to run: an expression of marks, and the arguments of the person."""

    marks: str
    arguments: Sequence[str]
    any_mark: str = ""  # marks, separated by |: only files with one of them are loaded
    half: int | None = None  # of these files

    def pytest_arguments(self, checkout: Path) -> list[str]:
        """Return the arguments for pytest. They name files, because loading all files would take long."""
        if self.arguments or not self.any_mark:
            return ["-m", self.marks, *self.arguments]
        mark = re.compile(rf"mark\.({self.any_mark})\b")
        files = [file for file in (checkout / "tests").rglob("test_*.py") if mark.search(file.read_text())]
        files.sort(key=lambda file: (file.stat().st_size, file))  # so that both halves are about as large
        return ["-m", self.marks, *map(str, files if self.half is None else files[self.half :: len(HALVES)])]


class PytestRun:
    """One run of pytest. Its output is shown as it comes, or kept in the file `output` until the run has ended."""

    def __init__(self, tester: Tester, part: str, selection: Selection, output: IO[bytes] | None = None) -> None:
        # An ordinary user's workers would all share one mount namespace, so that user has none.
        workers = WORKERS if part == TOGETHER else 0
        self._output = output
        self._failed_tests = tempfile.NamedTemporaryFile("r+", prefix=TEMPORARY)  # noqa: SIM115 - closed at the end
        if tester.account is not None:
            os.chown(self._failed_tests.name, tester.account.uid, tester.account.gid)
        self._name = tester.name if part == TOGETHER else f"{tester.name}, {part or 'again'}"
        options = ["--dist=worksteal", f"-n{workers}", *(["--color=yes"] if sys.stdout.isatty() else [])]
        print(f"\nas {self._name}" + (", beside" if output else ""), flush=True)
        self._process = tester.pytest(
            [*options, *selection.pytest_arguments(tester.cwd)],
            subprocess.PIPE if output is None else output,
            FUMEHOOD_TESTS_PART=part.partition(",")[0],
            FUMEHOOD_TESTS_FAILED=self._failed_tests.name,
        )

    def __enter__(self) -> "PytestRun":
        return self

    def wait(self) -> Pass:
        """Show the output until the run has ended, and return the result."""
        if self._output is not None:
            self._process.wait()
            self._output.seek(0)
            print(f"\nas {self._name}", flush=True)
        source = self._output or self._process.stdout
        assert source is not None
        printed = b""
        while chunk := os.read(source.fileno(), 65536):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            printed = (printed + chunk)[-262144:]
        status = self._process.wait()
        lines = [line for line in printed.decode(errors="replace").splitlines() if line.strip()]
        failure_lines = tuple(line for line in lines if ESCAPE.sub("", line).startswith(("FAILED ", "ERROR ")))
        failed_tests = tuple(dict.fromkeys(self._failed_tests.read().splitlines()))
        return Pass(self._name, status, lines[-1] if lines else "pytest printed nothing", failure_lines, failed_tests)

    def __exit__(self, *_error: object) -> None:
        """End the run as Ctrl-C does, so that its tests clean up, but wait only for a moment."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._failed_tests.close()
        if self._process.stdout is not None:
            self._process.stdout.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
