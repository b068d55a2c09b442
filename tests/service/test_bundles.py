"""Changes that travel: out as an OCI image or a patch, in as a held run, judged where they arrive."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import need
from fumehood import BadRequest, DraftConflict, Run, Sandbox
from fumehood.service.bundles import export, export_patch, read_bundle
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


def test_what_can_not_be_put_in_its_place_leaves_nothing(project: Path, test_directory: Path) -> None:
    (test_directory / "place").mkdir()
    with Sandbox(project, session="s") as sandbox:
        run = sandbox.run("echo x > f")
        before = sorted(test_directory.iterdir())
        with pytest.raises(BadRequest, match=r"can't be written: Is a directory"):
            sandbox.export(run, test_directory / "place")
    with pytest.raises(BadRequest):
        export(OpenedStore(), run, str(test_directory / "signed"), key=str(test_directory / "no-such-key"))
    assert sorted(test_directory.iterdir()) == before


def test_an_export_replaces_nothing_that_is_there(project: Path, test_directory: Path) -> None:
    places = test_directory / "places"
    places.mkdir()
    mine, link, dangling = (places / name for name in ("mine", "link", "dangling"))
    mine.write_text("mine\n")
    link.symlink_to(mine)
    dangling.symlink_to(places / "nowhere")
    with Sandbox(project) as sandbox:
        run = sandbox.run("echo x > f")
        before = snapshot(places)
        for write in (sandbox.export, lambda run, path: export_patch(OpenedStore(), run, str(path))):
            for place in (mine, link, dangling):
                with pytest.raises(BadRequest, match=r"can't be written: File exists"):
                    write(run, place)
    assert snapshot(places) == before


def test_what_is_private_in_a_project_is_private_in_an_export(project: Path, test_directory: Path) -> None:
    with Sandbox(project) as sandbox:
        run = sandbox.run("umask 077; echo s3cret > key")
    bundle, patch = test_directory / "bundle", test_directory / "patch"
    before = os.umask(0)
    try:
        export(OpenedStore(), run, str(bundle))
        export_patch(OpenedStore(), run, str(patch))
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (bundle, patch)] == [0o600, 0o600]


@pytest.mark.parametrize("write", [export, export_patch])
def test_an_export_goes_into_a_pipe_that_is_there(
    write: Callable[[OpenedStore, Run, str], int], project: Path, test_directory: Path
) -> None:
    pipe, file = test_directory / "pipe", test_directory / "file"
    os.mkfifo(pipe)
    with Sandbox(project) as sandbox:
        run = sandbox.run("echo x > f")
    write(OpenedStore(), run, str(file))
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert write(OpenedStore(), run, str(pipe)) == 1
        assert reader.communicate(timeout=60)[0] == file.read_bytes()
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_an_export_goes_into_a_device_that_is_there(project: Path, test_directory: Path) -> None:
    device = test_directory / "null"
    os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    with Sandbox(project) as sandbox:
        assert sandbox.export(sandbox.run("echo x > f"), device) == 1
    assert stat.S_ISCHR(os.stat(device).st_mode)


def test_other_tools_read_a_bundle(project: Path, other: Path, test_directory: Path) -> None:
    need(shutil.which("umoci") is not None, "umoci is not installed")
    layout, file = test_directory / "layout", test_directory / "fix.tar"
    with Sandbox(filled(project)) as sandbox:
        sandbox.export(sandbox.run(COMMAND), file)
    layout.mkdir()
    subprocess.run(["tar", "-xf", file, "-C", layout], check=True)
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


@pytest.mark.parametrize("command", ["rm -r gone", "rm -r gone; echo x > gone"])
def test_what_a_removed_directory_has_here_alone_is_a_conflict(
    project: Path, other: Path, test_directory: Path, command: str
) -> None:
    file = test_directory / "fix.tar"
    with Sandbox(filled(project)) as sandbox:
        sandbox.export(sandbox.run(f"{command}; echo new >> a/b/f"), file)
    (other / "gone/sub").mkdir()
    (other / "gone/sub/mine").write_text("mine\n")
    with Sandbox(other) as sandbox:
        taken = sandbox.import_bundle(file)
        assert {change.path for change in taken.changes if change.verdict == "conflict"} == {
            "gone/sub", "gone/sub/mine",
        }  # fmt: skip
        sandbox.apply(taken)
        draft = sandbox.draft("d")
        draft.import_bundle(file)
        with pytest.raises(DraftConflict, match="gone/sub"):
            draft.apply()
    assert (other / "gone/sub/mine").read_text() == "mine\n"
    assert (other / "a/b/f").read_text() == "1\nnew\n"


def test_names_that_are_no_text_are_compared_with_the_base_too(
    project: Path, other: Path, test_directory: Path
) -> None:
    file, name = test_directory / "fix.tar", os.fsdecode(b"\xff\nname")
    for path in (project, other):
        (path / name).write_text("old\n")
    with Sandbox(project) as sandbox:
        sandbox.export(sandbox.run("echo new > *name"), file)
    with Sandbox(other) as sandbox:
        assert [change.verdict for change in sandbox.import_bundle(file).changes] == ["held"]


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
        listed = {**named(manifest), "annotations": wrong.get("annotations")}
        files = {"index.json": json.dumps({"manifests": [listed]}).encode()}
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


@pytest.fixture
def key(home: Path) -> Path:
    """A key, and a configuration in which it signs and is known as ada's."""
    need(shutil.which("ssh-keygen") is not None, "ssh-keygen is not installed: apt-get install openssh-client")
    key = home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (home / "signers").write_text(f"ada@example.org {(home / 'key.pub').read_text()}")
    settings = home / ".config/fumehood"
    settings.mkdir(mode=0o700)
    (settings / "config.toml").write_text(f'[sign]\nkey = "{key}"\nsigners = "{home}/signers"\n')
    return key


