"""Run a project's commands for a Python program: to their end, without blocking an event loop, or with a handle."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from io import RawIOBase, UnsupportedOperation
from typing import IO, TYPE_CHECKING, Any, TypedDict, Unpack

from fumehood.core.policy import FULL, NONE
from fumehood.core.request import APPLY, BACKGROUND_AFTER, HOLD, Request, encode_text
from fumehood.errors import RAISED_BY, BadRequest
from fumehood.linux.monitor import watch_layers
from fumehood.linux.process import CHANGES, KILL
from fumehood.linux.streams import CLOSED, INHERITED, TYPED, decoding_sink
from fumehood.service.arguments import checks_arguments, errors_as_ours, is_path
from fumehood.service.ask import channels
from fumehood.service.clean import clean_up
from fumehood.service.decide import discard_held
from fumehood.service.dialogue import Dialogue
from fumehood.service.hood import Caller
from fumehood.service.listener import LoopListener
from fumehood.service.opened import OpenedStore, is_cleaning_due, upkeep
from fumehood.service.sandbox import questions_for, run_in
from fumehood.service.started import Started, Underway, program_terminal

if TYPE_CHECKING:
    from fumehood.core.questions import Question
    from fumehood.core.report import Run
    from fumehood.linux.streams import CommandInput
    from fumehood.service.ask import Answering, Ask
    from fumehood.service.hood import Hood
    from fumehood.service.projects import ThrowawayDirectory
    from fumehood.store.projects import Project

    Function = Callable[..., object]
    OnOutput = Callable[[str, str], object]
    OnChange = Callable[[str, str], object]
    Command = str | Sequence[str | os.PathLike[str]]
    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    Writable = bool | Paths | None


class StartOptions(TypedDict, total=False):
    """The options that `start` and `astart` share with `run`, for type checkers."""

    cwd: str | os.PathLike[str] | None
    network: bool | Sequence[str]
    timeout: float | None
    apply: str | bool | None
    on_change: OnChange | None
    root: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    ask: Answering | Ask | Sequence[Answering | Ask] | None
    cancelled: Callable[[], bool] | None
    background: bool
    write: Writable
    output_limit: int | None


class RunOptions(StartOptions, total=False):
    """The options of `run`, for type checkers."""

    on_output: OnOutput | None
    stdin: str | bytes | IO[Any] | None


_NO_TIME_LIMIT_S = 300_000_000.0
INHERIT = "inherit"  # value of `stdin`: the standard input of this program


@checks_arguments
class Commands:
    """The methods that run commands, which a sandbox and a draft share."""

    _store: OpenedStore
    _project: Project
    _hood: Hood
    _ask: Answering | Ask | Sequence[Answering | Ask] | None
    _session: str
    _own_tmp: bool
    _thrown: ThrowawayDirectory | None
    _cwd: str
    _mark: str
    _draft: str

    def run(
        self, command: Command, *, cwd: str | os.PathLike[str] | None = None, network: bool | Sequence[str] = False,
        timeout: float | None = None, apply: str | bool | None = None, on_output: OnOutput | None = None,
        on_change: OnChange | None = None, stdin: str | bytes | IO[Any] | None = None,
        root: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None,
        ask: Answering | Ask | Sequence[Answering | Ask] | None = None, cancelled: Callable[[], bool] | None = None,
        background: bool = False, write: Writable = None, output_limit: int | None = None,
    ) -> Run:  # fmt: skip
        """Run a command: a string is a shell line, a sequence a program and its arguments.

        `apply` is "apply", "hold", "discard" or "whole"; True and False mean the first two. "whole" applies the
        changes, but discards them if the command was ended before its own end. `root` is "host", "alpine", the name of
        an installed root tree, or a directory that holds one. `env` adds to the environment. `network` asks for the
        whole network, or for hosts: ["pypi.org:443", "*.example.org"]. `ask` replaces the sandbox's own `ask` for this
        run. When `cancelled` returns True, the command is ended and what it wrote is held. An error that any of these
        functions raises ends the command too, and is raised here; what the command wrote is held.
        `stdin` is a text, bytes, an open file, or "inherit": the standard input of this program.
        `write` limits what the command may write: False is nothing; directories may be in the project or elsewhere. A
        directory that is not in the project's roots is a root for this run, if `ask` allows it. All else is read-only.
        `output_limit` is how many bytes of each output are kept.
        With `background`, for commands that run beside others, a checkpoint is made every few seconds.
        """
        request = self._request(
            command, cwd=cwd, network=network, timeout=timeout, apply=apply, root=root, env=env, background=background,
            write=write, output_limit=output_limit,
        )  # fmt: skip
        return self._perform(request, _caller(on_output, on_change, _command_input(stdin), cancelled, channels(ask)))

    def questions(
        self, command: Command, *, cwd: str | os.PathLike[str] | None = None, network: bool | Sequence[str] = False
    ) -> tuple[Question, ...]:
        """Return what a person would be asked before this command runs."""
        return questions_for(self._hood, self._request(command, cwd=cwd, network=network))

    def _perform(self, request: Request, caller: Caller) -> Run:
        with errors_as_ours(self):
            upkeep(self._store, self._project.id)
            if isinstance(caller.partner, Dialogue):  # its handle ends it
                run = run_in(self._hood, request, caller)
            else:
                underway = Underway(self._store, caller)
                try:
                    with underway as cancellable:
                        run = run_in(self._hood, request, cancellable)
                finally:
                    underway.leave()  # again, because Ctrl-C may have come just before the block did so
        if is_cleaning_due(self._store):
            # The program may run for weeks, so it can't be done at its end; and it must not wait for this.
            def clean() -> None:
                self._store.notices += clean_up(self._store, self._hood.policy.clean).splitlines()

            threading.Thread(target=clean, name="fumehood-clean", daemon=True).start()
        return self._marked(run)

    async def arun(self, command: Command, **options: Unpack[RunOptions]) -> Run:
        """Run a command without blocking the event loop; cancelling ends the command and keeps its record.

        Takes the arguments of `run`. `on_output` and `on_change` are called in the loop's own thread, in order, and may
        be coroutine functions; the command waits for slow ones.
        """
        loop = asyncio.get_running_loop()
        outcome: Future[Run | BaseException] = Future()
        is_task_cancelled = threading.Event()
        rest: dict[str, Any] = {**options}
        on_output, on_change, stdin = (rest.pop(name, None) for name in ("on_output", "on_change", "stdin"))
        cancelled = rest.pop("cancelled", None) or is_task_cancelled.is_set
        if inspect.iscoroutinefunction(cancelled):
            raise _no_coroutine("cancelled")
        asks = channels(rest.pop("ask", self._ask), loop)
        request, command_input = self._request_with(command, rest, "arun"), _command_input(stdin)
        listener = LoopListener(loop)
        caller = _caller(
            on_output, on_change, command_input, lambda: is_task_cancelled.is_set() or cancelled(), asks, listener
        )

        def work() -> None:
            try:
                outcome.set_result(self._perform(request, caller))
            except BaseException as error:  # noqa: BLE001 - raised to whoever awaits
                # As a result: a future refuses a StopIteration as its error, and takes a CancelledError for its own.
                outcome.set_result(error)
            finally:
                listener.silence()

        future = asyncio.wrap_future(outcome)
        threading.Thread(target=work, name="fumehood-run", daemon=True).start()
        try:
            result = await asyncio.shield(future)
        except asyncio.CancelledError:
            is_task_cancelled.set()
            await listener.end(at_once=True)
            await asyncio.wait([future])
            raise
        finally:
            await listener.end(at_once=False)
        if isinstance(result, BaseException):
            raise result
        return result

    def start(
        self, command: Command, *, terminal: bool | tuple[int, int] = False, text: bool = True,
        **options: Unpack[StartOptions],
    ) -> Started:  # fmt: skip
        """Start a command, and return a handle to write to it, read from it, and end it.

        Takes the arguments of `run`, except `on_output` and `stdin`; without a `timeout` there is no time limit. With
        `terminal`, True or its (columns, rows), the command has a terminal instead of pipes. With `text=False`, its
        output is read as bytes. Returns when the command has started; `wait` raises later errors.
        """
        dialogue = self._start(command, terminal, text, {**options}, None)
        dialogue.wait(dialogue.poll_start)
        return Started(dialogue)

    async def astart(
        self, command: Command, *, terminal: bool | tuple[int, int] = False, text: bool = True,
        **options: Unpack[StartOptions],
    ) -> Started:  # fmt: skip
        """Do the same as `start` without blocking the event loop while a person is asked.

        `on_change` is a plain function, called in the loop's own thread.
        """
        dialogue = self._start(command, terminal, text, {**options}, asyncio.get_running_loop())
        try:
            await dialogue.wait_in_loop(dialogue.poll_start)
        except asyncio.CancelledError:
            dialogue.end(KILL)
            raise
        return Started(dialogue)

    def _start(
        self, command: Command, terminal: bool | tuple[int, int], as_text: bool, options: dict[str, Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> Dialogue:  # fmt: skip
        on_change = noting_errors("on_change", options.pop("on_change", None))
        cancelled = noting_errors("cancelled", options.pop("cancelled", None))
        asks = channels(options.pop("ask", self._ask), loop)
        request = self._request_with(command, {"timeout": _NO_TIME_LIMIT_S, **options}, "start")
        own_terminal = program_terminal(terminal)
        dialogue = Dialogue(self._store, own_terminal, as_text=as_text)
        if loop is not None and on_change is not None:
            call = on_change

            def call_in_loop(*arguments: str) -> None:
                try:
                    call(*arguments)
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raised to whoever waits
                    dialogue.fail(error)  # the command is attended in another thread

            on_change = partial(loop.call_soon_threadsafe, call_in_loop)
        caller = Caller(
            stdin=dialogue, on_stdout=dialogue.sink("stdout"), on_stderr=dialogue.sink("stderr"),
            watch=None if on_change is None else partial(watch_layers, on_change), cancelled=cancelled, asks=asks,
            terminal=own_terminal, partner=dialogue,
        )  # fmt: skip
        dialogue.attend(lambda: self._perform(request, caller))
        return dialogue

    def import_bundle(self, path: str | os.PathLike[str]) -> Run:
        """Import a bundle that `export` wrote, here or elsewhere, as a held run, judged like any command's.

        A path that differs here from what the bundle was made on is a conflict. The run's `reason` says who signed the
        bundle, by the names in `sign.signers` of the configuration.
        """
        return self._marked(self._import_bundle(os.fspath(path)))

    def _import_bundle(self, path: str, title: str = "", signature_line: str = "") -> Run:
        from fumehood.service.bundles import UNPACK_COMMAND, compare_base, read_bundle

        bundle = read_bundle(path, self._store.places.state, self._hood.policy.sign.signers)
        with bundle.layer:
            title = title or f"import {os.path.basename(path)}: {bundle.command}"
            run = self._unpack_as_held(UNPACK_COMMAND, bundle.layer, title)
        signature_line = signature_line or f"from a bundle, {bundle.signature_line}"
        return compare_base(self._store, self._project, run, bundle.replace(signature_line=signature_line))

    def import_patch(self, path: str | os.PathLike[str]) -> Run:
        """Import a patch in git's format, with binary files too, as a held run."""
        from fumehood.service.bundles import APPLY_PATCH_COMMAND

        try:
            with open(path, "rb") as patch:
                return self._unpack_as_held(APPLY_PATCH_COMMAND, patch, f"import {os.path.basename(path)}")
        except OSError as error:
            raise BadRequest(f"{os.fspath(path)} can't be read: {error.strerror}", hint="check the path") from error

    def _unpack_as_held(self, command: Sequence[str], source: IO[bytes], title: str) -> Run:
        """Unpack a file from elsewhere by a command in the hood; hold what that writes, or keep nothing if it fails."""
        request = self._request(command, cwd=self._project.path, apply=HOLD, root="host").replace(title=title)
        run = self._perform(request, _caller(None, None, _command_input(source), None, ()))
        if run.exit_code:
            if run.state == "held":
                discard_held(self._store, self._project, run)
            raise BadRequest(f"it can't be laid out here: {run.stderr.strip()[-300:]}", hint="nothing was kept")
        return run

    def _request_with(self, command: Command, options: dict[str, Any], name: str) -> Request:
        unknown = options.keys() - (self._request.__kwdefaults__ or {}).keys()
        if unknown:
            raise TypeError(f"{name} takes no {', '.join(sorted(unknown))}")
        return self._request(command, **options)

    def _request(
        self, command: Command, *, cwd: str | os.PathLike[str] | None = None, network: bool | Sequence[str] = False,
        timeout: float | None = None, apply: str | bool | None = None, root: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None, background: bool = False, write: Writable = None,
        output_limit: int | None = None,
    ) -> Request:  # fmt: skip
        mode = self._hood.policy.mode((APPLY if apply else HOLD) if isinstance(apply, bool) else apply)
        hosts = () if isinstance(network, bool) else (network,) if isinstance(network, str) else tuple(network)
        # A command of another type is refused by the request's own checks.
        words: Any = command
        if isinstance(command, (list, tuple)):
            words = tuple(os.fspath(word) if isinstance(word, os.PathLike) else word for word in command)
        if not cwd and self._cwd:  # but a session's command starts where the last one ended
            session = self._store.sessions.find(self._session) if self._session else None
            cwd = self._cwd if session is None or not session.cwd else ""
        return Request(
            command=words, cwd=os.fspath(cwd or ""), mode=mode, timeout=timeout,
            root=os.fspath(root or ""), session=self._session, draft=self._draft, own_tmp=self._own_tmp,
            environment=tuple((env or {}).items()), network=FULL if network is True else NONE, hosts=hosts,
            background_after=BACKGROUND_AFTER if background else None, write=_writable_paths(write),
            output_limit=output_limit, throwaway="" if self._thrown is None else self._thrown.path,
        )  # fmt: skip

    def _marked(self, run: Run) -> Run:
        run.mark = self._mark
        return run


