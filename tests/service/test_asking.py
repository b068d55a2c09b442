"""`network = "ask"`: a connection waits while a person is asked, and goes on with the answer; nothing runs twice."""

import asyncio
import os
import socket
import subprocess
import threading
import time

import pytest

from at_terminal import Terminal
from conftest import command_line
from fumehood import Policy, Sandbox
from fumehood.linux.probe import Host
from fumehood.service.opened import OpenedStore
from patience import LONG_S, eventually, with_enough_time
from people import Person
from servers import Git, Tcp, Web, echo, repository, serving

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

# By the proxy, though it is a port of this machine.
TRY = "curl -sS -m 100 -f --noproxy '' http://{place}/"
POST = "curl -sS -m 100 -f --noproxy '' -d sent http://{place}/"
ASK = Policy(network="ask")


@pytest.fixture
def web():
    with serving(Web()) as web:
        yield web


@pytest.fixture
def other():
    with serving(Web(b"other\n")) as web:
        yield web


@pytest.fixture
def asking(home, project, person):
    with Sandbox(project, ASK, ask=person) as sandbox:
        yield sandbox


def at(server):
    return f"127.0.0.1:{server.port}"


def connections_served():
    return sum(thread.name == "fumehood-proxied" for thread in threading.enumerate())


def refusals(run):
    return {each.detail: each.hint for each in run.blocked if each.what == "network"}


def events(run):
    store = OpenedStore()
    try:
        return [(event.act, event.detail) for event in store.audit.events_of([run.run])[run.run]]
    finally:
        store.close()


class Page:
    """Somebody who is shown a question and does not answer it."""

    def __init__(self, shown=lambda: None):
        self.asked, self.closed = [], threading.Event()
        self._shown = shown

    def put(self, asked):
        self.asked.append(asked.question)
        asked.on_close(self.closed.set)
        self._shown()


def test_what_is_granted_goes_out_once(asking, project, web, person):
    (project / "log").write_text("")
    (project / "once").write_text("")
    post = POST.format(place=at(web))
    run = asking.run(f"echo begun >> log; rm once; mkdir new; {post} > new/got && echo done >> log")
    assert run.exit_code == 0, run.output
    assert [(method, body) for method, _, _, body in web.asked] == [("POST", b"sent")]
    assert (project / "log").read_text() == "begun\ndone\n"
    assert (project / "new/got").read_text() == "hello\n"
    assert [question.details for question in person.asked] == [(at(web),)]
    assert (run.state, run.network, run.hosts) == ("applied", "hosts", (at(web),))
    assert sorted(change.path for change in run.changes) == ["log", "new", "new/got", "once"]
    assert [each.allowed for each in run.connections] == [True]
    assert run.blocked == ()
    (recorded,) = asking.history()
    assert (recorded.network, recorded.hosts) == ("hosts", (at(web),))
    assert [act for act, _ in events(run)] == ["asked", "decided", "decided", "applied"]
    assert events(run)[1][1].startswith("allow once: Run command with network access: ")
    assert events(run)[1][1].endswith(f"({at(web)})")
    undo = asking.undo(run)
    assert undo.state == "applied"
    assert (project / "once").exists()
    assert not (project / "new").exists()


def test_git_pushes_once(asking, project, test_directory, person):
    served = repository(test_directory)
    subprocess.run(["git", "-C", served / "repository.git", "config", "http.receivepack", "true"], check=True)
    with serving(Git(served)) as server:
        address = f"http://{at(server)}/repository.git"
        author = "-c user.name=a -c user.email=a@b"
        run = asking.run(
            f"export NO_PROXY= no_proxy=; git clone -q {address} copy && cd copy && echo x > y && git add y"
            f" && git {author} commit -qm two && git push -q origin HEAD"
        )
        assert run.exit_code == 0, run.output
        assert server.asked.count("POST /repository.git/git-receive-pack") == 1
    assert [question.details for question in person.asked] == [(at(server),)]
    log = ["git", "-C", served / "repository.git", "log", "--format=%s"]
    assert subprocess.run(log, capture_output=True, text=True, check=True).stdout == "two\none\n"


