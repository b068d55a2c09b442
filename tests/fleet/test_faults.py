"""What goes wrong between a sender, Redis and workers: passwords, certificates, a network that stalls, a full disk."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_fleet import filled, sent

from patience import eventually

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
