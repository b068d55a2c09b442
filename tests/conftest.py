"""What every test stands on: a home, a project, a sandbox, the command line, and guards against leaks."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from forked import COMMANDS, command_line, loaded
from forking import begin_databases_whole
from fumehood.linux import libc
from fumehood.linux.probe import CAPTURES, Host, host
from fumehood.store.places import places
from patience import LONG_S

# What drives a browser has an environment of its own: make browser.
collect_ignore = [] if find_spec("playwright") else ["browser"]

if TYPE_CHECKING:
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

PREFIX = f"fumehood-tests-{os.getpid()}-"  # others may be testing here too
LONG_ONES = tuple(f"test_{name}.py" for name in ("wrapper", "faults", "model", "full_disk", "deep_trees", "folds"))
# What is the same for every user once a command's writes are captured.
ALIKE = tuple(f"test_{name}.py" for name in (
    "best", "bundles", "checkpoint", "drafts", "git_layouts", "library", "long_history", "one_repository",
    "public_names", "staged", "started",
))  # fmt: skip
# Variables that would make a test depend on who runs it.
DROPPED = ("FUMEHOOD_", "PYTHON", "XDG_", "GIT_", "MAKE", "MFLAGS")
AGAIN = "FUMEHOOD_TESTS_AGAIN" in os.environ  # as an ordinary user, what root's tests have shown
KEPT = ("FUMEHOOD_TESTS_MUST_RUN", "FUMEHOOD_TESTS_DIR", "FUMEHOOD_TESTS_ATTACKS")
UNSHARE_USER = """
import ctypes, errno, os, sys
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
    # The kernel's words for this one are about a disk.
    code = ctypes.get_errno()
    sys.exit("their number is limited" if code == errno.ENOSPC else os.strerror(code))
"""

# Mounts take their time on a busy machine, and in the hood a file left in the project is a change.
# Every run has the same examples, so that it says something of what changed; `make fuzz` has fresh ones.
FRESH = int(os.environ.get("FUMEHOOD_FUZZ_EXAMPLES", "0"))
hypothesis.settings.register_profile(
    "fumehood", deadline=None, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=not FRESH, max_examples=FRESH or 100,
)  # fmt: skip
hypothesis.settings.load_profile("fumehood")


def pytest_configure(config: pytest.Config) -> None:
    """Have mounts of our own where we may: what one test mounts, no other process finds in its way.

    With nohup, or in the background of a script, signals are ignored, also by programs that are started from here. A
    handler of ours is not inherited.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if os.geteuid() == 0:
        with suppress(OSError):  # not in every container
            libc.unshare(libc.CLONE_NEWNS)
            libc.mount(b"none", b"/", None, libc.MS_REC | libc.MS_PRIVATE, None)
    begin_databases_whole()
    gc.disable()  # until all is loaded, of which nothing goes


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one part of the tests, if one is asked for: those that run beside others, or those that don't.

    What takes long comes first, so that nobody has to wait for it at the end.
    """
    leave_cases_to_make_long(items)
    items.sort(key=lambda item: item.path.name not in LONG_ONES)
    part = os.environ.get("FUMEHOOD_TESTS_PART", "")
    if part:
        chosen = [item for item in items if (item.get_closest_marker("alone") is not None) == (part == "alone")]
        others = set(items) - set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item in others])
        items[:] = chosen


def leave_cases_to_make_long(items: list[pytest.Item]) -> None:
    """Of cases that need a home each, `make test` has the first and a third of the others, `make long` the rest.

    An ordinary user's has but the first of all that root's has shown; of what is alike for all, one test a file.
    Where the kernel itself is asked, it may answer differently each time, and what attacks try is tried in each way.
    """
    tests: dict[object, list[pytest.Item]] = {}
    for item in items:
        folder = item.path.parent.name
        if folder != "linux" and not any(map(item.get_closest_marker, ("installs", "long", "ordinary"))):
            name = getattr(item, "originalname", item.name)
            if not AGAIN:
                if folder != "escape" and "home" in getattr(item, "fixturenames", ()):
                    tests.setdefault((item.path, name), []).append(item)
            elif item.get_closest_marker("namespaces") is not None and item.get_closest_marker("once") is None:
                is_alike = folder == "faces" or item.path.name in ALIKE
                tests.setdefault(item.path if is_alike else (item.path, name), []).append(item)
    for cases in tests.values():
        for item in cases[1:]:
            if AGAIN or zlib.crc32(item.name.encode()) % 3:
                item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    """Look no more at what was loaded, when what is not used any more is searched for."""
    gc.freeze()
    gc.enable()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name what failed to tools/run_tests.py; of several processes, the one that hears of all does."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ and "FUMEHOOD_TESTS_FAILED" in os.environ:
        with open(os.environ["FUMEHOOD_TESTS_FAILED"], "a") as failed:
            failed.write(f"{report.nodeid}\n")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what root would not meet."""
    if item.get_closest_marker("ordinary") is not None and os.geteuid() == 0:
        pytest.skip("to root nothing is closed")


