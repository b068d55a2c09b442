"""Sessions: what consecutive runs of one agent share, and how all of it is taken back."""

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import trees
from conftest import need
from fumehood import BadRequest, Policy, Run, Sandbox, UndoRefused
from fumehood.core.questions import Question
from fumehood.core.report import Blocked
from fumehood.linux.probe import CAPTURES
from fumehood.service import undo_groups
from fumehood.service.hood import Caller
from fumehood.service.sandbox import run_in
from fumehood.service.session import leave_link
from passing_days import pass_days
from snapshots import snapshot

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def agent(sandbox: Sandbox) -> Sandbox:
    return sandbox.session("agent-1")


def test_a_command_starts_where_the_last_one_ended(agent: Sandbox, project: Path) -> None:
    assert agent.run("mkdir -p a/b && cd a/b").exit_code == 0
    assert agent.run("pwd").stdout == f"{project}/a/b\n"
    assert agent.cwd == f"{project}/a/b"
    assert agent.run("pwd", cwd=project).stdout == f"{project}\n"


def test_outside_a_session_every_command_starts_in_the_project(sandbox: Sandbox, project: Path) -> None:
    sandbox.run("mkdir a && cd a")
    assert sandbox.run("pwd").stdout == f"{project}\n"
    assert sandbox.run("echo ${FUMEHOOD_ENV-none}; ls /dev/fumehood").stdout == "none\n"


@pytest.mark.parametrize("leaving", ["exit 3", "false", "(exit 3)", "kill -TERM $$"])
def test_the_directory_and_the_status_of_a_failing_command_are_kept(agent: Sandbox, leaving: str) -> None:
    plain = agent.run(["sh", "-c", leaving]).exit_code
    run = agent.run(f"mkdir d; cd d; {leaving}")
    assert run.exit_code == plain
    if "kill" not in leaving:
        assert agent.run("basename $PWD").stdout == "d\n"


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh"])
def test_whatever_a_command_does_to_its_shell_its_directory_and_its_output_are_kept(
    agent: Sandbox, project: Path, shell: str
) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    (project / "d").mkdir()
    for line, printed in (
        ("trap 'echo bye $?' EXIT; cd d; (exit 3)", "bye 3\n"),
        ("set -e; trap 'echo bye $?' EXIT; cd d", "bye 0\n"),
        ("trap '' EXIT; cd d", ""),
        ("cd d; trap - EXIT", ""),
        ("trap 'kill $p && echo ended' EXIT; cd d; sleep 60 >/dev/null 2>&1 & p=$!; cd d", "ended\n"),
        ("pwd() { echo /etc; }; printf() { echo no; }; cd d", ""),
        ("alias pwd='echo /etc'\ncd d", ""),
        ("set -eCfu; IFS=/; PWD=/etc; cd d; exit 3", ""),
        ("exec >&- 2>&-; cd d", ""),
        ("cd d; eval if", ""),
    ):
        plain = subprocess.run([path, "-c", line], cwd=project, capture_output=True, text=True, check=False)
        request = agent._request(line, cwd=project).replace(shell=path)
        run = run_in(agent._hood, request, Caller())
        assert (run.exit_code, run.stdout) == (plain.returncode, plain.stdout) == (plain.returncode, printed), line
        assert (agent.cwd, run.blocked) == (f"{project}/d", ()), line
        agent.run("true", cwd=project)


@pytest.mark.parametrize("line", ["[ 1 ] || :; cd d; exec true", "trap true EXIT; cd d; exit 3", "cd d; kill -KILL $$"])
def test_a_command_that_cannot_say_where_it_ended_is_told_so(agent: Sandbox, project: Path, line: str) -> None:
    (project / "d").mkdir()
    (unreported,) = agent.run(line).blocked
    assert unreported.line.startswith("the next command does not follow: cd. where this ended is not known ")
    assert agent.run("pwd").stdout == f"{project}\n"
    assert agent.run("exec true").blocked == ()


@pytest.mark.parametrize("line", ["(cd d)", "cd d | cat", "x=$(cd d)", "bash -c 'cd d'"])
def test_where_a_child_of_the_shell_goes_the_session_does_not(agent: Sandbox, project: Path, line: str) -> None:
    (project / "d").mkdir()
    assert agent.run(line).blocked == ()
    assert agent.run("pwd").stdout == f"{project}\n"


