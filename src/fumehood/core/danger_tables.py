"""Names of files that run by themselves, and of files that run when a person builds.

All in lower case: names are compared so, since some file systems do.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_EDITOR = ("editor-settings", "an editor acts on this as soon as the project is opened")
_AGENT = ("agent-settings", "an agent acts on this as soon as it is started here")
_HOOK = ("git-hook", "git runs this hook by itself where it is set up")
_SHELL = ("shell-settings", "a shell runs this when the directory is entered")
REPOSITORY = ("repository-settings", "names programs that the version control runs by itself")
_HOOKS = ("hook-manager", "names commands that git hooks run by themselves where their manager is installed")

Because = tuple[str, str]


def _table(*rows: tuple[Because, str]) -> dict[str, Because]:
    return {name: because for because, names in rows for name in names.split()}


def _by_parts(*rows: tuple[Because, str]) -> dict[tuple[str, ...], Because]:
    return {tuple(path.split("/")): because for path, because in _table(*rows).items()}


HELD_DIRECTORIES = _table(
    (_HOOK, ".husky .githooks .git-hooks"),
    (_SHELL, ".direnv"),
    (
        _EDITOR,
        """.vscode .vs .idea .zed .fleet .devcontainer .helix .nova .theia .externaltoolbuilders .vim .nvim .lapce
        .nlsp-settings .obsidian .bsp .lsp .sourcekit-lsp""",
    ),
    (
        _AGENT,
        """.claude .cursor .gemini .codex .windsurf .continue .roo .kilocode .opencode .kiro .amazonq .augment .qwen
        .factory .junie .trae .agents .agent .goose .crush .cline .pi .amp .openhands .rovodev .warp .zencoder .copilot
        .iflow .qoder .codebuddy .commandcode .mux .vibe .kode .neovate .pochi .adal .cortex""",
    ),
    (_HOOKS, ".lefthook"),
)
HELD_NAMES = _table(
    (_SHELL, ".envrc"),
    (
        _EDITOR,
        """.devcontainer.json .exrc .vimrc .nvimrc .nvim.lua .lvimrc .dir-locals.el .dir-locals-2.el .ycm_extra_conf.py
        .gdbinit .lldbinit .local.vimrc .lazy.lua .neoconf.json coc-settings.json hie.yaml buildserver.json
        rust-analyzer.toml .rust-analyzer.toml omnisharp.json .kateproject .kateproject.local .luacheckrc .lintr
        .rprofile .formatter.exs .credo.exs .php-cs-fixer.php .php-cs-fixer.dist.php""",
    ),
    (
        _AGENT,
        """.mcp.json mcp.json .claude.json .aider.conf.yml .aider.model.settings.yml opencode.json opencode.jsonc
        crush.json .crush.json .roomodes .continuerc.json .kilocodemodes .opencode.json""",
    ),
    (
        _HOOKS,
        """.pre-commit-config.yaml .pre-commit-hooks.yaml lefthook.yml lefthook.yaml .lefthook.yml lefthook-local.yml
        .overcommit.yml .lintstagedrc .lintstagedrc.json .lintstagedrc.yaml .lintstagedrc.yml .lintstagedrc.js
        .lintstagedrc.cjs .lintstagedrc.mjs lint-staged.config.js lint-staged.config.cjs lint-staged.config.mjs
        lint-staged.config.ts .simple-git-hooks.json captainhook.json grumphp.yml""",
    ),
)
HELD_SUFFIXES = {"code-workspace": _EDITOR, "sublime-project": _EDITOR}
# Files of other version controls, by the end of their path.
HELD_ENDS = _by_parts((
    REPOSITORY,
    """.hg/hgrc .hg/hgrc-not-shared .hg/sharedpath .sl/config .sl/hgrc .sl/sharedpath .git/sl/config .jj/repo
    .jj/repo/config.toml .jj/repo/config-id .jj/workspace-config.toml .jj/workspace-config-id
    .jj/repo/store/git_target _darcs/prefs/defaults _darcs/prefs/prefs""",
))  # fmt: skip
HELD_END_NAMES = frozenset(end[-1] for end in HELD_ENDS)
# What agents' directories have in common, whatever the agent is called: names in a directory that begins with a dot.
AGENT_PARTS = frozenset((
    "hooks", "mcp", "settings", "skills", "agents", "subagents", "commands", "plugins", "plugin", "extensions", "tools",
    "toolboxes", "lsp", "copilot",
))  # fmt: skip
# Directories of tools that write such names by themselves, of sites and of what runs elsewhere.
NOT_AGENTS = frozenset((
    ".cache", ".expo", ".yarn", ".terraform", ".m2", ".mvn", ".npm", ".gradle", ".build", ".bundle", ".tox", ".nox",
    ".venv", ".astro", ".netlify", ".pulumi", ".vagrant", ".next", ".nuxt", ".vitepress", ".vuepress", ".storybook",
    ".circleci", ".buildkite", ".platform", ".ddev",
))  # fmt: skip
AGENT_REASON = _AGENT

_BUILD = ("build-script", "runs when the project is built or its tools are started")
_PYTHON = ("startup-file", "python runs this at every start that finds it")
_CONTAINER = ("container", "runs when the project's containers are built or started")
_CI = ("ci-workflow", "runs where the project's checks run")
_PACKAGES = ("package-settings", "decides where packages come from and what runs when they are installed")
_TOOLS = ("tool-versions", "decides which tools and variables are in force in this directory")
_VARIABLES = ("variables-file", "sets variables for programs that are started here")
_WORDS = ("agent-instructions", "an agent follows what this says")
_STARTUP = ("startup-file", "a shell or an interpreter that is started here may run this")

FLAGGED_NAMES = _table(
    (
        _BUILD,
        """makefile gnumakefile bsdmakefile makefile.am makefile.in configure configure.ac cmakelists.txt
        cmakepresets.json meson.build build.ninja sconstruct sconscript wscript build workspace module.bazel build.bazel
        workspace.bazel .bazelrc justfile .justfile taskfile.yml taskfile.yaml magefile.go rakefile gemfile guardfile
        package.json gulpfile.js gruntfile.js setup.py setup.cfg pyproject.toml conftest.py tox.ini noxfile.py dodo.py
        fabfile.py tasks.py pytest.ini manage.py build.rs cargo.toml build.gradle build.gradle.kts settings.gradle
        settings.gradle.kts gradle.properties gradlew gradlew.bat gradle-wrapper.properties gradle-wrapper.jar pom.xml
        mvnw build.xml build.sbt mix.exs rebar.config composer.json package.swift pubspec.yaml flake.nix shell.nix
        default.nix devenv.nix build.zig dune-project stack.yaml directory.build.props directory.build.targets
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
    (_TOOLS, ".tool-versions mise.toml .mise.toml mise.local.toml .mise.local.toml .rtx.toml"),
    (_VARIABLES, ".env .flaskenv"),
    (
        _WORDS,
        """claude.md claude.local.md agents.md agent.md agents.override.md gemini.md qwen.md .cursorrules .windsurfrules
        .clinerules .goosehints copilot-instructions.md warp.md .openhands_instructions""",
    ),
    (
        _STARTUP,
        """.bashrc .bash_profile .bash_login .bash_logout .profile .zshrc .zshenv .zprofile .zlogin .login .cshrc
        .tcshrc .irbrc .pryrc .pdbrc .pythonrc .pythonrc.py .gitconfig .inputrc""",
    ),
)
FLAGGED_SUFFIXES = _table(
    (_BUILD, "mk mak cmake gemspec csproj vcxproj bzl gradle"), (_CONTAINER, "dockerfile"), (_PYTHON, "pth")
)
FLAGGED_PREFIXES = _table(
    (_BUILD, "makefile."), (_CONTAINER, "dockerfile. containerfile. docker-compose."), (_CI, "jenkinsfile."),
    (_VARIABLES, ".env."),
)  # fmt: skip
# `vite.config.ts`, `.eslintrc.js` and their kin are programs.
SCRIPT_ENDINGS = frozenset(("js", "cjs", "mjs", "ts", "cts", "mts"))
SCRIPT_REASON = _BUILD
FLAGGED_DIRECTORIES = _table(
    (_CI, ".circleci .buildkite .teamcity .woodpecker .semaphore .tekton"),
    (_PACKAGES, ".yarn"),
    (_WORDS, ".clinerules"),
)
# Two names that follow each other, the second perhaps the file itself.
FLAGGED_PAIRS = _by_parts(
    (_CI, ".github/workflows .github/actions .gitea/workflows .forgejo/workflows .gitlab/ci"),
    (_BUILD, ".cargo/config .cargo/config.toml .mvn/maven.config .mvn/jvm.config .mvn/extensions.xml .mvn/wrapper"),
    (_TOOLS, ".config/mise .config/mise.toml"),
)
# Other people's packages: what a project would act on, nobody acts on in there.
PACKAGES = frozenset(("node_modules", "site-packages", "dist-packages"))