def need(ability: bool, reason: str) -> None:
    """Skip the test with the reason where the host lacks an ability; fail where every test must run."""
    if ability:
        return
    if os.environ.get("FUMEHOOD_TESTS_MUST_RUN") == "1":
        pytest.fail(f"every test must run here, but {reason}")
    pytest.skip(reason)


@pytest.fixture(name="need")
def need_fixture() -> Callable[[bool, str], None]:
    """The same as a fixture, for those who don't import it."""
    return need


@cache
def why_no_user_namespace() -> str:
    """The kernel's reason to refuse a user namespace, or nothing."""
    command = [sys.executable, "-I", "-c", UNSHARE_USER]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()


@cache
def scratch() -> str:
    """Where test directories go: not under /tmp, which the sandbox hides, unless there is nothing else."""
    for place in (os.environ.get("FUMEHOOD_TESTS_DIR", ""), "/var/tmp"):
        if place and os.access(place, os.W_OK | os.X_OK):
            return place
    return tempfile.gettempdir()


def mounts_mentioning(text: str) -> list[str]:
    """The mounts that this process sees and that name the text anywhere."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as handle:
        return [line.strip() for line in handle if text in line]


def mounts_that_stay(text: str, known: Sequence[str] = ()) -> list[str]:
    """Give new mounts time: a FUSE mount goes away a little later than its last user."""
    deadline = time.monotonic() + LONG_S
    while True:
        found = [mount for mount in mounts_mentioning(text) if mount not in known]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def remove_tree(top: Path) -> None:
    """Remove a tree, whatever is in it; never across a mount, whose files may be someone's."""
    leaked = mounts_that_stay(str(top))
    if leaked:
        pytest.fail("still mounted, so not removed:\n" + "\n".join(leaked))
    try:
        shutil.rmtree(top)
    except (OSError, RecursionError):
        # Directories of mode 000, or deeper than a path or Python's stack can be.
        subprocess.run(["chmod", "-R", "u+rwx", top], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", top], check=True)


def fresh_directory(parent: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)).resolve()


@pytest.fixture(autouse=True)
def namespaces_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skip what needs namespaces where there are none, and see that no mount outlives its test."""
    if request.node.get_closest_marker("namespaces") is None:
        yield
        return
    refusal = why_no_user_namespace()
    need(not refusal, f"user namespaces can't be made here: {refusal}")
    known = mounts_mentioning(PREFIX)
    yield
    leaked = mounts_that_stay(PREFIX, known)
    assert not leaked, "mounts left behind:\n" + "\n".join(leaked)


@pytest.fixture(autouse=True)
def records_guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be recorded where the person who runs the tests has records of their own."""
    if "home" not in request.fixturenames:
        monkeypatch.setenv("XDG_STATE_HOME", os.devnull)


@pytest.fixture
def test_directory() -> Iterator[Path]:
    """The one directory that holds a test's home and project."""
    top = fresh_directory(scratch())
    yield top
    remove_tree(top)


@pytest.fixture(scope="session")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all tests: what this host can do is found out once."""
    cache = tmp_path_factory.mktemp("cache")
    state = fresh_directory(scratch())
    host(str(cache / "fumehood"), str(state))
    remove_tree(state)
    return cache


@pytest.fixture
def home(test_directory: Path, probed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh home, named to this process and its children by HOME and XDG_*; what the host can do is known in it."""
    for name in os.environ:
        if name.startswith(DROPPED) and name not in KEPT:
            monkeypatch.delenv(name)
    home = test_directory / "home"
    places = {
        "HOME": home,
        "XDG_STATE_HOME": home / ".local/state",
        "XDG_DATA_HOME": home / ".local/share",
        "XDG_CACHE_HOME": home / ".cache",
        "XDG_CONFIG_HOME": home / ".config",
        "XDG_RUNTIME_DIR": test_directory / "runtime",
    }
    for name, place in places.items():
        place.mkdir(parents=True, mode=0o700)
        monkeypatch.setenv(name, str(place))
    # Asked each time: the answer names all that it depends on, and another may have changed that.
    host(str(probed / "fumehood"), str(test_directory))
    answer = probed / f"fumehood/probe-{os.geteuid()}"
    if answer.exists():
        ours = home / ".cache/fumehood"
        ours.mkdir(mode=0o700)
        shutil.copy(answer, ours)
    return home


