"""Make a checkout's virtual environments, and print where one is: environment.py CHECKOUT NAME.

NAME is a lock in requirements/: `run` has what ./fumehood needs, `mcp` what its MCP server needs too, `web` its page in
the browser, `terminal` its views in the terminal, `desktop` its notifications, `test` all of that and the tools of
`make test`; `fleet` has what its workers need. The environments lie outside the checkout, because a command in the hood
may write the project and must not be able to replace what the host executes.
"""

import fcntl
import hashlib
import os
import pwd
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# Each has what the first has, the last has all, and all have the checkout's sources. Those of other locks are not a
# checkout's.
OURS = ("run", "mcp", "web", "terminal", "desktop", "test")
APART = ("fleet",)  # a checkout's too, and the last has nothing of them
SUPERSEDED_KEPT_S = 30 * 24 * 3600
LOCKED = ("--no-deps", "--require-hashes", "--only-binary=:all:")
PACKAGE = re.compile(r"^[\w.-]+==(?!.*sys_platform == '(?!linux))", re.MULTILINE)


class CannotMakeError(Exception):
    """The environment can't be made; the message is one line with the next step."""


def main() -> int:
    """Print the path of an environment of this checkout, making it first where needed."""
    checkout_as_named, name = sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        target = environment_of(name)
        # What can't be written is looked at again the next time.
        with suppress(OSError):
            for served in OURS if name == OURS[-1] else {"run", name}:
                mark(target, served, checkout_as_named)
    except CannotMakeError as exc:
        print(f"fumehood: {exc}", file=sys.stderr)
        return 125
    except KeyboardInterrupt:
        print("fumehood: interrupted; nothing was left behind", file=sys.stderr)
        return 130
    print(target)
    return 0


def environment_of(name: str, python: str = sys.executable) -> Path:
    """Find or make the environment that has the packages of a lock."""
    cache = cache_directory()
    if cache.resolve().is_relative_to(CHECKOUT):
        raise CannotMakeError(f"{cache} is in the checkout; type: export XDG_CACHE_HOME=<another place>")
    target = place_of(name, python)
    # A whole environment is used even where nothing can be written: in the hood, the cache is read-only.
    if not is_whole(target):
        prepare(cache)
        with one_at_a_time(cache) as lock:
            if not is_whole(target):
                build(target, name, python, lock)
                sweep(cache, target)
    return target


