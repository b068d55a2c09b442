"""The MCP server, asked by the SDK's own client: over standard input and HTTP, in both eras of the protocol."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from at_terminal import Terminal
from conftest import command_line
from forked import SERVER, loaded
from fumehood import Sandbox
from fumehood.service.store import Store
from mcp_sdk import ERAS, IGNORED_WARNINGS
from passing_days import pass_days
from patience import LONG_S, eventually, in_time
from processes import LONG, left_over
from servers import Web, serving

mcp = pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from mcp import Client, StdioServerParameters  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402
from mcp.shared.exceptions import MCPError  # noqa: E402
from mcp.types import ElicitResult, ListRootsResult, Root  # noqa: E402

pytestmark = [pytest.mark.namespaces, pytest.mark.once, *IGNORED_WARNINGS]


def stdio(*arguments: str, cwd: Path | None = None) -> StdioServerParameters:
    python, *rest = loaded(SERVER).client()
    return StdioServerParameters(command=python, args=[*rest, "mcp", *arguments], env=dict(os.environ), cwd=cwd)


def answering(answers: list[str | None], seen: list[str]) -> Callable[..., Coroutine[Any, Any, ElicitResult]]:
    """A person behind the client: None declines."""

    async def answer(_context: Any, params: Any) -> ElicitResult:
        seen.append(params.message)
        given = answers.pop(0)
        if given is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"answer": given})

    return answer


def text(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_a_command_its_report_and_its_undo(home: Path, project: Path, era: str) -> None:
    async with Client(stdio("--project", str(project)), mode=era) as client:
        done = await client.call_tool("run_command", {"command": "echo hi; echo é >a; rm -f b; exit 3"})
        told = done.structured_content
        assert (told["output"], told["exit_code"], told["state"]) == ("hi\n", 3, "applied")
        assert [change["path"] for change in told["changes"]] == ["a"]
        assert "Exit code: 3" in text(done)
        assert "added a" in text(done)
        difference = await client.call_tool("diff", {})
        assert "+é" in difference.structured_content["text"]
        same = await client.call_tool("changes", {"run": told["run"]})
        assert same.structured_content["changes"] == told["changes"]
        back = await client.call_tool("undo", {"run": told["run"]})
        assert back.structured_content["runs"][0]["changes"][0]["change"] == "deleted"
        assert not (project / "a").exists()
        again = await client.call_tool("redo", {})
        assert again.structured_content["runs"][0]["changes"][0]["change"] == "added"
        assert "added a" in text(again)
        assert (project / "a").read_text() == "é\n"
        assert "nothing is left to redo" in text(await client.call_tool("redo", {}))
        await client.call_tool("undo", {})
        await client.call_tool("redo", {"run": told["run"]})
        assert (project / "a").exists()


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_the_network_is_asked_for(home: Path, project: Path, era: str) -> None:
    seen: list[str] = []
    answer = answering(["allow_once", "deny_once", None], seen)
    async with Client(stdio("--project", str(project)), mode=era, elicitation_callback=answer) as client:
        call = {"command": "cat /proc/net/route >routes; echo ran", "network": True}
        done = await client.call_tool("run_command", call)
        assert done.structured_content["output"].startswith("ran"), text(done)
        assert done.structured_content["network"] == "full"
        for _ in range(2):
            denied = await client.call_tool("run_command", call)
            assert denied.is_error
            assert text(denied).startswith("ERROR: Permission denied: Run command with network access")
        plain = await client.call_tool("run_command", {"command": "echo ran"})
        assert plain.structured_content["network"] == "none"
    assert len(seen) == 3
    assert "cat /proc/net/route" in seen[0]


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_an_agent_asks_for_a_host_and_later_commands_reach_it(home: Path, project: Path, era: str) -> None:
    seen: list[str] = []
    answer = answering(["allow_session", "deny_session"], seen)
    async with Client(stdio("--project", str(project)), mode=era, elicitation_callback=answer) as client:
        wanted = {"host": "example.org", "reason": "its data is tested"}
        allowed = await client.call_tool("request_access", wanted)
        assert not allowed.is_error, text(allowed)
        assert "commands may reach example.org" in allowed.structured_content["said"][0]
        assert "commands may reach" in text(await client.call_tool("request_access", wanted))
        for _ in range(2):
            denied = await client.call_tool("request_access", {"host": "example.net"})
            assert denied.is_error
            assert "not allowed: to reach example.net" in text(denied)
        wrong = await client.call_tool("request_access", {"host": "a.org", "write": "/srv"})
        assert "one thing is asked for at a time" in text(wrong)
        run = await client.call_tool("run_command", {"command": "true"})
        assert run.structured_content["network"] == "hosts"
    assert len(seen) == 2
    assert "its data is tested" in seen[0]


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_a_connection_waits_for_the_client_where_it_can_be_asked_meanwhile(
    home: Path, project: Path, era: str
) -> None:
    (home / ".config/fumehood").mkdir(exist_ok=True)
    (home / ".config/fumehood/config.toml").write_text('network = "ask"\n')
    seen: list[str] = []
    with serving(Web()) as web:
        place = f"127.0.0.1:{web.port}"
        answer = answering(["allow_once", "deny_once"], seen)
        async with Client(stdio("--project", str(project)), mode=era, elicitation_callback=answer) as client:
            call = {"command": f"curl -sS -f --noproxy '' -d sent http://{place}/ 2>/dev/null || echo refused"}
            told = [(await client.call_tool("run_command", call)).structured_content for _ in range(2)]
        expected = ["hello\n", "refused\n"] if era == "legacy" else ["refused\n"] * 2
        assert [each["output"] for each in told] == expected
        assert [each["detail"] for each in told[1]["blocked"]] == [place]
        assert len(web.asked) == expected.count("hello\n")
        assert [place in message for message in seen] == ([True, True] if era == "legacy" else [])


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_a_client_that_cannot_ask_gets_a_clean_denial(home: Path, project: Path, era: str) -> None:
    async with Client(stdio("--project", str(project)), mode=era) as client:
        for network in (True, "true", 1):  # the SDK takes each for a yes
            denied = await client.call_tool("run_command", {"command": "touch x", "network": network})
            assert denied.is_error
            assert "nobody was there to ask" in text(denied)
        assert not (project / "x").exists()


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_the_project_is_the_clients_root(home: Path, project: Path, test_directory: Path, era: str) -> None:
    other = test_directory / "with space é"
    other.mkdir()

    async def roots(_context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=project.as_uri()), Root(uri=other.as_uri())])

    async with Client(stdio(cwd=test_directory), mode=era, list_roots_callback=roots) as client:
        first = await client.call_tool("run_command", {"command": "pwd"})
        assert first.structured_content["output"] == f"{project}\n", text(first)
        second = await client.call_tool("run_command", {"command": "echo x >y; pwd", "working_dir": str(other)})
        assert second.structured_content["project"] == str(other)
        assert (other / "y").exists()


@pytest.mark.filterwarnings("ignore:The roots capability is deprecated")
@in_time
async def test_a_client_that_has_other_roots_by_now_is_asked_for_them(
    home: Path, project: Path, test_directory: Path
) -> None:
    """Its commands went on in the directory that the person had left."""
    other = test_directory / "other"
    other.mkdir()
    works_in = [project]

    async def roots(_context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=each.as_uri()) for each in works_in])

    runs = []
    async with Client(stdio(cwd=test_directory), mode="legacy", list_roots_callback=roots) as client:
        for directory in (project, other):
            works_in[:] = [directory]
            await client.session.send_roots_list_changed()
            done = await client.call_tool("run_command", {"command": "pwd > here; cat here"})
            assert done.structured_content["output"] == f"{directory}\n", text(done)
            runs.append(done.structured_content["run"])
        for run, directory in zip(runs, (project, other), strict=True):
            assert f"+{directory}\n" in text(await client.call_tool("diff", {"run": run}))


@in_time
async def test_without_roots_the_project_is_where_the_server_runs(home: Path, project: Path) -> None:
    async with Client(stdio(cwd=project), mode="legacy") as client:
        done = await client.call_tool("run_command", {"command": "pwd"})
        assert done.structured_content["project"] == str(project)


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_output_comes_as_progress_lines(home: Path, project: Path, era: str) -> None:
    seen: list[str] = []

    async def progress(_done: float, _total: float | None, message: str | None) -> None:
        seen.append(message or "")

    async with Client(stdio("--project", str(project)), mode=era) as client:
        line = "echo one; sleep 0.3; printf 'tw'; printf 'o\n'; echo three"
        done = await client.call_tool("run_command", {"command": line}, progress_callback=progress)
        assert done.structured_content["output"] == "one\ntwo\nthree\n"
    assert "\n".join(seen) == "one\ntwo\nthree"


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_cancelling_kills_the_run_and_keeps_its_layer(home: Path, project: Path, era: str) -> None:
    begun = asyncio.Event()

    async def progress(*_told: object) -> None:
        begun.set()

    async with Client(stdio("--project", str(project)), mode=era) as client:
        line = "echo x >written; echo begun; sleep 1000; echo y >late"
        call = asyncio.create_task(client.call_tool("run_command", {"command": line}, progress_callback=progress))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        state = ""
        while state != "held":
            await asyncio.sleep(0.05)
            found = await client.call_tool("changes", {})
            state = found.structured_content["state"] if found.structured_content else ""
        assert [change["path"] for change in found.structured_content["changes"]] == ["written"]
        assert os.listdir(project) == []


@in_time
async def test_a_long_command_is_started_looked_at_and_stopped(home: Path, project: Path) -> None:
    (home / ".config/fumehood").mkdir(exist_ok=True)
    (home / ".config/fumehood/config.toml").write_text("checkpoint = 0\n")  # all of it is to be held
    async with Client(stdio("--project", str(project))) as client:
        line = "echo begun; sleep 0.5; echo x >f; echo ended"
        started = (await client.call_tool("start_command", {"command": line})).structured_content
        job, offset, output = started["job"], started["next_offset"], started["output"]
        while "begun" not in output:
            polled = await client.call_tool("poll_command", {"job": job, "offset": offset, "wait": 5})
            output += polled.structured_content["output"]
            offset = polled.structured_content["next_offset"]
        running = True
        while running:
            polled = await client.call_tool("poll_command", {"job": job, "offset": offset, "wait": 1})
            running = polled.structured_content["running"]
        assert polled.structured_content["report"]["state"] == "applied"
        assert (project / "f").exists()
        other = await client.call_tool("start_command", {"command": "echo y >g; echo begun; sleep 1000"})
        other_job = other.structured_content["job"]
        output = other.structured_content["output"]
        while "begun" not in output:
            polled = await client.call_tool("poll_command", {"job": other_job, "offset": 0, "wait": 5})
            output = polled.structured_content["output"]
        (runs,) = (await client.call_tool("running", {})).structured_content["commands"]
        assert runs["command"] == "echo y >g; echo begun; sleep 1000"
        stopped = await client.call_tool("stop_command", {"job": other_job})
        assert (await client.call_tool("running", {})).structured_content["commands"] == []
        assert not stopped.structured_content["running"]
        assert stopped.structured_content["report"]["state"] == "held"
        assert "no job" in text(await client.call_tool("poll_command", {"job": "job-99"}))


@in_time
async def test_what_a_started_command_has_written_is_settled_while_it_goes_on(home: Path, project: Path) -> None:
    async with Client(stdio("--project", str(project))) as client:
        assert "nothing runs" in text(await client.call_tool("running", {}))
        assert "no run last runs now" in text(await client.call_tool("checkpoint", {}))
        line = "echo x >f; echo begun; sleep 1000"
        job = (await client.call_tool("start_command", {"command": line})).structured_content
        while "begun" not in job["output"]:
            polled = await client.call_tool("poll_command", {"job": job["job"], "offset": 0, "wait": 5})
            job = polled.structured_content
        made = (await client.call_tool("checkpoint", {})).structured_content
        assert made["command"] == f"checkpoint of {line}"
        assert (project / "f").read_text() == "x\n"
        seen = (await client.call_tool("run_command", {"command": "cat f"})).structured_content
        assert seen["output"] == "x\n"
        refused = await client.call_tool("undo", {"run": made["run"]})
        assert made["state"] == "empty" or "still runs" in text(refused)
        await client.call_tool("stop_command", {"job": job["job"]})


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_what_is_held_is_applied_only_with_the_persons_word(home: Path, project: Path, era: str) -> None:
    seen: list[str] = []
    answer = answering([None, "allow_once"], seen)
    line = "mkdir -p .git/hooks; echo x >.git/hooks/pre-push"
    async with Client(stdio("--project", str(project)), mode=era, elicitation_callback=answer) as client:
        held = (await client.call_tool("run_command", {"command": line})).structured_content
        assert held["state"] == "held"
        assert (await client.call_tool("apply", {"run": held["run"]})).is_error
        done = await client.call_tool("apply", {"run": held["run"]})
        assert done.structured_content["state"] == "applied", text(done)
        assert (project / ".git/hooks/pre-push").exists()
        await client.call_tool("undo", {"run": held["run"]})
        again = (await client.call_tool("run_command", {"command": line})).structured_content
        gone = await client.call_tool("discard", {"run": again["run"]})
        assert gone.structured_content["state"] == "discarded"
    async with Client(stdio("--project", str(project)), mode=era) as other:
        held = (await other.call_tool("run_command", {"command": line})).structured_content
        assert (await other.call_tool("apply", {"run": held["run"]})).is_error
    async with Client(stdio("--project", str(project)), mode=era) as third:
        assert f"no run {held['run']}" in text(await third.call_tool("discard", {"run": held["run"]}))
    assert "pre-push" in seen[0]


ABOUT_RUNS = ("changes", "diff", "read_output", "undo", "redo", "apply", "discard")


async def unknown(client: Any, run: str) -> None:
    """Whatever is asked about a run that is not the client's own: it is told what it would be of any other name."""
    for tool in ABOUT_RUNS:
        for name in (run, run[:20], run.lower()):
            told = text(await client.call_tool(tool, {"run": name}))
            never = text(await client.call_tool(tool, {"run": "01NEVER"}))
            assert told == never.replace("01NEVER", name), tool


