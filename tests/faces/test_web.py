"""The page of `fumehood web`: who gets in, what it shows of whatever commands wrote, and what its forms do."""

import html
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator
from starlette.requests import Request

from conftest import command_line
from fumehood import Sandbox
from fumehood.errors import ChangedMeanwhile
from fumehood.faces.web import api, app, views
from fumehood.faces.web.views import Page
from fumehood.service import overview
from fumehood.service.opened import OpenedStore
from patience import LONG_S, eventually
from web_page import WebPage, fields_of

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

HOSTILE = "a<img src=x onerror=alert(1)>"
VIEWS = ("/", "/questions", "/waiting", "/history", "/files", "/drafts", "/settings", "/settings/doctor")


@pytest.fixture
def page(home: Path) -> Iterator[WebPage]:
    with WebPage() as page:
        page.enter()
        yield page


def test_only_the_link_lets_in_and_only_once_and_no_other_site(home: Path) -> None:
    with WebPage() as page:
        for path in ("/", "/?token=x"):
            strange = page.ask("GET", path)
            assert (strange.status, "Open the link that `fumehood web` printed" in strange.text) == (403, True)
        entered = page.enter()
        assert (entered.status, 'content="0; url=/"' in entered.text) == (200, True)
        assert "httponly" in entered.headers["set-cookie"].lower()
        assert "samesite=strict" in entered.headers["set-cookie"].lower()
        assert page.ask("GET", "/").status == 200
        again = page.ask("GET", f"/?token={page.token}", Cookie="")
        assert again.status == 403
        assert "fumehood web" in again.text
        for path in ("/", "/static/app.js", "/api/runs", f"/?token={page.token}"):
            assert page.ask("GET", path, Host="evil.example:80").status == 400
        for origin in ("http://evil.example", "null", f"http://localhost.evil:{page.host}"):
            assert page.ask("POST", "/playground/clean", "", Origin=origin).status == 403
        assert page.ask("POST", "/playground/clean", "").status == 403
        policy = page.ask("GET", "/").headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        # The interface for programs has a token of its own: a browser's cookie is none.
        assert page.ask("GET", "/api/runs").status == 401
        assert page.ask("GET", "/api/runs", Authorization="Bearer x").status == 401
        assert page.call("GET", "/api/runs") == {"runs": [], "before": None}
        token = Path(os.environ["XDG_STATE_HOME"], "fumehood/api-token")
        assert token.stat().st_mode & 0o077 == 0
        foreign = page.ask("GET", "/api/runs", Authorization=f"Bearer {token.read_text()}", Origin="http://evil")
        assert foreign.status == 401


def test_one_more_browser_gets_in_by_a_link_that_a_known_one_makes(page: WebPage) -> None:
    assert page.ask("POST", "/link", "", Cookie="", Origin=f"http://{page.host}").status == 403
    links = []
    for _ in range(2):
        shown = page.send("/link")
        assert (shown.status, shown.headers["cache-control"]) == (200, "no-store")
        links += re.findall(rf"http://{re.escape(page.host)}(/\?token=[\w-]+)", shown.text)
    old, new = links
    assert page.ask("GET", old, Cookie="").status == 403
    assert page.ask("GET", new, Cookie="").headers["set-cookie"].startswith(page.cookie)
    assert page.ask("GET", new, Cookie="").status == 403
    assert page.ask("GET", "/").status == 200


def test_whatever_commands_wrote_stays_text(cli: Any, project: Path, page: WebPage) -> None:
    (project / "page.py").write_text("x = 1\n")
    line = "printf '\\033[31mred\\033[0m<script>alert(2)</script>\\033]0;title\\007\\n'; echo '</td><script>' > page.py"
    cli("run", "--hold", "--", f"{line}; touch '{HOSTILE}'; printf x > \"$(printf 'n\\377')\"; echo '<b>' > '<b>.txt'")
    for view in VIEWS:
        text = page.get(view)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
    held = page.get("/waiting")
    assert html.escape(HOSTILE) in held
    (run,) = page.call("GET", "/api/waiting")["waiting"]
    shown = page.get(f"/runs/{run['run']}")
    assert '<span class="ink-1">red</span>&lt;script&gt;' in shown
    assert "title" not in shown.partition("Standard output")[2].partition("</pre>")[0]
    difference = page.get(f"/runs/{run['run']}/diff?root=0&path=page.py")
    assert "&lt;" in difference
    assert "<script>" not in difference.partition('class="diff"')[2].replace("</script>", "")
    # A name that is no text is shown as one, and what a form sends is the name itself.
    assert "n%FF" in held
    done = page.send(f"/runs/{run['run']}/apply", path="n%FF", back="waiting")
    assert done.status == 303
    assert os.path.exists(os.fsencode(project) + b"/n\xff")
    assert "n\udcff" in json.dumps(page.call("GET", f"/api/runs/{run['run']}"), ensure_ascii=False)


