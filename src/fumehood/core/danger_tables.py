"""Names of files that run by themselves, and of files that run when a person builds.

All in lower case: names are compared so, since some file systems do.
"""

from __future__ import annotations

_EDITOR = ("editor-settings", "an editor acts on this as soon as the project is opened")
_AGENT = ("agent-settings", "an agent acts on this as soon as it is started here")
_HOOK = ("git-hook", "git runs this hook by itself where it is set up")
_SHELL = ("shell-settings", "a shell runs this when the directory is entered")
_REPOSITORY = ("repository-settings", "names programs that the version control runs by itself")

Because = tuple[str, str]


def _table(*rows: tuple[Because, str]) -> dict[str, Because]:
    return {name: because for because, names in rows for name in names.split()}


HELD_DIRECTORIES = _table(
    (_HOOK, ".husky .githooks .git-hooks"),
    (_SHELL, ".direnv"),
    (_EDITOR, ".vscode .vs .idea .zed .fleet .devcontainer .helix .nova .theia .externaltoolbuilders"),
    (
        _AGENT,
        """.claude .cursor .gemini .codex .windsurf .continue .roo .kilocode .opencode .kiro .amazonq .augment .qwen
        .factory .junie .trae .agents .agent .goose .crush .cline""",
    ),
)
HELD_NAMES = _table(
    (_SHELL, ".envrc"),
    (
        _EDITOR,
        """.devcontainer.json .exrc .vimrc .nvimrc .nvim.lua .lvimrc .dir-locals.el .dir-locals-2.el .ycm_extra_conf.py
        .gdbinit .lldbinit""",
    ),
    (
        _AGENT,
        """.mcp.json mcp.json .claude.json .aider.conf.yml .aider.model.settings.yml opencode.json opencode.jsonc
        crush.json .crush.json .roomodes""",
    ),
)
HELD_SUFFIXES = {"code-workspace": _EDITOR, "sublime-project": _EDITOR}
# Files of other version controls, by the directory that holds them.
HELD_PAIRS = {
    (".hg", "hgrc"): _REPOSITORY,
    (".hg", "hgrc-not-shared"): _REPOSITORY,
    (".hg", "sharedpath"): _REPOSITORY,
}

_BUILD = ("build-script", "runs when the project is built or its tools are started")
_PYTHON = ("startup-file", "python runs this at every start that finds it")
_CONTAINER = ("container", "runs when the project's containers are built or started")
_CI = ("ci-workflow", "runs where the project's checks run")
_HOOKS = ("hook-manager", "names commands for a manager of git hooks")
_PACKAGES = ("package-settings", "decides where packages come from and what runs when they are installed")
_TOOLS = ("tool-versions", "decides which tools and variables are in force in this directory")
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
    (
        _HOOKS,
        """.pre-commit-config.yaml .pre-commit-hooks.yaml lefthook.yml lefthook.yaml .lefthook.yml lefthook-local.yml
        .overcommit.yml .lintstagedrc .lintstagedrc.json .simple-git-hooks.json captainhook.json grumphp.yml""",
    ),
    (_PACKAGES, ".npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs pnpm-workspace.yaml bunfig.toml pip.conf .condarc uv.toml"),
    (_TOOLS, ".tool-versions mise.toml .mise.toml mise.local.toml .mise.local.toml .rtx.toml .env .flaskenv"),
    (
        _WORDS,
        """claude.md claude.local.md agents.md agent.md agents.override.md gemini.md qwen.md .cursorrules .windsurfrules
        .clinerules .goosehints copilot-instructions.md""",
    ),
    (
        _STARTUP,
        """.bashrc .bash_profile .bash_login .bash_logout .profile .zshrc .zshenv .zprofile .zlogin .login .cshrc
        .tcshrc .rprofile .irbrc .pryrc .pdbrc .pythonrc .pythonrc.py .gitconfig .inputrc""",
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
    (_HOOKS, ".lefthook"),
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
