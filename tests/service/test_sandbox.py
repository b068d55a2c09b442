"""The story of one command: held, thrown away, in conflict with a person, failing half-way, and whose it is."""

import os
import resource
import stat
import subprocess
import threading

import pytest

from fumehood import ApplyFailed, BadRequest, Sandbox
from snapshots import heard, snapshot, told

pytestmark = pytest.mark.namespaces

IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can do this")


def verdicts(run):
    return {change.path: change.verdict for change in run.changes}


def layer(home, run, path):
    """Where the version of a path lies that is not in the project: held, or an original."""
    held, upper = (home / f".local/state/fumehood/runs/{run.id}/0/{part}" / path for part in ("held", "upper"))
    return held if held.exists() else upper


def layers(home):
    return os.listdir(home / ".local/state/fumehood/runs")


# --- held and thrown away ---


@pytest.mark.parametrize("wish", ["hold", False])
def test_held_changes_wait_until_they_are_applied(sandbox, project, wish):
    (project / "old").write_text("old")
    (project / "gone").write_text("old")
    before = snapshot(project)
    run = sandbox.run(f"echo new > old; rm gone; mkdir n; echo x > n/f; {told(project)}", apply=wish)
    left = heard(run.stdout)
    assert run.state == "held"
    assert set(verdicts(run).values()) == {"held"}
    assert all("hold" in change.reason for change in run.changes)
    assert snapshot(project) == before
    applied = sandbox.apply(run)
    assert applied.state == "applied"
    assert {change.reason for change in applied.changes} == {""}
    assert snapshot(project) == left
    assert sandbox.history()[0].state == "applied"
    sandbox.undo(run)
    assert snapshot(project) == before


def test_held_links_are_applied_as_links_that_share_nothing_with_the_layer(sandbox, project):
    (project / "a").write_text("x")
    run = sandbox.run("echo y > new; ln new too; ln a b", apply="hold")
    sandbox.apply(run)
    assert (project / "new").stat().st_ino == (project / "too").stat().st_ino
    assert [(project / name).stat().st_nlink for name in ("a", "b", "new")] == [1, 1, 2]


def test_held_changes_can_be_thrown_away(sandbox, project, home):
    (project / "old").write_text("old")
    before = snapshot(project)
    run = sandbox.run("echo new > old; echo x > f", apply="hold")
    discarded = sandbox.discard(run)
    assert discarded.state == "discarded"
    assert set(verdicts(discarded).values()) == {"discarded"}
    assert snapshot(project) == before
    assert layers(home) == []


def test_a_run_that_is_to_be_thrown_away_leaves_its_record_only(sandbox, project, home):
    run = sandbox.run("echo x > f; echo said", apply="discard")
    assert (run.state, run.stdout, verdicts(run)) == ("discarded", "said\n", {"f": "discarded"})
    assert os.listdir(project) == []
    assert layers(home) == []
    assert sandbox.history()[0].changes == run.changes


@pytest.mark.parametrize("act", ["apply", "discard"])
def test_only_what_is_held_can_be_decided_on(sandbox, project, act):
    for run in (sandbox.run("true"), sandbox.run("echo x > f"), sandbox.run("echo y > g", apply="discard")):
        with pytest.raises(BadRequest, match=f"holds nothing: it is {run.state}"):
            getattr(sandbox, act)(run)


def test_two_who_apply_at_once_apply_once(sandbox, project):
    (project / "old").write_text("old")
    run = sandbox.run("echo new > old; echo x > f", apply="hold")
    together, outcomes = threading.Barrier(4), []

    def apply():
        together.wait()
        try:
            outcomes.append(sandbox.apply(run).state)
        except BadRequest as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=apply) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["applied", *[f"run {run.name} holds nothing: it is applied"] * 3]
    assert (project / "old").read_text() == "new\n"
    sandbox.undo(run)
    assert (project / "old").read_text() == "old"


