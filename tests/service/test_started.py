"""Commands that a program starts and takes part in: input, output as it comes, a terminal, and every way to end."""

import asyncio
import gc
import gzip
import importlib.util
import io
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import threading
from http.client import HTTPResponse
from pathlib import Path

import pytest

import fumehood
from fumehood import BadRequest, Policy, Refused, Sandbox
from fumehood.linux.process import Attendant
from patience import LONG_S, eventually
from processes import LONG, left_over, processes

CHECKOUT = Path(__file__).resolve().parent.parent.parent
SOURCE = Path(fumehood.__file__).parent.parent
MUCH = 3_000_000  # bytes: more than waits to be read

pytestmark = pytest.mark.namespaces


def until(started, words):
    """Read what is printed until some words are in it."""
    text = ""
    while words not in text:
        more = started.stdout.read()
        assert more, f"it ended after {text!r}"
        text += more
    return text


def test_a_program_talks_to_a_command_and_what_it_wrote_is_applied_at_its_end(sandbox, project):
    line = 'read first; echo "got $first"; cat > rest; echo trouble >&2; exit 3'
    with sandbox.start(line) as started:
        assert [run.run for run in sandbox.running()] == [started.run]
        assert started.stdin.write("one\n") == 4
        assert started.stdout.readline() == "got one\n"
        started.stdin.write("twö\n".encode())
        assert not (project / "rest").exists()
        started.stdin.close()
        run = started.wait()
        assert list(started) == [("stderr", "trouble\n")]
    assert (run.exit_code, run.state, run.output) == (3, "applied", "got one\ntrouble\n")
    assert (project / "rest").read_text() == "twö\n"
    assert started.stdout.read() == started.stdout.readline() == ""
    with pytest.raises(ValueError, match="input is closed"):
        started.stdin.write("too late")
    sandbox.undo(run)
    assert os.listdir(project) == []


@pytest.mark.parametrize(("end", "code"), [("stop", 130), ("kill", 137)])
def test_a_command_that_is_ended_before_it_began_was_ended_and_did_not_fail(sandbox, end, code, monkeypatch):
    attend = Attendant.attend

    def without_status(attendance):
        """A sandbox that is ended while it is made tells no status: a few milliseconds, which nobody meets at will."""
        outcome = attend(attendance)
        return outcome.replace(exit=outcome.exit.replace(status=None))

    monkeypatch.setattr(Attendant, "attend", without_status)
    run = getattr(sandbox.start(f"sleep {LONG}.32"), end)()
    assert (run.reason, run.exit_code, run.changes) == ("ended by fumehood stop", code, ())
    with pytest.raises(fumehood.LaunchFailed):
        sandbox.run("true")


@pytest.mark.long
def test_an_event_loop_talks_to_a_command_and_goes_on_meanwhile(sandbox, project):
    async def main():
        async with await sandbox.astart("cat; echo x > f; echo end >&2") as started:
            waiting = asyncio.create_task(started.stdout.areadline())
            await asyncio.sleep(0)
            assert not waiting.done()
            await started.stdin.awrite("a\nb\nc")
            assert await waiting == "a\n"
            started.stdin.close()
            assert [line async for line in started.stdout] == ["b\n", "c"]
            assert [piece async for piece in started] == [("stderr", "end\n")]
            assert (await started).state == "applied"
        async with await sandbox.astart(f"sleep {LONG}.31") as started:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(started.stdout.aread(), 0.01)
        return (await started).reason

    assert asyncio.run(main()) == "ended by fumehood stop"
    assert (project / "f").read_text() == "x\n"
    assert not left_over(f"{LONG}.31", patience_s=0.0)


def test_a_question_that_nobody_waits_for_any_more_is_closed_and_nothing_runs(home, project):
    async def main():
        asked = asyncio.Event()

        async def ask(_question):
            asked.set()
            await asyncio.sleep(LONG_S)

        with Sandbox(project, ask=ask) as sandbox:
            starting = asyncio.create_task(sandbox.astart("echo x > f", network=True))
            await asked.wait()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert await asyncio.to_thread(eventually, sandbox.history)
            return sandbox.history()[0].state

    assert asyncio.run(main()) == "refused"
    assert os.listdir(project) == []


