"""Which files the host acts on by itself, told from their names, and what the judge of changes is given and answers.

Names are compared in lower case. Thousands of changes share a few directories, so what a directory's own name and those
above it say about the files in it is worked out once (`DirectoryMeaning`).
"""

from __future__ import annotations

from sys import intern

from fumehood.core.changes import Change, DirectorySet, directories_above
from fumehood.core.value import Value, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Reason = tuple[str, str]  # a flag, and the reason in words


class Concern(Value):
    """Why a change is held for a person, or taken over with a flag."""

    held: bool
    reason: str
    flag: str


def hold(flag: str, reason: str) -> Concern:
    """Say that a change waits for a person."""
    return Concern(held=True, reason=reason, flag=flag)


def flag(flag: str, reason: str) -> Concern:
    """Say that a change is taken over, and why a person may want to look."""
    return Concern(held=False, reason=reason, flag=flag)


class ChangeFacts(Value):
    """What was read about one change, only where it was asked for."""

    target: str = ""  # a symlink's text, in its new version
    leads: tuple[str, ...] = ()  # where that leads by links of the roots on its way
    old: bytes | None = None  # the content before, or a link's text; None: there was none, or it could not be read
    new: bytes | None = None  # the content after
    whole: bool = True  # False: a version was longer than what is read
    root: str = ""  # the root's absolute path
    repository_was_there: bool = False  # the git directory that a configuration or a `.git` belongs to is no new one

    @property
    def content(self) -> bytes | None:
        """The content after, or None where it could not be read whole."""
        return self.new if self.whole else None

    @property
    def is_unchanged(self) -> bool:
        """Whether a file was written again with what it already held."""
        return self.whole and self.old is not None and self.old == self.new


# Used when the facts could not be read: then the change is judged by the worst they could be.
UNREAD = ChangeFacts(whole=False, repository_was_there=True)


def became_executable(change: Change) -> bool:
    """Return True if a file can be run that could not be before."""
    before, after = change.before, change.after
    return before is None or after is None or bool(after.mode & ~before.mode & 0o111)


class ProtectedPaths:
    """Single paths and whole directories that something of the person's leads the host to, each with the reason.

    They are found by `linux/ways_in`, and known by the number of their root.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(roots)
        self._paths: dict[tuple[int, str], Reason] = {}
        self._directories: dict[tuple[int, str], Reason] = {}
        self._inside = DirectorySet(self._directories)
        self._leading: dict[tuple[int, str], Reason] = {}  # directories above single paths

    def add(self, path: str, because: Reason, *, whole: bool = False) -> None:
        """Protect an absolute path, if it lies in a root; `whole`, with all that is or will be in it."""
        spot = locate_in_roots(path, self.roots)
        if spot is not None and spot[1]:
            self._paths.setdefault(spot, because)
            for each in directories_above(spot[1]):
                if (spot[0], each) in self._leading:
                    break  # so are those above it
                self._leading[spot[0], each] = because
            if whole:
                self._directories.setdefault(spot, because)

    def why(self, root: int, path: str, *, is_link: bool) -> Reason | None:
        """Return why a path is protected, or None.

        A link put in the place of a directory brings another one's files to all names below it.
        """
        because = self._paths.get((root, path)) or self._directories.get((root, self._inside.nearest(root, path) or ""))
        return because or (self._leading.get((root, path)) if is_link else None)


class OwnSource(Value):
    """What of the roots Fumehood itself loads, by a root's number and the path in it ("" is the root itself).

    `places` are its own with all that is in them. In the directories of `searched`, which Python looks through
    for modules, only modules of the names that stand beside them are: a project may well be on that way.
    """

    places: frozenset[tuple[int, str]]
    searched: tuple[tuple[int, str, frozenset[str]], ...] = ()


class RootFacts(Value):
    """What is known about the roots as a whole; see `danger.survey`.

    `repositories` are directories that are git repositories without being called `.git`, by a root's number and a path
    in it ("" is the root itself). `own` is what Fumehood itself is loaded from, where that lies in the roots.
    `environments` are virtual environments that were there before, `commands` what new programs in them would be run in
    place of, by name. `written` is where commands write besides the roots, and nothing is judged; `aliases` are other
    names of directories above the roots, with the real ones. `linked` are files, by root and inode, that a run gave
    several names.
    """

    roots: tuple[str, ...] = ()
    repositories: frozenset[tuple[int, str]] = frozenset()
    protected: ProtectedPaths | None = None
    own: OwnSource | None = None
    environments: frozenset[tuple[int, str]] = frozenset()
    commands: Mapping[str, str] | None = None
    written: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    linked: frozenset[tuple[int, int]] = frozenset()


# Where a path written by a command leads, told from its text alone.

# Where anybody may leave a program, and what is another file for each process.
WORLD_WRITABLE = ("/tmp/", "/var/tmp/", "/dev/", "/proc/")  # noqa: S108 - as the text of a link has it
_MOST_LINKS, _LONGEST = 40, 32768  # on one way, as the kernel has it; letters of the path where that leads


def link_destination(directory: str, text: str) -> str | None:
    """Return the absolute path that a text names from a real absolute directory, or None if that can't be told.

    After a name, `..` goes up from wherever a link of that name leads, which the text does not say.
    """
    parts = [part for part in text.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    if ".." in parts[ups:]:
        return None
    base = [] if text.startswith("/") else [part for part in directory.split("/") if part]
    return "/" + "/".join(base[: max(len(base) - ups, 0)] + parts[ups:])


def locate_in_roots(place: str, roots: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the number of the root that a path lies in, and the path below it ("" for the root itself)."""
    for number, root in enumerate(roots):
        if root and (place == root or place.startswith(f"{root.rstrip('/')}/")):
            return number, place[len(root) :].strip("/")
    return None


