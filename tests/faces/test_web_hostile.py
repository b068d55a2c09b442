"""The page of `fumehood web`, where a command means to keep something from the person who reads it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood import Sandbox
from fumehood.faces.web.text import parse_difference
from fumehood.linux.lock import Lock
from patience import LONG_S, eventually
from web_page import WebPage

pytestmark = [pytest.mark.namespaces, pytest.mark.once]


@pytest.fixture
def page(home: Path) -> Iterator[WebPage]:
    with WebPage() as page:
        page.enter()
        yield page


def test_what_acts_by_itself_is_named_before_all_is_accepted(sandbox: Sandbox, page: WebPage, project: Path) -> None:
    """A hook was accepted with all of a run, of which the page showed the first files alone."""
    many = "mkdir a; cd a; seq 500 | xargs touch; cd .."
    run = sandbox.run(f"{many}; mkdir -p z/.git/hooks z/.git/refs; echo x > z/.git/hooks/pre-push", apply="hold")
    for path in ("/waiting", f"/runs/{run.id}"):
        shown, _, rest = page.get(path).partition("Accept all")
        assert rest
        assert "added z/.git/hooks/pre-push: the run was asked to hold its changes" in shown


@pytest.mark.long
def test_a_run_is_shown_whatever_it_printed(cli: Any, page: WebPage, project: Path) -> None:
    cli("run", "--", "printf '\\033[%05000dmred\\033[31mred\\n' 1; echo a > a")
    (run,) = page.call("GET", "/api/runs")["runs"]
    assert 'red<span class="ink-1">red' in page.get(f"/runs/{run['run']}")


def test_an_address_with_a_number_larger_than_any_leads_nowhere(page: WebPage, home: Path) -> None:
    token = (home / ".local/state/fumehood/api-token").read_text()
    for number in ("9" * 5000, "x"):
        assert page.ask("GET", f"/drafts/{number}/x").status == 404
        assert page.ask("GET", f"/api/drafts/{number}/x", Authorization=f"Bearer {token}").status == 404
        assert page.send(f"/grants/{number}").status == 409


def test_nothing_of_a_file_is_left_out_where_both_versions_are_shown(cli: Any, page: WebPage, project: Path) -> None:
    """What stood in a sequence for terminals was taken for one, and was not there."""
    (project / "f").write_text("one\ntwo\n")
    cli("draft", "new", "d")
    cli("run", "--draft", "d", "--", "printf 'one\\033]0;hidden\\nlines\\007\\n' > f")
    (project / "f").write_text("one\nthree\n")
    (draft,) = page.call("GET", "/api/drafts")["drafts"]
    assert "\\x1b]0;hidden\nlines\\x07" in page.get(f"/drafts/{draft['address']}")


def test_a_line_that_patterns_of_a_library_never_finish_with_is_shown(cli: Any, page: WebPage, project: Path) -> None:
    """It was matched for ever: the page answered nobody any more, and Ctrl-C did not end it."""
    cli("run", "--", """printf '"%080d\\n' 0 | tr 0 '\\134' > a.fish""")
    (run,) = page.call("GET", "/api/runs")["runs"]
    assert "\\" * 80 in page.get(f"/runs/{run['run']}/diff?path=a.fish")


def test_words_are_compared_where_that_takes_no_time() -> None:
    """A table of twenty wide rows took a quarter of a minute, and others minutes."""
    wide = ",".join(str(number % 7) for number in range(900))
    for old, rest, is_compared in (("total = 1", "", True), (wide, "", False), ("total = 1", " x\n" * 50_000, False)):
        _, (hunk,) = parse_difference(f"@@ -1 +1 @@\n-{old}\n+{old[:-1]}2\n{rest}", "table.csv")
        assert ["word" in line.html for line in hunk.lines[:2]] == [is_compared] * 2


def test_source_is_coloured(cli: Any, page: WebPage, project: Path) -> None:
    cli("run", "--", """echo "if f('#') > 12: pass  # why" > a.py""")
    (run,) = page.call("GET", "/api/runs")["runs"]
    shown = page.get(f"/runs/{run['run']}/diff?path=a.py")
    for kind, text in (("key", "if"), ("name", "f"), ("text", "&#39;#&#39;"), ("number", "12"), ("note", "# why")):
        assert f'<span class="t-{kind}">{text}</span>' in shown


@pytest.mark.parametrize("rest", ['"outputs": ["<script>"]', f'"deep": {"[" * 100_000}'])
def test_what_of_a_notebook_is_not_compared_is_said(cli: Any, page: WebPage, project: Path, rest: str) -> None:
    cells = '{"cells": [{"cell_type": "code", "source": ["1"]'
    (project / "n.ipynb").write_text(f"{cells}}}]}}\n")
    (project / "new").write_text(f"{cells}, {rest}}}]}}\n")
    cli("run", "--hold", "--", "mv new n.ipynb")
    (run,) = page.call("GET", "/api/runs")["runs"]
    assert "all of it: fumehood diff 1" in page.get(f"/runs/{run['run']}/diff?path=n.ipynb")


@pytest.mark.parametrize("other", ['seen={"a": 1}', "a[b]=1", "no sense", "NAME=of-another-path"])
def test_a_cookie_of_another_server_at_this_address_shuts_nobody_out(page: WebPage, other: str) -> None:
    """Browsers send every cookie of 127.0.0.1 to every port of it; one that Python can't read hid ours."""
    other = other.replace("NAME", page.cookie.partition("=")[0])
    for cookies in (f"{other}; {page.cookie}", f"{page.cookie}; {other}"):
        assert page.ask("GET", "/", Cookie=cookies).status == 200
    assert page.ask("GET", "/", Cookie=other).status == 403


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may listen at port 80")
def test_the_page_is_found_at_the_port_that_browsers_leave_out(home: Path) -> None:
    with WebPage("--port", "80", "--bind", "127.0.7.80") as page:
        assert page.host == "127.0.7.80:80"
        page.host = "127.0.7.80"
        page.enter()
        assert page.send("/playground/clean").status == 303
        assert page.ask("GET", "/", Host="evil.example").status == 400


