"""Get what is not ours: Claude Code and the agents' frameworks from PyPI, Codex, Gemini CLI and the MCP tools from npm.

Each goes into a directory of its own in the cache.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
LOCK = CHECKOUT / "requirements/clients.txt"
FRAMEWORKS = CHECKOUT / "requirements/adapters.txt"
NEWER_DEEPAGENTS = CHECKOUT / "requirements/deepagents.txt"
HARBOR = CHECKOUT / "requirements/harbor.txt"
PACKAGES = CHECKOUT / "tools/clients/package.json"


def cache() -> Path:
    """Where what can be made again is kept."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named if os.path.isabs(named) else Path.home() / ".cache", "fumehood")


def claude() -> Path:
    """Return the real Claude Code, installed if needed."""
    place = _installed(_place("claude", LOCK), LOCK)
    (found,) = place.glob("lib/python*/site-packages/claude_agent_sdk/_bundled/claude")
    return found


def frameworks() -> Path:
    """Return the Python of the environment that has the agents' frameworks and their suites, installed if needed."""
    return _installed(_place("frameworks", FRAMEWORKS), FRAMEWORKS) / "bin/python"


def has_frameworks() -> bool:
    """Tell whether that environment is there."""
    return _place("frameworks", FRAMEWORKS).is_dir()


def newer_deepagents() -> Path:
    """Return a directory that has the newer deepagents alone, to be found before the frameworks' one."""
    place = _place("deepagents", NEWER_DEEPAGENTS)
    if not place.is_dir():
        new = _fresh(place)
        _install(frameworks(), NEWER_DEEPAGENTS, "--no-deps", "--target", new)
        _finish(new, place)
    return place


def harbor() -> Path:
    """Return the Python of the environment that has Harbor, installed if needed; Harbor needs Python 3.12."""
    python = newer_python()
    if python is None:
        raise SystemExit("Harbor needs Python 3.12 or newer, and there is none; FUMEHOOD_TESTS_PYTHON names one")
    return _installed(_place("harbor", HARBOR), HARBOR, python) / "bin/python"


def newer_python() -> str | None:
    """Return a Python of 3.12 or newer that works, if there is one."""
    named = os.environ.get("FUMEHOOD_TESTS_PYTHON", "")
    check = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))"
    for name in filter(None, (named, sys.executable, "python3.12", "python3.13", "python3.14", "python3")):
        # Some are only there to say that they are not.
        found = shutil.which(name)
        if found and subprocess.run([found, "-c", check], capture_output=True, check=False).returncode == 0:
            return found
    return None


def node_tools() -> Path:
    """Return the directory of what npm has, its own Node among it: at least 22 is needed, whatever is here."""
    place = _place("node", PACKAGES)
    if not place.is_dir():
        npm = shutil.which("npm")
        if npm is None:
            raise SystemExit("npm is needed for this, of Node 18 or newer")
        new = _fresh(place)
        new.mkdir()
        shutil.copy(PACKAGES, new)
        line = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
        subprocess.run(line, cwd=new, check=True, stdout=sys.stderr)
        _finish(new, place)
    return place / "node_modules"


def node_environment(tools: Path) -> dict[str, str]:
    """Return the environment in which those tools find their Node."""
    return os.environ | {"PATH": f"{tools / 'node/bin'}:{tools / '.bin'}:{os.environ['PATH']}"}


def _installed(place: Path, lock: Path, python: str = sys.executable) -> Path:
    if place.is_dir():
        return place
    new = _fresh(place)
    subprocess.run([python, "-m", "venv", "--symlinks", new], check=True)
    _install(new / "bin/python", lock)
    _finish(new, place)
    return place


def _install(python: Path, lock: Path, *options: str | Path) -> None:
    # What is never imported need not be compiled: that takes a third of the time.
    line = [python, "-I", "-m", "pip", "install", "-qq", "--require-hashes", "--only-binary=:all:", "--no-compile"]
    subprocess.run([*line, *options, "-r", lock], check=True, stdout=sys.stderr)


def _finish(new: Path, place: Path) -> None:
    try:
        new.rename(place)
    except OSError:
        if not place.is_dir():  # else another process was faster
            raise
        shutil.rmtree(new, ignore_errors=True)


def _place(name: str, made_from: Path) -> Path:
    return cache() / f"clients-{name}-{hashlib.sha256(made_from.read_bytes()).hexdigest()[:12]}"


def _fresh(place: Path) -> Path:
    new = place.with_name(f"{place.name}.new-{os.getpid()}")
    shutil.rmtree(new, ignore_errors=True)
    new.parent.mkdir(parents=True, exist_ok=True)
    print(f"getting {place.name}", file=sys.stderr, flush=True)
    return new
