"""Image archives: the layers of the right image, each taking away before it adds."""

import gzip
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fumehood.errors import FumehoodError
from fumehood.linux.nofollow import open_top
from fumehood.rootfs.unpack import holds_image, unpack
from mirror import tarball, zstd


def folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info


def a(name: str, text: str = "x") -> tuple[str, bytes, int]:
    return name, text.encode(), 0o644


LAYERS = [
    tarball(a("bin/sh"), a("etc/one"), a("etc/two"), a("var/log/old"), a("var/keep"), a("was-file"), a("dir/inner")),
    gzip.compress(
        tarball(
            a("etc/.wh.one", ""), a("var/new-before"), a("var/.wh..wh..opq", ""), a("var/new-after"),
            folder("was-file"), a("was-file/now"), a(".wh.dir", ""), a("none/.wh.x", ""),
        )
    ),
    tarball(a("etc/one", "again"), a("dir", "a file now")),
]  # fmt: skip
EXPECTED = ["bin/sh", "dir", "etc/one", "etc/two", "var/new-after", "var/new-before", "was-file/now"]


def blob(files: dict[str, bytes], data: bytes, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    files[f"blobs/sha256/{digest}"] = data
    return {"digest": f"sha256:{digest}", "size": len(data), **more}


def manifest(files: dict[str, bytes], layers: list[bytes], **more: Any) -> dict[str, Any]:
    told = {"schemaVersion": 2, "layers": [blob(files, layer) for layer in layers]}
    return blob(files, json.dumps(told).encode(), **more)


def oci(layers: list[bytes]) -> dict[str, bytes]:
    """An image layout for two architectures, in an index of an index."""
    files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    platforms = [
        manifest(files, [tarball(a("wrong"))], platform={"os": "linux", "architecture": "s390x"}),
        manifest(files, layers, platform={"os": "linux", "architecture": "arm64"}),
        manifest(files, layers, platform={"os": "linux", "architecture": "amd64"}),
    ]
    inner = blob(files, json.dumps({"manifests": platforms}).encode())
    files["index.json"] = json.dumps({"manifests": [inner]}).encode()
    return files


def docker(layers: list[bytes]) -> dict[str, bytes]:
    """What an older `docker save` writes."""
    files = {f"{number}/layer.tar": layer for number, layer in enumerate(layers)}
    told = [{"Config": "c.json", "RepoTags": ["x:1"], "Layers": list(files)}]
    return {**files, "manifest.json": json.dumps(told).encode()}


def archive(at: Path, files: dict[str, bytes]) -> str:
    path = at / "image.tar"
    path.write_bytes(tarball(*((name, content, 0o644) for name, content in files.items())))
    return str(path)


def is_image(at: Path, files: dict[str, bytes]) -> bool:
    with open(archive(at, files), "rb") as file:
        return holds_image(file)


def unpacked(at: Path, files: dict[str, bytes], machine: str = "x86_64") -> Path:
    target = at / "target"
    target.mkdir()
    top = open_top(str(target))
    try:
        unpack(archive(at, files), top, machine)
    finally:
        os.close(top)
    return target


@pytest.mark.parametrize("form", [oci, docker])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_layers_lie_on_each_other_with_their_whiteouts(form: Any, machine: str, tmp_path: Path) -> None:
    files = form(LAYERS)
    assert is_image(tmp_path, files)
    tree = unpacked(tmp_path, files, machine)
    found = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
    assert found == EXPECTED
    assert (tree / "etc/one").read_text() == "again"


def test_a_root_tarball_is_no_image(tmp_path: Path) -> None:
    assert not is_image(tmp_path, {"./bin/sh": b"", "manifest.json": b""})
    assert not is_image(tmp_path, {"data": b""})


def test_an_image_for_other_machines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FumehoodError, match="no image for riscv64"):
        unpacked(tmp_path, oci(LAYERS), "riscv64")