@pytest.mark.long
@pytest.mark.parametrize("how", ["stop", "kill", "leave", "forget", "close the sandbox", "from elsewhere"])
def test_a_command_that_is_ended_is_gone_and_what_it_wrote_is_held(home, project, how):
    with Sandbox(project) as sandbox, Sandbox(project) as other:
        started = sandbox.start(f"echo x > f; echo ready; trap '' INT; sleep {LONG}.32")
        name = started.run
        assert started.stdout.readline() == "ready\n"
        assert processes(f"{LONG}.32")
        if how in ("stop", "kill"):
            assert getattr(started, how)().state == "held"
        elif how == "leave":
            with started:
                pass
        elif how == "forget":
            del started
            gc.collect()
            assert eventually(lambda: other.find(name).state == "held")
        elif how == "from elsewhere":
            other.stop(name)
        else:
            sandbox.close()
        run = other.find(name)
        assert (run.state, run.reason) == ("held", "ended by fumehood stop")
        assert not left_over(f"{LONG}.32", patience_s=0.0)
        assert not (project / "f").exists()


def test_a_stopped_command_may_end_by_itself(sandbox, project):
    started = sandbox.start("trap 'echo bye; exit 5' INT; echo ready; while :; do sleep 0.01; done")
    assert started.stdout.readline() == "ready\n"
    run = started.stop()
    assert run.stdout == "ready\nbye\n"
    assert started.stop() is started.kill() is run


def test_a_terminal_has_the_size_that_the_program_says_and_a_repl_answers_there(sandbox, project):
    with sandbox.start(["python3", "-q"], terminal=(100, 40), env={"TERM": "dumb"}) as repl:
        until(repl, ">>> ")
        repl.stdin.write("6 * 7\n")
        until(repl, "42\r\n>>> ")
        repl.stdin.write("import os; open('f', 'w').write(str(os.get_terminal_size(0)))\n")
        until(repl, ">>> ")
        repl.resize(55, 11)
        repl.stdin.write("os.get_terminal_size(0).columns + 1000\n")
        until(repl, "1055\r\n>>> ")
        repl.stdin.close()
        run = repl.wait()
    assert (run.exit_code, run.state, run.one_stream) == (0, "applied", True)
    assert (project / "f").read_text() == "os.terminal_size(columns=100, lines=40)"
    assert repl.stderr.read() == ""


def test_a_slow_reader_makes_the_command_wait_and_misses_nothing(sandbox, project):
    started = sandbox.start(f"head -c {MUCH} /dev/zero; touch written; echo end >&2", text=False)
    # It would have ended, were it not made to wait.
    assert started.stdout.read(5) == bytes(5)
    waiting = started._dialogue.outputs["stdout"]
    assert eventually(lambda: waiting.is_full)
    assert waiting._size < MUCH / 2
    assert started.is_running
    assert sum(map(len, iter(started.stdout.read, b""))) == MUCH - 5
    assert started.stderr.readline() == b"end\n"
    assert started.wait().exit_code == 0


def test_what_nobody_reads_keeps_nobody_waiting_and_is_told_when_it_is_missed(sandbox, project):
    line = f"read go; head -c {MUCH} /dev/zero | tr '\\0' x >&2; echo end"
    started = sandbox.start(line)
    started.stdin.write("go\n")
    assert started.stdout.readline() == "end\n"  # though its errors are not read
    run = started.wait()
    assert run.stdout == "end\n"
    assert len(sandbox.output(run, "stderr")) == MUCH
    with pytest.raises(BadRequest, match="bytes of stderr were printed while nobody read them"):
        list(started.stderr)


def test_one_thread_may_wait_while_another_reads_and_a_third_writes(sandbox, project):
    started = sandbox.start("cat", text=False)
    sizes = []

    def read():
        sizes.extend(map(len, iter(started.stdout.read, b"")))

    def write():
        started.stdin.write(bytes(MUCH))
        started.stdin.close()

    threads = [threading.Thread(target=each) for each in (read, write)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: sizes)
    run = started.wait()
    for thread in threads:
        thread.join()
    assert (run.exit_code, sum(sizes)) == (0, MUCH)


