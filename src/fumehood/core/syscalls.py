"""The filter of system calls: a table of the calls that are refused or only pretended, with reasons, and its compiler.

Attackers need the refused calls, commands don't. All other calls are allowed. Calls that are newer than this table do
not exist (ENOSYS), so programs do what they did before.
"""

from __future__ import annotations

import struct

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EPERM, EINVAL, ENOSYS, EAFNOSUPPORT = 1, 22, 38, 97
NO_ERROR = 0  # the call is not made, but reported as successful

X86_64, AARCH64 = "x86_64", "aarch64"
ARCHITECTURES = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}

FIRST_UNKNOWN = 471  # no kernel used this number, or a higher one, when this table was written
X32_BIT = 0x40000000  # the second ABI of x86_64: the same calls under other numbers

# Every flag of clone and unshare that makes a namespace.
_NEW_NAMESPACES = 0x7E020080
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_F_SETLEASE = 1024
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
# Those of netlink, and those of IP that every kernel has: besides the first 32, ping for IPv6 and multipath TCP.
_PROTOCOLS = (*range(32), 58, 262)
_ROOT, _UNCHANGED = 0, 0xFFFFFFFF  # a change of owner to these ids is a real one
_DATAGRAM, _RAW, _TYPE_MASK = 2, 3, 0xF  # for Unix sockets, raw is the same as datagram


class Condition(Value):
    """A condition on one argument of a call: on its lower half, because the kernel ignores the rest in these calls.

    `test` is "any bit of", "one of" or "none of" the values. Before the test, a mask is applied, if there is one.
    """

    argument: int
    test: str
    values: tuple[int, ...]
    mask: int = 0


class CallRule(Value):
    """Calls that are not made, but answered with `error`: always, or if any of the conditions is true."""

    calls: tuple[str, ...]
    error: int
    reason: str
    conditions: tuple[Condition, ...] = ()


def _if(argument: int, test: str, *values: int, mask: int = 0) -> Condition:
    return Condition(argument=argument, test=test, values=values, mask=mask)


def _rule(calls: str, error: int, reason: str, *conditions: Condition) -> CallRule:
    return CallRule(calls=tuple(calls.split()), error=error, reason=reason, conditions=conditions)


RULES: tuple[CallRule, ...] = (
    _rule("io_uring_setup io_uring_enter io_uring_register", ENOSYS,
          "does the work of other calls, which a filter does not see, and had many holes"),
    _rule("keyctl add_key request_key", ENOSYS,
          "keyrings belong to the person, and no namespace separates them"),
    _rule("bpf perf_event_open", EPERM, "puts code into the kernel; watches other processes"),
    _rule("userfaultfd", EPERM, "stops the kernel at a chosen moment, which many attacks use"),
    _rule("memfd_secret", ENOSYS, "memory that no limit counts; nothing needs it"),
    _rule("io_setup", ENOSYS,
          "the whole machine, with its databases, shares a limited number of these; programs work without"),
    _rule("kexec_load kexec_file_load reboot", EPERM, "starts another kernel"),
    _rule("init_module finit_module delete_module", EPERM, "puts code into the kernel"),
    _rule("mount umount2 pivot_root mount_setattr open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick",
          EPERM, "the sandbox is made of mounts"),
    _rule("setns", EPERM, "enters other namespaces"),
    _rule("unshare", EPERM, "a new user namespace has all capabilities", _if(0, "any bit of", _NEW_NAMESPACES)),
    _rule("clone", EPERM, "a new user namespace has all capabilities", _if(0, "any bit of", _NEW_NAMESPACES & ~0x80)),
    _rule("clone3", ENOSYS, "a filter can't see its flags; libraries use clone instead"),
    _rule("ptrace", EPERM, "the first process of the sandbox does not belong to the command", _if(1, "one of", 1)),
    _rule("ioctl", EPERM, "types into the person's terminal", _if(1, "one of", _TIOCSTI, _TIOCLINUX)),
    _rule("ioctl", EPERM, "makes the kernel load a protocol for modems, which had many holes",
          _if(1, "one of", _TIOCSETD)),
    _rule("fcntl", EINVAL, "a lease makes every program outside that opens the file wait",
          _if(1, "one of", _F_SETLEASE)),
    _rule("socket socketpair", EAFNOSUPPORT,
          "namespaces separate only these: others (vsock) lead to the machine's host",
          _if(0, "none of", _UNIX, _INET, _INET6, _NETLINK)),
    _rule("socket", EAFNOSUPPORT,
          "makes the kernel load protocols that few use and that had many holes (SCTP, DCCP, SMC)",
          _if(2, "none of", *_PROTOCOLS)),
    _rule("open_by_handle_at", EPERM, "opens files without a path"),
    _rule("swapon swapoff acct quotactl quotactl_fd settimeofday clock_settime vhangup iopl ioperm nfsservctl"
          " lookup_dcookie uselib", EPERM, "for administrators of the machine"),
    _rule("syslog", EPERM, "the kernel's log reveals the kernel's addresses"),
)  # fmt: skip

