"""Where a command starts: as the command sees it, whatever the host has there."""

import os

import pytest

from fumehood import BadRequest, Policy, Sandbox

pytestmark = [pytest.mark.namespaces, pytest.mark.once]
MISSING = "^Working directory does not exist: "


@pytest.fixture
def hood(way, project):
    """A sandbox for each way of capturing that works here."""
    with Sandbox(project, Policy(capture=way)) as sandbox:
        yield sandbox


def test_it_is_the_project_or_relative_to_it_or_absolute(hood, project):
    (project / "sub dir").mkdir()
    sub = project / "sub dir"
    places = {None: project, "": project, ".": project, "sub dir": sub, sub: sub, "/usr": "/usr", "sub dir/..": project}
    for asked, found in places.items():
        run = hood.run("pwd", cwd=asked)
        assert (run.stdout, run.cwd) == (f"{found}\n", str(found))


def test_one_that_is_not_there_is_an_error_and_nothing_runs(hood, project):
    (project / "file").write_text("x")
    for asked, named in (("nowhere", project / "nowhere"), ("/nowhere", "/nowhere")):
        with pytest.raises(BadRequest, match=f"{MISSING}{named}$"):
            hood.run("touch ran", cwd=asked)
    with pytest.raises(BadRequest, match=f"^Working directory is not a directory: {project}/file$"):
        hood.run("touch ran", cwd="file")
    assert sorted(os.listdir(project)) == ["file"]
    assert hood.history()[0].state == "failed"


def test_what_the_host_has_and_the_command_does_not_see_is_not_there(hood, home, other_filesystem, need):
    need(str(other_filesystem).startswith(("/tmp/", "/dev/shm/")), "there is no directory to be hidden")
    state = home / ".local/state/fumehood/runs"
    for hidden in (other_filesystem, state):
        assert os.path.isdir(hidden)
        with pytest.raises(BadRequest, match=f"Working directory is not in sight: {hidden}$"):
            hood.run("true", cwd=hidden)


def test_what_only_the_command_sees_is_there(hood, home):
    assert hood.run("pwd", cwd="/dev/pts").stdout == "/dev/pts\n"
    assert hood.run("pwd", cwd="playground").exit_code == 0


def test_what_an_earlier_run_holds_is_there(sandbox, project):
    sandbox.run("mkdir made", apply="hold")
    assert not (project / "made").exists()
    assert sandbox.run("pwd", cwd="made").stdout == f"{project}/made\n"


def test_a_link_is_followed_as_the_command_would(hood, project):
    (project / "real").mkdir()
    (project / "link").symlink_to("real")
    (project / "dangling").symlink_to("nowhere")
    assert hood.run("pwd -P", cwd="link").stdout == f"{project}/real\n"
    with pytest.raises(BadRequest, match=MISSING):
        hood.run("true", cwd="dangling")


@pytest.mark.parametrize("name", ["new\nline", "-x", "$(x)", "bwrap: Can't chdir to x", "é", os.fsdecode(b"\xff")])
def test_it_may_have_any_name(sandbox, project, name):
    (project / name).mkdir()
    assert sandbox.run("touch f", cwd=name).exit_code == 0
    assert os.listdir(project / name) == ["f"]
    with pytest.raises(BadRequest, match="Working directory does not exist"):
        sandbox.run("true", cwd=f"{name}-not")


def test_a_nul_in_it_is_refused(sandbox):
    with pytest.raises(BadRequest, match="cwd can't be"):
        sandbox.run("true", cwd="a\0b")


@pytest.mark.ordinary
def test_one_that_can_not_be_entered_says_so(sandbox, project):
    (project / "closed").mkdir(mode=0)
    with pytest.raises(BadRequest, match="can't be entered"):
        sandbox.run("true", cwd="closed")
    (project / "closed").chmod(0o700)


def test_listeners_hear_our_words_only(sandbox):
    heard = []
    with pytest.raises(BadRequest, match=MISSING):
        sandbox.run("true", cwd="nowhere", on_output=lambda stream, text: heard.append((stream, text)))
    assert heard == []


def test_a_command_may_say_what_bubblewrap_says(sandbox):
    heard = []
    lines = "bwrap: Can't chdir to x\n", "bwrap: one\nbwrap: two\n", "bw", "bwrap: no end", "b\nbwrap: x\n", "\n"
    for line in lines:
        heard.clear()
        command = ["sh", "-c", 'printf %s "$1" >&2; exit 3', "sh", line]
        run = sandbox.run(command, on_output=lambda _stream, text: heard.append(text))
        assert (run.exit_code, run.stderr, "".join(heard)) == (3, line, line)


def test_the_command_line_prints_one_error_and_takes_its_own_words(cli, project, home):
    (project / "src/deep").mkdir(parents=True)
    done = cli("run", "--cwd", "nowhere", "--", "touch ran")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.splitlines()[0] == f"ERROR: Working directory does not exist: {project}/nowhere"
    assert "bwrap" not in done.stderr
    assert cli("run", "--cwd", "deep", "--", "pwd", cwd=project / "src").stdout == f"{project}/src/deep\n"
    assert cli("run", "--project", project, "--cwd", "src", "--", "pwd", cwd="/usr").stdout == f"{project}/src\n"
    assert cli("run", "--cwd", "playground", "--", "pwd").stdout == f"{home}/playground\n"
