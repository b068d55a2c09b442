"""What is told when a run reaches one of its limits (`core/policy.py` has the limits themselves)."""

from __future__ import annotations

import os
import re

from fumehood.core.masks import is_below, masks, reason
from fumehood.core.report import Blocked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fumehood.core.network import Connection, Network
    from fumehood.core.policy import Policy


# ---- What is told when a run reaches one of its limits (`core/policy.py` has the limits themselves).

MEMORY, PROCESSES, CPU, FILES, FILE_SIZE, WRITTEN = "memory", "processes", "cpu", "files", "file_size", "written"
OUTPUT, TIME = "output", "time"

# What the end of a run needs of the disk that holds our state: journal, report, places for what is held.
END_BYTES, END_ENTRIES = 2 << 20, 256

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_TIMES = (("day", 86_400), ("hour", 3_600), ("minute", 60))
_SIZES = (MEMORY, FILE_SIZE, WRITTEN, OUTPUT)
_SECONDS = (CPU, TIME)
_ENDED = "the command was ended and its changes are held"
_EFFECTS = {
    MEMORY: _ENDED,
    PROCESSES: _ENDED,
    CPU: _ENDED,
    FILES: "a process could open no more files",
    FILE_SIZE: "a file could grow no further",
    WRITTEN: _ENDED,
    OUTPUT: "the rest was not kept",
    TIME: _ENDED,
}
_KEYS = {OUTPUT: "output_limit", TIME: "timeout"}


def hit(name: str, amount: float) -> Blocked:
    """Tell that a limit was reached, what that did, and where it is set."""
    key = _KEYS.get(name, f"limits.{name}")
    return Blocked(
        what="limit", detail=f"{name.replace('_', ' ')}: {amount_told(name, amount)}",
        hint=f"{_EFFECTS[name]}; to allow more, set {key} (fumehood config path)",
    )  # fmt: skip


def disk_full(left: int) -> Blocked:
    """Tell that a run was ended because it would have filled the disk that its layers are on."""
    return Blocked(
        what="limit", detail=f"written: the disk has only {size_told(left)} left",
        hint=f"{_EFFECTS[WRITTEN]}; fumehood clean frees what is no longer needed",
    )  # fmt: skip


def disk_crowded(left: int) -> Blocked:
    """Tell that a run was ended because it would have taken the last entries of the disk that its layers are on."""
    return Blocked(
        what="limit", detail=f"written: the disk has room for only {left} more files",
        hint=f"{_EFFECTS[WRITTEN]}; fumehood clean frees what is no longer needed",
    )  # fmt: skip


def machine_full(left: int) -> Blocked:
    """Tell that a run was ended because the machine's memory came to its end, whoever had taken it."""
    return Blocked(
        what="limit", detail=f"memory: the machine has only {size_told(left)} left",
        hint=f"{_EFFECTS[MEMORY]}; close other programs, or run fewer commands at once",
    )  # fmt: skip


def is_of(blocked: Blocked, name: str) -> bool:
    """Tell whether it was this limit."""
    return blocked.what == "limit" and blocked.detail.startswith(f"{name.replace('_', ' ')}:")


def amount_told(name: str, amount: float) -> str:
    """Write a limit's amount as a person says it."""
    if name in _SIZES:
        return size_told(int(amount))
    return time_told(amount) if name in _SECONDS else str(int(amount))


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


# ---- Tell from what a command printed what the sandbox refused it, so that the reason can be given.

_OVERFLOW = ("Value too large for", "EOVERFLOW")  # as the C libraries and as Node say it
_READ_ONLY = ("Read-only file system", "EROFS")  # as libc and as Node say it
_MOST_REFUSED, _MOST_LINES = 3, 20  # paths named, complaints read
_LOOKED_AT = 1 << 16  # characters of the end, where a failure is told
_PLAIN_QUOTES = "'\"`"


