"""Installing root trees from a mirror on loopback, with everything that goes wrong on the way."""

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import command_line
from fumehood.rootfs import tree
from fumehood.rootfs.installer import packages_of
from mirror import Mirror, minirootfs, tarball
from patience import eventually
from trees import VERSION

pytestmark = [pytest.mark.namespaces, pytest.mark.once]
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def roots(home: Path) -> Path:
    return home / ".local/share/fumehood/rootfs"


@pytest.fixture
def install(cli: Cli, mirror: Mirror) -> Callable[..., subprocess.CompletedProcess[str]]:
    def install(*options: str | Path, what: str = "install", **more: Any) -> subprocess.CompletedProcess[str]:
        return cli("rootfs", what, "--mirror", mirror.url, *options, **more)

    return install


def visible(at: Path) -> list[str]:
    return sorted(entry.name for entry in at.iterdir() if entry.name != ".lock") if at.exists() else []


def test_a_root_is_installed_and_commands_run_in_it(install: Cli, cli: Cli, mirror: Mirror, roots: Path) -> None:
    mirror.offer(VERSION)
    done = install()
    assert done.returncode == 0, done.stderr
    assert "alpine-3.20.3 is ready" in done.stdout
    assert visible(roots) == [f"alpine-{VERSION}", "current"]
    tree = roots / f"alpine-{VERSION}"
    assert (tree / ".alpine-version").read_text().splitlines()[0] == VERSION
    assert all((tree / name).is_dir() for name in ("workspace", "skills", "roots", "playground"))
    run = cli("run", "--root", "alpine", "--", "python3; echo $IS_BASH; echo x > /workspace/x; touch /bin/x")
    assert run.stdout.splitlines() == ["python3 1.0", "yes"]
    assert "Read-only" in run.stderr


def test_packages_are_added_as_apk_needs_it(install: Cli, mirror: Mirror, roots: Path, test_directory: Path) -> None:
    key = test_directory / "me@example.org-1.rsa.pub"
    key.write_text("a key")
    mirror.offer(VERSION)
    assert install("--tier", "2", "--key", key).returncode == 0
    tree = roots / f"alpine-{VERSION}-tier2"
    (call,) = (tree / "var/tmp/apk-calls").read_text().splitlines()
    assert call == f"add --no-cache --no-chown {' '.join(packages_of(2))}"
    assert packages_of(2)[:3] == ("bash", "python3", "py3-pip")
    assert (tree / "etc/apk/repositories").read_text().split() == [
        f"{mirror.url}/v3.20/main", f"{mirror.url}/v3.20/community",
    ]  # fmt: skip
    assert (tree / "etc/apk/keys" / key.name).read_text() == "a key"
    assert (tree / "var/tmp/apk-user").read_text().split()[0] == "0"
    assert (tree / "usr/bin/jq").is_file()


def test_more_packages_make_another_tree_and_an_update_keeps_them(
    install: Cli, cli: Cli, mirror: Mirror, roots: Path
) -> None:
    mirror.offer(VERSION)
    assert install().returncode == 0
    done = install("--package", "jq", "--package", "git")
    assert done.returncode == 0, done.stderr
    assert os.readlink(roots / "current") == f"alpine-{VERSION}+jq+git"
    assert cli("run", "--root", "alpine", "--", "jq; python3").stdout == "jq 1.0\npython3 1.0\n"
    asked = len(mirror.asked)
    assert install("--package", "git").returncode == 0
    assert len(mirror.asked) == asked
    mirror.offer("3.21.0")
    assert install(what="update").returncode == 0
    assert cli("run", "--root", "alpine", "--", "jq; cat /etc/alpine-release").stdout == "jq 1.0\n3.21.0\n"
    for wrong in ("--allow-untrusted", "a b", "../x", "jq;ls"):
        assert "is not the name of a package" in install(f"--package={wrong}").stderr
    assert "--package needs a value" in install("--package=").stderr
    assert "needs a name" in install(*(f"--package=package-{number}" for number in range(20))).stderr


