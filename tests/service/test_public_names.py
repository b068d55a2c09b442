"""What programs call besides `Sandbox`: workspaces that race, variables kept nowhere, root trees, the machine."""

import asyncio
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fumehood
from fumehood import BadRequest, FumehoodError, Policy, Sandbox, rootfs, workspaces
from fumehood.service.commands import RunOptions, StartOptions
from patience import LONG_S

SOURCE = Path(fumehood.__file__).parent.parent
SECRET = "hunter2-and-more"
sandboxed = pytest.mark.namespaces


def test_importing_the_package_loads_nothing():
    code = "import sys; before = {*sys.modules}; import fumehood; print(*sorted({*sys.modules} - before))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n{code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["__future__", "fumehood"]


@pytest.mark.parametrize("options", [StartOptions, RunOptions])
def test_what_checkers_of_types_know_of_options_is_what_run_takes(options):
    taken = inspect.get_annotations(inspect.unwrap(Sandbox.run))
    without = {"on_output", "stdin"} if options is StartOptions else set()
    named = {name: said.__forward_arg__ for name, said in options.__annotations__.items()}
    assert named == {name: said for name, said in taken.items() if name not in {"command", "return", *without}}


def test_a_sandbox_names_its_project(home, project):
    with Sandbox(project) as sandbox:
        assert repr(sandbox) == f"Sandbox({str(project)!r})"


# --- workspaces ---


def in_processes(count, act):
    """Have forked processes do something at once; return the exit status of each."""
    ready, go = os.pipe()
    children = []
    for number in range(count):
        child = os.fork()
        if not child:
            os.close(go)
            os.read(ready, 1)  # until the parent lets go
            status = 1
            try:
                act(number)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(ready)
    os.close(go)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


@pytest.mark.long
@sandboxed
def test_ten_processes_that_open_a_workspace_at_once_have_one_and_the_same(home):
    def work(number):
        with workspaces.open("shared", root="host", environment={"COLOUR": "blue"}) as sandbox:
            run = sandbox.run(f"echo $COLOUR > {number}")
            assert (run.exit_code, run.state) == (0, "applied"), run.as_dict()

    assert in_processes(10, work) == [0] * 10
    (workspace,) = workspaces.list()
    assert (workspace.name, workspace.root) == ("shared", "host")
    assert sorted(os.listdir(workspace.path)) == sorted(map(str, range(10)))
    with workspaces.open("shared", create=False) as sandbox:
        assert len(sandbox.history()) == 10
        assert sandbox.run("cat 0").output == "blue\n"


@sandboxed
def test_what_a_workspace_is_opened_with_holds_from_then_on(home):
    with pytest.raises(BadRequest, match="no workspace research"):
        workspaces.open("research", create=False)
    workspaces.open("research", root="host", network="none").close()
    workspaces.open("research", network="ask").close()
    (workspace,) = workspaces.list()
    assert (workspace.root, workspace.network) == ("host", "ask")
    for wrong in ("", "../x", "a/b", ".hidden"):
        with pytest.raises(BadRequest, match="can't be called"):
            workspaces.open(wrong)
    for variables in ({"A": 1}, {1: "x"}, {"": "x"}, {"A": None}):
        with pytest.raises(BadRequest, match="is not a variable"):
            workspaces.open("other", environment=variables)
    assert [each.name for each in workspaces.list()] == ["research"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"root": "nope"}, {"root": "/nowhere"}, {"root": 5}, {"network": "some"}, {"writable": "yes"},
        {"session": "a/b"}, {"policy": Policy(timeout="x")}, {"policy": 5}, {"ask": 5}, {"variables": {}},
        {"environment": "A=b"},
    ],
    ids=repr,
)  # fmt: skip
def test_a_workspace_that_can_not_be_had_is_refused_and_leaves_nothing(home, wrong):
    with pytest.raises(BadRequest) as refused:
        workspaces.open("other", **wrong)
    assert refused.value.hint
    assert workspaces.list() == []
    assert not (home / ".local/share/fumehood/workspaces/other").exists()


def test_a_workspace_keeps_its_root_where_another_can_not_be_had(home):
    workspaces.open("mine", root="host").close()
    with pytest.raises(BadRequest, match="there is no root nope"):
        workspaces.open("mine", root="nope")
    assert [each.root for each in workspaces.list()] == ["host"]