def test_a_command_that_fails_is_applied_like_any_other(sandbox, project):
    run = sandbox.run("echo x > f; exit 3")
    assert (run.exit_code, run.state) == (3, "applied")
    assert (project / "f").exists()


def test_a_command_that_writes_nothing_leaves_nothing(sandbox, project, home):
    (project / "f").write_text("x")
    run = sandbox.run("cat f; chmod 644 f; touch t; rm t; mkdir d; rmdir d")
    assert (run.state, run.changes) == ("empty", ())
    assert layers(home) == []


def test_a_sandbox_that_can_not_start_leaves_a_record_and_nothing_else(sandbox, project, home):
    with pytest.raises(BadRequest, match="Working directory does not exist"):
        sandbox.run("true", cwd="nowhere")
    (run,) = sandbox.history()
    assert run.state == "failed"
    assert "nowhere" in run.reason
    assert layers(home) == []


# --- a person works on the same files meanwhile ---


def meanwhile(sandbox, test_directory, command, act, **options):
    """Run a command; when it is done with its work, and before it ends, somebody else acts."""
    go = test_directory / "go"
    go.touch()  # now: what appears later is not seen through a view

    def on_output(_stream, _text):
        act()
        go.write_text("go")

    return sandbox.run(f"{command}; echo ready; until [ -s {go} ]; do sleep 0.01; done", on_output=on_output, **options)


@pytest.fixture
def conflict(sandbox, project, test_directory):
    """A run that changed `both` and `its`, while a person changed `both` and `mine`."""
    for name in ("both", "mine", "its"):
        (project / name).write_text("old")

    def edit():
        (project / "both").write_text("the person's")
        (project / "mine").write_text("the person's")

    return meanwhile(sandbox, test_directory, "echo 'the run' > both; echo 'the run' > its; echo x > new", edit)


def test_a_file_that_a_person_edits_while_the_command_runs_stays_theirs(project, home, conflict):
    run = conflict
    assert run.state == "held"
    assert verdicts(run) == {"both": "conflict", "its": "applied", "new": "applied"}
    assert "changed in the project after the run began" in run.changes[0].reason
    assert (project / "both").read_text() == (project / "mine").read_text() == "the person's"
    assert (project / "its").read_text() == "the run\n"
    assert layer(home, run, "both").read_text() == "the run\n"


def test_a_person_can_still_choose_the_runs_version_and_get_theirs_back(sandbox, project, conflict):
    assert sandbox.apply(conflict, "both", force=True).state == "applied"
    assert (project / "both").read_text() == "the run\n"
    sandbox.undo(conflict)
    assert (project / "both").read_text() == "the person's"
    assert (project / "its").read_text() == "old"


def test_a_conflict_does_not_go_without_force(sandbox, project, conflict):
    before = snapshot(project)
    for paths in ((), ("both",)):
        with pytest.raises(BadRequest, match=r"both changed in the project after run .* began") as refused:
            sandbox.apply(conflict, *paths)
        assert f"fumehood apply {conflict.name} both --force" in refused.value.hint
    assert snapshot(project) == before
    assert verdicts(sandbox.history()[0])["both"] == "conflict"


@pytest.mark.parametrize("mode", ["apply", "hold"])
def test_what_is_held_beside_a_conflict_is_applied_without_it(sandbox, project, home, test_directory, mode):
    (project / "both").write_text("old")
    (project / ".git/hooks").mkdir(parents=True)
    command = "echo run > both; echo '#!/bin/sh' > .git/hooks/pre-commit"
    run = meanwhile(sandbox, test_directory, command, lambda: (project / "both").write_text("mine"), apply=mode)
    assert verdicts(run) == {"both": "conflict", ".git/hooks/pre-commit": "held"}
    done = sandbox.apply(run)
    assert (done.state, verdicts(done)) == ("held", {"both": "conflict", ".git/hooks/pre-commit": "applied"})
    assert (project / "both").read_text() == "mine"
    assert layer(home, run, "both").read_text() == "run\n"
    sandbox.apply(run, force=True)
    assert (project / "both").read_text() == "run\n"
    sandbox.undo(run)
    assert (project / "both").read_text() == "mine"


