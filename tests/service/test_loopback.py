"""One loopback for a session: its commands reach each other's servers, and nobody else does."""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import command_line, need
from fumehood import Policy, Run, Sandbox
from fumehood.linux.confine import can_scope
from fumehood.linux.probe import Host, host
from fumehood.service import loopback
from fumehood.service.store import Store
from fumehood.store.places import places
from patience import LONG_S, eventually
from people import Person
from servers import Web, serving

pytestmark = pytest.mark.namespaces

# Says "ready" once it listens, says its name to whoever comes, and ends when a file comes to be in the session's /tmp.
SERVER = """exec python3 -u -c '
import os, select, socket, sys
name, port, stop = sys.argv[1], int(sys.argv[2]), "/tmp/stop-" + sys.argv[1]
listener = socket.create_server(("127.0.0.1", port))
print("ready")
while not os.path.exists(stop):
    if select.select([listener], [], [], 0.05)[0]:
        client, _ = listener.accept()
        client.sendall(name.encode() + b"\\n")
        client.close()
' {name} {port}"""
CLIENT = """python3 -c '
import socket
try:
    with socket.create_connection(("{host}", {port}), 60) as server: print(server.makefile().read(), end="")
except ConnectionRefusedError: print("refused")
'"""
PORT = 8099


def asking(port: int = PORT, host: str = "localhost") -> str:
    return CLIENT.format(host=host, port=port)


class Background:
    """A command that runs while the test goes on."""

    def __init__(self, box: Sandbox, command: str, **wishes: object) -> None:
        self._ready = threading.Event()
        self._runs: list[Run] = []
        self._thread = threading.Thread(target=self._run, args=(box, command, wishes))
        self._thread.start()

    def _run(self, box: Sandbox, command: str, wishes: dict[str, Any]) -> None:
        self._runs.append(box.run(command, on_output=self._say, **wishes))

    def _say(self, _stream: str, text: str) -> None:
        if "ready" in text:
            self._ready.set()

    def begun(self) -> None:
        assert eventually(lambda: self._ready.is_set() or not self._thread.is_alive())
        assert self._ready.is_set(), self._runs

    def ended(self) -> Run:
        self._thread.join(LONG_S)
        return self._runs[0]


Serve = Callable[..., Background]


@pytest.fixture
def agent(home: Path, project: Path) -> Iterator[Sandbox]:
    here = host(places().cache, places().state)
    need(here.makes_namespaces, f"only bubblewrap may make user namespaces here: {here.why}")
    with Sandbox(project, policy=Policy(tmp="session")) as sandbox:
        yield sandbox.session("agent")


@pytest.fixture
def serve(agent: Sandbox) -> Iterator[Serve]:
    served: list[tuple[Sandbox, str, Background]] = []

    def start(name: str = "one", port: int = PORT, box: Sandbox = agent, **wishes: object) -> Background:
        background = Background(box, SERVER.format(name=name, port=port), **wishes)
        served.append((box, name, background))
        background.begun()
        return background

    yield start
    for box, name, background in served:
        box.run(f"touch /tmp/stop-{name}")
        background.ended()


def stop(agent: Sandbox, background: Background, name: str) -> Run:
    agent.run(f"touch /tmp/stop-{name}")
    return background.ended()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_later_command_of_the_session_reaches_a_server(agent: Sandbox, serve: Serve, name: str) -> None:
    serve()
    assert agent.run(asking(host=name)).stdout == "one\n"


def test_it_is_reached_however_writes_are_captured(way: str, home: Path, project: Path) -> None:
    with Sandbox(project, policy=Policy(tmp="session", capture=way)) as sandbox:
        agent = sandbox.session("agent")
        server = Background(agent, SERVER.format(name="one", port=PORT))
        server.begun()
        run = agent.run(asking())
        stop(agent, server, "one")
    assert (run.capture, run.stdout, run.blocked) == (way, "one\n", ())


def test_nobody_else_reaches_it(agent: Sandbox, serve: Serve, sandbox: Sandbox) -> None:
    serve()
    assert sandbox.run(asking()).stdout == "refused\n"
    assert sandbox.session("another").run(asking()).stdout == "refused\n"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", PORT), LONG_S)


