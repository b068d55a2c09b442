"""The views in a terminal: what a person sees and does there, by Textual's own pilot and at a real terminal."""

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import textual.timer
from textual.pilot import Pilot
from textual.widgets import Button, DataTable, Footer, Input
from textual.widgets.tree import TreeNode

from at_terminal import Terminal
from conftest import command_line, need
from fumehood.core.questions import ALLOW_ONCE, DENY_ONCE, Question
from fumehood.core.wording import quote
from fumehood.errors import ChangedMeanwhile
from fumehood.faces.cli.screen import WORDS
from fumehood.faces.terminal import app as views
from fumehood.faces.terminal.app import Views
from fumehood.faces.terminal.run_views import Branch, ChangesTree, ChangesView
from fumehood.faces.terminal.widgets import AskFirst, HunkList, TextView, output_lines
from fumehood.linux.confine import can_scope
from fumehood.service import overview
from fumehood.service.ask import Desk, ask_all
from fumehood.service.opened import OpenedStore
from fumehood.service.overview import ChosenAct, perform, state_id
from fumehood.store.search import page_of_changes
from patience import LONG_S, eventually, in_time

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

HOSTILE = "n\x1b[2Jam[red]e"


@pytest.fixture
def opened(home: Path) -> Iterator[OpenedStore]:
    store = OpenedStore()
    yield store
    store.close()


class Watcher:
    """Somebody at the views."""

    def __init__(self, app: Views, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    async def until(self, happens: Callable[[], Any]) -> Any:
        """Wait for something to be so."""
        deadline = time.monotonic() + LONG_S
        while not (result := happens()):
            said = [note.message for note in self.app._notifications]
            assert time.monotonic() < deadline, f"it never came to that; shown: {self.shown}; said: {said}"
            await asyncio.sleep(0.05)  # not the pilot's, which waits for an idle machine
        return result

    async def press(self, *keys: str) -> None:
        """Type keys, each once the one before has had its effect; not the pilot's own, which gives up after 30 s."""
        for key in keys:
            await self.app._press_keys([key])
            await self.pilot._wait_for_screen(LONG_S)

    async def agree(self) -> None:
        """Say yes, once asked."""
        await self.until(lambda: isinstance(self.app.screen, AskFirst))
        await self.press("y")

    @property
    def shown(self) -> list[str]:
        return [lines.text for lines in self.app.screen.query(TextView)]

    @property
    def drawn(self) -> str:
        """What is on the screen, row by row."""
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())

    @property
    def labels(self) -> list[str]:
        return [str(node.label) for node in self._nodes]

    @property
    def paths(self) -> list[str]:
        return [path for node in self._nodes if (path := _path_of(node))]

    @property
    def _nodes(self) -> list[TreeNode[Branch]]:
        tree = self.app.screen.query_one(ChangesTree)
        nodes = [tree.get_node_at_line(line) for line in range(tree.last_line + 1)]
        return [node for node in nodes if node is not None]

    async def until_shown_as_it_is(self, run: str) -> None:
        """Wait until what waits is shown with all that was done to a run: what is done next is for that."""
        view = self.app.screen.query_one(ChangesView)

        def is_shown() -> bool:
            each = view._runs.get(run)
            return each is not None and each.run.state == "held" and each.seen == state_id(self.app.store, each.run)

        await self.until(is_shown)

    async def go_to(self, path: str) -> None:
        """Go to a path of the tree, until what is about it is shown."""
        await self.until(lambda: path in self.paths)
        tree = self.app.screen.query_one(ChangesTree)
        while path != _path_of(tree.cursor_node):
            line = next((node.line for node in self._nodes if _path_of(node) == path), -1)  # it may be made anew
            await self.press("down" if tree.cursor_line < line else "up")
        shown = quote(path)
        await self.until(lambda: self.app.screen.query_one(HunkList).text.split("\n")[0].endswith(f" {shown}"))