def test_nothing_that_keeps_a_command_from_running_is_kept_quiet(sandbox, project):
    with pytest.raises(BadRequest, match="empty"):
        sandbox.start("")
    with pytest.raises(Refused):
        sandbox.start("true", network=True)
    with pytest.raises(BadRequest, match="a terminal can't be 80"):
        sandbox.start("true", terminal=80)
    with pytest.raises(TypeError, match="start takes no stdin"):
        sandbox.start("true", stdin="x")
    with pytest.raises(BadRequest, match="does not exist"):
        sandbox.start("true", cwd="nowhere").wait()
    started = sandbox.start("cat")
    with pytest.raises(TimeoutError):
        started.wait(timeout=0.01)
    for wrong in ("x", -1, float("nan"), float("inf")):
        with pytest.raises(BadRequest, match="timeout can't be"):
            started.wait(timeout=wrong)
    with pytest.raises(BadRequest, match="'x' bytes can't be read"):
        started.stdout.read("x")
    with pytest.raises(BadRequest, match="no terminal"):
        started.resize(80, 24)
    with sandbox.start("cat", terminal=True) as with_terminal, pytest.raises(BadRequest, match="a terminal can't be"):
        with_terminal.resize("wide", 24)
    started.kill()
    with pytest.raises(BrokenPipeError):
        started.stdin.write("x")


def test_nothing_is_left_open_by_started_commands(sandbox, project):
    def talk():
        with sandbox.start("cat") as started:
            started.stdin.write("x")
        with sandbox.start("cat", terminal=True) as started:
            started.stdin.write("x\n")
        sandbox.start("cat")
        asyncio.run(sandbox.arun("echo x", on_output=print, on_change=print))

    def opened():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    talk()
    assert eventually(lambda: not sandbox.running())
    before = opened()
    for _ in range(3):
        talk()
    assert eventually(lambda: not sandbox.running() and opened() <= before)


