"""The database: how it is made, brought up to date, refused, and shared."""

import os
import pwd
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import fumehood
from conftest import need
from fumehood import BadRequest, StoreDamaged
from fumehood.store import database
from fumehood.store.database import MIGRATIONS, Database
from fumehood.store.places import ID_LENGTH, FileLock, new_id, places, state_directory
from interrupting import lines_of

SOURCE = Path(fumehood.__file__).parent.parent


@pytest.fixture
def path(test_directory):
    return str(test_directory / "fumehood.db")


def asked(path, query):
    with sqlite3.connect(path) as connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


# --- made ---


def test_a_new_database_keeps_a_write_ahead_log_and_is_closed_to_others(path):
    old = os.umask(0)
    try:
        made = Database(path)
        with made.transaction() as connection:
            connection.execute("INSERT INTO projects (path, added_at) VALUES ('/p', 0)")
        assert asked(path, "PRAGMA journal_mode") == [("wal",)]
        for suffix in ("", "-wal", "-shm"):
            assert mode(path + suffix) == 0o600, suffix
        made.close()
    finally:
        os.umask(old)


def test_our_directories_are_closed_to_others(home):
    old = os.umask(0)
    try:
        found = places()
    finally:
        os.umask(old)
    for directory in (found.state, f"{found.state}/runs", f"{found.state}/outputs", f"{found.state}/locks"):
        assert mode(directory) == 0o700


def test_the_places_are_those_of_the_standard(home):
    found = places({})
    assert found.state == f"{home}/.local/state/fumehood"
    assert found.data == f"{home}/.local/share/fumehood"
    assert found.cache == f"{home}/.cache/fumehood"
    assert found.config == f"{home}/.config/fumehood"
    assert places({"XDG_CACHE_HOME": "not/absolute"}).cache == found.cache
    assert places({"XDG_CACHE_HOME": f"{home}/x"}).cache == f"{home}/x/fumehood"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes what others can't use")