def test_a_traced_command_shows_nothing_of_ours(agent: Sandbox, project: Path) -> None:
    (project / "d").mkdir()
    assert agent.run("set -x; cd d; false").stderr == "+ cd d\n+ false\n"


def test_a_directory_that_a_command_removed_under_itself_is_gone_for_the_next(agent: Sandbox, project: Path) -> None:
    agent.run("mkdir d; cd d; rmdir ../d")
    with pytest.raises(BadRequest, match=r"does not exist: .*/d$"):
        agent.run("touch new")
    assert agent.run("pwd").stdout == f"{project}\n"


def test_odd_directory_names_are_kept_exactly(agent: Sandbox, project: Path) -> None:
    name = "with 'quotes' \"and\"\nnewline é $HOME `x`"
    (project / name).mkdir()
    agent.run('cd "$D"', env={"D": name})
    assert agent.run("pwd").stdout == f"{project}/{name}\n"


def test_a_command_whose_directory_is_gone_runs_nowhere_and_the_next_one_in_the_project(
    agent: Sandbox, project: Path
) -> None:
    agent.run("mkdir gone build && cd gone")
    (project / "gone").rmdir()
    with pytest.raises(BadRequest, match=r"does not exist: .*/gone$") as refused:
        agent.run("rm -r build")
    assert refused.value.hint == f"nothing ran; the session's next command starts in {project}"
    assert (project / "build").is_dir()
    assert agent.run("pwd").stdout == f"{project}\n"


def test_a_directory_that_only_the_session_has_is_where_its_next_command_starts(agent: Sandbox, project: Path) -> None:
    agent.run("mkdir /tmp/of-the-session && cd /tmp/of-the-session")
    assert agent.cwd == "/tmp/of-the-session"
    assert agent.run("touch new; pwd; ls").stdout == "/tmp/of-the-session\nnew\n"
    assert not (project / "new").exists()
    assert agent.run("mkdir held && cd held", cwd=project, apply=False).state == "held"
    assert agent.run("pwd").stdout == f"{project}/held\n"


def test_a_directory_of_the_hosts_is_not_taken_for_the_one_that_the_session_has_no_more(agent: Sandbox) -> None:
    with TemporaryDirectory(dir="/tmp") as host:
        agent.run(f"mkdir {host} && cd {host}")
        agent.run(f"rmdir {host}")
        with pytest.raises(BadRequest, match="not in sight"):
            agent.run("pwd")
        assert agent.run("true").exit_code == 0


def test_variables_written_to_the_file_are_kept_and_others_not(agent: Sandbox) -> None:
    agent.run('export LOST=1; echo "MODE=fast = yes" >>"$FUMEHOOD_ENV"; echo OTHER=x >>"$FUMEHOOD_ENV"')
    assert agent.run('echo "${LOST-none} $MODE $OTHER"').stdout == "none fast = yes x\n"
    agent.run('echo OTHER >>"$FUMEHOOD_ENV"')
    assert agent.run('echo "${OTHER-none} $MODE"').stdout == "none fast = yes\n"


def test_values_of_several_lines_are_kept_where_they_end_with_nul(agent: Sandbox) -> None:
    agent.run(r'printf "A=one\ntwo\0B=three\0" >"$FUMEHOOD_ENV"')
    assert agent.run('echo "$A/$B"').stdout == "one\ntwo/three\n"


def test_names_that_are_no_variables_and_ours_are_not_kept(agent: Sandbox) -> None:
    agent.run(r'printf "1A=x\nA-B=x\nFUMEHOOD_ENV=/etc/passwd\nnonsense\n=x\nOK=1\n" >"$FUMEHOOD_ENV"')
    assert agent.run('echo "$FUMEHOOD_ENV $OK"').stdout == "/dev/fumehood/env 1\n"


