"""Agents that run whole in the hood: what each gets of the person's, as a profile that a person can read.

Nothing here is given to a command because of its name: only `fumehood agent NAME`, which a person types, asks for it.
"""

from __future__ import annotations

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_OWN = ("programs", "state", "credentials", "arguments", "around", "own_lines")


class Agent(Value):
    """One agent, by the name of its program; `programs` are others that are this agent, such as those for editors.

    `state` has the directories of its home that are kept for it between its sessions, one by one for each project, as
    `DIRECTORY` or `VARIABLE=DIRECTORY`, where the variable is what moves it. `credentials` are files of the person's
    that it gets a copy of, whenever theirs is the newer one; of `FILE#KEY,KEY` only these keys, and only once, because
    agents write such a file all the time. `arguments` come before the person's. `around` has pairs of texts that the
    agent puts before and after a line of the model's for its shell, `own_lines` patterns of lines that are its own.
    `settings` are laid over the policy.
    """

    name: str
    programs: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    own_lines: tuple[str, ...] = ()
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def with_more(self, settings: Mapping[str, Any]) -> Agent:
        """Return this agent with more settings: what is a list adds, all else replaces."""
        laid = dict(self.settings)
        for name, more in settings.items():
            before = laid.get(name)
            if isinstance(before, tuple):
                laid[name] = (*before, *(each for each in more if each not in before))
            else:
                laid[name] = more
        return self.replace(settings=laid)

    def typed(self, line: str) -> str:
        """Return the model's own line in one that the agent gives to a shell; nothing where none is in there."""
        from fnmatch import fnmatchcase

        if any(fnmatchcase(line, pattern) for pattern in self.own_lines):
            return ""
        if not self.around:
            return line
        for before, after in zip(self.around[::2], self.around[1::2], strict=False):
            _, has_before, rest = line.partition(before)
            text, has_after, _ = rest.rpartition(after)
            if has_before and has_after:
                return _unquoted(text) if before.endswith("eval ") else text
        return ""


def _unquoted(text: str) -> str:
    import shlex

    try:
        return shlex.split(text)[0]
    except (ValueError, IndexError):
        return text


# Hosts: those that answer the model's calls and renew a login. Not those that count users or bring new versions.
SHIPPED_AGENTS: tuple[Agent, ...] = (
    Agent(
        name="claude",
        programs=("claude-agent-acp", "claude-code-acp"),
        state=("CLAUDE_CONFIG_DIR=~/.claude",),
        credentials=(
            "~/.claude/.credentials.json",
            "~/.claude.json#oauthAccount,primaryApiKey,customApiKeyResponses,hasCompletedOnboarding,theme,userID",
        ),
        around=(" && eval ", " && pwd -P >| "),
        settings={
            "hosts": ("api.anthropic.com:443", "platform.claude.com:443", "console.anthropic.com:443"),
            "environment.keep": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
            "environment.set": (
                ("IS_SANDBOX", "1"),  # else it does not skip its own questions for root
                ("DISABLE_AUTOUPDATER", "1"), ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ),
        },
    ),
    Agent(
        name="codex",
        programs=("codex-acp",),
        state=("CODEX_HOME=~/.codex",),
        credentials=("~/.codex/auth.json",),
        # A sandbox of its own needs namespaces, which nobody can make in here.
        arguments=("-c", 'sandbox_mode="danger-full-access"', "-c", "check_for_update_on_startup=false"),
        own_lines=("*__codex_snapshot_*", 'set -e; . "*/shell_snapshots/*.tmp-*"'),
        settings={
            "hosts": ("api.openai.com:443", "chatgpt.com:443", "auth.openai.com:443"),
            "environment.keep": ("OPENAI_API_KEY", "CODEX_API_KEY"),
        },
    ),
    Agent(
        name="gemini",
        state=("~/.gemini",),
        credentials=(
            "~/.gemini/oauth_creds.json", "~/.gemini/google_accounts.json", "~/.gemini/gemini-credentials.json",
            "~/.gemini/settings.json#security",
        ),
        around=("EXIT\n", "\n)\n__code=$?\n"),
        settings={
            "hosts": (
                "generativelanguage.googleapis.com:443", "cloudcode-pa.googleapis.com:443", "oauth2.googleapis.com:443",
            ),
            "environment.keep": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            "environment.set": (("GEMINI_SANDBOX", "false"),),
        },
    ),
    Agent(
        name="copilot",
        state=("COPILOT_HOME=~/.copilot",),
        credentials=("~/.copilot/config.json#loggedInUsers,lastLoggedInUser,copilotTokens",),
        own_lines=("*__copilot_login_env_snapshot_*",),
        settings={
            "hosts": ("*.githubcopilot.com:443", "api.github.com:443"),
            # Not GH_TOKEN nor GITHUB_TOKEN: these open all of a person's repositories.
            "environment.keep": ("COPILOT_GITHUB_TOKEN", "COPILOT_PROVIDER_API_KEY"),
            "environment.set": (("COPILOT_AUTO_UPDATE", "false"),),
        },
    ),
    Agent(
        name="opencode",
        state=("~/.local/share/opencode", "~/.config/opencode", "~/.local/state/opencode", "~/.cache/opencode"),
        credentials=("~/.local/share/opencode/auth.json",),
        settings={
            # It works with every provider: whose host it is, only the person can say (--allow-host).
            "hosts": ("opencode.ai:443", "models.dev:443"),
            "environment.keep": ("OPENCODE_API_KEY",),
            "environment.set": (("OPENCODE_DISABLE_AUTOUPDATE", "1"),),
        },
    ),
)  # fmt: skip


def known_agents(own: Iterable[Mapping[str, Any]]) -> dict[str, Agent]:
    """Return every agent by its name: ours, with what a person's own `[[agent]]` tables add, and theirs."""
    agents = {each.name: each for each in SHIPPED_AGENTS}
    for table in own:
        before = agents.get(table["name"]) or Agent(name=table["name"])
        added = {name: (*getattr(before, name), *table.get(name, ())) for name in _OWN}
        settings = {name: value for name, value in table.items() if name not in ("name", *_OWN)}
        agents[before.name] = before.replace(**added).with_more(settings)
    return agents
