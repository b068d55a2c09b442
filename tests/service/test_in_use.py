"""A file that another program writes is not swapped away under it: its next write would go into a backup."""

import os
import subprocess
import sys

import pytest

from fumehood import ApplyFailed, Sandbox, UndoRefused
from fumehood.linux.nofollow import open_top
from fumehood.linux.staging import files_open_for_writing
from fumehood.service import apply as applying
from fumehood.service.restore import restore
from patience import LONG_S

pytestmark = pytest.mark.namespaces

PROGRAM = """
import sqlite3, sys
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
INSERT = """python3 -c "
import sqlite3
base = sqlite3.connect('app.db'); base.execute('insert into t values (\\"agent\\")'); base.commit(); base.close()
" """


@pytest.fixture
def project(project_on_either):
    return project_on_either


class Program:
    """Another program of the person's, which does one line of Python after another in the project."""

    def __init__(self, project):
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", PROGRAM], cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    @property
    def reason(self):
        with open(f"/proc/{self.process.pid}/comm") as name:
            return f"open in another program ({name.read().strip()}, pid {self.process.pid})"

    def close(self):
        self.process.stdin.close()
        self.process.wait(LONG_S)
        self.process.stdout.close()


@pytest.fixture
def program(project):
    program = Program(project)
    yield program
    program.close()


def verdicts(run):
    return {change.path: change.verdict for change in run.changes}


def reasons(run):
    return {change.path: change.reason for change in run.changes if change.verdict != "applied"}


def rows(project):
    """What is in the database, read by a process of its own: one that closes it gives up all its locks."""
    script = "import sqlite3; print(*(row[0] for row in sqlite3.connect('app.db').execute('select * from t')))"
    command = [sys.executable, "-I", "-c", script]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=True).stdout.split()


def test_a_server_loses_no_commit_to_a_run_that_writes_its_database(sandbox, project, program):
    program.do("base = sqlite3.connect('app.db', isolation_level=None)")
    program.do("base.execute('pragma journal_mode=wal'); base.execute('create table t (x)')")
    program.do("""base.execute("insert into t values ('first')")""")
    run = sandbox.run(f"{INSERT}; echo x > notes")
    assert (run.exit_code, run.state) == (0, "held"), run.output
    assert verdicts(run).pop("notes") == "applied"
    assert {path for path, verdict in verdicts(run).items() if verdict == "held"} >= {"app.db", "app.db-wal"}
    assert reasons(run)["app.db"] == program.reason
    program.do("""base.execute("insert into t values ('second')")""")
    assert rows(project) == ["first", "second"]


def test_what_is_held_with_an_open_database_goes_by_force_and_an_undo_brings_the_servers_version_back(
    sandbox, project, program
):
    program.do("base = sqlite3.connect('app.db', isolation_level=None); base.execute('create table t (x)')")
    run = sandbox.run(INSERT)
    assert reasons(run) == {"app.db": program.reason}
    assert reasons(sandbox.apply(run)) == {"app.db": program.reason}
    assert rows(project) == []
    done = sandbox.apply(run, force=True)
    assert (done.state, rows(project)) == ("applied", ["agent"])
    program.do("base.close()")
    sandbox.undo(done)
    assert rows(project) == []


def test_a_journal_is_held_where_its_database_alone_is_open(sandbox, project, program):
    (project / "app.db").write_text("")
    program.do("base = open('app.db', 'r+')")
    run = sandbox.run("echo x > app.db-journal; echo y > plain-wal; mkdir d; echo z > d/app.db-wal")
    assert reasons(run) == {"app.db-journal": "app.db is open in another program, and they are one state"}
    assert not (project / "app.db-journal").exists()
    program.do("base.close()")
    assert sandbox.apply(run).state == "applied"
    assert (project / "app.db-journal").read_text() == "x\n"


def test_a_log_goes_on_in_the_project_and_the_rest_of_the_run_is_applied(sandbox, project, program):
    program.do("log = open('log', 'a', 1); log.write('one\\n')")
    run = sandbox.run("echo agent > log; echo x > other; rm -f gone")
    assert reasons(run) == {"log": program.reason}
    assert (project / "other").read_text() == "x\n"
    program.do("log.write('two\\n')")
    assert (project / "log").read_text() == "one\ntwo\n"


