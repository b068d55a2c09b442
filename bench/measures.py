"""What is measured, and the limits that are kept."""

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
    """One figure against another, and how far apart they may be."""

    what: str
    value: float
    unit: str
    against: str = ""
    other: float = 0.0
    limit: float | None = None

    @property
    def ratio(self) -> float:
        """How many times the other."""
        return self.value / self.other if self.other else self.value

    @property
    def is_kept(self) -> bool:
        """Whether the limit is kept; a figure without one always is."""
        return self.limit is None or self.ratio <= self.limit

    def cells(self) -> list[str]:
        """The figure in words."""
        value = f"{self.value:.2f} {self.unit}"
        other = f"{self.against} {self.other:.2f} {self.unit}" if self.other else self.against
        ratio = f"{self.ratio:.2f} times" if self.other else ""
        limit = "" if self.limit is None else f"{self.limit:g} {'times' if self.other else self.unit}"
        return [self.what, value, other, ratio, limit]

    def line(self) -> str:
        """For the terminal."""
        what, value, other, ratio, limit = self.cells()
        kept = "" if self.limit is None else "  ok" if self.is_kept else "  OVER THE LIMIT"
        return f"{what:58} {value:>12}  {other:32} {ratio:>8}  {limit:>8}{kept}"

    def row(self) -> str:
        """For the documentation."""
        return f"| {' | '.join(self.cells())} |\n"


def median_ms(*acts: Callable[[], object], times: int = 40, after_its_like: bool = False) -> list[float]:
    """Time several acts in turn, so that a slow moment hits them all; the median of each.

    `after_its_like` does each once untimed first, where the launcher makes the next launch ready as the last one was.
    """
    taken: list[list[float]] = [[] for _ in acts]
    for _ in range(times):
        for act, mine in zip(acts, taken, strict=True):
            if after_its_like:
                act()
            began = time.perf_counter()
            act()
            mine.append((time.perf_counter() - began) * 1000)
    return [statistics.median(mine) for mine in taken]


