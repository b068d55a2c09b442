"""The measurements of Fumehood itself, each with its limit; and tools for all measurements."""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
FILES = 20_000
FILE_SIZE = 256 << 10  # 20,000 of them are 5 GiB: more than a copy can hide in memory, less than a small disk


@dataclass
class Figure:
    """A measured value, the value that it is compared with, and the limit of their ratio."""

    title: str
    value: float
    unit: str
    reference: str = ""
    reference_value: float = 0.0
    limit: float | None = None

    @property
    def ratio(self) -> float:
        """The value divided by the reference's; without a reference, the value itself."""
        return self.value / self.reference_value if self.reference_value else self.value

    @property
    def is_within_limit(self) -> bool:
        """Whether the ratio is within the limit; without a limit, it always is."""
        return self.limit is None or self.ratio <= self.limit

    def cells(self) -> list[str]:
        """Return the figure as texts, one for each column."""
        has_reference = bool(self.reference_value)
        value = f"{self.value:.2f} {self.unit}"
        reference = f"{self.reference} {self.reference_value:.2f} {self.unit}" if has_reference else self.reference
        ratio = f"{self.ratio:.2f} times" if has_reference else ""
        limit = "" if self.limit is None else f"{self.limit:g} {'times' if has_reference else self.unit}"
        return [self.title, value, reference, ratio, limit]

    def line(self) -> str:
        """Return a line for the terminal."""
        title, value, reference, ratio, limit = self.cells()
        verdict = "" if self.limit is None else "  ok" if self.is_within_limit else "  OVER THE LIMIT"
        return f"{title:58} {value:>12}  {reference:32} {ratio:>8}  {limit:>8}{verdict}"

    def row(self) -> str:
        """Return a row for the documentation."""
        return f"| {' | '.join(self.cells())} |\n"


def median_ms(*functions: Callable[[], object], times: int = 40, prepare_each: bool = False) -> list[float]:
    """Return the median time of each function. They are called in turn, so that a slow moment affects all of them.

    With `prepare_each`, each is called once without a clock before: the launcher prepares a launch like the last one.
    """
    durations: list[list[float]] = [[] for _ in functions]
    for _ in range(times):
        for function, own_durations in zip(functions, durations, strict=True):
            if prepare_each:
                function()
            own_durations.append(seconds(function) * 1000)
    return [statistics.median(each) for each in durations]


def seconds(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def bubblewrap(project: Path) -> Callable[[], object]:
    """Return a function that runs `true` in bubblewrap alone, with the same isolation as our runs, on the host's root.

    It hides the same files of `/proc`. It does not have what Fumehood adds: overlays, views, the guard.
    """
    from fumehood.linux.bwrap import sandbox_command
    from fumehood.linux.confine import load_syscall_filter
    from fumehood.linux.hostview import kernel_masks
    from fumehood.linux.probe import host
    from fumehood.store.places import places

    directories = places()
    machine = host(directories.cache, directories.state)
    assert machine.bwrap is not None
    filter_file = os.memfd_create("filter")
    os.write(filter_file, load_syscall_filter(directories.cache, unix_sockets=True))
    status = os.open(os.devnull, os.O_WRONLY)
    line = sandbox_command(machine.bwrap, disable_userns=machine.disable_userns)
    line += ["--bind", str(project), str(project), "--chdir", str(project)]
    line += [word for mask in kernel_masks(as_root=os.geteuid() == 0) for word in mask.bwrap_arguments([])]
    line += ["--seccomp", str(filter_file), "--json-status-fd", str(status)]

    def run_true() -> None:
        os.lseek(filter_file, 0, os.SEEK_SET)
        quiet([*line, "--", "/bin/sh", "-c", "true"], pass_fds=(filter_file, status))()

    return run_true


def quiet(argv: list[str], **options: object) -> Callable[[], object]:
    """Return a function that runs a program to its end, without its output."""
    return lambda: subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, **options)  # type: ignore[call-overload]


def project_in(room: Path, files: int = 10) -> Path:
    """Make a project with so many small files, and return its directory."""
    project = room / f"project-{files}"
    for number in range(files):
        directory = project / f"d{number // 100}"
        if number % 100 == 0:
            directory.mkdir(parents=True)
        (directory / f"f{number}").write_text("x\n")
    return project


def fumehood_command() -> list[str]:
    """Return the start of a command line, as a person types it: of the installed, byte-compiled program."""
    return [str(REPOSITORY / "fumehood"), "run", "--"]


