"""Questions to a person: their text, the six answers, and which earlier answers still hold."""

from __future__ import annotations

from fumehood.core import changes as c
from fumehood.core.inside import HOST, SHOW
from fumehood.core.policy import EVERY_HOST, FULL
from fumehood.core.request import shell_quote as word
from fumehood.core.value import Value
from fumehood.core.wording import MOST_ITEMS, MOST_OF_A_NAME, WIDTH, Item, item_lines, quote, wrap
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fumehood.core.report import Run

ALLOW, DENY, ASK = "allow", "deny", "ask"
ONCE, SESSION, ALWAYS = "once", "session", "always"

ALLOW_ONCE, ALLOW_SESSION, ALLOW_ALWAYS = "allow_once", "allow_session", "allow_always"
DENY_ONCE, DENY_SESSION, DENY_ALWAYS = "deny_once", "deny_session", "deny_always"
# The labels of the answers, and the text above the question, in a form that another program shows.
TITLES = {
    ALLOW_ONCE: "Allow once", ALLOW_SESSION: "Allow for this session", ALLOW_ALWAYS: "Always allow",
    DENY_ONCE: "Deny", DENY_SESSION: "Deny for this session", DENY_ALWAYS: "Always deny",
}  # fmt: skip
INTRODUCTION = "Fumehood asks you. Indented is what it is about; commands and names in it are not Fumehood's words."
ANSWERS = tuple(TITLES)

NETWORK, UNSANDBOXED, ROOT, LINKED_ROOT = "network", "unsandboxed", "root", "linked root"
APPLY_HELD = "apply"

NOBODY, TOO_LATE, CANCELLED = "nobody was there to ask", "nobody answered in time", "the question was cancelled"

_INDENT = 2
_QUOTED_NOTE = "(what follows the first question mark is quoted: not Fumehood's words)"
_ESCAPES_NOTE = r"(\n, \u202e and the like stand for what does not show, \\ for a backslash)"
# A grant's key: the kind of permission, the project ("" for every one), and the target (a program, a directory).
Key = tuple[str, str, str]


class Question(Value):
    """One question to a person, and what exactly an answer is for.

    `what` is the kind of permission, `text` the question itself, `details` are further facts, one to a line (hosts,
    what a yes means), `items` the things it is about, if they may be many. `target` is what a kept answer would hold
    for: a program, a directory. The target of a `one_time_only` question is unique, and its answers are never kept.
    The command and names in these fields are not escaped; `lines` can be shown as they are.
    """

    what: str
    text: str
    command: str
    directory: str
    project: str
    target: str
    details: tuple[str, ...] = ()
    one_time_only: bool = False
    remedy: str = ""  # how to get what is needed without a question
    ahead: str = ""  # how the person can allow it in advance
    in_session: bool = True  # whether a later question can be of the same session
    run: str = ""  # the run it is about, if that has an id yet
    items: tuple[Item, ...] = ()
    about: str = ""  # a digest of what the text can't show completely; see `digest_of`
    unaskable: str = ""  # why a person can't be asked this; the answer is then no
    is_lasting: bool = False  # it is for later commands, so an answer for one time would mean nothing

    def worded(self, answer: str) -> str:
        """Return an answer as it is offered to a person: without "once" if a yes holds until it is revoked."""
        return answer.removesuffix(" once") if self.is_lasting else answer

    @property
    def key(self) -> Key:
        """The key under which an answer is kept."""
        return self.what, self.project, self.target

    @property
    def wanted(self) -> str:
        """What a person would have to allow to avoid the question: hosts, one to a line; a path; a run."""
        if self.what == NETWORK:
            return "\n".join(self.details)
        return self.about if self.what == ROOT and self.about else self.target

    @property
    def options(self) -> tuple[str, ...]:
        """The answers that make sense here, allowing ones first."""
        if self.one_time_only:
            return ALLOW_ONCE, DENY_ONCE
        offered = [answer for answer in ANSWERS if self.in_session or answer_scope(answer) != SESSION]
        return tuple(answer for answer in offered if not (self.is_lasting and answer == ALLOW_ONCE))

    @property
    def digest(self) -> str:
        """Identifies all that an answer is for: an answer to a question with another digest does not count."""
        kept_for = "" if self.one_time_only else self.target
        names = (f"{item.before}\0{item.name}\0{item.after}" for item in self.items)
        return digest_of(
            self.what, self.text, self.command, self.directory, self.project, kept_for, self.about,
            "\0".join(self.details), *names,
        )  # fmt: skip

    @property
    def lines(self) -> tuple[str, ...]:
        """The question as every face shows it: escaped, of limited length, the most dangerous first."""
        return question_lines(self)

    @property
    def denial(self) -> str:
        """The message for a no."""
        return f"Permission denied: {quote(self.text.removesuffix('?'))}"