def test_a_tree_without_packages_knows_the_mirror_and_its_keys_too(
    install: Cli, cli: Cli, mirror: Mirror, roots: Path, home: Path, test_directory: Path
) -> None:
    key, given = test_directory / "me@example.org-1.rsa.pub", test_directory / "mine.tar.gz"
    key.write_text("a key")
    given.write_bytes(minirootfs(VERSION))
    mirror.offer(VERSION)
    (home / ".config/fumehood").mkdir(parents=True, exist_ok=True)
    (home / ".config/fumehood/config.toml").write_text(f'rootfs.mirror = "{mirror.url}"\nrootfs.keys = ["{key}"]\n')
    assert cli("rootfs", "install", "--from", given).returncode == 0
    assert cli("rootfs", "install", "--tier", "0", "--version", VERSION).returncode == 0
    for name in ("mine", f"alpine-{VERSION}"):
        assert (roots / name / "etc/apk/repositories").read_text().startswith(f"{mirror.url}/v3.20/main\n")
        assert (roots / name / "etc/apk/keys" / key.name).read_text() == "a key"
    # It has no tools, so it is not what is asked for next; and has the name that this would have.
    assert install().returncode == 0
    assert os.readlink(roots / "current") == f"alpine-{VERSION}-tier1"
    assert cli("run", "--root", "alpine", "--", "python3").stdout == "python3 1.0\n"
    key.unlink()
    assert f"the key {key} can't be read" in install("--tier", "2").stderr


def test_commands_add_packages_without_an_option(
    install: Cli, cli: Cli, mirror: Mirror, roots: Path, project: Path
) -> None:
    mirror.offer(VERSION)
    assert install("--tier", "0").returncode == 0
    (roots / f"alpine-{VERSION}/sbin/apk").write_text('#!/bin/sh\necho "$@" >> /workspace/calls\n')
    line = "apk add jq; apk -X URL add --no-cache -- jq; apk del add; apk info add; apk"
    assert cli("run", "--root", "alpine", "--", line).returncode == 0
    assert (project / "calls").read_text().splitlines() == [
        "--no-chown add jq", "--no-chown -X URL add --no-cache -- jq", "del add", "info add", "",
    ]  # fmt: skip


def test_a_second_install_asks_nobody(install: Cli, mirror: Mirror) -> None:
    mirror.offer(VERSION)
    assert install().returncode == 0
    asked = len(mirror.asked)
    again = install()
    assert (again.returncode, len(mirror.asked)) == (0, asked)
    assert "is ready" in again.stdout


def test_an_installed_root_works_offline(install: Cli, cli: Cli, mirror: Mirror, roots: Path) -> None:
    mirror.offer(VERSION)
    assert install().returncode == 0
    mirror.files.clear()
    assert tree.is_ready(str(roots / f"alpine-{VERSION}"))
    assert cli("run", "--root", "alpine", "--", "true").returncode == 0
    assert install().returncode == 0
    assert install(what="check").returncode == 125


def test_what_is_not_whole_is_not_ready(test_directory: Path) -> None:
    empty = test_directory / "empty"
    empty.mkdir()
    assert not tree.is_ready(str(empty))
    (empty / ".alpine-version").write_text("3.20.3\n")
    assert not tree.is_ready(str(empty))
    (empty / "bin").mkdir()
    (empty / "bin/sh").touch(0o755)
    assert tree.is_ready(str(empty))
    (empty / ".alpine-version").write_text("3.20.3\ntier 1\n")
    assert not tree.is_ready(str(empty))
    (empty / "bin/python3").touch(0o755)
    assert tree.is_ready(str(empty))
    assert not tree.is_ready(str(empty / "none"))


def test_roots_are_kept_with_our_data_unless_the_environment_says_otherwise(
    install: Cli, cli: Cli, mirror: Mirror, roots: Path, test_directory: Path
) -> None:
    assert tree.trees_directory("/data") == "/data/rootfs"
    mirror.offer(VERSION)
    elsewhere = test_directory / "baked"
    baked = {"FUMEHOOD_ROOTFS_DIR": str(elsewhere)}
    assert install(env=baked).returncode == 0
    assert not roots.exists()
    assert elsewhere.stat().st_mode & 0o055 == 0o055
    assert cli("run", "--root", "alpine", "--", "true").returncode == 125
    for where in (elsewhere, elsewhere / f"alpine-{VERSION}"):
        done = cli("run", "--root", "alpine", "--", "cat /etc/alpine-release", env={"FUMEHOOD_ROOTFS_DIR": str(where)})
        assert done.stdout == f"{VERSION}\n"


FAILURES = {
    "a wrong checksum": "SHA-256 is wrong", "a hostile tarball": "leads out of it", "no root": "no /bin/sh",
    "no package": "no such package", "no libraries": "no command runs in what was unpacked: bwrap: execvp /bin/sh",
    "a link for /etc": "its /etc is not a directory",
}  # fmt: skip