def test_a_name_of_blanks_is_seen(cli: Any, project: Path, page: WebPage) -> None:
    cli("run", "--hold", "--", "touch ' '")
    assert "<code>&#39; &#39;</code>" in page.get("/waiting")


def test_one_hunk_of_three_is_accepted_and_the_file_is_exactly_that(cli: Any, project: Path, page: WebPage) -> None:
    lines = [f"line {number}\n" for number in range(1, 61)]
    (project / "f.txt").write_text("".join(lines))
    cli("run", "--hold", "--", "sed -i -e 2s/line/LINE/ -e 30s/line/LINE/ -e 58s/line/LINE/ f.txt; echo x > .envrc")
    (run,) = page.call("GET", "/api/waiting")["waiting"]
    address = f"/runs/{run['run']}"
    difference = page.get(f"{address}/diff?root=0&path=f.txt", HX_Request="true")
    assert difference.count('name="hunk"') == 3
    assert '<span class="word">LINE</span>' in difference
    fields = fields_of(difference, "/hunks")
    assert "no piece was chosen" in page.send(f"{address}/hunks", **fields).text
    (project / "f.txt").write_text("".join(lines) + "mine\n")
    stale = page.send(f"{address}/hunks", hunk=["1"], **fields)
    assert stale.status == 409
    assert "changed since it was shown: nothing was done" in stale.text
    (project / "f.txt").write_text("".join(lines))
    fields = fields_of(page.get(f"{address}/diff?root=0&path=f.txt"), "/hunks")
    (shown,) = page.call("GET", f"/api{address}/diff?path=f.txt")["differences"]
    assert shown["digest"] == fields["digest"]
    done = page.send(f"{address}/hunks", hunk=["1"], **fields)
    assert done.status == 303
    assert (project / "f.txt").read_text() == "".join([*lines[:29], "LINE 30\n", *lines[30:]])
    # What is left is refused by the form that shows it; one from before that has nothing to say any more.
    held = page.get("/waiting")
    assert "f.txt" not in held.partition("directory")[2]
    fields = fields_of(held, f"{address}/apply")
    page.send(f"{address}/discard", **fields)
    assert not (project / ".envrc").exists()
    assert page.send(f"{address}/apply", **fields).status == 409
    assert "Nothing waits" in page.get("/waiting")


def test_a_held_hook_is_refused_and_a_source_file_accepted(cli: Any, project: Path, page: WebPage) -> None:
    subprocess.run(["git", "init", "-q", project], check=True)
    hook = "echo evil > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit"
    cli("run", "--hold", "--", f"{hook}; mkdir src; echo 'x = 1' > src/a.py")
    (run,) = page.call("GET", "/api/waiting")["waiting"]
    held = page.get("/waiting")
    assert "git-hook" in held
    fields = fields_of(held, f"/runs/{run['run']}/apply")
    assert page.send(f"/runs/{run['run']}/discard", **{**fields, "path": ".git/hooks/pre-commit"}).status == 303
    # The second form was made from what is gone now: whoever sent it has to look again.
    stale = page.send(f"/runs/{run['run']}/apply", **{**fields, "path": "src/a.py"})
    assert (stale.status, "has changed since it was shown: nothing was done" in stale.text) == (409, True)
    fields = fields_of(page.get("/waiting"), f"/runs/{run['run']}/apply")
    assert page.send(f"/runs/{run['run']}/apply", **{**fields, "path": "src/a.py"}).status == 303
    assert (project / "src/a.py").read_text() == "x = 1\n"
    assert not (project / ".git/hooks/pre-commit").exists()