def roots_of(facts: ChangeFacts, ground: RootFacts) -> tuple[str, ...]:
    """Return every root a path may lead into, the change's own first."""
    return (facts.root, *ground.roots)


def directory_of(change: Change, facts: ChangeFacts) -> str:
    """Return the absolute directory that a change lies in."""
    return f"{facts.root}/{change.path.rpartition('/')[0]}"


def real_name_of(place: str, ground: RootFacts) -> str:
    """Return a path as the roots are named, where the person has another name for a directory above them."""
    for name, real in ground.aliases:
        if place == name or place.startswith(f"{name}/"):
            return real + place[len(name) :]
    return place


def follow_links(place: str, link_at: Callable[[tuple[int, str]], str], ground: RootFacts) -> str:
    """Return where a path leads by the links in the roots; what lies outside is not looked at.

    `link_at` tells the text of a link by its root's number and path, or nothing.
    """
    done, names, links = "", place.split("/"), 0
    while names:
        name = names.pop(0)
        if name == "..":
            done = done.rpartition("/")[0]
        elif name not in ("", "."):
            step = f"{done}/{name}"
            spot = locate_in_roots(step, ground.roots)
            target = link_at(spot) if spot is not None and spot[1] else ""
            links += bool(target)
            if links > _MOST_LINKS:
                return place  # no program can follow it
            if len(step) > _LONGEST:
                return "/"
            names = target.split("/") + names if target else names
            done = step if not target else "" if target.startswith("/") else done
    return real_name_of(done, ground)


def is_writable_by_others(place: str, roots: tuple[str, ...], ground: RootFacts) -> bool:
    """Return True if commands or anybody can write a path, or it is not sure where that leads."""
    place = real_name_of(place, ground)
    is_absolute = place.startswith("/") and ".." not in place
    if not is_absolute or place.startswith(WORLD_WRITABLE):
        return True
    return locate_in_roots(place, (*roots, *ground.written)) is not None


# Which names of files the host acts on by itself, and which run when a person builds.

_EDITOR = ("editor-settings", "an editor acts on this as soon as the project is opened")
_AGENT = ("agent-settings", "an agent acts on this as soon as it is started here")
_HOOK = ("git-hook", "git runs this hook by itself where it is set up")
_SHELL = ("shell-settings", "a shell runs this when the directory is entered")
REPOSITORY_SETTINGS = ("repository-settings", "names programs that the version control runs by itself")
_HOOKS = ("hook-manager", "names commands that git hooks run by themselves where their manager is installed")


def _table(*rows: tuple[Reason, str]) -> dict[str, Reason]:
    return {name: because for because, names in rows for name in names.split()}


def _by_parts(*rows: tuple[Reason, str]) -> dict[tuple[str, ...], Reason]:
    return {tuple(path.split("/")): because for path, because in _table(*rows).items()}


