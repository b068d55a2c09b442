"""Root trees for tests: a small one made of Debian's static busybox, and this machine's Python put into it."""

import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

from conftest import need

VERSION = "3.20.3"
BUSYBOX = ("/bin/busybox", "/usr/bin/busybox")
FOLDERS = (
    "bin", "dev", "etc/apk/keys", "home", "lib", "proc", "root", "run", "sbin", "tmp", "usr/bin", "usr/sbin", "var/tmp",
)  # fmt: skip
# Tells what it was given, and puts what it was asked for into the tree from the repository that it reads there.
APK = """#!/bin/sh
# A package manager in a few lines: `apk add [--options] NAME…`, from the first line of /etc/apk/repositories.
set -e
repository=$(head -n 1 /etc/apk/repositories)
echo "$@" >> /var/tmp/apk-calls
echo "$(id -u) $(cat /proc/1/comm)" > /var/tmp/apk-user
wget -q -O /tmp/APKINDEX "$repository/APKINDEX"
for word in "$@"; do
    case $word in add|-*) continue ;; esac
    grep -qx "$word" /tmp/APKINDEX || { echo "ERROR: unable to select packages: $word (no such package)" >&2; exit 1; }
    wget -q -O /tmp/package.tar "$repository/$word.tar"
    tar -C / -xf /tmp/package.tar
    echo "$word" >> /etc/apk/world
done
"""


@cache
def busybox() -> str:
    """A static busybox: the only program that runs in an empty tree."""
    found = next((path for path in BUSYBOX if os.access(path, os.X_OK)), None)
    need(found is not None, "there is no busybox: apt install busybox-static")
    assert found is not None
    loaded = subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout
    need("=>" not in loaded, "busybox is not static: apt install busybox-static")
    return found


@cache
def applets() -> tuple[str, ...]:
    listed = subprocess.run([busybox(), "--list"], capture_output=True, text=True, check=True)
    return tuple(name for name in listed.stdout.split() if name != "busybox")


def make_tree(at: Path, version: str = VERSION) -> Path:
    """Unpack what an Alpine mini root file system has, as far as the tests look: busybox, and an apk."""
    for folder in FOLDERS:
        (at / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(busybox(), at / "bin/busybox")
    for name in applets():
        (at / "bin" / name).symlink_to("/bin/busybox")
    (at / "etc/alpine-release").write_text(f"{version}\n")
    (at / "etc/os-release").write_text(f'NAME="Alpine Linux"\nID=alpine\nPRETTY_NAME="Alpine Linux v{version}"\n')
    (at / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (at / "etc/apk/world").write_text("")
    branch = "v" + ".".join(version.split(".")[:2])
    lines = [f"https://dl-cdn.alpinelinux.org/alpine/{branch}/{part}\n" for part in ("main", "community")]
    (at / "etc/apk/repositories").write_text("".join(lines))
    apk = at / "sbin/apk"
    apk.write_text(APK)
    apk.chmod(0o755)
    return at


def _libraries(programs: list[str]) -> set[str]:
    """Every shared library that programs load, the loader included."""
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    words = (word for line in listed.stdout.splitlines() for word in line.split())
    return {word for word in words if word.startswith("/") and not word.endswith(":")}


def add_program(tree: Path, name: str) -> None:
    """Put a program of this machine's into a tree, with its libraries."""
    program = shutil.which(name)
    need(program is not None, f"there is no {name} here")
    assert program is not None
    for path in (program, *_libraries([program])):
        place = tree / (f"usr/bin/{name}" if path == program else path[1:])
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), place)


def add_python(tree: Path) -> None:
    """Put this machine's Python with pip into a tree, as /usr/bin/python3 and /usr/bin/pip."""
    program = os.path.realpath(sys.executable)
    paths = sysconfig.get_paths()
    stdlib = Path(paths["stdlib"])
    dynamic = [str(path) for path in (stdlib / "lib-dynload").glob("*.so")]
    for library in _libraries([program, *dynamic]):
        place = tree / library[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
    target = tree / str(stdlib)[1:]
    unused = ("test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "unittest")
    ignored = shutil.ignore_patterns(*unused, "__pycache__", "config-*", "*-packages", "pydoc_data", "curses")
    shutil.copytree(stdlib, target, ignore=ignored, symlinks=True)
    pip = Path(paths["purelib"], "pip")
    need(pip.is_dir(), "this Python has no pip")
    shutil.copytree(pip, target / "pip", ignore=shutil.ignore_patterns("__pycache__"))
    inside = tree / program[1:]
    inside.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, inside)
    (tree / "usr/bin/python3").unlink(missing_ok=True)
    if inside != tree / "usr/bin/python3":
        (tree / "usr/bin/python3").symlink_to(program)
    pip_program = tree / "usr/bin/pip"
    pip_program.write_text('#!/bin/sh\nexec python3 -m pip "$@"\n')
    pip_program.chmod(0o755)
