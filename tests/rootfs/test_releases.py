"""What a mirror offers, and what a machine is called."""

import pytest

from fumehood.errors import BadRequest, FumehoodError, Unavailable
from fumehood.rootfs import download
from fumehood.rootfs.download import Fetcher
from mirror import Mirror

BASE = "http://mirror/latest-stable/releases/x86_64"
SHA = "ab" * 32
GOOD = f"""---
- {{flavor: alpine-standard, version: 3.23.3, file: a.iso, sha256: {SHA}}}
- {{flavor: alpine-minirootfs, version: 3.23.3, file: alpine-minirootfs-3.23.3-x86_64.tar.gz, sha256: {SHA}, size: 12}}
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
    found = download.listed(GOOD.encode(), f"{BASE}/latest-releases.yaml", BASE)
    assert found == download.Release(
        version="3.23.3", url=f"{BASE}/alpine-minirootfs-3.23.3-x86_64.tar.gz", sha256=SHA, size=12
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (GOOD.replace("minirootfs, ", "netboot, "), "lists no alpine-minirootfs"),
        ("", "not a list of releases"), ("flavor: alpine-minirootfs\n", "not a list of releases"),
        ("<html><body>504: {gateway", "can't be used"), ("- [", "not YAML"), ("- 1\n- x\n", "lists no"),
        (GOOD.replace("version: 3.23.3, file: alpine", "file: alpine"), "has no version"),
        (GOOD.replace("file: alpine-minirootfs-3.23.3", "file: ../../alpine-minirootfs-3.23.3"), "has the file"),
        (GOOD.replace(f"tar.gz, sha256: {SHA}", "tar.gz, sha256: 12"), "has the sha256"),
        (GOOD.replace(f"tar.gz, sha256: {SHA}", "tar.gz, sha512: 12"), "has no sha256"),
        ("- !!python/object/apply:os.system ['true']\n", "lists no"),
    ],
)  # fmt: skip
def test_a_list_that_changed_is_said_in_one_line(content: str, complaint: str) -> None:
    with pytest.raises(FumehoodError, match=complaint):
        download.listed(content.encode(), f"{BASE}/latest-releases.yaml", BASE)


def test_a_version_that_looks_like_a_number_stays_as_it_is_written() -> None:
    text = GOOD.replace("3.23.3", "20240930").replace("size: 12", "size: 1_2, date: 2024-09-30, time: 11:22:33")
    found = download.listed(text.encode(), "u", BASE)
    assert (found.version, found.size) == ("20240930", 0)


def test_the_mirror_is_asked_for_the_newest_of_its_stable_branch(mirror: Mirror) -> None:
    mirror.files["/latest-stable/releases/x86_64/latest-releases.yaml"] = GOOD.encode()
    assert download.latest(Fetcher(), f"{mirror.url}/", "x86_64").version == "3.23.3"


def test_one_version_is_found_by_the_checksum_beside_it(mirror: Mirror) -> None:
    name = "/v3.20/releases/x86_64/alpine-minirootfs-3.20.1-x86_64.tar.gz"
    mirror.files[f"{name}.sha256"] = f"{SHA}  x\n".encode()
    found = download.exactly(Fetcher(), mirror.url, "x86_64", "3.20.1")
    assert (found.url, found.sha256) == (mirror.url + name, SHA)
    mirror.files[f"{name}.sha256"] = b"<html>"
    with pytest.raises(FumehoodError, match="holds no checksum"):
        download.exactly(Fetcher(), mirror.url, "x86_64", "3.20.1")
    for wrong in ("../../x", "latest", "3.20.1/..", ""):
        with pytest.raises(BadRequest, match="not an Alpine version"):
            download.exactly(Fetcher(), mirror.url, "x86_64", wrong)


def test_versions_are_compared_as_numbers() -> None:
    assert download.as_numbers("3.9.6") < download.as_numbers("3.20.0") < download.as_numbers("3.20.10")