def path_texts(paths: Paths) -> list[str]:
    """Return paths as a list of texts; a single path is a list of one, not of its letters."""
    return [os.fspath(path) for path in ((paths,) if isinstance(paths, (str, os.PathLike)) else paths)]


def _writable_paths(write: Writable) -> tuple[str, ...] | None:
    """Return all paths that a run may write, or None if that is not limited."""
    if write is None or isinstance(write, bool):
        return () if write is False else None
    paths = write if isinstance(write, (list, tuple, set, frozenset)) else (write,)
    for path in paths:
        if not is_path(path):
            raise BadRequest(f"write can't be {path!r}", hint="a path, as text")
    return tuple(map(os.fspath, paths))


def _caller(
    on_output: OnOutput | None, on_change: OnChange | None, command_input: CommandInput,
    cancelled: Callable[[], bool] | None, asks: tuple[Ask, ...], listener: LoopListener | None = None,
) -> Caller:  # fmt: skip
    call_on_output = noting_errors("on_output", on_output, is_awaited=listener is not None)
    call_on_change = noting_errors("on_change", on_change, is_awaited=listener is not None)

    def sink(stream: str) -> Callable[[bytes], None] | None:
        if call_on_output is None:
            return None

        def call(text: str) -> object:
            return call_on_output(stream, text)  # for a listener, it may be a coroutine

        return decoding_sink(call if listener is None else listener.queued(stream, call))

    if call_on_change is not None and listener is not None:
        call_on_change = listener.queued(CHANGES, call_on_change)
    return Caller(
        stdin=command_input, on_stdout=sink("stdout"), on_stderr=sink("stderr"),
        watch=None if call_on_change is None else partial(watch_layers, call_on_change),
        cancelled=noting_errors("cancelled", cancelled), asks=asks, partner=listener,
    )  # fmt: skip


