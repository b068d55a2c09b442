"""Bombs go off in the hood, small ones: the run ends, the report says why, and the host goes on."""

import os
import resource
from pathlib import Path

import pytest

from conftest import fresh_directory, need, remove_tree
from fumehood import Sandbox
from fumehood.core.policy import Limits, Policy
from fumehood.linux import libc, limits
from fumehood.linux.cgroup import find_parent_group
from fumehood.linux.limits import WrittenBytes
from patience import LONG_S
from processes import LONG, open_descriptors, processes

pytestmark = [pytest.mark.namespaces, pytest.mark.alone]

MIB = 1 << 20
PYTHON = "python3"


@pytest.fixture
def limited(home, project):
    """Return a sandbox under the limits that are named."""
    opened = []

    def make(policy=None, **amounts):
        sandbox = Sandbox(project, (policy or Policy()).replace(limits=Limits(**amounts)))
        opened.append(sandbox)
        return sandbox

    yield make
    for sandbox in opened:
        sandbox.close()


def details(run):
    return [each.detail for each in run.blocked if each.what == "limit"]


# The first takes all the process numbers of a busy machine in a moment, and others' tests fail for it.
BOMBS = [
    pytest.param("sleep 60 &\n./{bomb} &\n./{bomb} &\nwait\n", marks=pytest.mark.long, id="doubling"),
    pytest.param("(while :; do sleep 60 & done)\nexec sleep 60\n", id="one by one"),
]


@pytest.mark.parametrize("script", BOMBS)
def test_a_fork_bomb_ends_with_the_run(limited, project, script):
    bomb = f"bomb{LONG}.sh"
    (project / bomb).write_text(f"#!/bin/sh\n# fumehood-bomb\n{script.format(bomb=bomb)}")
    (project / bomb).chmod(0o755)

    run = limited(processes=64).run(f"./{bomb}", timeout=LONG_S)

    assert details(run) == ["processes: 64"]
    assert not run.timed_out
    assert run.exit_code == 137
    assert not processes(bomb)
    assert "limits.processes" in run.for_model()


def test_what_is_written_to_the_playground_counts(limited, project):
    with Sandbox(project) as sandbox:
        assert sandbox.run("head -c 60M /dev/zero > ~/playground/kept").exit_code == 0

    run = limited(written=50 * MIB).run("head -c 20M /dev/zero > ~/playground/new; sleep 0.5", timeout=LONG_S)
    assert details(run) == []  # what was there before does not count

    run = limited(written=50 * MIB).run(
        "while :; do head -c 20M /dev/zero >> ~/playground/new; sleep 0.2; done", timeout=LONG_S
    )
    assert details(run) == ["written: 50 MiB"]


def test_what_was_there_besides_does_not_hide_what_a_layer_took_from_the_start(test_directory):
    layer, besides = test_directory / "layer", test_directory / "besides"
    for place in (layer, besides):
        place.mkdir()
        (place / "file").write_bytes(os.urandom(2 * MIB))
    written = WrittenBytes([str(layer)], [str(besides)], lambda: iter(()))
    assert written.reaches(MIB)
    written.close()

    written = WrittenBytes([], [str(besides), str(layer)], lambda: iter(()))
    assert not written.reaches(MIB)
    written.close()


def test_nothing_stays_open_of_a_walk_that_is_cut_short(test_directory, monkeypatch):
    (test_directory / "below").mkdir()
    monkeypatch.setattr(limits, "_BUDGET_S", 0)
    before = open_descriptors()
    written = WrittenBytes([str(test_directory)], [], lambda: iter(()))
    assert not written.reaches(MIB)
    assert len(open_descriptors() - before) > 1
    written.close()
    assert open_descriptors() == before


def test_a_directory_that_can_only_be_listed_is_not_measured(test_directory):
    closed = test_directory / "closed"
    closed.mkdir()
    (closed / "file").write_text("its size is not told to who may not pass through")
    closed.chmod(0o444)
    written = WrittenBytes([str(test_directory)], [], lambda: iter(()))

    assert not written.reaches(MIB)
    written.close()
    closed.chmod(0o755)


def test_threads_count_as_processes(limited):
    code = "import threading, time; [threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(80)]"

    run = limited(processes=50).run([PYTHON, "-c", code], timeout=LONG_S)

    assert details(run) == ["processes: 50"]