@pytest.mark.parametrize(
    ("module", "name", "view"),
    [
        (overview, "page_of_changes", lambda page, asked: views.waiting(page, asked)[1]["runs"][0]),
        (overview, "page_of_changes", lambda page, asked: views.run(page, asked)[1]),
        (api, "count_waiting", lambda page, asked: _call("/api/waiting").answer(page, asked, {})["waiting"][0]),
    ],
)
def test_what_changes_while_it_is_read_is_not_accepted(
    cli: Any, home: Path, project: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, view: Any
) -> None:
    cli("run", "--hold", "--", "echo a > a; echo b > b")
    read = getattr(module, name)

    def read_before(*arguments: Any, **options: Any) -> Any:
        was = read(*arguments, **options)
        assert cli("discard", "last", "b").returncode == 0
        return was

    monkeypatch.setattr(module, name, read_before)
    store = OpenedStore()
    run = store.history.find("last")
    asked = {"type": "http", "path_params": {"run": run.run}, "query_string": b"", "headers": []}
    shown = view(Page(store), Request(asked))
    with pytest.raises(ChangedMeanwhile, match="changed since it was shown"):
        overview.perform(store, store.history.find(run.run), overview.ChosenAct(act="apply", seen=shown["seen"]))
    store.close()
    assert not (project / "a").exists()


def _call(path: str) -> api.Call:
    return next(call for call in api.CALLS if call.path == path)


def test_a_conflict_is_shown_with_three_versions_and_merged(cli: Any, project: Path, page: WebPage) -> None:
    (project / "f").write_text("1\n2\n3\n4\n5\n")
    cli("run", "--hold", "--", "sed -i 5s/5/five/ f")
    cli("run", "--", "true")
    (project / "f").write_text("one\n2\n3\n4\n5\n")
    (run,) = page.call("GET", "/api/waiting")["waiting"]
    address = f"/runs/{run['run']}"
    assert page.send(f"{address}/apply", path="f", back="waiting").status == 303
    difference = page.get(f"{address}/diff?root=0&path=f")
    assert "In the project now" in difference
    assert "no longer kept" in difference  # nobody has kept what the person wrote over
    fields = fields_of(difference, "/merge")
    left = page.send(f"{address}/merge", content="<<<<<<< in the project\r\none\r\n", **fields)
    assert left.status == 409
    assert "both versions are still there" in left.text
    page.send(f"{address}/merge", content="one\r\n2\r\n3\r\n4\r\nfive\r\n", **fields)
    assert (project / "f").read_text() == "one\n2\n3\n4\nfive\n"
    cli("undo")
    assert (project / "f").read_text() == "one\n2\n3\n4\n5\n"


@pytest.fixture
def asking(cli: Any, project: Path) -> Iterator[Callable[[], "subprocess.Popen[str]"]]:
    processes = []

    def start() -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*command_line(), "run", "--allow-host", "example.org", "--", "echo granted"], cwd=project, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_a_question_is_answered_once_whoever_is_faster(page: WebPage, asking: Any, project: Path) -> None:
    import socket

    # Somebody looks: the page is told what is new for as long as this is open.
    name, _, port = page.host.partition(":")
    with socket.create_connection((name, int(port)), timeout=LONG_S) as watching:
        watching.sendall(f"GET /events HTTP/1.1\r\nHost: {page.host}\r\nCookie: {page.cookie}\r\n\r\n".encode())
        news = b""
        while b"event: questions" not in news:
            news += watching.recv(1 << 16)
        present = Path(os.environ["XDG_STATE_HOME"], "fumehood/desk")
        eventually(lambda: list(present.glob("*.present")))
        process = asking()
        eventually(lambda: page.call("GET", "/api/questions")["questions"])
        (question,) = page.call("GET", "/api/questions")["questions"]
        while b"example.org" not in news:
            news += watching.recv(1 << 16)
        shown = page.get("/questions")
        for option in question["options"]:
            assert f'value="{option}"' in shown
        assert page.ask(
            "POST", f"/questions/{question['id']}", "answer=allow_once", Origin=f"http://{page.host}",
            HX_Request="true", Content_Type="application/x-www-form-urlencoded",
        ).text.strip() == "Answered."  # fmt: skip
        assert page.call("POST", f"/api/questions/{question['id']}", {"answer": False}) == {"counted": False}
        assert "granted" in process.communicate(timeout=LONG_S)[0]


