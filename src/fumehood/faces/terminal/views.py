"""The views of `watch`: what runs now, what is asked, what ran, found by search, and all of one run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Button, DataTable, Footer, Input, Static

from fumehood.core.limits import size_told
from fumehood.core.questions import Question, question_lines
from fumehood.core.report import Run, printable
from fumehood.core.wording import elapsed, fitted, quoted
from fumehood.faces.cli.run_text import SIGNS, STATES
from fumehood.faces.cli.screen import KEYS
from fumehood.faces.terminal.changes import ChangesView
from fumehood.faces.terminal.widgets import Acting, Lines, both, shown
from fumehood.service import overview
from fumehood.service.desk import Desk, OpenQuestion
from fumehood.service.overview import Chosen, LiveCommand
from fumehood.service.store import Store
from fumehood.store.audit import Missed
from fumehood.store.history import Reach
from fumehood.store.search import Search

_END = 1 << 17  # bytes of an output that are looked at
_MOST_LINES = 1000  # of what a command that runs printed
_WRITTEN = 5
_NOTHING = ("nothing",)  # is the output while nothing runs
_COLUMNS = ("run", "since", "memory", "processes", "session", "command")
# As the prompt has them, but for q, which leaves here.
_KEYS = {answer: ("Q" if key == "q" else key, said) for answer, (key, said) in KEYS.items()}
_NOT_YET_S = 0.5  # a key so soon after a question came was meant for what was there before
_PAGE = 100  # runs
_MOST_PRINTED = 5000  # lines
_NAMED = ("path", "session", "state", "text")  # what can be looked for by name; other words are in the command
_HOW = "words of the command, path:src/a.py, session:NAME, state:held, text:PRINTED"


class RunningView(Acting):
    """The commands that run, and the output of the chosen one as it comes."""

    DEFAULT_CSS = """
    RunningView DataTable { height: auto; max-height: 40%; border-bottom: solid $secondary; }
    RunningView #live { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("s", "stop", "Stop"), Binding("c", "checkpoint", "Settle so far")]

    def __init__(self, store: Store, reach: Reach) -> None:
        super().__init__(store)
        self._reach = reach
        self._runs: dict[str, Run] = {}
        self._chosen = ""
        self._output: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """The commands, then the output."""
        yield DataTable(cursor_type="row", id="running")
        yield Lines(id="live")

    def on_mount(self) -> None:
        """Name the columns."""
        table = self.query_one(DataTable)
        for name in _COLUMNS:
            table.add_column(Text(name), key=name)

    def look(self) -> Callable[[], None] | None:
        """Read what runs, and the end of what the chosen command printed; None while nothing runs."""
        commands = overview.running(self.store, self._reach)
        runs = {each.run.run: each.run for each in commands}
        chosen = runs.get(self._chosen) or next(iter(runs.values()), None)
        if chosen is None:
            is_shown = self._output == _NOTHING
            return None if is_shown else lambda: self._show([], "", [Text("Nothing runs.", "dim")], _NOTHING)
        ends = tuple(overview.printed_last(self.store, chosen, stream, _END) for stream in ("stdout", "stderr"))
        paths, is_more = overview.written(self.store, chosen, _WRITTEN)
        now = chosen.run, ends, tuple(paths)
        lines: list[Text] | None = None
        if now != self._output:
            signs = [f"{'-' if each.is_gone else '~'} {each.path}" for each in paths]
            wrote = [shown(f"wrote {'   '.join(signs)}{'   …' if is_more else ''}", "cyan")] if signs else []
            lines = [*both(ends, _MOST_LINES), *wrote]
        return lambda: self._show(commands, chosen.run, lines, now)

    def _show(
        self, commands: list[LiveCommand], chosen: str, lines: list[Text] | None, output: tuple[object, ...]
    ) -> None:
        table = self.query_one(DataTable)
        self._runs = {each.run.run: each.run for each in commands}
        for key in [key for key in table.rows if key.value not in self._runs]:
            table.remove_row(key)
        for each in commands:
            cells = _cells(each)
            if each.run.run not in table.rows:
                table.add_row(*cells, key=each.run.run)
            else:
                for name, cell in zip(_COLUMNS, cells, strict=True):
                    table.update_cell(each.run.run, name, cell, update_width=True)
        is_another = chosen != self._chosen
        self._chosen, self._output = chosen, output
        if lines is not None:
            live = self.query_one("#live", Lines)
            live.show(lines, at_end=not is_another)
            if is_another:
                live.scroll_end(animate=False)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the output of the command that the person went to."""
        key = event.row_key.value or ""
        if key in self._runs and key != self._chosen:
            self._chosen, self._output = key, ()

    def action_stop(self) -> None:
        """End the chosen command, once the person says yes."""
        run = self._runs.get(self._chosen)
        if run is not None:
            question = f"End #{run.number}: {fitted(printable(run.command), 150)}? What it wrote is held."
            self.ask_first(question, lambda: self.act(run, Chosen(act="stop")))

    def action_checkpoint(self) -> None:
        """Have what the chosen command has finished writing settled while it goes on."""
        run = self._runs.get(self._chosen)
        if run is not None:
            self.act(run, Chosen(act="checkpoint"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Offer nothing where nothing runs."""
        return action not in ("stop", "checkpoint") or bool(self._runs)


