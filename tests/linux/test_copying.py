"""Copies are whole, whatever the file system can't do."""

import shutil
import subprocess
import sys

import pytest

from conftest import need

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
