"""Steps move entries between a layer and a project, and take themselves back: on real entries, without a sandbox."""

import os
import stat

import hypothesis
import pytest
from hypothesis import strategies

from fumehood.core import changes as c
from fumehood.core.changes import files_with_other_links, plan_steps
from fumehood.core.judge import HOLD_ALL, judge
from fumehood.core.request import APPLY
from fumehood.errors import Unfinished
from fumehood.linux import nofollow, steps
from fumehood.linux.layer import scan
from fumehood.linux.lock import Lock
from fumehood.linux.nofollow import open_top
from fumehood.linux.steps import PathChanged, Sides
from fumehood.service.apply import apply_changes
from snapshots import snapshot

# To an ordinary user closed directories are closed: this must run as one too.
pytestmark = pytest.mark.namespaces


class Hand:
    """A project and a layer over it made by hand, with the way between them."""

    def __init__(self, top):
        # Where a run's layer lies: runs/ID/0/upper.
        self.live, self.upper = top / "live", top / "runs/run/0/upper"
        self.live.mkdir()
        self.upper.mkdir(parents=True)
        self.descriptors = open_top(str(self.upper)), open_top(str(self.live))
        self.sides = Sides(*self.descriptors)

    def changes(self):
        found = scan(0, *self.descriptors)
        judge(found, APPLY)
        return found

    def ready(self):
        found = self.changes()
        planned = plan_steps(found)
        self.sides.prepare(planned, files_with_other_links(found, "after"))
        return planned

    def close(self):
        self.sides.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


@pytest.fixture
def hand(test_directory):
    hand = Hand(test_directory)
    yield hand
    hand.close()


def both(hand):
    """Both sides; a whiteout is one whenever it was made."""
    layer = {path: what if what[0] != "device" else "a whiteout" for path, what in snapshot(hand.upper).items()}
    return snapshot(hand.live), layer


def whiteout(path):
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def swap(hand):
    (hand.live / "it").write_text("old")
    (hand.upper / "it").write_text("newer")


def swap_kinds(hand):
    (hand.live / "it").mkdir()
    (hand.live / "it/old").write_text("old")
    (hand.upper / "it").symlink_to("new")


def put(hand):
    (hand.upper / "it").mkdir(mode=0o555)


def take(hand):
    (hand.live / "it").write_text("old")
    whiteout(hand.upper / "it")


def take_directory(hand):
    (hand.live / "it").mkdir(mode=0o500)
    whiteout(hand.upper / "it")


def make_directory(hand):
    (hand.upper / "it").mkdir(mode=0o750)
    os.setxattr(hand.upper / "it", "user.colour", b"blue")
    (hand.upper / "it/file").write_text("new")
    os.mkfifo(hand.upper / "it/fifo")


def change_mode(hand):
    (hand.live / "it").mkdir(mode=0o755)
    (hand.upper / "it").mkdir(mode=0o500)


SITUATIONS = [swap, swap_kinds, put, take, take_directory, make_directory, change_mode]
every_situation = pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.__name__.replace("_", " "))


@every_situation
def test_a_step_that_is_taken_back_leaves_both_sides_as_they_were(hand, situation):
    situation(hand)
    before = both(hand)
    planned = hand.ready()
    for step in planned:
        hand.sides.do(step)
    assert snapshot(hand.live) != before[0]
    for step in reversed(planned):
        hand.sides.undo(step)
    assert both(hand) == before


@every_situation
def test_a_step_can_be_done_again_after_it_was_taken_back(hand, situation):
    situation(hand)
    for step in (planned := hand.ready()):
        hand.sides.do(step)
    done = snapshot(hand.live)
    for step in reversed(planned):
        hand.sides.undo(step)
    for step in hand.ready():
        hand.sides.do(step)
    assert snapshot(hand.live) == done


def edited(live):
    (live / "it").write_text("the person's")


def edited_to_the_same_size(live):
    (live / "it").write_text("our")
    os.utime(live / "it", (1, 1))


def replaced(live):
    (live / "mine").write_text("old")
    os.replace(live / "mine", live / "it")


def removed(live):
    (live / "it").unlink()


def given_a_mode(live):
    (live / "it").chmod(0o600)


def left_to_the_person(hand, act, perform, step):
    """Let a person act, and see that a step is refused then and leaves all as they have it."""
    act(hand.live)
    before = both(hand)
    with pytest.raises(PathChanged, match="it"):
        perform(step)
    assert both(hand) == before


@pytest.mark.parametrize("situation", [swap, take])
@pytest.mark.parametrize("act", [edited, edited_to_the_same_size, replaced, given_a_mode])
def test_a_path_that_changed_since_it_was_judged_is_left_to_the_person(hand, situation, act):
    situation(hand)
    (step,) = hand.ready()
    left_to_the_person(hand, act, hand.sides.do, step)


