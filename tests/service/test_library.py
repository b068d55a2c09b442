"""The Python face: what it takes and gives, from threads, from asyncio, and when things end badly."""

import asyncio
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

import fumehood
from fumehood import BadRequest, FumehoodError, LaunchFailed, Policy, Refused, Sandbox
from fumehood.linux import launcher
from fumehood.linux.streams import Feed
from patience import LONG_S, eventually, with_enough_time
from processes import LONG, left_over, nothing_more_is_open, open_descriptors, processes

SOURCE = Path(fumehood.__file__).parent.parent
sandboxed = pytest.mark.namespaces


# --- the public surface ---


def test_the_public_names_are_these():
    assert sorted(fumehood.__all__) == [
        "ApplyFailed", "Availability", "BadConfiguration", "BadRequest", "Best", "Blocked", "Candidate", "Change",
        "ChangedMeanwhile", "Draft", "DraftConflict", "FumehoodError", "LaunchFailed", "NoDirectory", "NoRoom",
        "OpenQuestion", "OverlayUnavailable", "Policy", "Question", "Questions", "Refused", "Run", "Sandbox", "Started",
        "StoreDamaged", "TooDeep", "Unavailable", "UndoRefused", "Unfinished", "Unforeseen", "__version__", "available",
        "rootfs", "tool", "workspaces",
    ]  # fmt: skip
    assert sorted(fumehood.workspaces.__all__) == ["Workspace", "clear", "list", "open", "remove", "reset"]
    assert sorted(fumehood.rootfs.__all__) == [
        "InstalledTree", "architecture", "directory", "install", "is_ready", "latest_version", "list", "remove",
    ]  # fmt: skip
    assert dir(fumehood) == sorted(fumehood.__all__)
    for name in fumehood.__all__:
        assert getattr(fumehood, name) is not None


def test_a_name_that_is_not_public_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'Hood'"):
        _ = fumehood.Hood


def test_the_package_says_that_it_is_typed():
    assert (Path(fumehood.__file__).parent / "py.typed").is_file()


def test_every_error_of_ours_is_public_and_has_a_hint_and_an_exit_code():
    errors = {each for each in vars(fumehood.errors).values() if isinstance(each, type)}
    public = {value for name in fumehood.__all__ if isinstance(value := getattr(fumehood, name), type)}
    assert errors == {each for each in public if issubclass(each, Exception)}
    for error in errors:
        assert issubclass(error, FumehoodError)
        raised = error("what failed", hint="the next step")
        assert (str(raised), raised.hint) == ("what failed", "the next step")
        assert raised.exit_code == (126 if issubclass(error, Refused) else 125)


# --- what goes in ---


@sandboxed
def test_a_string_is_a_shell_line_and_a_sequence_is_a_program_with_its_arguments(sandbox, project):
    assert sandbox.run("echo a  b | tr a c").stdout == "c b\n"
    assert sandbox.run(["echo", "a  b | tr a c", "$HOME"]).stdout == "a  b | tr a c $HOME\n"
    assert sandbox.run(("printf", "%s.", "", "-n", "*")).stdout == ".-n.*."


@sandboxed
@pytest.mark.parametrize("command", ["", "   ", [], "a\0b", ["a", "b\0"], "x" * 200_000])
def test_a_command_that_can_not_be_run_is_refused_before_anything_happens(sandbox, project, command):
    with pytest.raises(BadRequest) as refusal:
        sandbox.run(command)
    assert refusal.value.hint
    assert sandbox.history() == []


@sandboxed
def test_a_program_that_is_missing_ends_with_127(sandbox, project, monkeypatch):
    # Where one directory of PATH is closed to us, a shell says 126.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert sandbox.run(["no-such-program"]).exit_code == 127


@sandboxed
def test_the_working_directory_is_the_project_or_one_named_from_there(sandbox, project):
    (project / "sub dir").mkdir()
    assert sandbox.run("pwd").stdout == f"{project}\n"
    assert sandbox.run("pwd", cwd="sub dir").stdout == f"{project}/sub dir\n"
    assert sandbox.run("pwd", cwd=project / "sub dir").stdout == f"{project}/sub dir\n"
    assert sandbox.run("pwd", cwd="/usr").stdout == "/usr\n"


