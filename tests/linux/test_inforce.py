"""What doctor says is in force is what a command meets."""

import json
import os

import pytest

from fumehood.linux import bwrap, cgroup, confine, doctor, libc, probe
from fumehood.linux.probe import Host

pytestmark = pytest.mark.namespaces

LOOK = """
grep -c '^Seccomp:.2$' /proc/self/status
kill -0 1 2>/dev/null && echo reached || echo kept out
grep -c ' - overlay .*lowerdir=' /proc/self/mountinfo
"""


def test_doctor_tells_of_views_filter_and_guard_as_a_command_meets_them(cli):
    told = json.loads(cli("doctor", "--json").stdout)
    filtered, signal, overlays = cli("run", "--quiet", "--", LOOK).stdout.splitlines()
    assert told["in_force"]["filter"] == (filtered == "1")
    # One overlay is the project's own.
    assert told["in_force"]["views"] == (int(overlays) > 1)
    if confine.can_scope():
        assert told["in_force"]["guard"] == (signal == "kept out")
    names = {each["name"]: each["works"] for each in told["abilities"]}
    assert names["guard"] == bool(confine.guard_program())
    assert "in force    " in cli("doctor").stdout


def test_where_the_launcher_can_not_mount_the_views_are_said_to_be_missing():
    for way in ("bwrap", "fuse", "copy"):
        told = doctor.check_views(Host(captures=(way,)))
        assert not told.works
        assert "no Unix socket but pairs" in told.detail


def test_control_groups_are_said_to_work_only_where_one_would_be_made():
    told = next(each for each in doctor.check_protections(Host()) if each.name == "cgroups")
    assert told.works == (cgroup.find_parent_group() is not None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount here")
def test_a_file_system_without_attributes_is_said_to_be_why_there_is_no_overlay(home):
    # As tmpfs was before Linux 6.6; otherwise doctor only has the words of a program that failed.
    place = home / "in memory"
    place.mkdir()
    libc.mount(b"none", os.fsencode(place), b"ramfs", 0, b"mode=755")
    try:
        machine = probe.probe_host(str(place), bwrap.candidates())
        (ability,) = (each for each in doctor.examine(str(place), machine) if each.name == "overlay by the kernel")
        assert not ability.works
        assert f"{place} is on ramfs, which can't hold layers" in ability.detail
        assert ability.fix
        # fuse-overlayfs has a file for a mark there, and loses the deletion of a directory that has one.
        assert machine.captures == ("copy",)
        if bwrap.trusted_programs("fuse-overlayfs") and os.path.exists("/dev/fuse"):
            assert machine.refusal("fuse") == "a directory that was replaced and then removed came back"
    finally:
        libc.umount(os.fsencode(place))
