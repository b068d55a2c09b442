"""Downloads: checked, resumed, and never taken for whole when they are not."""

import hashlib
import os
from pathlib import Path

import pytest

from fumehood.errors import BadRequest
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