def test_a_tree_with_a_conflict_in_it_goes_whole_by_force_or_stays(sandbox, project, test_directory):
    (project / "d/sub").mkdir(parents=True)
    for name in ("d/f", "d/sub/g"):
        (project / name).write_text("old")
    run = meanwhile(sandbox, test_directory, "rm -r d", lambda: (project / "d/f").write_text("mine"))
    before = snapshot(project)
    for paths in ((), ("d",), ("d/sub/g",)):
        with pytest.raises(BadRequest, match="d/f changed in the project"):
            sandbox.apply(run, *paths)
    sandbox.apply(run, "d/f", force=True)
    assert not (project / "d").exists()
    sandbox.undo(run)
    assert snapshot(project) == before


def test_what_would_lie_in_a_conflict_stays_with_it(sandbox, project, test_directory):
    command = "mkdir -p new/.git/hooks; echo x > new/x; echo '#!/bin/sh' > new/.git/hooks/pre-commit"
    run = meanwhile(sandbox, test_directory, command, lambda: (project / "new").write_text("mine"))
    assert set(verdicts(run).values()) == {"conflict", "held"}
    with pytest.raises(BadRequest, match=r"new.* changed in the project"):
        sandbox.apply(run)
    sandbox.apply(run, "new/.git/hooks/pre-commit", force=True)
    assert (project / "new/.git/hooks/pre-commit").exists()
    sandbox.undo(run)
    assert (project / "new").read_text() == "mine"


def test_a_person_can_stay_with_their_own_version(sandbox, project, conflict):
    run = sandbox.discard(conflict)
    assert verdicts(run) == {"both": "discarded", "its": "applied", "new": "applied"}
    assert (project / "both").read_text() == "the person's"
    sandbox.undo(run)
    assert (project / "its").read_text() == "old"
    assert (project / "both").read_text() == "the person's"


@pytest.mark.parametrize(
    ("command", "act", "conflicts"),
    [
        ("rm d/f", lambda d: (d / "f").write_text("mine"), {"d/f"}),
        ("rm -r d", lambda d: (d / "f").write_text("mine"), {"d/f"}),
        ("rm -r d", lambda d: (d / "new").write_text("mine"), {"d/new"}),
        ("rm -r d; echo x > d", lambda d: (d / "sub/g").write_text("mine"), {"d/sub/g"}),
        ("echo x > d/new", lambda d: (d / "new").write_text("mine"), {"d/new"}),
        ("mkdir d/new; echo x > d/new/f", lambda d: (d / "new").write_text("mine"), {"d/new"}),
        ("rm d/f; ln -s x d/f", lambda d: (d / "f").chmod(0o600), {"d/f"}),
        ("chmod 700 d/f", lambda d: (d / "f").write_text("mine"), {"d/f"}),
        ("rm d/f; mkdir d/f", lambda d: os.replace(d / "sub/g", d / "f"), {"d/f"}),
    ],
)
def test_whatever_both_touched_is_a_conflict_and_what_the_person_has_stays(
    sandbox, project, test_directory, command, act, conflicts
):
    (project / "d/sub").mkdir(parents=True)
    for name in ("d/f", "d/sub/g", "other"):
        (project / name).write_text("old")
    expected = {}

    def acting():
        act(project / "d")
        expected.update(snapshot(project))

    run = meanwhile(sandbox, test_directory, f"{command}; echo yy > other", acting)
    assert run.state == "held"
    assert {path for path, verdict in verdicts(run).items() if verdict == "conflict"} >= conflicts
    assert {path for path, verdict in verdicts(run).items() if verdict == "applied"} == {"other"}
    found = snapshot(project)
    assert found.pop("other") != expected.pop("other")
    assert found == expected


