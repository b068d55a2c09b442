"""The system calls that change something on a disk, by what they do: each machine has its own calls for it."""

from typing import NamedTuple


class Calls(NamedTuple):
    """The calls that have one effect: those of every machine, and those that x86_64 has besides.

    Where a program calls the C library's `chmod`, x86_64 sees `chmod`, and aarch64, which never had it, `fchmodat`.
    """

    everywhere: tuple[str, ...]
    on_x86_64: tuple[str, ...] = ()


# A change, or a demand that one must have reached the disk.
EFFECTS = {
    "create": Calls(("openat", "openat2"), ("open", "creat")),
    "rename": Calls(("renameat", "renameat2"), ("rename",)),
    "link": Calls(("linkat",), ("link",)),
    "symlink": Calls(("symlinkat",), ("symlink",)),
    "make a directory": Calls(("mkdirat",), ("mkdir",)),
    "make a node": Calls(("mknodat",), ("mknod",)),
    "remove": Calls(("unlinkat",), ("unlink", "rmdir")),
    "set a mode": Calls(("fchmod", "fchmodat", "fchmodat2"), ("chmod",)),
    "set an owner": Calls(("fchown", "fchownat"), ("chown", "lchown")),
    "set times": Calls(("utimensat",), ("utime", "utimes", "futimesat")),
    "set an attribute": Calls(("setxattr", "lsetxattr", "fsetxattr", "setxattrat")),
    "remove an attribute": Calls(("removexattr", "lremovexattr", "fremovexattr", "removexattrat")),
    "set a size": Calls(("truncate", "ftruncate", "fallocate")),
    "write": Calls(("write", "writev", "pwrite64", "pwritev", "pwritev2")),
    "copy": Calls(("copy_file_range", "sendfile", "splice")),
    "flush": Calls(("fsync", "fdatasync", "sync_file_range", "syncfs", "sync", "msync")),
}
EFFECT_OF = {call: effect for effect, calls in EFFECTS.items() for group in calls for call in group}
_OPENING = ("open", "openat", "openat2")
_CREATING = ("O_CREAT", "O_TRUNC", "O_TMPFILE")


def call_in(line: str) -> str:
    """The name of the call that a line of a trace tells of."""
    return line.partition("(")[0]


def effect_in(line: str) -> str | None:
    """What the call in a line of a trace does, or None where it only reads."""
    call = call_in(line)
    if call in _OPENING and not any(flag in line for flag in _CREATING):
        return None
    return EFFECT_OF.get(call)
