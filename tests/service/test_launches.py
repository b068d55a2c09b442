"""What may come in between while a sandbox is being started."""

import asyncio
import itertools
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from fumehood import FumehoodError, LaunchFailed, Policy, Sandbox
from fumehood.core.policy import Profile
from fumehood.errors import OverlayUnavailable
from fumehood.linux import bwrap, hostview, launch, survey
from fumehood.linux.launcher import shared
from fumehood.linux.mounts import View
from fumehood.linux.process import is_init_process
from fumehood.store.places import places
from patience import LONG_S, eventually
from processes import LONG, left_over, nothing_more_is_open, open_descriptors, processes

pytestmark = pytest.mark.namespaces


def failing(times):
    """Start sandboxes, the first ones with a host to show that is no longer so: a file where a directory was."""
    seen = []

    def start(plan, given):
        seen.append(plan.host_view_number)
        if len(seen) <= times:
            wrong = View(target="/usr", sources=("/etc/passwd",))
            plan = plan.replace(mounts=(wrong, *plan.mounts), host_mount_count=plan.host_mount_count + 1)
        return shared().start(plan, given)

    return start, seen


def test_the_host_is_looked_over_again_where_it_is_no_longer_as_it_was(sandbox, project):
    sandbox._hood.start, seen = failing(2)
    run = sandbox.run("cat; ls /usr; echo error >&2; echo x > f", stdin="fed\n")
    assert len(seen) == 3
    assert run.stdout.startswith("fed\n")
    assert "bin" in run.stdout.split()
    assert (run.state, run.stderr, (project / "f").read_text()) == ("applied", "error\n", "x\n")
    assert sandbox.run("ls /usr").exit_code == 0
    assert len(seen) == 4


def test_a_host_that_can_not_be_shown_is_told(sandbox):
    sandbox._hood.start, seen = failing(100)
    with pytest.raises(LaunchFailed, match="showing the host: Not a directory"):
        sandbox.run("true")
    assert len(seen) == 5


@pytest.mark.parametrize("free", [0, 6], ids=["nothing is received", "nothing is forked"])
def test_one_that_the_launcher_can_not_start_ends_no_other(sandbox, free):
    sandbox.run("true")  # the launcher then makes the next one ready
    with sandbox.start("echo ready; read word; echo $word") as started:
        assert started.stdout.readline() == "ready\n"
        process = shared()._process.pid
        before = resource.prlimit(process, resource.RLIMIT_NOFILE)
        taken = {int(fd) for fd in os.listdir(f"/proc/{process}/fd")}
        spare = (fd for fd in itertools.count() if fd not in taken)
        resource.prlimit(process, resource.RLIMIT_NOFILE, (next(itertools.islice(spare, free, None)), before[1]))
        with pytest.raises(LaunchFailed):
            sandbox.run("true")
        resource.prlimit(process, resource.RLIMIT_NOFILE, before)
        started.stdin.write("still here\n")
        assert started.wait().output == "ready\nstill here\n"
    assert sandbox.run("echo well").output == "well\n"
    assert shared()._process.pid == process


def test_one_who_does_not_wait_for_the_launchers_answer_ends_no_other(sandbox):
    sandbox.run("true")
    service = shared()
    plan = launch.Plan(arguments=("/bin/sleep", LONG), environment={}, unsandboxed_cwd="/")
    for waits in (False, True):
        with open(os.devnull, "r+b") as nothing:
            remote = service.start(plan, [nothing.fileno()] * 3)
        if not waits:
            os.kill(service._process.pid, signal.SIGSTOP)
        remote.init()
        if waits:
            assert select.select([remote], [], [], LONG_S)[0]  # it has answered, and nobody reads that
        remote._channel.close()
        os.kill(service._process.pid, signal.SIGCONT)
        assert sandbox.run("echo well").output == "well\n"
    assert shared() is service


