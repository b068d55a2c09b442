"""The story of one command: permission, layers, launch, scan, judge, apply, report, in this order.

`run_in` prepares the hood and the request. The steps are methods of `Attempt`, in the order of `perform`.
"""

from __future__ import annotations

import os
import time
from _thread import get_ident

from fumehood.core.changes import HELD
from fumehood.core.policy import FULL, HIDDEN, NONE, OFFLINE, decide_network, default_variables
from fumehood.core.report import STOPPED, Run, printable
from fumehood.core.request import (
    ALPINE,
    APPLY,
    SESSION_BIN,
    WHOLE,
    Request,
    build_argv,
    check_request,
    checked_command,
    command_text,
    start_on_terminal,
)
from fumehood.errors import RAISED_BY, BadRequest, NoDirectory, Refused, end_reason
from fumehood.linux import capture as capturing
from fumehood.linux.launch import owner_of
from fumehood.linux.libc import InterruptsHeld
from fumehood.linux.streams import BwrapLineFilter
from fumehood.service import layers as layering
from fumehood.service.hood import Caller, Hood, mark_refused
from fumehood.service.permission import add_granted_access, decide_access
from fumehood.service.running import CheckpointTimer, Execution, output_streams, record_result, recordable_output
from fumehood.service.surroundings import World, host_or_tree_world
from fumehood.store.places import ensure_room_to_begin, new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from fumehood.core.inside import AccessRequest
    from fumehood.core.questions import Decision, Question
    from fumehood.linux.capture import Capture, ForeignFile
    from fumehood.linux.launch import Plan, Streams
    from fumehood.linux.mounts import Operation
    from fumehood.linux.namespaces import Layer
    from fumehood.linux.process import Outcome, Running
    from fumehood.service.checkpoint import Checkpoints
    from fumehood.service.hood import Variables
    from fumehood.service.network import LiveQuestions, NetworkAccess
    from fumehood.service.running import CommandResult
    from fumehood.service.session import SessionRun

_CTRL_C_STATUS = 130  # of a command that ended by it
_retrying_threads: set[int] = set()  # threads in which a command is being run again


def run_in(hood: Hood, request: Request, caller: Caller) -> Run:
    """Run a command in a hood, from request to report."""
    if hood.variables is not None:
        request = request.replace(environment=(*_call_variables(hood.variables), *request.environment))
    check_request(request)
    # Before anything is tested in the state directory: on a full disk, nothing would seem to work.
    ensure_room_to_begin(hood.store.places.state)
    adapted_hood, request = _prepare(hood, request, caller)
    try:
        run = _run_until_settled(adapted_hood, request, caller)
    except Exception:
        hood.store.recover()  # holds what the command had written by then
        raise
    if run.below:
        from fumehood.service.held import remove_unneeded_trees

        remove_unneeded_trees(hood.store, hood.project.id, run)
    return run


def _call_variables(variables: Variables) -> Iterable[tuple[str, str]]:
    """Return the variables that the program's own function gives this run. They may be secrets: never show them."""
    try:
        values: Any = variables()
    except Exception as error:
        error.add_note(f"{RAISED_BY}variables")
        raise
    if not hasattr(values, "items"):
        raise BadRequest(f"variables returned a {type(values).__name__}", hint="names and values, as a dict")
    pairs: Iterable[tuple[str, str]] = values.items()
    return pairs