def test_a_file_that_is_opened_at_the_last_moment_is_held_too(sandbox, project, program, monkeypatch):
    for name in ("a", "log", "z"):
        (project / name).write_text("one\n")
    ask = applying.find_files_in_use

    def ask_and_let_it_be_opened(*arguments, **options):
        busy = ask(*arguments, **options)
        program.do("log = open('log', 'a', 1)")
        return busy

    monkeypatch.setattr(applying, "find_files_in_use", ask_and_let_it_be_opened)
    run = sandbox.run("echo agent > a; echo agent > log; echo agent > z")
    assert reasons(run) == {"log": program.reason}
    program.do("log.write('two\\n')")
    assert (project / "log").read_text() == "one\ntwo\n"
    assert ((project / "a").read_text(), (project / "z").read_text()) == ("agent\n", "agent\n")


def test_what_was_open_is_applied_once_it_is_closed(sandbox, project, program):
    (project / "log").write_text("one\n")
    program.do("log = open('log', 'a')")
    run = sandbox.run("echo agent > log")
    assert run.state == "held"
    program.do("log.close()")
    assert sandbox.apply(run).state == "applied"
    assert (project / "log").read_text() == "agent\n"


def test_a_deleted_directory_stays_whole_while_a_file_in_it_is_written(sandbox, project, program):
    (project / "d/e").mkdir(parents=True)
    (project / "d/e/plain").write_text("x")
    program.do("log = open('d/e/log', 'a', 1)")
    run = sandbox.run("rm -r d; echo x > other")
    assert verdicts(run) == {**dict.fromkeys(("d", "d/e", "d/e/log", "d/e/plain"), "held"), "other": "applied"}
    assert reasons(run)["d/e/log"] == program.reason
    program.do("log.write('more\\n')")
    assert (project / "d/e/log").read_text() == "more\n"
    assert (project / "d/e/plain").exists()


def test_memory_that_is_mapped_for_writing_counts(sandbox, project, program):
    (project / "mapped").write_text("one\n")
    program.do("import mmap; file = open('mapped', 'r+b'); memory = mmap.mmap(file.fileno(), 0); file.close()")
    run = sandbox.run("echo agent > mapped")
    assert reasons(run) == {"mapped": program.reason}
    program.do("memory[:3] = b'ONE'")
    assert (project / "mapped").read_text() == "ONE\n"


def test_a_program_that_only_reads_hinders_nothing(sandbox, project, program):
    (project / "read").write_text("one\n")
    program.do("file = open('read')")
    run = sandbox.run("echo agent > read")
    assert run.state == "applied"
    assert sandbox.undo(run).state == "applied"


def test_hold_all_holds_everything_for_one_open_file(home, project, program):
    (home / ".config/fumehood").mkdir()
    (home / ".config/fumehood/config.toml").write_text('on_conflict = "hold-all"\n')
    program.do("log = open('log', 'a', 1)")
    with Sandbox(project) as sandbox:
        run = sandbox.run("echo agent > log; echo x > other")
    assert set(verdicts(run).values()) == {"held"}
    assert reasons(run)["other"] == "log is open in another program, and then everything is held"


def test_an_undo_of_what_a_program_writes_is_refused_unless_forced(sandbox, store, project, program):
    (project / "log").write_text("before\n")
    run = sandbox.run("echo agent > log; echo x > other")
    program.do("log = open('log', 'a', 1)")
    with pytest.raises(UndoRefused) as refusal:
        sandbox.undo(run)
    assert refusal.value.message == f"log is {program.reason}"
    assert store.history.find("last").run == run.run
    assert (project / "other").exists()
    back = sandbox.undo(run, force=True)
    assert (project / "log").read_text() == "before\n"
    program.do("log.close(); log = open('log', 'a')")
    with pytest.raises(UndoRefused, match="open in another program"):
        sandbox.undo(back)
    program.do("log.close()")
    sandbox.undo(back)
    assert (project / "log").read_text() == "agent\n"