def test_a_program_gives_a_session_variables(agent: Sandbox) -> None:
    agent.keep_env({"A": "1", "B": "2"})
    agent.keep_env({"A": None})
    assert agent.run("echo ${A-none} $B").stdout == "none 2\n"
    assert agent.run("echo $B", env={"B": "once"}).stdout == "once\n"
    assert agent.run("echo $B").stdout == "2\n"
    with pytest.raises(BadRequest, match="can't be kept"):
        agent.keep_env({"A=B": "x"})
    for wrong in ({"C": 2}, {"C": "a\0b"}, {"C": "\ud800"}, {1: "x"}):
        with pytest.raises(BadRequest, match=r"variable|surrogate"):
            agent.keep_env(wrong)
    assert agent.run('echo "$B$C"').stdout == "2\n"


def test_the_line_of_a_command_reads_as_if_it_stood_alone(agent: Sandbox) -> None:
    assert agent.run('echo "$# $@ $1" $-').stdout.split() == ["0"]
    assert agent.run("cat <<'E'\n$x 'y' \"z\"\nE\necho é").stdout == "$x 'y' \"z\"\né\n"
    broken = agent.run("echo 'unfinished")
    assert broken.exit_code == 2
    assert "nterminated" in broken.stderr


def test_what_a_command_tells_its_session_can_be_no_trap_for_the_host(agent: Sandbox, project: Path) -> None:
    at = "/dev/fumehood/cwd"
    agent.run(f"rm -f {at}; ln -sf /etc/passwd {at}; echo relative >{at}; exec true")
    assert agent.run("pwd").stdout == f"{project}\n"
    agent.run(f"printf '/etc/passwd\n' >{at}; exec true")
    with pytest.raises(BadRequest, match="is not a directory: /etc/passwd"):
        agent.run("pwd")
    assert agent.run("pwd").stdout == f"{project}\n"
    full = agent.run("dd if=/dev/zero of=/dev/fumehood/env bs=4096 count=16 2>/dev/null; echo ok")
    assert full.stdout == "ok\n"


def test_nothing_of_the_pipes_is_left(agent: Sandbox, home: Path) -> None:
    agent.run("cd /")
    with pytest.raises(BadRequest):
        agent.run("true", cwd="/nonexistent")
    assert os.listdir(home / ".local/state/fumehood/sessions/agent-1") == ["tmp"]


@pytest.mark.parametrize("own_tmp", [True, False])
def test_a_session_has_a_tmp_of_its_own(sandbox: Sandbox, project: Path, own_tmp: bool) -> None:
    one, other = sandbox.session("one", own_tmp=own_tmp), sandbox.session("other", own_tmp=own_tmp)
    file = f"/tmp/{project.parent.name}"  # no other's on this machine
    one.run(f"echo mine >{file}")
    assert one.run(f"cat {file}; stat -c %a /tmp").stdout == "mine\n1777\n"
    assert other.run(f"cat {file}").exit_code == 1
    assert sandbox.run("ls /tmp").stdout == ""
    assert not Path(file).exists()


def test_one_command_of_a_session_sees_what_another_puts_into_tmp_while_both_run(project: Path, home: Path) -> None:
    with Sandbox(project, session="s") as sandbox, Sandbox(project, session="s") as second:
        def meanwhile(_stream: str, _text: str) -> None:
            second.run("echo ready >/tmp/mark")

        line = "echo begun; while ! [ -s /tmp/mark ]; do sleep 0.01; done; cat /tmp/mark"
        run = sandbox.run(line, on_output=meanwhile)
    assert run.stdout == "begun\nready\n"


def test_the_policy_can_have_an_empty_tmp_for_each_command(project: Path, home: Path) -> None:
    with Sandbox(project, session="s", policy=Policy(tmp="fresh")) as sandbox:
        sandbox.run("echo mine >/tmp/x")
        assert sandbox.run("ls /tmp").stdout == ""