def test_it_is_reached_from_another_process_too(
    begun: Callable[..., subprocess.Popen[str]], cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    begun(SERVER.format(name="one", port=PORT), "--session", "agent")
    assert cli("run", "--session", "agent", "--", asking()).stdout == "one\n"
    assert cli("run", "--session", "another", "--", asking()).stdout == "refused\n"


def test_commands_that_begin_at_once_have_one_loopback(agent: Sandbox) -> None:
    count = 5
    # Each serves until it has been asked by all, and asks all: those who are in another network never come.
    line = f"""python3 -c '
import socket, sys, threading
own = int(sys.argv[1])
listener = socket.create_server(("127.0.0.1", {PORT} + own), backlog=50)
def serve():
    for _ in range({count}):
        client, _ = listener.accept()
        client.sendall(b"x")
        client.close()
serving = threading.Thread(target=serve)
serving.start()
for other in range({count}):
    while True:
        try:
            with socket.create_connection(("127.0.0.1", {PORT} + other), 60) as server: assert server.recv(1) == b"x"
            break
        except ConnectionRefusedError: pass
serving.join()
' """
    with ThreadPoolExecutor(count) as threads:
        runs = list(threads.map(lambda number: agent.run(f"{line}{number}", timeout=LONG_S), range(count)))
    assert [run.exit_code for run in runs] == [0] * count


def test_a_third_joins_the_second_when_the_first_has_ended(agent: Sandbox, serve: Serve) -> None:
    first = serve("first")
    serve("second", PORT + 1)
    stop(agent, first, "first")
    assert agent.run(asking(PORT)).stdout == "refused\n"
    assert agent.run(asking(PORT + 1)).stdout == "second\n"


def test_when_all_have_ended_nothing_is_left(agent: Sandbox, serve: Serve, store: Store) -> None:
    stop(agent, serve(), "one")
    assert loopback.open_running_network(store.places, "agent") == -1
    assert agent.run(asking()).stdout == "refused\n"
    assert os.listdir(store.places.session("agent")) == ["tmp"]


def test_a_server_that_leaves_its_command_ends_with_it(agent: Sandbox, serve: Serve) -> None:
    serve("other", PORT + 1)
    line = SERVER.format(name="left", port=PORT).removeprefix("exec ")
    run = agent.run(f"setsid -f {line} > /tmp/log 2>&1; until grep -q ready /tmp/log; do sleep 0.1; done")
    assert run.exit_code == 0
    assert agent.run(asking()).stdout == "refused\n"


def test_what_a_dead_process_left_is_not_joined(
    agent: Sandbox, begun: Callable[..., subprocess.Popen[str]], store: Store
) -> None:
    process = begun(SERVER.format(name="one", port=PORT), "--session", "agent")
    process.kill()
    process.wait()
    assert len([name for name in os.listdir(store.places.session("agent")) if name.endswith(loopback._MARK)]) == 1
    assert agent.run(asking()).stdout == "refused\n"
    assert not [name for name in os.listdir(store.places.session("agent")) if name.endswith(loopback._MARK)]


def test_a_command_can_neither_see_nor_signal_the_processes_of_another(
    agent: Sandbox, serve: Serve
) -> None:
    serve()
    seen = agent.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; trap '' TERM; kill -TERM -1; kill -KILL -1")
    assert "python3" not in seen.stdout.replace("cat", "")
    assert "kill -TERM" in seen.stdout
    assert agent.run(asking()).stdout == "one\n"


def test_a_command_has_no_privilege_in_the_network_it_shares(agent: Sandbox, serve: Serve) -> None:
    serve()
    attempts = """python3 -c '
import fcntl, socket
def tried(what, attempt):
    try: attempt()
    except OSError as error: print(what, "refused")
    else: print(what, "DONE")
down = b"lo".ljust(16, b"\\0") + bytes(24)
tried("down", lambda: fcntl.ioctl(socket.socket(), 0x8914, down))
tried("raw", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))
tried("low", lambda: socket.create_server(("127.0.0.1", 80)))
tried("sysctl", lambda: open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w").write("0"))
'"""
    assert agent.run(attempts).stdout.splitlines() == [f"{each} refused" for each in ("down", "raw", "low", "sysctl")]
    assert agent.run(asking()).stdout == "one\n"


def test_an_abstract_socket_of_another_command_is_not_reached(agent: Sandbox) -> None:
    need(can_scope(), "this kernel's Landlock has no scopes")
    tries = """python3 -u -c '
import os, socket, time
address = chr(0) + "of-the-session"
{}
\'"""
    server = Background(agent, tries.format("""
listener = socket.socket(socket.AF_UNIX)
listener.bind(address)
listener.listen()
with socket.socket(socket.AF_UNIX) as own: own.connect(address)
print("ready")
while not os.path.exists("/tmp/stop-one"): time.sleep(0.05)
"""))  # fmt: skip
    server.begun()
    run = agent.run(tries.format("socket.socket(socket.AF_UNIX).connect(address)"))
    stop(agent, server, "one")
    assert "PermissionError" in run.stderr


def test_processes_are_counted_for_each_command_by_itself(agent: Sandbox, project: Path) -> None:
    """What one command has does not keep another from starting its own."""
    policy = Policy(tmp="session", limits=Policy().limits.replace(processes=40))
    busy = "for i in $(seq 30); do sleep 1000 & done; echo ready; until test -e /tmp/stop; do sleep 0.1; done; exit 0"
    with Sandbox(project, policy=policy) as whole:
        box = whole.session("agent")
        backgrounds = [Background(box, busy) for _ in range(3)]
        for each in backgrounds:
            each.begun()
        run = box.run("for each in $(seq 30); do sleep 0 & done; wait; touch /tmp/stop")
        assert (run.exit_code, run.stderr) == (0, "")
        assert {each.ended().exit_code for each in backgrounds} == {0}


def test_where_a_network_can_not_be_shared_the_session_is_told_once(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "makes_namespaces", False)
    with Sandbox(project, policy=Policy(capture="copy")) as sandbox:
        agent = sandbox.session("agent")
        told = [[each.hint for each in agent.run("true").blocked] for _ in range(2)]
        assert agent.run(asking()).stdout == "refused\n"
    reason = "only bubblewrap may make user namespaces here"
    assert told == [[f"what others of the session serve at 127.0.0.1 is not reached here: {reason}"], []]


class Forwarding:
    """The command `forward`, as a person runs it."""

    def __init__(self, project: Path, *words: str) -> None:
        self._process = subprocess.Popen(
            [*command_line(), "forward", *words], cwd=project, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline()

    def end(self) -> tuple[int, str]:
        self._process.send_signal(signal.SIGINT)
        _, complaints = self._process.communicate(timeout=LONG_S)
        return self._process.returncode, complaints


@pytest.fixture
def forward(project: Path) -> Iterator[Callable[..., Forwarding]]:
    made: list[Forwarding] = []

    def start(*words: str) -> Forwarding:
        made.append(Forwarding(project, *words))
        return made[-1]

    yield start
    for each in made:
        each.end()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def read_from(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), LONG_S) as connection:
        return connection.makefile().read()


def test_a_port_of_the_latest_session_is_forwarded_to_a_person(
    serve: Serve, forward: Callable[..., Forwarding]
) -> None:
    serve()
    port = free_port()
    forwarding = forward(str(PORT), "--to", str(port))
    assert forwarding.said == f"http://127.0.0.1:{port}/ is port {PORT} of session agent; Ctrl-C ends it\n"
    assert [read_from(port) for _ in range(3)] == ["one\n"] * 3
    assert forwarding.end() == (0, "")
    with pytest.raises(ConnectionRefusedError):
        read_from(port)


def test_much_is_forwarded_both_ways(agent: Sandbox, forward: Callable[..., Forwarding]) -> None:
    echo = """exec python3 -u -c '
import shutil, socket
listener = socket.create_server(("127.0.0.1", 8099))
print("ready")
client, _ = listener.accept()
with client.makefile("rb") as reading, client.makefile("wb") as writing: shutil.copyfileobj(reading, writing)
'"""
    server = Background(agent, echo)
    server.begun()
    port = free_port()
    forward("8099", "--session", "agent", "--to", str(port))
    data = os.urandom(1 << 22)
    with socket.create_connection(("127.0.0.1", port), LONG_S) as connection:
        sending = threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR)))
        sending.start()
        assert connection.makefile("rb").read() == data
        sending.join()
    assert server.ended().exit_code == 0


