"""Ctrl-C ends a long look at what a command changed, or at what an undo would do: nothing is lost, and it is said."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from functools import partial

import pytest

from fumehood import Sandbox
from fumehood.linux import launcher, process
from fumehood.linux.libc import InterruptSafeLock, InterruptsHeld
from fumehood.service import layers as layering
from fumehood.service import restore as restoring
from fumehood.service import running
from fumehood.service import undo as undoing
from fumehood.service.restore import restore
from fumehood.service.settle import INTERRUPTED
from interrupting import lines_of
from patience import LONG_S
from snapshots import snapshot

pytestmark = pytest.mark.namespaces

# The command line, with a Ctrl-C in the middle of the look at what its command changed.
LINE = """
import os, signal, sys
from fumehood.faces.cli.main import main
from fumehood.service import layers, settle
look = layers.scan_layers

def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return look(*arguments)

layers.scan_layers = interrupted
settle._LONG_S = {long_s}
sys.exit(main(["run", *sys.argv[1:], "--", "echo printed; echo new > a"]))
"""


@pytest.fixture(autouse=True)
def _before(project):
    (project / "a").write_text("old\n")


@pytest.fixture
def interrupted(monkeypatch):
    """Have Ctrl-C typed while a function is at work, once."""

    def at(module, name):
        act = getattr(module, name)

        def interrupted(*arguments, **options):
            monkeypatch.setattr(module, name, act)
            os.kill(os.getpid(), signal.SIGINT)
            return act(*arguments, **options)

        monkeypatch.setattr(module, name, interrupted)

    return at


def line(project, *options, long_s):
    script = textwrap.dedent(LINE).format(long_s=long_s)
    return subprocess.run(
        [sys.executable, "-c", script, *options], cwd=project, capture_output=True, text=True, timeout=LONG_S,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def test_what_a_command_wrote_is_kept_and_held_by_the_next_one(sandbox, project, interrupted):
    interrupted(layering, "scan_layers")
    with pytest.raises(KeyboardInterrupt):
        sandbox.run("echo printed; echo new > a; exit 3")
    assert (project / "a").read_text() == "old\n"
    sandbox.run("true")
    run = sandbox.history()[1]
    assert (run.state, run.exit_code, run.output) == ("held", 3, "printed\n")
    assert (run.reason, [change.reason for change in run.changes]) == (INTERRUPTED, [INTERRUPTED])
    assert sandbox.apply(run).state == "applied"
    assert (project / "a").read_text() == "new\n"


def test_it_can_be_interrupted_again_when_it_is_looked_at_once_more(sandbox, project, interrupted):
    for act in (lambda: sandbox.run("echo new > a"), lambda: sandbox.run("true"), lambda: Sandbox(project)):
        interrupted(layering, "scan_layers")
        with pytest.raises(KeyboardInterrupt):
            act()
    with Sandbox(project) as later:
        assert [run.state for run in later.history()] == ["held"]


@pytest.mark.parametrize("options", [(), ("--json",), ("--brief",)])
def test_the_command_line_says_it(project, options):
    done = line(project, *options, long_s=0)
    assert done.returncode == 130
    assert INTERRUPTED in done.stdout + done.stderr
    assert "printed" in done.stdout + done.stderr
    assert (project / "a").read_text() == "old\n"
    with Sandbox(project) as sandbox:
        assert sandbox.history()[0].state == "held"


def test_one_that_comes_right_after_the_command_is_meant_for_that(project):
    done = line(project, long_s=1000)
    assert (done.returncode, "1 change applied" in done.stderr) == (0, True)
    assert (project / "a").read_text() == "new\n"


def test_an_undo_that_is_interrupted_before_it_begins_did_nothing(sandbox, project, interrupted):
    run = sandbox.run("echo new > a; echo b > b")
    left = snapshot(project)
    interrupted(undoing, "find_backups")
    with pytest.raises(KeyboardInterrupt):
        sandbox.undo(run)
    assert snapshot(project) == left
    assert [each.run for each in sandbox.history()] == [run.run]
    sandbox.undo(run)
    assert (project / "a").read_text() == "old\n"


# Ctrl-C before an undo has begun, and when there is no way back any more.
UNDO = """
import os, signal, sys
from fumehood.faces.cli.main import main
from fumehood.service import undo
act = undo.{at}

def interrupted(*arguments, **options):
    os.kill(os.getpid(), signal.SIGINT)
    return act(*arguments, **options)