@pytest.mark.parametrize("what", FAILURES)
def test_a_failed_install_leaves_nothing(what: str, install: Cli, mirror: Mirror, roots: Path) -> None:
    climbing = tarfile.TarInfo("etc/x")
    climbing.type, climbing.linkname = tarfile.SYMTYPE, "../../../../etc/passwd"
    if what == "a wrong checksum":
        mirror.offer(VERSION, sha256="0" * 64)
    elif what == "a hostile tarball":
        mirror.offer(VERSION, tarball(("bin/sh", b"", 0o755), climbing))
    elif what == "no root":
        mirror.offer(VERSION, tarball(("readme", b"", 0o644)))
    elif what == "no libraries":
        mirror.offer(VERSION, tarball(("bin/sh", Path("/bin/sh").read_bytes(), 0o755)))
    elif what == "a link for /etc":
        climbing.name, climbing.linkname = "etc", "usr/etc"
        mirror.offer(VERSION, tarball(("bin/sh", b"#!", 0o755), climbing))
    else:
        mirror.offer(VERSION)
        mirror.files["/v3.20/main/APKINDEX"] = b"bash\n"
    done = install(*(("--tier", "0") if what.startswith(("no lib", "a link")) else ()))
    assert done.returncode == 125
    assert FAILURES[what] in done.stderr
    assert "hint: " in done.stderr
    assert visible(roots) == []


def test_a_release_must_have_the_checksum_that_a_person_names(install: Cli, mirror: Mirror, roots: Path) -> None:
    mirror.offer(VERSION)
    assert "SHA-256 is wrong" in install("--sha256", "0" * 64).stderr
    assert visible(roots) == []
    release = next(content for name, content in mirror.files.items() if name.endswith(".tar.gz"))
    assert install("--sha256", hashlib.sha256(release).hexdigest()).returncode == 0


@pytest.mark.parametrize(("where", "said"), [("rootfs", "can't be unpacked: the disk is full"), ("cache", "is full")])
def test_a_full_disk_is_said(
    where: str, said: str, mirror: Mirror, home: Path, project: Path, roots: Path, test_directory: Path
) -> None:
    mirror.offer(VERSION)
    small = roots if where == "rootfs" else home / ".cache/fumehood/downloads"
    small.mkdir(parents=True)
    line = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"', small]
    command = [*line, *command_line(), "rootfs", "install", "--mirror", mirror.url]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert said in done.stderr.splitlines()[-2]
    assert "hint: " in done.stderr.splitlines()[-1]
    assert "free some space" in done.stderr.splitlines()[-1]


def test_a_cut_download_is_taken_up_by_the_next_install(install: Cli, mirror: Mirror, roots: Path) -> None:
    path = mirror.offer(VERSION)
    mirror.cuts[path] = [100_000] + [0] * 20
    done = install()
    assert done.returncode == 125
    assert "100000 bytes are kept" in done.stderr
    assert visible(roots) == []
    mirror.cuts.clear()
    assert install().returncode == 0
    assert (path, "bytes=100000-") in mirror.asked


def test_a_changed_list_of_releases_is_said(install: Cli, mirror: Mirror, roots: Path) -> None:
    path = mirror.offer(VERSION)
    mirror.files[f"{path.rpartition('/')[0]}/latest-releases.yaml"] = b"releases: moved\n"
    done = install()
    assert (done.returncode, visible(roots)) == (125, [])
    assert "not a list of releases" in done.stderr


def test_a_newer_version_is_installed_beside_and_switched_to(
    install: Cli, cli: Cli, mirror: Mirror, roots: Path
) -> None:
    mirror.offer("3.20.3")
    assert install().returncode == 0
    assert "3.20.3 is the newest" in install(what="check").stdout
    assert "newest version is installed" in install(what="update").stdout
    mirror.offer("3.21.0")
    assert "Alpine 3.21.0 is out, 3.20.3 is in use" in install(what="check").stdout
    assert cli("run", "--root", "alpine", "--", "cat /etc/alpine-release").stdout == "3.20.3\n"
    assert install(what="update").returncode == 0
    assert cli("run", "--root", "alpine", "--", "cat /etc/alpine-release").stdout == "3.21.0\n"
    assert cli("run", "--root", "alpine-3.20.3", "--", "cat /etc/alpine-release").stdout == "3.20.3\n"
    assert visible(roots) == ["alpine-3.20.3", "alpine-3.21.0", "current"]
    assert cli("rootfs", "use", "alpine-3.20.3").returncode == 0
    assert os.readlink(roots / "current") == "alpine-3.20.3"
    assert cli("rootfs", "remove", "alpine-3.20.3").stdout == "alpine-3.20.3 is removed; alpine is alpine-3.21.0 now\n"
    assert visible(roots) == ["alpine-3.21.0", "current"]
    listed = json.loads(cli("rootfs", "list", "--json").stdout)["roots"]
    assert [(tree["name"], tree["current"]) for tree in listed] == [("alpine-3.21.0", True)]


