"""What needs a person's word: the question, the six answers, and what earlier answers already settle.

Pure: grants go in as mappings, and what is new to be kept comes out with the decision.
"""

from __future__ import annotations

from fumehood.core.network import EVERY_HOST, FULL
from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ALLOW, DENY, ASK = "allow", "deny", "ask"
ONCE, SESSION, ALWAYS = "once", "session", "always"

ALLOW_ONCE, ALLOW_SESSION, ALLOW_ALWAYS = "allow_once", "allow_session", "allow_always"
DENY_ONCE, DENY_SESSION, DENY_ALWAYS = "deny_once", "deny_session", "deny_always"
ANSWERS = (ALLOW_ONCE, ALLOW_SESSION, ALLOW_ALWAYS, DENY_ONCE, DENY_SESSION, DENY_ALWAYS)

NETWORK, UNSANDBOXED, ROOT, LINKED_ROOT = "network", "unsandboxed", "root", "linked root"

NOBODY, TOO_LATE, CANCELLED = "nobody was there to ask", "nobody answered in time", "the question was cancelled"

# A grant's key: what is allowed, for which project ("" for every one), and to what (a program, a directory).
Key = tuple[str, str, str]


class Question(Value):
    """One thing a person is asked.

    `what` names the kind of permission, `text` is the question itself, `details` are further facts worth a line
    each (hosts, what it means). `target` is what a kept answer would hold for: a program, a directory. A question
    that is `one_time_only` has a target nobody else has, and its answers are never kept.
    """

    what: str
    text: str
    command: str
    directory: str
    project: str
    target: str
    details: tuple[str, ...] = ()
    one_time_only: bool = False
    remedy: str = ""  # how it could be had without asking
    ahead: str = ""  # how the person can allow it for when nobody is there to ask
    in_session: bool = True  # whether anything asked later could still be of the same session

    @property
    def key(self) -> Key:
        """What an answer is remembered under."""
        return self.what, self.project, self.target

    @property
    def options(self) -> tuple[str, ...]:
        """The answers that make sense here, allowing ones first."""
        if self.one_time_only:
            return ALLOW_ONCE, DENY_ONCE
        return tuple(answer for answer in ANSWERS if self.in_session or scope(answer) != SESSION)

    @property
    def denial(self) -> str:
        """How a no is told."""
        return f"Permission denied: {self.text.rstrip('?')}"


def network_question(
    command: str, directory: str, project: str, run: str, details: tuple[str, ...] = ()
) -> Question:
    """Ask for the network: every time anew, so the run's own id is the target."""
    quoted = ", ".join(f'"{host}"' for host in details)
    setting = f'network = "{FULL}"' if details == (EVERY_HOST,) else f"hosts = [{quoted}]"
    return Question(
        what=NETWORK, text=f"Run command with network access: {command}?", command=command, directory=directory,
        project=project, target=run, details=details, one_time_only=True,
        ahead=f"what the configuration names needs no question: {setting}",
    )  # fmt: skip


def unsandboxed_question(
    command: str, directory: str, project: str, run: str, program: str | None, details: tuple[str, ...] = ()
) -> Question:
    """Ask to run without a sandbox; only a simple command has a program that an answer may be kept for."""
    return Question(
        what=UNSANDBOXED, text=f"Run command without a sandbox: {command}?", command=command, directory=directory,
        project=project, target=program or run, details=details, one_time_only=program is None,
        remedy="fumehood doctor says what a sandbox needs here",
    )  # fmt: skip


def root_question(path: str, project: str, link: str | None = None) -> Question:
    """Ask to let a project's commands write another directory; `link` is the symlink that leads there."""
    if link is None:
        text, what = f"Let commands write another directory: {path}?", ROOT
    else:
        text, what = f"Let commands write what a symlink leads to: {link} → {path}?", LINKED_ROOT
    return Question(
        what=what, text=text, command="", directory=project, project=project, target=path, one_time_only=True,
        details=("it stays a root of this project until: fumehood roots remove",),
    )  # fmt: skip


def settled(question: Question, session: Mapping[Key, str], kept: Mapping[Key, str]) -> str:
    """Return what earlier answers say: allow, deny, or ask. The session's come before those that were kept."""
    if question.one_time_only:
        return ASK
    for grants in (session, kept):
        found = grants.get(question.key)
        if found is not None:
            return found
    return ASK


def scope(answer: str) -> str:
    """How long an answer holds: once, session or always."""
    return answer.partition("_")[2]


def verdict(answer: str) -> str:
    """What an answer says: allow or deny."""
    return answer.partition("_")[0]


def understood(question: Question, answer: object) -> str:
    """Take an answer as it was given for one of the six; nothing at all is a no.

    One that would last longer than the question allows holds once.
    """
    if answer is None or isinstance(answer, bool):
        return ALLOW_ONCE if answer else DENY_ONCE
    if not isinstance(answer, str) or answer not in (ALLOW, DENY, *ANSWERS):
        raise BadRequest(f"{answer!r} is no answer to a question", hint=f"one of: {', '.join(ANSWERS)}")
    if answer in question.options:
        return answer
    return ALLOW_ONCE if verdict(answer) == ALLOW else DENY_ONCE
