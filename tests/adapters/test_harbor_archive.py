"""What Harbor brings out of a trial comes from the trial's own `tar`: nothing of it is written elsewhere."""

import gzip
import io
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from snapshots import snapshot


@pytest.fixture
def unpack(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes, Path], None]:
    """The adapter's own, without Harbor, which few have."""
    base, capabilities = ModuleType("harbor.environments.base"), ModuleType("harbor.environments.capabilities")
    for module, name in ((base, "BaseEnvironment"), (base, "ExecResult"), (capabilities, "EnvironmentCapabilities")):
        setattr(module, name, type(name, (), {}))
    names = ("harbor", "harbor.environments", base.__name__, capabilities.__name__, "fumehood.adapters.harbor")
    for name, module in zip(names, (ModuleType("a"), ModuleType("b"), base, capabilities), strict=False):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, names[-1], raising=False)
    from fumehood.adapters import harbor

    return harbor._unpack


def packed(*entries: tuple[str, bytes, str]) -> bytes:
    """A tarball of files and links, each with its name, its kind, and its content or where it leads."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, text in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = kind, 0o755
            if kind == tarfile.REGTYPE:
                entry.size = len(text)
            else:
                entry.linkname = text
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def longer_than_a_path() -> list[tuple[str, bytes, str]]:
    """Links by short names to a path that is too long for `realpath` (CVE-2025-4517)."""
    entries, path, short = [], "", "abcdefghijklmnop"
    for letter in short:
        entries += [(f"{path}{'d' * 247}", tarfile.DIRTYPE, ""), (f"{path}{letter}", tarfile.SYMTYPE, "d" * 247)]
        path += f"{'d' * 247}/"
    far = f"{'/'.join(short)}/{'l' * 254}"
    entries.append((far, tarfile.SYMTYPE, "../" * len(short)))
    return [*entries, ("out", tarfile.SYMTYPE, f"{far}/../outside"), ("out/planted", tarfile.REGTYPE, "x")]


LEADING_OUT = {
    "links longer than a path": longer_than_a_path(),
    "a link to the directory above": [("out", tarfile.SYMTYPE, "../outside")],
    "an absolute link": [("out", tarfile.SYMTYPE, "/etc")],
    "up again by another link": [("d/top", tarfile.SYMTYPE, ".."), ("out", tarfile.SYMTYPE, "d/top/../outside")],
    "a second name of a link": [("a/b/up", tarfile.SYMTYPE, "../../x"), ("out", tarfile.LNKTYPE, "a/b/up")],
    "through a link": [("a/b", tarfile.SYMTYPE, ".."), ("a/b/out", tarfile.SYMTYPE, "../../outside")],
    "a name above": [("../outside/planted", tarfile.REGTYPE, "x")],
}


@pytest.mark.parametrize("entries", LEADING_OUT.values(), ids=LEADING_OUT.keys())
def test_nothing_is_written_nor_leads_outside(unpack, entries: list[tuple[str, bytes, str]], tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    (outside / "file").write_text("mine")
    before = snapshot(outside)
    with pytest.raises(Exception, match="the tarball"):
        unpack(packed(*entries), target)
    assert snapshot(outside) == before
    for path in target.rglob("*"):
        assert path.resolve().is_relative_to(target)


def test_what_is_compressed_is_not_unpacked(unpack, tmp_path: Path) -> None:
    with pytest.raises(tarfile.ReadError):
        unpack(gzip.compress(packed(("file", tarfile.REGTYPE, "x"))), tmp_path)


def test_files_and_links_that_stay_inside_are_brought_out(unpack, tmp_path: Path) -> None:
    unpack(packed(
        (".", tarfile.DIRTYPE, ""), ("./d/file", tarfile.REGTYPE, "content"), ("./pipe", tarfile.FIFOTYPE, ""),
        ("./link", tarfile.SYMTYPE, "d/file"), ("./d/back", tarfile.SYMTYPE, "../link"),
        ("./two", tarfile.LNKTYPE, "d/file"),
    ), tmp_path / "new")  # fmt: skip
    assert {str(path.relative_to(tmp_path / "new")) for path in (tmp_path / "new").rglob("*")} == {
        "d", "d/file", "link", "d/back", "two",
    }  # fmt: skip
    assert (tmp_path / "new/d/back").read_text() == (tmp_path / "new/two").read_text() == "content"
