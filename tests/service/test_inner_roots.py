"""What is mounted inside a project, and is a root of its own: its changes are taken over and judged as the project's.

Each story is told in mounts of its own: by root, and by an ordinary user, to whom the kernel shows nothing that lies
under a mount.
"""

import os
import shutil
import subprocess
import sys

import pytest

from conftest import need

pytestmark = pytest.mark.namespaces

IS_ROOT = os.geteuid() == 0
OWN = [] if IS_ROOT else ["--user", "--map-current-user", "--keep-caps"]
# An ordinary user has no say over what is mounted there.
PLAIN = "" if IS_ROOT else "setpriv --inh-caps=-all --ambient-caps=-all"
BEGIN = """
import os, subprocess, sys
from pathlib import Path
from fumehood import BadRequest, FumehoodError, Policy, Sandbox
from fumehood.service.opened import OpenedStore

project = Path(sys.argv[1])
os.chdir(project)

def changes(run):
    return {os.path.relpath(os.path.join(run.roots[each.root], each.path)): each.verdict for each in run.changed}

def reasons(run):
    return {os.path.relpath(os.path.join(run.roots[each.root], each.path)): each.reason for each in run.changed}

def same(one, other):
    assert one == other, f"{one!r} is not {other!r}"

def add(*roots):
    with Sandbox(project, ask=lambda question: True) as sandbox:
        for root in roots:
            sandbox.add_root(project / root)

def hood(*roots, **more):
    add(*roots)
    return Sandbox(project, **more)
"""


@pytest.fixture
def tell(project, home, tmp_path):
    """Tell a story in a project with mounts: lines of a shell, in the project, and then of Python."""
    need(shutil.which("unshare") is not None, "there is no unshare to mount with")

    def tell(mounts: str, story: str) -> None:
        script = f'set -e; cd "$1"; umask 022\n{mounts}\nexec {PLAIN} "$0" -P -c "$2" "$1"'
        line = ["unshare", *OWN, "--mount", "sh", "-c", script, sys.executable, str(project), BEGIN + story]
        done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stdout + done.stderr

    return tell


VOLUME = """
mkdir volume src
echo under > volume/under; echo old > src/file
mount -t tmpfs -o mode=755 none volume
echo old > volume/there
"""


def test_what_is_written_into_a_mount_that_is_a_root_is_applied_and_undone(tell):
    tell(VOLUME, """
with hood("volume") as sandbox:
    line = "cat volume/*; echo new > volume/there; mkdir volume/made; echo x > volume/made/x; echo new > src/file"
    run = sandbox.run(line)
    same(run.stdout, "old\\n")
    same(changes(run), dict.fromkeys(("src/file", "volume/there", "volume/made", "volume/made/x"), "applied"))
    same(Path("volume/there").read_text(), "new\\n")
    sandbox.undo(run)
    same(os.listdir("volume"), ["there"])
    same([Path(name).read_text() for name in ("volume/there", "src/file")], ["old\\n", "old\\n"])
    sandbox.redo(run, "volume/made")
    same(Path("volume/made/x").read_text(), "x\\n")
""")


def test_such_a_root_is_overlaid_and_no_copy_is_made_of_it(tell):
    tell(VOLUME, f"""
with hood("volume") as sandbox:
    same(sandbox.run("true").capture == "kernel", {IS_ROOT})
    run = sandbox.run("grep -c 'p[^ ]*/volume .* overlay .*upperdir' /proc/self/mountinfo; mv src/file volume/")
    same(run.stdout.split(), ["1"])
    same(changes(run), dict.fromkeys(("src/file", "volume/file"), "applied"))
""")


def test_what_tells_of_a_mount_names_the_line_that_makes_it_a_root(tell):
    tell(VOLUME, """
with Sandbox(project) as sandbox:
    run = sandbox.run("echo x > volume/new; echo new > src/file")
same(changes(run), {"src/file": "applied", "volume/new": "unsupported"})
line = f"fumehood roots add {project}/volume"
assert run.reason.endswith(f"; to let commands write there: {line}"), run.reason

from fumehood.linux.doctor import examine_roots
from fumehood.service.roots import possible_new_roots

store = OpenedStore()
opened = store.projects.open(str(project))
same(possible_new_roots(store, opened), [f"{project}/volume"])
ability = examine_roots(sandbox._hood.host(), "", opened.roots)
same((ability.works, ability.fix, ability.detail), (False, line, run.reason))
store.close()
""")


