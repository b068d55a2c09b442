"""What a command was refused and may have missed, each with a hint: the smallest thing that would help."""

from __future__ import annotations

import os

from fumehood.core.changes import ADDED, outermost_roots
from fumehood.core.masks import SERVICES
from fumehood.core.paths import is_in
from fumehood.core.policy import FULL, Network
from fumehood.core.report import (
    HIDDEN_PATH,
    LEFT_AT_HOME,
    OLD_FILES,
    OUTPUT,
    READ_ONLY,
    STILL_RUNNING,
    Blocked,
    Run,
    first_names,
    limit_reached,
)
from fumehood.core.request import shell_quote
from fumehood.errors import BadRequest
from fumehood.linux.cache import replace_file
from fumehood.linux.capture import (
    BWRAP,
    COPY,
    KERNEL,
    LABELS,
    ForeignFile,
    can_change,
    choose,
    examples_of_foreign_files,
    still_foreign,
    user_name,
)
from fumehood.linux.libc import Closing, read
from fumehood.linux.mounts import View
from fumehood.linux.nofollow import is_whiteout, open_below, open_top, split, stat_entry
from fumehood.store.history import RunFilter
from fumehood.store.places import shortage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fumehood.core.policy import Policy
    from fumehood.core.request import Request
    from fumehood.linux.probe import Host
    from fumehood.service.hood import Hood
    from fumehood.service.running import CommandResult, Execution
    from fumehood.service.store import Store
    from fumehood.service.surroundings import World
    from fumehood.store.places import Places
    from fumehood.store.projects import Project

_MAX_NAMED = 3
_SERVER_AFTER_S = 10.0  # a command that has run for so long is a server or a watcher, and does not end soon
_SYSTEM_DIRECTORIES = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/nix", "/proc", "/run", "/sbin", "/sys", "/usr",
    "/var/cache", "/var/lib", "/var/log", "/var/spool",
)  # fmt: skip
_NO_REPOSITORY = "not a git repository: "  # git's words if the repository is hidden, for example in the home
_REFUSALS = ("ead-only", "EROFS", "temporary object directory", _NO_REPOSITORY)
_POLLING = "CHOKIDAR_USEPOLLING=1 WATCHPACK_POLLING=true WATCHFILES_FORCE_POLLING=true"
_ASK = "fumehood ask"  # the command with which a command of a session asks the person


def find_blocked(
    run: Run, execution: Execution, network: Network, request: Request, result: CommandResult
) -> tuple[Blocked, ...]:
    """Return what a command was refused, what a failed command may have missed, and what was thrown away."""
    hood, world, session_run = execution.hood, execution.world, execution.session_run
    store, policy, can_ask = hood.store, hood.policy, session_run is not None
    blocked = list(run.blocked)  # connections
    if result.outcome.limit is not None:
        blocked.append(result.outcome.limit)
    if any(stream.size > stream.saved > 0 for stream in (result.stdout, result.stderr)):
        blocked.append(limit_reached(OUTPUT, policy.output_limit))
    home = "" if result.visible is None else result.visible.temporary_home
    complaints = run.stdout if run.one_stream else run.stderr
    blocked += _refused_writes(hood, run, complaints, world, home, can_ask=can_ask)
    if network.mode != FULL and not any(each.what == "network" for each in run.blocked):
        tries = result.outcome.exit.unrouted
        blocked += _unreached_hosts(run, network, request.hosts, tries, _ASK if can_ask else "")
    blocked += world.blocked
    if session_run is not None:
        blocked += session_run.missing(run)
        if (run.exit_code or run.changed) and len(store.history.unfinished_runs(hood.project.id)) > 1:
            blocked += _unseen_changes(store, run, complaints)
    if overflow_lines(run.stderr) or overflow_lines(run.stdout):  # rarely
        blocked += _report_unchangeable_files(store.places, hood.project, run, hood.host(), policy.capture)
    if run.exit_code and hood.withheld_grants:
        from fumehood.service.profiles import report_withheld_grants

        blocked += report_withheld_grants(hood.withheld_grants)
    if run.exit_code:
        blocked += _paths_of_others(run, complaints)
        _add_suspected_causes(blocked, run, policy, world, result, can_ask=can_ask)
    if result.written_to_home:
        blocked.append(_files_lost_with_home(result.written_to_home))
    for directory in request.client_directories:
        hint = f"to ask the person for it: {_ASK} --write {shell_quote(directory)}"
        blocked.append(Blocked(what=READ_ONLY, detail=directory, hint=hint))
    return tuple(blocked)


def _files_lost_with_home(paths: Sequence[str]) -> Blocked:
    """Return the files that a command left in its home."""
    named = first_names([f"~/{path}" for path in paths], _MAX_NAMED)
    hint = "a command's home is its own and is thrown away with it"
    if any(path.startswith(".") and "/" in path for path in paths):
        hint += "; keep a virtual environment in the project, as .venv"
    return Blocked(what=LEFT_AT_HOME, detail=named, hint=hint)