@sandboxed
@pytest.mark.parametrize("given", ["a line\n", b"a line\n", "é☃", b"\xff\0\n", "", b"", "closed", "inherited"])
def test_standard_input_is_what_was_given(sandbox, project, given):
    run = sandbox.run("cat > got", stdin=given)
    assert run.exit_code == 0
    assert (project / "got").read_bytes() == (given.encode() if isinstance(given, str) else given)


@sandboxed
def test_without_standard_input_there_is_nothing_to_read(sandbox, project):
    run = sandbox.run("cat; [ -t 0 ] || echo not a terminal", timeout=LONG_S)
    assert run.stdout == "not a terminal\n"


@sandboxed
def test_a_long_input_is_fed_as_it_is_read(sandbox, project):
    given = os.urandom(3 << 20)
    run = sandbox.run("cat > got", stdin=given)
    assert (project / "got").read_bytes() == given
    assert run.exit_code == 0


def test_what_is_left_of_an_input_is_not_copied_with_each_piece():
    reading, writing = os.pipe()
    feed = Feed(writing, bytes(32 << 20))
    tracemalloc.start()
    try:
        assert feed.advance()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
        feed.close()
        os.close(reading)


@sandboxed
@pytest.mark.parametrize("command", ["true", "exec <&-; true", "head -c 10", "sleep 1000"])
def test_an_input_that_is_not_read_holds_nothing_up_and_leaves_nothing_open(sandbox, project, command):
    sandbox.run("true")
    before = open_descriptors()
    run = sandbox.run(command, stdin=bytes(1 << 20), timeout=0.3 if "sleep" in command else LONG_S)
    assert run.timed_out == ("sleep" in command)
    assert nothing_more_is_open(before)


@sandboxed
def test_what_becomes_of_changes_must_be_a_known_word(sandbox, project):
    with pytest.raises(BadRequest, match="'later'"):
        sandbox.run("true", apply="later")


@sandboxed
def test_the_policy_holds_where_nothing_else_is_asked(home, project):
    with Sandbox(project, Policy(apply="hold")) as sandbox:
        assert sandbox.run("echo x > f").state == "held"
        assert sandbox.run("echo x > g", apply="apply").state == "applied"
    with Sandbox(project, Policy(timeout=0.3)) as sandbox:
        assert sandbox.run("sleep 1000").timed_out


@sandboxed
def test_network_is_refused_where_nobody_can_be_asked(sandbox, project):
    with pytest.raises(Refused, match="Permission denied"):
        sandbox.run("true", network=True)
    assert [run.state for run in sandbox.history()] == ["refused"]


# --- what comes out ---


@sandboxed
def test_a_run_tells_everything_of_the_contract(sandbox, project):
    run = sandbox.run("echo out; echo err >&2; echo x > f; exit 3")
    assert (run.stdout, run.stderr, run.output) == ("out\n", "err\n", "out\nerr\n")
    assert (run.exit_code, run.state, run.timed_out, run.sandboxed, run.network) == (3, "applied", False, True, "none")
    assert (run.project, run.cwd, run.output_truncated, run.blocked) == (str(project), str(project), False, ())
    assert run.duration_s > 0
    assert run.id == run.run
    (change,) = run.changes
    assert (change.path, change.root, change.change, change.kind) == ("f", str(project), "added", "file")
    assert (change.verdict, change.reason, change.flags) == ("applied", "", ())
    assert set(run.as_dict()) >= {
        "run", "project", "command", "cwd", "state", "exit_code", "timed_out", "sandboxed", "network", "duration_s",
        "output", "output_truncated", "changes", "blocked",
    }  # fmt: skip


@sandboxed
def test_the_history_tells_runs_as_they_were_told_the_latest_first(sandbox, project):
    runs = [sandbox.run(f"echo {number}; echo {number} > f{number}; mkdir d{number}; rm -rf d0") for number in range(3)]
    back = sandbox.undo(runs[2])
    told = sandbox.history()
    assert [run.id for run in told] == [back.id, *(run.id for run in reversed(runs))]
    assert [run.state for run in told] == ["applied", "undone", "applied", "applied"]
    for run, kept in zip(runs[:2], reversed(told[2:]), strict=True):
        assert {**kept.as_dict(), "state": ""} == {**run.as_dict(), "state": ""}
    assert (told[0].act, told[0].of) == ("undo", runs[2].id)
    assert [run.id for run in sandbox.history(limit=2)] == [back.id, runs[2].id]