def test_a_command_that_tries_nothing_asks_nothing(asking, project, person):
    run = asking.run("echo x >> once")
    assert (project / "once").read_text() == "x\n"
    assert (run.network, person.asked) == ("none", [])


def test_hosts_are_asked_for_in_turn_and_each_once(asking, project, web, other, person):
    one, two = TRY.format(place=at(web)), TRY.format(place=at(other))
    run = asking.run(f"set -e; {one} >> got; {two} >> got; {one} >> got")
    assert [question.details for question in person.asked] == [(at(web),), (at(other),)]
    assert run.exit_code == 0, run.output
    assert (project / "got").read_text() == "hello\nother\nhello\n"
    assert run.hosts == (at(web), at(other))


def test_connections_to_one_host_wait_for_one_question_and_others_for_theirs(home, project, web, other):
    asked, open_now, most_open = [], [], []

    def answer(question):
        asked.append(question.details)
        open_now.append(question)
        most_open.append(len(open_now))
        assert eventually(lambda: connections_served() >= 7 or len(asked) > 1)
        open_now.pop()
        return True

    fetch = " ".join([f"{TRY.format(place=at(web))} >> got &"] * 5 + [f"{TRY.format(place=at(other))} >> got &"] * 2)
    with Sandbox(project, ASK, ask=answer) as box:
        run = box.run(f"{fetch} wait")
    assert sorted(asked) == sorted([(at(web),), (at(other),)])
    assert most_open == [1, 1]
    assert sorted((project / "got").read_text().split()) == ["hello"] * 5 + ["other"] * 2
    assert [each.allowed for each in run.connections] == [True] * 7


def test_a_no_refuses_that_host_and_the_command_goes_on(home, project, web, other):
    def answer(question):
        asked.append(question.details)
        return question.details == (at(other),)

    asked = []
    no, yes = TRY.format(place=at(web)), TRY.format(place=at(other))
    with Sandbox(project, ASK, ask=answer) as box:
        run = box.run(f"touch made; {no} || {no} || {yes}")
    assert (run.state, run.exit_code, run.stdout) == ("applied", 0, "other\n")
    assert web.asked == []
    assert asked == [(at(web),), (at(other),)]
    assert (project / "made").exists()
    assert [(each.reason, each.count) for each in run.connections if not each.allowed] == [
        ("a person was asked and said no", 2)
    ]
    assert "a person was asked and said no" in refusals(run)[at(web)]
    assert (run.network, run.hosts) == ("hosts", (at(other),))
    assert [detail.partition(":")[0] for act, detail in events(run) if act == "decided"][:2] == [
        "deny once", "allow once"
    ]  # fmt: skip


def test_with_nobody_to_ask_it_is_refused_at_once_and_told(home, project, web):
    with Sandbox(project, ASK) as box:
        run = box.run(f"echo offline > made; {TRY.format(place=at(web))}; curl -sS http://localhost:{web.port}/; true")
    assert (run.state, run.network, web.asked) == ("applied", "none", [])
    assert (project / "made").read_text() == "offline\n"
    assert list(refusals(run)) == [at(web), f"localhost:{web.port}"]
    for name, hint in refusals(run).items():
        assert "after the start: nobody was there to ask" in hint
        assert f"--allow-host {name}" in hint
    missed = [each.ahead for each in OpenedStore().grants.missed(str(project))]
    assert [name for name in reversed(missed) if "hosts = [" in name] == [
        f'what the configuration names needs no question: hosts = ["{name}"]' for name in refusals(run)
    ]


def test_an_answer_that_does_not_come_in_time_is_a_no_for_every_other_host_too(home, project, web, other):
    page = Page()
    one, two = TRY.format(place=at(web)), TRY.format(place=at(other))
    with Sandbox(project, ASK.replace(ask_timeout=0.3), ask=page) as box:
        run = box.run(f"{one}; {two}; true")
    assert [question.details for question in page.asked] == [(at(web),)]
    assert page.closed.is_set()
    assert (web.asked, other.asked) == ([], [])
    assert {each.reason for each in run.connections} == {"nobody answered in time"}
    assert list(refusals(run)) == [at(web), at(other)]
    assert events(run)[1][1].startswith("deny once (nobody answered in time): ")


