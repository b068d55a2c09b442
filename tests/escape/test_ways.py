"""The promises by every way of capturing: where views can't be mounted, other means must keep them."""

import json
import os
import socket

import pytest

from conftest import fresh_directory, need, remove_tree, scratch
from fumehood import Policy, Sandbox
from fumehood.core.policy import Profile
from fumehood.linux import bwrap, confine
from fumehood.linux.probe import host
from fumehood.store.places import places
from trees import add_python, make_tree

pytestmark = pytest.mark.namespaces

# Each line of the output is a way that led to the host.
REACHES = """
import json, os, socket, sys
secrets, streams, datagrams, token = json.loads(sys.argv[1])
for path in secrets:
    try:
        if token in open(path).read(): print("read", path)
    except OSError: pass
for path in streams:
    try:
        s = socket.socket(socket.AF_UNIX); s.settimeout(2); s.connect(path); print("connected to", path)
    except OSError: pass
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
    for path in datagrams:
        try:
            a, b = socket.socketpair(socket.AF_UNIX, kind); a.connect(path); a.send(b"told"); print("told", kind, path)
        except OSError: pass
try:
    a, b = socket.socketpair(); a.sendall(b"x"); assert b.recv(1) == b"x"
except OSError as error: print("no pair of its own", error)
"""


def serving(path, kind=socket.SOCK_STREAM):
    server = socket.socket(socket.AF_UNIX, kind)
    server.bind(str(path))
    if kind == socket.SOCK_STREAM:
        server.listen()
    return server


def test_secrets_and_sockets_of_the_host_are_out_of_reach_by_every_way(way, home, project, test_directory):
    outside = test_directory / "outside"
    outside.mkdir()
    secrets = [home / ".ssh/id_rsa", home / ".aws/credentials", home / ".local/state/fumehood/notes"]
    for secret in secrets:
        secret.parent.mkdir(parents=True, exist_ok=True)
        secret.write_text("hunter2")
    (project / "link").symlink_to(home / ".ssh/id_rsa")
    streams = [home / "s", project / "s", outside / "s"]
    servers = [serving(path) for path in streams]
    datagrams = [home / "d", project / "d", outside / "d"]
    servers += [serving(path, socket.SOCK_DGRAM) for path in datagrams]
    told = json.dumps(
        [[*map(str, secrets), "link", f"/proc/self/root{secrets[0]}"], [*map(str, streams)], [*map(str, datagrams)],
         "hunter2"]
    )  # fmt: skip
    try:
        with Sandbox(project, policy=Policy(capture=way)) as sandbox:
            run = sandbox.run(["python3", "-c", REACHES, told])
    finally:
        for server in servers:
            server.close()
    assert (run.stdout, run.stderr, run.exit_code) == ("", "", 0)


CONNECTS = """
import socket
for path in ("/skills/tools/s", "/srv/s", "/workspace/s"):
    try:
        s = socket.socket(socket.AF_UNIX); s.settimeout(2); s.connect(path); print("connected to", path)
    except OSError as error: print(error.strerror)
"""


@pytest.fixture(scope="module")
def python_tree():
    top = fresh_directory(scratch())
    tree = make_tree(top / "tree")
    add_python(tree)
    (tree / "srv").mkdir()
    yield tree
    remove_tree(top)


def test_sockets_in_a_root_tree_and_in_a_skill_are_out_of_reach(way, home, project, test_directory, python_tree):
    skill = test_directory / "tools"
    skill.mkdir()
    (skill / "SKILL.md").write_text("how")
    policy = Policy(capture=way, skills=({"path": str(skill)},))
    servers = [serving(place / "s") for place in (skill, python_tree / "srv", project)]
    try:
        with Sandbox(project, policy=policy) as sandbox:
            run = sandbox.run(["python3", "-c", CONNECTS], root=python_tree)
            look = "cat /skills/tools/SKILL.md; echo x > /skills/tools/new; ls /workspace"
            listed = sandbox.run(look, root=python_tree)
    finally:
        for server in servers:
            server.close()
        (python_tree / "srv/s").unlink()
    refused = "Connection refused\n" if way == "kernel" else "Operation not permitted\n"
    assert (run.stdout, run.stderr) == (refused * 3, "")
    assert (listed.stdout, "Read-only" in listed.stderr) == ("hows\n", True)
    assert sorted(path.name for path in skill.iterdir()) == ["SKILL.md", "s"]


# Each line tells how a try ended: of reaching the host, then of what programs do in their own directories.
SHARES = """
import os, socket, sys
def tried(name, act):
    try: act(); print(name, "done")
    except OSError as error: print(name, error.strerror)
os.makedirs("a/d"); os.makedirs("b"); open("a/f", "w").close(); open("a/g", "w").close()
tried("connect", lambda: socket.socket(socket.AF_UNIX).connect(sys.argv[1].replace("@", "\\0")))
tried("rename", lambda: os.rename("a/f", "b/f"))
tried("rename of a directory", lambda: os.rename("a/d", "b/d"))
tried("link", lambda: os.link("a/g", "b/g"))
"""
MOVED = ["rename done", "rename of a directory done", "link done"]


