"""What a command writes to a file reaches every name of it, or the report says which it does not."""

import os
import subprocess

import pytest

from fumehood import Policy, Sandbox
from snapshots import snapshot

pytestmark = [pytest.mark.namespaces, pytest.mark.once]


@pytest.fixture
def project(project_on_either):
    return project_on_either


def on_host(project, script):
    subprocess.run(["sh", "-ec", script], cwd=project, check=True)


def inodes(project, *names):
    return {(project / name).stat().st_ino for name in names}


def flags(run):
    return {change.path: change.flags for change in run.changes if change.flags}


def in_backups(store):
    found = set()
    for directory, _, files in os.walk(store.places.state):
        found |= {os.lstat(os.path.join(directory, name)).st_ino for name in files}
    return found


WRITTEN = {
    "appended to": ("echo more >> d/a", "old\nmore\n"),
    "written anew in place": ("echo new > d/a", "new\n"),
    "beside others": ("echo new > d/a; echo x > top; chmod 600 single", "new\n"),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_all_names_of_a_file_get_what_was_written_by_one_and_an_undo_brings_them_back_as_one(
    sandbox, store, project, written
):
    on_host(project, "mkdir -p d e/f; echo old > d/a; ln d/a d/b; ln d/a e/f/c; ln d/a here; echo s > single")
    on_host(project, "chmod 500 e")
    names = ("d/a", "d/b", "e/f/c", "here")
    before = snapshot(project)
    command, content = WRITTEN[written]
    run = sandbox.run(command)
    assert run.state == "applied"
    assert {change.path for change in run.changes if change.path in names} == set(names)
    assert flags(run) == {}
    assert {(project / name).read_text() for name in names} == {content}
    assert len(inodes(project, *names)) == 1
    after = snapshot(project)
    if project.stat().st_dev == os.stat(store.places.state).st_dev:
        assert inodes(project, *names).isdisjoint(in_backups(store))
    back = sandbox.undo(run)
    assert snapshot(project) == before
    assert len(inodes(project, *names)) == 1
    sandbox.undo(back)
    assert snapshot(project) == after


def test_a_mode_is_a_files_and_so_every_names(sandbox, project):
    on_host(project, "echo old > a; ln a b; chmod 644 a")
    run = sandbox.run("chmod 600 a")
    assert {(project / name).stat().st_mode & 0o777 for name in "ab"} == {0o600}
    assert len(inodes(project, "a", "b")) == 1
    sandbox.undo(run)
    assert {(project / name).stat().st_mode & 0o777 for name in "ab"} == {0o644}


FLAGGED = {
    "replaced": ("sed -i s/old/new/ a", {"a": ("other-names:2",)}),
    "replaced by hand": ("echo new > t; mv t a", {"a": ("other-names:2",)}),
    "another changed too": ("echo one > a; echo two > b", {"a": ("other-names:1",), "b": ("other-names:1",)}),
    "another deleted": ("echo one > a; rm b", {"a": ("other-names:1",)}),
    "all changed": ("echo one > a; echo two > b; echo three > d/c", {}),
}


@pytest.mark.parametrize("how", FLAGGED)
def test_a_name_that_keeps_the_old_content_is_counted(sandbox, project, how):
    on_host(project, "mkdir d; echo old > a; ln a b; ln a d/c")
    before = snapshot(project)
    command, expected = FLAGGED[how]
    run = sandbox.run(command)
    assert run.state == "applied"
    assert flags(run) == expected
    if expected and "b" not in expected and "rm b" not in command:
        assert [(project / name).read_text() for name in ("a", "b", "d/c")] == ["new\n", "old\n", "old\n"]
        assert "2 other names of this file keep the old content" in run.for_model()
    sandbox.undo(run)
    assert snapshot(project).keys() == before.keys()
    assert {(project / name).read_text() for name in ("a", "b", "d/c")} == {"old\n"}


def test_a_name_outside_of_the_project_is_counted(sandbox, project):
    (project.parent / "outside").write_text("old\n")
    os.link(project.parent / "outside", project / "a")
    run = sandbox.run("echo new > a")
    assert flags(run) == {"a": ("other-names:1",)}
    assert (project.parent / "outside").read_text() == "old\n"
    assert (project / "a").read_text() == "new\n"


def test_what_is_held_is_held_for_all_names_and_later_commands_see_it_by_each(sandbox, project):
    on_host(project, "mkdir d; echo old > a; ln a d/b")
    run = sandbox.run("echo new > a", apply="hold")
    assert {change.path for change in run.changes} == {"a", "d/b"}
    assert sandbox.run("cat a d/b; stat -c %a d").stdout.splitlines()[:2] == ["new", "new"]
    assert sandbox.run("stat -c %a d").stdout.strip() == f"{(project / 'd').stat().st_mode & 0o777:o}"
    sandbox.apply(run)
    assert (project / "d/b").read_text() == "new\n"
    assert len(inodes(project, "a", "d/b")) == 1


@pytest.mark.long
@pytest.mark.parametrize("directory", [".", "d"])
def test_whatever_captures_the_writes_every_name_has_them_and_a_replacement_has_one(home, project, way, directory):
    a, r = (os.path.normpath(f"{directory}/{name}") for name in "ar")
    on_host(project, f"mkdir d e; echo old | tee {a} > {r}; ln {a} e/b; ln {r} e/s")
    with Sandbox(project, policy=Policy(capture=way)) as sandbox:
        run = sandbox.run(f"echo new > {a}")
        replaced = sandbox.run(f"sed -i s/old/new/ {r}")
    assert {(project / name).read_text() for name in (a, r, "e/b")} == {"new\n"}
    assert {change.path for change in run.changes} == {a, "e/b"}
    assert len(inodes(project, a, "e/b")) == 1
    assert flags(run) == {}
    assert (project / "e/s").read_text() == "old\n"
    assert flags(replaced) == {r: ("other-names:1",)}


def test_names_in_the_project_get_what_was_written_and_one_outside_is_counted(home, project, way):
    on_host(project, "mkdir d e; echo old > d/a; ln d/a e/b; ln d/a ../outside")
    with Sandbox(project, policy=Policy(capture=way)) as sandbox:
        run = sandbox.run("echo new > d/a")
        assert flags(run) == {"d/a": ("other-names:1",), "e/b": ("other-names:1",)}
        assert len(inodes(project, "d/a", "e/b")) == 1
        assert (project / "e/b").read_text() == "new\n"
        sandbox.undo(run)
    assert {(project / name).read_text() for name in ("d/a", "e/b", "../outside")} == {"old\n"}
    assert len(inodes(project, "d/a", "e/b")) == 1


def test_a_name_in_another_root_is_counted_by_whichever_it_is_written(store, project):
    other = project.parent / "other"
    other.mkdir()
    on_host(project, f"mkdir d; echo old > d/a; ln d/a d/b; ln d/a {other}/c")
    store.projects.add_root(store.projects.open(str(project)), str(other))
    names = (project / "d/a", project / "d/b", other / "c")
    with Sandbox(project) as sandbox:
        run = sandbox.run("echo new > d/a")
        assert flags(run) == {"d/a": ("other-names:1",), "d/b": ("other-names:1",)}
        assert [name.read_text() for name in names] == ["new\n", "new\n", "old\n"]
        sandbox.undo(run)
        assert {name.read_text() for name in names} == {"old\n"}
        on_host(project, f"ln -f d/a d/b; ln -f d/a {other}/c")
        run = sandbox.run(f"echo new > {other}/c")
        assert [change.flags for change in run.changes] == [("other-names:2",)]
        assert [name.read_text() for name in names] == ["old\n", "old\n", "new\n"]
        sandbox.undo(run)
    assert {name.read_text() for name in names} == {"old\n"}


COPIED = {
    "a link to what stays": ("ln a new", {"new": ("copied-links:1",)}),
    "in a new directory": ("cp -al d n; ln a n/x", {"n": ("copied-links:3",)}),
    "in place of another file": ("ln -f a single", {"single": ("copied-links:1",)}),
    "renamed": ("mv a c", {"c": ("copied-links:1",)}),
    "renamed with its directory": ("mv d e", {"e": ("copied-links:1",)}),
    "a copy": ("cp a c; cp -p single e; rm single", {}),
    "links among what is new": ("echo x > n; ln n m", {}),
}


@pytest.mark.parametrize("how", COPIED)
def test_a_link_to_a_file_that_stays_becomes_a_copy_and_says_so(sandbox, project, how):
    on_host(project, "mkdir d; echo old > a; ln a b; ln a d/c; echo s > d/s; echo single > single")
    before = snapshot(project)
    command, expected = COPIED[how]
    run = sandbox.run(command)
    assert run.state == "applied"
    assert flags(run) == expected
    if expected:
        assert "a hard link became a copy" in run.for_model() or "3 hard links became copies" in run.for_model()
    after = snapshot(project)
    back = sandbox.undo(run)
    assert snapshot(project).keys() == before.keys()
    assert {(project / name).read_text() for name in ("a", "b", "d/c")} == {"old\n"}
    sandbox.undo(back)
    assert snapshot(project).keys() == after.keys()


def test_what_is_folded_has_no_other_names_by_that(sandbox, project):
    on_host(project, "echo old > a")
    sandbox.run("echo held > a", apply="hold")
    for number in range(20):
        sandbox.run(f"echo x > held{number}", apply="hold")
    run = sandbox.run("echo more >> a")
    assert flags(run) == {}


SECOND_NAMES = {
    "a hook that is only touched": ("ln .git/hooks/pre-commit n; touch .git/hooks/pre-commit", ".git/hooks/pre-commit"),
    "an everyday setting": ("git config user.name me; ln .git/config n", ".git/config"),
    "an agent's settings": ("ln .claude/settings.json n; touch .claude/settings.json", ".claude/settings.json"),
}


@pytest.mark.parametrize("how", SECOND_NAMES)
def test_what_the_host_acts_on_gets_no_second_name_unseen(sandbox, project, how):
    on_host(project, "git init -q .; printf '#!/bin/sh\n' > .git/hooks/pre-commit; mkdir .claude")
    on_host(project, "echo {} > .claude/settings.json")
    command, path = SECOND_NAMES[how]
    run = sandbox.run(command)
    verdicts = {change.path: (change.verdict, change.flags) for change in run.changes}
    assert verdicts == {path: ("held", ("other-name",)), "n": ("applied", ())}
    assert len(inodes(project, path, "n")) == 2


def test_names_that_were_there_or_mean_nothing_stay_one_file(sandbox, project):
    on_host(project, "mkdir .claude d; echo x > d/a; echo {} > .claude/settings.json; ln .claude/settings.json d/b")
    run = sandbox.run("touch .claude/settings.json; ln d/a d/c; echo y >> d/a")
    assert run.state == "applied"
    assert [change.path for change in run.changes if change.verdict != "applied"] == []
    assert len(inodes(project, "d/a", "d/c")) == 1