def test_the_time_that_a_person_takes_is_not_the_commands(home, project, web):
    def run(limit):
        def answer(_question):
            time.sleep(limit)
            return True

        with Sandbox(project, ASK, ask=answer) as box:
            fetch = TRY.format(place=at(web))
            return box.run(f"{fetch}; sleep 0.2; echo on; while :; do sleep 0.1; done", timeout=limit)

    ended = with_enough_time(run, lambda run: "on" in run.stdout)
    assert (ended.stdout, ended.timed_out) == ("hello\non\n", True), "it goes on after the answer, up to its limit"


def test_the_end_of_the_command_closes_the_question(home, project, test_directory, web):
    go = test_directory / "go"
    go.touch()  # now: what appears later is not seen through a view
    page = Page(lambda: go.write_text("go"))
    with Sandbox(project, ASK, ask=page) as box:
        run = box.run(f"{TRY.format(place=at(web))} & until [ -s {go} ]; do sleep 0.01; done; touch made")
    assert page.closed.is_set()
    assert (run.state, run.exit_code) == ("applied", 0)
    assert {each.reason for each in run.connections} == {"the question was cancelled"}
    assert eventually(lambda: not connections_served())
    (missed,) = OpenedStore().grants.missed()
    assert at(web) in missed.ahead


def test_an_agent_that_nobody_answered_is_told_what_it_can_type_itself(home, project, web):
    with Sandbox(project, ASK, session="agent") as box:
        run = box.run(TRY.format(place=at(web)))
    assert refusals(run)[at(web)].endswith(f"nobody was there to ask; to ask the person for it: fumehood ask {at(web)}")


def test_a_run_that_is_cancelled_closes_the_question(home, project, web):
    cancelled = threading.Event()
    page = Page(cancelled.set)
    with Sandbox(project, ASK, ask=page) as box:
        # Refused, it would end by itself, perhaps before anybody sees that it is to end.
        run = box.run(f"touch made; {TRY.format(place=at(web))}; sleep 1000", cancelled=cancelled.is_set)
    assert page.closed.is_set()
    assert run.state == "held"
    assert web.asked == []


def test_a_program_that_gave_up_and_tried_again_is_heard_once(home, project, web):
    (project / "twice.py").write_text(
        "import os, socket\n"
        "place = '127.0.0.1', int(os.environ['http_proxy'].rpartition(':')[2])\n"
        f"post = b'POST http://{at(web)}/ HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 4\\r\\n\\r\\nsent'\n"
        "first = socket.create_connection(place)\n"
        "first.sendall(post)\n"
        "first.close()\n"
        "second = socket.create_connection(place)\n"
        "second.sendall(post)\n"
        "print(second.recv(15))\n"
    )
    with Sandbox(project, ASK, ask=lambda _question: eventually(lambda: connections_served() == 2)) as box:
        run = box.run("python3 twice.py")
    assert run.stdout == "b'HTTP/1.1 200 OK'\n", run.output
    assert len(web.asked) == 1
    assert sorted(each.reason for each in run.connections) == [
        "", "the program had closed the connection before the person answered"
    ]  # fmt: skip


def test_an_error_in_asking_ends_the_command_and_is_raised(home, project, web):
    def answer(_question):
        raise ZeroDivisionError("the window is gone")

    with Sandbox(project, ASK, ask=answer) as box:
        with pytest.raises(ZeroDivisionError, match="the window is gone"):
            box.run(f"touch made; {TRY.format(place=at(web))}; sleep {LONG_S}")
        (run,) = box.history()
    assert (run.state, run.reason) == ("held", "ask raised ZeroDivisionError: the window is gone")
    assert list(project.iterdir()) == []


def test_an_async_function_answers_in_the_loop_that_awaits_the_run(home, project, web):
    async def answer(_question):
        await asyncio.sleep(0)
        return asyncio.get_running_loop() is loop

    async def main():
        with Sandbox(project, ASK, ask=answer) as box:
            return await box.arun(TRY.format(place=at(web)))

    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(main()).stdout == "hello\n"
    finally:
        loop.close()