def why_incomplete(run: Run, state: str) -> str:
    """Return why the command's files may be incomplete although it ended by itself, or "" if the disk had room.

    If the disk of the layers has room again by now, the command's complaints are the evidence, unless there is so much
    room that they must mean another disk.
    """
    if not run.changed:
        return ""
    disk = os.statvfs(state)
    reason = shortage(state, divisor=2)
    complaints = (run.stdout if run.one_stream else run.stderr)[-_MAX_READ:]
    if not reason and any(words in complaints for words in _QUOTA):
        reason = "the command met a quota of the disk"
    has_little_room = disk.f_bavail * disk.f_frsize < _MUCH_ROOM
    if not reason and has_little_room and any(words in complaints for words in _FULL):
        reason = "the command found no space left"
    return f"{reason}, so what it wrote may not be whole" if reason else ""


def _refused_writes(
    hood: Hood, run: Run, complaints: str, world: World, home: str, *, can_ask: bool
) -> tuple[Blocked, ...]:
    """Return what a command could not write."""
    if not any(words in text for text in (run.stdout, run.stderr) for words in _REFUSALS):
        return ()
    if git_directory := _refused_git_directory(run, world, can_ask=can_ask):
        return git_directory
    from fumehood.core.hints import refused_writes

    writable = world.writable(run.roots)
    how = f"to ask the person for it: {_ASK} --write" if can_ask else "to let commands write it: fumehood roots add"

    def suggestion_for(path: str) -> tuple[str, str]:
        if world.tree is not None:
            return path, ""
        # Git's paths are relative to the top of the work tree.
        candidates = (os.path.normpath(os.path.join(base, path)) for base in (run.cwd, run.project))
        full_path = next(
            (each for each in candidates if os.path.isdir(os.path.dirname(each)) and not is_in(each, writable)), path
        )
        directory = _possible_root(hood, full_path, home)
        return full_path, f"{how} {shell_quote(directory)}" if directory else ""

    remedy = f"{world.write_hint}; to ask the person for more: {_ASK} --write DIR" if can_ask else world.write_hint
    is_limited = world.write is not None
    return refused_writes(complaints, writable, remedy, home, is_limited=is_limited, suggestion_for=suggestion_for)


def _possible_root(hood: Hood, path: str, home: str) -> str:
    """Return the directory that a person could make a root, so that commands can write a path; "" if there is none."""
    shown = [each for each in hood.policy.show if is_in(path, (each,))]
    parent = os.path.realpath(os.path.dirname(path))
    if not os.path.isabs(path) or (not shown and is_in(parent, (*_SYSTEM_DIRECTORIES, *([home] if home else ())))):
        return ""
    is_repository = any(os.path.isdir(f"{path}/{name}") for name in ("objects", ".git"))
    for directory in ([path] if is_repository else [*sorted(shown, key=len, reverse=True), parent]):
        try:
            if os.access(directory, os.W_OK):
                return hood.store.projects.check_new_root(hood.project, directory)
        except BadRequest:
            continue
    return ""


def _unreached_hosts(run: Run, network: Network, hosts: tuple[str, ...], tries: int, ask: str) -> tuple[Blocked, ...]:
    """Return the granted hosts that a failed command did not reach; else, if it tried, that it has no network.

    `tries` counts what it sent where no route leads; `ask` is the command that asks the person, or "".
    """
    if not tries and not (run.exit_code and run.connections):
        return ()
    from fumehood.core.hints import denied_network, unreached_hosts

    unreached = unreached_hosts(run.connections) if run.exit_code else ()
    return unreached or ((denied_network(run.command, run.output, network, hosts, ask),) if tries else ())


def _refused_git_directory(run: Run, world: World, *, can_ask: bool) -> tuple[Blocked, ...]:
    """Return the git directory that a command in a git work tree could not write: GIT_DIR, or the work tree's own.

    A command that succeeded counts too if git has named the directory, as in `git commit; git log`.
    """
    from fumehood.service.roots import git_directory

    by_variable = world.environment.get("GIT_DIR", "")
    is_hidden = os.path.isabs(by_variable) and f"{_NO_REPOSITORY}'{by_variable}'" in run.output
    directory = by_variable if is_hidden else git_directory(run.project)
    if directory is None or directory in run.roots or not (run.exit_code or is_hidden or f"{directory}/" in run.output):
        return ()
    line = f"{_ASK} --write {shell_quote(directory)}" if can_ask else f"fumehood roots add {directory}"
    hint = f"this is a git work tree, which keeps its history there; {line}"
    return (Blocked(what="write", detail=directory, hint=hint),)


