"""Changes that travel: out as an OCI image or a patch, in as a held run, judged where they arrive."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from conftest import need
from fumehood import BadRequest, Sandbox
from fumehood.service.bundles import export_patch
from fumehood.service.opened import OpenedStore
from snapshots import snapshot

pytestmark = pytest.mark.namespaces

COMMAND = r"""
echo new >> a/b/f; rm -r gone keep; mkdir keep; echo z > keep/z; rm l; mkdir l; echo in > l/in; rm 'sp ace'
chmod 700 a; echo n > "$(printf 'n\303\244\nme')"; ln -sfn b a/link; echo s > run.sh; chmod 755 run.sh
head -c 5000 /dev/zero > zeros
"""


def contents(top: Path) -> dict[str, tuple[int, bytes | str]]:
    """What travels: modes and contents, not times."""
    return {
        str(path.relative_to(top)): (
            path.lstat().st_mode,
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else "",
        )
        for path in top.rglob("*")
    }  # fmt: skip


def filled(project: Path) -> Path:
    for path in ("a/b", "gone", "keep"):
        (project / path).mkdir(parents=True)
    for path, text in {"a/b/f": "1\n", "gone/x": "2\n", "keep/y": "3\n", "sp ace": "4\n", "zeros": "text\n"}.items():
        (project / path).write_text(text)
    os.symlink("a/b", project / "l")
    return project


@pytest.fixture
def other(test_directory: Path) -> Path:
    path = test_directory / "other"
    path.mkdir()
    return filled(path)


def test_changes_go_to_another_copy_of_the_project_and_are_judged_there(
    project: Path, other: Path, test_directory: Path
) -> None:
    file = test_directory / "fix.tar"
    with Sandbox(filled(project)) as sandbox:
        run = sandbox.run(COMMAND)
        count = sandbox.export(run, file)
    before = snapshot(other)
    with Sandbox(other) as sandbox:
        taken = sandbox.import_bundle(file)
        assert (taken.state, {change.verdict for change in taken.changes}) == ("held", {"held"})
        assert count == len(run.changes)
        assert snapshot(other) == before
        assert sandbox.apply(taken).state == "applied"
        assert contents(other) == contents(project)
        sandbox.undo(taken)
        assert snapshot(other) == before


def test_other_tools_read_a_bundle(project: Path, other: Path, test_directory: Path) -> None:
    need(shutil.which("umoci") is not None, "umoci is not installed")
    layout, file = test_directory / "layout", test_directory / "fix.tar"
    with Sandbox(filled(project)) as sandbox:
        sandbox.export(sandbox.run(COMMAND), file)
    with tarfile.open(file) as image:
        image.extractall(layout, filter="data")
    environment = os.environ | {"HOME": str(test_directory)}
    unpacked = test_directory / "unpacked"
    command = ["umoci", "unpack", "--rootless", "--image", f"{layout}:changes", str(unpacked)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert (unpacked / "rootfs/a/b/f").read_text() == "1\nnew\n"
    assert not (unpacked / "rootfs/gone").exists()


def test_what_differs_from_the_base_is_a_conflict(project: Path, other: Path, test_directory: Path) -> None:
    file = test_directory / "fix.tar"
    with Sandbox(filled(project)) as sandbox:
        sandbox.export(sandbox.run("echo new >> a/b/f; echo 5 > 'sp ace'"), file)
    (other / "sp ace").write_text("mine\n")
    with Sandbox(other) as sandbox:
        taken = sandbox.import_bundle(file)
        assert {change.path: change.verdict for change in taken.changes} == {"a/b/f": "held", "sp ace": "conflict"}
        sandbox.apply(taken)
    assert [(other / name).read_text() for name in ("a/b/f", "sp ace")] == ["1\nnew\n", "mine\n"]


def test_a_hook_in_a_bundle_waits_like_any_other(project: Path, other: Path, test_directory: Path) -> None:
    file = test_directory / "hook.tar"
    for path in (project, other):
        subprocess.run(["git", "init", "-q", str(path)], check=True)
    with Sandbox(project) as sandbox:
        sandbox.export(sandbox.run("echo 'echo hi' > .git/hooks/post-commit"), file)
    with Sandbox(other) as sandbox:
        (change,) = sandbox.import_bundle(file).changes
    assert (change.verdict, change.flags) == ("held", ("git-hook",))


def test_a_patch_goes_both_ways_binary_too(project: Path, other: Path, test_directory: Path) -> None:
    patch = test_directory / "fix.patch"
    with Sandbox(filled(project)) as sandbox:
        run = sandbox.run("echo new >> a/b/f; rm 'sp ace'; head -c 5000 /dev/urandom > zeros; printf '\\0' > nul")
    assert export_patch(OpenedStore(), run, str(patch)) == 4
    with Sandbox(other) as sandbox:
        taken = sandbox.import_patch(patch)
        assert taken.state == "held"
        sandbox.apply(taken)
    assert contents(other) == contents(project)


def image_with(*entries: tarfile.TarInfo, **wrong: object) -> bytes:
    """A bundle made by hand, as somebody hostile would."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as layer:
        for entry in entries:
            layer.addfile(entry, io.BytesIO(b"x" * entry.size))
    packed = gzip.compress(plain.getvalue(), mtime=0)

    def named(data: bytes) -> dict[str, object]:
        return {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}

    report = json.dumps({"format": 1, "command": "c", "base": {}, **wrong})
    diff_id = named(plain.getvalue())["digest"]
    config = json.dumps({
        "config": {"Labels": {"dev.fumehood.report": report}}, "rootfs": {"diff_ids": [wrong.get("diff_id", diff_id)]},
    }).encode()  # fmt: skip
    layer_ = {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **named(packed)}
    manifest = json.dumps({"config": named(config), "layers": [layer_]}).encode()
    blobs = {str(named(data)["digest"]): data for data in (config, manifest, packed)}
    image = io.BytesIO()
    with tarfile.open(fileobj=image, mode="w") as archive:
        files = {"index.json": json.dumps({"manifests": [named(manifest)]}).encode()}
        for digest, data in blobs.items():
            files[f"blobs/sha256/{digest[7:]}"] = data[:-1] if wrong.get("cut") else data
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return image.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, 0o4777
    made.size = 3 if kind == tarfile.REGTYPE else 0
    return made


