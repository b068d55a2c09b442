"""What runs in the hood as a whole, and what commands may ask for from inside.

Agents: what each gets of the person's, as a profile that a person can read. Nothing of it is given to a command because
of its name: only `fumehood agent NAME`, which a person types, asks for it.

Requests: whatever comes from inside is data. What is asked for is one of a few verbs with the options that are named
here; a run is named by letters that no option begins with; a path is made absolute and only ever compared.
"""

from __future__ import annotations

import os

from fumehood.core.value import DIGITS, LETTERS, Value
from fumehood.errors import BadRequest, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

_AGENT_KEYS = ("programs", "state", "credentials", "arguments", "around", "own_lines")


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
        added = {name: (*getattr(before, name), *table.get(name, ())) for name in _AGENT_KEYS}
        settings = {name: value for name, value in table.items() if name not in ("name", *_AGENT_KEYS)}
        agents[before.name] = before.replace(**added).with_more(settings)
    return agents


# `fumehood` inside the hood: what a command may ask for there, checked word by word.

ASK = "ask"
HOST, SHOW, WRITE = "host", "show", "write"  # what is asked for, for later commands
BEGAN, ENDED = "command-began", "command-ended"  # what the shells of an agent say, where each command is a run
LONGEST_REQUEST = 4096  # bytes of a request: what a pipe takes in one piece
WORD_SEPARATOR = "\x1f"  # between the words of a request
MOST_WORDS = 62  # of a request, less who asks and where
TOO_MUCH = "that is too much to ask for at once"
_LONGEST_REASON = 300
_LONGEST_NUMBER = 20
_IN_NAMES = LETTERS | DIGITS | frozenset("._:@-~#")

HELP = """usage: fumehood COMMAND [--json]

You are in the hood: this asks Fumehood, outside, about this session's own runs and for what it may do.

  log [-n N]                 what this session ran, the latest first
  show [RUN]                 everything about a run
  diff [RUN] [PATH…]         what a run changed, line by line
  output [RUN]               all that a run printed
  undo [RUN] [PATH…]         bring back what was there before a run
  redo [RUN] [PATH…]         bring back what was undone
  ps, stop RUN               what runs now; end a command
  checkpoint RUN             settle what a command that runs has finished writing, so that others see it
  status                     what this session may do, what is held, what runs
  ask HOST…                  ask the person to let this session's commands reach a host
  ask --show PATH            ask to see a path of the home, read-only
  ask --write DIR            ask to write another directory
      --reason TEXT          why, in your own words: the person reads it

RUN is a number, an id, the beginning of one, `last`, or `last~1`. What is asked for counts from the next command on.
"""

# What each verb takes: a run, paths after that; and options with and without a value.
_VERBS: dict[str, tuple[bool, bool, tuple[str, ...]]] = {
    "log": (False, False, ("-n", "--limit")), "show": (True, False, ()), "diff": (True, True, ()),
    "output": (True, False, ()), "undo": (True, True, ()), "redo": (True, True, ()), "ps": (False, False, ()),
    "stop": (True, False, ()), "checkpoint": (True, False, ()), "status": (False, False, ()),
}  # fmt: skip
_ONLY_FOR_A_PERSON = frozenset((
    "acp", "agent", "apply", "best", "clean", "config", "discard", "doctor", "draft", "export", "files", "fleet",
    "forward", "grants", "hook", "import", "mcp", "playground", "projects", "restore", "review", "rootfs", "roots",
    "scan", "setup", "shell", "tool", "watch", "web", "worker", "workspace",
))  # fmt: skip


class AccessRequest(Value):
    """Something that an agent asks to be allowed, and why, in its own words."""

    what: str
    target: str
    reason: str = ""


def asker_of(line: bytes) -> str:
    """Return who waits for the answer to a request, whatever else is wrong with it; nobody has the number 0."""
    head = line.partition(WORD_SEPARATOR.encode())[0]
    return head.decode() if head.isdigit() and len(head) < _LONGEST_NUMBER else "0"


