"""However many runs wait, a project works: commands see what all of them hold, and each is decided by itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fumehood import Policy, Sandbox
from fumehood.core.request import Request
from fumehood.linux import launcher
from fumehood.service.hood import Caller, Hood
from fumehood.service.sandbox import run_in
from fumehood.service.store import Store
from snapshots import entries, heard, snapshot, told

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

_MANY = 100  # more layers than the kernel is told of in one page
_SOME = 34  # more than are seen singly, so that some are folded twice

# What every fourth held run does: something of each kind, over what the ones before have left.
_STORY = (
    "echo {n} >> a; mkdir -p new/{n}; echo {n} > new/{n}/f",
    "rm -rf d; mkdir d; echo {n} > d/only{n}; rm -f new/*/f",
    "rm -rf d; echo {n} > d; ln -sfn a link; chmod 600 b",
    "rm -f d; mkdir -p d/in; echo {n} > d/in/f; ln -f d/in/f d/again; echo {n} >> b; rm -rf new",
)


def story(number: int) -> str:
    return _STORY[number % len(_STORY)].format(n=number)


@pytest.fixture
def furnished(project: Path) -> Path:
    (project / "a").write_text("a\n")
    (project / "b").write_text("b\n")
    (project / "d").mkdir()
    (project / "d/x").write_text("x\n")
    return project


def kinds_and_contents(told_of: dict[str, list[object]]) -> dict[str, object]:
    return {path: (each[0], each[4]) for path, each in told_of.items()}


def seen_by_a_command(sandbox: Sandbox) -> dict[str, object]:
    seen = sandbox.run(told("."), apply="discard")
    assert seen.exit_code == 0, seen.output
    return kinds_and_contents(heard(seen.stdout[seen.stdout.index("{") :]))


@pytest.mark.long
def test_a_project_works_however_many_runs_wait(sandbox: Sandbox, furnished: Path) -> None:
    for number in range(_MANY):
        assert sandbox.run(f"echo {number} >> a", apply="hold").state == "held"
    later = sandbox.run("wc -l < a; echo free > free")
    assert later.stdout.strip() == str(_MANY + 1), later.output
    assert later.state == "applied"
    assert sandbox.run("echo more >> a").changes[0].reason == (
        f"it builds on run {sandbox.history()[2].number}, which was held"
    )


@pytest.mark.long
@pytest.mark.parametrize("way", ["kernel", "bwrap", "fuse", "copy"], indirect=True)
def test_folded_runs_are_seen_and_decided_like_single_ones(way: str, furnished: Path, test_directory: Path) -> None:
    beside = test_directory / "beside"
    subprocess.run(["cp", "-a", furnished, beside], check=True)
    before = snapshot(furnished)
    with Sandbox(furnished, policy=Policy(capture=way)) as sandbox:
        runs = []
        for number in range(_SOME):
            runs.append(sandbox.run(story(number), apply="hold"))
            assert runs[-1].exit_code == 0, runs[-1].output
            subprocess.run(["sh", "-c", story(number)], cwd=beside, check=True)
        assert seen_by_a_command(sandbox) == kinds_and_contents(snapshot(beside))
        for number, run in enumerate(runs):
            assert sandbox.apply(run).state == "applied"
            if number % 11 == 0:
                assert seen_by_a_command(sandbox) == kinds_and_contents(snapshot(beside))
        assert kinds_and_contents(snapshot(furnished)) == kinds_and_contents(snapshot(beside))
        for path, status in entries(str(furnished)):
            named_twice = {"d/in/f", "d/again"} if path in ("d/in/f", "d/again") else {path}
            assert os.path.isdir(furnished / path) or status.st_nlink == len(named_twice), path
        for run in reversed(runs):
            sandbox.undo(run)
    assert snapshot(furnished) == before


def test_a_discarded_run_is_gone_from_what_stands_for_many(sandbox: Sandbox, furnished: Path) -> None:
    runs = [sandbox.run(f"echo {number} > f{number}", apply="hold") for number in range(_SOME)]
    assert len(sandbox.run("ls f*").stdout.split()) == _SOME
    sandbox.discard(runs[3])
    assert set(sandbox.run("ls f*").stdout.split()) == {f"f{number}" for number in range(_SOME) if number != 3}


def test_what_is_applied_while_a_command_sees_it_folded_has_no_other_name(sandbox: Sandbox, furnished: Path) -> None:
    first = sandbox.run("echo held > h", apply="hold")
    for number in range(_SOME):
        sandbox.run(f"echo {number} > f{number}", apply="hold")
    with Sandbox(furnished) as other:
        run = sandbox.run(
            "echo ready; sleep 0.2; cat h",
            on_output=lambda *_: None if (furnished / "h").exists() else other.apply(first),
        )
    assert run.stdout == "ready\nheld\n"
    assert (furnished / "h").stat().st_nlink == 1
    with (furnished / "h").open("a") as file:
        file.write("mine\n")
    assert sandbox.run("cat h").stdout == "held\nmine\n"


def test_folds_go_when_nobody_needs_them(sandbox: Sandbox, furnished: Path, store: Store) -> None:
    runs = [sandbox.run(f"echo {number} > f{number}", apply="hold") for number in range(_SOME)]
    sandbox.run("true")
    folds = Path(store.places.folded(store.projects.open(str(furnished)).id))
    assert list(folds.iterdir())
    for run in runs:
        sandbox.discard(run)
    assert not list(folds.iterdir())


@pytest.mark.parametrize("begins", [".", ""])  # one that is being made, or was left by a loss of power
@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"("], ids=["empty", "zeros", "cut"])
def test_a_fold_that_is_not_whole_is_in_nobody_s_way(
    sandbox: Sandbox, furnished: Path, store: Store, begins: str, content: bytes
) -> None:
    held = sandbox.run("echo held > h", apply="hold")
    fold = Path(store.places.folded(store.projects.open(str(furnished)).id), f"{begins}fold")
    fold.mkdir(parents=True)
    (fold / "members").write_bytes(content)
    assert sandbox.run("cat h").stdout == "held\n"
    sandbox.discard(held)
    assert not fold.exists()


# --- settling while another run begins ---


@pytest.mark.parametrize("way", ["kernel", "bwrap", "fuse", "copy"], indirect=True)
@pytest.mark.parametrize("word", ["apply", "discard"])
def test_a_run_that_has_begun_stands_although_what_it_was_to_see_is_settled(
    way: str, word: str, furnished: Path, store: Store
) -> None:
    policy = Policy(capture=way)
    with Sandbox(furnished, policy=policy) as other:
        held = other.run("echo held > h", apply="hold")
        settled = []

        def settling_first(plan, given):
            if not settled:
                settled.append(getattr(other, word)(held))
            return launcher.shared().start(plan, given)

        hood = Hood(store, store.projects.open(str(furnished)), policy, settling_first)
        run = run_in(hood, Request(command="cat h; echo free > free"), Caller())
    assert settled
    assert run.state == "applied", run.reason
    # Before or after: a copy was made before, fuse-overlayfs has read before what it shows.
    if way == "copy" or (way, word) in (("kernel", "apply"), ("bwrap", "apply")):
        assert run.stdout == "held\n"
    assert not Path(store.places.run(held.id)).exists()


_SETTLING = """
import sys
from fumehood import Sandbox
with Sandbox(sys.argv[1]) as sandbox:
    print(flush=True)
    for number in range(int(sys.argv[2])):
        run = sandbox.run(f"echo {number} > held", apply="hold")
        (sandbox.apply if number % 2 else sandbox.discard)(run)
"""


@pytest.mark.long
def test_runs_begin_while_another_process_settles(sandbox: Sandbox, furnished: Path) -> None:
    sandbox.run("true")
    settling = subprocess.Popen(
        [sys.executable, "-c", _SETTLING, furnished, "40"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with settling:
        assert settling.stdout is not None
        assert settling.stderr is not None
        settling.stdout.readline()
        while settling.poll() is None:
            assert sandbox.run("true").exit_code == 0
        assert settling.returncode == 0, settling.stderr.read()