def test_what_a_person_does_elsewhere_is_no_conflict(sandbox, project, test_directory):
    (project / "d").mkdir()
    (project / "d/f").write_text("old")

    def act():
        (project / "d/mine").write_text("mine")
        (project / "mine").mkdir()

    run = meanwhile(sandbox, test_directory, "echo new > d/f; echo x > d/new; chmod 750 d", act)
    assert run.state == "applied"
    assert sorted(os.listdir(project / "d")) == ["f", "mine", "new"]
    sandbox.undo(run)
    assert sorted(os.listdir(project / "d")) == ["f", "mine"]


def test_two_runs_that_change_one_file_at_once_keep_both_versions(sandbox, project, home, test_directory):
    (project / "f").write_text("old")
    runs = []
    run = meanwhile(
        sandbox, test_directory, "echo first > f", lambda: runs.append(sandbox.run("echo second > f; echo x > g"))
    )
    assert (run.state, verdicts(run)) == ("held", {"f": "conflict"})
    assert runs[0].state == "applied"
    assert (project / "f").read_text() == "second\n"
    assert layer(home, run, "f").read_text() == "first\n"


# --- the apply fails half-way ---


def fails_then_succeeds(sandbox, project, run, why, mend):
    """An apply that fails leaves no trace but its reason, and succeeds once the cause is gone."""
    before = snapshot(project)
    with pytest.raises(ApplyFailed, match=why) as failure:
        sandbox.apply(run)
    assert failure.value.hint
    assert snapshot(project) == before
    kept = sandbox.history()[0]
    assert kept.state == "held"
    assert why in kept.reason
    mend()
    assert sandbox.apply(run).state == "applied"
    assert sandbox.history()[0].reason == ""
    assert snapshot(project) != before
    sandbox.undo(run)
    assert without_links(snapshot(project)) == without_links(before)


def without_links(found):
    """A snapshot less its last column: a backup has no link to what stayed, so an undo brings none back."""
    return {path: described[:-1] for path, described in found.items()}


WORK = (
    "echo new > a; rm b; ln a2 hard; rm -r c; mkdir c; echo n > c/n; mkdir n; echo n > n/n; chmod 700 d;"
    " rm l; ln -s new l; rm -r t; echo t > t"
)


def furnish(project):
    script = "echo a > a; echo b > b; ln b b2; echo a > a2; mkdir c d t; echo c > c/c; ln -s old l; echo t > t/t"
    subprocess.run(["sh", "-ec", script], cwd=project, check=True)


@as_root
def test_a_directory_that_takes_nothing_stops_the_apply_without_a_trace(sandbox, project, need):
    furnish(project)
    (project / "z").mkdir()
    run = sandbox.run(f"{WORK}; echo z > z/new", apply="hold")
    set_immutable = subprocess.run(["chattr", "+i", project / "z"], check=False, capture_output=True)
    need(set_immutable.returncode == 0, "this file system has no immutable directories")
    try:
        fails_then_succeeds(
            sandbox, project, run, "Operation not permitted",
            lambda: subprocess.run(["chattr", "-i", project / "z"], check=True),
        )  # fmt: skip
    finally:
        subprocess.run(["chattr", "-i", project / "z"], check=True)


@as_root
def test_a_file_that_may_not_go_stops_the_apply_without_a_trace(sandbox, project, need):
    furnish(project)
    (project / "z").write_text("z")
    run = sandbox.run(f"{WORK}; rm z", apply="hold")
    set_immutable = subprocess.run(["chattr", "+i", project / "z"], check=False, capture_output=True)
    need(set_immutable.returncode == 0, "this file system has no immutable files")
    try:
        fails_then_succeeds(
            sandbox, project, run, "Operation not permitted",
            lambda: subprocess.run(["chattr", "-i", project / "z"], check=True),
        )  # fmt: skip
    finally:
        subprocess.run(["chattr", "-i", project / "z"], check=False, capture_output=True)


