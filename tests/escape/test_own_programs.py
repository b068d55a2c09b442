"""Programs that Fumehood itself starts outside are none that a command put on PATH, and load nothing that it left."""

import _sqlite3
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from at_terminal import Terminal
from conftest import need
from fumehood.errors import FumehoodError
from fumehood.linux.signing import BUNDLE, sign
from fumehood.service.opened import OpenedStore

pytestmark = pytest.mark.namespaces

CHECKOUT = Path(__file__).resolve().parent.parent.parent
CONSTRUCTOR = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void is_run(void) { close(open("%s", O_CREAT | O_WRONLY, 0600)); }
"""
NAME = "a-program-that-no-system-has"


@pytest.fixture
def planted(cli, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a command leave a program in a directory of the project that is on PATH; returns what shows that it ran."""
    ran = home / "ran"
    monkeypatch.setenv("PATH", f"{project}/bin:{os.environ['PATH']}")
    done = cli("run", "--", f"mkdir bin; printf '#!/bin/sh\ntouch {ran}\n' > bin/{NAME}; chmod +x bin/{NAME}; touch a")
    assert done.returncode == 0, done.stderr
    assert os.access(project / "bin" / NAME, os.X_OK), "nothing on PATH has this name, so it is none that is held"
    return ran


def test_no_pager_is_one_that_a_command_left(project: Path, planted: Path) -> None:
    command = [sys.executable, "-P", "-m", "fumehood", "diff"]
    with Terminal(command, project, env={"PAGER": f"{NAME}; echo shown by; cat"}) as terminal:
        assert terminal.end() == 0
        assert "shown by" in terminal.seen
        assert "diff --git" in terminal.seen
    assert not planted.exists()


def test_no_difftool_is_one_that_a_command_left(cli, project: Path, home: Path, planted: Path) -> None:
    for key, value in (("difftool.x.cmd", f"{NAME}; true"), ("diff.tool", "x")):
        subprocess.run(["git", "config", "--global", key, value], check=True, env=os.environ | {"HOME": str(home)})
    assert cli("diff", "--difftool").returncode == 0
    assert not planted.exists()


def test_path_is_less_what_commands_write_whatever_leads_there(
    cli, project: Path, home: Path, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "link").symlink_to(project / "bin")
    (home / "tools").mkdir()
    monkeypatch.setenv("PATH", f"{project}/bin:{home}/link::bin:{home}/playground:{home}/tools:/usr/bin:/bin")
    store = OpenedStore()
    try:
        assert store.safe_path() == f"{home}/playground:{home}/tools:/usr/bin:/bin"
        monkeypatch.setenv("PATH", f"{project}/bin")
        assert store.safe_path() == os.defpath
    finally:
        store.close()


def test_a_signature_is_made_by_no_program_that_a_command_may_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, ran = tmp_path / "ssh-keygen", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(FumehoodError):
        sign(str(tmp_path / "no-key"), BUNDLE, b"")
    assert not ran.exists()


@pytest.fixture
def wrapper(home: Path) -> list[str]:
    """The wrapper as a person starts it, with the environment that runs the tests."""
    environment, cache = Path(sys.prefix), home / ".cache/fumehood"
    need((environment / "launch.pyc").is_file(), "the tests don't run in an environment of tools/environment.py")
    mark = Path(f"{cache}/checkouts{CHECKOUT}/.run")
    mark.parent.mkdir(parents=True)
    mark.write_text(f"{environment.name}\n\n")
    (cache / environment.name).symlink_to(environment)
    return [str(CHECKOUT / "fumehood")]


def plant_libraries(folder: Path, ran: Path) -> None:
    """Compile stand-ins for the libraries of Python and its modules: each has the functions, and notes that it ran."""
    need(shutil.which("gcc") is not None and shutil.which("nm") is not None, "there is no compiler")
    folder.mkdir()
    listed = subprocess.run(["ldd", sys.executable, _sqlite3.__file__], capture_output=True, text=True, check=True)
    libraries = {line.split()[0]: line.split()[2] for line in listed.stdout.splitlines() if " => /" in line}
    for name, path in libraries.items():
        if not name.startswith(("libc.", "libm.", "libpthread.", "libdl.")):  # /bin/sh needs the first
            listed = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True)
            functions = {line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines() if " T " in line}
            functions -= {"_init", "_fini"}  # the compiler makes these
            code = CONSTRUCTOR % ran + "".join(f"int {each}() {{ return 0; }}\n" for each in functions)
            compiler = ["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", "-x", "c", "-", "-o", folder / name]
            subprocess.run(compiler, input=code, text=True, check=True)


def test_no_library_that_a_command_left_is_loaded_by_what_runs_outside(
    cli, project: Path, home: Path, wrapper: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, planted = home / "ran", project / "lib"
    plant_libraries(planted, ran)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(planted))
    subprocess.run([sys.executable, "-I", "-c", "import sqlite3"], check=False, capture_output=True)
    need(ran.exists(), "this Python was built with all libraries in it")
    ran.unlink()
    for words in (["run", "--", "echo $LD_LIBRARY_PATH"], ["log"], ["status"], ["diff"]):
        done = cli(*words, command=wrapper)
        assert not ran.exists(), words
        assert done.returncode == 0, done.stderr
        assert words[0] != "run" or done.stdout == f"{planted}\n", "the command has the person's variables"


def test_variables_that_make_programs_load_code_reach_the_command_and_nothing_outside(
    cli, project: Path, home: Path, wrapper: list[str]
) -> None:
    paths = ("BASH_ENV", "ENV", "GCONV_PATH", "NODE_PATH", "OPENSSL_CONF", "PERL5LIB", "PYTHONPATH", "RUBYLIB")
    variables = dict.fromkeys(paths, f"{project}/a b'$HOME\"") | {"NODE_OPTIONS": "", "RUBYOPT": "-w\n-v"}
    line = ["sh", "-c", 'for name; do eval "printf \'%s=%s.\' $name \\"\\$$name\\""; done', "sh", *variables]
    inside = cli("run", "--", *line, command=wrapper, env=variables)
    assert inside.stdout == "".join(f"{name}={value}." for name, value in variables.items())
    cli("run", "--", "echo x > f", command=wrapper)
    with Terminal([*wrapper, "diff"], project, env={**variables, "PAGER": f"env >{home}/outside; cat"}) as terminal:
        assert terminal.end() == 0
    names = {each.partition("=")[0] for each in (home / "outside").read_text().splitlines()}
    assert "PAGER" in names
    assert not names & variables.keys()