def test_root_makes_nothing_in_somebody_elses_home(home, monkeypatch):
    accounts = [each for each in pwd.getpwall() if each.pw_uid and os.path.isdir(each.pw_dir)]
    theirs = [each.pw_dir for each in accounts if os.stat(each.pw_dir).st_uid == each.pw_uid]
    need(theirs, "no account but root's has a home here")
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", theirs[0])
    roots = pwd.getpwuid(0).pw_dir
    assert state_directory() == f"{roots}/.local/state/fumehood"
    monkeypatch.setenv("XDG_STATE_HOME", f"{theirs[0]}/.local/state")
    assert state_directory() == f"{roots}/.local/state/fumehood"
    monkeypatch.setenv("XDG_STATE_HOME", f"{home}/x")
    assert state_directory() == f"{home}/x/fumehood"
    wrapper = "import sys; sys.path[:0] = sys.argv[1:]; import environment; print(environment.cache_directory())"
    done = subprocess.run(
        [sys.executable, "-B", "-c", wrapper, SOURCE.parent / "tools"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{roots}/.cache/fumehood\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_home_that_is_no_accounts_is_roots_to_use(home, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME")
    os.chown(home, 54321, 54321)
    assert state_directory() == f"{home}/.local/state/fumehood"


def test_a_database_that_is_there_is_opened_as_it_is(path):
    Database(path).close()
    before = Path(path).read_bytes()
    Database(path).close()
    assert Path(path).read_bytes() == before


# --- brought up to date ---


def test_every_migration_is_recorded(path):
    Database(path).close()
    assert asked(path, "SELECT version FROM migrations ORDER BY version") == [
        (number + 1,) for number in range(len(MIGRATIONS))
    ]
    assert asked(path, "PRAGMA user_version") == [(len(MIGRATIONS),)]


def test_a_later_migration_runs_once_on_a_database_that_is_there(path, monkeypatch):
    Database(path).close()
    later = "CREATE TABLE later (x);\nINSERT INTO later VALUES (1);\n"
    monkeypatch.setattr(database, "MIGRATIONS", (*MIGRATIONS, later))
    for _ in range(2):
        Database(path).close()
    assert asked(path, "SELECT x FROM later") == [(1,)]
    assert asked(path, "SELECT count(*) FROM migrations") == [(len(MIGRATIONS) + 1,)]


def test_a_migration_that_fails_leaves_neither_a_change_nor_a_record(path, monkeypatch):
    Database(path).close()
    broken = "CREATE TABLE later (x);\nINSERT INTO nowhere VALUES (1);\n"
    monkeypatch.setattr(database, "MIGRATIONS", (*MIGRATIONS, broken))
    with pytest.raises(StoreDamaged, match="nowhere"):
        Database(path)
    assert asked(path, "SELECT name FROM sqlite_master WHERE name = 'later'") == []
    assert asked(path, "SELECT count(*) FROM migrations") == [(len(MIGRATIONS),)]
    assert asked(path, "PRAGMA user_version") == [(len(MIGRATIONS),)]
    monkeypatch.undo()
    Database(path).close()


def test_many_who_open_a_new_database_at_once_migrate_it_once(path):
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from fumehood.store.database import Database;"
        "Database(sys.argv[1])"
    )
    started = [subprocess.Popen([sys.executable, "-I", "-c", code, path], stderr=subprocess.PIPE) for _ in range(6)]
    for process in started:
        assert process.communicate()[1] == b""
        assert process.returncode == 0
    assert asked(path, "SELECT count(*) FROM migrations") == [(len(MIGRATIONS),)]


# --- refused ---


def test_a_database_of_a_newer_version_is_refused_and_left_alone(path):
    Database(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    connection.close()
    before = Path(path).read_bytes()
    with pytest.raises(StoreDamaged, match=f"newer Fumehood .schema {len(MIGRATIONS) + 1}") as refusal:
        Database(path)
    assert "upgrade" in refusal.value.hint
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize("damage", [b"not a database, however long " * 50, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_database_is_refused_with_a_way_on_and_left_alone(path, damage):
    Path(path).write_bytes(damage)
    with pytest.raises(StoreDamaged, match=path) as refusal:
        Database(path)
    assert refusal.value.hint
    assert Path(path).read_bytes() == damage


def test_damage_inside_is_told_when_it_is_met(path):
    made = Database(path)
    with made.transaction() as connection:
        connection.executemany(
            "INSERT INTO projects (path, added_at) VALUES (?, 0)", [(f"/{number}" * 100,) for number in range(500)]
        )
    made.close()
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 8192))
    with pytest.raises(StoreDamaged, match=r"fumehood\.db"):
        Database(path).rows("SELECT * FROM projects")


def test_a_directory_in_its_place_is_refused(path):
    os.mkdir(path)
    with pytest.raises(StoreDamaged) as refusal:
        Database(path)
    assert "doctor --mend" in refusal.value.hint


def test_one_that_is_only_out_of_reach_is_not_to_be_set_aside(path, monkeypatch):
    monkeypatch.setattr("fumehood.store.database._LOCK_TIMEOUT_S", 0.0)
    Database(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreDamaged, match="locked") as refusal:
        Database(path).write("DELETE FROM projects")
    other.close()
    assert "doctor --mend" not in refusal.value.hint
    assert "no other program locks it" in refusal.value.hint


# --- used ---


def test_a_limit_of_files_sizes_is_named_as_what_is_in_its_way(path):
    Database(path).close()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 10, hard))
    try:
        with pytest.raises(StoreDamaged, match="disk I/O error") as error:
            Database(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "no file may be larger than 20 KiB here" in error.value.hint
    Database(path).close()


def test_a_transaction_is_kept_whole_or_not_at_all(path):
    made = Database(path)
    insert = "INSERT INTO projects (path, added_at) VALUES (?, 0)"
    with made.transaction() as connection:
        connection.execute(insert, ("/kept",))

    def fail():
        with made.transaction() as connection:
            connection.execute(insert, ("/lost",))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert made.rows("SELECT path FROM projects") == [("/kept",)]
    made.close()


def in_another_thread(act):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(act()))
    thread.start()
    thread.join()
    return answers[0]


def test_ctrl_c_at_any_line_of_a_transaction_leaves_nothing_locked(path):
    store = Database(path)
    store.write("CREATE TABLE seen (n INTEGER)")
    count = len(lines_of(lambda: store.write("INSERT INTO seen VALUES (0)", durable=True)))
    interrupts = 0
    for line in range(1, count + 1):
        try:
            lines_of(lambda: store.write("INSERT INTO seen VALUES (1)", durable=True), interrupt=line)
        except KeyboardInterrupt:
            interrupts += 1
        assert in_another_thread(lambda: store.rows("SELECT 1")) == [(1,)]
        with sqlite3.connect(path, timeout=0) as other:  # another program's
            other.execute("INSERT INTO seen VALUES (2)")
        other.close()
    assert store.rows("SELECT count(*) FROM seen WHERE n = 2") == [(count,)]
    assert interrupts > count / 2


@pytest.mark.parametrize("opens", [False, True])
def test_what_a_forked_process_writes_stays_when_its_parent_closes_the_database(path, opens):
    """SQLite's account of locks is a process's: with it, and without the locks, the log was removed under the child."""
    store = Database(path)
    store.write("CREATE TABLE seen (n INTEGER)")
    (told, tell), (heard, go_on) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        own = Database(path) if opens else store
        own.write("INSERT INTO seen VALUES (1)")
        os.write(tell, b"-")
        os.read(heard, 1)
        own.write("INSERT INTO seen VALUES (2)")
        os._exit(0)
    os.read(told, 1)
    assert store.rows("SELECT n FROM seen") == [(1,)]
    store.close()
    with pytest.raises(BadRequest, match="closed"):
        store.rows("SELECT n FROM seen")
    later = Database(path)
    later.write("INSERT INTO seen VALUES (3)")
    os.write(go_on, b"-")
    assert os.waitpid(child, 0)[1] == 0
    later.close()
    assert asked(path, "SELECT n FROM seen ORDER BY n") == [(1,), (2,), (3,)]
    for fd in (told, tell, heard, go_on):
        os.close(fd)


@pytest.mark.long
def test_whoever_is_forked_while_another_thread_opens_a_database_can_use_it(path):
    is_over = threading.Event()

    def open_and_close():
        while not is_over.is_set():
            Database(path).close()

    store = Database(path)
    thread = threading.Thread(target=open_and_close)
    thread.start()
    children = []
    try:
        for _ in range(30):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(30)  # one that waits for a thread it does not have would wait for ever
                os._exit(len(store.rows("SELECT 1")) and len(Database(path).rows("SELECT 1")))
            children.append(os.waitpid(child, 0)[1])
    finally:
        is_over.set()
        thread.join()
    assert children == [1 << 8] * 30
    store.close()


def test_threads_and_connections_write_one_after_the_other(path):
    connections = [Database(path) for _ in range(3)]

    def write(number):
        for step in range(20):
            with connections[number % 3].transaction() as connection:
                connection.execute("INSERT INTO projects (path, added_at) VALUES (?, 0)", (f"/{number}/{step}",))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert connections[0].rows("SELECT count(*) FROM projects") == [(120,)]
    for connection in connections:
        connection.close()


def test_what_is_committed_survives_a_kill(path):
    code = (
        f"import sys, os; sys.path.insert(0, {str(SOURCE)!r}); from fumehood.store.database import Database\n"
        "made = Database(sys.argv[1])\n"
        "with made.transaction() as c: c.execute(\"INSERT INTO projects (path, added_at) VALUES ('/kept', 0)\")\n"
        "made.transaction().__enter__().execute(\"INSERT INTO projects (path, added_at) VALUES ('/lost', 0)\")\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-I", "-c", code, path], check=False).returncode == -9
    made = Database(path)
    assert made.rows("SELECT path FROM projects") == [("/kept",)]
    made.close()