def test_a_running_command_is_shown_with_what_it_prints_writes_and_uses_and_is_stopped(
    page: WebPage, begun: Any, project: Path
) -> None:
    begun("echo ready; mkdir d; echo x > d/new; echo '<i>' >&2; sleep 1000")
    eventually(lambda: "d/new" in page.get("/"))
    (run,) = page.call("GET", "/api/running")["running"]
    assert run["memory"] > 0
    assert run["processes"] > 1
    assert "Stop" in page.get(f"/runs/{run['run']}")
    assert page.send(f"/runs/{run['run']}/stop").status == 303
    assert page.call("GET", f"/api/runs/{run['run']}")["state"] == "held"


@pytest.mark.long
def test_the_graph_of_a_session_that_was_taken_back_leaves_room_for_words(cli: Any, page: WebPage) -> None:
    for number in range(12):
        cli("run", "-q", "--session", "s", "--", f"echo {number} > f{number}")
    cli("undo", "--session", "s")
    rows = page.get("/history").split('class="lanes"')[1:]
    assert len(rows) == 24
    assert max(row.count('class="lane"') for row in rows) == 9


def test_the_history_is_found_by_command_path_session_and_what_was_printed(
    cli: Any, page: WebPage, project: Path
) -> None:
    cli("run", "--session", "agent", "--", "mkdir -p src; echo 1 > src/a.py; echo needle")
    cli("run", "--", "echo 2 > b.py; seq 100000; echo needle")
    cli("run", "--", "echo three")
    cli("undo", "2")
    for asked, numbers in (
        ("words=THREE", [3]), ("path=src", [1]), ("path=src/a.py", [1]), ("path=b.py", [4, 2]), ("path=c", []),
        ("session=agent", [1]), ("text=needle", [2, 1]), ("state=undone", [2]), ("text=needle&path=b.py", [2]),
        ("words=%232", [2]), ("words=%232+seq", [2]), ("words=%232+three", []), ("words=%23", []),
    ):  # fmt: skip
        runs = page.call("GET", f"/api/runs?{asked}")["runs"]
        assert [run["number"] for run in runs] == numbers, asked
        text = page.get(f"/history?{asked}")
        assert [number for number in (1, 2, 3, 4) if f'"number">#{number}<' in text] == sorted(numbers), asked
    shown = page.get("/history")
    assert "taken back by" in shown
    assert "takes back" in shown
    runs = page.call("GET", "/api/runs?limit=2")
    rest = page.call("GET", f"/api/runs?limit=2&before={runs['before']}")
    assert [run["number"] for each in (runs, rest) for run in each["runs"]] == [4, 3, 2, 1]
    (run,) = page.call("GET", "/api/runs?words=undo")["runs"]
    page.send(f"/runs/{run['run']}/redo")
    assert (project / "b.py").exists()


def test_a_files_versions_its_lines_and_a_restore(cli: Any, page: WebPage, project: Path) -> None:
    (project / "f.py").write_text("a = 1\n")
    cli("run", "--", "echo 'b = 2' >> f.py")
    cli("run", "--", "sed -i s/1/3/ f.py")
    where = f"project={project}&root={project}&path=f.py"
    assert "f.py" in page.get("/files")
    assert page.get(f"/file?{where}").count('name="source"') >= 2
    lines = page.get(f"/file/lines?{where}", HX_Request="true")
    assert [lines.count(f">#{number}</a>") for number in (1, 2)] == [1, 1]
    version = page.call("GET", f"/api/versions?{where}")["versions"][0]
    assert "class=\"lines\"" in page.get(f"/file/version?{where}&source={version['from']}")
    done = page.send("/restore", project=str(project), path=f"{project}/f.py", source=version["from"])
    assert done.status == 303
    assert (project / "f.py").read_text() == "a = 1\nb = 2\n"


