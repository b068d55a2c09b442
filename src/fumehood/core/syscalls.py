"""The system calls that no command needs and that attackers do, and those that are only pretended: with reasons.

Everything not listed is allowed; a call that the kernel gained after this was written does not exist (ENOSYS), so
that programs fall back to what they did before.
"""

from __future__ import annotations

import struct

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
NO_ERROR = 0  # the call is not made, and the program is told that it was

X86_64, AARCH64 = "x86_64", "aarch64"
ARCHITECTURES = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}

NEWEST = 471  # the first number that no kernel known to us uses
X32_BIT = 0x40000000  # the second ABI of x86_64: the same calls under other numbers

# Every flag of clone and unshare that makes a namespace.
_NEW_NAMESPACES = 0x7E020080
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
# Netlink's, and those of IP that every kernel has: ping for IPv6, and TCP by several ways at once, are beyond them.
_PROTOCOLS = (*range(32), 58, 262)
_ROOT, _UNCHANGED = 0, 0xFFFFFFFF  # ids that a change of owner means as they are
_DATAGRAM, _RAW, _TYPE = 2, 3, 0xF  # among Unix sockets, the second is another name for the first


class Argument(Value):
    """A condition on an argument's lower half, which is all that the kernel looks at in these calls.

    `test` is "any bit of", "one of" or "none of" the values; under `mask` where one is given.
    """

    index: int
    test: str
    values: tuple[int, ...]
    mask: int = 0


class CallRule(Value):
    """Calls that are not made, but answered with `error`: always, or when any of the arguments says so."""

    calls: tuple[str, ...]
    error: int
    why: str
    when: tuple[Argument, ...] = ()


def _when(index: int, test: str, *values: int, mask: int = 0) -> Argument:
    return Argument(index=index, test=test, values=values, mask=mask)


def _rule(calls: str, error: int, why: str, *when: Argument) -> CallRule:
    return CallRule(calls=tuple(calls.split()), error=error, why=why, when=when)


RULES: tuple[CallRule, ...] = (
    _rule("io_uring_setup io_uring_enter io_uring_register", ENOSYS,
          "does what other calls do, unseen by any filter, and broke often"),
    _rule("keyctl add_key request_key", ENOSYS,
          "keyrings belong to the person, and are not kept apart by namespaces"),
    _rule("bpf perf_event_open", EPERM, "code in the kernel; looking into others' work"),
    _rule("userfaultfd", EPERM, "holds up the kernel at a chosen moment: used by many attacks"),
    _rule("memfd_secret", ENOSYS, "memory that nobody can count; nothing needs it"),
    _rule("io_setup", ENOSYS,
          "of these there are so many for the whole machine, its databases too; programs do without"),
    _rule("kexec_load kexec_file_load reboot", EPERM, "another kernel"),
    _rule("init_module finit_module delete_module", EPERM, "code in the kernel"),
    _rule("mount umount2 pivot_root mount_setattr open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick",
          EPERM, "what is mounted is the sandbox"),
    _rule("setns", EPERM, "other namespaces"),
    _rule("unshare", EPERM, "a new user namespace has all capabilities", _when(0, "any bit of", _NEW_NAMESPACES)),
    _rule("clone", EPERM, "a new user namespace has all capabilities", _when(0, "any bit of", _NEW_NAMESPACES & ~0x80)),
    _rule("clone3", ENOSYS, "its flags can't be seen by a filter; libraries fall back to clone"),
    _rule("ptrace", EPERM, "the sandbox's own first process is not the command's", _when(1, "one of", 1)),
    _rule("ioctl", EPERM, "types into the person's terminal", _when(1, "one of", _TIOCSTI, _TIOCLINUX)),
    _rule("ioctl", EPERM, "has the kernel load a protocol for modems, which broke often",
          _when(1, "one of", _TIOCSETD)),
    _rule("socket socketpair", EAFNOSUPPORT,
          "only these are kept apart by namespaces: through others (vsock) lies the machine's host",
          _when(0, "none of", _UNIX, _INET, _INET6, _NETLINK)),
    _rule("socket", EAFNOSUPPORT,
          "has the kernel load protocols that hardly anybody uses, and that broke often (SCTP, DCCP, SMC)",
          _when(2, "none of", *_PROTOCOLS)),
    _rule("open_by_handle_at", EPERM, "opens files without a path"),
    _rule("swapon swapoff acct quotactl quotactl_fd settimeofday clock_settime vhangup iopl ioperm nfsservctl"
          " lookup_dcookie uselib", EPERM, "for who runs the machine"),
    _rule("syslog", EPERM, "the kernel's log tells where it lies"),
)  # fmt: skip

# Where no view cuts the host's sockets, the command gets none that could reach them: no Unix socket but pairs, and of
# these none of datagrams, which can be connected again.
NO_UNIX_SOCKETS: tuple[CallRule, ...] = (
    _rule("socket", EPERM, "the host's sockets can't be told from the command's own here", _when(0, "one of", _UNIX)),
    _rule("socketpair", EPERM, "a pair of datagram sockets can be connected to the host's",
          _when(1, "one of", _DATAGRAM, _RAW, mask=_TYPE)),
)  # fmt: skip

