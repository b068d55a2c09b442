"""Which settings of a git configuration are held, flagged, or pass, in a repository that a run made."""

from __future__ import annotations

import pytest

from fumehood.core.danger import ChangeFacts, find_concern, wants_facts
from judging import BASE, NO_RULES, added, file, is_flagged, is_held, modified, setting

CONFIGS = [
    ".git/config", ".git/config.worktree", ".git/modules/sub/config", ".git/modules/a/b/config",
    ".git/worktrees/x/config.worktree", ".git/worktrees/x/config", "nested/.git/config",
]  # fmt: skip
EXECUTING = [
    "core.fsmonitor=/tmp/evil", "core.hooksPath=.", "core.sshCommand=evil", "core.gitProxy=evil", "core.editor=evil",
    "core.pager=evil", "core.askPass=evil", "core.attributesFile=x", "core.worktree=/",
    "core.alternateRefsCommand=evil",
    "sequence.editor=evil", "diff.external=evil", "diff.x.command=evil", "diff.x.textconv=evil",
    "filter.x.clean=evil", "filter.x.smudge=evil", "filter.x.process=evil", "merge.x.driver=evil",
    "mergetool.x.cmd=evil", "mergetool.x.path=evil", "difftool.x.cmd=evil", "difftool.x.path=evil",
    "gpg.program=evil", "gpg.ssh.program=evil", "gpg.ssh.defaultKeyCommand=evil", "credential.helper=evil",
    "credential.https://x.helper=evil", "alias.st=!evil", "pager.log=evil", "include.path=x",
    "includeIf.gitdir:/.path=x", "remote.x.uploadpack=evil", "remote.x.receivepack=evil", "remote.x.vcs=evil",
    "remote.x.proxy=http://evil", "url.http://evil/.insteadOf=https://", "url.http://evil/.pushInsteadOf=https://",
    "http.proxy=evil", "http.sslVerify=false", "http.https://x.sslCAInfo=x", "browser.x.cmd=evil", "man.x.cmd=evil",
    "web.browser=evil", "interactive.diffFilter=evil", "trailer.x.command=evil", "trailer.x.cmd=evil",
    "submodule.x.update=!evil", "uploadpack.packObjectsHook=evil", "init.templateDir=x", "protocol.ext.allow=always",
    "safe.directory=*", "hook.x.command=evil", "hook.x.event=pre-commit", "gc.recentObjectsHook=evil",
    "sendemail.smtpServer=/tmp/evil", "imap.tunnel=evil", "tar.x.command=evil", "guitool.x.cmd=evil",
    "rebase.instructionFormat=%s%nexec evil", "branch.main.mergeOptions=-s evil", "lfs.customtransfer.x.path=evil",
    "remote.x.url=ext::sh -c evil", "remote.x.url=--upload-pack=evil", "remote.x.pushurl=evil::x",
    "branch.main.remote=ext::evil", "submodule.x.url=-evil", "extensions.refStorage=files:///tmp/evil",
    "extensions.partialClone=origin", "remote.x.promisor=true", "remote.x.partialCloneFilter=blob:none",
    "merge.tool=../../../evil", "diff.guitool=../evil", "unheard.of=1", "core.unheardOf=1", "tig.bind=evil",
]  # fmt: skip
HARMLESS = [
    "user.name=A", "user.email=a@b", "remote.origin.url=https://example.org/x.git", "remote.origin.url=git@x:y/z.git",
    "remote.origin.url=ssh://[::1]/x", "remote.origin.url=/srv/x.git", "remote.origin.url=../x.git",
    "remote.origin.fetch=+refs/heads/*:refs/remotes/origin/*", "branch.main.remote=origin",
    "branch.main.merge=refs/heads/main", "branch.main.remote=.", "branch.a.vscode-merge-base=origin/main",
    "core.ignorecase=true", "core.symlinks=false", "core.autocrlf=input", "core.fsmonitor=false", "pager.log=false",
    "extensions.worktreeConfig=true", "extensions.objectFormat=sha256",
    "core.sparseCheckout=true", "index.sparse=true", "submodule.sub.url=https://example.org/s.git",
    "submodule.sub.active=true", "submodule.sub.update=rebase", "pull.rebase=true", "push.default=current",
    "commit.gpgsign=false", "merge.conflictStyle=zdiff3", "merge.tool=vimdiff",
    "color.ui=always", "color.diff.meta=red",
    "advice.detachedHead=false", "gc.auto=0", "diff.x.xfuncname=^def", "lfs.repositoryformatversion=0",
    "blame.ignoreRevsFile=.git-blame-ignore-revs", "core.excludesFile=x", "commit.template=.gitmessage",
]  # fmt: skip


@pytest.mark.parametrize("line", EXECUTING)
def test_a_setting_that_makes_git_run_or_obey_something_is_held(line: str) -> None:
    assert is_held(file(".git/config", BASE + setting(line), old=BASE))
    assert is_held(file(".git/config", BASE + setting(line)))
    assert is_held(file(".git/config", BASE + setting(line), old=BASE + setting(line.partition("=")[0] + "=before")))


@pytest.mark.parametrize("line", EXECUTING)
def test_such_a_setting_passes_if_it_was_there(line: str) -> None:
    full = BASE + setting(line)
    assert file(".git/config", full + setting("user.name=A"), old=full) is None


@pytest.mark.parametrize("line", HARMLESS)
def test_a_harmless_setting_passes(line: str) -> None:
    assert file(".git/config", BASE + setting(line)) is None


@pytest.mark.parametrize("path", CONFIGS)
def test_every_configuration_git_reads_is_compared_by_key(path: str) -> None:
    assert wants_facts(added(path))
    assert wants_facts(modified(path))
    assert file(path, BASE) is None
    assert is_held(file(path, BASE + b"[CORE] FsMonitor = evil", old=BASE))
    assert is_held(file(path, BASE + b"[broken", old=BASE))
    assert is_held(find_concern(modified(path), None, NO_RULES))
    assert is_held(find_concern(modified(path), ChangeFacts(old=BASE, new=BASE, is_complete=False), NO_RULES))


@pytest.mark.parametrize("line", ["core.pager=cat", "core.editor=true", "pager.diff=cat"])
def test_a_plain_program_that_keeps_git_from_waiting_is_flagged(line: str) -> None:
    assert is_flagged(file(".git/config", BASE + setting(line)))


def test_a_key_is_shown_without_control_characters() -> None:
    found = file(".git/config", b'[filter "\x1b[2J\x07"]\nclean = evil\n')
    assert found is not None
    assert found.reason.isprintable()
