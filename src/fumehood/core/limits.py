"""What is told when a run reaches one of its limits (`core/policy.py` has them)."""

from __future__ import annotations

from fumehood.core.report import Blocked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_OVERFLOW = ("Value too large for", "EOVERFLOW")  # as the C libraries and as Node say it
_QUOTA = ("Disk quota exceeded", "EDQUOT")
_FULL = ("No space left on device", "ENOSPC")
_FAR_FROM_FULL = 1 << 30  # bytes that nobody fills and frees without being seen
_MOST_LINES = 20  # complaints read
LOOKED_AT = 1 << 16  # characters of the end, where a failure is told

MEMORY, PROCESSES, CPU, FILES, FILE_SIZE, WRITTEN = "memory", "processes", "cpu", "files", "file_size", "written"
OUTPUT, TIME = "output", "time"
# What the end of a run needs of the disk that holds our state: journal, report, places for what is held.
END_BYTES, END_ENTRIES = 2 << 20, 256
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_TIMES = (("day", 86_400), ("hour", 3_600), ("minute", 60))
_SIZES = (MEMORY, FILE_SIZE, WRITTEN, OUTPUT)
_ENDED = "the command was ended and its changes are held"
_EFFECTS = {
    FILES: "a process could open no more files", FILE_SIZE: "a file could grow no further",
    OUTPUT: "the rest was not kept", **dict.fromkeys((MEMORY, PROCESSES, CPU, WRITTEN, TIME), _ENDED),
}  # fmt: skip
_KEYS = {OUTPUT: "output_limit", TIME: "timeout"}


def hit(name: str, amount: float) -> Blocked:
    """Tell that a limit was reached, what that did, and where it is set."""
    key = _KEYS.get(name, f"limits.{name}")
    return Blocked(
        what="limit", detail=f"{name.replace('_', ' ')}: {amount_told(name, amount)}",
        hint=f"{_EFFECTS[name]}; to allow more, set {key} (fumehood config path)",
    )  # fmt: skip


def disk_full(has: str) -> Blocked:
    """Tell that a run was ended because it would have taken the last that the disk has on which its layers are."""
    hint = f"{_ENDED}; fumehood clean frees what is no longer needed"
    return Blocked(what="limit", detail=f"written: the disk has {has}", hint=hint)


def may_be_cut_off(complaints: str, free: int, lacking: str) -> str:
    """Say why what a command wrote may not be whole, though it ended by itself; nothing where the disk had room.

    `lacking` is what its layers' disk lacks now. Where that has room again, what the command complains of tells,
    unless there is so much that it must mean another disk.
    """
    said = complaints[-LOOKED_AT:]
    if not lacking and any(words in said for words in _QUOTA):
        lacking = "the command met a quota of the disk"
    if not lacking and free < _FAR_FROM_FULL and any(words in said for words in _FULL):
        lacking = "the command found no space left"
    return f"{lacking}, so what it wrote may not be whole" if lacking else ""


def machine_full(left: int) -> Blocked:
    """Tell that a run was ended because the machine's memory came to its end, whoever had taken it."""
    hint = f"{_ENDED}; close other programs, or run fewer commands at once"
    return Blocked(what="limit", detail=f"memory: the machine has only {size_told(left)} left", hint=hint)


def is_of(blocked: Blocked, name: str) -> bool:
    """Return True if it was this limit."""
    return blocked.what == "limit" and blocked.detail.startswith(f"{name.replace('_', ' ')}:")


def amount_told(name: str, amount: float) -> str:
    """Write a limit's amount as a person says it."""
    if name in _SIZES:
        return size_told(int(amount))
    return time_told(amount) if name in (CPU, TIME) else str(int(amount))


def time_told(seconds: float) -> str:
    """Write a time in the largest unit that leaves a whole number."""
    for unit, factor in _TIMES:
        if seconds >= factor and seconds % factor == 0:
            return f"{seconds / factor:g} {unit}{'' if seconds == factor else 's'}"
    return f"{seconds:g} second{'' if seconds == 1 else 's'}"


def size_told(size: int) -> str:
    """Write a number of bytes in the largest unit that keeps it above one."""
    for unit, factor in _UNITS:
        if size >= factor:
            return f"{size / factor:.1f} {unit}".replace(".0 ", " ")
    return f"{size} bytes"


STOPPED = "stopped"  # not a limit: a person, or the agent itself, asked for its end


def stopped() -> Blocked:
    """Tell that a command was ended because somebody asked for it."""
    hint = "if it wrote anything since it was last settled, that is held"
    return Blocked(what=STOPPED, detail="fumehood stop", hint=hint)


def overflows(output: str) -> str:
    """Return the lines in which a command complains of what an overlay can't copy for want of an owner's number."""
    if not any(words in output for words in _OVERFLOW):
        return ""
    lines = output[-LOOKED_AT:].splitlines()
    return "\n".join([line for line in lines if any(words in line for words in _OVERFLOW)][-_MOST_LINES:])


def cut_short(
    *, limit: str = "", signals: Sequence[str] = (), is_cancelled: bool = False, is_timed_out: bool = False,
    is_stopped: bool = False,
) -> str:  # fmt: skip
    """Say what ended a command before its own end, so that its changes are held; nothing where they are taken as asked.

    Half of what a command does can be worse than none of it, and whoever asked for it has not seen what came of it. A
    person who ends one with Ctrl-C at their terminal has: that is none of these `signals`.
    """
    if is_stopped:
        return "ended by fumehood stop"
    if limit:
        return f"ended by a limit: {limit}"
    if signals:
        return f"ended by a signal: {signals[0]}"
    if is_cancelled:
        return "ended by the program that asked for it"
    return "ended by the time limit" if is_timed_out else ""
