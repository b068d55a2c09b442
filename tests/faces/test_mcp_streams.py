"""The MCP server's standard streams, with clients that the SDK's own is not: careless, slow, hostile, gone."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from conftest import command_line
from forked import SERVER, loaded
from fumehood import BadRequest
from patience import LONG_S
from processes import LONG, left_over

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

PARAMETERS = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def line(number: int, method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


HELLO = line(0, "initialize", **PARAMETERS) + b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'


def running(number: int, command: str, **more: Any) -> bytes:
    return line(number, "tools/call", name="run_command", arguments={"command": command}, **more)


class Server:
    """A server as a client starts it, spoken to byte by byte."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process, self.to, self.answers, self.errors = process, process.stdin, process.stdout, process.stderr

    def answer(self) -> dict[str, Any]:
        answer = json.loads(self.answers.readline())
        assert isinstance(answer, dict)
        return answer

    def begin(self, number: int, command: str) -> None:
        """Call for a command, and wait until it says that it has begun."""
        self.to.write(running(number, command, _meta={"progressToken": number}))
        assert self.answer()["params"]["message"] == "begun"

    def ended(self) -> tuple[int, bytes]:
        """How it ended, and what it said besides."""
        errors = self.errors.read()
        return self.process.wait(LONG_S), errors


@contextmanager
def server(project: Path) -> Iterator[Server]:
    arguments = [*loaded(SERVER).client(), "mcp", "--project", str(project)]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


@pytest.fixture
def greeted(home: Path, project: Path) -> Iterator[Server]:
    """A server that a client has said hello to."""
    with server(project) as started:
        started.to.write(HELLO)
        assert started.answer()["result"]["serverInfo"]["name"] == "fumehood"
        yield started


def test_messages_come_in_pieces_and_several_at_once(greeted: Server) -> None:
    long = running(2, f"echo {'é' * 30_000} | wc -m").replace(rb"\u00e9", "é".encode())
    whole = line(1, "ping") + long + line(3, "ping") + line(4, "ping")
    for start in range(0, len(whole), 7001):
        greeted.to.write(whole[start : start + 7001])
    answers = {answer["id"]: answer for answer in (greeted.answer() for _ in range(4))}
    assert sorted(answers) == [1, 2, 3, 4]
    assert answers[2]["result"]["structuredContent"]["output"] == "30001\n"


def test_what_is_no_message_is_passed_over_and_the_next_one_is_answered(greeted: Server) -> None:
    nonsense = [b"no json", b"", b"\xff\xfe\0", b'{"jsonrpc": 1}', b"[]", b"[" * 100_000, b'{"jsonrpc":"2.0","id":9}']
    greeted.to.write(b"\n".join([*nonsense, line(1, "ping")]))
    while "result" not in (answer := greeted.answer()):
        assert "error" in answer
    assert answer["id"] == 1
    greeted.to.close()
    assert greeted.ended()[0] == 0


def test_each_message_of_a_batch_is_answered(greeted: Server) -> None:
    """Who may send batches, by the protocol of 2025-03-26, waited for ever."""
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}
    batch = [json.loads(line(1, "ping")), note, 7, json.loads(running(2, "echo two")), {"id": 3, "method": 7}]
    greeted.to.write(json.dumps(batch).encode() + b"\n")
    answers = {answer["id"]: answer for answer in (greeted.answer() for _ in range(3))}
    assert answers[1]["result"] == {}
    assert answers[2]["result"]["structuredContent"]["output"] == "two\n"
    assert "error" in answers[3]


def test_a_huge_message_is_read_and_refused(greeted: Server) -> None:
    greeted.to.write(running(1, f": {'x' * 20_000_000}"))
    refused = greeted.answer()["result"]
    assert refused["isError"]
    assert "the command is too long" in refused["content"][0]["text"]
    greeted.to.write(line(2, "ping"))
    assert greeted.answer()["id"] == 2