@sandboxed
def test_a_workspace_is_emptied_and_then_removed(home):
    with workspaces.open("builder", root="host") as sandbox:
        sandbox.run("mkdir deep; echo x > deep/file; echo y > .hidden")
        held = sandbox.run("echo z > waits", apply="hold")
        path = Path(sandbox.project)
        assert workspaces.reset("builder") is False
        workspaces.clear("builder")
        assert list(path.iterdir()) == []
        assert sandbox.find(held.run).state == "discarded"
        assert sandbox.run("ls -A").output == ""
        assert len(sandbox.history()) >= 3
        with pytest.raises(BadRequest, match="a command is running"):
            sandbox.run("echo; sleep 1000", on_output=lambda *_: workspaces.remove("builder"), timeout=LONG_S)
    workspaces.remove("builder")
    assert (workspaces.list(), path.exists()) == ([], False)
    with pytest.raises(BadRequest, match="no workspace builder"):
        workspaces.clear("builder")


@sandboxed
def test_variables_from_a_function_reach_each_run_and_are_written_nowhere(home, cli):
    calls = []

    def credentials():
        calls.append(1)
        return {"TOKEN": f"{SECRET}-{len(calls)}"}

    def look_around(_stream, _text):
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert SECRET.encode() not in place.read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue

    with workspaces.open("agent", root="host", variables=credentials) as sandbox:
        first = sandbox.run("echo begun; echo ${TOKEN#hunter2-}", on_output=look_around)
        assert first.stdout == "begun\nand-more-1\n"
        assert sandbox.session("s").run("echo ${TOKEN#hunter2-}").output == "and-more-2\n"
        with sandbox.start("echo ${TOKEN#hunter2-}") as started:
            assert started.wait().stdout == "and-more-3\n"
        assert sandbox.run("echo $TOKEN", env={"TOKEN": "mine"}).output == "mine\n"
        assert sandbox.run("exit 3", network=["example.org"], ask=lambda _question: True).exit_code == 3
    for top in (home, Path(sandbox.project)):
        for place in filter(Path.is_file, top.rglob("*")):
            assert SECRET.encode() not in place.read_bytes(), place
    assert SECRET not in cli("show", "last", "--workspace", "agent").stdout
    wrong = {"A=B": "c"}
    with Sandbox(sandbox.project, variables=lambda: ["TOKEN=s3cret"]) as other:
        with pytest.raises(BadRequest, match="variables returned a list") as refused:
            other.run("true")
        assert "s3cret" not in str(refused.value)
    with Sandbox(sandbox.project, variables=wrong.copy) as other, pytest.raises(BadRequest, match="can't be set"):
        other.run("true")


# --- the machine, and root trees ---


@sandboxed
def test_a_machine_is_asked_whether_it_has_a_sandbox_and_answers_whatever_happens(home, sandbox, monkeypatch):
    answer = fumehood.available()
    assert (bool(answer), answer.ok, answer.reason, answer.hint) == (True, True, "", "")
    assert answer.way in ("kernel", "bwrap", "fuse", "copy")
    seen = sandbox.doctor()
    assert (seen["sandbox"], seen["capture"]) == (True, answer.way)
    assert {"records", "bubblewrap", "this project"} <= {each["name"] for each in seen["abilities"]}
    with monkeypatch.context() as changed:
        changed.setenv("FUMEHOOD_BWRAP", "/bin/false")
        answer = fumehood.available()
    assert (answer.ok, answer.way) == (False, "")
    assert "/bin/false" in answer.reason
    assert answer.hint
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    answer = fumehood.available()
    assert not answer
    assert "cannot make /proc/nowhere" in answer.reason
    assert "XDG_STATE_HOME" in answer.hint


def test_root_trees_are_listed_where_there_are_none(home):
    assert (rootfs.list(), rootfs.is_ready()) == ([], False)
    assert rootfs.directory() == f"{home}/.local/share/fumehood/rootfs"
    assert rootfs.architecture() in ("x86_64", "aarch64", "armv7", "x86")
    with pytest.raises(FumehoodError, match="no Alpine root is installed"):
        rootfs.directory("alpine")
    with pytest.raises(BadRequest, match="no root other"):
        rootfs.remove("other")
    with pytest.raises(AttributeError):
        rootfs.tier_of  # noqa: B018


# --- tools for a model ---

TEMPLATE = {"name": "keep_note", "description": "Keep a note.", "command": "printf %s {text} > {file}"}


