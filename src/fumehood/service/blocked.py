"""What a command was refused and may have missed, as its report tells it: with the smallest thing that would help."""

from __future__ import annotations

import os

from fumehood.core.changes import ADDED, outermost_roots
from fumehood.core.masks import SERVICES, is_in
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

_MOST_NAMED = 3
_GOES_ON_S = 10.0  # who has run for so long is a server or a watcher, and not a command beside others
_OF_THE_SYSTEM = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/nix", "/proc", "/run", "/sbin", "/sys", "/usr",
    "/var/cache", "/var/lib", "/var/log", "/var/spool",
)  # fmt: skip
_NOT_THERE = "not a git repository: "  # git's own words where the repository is out of sight, as in the home
_REFUSALS = ("ead-only", "EROFS", "temporary object directory", f"{_NOT_THERE}/", f"{_NOT_THERE}'/")
_POLLING = "CHOKIDAR_USEPOLLING=1 WATCHPACK_POLLING=true WATCHFILES_FORCE_POLLING=true"
_ASKING = "fumehood ask"  # what a command of a session can type


def what_was_blocked(
    run: Run, execution: Execution, network: Network, request: Request, result: CommandResult
) -> tuple[Blocked, ...]:
    """Return what a command was refused, what it may have missed where it failed, and what was thrown away."""
    hood, world, session_run = execution.hood, execution.world, execution.session_run
    store, policy, can_ask = hood.store, hood.policy, session_run is not None
    blocked = list(run.blocked)  # connections
    if result.outcome.limit is not None:
        blocked.append(result.outcome.limit)
    if any(stream.size > stream.saved > 0 for stream in (result.stdout, result.stderr)):
        blocked.append(limit_reached(OUTPUT, policy.output_limit))
    home = "" if result.visible is None else result.visible.temporary_home
    complaints = run.stdout if run.one_stream else run.stderr
    blocked += _refused(hood, run, complaints, world, home, can_ask=can_ask)
    if network.mode != FULL and not any(each.what == "network" for each in run.blocked):
        blocked += _unreached(run, network, request.hosts, result.outcome.exit.unrouted, _ASKING if can_ask else "")
    blocked += world.blocked
    if session_run is not None:
        blocked += session_run.missing(run)
        if (run.exit_code or run.changed) and len(store.history.unfinished_runs(hood.project.id)) > 1:
            blocked += _not_seen_by_all(store, run, complaints)
    if overflows(run.stderr) or overflows(run.stdout):  # of user ids: hardly ever
        blocked += _refused_by_owners(store.places, hood.project, run, hood.host(), policy.capture)
    if run.exit_code and hood.withheld_grants:
        from fumehood.service.profiles import report_withheld_grants

        blocked += report_withheld_grants(hood.withheld_grants)
    if run.exit_code:
        blocked += _of_somebody_else(run, complaints)
        _suspect(blocked, run, policy, world, result, can_ask=can_ask)
    if result.written_to_home:
        blocked.append(_lost_with_home(result.written_to_home))
    for directory in request.client_directories:
        hint = f"to ask the person for it: {_ASKING} --write {shell_quote(directory)}"
        blocked.append(Blocked(what=READ_ONLY, detail=directory, hint=hint))
    return tuple(blocked)


def _lost_with_home(paths: Sequence[str]) -> Blocked:
    """Name what a command left in its home."""
    named = first_names([f"~/{path}" for path in paths], _MOST_NAMED)
    hint = "a command's home is its own and is thrown away with it"
    if any(path.startswith(".") and "/" in path for path in paths):
        hint += "; keep a virtual environment in the project, as .venv"
    return Blocked(what=LEFT_AT_HOME, detail=named, hint=hint)


def lacked_room(run: Run, state: str) -> str:
    """Say why what a command wrote may not be whole for want of room where it was captured; nothing where it is."""
    if not run.changed:
        return ""
    disk = os.statvfs(state)
    complaints = run.stdout if run.one_stream else run.stderr
    return may_be_cut_off(complaints, disk.f_bavail * disk.f_frsize, shortage(state, divisor=2))


def _refused(
    hood: Hood, run: Run, complaints: str, world: World, home: str, *, can_ask: bool
) -> tuple[Blocked, ...]:
    """Tell what a command could not write."""
    if not any(words in text for text in (run.stdout, run.stderr) for words in _REFUSALS):
        return ()
    if missing := _missing_root(run, world, can_ask=can_ask):
        return missing
    from fumehood.core.hints import refused_writes

    writable = world.writable(run.roots)
    how = f"to ask the person for it: {_ASKING} --write" if can_ask else "to let commands write it: fumehood roots add"

    def suggestion_for(path: str) -> tuple[str, str]:
        if world.tree is not None:
            return path, ""
        # What git names is relative to the top of the work tree.
        ways = (os.path.normpath(os.path.join(base, path)) for base in (run.cwd, run.project))
        meant = next((way for way in ways if os.path.isdir(os.path.dirname(way)) and not is_in(way, writable)), path)
        directory = _addable(hood, meant, home)
        return meant, f"{how} {shell_quote(directory)}" if directory else ""

    remedy = f"{world.write_hint}; to ask the person for more: {_ASKING} --write DIR" if can_ask else world.write_hint
    limited = world.write is not None
    return refused_writes(complaints, writable, remedy, home, is_limited=limited, suggestion_for=suggestion_for)