def test_hostile_bundles_are_refused_and_leave_nothing(project: Path, test_directory: Path) -> None:
    outside = test_directory / "outside"
    outside.mkdir()
    link = entry("out", tarfile.SYMTYPE, str(outside))
    bundles = {
        "..": image_with(entry("../outside/x")), "absolute": image_with(entry(f"{outside}/x")),
        "through a link": image_with(link, entry("out/x")), "device": image_with(entry("d", tarfile.CHRTYPE)),
        "hard link": image_with(entry("h", tarfile.LNKTYPE, "/etc/passwd")), "nothing": b"", "text": b"x" * 1000,
        "whiteout": image_with(entry("../outside/.wh.x")), "cut": image_with(entry("a"), cut=True),
        "format": image_with(entry("a"), format=9), "digest": image_with(entry("a"), diff_id="sha256:00"),
    }  # fmt: skip
    with Sandbox(project) as sandbox:
        for name, data in bundles.items():
            file = test_directory / "hostile.tar"
            file.write_bytes(data)
            with pytest.raises(BadRequest):
                sandbox.import_bundle(file)
            assert (name, list(outside.iterdir()), os.listdir(project)) == (name, [], [])
        assert not [run for run in sandbox.history() if run.state == "held"]
        file.write_bytes(image_with(entry("fine")))
        (change,) = sandbox.import_bundle(file).changes
        assert (change.path, change.verdict, change.flags) == ("fine", "held", ())
