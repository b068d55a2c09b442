"""Read git's configuration format as git does, and judge what changed in a configuration.

The parser follows git's own (`config.c`), also in odd cases: what git takes for a key must not look like a comment
here. It accepts any bytes; includes are not followed.
"""

from __future__ import annotations

from fumehood.core.danger_facts import Concern, flag, hold
from fumehood.core.value import word_set
from fumehood.core.wording import brief

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Entry = tuple[str, str | None]  # a key and its value
    Values = tuple[str | None, ...]
    Settings = dict[str, Values]

_BOM = b"\xef\xbb\xbf"
_NEWLINE, _RETURN = 10, 13
_SPACE = b" \t\n\r"
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_KEY = _LETTERS + b"0123456789-"
_ESCAPES = {ord("t"): b"\t", ord("b"): b"\b", ord("n"): b"\n", ord("\\"): b"\\", ord('"'): b'"', _NEWLINE: b""}
_QUOTE, _BACKSLASH, _DOT = 34, 92, 46


def parse(data: bytes) -> list[Entry] | None:
    """Return every key with its value in the order of the file, or None if git would refuse the file.

    Section and last name are in lower case, a quoted subsection keeps its case. The value of a key without `=` is None;
    git takes that for true.
    """
    try:
        return _ConfigParser(data).entries()
    except _InvalidConfig:
        return None


def changed_keys(old: bytes | None, new: bytes) -> list[tuple[str, Values, Values]] | None:
    """Return each key whose values changed, with its old and new values, or None if the new file can't be parsed.

    Removed keys are left out. All values of a key count, in their order: if the last one is removed, the one before it
    takes effect.
    """
    new_entries = parse(new)
    if new_entries is None:
        return None
    old_settings, new_settings = values_by_key(_parse_old(old)), values_by_key(new_entries)
    return [
        (key, old_settings.get(key, ()), values)
        for key, values in new_settings.items()
        if old_settings.get(key) != values
    ]


def _parse_old(data: bytes | None) -> list[Entry]:
    """Return the entries of the file before the change: none if it did not exist, or git would have refused it."""
    return [] if data is None else parse(data) or []


def split_key(key: str) -> tuple[str, str | None, str]:
    """Return a key's section, its subsection or None, and its name."""
    section, _, rest = key.partition(".")
    subsection, dot, name = rest.rpartition(".")
    return section, subsection if dot else None, name


def values_by_key(entries: Sequence[Entry]) -> Settings:
    """Return the values of each key, in their order."""
    values_by_key: dict[str, list[str | None]] = {}
    for key, value in entries:
        values_by_key.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in values_by_key.items()}


class _InvalidConfig(Exception):
    """The file breaks the format."""


def _text(raw: bytes) -> str:
    """Decode what git sees of a string: in C, it ends at a NUL."""
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


