"""A file system that can neither swap two names nor refuse to replace one, as those of networks often can't."""

import os
import subprocess
import sys

import pytest

from fumehood import Sandbox
from snapshots import snapshot

pytestmark = pytest.mark.namespaces

REFUSED = ["strace", "-f", "-o", "/dev/null", "--trace=/rename|linkat|unlinkat", "--inject=renameat2:error=EINVAL"]
NO_LINKS = "--inject=linkat:error=EPERM"  # vfat, SMB
DO = "import sys; from fumehood import Sandbox; getattr(Sandbox(sys.argv[1]), sys.argv[2])('last')"
COMMAND = """
echo new > a; ln -sf elsewhere link; rm gone; rm -r tree; mkdir -p d/e; echo new > d/e/f; echo new > added
rm file; mkdir file; echo in > file/it; rm -r dir; echo now > dir; chmod 600 mode
"""


@pytest.fixture(params=["one file system", "two file systems"])
def project(request, test_directory, home):
    """A project with something of every kind; its records are on the same file system, or on another."""
    if request.param == "two file systems":
        test_directory = request.getfixturevalue("other_filesystem")
    project = test_directory / "work"
    for name in ("tree/in", "dir/in"):
        (project / name).mkdir(parents=True)
    for name in ("a", "gone", "file", "mode", "tree/in/x", "dir/y"):
        (project / name).write_text("old\n")
    (project / "link").symlink_to("a")
    return project


def do(project, act, *more, code=DO):
    line = [*REFUSED, *more, sys.executable, "-P", "-c", code, project, act]
    return subprocess.run(line, check=False, capture_output=True, text=True)


@pytest.mark.long
@pytest.mark.parametrize("more", [[], [NO_LINKS]], ids=["links", "no links"])
def test_all_is_applied_and_taken_back(project, more):
    before = snapshot(project)
    with Sandbox(project) as sandbox:
        run = sandbox.run(COMMAND, apply="hold")
    assert do(project, "apply", *more).stderr == ""
    with Sandbox(project) as sandbox:
        assert {change.verdict for change in sandbox.find(run.run).changes} == {"applied"}
    after = snapshot(project)
    names = {"a", "added", "d", "dir", "file", "link", "mode"}
    assert set(os.listdir(project)) == names
    assert (project / "a").read_text() == (project / "d/e/f").read_text() == "new\n"
    assert (project / "dir").read_text() == "now\n"
    assert do(project, "undo", *more).stderr == ""
    assert snapshot(project) == before
    assert do(project, "redo", *more).stderr == ""
    assert snapshot(project) == after


def test_so_it_is_where_each_name_of_a_file_has_a_number_of_its_own(project):
    """As with sshfs."""
    code = f"from fumehood.linux import staging; staging._is_same = lambda one, other: False; {DO}"
    before = snapshot(project)
    with Sandbox(project) as sandbox:
        run = sandbox.run(COMMAND, apply="hold")
    assert do(project, "apply", code=code).stderr == ""
    with Sandbox(project) as sandbox:
        assert {change.verdict for change in sandbox.find(run.run).changes} == {"applied"}
    assert (project / "a").read_text() == (project / "d/e/f").read_text() == "new\n"
    assert do(project, "undo", code=code).stderr == ""
    assert snapshot(project) == before


def test_a_file_is_at_its_name_at_every_moment(project, home):
    with Sandbox(project) as sandbox:
        sandbox.run("echo new > a", apply="hold")
    calls = home / "calls"
    line = [*(str(calls) if word == "/dev/null" else word for word in REFUSED), sys.executable, "-P", "-c", DO]
    subprocess.run([*line, project, "apply"], check=True)
    moved = [each for each in calls.read_text().splitlines() if '"a", ' in each and "fumehood-swap" in each]
    assert moved
    assert not [each for each in moved if "renameat" in each.partition("(")[0]]
    assert (project / "a").read_text() == "new\n"


def test_what_a_person_has_changed_is_a_conflict(project):
    with Sandbox(project) as sandbox:
        run = sandbox.run(COMMAND, apply="hold")
    (project / "a").write_text("mine\n")
    (project / "added").write_text("mine\n")
    assert do(project, "apply").returncode == 0
    with Sandbox(project) as sandbox:
        verdicts = {change.path: change.verdict for change in sandbox.find(run.run).changes}
    assert [verdicts[name] for name in ("a", "added", "link")] == ["conflict", "conflict", "applied"]
    assert (project / "a").read_text() == (project / "added").read_text() == "mine\n"


@pytest.mark.ordinary
@pytest.mark.parametrize("more", [[], [NO_LINKS]], ids=["links", "no links"])
def test_a_directory_that_forbids_it_to_its_owner_is_opened_up_there_too(project, more):
    closed = project / "closed"
    closed.mkdir()
    for name in ("changed", "gone"):
        (closed / name).write_text("old\n")
    before = snapshot(project)
    with Sandbox(project) as sandbox:
        line = "chmod 700 closed; echo new > closed/changed; rm closed/gone; echo new > closed/added; chmod 500 closed"
        sandbox.run(line, apply="hold")
    assert do(project, "apply", *more).stderr == ""
    assert sorted(os.listdir(closed)) == ["added", "changed"]
    assert do(project, "undo", *more).stderr == ""
    assert snapshot(project) == before


@pytest.mark.parametrize("act", ["apply", "undo"])
@pytest.mark.parametrize(
    ("more", "numbers"),
    [
        pytest.param([], (3, 8), id="some"),
        pytest.param([], range(1, 40), id="all", marks=pytest.mark.long),
        pytest.param([NO_LINKS], range(1, 40), id="all, no links", marks=pytest.mark.long),
    ],
)
def test_killed_at_any_piece_the_project_is_before_or_after(project, act, more, numbers):
    old = snapshot(project)
    with Sandbox(project) as sandbox:
        run = sandbox.run(COMMAND, apply="hold")
        if act == "undo":
            sandbox.apply(run)
    begun = snapshot(project)
    for call, number in [(call, number) for call in ("renameat", "linkat", "unlinkat") for number in numbers]:
        done = do(project, act, *more, f"--inject={call}:signal=KILL:when={number}")
        with Sandbox(project) as sandbox:
            run = sandbox.find(run.run)
            is_done = run.state == ("undone" if act == "undo" else "applied")
            if is_done:
                sandbox.undo(run) if act == "apply" else sandbox.redo(run)
                assert snapshot(project) == begun
                if act == "apply":
                    run = sandbox.run(COMMAND, apply="hold")
            else:
                assert snapshot(project) == begun, (call, number, done)
    assert begun == old or act == "undo"
