"""Access rules (POSIX ACLs) of a directory are for what a command makes in it, as for what its owner makes there."""

import errno
import os
import struct
import subprocess
from pathlib import Path

import pytest

from conftest import need
from fumehood import Policy, Sandbox
from fumehood.service.layers import copy_metadata

pytestmark = pytest.mark.namespaces

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
OWNER, USER, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
NOBODY, NO_ID = 65534, 0xFFFFFFFF


def rules(*entries: tuple[int, int, int]) -> bytes:
    """Access rules as the kernel has them: what an entry is for, what it allows, whom it names."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


SHARED = rules((OWNER, 7, NO_ID), (USER, 7, NOBODY), (GROUP, 5, NO_ID), (MASK, 7, NO_ID), (OTHER, 5, NO_ID))


def share(directory: Path) -> None:
    """Let what is made in a directory be another user's too."""
    try:
        os.setxattr(directory, DEFAULT, SHARED)
    except OSError as error:
        need(error.errno != errno.EOPNOTSUPP, "the file system has no access rules")
        raise


def rules_of(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path) if name in (ACCESS, DEFAULT)}


@pytest.mark.parametrize("capture", ["", "copy"])
def test_what_a_command_makes_has_the_rules_that_its_owners_files_get(home, project, capture):
    (project / "below").mkdir()
    share(project)
    share(project / "below")
    made = "echo x > {0}-file; mkdir {0}-directory; echo x > below/{0}"
    subprocess.run(made.format("by-hand"), cwd=project, shell=True, check=True)  # as a person would
    with Sandbox(project, Policy(capture=capture)) as sandbox:
        run = sandbox.run(made.format("by-command"))
        assert (run.state, run.output) == ("applied", "")
        for name in ("{}-file", "{}-directory", "below/{}"):
            ours, theirs = (project / name.format(who) for who in ("by-command", "by-hand"))
            assert (rules_of(ours), ours.stat().st_mode) == (rules_of(theirs), theirs.stat().st_mode), name
        assert sandbox.run("true").state == "empty"
        sandbox.undo(run)
    assert sorted(path.name for path in project.iterdir()) == ["below", "by-hand-directory", "by-hand-file"]
    assert rules_of(project) == {DEFAULT: SHARED}


def test_a_copy_that_can_not_have_the_rules_for_others_is_told_which_one_has_them(sandbox, project):
    share(project)
    (project / "a").write_text("a")
    run = sandbox.run("cp -p a kept")
    assert (run.exit_code, [each.what for each in run.blocked]) == (1, ["rules"]), run.output
    assert "cp -r" in run.blocked[0].hint
    assert sandbox.run("cp -r a copied").blocked == ()
    assert rules_of(project / "copied") == rules_of(project / "a")


def test_rules_of_where_the_layers_lie_are_for_nobody_else(home, project):
    share(home)
    state = home / ".local/state"
    share(state)
    with Sandbox(project) as sandbox:
        assert sandbox.run("echo x > file; mkdir directory").state == "applied"
    assert (rules_of(project / "file"), rules_of(project / "directory")) == ({}, {})


def test_an_attribute_that_can_not_be_given_keeps_back_no_other(test_directory, monkeypatch):
    root, upper = test_directory / "root", test_directory / "upper"
    root.mkdir()
    upper.mkdir()
    for name in ("user.a", "user.b"):
        os.setxattr(root, name, b"x")
    give = os.setxattr

    def refuse_one(path, name, value):
        if name == "user.a":
            raise OSError(errno.ENOSPC, "no room")
        give(path, name, value)

    monkeypatch.setattr(os, "setxattr", refuse_one)
    copy_metadata(str(upper), str(root))
    assert "user.b" in os.listxattr(upper)


OPEN = rules((OWNER, 7, NO_ID), (GROUP, 7, NO_ID), (OTHER, 7, NO_ID))
OPENED = f"""
import os
for directory in ("new", "new/.git", "new/.git/hooks", "plain"):
    os.makedirs(directory, exist_ok=True)
    os.setxattr(directory, {DEFAULT!r}, {OPEN!r})
open("new/.git/HEAD", "w").write("ref: refs/heads/main")
open("plain/x", "w").close()
"""


@pytest.mark.parametrize("capture", ["", "copy"])
def test_a_directory_that_the_host_acts_on_is_not_opened_to_others_by_its_rules(home, project, capture):
    share(project)
    with Sandbox(project, Policy(capture=capture)) as sandbox:
        run = sandbox.run(["python3", "-c", OPENED])
        assert run.exit_code == 0, run.output
        held = {change.path: change.flags for change in run.changes if change.verdict == "held"}
        assert held["new/.git"] == held["new/.git/hooks"] == ("opening", "opened")
        assert not (project / "new/.git/hooks").exists()
        assert rules_of(project / "plain")[DEFAULT] == OPEN