def test_what_a_person_changed_is_not_out_of_its_place_for_a_moment(hand, monkeypatch):
    swap(hand)
    changes = hand.changes()
    edited(hand.live)
    for name in ("try_exchange", "renameat2"):
        monkeypatch.setattr(steps.libc, name, lambda *_: pytest.fail("it was touched"))
    applied(hand, changes)
    assert [change.verdict for change in changes] == [c.CONFLICT]


@pytest.mark.parametrize("way", ["one by one", "plainly"])
def test_what_a_person_saves_while_a_swap_is_taken_back_stays_in_the_project(hand, monkeypatch, way):
    swap(hand)
    (step,) = hand.ready()
    texts = iter(["first", "second"])

    def after_a_save(name):
        act = getattr(steps.libc, name)

        def acting(*arguments):
            text = next(texts, "")
            if text:
                (hand.live / "mine").write_text(text)
                os.replace(hand.live / "mine", hand.live / "it")
            return act(*arguments)

        monkeypatch.setattr(steps.libc, name, acting)

    after_a_save("renameat2")
    after_a_save("try_exchange")
    if way == "plainly":
        assert hand.sides.swap_files([step], 0, [], even_open=False) == 0
    else:
        with pytest.raises(PathChanged):
            hand.sides.do(step)
    assert (hand.live / "it").read_text() == "second"


def test_a_path_that_went_away_since_it_was_judged_is_no_longer_taken(hand):
    take(hand)
    (step,) = hand.ready()
    removed(hand.live)
    with pytest.raises(PathChanged):
        hand.sides.do(step)


@pytest.mark.parametrize("situation", [put, make_directory])
def test_a_path_that_appeared_since_it_was_judged_is_not_replaced(hand, situation):
    situation(hand)
    step = hand.ready()[0]
    (hand.live / "it").write_text("the person's")
    before = both(hand)
    with pytest.raises(PathChanged):
        hand.sides.do(step)
    assert both(hand) == before


def test_a_directory_that_became_another_since_it_was_judged_keeps_its_mode(hand):
    change_mode(hand)
    (step,) = hand.ready()
    os.rename(hand.live / "it", hand.live / "gone")
    (hand.live / "it").mkdir(mode=0o755)
    with pytest.raises(PathChanged):
        hand.sides.do(step)
    assert stat.S_IMODE((hand.live / "it").stat().st_mode) == 0o755


def take_tree(hand):
    (hand.live / "it/sub").mkdir(parents=True)
    (hand.live / "it/sub/file").write_text("old")
    whiteout(hand.upper / "it")


def swap_tree(hand):
    (hand.live / "it/sub").mkdir(parents=True)
    (hand.live / "it/sub/file").write_text("old")
    (hand.upper / "it").write_text("new")


def put_tree(hand):
    (hand.upper / "it/sub").mkdir(parents=True)
    (hand.upper / "it/sub/file").write_text("new")


def put_tree_for_a_file(hand):
    put_tree(hand)
    (hand.live / "it").write_text("old")


def adding(live):
    (live / "it/sub/mine").write_text("the person's")


def editing(live):
    (live / "it/sub/file").write_text("the person's")


def saving(live):
    (live / "it/sub/.file").write_text("our")
    os.replace(live / "it/sub/.file", live / "it/sub/file")


def removing(live):
    (live / "it/sub/file").unlink()


def closing(live):
    (live / "it/sub").chmod(0o711)


in_a_tree = pytest.mark.parametrize("act", [adding, editing, saving, removing, closing])


@in_a_tree
@pytest.mark.parametrize("situation", [take_tree, swap_tree])
def test_a_tree_that_changed_inside_since_it_was_judged_is_left_to_the_person(hand, situation, act):
    situation(hand)
    (step,) = hand.ready()
    left_to_the_person(hand, act, hand.sides.do, step)


@in_a_tree
@pytest.mark.parametrize("situation", [put_tree, put_tree_for_a_file])
def test_a_new_tree_that_a_person_has_worked_in_is_not_taken_back(hand, situation, act):
    situation(hand)
    (step,) = hand.ready()
    hand.sides.do(step)
    left_to_the_person(hand, act, hand.sides.undo, step)


