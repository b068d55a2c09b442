"""The program behind `watch`: four views (running, questions, waiting, history), and a line that shows a question."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import constants, on
from textual.app import App, ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.driver import Driver
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Button, DataTable, Footer, Static, Tab, TabbedContent, TabPane

from fumehood.core.questions import Question, question_lines
from fumehood.core.report import Run, format_size, printable
from fumehood.core.wording import fit_columns, format_elapsed, quote
from fumehood.errors import FumehoodError, as_fumehood_error
from fumehood.faces.cli.screen import WORDS
from fumehood.faces.terminal.run_views import ChangesView, HistoryView, RunScreen
from fumehood.faces.terminal.widgets import ActingView, TextView, both_outputs, safe_text
from fumehood.service import overview
from fumehood.service.ask import Desk, OpenQuestion
from fumehood.service.overview import ChosenAct, LiveCommand
from fumehood.service.store import Store
from fumehood.store.audit import Missed
from fumehood.store.history import RunFilter

NOW, QUESTIONS, WAITING, HISTORY = VIEWS = ("now", "questions", "waiting", "past")
_NAMES = {NOW: "Now", QUESTIONS: "Questions", WAITING: "Waiting", HISTORY: "History"}
_POLL_S = 0.5
_SHORT_WAIT_S = 0.02
_MAX_HELD = 100  # runs that are listed
_END_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_MAX_OUTPUT_BYTES = 1 << 17  # of a running command that are read
_MAX_OUTPUT_LINES = 1000  # of a running command that are shown
_MAX_WRITTEN = 5
_NOTHING_RUNS = ("nothing",)  # the value of `_output` while nothing runs
_COLUMNS = ("run", "since", "memory", "processes", "session", "command")
_MIN_ANSWER_S = 0.5  # an earlier press was meant for what was on the screen before the question


class RunningView(ActingView):
    """The running commands, and the output of the chosen one as it comes."""

    DEFAULT_CSS = """
    RunningView DataTable { height: auto; max-height: 40%; border-bottom: solid $secondary; }
    RunningView #live { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("s", "stop", "Stop"), Binding("c", "checkpoint", "Settle so far")]

    def __init__(self, store: Store, reach: RunFilter) -> None:
        super().__init__(store)
        self._reach = reach
        self._runs: dict[str, Run] = {}
        self._chosen = ""
        self._output: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield DataTable(cursor_type="row", id="running")
        yield TextView(id="live")

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        for name in _COLUMNS:
            table.add_column(Text(name), key=name)

    def read_news(self) -> Callable[[], None] | None:
        """Read the running commands, and the end of the chosen command's output."""
        commands = overview.live_commands(self.store, self._reach)
        runs = {each.run.run: each.run for each in commands}
        chosen = runs.get(self._chosen) or next(iter(runs.values()), None)
        if chosen is None:
            is_shown = self._output == _NOTHING_RUNS
            return None if is_shown else lambda: self._show([], "", [Text("Nothing runs.", "dim")], _NOTHING_RUNS)
        streams = ("stdout", "stderr")
        ends = tuple(overview.end_of_output(self.store, chosen, stream, _MAX_OUTPUT_BYTES) for stream in streams)
        paths, is_more = overview.written_paths(self.store, chosen, _MAX_WRITTEN)
        now = chosen.run, ends, tuple(paths)
        lines: list[Text] | None = None
        if now != self._output:
            signs = [f"{'-' if each.is_gone else '~'} {each.path}" for each in paths]
            wrote = [safe_text(f"wrote {'   '.join(signs)}{'   …' if is_more else ''}", "cyan")] if signs else []
            lines = [*both_outputs(ends, _MAX_OUTPUT_LINES), *wrote]
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
            live = self.query_one("#live", TextView)
            live.show(lines, at_end=not is_another)
            if is_another:
                live.scroll_end(animate=False)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        key = event.row_key.value or ""
        if key in self._runs and key != self._chosen:
            self._chosen, self._output = key, ()

    def action_stop(self) -> None:
        run = self._runs.get(self._chosen)
        if run is not None:
            question = f"End #{run.number}: {fit_columns(printable(run.command), 150)}? What it wrote is held."
            self.ask_first(question, lambda: self.act(run, ChosenAct(act="stop")))

    def action_checkpoint(self) -> None:
        run = self._runs.get(self._chosen)
        if run is not None:
            self.act(run, ChosenAct(act="checkpoint"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        return action not in ("stop", "checkpoint") or bool(self._runs)


def _cells(each: LiveCommand) -> list[Text]:
    run = each.run
    where = f"{os.path.basename(run.project)}  "
    return [
        Text(f"#{run.number}", "bold"), Text(format_elapsed(time.time() - run.started_at), justify="right"),
        Text(format_size(each.memory), justify="right"), Text(str(each.processes), justify="right"),
        safe_text(fit_columns(printable(run.session or ""), 20)),
        Text.assemble((printable(where), "dim"), safe_text(fit_columns(printable(run.command), 200))),
    ]  # fmt: skip


class QuestionsView(ActingView):
    """One question at a time, the oldest first; only its buttons answer it, so that no letter typed by mistake does."""

    DEFAULT_CSS = """
    QuestionsView #question { height: 2fr; }
    QuestionsView Horizontal { height: auto; }
    QuestionsView Button { min-width: 8; margin: 0 1; }
    QuestionsView #missed { height: 1fr; border-top: solid $secondary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
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
        yield TextView(id="question")
        yield Horizontal(id="answers")
        yield TextView(id="missed")

    def on_mount(self) -> None:
        self._show([], [])

    def read_news(self) -> Callable[[], None] | None:
        """Read the open and the missed questions, if anything is new."""
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
        if missed != self._missed or not self.query_one("#missed", TextView).text:
            self._missed = missed
            self.query_one("#missed", TextView).show(_missed_lines(missed))

    def _choose(self, question: OpenQuestion | None) -> None:
        """Show another question, with buttons for its answers."""
        lines = self.query_one("#question", TextView)
        answers = self.query_one("#answers", Horizontal)
        if question is None and self._chosen == "" and lines.text:
            return
        self._chosen, self._shown_at = "" if question is None else question.id, time.monotonic()
        answers.remove_children()
        if question is None:
            lines.show([Text("Nothing is asked.", "dim")])
        else:
            width = self.app.size.width - 2  # of the app, because this view is not laid out while it is hidden
            place = self._open.index(question) + 1
            head = [Text(f"question {place} of {len(self._open)}, asked at {_clock(question.asked_at)}", "dim")]
            lines.show([*head, *(safe_text(line) for line in question_lines(question.question, width))])
            answers.mount(*(_button(question.question, answer) for answer in question.question.options))
        self.refresh_bindings()

    def action_go(self, by: int) -> None:
        names = [each.id for each in self._open]
        if self._chosen in names:
            self._choose(self._open[(names.index(self._chosen) + by) % len(names)])
            self._shown_at = 0.0  # the person chose this question, so a key may answer at once

    def on_button_pressed(self, event: Button.Pressed) -> None:
        answer = event.button.name or ""
        question = self._question
        if question is None or answer not in question.question.options:
            return
        if time.monotonic() - self._shown_at < _MIN_ANSWER_S:
            self.app.bell()
            return
        is_ours = self._desk.answer(question.id, answer)
        said = question.question.worded(WORDS[answer][1]) if is_ours else "somebody else was faster, or it is too late"
        self.notify(said.capitalize() + ".", markup=False)
        self._show([each for each in self._open if each.id != question.id], self._missed)

    def action_forget(self) -> None:
        if self._missed:
            self.store.grants.forget_missed(self._missed[0].id)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        return action != "go" or len(self._open) > 1


def _button(question: Question, answer: str) -> Button:
    variant = "success" if answer.startswith("allow") else "error"
    return Button(Text(question.worded(WORDS[answer][1])), name=answer, variant=variant, compact=True)  # type: ignore[arg-type]


def _missed_lines(missed: list[Missed]) -> list[Text]:
    if not missed:
        return [Text("No question was missed.", "dim")]
    lines = [Text("Nobody answered these, so it was no (x forgets the first):", "bold")]
    for each in missed:
        lines.append(safe_text(f"{_clock(each.at)}  {printable(each.text)}  in {printable(each.directory)}"))
        lines += [safe_text(f"    for the next time: {each.ahead}", "cyan")] if each.ahead else []
    return lines


def _clock(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at))


# ---- The program.

class Views(App[None]):
    """The Textual program with the four views."""

    TITLE = "Fumehood"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 - the class that has it says list
    CSS = """
    #bell { height: 1; background: $warning; color: black; display: none; padding: 0 1; text-wrap: nowrap; }
    #bell.-asked { display: block; }
    TabbedContent, ContentSwitcher, TabPane { height: 1fr; }
    TabPane { padding: 0; }
    * { scrollbar-size: 1 1; }
    Footer { scrollbar-size: 0 0; }
    .-narrow #answers { layout: vertical; }
    DataTable { overflow-x: hidden; }
    DataTable > .datatable--header { background: $panel; color: $foreground; text-style: bold underline; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"view('{view}')", _NAMES[view], show=False) for number, view in enumerate(VIEWS, 1)),
        Binding("exclamation_mark", f"view('{QUESTIONS}')", "To the questions", key_display="!", show=False),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+z", "leave", "To the shell, until fg", show=False),
    ]

    def __init__(
        self, store: Store, *, view: str = NOW, project: int | None = None,
        held: Callable[[], Sequence[Run]] | None = None,
    ) -> None:  # fmt: skip
        """`project` limits the running commands and the history; `held` returns the runs to review, by default all."""
        super().__init__()
        self.store = store
        self.desk = Desk(store.places)
        self.presence = self.desk.attend()
        self._first, self._project = view, project
        self._held = held or (lambda: overview.held_runs(store, limit=_MAX_HELD)[0])
        self._count_held: Callable[[], int] = lambda: overview.count_held_runs(store) if held is None else len(held())
        self._asked: tuple[str, ...] = ()
        self._is_looking = False
        self.looks = 0  # how often news was shown, for tests
        self.ended_by: signal.Signals | None = None
        if self.console.color_system != "truecolor" and not constants.DEFAULT_THEME.startswith("ansi"):
            self.theme = "ansi-dark"  # the terminal's own colours: approximations of ours would be hard to read

    def compose(self) -> ComposeResult:
        yield Static("", markup=False, id="bell")
        views = (
            RunningView(self.store, RunFilter(project=self._project)), QuestionsView(self.store, self.desk),
            ChangesView(self.store, self._held, only_waiting=True), HistoryView(self.store, self._project),
        )  # fmt: skip
        with TabbedContent(initial=self._first):
            for number, (name, view) in enumerate(zip(VIEWS, views, strict=True), 1):
                with TabPane(f"{number} {_NAMES[name]}", id=name):
                    yield view
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.set_interval(_POLL_S, self.look_again)
        # On a signal, end in an orderly way, so that the terminal is restored.
        if threading.current_thread() is threading.main_thread():
            for number in _END_SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, self._end_by, number)

    def _end_by(self, number: signal.Signals) -> None:
        self.ended_by = number
        self.exit()

    def on_resize(self, event: Resize) -> None:
        """Draw at once for another size of the window.

        Textual does so by a timer of 8 ms, and gives up if the timer is late on a busy machine: then the size would
        stay wrong for good.
        """
        if self.screen_stack:
            self.screen.post_message(Resize(event.size, event.virtual_size))

    # ---- What is new.

    def look_again(self) -> None:
        """Read the news in a thread, unless one is still reading, or the widgets are not all there."""
        if not self.screen_stack:
            return  # the program has ended
        tabs = self.screen_stack[0].query(Tab)
        if self._is_looking or len(tabs) != len(VIEWS) or not all(tab.is_mounted for tab in tabs):
            return
        view = self.in_sight
        if view is not None:
            self._is_looking = True
            self.run_worker(lambda: self._read_news(view), thread=True, group="news")

    @property
    def in_sight(self) -> ActingView | None:
        """The view that the person sees; None while it is being made."""
        tabs = self.screen_stack[0].query_one(TabbedContent)
        place = self.screen if isinstance(self.screen, RunScreen) else tabs.get_pane(tabs.active)
        return next(iter(place.query(ActingView)), None)

    def _read_news(self, view: ActingView) -> None:
        try:
            self.store.recover()
            asked, waiting = self.desk.waiting(), self._count_held()
            show = view.read_news()
        except (FumehoodError, OSError) as error:
            # The records can't be read now, perhaps because the disk is full: say so, and try again.
            message = printable(as_fumehood_error(error).message)
            self.call_from_thread(partial(self.notify, message, severity="error", markup=False))
            return
        finally:
            self._is_looking = False
        self.call_from_thread(self._show_news, asked, waiting, show)

    def _show_news(self, asked: list[OpenQuestion], waiting: int, show: Callable[[], None] | None) -> None:
        if not self.is_running:
            return  # the program ends, and the widgets may be gone
        if show is not None:
            show()
            self.screen.refresh_bindings()
        self.looks += 1
        tabs = self.screen_stack[0].query_one(TabbedContent)
        for view, count in ((QUESTIONS, len(asked)), (WAITING, waiting)):
            label = f"{VIEWS.index(view) + 1} {_NAMES[view]}{f' ({count})' if count else ''}"
            if tabs.get_tab(view).label_text != label:
                tabs.get_tab(view).label = Text(label)
        names = tuple(each.id for each in asked)
        if set(names) - set(self._asked):
            self.bell()
        if names != self._asked:
            self._asked = names
            line = self.screen_stack[0].query_one("#bell", Static)
            line.update(f"! {quote(asked[0].question.text, 200)}" if asked else "")
            line.set_class(bool(asked), "-asked")

    # ---- Keys.

    def action_view(self, view: str) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.set_focus(None)  # the focused widget would bring its own view back
        self.query_one(TabbedContent).active = view

    def on_tabbed_content_tab_activated(self) -> None:
        tabs = self.query_one(TabbedContent)
        first = tabs.get_pane(tabs.active).query("ChangesTree, DataTable, #question")
        if first:
            first.first().focus()
        self.look_again()

    async def action_leave(self) -> None:
        """Suspend the program until `fg`; meanwhile the person does not attend the desk."""
        # A thread that is suspended while it writes to the database would block all other processes.
        while any(worker.is_running for worker in self.workers):  # noqa: ASYNC110 - to wait for one raises its errors
            await asyncio.sleep(_SHORT_WAIT_S)
        self.presence.__exit__()
        self.action_suspend_process()
        self.presence.__enter__()

    @on(Driver.SignalResume)
    def draw_anew(self) -> None:
        """Draw everything again after `fg`: Textual draws only what changes."""
        self.refresh(layout=True)

    def on_click(self, event: object) -> None:
        widget = getattr(event, "widget", None)
        if isinstance(widget, Static) and widget.id == "bell":
            self.action_view(QUESTIONS)

    def action_keys(self) -> None:
        def is_theirs(active: ActiveBinding) -> bool:
            own = [base for base in type(active.node).__mro__ if base.__module__.startswith("fumehood.")]
            return all(active.binding not in base.__dict__.get("BINDINGS", ()) for base in own)

        keys: dict[str, list[str]] = {}
        # Our own keys first, then those of Textual's widgets.
        for active in sorted(self.screen.active_bindings.values(), key=is_theirs):
            if active.enabled and active.binding.description:
                keys.setdefault(active.binding.description, []).append(self.get_key_display(active.binding))
        self.push_screen(KeysScreen(keys))


class KeysScreen(ModalScreen[None]):
    """The list of keys."""

    DEFAULT_CSS = """
    KeysScreen { align: center middle; }
    KeysScreen VerticalScroll { width: 60; max-width: 95%; height: auto; max-height: 90%; border: round $primary;
                                padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "dismiss", "Back")]

    def __init__(self, keys: dict[str, list[str]]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            for said, keys in self._keys.items():
                yield Static(f"{' '.join(dict.fromkeys(keys)):>14}  {said}", markup=False)


def watch(
    store: Store, *, view: str = NOW, project: int | None = None, held: Callable[[], Sequence[Run]] | None = None
) -> None:
    """Show the views until the person leaves, who attends the desk meanwhile."""
    app = Views(store, view=view, project=project, held=held)
    with app.presence:
        app.run()
    if app.ended_by is not None:
        signal.raise_signal(app.ended_by)