def test_output_is_shown_once(asking, web):
    shown = []
    command = f"echo begun; {TRY.format(place=at(web))}; echo end"
    run = asking.run(command, on_output=lambda stream, text: shown.append((stream, text)))
    assert run.output == "begun\nhello\nend\n"
    assert "".join(text for _, text in shown) == run.output
    assert {stream for stream, _ in shown} == {"stdout"}


def test_what_was_printed_before_is_shown_before_the_question(home, project, web):
    shown, before = [], []

    def answer(_question):
        before.extend(shown)
        return True

    with Sandbox(project, ASK, ask=answer) as box:
        box.run(f"echo begun; {TRY.format(place=at(web))}", on_output=lambda _stream, text: shown.append(text))
    assert before == ["begun\n"]


def test_nothing_is_shown_while_a_question_is_open(home, project, test_directory, web, other):
    shown, meanwhile, go = [], [], test_directory / "go"
    go.touch()  # now: what appears later is not seen through a view

    def answer(_question):
        go.write_text("go")
        assert eventually(lambda: other.asked), "what was printed before that is in the pipe now"
        meanwhile.extend(shown)
        return True

    with Sandbox(project, ASK.replace(hosts=(at(other),)), ask=answer) as box:
        run = box.run(
            f"(until [ -s {go} ]; do sleep 0.01; done; echo later; {TRY.format(place=at(other))} >&2) &"
            f" {TRY.format(place=at(web))}; wait",
            on_output=lambda _stream, text: shown.append(text),
        )
    assert meanwhile == []
    assert sorted(run.stdout.split()) == ["hello", "later"]


@pytest.mark.long
def test_of_300_hosts_a_person_is_asked_for_20(asking, project, person):
    (project / "many.py").write_text(
        "import os, urllib.request\n"
        "proxy = urllib.request.build_opener(urllib.request.ProxyHandler({'http': os.environ['http_proxy']}))\n"
        "for number in range(300):\n"
        "    try: proxy.open(f'http://decoy{number}.example/', timeout=100)\n"
        "    except OSError: pass\n"
    )
    person.answer = False
    run = asking.run("python3 many.py")
    assert [question.details for question in person.asked] == [(f"decoy{number}.example:80",) for number in range(20)]
    assert sum("more than 20 hosts" in each.reason for each in run.connections) == 280


# --- ports of this machine, and names without a proxy ---


