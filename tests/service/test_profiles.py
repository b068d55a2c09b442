"""Profiles on real tools: caches that are writable, kept for the project, and never written in the real home."""

import fcntl
import http.server
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

import trees
from conftest import need
from fumehood import Policy, Refused, Sandbox
from fumehood.service.profiles import remove_old_scratch
from fumehood.store.places import places
from patience import LONG_S, with_enough_time

pytestmark = [pytest.mark.namespaces, pytest.mark.once]
NPM_PACKAGE = '{"name": "%s", "version": "1.0.0", "dependencies": {%s}}'


@pytest.fixture(autouse=True)
def cache(home, monkeypatch):
    """A cache of its own for each test, on the file system of the state."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    for name in ("npm_config_cache", "PIP_CACHE_DIR", "CARGO_HOME"):
        monkeypatch.delenv(name, raising=False)
    ours = home / ".cache/fumehood"
    ours.mkdir(exist_ok=True)
    return ours


@pytest.fixture
def untouched(home):
    """What the real home holds, our own directories aside; compared when the test ends."""

    def look():
        found = {}
        for top, names, files in os.walk(home):
            names[:] = [name for name in names if name != "fumehood"]
            for name in (*names, *files):
                path = Path(top, name)
                found[str(path.relative_to(home))] = path.read_bytes() if path.is_file() else b""
        return found

    return look


def starts(program, *arguments):
    """Whether a program runs at all: one that rustup stands in for may be there and have nothing behind it."""
    if shutil.which(program) is None:
        return False
    return subprocess.run([program, *arguments], capture_output=True, check=False).returncode == 0


def done(run):
    assert run.exit_code == 0, run.output
    return run


def wheel(folder):
    """The smallest package that pip installs."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", "answer = 42\n")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    return path


def with_npm_package(project):
    need(starts("npm", "--version"), "npm is not here")
    (project / "package.json").write_text(NPM_PACKAGE % ("app", '"lib": "file:./lib.tgz"'))
    described = (NPM_PACKAGE % ("lib", "")).encode()
    with tarfile.open(project / "lib.tgz", "w:gz") as archive:
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(described)
        archive.addfile(entry, io.BytesIO(described))


# --- the tools ---


@pytest.mark.long
def test_npm_installs_with_a_cache_and_leaves_the_home_alone(sandbox, project, untouched):
    with_npm_package(project)
    before = untouched()
    run = done(sandbox.run("npm install --offline && npm ci --offline && npm cache add ./lib.tgz"))
    assert (project / "node_modules/lib/package.json").exists()
    assert "EROFS" not in run.output
    assert untouched() == before
    # What one command fetched, the next one finds.
    assert "index-v5" in done(sandbox.run("npx --version; ls $npm_config_cache/_cacache")).stdout


@pytest.mark.long
def test_pip_installs_a_wheel_and_does_not_miss_its_cache(sandbox, project, untouched):
    wheel(project)
    # Not what stands in for it on PATH: that may have business of its own after an install.
    pip = f"{sys.base_prefix}/bin/python3 -m pip"
    if not starts(*pip.split(), "--version"):
        done(sandbox.run("python3 -m venv .venv"))
        pip = ".venv/bin/pip"
    before = untouched()
    run = done(sandbox.run(f"{pip} install --no-index -t lib ./tiny-1.0-py3-none-any.whl && {pip} cache dir"))
    assert "cache has been disabled" not in run.output
    assert run.stdout.splitlines()[-1] == "/dev/scratch/PIP_CACHE_DIR"
    assert (project / "lib/tiny.py").exists()
    assert untouched() == before


def test_git_commits_and_collects_garbage_before_it_ends(sandbox, project):
    line = "git init -q && git config user.name A && git config user.email a@b && git add . && git commit -qm one"
    (project / "a").write_text("a")
    done(sandbox.run(line))
    assert done(sandbox.run("git log --format=%s; git config gc.autoDetach")).stdout == "one\nfalse\n"
    host = subprocess.run(["git", "config", "gc.autoDetach"], cwd=project, capture_output=True, check=False)
    assert host.stdout == b"", "nothing of that is in the repository"


