"""Commands at the same time: one that meets nothing but other runs is run once more, from what they left."""

import json
import subprocess
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import command_line
from fumehood import Policy, Run, Sandbox, UndoRefused
from fumehood.core.changes import Change
from fumehood.core.policy import Again
from fumehood.errors import ChangedMeanwhile
from fumehood.service import layers
from fumehood.service.conflicts import yield_to_waiting_runs
from fumehood.service.layers import RunAgain
from fumehood.service.settle import settle
from fumehood.service.store import Store
from fumehood.store import records
from fumehood.store.places import Places
from patience import LONG_S
from snapshots import snapshot

pytestmark = pytest.mark.namespaces


class Meeting:
    """Commands of one project that wait for each other: each has read its files before any of them is settled."""

    def __init__(
        self, project: Path, policy: Policy | None = None, session: str | None = None, draft: str | None = None
    ) -> None:
        self._project = project
        self._draft = draft
        # However long they wait for each other on a busy machine, they may be run again.
        self._policy = policy or Policy(again=Again(within=LONG_S))
        self._session = session

    def run(self, *commands: str) -> list[Run]:
        begun = threading.Barrier(len(commands))

        def one(command: str) -> Run:
            first = True

            def wait(_stream: str, _text: str) -> None:
                nonlocal first
                if first:
                    first = False
                    begun.wait(LONG_S)

            with Sandbox(self._project, self._policy, session=self._session, draft=self._draft) as sandbox:
                # What it prints first comes when it has begun, and its end is not looked at before all have.
                return sandbox.run(f"echo begun; {command}", on_output=wait)

        with ThreadPoolExecutor(len(commands)) as threads:
            return list(threads.map(one, commands))


@pytest.fixture
def meeting(home: Path, project: Path) -> Meeting:
    return Meeting(project)


@pytest.mark.parametrize("session", [None, "one"])
def test_appends_at_the_same_time_are_all_applied(home: Path, project: Path, session: str | None) -> None:
    (project / "log").write_text("")
    runs = Meeting(project, session=session).run(*(f"echo {number} >> log" for number in range(6)))
    assert {run.state for run in runs} == {"applied"}
    assert sorted((project / "log").read_text().split()) == [str(number) for number in range(6)]
    again = [run.reason for run in runs if run.reason.startswith("run again: ")]
    assert len(again) == 5
    assert all("changed log meanwhile" in reason or "that is run again changes log" in reason for reason in again)


@pytest.mark.long
def test_who_begins_meanwhile_does_not_overtake_what_is_run_again(home: Path, project: Path) -> None:
    (project / "log").write_text("")

    def one(number: int) -> list[Run]:
        with Sandbox(project, policy=Policy(again=Again(within=LONG_S)), session=f"s{number}") as sandbox:
            return [sandbox.run(f"echo {number}.{each} >> log; sleep 0.1") for each in range(4)]

    with ThreadPoolExecutor(5) as threads:
        runs = [run for several in threads.map(one, range(5)) for run in several]
    assert {run.state for run in runs} == {"applied"}
    assert len((project / "log").read_text().split()) == 20


def test_appends_in_another_root_are_all_applied_too(store: Store, project: Path, test_directory: Path) -> None:
    other = test_directory / "other"
    other.mkdir()
    (other / "log").write_text("")
    store.projects.add_root(store.projects.open(str(project)), str(other))
    runs = Meeting(project).run(*(f"echo {number} >> {other}/log" for number in range(3)))
    assert {run.state for run in runs} == {"applied"}
    assert sorted((other / "log").read_text().split()) == ["0", "1", "2"]


def test_files_in_a_directory_that_each_makes_are_all_applied(meeting: Meeting, project: Path) -> None:
    runs = meeting.run(*(f"mkdir -p logs/a; echo {number} > logs/a/{number}" for number in range(4)))
    assert {run.state for run in runs} == {"applied"}
    assert sorted(path.name for path in (project / "logs/a").iterdir()) == ["0", "1", "2", "3"]


