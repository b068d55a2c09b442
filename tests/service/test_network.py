"""What a command reaches: nothing by default, and what was granted."""

import json
import os
import resource
import socket
import subprocess
import threading

import pytest

from conftest import need
from fumehood import Policy, Sandbox
from fumehood.errors import BadRequest, Refused
from fumehood.linux import libc
from fumehood.linux.confine import can_scope
from fumehood.linux.probe import Host
from patience import LONG_S, eventually, with_enough_time
from people import Person
from servers import Files, Tcp, Web, echo, repository, serving
from trees import make_tree

pytestmark = pytest.mark.namespaces

FETCH = "curl -sS -m 100 http://{place}/"


@pytest.fixture
def web():
    with serving(Web()) as web:
        yield web


@pytest.fixture
def other():
    with serving(Web(b"other\n")) as web:
        yield web


@pytest.fixture
def box(home, project, person):
    with Sandbox(project, ask=person) as sandbox:
        yield sandbox


def serving_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fumehood-prox")]


def ports(run, *, allowed):
    return [each.port for each in run.connections if each.allowed == allowed]


def test_by_default_nothing_is_reached_and_nobody_is_asked(box, web, person):
    run = box.run(FETCH.format(place=f"127.0.0.1:{web.port}"))
    assert run.exit_code == 7
    assert (run.network, web.asked, person.asked, list(run.connections)) == ("none", [], [], [])


def test_a_granted_host_is_reached_and_others_are_not(box, web, other, person):
    here, there = f"127.0.0.1:{web.port}", f"127.0.0.1:{other.port}"
    run = box.run(f"{FETCH} && ! curl -sS -m 100 -f --noproxy '' http://{there}/".format(place=here), network=[here])
    assert run.exit_code == 0, run.output
    assert run.stdout == "hello\n"
    assert other.asked == []
    assert (run.network, run.hosts) == ("hosts", (here,))
    assert ports(run, allowed=True) == [web.port]
    assert ports(run, allowed=False) == [other.port]
    (question,) = person.asked
    assert question.text.startswith("Run command with network access: curl")
    assert question.details == (here,)
    assert question.one_time_only
    (blocked,) = [each for each in run.blocked if each.what == "network"]
    assert blocked.detail == there
    assert f"--allow-host {there}" in blocked.hint
    assert there in run.for_model()


def test_a_no_runs_nothing_and_is_recorded(home, project, web):
    with Sandbox(project, ask=Person(answer=False)) as box:
        with pytest.raises(Refused, match="Permission denied: Run command with network access"):
            box.run("touch made", network=[f"127.0.0.1:{web.port}"])
        (run,) = box.history()
    assert (run.state, run.exit_code) == ("refused", 126)
    assert not (project / "made").exists()


def test_hosts_of_the_persons_own_policy_need_no_question(home, project, web, person):
    place = f"127.0.0.1:{web.port}"
    with Sandbox(project, Policy(hosts=(place,)), ask=person) as box:
        assert box.run(FETCH.format(place=place)).stdout == "hello\n"
        assert box.run(FETCH.format(place=place), network=[place]).stdout == "hello\n"
    assert person.asked == []


def test_a_name_that_is_no_host_is_refused_before_anything_runs(box, person):
    with pytest.raises(BadRequest, match="is not a host"):
        box.run("true", network=["http://example.org/"])
    assert (person.asked, box.history()) == ([], [])


def test_the_record_has_every_connection(box, web, other, cli):
    here = f"127.0.0.1:{web.port}"
    command = f"curl -sS http://{here}/; curl -sS -m 100 --noproxy '' http://127.0.0.1:{other.port}/"
    run = box.run(command, network=[here])
    (recorded,) = box.history()
    assert [each.fields() for each in recorded.connections] == [each.fields() for each in run.connections]
    assert recorded.hosts == (here,)
    for arguments in (("show", run.id, "--json"), ("log", "--json")):
        told = json.loads(cli(*arguments).stdout)
        told = told["runs"][0] if "runs" in told else told
        reached, refused = told["connections"]
        assert (reached["host"], reached["port"], reached["allowed"]) == ("127.0.0.1", web.port, True)
        assert reached["received"] > 6
        assert (refused["port"], refused["allowed"], refused["reason"]) == (
            other.port, False, "this host was not granted"
        )  # fmt: skip
    shown = cli("show", run.id).stdout
    assert f"allowed 127.0.0.1:{web.port} at 127.0.0.1" in shown
    assert f"refused 127.0.0.1:{other.port}" in shown