def test_make_gets_the_caches_of_what_it_calls(sandbox, project, untouched):
    need(starts("make", "--version"), "make is not here")
    (project / "Makefile").write_text(
        "all:\n\t@echo x > $$npm_config_cache/a\n\t@echo y > $$PIP_CACHE_DIR/b\n"
        "\t@mkdir -p $$GOCACHE/c $$CARGO_HOME/d\n"
        "again:\n\t@cat $$npm_config_cache/a $$PIP_CACHE_DIR/b\n\t@ls -d $$GOCACHE/c $$CARGO_HOME/d\n"
    )
    before = untouched()
    done(sandbox.run("make"))
    assert done(sandbox.run(["make", "again"])).stdout.splitlines()[:2] == ["x", "y"]
    assert untouched() == before


def test_cargo_builds(sandbox, project, untouched, monkeypatch):
    toolchains = os.environ.get("RUSTUP_HOME") or os.path.expanduser("~root/.rustup")
    if os.access(toolchains, os.R_OK):
        monkeypatch.setenv("RUSTUP_HOME", toolchains)
    if not starts("cargo", "--version"):
        pytest.skip("cargo does not start here")
    (project / "src").mkdir()
    (project / "src/main.rs").write_text('fn main() { println!("built"); }\n')
    (project / "Cargo.toml").write_text('[package]\nname = "app"\nversion = "1.0.0"\nedition = "2021"\n')
    before = untouched()
    assert done(sandbox.run("cargo build -q --offline && target/debug/app")).stdout == "built\n"
    assert untouched() == before


def test_go_builds(sandbox, project, untouched):
    if not starts("go", "version"):
        pytest.skip("go is not here")
    (project / "go.mod").write_text("module app\n\ngo 1.19\n")
    (project / "main.go").write_text('package main\n\nimport "fmt"\n\nfunc main() { fmt.Println("built") }\n')
    before = untouched()
    assert done(sandbox.run("go build -o app . && ./app")).stdout == "built\n"
    assert untouched() == before


def test_uv_syncs(sandbox, project, untouched):
    if not starts("uv", "--version"):
        pytest.skip("uv is not here")
    wheel(project)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "app"\nversion = "1"\ndependencies = ["tiny"]\n'
        '[tool.uv.sources]\ntiny = { path = "tiny-1.0-py3-none-any.whl" }\n'
    )
    before = untouched()
    run = done(sandbox.run("uv sync --offline -q && uv run --offline -q python -c 'import tiny; print(tiny.answer)'"))
    assert run.stdout == "42\n"
    assert "hardlink" not in run.stderr
    assert untouched() == before


# What was fetched before lies there, and builds write there: their locks, what they fetch, what they install.
FETCHED = {
    ".m2/repository": "mvn mvnw", ".gradle/caches": "gradle gradlew", ".gradle/wrapper": "gradlew",
    ".local/share/pnpm/store": "pnpm", ".yarn/berry": "yarn", ".bun/install/cache": "bun make", ".cache/deno": "deno",
    ".cache/pypoetry/artifacts": "poetry", ".cache/composer": "composer", ".ivy2/cache": "sbt", ".sbt/boot": "sbt",
    ".nuget/packages": "dotnet", ".pub-cache/hosted": "dart", ".hex/packages": "mix", ".cabal/store": "cabal",
    ".stack/snapshots": "stack", ".cache/ccache": "ccache meson",
}  # fmt: skip


@pytest.mark.parametrize(("place", "program"), [(at, each) for at, names in FETCHED.items() for each in names.split()])
def test_what_was_fetched_before_can_be_added_to(home, project, sandbox, untouched, place, program):
    (home / place).mkdir(parents=True)
    (home / place / "old").write_text("old")
    before = untouched()
    (project / program).write_text(f"#!/bin/sh\ncat ~/{place}/*; echo new > ~/{place}/new\n")
    (project / program).chmod(0o755)
    assert done(sandbox.run(f"./{program}")).stdout == "old"
    assert done(sandbox.run(f"./{program}")).stdout == "new\nold"
    assert untouched() == before


# --- scratch ---


def own(scratch, keep=True, **settings):
    """A policy with a profile of a person's own for `sh`, by which a test can do anything in scratch."""
    return Policy().with_settings({"profiles": ({"match": ("sh",), "scratch": scratch, "keep": keep, **settings},)})


