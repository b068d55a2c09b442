"""Guess from a command's output why it failed: a mask, a socket, a limit, the hidden home, no network.

To watch the command's system calls would slow it down. So these are hints and never verdicts, and most of them are
looked for only if a command failed. Only that it tried to reach a host is certain, whatever it printed.
"""

from __future__ import annotations

import os
import re

from fumehood.core.masks import make_masks, mask_reason
from fumehood.core.paths import is_in
from fumehood.core.report import CPU, FILE_SIZE, FILES, LEFT_PROCESS, PROCESSES, Blocked, limit_reached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fumehood.core.policy import Network, Policy
    from fumehood.core.report import Connection

_MOST_OF_A_KIND = 3  # hints of each kind
_LONGEST_OUTPUT_END = 1 << 16  # characters at the end of an output, where programs report a failure
_LONGEST_LINE = 4096  # longer lines of an output are ignored
_PATH = re.compile(r"(?:~|/)[^\s'\"`:;,()<>\[\]]+")
_MISSING = re.compile(r"No such file|ENOENT|Permission denied|EACCES|not found|can(?:'t|not) read", re.IGNORECASE)
_CONNECTING = re.compile(r"connect|ECONNREFUSED|socket|daemon|bus\b|agent\b", re.IGNORECASE)
_FAILING = re.compile(r"no such|refused|denied|fail|error|ENOENT|can(?:no|')t|could|unable|\bnot\b", re.IGNORECASE)
_SOCKET_PATH = re.compile(r"\.sock\b|\.s\.PGSQL\.|^/(?:var/)?run/")
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
_RENAME_HINT = (
    "a command can't rename one that was there before it, nor move it by a rename between the project and /tmp"
)
# What fails only in a sandbox. An overlay can't rename a directory that was there before, nor make a hard link to a
# file that was. And a sandbox has no ids of other users, and no keys of the person.
_SANDBOX_FAILURES = (
    (re.compile(r"cross-device link|EXDEV", re.IGNORECASE), "rename", "directory",
     f"{_RENAME_HINT}; mv copies instead. In place of git mv: mv OLD NEW && git add -A OLD NEW"),
    (re.compile(r"hardlink different from source"), "link", "file", "clone by copies: git clone --no-hardlinks"),
    (re.compile(r"preserving permissions for .*Invalid argument"), "rules", "of access for other users or groups",
     "a command can't give a file rules (ACLs) that name others; what it makes gets its directory's: cp -r, not cp -a"),
    (re.compile(r"failed to sign the data|Couldn't load public key|signing failed: "), "signature", "your keys",
     "they are out of a command's reach; git commit --no-gpg-sign, and sign outside: git commit --amend -S"),
)  # fmt: skip
_SOCKET_HINT = "services of this machine are out of a command's reach; start one in the command, or run it outside"


def suspected_causes(
    output: str, exit_code: int, policy: Policy, home: str,
    secrets_elsewhere: Sequence[str] = (), closed_paths: Sequence[str] = (),
) -> tuple[Blocked, ...]:  # fmt: skip
    """Return the obstacles that a failed command seems to have met.

    `secrets_elsewhere` are paths of secrets that variables name; `closed_paths` are hidden because only root may read
    them.
    """
    lines = _last_lines(output)
    limits = [name for line in lines for pattern, name in _LIMITS if pattern.search(line)]
    limits += [_SIGNALS[exit_code]] if exit_code in _SIGNALS else []
    amounts = {name: getattr(policy.limits, name) for name in limits}
    limits_met = [limit_reached(name, amount) for name, amount in amounts.items() if amount]
    sandbox_failures = [
        Blocked(what=what, detail=detail, hint=hint)
        for pattern, what, detail, hint in _SANDBOX_FAILURES if any(pattern.search(line) for line in lines)
    ]  # fmt: skip
    masks_met = _masks_met(lines, policy, home, secrets_elsewhere, closed_paths)
    return tuple(dict.fromkeys([*limits_met, *sandbox_failures, *masks_met, *_sockets_missed(lines, home)]))


