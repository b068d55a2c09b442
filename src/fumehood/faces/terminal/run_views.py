"""The views of runs and their changes: the history, and a tree of changes beside the difference of one path."""

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
from fumehood.core.wording import counts_in_words, fit_columns, item_lines, quote
from fumehood.errors import BadRequest
from fumehood.faces.cli.run_text import SIGNS, STATES, absolute_path
from fumehood.faces.terminal.widgets import ActingView, HunkList, TextView, both_outputs, safe_text
from fumehood.service import decide
from fumehood.service.differences import difference_of
from fumehood.service.overview import ChosenAct, ReadRun, read_run, search_runs, state_id
from fumehood.service.store import Store
from fumehood.service.versions import contents
from fumehood.store.search import Search

_BranchKey = tuple[str, tuple[str, ...], bool]

_FIRST_CHANGES = 200  # of one run that are listed at first
_COMMAND_WIDTH = 120  # columns of a command in the tree
_MAX_EXPANDED = 20  # a run with more changes is shown collapsed
_FIRST_RUNS = 100  # of the history that are listed at first
_MAX_OUTPUT_LINES = 5000  # lines
_SEARCH_FIELDS = ("path", "session", "state", "text")  # searched by FIELD:VALUE; other words are searched in commands
_SEARCH_HELP = "words of the command, path:src/a.py, session:NAME, state:held, text:PRINTED"
_MAX_DEPTH = 50  # nested directories in the tree; deeper ones are shown with their whole path


class Branch(Value):
    """What a node of the tree stands for: a run, a directory in it, or one change."""

    run: str
    paths: tuple[str, ...] = ()
    change: c.Change | None = None
    is_more: bool = False  # stands for the changes that are not listed yet

    @property
    def key(self) -> _BranchKey:
        """What identifies it when the tree is built again."""
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
        """Collapse the node; if it is collapsed already, go to its parent."""
        node = self.cursor_node
        if node is not None and node.allow_expand and node.is_expanded:
            node.collapse()
        elif node is not None and node.parent is not None and not node.parent.is_root:
            self.move_cursor(node.parent)