@sandboxed
def test_runs_are_named_by_id_by_a_beginning_of_it_or_as_the_last(sandbox, project):
    run = sandbox.run("echo x > f")
    assert sandbox.undo(run.id[:-2]).of == run.id
    second = sandbox.run("echo x > f")
    assert sandbox.undo().of == second.id
    with pytest.raises(BadRequest, match="no run NOSUCH"):
        sandbox.undo("NOSUCH")
    with pytest.raises(BadRequest, match="several runs begin with 0"):
        sandbox.undo("0")


@sandboxed
def test_a_run_of_another_project_is_none_of_ours(home, test_directory):
    for name in ("one", "two"):
        (test_directory / name).mkdir()
    with Sandbox(test_directory / "one") as one, Sandbox(test_directory / "two") as two:
        run, held = one.run("echo x > f"), one.run("echo y > g", apply="hold")
        for act in (lambda: two.undo(run), lambda: two.apply(held), lambda: two.discard(held)):
            with pytest.raises(BadRequest, match="there is no run "):
                act()
        assert (test_directory / "one/f").exists()
        assert two.history() == []


WRITER = """
import os, time
os.write(1, b"x\\xe2\\x98"); os.write(2, b"\\xf0")
while not os.path.getsize({go!r}): time.sleep(0.01)
os.write(1, b"\\x83y\\xff"); os.write(2, b"\\x9d\\x84\\x9e")
"""


@sandboxed
def test_output_is_told_as_it_comes_and_no_character_is_ever_cut(sandbox, project, test_directory):
    go, told = test_directory / "go", []
    go.touch()  # now: what appears later is not seen through a view

    def on_output(stream, text):
        told.append((stream, text))
        go.write_text("go")

    command = ["python3", "-I", "-S", "-c", WRITER.format(go=str(go))]
    run = sandbox.run(command, on_output=on_output, timeout=LONG_S)
    assert [text for stream, text in told if stream == "stdout"] == ["x", "☃y\ufffd"]
    assert [text for stream, text in told if stream == "stderr"] == ["𝄞"]
    assert (run.stdout, run.stderr) == ("x☃y\ufffd", "𝄞")


@sandboxed
def test_a_character_that_never_ends_is_told_at_the_end(sandbox, project):
    told = []
    run = sandbox.run("printf 'x\\303'", on_output=lambda _stream, text: told.append(text))
    assert run.stdout == "x\ufffd"
    assert "".join(told) == run.stdout


@sandboxed
def test_every_byte_printed_is_told(sandbox, project):
    told = []
    run = sandbox.run("seq 200000", on_output=lambda _stream, text: told.append(text))
    assert "".join(told) == "".join(f"{number}\n" for number in range(1, 200_001))
    assert run.output_truncated
    assert run.stdout.startswith("1\n2\n")
    assert run.stdout.endswith("199999\n200000\n")
    assert "left out" in run.stdout


@sandboxed
def test_changes_are_told_while_the_command_runs(sandbox, project, test_directory):
    go, told = test_directory / "go", []
    go.touch()  # now: what appears later is not seen through a view

    def on_change(what, path):
        told.append((what, path))
        go.write_text("go")

    run = sandbox.run(f"echo x > f; until [ -s {go} ]; do sleep 0.01; done", on_change=on_change, timeout=LONG_S)
    assert not run.timed_out
    assert [(what, path, path.root) for what, path in told] == [("added", "f", str(project))]
    assert [change.path for change in run.changes] == ["f"]


@sandboxed
def test_a_listener_that_fails_ends_the_command_and_what_it_wrote_is_held(sandbox, project):
    def on_output(_stream, _text):
        raise RuntimeError("the listener's own trouble")

    with pytest.raises(RuntimeError, match="own trouble"):
        sandbox.run(f"echo x > f; echo ready; sleep {LONG}.11", on_output=on_output)
    gc.collect()
    assert not left_over(f"{LONG}.11")
    assert os.listdir(project) == []
    (run,) = sandbox.history()
    assert (run.state, run.reason) == ("held", "on_output raised RuntimeError: the listener's own trouble")
    sandbox.apply(run)
    assert (project / "f").read_text() == "x\n"


