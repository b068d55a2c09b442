"""What goes wrong between a sender, Redis and workers: passwords, certificates, a network that stalls, a full disk."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from test_fleet import filled, redis, sent, status

from patience import LONG_S, eventually

if TYPE_CHECKING:
    from machines import Machines

pytestmark = [pytest.mark.installs, pytest.mark.timeout(600)]
PASSWORD = "a pass/word@7"
IN_URL = "a%20pass%2Fword%407"


def certificates(directory: Path) -> None:
    """An authority, a certificate of its for 127.0.0.1, and an authority that has nothing to do with it."""
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "stranger"):
        openssl("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}")
    openssl("req", *key, "-keyout", "redis.key", "-out", "redis.csr", "-subj", "/CN=127.0.0.1")
    (directory / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl(
        "x509", "-req", "-in", "redis.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "redis.crt",
        "-extfile", "san",
    )  # fmt: skip


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@contextmanager
def locked_redis(directory: Path) -> Iterator[str]:
    """A Redis that is reached by TLS alone and wants a password; yields its host and port."""
    certificates(directory)
    address = f"127.0.0.1:{free_port()}"
    # By a file: a command line is read by everybody.
    (directory / "locked.conf").write_text(
        f'port 0\ntls-port {address.rpartition(":")[2]}\nbind 127.0.0.1\nrequirepass "{PASSWORD}"\nsave ""\n'
        f"tls-cert-file {directory}/redis.crt\ntls-key-file {directory}/redis.key\n"
        f"tls-ca-cert-file {directory}/ca.crt\ntls-auth-clients no\ndir {directory}\n"
    )
    log = directory / "locked.log"
    with log.open("wb") as printed:
        server = subprocess.Popen(["redis-server", str(directory / "locked.conf")], stdout=printed)
    try:
        assert eventually(lambda: "Ready to accept connections" in log.read_text()), log.read_text()
        yield address
    finally:
        server.kill()
        server.wait()


def test_a_password_and_a_certificate_are_named_in_the_address(machines: Machines, project: Path) -> None:
    filled(project)
    with locked_redis(machines.directory) as address:
        machines.url = f"rediss://:{IN_URL}@{address}?ssl_ca_certs={machines.directory}/ca.crt"
        worker = machines.start_worker()
        run = sent(machines, project, "run", "--", "cat src/a.py; env; echo n > new")
        assert (run["state"], run["output"].startswith("one = 1\n")) == ("held", True)
        command_line = Path(f"/proc/{worker.pid}/cmdline").read_text()
    for text in (run["output"], command_line, machines.logs()):
        assert PASSWORD not in text
        assert IN_URL not in text


def test_a_refusal_of_redis_is_one_plain_line_without_the_password(machines: Machines, project: Path) -> None:
    filled(project)
    with locked_redis(machines.directory) as address:
        trusted = f"ssl_ca_certs={machines.directory}/ca.crt"
        cases = {
            f"rediss://:wrong-{IN_URL}@{address}?{trusted}": "Redis does not let us in: invalid username-password pair",
            f"rediss://{address}?{trusted}": "Redis does not let us in: Authentication required",
            f"rediss://:{IN_URL}@{address}": "the certificate of Redis is not trusted",
            f"rediss://:{IN_URL}@{address}?ssl_ca_certs={machines.directory}/stranger.crt": "is not trusted",
            f"rediss://:{IN_URL}@{address.replace('127.0.0.1', 'localhost')}?{trusted}": "is not trusted",
            f"rediss://:{IN_URL}@{address}?ssl_ca_certs=/nowhere": "is not a file: /nowhere",
            f"rediss://:{IN_URL}@{address}?ssl_ca_file=/nowhere": "that is not the address of a Redis",
            f"rediss://:{PASSWORD}@{address}?{trusted}": "that is not the address of a Redis",
        }  # fmt: skip
        for url, words in cases.items():
            machines.url = url
            worker = machines.start_worker()
            assert worker.wait(100) in (2, 125), machines.logs()
            sender = machines.send("fleet", "run", "--", "true", project=project)
            log = machines.directory / f"worker-{len(machines.workers)}.log"
            said = [line for line in log.read_text().splitlines() if "working; Ctrl-C" not in line]
            for lines in (said, sender.stderr.splitlines()):
                assert words in lines[0], lines
                assert [line[:5] for line in lines] == ["ERROR", "hint:"], lines
                assert not any(part in "".join(lines) for part in ("a pass", "a%20", "word@", "word%40")), lines


def test_whoever_waits_for_a_redis_that_is_not_there_is_told_at_once_and_goes_on_when_it_comes(
    machines: Machines, project: Path
) -> None:
    filled(project)
    machines.kill_redis()
    machines.start_worker()
    sender = subprocess.Popen(
        [machines._python / "bin/python", "-P", "-m", "fumehood", "fleet", "run", "--", "cat src/a.py"], cwd=project,
        env=machines.environment(machines.home("sender", "sender")), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert sender.stderr is not None
    line = sender.stderr.readline()  # comes while it waits: nothing else would end this
    assert line.startswith(b"fumehood: Redis can't be reached: "), line
    assert line.endswith(b"; waiting for it, up to 60 seconds\n")
    assert eventually(lambda: "; waiting for it" in machines.logs())
    machines.start_redis()
    output, _ = sender.communicate(timeout=LONG_S)
    assert output == b"one = 1\n"
    assert sender.returncode == 0


class Relay:
    """A way to Redis that can stand still: what is sent meanwhile arrives later, and connections stay open."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._flows = threading.Event()
        self._flows.set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._sockets = [self._server]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return  # closed
            far = socket.socket(socket.AF_UNIX)
            self._sockets += [near, far]
            far.connect(self._path)
            self._start(self._forward, near, far)
            self._start(self._forward, far, near)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self._flows.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the other side has gone

    def stall(self) -> None:
        self._flows.clear()

    def go_on(self) -> None:
        self._flows.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.go_on()
        for each in self._sockets:
            with suppress(OSError):  # it has ended by itself
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()


