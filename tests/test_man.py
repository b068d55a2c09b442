"""The manual page is what the commands say of themselves."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from fumehood.faces.cli.commands import NAMES

CHECKOUT = Path(__file__).resolve().parent.parent
PAGE = CHECKOUT / "docs/fumehood.1"


def test_the_page_is_made_from_the_commands_as_they_are():
    spec = importlib.util.spec_from_file_location("man_page", CHECKOUT / "tools/man.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.page()
    assert PAGE.read_text() == text, "write it again: sh tools/python tools/man.py"
    assert all(f"\n.SS {name}\n" in text for name in NAMES)


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not here")
def test_groff_has_nothing_to_complain_of():
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", str(PAGE)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not here")
def test_mandoc_has_nothing_to_complain_of():
    done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", str(PAGE)], capture_output=True, text=True, check=False)
    assert done.stdout == ""