def test_a_restore_does_not_take_a_file_from_a_program_that_writes_it(sandbox, store, known, project, program):
    (project / "log").write_text("before\n")
    sandbox.run("echo agent > log")
    program.do("log = open('log', 'a')")
    with pytest.raises(ApplyFailed, match="log is open in another program"):
        restore(store, known, "log")
    assert (project / "log").read_text() == "agent\n"
    program.do("log.close()")
    restore(store, known, "log")
    assert (project / "log").read_text() == "before\n"


def test_what_a_program_has_closed_is_not_kept_open_by_our_own_processes(sandbox, project):
    with open(project / "mine", "w") as mine:
        mine.write("one\n")
        mine.flush()
        # Whatever is started for it is forked from here.
        sandbox.discard(held := sandbox.run("echo agent > mine"))
    assert held.state == "held"
    assert sandbox.run("echo agent > mine").state == "applied"


def test_the_command_line_says_who_has_it_open_and_exits_with_1_while_that_is_so(cli, project, program):
    (project / "log").write_text("one\n")
    program.do("log = open('log', 'a')")
    assert program.reason in cli("run", "--", "sh", "-c", "echo agent > log").stderr
    asked = cli("apply", "last")
    assert (asked.returncode, program.reason in asked.stdout) == (1, True), asked
    forced = cli("apply", "last", "--force")
    assert (forced.returncode, (project / "log").read_text()) == (0, "agent\n"), forced


def test_a_lease_that_is_broken_at_once_does_not_end_us(test_directory):
    (test_directory / "contended").write_text("x")
    opens = "import sys\nwhile True: open('contended', 'r+').close()"
    other = subprocess.Popen([sys.executable, "-I", "-c", opens], cwd=test_directory)
    asks = (
        "import os; from fumehood.linux.staging import files_open_for_writing\n"
        "top = os.open('.', os.O_PATH)\n"
        "for _ in range(3000): files_open_for_writing(top, ['contended'])"
    )
    try:
        ended = subprocess.run([sys.executable, "-P", "-c", asks], cwd=test_directory, check=False, timeout=LONG_S)
    finally:
        other.kill()
        other.wait()
    assert ended.returncode == 0


@pytest.mark.ordinary
def test_where_no_lease_is_to_be_had_proc_tells(test_directory):
    closed = test_directory / "closed"
    closed.write_text("x")
    (test_directory / "unread").write_text("x")
    top = open_top(str(test_directory))
    with open(closed, "a"):
        for name in ("closed", "unread"):
            os.chmod(test_directory / name, 0o200)
        busy = files_open_for_writing(top, ["closed", "unread", "missing"])
    os.close(top)
    assert list(busy) == ["closed"]
    assert f"pid {os.getpid()}" in busy["closed"]


# The directory of another program's file is ours, and the file and the program are not.
AS_ANOTHER = """
import os, sys
from fumehood.linux.nofollow import open_top
from fumehood.linux.staging import files_open_for_writing
top = open_top(sys.argv[1])
os.setgroups([]); os.setgid(61234); os.setuid(61234)
print(files_open_for_writing(top, sys.argv[2:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have programs of two users")
@pytest.mark.parametrize("lock", ["fcntl.lockf", "fcntl.flock"])
def test_what_another_users_program_has_locked_is_seen_though_its_files_are_not(test_directory, lock):
    test_directory.chmod(0o755)
    names = ("app.db", "wal.db", "free.db", "only-open.db")
    for name in (*names, "wal.db-shm"):
        (test_directory / name).write_text("x")
        (test_directory / name).chmod(0o600)
    program = Program(test_directory)
    try:
        program.do(f"import fcntl; base = open('app.db', 'r+'); {lock}(base, fcntl.LOCK_EX)")
        program.do(f"shared = open('wal.db-shm', 'r+'); {lock}(shared, fcntl.LOCK_SH)")
        program.do("other = open('only-open.db', 'r+')")
        line = [sys.executable, "-P", "-c", AS_ANOTHER, str(test_directory), *names]
        environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
        told = subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout
        assert told == f"{ {'app.db': program.reason, 'wal.db': program.reason} }\n"
    finally:
        program.close()