# For commands that see the host's sockets, because there is no view in between. They get no socket that could reach
# these: of Unix sockets, only pairs, and no pairs of datagram sockets, which can be connected again.
NO_UNIX_SOCKETS: tuple[CallRule, ...] = (
    _rule("socket", EPERM, "the filter can't distinguish the host's sockets from the command's own",
          _if(0, "one of", _UNIX)),
    _rule("socketpair", EPERM, "a pair of datagram sockets can be connected to the host's",
          _if(1, "one of", _DATAGRAM, _RAW, mask=_TYPE_MASK)),
)  # fmt: skip

# For a command that is root inside, where no id but 0 is mapped. A change to another owner does nothing and succeeds:
# so archives can be unpacked. A change to root, or no change, is real, and so are its errors.
PRETENDED_OWNERS: tuple[CallRule, ...] = tuple(
    _rule(calls, NO_ERROR, "no other owner is possible",
          *(_if(index, "none of", _ROOT, _UNCHANGED) for index in ids))
    for calls, ids in (("chown fchown lchown", (1, 2)), ("fchownat", (2, 3)))
)  # fmt: skip

# The numbers on x86_64 and on aarch64; None if there is no such call.
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "chown": (92, None), "clock_settime": (227, 112),
    "clone": (56, 220), "clone3": (435, 435), "delete_module": (176, 106), "fchown": (93, 55), "fchownat": (260, 54),
    "fcntl": (72, 25),
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


def call_number(call: str, machine: str) -> int | None:
    """Return a call's number, or None if the machine has no such call."""
    return NUMBERS[call][0 if machine == X86_64 else 1]


# The compiler: it makes a program for the kernel's filter from the table.
#
# A program is a list of instructions of eight bytes: what to do, how far to jump if a test is true and if it is false,
# and a number. libseccomp's bindings are not used: those on the index are unmaintained, or need the C library and a
# compiler to install, and would be loaded before every command. This is a table, some tests against the kernel, and the
# lines below.

_LOAD, _AND = 0x20, 0x54  # load a word of the call's data; apply a mask to it
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_RETURN = 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_MAX_LINEAR = 2  # calls that are searched one by one
# Where these words are in the call's data. On both machines, the lower half of an argument comes first.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

Instruction = tuple[int, int, int, int]


def filter_program(machine: str, extra_rules: Sequence[CallRule] = ()) -> bytes:
    """Return the filter for a machine: the rules of the table, and extra ones."""
    instructions: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        # A foreign ABI has the same calls under other numbers.
        (_IF_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _REFUSE | ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == X86_64:
        instructions += _refuse_if(_IF_AT_LEAST, X32_BIT, ENOSYS)
    instructions += _refuse_if(_IF_AT_LEAST, FIRST_UNKNOWN, ENOSYS)
    bodies: dict[int, list[Instruction]] = {}
    for rule in (*RULES, *extra_rules):
        for call in rule.calls:
            number = call_number(call, machine)
            if number is None:
                continue
            body = bodies.setdefault(number, [])
            if not rule.conditions:
                body.append((_RETURN, 0, 0, _REFUSE | rule.error))
            for condition in rule.conditions:
                body += _refuse_on(condition, rule.error)
    instructions += _search(sorted(bodies.items()))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _search(calls: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Find a call's number by binary search: when it loads the filter, the kernel tries the filter with every call."""
    if len(calls) > _MAX_LINEAR:
        middle = len(calls) // 2
        lower, upper = _search(calls[:middle]), _search(calls[middle:])
        return [(_IF_AT_LEAST, len(lower), 0, calls[middle][0]), *lower, *upper]
    instructions: list[Instruction] = []
    for number, body in calls:
        whole_body = [*body, (_RETURN, 0, 0, _ALLOW)]
        instructions += [(_IF_EQUAL, 0, len(whole_body), number), *whole_body]
    return [*instructions, (_RETURN, 0, 0, _ALLOW)]


def _refuse_on(condition: Condition, error: int) -> list[Instruction]:
    instructions: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * condition.argument)]
    if condition.mask:
        instructions.append((_AND, 0, 0, condition.mask))
    if condition.test == "none of":
        count = len(condition.values)
        # Each equal value jumps over the refusal at the end.
        instructions += [(_IF_EQUAL, count - index, 0, value) for index, value in enumerate(condition.values)]
        return [*instructions, (_RETURN, 0, 0, _REFUSE | error)]
    test = _IF_ANY_BIT if condition.test == "any bit of" else _IF_EQUAL
    for value in condition.values:
        instructions += _refuse_if(test, value, error)
    return instructions


def _refuse_if(test: int, value: int, error: int) -> list[Instruction]:
    return [(test, 0, 1, value), (_RETURN, 0, 0, _REFUSE | error)]
