"""The cost of the proxy: a large transfer through it, against the same transfer without it, both over loopback."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from measures import Figure, project_in

SIZE = 2 << 30
TIMES = 5

_SERVER = f"""
import socket, threading
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen(20)
print(listener.getsockname()[1], flush=True)
def serve(client):
    head, data, size = b"", bytearray(1 << 18), 0
    while not head.endswith(b"\\r\\n\\r\\n"): head += client.recv(1)
    if head.startswith(b"GET"):
        client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: {SIZE}\\r\\nConnection: close\\r\\n\\r\\n")
        for _ in range({SIZE} // len(data)): client.sendall(data)
    else:
        while size < {SIZE} and (found := client.recv_into(data)): size += found
        client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    client.close()
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
# The same program runs outside and inside; only the beginning of its connection differs.
_CLIENT = """
import os, socket, sys, time
way, method, port, whole = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
place = f"127.0.0.1:{port}"
proxy = os.environ.get("HTTP_PROXY", "").rpartition(":")[2]
c = socket.create_connection(("127.0.0.1", int(proxy) if way != "direct" else port))
def answer():
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"): head += c.recv(1)
if way == "connect":
    c.sendall(f"CONNECT {place} HTTP/1.1\\r\\nHost: {place}\\r\\n\\r\\n".encode()); answer()
elif way == "socks5":
    c.sendall(bytes([5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1]) + port.to_bytes(2, "big")); c.recv(12, socket.MSG_WAITALL)
target = f"http://{place}/" if way == "http" else "/"
length = f"Content-Length: {whole}\\r\\n" if method == "PUT" else ""
buffer, size = bytearray(1 << 18), 0
began = time.perf_counter()
c.sendall(f"{method} {target} HTTP/1.1\\r\\nHost: {place}\\r\\n{length}\\r\\n".encode())
if method == "PUT":
    while size < whole: c.sendall(buffer); size += len(buffer)
answer()
while size < whole and (found := c.recv_into(buffer)): size += found
print(time.perf_counter() - began, size)
"""
WAYS = ("connect", "socks5", "http")
METHODS = {"GET": "to the command", "PUT": "from the command"}


def network(room: Path) -> Iterator[Figure]:
    """Measure transfers of 2 GiB, which may take at most twice as long as without the proxy."""
    from fumehood import Policy, Sandbox

    client = project_in(room) / "client.py"
    client.write_text(_CLIENT)
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            with Sandbox(client.parent, Policy(hosts=(f"127.0.0.1:{port}",))) as sandbox:

                def transfer(way: str, method: str) -> float:
                    line = ["/usr/bin/python3", str(client), way, method, port, str(SIZE)]
                    if way == "direct":
                        printed = subprocess.run(line, capture_output=True, text=True, check=True).stdout
                    else:
                        printed = sandbox.run(line).stdout
                    seconds, size = printed.split()
                    assert int(size) == SIZE, printed
                    return float(seconds)

                for method, direction in METHODS.items():
                    yield from _compare(transfer, method, direction)
        finally:
            server.kill()


def _compare(transfer: Callable[[str, str], float], method: str, direction: str) -> Iterator[Figure]:
    durations: dict[str, list[float]] = {way: [] for way in ("direct", *WAYS)}
    for _ in range(TIMES):
        for way, own_durations in durations.items():
            own_durations.append(transfer(way, method))
    direct_s = statistics.median(durations.pop("direct"))
    for way, own_durations in durations.items():
        title = f"{SIZE >> 30} GiB through the proxy, {direction}, by {way}"
        yield Figure(title, statistics.median(own_durations), "s", "without it", direct_s, 2.0)
