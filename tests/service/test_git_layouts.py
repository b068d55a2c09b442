"""A repository is cared for wherever it lies and however it keeps its refs and its contents."""

import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import need
from fumehood import Run, Sandbox, UndoRefused

pytestmark = pytest.mark.namespaces


def typed(place: Path, line: str) -> str:
    """What a person types."""
    done = subprocess.run(["sh", "-ec", line], cwd=place, check=False, capture_output=True, text=True)
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout


ADA = "git config user.name Ada; git config user.email ada@example.org"
FIRST = f"git init -q -b main src; cd src; {ADA}; echo a > a; git add a; git commit -qm a; cd .."
BARE = "git clone -q --bare src .bare; rm -rf src; echo 'gitdir: ./.bare' > .git; git worktree add -q main; cd main"
LAYOUTS = {
    "a bare repository beside its work trees": (f"{BARE}; {ADA}; git commit -q --allow-empty -m second", "main"),
    "a git directory of another name": (
        f"git clone -q --separate-git-dir=meta src tree; rm -rf src; cd tree; {ADA}", "tree",
    ),
    "a branch that is called as a repository": ("mv src tree; cd tree; git switch -qc fix.git/one", "tree"),
}  # fmt: skip
COMMIT = "echo b > b; git add b; git commit -qm b"


@pytest.fixture
def place(home: Path, project: Path) -> Path:
    need(shutil.which("git") is not None, "there is no git")
    return project


def laid_out(project: Path, layout: str) -> str:
    line, tree = LAYOUTS[layout]
    typed(project, f"{FIRST}; {line}")
    return tree


