"""Bombs go off in the hood, small ones: the run ends, the report says why, and the host goes on."""

import os
import resource

import pytest

from fumehood import Sandbox
from fumehood.core.policy import Limits, Policy
from fumehood.linux import libc
from fumehood.linux.disk_use import DiskUse
from patience import LONG_S
from processes import LONG, processes

pytestmark = [pytest.mark.namespaces, pytest.mark.alone]

MIB = 1 << 20
PYTHON = "python3"


@pytest.fixture
def limited(home, project):
    """Return a sandbox under the limits that are named."""
    opened = []

    def make(policy=None, **limits):
        sandbox = Sandbox(project, (policy or Policy()).replace(limits=Limits(**limits)))
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
    room = DiskUse([str(layer)], MIB, layers_empty=True, other_directories=[str(besides)])
    assert getattr(room.check(lambda: 0), "detail", None) == "written: 1 MiB"
    room.close()

    room = DiskUse([str(besides)], MIB, layers_empty=False, other_directories=[str(layer)])
    assert room.check(lambda: 0) is None
    room.close()


def test_a_directory_that_can_only_be_listed_is_not_measured(test_directory):
    closed = test_directory / "closed"
    closed.mkdir()
    (closed / "file").write_text("its size is not told to who may not pass through")
    closed.chmod(0o444)
    room = DiskUse([str(test_directory)], MIB, layers_empty=True)

    assert room.check(lambda: 0) is None
    room.close()
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


def test_a_memory_bomb_ends_with_the_run(limited):
    code = "import time\nheld = []\nwhile True:\n    held.append(bytearray(4 << 20)); time.sleep(0.004)"

    run = limited(memory=200 * MIB).run([PYTHON, "-c", code], timeout=LONG_S)

    assert details(run) == ["memory: 200 MiB"]
    assert run.exit_code == 137


def test_memory_of_many_small_processes_is_added_up(limited):
    code = "import time; held = bytearray(30 << 20); time.sleep(60)"

    run = limited(memory=200 * MIB).run(
        f"for n in 1 2 3 4 5 6 7 8 9 10; do '{PYTHON}' -c '{code}' & done; wait", timeout=LONG_S
    )

    assert details(run) == ["memory: 200 MiB"]


def test_memory_that_processes_share_counts_once(limited):
    code = "import os, time\nheld = bytearray(60 << 20)\n[os.fork() or time.sleep(0.5) for _ in range(1)]\n"
    code += "for _ in range(5):\n    if os.fork() == 0: time.sleep(0.5); os._exit(0)\ntime.sleep(0.5)"

    run = limited(memory=200 * MIB).run([PYTHON, "-c", code], timeout=LONG_S)

    assert details(run) == []
    assert run.exit_code == 0


def test_a_file_in_its_tmp_is_memory(limited):
    run = limited(memory=100 * MIB).run(
        "for n in 1 2 3 4 5 6 7 8; do head -c 20M /dev/zero > /tmp/$n; done; sleep 60", timeout=LONG_S
    )

    assert details(run) == ["memory: 100 MiB"]


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