def test_a_version_can_be_named(install: Cli, mirror: Mirror, roots: Path) -> None:
    mirror.offer("3.20.3")
    mirror.offer("3.21.0")
    assert install("--version", "3.20.3").returncode == 0
    assert os.readlink(roots / "current") == "alpine-3.20.3"
    done = install("--version", "3.1.4")
    assert done.returncode == 125
    assert "404" in done.stderr


def test_a_damaged_tree_is_said_and_can_be_removed(install: Cli, cli: Cli, mirror: Mirror, roots: Path) -> None:
    mirror.offer(VERSION)
    assert install().returncode == 0
    (roots / f"alpine-{VERSION}/usr/bin/python3").unlink()
    assert "is damaged" in cli("run", "--root", "alpine", "--", "true").stderr
    for wrong in ("..", ".lock", "current", "none"):
        assert f"there is no root {wrong}" in cli("rootfs", "remove", wrong).stderr
    assert cli("rootfs", "remove", "alpine").returncode == 0
    assert visible(roots) == []


def test_two_installers_at_once_install_once(mirror: Mirror, home: Path, project: Path, roots: Path) -> None:
    mirror.offer(VERSION)
    command = [*command_line(), "rootfs", "install", "--mirror", mirror.url]
    processes = [
        subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    told = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], told
    assert mirror.count("latest-releases.yaml") == 1
    assert all("is ready" in out for out, _ in told)
    assert visible(roots) == [f"alpine-{VERSION}", "current"]


@pytest.mark.long
def test_a_root_is_installed_when_it_is_first_needed_if_the_person_said_so(
    mirror: Mirror, cli: Cli, home: Path, project: Path, roots: Path
) -> None:
    mirror.offer(VERSION)
    configuration = home / ".config/fumehood/config.toml"
    configuration.parent.mkdir(parents=True, exist_ok=True)
    configuration.write_text(f'root = "alpine"\n[rootfs]\nmirror = "{mirror.url}"\n')
    refused = cli("run", "--", "true")
    assert "no Alpine root is installed" in refused.stderr
    assert mirror.asked == []
    configuration.write_text(f"{configuration.read_text()}install = true\n")
    command = [*command_line(), "run", "--", "cat /etc/alpine-release; python3"]
    processes = [
        subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate() for process in processes]
    assert [out for out, _ in printed] == [f"{VERSION}\npython3 1.0\n"] * 2, printed
    assert sum("fumehood: unpacking\n" in err for _, err in printed) == 1
    assert mirror.count(".tar.gz") == 1
    assert cli("run", "--", "true").stderr == ""
    assert cli("rootfs", "remove", f"alpine-{VERSION}").returncode == 0
    again = cli("run", "--json", "--", "cat /etc/alpine-release")
    assert (json.loads(again.stdout)["output"], again.stderr) == (f"{VERSION}\n", "")