class _ConfigParser:
    """One pass over one file. At the end of the file, every byte read is a newline."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._ended = False

    def entries(self) -> list[Entry]:
        entries: list[Entry] = []
        section_prefix = b""
        if self._data.startswith(_BOM):
            self._at = len(_BOM)
        elif self._data.startswith(_BOM[:1]):
            raise _InvalidConfig  # git refuses a part of the byte order mark
        while True:
            char = self._next()
            if char == _NEWLINE and self._ended:
                return entries
            if char in _SPACE:
                continue
            if char in b"#;":
                self._skip_line()
            elif char == ord("["):
                section_prefix = self._section() + b"."
            elif char in _LETTERS:
                key, value = self._entry(char)
                entries.append((_text(section_prefix + key), None if value is None else _text(value)))
            else:
                raise _InvalidConfig

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
                raise _InvalidConfig
            if char == ord("]") and name:
                return bytes(name).lower()
            if char in _SPACE:
                return bytes(name).lower() + self._subsection(char)
            if char not in _KEY and char != _DOT:
                raise _InvalidConfig
            name.append(char)

    def _subsection(self, char: int) -> bytes:
        """Read `"name"]` and the blanks before it, which `char` is the first of."""
        while char in _SPACE:
            if char == _NEWLINE:
                raise _InvalidConfig
            char = self._next()
        if char != _QUOTE:
            raise _InvalidConfig
        name = bytearray(b".")
        while (char := self._next()) != _QUOTE:
            if char == _BACKSLASH:
                char = self._next()
            if char == _NEWLINE:
                raise _InvalidConfig
            name.append(char)
        if self._next() != ord("]"):
            raise _InvalidConfig
        return bytes(name)

    def _entry(self, char: int) -> tuple[bytes, bytes | None]:
        """Read a key, which begins with `char`, and its value."""
        key = bytearray((char,))
        while (char := self._next()) in _KEY and not self._ended:
            key.append(char)
        while char in b" \t":
            char = self._next()
        if char == _NEWLINE:
            return bytes(key).lower(), None
        if char != ord("="):
            raise _InvalidConfig
        return bytes(key).lower(), self._value()

    def _value(self) -> bytes:
        """Read a value; only one with special characters is read byte by byte, which takes longer."""
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
        length = 0  # of the value without trailing blanks; quoted blanks are a part of the value
        while True:
            char = self._next()
            if char == _NEWLINE:
                if quoted:
                    raise _InvalidConfig
                return bytes(value[:length])
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
                    raise _InvalidConfig
                value += _ESCAPES[escaped]
            else:
                value.append(char)
            length = len(value)


# Settings that make git run something or lead it elsewhere: in a new repository, which may have any addresses.
#
# Tables list the settings that are known to be harmless. All others wait for a person, because almost every release of
# git and its companions has new settings that run programs. `everyday_concern` is for a repository that existed before.

FLAG = "git-config"

# In these tables, `a.b` is a name in a section, and `a.*.b` a name in any of its subsections. `a.*` is any name in the
# section, and `a.*.*` any name in its subsections.

# Everyday commands of git run or read what these name, without being asked.
_AUTOMATIC = word_set(
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
# By each of these git asks a remote for what is missing, with the remote's helper or ssh; even `git status` does.
_PROMISES = word_set("extensions.partialclone remote.*.promisor remote.*.partialclonefilter")
# Git runs what these name if a person asks for an editor, a tool or an alias.
_ON_DEMAND = word_set(
    """
    alias.* alias.*.* core.editor sequence.editor mergetool.*.cmd mergetool.*.path difftool.*.cmd difftool.*.path
    guitool.*.cmd browser.*.cmd browser.*.path man.*.cmd man.*.path web.browser help.browser instaweb.httpd
    instaweb.browser tar.*.command imap.tunnel init.templatedir branch.*.mergeoptions pull.twohead pull.octopus
    sendemail.* sendemail.*.*
    """
)
# These decide whom git contacts or trusts.
_CONTACTS = word_set(
    """
    url.*.insteadof url.*.pushinsteadof http.* http.*.* credential.* credential.*.* remote.*.proxy protocol.allow
    protocol.*.allow safe.* fetch.bundleuri bundle.* bundle.*.* lfs.url lfs.*.* extensions.refstorage
    submodule.*.gitdir
    """
)
_HARMLESS = word_set(
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
    difftool.prompt extensions.compatobjectformat extensions.noop extensions.objectformat
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
    remote.*.prune remote.*.prunetags remote.*.push
    remote.*.pushurl remote.*.serveroption remote.*.skipdefaultupdate remote.*.skipfetchall remote.*.tagopt
    remote.*.url submodule.active submodule.alternateerrorstrategy submodule.alternatelocation
    submodule.fetchjobs submodule.propagatebranches submodule.recurse submodule.*.active submodule.*.branch
    submodule.*.fetchrecursesubmodules submodule.*.ignore submodule.*.path submodule.*.shallow
    submodule.*.update submodule.*.url
    """
)
# These name an address for git. Some forms of an address make git run a helper.
_ADDRESSES = word_set(
    "remote.*.url remote.*.pushurl remote.pushdefault submodule.*.url branch.*.remote branch.*.pushremote"
)
_UPDATES = word_set("submodule.*.update")
_BUILT_IN_UPDATES = frozenset(("checkout", "rebase", "merge", "none"))
_TOOLS = word_set("diff.tool diff.guitool merge.tool merge.guitool")  # a value with a slash is a script that git reads
_PATHS = word_set("core.hookspath core.attributesfile core.worktree")
_SWITCHES = word_set("core.fsmonitor pager.*")  # or the name of a program
_SWITCH_VALUES = frozenset(("true", "false"))
_INTERACTIVE_PROGRAMS = word_set("core.pager core.editor sequence.editor pager.*")
# Agents set these programs so that git does not wait for a person.
_HARMLESS_PROGRAMS = frozenset(("", "cat", "less", "more", "true", ":", "vi", "vim", "nano"))


