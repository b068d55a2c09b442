"""Workspaces, and the layer that a project may have over a shared root tree."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trees
from conftest import command_line
from fumehood import Policy, Sandbox
from fumehood.core.policy import Limits, Rootfs
from fumehood.errors import FumehoodError
from fumehood.linux.confine import can_scope
from fumehood.rootfs.tree import RootLayer, layers_over
from fumehood.service.opened import OpenedStore
from patience import LONG_S

pytestmark = pytest.mark.namespaces
Cli = Callable[..., subprocess.CompletedProcess[str]]
MOUNT_POINTS = ("workspace", "roots", "skills", "playground")


def a_tree(at: Path, version: str) -> Path:
    """An installed tree, as an installer leaves it."""
    made = trees.make_tree(at / f"alpine-{version}", version)
    for name in MOUNT_POINTS:
        (made / name).mkdir()
    (made / ".alpine-version").write_text(f"{version}\n")
    return made


@pytest.fixture
def alpine(home: Path) -> Path:
    """An installed Alpine root."""
    at = home / ".local/share/fumehood/rootfs"
    at.mkdir(parents=True)
    made = a_tree(at, trees.VERSION)
    (at / "current").symlink_to(made.name)
    return made


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def writable(home: Path) -> None:
    (home / ".config/fumehood").mkdir(exist_ok=True)
    (home / ".config/fumehood/config.toml").write_text('root = "alpine"\nrootfs.writable = true\n')


INSTALL = "mkdir -p /opt && echo tool > /opt/tool && rm /etc/passwd && echo more >> /etc/os-release"
LOOK = "cat /opt/tool; ls /etc; id -u"


def test_an_explained_run_leaves_no_root_layer(cli: Cli, home: Path, project: Path, alpine: Path) -> None:
    writable(home)
    for words in (["run", "--explain", "--", "true"], ["capabilities"]):
        done = cli(*words)
        assert done.returncode == 0, done.stderr
        assert list(home.glob(".local/share/fumehood/layers/*")) == []


def test_what_is_installed_into_the_root_stays_for_that_project_alone(
    cli: Cli, home: Path, project: Path, alpine: Path, test_directory: Path
) -> None:
    writable(home)
    before = sorted(alpine.rglob("*"))
    assert cli("run", "--", INSTALL).returncode == 0
    run = told(cli("run", "--json", "--", LOOK))
    assert run["output"].split()[0] == "tool"
    assert "passwd" not in run["output"]
    assert run["output"].split()[-1] == "0"
    other = test_directory / "other"
    other.mkdir()
    assert "passwd" in cli("run", "--", LOOK, cwd=other).stdout
    assert sorted(alpine.rglob("*")) == before
    assert "more" not in (alpine / "etc/os-release").read_text()
    assert "shared one again" in cli("workspace", "reset").stdout
    assert "nothing to drop" in cli("workspace", "reset").stdout
    assert "passwd" in cli("run", "--", LOOK).stdout


def test_the_project_is_captured_under_a_writable_root_too(cli: Cli, home: Path, project: Path, alpine: Path) -> None:
    writable(home)
    (project / "a").write_text("old")
    run = told(cli("run", "--json", "--", "echo new > a; touch /x"))
    assert [(change["path"], change["change"]) for change in run["changes"]] == [("a", "modified")]
    assert (project / "a").stat().st_uid == os.getuid()
    assert cli("undo").returncode == 0
    assert (project / "a").read_text() == "old"


def test_a_writable_root_works_or_is_refused_by_way_of_capturing(
    way: str, home: Path, project: Path, alpine: Path
) -> None:
    policy = Policy(capture=way, root="alpine", rootfs=Rootfs(writable=True))
    with Sandbox(project, policy=policy) as sandbox:
        if way in ("fuse", "copy"):
            with pytest.raises(FumehoodError, match=f"captured by {way}"):
                sandbox.run("true")
            return
        assert sandbox.run("echo x > /x; echo y > y").exit_code == 0
        assert sandbox.run("cat /x /workspace/y").output == "x\ny\n"


def test_the_playground_can_be_written_under_a_writable_root_too(
    cli: Cli, home: Path, project: Path, alpine: Path
) -> None:
    writable(home)
    assert cli("run", "--", "echo x > /playground/x && cat /playground/x").stdout == "x\n"
    assert (home / ".local/share/fumehood/playground/x").read_text() == "x\n"


def test_what_is_written_to_a_root_of_the_projects_own_counts_for_its_limit(
    home: Path, project: Path, alpine: Path
) -> None:
    limits = Limits(written=20 << 20)
    with Sandbox(project, policy=Policy(root="alpine", rootfs=Rootfs(writable=True), limits=limits)) as sandbox:
        line = "n=0; while :; do n=$((n + 1)); dd if=/dev/zero of=/opt-$n bs=1M count=8; sleep 0.1; done"
        run = sandbox.run(line, timeout=LONG_S)
    assert [each.detail for each in run.blocked if each.what == "limit"] == ["written: 20 MiB"]


def test_a_tree_that_others_may_only_read_is_ready_for_them(cli: Cli, alpine: Path) -> None:
    alpine.parent.chmod(0o555)
    done = cli("rootfs", "install", "--tier", "0", "--mirror", "http://127.0.0.1:1")
    alpine.parent.chmod(0o755)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (alpine.parent / ".lock").exists()
    assert cli("rootfs", "use", alpine.name).returncode == 0
    itself = {"FUMEHOOD_ROOTFS_DIR": str(alpine)}
    assert cli("rootfs", "install", "--tier", "0", env=itself).returncode == 0
    for act in (("install",), ("update",), ("remove", alpine.name)):
        assert "is one root tree, which is not changed" in cli("rootfs", *act, env=itself).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a tree to somebody else")
def test_a_writable_root_over_somebody_elses_tree_is_refused(
    cli: Cli, home: Path, project: Path, alpine: Path
) -> None:
    writable(home)
    os.chown(alpine, 4711, -1)
    done = cli("run", "--", "touch x")
    assert done.returncode == 125
    assert "belongs to user 4711, so it can't have a layer that you write" in done.stderr
    assert not (project / "x").exists()
    (home / ".config/fumehood/config.toml").write_text('root = "alpine"\n')
    assert cli("run", "--", "cat /etc/alpine-release").stdout == f"{trees.VERSION}\n"


def test_mount_points_can_not_be_replaced_in_the_layer(
    cli: Cli, home: Path, project: Path, alpine: Path, test_directory: Path
) -> None:
    writable(home)
    line = "for d in /skills /roots /playground /workspace /dev /proc /tmp; do rmdir $d; mv $d /gone; done; ls /"
    run = told(cli("run", "--json", "--", line))
    assert set(MOUNT_POINTS) | {"dev", "proc", "tmp"} <= set(run["output"].split())
    assert "gone" not in run["output"].split()
    # Even one that got there is not mounted on.
    upper = next((home / ".local/share/fumehood/layers").iterdir()) / "upper"
    (upper / "skills").symlink_to(test_directory)
    done = cli("run", "--", "true")
    assert done.returncode == 125
    assert "/skills was replaced" in done.stderr
    assert "workspace reset" in done.stderr


def test_only_one_command_at_a_time_writes_the_layer(cli: Cli, home: Path, project: Path, alpine: Path) -> None:
    writable(home)
    assert cli("run", "--", "echo 1 > /first").returncode == 0
    command = [*command_line(), "run", "--", "echo begun; exec sleep 1000"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        run = told(cli("run", "--json", "--", "cat /first; touch /second; echo ours > here"))
        refused = cli("workspace", "reset")
        running.send_signal(signal.SIGINT)
    assert "Read-only" in run["output"]
    assert run["output"].startswith("1\n")
    assert "the root layer" in [each["detail"] for each in run["blocked"]]
    assert (project / "here").exists()
    assert "a command is running" in refused.stderr
    assert cli("run", "--", "touch /second").returncode == 0


def test_a_layer_keeps_to_the_version_it_was_made_over(
    cli: Cli, home: Path, project: Path, alpine: Path
) -> None:
    writable(home)
    assert cli("run", "--", "echo x > /x").returncode == 0
    a_tree(alpine.parent, "3.21.0")
    assert cli("rootfs", "use", "alpine-3.21.0").returncode == 0
    assert cli("run", "--", "cat /x /etc/alpine-release").stdout == f"x\n{trees.VERSION}\n"
    assert "lies over alpine-3.20.3" in cli("run", "--root", "alpine-3.21.0", "--", "true").stderr
    assert "is in use below the root layer of 1 project" in cli("rootfs", "remove", "alpine-3.20.3").stderr
    assert cli("workspace", "reset").returncode == 0
    assert cli("run", "--", "cat /etc/alpine-release").stdout == "3.21.0\n"
    assert cli("rootfs", "remove", "alpine-3.20.3").returncode == 0


def test_two_first_commands_make_one_layer(test_directory: Path) -> None:
    one, other = RootLayer(str(test_directory / "layer")), RootLayer(str(test_directory / "layer"))
    first, second = one.take("alpine-1"), other.take("alpine-2")
    assert (first, second, other.base) == (True, False, "alpine-1")
    one.release()
    other.release()
    assert other.take("alpine-2")
    other.release()


def test_a_layer_that_a_killed_process_was_making_does_not_keep_its_tree(test_directory: Path) -> None:
    layer = RootLayer(str(test_directory / "7"))
    layer.take("alpine-1")
    layer.release()
    unfinished = test_directory / "8.1234.5678"
    unfinished.mkdir()
    (unfinished / "base").write_text("alpine-1")
    assert layers_over(str(test_directory), "alpine-1") == ["7"]


def test_a_workspace_is_a_project_with_runs_history_and_undo(cli: Cli, alpine: Path, test_directory: Path) -> None:
    assert cli("workspace", "create", "research").returncode == 0
    path = Path(cli("workspace", "path", "research").stdout.strip())
    done = cli("run", "--workspace", "research", "--", "pwd; echo hello > note", cwd=test_directory)
    assert (done.returncode, done.stdout) == (0, "/workspace\n")
    assert (path / "note").read_text() == "hello\n"
    assert "note" in cli("show", "last", "--workspace", "research").stdout
    assert cli("undo", "--workspace", "research").returncode == 0
    assert not (path / "note").exists()
    with Sandbox(path) as sandbox:
        assert sandbox.run("cat /etc/alpine-release").output == f"{trees.VERSION}\n"
        assert len(sandbox.history()) == 3


def test_the_default_workspace_is_made_on_demand(cli: Cli, alpine: Path) -> None:
    assert told(cli("workspace", "list", "--json")) == {"workspaces": []}
    assert cli("run", "--workspace", "default", "--", "echo x > x").returncode == 0
    (listed,) = told(cli("workspace", "list", "--json"))["workspaces"]
    assert (listed["name"], listed["root"]) == ("default", "alpine")
    assert "no workspace other" in cli("run", "--workspace", "other", "--", "true").stderr


def test_a_workspace_has_its_own_network_rule_variables_and_root(cli: Cli, alpine: Path, home: Path) -> None:
    options = ("--network", "ask", "--env", "COLOUR=blue", "--env", "EMPTY=", "--writable")
    assert cli("workspace", "create", "own", *options).returncode == 0
    assert cli("run", "--workspace", "own", "--", "echo x > /x; echo $COLOUR").stdout == "blue\n"
    assert cli("run", "--workspace", "own", "--", "cat /x").stdout == "x\n"
    store = OpenedStore()
    try:
        policy = store.policy_of(store.projects.open(store.workspaces.find("own").path))
        assert (policy.network, policy.root) == ("ask", "alpine")
    finally:
        store.close()
    (listed,) = told(cli("workspace", "list", "--json"))["workspaces"]
    assert listed["layer"]["base"] == alpine.name
    assert cli("workspace", "set", "own", "--read-only", "--env", "COLOUR=red").returncode == 0
    assert cli("run", "--workspace", "own", "--", "echo $COLOUR; touch /y; cat /x").stdout == "red\n"
    assert "network rule" in cli("workspace", "set", "own", "--network", "much").stderr
    assert "is not a variable" in cli("workspace", "set", "own", "--env", "1=x").stderr


def test_reset_and_remove(cli: Cli, alpine: Path, home: Path) -> None:
    assert cli("workspace", "create", "gone", "--writable").returncode == 0
    assert cli("run", "--workspace", "gone", "--", "echo x > /x; echo y > y").returncode == 0
    assert "shared one again" in cli("workspace", "reset", "gone").stdout
    assert cli("run", "--workspace", "gone", "--", "ls /x y").stdout == "y\n"
    assert "is not empty (1 entry)" in cli("workspace", "remove", "gone").stderr
    assert cli("workspace", "remove", "gone", "--yes").returncode == 0
    assert not (home / ".local/share/fumehood/workspaces/gone").exists()
    assert "no workspace gone" in cli("workspace", "reset", "gone").stderr
    assert cli("workspace", "create", "gone").returncode == 0
    assert "already" in cli("workspace", "create", "gone").stderr


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "../x", ".hidden", "-x", "a b", "a\nb", "x" * 65, "ä"])
def test_a_name_that_is_none_is_refused(name: str, cli: Cli) -> None:
    done = cli("workspace", "create", "--", name)
    assert done.returncode == 125
    assert "can't be called" in done.stderr or "needs a name" in done.stderr


def test_no_other_directory_of_ours_becomes_a_project(cli: Cli, alpine: Path, home: Path) -> None:
    data = home / ".local/share/fumehood"
    (data / "workspaces/deep/er").mkdir(parents=True)
    for inside in (data, data / "workspaces", data / "workspaces/deep/er", alpine):
        assert "keeps its own records" in cli("run", "--project", inside, "--", "true").stderr


def test_a_layer_gets_the_resolver_without_following_what_is_there(
    cli: Cli, home: Path, alpine: Path, test_directory: Path, need: Callable[[bool, str], None]
) -> None:
    need(can_scope(), "the host's network can't be shared here: that needs Landlock of Linux 6.12")
    need(os.path.isfile("/etc/resolv.conf"), "this host has no /etc/resolv.conf")
    victim = test_directory / "victim"
    victim.write_text("untouched")
    assert cli("workspace", "create", "net", "--writable").returncode == 0
    assert cli("run", "--workspace", "net", "--", f"ln -sf {victim} /etc/resolv.conf").returncode == 0
    assert cli("workspace", "set", "net", "--network", "full").returncode == 0
    done = cli("run", "--workspace", "net", "--", "cat /etc/resolv.conf")
    assert done.stdout == Path("/etc/resolv.conf").read_text()
    assert victim.read_text() == "untouched"
    assert cli("run", "--workspace", "net", "--", "mv /etc /old; ln -s /old /etc").returncode == 0
    assert "/etc was replaced" in cli("run", "--workspace", "net", "--", "true").stderr


def test_a_workspace_may_run_in_the_hosts_root(way: str, cli: Cli, home: Path) -> None:
    (home / ".config/fumehood").mkdir(exist_ok=True)
    (home / ".config/fumehood/config.toml").write_text(f'capture = "{way}"\n')
    assert cli("workspace", "create", "here", "--root", "host").returncode == 0
    assert cli("workspace", "create", "other", "--root", "host").returncode == 0
    path = Path(cli("workspace", "path", "here").stdout.strip())
    done = cli("run", "--workspace", "here", "--", "pwd; echo x > x; ls ..; touch ../y")
    assert done.stdout.split() == [str(path), "here"], done.stderr
    assert (path / "x").read_text() == "x\n"
    assert not (path.parent / "y").exists()


def test_a_workspace_is_emptied_only_with_a_yes_and_keeps_its_settings(cli: Cli, alpine: Path) -> None:
    assert cli("workspace", "create", "w", "--root", "host", "--env", "COLOUR=blue").returncode == 0
    assert cli("run", "--workspace", "w", "--", "echo x > a").returncode == 0
    assert "is not empty (1 entry)\nhint: fumehood workspace clear w --yes" in cli("workspace", "clear", "w").stderr
    assert told(cli("workspace", "clear", "w", "--yes", "--json")) == {"cleared": "w"}
    assert cli("run", "--workspace", "w", "--", "ls; echo $COLOUR").stdout == "blue\n"
