"""The live monitor, on real inotify; with the mark, on a real overlay in a user namespace."""

from __future__ import annotations

import errno
import os
import select
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import IO, cast
from unittest.mock import Mock

import pytest

from conftest import need
from fumehood.core.changes import ABSENT, CHANGES_BY_KINDS, DIRECTORY, LAYER_KINDS, LIVE_KINDS, OPAQUE, WHITEOUT
from fumehood.linux.monitor import ADDED, CANCELLED, REMOVED, UPDATED, Directory, Monitor, WatchedLayer, state_of
from processes import nothing_more_is_open, open_descriptors

pytestmark = pytest.mark.once

# In namespaces of its own: mounts the overlay, then is a shell in it.
ENTER = """
mount -t overlay -o userxattr,volatile,lowerdir=$0/project,upperdir=$0/upper,workdir=$0/work none $0/merged &&
cd $0/merged && exec sh
"""
# Does every kind of thing to a tree, as fast as it can, then prints what is left.
RANDOM_WORK = r"""
import os, random, shutil, sys
chance = random.Random(int(sys.argv[1]))
names = "abcde"
def somewhere():
    return "/".join(chance.choices(names, k=chance.choice((1, 1, 2, 2, 3, 4))))
def write(p): open(p, "a").close()
def clear(p): shutil.rmtree(p) if os.path.isdir(p) and not os.path.islink(p) else os.unlink(p)
def rename(p): os.rename(p, somewhere())
def move(p):
    to = os.path.realpath(somewhere())
    to.startswith(os.path.realpath(p)) or shutil.move(p, to)  # into itself would go on for ever
acts = [write, write, os.mkdir, os.mkdir, clear, clear, os.rmdir, os.makedirs, rename, rename,
        lambda p: os.symlink(chance.choice(names), p), move,
        lambda p: os.link(p, somewhere()), lambda p: os.chmod(p, 0o700)]
for _ in range(int(sys.argv[2])):
    try:
        chance.choice(acts)(somewhere())
    except (OSError, shutil.Error):
        pass
left = [os.path.join(where, name)[2:] for where, subs, files in os.walk(".") for name in subs + files]
print(*left, sep="\n")
"""


def write(top: Path, *paths: str) -> None:
    for path in paths:
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text("x")