def _prepare(hood: Hood, request: Request, caller: Caller) -> tuple[Hood, Request]:
    """Return the hood and the request adapted to this one command; most commands need no change."""
    host, store, adapted = hood.host(), hood.store, hood
    if request.draft or (hood.policy.drafts and request.session):
        from fumehood.service.drafts import in_draft

        request = in_draft(store, hood.project, request)
    if granted := store.grants.allowed(hood.project.path, request.session):
        adapted = adapted.replace(policy=add_granted_access(adapted.policy, granted))
    if request.output_limit is not None:
        adapted = adapted.replace(policy=adapted.policy.replace(output_limit=request.output_limit))
    if request.throwaway:  # there is no project, so nothing is kept for a next command
        rootfs = adapted.policy.rootfs.replace(writable=False)
        adapted = adapted.replace(policy=adapted.policy.replace(rootfs=rootfs))
    adapted, request = adapted.with_profiles(request)
    if adapted.withheld_grants and adapted.permissions_for(caller).somebody_can_answer(hood.project.path):
        from fumehood.service.profiles import request_withheld_grants

        request = request_withheld_grants(request, adapted.withheld_grants)
        adapted = adapted.replace(withheld_grants={})
    if adapted.policy.rootfs.install and (request.root or adapted.policy.root) == ALPINE and not host.why_bare:
        from fumehood.service.root_trees import install_if_missing

        install_if_missing(store, adapted.policy.rootfs, caller.on_install)
    if request.client_directories:
        from fumehood.service.roots import offer_client_directories

        request = offer_client_directories(hood, request, caller)
        # A directory that a person has allowed is a root of hood.project now.
        adapted = adapted.replace(project=hood.project)
    if request.write is not None:
        from fumehood.service.roots import with_write_limit

        adapted, request = with_write_limit(adapted, request)
    return adapted, request


def _run_until_settled(hood: Hood, request: Request, caller: Caller) -> Run:
    """Run a command; run it again if it conflicts only with other runs. Commands that run again take turns."""
    can_conflict = request.mode in (APPLY, WHOLE) or request.draft_number is not None
    tries = hood.policy.again.tries if can_conflict and caller.can_run_twice else 1
    if get_ident() in _retrying_threads:
        # A function that attends a command, in its thread, has started this one: it can't wait for that command's turn.
        tries = 1
    turn, reason = None, ""
    try:
        while True:
            tries -= 1
            try:
                return _run_in_session(hood, request, caller, reason, may_run_again=tries > 0)
            except layering.RunAgain as again:
                from fumehood.service.settle import AGAIN

                reason, place = f"{AGAIN}{again}", again.place
                if caller.on_again is not None:
                    caller.on_again(reason)
            if turn is None:
                lock = hood.store.lock_retries(hood.project.id, place)
                lock.__enter__()
                turn = lock
                _retrying_threads.add(get_ident())
    finally:
        if turn is not None:
            _retrying_threads.discard(get_ident())
            turn.__exit__()


def _run_in_session(hood: Hood, request: Request, caller: Caller, reason: str, *, may_run_again: bool) -> Run:
    """Run a command once; in a session, begin where its last command ended."""
    with layering.RunDirectory(hood.store.places, new_id()) as directory:
        if caller.partner is not None:
            caller.partner.note_run(directory.run)
        if not request.session:
            return _run_once(hood, directory, request, caller, None, reason, may_run_again=may_run_again)
        from fumehood.service.session import SessionRun

        shells: Sequence[Operation] = ()
        if request.each_command:
            from fumehood.service.agent_shells import shell_mounts

            shells = shell_mounts(hood.store.places.cache)
        keeps_tmp = request.own_tmp or hood.policy.tmp == "session"
        with SessionRun(
            hood.store, hood.project, request, directory.run, keeps_tmp=keeps_tmp, shells=shells
        ) as session_run:
            start_here = request.replace(cwd=request.cwd or session_run.session.cwd)
            try:
                return _run_once(
                    hood, directory, start_here, caller, session_run, reason, may_run_again=may_run_again
                )
            except NoDirectory as error:
                if request.cwd:
                    raise
                # The last command's directory is gone. In another one, this command would do something else.
                hint = f"nothing ran; the session's next command starts in {printable(hood.project.path)}"
                session_run.forget_directory()
                raise NoDirectory(str(error), hint=hint) from error


def _run_once(
    hood: Hood, directory: layering.RunDirectory, request: Request, caller: Caller, session_run: SessionRun | None,
    reason: str, *, may_run_again: bool,
) -> Run:  # fmt: skip
    if hood.host().why_bare:
        from fumehood.service.unsandboxed import run_without_sandbox

        return run_without_sandbox(hood, directory, request, caller)
    return Attempt(hood, directory, request, caller, session_run, reason).perform(may_run_again=may_run_again)