def place_of(name: str, python: str = sys.executable) -> Path:
    """Where that environment is or will be, by everything that it depends on."""
    lock, program = inputs(name)
    parts = [os.fsencode(os.path.realpath(python)), "{}.{}".format(*sys.version_info).encode(), lock.read_bytes()]
    if name in OURS + APART:
        parts += [os.fsencode(CHECKOUT), program.read_bytes()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return cache_directory() / f"{'venv' if name in OURS + APART else 'packages'}-{name}-{digest}"


def inputs(name: str) -> list[Path]:
    """What an environment is made from; tools/environment.sh compares the times of these before it runs anything."""
    return [CHECKOUT / f"requirements/{name}.txt", CHECKOUT / "tools/environment.py"]


def cache_directory() -> Path:
    """Where Fumehood keeps what can be made again; relative values are ignored, as the XDG rules ask."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    home = os.environ.get("HOME", "")
    own = own_home(home)
    if os.path.isabs(named) and (own == home or not Path(named).is_relative_to(home)):
        return Path(named, "fumehood")
    if not os.path.isabs(home):
        trouble = "not an absolute path" if home else "not set"
        raise CannotMakeError(f"HOME is {trouble}; type: export HOME=<your home directory>")
    return Path(own, ".cache", "fumehood")


def own_home(home: str) -> str:
    """Root's own home where HOME is somebody else's, as `sudo -E` leaves it: the same as in store/places.py."""
    if os.geteuid() != 0 or not os.path.isdir(home) or not (owner := Path(home).stat().st_uid):
        return home
    try:
        is_theirs = os.path.realpath(pwd.getpwuid(owner).pw_dir) == os.path.realpath(home)
    except KeyError:
        return home
    return pwd.getpwuid(0).pw_dir if is_theirs else home


def is_whole(target: Path) -> bool:
    """Whether an environment of ours was finished, and its Python still starts."""
    try:
        if target.stat().st_uid != os.geteuid() or not (target / "made-from/checkout").is_file():
            return False
        return subprocess.run([target / "bin/python", "-I", "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def prepare(cache: Path) -> None:
    """Make the cache directory private, or say whose it is."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.mkdir(mode=0o700, exist_ok=True)
        if cache.stat().st_uid != os.geteuid():
            raise CannotMakeError(f"{cache} belongs to another user; type: export HOME=<your home directory>")
        cache.chmod(0o700)
    except OSError as exc:
        raise CannotMakeError(
            f"no environment can be made in {cache} ({exc.strerror});"
            " type: export XDG_CACHE_HOME=<a directory you may write>"
        ) from exc


@contextmanager
def one_at_a_time(cache: Path) -> Iterator[int]:
    """Let one process build. Its children inherit the lock: what a killed build started goes on writing for a while."""
    with (cache / "venv.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waiting for another process that is making an environment")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle.fileno()


def sweep(cache: Path, target: Path) -> None:
    """Remove what killed builds left, and environments whose checkout is gone or long on another lock."""
    for old in cache.glob("venv-*"):
        if old == target:
            continue
        try:
            record = old / "made-from/checkout"
            owner = Path(os.fsdecode(record.read_bytes()))
            age = time.time() - record.stat().st_mtime
            is_wanted = owner.exists() and (owner != CHECKOUT or age < SUPERSEDED_KEPT_S)
        except OSError:
            is_wanted = False
        if not is_wanted:
            shutil.rmtree(old, ignore_errors=True)


def build(target: Path, name: str, python: str, lock: int) -> None:
    """Make the environment; the record of its checkout comes last, and makes it whole."""
    tell(f"first use: making an environment in {target}")
    began = time.monotonic()
    record = target / "made-from/checkout"
    try:
        if target.exists():
            record.unlink(missing_ok=True)
            shutil.rmtree(target)
        target.mkdir(mode=0o700)
        step([python, "-I", "-m", "venv", "--symlinks", "--without-pip", target], lock)
        (target / "made-from").mkdir()
        install(target, name, python, lock)
        if name in OURS + APART:
            add_sources(target)
        record.write_bytes(os.fsencode(CHECKOUT))
    except (OSError, subprocess.CalledProcessError) as exc:
        raise CannotMakeError(explain(exc)) from exc
    finally:
        if not record.exists():
            shutil.rmtree(target, ignore_errors=True)
    tell(f"ready after {time.monotonic() - began:.0f} s")


def explain(exc: OSError | subprocess.CalledProcessError) -> str:
    """Say which step failed and what to try."""
    if isinstance(exc, OSError):
        return f"the environment can't be made: {exc}"
    if "install" not in exc.cmd:
        return f"{exc.cmd[0]} can't make one (see above); type: export FUMEHOOD_PYTHON=<another Python>"
    return "the locked packages can't be installed (see above); is the package index reachable from here?"


def install(target: Path, name: str, python: str, lock: int) -> None:
    """Install what is locked: by uv where it is there and can, else by pip."""
    inside, packages = target / "bin/python", CHECKOUT / f"requirements/{name}.txt"
    count = len(PACKAGE.findall(packages.read_text()))
    counted = f"{count} package{'s'[: count != 1]}"
    uv = shutil.which("uv")
    if uv is not None:
        tell(f"installing {counted} with uv")
        try:
            # Copied: what others do to the files in uv's cache must not change what runs here.
            return step([uv, "pip", "install", "--link-mode=copy", *LOCKED, "--python", inside, "-r", packages], lock)
        except subprocess.CalledProcessError:
            tell("uv can't; trying with pip")
    tell(f"installing {counted} with pip")
    pip = [python, "-I", "-m", "pip", "--python", inside]
    # To put pip into the environment takes longer than all the rest: one that is there already serves as well.
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        step([inside, "-I", "-m", "ensurepip"], lock)
        pip = [inside, "-I", "-m", "pip"]
    # Not compiled: the wrapper keeps bytecode in a place of its own.
    return step([*pip, "install", "--no-compile", "--progress-bar=off", *LOCKED, "-r", packages], lock, count)


def step(command: list[str | Path], lock: int, count: int = 0) -> None:
    """Run one step of a build, and show the end of what it printed if it fails; count the packages that pip gets.

    It has a process group of its own, so that an interruption ends its children too: else they would go on writing into
    a directory that is being removed.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    printed, number = [], 0
    with subprocess.Popen(
        command, cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", process_group=0, pass_fds=(lock,),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                printed.append(line)
                # The second is what pip says of one that is a file here.
                named = re.match(r"Collecting ([^= ]+)|Processing .*/([^-/ ]+)-\d", line)
                if count and named:
                    number += 1
                    tell(f"package {number} of {count}: {named[1] or named[2]}")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        sys.stderr.writelines(printed[-20:])
        raise subprocess.CalledProcessError(process.returncode, command)


def add_sources(target: Path) -> None:
    """Let its Python find Fumehood, and write the program the wrapper starts: `-m` would import runpy and more.

    The sources come after the standard library, so that no file there can stand in for one of its modules. Nothing
    that is imported is garbage, and looking for some would take a twentieth of the time; the command turns it on again.
    Of SQLite and other libraries, functions are looked up when they are called (RTLD_LAZY): few ever are.
    What an agent waits for all day finds its modules in one file (fumehood/module_cache.py).
    """
    sources = CHECKOUT / "src"
    site_packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(target), "platbase": str(target)}))
    (site_packages / "fumehood-checkout.pth").write_bytes(os.fsencode(sources) + b"\n")
    (target / "launch.py").write_text(
        "import _signal, gc, sys\n"
        "if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:\n"
        "    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)\n"  # until a command begins, Ctrl-C ends it without a word
        "gc.disable()\n"
        "sys.setdlopenflags(1)\n"
        f"sys.path += [{str(sources)!a}, {str(site_packages)!a}]\n"
        f"sys.prefix = sys.exec_prefix = {str(target)!a}\n"
        "cache = None\n"
        "if sys.argv[1:2] in (['run'], ['hook']):\n"
        "    from _frozen_importlib_external import SourceFileLoader\n"
        "    module = type(sys)('fumehood.module_cache')\n"
        f"    SourceFileLoader(module.__name__, {str(sources / 'fumehood/module_cache.py')!a}).exec_module(module)\n"
        f"    cache = module.ModuleCache({str(target / 'modules-')!a} + sys.argv[1], {str(sources)!a})\n"
        "    sys.meta_path.insert(0, cache)\n"
        "from fumehood.faces.cli.main import command\n"
        "command(cache)\n"
    )
    # Python keeps no bytecode of the program that it is told to run.
    py_compile.compile(str(target / "launch.py"), str(target / "launch.pyc"), doraise=True)


def mark(target: Path, name: str, checkout_as_named: str) -> None:
    """Tell the wrapper, under the name it calls the checkout by, which environment to use until something changes."""
    for path in inputs(name):
        time_ns = path.stat().st_mtime_ns
        remembered = target / "made-from" / path.name
        if not remembered.exists() or remembered.stat().st_mtime_ns != time_ns:
            remembered.touch()
            os.utime(remembered, ns=(time_ns, time_ns))
    place = Path(f"{target.parent}/checkouts{checkout_as_named}/.{name}")
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(f"{place.name}.{os.getpid()}")
    new.write_text(f"{target.name}\n{os.environ.get('FUMEHOOD_PYTHON', '')}\n", errors="surrogateescape")
    new.replace(place)


def tell(message: str) -> None:
    """Progress, for a person: standard output belongs to the path."""
    print(f"fumehood: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