# For a command that is root inside, where no id but 0 is mapped: what asks for another owner succeeds and does nothing,
# so that archives unpack. What asks for root, or for no change, is real, and so are its errors.
PRETENDED_OWNERS: tuple[CallRule, ...] = tuple(
    _rule(calls, NO_ERROR, "there is no other owner to be had",
          *(_when(index, "none of", _ROOT, _UNCHANGED) for index in ids))
    for calls, ids in (("chown fchown lchown", (1, 2)), ("fchownat", (2, 3)))
)  # fmt: skip

# On x86_64 and on aarch64; None where there is no such call.
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "chown": (92, None), "clock_settime": (227, 112),
    "clone": (56, 220), "clone3": (435, 435), "delete_module": (176, 106), "fchown": (93, 55), "fchownat": (260, 54),
    "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430),
    "fspick": (433, 433), "init_module": (175, 105), "io_setup": (206, 0),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioctl": (16, 29),
    "ioperm": (173, None), "iopl": (172, None), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "lchown": (94, None), "lookup_dcookie": (212, 18), "memfd_secret": (447, 447),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429),
    "nfsservctl": (180, 42), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "open_tree_attr": (467, 467), "perf_event_open": (298, 241), "pivot_root": (155, 41), "ptrace": (101, 117),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142), "request_key": (249, 218),
    "setns": (308, 268), "settimeofday": (164, 170), "socket": (41, 198), "socketpair": (53, 199),
    "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97),
    "uselib": (134, None), "userfaultfd": (323, 282), "vhangup": (153, 58),
}  # fmt: skip


def number(call: str, machine: str) -> int | None:
    """Return a call's number, or None where the machine has no such call."""
    return NUMBERS[call][0 if machine == X86_64 else 1]


# The table as a program for the kernel's filter.
#
# A program is a list of instructions of eight bytes: what to do, how far to jump if it holds and if not, and a number.
# Chosen over libseccomp's bindings: those on the index are unmaintained or need the C library and a compiler to
# install, and would be loaded before every command, while this is a table, some tests against the kernel, and the
# lines below.

_LOAD, _AND = 0x20, 0x54  # a word of what is known of the call; its bits
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_RETURN = 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_FEW = 2  # calls that are not worth another half
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # where these words lie; both machines put the lower half first

Instruction = tuple[int, int, int, int]


def program(machine: str, more: Sequence[CallRule] = ()) -> bytes:
    """Return the filter for a machine: the table's rules, and more of them."""
    lines: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        # A foreign ABI would pass under other numbers.
        (_IF_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _REFUSE | ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == X86_64:
        lines += _refused_if(_IF_AT_LEAST, X32_BIT, ENOSYS)
    lines += _refused_if(_IF_AT_LEAST, NEWEST, ENOSYS)
    bodies: dict[int, list[Instruction]] = {}
    for rule in (*RULES, *more):
        for call in rule.calls:
            if (call_number := number(call, machine)) is None:
                continue
            body = bodies.setdefault(call_number, [])
            if not rule.when:
                body.append((_RETURN, 0, 0, _REFUSE | rule.error))
            for argument in rule.when:
                body += _argument(argument, rule.error)
    lines += _tree(sorted(bodies.items()))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _tree(calls: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Search the call's number by halves: the kernel goes through the program for every call when it is loaded."""
    if len(calls) > _FEW:
        middle = len(calls) // 2
        before, after = _tree(calls[:middle]), _tree(calls[middle:])
        return [(_IF_AT_LEAST, len(before), 0, calls[middle][0]), *before, *after]
    lines: list[Instruction] = []
    for call, body in calls:
        whole = [*body, (_RETURN, 0, 0, _ALLOW)]
        lines += [(_IF_EQUAL, 0, len(whole), call), *whole]
    return [*lines, (_RETURN, 0, 0, _ALLOW)]


def _argument(argument: Argument, error: int) -> list[Instruction]:
    lines: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument.index)]
    if argument.mask:
        lines.append((_AND, 0, 0, argument.mask))
    if argument.test == "none of":
        count = len(argument.values)
        # Each value found jumps over the refusal at the end.
        lines += [(_IF_EQUAL, count - place, 0, value) for place, value in enumerate(argument.values)]
        return [*lines, (_RETURN, 0, 0, _REFUSE | error)]
    kind = _IF_ANY_BIT if argument.test == "any bit of" else _IF_EQUAL
    for value in argument.values:
        lines += _refused_if(kind, value, error)
    return lines


def _refused_if(kind: int, value: int, error: int) -> list[Instruction]:
    return [(kind, 0, 1, value), (_RETURN, 0, 0, _REFUSE | error)]
