"""Commands that go to workers on other machines, and what comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from patience import eventually

if TYPE_CHECKING:
    from machines import Machines

pytestmark = [pytest.mark.installs, pytest.mark.timeout(600)]


def filled(project: Path) -> Path:
    (project / "src").mkdir()
    (project / "src/a.py").write_text("one = 1\n")
    (project / "run.sh").write_text("echo hi\n")
    (project / "run.sh").chmod(0o755)
    (project / "empty").mkdir()
    (project / "link").symlink_to("src/a.py")
    (project / ".gitignore").write_text("build/\n")
    (project / "build").mkdir()
    (project / "build/big").write_text("x" * 1000)
    (project / ".env").write_text("TOKEN=1\n")
    return project


def sent(machines: Machines, project: Path, *arguments: str, **more: str) -> dict[str, Any]:
    """The run that a command of the fleet ends in."""
    done = machines.send("fleet", *arguments[:1], "--json", *arguments[1:], project=project, **more)
    assert done.stdout, (done.stderr, machines.logs())
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_command_is_done_elsewhere_and_what_it_changed_is_held_here(machines: Machines, project: Path) -> None:
    filled(project)
    worker = machines.start_worker()
    run = sent(
        machines, project, "run", "--", "./run.sh; ls -A; stat -c %a run.sh; cat link; echo two >> src/a.py; exit 3"
    )
    assert (run["state"], run["exit_code"], run["reason"]) == ("held", 3, "signed by worker@example.org")
    assert run["output"].split() == ["hi", ".gitignore", "empty", "link", "run.sh", "src", "755", "one", "=", "1"]
    assert [(each["path"], each["change"]) for each in run["changes"]] == [("src/a.py", "modified")]
    assert (project / "src/a.py").read_text() == "one = 1\n"
    applied = machines.send("draft", "apply", run["draft"], project=project)
    assert applied.returncode == 0, applied.stderr
    assert (project / "src/a.py").read_text() == "one = 1\ntwo\n"
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0


def test_what_would_be_sent_is_listed_and_travels_once(machines: Machines, project: Path) -> None:
    filled(project)
    plan = sent(machines, project, "plan")
    assert [each["path"] for each in plan["files"]] == [".gitignore", "run.sh", "src/a.py"]
    assert [(each["path"], each["reason"]) for each in plan["at_home"]] == [
        (".env", "may hold a secret"), ("build/", "ignored by git"),
    ]  # fmt: skip
    assert plan["to_send"] == plan["bytes"] > 0
    machines.start_worker()
    sent(machines, project, "run", "--", "true")
    assert sent(machines, project, "plan")["to_send"] == 0
    (project / "src/a.py").write_text("one = 11\n")
    assert sent(machines, project, "plan")["to_send"] == len("one = 11\n")


def test_a_job_that_nobody_known_signed_is_refused(machines: Machines, project: Path) -> None:
    filled(project)
    machines.start_worker()
    stranger = machines.directory / "stranger.key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger)], check=True)
    run = sent(machines, project, "run", "--key", str(stranger), "--", "touch x")
    assert (run["state"], "does not know" in run["reason"]) == ("refused", True)
    (project / "tasks").write_text("x\n")
    for line in (("run", "--", "touch x"), ("map", "--from", "tasks", "--", "touch {}"), ("attach", run["job"])):
        said = machines.send("fleet", line[0], "--key", str(stranger), *line[1:], project=project)
        assert said.returncode != 0
        assert "does not know" in said.stdout + said.stderr, line


def test_a_worker_gives_what_its_own_configuration_allows(machines: Machines, project: Path) -> None:
    filled(project)
    settings = 'timeout = 20\n[fleet]\nhosts = ["pypi.org:443"]\nsecrets = ["API_TOKEN"]'
    machines.start_worker(settings, API_TOKEN="a secret", OTHER_TOKEN="another")
    given = sent(machines, project, "run", "--secret", "API_TOKEN", "--", "echo $API_TOKEN; env")
    assert (given["exit_code"], "a secret" in given["output"], "another" in given["output"]) == (0, True, False)
    assert "FUMEHOOD_REDIS" not in given["output"]
    refused = {
        "OTHER_TOKEN is not among": ("--secret", "OTHER_TOKEN"),
        "evil.example.org": ("--allow-host", "evil.example.org"), "alpine is not among": ("--root", "alpine"),
    }  # fmt: skip
    for words, options in refused.items():
        run = sent(machines, project, "run", *options, "--", "true")
        assert (run["state"], words in run["reason"]) == ("refused", True), run["reason"]


def test_a_store_can_be_a_directory(machines: Machines, project: Path, test_directory: Path) -> None:
    filled(project)
    store = f"file://{test_directory}/store"
    machines.start_worker("", "--store", store)
    run = sent(machines, project, "run", "--store", store, "--", "cat src/a.py; echo n > new")
    assert (run["state"], run["output"]) == ("held", "one = 1\n")
    assert redis(machines, "keys", "fumehood:blob:*").strip() == ""


def test_a_store_can_be_a_bucket(machines: Machines, project: Path, packages: Path) -> None:
    filled(project)
    (project / "many").mkdir()
    for number in range(510):
        (project / f"many/{number}").write_text(str(number))
    log = machines.directory / "moto.log"
    with log.open("w") as printed:
        serve = [packages / "bin/python", "-c", "from moto.server import main; main(['-p', '0'])"]
        server = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=printed)
    try:
        assert eventually(lambda: "Running on http" in log.read_text())
        address = next(line.split()[-1] for line in log.read_text().splitlines() if "Running on http" in line)
        bucket = {
            "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
        make = "import s3fs; s3fs.S3FileSystem().mkdir('blobs')"
        subprocess.run([packages / "bin/python", "-c", make], env=os.environ | bucket, check=True)
        machines.start_worker("", "--store", "s3://blobs/fumehood", **bucket)
        run = sent(
            machines, project, "run", "--store", "s3://blobs/fumehood", "--", "cat many/509; ls many | wc -l; env",
            **bucket,
        )  # fmt: skip
        assert run["output"].startswith("509510\n")
        assert "AWS_SECRET" not in run["output"]
    finally:
        server.kill()
        server.wait()


def test_what_is_no_job_of_ours_is_never_looked_up(machines: Machines, project: Path, packages: Path) -> None:
    from redis import Redis
    from rq import Callback, Queue
    from rq.serializers import JSONSerializer

    mark = project / "mark"
    connection = Redis(unix_socket_path=machines.url[7:])
    queue = Queue("fumehood", connection=connection, serializer=JSONSerializer)
    pickled = Queue("fumehood", connection=connection)
    hostile = [
        queue.enqueue("os.system", f"touch {mark}"), pickled.enqueue("os.system", f"touch {mark}"),
        queue.enqueue("fumehood.job", "{}", "", on_failure=Callback("antigravity.geohash")),
        queue.enqueue("fumehood.job", "{}"), queue.enqueue("fumehood.job", "{", 5),
        queue.enqueue("fumehood.job", "x", "-----BEGIN SSH SIGNATURE-----"),
    ]  # fmt: skip
    machines.start_worker()
    ends = ("failed", "finished")
    assert eventually(lambda: all(job.get_status(refresh=True) in ends for job in hostile)), machines.logs()
    assert not mark.exists()
    assert [job.get_status() for job in hostile[:2]] == ["failed", "failed"]
    filled(project)
    assert sent(machines, project, "run", "--", "echo still here")["output"] == "still here\n"


def test_a_result_that_no_worker_of_ours_would_send_is_a_job_that_failed(
    machines: Machines, project: Path, packages: Path
) -> None:
    from redis import Redis
    from rq.job import Job
    from rq.results import Result
    from rq.serializers import JSONSerializer

    filled(project)
    connection = Redis(unix_socket_path=machines.url[7:])

    def fetched(job: str) -> Any:
        return Job.fetch(job, connection=connection, serializer=JSONSerializer)

    worker = machines.start_worker()
    job = sent(machines, project, "run", "--detach", "--", "echo hi; echo two >> src/a.py")["job"]
    assert sent(machines, project, "attach", job)["state"] == "held"
    good = json.loads(fetched(job).latest_result().return_value["result"])
    worker.kill()
    worker.wait()

    def attached(value: Any) -> dict[str, Any]:
        job = sent(machines, project, "run", "--detach", "--", "true")["job"]
        if isinstance(value, dict):
            value = {"result": json.dumps(value | {"job": job}), "signature": ""}
        Result.create(fetched(job), Result.Type.SUCCESSFUL, 1000, return_value=value)
        return sent(machines, project, "attach", job)

    def with_report(**changed: Any) -> dict[str, Any]:
        return good | {"report": good["report"] | changed}

    blocked = {"what": "network", "detail": "example.org", "hint": "", "since": 5}
    newer = attached(with_report(blocked=[blocked], more=1))
    assert (newer["state"], newer["blocked"][0]["detail"]) == ("held", "example.org")
    forged = [
        good | {"report": {}}, good | {"report": 5}, good | {"bundle": 5}, with_report(exit_code="x"),
        with_report(exit_code=10**30), with_report(stdout="\ud800"), with_report(duration_s=10**400),
        with_report(blocked=[5]), {"failed": "\ud800"}, 5, {"refused": {"a": ["b"]}},
    ]  # fmt: skip
    for value in forged:
        run = attached(value)
        assert run["state"] in ("failed", "refused"), value
        assert run["exit_code"] is None
    drafts = json.loads(machines.send("draft", "list", "--json", project=project).stdout)
    assert len(drafts["drafts"] if isinstance(drafts, dict) else drafts) == 2  # of those that were taken up


def test_many_commands_on_one_base_end_in_a_draft_each(machines: Machines, project: Path) -> None:
    filled(project)
    for _ in range(2):
        machines.start_worker()
    (project / "tasks").write_text("a\nb c\n$(touch evil)\n")
    answer = sent(machines, project, "map", "--from", "tasks", "--", "echo {} >> src/a.py; echo {}")
    assert [run["output"] for run in answer["runs"]] == ["a\n", "b c\n", "$(touch evil)\n"]
    assert {run["state"] for run in answer["runs"]} == {"held"}
    assert len({run["draft"] for run in answer["runs"]}) == 3
    assert all([each["path"] for each in run["changes"]] == ["src/a.py"] for run in answer["runs"])


def test_a_job_that_is_to_go_first_is_done_before_those_that_wait(machines: Machines, project: Path) -> None:
    filled(project)
    wishes = [(), (), ("--first",), ("--first",)]
    ids = [sent(machines, project, "run", *each, "--detach", "--", "true")["job"] for each in wishes]
    machines.start_worker("", "--burst").wait(200)
    done = [line.partition(":")[0] for line in machines.logs().splitlines() if line.partition(":")[0] in ids]
    assert done == [ids[3], ids[2], ids[0], ids[1]]


def test_the_best_of_several_candidates_is_applied(machines: Machines, project: Path) -> None:
    filled(project)
    machines.start_worker()
    line = "echo $(( $FUMEHOOD_CANDIDATE % 3 )) > number"
    check = "echo x > junk; test $(cat number) -gt 0"
    result = sent(machines, project, "best", "-n", "4", "--check", check, "--score", "cat number", "--", line)
    statuses = [(each["status"], each["score"], each["same_as"]) for each in result["candidates"]]
    same = next(at for at, each in enumerate(statuses) if each[0] == "same")
    assert (same in (0, 3), statuses[1], statuses[2]) == (True, ("passed", 2.0, None), ("failed", None, None))
    assert (result["best"], result["state"], (project / "number").read_text()) == (2, "applied", "2\n")
    assert not (project / "junk").exists()


def test_a_sender_goes_away_and_comes_back(machines: Machines, project: Path) -> None:
    filled(project)
    job = sent(machines, project, "run", "--detach", "--", "echo late; echo n > new")["job"]
    machines.start_worker()
    first = sent(machines, project, "attach", job)
    again = sent(machines, project, "attach", job)
    assert (first["output"], first["run"]) == ("late\n", again["run"])
    log = json.loads(machines.send("log", "--json", project=project).stdout)
    assert [run["run"] for run in log["runs"]] == [first["run"]]


def test_a_job_belongs_to_the_project_that_it_was_sent_from(
    machines: Machines, project: Path, test_directory: Path
) -> None:
    filled(project)
    job = sent(machines, project, "run", "--detach", "--", "echo n > new")["job"]
    elsewhere = test_directory / "elsewhere"
    elsewhere.mkdir()
    assert sent(machines, elsewhere, "list") == {"jobs": []}
    for act in ("attach", "cancel"):
        answer = sent(machines, elsewhere, act, job)
        assert answer["error"] == f"job {job} was sent from {project}"
    machines.start_worker("", "--burst").wait(200)
    run = sent(machines, project, "attach", job)
    assert (run["state"], run["project"]) == ("held", str(project))
    listed = machines.send("fleet", "list", project=project).stdout
    assert listed.split() == [job, f"#{run['number']}", "echo", "n", ">", "new"]


def test_who_sends_is_told_that_no_worker_is_there_and_of_what_is_no_variable(
    machines: Machines, project: Path
) -> None:
    filled(project)
    with pytest.raises(subprocess.TimeoutExpired) as waited:
        machines.send("fleet", "run", "--", "true", project=project, timeout_s=20)
    assert b"no worker is at this queue" in (waited.value.stderr or b"")
    assert "--env NAME=VALUE" in sent(machines, project, "run", "--env", "NAME", "--", "true")["hint"]
    machines.start_worker()
    done = machines.send("fleet", "run", "--", "echo done", project=project)
    assert done.stdout == "done\n"


def test_the_job_of_a_killed_worker_is_taken_up_by_another(machines: Machines, project: Path) -> None:
    filled(project)
    job = sent(machines, project, "run", "--detach", "--", "sleep 4; echo done; echo n > new")["job"]
    worker = machines.start_worker()
    assert eventually(lambda: "started" in status(machines, job)), machines.logs()
    worker.kill()
    worker.wait()
    machines.start_worker()
    run = sent(machines, project, "attach", job)
    assert (run["state"], run["output"]) == ("held", "done\n")
    assert job not in (machines.directory / "worker-1.log").read_text()
    assert job in (machines.directory / "worker-2.log").read_text()


def redis(machines: Machines, *words: str) -> str:
    command = ["redis-cli", "-s", machines.url[7:], *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def status(machines: Machines, job: str) -> str:
    return redis(machines, "hget", f"rq:job:{job}", "status")


def test_redis_goes_and_comes_back_while_a_job_is_done(machines: Machines, project: Path) -> None:
    filled(project)
    machines.start_worker()
    job = sent(machines, project, "run", "--detach", "--", "sleep 3; echo done; echo n > new")["job"]
    assert eventually(lambda: "started" in status(machines, job)), machines.logs()
    machines.kill_redis()
    time.sleep(5)
    machines.start_redis()
    run = sent(machines, project, "attach", job)
    assert (run["state"], run["output"]) == ("held", "done\n")
    assert sent(machines, project, "run", "--", "echo next")["output"] == "next\n"


def test_a_redis_that_comes_back_empty_gets_its_jobs_again(machines: Machines, project: Path) -> None:
    filled(project)
    job = sent(machines, project, "run", "--detach", "--", "cat src/a.py")["job"]
    redis(machines, "flushall")
    machines.start_worker()
    run = sent(machines, project, "attach", job)
    assert (run["state"], run["output"]) == ("empty", "one = 1\n")


def test_a_directory_that_is_not_there_is_named_as_the_sender_did(machines: Machines, project: Path) -> None:
    filled(project)
    machines.start_worker()
    run = sent(machines, project, "run", "--cwd", "nope", "--", "true")
    assert (run["state"], run["reason"]) == ("refused", "Working directory does not exist: nope")


def test_a_job_is_cancelled_wherever_it_is(machines: Machines, project: Path) -> None:
    filled(project)
    job = sent(machines, project, "run", "--detach", "--", "sleep 1000")["job"]
    sent(machines, project, "cancel", job)
    assert sent(machines, project, "attach", job)["state"] == "failed"
    machines.start_worker()
    job = sent(machines, project, "run", "--detach", "--", "sleep 1000")["job"]
    assert eventually(lambda: "started" in status(machines, job)), machines.logs()
    sent(machines, project, "cancel", job)
    run = sent(machines, project, "attach", job)
    assert (run["state"], run["reason"]) == ("failed", "the job was cancelled")
    assert sent(machines, project, "cancel", job)["error"] == f"job {job} has ended"
    assert sent(machines, project, "run", "--", "echo next")["output"] == "next\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--include", "nope"), "there is no nope in the project to be sent"),
     (("--timeout", "x"), "--timeout: 'x' is not a time limit: seconds, more than 0 and less than 1e9"),
     (("--limit", "zz=1"), "the job's limits is not a table of "), (("--cwd", "../x"), "the job's cwd is not a dir"),
     (("--allow-host", "a b"), "the job's hosts is not ")],
)  # fmt: skip
def test_what_can_not_be_meant_is_refused_before_anything_is_sent(
    machines: Machines, project: Path, words: tuple[str, ...], message: str
) -> None:
    filled(project)
    answer = sent(machines, project, "run", *words, "--", "true")
    assert answer["error"].startswith(message)
    assert answer["hint"]
    assert sent(machines, project, "list") == {"jobs": []}


def test_every_job_ends_once_while_workers_and_redis_are_killed(test_directory: Path, packages: Path) -> None:
    from kills import story

    directory = test_directory / "kills"
    directory.mkdir()
    outcome = story(directory, packages, count=12, workers=2, every_s=4, seed=int(time.time()))
    assert (outcome["right"], outcome["recorded"], outcome["twice"], outcome["drafts"]) == (12, 12, 0, 12), outcome