def test_what_is_no_mount_or_mounted_read_only_is_no_root(tell):
    tell(VOLUME + "mkdir data; mount -t tmpfs none data; echo x > data/x; mount -o remount,ro data", """
for name, why in {"src": "is writable already", "data": "is mounted read-only"}.items():
    try:
        add(name)
    except BadRequest as refusal:
        assert why in refusal.message, refusal.message
    else:
        raise AssertionError(name)
add("volume")
try:
    add("volume")
except BadRequest as refusal:
    assert "is writable already" in refusal.message, refusal.message
with Sandbox(project) as sandbox:
    run = sandbox.run("cat data/x; echo x > volume/x")
    same((run.stdout, changes(run)), ("x\\n", {"volume/x": "applied"}))
""")


def test_what_is_in_it_is_judged_by_its_name_in_the_project(tell):
    tell("""
mkdir -p .vscode .git/hooks node_modules app
for each in .vscode .git/hooks node_modules app; do mount -t tmpfs -o mode=755 none $each; done
echo {} > .vscode/settings.json
""", """
with hood(".vscode", ".git/hooks", "node_modules", "app") as sandbox:
    run = sandbox.run(
        "echo '{ }' > .vscode/settings.json; echo x > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit;"
        "mkdir -p node_modules/one/.vscode app/.git/hooks; echo x > node_modules/one/.vscode/settings.json;"
        "echo x > app/.envrc; ln -s ../../outside app/out; ln -s ../src app/in"
    )
    verdicts = changes(run)
    held = {".vscode/settings.json", ".git/hooks/pre-commit", "app/.envrc", "app/out"}
    same({path for path, verdict in verdicts.items() if verdict == "held"}, held)
    same(verdicts["node_modules/one/.vscode/settings.json"], "applied")
    same(verdicts["app/in"], "applied")
    sandbox.apply(run, "app/out")
    same(os.readlink("app/out"), "../../outside")
    sandbox.discard(run)
""")


def test_a_mount_in_a_mount_is_a_root_too(tell):
    tell(VOLUME + "mkdir volume/inner; mount -t tmpfs none volume/inner; echo old > volume/inner/there", """
with hood("volume") as sandbox:
    run = sandbox.run("cat volume/inner/there; echo x > volume/new; echo x > volume/inner/new")
    same((run.stdout, changes(run)), ("old\\n", {"volume/new": "applied", "volume/inner/new": "unsupported"}))
with hood("volume/inner") as sandbox:
    run = sandbox.run("cat volume/inner/there; echo y > volume/new; echo y > volume/inner/new; echo y > src/file")
    same(changes(run), {"src/file": "applied", "volume/new": "applied", "volume/inner/new": "applied"})
    undone = sandbox.undo(run, "volume")
    same(changes(undone), {"volume/new": "applied", "volume/inner/new": "applied"})
    same([Path(name).read_text() for name in ("volume/new", "src/file")], ["x\\n", "y\\n"])
""")


def test_what_is_masked_in_it_stays_out_of_sight(tell):
    tell(VOLUME + "mkdir volume/keys; echo secret > volume/keys/key; echo secret > volume/word", """
with hood("volume", policy=Policy(mask=("volume/keys", "word", f"{project}/volume/there"))) as sandbox:
    run = sandbox.run("cat volume/keys/* volume/word volume/there; echo x > volume/keys/new; echo x > volume/new")
    same((run.stdout, changes(run)), ("", {"volume/new": "applied"}))
""")


def test_what_is_held_in_it_is_seen_by_the_next_command_and_applied_later(tell):
    tell(VOLUME, """
with hood("volume") as sandbox:
    first = sandbox.run("echo held > volume/there; rm -r src", apply="hold")
    second = sandbox.run("cat volume/there; echo more >> volume/there; ls")
    same((second.stdout, changes(second)), ("held\\nvolume\\n", {"volume/there": "held"}))
    same(Path("volume/there").read_text(), "old\\n")
    sandbox.apply(first)
    sandbox.apply(second)
    same(Path("volume/there").read_text(), "held\\nmore\\n")
""")