@pytest.mark.long
@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_an_agent_knows_nothing_but_its_own_runs(
    home: Path, project: Path, test_directory: Path, cli: Any, era: str
) -> None:
    other = test_directory / "other"
    other.mkdir()
    persons = json.loads(cli("run", "--json", "--", "echo mine >mine").stdout)["run"]
    elsewhere = json.loads(cli("run", "--project", str(other), "--json", "--", "echo x >x; echo secret").stdout)["run"]
    async with (
        Client(stdio("--project", str(project)), mode=era) as first,
        Client(stdio("--project", str(project)), mode=era) as second,
    ):
        assert (await second.call_tool("changes", {"run": "last"})).is_error
        own = (await first.call_tool("run_command", {"command": "echo own >own"})).structured_content["run"]
        for client, runs in ((first, (persons, elsewhere)), (second, (persons, elsewhere, own))):
            for run in runs:
                await unknown(client, run)
        cli("run", "--", "echo later >later")
        assert (await first.call_tool("changes", {"run": "last"})).structured_content["run"] == own
        back = await first.call_tool("undo", {})
        assert not (project / "own").exists()
        await first.call_tool("undo", {"run": back.structured_content["runs"][0]["run"]})
        assert (project / "own").exists()
    assert sorted(os.listdir(project)) == ["later", "mine", "own"]
    assert (other / "x").exists()