class Hood:
    """A project, a layer over it, a shell that sees both as one, and a monitor of the layer."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.project, self.upper = base / "project", base / "upper"
        for directory in (self.project, self.upper, base / "work", base / "merged"):
            directory.mkdir()
        self.heard: list[tuple[str, str]] = []
        self.ever_heard: list[tuple[str, str]] = []
        self.answer: Callable[[], object] = lambda: None
        self.monitor = Monitor([(str(self.upper), str(self.project))], self._hear)
        self.shell: subprocess.Popen[str] | None = None

    def _hear(self, what: str, root: str, path: str) -> None:
        assert root == str(self.project)
        self.heard.append((what, path))
        self.ever_heard.append((what, path))
        self.answer()

    def order(self, line: str) -> IO[str]:
        """Have the shell in the overlay begin something; return its output."""
        if self.shell is None:
            command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", ENTER, str(self.base)]
            self.shell = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True)
        assert self.shell.stdin
        assert self.shell.stdout
        self.shell.stdin.write(line + "\n")
        self.shell.stdin.flush()
        return self.shell.stdout

    def do(self, line: str) -> None:
        """Have the shell do something, and return when it is done."""
        answer = self.order(f"{line}\necho done $?").readline()
        if answer != "done 0\n":
            raise RuntimeError(f"{line!r} gave {answer!r}")

    def tells(self, line: str) -> list[tuple[str, str]]:
        """Do something; return what the listener then hears."""
        if self.monitor.fileno() < 0:
            self.monitor.start()
        self.do(line)
        self.monitor.drain()
        return self.hears()

    def hears(self) -> list[tuple[str, str]]:
        news, self.heard[:] = sorted(self.heard), []
        return news

    def lists(self) -> tuple[list[str], list[str], list[str]]:
        """Return the paths added, updated and removed so far, for somebody who only listened."""
        states: dict[str, str] = {}
        for what, path in self.ever_heard:
            assert states.get(path, "cancelled") != what, f"{path} was told twice as {what}"
            states[path] = what
        added, updated, removed = (
            sorted(path for path in states if states[path] == state) for state in ("added", "updated", "removed")
        )
        return added, updated, removed


@pytest.fixture
def layer(test_directory: Path) -> Iterator[Hood]:
    """Provide a project and a layer, which the test writes itself."""
    hood = Hood(test_directory)
    yield hood
    hood.monitor.stop()
    if hood.shell is not None:
        hood.shell.kill()
        hood.shell.communicate()


@pytest.fixture
def hood(layer: Hood) -> Hood:
    """Provide a project and a layer, which the kernel writes."""
    try:
        layer.do("true")
    except (OSError, RuntimeError):
        need(False, "no overlay can be mounted in a user namespace here")
    return layer


@pytest.mark.namespaces
def test_a_new_file_is_added_a_written_one_updated_a_deleted_one_removed(hood: Hood) -> None:
    write(hood.project, "old", "d/old", "d/gone")
    news = hood.tells("echo 1 > new; echo 2 >> old; chmod 600 d/old; rm d/gone")
    assert news == [("added", "new"), ("removed", "d/gone"), ("updated", "d/old"), ("updated", "old")]
    assert hood.lists() == (["new"], ["d/old", "old"], ["d/gone"])


@pytest.mark.namespaces
def test_created_then_deleted_cancels(hood: Hood) -> None:
    assert hood.tells("mkdir d; echo 1 > d/f") == [("added", "d"), ("added", "d/f")]
    assert hood.tells("rm -r d") == [("cancelled", "d"), ("cancelled", "d/f")]
    assert hood.tells("echo 1 > quick; rm quick") == []
    assert hood.lists() == ([], [], [])


@pytest.mark.namespaces
@pytest.mark.parametrize("rewrite", ["echo new > f", "echo new > t; mv t f", "ln -s x f", "mkdir f"])
def test_deleted_then_written_is_an_update(hood: Hood, rewrite: str) -> None:
    write(hood.project, "f")
    assert hood.tells("rm f") == [("removed", "f")]
    assert hood.tells(rewrite) == [("updated", "f")]
    assert hood.lists() == ([], ["f"], [])


@pytest.mark.namespaces
def test_modified_then_deleted_is_a_removal(hood: Hood) -> None:
    write(hood.project, "f")
    assert hood.tells("echo new >> f") == [("updated", "f")]
    assert hood.tells("rm f") == [("removed", "f")]
    assert hood.tells("echo again > f; rm f") == []
    assert hood.lists() == ([], [], ["f"])


@pytest.mark.namespaces
def test_a_move_is_a_removal_and_an_addition(hood: Hood) -> None:
    write(hood.project, "old", "target")
    assert hood.tells("mv old new") == [("added", "new"), ("removed", "old")]
    assert hood.tells("mv new target") == [("cancelled", "new"), ("updated", "target")]
    assert hood.lists() == ([], ["target"], ["old"])


@pytest.mark.namespaces
def test_a_moved_directory_takes_its_files_along_and_is_still_followed(hood: Hood) -> None:
    write(hood.project, "lower/f", "lower/sub/g")
    hood.tells("mkdir -p one/sub; echo 1 > one/sub/f")
    moved = hood.tells("mv one two")
    assert [what for what, _ in moved] == ["added"] * 3 + ["cancelled"] * 3
    assert hood.tells("echo 1 > two/sub/later") == [("added", "two/sub/later")]
    hood.tells("mv lower new")
    added, updated, removed = hood.lists()
    assert added == ["new", "new/f", "new/sub", "new/sub/g", "two", "two/sub", "two/sub/f", "two/sub/later"]
    assert updated == []
    assert removed == ["lower", "lower/f", "lower/sub", "lower/sub/g"]


@pytest.mark.namespaces
def test_a_directory_made_anew_hides_what_the_project_had_in_it(hood: Hood) -> None:
    write(hood.project, "d/kept", "d/lost", "d/deep/lost")
    hood.tells("rm -r d")
    assert hood.lists() == ([], [], ["d", "d/deep", "d/deep/lost", "d/kept", "d/lost"])
    news = hood.tells("mkdir d; echo 1 > d/kept; echo 1 > d/new")
    assert news == [("added", "d/new"), ("updated", "d"), ("updated", "d/kept")]
    assert hood.lists() == (["d/new"], ["d", "d/kept"], ["d/deep", "d/deep/lost", "d/lost"])


@pytest.mark.namespaces
def test_a_directory_touched_only_inside_is_no_news_but_its_mode_is(hood: Hood) -> None:
    write(hood.project, "d/f")
    assert hood.tells("echo 1 > d/new") == [("added", "d/new")]
    assert hood.tells("chmod 711 d") == [("updated", "d")]


@pytest.mark.namespaces
def test_a_symlink_of_the_project_is_never_followed(hood: Hood) -> None:
    write(hood.project, "real/f")
    (hood.project / "link").symlink_to("real")
    hood.tells("rm link; mkdir link; echo 1 > link/f; rm -r real; ln -s / real")
    assert hood.lists() == (["link/f"], ["link", "real"], ["real/f"])


@pytest.mark.namespaces
def test_a_long_write_is_told_once(hood: Hood) -> None:
    write(hood.project, "big")
    assert hood.tells("head -c 3000000 /dev/zero >> big") == [("updated", "big")]
    assert hood.tells("head -c 3000000 /dev/zero >> big; touch big; chmod 600 big") == []


@pytest.mark.namespaces
def test_nested_directories_made_at_once_are_all_found(hood: Hood) -> None:
    hood.monitor.start()
    hood.do("for i in 1 2 3 4 5 6 7 8; do mkdir -p a/b$i/c/d; echo 1 > a/b$i/c/d/f; echo 1 > a/b$i/g; done")
    hood.monitor.stop()
    added, _, _ = hood.lists()
    assert len(added) == 1 + 8 * 5
    assert not hood.monitor.incomplete


@pytest.mark.long
@pytest.mark.namespaces
def test_thousands_of_files_are_told_one_by_one(hood: Hood) -> None:
    write(hood.project, *(f"lots/{number % 20}/{number}" for number in range(1000)))
    news = hood.tells("mkdir many; cd many; seq 4000 | xargs touch; cd ..; rm -r lots")
    assert sum(what == "added" for what, _ in news) == 1 + 4000
    assert sum(what == "removed" for what, _ in news) == 1 + 20 + 1000
    assert not hood.monitor.incomplete


@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_command_does_meanwhile_the_lists_end_up_true(hood: Hood, seed: int) -> None:
    write(hood.project, "a/a/a", "a/a/b", "a/b/c", "b/c/d", "b/d/e/a", "c/b/a", "c/c/a/b", "d", "e/e/e")
    before = {str(path.relative_to(hood.project)) for path in hood.project.rglob("*")}
    hood.monitor.start()
    (hood.base / "random_work.py").write_text(RANDOM_WORK)
    output = hood.order(f"exec python3 -I ../random_work.py {seed} 3000")
    while output.fileno() not in select.select([hood.monitor.fileno(), output.fileno()], [], [])[0]:
        hood.monitor.drain()
    after = set(output.read().splitlines())
    hood.monitor.stop()
    written = {path for path in after & before if is_entry(hood.upper / path)}
    added, updated, removed = map(set, hood.lists())
    assert (added, removed) == (after - before, before - after)
    assert {path for path in updated if is_entry(hood.upper / path)} == written
    assert not hood.monitor.incomplete


def is_entry(path: Path) -> bool:
    return path.is_symlink() or (path.exists() and not path.is_dir())


def test_stop_drains_what_is_pending_and_can_be_repeated(layer: Hood) -> None:
    before = open_descriptors()
    layer.monitor.start()
    write(layer.upper, "in")
    layer.monitor.stop()
    layer.monitor.stop()
    write(layer.upper, "out")
    layer.monitor.drain()
    assert layer.monitor.fileno() == -1
    assert layer.hears() == [("added", "in")]
    assert nothing_more_is_open(before)


def test_what_was_there_before_the_watch_is_told_at_the_start(layer: Hood) -> None:
    write(layer.project, "gone", "changed")
    write(layer.upper, "d/f", "changed")
    os.mknod(layer.upper / "gone", stat.S_IFCHR, os.makedev(0, 0))
    layer.monitor.start()
    assert layer.hears() == [("added", "d"), ("added", "d/f"), ("removed", "gone"), ("updated", "changed")]


def test_a_directory_that_becomes_opaque_hides_what_is_below(layer: Hood) -> None:
    write(layer.project, "d/f")
    (layer.upper / "d").mkdir()
    layer.monitor.start()
    os.setxattr(layer.upper / "d", "user.overlay.opaque", b"y")
    layer.monitor.stop()
    assert layer.lists() == ([], ["d"], ["d/f"])


def test_each_layer_speaks_for_its_own_root(test_directory: Path) -> None:
    write(test_directory, "one/x", "one-upper/f", "two/f", "two-upper/f")
    one, two = str(test_directory / "one"), str(test_directory / "two")
    heard: list[tuple[str, str, str]] = []
    monitor = Monitor([(f"{one}-upper", one), (f"{two}-upper", two)], lambda *told: heard.append(told))
    monitor.start()
    monitor.stop()
    assert heard == [("added", one, "f"), ("updated", two, "f")]


def test_names_are_any_bytes(layer: Hood) -> None:
    layer.monitor.start()
    names = [b"bad\xff\n", b"bad\xff\n/-\xfe,:\\"]
    for name in names:
        os.mkdir(bytes(layer.upper) + b"/" + name)
    layer.monitor.stop()
    assert layer.lists()[0] == [os.fsdecode(name) for name in names]


@pytest.mark.long
def test_lost_events_are_made_up_for_by_listing(layer: Hood) -> None:
    queue = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if queue > 100_000:
        pytest.skip(f"the queue holds {queue} events here")
    layer.monitor.start()
    write(layer.upper, *map(str, range(queue + 100)))
    (layer.upper / "0").unlink()
    layer.monitor.drain()
    assert layer.monitor.incomplete
    assert len(layer.lists()[0]) == queue + 99


@pytest.mark.parametrize(("lacking", "code"), [("INotify", errno.EMFILE), ("INotify.add_watch", errno.ENOSPC)])
def test_at_a_limit_of_the_host_the_end_still_tells_all(
    layer: Hood, monkeypatch: pytest.MonkeyPatch, lacking: str, code: int
) -> None:
    monkeypatch.setattr(f"inotify_simple.{lacking}", Mock(side_effect=OSError(code, "none left")))
    layer.monitor.start()
    write(layer.upper, "d/f")
    assert select.select([layer.monitor.fileno()], [], [], 0) == ([], [], [])
    layer.monitor.drain()
    assert layer.monitor.incomplete
    layer.monitor.stop()
    assert layer.heard == [("added", "d"), ("added", "d/f")]


def test_a_missing_layer_raises_nothing(test_directory: Path) -> None:
    monitor = Monitor([(str(test_directory / "none"), str(test_directory))], lambda *_: None)
    monitor.start()
    monitor.drain()
    monitor.stop()
    assert monitor.incomplete


@pytest.mark.namespaces
def test_a_directory_closed_to_us_is_followed_once_it_opens(hood: Hood) -> None:
    if os.getuid() == 0:
        pytest.skip("root may read everything")
    assert hood.tells("mkdir -m 000 d") == [("added", "d")]
    assert hood.monitor.incomplete
    assert hood.tells("chmod 700 d; echo 1 > d/f") == [("added", "d/f")]


def test_an_endlessly_deep_tree_is_followed_as_far_as_paths_go(layer: Hood) -> None:
    layer.monitor.start()
    deep = "/".join(["d" * 200] * 15)
    for top in ("a", "b"):
        (layer.upper / top / deep).mkdir(parents=True)
    (layer.upper / "b").rename(layer.upper / "a" / deep / "b")
    layer.monitor.stop()
    shutil.rmtree(layer.upper)  # by descriptors, as these paths are too long to be named
    assert layer.monitor.incomplete
    assert len(layer.lists()[0]) == 1 + 15 + 1 + 6


def test_a_listener_that_raises_is_not_called_again(layer: Hood) -> None:
    layer.answer = lambda: 1 // 0
    layer.monitor.start()
    write(layer.upper, "a", "b")
    with pytest.raises(ZeroDivisionError):
        layer.monitor.drain()
    layer.monitor.stop()
    assert layer.heard == [("added", "a")]


def test_a_listener_may_stop_the_monitor(layer: Hood) -> None:
    layer.answer = layer.monitor.stop
    layer.monitor.start()
    write(layer.upper, "a", "b")
    layer.monitor.drain()
    assert layer.heard == [("added", "a"), ("added", "b")]
    assert layer.monitor.fileno() == -1


# The rules of the live monitor, on plain values.

ENTRIES = [kind for kind in LAYER_KINDS if kind not in (WHITEOUT, OPAQUE)]
STATES = (None, ADDED, UPDATED, REMOVED)


def new_directory() -> Directory:
    return Directory(cast("WatchedLayer", None))


def news(before: str | None, now: str | None) -> str | None:
    """What a listener hears of a path that was in one state and is in another."""
    directory = new_directory()
    directory.record("a", before)
    return directory.record("a", now)


@pytest.mark.parametrize("kind", ENTRIES)
def test_what_the_project_lacks_is_added(kind: str) -> None:
    assert state_of(kind, ABSENT) == ADDED
    assert state_of(kind, ABSENT, hidden=True) == ADDED


@pytest.mark.parametrize("layer", ENTRIES)
@pytest.mark.parametrize("project", [kind for kind in LIVE_KINDS if kind != ABSENT])
def test_what_the_project_has_is_updated_unless_both_are_directories(layer: str, project: str) -> None:
    expected = None if layer == project == DIRECTORY else UPDATED
    assert state_of(layer, project) == expected


def test_a_directory_made_anew_or_with_another_mode_is_updated() -> None:
    assert state_of(DIRECTORY, DIRECTORY, altered=True) == UPDATED


@pytest.mark.parametrize("project", LIVE_KINDS)
def test_a_whiteout_removes_what_the_project_has(project: str) -> None:
    assert state_of(WHITEOUT, project) == (None if project == ABSENT else REMOVED)


@pytest.mark.parametrize("project", LIVE_KINDS)
def test_what_an_opaque_directory_hides_is_removed(project: str) -> None:
    assert state_of(ABSENT, project) is None
    assert state_of(ABSENT, project, hidden=True) == (None if project == ABSENT else REMOVED)


def test_the_scan_sees_a_change_wherever_something_is_told() -> None:
    for (layer, project), change in CHANGES_BY_KINDS.items():
        if layer != OPAQUE:
            assert (state_of(layer, project) is None) == (change is None), (layer, project)


@pytest.mark.parametrize("state", STATES)
def test_the_same_state_is_no_news(state: str | None) -> None:
    assert news(state, state) is None


@pytest.mark.parametrize("before", [ADDED, UPDATED, REMOVED])
def test_a_told_path_that_is_untouched_again_is_cancelled(before: str) -> None:
    assert news(before, None) == CANCELLED


def test_each_rule_between_two_looks() -> None:
    assert news(None, None) is None  # created and deleted before anybody looked
    assert news(ADDED, None) == CANCELLED  # created, then deleted
    assert news(UPDATED, REMOVED) == REMOVED  # modified, then deleted
    assert news(REMOVED, UPDATED) == UPDATED  # deleted, then written again


def test_a_directory_remembers_what_it_told() -> None:
    top = new_directory()
    assert top.record("a", ADDED) == ADDED
    assert top.record("a", ADDED) is None
    assert top.enter("sub").enter("deep").record("b", ADDED) == ADDED
    assert top.enter("sub").enter("deep").record("b", ADDED) is None
    assert top.enter("sub").enter("deep").path == "sub/deep"


def test_a_dropped_directory_is_gone_with_all_below_it() -> None:
    top = new_directory()
    sub = top.enter("sub")
    deep = sub.enter("deep")
    deep.record("b", ADDED)
    assert top.drop("sub") == [sub, deep]
    assert sub.gone
    assert deep.gone
    assert top.drop("sub") == []
    assert top.enter("sub") is not sub