def refused_writes(stderr: str, roots: Sequence[str], remedy: str = "", home: str = "") -> tuple[Blocked, ...]:
    """Name what a command could not write because it lies outside the roots, which are named as it sees them.

    `home` is a home that is out of sight but for its tools.
    """
    if not any(words in stderr for words in _READ_ONLY):
        return ()
    paths: dict[str, None] = {}
    for line in stderr[-_LOOKED_AT:].splitlines():
        if any(words in line for words in _READ_ONLY):
            paths[_path_in(line)] = None
    writable = ", ".join(roots)
    hint = f"outside the project everything is read-only; a command may write {writable} and /tmp{remedy}"
    of_tools = "tools of the home are read-only to commands; install and update them outside the hood"
    return tuple(
        Blocked(what="write", detail=path, hint=of_tools if home and path.startswith(f"{home}/") else hint)
        for path in list(paths)[:_MOST_REFUSED]
    )


def overflows(output: str) -> str:
    """Return the lines in which a command complains of what an overlay can't copy for want of an owner's number."""
    if not any(words in output for words in _OVERFLOW):
        return ""
    lines = output[-_LOOKED_AT:].splitlines()
    return "\n".join([line for line in lines if any(words in line for words in _OVERFLOW)][-_MOST_LINES:])


def _path_in(line: str) -> str:
    """Find the path that a complaint names: quoted, or before the reason."""
    for quote in _PLAIN_QUOTES:
        _, found, rest = line.partition(quote)
        inner = rest.partition(quote)[0]
        if found and inner:
            return inner
    before = line.partition(": Read-only")[0].split(": ")[-1]
    return before.rpartition(" ")[2] or "a path"


# ---- Guess from what a failed command printed which promise of the sandbox it met: a mask, a socket, a limit.
#
# Nothing watches the command's system calls for this, which would slow it down; so it is a hint, never a verdict, and
# only looked for where a command failed.

_MOST_OF_A_KIND = 3  # of each kind
_PATH = re.compile(r"(?:~|/)[^\s'\"`:;,()<>\[\]]+")
_ABSENT = re.compile(r"No such file|ENOENT|Permission denied|EACCES|not found|can(?:'t|not) read", re.IGNORECASE)
_CONNECTING = re.compile(r"connect|ECONNREFUSED|socket|daemon|bus\b|agent\b", re.IGNORECASE)
_SOCKET = re.compile(r"\.sock\b|\.s\.PGSQL\.|^/(?:var/)?run/")
_NAMELESS = (
    (re.compile(r"Failed to connect to (?:user |system )?(?:scope )?bus|D-Bus", re.IGNORECASE), "D-Bus"),
    (re.compile(r"connection to your authentication agent|Error connecting to agent", re.IGNORECASE), "ssh-agent"),
    (re.compile(r"can(?:not|'t) open display", re.IGNORECASE), "the display"),
)
_LIMITS = (
    (re.compile(r"File too large|File size limit exceeded|EFBIG", re.IGNORECASE), FILE_SIZE),
    (re.compile(r"Too many open files|EMFILE", re.IGNORECASE), FILES),
    (re.compile(r"can't start new thread|cannot fork|fork: .*Resource temporarily|EAGAIN.*(?:fork|spawn)"
                r"|(?:fork|spawn|pthread_create).*EAGAIN", re.IGNORECASE), PROCESSES),
    (re.compile(r"CPU time limit exceeded", re.IGNORECASE), CPU),
)  # fmt: skip
_SIGNALS = {128 + 24: CPU, 128 + 25: FILE_SIZE}
_NO_SOCKETS = "services of this machine are out of a command's reach; start one in the command, or run it outside"


def suspected(printed: str, exit_code: int, policy: Policy, home: str) -> tuple[Blocked, ...]:
    """Return what a failed command seems to have met."""
    lines = [line for line in printed[-_LOOKED_AT:].splitlines() if len(line) < 4096]
    found = [*_limits(lines, exit_code, policy), *_hidden(lines, policy, home), *_sockets(lines, home)]
    return tuple(dict.fromkeys(found))


def _limits(lines: Iterable[str], exit_code: int, policy: Policy) -> Iterator[Blocked]:
    names = [name for line in lines for words, name in _LIMITS if words.search(line)]
    names += [_SIGNALS[exit_code]] if exit_code in _SIGNALS else []
    for name in dict.fromkeys(names):
        amount = getattr(policy.limits, name)
        if amount:
            yield hit(name, amount)