@in_time
async def test_an_agent_cannot_take_back_what_a_person_took_back(home: Path, project: Path, cli: Any) -> None:
    async with Client(stdio("--project", str(project))) as client:
        own = (await client.call_tool("run_command", {"command": "echo own >own"})).structured_content["run"]
        back = json.loads(cli("undo", own, "--json").stdout)["run"]
        await unknown(client, back)
        assert "nothing is left to undo" in text(await client.call_tool("undo", {}))
        assert "undone already" in text(await client.call_tool("undo", {"run": own}))
        assert "nothing is left to redo" in text(await client.call_tool("redo", {}))
        assert "is not taken back" in text(await client.call_tool("redo", {"run": own}))
    assert os.listdir(project) == []


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_a_run_in_another_root_of_the_client_is_its_own_too(
    home: Path, project: Path, test_directory: Path, era: str
) -> None:
    other = test_directory / "other"
    other.mkdir()

    async def roots(_context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=project.as_uri()), Root(uri=other.as_uri())])

    async with Client(stdio(cwd=test_directory), mode=era, list_roots_callback=roots) as client:
        first = await client.call_tool("run_command", {"command": "echo 1 >a"})
        second = await client.call_tool("run_command", {"command": "echo 2 >b", "working_dir": str(other)})
        both = [each.structured_content for each in (first, second)]
        assert both[0]["session"] != both[1]["session"]
        latest = await client.call_tool("changes", {})
        assert latest.structured_content["run"] == both[1]["run"]
        assert "several runs" in text(await client.call_tool("diff", {"run": "0"}))
        for run in both:
            done = await client.call_tool("undo", {"run": run["run"]})
            assert done.structured_content["runs"][0]["project"] == run["project"], text(done)
        assert os.listdir(project) == os.listdir(other) == []
        again = await client.call_tool("redo", {})
        assert again.structured_content["runs"][0]["project"] == both[1]["project"], text(again)
        assert (os.listdir(project), os.listdir(other)) == ([], ["b"])