HELD_DIRECTORIES = _table(
    (_HOOK, ".husky .githooks .git-hooks"),
    (_SHELL, ".direnv .shadowenv.d .flox"),
    (
        _EDITOR,
        """.vscode .vs .idea .zed .fleet .devcontainer .helix .nova .theia .externaltoolbuilders .vim .nvim .lapce
        .nlsp-settings .obsidian .bsp .lsp .sourcekit-lsp .ropeproject .crossnote .jedi""",
    ),
    (
        _AGENT,
        """.claude .cursor .gemini .codex .windsurf .continue .roo .kilocode .opencode .kiro .amazonq .augment .qwen
        .factory .junie .trae .agents .agent .goose .crush .cline .pi .amp .openhands .rovodev .warp .zencoder .copilot
        .iflow .qoder .codebuddy .commandcode .mux .vibe .kode .neovate .pochi .adal .cortex .kilo .wt""",
    ),
    (_HOOKS, ".lefthook .lefthook-local .trunk"),
)
HELD_NAMES = _table(
    (
        _SHELL,
        """.envrc .rvmrc .autoenv .autoenv.zsh .autoenv_leave.zsh devenv.nix devenv.yaml devenv.lock devenv.local.nix
        devenv.local.yaml activate-hermit activate-hermit.fish hermit.hcl""",
    ),
    (
        _EDITOR,
        """.devcontainer.json .exrc .vimrc .nvimrc .nvim.lua .lvimrc .dir-locals.el .dir-locals-2.el .ycm_extra_conf.py
        .gdbinit .lldbinit .local.vimrc .lazy.lua .neoconf.json coc-settings.json hie.yaml buildserver.json
        rust-analyzer.toml .rust-analyzer.toml omnisharp.json .kateproject .kateproject.local .luacheckrc .lintr
        .lintr.r .rprofile .renviron .rdata rust-project.json .rust-project.json .merlin .lite_project.lua .latexmkrc
        latexmkrc .formatter.exs .credo.exs .php-cs-fixer.php .php-cs-fixer.dist.php .factorypath .mdlrc .tflint.hcl
        .pyre_configuration .pyre_configuration.local""",
    ),
    (
        _AGENT,
        """.mcp.json mcp.json .claude.json .aider.conf.yml .aider.model.settings.yml opencode.json opencode.jsonc
        crush.json .crush.json .roomodes .continuerc.json .kilocodemodes .opencode.json
        kilo.json kilo.jsonc gptme.toml conductor.json .workmux.yaml .workmux.yml""",
    ),
    (REPOSITORY_SETTINGS, "lazygit.yml .lazygit.yml"),
)
# Managers of git hooks, by what their settings are called without a dot, an ending and `local`.
_MANAGERS = words(
    """lefthook pre-commit-config pre-commit-hooks overcommit simple-git-hooks captainhook grumphp prek rusty-hook hkrc
    lintstagedrc huskyrc lint-staged.config husky.config"""
)
_SCRIPTED_MANAGERS = words("simple-git-hooks lintstagedrc huskyrc lint-staged.config husky.config")
_MANAGER_ENDINGS = words("yml yaml toml json jsonc json5 pkl dist local config")
HELD_SUFFIXES = {"code-workspace": _EDITOR, "sublime-project": _EDITOR}
# Files by the end of their path: of other version controls, and where the name alone says too little.
_HELD_ENDS = _by_parts((
    REPOSITORY_SETTINGS,
    """.hg/hgrc .hg/hgrc-not-shared .hg/sharedpath .sl/config .sl/hgrc .sl/sharedpath .git/sl/config .jj/repo
    .jj/repo/config.toml .jj/repo/config-id .jj/workspace-config.toml .jj/workspace-config-id
    .jj/repo/store/git_target _darcs/prefs/defaults _darcs/prefs/prefs""",
), (_SHELL, "bin/hermit"), (_AGENT, ".config/wt.toml"))  # fmt: skip
HELD_END_NAMES = frozenset(end[-1] for end in _HELD_ENDS)
# What agents' directories have in common, whatever the agent is called: names in a directory that begins with a dot.
_AGENT_PARTS = frozenset((
    "hooks", "mcp", "settings", "skills", "agents", "subagents", "commands", "plugins", "plugin", "extensions", "tools",
    "toolboxes", "lsp", "copilot",
))  # fmt: skip
# Directories of tools that write such names by themselves, of sites and of what runs elsewhere.
_NOT_AGENTS = frozenset((
    ".cache", ".expo", ".yarn", ".terraform", ".m2", ".mvn", ".npm", ".gradle", ".build", ".bundle", ".tox", ".nox",
    ".venv", ".astro", ".netlify", ".pulumi", ".vagrant", ".next", ".nuxt", ".vitepress", ".vuepress", ".storybook",
    ".circleci", ".buildkite", ".platform", ".ddev", ".well-known",
))  # fmt: skip

