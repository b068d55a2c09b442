"""What is asked now, with exactly the answers that each question allows, and what found nobody."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Button

from fumehood.core.questions import question_lines
from fumehood.core.report import printable
from fumehood.faces.cli.prompt import KEYS
from fumehood.faces.terminal.acting import Acting
from fumehood.faces.terminal.lines import Lines, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from fumehood.service.desk import Desk, OpenQuestion
    from fumehood.service.store import Store
    from fumehood.store.audit import Missed

# As the prompt has them, but for q, which leaves here.
_KEYS = {answer: ("Q" if key == "q" else key, said) for answer, (key, said) in KEYS.items()}
_NOT_YET_S = 0.5  # a key so soon after a question came was meant for what was there before


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

    def look(self) -> Callable[[], None]:
        """Read what is asked, and what was."""
        waiting, missed = self._desk.waiting(), self.store.grants.missed()
        return lambda: self._show(waiting, missed)

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
    lines = [Text("Asked while nobody was there (x forgets the first):", "bold")]
    for each in missed:
        lines.append(shown(f"{_clock(each.at)}  {printable(each.text)}  in {printable(each.directory)}"))
        lines += [shown(f"    for the next time: {each.ahead}", "cyan")] if each.ahead else []
    return lines


def _clock(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at))