def test_a_draft_is_looked_at_and_taken_over_as_it_was_shown(cli: Any, page: WebPage, project: Path) -> None:
    (project / "f").write_text("1\n2\n3\n")
    cli("draft", "new", "idea")
    cli("run", "--draft", "idea", "--", "sed -i s/3/three/ f; echo new > g")
    (draft,) = page.call("GET", "/api/drafts")["drafts"]
    address = f"/drafts/{draft['address']}"
    assert address in page.get("/drafts")
    assert "Nothing waits" in page.get("/waiting")
    assert "Take over all 2" in page.get(address)
    assert "three" in page.get(f"{address}/diff?root=0&path=f", HX_Request="true")
    fields = fields_of(page.get(address), f"{address}/apply")
    (run,) = page.call("GET", "/api/runs")["runs"]
    assert "is applied as a whole" in page.send(f"/runs/{run['run']}/apply").text
    assert f"/runs/{run['run']}/apply" not in page.get(f"/runs/{run['run']}")
    # Another command has run in it since, and then the project has changed the same line.
    cli("run", "--draft", "idea", "--", "echo newer > g")
    stale = page.send(f"{address}/apply", **fields)
    assert (stale.status, "draft idea has changed since it was shown" in stale.text) == (409, True)
    (project / "f").write_text("1\n2\n3.0\n")
    shown = page.get(address)
    assert "In the way" in shown
    fields = fields_of(shown, f"{address}/apply")
    assert page.send(f"{address}/apply", **fields).status == 409
    assert not (project / "g").exists()
    assert page.send(f"{address}/apply", force="1", **fields).status == 303
    assert ((project / "f").read_text(), (project / "g").read_text()) == ("1\n2\nthree\n", "newer\n")
    cli("draft", "new", "other")
    cli("run", "--draft", "other", "--", "rm f")
    (draft,) = page.call("GET", "/api/drafts")["drafts"]
    assert page.call("GET", f"/api/drafts/{draft['address']}")["changes"][0]["change"] == "deleted"
    assert page.call("POST", f"/api/drafts/{draft['address']}/discard", {"seen": draft["seen"]}) == {}
    assert page.call("GET", "/api/drafts") == {"drafts": []}
    assert (project / "f").exists()


def test_settings_are_checked_before_they_are_written(page: WebPage, home: Path) -> None:
    file = home / ".config/fumehood/config.toml"
    assert page.send("/configuration", before="", text="network = 3\n").status == 409
    assert not file.exists()
    assert page.send("/configuration", before="", text='# mine\r\nnetwork = "ask"\r\n').status == 303
    assert file.read_text() == '# mine\nnetwork = "ask"\n'
    refused = page.send("/configuration", before="", text="")
    assert "changed meanwhile" in refused.text
    assert "# mine" in page.get("/settings")


@pytest.mark.parametrize("act", ["apply", "discard"])
def test_of_a_run_that_changed_nothing_it_is_said_that_it_holds_nothing(cli: Any, page: WebPage, act: str) -> None:
    cli("run", "--", "true")
    (run,) = page.call("GET", "/api/runs")["runs"]
    seen = page.call("GET", f"/api/runs/{run['run']}")["seen"]
    answer = page.call("POST", f"/api/runs/{run['run']}/{act}", {"seen": seen})
    assert answer["error"].endswith(" holds nothing: it is empty")


def test_every_address_of_the_interface_is_described_and_answers(cli: Any, page: WebPage, project: Path) -> None:
    cli("run", "--", "echo a > a")
    described = page.call("GET", "/api/openapi.json")
    assert described["openapi"].startswith("3.1")
    for path, methods in described["paths"].items():
        for method in methods.values():
            asked = [each["name"] for each in method["parameters"] if each["in"] == "path"]
            assert asked == re.findall(r"{(\w+)}", path)
            assert all(answer["description"] for answer in method["responses"].values())
            body = method.get("requestBody", {"content": {"application/json": {"schema": {}}}})
            Draft202012Validator.check_schema(body["content"]["application/json"]["schema"])
    (run,) = page.call("GET", "/api/runs")["runs"]
    cli("draft", "new", "idea")
    (draft,) = page.call("GET", "/api/drafts")["drafts"]
    for path, methods in described["paths"].items():
        if "get" in methods:
            address = path.replace("{run}", run["run"]).replace("{project}/{draft}", draft["address"])
            answer = page.call("GET", f"{address}?project={project}&path=a")
            assert "error" not in answer, path
    assert page.call("POST", f"/api/runs/{run['run']}/undo", {"paths": ["a"]})["state"] == "applied"
    assert not (project / "a").exists()
    assert "hint" in page.call("POST", f"/api/runs/{run['run']}/undo", {"pats": ["a"]})
    assert "error" in page.call("GET", "/api/runs/nothing")
    assert "error" in page.call("GET", "/api/nothing")