def _masks_met(
    lines: Iterable[str], policy: Policy, home: str, secrets_elsewhere: Sequence[str], closed_paths: Sequence[str]
) -> Iterator[Blocked]:
    masked = make_masks([home], (), policy.mask, policy.unmask, as_root=True)
    secrets_elsewhere = [path for path in secrets_elsewhere if path not in masked.shown]
    hidden = (*masked.hidden, *secrets_elsewhere, *closed_paths)
    missing_paths = _paths((line for line in lines if _MISSING.search(line)), home)
    paths = list(dict.fromkeys(path for path in missing_paths if is_in(path, hidden)))
    for path in paths[:_MOST_OF_A_KIND]:
        if is_in(path, secrets_elsewhere):
            why = "a variable says that credentials are there"
        else:
            why = mask_reason(path, home) if is_in(path, masked.hidden) else "only root may read it"
        hint = f"hidden from commands ({why}); to show it, add it to unmask (fumehood config path)"
        yield Blocked(what="mask", detail=path, hint=hint)


def _sockets_missed(lines: Iterable[str], home: str) -> Iterator[Blocked]:
    about_connecting = [line for line in lines if _CONNECTING.search(line)]
    # Only failures: a server that the command starts prints where it listens, too.
    failures = (line for line in about_connecting if _FAILING.search(line))
    names = [path for path in _paths(failures, home) if _SOCKET_PATH.search(path)]
    names += [name for line in about_connecting for pattern, name in _SERVICES if pattern.search(line)]
    for name in list(dict.fromkeys(names))[:_MOST_OF_A_KIND]:
        yield Blocked(what="socket", detail=name, hint=_SOCKET_HINT)


def missing_devices(output: str) -> tuple[str, ...]:
    """Return the devices that a failed command named and did not find."""
    lines = [line for line in _last_lines(output) if _MISSING.search(line)]
    return tuple(dict.fromkeys(path for path in _paths(lines, "/") if path.startswith("/dev/")))[:_MOST_OF_A_KIND]


def _last_lines(text: str) -> list[str]:
    return [line for line in text[-_LONGEST_OUTPUT_END:].splitlines() if len(line) <= _LONGEST_LINE]


def _paths(lines: Iterable[str], home: str) -> Iterator[str]:
    """Yield the absolute paths in some lines; `~` is the home."""
    for line in lines:
        for path in _PATH.findall(line):
            absolute = home + path[1:] if path.startswith("~/") else path
            yield f"/{absolute.lstrip('/')}".rstrip(".!?")


# Paths that a command could not write because they lie outside the roots.

# In the words of the C libraries, Go and Node.
_READ_ONLY = re.compile("read-only file system|EROFS", re.IGNORECASE)
_QUOTED = re.compile(r"""(?<!\w)(?:'(.+?)'|"(.+?)"|`(.+?)['`]|\u2018(.+?)\u2019)(?!\w)""")  # "can't" begins nothing
_BARE = re.compile(r"(?<!\S)/[^\s:;,()]+")
_APK_COMPLAINTS = ("Unable to lock database", "apk database")  # apk does not print the path
# With this, git prints neither the path nor the reason.
_NO_ROOM_FOR_OBJECTS = "unable to create temporary object directory"
_PUSHED_TO = re.compile("^error: failed to push some refs to '(?:file://)?([^:]+)'$")
_TMP = "/tmp"  # noqa: S108 - as the command sees it
_MOST_REFUSED_PATHS = 3


def refused_writes(
    text: str, writable: Sequence[str], remedy: str = "", home: str = "", *,
    is_limited: bool = False, suggestion_for: Callable[[str], tuple[str, str]] = lambda path: (path, ""),
) -> tuple[Blocked, ...]:  # fmt: skip
    """Return the paths that a command could not write, with hints; `writable` are the paths that it may write.

    `home` is a home of which the command sees only tools. `is_limited` is true if this run may write less than others
    of the project. `suggestion_for` returns the path that a printed path means, and a command for the user, or "", that
    makes it writable.
    """
    lines = [_without_colours(line) for line in _last_lines(text)]
    refused = dict.fromkeys(
        path for line in lines if _READ_ONLY.search(line) for path in _paths_refused_in(line, (*writable, _TMP))
    )
    if any(_NO_ROOM_FOR_OBJECTS in line for line in lines):
        refused |= dict.fromkeys(match[1] for line in lines if (match := _PUSHED_TO.search(line)))
    places = f"{', '.join(writable)} and {_TMP}" if writable else _TMP
    outside = "outside the project everything is read-only"
    blocked = []
    for path, suggestion in dict.fromkeys(map(suggestion_for, list(refused)[:_MOST_REFUSED_PATHS])):
        if is_limited:
            hint = f"this run was limited: it may write {places} only; run it without write=, --write or --read-only"
        elif suggestion:
            hint = f"{outside}; {suggestion}"
        elif home and path.startswith(f"{home}/"):
            hint = "tools of the home are read-only to commands; install and update them outside the hood"
        else:
            hint = f"{outside}; a command may write {places}{remedy}"
        blocked.append(Blocked(what="write", detail=path, hint=hint))
    return tuple(blocked)


