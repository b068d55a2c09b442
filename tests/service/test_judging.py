"""The judge on real commands: everyday work is not held, what the host would execute by itself is."""

import shutil
import subprocess
import sys
import zipfile

import pytest

from snapshots import snapshot

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

GIT = "git -c user.name=ada -c user.email=ada@example.org"
# Debian's own, which everybody may run: the test's interpreter may lie in somebody's home.
PYTHON = next((path for path in ("/usr/bin/python3", sys.executable) if shutil.which(path)), sys.executable)


def verdicts(run):
    return {change.path: (change.verdict, change.flags) for change in run.changes if change.verdict != "applied"}


def fates(run):
    return {change.path: change.verdict for change in run.changes}


@pytest.mark.parametrize(
    "line",
    [
        "git init -q .",
        f"git init -q . && echo x > a && git add a && {GIT} commit -qm one && git checkout -qb other",
        f"git init -q one && cd one && echo x > a && git add a && {GIT} commit -qm 1 && cd .. && git clone -q one two",
        f"git init -q one && cd one && {GIT} commit -q --allow-empty -m one && git worktree add -q ../two",
        f"{PYTHON} -m venv --without-pip env",
        "cd $(mkdir -p node_modules/.bin node_modules/x/.husky && echo node_modules) && echo x > x/.husky/pre-commit",
    ],
)
def test_everyday_work_is_not_held(sandbox, line):
    run = sandbox.run(line)
    assert run.exit_code == 0, run.output
    assert run.state == "applied", verdicts(run)


def test_a_commit_in_a_repository_that_was_there_is_not_held(sandbox, project):
    subprocess.run(["git", "init", "-q", "."], cwd=project, check=True)
    assert sandbox.run("git config user.name ada").state == "applied"
    assert sandbox.run(f"echo x > a; git add a; {GIT} commit -qm one").state == "applied"


@pytest.mark.parametrize(
    ("line", "path", "flag"),
    [
        ("echo x > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit", ".git/hooks/pre-commit", "git-hook"),
        ("git config core.fsmonitor ./evil", ".git/config", "git-config"),
        ("git config filter.x.clean ./evil", ".git/config", "git-config"),
        ("git remote add origin https://example.org/x.git", ".git/config", "git-config"),
        ("echo 'URL: https://example.org/x.git' > .git/remotes/origin", ".git/remotes/origin", "git-remote"),
        ("echo '* filter=x' > .git/info/attributes", ".git/info/attributes", ""),
        ("mkdir .husky; echo x > .husky/pre-push", ".husky/pre-push", ""),
        ("echo x > .envrc", ".envrc", ""),
        ("mkdir .vscode; echo '{}' > .vscode/tasks.json", ".vscode/tasks.json", ""),
        ("mkdir .claude; echo '{}' > .claude/settings.json", ".claude/settings.json", ""),
        ("echo '{}' > .mcp.json", ".mcp.json", ""),
        ("cp /bin/true t; chmod u+s t", "t", "setuid"),
        ("ln -s /etc/passwd out", "out", "outside-link"),
        ("mkdir a; ln -s ../../x a/out", "a/out", "outside-link"),
    ],
)
def test_what_the_host_would_execute_by_itself_is_held(sandbox, project, line, path, flag):
    subprocess.run(["git", "init", "-q", "."], cwd=project, check=True)
    (project / ".git/remotes").mkdir()
    before = (project / path).read_bytes() if (project / path).is_file() else None
    run = sandbox.run(f"{line}; echo ordinary > ordinary.txt")
    assert run.state == "held"
    (change,) = [change for change in run.changes if change.path == path]
    assert change.verdict == "held"
    assert change.reason
    assert not flag or change.flags == (flag,)
    now = (project / path).read_bytes() if (project / path).is_file() else None
    assert now == before
    assert not (project / path).is_symlink()
    assert (project / "ordinary.txt").read_text() == "ordinary\n"


def test_a_person_may_apply_what_was_held(sandbox, project):
    run = sandbox.run("echo 'use flake' > .envrc")
    assert run.state == "held"
    assert sandbox.apply(run).state == "applied"
    assert (project / ".envrc").read_text() == "use flake\n"
    sandbox.undo(run)
    assert not (project / ".envrc").exists()


