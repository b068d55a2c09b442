"""What ran and what it changed: the history, and a tree of changes beside the difference of one path."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static, Tree
from textual.widgets.tree import TreeNode

from fumehood.core import changes as c
from fumehood.core.questions import held_item
from fumehood.core.report import Run, path_in_list, printable
from fumehood.core.value import Value
from fumehood.core.wording import by_kind, fitted, listed, quoted
from fumehood.errors import BadRequest
from fumehood.faces.cli.run_text import SIGNS, STATES, absolute_path
from fumehood.faces.terminal.widgets import Acting, Lines, Pieces, both, shown
from fumehood.service import decide
from fumehood.service.differences import contents, difference_of
from fumehood.service.overview import Chosen, ReadRun, read_run, searched, shown_at
from fumehood.service.store import Store
from fumehood.store.search import Search

_Key = tuple[str, tuple[str, ...], bool]

_PAGE = 200  # changes of one run that are listed at first, and more each time
_COMMAND = 120  # columns of a command in the tree
_EXPANDED = 20  # changes of a run that is shown open
_RUNS = 100  # that are listed of the history at first
_MOST_PRINTED = 5000  # lines
_NAMED = ("path", "session", "state", "text")  # what can be looked for by name; other words are in the command
_HOW = "words of the command, path:src/a.py, session:NAME, state:held, text:PRINTED"
_DEEPEST = 50  # directories in each other that the tree has so; those below stand by their whole path


class Branch(Value):
    """What stands at one place of the tree: a run, a directory of it, or one change."""

    run: str
    paths: tuple[str, ...] = ()
    change: c.Change | None = None
    is_more: bool = False  # stands for what is not listed yet

    @property
    def key(self) -> _Key:
        """What it is recognised by when the tree is made anew."""
        return self.run, self.paths, self.is_more


class ChangesTree(Tree[Branch]):
    """Runs with their directories and paths."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False), Binding("k", "cursor_up", "Up", show=False),
        Binding("right,l", "open", "Open", show=False), Binding("left,h", "close", "Close", show=False),
    ]  # fmt: skip

    def __init__(self) -> None:
        super().__init__(Text(""), id="tree")
        self.show_root = False
        self.guide_depth = 2

    def action_open(self) -> None:
        if self.cursor_node is not None:
            self.cursor_node.expand()

    def action_close(self) -> None:
        """Hide what lies in it; of what is closed already, go to where it lies."""
        node = self.cursor_node
        if node is not None and node.allow_expand and node.is_expanded:
            node.collapse()
        elif node is not None and node.parent is not None and not node.parent.is_root:
            self.move_cursor(node.parent)