def test_a_directory_that_got_another_mode_since_it_was_judged_keeps_that(hand):
    change_mode(hand)
    (step,) = hand.ready()
    (hand.live / "it").chmod(0o711)
    with pytest.raises(PathChanged):
        hand.sides.do(step)
    assert stat.S_IMODE((hand.live / "it").stat().st_mode) == 0o711


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o500])
def test_directories_that_forbid_a_step_to_their_owner_are_as_they_were_afterwards(hand, mode):
    for top in (hand.live, hand.upper):
        (top / "d/e").mkdir(parents=True)
    (hand.live / "d/e/old").write_text("old")
    (hand.upper / "d/e/old").write_text("newer")
    (hand.upper / "d/e/new").write_text("new")
    os.setxattr(hand.upper / "d/e/old", "user.overlay.origin", b"\0")
    for top in (hand.live, hand.upper):
        for path in ("d/e", "d"):
            (top / path).chmod(mode)
    for step in hand.ready():
        hand.sides.do(step)
    hand.sides.close()
    for top in (hand.live, hand.upper):
        for path in ("d", "d/e"):
            assert stat.S_IMODE((top / path).stat().st_mode) == mode
            (top / path).chmod(0o700)
    assert (hand.live / "d/e/old").read_text() == "newer"
    assert os.listxattr(hand.live / "d/e/old") == []
    assert (hand.upper / "d/e/old").read_text() == "old"
    assert (hand.live / "d/e/new").exists()


@pytest.mark.ordinary
def test_a_read_only_directory_that_can_not_move_after_all_stays_read_only(hand):
    take_directory(hand)
    (step,) = hand.ready()
    # Something else stands in the layer where the backup should go.
    (hand.upper / "it").unlink()
    (hand.upper / "it").write_text("in the way")
    with pytest.raises(FileExistsError):
        hand.sides.do(step)
    assert stat.S_IMODE((hand.live / "it").stat().st_mode) == 0o500


def test_a_deletion_that_fails_keeps_its_whiteout(hand, monkeypatch):
    take(hand)
    (step,) = hand.ready()

    def no(*_arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(steps.libc, "renameat2", no)
        with pytest.raises(OSError, match="No space"):
            hand.sides.do(step)
    assert stat.S_ISCHR((hand.upper / "it").lstat().st_mode)
    assert (hand.live / "it").read_text() == "old"
    hand.sides.do(step)
    assert (hand.upper / "it").read_text() == "old"


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.__name__.replace("_", " "))
def test_no_step_goes_through_a_parent_that_became_a_symlink(hand, test_directory, situation):
    outside = test_directory / "outside"
    outside.mkdir()
    inner = Hand.__new__(Hand)
    inner.live, inner.upper = hand.live / "d", hand.upper / "d"
    inner.live.mkdir()
    inner.upper.mkdir()
    situation(inner)
    planned = hand.ready()
    os.rename(hand.live / "d", hand.live / "moved")
    (hand.live / "d").symlink_to(outside)
    before = snapshot(outside)
    with pytest.raises(OSError, match="symbolic links"):
        hand.sides.do(planned[0])
    assert snapshot(outside) == before


# --- whole change sets ---


def applied(hand, found, **how):
    # As if the run had begun after everything else was written.
    os.utime(hand.upper.parent.parent, (2**32, 2**32))
    apply_changes(found, [str(hand.live)], [str(hand.upper)], "run", **how)


def test_a_conflict_on_a_new_directory_keeps_all_of_it_in_the_layer(hand):
    make_directory(hand)
    (hand.upper / "other").write_text("new")
    found = hand.changes()
    (hand.live / "it").mkdir()
    (hand.live / "it/mine").write_text("the person's")
    applied(hand, found)
    assert {change.path: change.verdict for change in found} == {
        "it": c.CONFLICT, "it/file": c.CONFLICT, "it/fifo": c.UNSUPPORTED, "other": c.APPLIED,
    }  # fmt: skip
    assert os.listdir(hand.live / "it") == ["mine"]
    assert (hand.upper / "it/file").read_text() == "new"


def test_a_conflict_inside_a_new_directory_holds_only_what_it_is_about(hand, monkeypatch):
    make_directory(hand)
    (hand.upper / "it/sub").mkdir()
    (hand.upper / "it/sub/deep").write_text("new")
    found = hand.changes()
    make = os.mkdir

    def and_a_person_makes_something_in_it(name, *arguments, **options):
        make(name, *arguments, **options)
        if name == "it":
            (hand.live / "it/sub").write_text("the person's")

    monkeypatch.setattr(os, "mkdir", and_a_person_makes_something_in_it)
    applied(hand, found)
    assert {change.path: change.verdict for change in found} == {
        "it": c.APPLIED, "it/file": c.APPLIED, "it/fifo": c.UNSUPPORTED,
        "it/sub": c.CONFLICT, "it/sub/deep": c.CONFLICT,
    }  # fmt: skip
    assert (hand.live / "it/sub").read_text() == "the person's"