def _paths_refused_in(line: str, writable: Sequence[str]) -> list[str]:
    """Return the paths that a complaint is about: those that can't be written, or else its first path."""
    if any(words in line for words in _APK_COMPLAINTS):
        return ["/lib/apk/db"]
    paths = [next(filter(None, groups)) for groups in _QUOTED.findall(line)]
    parts: list[str] = _READ_ONLY.split(line)[0].rstrip(": ").split(": ")
    last = parts[-1]
    if not paths and last.startswith("/") and " /" not in last:
        paths = [last]  # it may have blanks in it
    if not paths:
        # The first of several parts is mostly the program's own name.
        paths = [path for part in parts[1:] or parts for path in _BARE.findall(part)]
    paths = [os.path.normpath(path) if path.startswith("/") else path for path in paths]
    outside = [path for path in paths if path.startswith("/") and not is_in(path, writable)]
    # A path that is not absolute is the last word before the reason.
    return outside or paths[:1] or [last.rpartition(" ")[2] or "a path"]


# Paths of the home that a command did not find because they are hidden from it.
#
# Programs have many words for a missing file. A path in such a line is evidence only if it exists and is hidden.

# In lower case. Each of them says that something is missing; a path in the same line says what.
_COMPLAINTS_OF_MISSING = (
    "no such", "not found", "notfound", "not exist", "n't exist", "enoent", "os error 2", "errno 2", "missing",
    "cannot ", "can't ", "can not ", "could not ", "couldn't ", "unable to ", "failed", "not accessible",
    "not appear to be", "no rule to make", "not a valid", "not a directory", "not installable", "nosuchfile",
)  # fmt: skip
# A file can't be made only if its directory is missing.
_COMPLAINTS_OF_MISSING_DIRECTORY = ("Directory nonexistent", "cannot create", "cannot touch")
_MOST_HIDDEN_PATHS = 3
_MOST_CHECKS = 200  # on the disk
_MOST_PATHS_IN_LINE = 8
_UP = "../"
_QUOTES = {"'": "'", '"': '"', "`": "`'", "\u2018": "\u2019", "\u201c": "\u201d", "«": "»"}
_PATH_ENDS = (": ", " (", " ", ":")
_NAME_LETTERS = "._-+@%~$"  # after one of these no path begins: it is a part of a longer one
_PUNCTUATION_AFTER = ".,;:!?)]}>'\"`\u2019\u201d»/"  # belongs to the sentence and not to the path


def hidden_paths_named(
    text: str, homes: Sequence[str], is_hidden: Callable[[str], bool], folder: str = ""
) -> tuple[str, ...]:
    """Return the first hidden paths that complaints name; `~` means the first of the homes.

    `is_hidden` returns True if a path exists and is hidden from the command. If a path does not exist, its directory
    counts, unless that lies right in the home: programs look for much in `~/.config` that nobody has. `folder` is where
    the command began, for paths that begin with `../`.
    """
    homes = [f"{home.rstrip('/')}/" for home in homes]
    directory_by_start = {home: home for home in homes} | {"~/": homes[0]}
    if folder:
        directory_by_start[_UP] = f"{folder}/{_UP}"
    hidden_paths: dict[str, None] = {}
    checked: dict[str, bool] = {}
    for line in _last_lines(text):
        if not any(words in line.lower() for words in _COMPLAINTS_OF_MISSING):
            continue
        misses_directory = any(words in line for words in _COMPLAINTS_OF_MISSING_DIRECTORY)
        for readings in _readings_of_paths(_without_colours(line), directory_by_start):
            for path in _paths_and_parents(readings, tuple(homes), is_home_entry_wanted=misses_directory):
                if path not in checked:
                    if len(checked) == _MOST_CHECKS:
                        return tuple(hidden_paths)
                    checked[path] = is_hidden(path)
                if checked[path]:
                    hidden_paths[path] = None
                    break
            if len(hidden_paths) == _MOST_HIDDEN_PATHS:
                return tuple(hidden_paths)
    return tuple(hidden_paths)