def _path_of(node: TreeNode[Branch] | None) -> str:
    branch = None if node is None else node.data
    return "" if branch is None or branch.change is None else branch.change.path


@asynccontextmanager
async def at(app: Views, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Watcher]:
    """Have somebody do something at the views."""
    with app.desk.attend():
        async with app.run_test(size=size) as pilot:
            watcher = Watcher(app, pilot)
            await watcher.until(lambda: app.looks > 1)
            yield watcher


def held(cli: Any, project: Path) -> str:
    """Have three hunks of one file, a new file and a hostile name wait."""
    (project / "app.py").write_text("".join(f"line {number}\n" for number in range(60)))
    change = "sed -i 's/line 5$/LINE 5/; s/line 30$/LINE 30/; s/line 55$/LINE 55/' app.py"
    hostile = "printf 'x\\033]0;owned\\007[bold]\\n' > \"$(printf 'n\\033[2Jam[red]e')\""
    cli("run", "--hold", "--", f"{change}; mkdir sub; echo new > sub/new.py; {hostile}")
    return str(json.loads(cli("show", "last", "--json").stdout)["run"])


def verdicts(cli: Any, run: str) -> dict[str, str]:
    report = json.loads(cli("show", run, "--json").stdout)
    return {change["path"]: change["verdict"] for change in report["changes"]}


@in_time
async def test_a_look_that_comes_late_finds_that_the_views_have_ended(home: Path, opened: OpenedStore) -> None:
    """On a busy machine the timer rang once more, and Textual wrote a traceback over the terminal."""
    app = Views(opened)
    async with at(app):
        pass
    app.look_again()


@pytest.mark.long
@in_time
async def test_where_nothing_is_new_nothing_is_drawn(cli: Any, opened: OpenedStore, project: Path) -> None:
    held(cli, project)
    app = Views(opened)
    async with at(app) as watcher:
        for key in "1234":
            await watcher.press(key)
            before = app.looks
            await watcher.until(lambda before=before: app.looks > before + 2)
            view = app.in_sight
            assert view is not None
            assert view.read_news() is None


@pytest.mark.long
@in_time
async def test_one_hunk_of_three_is_accepted_and_the_file_is_exactly_that(
    cli: Any, opened: OpenedStore, project: Path
) -> None:
    held(cli, project)
    async with at(Views(opened)) as watcher:
        await watcher.press("3")
        await watcher.go_to("app.py")
        await watcher.press("enter", "n", "space", "a")
        await watcher.agree()
        await watcher.until(lambda: "app.py" not in watcher.paths)
    lines = (project / "app.py").read_text().splitlines()
    assert [line for line in lines if line.startswith("LINE")] == ["LINE 30"]
    assert len(lines) == 60
    assert not (project / "sub").exists()


@pytest.mark.long
@in_time
async def test_a_marked_hunk_is_refused_and_the_others_are_taken(cli: Any, opened: OpenedStore, project: Path) -> None:
    held(cli, project)
    async with at(Views(opened)) as watcher:
        await watcher.press("3")
        await watcher.go_to("app.py")
        await watcher.press("enter", "space", "d")
        await watcher.agree()
        await watcher.until(lambda: "app.py" not in watcher.paths)
    lines = (project / "app.py").read_text().splitlines()
    assert [line for line in lines if line.startswith("LINE")] == ["LINE 30", "LINE 55"]


@pytest.mark.long
@in_time
async def test_paths_and_directories_are_accepted_and_refused_and_names_do_nothing(
    cli: Any, opened: OpenedStore, project: Path
) -> None:
    run = held(cli, project)
    async with at(Views(opened), size=(120, 40)) as watcher:
        await watcher.press("3")
        await watcher.until(lambda: HOSTILE in watcher.paths)
        assert not any("\x1b" in text for text in (*watcher.labels, *watcher.shown))
        await watcher.go_to("sub")
        await watcher.press("a")
        await watcher.until((project / "sub/new.py").exists)
        await watcher.until_shown_as_it_is(run)
        await watcher.go_to(HOSTILE)
        await watcher.until(lambda: any("+x\\x1b]0;owned\\x07[bold]" in text for text in watcher.shown))
        await watcher.press("d")
        await watcher.until(lambda: HOSTILE not in watcher.paths)
    assert verdicts(cli, run) == {
        "app.py": "held", "sub": "applied", "sub/new.py": "applied", HOSTILE: "discarded",
    }  # fmt: skip