def test_a_child_that_the_program_forks_keeps_no_input_open_and_ends_no_command(home, project):
    code = """
        import os, sys, signal
        from fumehood import BadRequest, Sandbox
        with Sandbox(sys.argv[1]) as sandbox:
            started = sandbox.start("cat; echo end")
            child = os.fork()
            if child == 0:
                try:
                    started.wait()
                except BadRequest as error:
                    print(error, flush=True)
                del started
                os.close(1)
                signal.pause()
            started.stdin.close()
            print(started.stdout.readline().strip(), started.wait().exit_code, flush=True)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            sandbox.start("echo x > f; echo ready; cat").stdout.readline()
        last = Sandbox(sys.argv[1])
        started = last.start("echo x > g; echo ready; cat")
        started.stdout.readline()
    """
    text = f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n" + textwrap.dedent(code)
    command = [sys.executable, "-c", text, str(project)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    told = ["a started command belongs to the process that started it", "end 0"]
    assert sorted(done.stdout.splitlines()) == told, done.stderr
    # What still ran when the program ended is held, by the program itself.
    with Sandbox(project) as sandbox:
        assert [(run.state, run.reason) for run in sandbox.history()[:2]] == [("held", "ended by fumehood stop")] * 2


SERVER = """
import sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")

@server.tool()
def note(text: str) -> str:
    "Write a note."
    with open("notes.txt", "a") as file:
        file.write(text + chr(10))
    print("noted", file=sys.stderr)
    return text.upper() * 200_000

server.run()
"""


@pytest.mark.long
def test_an_mcp_server_runs_in_the_hood_and_the_sdks_client_calls_it(home, project):
    spec = importlib.util.spec_from_file_location("mcp_server", CHECKOUT / "examples/mcp_server.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    (project / "server.py").write_text(SERVER)
    config = home / ".config/fumehood"
    config.mkdir()
    (config / "config.toml").write_text(f'show = ["{sys.prefix}"]\n')
    answer = asyncio.run(example.call(str(project), [sys.executable, "server.py"], "note", {"text": "milk"}))
    text, _, changed = answer.partition("\n")
    assert text == "MILK" * 200_000
    assert changed == "applied: added notes.txt"
    assert (project / "notes.txt").read_text() == "milk\n"


# --- the input of a plain run ---


def test_a_run_reads_an_open_file_from_where_it_is_or_what_this_program_reads(sandbox, project, test_directory):
    file = test_directory / "given"
    file.write_bytes(b"first\nsecond\nthird\n")
    with file.open("rb", buffering=0) as opened:
        opened.read(6)
        assert sandbox.run("read line; echo $line", stdin=opened).stdout == "second\n"
    with file.open() as opened:
        assert sandbox.run("cat", stdin=opened).stdout == "first\nsecond\nthird\n"
    for mode in ("r", "rb"):
        with file.open(mode) as opened:
            opened.readline()  # Python reads ahead
            assert sandbox.run("cat", stdin=opened).stdout == "second\nthird\n"
    with file.open() as opened:
        next(opened)
        assert sandbox.run("cat", stdin=opened).stdout == "second\nthird\n"
    reading, writing = os.pipe()
    with open(reading, "rb") as end, open(writing, "wb") as begin:
        begin.write(b"by a pipe")
        begin.close()
        assert sandbox.run("cat", stdin=end).stdout == "by a pipe"
    assert sandbox.run("cat", stdin=io.StringIO("in memory")).stdout == "in memory"
    assert sandbox.run("cat", stdin=b"inherit").stdout == "inherit"
    with file.open("ab") as opened, pytest.raises(BadRequest, match="not open for reading"):
        sandbox.run("cat", stdin=opened)
    with pytest.raises(BadRequest, match="stdin can't be"):
        sandbox.run("cat", stdin=opened)
    code = "import sys; sys.path.insert(0, sys.argv[2]); from fumehood import Sandbox\n"
    code += "print(Sandbox(sys.argv[1]).run('cat', stdin='inherit').stdout)"
    with file.open("rb") as opened:
        command = [sys.executable, "-c", code, str(project), str(SOURCE)]
        done = subprocess.run(command, stdin=opened, capture_output=True, text=True, timeout=LONG_S, check=True)
    assert done.stdout == "first\nsecond\nthird\n\n"


def test_a_run_reads_what_a_file_gives_and_not_what_lies_behind_it(sandbox, test_directory):
    packed, archive = test_directory / "packed.gz", test_directory / "archive.tar"
    packed.write_bytes(gzip.compress(b"unpacked"))
    with tarfile.open(archive, "w") as made:
        made.add(packed, "packed.gz")
    with gzip.open(packed) as file:
        assert sandbox.run("cat", stdin=file).stdout == "unpacked"
    with gzip.open(packed, "rt") as file:
        assert sandbox.run("cat", stdin=file).stdout == "unpacked"
    with tarfile.open(archive) as opened:
        assert sandbox.run("gzip -d", stdin=opened.extractfile("packed.gz")).stdout == "unpacked"
    with tempfile.TemporaryFile(dir=test_directory) as file:
        file.write(b"kept")
        file.seek(1)
        assert sandbox.run("cat", stdin=file).stdout == "ept"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbodynext")
        answer = HTTPResponse(ours)
        answer.begin()  # reads ahead
        assert sandbox.run("cat", stdin=answer).stdout == "body"


def test_a_text_that_a_command_reads_may_hold_any_byte_and_no_half_letter(sandbox):
    assert sandbox.run("od -An -tx1", stdin="\udcff").stdout == " ff\n"
    for wrong in ("\ud800", io.StringIO("\ud800")):
        with pytest.raises(BadRequest, match="surrogate"):
            sandbox.run("cat", stdin=wrong)
    with sandbox.start("cat") as started, pytest.raises(BadRequest, match="surrogate"):
        started.stdin.write("\ud800")


def test_a_terminal_that_no_kernel_has_is_refused(sandbox):
    with pytest.raises(BadRequest, match="a terminal can't be"):
        sandbox.start("true", terminal=(65536, 24))


@pytest.mark.parametrize("name", ["on_output", "on_change"])
def test_a_coroutine_function_is_refused_where_nobody_awaits_it(sandbox, name):
    async def listener(_what, _text):
        pytest.fail("nobody can call this")

    with pytest.raises(BadRequest, match=f"{name} can't be a coroutine function"):
        sandbox.run("true", **{name: listener})
    assert sandbox.history() == []


@pytest.mark.parametrize("face", ["run", "arun", "start", "astart"])
def test_a_coroutine_function_is_not_taken_for_the_wish_to_end_a_command(sandbox, face):
    async def unwanted():
        pytest.fail("nobody can call this")

    with pytest.raises(BadRequest, match="cancelled can't be a coroutine function"):
        asyncio.run(getattr(sandbox, face)("true", cancelled=unwanted))
    assert sandbox.history() == []


@pytest.mark.parametrize(
    ("face", "name"), [("run", "on_output"), ("run", "on_change"), ("run", "cancelled"), ("arun", "cancelled")]
)
def test_what_nobody_awaits_is_refused_when_a_function_returns_it(sandbox, face, name):
    async def later():
        pytest.fail("nobody can call this")

    with pytest.raises(BadRequest, match=f"{name} can't be a coroutine function"):
        asyncio.run(getattr(sandbox, face)(f"echo x | tee f; sleep {LONG}.45", **{name: lambda *_: later()}))
    assert not left_over(f"{LONG}.45")


# --- the functions of an asynchronous program ---


@pytest.mark.parametrize(
    ("face", "name"),
    [(face, name) for face in ("run", "arun", "start", "astart") for name in ("on_output", "on_change", "cancelled")
     if name != "on_output" or "run" in face],
)  # fmt: skip
def test_what_a_function_raises_is_raised_and_the_command_ends_and_what_it_wrote_is_held(sandbox, project, face, name):
    written = threading.Event()

    def fails(*_words):
        if name == "cancelled" and not written.is_set():
            return False
        raise ZeroDivisionError("mine")

    options = {"on_change": lambda *_: written.set(), name: fails}
    line = f"echo x > f; echo ready; sleep {LONG}.44"

    async def main():
        return await (await sandbox.astart(line, **options))

    calls = {
        "run": lambda: sandbox.run(line, **options), "arun": lambda: asyncio.run(sandbox.arun(line, **options)),
        "start": lambda: sandbox.start(line, **options).wait(), "astart": lambda: asyncio.run(main()),
    }  # fmt: skip
    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        calls[face]()
    assert raised.value.__notes__ == [f"raised by {name}"]
    assert not left_over(f"{LONG}.44")
    (run,) = sandbox.history()
    assert (run.state, run.reason) == ("held", f"{name} raised ZeroDivisionError: mine")
    assert [change.path for change in run.changes] == ["f"]
    assert os.listdir(project) == []


def test_the_functions_of_an_event_loop_are_called_in_it_in_order_and_the_command_waits_for_slow_ones(sandbox, project):
    told, threads = [], set()

    async def on_output(stream, text):
        threads.add(threading.current_thread())
        await asyncio.sleep(0.001)
        told.append(text)

    def on_change(what, path):
        threads.add(threading.current_thread())
        told.append((what, path, path.root))

    async def main():
        return await sandbox.arun("seq 300000; echo x > f", on_output=on_output, on_change=on_change)

    run = asyncio.run(main())
    assert threads == {threading.main_thread()}
    assert "".join(each for each in told if isinstance(each, str)) == "".join(f"{each}\n" for each in range(1, 300_001))
    (change,) = run.changes
    assert [each for each in told if isinstance(each, tuple)] == [(change.change, change.path, change.root)]


def test_a_function_of_an_event_loop_that_fails_ends_the_command_and_what_it_wrote_is_held(sandbox, project):
    async def on_output(_stream, _text):
        raise RuntimeError("the listener's own trouble")

    for line in (f"echo x > f; echo ready; sleep {LONG}.33", "echo x > f; echo ready"):
        with pytest.raises(RuntimeError, match="own trouble"):
            asyncio.run(sandbox.arun(line, on_output=on_output))
    assert not left_over(f"{LONG}.33", patience_s=0.0)
    assert os.listdir(project) == []
    reason = "on_output raised RuntimeError: the listener's own trouble"
    assert [(run.state, run.reason) for run in sandbox.history()] == [("held", reason)] * 2


def test_a_cancelled_run_waits_for_no_function_of_the_loop(sandbox, project):
    async def main():
        called = asyncio.Event()

        async def on_output(_stream, _text):
            called.set()
            await asyncio.sleep(LONG_S)

        task = asyncio.create_task(sandbox.arun(f"echo ready; sleep {LONG}.34", on_output=on_output))
        await called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not left_over(f"{LONG}.34", patience_s=0.0)
    assert sandbox.history()[0].reason == "ended by the program that asked for it"


def test_policies_and_sessions_hold_for_what_is_started(home, project):
    (project / "d").mkdir()
    with Sandbox(project, Policy(apply="hold")) as whole:
        sandbox = whole.session("s")
        started = sandbox.start("cd d && echo x > f")
        assert (started.wait().state, started.wait().session) == ("held", "s")
        assert sandbox.run("pwd; cat f").stdout == f"{project}/d\nx\n"


@pytest.mark.long
@pytest.mark.parametrize("waiting", ["wait", "stop", "close", "read"])
def test_a_command_can_not_be_waited_for_in_a_function_that_it_calls(project, waiting):
    sandbox = Sandbox(project)
    refusals: list[str] = []
    began = threading.Event()

    def changed(*_: str) -> None:
        began.wait()
        ways = {"wait": started.wait, "stop": started.stop, "close": sandbox.close, "read": started.stdout.read}
        try:
            ways[waiting]()
        except BadRequest as error:
            refusals.append(error.message)

    started = sandbox.start("echo 1 > f; sleep 1", on_change=changed)
    began.set()
    started.wait()
    assert refusals[0] == f"run {started.run} can't be waited for in a function that it calls"
    sandbox.close()
