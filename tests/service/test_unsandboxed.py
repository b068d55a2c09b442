"""Where nothing can be sandboxed: a plain process, with a person's word for it, and never without saying so."""

import asyncio
import json
import os
import shutil
import subprocess
import sys

import pytest

from at_terminal import Terminal
from conftest import command_line
from fumehood import BadRequest, Policy, Refused, Sandbox, Unavailable
from fumehood.core import questions
from fumehood.linux.bwrap import candidates
from fumehood.linux.probe import Host
from fumehood.service import profiles
from fumehood.service.profiles import trusted_program
from fumehood.service.unsandboxed import UNCAPTURED
from patience import eventually, with_enough_time
from people import Person

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def no_sandbox(home, monkeypatch):
    """A host whose bubblewrap is none."""
    monkeypatch.setenv("FUMEHOOD_BWRAP", "/bin/false")


@pytest.fixture
def bare(no_sandbox, project, person):
    with Sandbox(project, ask=person) as sandbox:
        yield sandbox


# --- permission ---


def test_with_nobody_to_ask_nothing_runs_and_the_refusal_is_recorded(no_sandbox, project):
    with Sandbox(project) as sandbox:
        with pytest.raises(Refused, match="Permission denied: Run command without a sandbox: touch ran") as refusal:
            sandbox.run("touch ran")
        (run,) = sandbox.history()
    assert os.listdir(project) == []
    assert (run.state, run.exit_code, run.sandboxed) == ("refused", 126, False)
    assert run.run == refusal.value.run
    assert refusal.value.hint == "nobody was there to ask; fumehood doctor says what a sandbox needs here"


def test_each_run_is_asked_for_and_says_what_it_means(bare, project, person):
    for count in (1, 2):
        run = bare.run("echo out; echo err >&2; echo x > f; exit 3")
        assert len(person.asked) == count
    (first, second) = person.asked
    assert first.text == "Run command without a sandbox: echo out; echo err >&2; echo x > f; exit 3?"
    assert first.options == (questions.ALLOW_ONCE, questions.DENY_ONCE)
    assert first.key != second.key
    assert any("can't be undone" in detail for detail in first.details)
    assert (run.exit_code, run.stdout, run.stderr) == (3, "out\n", "err\n")
    assert (project / "f").read_text() == "x\n"


def test_it_is_marked_everywhere(bare, home):
    run = bare.run("echo x > f")
    (recorded,) = bare.history()
    for each in (run, recorded):
        assert (each.sandboxed, each.network, each.state, each.reason) == (False, "full", "applied", UNCAPTURED)
        assert each.as_dict()["sandboxed"] is False
        assert "NOT SANDBOXED" in each.for_model()
        assert each.changes == ()
    with pytest.raises(BadRequest, match="was not captured"):
        bare.undo(run)
    assert os.listdir(home / ".local/state/fumehood/runs") == []


def test_without_a_project_it_begins_in_a_directory_that_is_thrown_away(no_sandbox, person):
    with Sandbox(ask=person) as sandbox:
        run = sandbox.run("echo x > f; ls; pwd")
        assert (run.stdout, sandbox.run("cat f").stdout) == (f"f\n{run.cwd}\n", "x\n")
        assert os.listdir(sandbox.project) == []
        with pytest.raises(Unavailable):
            sandbox.run("true", write=False)
    assert not os.path.exists(run.cwd)


def test_a_no_runs_nothing(no_sandbox, project):
    with Sandbox(project, ask=Person(False)) as sandbox, pytest.raises(Refused, match="Permission denied"):
        sandbox.run("touch ran")
    assert os.listdir(project) == []


def test_a_simple_command_may_be_kept_for_its_program(no_sandbox, project):
    person = Person(questions.ALLOW_ALWAYS)
    with Sandbox(project, ask=person) as sandbox:
        sandbox.run("touch a")
        assert person.asked[0].target == os.path.realpath(shutil.which("touch"))
        assert person.asked[0].options == questions.ANSWERS
        sandbox.run(["touch", "b; touch c"])
        (project / "sub").mkdir()
        sandbox.run("cd sub && touch d")
        assert len(person.asked) == 1
    with Sandbox(project) as sandbox:
        sandbox.run("touch e")
        for other in ("touch f; true", "touch f &", "touch $(echo f)", "cp a f", "X=1 touch f", "touch f > g"):
            with pytest.raises(Refused):
                sandbox.run(other)
        with pytest.raises(Refused):
            sandbox.run("touch f", network=True)
    assert sorted(os.listdir(project)) == ["a", "b; touch c", "e", "sub"]


