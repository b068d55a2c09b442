"""Read git's configuration format as git does, and judge what changed in a configuration.

The reader follows git's own (`config.c`), whose corners matter here: what git takes for a key must not look like a
comment to us. It takes any bytes at all; includes are not followed.
"""

from __future__ import annotations

from fumehood.core.concern import Concern, flag, hold
from fumehood.core.value import word_set
from fumehood.core.wording import brief

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Entry = tuple[str, str | None]
    Values = tuple[str | None, ...]
    Keys = dict[str, Values]

_BOM = b"\xef\xbb\xbf"
_NEWLINE, _RETURN = 10, 13
_SPACE = b" \t\n\r"
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_KEY = _LETTERS + b"0123456789-"
_ESCAPES = {ord("t"): b"\t", ord("b"): b"\b", ord("n"): b"\n", ord("\\"): b"\\", ord('"'): b'"', _NEWLINE: b""}
_QUOTE, _BACKSLASH, _DOT = 34, 92, 46


def parse(data: bytes) -> list[Entry] | None:
    """Return every key with its value in the order of the file, or None where git would refuse the file.

    Section and last name are in lower case, a quoted subsection keeps its own. A key without `=` has no
    value, which git takes for true.
    """
    try:
        return _Reader(data).entries()
    except _Refused:
        return None


def changed_keys(old: bytes | None, new: bytes) -> list[tuple[str, Values, Values]] | None:
    """Return each key whose values are not what they were, with both; None: the new file can't be understood.

    Keys that are gone are left out. All values of a key count, in their order: taking away the last one
    makes the one before it take effect.
    """
    after = parse(new)
    if after is None:
        return None
    was, now = by_key(parse(old) or [] if old is not None else []), by_key(after)
    return [(key, was.get(key, ()), values) for key, values in now.items() if was.get(key) != values]


def split_key(key: str) -> tuple[str, str | None, str]:
    """Take a key apart: section, subsection or None, name."""
    section, _, rest = key.partition(".")
    subsection, dot, name = rest.rpartition(".")
    return section, subsection if dot else None, name


def by_key(entries: Sequence[Entry]) -> dict[str, Values]:
    """Gather the values of each key, in their order."""
    gathered: dict[str, list[str | None]] = {}
    for key, value in entries:
        gathered.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in gathered.items()}


class _Refused(Exception):
    """The file breaks the format."""


def _text(raw: bytes) -> str:
    """Decode what git sees of a string: C ends it at a NUL."""
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