def test_a_job_ends_once_when_the_network_stands_still_for_a_while(machines: Machines, project: Path) -> None:
    filled(project)
    direct = machines.url
    with Relay(f"{machines.directory}/redis.sock") as relay, ThreadPoolExecutor() as pool:
        # Requests are given up after two seconds and made again; after six of silence, a worker counts as dead.
        machines.url = through_relay = f"redis://127.0.0.1:{relay.port}?socket_timeout=2"
        worker = machines.start_worker()
        job = sent(machines, project, "run", "--detach", "--", "sleep 3; echo done; echo n > new")["job"]
        machines.url = direct
        assert eventually(lambda: "started" in status(machines, job)), machines.logs()
        machines.url = through_relay
        relay.stall()
        attached = pool.submit(sent, machines, project, "attach", job)
        time.sleep(12)
        assert (worker.poll(), attached.done()) == (None, False), machines.logs()
        relay.go_on()
        run = attached.result()
        assert (run["state"], run["output"]) == ("held", "done\n")
        assert sent(machines, project, "run", "--", "echo next")["output"] == "next\n"
        assert worker.poll() is None
    log = json.loads(machines.send("log", "--json", project=project).stdout)["runs"]
    assert [each["command"].partition(":")[0] for each in log].count(f"fleet {job}") == 1


QUEUE = "rq:queue:fumehood"
BETWEEN = f"{QUEUE}:intermediate"  # where a job is from the queue until its worker has begun it


def stop(pid: int) -> list[int]:
    """Stop a process, then all that came from it, since one that is stopped neither begins nor buries another."""
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZ")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in stop(int(child)))]


def times_in_log(machines: Machines, job: str) -> int:
    return machines.logs().count(f"{job}: ")


