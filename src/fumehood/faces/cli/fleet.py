"""Commands for many machines: fleet, worker."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from fumehood.core.report import Run, how_many, printable
from fumehood.core.request import quoted
from fumehood.errors import BadRequest, FumehoodError, lacking
from fumehood.faces.cli.commands import Context, acts, argument, command, flag, option, several
from fumehood.faces.cli.output import seconds, tell_error, whole_number
from fumehood.faces.cli.run_text import numbered, tell_run
from fumehood.service.fleet import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.service.fleet.sender import FleetSender

_ITEM = "{}"
_QUEUE = (
    option("--redis", "URL", "where the queue is (default: the variable FUMEHOOD_REDIS, which no process list shows)",
           default=os.environ.get("FUMEHOOD_REDIS", "")),
    option("--store", "URL", "where files wait, by fsspec: file:///DIR, s3://BUCKET (default: Redis)",
           default=os.environ.get("FUMEHOOD_STORE", "")),
    option("--queue", "NAME", "one of several queues", default=""),
)  # fmt: skip


def _address(context: Context) -> str:
    if not context.options.redis:
        raise BadRequest("where is the queue?", hint="--redis redis://HOST:6379, or the variable FUMEHOOD_REDIS")
    address: str = context.options.redis
    return address


@command(
    "worker", "do what others send, in the hood, until it is ended",
    "fumehood worker --redis rediss://:PASSWORD@queue.example.org\n"
    "FUMEHOOD_REDIS=… fumehood worker --store s3://bucket/blobs",
    *_QUEUE, option("--directory", "DIR", "where copies of projects are kept", default=""),
    flag("--burst", "end when nothing is left to do"),
)  # fmt: skip
def _worker(context: Context) -> int:
    try:
        from fumehood.service.fleet.worker import work
    except ModuleNotFoundError as error:
        raise lacking(error, "the fleet", "fleet", PACKAGES) from error
    options = context.options
    address = _address(context)
    context.store.close()
    named = {"name": options.queue} if options.queue else {}
    return work(address, store=options.store, directory=options.directory, burst=options.burst, **named)


@command(
    "fleet", "have commands done by workers on other machines; what they change is held here",
    "fumehood fleet plan --redis redis://queue.example.org\nfumehood fleet run -- 'make test'\n"
    "fumehood fleet map --from tasks.txt -- 'python solve.py {}'\nfumehood fleet attach 01kabc…",
    acts("list", "plan", "run", "map", "best", "attach", "cancel"),
    argument("rest", nargs="*", metavar="COMMAND", help="the command, or the job's id"), *_QUEUE,
    option("--key", "FILE", "sign the jobs with this key (default: sign.key)", default=""),
    several("--include", "PATH", "send this path although ignored", default=[]),
    option("--cwd", "DIR", "where in the project the command starts", default=""),
    option("--timeout", "SECONDS", "end each command after this time", type=seconds),
    option("--root", "NAME", "a root that the worker has", default="host"),
    several("--allow-host", "HOST[:PORT]", "ask for this host", default=[]),
    several("--env", "NAME=VALUE", "set this variable", default=[]),
    several("--secret", "NAME", "a variable that the worker has", default=[]),
    several("--limit", "NAME=AMOUNT", "as limits.NAME, in bytes", default=[]),
    flag("--first", "before all that waits; of several such, the latest"),
    flag("--detach", "don't wait: fleet attach ID comes back for it"),
    option("--from", "FILE", "map: one job for each line; it stands for {}", dest="items"),
    option("-n", "N", "best: how many", dest="count", type=whole_number(1, 1000), default=8),
    option("--check", "CMD", "best: what a candidate must pass; run in each", default=""),
    option("--score", "CMD", "best: prints a number, the higher the better", default=""),
    flag("--keep", "best: keep the drafts of the others too"), flag("--hold", "best: apply nothing"),
)  # fmt: skip
def _fleet(context: Context) -> int:
    options, address = context.options, _address(context)
    acts: dict[str, Callable[[Context, FleetSender], int]] = {
        "list": _list, "plan": _plan, "run": _run, "map": _map, "best": _best,
        "attach": lambda context, sender: _waited(context, sender, _job(context)), "cancel": _cancel,
    }  # fmt: skip
    with context.sandbox() as sandbox:
        sender = sandbox.fleet(
            address, store=options.store, key=options.key, queue=options.queue, include=options.include
        )
        sender.on_wait = lambda why: print(f"fumehood: {why}", file=sys.stderr, flush=True)
        return acts[options.what](context, sender)


def _wishes(context: Context) -> dict[str, Any]:
    options = context.options
    limits = {}
    for each in options.limit:
        name, _, amount = each.partition("=")
        if not amount.isdigit():
            raise BadRequest(f"{each} is not a limit", hint="--limit memory=1073741824")
        limits[name] = int(amount)
    for each in options.env:
        if "=" not in each:
            raise BadRequest(f"{each} is not a variable with a value", hint="--env NAME=VALUE, or --secret NAME")
    return {
        "cwd": options.cwd, "timeout": options.timeout, "root": options.root, "hosts": options.allow_host,
        "env": dict(each.partition("=")[::2] for each in options.env), "secrets": options.secret, "limits": limits,
        "first": options.first,
    }  # fmt: skip


def _command(context: Context) -> str | list[str]:
    rest: list[str] = context.options.rest
    if not rest:
        raise BadRequest("which command?", hint="fumehood fleet run -- COMMAND")
    return rest[0] if len(rest) == 1 else rest


def _job(context: Context) -> str:
    rest: list[str] = context.options.rest
    if len(rest) != 1:
        raise BadRequest("which job?", hint="fumehood fleet list shows them")
    return rest[0].lower()


def _plan(context: Context, sender: FleetSender) -> int:
    plan = sender.plan()
    if not context.printed(plan):
        for each in plan["files"]:
            print(f"{'there' if each['sent'] else 'send ':5} {each['size']:>12,}  {printable(each['path'])}")
        for each in plan["at_home"]:
            print(f"stays {'':>12}  {printable(each['path'])}  ({each['reason']})")
        files = how_many(len(plan["files"]), "file")
        print(f"{files}, {plan['bytes']:,} bytes; {plan['to_send']:,} are not there yet")
    return 0


def _run(context: Context, sender: FleetSender) -> int:
    job = sender.send(_command(context), **_wishes(context))
    if context.options.detach:
        return context.say({"job": job}, lambda: print(job))
    if not context.as_json:
        print(f"fumehood: job {job}", file=sys.stderr, flush=True)
    return _waited(context, sender, job)


def _waited(context: Context, sender: FleetSender, job: str) -> int:
    def tell(stream: str, text: str) -> None:
        (sys.stdout if stream == "stdout" else sys.stderr).write(text)

    _tell_of_workers(context, sender)
    try:
        run = sender.attach(job, on_output=None if context.as_json else tell)
    except KeyboardInterrupt:
        print(f"\nfumehood: it goes on; fumehood fleet attach {job} comes back for it", file=sys.stderr)
        return 130
    sys.stdout.flush()
    if not context.printed({"job": job, **run.as_dict()}):
        tell_run(run, sys.stderr)
        if run.state in ("failed", "refused"):
            tell_error(FumehoodError(run.reason, hint=f"fumehood show {run.name}"))
    return _status(run)


def _tell_of_workers(context: Context, sender: FleetSender) -> None:
    """Say why it may last: nobody is there to do it."""
    if not context.as_json and not sender.workers():
        print("fumehood: no worker is at this queue; the job waits for one", file=sys.stderr, flush=True)


def _status(run: Run) -> int:
    if run.state in ("failed", "refused"):
        return 126 if run.state == "refused" else 125
    return 124 if run.timed_out else run.exit_code or 0


def _map(context: Context, sender: FleetSender) -> int:
    line = _command(context)
    if not isinstance(line, str) or _ITEM not in line or not context.options.items:
        raise BadRequest(
            "map needs a shell line with {} in it, and a file with what it stands for",
            hint="fumehood fleet map --from tasks.txt -- 'python solve.py {}'",
        )
    try:
        with sys.stdin if context.options.items == "-" else open(context.options.items, encoding="utf-8") as file:
            items = [each.rstrip("\n") for each in file if each.strip()]
    except OSError as error:
        raise BadRequest(f"{context.options.items} can't be read: {error.strerror}", hint="check the path") from error
    ids: dict[str, str] = {}
    wishes = _wishes(context)
    for item in items:
        ids[sender.send(line.replace(_ITEM, quoted(item)), fresh=not ids, **wishes)] = item
    if context.options.detach:
        return context.say({"jobs": list(ids)}, lambda: print("\n".join(ids)))
    runs = {}
    _tell_of_workers(context, sender)
    try:
        for job, run in sender.results(list(ids)):
            runs[job] = run
            if not context.as_json:
                ended = f"exit {run.exit_code}, {how_many(len(run.changes), 'change')}"
                said = f"{numbered(run)}: {run.state}, {ended if run.exit_code is not None else printable(run.reason)}"
                print(f"{said}  {printable(ids[job])}", flush=True)
    except KeyboardInterrupt:
        left = [job for job in ids if job not in runs]
        print(f"\nfumehood: {len(left)} go on; fumehood fleet attach ID comes back for one", file=sys.stderr)
        return 130
    context.printed(lambda: {"runs": [{"job": job, "item": ids[job], **runs[job].as_dict()} for job in ids]})
    return max((1 if _status(run) else 0 for run in runs.values()), default=0)


def _best(context: Context, sender: FleetSender) -> int:
    from fumehood.faces.cli.drafts import show_best, tell_candidate

    options = context.options
    _tell_of_workers(context, sender)
    result = sender.best(
        _command(context), options.count, check=options.check, score=options.score, keep=options.keep,
        apply=not options.hold, on_candidate=None if context.as_json else tell_candidate, **_wishes(context),
    )  # fmt: skip
    context.say(result.as_dict, lambda: show_best(result))
    return 130 if result.is_interrupted else int(result.best is None or (result.run is None and not options.hold))


def _cancel(context: Context, sender: FleetSender) -> int:
    job = _job(context)
    sender.cancel(job)
    return context.say({"job": job}, lambda: print(f"{job} is cancelled"))


def _list(context: Context, sender: FleetSender) -> int:
    notes = [{name: each[name] for name in ("id", "command", "run")} for each in sender.notes()]
    if not context.printed({"jobs": notes}):
        for each in notes:
            command = each["command"] if isinstance(each["command"], str) else " ".join(each["command"])
            name = context.store.history.name(each["run"]) if each["run"] else "under way"
            print(f"{each['id']}  {f'#{name}' if name.isdecimal() else name:9}  {printable(command)}")
    return 0
