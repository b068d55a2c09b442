"""Memory that no process has as its own is counted too: each bomb takes more than it may, and holds it."""

import os
from pathlib import Path

import pytest

from conftest import fresh_directory, need, remove_tree
from fumehood import Sandbox
from fumehood.core.policy import Limits, Policy
from fumehood.linux import warden
from fumehood.linux.confine import can_scope
from fumehood.linux.usage import MachineMemory
from patience import LONG_S

pytestmark = [pytest.mark.namespaces, pytest.mark.alone]

MIB = 1 << 20
LIMIT = 150 * MIB
TAKEN = 320 * MIB  # at most, by each bomb: it must not harm the machine that it is tried on
HOLD_S = 30
PYTHON = "python3"

BEGIN = f"""
import array, ctypes, mmap, os, resource, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmdt.argtypes = [ctypes.c_void_p]
TAKEN, MIB = {TAKEN}, {MIB}
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
def fill(sender):
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    sender.setblocking(False)
    sent = 0
    try:
        while True: sent += sender.send(bytes(65536))
    except BlockingIOError: return sent
"""
END = f"\nprint('all of it', flush=True)\ntime.sleep({HOLD_S})\n"

BOMBS = {
    "a System V segment that nobody maps": """
for _ in range(TAKEN // (20 * MIB)):
    segment = libc.shmget(0, 20 * MIB, 0o1600)
    place = libc.shmat(segment, None, 0); ctypes.memset(place, 1, 20 * MIB); libc.shmdt(place)
""",
    "a file in memory that was only written": """
held.append(os.memfd_create("bomb"))
for _ in range(TAKEN // (4 * MIB)): os.write(held[0], bytes(4 * MIB))
""",
    "many files in memory of many processes": """
for _ in range(8):
    if os.fork() == 0:
        held.append(os.memfd_create("bomb")); os.write(held[0], bytes(TAKEN // 8)); time.sleep(60)
""",
    "a shared mapping beside a file in memory": """
held += [mmap.mmap(-1, 100 * MIB), os.memfd_create("bomb")]
for at in range(0, 100 * MIB, 4096): held[0][at] = 1
for _ in range(25): os.write(held[1], bytes(4 * MIB))
""",
    "what waits in pairs of sockets": """
taken = 0
while taken < TAKEN:
    pair = socket.socketpair(); held += pair; taken += fill(pair[0])
""",
    "what waits in sockets whose other end is closed": """
taken = 0
while taken < TAKEN:
    sender, receiver = socket.socketpair(); held.append(receiver); taken += fill(sender); sender.close()
""",
    "what waits in connections of its own": """
server = socket.create_server(("127.0.0.1", 0))
taken = 0
while taken < TAKEN // 2:
    sender = socket.create_connection(server.getsockname()); held += [sender, server.accept()[0]]; taken += fill(sender)
""",
    "semaphores": """
for _ in range(TAKEN // (64 * 32000)): assert libc.semget(0, 32000, 0o1600) >= 0
""",
    "messages": """
for _ in range(TAKEN // 16384):
    queue = libc.msgget(0, 0o1600)
    for _ in range(2): assert libc.msgsnd(queue, ctypes.create_string_buffer(b"x" * 8200), 8192, 0) == 0
""",
    "empty files in its /tmp": """
for n in range(TAKEN // 1024): os.close(os.open(f"/tmp/{n}", os.O_CREAT | os.O_WRONLY))
""",
    "tables of pages that were only read": """
reach = mmap.PAGESIZE * mmap.PAGESIZE // 8  # of one table
held.append(mmap.mmap(-1, TAKEN // mmap.PAGESIZE * reach, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000))
held[0].madvise(15)
for at in range(0, len(held[0]), reach): held[0][at]
""",
}


@pytest.fixture
def limited(home, project):
    """A sandbox whose commands may have a little memory."""
    with Sandbox(project, Policy(limits=Limits(memory=LIMIT))) as sandbox:
        yield sandbox


def details(run):
    return [each.detail for each in run.blocked if each.what == "limit"]


