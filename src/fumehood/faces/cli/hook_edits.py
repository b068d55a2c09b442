"""The hook's part in a client's own edits: they are judged before, kept, and recorded after."""

from __future__ import annotations

import os

from fumehood.core.edits import Planned, patch_in, patched, replaced, written
from fumehood.core.judge import DISCARD, HOLD
from fumehood.core.report import printable
from fumehood.errors import BadRequest
from fumehood.faces.cli.hook_tools import command_of
from fumehood.faces.cli.output import here
from fumehood.service import edits
from fumehood.service.opened import OpenedStore
from fumehood.store.audit import HOOK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.edits import Becomes
    from fumehood.faces.cli.hook_clients import ToolCall

# What the fields of the clients' tools are called that hold a whole file, or a piece, what it becomes, and where.
_WHOLE = ("content", "file_text", "contents")
_PIECES = (("old_string", "new_string"), ("old_str", "new_str"), ("oldString", "newString"))
_EVERYWHERE = ("replace_all", "replaceAll", "allow_multiple")
_REMOVES = frozenset({"Delete"})
_NAMED = 5


def shell_patch(call: ToolCall) -> tuple[list[Planned], str] | None:
    """Return what a shell line does that the client takes for a patch, and the directory it is for; None: a command."""
    command = command_of(call)
    patch, directory = (None if command.is_list else patch_in(command.text)) or ("", "")
    planned = patched(patch)
    return None if planned is None else (planned, directory)


def planned_by(call: ToolCall) -> list[Planned]:
    """Return what an edit would do to which files; raises BadRequest where that can't be told."""
    fields = call.input if isinstance(call.input, dict) else {}
    if call.tool in call.client.patches:
        text = call.input if isinstance(call.input, str) else fields.get(call.client.patches[call.tool])
        planned = patched(text) if isinstance(text, str) else None
        if planned is None:
            raise BadRequest("the patch is not understood", hint="write it as *** Begin Patch … *** End Patch")
        return planned
    path = fields.get(call.client.edits[call.tool])
    # A client may take the blanks away, and mean another file.
    if not isinstance(path, str) or not path or path != path.strip() or "\0" in path:
        raise BadRequest("the edit names no file", hint="give the whole path of one")
    return [Planned(path=path, becomes=_becomes(fields), is_removed=call.tool in _REMOVES)]


def _becomes(fields: dict[str, object]) -> Becomes | None:
    """Tell what a file will hold by the fields of an edit; None where they say it in no way, or in two."""
    ways: list[Becomes] = [written(text) for name in _WHOLE if isinstance(text := fields.get(name), str)]
    for old_name, new_name in _PIECES:
        old, new = fields.get(old_name), fields.get(new_name)
        if isinstance(old, str) and isinstance(new, str):
            ways.append(replaced(old, new, everywhere=any(fields.get(name) for name in _EVERYWHERE)))
    return ways[0] if len(ways) == 1 else None


def begun(call: ToolCall, session: str, passed_on: Sequence[str]) -> str:
    """Keep what an edit is about to change; returns why a person must be asked first, or nothing.

    Where the client has no way to ask one, BadRequest is raised instead, and nothing is kept.
    """
    is_shell = call.tool in call.client.shells
    planned, directory = (shell_patch(call) if is_shell else None) or (planned_by(call), "")
    store = OpenedStore(face=HOOK, closes_edits=False)
    known = store.sessions.find(session) if session else None
    if "--project" in passed_on:
        path = passed_on[len(passed_on) - passed_on[::-1].index("--project")]
    elif known is not None:
        path = store.projects.path_of(known.project)
    else:
        path = store.projects.holding(os.environ.get(call.client.project_variable, "") or here())
    project = store.projects.open(path)
    policy = store.policy_of(project)
    mode = policy.mode(HOLD if "--hold" in passed_on else DISCARD if "--discard" in passed_on else None)
    cwd = os.path.join(call.directory if isinstance(call.directory, str) else here(), directory)
    wanted = edits.targets(project, cwd, [each.replace(path=os.path.expanduser(each.path)) for each in planned])
    verdict = edits.judged(store, project, policy, mode, wanted)
    reason = "; ".join(verdict.reasons)
    if reason and not call.client.honours_ask:
        raise BadRequest(f"the user must be asked first: {reason}", hint=verdict.instead)
    name = call_name(call)
    edits.close_open(store, but=name)
    names = [each.path if each.root == 0 else each.real for each in wanted]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    title = f"{'apply_patch' if is_shell else call.tool} {', '.join(map(printable, names[:_NAMED]))}{more}"
    edits.begin(store, project, session, name, title, cwd, wanted, verdict.flags)
    return reason


def ended(call: ToolCall, session: str) -> None:
    """Record what an edit did."""
    store = OpenedStore(face=HOOK, closes_edits=False)
    name = call_name(call)
    edits.end(store, session, name)
    edits.close_open(store, but=name)


def call_name(call: ToolCall) -> str:
    """Name a call, the same before and after it; where the client has no name for it, by what it does."""
    if isinstance(call.call_id, str) and call.call_id:
        return call.call_id
    import json

    # What `hashlib` has it from, without OpenSSL around it.
    from _blake2 import blake2b

    return str(blake2b(json.dumps([call.tool, call.input], sort_keys=True).encode(), digest_size=16).hexdigest())
