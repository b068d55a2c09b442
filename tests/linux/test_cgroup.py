"""Control groups: the real ones of this machine, where it lets us make one."""

import os
import subprocess

import pytest

from conftest import need
from fumehood.linux import cgroup
from fumehood.linux.cgroup import Cgroup, find_parent_group


@pytest.fixture
def group():
    """A fresh group of version 2, with whatever controllers this machine has there."""
    mount = cgroup.mount_point()
    need(bool(mount), "no control groups of version 2 are mounted")
    path = f"{mount}/fumehood-tests-{os.getpid()}"
    try:
        os.mkdir(path)
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    yield path
    if os.path.exists(path):
        os.rmdir(path)


def divisible():
    """Return the group that runs are given groups in; few machines that run tests have one, so none is no failure."""
    found = find_parent_group()
    if found is None:
        pytest.skip("no control group that counts memory and processes is ours to divide")
    return found


def members(path):
    with open(f"{path}/cgroup.procs", encoding="ascii") as file:
        return {int(line) for line in file}


def test_processes_are_moved_and_the_group_goes_when_they_have_ended(group):
    with subprocess.Popen(["sleep", "1000"]) as one, subprocess.Popen(["sleep", "1000"]) as other:
        try:
            Cgroup(group).move_in(lambda: [one.pid, other.pid, 2**22 - 1])
            assert members(group) == {one.pid, other.pid}
            Cgroup(group).remove()
            assert os.path.exists(group)  # in use
        finally:
            one.kill()
            other.kill()
    Cgroup(group).remove()
    assert not os.path.exists(group)


def test_what_is_delegated_counts_memory_and_processes_and_can_be_written():
    found = divisible()
    with open(f"{found}/cgroup.subtree_control", encoding="ascii") as file:
        assert {"memory", "pids"} <= set(file.read().split())


def test_a_run_is_put_into_a_group_of_its_own_with_its_limits():
    divisible()
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            made = Cgroup.around(process.pid, 1 << 28, 77)
            assert made is not None
            with open(f"{made._path}/memory.max", encoding="ascii") as file:
                assert int(file.read()) == 1 << 28
            with open(f"{made._path}/pids.max", encoding="ascii") as file:
                assert int(file.read()) == 77
            assert members(made._path) == {process.pid}
            assert made.enforced_limit() is None
        finally:
            process.kill()
    made.remove()
    assert not os.path.exists(made._path)