def key_concern(key: str, old_values: Values, new_values: Values) -> Concern | None:
    """Judge one setting whose values are new or changed."""
    if _names_program(key):
        return _program_concern(key, {value or "" for value in new_values})
    for value in [value or "" for value in dict.fromkeys(new_values) if value not in old_values]:
        if _is_in(key, _ADDRESSES) and _is_helper_address(value):
            return hold(FLAG, f"{brief(key)} has an address that makes git run a program")
        if (_is_in(key, _UPDATES) and value not in _BUILT_IN_UPDATES) or (key in _TOOLS and "/" in value):
            return hold(FLAG, f"{brief(key)} names a program for git to run")
        if key == "extensions.refstorage" and "://" in value:
            return hold(FLAG, f"{brief(key)} leads git to branches elsewhere")
    if _is_in(key, _HARMLESS):
        return None
    if _is_in(key, _CONTACTS):
        return hold(FLAG, f"{brief(key)} decides whom git contacts or trusts")
    return hold(FLAG, f"{brief(key)} is not a git setting that is known to be harmless")


def _program_concern(key: str, values: set[str]) -> Concern | None:
    if _is_in(key, _SWITCHES) and {value.lower() for value in values} <= _SWITCH_VALUES:
        return None
    if _is_in(key, _INTERACTIVE_PROGRAMS) and values <= _HARMLESS_PROGRAMS:
        return flag(FLAG, f"{brief(key)} is set")
    if _is_in(key, _PROMISES):
        return hold(FLAG, f"git would contact a server by itself for what is missing here, by {brief(key)}")
    if key.startswith("include"):
        return hold(FLAG, f"git would read settings from another file, named by {brief(key)}")
    if _is_in(key, _PATHS):
        return hold(FLAG, f"{brief(key)} leads git to files elsewhere")
    return hold(FLAG, f"git would run a program named by {brief(key)}")


def _names_program(key: str) -> bool:
    """Return True if git runs or reads something that this setting names, by itself or when a person asks."""
    return runs_by_itself(key) or _is_in(key, _ON_DEMAND)


def runs_by_itself(key: str) -> bool:
    """Return True if git runs or reads something that this setting names in everyday commands."""
    return _is_in(key, _AUTOMATIC) or _is_in(key, _PROMISES)


def may_name_program(key: str) -> bool:
    """Return True unless a setting is known to be harmless: git may run or obey what it names."""
    return not _is_in(key, _HARMLESS)


def _is_in(key: str, table: frozenset[str]) -> bool:
    section, subsection, name = split_key(key)
    if subsection is None:
        return key in table or f"{section}.*" in table
    patterns = (key, f"{section}.*.{name}", f"{section}.{subsection.partition('.')[0]}.*.{name}", f"{section}.*.*")
    return any(pattern in table for pattern in patterns)


def _is_helper_address(value: str) -> bool:
    """Return True if git would take an address for an option or for `helper::address`."""
    helper, colons, _ = value.partition("::")
    has_helper = bool(colons) and helper.replace("-", "").replace("+", "").replace(".", "").isalnum()
    return value.startswith(("-", "!")) or has_helper or not value.isprintable()


