"""The record of runs: what was asked, how it ended, what it changed."""

from __future__ import annotations

import os
import time

from fumehood.core.changes import APPLIED, Change, needs_layer
from fumehood.core.report import Blocked, Run, printable
from fumehood.core.value import Value
from fumehood.errors import BadRequest, NoRoom
from fumehood.store import audit as trail
from fumehood.store import records
from fumehood.store.database import CHANGES, OF_CHANGES, Database, note_day
from fumehood.store.records import changes_of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from typing import Any

    from fumehood.store.audit import Audit
    from fumehood.store.places import Places

    Printed = tuple[bytes | None, int]

RUNNING, APPLYING = "running", "applying"
HELD = "held"
LAST = "last"
_NO_OUTPUT = ((b"", 0), (b"", 0))  # of both streams
_RUNS_AT_ONCE = 10  # runs in one query; the one that is wanted is usually among the first of them
_ANY_NUMBER = 1 << 62  # greater than the number of any run
SETTLING = "settling"  # the project has all changes; only Fumehood's own files are not in order yet
UNFINISHED = (RUNNING, APPLYING, SETTLING)
DRAFT = "draft"  # the mode of a run that applies a draft
CHECKPOINT = "checkpoint"  # the act of a run that settles what another run, not yet ended, has written so far

_COLUMNS = (
    "id", "act", "of", "layer", "command", "cwd", "roots", "state", "reason", "mode", "capture", "sandboxed", "network",
    "started_at", "duration_s", "exit_code", "timed_out", "stdout", "stderr", "stdout_size", "stderr_size",
    "blocked", "dropped", "session", "hosts", "below", "project_number", "draft",
)  # fmt: skip
_SELECT = (
    f"SELECT projects.id, projects.path, {', '.join(f'runs.{column}' for column in _COLUMNS)},"
    " (SELECT name FROM drafts WHERE drafts.id = runs.draft) FROM runs JOIN projects ON projects.id = project"
)
_INSERT = f"INSERT INTO changes (run, n, {', '.join(CHANGES)}) VALUES (?, ?{', ?' * len(CHANGES)})"
_NUMBER_OF_RUN = "(SELECT number FROM runs WHERE id = ?)"


def _update(connection: sqlite3.Connection, run: str, **columns: Any) -> None:
    changed = ", ".join(f"{column} = ?" for column in columns)
    connection.execute(f"UPDATE runs SET {changed} WHERE id = ?", (*columns.values(), run))


class RunFilter(Value):
    """Which runs are meant: each field that is set narrows the choice; without any, all runs."""

    project: int | None = None
    sessions: tuple[str, ...] = ()
    draft: int | None = None
    asked_by: str = ""  # the run that asks: it is left out, and so are runs that only called `fumehood` to ask