@pytest.mark.long
def test_messages_come_from_a_file_too(home: Path, project: Path, test_directory: Path) -> None:
    messages = test_directory / "messages"
    messages.write_bytes(HELLO + line(1, "ping") + line(2, "ping").rstrip())
    with messages.open("rb") as stdin:
        done = subprocess.run([*command_line(), "mcp"], stdin=stdin, capture_output=True, check=True, cwd=project)
    # To the SDK the end of input is the client's farewell: what is not answered by then may never be.
    answered = [json.loads(answer)["id"] for answer in done.stdout.splitlines()]
    assert answered == [0, 1, 2][: len(answered) or 1]
    assert done.stderr == b""


@pytest.mark.long
def test_answers_to_a_slow_client_arrive_whole(greeted: Server) -> None:
    greeted.begin(99, f"echo begun; exec sleep {LONG}.1")
    # The answers are more than a pipe holds, and none is cut because of the call that is cancelled meanwhile.
    listing = range(1, 41)
    cancelling = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}
    greeted.to.write(b"".join(line(number, "tools/list") for number in listing))
    greeted.to.write(json.dumps(cancelling).encode() + b"\n")
    assert not left_over(f"{LONG}.1")
    answers: dict[int, Any] = {}
    while len(answers) < len(listing):
        answer = greeted.answer()
        if answer["id"] in listing:
            answers[answer["id"]] = answer["result"]["tools"]
    assert len({json.dumps(tools) for tools in answers.values()}) == 1


@pytest.mark.parametrize("keeps_talking", [False, True])
def test_a_client_that_reads_no_more_ends_the_server_and_its_commands(greeted: Server, keeps_talking: bool) -> None:
    greeted.to.write(line(1, "tools/call", name="start_command", arguments={"command": f"echo x; sleep {LONG}.1"}))
    assert greeted.answer()["result"]["structuredContent"]["running"]
    greeted.answers.close()
    greeted.to.write(line(2, "ping"))
    if not keeps_talking:
        greeted.to.close()
    with suppress(BrokenPipeError):
        while keeps_talking:
            greeted.to.write(line(3, "ping"))
    assert greeted.ended() == (0, b"")
    assert not left_over(f"{LONG}.1")


def test_the_end_of_input_ends_a_call_and_what_its_command_wrote_is_held(
    greeted: Server, cli: Any, project: Path
) -> None:
    greeted.begin(1, f"echo x >written; echo begun; exec sleep {LONG}.1")
    greeted.to.close()
    assert greeted.ended() == (0, b"")
    assert not left_over(f"{LONG}.1")
    run = json.loads(cli("show", "last", "--json").stdout)
    assert (run["state"], [change["path"] for change in run["changes"]]) == ("held", ["written"])
    assert os.listdir(project) == []


def test_an_interrupt_ends_what_runs_and_another_ends_the_server(greeted: Server) -> None:
    """The SDK reads standard input in a thread that nothing ends but input or its end."""
    greeted.begin(1, f"echo begun; exec sleep {LONG}.1")
    greeted.process.send_signal(signal.SIGINT)
    assert not left_over(f"{LONG}.1")
    greeted.process.send_signal(signal.SIGINT)
    assert greeted.process.wait(LONG_S) == 130


def test_only_messages_are_on_the_streams(greeted: Server) -> None:
    """What a command prints, or reads, is not the client's."""
    greeted.to.write(running(1, "cat; echo stray; echo stray >&2; echo stray >/proc/self/fd/1"))
    assert greeted.answer()["result"]["structuredContent"]["output"] == "stray\nstray\nstray\n"
    greeted.to.write(line(2, "ping"))
    assert greeted.answer()["id"] == 2


def test_a_closed_standard_input_is_said_in_words(home: Path, project: Path) -> None:
    line = ["sh", "-c", 'exec "$@" <&-', "sh", *command_line(), "mcp"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=project)
    assert done.returncode == 125
    assert "ERROR: standard input is closed" in done.stderr