# Changes to the configuration of a repository that existed before.
#
# Only what git itself writes there on a normal day needs no person: a setting that runs nothing can still decide where
# git sends a person's commits. Removed settings count as much as new ones: if its `pushurl` is gone, a push goes
# elsewhere.

# `git init`, `git sparse-checkout`, `git worktree` and `git submodule` write these values.
_WRITTEN_VALUES = {
    "core.filemode": _SWITCH_VALUES, "core.ignorecase": _SWITCH_VALUES, "core.precomposeunicode": _SWITCH_VALUES,
    "core.symlinks": _SWITCH_VALUES, "core.bare": frozenset(("false",)),
    "core.logallrefupdates": frozenset(("true",)), "core.sparsecheckout": _SWITCH_VALUES,
    "core.sparsecheckoutcone": _SWITCH_VALUES, "index.sparse": _SWITCH_VALUES,
    "extensions.worktreeconfig": frozenset(("true",)), "extensions.relativeworktrees": frozenset(("true",)),
    "submodule.*.active": _SWITCH_VALUES, "submodule.*.update": _BUILT_IN_UPDATES,
}  # fmt: skip
_ANY_VALUE = word_set("pull.rebase pull.ff submodule.active branch.*.rebase branch.*.description")
# `git submodule deinit` removes a whole section, older versions of `git sparse-checkout disable` remove their settings.
_REMOVED_BY_GIT = word_set(
    """
    core.sparsecheckout core.sparsecheckoutcone index.sparse submodule.*.url submodule.*.active submodule.*.update
    submodule.*.branch submodule.*.ignore submodule.*.fetchrecursesubmodules submodule.*.shallow submodule.*.path
    """
)
_NEVER_REMOVED_FROM_BRANCH = word_set("pushremote mergeoptions")
# These decide where git sends data to: keys that begin so, and single keys.
_DESTINATION_STARTS = ("remote.", "remotes.", "url.", "push.", "lfs.")
_DESTINATIONS = word_set("extensions.partialclone branch.*.remote branch.*.pushremote branch.*.merge submodule.*.url")
# In these sections, the order of different settings has no effect.
_UNORDERED_SECTIONS = ("branch", "core", "extensions", "index", "pull", "submodule", "user")


def everyday_concern(old: bytes | None, new: bytes, is_own_work_tree: Callable[[Values], bool]) -> Concern | None:
    """Judge a configuration by every key whose values changed or were removed.

    `is_own_work_tree` returns True for the values that `core.worktree` may have: a submodule has one.
    """
    new_entries = parse(new)
    if new_entries is None:
        return hold(FLAG, "can't be understood as a git configuration")
    old_entries = _parse_old(old)
    old_settings, new_settings = values_by_key(old_entries), values_by_key(new_entries)
    renamed_branches = _renamed_branches(old_settings, new_settings)
    changed = [key for key in {**new_settings, **old_settings} if old_settings.get(key) != new_settings.get(key)]
    reasons = []
    for key in changed:
        new_values = new_settings.get(key, ())
        if key == "core.worktree" and is_own_work_tree(new_values):
            continue
        if split_key(key)[:2] not in renamed_branches and not _is_everyday(key, old_settings, new_values):
            reasons.append(_severity_and_reason(key, old_settings.get(key, ()), new_values))
    if reasons:
        more = f"; and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        return hold(FLAG, f"{min(reasons)[1]}{more}")
    return _order_concern(old_entries, new_entries, set(changed))