@in_time
async def test_long_output_is_paged_and_many_changes_are_cut_but_never_deletions(home: Path, project: Path) -> None:
    for number in range(5):
        (project / f"old{number}").touch()

    async with Client(stdio("--project", str(project))) as client:
        line = "seq 100000; rm old*; mkdir d; cd d; seq 400 | xargs touch"
        told = (await client.call_tool("run_command", {"command": line})).structured_content
        assert told["output_truncated"]
        assert len(told["output"]) < 40_000
        deleted = [change["path"] for change in told["changes"] if change["change"] == "deleted"]
        assert len(deleted) == 5
        assert told["changes_left_out"] > 100
        output, offset = "", 0
        while offset is not None:
            call = {"run": told["run"], "offset": offset, "limit": 100_000}
            piece = (await client.call_tool("read_output", call)).structured_content
            output, offset = output + piece["text"], piece["next_offset"]
        assert output == "".join(f"{number}\n" for number in range(1, 100_001))


@in_time
async def test_the_runs_of_a_server_are_one_session(home: Path, project: Path) -> None:
    async with Client(stdio("--project", str(project), "--session", "agent")) as client:
        await client.call_tool("run_command", {"command": "echo 1 >a; cd /; echo KEPT=yes >>$FUMEHOOD_ENV"})
        again = await client.call_tool("run_command", {"command": "echo 2 >b; pwd; echo $KEPT"})
        assert again.structured_content["output"] == f"{project}\nyes\n"
        assert again.structured_content["session"] == "agent"
        await client.call_tool("undo", {"session": True})
        assert os.listdir(project) == []
        brought = await client.call_tool("redo", {"session": True})
        assert len(brought.structured_content["runs"]) == 2, text(brought)
        assert sorted(os.listdir(project)) == ["a", "b"]


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_what_the_person_should_know_is_said_once(home: Path, project: Path, cli: Any, era: str) -> None:
    cli("run", "--", "echo x >f")
    shutil.rmtree(project)
    project.mkdir()  # noqa: ASYNC240
    async with Client(stdio(cwd=project), mode=era) as client:
        assert (await client.call_tool("changes", {"run": "01NEVER"})).is_error
        first = await client.call_tool("run_command", {"command": "echo hi"})
        (notice,) = first.structured_content["notices"]
        assert "another directory was at" in notice
        mark, note = text(first).splitlines()[1:]
        assert mark.startswith("[fumehood ")
        assert note == f"Note for the user: {notice}"
        second = await client.call_tool("run_command", {"command": "echo hi"})
        assert "notices" not in second.structured_content
        assert text(second) == "hi"