@sandboxed
def test_a_model_s_calls_are_run_by_the_names_of_the_tools(home, project, cli):
    with Sandbox(project, Policy(tools=(TEMPLATE,))) as sandbox:
        ours, own = sandbox.tools("anthropic", extra="Web pages are read by read_page.")
        assert ours["description"].endswith("\n\nWeb pages are read by read_page.")
        assert sandbox.mark in ours["description"]
        assert "Tell the user plainly what failed." in ours["description"]
        assert own == sandbox.tool("anthropic", name="keep_note")
        assert own["input_schema"]["required"] == ["text", "file"]
        run = sandbox.run_tool("keep_note", {"text": "'; touch hurt; '", "file": "note"})
        assert [change.path for change in run.changes] == ["note"]
        assert (project / "note").read_text() == "'; touch hurt; '"
        asked = {"command": "cat ../note", "working_dir": "sub", "network": False, "timeout": None}
        (project / "sub").mkdir()
        assert asyncio.run(sandbox.arun_tool("run_command", asked)).output == "'; touch hurt; '"
        for name, wrong in (
            ("other", {}), ("keep_note", {"text": "x"}), ("run_command", {}), ("run_command", {"command": 1}),
            ("run_command", {"command": "x", "network": "yes"}), ("run_command", {"command": "x", "shell": "zsh"}),
            ("run_command", '{"command": "true"}'), ("keep_note", None), ("run_command", ["true"]),
        ):  # fmt: skip
            with pytest.raises(BadRequest):
                sandbox.run_tool(name, wrong)
        assert len(sandbox.history()) == 2
        asked = {"command": "pwd", "timeout": 5, "network": True, "working_dir": "/usr"}
        ours = {"timeout": LONG_S, "network": False, "cwd": "sub"}
        runs = [sandbox.run_tool("run_command", asked, **ours)]
        runs.append(asyncio.run(sandbox.arun_tool("run_command", asked, **ours)))
        assert [(run.network, run.output) for run in runs] == [("none", f"{project}/sub\n")] * 2
    shadowing = Policy(tools=({**TEMPLATE, "name": "undo"},))
    with Sandbox(project, shadowing) as sandbox, pytest.raises(BadRequest, match="name can't be 'undo'"):
        sandbox.tools()


def test_the_tool_is_had_without_a_project_and_fits_its_interface(home, cli):
    plain = fumehood.tool("ollama", extra="Be brief.")
    assert plain["function"]["description"].endswith("Be brief.")
    configuration = home / ".config/fumehood/config.toml"
    configuration.parent.mkdir(exist_ok=True)
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in TEMPLATE.items())
    configuration.write_text(f"[[tool]]\n{keys}")
    assert fumehood.tool(format="mcp", name="keep_note")["inputSchema"]["required"] == ["text", "file"]
    printed = json.loads(cli("tool", "--format", "openai", "--all", "--extra", "Be brief.").stdout)
    assert [each["function"]["name"] for each in printed["tools"]] == ["run_command", "keep_note"]
    assert printed["tools"][0]["function"]["description"].endswith("Be brief.")
    for wrong in ({"format": "other"}, {"name": "other"}, {"format": "openai", "extra": "long " * 100}):
        with pytest.raises(BadRequest):
            fumehood.tool(**wrong)


FORGETFUL = """
import asyncio, gc, os, sys, threading, time
from fumehood import Sandbox

async def work(sandbox):
    asyncio.get_running_loop().slow_callback_duration = 1000  # a busy machine is no matter of ours
    return await sandbox.arun("echo two")

def descriptors():
    return len(os.listdir("/proc/self/fd"))

Sandbox(sys.argv[1]).run("true")  # the launcher is there now, until the end
while threading.active_count() > 1:  # cleaning, perhaps
    time.sleep(0.01)
gc.collect()
before = descriptors()
sandbox = Sandbox(sys.argv[1])
agent = sandbox.session("agent", own_tmp=True)
told = {"on_output": lambda *_: None, "on_change": lambda *_: None}
print(agent.run("cat; echo one > a", stdin="in\\n", **told).output, end="")
print(asyncio.run(work(agent)).output, end="")
del sandbox, agent
while descriptors() > before:  # a thread that cleans up may still be at it
    gc.collect()
    time.sleep(0.01)
forgotten = Sandbox(sys.argv[1])
print(forgotten.run("cat a").output, end="")
"""


@sandboxed
def test_a_sandbox_that_is_never_closed_leaves_nothing_open_and_no_warning(home, project):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), *filter(None, sys.path)])}
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", FORGETFUL, str(project)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=LONG_S)
    assert (done.stdout, done.stderr, done.returncode) == ("in\ntwo\none\n", "", 0)


THREADED = """
import sys, threading
from fumehood import Sandbox

end = threading.Event()
threading.Thread(target=end.wait).start()
with Sandbox(sys.argv[1]) as sandbox:
    for name in ("a", "b"):
        print(sandbox.session(name).run("echo one").output, end="")
end.set()
"""


@sandboxed
def test_a_program_with_threads_that_makes_errors_of_warnings_can_run_sessions(home, project):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), *filter(None, sys.path)])}
    command = [sys.executable, "-W", "error", "-c", THREADED, str(project)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=LONG_S)
    assert (done.stdout, done.stderr, done.returncode) == ("one\none\n", "", 0)
