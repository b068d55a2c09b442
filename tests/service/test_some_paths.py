"""Decisions on some of a run's paths, and by force where the project was changed since."""

import errno
import os
import subprocess

import pytest

from fumehood import ApplyFailed, BadRequest, Policy, Sandbox, UndoRefused
from fumehood.errors import ChangedMeanwhile
from fumehood.service import decide
from fumehood.service.versions import contents
from snapshots import snapshot

pytestmark = [pytest.mark.namespaces, pytest.mark.once]


def verdicts(run):
    return {change.path: change.verdict for change in run.changes}


def shown(sandbox, run):
    return next(each for each in sandbox.history() if each.id == run.id)


def test_some_paths_are_applied_and_the_others_wait(sandbox, project):
    (project / "a").write_text("a\n")
    run = sandbox.run("echo A >> a; echo b > b; mkdir d; echo c > d/c; echo e > d/e", apply="hold")
    done = sandbox.apply(run, "b", "d/c")
    assert verdicts(done) == {"a": "held", "b": "applied", "d": "applied", "d/c": "applied", "d/e": "held"}
    assert done.state == "held"
    assert sorted(path.name for path in project.rglob("*")) == ["a", "b", "c", "d"]
    assert sandbox.run("cat a d/e").stdout == "a\nA\ne\n"
    sandbox.discard(run, "a")
    assert sandbox.run("cat a d/e").stdout == "a\ne\n"
    assert sandbox.apply(run).state == "applied"
    assert (project / "d/e").exists()
    sandbox.undo(run)
    assert sorted(path.name for path in project.rglob("*")) == ["a"]


def test_a_replaced_directory_goes_whole(sandbox, project):
    (project / "d/sub").mkdir(parents=True)
    (project / "d/sub/f").write_text("f")
    (project / "e").mkdir()
    (project / "e/g").write_text("g")
    run = sandbox.run("rm -r d; echo file > d; rm -r e", apply="hold")
    done = sandbox.apply(run, "d/sub/f")
    assert {path for path, verdict in verdicts(done).items() if verdict == "applied"} == {"d", "d/sub", "d/sub/f"}
    assert (project / "d").is_file()
    assert (project / "e/g").exists()


def test_a_path_that_is_not_in_the_run_or_does_not_wait_is_refused(sandbox, project):
    (project / ".envrc").write_text("")
    run = sandbox.run("echo x > x; echo evil > .envrc")
    with pytest.raises(BadRequest, match="did not change nothing-here"):
        sandbox.apply(run, "nothing-here")
    with pytest.raises(BadRequest, match="does not hold x: it is applied"):
        sandbox.discard(run, "x")


def test_one_path_is_undone_and_what_is_left_afterwards(sandbox, project):
    (project / "a").write_text("a\n")
    (project / "b").write_text("b\n")
    before = snapshot(project)
    run = sandbox.run("echo A >> a; echo B >> b; mkdir d; echo c > d/c; echo e > d/e")
    after = snapshot(project)
    back = sandbox.undo(run, "a", "d/c")
    assert verdicts(shown(sandbox, run)) == {
        "a": "discarded", "b": "applied", "d": "applied", "d/c": "discarded", "d/e": "applied",
    }  # fmt: skip
    assert (project / "a").read_text() == "a\n"
    assert (project / "b").read_text() == "b\nB\n"
    assert [path.name for path in (project / "d").iterdir()] == ["e"]
    with pytest.raises(BadRequest, match=f"what run {run.name} did to a is undone already, by run {back.name}"):
        sandbox.undo(run, "a")
    sandbox.undo(back, "a")
    assert (project / "a").read_text() == "a\nA\n"
    assert not (project / "d/c").exists()
    sandbox.undo(back)
    assert snapshot(project) == after
    assert set(verdicts(shown(sandbox, run)).values()) == {"applied"}
    sandbox.undo(run)
    assert snapshot(project) == before
    assert shown(sandbox, run).state == "undone"


def test_what_is_left_of_a_run_is_undone_after_some_paths(sandbox, project):
    (project / "a").write_text("a\n")
    (project / "b").write_text("b\n")
    before = snapshot(project)
    run = sandbox.run("echo A >> a; echo B >> b")
    sandbox.undo(run, "a")
    rest = sandbox.undo(run)
    assert snapshot(project) == before
    assert shown(sandbox, run).state == "undone"
    sandbox.undo(rest)
    assert (project / "a").read_text() == "a\n"
    assert (project / "b").read_text() == "b\nB\n"


def test_a_deleted_directory_comes_back_whole(sandbox, project):
    (project / "d").mkdir()
    (project / "d/one").write_text("1")
    (project / "d/two").write_text("2")
    (project / "f").write_text("f")
    run = sandbox.run("rm -r d f")
    sandbox.undo(run, "d/one")
    assert sorted(path.name for path in project.rglob("*")) == ["d", "one", "two"]


