"""What runs now: each command with what it uses, prints and writes; it can be stopped, or settled while it goes on."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.widgets import DataTable

from fumehood.core.limits import size_told
from fumehood.core.report import printable
from fumehood.core.wording import elapsed, fitted
from fumehood.faces.terminal.acting import Acting
from fumehood.faces.terminal.history import both
from fumehood.faces.terminal.lines import Lines, shown
from fumehood.service import overview
from fumehood.service.acts import Chosen

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from fumehood.core.report import Run
    from fumehood.service.overview import LiveCommand
    from fumehood.service.store import Store
    from fumehood.store.history import Reach

_END = 1 << 17  # bytes of an output that are looked at
_MOST_LINES = 1000
_WRITTEN = 5
_COLUMNS = ("run", "since", "memory", "processes", "session", "command")


class RunningView(Acting):
    """The commands that run, and the output of the chosen one as it comes."""

    DEFAULT_CSS = """
    RunningView DataTable { height: auto; max-height: 40%; border-bottom: solid $secondary; }
    RunningView #live { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "stop", "Stop"), Binding("c", "checkpoint", "Settle so far"),
    ]  # fmt: skip

    def __init__(self, store: Store, reach: Reach) -> None:
        super().__init__()
        self.store = store
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

    def look(self) -> Callable[[], None]:
        """Read what runs, and the end of what the chosen command printed."""
        commands = overview.running(self.store, self._reach)
        runs = {each.run.run: each.run for each in commands}
        chosen = runs.get(self._chosen) or next(iter(runs.values()), None)
        if chosen is None:
            return lambda: self._show([], "", [Text("Nothing runs.", "dim")], ())
        ends = tuple(_end_of(self.store.places.output(chosen.run, stream)) for stream in ("stdout", "stderr"))
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


def _end_of(path: str) -> bytes:
    """Return the last of what a command printed; it begins at a line."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _END))
            data = file.read(_END)
    except FileNotFoundError:
        return b""  # it has printed nothing there
    return data if size <= _END else data.partition(b"\n")[2] or data