def _is_everyday(key: str, old_settings: Settings, new_values: Values) -> bool:
    """Return True if git itself, in a repository with these old settings, writes such values or removes the key."""
    section, subsection, name = split_key(key)
    pattern = _pattern(key)
    if pattern in _ANY_VALUE or (section == "user" and subsection is None):
        return True
    if not new_values:
        is_of_branch = pattern.startswith("branch.*.")
        return pattern in _REMOVED_BY_GIT or (is_of_branch and name not in _NEVER_REMOVED_FROM_BRANCH)
    if pattern in _WRITTEN_VALUES:
        return all((value or "").lower() in _WRITTEN_VALUES[pattern] for value in new_values)
    if key == "core.repositoryformatversion":
        return new_values == ("1",) or (new_values == ("0",) and key not in old_settings)
    if pattern == "submodule.*.url":
        return key not in old_settings and key_concern(key, (), new_values) is None
    if pattern == "branch.*.merge":
        return all((value or "").startswith("refs/") for value in new_values)
    return pattern == "branch.*.remote" and _are_existing_remotes(new_values, old_settings)


def _are_existing_remotes(names: Values, old_settings: Settings) -> bool:
    """Return True if all of these name remotes that existed, or the repository itself, a dot; none is an address."""
    return all(name == "." or f"remote.{name}.url" in old_settings for name in names)


def _pattern(key: str) -> str:
    section, subsection, name = split_key(key)
    return key if subsection is None else f"{section}.*.{name}"


def _renamed_branches(old_settings: Settings, new_settings: Settings) -> set[tuple[str, str | None]]:
    """Return the sections of branches that were renamed and keep all their settings, under both names.

    A branch that follows a bare address does not count: if another one got the name `main`, a push of `main` would go
    to somebody's fork.
    """
    old, new = _settings_by_branch(old_settings), _settings_by_branch(new_settings)
    removed_by_settings: dict[frozenset[tuple[str, Values]], list[str]] = {}
    for name in old.keys() - new.keys():
        removed_by_settings.setdefault(frozenset(old[name].items()), []).append(name)
    renamed: set[tuple[str, str | None]] = set()
    for name in new.keys() - old.keys():
        remotes = (*new[name].get("remote", ()), *new[name].get("pushremote", ()))
        same_settings = removed_by_settings.get(frozenset(new[name].items()))
        if same_settings and _are_existing_remotes(remotes, old_settings):
            renamed |= {("branch", same_settings.pop()), ("branch", name)}
    return renamed


def _settings_by_branch(settings: Settings) -> dict[str, Settings]:
    branches: dict[str, Settings] = {}
    for key, values in settings.items():
        section, subsection, name = split_key(key)
        if section == "branch" and subsection is not None:
            branches.setdefault(subsection, {})[name] = values
    return branches


def _severity_and_reason(key: str, old_values: Values, new_values: Values) -> tuple[int, str]:
    """Say in plain words what a changed key means; the most severe reasons have the smallest number."""
    change = f"{brief(key)} is {'gone' if not new_values else 'changed' if old_values else 'new'}"
    concern = key_concern(key, old_values, new_values) if new_values else None
    if concern is not None and concern.held:
        return (0 if _names_program(key) else 1), concern.reason
    if _names_program(key):
        return 0, f"{change}: it decides what git runs or obeys"
    if _pattern(key) in _DESTINATIONS or key.startswith(_DESTINATION_STARTS):
        return 1, f"{change}: it decides where git sends data to and gets it from"
    if _is_in(key, _CONTACTS):
        return 1, f"{change}: it decides whom git contacts or trusts"
    return 2, f"{change}: not a setting that a normal day's work writes"


def _order_concern(old: Sequence[Entry], new: Sequence[Entry], changed: set[str]) -> Concern | None:
    """Judge the order of the unchanged settings: git takes the last value, and reads a file where it is included."""
    has_include = any(key.startswith("include") for key, _ in new)

    def ordered(entries: Sequence[Entry]) -> list[Entry]:
        unchanged = (entry for entry in entries if entry[0] not in changed)
        return [entry for entry in unchanged if has_include or entry[0].partition(".")[0] not in _UNORDERED_SECTIONS]

    for old_entry, new_entry in zip(ordered(old), ordered(new), strict=True):
        if old_entry != new_entry:
            return hold(FLAG, f"{brief(new_entry[0])} is in another place: the order decides which setting git obeys")
    return None