def overtaken(project: Path, command: str, act: Callable[[], object]) -> Run:
    """Run a command; something else happens when it is known what it changed, and nothing is applied yet."""

    def settle_after_another(*arguments: Any, **options: Any) -> None:
        patched.undo()
        act()
        settle(*arguments, **options)

    policy = Policy(again=Again(within=LONG_S))
    with Sandbox(project, policy=policy) as sandbox, pytest.MonkeyPatch.context() as patched:
        patched.setattr("fumehood.service.settle.settle", settle_after_another)
        return sandbox.run(command)


def another(project: Path, line: str) -> None:
    with Sandbox(project) as sandbox:
        assert sandbox.run(line).state == "applied"


@pytest.fixture
def tree(project: Path) -> Path:
    (project / "src/sub").mkdir(parents=True)
    (project / "src/sub/f").write_text("old\n")
    (project / "src/other").write_text("other\n")
    return project / "src"


@pytest.mark.parametrize("line", ["mv src/sub src/moved", "mv src moved", "rm -r src", "rm -r src; echo x > src"])
def test_a_command_whose_directory_another_one_took_away_is_run_again(
    home: Path, project: Path, tree: Path, line: str
) -> None:
    run = overtaken(project, "cd src/sub && echo new >> f", lambda: another(project, line))
    assert (run.state, run.exit_code != 0) == ("empty", True)
    assert run.reason.startswith("run again: run 2 changed src")


@pytest.mark.parametrize("line", ["echo x >> src/sub/f", "echo x > src/sub/new", "rm src/sub/f", "mkdir src/more"])
@pytest.mark.parametrize("command", ["mv src moved", "rm -r src", "rm -r src; echo x > src"])
def test_a_command_that_takes_away_a_directory_in_which_another_one_wrote_is_run_again(
    home: Path, project: Path, tree: Path, command: str, line: str
) -> None:
    run = overtaken(project, command, lambda: another(project, line))
    assert (run.state, run.reason.startswith("run again: run 2 changed src/")) == ("applied", True)
    assert not tree.is_dir()
    with Sandbox(project) as sandbox:
        sandbox.undo(run)
        sandbox.undo()
    assert {str(path.relative_to(tree)) for path in tree.rglob("*")} == {"other", "sub", "sub/f"}
    assert (tree / "sub/f").read_text() == "old\n"


@pytest.mark.parametrize(("path", "passes"), [("src", True), ("src/sub/f", True), ("src2", False)])
def test_who_writes_in_a_directory_lets_pass_whatever_is_run_again_for_it(
    home: Path, project: Path, store: Store, path: str, passes: bool
) -> None:
    (project / path).parent.mkdir(parents=True, exist_ok=True)
    with Sandbox(project) as sandbox:
        run = sandbox.run(f"echo x > {path}", apply="hold")
        if passes:
            with pytest.raises(RunAgain):
                yield_to_waiting_runs(store, run, f"{project}/src")
        else:
            yield_to_waiting_runs(store, run, f"{project}/src")
        assert bool(sandbox.history()) is not passes


@pytest.mark.parametrize("name", ["sub/f", "sub/mine"])
def test_a_directory_in_which_a_person_wrote_beside_another_run_is_left_to_the_person(
    home: Path, project: Path, tree: Path, name: str
) -> None:
    def act() -> None:
        another(project, "echo x >> src/other; echo x >> src/sub/f")
        (tree / name).write_text("the person's")

    run = overtaken(project, "rm -r src", act)
    assert (run.state, {change.verdict for change in run.changes}) == ("held", {"conflict"})
    assert (tree / name).read_text() == "the person's"


def test_only_what_was_settled_is_in_the_record(meeting: Meeting, project: Path) -> None:
    (project / "log").write_text("")
    runs = meeting.run("echo a >> log", "echo b >> log", "echo c >> log")
    with Sandbox(project) as sandbox:
        assert {run.run for run in sandbox.history()} == {run.run for run in runs}
        for run in sandbox.history():
            sandbox.undo(run)
    assert (project / "log").read_text() == ""
    assert not [path for path in project.iterdir() if path.name != "log"]