def seconds(act: Callable[[], object]) -> float:
    """Time one act."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def bubblewrap(project: Path) -> Callable[[], object]:
    """An act that runs `true` in bubblewrap alone, as isolated as a run of ours, on the host's own root.

    It hides the same files of `/proc`. What we do besides (overlays, views, the guard) is left out.
    """
    from fumehood.linux.bwrap import sandbox_command
    from fumehood.linux.confine import load_syscall_filter
    from fumehood.linux.hostview import kernel_masks
    from fumehood.linux.probe import host
    from fumehood.store.places import places

    at = places()
    able = host(at.cache, at.state)
    assert able.bwrap is not None
    filter_ = os.memfd_create("filter")
    os.write(filter_, load_syscall_filter(at.cache, unix_sockets=True))
    status = os.open(os.devnull, os.O_WRONLY)
    line = sandbox_command(able.bwrap, disable_userns=able.disable_userns)
    line += ["--bind", str(project), str(project), "--chdir", str(project)]
    line += [word for mask in kernel_masks(as_root=os.geteuid() == 0) for word in mask.bwrap_arguments([])]
    line += ["--seccomp", str(filter_), "--json-status-fd", str(status)]

    def act() -> None:
        os.lseek(filter_, 0, os.SEEK_SET)
        quiet([*line, "--", "/bin/sh", "-c", "true"], pass_fds=(filter_, status))()

    return act


def quiet(argv: list[str], **more: object) -> Callable[[], object]:
    """An act that runs a program to its end, its output thrown away."""
    return lambda: subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, **more)  # type: ignore[call-overload]


def project_in(room: Path, files: int = 10) -> Path:
    """A project with so many small files."""
    project = room / f"project-{files}"
    for number in range(files):
        directory = project / f"d{number // 100}"
        if number % 100 == 0:
            directory.mkdir(parents=True)
        (directory / f"f{number}").write_text("x\n")
    return project


def fumehood_command() -> list[str]:
    """The command as a person has it: installed and byte-compiled."""
    return [str(REPOSITORY / "fumehood"), "run", "--"]


def warm(room: Path) -> Iterator[Figure]:
    """A command from a program that is running already, also where its client keeps files in the home."""
    from fumehood import Sandbox

    project, home = project_in(room), Path(os.environ["HOME"])
    tool = home / "bin" / "tool"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    os.environ["PATH"] += f":{tool.parent}"

    def after_replacing() -> None:
        (home / ".client.json.new").write_text("{}")
        (home / ".client.json.new").rename(home / ".client.json")
        sandbox.run("true")

    with Sandbox(project) as sandbox:
        sandbox.run("true")
        bare = bubblewrap(project)
        ours, raw, replacing, _ = median_ms(lambda: sandbox.run("true"), bare, after_replacing, bare, times=100)
    yield Figure('library: run("true")', ours, "ms", "bwrap, the same flags", raw, 2.2)
    yield Figure('library: run("true") when a file in the home is replaced', replacing, "ms", "when not", ours, 1.2)


def hardening(room: Path) -> Iterator[Figure]:
    """What views, masks, filter and guard cost a run over the launch without them; only root can bind all of `/`."""
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

        def without() -> None:
            def look(self: running.Execution) -> VisibleMounts:
                mounts = (*bare, *self._capture.mounts)
                return VisibleMounts(
                    mounts=mounts, host_mount_count=2, host_view_number=0, blocks_sockets=True
                )

            with (
                mock.patch.object(running.Execution, "_find_visible", look),
                mock.patch.object(running, "load_syscall_filter", return_value=b""),
                mock.patch.object(confine, "guard_program", return_value=b""),
            ):
                sandbox.run("true")

        ours, other = median_ms(lambda: sandbox.run("true"), without, times=100, after_its_like=True)
    yield Figure('library: run("true"), all hardening', ours, "ms", "without it", other)
    yield Figure("all hardening, over the launch without it", ours - other, "ms", limit=1.0)


def cold(room: Path) -> Iterator[Figure]:
    """A command from a shell."""
    project = project_in(room)
    quiet([*fumehood_command(), "true"], cwd=project)()
    # In the cache of whoever runs this: `make clients` puts it there.
    cache = Path(pwd.getpwuid(os.getuid()).pw_dir, ".cache/fumehood")
    codex = next(cache.glob("node-*/node_modules/@openai/codex-linux-*/vendor/*/bin/codex"), None)
    lines = ("true", "date +%N > a")
    acts = [quiet([sys.executable, "-c", "pass"]), *(quiet([*fumehood_command(), line], cwd=project) for line in lines)]
    acts += [quiet([str(codex), "sandbox", "true"], cwd=project)] if codex else []
    bare, ours, writing, *native = median_ms(*acts)
    yield Figure("command line: fumehood run -- true", ours, "ms", "python3 -c pass", bare, 4.0)
    yield Figure("the same where a file is changed, applied and told", writing, "ms", "run -- true", ours, 1.5)
    for other in native:
        yield Figure("the same against Codex", ours, "ms", "codex sandbox true, the native binary", other, 1.0)


def first_use(room: Path) -> Iterator[Figure]:
    """Run the first command with nothing cached, against an environment with the same packages made by hand."""
    project = project_in(room)
    lock = REPOSITORY / "requirements/run.txt"
    by_hand = ["sh", "-c", f"python3 -m venv x && x/bin/pip install -q -r '{lock}'"]

    def in_a_new_home(line: list[str], cwd: Path | None = None) -> None:
        with tempfile.TemporaryDirectory(dir=room) as home:
            caches = {"HOME": home, "PIP_CACHE_DIR": f"{home}/pip", "UV_CACHE_DIR": f"{home}/uv"}
            subprocess.run(line, cwd=cwd or home, env=os.environ | caches, capture_output=True, check=True)

    ours, other = median_ms(
        lambda: in_a_new_home([*fumehood_command(), "true"], project), lambda: in_a_new_home(by_hand), times=3
    )
    tool = "uv" if shutil.which("uv") else "pip"
    yield Figure(f"the first `fumehood run -- true`, with {tool}", ours / 1000, "s", "venv and pip", other / 1000, 1.3)


# How each runs a command that may write the current directory and nothing else.
PEERS = {
    "sandbox-runtime (srt)": ["srt", "true"],
    "codex sandbox": ["codex", "sandbox", "true"],
    "try": ["try", "-n", "true"],
    "firejail": ["firejail", "--quiet", "--noprofile", "--net=none", "true"],
    "bwrap": ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--dev", "/dev", "--proc", "/proc", "true"],
}


def peers(room: Path) -> Iterator[Figure]:
    """Start `true` in each, cold."""
    project = project_in(room)
    found = {name: argv for name, argv in PEERS.items() if shutil.which(argv[0])}
    acts = [quiet([*fumehood_command(), "true"], cwd=project), *(quiet(argv, cwd=project) for argv in found.values())]
    ours, *theirs = median_ms(*acts, times=20)
    for name, value in zip(found, theirs, strict=True):
        yield Figure(f"cold `true` in {name}", value, "ms", "fumehood", ours)


def alpine(room: Path) -> Iterator[Figure]:
    """A command in a root tree of its own, against the same in the host's root."""
    from fumehood import Sandbox

    project, tree = project_in(room), room / "tree"
    small_root(tree)
    with Sandbox(project) as sandbox:
        for root in ("host", str(tree)):
            sandbox.run("true", root=root)
        inside, outside = median_ms(
            lambda: sandbox.run("true", root=str(tree)), lambda: sandbox.run("true", root="host"), times=100,
            after_its_like=True,
        )  # fmt: skip
    yield Figure('library: run("true") in an Alpine root', inside, "ms", "in the host's root", outside, 1.3)