class ChangesView(ActingView):
    """The tree, and beside it the details of the chosen node; keys accept, refuse, undo and redo."""

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
        yield HunkList(id="difference")

    # ---- What is shown.

    def read_news(self) -> Callable[[], None] | None:
        """Read the runs, if any of them has changed."""
        runs = self._listed_runs()
        versions = [(run.run, state_id(self.store, run), self._most.get(run.run, _FIRST_CHANGES)) for run in runs]
        if versions == self._versions:
            return None
        read = [
            read_run(self.store, run, only_waiting=self._only_waiting, limit=self._most.get(run.run, _FIRST_CHANGES))
            for run in runs
        ]
        self._versions = versions
        return lambda: self._show_runs(read)

    def _show_runs(self, runs: Sequence[ReadRun]) -> None:
        """Build the tree again; what was open and chosen stays so."""
        tree = self.query_one(ChangesTree)
        chosen, line = self._branch, tree.cursor_line
        opened = {node.data.key: node.is_expanded for node in _all_nodes(tree.root) if node.data is not None}
        tree.clear()
        self._runs = {each.run.run: each for each in runs}
        for each in runs:
            _add_run(tree.root, each, opened)
        if not runs:
            text = "Nothing waits." if self._only_waiting else "It changed nothing."
            self.query_one(HunkList).show([safe_text(text)])
            return
        nodes = list(_all_nodes(tree.root))
        same = next((node for node in nodes if chosen and node.data and node.data.key == chosen.key), None)
        last = tree.last_line  # this also gives every node its line
        # If the chosen node is gone, choose the one that is now on its line.
        tree.cursor_line = same.line if same is not None and same.line >= 0 else max(0, min(line, last))
        self._load_branch()

    @property
    def _branch(self) -> Branch | None:
        node = self.query_one(ChangesTree).cursor_node
        return None if node is None else node.data

    def on_tree_node_highlighted(self, _event: Tree.NodeHighlighted[Branch]) -> None:
        self._load_branch()

    def on_tree_node_selected(self, event: Tree.NodeSelected[Branch]) -> None:
        branch = event.node.data
        if branch is not None and branch.is_more:
            self._most[branch.run] = self._most.get(branch.run, _FIRST_CHANGES) + 5 * _FIRST_CHANGES
        elif branch is not None and branch.change is not None:
            self.query_one(HunkList).focus()

    def _load_branch(self) -> None:
        branch = self._branch
        if branch is not None and branch.run in self._runs:
            self.run_worker(
                lambda: self._read_branch(self._runs[branch.run], branch), thread=True, exclusive=True, group="look"
            )

    def _read_branch(self, shown_run: ReadRun, branch: Branch) -> None:
        """Read the details of a node, in a thread."""
        about, text, digest = _describe_branch(self.store, shown_run, branch)
        self.app.call_from_thread(self._show_branch, branch, about, text, digest)

    def _show_branch(self, branch: Branch, about: list[Text], text: str, digest: str) -> None:
        if self.app.is_running and branch == self._branch:  # when the program ends, the widgets may be gone
            self._versions_digest = digest
            self.query_one(HunkList).show_difference(about, text, can_mark=bool(digest))

    # ---- What a person does.

    def action_settle(self, act: str) -> None:
        """Accept or refuse the chosen node; if hunks are marked, accept only these, or only the others."""
        branch = self._branch
        if branch is None or branch.is_more:
            return
        pieces = self.query_one(HunkList)
        if pieces.marked and branch.change is not None and act != "force":
            self._decide_hunks(branch, pieces.marked, pieces.count, act)
            return
        change = branch.change
        if act == "apply" and change is not None and change.verdict == c.CONFLICT:
            self.notify(
                "It was changed in the project after the run began. f takes the run's version and saves yours;"
                " d keeps yours.", markup=False,
            )  # fmt: skip
            return
        self._decide(branch, act)

    def action_settle_run(self, act: str) -> None:
        branch = self._branch
        if branch is not None:
            self._decide(Branch(run=branch.run), act)

    def _decide(self, branch: Branch, act: str) -> None:
        each = self._runs[branch.run]
        name = "discard" if act == "discard" else "apply"
        chosen = ChosenAct(act=name, paths=branch.paths, force=act == "force", seen=each.seen)
        if act == "discard" and branch.change is None:
            what = printable(branch.paths[0]) if branch.paths else "all that it holds"
            self.ask_first(f"Throw away {what}, of run #{each.run.number}?", lambda: self.act(each.run, chosen))
        else:
            self.act(each.run, chosen)

    def _decide_hunks(self, branch: Branch, marked: set[int], count: int, act: str) -> None:
        each = self._runs[branch.run]
        taken = marked if act == "apply" else set(range(count)) - marked
        if not taken:
            self._decide(branch, act)
            return
        left = count - len(taken)
        chosen = ChosenAct(act="hunks", paths=branch.paths, hunks=tuple(sorted(taken)), expected=self._versions_digest)
        if not left:
            self.act(each.run, chosen)
            return
        gone = "the other one is" if left == 1 else f"the other {left} are"
        question = f"Take {len(taken)} of {count} pieces? {gone[0].upper()}{gone[1:]} thrown away."
        self.ask_first(question, lambda: self.act(each.run, chosen))

    def action_take(self, act: str) -> None:
        """Undo the chosen path of a run, or the whole run; or redo what was undone of the run."""
        branch = self._branch
        if branch is not None:
            each = self._runs[branch.run]
            # Redo needs only the run, whatever has happened since it was shown.
            undo = ChosenAct(act=act, paths=branch.paths, seen=each.seen)
            self.act(each.run, undo if act == "undo" else ChosenAct(act=act))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        each = self._runs.get(self._branch.run) if self.is_mounted and self._branch else None
        if action in ("settle", "settle_run"):
            return each is not None and each.run.state == c.HELD
        if action == "take":
            return each is not None and not self._only_waiting
        return True