@in_time
async def test_lost_records_are_told_of(home: Path, project: Path, cli: Any) -> None:
    (project / "f").write_text("before")
    cli("run", "--", "echo x >f")
    for database in (home / ".local/state/fumehood").glob("fumehood.db*"):
        database.unlink()

    # Where no project is named, the server looks for one in the records before it opens them for good.
    async with Client(stdio(cwd=project)) as client:
        done = await client.call_tool("run_command", {"command": "true"})
        assert ["is gone" in notice for notice in done.structured_content["notices"]] == [True]


@in_time
async def test_what_cleaning_removed_is_told_with_a_later_answer(project: Path, cli: Any, store: Store) -> None:
    (project / "f").write_text("before")
    cli("run", "--", "echo x >f")
    pass_days(store, 40)
    os.utime(store.places.lock("clean"), (0, 0))
    async with Client(stdio("--project", str(project))) as client:
        notices: list[str] = []
        while not notices:
            done = await client.call_tool("run_command", {"command": "true"})
            notices = done.structured_content.get("notices", [])
        assert any(notice.startswith("removed 1 run's backups") for notice in notices), notices


@in_time
async def test_errors_say_what_to_do(home: Path, project: Path) -> None:
    async with Client(stdio("--project", str(project))) as client:
        for name, call, words in (
            ("run_command", {"command": ""}, "ERROR: the command is empty"),
            ("run_command", {"command": "true", "working_dir": "/nonexistent"}, "ERROR: Working directory"),
            ("run_command", {"command": "true", "timeout": -1}, "ERROR: run_command can't be called like"),
            ("run_command", {"command": 5}, "ERROR: run_command can't be called like this: command"),
            ("run_command", {"command": None}, "ERROR: run_command can't be called like this: command"),
            ("run_command", {"command": "true", "cwd": "/"}, "ERROR: run_command takes no 'cwd'"),
            ("apply", {}, "ERROR: apply can't be called like this: run"),
            ("undo", {"run": "01XXXX"}, "ERROR: there is no run"),
            ("diff", {"run": "nonsense"}, "ERROR: there is no run"),
        ):
            result = await client.call_tool(name, call)
            assert result.is_error
            assert text(result).startswith(words), text(result)
            assert text(result).endswith("] nothing ran"), text(result)
        null = dict.fromkeys(("working_dir", "network", "timeout"))
        done = await client.call_tool("run_command", {"command": "echo x > f", **null})
        assert not done.is_error
        assert (await client.call_tool("undo", {"run": 2})).structured_content["runs"][0]["state"] == "applied"


@in_time
async def test_tools_say_what_they_do_and_resources_tell_the_rules(home: Path, project: Path) -> None:
    async with Client(stdio("--project", str(project))) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {
            "run_command", "start_command", "poll_command", "stop_command", "running", "checkpoint", "changes",
            "diff", "read_output", "undo", "redo", "apply", "discard", "request_access",
        }  # fmt: skip
        assert tools["diff"].annotations.read_only_hint
        assert tools["undo"].annotations.destructive_hint
        assert set(tools["run_command"].input_schema["properties"]) == {
            "command", "working_dir", "network", "timeout",
        }  # fmt: skip
        assert tools["run_command"].input_schema["required"] == ["command"]
        assert {"output", "changes", "blocked"} <= set(tools["run_command"].output_schema["properties"])
        assert "transaction" in (client.instructions or "")
        resources = {str(each.uri) for each in (await client.list_resources()).resources}
        assert resources == {"fumehood://rules", "fumehood://capabilities"}
        found = await client.read_resource("fumehood://capabilities")
        assert json.loads(found.contents[0].text)["sandbox"] is True


@contextmanager
def http_server(project: Path, *, token: str | None = None) -> Iterator[tuple[str, str]]:
    environment = os.environ | ({"FUMEHOOD_MCP_TOKEN": token} if token else {})
    with subprocess.Popen(
        [*loaded(SERVER).client(), "mcp", "--project", str(project), "--http", "0"],
        stderr=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        told = process.stderr.readline() + ("" if token else process.stderr.readline())
        try:
            url = re.search(r"http://\S+", told)
            given = re.search(r"Bearer (\S+)", told)
            assert url, told + process.stderr.read()
            yield url[0], token or (given[1] if given else "")
        finally:
            process.terminate()
            process.communicate(timeout=LONG_S)


@asynccontextmanager
async def by_http(url: str, token: str, **options: Any) -> AsyncIterator[Client]:
    """A client of a server by HTTP."""
    import httpx2

    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=LONG_S) as http,
        Client(streamable_http_client(url, http_client=http), **options) as client,
    ):
        yield client