def test_a_conflict_is_taken_by_force_and_the_persons_version_saved(sandbox, project):
    (project / "a").write_text("a\n")
    run = sandbox.run("echo A >> a; echo b > b", apply="hold")
    (project / "a").write_text("the person's\n")
    (project / "b").mkdir()
    (project / "b/own").write_text("own")
    assert verdicts(sandbox.apply(run)) == {"a": "conflict", "b": "conflict"}
    person = snapshot(project)
    done = sandbox.apply(run, "a", force=True)
    assert verdicts(done)["a"] == "applied"
    assert (project / "a").read_text() == "a\nA\n"
    assert (project / "b/own").exists()
    sandbox.apply(run, "b", force=True)
    assert (project / "b").read_text() == "b\n"
    sandbox.undo(run)
    assert snapshot(project) == person


def test_what_the_project_has_already_needs_no_force(sandbox, project):
    (project / "a").write_text("a\n")
    run = sandbox.run("echo A >> a; touch -d @1 a; echo b > b", apply="hold")
    (project / "a").write_text("a\nA\n")
    subprocess.run(["touch", "-d", "@1", project / "a"], check=True)
    done = sandbox.apply(run, force=True)
    assert verdicts(done) == {"a": "discarded", "b": "applied"}
    assert done.state == "applied"


def test_what_the_project_has_already_is_no_longer_seen_as_held(sandbox, project):
    (project / "a").write_text("a\n")
    run = sandbox.run("rm a; echo b > b", apply="hold")
    (project / "a").unlink()
    assert verdicts(sandbox.apply(run, "a", force=True)) == {"a": "discarded", "b": "held"}
    (project / "a").write_text("anew\n")
    assert sandbox.run("cat a b").stdout == "anew\nb\n"


def test_what_waits_in_a_directory_that_was_undone_is_not_thrown_away_with_something_else(sandbox, project):
    run = sandbox.run("mkdir n; echo f > n/f; echo x > n/.envrc; echo y > .envrc; echo g > g")
    assert verdicts(run) == {"n": "applied", "n/f": "applied", "n/.envrc": "held", ".envrc": "held", "g": "applied"}
    sandbox.undo(run, "n")
    sandbox.discard(run, ".envrc")
    assert sandbox.run("cat n/.envrc").stdout == "x\n"
    # Without its directory it is a conflict, and does not keep others from being applied; by force, that is made again.
    assert verdicts(sandbox.apply(run))["n/.envrc"] == "conflict"
    before = snapshot(project)
    sandbox.apply(run, "n/.envrc", force=True)
    assert (project / "n/.envrc").read_text() == "x\n"
    assert not (project / "n/f").exists()
    sandbox.undo(run, "n")
    assert snapshot(project) == before


def test_what_a_run_holds_waits_on_when_other_paths_are_undone(sandbox, project):
    run = sandbox.run("echo a > a; echo b > b; echo c > c", apply="hold")
    sandbox.apply(run, "a")
    back = sandbox.undo(run, "a")
    assert not (project / "a").exists()
    assert sandbox.find(run.id).state == "held"
    assert sandbox.run("cat b c").stdout == "b\nc\n"
    sandbox.undo(back)
    assert verdicts(sandbox.find(run.id)) == {"a": "applied", "b": "held", "c": "held"}
    sandbox.apply(run, "b")
    sandbox.undo(run, "a")
    sandbox.undo(run, "b")
    assert sandbox.apply(run).state == "applied"
    assert [path.name for path in project.iterdir()] == ["c"]
    sandbox.undo(run)
    assert sandbox.find(run.id).state == "undone"


@pytest.mark.parametrize("now", ["gone", "file", "symlink"])
def test_what_has_no_directory_any_more_is_a_conflict_and_the_rest_is_applied(sandbox, project, now):
    (project / "d").mkdir()
    (project / "d/old").write_text("old\n")
    run = sandbox.run("echo z > d/z; echo q > q; echo changed > d/old", apply="hold")
    subprocess.run(["rm", "-r", project / "d"], check=True)
    if now == "file":
        (project / "d").write_text("the person's\n")
    elif now == "symlink":
        (project / "d").symlink_to("/usr")
    assert verdicts(sandbox.apply(run)) == {"d/old": "conflict", "d/z": "conflict", "q": "applied"}
    before = snapshot(project)
    sandbox.apply(run, "d/z", force=True)
    assert (project / "d/z").read_text() == "z\n"
    if now == "gone":  # what takes the place of something else goes whole
        assert not (project / "d/old").exists()
        sandbox.apply(run, force=True)
    assert (project / "d/old").read_text() == "changed\n"
    sandbox.undo(run, "d")
    assert snapshot(project) == before