def test_a_request_that_is_no_object_is_refused_however_deep_it_is(page: WebPage, home: Path) -> None:
    token = (home / ".local/state/fumehood/api-token").read_text()
    for sent in ("{", "[]", "[" * 200_000):
        answer = page.ask("POST", "/api/playground/clean", sent, Authorization=f"Bearer {token}")
        assert (answer.status, "the request is not" in answer.text) == (409, True)


def test_a_run_of_many_changes_is_shown_a_page_at_a_time(sandbox: Sandbox, page: WebPage, project: Path) -> None:
    run = sandbox.run("mkdir d e; cd d; seq 500 | xargs touch; cd ../e; seq 30 | xargs touch", apply="hold")
    seen, where = [], ""
    while where is not None:
        some = page.call("GET", f"/api/runs/{run.id}/changes?limit=200&after={where}")
        seen += [change["path"] for change in some["changes"]]
        where = some["after"]
    assert sorted(seen) == sorted(change.path for change in run.changes)
    assert len(seen) == len(set(seen)) == 532
    assert page.get(f"/runs/{run.id}").count('name="path"') == 200
    held = page.get("/waiting")
    assert "532 changes" in held
    assert held.count('name="path"') < 80
    # By directory, whatever is on the page.
    fields = fields_of(held, f"/runs/{run.id}/apply")
    assert page.send(f"/runs/{run.id}/apply", path="e", **fields).status == 303
    assert len(list((project / "e").iterdir())) == 30
    assert not (project / "d").exists()


def test_a_run_is_taken_back_though_what_it_applied_is_on_a_later_page(
    cli: Any, page: WebPage, project: Path
) -> None:
    (project / "z").mkdir()
    subprocess.run(["git", "init", "-q", project], check=True)
    cli("run", "--", "for i in $(seq 250); do echo > .git/hooks/h$i; done; echo > z/a")
    (run,) = page.call("GET", "/api/runs")["runs"]
    shown = page.get(f"/runs/{run['run']}")
    assert "Accept all 250 that wait" in shown
    assert "<code>z/a</code>" not in shown
    assert "Undo the run" in shown
    page.send(f"/runs/{run['run']}/undo")
    assert not (project / "z/a").exists()


def test_what_only_waits_has_no_size_in_the_list_of_files_and_bytes_are_not_called_unshown(
    cli: Any, page: WebPage, project: Path
) -> None:
    (project / "old.txt").write_text("12345\n")
    cli("run", "--hold", "--", "echo new > new.txt; echo 1234567890 > old.txt; printf 'a\\0b' > c.bin")
    rows = re.findall(r"<code>(.*?)</code>.*?waiting</span>(.*?)</li>", page.get("/files"))
    assert rows == [
        ("c.bin", ""), ("new.txt", ""), ("old.txt", ' <span class="quiet">6 bytes</span>')
    ]  # fmt: skip
    (run,) = page.call("GET", "/api/runs")["runs"]
    shown = page.get(f"/runs/{run['run']}/diff?path=c.bin")
    assert "61 00 62" in shown
    assert "not shown" not in shown


def test_a_command_that_failed_and_a_link_are_told_apart_at_a_glance(cli: Any, page: WebPage, project: Path) -> None:
    cli("run", "--hold", "--", "ln -s a link; echo a > a; exit 3")
    assert '<span class="failed">exit 3</span>' in page.get("/")
    (run,) = page.call("GET", "/api/runs")["runs"]
    for view in ("/waiting", f"/runs/{run['run']}"):
        shown = page.get(view)
        assert '<code>link</code> <span class="quiet" aria-hidden="true">symlink</span>' in shown
        assert '<code>a</code> <span class="quiet"' not in shown