@pytest.mark.long
@in_time
async def test_what_changed_since_it_was_shown_is_not_accepted(cli: Any, opened: OpenedStore, project: Path) -> None:
    run = held(cli, project)
    app = Views(opened)
    async with at(app) as watcher:
        await watcher.press("3")
        await watcher.go_to("app.py")
        view = app.screen.query_one(ChangesView)
        before = view._runs[run]
        cli("discard", run, "sub")
        await watcher.until(lambda: "sub" not in watcher.paths)
        view._runs[run] = before  # as it was when the person pressed the key
        await watcher.press("A")
        await watcher.until(lambda: any("changed since" in note.message for note in app._notifications))
    assert verdicts(cli, run)["app.py"] == "held"
    assert "LINE" not in (project / "app.py").read_text()


def test_what_changes_while_it_is_read_is_not_accepted(
    cli: Any, opened: OpenedStore, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened.history.find(held(cli, project))

    def read(*arguments: Any, **options: Any) -> Any:
        page = page_of_changes(*arguments, **options)
        cli("discard", run.run, "sub")
        return page

    monkeypatch.setattr(overview, "page_of_changes", read)
    shown = overview.read_run(opened, run, limit=100, only_waiting=True)
    assert "sub/new.py" in [change.path for change in shown.changes]
    for paths in ((), ("app.py",)):
        with pytest.raises(ChangedMeanwhile, match="changed since it was shown"):
            perform(opened, opened.history.find(run.run), ChosenAct(act="apply", paths=paths, seen=shown.seen))
    assert verdicts(cli, run.run)["app.py"] == "held"


@pytest.mark.long
@in_time
async def test_a_conflict_is_taken_by_force_only(cli: Any, opened: OpenedStore, project: Path) -> None:
    run = held(cli, project)
    (project / "app.py").write_text("a person's\n")
    app = Views(opened)
    async with at(app) as watcher:
        await watcher.press("3")
        await watcher.go_to("app.py")
        await watcher.press("a")
        await watcher.until(lambda: any("conflict" in label for label in watcher.labels))
        await watcher.go_to("app.py")
        await watcher.press("a")
        await watcher.until(lambda: any("f takes the run's version" in note.message for note in app._notifications))
        assert (project / "app.py").read_text() == "a person's\n"
        await watcher.until_shown_as_it_is(run)
        await watcher.press("f")
        await watcher.until(lambda: "LINE 5" in (project / "app.py").read_text())


@pytest.mark.long
@in_time
async def test_a_run_is_undone_and_redone_from_the_history(cli: Any, opened: OpenedStore, project: Path) -> None:
    cli("run", "--", "echo one > first; echo two > second")
    cli("run", "--", "echo other")
    async with at(Views(opened)) as watcher:
        await watcher.press("4")
        table = watcher.app.query_one("#history", DataTable)
        await watcher.until(lambda: table.row_count == 2)
        await watcher.press("slash", *"first")
        await watcher.until(lambda: table.row_count == 1)
        await watcher.press("enter", "u")
        await watcher.until(lambda: not (project / "first").exists())
        await watcher.press("r")
        await watcher.until((project / "first").exists)
        watcher.app.query_one(Input).value = "state:applied path:first"
        await watcher.until(lambda: table.row_count and watcher.app.query_one(Input).value)
        await watcher.until(lambda: "echo one" in str(table.get_row_at(table.row_count - 1)[-1]))
        await watcher.press("end", "enter")
        await watcher.go_to("second")
        await watcher.press("u")
        await watcher.until(lambda: not (project / "second").exists())
        await watcher.press("escape")
    assert (project / "first").read_text() == "one\n"


@pytest.mark.long
@in_time
async def test_what_a_run_printed_and_changed_is_shown_from_the_history(
    cli: Any, opened: OpenedStore, project: Path
) -> None:
    cli("run", "--", "mkdir sub; echo one > sub/first; echo said; printf '\\033]0;owned\\007[bold]\\n' >&2")
    async with at(Views(opened)) as watcher:
        await watcher.press("4")
        await watcher.until(lambda: watcher.app.query_one("#history", DataTable).row_count == 1)
        await watcher.press("slash", *"mkdir", "escape", "o")
        await watcher.until(lambda: any("said" in text and "[bold]" in text for text in watcher.shown))
        assert "owned" not in watcher.drawn
        await watcher.press("o", "enter")
        await watcher.go_to("sub")
        await watcher.press("l")
        await watcher.go_to("sub/first")
        await watcher.press("h", "h")
        await watcher.until(lambda: "sub/first" not in watcher.paths)
        await watcher.press("u")
        await watcher.until(lambda: not (project / "sub").exists())
        await watcher.press("r")
        await watcher.until((project / "sub/first").exists)
        await watcher.press("o")
        await watcher.until(lambda: any("said" in text for text in watcher.shown))
        await watcher.press("escape", "escape")
    assert (project / "sub/first").read_text() == "one\n"


@pytest.mark.long
@in_time
async def test_what_a_command_has_finished_is_settled_while_it_goes_on(
    cli: Any, begun: Callable[..., "subprocess.Popen[str]"], opened: OpenedStore, project: Path
) -> None:
    process = begun("echo x > f; echo ready; sleep 1000")
    async with at(Views(opened)) as watcher:
        table = watcher.app.query_one("#running", DataTable)
        await watcher.until(lambda: table.row_count == 1)
        await watcher.press("c")
        await watcher.until((project / "f").exists)
        assert process.poll() is None
        await watcher.press("s")
        await watcher.agree()
        await watcher.until(lambda: table.row_count == 0)
    process.communicate(timeout=LONG_S)
    assert (project / "f").read_text() == "x\n"


def button(app: Views, answer: str) -> Button:
    return next(each for each in app.screen.query(Button) if each.name == answer)


@pytest.mark.long
@in_time
async def test_of_two_questions_one_is_gone_to_and_answered_by_a_click(
    home: Path, opened: OpenedStore, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(can_scope(), "the host's network can't be shared here")
    app = Views(opened)
    asking = [
        subprocess.Popen(  # noqa: ASYNC220 - before anybody looks
            [*command_line(), "run", *options, "--", "echo ran"], cwd=project, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for options in (("--network",), ("--allow-host", "example.org"))
    ]  # fmt: skip
    async with at(app) as watcher:
        question = app.query_one("#question", TextView)
        await watcher.press("exclamation_mark")
        await watcher.until(lambda: "of 2," in question.text)
        while "example.org" not in question.text:
            await watcher.press("right_square_bracket")
        await watcher.press("left_square_bracket", "right_square_bracket")
        assert "example.org" in question.text
        await watcher.until(lambda: app.screen.query(Button))
        button(app, DENY_ONCE).press()
        await watcher.until(lambda: "question 1 of 1," in question.text)
        monkeypatch.setattr(views, "_MIN_ANSWER_S", 0.0)
        button(app, ALLOW_ONCE).press()
        await watcher.until(lambda: "Nothing is asked." in question.text)
    ended = [process.communicate(timeout=LONG_S) and process.returncode for process in asking]
    assert ended == [0, 126]


@pytest.mark.long
@in_time
async def test_a_command_is_watched_as_it_prints_and_stopped(
    cli: Any, begun: Callable[..., "subprocess.Popen[str]"], opened: OpenedStore, project: Path
) -> None:
    process = begun("echo ready; echo x > f; printf '\\033[31mred\\033[0m\\033]0;owned\\007 [bold]\\n'; sleep 1000")
    async with at(Views(opened)) as watcher:
        table = watcher.app.query_one("#running", DataTable)
        await watcher.until(lambda: table.row_count == 1)
        await watcher.until(lambda: any("red [bold]" in text for text in watcher.shown))
        await watcher.until(lambda: any("wrote ~ f" in text for text in watcher.shown))
        await watcher.press("s")
        await watcher.agree()
        await watcher.until(lambda: table.row_count == 0)
    process.communicate(timeout=LONG_S)
    assert json.loads(cli("show", "last", "--json").stdout)["reason"] == "ended by fumehood stop"


@pytest.mark.long
@in_time
async def test_a_question_comes_rings_and_is_answered_by_its_button_and_by_no_letter(
    home: Path, opened: OpenedStore, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(can_scope(), "the host's network can't be shared here")
    monkeypatch.setattr(views, "_MIN_ANSWER_S", 0.0)
    app = Views(opened)
    rings: list[bool] = []
    monkeypatch.setattr(app, "bell", lambda: rings.append(True))
    command = [*command_line(), "run", "--network", "--", "echo asked; : '\x1b]0;owned\x07'"]
    asking: list[subprocess.Popen[str]] = []
    async with at(app) as watcher:
        asking.append(subprocess.Popen(  # noqa: ASYNC220
            command, cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        ))  # fmt: skip
        await watcher.until(lambda: rings)
        question = app.query_one("#question", TextView)
        assert app.query_one("#bell").display
        await watcher.press("exclamation_mark")
        await watcher.until(lambda: "network access" in question.text)
        assert "\x1b" not in question.text
        await watcher.press(*"yasnvQ", "enter", *"clear", "enter")
        assert Desk(opened.places).waiting()
        allow = button(app, ALLOW_ONCE)
        while app.focused is not allow:
            await watcher.press("tab")
        await watcher.press("enter")
        await watcher.until(lambda: "Nothing is asked." in question.text)
    out, _ = asking[0].communicate(timeout=LONG_S)
    assert "asked" in out


@pytest.mark.parametrize("columns", [80, 120])
@in_time
async def test_every_answer_to_a_question_and_the_keys_have_room(opened: OpenedStore, columns: int) -> None:
    app = Views(opened)
    question = Question(what="w", text="May it?", command="c", directory="/", project="/", target="x")
    async with at(app, (columns, 24)) as watcher:
        asking = asyncio.create_task(asyncio.to_thread(ask_all, [Desk(opened.places)], question, LONG_S))
        await watcher.press("2")
        await watcher.until(lambda: "allow once" in watcher.drawn)
        drawn = await watcher.until(lambda: watcher.drawn if "? Keys" in watcher.drawn.splitlines()[-1] else "")
        assert [said for _, said in WORDS.values() if said not in drawn] == []
        assert app.screen.max_scroll_y == 0
        Desk(opened.places).answer(Desk(opened.places).waiting()[0].id, DENY_ONCE)
        await asking


@pytest.mark.long
@in_time
async def test_the_keys_of_a_view_are_listed(opened: OpenedStore) -> None:
    app = Views(opened)
    async with at(app) as watcher:
        await watcher.press("4", "question_mark")
        await watcher.until(lambda: len(app.screen_stack) == 2)
        said = [str(line.render()) for line in app.screen.query("Static")]
        assert any(line.split() == ["u", "Undo"] for line in said), said
        await watcher.press("escape")
        await watcher.until(lambda: len(app.screen_stack) == 1)


@pytest.mark.long
@in_time
async def test_much_that_waits_is_listed_a_page_at_a_time(cli: Any, opened: OpenedStore, project: Path) -> None:
    cli("run", "--hold", "--", "mkdir d; for n in $(seq 1000 1449); do echo > d/f$n; done")
    async with at(Views(opened)) as watcher:
        await list_all(watcher, "451 held")


async def list_all(watcher: Watcher, waiting: str) -> None:
    """List what waits, and the rest of it too."""
    await watcher.press("3")
    await watcher.until(lambda: watcher.labels and waiting in watcher.labels[0])
    await watcher.press("right", "end")
    await watcher.until(lambda: watcher.labels[-1].endswith("more: Enter lists some"))
    await watcher.press("end", "enter")
    await watcher.until(lambda: not any("more" in label for label in watcher.labels))


@pytest.mark.long
@in_time
async def test_directories_deeper_than_pythons_stack_do_not_end_the_views(
    cli: Any, opened: OpenedStore, project: Path
) -> None:
    cli("run", "--hold", "--", "p=d; for n in $(seq 1199); do p=$p/d; done; mkdir -p $p")
    async with at(Views(opened)) as watcher:
        await list_all(watcher, "1200 held")
        assert watcher.labels[-1] == f"{'d/' * 1199}"


# At a real terminal.


class Screen(Terminal):
    """Somebody at the views over a line that has sixteen colours and no mouse."""

    def __init__(self, project: Path, *words: str, term: str = "xterm", **variables: str) -> None:
        source = str(Path(__file__).parents[2] / "src")
        code = f"import sys; sys.path.insert(0, {source!r}); from fumehood.faces.cli.main import command; command()"
        without = {"COLORTERM": "", "LC_ALL": "C.UTF-8"}
        super().__init__([sys.executable, "-c", code, *words], project, env={"TERM": term, **without, **variables})


@in_time
async def test_no_letter_of_a_long_difference_lies_under_the_scroll_bar(
    cli: Any, opened: OpenedStore, project: Path
) -> None:
    assert cli("run", "--hold", "--", "seq -s, 2000 | fold -w 300 > long.txt").returncode == 0
    async with at(Views(opened)) as watcher:
        await watcher.press("3")
        await watcher.go_to("long.txt")
        pane = watcher.app.screen.query_one(HunkList)
        await watcher.until(lambda: pane.show_vertical_scrollbar)
        assert max(strip.cell_length for _, strip in pane._rows) == pane.scrollable_content_region.width


@pytest.mark.parametrize("term", ["xterm", "screen"])
def test_review_draws_on_a_plain_terminal_and_leaves_it_as_it_was(cli: Any, project: Path, term: str) -> None:
    held(cli, project)
    with Screen(project, "review", term=term) as screen:
        screen.wait_for("app.py")
        screen.wait_for("Accept")
        screen.type("q")
        assert screen.end() == 0
        assert screen.modes() == screen.before
    assert "\x1b[?1049l" in screen.seen
    assert "\x1b]0;owned" not in screen.seen
    assert "\x1b[38;2;" not in screen.seen, "colours that this terminal has not"


@pytest.mark.long
def test_review_counts_what_waits_here_and_watch_what_waits_anywhere(
    cli: Any, project: Path, test_directory: Path
) -> None:
    other = test_directory / "other"
    other.mkdir()
    for place in (project, other, other):
        assert cli("run", "--hold", "--", "date > app.py", cwd=place).returncode == 0
    for words, count in (("review", 1), ("watch", 3)):
        with Screen(project, words) as screen:
            screen.wait_for(f"3 Waiting ({count})")
            screen.type("q")
            assert screen.end() == 0


def test_watch_follows_the_size_of_the_window(home: Path, project: Path) -> None:
    with Screen(project, "watch") as screen:
        screen.wait_for("Nothing runs.")
        process = Path(f"/proc/{screen.process.pid}")
        signals = re.findall(r"Sig(?:Blk|Ign):\s\w+", (process / "status").read_text())
        variables = re.findall(rb"(?:COLUMNS|LINES)=\d+", (process / "environ").read_bytes())

        def has_drawn(rows: int) -> bool:
            screen.read()
            return f"\x1b[{rows};1H" in screen.seen

        for rows, columns in ((40, 132), (24, 80), (50, 100)):
            screen.shown = b""
            screen.resize(rows, columns)
            assert eventually(partial(has_drawn, rows)), f"it has {signals} and {variables}: {screen.seen!r}"
        screen.type("q")
        assert screen.end() == 0


@in_time
async def test_a_new_size_of_the_window_is_not_missed_on_a_busy_machine(
    opened: OpenedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Views(opened)
    # Time enough passes between any two looks at the clock for a short timer of Textual's to be given up.
    looks, time_of = itertools.count(), textual.timer._time.get_time
    async with at(app) as watcher:
        monkeypatch.setattr(textual.timer._time, "get_time", lambda: time_of() + 0.02 * next(looks))
        await watcher.pilot.resize_terminal(132, 40)
        await watcher.until(lambda: app.query_one(Footer).region.right == 132)
        assert app.query_one(Footer).region.bottom == 40


def test_watch_without_a_terminal_says_what_to_do(cli: Any) -> None:
    refused = cli("watch")
    assert refused.returncode == 125
    assert "needs a terminal" in refused.stderr
    assert "fumehood status" in refused.stderr


def test_without_the_extra_review_asks_line_by_line_and_watch_says_how_to_get_it(cli: Any, project: Path) -> None:
    held(cli, project)
    source = str(Path(__file__).parents[2] / "src")
    hide = "sys.modules['textual'] = None"
    code = f"import sys; sys.path.insert(0, {source!r}); {hide}; from fumehood.faces.cli.main import command; command()"
    for words, says in (("review", "[quit] > "), ("watch", "pip install '.[terminal]'")):
        with Terminal([sys.executable, "-c", code, words], project) as screen:
            screen.wait_for(says)
            screen.type("quit\n")
            screen.end()


def test_whoever_watches_is_at_the_desk(home: Path, project: Path, opened: OpenedStore) -> None:
    desk = Desk(opened.places)
    assert not desk.is_attended_for(str(project))
    with Screen(project, "watch") as screen:
        screen.wait_for("Nothing runs.")
        assert desk.is_attended_for(str(project))
        screen.type("q")
        screen.end()
    assert eventually(lambda: not desk.is_attended_for(str(project)))


def test_ctrl_z_leaves_the_terminal_and_the_desk_until_the_shell_goes_on(
    home: Path, project: Path, opened: OpenedStore
) -> None:
    desk = Desk(opened.places)
    with Screen(project, "watch") as screen:
        screen.wait_for("Nothing runs.")
        screen.type("\x1a")

        def is_stopped() -> bool:
            screen.read(0)
            return "T (stopped)" in Path(f"/proc/{screen.process.pid}/status").read_text()

        assert eventually(is_stopped)
        assert screen.modes() == screen.before
        assert not desk.is_attended_for(str(project))
        screen.shown = b""
        os.kill(screen.process.pid, signal.SIGCONT)
        for words in ("Nothing runs.", "4 History"):  # all of it, although nothing is new
            screen.wait_for(words)
        assert eventually(lambda: desk.is_attended_for(str(project)))
        screen.type("q")
        assert screen.end() == 0


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_the_views_with_the_terminal_as_it_was(home: Path, project: Path, number: signal.Signals) -> None:
    with Screen(project, "watch") as screen:
        screen.wait_for("Nothing runs.")
        screen.process.send_signal(number)
        assert screen.end() == -number
        assert screen.modes() == screen.before
        assert "\x1b[?1049l" in screen.seen


def test_the_views_end_with_their_terminal(home: Path, project: Path) -> None:
    screen = Screen(project, "watch")
    screen.wait_for("Nothing runs.")
    os.close(screen._screen)
    os.close(screen._slave)
    assert screen.process.wait(LONG_S) != 0


def test_a_sequence_that_is_cut_with_its_line_does_not_reach_the_terminal() -> None:
    for size in range(3980, 4001):
        (line,) = output_lines(b"x" * size + b"\x1b[38;2;200;100;50mred\n", 1)
        assert "\x1b" not in line.plain
