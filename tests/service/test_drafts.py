"""Drafts: lines of runs beside a project, applied as one."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from faulty import BEFORE, CHANGE
from fumehood import ApplyFailed, BadRequest, ChangedMeanwhile, DraftConflict, Policy, Run, Sandbox
from fumehood.core.text_diff import merge_texts
from fumehood.linux.layer import LayerStack, MergedDirectory
from fumehood.linux.libc import Closing
from fumehood.service import draft_merge, drafting
from fumehood.service.apply import apply_changes
from fumehood.service.drafts import apply_draft, discard_draft
from fumehood.service.store import Store
from fumehood.store.projects import Project
from snapshots import snapshot

pytestmark = pytest.mark.namespaces


def test_only_the_runs_of_a_draft_see_what_it_holds(sandbox: Sandbox, project: Path) -> None:
    (project / "a.txt").write_text("project\n")
    one, other = sandbox.draft("one"), sandbox.draft("other")
    assert one.run("echo one > a.txt; echo new > one.txt").state == "held"
    assert other.run("cat a.txt; ls").stdout == "project\na.txt\n"
    assert sandbox.run("cat a.txt; ls").stdout == "project\na.txt\n"
    assert one.run("cat a.txt; ls").stdout == "one\na.txt\none.txt\n"
    assert (project / "a.txt").read_text() == "project\n"


def test_a_draft_does_not_see_what_the_project_holds(sandbox: Sandbox, project: Path) -> None:
    sandbox.run("echo held > held.txt", apply="hold")
    assert sandbox.draft("one").run("ls").stdout == ""
    assert sandbox.run("ls").stdout == "held.txt\n"


def test_a_draft_sees_what_the_project_has_now(sandbox: Sandbox, project: Path) -> None:
    draft = sandbox.draft("one")
    draft.run("echo mine > mine.txt")
    (project / "later.txt").write_text("a person's\n")
    assert draft.run("cat later.txt mine.txt").stdout == "a person's\nmine\n"


def test_what_a_person_saves_while_a_draft_is_applied_stays_and_is_named(
    sandbox: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "gone").mkdir()
    draft = sandbox.draft("one")
    draft.run("rmdir gone; echo new > new")

    def after_a_save(*arguments: Any, **options: Any) -> None:
        (project / "gone/mine").write_text("the person's")
        apply_changes(*arguments, **options)

    monkeypatch.setattr("fumehood.service.apply.apply_changes", after_a_save)
    with pytest.raises(ApplyFailed, match=r"^nothing was applied: gone changed meanwhile$"):
        draft.apply()
    assert [str(path.relative_to(project)) for path in project.rglob("*")] == ["gone", "gone/mine"]


@pytest.mark.parametrize("is_draft", [True, False])
def test_a_directory_that_a_person_moves_while_it_is_compared_is_no_error(
    sandbox: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch, is_draft: bool
) -> None:
    (project / "d").mkdir()
    (project / "d/old").write_text("old\n")
    draft = sandbox.draft("line")
    if is_draft:
        draft.run("echo new > d/new")
    open_merged = LayerStack.open_merged

    def after_a_move(stack: LayerStack, path: str) -> MergedDirectory:
        if path == "d" and not (project / "moved").exists():
            (project / "d").rename(project / "moved")
        return open_merged(stack, path)

    monkeypatch.setattr(LayerStack, "open_merged", after_a_move)
    run = draft.apply(force=True) if is_draft else sandbox.run("echo new > d/new")
    assert run.state == "applied"
    assert {str(path.relative_to(project)) for path in project.rglob("*")} == {"d", "d/new", "moved", "moved/old"}


def test_all_runs_of_a_draft_are_applied_as_one_that_one_undo_takes_back(sandbox: Sandbox, project: Path) -> None:
    (project / "a.txt").write_text("old\n")
    (project / "gone.txt").write_text("gone\n")
    draft = sandbox.draft("one")
    draft.run("echo first > a.txt; mkdir d; echo 1 > d/one")
    draft.run("echo second > a.txt; rm gone.txt; echo 2 > d/two; chmod 700 d")
    run = draft.apply()
    assert run.state == "applied"
    assert {(each.path, each.change) for each in run.changes} == {
        ("a.txt", "modified"), ("gone.txt", "deleted"), ("d", "added"), ("d/one", "added"), ("d/two", "added"),
    }  # fmt: skip
    assert (project / "a.txt").read_text() == "second\n"
    assert not (project / "gone.txt").exists()
    assert [os.stat(project / name).st_nlink for name in ("a.txt", "d/one")] == [1, 1]
    assert sandbox.drafts() == []
    sandbox.undo()
    assert (project / "a.txt").read_text() == "old\n"
    assert (project / "gone.txt").read_text() == "gone\n"
    assert not (project / "d").exists()
    sandbox.redo()
    assert (project / "d/two").read_text() == "2\n"


def test_a_draft_leaves_what_a_single_run_would(sandbox: Sandbox, project: Path, test_directory: Path) -> None:
    beside = test_directory / "beside"
    beside.mkdir()
    for place in (project, beside):
        subprocess.run(["sh", "-ec", BEFORE], cwd=place, check=True)
    before = snapshot(project)
    draft = sandbox.draft("one")
    for part in ("mkdir tree; echo early > plain/one", f"rm -r tree\n{CHANGE}"):
        run = draft.run(part)
        assert run.exit_code == 0, run.output
    draft.apply()
    with Sandbox(beside) as other:
        other.run(CHANGE)
    assert snapshot(project) == snapshot(beside)
    sandbox.undo()
    assert {path: told[:-1] for path, told in snapshot(project).items()} == {
        path: told[:-1] for path, told in before.items()
    }


def test_texts_that_both_have_changed_are_merged(sandbox: Sandbox, project: Path) -> None:
    (project / "a.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    draft = sandbox.draft("one")
    draft.run("sed -i 's/line 3$/draft 3/' a.txt")
    text = (project / "a.txt").read_text().replace("line 15\n", "person 15\n")
    (project / "a.txt").write_text(text)
    run = draft.apply()
    assert run.state == "applied"
    assert (project / "a.txt").read_text() == text.replace("line 3\n", "draft 3\n")
    sandbox.undo(run)
    assert (project / "a.txt").read_text() == text


def edited(lines: list[str], by: random.Random) -> list[str]:
    """Some edits of a text, wherever they fall."""
    lines = list(lines)
    for _ in range(by.randint(1, 3)):
        at, what = by.randrange(len(lines) + 1), by.choice(("insert", "remove", "replace"))
        if what == "insert":
            lines.insert(at, f"new {by.randint(0, 5)}\n")
        elif at < len(lines):
            lines[at : at + 1] = [f"changed {by.randint(0, 5)}\n"] if what == "replace" else []
    return lines


def test_a_merge_is_clean_only_where_git_s_is_and_then_the_same(tmp_path: Path) -> None:
    by, clean = random.Random(3), 0
    for _ in range(60):
        base = [f"line {number if by.random() < 0.8 else 0}\n" for number in range(by.randint(1, 25))]
        texts = {"base": "".join(base), "ours": "".join(edited(base, by)), "theirs": "".join(edited(base, by))}
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        command = ["git", "merge-file", "-p", "ours", "base", "theirs"]
        git = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        text, places = merge_texts(texts["base"], texts["ours"], texts["theirs"], ("ours", "theirs"))
        if not places:
            clean += 1
            assert (git.returncode, git.stdout) == (0, text), texts
    assert clean > 20


def test_two_drafts_are_applied_one_after_the_other(sandbox: Sandbox, project: Path) -> None:
    (project / "a.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    drafts = [sandbox.draft(f"draft-{n}") for n in (2, 9, 16)]
    for draft in drafts:
        n = draft.name.removeprefix("draft-")
        draft.run(f"sed -i 's/line {n}$/changed {n}/' a.txt; echo {n} > new-{n}")
    for draft in drafts:
        assert draft.apply().state == "applied"
    changed = [line for line in (project / "a.txt").read_text().split("\n") if line.startswith("changed")]
    assert changed == ["changed 2", "changed 9", "changed 16"]
    assert sorted(os.listdir(project)) == ["a.txt", "new-16", "new-2", "new-9"]


def test_what_both_have_changed_in_one_line_is_a_conflict(sandbox: Sandbox, project: Path) -> None:
    (project / "a.txt").write_text("old\n")
    one, other = sandbox.draft("one"), sandbox.draft("other")
    one.run("echo one > a.txt")
    other.run("echo other > a.txt; echo new > new.txt")
    one.apply()
    with pytest.raises(DraftConflict) as caught:
        other.apply()
    (conflict,) = caught.value.conflicts
    assert conflict.path == "a.txt"
    assert conflict.text == "<<<<<<< in the project\none\n=======\nother\n>>>>>>> draft other\n"
    assert sorted(os.listdir(project)) == ["a.txt"]
    assert other.run("cat a.txt new.txt").stdout == "other\nnew\n"
    assert other.apply(force=True).state == "applied"
    assert (project / "a.txt").read_text() == "other\n"
    sandbox.undo()
    assert (project / "a.txt").read_text() == "one\n"


@pytest.mark.parametrize(("in_draft", "by_person"), [
    ("echo draft > a.txt", "rm a.txt"), ("rm a.txt", "echo person > a.txt"), ("echo draft > new", "echo person > new"),
    ("rm -r d", "echo person > d/new"), ("rm -r d", "echo person > d/old"),
    ("printf 'a\\0b' > a.txt", "echo person > a.txt"),
    ("rm a.txt; mkdir a.txt", "echo person > a.txt"), ("chmod 600 d/old", "rm d/old"),
])  # fmt: skip
def test_what_can_not_be_merged_is_a_conflict(sandbox: Sandbox, project: Path, in_draft: str, by_person: str) -> None:
    (project / "a.txt").write_text("old\n")
    (project / "d").mkdir()
    (project / "d/old").write_text("old\n")
    draft = sandbox.draft("one")
    assert draft.run(in_draft).state == "held"
    subprocess.run(["sh", "-c", by_person], cwd=project, check=True)
    before = sandbox.run("find . -type f | sort | xargs grep -H ''").stdout
    with pytest.raises(DraftConflict):
        draft.apply()
    assert sandbox.run("find . -type f | sort | xargs grep -H ''").stdout == before


def test_what_the_project_has_already_is_not_applied_again(sandbox: Sandbox, project: Path) -> None:
    (project / "a.txt").write_text("old\n")
    draft = sandbox.draft("one")
    draft.run("echo new > a.txt")
    (project / "a.txt").write_text("new\n")
    assert draft.apply().state == "empty"
    assert sandbox.drafts() == []


def test_a_rebase_marks_what_a_person_must_choose_in_the_draft(sandbox: Sandbox, project: Path) -> None:
    (project / "a.txt").write_text("old\n")
    (project / "b.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    draft = sandbox.draft("one")
    draft.run("echo draft > a.txt; sed -i 's/line 3$/draft 3/' b.txt")
    (project / "a.txt").write_text("person\n")
    (project / "b.txt").write_text((project / "b.txt").read_text().replace("line 15\n", "person 15\n"))
    paths, conflicts = draft.rebase()
    assert sorted(paths) == ["a.txt", "b.txt"]
    assert [each.path for each in conflicts] == ["a.txt"]
    assert draft.run("grep -c . a.txt; grep -E 'draft|person' b.txt").stdout == "5\ndraft 3\nperson 15\n"
    with pytest.raises(BadRequest, match="still marked"):
        draft.apply()
    draft.run("echo both > a.txt")
    assert draft.apply().state == "applied"
    assert (project / "a.txt").read_text() == "both\n"
    assert "draft 3\n" in (project / "b.txt").read_text()


def test_what_the_host_would_act_on_is_held_of_a_draft_too(sandbox: Sandbox, project: Path) -> None:
    draft = sandbox.draft("one")
    draft.run("echo a > a.txt; mkdir .vscode; echo '{}' > .vscode/settings.json")
    run = draft.apply()
    assert run.state == "held"
    assert {each.path: each.verdict for each in run.changes}["a.txt"] == "applied"
    assert not (project / ".vscode").exists()
    assert sandbox.apply(run).state == "applied"
    assert (project / ".vscode/settings.json").exists()


def test_a_draft_that_is_thrown_away_leaves_nothing(sandbox: Sandbox, project: Path) -> None:
    draft = sandbox.draft("one")
    draft.run("echo a > a.txt")
    draft.run("echo b > b.txt")
    assert draft.discard() == 2
    assert os.listdir(project) == []
    assert sandbox.drafts() == []
    assert [run.state for run in sandbox.history()] == ["discarded", "discarded"]
    assert sandbox.draft("one").run("ls").stdout == ""


def test_each_run_of_a_draft_has_its_own_undo(sandbox: Sandbox, project: Path) -> None:
    draft = sandbox.draft("one")
    first = draft.run("echo a > a.txt")
    second = draft.run("echo b > b.txt")
    sandbox.undo(first)
    assert draft.run("ls").stdout == "b.txt\n"
    third = draft.run("echo more >> b.txt")
    with pytest.raises(BadRequest, match="builds on it"):
        sandbox.undo(second)
    sandbox.undo(third)
    assert draft.run("cat b.txt").stdout == "b\n"


def test_an_agent_s_undo_takes_back_its_last_run_in_its_draft(sandbox: Sandbox, project: Path) -> None:
    with Sandbox(project, draft="one") as inside:
        agent = inside.session("agent")
        agent.run("echo a > a.txt")
        agent.run("echo b > b.txt")
        agent.undo()
        assert agent.run("ls").stdout == "a.txt\n"
    with pytest.raises(BadRequest, match="nothing is left to undo"):
        sandbox.undo()  # a person's is about the project


def test_nothing_is_run_in_a_draft_that_is_settled(sandbox: Sandbox, project: Path) -> None:
    draft = sandbox.draft("one")
    draft.run("echo a > a.txt")
    seen = sandbox.draft("one")
    draft.discard()
    for act in (seen.apply, seen.discard):
        with pytest.raises(BadRequest, match="is no longer there"):
            act()
    with pytest.raises(BadRequest, match="there is no draft one"):
        seen.run("true")
    assert os.listdir(project) == []


def test_a_command_that_runs_keeps_its_draft_from_being_settled(sandbox: Sandbox) -> None:
    draft = sandbox.draft("one")
    with draft.start("echo begun; cat") as command:
        assert command.stdout.readline() == "begun\n"
        for act in (draft.apply, draft.discard):
            with pytest.raises(BadRequest, match="a command is running in draft one"):
                act()
        command.stdin.close()
        command.wait()
    assert draft.discard() == 0


def test_a_run_of_a_draft_is_not_applied_by_itself(sandbox: Sandbox) -> None:
    run = sandbox.draft("one").run("echo a > a.txt")
    with pytest.raises(BadRequest, match="in draft one"):
        sandbox.apply(run)


@pytest.mark.long
def test_many_runs_are_folded_and_still_show_the_same(sandbox: Sandbox, project: Path) -> None:
    draft = sandbox.draft("one")
    for n in range(40):
        draft.run(f"echo {n} > same; echo {n} > own-{n}; rm -f own-{n - 3}")
    seen = "39\nown-37\nown-38\nown-39\nsame\n"
    assert draft.run("cat same; ls").stdout == seen
    other = sandbox.draft("other")
    for n in range(20):
        other.run(f"echo {n} > other-{n}")
    assert draft.run("cat same; ls").stdout == seen
    draft.apply()
    assert sorted(os.listdir(project)) == ["own-37", "own-38", "own-39", "same"]


def test_a_file_of_a_folded_run_has_the_names_that_commands_see(sandbox: Sandbox, project: Path) -> None:
    draft = sandbox.draft("one")
    draft.run("echo 1 > one; echo 2 > two; ln two also")
    for n in range(20):
        draft.run(f"echo {n} > other")
    (change,) = draft.run("echo more >> one").changes
    assert change.flags == ()
    assert [each.path for each in draft.run("echo more >> two").changes] == ["also", "two"]
    draft.apply()
    assert (project / "also").read_text() == (project / "two").read_text() == "2\nmore\n"
    assert (project / "also").samefile(project / "two")


def test_a_draft_can_have_another_name(sandbox: Sandbox) -> None:
    draft = sandbox.draft("one")
    draft.run("echo a > a.txt")
    sandbox.draft("two")
    with pytest.raises(BadRequest, match="already"):
        draft.rename("two")
    draft.rename("three")
    assert [each.name for each in sandbox.drafts()] == ["three", "two"]
    assert draft.run("cat a.txt").stdout == "a\n"
    assert draft.run("true").draft_name == "three"


def test_a_draft_travels_as_a_bundle_into_another_draft(sandbox: Sandbox, project: Path, tmp_path: Path) -> None:
    (project / "a.txt").write_text("old\n")
    draft = sandbox.draft("one")
    draft.run("echo new > a.txt")
    draft.run("echo b > b.txt")
    assert draft.export(tmp_path / "it.tar") == 2
    draft.discard()
    taken = sandbox.draft("taken")
    assert taken.import_bundle(tmp_path / "it.tar").state == "held"
    assert os.listdir(project) == ["a.txt"]
    assert taken.apply().state == "applied"
    assert (project / "b.txt").read_text() == "b\n"


def test_a_frozen_draft_sees_the_project_as_it_was(sandbox: Sandbox, project: Path) -> None:
    for command in ("git init -q .", "git config user.name a", "git config user.email a@example.org"):
        subprocess.run(command.split(), cwd=project, check=True)
    (project / "a.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    (project / "d").mkdir()
    os.symlink("a.txt", project / "link")
    subprocess.run("git add . && git commit -qm first", shell=True, cwd=project, check=True)
    draft = sandbox.draft("one", frozen=True)
    assert draft.frozen
    with open(project / "a.txt", "r+") as file:  # in place, as some editors do
        file.write("person 0")
    (project / "d/new").write_text("new\n")
    seen = draft.run("head -1 link; ls d; git status --short; sed -i 's/line 15$/draft 15/' a.txt; echo d > d/draft")
    assert seen.stdout == "line 0\n"
    assert draft.run("sed -n 1p a.txt; sed -n 16p a.txt; ls d").stdout == "line 0\ndraft 15\ndraft\n"
    assert draft.apply().state == "applied"
    text = (project / "a.txt").read_text()
    assert text.startswith("person 0")
    assert "draft 15\n" in text
    assert sorted(os.listdir(project / "d")) == ["draft", "new"]
    objects = (path for path in (project / ".git/objects").rglob("*") if path.is_file())
    assert {path.stat().st_nlink for path in objects} == {1}


@pytest.mark.long
@pytest.mark.parametrize("way", ["kernel", "bwrap", "fuse", "copy"], indirect=True)
@pytest.mark.parametrize("frozen", [False, True], ids=["live", "frozen"])
def test_a_draft_works_however_writes_are_captured(way: str, frozen: bool, project_on_either: Path) -> None:
    project = project_on_either
    (project / "a.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    (project / "gone").mkdir()
    (project / "gone/x").write_text("x\n")
    with Sandbox(project, policy=Policy(capture=way)) as sandbox:
        draft = sandbox.draft("one", frozen=frozen)
        draft.run("sed -i 's/line 3$/draft 3/' a.txt; rm -r gone; mkdir new; echo n > new/n")
        (project / "a.txt").write_text((project / "a.txt").read_text().replace("line 15\n", "person 15\n"))
        seen = draft.run("echo more >> new/n; ls; cat new/n; grep -c person a.txt")
        assert seen.stdout == "a.txt\nnew\nn\nmore\n0\n"
        assert draft.apply().state == "applied"
        changed = [line for line in (project / "a.txt").read_text().split("\n") if not line.startswith("line")]
        assert changed == ["draft 3", "person 15", ""]
        assert sorted(os.listdir(project)) == ["a.txt", "new"]
        sandbox.undo()
        assert sorted(os.listdir(project)) == ["a.txt", "gone"]


def test_a_frozen_draft_finds_a_conflict_with_what_came_later(sandbox: Sandbox, project: Path) -> None:
    (project / "a.txt").write_text("old\n")
    draft = sandbox.draft("one", frozen=True)
    (project / "a.txt").write_text("person\n")
    draft.run("echo more >> a.txt")
    with pytest.raises(DraftConflict):
        draft.apply()
    with pytest.raises(BadRequest, match="already"):
        sandbox.draft("one", new=True, frozen=True)
    draft.discard()
    assert (project / "a.txt").read_text() == "person\n"


def test_a_word_on_a_draft_is_for_what_was_shown(sandbox: Sandbox, store: Store, known: Project, project: Path) -> None:
    draft = sandbox.draft("one")
    draft.run("echo 1 > f")
    record = store.drafts.find(known.id, "one")
    seen = store.drafts.state_id(record)
    draft.run("echo 2 > f")
    before = snapshot(project)
    with pytest.raises(ChangedMeanwhile, match="draft one has changed since it was shown"):
        apply_draft(store, known, record, expected=seen)
    with pytest.raises(ChangedMeanwhile, match="draft one has changed since it was shown"):
        discard_draft(store, known, record, expected=seen)
    assert snapshot(project) == before
    assert apply_draft(store, known, record, expected=store.drafts.state_id(record)).state == "applied"
    assert (project / "f").read_text() == "2\n"


@pytest.fixture
def repository(project: Path) -> Path:
    for command in ("git init -q -b main .", "git config user.name a", "git config user.email a@example.org"):
        subprocess.run(command.split(), cwd=project, check=True)
    (project / "a.txt").write_text("old\n")
    (project / ".gitignore").write_text("ignored\n")
    subprocess.run("git add . && git commit -qm first", shell=True, cwd=project, check=True)
    return project


def git(repository: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=repository, check=True, capture_output=True, text=True).stdout


def test_a_draft_can_become_a_commit_on_a_branch(sandbox: Sandbox, repository: Path) -> None:
    draft = sandbox.draft("fix")
    draft.run("echo new > a.txt; mkdir d; echo d > d/d")
    draft.run("git commit -qam 'in the draft'; rm .gitignore")
    run = draft.commit(message="All of it", author="Ann <ann@example.org>")
    assert run.state == "applied"
    assert git(repository, "status", "--short") == ""
    assert git(repository, "log", "-1", "--format=%s").strip() == "first"
    assert git(repository, "log", "--format=%s %an", "fix") == "All of it Ann\nin the draft a\nfirst a\n"
    assert git(repository, "show", "fix:d/d") == "d\n"
    assert ".gitignore" not in git(repository, "ls-tree", "--name-only", "fix")
    assert (repository / "a.txt").read_text() == "old\n"
    assert sandbox.drafts() == []
    sandbox.undo(run)
    assert git(repository, "branch", "--format=%(refname:short)") == "main\n"


def test_where_both_have_committed_a_branch_is_offered_and_has_it(sandbox: Sandbox, repository: Path) -> None:
    draft = sandbox.draft("one")
    draft.run("echo 1 > theirs; git add theirs; git commit -qm theirs")
    (repository / "mine").write_text("1\n")
    git(repository, "add", "mine")
    git(repository, "commit", "-qm", "mine")
    with pytest.raises(DraftConflict) as refused:
        draft.apply()
    assert "fumehood draft apply one --as-commit leaves its commits on a branch" in (refused.value.hint or "")
    draft.commit("theirs")
    assert git(repository, "log", "-1", "--format=%s") == "mine\n"
    assert git(repository, "show", "theirs:theirs") == "1\n"


def test_what_is_written_while_a_commit_is_made_is_not_thrown_away(
    sandbox: Sandbox, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = sandbox.draft("fix")
    draft.run("echo new > a.txt")
    apply = drafting.drafts.apply_draft

    def apply_late(*arguments: Any, **options: Any) -> Run:
        monkeypatch.undo()
        draft.run("echo late > late")
        return apply(*arguments, **options)

    monkeypatch.setattr(drafting.drafts, "apply_draft", apply_late)
    with pytest.raises(ChangedMeanwhile, match="has changed since"):
        draft.commit()
    assert draft.run("cat late; git branch").stdout == "late\n* main\n"
    assert draft.commit().state == "applied"
    assert git(repository, "show", "fix:late") == "late\n"


def test_a_commit_that_can_not_be_applied_leaves_the_draft_as_it_was(sandbox: Sandbox, repository: Path) -> None:
    draft = sandbox.draft("one")
    draft.run("echo 1 > theirs")
    with draft.start("echo ready; read line") as command:
        assert command.stdout.readline() == "ready\n"
        with pytest.raises(BadRequest, match="a command is running in draft one"):
            draft.commit()
    assert [each.path for each in draft.changes()] == ["theirs"]
    assert draft.commit().state == "applied"
    assert git(repository, "show", "one:theirs") == "1\n"


def test_what_git_ignores_is_not_thrown_away_for_a_commit(sandbox: Sandbox, repository: Path) -> None:
    draft = sandbox.draft("fix")
    draft.run("echo new > a.txt; echo it > ignored")
    with pytest.raises(BadRequest, match="git ignores 1 of the paths in draft fix: ignored"):
        draft.commit()
    assert draft.run("cat ignored; git branch").stdout == "it\n* main\n"
    with pytest.raises(BadRequest, match="no commit was made"):
        draft.commit("main", force=True)
    assert draft.commit("other", force=True).state == "applied"
    assert git(repository, "show", "other:a.txt") == "new\n"


def test_caches_that_both_have_written_are_no_conflict(sandbox: Sandbox, project: Path) -> None:
    (project / "one.py").write_text("".join(f"line_{n} = {n}\n" for n in range(20)))
    (project / "test_one.py").write_text("import one\n\nassert one.line_2 + one.line_16\n")
    before = snapshot(project)
    drafts = [sandbox.draft(f"draft-{n}") for n in (2, 16)]
    for draft in drafts:
        number = draft.name.partition("-")[2]
        draft.run(f"mkdir .pytest_cache; echo '{{\"failed\": {number}}}' >.pytest_cache/last")
        run = draft.run(f"sed -i 's/line_{number} = .*/line_{number} = 1{number}/' one.py; python3 test_one.py")
        assert run.exit_code == 0, run.output
    for draft in drafts:
        assert draft.conflicts() == []
        assert draft.apply().state == "applied"
    line = [sys.executable, "-B", "-c", "import one; print(one.line_2, one.line_16)"]
    assert subprocess.run(line, cwd=project, capture_output=True, check=True).stdout == b"12 116\n"
    assert (project / ".pytest_cache/last").read_text() == '{"failed": 16}\n'
    sandbox.undo()
    sandbox.undo()
    assert snapshot(project) == before


def test_where_there_is_no_room_for_the_version_before_a_run_the_run_is_reported_all_the_same(
    sandbox: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (project / name).write_text("old\n")
    copy = draft_merge.copy_entry

    def copy_to_full_disk(source_dir: int, source: str, target_dir: int, target: str) -> None:
        copy(source_dir, source, target_dir, target)
        if source == "b":
            with Closing(os.open(target, os.O_WRONLY, dir_fd=target_dir)) as half:
                os.truncate(half, 1)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(draft_merge, "copy_entry", copy_to_full_disk)
    run = sandbox.draft("line").run("echo new > a; echo new > b")
    assert run.state == "held"
    assert os.listdir(sandbox._store.places.layer(run.run, 0, draft_merge.BASE)) == ["a"]