def test_settings_whose_lines_end_as_in_dos_can_be_edited(page: WebPage, home: Path) -> None:
    """A browser gives each line of a form the same end, so the file never was the one that was shown."""
    file = home / ".config/fumehood/config.toml"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"# mine\r\ntimeout = 5\r\n")
    assert page.send("/configuration", before="# mine\r\ntimeout = 5\r\n", text="timeout = 7\r\n").status == 303
    assert file.read_bytes() == b"timeout = 7\r\n"
    assert page.send("/configuration", before="# mine\r\n", text="").status == 409


@pytest.mark.long
def test_a_command_that_nests_directories_deeper_than_pythons_stack_is_shown_and_the_page_lives_on(
    page: WebPage, begun: Any, cli: Any
) -> None:
    script = "for _ in range(1100): os.mkdir('d'); os.chdir('d'); open('f', 'w').close()"
    process = begun(f"echo x > top; python3 -c \"import os\n{script}\nprint('ready', flush=True)\"; exec sleep 1000")
    assert "top" in page.get("/")
    assert "top" in page.first("/events", b"event: running")
    process.kill()
    process.wait()
    assert cli("discard", "last").returncode == 0


@pytest.mark.long
def test_the_page_says_what_keeps_it_from_looking_and_goes_on_when_that_is_over(page: WebPage, home: Path) -> None:
    desk = home / ".local/state/fumehood/desk"
    desk.mkdir(exist_ok=True)
    damaged = desk / "0a.question"
    damaged.write_text("cut off")
    with Lock(os.open(damaged, os.O_RDONLY | os.O_CLOEXEC)).take():
        assert "something unexpected happened" in page.first("/events", b"event: trouble")
        damaged.unlink()
        assert "event: trouble\ndata: \n" in page.first("/events", b"event: trouble\ndata: \n")


def test_the_name_of_a_tunnel_may_be_written_in_any_case(home: Path) -> None:
    """Browsers write it in small letters, and it was another host then."""
    with WebPage("--host", "Tunnel.Example", "--bind", "127.0.7.81", "--port", "8981") as page:
        assert page.link.startswith("http://tunnel.example/?token=")
        page.host = "127.0.7.81:8981"
        assert page.ask("GET", f"/?token={page.token}", Host="tunnel.example").status == 200
        assert page.ask("GET", "/", Host="other.example").status == 400


_FOLLOW = """
import os, sys, urllib.error, urllib.request
os.setuid(int(sys.argv[1]))
try:
    print(urllib.request.urlopen(sys.argv[2]).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_who_sees_the_link_gets_nothing_by_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser is started with it, and every user sees what programs are started with."""
    monkeypatch.setenv("SUDO_UID", "54321")
    with WebPage() as page:
        for user, said in ((54320, "403 This link is for the user"), (54321, "200"), (54321, "403 This browser")):
            line = [sys.executable, "-I", "-c", _FOLLOW, str(user), page.link]
            done = subprocess.run(line, capture_output=True, text=True, timeout=LONG_S, check=False)
            assert done.stdout.startswith(said), done


_SHOW = """
import os, sys, urllib.error, urllib.request
os.setuid(int(sys.argv[1]))
for method in ("GET", "POST"):
    asked = urllib.request.Request(sys.argv[2], method=method, headers={"Cookie": sys.argv[3], "Origin": sys.argv[4]})
    try:
        print(urllib.request.urlopen(asked).status)
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_whom_the_browser_has_sent_its_cookie_gets_nothing_by_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cookies don't know ports: whoever serves something at another one, which the person opens, is sent it."""
    monkeypatch.setenv("SUDO_UID", "54321")
    with WebPage() as page:
        page.enter()
        address = f"http://{page.host}"
        for user, refused in ((54320, 2), (54321, 0)):
            line = [sys.executable, "-I", "-c", _SHOW, str(user), f"{address}/questions", page.cookie, address]
            done = subprocess.run(line, capture_output=True, text=True, timeout=LONG_S, check=False)
            assert done.stdout.count("403 This page is for the user") == refused, done
            assert done.stdout.startswith("403" if refused else "200"), done


def test_a_browser_that_is_waited_for_finds_the_page(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page was served only when the browser had ended."""
    code = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).status)"
    browser = home / "browser"
    browser.write_text(f"#!/bin/sh\nexec {sys.executable} -I -c '{code}' \"$1\" > {home}/seen\n")
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setenv("DISPLAY", ":54321")
    with WebPage(opens=True):
        assert eventually(lambda: (home / "seen").exists() and (home / "seen").read_text() == "200\n")
