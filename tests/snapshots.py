"""Everything about a tree that a command can change and an undo must bring back.

Also a program: run inside the hood, it prints what the command left there.
"""

import hashlib
import json
import os
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

KINDS = {
    stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip

Snapshot = dict[str, list[object]]


def entries(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every entry below a directory, itself first; closed directories are not looked into."""
    waiting = [""]
    yield ".", os.lstat(top)
    while waiting:
        here = waiting.pop()
        for name in os.listdir(os.path.join(top, here)):
            path = os.path.join(here, name)
            found = os.lstat(os.path.join(top, path))
            yield path, found
            if stat.S_ISDIR(found.st_mode) and found.st_mode & 0o500 == 0o500:
                waiting.append(path)


def snapshot(top: "str | os.PathLike[str]") -> Snapshot:
    """Path to kind, mode, size, time, content, target, attributes, owner, and the paths that share its inode.

    Of directories, sizes and times are left out: they follow from what was done in them. A file that its
    owner may not read counts as unreadable, even to root.
    """
    at = os.fspath(top)
    found = sorted(entries(at))
    linked: dict[int, list[str]] = {}
    for path, status in found:
        if not stat.S_ISDIR(status.st_mode) and status.st_nlink > 1:
            linked.setdefault(status.st_ino, []).append(path)
    return {path: described(f"{at}/{path}", status, linked) for path, status in found}


def described(path: str, status: os.stat_result, linked: dict[int, list[str]]) -> list[object]:
    is_directory, is_file = stat.S_ISDIR(status.st_mode), stat.S_ISREG(status.st_mode)
    is_readable = bool(status.st_mode & 0o400)
    content = ""
    if is_file and is_readable:
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()[:16]
    return [
        KINDS[stat.S_IFMT(status.st_mode)],
        oct(stat.S_IMODE(status.st_mode)),
        0 if is_directory else status.st_size,
        0 if is_directory else status.st_mtime_ns,
        content,
        os.readlink(path) if stat.S_ISLNK(status.st_mode) else "",
        attributes(path) if is_readable else [],
        [status.st_uid, status.st_gid],
        [] if is_directory else linked.get(status.st_ino, []),
    ]


def attributes(path: str) -> list[list[str]]:
    """Those that a person or an overlay sets; the system's own are none of our business."""
    names = sorted(name for name in os.listxattr(path, follow_symlinks=False) if not name.startswith("security."))
    return [[name, os.getxattr(path, name, follow_symlinks=False).hex()] for name in names]


def told(top: "str | os.PathLike[str]") -> str:
    """A command that prints the snapshot of a tree, for the end of a shell line.

    It needs nothing that only the one who runs the tests may read: their interpreter, or the checkout.
    """
    python = next((path for path in ("/usr/bin/python3",) if os.access(path, os.X_OK)), sys.executable)
    source = shlex.quote(Path(__file__).read_text(encoding="utf-8"))
    return f"{python} -I -S -c {source} {shlex.quote(os.fspath(top))}"


def heard(output: str) -> Snapshot:
    """Read what such a command printed."""
    return json.loads(output)


if __name__ == "__main__":
    print(json.dumps(snapshot(sys.argv[1])))