def test_an_archive_of_several_images_is_refused(tmp_path: Path) -> None:
    files = oci(LAYERS)
    index = json.loads(files["index.json"])
    index["manifests"].append(manifest(files, [tarball(a("bin/sh"))]))
    with pytest.raises(FumehoodError, match="has 2 images"):
        unpacked(tmp_path, {**files, "index.json": json.dumps(index).encode()})


def test_of_one_architecture_the_right_variant_is_taken(tmp_path: Path) -> None:
    files: dict[str, bytes] = {"oci-layout": b"{}"}
    offered = [
        manifest(files, [tarball(a(name))], platform={"os": "linux", "architecture": "arm", "variant": name})
        for name in ("v6", "v7")
    ]
    files["index.json"] = json.dumps({"manifests": offered}).encode()
    assert [path.name for path in unpacked(tmp_path, files, "armv7l").iterdir()] == ["v7"]


def test_a_layer_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    files = oci(LAYERS)
    name = f"blobs/sha256/{hashlib.sha256(LAYERS[1]).hexdigest()}"
    with pytest.raises(FumehoodError, match="is not what its name says"):
        unpacked(tmp_path, {**files, name: tarball(a("evil"))})


@pytest.mark.parametrize("name", [".wh...", ".wh..", ".wh.", "a/../../.wh.outside", "/.wh.outside"])
def test_a_whiteout_can_not_reach_out(name: str, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("untouched")
    with pytest.raises(FumehoodError):
        unpacked(tmp_path, docker([tarball(a("bin/sh")), tarball(a(name, ""))]))
    assert (tmp_path / "outside").read_text() == "untouched"


def test_a_whiteout_follows_a_link_within_the_tree_alone(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("untouched")
    out, within = tarfile.TarInfo("out"), tarfile.TarInfo("lib")
    out.type, out.linkname = tarfile.SYMTYPE, str(tmp_path / "outside")
    within.type, within.linkname = tarfile.SYMTYPE, "usr/lib"
    layers = [
        tarball(out, within, a("usr/lib/one"), a("usr/lib/two"), a("bin/sh")),
        tarball(a("out/.wh.file", ""), a("out/.wh..wh..opq", ""), a("lib/.wh.one", ""), a("lib/three")),
    ]
    tree = unpacked(tmp_path, docker(layers))
    assert (tmp_path / "outside/file").read_text() == "untouched"
    assert sorted(path.name for path in (tree / "usr/lib").iterdir()) == ["three", "two"]
    assert (tree / "lib").is_symlink()


@pytest.mark.parametrize(
    "change",
    [
        {"index.json": b"{"}, {"index.json": b"[]"}, {"index.json": b'{"manifests": []}'},
        {"index.json": b'{"manifests": [{"digest": "sha256:../../etc/passwd"}]}'},
        {"index.json": b'{"manifests": [{"digest": "md5:1"}]}'},
        {"index.json": json.dumps({"manifests": [{"digest": f"sha256:{'0' * 64}"}]}).encode()},
    ],
)  # fmt: skip
def test_an_odd_image_is_said_in_one_line(change: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(FumehoodError) as told:
        unpacked(tmp_path, {**oci(LAYERS), **change})
    assert told.value.hint


def test_what_zstd_compressed_is_unpacked(tmp_path: Path) -> None:
    half = len(LAYERS[0]) // 2
    # As `zstd:chunked` has it: several frames, and one at the end that is to be skipped.
    frames = zstd(LAYERS[0][:half]) + zstd(LAYERS[0][half:])
    files = oci([frames + b"\x50\x2a\x4d\x18\x04\0\0\0abcd", *LAYERS[1:]])
    tree = unpacked(tmp_path, files)
    assert sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()) == EXPECTED
    whole = tmp_path / "image.tar"
    whole.write_bytes(zstd(whole.read_bytes()))
    again = tmp_path / "again"
    again.mkdir()
    top = open_top(str(again))
    unpack(str(whole), top, "x86_64")
    os.close(top)
    assert sorted(str(path.relative_to(again)) for path in again.rglob("*") if path.is_file()) == EXPECTED
