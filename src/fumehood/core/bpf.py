"""Write a table of system calls that are not made as a program for the kernel's filter.

A program is a list of instructions of eight bytes: what to do, how far to jump if it holds and if not, and a number.
Chosen over libseccomp's bindings: those on the index are unmaintained or need the C library and a compiler to install,
and would be loaded before every command, while this is a table, some tests against the kernel, and the lines below.
"""

from __future__ import annotations

import struct

from fumehood.core.syscalls import ARCHITECTURES, ENOSYS, NEWEST, RULES, X32_BIT, X86_64, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.syscalls import Argument, Rule

_LOAD, _AND = 0x20, 0x54  # a word of what is known of the call; its bits
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_RETURN = 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_FEW = 2  # calls that are not worth another half
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # where these words lie; both machines put the lower half first

Instruction = tuple[int, int, int, int]


def program(machine: str, more: Sequence[Rule] = ()) -> bytes:
    """Return the filter for a machine: the table's rules, and more of them."""
    lines: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        # A foreign ABI would pass under other numbers.
        *_refused_unless((_IF_EQUAL, ARCHITECTURES[machine])),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == X86_64:
        lines += _refused_if((_IF_AT_LEAST, X32_BIT), ENOSYS)
    lines += _refused_if((_IF_AT_LEAST, NEWEST), ENOSYS)
    bodies: dict[int, list[Instruction]] = {}
    for rule in (*RULES, *more):
        for call in rule.calls:
            found = number(call, machine)
            if found is not None:
                bodies.setdefault(found, []).extend(_body(rule))
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


def _body(rule: Rule) -> list[Instruction]:
    if not rule.when:
        return [(_RETURN, 0, 0, _REFUSE | rule.error)]
    return [line for argument in rule.when for line in _argument(argument, rule.error)]


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
        lines += _refused_if((kind, value), error)
    return lines


def _refused_if(condition: tuple[int, int], error: int) -> list[Instruction]:
    kind, value = condition
    return [(kind, 0, 1, value), (_RETURN, 0, 0, _REFUSE | error)]


def _refused_unless(condition: tuple[int, int]) -> list[Instruction]:
    kind, value = condition
    return [(kind, 1, 0, value), (_RETURN, 0, 0, _REFUSE | ENOSYS)]
