"""The hook's part in a client's own edits: they are judged before, kept, and recorded after."""

from __future__ import annotations

import os

from fumehood.core.edits import Planned, patch_in, patched, replaced, written
from fumehood.core.report import first_of, printable
from fumehood.core.request import DISCARD, HOLD
from fumehood.errors import BadRequest
from fumehood.faces.cli.hook_clients import command_of
from fumehood.faces.cli.output import here
from fumehood.store.edits import EditSeat, OpenEdit, keep_seat, note_end, open_edits, seat_of
from fumehood.store.places import Alone, Places
from fumehood.store.places import places as all_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.edits import Becomes
    from fumehood.faces.cli.hook_clients import ToolCall

# What the fields of the clients' tools are called that hold a whole file, or a piece, what it becomes, and where.
_WHOLE = ("content", "file_text", "contents")
_PIECES = (("old_string", "new_string"), ("old_str", "new_str"), ("oldString", "newString"))
_EVERYWHERE = ("replace_all", "replaceAll", "allow_multiple")
_NAMED = 5
_MOST_OPEN = 16  # edits that wait to be recorded: each is looked at before and after the next


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
    return [Planned(path=path, becomes=_becomes(fields), is_removed=call.tool == "Delete")]


def _becomes(fields: dict[str, object]) -> Becomes | None:
    """Tell what a file will hold by the fields of an edit; None where they say it in no way, or in two."""
    ways: list[Becomes] = [written(text) for name in _WHOLE if isinstance(text := fields.get(name), str)]
    ways += _replaced(fields)
    if isinstance(several := fields.get("edits"), list):
        edits = [_replaced(each) if isinstance(each, dict) else [] for each in several]

        def in_turn(content: bytes | None) -> bytes | None:
            """Make each edit in what the one before left."""
            for number, meant in enumerate(edits):
                content = None if len(meant) != 1 or (number and content is None) else meant[0](content)
            return content

        ways.append(in_turn)
    return ways[0] if len(ways) == 1 else None


def _replaced(fields: dict[str, object]) -> list[Becomes]:
    pairs = ((fields.get(old), fields.get(new)) for old, new in _PIECES)
    everywhere = any(fields.get(name) for name in _EVERYWHERE)
    return [
        replaced(old, new, everywhere=everywhere) for old, new in pairs if isinstance(old, str) and isinstance(new, str)
    ]


def begun(call: ToolCall, session: str, passed_on: Sequence[str]) -> str:
    """Keep what an edit is about to change; returns why a person must be asked first, or nothing.

    Where the client has no way to ask one, BadRequest is raised instead, and nothing is kept.
    """
    from fumehood.linux import nofollow
    from fumehood.service import edits
    from fumehood.store.config import policy_for

    is_shell = call.tool in call.client.shells
    planned, directory = (shell_patch(call) if is_shell else None) or (planned_by(call), "")
    places = all_places()
    if not os.path.exists(places.database) or len(open_edits(places)) > _MOST_OPEN:
        from fumehood.service.opened import OpenedStore

        OpenedStore().close()
    nofollow.notes_directory = places.modes
    seat = None if "--project" in passed_on else seat_of(places, session)
    if seat is None:
        seat = keep_seat(places, session, lambda: _seat(call, session, passed_on, places))
    policy = policy_for(places, seat.roots)
    # An edit goes to the project itself, which the commands of a draft leave alone.
    is_in_draft = bool(policy.drafts) or "--draft" in passed_on
    mode = policy.mode(HOLD if is_in_draft or "--hold" in passed_on else DISCARD if "--discard" in passed_on else None)
    cwd = os.path.join(call.directory if isinstance(call.directory, str) else here(), directory)
    wanted = edits.targets(seat, cwd, [each.replace(path=os.path.expanduser(each.path)) for each in planned])
    verdict = edits.judged(seat, policy, mode, wanted, is_in_draft=is_in_draft)
    reason = "; ".join(verdict.reasons)
    if reason and not call.client.honours_ask:
        raise BadRequest(f"the user must be asked first: {reason}", hint=verdict.instead)
    names = [each.path if each.root == 0 else each.real for each in wanted]
    title = f"{'apply_patch' if is_shell else call.tool} {first_of([*map(printable, names)], _NAMED)}"
    with Alone(places.lock(f"project-{seat.project}")):
        edits.begin(places, seat, session, call_name(call), title, cwd, wanted, verdict.flags)
    return reason


def _seat(call: ToolCall, session: str, passed_on: Sequence[str], places: Places) -> EditSeat:
    """Return the project of an edit, as that of a command: what is set, the session's, or where the client works."""
    from fumehood.store.database import Database
    from fumehood.store.projects import Projects

    projects = Projects(Database(places.database), places)
    rows = projects.database.rows("SELECT project FROM sessions WHERE name = ?", (session,)) if session else []
    if "--project" in passed_on:
        path = passed_on[len(passed_on) - passed_on[::-1].index("--project")]
    elif rows:
        path = projects.path_of(rows[0][0])
    else:
        path = projects.holding(os.environ.get(call.client.project_variable, "") or here())
    project = projects.open(path)
    return EditSeat(project=project.id, roots=project.roots)


def ended(call: ToolCall, session: str) -> None:
    """Note what an edit did; other edits of the same files that are under way go on from there."""
    places, name = all_places(), call_name(call)

    def mine() -> OpenEdit | None:
        every = open_edits(places)
        return next((each for each in reversed(every) if (each.session, each.call) == (session, name)), None)

    if (edit := mine()) is None:
        return
    with Alone(places.lock(f"project-{edit.project}")):
        if (edit := mine()) is None:
            return  # it is recorded
        note_end(places, edit, is_told=True)
        others = [each for each in open_edits(places, edit.project) if not each.ended_at]
        if any(each.paths & edit.paths for each in others):
            from fumehood.service.edits import renew

            renew(places, edit.project, edit.id, edit.paths)


def call_name(call: ToolCall) -> str:
    """Name a call, the same before and after it; where the client has no name for it, by what it does."""
    if isinstance(call.call_id, str) and call.call_id:
        return call.call_id
    # What `hashlib` has it from, without OpenSSL around it.
    from _blake2 import blake2b

    fields = sorted(call.input.items()) if isinstance(call.input, dict) else call.input
    return str(blake2b(repr((call.tool, fields)).encode(errors="surrogatepass"), digest_size=16).hexdigest())
