"""Reading settings files: where a path leads, and which file is nobody else's."""

from pathlib import Path

import pytest

from fumehood.linux.home_settings import Unreadable, Watch, seen_at


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("top/work/a", "top/work/a"),
        ("top/work", "top/work"),
        ("top/worker", None),
        ("top/other/../work/a", "top/work/a"),
        ("top/link", "top/work/a"),
        ("top/folder/x/y", "top/work/x/y"),
        ("top/back", "top/work/out/private"),
        ("top/private", None),
        ("top/circle", None),
        ("top/gone/x", None),
    ],
)
def test_where_a_path_comes_into_a_directory(path: str, seen: str | None, tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "work").mkdir(parents=True)
    (top / "other").mkdir()
    (top / "private").touch()
    (top / "link").symlink_to("work/a")
    (top / "folder").symlink_to(top / "work")
    (top / "work/out").symlink_to("..")
    (top / "back").symlink_to("work/out/private")
    (top / "circle").symlink_to("circle")
    found = seen_at(str(tmp_path / path), [str(top / "work")])
    assert found == (None if seen is None else str(tmp_path / seen))


def test_a_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    watch = Watch()
    (tmp_path / "full").write_bytes(b"x" * (1 << 20))
    (tmp_path / "more").write_bytes(b"x" * ((1 << 20) + 1))
    assert watch.read(str(tmp_path / "full")) == b"x" * (1 << 20)
    with pytest.raises(Unreadable, match="larger"):
        watch.read(str(tmp_path / "more"))
    others = ("/dev/null", "/dev/zero", str(tmp_path), str(tmp_path / "gone"))
    assert [watch.read(path) for path in others] == [None] * 4


def test_a_directory_counts_by_what_it_is_and_not_by_what_is_in_it(tmp_path: Path) -> None:
    watch = Watch()
    (tmp_path / "d").mkdir()
    watch.look(str(tmp_path / "d"))
    (tmp_path / "d/x").touch()
    assert watch.snapshot.is_current()
    (tmp_path / "d/x").unlink()
    (tmp_path / "d").rename(tmp_path / "e")
    (tmp_path / "d").touch()
    assert not watch.snapshot.is_current()