@pytest.mark.long
@pytest.mark.parametrize("way", CAPTURES, indirect=True)
@pytest.mark.parametrize("own_tmp", [True, False])
def test_commands_on_a_project_below_tmp_share_one_too_and_none_moves_what_it_lies_in(
    way: str, home: Path, test_directory: Path, own_tmp: bool
) -> None:
    # Evaluations live there. A link in the place of what the next mount is made on would lead it outside.
    outside = test_directory / "outside"
    outside.mkdir()
    with TemporaryDirectory(dir="/tmp") as folder:
        for place in (Path(folder), Path(folder, "deep/project")):
            place.mkdir(parents=True, exist_ok=True)
            session = f"s{len(place.parts)}"
            with Sandbox(place, Policy(capture=way), session=session, own_tmp=own_tmp) as sandbox:
                assert sandbox.run("echo mine >/tmp/x; echo y >f; mkdir -p d; cd d").state == "applied"
                run = sandbox.run(f"mv {folder} /tmp/y; rmdir {folder}; ln -sT /oldroot{outside} {folder}")
                assert run.exit_code
                run = sandbox.run("cat /tmp/x; cd -P ..; pwd; ls /tmp; cat f")
                assert run.stdout.split() == ["mine", str(place), *sorted([Path(folder).name, "x"]), "y"]
                assert run.blocked == ()
    assert list(outside.iterdir()) == []


def test_where_a_session_can_have_no_tmp_its_commands_run_and_are_told(home: Path, project: Path) -> None:
    with TemporaryDirectory(dir="/tmp") as folder, Sandbox(project, session="s", ask=lambda _question: True) as sandbox:
        assert sandbox.run(f"ln -s / {folder}; echo mine >/tmp/x").exit_code == 0
        sandbox.add_root(folder)
        # Something is mounted in there now, and nothing may be mounted on what a command left.
        with Sandbox(project, session="s") as again:
            run = again.run("cat /tmp/x")
        assert [(each.what, each.detail) for each in run.blocked] == [("tmp", "/tmp is not kept between commands")]
        assert f"{folder} lies in /tmp" in run.blocked[0].hint
        with Sandbox(project, session="s", own_tmp=True) as own, pytest.raises(BadRequest, match="lies in it"):
            own.run("true")


