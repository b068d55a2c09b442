"""Bad input to commands about runs and records: one clear line, a hint, nothing lost."""

import errno
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from at_terminal import Terminal
from forked import command_line
from fumehood.errors import as_fumehood_error
from fumehood.store.database import MIGRATIONS
from fumehood.store.places import state_directory
from snapshots import snapshot

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
Need = Callable[[bool, str], None]


@pytest.fixture(autouse=True)
def _known_host(known_host: None) -> None:
    """What this host can do is found out once."""


@pytest.fixture
def applied(cli: Cli, project: Path) -> str:
    """A run that changed a and b, and is applied."""
    (project / "a").write_text("old")
    done = cli("run", "--json", "--", "echo new > a; echo new > b")
    told: dict[str, str] = json.loads(done.stdout)
    assert told["state"] == "applied", done.stdout
    return told["run"]


@pytest.fixture
def state(home: Path) -> Path:
    return home / ".local/state/fumehood"


def refused(done: "subprocess.CompletedProcess[str]") -> tuple[str, str]:
    """The line and the hint of a refusal, which are all that is said."""
    assert (done.returncode, done.stdout) == (125, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("ERROR: ")
    assert hint.startswith("hint: ")
    return error[7:], hint[6:]


@pytest.mark.parametrize("command", ["show", "diff", "output", "apply", "discard", "undo"])
def test_an_unknown_run(command: str, cli: Cli, applied: str, project: Path) -> None:
    before = snapshot(project)
    error, hint = refused(cli(command, "ZZZ"))
    assert (error, "fumehood log" in hint) == ("there is no run ZZZ", True)
    assert snapshot(project) == before


@pytest.mark.parametrize("path", ["a", "gone.txt"])
@pytest.mark.parametrize("command", ["diff", "apply", "discard", "undo", "redo"])
def test_a_path_where_a_run_is_wanted_is_told_its_place(command: str, path: str, cli: Cli, applied: str) -> None:
    hint = f"a path comes after the run: last {path}; fumehood log lists them"
    assert refused(cli(command, path)) == (f"there is no run {path}", hint)


def test_a_session_that_ran_nothing_here_is_named(cli: Cli, applied: str) -> None:
    assert cli("log", "--session", "other").stdout == "nothing has run in session other yet; fumehood run -- COMMAND\n"


@pytest.mark.parametrize("network", [["--network=pypi.org"], ["--network", "pypi.org"]])
def test_the_network_takes_no_host_and_says_what_does(network: list[str], cli: Cli) -> None:
    told = "--network takes no value", "for one host: --allow-host pypi.org"
    assert refused(cli("run", *network, "--", "true")) == told


def test_after_network_a_program_may_have_two_dashes_as_its_first_word(cli: Cli) -> None:
    done = cli("run", "--network", "echo", "--", "x")
    assert (done.returncode, done.stdout) == (126, "")  # nobody is there to allow it
    assert "with network access: echo -- x" in done.stderr


def test_an_option_that_takes_no_value_says_so(cli: Cli) -> None:
    assert refused(cli("run", "--hold=yes", "--", "true"))[0] == "--hold takes no value"


def test_what_is_in_conflict_is_said_to_be(cli: Cli, project: Path) -> None:
    cli("run", "--hold", "--", "echo theirs > a; echo theirs > b")
    (project / "a").write_text("mine")
    done = cli("apply", "last")
    assert done.returncode == 1
    assert "fumehood: 1 change applied, 1 in conflict\n" in done.stdout + done.stderr


@pytest.mark.parametrize("command", [["log"], ["run", "--", "true"], ["doctor"]])
def test_a_home_that_is_not_absolute_is_refused_and_nothing_is_made_there(
    command: list[str], cli: Cli, project: Path
) -> None:
    places = {f"XDG_{name}_HOME": "" for name in ("STATE", "DATA", "CACHE", "CONFIG")}
    error, hint = refused(cli(*command, env={"HOME": "relative", **places}))
    assert (error, hint) == ("HOME is 'relative', which is not an absolute path", "export HOME=/path/of/your/home")
    assert list(project.iterdir()) == []


def test_a_home_that_is_the_root_of_all_has_our_directories_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons and containers often have that one; a path that began with two slashes was not recognised by others."""
    monkeypatch.setenv("HOME", "/")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_directory() == "/.local/state/fumehood"


@pytest.mark.parametrize("command", ["show", "undo"])
def test_an_ambiguous_prefix(command: str, cli: Cli, applied: str, project: Path) -> None:
    cli("run", "--", "echo x > c")
    before = snapshot(project)
    error, hint = refused(cli(command, applied[:3]))
    assert error.startswith(f"several runs begin with {applied[:3]}: {applied}, ")
    assert "more letters" in hint
    assert snapshot(project) == before


@pytest.mark.parametrize("command", ["diff", "apply", "discard", "undo"])
def test_a_path_that_is_not_in_the_run(command: str, cli: Cli, applied: str, project: Path) -> None:
    run = applied
    if command in ("apply", "discard"):
        run = json.loads(cli("run", "--json", "--hold", "--", "echo held > c").stdout)["run"]
    before = snapshot(project)
    error, hint = refused(cli(command, run, "nowhere"))
    number = json.loads(cli("show", run, "--json").stdout)["number"]
    assert (error, hint) == (f"run {number} did not change nowhere", f"fumehood show {number}")
    assert snapshot(project) == before
    assert json.loads(cli("show", run, "--json").stdout)["state"] == ("applied" if run == applied else "held")


@pytest.mark.parametrize("command", ["apply", "discard"])
def test_an_apply_of_what_is_applied(command: str, cli: Cli, applied: str, project: Path) -> None:
    before = snapshot(project)
    error, hint = refused(cli(command, applied))
    assert (error, hint) == ("run 1 holds nothing: it is applied", "fumehood show 1")
    assert snapshot(project) == before


def test_an_undo_twice(cli: Cli, applied: str, project: Path) -> None:
    assert cli("undo", applied).returncode == 0
    before = snapshot(project)
    error, hint = refused(cli("undo", applied))
    assert error == "run 1 is undone already"
    assert "fumehood redo" in hint
    assert snapshot(project) == before


def test_a_database_of_a_newer_version(cli: Cli, applied: str, project: Path, state: Path) -> None:
    with sqlite3.connect(state / "fumehood.db") as database:
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    database.close()
    before = (state / "fumehood.db").read_bytes()
    for command in (["log"], ["undo"], ["run", "--", "echo x > c"], ["files"], ["clean"]):
        error, hint = refused(cli(*command))
        assert "newer Fumehood" in error
        assert "upgrade Fumehood" in hint
        assert f"{state}/runs" in hint
    assert (project / "a").read_text() == "new\n"
    assert not (project / "c").exists()
    assert (state / "runs" / applied / "0/upper/a").read_text() == "old"
    assert (state / "fumehood.db").read_bytes() == before


@pytest.mark.parametrize("damage", ["noise", "cut"])
def test_a_damaged_database(damage: str, cli: Cli, applied: str, project: Path, state: Path) -> None:
    database = state / "fumehood.db"
    for more in ("-wal", "-shm"):
        Path(f"{database}{more}").unlink(missing_ok=True)
    size = database.stat().st_size
    database.write_bytes(os.urandom(size) if damage == "noise" else b"SQLite format 3\0" + b"\xff" * 84)
    for command in (["log"], ["undo"], ["run", "--", "echo x > c"], ["restore", "a"]):
        error, hint = refused(cli(*command))
        assert f"the database {database} can't be used" in error
        assert f"{state}/runs and {state}/edited" in hint
    # Both copies of the original are where the hint says.
    assert (state / "runs" / applied / "0/upper/a").read_text() == "old"
    assert [path.read_text() for path in (state / "edited").iterdir()] == ["old"]
    # And as it says, one can begin anew.
    database.rename(state / "damaged.db")
    assert cli("run", "--", "echo x > c").returncode == 0
    assert (state / "runs" / applied / "0/upper/a").read_text() == "old"


def test_a_backup_that_someone_deleted(cli: Cli, applied: str, project: Path, state: Path) -> None:
    (state / "runs" / applied / "0/upper/a").unlink()
    before = snapshot(project)
    error, hint = refused(cli("undo", applied))
    assert error == "the backup of a is gone: nothing was undone"
    assert f"{state}/runs/{applied}" in hint
    assert "fumehood restore a " in hint
    assert snapshot(project) == before
    # The rest can be undone, and the daily backup is still there.
    assert cli("undo", applied, "b").returncode == 0
    assert cli("restore", "a").returncode == 0
    assert (project / "a").read_text() == "old"
    assert not (project / "b").exists()


def test_a_layer_that_someone_deleted(cli: Cli, applied: str, project: Path, state: Path) -> None:
    subprocess.run(["rm", "-r", str(state / "runs" / applied)], check=True)
    before = snapshot(project)
    error, _ = refused(cli("undo", applied))
    assert "a is gone" in error
    assert snapshot(project) == before
    for command in ("show", "diff"):
        assert cli(command, applied).returncode == 0


def test_every_backup_that_someone_deleted(cli: Cli, applied: str, project: Path, state: Path) -> None:
    subprocess.run(["rm", "-r", str(state / "runs" / applied), str(state / "edited")], check=True)
    error, hint = refused(cli("restore", "a"))
    assert (error, "fumehood files" in hint) == ("there is no backup of a", True)
    assert cli("files").returncode == 0
    assert cli("clean").returncode == 0
    assert (project / "a").read_text() == "new\n"


def test_the_log_has_it_all(cli: Cli, applied: str, project: Path) -> None:
    held = json.loads(cli("run", "--json", "--hold", "--", "rm a", env={"AI_AGENT": "robot"}).stdout)["run"]
    cli("discard", held)
    cli("undo", applied)
    told = {each["run"]: each for each in json.loads(cli("log", "--json").stdout)["runs"]}
    assert [event["act"] for event in told[held]["events"]] == [
        "asked", "decided", "held", "decided", "discarded",
    ]  # fmt: skip
    assert [event["agent"] for event in told[held]["events"]] == ["robot"] * 3 + [""] * 2
    assert told[held]["events"][3]["detail"] == "discard a"
    assert [event["act"] for event in told[applied]["events"]][-1] == "undone"
    assert {event["face"] for each in told.values() for event in each["events"]} == {"cli"}
    assert {event["uid"] for each in told.values() for event in each["events"]} == {os.getuid()}
    assert [(each["path"], each["verdict"]) for each in told[held]["paths"]] == [("a", "discarded")]
    shown = cli("show", held).stdout
    assert "asked" in shown
    assert "robot" in shown


@pytest.mark.long
@pytest.mark.parametrize("words", [("log",), ("run", "--", "true"), ("doctor",), ("show", "last")])
@pytest.mark.parametrize("number", [10, 14, 18, 24])
def test_too_few_files_may_be_open(words: tuple[str, ...], number: int, applied: str, cli: Cli, project: Path) -> None:
    line = f'ulimit -n {number}; exec "$0" -P -m fumehood "$@"'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable, *words], cwd=project, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 125) or words == ("doctor",)  # which finds that nothing works
    assert ("ERROR: " in done.stderr and "Too many open files" in done.stderr) == ("hint: allow more" in done.stderr)


def test_a_name_in_bytes_is_told_as_a_name() -> None:
    error = as_fumehood_error(OSError(errno.EMFILE, "Too many open files", b"01A1"))
    assert (error.message, error.hint) == ("Too many open files: '01A1'", "allow more open files: ulimit -n 1024")


def test_records_that_can_not_be_written_are_told_with_what_to_type() -> None:
    assert "export XDG_STATE_HOME=" in as_fumehood_error(OSError(errno.EROFS, "Read-only file system", "/state")).hint


@pytest.mark.parametrize(
    "words", [("log",), ("run", "--", "echo hi"), ("run", "--json", "--", "true"), ("diff", "last")]
)
def test_a_full_disk_where_the_output_goes(words: tuple[str, ...], applied: str, project: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "fumehood", *words],
            cwd=project, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 125
    assert done.stderr.startswith("ERROR: ")
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("words", [("undo",), ("undo", "--json"), ("run", "--json", "--", "rm a")])
def test_what_was_done_is_not_told_as_a_failure_where_it_can_not_be_printed(
    words: tuple[str, ...], cli: Cli, project: Path
) -> None:
    cli("run", "--", "echo x > a")
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-P", "-m", "fumehood", *words]
        done = subprocess.run(line, cwd=project, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert not (project / "a").exists()
    assert done.stderr.splitlines()[:2] == [
        "ERROR: the output can't be printed: No space left on device",
        "hint: fumehood log shows what was done",
    ]


@pytest.mark.parametrize("words", [("--help",), ("log", "--help"), ("undo", "nosuch")])
def test_where_nothing_can_be_said_the_exit_code_tells(words: tuple[str, ...], project: Path) -> None:
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-P", "-m", "fumehood", *words]
        assert subprocess.run(line, cwd=project, stdout=full, stderr=full, check=False).returncode == 125


def test_a_run_named_by_no_letters(applied: str, project: Path) -> None:
    name = os.fsdecode(b"\xff\xfe")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fumehood", "show", name], cwd=project, capture_output=True, text=True, check=False
    )
    assert refused(done)[0].startswith("there is no run ")


def test_what_nobody_foresaw_is_one_line_unless_somebody_looks_for_it(
    cli: Cli, applied: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A module of ours that can't be loaded stands for it.
    script = (
        "import sys; sys.modules['fumehood.faces.cli.log'] = None\n"
        "sys.argv = ['fumehood', 'log']\nfrom fumehood.faces.cli.main import command; command()"
    )
    for debug, lines in (("", 2), ("1", 10)):
        monkeypatch.setenv("FUMEHOOD_DEBUG", debug)
        done = subprocess.run(
            [sys.executable, "-P", "-c", script], cwd=project, capture_output=True, text=True, check=False
        )
        assert done.returncode == 125
        assert "something unexpected happened: ModuleNotFoundError" in done.stderr
        assert ("Traceback" in done.stderr, len(done.stderr.splitlines()) >= lines) == (bool(debug), True)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--draft", "", "--", "touch b"], ["run", "--session=", "--", "touch b"], ["run", "--cwd", ""],
        ["run", "--write", "", "--", "touch b"], ["run", "--root=", "--", "touch b"], ["export", "last", "-o", ""],
        ["export", "last", "--patch", "--output="], ["ask", "--show", ""], ["ask", "--write="],
        ["status", "--project="],
    ],
)  # fmt: skip
def test_an_option_without_a_value_means_nothing_else(words: list[str], cli: Cli, applied: str, project: Path) -> None:
    before = snapshot(project), sorted(project.parent.iterdir())
    assert refused(cli(*words))[0].endswith(" needs a value")
    assert (snapshot(project), sorted(project.parent.iterdir())) == before


def test_a_value_may_end_as_an_option_does_that_has_none(cli: Cli, applied: str) -> None:
    assert "nobody was there to ask" in cli("ask", "example.org", "--reason=a=").stderr


ALL_RUNS = "--session means all runs of a session, so a run or a path can't be named"


@pytest.mark.long
@pytest.mark.parametrize(("words", "error"), [
    (("undo", "1", "--session", "s"), ALL_RUNS),
    (("undo", "last", "a", "--session", "s"), ALL_RUNS),
    (("redo", "last", "--session", "s"), ALL_RUNS),
    (("draft", "apply", "d", "--branch", "b"), "--branch is for apply --as-commit only"),
    (("draft", "discard", "d", "--as-commit", "-m", "x"), "--message is for apply --as-commit only"),
    (("rootfs", "update", "--version", "3.20"), "rootfs update does not take --version"),
    (("rootfs", "update", "--sha256", "0" * 64), "rootfs update does not take --sha256"),
    (("setup", "--remove", "--yes"), "--remove and --print are for one client"),
    (("setup", "--print", "--yes"), "--remove and --print are for one client"),
    (("export", "last", "-o", "x.patch", "--patch", "--key", "k"), "a patch is not signed"),
])  # fmt: skip
def test_what_would_not_be_heeded_is_refused(words: tuple[str, ...], error: str, cli: Cli, project: Path) -> None:
    """A person who names one run of a session has not asked for all of them to be taken back."""
    cli("draft", "new", "d")
    cli("run", "--draft", "d", "--", "echo x > in-draft")
    cli("run", "--session", "s", "--", "echo 1 > a")
    cli("run", "--session", "s", "--", "echo 2 > b")
    before = snapshot(project)
    assert refused(cli(*words))[0] == error
    assert snapshot(project) == before


@pytest.mark.parametrize("words", [("undo", ""), ("redo", ""), ("undo", "", "--session", "s")])
def test_a_run_without_a_name_is_not_the_last_one(words: tuple[str, ...], cli: Cli, project: Path) -> None:
    """A variable that is not set, for the most part."""
    cli("run", "--session", "s", "--", "echo 1 > a")
    before = snapshot(project)
    assert refused(cli(*words))[0] in ("there is no run without a name", ALL_RUNS)
    assert snapshot(project) == before


def test_a_difference_in_a_tool_is_no_object(cli: Cli, applied: str) -> None:
    assert json.loads(cli("diff", "--tool", "none", "--json").stdout)["error"].startswith("--json and --difftool")


def test_what_a_sessions_command_would_see_is_told_from_elsewhere_too(cli: Cli, home: Path, project: Path) -> None:
    cli("run", "--session", "s", "--", "true")
    done = cli("run", "--session", "s", "--explain", "--json", "--", "true", cwd=home)
    assert json.loads(done.stdout)["cwd"] == str(project)


def test_a_umask_that_takes_everything_from_its_owner_is_named() -> None:
    before = os.umask(0o777)
    try:
        hint = as_fumehood_error(PermissionError(errno.EACCES, "Permission denied", "x")).hint
    finally:
        os.umask(before)
    assert hint == "your umask 0777 takes what you make from yourself: umask 022"
    assert "umask" not in as_fumehood_error(PermissionError(errno.EACCES, "Permission denied", "x")).hint


@pytest.mark.ordinary
def test_and_so_it_is_where_a_run_can_make_nothing(cli: Cli, project: Path) -> None:
    shell = ["sh", "-c", 'umask 777; exec "$@"', "sh", *command_line()]
    for _ in ("nothing of ours is there yet", "all is"):
        assert refused(cli("run", "--", "true", command=shell))[1].startswith("your umask 0777 takes what you make")
        assert cli("run", "--", "true").returncode == 0, "nothing was left closed"


def test_a_machine_without_proc_is_told_what_is_missing(cli: Cli, applied: str, need: Need) -> None:
    """As in a chroot in which nobody has mounted anything."""
    hide = 'mount -t tmpfs none /proc && exec "$@"'
    line = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", hide, "sh"]
    tried = subprocess.run([*line, "true"], capture_output=True, text=True, check=False)
    need(not tried.returncode, f"/proc can't be hidden here: {tried.stderr}")
    bare = [*line, *command_line()]
    assert refused(cli("undo", command=bare))[1].startswith("nothing is mounted at /proc, as in a bare chroot: mount")
    assert "\n  nothing is mounted at /proc, as in a bare chroot" in cli("doctor", command=bare).stdout


def test_a_name_of_blanks_is_seen(cli: Cli) -> None:
    told = cli("run", "--", "touch ' ' 'a b' 'end '; mkdir ' d'").stderr
    assert "\n  + ' '\n" in told
    assert "\n  + ' d'/\n" in told
    assert "\n  + a b\n" in told
    assert "\n  + 'end '\n" in told
    assert cli("files").stdout.splitlines()[0].endswith("  ' '")
    cli("run", "--", "echo x > ' '")
    assert refused(cli("undo", "1"))[0] == "changed since run 1: ' ', by run 2"


def test_signs_that_an_encoding_lacks_are_written_in_plain_letters(cli: Cli, applied: str) -> None:
    cli("undo")
    done = cli("log", "--graph", command=[sys.executable, "-P", "-m", "fumehood"], env={"PYTHONIOENCODING": "ascii"})
    assert done.stdout.isascii()
    assert "  <- of #1" in done.stdout


def test_a_hook_or_a_server_that_a_person_starts_says_what_it_waits_for(project: Path) -> None:
    with Terminal([*command_line(), "hook"], project) as screen:
        screen.wait_for("the hook reads a client's tool call, and standard input is a terminal")
        assert screen.end() == 2
    with Terminal([*command_line(), "mcp"], project) as screen:
        screen.wait_for("fumehood: waits for an MCP client on standard input")


def test_a_call_without_an_event_is_told_so(cli: Cli) -> None:
    assert cli("hook", input="{}").stderr.startswith("ERROR: the hook's input names no event\n")


def test_what_was_undone_in_another_project_is_brought_back_by_the_line_that_is_shown(
    cli: Cli, applied: str, project: Path, test_directory: Path
) -> None:
    other = test_directory / "other"
    other.mkdir()
    cli("run", "--", "echo x > mine", cwd=other)
    cli("undo", cwd=other)
    shown = cli("undo", applied, cwd=other).stdout
    line = shown.rpartition("to redo it: fumehood ")[2].split()
    assert not (project / "b").exists()
    assert cli(*line, cwd=other).returncode == 0
    assert ((project / "b").exists(), (other / "mine").exists()) == (True, False)


@pytest.mark.parametrize("what", ["session", "draft"])
def test_a_server_is_refused_a_name_that_every_call_would_be_refused(what: str, cli: Cli) -> None:
    assert refused(cli("mcp", f"--{what}", "a b"))[0] == f"'a b' can't be the name of a {what}"