class History:
    """Runs and their changes in the database; each new state is also an event of the audit trail."""

    def __init__(self, database: Database, places: Places, audit: Audit) -> None:
        self.database = database
        self.places = places
        self.audit = audit
        self.current_project: int | None = None  # its runs are named by their numbers, those of others by their ids

    def begin(self, project: int, run: Run, process: int) -> None:
        """Record that a run begins, so that it is found if this process dies."""
        with self.database.transaction() as connection:
            self._begin(connection, project, run, process)

    def _begin(self, connection: sqlite3.Connection, project: int, run: Run, process: int) -> None:
        note_day(connection)
        # A run that is recorded again keeps its number, unless another run has it by now.
        taken = "SELECT 1 FROM runs WHERE project = ? AND project_number = ?"
        if not run.number or connection.execute(taken, (project, run.number)).fetchone():
            lost = "coalesce((SELECT number FROM lost_numbers WHERE path = ?), 0)"
            following = f"SELECT max(coalesce(max(project_number), 0), {lost}) + 1 FROM runs WHERE project = ?"
            ((run.number,),) = connection.execute(following, (os.fsencode(run.project), project))
        run.name = self._shown_name(project, run.run, run.number)
        row = {
            "id": run.run, "project": project, "act": run.act, "of": run.of, "layer": run.layer,
            "command": trail.storable(run.command), "cwd": os.fsencode(run.cwd),
            "roots": b"\0".join(map(os.fsencode, run.roots)), "state": RUNNING, "mode": run.mode,
            "capture": run.capture, "sandboxed": run.sandboxed, "network": run.network, "started_at": run.started_at,
            "process": process, "dropped": " ".join(run.dropped), "session": run.session,
            "below": " ".join(run.below), "project_number": run.number, "draft": run.draft,
        }  # fmt: skip
        values = f"{', '.join('?' * len(row))}, (SELECT max(n) FROM days)"
        connection.execute(f"INSERT INTO runs ({', '.join(row)}, day) VALUES ({values})", tuple(row.values()))
        self.audit.add(connection, run.run, trail.ASKED, f"to {run.mode}" if run.act == "run" else run.act)

    def refuse(self, project: int, run: Run) -> None:
        """Record a run that was refused, in one transaction: its command never ran."""
        with self.database.transaction() as connection:
            self._begin(connection, project, run, 0)
            self._end(connection, run, _NO_OUTPUT)
            self.audit.add(connection, run.run, run.state, run.reason)

    def end(self, run: Run, outputs: Sequence[Printed] = _NO_OUTPUT) -> None:
        """Record how a run ended. An output is a pair: its bytes, or None if a file holds them, and its size."""
        with self.database.transaction() as connection:
            self._end(connection, run, outputs)
            self.audit.add(connection, run.run, run.state, run.reason)

    def _end(self, connection: sqlite3.Connection, run: Run, outputs: Sequence[Printed]) -> None:
        (stdout, stdout_size), (stderr, stderr_size) = outputs
        _update(
            connection, run.run, state=run.state, reason=trail.storable(run.reason), duration_s=run.duration_s,
            exit_code=run.exit_code, timed_out=run.timed_out, stdout=stdout,
            stderr=None if run.one_stream else stderr,  # None with a size of 0: it was printed to stdout's stream
            stdout_size=stdout_size, stderr_size=stderr_size, blocked=_blocked_text(run.blocked), network=run.network,
            hosts="\n".join(run.hosts),
        )  # fmt: skip
        if run.new_connections:
            trail.write_connections(connection, run.run, run.new_connections)

    def write_journal(self, run: Run, outputs: Sequence[Printed] = _NO_OUTPUT, *, event: str = "") -> None:
        """Record all that is about to be done to the project, before it is done."""
        is_next = run.state in (APPLYING, SETTLING)
        try:
            with self.database.transaction(durable=is_next) as connection:
                self._end(connection, run, outputs)
                if run.changed:
                    self._write_changes(connection, run)
                decided = trail.DECIDED if is_next else run.state
                self.audit.add(connection, run.run, event or decided, _summary(run, by="by the policy: "))
        except NoRoom as error:
            raise NoRoom(
                f"nothing was applied, and what run {run.name} did can't be recorded: {error.message}",
                hint=f"what it wrote is kept, and is held by the next command once there is room;"
                f" fumehood discard {run.name} throws it away",
            ) from error

    def record_progress(self, run: Run, state: str, *, decided: str = "", only_verdicts: bool = False) -> None:
        """Record how far an apply or undo has come, with the changes as they are now.

        `decided` is a person's decision, for the audit trail. With `only_verdicts`, nothing but the verdicts of the
        changes is new, as when held changes are applied.
        """
        is_one_verdict = not any(change.verdict != APPLIED or change.reason for change in run.changed)
        with self.database.transaction(durable=True) as connection:
            _update(connection, run.run, state=state, reason="")
            if only_verdicts and is_one_verdict:
                connection.execute(f"UPDATE changes SET verdict = ? WHERE run = {_NUMBER_OF_RUN}", (APPLIED, run.run))
                _update(connection, run.run, is_listed=0)
            else:
                self._rewrite_changes(connection, run)
            if decided:
                self.audit.add(connection, run.run, trail.DECIDED, decided)

    def unfinished_runs(self, project: int | None = None) -> list[tuple[str, str, str, int]]:
        """Return the id, state, act and project of every run that is not at its end, the latest first.

        The order matters: the apply or undo that began last must be taken back first.
        """
        of_project = "" if project is None else f"AND project = {int(project)}"
        # Sorted here: for an ORDER BY, SQLite would read all runs.
        rows = self.database.rows(
            "SELECT number, id, state, act, project FROM runs"
            f" WHERE state IN ('running', 'applying', 'settling') {of_project}"
        )
        return [(run, state, act, owner) for _, run, state, act, owner in sorted(rows, reverse=True)]

    def _write_changes(self, connection: sqlite3.Connection, run: Run) -> None:
        ((number,),) = connection.execute("SELECT number FROM runs WHERE id = ?", (run.run,))
        rows = enumerate(records.rows_of_changes(run.changed))
        connection.executemany(_INSERT, ((number, place, *row) for place, row in rows))
        counts = records.count_text(run.changed)
        connection.execute("UPDATE runs SET counts = ?, is_listed = 0 WHERE number = ?", (counts, number))

    def set_state(self, run: str, state: str, reason: str = "", *, event: str = "") -> None:
        """Record a new state."""
        with self.database.transaction() as connection:
            _update(connection, run, state=state, reason=trail.storable(reason))
            self.audit.add(connection, run, event or state, reason)

    def _rewrite_changes(self, connection: sqlite3.Connection, run: Run) -> None:
        connection.execute(f"DELETE FROM changes WHERE run = {_NUMBER_OF_RUN}", (run.run,))
        self._write_changes(connection, run)

    def settle(
        self, run: Run, *, rewrite: bool, others: Iterable[tuple[Run, bool]] = (), decided: str = "", event: str = "",
        decided_at: float | None = None,
    ) -> None:  # fmt: skip
        """Record the outcome of an apply or undo; with `rewrite`, also its changes anew.

        `others` are runs whose states follow from it, each with whether its changes are written anew too. `decided` is
        the decision of a person that led to it, made at `decided_at`.
        """
        with self.database.transaction() as connection:
            note_day(connection)
            connection.execute(
                "UPDATE runs SET state = ?, reason = ?, duration_s = ?, decided_at = coalesce(?, decided_at),"
                " settled_after = (SELECT max(number) FROM runs), day = (SELECT max(n) FROM days), space = NULL"
                " WHERE id = ?",
                (run.state, trail.storable(run.reason), run.duration_s, decided_at, run.run),
            )
            if rewrite:
                self._rewrite_changes(connection, run)
            if decided:
                self.audit.add(connection, run.run, trail.DECIDED, decided)
            self.audit.add(connection, run.run, event or run.state, _summary(run))
            for other, is_rewritten in others:
                _update(connection, other.run, state=other.state, reason=trail.storable(other.reason))
                if is_rewritten:
                    self._rewrite_changes(connection, other)
                self.audit.add(connection, other.run, other.state, f"{other.reason} by run {run.run}".lstrip())
            if run.mode == DRAFT:
                from fumehood.store.named import close_applied

                close_applied(connection, run)
            if run.draft is None:
                self._mark_files_due(connection, run.run)
        self._write_record(run, *(other for other, _ in others))

    def _write_record(self, run: Run, *others: Run) -> None:
        """Write record files beside the layer: if the database is lost, nothing else says what the layer is."""
        if any(needs_layer(change) for change in run.changed) or records.has_record(self.places, run):
            for recorded in (run, *others):
                records.write_record(self.places, recorded, self._rows_of_changes(recorded.run))

    def _mark_files_due(self, connection: sqlite3.Connection, run: str) -> None:
        """Remember that the records of files must still be updated for a run."""
        connection.execute(
            "INSERT INTO files_due (project, run, at, begun) SELECT project, id, ?, 0 FROM runs WHERE id = ?",
            (time.time(), run),
        )

    def add_finished(self, project: int, run: Run) -> None:
        """Record a run that has ended already, in one transaction: an edit that a client made by itself."""
        with self.database.transaction(durable=True) as connection:
            self._begin(connection, project, run, 0)
            self._end(connection, run, _NO_OUTPUT)
            self._write_changes(connection, run)
            connection.execute("UPDATE runs SET settled_after = number WHERE id = ?", (run.run,))
            self.audit.add(connection, run.run, run.state, _summary(run))
            self._mark_files_due(connection, run.run)
        self._write_record(run)

    def record_again(self, project: int, run: Run) -> None:
        """Record a run again from its record file."""
        outputs: list[Printed] = []
        for stream in ("stdout", "stderr"):
            try:
                outputs.append((None, os.stat(self.places.output(run.run, stream)).st_size))
            except FileNotFoundError:
                outputs.append((b"", 0))
        with self.database.transaction() as connection:
            self._begin(connection, project, run, 0)
            self._end(connection, run, outputs)
            self._write_changes(connection, run)
            self.audit.add(connection, run.run, trail.RECOVERED, "its record was lost, and made again")
            if run.state in (APPLIED, HELD):
                self._mark_files_due(connection, run.run)

    def held_runs(self, project: int, draft: int | None = None) -> list[str]:
        """Return the ids of a project's held runs, or of the held runs of one of its drafts, the latest first."""
        query = "SELECT id FROM runs WHERE project = ? AND state = 'held' AND draft IS ? ORDER BY number DESC"
        return [name for (name,) in self.database.rows(query, (project, draft))]

    def roots(self, run: str) -> tuple[str, ...]:
        """Return the roots of a run."""
        ((path, roots),) = self.database.rows(
            "SELECT projects.path, roots FROM runs JOIN projects ON projects.id = project WHERE runs.id = ?", (run,)
        )
        return records.roots_of(os.fsdecode(path), roots)

    def project_of(self, run: str) -> int:
        """Return the number of a run's project."""
        ((project,),) = self.database.rows("SELECT project FROM runs WHERE id = ?", (run,))
        return int(project)

    def runs_using_layer(self, layer: str) -> list[str]:
        """Return the ids of the runs that use a layer: the run that it captured, its undos, and their undos."""
        return [name for (name,) in self.database.rows("SELECT id FROM runs WHERE layer = ? ORDER BY number", (layer,))]

    def decisions(self, runs: Sequence[str], later: Run) -> Iterator[tuple[str, str, bool, tuple[str, ...]]]:
        """Yield the id and state of each of some runs, whether a person decided on it after `later` began, its roots.

        The order of the records decides, because the clock may have been set back.
        """
        is_late = f"decided_at IS NOT NULL AND settled_after >= {_NUMBER_OF_RUN}"
        rows = self.database.rows_for(f"SELECT id, state, {is_late}, roots FROM runs WHERE id IN (?)", runs, later.run)
        row_by_id = {row[0]: row for row in rows}
        for run, state, was_decided_meanwhile, roots in (row_by_id[name] for name in runs if name in row_by_id):
            yield run, state, bool(was_decided_meanwhile), records.roots_of(later.project, roots)

    def find(self, name: str, *filters: RunFilter) -> Run:
        """Return the run that a number, an id, a unique beginning of an id, `last` or `last~2` names.

        It must pass every filter; a run that does not is reported like one that never existed. All ids begin with the
        digit 0, so other digits are a number.
        """
        conditions, values = _conditions_of(filters)
        runs_before_last, number = _runs_before_last(name), _number(name)
        name_values: tuple[str | int, ...]
        if number is not None:
            condition, name_values = "AND runs.project_number = ? LIMIT 2", (number,)
        elif runs_before_last is not None:
            condition, name_values = "ORDER BY runs.number DESC LIMIT 1 OFFSET ?", (runs_before_last,)
        elif not name or not name.isascii():
            # Every id begins with the empty name; and the database refuses text that is not Unicode.
            condition, name_values = "AND FALSE", ()
        else:
            condition = "AND runs.id >= ? AND runs.id < ? ORDER BY runs.id LIMIT 2"
            name_values = name.upper(), f"{name.upper()}~"
        rows = self.database.rows(f"{_SELECT} WHERE {conditions} {condition}", (*values, *name_values))
        if not rows:
            raise BadRequest(f"there is no run {printable(name) or 'without a name'}", hint="fumehood log lists them")
        if len(rows) > 1:
            how = "begin with" if number is None else "have the number"
            raise BadRequest(
                f"several runs {how} {name}: {rows[0][2]}, {rows[1][2]}, …", hint="give more letters of the id"
            )
        return self._run(rows[0])

    def not_taken_back(self, *filters: RunFilter) -> Iterator[Run]:
        """Yield the runs whose changes are in the project and not undone, the latest first.

        Undos are not among them: an undo changes the state of the run that it undoes. A command comes before its
        checkpoints, because it ended after them. Checkpoints of a command that still runs are left out: they can't be
        undone.
        """
        yielded_commands: set[str] = set()
        for run in self._settled_runs(filters, "runs.act != 'undo' AND runs.state IN ('applied', 'held')"):
            if run.act == CHECKPOINT and run.of is not None and run.of not in yielded_commands:
                command = self.find(run.of)
                if command.state in UNFINISHED:
                    continue
                yielded_commands.add(run.of)
                if command.state in (APPLIED, HELD) and self.has_applied(command):
                    yield command
            if run.run not in yielded_commands and self.has_applied(run):
                yield run

    def checkpoints_of(self, run: Run) -> list[Run]:
        """Return the checkpoints of a command that settled changes while it ran, the latest first."""
        later = "project = (SELECT project FROM runs WHERE id = ?) AND number > (SELECT number FROM runs WHERE id = ?)"
        query = f"SELECT id FROM runs WHERE {later} AND act = ? AND of = ? AND counts != '' ORDER BY number DESC"
        rows = self.database.rows(query, (run.run, run.run, CHECKPOINT, run.run))
        return [self.find(name) for (name,) in rows]

    def has_applied(self, run: Run) -> bool:
        """Return True if at least one change of a run was applied."""
        rows = self._rows_of_changes(run.run)
        # Parsed one by one: mostly the first change was applied already.
        return any(change.verdict == APPLIED for row in rows for change in changes_of_rows([row]))

    def undos_in_force(self, *filters: RunFilter, of_layer: str = "") -> Iterator[Run]:
        """Yield the undos that are not undone themselves, the latest first; those of one layer, or all."""
        uses_layer = "runs.layer = ? AND" if of_layer else ""
        undos = self._settled_runs(filters, f"{uses_layer} runs.act = 'undo' AND runs.state = 'applied'", of_layer)
        return (run for run in undos if self.undo_depth(run) % 2)

    def _settled_runs(self, filters: Sequence[RunFilter], condition: str, *condition_values: str) -> Iterator[Run]:
        conditions, values = _conditions_of(filters)
        query = (
            f"SELECT runs.id, runs.number FROM runs WHERE {conditions} AND {condition} AND runs.counts != ''"
            f" AND runs.number < ? ORDER BY runs.number DESC LIMIT {_RUNS_AT_ONCE}"
        )
        before = _ANY_NUMBER
        while rows := self.database.rows(query, (*values, *filter(None, condition_values), before)):
            yield from (self.find(name) for name, _ in rows)
            before = rows[-1][1]

    def undo_depth(self, run: Run) -> int:
        """Return 0 for a run, 1 for its undo, 2 for the undo of that undo (a redo), and so on."""
        count = 0
        while run.act == "undo" and run.of is not None:
            run, count = self.find(run.of), count + 1
        return count

    def _forget(self, connection: sqlite3.Connection, run: Run) -> None:
        connection.execute(f"DELETE FROM changes WHERE run = {_NUMBER_OF_RUN}", (run.run,))
        connection.execute("DELETE FROM runs WHERE id = ?", (run.run,))

    def withdraw(self, run: Run, reason: str) -> None:
        """Forget a run that changed nothing; only the audit trail tells of it."""
        with self.database.transaction() as connection:
            self._forget(connection, run)
            self.audit.add(connection, run.run, trail.REFUSED, f"{run.command}: {reason}")

    def was_hint_given(self, run: Run, hint: str) -> bool:
        """Return True if the report of another run of the same session had this hint."""
        query = "SELECT 1 FROM runs WHERE session = ? AND instr(blocked, ?) AND id != ? LIMIT 1"
        return bool(self.database.rows(query, (run.session, hint, run.run)))

    def replace_by_earlier(self, run: Run, others: Iterable[Run]) -> None:
        """Forget a run: the records of `others`, which are written anew, have all of its changes now."""
        with self.database.transaction() as connection:
            self._forget(connection, run)
            for other in others:
                self._rewrite_changes(connection, other)
                self.audit.add(connection, other.run, other.state, f"again: {_summary(other)}")
        for other in others:
            if records.has_record(self.places, other):
                records.write_record(self.places, other, self._rows_of_changes(other.run))

    def runs(self, *filters: RunFilter, limit: int = 0, among: Collection[str] | None = None) -> list[Run]:
        """Return the runs that pass every filter, the latest first; with `among`, only runs with these ids."""
        conditions, values = _conditions_of(filters)
        if among is not None:
            conditions += f" AND runs.id IN ({', '.join('?' * len(among))})"
            values = (*values, *among)
        limit_clause = f"LIMIT {int(limit)}" if limit else ""
        rows = self.database.rows(f"{_SELECT} WHERE {conditions} ORDER BY runs.number DESC {limit_clause}", values)
        return [self._run(row) for row in rows]

    def output_pieces(self, run: str, stream: str) -> Iterator[bytes]:
        """Yield the bytes that a run printed to one stream, as far as they are kept."""
        return records.output_pieces(self.database, self.places, run, stream)

    def count_changes(self, runs: Sequence[str]) -> dict[str, dict[str, int]]:
        """Return for each run how many changes of each kind it made."""
        return {
            run: {kind: int(count) for kind, _, count in (part.partition("=") for part in counts.split())}
            for run, counts in self.database.rows_for("SELECT id, counts FROM runs WHERE id IN (?)", runs)
        }

    def changes(self, run: str) -> list[Change]:
        """Return the changes of a run."""
        return changes_of_rows(self._rows_of_changes(run))

    def _rows_of_changes(self, run: str) -> list[tuple[Any, ...]]:
        return self.database.rows(f"SELECT {OF_CHANGES} FROM changes WHERE run = {_NUMBER_OF_RUN} ORDER BY n", (run,))

    def _run(self, row: tuple[Any, ...]) -> Run:
        project, fields = os.fsdecode(row[1]), dict(zip((*_COLUMNS, "draft_name"), row[2:], strict=True))
        has_ended = fields["exit_code"] is not None
        fields["one_stream"] = has_ended and fields["stderr"] is None and not fields["stderr_size"]
        (stdout, cut_out), (stderr, cut_err) = (self._read_output(fields, name) for name in ("stdout", "stderr"))
        fields["run"], fields["number"] = fields.pop("id"), fields.pop("project_number")
        fields["name"] = self._shown_name(row[0], fields["run"], fields["number"])
        fields["cwd"] = os.fsdecode(fields["cwd"])
        fields["roots"] = records.roots_of(project, fields["roots"])
        fields["timed_out"], fields["sandboxed"] = bool(fields["timed_out"]), bool(fields["sandboxed"])
        fields["duration_s"] = fields["duration_s"] or 0.0
        fields["blocked"] = _read_blocked(fields["blocked"])
        for name in ("dropped", "below"):
            fields[name] = tuple(fields[name].split())
        fields["hosts"] = tuple(fields["hosts"].split("\n")) if fields["hosts"] else ()
        return Run(
            project=project, stdout=stdout, stderr=stderr, output_truncated=cut_out or cut_err,
            changed=lambda: self.changes(fields["run"]),
            connections=lambda: trail.read_connections(self.database, fields["run"]), **fields,
        )  # fmt: skip

    def _shown_name(self, project: int, run: str, number: int) -> str:
        return str(number) if project == self.current_project else run

    def name_of(self, run: str) -> str:
        """Return the name that people see for the run with this id; the id itself if it is not recorded."""
        rows = self.database.rows("SELECT project, project_number FROM runs WHERE id = ?", (run,))
        return self._shown_name(rows[0][0], run, rows[0][1]) if rows else run

    def _read_output(self, fields: dict[str, Any], name: str) -> tuple[str, bool]:
        """Return an output from its column or its file, and whether a part of it is left out."""
        data, size = fields.pop(name), fields.pop(f"{name}_size")
        if data is None and size:
            return records.read_output(self.places.output(fields["id"], name), size)
        return (data or b"").decode("utf-8", "replace"), False


