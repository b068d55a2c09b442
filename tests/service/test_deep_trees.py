"""Directories nested thousands deep: all is done as with a flat tree, and beyond the limit it is said."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fumehood import Policy, Run, Sandbox, TooDeep
from fumehood.linux import libc
from fumehood.linux.capture import examples_of_foreign_files
from fumehood.linux.layer import scan
from fumehood.linux.limits import WrittenBytes
from fumehood.linux.nofollow import DEEPEST, LISTING, DirectoryCache, open_top, remove_tree, walk
from fumehood.linux.project_tree import ProjectTree
from fumehood.service import layers as layering
from fumehood.service import overview
from fumehood.service.files import scan_project
from fumehood.service.layers import disk_usage
from fumehood.service.profiles import remove_old_scratch
from fumehood.service.store import Store
from fumehood.store.places import new_id
from fumehood.store.projects import Project

pytestmark = pytest.mark.namespaces

_NAME = "down"
_DEEP = 1_050  # deeper than Python's stack, and a path of more bytes than the kernel takes at once


def nest(depth: int, inside: str = "open('f', 'w').close()") -> list[str]:
    """A command that makes directories, each in the one before, with something in each."""
    script = f"import os\nfor _ in range({depth}):\n os.mkdir('{_NAME}')\n os.chdir('{_NAME}')\n {inside}\n"
    return ["python3", "-c", script]


def in_each(depth: int, act: str) -> list[str]:
    """A command that goes down and does something at each level."""
    return ["python3", "-c", f"import os\nfor _ in range({depth}):\n os.chdir('{_NAME}')\n {act}\n"]


def entries_below(directory: Path) -> int:
    top = open_top(str(directory))
    try:
        return sum(1 for _ in walk(top, ""))
    finally:
        os.close(top)


@pytest.fixture(autouse=True)
def _removed(project: Path) -> Iterator[None]:
    """Leave nothing behind that is too deep for others to remove."""
    yield
    above = open_top(str(project.parent))
    remove_tree(above, project.name)
    os.close(above)
    project.mkdir()


@pytest.mark.long
@pytest.mark.once
@pytest.mark.parametrize("way", ["kernel", "fuse", "copy"], indirect=True)
def test_a_deep_tree_is_applied_held_and_undone_like_any_other(way: str, project: Path) -> None:
    depth = _DEEP if way == "kernel" else 300
    with Sandbox(project, policy=Policy(capture=way)) as sandbox:
        sandbox.run("echo held > held", apply="hold")
        made = sandbox.run(nest(depth))
        assert (made.exit_code, made.state, len(made.changes)) == (0, "applied", 2 * depth), made.output
        held = sandbox.run(in_each(depth, "os.chmod('f', 0o600); os.chmod('.', 0o700)"), apply="hold")
        assert (held.state, len(held.changes)) == ("held", 2 * depth)
        later = sandbox.run(in_each(depth, "open('g', 'w').close()"))
        assert (later.state, len(later.changes)) == ("applied", depth)
        assert sandbox.apply(held).state == "applied"
        assert entries_below(project) == 3 * depth
        for run in (held, later, made):
            sandbox.undo(run)
    assert list(project.iterdir()) == []


@pytest.mark.long
@pytest.mark.ordinary
def test_a_deep_tree_whose_directories_are_closed_to_their_owner(sandbox: Sandbox, project: Path) -> None:
    made = sandbox.run(nest(_DEEP))
    closed = sandbox.run(in_each(_DEEP, "os.chmod('f', 0o400); open('g', 'w').close()\n os.chmod('.', 0o300)"))
    assert (made.state, closed.state) == ("applied", "applied"), closed.output
    assert sandbox.run(in_each(_DEEP, "os.chmod('.', 0o700)\n os.unlink('g')")).state == "applied"
    assert entries_below(project) == 2 * _DEEP


@pytest.mark.long
@pytest.mark.once
def test_a_tree_beyond_the_limit_is_kept_and_that_is_said(sandbox: Sandbox, store: Store, project: Path) -> None:
    command = nest(DEEPEST + 200)
    with pytest.raises(TooDeep, match="nested more than 4,096 deep") as failure:
        sandbox.run([*command[:-1], f"{command[-1]}print('made')"])
    assert list(project.iterdir()) == []
    run = sandbox.history()[0]
    assert (run.state, run.exit_code, run.output) == ("failed", 0, "made\n")
    assert (failure.value.run, failure.value.report["output"]) == (run.run, "made\n")
    layer = Path(store.places.layer(run.run, 0, "upper"))
    assert str(layer.parent.parent) in failure.value.hint
    assert (layer / _NAME / _NAME / "f").exists()
    assert sandbox.run("echo a > a").state == "applied"
    assert sandbox.discard(run).state == "discarded"
    assert not layer.exists()


@pytest.mark.long
@pytest.mark.once
def test_a_tree_beyond_the_limit_is_kept_where_fumehood_was_stopped_too(
    sandbox: Sandbox, store: Store, known: Project, project: Path
) -> None:
    run = Run(
        run=new_id(), project=known.path, command="nest", cwd=known.path, state="running", started_at=time.time(),
        roots=known.roots, capture="kernel",
    )  # fmt: skip
    os.mkdir(store.places.run(run.run))
    store.history.begin(known.id, run, 0)
    (layer,) = layering.make(store.places, run.run, known.roots, "kernel")
    make_deep(Path(layer.upper, "tree"), DEEPEST + 200)
    store.recover()
    kept = store.history.find(run.run)
    assert kept.state == "failed"
    assert "nested more than 4,096 deep" in kept.reason
    assert Path(layer.upper, "tree/d/d/f").exists()
    sandbox.discard(kept)
    assert not Path(layer.upper).exists()


@pytest.mark.long
@pytest.mark.once
def test_what_is_nested_beyond_any_limit_can_be_removed(test_directory: Path) -> None:
    above = open_top(str(test_directory))
    here = os.open(test_directory, LISTING)
    for _ in range(DEEPEST + 500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", LISTING, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    remove_tree(above, "d")
    os.close(above)
    assert not (test_directory / "d").exists()


# --- the work grows with the number of entries, not with its square ---


def looked_up(monkeypatch: pytest.MonkeyPatch, act: object) -> int:
    """Count the names that the kernel is asked to look up while something is done."""
    names = 0
    real = libc.openat2

    def counting(top: int, path: bytes, flags: int, resolve: int) -> int:
        nonlocal names
        names += path.count(b"/") + 1
        return real(top, path, flags, resolve)

    with monkeypatch.context() as patched:
        patched.setattr(libc, "openat2", counting)
        act()  # type: ignore[operator]
    return names


def make_deep(directory: Path, depth: int) -> None:
    directory.mkdir()
    here = os.open(directory, LISTING)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", LISTING, dir_fd=here)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.close(here)
        here = inner
    os.close(here)


@pytest.mark.long
@pytest.mark.once
@pytest.mark.parametrize("layers", [0, 2])
def test_twice_the_depth_takes_twice_the_work(
    layers: int, test_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = []
    for depth in (300, 600):
        names = [f"{depth}-upper", *(f"{depth}-{number}" for number in range(layers)), f"{depth}-project"]
        for name in names:
            make_deep(test_directory / name, depth)
        tops = [open_top(str(test_directory / name)) for name in names]
        above = open_top(str(test_directory))

        def compare_and_remove(tops: list[int] = tops, above: int = above, name: str = names[0]) -> None:
            scan(0, *tops)
            remove_tree(above, name)

        work.append(looked_up(monkeypatch, compare_and_remove))
        for name in names:
            remove_tree(above, name)
        for top in (*tops, above):
            os.close(top)
    assert work[1] < 3 * work[0], work


def all_that_only_look(tree: Path) -> dict[str, Callable[[], object]]:
    """Whatever walks a tree and records nothing of it."""
    above = open_top(str(tree.parent))
    written = WrittenBytes([str(tree)], [], lambda: iter(()))
    return {
        "the space that a layer takes": lambda: disk_usage(above, tree.name),
        "what a command has written": lambda: sum(size for _, size in written.sizes()),
        "whose files there are": lambda: examples_of_foreign_files([str(tree)]),
        "what leads into a root": lambda: ProjectTree(str(tree), lambda _: None, lambda _: False),
    }


@pytest.mark.once
def test_to_look_through_twice_the_depth_takes_twice_the_work(
    test_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: dict[str, list[int]] = {}
    for depth in (400, 800):
        make_deep(test_directory / str(depth), depth)
        for name, act in all_that_only_look(test_directory / str(depth)).items():
            work.setdefault(name, []).append(looked_up(monkeypatch, act))
        above = open_top(str(test_directory))
        remove_tree(above, str(depth))
        os.close(above)
    assert all(0 < twice < 3 * once for once, twice in work.values()), work


@pytest.mark.long
@pytest.mark.once
def test_what_lies_beyond_any_limit_is_looked_at_too(test_directory: Path) -> None:
    make_deep(test_directory / "tree", DEEPEST + 300)
    above = open_top(str(test_directory))
    assert disk_usage(above, "tree") >= (DEEPEST + 300) * os.stat(test_directory / "tree").st_blocks * 512
    written = WrittenBytes([str(test_directory / "tree")], [], lambda: iter(()))
    assert sum(size for _, size in written.sizes()) > 2 * (DEEPEST + 300)
    remove_tree(above, "tree")
    os.close(above)


@pytest.mark.long
@pytest.mark.once
def test_a_scan_records_the_files_of_a_deep_tree(store: Store, known: Project, project: Path) -> None:
    make_deep(project / "tree", _DEEP)
    assert scan_project(store, known).files == _DEEP


@pytest.mark.once
def test_what_was_moved_is_looked_up_anew(test_directory: Path) -> None:
    make_deep(test_directory / "tree", 300)
    top = open_top(str(test_directory / "tree"))
    parents = DirectoryCache(top)
    path = "/".join(["d"] * 290)
    first = os.fstat(parents.get(path)).st_ino
    os.rename("d", "e", src_dir_fd=top, dst_dir_fd=top)
    parents.forget("d")
    with pytest.raises(FileNotFoundError):
        parents.get(path)
    assert os.fstat(parents.get(f"e{path[1:]}")).st_ino == first
    parents.close()
    remove_tree(top, "e")
    os.close(top)


def test_what_a_command_nests_deeply_is_shown_while_it_runs(sandbox: Sandbox, store: Store) -> None:
    script = f"{nest(_DEEP, 'pass')[2]}open('f', 'w').close()\nprint('ready', flush=True)\ninput()"
    with sandbox.start(["python3", "-c", script]) as command:
        assert command.stdout.readline() == "ready\n"
        (path,), is_more = overview.written_paths(store, sandbox.find(command.run), 10)
        assert (path.path, is_more) == (f"{_NAME}/" * _DEEP + "f", False)
        command.kill()
        sandbox.discard(command.run)


def test_what_was_nested_deeply_in_a_kept_directory_is_swept(
    project: Path, test_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = open_top(str(test_directory))
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", f"{test_directory}/cache")
        with Sandbox(project, Policy(tmp="project")) as sandbox:
            sandbox.run(nest(_DEEP), cwd="/tmp")
            later = time.time() + 9
            count, size = remove_old_scratch(sandbox._store.places, before=later, leftovers_before=later)
            assert (count, size > 0) == (1, True)
            assert remove_old_scratch(sandbox._store.places, before=later, leftovers_before=later) == (0, 0)
    finally:
        remove_tree(top, "cache")
        os.close(top)