_BUILD = ("build-script", "runs when the project is built or its tools are started")
_PYTHON = ("startup-file", "python runs this at every start that finds it")
_CONTAINER = ("container", "runs when the project's containers are built or started")
_CI = ("ci-workflow", "runs where the project's checks run")
_PACKAGES = ("package-settings", "decides where packages come from and what runs when they are installed")
_TOOLS = ("tool-versions", "decides which tools and variables are in force in this directory")
_VARIABLES = ("variables-file", "sets variables for programs that are started here")
_WORDS = ("agent-instructions", "an agent follows what this says")
_STARTUP = ("startup-file", "a shell or an interpreter that is started here may run this")

_FLAGGED_NAMES = _table(
    (
        _BUILD,
        """makefile gnumakefile bsdmakefile makefile.am makefile.in configure configure.ac cmakelists.txt
        cmakepresets.json meson.build build.ninja sconstruct sconscript wscript build workspace module.bazel build.bazel
        workspace.bazel .bazelrc justfile .justfile taskfile.yml taskfile.yaml magefile.go rakefile gemfile guardfile
        package.json gulpfile.js gruntfile.js setup.py setup.cfg pyproject.toml conftest.py tox.ini noxfile.py dodo.py
        fabfile.py tasks.py pytest.ini manage.py build.rs cargo.toml build.gradle build.gradle.kts settings.gradle
        settings.gradle.kts gradle.properties gradlew gradlew.bat gradle-wrapper.properties gradle-wrapper.jar pom.xml
        mvnw build.xml build.sbt mix.exs rebar.config composer.json package.swift pubspec.yaml flake.nix shell.nix
        default.nix build.zig dune-project stack.yaml directory.build.props directory.build.targets
        nuget.config procfile vagrantfile skaffold.yaml tiltfile earthfile""",
    ),
    (_PYTHON, "sitecustomize.py usercustomize.py"),
    (_CONTAINER, "dockerfile containerfile docker-compose.yml docker-compose.yaml compose.yml compose.yaml"),
    (
        _CI,
        """.gitlab-ci.yml .travis.yml azure-pipelines.yml bitbucket-pipelines.yml .drone.yml .woodpecker.yml
        appveyor.yml .appveyor.yml .cirrus.yml cloudbuild.yaml jenkinsfile .gitpod.yml .replit""",
    ),
    (_PACKAGES, ".npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs pnpm-workspace.yaml bunfig.toml pip.conf .condarc uv.toml"),
    (_TOOLS, ".tool-versions mise.toml .mise.toml mise.local.toml .mise.local.toml .rtx.toml .prototools"),
    (_VARIABLES, ".env .flaskenv"),
    (
        _WORDS,
        """claude.md claude.local.md agents.md agent.md agents.override.md gemini.md qwen.md .cursorrules .windsurfrules
        .clinerules .goosehints copilot-instructions.md warp.md .openhands_instructions .rules""",
    ),
    (
        _STARTUP,
        """.bashrc .bash_profile .bash_login .bash_logout .profile .zshrc .zshenv .zprofile .zlogin .login .cshrc
        .tcshrc .irbrc .pryrc .pdbrc .pythonrc .pythonrc.py .gitconfig .inputrc .ghci .ghcid .ocamlinit .utoprc
        .octaverc .perldb .iex.exs .erlang""",
    ),
)
_FLAGGED_SUFFIXES = _table(
    (_BUILD, "mk mak cmake gemspec csproj vcxproj bzl gradle"), (_CONTAINER, "dockerfile"), (_PYTHON, "pth")
)
_FLAGGED_PREFIXES = _table(
    (_BUILD, "makefile."), (_CONTAINER, "dockerfile. containerfile. docker-compose."), (_CI, "jenkinsfile."),
    (_VARIABLES, ".env."),
)  # fmt: skip
SCRIPT_ENDINGS = frozenset(("js", "cjs", "mjs", "ts", "cts", "mts"))
_FLAGGED_DIRECTORIES = _table(
    (_CI, ".circleci .buildkite .teamcity .woodpecker .semaphore .tekton"),
    (_PACKAGES, ".yarn"),
    (_WORDS, ".clinerules"),
)
# Two names that follow each other, the second perhaps the file itself.
_FLAGGED_PAIRS = _by_parts(
    (_CI, ".github/workflows .github/actions .gitea/workflows .forgejo/workflows .gitlab/ci"),
    (_BUILD, ".cargo/config .cargo/config.toml .mvn/maven.config .mvn/jvm.config .mvn/extensions.xml .mvn/wrapper"),
    (_TOOLS, ".config/mise .config/mise.toml"),
)
# Other people's packages: what a project would act on, nobody acts on in there.
PACKAGE_DIRECTORIES = frozenset(("node_modules", "site-packages", "dist-packages"))

