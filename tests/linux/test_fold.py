"""Layers folded into one show the same over a project."""

import os
import random
import stat
from pathlib import Path

import pytest

from fumehood.linux.held_layers import fold
from fumehood.linux.layer import LayerStack, set_opaque
from fumehood.linux.nofollow import open_top, remove_tree

pytestmark = pytest.mark.namespaces

_NAMES = "abcd"


def fill(directory: Path, rng: random.Random, *, layer: bool, depth: int = 3) -> None:
    """Make random entries; in a layer, also what only layers have."""
    for name in rng.sample(_NAMES, rng.randint(1, len(_NAMES))):
        path = directory / name
        kind = rng.choice(("file", "directory", "link", "whiteout" if layer else "file", "opaque" if layer else "file"))
        if kind in ("directory", "opaque") and depth:
            path.mkdir()
            if kind == "opaque":
                set_opaque(str(path))  # type: ignore[arg-type]
            fill(path, rng, layer=layer, depth=depth - 1)
            path.chmod(rng.choice((0o755, 0o700, 0o555)))
        elif kind == "link":
            path.symlink_to(rng.choice(_NAMES))
        elif kind == "whiteout":
            os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))
        else:
            path.write_text(str(rng.random()))


def shown(tops: list[int]) -> dict[str, tuple[object, ...]]:
    """What a stack shows: each path, its kind and mode, and what identifies a file."""
    stack = LayerStack(tops)
    try:
        return {
            path: (status.st_mode, None if stat.S_ISDIR(status.st_mode) else status.st_ino)
            for path, status in stack.walk("")
        }
    finally:
        stack.close()


def test_a_fold_shows_what_its_layers_show(test_directory: Path) -> None:
    rng = random.Random(13)
    for round_ in range(60):
        here = test_directory / str(round_)
        for name in ("project", "0", "1", "2", "folded"):
            (here / name).mkdir(parents=True)
            if name != "folded":
                fill(here / name, rng, layer=name != "project")
        project, *layers, folded = (open_top(str(here / name)) for name in ("project", "0", "1", "2", "folded"))
        fold(folded, layers)
        assert shown([folded, project]) == shown([*layers, project]), round_
        for top in (project, *layers, folded):
            os.close(top)
    above = open_top(str(test_directory))
    for round_ in range(60):
        remove_tree(above, str(round_))
    os.close(above)


def test_a_fold_copies_nothing_and_leaves_its_layers_whole(test_directory: Path) -> None:
    for name in ("over", "under", "folded"):
        (test_directory / name).mkdir()
    (test_directory / "under/f").write_text("old")
    (test_directory / "over/f").write_text("new")
    (test_directory / "under/g").write_text("g")
    over, under, folded = (open_top(str(test_directory / name)) for name in ("over", "under", "folded"))
    fold(folded, [over, under])
    for top in (over, under, folded):
        os.close(top)
    assert (test_directory / "folded/f").samefile(test_directory / "over/f")
    assert (test_directory / "folded/g").samefile(test_directory / "under/g")
    assert (test_directory / "under/f").read_text() == "old"


def test_a_directory_that_no_layer_shows_is_not_there(test_directory: Path) -> None:
    for name in ("layer/deleted", "project/deleted/inner", "project/kept"):
        (test_directory / name).mkdir(parents=True)
    (test_directory / "layer/deleted").rmdir()
    os.mknod(test_directory / "layer/deleted", stat.S_IFCHR, os.makedev(0, 0))
    tops = [open_top(str(test_directory / name)) for name in ("layer", "project")]
    stack = LayerStack(tops)
    try:
        stack.open_merged("kept").close()
        for path in ("never", "deleted", "deleted/inner"):
            with pytest.raises(FileNotFoundError):
                stack.open_merged(path)
    finally:
        stack.close()
        for top in tops:
            os.close(top)