def question_lines(question: Question, width: int = WIDTH, sign: str = "") -> tuple[str, ...]:
    """Return the lines of a question for a window of this width; `sign` is put before the first words."""
    fixed, colon, foreign = question.text.partition(": ")
    texts = [f"{sign}{fixed}? {quote(foreign.removesuffix('?'))}" if colon else f"{sign}{quote(question.text)}"]
    texts += [_QUOTED_NOTE] if colon else []
    if question.command not in question.text:
        texts.append(f"command: {quote(question.command, MOST_OF_A_NAME)}")
    texts.append(f"directory: {quote(question.directory, MOST_OF_A_NAME)}")
    texts += item_lines(question.items, seen_by=f"fumehood show {question.run}" if question.what == APPLY_HELD else "")
    if question.what != NETWORK or not question.items:
        texts += [quote(each, MOST_OF_A_NAME) for each in question.details[:MOST_ITEMS]]
    foreign_texts = (foreign, question.command, question.directory, *(item.name for item in question.items))
    texts += [_ESCAPES_NOTE] if any(quote(each) != each for each in foreign_texts) else []
    first, *others = (wrap(each, width - _INDENT * (number > 0)) for number, each in enumerate(texts))
    return (*first, *(f"{' ' * _INDENT}{line}" for each in others for line in each))


def digest_of(*parts: str) -> str:
    """Return a digest of several texts."""
    from hashlib import sha256

    encoded = (part.encode("utf-8", "surrogateescape") for part in parts)
    return sha256(b"".join(b"%d:%b" % (len(each), each) for each in encoded)).hexdigest()[:32]


def network_question(
    command: str, directory: str, project: str, run: str, details: tuple[str, ...] = (), roots: tuple[str, ...] = ()
) -> Question:
    """Return the question for network access; it is asked for each run, so the target is the run's id.

    A request for more hosts than a person can judge at once is not asked: a dangerous host could hide among them.
    """
    named = ", ".join(f'"{host}"' for host in details[:MOST_ITEMS])
    setting = f'network = "{FULL}"' if details == (EVERY_HOST,) else f"hosts = [{named}]"
    unaskable = ""
    if len(details) > MOST_ITEMS:
        unaskable = f"it asks for {len(details)} hosts at once, and a person can judge {MOST_ITEMS} at most"
        setting = "hosts = [...], or names below one as *.example.org"
    return Question(
        what=NETWORK, text=f"Run command with network access: {command}?", command=command, directory=directory,
        project=project, target=run, details=details, one_time_only=True, run=run,
        items=() if details == (EVERY_HOST,) else tuple(map(_host_item, details)),
        ahead=f"what the configuration names needs no question: {setting}", about=digest_of(*roots),
        unaskable=unaskable,
    )  # fmt: skip


def _host_item(text: str) -> Item:
    """Return a host as an item, in the form in which it is compared: letters of other alphabets look like ours."""
    from fumehood.core.hosts import LOOPBACK_NAMES, parse_host, special_kind

    try:
        rule = parse_host(text)
    except BadRequest:
        return Item(name=text, kind=("host that can't be read", "hosts that can't be read"), danger=0)
    name = text if text.isascii() else f"{rule.name} (written {text})"
    if rule.name == "*":
        return Item(name=name, kind=("rule for every host", "rules for every host"), danger=0, after="every host")
    if rule.name in LOOPBACK_NAMES or (rule.network is not None and rule.network.is_loopback):
        return Item(name=name, kind=("port of this machine",) * 2, danger=0, after="this machine itself")
    if rule.network is not None:
        # A name that resolves to such an address is refused: clouds give out keys at addresses that are not public.
        kind = special_kind(rule.network.network_address)
        what = f"not public: {kind}" if kind else "an address, not a name"
        return Item(name=name, kind=("address", "addresses"), danger=1, after=what)
    if rule.name.startswith("*."):
        return Item(name=name, kind=("rule for many hosts", "rules for many hosts"), danger=2, after="every name below")
    return Item(name=name, kind=("host", "hosts"), danger=3)


