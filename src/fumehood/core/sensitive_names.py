"""The names of files and directories on which tools act by themselves: some are held, some flagged.

Names are compared in lower case. Thousands of changes share a few directories. So the meaning of a directory's path for
its files is worked out once (`DirectoryMeaning`).
"""

from __future__ import annotations

from sys import intern

from fumehood.core.value import word_set

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.danger_facts import Reason

_EDITOR = ("editor-settings", "an editor acts on this as soon as the project is opened")
_AGENT = ("agent-settings", "an agent acts on this as soon as it is started here")
_GIT_HOOK = ("git-hook", "git runs this hook by itself where it is set up")
_SHELL = ("shell-settings", "a shell runs this when the directory is entered")
REPOSITORY_SETTINGS = ("repository-settings", "names programs that the version control runs by itself")
_HOOK_MANAGER = ("hook-manager", "names commands that git hooks run by themselves where their manager is installed")


def _reasons_by_name(*rows: tuple[Reason, str]) -> dict[str, Reason]:
    return {name: reason for reason, names in rows for name in names.split()}


def _reasons_by_path(*rows: tuple[Reason, str]) -> dict[tuple[str, ...], Reason]:
    return {tuple(path.split("/")): reason for path, reason in _reasons_by_name(*rows).items()}


HELD_DIRECTORIES = _reasons_by_name(
    (_GIT_HOOK, ".husky .githooks .git-hooks"),
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
    (_HOOK_MANAGER, ".lefthook .lefthook-local .trunk"),
)
HELD_NAMES = _reasons_by_name(
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
# Names of the settings of git hook managers, without a first dot, the ending and `local`.
_HOOK_MANAGERS = word_set(
    """lefthook pre-commit-config pre-commit-hooks overcommit simple-git-hooks captainhook grumphp prek rusty-hook hkrc
    lintstagedrc huskyrc lint-staged.config husky.config"""
)
_SCRIPTED_HOOK_MANAGERS = word_set("simple-git-hooks lintstagedrc huskyrc lint-staged.config husky.config")
_HOOK_MANAGER_ENDINGS = word_set("yml yaml toml json jsonc json5 pkl dist local config")
HELD_SUFFIXES = {"code-workspace": _EDITOR, "sublime-project": _EDITOR}
# The first parts of all names, without a first dot, that are in HELD_NAMES or that `is_hook_manager` knows.
HELD_STEMS = frozenset(
    f"{before}{name.removeprefix('.').partition('.')[0]}{after}"
    for name in (*HELD_NAMES, *_HOOK_MANAGERS, "hk")
    for before in ("", "local-")
    for after in ("", "-local")
)
# Held by the last names of the path: settings of other version control systems, files whose own name is too common.
_HELD_PATH_ENDS = _reasons_by_path((
    REPOSITORY_SETTINGS,
    """.hg/hgrc .hg/hgrc-not-shared .hg/sharedpath .sl/config .sl/hgrc .sl/sharedpath .git/sl/config .jj/repo
    .jj/repo/config.toml .jj/repo/config-id .jj/workspace-config.toml .jj/workspace-config-id
    .jj/repo/store/git_target _darcs/prefs/defaults _darcs/prefs/prefs""",
), (_SHELL, "bin/hermit"), (_AGENT, ".config/wt.toml"))  # fmt: skip
HELD_END_NAMES = frozenset(end[-1] for end in _HELD_PATH_ENDS)
# Names in the directory of any agent, also of one that we don't know: any directory whose name begins with a dot.
_AGENT_NAMES = frozenset((
    "hooks", "mcp", "settings", "skills", "agents", "subagents", "commands", "plugins", "plugin", "extensions", "tools",
    "toolboxes", "lsp", "copilot",
))  # fmt: skip
# Directories of other tools, of web sites and of services, which have such names in them too.
_DIRECTORIES_OF_NO_AGENT = frozenset((
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
_INSTRUCTIONS = ("agent-instructions", "an agent follows what this says")
_STARTUP = ("startup-file", "a shell or an interpreter that is started here may run this")

_FLAGGED_NAMES = _reasons_by_name(
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
        _INSTRUCTIONS,
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
_FLAGGED_SUFFIXES = _reasons_by_name(
    (_BUILD, "mk mak cmake gemspec csproj vcxproj bzl gradle"), (_CONTAINER, "dockerfile"), (_PYTHON, "pth")
)
_FLAGGED_PREFIXES = _reasons_by_name(
    (_BUILD, "makefile."), (_CONTAINER, "dockerfile. containerfile. docker-compose."), (_CI, "jenkinsfile."),
    (_VARIABLES, ".env."),
)  # fmt: skip
SCRIPT_ENDINGS = frozenset(("js", "cjs", "mjs", "ts", "cts", "mts"))
_FLAGGED_DIRECTORIES = _reasons_by_name(
    (_CI, ".circleci .buildkite .teamcity .woodpecker .semaphore .tekton"),
    (_PACKAGES, ".yarn"),
    (_INSTRUCTIONS, ".clinerules"),
)
# Pairs of successive names in a path; the second may be the file.
_FLAGGED_PAIRS = _reasons_by_path(
    (_CI, ".github/workflows .github/actions .gitea/workflows .forgejo/workflows .gitlab/ci"),
    (_BUILD, ".cargo/config .cargo/config.toml .mvn/maven.config .mvn/jvm.config .mvn/extensions.xml .mvn/wrapper"),
    (_TOOLS, ".config/mise .config/mise.toml"),
)
# Directories of other people's packages: no tool acts on the files in them.
PACKAGE_DIRECTORIES = frozenset(("node_modules", "site-packages", "dist-packages"))

# Directories of branches and objects: git does not act on any file in them, whatever its name is.
GIT_DATA_DIRECTORIES = frozenset(("refs", "logs", "objects"))
# Except these in `objects/info`: they name directories in which git looks for objects too.
OBJECT_LENDERS = frozenset(("alternates", "http-alternates"))
_IN_REPOSITORIES = frozenset(("hooks", "info", "remotes", "branches", "rebase-merge", "rebase-apply", "sequencer"))
_HFS_IGNORES = "\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u206a\u206b\u206c\u206d\u206e\u206f\ufeff"
_MOST_MEANINGS = 4096
_NAMES_WITH_MEANING = {*HELD_DIRECTORIES, *_FLAGGED_DIRECTORIES, *(name for _, name in _FLAGGED_PAIRS)}

_meanings: dict[str, DirectoryMeaning] = {}


class DirectoryMeaning:
    """What the path of a directory means for the files in it.

    `parts` are the names of the path in lower case, `name` is the last of them. `held` and `flagged` are the reasons to
    hold or flag all files in the directory. `in_git` is true in a `.git`, `is_git_data` among its branches or objects,
    `has_objects` in a directory of objects, `is_packaged` in other people's packages. `possible_repositories` are the
    directories above that may be bare repositories, because they have a directory like `hooks`.
    """

    __slots__ = (
        "flagged", "has_objects", "held", "in_git", "is_git_data", "is_packaged", "name", "parts",
        "possible_repositories",
    )  # fmt: skip

    def __init__(self, path: str) -> None:
        self.parts = tuple(map(intern, path.lower().split("/"))) if path else ()  # most are the same
        self.name = self.parts[-1] if self.parts else ""
        # Most names of a path a thousand names deep mean nothing, or are the same: the set is checked first.
        names = set(self.parts)
        dot_gits = [n for n, name in enumerate(self.parts) if is_dot_git(name)] if any(map(is_dot_git, names)) else []
        self.in_git = bool(dot_gits)
        names_in_git = self.parts[dot_gits[0] + 1 : dot_gits[0] + 2] if len(dot_gits) == 1 else ()
        self.is_git_data = not GIT_DATA_DIRECTORIES.isdisjoint(names_in_git)
        self.has_objects = self.parts[-2:-1] == ("objects",)
        self.is_packaged = not PACKAGE_DIRECTORIES.isdisjoint(names)
        self.held = self.flagged = None
        has_meaning = not _NAMES_WITH_MEANING.isdisjoint(names) or any(name[:1] == "." for name in names)
        if has_meaning and not (self.in_git or self.is_packaged):
            # In each work tree of an agent, the same rules apply as in the project itself.
            start = 0
            for number in range(len(self.parts) - 2):
                if number >= start and self.parts[number : number + 2] == (".claude", "worktrees"):
                    start = number + 3
            pairs = list(zip(("", *self.parts[start:]), self.parts[start:], strict=False))
            held = (
                HELD_DIRECTORIES.get(name) or (_AGENT if _is_agent_setting(parent, name) else None)
                for parent, name in pairs
            )
            flagged = (_FLAGGED_DIRECTORIES.get(name) or _FLAGGED_PAIRS.get((parent, name)) for parent, name in pairs)
            self.held = next(filter(None, held), None)
            self.flagged = next(filter(None, flagged), None)
        exact_parts = [] if dot_gits or _IN_REPOSITORIES.isdisjoint(names) else path.split("/")
        self.possible_repositories = tuple(
            "/".join(exact_parts[:number])
            for number, name in enumerate(exact_parts) if name.lower() in _IN_REPOSITORIES
        )  # fmt: skip


def meaning_of(path: str) -> DirectoryMeaning:
    """Return the meaning of a directory's path in its root; "" is the root itself."""
    meaning = _meanings.get(path)
    if meaning is None:
        if len(_meanings) >= _MOST_MEANINGS:
            _meanings.clear()
        meaning = _meanings[path] = DirectoryMeaning(path)
    return meaning


def split_path(path: str) -> tuple[str, DirectoryMeaning]:
    """Return the last name of a path in lower case, and the meaning of its directory."""
    directory, _, name = path.rpartition("/")
    return name.lower(), meaning_of(directory)


def is_dot_git(name: str) -> bool:
    """Return True if a name in lower case means `.git`, also on file systems of Windows and macOS."""
    if name == ".git":
        return True
    if name.isascii():
        if "git" not in name:
            return False
    else:
        name = name.translate(dict.fromkeys(map(ord, _HFS_IGNORES)))
    return name.partition(":")[0].rstrip(". ") in (".git", "git~1")


def why_held(name: str, directory: DirectoryMeaning) -> Reason | None:
    """Return why a tool acts on a file of this name by itself, or None."""
    if not (directory.in_git or directory.is_packaged):
        if directory.held is not None:
            return directory.held
        # A link may have the name of a directory, and lead to a whole directory.
        reason = HELD_NAMES.get(name) or HELD_DIRECTORIES.get(name) or HELD_SUFFIXES.get(name.rpartition(".")[2])
        if reason is None and is_hook_manager(name, directory.name):
            reason = _HOOK_MANAGER
        if reason is not None or not directory.parts:
            return reason
        if _is_agent_setting(directory.name, name):
            return _AGENT
    # git lets editors edit files in `.git`, and editors load settings beside them. But a branch can have any name.
    elif directory.in_git and name in HELD_NAMES and GIT_DATA_DIRECTORIES.isdisjoint(directory.parts):
        return HELD_NAMES[name]
    if name not in HELD_END_NAMES:
        return None
    # Other version control systems, like git, use their settings wherever these lie.
    ends = ((*directory.parts[-length:], name) for length in (1, 2, 3))
    return next((_HELD_PATH_ENDS[end] for end in ends if end in _HELD_PATH_ENDS), None)


def why_flagged(name: str, directory: DirectoryMeaning) -> Reason | None:
    """Return why a file of this name runs when a person builds or starts something, or None."""
    # Python loads these two kinds of files at its start, also from packages.
    if directory.in_git or (directory.is_packaged and not name.endswith((".pth", "customize.py"))):
        return None
    if not directory.is_packaged and (reason := directory.flagged or _FLAGGED_DIRECTORIES.get(name)) is not None:
        return reason
    if (reason := _FLAGGED_NAMES.get(name)) is not None:
        return reason
    stem, dot, ending = name.rpartition(".")
    if dot:
        reason = _FLAGGED_SUFFIXES.get(ending)
        # Settings such as `vite.config.ts` and `.eslintrc.js` are programs.
        if ending in SCRIPT_ENDINGS and (stem.endswith(".config") or (stem[:1] == "." and stem.endswith("rc"))):
            reason = reason or _BUILD
        reason = reason or _FLAGGED_PREFIXES.get(name[: name.find(".", 1) + 1])
    if reason is None and directory.parts and not directory.is_packaged:
        reason = _FLAGGED_PAIRS.get((directory.name, name))
    return reason


def why_path_is_held(path: str) -> Reason | None:
    """Return why a tool acts on a path of these names by itself, or None."""
    return why_held(*split_path(path))


def is_hook_manager(name: str, parent: str) -> bool:
    """Return True if a file of this name, in lower case, has the settings of a git hook manager."""
    stem, _, rest = name.removeprefix(".").partition(".")
    stem = stem.removesuffix("-local").removeprefix("local-")
    endings = rest.split(".") if rest else []
    if stem == "hk":  # the code of Hong Kong too: a common name of data files
        is_usual_place = parent in ("", ".config")
        return endings[-1:] == ["pkl"] or (len(endings) == 1 and rest in _HOOK_MANAGER_ENDINGS and is_usual_place)
    manager = stem if stem in _HOOK_MANAGERS or endings[:1] != ["config"] else f"{stem}.config"
    if manager not in _HOOK_MANAGERS:
        return False
    if not endings:
        return manager.endswith("rc")
    scripts = SCRIPT_ENDINGS if manager in _SCRIPTED_HOOK_MANAGERS else ()
    return all(ending in _HOOK_MANAGER_ENDINGS or ending in scripts for ending in endings)


def settings_name(name: str, directory: DirectoryMeaning) -> str:
    """Return the usual name of a settings file that has one of the other names by which its tool reads it.

    mise has many such names, and many tools read their settings in `.config` without the first dot.
    """
    stem, _, ending = name.removeprefix(".").partition(".")
    if name == "config.yml" and directory.parts[-2:] == (".config", "rubocop"):
        return ".rubocop.yml"
    if not ending.startswith("config.") and (stem == "cspell" or (directory.name == ".config" and stem.endswith("rc"))):
        return f".{stem}.{ending}" if ending else f".{stem}"
    if not name.endswith(".toml"):
        return name
    folder = directory.parts[-2:-1] if directory.name == "conf.d" else directory.parts[-1:]
    is_in_folder = folder in (("mise",), (".mise",)) and (stem == "config" or directory.name == "conf.d")
    return "mise.toml" if stem == "mise" or is_in_folder else name


def _is_agent_setting(directory: str, name: str) -> bool:
    """Return True if a name in a directory is usual for the directory of an agent, whatever the agent is called."""
    if directory[:1] != "." or directory in _DIRECTORIES_OF_NO_AGENT or len(directory) < 2:
        return False
    stem = name.partition(".")[0]
    return stem in _AGENT_NAMES or stem.startswith("mcp")
