"""How the host is shown behind the roots: real files, real mounts, real sockets."""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from fumehood import Policy, Sandbox
from fumehood.core.masks import Sight
from fumehood.linux import libc, survey
from fumehood.linux.cache import Snapshot
from fumehood.linux.mounts import HostView, Text, Tmpfs, View
from fumehood.linux.survey import survey_host
from fumehood.service import blocked
from patience import LONG_S, eventually

pytestmark = pytest.mark.namespaces


def looked_over(*hidden: str, home: Path, points: tuple[str, ...] = ()) -> HostView:
    return survey_host(Sight(homes=(str(home),), points=points, hidden=hidden))


def hidden_in(view: HostView) -> set[str]:
    """Every path that is hidden by a view."""
    views = [each for each in view.operations if isinstance(each, View)]
    return {f"{each.target}/{name}" for each in views for name in each.hidden}


def test_a_mask_hides_a_name_that_does_not_exist_yet(home, test_directory):
    hidden = hidden_in(looked_over(f"{home}/.netrc", f"{home}/no/such/file", home=home))
    assert {f"{home}/.netrc", f"{home}/no"} <= hidden


def test_a_mask_hides_what_a_link_leads_to(home, test_directory):
    (test_directory / "keys").mkdir()
    (home / ".ssh").symlink_to(test_directory / "keys")
    (home / "dotfiles").mkdir()
    (home / ".conf").symlink_to("dotfiles")
    hidden = hidden_in(looked_over(f"{home}/.ssh", f"{home}/.conf/gh", home=home))
    assert {str(test_directory / "keys"), f"{home}/.ssh", f"{home}/dotfiles/gh"} <= hidden


def test_a_mount_point_inside_a_mask_is_made_and_the_rest_stays_hidden(home):
    (home / "hidden" / "deep").mkdir(parents=True)
    view = looked_over(f"{home}/hidden", home=home, points=(f"{home}/hidden/deep",))
    assert Tmpfs(target=f"{home}/hidden", is_sealed=True, why="masked") in view.operations


def test_a_look_at_the_host_holds_until_something_it_looked_at_changes(home):
    watched = looked_over(f"{home}/.ssh/id_rsa", home=home).snapshot
    # Others may be at work in the directories above.
    mine = Snapshot(*({path: part[path] for path in part if path.startswith(str(home))} for part in watched.parts))
    assert len(mine)
    assert mine.is_current()
    (home / ".ssh").mkdir()
    assert not mine.is_current()


def test_nothing_is_made_on_the_host(sandbox, home, project):
    before = sorted(path for path in home.rglob("*") if "fumehood" not in str(path))
    sandbox.run("true")
    assert sorted(path for path in home.rglob("*") if "fumehood" not in str(path)) == before