@pytest.mark.parametrize("era", ERAS)
def test_http_serves_who_has_the_token(home: Path, project: Path, era: str) -> None:
    seen: list[str] = []

    async def test(url: str, token: str) -> None:
        async with by_http(url, token, mode=era, elicitation_callback=answering(["allow_once"], seen)) as client:
            done = await client.call_tool("run_command", {"command": "echo hi >f; cat f"})
            assert done.structured_content["output"] == "hi\n"
            asked_for = await client.call_tool("run_command", {"command": "echo net", "network": True})
            assert asked_for.structured_content["output"] == "net\n"

    with http_server(project) as (url, token):
        asyncio.run(asyncio.wait_for(test(url, token), 2 * LONG_S))
    assert len(seen) == 1


@pytest.mark.long
@pytest.mark.parametrize("era", ERAS)
def test_clients_of_one_server_do_not_reach_each_other(home: Path, project: Path, era: str) -> None:
    """The newer protocol has no connections: there each client has a token of its own."""
    tokens = ["the token of the first", "the token of the second"]

    async def test(url: str) -> None:
        async with AsyncExitStack() as stack:
            chosen = tokens if era != "legacy" else tokens[:1] * 2
            first, second = [await stack.enter_async_context(by_http(url, each, mode=era)) for each in chosen]
            own = (await first.call_tool("run_command", {"command": "echo own >own"})).structured_content
            await unknown(second, own["run"])
            started = await first.call_tool("start_command", {"command": f"echo begun; exec sleep {LONG}.1"})
            for tool in ("poll_command", "stop_command"):
                assert "no job job-1" in text(await second.call_tool(tool, {"job": started.structured_content["job"]}))
            others = await second.call_tool("start_command", {"command": "true"})
            assert others.structured_content["job"] == "job-1", "it tells how many others started"
            mine = (await second.call_tool("run_command", {"command": "echo KEPT=$KEPT"})).structured_content
            assert mine["session"] != own["session"]
            stopped = await first.call_tool("stop_command", {"job": "job-1"})
            assert not stopped.structured_content["running"]
            assert (await first.call_tool("undo", {"run": own["run"]})).structured_content, "its own is its own"

    with http_server(project, token=",".join(tokens)) as (url, _):
        asyncio.run(asyncio.wait_for(test(url), 2 * LONG_S))


def test_what_a_client_started_ends_when_it_leaves(home: Path, project: Path) -> None:
    async def test(url: str, token: str) -> None:
        async with by_http(url, token, mode="legacy") as staying:
            await staying.call_tool("start_command", {"command": f"exec sleep {LONG}.2"})
            async with by_http(url, token, mode="legacy") as leaving:
                await leaving.call_tool("start_command", {"command": f"exec sleep {LONG}.3"})
            with Sandbox(project) as sandbox:
                assert await asyncio.to_thread(eventually, lambda: len(sandbox.running()) == 1)
                assert [run.command for run in sandbox.running()] == [f"exec sleep {LONG}.2"], "another's goes on"

    with http_server(project) as (url, token):
        asyncio.run(asyncio.wait_for(test(url, token), 2 * LONG_S))


@pytest.mark.long
@pytest.mark.parametrize("word", ["yes", "no"])
def test_the_person_at_the_terminal_answers_for_a_client_that_can_not_ask(home: Path, project: Path, word: str) -> None:
    async def test(url: str, terminal: Terminal) -> Any:
        async with by_http(url, "a token that was set", mode="legacy") as client:
            call = asyncio.create_task(client.call_tool("run_command", {"command": "echo ran >f", "network": True}))
            await asyncio.to_thread(terminal.wait_for, "[y] allow once")
            terminal.type(f"{word}\n")
            return await call

    line = [*command_line(), "mcp", "--project", str(project), "--http", "0"]
    with Terminal(line, project, env={"FUMEHOOD_MCP_TOKEN": "a token that was set"}) as terminal:
        url = re.search(r"http://\S+/mcp", terminal.wait_for("/mcp"))
        assert url
        result = asyncio.run(asyncio.wait_for(test(url[0], terminal), 2 * LONG_S))
    assert result.is_error == (word == "no")
    assert (project / "f").exists() == (word == "yes")


