"""The whole of it: four views, a line that tells of questions, and what looks for what is new."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import constants, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.driver import Driver
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Footer, Static, Tab, TabbedContent, TabPane

from fumehood.core.report import Run, printable
from fumehood.core.wording import quoted
from fumehood.errors import FumehoodError, plain_error
from fumehood.faces.terminal.changes import ChangesView
from fumehood.faces.terminal.views import HistoryView, QuestionsView, RunningView, RunScreen
from fumehood.faces.terminal.widgets import Acting
from fumehood.service import overview
from fumehood.service.desk import Desk, OpenQuestion
from fumehood.service.store import Store
from fumehood.store.history import Reach

NOW, QUESTIONS, WAITING, HISTORY = VIEWS = ("now", "questions", "waiting", "past")
_NAMES = {NOW: "Now", QUESTIONS: "Questions", WAITING: "Waiting", HISTORY: "History"}
_EVERY_S = 0.5
_MOMENT_S = 0.02
_MOST_HELD = 100  # runs that are listed
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Views(App[None]):
    """What a person watches and does at a terminal."""

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
        """`project` limits what runs and the history; `held` returns the runs to be reviewed, else all that wait."""
        super().__init__()
        self.store = store
        self.desk = Desk(store.places)
        self.presence = self.desk.attend()
        self._first, self._project = view, project
        self._held = held or (lambda: overview.waiting(store, most=_MOST_HELD)[0])
        self._count_held: Callable[[], int] = lambda: overview.count_waiting(store) if held is None else len(held())
        self._asked: tuple[str, ...] = ()
        self._is_looking = False
        self.looks = 0  # how often what is new was shown
        self.ended_by: signal.Signals | None = None
        if self.console.color_system != "truecolor" and not constants.DEFAULT_THEME.startswith("ansi"):
            self.theme = "ansi-dark"  # the terminal's own colours: ours would be guessed, and hard to read

    def compose(self) -> ComposeResult:
        """The line about questions, the views, and the keys."""
        yield Static("", markup=False, id="bell")
        views = (
            RunningView(self.store, Reach(project=self._project)), QuestionsView(self.store, self.desk),
            ChangesView(self.store, self._held, only_waiting=True), HistoryView(self.store, self._project),
        )  # fmt: skip
        with TabbedContent(initial=self._first):
            for number, (name, view) in enumerate(zip(VIEWS, views, strict=True), 1):
                with TabPane(f"{number} {_NAMES[name]}", id=name):
                    yield view
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Look for what is new, from now on; a signal that asks for the end gets the terminal back as it was."""
        self.set_interval(_EVERY_S, self.look_again)
        if threading.current_thread() is threading.main_thread():
            for number in _ENDS:
                asyncio.get_running_loop().add_signal_handler(number, self._end_by, number)

    def _end_by(self, number: signal.Signals) -> None:
        self.ended_by = number
        self.exit()

    def on_resize(self, event: Resize) -> None:
        """Draw for another size of the window at once.

        Textual does so by a timer of 8 ms, and gives that up where it comes late on a busy machine: the size would
        stay as it was, for good.
        """
        if self.screen_stack:
            self.screen.post_message(Resize(event.size, event.virtual_size))

    # ---- What is new.

    def look_again(self) -> None:
        """Look in a thread, unless one still does, or not everything is in its place yet, or no more."""
        if not self.screen_stack:
            return  # the program has ended, and a timer rang late
        tabs = self.screen_stack[0].query(Tab)
        if self._is_looking or len(tabs) != len(VIEWS) or not all(tab.is_mounted for tab in tabs):
            return
        view = self.in_sight
        if view is not None:
            self._is_looking = True
            self.run_worker(lambda: self._look(view), thread=True, group="news")

    @property
    def in_sight(self) -> Acting | None:
        """The view that the person is at; None while that is being made."""
        tabs = self.screen_stack[0].query_one(TabbedContent)
        place = self.screen if isinstance(self.screen, RunScreen) else tabs.get_pane(tabs.active)
        return next(iter(place.query(Acting)), None)

    def _look(self, view: Acting) -> None:
        try:
            self.store.recover()
            asked, waiting = self.desk.waiting(), self._count_held()
            show = view.look()
        except (FumehoodError, OSError) as error:
            # The records can't be read now, perhaps for want of room: it is said, and tried again.
            message = printable(plain_error(error).message)
            self.call_from_thread(partial(self.notify, message, severity="error", markup=False))
            return
        finally:
            self._is_looking = False
        self.call_from_thread(self._show_news, asked, waiting, show)

    def _show_news(self, asked: list[OpenQuestion], waiting: int, show: Callable[[], None] | None) -> None:
        if not self.is_running:
            return  # the program ends, and what this would be shown in goes piece by piece
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
            line.update(f"! {quoted(asked[0].question.text, 200)}" if asked else "")
            line.set_class(bool(asked), "-asked")

    # ---- Keys.

    def action_view(self, view: str) -> None:
        """Go to a view."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.set_focus(None)  # what has it is hidden now, and would bring its own view back
        self.query_one(TabbedContent).active = view

    def on_tabbed_content_tab_activated(self) -> None:
        """Have the keys go to the view that is shown."""
        tabs = self.query_one(TabbedContent)
        first = tabs.get_pane(tabs.active).query("ChangesTree, DataTable, #question")
        if first:
            first.first().focus()
        self.look_again()

    async def action_leave(self) -> None:
        """Stop until the shell goes on with it; meanwhile nobody is at the desk."""
        # A thread that stopped while it writes the records would keep everybody else waiting.
        while any(worker.is_running for worker in self.workers):  # noqa: ASYNC110 - to wait for one raises its errors
            await asyncio.sleep(_MOMENT_S)
        self.presence.__exit__()
        self.action_suspend_process()
        self.presence.__enter__()

    @on(Driver.SignalResume)
    def draw_anew(self) -> None:
        """Draw everything when the shell has gone on with it: Textual does so where something changes."""
        self.refresh(layout=True)

    def on_click(self, event: object) -> None:
        """Go to the questions where the line about them is clicked."""
        widget = getattr(event, "widget", None)
        if isinstance(widget, Static) and widget.id == "bell":
            self.action_view(QUESTIONS)

    def action_keys(self) -> None:
        """List the keys that do something here."""
        keys: dict[str, list[str]] = {}
        # Ours first, then those that every list and text has.
        active_keys = self.screen.active_bindings.values()
        for active in sorted(active_keys, key=lambda each: each.binding not in _ours(type(each.node))):
            if active.enabled and active.binding.description:
                keys.setdefault(active.binding.description, []).append(self.get_key_display(active.binding))
        self.push_screen(KeysScreen(keys))


def _ours(kind: type) -> list[Binding]:
    own = [base for base in kind.__mro__ if base.__module__.startswith("fumehood.")]
    return [binding for base in own for binding in base.__dict__.get("BINDINGS", ())]


class KeysScreen(ModalScreen[None]):
    """The keys, and what each does."""

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
        """One line a key."""
        with VerticalScroll():
            for said, keys in self._keys.items():
                yield Static(f"{' '.join(dict.fromkeys(keys)):>14}  {said}", markup=False)


def watch(
    store: Store, *, view: str = NOW, project: int | None = None, held: Callable[[], Sequence[Run]] | None = None
) -> None:
    """Show the views until the person leaves; whoever sees them is at the desk."""
    app = Views(store, view=view, project=project, held=held)
    with app.presence:
        app.run()
    if app.ended_by is not None:
        signal.raise_signal(app.ended_by)