def test_masked_things_are_absent_and_others_are_there(home, project):
    for name in (".ssh/id_rsa", ".netrc", ".config/gh/hosts.yml", ".config/other"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("x")
    with Sandbox(project, policy=Policy(home="visible")) as sandbox:
        run = sandbox.run(f"cd {home} && find . -type f ! -path '*/fumehood/*'")
    assert run.stdout.split() == ["./.config/other"]


def test_a_person_masks_and_unmasks(home, project):
    (home / ".ssh").mkdir()
    for name in (".ssh/known_hosts", ".ssh/id_rsa", "private"):
        (home / name).write_text(name + "\n")
    with Sandbox(project, policy=Policy(mask=("~/private",), unmask=("~/.ssh/known_hosts",))) as sandbox:
        run = sandbox.run(f"cd {home}; cat .ssh/known_hosts; ls -A .ssh; cat private")
    assert run.stdout.split() == [".ssh/known_hosts", "known_hosts"]
    assert run.exit_code != 0


def test_a_file_of_the_project_is_readable_unless_a_person_masks_it(home, project, test_directory):
    (project / ".env").write_text("secret\n")
    (project / "conf").mkdir()
    (project / "conf/keys").mkdir()
    (project / "conf/keys/a").write_text("secret\n")
    (test_directory / "shared").write_text("secret\n")
    (project / "linked").symlink_to(test_directory / "shared")
    look = "cat .env conf/keys/* linked"
    with Sandbox(project) as sandbox:
        assert sandbox.run(look).stdout == "secret\n" * 3
    with Sandbox(project, policy=Policy(mask=(".env", "conf/keys", "linked", "missing"))) as sandbox:
        run = sandbox.run(f"{look}; rm .env; mv .env x; echo own > .env; mv conf moved; cat moved/keys/a; true")
    assert "secret" not in run.stdout
    assert (project / ".env").read_text() == "secret\n"
    assert not run.changes or all(change.path != ".env" for change in run.changes)


def test_the_project_may_lie_inside_a_mask(home):
    project = home / ".config/gh/extension"
    project.mkdir(parents=True)
    (home / ".config/gh/hosts.yml").write_text("token")
    with Sandbox(project) as sandbox:
        run = sandbox.run("echo x > f; ls ..")
    assert run.stdout.split() == ["extension"]
    assert (project / "f").read_text() == "x\n"


def test_the_commands_own_sockets_work_and_the_hosts_do_not(sandbox, project, test_directory):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(test_directory / "host.sock"))
    listener.listen()
    code = (
        "import socket, sys, os\n"
        "for place in ('/tmp/own.sock', 'own.sock', '\\0abstract'):\n"
        "    a = socket.socket(socket.AF_UNIX); a.bind(place); a.listen()\n"
        "    socket.socket(socket.AF_UNIX).connect(place)\n"
        "a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1)\n"
        "a = socket.create_server(('127.0.0.1', 0)); socket.create_connection(a.getsockname())\n"
        "os.unlink('own.sock'); print('own')\n"
        f"socket.socket(socket.AF_UNIX).connect({str(test_directory / 'host.sock')!r})\n"
    )
    run = sandbox.run(["python3", "-c", code])
    listener.close()
    assert run.stdout == "own\n"
    assert "ConnectionRefusedError" in run.stderr


def test_a_command_in_an_ordinary_directory_sees_the_system(sandbox):
    run = sandbox.run("ls /usr/bin/env /etc/passwd && test -w /etc || echo read-only; ls /run /boot | wc -l")
    assert run.stdout.split()[:3] == ["/etc/passwd", "/usr/bin/env", "read-only"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root owns the kernel's settings")
def test_root_can_not_write_the_kernels_settings(sandbox):
    settings = Path("/proc/sys/kernel/core_pattern")
    before = settings.read_text()
    run = sandbox.run(f"echo '|/bin/true' > {settings}")
    assert run.exit_code != 0
    assert settings.read_text() == before


def test_a_second_file_system_is_seen_through_a_view_of_its_own(home, project, other_filesystem):
    if str(other_filesystem).startswith(("/dev/", "/run/", "/tmp/")):
        pytest.skip("the second file system lies where nothing is shown")
    (other_filesystem / "f").write_text("x")
    with Sandbox(project) as sandbox:
        assert sandbox.run(["cat", str(other_filesystem / "f")]).stdout == "x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts anything")
def test_a_mount_that_no_command_sees_is_no_reason_to_look_again(home, project, sandbox):
    def kept() -> list[str]:
        return sorted(name for name in os.listdir(home / ".cache/fumehood") if name.startswith("hostview-"))

    (home / ".ssh").mkdir()
    assert sandbox.run("true").exit_code == 0
    before = kept()
    is_locked = Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]
    for place in (Path("/boot"), *([] if is_locked else [home / ".ssh"])):
        libc.mount(b"none", os.fsencode(place), b"tmpfs", 0, b"mode=755")
        try:
            assert sandbox.run("true").exit_code == 0
        finally:
            libc.umount(os.fsencode(place), libc.MNT_DETACH)
    assert len(before) == 1
    assert kept() == before
    (project.parent / "seen").mkdir()
    libc.mount(b"none", os.fsencode(project.parent / "seen"), b"tmpfs", 0, b"mode=755")
    try:
        (project.parent / "seen/file").write_text("x")
        assert sandbox.run(f"cat {project.parent}/seen/file").stdout == "x"
    finally:
        libc.umount(os.fsencode(project.parent / "seen"), libc.MNT_DETACH)
    assert len(kept()) == 2