def _no_coroutine(name: str) -> BadRequest:
    hint = "a plain function; on_output and on_change of arun may be either"
    return BadRequest(f"{name} can't be a coroutine function here", hint=hint)


@contextmanager
def _errors_noted(name: str) -> Iterator[None]:
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        error.add_note(f"{RAISED_BY}{name}")
        raise


def noting_errors(name: str, function: Function | None, *, is_awaited: bool = False) -> Any:
    """Return a function that adds to each error the name by which the program passed it: `run` itself raises them.

    Where nobody awaits the result, a coroutine function is refused: now, or when it returns an awaitable.
    """
    if function is None:
        return None
    if not is_awaited and inspect.iscoroutinefunction(function):
        raise _no_coroutine(name)

    async def wait_for(result: Any) -> object:
        with _errors_noted(name):
            return await result

    def call(*arguments: str) -> object:
        with _errors_noted(name):
            result = function(*arguments)
            if not inspect.isawaitable(result):
                return result
            if not is_awaited:
                if inspect.iscoroutine(result):
                    result.close()
                raise _no_coroutine(name)
        return wait_for(result)

    return call


def _command_input(stdin: Any) -> CommandInput:
    """Return a command's input: a text, bytes, an open file from its position on, or the input of this program."""
    if stdin is None:
        return CLOSED
    if stdin == INHERIT:
        return TYPED if os.isatty(0) else INHERITED
    if isinstance(stdin, (str, bytes)):
        # As bytes: the texts "closed" and "inherited" have a meaning of their own.
        return encode_text(stdin) if isinstance(stdin, str) else stdin
    try:
        if not stdin.readable():
            raise BadRequest(f"stdin can't be {stdin!r:.100}: it is not open for reading", hint="open(path, 'rb')")
        fd = _raw_descriptor(stdin)
        return fd if fd >= 0 and _move_to_position(stdin, fd) else _command_input(stdin.read())
    except (AttributeError, ValueError) as error:
        raise BadRequest(
            f"stdin can't be {stdin!r:.100}", hint="a text, bytes, an open file, 'inherit' or None"
        ) from error


def _raw_descriptor(file: Any) -> int:
    """Return the descriptor of a file if it gives the same bytes as the file's `read`, else -1.

    An archive's descriptor gives packed bytes, that of a web server's answer only what is not in the buffer yet, and
    a file in memory has none.
    """
    buffer = getattr(file, "buffer", file)
    raw = getattr(buffer, "raw", buffer)
    try:
        return raw.fileno() if isinstance(raw, RawIOBase) else -1
    except UnsupportedOperation:
        return -1


def _move_to_position(file: Any, fd: int) -> bool:
    """Move the descriptor to the position of the file, which may have read ahead; return False if that is unknown."""
    if not file.seekable():
        return True
    is_text = isinstance(file.read(0), str)
    try:
        position = file.tell()
    except OSError:  # somebody iterates over it
        return False
    if position != os.lseek(fd, 0, os.SEEK_CUR):
        if is_text:
            return False
        os.lseek(fd, position, os.SEEK_SET)
    return True
