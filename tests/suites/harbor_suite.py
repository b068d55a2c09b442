"""Harbor runs the example's task in the hood, in a root tree made of busybox."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

TASK = Path(os.environ["FUMEHOOD_SUITE_EXAMPLES"], "harbor_task")
ENVIRONMENT = "fumehood.adapters.harbor:FumehoodEnvironment"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An installed root tree; returns its name."""
    busybox = shutil.which("busybox")
    assert busybox is not None, "apt install busybox-static"
    tree = tmp_path_factory.mktemp("tree")
    (tree / "bin").mkdir()
    (tree / "etc").mkdir()
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    shutil.copy(busybox, tree / "bin/busybox")
    for name in subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if name != "busybox":
            (tree / "bin" / name).symlink_to("/bin/busybox")
    archive = tree.with_suffix(".tar")
    with tarfile.open(archive, "w") as made:
        made.add(tree, arcname=".")
    line = [sys.executable, "-m", "fumehood", "rootfs", "install", "--from", archive, "--name", "busybox"]
    subprocess.run(line, check=True)
    return "busybox"


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1), ("nop", 0)])
def test_a_trial_is_rewarded_for_what_its_agent_did(agent: str, reward: int, root: str, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "harbor.cli.main", "run", "-p", TASK, "-a", agent, "--env", ENVIRONMENT]
    line += ["--ek", f"root={root}", "--jobs-dir", tmp_path]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = tmp_path.glob("*/result.json")
    stats = json.loads(result.read_text())["stats"]
    assert stats["n_errored_trials"] == 0, done.stdout
    (evaluated,) = stats["evals"].values()
    assert evaluated["metrics"] == [{"mean": float(reward)}]
    layers = Path.home() / ".local/share/fumehood/layers"
    assert not list(layers.iterdir()), "a trial's layer goes with it"


def test_a_trial_that_harbor_keeps_is_there_afterwards(root: str, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "harbor.cli.main", "run", "-p", TASK, "-a", "oracle", "--env", ENVIRONMENT]
    environment = os.environ | {"HOME": str(tmp_path), "XDG_DATA_HOME": str(Path.home() / ".local/share")}
    line += ["--ek", f"root={root}", "--jobs-dir", tmp_path / "jobs", "--no-delete"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    listed = [sys.executable, "-m", "fumehood", "projects", "list", "--json"]
    told = subprocess.run(listed, env=environment, capture_output=True, text=True, check=True).stdout
    (project,) = json.loads(told)["projects"]
    try:
        assert Path(project["path"]).is_dir()
    finally:
        shutil.rmtree(Path(project["path"]).parent)
