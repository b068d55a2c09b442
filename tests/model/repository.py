"""The git repository of a story's project: what an agent commits to, and a person looks at and stages in."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from plain import APPLIED, CONFLICT, Node, Tree

from conftest import PREFIX, scratch
from fumehood.core.judge import repository_of
from fumehood.linux import gitindex

IS_HERE = shutil.which("git") is not None
GIT = ".git"
STATE = f"{GIT}/HEAD"  # stands for HEAD, the index, refs and their logs: they share one fate
MESSAGE, OBJECTS = f"{GIT}/COMMIT_EDITMSG", f"{GIT}/objects"
COMMITTED, KEPT, STAGED = "c", "k", "p"  # what the agent commits, what nobody changes, what the person stages
# At once, so that nothing of it comes after what a person does as soon as something is printed.
TELL = f'told=$(git rev-parse HEAD; git ls-files -s | sha1sum | cut -c-40; find {OBJECTS} -mindepth 1); echo "$told"'

_TIMES = itertools.count(1_000_000_000)


def git(top: Path, *words: str) -> str:
    """Have git do something; it reads no configuration but the repository's."""
    done = subprocess.run(["git", *words], cwd=top, capture_output=True, text=True, check=False, umask=0o022)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=PREFIX, dir=scratch())


@cache
def _template() -> Path:
    """A repository with one commit, to be copied."""
    top = Path(_kept().name)
    git(top, "init", "-q", "--template=", "-b", "main")
    for name, value in (("user.name", "a"), ("user.email", "a@b"), ("gc.auto", "0")):
        git(top, "config", name, value)
    for name in (COMMITTED, KEPT):
        (top / name).write_text(f"{name}\n")
    git(top, "add", "-A")
    git(top, "commit", "-qm", "first")
    return top


def make(top: Path) -> None:
    """Make a directory a repository with one commit."""
    shutil.copytree(_template(), top, dirs_exist_ok=True)


def tree_of(top: Path) -> Tree:
    """What the model knows of a repository: its last commit and what is staged as one node, messages and objects."""
    head = (top / GIT / "refs/heads/main").read_text()
    objects = [os.path.join(here, name) for here, folders, files in os.walk(top / OBJECTS) for name in folders + files]
    message = Node("file", (top / MESSAGE).read_text(), 0o644, os.getgid())
    told = "\n".join([head.strip(), _entries((top / GIT / "index").read_bytes()), *objects])
    directory = Node("directory", "", 0o755, os.getgid())
    return {GIT: directory, OBJECTS: directory, MESSAGE: message} | told_of(told.replace(f"{top}/", ""))


def told_of(printed: str) -> Tree:
    """What `TELL` has printed, as the model has it."""
    head, entries, *objects = printed.splitlines()
    group = os.getgid()
    tree = {STATE: Node("repository", f"{head} {entries}", 0, 0)}
    for path in objects:
        is_file = path.count("/") > OBJECTS.count("/") + 1
        tree[path] = Node("file", "", 0o444, group) if is_file else Node("directory", "", 0o755, group)
    return tree


@cache
def _entries(index: bytes) -> str:
    with tempfile.NamedTemporaryFile() as file:
        file.write(index)
        file.flush()
        asked = subprocess.run(
            ["git", "ls-files", "-s"], cwd=_template(), env={**os.environ, "GIT_INDEX_FILE": file.name},
            capture_output=True, check=True,
        )  # fmt: skip
    return hashlib.sha1(asked.stdout, usedforsecurity=False).hexdigest()


def refresh(top: Path) -> None:
    """Have `git status` write the index anew: a file has another time, and nothing else is new."""
    before = (top / GIT / "index").read_bytes()
    os.utime(top / KEPT, (1e9, next(_TIMES)))
    git(top, "status")
    assert (top / GIT / "index").read_bytes() != before, "it was not refreshed"


def stage(top: Path, text: str) -> None:
    """Stage another content of the person's own file."""
    (top / STAGED).write_text(text)
    (top / STAGED).chmod(0o644)
    git(top, "add", STAGED)


def has_tree(top: Path) -> bool:
    """Whether the index names the tree of all that is in it, as after a commit."""
    index = gitindex._parse((top / GIT / "index").read_bytes())
    return index is not None and bool(index.entries_meaning) and index.is_in_commit()


def joined(top: Path, printed: str) -> Node:
    """The state of a commit that `TELL` has printed, with the person's own file staged over it."""
    head = printed.splitlines()[0]
    with tempfile.TemporaryDirectory() as place:
        index = {**os.environ, "GIT_INDEX_FILE": f"{place}/index"}
        for words in (["read-tree", head], ["update-index", "--add", STAGED]):
            subprocess.run(["git", *words], cwd=top, env=index, check=True, capture_output=True)
        return Node("repository", f"{head} {_entries(Path(place, 'index').read_bytes())}", 0, 0)


def check(top: Path) -> None:
    """See that nothing is missing that is referred to."""
    git(top, "fsck", "--no-dangling", "--strict")


def as_one(verdicts: dict[str, str]) -> dict[str, str]:
    """Let the state of the repository be one path."""
    states = {verdict for path, verdict in verdicts.items() if repository_of(f"/{path}")}
    if CONFLICT in states:
        assert APPLIED not in states, "half of two histories"
        states = {CONFLICT}
    assert len(states) <= 1, verdicts
    others = {path: verdict for path, verdict in verdicts.items() if not repository_of(f"/{path}")}
    return others if not states else others | {STATE: states.pop()}
