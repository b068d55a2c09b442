"""What happens now: the commands that run, with what they use, print and write, and what is asked, with its answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Button, DataTable

from fumehood.core.limits import size_told
from fumehood.core.questions import question_lines
from fumehood.core.report import Run, printable
from fumehood.core.wording import elapsed, fitted
from fumehood.faces.cli.prompt import KEYS
from fumehood.faces.terminal.widgets import Acting, Lines, both, shown
from fumehood.service import overview
from fumehood.service.desk import Desk, OpenQuestion
from fumehood.service.overview import Chosen, LiveCommand
from fumehood.service.store import Store
from fumehood.store.audit import Missed
from fumehood.store.history import Reach

_END = 1 << 17  # bytes of an output that are looked at
_MOST_LINES = 1000
_WRITTEN = 5
_NOTHING = ("nothing",)  # is the output while nothing runs
_COLUMNS = ("run", "since", "memory", "processes", "session", "command")
# As the prompt has them, but for q, which leaves here.
_KEYS = {answer: ("Q" if key == "q" else key, said) for answer, (key, said) in KEYS.items()}
_NOT_YET_S = 0.5  # a key so soon after a question came was meant for what was there before


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
    QuestionsView Button { height: 1; border: none; min-width: 8; margin: 0 1; }
    QuestionsView #missed { height: 1fr; border-top: solid $secondary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"answer('{answer}')", said.capitalize()) for answer, (key, said) in _KEYS.items()),
        Binding("left_square_bracket", "go(-1)", "Question before", show=False),
        Binding("right_square_bracket", "go(1)", "Next question", key_display="]"),
        Binding("x", "forget", "Forget what was missed", show=False),
    ]

    def __init__(self, store: Store, desk: Desk) -> None:
        super().__init__()
        self.store = store
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
        waiting, missed = self._desk.waiting(), self.store.grants.missed()
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
            answers.mount(*(_button(answer) for answer in question.question.options))
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
        said = _KEYS[answer][1] if is_ours else "somebody else was faster, or it is too late"
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


def _button(answer: str) -> Button:
    key, said = _KEYS[answer]
    variant = "success" if answer.startswith("allow") else "error"
    return Button(Text(f"{key}  {said}"), name=answer, variant=variant)  # type: ignore[arg-type]


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