def test_an_answer_for_the_session_holds_in_this_sandbox_only(no_sandbox, project):
    person = Person(questions.ALLOW_SESSION)
    with Sandbox(project, ask=person) as sandbox:
        sandbox.run("touch a")
        sandbox.run("touch b")
        assert len(person.asked) == 1
    with Sandbox(project) as sandbox, pytest.raises(Refused):
        sandbox.run("touch c")


def test_a_program_that_commands_can_write_is_never_kept(home, project, tmp_path, monkeypatch):
    for place in (project, project / "bin"):
        place.mkdir(exist_ok=True)
        shutil.copy("/bin/true", place / "tool")
    environment = {"PATH": f"{project}/bin:/usr/bin:/bin"}
    at = str(project), environment, [str(project)]
    assert trusted_program("tool", *at) is None
    assert trusted_program("./tool", *at) is None
    assert trusted_program("cd bin && ./tool", *at) is None
    (project / "bin/ls").symlink_to("/bin/ls")
    assert trusted_program("ls", *at) is None
    assert trusted_program("true", *at) == os.path.realpath("/bin/true")
    assert trusted_program("nothing-of-that-name", *at) is None
    for runs_anything in ("sh x", "env ls", "python3 x", "xargs ls", "/bin/sh x"):
        assert trusted_program(runs_anything, *at) is None


def test_nor_is_one_in_another_project_or_in_the_playground(bare, home, test_directory, person, monkeypatch):
    monkeypatch.setattr("fumehood.service.profiles._WORLD_WRITABLE", ())  # all that tests make lies in /var/tmp
    other, playground = test_directory / "other", home / ".local/share/fumehood/playground"
    for place in (other, playground, home / "bin"):
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", place / "tool")
    Sandbox(other).close()
    for place in (other, playground, home / "bin"):
        bare.run(f"{place}/tool")
    assert [len(question.options) for question in person.asked] == [2, 2, 6]
    assert any(f"is for {home}/bin/tool, with any arguments" in detail for detail in person.asked[2].details)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_async_program_is_asked_in_its_own_loop(no_sandbox, project, is_async):
    async def program():
        loops = []

        async def later(question):
            loops.append(asyncio.get_running_loop())
            return True

        with Sandbox(project, ask=later if is_async else lambda _question: True) as sandbox:
            run = await sandbox.arun("echo x > f")
        assert run.sandboxed is False
        assert loops == ([asyncio.get_running_loop()] if is_async else [])

    asyncio.run(program())
    assert (project / "f").read_text() == "x\n"


def test_cancelling_while_somebody_thinks_runs_nothing(no_sandbox, project):
    async def program():
        asked = asyncio.Event()

        async def never(question):
            asked.set()
            await asyncio.sleep(60)

        with Sandbox(project, ask=never) as sandbox:
            task = asyncio.create_task(sandbox.arun("touch ran"))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(program())
    assert os.listdir(project) == []


def test_the_question_can_be_foreseen_word_for_word(no_sandbox, project, person):
    (project / "sub").mkdir()
    with Sandbox(project, ask=person) as sandbox:
        (foreseen,) = sandbox.questions("touch a | cat", cwd="sub")
        sandbox.run("touch a | cat", cwd="sub")
        (asked,) = person.asked
        assert foreseen.digest == asked.digest
        assert foreseen.lines == asked.lines
        person.answer = questions.ALLOW_ALWAYS
        sandbox.run("touch b")
        assert sandbox.questions("touch c") == ()


# --- what can't be had without a sandbox ---


def test_what_needs_a_sandbox_is_refused_before_anybody_is_asked(bare, project, person):
    for apply in ("hold", "discard", False):
        with pytest.raises(Unavailable, match="without a sandbox"):
            bare.run("touch ran", apply=apply)
    with pytest.raises(Unavailable, match="a root tree needs a sandbox"):
        bare.run("touch ran", root="alpine")
    assert person.asked == []
    assert os.listdir(project) == []


def test_the_working_directory_is_obeyed(bare, project, home, person):
    (project / "sub").mkdir()
    assert bare.run("pwd", cwd="sub").stdout == f"{project}/sub\n"
    assert bare.run("pwd", cwd="/usr").stdout == "/usr\n"
    assert bare.run("pwd").stdout == f"{project}\n"
    assert bare.run("pwd; echo x > f", cwd="playground").stdout == f"{home}/.local/share/fumehood/playground\n"
    count = len(person.asked)
    with pytest.raises(BadRequest, match=f"^Working directory does not exist: {project}/nowhere$"):
        bare.run("true", cwd="nowhere")
    assert len(person.asked) == count


def test_it_gets_the_variables_that_it_was_given_and_is_then_asked_for_each_time(no_sandbox, project, person):
    with Sandbox(project, ask=person, variables=lambda: {"TOKEN": "t"}) as sandbox:
        assert sandbox.run('echo "$TOKEN $COLOUR"', env={"COLOUR": "blue"}).stdout == "t blue\n"
        sandbox.run(["true"], env={"LD_PRELOAD": ""})
    assert all(asked.one_time_only for asked in person.asked)