@pytest.mark.parametrize("network", ["full", "hosts"])
def test_what_waits_in_sockets_is_counted_in_every_network(home, project, network):
    need(can_scope(), "this kernel's Landlock has no scopes")
    policy = Policy(network="full") if network == "full" else Policy(hosts=("example.org",))
    code = BEGIN + BOMBS["what waits in pairs of sockets"] + END
    with Sandbox(project, policy.replace(limits=Limits(memory=LIMIT))) as sandbox:
        run = sandbox.run([PYTHON, "-I", "-S", "-c", code], timeout=LONG_S)

    assert details(run) == ["memory: 150 MiB"], run.output


@pytest.mark.parametrize("kind", BOMBS)
def test_memory_of_every_kind_is_counted(limited, kind):
    run = limited.run([PYTHON, "-I", "-S", "-c", BEGIN + BOMBS[kind] + END], timeout=LONG_S)

    assert details(run) == ["memory: 150 MiB"], run.output
    assert run.exit_code == 137


SHARED = {
    "a System V segment": """
segment = libc.shmget(0, 60 * MIB, 0o1600)
place = libc.shmat(segment, None, 0); ctypes.memset(place, 1, 60 * MIB)
""",
    "a file in memory": """
held.append(os.memfd_create("shared")); os.ftruncate(held[0], 60 * MIB)
held.append(mmap.mmap(held[0], 60 * MIB)); held[1][:] = bytes(60 * MIB)
""",
    "a file in /dev/shm": """
held.append(os.open("/dev/shm/shared", os.O_CREAT | os.O_RDWR)); os.ftruncate(held[0], 60 * MIB)
held.append(mmap.mmap(held[0], 60 * MIB)); held[1][:] = bytes(60 * MIB)
""",
}


@pytest.mark.long
@pytest.mark.parametrize("kind", SHARED)
def test_what_several_processes_share_counts_once(limited, kind):
    code = f"{BEGIN}{SHARED[kind]}for _ in range(3): os.fork()\ntime.sleep(2)\n"

    run = limited.run([PYTHON, "-I", "-S", "-c", code], timeout=LONG_S)

    assert (details(run), run.exit_code) == ([], 0), run.output


# Not seen by anybody while it is on its way, so that only what the machine has left tells of it.
ON_ITS_WAY = """
sender, receiver = socket.socketpair()
for _ in range(TAKEN // (20 * MIB)):
    file = os.memfd_create("bomb"); os.write(file, bytes(20 * MIB))
    socket.send_fds(sender, [b"x"], [file]); os.close(file)
"""


def test_a_run_ends_before_the_memory_of_the_whole_machine_does(home, project, monkeypatch):
    monkeypatch.setattr(warden, "memory_reserve", lambda machine: machine.available - 50 * MIB)
    with Sandbox(project) as sandbox:
        for _ in range(5):
            run = sandbox.run([PYTHON, "-I", "-S", "-c", BEGIN + ON_ITS_WAY + END], timeout=LONG_S)
            if details(run):
                break  # else others gave back more than it took

    (detail,) = details(run)
    assert detail.startswith("memory: the machine has only ")
    assert run.exit_code == 137


def test_a_part_of_the_machines_memory_is_kept_unless_it_was_taken_before():
    machine = MachineMemory()
    reserve = warden.memory_reserve(machine)
    assert 0 < reserve <= min(1 << 30, machine.total // 50) < machine.available


def test_what_others_have_on_a_tmpfs_that_the_run_sees_is_not_the_runs(project, home, monkeypatch):
    place = Path("/dev/shm")
    need(place.is_mount() and os.access(place, os.W_OK), "there is no writable tmpfs")
    top = fresh_directory(str(place))
    try:
        monkeypatch.setenv("XDG_STATE_HOME", str(top))
        with (top / "others").open("wb") as others:
            os.posix_fallocate(others.fileno(), 0, LIMIT + 10 * MIB)
        with Sandbox(project, Policy(limits=Limits(memory=LIMIT), capture="copy")) as sandbox:
            run = sandbox.run("sleep 0.5; stat -f -c %T .", timeout=LONG_S)
    finally:
        remove_tree(top)

    assert (details(run), run.stdout) == ([], "tmpfs\n"), run.output
