"""The process that commands are forked off (tests/forked.py), and with its socket's path, a client that has one forked.

Neither loads more than it must.
"""

import json
import os
import signal
import socket
import sys

HEADER = 8


class Asked:
    """One command, forked off a loaded process."""

    def __init__(
        self, place: str, words: list[str], cwd: str, environment: dict[str, str], streams: list[int]
    ) -> None:
        """Start it with these streams."""
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(place)
        told = json.dumps([words, cwd, environment]).encode()
        socket.send_fds(self.socket, [len(told).to_bytes(HEADER, "big")], streams)
        self.socket.sendall(told)
        self.pid = int.from_bytes(exactly(self.socket, HEADER), "big")

    def wait(self) -> int:
        """Wait for its end; returns its status as the kernel has it."""
        return int.from_bytes(exactly(self.socket, HEADER), "big")


def exactly(connection: socket.socket, size: int) -> bytes:
    """Read so many bytes."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the loaded process went away")
        data += more
    return data


def begin_databases_whole() -> None:
    """Have each new database begin as a copy of one with its tables: to make these takes longer than many a test."""
    import tempfile

    from fumehood.linux.lock import lock_directory
    from fumehood.store import database

    make, connect, steps = database._make, database.Database._connect, database.MIGRATIONS
    with tempfile.TemporaryDirectory() as folder:
        database.Database(f"{folder}/database").close()
        with open(f"{folder}/database", "rb") as file:
            whole = file.read()

    def copied(path: str) -> None:
        if database.MIGRATIONS is not steps:
            make(path)
            return
        with lock_directory(os.path.dirname(path)):
            if not os.path.exists(path):
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(f"{path}.new", flags, 0o600), "wb") as file:
                    file.write(whole)
                os.rename(f"{path}.new", path)

    def connected(self: database.Database) -> None:
        is_new = not os.path.exists(self.path)
        connect(self)
        self.was_made |= is_new

    database._make, database.Database._connect = copied, connected


def serve(place: str, paths: list[str], prefix: str, modules: list[str], started: list[str]) -> None:
    """Load the modules, and fork for each connection until our input ends."""
    import gc
    import importlib
    import select

    gc.disable()
    sys.path += paths
    sys.prefix = sys.exec_prefix = prefix
    for module in ("faces.cli.main", *modules):
        importlib.import_module(f"fumehood.{module}")
    begin_databases_whole()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    os.write(1, b"+")
    while select.select([0, listener], [], [])[0] == [listener]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            attend(connection, started)
        connection.close()


def attend(connection: socket.socket, started: list[str]) -> None:
    """Fork what becomes the command, and tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    header, streams, _, _ = socket.recv_fds(connection, HEADER, 3)
    words, cwd, environment = json.loads(exactly(connection, int.from_bytes(header, "big")))
    child = os.fork()
    if child == 0:
        connection.close()
        sys.orig_argv, sys.argv = [*started, *words], [started[-1], *words]
        become(cwd, environment, streams)
    for stream in (0, 1, 2, *streams):
        os.close(stream)
    connection.sendall(child.to_bytes(HEADER, "big"))
    connection.sendall(os.waitpid(child, 0)[1].to_bytes(HEADER, "big"))
    os._exit(0)


def become(cwd: str, environment: dict[str, str], streams: list[int]) -> None:
    """Be the command line, as if it had been started so."""
    from fumehood.faces.cli.main import command

    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    for stream in streams:
        os.close(stream)
    command()


def be_a_client(place: str, words: list[str]) -> None:
    """Have a command forked off with our own streams, and end as it does."""
    asked = Asked(place, words, os.getcwd(), dict(os.environ), [0, 1, 2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: os.kill(asked.pid, number))
    for stream in (0, 1, 2):
        os.close(stream)
    code = os.waitstatus_to_exitcode(asked.wait())
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    if sys.argv[1].startswith("{"):
        serve(**json.loads(sys.argv[1]))
    else:
        be_a_client(sys.argv[1], sys.argv[2:])