@pytest.fixture
def known_host(home: Path, probed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh home, but with one cache for all tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(probed))


def need_way(way: str, here: Host) -> None:
    """Skip or fail, as `need` does, where the host has no such way of capturing writes."""
    need(way in here.captures, f"writes can't be captured by {way} here: {here.refusal(way) or here.why}")


@pytest.fixture(params=[pytest.param(way, marks=[pytest.mark.once] if way == "copy" else []) for way in CAPTURES])
def way(request: pytest.FixtureRequest, known_host: None) -> str:
    """Each way of capturing that the host has; a test of some of them names these, with `indirect=True`.

    An empty one is whatever way is the best.
    """
    way: str = request.param
    if way:
        need_way(way, host(places().cache, places().state))
    return way


@pytest.fixture
def project(test_directory: Path, home: Path) -> Path:
    """A fresh, empty project outside the home, which is fresh too, and outside /tmp."""
    project = test_directory / "project"
    project.mkdir()
    return project


@pytest.fixture
def sandbox(home: Path, project: Path) -> Iterator[object]:
    """A sandbox on the project, its state in the fresh home."""
    from fumehood import Sandbox

    sandbox = Sandbox(project)
    yield sandbox
    close = getattr(sandbox, "close", None)
    if close is not None:
        close()


@pytest.fixture
def store(home: Path) -> "Iterator[Store]":
    """What we remember, opened as another process would, in the fresh home."""
    from fumehood.service.opened import OpenedStore

    store = OpenedStore()
    yield store
    store.close()


@pytest.fixture
def known(store: "Store", project: Path) -> "Project":
    """The project by its record."""
    return store.projects.open(str(project))


@pytest.fixture
def edited(store: "Store") -> Path:
    """Where the daily backups lie."""
    return Path(store.places.state, "edited")


def locale(environment: Mapping[str, str]) -> dict[str, str]:
    """What Python looks at when it starts, even where it is told to be isolated."""
    return {name: value for name, value in environment.items() if name.startswith(("LANG", "LC_", "TZ"))}


LOCALE = locale(os.environ)


@pytest.fixture
def begun(home: Path, project: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start `fumehood run` without a terminal, for a command that says "ready"; it has when this returns."""
    processes = []

    def start(command: str, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*command_line(), "run", *arguments, "--", command], cwd=project, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def cli(home: Path, project: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The real command line: `cli("run", "--", "true")`, in the project unless told otherwise."""

    def run(
        *arguments: str | os.PathLike[str],
        cwd: str | os.PathLike[str] | None = None,
        input: str | None = None,  # noqa: A002  (subprocess's own name for it)
        env: dict[str, str] | None = None,
        timeout: float = LONG_S,
        command: Sequence[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        words, environment = list(map(os.fspath, arguments)), os.environ | (env or {})
        cwd = project if cwd is None else cwd
        if command is None and locale(environment) == LOCALE:
            return loaded(COMMANDS).run(words, cwd=str(cwd), env=environment, input=input, timeout=timeout)
        return subprocess.run(
            [*(command or command_line()), *words],
            cwd=cwd,
            env=environment,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=timeout,
            check=False,
            capture_output=True,
            start_new_session=True,  # without a terminal: whoever runs the tests is not to be asked
            **({"stdin": subprocess.DEVNULL} if input is None else {"input": input}),
        )

    return run


@pytest.fixture
def other_filesystem(test_directory: Path) -> Iterator[Path]:
    """A directory on another file system than the home and the project."""
    here = test_directory.stat().st_dev
    places = ("/dev/shm", f"/run/user/{os.getuid()}", "/tmp", "/var/tmp")
    others = [place for place in places if os.access(place, os.W_OK) and os.stat(place).st_dev != here]
    need(bool(others), "there is no second writable file system")
    top = fresh_directory(others[0])
    yield top
    remove_tree(top)
