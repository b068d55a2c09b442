"""Make the virtual environment that ./fumehood and `make test` run in, and print where it is.

It lies outside the checkout, because a command in the hood may write the project and must not be able to
replace what the host executes. It is built under a temporary name and renamed when complete, so that a name
without `.new-` always means a whole environment.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Known to tools/environment.sh too, which compares their times before it runs anything.
INPUTS = ("requirements/run.txt", "requirements/test.txt", "tools/environment.py")
SUPERSEDED_KEPT_S = 30 * 24 * 3600


class CannotMakeError(Exception):
    """The environment can't be made; the message is one line with the next step."""


def main() -> int:
    """Print the path of this checkout's environment, making it first where needed."""
    if len(sys.argv) != 2:
        print("usage: environment.py CHECKOUT", file=sys.stderr)
        return 125
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        print(environment(sys.argv[1]))
    except CannotMakeError as exc:
        print(f"fumehood: {exc}", file=sys.stderr)
        return 125
    except KeyboardInterrupt:
        print("fumehood: interrupted; nothing was left behind", file=sys.stderr)
        return 130
    return 0


def environment(checkout_as_named: str) -> Path:
    """Find or make the environment of a checkout, and leave the marks that the wrapper looks for."""
    checkout = Path(checkout_as_named).resolve(strict=True)
    cache = cache_directory()
    if cache.resolve().is_relative_to(checkout):
        raise CannotMakeError(f"{cache} is in the checkout; type: export XDG_CACHE_HOME=<another place>")
    target = cache / f"venv-{key(checkout)}"
    # A whole environment is used even where nothing can be written: in the hood, the cache is read-only.
    if not is_usable(target):
        prepare(cache)
        with one_at_a_time(cache):
            if not is_usable(target):
                build(cache, target, checkout)
                # Only now: what a killed build started may have gone on writing for a while.
                sweep(cache, target, checkout)
    with suppress(OSError):
        stamp(target, checkout)
        mark(cache, target, checkout_as_named)
    return target