class Attempt:
    """One command in its sandbox, from permission to report. A command that is run again is another attempt."""

    def __init__(
        self, hood: Hood, directory: layering.RunDirectory, request: Request, caller: Caller,
        session_run: SessionRun | None, reason: str,
    ) -> None:  # fmt: skip
        self.hood = hood
        self.run_directory = directory
        self.request = request
        self.caller = caller
        self.session_run = session_run
        self.world = build_world(hood, request, directory.run, session_run)
        self.permissions = hood.permissions_for(caller)
        self.network = decide_network(request.network, request.hosts, hood.policy)
        project = hood.project
        if self.network.to_ask and request.if_granted and not self.permissions.somebody_can_answer(project.path):
            # Else every command of the agent would be refused. One that needs these hosts learns it when it connects.
            self.network = decide_network(NONE, (), hood.policy)
        self.run = Run(
            run=directory.run, project=project.path,
            command=request.title or command_text(checked_command(request.command)),
            cwd=self.world.start_directory(request.cwd, project.path), state="running", network=self.network.mode,
            started_at=time.time(), mode=request.mode, dropped=self.world.dropped, roots=project.roots,
            session=request.session or None, hosts=self.network.hosts, reason=reason or request.remark,
            draft=request.draft_number, draft_name=request.draft or None,
        )  # fmt: skip

    def perform(self, *, may_run_again: bool) -> Run:
        """Take every step and return the report; raises RunAgain where the run gives way to other runs."""
        self._require_permission()
        capture = self._make_layers()
        try:
            with self.world.lock_tree(self.run.capture) as self.world:
                execution = self._make_execution(capture)
                result = self._run_command(execution)
        except BaseException as error:
            self._record_failure(capture.layers, error)
            raise
        from fumehood.service.settle import InterruptibleScan, settle

        hood, run, layers, indexes = self.hood, self.run, capture.layers, self.run_directory.indexes
        output = recordable_output(result)
        # The command has ended. Ctrl-C can still end a long scan of what it changed, and nothing after that.
        with InterruptsHeld() as interrupts:
            with InterruptibleScan(hood.store, run, output, self.caller.signals, interrupts):
                run.changed = layering.scan_layers(layers, indexes)
                self.run_directory.refuse_replaced_roots(run.changed)
                ended_by = self._judge(execution, result, layers)
                may_run_again = may_run_again and not ended_by and self._left_no_trace(layers)
            settle(
                hood.store, hood.project.id, run, output, layers, hood.policy.on_conflict,
                may_run_again=may_run_again, indexes=indexes,
            )  # fmt: skip
            self._finish_report()
        result.outcome.raise_interrupt()
        return run

    # ---- 1. Permission. A sandboxed run without a network needs nobody's permission.

    def _require_permission(self) -> None:
        if self.network.to_ask:
            self.hood.require_permission(self.run, self._hosts_question(self.network.to_ask), self.caller)
        for path in self.request.extra_roots:
            from fumehood.core.questions import write_question

            run = self.run
            question = write_question(path, run.command, run.cwd, run.project, run.run)
            self.hood.require_permission(run, question, self.caller)

    def _hosts_question(self, hosts: tuple[str, ...]) -> Question:
        from fumehood.core.questions import network_question

        run = self.run
        return network_question(run.command, run.cwd, run.project, run.run, hosts, run.roots)

    # ---- 2. Layers. The run is recorded. Its layers lie over those of held runs, so the command sees held changes too.

    def _make_layers(self) -> Capture:
        hood, run, request = self.hood, self.run, self.request
        store, project, places = hood.store, hood.project, hood.store.places
        failed_files: Sequence[ForeignFile] = ()
        if os.path.exists(places.foreign_files_list(project.id)):
            from fumehood.service.blocked import unchangeable_files

            failed_files = unchangeable_files(places, project)
        choice = capturing.choose(hood.host(), hood.policy.capture, run.roots, failed_files)
        run.capture, run.reason = choice.way, "; ".join(filter(None, (run.reason, choice.why)))
        if request.each_command and (run.capture != capturing.KERNEL or run.mode != APPLY):
            why = f"which {capturing.LABELS[run.capture]} has not" if run.mode == APPLY else "and nothing is applied"
            raise BadRequest(f"--each-command needs checkpoints, {why}", hint="leave it out")
        store.recover()
        self.run_directory.create()
        with store.lock_held_trees(project.id, settling=False):
            store.ensure_recorded(project)
            if run.draft is not None and not store.drafts.is_open(run.draft):
                layering.drop(places, run.run)
                raise BadRequest(f"draft {run.draft_name} is no longer there", hint="fumehood draft new begins one")
            run.below = tuple(store.history.held_runs(project.id, run.draft))
            store.history.begin(project.id, run, os.getpid())
        held_trees: list[tuple[str, ...]] = []
        if run.below:
            from fumehood.service.held import trees_below

            held_trees = trees_below(store, project.id, run)
        layers = layering.make(places, run.run, run.roots, run.capture, held_trees, request.snapshot, choice.overlaid)
        self.run_directory.note_roots(run.roots)
        return capturing.Capture(run.capture, layers, self.world.targets, choice.groups, self.world.write)

    # ---- 3. Launch, and the command's life to its end.

    def _make_execution(self, capture: Capture) -> Execution:
        """Return the sandbox for the command, with the checkpoints that can be made while it runs."""
        hood, run, request, session_run = self.hood, self.run, self.request, self.session_run

        def make_checkpoints() -> Checkpoints:
            from fumehood.service.checkpoint import Checkpoints

            targets = [target for _, target in capture.targets]
            return Checkpoints(hood, run, capture.layers, self.run_directory, targets)

        shell_commands = None
        if request.each_command and session_run is not None:
            from fumehood.service.agent_shells import ShellCommands

            shell_commands = ShellCommands(make_checkpoints(), request.agent, layering.init_file(capture.layers))
            session_run.requests.on_shell_message = shell_commands.handle_message

        def make_timer() -> CheckpointTimer:
            return CheckpointTimer(hood, run, make_checkpoints, request.background_after, shell_commands)

        def start(plan: Plan, streams: Streams) -> Running:
            running = hood.start(plan, streams)
            # While the sandbox is being made, load the modules for what comes after the command: nobody waits now.
            from fumehood.linux import process  # noqa: F401
            from fumehood.service import blocked, settle  # noqa: F401

            return running

        return Execution(
            hood.replace(start=start), self.world, capture, session_run, indexes=self.run_directory.indexes,
            stop_mark=hood.store.places.stop_mark(run.run), make_timer=make_timer,
        )  # fmt: skip

    def _run_command(self, execution: Execution) -> CommandResult:
        """Run the command to its end, with its network; record in the run how it ended and what it printed."""
        run, request, caller, world, session_run = self.run, self.request, self.caller, self.world, self.session_run
        shell = world.shell
        if request.each_command:
            from fumehood.service.agent_shells import real_shell

            shell = real_shell(shell)
        line = build_argv(
            checked_command(request.command), shell, source=request.source, tells_cwd=session_run is not None
        )
        run.one_stream = caller.is_one_stream or caller.terminal is not None
        error_sink = caller.on_stdout if caller.is_one_stream else caller.on_stderr
        errors = None if error_sink is None else BwrapLineFilter(error_sink)
        sinks = (errors, None) if caller.is_one_stream else (caller.on_stdout, errors)
        policy = self.hood.policy
        streams = output_streams(self.hood.store.places, run.run, policy.output_limit, sinks)
        questions = self._make_live_questions()
        access = None if self.network is OFFLINE else self._make_network_access(questions)
        if session_run is not None:
            self._accept_requests(session_run, questions)
        try:
            result = execution.run(
                line if caller.terminal is None else start_on_terminal(line), world.inside(run.cwd), streams,
                policy.timeout if request.timeout is None else request.timeout, caller, access, questions,
            )  # fmt: skip
            if errors is not None:
                errors.release()
            if caller.partner is not None:
                caller.partner.finish()
            record_result(run, result)
        finally:
            if questions is not None:
                questions.close()
            if access is not None:
                access.stop(run)
            if questions is not None:
                questions.finish()
        return result

    def _make_live_questions(self) -> LiveQuestions | None:
        """Return the object that puts the command's requests to a person, or None if nobody can be asked."""
        can_ask = self.session_run is not None and self.permissions.somebody_can_answer(self.hood.project.path)
        if not (can_ask or self.network.asks):
            return None
        from fumehood.service.network import LiveQuestions

        def decide_host(place: str, is_closed: Callable[[], bool]) -> Decision:
            cancelled = self.caller.cancelled
            question = self._hosts_question((place,))
            decision = self.permissions.decide(
                question, lambda: is_closed() or (cancelled is not None and cancelled())
            )
            self.hood.record_decision(self.run, question, decision)
            return decision

        return LiveQuestions(decide_host)

    def _make_network_access(self, questions: LiveQuestions | None) -> NetworkAccess:
        from fumehood.service.network import NetworkAccess

        makes_namespaces = self.hood.host().makes_namespaces
        return NetworkAccess(
            self.network, questions=questions if self.network.asks else None,
            resolvers=self.world.resolvers() if makes_namespaces else (),
            in_session=makes_namespaces and self.session_run is not None,
        )  # fmt: skip

    def _accept_requests(self, session_run: SessionRun, questions: LiveQuestions | None) -> None:
        """Let the command use `fumehood` inside; what it asks a person for is asked here if somebody can answer."""
        requests, hood, permissions = session_run.requests, self.hood, self.permissions
        requests.outside, requests.roots_inside = self.world.outside, self.world.targets
        if questions is None or not permissions.somebody_can_answer(hood.project.path):
            return  # then a process of its own asks whoever has come meanwhile

        def ask_person(widenings: Sequence[AccessRequest]) -> str:
            def decide(question: Question) -> Decision:
                return questions.decide_in_turn(lambda is_closed: permissions.decide(question, is_closed))

            answers = decide_access(hood.store, hood.project, session_run.session.name, widenings, decide)
            return "".join(f"{line}\n" for line in answers)

        requests.questions, requests.ask_person = questions, ask_person

    def _record_failure(self, layers: Sequence[Layer], error: BaseException) -> None:
        """Record why the run failed. If the command may have written, the next start finds the run and holds that."""
        run, store = self.run, self.hood.store
        run.reason = end_reason(error)
        if isinstance(error, Refused):
            mark_refused(run, error)
        if layering.may_have_written(store.places, run, layers):
            store.history.end(run)
            return
        from fumehood.service.settle import FAILED

        run.state = FAILED
        store.history.end(run)
        layering.drop(store.places, run.run)

    # ---- 4. Judge.

    def _judge(self, execution: Execution, result: CommandResult, layers: Sequence[Layer]) -> str:
        """Give each change its verdict, and note what the command was refused; returns what cut it short, or ""."""
        from fumehood.service.blocked import find_blocked, why_incomplete

        store, run = self.hood.store, self.run
        run.blocked = find_blocked(run, execution, self.network, self.request, result)
        ended_by = why_ended_early(result.outcome, self.caller) or why_incomplete(run, store.places.state)
        if run.changed or ended_by:
            from fumehood.service.verdicts import give_verdicts

            give_verdicts(store, run, layers, self.request.mode, self.hood.policy.rules, ended_by)
        return ended_by

    def _left_no_trace(self, layers: Sequence[Layer]) -> bool:
        """Return True if nothing of a short run has left the hood yet, so that it can be run again."""
        run = self.run
        return (
            not layering.is_checkpointed(layers) and run.duration_s < self.hood.policy.again.within
            and run.network != FULL and not run.new_connections
            and not (self.session_run is not None and self.session_run.has_asked)
        )  # fmt: skip

    # ---- 5. Settle and apply: service/settle.py. Then the report is completed.

    def _finish_report(self) -> None:
        from fumehood.service.blocked import forget_unwritable_files

        store, project, run = self.hood.store, self.hood.project, self.run
        # Only now: a command that is run again must begin in the same directory as the first time.
        run.ended_in = self.session_run.save(self.world.outside) if self.session_run is not None else ""
        forget_unwritable_files(store.places, project, run)
        if run.draft is not None and run.state == HELD:
            from fumehood.service.drafts import prepare_next_run

            prepare_next_run(store, project, run)


