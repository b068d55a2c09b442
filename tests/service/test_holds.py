"""What is held: later commands see it, what they build on it waits too, and one decision follows the other."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from fumehood import BadRequest, Policy, Sandbox
from snapshots import heard, snapshot, told

pytestmark = [pytest.mark.namespaces, pytest.mark.once]


def verdicts(run):
    return {change.path: change.verdict for change in run.changes}


def reasons(run):
    return {change.path: change.reason for change in run.changes}


def state_of(sandbox, run):
    return next(each.state for each in sandbox.history() if each.id == run.id)


@pytest.fixture
def furnished(project):
    """A project with something of every kind to be changed."""
    (project / "a").write_text("a\n")
    (project / "b").write_text("b\n")
    (project / "d").mkdir()
    for name in ("x", "y", "z"):
        (project / "d" / name).write_text(f"{name}\n")
    (project / "link").symlink_to("a")
    (project / "deep/er").mkdir(parents=True)
    (project / "deep/er/f").write_text("f\n")
    return project


def test_a_later_command_sees_what_is_held(furnished, way):
    with Sandbox(furnished, policy=Policy(capture=way)) as sandbox:
        before = snapshot(furnished)
        sandbox.run("echo A >> a; rm d/x; mkdir n; echo n > n/f", apply="hold")
        sandbox.run("rm -r deep; echo deep > deep; chmod 700 d", apply="hold")
        sandbox.run("rm -r d; mkdir d; echo new > d/new; rm link; ln -s b link; echo more >> n/f", apply="hold")
        assert snapshot(furnished) == before
        seen = sandbox.run(f"cat a deep d/new n/f; ls d; readlink link; stat -c %a d; {told('.')}", apply="discard")
        assert seen.stdout.splitlines()[:8] == ["a", "A", "deep", "new", "n", "more", "new", "b"], seen.output
        # Applied one after the other, they make the project what the commands saw.
        for run in reversed(sandbox.history()[1:]):
            assert sandbox.apply(run).state == "applied"
        left = snapshot(furnished)
        saw = heard(seen.stdout[seen.stdout.index("{") :])
        assert {path: each[:1] for path, each in left.items()} == {path: each[:1] for path, each in saw.items()}
        for run in sandbox.history()[1:]:
            sandbox.undo(run)
        assert snapshot(furnished) == before


def test_what_has_nothing_to_do_with_what_is_held_is_applied(sandbox, furnished):
    held = sandbox.run("echo A >> a", apply="hold")
    run = sandbox.run("echo B >> b; cat a")
    assert run.stdout == "a\nA\n"
    assert verdicts(run) == {"b": "applied"}
    assert (furnished / "a").read_text() == "a\n"
    assert (furnished / "b").read_text() == "b\nB\n"
    sandbox.apply(held)
    assert (furnished / "a").read_text() == "a\nA\n"


def test_a_change_built_on_a_held_one_waits_with_it(sandbox, furnished):
    held = sandbox.run("echo A >> a; mkdir n; echo n > n/f; rm d/x", apply="hold")
    run = sandbox.run("echo AA >> a; echo g > n/g; rm -r d; echo free > free")
    assert verdicts(run) == {
        "a": "held", "n/g": "held", "d": "held", "d/y": "held", "d/z": "held", "free": "applied",
    }  # fmt: skip
    assert reasons(run)["a"] == f"it builds on run {held.name}, which was held"
    assert (furnished / "d/x").exists()
    assert (furnished / "free").exists()


def test_held_runs_are_applied_in_the_order_they_were_made(sandbox, furnished):
    first = sandbox.run("echo A >> a", apply="hold")
    second = sandbox.run("echo B >> a")
    with pytest.raises(BadRequest, match=f"a builds on run {first.name}, which is held") as refused:
        sandbox.apply(second)
    assert refused.value.hint == f"first: fumehood apply {first.name}"
    # The hint can be followed: it is the first of all, not one that waits for another itself.
    third = sandbox.run("echo C >> a")
    with pytest.raises(BadRequest, match=f"a builds on run {second.name}, which is held") as refused:
        sandbox.apply(third)
    assert refused.value.hint == f"first: fumehood apply {first.name}"
    sandbox.apply(first)
    sandbox.apply(second)
    assert (furnished / "a").read_text() == "a\nA\nB\n"


def test_what_others_build_on_is_not_thrown_away_before_them(sandbox, furnished):
    first = sandbox.run("mkdir n; echo n > n/f", apply="hold")
    second = sandbox.run("echo g > n/g")
    with pytest.raises(BadRequest, match=f"run {second.name} builds on it: n/g"):
        sandbox.discard(first)
    sandbox.discard(second)
    sandbox.discard(first)
    assert not (furnished / "n").exists()
    assert sandbox.run("ls").stdout.split() == ["a", "b", "d", "deep", "link"]


def test_what_was_thrown_away_is_no_longer_seen(sandbox, furnished):
    run = sandbox.run("echo A >> a; mkdir n; echo 1 > n/one; echo 2 > n/two; rm d/x", apply="hold")
    sandbox.discard(run, "n/one", "d")
    assert sandbox.run("cat a; ls n d").stdout == "a\nA\nd:\nx\ny\nz\n\nn:\ntwo\n"
    sandbox.discard(run)
    assert sandbox.run("cat a; ls").stdout == "a\na\nb\nd\ndeep\nlink\n"
    assert not list((Path.home() / ".local/state/fumehood/runs").glob(f"{run.id}*"))


def test_what_a_session_throws_away_is_not_said_to_be_a_persons_doing(sandbox, project):
    agent = sandbox.session("agent")
    reasons = []
    for each in (agent, sandbox):
        run = agent.run("echo x > f", apply="hold")
        reasons += [change.reason for change in each.discard(run).changes]
    assert reasons == ["thrown away by session agent", "thrown away by a person"]


def test_what_a_person_edits_is_seen_where_nothing_is_held(sandbox, furnished):
    sandbox.run("exec 3<>b; echo A >> a", apply="hold")  # b is copied up, and not changed
    (furnished / "b").write_text("the person's\n")
    assert sandbox.run("cat b").stdout == "the person's\n"


def test_a_dangerous_change_is_held_and_its_successor_with_it(sandbox, furnished):
    sandbox.run("git init -q .")
    hook = sandbox.run("echo '#!/bin/sh' > .git/hooks/pre-commit; echo ok > ok")
    assert verdicts(hook) == {".git/hooks/pre-commit": "held", "ok": "applied"}
    later = sandbox.run("echo 'rm -rf ~' >> .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; echo two > two")
    assert verdicts(later) == {".git/hooks/pre-commit": "held", "two": "applied"}
    assert not (furnished / ".git/hooks/pre-commit").exists()


def test_a_difference_is_shown_against_what_the_command_saw(cli, furnished):
    cli("run", "--hold", "--", "echo A >> a")
    cli("run", "--hold", "--", "echo B >> a")
    shown = cli("diff", "last").stdout
    assert "+B" in shown
    assert "+A" not in shown
    assert " A" in shown


def test_what_was_decided_while_a_command_ran_on_it_is_not_taken_over_unseen(sandbox, furnished):
    held = sandbox.run("echo A >> a", apply="hold")
    with Sandbox(furnished) as other:
        run = sandbox.run(
            "echo B >> a; echo ready",
            on_output=lambda *_: other.discard(held) if state_of(other, held) == "held" else None,
        )
    assert verdicts(run) == {"a": "held"}
    assert (furnished / "a").read_text() == "a\n"


def test_applying_what_a_running_command_sees_leaves_its_view(sandbox, furnished):
    held = sandbox.run("echo A >> a; echo n > n", apply="hold")
    with Sandbox(furnished) as other:
        run = sandbox.run(
            "echo ready; while grep -q held state 2>/dev/null; do sleep 0.01; done; sleep 0.3; cat a n",
            on_output=lambda *_: other.apply(held) if state_of(other, held) == "held" else None,
        )
    assert run.stdout == "ready\na\nA\nn\n"


def test_files_of_a_directory_that_its_owner_may_not_write_can_be_held(sandbox, furnished):
    (furnished / "d").chmod(0o555)
    run = sandbox.run("chmod 755 d; echo X >> d/x; rm d/y; chmod 500 d", apply="hold")
    assert sandbox.run("cat d/x; ls d; stat -c %a d").stdout == "x\nX\nx\nz\n500\n"
    sandbox.apply(run, "d/x")
    assert (furnished / "d/x").read_text() == "x\nX\n"
    assert sandbox.run("cat d/x; ls d").stdout == "x\nX\nx\nz\n"
    sandbox.apply(run)
    assert stat.S_IMODE((furnished / "d").stat().st_mode) == 0o500
    assert not (furnished / "d/y").exists()


def test_several_roots_are_held_each_for_itself(store, furnished, home):
    extra = home / "extra"
    extra.mkdir()
    (extra / "e").write_text("e\n")
    with Sandbox(furnished) as sandbox:
        first = sandbox.run("echo A >> a", apply="hold")
    store.projects.add_root(store.projects.open(str(furnished)), str(extra))
    with Sandbox(furnished) as sandbox:
        second = sandbox.run(f"cat a; echo E >> {extra}/e; echo A2 >> a", apply="hold")
        assert second.stdout == "a\nA\n"
        assert sandbox.run(f"cat {extra}/e a").stdout == "e\nE\na\nA\nA2\n"
        sandbox.apply(first)
        sandbox.apply(second)
    assert (extra / "e").read_text() == "e\nE\n"
    shutil.rmtree(extra)


def test_many_held_runs_are_seen_together(sandbox, furnished):
    for number in range(12):
        sandbox.run(f"echo {number} >> a; echo {number} > f{number}", apply="hold")
    numbers = [str(number) for number in range(12)]
    assert sandbox.run("cat a f*").stdout.split() == ["a", *numbers, *sorted(numbers)]
    for run in sandbox.history()[1:][::-1]:
        sandbox.apply(run)
    assert (furnished / "a").read_text().split() == ["a", *numbers]


def test_what_is_held_lies_where_no_command_can_change_it(sandbox, furnished):
    sandbox.run("echo A >> a", apply="hold")
    state = Path(os.environ["HOME"], ".local/state/fumehood")
    assert sandbox.run(f"ls {state}/runs; echo x > {state}/runs/*/0/held/a; cat a").stdout.endswith("a\nA\n")


@pytest.mark.parametrize("act", ["echo mine > d/x", "echo mine > d/mine", "mkdir d/sub", "rm d/y", "chmod 600 d/z"])
@pytest.mark.parametrize("line", ["rm -r d", "rm -r d; echo d > d"])
def test_a_directory_in_which_a_person_did_something_since_does_not_go_with_it(furnished, line, act):
    with Sandbox(furnished) as sandbox:
        run = sandbox.run(f"{line}; echo more >> a", apply="hold")
        subprocess.run(["sh", "-ec", act], cwd=furnished, check=True)
        before = snapshot(furnished / "d")
        sandbox.apply(run)
        assert snapshot(furnished / "d") == before
        assert (furnished / "a").read_text() == "a\nmore\n"
        assert {path for path, verdict in verdicts(sandbox.find(run.id)).items() if verdict == "conflict"} >= {"d"}
        sandbox.apply(run, force=True)
        assert not (furnished / "d").is_dir()
        sandbox.undo(run)
        assert snapshot(furnished / "d") == before


def test_many_directories_that_nobody_touched_go_as_they_were_seen(furnished):
    with Sandbox(furnished) as sandbox:
        run = sandbox.run("rm -r d deep", apply="hold")
        assert sandbox.apply(run).state == "applied"
        assert not (furnished / "d").exists()
        assert not (furnished / "deep").exists()
