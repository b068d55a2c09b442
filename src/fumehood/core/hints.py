"""Why a command failed, guessed from what it printed: a mask, a socket, a limit, the hidden home.

Nothing watches the command's system calls for this, which would slow it down; so these are hints, never verdicts, and
only looked for where a command failed. Only that it tried to reach a host is known, whatever it printed.
"""

from __future__ import annotations

import os
import re

from fumehood.core.masks import is_in, make_masks, mask_reason
from fumehood.core.report import CPU, FILE_SIZE, FILES, LEFT_PROCESS, PROCESSES, Blocked, limit_reached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fumehood.core.policy import Network, Policy
    from fumehood.core.report import Connection

_MOST_OF_A_KIND = 3  # hints of each kind
LOOKED_AT = 1 << 16  # characters of the end, where a failure is told
_LONGEST_LINE = 4096  # that is looked at
_PATH = re.compile(r"(?:~|/)[^\s'\"`:;,()<>\[\]]+")
_ABSENT = re.compile(r"No such file|ENOENT|Permission denied|EACCES|not found|can(?:'t|not) read", re.IGNORECASE)
_CONNECTING = re.compile(r"connect|ECONNREFUSED|socket|daemon|bus\b|agent\b", re.IGNORECASE)
_IN_VAIN = re.compile(r"no such|refused|denied|fail|error|ENOENT|can(?:no|')t|could|unable|\bnot\b", re.IGNORECASE)
_SOCKET = re.compile(r"\.sock\b|\.s\.PGSQL\.|^/(?:var/)?run/")
_SERVICES = (
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
# What an overlay can't do to what was there before: rename a directory, make a hard link that is the same file. And
# nobody else has an id in a sandbox, to be named by, nor are a person's keys there.
_RENAMED = "a command can't rename one that was there before it, nor move it by a rename between the project and /tmp"
_OVERLAID = (
    (re.compile(r"cross-device link|EXDEV", re.IGNORECASE), "rename", "directory",
     f"{_RENAMED}; mv copies instead. In place of git mv: mv OLD NEW && git add -A OLD NEW"),
    (re.compile(r"hardlink different from source"), "link", "file", "clone by copies: git clone --no-hardlinks"),
    (re.compile(r"preserving permissions for .*Invalid argument"), "rules", "of access for other users or groups",
     "a command can't give a file rules (ACLs) that name others; what it makes gets its directory's: cp -r, not cp -a"),
    (re.compile(r"failed to sign the data|Couldn't load public key|signing failed: "), "signature", "your keys",
     "they are out of a command's reach; git commit --no-gpg-sign, and sign outside: git commit --amend -S"),
)  # fmt: skip
_NO_SOCKETS = "services of this machine are out of a command's reach; start one in the command, or run it outside"


def suspected_causes(
    printed: str, exit_code: int, policy: Policy, home: str, moved: Sequence[str] = (), closed: Sequence[str] = ()
) -> tuple[Blocked, ...]:  # fmt: skip
    """Return what a failed command seems to have met.

    `moved` are secrets that variables put elsewhere, `closed` what is hidden because only root may read it.
    """
    lines = _last_lines(printed)
    limits = [name for line in lines for words, name in _LIMITS if words.search(line)]
    limits += [_SIGNALS[exit_code]] if exit_code in _SIGNALS else []
    amounts = {name: getattr(policy.limits, name) for name in limits}
    reached = [limit_reached(name, amount) for name, amount in amounts.items() if amount]
    overlaid = [
        Blocked(what=what, detail=detail, hint=hint)
        for words, what, detail, hint in _OVERLAID if any(words.search(line) for line in lines)
    ]  # fmt: skip
    hidden = _masked_paths(lines, policy, home, moved, closed)
    return tuple(dict.fromkeys([*reached, *overlaid, *hidden, *_refused_sockets(lines, home)]))


def _masked_paths(
    lines: Iterable[str], policy: Policy, home: str, moved: Sequence[str], closed: Sequence[str]
) -> Iterator[Blocked]:
    masked = make_masks([home], (), policy.mask, policy.unmask, root=True)
    moved = [path for path in moved if path not in masked.shown]
    hidden = (*masked.hidden, *moved, *closed)
    seen: list[str] = []
    for path in _paths((line for line in lines if _ABSENT.search(line)), home):
        if path not in seen and is_in(path, hidden):
            seen.append(path)
    for path in seen[:_MOST_OF_A_KIND]:
        why = mask_reason(path, home) if is_in(path, masked.hidden) else "only root may read it"
        why = "a variable says that credentials are there" if is_in(path, moved) else why
        hint = f"hidden from commands ({why}); to show it, add it to unmask (fumehood config path)"
        yield Blocked(what="mask", detail=path, hint=hint)


def _refused_sockets(lines: Iterable[str], home: str) -> Iterator[Blocked]:
    about = [line for line in lines if _CONNECTING.search(line)]
    # A server of the command's own says where it listens, too.
    in_vain = (line for line in about if _IN_VAIN.search(line))
    named = [path for path in _paths(in_vain, home) if _SOCKET.search(path)]
    named += [name for line in about for words, name in _SERVICES if words.search(line)]
    for name in list(dict.fromkeys(named))[:_MOST_OF_A_KIND]:
        yield Blocked(what="socket", detail=name, hint=_NO_SOCKETS)


def missing_devices(printed: str) -> tuple[str, ...]:
    """Return the devices that a failed command named and did not find."""
    lines = [line for line in _last_lines(printed) if _ABSENT.search(line)]
    return tuple(dict.fromkeys(path for path in _paths(lines, "/") if path.startswith("/dev/")))[:_MOST_OF_A_KIND]


def _last_lines(text: str) -> list[str]:
    return [line for line in text[-LOOKED_AT:].splitlines() if len(line) <= _LONGEST_LINE]


def _paths(lines: Iterable[str], home: str) -> Iterator[str]:
    for line in lines:
        for path in _PATH.findall(line):
            whole = home + path[1:] if path.startswith("~/") else path
            yield f"/{whole.lstrip('/')}".rstrip(".!?")


# What a command could not write because it lies outside the roots.

# As the C libraries, Go and Node say it.
_READ_ONLY = re.compile("read-only file system|EROFS", re.IGNORECASE)
_QUOTED = re.compile(r"""(?<!\w)(?:'(.+?)'|"(.+?)"|`(.+?)['`]|\u2018(.+?)\u2019)(?!\w)""")  # "can't" begins nothing
_BARE = re.compile(r"(?<!\S)/[^\s:;,()]+")
_OF_APK = ("Unable to lock database", "apk database")  # it does not say where that is
# git says neither what was refused there nor why.
_NO_ROOM_FOR_OBJECTS = "unable to create temporary object directory"
_PUSHED_TO = re.compile("^error: failed to push some refs to '(?:file://)?([^:]+)'$")
_TMP = "/tmp"  # noqa: S108 - as the command sees it
_MOST_REFUSED = 3  # paths that are named


def refused_writes(
    text: str, writable: Sequence[str], remedy: str = "", home: str = "", *,
    is_limited: bool = False, helping: Callable[[str], tuple[str, str]] = lambda path: (path, ""),
) -> tuple[Blocked, ...]:  # fmt: skip
    """Name what a command could not write; `writable` is what it may, as it sees it.

    `home` is a home that is out of sight but for its tools. `is_limited` tells that whoever ran it let it write less
    than the project has. `helping` returns which path a printed one means, and what to type to have it written there.
    """
    lines = [_without_colours(line) for line in _last_lines(text)]
    named = dict.fromkeys(
        path for line in lines if _READ_ONLY.search(line) for path in _paths_refused_in(line, (*writable, _TMP))
    )
    if any(_NO_ROOM_FOR_OBJECTS in line for line in lines):
        named |= dict.fromkeys(match[1] for line in lines if (match := _PUSHED_TO.search(line)))
    places = f"{', '.join(writable)} and {_TMP}" if writable else _TMP
    outside = "outside the project everything is read-only"
    otherwise = f"{outside}; a command may write {places}{remedy}"
    limited = f"this run was limited: it may write {places} only; run it without write=, --write or --read-only"
    of_tools = "tools of the home are read-only to commands; install and update them outside the hood"
    blocked = []
    for path, line in dict.fromkeys(map(helping, list(named)[:_MOST_REFUSED])):
        is_tool = home and path.startswith(f"{home}/")
        hint = f"{outside}; {line}" if line else of_tools if is_tool else otherwise
        blocked.append(Blocked(what="write", detail=path, hint=limited if is_limited else hint))
    return tuple(blocked)


def _paths_refused_in(line: str, writable: Sequence[str]) -> list[str]:
    """Find the paths that a complaint is about; of several, those that can't be written."""
    if any(words in line for words in _OF_APK):
        return ["/lib/apk/db"]
    paths = [next(filter(None, each)) for each in _QUOTED.findall(line)]
    parts: list[str] = _READ_ONLY.split(line)[0].rstrip(": ").split(": ")
    last = parts[-1]
    if not paths and last.startswith("/") and " /" not in last:
        paths = [last]  # which may have blanks in it
    if not paths:
        # The first of several parts is mostly the program's own name.
        paths = [path for part in parts[1:] or parts for path in _BARE.findall(part)]
    paths = [os.path.normpath(path) if path.startswith("/") else path for path in paths]
    outside = [path for path in paths if path.startswith("/") and not is_in(path, writable)]
    # A name that is not absolute is the last word before the reason.
    return outside or paths[:1] or [last.rpartition(" ")[2] or "a path"]


# Paths of the home that a command missed because they are out of its sight.
#
# Programs say in many words that something is not there; what they name is evidence only if it is there, and hidden.

# In small letters; any of them says that something could not be had, and a path in the same line says what.
_MISSING_FILE = (
    "no such", "not found", "notfound", "not exist", "n't exist", "enoent", "os error 2", "errno 2", "missing",
    "cannot ", "can't ", "can not ", "could not ", "couldn't ", "unable to ", "failed", "not accessible",
    "not appear to be", "no rule to make", "not a valid", "not a directory", "not installable", "nosuchfile",
)  # fmt: skip
_MAKING = ("Directory nonexistent", "cannot create", "cannot touch")  # that fails for want of a directory alone
_MOST_UNSEEN = 3  # paths that are named
_MOST_ASKED = 200  # times that the caller looks at the disk
_MOST_IN_A_LINE = 8
_UP = "../"
_QUOTES = {"'": "'", '"': '"', "`": "`'", "\u2018": "\u2019", "\u201c": "\u201d", "«": "»"}
_ENDS = (": ", " (", " ", ":")
_IN_NAMES = "._-+@%~$"  # before a path, these make it a part of a longer one
_AFTER = ".,;:!?)]}>'\"`\u2019\u201d»/"  # belongs to the sentence and not to the path


def hidden_paths_named(
    text: str, homes: Sequence[str], is_hidden: Callable[[str], bool], folder: str = ""
) -> tuple[str, ...]:
    """Return the hidden paths that a complaint names, the first ones; `~` means the first of the homes.

    `is_hidden` tells whether a path is there and out of the command's sight. Of what is not there, the directory is
    asked for, unless it lies right in the home: much is looked for in `~/.config` that nobody has. `folder` is where
    the command began, for paths that lead up from there.
    """
    below = tuple(f"{home.rstrip('/')}/" for home in homes)
    starts = [*((home, home) for home in below), ("~/", below[0])]
    starts += [(_UP, f"{folder}/{_UP}")] if folder else []
    paths: dict[str, None] = {}
    asked: dict[str, bool] = {}
    for line in _last_lines(text):
        if not any(words in line.lower() for words in _MISSING_FILE):
            continue
        for ways in _readings_of_paths(_without_colours(line), starts):
            for path in _paths_and_parents(ways, below, is_in_home=any(words in line for words in _MAKING)):
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


def words_of_complaints(text: str, complaints: Sequence[str] = _MISSING_FILE) -> tuple[str, ...]:
    """Return the words of complaints that something is not there, or of others: one of them may be its name."""
    words: dict[str, None] = {}
    for line in _last_lines(text):
        if any(each in line.lower() for each in complaints):
            for word in _without_colours(line).split():
                words[word.strip("".join(_QUOTES) + _AFTER)] = None
    return tuple(word for word in words if word)[:_MOST_ASKED]


def _without_colours(line: str) -> str:
    """Return a line without what changes a terminal's colours."""
    first, *others = line.split("\x1b[")
    return first + "".join(other[1:] if other[:1] == "m" else other.lstrip("0123456789;:")[1:] for other in others)


def _readings_of_paths(line: str, starts: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    """Yield for each path that a line names the ways to read it, the likeliest first."""
    for at, start, home in _path_starts(line, starts):
        rest = line[at + len(start) :]
        printable = next((number for number, letter in enumerate(rest) if letter < " "), len(rest))
        rest = rest[:printable]
        quotes = [rest.find(quote) for quote in _QUOTES.get(line[at - 1 : at], "") if quote in rest]
        ends = [min(quotes, default=-1), *map(rest.find, _ENDS), len(rest)]
        whole = [rest[:end] for end in ends if end > 0]
        ways = dict.fromkeys((*whole, *(path.rstrip(_AFTER) for path in whole)))
        yield [os.path.normpath(home + path) for path in ways]


def _paths_and_parents(paths: Sequence[str], homes: tuple[str, ...], *, is_in_home: bool) -> list[str]:
    """Return those of some paths that lie in a home, then their directories, also those right in it if that is said."""
    inside = [path for path in paths if path.startswith(homes)]
    folders = [os.path.dirname(path) for path in inside]
    return inside + [
        folder for folder in folders if (folder if is_in_home else os.path.dirname(folder)).startswith(homes)
    ]


def _path_starts(line: str, starts: Sequence[tuple[str, str]]) -> list[tuple[int, str, str]]:
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


# Hosts that a command did not reach. That it tried is counted by the kernel; what it printed only tells which one.

_UNREACHED = (
    "resolve", "resolving", "name resolution", "Name or service not known", "Network is unreachable", "EAI_AGAIN",
    "ENOTFOUND", "ENETUNREACH", "no such host", "nodename nor servname", "lookup", "dns error", "Failed to connect",
    "Failed to establish a new connection", "connect to host", "unable to access", "Looking in indexes",
    "Connection to",
)  # fmt: skip
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://(?:[^\s/@]*@)?([A-Za-z0-9.-]{1,160}\.[A-Za-z0-9-]+)")
_HOST = re.compile(
    rf"{_ADDRESS.pattern}"
    r"|host='([A-Za-z0-9.-]+)'"
    r"|(?<![\w./@-])((?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+(?:[a-z]{2,63}|\d{1,3}))(?!\.?\w|[/(-]|: \[Errno)"
)
# Where programs look that name no host: what one of them needs to be asked for.
_REGISTRIES = (
    (("pip", "pip3", "uv", "poetry", "pipx"), ("pypi.org", "files.pythonhosted.org")),
    (("npm", "npx", "pnpm", "bun"), ("registry.npmjs.org",)),
    (("yarn",), ("registry.yarnpkg.com",)),
    (("cargo",), ("index.crates.io", "static.crates.io")),
    (("go",), ("proxy.golang.org", "sum.golang.org")),
    (("gem", "bundle"), ("rubygems.org",)),
)
_MOST_HOSTS, _LONGEST = 5, 160  # hosts that are told of, and letters of a name


def unreached_hosts(connections: Sequence[Connection]) -> tuple[Blocked, ...]:
    """Tell a command that failed which of its hosts were granted and not reached: programs seldom say why."""
    from fumehood.core.hosts import with_port

    failed: dict[str, str] = {}
    for each in connections:
        name = with_port(each.host, each.port)
        failed.pop(name, None)  # it may have been there the next time
        if each.allowed and each.reason:
            failed[name] = f"{'and' if each.sent else 'but not'} reached: {each.reason}"
    return tuple(
        Blocked(what="network", detail=name, hint=f"it was granted, {end}")
        for name, end in list(failed.items())[:_MOST_HOSTS]
    )


def denied_network(
    command: str, output: str, network: Network, meant: tuple[str, ...] = (), asking: str = ""
) -> Blocked:
    """Say to a command that tried to leave that it has no network; `asking` is how it asks for hosts, if it can."""
    address = _ADDRESS.search(command[:_LONGEST_LINE])
    in_command = (address[1],) if address and not _is_here(address[1]) else ()
    words = {word.rpartition("/")[2] for word in re.split(r"[\s;|&()]+", command[:_LONGEST_LINE])}
    registries = next((hosts for programs, hosts in _REGISTRIES if not words.isdisjoint(programs)), ())
    hosts = _hosts_named(output) or in_command or meant or registries
    named = " ".join(hosts) or "HOST"
    if asking:
        hint = f"there is no network; to ask the person for it: {asking} {named}"
    elif network.is_proxied:
        hint = "only hosts that were granted are reached, and only by programs that use a proxy (HTTPS_PROXY is set)"
    else:
        options = " ".join(f"--allow-host {host}" for host in hosts or ("HOST",))
        hint = f"a command has no network unless it is asked for: fumehood run {options} -- …, or --network"
    return Blocked(what="network", detail=", ".join(hosts) or "a host outside", hint=hint)


def _hosts_named(output: str) -> tuple[str, ...]:
    """Return the host that the last complaint about the network names, if there is one."""
    for line in reversed(_last_lines(output)):
        if any(words in line for words in _UNREACHED):
            for match in _HOST.finditer(line):
                host = next(filter(None, match.groups())).strip(".")
                if host and len(host) <= _LONGEST and not _is_here(host):
                    return (host,)
    return ()


def _is_here(host: str) -> bool:
    """Return True if a host is this machine itself, to which a command needs no network."""
    return host.startswith("127.") or host in ("localhost", "0.0.0.0")  # noqa: S104 - compared only


# What a command left running, which ends with it.

_ENDED = ("Z", "X")


def processes_left_behind(processes: Sequence[str]) -> tuple[Blocked, ...]:
    """Name the processes that a command's shell left behind; each is the line that the kernel tells of it."""
    names = []
    for line in processes:
        name, _, rest = line.partition("(")[2].rpartition(")")
        if name and not rest.lstrip().startswith(_ENDED):
            names.append(name)
    if not names:
        return ()
    ways = "fumehood run … &, run_in_background, start_command"
    hint = f"to have it go on, start it as a command of its own in the background ({ways})"
    return (Blocked(what=LEFT_PROCESS, detail=", ".join(dict.fromkeys(names)), hint=hint),)