def _runs_before_last(name: str) -> int | None:
    """Return how many runs before the last one a name means (`last~2`: 2), or None if it is another kind of name."""
    if name == LAST:
        return 0
    count = name.removeprefix(f"{LAST}~")
    # No more digits than the database has room for.
    return int(count) if count != name and count.isascii() and count.isdigit() and len(count) < 10 else None


def _number(name: str) -> int | None:
    """Return the number of a run in its project that a name means, or None if it is another kind of name."""
    digits = name.removeprefix("#")
    return int(digits) if digits.isascii() and digits.isdigit() and digits[0] != "0" and len(digits) < 10 else None


def is_relative_to_project(name: str) -> bool:
    """Return True if a name means different runs in different projects: a number, `last` or `last~2`."""
    return _number(name) is not None or name.partition("~")[0] == LAST


def _conditions_of(filters: Sequence[RunFilter]) -> tuple[str, tuple[str | int, ...]]:
    """Write filters as conditions of a query, with the values for it."""
    conditions = ["TRUE"]
    values: list[str | int] = []
    for run_filter in filters:
        if run_filter.project is not None:
            conditions.append("runs.project = ?")
            values.append(run_filter.project)
        if run_filter.sessions:
            conditions.append(f"runs.session IN ({', '.join('?' * len(run_filter.sessions))})")
            values.extend(run_filter.sessions)
        if run_filter.draft is not None:
            conditions.append("runs.draft = ?")
            values.append(run_filter.draft)
        if run_filter.asked_by:
            conditions.append("runs.id != ? AND NOT (runs.state = 'empty' AND runs.command LIKE 'fumehood %')")
            values.append(run_filter.asked_by)
    return " AND ".join(conditions), tuple(values)


def _summary(run: Run, by: str = "") -> str:
    """Sum up a run for the audit trail: how its command ended, and the verdicts on its changes."""
    ended = "" if run.exit_code is None else f"exit {run.exit_code}"
    became = f"{by}{trail.count_verdicts(run.changed)}" if run.changed else ""
    return "; ".join(part for part in (ended, became, run.reason) if part)


def _blocked_text(blocked: Sequence[Blocked]) -> str:
    if not blocked:
        return "[]"
    import json

    return json.dumps([each.fields() for each in blocked])


def _read_blocked(text: str) -> tuple[Blocked, ...]:
    if text == "[]":
        return ()
    import json

    return tuple(Blocked(**each) for each in json.loads(text))