@pytest.mark.parametrize("wrong", [{"env": "A=b"}, {"cwd": b"d"}, {"root": 5}])
def test_what_has_a_wrong_type_is_refused_by_its_name(sandbox, wrong):
    (name,) = wrong
    with pytest.raises(BadRequest, match=f"{name} can't be"):
        sandbox.run("true", **wrong)


@sandboxed
def test_a_listener_that_fails_before_anything_was_written_leaves_nothing(sandbox, home):
    with pytest.raises(ZeroDivisionError):
        sandbox.run("echo ready; sleep 60", on_output=lambda _stream, _text: 1 // 0)
    assert sandbox.history()[0].state == "failed"
    assert os.listdir(home / ".local/state/fumehood/runs") == []


@sandboxed
def test_a_listener_that_fails_leaves_no_descriptor_open(sandbox):
    def fails():
        with pytest.raises(ZeroDivisionError):
            sandbox.run("echo ready; sleep 60", on_output=lambda _stream, _text: 1 // 0)
        gc.collect()

    fails()
    before = open_descriptors()
    fails()
    assert nothing_more_is_open(before)


# --- it ends, and everything with it ---


@sandboxed
def test_the_time_limit_ends_everything_and_keeps_what_was_printed(sandbox, project):
    line = (
        "trap '' TERM INT HUP; echo x > f; echo before; echo err >&2;"
        f" (trap '' TERM; sleep {LONG}.12) & setsid sleep {LONG}.12 & sleep {LONG}.12"
    )
    run = with_enough_time(lambda limit: sandbox.run(line, timeout=limit), lambda run: run.stderr)
    assert (run.exit_code, run.timed_out, run.stdout, run.stderr) == (124, True, "before\n", "err\n")
    assert not left_over(f"{LONG}.12", patience_s=0.0)
    assert (run.state, run.reason) == ("held", "ended by the time limit")
    assert not (project / "f").exists()
    assert sandbox.history()[0].timed_out


@sandboxed
def test_a_time_limit_that_is_not_reached_changes_nothing(sandbox, project):
    run = sandbox.run("echo x", timeout=LONG_S)
    assert (run.exit_code, run.timed_out, run.stdout) == (0, False, "x\n")


@sandboxed
@pytest.mark.parametrize(
    "command",
    [
        f"sleep {LONG}.13 & echo done",
        f"(sleep {LONG}.13 >&- 2>&- <&-) & echo done",
        f"setsid nohup sleep {LONG}.13 > /dev/null 2>&1 & echo done",
        f"(trap '' TERM HUP; while :; do sleep {LONG}.13; done) & echo done",
    ],
    ids=["keeps the pipe open", "closes its output", "has a session of its own", "ignores signals"],
)
def test_a_background_child_dies_with_the_run(sandbox, project, command):
    run = sandbox.run(command, timeout=LONG_S)
    assert not run.timed_out
    assert (run.exit_code, run.stdout) == (0, "done\n")
    assert not left_over(f"{LONG}.13", patience_s=0.0)


@sandboxed
def test_a_command_that_closes_its_output_is_waited_for(sandbox, project):
    run = sandbox.run("echo first; exec >&- 2>&-; sleep 0.1; touch late; exit 7", timeout=LONG_S)
    assert (run.exit_code, run.stdout) == (7, "first\n")
    assert (project / "late").exists()
    assert sandbox.run(f"exec >&- 2>&-; sleep {LONG}.14", timeout=0.3).timed_out
    assert not left_over(f"{LONG}.14", patience_s=0.0)


@sandboxed
def test_no_descriptor_is_left_open_by_runs_and_undos(sandbox, project):
    sandbox.undo(sandbox.run("echo x > f"))
    before = open_descriptors()
    for number in range(5):
        run = sandbox.run(f"mkdir d; echo {number} > d/f; mkfifo d/fifo; head -c 100000 /dev/zero", stdin="x")
        sandbox.undo(run)
    gc.collect()
    assert nothing_more_is_open(before)


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("executable", "")])
def test_a_packed_program_is_not_started_once_more_as_the_launcher(home, project, monkeypatch, name, value):
    monkeypatch.setattr(sys, name, value, raising=False)
    monkeypatch.setattr(launcher, "_shared", None)
    with Sandbox(project) as sandbox, pytest.raises(LaunchFailed, match="not run by a Python interpreter"):
        sandbox.run("true")


@sandboxed
def test_the_next_run_works_after_the_launcher_was_killed(sandbox, project):
    sandbox.run("true")
    process = launcher.shared()._process
    process.kill()
    process.wait()
    assert sandbox.run("echo x > f").state == "applied"


