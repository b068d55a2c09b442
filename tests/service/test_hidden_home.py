"""Of the home a command sees the tools, and nothing else."""

import fcntl
import json
import os
import subprocess
from pathlib import Path

import pytest

from fumehood import Policy, Sandbox
from fumehood.errors import BadRequest
from fumehood.linux.probe import host
from fumehood.store.places import places

pytestmark = pytest.mark.namespaces


@pytest.fixture(params=["launcher", "bubblewrap"])
def policy(request, home, need) -> Policy:
    """Both who may mount: our launcher, and bubblewrap where only that may."""
    if request.param == "launcher":
        return Policy()
    at = places()
    able = host(at.cache, at.state)
    need("bwrap" in able.captures, f"bubblewrap can't capture here: {able.refusal('bwrap')}")
    return Policy(capture="bwrap")


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_nothing_is_there_but_what_leads_to_the_project(policy, home):
    for name in ("notes", ".netrc", "src/other/.env", "src/app/main.py", ".some-tool/token"):
        write(home / name, "x")
    with Sandbox(home / "src/app", policy=policy) as sandbox:
        run = sandbox.run(f"cd {home} && find . -type f ! -name .gitconfig ! -name '.*profile'")
    assert run.stdout == "./src/app/main.py\n"


def test_a_tool_on_path_is_there_with_its_installation(policy, home, project, monkeypatch):
    write(home / ".tool/lib/text", "from the installation\n")
    write(home / ".tool/bin/tool", f"#!/bin/sh\ncat {home}/.tool/lib/text\n", 0o755)
    (home / ".local/bin").mkdir(parents=True)
    (home / ".local/bin/tool").symlink_to("../../.tool/bin/tool")
    write(home / ".local/share/secret", "secret")
    monkeypatch.setenv("PATH", f"{home}/.local/bin:{os.environ['PATH']}")
    with Sandbox(project, policy=policy) as sandbox:
        run = sandbox.run(f"tool; cat {home}/.local/share/secret")
    assert run.stdout == "from the installation\n"


def test_what_is_written_to_the_home_is_thrown_away_and_told(home, project):
    with Sandbox(project) as sandbox:
        run = sandbox.run("echo 'alias x=y' >> ~/.bashrc; mkdir -p ~/.cache/tool ~/new; cat ~/.bashrc")
        assert (run.exit_code, run.stdout) == (0, "alias x=y\n")
        assert [(each.what, each.detail) for each in run.blocked] == [("home", "~/.bashrc, ~/new")]
        assert sandbox.run("cat ~/.bashrc").exit_code != 0
        assert sandbox.run("git config --global alias.x y").blocked[0].detail == "~/.gitconfig"
        assert sandbox.run("ls -A ~").blocked == ()
    assert not (home / ".bashrc").exists()


def test_a_virtual_environment_in_a_tools_own_directory_is_told_and_other_things_there_are_not(home, project):
    with Sandbox(project) as sandbox:
        (told,) = sandbox.run(
            "mkdir -p ~/.cache/pypoetry/virtualenvs/app-py3/lib ~/.cache/pypoetry/closed ~/.tool;"
            " echo > ~/.cache/pypoetry/virtualenvs/app-py3/pyvenv.cfg; echo > ~/.cache/x;"
            " chmod 0 ~/.cache/pypoetry/closed ~/.tool"
        ).blocked
        assert (told.what, told.detail) == ("home", "~/.cache/pypoetry/virtualenvs/app-py3")
        assert told.hint.endswith("as .venv")
        deep = "mkdir -p " + "/".join(["~/.deep", *("d" * 300)])
        assert sandbox.run(f"{deep}; chmod 0 ~/.deep").blocked == ()


@pytest.mark.parametrize("command", ["git config --global user.name Eve", "echo '#' >> ~/.gitconfig"])
def test_a_setting_that_is_changed_where_there_was_one_is_told(home, project, command):
    write(home / ".gitconfig", "[user]\n\tname = Ada\n")
    with Sandbox(project) as sandbox:
        assert [(each.what, each.detail) for each in sandbox.run(command).blocked] == [("home", "~/.gitconfig")]
        assert sandbox.run("git config user.name").blocked == ()
    assert (home / ".gitconfig").read_text() == "[user]\n\tname = Ada\n"


def test_a_commit_has_its_author_and_no_credentials_come_along(policy, home, project):
    write(home / ".gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.org\n[include]\n\tpath = more\n"
          "[credential]\n\thelper = store\n[commit]\n\tgpgsign = true\n")  # fmt: skip
    write(home / "more", "[alias]\n\tci = commit\n[http]\n\textraheader = Authorization: secret\n")
    with Sandbox(project, policy=policy) as sandbox:
        commit = "git init -q && git ci -q --allow-empty -m x && git log --format='%an <%ae>'"
        run = sandbox.run(f"{commit}; cat ~/.gitconfig")
    assert run.stdout.startswith("Ada <ada@example.org>\n"), run.output
    assert "secret" not in run.output
    assert "credential" not in run.output


def test_a_person_shows_more_and_never_what_is_masked(policy, home, project):
    write(home / "src/lib/code", "code\n")
    write(home / "src/lib/.npmrc", "fine\n")
    write(home / ".ssh/id_rsa", "secret\n")
    write(home / "notes", "notes\n")
    shown = policy.replace(show=(f"{home}/src/lib", f"{home}/.ssh", f"{home}/notes"), mask=(f"{home}/src/lib/masked",))
    write(home / "src/lib/masked/x", "secret\n")
    with Sandbox(project, policy=shown) as sandbox:
        run = sandbox.run(f"cd {home} && cat src/lib/code notes; cat .ssh/id_rsa src/lib/masked/x; touch src/lib/new")
    assert run.stdout == "code\nnotes\n"
    assert "secret" not in run.output
    assert not (home / "src/lib/new").exists()


