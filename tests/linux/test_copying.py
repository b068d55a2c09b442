"""Copies are whole, whatever the file system can't do; what was copied is compared without reading its holes."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

from conftest import need
from fumehood.core import changes as c
from fumehood.linux.copying import copy_entry, copy_versions
from fumehood.linux.gitindex import same_content
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import open_top, stamp_of
from patience import let_time_pass

COPY = """
import os, sys
from fumehood.linux.copying import copy_file
top = os.open(sys.argv[1], os.O_PATH)
copy_file(top, "file", top, "copy")
"""


@pytest.mark.once
@pytest.mark.parametrize("answer", ["error=EPERM", "error=EXDEV", "error=ENOENT", "retval=0"])
def test_what_the_kernel_does_not_copy_is_read_and_written(test_directory, answer):
    need(shutil.which("strace") is not None, "there is no strace")
    content = bytes(range(256)) * 20_000  # more than one piece
    (test_directory / "file").write_bytes(content)
    refused = ["strace", "-o", "/dev/null", "--trace=copy_file_range,ioctl", "--inject=ioctl:error=EOPNOTSUPP"]
    line = [*refused, f"--inject=copy_file_range:{answer}", sys.executable, "-P", "-c", COPY, test_directory]
    subprocess.run(line, check=True)
    assert (test_directory / "copy").read_bytes() == content


def test_holes_are_not_read_and_count_as_the_zeros_that_they_stand_for(test_directory):
    tops = []
    for name in ("one", "other"):
        (test_directory / name).mkdir()
        tops.append(os.open(test_directory / name, os.O_PATH))

    def is_same(one, other):
        """Each is a list of where some bytes are; the file is so long that nobody could read it."""
        for top, parts in zip(("one", "other"), (one, other), strict=True):
            with open(test_directory / top / "file", "wb") as file:
                for at, data in parts:
                    file.seek(at)
                    file.write(data)
                file.truncate(1 << 42)
        return same_content(*tops, "file")

    assert is_same([], [])
    assert is_same([], [(1 << 40, bytes(10_000))])
    assert is_same([(5, b"x"), (1 << 41, b"y")], [(5, b"x"), (1 << 41, b"y"), (1 << 30, bytes(5000))])
    assert not is_same([], [(1 << 41, b"y")])
    assert not is_same([((1 << 42) - 1, b"x")], [((1 << 42) - 1, b"y")])
    assert not is_same([(5, b"x"), (1 << 41, b"y")], [(5, b"x")])
    os.truncate(test_directory / "other/file", 5)
    assert not same_content(*tops, "file")
    for top in tops:
        os.close(top)


def test_only_the_version_that_was_judged_is_copied(test_directory):
    layer = test_directory / "layer"
    layer.mkdir()
    (layer / "file").write_text("judged")
    status = os.stat(layer / "file")
    change = c.Change(0, "file", c.ADDED, c.FILE, after=stamp_of(status))
    for name in ("one", "other"):
        (test_directory / name).mkdir()
    source, one, other = (os.open(test_directory / name, os.O_RDONLY) for name in ("layer", "one", "other"))
    copy_versions([change], source, one)
    assert (test_directory / "one/file").read_text() == "judged"
    let_time_pass(layer)
    # By a command that was handed the file, and sets its time back.
    (layer / "file").write_text("others")
    os.utime(layer / "file", ns=(status.st_atime_ns, status.st_mtime_ns))
    change.after = stamp_of(status)
    with pytest.raises(OSError, match="written meanwhile"):
        copy_versions([change], source, other)
    for top in (source, one, other):
        os.close(top)


def test_a_link_to_nothing_is_copied_where_its_time_can_not_be_set(tmp_path, monkeypatch):
    """As with sshfs, which follows it."""
    (tmp_path / "link").symlink_to("nothing")

    def follow(path, **_options):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    monkeypatch.setattr(os, "utime", follow)
    with Closing(open_top(str(tmp_path))) as top:
        copy_entry(top, "link", top, "copy")
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(FileNotFoundError):
            copy_entry(top, "fifo", top, "gone")
    assert os.readlink(tmp_path / "copy") == "nothing"


def test_who_owns_a_link_already_is_not_asked_for_again(tmp_path, monkeypatch):
    """As with sshfs, which follows it."""
    (tmp_path / "link").symlink_to("nothing")
    monkeypatch.setattr(os, "chown", lambda *_arguments, **_options: pytest.fail("nothing is to be given"))
    with Closing(open_top(str(tmp_path))) as top:
        copy_entry(top, "link", top, "copy")
    assert os.readlink(tmp_path / "copy") == "nothing"