@pytest.fixture
def hood(project):
    made = []

    def make(*scratch, at=project, **options):
        made.append(Sandbox(at, policy=own(scratch, **options)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def sh(sandbox, line):
    return done(sandbox.run(["sh", "-c", line])).stdout


def test_a_directory_of_the_host_is_seen_and_written_without_being_changed(home, hood):
    theirs = home / ".tool"
    theirs.mkdir()
    (theirs / "old").write_text("old")
    sandbox = hood("~/.tool")
    assert sh(sandbox, "cat ~/.tool/old; echo new > ~/.tool/new; echo more >> ~/.tool/old; rm -f ~/.tool/x") == "old"
    assert [path.name for path in theirs.iterdir()] == ["old"]
    assert (theirs / "old").read_text() == "old"
    assert sh(sandbox, "cat ~/.tool/new ~/.tool/old") == "new\noldmore\n"


def test_what_is_kept_is_kept_for_the_project_alone(home, hood, test_directory):
    (home / ".tool").mkdir()
    other = test_directory / "other"
    other.mkdir()
    sh(hood("~/.tool", "CACHE=~/.none"), "echo 1 > ~/.tool/a; echo 1 > $CACHE/b")
    assert sh(hood("~/.tool", "CACHE=~/.none", at=other), "find ~/.tool $CACHE -type f") == ""


def test_what_is_not_kept_is_gone_with_the_run(home, hood, cache):
    (home / ".tool").mkdir()
    sandbox = hood("~/.tool", "CACHE=~/.none", keep=False)
    line = "ls -A ~/.tool $CACHE | grep -c 1$; echo 1 > ~/.tool/a1; echo 1 > $CACHE/b1"
    assert sh(sandbox, line) == "0\n"
    assert sh(sandbox, line) == "0\n"
    assert not [name for _, _, files in os.walk(cache / "scratch") for name in files]


def test_a_directory_that_the_host_lacks_is_not_made_there(home, hood):
    sandbox = hood("~/.none", "CACHE=~/.none/cache")
    assert sh(sandbox, "ls -d ~/.none 2>/dev/null; echo $CACHE; touch $CACHE/x") == "/dev/scratch/CACHE\n"
    assert not (home / ".none").exists()


def test_a_variable_that_is_set_says_where_the_cache_is(test_directory, hood, monkeypatch):
    theirs = test_directory / "theirs"
    theirs.mkdir()
    (theirs / "old").write_text("old")
    monkeypatch.setenv("CACHE", str(theirs))
    assert sh(hood("CACHE=~/.none"), "echo $CACHE; cat $CACHE/old; touch $CACHE/new") == f"{theirs}\nold"
    assert [path.name for path in theirs.iterdir()] == ["old"]


def test_scratch_is_writable_however_writes_are_captured(home, project, way):
    (home / ".tool").mkdir()
    (home / ".tool/old").write_text("old\n")
    with Sandbox(project, policy=own(("~/.tool", "CACHE=~/.none")).replace(capture=way)) as sandbox:
        sh(sandbox, "echo 1 > ~/.tool/a; echo 2 > $CACHE/b; echo 3 > c")
        assert sh(sandbox, "cat ~/.tool/a $CACHE/b c") == "1\n2\n3\n"
        if way in ("kernel", "bwrap"):
            assert sh(sandbox, "cat ~/.tool/old") == "old\n"
    assert [path.name for path in (home / ".tool").iterdir()] == ["old"]
    assert (project / "c").exists()


def test_two_runs_at_once_don_t_disturb_each_other(home, project):
    (home / ".tool").mkdir()
    (home / ".tool/old").write_text("old\n")
    printed = []

    def run(number):
        with Sandbox(project, policy=own(("~/.tool", "CACHE=~/.none"))) as sandbox:
            # They wait for each other in the directory that they share.
            line = f"touch ~/.tool/n{number} $CACHE/n{number}; cd $CACHE; until test -e n0 -a -e n1 -a -e n2"
            printed.append(sh(sandbox, f"{line}; do sleep 0.02; done; cat ~/.tool/old"))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # One had the kept directory to itself, the others one of their own; the plain one they shared.
    assert printed == ["old\n"] * 3
    with Sandbox(project, policy=own(("~/.tool", "CACHE=~/.none"))) as sandbox:
        assert sh(sandbox, "ls $CACHE") == "n0\nn1\nn2\n"
        assert sh(sandbox, "ls ~/.tool | wc -l") == "2\n"


@pytest.mark.parametrize("what", ["home", "above", "state", "project", "in project", "above project"])
def test_scratch_covers_neither_the_home_nor_what_is_captured_or_ours(home, project, hood, what):
    (project / "sub").mkdir()
    path = {
        "home": home, "above": home.parent, "state": places().state, "project": project,
        "in project": project / "sub", "above project": project.parent,
    }[what]  # fmt: skip
    assert sh(hood(str(path)), f"touch {home}/x {home.parent}/x 2>/dev/null; echo done > sub/made") == ""
    assert not (home / "x").exists()
    assert (project / "sub/made").read_text() == "done\n"


def test_a_directory_left_closed_is_open_to_the_next_command(home, hood):
    (home / ".tool").mkdir()
    sandbox = hood("~/.tool", "CACHE=~/.none")
    sh(sandbox, "chmod 0 ~/.tool $CACHE/..")
    sh(sandbox, "touch ~/.tool/a $CACHE/b")


def test_links_left_in_scratch_lead_nowhere_on_the_host(home, hood, cache, test_directory):
    (home / ".tool").mkdir()
    victim = test_directory / "victim"
    victim.mkdir()
    (victim / "file").write_text("mine")
    sandbox = hood("~/.tool", "CACHE=~/.none")
    sh(sandbox, f"ln -s {victim} ~/.tool/link; ln -s {victim} $CACHE/link; ln -s {victim}/file $CACHE/file")
    assert "Read-only" in sandbox.run(["sh", "-c", "echo x > $CACHE/file; echo x > ~/.tool/link/file"]).output
    assert remove_old_scratch(places(), before=time.time() + 9, leftovers_before=time.time() + 9)[0] == 2
    assert (victim / "file").read_text() == "mine"
    assert not any((cache / "scratch").iterdir())


def test_a_tree_deeper_than_pythons_stack_is_swept_like_any_other(home, hood, cache):
    (home / ".tool").mkdir()
    line = "for _ in range(1100): os.mkdir('d'); os.chdir('d'); open('f', 'w').write('x' * 5000)"
    sh(hood("~/.tool"), f'cd ~/.tool && python3 -c "import os\n{line}"')
    count, size = remove_old_scratch(places(), before=time.time() + 9, leftovers_before=time.time() + 9)
    assert (count, size > 1100 * 5000) == (1, True)
    assert not any((cache / "scratch").iterdir())


def test_sweeping_leaves_what_is_new_or_in_use(home, hood, cache):
    (home / ".tool").mkdir()
    sandbox = hood("~/.tool")
    sh(sandbox, "echo kept > ~/.tool/a")
    assert remove_old_scratch(places(), before=time.time() - 3600, leftovers_before=time.time() - 3600) == (0, 0)
    (room,) = (cache / "scratch").glob("*/*")
    in_use = os.open(room, os.O_RDONLY)
    fcntl.flock(in_use, fcntl.LOCK_SH)
    assert remove_old_scratch(places(), before=time.time() + 9, leftovers_before=time.time() + 9) == (0, 0)
    os.close(in_use)
    assert sh(sandbox, "cat ~/.tool/a") == "kept\n"


@pytest.mark.parametrize("where", ["~/.tool", "$CACHE"])
def test_what_is_written_to_scratch_counts_for_the_limit(home, hood, where):
    (home / ".tool").mkdir()
    sandbox = hood("~/.tool", "CACHE=~/.none", **{"limits.written": 1 << 20})
    # What a kept cache held before is not the run's: only what is written after the first look counts.
    line = f"for n in $(seq 500); do head -c 1000000 /dev/zero > {where}/$n; sleep 0.05; done"
    run = sandbox.run(["sh", "-c", line], timeout=LONG_S)
    assert not run.timed_out
    assert [each.what for each in run.blocked] == ["limit"]


def test_nothing_in_scratch_is_a_change(home, hood):
    (home / ".tool").mkdir()
    run = hood("~/.tool", "CACHE=~/.none").run(["sh", "-c", "touch ~/.tool/a $CACHE/b"])
    assert (run.state, run.changes) == ("empty", ())


def test_a_profile_s_settings_hold_for_its_commands_alone(hood):
    def profiled(limit):
        return hood(timeout=limit, **{"environment.set": (("PROFILED", "yes"),)})

    run = with_enough_time(
        lambda limit: profiled(limit).run(["sh", "-c", "echo $PROFILED; sleep 1000"]), lambda run: run.stdout
    )
    assert (run.timed_out, run.stdout) == (True, "yes\n")
    run = profiled(0.3).run("echo $PROFILED; sleep 0.5")
    assert (run.timed_out, run.stdout) == (False, "\n")


def test_a_link_in_the_place_of_a_cache_is_not_followed_by_us(hood, home, cache):
    sandbox = hood("CACHE=~/.none")
    for link in (f"{home}/made", str(home)):
        sh(sandbox, f"rm -rf $CACHE; ln -s {link} $CACHE")
        sh(sandbox, "test -L $CACHE")
    assert not (home / "made").exists()
    assert home.stat().st_mode & 0o777 == 0o700


def test_in_a_root_tree_scratch_is_elsewhere_and_kept_too(home, project, test_directory):
    (home / ".tool").mkdir()
    tree = trees.make_tree(test_directory / "tree")
    policy = own(("~/.tool", "npm_config_cache=~/.npm", "CACHE=~/.none")).replace(root=str(tree))
    with Sandbox(project, policy=policy) as sandbox:
        line = "echo 1 >> $CACHE/a; echo 2 >> $npm_config_cache/b; cat $CACHE/a; echo $npm_config_cache"
        assert sh(sandbox, line) == "1\n/dev/scratch/npm_config_cache\n"
        assert sh(sandbox, line) == "1\n1\n/dev/scratch/npm_config_cache\n"
        assert list(project.iterdir()) == []


@pytest.fixture
def server():
    """A server on the host's loopback, as `host:port`, that answers everything."""

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"reached")

        def log_message(self, *_given):
            pass

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listening.server_address[1]}"
    listening.shutdown()
    listening.server_close()
    thread.join()


