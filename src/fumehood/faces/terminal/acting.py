"""What every view can do: ask first, act in a thread, and say what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from fumehood.core.report import printable
from fumehood.errors import FumehoodError, plain_error
from fumehood.faces.cli.look import headline
from fumehood.service import acts
from fumehood.service.acts import Chosen
from fumehood.service.undo import to_redo
from fumehood.service.upkeep import upkeep

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from fumehood.core.report import Run
    from fumehood.service.store import Store


class AskFirst(ModalScreen[bool]):
    """One question with a yes and a no, before something that can't be taken back."""

    DEFAULT_CSS = """
    AskFirst { align: center middle; }
    AskFirst Vertical { width: 64; max-width: 90%; height: auto; border: heavy $warning; padding: 0 1;
                        background: $surface; }
    AskFirst Static { width: 1fr; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"), Binding("n,escape,q", "dismiss(False)", "No"),
    ]  # fmt: skip

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question, and the keys that answer it."""
        with Vertical():
            yield Static(printable(self._question), markup=False)
            yield Static("\\[y] yes   \\[n] no", classes="keys")


class Acting(Container):
    """A view that acts on runs."""

    store: Store

    def ask_first(self, question: str, act: Callable[[], None]) -> None:
        """Do something once the person says yes."""
        self.app.push_screen(AskFirst(question), lambda is_yes: act() if is_yes else None)

    def act(self, run: Run, chosen: Chosen) -> None:
        """Do something to a run, in a thread, for it may wait for a lock."""
        self._in_thread(lambda: acts.perform(self.store, self.store.history.find(run.run), chosen))

    def redo(self, run: Run) -> None:
        """Bring back what was taken back of a run."""

        def bring_back() -> Run:
            return acts.perform(self.store, to_redo(self.store, run.run), Chosen(act="redo"))

        self._in_thread(bring_back)

    def _in_thread(self, perform: Callable[[], Run]) -> None:
        def work() -> None:
            try:
                done = perform()
            except (FumehoodError, OSError) as error:
                self.app.call_from_thread(self._tell_error, plain_error(error))
                return
            self.app.call_from_thread(self._tell, done)
            upkeep(self.store, self.store.history.project_of(done.run))

        self.run_worker(work, thread=True, group="acts")

    def _tell(self, done: Run) -> None:
        said = headline(done) if done.found else f"it is {done.outcome}"
        self.notify(f"#{done.number}: {said}", markup=False)

    def _tell_error(self, error: FumehoodError) -> None:
        text = f"{printable(error.message)}\n{printable(error.hint)}" if error.hint else printable(error.message)
        self.notify(text, severity="error", markup=False, timeout=10)