def warm(room: Path) -> Iterator[Figure]:
    """Measure a command of a Python program that runs already, also while files in the home are replaced."""
    from fumehood import Sandbox

    project, home = project_in(room), Path(os.environ["HOME"])
    tool = home / "bin" / "tool"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    os.environ["PATH"] += f":{tool.parent}"

    def replace_file_and_run() -> None:
        (home / ".client.json.new").write_text("{}")
        (home / ".client.json.new").rename(home / ".client.json")
        sandbox.run("true")

    with Sandbox(project) as sandbox:
        sandbox.run("true")
        bare = bubblewrap(project)
        run_ms, bwrap_ms, replacing_ms, _ = median_ms(
            lambda: sandbox.run("true"), bare, replace_file_and_run, bare, times=100
        )
    yield Figure('library: run("true")', run_ms, "ms", "bwrap, the same flags", bwrap_ms, 2.2)
    title = 'library: run("true") when a file in the home is replaced'
    yield Figure(title, replacing_ms, "ms", "when not", run_ms, 1.2)


def hardening(room: Path) -> Iterator[Figure]:
    """Measure what views, masks, filter and guard cost a run; only as root, who can bind all of `/`."""
    from unittest import mock

    from fumehood import Sandbox
    from fumehood.linux import confine
    from fumehood.linux.mounts import Bind, Devices, Proc, Tmpfs
    from fumehood.service import running
    from fumehood.service.surroundings import VisibleMounts

    if os.geteuid() != 0:
        return
    project = project_in(room)
    bare = (Bind(target="/", source="/"), Devices(target="/dev"), Proc(target="/proc"), Tmpfs(target="/tmp"))
    with Sandbox(project) as sandbox:

        def run_without_hardening() -> None:
            def find_visible(self: running.Execution) -> VisibleMounts:
                mounts = (*bare, *self._capture.mounts)
                return VisibleMounts(
                    mounts=mounts, host_mount_count=2, host_view_number=0, blocks_sockets=True
                )

            with (
                mock.patch.object(running.Execution, "_find_visible", find_visible),
                mock.patch.object(running, "load_syscall_filter", return_value=b""),
                mock.patch.object(confine, "guard_program", return_value=b""),
            ):
                sandbox.run("true")

        hardened_ms, bare_ms = median_ms(
            lambda: sandbox.run("true"), run_without_hardening, times=100, prepare_each=True
        )
    yield Figure('library: run("true"), all hardening', hardened_ms, "ms", "without it", bare_ms)
    yield Figure("all hardening, over the launch without it", hardened_ms - bare_ms, "ms", limit=1.0)


def cold(room: Path) -> Iterator[Figure]:
    """Measure a command from a shell."""
    project = project_in(room)
    quiet([*fumehood_command(), "true"], cwd=project)()
    # `make clients` puts it into the cache of whoever runs this.
    cache = Path(pwd.getpwuid(os.getuid()).pw_dir, ".cache/fumehood")
    codex = next(cache.glob("node-*/node_modules/@openai/codex-linux-*/vendor/*/bin/codex"), None)
    lines = ("true", "date +%N > a")
    programs = [quiet([sys.executable, "-c", "pass"])]
    programs += [quiet([*fumehood_command(), line], cwd=project) for line in lines]
    programs += [quiet([str(codex), "sandbox", "true"], cwd=project)] if codex else []
    python_ms, run_ms, writing_ms, *codex_ms = median_ms(*programs)
    yield Figure("command line: fumehood run -- true", run_ms, "ms", "python3 -c pass", python_ms, 4.0)
    yield Figure("the same where a file is changed, applied and told", writing_ms, "ms", "run -- true", run_ms, 1.5)
    for each in codex_ms:
        yield Figure("the same against Codex", run_ms, "ms", "codex sandbox true, the native binary", each, 1.0)


def first_use(room: Path) -> Iterator[Figure]:
    """Measure the first command with empty caches, against making an environment with the same packages by hand."""
    project = project_in(room)
    lock = REPOSITORY / "requirements/run.txt"
    by_hand = ["sh", "-c", f"python3 -m venv x && x/bin/pip install -q -r '{lock}'"]

    def in_a_new_home(line: list[str], cwd: Path | None = None) -> None:
        with tempfile.TemporaryDirectory(dir=room) as home:
            caches = {"HOME": home, "PIP_CACHE_DIR": f"{home}/pip", "UV_CACHE_DIR": f"{home}/uv"}
            subprocess.run(line, cwd=cwd or home, env=os.environ | caches, capture_output=True, check=True)

    run_ms, by_hand_ms = median_ms(
        lambda: in_a_new_home([*fumehood_command(), "true"], project), lambda: in_a_new_home(by_hand), times=3
    )
    tool = "uv" if shutil.which("uv") else "pip"
    title = f"the first `fumehood run -- true`, with {tool}"
    yield Figure(title, run_ms / 1000, "s", "venv and pip", by_hand_ms / 1000, 1.3)