def test_what_a_command_left_in_its_home_is_not_looked_at_where_no_more_can_be_open():
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launch.send_and_close(theirs.detach(), [os.open("/", os.O_PATH)])
    running = launch.RunningSandbox(0, -1, mine.detach(), -1)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        assert running._read_report() == ("", -1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.long
def test_many_that_look_the_host_over_at_once(home, project):
    async def main():
        boxes = [Sandbox(project) for _ in range(8)]
        runs = await asyncio.gather(*(box.arun("ls /usr/bin/env") for box in boxes for _ in range(2)))
        for box in boxes:
            box.close()
        return runs

    assert {run.stdout for run in asyncio.run(main())} == {"/usr/bin/env\n"}


@pytest.mark.long
def test_one_that_is_ended_at_any_moment_of_its_start_is_gone(sandbox):
    sandbox.run("true")
    for quarters in range(60):
        run = sandbox.run(f"sleep {LONG}.29", timeout=(quarters or 0.01) / 4000)
        assert run.timed_out
    assert not left_over(f"{LONG}.29")


# Starts a command by the command line or from Python, and is killed at a moment of its start.
KILLED = """
import os, sys
from fumehood import Sandbox
from fumehood.linux import launch, launcher, namespaces
from fumehood.faces.cli.main import command as command_line
face, moment, command = sys.argv[1:]
def die(*given):
    os.kill(program, 9)
program = os.getpid()
if moment == "as soon as it is forked":
    forked, launch.fork_sandbox = launch.fork_sandbox, lambda child: die(forked(child))
    if face == "Python":
        start, launcher.Launcher.start = launcher.Launcher.start, lambda *given: die(start(*given))
else:
    begin = namespaces.UnroutedCounter.begin
    def begin_to_die(self, process, gate):
        if process is not None:
            die()
        begin(self, process, gate)
    namespaces.UnroutedCounter.begin = begin_to_die
if face == "Python":
    Sandbox(".").run(command)
else:
    sys.argv[1:] = ["run", "--", command]
    command_line()
"""


def end_of_last_run(project):
    with Sandbox(project) as sandbox:
        run = sandbox.history()[0]
        assert "begun" not in {change.path for change in run.changes}
        return run.state, run.changes


@pytest.mark.parametrize(
    ("face", "moment"),
    [
        ("Python", "as soon as it is forked"),
        ("the command line", "as soon as it is forked"),
        ("the command line", "when bubblewrap has begun"),
    ],
)
def test_whoever_is_killed_while_a_sandbox_is_made_leaves_no_command_that_runs(home, project, face, moment):
    for _ in range(4):
        line = [sys.executable, "-P", "-c", KILLED, face, moment, f"echo x > begun; sleep {LONG}.31"]
        assert subprocess.run(line, cwd=project, check=False).returncode == -9
        # What was forked may live a moment longer.
        assert eventually(lambda: end_of_last_run(project) in (("failed", ()), ("empty", ())))
        assert not left_over(f"{LONG}.31")


@pytest.fixture
def dying_bubblewrap(home, test_directory, need, monkeypatch):
    """Let bubblewrap be killed when it notes, in the file or by the descriptor, whom it has started."""
    need(shutil.which("strace") is not None, "there is no strace")
    real = bwrap.check_candidates(bwrap.candidates())[0][0].path

    def choose(fault):
        stand_in = test_directory / "bwrap"
        stand_in.write_text(
            f"""#!/bin/sh
            note=$(readlink /proc/$$/fd/8) && case $note in */init) ;; *) exec {real} "$@" ;; esac
            status=$(readlink /proc/$$/fd/3)
            exec strace -o /dev/null --trace=write {fault} {real} "$@"
            """
        )
        stand_in.chmod(0o755)
        monkeypatch.setenv("FUMEHOOD_BWRAP", str(stand_in))

    return choose


NOTHING = '-P "$note" --inject=write:signal=KILL:error=EIO'
A_PART = '-P "$note" --inject=write:signal=KILL'
ALL_BUT_THE_WORD = '-P "$status" --inject=write:signal=KILL:when=2'


@pytest.mark.parametrize("fault", [NOTHING, A_PART, ALL_BUT_THE_WORD])
@pytest.mark.parametrize("face", ["Python", "the command line"])
def test_what_a_bubblewrap_that_died_had_started_is_ended(project, cli, dying_bubblewrap, face, fault):
    dying_bubblewrap(fault)
    command = f"echo x > begun; sleep {LONG}.33"
    if face == "Python":
        with Sandbox(project) as sandbox:
            status = sandbox.run(command).exit_code
    else:
        status = cli("run", "--", command).returncode
    assert status == 137
    assert not (project / "begun").exists()
    assert not left_over(f"{LONG}.33")


@pytest.mark.alone  # whoever else meets a dead bubblewrap would end it first,
@pytest.mark.once  # root also what is an ordinary user's
@pytest.mark.parametrize("fault", [NOTHING, A_PART])
def test_what_was_started_and_not_noted_when_all_died_is_ended(project, dying_bubblewrap, fault):
    dying_bubblewrap(fault)
    command = f"echo x > begun; sleep {LONG}.35"
    slow = f"""
import sys, time
from fumehood.linux import process
process.kill_abandoned_sandboxes = lambda: time.sleep(1000)
from fumehood.faces.cli.main import command
sys.argv[1:] = ["run", "--", {command!r}]
command()
"""
    with subprocess.Popen([sys.executable, "-P", "-c", slow], cwd=project) as process:
        try:
            assert eventually(lambda: any(is_init_process(each) for each in processes(f"{LONG}.35")))
        finally:
            process.kill()
    assert eventually(lambda: end_of_last_run(project) in (("failed", ()), ("empty", ())))
    assert not left_over(f"{LONG}.35")


# --- what is looked up once ---


@pytest.fixture
def surveys(monkeypatch):
    """What the host was looked over for, each time."""
    sights, look_over = [], survey.survey_host

    def counted(sight, written):
        sights.append(sight)
        return look_over(sight, written)

    monkeypatch.setattr(survey, "survey_host", counted)
    return sights


def settle(sandbox, surveys, *lines):
    """Run commands until the host is not looked over for them any more; forget what the cache has of that."""

    def is_settled():
        surveys.clear()
        for line in lines:
            sandbox.run(line)
        return not surveys

    assert eventually(is_settled)
    for kept in Path(places().cache).glob(f"{hostview.CACHE_PREFIX}*"):
        kept.unlink()


@pytest.mark.parametrize("command", ["git status", "make --version"])
def test_a_command_with_a_profile_sees_the_host_as_it_was_looked_over_before(sandbox, surveys, command):
    settle(sandbox, surveys, "true")
    for line in (command, "true", command):
        sandbox.run(line)
    assert not surveys


def test_what_a_profile_masks_is_out_of_sight_for_its_commands_and_looked_over_once(home, project, surveys):
    (home / "notes").write_text("private\n")
    masking = Profile(match=("cat",), settings={"mask": (str(home / "notes"),)})
    with Sandbox(project, policy=Policy(show=(str(home / "notes"),), profiles=(masking,))) as sandbox:
        settle(sandbox, surveys, f"cat {home}/notes", f"head {home}/notes")
        for _ in range(2):
            assert sandbox.run(f"cat {home}/notes").stdout == ""
            assert sandbox.run(f"head {home}/notes").stdout == "private\n"
    assert not surveys


@pytest.mark.parametrize("view", ["hidden", "visible"])
def test_what_is_replaced_in_the_home_costs_no_new_look(home, project, monkeypatch, surveys, view):
    for place in ("bin/tool", ".local/bin/tool", ".cargo/bin/tool"):
        (home / place).parent.mkdir(parents=True)
        (home / place).write_text("#!/bin/sh\n")
        (home / place).chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}/bin:{home}/.local/bin:{home}/.cargo/bin:{os.environ['PATH']}")
    (home / ".claude.json").write_text("{}")
    with Sandbox(project, policy=Policy(home=view)) as sandbox:
        settle(sandbox, surveys, "true")
        for folder in (home, home / ".local", home / ".cargo", home / ".cargo/bin", Path(places().cache)):
            (folder / "new").write_text("{}")
            (folder / "new").rename(folder / ".claude.json")
            (folder / ".claude.json").unlink()
            sandbox.run("touch made")
    assert not surveys


