"""What a run may leave in a git directory, and what it may make one of."""

from __future__ import annotations

import pytest

from fumehood.core.changes import DIRECTORY, SYMLINK
from fumehood.core.danger import ChangeFacts, find_concern, gather_root_facts, possible_repositories, wants_facts
from judging import BASE, NO_RULES, ROOT, added, file, is_flagged, is_held, setting


def test_a_submodules_work_tree_may_lie_in_the_project_only() -> None:
    config = ".git/modules/sub/config"
    assert file(config, setting("core.worktree=../../../sub")) is None
    assert file(".git/worktrees/w/modules/sub/config", setting("core.worktree=../../../../../w/sub")) is None
    for elsewhere in ("../../../../sub", "/etc", "../../../.git", "../../../.git/hooks", "../../../a/../../.."):
        assert is_held(file(config, setting(f"core.worktree={elsewhere}")))


@pytest.mark.parametrize(
    ("path", "content", "passes"),
    [
        ("tree/.git", f"gitdir: {ROOT}/.git/worktrees/tree\n", True),
        ("sub/.git", "gitdir: ../.git/modules/sub\n", True),
        ("a/b/.git", "gitdir: ../../.git/modules/a/b\n", True),
        ("tree/.git", "gitdir: /tmp/evil\n", False),
        ("tree/.git", "gitdir: ../evil\n", False),
        ("tree/.git", "gitdir: ../../.git/worktrees/tree\n", False),
        ("tree/.git", f"gitdir: {ROOT}/.git/worktrees/../../evil\n", False),
        ("tree/.git", f"gitdir: {ROOT}-evil/.git/worktrees/tree\n", False),
        ("tree/.git", f"gitdir: {ROOT}/.git/worktrees/tree\nmore\n", False),
        ("tree/.git", f"gitdir: {ROOT}/.git\n", False),
        ("tree/.git", "nonsense", False),
        (".git/worktrees/tree/commondir", "../..\n", True),
        (".git/modules/sub/worktrees/tree/commondir", "../..\n", True),
        (".git/worktrees/tree/commondir", "../../../evil\n", False),
        (".git/worktrees/tree/commondir", "/tmp/evil\n", False),
        (".git/commondir", "../..\n", False),
        (".git/worktrees/tree/gitdir", f"{ROOT}/tree/.git\n", True),
        (".git/worktrees/tree/gitdir", "../../../tree/.git\n", True),
        (".git/worktrees/tree/gitdir", "/home/someone/other/.git\n", False),
        (".git/worktrees/tree/gitdir", "../../../../other/.git\n", False),
    ],
)
def test_git_may_be_led_only_where_it_leads_itself(path: str, content: str, passes: bool) -> None:
    assert wants_facts(added(path))
    found = file(path, content.encode())
    assert found is None if passes else is_held(found)


def test_a_work_tree_may_belong_to_a_repository_that_is_another_root() -> None:
    ground = gather_root_facts([], (ROOT, "/home/someone/main/.git"))
    change = added("tree/.git")
    inside = ChangeFacts(new=b"gitdir: /home/someone/main/.git/worktrees/tree\n", root=ROOT)
    assert find_concern(change, inside, NO_RULES, ground) is None
    assert is_held(find_concern(change, inside, NO_RULES))


@pytest.mark.parametrize(
    ("path", "new"),
    [("hooks/pre-commit", b"x"), ("config", setting("core.fsmonitor=x")), ("worktrees/x/commondir", b"/evil")],
)
def test_a_root_that_is_a_git_directory_is_judged_as_one(path: str, new: bytes) -> None:
    ground = gather_root_facts([], ("/home/someone/main/.git",))
    assert is_held(file(path, new, ground=ground))
    assert file("refs/heads/hooks/x", ground=ground) is None


def test_a_bare_repository_that_a_run_makes_is_judged_as_one() -> None:
    names = ("HEAD", "config", "hooks/post-receive", "hooks/update.sample", "refs/heads/main", ".vscode/tasks.json")
    changes = [added(f"new/{name}", within="new") for name in names]
    ground = gather_root_facts(changes, (ROOT,))
    content = {"new/HEAD": b"ref: refs/heads/main\n", "new/config": BASE + setting("alias.x=!evil")}
    found = [find_concern(c, ChangeFacts(new=content.get(c.path, b""), root=ROOT), NO_RULES, ground) for c in changes]
    assert [is_held(one) for one in found] == [False, True, True, False, False, True]