def test_signals_that_wait_are_left_to_the_persons_own_programs(limited):
    code = "import resource; print(resource.getrlimit(11))"
    mine, _ = resource.getrlimit(11)  # RLIMIT_SIGPENDING, for which Python has no name

    run = limited().run([PYTHON, "-c", code])

    assert run.stdout.strip() == str((mine // 4, mine // 4))


# Each takes a third of a gigabyte at most: it must not harm the machine that it is tried on.
BEGIN = """
import ctypes, mmap, os, resource, socket, time
TAKEN, MIB, held = 320 << 20, 1 << 20, []
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
"""
END = "\nprint('all of it', flush=True)\ntime.sleep(60)\n"

MEMORY_BOMBS = {
    "of one process": """
while True: held.append(bytearray(4 * MIB)); time.sleep(0.004)
""",
    "of many small processes": """
for _ in range(10):
    if os.fork() == 0: held.append(b"x" * (30 * MIB)); time.sleep(60)
""",
    "files in its /tmp": """
for n in range(16): open(f"/tmp/{n}", "wb").write(bytes(20 * MIB))
""",
    "empty files in its /dev/shm": """
for n in range(TAKEN // 1024): os.close(os.open(f"/dev/shm/{n}", os.O_CREAT | os.O_WRONLY))
""",
    "a file that was removed from its /dev/shm": """
held.append(open("/dev/shm/gone", "wb", buffering=0)); os.unlink("/dev/shm/gone")
for _ in range(TAKEN // (4 * MIB)): held[0].write(bytes(4 * MIB))
""",
    "many files in memory of many processes": """
for _ in range(8):
    if os.fork() == 0:
        held.append(os.memfd_create("bomb")); os.write(held[0], bytes(TAKEN // 8)); time.sleep(60)
""",
    "a mapping that processes share": """
held.append(mmap.mmap(-1, TAKEN))
os.fork(), os.fork()
for at in range(0, TAKEN, 4096): held[0][at] = 1
""",
    "pipes": """
for _ in range(16):
    if os.fork() == 0:
        for _ in range(1600):
            held += os.pipe(); os.set_blocking(held[-1], False)
            try: os.write(held[-1], bytes(1 << 16))
            except BlockingIOError: pass
        time.sleep(60)
""",
    "tables of pages that were only read": """
reach = mmap.PAGESIZE * mmap.PAGESIZE // 8  # of one table
held.append(mmap.mmap(-1, TAKEN // mmap.PAGESIZE * reach, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000))
held[0].madvise(15)
for at in range(0, len(held[0]), reach): held[0][at]
""",
}


@pytest.mark.parametrize("kind", MEMORY_BOMBS)
def test_a_memory_bomb_ends_with_the_run(limited, kind):
    run = limited(memory=150 * MIB).run([PYTHON, "-I", "-S", "-c", BEGIN + MEMORY_BOMBS[kind] + END], timeout=LONG_S)

    assert details(run) == ["memory: 150 MiB"], run.output
    assert run.exit_code == 137


SHARED = {
    "memory": "held.append(bytearray(60 * MIB))",
    "a mapping": "held.append(mmap.mmap(-1, 60 * MIB)); held[0][:] = bytes(60 * MIB)",
    "a file in /dev/shm": """
held.append(os.open("/dev/shm/shared", os.O_CREAT | os.O_RDWR)); os.ftruncate(held[0], 60 * MIB)
held.append(mmap.mmap(held[0], 60 * MIB)); held[1][:] = bytes(60 * MIB)
""",
}


@pytest.mark.parametrize("kind", SHARED)
def test_what_processes_share_counts_once(limited, kind):
    code = f"{BEGIN}{SHARED[kind]}\nfor _ in range(3): os.fork()\ntime.sleep(2)\n"

    run = limited(memory=200 * MIB).run([PYTHON, "-I", "-S", "-c", code], timeout=LONG_S)

    assert (details(run), run.exit_code) == ([], 0), run.output


# Memory of the kernel's, of which no process tells. Without a control group, only the machine's reserve bounds it.
KERNEL_MEMORY = {
    "System V segments that nobody maps": """
libc = ctypes.CDLL(None)
libc.shmat.restype, libc.shmdt.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for _ in range(TAKEN // (20 * MIB)):
    place = libc.shmat(libc.shmget(0, 20 * MIB, 0o1600), None, 0); ctypes.memset(place, 1, 20 * MIB); libc.shmdt(place)
""",
    "what waits in sockets": """
sent = 0
while sent < TAKEN:
    held += socket.socketpair(); held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    held[-1].setblocking(False)
    try:
        while True: sent += held[-1].send(bytes(65536))
    except BlockingIOError: pass
""",
    "files in memory on their way": """
sender, receiver = socket.socketpair()
for _ in range(TAKEN // (20 * MIB)):
    file = os.memfd_create("bomb"); os.write(file, bytes(20 * MIB))
    socket.send_fds(sender, [b"x"], [file]); os.close(file)
""",
}


@pytest.mark.parametrize("kind", KERNEL_MEMORY)
def test_memory_of_the_kernels_ends_with_the_machines_reserve(limited, monkeypatch, kind):
    monkeypatch.setattr(limits, "memory_reserve", lambda _, available: available - 50 * MIB)
    for _ in range(5):
        run = limited().run([PYTHON, "-I", "-S", "-c", BEGIN + KERNEL_MEMORY[kind] + END], timeout=LONG_S)
        if details(run):
            break  # else others gave back more than it took

    (detail,) = details(run)
    assert detail.startswith("memory: the machine has only ")
    assert run.exit_code == 137


@pytest.mark.parametrize("kind", KERNEL_MEMORY)
def test_a_control_group_counts_memory_of_the_kernels(limited, kind):
    if find_parent_group() is None:
        pytest.skip("no control group that counts memory and processes is ours to divide")
    run = limited(memory=150 * MIB).run([PYTHON, "-I", "-S", "-c", BEGIN + KERNEL_MEMORY[kind] + END], timeout=LONG_S)

    assert details(run) == ["memory: 150 MiB"], run.output


def test_a_part_of_the_machines_memory_is_kept_and_half_of_what_is_there_if_it_is_nearly_full():
    total, available = limits.machine_memory()
    assert 0 < available < total
    assert limits.memory_reserve(16 << 30, 8 << 30) == (16 << 30) // 20
    assert limits.memory_reserve(512 << 30, 8 << 30) == 1 << 30
    assert limits.memory_reserve(16 << 30, 100 * MIB) == 50 * MIB


def test_what_others_have_on_a_tmpfs_that_the_run_sees_is_not_the_runs(limited, monkeypatch):
    place = Path("/dev/shm")
    need(place.is_mount() and os.access(place, os.W_OK), "there is no writable tmpfs")
    top = fresh_directory(str(place))
    try:
        monkeypatch.setenv("XDG_STATE_HOME", str(top))
        with (top / "others").open("wb") as others:
            os.posix_fallocate(others.fileno(), 0, 160 * MIB)
        run = limited(Policy(capture="copy"), memory=150 * MIB).run("sleep 0.5; stat -f -c %T .", timeout=LONG_S)
    finally:
        remove_tree(top)

    assert (details(run), run.stdout) == ([], "tmpfs\n"), run.output


def test_a_disk_filler_ends_with_the_run_and_what_it_wrote_is_held(limited, project):
    run = limited(written=50 * MIB).run(
        "for n in $(seq 1000); do head -c 4M /dev/zero > fill.$n; sleep 0.02; done", timeout=LONG_S
    )

    assert details(run) == ["written: 50 MiB"]
    assert run.state == "held"
    assert {change.reason for change in run.changes} == {"ended by a limit: written: 50 MiB"}
    assert not list(project.glob("fill.*"))


def test_a_disk_filler_whose_file_has_no_name_is_found(limited):
    code = "import os, time\nfile = open('gone', 'wb', buffering=0)\nos.unlink('gone')\n"
    code += "while True:\n    file.write(bytes(4 << 20)); time.sleep(0.02)"

    run = limited(written=50 * MIB).run([PYTHON, "-c", code], timeout=LONG_S)

    assert details(run) == ["written: 50 MiB"]


def test_empty_files_take_room_too(limited, project):
    code = "import os, time\n"
    code += "for n in range(20_000): os.close(os.open(f'{n}', os.O_CREAT | os.O_WRONLY))\ntime.sleep(30)"

    run = limited(written=4 * MIB).run([PYTHON, "-c", code], timeout=LONG_S)

    assert details(run) == ["written: 4 MiB"]
    assert run.state == "held"
    assert list(project.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_the_last_entries_of_a_disk_are_not_for_commands(limited, project, test_directory, monkeypatch):
    disk = test_directory / "disk"
    disk.mkdir()
    libc.mount(b"none", os.fsencode(disk), b"tmpfs", 0, b"nr_inodes=10000,mode=700")
    monkeypatch.setenv("XDG_STATE_HOME", str(disk))
    code = "import os, time\nfor n in range(9_900): os.close(os.open(f'{n}', os.O_CREAT | os.O_WRONLY))\ntime.sleep(30)"
    try:
        sandbox = limited()
        run = sandbox.run([PYTHON, "-c", code], timeout=LONG_S)
        sandbox.close()
    finally:
        libc.umount(os.fsencode(disk), libc.MNT_DETACH)

    (detail,) = details(run)
    assert detail.startswith("written: the disk has room for only "), run.output
    assert run.state == "held"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_the_last_of_the_playgrounds_own_disk_is_not_for_commands(limited, test_directory, monkeypatch):
    disk = test_directory / "disk"
    disk.mkdir()
    libc.mount(b"none", os.fsencode(disk), b"tmpfs", 0, b"size=100m,mode=700")
    monkeypatch.setenv("XDG_DATA_HOME", str(disk))
    try:
        sandbox = limited()
        run = sandbox.run("head -c 99M /dev/zero > ~/playground/new; sleep 30", timeout=LONG_S)
        sandbox.close()
    finally:
        libc.umount(os.fsencode(disk), libc.MNT_DETACH)

    (detail,) = details(run)
    assert detail.startswith("written: the disk has only "), run.output


def test_a_hole_in_a_file_takes_no_room(limited, project):
    run = limited(written=50 * MIB).run("truncate -s 1G hole; sleep 0.3", timeout=LONG_S)

    assert run.state == "applied"
    assert details(run) == []


def test_a_file_can_grow_only_so_far(limited, project):
    run = limited(file_size=1 * MIB).run("head -c 5M /dev/zero > big", timeout=LONG_S)

    assert run.exit_code not in (0, None)
    assert (project / "big").stat().st_size == 1 * MIB


def test_cpu_time_of_all_processes_is_added_up(limited):
    run = limited(cpu=1.0).run("for n in 1 2 3 4; do (while :; do :; done) & done; wait", timeout=LONG_S)

    assert details(run) == ["cpu: 1 second"]


def test_open_files_are_limited(limited):
    code = "held = []\nwhile True: held.append(open('/dev/null'))"

    run = limited(files=100).run([PYTHON, "-c", code], timeout=LONG_S)

    assert "Too many open files" in run.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts anything")
def test_a_machine_may_have_more_mounts_than_a_command_may_have_files(limited, test_directory):
    points = [test_directory / f"mount{number}" for number in range(120)]
    for point in points:
        point.mkdir()
        libc.mount(b"none", os.fsencode(point), b"tmpfs", 0, b"mode=755")
    try:
        run = limited(files=20).run("ulimit -n", timeout=LONG_S)
        assert run.stdout == "20\n"
    finally:
        for point in points:
            libc.umount(os.fsencode(point), libc.MNT_DETACH)


def test_endless_output_is_cut_and_that_is_told(limited):
    run = limited(Policy(output_limit=1 * MIB)).run("yes | head -c 20M", timeout=LONG_S)

    assert run.exit_code == 0
    assert details(run) == ["output: 1 MiB"]


def test_no_core_is_dumped_and_no_crash_handler_of_the_host_started(limited):
    run = limited().run("ulimit -c; ulimit -Hc; cat /proc/self/limits", timeout=LONG_S)

    line = next(line for line in run.stdout.splitlines() if line.startswith("Max core file size"))
    assert line.split()[4:6] == ["1", "1"]


def test_the_kernel_looks_here_first_when_memory_runs_out(limited):
    assert limited().run("cat /proc/self/oom_score_adj").stdout == "800\n"


def test_a_background_child_ends_with_the_run(limited, project):
    run = limited().run(f"sh -c 'sleep {LONG}.61; touch late' & echo started", timeout=LONG_S)

    assert run.stdout == "started\n"
    assert not processes(f"{LONG}.61")
    assert not (project / "late").exists()


def test_a_child_that_keeps_the_output_open_does_not_keep_the_run(limited):
    run = limited().run("sleep 62 & exec echo done", timeout=LONG_S)

    assert (run.stdout, run.timed_out) == ("done\n", False)


def test_a_child_in_a_session_of_its_own_ends_with_the_run(limited):
    run = limited().run(f"setsid sh -c 'trap \"\" HUP TERM INT; sleep {LONG}.63' & sleep 0.1", timeout=LONG_S)

    assert not run.timed_out
    assert not processes(f"{LONG}.63")


def test_a_command_that_closes_its_output_and_sleeps_meets_the_time_limit(limited):
    run = limited().run(f"exec >&- 2>&- <&-; sleep {LONG}.64", timeout=0.5)

    assert run.timed_out
    assert run.exit_code == 124
    assert not processes(f"{LONG}.64")


def test_a_normal_command_meets_none_of_the_limits(limited, project):
    run = limited().run("for n in $(seq 50); do sh -c 'echo $0 > file.$0' $n & done; wait; sleep 0.2")

    assert (run.exit_code, run.blocked, run.state) == (0, (), "applied")
    assert len(list(project.glob("file.*"))) == 50