def test_a_lock_on_a_single_file_that_is_shown_stops_nobody_outside(home, project):
    notes = write(home / "notes", "notes\n")
    line = f"exec flock --exclusive {notes} sh -c 'cat {notes}; exec cat'"
    with Sandbox(project, policy=Policy(show=(str(notes),))) as sandbox, sandbox.start(line) as started:
        assert started.stdout.readline() == "notes\n"  # now it is locked in there
        with notes.open() as ours:
            fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount what the host sees")
def test_a_single_file_that_is_mounted_over_another_is_the_one_that_is_seen(home, project, test_directory):
    over, under = write(test_directory / "over", "over\n"), write(home / "notes", "under\n")
    subprocess.run(["mount", "--bind", over, under], check=True)
    try:
        with Sandbox(project, policy=Policy(show=(str(under),))) as sandbox:
            assert sandbox.run(f"cat {under}").stdout == "over\n"
    finally:
        subprocess.run(["umount", under], check=True)


def test_a_visible_home_is_as_it_is_less_what_is_masked(policy, home, project):
    write(home / "notes", "notes\n")
    write(home / ".netrc", "secret\n")
    with Sandbox(project, policy=policy.replace(home="visible")) as sandbox:
        run = sandbox.run(f"cat {home}/notes {home}/.netrc; touch {home}/new; echo x > ~/playground/x; ls -A {home}")
    assert run.stdout.startswith("notes\n")
    assert "secret" not in run.output
    assert not (home / "new").exists()


def test_a_command_that_misses_something_hidden_is_told_what_and_how(home, project):
    write(home / "data/table.csv", "x")
    with Sandbox(project) as sandbox:
        run = sandbox.run(f"cat {home}/data/table.csv")
        assert [(each.what, each.detail) for each in run.blocked] == [("hidden", f"{home}/data/table.csv")]
        assert "show" in run.blocked[0].hint
        assert sandbox.run(f"cat {home}/data/nothing-there").blocked == ()


def test_a_hidden_working_directory_is_refused_with_the_reason(home, project):
    (home / "elsewhere").mkdir()
    with Sandbox(project) as sandbox, pytest.raises(BadRequest, match="not in sight"):
        sandbox.run("true", cwd=str(home / "elsewhere"))


def test_a_file_that_the_shell_is_told_to_read_first_is_shown_alone(cli, home, project):
    write(home / ".claude/shell-snapshots/one.sh", "greet() { echo hello; }\n")
    write(home / ".claude/shell-snapshots/other.sh", "secret\n")
    source = f"{home}/.claude/shell-snapshots/one.sh"
    run = cli("run", "--shell", "/bin/bash", "--source", source, "--", "greet; ls ~/.claude/shell-snapshots")
    assert run.stdout == "hello\none.sh\n", run.stderr


def test_what_a_command_had_its_session_keep_shows_nothing(cli, home, project):
    write(home / "private/lib/secret", "secret")
    write(home / "private/bin/python3", "#!/bin/sh\n", 0o755)
    cli("run", "--session", "s", "--", f'echo PATH={home}/private/bin:$PATH >> "$FUMEHOOD_ENV"')
    run = cli("run", "--session", "s", "--", f"echo $PATH; cat {home}/private/lib/secret")
    assert "private" in run.stdout
    assert "secret\n" not in run.stdout.replace("private/lib/secret", "")


def test_explain_tells_what_is_seen_and_runs_nothing(cli, home, project):
    done = cli("run", "--json", "--explain", "--", "touch made", env={"MY_TOKEN": "secret-secret-secret"})
    explained = json.loads(done.stdout)
    mounts = {mount["path"]: mount for mount in explained["mounts"]}
    assert mounts[str(home)]["writable"]
    assert "thrown away" in mounts[str(home)]["what"]
    assert mounts[str(project)]["why"] == "a root"
    assert not mounts["/usr"]["writable"]
    assert "MY_TOKEN" in explained["environment"]["dropped"]
    assert not (project / "made").exists()
    assert "no runs" in cli("log").stdout or "nothing has run" in cli("log").stdout + cli("log").stderr
    assert "what it sees" in cli("run", "--explain", "--", "true").stdout


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_login_shell_finds_the_tools_of_the_home(policy, home, project, monkeypatch, shell):
    write(home / ".local/bin/greet", "#!/bin/sh\necho hello\n", 0o755)
    monkeypatch.setenv("PATH", f"{home}/.local/bin:{os.environ['PATH']}")
    with Sandbox(project, policy=policy) as sandbox:
        run = sandbox.run([shell, "-lc", "greet; echo $PATH"])
    assert run.stdout == f"hello\n{os.environ['PATH']}\n", run.output


def test_a_tool_of_the_home_that_can_not_be_changed_is_told_as_such(home, project, monkeypatch):
    write(home / ".tool/lib/x", "x")
    write(home / ".tool/bin/tool", f"#!/bin/sh\ntouch {home}/.tool/lib/x\n", 0o755)
    monkeypatch.setenv("PATH", f"{home}/.tool/bin:{os.environ['PATH']}")
    with Sandbox(project) as sandbox:
        run = sandbox.run("tool")
    assert [(each.what, each.detail) for each in run.blocked] == [("write", f"{home}/.tool/lib/x")]
    assert "tools of the home are read-only" in run.blocked[0].hint