def why_ended_early(outcome: Outcome, caller: Caller) -> str:
    """Return why a command did not end by itself, so that its changes must be held; "" if it did.

    Half of a command's changes can be worse than none, and nobody has seen yet what they are. A person who presses
    Ctrl-C at their terminal has seen it, so that counts as an end of its own.
    """
    if outcome.limit is not None:
        is_stopped = outcome.limit.what == STOPPED
        return "ended by fumehood stop" if is_stopped else f"ended by a limit: {outcome.limit.detail}"
    signals = [] if caller.signals is None else caller.signals.sent_names(outcome.signals)
    if outcome.raised or (caller.is_agents_terminal and outcome.exit.status == _CTRL_C_STATUS):
        signals.append("SIGINT")
    if outcome.exit.killed_by:
        from signal import Signals

        signals.append(Signals(outcome.exit.killed_by).name)
    if signals:
        return f"ended by a signal: {signals[0]}"
    if outcome.interrupted and caller.cancelled is not None and caller.cancelled():
        return "ended by the program that asked for it"
    return "ended by the time limit" if outcome.timed_out else ""


# ---- What surrounds a command.


def build_world(hood: Hood, request: Request, run: str, session_run: SessionRun | None = None) -> World:
    """Return what surrounds a command: the host or a root tree, and what request, session and profiles add to it."""
    world, project, profiles = _host_or_tree(hood, request), hood.project.path, hood.profiles
    own_environment = world.environment
    environment = {
        **default_variables(profiles), **own_environment, **(session_run.variables if session_run else {}),
        **dict(request.environment),
    }  # fmt: skip
    if session_run is not None:
        environment["PATH"] = f"{SESSION_BIN}:{environment.get('PATH', os.defpath)}"
    world = world.replace(
        environment=environment, host_shell=request.shell or world.host_shell, source=request.source,
        thrown=request.throwaway,
    )  # fmt: skip
    if request.write is not None:
        playground = world.playground
        if playground is not None and not request.write:  # a read-only run may not write the playground either
            playground = playground.replace(is_writable=False)
        world = world.replace(write=request.write, playground=playground)
    keeps_tmp = hood.policy.tmp == "project" and not request.throwaway
    if not keeps_tmp and not any(each.scratch for each in profiles):
        return world
    from fumehood.service.profiles import Scratch, scratch_requests

    # Not the variables of the session or the request: these are the commands' own words, and would let a command
    # choose what of the host it sees.
    requests = scratch_requests(profiles, own_environment, own_environment.get("HOME", "/"))
    if request.throwaway:
        requests = tuple(each.replace(keep=False) for each in requests)
    if hood.agent is None:
        return world.replace(scratch=Scratch(hood.store.places, project, run, requests, keeps_tmp=keeps_tmp))
    from fumehood.service.agents import AgentScratch

    scratch = AgentScratch(
        hood.store.places, project, run, requests, keeps_tmp=keeps_tmp, agent=hood.agent, environment=environment,
        roots=hood.project.roots,
    )  # fmt: skip
    return world.replace(scratch=scratch)


