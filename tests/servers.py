"""Real servers on loopback, for tests of the network."""

import contextlib
import http.server
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def serve(self) -> None:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class Web(_Server):
    """A web server that remembers what it was asked."""

    def __init__(self, body: bytes = b"hello\n", chunked: bool = False, address: str = "127.0.0.1") -> None:
        self.body, self.chunked = body, chunked
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.clients: set[tuple[str, int]] = set()
        super().__init__((address, 0), _Handler)
        self.serve()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        server = self.server
        assert isinstance(server, Web)
        sent = self._read()
        server.asked.append((self.command, self.path, dict(self.headers.items()), sent))
        server.clients.add(self.client_address)
        self.send_response(200)
        if server.chunked:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in (server.body[:3], server.body[3:]):
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(server.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(server.body)

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def log_message(self, *_arguments: object) -> None:
        return


class Tcp:
    """A server that hands each connection to a function, in a thread."""

    def __init__(self, serve, family: int = socket.AF_INET) -> None:
        self._listener = socket.socket(family)
        self._listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        self._listener.listen(200)
        self.port = self._listener.getsockname()[1]
        self.met = 0
        self._serve = serve
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.met += 1
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            self._serve(connection)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def echo(connection: socket.socket) -> None:
    """Send everything back."""
    while data := connection.recv(1 << 16):
        connection.sendall(data)


def greet_first(connection: socket.socket) -> None:
    """Speak first, as mail and SSH servers do; then send everything back."""
    connection.sendall(b"220 hello\r\n")
    echo(connection)


@contextlib.contextmanager
def serving(server) -> Iterator:
    """Close a server in the end."""
    try:
        yield server
    finally:
        server.close()


def repository(top: Path) -> Path:
    """Make a small git repository that a plain web server can serve."""
    work, bare = top / "work", top / "served" / "repository.git"
    name = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]

    def git(*arguments: object) -> None:
        subprocess.run(["git", *name, *map(str, arguments)], check=True, capture_output=True)

    git("init", "-q", work)
    (work / "file.txt").write_text("from the repository\n")
    git("-C", work, "add", ".")
    git("-C", work, "commit", "-qm", "one")
    git("clone", "-q", "--bare", work, bare)
    git("-C", bare, "update-server-info")
    return bare.parent


class Files(_Server):
    """A plain web server of a directory."""

    def __init__(self, directory: Path) -> None:
        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments: object) -> None:
                super().__init__(*arguments, directory=str(directory))

            def log_message(self, *_arguments: object) -> None:
                return

        super().__init__(("127.0.0.1", 0), Handler)
        self.serve()


class Git(_Server):
    """A server that git repositories can be pushed to, which remembers what it was asked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _GitHandler)
        self.serve()


class _GitHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        server = self.server
        assert isinstance(server, Git)
        path, _, query = self.path.partition("?")
        server.asked.append(f"{self.command} {path}")
        variables = {
            "GIT_PROJECT_ROOT": str(server.directory), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path,
            "QUERY_STRING": query, "REQUEST_METHOD": self.command, "REMOTE_USER": "ada",
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
        }  # fmt: skip
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        done = subprocess.run(
            ["git", "http-backend"], input=body, env=os.environ | variables, check=True, capture_output=True
        )
        self.wfile.write(b"HTTP/1.0 200 OK\r\n" + done.stdout)

    def log_message(self, *_arguments: object) -> None:
        return