# Branches and objects: files of any name, and none that git acts on.
GIT_DATA_DIRECTORIES = frozenset(("refs", "logs", "objects"))
_IN_REPOSITORIES = frozenset(("hooks", "info", "remotes", "branches", "rebase-merge", "rebase-apply", "sequencer"))
_HFS_IGNORES = "\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u206a\u206b\u206c\u206d\u206e\u206f\ufeff"
_MOST_MEANINGS = 4096
_TELLING = {*HELD_DIRECTORIES, *_FLAGGED_DIRECTORIES, *(name for _, name in _FLAGGED_PAIRS)}

_meanings: dict[str, DirectoryMeaning] = {}


class DirectoryMeaning:
    """One directory: its names in lower case, and what they mean for every file in it."""

    __slots__ = ("above_own", "flagged", "held", "in_git", "is_dull", "is_packaged", "is_store", "parent", "parts")

    def __init__(self, directory: str) -> None:
        self.parts = tuple(map(intern, directory.lower().split("/"))) if directory else ()  # most are the same
        self.parent = self.parts[-1] if self.parts else ""
        # Asked first: of a directory that is a thousand deep, most names mean nothing, or are the same.
        different = set(self.parts)
        git = [at for at, name in enumerate(self.parts) if is_dot_git(name)] if any(map(is_dot_git, different)) else []
        self.in_git = bool(git)
        self.is_dull = len(git) == 1 and not GIT_DATA_DIRECTORIES.isdisjoint(self.parts[git[0] + 1 : git[0] + 2])
        self.is_store = self.parts[-2:-1] == ("objects",)
        self.is_packaged = not PACKAGE_DIRECTORIES.isdisjoint(different)
        self.held = self.flagged = None
        is_telling = not _TELLING.isdisjoint(different) or any(name[:1] == "." for name in different)
        if is_telling and not (self.in_git or self.is_packaged):
            # Where an agent keeps whole work trees, everything counts as in the project itself.
            begin = 0
            for at in range(len(self.parts) - 2):
                if at >= begin and self.parts[at : at + 2] == (".claude", "worktrees"):
                    begin = at + 3
            pairs = list(zip(("", *self.parts[begin:]), self.parts[begin:], strict=False))
            held = (
                HELD_DIRECTORIES.get(name) or (_AGENT if _is_agent_setting(above, name) else None)
                for above, name in pairs
            )
            flagged = (_FLAGGED_DIRECTORIES.get(name) or _FLAGGED_PAIRS.get((above, name)) for above, name in pairs)
            self.held = next(filter(None, held), None)
            self.flagged = next(filter(None, flagged), None)
        names = [] if git or _IN_REPOSITORIES.isdisjoint(different) else directory.split("/")
        own = [at for at, name in enumerate(names) if name.lower() in _IN_REPOSITORIES]
        self.above_own = tuple("/".join(names[:at]) for at in own)


def meaning_of(directory: str) -> DirectoryMeaning:
    """Return what the names of a directory mean, "" for the root's top."""
    meaning = _meanings.get(directory)
    if meaning is None:
        if len(_meanings) >= _MOST_MEANINGS:
            _meanings.clear()
        meaning = _meanings[directory] = DirectoryMeaning(directory)
    return meaning


def split_path(path: str) -> tuple[str, DirectoryMeaning]:
    """Take a path apart: its last name in lower case, and what the directory around it means."""
    directory, _, name = path.rpartition("/")
    return name.lower(), meaning_of(directory)


def is_dot_git(name: str) -> bool:
    """Return True if a name in lower case is `.git`, on the file systems of other systems too."""
    if name == ".git":
        return True
    if name.isascii():
        if "git" not in name:
            return False
    else:
        name = name.translate(dict.fromkeys(map(ord, _HFS_IGNORES)))
    return name.partition(":")[0].rstrip(". ") in (".git", "git~1")


