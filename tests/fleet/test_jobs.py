"""Jobs as data: what the schema takes, what a worker accepts, and what a hostile one can't do."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood import BadRequest, Refused, Sandbox
from fumehood.core.policy import Fleet, Limits, Policy
from patience import let_time_pass

pytestmark = [pytest.mark.installs, pytest.mark.usefixtures("packages")]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8,
)  # fmt: skip
OPEN = Policy(fleet=Fleet(unsigned=True, hosts=("pypi.org:443", "*.example.org")))


def job(**changed: Any) -> dict[str, Any]:
    whole = {
        "id": "0" * 26, "command": "true", "base": "a" * 64, "expires_at": time.time() + 60, "cwd": "", "timeout": None,
        "root": "host", "hosts": [], "environment": {}, "secrets": [], "limits": {}, "check": "", "score": "",
    }  # fmt: skip
    return whole | changed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", "../x"), ("command", ""), ("command", [1]), ("base", "A" * 64), ("expires_at", "soon"), ("cwd", "/etc"),
        ("cwd", "a/../../b"), ("timeout", -1), ("root", 5), ("hosts", ["a b"]), ("environment", {"A=B": "x"}),
        ("secrets", ["A B"]), ("secrets", "HOME"), ("limits", {"speed": 1}), ("limits", {"memory": -1}),
    ],
)  # fmt: skip
def test_a_field_that_is_not_of_its_kind_is_named(name: str, value: Any) -> None:
    from fumehood.service.fleet import jobs

    assert jobs.read_job(json.dumps(job())).id == "0" * 26
    with pytest.raises(BadRequest, match=f"the job's {name} is not"):
        jobs.read_job(json.dumps(job(**{name: value})))


def test_a_field_too_many_or_too_few_is_refused() -> None:
    from fumehood.service.fleet import jobs

    for fields in (job(more=1), {name: value for name, value in job().items() if name != "cwd"}):
        with pytest.raises(BadRequest, match="fields"):
            jobs.read_job(json.dumps(fields))


@given(name=st.sampled_from(sorted(job())), value=ANY)
def test_whatever_stands_in_a_field_is_taken_or_refused(name: str, value: Any) -> None:
    from fumehood.service.fleet import jobs

    try:
        jobs.accept_job(json.dumps(job(**{name: value})), "", "fumehood-job", OPEN)
    except (BadRequest, Refused):
        return


def test_a_worker_accepts_what_its_configuration_allows_and_nothing_late() -> None:
    from fumehood.service.fleet import jobs

    def accepted(policy: Policy = OPEN, **changed: Any) -> Any:
        return jobs.accept_job(json.dumps(job(**changed)), "", "fumehood-job", policy)

    assert accepted(hosts=["pypi.org:443", "a.example.org:80"]).hosts
    for changed in ({"hosts": ["pypi.org:80"]}, {"hosts": ["*"]}, {"root": "alpine"}, {"expires_at": time.time() - 1}):
        with pytest.raises(Refused):
            accepted(**changed)
    with pytest.raises(Refused, match="signed by nobody"):
        accepted(Policy())


def test_of_each_limit_the_lower_one_counts() -> None:
    from fumehood.service.fleet import jobs

    worker = OPEN.replace(limits=Limits(memory=1000, processes=10), timeout=50)
    asked = jobs.read_job(json.dumps(job(limits={"memory": 2000, "processes": 5, "cpu": 7}, timeout=100)))
    policy = jobs.policy_for_job(worker, asked)
    limits = policy.limits
    assert (limits.memory, limits.processes, limits.cpu, policy.timeout) == (1000, 5, 7, 50)


SUM = "a" * 64


@pytest.mark.parametrize(
    "entries",
    [
        [["../x", "file", 0o644, 0, SUM]], [["/etc/x", "file", 0o644, 0, SUM]], [["a/b", "directory", 0o755, 0, ""]],
        [["l", "symlink", 0o777, 0, "/etc"], ["l/x", "file", 0o644, 0, SUM]], [["x", "device", 0o644, 0, ""]],
        [["x", "file", 0o644, 0, "../../y"]], [["x", "file", "0o644", 0, SUM]], [["x\0y", "directory", 0o755, 0, ""]],
        [["", "directory", 0o755, 0, ""]], [[".", "directory", 0o755, 0, ""]], 5, [5],
    ],
)  # fmt: skip
def test_a_manifest_leads_nowhere_else(entries: Any) -> None:
    from fumehood.service.fleet.base import read_manifest

    with pytest.raises(BadRequest, match="manifest"):
        read_manifest(json.dumps({"format": 1, "name": "project", "entries": entries}).encode())


def test_a_base_is_laid_out_once_and_shares_its_files(project: Path, home: Path, test_directory: Path) -> None:
    from fumehood.service.fleet.base import send_base, survey_project
    from fumehood.service.fleet.blobs import FileBlobs
    from fumehood.service.fleet.worker import BaseCache
    from fumehood.store.places import places

    (project / "a").mkdir()
    (project / "a/one").write_text("1")
    (project / "two").write_text("2")
    (project / "two").chmod(0o755)
    (project / "link").symlink_to("a/one")
    (project / "secret.pem").write_text("key")
    os.mkfifo(project / "pipe")
    blobs = FileBlobs(f"file://{test_directory}/store")
    first = send_base(str(project), survey_project(str(project), Policy(mask=("a/masked",)), places()), blobs)
    before = blobs.sent
    assert send_base(str(project), survey_project(str(project), Policy(), places()), blobs) == first
    assert blobs.sent == before
    (project / "a/one").write_text("11")
    second = send_base(str(project), survey_project(str(project), Policy(), places()), blobs)
    cache = BaseCache(str(test_directory / "cache"), blobs)
    trees = [Path(cache.tree(name)) for name in (first, second)]
    assert [(tree / "a/one").read_text() for tree in trees] == ["1", "11"]
    assert (trees[0] / "two").stat().st_ino == (trees[1] / "two").stat().st_ino
    assert [(tree / "link").readlink() for tree in trees] == [Path("a/one")] * 2
    assert sorted(os.listdir(trees[0])) == ["a", "link", "two"]
    fetched = blobs.fetched
    cache.tree(first)
    assert blobs.fetched == fetched


def test_a_secret_stays_at_home_wherever_it_lies_and_whatever_leads_to_it(project: Path, home: Path) -> None:
    from fumehood.service.fleet.base import survey_project
    from fumehood.store.places import places

    goes = ("a.py", "dotfiles/.config/gh.lua", "example.env", ".env.sample")
    stays = ("dotfiles/.config/gh/hosts.yml", "dotfiles/.cargo/credentials.toml", "prod.env", "deploy/Server.PEM",
             "settings/live", "settings/tokens/one", "settings/masked")  # fmt: skip
    for path in (*goes, *stays):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(path)
    (project / ".env").symlink_to("settings/live")
    (project / ".aws").symlink_to("settings/tokens")
    (project / "mine").symlink_to("settings/masked")
    (project / ".netrc").symlink_to(".")  # which would be everything
    base = survey_project(str(project), Policy(mask=("mine",)), places())
    assert sorted(each.path for each in base.entries if each.kind == "file") == sorted(goes)
    assert {path.rstrip("/") for path, _ in base.at_home} >= {"settings/live", "settings/tokens/one", "settings/masked"}
    base = survey_project(str(project), Policy(mask=("mine",)), places(), include=("settings",))
    assert "settings/live" in {each.path for each in base.entries}


def bytes_read() -> int:
    (line,) = (each for each in Path("/proc/self/io").read_text().splitlines() if each.startswith("rchar"))
    return int(line.split()[1])


def test_a_file_that_is_as_it_was_is_not_read_again(project: Path, home: Path) -> None:
    from fumehood.service.fleet.base import survey_project
    from fumehood.store.places import places

    size = 1 << 20
    for name in ("one", "two", "three"):
        (project / name).write_text(name[0] * size)
    let_time_pass(project)

    def surveyed() -> tuple[dict[str, str], int]:
        before = bytes_read()
        base = survey_project(str(project), Policy(), places())
        return {each.path: each.content for each in base.entries}, (bytes_read() - before) // size

    first, again = surveyed(), surveyed()
    assert (again[0], first[1], again[1]) == (first[0], 3, 0)
    # Another content of the same size, with the same times as far as anybody can set them.
    status = (project / "one").stat()
    (project / "one").write_text("n" * size)
    os.utime(project / "one", ns=(status.st_atime_ns, status.st_mtime_ns))
    (project / "two").rename(project / "moved")
    let_time_pass(project)
    changed, megabytes = surveyed()
    assert (changed["one"] != first[0]["one"], changed["moved"], megabytes) == (True, first[0]["two"], 2)
    assert surveyed() == (changed, 0)


def test_what_a_store_has_changed_is_not_taken(project: Path, home: Path, test_directory: Path) -> None:
    from fumehood.service.fleet.base import send_base, survey_project
    from fumehood.service.fleet.blobs import FileBlobs, MissingContent
    from fumehood.service.fleet.worker import BaseCache
    from fumehood.store.places import places

    (project / "one").write_text("1" * 100)
    store = test_directory / "store"
    blobs = FileBlobs(f"file://{store}")
    name = send_base(str(project), survey_project(str(project), Policy(), places()), blobs)
    for path in store.rglob("*"):
        if path.is_file() and path.name != name:
            path.write_bytes((store / name[:2] / name).read_bytes())
    with pytest.raises(MissingContent, match="damaged"):
        BaseCache(str(test_directory / "cache"), blobs).tree(name)


def test_copies_that_were_not_used_for_long_make_room(project: Path, home: Path, test_directory: Path) -> None:
    from fumehood.service.fleet.base import send_base, survey_project
    from fumehood.service.fleet.blobs import FileBlobs
    from fumehood.service.fleet.worker import BaseCache, clean_cache
    from fumehood.store.places import places

    blobs = FileBlobs(f"file://{test_directory}/store")
    cache = BaseCache(str(test_directory / "cache"), blobs)
    (project / "shared").write_text("s" * 1000)
    (project / "closed").mkdir(mode=0o555)
    trees = []
    for number in range(3):
        (project / "own").write_text(str(number) * 1000)
        trees.append(Path(cache.tree(send_base(str(project), survey_project(str(project), Policy(), places()), blobs))))
    for tree in trees[:2]:
        os.utime(tree.parent, (0, 0))
    clean_cache(str(test_directory / "cache"), 2500)
    assert [tree.exists() for tree in trees] == [False, False, True]
    assert len(os.listdir(test_directory / "cache/files")) == 2


def test_ctrl_c_takes_back_every_candidate_though_one_has_just_ended(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    cancelled: list[str] = []

    def send(*_command: Any, **_options: Any) -> str:
        sent.append(f"job{len(sent)}")
        return sent[-1]

    def interrupted(_ids: list[str]) -> None:
        raise KeyboardInterrupt

    def cancel(job: str) -> None:
        cancelled.append(job)
        if job == sent[0]:
            raise BadRequest("it has ended")

    with Sandbox(project) as sandbox:
        sender = sandbox.fleet("redis://127.0.0.1:1")
        for function in (send, cancel):
            monkeypatch.setattr(sender, function.__name__, function)
        monkeypatch.setattr(sender, "results", interrupted)
        best = sender.best("true", 3)
        assert (best.is_interrupted, cancelled, sandbox.drafts()) == (True, sent, [])