def test_strange_names_in_the_home_are_no_trouble(test_directory, monkeypatch, home):
    strange = test_directory / "we,ird:ho\\me"
    (strange / ".ssh").mkdir(parents=True)
    (strange / "proj").mkdir()
    monkeypatch.setenv("HOME", str(strange))
    with Sandbox(strange / "proj") as sandbox:
        run = sandbox.run(["ls", "-A", str(strange)])
    assert set(run.stdout.split()) - {".profile", ".zprofile", "playground"} == {"proj"}, run.stderr


def test_git_still_finds_its_configuration(sandbox, home, project):
    (home / ".gitconfig").write_text("[user]\n\tname = Ada\n")
    assert subprocess.run(["git", "--version"], check=False).returncode == 0
    assert sandbox.run("git config user.name").stdout == "Ada\n"


@pytest.fixture
def dead_mount(test_directory, need):
    """A file system whose server does not answer: whoever asks it anything waits for ever."""
    program = shutil.which("fuse-overlayfs")
    need(program is not None and os.access("/dev/fuse", os.W_OK), "FUSE can't be used here")
    for name in ("lower", "dead"):
        (test_directory / name).mkdir()
    place = test_directory / "dead"
    server = subprocess.Popen([program, "-f", "-o", f"lowerdir={test_directory / 'lower'}", place])
    assert eventually(lambda: os.path.ismount(place))
    server.send_signal(signal.SIGSTOP)
    yield place
    server.send_signal(signal.SIGCONT)
    subprocess.run([shutil.which("fusermount3") or "fusermount", "-u", "-z", place], check=True)
    server.wait(timeout=LONG_S)


def test_a_file_system_that_does_not_answer_holds_nothing_up(sandbox, dead_mount):
    run = sandbox.run(["ls", "-A", str(dead_mount)], timeout=LONG_S)
    assert (run.exit_code, run.stdout) == (0, "")


def test_a_directory_that_went_away_since_the_host_was_looked_over_is_no_trouble(sandbox, home, project):
    assert sandbox.run("true").exit_code == 0
    views = sandbox._hood.surroundings._views
    (sight, (table, view)) = next(iter(views._remembered.items()))
    gone = View(target="/no-such-directory", sources=("/no-such-directory",))
    views._remembered[sight] = table, view.replace(operations=(*view.operations, gone))
    assert sandbox.run("ls -A /no-such-directory").exit_code == 0


def test_the_next_process_finds_what_the_last_one_found_out_while_it_holds(cli, home, project):
    (home / ".config/fumehood").mkdir(parents=True, exist_ok=True)
    (home / ".config/fumehood/config.toml").write_text('home = "visible"\n')
    (home / "notes").write_text("secret")
    assert cli("run", "--", f"cat {home}/notes").stdout == "secret"
    assert cli("run", "--", f"cat {home}/notes").stdout == "secret"
    (home / ".netrc").symlink_to("notes")
    assert "secret" not in cli("run", "--", f"cat {home}/notes").stdout
    (home / ".netrc").unlink()
    assert cli("run", "--", f"cat {home}/notes").stdout == "secret"