def test_a_refusal_calls_a_run_by_its_number(cli: Any, page: WebPage, project: Path) -> None:
    cli("run", "--hold", "--", "echo a > a")
    cli("run", "--hold", "--", "echo b >> a")
    later, earlier = page.call("GET", "/api/runs")["runs"]
    refused = page.send(f"/runs/{earlier['run']}/discard")
    assert refused.status == 409
    assert "run #2 builds on it: a" in refused.text
    cli("apply", "1")
    assert later["run"] not in page.send(f"/runs/{earlier['run']}/discard").text


def test_what_is_gone_or_wrong_is_said_in_a_line(page: WebPage, cli: Any, project: Path, test_directory: Path) -> None:
    cli("run", "--hold", "--", "echo a > a")
    (run,) = page.call("GET", "/api/runs")["runs"]
    for path in ("/runs/nothing", "/nothing", f"/runs/{run['run']}/diff?path=b", "/files?project=/nowhere", "/file"):
        answer = page.ask("GET", path)
        assert answer.status == 404
        assert "<h1>That did not work</h1>" in answer.text
        assert "Traceback" not in answer.text
    project.rename(test_directory / "moved")
    for view in (*VIEWS[:-1], f"/runs/{run['run']}"):
        page.get(view)
    assert page.send(f"/runs/{run['run']}/apply").status == 409


@pytest.mark.long
@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, "x", "٣"])
def test_a_number_that_is_none_or_too_large_is_no_fault(cli: Any, page: WebPage, number: str) -> None:
    cli("run", "--hold", "--", "echo a > a")
    asked = quote(number)
    assert page.send(f"/missed/{asked}").status == 303
    run = page.call("GET", "/api/waiting")["waiting"][0]["run"]
    assert "changes" in page.call("GET", f"/api/runs/{run}/changes?after={asked}-{asked}")
    assert page.send(f"/runs/{run}/hunks", path="a", hunk=number).status < 500


def test_where_the_records_can_not_be_read_the_page_says_so(page: WebPage, home: Path) -> None:
    for file in (home / ".local/state/fumehood").glob("fumehood.db*"):
        file.write_bytes(b"no database at all" * 1000)
    for view in ("/", "/waiting", "/history"):
        answer = page.ask("GET", view)
        assert answer.status == 500
        assert answer.headers["content-security-policy"]
        assert "<h1>That did not work</h1>" in answer.text
        assert "Traceback" not in answer.text
    assert "error" in page.call("GET", "/api/runs")


def test_a_command_that_prints_very_much_is_followed_with_gaps(page: WebPage, begun: Any) -> None:
    process = begun("echo ready; yes 'some €' | head -c 3000000; echo; echo the end; sleep 1000")
    threading.Thread(target=process.stdout.read, daemon=True).start()  # so that it can go on
    (run,) = page.call("GET", "/api/running")["running"]
    path = Path(os.environ["XDG_STATE_HOME"], "fumehood")
    assert eventually(lambda: any(file.stat().st_size > 3_000_000 for file in path.rglob("*stdout*")))
    news = page.first(f"/runs/{run['run']}/events", b"the end")
    assert len(news) < 1_000_000
    assert "MiB more …" in news
    assert "\ufffd" not in news.replace("\ufffd", "", 1)  # where it begins again, a letter may be cut


@pytest.mark.long
@pytest.mark.parametrize("act", ["apply", "discard", "undo"])
def test_the_buttons_for_what_is_chosen_do_nothing_where_nothing_is(
    cli: Any, page: WebPage, project: Path, act: str
) -> None:
    cli("run", "--", "echo a > a; echo b > b; mkdir .vscode; echo '{}' > .vscode/tasks.json; echo x > .envrc")
    (run,) = page.call("GET", "/api/runs")["runs"]
    address = f"/runs/{run['run']}"
    shown = page.get(address)
    (button,) = re.findall(rf'<button[^>]*formaction="{address}/{act}"[^>]*>(?:Accept|Refuse|Undo) chosen', shown)
    # As a browser without script sends it: the fields of the form and the button's own, with no box ticked.
    own = dict(re.findall(r'\bname="(\w+)" value="(\w+)"', button))
    fields = fields_of(shown, 'class="choice"')
    refused = page.send(f"{address}/{act}", **fields, **own)
    assert (refused.status, "nothing was chosen: nothing was done" in refused.text) == (409, True)
    assert "nothing was chosen" in page.call("POST", f"/api{address}/{act}", {"paths": []})["error"]
    assert ((project / "a").exists(), (project / ".envrc").exists()) == (True, False)
    assert page.call("GET", "/api/waiting")["waiting"][0]["waiting"] == 3
    path = "a" if act == "undo" else ".envrc"
    assert page.send(f"{address}/{act}", path=path, **fields, **own).status == 303
    assert ((project / "b").exists(), (project / ".vscode").exists()) == (True, False)
    assert (project / path).exists() == (act == "apply")