def test_where_force_fails_everything_is_as_before(sandbox, project, monkeypatch):
    (project / "a").write_text("a\n")
    run = sandbox.run("echo A >> a; echo b > b", apply="hold")
    (project / "a").write_text("the person's\n")
    with monkeypatch.context() as patched:
        patched.setattr("fumehood.service.apply._perform", no_room)
        with pytest.raises(ApplyFailed, match="No space"):
            sandbox.apply(run, force=True)
    assert (project / "a").read_text() == "the person's\n"
    kept = sandbox.history()[0]
    assert (kept.state, verdicts(kept)) == ("held", {"a": "conflict", "b": "held"})
    assert sandbox.apply(run, force=True).state == "applied"
    sandbox.undo(run)
    assert (project / "a").read_text() == "the person's\n"


def no_room(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("now", ["edited", "gone", "directory", "symlink"])
def test_an_undo_by_force_saves_what_is_there(sandbox, project, now):
    (project / "a").write_text("a\n")
    before = snapshot(project)
    run = sandbox.run("echo A >> a; echo new > new")
    for name in ("a", "new"):
        (project / name).unlink()
        if now == "edited":
            (project / name).write_text("the person's\n")
        elif now == "directory":
            (project / name).mkdir()
            (project / name / "own").write_text("own")
        elif now == "symlink":
            (project / name).symlink_to("elsewhere")
    person = snapshot(project)
    with pytest.raises(UndoRefused, match=f"changed since run {run.name}: a"):
        sandbox.undo(run)
    assert snapshot(project) == person
    back = sandbox.undo(run, force=True)
    assert snapshot(project) == before
    sandbox.undo(back)
    assert snapshot(project) == person


def test_an_undo_by_force_takes_a_tree_with_what_was_added_to_it(sandbox, project):
    before = snapshot(project)
    run = sandbox.run("mkdir d; echo f > d/f")
    (project / "d/own").write_text("the person's")
    person = snapshot(project)
    with pytest.raises(UndoRefused, match="d/own"):
        sandbox.undo(run)
    back = sandbox.undo(run, force=True)
    assert snapshot(project) == before
    sandbox.undo(back)
    assert snapshot(project) == person


def test_an_undo_names_the_runs_that_built_upon_it(sandbox, project):
    run = sandbox.run("echo 1 > a")
    later = sandbox.run("echo 2 >> a")
    with pytest.raises(UndoRefused, match=f"changed since run {run.name}: a, by run {later.name}") as refused:
        sandbox.undo(run)
    assert refused.value.hint.startswith(f"first: fumehood undo {later.name}")
    sandbox.undo(later)
    sandbox.undo(run)
    assert not (project / "a").exists()


def test_what_was_undone_redone_and_undone_is_looked_at_before_it_is_undone_again(sandbox, project):
    (project / "a").write_text("a\n")
    run = sandbox.run("echo A >> a")
    again = sandbox.undo(sandbox.undo(run))
    sandbox.undo(run)
    (project / "a").unlink()
    with pytest.raises(UndoRefused, match=f"run {again.name} was taken back by run"):
        sandbox.undo(again)
    sandbox.run("true")
    assert {each.state for each in sandbox.history()} <= {"applied", "undone", "failed", "empty"}
    assert not (project / "a").exists()


def test_an_undo_that_was_taken_back_brings_nothing_back(sandbox, project):
    run = sandbox.run("echo a > a")
    first = sandbox.undo(run)
    second = sandbox.undo(sandbox.undo(first))
    last = sandbox.undo(first)
    sandbox.run("rm a")
    with pytest.raises(UndoRefused, match=f"run {second.name} was taken back by run {last.name}"):
        sandbox.undo(second)
    assert not (project / "a").exists()


def test_everything_is_held_for_one_conflict_where_a_person_wants_it_so(project):
    (project / "a").write_text("a\n")
    (project / "b").write_text("b\n")
    with Sandbox(project, policy=Policy(on_conflict="hold-all")) as sandbox:
        line = "echo A >> a; echo B >> b; echo c > c; echo edit; sleep 0.2"
        run = sandbox.run(line, on_output=lambda *_: edit(project))
        assert verdicts(run) == {"a": "conflict", "b": "held", "c": "held"}
        assert (project / "b").read_text() == "b\n"
        assert not (project / "c").exists()
        assert (project / "a").read_text() == "the person's\n"


def edit(project):
    (project / "a").write_text("the person's\n")


GIT = "git -c user.name=n -c user.email=e@example.org"


def git(project, line):
    subprocess.run(f"{GIT} {line}", shell=True, cwd=project, check=True, capture_output=True)


def test_a_repository_is_never_half_of_two_histories(sandbox, project):
    git(project, "init -q .")
    (project / "f").write_text("1\n")
    git(project, "add f")
    git(project, "commit -qm one")

    def commit(*_):
        if not (project / "person").exists():
            (project / "person").write_text("p\n")
            git(project, "add person")
            git(project, "commit -qm person")

    run = sandbox.run(f"echo 2 > f; {GIT} commit -qam agent; echo done; sleep 0.5", on_output=commit)
    found = verdicts(run)
    state = {path for path in found if path.startswith((".git/refs/heads", ".git/logs/")) or path == ".git/index"}
    assert state
    assert {found[path] for path in state} == {"conflict"}
    assert found["f"] == "applied"
    log = subprocess.run(["git", "log", "--format=%s"], cwd=project, capture_output=True, text=True, check=True)
    assert log.stdout.split() == ["person", "one"]
    assert subprocess.run(["git", "fsck", "--strict"], cwd=project, capture_output=True, check=False).returncode == 0
    # One of them by force is all of them: the agent's history then, and the person's is saved.
    sandbox.apply(run, ".git/index", force=True)
    log = subprocess.run(["git", "log", "--format=%s"], cwd=project, capture_output=True, text=True, check=True)
    assert log.stdout.split() == ["agent", "one"]
    sandbox.undo(run, ".git")
    log = subprocess.run(["git", "log", "--format=%s"], cwd=project, capture_output=True, text=True, check=True)
    assert log.stdout.split() == ["person", "one"]


def test_paths_and_force_on_the_command_line(cli, project):
    (project / "a").write_text("a\n")
    cli("run", "--hold", "--", "echo A >> a; echo b > b")
    assert "1 change applied, 1 held" in cli("apply", "last", "b").stdout
    (project / "a").write_text("the person's\n")
    left = cli("apply", "last")
    assert left.returncode == 1
    assert "[conflict: it changed in the project after the run began]" in left.stdout
    assert "a --force" in left.stdout
    refused = cli("apply", "last")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "a changed in the project after run" in refused.stderr
    assert "--force" in refused.stderr
    assert "--force   or   fumehood discard" in cli("review").stdout
    assert cli("apply", "last", "a", "--force").returncode == 0
    assert (project / "a").read_text() == "a\nA\n"
    cli("undo", "last", "a")
    assert (project / "a").read_text() == "the person's\n"


THREE = "sed -i -e '2s/.*/TWO/' -e '20s/.*/TWENTY/' -e '38s/.*/END/' f"


def test_some_hunks_of_a_file_are_a_run_of_their_own_and_the_others_go(sandbox, project, store, known):
    lines = [f"{number}\n" for number in range(1, 41)]
    (project / "f").write_text("".join(lines))
    (project / "f").chmod(0o640)
    held = store.history.find(sandbox.run(THREE, apply="hold").id)
    (change,) = held.changed
    shown = decide.versions_digest(held, change, *contents(store, held, change))
    (project / "f").write_text("".join(lines) + "the person's\n")
    with pytest.raises(ChangedMeanwhile):
        decide.apply_hunks(store, known, held, "f", {1}, expected=shown)
    (project / "f").write_text("".join(lines))
    done = decide.apply_hunks(store, known, held, "f", {1})
    assert (project / "f").read_text() == "".join([*lines[:19], "TWENTY\n", *lines[20:]])
    assert (project / "f").stat().st_mode & 0o777 == 0o640
    assert (done.state, done.of, shown_state(store, held)) == ("applied", held.run, "discarded")
    sandbox.undo(done.run)
    assert (project / "f").read_text() == "".join(lines)


def shown_state(store, run):
    return store.history.find(run.run).state


def test_a_death_between_an_edit_and_its_end_leaves_the_runs_version_held(
    sandbox, project, store, known, monkeypatch
):
    (project / "f").write_text("1\n")
    held = store.history.find(sandbox.run("echo 2 > f", apply="hold").id)

    def dies(*_arguments):
        raise SystemExit

    monkeypatch.setattr(decide, "_discard", dies)
    with pytest.raises(SystemExit):
        decide.apply_edited(store, known, held, "f", lambda old, new: old + new)
    assert (project / "f").read_text() == "1\n2\n"
    assert contents(store, held, held.changed[0])[1] == b"2\n"
    assert verdicts(sandbox.apply(held)) == {"f": "conflict"}
    sandbox.apply(held, force=True)
    assert (project / "f").read_text() == "2\n"


@pytest.mark.parametrize("content", ["line\n" * 300_000, "a\0b\n"], ids=["long", "binary"])
def test_of_a_file_whose_pieces_are_not_shown_none_is_taken(sandbox, store, known, project, content):
    (project / "file").write_text(content)
    held = sandbox.run("echo more >> file", apply="hold")
    with pytest.raises(BadRequest, match="file can't be taken over in part"):
        decide.apply_hunks(store, known, held, "file", {0})
    assert (project / "file").read_text() == content
    assert sandbox.find(held).state == "held"
