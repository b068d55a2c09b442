"""A hood: one project with its policy, surroundings and permissions; and how a caller takes part in a run."""

from __future__ import annotations

from fumehood.core.policy import BUILD_TOOLS_PROFILE, profiles_for
from fumehood.core.request import checked_command
from fumehood.core.value import Value
from fumehood.errors import Refused
from fumehood.linux.hostview import HostViews
from fumehood.linux.probe import host
from fumehood.linux.streams import CLOSED, is_repeatable_input
from fumehood.service.permission import Permissions
from fumehood.service.surroundings import Surroundings
from fumehood.store.audit import DECIDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Protocol, Self

    from fumehood.core.inside import Agent
    from fumehood.core.policy import Policy, Profile
    from fumehood.core.questions import Decision, Question
    from fumehood.core.report import Run
    from fumehood.core.request import Request
    from fumehood.linux.launch import Starter
    from fumehood.linux.namespaces import Layer
    from fumehood.linux.probe import Host
    from fumehood.linux.process import Partner, StoppableSource
    from fumehood.linux.streams import CommandInput, Sink
    from fumehood.linux.terminal import ProgramTerminal, Signals, Terminal
    from fumehood.service.ask import Ask
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

    Variables = Callable[[], Mapping[str, str]]

    class TakingPart(Partner, Protocol):
        """A program that is told what becomes of its command."""

        def note_run(self, run: str) -> None:
            """The run has this id, and is about to start."""
        def note_start(self) -> None:
            """Its command has started."""
        def finish(self) -> None:
            """Everything that was printed has been passed on; raises what the program's own functions raised."""


class Caller(Value):
    """Whoever runs a command, and how they take part in it: input, output, questions, signals."""

    stdin: CommandInput = CLOSED
    on_stdout: Sink | None = None
    on_stderr: Sink | None = None
    watch: Callable[[Sequence[Layer]], StoppableSource] | None = None
    cancelled: Callable[[], bool] | None = None
    terminal: Terminal | ProgramTerminal | None = None  # the command's own, in place of pipes
    partner: TakingPart | None = None  # the program, where it takes part from another thread
    is_agents_terminal: bool = False  # an agent types there: its Ctrl-C is no person's decision
    on_again: Callable[[str], None] | None = None  # called with the reason when the command is run again
    on_install: Callable[[str, int, int], None] | None = None  # called with the progress of installing a root tree
    is_one_stream: bool = False  # errors come in the standard output too, in order
    signals: Signals | None = None  # that end the command; if None, KeyboardInterrupt ends it
    asks: tuple[Ask, ...] = ()  # who may answer questions of this run, in place of the usual ones

    @property
    def given_up(self) -> Callable[[], bool] | None:
        """A function that is true once nobody waits for the command any more; for questions before it begins."""
        partner = self.partner
        return self.cancelled if partner is None or self.cancelled is not None else lambda: bool(partner.request)

    @property
    def can_run_twice(self) -> bool:
        """Return True if a second run of the command would get the same input as the first."""
        return self.terminal is None and is_repeatable_input(self.stdin)


class Hood:
    """One project, ready to run commands: its policy, surroundings, permissions, and the launcher."""

    def __init__(
        self, store: Store, project: Project, policy: Policy, start: Starter, permissions: Permissions | None = None
    ) -> None:
        self.store = store
        self.project = project
        self.policy = policy
        self.start = start
        self.permissions = Permissions(store) if permissions is None else permissions
        self.surroundings = Surroundings(store.places, policy, HostViews(store.places.cache, store.projects.paths))
        self.profiles: tuple[Profile, ...] = ()
        self.withheld_grants: dict[str, Any] = {}  # what its profiles would grant if it were a plain command
        self.agent: Agent | None = None  # the agent that runs in the hood as a whole
        self.variables: Variables | None = None  # called for each run; its result is never stored
        self._host: Host | None = None

    def replace(self, **changed: Any) -> Self:
        """Return a hood with other attributes; what is already known about the host is shared."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, **changed)
        other.surroundings = self.surroundings.with_policy(other.policy)
        return other

    def host(self) -> Host:
        """Return what this host can do."""
        if self._host is None:
            self._host = host(self.store.places.cache, self.store.places.state)
        return self._host

    def with_profiles(self, request: Request) -> tuple[Self, Request]:
        """Return the hood and the request with what the command's profiles add; most commands have none."""
        if request.agent is not None:
            policy = self.policy.with_settings(request.agent.settings)
            return self.replace(policy=policy, profiles=(BUILD_TOOLS_PROFILE,), agent=request.agent), request
        profiles = profiles_for(self.policy.profiles, checked_command(request.command))
        if not profiles:
            return self, request
        from fumehood.service.profiles import apply_profiles

        policy, request, withheld_grants = apply_profiles(self.store, self.project, self.policy, request, profiles)
        return self.replace(policy=policy, profiles=profiles, withheld_grants=withheld_grants), request

    def permissions_for(self, caller: Caller) -> Permissions:
        """Return the permissions for a run: its caller may name who is asked."""
        return self.permissions.with_asks(caller.asks) if caller.asks else self.permissions

    def require_permission(self, run: Run, question: Question, caller: Caller) -> None:
        """Have a question answered before the run begins; a no is recorded as a refused run, and raises Refused."""
        try:
            self.record_decision(run, question, self.permissions_for(caller).require(question, caller.given_up))
        except Refused as error:
            mark_refused(run, error)
            self.store.history.refuse(self.project.id, run)
            raise

    def record_decision(self, run: Run, question: Question, decision: Decision) -> None:
        """Write to the audit trail what a person decided."""
        from fumehood.core.questions import NETWORK

        hosts = f" ({', '.join(question.details)})" if question.what == NETWORK else ""
        detail = f"{decision.text}: {question.text}{hosts}"
        self.store.audit.add_event(run.run, DECIDED, detail, project=self.project.id)


def mark_refused(run: Run, error: Refused) -> None:
    """Write into the run, and into the error, that the run was refused and why."""
    from fumehood.service.settle import REFUSED

    run.state, run.reason, run.exit_code = REFUSED, error.message, error.exit_code
    run.stdout = run.stderr = ""
    error.run, error.report = run.run, run.as_dict()
