"""A repository moves as one: HEAD, its refs and the index are applied together, or wait together."""

import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import need
from fumehood import Policy, Run, Sandbox, UndoRefused
from fumehood.core.policy import Again
from fumehood.linux import gitobjects
from fumehood.service.store import Store
from fumehood.store.places import FileLock
from patience import LONG_S

pytestmark = pytest.mark.namespaces

STATE = (".git/HEAD", ".git/index", ".git/refs", ".git/logs", ".git/packed-refs")


@pytest.fixture
def repository(home: Path, project: Path) -> Path:
    need(shutil.which("git") is not None, "there is no git")
    for words in (
        ["init", "-q", "-b", "main"], ["config", "user.name", "Ada"], ["config", "user.email", "ada@example.org"],
        ["commit", "-q", "--allow-empty", "-m", "first"],
    ):  # fmt: skip
        git(project, *words)
    return project


def git(project: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=project, check=True, capture_output=True, text=True).stdout


def verdicts(run: Run) -> set[str]:
    """What became of the repository's state."""
    return {change.verdict for change in run.changes if change.path.startswith(STATE) and change.kind != "directory"}


def is_sound(project: Path) -> bool:
    """Whether nothing is staged that no agent was let stage, and every object is there."""
    staged = git(project, "diff", "--cached", "--name-status").split()
    return git(project, "fsck", "--no-dangling") == "" and "D" not in staged


