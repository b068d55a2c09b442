"""Settings of package managers and version controls for a command that does not see the home, less secret ones."""

from __future__ import annotations

import os

from fumehood.core.environment import holds_secret, looks_secret
from fumehood.core.gitconfig import split_key
from fumehood.core.masks import is_in
from fumehood.core.package_settings import Malformed, announces_secret, may_hold_secret, paths_below, shown_of
from fumehood.core.value import Value, words
from fumehood.linux.git_includes import INCLUDE, Configuration, Unreadable, Watch, expanded, global_files, seen_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fumehood.core.gitconfig import Entry
    from fumehood.linux.cache import Snapshot


class SettingsFile(Value):
    """A file for the home that a command gets: its path there, and its text, "" where nothing is shown of it.

    One that a variable puts outside of the home has its whole path: it is hidden where something is secret in it.
    """

    path: str
    text: str
    dropped: tuple[str, ...]  # what was left out of the person's own, by name, or why all of it was


class ToolSettings(Value):
    """The files of package managers and of version controls other than git, and all that was looked at for them."""

    files: tuple[SettingsFile, ...]
    watched: Snapshot


def tool_settings(
    home: str, environment: Mapping[str, str], writable: Sequence[str] = (), user: int | None = None
) -> ToolSettings:
    """Make the settings of a command's tools from the person's; `writable` are the directories that commands can write.

    What lies there is left as it is, and never read as if the person had written it. `user` is whom it runs as.
    """
    watch = Watch(user)
    homes = tuple(dict.fromkeys((home, os.path.realpath(home))))
    ours = tuple({path: None for each in writable for path in (each, os.path.realpath(each))})
    files: list[SettingsFile] = []
    dropped: tuple[str, ...]
    places = {path: manager for manager, *paths in _places(home, environment, watch) for path in paths}
    for path, manager in places.items():
        # Some are a variable's, and may be anything.
        is_whole = path.startswith("/") and path == os.path.normpath(path)
        if not is_whole or not watch.look(path) or is_in(path, ours):
            continue
        text, dropped = "", ("all of it: it lies where commands can write",)
        if seen_at(path, ours) is None:
            try:
                data = watch.read(path)
                text, dropped = shown_of(manager, data, homes) if data is not None else ("", ())
            except (Malformed, Unreadable) as error:
                dropped = (f"all of it: {error}",)
        name = os.path.relpath(path, home) if is_in(path, (home,)) else path
        files.append(SettingsFile(path=name, text=text, dropped=dropped))
    return ToolSettings(files=tuple(files), watched=watch.snapshot)


def _places(home: str, environment: Mapping[str, str], watch: Watch) -> Iterator[tuple[str, ...]]:
    """Yield each tool's name, and where it would look for its files."""
    config = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    named = environment.get("PIP_CONFIG_FILE", "")
    if named != os.devnull:
        yield "pip", f"{home}/.pip/pip.conf", f"{config}/pip/pip.conf", named
    if not environment.get("UV_NO_CONFIG"):
        yield "uv", environment.get("UV_CONFIG_FILE") or f"{config}/uv/uv.toml"
    npmrc = environment.get("npm_config_userconfig") or environment.get("NPM_CONFIG_USERCONFIG")
    everybodys = environment.get("npm_config_globalconfig") or environment.get("NPM_CONFIG_GLOBALCONFIG") or ""
    yield "npm", npmrc or f"{home}/.npmrc", everybodys
    yield "yarn classic", f"{home}/.yarnrc"
    yield "yarn", f"{home}/{environment.get('YARN_RC_FILENAME') or '.yarnrc.yml'}"
    cargo = environment.get("CARGO_HOME") or f"{home}/.cargo"
    # Without an ending is the old name, which cargo takes first where both are there.
    yield "cargo", f"{cargo}/config", *([] if watch.look(f"{cargo}/config") else [f"{cargo}/config.toml"])
    yield "maven", f"{home}/.m2/settings.xml"
    yield "go", environment.get("GOENV") or f"{config}/go/env"
    # Without those of version controls, commits are nobody's.
    if "HGRCPATH" not in environment:
        yield "mercurial", f"{home}/.hgrc", f"{config}/hg/hgrc"
    named = environment.get("JJ_CONFIG", "")
    yield "jj", *([named] if named else [f"{home}/.jjconfig.toml", f"{config}/jj/config.toml"])