@as_root
def test_a_run_whose_apply_fails_is_held_with_the_reason(sandbox, project, need, test_directory):
    furnish(project)
    (project / "z").mkdir()
    for flag in ("+i", "-i"):
        done = subprocess.run(["chattr", flag, project / "z"], check=False, capture_output=True)
        need(done.returncode == 0, "this file system has no immutable directories")

    def stop():
        subprocess.run(["chattr", "+i", project / "z"], check=True)

    before = snapshot(project)
    try:
        run = meanwhile(sandbox, test_directory, f"{WORK}; echo z > z/new", stop)
        assert run.state == "held"
        assert "Operation not permitted" in run.reason
        assert set(verdicts(run).values()) == {"held"}
        assert snapshot(project) == before
    finally:
        subprocess.run(["chattr", "-i", project / "z"], check=True)
    assert sandbox.apply(run).state == "applied"
    sandbox.undo(run)
    assert without_links(snapshot(project)) == without_links(before)


def test_a_layers_entry_that_is_missing_stops_the_apply_without_a_trace(sandbox, project, home):
    furnish(project)
    (project / "z").write_text("z")
    run = sandbox.run(f"{WORK}; echo zz > z", apply="hold")
    lost, found = layer(home, run, "z"), home / "z"
    lost.rename(found)
    fails_then_succeeds(sandbox, project, run, "No such file", lambda: found.rename(lost))


@pytest.fixture
def elsewhere(other_filesystem, home):
    """A sandbox on a project that lies on another file system than its layers."""
    project = other_filesystem / "project"
    project.mkdir()
    with Sandbox(project) as sandbox:
        yield sandbox, project


def test_a_copy_that_does_not_fit_stops_the_apply_without_a_trace(elsewhere):
    sandbox, project = elsewhere
    furnish(project)
    run = sandbox.run(f"{WORK}; truncate -s 32M z", apply="hold")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, hard))
    try:
        fails_then_succeeds(
            sandbox, project, run, "File too large",
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)),
        )  # fmt: skip
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_backup_that_does_not_fit_stops_the_apply_without_a_trace(elsewhere):
    sandbox, project = elsewhere
    furnish(project)
    with open(project / "z", "wb") as file:
        file.truncate(32 << 20)
    run = sandbox.run(f"{WORK}; rm z", apply="hold")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, hard))
    try:
        fails_then_succeeds(
            sandbox, project, run, "File too large",
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)),
        )  # fmt: skip
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@as_root
def test_a_full_disk_stops_the_apply_without_a_trace(home, test_directory, need):
    small = test_directory / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], check=False, capture_output=True)
    need(mounted.returncode == 0, "nothing can be mounted here")
    try:
        furnish(small)
        with Sandbox(small) as sandbox:
            run = sandbox.run(f"{WORK}; head -c 3000000 /dev/zero > z")
            assert run.state == "held"
            assert "No space left on device" in run.reason
            fails_then_succeeds(
                sandbox, small, run, "No space left on device",
                lambda: subprocess.run(["mount", "-o", "remount,size=16m", small], check=True),
            )  # fmt: skip
    finally:
        subprocess.run(["umount", small], check=True)


# --- root on somebody else's project ---

SOMEBODY, THEIR_GROUP = 61_234, 61_235


@pytest.fixture(params=["one file system", "two file systems"])
def theirs(request, test_directory, home):
    """A project that belongs to somebody who is not root, on which root works."""
    alone = request.param == "one file system"
    place = test_directory if alone else request.getfixturevalue("other_filesystem")
    place.chmod(0o711)
    project = place / "theirs"
    (project / "d").mkdir(parents=True)
    (project / "d/old").write_text("old")
    (project / "closed").mkdir(mode=0o700)
    for path in (project, *project.rglob("*")):
        os.chown(path, SOMEBODY, THEIR_GROUP)
    return project