def test_what_runs_when_a_person_builds_is_applied_and_flagged(sandbox, project):
    run = sandbox.run("echo all: > Makefile; echo '{}' > package.json; echo x > notes.txt")
    assert run.state == "applied"
    flags = {change.path: bool(change.flags) for change in run.changes}
    assert flags == {"Makefile": True, "notes.txt": False, "package.json": True}


def test_a_directory_in_which_everything_is_held_is_not_left_as_a_shell(sandbox, project):
    run = sandbox.run("mkdir -p .vscode/deep; echo '{}' > .vscode/deep/tasks.json; mkdir empty")
    assert run.state == "held"
    assert not (project / ".vscode").exists()
    assert (project / "empty").is_dir()


def test_what_is_moved_to_where_it_waits_stays_where_it_is(sandbox, project):
    (project / "docs/old").mkdir(parents=True)
    for name in ("docs/a", "docs/old/b", "script", "other"):
        (project / name).write_text(f"the person's {name}")
    before = snapshot(project)
    run = sandbox.run("mv docs .vscode; mv script .envrc; rm other")
    assert fates(run) == {
        **dict.fromkeys((".envrc", ".vscode", ".vscode/a", ".vscode/old", ".vscode/old/b"), "held"),
        **dict.fromkeys(("docs", "docs/a", "docs/old", "docs/old/b", "script"), "held"), "other": "applied",
    }  # fmt: skip
    assert {change.path: change.reason for change in run.changes}["script"] == "it was moved to .envrc, which is held"
    sandbox.discard(run)
    assert snapshot(project) == {path: what for path, what in before.items() if path != "other"}


def test_what_an_installer_gave_one_time_was_not_moved(sandbox, project):
    subprocess.run(["touch", "-d", "@499162500", "package"], cwd=project, check=True)
    run = sandbox.run("rm package; touch -d @499162500 .envrc")
    assert {change.path: change.verdict for change in run.changes} == {"package": "applied", ".envrc": "held"}


def test_what_is_moved_to_a_place_that_a_person_took_meanwhile_stays_where_it_is(sandbox, project):
    (project / "mine").write_text("valuable")
    (project / "taken").write_text("old")
    (project / "go").write_text("")

    def edit(_stream, _text):
        (project / "taken").write_text("the person's")
        (project / "go").write_text("on")

    run = sandbox.run("mv mine taken; echo moved; until [ -s go ]; do sleep 0.01; done", on_output=edit)
    assert fates(run) == {"mine": "held", "taken": "conflict"}
    assert (project / "mine").read_text() == "valuable"
    assert (project / "taken").read_text() == "the person's"
    sandbox.apply(run, force=True)
    assert not (project / "mine").exists()
    assert (project / "taken").read_text() == "valuable"


def test_a_persons_own_globs_add_to_ours(project, home):
    from fumehood import Policy, Sandbox
    from fumehood.core.policy import Rules

    with Sandbox(project, Policy(rules=Rules(hold=("*.sql",), flag=("deploy/",)))) as sandbox:
        run = sandbox.run("echo x > a.sql; mkdir deploy; echo x > deploy/run; echo x > b")
    found = {change.path: (change.verdict, change.flags) for change in run.changes}
    assert found["a.sql"][0] == "held"
    assert found["deploy/run"] == ("applied", ("own-rule",))
    assert found["b"] == ("applied", ())


def wheel(folder, version, function):
    """A package in pure Python with a program, as an index would have it."""
    path, about = folder / f"thing-{version}-py3-none-any.whl", f"thing-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("thing.py", f"def {function}():\n    print('thing {version}')\n")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: thing\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/entry_points.txt", f"[console_scripts]\nthing = thing:{function}\n")
        archive.writestr(f"{about}/RECORD", "")
    return path.name


def test_a_virtual_environment_that_is_made_anew_is_not_held(sandbox, project):
    made = f"{PYTHON} -m venv --without-pip .venv"
    for line in (made, made, f"rm -r .venv && {made}"):
        run = sandbox.run(line)
        assert (run.exit_code, run.state) == (0, "applied" if run.changes else "empty"), (line, verdicts(run))
    subprocess.run([project / ".venv/bin/python3", "-c", "pass"], check=True)