class ChangesView(Acting):
    """The tree, and beside it what is about the chosen place; keys accept, refuse, take back and bring back."""

    DEFAULT_CSS = """
    ChangesView { layout: vertical; height: 1fr; }
    ChangesView #tree { overflow-x: hidden; height: 2fr; border-bottom: solid $secondary; }
    ChangesView #difference { height: 3fr; }
    .-wide ChangesView { layout: horizontal; }
    .-wide ChangesView #tree { width: 2fr; height: 1fr; border-bottom: none; border-right: solid $secondary; }
    .-wide ChangesView #difference { width: 3fr; height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "settle('apply')", "Accept"),
        Binding("d", "settle('discard')", "Refuse"),
        Binding("f", "settle('force')", "Accept by force", show=False),
        Binding("A", "settle_run('apply')", "Accept run", show=False),
        Binding("D", "settle_run('discard')", "Refuse run", show=False),
        Binding("u", "take('undo')", "Undo"),
        Binding("r", "take('redo')", "Redo"),
    ]

    def __init__(self, store: Store, listed_runs: Callable[[], Sequence[Run]], *, only_waiting: bool) -> None:
        super().__init__(store)
        self._listed_runs = listed_runs
        self._only_waiting = only_waiting
        self._runs: dict[str, ReadRun] = {}
        self._most: dict[str, int] = {}
        self._versions: list[tuple[str, str, int]] | None = None
        self._versions_digest = ""  # of the two versions that are shown

    def compose(self) -> ComposeResult:
        yield ChangesTree()
        yield Pieces(id="difference")

    # ---- What is shown.

    def look(self) -> Callable[[], None] | None:
        """Read the runs as they are now, if anything happened to any of them."""
        runs = self._listed_runs()
        versions = [(run.run, shown_at(self.store, run), self._most.get(run.run, _PAGE)) for run in runs]
        if versions == self._versions:
            return None
        read = [
            read_run(self.store, run, only_waiting=self._only_waiting, most=self._most.get(run.run, _PAGE))
            for run in runs
        ]
        self._versions = versions
        return lambda: self._show_runs(read)

    def _show_runs(self, runs: Sequence[ReadRun]) -> None:
        """Make the tree anew; what was open and chosen stays so."""
        tree = self.query_one(ChangesTree)
        chosen, line = self._branch, tree.cursor_line
        opened = {node.data.key: node.is_expanded for node in _nodes(tree.root) if node.data is not None}
        tree.clear()
        self._runs = {each.run.run: each for each in runs}
        for each in runs:
            _add_run(tree.root, each, opened)
        if not runs:
            self.query_one(Pieces).show([shown("Nothing waits." if self._only_waiting else "It changed nothing.")])
            return
        nodes = list(_nodes(tree.root))
        same = next((node for node in nodes if chosen and node.data and node.data.key == chosen.key), None)
        last = tree.last_line  # now every place has its line
        # Where it is gone, the next one is in its line.
        tree.cursor_line = same.line if same is not None and same.line >= 0 else max(0, min(line, last))
        self._look()

    @property
    def _branch(self) -> Branch | None:
        node = self.query_one(ChangesTree).cursor_node
        return None if node is None else node.data

    def on_tree_node_highlighted(self, _event: Tree.NodeHighlighted[Branch]) -> None:
        self._look()

    def on_tree_node_selected(self, event: Tree.NodeSelected[Branch]) -> None:
        branch = event.node.data
        if branch is not None and branch.is_more:
            self._most[branch.run] = self._most.get(branch.run, _PAGE) + 5 * _PAGE
        elif branch is not None and branch.change is not None:
            self.query_one(Pieces).focus()

    def _look(self) -> None:
        branch = self._branch
        if branch is not None and branch.run in self._runs:
            self.run_worker(
                lambda: self._read_place(self._runs[branch.run], branch), thread=True, exclusive=True, group="look"
            )

    def _read_place(self, shown_run: ReadRun, branch: Branch) -> None:
        """Read what is about a place, in a thread."""
        about, text, digest = _about(self.store, shown_run, branch)
        self.app.call_from_thread(self._show_place, branch, about, text, digest)

    def _show_place(self, branch: Branch, about: list[Text], text: str, digest: str) -> None:
        if self.app.is_running and branch == self._branch:  # while the program ends, its parts go one by one
            self._versions_digest = digest
            self.query_one(Pieces).show_difference(about, text, can_mark=bool(digest))

    # ---- What a person does.

    def action_settle(self, act: str) -> None:
        """Accept or refuse what is chosen; of a file with marked pieces, these or the others."""
        branch = self._branch
        if branch is None or branch.is_more:
            return
        pieces = self.query_one(Pieces)
        if pieces.marked and branch.change is not None and act != "force":
            self._settle_pieces(branch, pieces.marked, pieces.count, act)
            return
        change = branch.change
        if act == "apply" and change is not None and change.verdict == c.CONFLICT:
            self.notify(
                "It was changed in the project after the run began. f takes the run's version and saves yours;"
                " d keeps yours.", markup=False,
            )  # fmt: skip
            return
        self._settle(branch, act)

    def action_settle_run(self, act: str) -> None:
        branch = self._branch
        if branch is not None:
            self._settle(Branch(run=branch.run), act)

    def _settle(self, branch: Branch, act: str) -> None:
        each = self._runs[branch.run]
        name = "discard" if act == "discard" else "apply"
        chosen = Chosen(act=name, paths=branch.paths, force=act == "force", seen=each.seen)
        if act == "discard" and branch.change is None:
            what = printable(branch.paths[0]) if branch.paths else "all that it holds"
            self.ask_first(f"Throw away {what}, of run #{each.run.number}?", lambda: self.act(each.run, chosen))
        else:
            self.act(each.run, chosen)

    def _settle_pieces(self, branch: Branch, marked: set[int], count: int, act: str) -> None:
        each = self._runs[branch.run]
        taken = marked if act == "apply" else set(range(count)) - marked
        if not taken:
            self._settle(branch, act)
            return
        left = count - len(taken)
        chosen = Chosen(act="hunks", paths=branch.paths, hunks=tuple(sorted(taken)), expected=self._versions_digest)
        if not left:
            self.act(each.run, chosen)
            return
        gone = "the other one is" if left == 1 else f"the other {left} are"
        question = f"Take {len(taken)} of {count} pieces? {gone[0].upper()}{gone[1:]} thrown away."
        self.ask_first(question, lambda: self.act(each.run, chosen))

    def action_take(self, act: str) -> None:
        """Take back the chosen path of a run, or all of it; or bring back what was taken back of the run."""
        branch = self._branch
        if branch is not None:
            each = self._runs[branch.run]
            # What was taken back of a run is brought back by the run alone, whatever came after it was shown.
            undo = Chosen(act=act, paths=branch.paths, seen=each.seen)
            self.act(each.run, undo if act == "undo" else Chosen(act=act))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        each = self._runs.get(self._branch.run) if self.is_mounted and self._branch else None
        if action in ("settle", "settle_run"):
            return each is not None and each.run.state == c.HELD
        if action == "take":
            return each is not None and not self._only_waiting
        return True


def _nodes(top: TreeNode[Branch]) -> list[TreeNode[Branch]]:
    nodes = []
    for node in top.children:
        nodes += [node, *_nodes(node)]
    return nodes


def _add_run(top: TreeNode[Branch], each: ReadRun, opened: dict[_Key, bool]) -> None:
    """Add a run, with a branch for each directory in which something lies."""
    run = each.run
    branch = Branch(run=run.run)
    label = Text.assemble(
        (f"#{run.number} ", "bold"), (f"{each.total} {run.state}  " if each.run.state == c.HELD else "", "yellow"),
        (f"{printable(os.path.basename(run.project))}  ", "dim"), shown(fitted(printable(run.command), _COMMAND)),
    )  # fmt: skip
    node = top.add(label, branch, expand=opened.get(branch.key, len(each.changes) <= _EXPANDED))
    directories: dict[str, TreeNode[Branch]] = {run.roots[0]: node} if run.roots else {}
    for change in sorted(each.changes, key=lambda one: (one.root, one.path)):
        place = absolute_path(run, change)
        parent, _, name = place.rpartition("/")
        if parent not in directories:
            below = parent.removeprefix(f"{run.roots[0]}/")
            inside = Branch(run=run.run, paths=(parent,))
            is_open = opened.get(inside.key, len(each.changes) <= _EXPANDED)
            directories[parent] = node.add(shown(f"{below}/", "bold"), inside, expand=is_open)
        leaf = Branch(run=run.run, paths=(place,), change=change)
        label = _label(change, name if change.path != "." else place)
        if change.kind == c.DIRECTORY and change.path.count("/") < _DEEPEST:
            is_open = opened.get(leaf.key, False)
            directories[place] = directories[parent].add(label, leaf, expand=is_open)
        else:
            directories[parent].add_leaf(label, leaf)
    if each.rest is not None:
        rest = each.total - len(each.changes)
        node.add_leaf(Text(f"… {rest} more: Enter lists some"), Branch(run=run.run, is_more=True))


def _label(change: c.Change, name: str) -> Text:
    sign, colour = SIGNS[change.change]
    label = Text.assemble((f"{sign} ", colour), shown(path_in_list(name) + ("/" if change.kind == c.DIRECTORY else "")))
    if change.verdict != c.APPLIED:
        label.append(f"  {change.verdict}", "red" if change.verdict == c.CONFLICT else "yellow")
    if change.reason:
        label.append_text(shown(f" {change.reason}", Style(dim=True)))
    return label


def _about(store: Store, each: ReadRun, branch: Branch) -> tuple[list[Text], str, str]:
    """Return what is said about a place, its difference, and the digest of both versions if pieces can be chosen."""
    run, change = each.run, branch.change
    if change is None:
        return _about_many(each, branch), "", ""
    lines = [Text.assemble((f"{change.verdict} ", "yellow"), change.change, " ", shown(quoted(change.path), "bold"))]
    if change.reason:
        lines.append(shown(quoted(change.reason)))
    if change.reason in each.rules:
        lines.append(shown(each.rules[change.reason], "cyan"))
    lines += [shown(f"flag: {flag}", "yellow") for flag in change.flags]
    is_waiting = each.run.state == c.HELD and change.verdict in c.WAITING
    if is_waiting:
        lines += _companions(run, branch.paths[0], change)
    try:
        difference = difference_of(store, run, change)
    except (BadRequest, OSError) as error:
        return [*lines, shown(f"its difference can't be shown: {error}", "red")], "", ""
    digest = ""
    can_choose = is_waiting and change.kind == c.FILE and change.change == c.MODIFIED and difference.shown
    if can_choose and not difference.binary:
        old, new = contents(store, run, change)
        digest = decide.versions_digest(run, change, old, new)
    return lines, difference.text, digest


def _about_many(each: ReadRun, branch: Branch) -> list[Text]:
    """Name what one key takes or throws away, what is dangerous first."""
    run = each.run
    lines = [Text.assemble((f"#{run.number} ", "bold"), f"{run.outcome}  ", shown(quoted(run.command), "bold"))]
    lines += [shown(f"in {run.cwd}")]
    lines += [shown(f"session {run.session}")] if run.session else []
    lines += [shown(quoted(run.reason), "yellow")] if run.reason else []
    lines += [shown(f"exit {run.exit_code}", "red")] if run.exit_code else []
    lines += [shown(blocked.line, "red") for blocked in run.blocked]
    if branch.is_more:
        return lines
    if each.run.state == c.HELD:
        items = [held_item(run, change) for change in decide.meant(run, branch.paths, here=run.project)]
        what = "this directory" if branch.paths else "the whole run"
        lines += [Text(""), Text(f"{what} holds {by_kind(items, are_all=True)}:")]
        lines += [shown(f"  {line}") for line in listed(items, seen_by=f"fumehood show {run.name}")]
    return lines


def _companions(run: Run, place: str, change: c.Change) -> list[Text]:
    """Name what can't stay behind when a change is applied, and so goes with it."""
    inside = f"{change.path}/"
    others = [
        each for each in decide.meant(run, [place], here=run.project)
        if each.root != change.root or (each.path != change.path and not each.path.startswith(inside))
    ]  # fmt: skip
    if not others:
        return []
    items = [held_item(run, each) for each in others]
    return [Text("accepting it also accepts:"), *(shown(f"  {line}") for line in listed(items))]


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
        Binding("u", "take('undo')", "Undo"),
        Binding("r", "take('redo')", "Redo"),
        Binding("o", "output", "Output"),
        Binding("escape", "leave", "Leave the search", show=False),
    ]

    def __init__(self, store: Store, project: int | None) -> None:
        super().__init__(store)
        self._project = project
        self._line = ""
        self._most = _RUNS
        self._shown: tuple[str, int, int] | None = None  # the search, how many, and the last event
        self._runs: dict[str, Run] = {}

    def compose(self) -> ComposeResult:
        yield Input(placeholder=_HOW, id="search", compact=True)
        yield DataTable(cursor_type="row", id="history")

    def on_mount(self) -> None:
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
        runs, later = searched(self.store, what, most=self._most)
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
        self.query_one(Input).focus()

    def action_leave(self) -> None:
        self._table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._line, self._most = event.value, _RUNS

    def on_input_submitted(self) -> None:
        self._table.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.row_key.value == "more":
            self._most += 5 * _RUNS
        elif self._run is not None:
            self.app.push_screen(RunScreen(self.store, self._run))

    def action_take(self, act: str) -> None:
        if self._run is not None:
            self.act(self._run, Chosen(act=act))

    def action_output(self) -> None:
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
        yield Static(f"#{self._run.number}  {quoted(self._run.command, 200)}", markup=False, id="title")
        yield ChangesView(self._store, lambda: [self._store.history.find(self._run.run)], only_waiting=False)
        yield Footer(show_command_palette=False)

    def action_output(self) -> None:
        self.app.push_screen(OutputScreen(self._store.history.find(self._run.run)))


class OutputScreen(Screen[None]):
    """What a run printed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,o", "app.pop_screen", "Back", key_display="esc")]

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def compose(self) -> ComposeResult:
        yield Lines(id="output")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        outputs = (text.encode(errors="replace") for text in (self._run.stdout, self._run.stderr))
        self.query_one(Lines).show(both(outputs, _MOST_PRINTED))
        self.query_one(Lines).focus()