SOMEBODY = 61_234


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads for others what is closed to them")
def test_root_reads_for_somebody_only_the_settings_that_are_open_to_them(home, project, test_directory):
    closed = test_directory / "closed"
    closed.mkdir(mode=0o700)
    for name, text in (("names", "[user]\n\tname = of-root\n"), ("npmrc", "registry=https://of-root.example/\n")):
        (closed / name).write_text(text)
        (closed / name).chmod(0o644)
    (closed / "shadow").write_text("of-root\n")
    (closed / "shadow").chmod(0o600)
    # They decide where their settings lead.
    (home / ".gitconfig").write_text(
        f"[include]\n\tpath = {closed}/names\n"
        "[core]\n\texcludesFile = ~/patterns\n\tattributesFile = ~/attributes\n[user]\n\temail = of@theirs.example\n"
    )
    (home / "patterns").symlink_to(closed / "shadow")
    (home / "attributes").symlink_to("/etc/passwd")
    (home / ".npmrc").symlink_to(closed / "npmrc")
    (home / ".gitconfig").chmod(0o600)
    for path in (home, home / ".gitconfig"):
        os.chown(path, SOMEBODY, SOMEBODY)
    sight = Sight(homes=(str(home),), points=(str(project),), hidden=(), is_home_hidden=True, user=SOMEBODY)
    texts = {each.target: each.content for each in survey_host(sight).operations if isinstance(each, Text)}
    shown = {os.path.relpath(target, home): text for target, text in texts.items() if target.startswith(f"{home}/")}
    assert not any(b"of-root" in text for text in shown.values())
    assert b"of@theirs.example" in shown[".gitconfig"]
    assert b"root:" in shown[".config/git/attributes"]


@pytest.fixture
def services(monkeypatch, test_directory):
    """A directory that counts as /etc does: what is made in the real one would have everybody look over the host."""
    place = test_directory / "services"
    place.mkdir()
    for module in (survey, blocked):
        monkeypatch.setattr(module, "SERVICES", (str(place),))
    monkeypatch.setattr(survey, "_SHOWN_TO_ROOT", (str(place / "log"),))
    monkeypatch.setattr(survey, "_DEEPEST", str(place).count("/") + 2)
    return place


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what is closed to everybody else")
def test_what_only_root_may_read_of_services_is_hidden_from_its_commands(services, home, project):
    closed = [services / name for name in ("settings", "a/b/state", "keys/one")]
    shown = [services / name for name in ("open", "of-a-group", "log/closed")]
    for path in (*closed, *shown):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("its text\n")
        path.chmod({"open": 0o644, "of-a-group": 0o640}.get(path.name, 0o600))
    closed[2].parent.chmod(0o700)
    with Sandbox(project) as sandbox:
        run = sandbox.run(f"ls {services}; cat {' '.join(map(str, (*closed, *shown)))}")
        assert run.stdout.split("\n")[:4] == ["a", "log", "of-a-group", "open"]
        assert run.stdout.count("its text") == len(shown)
        assert [each.detail for each in run.blocked] == [str(path) for path in closed]
        assert "only root may read it" in run.blocked[0].hint
        late = services / "a/late"
        late.touch(mode=0o600)
        late.write_text("its text\n")
        assert sandbox.run(f"cat {late}").stdout == "", "one that comes later is noticed"
    with Sandbox(project, policy=Policy(unmask=(str(services),))) as sandbox:
        assert sandbox.run(f"cat {' '.join(map(str, (*closed, late)))}").stdout == "its text\n" * 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what is closed to everybody else")
def test_a_home_among_services_is_in_sight_or_not_as_every_home(services):
    (services / "home").mkdir(mode=0o700)
    (services / "home/notes").touch(mode=0o600)
    view = survey_host(Sight(homes=(str(services / "home"),), points=(), hidden=(), user=0))
    assert str(services / "home/notes") not in hidden_in(view)
    assert not any(each.target == str(services / "home") for each in view.operations if isinstance(each, Tmpfs))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what is closed to everybody else")
def test_a_directory_with_very_many_files_that_only_root_may_read_is_hidden_as_a_whole(services):
    (services / "many").mkdir()
    for number in range(150):
        (services / f"many/{number}").touch(mode=0o600)
    view = survey_host(Sight(homes=("/nonexistent",), points=(str(services / "x"),), hidden=(), user=0))
    assert [path for path in hidden_in(view) if path.startswith(str(services))] == [str(services / "many")]