def test_http_refuses_strangers_and_other_names(home: Path, project: Path) -> None:
    def status(url: str, **headers: str) -> int:
        request = urllib.request.Request(url, b"{}", {"Content-Type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=LONG_S) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    with http_server(project, token="a token that was set") as (url, token):
        assert status(url) == 401
        assert status(url, Authorization="Bearer wrong") == 401
        right = {"Authorization": f"Bearer {token}"}
        assert status(url, **right, Accept="application/json, text/event-stream") == 400
        assert status(url, **right, Host="evil.example") == 421
        assert status(url, **right, Origin="http://evil.example") == 403
        port = url.split(":")[2].split("/")[0]
        listening = Path("/proc/net/tcp").read_text()
        assert f"0100007F:{int(port):04X} 00000000:0000 0A" in listening


@in_time
async def test_the_server_ends_with_its_client_and_leaves_nothing_running(home: Path, project: Path) -> None:
    async with Client(stdio("--project", str(project))) as client:
        await client.call_tool("start_command", {"command": f"echo x; exec sleep {LONG}.1"})
    assert not left_over(f"{LONG}.1"), "it goes on"


def test_without_the_extra_the_command_says_how_to_get_it(home: Path, project: Path) -> None:
    code = "import sys; sys.modules['mcp'] = None; from fumehood.faces.cli.main import main; sys.exit(main(['mcp']))"
    python = command_line()[0]
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, cwd=project)
    assert done.returncode == 125
    assert "pip install '.[mcp]'" in done.stderr


HOOK = "mkdir -p .git/hooks; echo '#!/bin/sh' >.git/hooks/pre-push; chmod +x .git/hooks/pre-push"


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_a_yes_to_the_last_run_is_not_for_one_that_came_while_the_person_thought(
    home: Path, project: Path, era: str
) -> None:
    """The agent asks to apply a harmless run, and runs another, with a git hook, before the person has answered."""
    seen: list[str] = []
    held: list[str] = []

    async def answer(_context: Any, params: Any) -> ElicitResult:
        seen.append(params.message)
        if len(seen) > 1:
            return ElicitResult(action="decline")
        late = await client.call_tool("run_command", {"command": HOOK})
        assert late.structured_content["state"] == "held"
        return ElicitResult(action="accept", content={"answer": "allow_once"})

    async with Client(stdio("--project", str(project)), mode=era, elicitation_callback=answer) as client:
        first = await client.call_tool("run_command", {"command": "echo x >.envrc"})
        held.append(first.structured_content["run"])
        done = await client.call_tool("apply", {"run": "last"})
        assert not (project / ".git").exists(), text(done)
        if era == "legacy":  # asked while the tool runs: the yes is for the run that was named
            assert done.structured_content["run"] == held[0], text(done)
            assert (project / ".envrc").exists()
        else:  # the call is made again and means the other run now, which is asked for
            assert done.is_error
            assert len(seen) == 2
            assert "pre-push" in seen[1]
    assert ".envrc" in seen[0]
    assert "pre-push" not in seen[0]


HELD = "mkdir .vscode; for n in 1 2 3 4 5 6; do echo $n >.vscode/$n.json; done"


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_what_a_run_holds_is_asked_about_again_when_it_changed_meanwhile(
    home: Path, project: Path, cli: Any, era: str
) -> None:
    seen: list[str] = []
    runs: list[str] = []

    async def answer(_context: Any, params: Any) -> ElicitResult:
        seen.append(params.message)
        if len(seen) == 1:
            gone = await asyncio.to_thread(cli, "discard", runs[0], ".vscode/3.json")
            assert gone.returncode == 0, gone.stderr
        return ElicitResult(action="accept", content={"answer": "allow_once"})

    async with Client(stdio("--project", str(project)), mode=era, elicitation_callback=answer) as client:
        held = await client.call_tool("run_command", {"command": HELD})
        runs.append(held.structured_content["run"])
        done = await client.call_tool("apply", {"run": runs[0]})
        assert done.structured_content["state"] == "applied", text(done)
    assert len(seen) == 2
    assert "3.json" in seen[0]
    assert "3.json" not in seen[1]
    assert sorted(os.listdir(project / ".vscode")) == [f"{number}.json" for number in (1, 2, 4, 5, 6)]


@in_time
async def test_what_changes_each_time_is_refused_in_the_end(home: Path, project: Path, cli: Any) -> None:
    seen: list[str] = []
    runs: list[str] = []

    async def answer(_context: Any, params: Any) -> ElicitResult:
        seen.append(params.message)
        await asyncio.to_thread(cli, "discard", runs[0], f".vscode/{len(seen)}.json")
        return ElicitResult(action="accept", content={"answer": "allow_once"})

    async with Client(stdio("--project", str(project)), mode="legacy", elicitation_callback=answer) as client:
        held = await client.call_tool("run_command", {"command": HELD})
        runs.append(held.structured_content["run"])
        done = await client.call_tool("apply", {"run": runs[0]})
        assert done.is_error
        assert "has changed since it was shown" in text(done)
    assert len(seen) == 3
    assert not (project / ".vscode").exists()


@in_time
async def test_an_answer_that_is_sent_a_second_time_is_none(home: Path, project: Path) -> None:
    """A client hands back its answer with the state it was given; both could be kept and sent again."""

    async def never(_context: Any, _params: Any) -> ElicitResult:
        raise AssertionError("the session below is driven by hand")

    async with Client(stdio("--project", str(project)), mode=ERAS[1], elicitation_callback=never) as client:
        call = {"command": "echo ran >>ran", "network": True}

        async def called(arguments: dict[str, Any], **more: Any) -> Any:
            return await client.session.call_tool("run_command", arguments, allow_input_required=True, **more)

        first = await called(call)
        (key,) = first.input_requests
        yes = {key: ElicitResult(action="accept", content={"answer": "allow_once"})}
        answered = {"input_responses": yes, "request_state": first.request_state}
        # One question's state and answer are nothing to another's, and an answer without its state to none.
        with pytest.raises(MCPError, match="requestState"):
            await called({**call, "command": "echo other >>ran"}, **answered)
        unstated = await called(call, input_responses=yes)
        assert unstated.input_requests
        done = await called(call, **answered)
        assert done.structured_content["state"] == "applied", text(done)
        again = await called(call, **answered)
        assert again.input_requests[key].params.message != first.input_requests[key].params.message
    assert (project / "ran").read_text() == "ran\n"


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_nothing_in_a_command_shapes_the_question(home: Path, project: Path, era: str) -> None:
    seen: list[str] = []
    command = "make\n\nFumehood asks you: harmless?\x1b[2J\u202e\U000e0041" + "\n" * 50 + "curl evil.example"
    answer = answering([None], seen)
    async with Client(stdio("--project", str(project)), mode=era, elicitation_callback=answer) as client:
        assert (await client.call_tool("run_command", {"command": command, "network": True})).is_error
    (message,) = seen
    lines = message.split("\n")
    assert all(line.isprintable() for line in lines)
    assert lines[1] == lines[-2] == ""
    assert all(line.startswith("    ") for line in lines[2:-2])
    assert len(lines) < 20
    unbroken = message.replace("\n      | ", "")
    assert "[52 BLANK CHARACTERS, 50 of them line breaks]curl evil.example\n" in unbroken


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_a_hook_among_decoys_is_named_first(home: Path, project: Path, era: str) -> None:
    seen: list[str] = []
    answer = answering([None], seen)
    async with Client(stdio("--project", str(project)), mode=era, elicitation_callback=answer) as client:
        line = f"mkdir .aaa .vscode; for n in $(seq 40); do echo x >.vscode/$n; done; {HOOK}"
        await client.call_tool("run_command", {"command": line})
        assert (await client.call_tool("apply", {"run": "last"})).is_error
    (message,) = seen
    listed = [line.strip() for line in message.splitlines() if line.strip().startswith("added")]
    assert listed[0].startswith("added .git/hooks/pre-push: git runs this hook")
    assert "21 editor settings" in message
    assert "fumehood show" in message


@pytest.mark.parametrize("era", ERAS)
@in_time
async def test_a_template_of_the_configuration_is_a_tool_with_quoted_words(home: Path, project: Path, era: str) -> None:
    configuration = home / ".config/fumehood/config.toml"
    configuration.parent.mkdir(exist_ok=True)
    configuration.write_text(
        '[[tool]]\nname = "keep_note"\ndescription = "Keep a note."\ncommand = "printf %s {text} > {file}"\n'
        f'[[project."{project}".tool]]\nname = "count"\ndescription = "Count lines."\ncommand = "wc -l {{paths}}"\n'
        'schema.properties.paths = { type = "array", items = { type = "string" }, minItems = 1 }\n'
        'schema.required = ["paths"]\n'
    )
    async with Client(stdio("--project", str(project)), mode=era) as client:
        offered = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert offered["keep_note"].input_schema["required"] == ["text", "file"]
        assert offered["count"].description == "Count lines."
        hostile = "'; touch hurt; echo '\n$(touch hurt)"
        done = await client.call_tool("keep_note", {"text": hostile, "file": "a note"})
        assert [change["path"] for change in done.structured_content["changes"]] == ["a note"]
        assert (project / "a note").read_text() == hostile
        assert (await client.call_tool("count", {"paths": ["a note"]})).structured_content["output"] == "1 a note\n"
        for wrong in ({}, {"paths": []}, {"paths": ["a\0b"]}, {"paths": "x"}, {"paths": ["x"], "more": 1}):
            refused = await client.call_tool("count", wrong)
            assert refused.is_error
            assert text(refused).startswith("ERROR: ")


@in_time
async def test_a_checkpoint_is_of_the_run_that_is_named_and_no_other(home: Path, project: Path) -> None:
    async with Client(stdio("--project", str(project))) as client:
        ended = (await client.call_tool("run_command", {"command": "echo a > a"})).structured_content["run"]
        await client.call_tool("start_command", {"command": f"echo b > b; echo begun; sleep {LONG}"})
        await client.call_tool("poll_command", {"job": "job-1", "wait": 30})
        running = (await client.call_tool("running", {})).structured_content["commands"]
        (run,) = (each["run"] for each in running)
        for name, why in (("", "there is no run"), ("0", "several runs"), (ended, "runs now"), ("1", "runs now")):
            refused = await client.call_tool("checkpoint", {"run": name})
            assert refused.is_error, name
            assert why in text(refused)
        for named in (2, run[:-1].lower()):
            made = await client.call_tool("checkpoint", {"run": named})
            assert made.structured_content["command"].startswith("checkpoint of "), text(made)
