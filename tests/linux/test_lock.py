"""A lock is of the process that took it: it goes with that, whatever was forked meanwhile."""

import fcntl
import gc
import os
import signal
import sys

import pytest

from fumehood.linux.lock import Lock


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "lock")


def opened(path):
    return Lock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def is_free(path):
    with opened(path) as lock:
        try:
            lock.take(wait=False)
        except BlockingIOError:
            return False
    return True


class Living:
    """A child that was forked now, and lives until the end of the block."""

    def __init__(self, act=lambda: None):
        self._act = act

    def __enter__(self):
        (is_ready, ready), (is_over, self._over) = os.pipe(), os.pipe()
        self.process = os.fork()
        if self.process == 0:
            try:
                os.close(self._over)
                self._act()
                os.write(ready, b".")
                os.read(is_over, 1)
            finally:
                os._exit(0)
        os.close(ready)
        os.close(is_over)
        assert os.read(is_ready, 1), "the child failed"
        os.close(is_ready)
        return self

    def __exit__(self, *error):
        os.close(self._over)
        os.waitpid(self.process, 0)


def test_a_lock_is_alone_or_shared_and_given_back_at_the_end_of_its_block(path):
    with opened(path).take():
        assert not is_free(path)
        with pytest.raises(BlockingIOError), opened(path) as other:
            other.take(shared=True, wait=False)
    with opened(path).take(shared=True), opened(path) as other:
        other.take(shared=True, wait=False)
        assert not is_free(path)
    assert is_free(path)


def test_a_lock_goes_with_its_object(path):
    lock = opened(path).take()
    assert not is_free(path)
    del lock
    gc.collect()
    assert is_free(path)


def test_to_close_twice_does_not_close_what_got_its_number(path):
    lock = opened(path).take()
    file = lock.file
    lock.close()
    other = os.open(path, os.O_RDONLY)
    try:
        assert other == file
        lock.close()
        del lock
        os.fstat(other)
    finally:
        os.close(other)


def test_a_forked_child_neither_keeps_a_lock_nor_gives_it_back(path):
    lock = opened(path).take()
    with Living(lock.close):
        assert not is_free(path)
    with Living():
        lock.close()
        assert is_free(path)


def test_a_lock_goes_with_its_process_though_a_child_lives_on(path):
    is_over, over = os.pipe()
    is_ready, ready = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            lock = opened(path).take()
            if os.fork() == 0:
                os.close(over)
                os.write(ready, b"%d" % lock.file)
                os.read(is_over, 1)
            else:
                signal.pause()
        finally:
            os._exit(0)
    os.close(ready)
    assert os.read(is_ready, 8) == b"-1"
    assert not is_free(path)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert is_free(path)
    for each in (over, is_over, is_ready):
        os.close(each)


def test_a_program_that_ends_with_a_lock_says_nothing(path):
    code = "import os, sys; from fumehood.linux.lock import Lock; kept = Lock(os.open(sys.argv[1], os.O_CREAT)).take()"
    read, write = os.pipe()
    process = os.posix_spawn(
        sys.executable, [sys.executable, "-P", "-c", code, path], os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, write, 2)],
    )  # fmt: skip
    os.close(write)
    assert os.waitpid(process, 0)[1] == 0
    assert os.read(read, 1) == b""
    os.close(read)


def test_who_asks_the_kernel_itself_sees_the_lock(path):
    with opened(path).take(), open(path) as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