def test_a_stale_page_undoes_and_redoes_nothing(cli: Any, page: WebPage, project: Path) -> None:
    cli("run", "--", "echo a > a; echo x > .envrc")
    (run,) = page.call("GET", "/api/runs")["runs"]
    address = f"/runs/{run['run']}"
    shown = page.get(address)
    assert cli("apply", run["run"]).returncode == 0
    for form in (f"{address}/undo", 'class="choice"'):
        stale = page.send(f"{address}/undo", **fields_of(shown, form))
        assert (stale.status, "has changed since it was shown: nothing was done" in stale.text) == (409, True)
    for act in ("undo", "apply", "stop"):
        assert "has changed since" in page.call("POST", f"/api{address}/{act}", {"seen": "999999"})["error"]
    assert ((project / "a").exists(), (project / ".envrc").exists()) == (True, True)
    seen = page.call("GET", f"/api{address}")["seen"]
    undo = page.send(f"{address}/undo", **fields_of(page.get(address), f"{address}/undo"))
    assert (undo.status, (project / "a").exists()) == (303, False)
    assert "has changed since" in page.call("POST", f"/api{address}/redo", {"seen": seen})["error"]
    # A redo takes the page of the undo, and what was taken back by its own name.
    fields = fields_of(page.get(undo.where), f"{undo.where}/redo")
    assert cli("redo").returncode == 0
    assert page.send(f"{undo.where}/redo", **fields).status == 409
    assert cli("undo", run["run"]).returncode == 0
    seen = page.call("GET", f"/api{address}")["seen"]
    assert page.call("POST", f"/api{address}/redo", {"seen": seen, "paths": ["a"]})["state"] == "applied"
    assert ((project / "a").exists(), (project / ".envrc").exists()) == (True, False)
    assert page.call("POST", f"/api{address}/redo", {})["state"] == "applied"
    assert (project / ".envrc").exists()
    assert "is not taken back" in page.call("POST", f"/api{address}/redo", {})["error"]


@pytest.mark.long
@pytest.mark.parametrize("left", [b"", b"\n", b"short", b"\0" * 43, b"\xff" * 43])
def test_what_is_less_than_a_token_opens_nothing_and_is_made_anew(home: Path, left: bytes) -> None:
    file = home / ".local/state/fumehood/api-token"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(left)
    with WebPage() as page:
        assert page.ask("GET", "/api/runs").status == 401
        for header in ("", "Bearer", "Bearer ", f"Bearer {left.decode('latin-1').strip(chr(0))}".strip()):
            assert page.ask("GET", "/api/runs", Authorization=header).status == 401
        assert page.call("GET", "/api/runs") == {"runs": [], "before": None}
        token = file.read_bytes()
        assert (len(token), file.stat().st_mode & 0o077) == (43, 0)
    with WebPage():
        assert file.read_bytes() == token  # and stays


@pytest.mark.anyio
async def test_what_is_new_while_a_browser_is_still_told_of_something_is_told_it_too() -> None:
    page: Any = SimpleNamespace(news={"count-questions": "", "running": ""}, watchers=0)

    async def stays() -> bool:
        return False

    told = app.news(page, SimpleNamespace(is_disconnected=stays))  # type: ignore[arg-type]
    assert "count-questions" in await anext(told)
    page.news = {"count-questions": "1", "running": ""}  # comes before the rest is sent
    pieces = [await anext(told) for _ in range(4)]
    await told.aclose()
    assert "event: count-questions\ndata: 1\n\n" in pieces