def test_what_another_process_looked_over_holds_when_something_is_replaced_in_the_home(home, project, surveys):
    (home / ".claude.json").write_text("{}")
    with Sandbox(project, policy=Policy(home="visible")) as sandbox:
        settle(sandbox, surveys, "true")
        views = sandbox._hood.surroundings._views
        views.forget()
        sandbox.run("true")
        surveys.clear()
        for _ in range(2):
            (home / "new").write_text("{}")
            (home / "new").rename(home / ".claude.json")
            views.forget()  # as a process that begins
            sandbox.run("true")
    assert not surveys


@pytest.mark.parametrize("view", ["hidden", "visible"])
def test_a_single_file_that_is_shown_and_replaced_is_seen_as_it_is_now(home, project, surveys, view):
    (home / ".ssh").mkdir()
    hosts, notes = home / ".ssh/known_hosts", home / "notes"
    policy = Policy(home=view, unmask=("~/.ssh/known_hosts",), show=(str(notes),))
    hosts.write_text("one\n")
    notes.write_text("one\n")
    with Sandbox(project, policy=policy) as sandbox:
        settle(sandbox, surveys, "true")
        for text in ("two\n", "three\n"):
            for file in (hosts, notes):
                file.with_name("new").write_text(text)
                file.with_name("new").rename(file)
            assert sandbox.run(f"cat {hosts} {notes}").stdout == text * 2