def _addable(hood: Hood, path: str, home: str) -> str:
    """Return the directory that could be made a root to have a path written; nothing where none should."""
    shown = [each for each in hood.policy.show if is_in(path, (each,))]
    inside = os.path.realpath(os.path.dirname(path))
    if not os.path.isabs(path) or (not shown and is_in(inside, (*_OF_THE_SYSTEM, *([home] if home else ())))):
        return ""
    is_repository = any(os.path.isdir(f"{path}/{name}") for name in ("objects", ".git"))
    for directory in ([path] if is_repository else [*sorted(shown, key=len, reverse=True), inside]):
        try:
            if os.access(directory, os.W_OK):
                return hood.store.projects.check_new_root(hood.project, directory)
        except BadRequest:
            continue
    return ""


def _unreached(run: Run, network: Network, hosts: tuple[str, ...], tries: int, asking: str) -> tuple[Blocked, ...]:
    """Tell which hosts a command did not reach: granted ones where it failed, else that it tried and has no network."""
    if not tries and not (run.exit_code and run.connections):
        return ()
    from fumehood.core.hints import denied_network, unreached_hosts

    failed = unreached_hosts(run.connections) if run.exit_code else ()
    return failed or ((denied_network(run.command, run.output, network, hosts, asking),) if tries else ())


def _missing_root(run: Run, world: World, *, can_ask: bool) -> tuple[Blocked, ...]:
    """Offer the directory that a command in a git work tree could not write: its real git directory, or GIT_DIR.

    To one that ended well, where git has named it, as in `git commit; git log`.
    """
    from fumehood.service.roots import git_directory

    named = world.environment.get("GIT_DIR", "")
    is_missed = os.path.isabs(named) and f"{_NOT_THERE}'{named}'" in run.output
    directory = named if is_missed else git_directory(run.project)
    if directory is None or directory in run.roots or not (run.exit_code or is_missed or f"{directory}/" in run.output):
        return ()
    line = f"{_ASKING} --write {shell_quote(directory)}" if can_ask else f"fumehood roots add {directory}"
    hint = f"this is a git work tree, which keeps its history there; {line}"
    return (Blocked(what="write", detail=directory, hint=hint),)


def _suspect(
    blocked: list[Blocked], run: Run, policy: Policy, world: World, result: CommandResult, *, can_ask: bool
) -> None:
    """Add which mask, socket or limit a failed command seems to have met, and what of the home it named and missed."""
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
        closed = [path for path in hidden if is_in(path, SERVICES)]
        suspects = suspected_causes(output, run.exit_code, policy, home, secret_paths_in_variables(), closed)
        is_explained = bool(blocked)
        blocked += [each for each in suspects if each not in blocked and not (each.what == "limit" and is_explained)]
    if result.visible is not None and result.visible.temporary_home:
        named = {each.detail for each in blocked}
        for path in hidden_paths_named(output, (result.visible.temporary_home,), result.visible.hides, run.cwd):
            if path not in named:
                hint = f'to show it to commands: show = ["{path}"] in the configuration (fumehood config path)'
                if can_ask:
                    hint = f"to ask the person to show it: {_ASKING} --show {shell_quote(path)}"
                blocked.append(Blocked(what=HIDDEN_PATH, detail=path, hint=hint))


def _not_seen_by_all(store: Store, run: Run, complaints: str) -> Iterator[Blocked]:
    """Tell a command what it, and those of its session that still run, don't see of each other; once for each of those.

    It missed a file: what it says is evidence only where the other's layer has the file, and the project does not. It
    changed files: the other, which has run for a while, hears nothing of it, and perhaps does not even see it.
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
        goes_on = run.started_at - other.started_at > _GOES_ON_S
        if goes_on and not is_addition and not store.history.was_hint_given(run, hint):
            yield Blocked(what=OLD_FILES, detail=other.command, hint=hint)


def _has_written(store: Store, run: Run, path: str) -> bool:
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


# ---- Files of other owners: what an overlay failed on is remembered.

_MOST_REMEMBERED, _MOST_TOLD = 8, 3


def failed_on(places: Places, project: Project) -> list[ForeignFile]:
    """Return what an overlay could not change in earlier runs, as far as it still is somebody else's."""
    paths = [os.fsdecode(each) for each in read(places.foreign_files_list(project.id)).split(b"\0") if each]
    files = still_foreign(project.roots, paths)
    if paths and not files:
        _remember(places, project, ())
    return files


def _remember(places: Places, project: Project, files: Sequence[ForeignFile]) -> None:
    paths = b"\0".join(os.fsencode(each.full_path) for each in files)
    replace_file(places.foreign_files_list(project.id), paths, by_many=True)


