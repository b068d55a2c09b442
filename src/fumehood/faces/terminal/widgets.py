"""The parts of the views: text that scrolls, a list of hunks, safe text, and acts in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar

from rich.ansi import AnsiDecoder
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from fumehood.core.report import Run, printable
from fumehood.errors import FumehoodError, as_fumehood_error
from fumehood.faces.cli.run_text import headline
from fumehood.faces.cli.screen import Filter
from fumehood.service import overview
from fumehood.service.opened import upkeep
from fumehood.service.overview import ChosenAct
from fumehood.service.store import Store

_TAB_WIDTH = 8
_MAX_LINE = 4000  # characters of a line that are shown
_SIGNS = {"+": Style(color="green"), "-": Style(color="red"), "@": Style(color="cyan"), "\\": Style(dim=True)}
_HEADER_STARTS = ("+++ ", "--- ", "diff ")
_BOLD, _CHOSEN_STYLE = Style(bold=True), Style(reverse=True)


def safe_text(text: str, style: Style | str = "") -> Text:
    """Return foreign text so that nothing in it is markup or acts on the terminal; tabs become spaces."""
    safe = "\t".join(printable(part) for part in text[:_MAX_LINE].split("\t")).expandtabs(_TAB_WIDTH)
    return Text(safe + ("…" if len(text) > _MAX_LINE else ""), style=style, no_wrap=True, end="")


def output_lines(data: bytes, most: int) -> list[Text]:
    """Return the last lines of a command's output with its colours, but without any other sequence."""
    harmless = Filter().feed(data).decode("utf-8", "replace").replace("\b", "").replace("\a", "")
    decode = AnsiDecoder()
    lines = harmless.replace("\r\n", "\n").removesuffix("\n").split("\n")[-most:] if harmless else []
    # Filtered once more: cutting a line may have cut a sequence, which the terminal would try to complete.
    decoded = [decode.decode_line(Filter().feed(line[:_MAX_LINE].encode()).decode()) for line in lines]
    for line in decoded:
        line.expand_tabs(_TAB_WIDTH)
    return decoded


def both_outputs(outputs: Iterable[bytes], most: int) -> list[Text]:
    """Return the lines of both outputs of a command, standard output first."""
    stdout, stderr = outputs
    lines = output_lines(stdout, most)
    if stderr:
        lines += [*([Text("── standard error", "dim")] if lines else []), *output_lines(stderr, most)]
    return lines or [Text("It has printed nothing.", "dim")]


class TextView(ScrollView, can_focus=True):
    """Text that scrolls, wrapped at the width of the window."""

    # If the scroll bar appeared later, it would cover the last character of each line.
    DEFAULT_CSS = """
    TextView { background: $surface; scrollbar-gutter: stable; }
    TextView:focus { background-tint: $foreground 3%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "Scroll down", show=False), Binding("k", "scroll_up", "Scroll up", show=False),
    ]  # fmt: skip

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id)
        self._lines: Sequence[Text] = ()
        self._rows: list[tuple[int, Strip]] = []  # for each row on the screen, the number of its line, and its content

    @property
    def text(self) -> str:
        """The whole text, without styles."""
        return "\n".join(line.plain for line in self._lines)

    def show(self, lines: Sequence[Text], *, at_end: bool = False) -> None:
        """Show other lines; with `at_end`, stay at the end if the end is in sight now."""
        was_at_end = self.is_vertical_scroll_end
        self._lines = lines
        self._wrap_lines()
        if not at_end:
            self.scroll_to(0, 0, animate=False)
        elif was_at_end:
            self.scroll_end(animate=False, immediate=True)

    def on_resize(self, _event: events.Resize) -> None:
        self._wrap_lines()

    def _wrap_lines(self) -> None:
        width = max(self.scrollable_content_region.width, 20)
        console = self.app.console
        self._rows = []
        for number, line in enumerate(self._lines):
            strip = Strip(Segment.apply_style(line.render(console), console.get_style(line.style)))
            cuts = [*range(width, strip.cell_length, width), strip.cell_length]
            self._rows += [(number, each) for each in (strip.divide(cuts) if strip.cell_length else [strip])]
        self.virtual_size = Size(width, len(self._rows))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return one row of the window; Textual calls this."""
        row = self.scroll_offset.y + y
        if row >= len(self._rows):
            return Strip.blank(self.size.width, self.rich_style)
        number, strip = self._rows[row]
        strip = strip.extend_cell_length(self.size.width)
        return strip.apply_style(self.rich_style + self._line_style(number))

    def _line_style(self, _line: int) -> Style:
        return Style()


