"""A job: a command for another machine, as it travels, and what a worker accepts.

A job is a signed JSON text that is checked against a schema, and so is its result. Neither contains code, and nothing
is loaded by a name that one of them contains.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

from fumehood.core import config
from fumehood.core.hosts import Hosts, parse_host
from fumehood.core.policy import Limits, Policy
from fumehood.core.report import printable
from fumehood.core.request import checked_command
from fumehood.core.value import Value
from fumehood.errors import BadRequest, Refused
from fumehood.linux.signing import signer_of

_MAX_LENGTH = 1 << 20  # of a job's text


class Job(Value):
    """A command with its policy and its base, the project's files."""

    id: str
    command: str | tuple[str, ...]
    base: str  # the hash of the manifest of the project's files
    expires_at: float
    cwd: str = ""  # in the project
    timeout: float | None = None
    root: str = "host"
    hosts: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()  # names of variables that the worker has
    limits: tuple[tuple[str, float], ...] = ()
    check: str = ""  # a shell line that runs after the command and must succeed; what it writes is thrown away
    score: str = ""  # a shell line that runs after the check, and prints a number at its end

    def text(self) -> str:
        """Write the job as it travels."""
        fields = self.fields() | {"environment": dict(self.environment), "limits": dict(self.limits)}
        return json.dumps(fields, sort_keys=True)


Reader = Callable[[Any], Any]


def _reader(description: str, is_valid: Callable[[Any], object]) -> Reader:
    """Return a function that returns a valid value, and else raises WrongValue with the description."""

    def read_value(value: Any) -> Any:
        if not is_valid(value):
            raise config.WrongValue(description)
        return value

    return read_value


def _matches(pattern: str) -> Callable[[Any], bool]:
    compiled = re.compile(pattern)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_inside_project(value: Any) -> bool:
    path = config.TEXT.read(value)
    return not path.startswith("/") and ".." not in path.split("/")


def _command(value: Any) -> str | tuple[str, ...]:
    try:
        return checked_command(value)
    except BadRequest as error:
        raise config.WrongValue(f"a command: {error.message}") from error


_is_variable = _matches(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRETS = _reader(
    "a list of names of variables", lambda value: isinstance(value, list) and all(map(_is_variable, value))
)
_LIMITS = _reader(
    f"a table of {', '.join(Limits._fields)}",
    lambda value: isinstance(value, dict) and value.keys() <= set(Limits._fields),
)
# Every field of a job, and the function that reads it from JSON or raises WrongValue.
SCHEMA: dict[str, Reader] = {
    "id": _reader("26 letters and digits", _matches(r"[0-9a-z]{26}")), "command": _command,
    "base": _reader("a SHA-256 sum", _matches(r"[0-9a-f]{64}")), "expires_at": _reader("a time", _is_number),
    "cwd": _reader("a directory of the project", _is_inside_project),
    "timeout": lambda value: None if value is None else config.SECONDS.read(value),
    "root": config.ROOT.read, "hosts": config.HOSTS.read, "environment": config.TABLE.read,
    "secrets": lambda value: tuple(_SECRETS(value)),
    "limits": lambda value: tuple((name, config.COUNT.read(amount)) for name, amount in _LIMITS(value).items()),
    "check": config.TEXT.read, "score": config.TEXT.read,
}  # fmt: skip


def read_job(text: Any) -> Job:
    """Read a job, and check it against the schema: every field must be there and valid, and there is no other."""
    if not isinstance(text, str) or len(text) > _MAX_LENGTH:
        raise BadRequest("a job is a text of at most 1 MiB", hint="fumehood fleet sends them")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest("the job is not JSON", hint="fumehood fleet sends them") from error
    if not isinstance(fields, dict) or fields.keys() != SCHEMA.keys():
        raise BadRequest("the job has missing or unknown fields", hint="is the sender's Fumehood another version?")
    values = {}
    for name, value in fields.items():
        try:
            values[name] = SCHEMA[name](value)
        except config.WrongValue as wrong:
            message = f"the job's {name} is not {wrong}: {printable(repr(value)[:100])}"
            raise BadRequest(message, hint="fumehood help fleet tells what a job can have") from wrong
    return Job(**values)


def accept_job(text: Any, signature: Any, purpose: str, policy: Policy) -> Job:
    """Return the job if the worker's own configuration allows it; else raises Refused or BadRequest."""
    signer = ""
    if isinstance(text, str) and isinstance(signature, str) and signature:
        signer = signer_of(signature, purpose, text.encode(), policy.sign.signers).name
    if not signer and not policy.fleet.unsigned:
        who = "somebody whom this worker does not know" if signature else "nobody"
        raise Refused(f"the job was signed by {who}", hint="the worker's sign.signers names who may send it jobs")
    job = read_job(text)
    if time.time() > job.expires_at:
        raise Refused("the job came too late: it was to begin earlier", hint="send it again")
    allowed = Hosts(policy.fleet.hosts)
    for host in job.hosts:
        if not allowed.covers(parse_host(host)):
            raise Refused(f"{host} is not among the hosts that jobs may ask for", hint="fleet.hosts of the worker")
    if job.root not in policy.fleet.roots:
        raise Refused(f"{job.root} is not among the roots that jobs may ask for", hint="fleet.roots of the worker")
    return job


def policy_for_job(policy: Policy, job: Job) -> Policy:
    """Return the policy that a job runs with: the worker's own, with the lower of both values for each limit."""
    lower_limits = {}
    for name, amount in job.limits:
        own = getattr(policy.limits, name)
        lower_limits[name] = type(own)(min(amount or own, own or amount))
    timeouts = [each for each in (job.timeout, policy.timeout) if each is not None]
    return policy.replace(
        limits=policy.limits.replace(**lower_limits), timeout=min(timeouts, default=None), hosts=job.hosts,
        network="none", root=job.root,
    )  # fmt: skip
