"""A state disk that fills up at any moment: nothing is lost, and every command tells what is true."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fumehood import FumehoodError
from fumehood.linux.checkpoints import add_note, read_note
from fumehood.linux.streams import RECORD_LIMIT, Stream
from processes import nothing_more_is_open, open_descriptors

pytestmark = pytest.mark.once

TESTS = Path(__file__).parent.parent

# Real commands on a small disk of their own, in a mount namespace that ends with them.
STORY = """
import json, os, subprocess, sys
from pathlib import Path
from conftest import command_line
state = Path(os.environ["XDG_STATE_HOME"])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,nr_inodes=3000,mode=700", "none", state], check=True)
project = Path(sys.argv[1])

def fumehood(*words, stdin=subprocess.DEVNULL, status=(0, 125)):
    done = subprocess.run([*command_line(), *words], cwd=project, stdin=stdin, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, (words, done.stderr)
    assert done.returncode in status, (words, done.returncode, done.stderr, done.stdout[-1000:])
    if done.returncode == 125:
        assert done.stderr.startswith("ERROR: ") and "hint: " in done.stderr, (words, done.stderr)
        assert "move the database away" not in done.stderr
    return done

def states():
    listed = json.loads(fumehood("log", "--json", status=(0,)).stdout)["runs"]
    return [run["state"] for run in listed]

def free():
    disk = os.statvfs(state)
    return disk.f_bavail * disk.f_frsize, disk.f_favail

def fill(left, what="bytes"):
    if what == "entries":
        (state / "many").mkdir(exist_ok=True)
        while free()[1] > left:
            (state / "many" / str(free()[1])).touch()
    else:
        with open(state / "filling", "ab") as file:
            while (over := free()[0] - left) > 0:
                file.write(bytes(min(over, 1 << 20)))
                file.flush()

def empty():
    subprocess.run(["rm", "-rf", state / "filling", state / "many"], check=True)

WRITE = "echo new > kept; for i in 1 2 3 4 5 6 7 8 9; do echo $i > new$i; done"
"""

EVERY_PHASE = """
(project / "kept").write_text("old")
(project / "plain").write_text("old")
held = json.loads(fumehood("run", "--hold", "--json", "--", "echo held > held", status=(0,)).stdout)["run"]
applied = json.loads(fumehood("run", "--json", "--", "echo new > plain", status=(0,)).stdout)["run"]
left, what = int(sys.argv[2]), sys.argv[3]
fill(left, what)
run = fumehood("run", "--", WRITE)
assert (run.returncode == 0) == ((project / "kept").read_text() == "new\\n"), run.stderr
if run.returncode:
    assert "no command can begin" in run.stderr, run.stderr
ended = states()
assert set(ended) <= {"held", "applied"}, ended
assert len(ended) == 2 + (run.returncode == 0)
fumehood("show", held, status=(0,))
doctor = fumehood("doctor", status=(0, 125))
fumehood("undo", applied)
fumehood("discard", held)
assert not {"running", "applying", "settling"} & set(states()), states()
empty()
if "held" in states():
    fumehood("discard", held, status=(0,))
if (project / "plain").read_text() == "new\\n":
    fumehood("undo", applied, status=(0,))
assert (project / "plain").read_text() == "old"
fumehood("run", "--", "echo again > kept", status=(0,))
assert (project / "kept").read_text() == "again\\n"
fumehood("doctor", status=(0,))
"""

BEFORE_ANY_ROOM_IS_RESERVED = """
subprocess.run(["mount", "-o", "remount,size=4m", state], check=True)
assert "no command can begin" in fumehood("run", "--", WRITE, status=(125,)).stderr
assert "MiB left" in fumehood("doctor").stdout
"""

WHILE_IT_RUNS = """
(project / "kept").write_text("old")
command = f"{WRITE}; seq 8000 > /dev/stderr; echo ready; read go"
running = subprocess.Popen(
    [*command_line(), "run", *sys.argv[2:3], "--", command], cwd=project, stdin=-1, stdout=-1, stderr=-1, text=True)
assert running.stdout.readline() == "ready\\n"
fill(0)
if sys.argv[3] == "without a reserve":
    (state / "fumehood/reserve").unlink()
    fill(0)
told = running.communicate("go\\n")[1]
assert "Traceback" not in told, told
"""
AND_THE_RESERVE_IS_ENOUGH = """
# What the command wrote may not be whole, whether it ended by itself or was ended because of the disk: that is held.
run = json.loads(fumehood("show", "last", "--json", status=(0,)).stdout)
state = run["state"]
assert state == "held", (state, run["reason"])
if sys.argv[2] != "--hold":
    assert "left" in run["reason"], run["reason"]
assert (project / "kept").read_text() == "old"
fumehood("apply", "last", status=(0,))
fumehood("undo", "last", status=(0,))
assert sorted(os.listdir(project)) == ["kept"] and (project / "kept").read_text() == "old"
"""
BY_THE_COMMAND_ITSELF = """
(project / "kept").write_text("old")
(project / "large").write_bytes(bytes(3 << 20))
fumehood("run", "--", "true", status=(0,))
FILL = "dd if=/dev/zero of=big bs=1M count=40"
commands = {
    "it is full at the end": f"{FILL} 2>/dev/null; echo new > kept",
    "a copy-up failed": f"{FILL}; echo more >> large; rm big; echo new > kept",
    "a file was cut off": f"{FILL}; cat large > copy; rm big; echo new > kept",
    "as a program says it": f"{FILL} 2>&-; cp large copy 2>&- || echo ENOSPC >&2; rm big; echo new > kept",
    "few entries are left": f"for i in $(seq {free()[1] - 100}); do : > n$i; done; echo new > kept",
}
# Whoever looks after a command that lasts may have ended it, because the disk is full: by a signal, with 137.
done = fumehood("run", "--json", "--", commands[sys.argv[2]], status=(0, 1, 137))
run = json.loads(done.stdout)
was_ended = "written: the disk has" in run["reason"]
assert run["state"] == "held" or (was_ended and run["state"] == "empty"), (run["state"], run["reason"])
assert run["reason"].endswith("so what it wrote may not be whole") or was_ended, run
assert (project / "kept").read_text() == "old" and sorted(os.listdir(project)) == ["kept", "large"]
if run["state"] == "held":
    fumehood("discard", "last", status=(0,))
whole = json.loads(fumehood("run", "--json", "--", "echo No space left on device > said; cp large copy").stdout)
assert whole["state"] == "applied", whole["reason"]
"""
AND_NOTHING_CAN_BE_RECORDED = """
assert running.returncode == 125, told
assert "can't be recorded" in told and "what it wrote is kept" in told, told
assert (project / "kept").read_text() == "old"
assert states() == ["running"]
again = fumehood("apply", "last", status=(125,))
assert "was cut short" in again.stderr and "left" in again.stderr, again.stderr
fumehood("doctor")
"""
AND_IT_IS_HELD_ONCE_THERE_IS_ROOM = """
empty()
assert states() == ["held"]
fumehood("apply", "last", status=(0,))
assert (project / "kept").read_text() == "new\\n" and (project / "new9").read_text() == "9\\n"
"""
AND_IT_CAN_BE_THROWN_AWAY = """
with open(state / "filling", "r+b") as file:
    file.truncate(os.path.getsize(state / "filling") - 100_000)
fumehood("discard", "last", status=(0,))
assert states() == ["discarded"] and os.listdir(state / "fumehood/runs") == []
assert (project / "kept").read_text() == "old"
"""


AND_NOTHING_OF_OURS_FREES_IT = """
(project / "kept").write_text("old")
held = json.loads(fumehood("run", "--hold", "--json", "--", WRITE, status=(0,)).stdout)["run"]
(state / "fumehood/reserve").unlink()
fill(0)
for words in (["clean", "--all", "--days", "0", "--yes"], ["discard", held], ["apply", held]):
    refused = fumehood(*words, status=(125,)).stderr
    assert "hint: remove something else there first (2 MiB are needed)" in refused, refused
empty()
fumehood("discard", held, status=(0,))
"""


@pytest.fixture
def told(home, project, need):
    """Tell a story on a small state disk."""
    need(shutil.which("unshare") is not None, "there is no unshare to mount with")
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]

    def tell(story: str, *words: str) -> None:
        line = ["unshare", *own, "--mount", sys.executable, "-P", "-c", STORY + story, str(project), *words]
        environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{':'.join(sys.path)}"}
        done = subprocess.run(line, env=environment, check=False, capture_output=True, text=True)
        need("mount:" not in done.stderr, f"no file system can be mounted here: {done.stderr}")
        assert done.returncode == 0, done.stderr

    return tell


@pytest.mark.long
@pytest.mark.namespaces
def test_a_disk_that_was_too_small_from_the_start_is_told(told):
    told(BEFORE_ANY_ROOM_IS_RESERVED)


@pytest.mark.namespaces
@pytest.mark.parametrize(
    ("left", "what"),
    [
        (0, "bytes"), pytest.param(60 << 10, "bytes", marks=pytest.mark.long),
        pytest.param(600 << 10, "bytes", marks=pytest.mark.long),
        pytest.param(2100 << 10, "bytes", marks=pytest.mark.long), (5, "entries"),
        pytest.param(300, "entries", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_a_command_begins_with_room_for_its_end_or_not_at_all(told, left, what):
    told(EVERY_PHASE, str(left), what)


@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.parametrize(("option", "state"), [("--quiet", "held"), ("--hold", "held"), ("--discard", "discarded")])
def test_a_disk_that_fills_up_while_a_command_runs_leaves_it_its_end(told, option, state):
    undone = AND_THE_RESERVE_IS_ENOUGH if state != "discarded" else "assert states() == ['discarded'], told[-500:]"
    told(WHILE_IT_RUNS + undone, option, "with it", state)


@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.parametrize(
    "how",
    ["it is full at the end", "a copy-up failed", "a file was cut off", "as a program says it", "few entries are left"],
)
def test_what_a_command_wrote_to_a_full_disk_is_held_because_it_may_not_be_whole(told, how):
    told(BY_THE_COMMAND_ITSELF, how)


@pytest.mark.long
@pytest.mark.namespaces
def test_a_disk_that_others_filled_is_not_said_to_be_freed_by_what_needs_room_itself(told):
    told(AND_NOTHING_OF_OURS_FREES_IT)


@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.parametrize("then", [AND_IT_IS_HELD_ONCE_THERE_IS_ROOM, AND_IT_CAN_BE_THROWN_AWAY], ids=["held", "gone"])
def test_what_could_not_be_recorded_is_kept_until_it_can_be(told, then):
    told(WHILE_IT_RUNS + AND_NOTHING_CAN_BE_RECORDED + then, "--quiet", "without a reserve")


def test_a_little_output_that_can_not_be_saved_is_kept_in_memory_and_much_is_an_error(tmp_path):
    stream = Stream("stdout", str(tmp_path / "out"), 1 << 30)
    stream.start_file()  # the command lasts, and somebody may follow it
    stream.feed(b"before ")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, stream._file)
    stream.feed(b"and after")
    assert stream.head_and_tail()[0] == b"before and after"
    assert not (tmp_path / "out").exists()
    stream.start_file()
    os.dup2(full, stream._file)
    os.close(full)
    with pytest.raises(OSError, match="No space left"):
        stream.feed(bytes(RECORD_LIMIT))
    stream.close()


def test_output_that_can_not_be_saved_leaves_nothing_open(sandbox):
    sandbox.run("true")
    before, limit = open_descriptors(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, limit[1]))  # refused as by a full disk, in this process alone
    try:
        with pytest.raises(FumehoodError, match="File too large"):
            sandbox.run("head -c 20000000 /dev/zero; echo late > late")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert nothing_more_is_open(before)
    assert sandbox.run("echo well").output == "well\n"


def test_a_note_is_added_whole_or_not_at_all(tmp_path):
    path, limit = str(tmp_path / "settled"), resource.getrlimit(resource.RLIMIT_FSIZE)
    entries = [(0, f"file-{number}", (number,), None, False) for number in range(1000)]
    add_note(path, entries[:1], [])
    before = os.path.getsize(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before + 1000, limit[1]))  # as on a full disk, the rest has no room
    try:
        with pytest.raises(OSError, match="File too large"):
            add_note(path, entries, [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert os.path.getsize(path) == before
    add_note(path, entries[1:], [])
    settled = read_note(path)
    assert settled is not None
    assert settled._versions.keys() == {(0, path) for _, path, *_ in entries}
