"""Make a virtual environment for a checkout if it is missing, and print its path: environment.py CHECKOUT NAME.

NAME is a lock in requirements/. `run` has what ./fumehood needs; `mcp`, `web`, `terminal` and `desktop` have also what
the MCP server, the page in the browser, the views in the terminal and the notifications need; `test` has all of these
and the tools of `make test`; `fleet` has what the workers of a fleet need. The environments lie outside the checkout: a
command in the hood may write the project, and must not be able to replace what the host executes.
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
# Environments with the checkout's sources; environments of other locks have only packages. Each of NESTED has what the
# first has, and the last has everything of the others; it has nothing of SEPARATE.
NESTED = ("run", "mcp", "web", "terminal", "desktop", "test")
SEPARATE = ("fleet",)
OUTDATED_KEPT_S = 30 * 24 * 3600
LOCKED = ("--no-deps", "--require-hashes", "--only-binary=:all:")
NEWEST_PYTHON = (3, 14)  # for which each package of requirements/run.txt is built
PACKAGE = re.compile(r"^[\w.-]+==(?!.*sys_platform == '(?!linux))", re.MULTILINE)


class CannotMakeError(Exception):
    """The environment can't be made; the message is one line that ends with the next step."""


def main() -> int:
    """Print the path of an environment of this checkout, making it first if needed."""
    checkout, name = sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        target = environment_of(name)
        # If the marks can't be written, the next start comes here again.
        with suppress(OSError):
            for each in NESTED if name == NESTED[-1] else {"run", name}:
                write_mark(target, each, checkout)
    except CannotMakeError as exc:
        print(f"fumehood: {exc}", file=sys.stderr)
        return 125
    except KeyboardInterrupt:
        print("fumehood: interrupted; nothing was left behind", file=sys.stderr)
        return 130
    print(target)
    return 0


def environment_of(name: str, python: str = sys.executable) -> Path:
    """Return the environment that has the packages of a lock, made if needed."""
    cache = cache_directory()
    if cache.resolve().is_relative_to(CHECKOUT):
        raise CannotMakeError(f"{cache} is in the checkout; type: export XDG_CACHE_HOME=<another place>")
    target = environment_path(name, python)
    # A complete environment is used even if nothing can be written: in the hood, the cache is read-only.
    if not is_complete(target):
        make_cache(cache)
        with one_at_a_time(cache) as lock:
            if not is_complete(target):
                build(target, name, python, lock)
                remove_stale_environments(cache, target)
    return target


