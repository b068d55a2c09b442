"""What git writes on a normal day into a repository that was there passes; every other change of its settings waits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.core.changes import DELETED, DIRECTORY, FILE, Change
from fumehood.core.danger import ChangeFacts, find_concern, wants_facts
from fumehood.core.gitconfig import parse, values_by_key
from judging import BASE, NO_RULES, ROOT, added, file, is_flagged, is_held, setting, stamp

ORIGIN = setting("remote.origin.url=https://example.org/x.git") + setting(
    "remote.origin.fetch=+refs/heads/*:refs/remotes/origin/*"
)
THERE = BASE + ORIGIN
EVERYDAY = [
    "user.name=A", "user.email=a@b", "user.signingKey=ABCD", "branch.topic.remote=origin", "branch.topic.remote=.",
    "branch.topic.merge=refs/heads/main", "branch.topic.rebase=true", "branch.a.b.c.description=what it is for",
    "core.logAllRefUpdates=true", "core.ignoreCase=true", "core.symlinks=false",
    "core.precomposeUnicode=true", "core.sparseCheckout=true", "core.sparseCheckoutCone=false", "index.sparse=false",
    "extensions.worktreeConfig=true", "extensions.relativeWorktrees=true", "submodule.active=.",
    "submodule.sub.url=https://example.org/s.git", "submodule.sub.url=../s.git", "submodule.sub.active=true",
    "submodule.sub.update=rebase", "pull.rebase=true", "pull.rebase=false", "pull.ff=only",
]  # fmt: skip
SENDING = [
    "remote.origin.url=https://evil", "remote.origin.pushurl=https://evil", "remote.origin.push=+main:production",
    "remote.origin.mirror=true",
    "remote.origin.fetch=+refs/heads/*:refs/heads/*", "remote.origin.tagOpt=--tags", "remote.origin.prune=true",
    "remote.pushDefault=evil", "remote.evil.url=https://evil",
    "branch.main.remote=https://evil", "branch.main.remote=evil", "branch.main.remote=/tmp/evil", "branch.main.remote=",
    "branch.main.remote=../evil", "branch.main.pushRemote=origin", "branch.main.merge=main:production",
    "push.default=matching", "push.followTags=true", "remotes.default=evil", "submodule.lib.url=https://evil",
]  # fmt: skip
UNUSUAL = [
    "commit.gpgSign=false", "color.ui=always", "core.autocrlf=input", "core.excludesFile=x", "core.fsmonitor=false",
    "core.pager=cat", "core.bare=true", "core.sharedRepository=true", "core.logAllRefUpdates=false", "gc.auto=0",
    "receive.denyCurrentBranch=ignore", "extensions.worktreeConfig=false", "extensions.objectFormat=sha256",
    "submodule.recurse=true", "submodule.sub.path=x", "submodule.sub.update=!evil", "submodule.sub.url=ext::evil",
    "fetch.prune=true", "user.x.y=1", "branch.autoSetupMerge=always", "branch.main.mergeOptions=--no-verify",
    "lfs.url=https://evil", "credential.username=x", "transfer.fsckObjects=false",
]  # fmt: skip


@pytest.mark.parametrize("line", EVERYDAY)
def test_what_a_normal_day_writes_passes(line: str) -> None:
    assert file(".git/config", THERE + setting(line), old=THERE) is None


@pytest.mark.parametrize("line", SENDING)
def test_what_decides_where_git_sends_data_is_held_and_named(line: str) -> None:
    old = THERE + setting("submodule.lib.url=https://example.org/lib.git")
    found = file(".git/config", old + setting(line), old=old)
    key = line.partition("=")[0]
    section, _, rest = key.partition(".")
    assert is_held(found)
    assert found is not None
    assert f"{section}.{rest.rpartition('.')[0]}" in found.reason or key.lower() in found.reason
    assert "where git sends data" in found.reason


@pytest.mark.parametrize("line", UNUSUAL)
def test_every_other_setting_is_held(line: str) -> None:
    assert is_held(file(".git/config", THERE + setting(line), old=THERE))


# Git drops these with a branch or a submodule, whatever they were; and `core.bare` has another value in the base.
WITH_THE_REST = ("branch.main.remote=", "branch.main.merge=", "submodule.sub.", "submodule.lib.", "core.bare=")


@pytest.mark.parametrize(
    "line",
    [line for line in (*SENDING, *UNUSUAL, "core.hooksPath=/dev/null", "core.symlinks=false")
     if not line.startswith(WITH_THE_REST)],
)  # fmt: skip
def test_a_setting_that_is_gone_is_held_like_a_new_one(line: str) -> None:
    assert is_held(file(".git/config", THERE, old=BASE + setting(line) + ORIGIN))


def test_a_repositorys_format_goes_up_only() -> None:
    newer = THERE.replace(b"version = 0", b"version = 1")
    assert file(".git/config", newer, old=THERE) is None
    assert is_held(file(".git/config", THERE, old=newer))
    assert is_held(file(".git/config", THERE.replace(b"version = 0", b"version = 2"), old=THERE))


@pytest.mark.parametrize(
    "line",
    ["user.name=A", "pull.rebase=true", "core.sparseCheckout=true", "submodule.sub.url=x", "submodule.sub.ignore=all",
     "branch.topic.remote=https://gone", "branch.topic.merge=refs/heads/x", "branch.topic.vscode-merge-base=main"],
)  # fmt: skip
def test_a_setting_that_git_drops_with_a_branch_or_a_submodule_may_go(line: str) -> None:
    assert file(".git/config", THERE, old=THERE + setting(line)) is None


def test_a_setting_that_is_gone_is_told_by_what_it_meant() -> None:
    for line, words in {
        "remote.origin.pushurl=https://mine": "where git sends data",
        "core.hooksPath=/dev/null": "what git runs or obeys",
        "http.sslVerify=true": "whom git contacts or trusts",
        "commit.gpgSign=true": "not a setting that a normal day's work writes",
    }.items():
        found = file(".git/config", THERE, old=THERE + setting(line))
        assert found is not None
        assert words in found.reason
        assert "is gone" in found.reason


def test_a_branch_that_is_renamed_keeps_all_it_had() -> None:
    had = {"remote": "origin", "merge": "refs/heads/x", "pushRemote": "origin", "mergeOptions": "--no-ff"}
    one, other = (
        b"".join(setting(f"branch.{name}.{key}={value}") for key, value in had.items()) for name in ("a", "b")
    )
    assert file(".git/config", THERE + other, old=THERE + one) is None
    assert is_held(file(".git/config", THERE + one + other, old=THERE + one))  # a copy of it is another matter
    assert is_held(file(".git/config", THERE, old=THERE + one))
    assert is_held(file(".git/config", THERE + other.replace(b"--no-ff", b"--no-verify"), old=THERE + one))
    fork, main = (part.replace(b"origin", b"https://fork") for part in (one, other))
    assert is_held(file(".git/config", THERE + main, old=THERE + fork))


def test_the_number_and_order_of_values_count() -> None:
    one, other = setting("remote.origin.pushurl=https://a"), setting("remote.origin.pushurl=https://b")
    assert is_held(file(".git/config", THERE + other + one, old=THERE + one + other))
    assert is_held(file(".git/config", THERE + one, old=THERE + one + other))
    assert is_held(file(".git/config", THERE + one + one, old=THERE + one))
    fork, origin = setting("branch.main.remote=https://fork"), setting("branch.main.remote=origin")
    assert is_held(file(".git/config", THERE + origin + fork, old=THERE + fork + origin))
    assert file(".git/config", THERE + origin, old=THERE + fork + origin) is None


def test_the_order_of_settings_counts_where_git_heeds_it() -> None:
    short, other = setting("url.https://a/.insteadOf=x:"), setting("url.https://b/.insteadOf=x:")
    assert is_held(file(".git/config", THERE + other + short, old=THERE + short + other))
    name, include = setting("user.name=A"), setting("include.path=more")
    assert file(".git/config", name + THERE, old=THERE + name) is None
    assert is_held(file(".git/config", THERE + include + name, old=THERE + name + include))
    assert is_held(file(".git/config", include + THERE, old=THERE + include))


def test_only_a_remote_that_was_there_may_be_followed() -> None:
    new = setting("remote.evil.url=https://evil") + setting("branch.main.remote=evil")
    found = file(".git/config", THERE + new, old=THERE)
    assert found is not None
    assert found.held
    assert "and 1 more" in found.reason


def test_what_runs_a_program_is_named_before_what_sends_data() -> None:
    lines = ("commit.gpgSign=false", "remote.origin.url=https://evil", "core.sshCommand=evil")
    found = file(".git/config", THERE + b"".join(map(setting, lines)), old=THERE)
    assert found is not None
    assert found.reason == "git would run a program named by core.sshcommand; and 2 more"


def test_a_configuration_that_was_missing_is_judged_as_the_repositorys() -> None:
    for path in (".git/config", ".git/config.worktree", ".git/worktrees/w/config.worktree", ".git/modules/s/config"):
        facts = ChangeFacts(new=BASE, root=ROOT, repository_was_there=True)
        assert find_concern(added(path), facts, NO_RULES) is None
        assert is_held(find_concern(added(path), facts.replace(new=THERE), NO_RULES))
        assert is_held(find_concern(added(path), facts.replace(new=None), NO_RULES))
        assert is_held(find_concern(added(path), facts.replace(is_complete=False), NO_RULES))
        assert is_held(find_concern(added(path), facts.replace(new=b"[broken"), NO_RULES))


def test_what_was_there_and_could_not_be_understood_excuses_nothing() -> None:
    assert is_held(file(".git/config", THERE, old=b"[broken" + THERE))


def test_line_endings_make_no_difference() -> None:
    dos = THERE.replace(b"\n", b"\r\n")
    assert file(".git/config", dos + setting("user.name=A"), old=THERE) is None
    assert is_held(file(".git/config", dos.replace(b"example.org", b"evil"), old=THERE))


def gone(path: str, within: str | None = None, kind: str = FILE) -> Change:
    return Change(0, path, DELETED, kind, before=stamp(kind), within=within)


@pytest.mark.parametrize("path", [".git/config", ".git/modules/sub/config", "nested/.git/config.worktree"])
def test_a_configuration_that_goes_while_its_repository_stays_is_held(path: str) -> None:
    facts = ChangeFacts(old=THERE, root=ROOT, repository_was_there=True)
    assert wants_facts(gone(path))
    assert is_held(find_concern(gone(path), facts, NO_RULES))
    assert is_held(find_concern(gone(path), facts.replace(old=None), NO_RULES))
    assert is_held(find_concern(gone(path), None, NO_RULES))


def test_a_configuration_goes_with_its_repository() -> None:
    for path, top in ((".git/modules/sub/config", ".git/modules/sub"), ("nested/.git/config", "nested"),
                      (".git/worktrees/w/config.worktree", ".git/worktrees")):  # fmt: skip
        assert not wants_facts(gone(path, within=top))
        assert find_concern(gone(path, within=top), None, NO_RULES) is None


def test_what_sparse_checkouts_keep_may_go() -> None:
    facts = ChangeFacts(old=setting("core.sparseCheckout=true"), root=ROOT, repository_was_there=True)
    assert find_concern(gone(".git/config.worktree"), facts, NO_RULES) is None


def test_the_projects_own_repository_does_not_go_unseen() -> None:
    assert is_held(find_concern(gone(".git", kind=DIRECTORY), None, NO_RULES))
    assert is_held(find_concern(gone(".git"), None, NO_RULES))
    assert find_concern(gone("nested/.git", kind=DIRECTORY), None, NO_RULES) is None


@pytest.mark.parametrize("path", [".git/remotes/origin", ".git/branches/deep/er", ".git/modules/sub/remotes/origin"])
def test_old_style_remotes_of_a_repository_that_was_there_are_held(path: str) -> None:
    facts = ChangeFacts(new=b"URL: https://evil", root=ROOT, repository_was_there=True)
    assert wants_facts(added(path))
    assert is_held(find_concern(added(path), facts, NO_RULES))
    assert is_flagged(find_concern(added(path), facts.replace(repository_was_there=False), NO_RULES))
    assert is_held(find_concern(gone(path), facts, NO_RULES))
    assert is_held(find_concern(gone(path, within=path.rpartition("/")[0]), facts, NO_RULES))
    assert find_concern(gone(path, within=".git"), facts, NO_RULES) is None


def test_a_git_file_that_was_there_names_no_other_repository() -> None:
    one, other = b"gitdir: ../.git/modules/sub\n", b"gitdir: ../.git/modules/evil\n"
    assert file("sub/.git", one) is None
    assert file("sub/.git", one, old=one) is None
    assert is_held(file("sub/.git", other, old=one))
    # A directory before, or files of another repository.
    over = ChangeFacts(new=other, root=ROOT, repository_was_there=True)
    assert is_held(find_concern(added("sub/.git"), over, NO_RULES))


def test_a_submodule_may_lose_its_work_tree_and_get_it_back() -> None:
    place, line = ".git/modules/sub/config", setting("core.worktree=../../../sub")
    assert file(place, THERE, old=THERE + line) is None
    assert file(place, THERE + line, old=THERE) is None
    assert is_held(file(place, THERE + setting("core.worktree=/etc"), old=THERE + line))
    assert is_held(file(".git/config", THERE, old=THERE + setting("core.worktree=../sub")))
    assert is_held(file("x/modules/y/.git/config", THERE + setting("core.worktree=../.."), old=THERE))
    assert is_held(file("x/modules/y/.git/config", THERE + setting("core.worktree=../..")))


@pytest.mark.long
def test_a_very_long_configuration_is_judged_at_once() -> None:
    """A comparison of each with each would take minutes."""
    many = range(20_000)
    sections = [b"".join(b'[branch "%s%d"]\nmerge=refs/%d\n' % (name, n, n) for n in many) for name in (b"a", b"b")]
    assert file(".git/config", THERE + sections[1], old=THERE + sections[0]) is None
    values = [b'[branch "x"]\n' + b"".join(b"merge=refs/%d\n" % (n + more) for n in many) for more in (0, 1)]
    assert file(".git/config", THERE + values[1], old=THERE + values[0]) is None
    urls = [value.replace(b"branch", b"submodule").replace(b"merge", b"url") for value in values]
    assert file(".gitmodules", urls[1], old=urls[0]) is None


LINES = st.lists(st.sampled_from([*EVERYDAY, *SENDING, *UNUSUAL, "core.hooksPath=x", "include.path=y"]), max_size=8)


@given(LINES, LINES)
@settings(max_examples=500)
def test_what_passes_leaves_every_remote_and_program_as_it_was(one: list[str], other: list[str]) -> None:
    old, new = (THERE + b"".join(map(setting, lines)) for lines in (one, other))
    if file(".git/config", new, old=old) is None:
        was, now = (values_by_key(parse(content) or []) for content in (old, new))
        fixed = ("remote.", "push.", "core.hookspath", "include.", "extensions.partialclone", "lfs.")
        assert all(was.get(key) == now.get(key) for key in {**was, **now} if key.startswith(fixed))
        followed = set(now.get("branch.main.remote", ())) - set(was.get("branch.main.remote", ()))
        assert all(value == "." or f"remote.{value}.url" in was for value in followed)
