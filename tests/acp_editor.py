"""A small editor that speaks ACP, for tests: it starts an agent, sends requests, and answers what it is asked."""

import json
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from patience import LONG_S

Message = dict[str, Any]


class Editor:
    """One agent behind its command line; used in a `with` block, after which it is gone."""

    def __init__(self, command: Sequence[str], cwd: os.PathLike[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [str(word) for word in command], cwd=cwd, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.lines: list[bytes] = []  # all that came
        self.updates: list[str] = []
        self.asked: list[Message] = []
        self.answer: Callable[[Message], Message] = lambda _request: {"error": {"code": -32601, "message": "no"}}
        self.errors = b""
        self._waiting: queue.Queue[bytes | None] = queue.Queue()
        self._count = 0
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._waiting.put(line)
        self._waiting.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(timeout=LONG_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def send(self, message: Message | bytes) -> None:
        line = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def call(self, method: str, params: Message, meanwhile: Callable[[Message], None] | None = None) -> Message:
        """Send a request and return its answer, serving what comes before; `meanwhile` is shown each message."""
        self._count += 1
        self.send({"id": self._count, "method": method, "params": params})
        while True:
            message = self.next()
            if message.get("id") == self._count and "method" not in message:
                return message
            if meanwhile is not None:
                meanwhile(message)
            if message.get("method") == "session/update":
                content = message["params"]["update"].get("content")
                self.updates.append(content.get("text", "") if isinstance(content, dict) else "")
            elif "id" in message and "method" in message:
                self.asked.append(message)
                self.send({"id": message["id"], **self.answer(message)})

    def next(self) -> Message:
        line = self._waiting.get(timeout=LONG_S)
        assert line is not None, f"the agent has ended: {self.errors.decode(errors='replace')}"
        self.lines.append(line)
        try:
            return json.loads(line)
        except ValueError:
            return {}

    def start(self, cwd: os.PathLike[str], **capabilities: Any) -> Message:
        """Begin a session; returns what the agent said of itself."""
        offered = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True, **capabilities}
        said = self.call("initialize", {"protocolVersion": 1, "clientCapabilities": offered})["result"]
        self.session = self.call("session/new", {"cwd": str(cwd), "mcpServers": []})["result"]["sessionId"]
        return said

    def prompt(self, *acts: Sequence[Any], meanwhile: Callable[[Message], None] | None = None) -> Message:
        """Have the agent do something; returns how the prompt ended."""
        prompt = [{"type": "text", "text": json.dumps(acts)}]
        return self.call("session/prompt", {"sessionId": self.session, "prompt": prompt}, meanwhile)

    def close(self) -> int:
        """Go away, and wait for the agent's end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(timeout=LONG_S)
        for thread in self._threads:
            thread.join(timeout=LONG_S)
        return status