def words_of_complaints(text: str, complaints: Sequence[str] = _COMPLAINTS_OF_MISSING) -> tuple[str, ...]:
    """Return the words in lines that have one of the complaints: a word may be the name of what is missing."""
    words: dict[str, None] = {}
    for line in _last_lines(text):
        if any(complaint in line.lower() for complaint in complaints):
            for word in _without_colours(line).split():
                words[word.strip("".join(_QUOTES) + _PUNCTUATION_AFTER)] = None
    return tuple(word for word in words if word)[:_MOST_CHECKS]


def _without_colours(line: str) -> str:
    """Return a line without a terminal's escape sequences for colours."""
    first, *pieces = line.split("\x1b[")
    return first + "".join(piece[1:] if piece[:1] == "m" else piece.lstrip("0123456789;:")[1:] for piece in pieces)


def _readings_of_paths(line: str, directory_by_start: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield for each path in a line the ways to read it, the likeliest first: it is not clear where a path ends."""
    for at, start in _path_starts(line, directory_by_start):
        rest = line[at + len(start) :]
        printable_length = next((number for number, letter in enumerate(rest) if letter < " "), len(rest))
        rest = rest[:printable_length]
        quotes = [rest.find(quote) for quote in _QUOTES.get(line[at - 1 : at], "") if quote in rest]
        ends = [min(quotes, default=-1), *map(rest.find, _PATH_ENDS), len(rest)]
        texts = [rest[:end] for end in ends if end > 0]
        texts += [text.rstrip(_PUNCTUATION_AFTER) for text in texts]
        yield [os.path.normpath(directory_by_start[start] + text) for text in dict.fromkeys(texts)]


def _paths_and_parents(paths: Sequence[str], homes: tuple[str, ...], *, is_home_entry_wanted: bool) -> list[str]:
    """Return the paths that lie in a home, then their directories.

    A directory right in the home is left out, unless `is_home_entry_wanted`.
    """
    in_homes = [path for path in paths if path.startswith(homes)]
    parents = [os.path.dirname(path) for path in in_homes]
    return in_homes + [
        parent
        for parent in parents if (parent if is_home_entry_wanted else os.path.dirname(parent)).startswith(homes)
    ]  # fmt: skip


def _path_starts(line: str, starts: Iterable[str]) -> list[tuple[int, str]]:
    """Return the places where a line has one of the beginnings of a path, each with that beginning."""
    places: list[tuple[int, str]] = []
    for start in starts:
        at = line.find(start)
        while at >= 0 and len(places) < _MOST_PATHS_IN_LINE:
            before = line[at - 1 : at] if at else ""
            is_part = before.isalnum() or (before and before in _NAME_LETTERS) or (start == _UP and before == "/")
            if not is_part:
                places.append((at, start))
            at = line.find(start, at + 1)
    return sorted(places)


# Hosts that a command did not reach. The kernel counts the attempts; the output only tells which host it was.

_NETWORK_COMPLAINTS = (
    "resolve", "resolving", "name resolution", "Name or service not known", "Network is unreachable", "EAI_AGAIN",
    "ENOTFOUND", "ENETUNREACH", "no such host", "nodename nor servname", "lookup", "dns error", "Failed to connect",
    "Failed to establish a new connection", "connect to host", "unable to access", "Looking in indexes",
    "Connection to",
)  # fmt: skip
_WEB_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://(?:[^\s/@]*@)?([A-Za-z0-9.-]{1,160}\.[A-Za-z0-9-]+)")
_HOST_NAME = re.compile(
    rf"{_WEB_ADDRESS.pattern}"
    r"|host='([A-Za-z0-9.-]+)'"
    r"|(?<![\w./@-])((?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+(?:[a-z]{2,63}|\d{1,3}))(?!\.?\w|[/(-]|: \[Errno)"
)
# The hosts that package managers need: they don't always print a host.
_REGISTRIES = (
    (("pip", "pip3", "uv", "poetry", "pipx"), ("pypi.org", "files.pythonhosted.org")),
    (("npm", "npx", "pnpm", "bun"), ("registry.npmjs.org",)),
    (("yarn",), ("registry.yarnpkg.com",)),
    (("cargo",), ("index.crates.io", "static.crates.io")),
    (("go",), ("proxy.golang.org", "sum.golang.org")),
    (("gem", "bundle"), ("rubygems.org",)),
)
_MOST_HOSTS = 5
_LONGEST_NAME = 160  # letters of a host


def unreached_hosts(connections: Sequence[Connection]) -> tuple[Blocked, ...]:
    """Return the hosts that were granted to a failed command and not reached: programs seldom print why."""
    from fumehood.core.hosts import with_port

    failures: dict[str, str] = {}
    for connection in connections:
        host = with_port(connection.host, connection.port)
        failures.pop(host, None)  # a later attempt may have reached it
        if connection.allowed and connection.reason:
            failures[host] = f"{'and' if connection.sent else 'but not'} reached: {connection.reason}"
    return tuple(
        Blocked(what="network", detail=host, hint=f"it was granted, {failure}")
        for host, failure in list(failures.items())[:_MOST_HOSTS]
    )


def denied_network(
    command: str, output: str, network: Network, requested_hosts: tuple[str, ...] = (), asking: str = ""
) -> Blocked:
    """Return a hint for a command that tried to reach a host and has no network.

    `requested_hosts` are those of the request; `asking` is how the command can ask for hosts, if it can.
    """
    address = _WEB_ADDRESS.search(command[:_LONGEST_LINE])
    in_command = (address[1],) if address and not _is_this_machine(address[1]) else ()
    words = {word.rpartition("/")[2] for word in re.split(r"[\s;|&()]+", command[:_LONGEST_LINE])}
    registries = next((hosts for programs, hosts in _REGISTRIES if not words.isdisjoint(programs)), ())
    hosts = _hosts_named(output) or in_command or requested_hosts or registries
    if asking:
        hint = f"there is no network; to ask the person for it: {asking} {' '.join(hosts) or 'HOST'}"
    elif network.is_proxied:
        hint = "only hosts that were granted are reached, and only by programs that use a proxy (HTTPS_PROXY is set)"
    else:
        options = " ".join(f"--allow-host {host}" for host in hosts or ("HOST",))
        hint = f"a command has no network unless it is asked for: fumehood run {options} -- …, or --network"
    return Blocked(what="network", detail=", ".join(hosts) or "a host outside", hint=hint)


def _hosts_named(output: str) -> tuple[str, ...]:
    """Return the host in the last complaint about the network, or nothing."""
    for line in reversed(_last_lines(output)):
        if any(words in line for words in _NETWORK_COMPLAINTS):
            for match in _HOST_NAME.finditer(line):
                host = next(filter(None, match.groups())).strip(".")
                if host and len(host) <= _LONGEST_NAME and not _is_this_machine(host):
                    return (host,)
    return ()


def _is_this_machine(host: str) -> bool:
    """Return True if a host is this machine itself, for which a command needs no network."""
    return host.startswith("127.") or host in ("localhost", "0.0.0.0")  # noqa: S104 - compared only


# Processes that a command left running, and that end with it.

_ENDED_STATES = ("Z", "X")


def processes_left_behind(stat_lines: Sequence[str]) -> tuple[Blocked, ...]:
    """Return the processes that a command's shell left running; each line is from a `/proc/PID/stat`."""
    names = []
    for line in stat_lines:
        name, _, rest = line.partition("(")[2].rpartition(")")
        if name and not rest.lstrip().startswith(_ENDED_STATES):
            names.append(name)
    if not names:
        return ()
    ways = "fumehood run … &, run_in_background, start_command"
    hint = f"to have it go on, start it as a command of its own in the background ({ways})"
    return (Blocked(what=LEFT_PROCESS, detail=", ".join(dict.fromkeys(names)), hint=hint),)