# What the directories above a path already say about it.
#
# Thousands of changes share a few directories, so each directory is looked at once.

# Branches and objects: files of any name, and none that git acts on.
AREAS = frozenset(("refs", "logs", "objects"))
_IN_REPOSITORIES = frozenset(("hooks", "info", "remotes", "branches"))
_HFS_IGNORES = "\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u206a\u206b\u206c\u206d\u206e\u206f\ufeff"
_MANY = 4096
_TELLING = {*HELD_DIRECTORIES, *FLAGGED_DIRECTORIES, *(name for _, name in FLAGGED_PAIRS)}

_meanings: dict[str, DirectoryMeaning] = {}


class DirectoryMeaning:
    """One directory: its names in lower case, and what they mean for every file in it."""

    __slots__ = ("above_own", "flagged", "held", "in_git", "is_dull", "is_packaged", "is_store", "parent", "parts")

    def __init__(self, directory: str) -> None:
        self.parts = tuple(directory.lower().split("/")) if directory else ()
        self.parent = self.parts[-1] if self.parts else ""
        # Asked first: of a directory that is a thousand deep, most names mean nothing, or are the same.
        different = set(self.parts)
        git = [at for at, name in enumerate(self.parts) if is_dot_git(name)] if any(map(is_dot_git, different)) else []
        self.in_git = bool(git)
        self.is_dull = len(git) == 1 and not AREAS.isdisjoint(self.parts[git[0] + 1 : git[0] + 2])
        self.is_store = self.parts[-2:-1] == ("objects",)
        self.is_packaged = not PACKAGES.isdisjoint(different)
        self.held = self.flagged = None
        is_telling = not _TELLING.isdisjoint(different) or any(name[:1] == "." for name in different)
        if is_telling and not (self.in_git or self.is_packaged):
            parts = in_project(self.parts)
            self.held = held_by_directory(parts)
            self.flagged = _flagged_by_directory(parts)
        names = [] if git or _IN_REPOSITORIES.isdisjoint(different) else directory.split("/")
        own = [at for at, name in enumerate(names) if name.lower() in _IN_REPOSITORIES]
        self.above_own = tuple("/".join(names[:at]) for at in own)