@sandboxed
def test_a_launcher_killed_meanwhile_takes_its_command_along(sandbox, project):
    sandbox.run("true")
    with pytest.raises(LaunchFailed):
        sandbox.run(
            f"echo x > f; echo ready; sleep {LONG}.15",
            on_output=lambda _stream, _text: launcher.shared()._process.kill(),
        )
    assert not left_over(f"{LONG}.15")
    assert sandbox.history()[0].state == "held"
    assert os.listdir(project) == []
    assert sandbox.run("echo x > g").state == "applied"


@sandboxed
def test_a_launcher_that_is_about_to_end_is_not_asked(sandbox, monkeypatch):
    sandbox.run("true")
    process = launcher.shared()._process
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with monkeypatch.context() as patch:
        patch.setattr(process, "poll", lambda: None)  # as between the moment when its files are closed and its end
        # What waits for the next launch ends with it, a moment later, and has the same socket until then.
        assert eventually(lambda: launcher.shared()._process is not process)
    assert sandbox.run("true").exit_code == 0


def program(code, *arguments):
    """Start a program of its own that uses the library."""
    text = f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n" + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@sandboxed
def test_a_program_that_is_killed_takes_its_sandboxes_along(home, project):
    running = program(
        """
        import os
        from fumehood import Sandbox
        long = f"7{os.getppid():07d}.16"
        Sandbox(sys.argv[1]).run(
            f"echo x > f; (sleep {long} &); echo ready; sleep {long}",
            on_output=lambda stream, text: print(text, flush=True),
        )
        """,
        project,
    )
    with running:
        assert running.stdout.readline() == "ready\n"
        assert processes(f"{LONG}.16")
        running.send_signal(signal.SIGKILL)
    assert not left_over(f"{LONG}.16")
    assert os.listdir(project) == []
    with Sandbox(project) as sandbox:
        assert sandbox.run("echo y > g").state == "applied"


@sandboxed
def test_a_forked_child_does_not_keep_its_parents_sandboxes_alive(home, project):
    running = program(
        """
        import os, signal, threading
        from fumehood import Sandbox
        def fork(stream, text):
            child = os.fork()
            if child == 0:
                signal.pause()
            print(child, flush=True)
        Sandbox(sys.argv[1]).run(f"echo ready; sleep 7{os.getppid():07d}.18", on_output=fork)
        """,
        project,
    )
    child = int(running.stdout.readline())
    try:
        assert processes(f"{LONG}.18")
        running.kill()
        assert not left_over(f"{LONG}.18")
    finally:
        os.kill(child, signal.SIGKILL)
        running.communicate()


@pytest.mark.long
@sandboxed
def test_fifty_mebibytes_of_output_stay_out_of_memory(home, project):
    running = program(
        """
        import resource
        from fumehood import Sandbox
        sandbox = Sandbox(sys.argv[1])
        sandbox.run("true")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        told = 0
        def on_output(stream, text):
            global told
            told += len(text) * (stream == "stdout")
        run = sandbox.run("head -c 52428800 /dev/zero | tr '\\\\0' x; echo end >&2", on_output=on_output)
        print(told, len(run.stdout) < 2**20, run.output_truncated, run.stderr.strip())
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """,
        project,
    )
    out, err = running.communicate(timeout=LONG_S)
    first, grown = out.splitlines()
    assert first == f"{50 << 20} True True end", err
    assert int(grown) < 10_000
    saved = list((home / ".local/state/fumehood/outputs").iterdir())
    assert [path.stat().st_size for path in saved] == [50 << 20]


@sandboxed
def test_output_beyond_the_limit_is_counted_and_not_saved(home, project):
    with Sandbox(project, Policy(output_limit=1 << 20)) as sandbox:
        run = sandbox.run("head -c 3000000 /dev/zero | tr '\\0' x; printf end")
        assert run.output_truncated
        assert run.stdout.endswith("xend")
        (saved,) = (home / ".local/state/fumehood/outputs").iterdir()
        assert saved.stat().st_size == 1 << 20
        assert sandbox.history()[0].output_truncated