def _add_suspected_causes(
    blocked: list[Blocked], run: Run, policy: Policy, world: World, result: CommandResult, *, can_ask: bool
) -> None:
    """Add the mask, socket or limit that a failed command seems to have met, and hidden paths that it named."""
    from fumehood.core.hints import hidden_paths_named, missing_devices, suspected_causes

    output = run.stderr or run.stdout
    for path in missing_devices(output):
        from fumehood.linux.survey import device_fault

        fault = device_fault(path)
        if path in policy.devices and fault:
            blocked.append(Blocked(what="device", detail=path, hint=f"it is named in the configuration, but {fault}"))
        elif path not in policy.devices and not fault:
            hint = f'to let commands use it: devices = ["{path}"] in the configuration (fumehood config path)'
            blocked.append(Blocked(what="device", detail=path, hint=hint))
    if output and run.exit_code and not run.timed_out and world.tree is None:
        from fumehood.service.provided import secret_paths_in_variables

        home = world.environment.get("HOME", "/")
        views = [] if result.visible is None else [each for each in result.visible.mounts if isinstance(each, View)]
        hidden = (f"{each.target}/{name}" for each in views for name in each.hidden)
        hidden_sockets = [path for path in hidden if is_in(path, SERVICES)]
        causes = suspected_causes(output, run.exit_code, policy, home, secret_paths_in_variables(), hidden_sockets)
        is_explained = bool(blocked)
        blocked += [each for each in causes if each not in blocked and not (each.what == "limit" and is_explained)]
    if result.visible is not None and result.visible.temporary_home:
        reported = {each.detail for each in blocked}
        for path in hidden_paths_named(output, (result.visible.temporary_home,), result.visible.hides, run.cwd):
            if path not in reported:
                hint = f'to show it to commands: show = ["{path}"] in the configuration (fumehood config path)'
                if can_ask:
                    hint = f"to ask the person to show it: {_ASK} --show {shell_quote(path)}"
                blocked.append(Blocked(what=HIDDEN_PATH, detail=path, hint=hint))


def _unseen_changes(store: Store, run: Run, complaints: str) -> Iterator[Blocked]:
    """Yield what this run and others of its session that still run don't see of each other, once for each of those.

    This run may have missed a file that another has written: its complaint is evidence only if that layer has the file,
    and the project does not. And this run may have changed files: a command that has run for a while gets no event of
    that, and perhaps does not even see the change.
    """
    from fumehood.core.hints import words_of_complaints

    words = words_of_complaints(complaints) if run.exit_code else ()
    paths = [os.path.normpath(os.path.join(run.cwd, word)) for word in words]
    is_addition = all(change.change == ADDED for change in run.changed)
    for other in store.running(RunFilter(project=store.history.project_of(run.run), sessions=(run.session or "",))):
        if other.run == run.run:
            continue
        name = other.name
        hint = f"run {name} still runs; what it writes appears when it ends, or by fumehood checkpoint {name}"
        path = next((path for path in paths if _has_written(store, other, path)), "")
        if path and not store.history.was_hint_given(run, hint):
            yield Blocked(what=STILL_RUNNING, detail=path, hint=hint)
        sees = "it sees this, but no watcher of its hears of it" if other.capture == KERNEL else "it does not see this"
        hint = f"run {name} still runs: {sees}; start it again if it goes on with the old files"
        if other.capture == KERNEL:
            hint += f", with {_POLLING} before it, by which most watchers look by themselves"
        is_server = run.started_at - other.started_at > _SERVER_AFTER_S
        if is_server and not is_addition and not store.history.was_hint_given(run, hint):
            yield Blocked(what=OLD_FILES, detail=other.command, hint=hint)


def _has_written(store: Store, run: Run, path: str) -> bool:
    """Return True if a run's layer has a path that the project does not have."""
    for number, root in enumerate(run.roots):
        if path.startswith(f"{root}/") and not os.path.lexists(path):
            parent, name = split(path[len(root) + 1 :])
            try:
                top = open_top(store.places.layer(run.run, number, "upper"))
                with Closing(top), Closing(open_below(top, parent)) as directory:
                    status = stat_entry(directory, name)
            except OSError:
                continue
            if status is not None and not is_whiteout(status):
                return True
    return False


# ---- Files of other owners: those that an overlay could not change are remembered.

_MAX_REMEMBERED, _MAX_REPORTED = 8, 3
_DENIED = ("permission denied", "operation not permitted")
# Complaints of a command when an overlay can't copy a file, because the sandbox has no number for its owner, and when
# the disk is full. C libraries and Node word them differently.
_OVERFLOW = ("Value too large for", "EOVERFLOW")
_QUOTA = ("Disk quota exceeded", "EDQUOT")
_FULL = ("No space left on device", "ENOSPC")
_MUCH_ROOM = 1 << 30  # bytes, which nothing fills and frees unnoticed
_MAX_LINES = 20  # of complaints
_MAX_READ = 1 << 16  # characters at the end of an output, where programs say why they fail