def unsandboxed_question(
    command: str, directory: str, project: str, run: str, program: str | None, details: tuple[str, ...] = (),
    roots: tuple[str, ...] = (),
) -> Question:  # fmt: skip
    """Return the question to run without a sandbox; `program` is None unless the answer may be kept for a program."""
    kept_for = (f"an answer that is kept is for {program}, with any arguments",) if program else ()
    return Question(
        what=UNSANDBOXED, text=f"Run command without a sandbox: {command}?", command=command, directory=directory,
        project=project, target=program or run, details=(*details, *kept_for), one_time_only=program is None, run=run,
        remedy="fumehood doctor says what a sandbox needs here", about=digest_of(*roots),
    )  # fmt: skip


def root_question(path: str, project: str, link: str | None = None) -> Question:
    """Return the question to let a project's commands write another directory; `link` is a symlink that leads there."""
    if link is None:
        text, what = f"Let commands write another directory: {path}?", ROOT
    else:
        text, what = f"Let commands write what a symlink leads to: {link} → {path}?", LINKED_ROOT
    return Question(
        what=what, text=text, command="", directory=project, project=project, target=path, one_time_only=True,
        is_lasting=True, details=("it stays a root of this project until: fumehood roots remove",),
        ahead=_command_to_allow("roots add", project, path),
    )  # fmt: skip


def write_question(path: str, command: str, directory: str, project: str, run: str) -> Question:
    """Return the question to let one command write a directory that is not a root of its project."""
    return Question(
        what=ROOT, text=f"Let one command write another directory: {path}?", command=command, directory=directory,
        project=project, target=run, run=run, one_time_only=True, details=("for this run only",), about=path,
        ahead=f"what is a root needs no question: fumehood roots add {word(path)}",
    )  # fmt: skip


def _command_to_allow(words: str, project: str, what: str) -> str:
    """Return the command by which a person can allow something, from any directory."""
    return f"to allow it, at a terminal: fumehood {words} {word(what)} --project {word(project)}"


def reason_lines(reason: str) -> tuple[str, ...]:
    """Return an agent's reason as details of a question."""
    return (f"the agent says: {reason}",) if reason.strip() else ()


def host_question(host: str, project: str, reason: str = "") -> Question:
    """Return the question to let later commands reach a host."""
    return Question(
        what=HOST, text=f"Let an agent's commands reach a host: {host}?", command="", directory=project,
        project=project, target=host, items=(_host_item(host),), details=reason_lines(reason), is_lasting=True,
        ahead=_command_to_allow("ask", project, host),
    )  # fmt: skip


def show_question(path: str, project: str, reason: str = "") -> Question:
    """Return the question to let later commands read a path of the home."""
    return Question(
        what=SHOW, text=f"Let an agent's commands read a path of your home: {path}?", command="", directory=project,
        project=project, target=path, details=reason_lines(reason), is_lasting=True,
        ahead=_command_to_allow("ask --show", project, path),
    )  # fmt: skip


class Decision(Value):
    """A yes or a no; `answer` is the person's answer, or "" if an earlier answer or nobody decided it."""

    allowed: bool
    answer: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        """The decision in words, for the record."""
        answer = self.answer.replace("_", " ")
        return f"{answer} ({self.reason})" if answer and self.reason else answer or self.reason


def earlier_answer(question: Question, session: Mapping[Key, str], kept: Mapping[Key, str]) -> str:
    """Return what earlier answers say: allow, deny, or ask. Answers for the session come before kept ones."""
    earlier = session.get(question.key) or kept.get(question.key) or ASK
    return ASK if question.one_time_only else earlier


def answer_scope(answer: str) -> str:
    """Return how long an answer holds: once, session or always."""
    return answer.partition("_")[2]


def answer_verdict(answer: str) -> str:
    """Return what an answer says: allow or deny."""
    return answer.partition("_")[0]


