"""Downloads: checked, resumed, and never taken for whole when they are not."""

import hashlib
import os
from pathlib import Path

import pytest

from fumehood.errors import BadRequest, FumehoodError, Unavailable
from fumehood.rootfs import download
from fumehood.rootfs.download import DownloadFailed, Fetcher
from mirror import Mirror

CONTENT = os.urandom(3 << 20)
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def url(mirror: Mirror) -> str:
    mirror.files["/file"] = CONTENT
    return f"{mirror.url}/file"


def test_a_file_is_fetched_with_progress_and_kept(url: str, mirror: Mirror, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    fetcher = Fetcher(on_progress=lambda done, total: told.append((done, total)))
    path = fetcher.file(url, str(tmp_path), SHA)
    assert Path(path).read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert len(told) > 1
    assert fetcher.file(url, str(tmp_path), SHA) == path
    assert len(mirror.asked) == 1


def test_a_wrong_checksum_leaves_nothing(url: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="SHA-256 is wrong"):
        Fetcher().file(url, str(tmp_path), "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_a_cut_download_goes_on_where_it_stopped(url: str, mirror: Mirror, tmp_path: Path) -> None:
    mirror.cuts["/file"] = [1_000_000, 500_000]
    path = Fetcher().file(url, str(tmp_path), SHA)
    assert Path(path).read_bytes() == CONTENT
    assert [asked for _, asked in mirror.asked] == ["", "bytes=1000000-", "bytes=1500000-"]


def test_the_next_process_goes_on_too(url: str, mirror: Mirror, tmp_path: Path) -> None:
    mirror.cuts["/file"] = [1_000_000] + [0] * 20
    with pytest.raises(DownloadFailed, match="cut; 1000000 bytes are kept"):
        Fetcher().file(url, str(tmp_path), SHA)
    mirror.cuts.clear()
    assert Path(Fetcher().file(url, str(tmp_path), SHA)).read_bytes() == CONTENT
    assert mirror.asked[-1] == ("/file", "bytes=1000000-")


def test_a_server_without_ranges_is_asked_for_all_of_it_again(url: str, mirror: Mirror, tmp_path: Path) -> None:
    mirror.ranges = False
    mirror.cuts["/file"] = [1_000_000]
    assert Path(Fetcher().file(url, str(tmp_path), SHA)).read_bytes() == CONTENT


def test_a_kept_part_of_something_else_is_thrown_away(url: str, mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / f"{SHA}.part").write_bytes(b"x" * 1000)
    assert Path(Fetcher().file(url, str(tmp_path), SHA)).read_bytes() == CONTENT
    (tmp_path / SHA).unlink()
    (tmp_path / f"{SHA}.part").write_bytes(CONTENT + b"more than there is")
    assert Path(Fetcher().file(url, str(tmp_path), SHA)).read_bytes() == CONTENT


def test_a_kept_file_that_was_damaged_is_fetched_again(url: str, tmp_path: Path) -> None:
    (tmp_path / SHA).write_bytes(CONTENT[:-1] + b"?")
    assert Path(Fetcher().file(url, str(tmp_path), SHA)).read_bytes() == CONTENT


def test_what_can_not_be_fetched_is_said_in_one_line(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="404 Not Found"):
        Fetcher().file(f"{mirror.url}/none", str(tmp_path), SHA)
    with pytest.raises(DownloadFailed, match="refused"):
        Fetcher().content("http://127.0.0.1:1/x", 10)
    mirror.files["/long"] = b"x" * 100
    with pytest.raises(DownloadFailed, match="too long"):
        Fetcher().content(f"{mirror.url}/long", 10)
    for wrong in ("file:///etc/passwd", "ftp://x/y", "x", "http://[", "http://a b/"):
        with pytest.raises(BadRequest, match="is not a web address"):
            Fetcher().content(wrong, 10)


def test_a_proxy_is_used_where_one_is_given(mirror: Mirror) -> None:
    mirror.files["http://nowhere.invalid/x"] = b"by proxy"
    assert Fetcher(proxy=mirror.url).content("http://nowhere.invalid/x", 100) == b"by proxy"
    with pytest.raises(BadRequest, match="is not the address of a proxy"):
        Fetcher(proxy="proxy:3128")


# What a mirror offers, and what a machine is called.

BASE = "http://mirror/latest-stable/releases/x86_64"
SUM = "ab" * 32
GOOD = f"""---
- {{flavor: alpine-standard, version: 3.23.3, file: a.iso, sha256: {SUM}}}
- {{flavor: alpine-minirootfs, version: 3.23.3, file: alpine-minirootfs-3.23.3-x86_64.tar.gz, sha256: {SUM}, size: 12}}
"""


@pytest.mark.parametrize(
    ("machine", "alpine"),
    [
        ("x86_64", "x86_64"), ("aarch64", "aarch64"), ("arm64", "aarch64"), ("armv7l", "armv7"), ("i686", "x86"),
        ("i386", "x86"),
    ],
)  # fmt: skip
def test_a_machine_has_a_name_of_alpines(machine: str, alpine: str) -> None:
    assert download.architecture(machine) == alpine


def test_another_machine_is_refused_by_name() -> None:
    with pytest.raises(Unavailable, match="no Alpine root for sparc64"):
        download.architecture("sparc64")


def test_the_list_tells_version_file_and_checksum() -> None:
    found = download.release_in_list(GOOD.encode(), f"{BASE}/latest-releases.yaml", BASE)
    assert found == download.Release(
        version="3.23.3", url=f"{BASE}/alpine-minirootfs-3.23.3-x86_64.tar.gz", sha256=SUM, size=12
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (GOOD.replace("minirootfs, ", "netboot, "), "lists no alpine-minirootfs"),
        ("", "not a list of releases"), ("flavor: alpine-minirootfs\n", "not a list of releases"),
        ("<html><body>504: {gateway", "can't be used"), ("- [", "not YAML"), ("- 1\n- x\n", "lists no"),
        (GOOD.replace("version: 3.23.3, file: alpine", "file: alpine"), "has no version"),
        (GOOD.replace("file: alpine-minirootfs-3.23.3", "file: ../../alpine-minirootfs-3.23.3"), "has the file"),
        (GOOD.replace(f"tar.gz, sha256: {SUM}", "tar.gz, sha256: 12"), "has the sha256"),
        (GOOD.replace(f"tar.gz, sha256: {SUM}", "tar.gz, sha512: 12"), "has no sha256"),
        ("- !!python/object/apply:os.system ['true']\n", "lists no"),
    ],
)  # fmt: skip
def test_a_list_that_changed_is_said_in_one_line(content: str, complaint: str) -> None:
    with pytest.raises(FumehoodError, match=complaint):
        download.release_in_list(content.encode(), f"{BASE}/latest-releases.yaml", BASE)


def test_a_version_that_looks_like_a_number_stays_as_it_is_written() -> None:
    text = GOOD.replace("3.23.3", "20240930").replace("size: 12", "size: 1_2, date: 2024-09-30, time: 11:22:33")
    found = download.release_in_list(text.encode(), "u", BASE)
    assert (found.version, found.size) == ("20240930", 0)


def test_the_mirror_is_asked_for_the_newest_of_its_stable_branch(mirror: Mirror) -> None:
    mirror.files["/latest-stable/releases/x86_64/latest-releases.yaml"] = GOOD.encode()
    assert download.latest_release(Fetcher(), f"{mirror.url}/", "x86_64").version == "3.23.3"


def test_one_version_is_found_by_the_checksum_beside_it(mirror: Mirror) -> None:
    name = "/v3.20/releases/x86_64/alpine-minirootfs-3.20.1-x86_64.tar.gz"
    mirror.files[f"{name}.sha256"] = f"{SUM}  x\n".encode()
    found = download.find_release(Fetcher(), mirror.url, "x86_64", "3.20.1")
    assert (found.url, found.sha256) == (mirror.url + name, SUM)
    mirror.files[f"{name}.sha256"] = b"<html>"
    with pytest.raises(FumehoodError, match="holds no checksum"):
        download.find_release(Fetcher(), mirror.url, "x86_64", "3.20.1")
    for wrong in ("../../x", "latest", "3.20.1/..", ""):
        with pytest.raises(BadRequest, match="not an Alpine version"):
            download.find_release(Fetcher(), mirror.url, "x86_64", wrong)


def test_versions_are_compared_as_numbers() -> None:
    assert download.version_numbers("3.9.6") < download.version_numbers("3.20.0") < download.version_numbers("3.20.10")