def test_a_secret_behind_a_new_link_is_out_of_sight_at_once(home, project, test_directory, surveys):
    (test_directory / "keys").mkdir()
    (test_directory / "keys/id").write_text("secret\n")
    with Sandbox(project, policy=Policy(home="visible")) as sandbox:
        settle(sandbox, surveys, "true")
        assert sandbox.run(f"cat {test_directory}/keys/id").stdout == "secret\n"
        (home / ".ssh").symlink_to(test_directory / "keys")
        assert sandbox.run(f"cat {test_directory}/keys/id {home}/.ssh/id").stdout == ""


# --- what was done ahead of a launch ---


def test_what_the_host_makes_between_two_runs_is_seen(sandbox, test_directory):
    file = test_directory / "made"
    assert sandbox.run(f"cat {file}").exit_code != 0
    for text in ("one", "two"):
        (test_directory / "other").write_text(text)
        (test_directory / "other").rename(file)
        assert sandbox.run(f"cat {file}").stdout == text
    file.unlink()
    assert sandbox.run(f"cat {file}").exit_code != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system that the host sees")
def test_what_is_mounted_between_two_runs_is_seen_and_not_kept_busy(sandbox, test_directory):
    top = test_directory / "mounted"
    top.mkdir()
    assert sandbox.run(f"ls {top}").stdout == ""
    subprocess.run(["mount", "-t", "tmpfs", "none", top], check=True)
    try:
        (top / "there").touch()
        assert sandbox.run(f"ls {top}").stdout == "there\n"
        time.sleep(0.1)  # for the next one to get ready
        assert sandbox.run(f"ls {top}").stdout == "there\n"
    finally:
        subprocess.run(["umount", top], check=True)
    assert sandbox.run(f"ls {top}").stdout == ""
    assert eventually(lambda: not holding(str(top)))


