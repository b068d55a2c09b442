"""Several roots, each with a layer of its own; what may never be one; and git work trees, whose repository is one."""

import os
import shutil
import subprocess

import pytest

from fumehood import BadRequest, Policy, Sandbox, UndoRefused
from fumehood.service.opened import OpenedStore
from fumehood.service.roots import git_directory
from snapshots import heard, snapshot, told

IS_ROOT = os.geteuid() == 0
sandboxed = pytest.mark.namespaces


@pytest.fixture
def store(home):
    store = OpenedStore()
    yield store
    store.close()


@pytest.fixture
def add_root(store, project):
    def add(path):
        return store.projects.add_root(store.projects.open(str(project)), str(path))

    return add


@pytest.fixture
def second(test_directory):
    second = test_directory / "second"
    second.mkdir()
    return second


# --- several roots ---


@sandboxed
def test_without_a_root_of_its_own_another_directory_can_not_be_written(sandbox, project, second):
    run = sandbox.run(f"echo x > {second}/f; echo y > f")
    assert "Read-only file system" in run.stderr
    assert {change.path for change in run.changes} == {"f"}
    assert os.listdir(second) == []


@sandboxed
def test_a_root_that_is_gone_is_named_with_what_to_do(project, second, add_root):
    add_root(second)
    with Sandbox(project) as sandbox:
        run = sandbox.run(f"echo 1 > a; echo 2 > {second}/b")
        held = sandbox.run(f"echo 3 > c; echo 4 > {second}/d", apply="hold")
        shutil.rmtree(second)
        for act in (lambda: sandbox.run("true"), sandbox.capabilities):
            with pytest.raises(BadRequest, match=f"^{second} is not there any more$") as refused:
                act()
            assert refused.value.hint.endswith(f": fumehood roots remove {second}")
        for act in (sandbox.undo, sandbox.apply):
            with pytest.raises(BadRequest, match=f"^{second} is not there any more$"):
                act(run if act == sandbox.undo else held)
        sandbox.apply(held, "c")
        sandbox.undo(run, "a")
    assert os.listdir(project) == ["c"]


@sandboxed
def test_a_draft_in_a_root_that_is_gone_is_not_applied(project, second, add_root):
    add_root(second)
    with Sandbox(project) as sandbox:
        draft = sandbox.draft("line")
        draft.run(f"echo 1 > a; echo 2 > {second}/b")
        second.rename(f"{second}.away")
        with pytest.raises(BadRequest, match=f"^{second} is not there any more$"):
            draft.apply()
        assert os.listdir(project) == []
        os.rename(f"{second}.away", second)
        draft.apply()
    assert (second / "b").read_text() == "2\n"


@sandboxed
def test_a_project_that_is_gone_is_named(sandbox, project):
    run = sandbox.run("echo 1 > a")
    shutil.rmtree(project)
    for act in (lambda: sandbox.undo(run), sandbox.capabilities, lambda: sandbox.run("true")):
        with pytest.raises(BadRequest, match=f"^the project {project} is not there any more$"):
            act()


@sandboxed
def test_what_could_be_a_root_is_named_with_the_line_that_makes_it_one(sandbox, project, second):
    (project / "sub").mkdir()
    for command in (f"touch {second}/f", "touch ../second/f", f"cd /; touch {project}/sub/../../second/f"):
        run = sandbox.run(command)
        assert [each.detail for each in run.blocked] == [f"{second}/f"]
        assert run.blocked[0].hint.endswith(f"to let commands write it: fumehood roots add {second}")
    for command in ("touch /usr/lib/x", "cd /usr; touch x", "touch /var/lib/x", f"touch {second.parent}/f"):
        assert "roots add" not in sandbox.run(command).blocked[0].hint