def parse_answer(question: Question, answer: object) -> str:
    """Return one of the six answers for an answer from outside; None is a no.

    An answer that lasts longer than the question allows holds once.
    """
    if answer is None or isinstance(answer, bool):
        return question.options[0] if answer else DENY_ONCE  # True: the option that allows least
    if not isinstance(answer, str) or answer not in (ALLOW, DENY, *ANSWERS):
        raise BadRequest(f"{answer!r} is not an answer to a question", hint=f"one of: {', '.join(ANSWERS)}")
    if answer in question.options:
        return answer
    return question.options[0] if answer_verdict(answer) == ALLOW else DENY_ONCE


# The question about held changes: its items in order of danger, and a digest of exactly these changes.

# For each flag, how dangerous it is (0 is the worst), and the words by which such changes are counted.
_RUN_BY_GIT = 0, ("file that git acts on", "files that git acts on")
_LINK = 3, ("link out of the project", "links out of the project")
_BUILD = 4, ("file that runs in a build or a start", "files that run in a build or a start")
_OTHER = 5, ("other change", "other changes")
_FLAGS: dict[str, tuple[int, tuple[str, str]]] = {
    "git-hook": (0, ("git hook", "git hooks")),
    "git-config": (0, ("git configuration", "git configurations")),
    "shell-settings": (0, ("file that shells run", "files that shells run")),
    "setuid": (1, ("set-uid file", "set-uid files")),
    "editor-settings": (2, ("editor setting", "editor settings")),
    "agent-settings": (2, ("agent setting", "agent settings")),
    "outside-link": _LINK, "interpreter-link": _LINK, "system-link": _LINK,
    "build-script": _BUILD, "startup-file": _BUILD, "container": _BUILD, "ci-workflow": _BUILD, "hook-manager": _BUILD,
    "package-settings": _BUILD, "tool-versions": _BUILD, "variables-file": _BUILD,
    "agent-instructions": _BUILD, "git-remote": _BUILD,
    "own-rule": (4, ("file that a rule of yours names", "files that rules of yours name")),
    c.NEW_OWNER: _OTHER, c.NEW_GROUP: _OTHER, c.OTHER_NAMES: _OTHER, c.COPIED_LINKS: _OTHER,
}  # fmt: skip
_UNKNOWN = 0, ("change that may run by itself", "changes that may run by themselves")


def held_digest(run: Run, changes: Sequence[c.Change]) -> str:
    """Return a digest of held changes: the run, their paths, reasons and versions."""
    identities = []
    for change in changes:
        # Without the number of hard links: a person may add one, and it is still the same version.
        before, after = (
            "" if stamp is None else stamp.text().rpartition(" ")[0] for stamp in (change.before, change.after)
        )
        parts = (change.path, change.change, change.kind, change.verdict, change.reason, " ".join(change.flags))
        identities.append("\0".join((run.roots[change.root], *parts, before, after)))
    return digest_of(run.run, *identities)


def held_item(run: Run, change: c.Change) -> Item:
    """Return a held change as an item of a question."""
    flags = [flag.partition(":")[0] for flag in change.flags]
    rated = [_FLAGS.get(flag, _RUN_BY_GIT if flag.startswith("git-") else _UNKNOWN) for flag in flags]
    danger, kind = min(rated, default=_OTHER)
    path = change.path if change.root == 0 else f"{run.roots[change.root]}/{change.path}"
    what = change.change if change.kind == c.FILE else f"{change.change} {change.kind}"
    return Item(name=path, kind=kind, danger=danger, before=what, after=change.reason)


def changes_waiting(run: Run) -> list[c.Change]:
    """Return the changes of a run that wait for a person's decision."""
    return [change for change in run.changed if change.verdict in c.WAITING]


def apply_question(run: Run) -> Question:
    """Return the question to apply all that a run holds; a yes is for exactly the changes that it holds now."""
    held = [change for change in run.changed if change.verdict == c.HELD]
    conflicts = len(changes_waiting(run)) - len(held)
    stay = "stays as it is" if conflicts == 1 else "stay as they are"
    return Question(
        what=APPLY_HELD, text=f"Apply the changes that run {run.name} holds?", command=run.command,
        directory=run.project, project=run.project, target=run.run, run=run.run, one_time_only=True,
        items=tuple(held_item(run, change) for change in held), about=held_digest(run, changes_waiting(run)),
        ahead=f"to look and choose: fumehood review {run.name}",
        details=(
            f"line by line: fumehood diff {run.name}",
            *([f"{conflicts} in conflict with your own edits {stay}"] if conflicts else []),
        ),
    )  # fmt: skip