@pytest.mark.installs
def test_a_day_with_a_virtual_environment_is_not_held(sandbox, project, need):
    has_pip = subprocess.run([PYTHON, "-c", "import ensurepip"], check=False).returncode == 0
    need(has_pip, "python has no ensurepip")
    first, second = wheel(project, "1", "main"), wheel(project, "2", "other")
    for line in (
        f"{PYTHON} -m venv .venv",
        f".venv/bin/pip install -q --no-index ./{first}",
        f".venv/bin/pip install -q --no-index -U ./{second} && .venv/bin/thing",
        ".venv/bin/pip uninstall -q -y thing",
        f"{PYTHON} -m venv .venv",
        f"rm -r .venv && {PYTHON} -m venv .venv && .venv/bin/pip install -q --no-index ./{second}",
    ):
        run = sandbox.run(line, env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
        assert run.exit_code == 0, run.output
        assert run.state == "applied", (line, verdicts(run))
    ran = subprocess.run([project / ".venv/bin/thing"], capture_output=True, text=True, check=True)
    assert ran.stdout == "thing 2\n"


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("echo ': > mark' >> .venv/bin/activate", ".venv/bin/activate"),
        ("rm .venv/bin/python3; printf '#!/bin/sh\\n: > mark\\n' > .venv/bin/python3; chmod +x .venv/bin/python3",
         ".venv/bin/python3"),
        ("mv .venv other; echo ': > mark' >> other/bin/activate; rm other/pyvenv.cfg; mv other .venv",
         ".venv/bin/activate"),
        ("mv .venv other; echo ': > mark' >> other/bin/activate; ln -s other .venv", ".venv"),
        ("mv .venv/bin other; echo ': > mark' >> other/activate; ln -s ../other .venv/bin", ".venv/bin"),
        ("mkdir new; cp -r .venv/. new; rm -r .venv; echo ': > mark' >> new/bin/activate; mv new .venv",
         ".venv/bin/activate"),
    ],
)  # fmt: skip
def test_a_program_of_a_virtual_environment_is_not_replaced_unseen(sandbox, project, line, path):
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", ".venv"], cwd=project, check=True)
    run = sandbox.run(line)
    assert {change.path: change.verdict for change in run.changes}[path] == "held"
    subprocess.run(["sh", "-c", ". .venv/bin/activate && .venv/bin/python3 -c pass"], cwd=project, check=True)
    assert not (project / "mark").exists()


SCRIPT = "printf '#!/bin/sh\\n: > mark\\n' > {0}; chmod +x {0}"


@pytest.mark.parametrize("folder", [".venv", "env"])
@pytest.mark.parametrize(
    ("lines", "path"),
    [
        ((f"mkdir -p E/bin; echo home = /usr/bin > E/pyvenv.cfg; {SCRIPT.format('E/bin/python')}",), "bin/python"),
        (("mkdir -p E/bin; echo home = /usr/bin > E/pyvenv.cfg; ln -s /usr/bin/python3 E/bin/python3",
          SCRIPT.format("E/bin/python")), "bin/python"),
        ((f"mkdir -p E/bin; {SCRIPT.format('E/bin/python3.12')}", "echo home = /usr/bin > E/pyvenv.cfg"), "pyvenv.cfg"),
        ((f"mkdir -p E/bin; {SCRIPT.format('evil')}; ln -s ../../evil E/bin/python",
          "echo home = /usr/bin > E/pyvenv.cfg"), "pyvenv.cfg"),
        ((f"mkdir -p E evil; {SCRIPT.format('evil/python')}; ln -s ../evil E/bin",
          "echo home = /usr/bin > E/pyvenv.cfg"), "pyvenv.cfg"),
        ((f"mkdir -p E evil; {SCRIPT.format('evil/python')}; ln -s ../evil E/bin; touch E/pyvenv.cfg",), "bin"),
        (("mkdir -p E/bin; ln -s /usr/bin/python3 E/bin/python3; echo home = $PWD/evil > E/pyvenv.cfg",), "pyvenv.cfg"),
        ((f"mkdir -p E; {PYTHON} -m venv --without-pip --copies E",), "bin/python"),
    ],
)  # fmt: skip
def test_an_environment_that_an_earlier_run_removed_is_not_made_anew_with_another_python(
    sandbox, project, folder, lines, path
):
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", folder], cwd=project, check=True)
    assert sandbox.run(f"rm -rf {folder}").state == "applied"
    for line in lines:
        run = sandbox.run(line.replace("E/", f"{folder}/").replace(" E", f" {folder}"))
        assert run.exit_code == 0, run.output
    held = {change.path for change in run.changes if change.verdict == "held"}
    # An editor takes a directory of the usual name for an environment, whatever else is in it: there, the Python waits.
    assert f"{folder}/{path}" in held or (folder == ".venv" and len(lines) > 1)
    if folder == ".venv" or (project / folder / "pyvenv.cfg").exists():
        for python in (project / folder).glob("bin/python*"):
            subprocess.run([python, "-c", "pass"], cwd=project, check=True)
    assert not (project / "mark").exists()