def _hidden(lines: Iterable[str], policy: Policy, home: str) -> Iterator[Blocked]:
    hidden = masks([home], (), policy.mask, policy.unmask, root=True).hidden
    seen: list[str] = []
    for path in _paths((line for line in lines if _ABSENT.search(line)), home):
        if path not in seen and any(path == each or is_below(path, each) for each in hidden):
            seen.append(path)
    for path in seen[:_MOST_OF_A_KIND]:
        hint = f"hidden from commands ({reason(path, home)}); to show it, add it to unmask (fumehood config path)"
        yield Blocked(what="mask", detail=path, hint=hint)


def _sockets(lines: Iterable[str], home: str) -> Iterator[Blocked]:
    about = [line for line in lines if _CONNECTING.search(line)]
    named = [path for path in _paths(about, home) if _SOCKET.search(path)]
    named += [name for line in about for words, name in _NAMELESS if words.search(line)]
    for name in list(dict.fromkeys(named))[:_MOST_OF_A_KIND]:
        yield Blocked(what="socket", detail=name, hint=_NO_SOCKETS)


def _paths(lines: Iterable[str], home: str) -> Iterator[str]:
    for line in lines:
        for path in _PATH.findall(line):
            whole = home + path[1:] if path.startswith("~/") else path
            yield f"/{whole.lstrip('/')}".rstrip(".!?")


# ---- Find in what a failed command printed the paths of the home that it missed because they are out of its sight.
#
# Programs say in many words that something is not there; what they name is evidence only if it is there, and hidden.

# In small letters; any of them says that something could not be had, and a path in the same line says what.
_MISSING_FILE = (
    "no such", "not found", "notfound", "not exist", "n't exist", "enoent", "os error 2", "errno 2", "missing",
    "cannot ", "can't ", "can not ", "could not ", "couldn't ", "unable to ", "failed", "not accessible",
    "not appear to be", "no rule to make", "not a valid", "not a directory", "not installable", "nosuchfile",
)  # fmt: skip
_MOST_UNSEEN = 3  # paths that are named
_MOST_ASKED = 200  # times that the caller looks at the disk
_MOST_IN_A_LINE = 8
_LONGEST_LINE = 4096
_UP = "../"
_QUOTES = {"'": "'", '"': '"', "`": "`'", "\u2018": "\u2019", "\u201c": "\u201d", "«": "»"}
_ENDS = (": ", " (", " ", ":")
_IN_NAMES = "._-+@%~$"  # before a path, these make it a part of a longer one
_AFTER = ".,;:!?)]}>'\"`\u2019\u201d»/"  # belongs to the sentence and not to the path


def unseen_paths(
    text: str, homes: Sequence[str], is_hidden: Callable[[str], bool], folder: str = ""
) -> tuple[str, ...]:
    """Return the hidden paths that a complaint names, the first ones; `~` means the first of the homes.

    `is_hidden` tells whether a path is there and out of the command's sight. Of what is not there, the directory is
    asked for, unless it lies right in the home: much is looked for in `~/.config` that nobody has. `folder` is where
    the command began, for paths that lead up from there.
    """
    below = tuple(f"{home.rstrip('/')}/" for home in homes)
    starts = [(home, home) for home in below]
    starts.append(("~/", below[0]))
    if folder:
        starts.append((_UP, f"{folder}/{_UP}"))
    paths: dict[str, None] = {}
    asked: dict[str, bool] = {}
    for line in text[-_LOOKED_AT:].splitlines():
        if len(line) > _LONGEST_LINE or not any(words in line.lower() for words in _MISSING_FILE):
            continue
        for ways in _named(_colourless(line), starts):
            for path in _likeliest(ways, below):
                if path not in asked:
                    if len(asked) == _MOST_ASKED:
                        return tuple(paths)
                    asked[path] = is_hidden(path)
                if asked[path]:
                    paths[path] = None
                    break
            if len(paths) == _MOST_UNSEEN:
                return tuple(paths)
    return tuple(paths)