def _cells(each: LiveCommand) -> list[Text]:
    run = each.run
    where = f"{os.path.basename(run.project)}  "
    return [
        Text(f"#{run.number}", "bold"), Text(elapsed(time.time() - run.started_at), justify="right"),
        Text(size_told(each.memory), justify="right"), Text(str(each.processes), justify="right"),
        shown(fitted(printable(run.session or ""), 20)),
        Text.assemble((printable(where), "dim"), shown(fitted(printable(run.command), 200))),
    ]  # fmt: skip


class QuestionsView(Acting):
    """One question at a time, the oldest first; a key or a click answers it."""

    DEFAULT_CSS = """
    QuestionsView #question { height: 2fr; }
    QuestionsView Horizontal { height: auto; }
    QuestionsView Button { min-width: 8; margin: 0 1; }
    QuestionsView #missed { height: 1fr; border-top: solid $secondary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        # Not in the last line, where they have no room: the buttons name them.
        *(Binding(key, f"answer('{each}')", said.capitalize(), show=False) for each, (key, said) in _KEYS.items()),
        Binding("left_square_bracket", "go(-1)", "Question before", show=False),
        Binding("right_square_bracket", "go(1)", "Next question", key_display="]"),
        Binding("x", "forget", "Forget what was missed", show=False),
    ]

    def __init__(self, store: Store, desk: Desk) -> None:
        super().__init__(store)
        self._desk = desk
        self._open: list[OpenQuestion] = []
        self._missed: list[Missed] = []
        self._chosen = ""
        self._shown_at = 0.0

    def compose(self) -> ComposeResult:
        """The question, its answers, and what was missed."""
        yield Lines(id="question")
        yield Horizontal(id="answers")
        yield Lines(id="missed")

    def on_mount(self) -> None:
        """Say that nothing is asked."""
        self._show([], [])

    def look(self) -> Callable[[], None] | None:
        """Read what is asked, and what was, if there is anything new."""
        waiting, missed = self._desk.waiting(), overview.missed_questions(self.store)
        is_shown = [each.id for each in waiting] == [each.id for each in self._open] and missed == self._missed
        return None if is_shown else lambda: self._show(waiting, missed)

    @property
    def _question(self) -> OpenQuestion | None:
        return next((each for each in self._open if each.id == self._chosen), None)

    def _show(self, waiting: list[OpenQuestion], missed: list[Missed]) -> None:
        self._open = waiting
        if self._question is None:
            self._choose(waiting[0] if waiting else None)
        if missed != self._missed or not self.query_one("#missed", Lines).text:
            self._missed = missed
            self.query_one("#missed", Lines).show(_missed_lines(missed))

    def _choose(self, question: OpenQuestion | None) -> None:
        """Show another question, and the answers that it allows."""
        lines = self.query_one("#question", Lines)
        answers = self.query_one("#answers", Horizontal)
        if question is None and self._chosen == "" and lines.text:
            return
        self._chosen, self._shown_at = "" if question is None else question.id, time.monotonic()
        answers.remove_children()
        if question is None:
            lines.show([Text("Nothing is asked.", "dim")])
        else:
            width = self.app.size.width - 2  # it is not drawn yet where the view is not in sight
            place = self._open.index(question) + 1
            head = [Text(f"question {place} of {len(self._open)}, asked at {_clock(question.asked_at)}", "dim")]
            lines.show([*head, *(shown(line) for line in question_lines(question.question, width))])
            answers.mount(*(_button(question.question, answer) for answer in question.question.options))
        self.refresh_bindings()

    def action_go(self, by: int) -> None:
        """Go to the next question, or the one before."""
        names = [each.id for each in self._open]
        if self._chosen in names:
            self._choose(self._open[(names.index(self._chosen) + by) % len(names)])
            self._shown_at = 0.0  # the person went there themselves

    def action_answer(self, answer: str) -> None:
        """Answer the question that is shown."""
        question = self._question
        if question is None or answer not in question.question.options:
            return
        if time.monotonic() - self._shown_at < _NOT_YET_S:
            self.app.bell()
            return
        is_ours = self._desk.answer(question.id, answer)
        said = question.question.worded(_KEYS[answer][1]) if is_ours else "somebody else was faster, or it is too late"
        self.notify(said.capitalize() + ".", markup=False)
        self._show([each for each in self._open if each.id != question.id], self._missed)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer by a click."""
        self.action_answer(event.button.name or "")

    def action_forget(self) -> None:
        """Forget the latest question that found nobody."""
        if self._missed:
            self.store.grants.forget_missed(self._missed[0].id)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only the answers that the question allows."""
        if action == "answer":
            return self._question is not None and parameters[0] in self._question.question.options
        return action != "go" or len(self._open) > 1


def _button(question: Question, answer: str) -> Button:
    key, said = _KEYS[answer]
    variant = "success" if answer.startswith("allow") else "error"
    return Button(Text(f"{key}  {question.worded(said)}"), name=answer, variant=variant, compact=True)  # type: ignore[arg-type]


def _missed_lines(missed: list[Missed]) -> list[Text]:
    if not missed:
        return [Text("No question was missed.", "dim")]
    lines = [Text("Nobody answered these, so it was no (x forgets the first):", "bold")]
    for each in missed:
        lines.append(shown(f"{_clock(each.at)}  {printable(each.text)}  in {printable(each.directory)}"))
        lines += [shown(f"    for the next time: {each.ahead}", "cyan")] if each.ahead else []
    return lines


def _clock(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at))


# ---- What ran.

def search_for(line: str) -> Search:
    """Read what a person typed to look for."""
    what, words = Search(), []
    for word in line.split():
        name, colon, value = word.partition(":")
        if colon and name in _NAMED:
            what = what.replace(**{name: value})
        else:
            words.append(word)
    return what.replace(words=" ".join(words))


class HistoryView(Acting):
    """The runs of every project, the latest first."""

    DEFAULT_CSS = "HistoryView Input { height: 1; border: none; } HistoryView DataTable { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "Search", key_display="/"),
        Binding("u", "take_back", "Undo"),
        Binding("r", "bring_back", "Redo"),
        Binding("o", "output", "Output"),
        Binding("escape", "leave", "Leave the search", show=False),
    ]

    def __init__(self, store: Store, project: int | None) -> None:
        super().__init__(store)
        self._project = project
        self._line = ""
        self._most = _PAGE
        self._shown: tuple[str, int, int] | None = None  # the search, how many, and the last event
        self._runs: dict[str, Run] = {}

    def compose(self) -> ComposeResult:
        """The search, then the runs."""
        yield Input(placeholder=_HOW, id="search", compact=True)
        yield DataTable(cursor_type="row", id="history")

    def on_mount(self) -> None:
        """Name the columns."""
        self._table.add_columns(Text("run"), Text("when"), Text("outcome"), Text("changes"), Text("command"))

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#history", DataTable)

    @property
    def _run(self) -> Run | None:
        row = self._table.cursor_row
        keys = list(self._table.rows)
        return self._runs.get(keys[row].value or "") if 0 <= row < len(keys) else None

    def look(self) -> Callable[[], None] | None:
        """Read the runs that are looked for, if there is anything new."""
        ((last,),) = self.store.database.rows("SELECT coalesce(max(n), 0) FROM events")
        now = self._line, self._most, int(last)
        if now == self._shown:
            return None
        what = search_for(self._line).replace(project=self._project)
        runs, later = overview.searched(self.store, what, most=self._most)
        counts = self.store.history.count_changes([run.run for run in runs])
        return lambda: self._show(now, runs, counts, is_more=bool(later))

    def _show(
        self, now: tuple[str, int, int], runs: list[Run], counts: dict[str, dict[str, int]], *, is_more: bool
    ) -> None:
        self._shown = now
        table, chosen = self._table, self._run
        table.clear()
        self._runs = {run.run: run for run in runs}
        for run in runs:
            changes = Text()
            for kind, (sign, colour) in SIGNS.items():
                if counts.get(run.run, {}).get(kind):
                    changes.append(f"{sign}{counts[run.run][kind]} ", colour)
            state = Text(run.outcome, STATES.get(run.state, "dim"))
            if run.exit_code:
                state.append(f" exit {run.exit_code}", "red")
            when = time.strftime("%m-%d %H:%M", time.localtime(run.started_at))
            project = f"{os.path.basename(run.project)}  " if self._project is None else ""
            command = Text.assemble((printable(project), "dim"), shown(fitted(printable(run.command), 200)))
            table.add_row(Text(f"#{run.number}"), Text(when), state, changes, command, key=run.run)
        if is_more:
            table.add_row(Text("…"), Text(""), Text(""), Text(""), Text("Enter lists some more"), key="more")
        if chosen is not None and chosen.run in self._runs:
            table.move_cursor(row=table.get_row_index(chosen.run), animate=False)

    def action_search(self) -> None:
        """Go to where a search is typed."""
        self.query_one(Input).focus()

    def action_leave(self) -> None:
        """Go back to the runs."""
        self._table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Look for what is typed."""
        self._line, self._most = event.value, _PAGE

    def on_input_submitted(self) -> None:
        """Go to what was found."""
        self._table.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show all of a run, or some more of them."""
        if event.row_key.value == "more":
            self._most += 5 * _PAGE
        elif self._run is not None:
            self.app.push_screen(RunScreen(self.store, self._run))

    def action_take_back(self) -> None:
        """Undo the chosen run."""
        if self._run is not None:
            self.act(self._run, Chosen(act="undo"))

    def action_bring_back(self) -> None:
        """Redo the chosen run, or what the chosen undo took back."""
        if self._run is not None:
            self.act(self._run, Chosen(act="redo"))

    def action_output(self) -> None:
        """Show what the chosen run printed."""
        if self._run is not None:
            self.app.push_screen(OutputScreen(self._run))


class RunScreen(Screen[None]):
    """One run: what it changed, and the difference of each path."""

    CSS = "RunScreen #title { height: 1; text-style: bold; background: $primary; color: $text; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"), Binding("o", "output", "Output"),
    ]  # fmt: skip

    def __init__(self, store: Store, run: Run) -> None:
        super().__init__()
        self._store = store
        self._run = run

    def compose(self) -> ComposeResult:
        """What it is, what it changed, and the keys."""
        yield Static(f"#{self._run.number}  {quoted(self._run.command, 200)}", markup=False, id="title")
        yield ChangesView(self._store, lambda: [self._store.history.find(self._run.run)], only_waiting=False)
        yield Footer(show_command_palette=False)

    def action_output(self) -> None:
        """Show what it printed."""
        self.app.push_screen(OutputScreen(self._store.history.find(self._run.run)))


class OutputScreen(Screen[None]):
    """What a run printed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,o", "app.pop_screen", "Back", key_display="esc")]

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def compose(self) -> ComposeResult:
        """The lines, and the keys."""
        yield Lines(id="output")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Fill it."""
        outputs = (text.encode(errors="replace") for text in (self._run.stdout, self._run.stderr))
        self.query_one(Lines).show(both(outputs, _MOST_PRINTED))
        self.query_one(Lines).focus()