@pytest.mark.installs
@pytest.mark.parametrize("tool", ["python3 -m venv", "virtualenv", "uv venv"])
def test_an_environment_is_made_moved_and_removed_by_every_tool_without_a_person(sandbox, project, home, tool):
    subprocess.run([PYTHON, "-m", "venv", ".tools"], cwd=project, check=True)
    if tool != "python3 -m venv":
        line = [".tools/bin/pip", "install", "-q", "--disable-pip-version-check", tool.split()[0]]
        subprocess.run(line, cwd=project, check=True)
    made = f".tools/bin/{tool}" if tool != "python3 -m venv" else f"{PYTHON} -m venv"
    for line in (
        f"{made} .venv", f"{made} --clear .venv", "mv .venv env", "rm -r env", f"{made} .venv",
        f"rm -r .venv && {made} .venv", "rm -r .venv",
    ):  # fmt: skip
        run = sandbox.run(line)
        assert run.exit_code == 0, run.output
        assert run.state in ("applied", "empty"), (line, verdicts(run))


def test_a_link_that_was_held_may_be_changed_again(sandbox, project):
    assert sandbox.run("ln -s /etc/passwd out").state == "held"
    assert sandbox.run("ln -sfn /etc/group out").state == "held"


def test_settings_of_a_linter_are_held_only_when_they_load_something_new(sandbox, project):
    (project / "setup.cfg").write_text("[flake8]\nmax-line-length = 100\n")
    assert sandbox.run("sed -i s/100/120/ setup.cfg").state == "applied"
    run = sandbox.run("printf '[flake8:local-plugins]\\nextension =\\n  X = evil:P\\n' >> setup.cfg")
    assert verdicts(run) == {"setup.cfg": ("held", ("linter-settings",))}


@pytest.fixture
def environment(project):
    """A virtual environment of the person's, which is not active."""
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", ".venv"], cwd=project, check=True)
    return project / ".venv"


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("mkdir ~/playground/bin; cp /bin/true ~/playground/bin/python3; ln -sfn $PLACE/bin/python3 .venv/bin/python3",
         ".venv/bin/python3"),
        ("sed -i \"s#^home = .*#home = $PLACE/bin#\" .venv/pyvenv.cfg", ".venv/pyvenv.cfg"),
        ("echo home = $PLACE/bin > .venv/bin/pyvenv.cfg", ".venv/bin/pyvenv.cfg"),
        ("printf '#!/bin/sh\\n: > mark\\n' > .venv/bin/ls; chmod +x .venv/bin/ls", ".venv/bin/ls"),
        ("printf '#!/bin/sh\\n: > mark\\n' > evil; chmod +x evil; ln -s ../../evil .venv/bin/ls", ".venv/bin/ls"),
    ],
)  # fmt: skip
def test_a_virtual_environment_is_not_taken_over_from_beside_it(sandbox, project, home, environment, line, path):
    place = home / ".local/share/fumehood/playground"
    run = sandbox.run(line, env={"PLACE": str(place)})
    assert run.exit_code == 0, run.output
    assert {change.path: change.verdict for change in run.changes}[path] == "held"
    subprocess.run(["sh", "-c", ". .venv/bin/activate; ls; .venv/bin/python3 -c pass"], cwd=project, check=True)
    assert not (project / "mark").exists()