def holding(point):
    """The processes of the launcher that still have something mounted at a path."""
    found = []
    for child in Path(f"/proc/{shared()._process.pid}/task/{shared()._process.pid}/children").read_text().split():
        with suppress(OSError):  # it has just ended
            if point in Path(f"/proc/{child}/mountinfo").read_text():
                found.append(child)
    return found


def launched():
    """The launcher's children."""
    launcher = shared()._process.pid
    return set(Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split())


def kept_namespaces(process):
    """The mount namespaces that a process keeps from ending."""
    links = set()
    for path in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # it has just been closed
            links.add(os.readlink(path))
    return {link for link in links if link.startswith("mnt:")}


def test_what_waits_for_the_next_launch_keeps_no_mounts_of_a_command_that_runs(sandbox):
    """Else its overlay outlives it, and all that it wrote is copied, after a wait for that."""
    with sandbox.start("echo ready; read word") as started:
        started.stdout.readline()
        assert eventually(lambda: kept_namespaces(shared()._process.pid))
        before = launched()
        sandbox.run("true")
        assert eventually(lambda: len(launched() - before) == 1)
        (waiting,) = launched() - before
        assert eventually(lambda: not kept_namespaces(waiting) & kept_namespaces(shared()._process.pid))
        started.stdin.write("word\n")


def test_other_ways_of_launching_take_turns(home, project):
    wanted = [Policy(capture=way) for way in ("kernel", "copy", "kernel", "fuse", "kernel")]
    for number, policy in enumerate(wanted):
        with Sandbox(project, policy=policy) as sandbox:
            try:
                run = sandbox.run(f"echo {number} > f{number}; ls")
            except OverlayUnavailable:
                continue
            assert (run.capture, run.state) == (policy.capture, "applied")
            assert f"f{number}" in run.stdout
            assert (project / f"f{number}").read_text() == f"{number}\n"


@pytest.mark.parametrize("face", ["library", "command line"])
def test_what_a_sandbox_that_somebody_kills_has_written_is_held(home, project, cli, face):
    command = f"echo half > half; sleep {LONG}.77"
    with Sandbox(project) as sandbox, ThreadPoolExecutor() as pool:
        running = pool.submit(sandbox.run if face == "library" else partial(cli, "run", "--"), command)
        assert eventually(lambda: processes(f"sleep\0{LONG}.77"))
        outermost = [pid for pid in processes(f"sleep {LONG}.77") if b"bwrap" in Path(f"/proc/{pid}/comm").read_bytes()]
        os.kill(min(outermost), signal.SIGKILL)
        running.result(LONG_S)
        (run,) = sandbox.history()
        assert (run.state, run.exit_code, run.reason) == ("held", 137, "ended by a signal: SIGKILL")
    assert not (project / "half").exists()


def test_what_was_made_ready_for_another_is_not_used(home, project):
    (home / "other").write_text("secret")
    with Sandbox(project) as one, Sandbox(project, policy=Policy(mask=("/usr/share",))) as other:
        for _ in range(3):
            assert "doc" in one.run("ls /usr/share").stdout
            time.sleep(0.1)  # for the next one to get ready
            assert other.run("ls /usr/share").exit_code != 0
            time.sleep(0.1)


@pytest.mark.long
@pytest.mark.parametrize("options", [{"session": "agent"}, {}], ids=["in a session", "alone"])
def test_where_descriptors_are_short_no_run_keeps_one_that_it_got(
    home: Path, project: Path, options: dict[str, str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ended = []
    with Sandbox(project, **options) as sandbox:
        sandbox.run("true")
        for count in range(1, 40):
            before = open_descriptors()
            taken = {fd for fd, _ in before}
            free = sorted(set(range(max(taken) + count + 1)) - taken)[:count]
            resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, hard))
            try:
                ended.append(sandbox.run("true", stdin="text").state)
            except FumehoodError as error:
                ended.append(error.message)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert nothing_more_is_open(before), (count, ended[-1])
    assert "Too many open files" in ended[0]
    assert ended[-1] == "empty"
