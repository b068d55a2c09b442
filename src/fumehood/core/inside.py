"""`fumehood` inside the hood: what a command may ask for there, checked word by word.

Whatever comes from inside is data. What is asked for is one of a few verbs with the options that are named here; a run
is named by letters that no option begins with; a path is made absolute and only ever compared.
"""

from __future__ import annotations

import os

from fumehood.core.questions import HOST
from fumehood.core.value import DIGITS, LETTERS, Value
from fumehood.errors import BadRequest, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ASK = "ask"
WRITE = "write"
BEGAN, ENDED = "command-began", "command-ended"  # what the shells of an agent say, where each command is a run
LONGEST = 4096  # bytes of a request: what a pipe takes in one piece
APART = "\x1f"  # between the words of a request
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
_A_PERSONS = frozenset((
    "acp", "agent", "apply", "best", "clean", "config", "discard", "doctor", "draft", "export", "files", "fleet",
    "forward", "grants", "hook", "import", "mcp", "playground", "projects", "restore", "review", "rootfs", "roots",
    "scan", "setup", "shell", "tool", "watch", "web", "worker", "workspace",
))  # fmt: skip


class Widening(Value):
    """Something that an agent asks to be allowed, and why, in its own words."""

    what: str
    target: str
    reason: str = ""


def asker(line: bytes) -> str:
    """Return who waits for the answer to a request, whatever else is wrong with it; nobody has the number 0."""
    head = line.partition(APART.encode())[0]
    return head.decode() if head.isdigit() and len(head) < _LONGEST_NUMBER else "0"


def parsed(line: bytes) -> tuple[str, str, list[str]]:
    """Split a request as it came through the pipe: who waits for the answer, the directory, the words."""
    words = os.fsdecode(line).split(APART)
    if len(line) > LONGEST or len(words) > 2 + MOST_WORDS:
        raise BadRequest(TOO_MUCH, hint=f"{MOST_WORDS} words and {LONGEST} bytes at most")
    if len(words) < 2 or asker(line) != words[0]:
        raise BadRequest("the request can't be read", hint="fumehood --help")
    if "\0" in "".join(words):
        raise BadRequest("a word has a NUL in it", hint="fumehood --help")
    return words[0], words[1], words[2:]


def is_of_a_shell(line: bytes) -> bool:
    """Return True if a request says that a command begins or ends."""
    return line.split(APART.encode(), 3)[2:3] in ([BEGAN.encode()], [ENDED.encode()])


def checked(words: Sequence[str], whole: Callable[[str], str]) -> list[str]:
    """Return what our own command line is told, for a request that is allowed; `whole` makes a path absolute."""
    verb, *rest = words
    if verb in _A_PERSONS:
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


def widenings(words: Sequence[str], whole: Callable[[str], str]) -> list[Widening]:
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
            asked.append((HOST, _host(word)))
    if not asked:
        raise BadRequest("ask for what?", hint="fumehood ask HOST, ask --show PATH, ask --write DIR")
    return [Widening(what=what, target=target, reason=reason) for what, target in dict.fromkeys(asked)]


def _host(text: str) -> str:
    from fumehood.core.hosts import parse

    return parse(text).text