def fetching(host):
    # By the proxy, though it is this machine's own.
    return f"curl -sS -m 100 -f --noproxy '' http://{host}/"


@pytest.fixture
def granting(project, server):
    """A sandbox with a profile that grants the server to `curl`, and to `terraform`, which is not here."""
    made = []

    def make(**options):
        profile = {"match": ("curl", "terraform"), "hosts": (server,)}
        made.append(Sandbox(project, policy=Policy().with_settings({"profiles": (profile,)}), **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def copied_curl(place):
    """A program of the project's own that does what curl does."""
    place.parent.mkdir(exist_ok=True)
    shutil.copy(os.path.realpath(shutil.which("curl")), place)


@pytest.mark.parametrize("line", ["{0}", "cd sub && {0}", "{1}"])
def test_a_profile_s_hosts_are_reached_by_its_program_run_by_itself(granting, project, server, line):
    (project / "sub").mkdir()
    path = shutil.which("curl")
    command = line.format(fetching(server), fetching(server).replace("curl", path))
    sandbox = granting()
    assert done(sandbox.run(command)).stdout == "reached"
    assert done(sandbox.run(["curl", "-sS", "-f", "--noproxy", "", f"http://{server}/"])).stdout == "reached"
    assert sandbox.questions(command) == ()


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "true || terraform; {0}", "true || curl; {0}", "{0}; true", "{0} | cat", "A=1 {0}", "env {0}", "command {0}",
        "sh -c \"{0}\"", "terraform() {{ {0}; }}; terraform", "exec {0}", "if {0}; then terraform; fi", "./{0}",
        "bin/{0}", "alias terraform='{0}'\nterraform", "cd . && cd . && {0}", "{0} # terraform", "./terraform {1}",
    ],
)  # fmt: skip
def test_a_line_that_only_names_the_program_gets_none_of_its_hosts(granting, project, server, line):
    for name in ("curl", "bin/curl", "terraform"):
        copied_curl(project / name)
    fetch = fetching(server).replace("''", '""') if "'" in line else fetching(server)
    command = line.format(fetch, fetch.removeprefix("curl "))
    sandbox = granting()
    run = sandbox.run(command)
    assert "reached" not in run.output
    assert run.hosts == ()
    assert [question.details for question in sandbox.questions(command)] == [(server,)]