@sandboxed
def test_a_program_may_fork_after_using_the_library(home, project):
    running = program(
        """
        import os
        from fumehood import Sandbox
        sandbox = Sandbox(sys.argv[1])
        sandbox.run("echo first > first")
        child = os.fork()
        if child == 0:
            with Sandbox(sys.argv[1]) as own:
                print(own.run("echo child > child; echo child").state, flush=True)
            os._exit(0)
        print(sandbox.run("echo parent > parent").state, flush=True)
        status = os.waitpid(child, 0)[1]
        print(status, sandbox.run("ls").stdout.split(), len(sandbox.history()))
        """,
        project,
    )
    out, err = running.communicate(timeout=LONG_S)
    assert out.splitlines() == ["applied", "applied", "0 ['child', 'first', 'parent'] 4"], err


# --- many at once ---

IN_FLIGHT = 50


@pytest.mark.long
@sandboxed
@pytest.mark.once
@pytest.mark.alone
@pytest.mark.parametrize("projects", [1, 5])
def test_fifty_runs_in_flight_from_threads(home, test_directory, projects):
    go, ready, results = test_directory / "go", [], []
    go.touch()  # now: what appears later is not seen through a view
    tops = [test_directory / f"project{number}" for number in range(projects)]
    for top in tops:
        top.mkdir()
    boxes = [Sandbox(top) for top in tops]

    def on_output(_stream, text):
        ready.append(text)
        if len(ready) == IN_FLIGHT:
            go.write_text("go")

    def work(number):
        command = f"echo {number} > f{number}; echo {number}; until [ -s {go} ]; do sleep 0.05; done; echo {number} >&2"
        try:
            told = None if go.stat().st_size else on_output
            results.append((number, boxes[number % projects].run(command, on_output=told)))
        finally:
            go.write_text("go")  # also when it failed: the others wait for it

    threads = [threading.Thread(target=work, args=(number,)) for number in range(IN_FLIGHT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == IN_FLIGHT
    for number, run in results:
        assert (run.state, run.stdout, run.stderr) == ("applied", f"{number}\n", f"{number}\n")
        assert (tops[number % projects] / f"f{number}").read_text() == f"{number}\n"
    assert sum(len(os.listdir(top)) for top in tops) == IN_FLIGHT
    for number, run in results[::5]:
        boxes[number % projects].undo(run)
    assert sum(len(os.listdir(top)) for top in tops) == IN_FLIGHT * 4 // 5
    for box in boxes:
        box.close()


@pytest.mark.long
@sandboxed
@pytest.mark.once
@pytest.mark.alone
@pytest.mark.parametrize("projects", [1, 5])
def test_fifty_runs_in_flight_from_asyncio(home, test_directory, projects):
    go, ready = test_directory / "go", []
    go.touch()  # now: what appears later is not seen through a view
    tops = [test_directory / f"project{number}" for number in range(projects)]
    for top in tops:
        top.mkdir()
    boxes = [Sandbox(top) for top in tops]

    def on_output(stream, text):
        if stream == "stdout":
            ready.append(text)
        if len(ready) == IN_FLIGHT:
            go.write_text("go")

    async def work(number):
        command = f"echo {number} > f{number}; echo {number}; until [ -s {go} ]; do sleep 0.05; done"
        try:
            return await boxes[number % projects].arun(command, on_output=on_output)
        finally:
            go.write_text("go")  # also when it failed: the others wait for it

    async def main():
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.01)

        heart = asyncio.create_task(beat())
        runs = await asyncio.gather(*(work(number) for number in range(IN_FLIGHT)))
        heart.cancel()
        return runs, beats

    runs, beats = asyncio.run(main())
    assert [(run.state, run.stdout) for run in runs] == [("applied", f"{number}\n") for number in range(IN_FLIGHT)]
    assert beats > 10, "the event loop was blocked"
    assert sum(len(os.listdir(top)) for top in tops) == IN_FLIGHT
    for box in boxes:
        box.close()


@sandboxed
def test_arun_takes_what_run_takes_and_nothing_else(sandbox, project):
    async def main():
        told = []
        run = await sandbox.arun(
            ["sh", "-c", "cat; pwd; exit 4"], cwd="/usr", stdin="in\n", timeout=60, apply="hold",
            on_output=lambda _stream, text: told.append(text), on_change=None, network=False,
        )  # fmt: skip
        assert (run.exit_code, run.stdout, "".join(told)) == (4, "in\n/usr\n", "in\n/usr\n")
        with pytest.raises(TypeError, match="colour"):
            await sandbox.arun("true", colour="blue")
        with pytest.raises(BadRequest, match="empty"):
            await sandbox.arun("")
        with pytest.raises(Refused):
            await sandbox.arun("true", network=True)

    asyncio.run(main())


@sandboxed
def test_cancelling_ends_the_command_and_keeps_its_record(sandbox, project):
    async def main():
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        task = asyncio.create_task(
            sandbox.arun(
                f"echo ready; (sleep {LONG}.17 &); sleep {LONG}.17",
                on_output=lambda *_: loop.call_soon_threadsafe(ready.set),
            )
        )
        await ready.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not left_over(f"{LONG}.17", patience_s=0.0)
    (run,) = sandbox.history()
    assert (run.stdout, run.exit_code, run.timed_out) == ("ready\n", 130, False)
    assert sandbox.run("echo x > f").state == "applied"


@sandboxed
def test_a_run_can_be_named_by_its_number_and_what_is_none_is_refused(sandbox, project):
    run = sandbox.run("echo x > f")
    assert "+x" in sandbox.diff(run.number)
    sandbox.undo(run.number)
    assert sandbox.redo(run.number).state == "applied"
    assert sandbox.find(run.number).run == sandbox.find(run).run == run.run
    for path in ("f", Path("f"), ["f"], [project / "f"]):
        assert "+x" in sandbox.diff(run, path)
    with pytest.raises(BadRequest, match="there is no output"):
        sandbox.output(run, "command")
    for wrong in (None, True, 1.0, b"last", ["last"]):
        for use in (sandbox.undo, sandbox.redo, sandbox.apply, sandbox.discard, sandbox.stop, sandbox.output):
            with pytest.raises(BadRequest, match="is not a run"):
                use(wrong)


@sandboxed
def test_a_closed_sandbox_says_so_and_others_go_on(home, project):
    with Sandbox(project) as first, Sandbox(project) as second:
        first.run("echo x > f")
        first.close()
        for use in (lambda: first.run("true"), first.history, first.undo, lambda: asyncio.run(first.arun("true"))):
            with pytest.raises(BadRequest, match="this sandbox is closed"):
                use()
        first.close()
        assert second.run("echo y > f").state == "applied"
        assert len(second.history()) == 2


@sandboxed
def test_a_run_can_be_pickled_wherever_it_came_from(home, project):
    with Sandbox(project) as sandbox:
        run = sandbox.run("echo x > f; mkdir d; echo hi")
        pickled = [pickle.dumps(each) for each in (run, *sandbox.history(), sandbox.find())]
    for each in pickled:
        again = pickle.loads(each)
        assert again.as_dict() == run.as_dict()
        assert [change.after.text() for change in again.changed] == [change.after.text() for change in run.changed]


LASTING = "echo x > f; echo begun; exec sleep 100"


@sandboxed
def test_closing_ends_what_other_threads_run_and_waits_for_its_record(home, project):
    begun, runs = threading.Event(), []
    with Sandbox(project) as sandbox:
        thread = threading.Thread(
            target=lambda: runs.append(sandbox.run(LASTING, on_output=lambda *_output: begun.set()))
        )
        thread.start()
        assert begun.wait(LONG_S)
        began = time.monotonic()
    thread.join(LONG_S)
    assert time.monotonic() - began < 30
    (run,) = runs
    assert (run.state, run.reason, run.exit_code) == ("held", "ended by the program that asked for it", 130)
    with Sandbox(project) as sandbox:
        assert (sandbox.find(run).state, sandbox.find(run).exit_code) == ("held", 130)
        assert not (project / "f").exists()


@sandboxed
@pytest.mark.parametrize("in_loop", [True, False])
def test_closing_ends_what_tasks_run_even_in_their_own_loop(home, project, in_loop):
    async def program():
        begun = asyncio.Event()

        async def listen(_stream, _text):
            begun.set()
            await asyncio.sleep(0.1)

        sandbox = Sandbox(project)
        task = asyncio.create_task(sandbox.arun(f"echo x > f; seq 9; {LASTING}", on_output=listen))
        await begun.wait()
        if in_loop:
            sandbox.close()
        else:
            await asyncio.to_thread(sandbox.close)
        return await task

    run = asyncio.run(asyncio.wait_for(program(), LONG_S))
    assert (run.state, run.reason) == ("held", "ended by the program that asked for it")


@sandboxed
def test_a_sandbox_is_not_closed_by_what_its_command_waits_for(home, project):
    with Sandbox(project) as sandbox:
        with pytest.raises(BadRequest, match="can't be closed in a function that its command calls"):
            sandbox.run("echo x", on_output=lambda *_output: sandbox.close())
        assert sandbox.run("true").exit_code == 0


@pytest.mark.parametrize(
    "options",
    [
        {"env": {"A": "x\0y"}}, {"env": {"A=B": "x"}}, {"env": {"": "x"}}, {"env": {1: "x"}}, {"env": {"A": "\ud800"}},
        {"timeout": "5"}, {"timeout": -1}, {"timeout": float("nan")}, {"timeout": True}, {"timeout": 1e9},
        {"stdin": 5}, {"cwd": 5}, {"cwd": "a\0b"}, {"root": 5}, {"network": 5}, {"network": [5]},
    ],
    ids=repr,
)  # fmt: skip
def test_what_can_not_be_meant_is_refused_before_anything_runs(sandbox, options):
    with pytest.raises(BadRequest) as refused:
        sandbox.run("true", **options)
    assert refused.value.hint
    assert sandbox.history() == []
    assert sandbox.run("echo it goes on").stdout == "it goes on\n"


@pytest.mark.parametrize(
    "wrong",
    [
        {"home": "hiden"}, {"network": "some"}, {"tmp": 5}, {"mask": ".env"}, {"hosts": "pypi.org"}, {"timeout": "x"},
        {"timeout": -1}, {"timeout": True}, {"output_limit": 1.5}, {"output_limit": "64 MiB"}, {"checkpoint": "x"},
        {"ask_timeout": "x"}, {"playground": 1}, {"limits": 5},
        {"rules": {"hold": []}}, {"mask": ["x\0"]}, {"hosts": [5]}, {"tools": "x"}, {"profiles": [5]}, {"root": ""},
    ],
    ids=repr,
)  # fmt: skip
def test_a_policy_that_says_nothing_is_refused_and_not_taken_for_a_wider_one(home, project, wrong):
    (name,) = wrong
    with pytest.raises(BadRequest, match=f"{name} of a policy can't be"):
        Sandbox(project, Policy(**wrong))
    with pytest.raises(BadRequest, match="is not a policy"):
        Sandbox(project, wrong)


@sandboxed
def test_more_words_than_a_kernel_takes_are_said_to_be_too_many(sandbox):
    with pytest.raises(BadRequest, match="the command is too long") as refused:
        sandbox.run(["true", *["x" * 100_000] * 70])
    assert "script" in refused.value.hint


@sandboxed
def test_the_words_of_a_program_may_be_paths(sandbox, project):
    assert sandbox.run([Path("/bin/echo"), project / "a b", "c"]).stdout == f"{project}/a b c\n"


@pytest.mark.parametrize("options", [{"project": b"/tmp"}, {"project": 5}, {"cwd": b"/tmp"}, {"cwd": 5}], ids=repr)
def test_what_is_no_path_is_refused(home, project, options):
    with pytest.raises(BadRequest, match="can't be") as refused:
        Sandbox(**{"project": project, **options})
    assert refused.value.hint == "a path, as text"


@pytest.mark.parametrize("command", [5, b"true", ["true", 5], [], "", "x\0", "echo \ud800", None], ids=repr)
def test_what_is_no_command_is_refused(sandbox, command):
    with pytest.raises(BadRequest):
        sandbox.run(command)
    assert sandbox.history() == []


def test_a_program_that_gives_up_on_a_run_does_not_end_the_launcher(sandbox):
    def gives_up(stream, text):
        raise KeyError(text)

    for _ in range(3):
        with pytest.raises(KeyError):
            sandbox.run("echo one; sleep 0.1; echo two", on_output=gives_up)
        assert sandbox.run("echo on").stdout == "on\n"


@sandboxed
def test_a_project_that_is_gone_is_named(sandbox, project):
    sandbox.run("true")
    project.rmdir()
    for take_its_place in (lambda: None, project.touch):
        take_its_place()
        with pytest.raises(BadRequest, match=f"the project {project} is not there any more"):
            sandbox.run("true")
    project.unlink()
    project.mkdir()
    assert sandbox.run("pwd").output == f"{project}\n"
