"""What a person only stages while an agent's command commits stays staged, and the commit lands."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import need
from fumehood import Run, Sandbox
from fumehood.linux import gitindex

pytestmark = pytest.mark.namespaces

COMMIT = "echo more >> a && git add a && git commit -qm agent"
NAMES = ("a", "b", "c", "dir/d", "dir-e")


def git(top: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=top, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def typed(top: Path, line: str) -> None:
    """What a person types."""
    subprocess.run(["sh", "-ec", line], cwd=top, check=True, capture_output=True)


def made(top: Path, *options: str) -> Path:
    need(shutil.which("git") is not None, "there is no git")
    git(top, "init", "-q", "-b", "main", *options)
    for key, value in (("user.name", "a"), ("user.email", "a@b"), ("gc.auto", "0"), ("core.trustctime", "false")):
        git(top, "config", key, value)
    for name in NAMES:
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text(f"{name}\n")
    git(top, "add", "-A")
    git(top, "commit", "-qm", "first")
    return top


@pytest.fixture
def repository(home: Path, project: Path) -> Path:
    return made(project)


def while_it_runs(sandbox: Sandbox, before: str, act: Callable[[], None], after: str = "true") -> Run:
    """Have a person do something between two commands of one run."""
    begun: list[str] = []

    def notice(_stream: str, text: str) -> None:
        begun.append(text)
        if len(begun) == 1:
            act()

    long = "head -c 300000 /dev/zero | tr '\\0' x"  # more than a pipe holds: nobody reads on until it is done
    return sandbox.run(f"{before}; {long}; {after}", on_output=notice)


def index_of(top: Path) -> str:
    """All that an index says, its version and the flags of its entries with it."""
    version = (top / ".git/index").read_bytes()[7] if (top / ".git").is_dir() else 0
    return f"{version}\n{git(top, 'ls-files', '-s', '-v', '-t')}{git(top, 'diff', '--cached', '--name-status')}"


def missing(top: Path) -> set[str]:
    """The objects that git misses. They may be its own: 2.55 does not write at once what a sparse index names."""
    line = ["git", "fsck", "--strict", "--no-dangling"]
    done = subprocess.run(line, cwd=top, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert all(each.startswith("missing ") for each in lines), lines
    assert not done.returncode or lines, done.stderr
    return set(lines)


# What a person does, and what git says of that when the agent's commit is there, too.
STAGING = {
    "another version": ("echo staged > b; git add b", "M\tb\n"),
    "a new file": ("mkdir -p new; echo staged > new/file; git add new", "A\tnew/file\n"),
    "a removal": ("git rm -q b", "D\tb\n"),
    "another name": ("git mv b z", "R100\tb\tz\n"),
    "a mode": ("chmod +x b; git add b", "M\tb\n"),
    "a file in the place of a directory": ("git rm -qr dir; echo file > dir; git add dir", "A\tdir\nD\tdir/d\n"),
    "what is to be added": ("echo new > n; git add -N n", ""),
    "what is not looked at": ("git update-index --assume-unchanged b; git update-index --skip-worktree c", ""),
    "something with compressed paths": ("echo staged > b; git add b; git update-index --index-version 4", "M\tb\n"),
    "something, without a checksum": ("git config index.skipHash true; echo staged > b; git add b", "M\tb\n"),
}


@pytest.mark.long
@pytest.mark.parametrize("what", STAGING)
def test_what_a_person_stages_after_a_command_committed_stays_staged(repository: Path, what: str) -> None:
    line, staged = STAGING[what]
    seen: list[str] = []

    def stage() -> None:
        typed(repository, line)
        seen.append(index_of(repository))

    with Sandbox(repository) as sandbox:
        run = while_it_runs(sandbox, COMMIT, stage)
        assert run.state == "applied", run.changes
        assert git(repository, "log", "--format=%s").split() == ["agent", "first"]
        assert git(repository, "diff", "--cached", "--name-status") == staged
        git(repository, "fsck", "--strict")
        assert git(repository, "diff", "--name-only", "a") == ""
        assert index_of(repository).splitlines()[0] == seen[0].splitlines()[0]
        git(repository, "status")
        sandbox.undo(run)
        assert index_of(repository) == seen[0]
        git(repository, "fsck", "--strict")
        sandbox.redo(run)
        assert git(repository, "diff", "--cached", "--name-status") == staged


@pytest.mark.parametrize("kind", ["objects of sha256", "a work tree inside", "a submodule"])
def test_other_indexes_take_in_what_a_person_stages(home: Path, project: Path, kind: str) -> None:
    top = made(project, *(["--object-format=sha256"] if kind == "objects of sha256" else ()))
    if kind == "a work tree inside":
        git(top, "worktree", "add", "-q", "beside")
        top = top / "beside"
    elif kind == "a submodule":
        other = made(home / "other") if (home / "other").mkdir() is None else home
        git(top, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "beside")
        git(top, "commit", "-qm", "beside")
        top = top / "beside"
    with Sandbox(project) as sandbox:
        line = f"cd {top}; export GIT_AUTHOR_NAME=a GIT_COMMITTER_NAME=a EMAIL=a@b; {COMMIT}"
        run = while_it_runs(sandbox, line, lambda: typed(top, "echo staged > b; git add b"))
        assert run.state == "applied", run.changes
    assert git(top, "log", "--format=%s").split() == ["agent", "first"]
    assert git(top, "diff", "--cached", "--name-only") == "b\n"
    git(top, "fsck", "--strict")


# What can't be told apart, or would make the commit something else: who does what, and what stays staged then.
CONFLICTS = {
    "the same path": (COMMIT, "echo staged > a; git add a"),
    "a file and a directory": ("mkdir n; echo n > n/n; git add n; git commit -qm n", "echo n > n; git add n"),
    "a commit": (COMMIT, "echo staged > b; git add b; git commit -qm person; echo staged > c; git add c"),
    "another branch": ("echo more >> a; git add a", "git switch -qc other; git rm -q b"),
    "a merge that stopped": ("echo more >> a; git add a", "git merge -q theirs || true"),
    "entries in another file": (COMMIT, "git update-index --split-index; echo staged > b; git add b"),
    "only some directories": (COMMIT, "git sparse-checkout set --cone --sparse-index dir; git rm -q dir/d"),
}  # fmt: skip


@pytest.mark.parametrize("what", CONFLICTS)
def test_where_both_can_not_be_had_the_commit_waits(repository: Path, what: str) -> None:
    agents, persons = CONFLICTS[what]
    for branch in ("theirs", "mine"):
        typed(repository, f"git switch -qc {branch} main; echo {branch} > b; git commit -qam {branch}")
    git(repository, "switch", "-q", "main" if what != "a merge that stopped" else "mine")
    seen: list[str] = []
    missed = set[str]()

    def stage() -> None:
        typed(repository, persons)
        seen.append(index_of(repository))
        missed.update(missing(repository))

    with Sandbox(repository) as sandbox:
        run = while_it_runs(sandbox, agents, stage)
        assert run.state == "held"
        assert {each.verdict for each in run.changes if each.path == ".git/index"} == {"conflict"}
        assert index_of(repository) == seen[0]
        sandbox.discard(run)
    assert missing(repository) <= missed


def test_what_was_staged_before_and_a_person_takes_out_again_is_not_taken_for_a_change_to_the_commit(
    repository: Path,
) -> None:
    typed(repository, "echo staged > b; git add b")
    with Sandbox(repository) as sandbox:
        run = while_it_runs(sandbox, COMMIT, lambda: typed(repository, "git restore --staged b"))
    assert run.state == "held"
    assert git(repository, "diff", "--cached", "--name-only") == ""


def test_a_file_that_is_written_in_the_moment_of_its_staging_is_still_known_as_changed(repository: Path) -> None:
    moment = "touch -d @1000000000"

    def stage() -> None:
        typed(repository, f"echo staged > b; {moment} b; git add b; echo edited > b; {moment} b .git/index")
        assert git(repository, "diff", "--name-only") == "b\n"

    with Sandbox(repository) as sandbox:
        assert while_it_runs(sandbox, COMMIT, stage).state == "applied"
    assert git(repository, "diff", "--name-only") == "b\n"
    assert git(repository, "diff", "--cached", "--name-only") == "b\n"


@pytest.mark.parametrize("order", ["before", "after"])
def test_what_a_command_only_stages_and_what_a_person_stages_are_both_staged(repository: Path, order: str) -> None:
    staging, nothing = "echo more >> a; git add a", "true"
    typed(repository, "echo staged > c; git add c")
    lines = (staging, nothing) if order == "before" else (nothing, staging)
    with Sandbox(repository) as sandbox:
        run = while_it_runs(sandbox, lines[0], lambda: typed(repository, "echo staged > b; git add b"), lines[1])
        assert run.state == "applied"
        assert git(repository, "diff", "--cached", "--name-only") == "a\nb\nc\n"
        sandbox.undo(run)
    assert git(repository, "diff", "--cached", "--name-only") == "b\nc\n"


def test_an_index_that_names_very_much_in_few_bytes_is_not_understood(repository: Path) -> None:
    git(repository, "update-index", "--index-version", "4")
    data = (repository / ".git/index").read_bytes()
    entry = data[12:74]
    first = entry + b"\0" + b"x" * 4000 + b"\0"
    again = entry + b"\0" + b"\0"
    crafted = b"DIRC" + (4).to_bytes(4, "big") + (200_001).to_bytes(4, "big") + first + again * 200_000 + b"\0" * 20
    assert len(crafted) < gitindex.LARGEST
    assert gitindex.meaning(crafted) == ""