def small_root(tree: Path) -> None:
    """Make a root tree as an installed one is: busybox, its names, and the places that things are mounted on."""
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
    """The size of the project must not matter."""
    from fumehood import Sandbox

    small, huge = project_in(room), project_in(room, 100_000)
    with Sandbox(small) as one, Sandbox(huge) as other:
        line = "echo x > new; echo y >> d0/f1"
        in_small, in_huge = median_ms(lambda: one.run(line), lambda: other.run(line), times=60)
    yield Figure("a run in a project of 100,000 files", in_huge, "ms", "in one of 10", in_small, 1.2)


def apply(room: Path) -> Iterator[Figure]:
    """Many changes at once."""
    yield from apply_files(room, FILE_SIZE, limit=0.1)
    yield from apply_files(room, 64 << 10, limit=None)
    yield from apply_files(room, 4 << 10, limit=None)
    yield from apply_tree(room)


def apply_files(room: Path, size: int, limit: float | None) -> Iterator[Figure]:
    """Take over 20,000 modified files with their backups, and take them back."""
    from fumehood import Sandbox

    project = room / f"files-{size}"
    content = os.urandom(size)
    for number in range(FILES):
        directory = project / f"d{number // 200}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}").write_bytes(content)
    with Sandbox(project) as sandbox:
        held = sandbox.run("find . -type f -exec touch {} +", apply="hold")
        # What the copy and the run have dirtied is written out first, for it would be charged to whoever comes next.
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
    """A new tree is applied in the time of its scan."""
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
    """The records of files: what a large run leaves to be done after its report, and a scan."""
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
        whole = store.projects.open(str(huge))
        yield Figure("scan a project of 100,000 files", seconds(lambda: scan_project(store, whole)), "s", limit=10.0)
        store.close()


def output(room: Path) -> Iterator[Figure]:
    """A command that prints 1 GiB."""
    project = project_in(room)
    code = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY / 'src')!r}); from fumehood import Sandbox; import resource;"
        f"run = Sandbox({str(project)!r}).run('head -c 1073741824 /dev/zero');"
        "assert run.output_truncated; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    yield Figure("peak memory while a command prints 1 GiB", int(done.stdout) / 1024, "MiB", limit=100.0)


def leftovers(room: Path) -> Iterator[Figure]:
    """A thousand runs leave nothing but their records."""
    from fumehood import Sandbox

    project = project_in(room)
    state = Path(os.environ["HOME"], ".local/state/fumehood")
    with Sandbox(project) as sandbox:
        sandbox.run("true")
        before = _present(state)
        for _ in range(1000):
            sandbox.run("true")
        after = _present(state)
    yield Figure("files, mounts and processes left by 1,000 runs", float(after - before), "", limit=0.0)


def _present(state: Path) -> int:
    """Count files under our state, mounts that name it, and processes of ours."""
    files = sum(len(names) + len(directories) for _, directories, names in os.walk(state))
    mounts = sum(str(state) in line for line in Path("/proc/self/mountinfo").read_text().splitlines())
    mine = subprocess.run(["pgrep", "-c", "-u", str(os.getuid()), "bwrap"], capture_output=True, text=True, check=False)
    descriptors = len(os.listdir("/proc/self/fd"))
    return files + mounts + int(mine.stdout or 0) + descriptors


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