def test_a_killed_install_leaves_nothing_half_made(
    mirror: Mirror, install: Cli, home: Path, project: Path, roots: Path
) -> None:
    mirror.offer(VERSION)
    # Its packages never come: the installer waits for them with the tree half made.
    mirror.files["/v3.20/main/APKINDEX"] = b""
    slow = minirootfs(VERSION)
    held = tarball(("sbin/apk", b"#!/bin/sh\ntouch /var/tmp/waiting; exec sleep 1000\n", 0o755))
    mirror.offer(VERSION, _joined(slow, held))
    process = subprocess.Popen(
        [*command_line(), "rootfs", "install", "--mirror", mirror.url], cwd=project, stderr=subprocess.DEVNULL
    )
    assert eventually(lambda: list(roots.glob(".new-*/var/tmp/waiting")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [name[:5] for name in visible(roots)] == [".new-"]
    assert json.loads(subprocess.run([*command_line(), "rootfs", "list", "--json"], cwd=project, capture_output=True,
                                     check=True).stdout) == {"roots": []}  # fmt: skip
    mirror.offer("3.20.4")
    assert install().returncode == 0
    assert visible(roots) == ["alpine-3.20.4", "current"]


def _joined(first: bytes, second: bytes) -> bytes:
    """One tarball of the members of two."""
    plain = gzip.decompress(first)
    return plain[: _end(plain)] + second


def _end(plain: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        archive.getmembers()
        return archive.offset


def test_a_tree_of_ones_own_is_installed_by_name(install: Cli, cli: Cli, roots: Path, test_directory: Path) -> None:
    given = test_directory / "my tools.tar.gz"
    given.write_bytes(minirootfs(VERSION))
    done = install("--from", given)
    assert done.returncode == 0, done.stderr
    assert cli("run", "--root", "my-tools", "--", "cat /etc/alpine-release").stdout == f"{VERSION}\n"
    assert "there is a root my-tools already" in install("--from", given).stderr
    assert install("--from", given, "--name", "other").returncode == 0
    assert "SHA-256 is wrong" in install("--from", given, "--name", "third", "--sha256", "0" * 64).stderr
    for wrong in ("a/b", "..", "alpine", "host", ".x"):
        assert "can't be called" in install("--from", given, "--name", wrong).stderr
    assert "no file" in install("--from", test_directory / "none.tar").stderr


def test_a_tree_is_installed_from_an_address(install: Cli, mirror: Mirror, roots: Path) -> None:
    mirror.files["/mine.tar.gz"] = minirootfs(VERSION)
    assert "404" in install("--from", f"{mirror.url}/mine.tar.gz").stderr
    digest = hashlib.sha256(mirror.files["/mine.tar.gz"]).hexdigest()
    assert install("--from", f"{mirror.url}/mine.tar.gz", "--sha256", digest).returncode == 0
    mirror.files["/mine.tar.gz.sha256"] = f"{digest}  mine\n".encode()
    assert install("--from", f"{mirror.url}/mine.tar.gz", "--name", "again").returncode == 0
    assert visible(roots) == ["again", "current", "mine"]


def test_a_root_that_a_command_runs_in_is_not_removed(
    install: Cli, cli: Cli, mirror: Mirror, home: Path, project: Path, roots: Path
) -> None:
    mirror.offer(VERSION)
    assert install("--tier", "0").returncode == 0
    command = [*command_line(), "run", "--root", "alpine", "--", "echo begun; exec sleep 1000"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        done = cli("rootfs", "remove", f"alpine-{VERSION}")
        running.send_signal(signal.SIGINT)
    assert "a command is running in" in done.stderr
    assert cli("rootfs", "remove", f"alpine-{VERSION}").returncode == 0
    assert visible(roots) == []


def test_a_program_installs_lists_and_removes_as_the_command_line_does(
    home: Path, mirror: Mirror, roots: Path, cli: Cli
) -> None:
    from fumehood import rootfs

    mirror.offer(VERSION)
    steps: list[tuple[str, int, int]] = []
    assert rootfs.latest_version(mirror=mirror.url) == VERSION
    tree = rootfs.install(tier=0, mirror=mirror.url, on_progress=lambda *step: steps.append(step))
    assert tree.fields() == {
        "name": f"alpine-{VERSION}", "version": VERSION, "path": str(roots / f"alpine-{VERSION}"), "current": True,
    }  # fmt: skip
    assert {what.split()[0] for what, _, _ in steps} >= {"downloading", "unpacking"}
    downloaded = [(done, total) for what, done, total in steps if what.startswith("downloading") and total]
    assert downloaded[-1][0] == downloaded[-1][1] > 0
    assert rootfs.is_ready()
    assert (rootfs.list(), rootfs.directory("alpine")) == ([tree], tree.path)
    listed = json.loads(cli("rootfs", "list", "--json").stdout)["roots"]
    assert listed == [tree.fields() | {"tier": 0, "packages": []}]
    assert rootfs.install(tier=0, mirror="http://127.0.0.1:9/") == tree  # asks nobody
    rootfs.remove(tree.name)
    assert (rootfs.list(), rootfs.is_ready()) == ([], False)