@pytest.mark.parametrize(("name", "family"), [("localhost", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_port_of_this_machine_is_noticed_and_asked_for(asking, person, name, family):
    with serving(Tcp(echo, family)) as there:
        code = (
            f"import socket; c = socket.create_connection(('{name}', {there.port})); c.sendall(b'ping');"
            "print(c.recv(9).decode())"
        )
        run = asking.run(["python3", "-c", code])
    assert run.stdout == "ping\n", run.output
    (question,) = person.asked
    assert question.details == (f"localhost:{there.port}",)
    assert "this machine itself" in "\n".join(question.lines)
    assert run.hosts == (f"localhost:{there.port}",)


def test_curl_to_localhost_is_asked_for_and_a_no_is_told(asking, web, person):
    person.answer = False
    run = asking.run(f"curl -sS -m 100 http://localhost:{web.port}/")
    assert run.exit_code != 0
    assert web.asked == []
    assert [question.details for question in person.asked] == [(f"localhost:{web.port}",)]
    assert list(refusals(run)) == [f"localhost:{web.port}"]


def test_a_port_of_this_machine_is_asked_for_where_every_public_host_is_granted(home, project, web, person):
    with Sandbox(project, ASK.replace(hosts=("*",)), ask=person) as box:
        run = box.run(f"curl -sS http://localhost:{web.port}/")
    assert run.stdout == "hello\n", run.output
    assert [question.details for question in person.asked] == [(f"localhost:{web.port}",)]


def test_a_port_where_nobody_listens_is_refused_without_a_question(asking, person):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        run = asking.run(f"curl -sS http://localhost:{nobody.getsockname()[1]}/")
    assert (run.exit_code, person.asked) == (7, [])


def test_a_server_of_the_commands_own_is_not_asked_for(asking, person):
    run = asking.run(
        "python3 -u -m http.server --bind 127.0.0.1 0 > log 2>&1 & "
        "until port=$(grep -o 'port [0-9]*' log); do sleep 0.05; done; curl -sS -o /dev/null -f localhost:${port#port }"
    )
    assert (run.exit_code, person.asked) == (0, []), run.output


def test_where_only_bubblewrap_makes_namespaces_ports_of_this_machine_are_noticed_too(
    home, project, web, person, monkeypatch
):
    monkeypatch.setattr(Host, "makes_namespaces", False)
    with Sandbox(project, policy=ASK.replace(capture="copy"), ask=person) as box:
        run = box.run(f"curl -sS http://localhost:{web.port}/; {TRY.format(place=at(web))}")
    assert run.stdout == "hello\nhello\n", run.output
    assert [question.details for question in person.asked] == [(f"localhost:{web.port}",), (at(web),)]


def test_a_name_that_is_looked_up_without_a_proxy_waits_too(home, project, web, person, monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_given, **_more: found)
    code = (
        f"import socket; c = socket.create_connection(('needed.example', {web.port}), 100);"
        "c.sendall(b'POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 0\\r\\n\\r\\n'); print(c.recv(15))"
    )
    # A name that is granted at this port, and where it leads to; what is needed is neither.
    hosts = (f"granted.example:{web.port}", f"127.0.0.0/8:{web.port}-{web.port + 20}")
    with Sandbox(project, ASK.replace(hosts=hosts), ask=person) as box:
        run = box.run(["python3", "-c", code])
    assert run.stdout == "b'HTTP/1.1 200 OK'\n", run.output
    assert [question.details for question in person.asked] == [(f"needed.example:{web.port}",)]
    assert len(web.asked) == 1


def test_a_name_that_is_looked_up_without_a_proxy_can_be_refused(asking, person):
    person.answer = False
    code = "import socket; print(socket.create_connection(('needed.example', 443), 100).recv(1))"
    run = asking.run(["python3", "-c", code])
    assert run.stdout == "b''\n", run.output
    assert [question.details for question in person.asked] == [("needed.example:443",)]
    assert list(refusals(run)) == ["needed.example:443"]


# --- a person at a terminal ---


@pytest.fixture
def configured(home):
    configuration = home / ".config/fumehood/config.toml"
    configuration.parent.mkdir(exist_ok=True)
    configuration.write_text('network = "ask"\n')


def wait_for_question(terminal):
    terminal.wait_for("Run command with network access")
    terminal.wait_for("\n>")


@pytest.mark.usefixtures("configured")
def test_a_person_at_a_terminal_is_asked_while_the_command_waits(project, web):
    command = f"echo begun; {POST.format(place=at(web))} > got"
    with Terminal([*command_line(), "run", "--", command], project) as terminal:
        wait_for_question(terminal)
        assert terminal.seen.index("begun") < terminal.seen.index("Run command with network access")
        terminal.type("y\n")
        assert terminal.end() == 0, terminal.seen
    assert (project / "got").read_text() == "hello\n"
    assert len(web.asked) == 1


@pytest.mark.long
@pytest.mark.usefixtures("configured")
def test_the_lines_that_answer_are_not_the_commands_input(project):
    # Several questions: two that read the same keys would share them by chance.
    with serving(Web(address="0.0.0.0")) as web:
        fetches = "; ".join(TRY.format(place=f"127.0.0.{number}:{web.port}") for number in range(1, 9))
        command = f"read one; {fetches}; echo end; read two; echo $one-$two > read"
        with Terminal([*command_line(), "run", "--", command], project) as terminal:
            terminal.type("first\n")
            for count in range(1, 9):
                while terminal.seen.count("\n>") < count:
                    assert terminal.more(), terminal.seen
                terminal.type("y\n")
            terminal.wait_for("\nend")
            terminal.type("second\n")
            assert terminal.end() == 0, terminal.seen
    assert (project / "read").read_text() == "first-second\n"
    assert len(web.asked) == 8


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_input_goes_on_after_the_answer(project, test_directory, web, kind):
    data = b"line\n" * 30_000
    (test_directory / "input").write_bytes(data)
    line = '"$@" < "$0"' if kind == "file" else 'cat "$0" | "$@"'
    command = f"head -n 10 > first; {TRY.format(place=at(web))} > got; cat > rest"
    words = ["sh", "-c", line, str(test_directory / "input"), *command_line(), "run", "--", command]
    with Terminal(words, project) as terminal:
        wait_for_question(terminal)
        terminal.type("y\n")
        assert terminal.end() == 0, terminal.seen
    first, rest = (project / "first").read_bytes(), (project / "rest").read_bytes()
    assert first == data[: len(first)]
    assert data.endswith(rest)
    assert (project / "got").read_text() == "hello\n"


@pytest.mark.usefixtures("configured")
def test_ctrl_c_closes_the_question_and_ends_the_command(project, web):
    command = f"{TRY.format(place=at(web))}; sleep {LONG_S}"
    with Terminal([*command_line(), "run", "--", command], project) as terminal:
        wait_for_question(terminal)
        terminal.type("\x03")
        assert terminal.end() == 130, terminal.seen
        assert terminal.modes() == terminal.before
    assert web.asked == []


@pytest.mark.long
@pytest.mark.usefixtures("configured")
def test_a_command_with_a_terminal_of_its_own_is_asked_for_too(project, web):
    command = f"echo begun; {TRY.format(place=at(web))}; read line; echo got-$line"
    with Terminal([*command_line(), "run", "--tty", "--", command], project) as terminal:
        wait_for_question(terminal)
        terminal.type("y\n")
        terminal.wait_for("hello")
        terminal.type("typed\r")
        assert terminal.end() == 0, terminal.seen
        assert "got-typed" in terminal.seen
        assert terminal.modes() == terminal.before


LEFT = {
    "no colour": ((), "\x1b[8m", "\x1b[0m"), "its background's colour": (("--tty",), "\x1b[30;40m", "\x1b[0m"),
    "other letters": (("--tty",), "\x1b(0", "\x1b(B"), "one line that scrolls": (("--tty",), "\x1b[1;1r", "\x1b[r"),
    "words below": (("--tty",), "\x1b[3;40Hallowed\x1b[1;1H", "\x1b[J"),
    "keys that send more than letters": (("--tty",), "\x1b[>7u", "\x1b[>0u"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("name", LEFT)
def test_a_question_can_be_read_whatever_the_command_left_on_the_terminal(project, web, name):
    options, left, ended = LEFT[name]
    command = f"printf '{left}'; {TRY.format(place=at(web))}"
    with Terminal([*command_line(), "run", *options, "--", command], project) as terminal:
        wait_for_question(terminal)
        before, _, _ = terminal.seen.partition("fumehood: Run command")
        assert ended in before.rpartition(left)[2]
        terminal.type("n\n")
        terminal.end()
        assert "\ndeny\n\x1b[<1u" in terminal.seen.replace("\r", "")
    assert web.asked == []


@pytest.mark.usefixtures("configured")
def test_an_agents_own_command_line_asks_nobody(cli, project, web):
    done = cli("run", "--brief", "--", f"{TRY.format(place=at(web))} || touch made")
    assert done.returncode == 0, done.stderr
    assert (project / "made").exists()
    assert at(web) in done.stdout + done.stderr


def test_an_asked_run_leaves_no_descriptor_open(asking, web):
    asking.run(TRY.format(place=at(web)))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        asking.run(TRY.format(place=at(web)))
    # The server is in this process too, and closes its end when it hears of the other's.
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_runs_at_once_each_have_their_own_questions(home, project, web):
    person, results = Person(), []
    with Sandbox(project, ASK, ask=person) as box:

        def work():
            results.append(box.run(TRY.format(place=at(web))))

        threads = [threading.Thread(target=work) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [run.stdout for run in results] == ["hello\n"] * 10
    assert len({question.run for question in person.asked}) == 10