# Git's settings for a command that does not see the home: one flat file, made from the person's own.
#
# Kept are settings of git itself whose values hold no secret and name nothing in the home that is out of sight. Another
# program's section may hold anything, so it is left out. Signing is off: the keys are not in sight, and every commit
# would fail.

GITCONFIG = ".gitconfig"

# Sections of git's own, and of git-lfs, which is part of it in practice.
SECTIONS = words(
    """
    add advice alias am apply attr author bitmappseudomerge blame branch bundle checkout clean clone color column
    commit commitgraph committer completion core diff difftool extensions fastimport feature fetch filter format fsck
    fsmonitor gc grep gui guitool help hook http i18n index init interactive lfs log lsrefs mailinfo mailmap
    maintenance merge mergetool notes pack pager pretty promisor protocol pull push rebase receive reftable remote
    remotes repack replay rerere revert safe sequence showbranch sideband sparse splitindex ssh stash status submodule
    tag tar trace2 trailer transfer uploadarchive uploadpack uploadpackfilter url user versionsort worktree
    """
)
# Of these, what a person's own desk has: editors, keys, proxies, hooks of theirs for every repository.
_PERSONAL = words(
    """
    core.askpass core.editor core.gitproxy core.hookspath core.pager core.sshcommand sequence.editor
    commit.gpgsign tag.gpgsign tag.forcesignannotated push.gpgsign user.signingkey log.showsignature
    merge.verifysignatures receive.certnonceseed remote.*.proxy remote.*.proxyauthmethod
    """
)
_HTTP = words(
    """
    followredirects keepalivecount keepaliveidle keepaliveinterval lowspeedlimit lowspeedtime maxrequests maxretries
    maxretrytime minsessions noepsv pinnedpubkey postbuffer retryafter schannelcheckrevoke schannelusesslcainfo
    sslbackend sslcainfo sslcapath sslcipherlist ssltry sslverify sslversion useragent version
    """
)
_PEOPLE = words("user author committer branch")  # whose values are names: Pat and Key are such
_SWITCHES = words("true false yes no on off 1 0")
_LISTS = (("core.excludesfile", "ignore"), ("core.attributesfile", "attributes"))
_JUDGED_LATER = frozenset(("safe.directory", *(key for key, _ in _LISTS)))


class GitSettings(Value):
    """A flat `.gitconfig`, what was left out of it, and the files that go beside it, by their names in the home.

    Bytes that are no UTF-8 are surrogates in the texts, as `os.fsencode` takes them.
    """

    text: str
    dropped_keys: tuple[str, ...]  # as `key_to_tell` writes them
    files: tuple[tuple[str, str], ...]
    unread: tuple[tuple[str, str], ...]  # files of which nothing is used, and why
    watched: Snapshot


def flat_git_settings(
    home: str, xdg_config_home: str, environment: Mapping[str, str], project: str, in_sight: Sequence[str] = (),
    user: int | None = None,
) -> GitSettings:  # fmt: skip
    """Make a command's git settings from the person's; `in_sight` are directories it sees besides the project.

    All roots must be among them: what commands can write there is never read as if the person had written it. `user` is
    whom the command runs as.
    """
    watch = Watch(user)
    config_home = xdg_config_home or f"{home}/.config"
    visible = tuple({path: None for each in (project, *in_sight) for path in (each, os.path.realpath(each))})
    configuration = Configuration(home, environment, project, visible, watch)
    configuration.read(global_files(home, config_home, environment, project))
    judge = _Judge(home, visible)
    dropped = judge.dropped(configuration.entries)
    pointers = dict(_LISTS)
    kept = [
        (key, value) for key, value in configuration.entries
        if key not in dropped and key not in pointers and judge.is_own_directory(key, value)
    ]  # fmt: skip
    files: list[tuple[str, str]] = []
    for key, name in _LISTS:
        values = [value for own, value in configuration.entries if own == key]
        default = f"{config_home}/git/{name}"
        place, copied = _pattern_list((values[-1] or "") if values else default, name, home, visible, watch)
        if copied is not None:
            files.append((f".config/git/{name}", copied))
        if values or place not in ("", default):
            kept.append((key, place))
    if kept or dropped:
        kept += [("commit.gpgsign", "false"), ("tag.gpgsign", "false")]
    return GitSettings(
        text="".join(map(git_setting, kept)), dropped_keys=tuple(sorted(set(map(key_to_tell, dropped)))),
        files=tuple(files),
        unread=tuple(configuration.unread), watched=watch.snapshot,
    )  # fmt: skip