def forget_what_was_moved(places: Places, project: Project, run: Run) -> None:
    """After a run that a copy captured, leave what can only be renamed to the quicker way again."""
    if run.capture != COPY or not run.changed:
        return
    files = failed_on(places, project)
    if any(not each.is_writable for each in files):
        _remember(places, project, [each for each in files if each.is_writable])


def _refused_by_owners(places: Places, project: Project, run: Run, host: Host, wanted: str) -> tuple[Blocked, ...]:
    """Say which files a command could not change because of whose they are; the next run is captured otherwise."""
    complaints = overflows(f"{run.stdout}\n{run.stderr}" if run.exit_code else run.stderr)
    if not complaints:
        return ()
    has_inner = any(path for _, path in outermost_roots(run.roots))
    if run.capture not in (KERNEL, BWRAP) and not has_inner:
        return ()
    choice = choose(host, wanted, run.roots, failed_on(places, project))
    way, roots = (run.capture, run.roots) if run.capture in (KERNEL, BWRAP) else (KERNEL, choice.overlaid)
    # As the run had it: groups are mapped only where one was seen.
    had = host.replace(groups=choice.groups)
    files = [each for each in examples_of_foreign_files(roots, complaints) if not can_change(had, way, each)]
    if not files:
        return ()
    _remember(places, project, files[:_MOST_REMEMBERED])
    again = choose(host, wanted, run.roots, files)
    then = "leave `capture` out of the configuration, so that another way is used"
    if again.way != way:
        then = f"run it again: the next run is captured by {LABELS[again.way]}"
    elif again.groups != had.groups:
        then = "run it again: the next run knows the group"
    hint = f"{LABELS[way]} could not change it; {then}. fumehood doctor says how to fix it for good"
    return tuple(Blocked(what="write", detail=each.description, hint=hint) for each in files[:_MOST_TOLD])


_CLOSED = ("permission denied", "operation not permitted")


def _of_somebody_else(run: Run, complaints: str) -> tuple[Blocked, ...]:
    """Say to root, who may write everything outside, whose a path of the project is that a command was refused."""
    if os.geteuid() != 0 or not any(words in complaints.lower() for words in _CLOSED):
        return ()
    from fumehood.core.hints import words_of_complaints

    me = os.stat(run.project).st_uid
    named = [os.path.normpath(os.path.join(run.cwd, word)) for word in words_of_complaints(complaints, _CLOSED)]
    theirs = dict.fromkeys(filter(None, (_outermost_of_others(path, run.roots, me) for path in named)))
    blocked = []
    for path, user in list(theirs)[:_MOST_TOLD]:
        whose = f"it belongs to {user_name(user)}, and commands run as {user_name(me)} here"
        hint = f"{whose}; to give it to them: chown -R {me} {shell_quote(path)}"
        blocked.append(Blocked(what="write", detail=path, hint=hint))
    return tuple(blocked)


def _outermost_of_others(path: str, roots: Sequence[str], me: int) -> tuple[str, int] | None:
    """Return the outermost directory on the way to a path of a root that is not ours, and whose it is."""
    root = next((root for root in roots if path.startswith(f"{root}/")), path)
    outermost = None
    while path != root:
        try:
            user = os.lstat(path).st_uid
        except (OSError, ValueError):
            user = me  # it is gone, or only a word of a complaint
        if user != me:
            outermost = path, user
        path = os.path.dirname(path)
    return outermost


# What a command complains of where an overlay can't copy a file for want of an owner's number, or the disk is full.
_OVERFLOW = ("Value too large for", "EOVERFLOW")  # as the C libraries and as Node say it
_QUOTA = ("Disk quota exceeded", "EDQUOT")
_FULL = ("No space left on device", "ENOSPC")
_FAR_FROM_FULL = 1 << 30  # bytes that nobody fills and frees without being seen
_MOST_LINES = 20  # complaints read
_LOOKED_AT = 1 << 16  # characters of the end, where a failure is told


def overflows(output: str) -> str:
    """Return the lines in which a command complains of what an overlay can't copy for want of an owner's number."""
    if not any(words in output for words in _OVERFLOW):
        return ""
    lines = output[-_LOOKED_AT:].splitlines()
    return "\n".join([line for line in lines if any(words in line for words in _OVERFLOW)][-_MOST_LINES:])


def may_be_cut_off(complaints: str, free: int, lacking: str) -> str:
    """Say why what a command wrote may not be whole, though it ended by itself; nothing where the disk had room.

    `lacking` is what its layers' disk lacks now. Where that has room again, what the command complains of tells,
    unless there is so much that it must mean another disk.
    """
    said = complaints[-_LOOKED_AT:]
    if not lacking and any(words in said for words in _QUOTA):
        lacking = "the command met a quota of the disk"
    if not lacking and free < _FAR_FROM_FULL and any(words in said for words in _FULL):
        lacking = "the command found no space left"
    return f"{lacking}, so what it wrote may not be whole" if lacking else ""
