"""Tarballs that nobody vouches for: whatever they name, nothing is written outside the target."""

import gzip
import os
import stat
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from fumehood.errors import FumehoodError
from fumehood.linux.nofollow import open_top
from fumehood.rootfs.unpack import HostileTarball, Unpacking, unpack
from mirror import tarball, zstd


def entry(name: str, kind: bytes, link: str = "", mode: int = 0o755, **more: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    for field, value in more.items():
        setattr(info, field, value)
    return info


def link(name: str, target: str) -> tarfile.TarInfo:
    return entry(name, tarfile.SYMTYPE, target)


def hard(name: str, target: str) -> tarfile.TarInfo:
    return entry(name, tarfile.LNKTYPE, target)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Something that must not be touched."""
    victim = tmp_path / "outside"
    victim.mkdir()
    (victim / "file").write_text("untouched")
    return victim


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[..., Path]:
    def unpacked(*files: tuple[str, bytes, int] | tarfile.TarInfo) -> Path:
        source, target = tmp_path / "a.tar", tmp_path / "target"
        source.write_bytes(tarball(*files))
        target.mkdir(exist_ok=True)
        top = open_top(str(target))
        try:
            unpack(str(source), top)
        finally:
            os.close(top)
        return target

    return unpacked


FILE = b"evil"
HOSTILE = {
    "an absolute path": [("/abs", FILE, 0o644)],
    "a path that climbs": [("../outside/file", FILE, 0o644)],
    "a path that climbs in the middle": [("a/../../outside/file", FILE, 0o644)],
    "a link that climbs": [link("a", "../outside")],
    "a link that climbs after going down": [link("a/b", "../x/../../outside")],
    "an absolute link that climbs": [link("a", "/../outside")],
    "a file through links in a circle": [link("a", "b"), link("b", "a"), ("a/file", FILE, 0o644)],
    "a file through ever longer links": [link("a", "b/a"), link("b", "."), ("a/file", FILE, 0o644)],
    "a file through a link to a file": [("b", FILE, 0o644), link("a", "b"), ("a/file", FILE, 0o644)],
    "a hard link that climbs": [hard("a", "../outside/file")],
    "a hard link to an absolute path": [hard("a", "/outside/file")],
    "a hard link through a link": [link("d", "/outside"), hard("a", "d/file")],
    "a hard link to nothing": [hard("a", "b")],
    "a hard link to a directory": [entry("d", tarfile.DIRTYPE), hard("a", "d")],
    "a file below a file": [("a", FILE, 0o644), ("a/b", FILE, 0o644)],
    "a path too deep": [("d/" * 300 + "f", FILE, 0o644)],
    "a link without a target": [link("a", "")],
}


@pytest.mark.parametrize("files", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_leads_out_is_refused(files: list[tarfile.TarInfo], unpacked: Callable[..., Path], outside: Path) -> None:
    with pytest.raises(HostileTarball, match="the tarball"):
        unpacked(*files)
    assert [path.read_text() for path in outside.iterdir()] == ["untouched"]
    assert os.stat(outside / "file").st_nlink == 1


def test_links_are_made_as_they_are_written(unpacked: Callable[..., Path]) -> None:
    tree = unpacked(
        ("bin/busybox", b"x", 0o755), link("bin/sh", "/bin/busybox"), link("sbin", "usr/sbin"),
        hard("bin/ash", "bin/busybox"), hard("bin/dash", "bin/sh"), link("usr/lib/a", "../../bin/sh"),
    )  # fmt: skip
    assert os.readlink(tree / "bin/sh") == "/bin/busybox"
    assert os.readlink(tree / "usr/lib/a") == "../../bin/sh"
    assert os.path.samefile(tree / "bin/ash", tree / "bin/busybox")
    assert os.readlink(tree / "bin/dash") == "/bin/busybox"


def test_what_is_written_through_a_link_lies_where_it_leads_within_the_tree(
    unpacked: Callable[..., Path], outside: Path
) -> None:
    tree = unpacked(
        link("bin", "usr/bin"), ("bin/sh", b"x", 0o755), link("out", str(outside)), ("out/file", FILE, 0o644),
        entry("out/sub/deep", tarfile.DIRTYPE), link("var/run", "../run"), ("var/run/pid", b"1", 0o644),
        link("usr/loop", "../bin"), hard("usr/loop/ash", "bin/sh"), link("a/b", "/c/d/.."), ("a/b/e", b"2", 0o644),
    )  # fmt: skip
    assert os.path.samefile(tree / "usr/bin/sh", tree / "usr/bin/ash")
    inside = tree / str(outside)[1:]
    assert (inside / "file").read_bytes() == FILE
    assert (inside / "sub/deep").is_dir()
    assert [path.read_text() for path in outside.iterdir()] == ["untouched"]
    assert ((tree / "run/pid").read_bytes(), (tree / "c/e").read_bytes()) == (b"1", b"2")


def test_no_privilege_comes_out_of_a_tarball(unpacked: Callable[..., Path]) -> None:
    tree = unpacked(
        ("suid", b"x", 0o6755), entry("sgid", tarfile.DIRTYPE, mode=0o2777), entry("t", tarfile.DIRTYPE, mode=0o1777),
        entry("device", tarfile.CHRTYPE, devmajor=1, devminor=5), entry("disk", tarfile.BLKTYPE, devmajor=8),
        entry("whiteout", tarfile.CHRTYPE), entry("pipe", tarfile.FIFOTYPE), ("closed", b"x", 0),
        entry("shut", tarfile.DIRTYPE, mode=0), ("shut/in", b"x", 0o600, ),
    )  # fmt: skip
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in tree.iterdir()}
    assert modes == {"suid": 0o755, "sgid": 0o777, "t": 0o1777, "closed": 0o600, "shut": 0o700}
    assert {path.lstat().st_uid for path in tree.rglob("*")} == {os.getuid()}


def test_the_last_of_several_entries_counts(unpacked: Callable[..., Path], outside: Path) -> None:
    tree = unpacked(
        ("a", b"1", 0o644), ("a", b"2", 0o600), link("b", "/outside/file"), ("b", b"3", 0o644),
        ("c/d/e", b"4", 0o644), ("c", b"5", 0o644), link("f", "/outside"), entry("f", tarfile.DIRTYPE),
        ("f/g", b"6", 0o644),
    )  # fmt: skip
    assert [(tree / name).read_bytes() for name in ("a", "b", "c", "f/g")] == [b"2", b"3", b"5", b"6"]
    assert (outside / "file").read_text() == "untouched"


def test_odd_names_and_times_are_kept(unpacked: Callable[..., Path]) -> None:
    odd = "new\nline \\ ,:é"
    info = entry("old", tarfile.REGTYPE)
    info.mtime = 1700000000
    future = entry("future", tarfile.REGTYPE)
    future.mtime = 1 << 40
    tree = unpacked((odd, b"x", 0o644), info, future)
    assert {path.name for path in tree.iterdir()} == {odd, "old", "future"}
    assert (tree / "old").stat().st_mtime == 1700000000


def test_a_damaged_tarball_is_said_in_one_line(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    top = open_top(str(target))
    whole = gzip.compress(tarball(("a", os.urandom(100_000), 0o644)))
    try:
        packed = zstd(tarball(("a", os.urandom(100_000), 0o644)))
        cut = (whole[:50_000], whole[:5000] + b"x" * 500 + whole[5500:], packed[:50_000], packed[:9] + b"x" * 99)
        for content in (b"", b"no tarball", *cut):
            (tmp_path / "a").write_bytes(content)
            with pytest.raises(FumehoodError, match="can't be unpacked") as refused:
                unpack(str(tmp_path / "a"), top)
            assert "\n" not in str(refused.value)
    finally:
        os.close(top)


def damaged_at(content: bytes, name: str, change: Callable[[bytearray], object]) -> bytes:
    """Change the header of one member, and set its checksum right."""
    at = content.index(name.encode().ljust(100, b"\0"))
    header = bytearray(content[at : at + 512])
    change(header)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return content[:at] + header + content[at + 512 :]


def set_size(size: int) -> Callable[[bytearray], object]:
    return lambda header: header.__setitem__(slice(124, 136), b"\xff" + size.to_bytes(11, "big", signed=True))


def in_the_middle() -> list[bytes]:
    whole = tarball(("before", b"1", 0o644), ("middle", b"2", 0o644), ("after", b"3", 0o644))
    at = whole.index(b"middle")
    many = entry("long", tarfile.GNUTYPE_LONGNAME, size=5).tobuf(tarfile.GNU_FORMAT) + b"long\0".ljust(512, b"\0")
    return [
        whole[:at] + b"M" + whole[at + 1 :],  # a header that is not what its sum says
        whole[:at], whole[: at + 100], whole[: at + 600],
        damaged_at(whole, "middle", set_size(-512)),  # which leads back to itself
        many * 3000 + whole,
    ]  # fmt: skip


@pytest.mark.parametrize("content", in_the_middle(), ids=["sum", "cut", "in header", "in file", "back", "deep"])
def test_what_can_not_be_read_is_not_taken_for_the_end(content: bytes, tmp_path: Path) -> None:
    source, target = tmp_path / "a.tar", tmp_path / "target"
    source.write_bytes(content)
    target.mkdir()
    top = open_top(str(target))
    try:
        with pytest.raises(FumehoodError, match="can't be unpacked") as refused:
            unpack(str(source), top, "x86_64")
    finally:
        os.close(top)
    assert "\n" not in str(refused.value)


def test_a_sparse_file_takes_no_more_of_the_disk_than_it_holds(tmp_path: Path) -> None:
    size, held = 64 << 20, b"end".ljust(512, b"\0")
    header = bytearray(entry("lastlog", tarfile.GNUTYPE_SPARSE, mode=0o644, size=len(held)).tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (size - len(held), len(held))  # where the one piece is, and how long
    header[483:495] = b"%011o\0" % size
    content = damaged_at(bytes(header) + held + bytes(1024), "lastlog", lambda _: None)
    (tmp_path / "a.tar").write_bytes(content)
    top = open_top(str(tmp_path))
    try:
        unpack(str(tmp_path / "a.tar"), top)
    finally:
        os.close(top)
    file = tmp_path / "lastlog"
    assert file.read_bytes() == bytes(size - len(held)) + held
    assert file.stat().st_blocks * 512 < size // 8


def test_a_tarball_of_very_many_entries_takes_no_memory_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    one = Unpacking._unpack_member

    def watched(self: Unpacking, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        kept.append(len(archive.members))
        one(self, archive, member, path)

    monkeypatch.setattr(Unpacking, "_unpack_member", watched)
    monkeypatch.setattr("fumehood.rootfs.unpack._MOST_ENTRIES", 500)
    top = open_top(str(tmp_path))
    try:
        for count in (400, 501):
            (tmp_path / "a.tar").write_bytes(tarball(*[entry("d", tarfile.DIRTYPE)] * count))
            with pytest.raises(HostileTarball, match="too many") if count > 500 else nullcontext():
                unpack(str(tmp_path / "a.tar"), top, "x86_64")
    finally:
        os.close(top)
    assert max(kept) <= 1


def told_of_all(count: int) -> bytes:
    """A header that tells of all members, of so many things."""
    return tarfile.TarInfo.create_pax_global_header({f"THING.{count}.{each}": "x" for each in range(60)})


HEADS = {
    "a header for the next member": entry("x", tarfile.XHDTYPE, size=2 << 20).tobuf() + bytes(2 << 20),
    "a long name": entry("x", tarfile.GNUTYPE_LONGNAME, size=2 << 20).tobuf() + b"n" * (2 << 20),
    "the pieces of a sparse file": damaged_at(
        entry("sparse", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT), "sparse",
        lambda header: header.__setitem__(482, 1),
    ) + ((b"%011o\0" % 1) * 42 + b"\1" * 8) * (2 << 11),
    "many headers for all members": b"".join(
        told_of_all(each) + entry(f"d{each}", tarfile.DIRTYPE).tobuf() for each in range(3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_what_tells_of_a_member_is_not_read_without_end(head: bytes, tmp_path: Path) -> None:
    content = tarball(("before", b"1", 0o644)).rstrip(b"\0")
    content += bytes(-len(content) % 512)
    (tmp_path / "a.tar").write_bytes(content + head + tarball(("after", b"1", 0o644)))
    (tmp_path / "target").mkdir()
    top = open_top(str(tmp_path / "target"))
    try:
        with pytest.raises(FumehoodError, match=r"unpacked: (the header of a member is|there are too many attributes)"):
            unpack(str(tmp_path / "a.tar"), top)
    finally:
        os.close(top)