def shared_network(way, project, root):
    """What a command that shares the host's network says of a socket there, and of moving files of its own."""
    name = f"\0fumehood-test-{os.getpid()}-{os.urandom(4).hex()}"
    with serving(name), Sandbox(project, policy=Policy(capture=way, network="full")) as sandbox:
        run = sandbox.run(["python3", "-c", SHARES, name.replace("\0", "@")], root=root)
    assert run.stderr == ""
    connected, *moved = run.stdout.splitlines()
    return connected, moved


@pytest.mark.long
@pytest.mark.parametrize("place", ["host", "tree"])
@pytest.mark.parametrize("guarded", [True, False], ids=["guard", "no guard"])
def test_with_the_whole_network_a_command_moves_its_files_and_reaches_no_socket(
    way, place, guarded, project, python_tree, monkeypatch, need
):
    need(confine.can_scope(), "this kernel's Landlock has no scopes")
    if not guarded:
        monkeypatch.setattr(confine, "_guard", b"")
    connected, moved = shared_network(way, project, python_tree if place == "tree" else None)
    assert connected == "connect Operation not permitted"
    assert moved == MOVED


def test_what_is_masked_inside_a_root_stays_hidden_by_every_way(way, home, test_directory):
    project, outside = home / ".claude", test_directory / "outside"
    for path in ("named", "sub/.env", "conf/real", ".credentials.json"):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text("hunter2")
    (project / ".env").symlink_to("conf/real")
    outside.mkdir()
    policy = Policy(capture=way, mask=(str(project / "named"), "sub/.env", ".env"))
    # It can't be moved to where nothing hides it, nor can its place be made to lead elsewhere.
    moves = f"mv sub other; mv conf c; rm -rf sub; ln -s /oldroot{outside} sub; cat named */* .??*; true"
    with Sandbox(project, policy=policy) as sandbox:
        runs = [sandbox.run(moves), sandbox.run("cat named */* .??*; true")]
    assert "hunter2" not in "".join(run.stdout for run in runs)
    assert list(outside.iterdir()) == []
    assert (project / "sub/.env").read_text() == "hunter2"


def test_a_link_that_is_held_does_not_lead_a_mask_outside(home, project, test_directory, known_host):
    outside = test_directory / "outside"
    outside.mkdir()
    (project / "sub").mkdir()
    (project / "sub/.env").write_text("hunter2")
    with Sandbox(project) as sandbox:
        assert sandbox.run(f"rm -r sub; ln -s /oldroot{outside} sub").state == "held"
    with Sandbox(project, policy=Policy(mask=("sub/.env",))) as sandbox:
        assert sandbox.run("readlink sub").stdout == f"/oldroot{outside}\n"
    assert list(outside.iterdir()) == []


PROGRAMS = [path for _, path in bwrap.candidates()]


@pytest.mark.parametrize("program", PROGRAMS, ids=[path.split("/")[-2] for path in PROGRAMS])
@pytest.mark.parametrize("way", ["kernel", "bwrap", "copy"], indirect=True)
def test_with_no_bubblewrap_does_a_link_that_a_command_left_lead_a_mount_outside(
    program, way, home, project, test_directory, monkeypatch
):
    """CVE-2026-87766: while one before 0.12 makes mount points, /oldroot is the host, and a link leads there."""
    monkeypatch.setenv("FUMEHOOD_BWRAP", program)
    here = host(places().cache, places().state)
    if way == "bwrap" and here.bwrap.version < bwrap.OVERLAY_SINCE:
        pytest.skip(f"{program} is too old to mount overlays")
    need(way in here.captures, f"{program} can't capture by {way}: {here.refusal(way)}")
    outside = test_directory / "outside"
    outside.mkdir()
    (project / "sub/deep").mkdir(parents=True)
    (project / "sub/deep/.env").write_text("hunter2")
    leave = f"ln -s /oldroot{outside} $x; ln -s /oldroot{outside}/file $x-file"
    lines = f"for x in /tmp/deep ~/deep ~/playground/deep; do {leave}; done; rm -r sub; x=sub; {leave}"
    with Sandbox(project, policy=Policy(capture=way, tmp="project")) as sandbox:
        assert sandbox.run(lines).state == "held"
    policy = Policy(capture=way, tmp="project", mask=("sub/deep/.env", "sub-file", "sub/.env"))
    with Sandbox(project, policy=policy, session="links") as sandbox:
        assert sandbox.run("readlink sub").stdout == f"/oldroot{outside}\n"
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("way", ["kernel", "bwrap", "copy"], indirect=True)
def test_a_link_that_is_left_in_kept_scratch_does_not_lead_another_profiles_scratch_outside(
    way, home, project, test_directory
):
    outside, cache = test_directory / "outside", home / "cache"
    outside.mkdir()
    (cache / "sub/inner").mkdir(parents=True)
    one = Profile(match=("touch",), scratch=(str(cache),))
    both = Profile(match=("cat",), scratch=(str(cache), f"{cache}/sub/inner"))
    with Sandbox(project, policy=Policy(capture=way, profiles=(one, both))) as sandbox:
        sandbox.run(f"touch x; rm -rf {cache}/sub; ln -s /oldroot{outside} {cache}/sub")
        assert sandbox.run(f"cat x; echo x > {cache}/sub/inner/y").exit_code == 0
    assert list(outside.iterdir()) == []
