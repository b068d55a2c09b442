"""The directories of a project are remembered: only those that have changed are listed again, and nothing is missed."""

import os
import random
import time
from pathlib import Path

import pytest

from fumehood.core.sensitive_names import PACKAGE_DIRECTORIES, why_path_is_held
from fumehood.linux import project_tree
from fumehood.linux.cache import TICK_NS
from fumehood.linux.nofollow import DirectoryCache
from fumehood.linux.project_tree import ProjectTree

NAMES = (".envrc", ".git", "mise.toml", "CLAUDE.md", ".mcp.json", "main.py", "HEAD", "objects", "refs", "lefthook.yml")


def search(top: Path, memory: Path | None = None) -> dict[str, list[object]]:
    tree = ProjectTree(str(top), why_path_is_held, PACKAGE_DIRECTORIES.__contains__, str(memory or ""))
    return {
        name: sorted(value) for name in ("repositories", "links", "files", "mise") if (value := getattr(tree, name))
    }


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that were listed, in order."""
    paths: list[str] = []
    open_listing = DirectoryCache.open_listing

    def note(self: DirectoryCache, path: str) -> int | None:
        paths.append(path)
        return open_listing(self, path)

    monkeypatch.setattr(DirectoryCache, "open_listing", note)
    return paths


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of 150 directories; most have nothing that a tool acts on."""
    top = tmp_path / "project"
    for number in range(150):
        (top / f"d{number // 10}/e{number % 10}").mkdir(parents=True)
    (top / "d3/e3/.envrc").write_text("source ../x\n")
    (top / "d4/.claude").symlink_to("e1")
    return top


def wait_until_settled() -> None:
    time.sleep(2 * TICK_NS / 1e9)


def test_only_directories_that_have_changed_are_listed_again(project: Path, tmp_path: Path, listed: list[str]) -> None:
    memory = tmp_path / "memory"
    wait_until_settled()
    first = search(project, memory)
    assert len(listed) == 166
    listed.clear()
    assert search(project, memory) == first
    assert listed == []
    (project / "d7/e7/.mcp.json").write_text("{}")
    assert (str(project / "d7/e7/.mcp.json"), why_path_is_held("d7/e7/.mcp.json")) in search(project, memory)["files"]
    assert listed == ["d7/e7"]


def test_a_change_just_after_the_search_is_seen(project: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    for number in range(20):  # without a pause: two changes may have the same time
        search(project, memory)
        (project / f"d{number % 15}/e{number % 10}/.envrc").write_text("")
        assert search(project, memory) == search(project)


def test_after_an_upgrade_nothing_is_remembered(
    project: Path, tmp_path: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    wait_until_settled()
    search(project, memory)
    listed.clear()
    version = project_tree._rules_version()
    assert {name for name, *_ in version} >= {"sensitive_names.py", "project_tree"}
    monkeypatch.setattr(project_tree, "_rules_version", lambda: [*version, ("new.py", 1, 1)])
    search(project, memory)
    assert len(listed) == 166


def test_on_a_file_system_with_coarse_times_nothing_is_trusted(
    project: Path, tmp_path: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_tree, "_COARSE_NS", 1)  # as if all times were whole
    memory = tmp_path / "memory"
    wait_until_settled()
    search(project, memory)
    listed.clear()
    search(project, memory)
    assert len(listed) == 166


def test_directories_with_finds_come_first_but_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command can neither hide them among thousands of directories, nor others behind thousands of them."""
    monkeypatch.setattr(project_tree, "_MOST_DIRECTORIES", 40)
    monkeypatch.setattr(project_tree, "_MOST_FIRST", 5)
    memory, top = tmp_path / "memory", tmp_path / "top"
    finds = [top / f"a/b/{number}/.envrc" for number in range(30)]
    for path in finds:
        path.parent.mkdir(parents=True)
        path.touch()
    assert len(search(top, memory)["files"]) == 30
    others = [top / f"{number}/.envrc" for number in range(36)]
    for path in others:
        path.parent.mkdir()
        path.touch()
    seen = [path for path, _ in search(top, memory)["files"]]
    assert len(set(seen) & set(map(str, others))) >= 30
    assert len(set(seen) & set(map(str, finds))) == 5


@pytest.mark.parametrize("seed", range(12))
def test_with_memory_the_same_is_found_as_without(tmp_path: Path, seed: int) -> None:
    """Change a tree at random; whatever was remembered before, nothing is missed and nothing is there that is gone."""
    choose = random.Random(seed)
    top, memory = tmp_path / "project", tmp_path / "memory"
    top.mkdir()

    def directories() -> list[str]:
        return [path for path, _, _ in os.walk(top)]

    for _ in range(30):
        for _ in range(choose.randrange(6)):
            _change_something(choose, directories())
        if choose.random() < 0.5:
            wait_until_settled()
        assert search(top, memory) == search(top)


def _change_something(choose: random.Random, directories: list[str]) -> None:
    place = f"{choose.choice(directories)}/{choose.choice((*NAMES, 'a', 'b', 'c'))}"
    act = choose.randrange(6)
    if act <= 1 and not os.path.lexists(place):
        os.mkdir(place)
    elif act == 2 and not os.path.lexists(place):
        os.symlink("a", place)
    elif act == 3 and not os.path.lexists(place):
        Path(place).touch()
    elif act == 4 and os.path.lexists(place) and not (os.path.isdir(place) and not os.path.islink(place)):
        os.unlink(place)
    elif act == 5 and len(directories) > 2:
        # Two directories change places, with all below them.
        one, other = choose.sample(directories[1:], 2)
        if not f"{one}/".startswith(f"{other}/") and not f"{other}/".startswith(f"{one}/"):
            spare = f"{directories[0]}/spare"
            os.rename(one, spare)
            os.rename(other, one)
            os.rename(spare, other)