class HunkList(TextView):
    """A difference below some header lines; if parts of it can be applied, its hunks ("pieces") can be marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "go(1)", "Next piece"), Binding("p", "go(-1)", "Previous piece", show=False),
        Binding("space", "mark", "Mark piece"),
    ]  # fmt: skip

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.marked: set[int] = set()
        self.count = 0  # hunks that can be marked
        self._header: list[Text] = []
        self._difference = ""
        self._starts: list[int] = []  # line numbers where hunks begin
        self._at = 0

    def show_difference(self, about: Iterable[Text], text: str, *, can_mark: bool) -> None:
        """Show another difference, with no hunk marked."""
        self._header, self._difference, self._at = list(about), text, 0
        self.marked = set()
        self.count = sum(line.startswith("@@") for line in text.split("\n")) if can_mark else 0
        self.show(self._build_lines())

    def _build_lines(self) -> list[Text]:
        lines = list(self._header)
        self._starts = []
        for line in self._difference.split("\n")[:-1]:
            style = _BOLD if line.startswith(_HEADER_STARTS) and not self._starts else _SIGNS.get(line[:1], "")
            written = safe_text(line, style)
            if line.startswith("@@"):
                number = len(self._starts)
                self._starts.append(len(lines))
                if self.count:
                    mark = "[x] " if number in self.marked else "[ ] "
                    written = safe_text(f"{mark}piece {number + 1} of {self.count}  {line}", style)
            lines.append(written)
        return lines

    def _line_style(self, line: int) -> Style:
        is_here = self.has_focus and self.count and line == self._starts[self._at]
        return _CHOSEN_STYLE if is_here else Style()

    def on_focus(self) -> None:
        self.refresh()

    def action_go(self, by: int) -> None:
        if self._starts:
            self._at = min(max(self._at + by, 0), len(self._starts) - 1)
            line = self._starts[self._at]
            row = next((row for row, (number, _) in enumerate(self._rows) if number == line), 0)
            self.scroll_to(0, row, animate=False)
            self.refresh()

    def action_mark(self) -> None:
        if not self.count:
            self.notify("This can only be taken or refused as a whole.", markup=False)
            return
        self.marked ^= {self._at}
        top = self.scroll_offset.y
        self.show(self._build_lines(), at_end=True)
        self.scroll_to(0, top, animate=False)

    def on_click(self, event: events.Click) -> None:
        row = self.scroll_offset.y + event.y
        line = self._rows[row][0] if row < len(self._rows) else -1
        if self.count and line in self._starts:
            self._at = self._starts.index(line)
            self.action_mark()


# ---- Acts.

class AskFirst(ModalScreen[bool]):
    """A question with yes and no, before something that can't be undone."""

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
        with Vertical():
            yield Static(printable(self._question), markup=False)
            yield Static("\\[y] yes   \\[n] no", classes="keys")


class ActingView(Container):
    """A view with acts on runs."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def read_news(self) -> Callable[[], None] | None:
        """Read the content of the view, in a thread; returns a function that shows it, or None if nothing is new."""
        raise NotImplementedError

    def ask_first(self, question: str, act: Callable[[], None]) -> None:
        """Ask, and call `act` if the person says yes."""
        self.app.push_screen(AskFirst(question), lambda is_yes: act() if is_yes else None)

    def act(self, run: Run, chosen: ChosenAct) -> None:
        """Perform an act on a run, in a thread, because it may wait for a lock."""

        def work() -> None:
            try:
                done = overview.perform(self.store, self.store.history.find(run.run), chosen)
            except (FumehoodError, OSError) as error:
                plain = as_fumehood_error(error)
                text = "\n".join(printable(part) for part in (plain.message, plain.hint) if part)
                tell = partial(self.notify, text, severity="error", markup=False, timeout=10)
                self.app.call_from_thread(tell)
                return
            said = headline(done) if done.changed else f"it is {done.outcome}"
            self.app.call_from_thread(partial(self.notify, f"#{done.number}: {said}", markup=False))
            upkeep(self.store, self.store.history.project_of(done.run))

        self.run_worker(work, thread=True, group="acts")