def owners(top):
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in (top, *top.rglob("*"))}


@as_root
def test_a_command_that_root_runs_on_somebodys_project_runs_as_them(theirs):
    with Sandbox(theirs) as sandbox:
        run = sandbox.run("id -u; id -g; id -G; grep CapEff /proc/self/status; touch /etc/x 2>/dev/null || echo no")
    assert run.stdout.split("\n")[:3] == [str(SOMEBODY), str(THEIR_GROUP), str(THEIR_GROUP)], run.output
    assert "0000000000000000" in run.stdout
    assert run.stdout.endswith("no\n")


@as_root
def test_what_it_leaves_belongs_to_them_and_so_does_what_comes_back(theirs):
    before = snapshot(theirs)
    with Sandbox(theirs) as sandbox:
        run = sandbox.run(
            "echo new > d/old; mkdir -p n/m; echo x > n/m/f; ln n/m/f n/link; ln -s f n/l; mkfifo n/fifo;"
            f" echo x > closed/f; chmod 2750 n; {told(theirs)}"
        )
        assert run.state == "applied", run.reason + run.output
        left = {path: value for path, value in heard(run.stdout).items() if path != "n/fifo"}
        assert snapshot(theirs) == left
        assert owners(theirs) == {(SOMEBODY, THEIR_GROUP)}
        back = sandbox.undo(run)
        assert snapshot(theirs) == before
        sandbox.undo(back)
        assert snapshot(theirs) == left


@as_root
def test_the_layers_of_their_changes_belong_to_them_and_are_closed_to_others(theirs, home):
    with Sandbox(theirs) as sandbox:
        run = sandbox.run("echo new > d/old; mkdir n; echo x > n/f; rm -r closed", apply="hold")
    upper = layer(home, run, "")
    assert owners(upper / "n") == owners(upper / "d") == {(SOMEBODY, THEIR_GROUP)}
    assert (upper.stat().st_uid, upper.stat().st_gid) == (SOMEBODY, THEIR_GROUP)
    assert stat.S_IMODE(upper.parent.parent.stat().st_mode) == 0o700


@as_root
def test_what_their_command_tells_its_session_lies_in_a_directory_of_roots(theirs):
    """In one of theirs, a link could take the place of a pipe that root is about to give to them."""
    with Sandbox(theirs, session="theirs") as sandbox:
        told = 'cd d; echo KEPT=1 >> "$FUMEHOOD_ENV"; stat -c %u "${FUMEHOOD_ENV%/*}" "$FUMEHOOD_ENV"; fumehood status'
        run = sandbox.run(told)
        directory, pipe, *_ = run.stdout.split()
        assert directory != str(SOMEBODY) == pipe, run.output
        assert run.exit_code == 0, run.output
        assert sandbox.run('echo "$KEPT ${PWD##*/}"').stdout == "1 d\n"


@as_root
def test_a_file_of_roots_own_in_their_project_comes_back_as_roots(theirs):
    (theirs / "d/roots").write_text("root's")
    (theirs / "d/roots").chmod(0o644)
    before = snapshot(theirs)
    with Sandbox(theirs) as sandbox:
        run = sandbox.run("rm d/roots; echo mine > d/roots")
        assert (theirs / "d/roots").stat().st_uid == SOMEBODY
        sandbox.undo(run)
    assert snapshot(theirs) == before


@as_root
def test_they_can_not_do_in_the_hood_what_they_can_not_do_outside(theirs):
    (theirs / "roots").mkdir(mode=0o755)
    (theirs / "roots/f").write_text("root's")
    with Sandbox(theirs) as sandbox:
        run = sandbox.run("echo x > roots/f; echo x > roots/new; rm roots/f; chmod 777 roots")
    assert (run.state, run.changes) == ("empty", ())