# --- names ---


def test_ids_are_unique_and_sort_by_time():
    ids = [new_id() for _ in range(20_000)]
    assert len(set(ids)) == len(ids)
    assert {len(each) for each in ids} == {ID_LENGTH}
    assert "".join(ids).isalnum()
    times = [0, 1_000, 999_000, 1_000_000, 10**18, 10**18 + 1_000, 10**18 + 10**6, 4 * 10**18]
    made = [new_id(now) for now in times]
    assert made == sorted(made)


def test_ids_of_one_instant_still_differ():
    assert len({new_id(10**18) for _ in range(1000)}) == 1000


@pytest.mark.parametrize("name", ["", "%", "~", "'; DROP TABLE runs; --", "\x00", "é", "last "])
def test_no_name_of_a_run_is_anything_but_a_name(home, project, name):
    from fumehood.service.opened import OpenedStore

    store = OpenedStore()
    try:
        with pytest.raises(BadRequest, match="there is no run"):
            store.history.find(name)
        assert store.database.rows("SELECT count(*) FROM runs") == [(0,)]
    finally:
        store.close()


def test_a_lock_is_given_back_whatever_was_forked_or_cut_short(path):
    held, is_over = FileLock(path), os.pipe()
    with held:
        child = os.fork()
        if child == 0:
            os.close(is_over[1])
            os.read(is_over[0], 1)  # it lives on, with a copy of all descriptors
            os._exit(0)
    with FileLock(path, wait=False):
        pass
    other = FileLock(path)
    other.__enter__()
    del other  # an interrupt came before `__exit__`
    with FileLock(path, wait=False):
        pass
    os.close(is_over[1])
    assert os.waitpid(child, 0)[1] == 0
    os.close(is_over[0])


def test_a_forked_process_does_not_give_a_lock_of_its_parent_back(path):
    with FileLock(path):
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            with pytest.raises(BlockingIOError), FileLock(path, wait=False):
                pass
    if child == 0:  # it has left the block too
        os._exit(0)