class _Judge:
    """Decides which settings a command gets."""

    def __init__(self, home: str, visible: Sequence[str]) -> None:
        self._home = home
        self._homes = tuple(dict.fromkeys((home, os.path.realpath(home))))
        self._visible = visible

    def dropped(self, entries: Sequence[Entry]) -> set[str]:
        """Return the keys that are left out: with one of a driver, a remote or a hook go all others of it.

        A filter that is required and has no program any more would make every commit fail.
        """
        keys = {key for key, value in entries if key != INCLUDE and not self._is_kept(key, value)}
        broken = {split_key(key)[:2] for key in keys if split_key(key)[1] is not None and not key.startswith("http.")}
        return keys | {key for key, _ in entries if split_key(key)[:2] in broken}

    def _is_kept(self, key: str, value: str | None) -> bool:
        section, subsection, name = split_key(key)
        if section not in SECTIONS or key in _PERSONAL or f"{section}.*.{name}" in _PERSONAL:
            return False
        # A trailer's key is the word it begins with.
        if (looks_secret(name) and section != "trailer") or may_hold_secret(subsection or ""):
            return False
        if section == "http" and name not in _HTTP:
            return False
        return key in _JUDGED_LATER or self._is_plain(section, name, value)

    def _is_plain(self, section: str, name: str, value: str | None) -> bool:
        """Return True if a value holds no secret, and runs or reads nothing of the home that is out of sight."""
        text = value or ""
        if section in _PEOPLE:
            return not may_hold_secret(text)
        if section == "pager":
            return value is None or text.lower() in _SWITCHES
        if (section, name) == ("core", "fsmonitor"):
            return text.lower() in ("false", "no", "off", "0")
        is_address = section in ("url", "remote") or name.endswith(("url", "uri"))
        is_secret = may_hold_secret(text) if is_address else announces_secret(text)
        if is_secret or holds_secret(text):
            return False
        return all(is_in(os.path.normpath(path), self._visible) for path in paths_below(text, self._homes))

    def is_own_directory(self, key: str, value: str | None) -> bool:
        """Return True if a setting is other than a directory that git may trust and the command does not see."""
        if key != "safe.directory" or not value or value in ("*", "."):
            return True
        path = (expanded(value, self._home) or value).rstrip("/")
        if path.endswith("/*"):
            above = path[:-2]
            return is_in(above, self._visible) or any(is_in(each, (above,)) for each in self._visible)
        return is_in(path, self._visible)


def key_to_tell(key: str) -> str:
    """Return a key as it may be told to anybody: what stands in quotes in it can hold a secret."""
    section, subsection, name = split_key(key)
    is_plain = section in SECTIONS and not may_hold_secret(subsection or "")
    return key if subsection is None or is_plain else f"{section}.….{name}"


def _pattern_list(value: str, name: str, home: str, visible: Sequence[str], watch: Watch) -> tuple[str, str | None]:
    """Return what a command's setting for a list of patterns is, and its text where it must be copied.

    Comments are not copied, and without a file the setting is "", which is none.
    """
    path = expanded(value, home) or ""
    if not path.startswith("/"):
        return path, None  # found from the directory that git is in
    watch.look(path)
    seen = seen_at(path, visible)
    if seen is not None or not is_in(path, (home, os.path.realpath(home))):
        return seen or path, None
    try:
        data = watch.read(path)
    except Unreadable:
        data = None
    if data is None:
        return "", None
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    return f"~/.config/git/{name}", "".join(f"{line}\n" for line in lines if line.strip() and line[0] != "#")


def git_setting(entry: Entry) -> str:
    """Write a setting as git reads it."""
    key, value = entry
    section, subsection, name = split_key(key)
    inner = "" if subsection is None else ' "' + subsection.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if value is None:
        return f"[{section}{inner}]\n\t{name}\n"
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\b", "\\b")):
        value = value.replace(plain, escaped)
    return f'[{section}{inner}]\n\t{name} = "{value}"\n'