def test_a_port_of_this_machine_is_reached_by_programs_that_know_no_proxy(box):
    with serving(Tcp(echo)) as there:
        code = (
            f"import socket; c = socket.create_connection(('localhost', {there.port})); c.sendall(b'ping');"
            "print(c.recv(9).decode())"
        )
        run = box.run(["python3", "-c", code], network=[f"localhost:{there.port}"])
    assert run.stdout == "ping\n", run.output


def test_a_server_of_the_commands_own_is_not_asked_for_at_the_proxy(box):
    command = (
        "python3 -m http.server --bind 127.0.0.1 8765 >/dev/null 2>&1 & "
        "for n in $(seq 500); do curl -sS -o /dev/null -f http://localhost:8765/ && exit 0; sleep 0.2; done; exit 1"
    )
    run = box.run(command, network=["example.org:443"])
    assert run.exit_code == 0, run.output
    assert list(run.connections) == []


def test_every_usual_program_is_led_to_the_proxy(box):
    run = box.run("env", network=["example.org"])
    found = dict(line.partition("=")[::2] for line in run.stdout.splitlines())
    url = found["HTTPS_PROXY"]
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy", "PIP_PROXY", "npm_config_https_proxy",
             "CARGO_HTTP_PROXY")  # fmt: skip
    assert {found[name] for name in names} == {url}
    assert found["NO_PROXY"] == found["no_proxy"] == "localhost,127.0.0.1,::1"
    assert found["NODE_USE_ENV_PROXY"] == "1"