def test_a_commit_over_a_held_index_waits_with_it(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        first = sandbox.run("echo a > a; git add a", apply="hold")
        second = sandbox.run("echo b > b; git add b; git commit -qm b")
        assert verdicts(second) == {"held"}
        assert git(repository, "log", "--format=%s").split() == ["first"]
        assert is_sound(repository)
        sandbox.apply(first)
        sandbox.apply(second)
    assert git(repository, "log", "--format=%s").split() == ["b", "first"]
    assert git(repository, "ls-files").split() == ["a", "b"]
    assert git(repository, "status", "--porcelain") == ""
    assert is_sound(repository)


def test_an_undo_reads_other_refs_once_for_what_needs_them_and_once_for_its_own_undo(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    content = gitobjects._content

    def reading(top: int, path: str, status: os.stat_result) -> bytes:
        read.append(path)
        return content(top, path, status)

    with Sandbox(repository) as sandbox:
        git(repository, "branch", "other")
        run = sandbox.run("echo a > a; git add a; git commit -qm a")
        monkeypatch.setattr(gitobjects, "_content", reading)
        sandbox.undo(run)
    assert read.count(".git/refs/heads/other") == 2


def test_undo_leaves_objects_that_a_person_has_built_on(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        added = sandbox.run("echo a > a; git add a")
        git(repository, "commit", "-qm", "a person's, of what an agent has staged")
        committed = sandbox.run("echo b > b; git add b; git commit -qm b")
        git(repository, "branch", "keep")
        sandbox.undo(committed)
        assert is_sound(repository)
        assert git(repository, "show", "keep:b") == "b\n"
        assert not (repository / "b").exists()
        sandbox.redo(committed)
        assert is_sound(repository)
        assert git(repository, "rev-parse", "HEAD") == git(repository, "rev-parse", "keep")
        sandbox.undo(committed)
        sandbox.undo(added, force=True)
        assert git(repository, "show", "HEAD:a") == "a\n"
        assert git(repository, "fsck", "--no-dangling") == ""
        assert {run.state for run in sandbox.history() if run.run in (added.run, committed.run)} == {"undone"}


def test_undo_takes_objects_out_that_nobody_needs(repository: Path) -> None:
    before = sorted(path for path in (repository / ".git/objects").rglob("*"))
    with Sandbox(repository) as sandbox:
        for number in range(3):
            sandbox.run(f"git checkout -q -b b{number}; echo {number} > f; git add f; git commit -qm {number}")
        sandbox.run("git worktree add -q beside; cd beside; echo w > w; git add w; git commit -qm w")
        git(repository, "status")
        for run in sandbox.history()[:4]:
            sandbox.undo(run)
    assert sorted(path for path in (repository / ".git/objects").rglob("*")) == before


def test_undo_leaves_an_object_that_a_persons_git_only_touched(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        run = sandbox.run("echo a > a; git hash-object -w a")
        (repository / "mine").write_text("a\n")
        name = git(repository, "hash-object", "-w", "mine").strip()
        sandbox.undo(run)
    assert git(repository, "cat-file", "blob", name) == "a\n"


def test_objects_that_git_touches_in_a_clone_are_not_told_as_files_with_other_names(
    repository: Path, test_directory: Path
) -> None:
    (repository / "a").write_text("a\n")
    git(repository, "add", "a")
    git(repository, "commit", "-qm", "a")
    git(test_directory, "clone", "-q", str(repository), "clone")
    with Sandbox(test_directory / "clone") as sandbox:
        run = sandbox.run("git rm -q --cached a; git add a")
    touched = [each for each in run.changes if each.change == "modified" and "/objects/" in each.path]
    assert touched
    assert {each.flags for each in touched} == {()}


def test_a_difference_tells_how_many_objects_came_and_none_of_their_bytes(
    repository: Path, cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    cli("run", "--", "for i in 1 2 3 4 5 6 7 8; do echo $i > a; git add a; done")
    (run,) = json.loads(cli("log", "--json").stdout)["runs"]
    objects = [each["path"] for each in run["paths"] if "/objects/" in each["path"] and each["kind"] == "file"]
    assert len(objects) > 3
    shown = cli("diff").stdout
    assert "diff --git a/a b/a\n" in shown
    assert "objects/" not in shown
    assert shown.endswith(f"not shown: {run['path_count'] - 2} objects of git\n")
    assert all("not shown: binary" in cli("diff", "1", path).stdout for path in objects[:3])
    differences = json.loads(cli("diff", "--json").stdout)["differences"]
    assert {each["binary"] for each in differences if each["path"] in objects} == {True}


LONG_AGO, LONG_AFTER = 1_000_000_000, 4_000_000_000


def test_a_ref_of_any_length_is_not_read_whole(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        left = sandbox.run("truncate -s 10G .git/refs/heads/hole")  # it takes no room, and is well within all limits
        assert left.state == "applied"
        os.truncate(repository / ".git/refs/heads/hole", 1 << 43)  # more than any memory
        run = sandbox.run("echo a > a; git add a")
        assert run.state == "applied"
        sandbox.undo(run.run)
    assert not (repository / "a").exists()


def test_objects_stay_where_there_are_more_indexes_than_are_read_for_their_names(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        sandbox.run("echo x | git hash-object -w --stdin; for i in $(seq 9); do mkdir -p .git/worktrees/$i; done")
        for name in os.listdir(repository / ".git/worktrees"):
            (repository / ".git/worktrees" / name / "index").write_text("none that git would understand")
            os.utime(repository / ".git/worktrees" / name / "index", (1 << 32, 1 << 32))  # written since, by its time
        run = sandbox.run("git prune")
    assert {change.verdict for change in run.changes if change.kind == "file"} == {"discarded"}


def test_no_clock_says_which_objects_are_needed(repository: Path) -> None:
    os.utime(repository / ".git/refs/heads/main", (LONG_AFTER, LONG_AFTER))
    git(repository, "branch", "other")
    os.utime(repository / ".git/refs/heads/other", (LONG_AFTER, LONG_AFTER))
    before = sorted((repository / ".git/objects").rglob("*"))
    with Sandbox(repository) as sandbox:
        run = sandbox.run("git switch -qc topic; echo b > b; git add b; git commit -qm b")
        sandbox.undo(run)
        assert sorted((repository / ".git/objects").rglob("*")) == before
        sandbox.redo(run)
        git(repository, "branch", "keep")
        os.utime(repository / ".git/refs/heads/keep", (LONG_AGO, LONG_AGO))
        sandbox.undo(run)
        assert git(repository, "show", "keep:b") == "b\n"
        assert is_sound(repository)


def test_what_a_person_built_on_is_needed_also_when_more_of_the_run_is_applied_later(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        run = sandbox.run("git switch -qc topic; echo b > b; git add b; git commit -qm b; echo x > .envrc")
        assert {change.verdict for change in run.changes if change.path == ".envrc"} == {"held"}
        git(repository, "branch", "keep")
        sandbox.apply(run)
        sandbox.undo(run)
        assert git(repository, "show", "keep:b") == "b\n"
        assert is_sound(repository)


# What an agent does, what a person does then, and what must still be there when the agent's run is taken back.
HELLO = "echo hello | git hash-object -w --stdin"
NEEDED = {
    "a branch": ("git commit-tree @^{tree} -p @ -m x", "git branch x $(cat made)", "git log x"),
    "the index, by its name": (HELLO, "git update-index --add --cacheinfo 100644,$(cat made),m", "git show :m"),
    "the index, by its content": (HELLO, "echo hello > m; git add m", "git show :m"),
    "the index of a work tree": (HELLO, "git worktree add -q ../w; cd ../w; echo hello > m; git add m", "git show @"),
    "a work tree's commit": (
        "git worktree add -q w; cd w; echo f > f; git add f; git commit -qm f", "git checkout w -- f", "git show :f",
    ),
    "a tag of a tag": ("git tag -a -m 1 one", "git tag two one", "git show two"),
    "the list of commits": (
        "echo f > f; git add f; git commit -qm f", "git commit-graph write --reachable", "git commit-graph verify",
    ),
    "the list of packs": (
        "echo f > f; git add f; git commit -qm f; git repack -qd", "git multi-pack-index write",
        "git multi-pack-index verify",
    ),
}  # fmt: skip


def typed(project: Path, line: str) -> str:
    """What a person types, in the project."""
    return subprocess.run(["sh", "-ec", line], cwd=project, check=True, capture_output=True, text=True).stdout


LONG = "head -c 300000 /dev/zero | tr '\\0' x"  # more than a pipe holds: nobody reads on until the first is looked at


def in_the_meantime(sandbox: Sandbox, before: str, project: Path, line: str, after: str = "true") -> Run:
    """Run two commands, and have a person type something in between."""
    begun: list[str] = []

    def notice(_stream: str, text: str) -> None:
        begun.append(text)
        if len(begun) == 1:
            typed(project, line)

    return sandbox.run(f"{before}; {LONG}; {after}", on_output=notice)


@pytest.mark.parametrize("by", NEEDED)
def test_undo_leaves_what_somebody_needs_now(repository: Path, by: str) -> None:
    done, since, look = NEEDED[by]
    with Sandbox(repository) as sandbox:
        run = sandbox.run(done)
        assert run.state == "applied", run.for_model()
        (repository / "made").write_text(run.stdout)
        typed(repository, since)
        sandbox.undo(run)
        typed(repository, look)
        git(repository, "fsck", "--full", "--strict")
        git(repository, "write-tree")
        assert sandbox.find(run.run).state == "undone"


def test_undo_in_a_git_directory_that_is_a_root_leaves_what_somebody_needs(
    store: Store, repository: Path, test_directory: Path
) -> None:
    tree = test_directory / "tree"
    git(repository, "worktree", "add", "-q", str(tree))
    store.projects.add_root(store.projects.open(str(tree)), str(repository / ".git"))
    with Sandbox(tree) as sandbox:
        run = sandbox.run("git commit-tree @^{tree} -p @ -m x")
        git(repository, "branch", "x", run.stdout.strip())
        sandbox.undo(run)
    git(repository, "fsck", "--full", "--strict")


def test_undo_is_not_led_astray_by_what_a_command_puts_among_objects_and_refs(repository: Path) -> None:
    """Nothing there is what its name says, and a branch is called as the index is."""
    odd = "mkdir -p .git/objects/zz .git/objects/ab; touch .git/objects/zz/x .git/objects/ab/tmp_obj .git/objects/ab/c"
    with Sandbox(repository) as sandbox:
        run = sandbox.run(f"{odd}; rm -rf .git/objects/info; git commit-tree @^{{tree}} -p @ -m x")
        git(repository, "branch", "index", run.stdout.strip())
        (repository / ".git/worktrees/x/HEAD").mkdir(parents=True)
        (repository / ".git/worktrees/y").touch()
        sandbox.undo(run)
    shutil.rmtree(repository / ".git/worktrees")
    git(repository, "log", "index")


HEADS = {
    "a commit of what the agent staged": ("echo n > n; git add n", "git commit -qm n"),
    "another branch with what the agent staged": ("echo n > n; git add n", "git switch -qc other"),
    "the agent's branch": ("git branch topic", "git switch -q topic"),
    "a branch that the agent moved": ("echo n > n; git add n; git commit -qm n; git branch -f b", "git switch -q b"),
    "the agent's branch in a work tree": ("git branch topic", "git worktree add -q ../w topic"),
}


@pytest.mark.parametrize("what", HEADS)
def test_undo_does_not_tear_what_the_agent_did_from_a_head_that_moved_on(repository: Path, what: str) -> None:
    typed(repository, "git branch b; touch f; git add f; git commit -qm f")
    done, since = HEADS[what]
    with Sandbox(repository) as sandbox:
        run = sandbox.run(done)
        typed(repository, since)
        before = typed(repository, "git status --porcelain=v2 --branch; git worktree list; git log --all --format=%H")
        with pytest.raises(UndoRefused, match="HEAD"):
            sandbox.undo(run)
        after = typed(repository, "git status --porcelain=v2 --branch; git worktree list; git log --all --format=%H")
    assert after == before


def test_what_an_agent_staged_is_taken_back_after_its_commit_is(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        staged = sandbox.run("echo n > n; git add n")
        committed = sandbox.run("git commit -qm n")
        with pytest.raises(UndoRefused, match=f"by run {committed.number}"):
            sandbox.undo(staged)
        sandbox.undo(committed)
        assert git(repository, "status", "--porcelain") == "A  n\n"
        sandbox.undo(staged)
        assert git(repository, "status", "--porcelain") == ""
        sandbox.redo()
        sandbox.redo()
    assert git(repository, "log", "--format=%s").split() == ["n", "first"]
    assert is_sound(repository)


# What git writes for itself, and what a person does that writes it too.
NOTES = {
    "COMMIT_EDITMSG": ("true", "GIT_EDITOR=false git commit -q --allow-empty || true"),
    "FETCH_HEAD": ("git fetch -q . main", "git fetch -q"),
}


@pytest.mark.parametrize("note", NOTES)
def test_what_git_notes_for_itself_is_in_nobodys_way(repository: Path, note: str) -> None:
    more, act = NOTES[note]
    git(repository, "clone", "-q", "--bare", ".", "../remote.git")
    git(repository, "remote", "add", "origin", "../remote.git")
    git(repository, "fetch", "-q")

    with Sandbox(repository) as sandbox:
        run = in_the_meantime(sandbox, "true", repository, act, f"echo n > n; git add n; git commit -qm n; {more}")
        assert run.state == "applied", run.for_model()
        assert is_sound(repository)
        typed(repository, act)
        sandbox.undo(run)
        assert sandbox.find(run.run).state == "undone"
        assert git(repository, "status", "--porcelain") == ""
        typed(repository, act)
        sandbox.redo()
        waits = sandbox.run(f"echo m > m; git add m; git commit -qm m; {more}", apply="hold")
        typed(repository, act)
        assert sandbox.apply(waits).state == "applied"
    assert git(repository, "log", "--format=%s").split() == ["m", "n", "first"]
    assert is_sound(repository)


@pytest.mark.parametrize("person", [
    "echo p > p; git add p; git commit -qm person",
    "git switch -qc topic; echo p > p; git add p; git commit -qm person",
    "echo p > p; git add p; git commit -qm wrong; git commit -q --amend -m person",
    "git switch -qc side; git switch -q main; echo p > p; git add p; git commit -qm person",
])  # fmt: skip
def test_a_commit_on_top_of_what_a_person_committed_meanwhile_is_no_conflict(repository: Path, person: str) -> None:
    typed(repository, "echo k > k; git add k; git commit -qm kept")
    with Sandbox(repository) as sandbox:
        run = in_the_meantime(sandbox, "true", repository, person, "echo a > a; git add a; git commit -qm a")
        assert run.state == "applied", run.changes
        assert git(repository, "log", "--format=%s").split() == ["a", "person", "kept", "first"]
        assert git(repository, "ls-files").split() == ["a", "k", "p"]
        assert git(repository, "status", "--porcelain") == ""
        sandbox.undo(run)
    assert git(repository, "log", "--format=%s").split() == ["person", "kept", "first"]
    assert git(repository, "status", "--porcelain") == ""
    assert is_sound(repository)


# A ref without git, and lines of its log that git would not write.
WRITTEN = "git rev-parse @~ > .git/refs/heads/main; mkdir -p .git/objects/aa; echo x > .git/objects/aa/bb"
CRAFTED = ("x", "$h\\n", "$h ..\\0 x\\n", "$h aabb x\\n", "$h ../../refs/heads/main x\\n")


@pytest.mark.parametrize("after", [
    "git reset -q --hard @~", "git commit -q --amend -m a", "git reset -q --soft @~2; git commit -qm a",
    "git branch -f side; git update-ref refs/heads/main @~2",
    *(f"h=$(git rev-parse @); {WRITTEN}; printf \"{line}\" >> .git/logs/refs/heads/main" for line in CRAFTED),
    "git pack-refs --all; git gc -q; git reset -q --hard @~",
])  # fmt: skip
def test_what_would_take_a_persons_commit_of_just_now_away_waits(repository: Path, after: str) -> None:
    """The command means the commit that was there when somebody wrote it."""
    typed(repository, "echo k > k; git add k; git commit -qm kept")
    with Sandbox(repository) as sandbox:
        run = in_the_meantime(sandbox, "true", repository, "echo p > p; git add p; git commit -qm person", after)
    assert run.state == "held", run.changes
    assert git(repository, "log", "--format=%s").split() == ["person", "kept", "first"]
    assert git(repository, "ls-files").split() == ["k", "p"]
    assert is_sound(repository)


@pytest.mark.parametrize(("before", "after"), [
    ("echo a > a; git add a", "git commit -qm a"), ("echo a > a; git add a; git commit -qm a", "true"),
    ("echo a > a; git add a; git commit -qm a", "git commit -q --allow-empty -m b"),
])  # fmt: skip
def test_a_commit_of_what_was_staged_before_a_persons_commit_waits(repository: Path, before: str, after: str) -> None:
    typed(repository, "echo k > k; git add k; git commit -qm kept")
    with Sandbox(repository) as sandbox:
        run = in_the_meantime(sandbox, before, repository, "echo p > p; git add p; git commit -qm person", after)
    assert run.state == "held"
    assert verdicts(run) == {"conflict"}
    assert git(repository, "log", "--format=%s").split() == ["person", "kept", "first"]
    assert git(repository, "ls-files").split() == ["k", "p"]
    assert is_sound(repository)


@pytest.mark.parametrize(("last", "mode"), [
    ("git commit -qm a", "apply"), ("true", "apply"), ("git commit -qm a", "discard"),
])  # fmt: skip
def test_what_a_command_has_read_and_was_taken_back_since_does_not_come_with_it(
    repository: Path, last: str, mode: str
) -> None:
    """Else it would bring back a commit that lacks its objects."""
    typed(repository, "echo k > k; git add k; git commit -qm kept")
    for name in ("first", "second"):
        (repository / name).write_text("")
    others: list[Run] = []

    def meanwhile(_stream: str, text: str) -> None:
        if "begun" in text and not others:
            others.append(sandbox.run("echo b > b; git add b; git commit -qm b"))
            (repository / "first").write_text("on")
        elif "read" in text and sandbox.find(others[0].run).state == "applied":
            sandbox.undo(others[0])
            (repository / "second").write_text("on")

    with Sandbox(repository) as sandbox:
        run = sandbox.run(
            "echo begun; until [ -s first ]; do sleep 0.01; done; echo a > a; git add a; "
            f"{last}; echo read; until [ -s second ]; do sleep 0.01; done", on_output=meanwhile,
            apply=mode,
        )  # fmt: skip
        if mode == "discard":
            assert {each.verdict for each in run.changes} == {"discarded"}
            return
        assert run.state == "applied", run.changes
        assert git(repository, "log", "--format=%s").split() == (
            ["a", "kept", "first"] if "commit" in last else ["kept", "first"]
        )
        assert git(repository, "fsck", "--no-dangling") == ""
        sandbox.undo(run)
        assert git(repository, "fsck", "--no-dangling") == ""


@pytest.mark.parametrize("again", [True, False])
def test_a_commit_on_top_of_what_is_discarded_meanwhile_is_not_kept_without_it(repository: Path, again: bool) -> None:
    """What was held has gone with its objects."""
    (repository / "on").write_text("")
    with Sandbox(repository, policy=Policy(again=Again(tries=1 if not again else 3, within=LONG_S))) as sandbox:
        held = sandbox.run("echo b > b; git add b; git commit -qm b", apply="hold")

        def meanwhile(_stream: str, _text: str) -> None:
            if not (repository / "on").read_text():
                sandbox.discard(held)
                (repository / "on").write_text("on")

        commit = "echo a > a; git add a; git commit -qm a; git log --format=%s"
        run = sandbox.run(f"{commit}; until [ -s on ]; do sleep 0.01; done", on_output=meanwhile)
        assert run.stdout.split() == (["a", "first"] if again else ["a", "b", "first"])
        assert run.state == "applied", run.changes
        assert git(repository, "log", "--format=%s").split() == (["a", "first"] if again else ["first"])
        assert (repository / "a").read_text() == "a\n"
        assert git(repository, "fsck", "--no-dangling") == ""
        later = sandbox.run("git log --format=%s")
        assert later.stdout == git(repository, "log", "--format=%s")
        sandbox.undo(run)
        assert is_sound(repository)


def test_what_is_discarded_just_before_a_commit_on_top_of_it_is_held_is_noticed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_project, due = Store.lock_project, list[Run]()

    def after_a_person(store: Store, project: int, *, wait: bool = True) -> FileLock:
        if due:
            sandbox.discard(due.pop())
        return lock_project(store, project, wait=wait)

    monkeypatch.setattr(Store, "lock_project", after_a_person)
    with Sandbox(repository) as sandbox:
        held = sandbox.run("echo b > b; git add b; git commit -qm b", apply="hold")
        commit = "echo a > a; git add a; git commit -qm a; echo done"
        seen: list[str] = []

        def meanwhile(_stream: str, text: str) -> None:
            if not seen:
                due.append(held)
            seen.append(text)

        run = sandbox.run(commit, on_output=meanwhile)
        assert run.reason.startswith("run again: ")
    assert git(repository, "log", "--format=%s").split() == ["a", "first"]
    assert is_sound(repository)


def test_a_persons_clean_up_is_no_conflict(repository: Path) -> None:
    """It writes the logs anew, without lines that are old, and packs what else the command changes."""
    with Sandbox(repository) as sandbox:
        assert sandbox.run("echo a > a; git add a; git commit -qm a").state == "applied"
        tidy = "git reflog expire --expire=now HEAD && git gc -q"
        run = in_the_meantime(sandbox, "echo b > b; git add b; git commit -qm b", repository, tidy)
        assert run.state == "applied", run.changes
        assert sandbox.run("echo c > c; git add c; git commit -qm c").state == "applied"
    assert git(repository, "log", "--format=%s").split() == ["c", "b", "a", "first"]
    assert git(repository, "reflog", "--format=%gs").splitlines()[:2] == ["commit: c", "commit: b"]
    assert is_sound(repository)


def test_a_stash_that_a_person_drops_meanwhile_is_not_brought_back(repository: Path) -> None:
    stash = "echo {0} > tracked; git stash -q"
    typed(repository, f"echo x > tracked; git add .; git commit -qm x; {stash.format(1)}; {stash.format(2)}")
    with Sandbox(repository) as sandbox:
        run = in_the_meantime(sandbox, stash.format(3), repository, "git stash drop -q stash@{1}")
    assert run.state == "held"
    assert git(repository, "stash", "list").count("stash@") == 1


@pytest.mark.parametrize("what", ["a ref", "its directory"])
def test_refs_that_are_packed_while_they_are_noted_are_left_out(
    repository: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "branch", "a/branch")
    gone = repository / ".git/refs/heads/a"
    naming = gitobjects._naming_objects

    def vanishing(top: int, directory: str) -> Iterator[tuple[str, os.stat_result, bool]]:
        for path, *others in naming(top, directory):
            if path.endswith("heads/main" if what == "its directory" else "a/branch"):
                shutil.rmtree(gone)
            yield path, *others

    monkeypatch.setattr(gitobjects, "_naming_objects", vanishing)
    refs = gitobjects.digest_refs(str(repository), str(repository / ".git"))
    assert ".git/refs/heads/main" in refs
    assert ".git/refs/heads/a/branch" not in refs


@pytest.mark.parametrize("mode", ["apply", "hold", "draft"])
def test_an_object_that_a_person_has_made_too_is_no_conflict(repository: Path, mode: str) -> None:
    """By its name it is the same; in one fan-out directory lie others, too: 1 and 678 share d0."""
    commit = "git switch -qc x; echo 1 > n; echo 678 > m; git add n m; git commit -qm n; git switch -q main"
    one = ".git/objects/d0/0491fd7e5bb6fa28c517a0bb32b8b506539d4d"
    mine = f"echo 1 | git hash-object -w --stdin; echo 1049 | git hash-object -w --stdin; touch -d @1 {one}"

    with Sandbox(repository) as sandbox:
        if mode == "apply":
            run = in_the_meantime(sandbox, "true", repository, mine, commit)
        elif mode == "hold":
            run = sandbox.run(commit, apply="hold")
            typed(repository, mine)
            run = sandbox.apply(run)
        else:
            draft = sandbox.draft("one")
            draft.run(commit)
            other = sandbox.run(mine)
            run = draft.apply()
            sandbox.undo(other)
        assert run.state == "applied", run.for_model()
        git(repository, "fsck", "--full", "--strict")
        assert git(repository, "show", "x:n", "x:m") == "1\n678\n"
        assert (repository / one).stat().st_mtime > 1  # as git has it: an old one would be pruned as unneeded
        sandbox.undo(run)
    git(repository, "fsck", "--full", "--strict")
    assert git(repository, "branch", "--format=%(refname:short)").split() == ["main"]
    if mode != "draft":
        assert git(repository, "cat-file", "-p", "d00491fd7e5bb6fa28c517a0bb32b8b506539d4d") == "1\n"


def test_objects_that_a_person_wants_anew_are_not_thrown_away_by_a_held_clean_up(repository: Path) -> None:
    typed(repository, "echo 1 | git hash-object -w --stdin; echo 678 | git hash-object -w --stdin")
    with Sandbox(repository) as sandbox:
        run = sandbox.run("git prune --expire=now", apply="hold")
        typed(repository, "echo 1 > n; git add n; git commit -qm n")
        assert sandbox.apply(run).state == "discarded"
        assert is_sound(repository)
        assert git(repository, "show", "@:n") == "1\n"
        later = sandbox.run("git gc -q --prune=now")
        assert later.state == "applied"
        typed(repository, "echo 678 > m; git add m")
        sandbox.undo(later)
        git(repository, "fsck", "--full", "--strict")
        assert git(repository, "show", ":m") == "678\n"


def test_what_is_unreachable_only_beside_what_waits_is_not_thrown_away(repository: Path) -> None:
    typed(repository, "touch f; git add f; git commit -qm f")
    with Sandbox(repository) as sandbox:
        sandbox.run("git commit -q --amend -m other; git reflog expire --expire=now --all", apply="hold")
        for line in ("git prune --expire=now", "git gc -q --prune=now"):
            assert sandbox.run(line).state == "held", line
            assert is_sound(repository)
            assert not (repository / ".git/objects/info/commit-graph").exists()
            assert git(repository, "log", "-1", "--format=%s") == "f\n"


@pytest.mark.parametrize("apply", ["apply", "hold"])
def test_what_a_branch_names_since_is_not_thrown_away(repository: Path, apply: str) -> None:
    lost = typed(repository, "git commit-tree @^{tree} -p @ -m lost").strip()
    keep = f"git branch keep {lost}"
    with Sandbox(repository) as sandbox:
        if apply == "hold":
            run = sandbox.run("git prune --expire=now", apply="hold")
            typed(repository, keep)
            run = sandbox.apply(run)
        else:
            run = in_the_meantime(sandbox, "git prune --expire=now", repository, keep)
        assert run.state == "discarded", run.for_model()
    assert git(repository, "log", "-1", "--format=%s", "keep") == "lost\n"
    git(repository, "fsck", "--full", "--strict")


@pytest.mark.parametrize("kind", ["held", "draft"])
def test_undo_leaves_objects_that_what_waits_is_built_on(repository: Path, kind: str) -> None:
    with Sandbox(repository) as sandbox:
        made = sandbox.run("git commit-tree @^{tree} -p @ -m made")
        line = f"git branch keep {made.stdout.strip()}"
        if kind == "held":
            waits = sandbox.run(line, apply="hold")
            sandbox.undo(made)
            sandbox.apply(waits)
        else:
            draft = sandbox.draft("one")
            draft.run(line)
            sandbox.undo(made)
            draft.apply()
    assert git(repository, "log", "-1", "--format=%s", "keep") == "made\n"
    git(repository, "fsck", "--full", "--strict")


def test_what_git_notes_of_a_work_tree_goes_with_the_home_that_it_was_made_in(repository: Path, home: Path) -> None:
    with Sandbox(repository) as sandbox:
        commit = "git commit -q --allow-empty -m there"
        run = sandbox.run(f"git worktree add -q -b side {home}/tree; cd {home}/tree; {commit}")
        assert run.state == "applied", run.changes
        left = {change.path: change.reason for change in run.changes if change.verdict == "discarded"}
        assert left[".git/worktrees/tree/gitdir"] == f"its work tree is not kept: {home}/tree"
        assert not (repository / ".git/worktrees/tree").exists()
        again = sandbox.run(f"git worktree add -q {home}/tree side; git worktree add -q inside; git worktree list")
        assert again.exit_code == 0
    assert git(repository, "log", "--format=%s", "side").split() == ["there", "first"]
    assert git(repository, "worktree", "list").count("inside") == 2
    assert is_sound(repository)


def test_a_rebase_that_stops_waits_with_its_repository(repository: Path) -> None:
    typed(repository, "echo 1 > f; git add f; git commit -qm 1; git switch -qc t @~")
    typed(repository, "echo 2 > f; git add f; git commit -qm 2")
    with Sandbox(repository) as sandbox:
        run = in_the_meantime(
            sandbox, "true", repository, "touch mine; git add mine; git commit -qm mine", "git rebase -q main"
        )  # fmt: skip
        assert run.state == "held"
        assert not (repository / ".git/rebase-merge").exists()
        assert "rebas" not in git(repository, "status")


def test_a_branch_that_is_made_over_a_held_index_waits_too(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        sandbox.run("echo a > a; git add a", apply="hold")
        assert verdicts(sandbox.run("git branch topic")) == {"held"}
        assert verdicts(sandbox.run("echo x > beside")) == set()
    assert git(repository, "branch", "--format=%(refname:short)").split() == ["main"]


def test_a_work_tree_that_is_made_over_a_held_commit_is_not_known_before_its_head_is_there(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        held = sandbox.run("echo a > a; git add a; git commit -qm a", apply="hold")
        linked = sandbox.run("git worktree add -q beside")
        assert linked.state == "held"
        assert is_sound(repository)
        assert len(git(repository, "worktree", "list").splitlines()) == 1
        sandbox.apply(held)
        sandbox.apply(linked)
        assert git(repository / "beside", "status", "--porcelain") == ""
        sandbox.undo(linked)
        assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert is_sound(repository)


def test_a_repository_whose_directory_is_a_root_of_its_own_waits_as_one(
    store: Store, repository: Path, test_directory: Path
) -> None:
    tree = test_directory / "tree"
    git(repository, "worktree", "add", "-q", str(tree))
    store.projects.add_root(store.projects.open(str(tree)), str(repository / ".git"))
    with Sandbox(tree) as sandbox:
        first = sandbox.run("echo a > a; git add a", apply="hold")
        second = sandbox.run("echo b > b; git add b; git commit -qm b")
        of_state = [change for change in second.changes if re.search(r"(^|/)(HEAD|index|refs/.*)$", change.path)]
        assert len(of_state) >= 3
        assert {change.verdict for change in of_state} == {"held"}, of_state
        assert git(tree, "log", "--format=%s").split() == ["first"]
        sandbox.apply(first)
        sandbox.apply(second)
    assert git(tree, "log", "--format=%s").split() == ["b", "first"]
    assert git(tree, "status", "--porcelain") == ""


COMMANDS = {
    "add": "echo a > a; git add a",
    "commit": "echo b > b; git add b; git commit -qm b",
    "branch": "git switch -qc topic",
    "remove": "git rm -q kept; git commit -qm gone",
}


@pytest.mark.parametrize("held", COMMANDS)
def test_in_every_order_of_runs_the_repository_stays_whole(repository: Path, held: str) -> None:
    (repository / "kept").write_text("kept\n")
    git(repository, "add", "kept")
    git(repository, "commit", "-qm", "kept")
    others = [name for name in COMMANDS if name != held]
    order = next(itertools.permutations(others))
    with Sandbox(repository) as sandbox:
        sandbox.run(COMMANDS[held], apply="hold")
        for name in order:
            run = sandbox.run(COMMANDS[name])
            assert len(verdicts(run)) <= 1, (name, run.changes)
            assert is_sound(repository)
        for run in reversed(sandbox.history()):
            if run.state == "held":
                sandbox.apply(run)
            assert is_sound(repository)
    assert git(repository, "status", "--porcelain") == ""


def test_a_commit_is_told_without_the_names_of_its_objects(repository: Path) -> None:
    objects = repository / ".git/objects"
    before = len([*objects.rglob("*")])
    with Sandbox(repository) as sandbox:
        text = sandbox.run("echo n > n; git add n; git commit -qm n").for_model()
    # Three objects, each in a directory of its own, unless two names begin alike.
    assert f"added {len([*objects.rglob('*')]) - before} entries in .git/objects/" in text
    assert text.count(".git/objects") == 1
    assert "added n\n" in f"{text}\n"
