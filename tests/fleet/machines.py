"""A fleet on one machine: a real Redis, workers as processes with homes of their own, a sender with another."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from patience import eventually

CHECKOUT = Path(__file__).resolve().parents[2]
DEBIAN = "redis-server is not installed: apt-get install redis-server"


def packages(name: str = "s3") -> Path:
    """The environment that has a lock's packages, made if there is none."""
    making = f"import environment; print(environment.environment_of({name!r}))"
    tools = os.environ | {"PYTHONPATH": str(CHECKOUT / "tools")}
    made = subprocess.run([sys.executable, "-c", making], env=tools, capture_output=True, text=True, check=True)
    return Path(made.stdout.split()[-1])


def can_run() -> bool:
    return shutil.which("redis-server") is not None and shutil.which("ssh-keygen") is not None


class Machines:
    """Starts and kills what a fleet consists of; all of it lies in one directory."""

    def __init__(self, directory: Path, python: Path) -> None:
        self.directory, self._python = directory, python
        self.url = f"unix://{directory}/redis.sock"
        self.redis: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._count = 0
        for name in ("sender", "worker"):
            key = directory / f"{name}.key"
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        publics = {name: (directory / f"{name}.key.pub").read_text() for name in ("sender", "worker")}
        (directory / "signers").write_text("".join(f"{name}@example.org {text}" for name, text in publics.items()))

    def home(self, name: str, key: str, settings: str = "") -> Path:
        home = self.directory / name
        place = home / ".config/fumehood"
        place.mkdir(parents=True, mode=0o700, exist_ok=True)
        sign = f'[sign]\nkey = "{self.directory}/{key}.key"\nsigners = "{self.directory}/signers"\n'
        (place / "config.toml").write_text(f"{settings}\n{sign}")
        return home

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "FUMEHOOD_TESTS_DIR") if name in os.environ}
        return kept | {
            "HOME": str(home), "PYTHONPATH": str(CHECKOUT / "src"), "FUMEHOOD_REDIS": self.url,
            "PYTHONPYCACHEPREFIX": f"{self.directory}/pycache",
        } | more  # fmt: skip

    def start_redis(self) -> None:
        command = [
            "redis-server", "--port", "0", "--unixsocket", f"{self.directory}/redis.sock", "--save", "",
            "--appendonly", "yes", "--dir", str(self.directory),
        ]  # fmt: skip
        self.redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        assert eventually(self._redis_answers), "Redis does not come up"

    def _redis_answers(self) -> bool:
        command = ["redis-cli", "-s", f"{self.directory}/redis.sock", "ping"]
        return subprocess.run(command, capture_output=True, check=False).stdout == b"PONG\n"

    def kill_redis(self) -> None:
        assert self.redis is not None
        self.redis.kill()
        self.redis.wait()

    def start_worker(self, settings: str = "", *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        self._count += 1
        home = self.home(f"worker-{self._count}", "worker", settings)
        log = (self.directory / f"worker-{self._count}.log").open("wb")
        worker = subprocess.Popen(
            [self._python / "bin/python", "-P", "-m", "fumehood", "worker", *arguments], cwd=self.directory,
            env=self.environment(home, **more), stdout=log, stderr=log,
        )  # fmt: skip
        log.close()
        self.workers.append(worker)
        return worker

    def send(
        self, *arguments: str, project: Path, timeout_s: float = 280, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the sender's, who is one person for the whole test."""
        home = self.home("sender", "sender")
        command = [self._python / "bin/python", "-P", "-m", "fumehood", *arguments]
        return subprocess.run(
            command, cwd=project, env=self.environment(home, **more), capture_output=True, text=True, check=False,
            timeout=timeout_s,
        )  # fmt: skip

    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.directory.glob("worker-*.log")))

    def __enter__(self) -> Self:
        self.start_redis()
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGKILL)
                worker.wait()
        if self.redis is not None and self.redis.poll() is None:
            self.kill_redis()
