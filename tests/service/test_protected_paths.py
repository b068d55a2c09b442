"""What leads the host into a project is found as the host finds it: every payload below left a mark before it was."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood import Run, Sandbox

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

PAYLOAD = "#!/bin/sh\necho run >> '{marker}'\ncat 2>/dev/null\nexit 0\n"
COMMIT = ("commit", "-qam", "next")


class Ground:
    """A repository of the person's, and what they do in it after the run."""

    def __init__(self, project: Path, home: Path) -> None:
        self.project = project
        self.marker = home / "marker"
        self.git("init", "-q", "-b", "main", ".")
        self.write("file", "one\n")
        self.git("add", ".")
        self.git("commit", "-qm", "first")

    def git(self, *words: str, at: Path | None = None, check: bool = True) -> str:
        """Run the person's git."""
        names = ("-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "protocol.file.allow=always")
        done = subprocess.run(
            ["git", *names, *words], cwd=at or self.project, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        """Leave a file as the person would."""
        place = self.project / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)
        return place

    def payload(self, path: str) -> str:
        """Return the line by which a command leaves its program."""
        text = PAYLOAD.format(marker=self.marker)
        return f"mkdir -p \"$(dirname '{path}')\"; cat > '{path}' <<'END'\n{text}END\nchmod 755 '{path}'"

    def harmless(self, path: str) -> None:
        """Leave a program of the person's own, which does nothing."""
        self.write(path, "#!/bin/sh\ncat 2>/dev/null\nexit 0\n", 0o755)


@pytest.fixture
def ground(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return Ground(project, home)


# Each sets the ground, and returns the path of the payload and what the person does then.
Case = Callable[[Ground, pytest.MonkeyPatch], tuple[str, Callable[[], object]]]
CASES: list[Case] = []


def case(made: Case) -> Case:
    CASES.append(made)
    return made


def _commits(ground: Ground, at: Path | None = None) -> Callable[[], object]:
    def act() -> None:
        ((at or ground.project) / "file").write_text("two\n")
        ground.git(*COMMIT, at=at, check=False)

    return act


@case
def a_hook_that_is_a_link(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Callable[[], object]]:
    ground.harmless("tools/check.sh")
    (ground.project / ".git/hooks").mkdir(exist_ok=True)
    (ground.project / ".git/hooks/pre-commit").symlink_to("../../tools/check.sh")
    return "tools/check.sh", _commits(ground)


@case
def a_directory_of_hooks_that_is_a_link(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    subprocess.run(["rm", "-rf", ground.project / ".git/hooks"], check=True)
    (ground.project / ".git/hooks").symlink_to("../my")
    return "my/pre-commit", _commits(ground)


@case
def hooks_through_a_link(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    ground.write("real/hooks/readme", "x")
    (ground.project / "linked").symlink_to("real")
    ground.git("config", "core.hooksPath", "linked/hooks")
    return "real/hooks/pre-commit", _commits(ground)


@case
def hooks_with_dots(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    ground.write("a/b/readme", "x")
    ground.git("config", "core.hooksPath", "a/b/../../checks")
    return "checks/pre-commit", _commits(ground)


@case
def hooks_from_a_nested_include(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    elsewhere = ground.marker.parent / "settings"
    elsewhere.mkdir()
    (elsewhere / "one").write_text("[include]\n\tpath = two\n")
    (elsewhere / "two").write_text("[core]\n\thooksPath = checks\n")
    ground.git("config", "include.path", str(elsewhere / "one"))
    return "checks/pre-commit", _commits(ground)


@case
def hooks_from_a_condition(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    (ground.marker.parent / "work").write_text("[core]\n\thooksPath = checks\n")
    (ground.marker.parent / ".gitconfig").write_text('[includeIf "onbranch:other"]\n\tpath = work\n')

    def act() -> None:
        ground.git("checkout", "-q", "-B", "other")
        _commits(ground)()

    return "checks/pre-commit", act


@case
def an_included_file_of_the_project(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    ground.write("team.cfg", "[user]\n\tname = x\n")
    (ground.project / "cfg").symlink_to("team.cfg")
    ground.git("config", "include.path", "../cfg")
    return "team.cfg", lambda: None


@case
def settings_of_a_work_tree(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    ground.git("config", "extensions.worktreeConfig", "true")
    ground.git("config", "--worktree", "core.hooksPath", "checks")
    return "checks/pre-commit", _commits(ground)


@case
def a_repository_around_the_project(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    subprocess.run(["rm", "-rf", ground.project / ".git"], check=True)
    above = ground.project.parent
    ground.git("init", "-q", "-b", "main", ".", at=above)
    ground.git("add", str(ground.project), at=above)
    ground.git("commit", "-qm", "first", at=above)
    ground.git("config", "core.hooksPath", f"{ground.project.name}/checks", at=above)
    return "checks/pre-commit", _commits(ground)


@case
def a_repository_in_the_project(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    inner = ground.project / "vendor/lib"
    ground.git("clone", "-q", str(ground.project), str(inner))
    ground.git("config", "core.hooksPath", "checks", at=inner)
    return "vendor/lib/checks/pre-commit", _commits(ground, inner)


@case
def a_repository_in_the_project_that_leads_out_of_itself(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    inner = ground.project / "vendor/lib"
    ground.git("clone", "-q", str(ground.project), str(inner))
    ground.git("config", "core.hooksPath", "../../checks", at=inner)
    return "checks/pre-commit", _commits(ground, inner)


@case
def a_submodule(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    other = ground.marker.parent / "other"
    ground.git("clone", "-q", str(ground.project), str(other))
    ground.git("submodule", "-q", "add", str(other), "sub")
    ground.git("commit", "-qm", "sub")
    ground.git("config", "core.hooksPath", "checks", at=ground.project / "sub")
    return "sub/checks/pre-commit", _commits(ground, ground.project / "sub")


@case
def the_persons_configuration_elsewhere(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    config = ground.marker.parent / "xdg/git"
    config.mkdir(parents=True)
    (config / "config").write_text("[core]\n\thooksPath = checks\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config.parent))
    return "checks/pre-commit", _commits(ground)


@case
def the_persons_configuration_by_variable(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    (ground.marker.parent / "mine").write_text("[core]\n\thooksPath = checks\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(ground.marker.parent / "mine"))
    return "checks/pre-commit", _commits(ground)


@case
def the_systems_configuration(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    (ground.marker.parent / "system").write_text("[core]\n\thooksPath = checks\n")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(ground.marker.parent / "system"))
    return "checks/pre-commit", _commits(ground)


@case
def settings_in_the_environment(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    for name, value in (("COUNT", "1"), ("KEY_0", "core.hooksPath"), ("VALUE_0", "checks")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    return "checks/pre-commit", _commits(ground)


def _filter(line: str, path: str) -> Case:
    def made(ground: Ground, monkeypatch: pytest.MonkeyPatch):
        if path.endswith(".py"):
            ground.write(path, "")
        else:
            ground.harmless(path)
        ground.write(".gitattributes", "file filter=x\n")
        ground.git("config", "filter.x.clean", line)
        return path, lambda: (ground.write("file", "two\n"), ground.git("add", "file", check=False))

    made.__name__ = f"a filter: {line}"
    return made


for _line, _path in (
    ('sh -c "cd tools; ./x"', "tools/x"),
    ("sh -c 'cd tools && cd more && sh x'", "tools/more/x"),
    ("sh tools/x %f", "tools/x"),
    ("sh -c 'for each in tools/*; do sh $each; done'", "tools/x"),
    ('sh "$(git rev-parse --show-toplevel)/tools/x"', "tools/x"),
    ("sh $PWD/tools/x", "tools/x"),
    ("env -i PATH=/usr/bin:/bin sh x", "x"),
):
    CASES.append(_filter(_line, _path))


@case
def a_filter_by_the_name_of_a_module(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    ground.write("cleaning/__init__.py", "")
    ground.write("cleaning/__main__.py", "")
    ground.write(".gitattributes", "file filter=x\n")
    ground.git("config", "filter.x.clean", "python3 -m cleaning %f")
    return "cleaning/__main__.py", lambda: (ground.write("file", "two\n"), ground.git("add", "file", check=False))


@case
def a_helper_for_credentials(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    ground.harmless("tools/cred.sh")
    ground.git("config", "credential.helper", "!f() { ./tools/cred.sh; }; f")
    return "tools/cred.sh", lambda: subprocess.run(
        ["git", "credential", "fill"], cwd=ground.project, input=b"protocol=https\nhost=x\n\n", check=False,
        env={**os.environ, "GIT_ASKPASS": "true"}, capture_output=True,
    )  # fmt: skip


@case
def an_editor(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    ground.harmless("tools/edit")
    ground.git("config", "core.editor", "tools/edit")
    return "tools/edit", lambda: (ground.write("file", "two\n"), ground.git("commit", "-a", check=False))


@case
def a_script_that_a_hook_runs(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    ground.harmless("tools/lint")
    ground.write(".git/hooks/pre-commit", "#!/bin/sh\n# checks\nexec ./tools/lint --all\n", 0o755)
    return "tools/lint", _commits(ground)


@case
def the_main_repository_of_a_work_tree(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    main = ground.marker.parent / "main"
    subprocess.run(["rm", "-rf", ground.project / ".git"], check=True)
    subprocess.run(["rm", "-rf", ground.project / "file"], check=True)
    main.mkdir()
    other = Ground(main, ground.marker.parent)
    other.git("worktree", "add", "-q", "-b", "side", str(ground.project))
    other.git("config", "core.hooksPath", "checks")
    return "checks/pre-commit", _commits(ground)


@pytest.mark.long
@pytest.mark.parametrize("made", CASES, ids=lambda made: made.__name__.replace(" ", "-"))
def test_what_git_on_the_host_runs_is_held(
    sandbox: Sandbox, ground: Ground, made: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, act = made(ground, monkeypatch)
    line = ground.payload(path)
    if path.endswith(".py"):
        line = f"echo \"open('{ground.marker}', 'a').write('x')\" > {path}"
    elif path == "team.cfg":
        line = "printf '[core]\\n\\tpager = ./x\\n' >> team.cfg"
    run = sandbox.run(line)
    assert run.exit_code == 0, run.output
    act()
    assert not ground.marker.exists()
    assert verdict(run, path) == "held"
    act_after = made.__name__ != "an_included_file_of_the_project"
    sandbox.apply(run)  # a person let it through: so the test can fail
    act()
    assert ground.marker.exists() or not act_after


def verdict(run: Run, path: str) -> str:
    return next(change.verdict for change in run.changes if change.path == path)


@pytest.mark.parametrize(
    ("begin", "state", "text"),
    [
        (("rebase", "main"), "rebase-merge/strategy", "x/p\n"),
        (("cherry-pick", "main~1", "main"), "sequencer/opts", "[options]\n\tstrategy = x/p\n"),
    ],
)
def test_a_strategy_that_is_a_program_is_held(
    sandbox: Sandbox, ground: Ground, begin: tuple[str, ...], state: str, text: str
) -> None:
    ground.git("checkout", "-q", "-b", "side")
    for branch in ("side", "main"):
        ground.git("checkout", "-q", branch)
        for word in ("one", "two"):
            ground.write("file", f"{branch} {word}\n")
            ground.git("commit", "-qam", word)
    ground.git("checkout", "-q", "side")
    ground.git(*begin, check=False)

    def act() -> None:
        ground.write("file", "solved\n")
        ground.git("add", "file")
        ground.git("-c", "core.editor=true", begin[0], "--continue", check=False)

    run = sandbox.run(f"{ground.payload('git-merge-x/p')}; printf '{text}' >> .git/{state}")
    assert verdict(run, f".git/{state}") == "held"
    sandbox.apply(run)
    act()
    assert ground.marker.exists()


@pytest.mark.parametrize("strategy", ["ours", "ort", "octopus"])
def test_a_rebase_with_a_strategy_of_gits_own_is_not_held(sandbox: Sandbox, ground: Ground, strategy: str) -> None:
    ground.git("checkout", "-q", "-b", "side")
    ground.write("other", "x\n")
    ground.git("add", ".")
    ground.git("commit", "-qm", "side")
    names = "-c user.name=ada -c user.email=a@b -c sequence.editor=true"
    run = sandbox.run(f"git {names} rebase -i -s {strategy} --exec false main; test -d .git/rebase-merge")
    assert [change.path for change in run.changes if change.verdict != "applied"] in (
        [], [".git/rebase-merge/git-rebase-todo"]
    )  # fmt: skip


LINKS = [
    (".claude", "cfg/claude", "cfg/claude/settings.json"),
    (".envrc", "env/dev", "env/dev"),
    ("sub/.vscode", "../cfg/vs", "cfg/vs/tasks.json"),
    (".vscode/tasks.json", "../cfg/tasks.json", "cfg/tasks.json"),
    (".husky", "missing/yet", "missing/yet/pre-commit"),
    (".mcp.json", "a/../b/mcp", "b/mcp"),
]


@pytest.mark.parametrize(("link", "target", "path"), LINKS)
def test_what_a_link_with_a_protected_name_leads_to_is_held(
    sandbox: Sandbox, project: Path, link: str, target: str, path: str
) -> None:
    (project / "a").mkdir()
    (project / link).parent.mkdir(parents=True, exist_ok=True)
    (project / link).symlink_to(target)
    run = sandbox.run(f"mkdir -p $(dirname {path}); echo x > {path}; echo x > other")
    assert (verdict(run, path), verdict(run, "other")) == ("held", "applied")
    assert link.rpartition("/")[2] in next(change.reason for change in run.changes if change.path == path)


NAMED = [
    (".envrc", "source_env ./env/dev\n", "env/dev"),
    (".husky/pre-commit", "npx lint-staged\n./scripts/check --all\n", "scripts/check"),
    (".mcp.json", '{"mcpServers": {"x": {"command": "node", "args": ["./mcp/server.js"]}}}', "mcp/server.js"),
    (".mcp.json", '{"mcpServers": {"x": {"command": "python3", "args": ["-m", "tools.server"]}}}', "tools/server.py"),
    (
        ".claude/settings.json",
        '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "$CLAUDE_PROJECT_DIR/scripts/hook.sh x"}]}]}}',
        "scripts/hook.sh",
    ),
    (".codex/config.toml", '[mcp_servers.x]\ncommand = "sh"\nargs = ["serve.sh"]\n', "serve.sh"),
]


@pytest.mark.parametrize(("settings", "text", "path"), NAMED)
def test_what_settings_of_the_persons_run_by_themselves_is_held(
    sandbox: Sandbox, project: Path, settings: str, text: str, path: str
) -> None:
    (project / settings).parent.mkdir(exist_ok=True)
    (project / settings).write_text(text)
    files = f"{path} src/app.js check dev"
    run = sandbox.run(f"mkdir -p src $(dirname {path}); for each in {files}; do echo x > $each; done")
    held = [change.path for change in run.changes if change.verdict == "held" and change.kind == "file"]
    assert held == [path]


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        (".bashrc", "bashrc", "bashrc"),
        (".config/nvim", "nvim", "nvim/init.lua"),
        (".config/git/config", "git/config", "git/config"),
        (".claude/settings.json", "claude.json", "claude.json"),
    ],
)
def test_what_a_link_of_the_home_leads_to_is_held(
    sandbox: Sandbox, ground: Ground, link: str, target: str, path: str
) -> None:
    place = ground.marker.parent / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(ground.project / target)
    run = sandbox.run(f"mkdir -p $(dirname {path}); echo x > {path}; echo x > other")
    assert (verdict(run, path), verdict(run, "other")) == ("held", "applied")


def test_a_link_of_the_home_to_the_project_itself_holds_nothing(sandbox: Sandbox, ground: Ground) -> None:
    (ground.marker.parent / ".project").symlink_to(ground.project)
    (ground.marker.parent / ".above").symlink_to(ground.project.parent)
    assert sandbox.run("mkdir -p src; echo x > src/a; echo x > b").state == "applied"


def test_a_link_in_place_of_a_directory_that_git_runs_from_is_held(sandbox: Sandbox, ground: Ground) -> None:
    ground.harmless("tools/hooks/pre-commit")
    ground.git("config", "core.hooksPath", "tools/hooks")
    line = f"{ground.payload('evil/hooks/pre-commit')}; mv tools away; ln -s evil tools"
    run = sandbox.run(line)
    _commits(ground)()
    assert not ground.marker.exists()
    assert verdict(run, "tools") == "held"


def test_a_new_repository_with_the_persons_own_directory_of_hooks_is_held(sandbox: Sandbox, ground: Ground) -> None:
    (ground.marker.parent / ".gitconfig").write_text("[core]\n\thooksPath = checks\n")
    run = sandbox.run(f"git init -q new; {ground.payload('new/checks/pre-commit')}")
    assert verdict(run, "new/checks/pre-commit") == "held"
    assert verdict(run, "new/.git/HEAD") == "applied"
    subprocess.run(["rm", "-rf", ground.project / ".git"], check=True)
    run = sandbox.run(f"git init -q .; {ground.payload('checks/pre-commit')}")
    assert verdict(run, "checks/pre-commit") == "held"


@pytest.mark.parametrize("line", ["chmod 777 .git", "chmod g+w .git/config", "chmod o+w .git/hooks", "chmod 777 ."])
def test_opening_the_repository_to_others_is_held(sandbox: Sandbox, ground: Ground, line: str) -> None:
    (ground.project / ".git/hooks").mkdir(exist_ok=True)
    run = sandbox.run(line)
    assert [change.verdict for change in run.changes] == ["held"]
    assert (ground.project / ".git").stat().st_mode & 0o002 == 0


def test_an_edit_that_nothing_leads_to_is_applied(sandbox: Sandbox, ground: Ground) -> None:
    (ground.marker.parent / ".gitconfig").write_text(
        '[core]\n\teditor = code --wait\n[filter "lfs"]\n\tclean = git-lfs clean -- %f\n'
        "[credential]\n\thelper = store\n[alias]\n\tst = status src\n"
    )
    run = sandbox.run("mkdir code src; for each in code/x src/status clean store status; do echo x > $each; done")
    assert run.state == "applied", [change for change in run.changes if change.verdict != "applied"]


def test_a_program_that_would_be_run_in_place_of_the_systems_is_held(
    sandbox: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{project}/bin:{os.environ['PATH']}")
    run = sandbox.run("for each in bin/ls bin/our-tool other; do echo x > $each; chmod 755 $each; done")
    assert [change.path for change in run.changes if change.verdict == "held"] == ["bin/ls"]


def held_of(sandbox: Sandbox, *programs: str) -> list[str]:
    """Return which of some new programs are held."""
    names = " ".join(programs)
    run = sandbox.run(f"for each in {names}; do mkdir -p ${{each%/*}}; echo x > $each; chmod 755 $each; done")
    assert run.exit_code == 0, run.output
    return [change.path for change in run.changes if change.verdict == "held" and change.kind == "file"]


@pytest.mark.parametrize("entry", ["./bin", "bin", "{project}/bin", "{project}/link"])
def test_a_directory_of_path_counts_however_it_is_written(
    sandbox: Sandbox, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    (project / "link").symlink_to("bin")
    own = tmp_path / "person/bin"
    own.mkdir(parents=True)
    (own / "cargo").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{entry.format(project=project)}:{own}:{os.environ['PATH']}")
    programs = ("bin/ls", "bin/python3", "bin/cargo")
    assert held_of(sandbox, *programs, "bin/our-tool", "other/ls") == sorted(programs)


def test_the_top_of_the_project_may_be_on_path(
    sandbox: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f":{os.environ['PATH']}")
    assert held_of(sandbox, "./ls", "./our-tool", "sub/ls") == ["ls"]


def test_what_is_installed_may_be_on_path_too(
    sandbox: Sandbox, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "person/bin"
    own.mkdir(parents=True)
    for name in ("ruff", "tsc"):
        (own / name).write_text("#!/bin/sh\n")
    subprocess.run(["python3", "-m", "venv", "--without-pip", project / "tools"], check=True)
    entries = ("./node_modules/.bin", f"{project}/tools/bin", f"{project}/.venv/bin")
    monkeypatch.setenv("PATH", ":".join((*entries, str(own), os.environ["PATH"])))
    packages = "node_modules/.bin"
    assert held_of(sandbox, f"{packages}/tsc", f"{packages}/ls", "tools/bin/ruff") == [f"{packages}/ls"]
    assert sandbox.run("python3 -m venv --without-pip .venv").state == "applied"  # none was there: it is made anew


def test_what_a_program_before_it_on_path_wins_over_is_free(
    sandbox: Sandbox, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "person/bin"
    own.mkdir(parents=True)
    (own / "cargo").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{own}:{os.environ['PATH']}:{project}/bin:")
    assert held_of(sandbox, "./sort", "./test", "bin/cargo", "bin/ls") == []
    monkeypatch.setenv("PATH", f"{own}:{project}/tools:{os.environ['PATH']}")
    assert held_of(sandbox, "tools/cargo", "tools/ls") == ["tools/ls"]


def test_an_environment_of_any_name_may_be_made_where_path_expects_it(
    sandbox: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{project}/env/bin:{os.environ['PATH']}")
    assert sandbox.run("python3 -m venv --without-pip env").state == "applied"
