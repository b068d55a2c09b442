"""What a person decides in the page: questions of commands, what waits, pieces of a file, a merge, and going back."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from at_terminal import Terminal
from browser.conftest import Visitor, attended, keep_picture
from conftest import command_line
from patience import LONG_S, eventually
from servers import Web, serving
from web_page import WebPage

Visit = Callable[..., Visitor]
ASKING = [*command_line(), "run", "--allow-host", "example.org", "--", "echo granted"]
# What is said then is kept: a question at the edge of another view goes away some seconds after it was answered.
CLICK_AT = """([at, name]) => {
  window.said = "";
  new MutationObserver(() => {
    const outcome = document.querySelector(".question.ended .outcome");
    if (outcome) window.said = outcome.innerText;
  }).observe(document.body, {subtree: true, childList: true, attributes: true});
  setTimeout(() => document.querySelector(`[data-answer=${name}]`).click(), at - Date.now());
}"""
HOSTILE = "<img src=x onerror=alert(1)>.txt"


def test_a_question_of_a_hooked_command_is_answered_in_the_page(
    cli: Any, home: Path, project: Path, served: WebPage, visitor: Visit
) -> None:
    (home / ".config/fumehood").mkdir()
    (home / ".config/fumehood/config.toml").write_text('network = "ask"\n')
    page = visitor().go("/")
    expect(page.locator("nav")).to_contain_text("Now")
    with serving(Web(b"from the server\n")) as web:
        # Claude Code asks before a command, and runs what it is answered.
        call = {
            "session_id": "s-1", "tool_use_id": "toolu_1", "hook_event_name": "PreToolUse", "tool_name": "Bash",
            "cwd": str(project), "tool_input": {"command": f"curl -sS -m 100 http://localhost:{web.port}/ | tee got"},
        }  # fmt: skip
        answered = json.loads(cli("hook", input=json.dumps(call)).stdout)
        line = answered["hookSpecificOutput"]["updatedInput"]["command"]
        assert eventually(lambda: served.call("GET", "/api/questions")["questions"] == [] and attended(home))
        command = subprocess.Popen(
            ["bash", "-c", line], cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        question = page.locator(".dock .question")
        expect(question).to_contain_text(f"localhost:{web.port}")
        assert web.asked == []
        expect(page).to_have_title("(1) Now · Fumehood")
        expect(page.locator(".question.new")).to_have_count(0)
        keep_picture(page, "question")
        question.get_by_role("button", name="allow once").click()
        assert "from the server" in command.communicate(timeout=LONG_S)[0]
    expect(page.locator(".dock .question:not(.ended)")).to_have_count(0)
    assert (project / "got").read_text() == "from the server\n"


def test_two_browsers_and_a_terminal_race_for_one_question(
    home: Path, project: Path, served: WebPage, visitor: Visit
) -> None:
    pages = [visitor().go("/questions"), visitor().go("/")]
    assert eventually(lambda: attended(home))
    with Terminal(ASKING, project) as terminal:
        for page in pages:
            expect(page.locator(".question:not(.new)")).to_have_count(1)
        assert terminal.wait_for("\n>")
        at = (time.time() + 2) * 1000
        for page, name in zip(pages, ("allow_once", "deny_once"), strict=True):
            page.evaluate(CLICK_AT, [at, name])
        time.sleep(max(0, at / 1000 - time.time()))
        terminal.type("n\n")
        code = terminal.end()
        assert eventually(lambda: all(page.evaluate("window.said") for page in pages))
        said = [page.evaluate("window.said") for page in pages]
    # Whoever was first, the others know that they were not.
    assert code in (0, 126), terminal.seen
    assert (said[0] == "Answered.") == (code == 0)
    assert said.count("Answered.") <= 1
    assert served.call("GET", "/api/questions")["questions"] == []


def test_a_held_hook_is_refused_and_a_source_file_accepted(
    cli: Any, project: Path, served: WebPage, visitor: Visit
) -> None:
    subprocess.run(["git", "init", "-q", project], check=True)
    hook = "printf '#!/bin/sh\\nevil\\n' > .git/hooks/pre-commit"
    cli("run", "--hold", "--", f"{hook}; mkdir src; echo 'x = 1' > src/a.py")
    page = visitor().go("/waiting")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Refuse .git/hooks/pre-commit").click()
    expect(page.get_by_role("status")).to_contain_text("Done")
    expect(page.locator("body")).not_to_contain_text("pre-commit?")
    page.get_by_role("button", name="Accept src/a.py").click()
    expect(page.locator("main")).to_contain_text("Nothing waits.")
    assert (project / "src/a.py").read_text() == "x = 1\n"
    assert not (project / ".git/hooks/pre-commit").exists()


def test_one_piece_of_three_is_accepted_by_the_keyboard_alone(
    cli: Any, project: Path, served: WebPage, visitor: Visit
) -> None:
    lines = [f"line {number}\n" for number in range(1, 61)]
    (project / "f.txt").write_text("".join(lines))
    cli("run", "--hold", "--", "sed -i -e 2s/line/LINE/ -e 30s/line/LINE/ -e 58s/line/LINE/ f.txt")
    page = visitor().go("/")
    page.keyboard.press("w")
    page.wait_for_url("**/waiting")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("o")
    pieces = page.locator("[name=hunk]")
    expect(pieces).to_have_count(3)
    pieces.nth(1).focus()
    page.keyboard.press("Space")
    page.locator("[data-pieces]").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("Nothing waits.")
    assert (project / "f.txt").read_text() == "".join([*lines[:29], "LINE 30\n", *lines[30:]])
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("the next row")


def test_a_conflict_is_merged_by_hand(cli: Any, project: Path, served: WebPage, visitor: Visit) -> None:
    (project / "f").write_text("1\n2\n3\n")
    cli("run", "--hold", "--", "echo one > f; echo 2 >> f; echo 3 >> f")
    (project / "f").write_text("uno\n2\n3\n")
    cli("apply", "1")
    somebody = visitor()
    page = somebody.go("/waiting")
    page.get_by_text("Show").first.click()
    editor = page.locator("textarea[name=content]")
    expect(editor).to_have_value("<<<<<<< in the project\nuno\n=======\none\n>>>>>>> run 1\n2\n3\n")
    page.get_by_role("button", name="Keep what stands here").click()
    expect(page.get_by_role("alert").last).to_contain_text("both versions are still there")
    page.go_back()
    page.get_by_text("Show").first.click()
    editor.fill("uno, one\n2\n3\n")
    page.get_by_role("button", name="Keep what stands here").click()
    expect(page.locator("main")).to_contain_text("Nothing waits.")
    assert (project / "f").read_text() == "uno, one\n2\n3\n"
    somebody.complaints[:] = [each for each in somebody.complaints if "409" not in each]  # of the first try


def test_a_run_is_taken_back_by_path_and_brought_back(
    cli: Any, project: Path, served: WebPage, visitor: Visit
) -> None:
    cli("run", "--", "echo 1 > a; echo 2 > b")
    page = visitor().go("/history")
    page.get_by_text("echo 1 > a").click()
    page.get_by_role("checkbox", name="added file b").check()
    page.get_by_role("button", name="Undo chosen").click()
    expect(page.locator("h1")).to_contain_text("undo")
    assert sorted(path.name for path in project.iterdir()) == ["a"]
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Bring it back").click()
    expect(page.locator("h1")).to_contain_text("#3")
    assert sorted(path.name for path in project.iterdir()) == ["a", "b"]


def test_hostile_names_output_and_contents_do_nothing(
    cli: Any, project: Path, served: WebPage, visitor: Visit
) -> None:
    (project / "page.html").write_text("<p>\n")
    script = "<script>document.title='taken'</script><img src=x onerror=alert(2)>"
    cli("run", "--hold", "--", f"echo \"{script}\"; echo \"{script}\" > '{HOSTILE}'; echo \"{script}\" > page.html")
    dialogs: list[str] = []
    somebody = visitor()
    somebody.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    (run,) = served.call("GET", "/api/waiting")["waiting"]
    for path in ("/", "/waiting", "/history", "/files", f"/runs/{run['run']}"):
        page = somebody.go(path)
        while (closed := page.locator("details:not([open]) > summary")).count():
            closed.first.click()
        expect(page.locator("main img, main script")).to_have_count(0)
        assert "Fumehood" in page.title()
    expect(page.locator(".diff .lines").first).to_contain_text("document.title")
    assert dialogs == []