def test_a_bare_repository_that_was_there_is_found_by_its_head() -> None:
    hook = added("fixtures/repo/hooks/post-receive")
    assert possible_repositories([hook]) == {(0, "fixtures/repo")}
    assert possible_repositories([added(".git/hooks/x"), added(".git/config"), added("src/app.py")]) == set()
    assert find_concern(hook, None, NO_RULES) is None
    ground = gather_root_facts([hook], (ROOT,), possible_repositories([hook]))
    assert is_held(find_concern(hook, None, NO_RULES, ground))


def test_a_directory_that_was_there_does_not_become_a_repository() -> None:
    assert is_held(file("old/HEAD", b"ref: refs/heads/main\n"))
    assert is_held(find_concern(added("old/HEAD", SYMLINK), ChangeFacts(target="refs/heads/main", root=ROOT), NO_RULES))
    assert file("old/HEAD", b"ref: refs/heads/other\n", old=b"ref: refs/heads/main\n") is None
    assert file("docs/HEAD", b"a text\n") is None


@pytest.mark.parametrize("line", ["core.fsmonitor=evil", "include.path=x", "filter.x.clean=evil", "core.hooksPath=x"])
def test_a_configuration_that_would_serve_a_repository_is_held_anywhere(line: str) -> None:
    assert is_held(file("data/config", BASE + setting(line)))
    assert is_held(file("node_modules/x/config", BASE + setting(line)))


@pytest.mark.parametrize("new", [b"key: value\n", b"[core]\nremote = storage\n", b"\x7fELF\0\0", b"[alias]\nx = y\n"])
def test_other_files_called_config_pass(new: bytes) -> None:
    assert file("data/config", new) is None


@pytest.mark.parametrize(
    ("new", "passes"),
    [
        (b'[submodule "a"]\npath = a\nurl = https://example.org/a.git\n', True),
        (b'[submodule "a"]\npath = a\nurl = ../a.git\nbranch = main\nupdate = rebase\n', True),
        (b'[submodule "a"]\nupdate = !evil\n', False),
        (b'[submodule "a"]\nurl = --upload-pack=evil\n', False),
        (b'[submodule "a"]\nurl = ext::sh -c evil\n', False),
        (b'[submodule "a"]\npath = -evil\n', False),
        (b"<<<<<<< HEAD\n", False),
    ],
)
def test_submodules_are_judged_by_what_git_would_run_for_them(new: bytes, passes: bool) -> None:
    assert wants_facts(added(".gitmodules"))
    assert file(".gitmodules", new) is None if passes else is_held(file(".gitmodules", new))


def test_commands_in_an_unfinished_rebase_are_held() -> None:
    todo = ".git/rebase-merge/git-rebase-todo"
    assert file(todo, b"pick 1234 exec\n# x comment\nupdate-ref refs/heads/a\n") is None
    for line in (b"exec evil\n", b"  x evil\n", b"exec\tevil\n"):
        assert is_held(file(todo, b"pick 1234 one\n" + line))
        assert file(todo, line, old=b"pick 1234 one\n" + line) is None
        assert is_held(file(".git/worktrees/w/rebase-merge/git-rebase-todo", line))


def test_a_program_that_an_unfinished_rebase_or_pick_would_merge_with_is_held() -> None:
    strategy, picks = ".git/rebase-merge/strategy", ".git/sequencer/opts"
    assert wants_facts(added(strategy))
    assert wants_facts(added(picks))
    assert file(strategy, b"ort\n") is None
    assert file(picks, b"[options]\n\tstrategy = recursive\n\tedit = true\n") is None
    for name in (b"evil", b"./evil", b"ort\nevil"):
        assert is_held(file(strategy, name))
    assert is_held(file(picks, b"[options]\n\tstrategy = ort\n\tstrategy = evil\n"))
    assert is_held(file(picks, b"[options\n"))