# For other sandboxes, how to run a command that may write only the current directory.
PEERS = {
    "sandbox-runtime (srt)": ["srt", "true"],
    "codex sandbox": ["codex", "sandbox", "true"],
    "try": ["try", "-n", "true"],
    "firejail": ["firejail", "--quiet", "--noprofile", "--net=none", "true"],
    "bwrap": ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--dev", "/dev", "--proc", "/proc", "true"],
}


def peers(room: Path) -> Iterator[Figure]:
    """Measure `true` in other sandboxes, from a shell."""
    project = project_in(room)
    installed = {name: argv for name, argv in PEERS.items() if shutil.which(argv[0])}
    lines = [[*fumehood_command(), "true"], *installed.values()]
    run_ms, *peers_ms = median_ms(*(quiet(line, cwd=project) for line in lines), times=20)
    for name, peer_ms in zip(installed, peers_ms, strict=True):
        yield Figure(f"cold `true` in {name}", peer_ms, "ms", "fumehood", run_ms)


def alpine(room: Path) -> Iterator[Figure]:
    """Measure a command in a root tree, against the same command in the host's root."""
    from fumehood import Sandbox

    project, tree = project_in(room), room / "tree"
    make_small_root(tree)
    with Sandbox(project) as sandbox:
        for root in ("host", str(tree)):
            sandbox.run("true", root=root)
        inside, outside = median_ms(
            lambda: sandbox.run("true", root=str(tree)), lambda: sandbox.run("true", root="host"), times=100,
            prepare_each=True,
        )  # fmt: skip
    yield Figure('library: run("true") in an Alpine root', inside, "ms", "in the host's root", outside, 1.3)