def test_a_worker_that_was_only_stopped_ends_its_job_a_second_time_and_the_record_has_it_once(
    machines: Machines, project: Path
) -> None:
    filled(project)
    job = sent(machines, project, "run", "--detach", "--", "sleep 3; echo done; echo n > new")["job"]
    stopped = machines.start_worker()
    assert eventually(lambda: "started" in status(machines, job)), machines.logs()
    everything = stop(stopped.pid)
    machines.start_worker()
    first = sent(machines, project, "attach", job)
    assert (first["state"], first["output"], times_in_log(machines, job)) == ("held", "done\n", 1)
    for pid in reversed(everything):
        os.kill(pid, signal.SIGCONT)
    assert eventually(lambda: times_in_log(machines, job) == 2), machines.logs()
    assert sent(machines, project, "attach", job)["run"] == first["run"]
    log = json.loads(machines.send("log", "--json", project=project).stdout)["runs"]
    assert [each["run"] for each in log] == [first["run"]]
    # Both go on working, and nothing waits to be done again.
    (project / "tasks").write_text("".join(f"{number}\n" for number in range(4)))
    runs = sent(machines, project, "map", "--from", "tasks", "--", "sleep 1; echo {}")["runs"]
    assert [run["output"] for run in runs] == ["0\n", "1\n", "2\n", "3\n"]
    assert [worker.poll() for worker in machines.workers] == [None, None]
    assert [redis(machines, "llen", key).strip() for key in (QUEUE, BETWEEN)] == ["0", "0"]
    assert times_in_log(machines, job) == 2


def test_a_job_whose_worker_was_killed_before_it_began_is_taken_up(machines: Machines, project: Path) -> None:
    filled(project)
    job = sent(machines, project, "run", "--detach", "--", "echo done")["job"]
    assert redis(machines, "lmove", QUEUE, BETWEEN, "LEFT", "RIGHT").strip() == job
    machines.start_worker()
    assert sent(machines, project, "attach", job)["output"] == "done\n"
    assert redis(machines, "llen", BETWEEN).strip() == "0"


def test_a_job_that_waits_to_be_taken_up_again_is_not_put_there_twice(machines: Machines, project: Path) -> None:
    filled(project)
    before = [sent(machines, project, "run", "--detach", "--", "sleep 8")["job"] for _ in range(2)]
    job = sent(machines, project, "run", "--detach", "--", "echo done")["job"]
    # As it is when its worker was killed between what it writes down and what its process does, and others are busy.
    redis(machines, "rpush", BETWEEN, job)
    machines.start_worker()
    assert sent(machines, project, "attach", job)["output"] == "done\n"
    for each in before:
        sent(machines, project, "attach", each)
    assert sent(machines, project, "run", "--", "echo next")["output"] == "next\n"
    assert times_in_log(machines, job) == 1, machines.logs()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_job_that_fills_the_workers_disk_fails_and_the_next_is_done(
    machines: Machines, project: Path, test_directory: Path
) -> None:
    filled(project)
    small = test_directory / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "fumehood-test", str(small)], check=True)
    try:
        worker = machines.start_worker("", "--directory", str(small))
        assert sent(machines, project, "run", "--", "echo n > new")["state"] == "held"
        before = used(small)
        # What was written fits into a bundle, or no bundle can be made of it.
        for source, state, told_in in (("zero", "held", "output"), ("urandom", "failed", "reason")):
            full = sent(machines, project, "run", "--", f"head -c 64M /dev/{source} > big")
            assert (full["state"], full["exit_code"] == 0) == (state, False), full["reason"]
            # The kernel says so, or the command was ended for the last of the disk: whichever is quicker.
            words = f"{full[told_in]} {full['blocked']}"
            assert "No space left" in words or "the disk has only" in words, words
        assert "Traceback" not in machines.logs(), machines.logs()
        run = sent(machines, project, "run", "--", "cat src/a.py; echo n > new")
        assert (run["state"], run["output"]) == ("held", "one = 1\n")
        assert worker.poll() is None
        assert used(small) - before < 1 << 20, list(small.rglob("*"))
        worker.kill()
        worker.wait()
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


def used(directory: Path) -> int:
    room = os.statvfs(directory)
    return (room.f_blocks - room.f_bfree) * room.f_bsize
