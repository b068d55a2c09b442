"""A real apk against a signed repository, where a real mini root file system is given.

    FUMEHOOD_TESTS_MINIROOTFS=alpine-minirootfs-3.23.0-x86_64.tar.gz make test ARGS=tests/rootfs/test_real_apk.py

Several may be given, joined by colons. None can be fetched where tests run, so without one this is skipped.
"""

import os
import re
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood.linux.confine import can_scope
from fumehood.rootfs.download import architecture, branch_of
from fumehood.rootfs.installer import packages_of
from mirror import Mirror
from signed_packages import Repository, new_key

GIVEN = [path for path in os.environ.get("FUMEHOOD_TESTS_MINIROOTFS", "").split(":") if path]
pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(not GIVEN, reason="FUMEHOOD_TESTS_MINIROOTFS names no mini root file system of Alpine"),
]
Cli = Callable[..., subprocess.CompletedProcess[str]]
# As packages of servers do it: a user of their own, and a file for it.
SCRIPT = "#!/bin/sh\naddgroup -S testers; adduser -S -D -H -s /sbin/nologin -G testers tester\nid -u > /var/log/{}\n"


def release_in(tarball: str) -> str:
    with tarfile.open(tarball) as archive:
        names = [name for name in archive.getnames() if re.fullmatch(r"(\./)?etc/alpine-release", name)]
        file = archive.extractfile(names[0])
        assert file is not None
        return file.read().decode().strip()


@pytest.fixture(params=GIVEN or [""])
def offered(request: pytest.FixtureRequest, mirror: Mirror, test_directory: Path) -> tuple[Mirror, Path, str]:
    """A mirror with that release, and with packages signed by a key of our own."""
    version = release_in(request.param)
    public = new_key(test_directory)
    mirror.offer(version, Path(request.param).read_bytes())
    for part in ("main", "community"):
        repository = Repository(f"/{branch_of(version)}/{part}", architecture(), public)
        for name in [*packages_of(2), "server", "hard", "broken"] if part == "main" else []:
            above = [("usr/", b"", 0o755, 0), ("usr/bin/", b"", 0o755, 0)]
            tool = (f"usr/bin/{name}-tool", f"#!/bin/sh\necho {name}\n".encode(), 0o755, 0)
            owned = (f"usr/bin/{name}-owned", b"x", 0o640, 42)
            above += [("usr/bin/python3", b"#!/bin/sh\n", 0o755, 0)] if name == "python3" else []
            scripts = {
                "server": {".pre-install": SCRIPT.format(name)}, "broken": {".post-install": "#!/bin/sh\nexit 3\n"},
                "hard": {".post-install": "#!/bin/sh\nchown 42:42 /usr/bin/hard-tool\n"},
            }.get(name)  # fmt: skip
            # As git has it: one program under several names, in several directories.
            other = [("usr/libexec/", b"", 0o755, 0), ("usr/libexec/hard", tool[0], 0o755, 0)] if name == "hard" else []
            repository.add(name, [*above, tool, owned, *other], scripts)
        repository.finish()
        mirror.files |= repository.files
    return mirror, public, version


def test_packages_are_installed_by_a_real_apk(
    offered: tuple[Mirror, Path, str], cli: Cli, home: Path, need: Callable[[bool, str], None]
) -> None:
    mirror, public, version = offered
    install = ("rootfs", "install", "--mirror", mirror.url)
    refused = cli(*install)
    assert refused.returncode == 125
    assert "UNTRUSTED" in refused.stderr
    refused = cli(*install, "--key", public, "--package", "broken")
    assert "apk could not add packages: broken-1.0-r0.post-install: script exited with error 3\n" in refused.stderr
    done = cli(*install, "--key", public, "--tier", "2", "--package", "hard")
    assert done.returncode == 0, done.stderr
    names = "/usr/bin/hard-tool /usr/libexec/hard"
    assert cli("run", "--root", "alpine", "--", "git-tool; jq-tool").stdout == "git\njq\n"
    assert cli("run", "--root", "alpine", "--", f"stat -c %h {names}").stdout == "2\n2\n"
    assert "alpine-" + version in cli("rootfs", "list").stdout
    need(can_scope(), "the host's network can't be shared here: that needs Landlock of Linux 6.12")
    assert cli("workspace", "create", "own", "--writable", "--network", "full").returncode == 0
    line = f"apk del hard && apk add --no-cache server hard && cat /var/log/server && stat -c %h {names}"
    added = cli("run", "--workspace", "own", "--", line)
    assert added.returncode == 0, added.stdout + added.stderr
    assert added.stdout.splitlines()[-3:] == ["0", "2", "2"]
    again = cli("run", "--workspace", "own", "--", "server-tool; apk del server; server-tool")
    assert (again.returncode, again.stdout.splitlines()[0]) == (127, "server")
    assert cli("run", "--root", "alpine", "--", "server-tool").returncode == 127