def make_small_root(tree: Path) -> None:
    """Make a root tree like an installed one: busybox, links to it, and the mount points."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise SystemExit("there is no busybox; apt install busybox-static")
    for name in ("bin", "dev", "etc", "proc", "tmp", "usr/bin", "workspace", "roots", "skills", "playground"):
        (tree / name).mkdir(parents=True)
    shutil.copy(busybox, tree / "bin/busybox")
    for name in ("sh", "true", "cat", "ls"):
        (tree / "bin" / name).symlink_to("/bin/busybox")
    (tree / "etc/resolv.conf").touch()


def large(room: Path) -> Iterator[Figure]:
    """Measure runs in a large project: its size must not matter to a command that only reads, and little to others."""
    from fumehood import Sandbox

    small, huge = project_in(room), project_in(room, 100_000)
    with Sandbox(small) as small_sandbox, Sandbox(huge) as huge_sandbox:
        small_ms, huge_ms = median_ms(lambda: small_sandbox.run("true"), lambda: huge_sandbox.run("true"), times=60)
        yield Figure('run("true") in a project of 100,000 files', huge_ms, "ms", "in one of 10", small_ms, 1.2)
        line = "echo x > new; echo y >> d0/f1"
        small_ms, huge_ms = median_ms(lambda: small_sandbox.run(line), lambda: huge_sandbox.run(line), times=60)
    yield Figure("a run in a project of 100,000 files", huge_ms, "ms", "in one of 10", small_ms, 1.2)


def apply(room: Path) -> Iterator[Figure]:
    """Measure the apply and the undo of many changes."""
    yield from apply_files(room, FILE_SIZE, limit=0.1)
    yield from apply_files(room, 64 << 10, limit=None)
    yield from apply_files(room, 4 << 10, limit=None)
    yield from apply_tree(room)


def apply_files(room: Path, size: int, limit: float | None) -> Iterator[Figure]:
    """Measure the apply of 20,000 modified files with their backups, and the undo."""
    from fumehood import Sandbox

    project = room / f"files-{size}"
    content = os.urandom(size)
    for number in range(FILES):
        directory = project / f"d{number // 200}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}").write_bytes(content)
    with Sandbox(project) as sandbox:
        held = sandbox.run("find . -type f -exec touch {} +", apply="hold")
        # Write out dirty pages first, because the next step would pay for them.
        os.sync()
        applied = seconds(lambda: sandbox.apply(held))
        os.sync()
        copied = seconds(quiet(["cp", "-a", str(project), f"{project}-copy"]))
        os.sync()
        undone = seconds(lambda: sandbox.undo(held))
    shutil.rmtree(f"{project}-copy")
    name = f"{FILES} modified files of {size >> 10} KiB"
    yield Figure(f"apply {name}, with backups", applied, "s", "cp -a", copied, limit)
    yield Figure(f"undo {name}", undone, "s", "cp -a", copied, limit)


def apply_tree(room: Path) -> Iterator[Figure]:
    """Measure the apply of a new tree, which may take as long as its scan."""
    from fumehood import Sandbox
    from fumehood.linux.layer import scan
    from fumehood.linux.nofollow import open_top

    project = room / "tree"
    project.mkdir()
    line = f"mkdir new && cd new && for d in $(seq 100); do mkdir $d; (cd $d; seq {FILES // 100} | xargs touch); done"
    with Sandbox(project) as sandbox:
        held = sandbox.run(line, apply="hold")
        upper = open_top(f"{os.environ['HOME']}/.local/state/fumehood/runs/{held.id}/0/held")
        live = open_top(str(project))
        scanned = seconds(lambda: scan(0, upper, live))
        applied = seconds(lambda: sandbox.apply(held))
    yield Figure(f"apply a new tree of {FILES} files", applied, "s", "its scan", scanned, 1.0)


def records(room: Path) -> Iterator[Figure]:
    """Measure the records of files: the work that a large run leaves for after its report, and a scan."""
    from fumehood import Sandbox
    from fumehood.service.files import catch_up, scan_project
    from fumehood.service.opened import OpenedStore

    changed, huge = project_in(room, FILES), project_in(room, 100_000)
    with Sandbox(changed) as sandbox:
        sandbox.run("find . -type f -exec touch {} +")
        store = OpenedStore()
        project = store.projects.open(str(changed))
        yield Figure(
            f"record {FILES} modified files, with daily backups", seconds(lambda: catch_up(store, project.id)), "s"
        )
        huge_project = store.projects.open(str(huge))
        scan_s = seconds(lambda: scan_project(store, huge_project))
        yield Figure("scan a project of 100,000 files", scan_s, "s", limit=10.0)
        store.close()


def output(room: Path) -> Iterator[Figure]:
    """Measure the memory that a command needs that prints 1 GiB."""
    project = project_in(room)
    code = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY / 'src')!r}); from fumehood import Sandbox; import resource;"
        f"run = Sandbox({str(project)!r}).run('head -c 1073741824 /dev/zero');"
        "assert run.output_truncated; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    yield Figure("peak memory while a command prints 1 GiB", int(done.stdout) / 1024, "MiB", limit=100.0)


def leftovers(room: Path) -> Iterator[Figure]:
    """Measure what a thousand runs leave besides their records: nothing."""
    from fumehood import Sandbox

    project = project_in(room)
    state = Path(os.environ["HOME"], ".local/state/fumehood")
    with Sandbox(project) as sandbox:
        sandbox.run("true")
        before = _count_leftovers(state)
        for _ in range(1000):
            sandbox.run("true")
        after = _count_leftovers(state)
    yield Figure("files, mounts and processes left by 1,000 runs", float(after - before), "", limit=0.0)


def _count_leftovers(state: Path) -> int:
    """Return the number of files in our state, mounts that name it, and processes and descriptors of ours."""
    files = sum(len(names) + len(directories) for _, directories, names in os.walk(state))
    mounts = sum(str(state) in line for line in Path("/proc/self/mountinfo").read_text().splitlines())
    count = ["pgrep", "-c", "-u", str(os.getuid()), "bwrap"]
    processes = subprocess.run(count, capture_output=True, text=True, check=False)
    descriptors = len(os.listdir("/proc/self/fd"))
    return files + mounts + int(processes.stdout or 0) + descriptors


MEASURES: dict[str, Callable[[Path], Iterator[Figure]]] = {
    "warm": warm,
    "hardening": hardening,
    "cold": cold,
    "first-use": first_use,
    "peers": peers,
    "alpine": alpine,
    "large": large,
    "apply": apply,
    "records": records,
    "output": output,
    "leftovers": leftovers,
}

# The benchmark itself opens many files in a row.
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