def test_import_tells_who_signed_a_bundle(project: Path, other: Path, test_directory: Path, key: Path) -> None:
    signed, plain = test_directory / "signed.tar", test_directory / "plain.tar"
    with Sandbox(filled(project)) as sandbox:
        run = sandbox.run("echo new >> a/b/f")
        sandbox.export(run, signed)
    export(OpenedStore(), run, str(plain))
    with Sandbox(other) as sandbox:
        assert sandbox.import_bundle(signed).reason == "from a bundle, signed by ada@example.org"
        assert sandbox.find().reason == "from a bundle, signed by ada@example.org"
        assert sandbox.import_bundle(plain).reason == "from a bundle, not signed"
        (key.parent / "signers").write_text("")
        assert "signed by a key of nobody known here, ED25519 key SHA256:" in sandbox.import_bundle(signed).reason


def test_a_signature_of_another_bundle_is_refused(project: Path, test_directory: Path, key: Path) -> None:
    signed = test_directory / "signed.tar"
    with Sandbox(filled(project)) as sandbox:
        sandbox.export(sandbox.run("echo new >> a/b/f"), signed)
        with tarfile.open(signed) as image:
            index = json.load(image.extractfile("index.json"))  # type: ignore[arg-type]
        signature = index["manifests"][0]["annotations"]
        forged = image_with(entry("x"), annotations=signature)
        signed.write_bytes(forged)
        with pytest.raises(BadRequest, match="signature is wrong"):
            sandbox.import_bundle(signed)


@given(st.data())
@settings(max_examples=60)
def test_a_bundle_with_any_byte_changed_is_refused_or_the_same(data: st.DataObject) -> None:
    whole = image_with(entry("a"), entry("d", tarfile.DIRTYPE), entry("l", tarfile.SYMTYPE, "a"))
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(whole), data.draw(st.integers(0, len(whole)))]))
    with tempfile.NamedTemporaryFile() as file:
        file.write(changed[:cut])
        file.flush()
        try:
            bundle = read_bundle(file.name, os.path.dirname(file.name))
        except BadRequest:
            return
        with bundle.layer as layer, tarfile.open(fileobj=layer) as members:
            assert [each.name for each in members] == ["a", "d", "l"]


def test_a_bomb_is_refused_before_it_fills_the_disk(test_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fumehood.service.bundles._MAX_UNPACKED", 1 << 20)
    bomb = entry("zeros")
    bomb.size = 8 << 20
    file = test_directory / "bomb.tar"
    file.write_bytes(image_with(bomb))
    with pytest.raises(BadRequest, match="too large"):
        read_bundle(str(file), str(test_directory))


def test_more_members_than_a_bundle_has_are_refused_whatever_their_names(test_directory: Path) -> None:
    file = test_directory / "many.tar"
    with tarfile.open(file, "w") as image:
        for _ in range(100):
            image.addfile(tarfile.TarInfo("index.json"))
    with pytest.raises(BadRequest, match="more than a bundle"):
        read_bundle(str(file), str(test_directory))
    long = tarfile.TarInfo("long")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 5
    file.write_bytes((long.tobuf(tarfile.GNU_FORMAT) + b"long\0".ljust(512, b"\0")) * 3000)
    with pytest.raises(BadRequest, match="is not a bundle"):
        read_bundle(str(file), str(test_directory))
