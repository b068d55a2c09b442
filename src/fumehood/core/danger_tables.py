"""Names of files that run by themselves, and of files that run when a person builds.

All in lower case: names are compared so, since some file systems do.
"""

from __future__ import annotations

_EDITOR = ("editor-settings", "an editor acts on this as soon as the project is opened")
_AGENT = ("agent-settings", "an agent acts on this as soon as it is started here")
_HOOK = ("git-hook", "git runs this hook by itself where it is set up")
_SHELL = ("shell-settings", "a shell runs this when the directory is entered")
REPOSITORY = ("repository-settings", "names programs that the version control runs by itself")
_HOOKS = ("hook-manager", "names commands that git hooks run by themselves where their manager is installed")

Because = tuple[str, str]


def _table(*rows: tuple[Because, str]) -> dict[str, Because]:
    return {name: because for because, names in rows for name in names.split()}


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
HELD_ENDS = {
    tuple(end.split("/")): because
    for end, because in _table((
        REPOSITORY,
        """.hg/hgrc .hg/hgrc-not-shared .hg/sharedpath .sl/config .sl/hgrc .sl/sharedpath .git/sl/config .jj/repo
        .jj/repo/config.toml .jj/repo/config-id .jj/workspace-config.toml .jj/workspace-config-id
        .jj/repo/store/git_target _darcs/prefs/defaults _darcs/prefs/prefs""",
    )).items()
}  # fmt: skip
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
    (
        _CONTAINER,
        """dockerfile containerfile docker-compose.yml docker-compose.yaml compose.yml compose.yaml""",
    ),
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
FLAGGED_SUFFIXES = {
    "mk": _BUILD,
    "mak": _BUILD,
    "cmake": _BUILD,
    "gemspec": _BUILD,
    "csproj": _BUILD,
    "vcxproj": _BUILD,
    "bzl": _BUILD,
    "gradle": _BUILD,
    "dockerfile": _CONTAINER,
    "pth": _PYTHON,
}
FLAGGED_PREFIXES = {
    "makefile.": _BUILD,
    "dockerfile.": _CONTAINER,
    "containerfile.": _CONTAINER,
    "docker-compose.": _CONTAINER,
    "jenkinsfile.": _CI,
    ".env.": _TOOLS,
}
# `vite.config.ts`, `.eslintrc.js` and their kin are programs.
SCRIPT_ENDINGS = frozenset(("js", "cjs", "mjs", "ts", "cts", "mts"))
SCRIPT_REASON = _BUILD
FLAGGED_DIRECTORIES = _table(
    (_CI, ".circleci .buildkite .teamcity .woodpecker .semaphore .tekton"),
    (_PACKAGES, ".yarn"),
    (_WORDS, ".clinerules"),
)
# Two names that follow each other, the second perhaps the file itself.
FLAGGED_PAIRS = {
    (".github", "workflows"): _CI,
    (".github", "actions"): _CI,
    (".gitea", "workflows"): _CI,
    (".forgejo", "workflows"): _CI,
    (".gitlab", "ci"): _CI,
    (".cargo", "config"): _BUILD,
    (".cargo", "config.toml"): _BUILD,
    (".config", "mise"): _TOOLS,
    (".config", "mise.toml"): _TOOLS,
    (".mvn", "maven.config"): _BUILD,
    (".mvn", "jvm.config"): _BUILD,
    (".mvn", "extensions.xml"): _BUILD,
    (".mvn", "wrapper"): _BUILD,
}
# Other people's packages: what a project would act on, nobody acts on in there.
PACKAGES = frozenset(("node_modules", "site-packages", "dist-packages"))