def _all_nodes(top: TreeNode[Branch]) -> list[TreeNode[Branch]]:
    nodes = []
    for node in top.children:
        nodes += [node, *_all_nodes(node)]
    return nodes


def _add_run(top: TreeNode[Branch], each: ReadRun, opened: dict[_BranchKey, bool]) -> None:
    """Add a run to the tree, with a node for each directory that has changes."""
    run = each.run
    branch = Branch(run=run.run)
    label = Text.assemble(
        (f"#{run.number} ", "bold"), (f"{each.total} {run.state}  " if each.run.state == c.HELD else "", "yellow"),
        (f"{printable(os.path.basename(run.project))}  ", "dim"),
        safe_text(fit_columns(printable(run.command), _COMMAND_WIDTH)),
    )  # fmt: skip
    node = top.add(label, branch, expand=opened.get(branch.key, len(each.changes) <= _MAX_EXPANDED))
    directories: dict[str, TreeNode[Branch]] = {run.roots[0]: node} if run.roots else {}
    for change in sorted(each.changes, key=lambda one: (one.root, one.path)):
        place = absolute_path(run, change)
        parent, _, name = place.rpartition("/")
        if parent not in directories:
            below = parent.removeprefix(f"{run.roots[0]}/")
            inside = Branch(run=run.run, paths=(parent,))
            is_open = opened.get(inside.key, len(each.changes) <= _MAX_EXPANDED)
            directories[parent] = node.add(safe_text(f"{below}/", "bold"), inside, expand=is_open)
        leaf = Branch(run=run.run, paths=(place,), change=change)
        label = _label(change, name if change.path != "." else place)
        if change.kind == c.DIRECTORY and change.path.count("/") < _MAX_DEPTH:
            is_open = opened.get(leaf.key, False)
            directories[place] = directories[parent].add(label, leaf, expand=is_open)
        else:
            directories[parent].add_leaf(label, leaf)
    if each.next_page is not None:
        rest = each.total - len(each.changes)
        node.add_leaf(Text(f"… {rest} more: Enter lists some"), Branch(run=run.run, is_more=True))


def _label(change: c.Change, name: str) -> Text:
    sign, colour = SIGNS[change.change]
    slash = "/" if change.kind == c.DIRECTORY else ""
    label = Text.assemble((f"{sign} ", colour), safe_text(path_in_list(name) + slash))
    if change.verdict != c.APPLIED:
        label.append(f"  {change.verdict}", "red" if change.verdict == c.CONFLICT else "yellow")
    if change.reason:
        label.append_text(safe_text(f" {change.reason}", Style(dim=True)))
    return label


def _describe_branch(store: Store, each: ReadRun, branch: Branch) -> tuple[list[Text], str, str]:
    """Return lines about a branch, its difference, and the digest of both versions if hunks can be chosen."""
    run, change = each.run, branch.change
    if change is None:
        return _describe_group(each, branch), "", ""
    name = safe_text(quote(change.path), "bold")
    lines = [Text.assemble((f"{change.verdict} ", "yellow"), change.change, " ", name)]
    if change.reason:
        lines.append(safe_text(quote(change.reason)))
    if change.reason in each.rule_lines:
        lines.append(safe_text(each.rule_lines[change.reason], "cyan"))
    lines += [safe_text(f"flag: {flag}", "yellow") for flag in change.flags]
    is_waiting = each.run.state == c.HELD and change.verdict in c.WAITING
    if is_waiting:
        lines += _companion_lines(run, branch.paths[0], change)
    try:
        difference = difference_of(store, run, change)
    except (BadRequest, OSError) as error:
        return [*lines, safe_text(f"its difference can't be shown: {error}", "red")], "", ""
    digest = ""
    can_choose = is_waiting and change.kind == c.FILE and change.change == c.MODIFIED and difference.shown
    if can_choose and not difference.binary:
        old, new = contents(store, run, change)
        digest = decide.versions_digest(run, change, old, new)
    return lines, difference.text, digest