def _host_or_tree(hood: Hood, request: Request) -> World:
    layering.require_roots_exist(hood.project.roots)
    return host_or_tree_world(
        hood.store.places, hood.policy, request.root or hood.policy.root, hood.project.roots,
        owner_of(hood.project.path), hood.project.id,
        makes_points=hood.policy.home == HIDDEN
        or (hood.host().makes_namespaces and hood.policy.capture != capturing.BWRAP),
    )  # fmt: skip


# ---- What a person would be asked, without running anything.


def questions_for(hood: Hood, request: Request) -> tuple[Question, ...]:
    """Return what a person would be asked before this request runs."""
    command = checked_command(request.command)
    if hood.host().why_bare:
        from fumehood.service.unsandboxed import questions_without_sandbox

        return questions_without_sandbox(hood, request)
    hood, request = hood.with_profiles(request)
    if hood.withheld_grants:
        from fumehood.service.profiles import request_withheld_grants

        request = request_withheld_grants(request, hood.withheld_grants)
    hosts = decide_network(request.network, request.hosts, hood.policy).to_ask
    if not hosts:
        return ()
    from fumehood.core.questions import network_question

    cwd = _host_or_tree(hood, request).start_directory(request.cwd, hood.project.path)
    return (network_question(command_text(command), cwd, hood.project.path, "", hosts, hood.project.roots),)