def why_held(name: str, around: DirectoryMeaning) -> Reason | None:
    """Return why a tool acts on a file of this name by itself, or None."""
    if not (around.in_git or around.is_packaged):
        if around.held is not None:
            return around.held
        # A link with a directory's name brings the whole directory.
        because = HELD_NAMES.get(name) or HELD_DIRECTORIES.get(name) or HELD_SUFFIXES.get(name.rpartition(".")[2])
        if because is None and is_hook_manager(name, around.parent):
            because = _HOOKS
        if because is not None or not around.parts:
            return because
        if _is_agent_setting(around.parent, name):
            return _AGENT
    # Editors find theirs beside what git has them edit; branches have names of all kinds.
    elif around.in_git and name in HELD_NAMES and GIT_DATA_DIRECTORIES.isdisjoint(around.parts):
        return HELD_NAMES[name]
    if name not in HELD_END_NAMES:
        return None
    # As with git's settings, who acts on those of other version controls does not ask where they lie.
    ends = ((*around.parts[-length:], name) for length in (1, 2, 3))
    return next((_HELD_ENDS[end] for end in ends if end in _HELD_ENDS), None)


def why_flagged(name: str, around: DirectoryMeaning) -> Reason | None:
    """Return why a file of this name runs when a person builds or starts something, or None."""
    # Python starts with these, wherever they are from.
    if around.in_git or (around.is_packaged and not name.endswith((".pth", "customize.py"))):
        return None
    if not around.is_packaged and (because := around.flagged or _FLAGGED_DIRECTORIES.get(name)) is not None:
        return because
    if (because := _FLAGGED_NAMES.get(name)) is not None:
        return because
    stem, dot, ending = name.rpartition(".")
    if dot:
        because = _FLAGGED_SUFFIXES.get(ending)
        # `vite.config.ts`, `.eslintrc.js` and their kin are programs.
        if ending in SCRIPT_ENDINGS and (stem.endswith(".config") or (stem[:1] == "." and stem.endswith("rc"))):
            because = because or _BUILD
        because = because or _FLAGGED_PREFIXES.get(name[: name.find(".", 1) + 1])
    if because is None and around.parts and not around.is_packaged:
        because = _FLAGGED_PAIRS.get((around.parent, name))
    return because


def why_path_is_held(path: str) -> Reason | None:
    """Return why a tool acts on a path by itself, told from its names alone, or None."""
    return why_held(*split_path(path))


def is_hook_manager(name: str, parent: str) -> bool:
    """Return True if a name in lower case is one of the settings of a manager of git hooks, whatever its ending."""
    stem, _, rest = name.removeprefix(".").partition(".")
    stem = stem.removesuffix("-local").removeprefix("local-")
    endings = rest.split(".") if rest else []
    if stem == "hk":  # is a place too, whose names and numbers lie in many a directory
        return endings[-1:] == ["pkl"] or (len(endings) == 1 and rest in _MANAGER_ENDINGS and parent in ("", ".config"))
    manager = stem if stem in _MANAGERS or endings[:1] != ["config"] else f"{stem}.config"
    if manager not in _MANAGERS:
        return False
    if not endings:
        return manager.endswith("rc")
    scripts = SCRIPT_ENDINGS if manager in _SCRIPTED_MANAGERS else ()
    return all(ending in _MANAGER_ENDINGS or ending in scripts for ending in endings)


def settings_name(name: str, around: DirectoryMeaning) -> str:
    """Return the name by which settings are known that a tool also reads by others: mise has one for each occasion.

    In `.config`, many look for theirs without the dot.
    """
    stem, _, ending = name.removeprefix(".").partition(".")
    if name == "config.yml" and around.parts[-2:] == (".config", "rubocop"):
        return ".rubocop.yml"
    if not ending.startswith("config.") and (stem == "cspell" or (around.parent == ".config" and stem.endswith("rc"))):
        return f".{stem}.{ending}" if ending else f".{stem}"
    if not name.endswith(".toml"):
        return name
    folder = around.parts[-2:-1] if around.parent == "conf.d" else around.parts[-1:]
    is_in_folder = folder in (("mise",), (".mise",)) and (stem == "config" or around.parent == "conf.d")
    return "mise.toml" if stem == "mise" or is_in_folder else name


def _is_agent_setting(directory: str, name: str) -> bool:
    """Return True if a name is one that an agent's directory has, whatever the agent is called."""
    if directory[:1] != "." or directory in _NOT_AGENTS or len(directory) < 2:
        return False
    stem = name.partition(".")[0]
    return stem in _AGENT_PARTS or stem.startswith("mcp")