@sandboxed
def test_a_push_to_a_repository_that_is_only_shown_says_what_allows_it(add_root, project, home):
    remote = home / "far" / "remote.git"
    subprocess.run(["git", "init", "-q", "--bare", remote], check=True)
    address = os.path.relpath(remote, project)
    made = "git init -q; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x; mkdir sub"
    subprocess.run(f"{made}; git remote add far {address}", shell=True, cwd=project, check=True)
    with Sandbox(project, policy=Policy(show=(f"{home}/far",))) as sandbox:
        for cwd, name in ((".", "far"), ("sub", "far"), (".", f"file://{remote}")):
            run = sandbox.run(f"git push {name} HEAD:refs/heads/new", cwd=cwd)
            assert [(each.what, each.detail) for each in run.blocked] == [("write", str(remote))]
            assert run.blocked[0].hint.endswith(f"fumehood roots add {remote}")
        told = sandbox.run(f"touch {remote}/x").blocked
        assert told[0].hint.endswith(f"fumehood roots add {home}/far")
    add_root(remote)
    with Sandbox(project) as sandbox:
        assert sandbox.run("git push far HEAD:refs/heads/new").exit_code == 0


@sandboxed
def test_every_root_has_a_layer_and_its_changes_say_which(add_root, project, second, home):
    add_root(second)
    (project / "both").write_text("first")
    (second / "both").write_text("second")
    before = snapshot(project), snapshot(second)
    with Sandbox(project) as sandbox:
        run = sandbox.run(
            f"echo 1 > both; echo 22 > {second}/both; mkdir {second}/d; echo x > {second}/d/f;"
            f" {told(second)} >&2; {told(project)}"
        )
        left = heard(run.stdout), heard(run.stderr)
        assert {(change.root, change.path) for change in run.changes} == {
            (str(project), "both"), (str(second), "both"), (str(second), "d"), (str(second), "d/f"),
        }  # fmt: skip
        assert os.listdir(home / f".local/state/fumehood/runs/{run.id}") in (["0", "1"], ["1", "0"])
        assert (snapshot(project), snapshot(second)) == left
        back = sandbox.undo(run)
        assert (snapshot(project), snapshot(second)) == before
        sandbox.undo(back)
        assert (snapshot(project), snapshot(second)) == left


@sandboxed
def test_a_root_on_another_file_system_is_applied_and_undone_with_the_others(add_root, project, other_filesystem):
    add_root(other_filesystem)
    (other_filesystem / "old").write_text("old")
    (project / "old").write_text("old")
    before = snapshot(project), snapshot(other_filesystem)
    with Sandbox(project) as sandbox:
        run = sandbox.run(f"echo x > new; rm old; cd {other_filesystem}; rm old; mkdir d; echo y > d/f")
        assert run.state == "applied"
        assert (other_filesystem / "d/f").read_text() == "y\n"
        sandbox.undo(run)
    assert (snapshot(project), snapshot(other_filesystem)) == before


@sandboxed
def test_an_undo_that_one_root_refuses_changes_neither(add_root, project, second):
    add_root(second)
    with Sandbox(project) as sandbox:
        run = sandbox.run(f"echo x > f; echo x > {second}/g")
        (second / "g").write_text("mine")
        before = snapshot(project), snapshot(second)
        with pytest.raises(UndoRefused, match="g"):
            sandbox.undo(run)
        assert (snapshot(project), snapshot(second)) == before


@sandboxed
def test_a_move_from_one_root_to_another_is_undone_in_both(add_root, project, second):
    add_root(second)
    (project / "f").write_text("moved")
    with Sandbox(project) as sandbox:
        run = sandbox.run(f"mv f {second}/f")
        assert (second / "f").read_text() == "moved"
        assert not (project / "f").exists()
        sandbox.undo(run)
    assert (project / "f").read_text() == "moved"
    assert os.listdir(second) == []


@sandboxed
def test_a_root_that_was_taken_back_is_read_only_again_and_its_runs_can_be_undone(add_root, store, project, second):
    known = add_root(second)
    with Sandbox(project) as sandbox:
        run = sandbox.run(f"echo x > {second}/f")
    store.projects.remove_root(known, str(second))
    with Sandbox(project) as sandbox:
        assert "Read-only" in sandbox.run(f"echo y > {second}/f").stderr
        sandbox.undo(run)
    assert os.listdir(second) == []