def test_a_run_may_be_limited_to_it_or_to_the_rest(tell):
    tell(VOLUME + "mkdir volume/part", """
line = "for each in src volume volume/part; do (echo x > $each/new) 2>/dev/null && echo $each; done; true"
with hood("volume") as sandbox:
    for write, places in (
        ([], []), (["volume"], ["volume", "volume/part"]), (["src"], ["src"]), (["volume/part"], ["volume/part"]),
        ([str(project)], ["src", "volume", "volume/part"]),
    ):
        run = sandbox.run(line, write=write, apply="discard")
        same(run.stdout.split(), places)
""")


def test_a_draft_and_a_session_have_it_too(tell):
    tell(VOLUME, """
with hood("volume") as sandbox, sandbox.session("one") as session:
    same(changes(session.run("cd volume; echo s > session")), {"volume/session": "applied"})
    same(session.run("pwd").stdout, f"{project}/volume\\n")
def fumehood(*words):
    done = subprocess.run([sys.executable, "-P", "-m", "fumehood", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
fumehood("draft", "new", "idea")
fumehood("run", "--draft", "idea", "--", "echo d > volume/there; echo d > src/file")
same(Path("volume/there").read_text(), "old\\n")
fumehood("draft", "apply", "idea")
same([Path(name).read_text() for name in ("volume/there", "src/file")], ["d\\n", "d\\n"])
fumehood("undo")
same([Path(name).read_text() for name in ("volume/there", "src/file")], ["old\\n", "old\\n"])
fumehood("scan")
import json
files = json.loads(fumehood("files", "--all", "--json"))["files"]
paths = sorted(os.path.relpath(f"{each['root']}/{each['path']}") for each in files)
same(paths, ["src/file", "volume/session", "volume/there"])
""")


def test_what_earlier_runs_hold_leads_it_nowhere_else(tell):
    tell("mkdir -p a/volume outside; echo x > outside/x; mount -t tmpfs -o mode=755 none a/volume", """
with Sandbox(project) as sandbox:
    for line in ("rm -r a; ln -s outside a", "rm -r a"):
        first = sandbox.run(line, apply="hold")
        with hood("a/volume") as later:
            try:
                later.run("echo y > a/volume/y")
            except FumehoodError as refusal:
                assert "what earlier runs hold has no directory there" in refusal.message, refusal.message
            else:
                raise AssertionError(line)
            later.discard(first)
            same(changes(later.run("echo y > a/volume/y")), {"a/volume/y": "applied"})
            os.unlink("a/volume/y")
        store = OpenedStore()
        store.projects.remove_root(store.projects.open(str(project)), "a/volume")
        store.close()
    same(os.listdir("outside"), ["x"])
""")


def test_what_a_command_wrote_there_is_held_where_fumehood_was_killed(tell):
    tell(VOLUME + "echo old > volume/gone", """
add("volume")
line = "echo a > volume/a; rm volume/gone; echo new > src/file; echo ready; sleep 60"
killed = subprocess.Popen([sys.executable, "-P", "-m", "fumehood", "run", "--", line], stdout=subprocess.PIPE)
same(killed.stdout.readline(), b"ready\\n")
killed.kill()
killed.wait()
with Sandbox(project) as sandbox:
    run = sandbox.history()[0]
    same(changes(run), dict.fromkeys(("src/file", "volume/a", "volume/gone"), "held"))
    sandbox.apply(run)
    same(sorted(os.listdir("volume")), ["a", "there"])
    sandbox.undo(run)
    same(sorted(os.listdir("volume")), ["gone", "there"])
""")


