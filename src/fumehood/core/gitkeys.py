"""Tell which settings of a git configuration make git run something or lead it elsewhere.

What is known to be harmless is listed, and the rest waits for a person: git and its companions gain
settings that run programs with almost every release. That is for a repository that is new, and whose addresses
are its own matter; `giteveryday` is for one that was there.
"""

from __future__ import annotations

from fumehood.core.concern import Concern, flagged, held, shown, words
from fumehood.core.gitconfig import split_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.gitconfig import Values

FLAG = "git-config"

# `a.b` is a name in a section, `a.*.b` one in a subsection, `a.*` any of the section, `a.*.*` of its subsections.
# Run or read by git in the course of everyday commands, without being asked for.
AUTOMATIC = words(
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
ON_DEMAND = words(
    """
    alias.* alias.*.* core.editor sequence.editor mergetool.*.cmd mergetool.*.path difftool.*.cmd difftool.*.path
    guitool.*.cmd browser.*.cmd browser.*.path man.*.cmd man.*.path web.browser help.browser instaweb.httpd
    instaweb.browser tar.*.command imap.tunnel init.templatedir branch.*.mergeoptions pull.twohead pull.octopus
    sendemail.* sendemail.*.*
    """
)
ELSEWHERE = words(
    """
    url.*.insteadof url.*.pushinsteadof http.* http.*.* credential.* credential.*.* remote.*.proxy protocol.allow
    protocol.*.allow safe.* fetch.bundleuri bundle.* bundle.*.* lfs.url lfs.*.* extensions.refstorage
    submodule.*.gitdir
    """
)
HARMLESS = words(
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
ADDRESSES = words(
    "remote.*.url remote.*.pushurl remote.pushdefault submodule.*.url branch.*.remote branch.*.pushremote"
)
_PLACES = words("core.hookspath core.attributesfile core.worktree")
_SWITCHABLE = words("core.fsmonitor pager.*")
_FOR_A_PERSON = words("core.pager core.editor sequence.editor pager.*")
_SWITCHES = frozenset(("true", "false"))
# What agents name so that git does not wait for a person.
_PLAIN_PROGRAMS = frozenset(("", "cat", "less", "more", "true", ":", "vi", "vim", "nano"))
UPDATES = frozenset(("checkout", "rebase", "merge", "none"))


def key_concern(key: str, was: Values, now: Values) -> Concern | None:
    """Judge one setting whose values are new or changed."""
    names = _patterns(key)
    if runs_something(key):
        return _program(key, names, now)
    before = frozenset(was)
    for value in dict.fromkeys(now):
        if value not in before and (reason := _bad_value(names, value or "")):
            return held(FLAG, f"{shown(key)} {reason}")
    if _is_in(names, HARMLESS):
        return None
    if leads_elsewhere(key):
        return held(FLAG, f"{shown(key)} decides whom git contacts or trusts")
    return held(FLAG, f"{shown(key)} is not a git setting that is known to be harmless")


def _bad_value(names: tuple[str, ...], value: str) -> str:
    """Say what is wrong with a value of a setting that is harmless otherwise."""
    if _is_in(names, ADDRESSES) and _is_helper_address(value):
        return "has an address that makes git run a program"
    if "submodule.*.update" in names and value not in UPDATES:
        return "names a program for git to run"
    if "extensions.refstorage" in names and "://" in value:
        return "leads git to branches elsewhere"
    return ""


def runs_something(key: str) -> bool:
    """Tell whether git runs or reads something that this setting names, by itself or when asked to."""
    names = _patterns(key)
    return _is_in(names, AUTOMATIC) or _is_in(names, ON_DEMAND)


def leads_elsewhere(key: str) -> bool:
    """Tell whether a setting decides whom git contacts or trusts."""
    return _is_in(_patterns(key), ELSEWHERE)


def runs_by_itself(key: str) -> bool:
    """Tell whether git acts on this setting in everyday commands."""
    return _is_in(_patterns(key), AUTOMATIC)


def may_name_program(key: str) -> bool:
    """Tell whether what a setting names may be run or obeyed by git, automatically or when a person asks."""
    return not _is_in(_patterns(key), HARMLESS)


def _program(key: str, names: tuple[str, ...], now: Values) -> Concern | None:
    values = {value or "" for value in now}
    if _is_in(names, _SWITCHABLE) and {value.lower() for value in values} <= _SWITCHES:
        return None
    if _is_in(names, _FOR_A_PERSON) and values <= _PLAIN_PROGRAMS:
        return flagged(FLAG, f"{shown(key)} is set")
    if key.startswith("include"):
        return held(FLAG, f"git would read settings from another file, named by {shown(key)}")
    if _is_in(names, _PLACES):
        return held(FLAG, f"{shown(key)} leads git to files elsewhere")
    return held(FLAG, f"git would run a program named by {shown(key)}")


def _patterns(key: str) -> tuple[str, ...]:
    section, subsection, name = split_key(key)
    if subsection is None:
        return key, f"{section}.*"
    return key, f"{section}.*.{name}", f"{section}.{subsection.partition('.')[0]}.*.{name}", f"{section}.*.*"


def _is_in(names: tuple[str, ...], table: frozenset[str]) -> bool:
    return any(name in table for name in names)


def _is_helper_address(value: str) -> bool:
    """Tell whether git would take an address for options or for `helper::address`."""
    before, colons, _ = value.partition("::")
    helper = bool(colons) and before.replace("-", "").replace("+", "").replace(".", "").isalnum()
    return value.startswith(("-", "!")) or helper or not value.isprintable()