def environment_path(name: str, python: str = sys.executable) -> Path:
    """Return the path of an environment, which may not exist yet; it names everything that the environment needs."""
    lock, program = input_files(name)
    parts = [os.fsencode(os.path.realpath(python)), "{}.{}".format(*sys.version_info).encode(), lock.read_bytes()]
    if name in NESTED + SEPARATE:
        parts += [os.fsencode(CHECKOUT), program.read_bytes()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return cache_directory() / f"{'venv' if name in NESTED + SEPARATE else 'packages'}-{name}-{digest}"


def input_files(name: str) -> list[Path]:
    """Return the files that an environment is made from; tools/environment.sh compares their times at each start."""
    return [CHECKOUT / f"requirements/{name}.txt", CHECKOUT / "tools/environment.py"]


def cache_directory() -> Path:
    """Return Fumehood's cache directory; relative values of variables are ignored, as the XDG rules say."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    home = os.environ.get("HOME", "")
    own = own_home(home)
    if os.path.isabs(chosen) and (own == home or not Path(chosen).is_relative_to(home)):
        return Path(chosen, "fumehood")
    if not os.path.isabs(home):
        trouble = "not an absolute path" if home else "not set"
        raise CannotMakeError(f"HOME is {trouble}; type: export HOME=<your home directory>")
    return Path(own, ".cache", "fumehood")


def own_home(home: str) -> str:
    """Return HOME, or root's own home if HOME is somebody else's, as after `sudo -E`; store/places.py does the same."""
    if os.geteuid() != 0 or not os.path.isdir(home) or not (owner := Path(home).stat().st_uid):
        return home
    try:
        is_theirs = os.path.realpath(pwd.getpwuid(owner).pw_dir) == os.path.realpath(home)
    except KeyError:
        return home
    return pwd.getpwuid(0).pw_dir if is_theirs else home


def is_complete(target: Path) -> bool:
    """Return True if an environment is ours and complete, and its Python still starts."""
    try:
        if target.stat().st_uid != os.geteuid() or not (target / "made-from/checkout").is_file():
            return False
        return subprocess.run([target / "bin/python", "-I", "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def make_cache(cache: Path) -> None:
    """Make the cache directory, for us alone; raises an error if it belongs to somebody else."""
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
    """Let only one process build. Its children inherit the lock, because those of a killed build go on for a while."""
    with (cache / "venv.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_progress("waiting for another process that is making an environment")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle.fileno()


def remove_stale_environments(cache: Path, target: Path) -> None:
    """Remove incomplete environments, and those whose checkout is gone or has had another lock for long."""
    for old in cache.glob("venv-*"):
        if old == target:
            continue
        try:
            record = old / "made-from/checkout"
            owner = Path(os.fsdecode(record.read_bytes()))
            age = time.time() - record.stat().st_mtime
            is_needed = owner.exists() and (owner != CHECKOUT or age < OUTDATED_KEPT_S)
        except OSError:
            is_needed = False
        if not is_needed:
            shutil.rmtree(old, ignore_errors=True)


def build(target: Path, name: str, python: str, lock: int) -> None:
    """Make the environment; the record of its checkout is written last, and marks it as complete."""
    print_progress(f"first use: making an environment in {target}")
    began = time.monotonic()
    record = target / "made-from/checkout"
    try:
        if target.exists():
            record.unlink(missing_ok=True)
            shutil.rmtree(target)
        target.mkdir(mode=0o700)
        run_step([python, "-I", "-m", "venv", "--symlinks", "--without-pip", target], lock)
        (target / "made-from").mkdir()
        install(target, name, python, lock)
        if name in NESTED + SEPARATE:
            add_sources(target)
        record.write_bytes(os.fsencode(CHECKOUT))
    except (OSError, subprocess.CalledProcessError) as exc:
        raise CannotMakeError(explain(exc)) from exc
    finally:
        if not record.exists():
            shutil.rmtree(target, ignore_errors=True)
    print_progress(f"ready after {time.monotonic() - began:.0f} s")


def explain(exc: OSError | subprocess.CalledProcessError) -> str:
    """Return which step failed and what to try."""
    if isinstance(exc, OSError):
        return f"the environment can't be made: {exc}"
    if "install" not in exc.cmd:
        return f"{exc.cmd[0]} can't make one (see above); type: export FUMEHOOD_PYTHON=<another Python>"
    trouble = "the locked packages can't be installed (see above); is the package index reachable from here?"
    if sys.version_info[:2] > NEWEST_PYTHON:
        version = "{}.{}".format(*sys.version_info)
        trouble += f" If one is not built for Python {version} yet, type: export FUMEHOOD_PYTHON=<an older Python>"
    return trouble


def install(target: Path, name: str, python: str, lock: int) -> None:
    """Install the packages of a lock.

    A newer Python gets those of requirements/run.txt as they were built for an older one: they need no compiled part.
    """
    uv = shutil.which("uv")
    if sys.version_info[:2] > NEWEST_PYTHON:
        older = f"--python-version={NEWEST_PYTHON[0]}.{NEWEST_PYTHON[1]}"
        install_locked(target, "run", python, lock, uv, older, f"--target={site_packages(target)}")
        if name == "run":
            return
        uv = None  # it would want them anew, and pip takes what is there
    install_locked(target, name, python, lock, uv)


def install_locked(target: Path, name: str, python: str, lock: int, uv: str | None, *options: str) -> None:
    """Install the packages of one lock: with uv if it is there and succeeds, else with pip."""
    new_python, packages = target / "bin/python", CHECKOUT / f"requirements/{name}.txt"
    count = len(PACKAGE.findall(packages.read_text()))
    package_count = f"{count} package{'s'[: count != 1]}"
    if uv is not None:
        print_progress(f"installing {package_count} with uv")
        try:
            # Copies, because changes to the files in uv's cache must not change what runs here.
            line = [uv, "pip", "install", "--link-mode=copy", *LOCKED, *options, "--python", new_python, "-r", packages]
            return run_step(line, lock)
        except subprocess.CalledProcessError:
            print_progress("uv can't; trying with pip")
    print_progress(f"installing {package_count} with pip")
    pip = [python, "-I", "-m", "pip", "--python", new_python]
    # To install pip takes longer than everything else, so an existing one is used if there is one.
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        run_step([new_python, "-I", "-m", "ensurepip"], lock)
        pip = [new_python, "-I", "-m", "pip"]
    # Not compiled, because the wrapper keeps bytecode in a directory of its own.
    line = [*pip, "install", "--no-compile", "--progress-bar=off", *LOCKED, *options, "-r", packages]
    return run_step(line, lock, count)


def run_step(command: list[str | Path], lock: int, count: int = 0) -> None:
    """Run one step of a build; print the end of its output if it fails, and the progress of pip if `count` is given.

    The step has its own process group, so that an interruption ends its children too: they must not go on writing into
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
                # The second pattern is for packages that are files on this machine.
                match = re.match(r"Collecting ([^= ]+)|Processing .*/([^-/ ]+)-\d", line)
                if count and match:
                    number += 1
                    print_progress(f"package {number} of {count}: {match[1] or match[2]}")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        sys.stderr.writelines(printed[-20:])
        raise subprocess.CalledProcessError(process.returncode, command)


def site_packages(target: Path) -> Path:
    """Return the directory of an environment's packages."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(target), "platbase": str(target)}))


def add_sources(target: Path) -> None:
    """Let the environment's Python find Fumehood, and write the program that the wrapper starts.

    `python -m` would import runpy and more. The sources come after the standard library, so that no file there can
    replace one of its modules. The garbage collector is off until the command turns it on: nothing that is imported is
    garbage, and the search would take a twentieth of the time. Functions of SQLite and other libraries are looked up
    when they are called (RTLD_LAZY), because most never are. The commands that agents wait for, `run` and `hook`, find
    their modules in one file (fumehood/module_cache.py).
    """
    sources, packages = CHECKOUT / "src", site_packages(target)
    (packages / "fumehood-checkout.pth").write_bytes(os.fsencode(sources) + b"\n")
    (target / "launch.py").write_text(
        "import _signal, gc, sys\n"
        "if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:\n"
        "    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)\n"  # until a command begins, Ctrl-C ends it without a word
        "gc.disable()\n"
        "sys.setdlopenflags(1)\n"
        f"sys.path += [{str(sources)!a}, {str(packages)!a}]\n"
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
    # Python itself does not keep the bytecode of the main program.
    py_compile.compile(str(target / "launch.py"), str(target / "launch.pyc"), doraise=True)


def write_mark(target: Path, name: str, checkout: str) -> None:
    """Write which environment the wrapper uses until an input changes; `checkout` is as the wrapper spells it."""
    for path in input_files(name):
        time_ns = path.stat().st_mtime_ns
        remembered = target / "made-from" / path.name
        if not remembered.exists() or remembered.stat().st_mtime_ns != time_ns:
            remembered.touch()
            os.utime(remembered, ns=(time_ns, time_ns))
    mark = Path(f"{target.parent}/checkouts{checkout}/.{name}")
    mark.parent.mkdir(parents=True, exist_ok=True)
    new = mark.with_name(f"{mark.name}.{os.getpid()}")
    new.write_text(f"{target.name}\n{os.environ.get('FUMEHOOD_PYTHON', '')}\n", errors="surrogateescape")
    new.replace(mark)


def print_progress(message: str) -> None:
    """Print progress for a person, on standard error: standard output is for the path."""
    print(f"fumehood: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