def test_a_clients_edit_of_a_file_in_it_is_one_of_that_root(tell):
    tell(VOLUME, """
from fumehood.core.edits import PlannedEdit
from fumehood.service.edits import judge_edit, resolve_targets
from fumehood.store.edits import EditedProject

seat = EditedProject(project=1, roots=(str(project), f"{project}/volume"))
planned = [PlannedEdit(path=name, make_content=None) for name in ("volume/there", "src/file", "volume/.envrc")]
wanted = resolve_targets(seat, str(project), planned)
same([(each.root, each.path) for each in wanted], [(1, "there"), (0, "src/file"), (1, ".envrc")])
same([reason.partition(":")[0] for reason in judge_edit(seat, Policy(), "", wanted).reasons], [".envrc"])
""")


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount a file system while a command runs")
def test_where_it_is_mounted_or_unmounted_meanwhile_nothing_is_applied(tell):
    tell(VOLUME, """
line = "echo ready; while ! test -e ~/playground/go; do sleep 0.01; done; echo new > volume/there; echo new > src/file"
go = Path.home() / ".local/share/fumehood/playground/go"

def meanwhile(change):
    subprocess.run(change, check=True)
    go.touch()

add("volume")
for change in (["umount", "-l", "volume"], ["mount", "-t", "tmpfs", "none", "volume"]):
    with Sandbox(project) as sandbox:
        try:
            sandbox.run(line, on_output=lambda *_: meanwhile(change))
        except FumehoodError as refusal:
            assert f"another directory is at {project}/volume than when it began" in refusal.message, refusal.message
        else:
            raise AssertionError(change)
    go.unlink()
    same(Path("src/file").read_text(), "old\\n")
    with Sandbox(project) as sandbox:
        same([run.state for run in sandbox.history()][:1], ["held"])
        sandbox.discard("last")
same(os.listdir("volume"), [])
""")


@pytest.mark.skipif(not IS_ROOT, reason="only root can unmount what others see")
def test_once_it_is_unmounted_the_directory_is_a_root_as_before(tell):
    tell(VOLUME, """
with hood("volume") as sandbox:
    first = sandbox.run("echo new > volume/there")
    subprocess.run(["umount", "volume"], check=True)
    second = sandbox.run("ls volume; echo new > volume/under; echo new > src/file")
    same((second.stdout, second.capture), ("under\\n", "kernel"))
    same(changes(second), {"src/file": "applied", "volume/under": "applied"})
    try:
        sandbox.undo(first)
    except FumehoodError as refusal:
        assert "changed since run 1: there" in refusal.message, refusal.message
    sandbox.undo(second)
    same(os.listdir("volume"), ["under"])
    os.unlink("volume/under")
    os.rmdir("volume")
    try:
        sandbox.run("true")
    except FumehoodError as refusal:
        same(refusal.message, f"{project}/volume is not there any more")
        assert refusal.hint.endswith(f": fumehood roots remove {project}/volume"), refusal.hint
    else:
        raise AssertionError("it ran")
""")


@pytest.mark.skipif(shutil.which("busybox") is None, reason="there is no busybox for a tree")
def test_in_a_root_tree_it_is_at_its_place_in_the_workspace(tell, test_directory):
    tree = test_directory / "tree"
    for name in ("bin", "dev", "etc", "proc", "tmp"):
        (tree / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), tree / "bin/busybox")
    for name in ("sh", "cat"):
        (tree / "bin" / name).symlink_to("busybox")
    tell(VOLUME, f"""
with hood("volume") as sandbox:
    run = sandbox.run("cat volume/there; echo new > there", root="{tree}", cwd=str(project / "volume"))
    same(changes(run), {{"volume/there": "applied"}})
    run = sandbox.run("cat /workspace/volume/there; echo new > src/file", root="{tree}")
    same((run.stdout.split(), changes(run)), (["new"], {{"src/file": "applied"}}))
""")


@pytest.mark.parametrize("way", ["", "copy"])
def test_what_is_masked_beside_it_hides_it_not(tell, way):
    mounts = "mkdir -p a/volume a/keys; echo secret > a/keys/key; echo x > a/plain; mount -t tmpfs none a/volume"
    tell(f"{mounts}; echo old > a/volume/there", f"""
with hood("a/volume", policy=Policy(capture="{way}", mask=("a/keys", "a/volume/there"))) as sandbox:
    run = sandbox.run("cat a/keys/* a/volume/there a/plain; echo x > a/volume/new; echo y > a/plain")
    same((run.stdout.split(), changes(run)), (["x"], dict.fromkeys(("a/plain", "a/volume/new"), "applied")))
""")