def test_secrets_in_the_environment_are_kept_from_it_too(bare, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hush-hush")
    run = bare.run("env")
    assert "hush-hush" not in run.stdout
    assert "MY_TOKEN" in run.dropped


# --- its processes ---


def alive(mark):
    found = subprocess.run(["pgrep", "-f", f"slee[p] {mark}"], capture_output=True, text=True, check=False)
    return found.stdout.split()


def gone(mark):
    return eventually(lambda: not alive(mark))


@pytest.mark.namespaces  # again as an ordinary user
def test_what_it_started_ends_with_it(bare):
    mark = f"{7000000 + os.getpid()}.1"
    run = bare.run(f"(setsid sleep {mark} >/dev/null 2>&1 &); sleep {mark} & echo done")
    assert run.stdout == "done\n"
    assert gone(mark)


@pytest.mark.namespaces  # again as an ordinary user
def test_a_time_limit_ends_it_and_all_it_started(bare):
    mark = f"{7000000 + os.getpid()}.2"
    line = f"(setsid sleep {mark} &); echo begun; sleep {mark}"
    run = with_enough_time(lambda limit: bare.run(line, timeout=limit), lambda run: run.stdout)
    assert (run.timed_out, run.exit_code) == (True, 124)
    assert run.stdout == "begun\n"
    assert gone(mark)


@pytest.mark.namespaces  # again as an ordinary user
def test_its_status_is_its_own(bare):
    assert bare.run("exit 42").exit_code == 42
    assert bare.run("kill -9 $$").exit_code == 137
    assert bare.run("no-such-program-here").exit_code == 127
    assert bare.run("cat", stdin="fed\n").stdout == "fed\n"


@pytest.mark.namespaces  # again as an ordinary user
def test_it_has_no_descriptor_of_ours_and_no_terminal(bare):
    run = bare.run("ls /proc/self/fd | wc -l; (exec 3</dev/tty) 2>/dev/null || echo none")
    assert run.stdout.split() == ["4", "none"]


# --- who says so ---


def test_inside_flatpak_it_is_always_so(cli, project, monkeypatch):
    monkeypatch.setenv("FLATPAK_ID", "org.example.App")
    with Sandbox(project) as sandbox, pytest.raises(Refused, match="without a sandbox"):
        sandbox.run("touch ran")
    with Sandbox(project, ask=lambda _question: True) as sandbox:
        assert sandbox.run("true").sandboxed is False
    assert cli("doctor").returncode == 1
    assert "NOT be sandboxed" in cli("doctor").stdout
    assert "Flatpak" in Host(flatpak=True, captures=("kernel",)).why_bare


def test_a_container_is_good_enough_only_where_a_person_said_so_and_there_is_one(no_sandbox, project, monkeypatch):
    monkeypatch.setenv("container", "docker")
    with Sandbox(project) as sandbox, pytest.raises(Refused):
        sandbox.run("touch a")
    with Sandbox(project, Policy(sandbox="container")) as sandbox:
        run = sandbox.run("touch b")
        assert (run.sandboxed, run.exit_code) == (False, 0)
    assert os.listdir(project) == ["b"]


def test_without_a_container_the_word_for_it_means_nothing():
    from fumehood.service.unsandboxed import _is_good_enough

    policy = Policy(sandbox="container")
    assert not _is_good_enough(Host(), policy)
    assert _is_good_enough(Host(container="podman"), policy)
    assert not _is_good_enough(Host(container="podman"), Policy())


@pytest.mark.namespaces
def test_where_a_sandbox_can_be_had_it_is_used_whatever_the_container(home, project):
    with Sandbox(project, Policy(sandbox="container")) as sandbox:
        assert sandbox.run("touch ran").sandboxed is True


# --- the command line ---


def test_the_command_line_refuses_with_126_and_says_so(no_sandbox, cli, project):
    done = cli("run", "--", "touch ran")
    assert done.returncode == 126
    assert done.stderr.startswith("ERROR: Permission denied: Run command without a sandbox: touch ran\n")
    assert os.listdir(project) == []
    log = cli("log").stdout
    assert "refused" in log
    assert "UNSANDBOXED" in log
    assert "was refused: nothing ran" in cli("undo", json.loads(cli("log", "--json").stdout)["runs"][0]["run"]).stderr
    found = json.loads(cli("run", "--json", "--", "touch ran").stdout)
    assert (found["state"], found["sandboxed"], found["project"]) == ("refused", False, str(project))


@pytest.mark.namespaces  # again as an ordinary user
def test_the_person_at_the_terminal_is_asked_and_may_keep_the_answer(no_sandbox, cli, project):
    with Terminal([*command_line(), "run", "--", "touch ran"], project) as terminal:
        shown = terminal.wait_for("\n>")
        for word in ("y", "always", "n", "never"):
            assert f"[{word}]" in shown
        assert "session" not in shown
        terminal.type("always\n")
        assert terminal.end() == 0
        assert "UNSANDBOXED" in terminal.seen
    assert (project / "ran").exists()
    done = cli("run", "--json", "--", "touch again")
    assert done.returncode == 0
    assert '"sandboxed": false' in done.stdout
    assert "UNSANDBOXED" in cli("show").stdout
    assert cli("run", "--", "touch ran | cat").returncode == 126
    assert "unsandboxed" in cli("grants").stdout
    answered = [run["events"][0]["detail"] for run in json.loads(cli("log", "--json").stdout)["runs"]]
    assert answered[1:] == ["answered before: allow: Run command without a sandbox: touch again?",
                            "allow always: Run command without a sandbox: touch ran?"]  # fmt: skip


@pytest.mark.namespaces
def test_inside_another_bubblewrap_it_is_nested(home, project, need):
    """Where the outer one lets us make namespaces, the command is sandboxed inside it."""
    outer = [candidates()[0][1], "--unshare-user", "--dev-bind", "/", "/"]
    probe = subprocess.run([*outer, "--", "true"], capture_output=True, text=True, check=False)
    need(probe.returncode == 0, f"bwrap: {probe.stderr}")
    line = [*outer, "--", *command_line(), "run", "--json", "--", "echo x > f; touch /usr/no"]
    done = subprocess.run(line, cwd=project, capture_output=True, text=True, check=False, start_new_session=True)
    assert '"sandboxed": true' in done.stdout, done.stderr
    assert "Read-only file system" in done.stdout
    assert (project / "f").read_text() == "x\n"


@pytest.mark.namespaces
def test_where_another_bubblewrap_forbids_namespaces_nothing_runs_unasked(home, project, need):
    outer = [candidates()[0][1], "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--proc", "/proc"]
    probe = subprocess.run([*outer, "--", "true"], capture_output=True, text=True, check=False)
    need(probe.returncode == 0, f"bwrap: {probe.stderr}")
    line = [*outer, "--cap-drop", "ALL", "--", *command_line(), "run", "--", "touch ran"]
    done = subprocess.run(line, cwd=project, capture_output=True, text=True, check=False, start_new_session=True)
    assert done.returncode == 126, done.stderr
    assert "without a sandbox" in done.stderr
    assert not (project / "ran").exists()


def killed_once_begun(project, line):
    """Kill a program that runs an unsandboxed command, when that has said so."""
    script = (
        f"import sys; sys.path[:0] = {[entry for entry in sys.path if entry]!r}\n"
        "from fumehood import Sandbox\n"
        f"Sandbox({str(project)!r}, ask=lambda q: True).run({line!r},"
        " on_output=lambda s, t: print(t, flush=True))"
    )
    with subprocess.Popen([sys.executable, "-I", "-c", script], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "begun\n"
        program.kill()


@pytest.mark.namespaces  # again as an ordinary user
def test_a_program_that_is_killed_takes_an_unsandboxed_command_along(no_sandbox, project):
    mark = f"{7000000 + os.getpid()}.3"
    killed_once_begun(project, f"(setsid sleep {mark} &); echo begun; sleep {mark}")
    assert gone(mark)


def test_of_one_whose_program_was_killed_it_is_said_that_it_ran(no_sandbox, project, store):
    killed_once_begun(project, "echo x > f; echo begun; sleep 60")
    with Sandbox(project) as sandbox:
        (run,) = sandbox.history()
    assert (project / "f").read_text() == "x\n"
    assert (run.state, run.reason) == ("failed", f"Fumehood was stopped while the command ran; {UNCAPTURED}")
    assert os.listdir(f"{store.places.state}/runs") == []


def test_a_program_reached_through_a_link_that_commands_can_turn_is_never_kept(tmp_path, monkeypatch):
    # Every directory of a test's own is one where anybody may leave a program.
    monkeypatch.setattr(profiles, "_WORLD_WRITABLE", ())
    project, tools = tmp_path / "project", tmp_path / "tools"
    for place in (project, tools):
        place.mkdir()
    shutil.copy("/bin/true", tools / "real")
    (project / "link").symlink_to(tools / "real")
    (tools / "through").symlink_to(project / "link")
    (project / "folder").symlink_to(tools)
    (tools / "past").symlink_to("../project/folder/real")
    at = "/", {"PATH": str(tools)}, [str(project)]
    assert trusted_program("real", *at) == os.path.realpath(tools / "real")
    for name in ("through", "past"):
        assert trusted_program(name, *at) is None