def cache_directory() -> Path:
    """Where Fumehood keeps what can be made again; relative values are ignored, as the XDG rules ask."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return Path(named, "fumehood")
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        raise CannotMakeError("HOME is not set; type: export HOME=<your home directory>")
    return Path(home, ".cache", "fumehood")


def key(checkout: Path) -> str:
    """Name everything the environment depends on."""
    digest = hashlib.sha256()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for part in (checkout, sys.executable, version):
        digest.update(os.fsencode(part) + b"\0")
    for name in INPUTS:
        digest.update((checkout / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def is_usable(target: Path) -> bool:
    """Whether the environment is there and loads: cleaners remove single old files from caches."""
    try:
        if target.stat().st_uid != os.geteuid():
            return False
        check: list[str | Path] = [target / "bin/python", "-I", "-c", "import inotify_simple, pytest"]
        started = subprocess.run(check, capture_output=True, check=False)
    except OSError:
        return False
    return started.returncode == 0 and (target / "launch.py").is_file()


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
def one_at_a_time(cache: Path) -> Iterator[None]:
    """Let one process build; the kernel drops the lock of one that dies."""
    with (cache / "venv.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waiting for another process that is making the environment")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def sweep(cache: Path, target: Path, checkout: Path) -> None:
    """Remove what killed builds left, and environments whose checkout is gone or long on another lock."""
    for old in cache.glob("venv-*"):
        if old == target or not old.is_dir():
            continue
        try:
            record = old / "made-from/checkout"
            owner = Path(os.fsdecode(record.read_bytes()))
            age = time.time() - record.stat().st_mtime
            is_wanted = owner.exists() and (owner != checkout or age < SUPERSEDED_KEPT_S)
        except OSError:
            is_wanted = False
        if ".new-" in old.name or not is_wanted:
            shutil.rmtree(old, ignore_errors=True)


def build(cache: Path, target: Path, checkout: Path) -> None:
    """Make the environment beside its final place, then rename it there."""
    tell(f"first use: making an environment in {target}")
    # Longer than the final name, so that a script's first line still fits when the name is put in.
    new = Path(tempfile.mkdtemp(prefix=f"{target.name}.new-", dir=cache))
    try:
        step([sys.executable, "-I", "-m", "venv", "--symlinks", new])
        install(new, checkout)
        site_packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(new), "platbase": str(new)}))
        (site_packages / "fumehood-checkout.pth").write_bytes(os.fsencode(checkout / "src") + b"\n")
        (new / "launch.py").write_text(launcher(target, site_packages.relative_to(new), checkout))
        (new / "made-from").mkdir()
        (new / "made-from/checkout").write_bytes(os.fsencode(checkout))
        stamp(new, checkout)
        compile_sources(new, checkout)
        rename_inside(new, target)
        if target.exists():
            target.rename(new / "damaged")
        new.rename(target)
        shutil.rmtree(target / "damaged", ignore_errors=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        raise CannotMakeError(explain(exc)) from exc
    finally:
        shutil.rmtree(new, ignore_errors=True)
    tell("ready")


def explain(exc: OSError | subprocess.CalledProcessError) -> str:
    """Say which step failed and what to try."""
    if isinstance(exc, OSError):
        return f"the environment can't be made: {exc}"
    if "venv" in exc.cmd:
        return f"{sys.executable} can't make one (see above); type: export FUMEHOOD_PYTHON=<another Python>"
    return "the locked packages can't be installed (see above); is the package index reachable from here?"


def step(command: list[str | Path]) -> None:
    """Run one step in a process group of its own, so that an interruption ends its children too.

    Else they would go on writing into a directory that is being removed.
    """
    quiet = {"PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment = os.environ | quiet
    with subprocess.Popen(command, cwd="/", env=environment, stdout=sys.stderr, process_group=0) as process:
        try:
            status = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if status:
        raise subprocess.CalledProcessError(status, command)


def install(new: Path, checkout: Path) -> None:
    """Install both locks: with the test tools there, `make test` works in the hood, without network."""
    tell("installing the locked packages")
    command: list[str | Path] = [new / "bin/python", "-I", "-m", "pip", "install", "-qq"]
    command += ["--require-hashes", "--only-binary=:all:"]
    for lock in ("run", "test"):
        command += ["-r", checkout / f"requirements/{lock}.txt"]
    step(command)


def launcher(target: Path, site_packages: Path, checkout: Path) -> str:
    """Write the program the wrapper starts: `-m` would import runpy and all it drags in.

    The sources come after the standard library, so that no file there can stand in for one of its modules. Nothing
    that is imported is garbage, and looking for some would take a twentieth of the time; the command turns it on again.
    """
    return (
        "import gc, sys\n"
        "gc.disable()\n"
        f"sys.path += [{str(checkout / 'src')!a}, {str(target / site_packages)!a}]\n"
        f"sys.prefix = sys.exec_prefix = {str(target)!a}\n"
        "from fumehood.faces.cli.main import command\n"
        "command()\n"
    )


def compile_sources(new: Path, checkout: Path) -> None:
    """Byte-compile Fumehood where the wrapper looks for it; what does not compile says so when it is run."""
    prefix = f"pycache_prefix={new / 'pycache'}"
    command: list[str | Path] = [new / "bin/python", "-I", "-X", prefix, "-m", "compileall", "-q"]
    subprocess.run([*command, checkout / "src"], capture_output=True, check=False)


def rename_inside(new: Path, target: Path) -> None:
    """Put the final name into the scripts, which pip wrote with the temporary one."""
    for path in [new / "pyvenv.cfg", *(new / "bin").iterdir()]:
        if path.is_file() and not path.is_symlink():
            before = path.read_bytes()
            after = before.replace(os.fsencode(new), os.fsencode(target))
            if after != before and b"\0" not in before:
                path.write_bytes(after)


def stamp(target: Path, checkout: Path) -> None:
    """Remember the times of what it was made from; the wrapper compares them."""
    for name in INPUTS:
        times = (checkout / name).stat()
        remembered = target / "made-from" / Path(name).name
        if not remembered.exists() or remembered.stat().st_mtime_ns != times.st_mtime_ns:
            remembered.touch()
            os.utime(remembered, ns=(times.st_mtime_ns, times.st_mtime_ns))


def mark(cache: Path, target: Path, checkout_as_named: str) -> None:
    """Tell the wrapper, under the name it calls the checkout by, which environment to use."""
    wanted = os.environ.get("FUMEHOOD_PYTHON", "")
    place = Path(f"{cache}/checkouts{checkout_as_named}/.environment")
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(f".environment.{os.getpid()}")
    new.write_text(f"{target.name}\n{wanted}\n", errors="surrogateescape")
    new.replace(place)


def tell(message: str) -> None:
    """Progress, for a person: standard output belongs to the path."""
    print(f"fumehood: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
