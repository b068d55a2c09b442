"""A platform's workers on a real Redis: tenants' workspaces, secrets that are looked up, a job killed in the middle."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import need

CHECKOUT = Path(__file__).parents[2]
TENANTS, JOBS = ("ada", "bob"), 8

# Puts jobs into the queue, has four workers do them, kills the process that runs one of them, and tells the outcome.
STORY = """
import json, os, signal, subprocess, sys, time
import fumehood
import queue_workers as platform
from redis import Redis
from rq import Queue
from rq.job import Job
url, example, count, *tenants = sys.argv[1:]
connection = Redis.from_url(url)
queue = Queue(platform.QUEUE, connection=connection)
slow = platform.enqueue(queue, "ada", "echo slow >> log; echo $$ > begun; sleep 5")
jobs = [platform.enqueue(queue, tenant, f'echo {number} >> log; printf %s "$API_TOKEN" | wc -c')
        for number in range(int(count)) for tenant in tenants]
workers = subprocess.Popen([sys.executable, example, url, "4"])
with fumehood.workspaces.open("ada", root="host") as workspace:
    while not any("sleep" in run.command for run in workspace.running()):
        time.sleep(0.05)
running = Job.fetch(slow, connection=connection)
time.sleep(1)
parent = next(each for each in connection.smembers("rq:workers") if running.worker_name in each.decode())
horse = int(subprocess.check_output(["pgrep", "-P", connection.hget(parent, "pid")]).split()[0])
os.kill(horse, signal.SIGKILL)
status = workers.wait()
done = [Job.fetch(job, connection=connection) for job in (slow, *jobs)]
print(json.dumps({"status": status, "jobs": [[str(job.get_status()), job.return_value()] for job in done],
                  "retries": 3 - (done[0].retries_left or 0)}))
"""


@pytest.mark.installs
@pytest.mark.timeout(300)
def test_every_job_is_done_once_in_its_tenants_workspace(home: Path, test_directory: Path) -> None:
    need(shutil.which("redis-server") is not None, "redis-server is not installed: apt-get install redis-server")
    making = "import environment; print(environment.environment_of('fleet'))"
    tools = os.environ | {"PYTHONPATH": str(CHECKOUT / "tools")}
    made = subprocess.run([sys.executable, "-c", making], env=tools, capture_output=True, text=True, check=True)
    environment = made.stdout.split()[-1]
    vault = test_directory / "vault"
    vault.mkdir()
    for tenant in TENANTS:
        (vault / tenant).write_text(f"secret of {tenant}")
    socket = test_directory / "redis.sock"
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(test_directory)],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    example = CHECKOUT / "examples/queue_workers.py"
    paths = f"{CHECKOUT / 'src'}:{example.parent}"
    try:
        told = subprocess.run(
            [f"{environment}/bin/python", "-c", STORY, f"unix://{socket}", str(example), str(JOBS), *TENANTS],
            env=os.environ | {"PYTHONPATH": paths, "PLATFORM_VAULT": str(vault)}, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
    finally:
        server.terminate()
        server.wait()
    outcome = json.loads(told.stdout)
    assert (outcome["status"], outcome["retries"]) == (0, 1)
    assert {status for status, _ in outcome["jobs"]} == {"JobStatus.FINISHED"}
    data = home / ".local/share/fumehood/workspaces"
    for tenant in TENANTS:
        lines = (data / tenant / "log").read_text().split()
        assert sorted(lines) == sorted([*map(str, range(JOBS)), *(["slow"] if tenant == "ada" else [])])
    assert all("13" in done["text"] for _, done in outcome["jobs"][1:])  # as long as its secret
    kept = subprocess.run(["grep", "-rl", "secret of", str(home)], capture_output=True, text=True, check=False)
    assert kept.stdout == ""