@sandboxed
@pytest.mark.parametrize("name", ["a,b", "a:b", "a\\b", "a b", "new\nline", "é", "'\"$x", "-rf", os.fsdecode(b"\xff")])
def test_a_root_and_a_project_may_have_any_name(home, test_directory, name):
    project, second = test_directory / "p" / name, test_directory / "r" / name
    project.mkdir(parents=True)
    second.mkdir(parents=True)
    store = OpenedStore()
    store.projects.add_root(store.projects.open(str(project)), str(second))
    store.close()
    with Sandbox(project) as sandbox:
        run = sandbox.run(["sh", "-c", 'echo x > f; echo y > "$1/g"', "sh", str(second)])
        assert run.state == "applied", run.output
        assert ((project / "f").read_text(), (second / "g").read_text()) == ("x\n", "y\n")
        sandbox.undo(run)
    assert os.listdir(project) == os.listdir(second) == []


# --- what may never be a root, or a project ---


def test_the_whole_system_the_home_and_system_directories_are_refused(add_root, store, home):
    system = ["/", "/etc", "/usr", "/home", "/var", "/var/tmp", "/tmp", "/root", "/dev", "/proc"]
    for path in (str(home), str(home.parent), *system):
        with pytest.raises(BadRequest, match="can't be a root") as refusal:
            add_root(path)
        assert refusal.value.hint
        with pytest.raises(BadRequest, match="can't be a project"):
            store.projects.open(path)
    assert store.projects.project_around(str(home)) == str(home)


def test_our_own_directories_are_refused(add_root, home):
    for path in (".local/state/fumehood", ".local/state/fumehood/runs", ".local/state", ".local/share", ".cache"):
        place = home / path
        place.mkdir(parents=True, exist_ok=True)
    for path in (".local/state/fumehood", ".local/state/fumehood/runs", ".local/state", ".local", ".local/share"):
        with pytest.raises(BadRequest, match="keeps its own records") as refusal:
            add_root(home / path)
        assert refusal.value.hint


def test_what_lies_in_a_root_or_holds_one_is_refused(add_root, project, second):
    (project / "inside").mkdir()
    (second / "inside").mkdir()
    for path in (project, project / "inside"):
        with pytest.raises(BadRequest, match="writable already"):
            add_root(path)
    with pytest.raises(BadRequest, match="can't be a root: it holds"):
        add_root(project.parent)
    add_root(second)
    with pytest.raises(BadRequest, match="writable already"):
        add_root(second / "inside")


def test_a_symlink_is_taken_for_what_it_leads_to(add_root, project, second, home):
    (project / "way").symlink_to(second)
    (project / "home").symlink_to(home)
    assert add_root(project / "way").extra == (str(second),)
    with pytest.raises(BadRequest, match="whole home"):
        add_root(project / "home")


def test_what_is_no_directory_is_refused(add_root, project):
    (project / "file").write_text("x")
    reasons = {project / "file": "is not a directory", project / "nowhere": "does not exist", "": "is not a directory"}
    for path, why in reasons.items():
        with pytest.raises(BadRequest, match=why):
            add_root(path)


@pytest.mark.skipif(IS_ROOT, reason="root can enter every directory")
@sandboxed
def test_a_directory_that_can_not_be_entered_is_refused(add_root, second):
    second.chmod(0)
    with pytest.raises(BadRequest, match="can't be entered"):
        add_root(second)
    second.chmod(0o700)


def test_a_refusal_leaves_the_roots_as_they_are(add_root, store, project, second):
    add_root(second)
    with pytest.raises(BadRequest):
        add_root("/etc")
    with pytest.raises(BadRequest, match="is not a root"):
        store.projects.remove_root(store.projects.open(str(project)), "/etc")
    assert store.projects.open(str(project)).extra == (str(second),)


def test_adding_a_root_twice_says_that_it_is_there(add_root, second):
    add_root(second)
    with pytest.raises(BadRequest, match="writable already"):
        add_root(second)


# --- git work trees ---