def test_sessions_with_the_same_name_are_the_same_and_others_apart(sandbox: Sandbox, home: Path, project: Path) -> None:
    sandbox.session("one").run("mkdir d; cd d")
    with Sandbox(project, session="one") as again, Sandbox(project, session="two") as other:
        assert again.run("pwd").stdout == f"{project}/d\n"
        assert other.run("pwd").stdout == f"{project}\n"
        assert [run.session for run in again.history()] == ["one", "one"]
    assert sandbox.session().session_name != sandbox.session().session_name


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a b", "x" * 129, "é"])
def test_a_name_that_can_be_no_directory_is_refused(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(BadRequest, match="name of a session"):
        Sandbox(sandbox.project, session=name)


def test_a_session_stays_with_its_project(sandbox: Sandbox, test_directory: Path) -> None:
    sandbox.session("mine")
    elsewhere = test_directory / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(BadRequest, match="belongs to"):
        Sandbox(elsewhere, session="mine")


def test_undo_takes_the_whole_session_and_nothing_else(sandbox: Sandbox, project: Path) -> None:
    (project / "kept").write_text("before")
    agent = sandbox.session("agent")
    agent.run("echo 1 >kept; mkdir d; echo x >d/new")
    sandbox.run("echo other >others")
    agent.run("echo 2 >>kept; rm -r d")
    agent.run("true")
    backs = agent.undo_session()
    assert len(backs) == 2
    assert (project / "kept").read_text() == "before"
    assert sorted(os.listdir(project)) == ["kept", "others"]
    with pytest.raises(BadRequest, match="left to undo"):
        agent.undo_session()


def test_a_session_that_cannot_be_undone_whole_is_not_undone_at_all(sandbox: Sandbox, project: Path) -> None:
    agent = sandbox.session("agent")
    agent.run("echo 1 >a")
    agent.run("echo 1 >b")
    last = agent.run("mkdir d; echo 1 >c; echo 1 >b; touch b")
    (project / "a").write_text("the person's")
    with pytest.raises(UndoRefused, match="not undone"):
        agent.undo_session()
    assert [(project / name).read_text() for name in "abc"] == ["the person's", "1\n", "1\n"]
    # As if it had not been tried: no undo is left, nor one that brings it back.
    assert sandbox.history()[0].run == last.run


def test_a_session_that_changed_its_own_files_again_is_undone(sandbox: Sandbox, project: Path) -> None:
    (project / "d").mkdir()
    (project / "d/old").write_text("old")
    before = snapshot(project)
    agent = sandbox.session("agent")
    agent.run("mkdir e; echo 1 >e/a; echo 1 >>d/old")
    agent.run("echo 2 >>e/a; mv d f")
    agent.run("rm -r e; echo 3 >>f/old; echo 3 >e")
    agent.undo_session()
    assert snapshot(project) == before
    agent.redo_session()
    assert sorted(os.listdir(project)) == ["e", "f"]
    agent.undo_session()
    assert snapshot(project) == before


def test_files_are_read_and_written_with_the_sandboxs_rights(sandbox: Sandbox, project: Path, home: Path) -> None:
    run = sandbox.write_file("d/e/bytes", b"\0\xff\n")
    assert (project / "d/e/bytes").read_bytes() == sandbox.read_file("d/e/bytes") == b"\0\xff\n"
    assert run.state == "applied"
    with pytest.raises(BadRequest, match="can't be written"):
        sandbox.write_file("/etc/fumehood-test", "x")
    with pytest.raises(BadRequest, match="can't be read"):
        sandbox.read_file(home / ".local/state/fumehood/fumehood.db")
    for name in ("-", "--", "-n", "a b", "'$x"):
        sandbox.write_file(name, "inherit")
        assert sandbox.read_file(name) == b"inherit"
    os.mkfifo(project / "fifo")
    for endless in ("fifo", "/dev/zero", "d"):
        with pytest.raises(BadRequest, match="it is not a file"):
            sandbox.read_file(endless)
    with pytest.raises(BadRequest, match=r"nowhere can't be read: .*[Nn]o such file"):
        sandbox.read_file("nowhere")
    with pytest.raises(BadRequest, match="can't be written to a file"):
        sandbox.write_file("none", None)  # type: ignore[arg-type]
    assert not (project / "none").exists()


def test_a_session_s_name_used_in_another_project_does_not_lead_to_the_first(
    cli: Cli, project: Path, test_directory: Path
) -> None:
    other = test_directory / "other"
    other.mkdir()
    assert cli("run", "--session", "work", "--", "mkdir build; cd build").returncode == 0
    refused = cli("run", "--session", "work", "--", "rm -rf ../build", cwd=other)
    assert refused.returncode == 125
    assert refused.stderr.splitlines() == [
        f"ERROR: the session work belongs to {project}, and you are elsewhere",
        f"hint: give the session another name; or, to run it there: --project {project}",
    ]
    assert (project / "build").is_dir()
    there = cli("run", "--session", "work", "--project", project, "--", "pwd", cwd=other)
    assert there.stdout == f"{project}/build\n"


def test_the_command_line_has_sessions(cli: Cli, project: Path) -> None:
    assert cli("run", "--session", "s1", "--", "mkdir sub; cd sub; echo x >f").returncode == 0
    assert cli("run", "--session", "s1", "--", "pwd").stdout == f"{project}/sub\n"
    assert cli("run", "--session", "s1", "--", "pwd", cwd="/").stdout == f"{project}/sub\n"
    cli("run", "--", "echo y >apart")
    cli("run", "--session", "s1", "--", "echo z >g")
    listed = cli("log").stdout.splitlines()
    assert listed[0] == "session s1"
    assert [line.startswith("  ") for line in listed[1:]] == [True, True, True, True, False]
    assert len(cli("log", "--session", "s1").stdout.splitlines()) == 5
    undone = cli("undo", "--session", "s1")
    assert undone.returncode == 0, undone.stderr
    assert os.listdir(project) == ["apart"]
    *runs, last = undone.stdout.splitlines()
    assert runs == [
        "fumehood: run 5: 1 change taken back (1 deletion)", "fumehood: run 1: 2 changes taken back (2 deletions)",
    ]  # fmt: skip
    assert last == "  to redo it: fumehood redo --session s1"
    assert cli("redo", "--session", "s1").stdout.endswith("  to undo it again: fumehood undo --session s1\n")
    assert "no session s2" in cli("undo", "--session", "s2").stderr


def test_another_shell_runs_the_line_and_reads_a_file_first(cli: Cli, project: Path) -> None:
    need(Path("/bin/bash").exists(), "there is no bash")
    (project / "first").write_text("f() { echo function $1; }\nshopt -s expand_aliases\nalias a='echo alias'\n")
    line = "f 1; a 2\n[[ ab == a* ]] && echo bash"
    done = cli("run", "--shell", "/bin/bash", "--source", project / "first", "--", line)
    assert done.stdout == "function 1\nalias 2\nbash\n"
    assert cli("run", "--shell", "/bin/bash", "--source", "/none*", "--", "echo ok").stdout == "ok\n"
    refused = cli("run", "--shell", "/bin/bash", "--source", "/none", "--", "echo ok")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "/none does not exist" in refused.stderr
    assert "is not a shell" in cli("run", "--shell", "bash", "--", "true").stderr


def test_cleaning_removes_what_old_sessions_left_and_nothing_of_others(
    sandbox: Sandbox, cli: Cli, home: Path, project: Path
) -> None:
    rooms = home / ".local/state/fumehood/sessions"
    for name, days in (("old", 31), ("new", 1)):
        sandbox.session(name, own_tmp=True).run("mkdir /tmp/d; echo x >/tmp/d/x; chmod 0 /tmp/d")
        pass_days(sandbox._store, days)
    assert "1 leftover" in cli("clean").stdout
    assert os.listdir(rooms) == ["new"]
    assert sandbox.session("old", own_tmp=True).run("ls -A /tmp").stdout == ""


def test_an_undo_stands_with_the_session_it_belongs_to_and_is_not_undone_with_it(agent: Sandbox, project: Path) -> None:
    first = agent.run("echo 1 >a")
    agent.run("echo 2 >b")
    agent.undo(first)
    assert [run.act for run in agent.history()] == ["undo", "run", "run"]
    agent.undo_session()
    assert os.listdir(project) == []


def test_a_session_knows_no_runs_but_its_own(sandbox: Sandbox, project: Path) -> None:
    agent, other = sandbox.session("one"), sandbox.session("two")
    persons, strange, own = sandbox.run("echo 1 >a"), other.run("echo 2 >b"), agent.run("echo 3 >c")
    held = other.run("echo 4 >d", apply="hold")
    for act in (agent.undo, agent.diff, agent.output, agent.apply, agent.discard, lambda run: agent.find(run.run)):
        for run in (persons, strange, held):
            with pytest.raises(BadRequest, match=f"there is no run {run.run}"):
                act(run)
    assert agent.find().run == own.run
    assert sandbox.undo(strange).session is None, "it is not the session that took it back"
    assert agent.undo().session == "one"
    assert sorted(os.listdir(project)) == ["a"]


def test_what_one_session_was_allowed_is_not_for_another(home: Path, project: Path) -> None:
    asked = []

    def answer(question: Question) -> str:
        asked.append(question)
        return "allow_session" if "allow_session" in question.options else "deny_once"

    question = Question(what="unsandboxed", text="?", command="x", directory="/", project=str(project), target="/x")
    with Sandbox(project, ask=answer) as sandbox:
        for agent in (sandbox.session("one"), sandbox.session("two")):
            for _ in range(2):
                agent.require(question)
    assert len(asked) == 2


@pytest.mark.parametrize("is_only", ["session", "project"])
def test_options_that_narrow_are_not_widened_by_others(
    sandbox: Sandbox, cli: Cli, project: Path, test_directory: Path, is_only: str
) -> None:
    other = test_directory / "other"
    other.mkdir()
    own = sandbox.session("one").run("echo 1 >a").run
    strange = sandbox.session("two").run("echo 2 >b").run
    elsewhere = cli("run", "--project", other, "--session", "far", "--json", "--", "echo 3 >c")
    far = json.loads(elsewhere.stdout)["run"]
    only = ("--only-session", "one") if is_only == "session" else ("--only-project",)
    known = [own] if is_only == "session" else [strange, own]

    def logged(*more: object) -> list[str]:
        return [run["run"] for run in json.loads(cli("log", "--json", *only, *more).stdout)["runs"]]

    assert logged() == logged("--all") == known
    assert logged("--all", "--session", "far") == []
    assert logged("--session", "two") == known[:-1]
    for verb in ("show", "diff", "output", "undo"):
        assert f"there is no run {far}" in cli(verb, far, *only).stderr
    for session in ("far", "never", *(["two"] if is_only == "session" else [])):
        assert f"there is no session {session}" in cli("undo", "--session", session, *only).stderr
    assert cli("undo", "--session", "one", *only).returncode == 0
    assert (os.listdir(project), os.listdir(other)) == (["b"], ["c"])
    (latest,) = json.loads(cli("log", "--json", "-n1").stdout)["runs"]
    assert latest["session"] == (only[1] if is_only == "session" else None)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_session_works_in_a_root_tree_too(cli: Cli, test_directory: Path, project: Path, is_whole: bool) -> None:
    tree = trees.make_tree(test_directory / "tree")
    if is_whole:
        for name in ("workspace", "proc", "dev", "tmp"):
            (tree / name).mkdir(exist_ok=True)
    run = ("run", "--root", tree, "--session", "s", "--own-tmp")
    first = cli(*run, "--", "mkdir sub; cd sub; echo A=kept >>$FUMEHOOD_ENV; echo x >/tmp/t")
    assert first.returncode == 0, first.stderr
    second = cli(*run, "--", "pwd; echo $A; cat /tmp/t")
    assert second.stdout == "/workspace/sub\nkept\nx\n", second.stderr
    assert cli("run", "--session", "s", "--", "pwd").stdout == f"{project}/sub\n"


def test_a_whole_session_goes_back_by_force_where_a_person_edited(cli: Cli, project: Path) -> None:
    (project / "f").write_text("first\n")
    for line in ("echo one >> f", "echo two > g"):
        cli("run", "--session", "s", "--", line)
    (project / "f").write_text("mine\n")
    refused = cli("undo", "--session", "s")
    assert refused.returncode == 125
    assert (project / "g").exists(), "all or nothing"
    assert cli("undo", "--session", "s", "--force").returncode == 0
    assert ((project / "f").read_text(), (project / "g").exists()) == ("first\n", False)
    assert cli("redo", "--session", "s", "--force").returncode == 0
    assert ((project / "f").read_text(), (project / "g").exists()) == ("mine\n", True)


def test_a_whole_session_goes_back_after_a_persons_git_status(cli: Cli, project: Path) -> None:
    need(shutil.which("git") is not None, "there is no git")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    (project / "f").write_text("first\n")
    before = {path.name for path in project.iterdir()}
    for line in ("git add f", "echo more >> f; git add f", "echo x > g; git add g"):
        cli("run", "--session", "s", "--", line)
        subprocess.run(["git", "status"], cwd=project, check=True, capture_output=True)
    assert cli("undo", "--session", "s").returncode == 0
    assert {path.name for path in project.iterdir()} == before
    assert (project / "f").read_text() == "first\n"
    assert subprocess.run(["git", "ls-files"], cwd=project, check=True, capture_output=True).stdout == b""


def test_ctrl_c_finds_all_of_a_session_undone_or_nothing(
    agent: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        agent.run(f"echo {name} > {name}")
    undo = undo_groups.undo

    def undo_and_interrupt(*arguments: Any, **options: Any) -> Run:
        back = undo(*arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return back

    monkeypatch.setattr(undo_groups, "undo", undo_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        agent.undo_session()
    assert os.listdir(project) == []


def test_commands_that_end_at_the_same_time_remove_what_was_followed_long_ago(home: Path, project: Path) -> None:
    room = home / "room"
    room.mkdir()
    for number in range(400):
        (room / f"old-{number}").symlink_to(project)
        os.utime(room / f"old-{number}", (0, 0), follow_symlinks=False)
    begun = threading.Barrier(4)

    def leave(number: int) -> tuple[Blocked, ...]:
        begun.wait()
        return leave_link(f"{room}/{number}", str(project))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(leave, range(4))) == [()] * 4
    assert sorted(os.listdir(room)) == ["0", "1", "2", "3"]
