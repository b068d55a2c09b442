"""The playground: the agent's own directory, seen at ~/playground, kept, and never made in the real home."""

import os
import shutil
import subprocess
import sys

import pytest

import trees
from fumehood import BadRequest, Policy, Sandbox

pytestmark = [pytest.mark.namespaces, pytest.mark.once]


def data(home):
    return home / ".local/share/fumehood/playground"


def test_it_is_writable_at_home_and_kept_and_nothing_is_made_in_the_real_home(way, home, project):
    (home / "notes").write_text("mine")
    before = sorted(os.listdir(home))
    with Sandbox(project, Policy(capture=way)) as sandbox:
        run = sandbox.run("echo one > ~/playground/f && touch ~/new")
        assert (run.exit_code, run.changes) == (0, ())
        assert (data(home) / "f").read_text() == "one\n"
        assert sandbox.run("cat ~/playground/f; ls ~").stdout.split() == ["one", "playground"]
    assert sorted(os.listdir(home)) == before


def test_it_is_there_in_a_visible_home_too(home, project):
    (home / "notes").write_text("mine")
    before = sorted(os.listdir(home))
    with Sandbox(project, Policy(home="visible")) as sandbox:
        run = sandbox.run("echo one > ~/playground/f && cat ~/notes && touch ~/new")
        assert run.stdout == "mine"
        assert "Read-only file system" in run.stderr
        assert sandbox.run("cat ~/playground/f; ls ~").stdout.split() == ["one", "notes", "playground"]
    assert sorted(os.listdir(home)) == before


def test_as_a_working_directory_it_is_named_by_its_own_word(sandbox, home, project):
    run = sandbox.run("pwd; echo x > here", cwd="playground")
    assert (run.stdout, run.cwd) == (f"{home}/playground\n", f"{home}/playground")
    assert (data(home) / "here").read_text() == "x\n"
    assert sandbox.run("cat here", cwd=f"{home}/playground").stdout == "x\n"
    (project / "playground").mkdir()
    assert sandbox.run("pwd", cwd="./playground").stdout == f"{project}/playground\n"


def test_the_first_command_has_it_whether_it_is_named_or_not(sandbox, home, test_directory):
    assert sandbox.run("cd ~; for each in *; do echo x > $each/f; echo $each; done").stdout == "playground\n"
    assert (data(home) / "f").read_text() == "x\n"
    tree = trees.make_tree(test_directory / "tree")
    line = "for each in /*; do test -w $each && test -e $each/f && cat $each/f; done"
    assert sandbox.run(line, root=str(tree)).stdout == "x\n"


def test_where_it_can_not_be_made_only_a_command_that_asks_for_it_is_refused(home, project):
    data(home).parent.mkdir(parents=True, exist_ok=True)
    data(home).write_text("in the way")
    with Sandbox(project) as sandbox:
        assert sandbox.run("echo x > f").state == "applied"
        with pytest.raises(BadRequest, match="no playground") as refusal:
            sandbox.run("true", cwd="playground")
    assert "cannot make" in refusal.value.hint


def test_a_session_stays_in_it(cli, home):
    for line, said in (("cd ~/playground; mkdir -p d", ""), ("pwd; cd d", f"{home}/playground\n"),
                       ("pwd", f"{home}/playground/d\n")):  # fmt: skip
        assert cli("run", "--session", "s", "--", line).stdout == said


def test_it_is_closed_to_others(sandbox, home):
    sandbox.run("true", cwd="playground")
    assert data(home).stat().st_mode & 0o777 == 0o700


def test_a_directory_of_that_name_in_the_home_is_covered_and_left_alone(sandbox, home):
    (home / "playground").mkdir()
    (home / "playground/mine").write_text("mine")
    run = sandbox.run("ls ~/playground; rm -rf ~/playground/*; echo x > ~/playground/y")
    assert run.stdout == ""
    assert os.listdir(home / "playground") == ["mine"]
    assert os.listdir(data(home)) == ["y"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_where_something_else_has_that_name_it_is_seen_where_it_lies(sandbox, home, test_directory, kind):
    if kind == "file":
        (home / "playground").write_text("mine")
    else:
        (home / "playground").symlink_to(test_directory)
    run = sandbox.run("pwd; echo x > y", cwd="playground")
    assert run.stdout == f"{data(home)}\n"
    assert (data(home) / "y").read_text() == "x\n"
    assert not (test_directory / "y").exists()


def test_a_project_in_the_homes_own_playground_is_not_covered(home):
    project = home / "playground/project"
    project.mkdir(parents=True)
    with Sandbox(project) as sandbox:
        assert sandbox.run("echo x > f", cwd="").state == "applied"
        assert sandbox.run("pwd", cwd="playground").stdout == f"{data(home)}\n"
    assert (project / "f").read_text() == "x\n"


def test_a_project_in_the_home_is_still_captured_under_the_view_of_it(home):
    project = home / "work/project"
    project.mkdir(parents=True)
    (project / "old").write_text("old")
    with Sandbox(project) as sandbox:
        run = sandbox.run("echo x > ~/playground/f; echo new > old; cat ~/work/project/old; touch ~/work/no")
        assert (run.stdout, run.state) == ("new\n", "applied")
        assert [change.path for change in run.changes] == ["old"]
        sandbox.undo(run)
    assert (project / "old").read_text() == "old"


def test_our_own_state_is_masked_in_the_view_too(sandbox, home):
    run = sandbox.run("ls ~/playground; ls ~/.local/state/fumehood; touch ~/.local/share/fumehood/x")
    assert run.stdout == ""
    assert run.stderr.count("No such file") == 2
    assert (home / ".local/state/fumehood/fumehood.db").exists()


def test_with_a_mount_in_the_home_it_is_shown_all_the_same(home, project, need):
    """An overlay would not show what is mounted there, so the view is put together from the home's entries."""
    need(shutil.which("unshare") is not None, "there is no unshare to mount with")
    (home / "mounted").mkdir()
    (home / "link").symlink_to("mounted/f")
    script = (
        f"mount -t tmpfs none {home}/mounted && echo there > {home}/mounted/f && exec \"$0\" -P -c "
        "'from fumehood import Policy, Sandbox; import sys; r = Sandbox(sys.argv[1], Policy(home=\"visible\")).run("
        '"cat ~/link; echo x > ~/playground/f; touch ~/no"); print(r.stdout, r.stderr, r.capture)\' ' + str(project)
    )
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    environment = {**os.environ, "PYTHONPATH": ":".join(entry for entry in sys.path if entry)}
    done = subprocess.run(
        ["unshare", *own, "--mount", "sh", "-c", script, sys.executable],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    need("mount:" not in done.stderr, f"nothing can be mounted here: {done.stderr}")
    assert done.stdout.startswith("there\n"), done.stderr
    assert "Read-only" in done.stdout
    assert (data(home) / "f").read_text() == "x\n"


def test_it_can_be_turned_off(home, project):
    with Sandbox(project, Policy(playground=False)) as sandbox:
        assert sandbox.run("ls ~/playground").exit_code != 0
        with pytest.raises(BadRequest, match="no playground"):
            sandbox.run("true", cwd="playground")
    assert not data(home).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs commands as somebody else")
def test_somebody_else_whom_root_works_for_has_none(home, project, test_directory):
    os.chown(project, 65534, 65534)
    test_directory.chmod(0o711)
    with Sandbox(project) as sandbox, pytest.raises(BadRequest, match="no playground"):
        sandbox.run("true", cwd="playground")