def test_what_packages_bring_into_an_environment_is_held_by_its_name_only_where_that_is_another_program(
    sandbox, home, environment, monkeypatch, test_directory
):
    person, tools = test_directory / "tools/bin", test_directory / "python-tools/bin"
    for folder, names in ((person, ("node", "gh", "mypy")), (tools, ("ruff",))):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
    (tools.parent / "pyvenv.cfg").touch()
    monkeypatch.setenv("PATH", f"{person}:{tools}:/usr/bin:/bin")
    script = f"#!{environment}/bin/python3\nimport sys\nfrom mypy import main\nsys.exit(main())\n"
    line = 'cd .venv/bin; for each in node gh ruff other; do echo binary > $each; done; printf %s "$SCRIPT" > mypy'
    run = sandbox.run(line, env={"SCRIPT": script})
    answers = {change.path.rpartition("/")[2]: (change.verdict, change.flags) for change in run.changes}
    assert answers["gh"] == ("held", ("environment-program",))
    assert answers["node"] == ("applied", ("environment-program",))
    assert {answers[name] for name in ("mypy", "ruff", "other")} == {("applied", ())}
    sandbox.discard(run)
    package = "cd .venv; mkdir -p lib/gh.dist-info; echo x > lib/gh.dist-info/RECORD"
    run = sandbox.run(f"{package}; for each in gh ls; do echo binary > bin/$each; done")
    answers = {change.path.rpartition("/")[2]: change.verdict for change in run.changes}
    assert (answers["gh"], answers["ls"]) == ("applied", "held")  # a package means its commands, but not the system's


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("ln -s data/key pub", "pub"),
        ("ln -s data pub", "pub"),
        ("mkdir a; ln -s ../sub a/b; ln -s a/b/far/key pub", "pub"),
        ("ln -s $PWD/sub/far pub", "pub"),
        ("rm data; mkdir data; echo x > data/.envrc; ln -s data/key pub", "pub"),
    ],
)
def test_a_link_out_of_the_project_through_a_link_of_the_persons_is_held(sandbox, project, line, path):
    (project.parent / "out").mkdir()
    (project.parent / "out/key").write_text("secret")
    (project / "data").symlink_to("../out")
    (project / "sub").mkdir()
    (project / "sub/far").symlink_to("../data")
    run = sandbox.run(line)
    (change,) = [change for change in run.changes if change.path == path]
    assert (change.verdict, change.flags) == ("held", ("outside-link",))
    assert not (project / path).is_symlink()


def test_links_through_links_that_stay_in_the_project_are_not_held(sandbox, project):
    (project / "v2").mkdir()
    (project / "latest").symlink_to("v2")
    (project / "round").symlink_to("round")
    line = "ln -s latest/x a; ln -s a b; ln -s latest c; ln -s c/../d . || true; ln -s round e; mkdir f; ln -s ../f f/g"
    run = sandbox.run(f"{line}; ln -s f/g/g/g h; ln -s nothing/there i")
    assert verdicts(run) == {"d": ("held", ("outside-link",))}, run.output


def test_a_git_directory_gets_no_names_that_git_does_not_write(sandbox, project):
    subprocess.run(["git", "init", "-q", "."], cwd=project, check=True)
    (project / ".git/own").mkdir()
    run = sandbox.run("cd .git; mkdir -p safe/deep lfs; for f in safe/deep/x lazygit.yml own/x; do echo x > $f; done")
    assert verdicts(run).keys() == {".git/safe", ".git/safe/deep", ".git/safe/deep/x", ".git/lazygit.yml"}
    assert not (project / ".git/safe").exists()
    assert (project / ".git/own/x").exists()
    assert sandbox.apply(run).state == "applied"
    assert (project / ".git/safe/deep/x").exists()