def test_a_failed_one_is_told_what_a_plain_command_would_have_had(granting, server):
    run = granting().run(f"true; {fetching(server)}")
    assert any(each.detail == server and "to its program alone" in each.hint for each in run.blocked)


@pytest.mark.parametrize("command", [("sh", "-c", "{0}"), ("env", "curl", "{1}"), ("./curl", "{1}")])
def test_an_argument_list_that_runs_another_program_gets_none_either(granting, project, server, command):
    copied_curl(project / "curl")
    run = granting().run([part.format(fetching(server), f"http://{server}/") for part in command])
    assert "reached" not in run.output


def test_a_program_of_the_project_s_own_does_not_stand_in_for_the_one_meant(granting, project, server, monkeypatch):
    (project / "bin").mkdir()
    (project / "bin/curl").write_text("#!/bin/sh\necho fooled\n")
    copied_curl(project / "bin/terraform")
    for name in ("curl", "terraform"):
        (project / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{project}/bin:bin::{os.environ['PATH']}")
    sandbox = granting()
    assert done(sandbox.run(fetching(server))).stdout == "reached"
    assert "reached" not in sandbox.run(fetching(server).replace("curl", "terraform")).output
    assert done(sandbox.run("cd bin; curl")).stdout == "fooled\n", "without a grant, the PATH is the person's"


@pytest.mark.long
@pytest.mark.parametrize("kept", ["PATH=$PWD/bin:$PATH", "LD_PRELOAD=$PWD/x.so", "BASH_ENV=$PWD/x", "CURL_HOME=$PWD"])
def test_variables_that_a_session_s_commands_kept_take_the_grant_away(granting, project, server, kept):
    agent = granting().session("agent")
    assert done(agent.run(fetching(server))).stdout == "reached"
    done(agent.run(f"echo {kept} >>$FUMEHOOD_ENV"))
    assert "reached" not in agent.run(fetching(server)).output
    agent.keep_env({kept.partition("=")[0]: None})
    assert done(agent.run(fetching(server))).stdout == "reached"


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "BASH_ENV", "PYTHONPATH"])
def test_code_that_commands_can_write_is_not_read_before_a_granted_program(
    granting, project, server, monkeypatch, name
):
    monkeypatch.setenv(name, str(project))
    assert "reached" not in granting().run(fetching(server)).output
    monkeypatch.setenv(name, "/usr/lib")
    assert done(granting().run(fetching(server))).stdout == "reached"