def git(cwd, *arguments):
    environment = {
        "PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "GIT_CONFIG_NOSYSTEM": "1",
        # Or git refreshes its index when it is only asked, and that is no longer what the run left.
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    }  # fmt: skip
    command = ["git", "-c", "init.defaultBranch=main", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def repository(home, test_directory):
    repository = test_directory / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    (repository / "file").write_text("first\n")
    git(repository, "add", "file")
    git(repository, "commit", "-q", "-m", "first")
    return repository


@pytest.fixture
def worktree(repository, test_directory):
    git(repository, "worktree", "add", "-q", "-b", "branch", str(test_directory / "worktree"))
    return test_directory / "worktree"


def test_the_repository_of_a_work_tree_is_found_without_running_git(worktree, repository, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert git_directory(str(worktree)) == str(repository / ".git")


def test_the_repository_of_a_bare_clones_work_tree_is_found(repository, test_directory):
    git(test_directory, "clone", "-q", "--bare", str(repository), "bare.git")
    git(test_directory / "bare.git", "worktree", "add", "-q", str(test_directory / "tree"), "main")
    assert git_directory(str(test_directory / "tree")) == str(test_directory / "bare.git")


def test_a_repository_that_lies_in_the_project_is_none(repository, project):
    assert git_directory(str(repository)) is None
    assert git_directory(str(project)) is None


def forge_pointer(worktree, evil):
    (worktree / ".git").write_text(f"gitdir: {evil}\n")


def forge_with_a_way_back(worktree, evil):
    forge_pointer(worktree, evil)
    (evil / "gitdir").write_text("/somewhere/else/.git\n")
    (evil / "commondir").write_text("../..\n")


def forge_the_common_directory(worktree, evil):
    forge_pointer(worktree, evil)
    (evil / "gitdir").write_text(f"{worktree}/.git\n")
    (evil / "commondir").write_text(f"{evil.parent.parent}/victim\n")


def forge_by_symlink(worktree, evil):
    (worktree / ".git").unlink()
    (worktree / ".git").symlink_to(evil)


def forge_by_fifo(worktree, evil):
    (worktree / ".git").unlink()
    os.mkfifo(worktree / ".git")


def forge_nonsense(worktree, evil):
    (worktree / ".git").write_bytes(b"\xff\0gitdir: /\n" * 1000)


@pytest.mark.parametrize(
    "forge",
    [forge_pointer, forge_with_a_way_back, forge_the_common_directory, forge_by_symlink, forge_by_fifo, forge_nonsense],
    ids=lambda forge: forge.__name__.replace("_", " "),
)
def test_a_forged_git_file_is_not_believed(worktree, test_directory, forge):
    evil = test_directory / "evil/worktrees/x"
    evil.mkdir(parents=True)
    victim = test_directory / "evil/victim"
    for directory in (evil.parent.parent, victim):
        directory.mkdir(exist_ok=True)
        (directory / "HEAD").write_text("ref: refs/heads/main\n")
        (directory / "objects").mkdir()
        (directory / "refs").mkdir()
    forge(worktree, evil)
    assert git_directory(str(worktree)) is None


@sandboxed
def test_a_commit_in_a_work_tree_works_once_its_repository_is_a_root_and_can_be_undone(worktree, repository):
    (worktree / "file").write_text("second\n")
    commit = "git -c user.name=a -c user.email=a@b commit -q -a -m second"
    with Sandbox(worktree) as sandbox:
        refused = sandbox.run(commit)
        assert refused.exit_code != 0
        assert "Read-only file system" in refused.stderr
        assert not refused.changes
    store = OpenedStore()
    store.projects.add_root(store.projects.open(str(worktree)), git_directory(str(worktree)))
    store.close()
    before = snapshot(worktree), snapshot(repository / ".git")
    with Sandbox(worktree) as sandbox:
        run = sandbox.run(f"{commit} && git log --format=%s")
        assert (run.exit_code, run.stdout) == (0, "second\nfirst\n"), run.output
        assert {change.verdict for change in run.changes} == {"applied"}
        assert git(worktree, "log", "--format=%s") == "second\nfirst"
        assert git(worktree, "status", "--porcelain") == ""
        assert git(repository, "fsck", "--strict") == ""
        sandbox.undo(run)
        assert git(worktree, "log", "--format=%s") == "first"
    assert snapshot(worktree) == before[0]
    assert snapshot(repository / ".git") == before[1]


@sandboxed
def test_a_failed_commit_in_a_work_tree_is_told_which_root_is_missing(test_directory, home):
    main, tree = test_directory / "main", test_directory / "tree"
    subprocess.run(["git", "init", "-q", main], check=True)
    git = ["git", "-C", main, "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", tree], check=True)
    with Sandbox(tree) as sandbox:
        run = sandbox.run("git -c user.name=a -c user.email=a@b.c commit -q --allow-empty -m two")
        assert run.exit_code != 0
        (blocked,) = run.blocked
        assert blocked.detail == str(main / ".git")
        assert "fumehood roots add" in blocked.hint
        assert sandbox.run("true").blocked == ()


@sandboxed
def test_a_command_that_ended_well_is_offered_the_repository_that_git_named(worktree, repository):
    with Sandbox(worktree) as sandbox:
        (blocked,) = sandbox.run("git add .; git log --oneline").blocked
    assert blocked.hint.endswith(f"fumehood roots add {repository}/.git")


@sandboxed
def test_a_failure_that_has_nothing_to_do_with_git_is_told_nothing_of_the_repository(worktree):
    with Sandbox(worktree) as sandbox:
        assert sandbox.run("echo wrong >&2; false").blocked == ()


@sandboxed
def test_git_in_a_work_tree_is_offered_a_repository_that_is_out_of_sight(home):
    repository, worktree = home / "src/repository", home / "src/worktree"
    repository.mkdir(parents=True)
    git(repository, "init", "-q")
    git(repository, "commit", "-q", "--allow-empty", "-m", "first")
    git(repository, "worktree", "add", "-q", str(worktree))
    with Sandbox(worktree) as sandbox:
        (blocked,) = sandbox.run("git status").blocked
        assert blocked.hint.endswith(f"fumehood roots add {repository}/.git")
        assert sandbox.run("cd /usr && git status").blocked == ()


@sandboxed
def test_a_work_tree_that_is_out_of_sight_is_not_pruned(home):
    repository, worktree, removed = (home / "src" / name for name in ("repository", "worktree", "removed"))
    repository.mkdir(parents=True)
    git(repository, "init", "-q")
    git(repository, "commit", "-q", "--allow-empty", "-m", "first")
    git(repository, "worktree", "add", "-q", "--detach", str(worktree))
    git(repository, "worktree", "add", "-q", "--detach", str(removed))
    git(worktree, "commit", "-q", "--allow-empty", "-m", "on no branch")
    shutil.rmtree(removed)
    with Sandbox(repository) as sandbox:
        run = sandbox.run("git worktree prune; git reflog expire --expire=now --all; git gc -q --prune=now")
        (kept,) = (each for each in run.changes if each.path == ".git/worktrees/worktree/gitdir")
        assert (kept.verdict, str(worktree) in kept.reason) == ("discarded", True)
        assert git(worktree, "log", "--format=%s") == "on no branch\nfirst"
        git(repository, "fsck", "--strict")
        draft = sandbox.draft("idea")
        draft.run("git worktree prune; echo x > new")
        assert [change.path for change in draft.apply().changes] == ["new"]
        git(repository, "worktree", "remove", str(worktree))
        assert sandbox.run("git worktree prune").state == "applied"
    assert not (repository / ".git/worktrees").exists()


@sandboxed
def test_a_repository_out_of_sight_that_a_variable_names_is_offered_too(home, project, monkeypatch):
    repository = home / "project.git"
    git(home, "init", "-q", "--bare", str(repository))
    monkeypatch.setenv("GIT_DIR", str(repository))
    monkeypatch.setenv("GIT_WORK_TREE", str(project))
    with Sandbox(project) as sandbox:
        (blocked,) = sandbox.run("git status").blocked
        assert blocked.hint.endswith(f"fumehood roots add {repository}")
        (blocked,) = sandbox.run("git status; touch /etc/x; true").blocked
        assert blocked.detail == str(repository)
        (blocked,) = sandbox.run("touch /etc/x").blocked
        assert blocked.detail == "/etc/x"
    store = OpenedStore()
    store.projects.add_root(store.projects.open(str(project)), str(repository))
    store.close()
    with Sandbox(project) as sandbox:
        run = sandbox.run("git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one && git log --format=%s")
        assert (run.stdout, run.blocked) == ("one\n", ()), run.output