def split_request(line: bytes) -> tuple[str, str, list[str]]:
    """Split a request as it came through the pipe: who waits for the answer, the directory, the words."""
    words = os.fsdecode(line).split(WORD_SEPARATOR)
    if len(line) > LONGEST_REQUEST or len(words) > 2 + MOST_WORDS:
        raise BadRequest(TOO_MUCH, hint=f"{MOST_WORDS} words and {LONGEST_REQUEST} bytes at most")
    if len(words) < 2 or asker_of(line) != words[0]:
        raise BadRequest("the request can't be read", hint="fumehood --help")
    if "\0" in "".join(words):
        raise BadRequest("a word has a NUL in it", hint="fumehood --help")
    return words[0], words[1], words[2:]


def is_shell_notice(line: bytes) -> bool:
    """Return True if a request says that a command begins or ends."""
    return line.split(WORD_SEPARATOR.encode(), 3)[2:3] in ([BEGAN.encode()], [ENDED.encode()])


def checked_words(words: Sequence[str], whole: Callable[[str], str]) -> list[str]:
    """Return what our own command line is told, for a request that is allowed; `whole` makes a path absolute."""
    verb, *rest = words
    if verb in _ONLY_FOR_A_PERSON:
        raise Refused(f"only a person may do that: fumehood {verb}", hint="ask the person to type it outside the hood")
    if verb == "run":
        raise BadRequest("this is the hood already", hint="type the command itself")
    if verb not in _VERBS:
        raise BadRequest(f"there is no fumehood {verb!r} inside the hood", hint="fumehood --help")
    takes_run, takes_paths, with_value = _VERBS[verb]
    options, names = _options_and_names(verb, rest, with_value)
    if names and takes_run and not _IN_NAMES.issuperset(names[0]):
        raise BadRequest(f"{names[0]!r} does not name a run", hint="fumehood log lists them")
    if len(names) > takes_run and not (takes_paths and names):
        raise BadRequest(f"fumehood {verb} does not take {names[takes_run]!r}", hint="fumehood --help")
    # The run first, and behind what ends the options: no name is taken for one.
    return [verb, *options, *(["--", names[0]] if names else []), *map(whole, names[1:])]


def _options_and_names(verb: str, words: Sequence[str], with_value: Sequence[str]) -> tuple[list[str], list[str]]:
    options: list[str] = []
    names: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word == "--json":
            options.append(word)
        elif word in with_value:
            value = waiting.pop(0) if waiting else ""
            if not (value.isascii() and value.isdigit()):
                raise BadRequest(f"{word} needs a number", hint="fumehood --help")
            options += (word, value)
        elif not word or word.startswith("-"):
            raise BadRequest(f"fumehood {verb} does not take {word!r} inside the hood", hint="fumehood --help")
        else:
            names.append(word)
    return options, names


def access_requests(words: Sequence[str], whole: Callable[[str], str]) -> list[AccessRequest]:
    """Return what `fumehood ask` asks for; `whole` makes a path absolute."""
    asked: list[tuple[str, str]] = []
    reason = ""
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if name in ("--show", "--write", "--reason"):
            if not equals and not waiting:
                raise BadRequest(f"{name} needs a value", hint="fumehood --help")
            value = value if equals else waiting.pop(0)
            if name == "--reason":
                reason = value[:_LONGEST_REASON]
            else:
                asked.append((name[2:], whole(value)))
        elif not word or word.startswith("-"):
            raise BadRequest(f"fumehood ask does not take {word!r}", hint="fumehood --help")
        else:
            from fumehood.core.hosts import parse_host

            asked.append((HOST, parse_host(word).text))
    if not asked:
        raise BadRequest("ask for what?", hint="fumehood ask HOST, ask --show PATH, ask --write DIR")
    return [AccessRequest(what=what, target=target, reason=reason) for what, target in dict.fromkeys(asked)]
