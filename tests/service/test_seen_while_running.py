"""What a command that goes on sees of what others change in the project meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import trees
from fumehood import Sandbox
from patience import eventually

pytestmark = pytest.mark.namespaces
SEEN = "while read -r wanted; do cat $wanted 2>&1; echo .; done"


@pytest.fixture(params=["", "agent-1"])
def seen(request: pytest.FixtureRequest, sandbox: Sandbox, project: Path) -> Iterator[Callable[[str], str]]:
    """Ask a command that goes on, alone or of a session, what it reads of some files."""
    for name in ("page", "stale"):
        (project / name).write_text("old\n")
    asked = sandbox.session(request.param) if request.param else sandbox

    def ask(names: str) -> str:
        started.stdin.write(f"{names}\n")
        return "".join(iter(started.stdout.readline, ".\n"))

    with asked.start(SEEN) as started:
        yield ask


def test_it_sees_what_others_change_and_take_back(sandbox: Sandbox, seen: Callable[[str], str]) -> None:
    before = seen("page late/page stale")
    assert before.startswith("old\ncat: ")
    changed = sandbox.run("echo new > page; mkdir late; echo late > late/page; rm stale")
    assert seen("page late/page") == "new\nlate\n"
    assert "No such file" in seen("stale")
    sandbox.undo(changed)
    assert seen("page late/page stale") == before


@pytest.mark.long
def test_it_sees_what_a_person_replaces(seen: Callable[[str], str], project: Path) -> None:
    assert seen("page late").startswith("old\ncat: ")
    (project / "saved").write_text("new\n")
    (project / "saved").rename(project / "page")  # as editors and git do
    (project / "late").write_text("late\n")
    assert eventually(lambda: seen("page late") == "new\nlate\n")


def test_one_that_moved_its_own_view_away_is_in_nobodys_way(sandbox: Sandbox, home: Path) -> None:
    project = home / "src/app"
    project.mkdir(parents=True)
    (project / "page").write_text("old\n")
    inside = Sandbox(project)
    with inside.start(f"mv ~/src ~/away && ln -s / ~/src && {SEEN}") as started:
        started.stdin.write("page\n")
        assert started.stdout.readline() == "old\n"
        assert inside.run("echo new > page").state == "applied"
        assert (project / "page").read_text() == "new\n"
    inside.close()


def test_it_sees_it_in_a_root_tree_too(project: Path, test_directory: Path) -> None:
    (project / "page").write_text("old\n")
    tree = trees.make_tree(test_directory / "tree")
    with Sandbox(project) as sandbox, sandbox.start(SEEN, root=str(tree)) as started:
        for expected in ("old\n", "new\n"):
            started.stdin.write("page\n")
            assert (started.stdout.readline(), started.stdout.readline()) == (expected, ".\n")
            sandbox.run("echo new > page")