def test_any_number_of_calls_that_wait_hold_up_no_other(greeted: Server) -> None:
    command = f"echo begun; sleep {LONG}"
    greeted.to.write(line(1, "tools/call", name="start_command", arguments={"command": command}))
    job = greeted.answer()["result"]["structuredContent"]["job"]
    offset = 0
    while not offset:
        greeted.to.write(line(2, "tools/call", name="poll_command", arguments={"job": job, "wait": 30}))
        offset = greeted.answer()["result"]["structuredContent"]["next_offset"]
    waiting = {"job": job, "offset": offset, "wait": 30}
    for number in range(100, 200):
        greeted.to.write(line(number, "tools/call", name="poll_command", arguments=waiting))
    for number, call in ((3, line(3, "ping")), (4, running(4, "echo through")), (5, line(5, "ping"))):
        greeted.to.write(call)
        assert greeted.answer()["id"] == number  # before any of those that wait
    greeted.to.write(line(6, "tools/call", name="stop_command", arguments={"job": job}))
    assert sorted(greeted.answer()["id"] for _ in range(101)) == [6, *range(100, 200)]


@pytest.mark.parametrize("number", [7, "seven", "é"])
def test_what_can_not_be_read_is_refused_by_its_number(greeted: Server, project: Path, number: Any) -> None:
    half = running(number, "echo \ud83d > f")
    for message in (half, half.replace(b'"tools/call"', b"3"), half.replace(b'"params"', b'"params": [], "x"')):
        greeted.to.write(message)
        answer = greeted.answer()
        assert (answer["id"], answer["error"]["code"]) == (number, -32602)
    # What is itself an answer, or names nobody, gets none.
    for message in ({"id": 8, "result": "\ud83d"}, {"id": None, "method": "\ud83d"}, {"id": "\ud83d", "method": "x"}):
        greeted.to.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    greeted.to.write(running(9, "cat; ls"))
    assert greeted.answer()["result"]["structuredContent"]["output"] == ""


def test_by_http_it_is_found_at_the_port_that_clients_leave_out() -> None:
    from fumehood.faces.mcp.server import local_hosts_only

    assert "127.0.0.1" in local_hosts_only(80).allowed_hosts
    assert local_hosts_only(8080).allowed_hosts == ["127.0.0.1:8080", "localhost:8080"]


def test_no_letter_is_cut_where_one_piece_of_an_output_ends(greeted: Server) -> None:
    printed = "x" + "äø€𐍈" * 5
    greeted.to.write(running(1, f"printf '{printed}'"))
    greeted.answer()
    read, offset = "", 0
    while offset is not None:
        greeted.to.write(line(2, "tools/call", name="read_output", arguments={"offset": offset, "limit": 3}))
        piece = greeted.answer()["result"]["structuredContent"]
        read, offset = read + piece["text"], piece["next_offset"]
    assert read == printed


def test_of_a_line_without_an_end_only_its_beginning_is_told_as_progress(greeted: Server) -> None:
    """Each piece of it was added to all that came before, and 30 MB took many seconds."""
    command = "head -c 3000000 /dev/zero | tr '\\0' x; echo; sleep 0.5; echo done"
    greeted.to.write(running(1, command, _meta={"progressToken": 7}))
    told = []
    while "id" not in (message := greeted.answer()):
        told.append(message["params"]["message"])
    assert message["result"]["structuredContent"]["exit_code"] == 0
    assert told
    assert max(map(len, told)) < 10_000


def test_a_command_that_has_ended_is_remembered_until_there_are_too_many() -> None:
    from fumehood.faces.mcp.clients import BackgroundCommands

    jobs = BackgroundCommands()
    for _ in range(64):
        jobs.start("one", lambda **_wishes: None).stop()
    assert jobs.find("one", "job-1").name == "job-1"
    jobs.start("one", lambda **_wishes: None).stop()
    with pytest.raises(BadRequest, match="there is no job job-1"):
        jobs.find("one", "job-1")
    assert jobs.find("one", "job-2")