def waiting(run: Run) -> set[str]:
    return {change.path for change in run.changes if change.verdict != "applied"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_undo_leaves_what_a_person_keeps_of_a_commit(place: Path, layout: str) -> None:
    tree = place / laid_out(place, layout)
    with Sandbox(place) as sandbox:
        run = sandbox.run(f"cd {tree.name}; {COMMIT}")
        assert run.state == "applied", run.for_model()
        typed(tree, "git branch keep")
        sandbox.undo(run)
        assert typed(tree, "git show keep:b") == "b\n"
        assert typed(tree, "git fsck --full --strict --no-dangling; git status --porcelain") == ""
        assert sandbox.find(run.run).state == "undone"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_new_work_tree_or_submodule_is_held_nowhere(place: Path, layout: str) -> None:
    tree = place / laid_out(place, layout)
    library = place.parent / "library"
    typed(place.parent, f"git init -q library; cd library; {ADA}; git commit -q --allow-empty -m l")
    with Sandbox(place) as sandbox:
        run = sandbox.run(
            f"set -e; cd {tree.name}; git worktree add -q ../more -b more; cd ../more; {COMMIT};"
            f" git -c protocol.file.allow=always submodule --quiet add {library} lib; git commit -qm lib"
        )
        assert (run.exit_code, waiting(run)) == (0, set()), run.for_model()
    assert typed(place / "more", "git status --porcelain; git submodule status | grep -c lib") == "1\n"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_undo_takes_out_what_nobody_needs(place: Path, layout: str) -> None:
    tree = place / laid_out(place, layout)
    before = sorted(place.rglob("objects/??/*"))
    with Sandbox(place) as sandbox:
        sandbox.undo(sandbox.run(f"cd {tree.name}; {COMMIT}"))
    assert before
    assert sorted(place.rglob("objects/??/*")) == before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_commit_waits_whole_where_a_person_has_staged_meanwhile(place: Path, layout: str) -> None:
    tree = place / laid_out(place, layout)
    with Sandbox(place) as sandbox:
        run = sandbox.run(f"cd {tree.name}; {COMMIT}", apply="hold")
        typed(tree, "echo c > c; git add c")
        run = sandbox.apply(run)
        assert run.state == "held"
        assert any("refs/heads/" in path for path in waiting(run))
        assert typed(tree, "git diff --cached --name-status") == "A\tc\n"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_branch_waits_with_what_is_held_of_its_repository(place: Path, layout: str) -> None:
    tree = laid_out(place, layout)
    with Sandbox(place) as sandbox:
        sandbox.run(f"cd {tree}; echo n > n; git add n", apply="hold")
        assert sandbox.run(f"cd {tree}; git branch topic").state == "held"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("line", ["echo n > n; git add n", "git rm -q --cached a"])
def test_an_index_does_not_go_back_below_a_later_commit(place: Path, layout: str, line: str) -> None:
    tree = laid_out(place, layout)
    with Sandbox(place) as sandbox:
        run = sandbox.run(f"cd {tree}; {line}")
        typed(place / tree, "git commit -qm later")
        with pytest.raises(UndoRefused, match="HEAD"):
            sandbox.undo(run)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_committed_and_a_draft_is_told_so(place: Path, layout: str) -> None:
    tree = laid_out(place, layout)
    with Sandbox(place) as sandbox:
        draft = sandbox.draft("one")
        draft.run(f"cd {tree}; {COMMIT}")
        typed(place / tree, "echo c > c; git add c; git commit -qm c")
        with pytest.raises(Exception, match="both changed") as refused:
            draft.apply()
        assert "--as-commit" in str(getattr(refused.value, "hint", ""))


# ---- Refs that lie in tables, not in a file each.


def has_tables(git: str = "git") -> bool:
    asked = subprocess.run([git, "init", "-h"], check=False, capture_output=True, text=True)
    return "--ref-format" in asked.stdout + asked.stderr


@pytest.fixture
def tables(place: Path) -> Path:
    """A repository as git makes it with tables, by hand: not every git can."""
    typed(place, f"git init -q -b main; {ADA}; echo a > a; git add a; git commit -qm a; mkdir .git/reftable")
    (place / ".git/reftable/tables.list").write_text("0x000000000001-0x000000000002-4b5c7e8a.ref\n")
    return place


def test_undo_leaves_objects_where_a_person_has_changed_refs_in_tables(tables: Path) -> None:
    with Sandbox(tables) as sandbox:
        run = sandbox.run("echo hello | git hash-object -w --stdin")
        (tables / ".git/reftable/tables.list").write_text("0x000000000001-0x000000000003-5d6e7f8b.ref\n")
        sandbox.undo(run)
    assert typed(tables, f"git cat-file blob {run.stdout}") == "hello\n"


def test_an_index_does_not_go_back_below_a_commit_in_tables(tables: Path) -> None:
    with Sandbox(tables) as sandbox:
        run = sandbox.run("echo n > n; git add n")
        (tables / ".git/reftable/tables.list").write_text("0x000000000001-0x000000000003-5d6e7f8b.ref\n")
        with pytest.raises(UndoRefused, match=r"tables\.list"):
            sandbox.undo(run)
        (tables / ".git/reftable/tables.list").write_text("0x000000000001-0x000000000002-4b5c7e8a.ref\n")
        sandbox.undo(run)
    assert typed(tables, "git status --porcelain; git fsck --full --strict") == ""


@pytest.mark.skipif(not shutil.which("git") or not has_tables(), reason="this git keeps no refs in tables")
@pytest.mark.parametrize("tree", [".", "w"])
def test_what_a_person_commits_in_a_repository_with_tables_stays_whole(place: Path, tree: str) -> None:
    typed(place, f"git init -q -b main --ref-format=reftable; {ADA}; echo a > a; git add a; git commit -qm a")
    typed(place, "git worktree add -q w; echo w > .gitignore; git add .gitignore; git commit -qm ignore")
    with Sandbox(place) as sandbox:
        staged = sandbox.run(f"cd {tree}; echo n > n; git add n")
        typed(place / tree, "git commit -qm person")
        with pytest.raises(UndoRefused, match=r"tables\.list"):
            sandbox.undo(staged)
        made = sandbox.run(f"cd {tree}; git commit-tree @^{{tree}} -p @ -m x")
        typed(place / tree, f"git branch keep {made.stdout}")
        sandbox.undo(made)
        committed = sandbox.run(f"cd {tree}; echo c > c; git add c; git commit -qm c")
        sandbox.undo(committed)
    assert typed(place / tree, "git log -1 --format=%s; git fsck --full --strict --no-dangling") == "person\n"
    assert typed(place / tree, "git log -1 --format=%s keep; git status --porcelain") == "x\n"


# ---- Contents that lie elsewhere than in the objects of their own repository.

CONTENT = "4355a46b19d348dc2f57c046f8ef63d4538ebb936000f3c9ee954a27460dd865"  # the name of "1\n" there
STORES = {
    "git-lfs": f".git/lfs/objects/43/55/{CONTENT}",
    "git-annex": f".git/annex/objects/Xy/Zw/SHA256E-s2--{CONTENT}/SHA256E-s2--{CONTENT}",
}


@pytest.fixture
def repository(place: Path) -> Path:
    typed(place, f"git init -q -b main; {ADA}; git commit -q --allow-empty -m first")
    return place


@pytest.mark.parametrize("since", ["git branch keep", "true"])
@pytest.mark.parametrize("store", STORES)
def test_contents_beside_the_objects_stay_as_long_as_these_do(repository: Path, store: str, since: str) -> None:
    """Written as these tools write them: not every machine has them."""
    content = repository / STORES[store]
    (repository / ".git/annex").mkdir()
    with Sandbox(repository) as sandbox:
        line = f"mkdir -p {content.parent}; mkdir -p .git/lfs/tmp; echo 1 > {content}"
        run = sandbox.run(f"{line}; echo {CONTENT} > p; git add p; git commit -qm p")
        assert run.state == "applied", run.for_model()
        typed(repository, since)
        sandbox.undo(run)
        assert content.exists() == (since != "true")
        assert sandbox.find(run.run).state == "undone"
        sandbox.redo(run)
        assert content.read_text() == "1\n"
        assert typed(repository, "git log -1 --format=%s; git status --porcelain") == "p\n"


def test_contents_that_only_an_index_may_mean_stay(repository: Path) -> None:
    content = repository / STORES["git-lfs"]
    with Sandbox(repository) as sandbox:
        run = sandbox.run(f"mkdir -p {content.parent}; echo 1 > {content}")
        typed(repository, f"echo {CONTENT} > p; git add p")
        sandbox.undo(run)
    assert content.read_text() == "1\n"


BORROWED = ["git clone -q --shared . ../borrower; cd ../borrower", "git clone -q --shared . inside; cd inside",
            "git clone -q --bare --shared . ../borrower; git -C ../borrower worktree add -q w; cd ../borrower/w"]


@pytest.mark.parametrize("line", BORROWED)
def test_undo_leaves_objects_that_another_repository_borrows(repository: Path, line: str) -> None:
    with Sandbox(repository) as sandbox:
        run = sandbox.run(COMMIT)
        typed(repository, f"{line}; {ADA}; echo c > c; git add c; git commit -qm person")
        sandbox.undo(run)
        assert sandbox.find(run.run).state == "undone"
    assert typed(repository, f"cd {line.rsplit(maxsplit=1)[-1]}; git fsck --full; git show HEAD:b") == "b\n"
    assert not (repository / "b").exists()


def test_what_borrows_from_elsewhere_keeps_no_objects(repository: Path, test_directory: Path) -> None:
    before = sorted((repository / ".git/objects").rglob("*"))
    for top in (repository / "x", test_directory / "y/.git"):
        (top / "objects/info").mkdir(parents=True)
        (top / "objects/info/alternates").write_bytes(b"/a\0b\n\n../../../../nowhere\n\xff\n/")
    with Sandbox(repository) as sandbox:
        sandbox.undo(sandbox.run(COMMIT))
    assert sorted((repository / ".git/objects").rglob("*")) == before