def test_what_a_client_s_shell_reads_first_does_not_come_before_a_granted_program(cli, home, project, server):
    settings = home / ".config/fumehood/config.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f'[[profile]]\nmatch = ["curl"]\nhosts = ["{server}"]\n')
    snapshot = home / "snapshot.sh"
    snapshot.write_text("curl() { echo fooled; }\n")
    around = "run", "--quiet", "--shell", "/bin/bash", "--source", str(snapshot), "--"
    assert cli(*around, fetching(server)).stdout == "reached"
    assert cli(*around, "curl; true").stdout == "fooled\n"


def test_what_a_profile_withholds_is_asked_for_where_somebody_is_there(granting, project, server):
    asked = []

    def answer(question):
        asked.append(question.details)
        return len(asked) == 1

    sandbox = granting(ask=answer)
    line = f"touch made; {fetching(server)}"
    assert done(sandbox.run(line)).stdout == "reached"
    (project / "made").unlink()
    with pytest.raises(Refused):
        sandbox.run(line)
    assert asked == [(server,)] * 2
    assert not (project / "made").exists()
    assert done(sandbox.run(fetching(server))).stdout == "reached"
    assert len(asked) == 2, "the program by itself needs nobody's word"


def test_secrets_that_a_profile_keeps_go_to_its_program_alone(project, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret")
    profile = {"match": ("printenv",), "environment.keep": ("MY_TOKEN",)}
    with Sandbox(project, policy=Policy().with_settings({"profiles": (profile,)})) as sandbox:
        assert done(sandbox.run("printenv MY_TOKEN")).stdout == "secret\n"
        assert sandbox.run("true; printenv MY_TOKEN").stdout == ""


def test_a_command_whose_connection_is_granted_while_it_waits_has_its_scratch(home, project, server):
    (home / ".tool").mkdir()
    policy = own(("~/.tool", "CACHE=~/.none")).replace(network="ask")
    with Sandbox(project, policy=policy, ask=lambda _question: True) as sandbox:
        line = f"echo x >> ~/.tool/a; echo y >> $CACHE/b; {fetching(server)}"
        assert sh(sandbox, line) == "reached"
        assert sh(sandbox, "tail -n 1 ~/.tool/a $CACHE/b | grep -c .") == "4\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as somebody else")
def test_root_on_somebody_else_s_project_gives_them_caches_that_don_t_last(project, hood):
    project.parent.chmod(0o755)
    os.chown(project, 65534, 65534)
    sandbox = hood("CACHE=~/.none", "~/.tool")
    assert sh(sandbox, "mkdir -p $CACHE && touch $CACHE/x && echo $CACHE") == "/tmp/scratch/CACHE\n"