def _describe_group(each: ReadRun, branch: Branch) -> list[Text]:
    """Return lines about a run or directory: what one key accepts or throws away, the dangerous first."""
    run = each.run
    lines = [Text.assemble((f"#{run.number} ", "bold"), f"{run.outcome}  ", safe_text(quote(run.command), "bold"))]
    lines += [safe_text(f"in {run.cwd}")]
    lines += [safe_text(f"session {run.session}")] if run.session else []
    lines += [safe_text(quote(run.reason), "yellow")] if run.reason else []
    lines += [safe_text(f"exit {run.exit_code}", "red")] if run.exit_code else []
    lines += [safe_text(blocked.line, "red") for blocked in run.blocked]
    if branch.is_more:
        return lines
    if each.run.state == c.HELD:
        items = [held_item(run, change) for change in decide.held_changes_at(run, branch.paths, here=run.project)]
        what = "this directory" if branch.paths else "the whole run"
        lines += [Text(""), Text(f"{what} holds {counts_in_words(items, are_all=True)}:")]
        lines += [safe_text(f"  {line}") for line in item_lines(items, seen_by=f"fumehood show {run.name}")]
    return lines


def _companion_lines(run: Run, place: str, change: c.Change) -> list[Text]:
    """Name the changes that this one needs, and that are therefore applied with it."""
    inside = f"{change.path}/"
    others = [
        each for each in decide.held_changes_at(run, [place], here=run.project)
        if each.root != change.root or (each.path != change.path and not each.path.startswith(inside))
    ]  # fmt: skip
    if not others:
        return []
    items = [held_item(run, each) for each in others]
    return [Text("accepting it also accepts:"), *(safe_text(f"  {line}") for line in item_lines(items))]


# ---- The history.

def parse_search(line: str) -> Search:
    """Parse the text of the search field."""
    what, words = Search(), []
    for word in line.split():
        name, colon, value = word.partition(":")
        if colon and name in _SEARCH_FIELDS:
            what = what.replace(**{name: value})
        else:
            words.append(word)
    return what.replace(words=" ".join(words))


class HistoryView(ActingView):
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
        self._most = _FIRST_RUNS
        self._shown: tuple[str, int, int] | None = None  # the search, the number of runs, and the last event
        self._runs: dict[str, Run] = {}

    def compose(self) -> ComposeResult:
        yield Input(placeholder=_SEARCH_HELP, id="search", compact=True)
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

    def read_news(self) -> Callable[[], None] | None:
        """Read the runs that the search finds, if anything is new."""
        ((last,),) = self.store.database.rows("SELECT coalesce(max(n), 0) FROM events")
        now = self._line, self._most, int(last)
        if now == self._shown:
            return None
        what = parse_search(self._line).replace(project=self._project)
        runs, later = search_runs(self.store, what, limit=self._most)
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
            command = Text.assemble((printable(project), "dim"), safe_text(fit_columns(printable(run.command), 200)))
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
        self._line, self._most = event.value, _FIRST_RUNS

    def on_input_submitted(self) -> None:
        self._table.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.row_key.value == "more":
            self._most += 5 * _FIRST_RUNS
        elif self._run is not None:
            self.app.push_screen(RunScreen(self.store, self._run))

    def action_take(self, act: str) -> None:
        if self._run is not None:
            self.act(self._run, ChosenAct(act=act))

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
        yield Static(f"#{self._run.number}  {quote(self._run.command, 200)}", markup=False, id="title")
        yield ChangesView(self._store, lambda: [self._store.history.find(self._run.run)], only_waiting=False)
        yield Footer(show_command_palette=False)

    def action_output(self) -> None:
        self.app.push_screen(OutputScreen(self._store.history.find(self._run.run)))


class OutputScreen(Screen[None]):
    """The output of a run."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,o", "app.pop_screen", "Back", key_display="esc")]

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def compose(self) -> ComposeResult:
        yield TextView(id="output")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        outputs = (text.encode(errors="replace") for text in (self._run.stdout, self._run.stderr))
        self.query_one(TextView).show(both_outputs(outputs, _MAX_OUTPUT_LINES))
        self.query_one(TextView).focus()