def surroundings(directory: str) -> DirectoryMeaning:
    """Return what is known of a directory, "" for the root's top."""
    meaning = _meanings.get(directory)
    if meaning is None:
        if len(_meanings) >= _MANY:
            _meanings.clear()
        meaning = _meanings[directory] = DirectoryMeaning(directory)
    return meaning


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


def in_project(parts: Sequence[str]) -> Sequence[str]:
    """Leave out where an agent keeps whole work trees: in them, everything counts as in the project itself."""
    for at, part in enumerate(parts[:-2]):
        if part == ".claude" and parts[at + 1] == "worktrees":
            return in_project(parts[at + 3 :])
    return parts


def held_by_directory(parts: Sequence[str]) -> Because | None:
    """Return why everything below directories of these names is held, or None."""
    before = ""
    for part in parts:
        if (because := HELD_DIRECTORIES.get(part)) is not None:
            return because
        if is_agents(before, part):
            return AGENT_REASON
        before = part
    return None


def is_agents(directory: str, name: str) -> bool:
    """Return True if a name is one that an agent's directory has, whatever the agent is called."""
    if directory[:1] != "." or directory in NOT_AGENTS or len(directory) < 2:
        return False
    stem = name.partition(".")[0]
    return stem in AGENT_PARTS or stem.startswith("mcp")


def _flagged_by_directory(parts: Sequence[str]) -> Because | None:
    pairs = zip(("", *parts), parts, strict=False)
    reasons = (FLAGGED_DIRECTORIES.get(part) or FLAGGED_PAIRS.get((before, part)) for before, part in pairs)
    return next((because for because in reasons if because is not None), None)