# --- what else the policy says of a command's surroundings ---


def test_a_kept_tmp_is_the_project_s_alone(project, test_directory):
    other = test_directory / "other"
    other.mkdir()
    policy = Policy(tmp="project")
    with Sandbox(project, policy=policy) as sandbox, Sandbox(other, policy=policy) as elsewhere:
        done(sandbox.run("echo kept > /tmp/a; ln -s /etc /tmp/link"))
        assert done(sandbox.run("cat /tmp/a; stat -c %a /tmp; mktemp -d >/dev/null")).stdout == "kept\n1777\n"
        assert done(elsewhere.run("ls /tmp")).stdout == ""
    with Sandbox(project) as sandbox:
        assert done(sandbox.run("ls /tmp")).stdout == ""


def test_variables_are_kept_dropped_and_set_as_a_person_says(project, monkeypatch):
    for name in ("MY_TOKEN", "OTHER_TOKEN", "PLAIN", "KEPT_PLAIN"):
        monkeypatch.setenv(name, "1")
    policy = Policy().with_settings(
        {"environment.keep": ("MY_*",), "environment.drop": ("PLAI*",), "environment.set": (("ADDED", "a b"),)}
    )
    with Sandbox(project, policy=policy) as sandbox:
        run = done(sandbox.run("echo $MY_TOKEN-$OTHER_TOKEN-$PLAIN-$KEPT_PLAIN-$ADDED"))
    assert run.stdout == "1---1-a b\n"
    assert {"OTHER_TOKEN", "PLAIN"} <= set(run.dropped)


def test_git_works_for_a_person_who_sets_it_up_by_variables(sandbox, project, monkeypatch):
    for name, value in {"COUNT": "1", "KEY_0": "http.extraHeader", "VALUE_0": "Authorization: secret"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    assert "secret" not in done(sandbox.run("git init -q; git config --list; env")).output
    assert "secret" not in done(sandbox.run("X=git; $X init -q; $X config --list; env")).output


@pytest.mark.parametrize("variable", ["npm_config_cache", "XDG_CACHE_HOME", "HOME"])
def test_no_variable_of_a_command_s_brings_a_directory_of_the_home_into_sight(home, project, variable):
    for name in ("letters", "letters/uv", "letters/.npm"):
        (home / name).mkdir()
        (home / name / "note").write_text("secret\n")
    command = f"npm --version; uv --version; cat {home}/letters/note {home}/letters/uv/note {home}/letters/.npm/note"
    with Sandbox(project, session="telling") as sandbox:
        done(sandbox.run(f"echo {variable}={home}/letters > $FUMEHOOD_ENV"))
        assert "secret" not in sandbox.run(command).stdout


@pytest.mark.parametrize("place", ["home", "outside"])
def test_a_cargo_home_elsewhere_has_its_caches_and_hides_its_credentials(
    home, project, test_directory, monkeypatch, place
):
    cargo = (home if place == "home" else test_directory / "opt") / "cargo"
    (cargo / "registry").mkdir(parents=True)
    (cargo / "registry/crate").write_text("a crate\n")
    (cargo / "credentials.toml").write_text("secret\n")
    (cargo / "config.toml").write_text('[registries.x]\ntoken = "secret"\n')
    monkeypatch.setenv("CARGO_HOME", str(cargo))
    with Sandbox(project) as sandbox:
        run = sandbox.run("cargo --version; cd $CARGO_HOME; cat credentials.toml config.toml; cat registry/crate")
        assert "secret" not in run.stdout
        assert "a crate\n" in run.stdout
        done(sandbox.run("true || cargo; echo new > $CARGO_HOME/registry/new"))
        assert done(sandbox.run("true || cargo; cat $CARGO_HOME/registry/new")).stdout == "new\n"
    assert sorted(os.listdir(cargo / "registry")) == ["crate"]


def test_what_a_variable_calls_secret_is_not_uncovered_by_a_cache(home, project, monkeypatch):
    (home / "stored").mkdir()
    (home / "stored/key.json").write_text("secret\n")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"{home}/stored/key.json")
    monkeypatch.setenv("PIP_CACHE_DIR", f"{home}/stored")
    with Sandbox(project) as sandbox:
        assert "secret" not in sandbox.run(f"true || pip; cat {home}/stored/key.json").stdout
