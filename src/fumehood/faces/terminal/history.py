"""What ran, found by search, and all of one run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from fumehood.core.report import Run, printable
from fumehood.core.wording import fitted, quoted
from fumehood.faces.cli.log import STATES
from fumehood.faces.cli.look import SIGNS
from fumehood.faces.terminal.changes import ChangesView
from fumehood.faces.terminal.widgets import Acting, Lines, both, shown
from fumehood.service.overview import Chosen
from fumehood.service.store import Store
from fumehood.store.search import Search, search

_PAGE = 100
_MOST_PRINTED = 5000  # lines
_NAMED = ("path", "session", "state", "text")  # what can be looked for by name; other words are in the command
_HOW = "words of the command, path:src/a.py, session:NAME, state:held, text:PRINTED"


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
        super().__init__()
        self.store = store
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
        names, later = search(self.store.history, what, most=self._most)
        runs = self.store.history.runs(among=names)
        counts = self.store.history.count_changes(names)
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
            self.redo(self._run)

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
        yield ChangesView(self._store, only_waiting=False)
        yield Footer(show_command_palette=False)

    def look(self) -> Callable[[], None] | None:
        """Read the run as it is now, if anything happened to it."""
        return self.query_one(ChangesView).look([self._store.history.find(self._run.run)])

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
        run = self._run
        outputs = (text.encode(errors="replace") for text in (run.stdout, run.stderr))
        self.query_one(Lines).show(both(outputs, _MOST_PRINTED))
        self.query_one(Lines).focus()