def unchangeable_files(places: Places, project: Project) -> list[ForeignFile]:
    """Return the files that an overlay could not change in earlier runs, if they still belong to somebody else."""
    paths = [os.fsdecode(each) for each in read(places.foreign_files_list(project.id)).split(b"\0") if each]
    files = still_foreign(project.roots, paths)
    if paths and not files:
        _remember(places, project, ())
    return files


def _remember(places: Places, project: Project, files: Sequence[ForeignFile]) -> None:
    paths = b"\0".join(os.fsencode(each.full_path) for each in files)
    replace_file(places.foreign_files_list(project.id), paths, by_many=True)


def forget_unwritable_files(places: Places, project: Project, run: Run) -> None:
    """After a run that a copy captured, forget the files that we can only rename, so that the faster way is used again.

    The files that we may write stay remembered.
    """
    if run.capture != COPY or not run.changed:
        return
    files = unchangeable_files(places, project)
    if any(not each.is_writable for each in files):
        _remember(places, project, [each for each in files if each.is_writable])


def overflow_lines(output: str) -> str:
    """Return the lines in which a command complains that a file can't be copied, for want of its owner's number."""
    if not any(words in output for words in _OVERFLOW):
        return ""
    lines = output[-_MAX_READ:].splitlines()
    return "\n".join([line for line in lines if any(words in line for words in _OVERFLOW)][-_MAX_LINES:])


def _report_unchangeable_files(
    places: Places, project: Project, run: Run, host: Host, wanted: str
) -> tuple[Blocked, ...]:
    """Return the files that a command could not change because of their owners, and remember them for the next run."""
    complaints = overflow_lines(f"{run.stdout}\n{run.stderr}" if run.exit_code else run.stderr)
    if not complaints:
        return ()
    has_inner_root = any(path for _, path in outermost_roots(run.roots))
    if run.capture not in (KERNEL, BWRAP) and not has_inner_root:
        return ()
    choice = choose(host, wanted, run.roots, unchangeable_files(places, project))
    way, roots = (run.capture, run.roots) if run.capture in (KERNEL, BWRAP) else (KERNEL, choice.overlaid)
    # The host as the run had it: groups are mapped only if a file of theirs was seen.
    host_of_run = host.replace(groups=choice.groups)
    files = [each for each in examples_of_foreign_files(roots, complaints) if not can_change(host_of_run, way, each)]
    if not files:
        return ()
    _remember(places, project, files[:_MAX_REMEMBERED])
    next_choice = choose(host, wanted, run.roots, files)
    advice = "leave `capture` out of the configuration, so that another way is used"
    if next_choice.way != way:
        advice = f"run it again: the next run is captured by {LABELS[next_choice.way]}"
    elif next_choice.groups != choice.groups:
        advice = "run it again: the next run knows the group"
    hint = f"{LABELS[way]} could not change it; {advice}. fumehood doctor says how to fix it for good"
    return tuple(Blocked(what="write", detail=each.description, hint=hint) for each in files[:_MAX_REPORTED])


def _paths_of_others(run: Run, complaints: str) -> tuple[Blocked, ...]:
    """Return, for root, refused paths of the project with their owners: outside the hood, root may write them."""
    if os.geteuid() != 0 or not any(words in complaints.lower() for words in _DENIED):
        return ()
    from fumehood.core.hints import words_of_complaints

    run_user = os.stat(run.project).st_uid
    paths = [os.path.normpath(os.path.join(run.cwd, word)) for word in words_of_complaints(complaints, _DENIED)]
    foreign = dict.fromkeys(filter(None, (_outermost_foreign_path(path, run.roots, run_user) for path in paths)))
    blocked = []
    for path, owner in list(foreign)[:_MAX_REPORTED]:
        whose = f"it belongs to {user_name(owner)}, and commands run as {user_name(run_user)} here"
        hint = f"{whose}; to give it to them: chown -R {run_user} {shell_quote(path)}"
        blocked.append(Blocked(what="write", detail=path, hint=hint))
    return tuple(blocked)


def _outermost_foreign_path(path: str, roots: Sequence[str], user: int) -> tuple[str, int] | None:
    """Return the outermost part of a root's path that does not belong to a user, with its owner."""
    root = next((root for root in roots if path.startswith(f"{root}/")), path)
    outermost = None
    while path != root:
        try:
            owner = os.lstat(path).st_uid
        except (OSError, ValueError):
            owner = user  # it is gone, or it is only a word of a complaint
        if owner != user:
            outermost = path, owner
        path = os.path.dirname(path)
    return outermost