def test_a_failure_that_is_taken_back_names_what_a_person_changed_meanwhile(hand, monkeypatch):
    swap(hand)
    (hand.upper / "new").write_text("new")
    found = hand.changes()
    rename = steps.libc.renameat2

    def fail_at_new(old_dir, old, *more):
        if old == b"new":
            (hand.live / "it").write_text("the person's")
            raise OSError(28, "No space left on device", old)
        rename(old_dir, old, *more)

    monkeypatch.setattr(steps.libc, "renameat2", fail_at_new)
    with pytest.raises(Unfinished, match="No space left on device: new; could not be taken back: it"):
        applied(hand, found)
    assert (hand.live / "it").read_text() == "the person's"
    assert (hand.upper / "it").read_text() == "old"


def test_what_a_person_changed_while_all_is_taken_back_for_a_conflict_is_finished_later(hand, monkeypatch):
    swap(hand)
    (hand.upper / "late").write_text("new")
    found = hand.changes()
    rename = steps.libc.renameat2

    def change_both(old_dir, old, *more):
        if old == b"late":
            (hand.live / "it").write_text("the person's")
            (hand.live / "late").write_text("the person's too")
        rename(old_dir, old, *more)

    monkeypatch.setattr(steps.libc, "renameat2", change_both)
    with pytest.raises(Unfinished, match="changed in the project meanwhile: it"):
        applied(hand, found, on_conflict=HOLD_ALL)
    assert (hand.live / "it").read_text() == "the person's"
    assert (hand.live / "late").read_text() == "the person's too"


names = strategies.sampled_from(["a", "b", "c"])
leaves = strategies.sampled_from(["x", "yy", ("link", "a"), ("link", "/nowhere")])
entries = strategies.recursive(
    leaves, lambda inner: strategies.dictionaries(names, inner, max_size=3), max_leaves=6
)
trees = strategies.dictionaries(names, entries, max_size=3)


def build(top, tree):
    for name, what in tree.items():
        if isinstance(what, dict):
            (top / name).mkdir()
            build(top / name, what)
        elif isinstance(what, tuple):
            (top / name).symlink_to(what[1])
        else:
            (top / name).write_text(what)


def build_layer(upper, old, new, *, opaque):
    """Write the layer that an overlay leaves when one tree becomes another."""
    for name in old.keys() | new.keys():
        here, was, now = upper / name, old.get(name), new.get(name)
        if now is None:
            whiteout(here)
        elif isinstance(was, dict) and isinstance(now, dict):
            here.mkdir()
            if opaque:
                os.setxattr(here, "user.overlay.opaque", b"y")
                build(here, now)
            else:
                build_layer(here, was, now, opaque=opaque)
        elif was != now:
            build(upper, {name: now})


def shape(top):
    found = {}
    for path in top.iterdir():
        if path.is_symlink():
            found[path.name] = ("link", os.readlink(path))
        else:
            found[path.name] = shape(path) if path.is_dir() else path.read_text()
    return found


QUIET = [hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow]


@hypothesis.settings(max_examples=60, suppress_health_check=QUIET)
@hypothesis.given(old=trees, new=trees, opaque=strategies.booleans())
def test_any_tree_becomes_any_other_and_is_itself_again_when_all_is_taken_back(test_directory, old, new, opaque):
    here = test_directory / os.urandom(4).hex()
    here.mkdir()
    hand = Hand(here)
    try:
        build(hand.live, old)
        build_layer(hand.upper, old, new, opaque=opaque)
        before = snapshot(hand.live)
        planned = hand.ready()
        for step in planned:
            hand.sides.do(step)
        assert shape(hand.live) == new
        for step in reversed(planned):
            hand.sides.undo(step)
        assert snapshot(hand.live) == before
    finally:
        hand.close()


def test_in_a_git_directory_a_name_may_be_too_long_for_a_lock_beside_it(hand):
    name = "store.git/" + "x" * 255
    for top, text in ((hand.live, "old"), (hand.upper, "new")):
        (top / "store.git").mkdir()
        (top / name).write_text(text)
    (step,) = hand.ready()
    hand.sides.do(step)
    assert (hand.live / name).read_text() == "new"
    hand.sides.undo(step)
    assert (hand.live / name).read_text() == "old"


def test_a_note_that_another_process_took_for_a_dead_ones_is_made_again(hand, test_directory, monkeypatch):
    notes = test_directory / "notes"
    monkeypatch.setattr(nofollow, "mode_notes_directory", str(notes))
    take, others = Lock.take, [notes]

    def take_later(lock, **how):
        """The other one comes between the making of the note and its lock."""
        while others:
            steps.restore_modes(str(others.pop()))
        return take(lock, **how)

    monkeypatch.setattr(Lock, "take", take_later)
    note = nofollow.ModeNote()
    note.add(hand.descriptors[1], os.fstat(hand.descriptors[1]))
    assert not others
    assert [path.read_bytes().endswith(b"/live\0") for path in notes.iterdir()] == [True]
    note.end()
    assert list(notes.iterdir()) == []
