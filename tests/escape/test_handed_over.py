"""What a command hands to another one that runs, over a socket, does not change once it was judged."""

import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fumehood import Run, Sandbox
from patience import LONG_S, eventually
from snapshots import snapshot

pytestmark = pytest.mark.namespaces

HOOKED = '[core]\n\tfsmonitor = "touch /planted #"\n'
# Takes what it is handed, and writes to it when it is told to, however it was opened.
TAKER = f"""
import os, socket, time
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind("/tmp/taker")
    listener.listen()
    descriptors = socket.recv_fds(listener.accept()[0], 1, 9)[1]
open("/tmp/taken", "w").close()
while not os.path.exists("/tmp/go"): time.sleep(0.02)
def write(path):
    try: add(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
    except OSError: return
def add(file):
    os.lseek(file, 0, os.SEEK_END)
    os.write(file, {HOOKED.encode()!r})
for each in descriptors:
    path = "/proc/self/fd/%d" % each
    for name in (".git/config", ".git/hooks/post-checkout") if os.path.isdir(path) else (): write(f"{{path}}/{{name}}")
    if not os.path.isdir(path): write(path)
add(descriptors[0])
"""
HAND_OVER = """
import os, socket, time
descriptors = [os.open(".git/config", os.O_RDWR), os.open(".git/config", os.O_RDONLY), os.open(".", os.O_RDONLY)]
with socket.socket(socket.AF_UNIX) as taker:
    while taker.connect_ex("/tmp/taker"): time.sleep(0.02)
    socket.send_fds(taker, [b"."], descriptors)
while not os.path.exists("/tmp/taken"): time.sleep(0.02)
"""
# One of each kind of change.
WORK = (
    "git config user.name somebody; echo new >> old; rm gone; rm -r emptied/*; mkdir n; echo x > n/a; ln n/a n/b;"
    " ln -s a n/l; mkfifo n/fifo; chmod 750 n; rm -r replaced; mkdir replaced; echo x > replaced/new; chmod 600 kept"
)


def python(script: str) -> str:
    return f"python3 -c {shlex.quote(script)}"


def furnish(project: Path) -> None:
    lines = "mkdir emptied replaced; echo x | tee old gone kept emptied/a emptied/b replaced/a replaced/b > /dev/null"
    subprocess.run(["sh", "-ec", f"git init -q .; {lines}"], cwd=project, check=True)


@pytest.fixture
def handed_over(home: Path, project: Path):
    """Run a command that hands over what it has open; the other one writes when the test has looked."""
    furnish(project)
    with Sandbox(project, session="together") as sandbox, ThreadPoolExecutor() as pool:
        taker = pool.submit(sandbox.run, python(TAKER), timeout=LONG_S)

        def write() -> Run:
            sandbox.run("touch /tmp/go")
            return taker.result(LONG_S)

        yield sandbox, write
        if not taker.done():
            write()


@pytest.mark.long
def test_what_is_applied_is_not_changed_by_who_was_handed_it(handed_over, project):
    sandbox, write = handed_over
    before = snapshot(project)
    run = sandbox.run(f"{WORK}; {python(HAND_OVER)}")
    assert run.state == "applied", run.output
    after = snapshot(project)
    assert write().exit_code == 0
    assert snapshot(project) == after
    assert "fsmonitor" not in (project / ".git/config").read_text()
    # Nor the originals, which a person may have back.
    sandbox.undo(run)
    assert snapshot(project) == before


@pytest.mark.long
def test_what_is_held_is_not_changed_by_who_was_handed_it(handed_over, project):
    sandbox, write = handed_over
    run = sandbox.run(f"{WORK}; {python(HAND_OVER)}", apply="hold")
    assert write().exit_code == 0
    assert sandbox.apply(run).state == "applied"
    assert "fsmonitor" not in (project / ".git/config").read_text()
    assert not (project / ".git/hooks/post-checkout").exists()


KILLED = """
import sys
from fumehood import Sandbox
Sandbox(sys.argv[1], session="together").run(sys.argv[2])
"""


def test_what_a_killed_run_left_is_not_changed_by_who_was_handed_it(handed_over, project):
    sandbox, write = handed_over
    command = f"{WORK}; {python(HAND_OVER)}; touch ready; sleep 1000"
    process = subprocess.Popen([sys.executable, "-P", "-c", KILLED, str(project), command])
    assert eventually(lambda: [*Path(os.environ["XDG_STATE_HOME"]).glob("fumehood/runs/*/0/upper/ready")])
    process.kill()
    process.wait()
    (run,) = [run for run in sandbox.history() if run.state == "held"]
    assert write().exit_code == 0
    assert sandbox.apply(run).state == "applied"
    config = (project / ".git/config").read_text()
    assert "somebody" in config
    assert "fsmonitor" not in config
    assert not (project / ".git/hooks/post-checkout").exists()


@pytest.mark.long
def test_nothing_is_lost_by_it(handed_over, project, test_directory):
    sandbox, _ = handed_over
    plain = test_directory / "plain"
    plain.mkdir()
    furnish(plain)
    subprocess.run(["sh", "-c", WORK], cwd=plain, check=True)
    (plain / "n/fifo").unlink()  # which are not applied
    assert sandbox.run(f"{WORK}; {python(HAND_OVER)}").state == "applied"

    def told(top: Path) -> dict[str, object]:
        return {
            str(path.relative_to(top)): (path.lstat().st_mode, path.is_file() and path.read_bytes())
            for path in top.rglob("*") if ".git/hooks" not in str(path)
        }  # fmt: skip

    assert told(project) == told(plain)
    assert os.path.samefile(project / "n/a", project / "n/b")