undo.{at} = interrupted
sys.exit(main(["undo"]))
"""


@pytest.mark.parametrize(("at", "state", "left"), [("find_backups", "applied", "new"), ("_perform", "undone", "old")])
def test_the_command_line_says_that_an_undo_is_done_or_not(sandbox, project, at, state, left):
    run = sandbox.run("echo new > a")
    done = subprocess.run(
        [sys.executable, "-c", UNDO.format(at=at)], cwd=project, capture_output=True, text=True, timeout=LONG_S,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "\nERROR: interrupted\nhint: it was done completely or not at all; fumehood log shows which\n"
    assert (project / "a").read_text() == f"{left}\n"
    assert sandbox.find(run.run).state == state


def test_a_restore_that_is_interrupted_while_it_copies_did_nothing(sandbox, store, known, project, interrupted):
    sandbox.run("echo new > a")
    left = snapshot(project)
    interrupted(restoring, "copy_entry")
    with pytest.raises(KeyboardInterrupt):
        restore(store, known, "a")
    assert snapshot(project) == left
    restore(store, known, "a")
    assert (project / "a").read_text() == "old\n"


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_an_apply_is_finished_before_ctrl_c_ends_a_program_with_threads(sandbox, store, project, part):
    first, second = (sandbox.run(f"echo {text} > {text}", apply="hold") for text in ("b", "c"))
    lines = len(lines_of(lambda: sandbox.apply(first), below="service/apply.py"))
    with pytest.raises(KeyboardInterrupt):
        lines_of(lambda: sandbox.apply(second), interrupt=int(lines * part), below="service/apply.py")
    assert (project / "c").read_text() == "c\n"
    assert store.history.find(second.run).state == "applied"  # not by recovery: nobody asked for that


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets that nobody closed
def test_ctrl_c_cuts_no_word_of_the_launcher_short(sandbox):
    def run():
        try:
            assert sandbox.run("true").exit_code in (0, 130)
        except KeyboardInterrupt:
            return

    for line in range(1, len(lines_of(run, below="linux/launcher.py")) + 1):
        lines_of(run, interrupt=line, below="linux/launcher.py")
        assert not launcher.shared()._process._waitpid_lock.locked()  # else one that died would not be missed
        assert sandbox.run("echo next").stdout == "next\n"
    gc.collect()  # here, where nobody minds them


@pytest.mark.long
@pytest.mark.parametrize("below", ["linux/streams.py", "linux/process.py"])
def test_ctrl_c_at_any_line_leaves_the_streams_of_a_command_in_order(sandbox, below):
    act = partial(sandbox.run, "cat >/dev/null; echo printed", stdin="in", on_output=lambda *_: None)
    lines = lines_of(act, below=below)
    # Of those that come often, the last: more may be done by then.
    for number in sorted({line: number for number, line in enumerate(lines, 1)}.values()):
        with suppress(KeyboardInterrupt):
            lines_of(act, interrupt=number, below=below)
    assert act().output == "printed\n"


@pytest.mark.long
def test_ctrl_c_at_any_line_of_its_end_leaves_a_sandbox_that_can_be_closed(project):
    sandbox = Sandbox(project)
    act = partial(sandbox.run, "true")
    for number in range(1, len(lines_of(act, below="service/started.py")) + 1):
        for _ in range(3):
            with suppress(KeyboardInterrupt):
                lines_of(act, interrupt=number, below="service/started.py")
    sandbox.close()


def test_ctrl_c_leaves_no_lock_locked_wherever_it_comes():
    lock = InterruptSafeLock()
    changed = threading.Condition(lock)

    def interrupt(_number, _frame):
        raise KeyboardInterrupt

    def use_the_lock():
        while True:
            with lock, lock:
                changed.notify_all()

    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        for _ in range(100):
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
                use_the_lock()
            assert not lock._is_owned()
    finally:
        signal.signal(signal.SIGVTALRM, before)


def test_a_process_forked_meanwhile_has_the_handlers_of_before():
    ended, is_held = [], threading.Event()

    def fork():
        is_held.wait()
        child = os.fork()
        if child == 0:
            try:
                signal.raise_signal(signal.SIGINT)
                os._exit(1)
            except KeyboardInterrupt:
                os._exit(130)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    thread = threading.Thread(target=fork)
    thread.start()
    with InterruptsHeld():
        is_held.set()
        thread.join()
    assert ended == [130]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_that_is_interrupted_before_its_command_begins_says_so(sandbox, interrupted):
    interrupted(running, "attend")
    with pytest.raises(KeyboardInterrupt):
        sandbox.run("echo new > a")
    (run,) = sandbox.history()
    assert (run.state, run.reason) == ("failed", "interrupted")


def soon_interrupted(*_output):
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_a_command_of_a_program_in_the_background_can_be_interrupted(project):
    """A shell lets its background jobs ignore Ctrl-C, and a command could not change that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Sandbox(project) as sandbox:
            run = sandbox.run("trap 'echo interrupted' INT; kill -INT $$")
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.output == "interrupted\n"


@pytest.mark.parametrize("apply", ["apply", "whole"])
def test_ctrl_c_ends_the_command_and_the_program_hears_of_it(sandbox, project, apply):
    with pytest.raises(KeyboardInterrupt):
        sandbox.run("echo new > a; echo begun; sleep 1000", apply=apply, on_output=soon_interrupted)
    (run,) = sandbox.history()
    assert (run.exit_code, run.state) == (130, "held" if apply == "apply" else "discarded")
    assert run.reason.startswith("ended by a signal: SIGINT")
    assert (project / "a").read_text() == "old\n"
    assert sandbox.run("echo after > b").state == "applied"


def test_a_program_that_ends_by_a_handler_of_its_own_leaves_a_plain_reason(sandbox, project):
    def end(_number, _frame):
        sys.exit(143)

    before = signal.signal(signal.SIGTERM, end)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(SystemExit):
            sandbox.run("echo new > a; echo begun; sleep 1000", on_output=lambda *_: timer.start())
    finally:
        signal.signal(signal.SIGTERM, before)
    sandbox.run("true")
    run = sandbox.history()[1]
    assert (run.state, run.reason) == ("held", "the program that asked for it ended")
    assert (project / "a").read_text() == "old\n"


def test_a_file_that_ctrl_c_kept_from_being_read_or_written_is_not_said_to_be_out_of_reach(sandbox, monkeypatch):
    attend = process.Attendant.attend

    def interrupted(attendance):
        os.kill(os.getpid(), signal.SIGINT)
        return attend(attendance)

    monkeypatch.setattr(process.Attendant, "attend", interrupted)
    for act in (lambda: sandbox.write_file("a", "new"), lambda: sandbox.read_file("a")):
        with pytest.raises(KeyboardInterrupt):
            act()