def _colourless(line: str) -> str:
    """Return a line without what changes a terminal's colours."""
    first, *others = line.split("\x1b[")
    return first + "".join(other[1:] if other[:1] == "m" else other.lstrip("0123456789;:")[1:] for other in others)


def _named(line: str, starts: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    """Yield for each path that a line names the ways to read it, the likeliest first."""
    for at, start, home in _begins(line, starts):
        rest = line[at + len(start) :]
        printable = next((number for number, letter in enumerate(rest) if letter < " "), len(rest))
        rest = rest[:printable]
        ends = [_end_of_quote(rest, line[at - 1 : at]), *map(rest.find, _ENDS), len(rest)]
        whole = [rest[:end] for end in ends if end > 0]
        ways = dict.fromkeys((*whole, *(path.rstrip(_AFTER) for path in whole)))
        yield [os.path.normpath(home + path) for path in ways]


def _likeliest(paths: Sequence[str], homes: tuple[str, ...]) -> list[str]:
    """Return those of some paths that lie in a home, then the directories that they lie in."""
    inside = [path for path in paths if path.startswith(homes)]
    folders = [os.path.dirname(path) for path in inside]
    return inside + [folder for folder in folders if os.path.dirname(folder).startswith(homes)]


def _begins(line: str, starts: Sequence[tuple[str, str]]) -> list[tuple[int, str, str]]:
    """Return where a line has a path in it: where, how it begins there, and which directory that means."""
    begins: list[tuple[int, str, str]] = []
    for start, home in starts:
        at = line.find(start)
        while at >= 0 and len(begins) < _MOST_IN_A_LINE:
            before = line[at - 1 : at] if at else ""
            is_part = before.isalnum() or (before and before in _IN_NAMES) or (start == _UP and before == "/")
            if not is_part:
                begins.append((at, start, home))
            at = line.find(start, at + 1)
    return sorted(begins)


def _end_of_quote(rest: str, before: str) -> int:
    """Return where a path ends that stands in quotes, or -1."""
    ends = [rest.find(quote) for quote in _QUOTES.get(before, "") if quote in rest]
    return min(ends, default=-1)


# ---- What a command that failed says when it was the network that it lacked: told to whoever wonders why.

# What programs say that were offline and know no proxy, or were given none.
_NO_NETWORK = (
    "Could not resolve host", "Temporary failure in name resolution", "Name or service not known",
    "Network is unreachable", "Could not resolve hostname", "getaddrinfo EAI_AGAIN", "getaddrinfo ENOTFOUND",
    "ENETUNREACH", "no such host", "nodename nor servname", "unable to resolve host", "failed to lookup address",
    "Failed to establish a new connection", "dns error",
)  # fmt: skip


_MOST_HOSTS, _LONGEST = 5, 160  # hosts that are told of, and letters of a complaint


def unreached(connections: Sequence[Connection]) -> tuple[Blocked, ...]:
    """Tell a command that failed which of its hosts were granted and not reached: programs seldom say why."""
    from fumehood.core.network import shown

    failed: dict[str, str] = {}
    for each in connections:
        name = shown(each.host, each.port)
        failed.pop(name, None)  # it may have been there the next time
        if each.allowed and each.reason:
            failed[name] = each.reason
    return tuple(
        Blocked(what="network", detail=name, hint=f"it was granted, but not reached: {reason}")
        for name, reason in list(failed.items())[:_MOST_HOSTS]
    )


def suspected_network(output: str, network: Network) -> tuple[Blocked, ...]:
    """Say that there is no network to a command that failed and complained of it."""
    line = next((line for line in output.splitlines() if any(said in line for said in _NO_NETWORK)), "")
    if not line:
        return ()
    if network.is_proxied:
        hint = "only hosts that were granted are reached, and only by programs that use a proxy (HTTPS_PROXY is set)"
    else:
        hint = "a command has no network unless it is asked for: fumehood run --allow-host HOST -- …, or --network"
    line = line.strip()
    return (Blocked(what="network", detail=line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…", hint=hint),)