def test_the_persons_own_proxy_and_its_password_stay_outside(home, project, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://ada:hidden@proxy.example:3128")
    with Sandbox(project, ask=Person()) as box:
        assert "hidden" not in box.run("env").stdout
        assert "hidden" not in box.run("env", network=["example.org"]).stdout


def test_what_a_command_sends_to_the_proxy_waits_for_no_timer(box):
    code = "import socket; print(socket.socket().getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16))"
    assert "reno" in box.run(["python3", "-c", code], network=["example.org"]).stdout


def test_curl_by_socks(box, web):
    place = f"127.0.0.1:{web.port}"
    run = box.run(f"curl -sS -m 100 --noproxy '' -x socks5h://${{HTTP_PROXY#http://}} http://{place}/", network=[place])
    assert run.stdout == "hello\n", run.output
    assert [each.protocol for each in run.connections] == ["socks5"]


def test_git_clones_over_http(box, project, test_directory):
    with serving(Files(repository(test_directory))) as files:
        # By a name that goes by the proxy, as any host would.
        place = f"127.0.0.1:{files.port}"
        command = f"git -c http.proxy=$http_proxy clone -q http://{place}/repository.git copy"
        run = box.run(f"NO_PROXY= no_proxy= {command}", network=[place])
    assert run.exit_code == 0, run.output
    assert (project / "copy/file.txt").read_text() == "from the repository\n"
    assert {each.protocol for each in run.connections} == {"http"}


@pytest.mark.long
def test_pip_installs_through_the_proxy(box, project):
    try:
        with socket.create_connection(("pypi.org", 443), 5):
            pass
    except OSError as error:
        pytest.skip(f"the package index can't be reached: {error}")
    if subprocess.run(["python3", "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("this Python has no pip")
    command = (
        "python3 -m pip --isolated install -q --no-deps --no-cache-dir --disable-pip-version-check"
        " --retries 5 --timeout 60 --target packages --index-url https://pypi.org/simple six==1.17.0"
    )
    certificates = os.environ.get("PIP_CERT", "")
    run = box.run(
        command + (f" --cert {certificates}" if certificates else ""),
        network=["pypi.org:443", "files.pythonhosted.org:443"],
    )
    assert run.exit_code == 0, run.output
    assert (project / "packages/six.py").is_file()
    assert {each.host for each in run.connections} <= {"pypi.org", "files.pythonhosted.org"}
    assert all(each.allowed for each in run.connections)


def test_the_whole_network_is_this_machines(box, web, person):
    need(can_scope(), "the host's network can't be shared here")
    run = box.run(FETCH.format(place=f"127.0.0.1:{web.port}"), network=True)
    assert run.stdout == "hello\n", run.output
    assert run.network == "full"
    assert len(person.asked) == 1


def test_the_whole_network_by_policy_is_not_asked_for(home, project, web, person):
    need(can_scope(), "the host's network can't be shared here")
    with Sandbox(project, Policy(network="full"), ask=person) as box:
        assert box.run(FETCH.format(place=f"127.0.0.1:{web.port}")).stdout == "hello\n"
    assert person.asked == []


def test_git_moves_files_with_the_whole_network_too(home, project):
    need(can_scope(), "this kernel's Landlock has no scopes")
    author = "-c user.name=a -c user.email=a@b"
    with Sandbox(project, Policy(network="full")) as box:
        run = box.run(
            f"git init -q && mkdir old new && echo x > old/f && git add . && git {author} commit -qm one"
            " && git mv old/f new/g && ln new/g h && git status --short"
        )
    assert (run.exit_code, run.stdout) == (0, "R  old/f -> new/g\n?? h\n"), run.output


# By the proxy, though it is a port of this machine.
TRY = "curl -sS -m 100 -f --noproxy '' http://{place}/"


def test_a_failed_command_is_told_which_granted_host_was_not_reached(box, web):
    place = f"127.0.0.1:{web.port}"
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
        fetch = f"curl -sS -m 100 --noproxy '' -px $http_proxy http://{place}/ http://{dead}/"
        run = box.run(fetch, network=[place, dead])
    assert run.exit_code != 0
    (blocked,) = run.blocked
    assert (blocked.detail, blocked.hint) == (dead, "it was granted, but not reached: Connection refused")


def test_a_failed_command_is_told_that_there_is_no_network(box):
    run = box.run("curl -sS -m 100 https://example.org/")
    (blocked,) = [each for each in run.blocked if each.what == "network"]
    assert "example.org" in blocked.detail
    assert "--allow-host" in blocked.hint


def test_every_way_of_capturing_has_the_network(way, project, web):
    place = f"127.0.0.1:{web.port}"
    with Sandbox(project, Policy(capture=way), ask=Person()) as box:
        run = box.run(f"{TRY.format(place=place)} > got", network=[place])
    assert (project / "got").read_text() == "hello\n", run.output


def test_where_only_bubblewrap_makes_namespaces_the_listeners_are_made_inside(home, project, web, other, monkeypatch):
    monkeypatch.setattr(Host, "makes_namespaces", False)
    place = f"127.0.0.1:{web.port}"
    command = f"{TRY.format(place=place)} && curl -sS http://{place}/; ls -l /proc/self/fd | grep -c socket"
    with Sandbox(project, policy=Policy(capture="copy"), ask=Person()) as box:
        run = box.run(f"{command}; curl -s -f -m 100 --noproxy '' http://127.0.0.1:{other.port}/", network=[place])
        assert run.stdout == "hello\nhello\n0\n", run.output
        assert [each.allowed for each in run.connections] == [True, True, False]


DIRECT = """
import socket, sys
for name in sys.argv[2:]:
    c = socket.create_connection((name, int(sys.argv[1])), 100)
    c.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    print(name, c.recv(9999)[:15])
"""


def test_a_program_that_knows_no_proxy_reaches_granted_names_and_no_others(home, project, web, other, monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_given, **_more: found)
    (project / "direct.py").write_text(DIRECT.replace("\\\\", "\\"))
    # Where such a name leads is named too, or it would be refused for that.
    hosts = [f"granted.example:{web.port}", f"127.0.0.0/8:{web.port}-{web.port + 20}"]
    with Sandbox(project, ask=Person()) as box:
        run = box.run(f"python3 direct.py {web.port} granted.example refused.example", network=hosts)
    assert run.stdout == "granted.example b'HTTP/1.1 200 OK'\nrefused.example b''\n", run.output
    assert [(each.host, each.allowed) for each in run.connections] == [
        ("granted.example", True), ("refused.example", False)
    ]  # fmt: skip
    assert [each.detail for each in run.blocked] == [f"refused.example:{web.port}"]


def test_a_port_of_this_machine_and_the_same_port_of_a_name_are_told_apart(box, project):
    (project / "direct.py").write_text(
        "import socket, sys\nfor name in sys.argv[1:]: socket.create_connection((name, 443), 100).recv(1)\n"
    )
    run = box.run("python3 direct.py localhost other.example", network=["localhost:443"])
    assert [(each.host, each.allowed) for each in run.connections] == [("localhost", True), ("other.example", False)]


def test_where_names_are_reached_this_machine_is_refused_and_recorded(box, project):
    (project / "direct.py").write_text(
        "import socket\nfor port in (22, 80, 443, 5432):\n"
        "    try: print(socket.create_connection(('127.0.0.1', port), 100).recv(1))\n"
        "    except ConnectionResetError: print('reset')\n"
    )
    run = box.run("python3 direct.py", network=["db.example:5432"])
    assert run.stdout == "reset\n" * 4, run.output
    assert [(each.host, each.port, each.allowed) for each in run.connections] == [
        ("127.0.0.1", port, False) for port in (22, 80, 443, 5432)
    ]  # fmt: skip
    assert "--allow-host 127.0.0.1:22 " in run.blocked[0].hint


def test_a_command_in_a_root_tree_reaches_what_it_was_granted(home, project, test_directory, web, other):
    tree = make_tree(test_directory / "tree")
    place = f"127.0.0.1:{web.port}"
    with Sandbox(project, ask=Person()) as box:
        command = f"wget -q -O - http://{place}/; wget -q -T 100 -Y on -O - http://name.example:{other.port}/"
        run = box.run(command, network=[place], root=tree)
    assert run.stdout == "hello\n", run.output
    assert other.asked == []


def test_descriptors_beyond_a_thousand_are_no_trouble(box, web):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need(hard == resource.RLIM_INFINITY or hard >= 2048, "this many descriptors are not allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        place = f"127.0.0.1:{web.port}"
        run = box.run(f"{FETCH.format(place=place)} && {TRY.format(place=place)}", network=[place])
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert run.stdout == "hello\nhello\n", run.output


@pytest.mark.long
def test_many_runs_at_once_each_have_their_own(home, project, web, other):
    place = f"127.0.0.1:{web.port}"
    results = []
    with Sandbox(project, ask=Person()) as box:

        def work(number):
            command = f"{TRY.format(place=place)}; curl -s -f -m 100 --noproxy '' http://127.0.0.1:{other.port}/"
            results.append((number, box.run(command, network=[place])))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [run.stdout for _, run in results] == ["hello\n"] * 50
    assert {tuple(each.allowed for each in run.connections) for _, run in results} == {(True, False)}
    assert other.asked == []
    assert eventually(lambda: not serving_threads())


def test_the_command_line_asks_and_nobody_is_there(cli, project, web):
    for options in (("--network",), ("--allow-host", f"127.0.0.1:{web.port}")):
        done = cli("run", *options, "--", "touch made")
        assert done.returncode == 126
        assert done.stderr.startswith("ERROR: Permission denied: Run command with network access: touch made")
        setting = 'network = "full"' if options == ("--network",) else f'hosts = ["{options[1]}"]'
        assert f"nobody was there to ask; what the configuration names needs no question: {setting}" in done.stderr
    assert not (project / "made").exists()
    assert json.loads(cli("log", "--json").stdout)["runs"][0]["state"] == "refused"


def test_the_command_line_uses_the_hosts_of_the_configuration(cli, home, project, web):
    place = f"127.0.0.1:{web.port}"
    configured(home, f'hosts = ["{place}"]\n')
    done = cli("run", "--", FETCH.format(place=place))
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    told = json.loads(cli("run", "--json", "--", FETCH.format(place=place)).stdout)
    assert (told["network"], told["hosts"], told["connections"][0]["port"]) == ("hosts", [place], web.port)


def test_a_proxied_run_leaves_no_descriptor_open(box, web):
    place = f"127.0.0.1:{web.port}"
    box.run("true", network=[place])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        box.run(FETCH.format(place=place), network=[place])
    # The server is in this process too, and closes its end when it hears of the other's.
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_a_run_that_is_ended_in_the_middle_of_a_transfer_lets_go_of_the_host(box):
    ends = threading.Event()

    def pour(connection):
        try:
            while True:
                connection.sendall(bytes(1 << 16))
        except OSError:
            ends.set()

    with serving(Tcp(pour)) as there:
        place = f"127.0.0.1:{there.port}"
        fetch = "import os, socket; c = socket.create_connection(('127.0.0.1', int(os.environ['HTTP_PROXY'][-5:])))"
        read = f"c.sendall(b'CONNECT {place} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')\nwhile True: c.recv(1 << 16)"
        run = with_enough_time(
            lambda limit: box.run(["python3", "-c", f"{fetch}\n{read}"], network=[place], timeout=limit),
            lambda run: sum(each.received for each in run.connections) > 1 << 20,
        )
        assert run.timed_out, run.output
        assert ends.wait(LONG_S)
    (seen,) = run.connections
    assert (seen.allowed, seen.received > 1 << 20) == (True, True)
    assert eventually(lambda: not serving_threads())


def configured(home, text):
    configuration = home / ".config/fumehood/config.toml"
    configuration.parent.mkdir(exist_ok=True)
    configuration.write_text(text)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another resolver here")
@pytest.mark.parametrize(
    "resolver",
    [
        "search default.svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n",
        "domain corp.local\nnameserver 10.0.0.1\n",
        "nameserver 2001:db8::53\nnameserver ::1\n",
        "",
    ],
)
def test_programs_that_know_no_proxy_ask_for_the_name_they_mean(box, test_directory, resolver):
    need(os.path.isfile("/etc/resolv.conf"), "this host has no /etc/resolv.conf")
    file = test_directory / "resolv.conf"
    file.write_text(resolver)
    libc.mount(str(file).encode(), b"/etc/resolv.conf", None, libc.MS_BIND, None)
    try:
        lines = "curl -sm 100 --noproxy '*' http://example.org/; curl -sm 100 --noproxy '*' http://build/"
        run = box.run(lines, network=["granted.example:80"])
    finally:
        libc.umount(b"/etc/resolv.conf", libc.MNT_DETACH)
    assert [(each.host, each.port, each.allowed) for each in run.connections] == [
        ("example.org", 80, False), ("build", 80, False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("resolver", "seen"),
    [
        ("search a.b\nnameserver 10.0.0.1\noptions timeout:2\n", "nameserver 10.0.0.1\noptions timeout:2\n"),
        ("nameserver 10.0.0.1\n", "nameserver 10.0.0.1\n"),
    ],
)
def test_in_a_tree_names_have_no_endings_either(home, project, test_directory, person, resolver, seen):
    tree = make_tree(test_directory / "tree")
    (tree / "etc/resolv.conf").write_text(resolver)
    with Sandbox(project, Policy(root=str(tree), hosts=("granted.example:80",)), ask=person) as box:
        assert box.run("cat /etc/resolv.conf").stdout == seen