def test_what_can_not_be_forwarded_says_why(
    agent: Sandbox, forward: Callable[..., Forwarding], cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    assert "there is no session nobody" in cli("forward", "8099", "--session", "nobody").stderr
    assert "no command of a session runs now" in cli("forward", "8099").stderr
    agent.run("true")
    port = free_port()
    forwarding = forward(str(PORT), "--session", "agent", "--to", str(port))
    assert read_from(port) == ""
    status, complaints = forwarding.end()
    assert (status, complaints) == (0, "no command of session agent runs now\n")
    with socket.create_server(("127.0.0.1", port)):
        assert "Address already in use" in cli("forward", "1", "--session", "agent", "--to", str(port)).stderr


def test_a_connection_that_ended_leaves_no_process(
    agent: Sandbox, serve: Serve, forward: Callable[..., Forwarding]
) -> None:
    serve()
    port = free_port()
    pid = forward(str(PORT), "--session", "agent", "--to", str(port))._process.pid
    assert read_from(port) == "one\n"
    assert eventually(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text() == "")


def test_what_has_the_whole_network_needs_no_forwarding(
    project: Path, agent: Sandbox, person: Person, cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    need(can_scope(), "the host's network can't be shared here")
    with Sandbox(project, policy=Policy(tmp="session"), ask=person) as sandbox:
        whole = Background(sandbox.session("agent"), f"echo ready{WAIT.format(name='whole')}", network=True)
        whole.begun()
        refused = cli("forward", str(PORT), "--session", "agent", "--to", str(free_port()))
        sandbox.session("agent").run("touch /tmp/stop-whole")
        whole.ended()
    assert (refused.returncode, "has the whole network" in refused.stderr) == (125, True)
    assert f"http://127.0.0.1:{PORT}/" in refused.stderr


# --- with hosts: each command gets out by its own permissions ---

FETCH = "curl -sS -m 60 http://127.0.0.1:{port}/"
BY_PROXY = "curl -sS -m 60 -f --noproxy '' -x http://127.0.0.1:1023 http://127.0.0.1:{port}/"
WAIT = "; echo ready; until test -e /tmp/stop-{name}; do sleep 0.1; done"


@pytest.fixture
def webs() -> Iterator[tuple[Web, Web]]:
    with serving(Web(b"first\n")) as one, serving(Web(b"second\n")) as other:
        yield one, other


@pytest.fixture
def asked(project: Path, agent: Sandbox, person: Person) -> Iterator[Sandbox]:
    """The session of an agent whose person says yes to every host."""
    with Sandbox(project, policy=Policy(tmp="session"), ask=person) as sandbox:
        yield sandbox.session("agent")


def place(web: Web) -> str:
    return f"127.0.0.1:{web.port}"


def test_a_command_with_hosts_reaches_the_sessions_servers_and_its_own_hosts(
    agent: Sandbox, asked: Sandbox, serve: Serve, webs: tuple[Web, Web]
) -> None:
    serve()
    run = asked.run(f"{asking()}; {FETCH.format(port=webs[0].port)}", network=[place(webs[0])])
    assert run.stdout == "one\nfirst\n", run.output
    assert [each.port for each in run.connections] == [webs[0].port]


def test_a_server_of_a_command_with_hosts_is_reached(
    agent: Sandbox, asked: Sandbox, serve: Serve, webs: tuple[Web, Web]
) -> None:
    serve(box=asked, network=[place(webs[0])])
    assert agent.run(asking()).stdout == "one\n"


def test_each_command_gets_out_by_its_own_permissions(
    agent: Sandbox, asked: Sandbox, serve: Serve, webs: tuple[Web, Web]
) -> None:
    one, other = webs
    serve(box=asked, network=[place(one)])
    line = "; ".join(form.format(port=web.port) for form in (FETCH, BY_PROXY) for web in webs)
    run = asked.run(line, network=[place(other)])
    assert run.stdout == "second\nsecond\n", run.output
    assert [each.port for each in run.connections if each.allowed] == [other.port] * 2
    nothing = agent.run(line)
    assert nothing.stdout == "", nothing.output
    assert (len(one.asked), len(other.asked)) == (0, 2)


def test_what_both_were_granted_both_reach_until_the_last_has_ended(
    agent: Sandbox, asked: Sandbox, webs: tuple[Web, Web]
) -> None:
    network = [place(webs[0])]
    fetch = "; ".join(form.format(port=webs[0].port) for form in (FETCH, BY_PROXY))
    first = Background(asked, f"{fetch}{WAIT.format(name='first')}; {fetch}", network=network)
    first.begun()
    second = Background(asked, f"{fetch}{WAIT.format(name='second')}; {fetch}", network=network)
    second.begun()
    runs = [stop(agent, first, "first"), stop(agent, second, "second")]
    assert [run.stdout.count("first\n") for run in runs] == [4, 4], [run.output for run in runs]
    assert [sum(each.count for each in run.connections) for run in runs] == [4, 4]


@pytest.mark.long
def test_many_with_hosts_at_once_each_reach_them(asked: Sandbox, webs: tuple[Web, Web]) -> None:
    fetch = "; ".join([form.format(port=webs[0].port) for form in (FETCH, BY_PROXY)] * 5)
    with ThreadPoolExecutor(5) as threads:
        runs = list(threads.map(lambda _: asked.run(fetch, network=[place(webs[0])]), range(5)))
    assert [run.stdout for run in runs] == ["first\n" * 10] * 5, [run.output for run in runs]


def test_what_a_command_without_hosts_sends_and_leaves_behind_goes_nowhere(
    agent: Sandbox, asked: Sandbox, serve: Serve, webs: tuple[Web, Web]
) -> None:
    """Closed at once, the address and port that it came from could be those of another connection by now."""
    web = webs[0]
    serve(box=asked, network=[place(web)])
    line = f"""python3 -c '
import socket, struct
for port, linger in [(port, linger) for port in (1023, {web.port}) for linger in (False, True)] * 20:
    with socket.create_connection(("127.0.0.1", port), 60) as proxy:
        if linger: proxy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        proxy.sendall(b"GET http://{place(web)}/ HTTP/1.0\\r\\n\\r\\n")
'"""
    assert agent.run(line).exit_code == 0
    run = asked.run(FETCH.format(port=web.port), network=[place(web)])
    assert run.stdout == "first\n"
    assert len(web.asked) == 1


def test_a_granted_port_that_a_command_has_taken_is_told(
    agent: Sandbox, asked: Sandbox, serve: Serve, webs: tuple[Web, Web]
) -> None:
    serve(port=webs[0].port)
    run = asked.run(asking(webs[0].port), network=[place(webs[0])])
    assert run.stdout == "one\n"
    told = [each.detail for each in run.blocked if each.hint == "another command of the session listens there"]
    assert told == [f"localhost:{webs[0].port}"]


NAMES = """python3 -c '
import socket, sys
for name in sys.argv[1:]:
    try: print(socket.getaddrinfo(name, 80, socket.AF_INET)[0][4][0][:7])
    except socket.gaierror: print("none")
' """


def test_names_are_found_by_commands_with_hosts_only(agent: Sandbox, asked: Sandbox, serve: Serve) -> None:
    serve(box=asked, network=["example.org"])
    names = f"{NAMES} example.org {' '.join(f'{number}.example.org' for number in range(20))}"
    assert asked.run(names, network=["example.net"]).stdout == "198.18.\n" * 21
    assert agent.run(names).stdout == "none\n" * 21


def test_an_address_of_a_name_leads_where_the_command_may_go(
    asked: Sandbox, serve: Serve, webs: tuple[Web, Web], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever proxy answers for the name, and whichever accepts the connection."""
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_given, **_more: addresses)
    port = webs[0].port
    network = [f"web.example:{port}", f"127.0.0.1:{port}-{port + 20}"]
    serve(box=asked, network=network)
    fetch = f"curl -sS -m 60 --noproxy '*' http://web.example:{port}/"
    run = asked.run("; ".join([fetch] * 10), network=network)
    assert run.stdout == "first\n" * 10, run.output
    assert {each.protocol for each in run.connections} == {"forward"}