class _Reader:
    """One pass over one file. The end of the file reads as a newline, again and again."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._ended = False

    def entries(self) -> list[Entry]:
        entries: list[Entry] = []
        stem = b""
        if self._data.startswith(_BOM):
            self._at = len(_BOM)
        elif self._data.startswith(_BOM[:1]):
            raise _Refused  # part of the mark that some editors put first is an error
        while True:
            char = self._next()
            if char == _NEWLINE and self._ended:
                return entries
            if char in _SPACE:
                continue
            if char in b"#;":
                self._skip_line()
            elif char == ord("["):
                stem = self._section() + b"."
            elif char in _LETTERS:
                key, value = self._entry(char)
                entries.append((_text(stem + key), None if value is None else _text(value)))
            else:
                raise _Refused

    def _next(self) -> int:
        if self._at >= len(self._data):
            self._ended = True
            return _NEWLINE
        char = self._data[self._at]
        self._at += 1
        if char == _RETURN and self._data[self._at : self._at + 1] == b"\n":
            self._at += 1
            return _NEWLINE
        return char

    def _skip_line(self) -> None:
        end = self._data.find(b"\n", self._at)
        self._at = len(self._data) if end < 0 else end

    def _section(self) -> bytes:
        name = bytearray()
        while True:
            char = self._next()
            if self._ended:
                raise _Refused
            if char == ord("]") and name:
                return bytes(name).lower()
            if char in _SPACE:
                return bytes(name).lower() + self._subsection(char)
            if char not in _KEY and char != _DOT:
                raise _Refused
            name.append(char)

    def _subsection(self, char: int) -> bytes:
        """Read `"name"]` after the blanks that follow a section."""
        while char in _SPACE:
            if char == _NEWLINE:
                raise _Refused
            char = self._next()
        if char != _QUOTE:
            raise _Refused
        name = bytearray(b".")
        while (char := self._next()) != _QUOTE:
            if char == _BACKSLASH:
                char = self._next()
            if char == _NEWLINE:
                raise _Refused
            name.append(char)
        if self._next() != ord("]"):
            raise _Refused
        return bytes(name)

    def _entry(self, char: int) -> tuple[bytes, bytes | None]:
        key = bytearray((char,))
        while (char := self._next()) in _KEY and not self._ended:
            key.append(char)
        while char in b" \t":
            char = self._next()
        if char == _NEWLINE:
            return bytes(key).lower(), None
        if char != ord("="):
            raise _Refused
        return bytes(key).lower(), self._value()

    def _value(self) -> bytes:
        """Read a value; most are plain, which spares going through it byte by byte."""
        end = self._data.find(b"\n", self._at)
        line = self._data[self._at : None if end < 0 else end]
        if any(special in line for special in (b'"', b"\\", b"#", b";")):
            return self._quoted_value()
        self._at += len(line)
        self._next()
        return line.strip(_SPACE)

    def _quoted_value(self) -> bytes:
        value = bytearray()
        quoted = False
        kept = 0  # up to here blanks at the end count: they were quoted, or something followed
        while True:
            char = self._next()
            if char == _NEWLINE:
                if quoted:
                    raise _Refused
                return bytes(value[:kept])
            if not quoted and char in b"#;":
                self._skip_line()
                continue
            if not quoted and char in _SPACE:
                if value:
                    value.append(char)
                continue
            if char == _QUOTE:
                quoted = not quoted
            elif char == _BACKSLASH:
                escaped = self._next()
                if escaped not in _ESCAPES:
                    raise _Refused
                value += _ESCAPES[escaped]
            else:
                value.append(char)
            kept = len(value)


# Tell which settings of a git configuration make git run something or lead it elsewhere.
#
# What is known to be harmless is listed, and the rest waits for a person: git and its companions gain
# settings that run programs with almost every release. That is for a repository that is new, and whose addresses
# are its own matter; `everyday_concern` is for one that was there.

FLAG = "git-config"

# `a.b` is a name in a section, `a.*.b` one in a subsection, `a.*` any of the section, `a.*.*` of its subsections.
# Run or read by git in the course of everyday commands, without being asked for.
AUTOMATIC = word_set(
    """
    core.fsmonitor core.hookspath core.sshcommand core.gitproxy core.pager core.askpass core.attributesfile
    core.alternaterefscommand core.worktree diff.external diff.*.command diff.*.textconv
    filter.*.clean filter.*.smudge filter.*.process merge.*.driver gpg.program gpg.*.program
    gpg.ssh.defaultkeycommand credential.helper credential.*.helper include.path includeif.*.path
    gc.recentobjectshook hook.*.command hook.*.event uploadpack.packobjectshook
    remote.*.uploadpack remote.*.receivepack remote.*.vcs pager.* interactive.difffilter
    trailer.*.command trailer.*.cmd rebase.instructionformat fsmonitor.socketdir
    lfs.customtransfer.*.path lfs.standalonetransferagent
    """
)
# Run when a person asks for an editor, a tool, an alias.
ON_DEMAND = word_set(
    """
    alias.* alias.*.* core.editor sequence.editor mergetool.*.cmd mergetool.*.path difftool.*.cmd difftool.*.path
    guitool.*.cmd browser.*.cmd browser.*.path man.*.cmd man.*.path web.browser help.browser instaweb.httpd
    instaweb.browser tar.*.command imap.tunnel init.templatedir branch.*.mergeoptions pull.twohead pull.octopus
    sendemail.* sendemail.*.*
    """
)
ELSEWHERE = word_set(
    """
    url.*.insteadof url.*.pushinsteadof http.* http.*.* credential.* credential.*.* remote.*.proxy protocol.allow
    protocol.*.allow safe.* fetch.bundleuri bundle.* bundle.*.* lfs.url lfs.*.* extensions.refstorage
    submodule.*.gitdir
    """
)
HARMLESS = word_set(
    """
    add.* advice.* am.* apply.* author.* blame.* branch.* branch.*.* checkout.* clone.* color.* color.*.* column.*
    commit.* commitgraph.* committer.* fastimport.* feature.* grep.* i18n.* index.* log.* mailinfo.*
    mailmap.* maintenance.* maintenance.*.* notes.* notes.*.* pack.* pretty.* receive.* remotes.* repack.* rerere.*
    revert.* showbranch.* sparse.* splitindex.* stash.* status.* tag.* user.* versionsort.* worktree.*

    core.abbrev core.autocrlf core.bare core.bigfilethreshold core.checkstat core.commentchar core.commentstring
    core.commitgraph core.compression core.eol core.excludesfile core.filemode core.fsync core.fsyncmethod
    core.fsyncobjectfiles core.hidedotfiles core.ignorecase core.logallrefupdates core.longpaths
    core.loosecompression core.multipackindex core.notesref core.packedgitlimit core.packedgitwindowsize
    core.precomposeunicode core.preloadindex core.quotepath core.repositoryformatversion core.safecrlf
    core.sharedrepository core.sparsecheckout core.sparsecheckoutcone core.splitindex core.symlinks
    core.trustctime core.untrackedcache core.warnambiguousrefs core.whitespace

    diff.algorithm diff.autorefreshindex diff.colormoved diff.colormovedws diff.context diff.dirstat diff.guitool
    diff.ignoresubmodules diff.indentheuristic diff.interhunkcontext diff.mnemonicprefix diff.noprefix
    diff.orderfile diff.relative diff.renamelimit diff.renames diff.submodule diff.tool diff.wordregex
    diff.wserrorhighlight diff.*.algorithm diff.*.binary diff.*.wordregex diff.*.xfuncname
    difftool.prompt extensions.compatobjectformat extensions.noop extensions.objectformat extensions.partialclone
    extensions.preciousobjects extensions.refstorage extensions.relativeworktrees extensions.worktreeconfig
    fetch.all fetch.output fetch.parallel fetch.prune fetch.prunetags fetch.recursesubmodules
    fetch.showforcedupdates fetch.writecommitgraph filter.*.required format.pretty format.signoff
    gc.auto gc.autodetach gc.autopacklimit gc.cruftpacks gc.logexpiry gc.pruneexpire gc.reflogexpire
    gc.reflogexpireunreachable gc.worktreepruneexpire gc.writecommitgraph gpg.format
    http.lowspeedlimit http.lowspeedtime http.maxrequests http.postbuffer http.version
    credential.username credential.usehttppath init.defaultbranch init.defaultobjectformat init.defaultrefformat
    interactive.singlekey lfs.repositoryformatversion lfs.*.access
    merge.autostash merge.conflictstyle merge.defaulttoupstream merge.directoryrenames merge.ff merge.guitool
    merge.log merge.renamelimit merge.renames merge.renormalize merge.stat merge.tool merge.verbosity
    merge.*.name merge.*.recursive mergetool.hideresolved mergetool.keepbackup mergetool.keeptemporaries
    mergetool.prompt mergetool.writetotemp protocol.version pull.autostash pull.ff pull.rebase
    push.autosetupremote push.default push.followtags push.recursesubmodules push.useforceifincludes
    rebase.abbreviatecommands rebase.autosquash rebase.autostash rebase.backend rebase.forkpoint
    rebase.missingcommitscheck rebase.rebasemerges rebase.reschedulefailedexec rebase.stat rebase.updaterefs
    remote.pushdefault remote.*.fetch remote.*.followremotehead remote.*.gh-resolved remote.*.mirror
    remote.*.partialclonefilter remote.*.promisor remote.*.prune remote.*.prunetags remote.*.push
    remote.*.pushurl remote.*.serveroption remote.*.skipdefaultupdate remote.*.skipfetchall remote.*.tagopt
    remote.*.url submodule.active submodule.alternateerrorstrategy submodule.alternatelocation
    submodule.fetchjobs submodule.propagatebranches submodule.recurse submodule.*.active submodule.*.branch
    submodule.*.fetchrecursesubmodules submodule.*.ignore submodule.*.path submodule.*.shallow
    submodule.*.update submodule.*.url
    """
)
# These name a place that git contacts; the form of the name alone can make it run a helper.
ADDRESSES = word_set(
    "remote.*.url remote.*.pushurl remote.pushdefault submodule.*.url branch.*.remote branch.*.pushremote"
)
_UPDATE = word_set("submodule.*.update")
_TOOLS = word_set("diff.tool diff.guitool merge.tool merge.guitool")  # a file beside git's own scripts, which git reads
_PLACES = word_set("core.hookspath core.attributesfile core.worktree")
_SWITCHABLE = word_set("core.fsmonitor pager.*")
_FOR_A_PERSON = word_set("core.pager core.editor sequence.editor pager.*")
_SWITCH = frozenset(("true", "false"))
# What agents name so that git does not wait for a person.
_PLAIN_PROGRAMS = frozenset(("", "cat", "less", "more", "true", ":", "vi", "vim", "nano"))
UPDATES = frozenset(("checkout", "rebase", "merge", "none"))


def key_concern(key: str, was: Values, now: Values) -> Concern | None:
    """Judge one setting whose values are new or changed."""
    if runs_something(key):
        values = {value or "" for value in now}
        if _is_in(key, _SWITCHABLE) and {value.lower() for value in values} <= _SWITCH:
            return None
        if _is_in(key, _FOR_A_PERSON) and values <= _PLAIN_PROGRAMS:
            return flag(FLAG, f"{brief(key)} is set")
        if key.startswith("include"):
            return hold(FLAG, f"git would read settings from another file, named by {brief(key)}")
        if _is_in(key, _PLACES):
            return hold(FLAG, f"{brief(key)} leads git to files elsewhere")
        return hold(FLAG, f"git would run a program named by {brief(key)}")
    before = frozenset(was)
    for value in [value or "" for value in dict.fromkeys(now) if value not in before]:
        if _is_in(key, ADDRESSES) and _is_helper_address(value):
            return hold(FLAG, f"{brief(key)} has an address that makes git run a program")
        if (_is_in(key, _UPDATE) and value not in UPDATES) or (key in _TOOLS and "/" in value):
            return hold(FLAG, f"{brief(key)} names a program for git to run")
        if key == "extensions.refstorage" and "://" in value:
            return hold(FLAG, f"{brief(key)} leads git to branches elsewhere")
    if _is_in(key, HARMLESS):
        return None
    decides = "decides whom git contacts or trusts" if _is_in(key, ELSEWHERE) else ""
    return hold(FLAG, f"{brief(key)} {decides or 'is not a git setting that is known to be harmless'}")


def runs_something(key: str) -> bool:
    """Return True if git runs or reads something that this setting names, by itself or when asked to."""
    return _is_in(key, AUTOMATIC) or _is_in(key, ON_DEMAND)


def runs_by_itself(key: str) -> bool:
    """Return True if git acts on this setting in everyday commands."""
    return _is_in(key, AUTOMATIC)


def may_name_program(key: str) -> bool:
    """Return True if what a setting names may be run or obeyed by git, automatically or when a person asks."""
    return not _is_in(key, HARMLESS)


def _is_in(key: str, table: frozenset[str]) -> bool:
    section, subsection, name = split_key(key)
    if subsection is None:
        return key in table or f"{section}.*" in table
    patterns = (key, f"{section}.*.{name}", f"{section}.{subsection.partition('.')[0]}.*.{name}", f"{section}.*.*")
    return any(pattern in table for pattern in patterns)


def _is_helper_address(value: str) -> bool:
    """Return True if git would take an address for options or for `helper::address`."""
    before, colons, _ = value.partition("::")
    helper = bool(colons) and before.replace("-", "").replace("+", "").replace(".", "").isalnum()
    return value.startswith(("-", "!")) or helper or not value.isprintable()


# Tell which changes to the configuration of a repository that was there need no person.
#
# What git itself writes there on a normal day is listed, and the rest waits: where git sends a person's commits is told
# by settings that run nothing. What is gone counts as much as what is new: without its `pushurl`, a push goes
# elsewhere.

# What `git init`, `git sparse-checkout`, `git worktree` and `git submodule` write, with the values that they write.
_WRITTEN = {
    "core.filemode": _SWITCH, "core.ignorecase": _SWITCH, "core.precomposeunicode": _SWITCH, "core.symlinks": _SWITCH,
    "core.bare": frozenset(("false",)), "core.logallrefupdates": frozenset(("true",)),
    "core.sparsecheckout": _SWITCH, "core.sparsecheckoutcone": _SWITCH, "index.sparse": _SWITCH,
    "extensions.worktreeconfig": frozenset(("true",)), "extensions.relativeworktrees": frozenset(("true",)),
    "submodule.*.active": _SWITCH, "submodule.*.update": UPDATES,
}  # fmt: skip
_FREE = word_set("pull.rebase pull.ff submodule.active branch.*.rebase branch.*.description")
# `git submodule deinit` drops a whole section, older versions of `git sparse-checkout disable` their settings.
_DROPPED = word_set(
    """
    core.sparsecheckout core.sparsecheckoutcone index.sparse submodule.*.url submodule.*.active submodule.*.update
    submodule.*.branch submodule.*.ignore submodule.*.fetchrecursesubmodules submodule.*.shallow submodule.*.path
    """
)
_KEPT_OF_BRANCHES = word_set("pushremote mergeoptions")
_SENDING = ("remote.", "remotes.", "url.", "push.", "lfs.")
_SENDING_KEYS = word_set("extensions.partialclone branch.*.remote branch.*.pushremote branch.*.merge submodule.*.url")
# Sections whose settings take no notice of each other.
_ORDERLESS = ("branch", "core", "extensions", "index", "pull", "submodule", "user")


def everyday_concern(old: bytes | None, new: bytes, is_own_work_tree: Callable[[Values], bool]) -> Concern | None:
    """Judge a configuration by every key whose values are not what they were, or are gone.

    `is_own_work_tree` tells whether these may be the values of `core.worktree`: a submodule has one.
    """
    after = parse(new)
    if after is None:
        return hold(FLAG, "can't be understood as a git configuration")
    before = [] if old is None else parse(old) or []
    was, now = by_key(before), by_key(after)
    renamed = _renamed(was, now)
    changed = [key for key in {**now, **was} if was.get(key) != now.get(key)]
    reasons = []
    for key in changed:
        values = now.get(key, ())
        if key == "core.worktree" and is_own_work_tree(values):
            continue
        if split_key(key)[:2] not in renamed and not _is_everyday(key, was, values):
            reasons.append(_why(key, was.get(key, ()), values))
    if reasons:
        more = f"; and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        return hold(FLAG, f"{min(reasons)[1]}{more}")
    return _order_concern(before, after, set(changed))


def _is_everyday(key: str, was: Keys, now: Values) -> bool:
    """Return True if git itself writes these values of a key, or takes it out, in a repository that has the rest."""
    section, subsection, name = split_key(key)
    pattern = _pattern(key)
    if pattern in _FREE or (section == "user" and subsection is None):
        return True
    if not now:
        return pattern in _DROPPED or (pattern.startswith("branch.*.") and name not in _KEPT_OF_BRANCHES)
    if pattern in _WRITTEN:
        return all((value or "").lower() in _WRITTEN[pattern] for value in now)
    if key == "core.repositoryformatversion":
        return now == ("1",) or (now == ("0",) and key not in was)
    if pattern == "submodule.*.url":
        return key not in was and key_concern(key, (), now) is None
    # A branch may follow one of a remote that was there.
    is_branch = pattern == "branch.*.merge" and all((value or "").startswith("refs/") for value in now)
    return is_branch or (pattern == "branch.*.remote" and _were_there(now, was))


def _were_there(remotes: Values, was: Keys) -> bool:
    """Return True if all of these are remotes by name, and no address; a dot is the repository itself."""
    return all(value == "." or f"remote.{value}.url" in was for value in remotes)


def _pattern(key: str) -> str:
    section, subsection, name = split_key(key)
    return key if subsection is None else f"{section}.*.{name}"


def _renamed(was: Keys, now: Keys) -> set[tuple[str, str | None]]:
    """Return the branches that are gone and came back, all they had unchanged, by another name; both names.

    One that follows a bare address does not: by another name, somebody's fork would be where `main` is pushed to.
    """
    old, new = _branches(was), _branches(now)
    gone: dict[frozenset[tuple[str, Values]], list[str]] = {}
    for name in old.keys() - new.keys():
        gone.setdefault(frozenset(old[name].items()), []).append(name)
    renamed: set[tuple[str, str | None]] = set()
    for name in new.keys() - old.keys():
        addresses = (*new[name].get("remote", ()), *new[name].get("pushremote", ()))
        same = gone.get(frozenset(new[name].items()))
        if same and _were_there(addresses, was):
            renamed |= {("branch", same.pop()), ("branch", name)}
    return renamed


def _branches(keys: Keys) -> dict[str, dict[str, Values]]:
    branches: dict[str, dict[str, Values]] = {}
    for key, values in keys.items():
        section, subsection, name = split_key(key)
        if section == "branch" and subsection is not None:
            branches.setdefault(subsection, {})[name] = values
    return branches


def _why(key: str, was: Values, now: Values) -> tuple[int, str]:
    """Say in plain words what a changed key means; the gravest reasons sort first."""
    what = f"{brief(key)} is {'gone' if not now else 'changed' if was else 'new'}"
    concern = key_concern(key, was, now) if now else None
    if concern is not None and concern.held:
        return (0 if runs_something(key) else 1), concern.reason
    if runs_something(key):
        return 0, f"{what}: it decides what git runs or obeys"
    if _pattern(key) in _SENDING_KEYS or key.startswith(_SENDING):
        return 1, f"{what}: it decides where git sends data to and gets it from"
    if _is_in(key, ELSEWHERE):
        return 1, f"{what}: it decides whom git contacts or trusts"
    return 2, f"{what}: not a setting that a normal day's work writes"


def _order_concern(before: Sequence[Entry], after: Sequence[Entry], changed: set[str]) -> Concern | None:
    """Judge the order of what did not change: git takes the last value, and an included file's where it is included."""
    has_include = any(key.startswith("include") for key, _ in after)

    def counted(entries: Sequence[Entry]) -> list[Entry]:
        unchanged = (entry for entry in entries if entry[0] not in changed)
        return [entry for entry in unchanged if has_include or entry[0].partition(".")[0] not in _ORDERLESS]

    for one, other in zip(counted(before), counted(after), strict=True):
        if one != other:
            return hold(FLAG, f"{brief(other[0])} is in another place: the order decides which setting git obeys")
    return None