def test_old_style_remotes_are_flagged() -> None:
    assert is_flagged(file(".git/remotes/origin", b"URL: https://evil"))


def test_a_path_as_deep_as_paths_can_be_is_judged_quickly() -> None:
    path = ".git/" + "modules/" * 500 + "config"
    assert is_held(file(path, setting("core.fsmonitor=evil")))


STRANGE = """
    .git/lazygit.yml .git/.dir-locals.el .git/safe .git/Safe .git/SAFE .git/.envrc .git/crypt .git/gitweb .git/bin
    sub/.git/lazygit.yml .git/rebase-merge/.dir-locals.el .git/modules/a/lazygit.yml .git/worktrees/a/.exrc
"""
ORDINARY = """
    .git/HEAD .git/ORIG_HEAD .git/FETCH_HEAD .git/AUTO_MERGE .git/MERGE_RR .git/BISECT_ANCESTORS_OK .git/SQUASH_MSG
    .git/COMMIT_EDITMSG .git/COMMIT_EDITMSG~ .git/.COMMIT_EDITMSG.swp .git/ADD_EDIT.patch .git/RENAMED-REF
    .git/index.lock .git/HEAD.lock .git/config.lock .git/next-index-12.lock .git/index.stash.12 .git/sharedindex.0a
    .git/shallow_Xy12 .git/gc.pid .git/gc.log .git/packed-refs.new .git/description .git/addp-hunk-edit.diff
    .git/rebase-merge/done .git/rebase-apply/next .git/sequencer/todo .git/rr-cache/0a/preimage .git/lost-found/other/0a
    .git/NOTES_MERGE_WORKTREE/0a .git/lfs/objects/0a .git/annex/index .git/svn/.metadata .git/reftable/tables.list
    .git/modules/libs/sub/HEAD .git/worktrees/tree/HEAD .git/fsmonitor--daemon/cookies/1 .git/opencode
    .git/refs/heads/lazygit.yml .git/logs/refs/heads/.exrc .git/modules/a/refs/heads/lefthook.yml
    .git/.graphite_repo_config .git/gk/config .git/fast_import_crash_3 .git/.DS_Store .git/git-daemon-export-ok
    .git/cloneurl .git/tags .git/commit-msg.txt .git/PR_BODY.md .git/config.bak .git/lint-staged_unstaged.patch
    .git/COMMIT_EDITMSG.bak .git/a.diff .git/a.log .git/a.orig .git/modules/a/notes.txt
"""


@pytest.mark.parametrize("path", STRANGE.split())
def test_a_name_that_git_does_not_write_in_its_directory_is_held(path: str) -> None:
    if path.count("/") == 1:
        assert is_held(find_concern(added(path, DIRECTORY, 0o755), None, NO_RULES))
        within = added(f"{path}/deep/x", within=path)
        assert is_held(find_concern(within, None, NO_RULES))
        assert is_held(find_concern(added(f"{path}/deep", DIRECTORY, within=path), None, NO_RULES))
        assert find_concern(added(f"{path}/deep"), None, NO_RULES) is None
    if path != ".git/SAFE":
        assert is_held(file(path))


@pytest.mark.parametrize("path", ORDINARY.split())
def test_names_that_git_and_its_companions_write_pass(path: str) -> None:
    names = path.split("/")
    for within in (None, ".git", "/".join(names[:2])):
        change = added(path, within=within if within != path else None)
        assert find_concern(change, ChangeFacts(new=b"x", root=ROOT), NO_RULES) is None
    for end in range(2, len(names)):
        assert find_concern(added("/".join(names[:end]), DIRECTORY, 0o755), None, NO_RULES) is None


@pytest.mark.parametrize("name", ["run.txt", "notes.md", "config.bak"])
def test_a_note_in_a_git_directory_is_a_plain_file(name: str) -> None:
    assert is_held(find_concern(added(f".git/{name}", mode=0o755), ChangeFacts(new=b"x", root=ROOT), NO_RULES))
    assert is_held(find_concern(added(f".git/{name}", DIRECTORY, 0o755), None, NO_RULES))
    assert is_held(find_concern(added(f".git/{name}/lazygit.yml", within=f".git/{name}"), None, NO_RULES))


