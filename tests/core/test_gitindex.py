"""What a git index means, held against git itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import need
from fumehood.linux.gitindex import LARGEST, meaning, names_any_object

FORMS = [(kind, version) for kind in ("sha1", "sha256") for version in (2, 3, 4)]


class Repository:
    """A repository of git's own making."""

    def __init__(self, top: Path, kind: str = "sha1", version: int = 2) -> None:
        self.top = top
        self._home = str(top / "home")
        top.mkdir()
        self.git("init", "-q", f"--object-format={kind}")
        for number in range(30):
            file = top / f"dir{number % 4}/file-{'x' * number}"
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{number}\n")
        self.git("add", "-A")
        self.git("commit", "-qm", "x")
        self.git("update-index", f"--index-version={version}")
        if version == 3:  # only where there is a flag that the others can't tell
            self.git("update-index", "--skip-worktree", "dir0/file-")

    def git(self, *arguments: str) -> str:
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            ["git", *names, *arguments], cwd=self.top, capture_output=True, text=True, check=True,
            env={"PATH": os.environ["PATH"], "HOME": self._home, "GIT_CONFIG_NOSYSTEM": "1"},
        )  # fmt: skip
        return done.stdout

    def index(self) -> bytes:
        return (self.top / ".git/index").read_bytes()


@pytest.fixture(params=FORMS, ids=lambda form: f"{form[0]}-v{form[1]}")
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    """One repository of each form."""
    need(shutil.which("git") is not None, "git is not here")
    made = Repository(tmp_path / "r", *request.param)
    assert made.index()[7] == request.param[1], "git wrote another version"
    return made


def test_a_refreshed_index_means_the_same(repository: Repository) -> None:
    before = repository.index()
    for path in repository.top.glob("dir0/*"):
        os.utime(path, (1e9, 1e9))
    repository.git("status")
    assert repository.index() != before
    assert meaning(repository.index()) == meaning(before) != ""


def test_the_names_that_an_index_has(repository: Repository) -> None:
    blobs = {bytes.fromhex(line.split()[1]) for line in repository.git("ls-files", "-s").splitlines()}
    tree = bytes.fromhex(repository.git("rev-parse", "HEAD^{tree}").strip())
    strange = [bytes([number]) * len(tree) for number in range(1, 200)]
    index = repository.index()
    assert len(blobs) == 30
    assert all(names_any_object(index, {*strange, name}) for name in blobs)
    is_named = names_any_object(index, {*strange, tree})
    assert is_named == (tree in index), "git notes trees after the entries, while they are so"
    assert not names_any_object(index, set(strange))
    assert not names_any_object(index, set())
    another_version, more = index[:4] + b"\0\0\0\x09" + index[8:], index[:8] + b"\xff" * 4 + index[12:]
    for torn in (b"x" + index, index[:-30], another_version, more):
        assert all(names_any_object(torn, {*strange, name}) for name in blobs)


def test_an_index_is_read_once_for_all_names(repository: Repository) -> None:
    class Counting(bytes):
        reads = 0

        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            Counting.reads += 1
            return super().__getitem__(at)

    counts = []
    for many in (10, 10_000):
        names = {number.to_bytes(4, "big") * 5 for number in range(1, many)}
        Counting.reads = 0
        assert not names_any_object(Counting(repository.index()), names)
        counts.append(Counting.reads)
    assert counts[0] == counts[1]


def test_an_index_without_entries_is_understood(repository: Repository) -> None:
    repository.git("rm", "-qr", "--cached", ".")
    assert meaning(repository.index()) != ""


@pytest.mark.parametrize(
    "line",
    [
        "update-index --assume-unchanged dir1/file-x", "update-index --skip-worktree dir1/file-x",
        "update-index --chmod=+x dir1/file-x", "rm -q --cached dir1/file-x", "mv dir1/file-x dir1/other",
        "add -N new", "reset -q --soft HEAD", "add changed",
    ],
)  # fmt: skip
def test_what_git_acts_on_is_told_apart(repository: Repository, line: str) -> None:
    (repository.top / "new").write_text("new")
    (repository.top / "changed").write_text("1")
    repository.git("add", "changed")
    (repository.top / "changed").write_text("2")
    before = repository.index()
    repository.git(*line.split())
    assert (meaning(repository.index()) != meaning(before)) == ("reset" not in line)


def test_a_conflict_is_told_from_its_resolution(tmp_path: Path) -> None:
    need(shutil.which("git") is not None, "git is not here")
    made = Repository(tmp_path / "r")
    for branch in ("one", "two"):
        made.git("checkout", "-q", "-b", branch, "HEAD" if branch == "one" else "HEAD~1")
        (made.top / "dir0/file-").write_text(branch)
        made.git("commit", "-qam", branch)
    with pytest.raises(subprocess.CalledProcessError):
        made.git("merge", "one")
    conflict = meaning(made.index())
    made.git("add", "dir0/file-")
    resolved = meaning(made.index())
    made.git("update-index", "--clear-resolve-undo")
    assert len({conflict, resolved, meaning(made.index()), ""}) == 4


def test_a_damaged_index_means_nothing(repository: Repository) -> None:
    data = repository.index()
    assert {meaning(data[:end]) for end in range(len(data))} == {""}
    for at in range(0, len(data), 7):
        assert meaning(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]) == ""


def test_a_hash_that_git_was_told_to_skip_is_not_missed(repository: Repository) -> None:
    data = repository.index()
    size = 32 if "sha256" in repository.git("rev-parse", "--show-object-format") else 20
    assert meaning(data[:-size] + bytes(size)) == meaning(data)


def test_an_index_whose_entries_lie_elsewhere_means_nothing(tmp_path: Path) -> None:
    need(shutil.which("git") is not None, "git is not here")
    split = Repository(tmp_path / "split")
    split.git("update-index", "--split-index")
    assert meaning(split.index()) == ""
    sparse = Repository(tmp_path / "sparse")
    sparse.git("sparse-checkout", "init", "--cone", "--sparse-index")
    assert b"sdir" in sparse.index()
    assert meaning(sparse.index()) == ""


def test_a_huge_index_means_nothing() -> None:
    assert meaning(b"DIRC" + bytes(LARGEST)) == ""


@given(st.sampled_from((2, 3, 4)), st.integers(0, 1 << 32), st.binary(max_size=400))
def test_whatever_lies_in_one_is_no_error(version: int, count: int, rest: bytes) -> None:
    head = b"DIRC" + version.to_bytes(4, "big") + (count % (1 << 32)).to_bytes(4, "big")
    for size in (20, 32):
        meaning(head + rest + bytes(size))


def test_numbers_and_paths_without_end_are_given_up() -> None:
    entry = bytes(60) + b"\0\1"
    head = b"DIRC" + (4).to_bytes(4, "big") + (1).to_bytes(4, "big")
    assert meaning(head + entry + b"\xff" * (1 << 20) + bytes(20)) == ""
    assert meaning(head + entry + b"\0" + b"x" * 5000 + b"\0" + bytes(20)) == ""


def test_what_is_too_long_to_look_through_may_have_any_name() -> None:
    names = {bytes(range(20))}
    assert not names_any_object(bytes(1000), names)
    assert names_any_object(bytes(2 << 20), names)  # a hole, that a command has left in place of an index
    assert names_any_object(b"DIRC" + (2).to_bytes(4, "big") + bytes(2 << 20), names)