def test_git_add_at_the_same_time_succeeds_as_behind_gits_own_lock(meeting: Meeting, project: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    for number, text in enumerate(("1", "678", "1049", "1265")):  # their objects lie in one directory, .git/objects/d0
        (project / f"f{number}").write_text(f"{text}\n")
    runs = meeting.run(*(f"git add f{number}" for number in range(4)))
    assert {(run.state, run.exit_code) for run in runs} == {("applied", 0)}
    staged = subprocess.run(["git", "ls-files"], cwd=project, check=True, capture_output=True, text=True).stdout
    assert staged.split() == ["f0", "f1", "f2", "f3"]
    subprocess.run(["git", "fsck"], cwd=project, check=True)


def test_a_persons_edit_is_a_conflict_and_nothing_is_run_again(home: Path, project: Path) -> None:
    (project / "mine").write_text("old")

    def edit(_stream: str, _text: str) -> None:
        (project / "mine").write_text("edited by a person")

    with Sandbox(project) as sandbox:
        run = sandbox.run("echo begun; echo x > mine; echo y > other; echo run >> counted", on_output=edit)
    assert run.state == "held"
    assert {change.path: change.verdict for change in run.changes} == {
        "mine": "conflict", "other": "applied", "counted": "applied",
    }  # fmt: skip
    assert (project / "mine").read_text() == "edited by a person"
    assert (project / "counted").read_text() == "run\n"


def test_a_person_who_edits_after_another_run_is_met_as_a_person(home: Path, project: Path) -> None:
    (project / "f").write_text("old")

    def meanwhile(_stream: str, _text: str) -> None:
        with Sandbox(project) as other:
            other.run("echo other > f")
        (project / "f").write_text("edited by a person")

    with Sandbox(project) as sandbox:
        run = sandbox.run("echo begun; echo x > f", on_output=meanwhile)
    assert [(change.path, change.verdict) for change in run.changes] == [("f", "conflict")]
    assert (project / "f").read_text() == "edited by a person"


def test_what_was_ended_is_not_begun_again(home: Path, project: Path) -> None:
    (project / "f").write_text("old")
    begun: list[str] = []

    def meanwhile(_stream: str, text: str) -> None:
        with Sandbox(project) as other:
            other.run("echo other > f")
        begun.append(text)

    with Sandbox(project) as sandbox:
        line = "echo x > f; echo begun; sleep 1000"
        run = sandbox.run(line, on_output=meanwhile, cancelled=lambda: bool(begun))
    assert (run.state, begun) == ("held", ["begun\n"])
    assert (project / "f").read_text() == "other\n"


@pytest.mark.parametrize("again", [Again(tries=1), Again(within=0.0)])
def test_the_policy_says_when_a_command_is_run_again(home: Path, project: Path, again: Again) -> None:
    (project / "log").write_text("")
    runs = Meeting(project, Policy(again=again)).run("echo a >> log", "echo b >> log")
    assert sorted(run.state for run in runs) == ["applied", "held"]


def test_a_command_whose_input_is_gone_is_not_run_again(cli: Any, project: Path) -> None:
    (project / "f").write_text("old")
    line = "read x; echo begun; read y; echo $x > f"
    with subprocess.Popen(
        [*command_line(), "run", "--", line], cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("typed\n")
        process.stdin.flush()
        assert process.stdout.readline() == "begun\n"
        with Sandbox(project) as other:
            other.run("echo other > f")
        process.communicate("go on\n", timeout=LONG_S)
    assert (project / "f").read_text() == "other\n"
    assert {run["state"] for run in json.loads(cli("log", "--json").stdout)["runs"]} == {"held", "applied"}


def test_a_session_goes_on_where_the_command_ended_and_began_where_the_last_had(home: Path, project: Path) -> None:
    (project / "sub").mkdir()
    (project / "sub/f").write_text("old")
    seen: list[str] = []

    def meanwhile(_stream: str, text: str) -> None:
        seen.append(text)
        if len(seen) == 1:
            with Sandbox(project) as other:
                other.run("echo other > sub/f")

    with Sandbox(project, session="s") as sandbox:
        run = sandbox.run("pwd; cd sub; echo x >> f", on_output=meanwhile)
        assert (run.state, run.reason.partition(": ")[0]) == ("applied", "run again")
        assert "".join(seen).split() == [str(project)] * 2
        assert sandbox.run("pwd").stdout == f"{project}/sub\n"
    assert (project / "sub/f").read_text() == "other\nx\n"


def test_the_command_line_says_that_it_runs_again(home: Path, project: Path, cli: Any) -> None:
    (project / "f").write_text("")
    # Of what lies in the project, a command may not see what comes while it runs; the playground is no copy.
    playground = Path(cli("playground", "path").stdout.strip())
    line = "echo begun; while ! [ -e ~/playground/go ]; do sleep 0.01; done; echo x >> f"
    for how in ((), ("--brief", "--session", "s")):
        with subprocess.Popen(
            [*command_line(), "run", *how, "--", line], cwd=project, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "begun\n"
            try:
                with Sandbox(project) as other:
                    met = other.run("echo other >> f")
            finally:
                (playground / "go").touch()
            out, err = process.communicate(timeout=LONG_S)
        assert process.returncode == 0
        assert out == "begun\n"
        assert f"run again: run {met.name} changed f meanwhile" in err
        (playground / "go").unlink()
    assert (project / "f").read_text().split() == ["other", "x"] * 2


@pytest.mark.parametrize(("place", "waits"), [(".", []), ("d", ["d"])])
def test_what_a_person_made_of_a_directory_meanwhile_stays(
    home: Path, project: Path, place: str, waits: list[str]
) -> None:
    (project / "d").mkdir(mode=0o755)
    signal = threading.Event()

    def close(_stream: str, _text: str) -> None:
        if not signal.is_set():
            (project / place).chmod(0o700)
            signal.set()

    with Sandbox(project) as sandbox:
        run = sandbox.run("echo x > d/new; echo begun; sleep 0.1; echo y > d/newer", on_output=close)
    assert (project / place).stat().st_mode & 0o777 == 0o700
    assert [change.path for change in run.changes if change.verdict == "conflict"] == waits
    assert (project / "d/newer").read_text() == "y\n"


@pytest.mark.parametrize(
    ("first", "second"), [("echo a > out/a", "mkdir out; echo b > out/b"), ("echo a >> f", "echo b >> f")]
)
def test_a_session_is_undone_though_a_run_went_in_after_one_that_began_later(
    home: Path, project: Path, first: str, second: str
) -> None:
    (project / "f").write_text("old\n")
    before = snapshot(project)
    (project / "go").write_text("")

    def meanwhile(_stream: str, _text: str) -> None:
        with Sandbox(project, session="s") as other:
            assert other.run(second).state == "applied"
        (project / "go").write_text("on")

    with Sandbox(project, session="s", policy=Policy(again=Again(tries=1))) as sandbox:
        run = sandbox.run(f"echo begun; until [ -s go ]; do sleep 0.01; done; {first}", on_output=meanwhile)
        if run.state == "held":
            sandbox.apply(run, force=True)
        (project / "go").unlink()
        after = snapshot(project)
        with pytest.raises(UndoRefused, match=r"changed since run 2: .*, by run 1") as refused:
            sandbox.undo()
        assert refused.value.hint.startswith("first: fumehood undo 1")
        assert [back.command for back in sandbox.undo_session()] == ["undo 1", "undo 2"]
        assert snapshot(project) == before
        sandbox.redo_session()
        assert snapshot(project) == after


@pytest.mark.parametrize(("later", "first"), [("rm -r out", "mkdir -p out/a"), ("echo b > out/f", "rm -r out")])
def test_a_refusal_names_the_run_that_went_in_later_whatever_was_like_that_meanwhile(
    home: Path, project: Path, later: str, first: str
) -> None:
    (project / "out").mkdir()
    (project / "go").write_text("")

    def meanwhile(_stream: str, _text: str) -> None:
        with Sandbox(project) as other:
            assert other.run(later).state == "applied"
            other.undo(other.run("rm -rf out; mkdir out"))
        (project / "go").write_text("on")

    with Sandbox(project, policy=Policy(again=Again(tries=1))) as sandbox:
        run = sandbox.run(f"echo begun; until [ -s go ]; do sleep 0.01; done; {first}", on_output=meanwhile)
        if run.state == "held":
            sandbox.apply(run, force=True)
        with pytest.raises(UndoRefused, match=r"changed since run 2: .*, by run 1") as refused:
            sandbox.undo()
        assert refused.value.hint.startswith("first: fumehood undo 1")
        sandbox.undo(1)
        sandbox.undo()
        assert (project / "out").is_dir()
        assert not (project / "out/f").exists()


def test_a_layer_goes_before_anybody_can_undo_its_run(
    project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_alone: list[bool] = []
    drop = layers.drop_if_empty

    def drop_now(places: Places, run: str, changes: Iterable[Change]) -> None:
        try:
            with store.lock_project(sandbox._project.id, wait=False):
                is_alone.append(False)
        except BlockingIOError:
            is_alone.append(True)
        drop(places, run, changes)

    monkeypatch.setattr(layers, "drop_if_empty", drop_now)
    with Sandbox(project) as sandbox:
        sandbox.run("echo new > new")
    assert is_alone == [True]


def test_appends_at_the_same_time_in_one_draft_are_all_in_it(home: Path, project: Path) -> None:
    (project / "log").write_text("")
    runs = Meeting(project, draft="line").run(*(f"echo {number} >> log" for number in range(4)))
    assert {run.state for run in runs} == {"held"}
    with Sandbox(project) as sandbox:
        sandbox.draft("line").apply()
    assert sorted((project / "log").read_text().split()) == [str(number) for number in range(4)]


def test_a_command_of_a_draft_that_can_not_be_run_again_says_whom_it_met(home: Path, project: Path) -> None:
    (project / "log").write_text("")
    policy = Policy(again=Again(tries=1))
    runs = Meeting(project, policy, draft="line").run("echo one >> log", "echo two >> log", "echo other > other")
    (met,) = [run for run in runs if "meanwhile" in run.changes[0].reason]
    (other,) = [run for run in runs if run is not met and run.changes[0].path == "log"]
    assert met.changes[0].reason.startswith(f"in draft line; run {other.number} changed it meanwhile")


def test_bringing_a_draft_up_to_date_hides_nothing_that_a_command_writes_meanwhile(home: Path, project: Path) -> None:
    lines = [f"{number}\n" for number in range(20)]
    (project / "text").write_text("".join(lines))
    with Sandbox(project) as sandbox:
        draft = sandbox.draft("line")
        draft.run("sed -i s/^1$/one/ text")
        (project / "text").write_text("".join([*lines[:-1], "last\n"]))
        with draft.start("read word; sed -i s/^9$/nine/ text") as command:
            take_in = draft._unpack_as_held

            def take_in_later(*arguments: Any) -> Run:
                command.stdin.write("go\n")
                command.wait()
                return take_in(*arguments)

            draft._unpack_as_held = take_in_later  # type: ignore[method-assign]
            with pytest.raises(ChangedMeanwhile):
                draft.rebase()
        draft._unpack_as_held = take_in  # type: ignore[method-assign]
        draft.rebase()
        draft.apply()
    assert {"one", "nine", "last"} < set((project / "text").read_text().split())


def test_what_was_applied_in_a_directory_is_read_once_however_many_of_its_files_others_changed(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two builds at once took minutes, with the project locked, where they wrote thousands of files of a directory."""
    names = " ".join(f"d/{number}" for number in range(30))
    (project / "d").mkdir()
    for name in names.split():
        (project / name).write_text("")
    line = f"for each in {names}; do echo x >> $each; done"
    read: list[bytes] = []
    changes_of_row = records.changes_of_row

    def counted(root: int, directory: bytes, *rest: Any) -> Any:
        read.append(directory)
        return changes_of_row(root, directory, *rest)

    def act() -> None:
        another(project, line)
        monkeypatch.setattr(records, "changes_of_row", counted)

    run = overtaken(project, line, act)
    assert (run.state, run.reason) == ("applied", "run again: run 2 changed d/0 meanwhile")
    assert (project / "d/29").read_text() == "x\nx\n"
    assert len(read) < 10