def test_what_was_there_by_another_name_may_change() -> None:
    assert file(".git/own-notes", b"new", b"old") is None


def test_the_address_of_large_files_is_held_and_their_other_settings_are_not() -> None:
    old = b"[lfs]\n\turl = https://one.example/\n"
    for new in (b"[lfs]\n\turl = https://other.example/\n", old + b'[remote "origin"]\n\tlfspushurl = x\n', b"[lfs"):
        assert is_held(file(".lfsconfig", new, old))
        assert is_held(file(".lfsconfig", new))
    assert is_held(find_concern(added(".lfsconfig"), None, NO_RULES))
    assert file(".lfsconfig", old + b"\tfetchexclude = big\n", old) is None
    cloned = added("cloned/.lfsconfig", within="cloned")
    assert find_concern(cloned, ChangeFacts(new=old, root=ROOT), NO_RULES) is None


@pytest.mark.parametrize("nested", [".git/" * 3000, ".git/modules/" * 1500, ".git/modules/" + "a/" * 3000])
def test_git_directories_in_each_other_as_nobody_has_them_are_held(nested: str) -> None:
    for name in ("config", "hooks/x", "x"):
        change = added(nested + name)
        assert wants_facts(change) in (True, False)
        assert is_held(find_concern(change, ChangeFacts(new=b"", root=ROOT), NO_RULES))


def test_what_lies_deep_below_a_repository_of_another_name_is_judged() -> None:
    above = "bare/" + "a/" * 3000
    ground = gather_root_facts([], repositories=[(0, "bare"), (0, above.rstrip("/"))])
    for number in range(100):
        assert find_concern(added(f"{above}{number}"), None, NO_RULES, ground) is None
    assert is_held(find_concern(added(f"{above}hooks/x"), None, NO_RULES, ground))
    assert is_held(find_concern(added("bare/hooks/x"), None, NO_RULES, ground))
    assert find_concern(added("other/hooks/x"), None, NO_RULES, ground) is None
    every = gather_root_facts([], repositories=[(0, "/".join("abcdefghij"[:end])) for end in range(1, 11)])
    assert is_held(find_concern(added("/".join("abcdefghijk")), None, NO_RULES, every))


@pytest.mark.parametrize("todo", ["rebase-merge/git-rebase-todo", "rebase-apply/git-rebase-todo"])
def test_a_rebase_under_way_is_judged_whatever_the_git_directory_is_called(todo: str) -> None:
    change = added(f"store/{todo}")
    assert possible_repositories([change]) == {(0, "store")}
    ground = gather_root_facts([change], repositories=possible_repositories([change]))
    assert wants_facts(change, ground)
    assert is_held(find_concern(change, ChangeFacts(new=b"exec evil\n", root=ROOT), NO_RULES, ground))


LENDERS = [".git/objects/info/alternates", "x.git/objects/info/alternates", ".git/modules/sub/objects/info/alternates"]


@pytest.mark.parametrize("path", LENDERS)
def test_git_borrows_objects_in_the_project_only(path: str) -> None:
    up = "../" * (path.count("/") - 1)  # from the directory of objects
    assert wants_facts(added(path))
    for inside in (f"{ROOT}/one/.git/objects", f"{up}one/.git/objects", "# a note", ""):
        assert file(path, f"{inside}\n".encode()) is None
    for outside in ("/home/someone/other/.git/objects", f"{up}../other/.git/objects", f"{ROOT}/a/../../b", '"/quoted"'):
        assert is_held(file(path, f"{ROOT}/one/.git/objects\n{outside}\n".encode()))
        assert file(path, f"{outside}\n".encode(), old=f"x\n{outside}\n".encode()) is None
    assert is_held(file(path.replace("alternates", "http-alternates"), b"http://evil/x\n"))
    assert is_held(find_concern(added(path), None, NO_RULES))
    assert is_held(find_concern(added(path, SYMLINK), ChangeFacts(target="x", root=ROOT), NO_RULES))
    assert file("other/info/alternates", b"/etc\n") is None
